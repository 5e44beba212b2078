"""Train what a table needs, one network after another; what is finished is never trained again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelseed.files import StorageError, read_json, write_json
from kernelseed.reproduction.plan import NETWORKS, Plan, Run
from kernelseed.training import RunFolder

Result = dict[str, Any]
MACHINE = ("devices", "nodes", "accelerator", "strategy")
"""Settings that a run may be finished with elsewhere: they are not what its numbers are about."""


def reproduce(
    plan: Plan,
    out: str | Path,
    *,
    results: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: bool = True,
    tell: Callable[[str], Any] = lambda line: None,
) -> dict[str, list[Result]]:
    """Run what is missing of a plan, and return all that is finished: for each network its results, a seed each.

    Where several processes train together, the first of them alone keeps results, and the others return nothing.

    out      holds a run folder for each training, `PRESET/DATA/NETWORK/seed-N`; a stopped one goes on where it was
    results  holds a copy of each result, `PRESET/DATA/NETWORK-seed-N.json`: small, to be committed and compared. A
             run whose result is here already is done, wherever it was made
    tell     is given a line of text before each training
    """
    root, out = out, Path(out) / plan.folder
    kept = None if results is None else Path(results) / plan.folder
    runs = plan.runs()
    for run in runs:  # all complaints before the first hour of training
        _require_same_setting(run, out, kept)
    others = False
    for name in plan.left_out():
        tell(f"{name} trains in one process and is left out: run it by itself, on one device")
    missing = [run for run in runs if not _finished(run, out, kept)]
    for number, run in enumerate(missing):
        tell(f"{number + 1}/{len(missing)} {run.name}{_time_left(missing[number:], out)}")
        if not _train(run, _run_folder(run, out), data_dir, progress):
            others = True
            continue
        _keep(run, out, kept)
    if others:
        return {}
    for run in runs:  # finished before there was a place for copies, or stopped just before the copy
        _keep(run, out, kept)
    return collected(plan.folder, root, results)


def collected(folder: str, out: str | Path, results: str | Path | None) -> dict[str, list[Result]]:
    """What there is of one table, `PRESET/DATA`: by the result files if they have a place, else by the run folders."""
    return finished_results(Path(out) / folder) if results is None else read_results(Path(results) / folder)


def finished_results(folder: Path) -> dict[str, list[Result]]:
    """What the run folders of one table hold, unfinished ones left out."""
    return {
        network: found
        for network in NETWORKS
        if (found := [RunFolder(path.parent).result() for path in sorted(folder.glob(f"{network}/seed-*/result.json"))])
    }


def read_results(folder: Path) -> dict[str, list[Result]]:
    """What the result files of one table hold."""
    return {
        network: found
        for network in NETWORKS
        if (found := [read_json(path) for path in sorted(folder.glob(f"{network}-seed-*.json"))])
    }


def _train(run: Run, folder: Path, data_dir: str | Path | None, progress: bool) -> Result:
    from kernelseed.training import train  # Lightning takes seconds to import, and a table can be shown without

    folder.parent.mkdir(parents=True, exist_ok=True)
    return train(run.config, folder, resume=folder.exists(), data_dir=data_dir, progress=progress)


def _run_folder(run: Run, out: Path) -> Path:
    return out / run.network / f"seed-{run.config.seed}"


def _result_file(run: Run, kept: Path) -> Path:
    return kept / f"{run.name}.json"


def _finished(run: Run, out: Path, kept: Path | None) -> bool:
    return RunFolder(_run_folder(run, out)).finished or (kept is not None and _result_file(run, kept).exists())


def _keep(run: Run, out: Path, kept: Path | None) -> None:
    folder = RunFolder(_run_folder(run, out))
    if kept is None or not folder.finished or _result_file(run, kept).exists():
        return
    kept.mkdir(parents=True, exist_ok=True)
    write_json(_result_file(run, kept), folder.result())


def _require_same_setting(run: Run, out: Path, kept: Path | None) -> None:
    """What stands in the run's place must be this run, or nothing is touched."""
    places = {}
    if kept is not None and (file := _result_file(run, kept)).exists():
        places[file] = read_json(file)["config"]
    if (folder := _run_folder(run, out)).exists():
        places[folder] = RunFolder(folder).training_config().as_json()
    for place, there in places.items():
        wanted = run.config.as_json()
        other = [key for key in wanted if key not in MACHINE and wanted[key] != there.get(key)]
        if other:
            raise StorageError(
                f"{place} was made with {', '.join(f'{key} {there.get(key)!r}' for key in other)}, not with "
                f"{', '.join(f'{key} {wanted[key]!r}' for key in other)}; choose another --out and --results, or move "
                "it away."
            )


def _time_left(runs: list[Run], out: Path) -> str:
    """How long, by the runs that were finished here."""
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
