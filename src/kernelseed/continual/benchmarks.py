"""Split-MNIST and permuted MNIST: all approaches over some seeds, one result file for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import data, training
from kernelseed.continual.approaches import Approach, FineTune, Joint
from kernelseed.continual.coresets import Coreset
from kernelseed.continual.ewc import EWC
from kernelseed.continual.learning import learn
from kernelseed.continual.task import Task, permute_pixels, split_classes
from kernelseed.continual.vcl import VCL
from kernelseed.core import derive_seed
from kernelseed.errors import ArgumentError, DataError
from kernelseed.system import make_folder, read_json, write_json

Result = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """Tasks, a trunk for them, and how each approach learns them."""

    title: str
    make_tasks: Callable[[data.Dataset, int], list[Task]]
    tasks: int
    width: int
    heads: str
    approaches: Mapping[str, Approach[Any]]
    coresets: Mapping[str, Coreset]
    published: Mapping[str, float] = field(default_factory=dict)
    """The average accuracies after the last task that Nguyen et al. (2018) print, by approach."""
    samples: int = 10
    """The draws that a test averages, where the approach has any."""

    def config(self, name: str) -> dict[str, Any]:
        """The settings of an approach, as JSON."""
        approach, coreset = self.approaches[name], self.coresets.get(name)
        return {
            "data": "mnist",
            "tasks": self.tasks,
            "width": self.width,
            "heads": self.heads,
            "approach": type(approach).__name__,
            **asdict(approach),
            "coreset": asdict(coreset) if coreset else None,
            "samples": self.samples if approach.random else 0,
        }

    def run(self, name: str, data_set: data.Dataset, seed: int, progress: bool) -> Result:
        """Learn all tasks by one approach; the result as JSON."""
        approach, coreset = self.approaches[name], self.coresets.get(name)
        tasks = self.make_tasks(data_set, seed)
        begun = time.perf_counter()
        found = learn(
            tasks,
            self.trunk(tasks[0], seed),
            approach,
            heads=self.heads,
            coreset=coreset,
            samples=self.samples,
            seed=seed,
            progress=progress,
        )
        seconds = round(time.perf_counter() - begun, 1)
        made = {"config": self.config(name), "seconds": seconds, **training.provenance()}
        return {"name": name, "seed": seed, **found.as_json(), **made}

    def trunk(self, task: Task, seed: int) -> nn.Module:
        """Two hidden layers, whose start follows from the seed."""
        inputs = task.x[0].numel()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("continual trunk", seed))
            return nn.Sequential(nn.Linear(inputs, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU())


def _approaches(
    mean_field: VCL, mean_field_coreset: VCL, seeds: VCL, seeds_coreset: VCL, epochs: int, strength: float
) -> dict[str, Approach[Any]]:
    return {
        "fine-tune": FineTune(epochs=epochs),
        "ewc": EWC(epochs=epochs, strength=strength),
        "vcl": mean_field,
        "vcl-coreset": mean_field_coreset,
        "vcl-ksn": seeds,
        "vcl-ksn-coreset": seeds_coreset,
        "joint": Joint(epochs=epochs),
    }


SPLIT = VCL(epochs=8, lr=2e-3, start_std=0.01, rho_lr=5e-3)
SPLIT_SEEDS = VCL(epochs=6, lr=5e-4, start_std=0.01, weights="kernel-seed", delta=0.5, rho_lr=1e-3)
PERMUTED = VCL(epochs=3, batch_size=128, lr=5e-3, prior_std=0.06, rho_lr=0.1)
PERMUTED_SEEDS = replace(PERMUTED, weights="kernel-seed", delta=1.0, germinator="identity")
BENCHMARKS = {
    "split-mnist": Benchmark(
        "Split-MNIST: 5 tasks, a head for each",
        lambda found, seed: split_classes(found, 2),
        5,
        256,
        "each",
        _approaches(
            SPLIT,
            replace(SPLIT, prior_std=3.0),
            SPLIT_SEEDS,
            replace(SPLIT_SEEDS, rho_lr=1.4e-3),
            epochs=5,
            strength=1000.0,
        ),
        dict.fromkeys(("vcl-coreset", "vcl-ksn-coreset"), Coreset(40, "random", 50)),
        {"vcl": 0.970, "vcl-coreset": 0.984, "ewc": 0.631},
        samples=100,  # as the authors
    ),
    "permuted-mnist": Benchmark(
        "Permuted MNIST: 10 tasks, one head",
        lambda found, seed: permute_pixels(found, 10, seed),
        10,
        100,
        "one",
        _approaches(
            PERMUTED,
            PERMUTED,
            PERMUTED_SEEDS,
            PERMUTED_SEEDS,
            epochs=3,
            strength=10.0,
        ),
        dict.fromkeys(("vcl-coreset", "vcl-ksn-coreset"), Coreset(200, "random", 25)),
        {"vcl": 0.90, "vcl-coreset": 0.93, "ewc": 0.84},
    ),
}


def benchmark(name: str) -> Benchmark:
    """One of `BENCHMARKS`."""
    if name not in BENCHMARKS:
        raise ArgumentError(f"the benchmark is {name!r}; allowed are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def run_benchmark(
    name: str,
    results: Path,
    *,
    approaches: Sequence[str] | None = None,
    seeds: int = 3,
    data_dir: str | Path | None = None,
    progress: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Run what is not in the folder `results` yet, a file for each approach and seed, and return all results."""
    chosen = benchmark(name)
    wanted = list(chosen.approaches) if approaches is None else list(approaches)
    for each in wanted:
        if each not in chosen.approaches:
            raise ArgumentError(f"the approach is {each!r}; allowed are {', '.join(chosen.approaches)}.")
    if seeds < 1:
        raise ArgumentError(f"seeds is {seeds}; it must be at least 1: three show how much they differ.")
    make_folder(results)
    data_set = None
    for seed in range(seeds):
        for each in wanted:
            path = results / f"{name}.{each}.{seed}.json"
            if path.exists():
                _require_same(path, chosen.config(each))
                continue
            data_set = data_set or data.load("mnist", data_dir)
            tell(f"{name}: {each}, seed {seed}")
            write_json(path, chosen.run(each, data_set, seed, progress))
    return read_results_of(name, results)


def _require_same(path: Path, config: dict[str, Any]) -> None:
    """An error if a result was made with other settings than those of now."""
    stored = read_json(path).get("config", {})
    other = [key for key in config if stored.get(key) != config[key]]
    if other:
        key = other[0]
        raise DataError(
            f"{path} was made with {key} {stored.get(key)}, and now it is {config[key]}: move the file away, or give "
            "another folder."
        )


def read_results_of(name: str, results: Path) -> list[Result]:
    """All results of a benchmark in a folder, in the order of its approaches."""
    found = [read_json(path) for path in sorted(results.glob(f"{name}.*.json"))]
    order = list(benchmark(name).approaches)
    return sorted(found, key=lambda result: (order.index(result["name"]), result["seed"]))
