"""Tables of your own: a CSV file whose columns are features, but for one that is to be predicted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kernelseed.data.columns import Column, Table, Target
from kernelseed.data.csv_file import LARGEST, Cells, as_number, read_csv, shown_names, written
from kernelseed.data.dataset import Dataset, Split, feature_statistics, stratified_split
from kernelseed.errors import ArgumentError, DataError

CSV = "csv:"
TASKS = ("regression", "classification")
LEAST_ROWS = 4
_COARSEST = 1e4  # times its deviation; float32 has seven digits for both


@dataclass(frozen=True)
class TableOptions:
    """How a table is read: see `kernelseed.data.load`."""

    target: str | None = None
    task: str | None = None
    test: float | str = 0.2
    ignore: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise ArgumentError(f"task is {self.task!r}; allowed: {', '.join(TASKS)}; left out, the target decides.")
        share = as_number(self.test) if isinstance(self.test, str) else self.test
        if share is None:
            return
        if not 0 < share < 1:
            raise ArgumentError(
                f"test is {self.test}; it is the share of the rows that are for testing, 0 < test < 1, or the path of "
                "another CSV file."
            )
        object.__setattr__(self, "test", float(share))


def load_table(name: str, options: TableOptions, validation: float, seed: int) -> Dataset:
    """The data set of a file; what standardises it is taken from the rows that are trained on."""
    path = table_path(name)
    if options.target is None:
        raise ArgumentError(f"data is {name!r} without a target; name the column that is to be predicted: target.")
    if options.target in options.ignore:
        raise ArgumentError(f"ignore has {options.target!r}, which is the target: leave it out of one of them.")
    cells = read_csv(path, ignore=options.ignore)
    if options.target not in cells:
        names = shown_names(cells)
        raise DataError(f"{path} has no column {options.target!r} to be the target; it has {names}: name one of them.")
    answers = cells.pop(options.target)
    if not cells:
        raise DataError(f"{path} has the target {options.target!r} alone; give it columns to predict it from.")
    if len(answers) < LEAST_ROWS:
        raise DataError(f"{path} has {len(answers)} rows; at least {LEAST_ROWS} are needed: add some.")
    table = Table(tuple(Column.of(column, path) for column in cells.values()), Target(options.target))
    classes = None if _is_regression(answers, options.task, path) else _classes(answers, path)
    rows = Split(table.encode(cells, path), _targets(answers, classes, path))
    if isinstance(options.test, str):
        train, test = rows, _other_file(Path(options.test).expanduser(), table, answers.is_number, classes)
    else:
        train, test = stratified_split(rows, options.test, seed)
    data = Dataset(name, train, None, test, classes or (), (), (), table)
    return standardised(hold_out(data, validation, seed), path)


def hold_out(data: Dataset, share: float, seed: int) -> Dataset:
    """A data set with a share of its training data as its validation split."""
    if not share:
        return data
    train, held_out = stratified_split(data.train, share, seed)
    return replace(data, train=train, validation=held_out)


def standardised(data: Dataset, path: Path | str) -> Dataset:
    """A table with the constants of its training rows."""
    assert data.table is not None
    mean, std = feature_statistics(data.train.inputs)
    target = data.table.target
    if not data.class_names:
        (centre,), (scale,) = feature_statistics(data.train.targets.double())
        values = data.train.targets
        if values.min() == values.max():
            raise DataError(
                f"{path} has {values[0].item():g} in every training row of the target {target.name!r}; there is "
                "nothing to learn: name another target, or give more rows."
            )
        if scale < 1 / LARGEST:
            raise DataError(f"{path} has a target {target.name!r} of {centre:g} ± {scale:g}: take another unit.")
        if abs(centre) > _COARSEST * scale:
            raise DataError(
                f"{path} has a target {target.name!r} of {centre:g} ± {scale:g}; float32 can't tell such numbers "
                "apart: subtract a constant."
            )
        target = Target(target.name, centre, scale)
    return replace(data, mean=mean, std=std, table=replace(data.table, target=target))


def table_path(name: str) -> Path:
    """The path behind csv:."""
    path = name.removeprefix(CSV)
    if not path:
        raise DataError("csv: has no path; write it after the colon: csv:houses.csv.")
    return Path(path).expanduser()


def _is_regression(answers: Cells, task: str | None, path: Path) -> bool:
    """As the task says; if it says nothing, whether the target has numbers."""
    if task == "regression" and not answers.is_number:
        raise DataError(
            f"{path} has words in the target {answers.name!r}, such as {next(iter(answers.words))[:60]!r}, and "
            "regression needs numbers: take the task classification, or another target."
        )
    return answers.is_number if task is None else task == "regression"


def _classes(answers: Cells, path: Path) -> tuple[str, ...]:
    """The names of the classes, in order."""
    names = [written(n) for n in sorted(set(answers.numbers))] if answers.is_number else sorted(answers.words)
    if len(names) == 1:
        raise DataError(f"{path} has one class only, {names[0]!r}, in the target {answers.name!r}: give two or more.")
    if 2 * len(names) > len(answers):
        raise DataError(
            f"{path} has {len(names):,} different values in the {len(answers):,} rows of the target {answers.name!r}; "
            "that is too many for classes: take the task regression if they are numbers, or another target."
        )
    return tuple(names)


def _targets(answers: Cells, classes: tuple[str, ...] | None, path: Path) -> Tensor:
    """Numbers, or the places of the classes."""
    if classes is None:
        return torch.frombuffer(answers.numbers, dtype=torch.float64).float()[:, None]
    places = {name: place for place, name in enumerate(classes)}
    names = [written(n) for n in answers.numbers] if answers.is_number else list(answers.words)
    if unknown := [name for name in names if name not in places]:
        raise DataError(
            f"{path} has {unknown[0][:60]!r} in the target {answers.name!r}, which is no class in training; known are "
            f"{shown_names(classes)}: leave such rows out."
        )
    found = torch.tensor([places[name] for name in names])
    return found if answers.is_number else found[torch.frombuffer(answers.codes, dtype=torch.int64)]


def _other_file(path: Path, table: Table, has_numbers: bool, classes: tuple[str, ...] | None) -> Split:
    """The rows of a file like the one that is trained on."""
    known = {column.name: column.categories is None for column in table.columns}
    cells = read_csv(path, {**known, table.target.name: has_numbers})
    return Split(table.encode(cells, path), _targets(cells[table.target.name], classes, path))
