"""Tasks: what a network learns one after another, made from a data set or given as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.core import check_count, generator_for
from kernelseed.data import Dataset
from kernelseed.errors import ArgumentError, ArgumentTypeError, DataError


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Training and test examples: float inputs (N, ...) and labels (int64, N), counted from 0 in each task.

    order   how the numbers of an input are rearranged when it is read, so that many tasks share one tensor

    >>> Task(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    Task(6 to learn, 3 to test, 3 classes)
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    name: str = ""
    order: Tensor | None = None

    def __post_init__(self) -> None:
        for part, x, y in (("", self.x, self.y), ("test_", self.test_x, self.test_y)):
            if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.is_floating_point():
                raise ArgumentTypeError(
                    f"{self._title}: {part}x and {part}y must be tensors, and {part}x of floating point numbers: "
                    "convert them, images by data.normalise."
                )
            if not x.isfinite().all():
                raise DataError(f"{self._title}: {part}x has numbers that are infinite or none; leave them out.")
            if not len(x) or not len(y):
                raise DataError(f"{self._title}: {part}x or {part}y is empty; a task has examples: leave it out.")
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                raise DataError(
                    f"{self._title}: {part}y is {y.dtype} of shape {tuple(y.shape)}; it must be int64 of shape "
                    f"({len(x)},): give one class for each example."
                )
            if y.min() < 0:
                raise DataError(f"{self._title}: {part}y has the label {y.min()}; labels are counted from 0.")
        if self.x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self._title}: inputs are {tuple(self.x.shape[1:])} to learn and {tuple(self.test_x.shape[1:])} to "
                "test; both must have one shape."
            )

    @property
    def _title(self) -> str:
        return f"task {self.name!r}" if self.name else "a task"

    def __repr__(self) -> str:
        named = f"{self.name!r}: " if self.name else ""
        return f"Task({named}{len(self.x):,} to learn, {len(self.test_x):,} to test, {self.classes} classes)"

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(max(self.y.max(), self.test_y.max())) + 1

    def read(self, x: Tensor) -> Tensor:
        """Some of its inputs, rearranged by `order`."""
        return x if self.order is None else x.flatten(1)[:, self.order].view_as(x)


def check_tasks(tasks: Sequence[Task]) -> None:
    """An error unless they can be learned by one network."""
    if not isinstance(tasks, Sequence):
        raise ArgumentTypeError(f"tasks is a {type(tasks).__name__}; give a list of ks.continual.Task, if only of one.")
    if not tasks:
        raise ArgumentError("tasks is empty; give at least one ks.continual.Task.")
    for task in tasks:
        if not isinstance(task, Task):
            raise ArgumentTypeError(f"tasks has a {type(task).__name__}; give ks.continual.Task(x, y, test_x, test_y).")
    first = tasks[0].x.shape[1:]
    for number, task in enumerate(tasks):
        if task.x.shape[1:] != first:
            raise DataError(
                f"tasks[{number}] has inputs of shape {tuple(task.x.shape[1:])}, tasks[0] of {tuple(first)}; one trunk "
                "takes one shape: resize them, or learn them apart."
            )
        if {task.x.dtype, task.test_x.dtype} != {tasks[0].x.dtype}:
            raise DataError(
                f"tasks[{number}] has inputs of {task.x.dtype} to learn and {task.test_x.dtype} to test, tasks[0] of "
                f"{tasks[0].x.dtype}; one trunk takes one kind: convert them by .float()."
            )


def split_classes(data: Dataset, classes: int = 2) -> list[Task]:
    """Some classes after the others, each a task of its own: with MNIST and 2 classes, Split-MNIST.

    Pixels are in [0, 1] and inputs are flat, as in the published experiments.

    >>> from kernelseed import data
    >>> split_classes(data.load("digits"))[1]
    Task('2 3': 288 to learn, 72 to test, 2 classes)
    """
    check_count("classes", classes, 2, "a task tells at least two classes apart")
    if len(data.class_names) % classes:
        raise ArgumentError(
            f"classes is {classes}, and {data.name} has {len(data.class_names)}: give a number that divides them."
        )
    x, test_x = _flat(data)
    tasks = []
    for names in _groups(data, classes):
        kept, kept_test = (
            (labels >= names[0]) & (labels <= names[-1]) for labels in (data.train.labels, data.test.labels)
        )
        tasks.append(
            Task(
                x[kept],
                data.train.labels[kept] - names[0],
                test_x[kept_test],
                data.test.labels[kept_test] - names[0],
                " ".join(data.class_names[i] for i in names),
            )
        )
    return tasks


def permute_pixels(data: Dataset, count: int = 10, seed: int = 0) -> list[Task]:
    """The data set with its pixels in another order for each task: with MNIST, permuted MNIST. The first is as it is.

    >>> from kernelseed import data
    >>> len(permute_pixels(data.load("digits"), 3))
    3
    """
    check_count("count", count, 1, "10 is common")
    x, test_x = _flat(data)
    orders = [torch.randperm(x.shape[1], generator=generator_for("pixels", seed, task)) for task in range(1, count)]
    return [
        Task(x, data.train.labels, test_x, data.test.labels, f"order {number}", order)
        for number, order in enumerate([None, *orders])
    ]


def _groups(data: Dataset, classes: int) -> list[range]:
    return [range(first, first + classes) for first in range(0, len(data.class_names), classes)]


def _flat(data: Dataset) -> tuple[Tensor, Tensor]:
    x, test_x = (split.images.flatten(1).to(torch.float32).div_(255) for split in (data.train, data.test))
    return x, test_x
