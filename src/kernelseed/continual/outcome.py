"""What came of learning tasks one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Outcome:
    """The network after the last task, before it has learned coresets again, and how well each task was known when.

    accuracy    accuracy[i, j] is that of task j after task i; NaN where j has not been learned yet

    >>> nan = float("nan")
    >>> found = Outcome("fine-tuning", torch.tensor([[0.9, nan], [0.6, 0.8]]), nn.Identity(), 10, 10)
    >>> round(found.average_accuracy, 3), round(found.forgetting, 3), [round(a, 3) for a in found.averages]
    (0.7, 0.3, [0.9, 0.7])
    """

    label: str
    accuracy: Tensor
    net: nn.Module
    parameters: int
    """What is stored; identity germinators, which are not trained, count too."""
    plain_parameters: int
    """Those of the plain network with the same heads."""

    @property
    def averages(self) -> list[float]:
        """After each task, the average accuracy over the tasks learned so far."""
        return [row[: i + 1].mean().item() for i, row in enumerate(self.accuracy)]

    @property
    def average_accuracy(self) -> float:
        """After the last task, over all tasks."""
        return self.averages[-1]

    @property
    def forgetting(self) -> float:
        """The best accuracy before the end minus that at the end, averaged over all tasks but the last."""
        before, last = self.accuracy[:-1, :-1], self.accuracy[-1, :-1]
        if not len(before):
            return 0.0
        return (before.nan_to_num(-torch.inf).amax(0) - last).mean().item()

    def as_json(self) -> dict[str, Any]:
        """Its numbers; accuracies that are not known yet are left out."""
        return {
            "label": self.label,
            "accuracy": [[round(value, 6) for value in row[: i + 1]] for i, row in enumerate(self.accuracy.tolist())],
            "averages": [round(value, 6) for value in self.averages],
            "average_accuracy": round(self.average_accuracy, 6),
            "forgetting": round(self.forgetting, 6),
            "parameters": self.parameters,
            "plain_parameters": self.plain_parameters,
        }
