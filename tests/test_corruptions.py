"""Corrupted images: literal references for what each does, and what a seed and an image decide."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch

import kernelseed as ks
from kernelseed.data import CORRUPTIONS, SEVERITIES, CorruptedBatches, Split, corrupt, normalise
from kernelseed.errors import ArgumentError, ArgumentTypeError

DETERMINISTIC = {"blur", "contrast", "brightness", "pixelation"}


@pytest.fixture(scope="module")
def digits():
    return ks.data.load("digits").test.images


def blobs(count, channels, height, width):
    """Smooth pictures, each with something to see in it."""
    rng = np.random.default_rng(0)
    x = scipy.ndimage.gaussian_filter(rng.normal(size=(count, channels, height, width)), (0, 0, height / 8, width / 8))
    x = (x - x.min((2, 3), keepdims=True)) / np.ptp(x, (2, 3), keepdims=True)
    return torch.from_numpy((255 * x).round().astype(np.uint8))


def level(name, severity):
    return CORRUPTIONS[name].levels[severity - 1]


def as_bytes(x):
    return np.clip(np.rint(x), 0, 255)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (3, 17, 30), (3, 32, 32)], ids=str)
def test_bytes_in_and_bytes_of_the_same_shape_out(name, shape):
    images = torch.randint(256, (3, *shape), dtype=torch.uint8)
    before = images.clone()
    for severity in (1, 5):
        damaged = corrupt(images, name, severity)
        assert (damaged.dtype, damaged.shape) == (torch.uint8, images.shape)
    assert torch.equal(images, before)
    assert corrupt(images[:0], name, 1).shape == (0, *shape)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_and_image_decide_and_nothing_else(name):
    images = blobs(12, 3, 16, 20)
    whole = corrupt(images, name, 4, seed=3)
    order = torch.randperm(12)
    torch.manual_seed(1)  # which no corruption looks at
    for size in (1, 5):
        parts = [corrupt(part, name, 4, seed=3) for part in images[order].split(size)]
        assert torch.equal(torch.cat(parts), whole[order])
    assert torch.equal(corrupt(images.flip(0), name, 4, seed=3).flip(0), whole)
    assert torch.equal(corrupt(images, name, 4, seed=4), whole) == (name in DETERMINISTIC)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [(8, 8), (32, 28)], ids=str)
def test_each_severity_goes_farther(name, size, digits):
    """On things to see, in grey and in colours."""
    if name == "rotation":  # a digit that is turned far may lie over itself again; a beam does not
        digits = torch.zeros_like(digits)
        digits[:, :, 3:5, :7] = 200 + torch.arange(len(digits), dtype=torch.uint8)[:, None, None, None] % 50
    images = torch.nn.functional.interpolate(digits[:100].float(), size, mode="bilinear").round().to(torch.uint8)
    if size != (8, 8):
        images = torch.cat([images // 2 + 60, images, 255 - images], 1)
    far = [(corrupt(images, name, s).float() - images).square().mean().sqrt().item() for s in SEVERITIES]
    assert far[0] > 0
    assert all(b > a for a, b in pairwise(far)), far


# --- what each does, by literal references


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_and_brightness_pixel_by_pixel(severity):
    images = blobs(2, 3, 5, 6)
    dimmed, bright = (corrupt(images, name, severity) for name in ("contrast", "brightness"))
    for i, c, h, w in np.ndindex(*images.shape):
        pixel, middle = images[i, c, h, w].item(), images[i].double().mean().item()
        wanted = middle + level("contrast", severity) * (pixel - middle)
        assert abs(dimmed[i, c, h, w].item() - wanted) <= 0.5 + 1e-3
        wanted = min(pixel + 255 * level("brightness", severity), 255)
        assert abs(bright[i, c, h, w].item() - wanted) <= 0.5 + 1e-3


def test_pixelation_is_means_of_blocks():
    images = torch.randint(256, (2, 1, 10, 10), dtype=torch.uint8)
    coarse = corrupt(images, "pixelation", 5)  # 0.2 of the side: blocks of 5 x 5
    for i, top, left in np.ndindex(2, 2, 2):
        block = (i, 0, slice(5 * top, 5 * top + 5), slice(5 * left, 5 * left + 5))
        assert (coarse[block].float() - images[block].float().mean()).abs().max() <= 0.5 + 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_is_scipys(severity):
    images = blobs(2, 3, 24, 20)
    std = level("blur", severity) * 20
    radius = max(1, math.ceil(3 * std))
    wanted = scipy.ndimage.gaussian_filter(images.double().numpy(), (0, 0, std, std), mode="nearest", radius=radius)
    assert np.abs(corrupt(images, "blur", severity).numpy() - wanted).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
def test_rotation_is_scipys_to_one_side_or_the_other(severity):
    images = blobs(8, 1, 18, 24)
    turned = corrupt(images, "rotation", severity).numpy()
    degrees = level("rotation", severity)
    sides = []
    for image, found in zip(images.double().numpy(), turned, strict=True):
        wanted = [
            scipy.ndimage.rotate(image[0], sign * degrees, reshape=False, order=1, mode="grid-constant")
            for sign in (1, -1)
        ]
        off = [np.abs(as_bytes(one) - found[0]).max() for one in wanted]
        assert min(off) <= 1
        sides.append(int(np.argmin(off)))
    assert set(sides) == {0, 1}


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_translation_goes_so_far_in_any_direction(severity):
    """A wide bump moves by the distance that its centre of mass moves by."""
    h, w = np.mgrid[:80, :80]
    bumps = [np.exp(-((h - 39.5) ** 2 + (w - 39.5 + i / 8) ** 2) / (2 * 3.0**2)) for i in range(8)]
    images = torch.from_numpy(as_bytes(255 * np.stack(bumps))[:, None].astype(np.uint8))
    moved = corrupt(images, "translation", severity)
    angles = []
    for before, after in zip(images.numpy(), moved.numpy(), strict=True):
        down, across = np.subtract(scipy.ndimage.center_of_mass(after[0]), scipy.ndimage.center_of_mass(before[0]))
        assert math.hypot(down, across) == pytest.approx(level("translation", severity) * 80, abs=0.1)
        angles.append(math.atan2(down, across))
    assert np.ptp(angles) > 1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_occlusion_is_one_grey_square(severity):
    images = torch.zeros(4, 3, 20, 30, dtype=torch.uint8) + torch.arange(4, dtype=torch.uint8)[:, None, None, None]
    hidden = corrupt(images, "occlusion", severity) != images
    side = math.ceil(level("occlusion", severity) * 20)
    for mask in hidden:
        rows, columns = mask[0].any(1).nonzero(), mask[0].any(0).nonzero()
        assert len(rows) == len(columns) == side
        assert mask.sum() == 3 * side * side
    assert set(corrupt(images, "occlusion", severity)[hidden].tolist()) == {128}


def test_gaussian_noise_is_normal():
    grey = torch.full((4, 1, 64, 64), 128, dtype=torch.uint8)
    grey[:, 0, 0, 0] = torch.arange(4)  # four images, so four kinds of noise
    noise = (corrupt(grey, "gaussian-noise", 2).double() - grey.double()) / 255
    jitter = (torch.rand(noise.shape, dtype=torch.float64) - 0.5) / 255  # undoes the rounding
    values = (noise + jitter)[:, :, 1:].flatten().numpy() / level("gaussian-noise", 2)
    assert scipy.stats.kstest(values, "norm").pvalue > 1e-3


def test_shot_noise_is_poisson():
    images = torch.full((2, 1, 100, 100), 102, dtype=torch.uint8)  # 0.4 of white
    images[1] = 51
    photons = level("shot-noise", 3)
    counts = corrupt(images, "shot-noise", 3).double() / 255 * photons
    for image, share in zip(counts, (0.4, 0.2), strict=True):
        seen = torch.bincount(image.round().long().flatten(), minlength=13)[:13].numpy()
        expected = scipy.stats.poisson.pmf(np.arange(13), share * photons)
        cut = 9  # what is brighter than white is cut off at 12 photons; few are
        observed = np.append(seen[:cut], 10_000 - seen[:cut].sum())
        wanted = 10_000 * np.append(expected[:cut], 1 - expected[:cut].sum())
        assert scipy.stats.chisquare(observed, wanted).pvalue > 1e-3


def test_elastic_moves_places_by_its_level_on_average():
    """On a ramp, the change of the value is the distance across."""
    ramp = torch.arange(64, dtype=torch.uint8).mul(3).expand(200, 1, 64, 64).clone()
    ramp[:, 0, 0, 0] = torch.arange(200)
    inner = (slice(None), 0, slice(16, 48), slice(24, 40))
    moved = (corrupt(ramp, "elastic", 2)[inner].double() - ramp[inner].double()) / 3
    assert moved.square().mean().sqrt().item() == pytest.approx(level("elastic", 2) * 64, rel=0.1)


# --- batches


def test_batches_are_each_setting_of_the_whole_split(digits):
    split = Split(digits[:10], torch.arange(10))
    batches = CorruptedBatches(split, [0.3], [0.4], 4, "contrast,blur", seed=2)
    assert batches.settings == [("", 0), *(("contrast", s) for s in SEVERITIES), *(("blur", s) for s in SEVERITIES)]
    seen = list(batches)
    assert len(seen) == len(batches) == 33
    x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert torch.equal(y, torch.arange(10).repeat(11))
    assert torch.equal(x[:10], normalise(digits[:10], [0.3], [0.4]))
    assert torch.equal(x[30:40], normalise(corrupt(digits[:10], "contrast", 3, 2), [0.3], [0.4]))


# --- bad input

IMAGES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("error", "said", "given"),
    [
        (ArgumentError, r"'gausian_noise' is unknown \(did you mean gaussian-noise\?\); known are .*, and all",
         (IMAGES, "gausian_noise", 1)),
        (ArgumentError, r"'snow' is unknown; known are", (IMAGES, "snow", 1)),
        (ArgumentError, r"severity is 6; it is a whole number from 1, just visible, to 5", (IMAGES, "blur", 6)),
        (ArgumentError, r"severity is 0;", (IMAGES, "blur", 0)),
        (ArgumentError, r"severity is 1\.5;", (IMAGES, "blur", 1.5)),
        (ArgumentError, r"severity is True;", (IMAGES, "blur", True)),
        (ArgumentError, r"severity is 3\.0;", (IMAGES, "blur", 3.0)),
        (ArgumentError, r"seed is -1;", (IMAGES, "blur", 1, -1)),
        (ArgumentTypeError, r"images is torch\.float32 of shape \(2, 1, 4, 4\); it must be uint8",
         (IMAGES.float(), "blur", 1)),
        (ArgumentTypeError, r"images is torch\.uint8 of shape \(2, 4, 4, 4\); .* 1 or 3 channels",
         (IMAGES.expand(-1, 4, -1, -1), "blur", 1)),
        (ArgumentTypeError, r"images is ndarray;", (IMAGES.numpy(), "blur", 1)),
    ],
)  # fmt: skip
def test_bad_arguments_are_told_in_one_line(error, said, given):
    with pytest.raises(error, match=said) as raised:
        corrupt(*given)
    assert "\n" not in str(raised.value)


def test_all_is_all_in_a_list_too_and_not_one_corruption():
    assert ks.data.corruption_names("all,blur") == tuple(CORRUPTIONS)
    with pytest.raises(ArgumentError, match=r"name is 'all'; one corruption at a time is made: take one of gaussian-"):
        corrupt(IMAGES, "all", 3)


def test_an_empty_list_of_corruptions_is_refused():
    with pytest.raises(ArgumentError, match=r"the list of corruptions is empty; give at least one name, or all"):
        ks.data.corruption_names([])
    assert ks.data.corruption_names("blur, contrast,blur") == ("blur", "contrast")
