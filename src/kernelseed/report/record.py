"""The data about one run that the report needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RunRecord:
    """One trained network and its predictions on the test set (N examples, K classes)."""

    name: str  # the run's folder name
    method: str  # "ksn", "bnn", "baseline", "dropout", ...
    label: str  # what a reader sees, e.g. "KSN-E δ=0.25"
    parameters: int  # stored parameters
    plain_parameters: int  # parameters of the plain network
    metrics: dict[str, float]  # accuracy (a fraction), nll, brier, ece, ace, mce, adaptive_ece
    probs: np.ndarray  # (N, K) predictive probabilities
    labels: np.ndarray  # (N,) true classes
    entropy: np.ndarray  # (N,) predictive entropy in nats
    mutual_information: np.ndarray | None  # (N,) in nats; None where there is no ensemble
    curves: dict[str, tuple[list[float], list[float]]]  # name -> (epochs, values)
    config: dict  # the exact config
    result: dict  # seconds, versions, commit, seed, ...
    class_names: list[str]
    images: np.ndarray | None  # (N, C, H, W) uint8 test images
    ood_name: str | None
    ood_entropy: np.ndarray | None  # (M,) predictive entropy on the out-of-distribution data
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
    def relative_size(self) -> float:
        """Stored parameters per parameter of the plain network."""
        return self.parameters / self.plain_parameters
