"""kernelseed continual."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelseed.cli.data_commands import DataDir
from kernelseed.cli.show import console, literal, narrow_table, print_json, say
from kernelseed.plots import require_kind
from kernelseed.system import require_new


def continual_command(
    benchmark: Annotated[str, typer.Argument(help="split-mnist or permuted-mnist.")],
    approaches: Annotated[
        str | None, typer.Option(help="Which, with commas, such as vcl,vcl-ksn,ewc; default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    results: Annotated[
        Path, typer.Option(help="The folder for results; what is there already is not run again.")
    ] = Path("runs/continual"),
    figure: Annotated[
        Path | None, typer.Option(help="Draw the results of all benchmarks in the folder into this file, svg or png.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Learn tasks one after another by every approach, and show what is kept of them.

    Stopped at any moment, the same command goes on with the run that it was at.
    """
    from kernelseed import continual

    names = None if approaches is None else [name.strip() for name in approaches.split(",")]
    if figure is not None:
        require_new(figure)
        require_kind(figure)
    try:
        found = continual.run_benchmark(
            benchmark, results, approaches=names, seeds=seeds, data_dir=data_dir, progress=not (quiet or json),
            tell=(lambda line: None) if quiet else (lambda line: say(f"[bold]{literal(line)}[/]")),
        )  # fmt: skip
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    if figure is not None:
        continual.write_curves(results, figure)
    if json:
        return print_json(found)
    table = narrow_table(continual.HEADING[:1], continual.HEADING[1:], continual.BENCHMARKS[benchmark].title)
    for line in continual.lines_of(benchmark, found):
        table.add_row(*map(literal, line.cells()))
    console.print(table)
    console.print("RS: parameters relative to the plain network. Published: Nguyen et al. (2018).")
    if figure is not None:
        console.print(f"Wrote [bold]{literal(figure)}[/]", soft_wrap=True)
