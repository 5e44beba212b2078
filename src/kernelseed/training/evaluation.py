"""Evaluation of a finished run: its metrics again, with a temperature, or against other data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed import metrics
from kernelseed.core import Classification
from kernelseed.data import Dataset, Split, load_test
from kernelseed.metrics import TemperatureScaling
from kernelseed.models import Model
from kernelseed.training.given import prepared
from kernelseed.training.inference import predict_split, require_validation, ways
from kernelseed.training.origin import provenance
from kernelseed.training.run_folder import RunFolder

SELECTIVE = (metrics.aurc, metrics.eaurc, metrics.augrc)


def evaluate(
    run: str | Path,
    samples: int | None = None,
    update_bn: int | None = None,
    temperature: bool = False,
    ood: str | None = None,
    data_dir: str | Path | None = None,
    *,
    model: Model | None = None,
    trust_model: bool = False,
    data: Dataset | None = None,
) -> dict[str, Any]:
    """Test a run again, and keep what was found in its folder; the run's own result stays.

    samples, update_bn   other than the run's, see `Config`
    temperature          scale by a temperature that is fitted on the validation split
    ood                  a data set, by name, to tell from the test set by its entropy
    model, trust_model   a model of your own again, or its name trusted: see `ks.load`
    data                 again, if the run's was given in Python
    """
    folder = RunFolder(run)
    result = folder.result()
    config = folder.training_config()
    config = replace(
        config,
        samples=config.samples if samples is None else samples,
        update_bn=config.update_bn if update_bn is None else update_bn,
    )
    if temperature:
        require_validation(folder, config, "fit a temperature on")
    net = folder.network(model, trust_model)
    data = config.load_data(data_dir) if data is None else prepared(config, data, folder.config()["data"])
    outside = _out_of_distribution(ood, data, data_dir) if ood else None
    found: dict[str, Any] = {
        "settings": {"samples": config.samples, "update_bn": config.update_bn, "seed": config.seed, "temperature": {}},
        "metrics": {},
        **{key: result[key] for key in ("labels", "parameters", "seed", "config")},
        "trained": folder.trained(),
        **provenance(),
    }
    for way in ways(config):
        inside = predict_split(net, data.test, data, config, way)
        probs = inside.probs
        if temperature and data.validation:
            held_out = predict_split(net, data.validation, data, config, way)
            scaling = TemperatureScaling.fit(held_out.probs, data.validation.labels)
            found["settings"]["temperature"][way] = scaling.temperature
            probs = scaling.apply(probs)
        found["metrics"][way] = summarise(inside, data.test.labels) | metrics.summary(probs, data.test.labels)
        if outside:
            prediction = predict_split(net, outside, data, config, way)
            found.setdefault("ood", {"name": ood})[way] = summarise_shift(inside, prediction)
            folder.write_prediction("ood", way, prediction, outside.labels)
    folder.write_evaluation(found)
    return found


def summarise(prediction: Classification, labels: Tensor) -> dict[str, float]:
    """The paper's metrics and ours."""
    return metrics.summary(prediction.probs.float(), labels) | {
        **{of.__name__: of(prediction.confidence.float(), prediction.label == labels) for of in SELECTIVE},
        "entropy": prediction.entropy.mean().item(),
        "mutual_information": prediction.mutual_information.mean().item(),
    }


def summarise_shift(inside: Classification, outside: Classification) -> dict[str, float]:
    """How well entropy and mutual information tell out-of-distribution images from those of the test set."""
    return {
        "auroc_entropy": metrics.auroc(inside.entropy, outside.entropy),
        "auroc_mutual_information": metrics.auroc(inside.mutual_information, outside.mutual_information),
        "fpr_at_95_tpr": metrics.fpr_at_95_tpr(inside.entropy, outside.entropy),
        "entropy": outside.entropy.mean().item(),
        "mutual_information": outside.mutual_information.mean().item(),
    }


def like(images: Tensor, model_images: Tensor) -> Tensor:
    """Images in the channels and size that a network was trained on."""
    channels, size = model_images.shape[1], model_images.shape[-2:]
    if images.shape[1] != channels:
        grey = images.float().mean(1, keepdim=True).round().to(torch.uint8)
        images = grey.expand(-1, channels, -1, -1)
    if images.shape[-2:] != size:
        images = F.interpolate(images.float(), size, mode="bilinear", antialias=True).round().clamp(0, 255)
    return images.to(torch.uint8)


def _out_of_distribution(name: str, data: Dataset, data_dir: str | Path | None) -> Split:
    """The test split of another data set, as the network takes it."""
    split = load_test(name, data_dir)
    return Split(like(split.images, data.test.images), split.labels)
