"""From images or rows to float32 batches: augmentation, normalisation, and an order that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.core import check_count, generator_for
from kernelseed.data.dataset import Split, check_seed
from kernelseed.errors import ArgumentError


def normalise(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 pixels in [0, 255] to float32: (pixel / 255 - mean) / std, channel by channel. Rows: feature by feature."""
    channels = batch.shape[1]
    if not len(mean) == len(std) == channels:
        raise ArgumentError(
            f"mean and std have {len(mean)} and {len(std)} numbers; the {'images' if batch.ndim == 4 else 'rows'} have "
            f"{channels} {'channels' if batch.ndim == 4 else 'features'}: give one number for each."
        )
    if batch.is_floating_point():
        centre, scale = (torch.tensor(constant, dtype=batch.dtype, device=batch.device) for constant in (mean, std))
        return ((batch - centre) / scale).to(torch.float32)
    centre, scale = (
        torch.tensor(constant, dtype=torch.float32, device=batch.device).mul_(255).view(-1, 1, 1)
        for constant in (mean, std)
    )
    return batch.to(torch.float32).sub_(centre).div_(scale)


def augment(batch: Tensor, crop: int = 4, flip: bool = True, generator: torch.Generator | None = None) -> Tensor:
    """Shift each image by up to `crop` pixels over a black border, and mirror it with probability one half.

    Each has a shift of its own. `generator` lives on the CPU, so that a seed means the same on every device.
    """
    if crop < 0:
        raise ArgumentError(f"crop is {crop}; it must be at least 0: 0 turns shifts off.")
    count, _, height, width = batch.shape
    if crop:
        top, left = torch.randint(2 * crop + 1, (2, count), generator=generator).to(batch.device)
        # Every shift as a view on the padded batch; indexing copies one for each image.
        shifts = F.pad(batch, [crop] * 4).unfold(2, height, 1).unfold(3, width, 1)
        batch = shifts[torch.arange(count, device=batch.device), :, top, left]
    if flip:
        mirrored = torch.rand(count, generator=generator).to(batch.device) < 0.5
        batch = torch.where(mirrored.view(-1, 1, 1, 1), batch.flip(3), batch)
    return batch


class Batches:
    """Batches (x float32 normalised, y as it is) of a split, made from (seed, epoch) and nothing else.

    Call `set_epoch` before each epoch: two passes over one epoch see the same batches, so a resumed run
    continues as if it had never stopped, and every method at one seed is given the same data.

    With `world_size` processes, the batches that the ranks see at one step make up the batch that one
    process would see with `batch_size * world_size`. All ranks have equally many examples; up to
    `world_size - 1` at the end of the order are left out.

    `augment` is called with a uint8 batch and `generator=`: give `kernelseed.data.augment`, or a
    `functools.partial` of it.
    """

    def __init__(
        self,
        split: Split,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        augment: Callable[..., Tensor] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_count("batch_size", batch_size, 1, "128 is common")
        check_seed(seed)
        if not 0 <= rank < world_size:
            raise ArgumentError(
                f"rank is {rank} with world_size {world_size}; 0 <= rank < world_size: give each process its own."
            )
        self.split = split
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.augment = augment
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        if len(self) == 0:
            raise ArgumentError(
                f"batch_size is {batch_size} with world_size {world_size} and drop_last {drop_last}; that leaves no "
                f"batch (the split has {len(split)}): give a smaller one."
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass belongs to."""
        if epoch < 0:
            raise ArgumentError(f"epoch is {epoch}; it must be at least 0: epochs are counted from there.")
        self.epoch = epoch

    @property
    def num_examples(self) -> int:
        """How many examples one pass gives to this rank."""
        examples = len(self.split) // self.world_size
        return examples - examples % self.batch_size if self.drop_last else examples

    def __len__(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def order(self) -> Tensor:
        """The indices of this rank's examples in this epoch."""
        total = len(self.split)
        everything = (
            torch.randperm(total, generator=generator_for("order", self.seed, self.epoch))
            if self.shuffle
            else torch.arange(total)
        )
        return everything[self.rank :: self.world_size][: self.num_examples]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.epoch  # a set_epoch in the middle of a pass is for the next one
        for step, index in enumerate(self.order().to(self.split.targets.device).split(self.batch_size)):
            inputs = self.split.inputs[index]
            if self.augment is not None:
                generator = generator_for("augmentation", self.seed, epoch, step, self.rank)
                inputs = self.augment(inputs, generator=generator)
            yield normalise(inputs, self.mean, self.std), self.split.targets[index]
