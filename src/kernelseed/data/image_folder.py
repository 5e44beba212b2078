"""Images of your own: a folder with one folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernelseed.data.dataset import Split, stratified_split
from kernelseed.data.images import SUFFIXES, ImageOptions, decode, require_memory
from kernelseed.errors import DataError

_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class _Listing:
    """The images of one folder of class folders, by name only: nothing has been opened yet."""

    folder: Path
    classes: tuple[str, ...]
    paths: list[Path]
    labels: list[int]


def read_folder(folder: Path, seed: int, options: ImageOptions) -> tuple[Split, Split, tuple[str, ...]]:
    """Train split, test split and class names."""
    if _has_splits(folder):
        train, test = _list(folder / "train"), _list(folder / "test")
        if train.classes != test.classes:
            unshared = ", ".join(sorted({*train.classes} ^ {*test.classes}))
            raise DataError(
                f"{train.folder} and {test.folder} have different classes; {unshared} in one of them only: give both "
                "the same class folders."
            )
        train_split, test_split = _read([train, test], options)
        return train_split, test_split, train.classes
    listing = _list(folder)
    (everything,) = _read([listing], options)
    for name, count in zip(listing.classes, everything.labels.bincount().tolist(), strict=True):
        if count < 2:
            raise DataError(f"{folder / name} has one image; splitting train from test takes two or more: add some.")
    return *stratified_split(everything, _TEST_FRACTION, seed), listing.classes


def read_test_folder(folder: Path, seed: int, options: ImageOptions) -> Split:
    """The test split alone; a train folder is neither needed nor opened."""
    if not _has_splits(folder):
        return read_folder(folder, seed, options)[1]
    return _read([_list(folder / "test")], options)[0]


def _has_splits(folder: Path) -> bool:
    """Whether this is a folder of train and test; a class may be called "train" if it is not alone."""
    names = {path.name for path in _subfolders(folder)}
    return names >= {"train", "test"} or (bool(names) and names <= {"train", "test"})


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; it must hold one folder for each class: give another path.")
    return [path for path in _visible(folder) if path.is_dir()]


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} can't be listed ({error.strerror}); make it a readable folder.") from error


def _list(folder: Path) -> _Listing:
    class_folders = _subfolders(folder)
    images = [
        [path for path in _visible(class_folder) if path.suffix.lower() in SUFFIXES] for class_folder in class_folders
    ]
    if not any(images):
        raise DataError(
            f"{folder} has no images; it must hold one folder for each class, with images in it: known are the "
            f"endings {', '.join(sorted(SUFFIXES))}."
        )
    if len(class_folders) == 1:
        raise DataError(f"{folder} has one class only, {class_folders[0].name}; there must be two or more: add some.")
    _check_classes(folder, [path.name for path in class_folders], [len(paths) for paths in images])
    return _Listing(
        folder,
        tuple(path.name for path in class_folders),
        [path for paths in images for path in paths],
        [label for label, paths in enumerate(images) for _ in paths],
    )


def _check_classes(folder: Path, names: Sequence[str], counts: Sequence[int]) -> None:
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise DataError(f"{folder / name} has no readable images; a class has some: add them or remove the folder.")


def _read(listings: Sequence[_Listing], options: ImageOptions) -> list[Split]:
    """A split for each listing, all of one shape."""
    images: dict[Path, np.ndarray] = {}
    unreadable: list[Path] = []
    paths = [path for listing in listings for path in listing.paths]
    for path in paths:
        try:
            image = decode(path, options)
        except DataError:
            if not options.skip_unreadable:
                raise
            unreadable.append(path)
            continue
        if images:
            first, known = next(iter(images.items()))
            if image.shape[1:] != known.shape[1:]:
                raise DataError(
                    f"images differ in size: {first} is {_size(known)} and {path} is {_size(image)} (height x width); "
                    f"all must be alike: give size, such as size={min(known.shape[1:])}."
                )
        images[path] = image
        require_memory(len(images), len(paths), image)
    if unreadable:
        total = len(unreadable) + len(images)
        warnings.warn(
            f"skipped {len(unreadable)} unreadable of {total} images, the first is {unreadable[0]}.", stacklevel=4
        )
    channels = max((len(image) for image in images.values()), default=1)
    return [_stack(listing, images, channels) for listing in listings]


def _stack(listing: _Listing, images: dict[Path, np.ndarray], channels: int) -> Split:
    kept = [(images[p], label) for p, label in zip(listing.paths, listing.labels, strict=True) if p in images]
    labels = np.array([label for _, label in kept], np.int64)
    _check_classes(listing.folder, listing.classes, np.bincount(labels, minlength=len(listing.classes)).tolist())
    stacked = np.empty((len(kept), channels, *kept[0][0].shape[1:]), np.uint8)
    for target, (image, _) in zip(stacked, kept, strict=True):
        target[:] = image  # a grey image among coloured ones fills all three channels
    return Split(torch.from_numpy(stacked), torch.from_numpy(labels))


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[2]}"
