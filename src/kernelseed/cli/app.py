"""The command's frame: subcommands, and errors as one line with exit code 2."""

from __future__ import annotations

import sys
import warnings

import typer
from rich.markup import escape

from kernelseed import __version__
from kernelseed.cli import data_commands, reproduce_command, run_commands, train_commands
from kernelseed.cli.show import complain
from kernelseed.core.files import StorageError
from kernelseed.data import DataError
from kernelseed.training import ConfigError

EXPECTED = (ConfigError, DataError, StorageError, OSError, ImportError, ValueError)

app = typer.Typer(
    name="kernelseed",
    help="Bayesian deep learning that is smaller than the network it replaces.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(train_commands.demo)
app.command()(train_commands.train)
app.command()(reproduce_command.reproduce)
app.command()(run_commands.evaluate)
app.command()(run_commands.predict)
app.command()(run_commands.report)
app.command()(run_commands.info)
app.add_typer(data_commands.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Bayesian deep learning that is smaller than the network it replaces."""


def main() -> None:
    """Run the command; what a user can put right is one line on stderr and exit code 2."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app(prog_name="kernelseed")
    except EXPECTED as error:
        complain(escape(" ".join(str(error).split())))
        sys.exit(2)
