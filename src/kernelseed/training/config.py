"""What a run is: everything that decides its numbers, in one value that is written beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import methods, models
from kernelseed.core import gigabytes, memory_limit, read_json, read_text
from kernelseed.data import Dataset, load
from kernelseed.errors import ArgumentError, ConfigError, MissingPackageError, StorageError
from kernelseed.fast import trim
from kernelseed.methods import check_settings, did_you_mean, setting, settings_of

MOST_YAML = 1 << 20
TRAINING_BYTES = 16  # a parameter, its gradient and Adam's two averages
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. `options` are the method's own hyperparameters, such as delta; what it leaves out is default.

    Each field says its limits and what it is for; the options of `kernelseed train` are made from the same lines.

    >>> Config(method="ksn", options={"delta": 0.5}, epochs=3).build_method().label(ensemble=True)
    'KSN-E δ=0.5'
    """

    data: str = setting("digits", "the data set: digits, mnist, ..., or folder:PATH")
    method: str = setting("ksn", f"the method: {', '.join(methods.METHODS)}")
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "the method's own hyperparameters"})
    width: int = setting(64, "channels of the ResNet-18's first stage", least=1, most=65_536)
    stem: str | None = setting(None, "the first layers (default: what suits the images)", choices=("imagenet", "cifar"))
    epochs: int = setting(5, "passes over the training data", least=1, most=1_000_000)
    batch_size: int = setting(128, "images in a step of one device; BatchNorm needs two", least=2)
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
        4096, "training images that each draw's BatchNorm is re-estimated from; 0: its running statistics", least=0
    )
    devices: int = setting(1, "processors to train on", least=1, most=1024)
    nodes: int = setting(1, "machines to train on", least=1, most=65_536)
    accelerator: str = setting("auto", "what to train on: auto, cpu, gpu, ..., as Lightning names it")
    strategy: str = setting("auto", "how devices share the work: auto, ddp, fsdp, ..., as Lightning names it")

    def __post_init__(self) -> None:
        check_settings(self, ConfigError)
        method = self.build_method()
        if self.patience is not None and not self.validation:
            raise ConfigError(
                f"patience is {self.patience} with validation {self.validation}; early stopping needs a validation "
                "share to watch, such as 0.1."
            )
        if self.clip is not None and self.precision == "16-mixed":
            raise ConfigError(
                f"clip is {self.clip} with precision '16-mixed', whose gradients are scaled; take bf16-mixed, or do "
                "without clip."
            )
        if self.clip is not None and not method.clips:
            raise ConfigError(f"clip is {self.clip}, but method {self.method!r} uses its gradients itself: do without.")
        if self.devices * self.nodes > 1 and not method.distributed:
            raise ConfigError(
                f"devices x nodes is {self.devices * self.nodes}; method {self.method!r} keeps statistics of its own "
                "gradients and trains in one process: set both to 1."
            )

    def __eq__(self, other: object) -> bool:
        # An option that is left out is the method's default, and so is the same option written down.
        return self.as_json() == other.as_json() if isinstance(other, Config) else NotImplemented

    @property
    def layout(self) -> torch.memory_format:
        """How images lie in memory: channels last is faster.

        Not for a network of fewer than eight channels: the gradient of its strided 1 x 1 convolutions would be written
        past the end of its memory (PyTorch 2.13 on a CPU with AVX2).
        """
        return torch.contiguous_format if self.width % 8 else torch.channels_last

    def build_method(self) -> methods.Method:
        """The method with its options."""
        for name in self.options:
            if not isinstance(name, str):
                raise ConfigError(f"options has the name {name!r}; the names of options are texts: put it in quotes.")
        try:
            return methods.make(self.method, **self.options)
        except ArgumentError as error:
            raise ConfigError(str(error)) from None

    def build_model(self, data: Dataset) -> nn.Module:
        """The plain network that fits the data; small images leave most taps of its last layers void."""
        build = partial(
            models.resnet18,
            len(data.class_names),
            data.train.images.shape[1],
            stem=self.stem or default_stem(data),
            width=self.width,
        )
        with torch.device("meta"):  # without memory, to count
            parameters = sum(p.numel() for p in build().parameters())
        if (least := TRAINING_BYTES * parameters) > memory_limit():
            raise ConfigError(
                f"width is {self.width}, which makes a network of {parameters:,} parameters; to train it takes "
                f"{gigabytes(least)} or more, and there is memory for {gigabytes(memory_limit())}: take a smaller one."
            )
        return trim(build())

    def load_data(self, data_dir: str | Path | None = None) -> Dataset:
        """The data that it names."""
        return load(
            self.data,
            data_dir,
            validation=self.validation,
            seed=self.seed,
            size=self.size,
            channels=self.channels,
            skip_unreadable=self.skip_unreadable,
        )

    def as_json(self) -> dict[str, Any]:
        """A dictionary that `from_json` takes. It is whole: the method's options are all in it."""
        return {**asdict(self), "options": asdict(self.build_method())}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Config:
        """From a dictionary; an unknown key is an error that suggests the nearest."""
        known = settings_of(cls)
        for key in given:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise ConfigError(f"{key} is no setting of a run; allowed: {', '.join(known)}.{hint}")
        return cls(**given)


def default_stem(data: Dataset) -> str:
    """Which stem suits the images: "imagenet" for 28 x 28, as the paper's numbers imply, and for large ones."""
    height = data.train.images.shape[-2]
    return "imagenet" if height == 28 or height > 64 else "cifar"


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run where those of `above` win. Another method leaves the options of the one below behind.

    >>> overlay({"epochs": 5, "options": {"delta": 0.5}}, {"epochs": 50, "options": {"lr": 0.1}})
    {'epochs': 50, 'options': {'delta': 0.5, 'lr': 0.1}}
    """
    known = settings_of(Config)
    for part in (below, above):
        known["options"].check(part.get("options", {}), ConfigError)
    method = below.get("method", known["method"].default)
    kept = below.get("options", {}) if above.get("method", method) == method else {}
    return {**below, **above, "options": {**kept, **above.get("options", {})}}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that both have and that are not the same, options of the method included.

    >>> differences({"epochs": 5, "seed": 0}, {"epochs": 50, "seed": 0})
    {'epochs': (5, 50)}
    """
    one, two = ({**settings, **settings.get("options", {}), "options": None} for settings in (old, new))
    return {key: (one[key], two[key]) for key in one if key in two and one[key] != two[key]}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON or YAML file."""
    if path.suffix not in (".yaml", ".yml"):
        return read_json(path)
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingPackageError(f"{path} needs the package PyYAML: pip install PyYAML, or write JSON.") from None

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number, as YAML 1.2 does; PyYAML follows 1.1. A key that is there twice is an error."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            written = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
            if twice := [key for key, count in written.items() if count > 1]:
                raise yaml.YAMLError(f"{twice[0][:60]!r} is there twice")
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    text = read_text(path, MOST_YAML)
    try:
        found = yaml.load(text, Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise StorageError(f"{path} is not readable YAML ({' '.join(str(error).split())}); mend the file.") from None
    if not isinstance(found, dict):
        raise StorageError(f"{path} holds a {type(found).__name__}; write one setting a line, such as `epochs: 50`.")
    return found
