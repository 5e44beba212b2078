"""kernelseed reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import rich.table
import typer

from kernelseed.cli.data_commands import DataDir
from kernelseed.cli.show import console, literal, narrow_table, print_json, say
from kernelseed.errors import MissingPackageError
from kernelseed.reproduction import (
    DATA,
    HEADING,
    IMAGES,
    MARKS,
    NETWORKS,
    OWN_DEFAULTS,
    PRESETS,
    RICH,
    Line,
    Plan,
    Table,
    claims_markdown,
    collected,
    draw_figure,
    notes_markdown,
    paper_table,
    table_latex,
    table_markdown,
    write_panels,
)
from kernelseed.reproduction import reproduce as run_plan
from kernelseed.system import make_folder, write_text

TABLES = ("table.md", "table.tex")


def _show_presets(asked: bool) -> None:
    """The settings of every preset."""
    if not asked:
        return
    groups = {images: [data for data in DATA if IMAGES[data] == images] for images in IMAGES.values()}
    drawn = narrow_table(("preset", "for", *(", ".join(group) for group in groups.values())), ())
    for preset in PRESETS.values():
        words = [preset.words(group[0]) for group in groups.values()]
        drawn.add_row(preset.name, preset.about, *words, end_section=True)
    console.print(drawn)
    raise typer.Exit


def reproduce(
    data: Annotated[str, typer.Argument(help=", ".join(DATA))],
    preset: Annotated[
        str, typer.Option(help=f"The size of the networks and of the training: {', '.join(PRESETS)}.")
    ] = "paper",
    presets: Annotated[
        bool, typer.Option("--presets", is_eager=True, callback=_show_presets, help="Show them.")
    ] = False,
    rows: Annotated[
        str | None, typer.Option(help=f"Which networks, with commas; default: all. {', '.join(NETWORKS)}")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder for runs, tables and figures.")] = Path("runs/reproduce"),
    results: Annotated[
        Path | None, typer.Option(help="A folder for copies of the results; what is there already is not run again.")
    ] = None,
    kl: Annotated[str, typer.Option(help="The KL's weight in the paper's rows: as in train --kl.")] = "automatic",
    vogn_samples: Annotated[int, typer.Option(min=1, help="VOGN's draws a training step; ten are slow.")] = 10,
    augment: Annotated[bool, typer.Option("--augment", help="Random crops and flips in training.")] = False,
    update_bn: Annotated[
        int, typer.Option(help="Training images to re-estimate BatchNorm from for each draw, in the paper's rows too.")
    ] = 0,
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed, 16-mixed or 64-true.")] = "32-true",
    devices: int = 1,
    nodes: int = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, gpu, ...: as Lightning names them.")] = "auto",
    strategy: Annotated[str, typer.Option(help="auto or ddp: as Lightning names them.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """A table of the paper: train its networks, and show ours beside its numbers.

    Stopped at any moment, the same command goes on where it was; what is finished is not trained again.
    """
    machine = {
        "precision": precision, "devices": devices, "nodes": nodes, "accelerator": accelerator, "strategy": strategy
    }  # fmt: skip
    networks = None if rows is None else [name.strip() for name in rows.split(",") if name.strip()]
    plan = Plan(
        data, preset, networks, seeds,
        kl=kl, vogn_samples=vogn_samples, augment=augment, update_bn=update_bn, machine=machine,
    )  # fmt: skip
    try:
        found = run_plan(
            plan, out, results=results, data_dir=data_dir, progress=not (quiet or json),
            tell=(lambda line: None) if quiet else (lambda line: say(f"[bold]{literal(line)}[/]")),
            keep=lambda found: _write(paper_table(data, found, preset), out / plan.folder),
        )  # fmt: skip
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    if found:  # else another rank reports
        _show(plan, found, _figure(plan, out, results), out, json)


def _show(plan: Plan, found: dict[str, list[dict[str, Any]]], figures: list[Path], out: Path, json: bool) -> None:
    if json:
        return print_json(found)
    _print(paper_table(plan.data, found, plan.preset))
    for path in (*(out / plan.folder / name for name in TABLES), *figures):
        console.print(f"Wrote [bold]{literal(path)}[/]", soft_wrap=True)


def _write(shown: Table, folder: Path) -> None:
    """The table as it stands, in both of its files."""
    claims = ("## The paper's conclusions", claims_markdown([shown]))
    page = "\n\n".join((f"# {shown.title}", table_markdown(shown), *claims, notes_markdown(shown))) + "\n"
    make_folder(folder)
    for name, text in zip(TABLES, (page, table_latex(shown)), strict=True):
        write_text(folder / name, text)


def _print(shown: Table) -> None:
    for title, lines in ((shown.title, shown.lines), (OWN_DEFAULTS, shown.own_lines)):
        if run := [line for line in lines if line.seeds]:
            console.print(_rich_table(title, run))
    for note in (shown.setting, *shown.remarks, "The paper's number is below ours. " + MARKS, *shown.notes):
        console.print(f"· {literal(note)}", highlight=False)


def _rich_table(title: str, lines: list[Line]) -> rich.table.Table:
    drawn = narrow_table(HEADING[:1], HEADING[1:], title)
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        drawn.add_row(*RICH.cells(line), end_section=following is not None and following.block != line.block)
    return drawn


def _figure(plan: Plan, out: Path, results: Path | None) -> list[Path]:
    """All four data sets, as far as there are results."""
    found = {name: collected(f"{plan.variant}/{name}", out, results) for name in DATA}
    try:
        return write_panels(draw_figure(found, plan.preset), out / plan.variant / "figure-3")
    except MissingPackageError as error:
        say(f"no figure: {literal(error)}")
        return []
