"""Names of files, classes and runs, which somebody else may have chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def printable(text: Any, kept: str = " ") -> str:
    """The text with everything that would not be seen as it is, such as escape codes, written out.

    kept  characters to leave as they are

    >>> printable("caf\\udce9 \\x1b[31mred")
    'caf\\\\xe9 \\\\x1b[31mred'
    """
    return "".join(c if c.isprintable() or c in kept else _written_out(c) for c in str(text))


def cell(value: Any) -> Any:
    """A value for a table that a spreadsheet may open: no text in it is a formula, and numbers stay numbers.

    >>> cell("=1+1"), cell(-1.5)
    ("'=1+1", -1.5)
    """
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(FORMULA) else value)


@contextmanager
def utf8_path(path: Path) -> Iterator[str]:
    """A path to read a file by, for a library that takes no name that is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield str(path)


def _written_out(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # Python's way to keep a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
