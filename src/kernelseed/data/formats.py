"""The two official file formats: idx (MNIST and its relatives) and CIFAR's binary records."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from kernelseed.data.dataset import Split
from kernelseed.errors import DataError

_REMEDY = "delete it and load again."
_CIFAR_SHAPE = (3, 32, 32)
_RECORDS_AT_ONCE = 10_000
_MOST_VALUES = 1 << 30


def read_idx(paths: Sequence[Path], classes: int) -> Split:
    """A split from an idx file of images and one of labels, both gzipped."""
    images_path, labels_path = paths
    images, labels = _idx_array(images_path, dimensions=3), _idx_array(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} has {len(images)} images, and {labels_path} has {len(labels)} labels; there must be one "
            "for each: delete both and load again."
        )
    _check_labels(labels, classes, labels_path)
    return Split(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _idx_array(path: Path, dimensions: int) -> np.ndarray:
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions; then each dimension, big-endian.
    start = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") as file:
            head = file.read(start)
            if head[:4] != bytes([0, 0, 8, dimensions]) or len(head) < start:
                raise DataError(f"{path} is not an idx file of bytes in {dimensions} dimensions; {_REMEDY}")
            shape = tuple(int(extent) for extent in np.frombuffer(head, ">u4", dimensions, offset=4))
            promised = math.prod(shape)
            if promised > _MOST_VALUES:
                raise DataError(f"{path} promises {shape} values in its head; {_MOST_VALUES:,} are known: {_REMEDY}")
            # No more than promised, as a few bytes unzip to anything; writable, as torch.from_numpy wants it.
            content = bytearray(file.read(promised + 1))
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} can't be unzipped ({error}); {_REMEDY}") from error
    if len(content) != promised:
        count = "more" if len(content) > promised else len(content)
        raise DataError(f"{path} has {count} values; its head promises {shape}: {_REMEDY}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def cifar_record_bytes(label_bytes: int) -> int:
    """The size of one record: the labels, then red, green and blue."""
    return label_bytes + math.prod(_CIFAR_SHAPE)


def read_cifar(paths: Sequence[Path], classes: int, label_bytes: int) -> Split:
    """A split from CIFAR's binary files, one after another: the last label byte of a record is the class."""
    record = cifar_record_bytes(label_bytes)
    counts = []
    for path in paths:
        count, rest = divmod(path.stat().st_size, record)
        if rest or not count:
            raise DataError(f"{path} has {path.stat().st_size} bytes; they must be records of {record}: {_REMEDY}")
        counts.append(count)
    images = np.empty((sum(counts), *_CIFAR_SHAPE), np.uint8)
    labels = np.empty(sum(counts), np.int64)
    row = 0
    for path, count in zip(paths, counts, strict=True):
        # In pieces, so that loading needs little more memory than what is kept.
        for start in range(0, count, _RECORDS_AT_ONCE):
            here = min(_RECORDS_AT_ONCE, count - start)
            records = np.fromfile(path, np.uint8, here * record, offset=start * record).reshape(here, record)
            images[row : row + here] = records[:, label_bytes:].reshape(here, *_CIFAR_SHAPE)
            labels[row : row + here] = records[:, label_bytes - 1]
            row += here
        _check_labels(labels[row - count : row], classes, path)
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _check_labels(labels: np.ndarray, classes: int, path: Path) -> None:
    if labels.size and labels.max() >= classes:
        raise DataError(f"{path} has the label {labels.max()}; there are {classes} classes: {_REMEDY}")
