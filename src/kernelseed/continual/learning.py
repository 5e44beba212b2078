"""Learn tasks one after another, and test all that were learned after each."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from kernelseed.continual.approaches import Approach
from kernelseed.continual.coresets import Coreset
from kernelseed.continual.examples import Rows, one_epoch
from kernelseed.continual.heads import MultiHead
from kernelseed.continual.outcome import Outcome
from kernelseed.continual.task import Task, check_tasks
from kernelseed.core import check_count, check_kind, derive_seed, generator_for, likelihoods, predict
from kernelseed.errors import ArgumentTypeError, NonFiniteError


def learn(
    tasks: Sequence[Task],
    trunk: nn.Module,
    approach: Approach[Any],
    *,
    heads: str = "each",
    coreset: Coreset | None = None,
    samples: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> Outcome:
    """Learn the tasks in their order, and test all tasks so far after each.

    trunk     a module that gives features (N, F), shared by all tasks; it is copied
    approach  `VCL()`, of mean-field weights or kernel seeds; `EWC()`, `FineTune()` or `Joint()`
    heads     "each": a linear head for each task; "one": the same for all
    coreset   examples of each task to keep: before a test a copy of the network learns them again; those of the task
              that is tested, or, if all share a head, of all tasks so far
    samples   draws that a prediction averages, where the approach has any
    seed      of the start, the order of examples, the draws and the coresets; the same gives the same result

    >>> from kernelseed import continual, data
    >>> tasks = continual.split_classes(data.load("digits"))[:2]
    >>> trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    >>> found = continual.learn(tasks, trunk, continual.EWC(epochs=20, batch_size=32), progress=False)
    >>> found.accuracy.shape, found.average_accuracy > 0.9
    (torch.Size([2, 2]), True)
    """
    check_tasks(tasks)
    tasks = list(tasks)
    if coreset is not None:
        check_kind("coreset", coreset, Coreset, "such as ks.continual.Coreset(40)")
    if not isinstance(approach, Approach):
        raise ArgumentTypeError(f"approach is {approach!r}; give a value of an approach, such as ks.continual.VCL().")
    check_count("seed", seed, 0, "any such number does")
    check_count("samples", samples, 0, "take 0 for the posterior mean, or the number of draws to average")
    nothing = torch.empty(0, dtype=torch.int64)
    kept = [coreset.choose(task.x, seed, i) if coreset else nothing for i, task in enumerate(tasks)]
    with torch.random.fork_rng(devices=[]), _bar(progress) as bar:
        torch.manual_seed(derive_seed("continual learning", seed))
        model = MultiHead(trunk, tasks, heads)
        course = Course(tasks, model, approach, coreset, kept, samples, seed, bar)
        plain_parameters = sum(parameter.numel() for parameter in model.parameters())
        net, accuracy = course.run()
    parameters = sum(parameter.numel() for parameter in net.parameters())
    label = f"{approach.label}, coreset" if coreset else approach.label
    return Outcome(label, accuracy, net, parameters, plain_parameters)


@dataclass(frozen=True, eq=False)
class Course:
    """One course through the tasks."""

    tasks: list[Task]
    model: MultiHead
    approach: Approach[Any]
    coreset: Coreset | None
    kept: list[Tensor]
    samples: int
    seed: int
    bar: Progress

    def run(self) -> tuple[nn.Module, Tensor]:
        """The network after the last task, and the accuracies."""
        first = self.approach.start()
        if first is not None:
            self.train(self.model, first, [self.rows(0)], None, "start")
        net = self.approach.build(self.model)
        accuracy = torch.full((len(self.tasks), len(self.tasks)), torch.nan)
        learned: list[Rows] = []
        memory = None
        for i in range(len(self.tasks)):
            learned.append(self.rows(i))
            memory = self.approach.before(net, self.model, i, memory)
            title = f"task {i + 1}/{len(self.tasks)}"
            # An epoch is as long as the new task, also where there are earlier ones to train on.
            self.train(net, self.approach, self.approach.sources(learned), memory, title, len(learned[-1]))
            generator = generator_for("continual memory", self.seed, i)
            memory = self.approach.after(net, learned[-1], memory, generator)
            for head in range(self.model.head_of(i) + 1):
                served = [j for j in range(i + 1) if self.model.head_of(j) == head]
                tested = self.with_coresets(net, memory, served)
                accuracy[i, served] = torch.tensor([self.test(tested, j) for j in served])
            if not self.bar.disable:
                shown = f"after task {i + 1}: average accuracy {accuracy[i, : i + 1].mean():.4f}"
                self.bar.console.print(shown, highlight=False)
        return net, accuracy

    def rows(self, i: int, coreset: bool = False) -> Rows:
        """The training examples of a task without its coreset, or its coreset."""
        index = self.kept[i]
        if not coreset:
            rest = torch.ones(len(self.tasks[i].x), dtype=torch.bool)
            rest[index] = False
            index = rest.nonzero()[:, 0]
        return Rows(self.tasks[i], self.model.columns(i), index)

    def train(
        self, net: nn.Module, approach: Approach[Any], sources: Sequence[Rows], memory: Any, title: str, length: int = 0
    ) -> None:
        """Steps over the examples of all sources; the learning rate falls to 0 by a cosine."""
        num_data = sum(map(len, sources))
        steps = approach.epochs * math.ceil((length or num_data) / approach.batch_size)
        optimizer = torch.optim.Adam(approach.groups(net), fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
        shown = self.bar.add_task(title, total=steps, loss="")
        net.train()
        generator = generator_for("continual order", self.seed, derive_seed(title))
        batches = _without_end(sources, approach.batch_size, generator)
        for step in range(steps):
            optimizer.zero_grad()
            loss = approach.loss(net, next(batches), memory, num_data)
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0 or step == steps - 1:
                self.bar.update(shown, completed=step, loss=f"loss {_finite(loss, title):.3f}")
        self.bar.remove_task(shown)
        net.eval()

    def with_coresets(self, net: nn.Module, memory: Any, tasks: Sequence[int]) -> nn.Module:
        """A copy that has learned the coresets of these tasks again; without coresets, the network itself."""
        if self.coreset is None:
            return net
        copied = copy.deepcopy(net)
        again = replace(self.approach, epochs=self.coreset.epochs)
        sources = [self.rows(j, coreset=True) for j in tasks]
        self.train(copied, again, sources, memory, f"coresets of {len(tasks)}")
        return copied

    def test(self, net: nn.Module, j: int) -> float:
        """The accuracy of a task."""
        task, columns = self.tasks[j], self.model.columns(j)
        read = likelihoods.Categorical(read=lambda output: output[:, columns])
        draws = self.samples if self.approach.random else 0
        found = predict(net, task.read(task.test_x), draws, likelihood=read, seed=self.seed, batch_size=2000)
        return (found.label == task.test_y).float().mean().item()


def _without_end(sources: Sequence[Rows], batch_size: int, generator: torch.Generator) -> Iterator[Any]:
    while True:
        yield from one_epoch(sources, batch_size, generator)


def _finite(loss: Tensor, title: str) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss of {title} is {value}; lower lr or rho_lr, or look for NaN in the inputs.")
    return value


@contextmanager
def _bar(shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), disable=not shown, transient=True) as bar:
        yield bar
