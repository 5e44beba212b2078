"""What a run is: everything that decides its numbers, in one value that is written beside them."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import fast, methods, models
from kernelseed.core import batch_norms, gigabytes, memory_limit, read_json, read_text
from kernelseed.data import CSV, TASKS, Dataset, TableOptions, load
from kernelseed.errors import ArgumentError, ConfigError, DataError, MissingPackageError, StorageError
from kernelseed.methods import check_settings, did_you_mean, setting, settings_of
from kernelseed.training.learning_rate import SCHEDULES
from kernelseed.training.tasks import task_of

MOST_YAML = 1 << 20
TRAINING_BYTES = 16  # a parameter, its gradient and Adam's two averages
PLAIN_SHARE = 0.2
"""Of a run's epochs, for the plain network that a method takes over."""
IMAGE_MODEL, TABLE_MODEL = "resnet18", "mlp"
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
        self._check_data()
        self._check_model()
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
        self._check_recipe(method)

    def _check_recipe(self, method: methods.Method) -> None:
        """That the method can be trained in this way."""
        for name, default in (("accumulate", 1), ("ema", None)):
            if method.is_optimizer and getattr(self, name) != default:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, but method {self.method!r} is an optimizer itself, whose "
                    f"posterior belongs to its own steps: leave {name} at {default}."
                )
        if self.init_from is not None and not method.keeps_weights:
            raise ConfigError(
                f"init_from is {self.init_from!r}, but method {self.method!r} starts from weights of its own; do "
                "without, or take init 'model' for kernel seeds."
            )
        if self.warmup >= 1 and self.warmup % 1:
            raise ConfigError(f"warmup is {self.warmup}; allowed: a whole number of steps, or a share below 1.")
        if not self.plain_epochs:
            return
        if not isinstance(method.plain(), methods.Method):
            raise ConfigError(
                f"plain_epochs is {self.plain_epochs}, but method {self.method!r} takes no trained plain network over; "
                "allowed: bnn, and ksn, fksn and ksn-last with init 'model'."
            )
        if (self.plain_epochs >= 1 and self.plain_epochs % 1) or not 0 < self.num_plain_epochs < self.epochs:
            raise ConfigError(
                f"plain_epochs is {self.plain_epochs} of {self.epochs} epochs; allowed: a whole number of fewer than "
                "all of them, or a share below 1 that leaves each part at least one."
            )
        if self.patience is not None:
            raise ConfigError(
                f"patience is {self.patience} with plain_epochs {self.plain_epochs}; early stopping could end the run "
                "as a plain network: do without one of them."
            )

    def _check_data(self) -> None:
        """That a table has its settings, and that other data has none of them."""
        if not self.data.startswith(CSV):
            for name in ("target", "task", "test", "ignore"):
                if (value := getattr(self, name)) != settings_of(Config)[name].default:
                    raise ConfigError(f"{name} is {value!r}, but data is {self.data!r}, and no table, csv:PATH.")
            return
        try:
            self._table_options()
        except ArgumentError as error:
            raise ConfigError(str(error)) from None
        if self.target is None:
            raise ConfigError(f"data is {self.data!r} without a target; name the column to predict: --target.")
        if self.augment:
            raise ConfigError(f"augment is for images, and data is the table {self.data!r}: leave it out.")
        if "stem" in self._model_parameters():
            raise ConfigError(f"model is {self.model!r}, which takes images, and data is a table: take {TABLE_MODEL}.")

    def _table_options(self) -> TableOptions:
        ignore = tuple(name.strip() for name in (self.ignore or "").split(",") if name.strip())
        return TableOptions(self.target, self.task, self.test, ignore)

    def _check_model(self) -> None:
        """Of a model of ours all that can be known without data; of any other, its name."""
        try:
            object.__setattr__(self, "model_args", json.loads(json.dumps(self.model_args, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model_args is {self.model_args!r}; it is kept as JSON: {error}.") from None
        if self.model not in models.BUILDERS and self.model != models.GIVEN and not models.is_path(self.model):
            allowed = ", ".join(models.BUILDERS)
            hint = did_you_mean(self.model, models.BUILDERS)
            raise ConfigError(f"model is {self.model!r}; allowed: {allowed} and package.module:function.{hint}")
        known = self._model_parameters()
        for name in ("width", "stem"):
            if name not in known and getattr(self, name) != settings_of(Config)[name].default:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, but the model {self.model!r} has none: leave it out, and set "
                    "the model's own arguments with model_args."
                )
        if self.model in models.BUILDERS:
            free = [name for name in known if name not in (*models.FACTS, "width", "stem")]
            for name in self.model_args:
                if name not in free:
                    hint = did_you_mean(name, free)
                    raise ConfigError(
                        f"model_args has {name!r}; allowed for the model {self.model!r}: {', '.join(free)}.{hint}"
                    )

    def _model_parameters(self) -> Collection[str]:
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
        is_resnet = "stem" in self._model_parameters()
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
        known = self._model_parameters()
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
            **vars(self._table_options()),
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


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run where those of `above` win. Another method leaves the options of the one below
    behind, and another model its arguments.

    >>> overlay({"epochs": 5, "options": {"delta": 0.5}}, {"epochs": 50, "options": {"lr": 0.1}})
    {'epochs': 50, 'options': {'delta': 0.5, 'lr': 0.1}}
    """
    known = settings_of(Config)
    for part in (below, above):
        known["options"].check(part.get("options", {}), ConfigError)
    method = below.get("method", known["method"].default)
    kept = below.get("options", {}) if above.get("method", method) == method else {}
    data = above.get("data", below.get("data"))
    if above.get("model", model := below.get("model", default_model(data))) != model:
        below = {name: value for name, value in below.items() if name != "model_args"}
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
