"""The quality of a run's network against what is removed from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelseed.core import (
    ORDERS,
    BayesianModule,
    is_prunable,
    least_budget,
    needed_parameters,
    plain_parameters,
    prune,
    shrink,
)
from kernelseed.data import Dataset, Split
from kernelseed.errors import ConfigError
from kernelseed.models import Model
from kernelseed.training.inference import predict_split, ways
from kernelseed.training.origin import provenance
from kernelseed.training.pruned_runs import Subject
from kernelseed.training.tasks import summarise

SPARSITIES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
SHARES = (0.8, 0.6, 0.4, 0.2)
"""Of the network's own parameters that shrinking leaves, as far as there are seeds."""


def pruning_curve(
    run: str | Path,
    samples: int | None = None,
    split: str | None = None,
    sparsities: Sequence[float] = SPARSITIES,
    shares: Sequence[float] = SHARES,
    data_dir: str | Path | None = None,
    *,
    model: Model | None = None,
    trust_model: bool = False,
    data: Dataset | None = None,
) -> dict[str, Any]:
    """Quality of a run's network against its sparsity and, of seeds, against its size, in every order; kept there.

    samples     draws to average; default: the run's
    split       "validation" or "test" images; default: validation where the run held some out
    sparsities  shares of weights that are zero
    shares      shares of the network's own parameters that shrinking leaves
    For the others see `evaluate`.
    """
    again = {"model": model, "trust_model": trust_model, "data": data}
    return PruningCurve.of(run, samples, split, data_dir, **again).measured(sparsities, shares)


@dataclass(frozen=True)
class PruningCurve:
    """What a curve is measured on: whatever can be wrong with it is found before it is."""

    subject: Subject
    split: str
    images: Split

    @classmethod
    def of(
        cls, run: str | Path, samples: int | None, split: str | None, data_dir: str | Path | None, **again: Any
    ) -> PruningCurve:
        """Read from a run's folder."""
        subject = Subject.of(run, samples, data_dir, **again)
        if "table" in subject.folder.config()["data"] and not subject.data.class_names:
            raise ConfigError(
                f"{subject.folder.path} is a run of regression, and the curve is of accuracy: do without it, "
                "--no-curve."
            )
        return cls(subject, *subject.split(split))

    def measured(self, sparsities: Sequence[float] = SPARSITIES, shares: Sequence[float] = SHARES) -> dict[str, Any]:
        """The curve, which is kept in the run's folder; see `pruning_curve`."""
        folder = self.subject.folder
        setting = {"split": self.split, "samples": self.subject.config.samples}
        folder.found_before("pruning", setting)
        result = folder.result()
        found = {
            **setting,
            "points": list(self._points(sorted(sparsities), sorted(shares, reverse=True))),
            **{key: result[key] for key in ("labels", "parameters", "seed", "config")},
            "trained": folder.trained(),
            **provenance(),
        }
        folder.write_found("pruning", found)
        return found

    def _points(self, sparsities: Sequence[float], shares: Sequence[float]) -> Iterator[dict[str, Any]]:
        data, config = self.subject.data, self.subject.config
        for what, by, share, smaller in _smaller(self.subject.net, sparsities, shares):
            needed = needed_parameters(smaller)
            yield {
                "what": what,
                "by": by,
                "share": share,
                "parameters": needed,
                "relative": needed / plain_parameters(smaller),
                "metrics": {
                    way: summarise(predict_split(smaller, self.images, data, config, way), self.images.labels)
                    for way in ways(config)
                },
            }


def _smaller(
    net: BayesianModule, sparsities: Sequence[float], shares: Sequence[float]
) -> Iterator[tuple[str, str, float, BayesianModule]]:
    """What is removed, in which order, the share of zeros or of parameters, and the network; first the whole one.

    Shares of zeros that it has already are left out, and of parameters that no seed can go without.
    """
    yield "nothing", "", 0.0, net
    random = net.draw().num_weights > 0
    for by in ORDERS if random else [order for order in ORDERS if order != "snr"]:
        for sparsity in [share for share in sparsities if is_prunable(net, share)]:
            yield "weights", by, sparsity, prune(net, sparsity, by)
    if all(weight.rank is None for weight in net.weights.values()):
        return
    whole, least = needed_parameters(net) / plain_parameters(net), least_budget(net)
    for by in ORDERS:
        for share in [share for share in shares if share * whole >= least]:
            yield "channels", by, share, shrink(net, share * whole, by)
