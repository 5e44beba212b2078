"""kernelseed demo and kernelseed train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from kernelseed import methods
from kernelseed.cli.data_commands import DataDir
from kernelseed.cli.run_commands import write_report
from kernelseed.cli.show import comparison, complain, console, free_name, print_json, say
from kernelseed.core.files import read_json
from kernelseed.training import Config

DEMO: dict[str, dict[str, Any]] = {"baseline": {}, "dropout": {}, "bnn": {}, "fksn": {}, "ksn": {"delta": 0.25}}
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the five runs and their report.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(min=1)] = 12,
    json: Json = False,
) -> None:
    """Five methods on scikit-learn's digits, their table and a report page, in about two minutes."""
    from kernelseed.training import train as run_training

    out = free_name(out)
    results, folders = [], []
    for number, (method, options) in enumerate(DEMO.items(), 1):
        say(f"[bold]{number}/{len(DEMO)} {method}[/]")
        config = Config(data="digits", method=method, options=options, width=16, epochs=epochs)
        folders.append(out / method)
        results.append(run_training(config, folders[-1], progress=not json))
    page = write_report(folders, out / "report.html")
    if json:
        return print_json(results)
    console.print(comparison(results, f"digits, {epochs} epochs, ResNet-18 of width 16"))
    console.print("RS: parameters relative to the plain network. E: ten draws averaged; P: the posterior mean.")
    console.print(f"Report: [bold]{escape(str(page))}[/]", soft_wrap=True)


def train(
    out: Annotated[Path, typer.Option(help="The run's folder; it must not exist, unless resumed.")],
    data: Annotated[str, typer.Option(help="digits, mnist, ..., or folder:PATH.")] = "digits",
    method: Annotated[str, typer.Option(help=", ".join(methods.METHODS))] = "ksn",
    delta: Annotated[float | None, typer.Option(help="ksn, fksn: the share of channels that a seed keeps.")] = None,
    min_rank: Annotated[int | None, typer.Option(help="ksn, fksn: a floor under a seed's channels.")] = None,
    init: Annotated[str | None, typer.Option(help="ksn, fksn: model or glorot.")] = None,
    rho_offset: Annotated[float | None, typer.Option(help="ksn, bnn: where rho starts.")] = None,
    kl: Annotated[str | None, typer.Option(help="ksn, bnn: automatic, uniform, blundell or a number.")] = None,
    kl_warmup: Annotated[int | None, typer.Option(help="ksn, bnn: steps of linear rise.")] = None,
    prior: Annotated[str | None, typer.Option(help="ksn, bnn: paper, blundell or a number.")] = None,
    rate: Annotated[float | None, typer.Option(help="dropout: the share dropped.")] = None,
    members: Annotated[int | None, typer.Option(help="ensemble: how many networks.")] = None,
    train_samples: Annotated[int | None, typer.Option(help="vadam, vogn, ivon: draws a step.")] = None,
    prior_precision: Annotated[float | None, typer.Option(help="vadam, vogn, ivon.")] = None,
    init_std: Annotated[float | None, typer.Option(help="vadam, vogn, ivon: the noise at the start.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default: the method's own.")] = None,
    width: Annotated[int, typer.Option(help="Channels of the ResNet-18's first stage.")] = 64,
    stem: Annotated[str | None, typer.Option(help="imagenet or cifar; default: what suits the pictures.")] = None,
    epochs: int = 5,
    batch_size: int = 128,
    seed: int = 0,
    validation: Annotated[float, typer.Option(help="Share of the training data held out.")] = 0.0,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better val NLL.")] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Random crops and flips.")] = False,
    size: Annotated[int | None, typer.Option(help="Resize a folder's pictures to this many pixels.")] = None,
    channels: Annotated[int | None, typer.Option(help="Read a folder's pictures as grey (1) or colour (3).")] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out pictures that can't be read.")
    ] = False,
    clip: Annotated[float | None, typer.Option(help="Clip the gradient's norm.")] = None,
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed, 16-mixed or 64-true.")] = "32-true",
    samples: Annotated[int, typer.Option(help="Draws that a prediction averages.")] = 10,
    update_bn: Annotated[int, typer.Option(help="Training images for each draw's BatchNorm; 0: none.")] = 4096,
    devices: int = 1,
    nodes: int = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, gpu, ...: as Lightning names them.")] = "auto",
    strategy: Annotated[str, typer.Option(help="auto, ddp, fsdp, ...: as Lightning names them.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="A JSON config instead of all of these options.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Train a network, evaluate it on the test set, and leave a run folder.

    A run that was stopped, however it was, goes on with --resume and ends with the same weights.
    """
    if config is not None:
        chosen = Config.from_json(read_json(config))
    else:
        options = {
            "delta": delta, "min_rank": min_rank, "init": init, "rho_offset": rho_offset, "kl": kl,
            "kl_warmup": kl_warmup, "prior": prior, "rate": rate, "members": members, "train_samples": train_samples,
            "prior_precision": prior_precision, "init_std": init_std, "lr": lr,
        }  # fmt: skip
        chosen = Config(
            data=data, method=method, options={key: value for key, value in options.items() if value is not None},
            width=width, stem=stem, epochs=epochs, batch_size=batch_size, seed=seed, validation=validation,
            patience=patience, augment=augment, size=size, channels=channels, skip_unreadable=skip_unreadable,
            clip=clip, precision=precision, samples=samples, update_bn=update_bn, devices=devices, nodes=nodes,
            accelerator=accelerator, strategy=strategy,
        )  # fmt: skip
    from kernelseed.training import train as run_training

    try:
        result = run_training(
            chosen, out, resume=resume, data_dir=data_dir, tensorboard=tensorboard, progress=not (quiet or json)
        )
    except KeyboardInterrupt:
        complain(f"stopped; it goes on with: kernelseed train --resume --out {escape(str(out))}")
        raise typer.Exit(130) from None
    if not result:  # another rank reports
        return
    if json:
        return print_json(result)
    trained = result["config"]
    console.print(comparison([result], f"{trained['data']}, {result['epochs']} epochs, {result['seconds']:.0f} s"))
    name = escape(str(out))
    console.print(f"Run: [bold]{name}[/]    next: kernelseed report {name} -o report.html", soft_wrap=True)
