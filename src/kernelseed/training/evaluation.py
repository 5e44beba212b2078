"""Evaluation: one network on the test set, as an average over draws and as the posterior mean."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed import metrics
from kernelseed.core.files import StorageError, whole_or_nothing
from kernelseed.core.prediction import predict
from kernelseed.core.predictive import Classification
from kernelseed.data import Batches, Dataset, Split

BATCH = 256


def predict_split(
    net: nn.Module, split: Split, data: Dataset, *, samples: int, update_bn: int, seed: int
) -> Classification:
    """Predictions for a split, each draw with BatchNorm statistics from `update_bn` training images."""
    batches = Batches(split, data.mean, data.std, BATCH)
    return predict(net, batches, samples, update_bn=statistics_batches(data, update_bn, seed), seed=seed)


def statistics_batches(data: Dataset, count: int, seed: int) -> Batches | None:
    """Some training images for BatchNorm statistics; None for none."""
    if not count:
        return None
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:count]
    return Batches(data.train.select(chosen), data.mean, data.std, BATCH)


def summarise(prediction: Classification, labels: Tensor) -> dict[str, float]:
    """The paper's metrics and ours."""
    return metrics.summary(prediction.probs.float(), labels) | {
        "aurc": metrics.aurc(prediction.confidence.float(), prediction.label == labels),
        "entropy": prediction.entropy.mean().item(),
        "mutual_information": prediction.mutual_information.mean().item(),
    }


def summarise_shift(inside: Classification, outside: Classification) -> dict[str, float]:
    """How well entropy and mutual information tell foreign images from those of the test set."""
    return {
        "auroc_entropy": metrics.auroc(inside.entropy, outside.entropy),
        "auroc_mutual_information": metrics.auroc(inside.mutual_information, outside.mutual_information),
        "fpr_at_95_tpr": metrics.fpr_at_95_tpr(inside.entropy, outside.entropy),
        "entropy": outside.entropy.mean().item(),
        "mutual_information": outside.mutual_information.mean().item(),
    }


def like(images: Tensor, model_images: Tensor) -> Tensor:
    """Foreign images in the channels and size that a network was trained on."""
    channels, size = model_images.shape[1], model_images.shape[-2:]
    if images.shape[1] != channels:
        grey = images.float().mean(1, keepdim=True).round().to(torch.uint8)
        images = grey.expand(-1, channels, -1, -1)
    if images.shape[-2:] != size:
        images = F.interpolate(images.float(), size, mode="bilinear", antialias=True).round().clamp(0, 255)
    return images.to(torch.uint8)


def write_prediction(prediction: Classification, labels: Tensor, path: Path) -> None:
    """Predictions as safetensors, for the report and for anyone's own figures."""
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {f.name: getattr(prediction, f.name).contiguous() for f in fields(prediction)}
    with whole_or_nothing(path) as scratch:
        save_file({**tensors, "labels": labels}, str(scratch))


def read_prediction(path: Path) -> tuple[Classification, Tensor]:
    """What `write_prediction` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(str(path))
        return Classification(*(tensors[f.name] for f in fields(Classification))), tensors["labels"]
    except (SafetensorError, KeyError, OSError) as error:
        raise StorageError(f"{path} holds no predictions ({error}); make them again: kernelseed evaluate.") from None
