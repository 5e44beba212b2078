"""How the rows of a table become numbers: kept with a run, so that every later table is read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelseed.data.csv_file import Cells, read_csv, shown_names
from kernelseed.errors import DataError
from kernelseed.system import gigabytes, memory_limit

MOST_FEATURES = 1 << 14


@dataclass(frozen=True)
class Column:
    """A column of features: one of numbers, or of categories, each of which becomes a feature that is 0 or 1."""

    name: str
    categories: tuple[str, ...] | None = None

    @classmethod
    def of(cls, cells: Cells, path: Path) -> Column:
        """What a column of a file is."""
        if cells.is_number:
            return cls(cells.name)
        if len(cells.words) > max(10, len(cells) // 2):
            raise DataError(
                f"{path} has {len(cells.words)} different words in the {len(cells)} rows of column {cells.name!r}; "
                f"that is a name more than a category: leave it out (--ignore {cells.name})."
            )
        return cls(cells.name, tuple(sorted(cells.words)))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of what it becomes."""
        return (self.name,) if self.categories is None else tuple(f"{self.name}={word}" for word in self.categories)

    def encode(self, cells: Cells, path: Path) -> Tensor:
        """The rows' features (N, features)."""
        if self.categories is None:
            return torch.frombuffer(cells.numbers, dtype=torch.float64)[:, None]
        places = {word: place for place, word in enumerate(self.categories)}
        if unknown := [word for word in cells.words if word not in places]:
            raise DataError(
                f"{path} has {unknown[0][:60]!r} in column {self.name!r}, which was not there in training; known are "
                f"{shown_names(self.categories)}: take one of them, or leave the row out."
            )
        table = torch.tensor([places[word] for word in cells.words])
        return torch.nn.functional.one_hot(
            table[torch.frombuffer(cells.codes, dtype=torch.int64)], len(places)
        ).double()


@dataclass(frozen=True)
class Target:
    """The column that is predicted. If it has numbers, their mean and standard deviation in training."""

    name: str
    mean: float | None = None
    std: float | None = None

    @property
    def is_number(self) -> bool:
        """Whether it is regression."""
        return self.mean is not None


@dataclass(frozen=True)
class Table:
    """The columns of a table, by which it is read."""

    columns: tuple[Column, ...]
    target: Target

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature for column in self.columns for feature in column.features)

    def read(self, path: str | Path) -> Tensor:
        """The features of another file's rows (N, features), float64; columns that are not known are left out."""
        path = Path(path)
        return self.encode(read_csv(path, {column.name: column.categories is None for column in self.columns}), path)

    def encode(self, cells: Mapping[str, Cells], path: Path) -> Tensor:
        """The features of what was read."""
        rows, width = len(next(iter(cells.values()))), len(self.features)
        if width > MOST_FEATURES:
            raise DataError(f"{path} has {width:,} features; at most {MOST_FEATURES:,} are allowed: leave columns out.")
        if (size := 4 * 8 * rows * width) > memory_limit():
            raise DataError(
                f"{path} has {rows:,} rows of {width:,} features, which take {gigabytes(size)}, and there is memory "
                f"for {gigabytes(memory_limit())}: leave rows or columns out."
            )
        return torch.cat([column.encode(cells[column.name], path) for column in self.columns], 1)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        target: dict[str, Any] = {"name": self.target.name}
        if self.target.is_number:
            target |= {"mean": self.target.mean, "std": self.target.std}
        columns = [
            {"name": c.name} if c.categories is None else {"name": c.name, "categories": list(c.categories)}
            for c in self.columns
        ]
        return {"columns": columns, "target": target}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Table:
        """From what `as_json` gave."""
        columns = [Column(c["name"], tuple(c["categories"]) if "categories" in c else None) for c in stored["columns"]]
        target = stored["target"]
        return cls(tuple(columns), Target(target["name"], target.get("mean"), target.get("std")))
