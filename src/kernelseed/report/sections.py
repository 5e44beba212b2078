"""The frame of a section: what it holds, as values, which `page.html` shows. Each is made in a file of its own, by

    def section(shown: Sequence[Shown]) -> Section | None:      # None if no run holds what it shows
        told = [one for one in shown if "shift" in one.run.found]
        ...
        return Section("shift", "Shift", "What does it do to damaged images?", [Words(...), Figures([...])])

`page.SECTIONS` lists these functions, in the order of the page. What a run holds is in `RunRecord.found`, by the names
of `FOUND_SCHEMAS` in `training.run_schemas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from markupsafe import Markup

from kernelseed.metrics import Metric
from kernelseed.report.svg import Look, chip
from kernelseed.report.table_cells import Cell, marked


@dataclass(frozen=True)
class Shown:
    """A run with its name and look, which are the same in every figure."""

    run: Any  # a RunRecord or a RegressionRecord, which a page is of one kind of
    name: str
    look: Look

    @property
    def chip(self) -> Markup:
        """The run's marker, for use in a line of text."""
        return chip(self.look)


@dataclass(frozen=True)
class Panel:
    """One figure of a section, with the run that it belongs to, or a title."""

    svg: Markup
    of: Shown | None = None
    note: str = ""
    title: str = ""


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    kind: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Figures:
    """Figures beside each other: a few large ones, or many small ones with captions."""

    kind: ClassVar[str] = "figures"
    panels: Sequence[Panel]
    small: bool = False


@dataclass(frozen=True)
class Key:
    """Which marker is which run, for figures that do not name them."""

    kind: ClassVar[str] = "key"
    runs: Sequence[Shown]


@dataclass(frozen=True)
class Table:
    """A row a run; the best of each column is marked. `None` and NaN are values that a run does not have."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[Metric]
    rows: Sequence[tuple[Shown, Sequence[float | None]]]

    @property
    def cells(self) -> list[tuple[Shown, tuple[Cell, ...]]]:
        """The rows, as the page shows them."""
        by_column = [marked(metric, [values[i] for _, values in self.rows]) for i, metric in enumerate(self.columns)]
        return list(zip([one for one, _ in self.rows], zip(*by_column, strict=True), strict=True))


Block = Words | Figures | Key | Table


@dataclass(frozen=True)
class Section:
    """A section of the page: where links lead to, its name there, its heading and what it holds."""

    anchor: str
    link: str
    title: str
    blocks: Sequence[Block]
