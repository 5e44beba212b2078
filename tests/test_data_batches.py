"""Batches: normalisation, augmentation, and an order that is a pure function of (seed, epoch)."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelseed.data import Batches, Split, augment, normalise
from kernelseed.data.dataset import channel_statistics, stratified_split
from kernelseed.errors import ArgumentError


def numbered(count):
    """A split whose every example says its number: as its label and in its pixels."""
    labels = torch.arange(count)
    return Split(labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone(), labels)


def labels_of(batches):
    return [y.tolist() for _, y in batches]


def flat(lists):
    return [item for part in lists for item in part]


BYTES = {"mean": (0.0,), "std": (1 / 255,)}  # normalised pixels are the bytes again


def test_normalise_is_the_formula():
    batch = torch.randint(256, (5, 3, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
    expected = torch.stack([(batch[:, c].double() / 255 - mean[c]) / std[c] for c in range(3)], dim=1)
    result = normalise(batch, mean, std)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)
    with pytest.raises(ArgumentError, match="mean and std have 1 and 1 numbers; the images have 3 channels"):
        normalise(batch, (0.5,), (0.5,))


def test_split_checks_its_tensors():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    assert len(Split(images, labels)) == 3
    for wrong in (images.float(), images[0]):
        with pytest.raises(
            ArgumentError, match=r"images is torch.* of shape .*; it must be uint8 of shape \(N, C, H, W\)"
        ):
            Split(wrong, labels)
    for wrong in (labels.int(), labels[:2]):
        with pytest.raises(ArgumentError, match=r"labels is torch.* of shape .*; it must be int64 of shape \(3,\)"):
            Split(images, wrong)


@pytest.mark.parametrize(("fraction", "taken"), [(0.01, [0, 1, 1]), (0.3, [0, 1, 3]), (0.99, [0, 1, 9])])
def test_stratified_split_takes_one_of_each_class_but_never_all(fraction, taken):
    split = Split(torch.zeros(13, 1, 1, 1, dtype=torch.uint8), torch.tensor([0] + [1] * 2 + [2] * 10))
    rest, part = stratified_split(split, fraction, seed=0)
    assert part.labels.bincount(minlength=3).tolist() == taken
    assert (rest.labels.bincount() + part.labels.bincount(minlength=3)).tolist() == [1, 2, 10]


def test_a_blank_channel_can_be_normalised():
    images = torch.full((2, 1, 3, 3), 51, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    torch.testing.assert_close(normalise(images, mean, std), torch.zeros(2, 1, 3, 3), atol=1e-4, rtol=0)


def test_augment_follows_its_slow_twin():
    batch = torch.randint(256, (200, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fast = augment(batch, crop=2, generator=torch.Generator().manual_seed(1))
    assert fast.dtype == torch.uint8
    generator = torch.Generator().manual_seed(1)
    top, left = torch.randint(5, (2, 200), generator=generator).tolist()
    mirrored = (torch.rand(200, generator=generator) < 0.5).tolist()
    seen = set()
    for n in range(200):
        padded = torch.zeros(3, 9, 11, dtype=torch.uint8)
        padded[:, 2:7, 2:9] = batch[n]
        slow = padded[:, top[n] : top[n] + 5, left[n] : left[n] + 7]
        assert torch.equal(fast[n], slow.flip(2) if mirrored[n] else slow)
        seen.add((top[n], left[n], mirrored[n]))
    # 50 equally likely outcomes in 200 examples: each has its own, and both extremes occur.
    assert len(seen) > 40
    assert {t for t, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))


def test_augment_parts_can_be_switched_off():
    batch = torch.randint(256, (64, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(batch, crop=0, flip=False), batch)
    mirrored = augment(batch, crop=0, generator=torch.Generator().manual_seed(2))
    kept = (mirrored == batch).flatten(1).all(1)
    assert torch.equal(mirrored[~kept], batch[~kept].flip(3))
    assert 16 < kept.sum() < 48
    with pytest.raises(ArgumentError, match="crop is -1; it must be at least 0"):
        augment(batch, crop=-1)


def test_without_shuffling_the_order_is_the_split():
    batches = Batches(numbered(10), **BYTES, batch_size=4)
    assert labels_of(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for x, y in batches:
        torch.testing.assert_close(x[:, 0, 0, 0], y.float())
    assert labels_of(Batches(numbered(10), **BYTES, batch_size=4, drop_last=True)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_order_is_a_pure_function_of_seed_and_epoch():
    def epochs(seed, wanted, **options):
        batches = Batches(numbered(50), **BYTES, batch_size=8, shuffle=True, seed=seed, **options)
        orders = []
        for epoch in wanted:
            batches.set_epoch(epoch)
            orders.append(flat(labels_of(batches)))
        return orders

    torch.manual_seed(0)
    walked = epochs(3, range(4))
    torch.manual_seed(1)
    assert epochs(3, [3, 2]) == [walked[3], walked[2]]  # resumed, elsewhere in the global stream
    assert all(sorted(order) == list(range(50)) for order in walked)
    different = walked + epochs(4, range(4))
    assert len({tuple(order) for order in different}) == 8
    # Augmentation does not disturb the order.
    assert epochs(3, range(4), augment=augment) == walked


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    list(Batches(numbered(20), **BYTES, batch_size=4, shuffle=True, augment=augment))
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_is_a_pure_function_of_seed_epoch_and_batch():
    noise = Split(
        torch.randint(256, (32, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        torch.arange(32),
    )

    def pixels(seed=0, epoch=0, rank=0):
        options = {"seed": seed, "augment": partial(augment, crop=2), "rank": rank, "world_size": 2}
        batches = Batches(noise, **BYTES, batch_size=8, **options)
        batches.set_epoch(epoch)
        return torch.cat([x for x, _ in batches])

    assert torch.equal(pixels(), pixels())
    assert not torch.equal(pixels(), pixels(epoch=1))
    assert not torch.equal(pixels(), pixels(seed=1))


def test_every_batch_and_rank_has_augmentation_of_its_own():
    drawn = []

    def spy(batch, generator):
        drawn.append(torch.rand(4, generator=generator).tolist())
        return batch

    for rank in range(2):
        for epoch in range(2):
            batches = Batches(numbered(16), **BYTES, batch_size=4, augment=spy, rank=rank, world_size=2)
            batches.set_epoch(epoch)
            list(batches)
    assert len(drawn) == 8
    assert len(set(map(tuple, drawn))) == 8


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_ranks_share_the_batches_of_one_process(count, batch_size, world_size, drop_last, shuffle):
    def make(**options):
        return Batches(numbered(count), **BYTES, shuffle=shuffle, drop_last=drop_last, seed=5, **options)

    per_rank = count // world_size
    if per_rank < (batch_size if drop_last else 1):
        with pytest.raises(ArgumentError, match=f"batch_size is {batch_size} with .* leaves no batch"):
            make(batch_size=batch_size, world_size=world_size)
        return
    ranks = [make(batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    seen = [labels_of(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == [len(batches) for batches in seen]
    assert len({tuple(map(len, batches)) for batches in seen}) == 1
    everything = flat(flat(seen))
    assert len(set(everything)) == len(everything)
    assert len(everything) == world_size * (per_rank - per_rank % batch_size if drop_last else per_rank)
    alone = labels_of(make(batch_size=batch_size * world_size))
    for step, together in enumerate(zip(*seen, strict=True)):
        assert set(flat(together)) <= set(alone[step])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": 4, "seed": -1}, "seed is -1; it must be an integer of at least 0"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank is 2 with world_size 2; 0 <= rank < world_size"),
        ({"batch_size": 4, "rank": -1}, "rank is -1 with world_size 1"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ArgumentError, match=message):
        Batches(numbered(10), **BYTES, **options)


def test_epochs_are_counted_from_zero():
    with pytest.raises(ArgumentError, match="epoch is -1; it must be at least 0"):
        Batches(numbered(10), **BYTES, batch_size=4).set_epoch(-1)
