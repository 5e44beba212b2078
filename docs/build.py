"""make docs: the tables and figures of README.md and docs/, from the committed result files.

    python docs/build.py            write them
    python docs/build.py --check    fail if what is written differs from the result files
    python docs/build.py --commands print what makes the result files again, for `make results`

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; what is between is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import benchmark_tables
import pruned
import recipe_results
import shift_results
from benchmark_tables import table

from kernelseed import continual
from kernelseed.metrics import METRICS, REGRESSION_METRICS
from kernelseed.reproduction import (
    DATA,
    PRESETS,
    PRINTED,
    ROWS,
    Plan,
    Table,
    claims_markdown,
    lines_markdown,
    notes_markdown,
    paper_table,
    read_results,
    short_commit,
    table_markdown,
)

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/continual.md",
    "docs/decisions.md",
    "docs/methods.md",
    "docs/performance.md",
    "docs/pruning.md",
    "docs/recipe.md",
    "docs/recipe-choices.md",
    "docs/reliability.md",
    "docs/reproduction.md",
    "docs/reproduction-settings.md",
    "docs/tables.md",
    "docs/shift.md",
    "results/README.md",
)


def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def came_from(result: dict[str, Any], path: str, command: str) -> str:
    versions = result["versions"]
    return (
        f"From [`{path}`]({path}), made by `{command}` at commit {short_commit(result['commit'])} with torch "
        f"{versions['torch']} on an {result['processor']}, {result['threads']} threads."
    )


def methods(path: str, command: str) -> str:
    """A table of runs, the best of each column in bold."""
    results = read(path)
    lines = [
        (result["labels"][way], result["parameters"], result["metrics"][way])
        for result in results
        for way in ("ensemble", "mean")
        if way in result["metrics"]
    ]
    best = {key: metric.best(found[key] for *_, found in lines) for key, metric in PRINTED.items()}
    rows = []
    for label, parameters, found in lines:
        shown = {key: metric.show(found[key]) for key, metric in PRINTED.items()}
        cells = [f"**{text}**" if text == best[key] else text for key, text in shown.items()]
        rows.append([label, f"{parameters['trained'] / 1e6:.2f}M", f"{parameters['relative']:.2f}", *cells])
    config = results[0]["config"]
    about = (
        f"{config['data']}, ResNet-18 of width {config['width']}, {config['epochs']} epochs, seed {config['seed']}. "
        "RS: parameters relative to the plain network."
    )
    heading = ["Model", "Params", "RS", *(metric.heading for metric in PRINTED.values())]
    return "\n\n".join((table(heading, rows), about, came_from(results[0], path, command)))


def faults() -> str:
    result = read("results/faults.json")
    kinds = {
        "kills": "kill -9",
        "file_size_limits": "a limit on the size of files",
        "full_disks": "a full disk (tmpfs)",
    }
    rows = []
    for kind, name in kinds.items():
        found = {"kills": 0, "faults": 0, **result[kind]}
        times = found["kills"] + found["faults"]
        counts = (times, found["exact"], found.get("one_line", ""), found["tracebacks"], found["leftovers"])
        rows.append([name, *map(str, counts)])
    heading = ["fault", "times", "same bits after `--resume`", "told in one line", "tracebacks", "runs with files left"]
    about = (
        f"From [`results/faults.json`](../results/faults.json), made by `make faults` at commit "
        f"{short_commit(result['commit'])} with torch {result['versions']['torch']} on an {result['processor']} in "
        f"{result['seconds'] / 60:.0f} minutes. A run has {result['operations']} operations on files at which it can "
        "be killed, and any time in between."
    )
    return f"{table(heading, rows)}\n\n{about}"


UCI = {"concrete": ("5.2", "3.04"), "energy": ("1.66", "1.99")}
"""RMSE and NLL of MC-dropout in Gal and Ghahramani (2016): one hidden layer of 50, 20 splits."""


def uci_tables() -> str:
    keys, names = ("rmse", "nll", "crps", "coverage_90"), {"plain": "plain", "dropout": "MC-dropout .05", "bnn": "BNN"}
    names |= {"ksn .25": "KSN δ=.25", "ksn 1": "KSN δ=1"}
    parts = []
    for name, (rmse, nll) in UCI.items():
        result = read(f"results/tables/{name}.json")
        rows = []
        for method, found in result["found"].items():
            each = [found["metrics"][key] for key in keys]
            cells = [f"{one['mean']:.2f} ± {one['error']:.2f}" for one in each]
            rows.append([names[method], f"{found['metrics']['parameters']['mean']:,.0f}", *cells])
        rows.append(["*MC-dropout, published*", "", rmse, nll, "", ""])
        parts.append(table([name, "Params", *(REGRESSION_METRICS[key].heading for key in keys)], rows))
    settings = result["settings"]
    parts.append(
        f"Mean and standard error over {result['splits']} of the published splits; {settings['widths']} hidden units, "
        f"{settings['steps']} steps of {settings['batch_size']} rows, Adam from {settings['lr']} by a cosine, "
        f"{settings['samples']} draws. From [`results/tables`](../results/tables), made by `python "
        f"benchmarks/tables.py FOLDER` at commit {short_commit(result['commit'])} with torch "
        f"{result['versions']['torch']} on an {result['processor']}. The published numbers are of one hidden layer and "
        "20 splits."
    )
    return "\n\n".join(parts)


def reproduced(folder: str, data: str) -> Table:
    preset = folder.rpartition("/")[2].partition("-")[0]
    return paper_table(data, read_results(ROOT / "results" / folder / data), preset)


def reproduction(data: str) -> Callable[[], str]:
    def build() -> str:
        preset = presets_shown()[data]
        folder = f"results/{preset}/{data}"
        made_by = f"From [`{folder}`](../{folder}), made by {_quoted(reproducing(preset, data))}."
        return f"{table_markdown(reproduced(preset, data))} {made_by}"

    return build


def presets_shown() -> dict[str, str]:
    """The preset of each data set's table and panel: the largest that was run."""
    return {data: next(preset for preset in PRESETS if (ROOT / "results" / preset / data).is_dir()) for data in DATA}


def tables() -> list[tuple[str, str]]:
    """The folders of result files that are tables of the paper: preset and data."""
    parts = (path.relative_to(ROOT / "results").parts for path in sorted((ROOT / "results").glob("*/*/")))
    return [(folder, data) for folder, data in parts if folder.partition("-")[0] in PRESETS]


def results_index() -> str:
    """What is in each folder of result files, and the command that makes them again."""
    rows = []
    for folder, data in tables():
        found = read_results(ROOT / "results" / folder / data)
        seeds = sum(map(len, found.values()))
        rows.append([f"`{folder}/{data}`", ", ".join(found), str(seeds), _quoted(reproducing(folder, data))])
    return table(["folder", "networks", "runs", "made by"], rows)


def commands() -> list[str]:
    """What trains everything again that tables and figures are made of; with the results in place, nothing."""
    return [
        *(line for folder, data in tables() for line in reproducing(folder, data)),
        *(recipe_results.command(study) for study in recipe_results.studies()),
        *(f"kernelseed continual {name} --results results/continual" for name in ("split-mnist", "permuted-mnist")),
    ]


VARIANTS: dict[str, dict[str, Any]] = {"": {}, "blundell": {"kl": "blundell"}, "update-bn": {"update_bn": 4096}}
"""Folders of result files beside the tables', `PRESET-VARIANT`, and what differs there."""


def _quoted(commands: list[str]) -> str:
    return " and ".join(f"`{command}`" for command in commands)


def reproducing(folder: str, data: str) -> list[str]:
    """The commands that make the result files of a table again, one for each number of seeds."""
    results = read_results(ROOT / "results" / folder / data)
    by_seeds: dict[int, list[str]] = {}
    for network, found in results.items():
        by_seeds.setdefault(len(found), []).append(network)
    return [_command(folder, data, networks, seeds, results) for seeds, networks in sorted(by_seeds.items())]


def _command(folder: str, data: str, networks: list[str], seeds: int, results: Mapping[str, list[Any]]) -> str:
    preset, _, variant = folder.partition("-")
    words = ["kernelseed reproduce", data, "--preset", preset]
    for option, value in VARIANTS[variant].items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    if {run.network for run in Plan(data, preset, **VARIANTS[variant]).runs()} != set(networks):
        words += ["--rows", ",".join(networks)]
    for draws in (
        {found["config"]["options"]["train_samples"] for found in results["vogn"]} if "vogn" in networks else ()
    ):
        words += ["--vogn-samples", str(draws)]
    if seeds > 1:
        words += ["--seeds", str(seeds)]
    return " ".join([*words, "--results results"])


def with_blundells_weight() -> str:
    lines = [line for line in reproduced("paper-blundell", "fashion-mnist").lines if line.cells["nll"].ours is not None]
    return lines_markdown(lines)


def beside(folders: tuple[str, str], names: tuple[str, str]) -> Callable[[], str]:
    """Rows that are in both folders of result files, their numbers in one next to those in the other."""
    keys = ("accuracy", "nll", "ece")

    def build() -> str:
        heading = ["Row", *(f"{METRICS[key].heading}, {name}" for key in keys for name in names)]
        rows = []
        for data in DATA:
            shown = [reproduced(folder, data) for folder in folders]
            for aside, block in (("", "lines"), (", own defaults", "own_lines")):
                for pair in zip(*(getattr(each, block) for each in shown), strict=True):
                    if all(line.cells["nll"].ours is not None for line in pair):
                        numbers = [METRICS[key].show(line.cells[key].ours) for key in keys for line in pair]
                        rows.append([f"{shown[0].title}, {pair[0].row.name}{aside}", *numbers])
        return table(heading, rows)

    return build


SHORT = ("Baseline", "MC-Drop", "KSN-E 0.25", "KSN-P 0.25", "FKSN 0.25", "BNN-E", "BNN-P")


def in_short() -> str:
    """The rows that most people look for, as a table of their own."""
    wanted = {row.network for row in ROWS if row.name in SHORT}
    found = read_results(ROOT / "results/paper/fashion-mnist")
    shown = paper_table("fashion-mnist", {network: found[network] for network in found if network in wanted})
    lines = [line for line in shown.lines if line.row.name in SHORT]
    return f"{lines_markdown(lines)}\n\n{shown.remarks[0]}"


def tasks_in_turn(name: str) -> Callable[[], str]:
    """All approaches on a benchmark of continual learning, over their seeds."""

    def build() -> str:
        results = continual.read_results_of(name, ROOT / "results/continual")
        command = f"kernelseed continual {name} --results results/continual"
        if not results:
            return f"Not run yet: `{command}`."
        rows = [line.cells() for line in continual.lines_of(name, results)]
        commits = ", ".join(sorted({short_commit(result["commit"]) for result in results}))
        about = (
            f"From [`results/continual`](../results/continual), made by `{command}` at commit {commits} with torch "
            f"{results[0]['versions']['torch']} on an {results[0]['processor']}."
        )
        return f"{table(continual.HEADING, rows)}\n\n{about}"

    return build


def decisions() -> str:
    """How often the promises were kept over the splits."""
    result = read("results/decisions.json")
    settings, splits, config = result["settings"], result["splits"], result["config"]

    def mean(kind: str, key: str) -> float:
        return sum(split[kind][key] for split in splits) / len(splits)

    rows = [
        [name, *(f"{mean(kind, key):.2%}" for key in ("error", "answered")), f"{broken} of {len(splits)}"]
        for name, kind in ((f"{settings['risk']:.0%} in validation", "plug_in"), ("with a bound", "bound"))
        for broken in [sum(split[kind]["error"] > settings["risk"] for split in splits)]
    ]
    sets = []
    for name, kind in (("for all together", "sets"), ("`by_class=True`", "sets_by_class")):
        each = zip(*(split[kind]["by_class"] for split in splits), strict=True)
        of_class = [sum(held) / len(splits) for held in each]
        sets.append([name, f"{mean(kind, 'coverage'):.2%}", f"{min(of_class):.2%}", f"{mean(kind, 'size'):.2f}"])
    about = (
        f"{config['data']}, {config['method']} on a ResNet-18 of width {config['width']}, {config['epochs']} epochs, "
        f"seed {config['seed']}: {settings['examples']:,} predictions for images that it was not trained on, split "
        f"{len(splits)} times into {settings['choose']:,} to choose by and the rest to test on. From "
        f"[`results/decisions.json`](../results/decisions.json), made by the two lines at the top of "
        f"[`benchmarks/decisions.py`](../benchmarks/decisions.py) at commit {short_commit(result['commit'])} with "
        f"torch {result['versions']['torch']}."
    )
    risk, coverage = (f"{settings[key]:.0%}" for key in ("risk", "coverage"))
    first = table([f"threshold for a risk of {risk}", "wrong answers, mean", "answered", "risk broken"], rows)
    heading = [f"sets for a coverage of {coverage}", "hold the class, mean", "worst class", "classes in a set"]
    second = table(heading, sets)
    return f"{first}\n\n{second}\n\n{about}"


def logistic() -> str:
    """How far the posteriors of VOGN and Vadam are from the best of their kind."""
    result = read("results/logistic.json")
    groups: dict[tuple[str, int], list[dict[str, float]]] = {}
    for found in result["found"]:
        groups.setdefault((found["method"], found["batch"]), []).append(found)
    rows = [
        [method, str(batch), *(f"{sum(one[key] for one in each) / len(each):.2f}" for key in ("gap", "of_mean", "std"))]
        for (method, batch), each in groups.items()
    ]
    heading = ["optimizer", "batch", "bound above the optimum, nats", "of which the mean", "deviations, of the best"]
    settings = result["settings"]
    about = (
        f"Means over {len(next(iter(groups.values())))} seeds, {settings['examples']:,} examples each; the optimum is "
        f"{result['negative_bound']:.2f} nats. "
        + came_from(result, "results/logistic.json", "python benchmarks/logistic.py results/logistic.json")
    )
    return f"{table(heading, rows)}\n\n{about.replace('](results', '](../results')}"


SECTIONS: dict[str, Callable[[], str]] = {
    "demo": lambda: methods("results/demo.json", "kernelseed demo --json"),
    "in_short": in_short,
    "reproduction_notes": lambda: notes_markdown(reproduced("paper", "fashion-mnist")),
    **{f"reproduction_{data.replace('-', '_')}": reproduction(data) for data in DATA},
    "results_index": results_index,
    "reproduction_blundell": with_blundells_weight,
    "reproduction_twice": beside(("earlier/paper", "earlier/paper-again"), ("first", "again")),
    "reproduction_update_bn": beside(("earlier/paper-again", "paper-update-bn"), ("running", "re-estimated")),
    "reproduction_claims": lambda: claims_markdown(
        [reproduced(preset, data) for data, preset in presets_shown().items() if preset != "small"]
    ),
    "continual_split": tasks_in_turn("split-mnist"),
    "continual_permuted": tasks_in_turn("permuted-mnist"),
    "corruptions": shift_results.level_table,
    "shift": shift_results.shift_table,
    "shift_corruptions": shift_results.corruption_table,
    "ood_auroc": lambda: shift_results.ood_table("auroc"),
    "ood_fpr": lambda: shift_results.ood_table("fpr_at_95_tpr"),
    "decisions": decisions,
    "pruning": pruned.table,
    "pruning_sizes": pruned.sizes,
    "pruning_tried": pruned.tried,
    "faults": faults,
    "logistic": logistic,
    "uci_tables": uci_tables,
    **recipe_results.SECTIONS,
    **benchmark_tables.SECTIONS,
}


def filled(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{SECTIONS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", replace, text, flags=re.DOTALL)


def main() -> None:
    if "--commands" in sys.argv:
        print(*commands(), sep="\n")
        return
    if "--check" in sys.argv:
        stale = [page for page in PAGES if filled(page) != (ROOT / page).read_text(encoding="utf-8")]
        sys.exit(f"{', '.join(stale)}: not what the result files say; run make docs" if stale else 0)
    for page in PAGES:
        text = filled(page)
        (ROOT / page).write_text(text, encoding="utf-8")
    import drawing

    drawing.write_all(ROOT)


if __name__ == "__main__":
    main()
