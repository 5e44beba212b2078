"""The tables of docs/performance.md: a column for each kind of processor on which the benchmark has run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import goals

ROOT = Path(__file__).resolve().parent.parent
NOT_YET = "Not measured yet; `make bench` does it."


def runs() -> dict[str, dict[Path, Any]]:
    """The whole runs of the benchmark, as their files say, by the kind of processor."""
    found: dict[str, dict[Path, Any]] = {}
    for file in sorted((ROOT / "benchmarks/results").glob("*/*.json")):
        found.setdefault(file.parent.name, {})[file] = json.loads(file.read_text(encoding="utf-8"))
    return found


def results() -> dict[str, Any]:
    """What the runs on each kind of processor measured: the median of each number."""
    return {kind: median([run["measured"] for run in files.values()]) for kind, files in runs().items()}


def median(found: Sequence[Any]) -> Any:
    """The median of numbers; of dictionaries, key by key, those of the runs that have it, and a ratio's `range`."""
    if isinstance(found[0], Mapping):
        keys = dict.fromkeys(key for each in found for key in each)
        whole = {key: median([each[key] for each in found if key in each]) for key in keys}
        ratios = [each["ratio"] for each in found if "ratio" in each]
        return whole | ({"range": [min(ratios), max(ratios)]} if len(ratios) > 1 else {})
    return statistics.median(found) if isinstance(found[0], int | float) else found[-1]


def table(heading: list[str], rows: list[list[str]], words: int = 0) -> str:
    """A table in Markdown: its first column, and so many at its end, to the left, and the others to the right."""
    align = ["---", *("---:" for _ in heading[1 + words :]), *("---" for _ in range(words))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, align, *rows])


def _with_part(part: str) -> dict[str, Any]:
    return {kind: measured[part] for kind, measured in results().items() if measured.get(part)}


def ratios(part: str, heading: str, unit: str = "ms") -> Callable[[], str]:
    """Each subject's ratio to the first one, with its time or size."""

    def build() -> str:
        found = _with_part(part)
        subjects = list(dict.fromkeys(subject for measured in found.values() for subject in measured))

        def cell(measured: dict[str, Any], subject: str) -> str:
            if (values := measured.get(subject)) is None:
                return ""
            amount = f"{values[unit]:.3g}" if values[unit] < 1000 else f"{values[unit]:.0f}"
            return f"{values['ratio']:.2f} ({amount} {unit})"

        rows = [[subject, *(cell(measured, subject) for measured in found.values())] for subject in subjects]
        return table([heading, *found], rows) if found else NOT_YET

    return build


def numbers(part: str, heading: str) -> Callable[[], str]:
    """Each subject's numbers as they are, a table for each kind of processor."""

    def build() -> str:
        found = []
        for kind, measured in _with_part(part).items():
            columns = [column for column in next(iter(measured.values())) if column != "range"]
            rows = [[name, *(_shown(values[column]) for column in columns)] for name, values in measured.items()]
            found.append(table([f"{heading}, {kind}", *columns], rows))
        return "\n\n".join(found) or NOT_YET

    return build


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def profile() -> str:
    """The milliseconds of a step by kind of work, and their sum."""
    found = []
    for kind, measured in _with_part("profile").items():
        ways = list(next(iter(measured.values())))
        rows = [[piece, *(f"{values[way]:g}" for way in ways)] for piece, values in measured.items()]
        total = ["**together**", *(f"**{sum(values[way] for values in measured.values()):.0f}**" for way in ways)]
        found.append(table([f"ms of a step, {kind}", *ways], [*rows, total]))
    return "\n\n".join(found)


def floor() -> str:
    """What is to be reached, what is, and what can't be undercut; a table for each kind of processor."""
    heading = ["measured", "reach", "floor", "above the floor"]
    found = {kind: goals.rows(measured) for kind, measured in results().items()}
    return "\n\n".join(table([kind, *heading], rows, words=1) for kind, rows in found.items() if rows)


def machine() -> str:
    """Which processors, how many threads, and where the numbers are kept."""
    kinds = runs()
    setting = next(iter(next(iter(kinds.values())).values()))["setting"]
    lines = [f"{setting}, unless a table says otherwise. One column for each kind of processor:", ""]
    for kind, files in kinds.items():
        first = next(iter(files.values()))
        features = f" with {', '.join(first['features'])}" if first.get("features") else ""
        about = f"{first['processor']}{features}, {first['threads']} threads, torch {first['versions']['torch']}"
        lines.append(f"- `{kind}`: {about}: {', '.join(_run_link(file, run) for file, run in files.items())}")
    return "\n".join([*lines, "", "Made by `make bench`, which adds a file for the processor that it runs on."])


def _run_link(file: Path, run: Mapping[str, Any]) -> str:
    about = f"commit {run['commit'].rstrip('+')[:7]}, {run['rounds']} rounds" if run.get("commit") else "runs of parts"
    return f"[{about}](../{file.relative_to(ROOT).as_posix()})"


def precision() -> str:
    """What bfloat16 products do to the ELBO, and to networks that were trained with them; means over networks."""
    result = json.loads((ROOT / "results/precision.json").read_text(encoding="utf-8"))
    runs, size = result["runs"], {}
    for where in ("KL, relative", "NLL"):
        size[where, "draws"] = statistics.mean(run["elbo"]["standard deviation of draws"][where] for run in runs)
        for name in ("high", "medium"):
            size[where, name] = statistics.mean(abs(run["elbo"]["mean difference"][name][where]) for run in runs)
    rows = []
    for meaning, name in (("float32", None), ("rho in bfloat16", "high"), ("both in bfloat16", "medium")):
        tested = [run["nll"] for run in runs if run["trained with"] == meaning]
        moved = ["", ""] if name is None else [f"{size[where, name]:.0e}" for where in ("KL, relative", "NLL")]
        rows.append([meaning, *moved, f"{statistics.mean(tested):.3f} ({min(tested):.3f} to {max(tested):.3f})"])
    rows.append(["one draw or another", *(f"{size[where, 'draws']:.0e}" for where in ("KL, relative", "NLL")), ""])
    heading = ["products", "KL moves by, relative", "NLL moves by", "test NLL if trained so"]
    about = (
        f"{len(runs)} networks (ResNet-18, width 16, KSN .25, digits), from "
        "[`results/precision.json`](../results/precision.json), made by `python benchmarks/precision.py`."
    )
    return f"{table(heading, rows)}\n\n{about}"


SECTIONS: dict[str, Callable[[], str]] = {
    "machine": machine,
    "steps": ratios("steps", "training step, float32"),
    "steps_64": ratios("steps_64", "3 x 64 x 64, batch 64"),
    "steps_224": ratios("steps_224", "3 x 224 x 224, batch 8"),
    "steps_bf16": ratios("steps_bf16", "training step, bf16 autocast"),
    "ddp": ratios("ddp", "training step of KSN .25, 128 images, a thread a process"),
    "floor": floor,
    "profile": profile,
    "precision": precision,
    "taps": ratios("taps", "training step, float32"),
    "choices": numbers("choices", "layer, forward and backward"),
    "blocks": ratios("blocks", "a draw with its KL and gradients, plain operations"),
    "operations": numbers("operations", "a draw with its KL and gradients"),
    "predict": ratios("predict", "ten draws, batches of 250"),
    "small_networks": ratios("small_networks", "ten draws, 32 examples; twenty times"),
    "small_profile": numbers("small_profile", "µs of a prediction of the digits MLP"),
    "factorised": ratios("factorised", "one forward (batch 1: twenty)"),
    "folded": ratios("folded", "BatchNorm folded, one forward (batch 1: twenty)"),
    "single_profile": numbers("single_profile", "one image"),
    "memory": ratios("memory", "peak memory of training, of bayesian-torch", "MB"),
    "size": ratios("size", "on disk", "MB"),
    "imports": ratios("imports", "import"),
}
