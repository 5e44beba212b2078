"""What a run is: everything that decides its numbers, in one value that is written beside them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import fast, methods, models
from kernelseed.core import batch_norms, gigabytes, memory_limit
from kernelseed.data import CSV, TASKS, Dataset, TableOptions, load
from kernelseed.errors import ArgumentError, ConfigError, DataError
from kernelseed.methods import check_settings, did_you_mean, setting, settings_of
from kernelseed.training.config_checks import TABLE_MODEL, check_together
from kernelseed.training.learning_rate import SCHEDULES
from kernelseed.training.tasks import task_of

TRAINING_BYTES = 16  # a parameter, its gradient and Adam's two averages
PLAIN_SHARE = 0.2
"""Of a run's epochs, for the plain network that a method takes over."""
IMAGE_MODEL = "resnet18"
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. `options` are the method's own hyperparameters, such as delta; what it leaves out is default.

    Each field says its limits and what it is for; the options of `kernelseed train` are made from the same lines.

    >>> Config(method="ksn", options={"delta": 0.5}, epochs=3).build_method().label(ensemble=True)
    'KSN-E channels δ=0.5'
    """

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

    def __post_init__(self) -> None:
        if self.model is None:
            object.__setattr__(self, "model", default_model(self.data))
        check_settings(self, ConfigError)
        object.__setattr__(self, "model_args", _through_json(self.model_args))
        check_together(self)

    def table_options(self) -> TableOptions:
        """What a table needs beside its path."""
        ignore = tuple(name.strip() for name in (self.ignore or "").split(",") if name.strip())
        return TableOptions(self.target, self.task, self.test, ignore)

    def model_parameters(self) -> Collection[str]:
        """What the model's builder takes; nothing is known of a function of your own."""
        builder = models.BUILDERS.get(self.model)
        return () if builder is None else inspect.signature(builder).parameters

    def __eq__(self, other: object) -> bool:
        # An option that is left out is the method's default, and so is the same option written down.
        return self.as_json() == other.as_json() if isinstance(other, Config) else NotImplemented

    @property
    def num_plain_epochs(self) -> int:
        """How many epochs `plain_epochs` means; by default none if the start is trained or the run may stop early."""
        share = self.plain_epochs
        if share is None:
            can = self.build_method().plain() is not None and self.init_from is None and self.patience is None
            share = PLAIN_SHARE if can else 0
        return round(share * self.epochs) if share < 1 else int(share)

    def num_warmup_steps(self, total: int) -> int:
        """How many steps of so many `warmup` means."""
        return round(self.warmup * total) if self.warmup < 1 else int(self.warmup)

    @property
    def layout(self) -> torch.memory_format:
        """How images lie in memory: for a ResNet as this kind of processor is faster, see `kernelseed.fast.Costs`.

        One of fewer than eight channels is never channels last: the gradient of its strided 1 x 1 convolutions would be
        written past the end of its memory (PyTorch 2.13 on a CPU with AVX2).
        """
        is_resnet = "stem" in self.model_parameters()
        return fast.current_costs().layout if is_resnet and self.width % 8 == 0 else torch.contiguous_format

    def build_method(self) -> methods.Method:
        """The method with its options."""
        for name in self.options:
            if not isinstance(name, str):
                raise ConfigError(f"options has the name {name!r}; the names of options are texts: put it in quotes.")
        try:
            return methods.make(self.method, **self.options)
        except ArgumentError as error:
            raise ConfigError(str(error)) from None

    def build_model(
        self,
        data: Dataset,
        model: models.Model | None = None,
        trust_model: bool = False,
        where: str | Path = "the config",
    ) -> nn.Module:
        """The plain network that fits the data; one of your own is given again, or its name, read there, trusted."""
        recipe = self.recipe(data)
        if "name" in recipe:
            _require_memory(recipe)
        plain = models.build(recipe, model, trust_model, where)
        if self.batch_size == 1 and batch_norms(plain):
            raise ConfigError(
                "batch_size is 1, and the network has BatchNorm, which needs at least 2 images a step: take more."
            )
        return plain

    def recipe(self, data: Dataset) -> dict[str, Any]:
        """How the plain network that fits the data is made, as JSON."""
        channels, *size = data.train.inputs.shape[1:]
        task = task_of(data)
        facts = {"num_classes": task.num_outputs, "in_channels": channels, "image_size": size}
        if self.model not in models.BUILDERS:
            return models.own_recipe(self.model, facts, self.model_args, task.has_noise)
        known = self.model_parameters()
        if "stem" in known and data.table is not None:
            raise ConfigError(f"model is {self.model!r}, which takes images, and data is a table: take {TABLE_MODEL}.")
        settings = {**facts, "width": self.width}
        if "stem" in known:
            settings["stem"] = self.stem or default_stem(data)
        # Small images leave most taps of a ResNet's last layers void.
        return {
            "name": self.model,
            **{k: v for k, v in settings.items() if k in known},
            **self.model_args,
            "trimmed": True,
            **({"noise": True} if task.has_noise else {}),
        }

    def load_data(self, data_dir: str | Path | None = None) -> Dataset:
        """The data that it names."""
        if self.data == models.GIVEN:
            raise DataError("the data of this run was given in Python: give it again there, data=...")
        return load(
            self.data,
            data_dir,
            validation=self.validation,
            seed=self.seed,
            size=self.size,
            channels=self.channels,
            skip_unreadable=self.skip_unreadable,
            **vars(self.table_options()),
        )

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `from_json` takes. It is whole: the method's options are all in it."""
        return {**asdict(self), "options": asdict(self.build_method()), "plain_epochs": self.num_plain_epochs}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Config:
        """From a dictionary; an unknown key is an error that suggests the nearest."""
        known = settings_of(cls)
        for key in given:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise ConfigError(f"{key} is no setting of a run; allowed: {', '.join(known)}.{hint}")
        return cls(**given)


def _through_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """A model's arguments as they are read back."""
    try:
        return dict(json.loads(json.dumps(arguments, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model_args is {arguments!r}; it is kept as JSON: {error}.") from None


def _require_memory(recipe: dict[str, Any]) -> None:
    """An error if a model of ours is larger than can be trained here."""
    try:
        with torch.device("meta"):  # without memory, to count
            parameters = sum(p.numel() for p in models.from_recipe(recipe).parameters())
    except RuntimeError as error:  # more than can be counted
        raise ConfigError(f"{recipe} is no network that can be built ({error}): take a smaller one.") from None
    if (least := TRAINING_BYTES * parameters) > memory_limit():
        raise ConfigError(
            f"width is {recipe.get('width')}, which makes a network of {parameters:,} parameters; to train it takes "
            f"{gigabytes(least)} or more, and there is memory for {gigabytes(memory_limit())}: take a smaller one."
        )


def default_stem(data: Dataset) -> str:
    """Which stem suits the images: "imagenet" for 28 x 28, as the paper's numbers imply, and for large ones."""
    height = data.train.inputs.shape[-2]
    return "imagenet" if height == 28 or height > 64 else "cifar"


def default_model(data: object) -> str:
    """The network that suits data of this name."""
    return TABLE_MODEL if isinstance(data, str) and data.startswith(CSV) else IMAGE_MODEL
