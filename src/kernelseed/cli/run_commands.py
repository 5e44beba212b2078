"""What to do with runs: kernelseed evaluate, predict, report and info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from kernelseed import report
from kernelseed.cli.data_commands import DataDir, Json
from kernelseed.cli.found_tables import ood_tables, shift_tables
from kernelseed.cli.options import ModelAgain, TrustModel, own_model
from kernelseed.cli.show import comparison, console, literal, megas, narrow_table, print_json, say
from kernelseed.errors import PathExistsError
from kernelseed.system import cell, require_new
from kernelseed.training import describe_run, evaluate, predict_files, write_csv

Run = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]


def evaluate_command(
    run: Run,
    samples: Annotated[int | None, typer.Option(help="Draws to average; 0: the mean. Default: the run's.")] = None,
    update_bn: Annotated[
        int | None,
        typer.Option(help="Training images for each draw's BatchNorm; 0: running statistics. Default: the run's."),
    ] = None,
    temperature: Annotated[bool, typer.Option(help="Scale by a temperature fitted on the validation split.")] = False,
    ood: Annotated[
        str | None, typer.Option(help="Data sets to tell from the test set, with commas between: mnist,kmnist.")
    ] = None,
    ood_fit: Annotated[
        str, typer.Option(help="Their images of another size or channel count: resize, pad or refuse.")
    ] = "resize",
    shift: Annotated[
        str | None,
        typer.Option(help="Damage the test images: all, or names with commas between, such as blur,rotation."),
    ] = None,
    shift_images: Annotated[int | None, typer.Option(help="So many test images for --shift; default: all.")] = None,
    model: ModelAgain = None,
    trust_model: TrustModel = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Test a run again: with other draws, other BatchNorm statistics, a temperature, on damaged or on other data.

    What --shift and --ood find is kept in the run's folder, and `kernelseed report` shows it.
    """
    found = evaluate(
        run, samples, update_bn, temperature, ood, data_dir,
        shift=shift, shift_images=shift_images, ood_fit=ood_fit, **own_model(model, trust_model),
    )  # fmt: skip
    if json:
        return print_json(found)
    console.print(comparison([found], literal(f"{found['config']['data']}: {run}")))
    for table in (*shift_tables(found), *ood_tables(found)):
        console.print(table)


def predict_command(
    run: Run,
    files: Annotated[
        list[Path], typer.Argument(help="Image files, or one CSV file for a run of a table.", metavar="FILES...")
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A CSV file to write; default: print.")] = None,
    samples: Annotated[int | None, typer.Option(help="Draws to average; default: the run's.")] = None,
    risk: Annotated[
        float | None, typer.Option(help="Abstain so that at most this share of answers is wrong, such as 0.05.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure the risk is kept to, by a bound.")] = 0.95,
    coverage: Annotated[
        float | None, typer.Option(help="Add a set of classes that holds the right one this often, such as 0.9.")
    ] = None,
    model: ModelAgain = None,
    trust_model: TrustModel = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Predict for images or the rows of a table.

    Of classes it says label, confidence, entropy, mutual information, whether to abstain (--risk), sets (--coverage).
    Of numbers it says mean, standard deviation, and its aleatoric and epistemic part.

    The last two come from the run's validation split and hold for images that are like it. Each draw gets its BatchNorm
    statistics from the run's training data; where those are not at hand, a warning says so.
    """
    if out is not None:
        require_new(out)
    own = own_model(model, trust_model)
    found = predict_files(run, files, samples, risk, data_dir, confidence=confidence, coverage=coverage, **own)
    if json:
        return print_json(found)
    rows = found["predictions"]
    if "set" in rows[0]:
        rows = [{**row, "set": " | ".join(row["set"])} for row in rows]
    if out is None:
        table = Table(*(Column(heading, overflow="fold") for heading in rows[0]))
        for row in rows:
            table.add_row(*(literal(value) for value in row.values()))
        console.print(table)
    else:
        write_csv(out, [{key: cell(value) for key, value in row.items()} for row in rows])
    where = "" if out is None else f" in {literal(out)}"
    abstained = "" if risk is None else f"; abstained from {sum(row['abstain'] for row in rows)}{_why(found)}"
    if where or abstained:
        say(f"{len(rows)} predictions{where}{abstained}")


def _why(found: dict[str, Any]) -> str:
    """What the threshold rests on."""
    if found["threshold"] is None:
        return f": no threshold keeps to the risk for sure on {found['examples']:,} validation images"
    return (
        f" (threshold {found['threshold']:.4g}: {found['errors']} of {found['answered']} answers wrong in validation, "
        f"at most {found['bound']:.2%} of new ones with confidence {found['confidence']:g})"
    )


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a page that is there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """One self-contained HTML page that compares runs."""
    page = write_report(runs, out, data_dir, overwrite)
    console.print(f"Report: [bold]{literal(page)}[/]", soft_wrap=True)


def write_report(runs: list[Path], out: Path, data_dir: Path | None = None, overwrite: bool = False) -> Path:
    """The page for these runs; returns its path."""
    if not overwrite and out.exists():
        raise PathExistsError(f"{out} exists; choose another name, or replace it with --overwrite.")
    report.write(report.read(runs, data_dir), out, overwrite=overwrite)
    return out


def info_command(run: Run, model: ModelAgain = None, trust_model: TrustModel = False, json: Json = False) -> None:
    """What a run's network stores: seeds, germinators and parameters, against the plain network."""
    found = describe_run(run, **own_model(model, trust_model))
    if json:
        return print_json(found)
    if found["layers"]:
        pruned = any(layer["zeros"] for layer in found["layers"])
        zeros = ["Zeros"] if pruned else []
        table = narrow_table(["Weight", "Shape", "Kind"], ["Rank", "Params", "RS", *zeros, "mean σ"])
        for layer in found["layers"]:
            table.add_row(
                literal(layer["weight"]), "×".join(map(str, layer["shape"])), literal(layer["distribution"]),
                str(layer["rank"] or ""),
                f"{layer['parameters']:,}", f"{layer['parameters'] / layer['weights']:.2f}",
                *([f"{layer['zeros'] / layer['weights']:.1%}"] if pruned else []),
                "" if layer["sigma"] is None else f"{layer['sigma']:.4f}",
            )  # fmt: skip
        console.print(table)
    stored, counts = found["stored"], found["parameters"]
    plain = f", {stored / counts['plain']:.2f} of the plain network's {megas(counts['plain'])}" if counts else ""
    console.print(f"{literal(found['kind'])} network: {stored:,} parameters{plain}")
