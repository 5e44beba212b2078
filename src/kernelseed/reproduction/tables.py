"""A table of the paper with our numbers beside it, as values; `writing` turns them into text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelseed.metrics import METRICS
from kernelseed.reproduction.pairing import Trained, better
from kernelseed.reproduction.paper import published
from kernelseed.reproduction.plan import NETWORKS, OWN_ROWS, ROWS, SIGMA_AND_KL, Row
from kernelseed.reproduction.presets import PRESETS
from kernelseed.reproduction.remarks import notes
from kernelseed.reproduction.result_files import evidence

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
PRINTED = {key: METRICS[key] for key in ("accuracy", "nll", "ece", "ace", "mce")}
"""The metrics of the paper's tables."""
BETTER, WORSE, INCOMPARABLE = "▲", "▼", "†"


@dataclass(frozen=True)
class Cell:
    """Our number, averaged over seeds (None if there is none), and the paper's."""

    ours: float | None
    paper: float
    spread: float | None = None
    """The standard deviation over seeds, if there are several."""
    best: bool = False
    paper_best: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Line:
    """A row with its cells."""

    row: Row
    aside: str
    """How the training of this row differs from the plan, in a few words."""
    parameters: tuple[float | None, float]
    relative: tuple[float | None, float]
    cells: dict[str, Cell]
    trained: dict[int, Trained]
    """Our runs, by their seeds."""

    @property
    def seeds(self) -> int:
        """The number of our runs; 0 if the row has not been run."""
        return len(self.trained)

    @property
    def block(self) -> float | str:
        """Lines with the same block are grouped, as in the paper."""
        return self.row.delta or self.row.model.partition("-")[0]


@dataclass(frozen=True)
class Table:
    """The paper's rows, the block with this library's defaults, and remarks on this table."""

    data: str
    preset: str
    lines: list[Line]
    """Every row of the paper, whether it was run here or not."""
    own_lines: list[Line]
    remarks: list[str]
    notes: list[str]
    """What the paper does not specify and was chosen here."""

    @property
    def title(self) -> str:
        """The data set's name."""
        return TITLES[self.data]

    @property
    def setting(self) -> str:
        """What the preset is, and what the paper's was where it is another."""
        here, paper = (PRESETS[name].words(self.data) for name in (self.preset, "paper"))
        return f"Preset {self.preset}: {here}." + (f" The paper: {paper}." if here != paper else "")


def paper_table(data: str, results: Mapping[str, Sequence[dict[str, Any]]], preset: str = "paper") -> Table:
    """The table of a data set, from the results of each network (a list with one result per seed)."""
    papers = [row.network for row in ROWS]
    configs = [result["config"] for network in papers for result in results.get(network, ())]
    kls = {config["options"]["kl"] for config in configs if "kl" in config["options"]} or {SIGMA_AND_KL["kl"]}
    return Table(
        data,
        preset,
        _lines(data, ROWS, results),
        _lines(data, OWN_ROWS, results),
        _remarks(results),
        notes(
            _listed(sorted(map(str, kls))),
            any(config["augment"] for config in configs),
            max((config["update_bn"] for config in configs), default=0),
        ),
    )


def _lines(data: str, rows: Sequence[Row], results: Mapping[str, Sequence[dict[str, Any]]]) -> list[Line]:
    printed = published(data)
    values = {
        (row, key): [result["metrics"][row.way][key] for result in results.get(row.network, ())]
        for row in rows
        for key in PRINTED
    }
    best = {
        key: metric.best(statistics.fmean(values[row, key]) for row in rows if values[row, key])
        for key, metric in PRINTED.items()
    }
    paper_best = {key: metric.best(line[key] for line in printed.values()) for key, metric in PRINTED.items()}

    def cell(row: Row, key: str) -> Cell:
        found, paper, metric = values[row, key], printed[row.name][key], PRINTED[key]
        ours = _mean(found)
        return Cell(
            ours,
            paper,
            spread=statistics.stdev(found) if len(found) > 1 else None,
            best=ours is not None and metric.show(ours) == best[key],
            paper_best=metric.show(paper) == paper_best[key],
            mark="" if ours is None else mark(row, key, ours, paper),
        )

    def size(row: Row, key: str, printed_key: str) -> tuple[float | None, float]:
        return _mean([r["parameters"][key] for r in results.get(row.network, ())]), printed[row.name][printed_key]

    def trained(row: Row) -> dict[int, Trained]:
        found = results.get(row.network, ())
        return {r["seed"]: Trained(r["metrics"][row.way], evidence(r, row.way)) for r in found}

    return [
        Line(
            row,
            _aside(results.get(row.network, ())),
            size(row, "trained", "parameters"),
            size(row, "relative", "relative"),
            {key: cell(row, key) for key in PRINTED},
            trained(row),
        )
        for row in rows
    ]


def mark(row: Row, key: str, ours: float, paper: float) -> str:
    """The mark that says whether ours is better or worse than the paper's."""
    if row.network == "vogn" and key != "accuracy":
        return INCOMPARABLE  # the paper's softmax was applied twice
    return {1: BETTER, 0: "", -1: WORSE}[better(key, ours, paper)]


def _remarks(results: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    every = [result for found in results.values() for result in found]
    if not every:
        return []
    configs = [result["config"] for result in every]
    made = [result.get("trained", result) for result in every]  # its test may have come later, from another commit
    seeds = {network: len(found) for network, found in results.items()}

    def each(values: Iterable[Any]) -> str:
        return _listed(sorted(set(values)))

    seconds = {result["seconds"] for result in every}  # a set, because rows of the same training have the same seconds
    remarks = [
        f"ResNet-18 of width {each(c['width'] for c in configs)}, {each(c['epochs'] for c in configs)} epochs, "
        f"{each(c['precision'] for c in configs)}, seed{'s' * (max(seeds.values()) > 1)} "
        f"{each(r['seed'] for r in every)}; torch {each(r['versions']['torch'] for r in made)}, "
        f"{each(r['processor'] for r in made)}, {_counted({r['threads'] for r in made}, 'thread')} a run, "
        f"{sum(seconds) / 3600:.1f} hours of training in all, commit {each(short_commit(r['commit']) for r in made)}."
    ]
    if many := {c["devices"] * c["nodes"] for c in configs} - {1}:
        remarks.append(f"Trained by {each(many)} processes; BatchNorm normalises the examples of each one separately.")
    if max(seeds.values()) > 1:
        remarks.append("±: the standard deviation over seeds.")
        fewer = [f"{network} ({count})" for network, count in seeds.items() if count < max(seeds.values())]
        remarks += [f"With fewer seeds: {_listed(fewer)}."] * bool(fewer)
    missing = [network for network in NETWORKS if network not in results]
    remarks += [f"Not run: {_listed(missing)}."] * bool(missing)
    return remarks


def _aside(found: Sequence[dict[str, Any]]) -> str:
    planned = NETWORKS["vogn"].options["train_samples"]  # which no other network has
    draws = {result["config"]["options"].get("train_samples", planned) for result in found} - {planned}
    return f"{_counted(draws, 'draw')} a step" if draws else ""


def _counted(counts: set[int], thing: str) -> str:
    return f"{_listed(sorted(counts))} {thing}{'' if counts == {1} else 's'}"


def short_commit(commit: str | None) -> str:
    """The first seven digits, with a "+" if the source had uncommitted changes."""
    return "unknown" if commit is None else commit[:7] + "+" * commit.endswith("+")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)
