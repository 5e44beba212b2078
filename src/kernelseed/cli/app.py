"""The command's frame: its subcommands, and what a user can put right as one line with exit code 2."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from typing import Annotated

import typer

from kernelseed import __version__
from kernelseed.cli import (
    continual_commands,
    data_commands,
    prune_command,
    reproduce_command,
    run_commands,
    train_commands,
)
from kernelseed.cli.show import complain, literal
from kernelseed.errors import KernelseedError
from kernelseed.system import printable

app = typer.Typer(
    name="kernelseed",
    help="Bayesian deep learning that is smaller than the network it replaces.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("demo")(train_commands.demo_command)
app.command("train")(train_commands.train_command)
app.command("reproduce")(reproduce_command.reproduce)
app.command("continual")(continual_commands.continual_command)
app.command("evaluate")(run_commands.evaluate_command)
app.command("predict")(run_commands.predict_command)
app.command("prune")(prune_command.prune)
app.command("report")(run_commands.report_command)
app.command("info")(run_commands.info_command)
app.add_typer(data_commands.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common_options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Bayesian deep learning that is smaller than the network it replaces."""
    context.ensure_object(dict)["debug"] = debug


def main() -> None:
    """Run the command. What a user can put right is one line on stderr; any other error shows its traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(message)}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has a δ
    state = {"debug": False}
    try:
        app(prog_name="kernelseed", obj=state)
    except KernelseedError as error:
        if state["debug"]:
            raise
        line = " ".join(str(error).split())
        complain(literal(line if len(line) < 1000 else f"{line[:700]} ... {line[-200:]}"))
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None or state["debug"]:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter tries again at its end
        complain(f"can't print the result: {error.strerror}; make room where the output goes, and try again.")
        sys.exit(2)
