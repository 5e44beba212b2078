"""A shared trunk with one head a task, or one for all."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from kernelseed.continual.task import Task
from kernelseed.core import evaluating
from kernelseed.errors import ArgumentError, DataError

HEADS = ("each", "one")


class MultiHead(nn.Module):
    """A trunk and linear heads on it. Its output has the logits of all heads side by side, each at its `columns`.

    trunk   any module that gives features (N, F); it is copied
    heads   "each": a head a task, which is told which task an input belongs to; "one": the same classes in every task

    >>> task = Task(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    >>> net = MultiHead(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), [task, task])
    >>> net(task.x).shape, net.columns(1)
    (torch.Size([6, 6]), slice(3, 6, None))
    """

    def __init__(self, trunk: nn.Module, tasks: Sequence[Task], heads: str = "each") -> None:
        super().__init__()
        if heads not in HEADS:
            raise ArgumentError(f"heads is {heads!r}; allowed are {', '.join(map(repr, HEADS))}.")
        self.trunk = copy.deepcopy(trunk)
        self.sizes = [task.classes for task in tasks] if heads == "each" else [tasks[0].classes]
        if heads == "one":
            _check_labels(tasks)
        width = _features(self.trunk, tasks[0])
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes of all heads)."""
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], 1)

    def columns(self, task: int) -> slice:
        """Where the logits of a task are."""
        head = self.head_of(task)
        first = sum(self.sizes[:head])
        return slice(first, first + self.sizes[head])

    def head_of(self, task: int) -> int:
        """The number of a task's head."""
        return task if len(self.sizes) > 1 else 0

    def trained_in(self, task: int, names: Iterable[str]) -> list[str]:
        """Those of the parameters that a task trains: the trunk's and its head's."""
        return [name for name in names if name.startswith(("trunk.", f"heads.{self.head_of(task)}."))]

    def new_in(self, task: int, names: Iterable[str]) -> list[str]:
        """Those of the parameters that no earlier task trained."""
        earlier = {name for before in range(task) for name in self.trained_in(before, names)}
        return [name for name in self.trained_in(task, names) if name not in earlier]


def _check_labels(tasks: Sequence[Task]) -> None:
    head = tasks[0].classes
    for number, task in enumerate(tasks):
        if task.classes > head:
            raise DataError(
                f"tasks[{number}] has the label {task.classes - 1}, and the one head has {head} classes, those of "
                'tasks[0]; labels are counted from 0 in each task: count them anew, or give each task its head, "each".'
            )


@torch.no_grad()
def _features(trunk: nn.Module, task: Task) -> int:
    try:
        with evaluating([trunk]):  # one row has no statistics
            features = trunk(task.x[:1])
    except (RuntimeError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ArgumentError(
            f"the trunk can't take inputs of {task.x.dtype} and shape {tuple(task.x.shape[1:])} ({reason}); fit it to "
            "the tasks."
        ) from error
    if not isinstance(features, Tensor) or features.dim() != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ArgumentError(
            f"the trunk gives {shape} for one input; heads take features of shape (N, F): end it with nn.Flatten()."
        )
    return features.shape[1]
