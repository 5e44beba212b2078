"""What a run learns to say of its data, classes or numbers: its likelihood, its metrics, and the columns of `predict`.

Training, evaluation and prediction ask the task and do not look at the kind of the data themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelseed import metrics
from kernelseed.core import Classification, Likelihood, Regression, likelihoods
from kernelseed.data import Dataset, Target
from kernelseed.errors import ConfigError, DataError, StorageError

Prediction = Classification | Regression
SELECTIVE = (metrics.aurc, metrics.eaurc, metrics.augrc)


class Task(ABC):
    """What the network's outputs mean."""

    name: str
    num_outputs: int
    has_noise: bool
    """Whether the network says its noise too: see `models.WithNoise`."""
    wanted: str
    """What a model of your own returns for an example."""
    likelihood: Likelihood

    @abstractmethod
    def scores(self, prediction: Any, targets: Tensor) -> dict[str, Tensor]:
        """What is logged of validation data in training."""

    @abstractmethod
    def columns(self, prediction: Any) -> dict[str, list[Any]]:
        """What `predict` writes, a row an example."""

    @abstractmethod
    def conformal_columns(self, regions: Tensor) -> dict[str, list[Any]]:
        """What it writes of the sets or intervals of `ks.conformal`."""

    def require_classes(self, name: str, given: object) -> None:
        """An error if an argument that is for classification was given to another task."""
        if given is not None and given is not False and not isinstance(self, Classes):
            raise ConfigError(f"{name} is {given}, but the run's task is {self.name}, without classes: leave it out.")


@dataclass(frozen=True, eq=False)
class Classes(Task):
    """Classification."""

    names: Sequence[str]
    name = "classification"
    has_noise = False
    wanted = "logits, one for each class"
    likelihood = likelihoods.Categorical()

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """A logit for each class."""
        return len(self.names)

    def scores(self, prediction: Classification, targets: Tensor) -> dict[str, Tensor]:
        """NLL and accuracy."""
        probs = prediction.probs
        nll = -probs.gather(1, targets[:, None]).clamp_min(torch.finfo(probs.dtype).tiny).log().mean()
        return {"val_nll": nll, "val_accuracy": (probs.argmax(1) == targets).float().mean()}

    def columns(self, prediction: Classification) -> dict[str, list[Any]]:
        """Label, confidence, entropy and mutual information."""
        return {
            "label": [self.names[label] for label in prediction.label.tolist()],
            **{key: _rounded(getattr(prediction, key)) for key in ("confidence", "entropy", "mutual_information")},
        }

    def conformal_columns(self, regions: Tensor) -> dict[str, list[Any]]:
        """The classes of each set."""
        return {"set": [[self.names[i] for i in one.nonzero()[:, 0].tolist()] for one in regions]}


@dataclass(frozen=True, eq=False)
class Numbers(Task):
    """Regression. The network speaks of standardised numbers; all that is measured or written is in their own unit."""

    target: Target
    name = "regression"
    num_outputs = 1
    has_noise = True
    wanted = "the mean of the target"

    def __post_init__(self) -> None:
        mean, std = self.target.mean, self.target.std
        assert mean is not None
        assert std is not None
        object.__setattr__(self, "likelihood", likelihoods.Gaussian("output", mean=mean, std=std))

    def scores(self, prediction: Regression, targets: Tensor) -> dict[str, Tensor]:
        """NLL and mean absolute error, which, unlike a root, can be averaged over batches."""
        errors = targets - prediction.mean
        return {"val_nll": metrics.nll_of_each(errors, prediction.std).mean(), "val_mae": errors.abs().mean()}

    def columns(self, prediction: Regression) -> dict[str, list[Any]]:
        """Mean and standard deviation, and the standard deviations of both parts, whose squares add up."""
        return {
            "mean": _significant(prediction.mean),
            "std": _significant(prediction.std),
            "aleatoric": _significant(prediction.aleatoric.sqrt()),
            "epistemic": _significant(prediction.epistemic.sqrt()),
        }

    def conformal_columns(self, regions: Tensor) -> dict[str, list[Any]]:
        """The ends of each interval."""
        return {"low": _significant(regions[:, 0]), "high": _significant(regions[:, 1])}


def task_of(data: Dataset) -> Task:
    """The task of a data set."""
    if data.table is not None and data.table.target.is_number:
        return Numbers(data.table.target)
    return Classes(data.class_names)


def stored_task(described: Mapping[str, Any], where: str | Path) -> Task:
    """The task of a run, by what its folder says of its data."""
    target = described.get("table", {}).get("target", {})
    if "mean" in target:
        if not target["std"] > 0:
            raise StorageError(f"{where} has a target of std {target['std']}; it must be above 0: take another copy.")
        return Numbers(Target(target["name"], target["mean"], target["std"]))
    if not described.get("classes"):
        raise StorageError(f"{where} names no classes and no target of numbers; take another copy of the run.")
    return Classes(described["classes"])


def describe_data(data: Dataset) -> dict[str, Any]:
    """What a run's folder keeps of its data."""
    return {
        "name": data.name,
        **({"classes": list(data.class_names)} if data.class_names else {}),
        **({"table": data.table.as_json()} if data.table else {}),
        "image": list(data.train.inputs.shape[1:]),
        "mean": list(data.mean),
        "std": list(data.std),
        "train": len(data.train),
        "validation": len(data.validation) if data.validation else 0,
        "test": len(data.test),
    }


def require_same_data(described: Mapping[str, Any], data: Dataset, where: str | Path) -> None:
    """An error unless classes, columns, sizes and what standardises the inputs are those that a run's folder keeps."""
    now, before = describe_data(data), dict(described)
    for key in ("classes", "image", "train", "validation", "test", "table", "mean", "std"):
        if now.get(key) != before.get(key):
            told = (
                "other columns or another target"
                if key == "table"
                else f"{key} {now.get(key)} and not {before.get(key)}"
            )
            raise DataError(
                f"{data.name} is not the data that {where} was started with: it has {told}; put it back as it was, or "
                "start another run."
            )


def summarise(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    """The metrics of a result: of classes, the paper's and ours; of numbers, those of their Gaussians."""
    if isinstance(prediction, Regression):
        return metrics.regression_summary(prediction.mean, prediction.std, targets) | {
            "aleatoric": prediction.aleatoric.mean().sqrt().item(),
            "epistemic": prediction.epistemic.mean().sqrt().item(),
        }
    return metrics.summary(prediction.probs.float(), targets) | {
        **{of.__name__: of(prediction.confidence.float(), prediction.label == targets) for of in SELECTIVE},
        "entropy": prediction.entropy.mean().item(),
        "mutual_information": prediction.mutual_information.mean().item(),
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _significant(values: Tensor) -> list[float]:
    """Six digits of each, whatever the unit."""
    return [float(f"{value:.6g}") for value in values.flatten().tolist()]
