"""Data sets by name."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from kernelseed.data.catalogue import KNOWN, read_digits
from kernelseed.data.dataset import Dataset, Split, channel_statistics, stratified_split
from kernelseed.data.downloads import Source, data_folder, provide
from kernelseed.data.image_folder import read_folder, read_test_folder
from kernelseed.data.images import ImageOptions
from kernelseed.data.table_file import CSV, TableOptions, load_table
from kernelseed.errors import ArgumentError, DataError

_DIGITS = "digits"
_FOLDER = "folder:"
_PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Available:
    """A data set that `load` knows by name; `where` it is found, or None if it must be fetched first."""

    name: str
    description: str
    where: str | None


def load(
    name: str,
    data_dir: _PathLike | None = None,
    *,
    validation: float = 0.0,
    seed: int = 0,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    skip_unreadable: bool = False,
    target: str | None = None,
    task: str | None = None,
    test: float | str = 0.2,
    ignore: Collection[str] = (),
    download: bool = True,
) -> Dataset:
    """Load a data set by name: one of `available()`, `folder:PATH` for images or `csv:PATH` for a table of your own.

    Files are looked for in `data_dir`, else in the folder that the environment's KERNELSEED_DATA names, else
    in the user's cache, and downloaded to there if they are missing. `validation` is the fraction of each
    class that is held out of train; `seed` decides which examples these are, never the test split of a known
    set.

    PATH holds the folders train and test, each with one folder for each class; or class folders alone, of
    which a fifth, chosen by `seed`, is for testing. For such images, `size` (a number for squares, or
    height and width) is what they are resized to, `channels` is 1 for grey or 3 for colour (None: 3 if any
    image has colour), and `skip_unreadable` counts broken files in a warning instead of raising DataError.

    The first row of a table has the names of its columns. `target` is the one to predict, by the `task` "regression"
    or "classification" (None: regression if it has numbers), from all others but those to `ignore`. Words in a column
    are categories, of which each becomes a feature of 0 or 1. `test` is the share of the rows, chosen by `seed`, that
    are for testing, or the path of another CSV file. Features and numbers to predict are standardised by the mean and
    standard deviation of the rows that are trained on.

    >>> load("digits", validation=0.2).class_names[:3]
    ('0', '1', '2')
    """
    if not 0 <= validation < 1:
        raise ArgumentError(f"validation is {validation}; it is a share of the training data: 0 <= validation < 1.")
    options = ImageOptions(size, channels, skip_unreadable)
    of_a_table = TableOptions(target, task, test, tuple(ignore))
    if name.startswith(CSV):
        _refuse_options(name, options)
        return load_table(name, of_a_table, validation, seed)
    if of_a_table != TableOptions():
        raise ArgumentError(f"target, task, test and ignore are for csv:PATH only; {name} does without them.")
    train, rest, class_names, constants = _read_images(name, data_folder(data_dir), seed, options, download)
    held_out = None
    if validation:
        train, held_out = stratified_split(train, validation, seed)
    mean, std = constants or channel_statistics(train.images)
    return Dataset(name, train, held_out, rest, class_names, mean, std)


Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""The published mean and standard deviation of each channel."""


def _read_images(
    name: str, root: Path, seed: int, options: ImageOptions, download: bool
) -> tuple[Split, Split, tuple[str, ...], Constants | None]:
    """What is for training and for testing, the names of the classes, and the constants of a known set."""
    if name.startswith(_FOLDER):
        return *read_folder(_folder_path(name), seed, options), None
    _refuse_options(name, options)
    if name == _DIGITS:
        return *read_digits(), tuple("0123456789"), None
    _check_known(name)
    known = KNOWN[name]
    paths = provide(known.train + known.test, root, download)
    train, rest = known.read(paths[: len(known.train)]), known.read(paths[len(known.train) :])
    return train, rest, known.class_names, (known.mean, known.std)


def absolute_name(name: str) -> str:
    """The name with the whole path of a folder or table of your own, which is the same from everywhere."""
    for kind in (_FOLDER, CSV):
        if name.startswith(kind) and name != kind:
            return f"{kind}{Path(name.removeprefix(kind)).expanduser().absolute()}"
    return name


def load_test(
    name: str,
    data_dir: _PathLike | None = None,
    *,
    seed: int = 0,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    skip_unreadable: bool = False,
    download: bool = True,
) -> Split:
    """The test split of `load`, without need of the train files: for out-of-distribution checks.

    In a folder with train and test, `channels=None` is decided by the test images alone.
    """
    options = ImageOptions(size, channels, skip_unreadable)
    if name.startswith(CSV):
        raise DataError(f"{name} is a table; only images can be loaded by their test split alone: name images.")
    if name.startswith(_FOLDER):
        return read_test_folder(_folder_path(name), seed, options)
    _refuse_options(name, options)
    if name == _DIGITS:
        return read_digits()[1]
    _check_known(name)
    return KNOWN[name].read(provide(KNOWN[name].test, data_folder(data_dir), download))


def fetch(name: str, data_dir: _PathLike | None = None) -> list[Path]:
    """Download what is missing of a data set, check all of it, and return its files.

    Digits, folders and tables have nothing to fetch.
    """
    if name == _DIGITS or name.startswith((_FOLDER, CSV)):
        return []
    _check_known(name)
    return provide(KNOWN[name].train + KNOWN[name].test, data_folder(data_dir))


def available(data_dir: _PathLike | None = None) -> list[Available]:
    """The data sets that `load` knows by name, and where they are found; nothing is opened or downloaded."""
    root = data_folder(data_dir)
    bundled = "scikit-learn" if importlib.util.find_spec("sklearn") else None
    digits = Available(_DIGITS, "handwritten digits, 8x8 grey, 1,797, needs no download", bundled)
    return [digits] + [
        Available(name, known.description, _where(root, known.train, known.test)) for name, known in KNOWN.items()
    ]


def _where(root: Path, train: tuple[Source, ...], test: tuple[Source, ...]) -> str | None:
    def complete(sources: tuple[Source, ...]) -> bool:
        return all(
            (root / source.path).exists() or (source.archive is not None and (root / source.archive.path).exists())
            for source in sources
        )

    if not complete(test):
        return None
    return str(root) if complete(train) else f"{root} (test only)"


def _check_known(name: str) -> None:
    if name in KNOWN:
        return
    names = [_DIGITS, *KNOWN]
    nearest = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    raise DataError(
        f"the data set {name!r} is unknown{hint}; known are {', '.join(names)}, folder:PATH for images "
        "of your own, and csv:PATH for a table."
    )


def _refuse_options(name: str, options: ImageOptions) -> None:
    if options != ImageOptions():
        raise ArgumentError(f"size, channels and skip_unreadable are for folder:PATH only; {name} does without them.")


def _folder_path(name: str) -> Path:
    path = name.removeprefix(_FOLDER)
    if not path:
        raise DataError("folder: has no path; write it after the colon: folder:images/flowers.")
    return Path(path).expanduser()
