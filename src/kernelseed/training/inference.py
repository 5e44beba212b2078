"""What a run predicts: for a split of its data, and for files: images, or a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core import batch_norms, generator_for, predict
from kernelseed.data import Batches, Dataset, Split, Table, augment, read_images
from kernelseed.decisions import abstention, conformal
from kernelseed.errors import ArgumentError, ConfigError, DataError, StorageError
from kernelseed.models import Model
from kernelseed.training.config import Config
from kernelseed.training.given_in_python import prepared
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.tasks import stored_task, summarise, task_of

BATCH = 256
PIXELS_AT_ONCE = 1 << 24  # a batch of 256 x 256 images


def ways(config: Config) -> list[str]:
    """How a run predicts: by the posterior mean and, where the method is random, by the average over draws."""
    return ["mean", "ensemble"] if config.samples and config.build_method().random else ["mean"]


def predict_split(net: nn.Module, split: Split, data: Dataset, config: Config, way: str) -> Any:
    """Predictions for a split of `data`, with the samples, BatchNorm statistics and seed of a run."""
    batches = Batches(split, data.mean, data.std, BATCH)
    return predict(net, batches, likelihood=task_of(data).likelihood, **prediction_settings(data, config, way))


def prediction_settings(data: Dataset, config: Config, way: str) -> dict[str, Any]:
    """What `predict` is told: the samples, BatchNorm statistics and seed of a run."""
    samples = config.samples if way == "ensemble" else 0
    return {"samples": samples, "update_bn": statistics_batches(data, config), "seed": config.seed}


def test_and_keep(net: nn.Module, config: Config, data: Dataset, run: RunFolder) -> dict[str, dict[str, float]]:
    """The metrics of the test set; all predictions are kept, those of the validation split for choosing thresholds."""
    found = {}
    for way in ways(config):
        for part, split in (("validation", data.validation), ("test", data.test)):
            if split is not None:
                prediction = predict_split(net, split, data, config, way)
                run.write_prediction(part, way, prediction, split.targets)
        found[way] = summarise(prediction, data.test.targets)
    return found


def statistics_batches(data: Dataset, config: Config) -> Batches | None:
    """The training images for BatchNorm statistics, augmented as in training; None for none.

    A crop has a black border, to which the network's statistics are used: without it they would not fit its weights.
    """
    if not config.update_bn:
        return None
    order = torch.randperm(len(data.train), generator=generator_for("update_bn", config.seed))
    split, augmented = data.train.select(order[: config.update_bn]), augment if config.augment else None
    return Batches(split, data.mean, data.std, BATCH, seed=config.seed, augment=augmented)


def predict_files(
    run: str | Path,
    files: Sequence[str | Path],
    samples: int | None = None,
    risk: float | None = None,
    data_dir: str | Path | None = None,
    *,
    confidence: float = 0.95,
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
    data = None if data is None else prepared(config, data, described)
    found: dict[str, Any] = {}
    rule = regions = None
    if risk is not None:
        rule = abstention(*_held_out(folder, config, "take a threshold from"), risk, confidence)
        found = vars(rule) | {"threshold": rule.threshold if rule.answered else None}  # JSON has no infinity
    if coverage is not None:
        regions = conformal(*_held_out(folder, config, "fit sets on"), coverage)
        found["coverage"] = coverage
    named, inputs = _read_files(described, files, folder.path)
    batch = max(1, min(BATCH, PIXELS_AT_ONCE // math.prod(described["image"][1:])))
    x = Batches(Split(inputs, torch.zeros(len(inputs), dtype=torch.int64)), described["mean"], described["std"], batch)
    statistics = _statistics(config, data_dir, data, guaranteed) if batch_norms(net) else None
    p: Any = predict(net, x, config.samples, update_bn=statistics, seed=config.seed, likelihood=task.likelihood)
    outputs = next(iter(vars(p).values())).shape[1]
    if outputs != task.num_outputs:
        raise StorageError(
            f"{folder.path} names {task.num_outputs} classes or targets, and its network has {outputs}; take another "
            "copy of the run."
        )
    columns = {**named, **task.columns(p)}
    if rule is not None:
        columns["abstain"] = rule.abstains(p).tolist()
    if regions is not None:
        columns |= task.conformal_columns(regions(p))
    rows = zip(*columns.values(), strict=True)
    return {**found, "predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


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


def require_validation(folder: RunFolder, config: Config, purpose: str) -> None:
    """An error if the run held nothing out."""
    if not config.validation:
        raise ConfigError(
            f"validation is {config.validation} in {folder.path}, so there is nothing to {purpose}; train a run with "
            "--validation 0.1."
        )


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
    config: Config, data_dir: str | Path | None, data: Dataset | None, guaranteed: Sequence[str]
) -> Batches | None:
    """Training images for BatchNorm, if the run was tested with them and they are here."""
    if not config.update_bn:
        return None
    try:
        return statistics_batches(config.load_data(data_dir) if data is None else data, config)
    except DataError as error:
        if guaranteed:
            raise DataError(
                f"{error} The guarantee of {guaranteed[0]} is for draws with BatchNorm statistics of their own, which "
                "are made of the run's training data."
            ) from error
        warnings.warn(f"no BatchNorm statistics for each draw: {error}", stacklevel=3)
        return None
