"""The contents of the paper's tables: eighteen rows from twelve networks, and the exact setting of each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelseed.errors import ConfigError
from kernelseed.methods import METHODS
from kernelseed.reproduction.presets import IMAGES, PRESETS
from kernelseed.training import Config, overlay, recipe

DATA = tuple(IMAGES)
DELTAS = (1.0, 0.75, 0.5, 0.25)
MOST_SEEDS = 1000
BATCH_SIZE = 128
"""The total over all processes."""
OURS = "ours-"
"""The prefix of the networks with this library's own defaults, which are not rows of the paper."""


@dataclass(frozen=True)
class Network:
    """One training run; it gives one or two rows."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    recipe: str = "paper"
    cost: float = 1.0
    """Its approximate training time relative to the plain network, to estimate the remaining time."""


@dataclass(frozen=True)
class Row:
    """A row of a table: a trained network, and whether it predicts by its draws or by its mean."""

    model: str
    network: str
    way: str
    delta: float | None = None
    dropout: float | None = None

    @property
    def name(self) -> str:
        """Its name in `published`."""
        if self.dropout and self.way == "mean":
            return f"{self.model} DR"
        return self.model if self.delta is None else f"{self.model} {self.delta:g}"

    @property
    def is_own(self) -> bool:
        """Whether it is of this library's defaults; its delta is then that of the paper's row of its size."""
        return self.network.startswith(OURS)


# The paper prints the prior, but not the initial sigma and the KL weight: see `remarks.NOTES`.
SIGMA_AND_KL: dict[str, Any] = {"rho_offset": -5.0, "kl": "automatic", "prior": "paper"}


def _ksn(delta: float) -> Network:
    return Network("ksn", {**SIGMA_AND_KL, "delta": delta}, cost=1.2 + 0.9 * delta)


def _fksn(delta: float) -> Network:
    return Network("fksn", {"delta": delta}, cost=0.4 + 0.8 * delta)


# In the order of training, the most important first.
NETWORKS: dict[str, Network] = {
    "baseline": Network("baseline"),
    "ksn-0.25": _ksn(0.25),
    "bnn": Network("bnn", SIGMA_AND_KL, cost=1.3),
    "mc-drop": Network("dropout", {"rate": 0.1}),
    "fksn-0.25": _fksn(0.25),
    "ksn-1": _ksn(1.0),
    f"{OURS}ksn": Network("ksn", recipe="kernelseed"),
    f"{OURS}bnn": Network("bnn", recipe="kernelseed", cost=1.3),
    "fksn-1": _fksn(1.0),
    "fksn-0.75": _fksn(0.75),
    "fksn-0.5": _fksn(0.5),
    "ksn-0.5": _ksn(0.5),
    "ksn-0.75": _ksn(0.75),
    "vogn": Network("vadam", {"train_samples": 10}),
}

ROWS: tuple[Row, ...] = (
    Row("Baseline", "baseline", "mean"),
    Row("Baseline", "mc-drop", "mean", dropout=0.1),
    Row("MC-Drop", "mc-drop", "ensemble", dropout=0.1),
    Row("VOGN", "vogn", "ensemble"),
    *(
        row
        for delta in DELTAS
        for row in (
            Row("KSN-E", f"ksn-{delta:g}", "ensemble", delta),
            Row("KSN-P", f"ksn-{delta:g}", "mean", delta),
            Row("FKSN", f"fksn-{delta:g}", "mean", delta),
        )
    ),
    Row("BNN-E", "bnn", "ensemble"),
    Row("BNN-P", "bnn", "mean"),
)

OWN_ROWS: tuple[Row, ...] = (
    Row("KSN-E", f"{OURS}ksn", "ensemble", 0.25),  # whose size it has
    Row("KSN-P", f"{OURS}ksn", "mean", 0.25),
    Row("BNN-E", f"{OURS}bnn", "ensemble"),
    Row("BNN-P", f"{OURS}bnn", "mean"),
)
"""The block under a table: the same rows with this library's own defaults."""


@dataclass(frozen=True)
class Run:
    """A network of the plan at one seed."""

    network: str
    config: Config

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.network}-seed-{self.config.seed}"

    @property
    def cost(self) -> float:
        """Its approximate training time relative to the plain network."""
        draws = self.config.options.get("train_samples")
        return NETWORKS[self.network].cost if draws is None else 1.1 * draws

    def trains_as(self, other: Config) -> bool:
        """Whether both are the same training, because BatchNorm statistics are re-estimated only for the test."""
        mine, theirs = (replace(config, options={}, update_bn=0) for config in (self.config, other))
        return mine == theirs and self.config.build_method() == other.build_method()


@dataclass(frozen=True)
class Plan:
    """A table, and the part of it to run.

    preset        the size of the networks and the course of their training, a name of `PRESETS`
    networks      names from `NETWORKS`; None: all that the settings below change
    seeds         the number of seeds, from 0
    kl            the KL weight of KSN and BNN in the paper's rows, as the methods take it; results with another weight
                  than the default go to `PRESET-KL/DATA`
    augment       random crops and flips; results go to `PRESET-augmented/DATA`
    update_bn     the number of training images from which BatchNorm is re-estimated for each draw, also in the paper's
                  rows; results go to `PRESET-update-bn/DATA`, and networks trained without it are only tested again
    vogn_samples  VOGN's draws in a training step; with the paper's ten it takes ten times as long as any other row
    machine       other settings of a `Config` for the machine: precision, devices, nodes, accelerator, strategy

    >>> [run.name for run in Plan("mnist", "small", ["baseline"], seeds=2).runs()]
    ['baseline-seed-0', 'baseline-seed-1']
    """

    data: str
    preset: str = "paper"
    networks: Sequence[str] | None = None
    seeds: int = 1
    kl: str = SIGMA_AND_KL["kl"]
    vogn_samples: int = 10
    augment: bool = False
    update_bn: int = 0
    machine: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require("data", self.data, DATA)
        _require("preset", self.preset, tuple(PRESETS))
        for name in self.networks or ():
            _require("rows", name, tuple(NETWORKS))
        if self.networks is not None and not self.networks:
            raise ConfigError(f"rows is empty; allowed: {', '.join(NETWORKS)}. Name one at least.")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(f"seeds is {self.seeds}; it is a number of seeds: give at least 1, at most {MOST_SEEDS}.")
        if BATCH_SIZE % self.processes:
            raise ConfigError(
                f"devices times nodes is {self.processes}; so many processes share a batch of {BATCH_SIZE} images: "
                "choose a number that divides it."
            )

    @property
    def folder(self) -> str:
        """The folder of its files, relative to the folder of all tables."""
        return f"{self.variant}/{self.data}"

    @property
    def variant(self) -> str:
        """The preset, and the settings that differ from those of the tables."""
        others = {
            self.kl: self.kl != SIGMA_AND_KL["kl"],
            "augmented": self.augment,
            "update-bn": self.update_bn > 0,
        }
        return "-".join([self.preset, *(name for name, differs in others.items() if differs)])

    @property
    def processes(self) -> int:
        """The number of processes that train one network together."""
        processes: int = self.machine.get("devices", 1) * self.machine.get("nodes", 1)
        return processes

    def runs(self) -> list[Run]:
        """All training runs: every network with the first seed, then every network with the second, and so on."""
        wanted = self.networks or [name for name in self._everything() if name not in self.left_out()]
        return [self.run(name, seed) for seed in range(self.seeds) for name in NETWORKS if name in wanted]

    def run(self, network: str, seed: int) -> Run:
        """One training run, whether the plan includes it or not."""
        return Run(network, self._config(NETWORKS[network], seed))

    def left_out(self) -> list[str]:
        """Networks that a plan for all networks leaves out on several devices, because they train in one process."""
        if self.networks or self.processes == 1:
            return []
        return [name for name in self._everything() if not METHODS[NETWORKS[name].method].distributed]

    def _everything(self) -> list[str]:
        """All networks, or those that a variant changes: with `--kl`, the networks with a KL."""
        this = replace(self, machine={})  # some networks can't be trained on several devices
        usual = replace(this, kl=SIGMA_AND_KL["kl"], augment=False, update_bn=0)
        return [name for name in NETWORKS if this == usual or this.run(name, 0) != usual.run(name, 0)]

    def _config(self, network: Network, seed: int) -> Config:
        options = dict(network.options)
        if "kl" in options:
            options["kl"] = self.kl
        if network.method == "vadam":
            options["train_samples"] = self.vogn_samples
        settings = overlay(recipe(network.recipe, network.method), PRESETS[self.preset].for_data(self.data))
        settings = overlay(settings, {"data": self.data, "method": network.method, "options": options})
        if self.augment:
            settings["augment"] = True
        if self.update_bn:
            settings["update_bn"] = self.update_bn
        whole = {"batch_size": BATCH_SIZE // self.processes, "seed": seed}
        return Config.from_json({**settings, **self.machine, **whole})


def _require(argument: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{argument} is {value!r}; allowed: {', '.join(allowed)}.{hint}")
