"""A run is a folder: its config, curves, checkpoints, network, result and predictions. None overwrites another.

Nothing else in the library knows the names of these files.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kernelseed.core import CONFIG, WEIGHTS, Classification, Regression, load
from kernelseed.data import Dataset
from kernelseed.errors import PathExistsError, StorageError
from kernelseed.models import Model
from kernelseed.system import (
    lock_folder,
    read_json,
    remove_abandoned,
    utf8_path,
    whole_folder,
    whole_or_nothing,
    write_json,
    write_text,
)
from kernelseed.training import origin
from kernelseed.training.config import Config
from kernelseed.training.given_in_python import prepared
from kernelseed.training.run_schemas import (
    EVALUATION_SCHEMA,
    FOUND_SCHEMAS,
    NUMBERS_SCHEMA,
    REGRESSION_RESULT_SCHEMA,
    RESULT_SCHEMA,
    RUN_SCHEMA,
    TABLE_SCHEMA,
)
from kernelseed.training.schema import Schema, require
from kernelseed.training.tasks import Prediction, require_same_data

RESULT, CURVES, EVALUATION, CHECKPOINTS = "result.json", "metrics.csv", "evaluation.json", "checkpoints"


class RunFolder:
    """The files of one run, by what they hold."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> RunFolder:
        """A new folder that holds its config from the first moment; one that is there already is an error."""
        run = cls(path)
        run._appear(lambda scratch: write_json(scratch / CONFIG, config))
        return run

    def branch(self, path: str | Path, config: Config) -> RunFolder:
        """A new folder with this run's training and another config to test it by: `train` resumes it at the test."""

        def copy(scratch: Path) -> None:
            write_json(scratch / CONFIG, {**self.config(), "training": config.as_json(), "trained": self.trained()})
            shutil.copy(self.path / CURVES, scratch)
            shutil.copytree(self.checkpoints, scratch / CHECKPOINTS)

        run = RunFolder(path)
        run._appear(copy)
        return run

    def derive(self, path: str | Path, config: dict[str, Any], fill: Callable[[RunFolder], None]) -> RunFolder:
        """A new run with this one's training and data and another network, which `fill` stores with its result."""

        def write(scratch: Path) -> None:
            write_json(scratch / CONFIG, {**self.config(), **config})
            if (self.path / CURVES).exists():
                shutil.copy(self.path / CURVES, scratch)
            fill(RunFolder(scratch))

        run = RunFolder(path)
        run._appear(write)
        return run

    def _appear(self, fill: Callable[[Path], None]) -> None:
        """Make the folder, all at once."""
        self.require_absent()
        try:
            with whole_folder(self.path) as scratch:
                fill(scratch)
        except StorageError:
            self.require_absent()  # another process may have been quicker
            raise

    def tidy(self) -> None:
        """Remove what killed processes left of the run's files."""
        for folder in (self.path, self.checkpoints):
            remove_abandoned(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains this run while the block runs; what killed processes left of its files is removed."""
        try:
            held = lock_folder(self.path.resolve())
        except BlockingIOError:
            raise StorageError(
                f"{self.path} is being trained by another process; wait for it, or stop it and resume then."
            ) from None
        except OSError as error:
            raise StorageError(f"can't open {self.path}: {error.strerror}; give the folder of a run.") from None
        try:
            self.tidy()
            yield
        finally:
            if held is not None:
                os.close(held)

    def require_absent(self) -> None:
        """An error if there is anything in the run's place, whatever it is."""
        if os.path.lexists(self.path):
            raise PathExistsError(
                f"{self.path} exists; choose another --out, or continue it with --resume if it is an unfinished run."
            )

    # The network and its training

    @property
    def weights(self) -> Path:
        """The trained network."""
        return self.path / WEIGHTS

    def network(self, model: Model | None = None, trust_model: bool = False) -> nn.Module:
        """The trained network, loaded; a model of your own is given again, or its name trusted."""
        if "training" in self.config() and not self.weights.exists():
            raise StorageError(f"{self.path} has no {WEIGHTS}: the run is not finished; continue it with --resume.")
        return load(self.path, model, trust_model=trust_model)

    def data(self, given: Dataset | None = None, data_dir: str | Path | None = None) -> Dataset:
        """Its data again: given, or named by its config. If it is not what it was, that is an error."""
        config = self.training_config()
        data = config.load_data(data_dir) if given is None else prepared(config, given)
        require_same_data(self.config()["data"], data, self.path)
        return data

    @property
    def checkpoints(self) -> Path:
        """Where training can go on from."""
        return self.path / CHECKPOINTS

    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return max(self._all_checkpoints(), default=None, key=_epoch)

    def keep_latest_checkpoint(self) -> None:
        """Remove the others, which a process that was killed at the wrong moment leaves behind."""
        latest = self.latest_checkpoint()
        for old in self._all_checkpoints():
            if old != latest:
                old.unlink(missing_ok=True)

    def _all_checkpoints(self) -> list[Path]:
        return list(self.checkpoints.glob("epoch-*.ckpt"))

    def config(self) -> dict[str, Any]:
        """The exact settings, and what the network and its data are."""
        path = self.path / CONFIG
        if not path.exists():
            missing = "is no folder" if self.path.exists() else "is not there"
            what = f"has no {CONFIG}" if self.path.is_dir() else missing
            raise StorageError(f"{self.path} {what}; give the folder of a run, as `kernelseed train` writes it.")
        found = read_json(path)
        return require(_run_schema(found), found, path) if "training" in found else found

    def write_network(self, described: dict[str, Any]) -> None:
        """What the network is, where the config could not know it at the start."""
        write_json(self.path / CONFIG, {**self.config(), "network": described})

    def training_config(self) -> Config:
        """The settings of the run."""
        config = self.config()
        if "training" not in config:
            raise StorageError(f"{self.path} holds a network but no run; give a folder that `kernelseed train` wrote.")
        return Config.from_json(config["training"])

    def write_metrics(self, rows: list[dict[str, float]]) -> None:
        """The curves, a row an epoch."""
        write_csv(self.path / CURVES, rows)

    def metrics(self) -> list[dict[str, float]]:
        """What `write_metrics` wrote."""
        path = self.path / CURVES
        if not path.exists():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            return [{"epoch": float(row["epoch"]), **{key: float(row[key]) for key in row}} for row in rows]
        except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path} is no table of numbers with a column epoch ({error}); take another copy of the run."
            ) from None

    # What was found

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return (self.path / RESULT).exists()

    def write_result(self, result: dict[str, Any]) -> None:
        """Metrics and where they came from."""
        write_json(self.path / RESULT, result)

    def result(self) -> dict[str, Any]:
        """What `write_result` wrote."""
        if not self.finished:
            self.config()  # or an error that it is no run at all
            raise StorageError(f"{self.path} has no {RESULT}: the run is not finished; continue it with --resume.")
        return read_result(self.path / RESULT)

    def trained(self) -> dict[str, Any]:
        """Where a finished run's training came from, which for a branch is not where its result did."""
        result = self.result()
        return result.get("trained") or {key: result[key] for key in origin.KEYS}

    def write_evaluation(self, found: dict[str, Any]) -> None:
        """What the last `evaluate` found."""
        write_json(self.path / EVALUATION, found)

    def evaluation(self) -> dict[str, Any]:
        """What `write_evaluation` wrote; empty if it never did."""
        path = self.path / EVALUATION
        return require(EVALUATION_SCHEMA, read_json(path), path) if path.exists() else {}

    def write_found(self, name: str, found: dict[str, Any]) -> None:
        """One of FOUND_SCHEMAS, in the place of what was found before."""
        path = self._found_file(name)
        write_json(path, require(FOUND_SCHEMAS[name], found, path))

    def found_before(self, name: str, setting: dict[str, Any]) -> dict[str, Any]:
        """What `write_found` wrote in the same setting, to be added to; of what it wrote in another one, a warning."""
        found = self.found().get(name, {})
        for key, now in setting.items() if found else ():
            if found.get(key) != now:
                warnings.warn(
                    f"{self._found_file(name)} was made with {key} {found.get(key)}, and now it is {now}: what was "
                    "found then is replaced.",
                    stacklevel=3,
                )
                return {}
        return found

    def forget_ood(self, *, predictions: bool) -> None:
        """Remove what says whose the predictions for data from elsewhere are and, if they are not kept, these too."""
        self._found_file("ood").unlink(missing_ok=True)
        for file in self.path.glob("ood-*.safetensors") if predictions else ():
            file.unlink(missing_ok=True)

    def found(self) -> dict[str, dict[str, Any]]:
        """What `write_found` wrote, by name."""
        paths = {name: path for name in FOUND_SCHEMAS if (path := self._found_file(name)).exists()}
        return {name: require(FOUND_SCHEMAS[name], read_json(path), path) for name, path in paths.items()}

    def _found_file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def write_prediction(self, part: str, way: str, prediction: Prediction, labels: Tensor) -> None:
        """Predictions for "test", "validation" or "ood-0" data, by the "mean" or the "ensemble"."""
        from safetensors.torch import save_file

        held = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
        tensors = {name: tensor.contiguous() for name, tensor in held.items() if tensor is not None}
        with whole_or_nothing(self._prediction_file(part, way)) as scratch:
            save_file({**tensors, "labels": labels}, str(scratch))

    def has_prediction(self, part: str, way: str) -> bool:
        """Whether `write_prediction` wrote it."""
        return self._prediction_file(part, way).exists()

    def prediction(self, part: str, way: str) -> tuple[Any, Tensor]:
        """What `write_prediction` wrote: the predictions, a Classification or a Regression, and the targets."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._prediction_file(part, way)
        try:
            with utf8_path(path) as name:
                tensors = load_file(name)
            labels = tensors["labels"]
            found: Prediction
            if "mean" in tensors:
                found = Regression(*(tensors[f.name] for f in fields(Regression)))
            else:
                found = Classification.from_parts(tensors)
        except (SafetensorError, KeyError, OSError) as error:
            raise StorageError(f"{path} holds no predictions ({error}); take another copy of the run.") from None
        first = next(iter(vars(found).values()))
        if first.ndim != 2 or {tuple(first.shape[:1])} != {tuple(t.shape[:1]) for t in tensors.values()}:
            raise StorageError(f"{path} holds predictions and labels that do not fit; take another copy of the run.")
        return found, labels

    def _prediction_file(self, part: str, way: str) -> Path:
        return self.path / f"{part}-{way}.safetensors"


def read_result(path: Path) -> dict[str, Any]:
    """A run's result, from wherever it was copied to."""
    found = read_json(path)
    return require(REGRESSION_RESULT_SCHEMA if found.get("task") == "regression" else RESULT_SCHEMA, found, path)


def _run_schema(config: dict[str, Any]) -> Schema:
    """Of the config of a run, whose data may be images or a table, of classes or of numbers."""
    data = config.get("data")
    if not isinstance(data, dict) or "table" not in data:
        return RUN_SCHEMA
    if "classes" in data:
        return {**RUN_SCHEMA, "data": {**RUN_SCHEMA["data"], "table": TABLE_SCHEMA}}
    images = {key: kind for key, kind in RUN_SCHEMA["data"].items() if key != "classes"}
    return {**RUN_SCHEMA, "data": {**images, "table": NUMBERS_SCHEMA}}


def _epoch(checkpoint: Path) -> tuple[int, str]:
    return len(checkpoint.name), checkpoint.name  # which holds the epoch, in four digits or more


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows with the same keys, as a table with a heading."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, table.getvalue())
