"""Try settings of a benchmark's approach on held-out training data: a tenth of each class, never the test set.

    python experiments/continual/explore.py split-mnist vcl '{"epochs": 20, "rho_lr": 0.01}'

Each call adds a line to results/continual/tried.jsonl: what was tried, and the average accuracy after each task.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelseed import data
from kernelseed.continual.benchmarks import BENCHMARKS

TRIED = Path(__file__).parents[2] / "results/continual/tried.jsonl"


def held_out(data_dir: str | None) -> data.Dataset:
    """MNIST with a tenth of its training images in place of the test set."""
    whole = data.load("mnist", data_dir, validation=0.1)
    assert whole.validation is not None
    return replace(whole, test=whole.validation)


def main(words: list[str] | None = None) -> None:
    """Run once, print what came of it and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmark", choices=list(BENCHMARKS))
    parser.add_argument("approach")
    parser.add_argument("settings", type=json.loads, nargs="?", default={}, help="as JSON, instead of those of now")
    parser.add_argument("--tasks", type=int, help="only the first ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=TRIED)
    given = parser.parse_args(words)
    chosen, settings = BENCHMARKS[given.benchmark], dict(given.settings)
    tried = replace(chosen, approaches={**chosen.approaches}, coresets={**chosen.coresets})
    changed: dict[str, Any] = {"coreset": settings.pop("coreset", None)}
    if changed["coreset"]:
        tried.coresets[given.approach] = replace(chosen.coresets[given.approach], **changed["coreset"])
    tried.approaches[given.approach] = replace(chosen.approaches[given.approach], **settings)
    make_tasks = chosen.make_tasks
    tried = replace(tried, make_tasks=lambda found, seed: make_tasks(found, seed)[: given.tasks])
    found = tried.run(given.approach, held_out(given.data_dir), given.seed, progress=False)
    kept = {name: found[name] for name in ("averages", "average_accuracy", "forgetting")}
    line = {"benchmark": given.benchmark, "name": given.approach, "seed": given.seed, "config": found["config"], **kept}
    print(json.dumps({**given.settings, **kept, "last": found["accuracy"][-1]}))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
