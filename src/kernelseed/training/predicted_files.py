"""What a run predicts for files: for images or, if its data was a table, for the rows of one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelseed.core import batch_norms, predict
from kernelseed.data import Batches, Dataset, Split, Table, read_images
from kernelseed.decisions import Abstention, ConformalIntervals, ConformalSets, abstention, conformal
from kernelseed.errors import ArgumentError, ConfigError, DataError, StorageError
from kernelseed.models import Model
from kernelseed.training.config import Config
from kernelseed.training.inference import BATCH, require_validation, statistics_batches, ways
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.tasks import Task, stored_task

CONFIDENCE = 0.95
PIXELS_AT_ONCE = 1 << 24  # a batch of 256 x 256 images


def predict_files(
    run: str | Path,
    files: Sequence[str | Path] | str | Path,
    samples: int | None = None,
    risk: float | None = None,
    data_dir: str | Path | None = None,
    *,
    confidence: float = CONFIDENCE,
    coverage: float | None = None,
    model: Model | None = None,
    trust_model: bool = False,
    data: Dataset | None = None,
) -> dict[str, Any]:
    """Predict for image files or, if the run's data was a table, for the rows of one CSV file.

    Of classes it says label, confidence, entropy and mutual information. Of numbers it says mean and standard
    deviation, and the standard deviations of the two parts: aleatoric, which is noise, and epistemic, which more data
    would reduce.

    With `risk` and `confidence`, each is also marked to abstain from, or not, by `ks.abstention` on the run's
    validation split; with `coverage`, each has a set of classes, or the ends of an interval, by `ks.conformal` on the
    same. Both hold for predictions that are made as those of the validation split were, so `samples` is then 0 or the
    run's. Each draw gets its BatchNorm statistics from the run's training data, as in its test; where those are not at
    hand, a warning says so, or an error, if a threshold or a set depends on them. For `model`, `trust_model` and `data`
    see `evaluate`.
    """
    files = [files] if isinstance(files, str | Path) else files
    if not 0 < confidence < 1 or (risk is None and confidence != CONFIDENCE):
        raise ConfigError(
            f"confidence is {confidence} with risk {risk}; it is how sure the risk is kept to: 0 < confidence < 1, "
            "with a risk."
        )
    folder = RunFolder(run)
    config, described = folder.training_config(), folder.config()["data"]
    guaranteed = [name for name, given in (("risk", risk), ("coverage", coverage)) if given is not None]
    if guaranteed and samples not in (None, 0, config.samples):
        raise ConfigError(
            f"samples is {samples} with {guaranteed[0]}, whose guarantee is from the run's own predictions of its "
            f"validation split: leave samples out for {config.samples} draws, or take 0 for the mean."
        )
    config = config if samples is None else replace(config, samples=samples)
    task = stored_task(described, folder.path)
    task.require_classes("risk", risk)
    net = folder.network(model, trust_model)
    data = None if data is None else folder.data(data)
    promised = Promised.by(folder, config, risk, confidence, coverage)
    named, inputs = _read_files(described, files, folder.path)
    batch = max(1, min(BATCH, PIXELS_AT_ONCE // math.prod(described["image"][1:])))
    x = Batches(Split(inputs, torch.zeros(len(inputs), dtype=torch.int64)), described["mean"], described["std"], batch)
    statistics = _statistics(folder, config, data_dir, data, guaranteed) if batch_norms(net) else None
    p = predict(net, x, config.samples, update_bn=statistics, seed=config.seed, likelihood=task.likelihood)
    _require_outputs(p, task, folder.path)
    columns = {**named, **task.columns(p), **promised.columns(p, task)}
    rows = zip(*columns.values(), strict=True)
    return {**promised.told(), "predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


@dataclass(frozen=True)
class Promised:
    """What a run's validation split lets it promise of new predictions."""

    rule: Abstention | None
    regions: ConformalSets | ConformalIntervals | None
    coverage: float | None

    @classmethod
    def by(
        cls, folder: RunFolder, config: Config, risk: float | None, confidence: float, coverage: float | None
    ) -> Promised:
        """What is asked for."""
        rule = regions = None
        if risk is not None:
            rule = abstention(*_held_out(folder, config, "take a threshold from"), risk, confidence)
        if coverage is not None:
            regions = conformal(*_held_out(folder, config, "fit sets on"), coverage)
        return cls(rule, regions, coverage)

    def told(self) -> dict[str, Any]:
        """The promises, as JSON."""
        found: dict[str, Any] = {}
        if self.rule is not None:
            found = vars(self.rule) | {"threshold": self.rule.threshold if self.rule.answered else None}  # no infinity
        if self.coverage is not None:
            found["coverage"] = self.coverage
        return found

    def columns(self, prediction: Any, task: Task) -> dict[str, list[Any]]:
        """What they say of each example."""
        abstains = {} if self.rule is None else {"abstain": self.rule.abstains(prediction).tolist()}
        return abstains if self.regions is None else abstains | task.conformal_columns(self.regions(prediction))


def _require_outputs(prediction: Any, task: Task, where: Path) -> None:
    """An error if the network has another number of outputs than the run's classes or targets."""
    outputs = next(iter(vars(prediction).values())).shape[1]
    if outputs != task.num_outputs:
        raise StorageError(
            f"{where} names {task.num_outputs} classes or targets, and its network has {outputs}; take another copy of "
            "the run."
        )


def _read_files(
    described: Mapping[str, Any], files: Sequence[str | Path], where: Path
) -> tuple[dict[str, list[Any]], Tensor]:
    """What tells the examples apart, and the examples."""
    if "table" not in described:
        channels, *size = described["image"]
        pixels = read_images([Path(path) for path in files], size=tuple(size), channels=channels)
        return {"file": [str(path) for path in files]}, pixels
    if len(files) != 1:
        raise ArgumentError(
            f"{len(files)} files are given; a run of a table predicts the rows of one CSV file at a time."
        )
    table = Table.from_json(described["table"])
    if described["image"] != [len(table.features)]:
        raise StorageError(
            f"{where} has columns of {len(table.features)} features, and a network for {described['image']}; take "
            "another copy of the run."
        )
    rows = table.read(files[0])
    return {"row": list(range(1, len(rows) + 1))}, rows


def _held_out(folder: RunFolder, config: Config, purpose: str) -> tuple[Any, Tensor]:
    """The predictions for the validation split that the run kept, and its labels."""
    require_validation(folder, config, purpose)
    way = ways(config)[-1]
    if not folder.has_prediction("validation", way):
        raise StorageError(
            f"{folder.path} keeps no predictions of its validation split by the {way}; continue it with --resume if it "
            "is unfinished, else train it again."
        )
    return folder.prediction("validation", way)


def _statistics(
    folder: RunFolder, config: Config, data_dir: str | Path | None, data: Dataset | None, guaranteed: Sequence[str]
) -> Batches | None:
    """Training images for BatchNorm, if the run was tested with them and they are here."""
    if not config.update_bn:
        return None
    try:
        return statistics_batches(folder.data(None, data_dir) if data is None else data, config)
    except DataError as error:
        if guaranteed:
            raise DataError(
                f"{error} The guarantee of {guaranteed[0]} is for draws with BatchNorm statistics of their own, which "
                "are made of the run's training data."
            ) from error
        warnings.warn(f"no BatchNorm statistics for each draw: {error}", stacklevel=3)
        return None
