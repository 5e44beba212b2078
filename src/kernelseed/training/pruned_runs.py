"""A run with fewer weights or fewer channels, as a run of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelseed.core import (
    BayesianModule,
    describe,
    needed_parameters,
    plain_parameters,
    prune,
    shrink,
    write_weights,
)
from kernelseed.data import Dataset, Split
from kernelseed.errors import ArgumentError, StorageError
from kernelseed.models import Model
from kernelseed.training.config import Config
from kernelseed.training.inference import require_validation, test_and_keep
from kernelseed.training.origin import provenance
from kernelseed.training.run_folder import RunFolder

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
                "prune by; give one of a Bayesian network or of seeds, such as ksn, bnn or fksn."
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
        net, label = prune(net, sparsity, by), f"{label}, {sparsity:.10g} zeros"
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
