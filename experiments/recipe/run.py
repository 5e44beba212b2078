"""Train what `runs.yaml` lists, one run after another, and keep a result of each that no table needs to train again.

    python experiments/recipe/run.py explore                          # a study; finished runs are not repeated
    python experiments/recipe/run.py explore --only start --only plain
    python experiments/recipe/run.py --list                           # every run with its settings

A run that was stopped goes on. A result is RESULTS/STUDY/NAME-seed-N.json and .npz: settings, versions and commit, and
the log-probabilities (float16) of each way of predicting. A study with a validation split keeps those of the
validation split and nothing of the test set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from kernelseed import metrics
from kernelseed.core import Classification
from kernelseed.data import load_test
from kernelseed.errors import ConfigError
from kernelseed.reproduction.result_files import write_result
from kernelseed.training import Config, RunFolder, overlay, predict_split, train

HERE = Path(__file__).parent
BATCH_NORM_IMAGES = 4096
"""Studies that choose test each network with BatchNorm's running statistics, and ("... bn") with those of so many
training images. The others use the running ones."""


@dataclass(frozen=True)
class Job:
    """One training of a study."""

    study: str
    name: str
    config: Config
    ood: tuple[str, ...] = ()
    """Data sets to tell from the test set."""

    @property
    def file(self) -> str:
        """Its place below runs and results."""
        return f"{self.study}/{self.name}-seed-{self.config.seed}"


def jobs(study: str) -> Iterator[Job]:
    """The trainings of a study, seed by seed."""
    known = yaml.safe_load((HERE / "runs.yaml").read_text())
    if study not in known["studies"]:
        raise ConfigError(f"study is {study!r}; allowed: {', '.join(known['studies'])}.")
    listed = known["studies"][study]
    ordered = {name: dict(changes or {}) for name, changes in listed["runs"].items()}
    seeds = {name: changes.pop("seeds", listed.get("seeds", 1)) for name, changes in ordered.items()}
    for seed in range(max(seeds.values())):
        for name, changes in ordered.items():
            if seed < seeds[name]:
                settings = overlay(overlay(known["common"], listed["base"]), {**changes, "seed": seed})
                yield Job(study, name, Config.from_json(settings), tuple(listed.get("ood", ())))


def carry_out(job: Job, runs: Path, results: Path, data_dir: Path | None) -> None:
    """Train and test one of them, unless its result is there."""
    kept = results / f"{job.file}.json"
    if kept.exists():
        return
    folder = runs / job.file
    folder.parent.mkdir(parents=True, exist_ok=True)
    train(job.config, folder, resume=folder.exists(), data_dir=data_dir, progress=False)
    run, data = RunFolder(folder), job.config.load_data(data_dir)
    net, result = run.network(), run.result()
    part, split = ("validation", data.validation) if data.validation else ("test", data.test)
    predictions = {way: run.prediction(part, way) for way in result["metrics"]}
    if data.validation:
        again = replace(job.config, update_bn=BATCH_NORM_IMAGES)
        predictions |= {f"{way} bn": (predict_split(net, split, data, again, way), split.labels) for way in predictions}
    result["metrics"] = {
        way: metrics.summary(found.probs.float(), labels) for way, (found, labels) in predictions.items()
    }
    if job.ood:
        outside = {name: load_test(name, data_dir) for name in job.ood}
        result["ood"] = {
            name: {
                way: _told_apart(predictions[way][0], predict_split(net, other, data, job.config, way))
                for way in run.result()["metrics"]
            }
            for name, other in outside.items()
        }
    result["split"] = part
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_result(kept, result, predictions)
    shown = result["metrics"].get("ensemble", result["metrics"]["mean"])
    print(job.file, {key: round(shown[key], 4) for key in ("accuracy", "nll", "ece")}, flush=True)


def _told_apart(inside: Classification, outside: Classification) -> dict[str, float]:
    """How well a score tells images of another data set from those of the test set: the area under the ROC curve."""
    return {
        "entropy": metrics.auroc(inside.entropy, outside.entropy),
        "confidence": metrics.auroc(-inside.confidence, -outside.confidence),
        "mutual_information": metrics.auroc(inside.mutual_information, outside.mutual_information),
    }


def main(
    study: Annotated[str | None, typer.Argument(help="Which study of runs.yaml to run.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only runs of these names.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds.")] = None,
    runs: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs/recipe"),
    results: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results/recipe"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets are.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Print the settings of every run, and train nothing.")] = False,
) -> None:
    """Train the runs of a study, and keep their results."""
    studies = [study] if study else list(yaml.safe_load((HERE / "runs.yaml").read_text())["studies"])
    if not (study or show):
        raise typer.BadParameter(f"name a study: {', '.join(studies)}")
    for each in studies:
        for job in jobs(each):
            if (only and job.name not in only) or (seed and job.config.seed not in seed):
                continue
            if show:
                print(job.file, job.config.as_json())
            else:
                carry_out(job, runs, results, data_dir)


if __name__ == "__main__":
    typer.run(main)
