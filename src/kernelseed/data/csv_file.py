"""CSV files, read cell by cell: numbers or words in each column, and an error that names the cell that is neither."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelseed.errors import DataError
from kernelseed.system import gigabytes, memory_limit

SEPARATORS = (",", ";", "\t")
LARGEST = 1e15  # the square of a larger one leaves float32
MOST_WORDS = 1000
_BYTES_A_CELL = 8  # of a number, which takes two characters in the file or more
_SHOWN = 20


@dataclass
class Cells:
    """A column: its numbers; or its words, each once, and which of them a row has."""

    name: str
    is_number: bool
    numbers: array[float] = field(default_factory=lambda: array("d"))
    codes: array[int] = field(default_factory=lambda: array("q"))
    words: dict[str, int] = field(default_factory=dict)

    def append(self, cell: str, where: str) -> None:
        """One more row; `where` says for an error which."""
        cell = cell.strip()
        if not cell:
            raise DataError(
                f"{where} nothing in column {self.name!r}; missing values are not guessed: fill the cell in, remove "
                "its row, or leave the column out."
            )
        number = as_number(cell)
        if not self.is_number:
            self._refuse_numbers(cell, number, where)
            if len(self.words) == MOST_WORDS and cell not in self.words:
                raise DataError(
                    f"{where} more than {MOST_WORDS:,} different words by then in column {self.name!r}; leave it out, "
                    "if it is a name or a text."
                )
            self.codes.append(self.words.setdefault(cell, len(self.words)))
            return
        if number is None:
            raise DataError(
                f"{where} {cell[:60]!r} in column {self.name!r}, whose other cells are numbers; write a number, remove "
                "the row, or write words in all of them."
            )
        if not abs(number) <= LARGEST:  # NaN is not either
            raise DataError(
                f"{where} {cell[:60]!r} in column {self.name!r}; numbers must be finite and at most {LARGEST:g} in "
                "size: put it right, or take another unit."
            )
        self.numbers.append(number)

    def _refuse_numbers(self, cell: str, number: float | None, where: str) -> None:
        if number is not None:
            raise DataError(
                f"{where} the number {cell[:60]!r} in column {self.name!r}, whose first cell is a word; write numbers "
                "in all of them, or words."
            )
        if "," in cell and as_number(cell.replace(",", "")) is not None:
            raise DataError(f"{where} {cell[:60]!r} in column {self.name!r}; write numbers with a point, such as 3.14.")

    def __len__(self) -> int:
        return len(self.numbers if self.is_number else self.codes)


def as_number(cell: str) -> float | None:
    """The number that a cell holds, if it holds one.

    >>> as_number("1e-3"), as_number("2020_01"), as_number("red"), as_number("nan")
    (0.001, None, None, nan)
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def read_csv(path: Path, known: Mapping[str, bool] | None = None, ignore: Collection[str] = ()) -> dict[str, Cells]:
    """The columns of a file by name: all but those to ignore, or those that are known, of numbers (True) or of words.

    The first row has the names. Cells are separated by what its names are separated by: commas, semicolons or tabs.
    Of a column that is not known, the first cell decides whether it has numbers.
    """
    _require_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _rows(file.readline(), file)
            names = next(rows, (0, []))[1]
            _check_names(path, names)
            wanted = _wanted(path, names, known, ignore)
            return _columns(path, names, wanted, known, rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error.reason}); save the table as CSV in UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV file ({error}); save the table as CSV.") from None
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); give a CSV file that can be.") from None


def _columns(
    path: Path,
    names: list[str],
    wanted: list[str],
    known: Mapping[str, bool] | None,
    rows: Iterator[tuple[int, list[str]]],
) -> dict[str, Cells]:
    columns: list[tuple[int, Cells]] = []
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(f"{path} has {len(row)} cells in row {number}, and {len(names)} columns: make them equal.")
        if not columns:
            kinds = known or {
                name: as_number(cell.strip() or "0") is not None for name, cell in zip(names, row, strict=True)
            }
            columns = [(names.index(name), Cells(name, kinds[name])) for name in wanted]
        for place, column in columns:
            column.append(row[place], f"{path} has in row {number}")
    if not columns:
        raise DataError(f"{path} has no rows under the names of its columns; give a table with some.")
    return {column.name: column for _, column in columns}


def _rows(heading: str, file: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, with the numbers that a spreadsheet gives them: the heading is row 1."""
    separator = max(SEPARATORS, key=re.sub('"[^"]*"', "", heading).count)  # not those of a quoted name
    for number, row in enumerate(csv.reader(_chained(heading, file), delimiter=separator, strict=True), 1):
        if row:
            yield number, row


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _require_file(path: Path) -> None:
    if not path.is_file():  # opening a pipe would wait for ever
        what = "is no regular file" if path.exists() else "is not there"
        raise DataError(f"{path} {what}; give the path of a CSV file.")
    if (size := path.stat().st_size * _BYTES_A_CELL) > memory_limit():
        raise DataError(
            f"{path} can take {gigabytes(size)} to read, and there is memory for {gigabytes(memory_limit())}; give "
            "fewer rows."
        )


def _check_names(path: Path, names: list[str]) -> None:
    names[:] = [name.strip() for name in names]
    if not names:
        raise DataError(f"{path} is empty; give a table whose first row has the names of its columns.")
    if all(as_number(name) is not None for name in names):
        raise DataError(f"{path} begins with a row of numbers; write the names of the columns above it.")
    if "" in names:
        raise DataError(
            f"{path} has no name for column {names.index('') + 1}; give it one, or leave out an index (pandas: "
            "to_csv(..., index=False))."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} has the column {twice[0][:60]!r} twice; give every column a name of its own.")


def _wanted(path: Path, names: list[str], known: Mapping[str, bool] | None, ignore: Collection[str]) -> list[str]:
    for name in (*(known or ()), *ignore):
        if name not in names:
            raise DataError(f"{path} has no column {name!r}; it has {shown_names(names)}: name one of them.")
    return list(known) if known is not None else [name for name in names if name not in ignore]


def shown_names(names: Collection[str]) -> str:
    """Names for an error: those of a file may be many, and long."""
    first = ", ".join(name[:60] for name in list(names)[:_SHOWN])
    return first if len(names) <= _SHOWN else f"{first} and {len(names) - _SHOWN} more"


def written(number: float) -> str:
    """A number as the name of a class.

    >>> written(3.0), written(0.5)
    ('3', '0.5')
    """
    return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)
