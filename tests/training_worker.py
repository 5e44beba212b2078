"""The real command with what it does recorded, for the data-parallel test: Lightning starts it once for every rank."""

import sys
from pathlib import Path

import torch

from kernelseed import BayesianModule
from kernelseed.cli.app import app
from kernelseed.training import trainer

FOLDER = Path(sys.argv[1])


class Recorded(trainer.Training):
    """Keeps the draws, the first step's averaged gradients, and the weights before the first and after the last."""

    def weights(self):
        return {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def on_fit_start(self):
        self.seen = {"start": self.weights(), "draws": []}
        if not isinstance(self.net, BayesianModule):  # the plain phase of a run
            return
        draw = self.net.draw

        def recorded_draw(**options):
            drawn = draw(**options)
            self.seen["draws"].append({name: value.detach().clone() for name, value in drawn.weights.items()})
            return drawn

        self.net.draw = recorded_draw

    def on_before_optimizer_step(self, optimizer):
        if self.global_step == 0:
            self.seen["gradients"] = {name: p.grad.clone() for name, p in self.net.named_parameters()}

    def on_train_end(self):
        vars(self.net).pop("draw", None)
        torch.save({**self.seen, "end": self.weights()}, FOLDER / f"{self.global_rank}.pt")


if __name__ == "__main__":
    trainer.Training = Recorded
    app(sys.argv[2:])
