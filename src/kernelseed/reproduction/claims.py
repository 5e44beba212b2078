"""The paper's conclusions from its tables, checked on ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelseed.metrics import METRICS
from kernelseed.reproduction.pairing import better, compare
from kernelseed.reproduction.tables import Line, Table

WORDS = {1: "yes", 0: "even", -1: "no"}


@dataclass(frozen=True)
class Claim:
    """One row of a table is better than another; `own`: in the block with this library's defaults."""

    text: str
    first: str
    second: str
    metrics: tuple[str, ...] = ("accuracy",)
    own: bool = False


CALIBRATION = ("nll", "ece", "ace")
"""Without MCE, which is the error of a single confidence bin, usually of a few images."""

CLAIMS: tuple[Claim, ...] = (
    Claim("KSN is more accurate than BNN", "KSN-E 1", "BNN-E"),
    Claim("... its mean too", "KSN-P 1", "BNN-P"),
    Claim("... with .15 of its parameters", "KSN-E 0.25", "BNN-E"),
    Claim("... and then its mean too", "KSN-P 0.25", "BNN-P"),
    Claim("KSN is better calibrated than BNN", "KSN-E 1", "BNN-E", CALIBRATION),
    Claim("... with .15 of its parameters", "KSN-E 0.25", "BNN-E", CALIBRATION),
    Claim("KSN is more accurate than VOGN", "KSN-E 1", "VOGN"),
    Claim("VOGN is more accurate than BNN", "VOGN", "BNN-E"),
    Claim("MC-Drop is more accurate than VOGN", "MC-Drop", "VOGN"),
    Claim(
        "Both tuned alike, KSN at .25 is better than BNN", "KSN-E 0.25", "BNN-E", ("accuracy", *CALIBRATION), own=True
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A claim about one metric: the paper's pair of numbers and ours, and whether each pair supports it.

    A pair is None, and its word empty, if the paper has no such rows or one of ours has not been run.
    """

    claim: Claim
    key: str
    paper: tuple[float, float] | None
    in_paper: str
    ours: tuple[float, float] | None
    here: str
    seeds: int
    """The number of our seeds that it stands on, and over which our numbers are averaged."""


def verdicts(shown: Table) -> list[Verdict]:
    """A verdict for each claim and metric."""
    return [verdict for claim in CLAIMS for verdict in _judged(claim, shown)]


def _judged(claim: Claim, shown: Table) -> Iterable[Verdict]:
    lines: dict[str, Line] = {line.row.name: line for line in (shown.own_lines if claim.own else shown.lines)}
    first, second = lines[claim.first], lines[claim.second]
    for key in claim.metrics:
        one, other = first.cells[key], second.cells[key]
        paper, in_paper, ours, here, seeds = None, "", None, "", 0
        if not claim.own:
            paper, in_paper = (one.paper, other.paper), WORDS[better(key, one.paper, other.paper)]
        if (found := compare(key, first.trained, second.trained)) is not None:
            ours, here, seeds = found.values, WORDS[found.better], found.seeds
        yield Verdict(claim, key, paper, in_paper, ours, here, seeds)


def claims_markdown(tables: Sequence[Table]) -> str:
    """Our verdicts on every table, side by side, and the paper's; claims whose rows were run nowhere are left out."""
    judged = [verdicts(shown) for shown in tables]
    heading = ["claim", "rows", "metric", *(shown.title for shown in tables)]
    rows = [heading, ["---"] * len(heading)]
    for same in zip(*judged, strict=True):
        claim, key = same[0].claim, same[0].key
        if any(verdict.ours for verdict in same):
            cells = [claim.text, f"{claim.first} / {claim.second}", METRICS[key].heading]
            rows.append([*cells, *map(_said, same)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _said(verdict: Verdict) -> str:
    parts = []
    if verdict.ours is not None:
        numbers = " / ".join(map(METRICS[verdict.key].show, verdict.ours))
        parts.append(f"**{verdict.here}**: {numbers} ({'1 seed' if verdict.seeds == 1 else f'{verdict.seeds} seeds'})")
    if verdict.paper is not None:
        parts.append(f"paper: {verdict.in_paper}")
    return "; ".join(parts)
