"""The command `kernelseed`."""

import sys


def main() -> None:
    """Run the command."""
    try:
        from kernelseed.cli import app
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kernelseed"):
            raise
        print(f'error: the command needs the package {error.name!r}: pip install "kernelseed[cli]".', file=sys.stderr)
        sys.exit(2)
    app.main()


__all__ = ["main"]
