"""What a run is: everything that decides its numbers, in one value that is written beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import fast, models
from kernelseed.core import batch_norms
from kernelseed.data import CSV, Dataset, load
from kernelseed.errors import ConfigError, DataError
from kernelseed.methods import check_settings, did_you_mean, settings_of
from kernelseed.system import gigabytes, memory_limit
from kernelseed.training.config_checks import check_together
from kernelseed.training.run_settings import IMAGE_MODEL, TABLE_MODEL, RunSettings
from kernelseed.training.tasks import task_of

TRAINING_BYTES = 16  # a parameter, its gradient and Adam's two averages


@dataclass(frozen=True, kw_only=True)
class Config(RunSettings):
    """A training run. `options` are the method's own hyperparameters, such as delta; what it leaves out is default.

    Each field says its limits and what it is for; the options of `kernelseed train` are made from the same lines.

    >>> Config(method="ksn", options={"delta": 0.5}, epochs=3).build_method().label(ensemble=True)
    'KSN-E channels δ=0.5'
    """

    def __post_init__(self) -> None:
        if self.model is None:
            object.__setattr__(self, "model", default_model(self.data))
        check_settings(self, ConfigError)
        object.__setattr__(self, "model_args", _through_json(self.model_args))
        check_together(self)

    def __eq__(self, other: object) -> bool:
        # An option that is left out is the method's default, and so is the same option written down.
        return self.as_json() == other.as_json() if isinstance(other, Config) else NotImplemented

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
