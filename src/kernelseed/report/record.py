"""The data about one run that the report needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Record(ABC):
    """One trained network and its predictions on the test set."""

    name: str  # the run's folder name
    method: str  # "ksn", "bnn", "baseline", "dropout", ...
    label: str  # what a reader sees, e.g. "KSN-E δ=0.25"
    parameters: int  # stored parameters
    plain_parameters: int  # parameters of the plain network
    metrics: dict[str, float]  # accuracy (a fraction), nll, brier, ...; or rmse, nll, crps, ...
    curves: dict[str, tuple[list[float], list[float]]]  # name -> (epochs, values)
    config: dict  # the exact config
    result: dict  # seconds, versions, commit, seed, ...

    @property
    @abstractmethod
    def truth(self) -> np.ndarray:
        """(N,) what was to be predicted."""

    @property
    @abstractmethod
    def losses(self) -> dict[str, np.ndarray]:
        """(N,) of each example, by the metric that they are averaged to; the first is the headline."""

    @property
    def relative_size(self) -> float:
        """Stored parameters per parameter of the plain network."""
        return self.parameters / self.plain_parameters


@dataclass(frozen=True)
class RegressionRecord(Record):
    """Of a network that predicts numbers, in their own unit: N examples."""

    target: str  # the name of what is predicted
    targets: np.ndarray  # (N,) float64, as all here
    mean: np.ndarray  # (N,)
    aleatoric: np.ndarray  # (N,) the standard deviation of the noise
    epistemic: np.ndarray  # (N,) the standard deviation of the mean over draws

    @cached_property
    def std(self) -> np.ndarray:
        """(N,) the predicted standard deviation."""
        return np.hypot(self.aleatoric, self.epistemic)

    @cached_property
    def errors(self) -> np.ndarray:
        """(N,) true minus predicted."""
        return self.targets - self.mean

    @property
    def truth(self) -> np.ndarray:
        """(N,) the targets."""
        return self.targets

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """Squared errors, and -log of the density."""
        density = 0.5 * np.square(self.errors / self.std) + np.log(self.std)
        return {"rmse": np.square(self.errors), "nll": density}


@dataclass(frozen=True)
class RunRecord(Record):
    """Of a classifier: N examples, K classes."""

    probs: np.ndarray  # (N, K) predictive probabilities
    labels: np.ndarray  # (N,) true classes
    entropy: np.ndarray  # (N,) predictive entropy in nats
    mutual_information: np.ndarray | None  # (N,) in nats; None where one network predicts
    class_names: list[str]
    images: np.ndarray | None  # (N, C, H, W) uint8 test images
    way: str = "ensemble"  # how it predicts: by the average over draws, or by the one "mean"
    found: dict[str, dict] = field(default_factory=dict)  # what `RunFolder.found` has, by name: "shift", "ood", ...
    ood_entropy: dict[str, np.ndarray] = field(default_factory=dict)  # (M,) on each out-of-distribution data set
    validation: tuple[np.ndarray, np.ndarray] | None = None  # probabilities and labels of what was held out

    @property
    def confidence(self) -> np.ndarray:
        """(N,) the probability of the predicted class."""
        return self.probs.max(axis=1)

    @property
    def predicted(self) -> np.ndarray:
        """(N,) the most probable class."""
        return self.probs.argmax(axis=1)

    @property
    def correct(self) -> np.ndarray:
        """(N,) whether the prediction is the label."""
        return self.predicted == self.labels

    @property
    def truth(self) -> np.ndarray:
        """(N,) the labels."""
        return self.labels

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """Mistakes, and -log p(label)."""
        chosen = self.probs[np.arange(len(self.labels)), self.labels]
        surprise = -np.log(np.maximum(chosen, np.finfo(np.float32).tiny))
        return {"accuracy": 1.0 - self.correct, "nll": surprise}
