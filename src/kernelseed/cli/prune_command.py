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
from kernelseed.system import require_new, write_text
from kernelseed.training import PruningCurve, RunFolder, prune_run

LEFT = {"weights": "zeros", "channels": "of size"}


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
    if not curve and (out is None or picture is not None):
        raise ArgumentError(
            "curve is off, so there is nothing to draw, and without --out nothing to do; leave --no-curve out."
        )
    if out is None and by != "snr":
        raise ArgumentError(f"by is {by!r} without --out; a curve has all orders, and --by is that of the new run.")
    if picture is not None:
        require_new(picture)
    again = own_model(model, trust_model)
    found: dict[str, Any] = {}
    # What can be wrong with either is found before anything is written; the curve takes longer.
    to_be = PruningCurve.of(run, samples, split, data_dir, **again) if curve else None
    if out is not None:
        found["result"] = prune_run(run, out, sparsity, budget, by, data_dir, **again)
    if to_be is not None:
        found["curve"] = to_be.measured()
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
        ["Order", "What is left"],
        ["RS", *numbers],
        literal(f"{found['labels'][ways[0]]}, {found['split']} images: {run}"),
    )
    for point in found["points"]:
        removed = f"{point['share']:.0%} {LEFT[point['what']]}" if point["by"] else "all"
        cells = [
            text
            for way in ways
            for text in (f"{1 - point['metrics'][way]['accuracy']:.2%}", f"{point['metrics'][way]['nll']:.4f}")
        ]
        table.add_row(literal(point["by"]), literal(removed), f"{point['relative']:.3f}", *cells)
    console.print(table)
