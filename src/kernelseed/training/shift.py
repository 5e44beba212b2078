"""Accuracy and calibration under shift: the test images, damaged more and more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed import metrics
from kernelseed.core import check_count, generator_for, predict
from kernelseed.data import SEVERITIES, Batches, CorruptedBatches, Dataset, Split, corruption_names
from kernelseed.errors import ConfigError
from kernelseed.training.config import Config
from kernelseed.training.inference import BATCH, prediction_settings

MEASURED = ("accuracy", "nll", "ece")
Curves = dict[str, dict[str, list[float]]]


def shift_curves(
    net: nn.Module,
    split: Split,
    mean: Sequence[float],
    std: Sequence[float],
    names: str | Sequence[str] = "all",
    *,
    samples: int = 10,
    update_bn: Batches | None = None,
    seed: int = 0,
    scale: Callable[[Tensor], Tensor] = lambda probs: probs,
) -> Curves:
    """Accuracy, NLL and ECE on damaged images: curves[corruption][metric][severity], from 0, undamaged, to 5.

    split, mean, std           images and labels, and the constants that normalise them
    names                      of `data.CORRUPTIONS`, or "all"
    samples, update_bn, seed   as in `predict`; the draws are the same for all images
    scale                      what is done to probabilities before they are measured, such as a temperature's `apply`
    """
    batches = CorruptedBatches(split, mean, std, BATCH, names, seed=seed)
    probs = predict(net, batches, samples, update_bn=update_bn, seed=seed).probs
    undamaged, *damaged = [_measured(scale(part), split.labels) for part in probs.split(len(split))]
    curves: Curves = {}
    for (name, _), found in zip(batches.settings[1:], damaged, strict=True):
        curve = curves.setdefault(name, {key: [value] for key, value in undamaged.items()})
        for key, value in found.items():
            curve[key].append(value)
    return curves


def wanted_damages(names: str | Sequence[str] | None, count: int | None) -> tuple[str, ...]:
    """The corruptions that are asked for, none for None; an error for an unknown one, or a number of images below 1."""
    if count is not None:
        check_count("shift_images", count, 1, "leave it out for all")
        if names is None:
            raise ConfigError(f"shift_images is {count} without shift; name what is to be done to them: --shift all.")
    return () if names is None else corruption_names(names)


def under_shift(
    names: Sequence[str],
    count: int,
    net: nn.Module,
    scales: Mapping[str, Callable[[Tensor], Tensor]],
    data: Dataset,
    config: Config,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """The curves of so many of a run's test images, by "mean" and "ensemble".

    before   what was found of other corruptions in the same setting, which stays
    """
    split = _some_of(data.test, count, config.seed)
    curves = {
        way: before.get("curves", {}).get(way, {})
        | shift_curves(net, split, data.mean, data.std, names, scale=scale, **prediction_settings(data, config, way))
        for way, scale in scales.items()
    }
    return {"images": len(split), "severities": [0, *SEVERITIES], "curves": curves}


def average_curve(curves: Curves, metric: str) -> list[float]:
    """The mean over corruptions, at each severity from 0."""
    return torch.tensor([curve[metric] for curve in curves.values()], dtype=torch.float64).mean(0).tolist()


def _some_of(split: Split, count: int, seed: int) -> Split:
    """So many examples of a split, chosen by the seed."""
    if count >= len(split):
        return split
    order = torch.randperm(len(split), generator=generator_for("shift", seed))
    return split.select(order[:count].sort().values)


def _measured(probs: Tensor, labels: Tensor) -> dict[str, float]:
    found = metrics.summary(probs.float(), labels)
    return {key: found[key] for key in MEASURED}
