"""Read run folders into the records that the page shows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from kernelseed.data import Dataset
from kernelseed.errors import DataError
from kernelseed.models import GIVEN
from kernelseed.report.record import RunRecord
from kernelseed.training import RunFolder


def read(paths: Sequence[Path], data_dir: Path | None = None, data: Dataset | None = None) -> list[RunRecord]:
    """The records of several runs, each named by the end of its path that distinguishes it from the others.

    data   of the runs that were given it in Python: for the images, which a page does without otherwise
    """
    names = distinct_names([path.resolve() for path in paths])
    return [record for path, name in zip(paths, names, strict=True) for record in records(path, name, data_dir, data)]


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


def records(path: Path, name: str, data_dir: Path | None = None, data: Dataset | None = None) -> list[RunRecord]:
    """One record for each way that the run predicts: the average over draws, and the mean."""
    run = RunFolder(path)
    result, described, ood = run.result(), run.config(), run.evaluation().get("ood", {})
    rows = run.metrics()
    epochs = [row["epoch"] for row in rows]
    curves = {key: (epochs, [row[key] for row in rows]) for key in (rows[0] if rows else ()) if key != "epoch"}
    curves.pop("seconds", None)
    try:
        images = _test_images(run, data_dir, data).numpy()
    except DataError as error:
        warnings.warn(f"no images in the report: {error}", stacklevel=2)
        images = None
    found = []
    for way in [way for way in ("ensemble", "mean") if way in result["metrics"]]:
        prediction, labels = run.prediction("test", way)
        outside = run.prediction("ood", way)[0] if way in ood and run.has_prediction("ood", way) else None
        held_out = run.prediction("validation", way) if run.has_prediction("validation", way) else None
        found.append(
            RunRecord(
                name=name,
                method=result["config"]["method"],
                label=result["labels"][way],
                parameters=result["parameters"]["trained"],
                plain_parameters=result["parameters"]["plain"],
                metrics=result["metrics"][way],
                probs=prediction.probs.numpy(),
                labels=labels.numpy(),
                entropy=prediction.entropy.numpy(),
                mutual_information=prediction.mutual_information.numpy() if way == "ensemble" else None,
                curves=curves,
                config=result["config"],
                result=result,
                class_names=described["data"]["classes"],
                images=images,
                ood_name=None if outside is None else ood["name"],
                ood_entropy=None if outside is None else outside.entropy.numpy(),
                validation=None if held_out is None else (held_out[0].probs.numpy(), held_out[1].numpy()),
            )
        )
    return found


def _test_images(run: RunFolder, data_dir: Path | None, data: Dataset | None) -> Tensor:
    config = run.training_config()
    return data.test.images if data is not None and config.data == GIVEN else config.load_data(data_dir).test.images
