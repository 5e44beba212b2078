"""Coresets: the few examples of a task that are kept, and learned again before a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.core import check_count, generator_for
from kernelseed.errors import ArgumentError


def random_rows(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Indices of rows, each as likely as another, none twice."""
    return torch.randperm(len(x), generator=generator)[:size]


def k_centre(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Indices of rows that are far apart: the first at random, then always the one farthest from those chosen.

    No row is farther from the chosen ones than twice what the best choice could give (Gonzalez, 1985).

    >>> k_centre(torch.tensor([[0.0], [1.0], [9.0]]), 2, torch.Generator().manual_seed(0)).sort().values
    tensor([0, 2])
    """
    rows = x.flatten(1)
    chosen = [int(torch.randint(len(rows), (), generator=generator))]
    nearest = torch.full((len(rows),), torch.inf, dtype=rows.dtype)
    while len(chosen) < size:
        nearest = torch.minimum(nearest, (rows - rows[chosen[-1]]).square().sum(1))
        nearest[chosen[-1]] = -1  # equal rows are at distance 0; none is taken twice
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)


RULES: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {"random": random_rows, "k-centre": k_centre}


@dataclass(frozen=True)
class Coreset:
    """How many examples of each task are kept, by which rule, and for how many epochs they are learned again.

    They are left out of the task's own training, so that nothing is counted twice.
    """

    size: int = 200
    rule: str = "random"
    epochs: int = 50

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "40 of Split-MNIST's tasks and 200 of permuted MNIST's were kept")
        check_count("epochs", self.epochs, 1, "the coresets are learned again before a prediction")
        if self.rule not in RULES:
            raise ArgumentError(f"rule is {self.rule!r}; allowed are {', '.join(map(repr, RULES))}.")

    def choose(self, x: Tensor, seed: int, task: int) -> Tensor:
        """Indices of the rows to keep."""
        if self.size >= len(x):
            raise ArgumentError(
                f"the coreset's size is {self.size}, and tasks[{task}] has {len(x)} examples; some must be left to "
                f"learn: give at most {len(x) - 1}."
            )
        return RULES[self.rule](x, self.size, generator_for("coreset", seed, task))
