"""How a network learns one task after another: the interface, and the approaches that remember no weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from kernelseed.continual.examples import Batch, Rows
from kernelseed.continual.heads import MultiHead
from kernelseed.methods import check_settings, setting

Memory = TypeVar("Memory")


@dataclass(frozen=True, kw_only=True)
class Approach(ABC, Generic[Memory]):
    """A value: its fields are settings. `learn` uses these functions and never asks which approach it is.

    Its type parameter is what it remembers of earlier tasks.
    """

    epochs: int = setting(10, "passes over each task", least=1)
    batch_size: int = setting(256, "examples in a step", least=1)
    lr: float = setting(1e-3, "Adam's learning rate, which falls to 0 by a cosine in each task", above=0, most=100)

    random: ClassVar[bool] = False
    """Whether a prediction averages over draws."""
    keeps_data: ClassVar[bool] = False
    """Whether earlier tasks' examples are there to train on."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    @abstractmethod
    def label(self) -> str:
        """The name in tables and figures."""

    def start(self) -> FineTune | None:
        """What trains the plain network on the first task before `build` takes it over; None: nothing."""
        return None

    def build(self, model: MultiHead) -> nn.Module:
        """The network to train, from a plain one."""
        return model

    def groups(self, net: nn.Module) -> list[dict[str, Any]]:
        """What the optimizer trains, with learning rates."""
        return [{"params": list(net.parameters()), "lr": self.lr}]

    @abstractmethod
    def before(self, net: nn.Module, model: MultiHead, task: int, memory: Memory | None) -> Memory:
        """What the loss of a task needs of earlier ones."""

    @abstractmethod
    def loss(self, net: nn.Module, batch: Batch, memory: Memory, num_data: int) -> torch.Tensor:
        """The loss of a minibatch, per example."""

    def after(self, net: nn.Module, learned: Rows, memory: Memory, generator: torch.Generator) -> Memory:
        """What is remembered of a task once it is learned."""
        return memory

    def sources(self, rows: Sequence[Rows]) -> Sequence[Rows]:
        """The examples to train on, of those of all tasks so far."""
        return rows if self.keeps_data else rows[-1:]


@dataclass(frozen=True, kw_only=True)
class FineTune(Approach[None]):
    """Each task in turn by maximum likelihood, with nothing against forgetting."""

    label = "fine-tuning"

    def before(self, net: nn.Module, model: MultiHead, task: int, memory: None) -> None:
        """Nothing."""

    def loss(self, net: nn.Module, batch: Batch, memory: None, num_data: int) -> torch.Tensor:
        """The negative log-likelihood."""
        return batch.nll(net(batch.x))


@dataclass(frozen=True, kw_only=True)
class Joint(FineTune):
    """All tasks so far at once, by maximum likelihood: what could be reached if nothing had to be remembered.

    It takes as many steps for each task as the others do, over the examples of all tasks so far.
    """

    label = "joint"
    keeps_data: ClassVar[bool] = True
