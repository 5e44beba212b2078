"""kernelseed demo and kernelseed train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelseed import training
from kernelseed.cli.data_commands import DataDir
from kernelseed.cli.options import TrustModel, own_model, takes_settings
from kernelseed.cli.run_commands import write_report
from kernelseed.cli.show import comparison, complain, console, free_name, literal, print_json, say
from kernelseed.models import agreed, is_path
from kernelseed.training import LOGGERS, RECIPES, Config, RunFolder, differences, overlay, read_settings

DEMO = ("baseline", "dropout", "bnn", "fksn", "ksn")
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def demo_command(
    out: Annotated[Path, typer.Option(help="The folder for the five runs and their report.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(min=1)] = 12,
    json: Json = False,
) -> None:
    """Five methods on scikit-learn's digits, their table and a report page, in about two minutes."""
    from kernelseed.training import train

    out = free_name(out)
    configs = [Config(data="digits", method=name, width=16, epochs=epochs) for name in DEMO]
    results, folders = [], []
    for number, config in enumerate(configs, 1):
        say(f"[bold]{number}/{len(DEMO)} {config.method}[/]")
        folders.append(out / config.method)
        results.append(train(config, folders[-1], progress=not json))
    page = write_report(folders, out / "report.html")
    if json:
        return print_json(results)
    console.print(comparison(results, f"digits, {epochs} epochs, ResNet-18 of width 16"))
    console.print("RS: parameters relative to the plain network. E: ten draws averaged; P: the posterior mean.")
    console.print(f"Report: [bold]{literal(page)}[/]", soft_wrap=True)


@takes_settings
def train_command(
    given: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="The run's folder; it must not exist, unless resumed.")] = None,
    recipe: Annotated[str, typer.Option(help=f"What settings start from: {', '.join(RECIPES)}.")] = RECIPES[0],
    config: Annotated[Path | None, typer.Option(help="Settings as JSON or YAML; options given here win.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print what would run, and exit.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its settings.")] = False,
    trust_model: TrustModel = False,
    logger: Annotated[str, typer.Option(help=f"Where curves go beside metrics.csv: {', '.join(LOGGERS)}.")] = "csv",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Train a network, evaluate it on the test set, and leave a run folder.

    A run that was stopped, however it was, goes on with --resume and ends with the same weights.
    """
    if out is None and (resume or not print_config):
        raise typer.BadParameter("a run needs a folder of its own.", param_hint="--out")
    if resume and recipe != RECIPES[0]:
        raise typer.BadParameter("a resumed run keeps its own settings: leave it out.", param_hint="--recipe")
    chosen = _chosen(given, recipe, config, RunFolder(out) if resume and out else None)
    if print_config:
        return print_json(chosen.as_json())
    assert out is not None
    own_model(given.get("model"), trust_model)
    only_by_file = is_path(chosen.model) and "model" not in given
    if only_by_file and not (resume and RunFolder(out).finished):  # whose result is all that is read
        agreed(chosen.model, trust_model, out if resume else config)
    from kernelseed.training import train

    try:
        result = train(chosen, out, resume=resume, data_dir=data_dir, logger=logger, progress=not (quiet or json))
    except KeyboardInterrupt:
        own = f" --model {chosen.model}" if is_path(chosen.model) else ""
        complain(f"stopped; it goes on with: kernelseed train --resume --out {literal(out)}{literal(own)}")
        raise typer.Exit(130) from None
    if not result:  # another rank reports
        return
    if json:
        return print_json(result)
    title = f"{result['config']['data']}, {result['epochs']} epochs, {result['seconds']:.0f} s"
    console.print(comparison([result], literal(title)))
    run = literal(out)
    console.print(f"Run: [bold]{run}[/]    next: kernelseed report {run} -o report.html", soft_wrap=True)


def _chosen(given: dict[str, Any], name: str, file: Path | None, resumed: RunFolder | None) -> Config:
    """The settings of the run that is resumed, or of the recipe; over them those of the file; over both the options."""
    read = {} if file is None else read_settings(file)
    method = given.get("method", read.get("method", Config().method))
    below = resumed.training_config().as_json() if resumed else training.recipe(name, method)
    if file is not None:
        if read.get("options"):  # which belong to a method, be it the default
            read.setdefault("method", Config().method)
        below = overlay(below, read)
        won = ", ".join(_won(*one) for one in differences(read, given).items())
        if won:
            say(f"the command line wins over {literal(file)}: {literal(won)}")
    return Config.from_json(overlay(below, given))


def _won(setting: str, values: tuple[Any, Any]) -> str:
    behind = ", which leaves its options behind" if setting == "method" else ""
    return f"--{setting.replace('_', '-')} {values[1]} over {values[0]}{behind}"
