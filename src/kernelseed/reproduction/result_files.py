"""Result files: small enough to commit, and complete enough that no table needs new training.

NAME.json   the result of a run: its metrics, settings, versions and commit
NAME.npz    the labels of the test set, and the log-probabilities of each way of predicting, as float16
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kernelseed import training
from kernelseed.core import Classification
from kernelseed.errors import StorageError
from kernelseed.reproduction.pairing import TEST_IMAGES, Evidence
from kernelseed.system import whole_or_nothing, write_json

Result = dict[str, Any]
Predictions = Mapping[str, tuple[Classification, Tensor]]
"""The prediction and the labels, for each way of predicting."""
LABELS = "labels"


def write_result(path: Path, result: Result, predictions: Predictions) -> None:
    """Write both files. The log-probabilities come first, because the existence of `path` means that all is there."""
    arrays: dict[str, Any] = {way: _log_probs(prediction.probs) for way, (prediction, _) in predictions.items()}
    for _, labels in predictions.values():
        arrays[LABELS] = labels.numpy().astype(np.int16)
    with whole_or_nothing(path.with_suffix(".npz")) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, **arrays)
    write_json(path, result)


def read_result(path: Path) -> Result:
    """A result; "log_probs" names the file of its log-probabilities, if it is there."""
    result = training.read_result(path)
    beside = path.with_suffix(".npz")
    return {**result, "log_probs": str(beside)} if beside.exists() else result


def evidence(result: Result, way: str) -> Evidence | None:
    """What a result keeps of each test image; older ones keep only which they classified correctly, or nothing."""
    if "log_probs" in result:
        log_probs, labels = read_log_probs(Path(result["log_probs"]))
        return Evidence.from_log_probs(log_probs[way], labels)
    if way not in result.get("correct", {}):
        return None
    bits = int(result["correct"][way], 16)
    return Evidence(np.array([digit == "1" for digit in f"{bits:0{TEST_IMAGES}b}"]))


def read_log_probs(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The log-probabilities, (N, K), of each way of predicting, and the labels.

    They are rounded; `softmax` turns them into probabilities that sum to 1.
    """
    try:
        with np.load(path) as arrays:
            found = dict(arrays)
        return found, found.pop(LABELS)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} holds no log-probabilities ({error}); take another copy of it.") from None


def correct_bits(correct: np.ndarray) -> str:
    """One bit per image, 1 if it was classified correctly, as one hexadecimal number."""
    return f"{int(''.join('01'[right] for right in correct.tolist()), 2):x}"


def _log_probs(probs: Tensor) -> np.ndarray:
    """Round to float16. A class that rounding ties with the most probable one goes down by one step."""
    exact = probs.double().log().numpy()
    rounded = exact.astype(np.float16)
    tied = rounded == rounded.max(1, keepdims=True)
    tied[np.arange(len(exact)), exact.argmax(1)] = False
    return np.where(tied, np.nextafter(rounded, np.float16(-np.inf)), rounded)
