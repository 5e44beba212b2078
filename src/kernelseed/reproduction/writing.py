"""A table as rich text, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from kernelseed.metrics import Metric
from kernelseed.reproduction.remarks import MARKS, OWN_DEFAULTS
from kernelseed.reproduction.tables import BETTER, INCOMPARABLE, PRINTED, WORSE, Cell, Line, Table

HEADING = ("Model", "δ", "DR", "Params", "RS", *(metric.heading for metric in PRINTED.values()))


@dataclass(frozen=True)
class Writing:
    """The notation of one text format for bold numbers, marks and the paper's number beside ours."""

    bold: tuple[str, str]
    paper: tuple[str, str]
    """Around the paper's number."""
    between: str
    """Between ours and the paper's."""
    marks: dict[str, str]
    plus_minus: str = "±"
    """Before the spread over seeds."""

    def cells(self, line: Line) -> list[str]:
        """The cells of a line, one per column."""
        row = line.row
        return [
            f"{row.model}, {line.aside}" if line.aside else row.model,
            "" if row.delta is None or row.is_own else f"{row.delta:.2f}",
            "" if row.dropout is None else f"{row.dropout:.2f}",
            self._pair(*(None if count is None else f"{count / 1e6:.1f}M" for count in line.parameters)),
            self._pair(*(None if size is None else f"{size:.2f}" for size in line.relative)),
            *(self._metric(metric, line.cells[key]) for key, metric in PRINTED.items()),
        ]

    def _metric(self, metric: Metric, cell: Cell) -> str:
        ours = None
        if cell.ours is not None:
            spread = "" if cell.spread is None else f"{self.plus_minus}{metric.show(cell.spread)}"
            ours = self._bold(metric.show(cell.ours), cell.best) + self.marks[cell.mark] + spread
        return self._pair(ours, self._bold(metric.show(cell.paper), cell.paper_best))

    def _bold(self, text: str, bold: bool) -> str:
        return text.join(self.bold) if bold else text

    def _pair(self, ours: str | None, paper: str | None) -> str:
        return f"{ours or ''}{self.between}{(paper or '').join(self.paper)}".lstrip(" ")


MARKDOWN = Writing(("**", "**"), ("(", ")"), " ", {mark: mark for mark in ("", BETTER, WORSE, INCOMPARABLE)})
# The numbers of a cell are below each other, so that a table fits into a terminal; a blank instead of a mark keeps the
# digits aligned.
RICH = Writing(("[bold]", "[/]"), ("[dim]", " [/]"), "\n", {**MARKDOWN.marks, "": " "}, "\n±")
LATEX = Writing(
    (r"\textbf{", "}"),
    (r"{\tiny(", ")}"),
    "\n",
    {"": "", BETTER: "$^{+}$", WORSE: "$^{-}$", INCOMPARABLE: r"$^{\dagger}$"},
    r"$\pm$",
)


def table_markdown(table: Table) -> str:
    """The setting, both tables as far as they were run, and the remarks."""
    parts = [table.setting, lines_markdown(table.lines)]
    parts += [OWN_DEFAULTS, lines_markdown(table.own_lines)] if any(line.seeds for line in table.own_lines) else []
    return "\n\n".join((*parts, " ".join(table.remarks)))


def lines_markdown(lines: list[Line]) -> str:
    """A table of those of the lines that were run."""
    run = [MARKDOWN.cells(line) for line in lines if line.seeds]
    rows = [[*HEADING], ["---", *["---:"] * (len(HEADING) - 1)], *run]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def notes_markdown(table: Table) -> str:
    """How to read a table, as a list."""
    return "\n".join(f"- {note}" for note in (MARKS, *table.notes))


def table_latex(table: Table) -> str:
    """A table that needs no package, and a list of notes. The paper's numbers are below ours, to fit the page."""

    def lines(shown: list[Line]) -> Iterator[str]:
        for _, block in groupby((line for line in shown if line.seeds), key=lambda line: line.block):
            for line in block:
                pairs = [cell.partition("\n") for cell in LATEX.cells(line)]
                yield f"{' & '.join(ours for ours, _, _ in pairs)} \\\\"
                yield f"{' & '.join(paper for _, _, paper in pairs)} \\\\"
            yield r"\hline"

    columns = len(HEADING)
    said = " ".join((table.setting, *table.remarks, MARKS))
    parts = [
        r"\begin{table}",
        r"\scriptsize\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
        r"\hline",
        rf"{' & '.join(map(_escaped, HEADING))} \\ \hline",
        *lines(table.lines),
        rf"\multicolumn{{{columns}}}{{p{{.95\linewidth}}}}{{{_escaped(OWN_DEFAULTS)}}} \\ \hline",
        *lines(table.own_lines),
        r"\end{tabular}",
        rf"\caption{{{table.title}. {_escaped(said)}}}",
        r"\end{table}",
        r"\begin{itemize}",
        *(rf"\item {_escaped(note)}" for note in table.notes),
        r"\end{itemize}",
    ]
    return "\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    symbols = {"%": r"\%", "_": r"\_", "&": r"\&", "^": r"\textasciicircum{}"}
    signs = {"δ": r"$\delta$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
    marks = {mark: written for mark, written in LATEX.marks.items() if mark}
    for plain, written in {**symbols, **signs, **marks, "±": LATEX.plus_minus}.items():
        text = text.replace(plain, written)
    return re.sub("`(.*?)`", lambda code: rf"\texttt{{{code[1].replace('-', '{-}')}}}", text)
