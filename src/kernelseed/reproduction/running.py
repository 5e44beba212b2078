"""Train the networks of a table one after another; finished ones are never trained again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelseed import training
from kernelseed.errors import StorageError
from kernelseed.reproduction.plan import NETWORKS, Plan, Run
from kernelseed.reproduction.result_files import Predictions, Result, correct_bits, read_result, write_result
from kernelseed.system import make_folder
from kernelseed.training import Config, RunFolder

MACHINE = ("devices", "nodes", "accelerator", "strategy", "batch_size")
"""Settings in which finished runs may differ, as long as the total batch size is the same."""


def _nothing(given: Any) -> None:
    """The default for callbacks."""


def reproduce(
    plan: Plan,
    out: str | Path,
    *,
    results: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = True,
    tell: Callable[[str], Any] = _nothing,
    keep: Callable[[dict[str, list[Result]]], Any] = _nothing,
) -> dict[str, list[Result]]:
    """Run what is missing of a plan, and return the results of each network, one per seed.

    If several processes train together, only the first keeps and returns results.

    out      the run folders, `PRESET/DATA/NETWORK/seed-N`; a run that was stopped continues
    results  a copy of each result, `PRESET/DATA/NETWORK-seed-N.json` and `.npz`: small files to commit and compare. A
             run whose result is here counts as finished, wherever it was made
    tell     called with a line of text before each training
    keep     called with all finished results, after each training and at the end
    """
    root, out = Path(out), Path(out) / plan.folder
    kept = None if results is None else Path(results) / plan.folder
    runs = plan.runs()
    for run in runs:  # raise every error before the first hour of training
        _require_same_setting(run, out, kept)
    if others := _is_one_of_the_others(plan):
        tell = _nothing
    for name in plan.left_out():
        tell(f"{name} trains in one process and is left out: run it by itself, on one device")
    missing = [run for run in runs if not _finished(run, out, kept)]
    for number, run in enumerate(missing):
        to_train = [each for each in missing[number:] if _same_training(each, plan, root) is None]
        left = _time_left(to_train, out) if run in to_train else ": to be tested"
        tell(f"{number + 1}/{len(missing)} {run.name}{left}")
        _share(run, plan, root)
        if not _train(run, _run_folder(run, out), data_dir, progress):
            others = True
            continue
        _copy(run, out, kept)
        keep(collected(plan.folder, root, results))
    if others:
        return {}
    for run in runs:  # a run may have finished without `results`, or have been stopped just before the copy
        _copy(run, out, kept)
    found = collected(plan.folder, root, results)
    keep(found)
    return found


def collected(folder: str, out: str | Path, results: str | Path | None) -> dict[str, list[Result]]:
    """The results of one table, `PRESET/DATA`: from `results` if it is given, else from the run folders."""
    return finished_results(Path(out) / folder) if results is None else read_results(Path(results) / folder)


def finished_results(folder: Path) -> dict[str, list[Result]]:
    """The results in the run folders of one table, without unfinished runs."""
    return {
        network: found
        for network in NETWORKS
        if (found := [_result(run) for run in map(RunFolder, sorted(folder.glob(f"{network}/seed-*"))) if run.finished])
    }


def read_results(folder: Path) -> dict[str, list[Result]]:
    """The results in the result files of one table."""
    return {
        network: found
        for network in NETWORKS
        if (found := [read_result(path) for path in sorted(folder.glob(f"{network}-seed-*.json"))])
    }


def _is_one_of_the_others(plan: Plan) -> bool:
    """Whether the environment says that this is not the first of several processes; else the training will tell."""
    if plan.processes == 1:
        return False
    from lightning.pytorch.utilities import rank_zero_only

    return bool(getattr(rank_zero_only, "rank", 0))


def _train(run: Run, folder: Path, data_dir: str | Path | None, progress: bool) -> Result:
    from kernelseed.training import train  # Lightning takes seconds to import, and a table can be shown without

    make_folder(folder.parent)
    return train(run.config, folder, resume=folder.exists(), data_dir=data_dir, progress=progress)


def _share(run: Run, plan: Plan, root: Path) -> None:
    """Copy the finished training of another run if it is the same training, so that only the test is left to do."""
    if (trained := _same_training(run, plan, root)) is not None:
        folder = _run_folder(run, root / plan.folder)
        make_folder(folder.parent)
        trained.branch(folder, run.config)


def _same_training(run: Run, plan: Plan, root: Path) -> RunFolder | None:
    """A finished run that differs only in its test, unless this one has been started already."""
    if _run_folder(run, root / plan.folder).exists():
        return None
    if plan.processes > 1:  # the other processes may look before the copy is there
        return None
    for place in (plan.folder, replace(plan, update_bn=0).folder):
        for name in NETWORKS:
            trained = RunFolder(root / place / name / f"seed-{run.config.seed}")
            if trained.finished and trained.latest_checkpoint() and run.trains_as(trained.training_config()):
                return trained
    return None


def _run_folder(run: Run, out: Path) -> Path:
    return out / run.network / f"seed-{run.config.seed}"


def _result_file(run: Run, kept: Path) -> Path:
    return kept / f"{run.name}.json"


def _finished(run: Run, out: Path, kept: Path | None) -> bool:
    return RunFolder(_run_folder(run, out)).finished or (kept is not None and _result_file(run, kept).exists())


def _copy(run: Run, out: Path, kept: Path | None) -> None:
    folder = RunFolder(_run_folder(run, out))
    if kept is None or not folder.finished or _result_file(run, kept).exists():
        return
    make_folder(kept)
    write_result(_result_file(run, kept), folder.result(), _predictions(folder))


def _result(folder: RunFolder) -> Result:
    """A run's result with the test images that it classified correctly, so that networks can be compared by image."""
    predictions = _predictions(folder)
    correct = {way: correct_bits((found.label == labels).numpy()) for way, (found, labels) in predictions.items()}
    return {**folder.result(), "correct": correct}


def _predictions(folder: RunFolder) -> Predictions:
    return {way: folder.prediction("test", way) for way in folder.result()["metrics"]}


def _require_same_setting(run: Run, out: Path, kept: Path | None) -> None:
    """Raise if the run's folder holds another run, before anything is changed."""
    wanted = run.config.as_json()
    places: dict[Path, tuple[Config, Sequence[str]]] = {}
    if kept is not None and (file := _result_file(run, kept)).exists():
        places[file] = Config.from_json(training.read_result(file)["config"]), MACHINE
    if (folder := RunFolder(_run_folder(run, out))).path.exists():
        # An unfinished run continues with its own settings, so all of them must be the same.
        places[folder.path] = folder.training_config(), MACHINE if folder.finished else ()
    for place, (config, ignored) in places.items():
        there = config.as_json()
        other = [key for key in wanted if key not in ignored and wanted[key] != there[key]]
        if _whole_batch(config) != _whole_batch(run.config):
            other = [*dict.fromkeys([*other, "batch_size"])]
        if other:
            raise StorageError(
                f"{place} was made with {', '.join(f'{key} {there[key]!r}' for key in other)}, not with "
                f"{', '.join(f'{key} {wanted[key]!r}' for key in other)}; choose another --out and --results, or move "
                "it away."
            )


def _whole_batch(config: Config) -> int:
    return config.batch_size * config.devices * config.nodes


def _time_left(runs: list[Run], out: Path) -> str:
    """The expected time, estimated from the runs that were finished here."""
    done = {name: found for name, found in finished_results(out).items() if name != "vogn"}
    cost = sum(NETWORKS[name].cost * len(found) for name, found in done.items())
    if not cost:
        return ""
    rate = sum(result["seconds"] for found in done.values() for result in found) / cost
    minutes = [rate * run.cost / 60 for run in runs]
    return f": about {_duration(minutes[0])}, {_duration(sum(minutes))} for all that is left"


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
