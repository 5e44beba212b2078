"""Examples of one task or of several, as minibatches that know which head each row belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.continual.task import Task


@dataclass(frozen=True, eq=False)
class Rows:
    """Some training examples of a task, and the columns of the output that are its logits."""

    task: Task
    columns: slice
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs and labels; `parts` are the numbers of rows, task after task, with their columns."""

    x: Tensor
    y: Tensor
    parts: tuple[tuple[int, slice], ...]

    def nll(self, output: Tensor) -> Tensor:
        """The cross-entropy of each row at its own head, averaged."""
        lengths = [length for length, _ in self.parts]
        losses = [
            F.cross_entropy(logits[:, columns], y, reduction="sum")
            for logits, y, (_, columns) in zip(output.split(lengths), self.y.split(lengths), self.parts, strict=True)
        ]
        return torch.stack(losses).sum() / len(self.y)


def batch_of(sources: Sequence[Rows], chosen: Sequence[Tensor]) -> Batch:
    """The chosen rows of each source, by their place in it."""
    used = [(source, source.index[rows]) for source, rows in zip(sources, chosen, strict=True) if len(rows)]
    return Batch(
        torch.cat([source.task.read(source.task.x[index]) for source, index in used]),
        torch.cat([source.task.y[index] for source, index in used]),
        tuple((len(index), source.columns) for source, index in used),
    )


def one_epoch(sources: Sequence[Rows], batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """All rows of all sources in random order."""
    bounds = torch.tensor([0, *(len(source) for source in sources)]).cumsum(0)
    for numbers in torch.randperm(int(bounds[-1]), generator=generator).split(batch_size):
        chosen = [numbers[(numbers >= low) & (numbers < high)] - low for low, high in itertools.pairwise(bounds)]
        yield batch_of(sources, chosen)
