"""The settings of a run: their limits, what they are for, and what follows from them alone."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kernelseed import methods, models
from kernelseed.data import TASKS, TableOptions
from kernelseed.errors import ArgumentError, ConfigError
from kernelseed.methods import setting
from kernelseed.training.learning_rate import SCHEDULES

PLAIN_SHARE = 0.2
"""Of a run's epochs, for the plain network that a method takes over."""
IMAGE_MODEL, TABLE_MODEL = "resnet18", "mlp"
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a `Config` holds, not checked yet."""

    data: str = setting("digits", "the data set: digits, mnist, ..., folder:PATH for images, or csv:PATH for a table")
    target: str | None = setting(None, "the column of a table to predict")
    task: str | None = setting(None, "what a table's target is (default: regression if it has numbers)", choices=TASKS)
    test: str | float = setting(0.2, "the share of a table's rows, chosen by the seed, to test on; or another CSV file")
    ignore: str | None = setting(None, "columns of a table to leave out, with commas")
    method: str = setting("ksn", f"the method: {', '.join(methods.METHODS)}")
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "the method's own hyperparameters"})
    model: str = setting(
        None,
        f"the network: {', '.join(models.BUILDERS)}, or your own, module:function (default: {IMAGE_MODEL}, or "
        f"{TABLE_MODEL} for a table)",
    )
    model_args: dict[str, Any] = field(default_factory=dict, metadata={"help": "the model's own arguments as JSON"})
    width: int = setting(64, "channels of a ResNet's first stage", least=1, most=65_536)
    stem: str | None = setting(None, "a ResNet's first layers (default: what suits the images)", choices=models.STEMS)
    epochs: int = setting(5, "passes over the training data", least=1, most=1_000_000)
    batch_size: int = setting(128, "images in a minibatch of one device", least=1)
    accumulate: int = setting(1, "minibatches in a step, each with a draw of its own", least=1, most=1_000_000)
    schedule: str = setting("cosine", "how the learning rate goes over the run", choices=SCHEDULES)
    warmup: float = setting(
        0.05, "steps over which the learning rate rises first; below 1: their share of all", least=0, most=2**31 - 1
    )
    ema: float | None = setting(
        None, "decay of a running average of the weights, which is then tested and stored", above=0, below=1
    )
    init_from: str | None = setting(None, "the plain network's start: a finished run, or a safetensors file")
    plain_epochs: float | None = setting(
        None,
        "first epochs that train the plain network, which the method then takes over; below 1: their share (default: "
        f"{PLAIN_SHARE:g}, where the method can)",
        least=0,
        most=1_000_000,
    )
    seed: int = setting(0, "decides all that is random", least=0, most=2**63 - 1)
    validation: float = setting(0.0, "the share of the training data that is held out", least=0, below=1)
    patience: int | None = setting(None, "epochs without a better validation NLL after which training stops", least=1)
    augment: bool = setting(False, "random crops and flips")
    size: int | None = setting(None, "resize a folder's images to this many pixels", least=1)
    channels: int | None = setting(None, "read a folder's images as grey (1) or colour (3)")
    skip_unreadable: bool = setting(False, "leave out a folder's images that can't be read")
    precision: str = setting("32-true", "how exactly to compute, as Lightning names it", choices=PRECISIONS)
    clip: float | None = setting(None, "the norm that gradients are clipped to", above=0)
    samples: int = setting(10, "draws that a prediction averages; 0: the posterior mean alone", least=0, most=100_000)
    update_bn: int = setting(
        0, "training images that each draw's BatchNorm is re-estimated from; 0: its running statistics", least=0
    )
    devices: int = setting(1, "processors to train on", least=1, most=1024)
    nodes: int = setting(1, "machines to train on", least=1, most=65_536)
    accelerator: str = setting("auto", "what to train on: auto, cpu, gpu, ..., as Lightning names it")
    strategy: str = setting(
        "auto", "how devices share the work; each of them holds the whole network", choices=STRATEGIES
    )

    def table_options(self) -> TableOptions:
        """What a table needs beside its path."""
        ignore = tuple(name.strip() for name in (self.ignore or "").split(",") if name.strip())
        return TableOptions(self.target, self.task, self.test, ignore)

    def model_parameters(self) -> Collection[str]:
        """What the model's builder takes; nothing is known of a function of your own."""
        builder = models.BUILDERS.get(self.model)
        return () if builder is None else inspect.signature(builder).parameters

    @property
    def num_plain_epochs(self) -> int:
        """How many epochs `plain_epochs` means; by default none if the start is trained or the run may stop early."""
        share = self.plain_epochs
        if share is None:
            can = self.build_method().plain() is not None and self.init_from is None and self.patience is None
            share = PLAIN_SHARE if can else 0
        return round(share * self.epochs) if share < 1 else int(share)

    def build_method(self) -> methods.Method:
        """The method with its options."""
        for name in self.options:
            if not isinstance(name, str):
                raise ConfigError(f"options has the name {name!r}; the names of options are texts: put it in quotes.")
        try:
            return methods.make(self.method, **self.options)
        except ArgumentError as error:
            raise ConfigError(str(error)) from None
