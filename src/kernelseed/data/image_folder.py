"""Pictures of your own: a folder with one folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .dataset import DataError, Split, require, stratified_split

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class _Listing:
    """The pictures of one folder of class folders, by name only: nothing has been opened yet."""

    folder: Path
    classes: tuple[str, ...]
    paths: list[Path]
    labels: list[int]


@dataclass(frozen=True)
class PictureOptions:
    """How pictures are read: see `kernelseed.data.load`."""

    size: int | tuple[int, int] | None = None
    channels: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1 (grey), 3 (colour) or None (decide), got {self.channels}")
        if self.shape is not None and min(self.shape) < 1:
            raise ValueError(f"size must be at least 1 pixel, got {self.size}")

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def read_folder(folder: Path, seed: int, options: PictureOptions) -> tuple[Split, Split, tuple[str, ...]]:
    """Train split, test split and class names."""
    if _has_splits(folder):
        train, test = _list(folder / "train"), _list(folder / "test")
        if train.classes != test.classes:
            unshared = ", ".join(sorted({*train.classes} ^ {*test.classes}))
            raise DataError(
                f"{train.folder} and {test.folder} have different classes: {unshared} in one of them only; "
                "give both the same class folders"
            )
        train_split, test_split = _read([train, test], options)
        return train_split, test_split, train.classes
    listing = _list(folder)
    (everything,) = _read([listing], options)
    for name, count in zip(listing.classes, everything.labels.bincount().tolist(), strict=True):
        if count < 2:
            raise DataError(f"{folder / name} has one picture; splitting train from test needs two or more")
    return *stratified_split(everything, _TEST_FRACTION, seed), listing.classes


def read_test_folder(folder: Path, seed: int, options: PictureOptions) -> Split:
    """The test split alone; a train folder is neither needed nor opened."""
    if not _has_splits(folder):
        return read_folder(folder, seed, options)[1]
    return _read([_list(folder / "test")], options)[0]


def read_pictures(
    paths: Sequence[str | Path], *, size: int | tuple[int, int] | None = None, channels: int | None = None
) -> torch.Tensor:
    """Single pictures as one uint8 tensor (N, C, H, W), resized and converted as asked."""
    options = PictureOptions(size, channels)
    pictures = []
    for path in map(Path, paths):
        try:
            pictures.append(_decode(path, options))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path} is not a readable picture ({error}); leave it out or replace it") from None
    shapes = {picture.shape for picture in pictures}
    if len(shapes) != 1:
        raise DataError(
            f"the pictures have {len(shapes)} different shapes; give at least one picture, size= and channels="
        )
    return torch.from_numpy(np.stack(pictures))


def _has_splits(folder: Path) -> bool:
    """Whether this is a folder of train and test; a class may be called "train" if it is not alone."""
    names = {path.name for path in _subfolders(folder)}
    return names >= {"train", "test"} or (bool(names) and names <= {"train", "test"})


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the path of a folder with one folder for each class")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _list(folder: Path) -> _Listing:
    class_folders = _subfolders(folder)
    pictures = [
        sorted(p for p in class_folder.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
        for class_folder in class_folders
    ]
    if not any(pictures):
        raise DataError(f"{folder} has no pictures ({', '.join(sorted(_SUFFIXES))}) in folders of classes")
    if len(class_folders) == 1:
        raise DataError(f"{folder} has one class only, {class_folders[0].name}; put two or more class folders there")
    _check_classes(folder, [path.name for path in class_folders], [len(paths) for paths in pictures])
    return _Listing(
        folder,
        tuple(path.name for path in class_folders),
        [path for paths in pictures for path in paths],
        [label for label, paths in enumerate(pictures) for _ in paths],
    )


def _check_classes(folder: Path, names: Sequence[str], counts: Sequence[int]) -> None:
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise DataError(f"{folder / name} has no readable pictures; add some or remove the folder")


def _read(listings: Sequence[_Listing], options: PictureOptions) -> list[Split]:
    """A split for each listing, all of one shape."""
    pictures: dict[Path, np.ndarray] = {}
    unreadable: list[Path] = []
    for path in (path for listing in listings for path in listing.paths):
        try:
            picture = _decode(path, options)
        except DataError:
            raise
        except Exception as error:  # on broken files, decoders raise nearly everything
            if not options.skip_unreadable:
                reason = " ".join(str(error).split())
                raise DataError(
                    f"{path} cannot be read as a picture ({reason}); remove it, or give skip_unreadable=True"
                ) from error
            unreadable.append(path)
            continue
        if pictures:
            first, known = next(iter(pictures.items()))
            if picture.shape[1:] != known.shape[1:]:
                raise DataError(
                    f"pictures differ in size: {first} is {_size(known)} and {path} is {_size(picture)} "
                    f"(height x width); give size, such as size={min(known.shape[1:])}"
                )
        pictures[path] = picture
    if unreadable:
        total = len(unreadable) + len(pictures)
        warnings.warn(
            f"skipped {len(unreadable)} unreadable of {total} pictures, the first is {unreadable[0]}",
            stacklevel=4,
        )
    channels = max((len(picture) for picture in pictures.values()), default=1)
    return [_stack(listing, pictures, channels) for listing in listings]


def _stack(listing: _Listing, pictures: dict[Path, np.ndarray], channels: int) -> Split:
    kept = [(pictures[p], label) for p, label in zip(listing.paths, listing.labels, strict=True) if p in pictures]
    labels = np.array([label for _, label in kept], np.int64)
    _check_classes(listing.folder, listing.classes, np.bincount(labels, minlength=len(listing.classes)).tolist())
    images = np.empty((len(kept), channels, *kept[0][0].shape[1:]), np.uint8)
    for target, (picture, _) in zip(images, kept, strict=True):
        target[:] = picture  # a grey picture among coloured ones fills all three channels
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _decode(path: Path, options: PictureOptions) -> np.ndarray:
    """Bytes of 1 or 3 channels x height x width."""
    image = require("PIL.Image", "reading pictures")
    with image.open(path) as opened:
        # Cameras store how they were held beside the pixels.
        picture = require("PIL.ImageOps", "reading pictures").exif_transpose(opened)
        if picture.mode.startswith("I;16"):  # Pillow would clip at 255 instead of scaling
            picture = image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
        if picture.mode in ("I", "F"):
            raise ValueError("its pixels have 32 bits, 8 or 16 are known")
        is_grey = picture.mode in ("1", "L", "LA", "La")
        picture = picture.convert("L" if options.channels == 1 or (options.channels is None and is_grey) else "RGB")
        if options.shape is not None:
            height, width = options.shape
            picture = picture.resize((width, height), image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]}x{picture.shape[2]}"
