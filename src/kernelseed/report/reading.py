"""Read run folders into the records that the page shows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kernelseed.core import Classification, Regression
from kernelseed.data import Dataset
from kernelseed.errors import ArgumentError, DataError
from kernelseed.models import GIVEN
from kernelseed.report.record import Record, RegressionRecord, RunRecord
from kernelseed.training import RunFolder, averages


def read(paths: Sequence[str | Path], data_dir: Path | None = None, data: Dataset | None = None) -> list[Record]:
    """The records of several runs, each named by the end of its path that distinguishes it from the others.

    data   of the runs that were given it in Python: for the images, which a page does without otherwise
    """
    folders = [Path(path) for path in paths]
    if not folders:
        raise ArgumentError("paths is empty; a report compares runs: give the folder of one at least.")
    names = distinct_names([folder.resolve() for folder in folders])
    return [record for path, name in zip(folders, names, strict=True) for record in records(path, name, data_dir, data)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as make them distinct.

    >>> distinct_names([Path("runs/ksn/seed-0"), Path("runs/bnn/seed-0")])
    ['ksn/seed-0', 'bnn/seed-0']
    """
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def records(path: Path, name: str, data_dir: Path | None = None, data: Dataset | None = None) -> list[Record]:
    """One record for each way that the run predicts: the average over draws, and the mean."""
    run = RunFolder(path)
    result, described = run.result(), run.config()
    rows = run.metrics()
    epochs = [row["epoch"] for row in rows]
    curves = {key: (epochs, [row[key] for row in rows]) for key in (rows[0] if rows else ()) if key != "epoch"}
    curves.pop("seconds", None)
    images = None
    try:
        if "table" not in described["data"]:
            images = _test_images(run, data_dir, data).numpy()
    except DataError as error:
        warnings.warn(f"no images in the report: {error}", stacklevel=2)
    found: list[Record] = []
    for way in [way for way in ("ensemble", "mean") if way in result["metrics"]]:
        prediction, labels = run.prediction("test", way)
        common: dict[str, Any] = {
            "name": name,
            "method": result["config"]["method"],
            "label": result["labels"][way],
            "parameters": result["parameters"]["stored"],
            "plain_parameters": result["parameters"]["plain"],
            "metrics": result["metrics"][way],
            "curves": curves,
            "config": result["config"],
            "result": result,
        }
        if isinstance(prediction, Regression):
            found.append(_of_numbers(prediction, labels, described, common))
        else:
            found.append(_of_classes(run, way, prediction, labels, images, common))
    return found


def _of_numbers(
    prediction: Regression, targets: Tensor, described: dict[str, Any], common: dict[str, Any]
) -> RegressionRecord:
    return RegressionRecord(
        **common,
        target=described["data"]["table"]["target"]["name"],
        targets=_flat(targets),
        mean=_flat(prediction.mean),
        aleatoric=_flat(prediction.aleatoric.sqrt()),
        epistemic=_flat(prediction.epistemic.sqrt()),
    )


def _of_classes(
    run: RunFolder,
    way: str,
    prediction: Classification,
    labels: Tensor,
    images: np.ndarray | None,
    common: dict[str, Any],
) -> RunRecord:
    held_out = run.prediction("validation", way) if run.has_prediction("validation", way) else None
    kept = run.found()
    return RunRecord(
        **common,
        probs=prediction.probs.numpy(),
        labels=labels.numpy(),
        entropy=prediction.entropy.numpy(),
        mutual_information=prediction.mutual_information.numpy() if averages(run.training_config(), way) else None,
        class_names=run.config()["data"]["classes"],
        images=images,
        way=way,
        found=kept,
        ood_entropy={
            other["name"]: run.prediction(f"ood-{number}", way)[0].entropy.numpy()
            for number, other in enumerate(kept.get("ood", {}).get("sets", ()))
            if run.has_prediction(f"ood-{number}", way)
        },
        validation=None if held_out is None else (held_out[0].probs.numpy(), held_out[1].numpy()),
    )


def _flat(numbers: Tensor) -> np.ndarray:
    return numbers.double().flatten().numpy()


def _test_images(run: RunFolder, data_dir: Path | None, data: Dataset | None) -> Tensor:
    return run.data(data if run.training_config().data == GIVEN else None, data_dir).test.images
