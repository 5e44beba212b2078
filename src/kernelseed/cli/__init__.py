"""The command `kernelseed`."""

from kernelseed.cli.app import main

__all__ = ["main"]
