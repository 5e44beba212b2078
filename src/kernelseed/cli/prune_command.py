"""kernelseed prune: what can be removed from a run's network, and the network without it as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelseed import report
from kernelseed.cli.data_commands import DataDir, Json
from kernelseed.cli.options import ModelAgain, TrustModel, own_model
from kernelseed.cli.run_commands import Run
from kernelseed.cli.show import comparison, console, literal, narrow_table, print_json, say
from kernelseed.errors import ArgumentError
from kernelseed.system import write_text
from kernelseed.training import RunFolder, prune_run, pruning_curve

REMOVED = {"weights": "zeros", "channels": "of size"}


def prune(
    run: Run,
    sparsity: Annotated[float | None, typer.Option(help="The share of weights to set to zero, for --out.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="The share of the plain network's parameters to shrink to, for --out.")
    ] = None,
    by: Annotated[str, typer.Option(help="The order: snr, magnitude or random.")] = "snr",
    out: Annotated[Path | None, typer.Option(help="A folder for the smaller network, as a run.")] = None,
    curve: Annotated[bool, typer.Option(help="Measure the curve of all three orders, and keep it in the run.")] = True,
    picture: Annotated[Path | None, typer.Option(help="Where to draw the curve; default: RUN/pruning.svg.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Images of the curve: validation or test. Default: validation if there is one.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Draws that the curve averages. Default: the run's.")] = None,
    model: ModelAgain = None,
    trust_model: TrustModel = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Error and NLL against sparsity and size, in three orders; with --out, the network that you choose as a run."""
    if (out is None) != (sparsity is None and budget is None):
        raise ArgumentError(
            f"out is {out}, sparsity {sparsity} and budget {budget}; a smaller network is written with --out and "
            "--sparsity or --budget, a curve alone without all of them."
        )
    again = own_model(model, trust_model)
    found: dict[str, Any] = {}
    if out is not None:  # first: its settings may be wrong, and the curve takes longer
        found["result"] = prune_run(run, out, sparsity, budget, by, data_dir, **again)
    if curve:
        found["curve"] = pruning_curve(run, samples, split, data_dir=data_dir, **again)
        picture = RunFolder(run).path / "pruning.svg" if picture is None else picture
        write_text(picture, report.pruning_picture(found["curve"]))
    if json:
        return print_json(found)
    if curve:
        _show(found["curve"], run)
        say(f"drawn in {literal(picture)}")
    if out is not None:
        result = found["result"]
        console.print(comparison([result], literal(f"{result['config']['data']}: {out}")))


def _show(found: dict[str, Any], run: Path) -> None:
    ways = [way for way in ("ensemble", "mean") if way in found["points"][0]["metrics"]]
    numbers = [f"{what} {way}" for way in ways for what in ("error", "NLL")]
    table = narrow_table(
        ["Order", "Removed"], ["RS", *numbers], literal(f"{found['labels'][ways[0]]}, {found['split']} images: {run}")
    )
    for point in found["points"]:
        removed = f"{point['share']:.0%} {REMOVED[point['what']]}" if point["by"] else "nothing"
        cells = [
            text
            for way in ways
            for text in (f"{1 - point['metrics'][way]['accuracy']:.2%}", f"{point['metrics'][way]['nll']:.4f}")
        ]
        table.add_row(literal(point["by"]), literal(removed), f"{point['relative']:.3f}", *cells)
    console.print(table)
