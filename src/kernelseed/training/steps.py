"""The bridge to Lightning: any method's steps, with noise that is a function of the seed, the step and the rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from kernelseed.core import Moment, derive_seed, likelihoods, make_draws
from kernelseed.data import Batches
from kernelseed.errors import NonFiniteError
from kernelseed.methods import Engine, Method
from kernelseed.training import divergence


class Training(L.LightningModule):
    """A method's training steps. Manual optimisation, because some methods draw and differentiate by themselves."""

    def __init__(
        self,
        net: nn.Module,
        method: Method,
        *,
        num_data: int,
        num_batches: int,
        seed: int,
        clip: float | None,
        layout: torch.memory_format = torch.contiguous_format,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.method = method
        self.num_data = num_data
        self.num_batches = num_batches
        self.seed = seed
        self.clip = clip
        self.layout = layout
        self.draws: list[Any] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The method's."""
        return self.method.optimizer(self.net, self.num_data)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """One step. Seeded by itself, so that a resumed run draws the same noise as one that never stopped."""
        step = self.global_step
        torch.manual_seed(derive_seed("training step", self.seed, step, self.global_rank))
        optimizer = self.optimizers()
        engine = Engine(self._backward, self._before_step)
        moment = Moment(step, self.num_data, num_batches=self.num_batches)
        x, y = batch
        x = x.to(memory_format=self.layout)  # every layer after keeps to it
        try:
            terms = self.method.step(self.net, optimizer, x, y, moment, engine)
        except NonFiniteError as error:

            def again() -> None:
                torch.manual_seed(derive_seed("training step", self.seed, step, self.global_rank))
                self.method.step(self.net, optimizer, x, y, moment, Engine(_stop))

            raise self._explained(error, divergence.first_layer(self.net, again)) from None
        self.log_dict(
            {"loss": terms.loss.detach(), "nll": terms.nll, "kl": terms.kl / self.num_data},
            prog_bar=True, on_step=True, on_epoch=True, batch_size=len(y), sync_dist=True,
        )  # fmt: skip

    def on_validation_epoch_start(self) -> None:
        """The posterior mean, decoded once for the pass."""
        with torch.no_grad():
            self.draws = make_draws(self.posterior(), samples=0, seed=0)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """NLL and accuracy of the posterior mean."""
        x, y = batch
        try:
            probs = likelihoods.Categorical().predictive([draw(x) for draw in self.draws]).probs
        except NonFiniteError as error:
            layer = divergence.first_layer(self.net, lambda: [draw(x) for draw in self.draws])
            raise self._explained(error, layer) from None
        nll = -probs.gather(1, y[:, None]).clamp_min(torch.finfo(probs.dtype).tiny).log().mean()
        accuracy = (probs.argmax(1) == y).float().mean()
        self.log_dict({"val_nll": nll, "val_accuracy": accuracy}, prog_bar=True, batch_size=len(y), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Nothing is kept: a draw belongs to the weights that it was made from."""
        self.draws = []

    def posterior(self) -> nn.Module:
        """The network to predict with, as it stands."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        posterior = self.method.posterior(self.net, optimizer)
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
        if self.clip is not None:
            # Not by Lightning, which refuses a fused Adam in mixed precision.
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)

    def _explained(self, error: NonFiniteError, layer: str | None) -> NonFiniteError:
        """What went wrong, when, where, and what to try."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        first = f", and the first layer whose output is not finite is {layer}" if layer else ""
        tries = ["a lower --lr"]
        tries += ["--clip 1"] if self.method.clips and self.clip is None else []
        tries += ["--precision 32-true"] if "16" in str(self.trainer.precision) else []
        return NonFiniteError(
            f"{str(error).partition(';')[0]} in epoch {self.current_epoch + 1} at step {self.global_step + 1} with lr "
            f"{optimizer.param_groups[0]['lr']:g}{first}; no such weights are kept, and a resumed run would come to "
            f"the same: start another with {' or '.join(tries)}."
        )


def _stop(loss: Tensor) -> None:
    raise NonFiniteError("the loss is known by now")


class EpochBatches:
    """Batches whose order is that of the epoch which the steps so far have come to.

    Lightning's own count of epochs does not serve: when it asks a resumed run for its first batch, it is one behind.
    """

    def __init__(self, batches: Batches, module: Training) -> None:
        self.batches = batches
        self.module = module

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.batches.set_epoch(self.module.global_step // len(self.batches))
        return iter(self.batches)
