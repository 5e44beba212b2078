"""A run with fewer weights or fewer channels: what that costs, and the smaller network as a run of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelseed.core import (
    ORDERS,
    BayesianModule,
    describe,
    is_prunable,
    least_budget,
    needed_parameters,
    plain_parameters,
    prune,
    shrink,
    write_weights,
)
from kernelseed.data import Dataset, Split
from kernelseed.errors import ArgumentError, ConfigError, StorageError
from kernelseed.models import Model
from kernelseed.training.config import Config
from kernelseed.training.inference import predict_split, require_validation, test_and_keep, ways
from kernelseed.training.origin import provenance
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.tasks import summarise

SPARSITIES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
SHARES = (0.8, 0.6, 0.4, 0.2)
"""Of the network's own parameters that shrinking leaves, as far as there are seeds."""
SPLITS = ("test", "validation")


@dataclass(frozen=True, eq=False)
class Subject:
    """A finished run's network, its data, and how it predicts."""

    folder: RunFolder
    config: Config
    net: BayesianModule
    data: Dataset

    @classmethod
    def of(
        cls,
        run: str | Path,
        samples: int | None = None,
        data_dir: str | Path | None = None,
        *,
        model: Model | None = None,
        trust_model: bool = False,
        data: Dataset | None = None,
    ) -> Subject:
        """Read from a run's folder; one without weight distributions is an error."""
        folder = RunFolder(run)
        folder.result()  # or an error that says how to finish it
        config = folder.training_config()
        config = config if samples is None else replace(config, samples=samples)
        net = folder.network(model, trust_model)
        if not isinstance(net, BayesianModule):
            raise StorageError(
                f"{folder.path} is a run of the method {config.method!r}, whose network has no weight distributions to "
                "prune by; give one of ksn, bnn or fksn."
            )
        return cls(folder, config, net, folder.data(data, data_dir))

    def split(self, name: str | None) -> tuple[str, Split]:
        """The split by its name; by default the validation split where there is one, for choosing by it."""
        name = name or ("validation" if self.data.validation else "test")
        if name not in SPLITS:
            raise ArgumentError(f"split is {name!r}; allowed are {', '.join(map(repr, SPLITS))}.")
        if name == "test":
            return name, self.data.test
        require_validation(self.folder, self.config, "draw the curve on")
        assert self.data.validation is not None
        return name, self.data.validation


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
    subject = Subject.of(run, samples, data_dir, model=model, trust_model=trust_model, data=data)
    if "table" in subject.folder.config()["data"] and not subject.data.class_names:
        raise ConfigError(
            f"{subject.folder.path} is a run of regression, and the curve is of accuracy: do without it, --no-curve."
        )
    name, images = subject.split(split)
    points = []
    for what, by, share, smaller in _smaller(subject.net, sorted(sparsities), sorted(shares, reverse=True)):
        needed = needed_parameters(smaller)
        points.append(
            {
                "what": what,
                "by": by,
                "share": share,
                "parameters": needed,
                "relative": needed / plain_parameters(smaller),
                "metrics": {
                    way: summarise(predict_split(smaller, images, subject.data, subject.config, way), images.labels)
                    for way in ways(subject.config)
                },
            }
        )
    result = subject.folder.result()
    found = {
        "split": name,
        "samples": subject.config.samples,
        "points": points,
        **{key: result[key] for key in ("labels", "parameters", "seed", "config")},
        "trained": subject.folder.trained(),
        **provenance(),
    }
    subject.folder.write_found("pruning", found)
    return found


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


def prune_run(
    run: str | Path,
    out: str | Path,
    sparsity: float | None = None,
    budget: float | None = None,
    by: str = "snr",
    data_dir: str | Path | None = None,
    *,
    model: Model | None = None,
    trust_model: bool = False,
    data: Dataset | None = None,
) -> dict[str, Any]:
    """Shrink a run's network to a budget, prune it to a sparsity, or both; test it, and write it as a run.

    Returns what the new run's result.json holds. For the other arguments see `ks.prune`, `ks.shrink` and `evaluate`.
    """
    if sparsity is None and budget is None:
        raise ArgumentError("sparsity and budget are None; say how much to remove: sparsity=0.95, or budget=0.2.")
    RunFolder(out).require_absent()
    subject = Subject.of(run, None, data_dir, model=model, trust_model=trust_model, data=data)
    net, config, label = subject.net, subject.config, ""
    if budget is not None:
        net, label = shrink(net, budget, by), f", budget {budget:g}"
    if sparsity is not None:
        net, label = prune(net, sparsity, by), f"{label}, {sparsity:.4g} zeros"
    result = {key: value for key, value in subject.folder.result().items() if key != "metrics"}
    removed = {"run": str(run), "sparsity": sparsity, "budget": budget, "by": by}
    own = describe(net, subject.folder.config()["network"].get("model"))

    def fill(folder: RunFolder) -> None:
        write_weights(net, folder.weights)
        needed, plain = needed_parameters(net), plain_parameters(net)
        stored = sum(parameter.numel() for parameter in net.parameters())
        counts = {"trained": needed, "stored": stored, "plain": plain, "relative": needed / plain}
        metrics = test_and_keep(net, config, subject.data, folder)
        labels = {way: f"{name}{label}" for way, name in result["labels"].items()}
        trained = {"trained": subject.folder.trained(), "pruned": removed, **provenance()}
        folder.write_result({"metrics": metrics, **result, "parameters": counts, "labels": labels, **trained})

    return subject.folder.derive(out, {"network": own, "pruned": removed}, fill).result()
