"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelseed.metrics import metrics_of
from kernelseed.system import printable, to_json

console = Console(emoji=False)  # a class may be called :cat:
stderr = Console(stderr=True, emoji=False)


def literal(value: Any) -> str:
    """Text that somebody else chose, to be printed as it is: none of it is markup or an escape code, none vanishes."""
    return escape(printable(value))


def complain(message: str) -> None:
    """One line on stderr."""
    stderr.print(f"[bold red]error:[/] {message}", soft_wrap=True, highlight=False)


def say(message: str) -> None:
    """One line for people, out of the way of --json."""
    stderr.print(message, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """Plain JSON on stdout."""
    print(to_json(value), end="")


def megas(count: float) -> str:
    """11,175,370 as 11.2M."""
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.1f}k" if count >= 1e3 else str(int(count))


def narrow_table(names: Sequence[str], numbers: Sequence[str], title: str | None = None) -> Table:
    """A table that fits into 80 columns; a name that is too long goes on in the next line instead of being cut."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def rows_of(result: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, float]]]:
    """(label, parameters, metrics) of a result, the average over draws before the mean."""
    ways = [way for way in ("ensemble", "mean") if way in result["metrics"]]
    return [(result["labels"][way], result["parameters"], result["metrics"][way]) for way in ways]


def comparison(results: Sequence[dict[str, Any]], title: str) -> Table:
    """Methods against metrics, the best value of each column in bold."""
    rows = [row for result in results for row in rows_of(result)]
    known = metrics_of(rows[0][2])
    best = {key: metric.best(found[key] for _, _, found in rows) for key, metric in known.items()}
    table = narrow_table(["Model"], ["Params", "RS", *(metric.heading for metric in known.values())], title)
    for label, parameters, found in rows:
        shown = {key: metric.show(found[key]) for key, metric in known.items()}
        cells = [f"[bold]{text}[/]" if text == best[key] else text for key, text in shown.items()]
        table.add_row(literal(label), megas(parameters["trained"]), f"{parameters['relative']:.2f}", *cells)
    return table


def free_name(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, ... that is not there."""
    if not folder.exists():
        return folder
    number = 2
    while (candidate := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate
