"""Conformal prediction by MAPIE: sets of classes, and intervals, that hold the truth as often as is asked for."""

from __future__ import annotations

import importlib
import math
import warnings
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from kernelseed.core import Classification, Regression, check_kind, check_share
from kernelseed.errors import ArgumentError, MissingPackageError
from kernelseed.metrics import check_labels, check_probs

SCORES = ("lac", "aps")


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Call it with a prediction: (examples, classes), whether the class is in the set. `conformal` makes it."""

    fitted: tuple[Any, ...]
    """MAPIE's classifiers: one for all classes, or one for each."""
    classes: int
    coverage: float

    def __call__(self, prediction: Classification) -> Tensor:
        """The sets."""
        check_kind("prediction", prediction, Classification, "these are sets of classes")
        probs = check_probs(prediction.probs)
        if probs.shape[1] != self.classes:
            raise ArgumentError(
                f"prediction has {probs.shape[1]} classes, and the one that it was fitted on {self.classes}: they must "
                "be of one network."
            )
        sets = [torch.from_numpy(one.predict_set(_as_array(probs))[1][:, :, 0]) for one in self.fitted]
        return sets[0] if len(sets) == 1 else torch.stack([s[:, label] for label, s in enumerate(sets)], 1)


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Call it with a prediction: (examples, 2), the ends of each interval. `conformal` makes it."""

    fitted: Any
    coverage: float

    def __call__(self, prediction: Regression) -> Tensor:
        """The intervals, as wide as the prediction's std says."""
        check_kind("prediction", prediction, Regression, "these are intervals of numbers")
        given = _mean_and_std(prediction)
        high = self.fitted.predict_interval(given)[1][:, 1, 0]
        # MAPIE 1.6 takes the lower end from the next smaller score, by which a little coverage would be lost.
        return torch.from_numpy(given[:, :1] * [2, 0] + high[:, None] * [-1, 1])


@overload
def conformal(
    prediction: Classification, labels: Tensor, coverage: float = ..., *, score: str = ..., by_class: bool = ...
) -> ConformalSets: ...
@overload
def conformal(prediction: Regression, labels: Tensor, coverage: float = ...) -> ConformalIntervals: ...


def conformal(
    prediction: Classification | Regression,
    labels: Tensor,
    coverage: float = 0.9,
    *,
    score: str = "lac",
    by_class: bool = False,
) -> ConformalSets | ConformalIntervals:
    """Sets of classes, or intervals, that hold the truth of a new example with probability `coverage` at least.

    prediction, labels   of validation data: not trained on, and like the data to come; targets for regression
    coverage             the probability, over validation sets and new examples
    score                for classes: "lac" has the smallest sets on average, some of them empty where the coverage is
                         below the accuracy; "aps" adapts them to each example, and none is empty
    by_class             the coverage holds for the examples of each class, not only for all together; "lac" only

    The intervals are mean ± q std, where q is a quantile of |target - mean| / std. MAPIE, the extra `conformal`, does
    both.

    >>> import kernelseed as ks
    >>> probs = torch.rand(200, 3).softmax(1)
    >>> p = ks.Classification.from_draws(probs[None])
    >>> ks.conformal(p, torch.multinomial(probs, 1)[:, 0], coverage=0.8)(p).shape
    torch.Size([200, 3])
    """
    check_share("coverage", coverage, "write 90 % as 0.9")
    check_kind("prediction", prediction, (Classification, Regression), "give what ks.predict returns")
    if isinstance(prediction, Regression):
        return _intervals(prediction, labels, coverage)
    if score not in SCORES:
        raise ArgumentError(f"score is {score!r}; allowed: {', '.join(SCORES)}.")
    if by_class and score != "lac":
        raise ArgumentError(f"score is {score!r} with by_class=True; allowed there: lac.")
    probs = check_probs(prediction.probs)
    y = check_labels(labels, probs)
    classifier = _mapie("classification").SplitConformalClassifier
    groups = [(y == label).nonzero()[:, 0] for label in range(probs.shape[1])] if by_class else [torch.arange(len(y))]
    for label, group in enumerate(groups):
        _require_enough(len(group), coverage, f" of class {label}" if by_class else "")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "WARNING: your conformalization dataset has less labels")
        fitted = tuple(
            classifier(Given(probs.shape[1]), confidence_level=coverage, conformity_score=score, random_state=0)
            .conformalize(_as_array(probs[group]), y[group].numpy())
            for group in groups
        )  # fmt: skip
    return ConformalSets(fitted, probs.shape[1], coverage)


class Given:
    """What MAPIE takes for a fitted model: its inputs are the predictions."""

    def __init__(self, classes: int) -> None:
        self.classes_ = torch.arange(classes).numpy()
        self.n_features_in_ = max(classes, 2)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> Given:
        """Nothing is left to fit."""
        return self

    def predict_proba(self, X: Any) -> Any:
        """The probabilities that it is given."""
        return X

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The most probable class, or the mean that it is given; with the standard deviation if asked for."""
        if len(self.classes_):
            return X.argmax(1)
        return (X[:, 0], X[:, 1]) if return_std else X[:, 0]


def _intervals(prediction: Regression, targets: Tensor, coverage: float) -> ConformalIntervals:
    given = _mean_and_std(prediction)
    if not isinstance(targets, Tensor) or targets.numel() != len(given) or not targets.isfinite().all():
        shape = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ArgumentError(f"labels is {shape}; it must be a tensor of {len(given)} finite targets: one for each row.")
    _require_enough(len(given), coverage, "")
    regressor = _mapie("regression").SplitConformalRegressor
    score = _mapie("conformity_scores").StdConformityScore()
    fitted = regressor(Given(0), confidence_level=coverage, conformity_score=score)
    return ConformalIntervals(fitted.conformalize(given, targets.detach().cpu().double().flatten().numpy()), coverage)


def _mean_and_std(prediction: Regression) -> Any:
    mean, std = (value.detach().cpu().double() for value in (prediction.mean, prediction.std))
    if mean.numel() != len(mean):
        raise ArgumentError(
            f"prediction.mean has shape {tuple(mean.shape)}; intervals are for one output: (N,) or (N, 1)."
        )
    return torch.stack([mean.flatten(), std.flatten()], 1).numpy()


def _as_array(probs: Tensor) -> Any:
    return (probs / probs.sum(1, keepdim=True)).numpy()  # MAPIE wants sums of 1 to the last digit


def _require_enough(examples: int, coverage: float, which: str) -> None:
    least = math.floor(1 / min(coverage, 1 - coverage) + 1e-9) + 1  # as MAPIE asks for
    if examples < least:
        raise ArgumentError(
            f"coverage is {coverage} with {examples} examples{which}; it takes at least {least}: use more validation "
            "data or a lower coverage."
        )


def _mapie(module: str) -> Any:
    try:
        return importlib.import_module(f"mapie.{module}")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f'conformal prediction needs the package {error.name!r}: pip install "kernelseed[conformal]".',
            name=error.name,
        ) from None
