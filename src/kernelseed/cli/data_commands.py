"""kernelseed data: what there is, and fetching it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kernelseed import data
from kernelseed.cli.show import console, literal, print_json
from kernelseed.errors import ArgumentError

app = typer.Typer(help="List data sets, or fetch one.", no_args_is_help=True)
DataDir = Annotated[
    Path | None, typer.Option(help="Where data sets are; default: $KERNELSEED_DATA, else the user's cache.")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command("list")
def list_command(data_dir: DataDir = None, json: Json = False) -> None:
    """The data sets that are known by name, and where they are found."""
    found = data.available(data_dir)
    if json:
        return print_json([vars(entry) for entry in found])
    table = Table("Name", "What it is", "Where")
    for entry in found:
        where = literal(entry.where) if entry.where else "[dim]not here: kernelseed data get[/]"
        table.add_row(entry.name, entry.description, where)
    table.add_row("folder:PATH", "images of your own, a folder a class", "")
    table.add_row("csv:PATH", "a table of your own; --target names the column to predict", "")
    console.print(table)


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="A name of `kernelseed data list`.")], data_dir: DataDir = None
) -> None:
    """Fetch a data set from its official address, with its checksum."""
    if name.startswith(("folder:", "csv:")):
        raise ArgumentError(f"{name} is data of your own, so there is nothing to fetch: train with --data {name}.")
    paths = data.fetch(name, data_dir)
    where = f"in {literal(paths[0].parent)}" if paths else "(comes with scikit-learn)"
    console.print(f"{literal(name)}: ready {where}")
