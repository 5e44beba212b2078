"""Result files: small enough to be committed, and with all that a table may ask for: nothing is trained again for it.

NAME.json   a run's result: its metrics, its settings and where they came from
NAME.npz    the labels of its test set, and for each way of predicting the log-probabilities, as float16
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kernelseed import training
from kernelseed.core.files import whole_or_nothing, write_json
from kernelseed.core.predictive import Classification
from kernelseed.errors import StorageError

Result = dict[str, Any]
Predictions = Mapping[str, tuple[Classification, Tensor]]
"""For each way of predicting, what was predicted and what is true."""
LABELS = "labels"


def write_result(path: Path, result: Result, predictions: Predictions) -> None:
    """Both files; the log-probabilities come first, because `path` says that all is there."""
    arrays: dict[str, Any] = {way: _log_probs(prediction.probs) for way, (prediction, _) in predictions.items()}
    for _, labels in predictions.values():  # the same for each
        arrays[LABELS] = labels.numpy().astype(np.int16)
    with whole_or_nothing(path.with_suffix(".npz")) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, **arrays)
    write_json(path, result)


def read_result(path: Path) -> Result:
    """A result with "correct": which test images were right, as `correct_bits` has it, where the files tell."""
    result = training.read_result(path)
    beside = path.with_suffix(".npz")
    if "correct" in result or not beside.exists():  # written before log-probabilities were kept
        return result
    log_probs, labels = read_log_probs(beside)
    return {**result, "correct": {way: correct_bits(values.argmax(1) == labels) for way, values in log_probs.items()}}


def read_log_probs(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """For each way of predicting the log-probabilities, (N, K), and the labels.

    They are rounded: `softmax` makes them probabilities that sum to 1 again.
    """
    try:
        with np.load(path) as arrays:
            found = dict(arrays)
        return found, found.pop(LABELS)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} holds no log-probabilities ({error}); take another copy of it.") from None


def correct_bits(correct: np.ndarray) -> str:
    """A bit for each image, 1 where it was right, as one hexadecimal number."""
    return f"{int(''.join('01'[right] for right in correct.tolist()), 2):x}"


def _log_probs(probs: Tensor) -> np.ndarray:
    """As float16, in which the most probable class stays ahead: what rounding ties with it goes down by one step."""
    exact = probs.double().log().numpy()
    rounded = exact.astype(np.float16)
    tied = rounded == rounded.max(1, keepdims=True)
    tied[np.arange(len(exact)), exact.argmax(1)] = False
    return np.where(tied, np.nextafter(rounded, np.float16(-np.inf)), rounded)
