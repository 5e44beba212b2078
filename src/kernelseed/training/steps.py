"""The bridge to Lightning: any method's steps, with noise that is a function of the seed, the step and the rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kernelseed.core import BayesianModule, Moment, Terms, collapse, derive_seed, make_draws
from kernelseed.data import Batches
from kernelseed.errors import NonFiniteError
from kernelseed.methods import Engine, GradientMethod, Method
from kernelseed.training import divergence
from kernelseed.training.config import Config
from kernelseed.training.learning_rate import lr_factor
from kernelseed.training.tasks import Task

Batch = tuple[Tensor, Tensor]


class Training(L.LightningModule):
    """A method's training steps. Manual optimisation, because some methods draw and differentiate by themselves.

    A run may have two phases. The first trains the plain network; where it ends, the method builds its own network
    from it, with an optimizer and an average of its own, and goes on. The learning rate goes over both.
    """

    def __init__(self, plain: nn.Module, config: Config, task: Task, *, num_data: int, num_steps: int):
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.task = task
        self.num_data = num_data
        self.num_steps = num_steps  # in an epoch
        self.plain_steps = config.num_plain_epochs * num_steps
        self.draws: list[Any] = []
        self.rates: list[float] = []
        method = config.build_method()
        first = method.plain() if self.plain_steps else None
        self.is_plain = first is not None
        self._hold(first or method, (first or method).build(plain))

    def _hold(self, method: Method, net: nn.Module) -> None:
        """The method and the network that are trained from now on."""
        self.method = method
        self.net = net
        self.average: AveragedModel | None = None
        if self.config.ema is not None:
            self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(self.config.ema))
            self.average.requires_grad_(False)  # DDP would wait for its gradients

    def _take_over(self) -> None:
        """The method's own network, made from the plain one as it stands."""
        torch.manual_seed(derive_seed("taking over", self.config.seed))
        method = self.config.build_method()
        self.is_plain = False
        self._hold(method, method.build(self.net))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Which network it holds."""
        checkpoint.update(is_plain=self.is_plain, ranks=_ranks(self.net))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A network of the shapes that the checkpoint's has, which may follow from weights of another time."""
        own = _ranks(self.net)
        ranks = checkpoint.get("ranks", own)
        if (checkpoint.get("is_plain", False), ranks) == (self.is_plain, own):
            return
        method = self.config.build_method()
        plain = collapse(self.net) if isinstance(self.net, BayesianModule) else self.net
        self.is_plain = False
        self._hold(method, method.build_again(plain, ranks))

    def on_train_epoch_start(self) -> None:
        """Between the phases, the network changes and whatever holds its parameters."""
        if not self.is_plain or self.global_step < self.plain_steps:
            return
        self._take_over()
        self.net.train()
        strategy = self.trainer.strategy
        if isinstance(strategy, DDPStrategy):
            strategy.model = self
            strategy.configure_ddp()
        strategy.setup_optimizers(self.trainer)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The method's."""
        optimizer = self.method.build_optimizer(self.net, self.num_data)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        return optimizer

    def training_step(self, batch: list[Batch], batch_idx: int) -> None:
        """One step. Seeded by itself, so that a resumed run draws the same noise as one that never stopped."""
        step, config = self.global_step, self.config
        optimizer: Any = self.optimizers()
        total = config.epochs * self.num_steps
        factor = lr_factor(config.schedule, step, total, config.num_warmup_steps(total))
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = factor * rate
        moment = Moment(step - (0 if self.is_plain else self.plain_steps), self.num_data, num_batches=self.num_steps)
        parts = [(x.to(memory_format=config.layout), y) for x, y in batch]  # every layer after keeps to it

        def take(engine: Engine) -> Terms:
            torch.manual_seed(derive_seed("training step", config.seed, step, self.global_rank))
            if len(parts) == 1:
                return self.method.step(self.net, optimizer, *parts[0], moment, engine, self.task.likelihood)
            assert isinstance(self.method, GradientMethod)  # as the config makes sure of
            return self.method.accumulate(self.net, optimizer, parts, moment, engine, self.task.likelihood)

        try:
            terms = take(Engine(self._backward, self._before_step))
        except NonFiniteError as error:
            raise self._explained(error, divergence.first_layer(self.net, lambda: take(Engine(_stop)))) from None
        if self.average is not None:
            self.average.update_parameters(self.net)
        self.log_dict(
            {"loss": terms.loss.detach(), "nll": terms.nll, "kl": terms.kl / self.num_data},
            prog_bar=True, on_step=True, on_epoch=True, batch_size=sum(len(y) for _, y in parts), sync_dist=True,
        )  # fmt: skip
        self.log("lr", factor * self.method.lr)

    def on_validation_epoch_start(self) -> None:
        """The posterior mean, decoded once for the pass."""
        with torch.no_grad():
            self.draws = make_draws(self.posterior(), samples=0, seed=0)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """The scores of the posterior mean."""
        x, y = batch
        try:
            prediction = self.task.likelihood.predictive([draw(x) for draw in self.draws])
        except NonFiniteError as error:
            layer = divergence.first_layer(self.net, lambda: [draw(x) for draw in self.draws])
            raise self._explained(error, layer) from None
        self.log_dict(self.task.scores(prediction, y), prog_bar=True, batch_size=len(y), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Nothing is kept: a draw belongs to the weights that it was made from."""
        self.draws = []

    def posterior(self) -> nn.Module:
        """The network to predict with, as it stands."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        net = self.net if self.average is None else self.average.module
        posterior = self.method.posterior(net, optimizer)
        return posterior.eval() if posterior is not self.net else posterior

    def on_train_epoch_end(self) -> None:
        """A checkpoint follows, and it should be one that can be gone on from."""
        try:
            divergence.require_finite_weights(self.net)
        except NonFiniteError as error:
            raise self._explained(error, None) from None

    def _backward(self, loss: Tensor) -> None:
        divergence.require_finite_loss(loss)
        self.manual_backward(loss)

    def _before_step(self) -> None:
        if self.trainer.precision != "16-mixed":  # whose gradients are scaled; an infinite one makes it scale less
            divergence.require_finite_gradients(self.net)
        if self.config.clip is not None:
            # Not by Lightning, which refuses a fused Adam in mixed precision.
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)

    def _explained(self, error: NonFiniteError, layer: str | None) -> NonFiniteError:
        """What went wrong, when, where, and what to try."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        first = f", and the first layer whose output is not finite is {layer}" if layer else ""
        tries = ["a lower --lr"]
        tries += ["--clip 1"] if self.method.clips and self.config.clip is None else []
        tries += ["--precision 32-true"] if "16" in str(self.trainer.precision) else []
        return NonFiniteError(
            f"{str(error).partition(';')[0]} in epoch {self.current_epoch + 1} at step {self.global_step + 1} with lr "
            f"{optimizer.param_groups[0]['lr']:g}{first}; no such weights are kept, and a resumed run would come to "
            f"the same: start another with {' or '.join(tries)}."
        )


def _ranks(net: nn.Module) -> dict[str, int]:
    """The ranks of a network's weights, as far as they have one."""
    weights = net.weights.items() if isinstance(net, BayesianModule) else ()
    return {name: weight.rank for name, weight in weights if weight.rank is not None}


def _stop(loss: Tensor) -> None:
    raise NonFiniteError("the loss is known by now")


class EpochBatches:
    """The minibatches of each step, in the order of the epoch which the steps so far have come to.

    Lightning's own count of epochs does not serve: when it asks a resumed run for its first batch, it is one behind.
    """

    def __init__(self, batches: Batches, module: Training) -> None:
        self.batches = batches
        self.module = module

    def __len__(self) -> int:
        return self.module.num_steps

    def __iter__(self) -> Iterator[list[Batch]]:
        self.batches.set_epoch(self.module.global_step // len(self))
        each = iter(self.batches)
        for first in each:
            yield [first, *islice(each, self.module.config.accumulate - 1)]
