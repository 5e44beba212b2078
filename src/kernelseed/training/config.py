"""What a run is: everything that decides its numbers, in one value that is written beside them."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import nn

from kernelseed import methods, models
from kernelseed.data import Dataset, load
from kernelseed.errors import ConfigError
from kernelseed.fast.taps import trim

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. `options` are the method's own hyperparameters, such as delta."""

    data: str = "digits"
    method: str = "ksn"
    options: dict[str, Any] = field(default_factory=dict)
    width: int = 64
    stem: str | None = None
    """None: "imagenet" for the 28 x 28 sets, as the paper's numbers imply, and for pictures over 64; else "cifar"."""
    epochs: int = 5
    batch_size: int = 128
    seed: int = 0
    validation: float = 0.0
    augment: bool = False
    size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    precision: str = "32-true"
    clip: float | None = None
    patience: int | None = None
    """Epochs without a better validation NLL after which training stops."""
    samples: int = 10
    """Draws that a prediction averages."""
    update_bn: int = 4096
    """Training images from which each draw gets its BatchNorm statistics; 0: the running averages, as in the paper."""
    devices: int = 1
    nodes: int = 1
    accelerator: str = "auto"
    strategy: str = "auto"

    def __post_init__(self) -> None:
        self._check_types()
        for name, least in (("width", 1), ("epochs", 1), ("batch_size", 1), ("seed", 0), ("samples", 0),
                            ("update_bn", 0), ("devices", 1), ("nodes", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.stem not in (None, "imagenet", "cifar"):
            raise ConfigError(f'stem is {self.stem!r}; allowed are "imagenet" and "cifar".')
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is {self.precision!r}; allowed are {', '.join(PRECISIONS)}.")
        if not 0 <= self.validation < 1:
            raise ConfigError(f"validation is {self.validation}; it is a share of the training data: 0 <= share < 1.")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip is {self.clip}; a gradient norm to clip at must be positive.")
        if self.clip is not None and self.precision == "16-mixed":
            raise ConfigError(
                f"clip is {self.clip} with precision '16-mixed', whose gradients are scaled; take bf16-mixed, or do "
                "without clip."
            )
        if self.patience is not None and (self.patience < 1 or not self.validation):
            raise ConfigError(
                f"patience is {self.patience} with validation {self.validation}; early stopping takes at least 1 epoch "
                "and a validation share to watch, such as 0.1."
            )
        method = self.build_method()
        if self.clip is not None and not method.clips:
            raise ConfigError(f"clip is {self.clip}, but method {self.method!r} uses its gradients itself: do without.")
        if self.devices * self.nodes > 1 and not method.distributed:
            raise ConfigError(
                f"method {self.method!r} keeps statistics of its own gradients and trains in one process; "
                f"devices x nodes is {self.devices * self.nodes}: set both to 1."
            )

    def _check_types(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            kinds = (dict,) if get_origin(hint) is dict else get_args(hint) or (hint,)
            value = getattr(self, name)
            allowed = (*kinds, int) if float in kinds else kinds
            if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
                raise ConfigError(f"{name} is {value!r}; it must be of type {wanted}.")

    @property
    def layout(self) -> torch.memory_format:
        """How pictures lie in memory: channels last is faster.

        Not for a network of fewer than eight channels: the gradient of its strided 1 x 1 convolutions would be written
        past the end of its memory (PyTorch 2.13 on a CPU with AVX2).
        """
        return torch.contiguous_format if self.width % 8 else torch.channels_last

    def build_method(self) -> methods.Method:
        """The method with its options."""
        try:
            return methods.make(self.method, **self.options)
        except (ValueError, TypeError) as error:
            raise ConfigError(str(error)) from None

    def build_model(self, data: Dataset) -> nn.Module:
        """The plain network that fits the data; small pictures leave most taps of its last layers void."""
        return trim(
            models.resnet18(
                len(data.class_names),
                data.train.images.shape[1],
                stem=self.stem or default_stem(data),
                width=self.width,
            )
        )

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
        """A dictionary that `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Config:
        """From a dictionary; an unknown key is an error that suggests the nearest."""
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
                raise ConfigError(f"the config has an unknown key {key!r}; {hint}")
        return cls(**given)


def default_stem(data: Dataset) -> str:
    """Which stem suits the pictures."""
    height = data.train.images.shape[-2]
    return "imagenet" if height == 28 or height > 64 else "cifar"
