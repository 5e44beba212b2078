"""What a run predicts for a split of its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernelseed.core import generator_for, predict
from kernelseed.data import Batches, Dataset, Split, augment
from kernelseed.errors import ConfigError
from kernelseed.training.config import Config
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.tasks import summarise, task_of

BATCH = 256


def ways(config: Config) -> list[str]:
    """How a run predicts: by the posterior mean and, where the method is random, by the average over draws."""
    return ["mean", "ensemble"] if config.samples and config.build_method().random else ["mean"]


def averages(config: Config, way: str) -> bool:
    """Whether a prediction is an average: of draws, or of the networks of an ensemble."""
    return way == "ensemble" or config.build_method().several


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


def require_validation(folder: RunFolder, config: Config, purpose: str) -> None:
    """An error if the run held nothing out."""
    if not config.validation:
        raise ConfigError(
            f"validation is {config.validation} in {folder.path}, so there is nothing to {purpose}; train a run with "
            "--validation 0.1."
        )
