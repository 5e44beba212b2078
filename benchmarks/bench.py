"""make bench: this library's speed, memory and size against the plain network and its peers.

All subjects take turns in one process: each round runs every subject once. The ratio of a subject is the median over
rounds of its time divided by the time of the plain network in the same round. A whole run adds a file to
benchmarks/results/<kind of processor>/, at the end and at one commit. The docs show a column for each kind: the median
of its runs, and how far they lie apart. Runs of code that was slower or faster are to be deleted.

    python benchmarks/bench.py                          # everything: ten minutes on two cores with nothing else to do
    python benchmarks/bench.py --parts steps,predict    # only these: printed, and written only with --out FILE
"""

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import parts  # noqa: E402
from footprint import MALLOC  # noqa: E402
from rich.table import Table  # noqa: E402
from timing import console  # noqa: E402

from kernelseed.fast import processor_features, processor_kind  # noqa: E402
from kernelseed.system.files import write_json  # noqa: E402
from kernelseed.training.origin import provenance  # noqa: E402

SETTING = "ResNet-18, width 64, ImageNet stem, batch 128, 1 x 28 x 28, Adam"


def show(name, found):
    """One part as a table."""
    first = next(iter(found.values()))
    table = Table("", *first, title=parts.PARTS[name].__doc__, title_justify="left")
    for subject, values in found.items():
        table.add_row(subject, *(str(value) for value in values.values()))
    console.print(table)


def run(names, count):
    """What the parts found, by name. A part whose tools are not installed is left out."""
    found = {}
    for name in names:
        start = time.perf_counter()
        try:
            found[name] = parts.PARTS[name](count)
        except ImportError as error:
            console.print(f"[yellow]{name} is left out: {error}[/]")
            continue
        if name != "scaling":
            show(name, found[name])
        console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    return found


def new_file(folder):
    """A name for a whole run, which says its commit; no run overwrites another."""
    folder.mkdir(parents=True, exist_ok=True)
    commit = (provenance()["commit"] or "unknown").rstrip("+")[:7]
    number = sum(1 for _ in folder.glob(f"{commit}*.json"))
    return folder / (f"{commit}-{number + 1}.json" if number else f"{commit}.json")


def main():
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", help=f"some of {', '.join(parts.PARTS)}; all of them by default")
    parser.add_argument("--out", type=Path, help="where to write the results of some parts")
    chosen = parser.parse_args()
    names = chosen.parts.split(",") if chosen.parts else list(parts.PARTS)
    if unknown := [name for name in names if name not in parts.PARTS]:
        parser.error(f"--parts has {', '.join(unknown)}; allowed are {', '.join(parts.PARTS)}")
    if not os.environ.keys() >= MALLOC.keys():  # read by the allocator when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    start = time.perf_counter()
    found = run(names, chosen.rounds)
    out = chosen.out or (None if chosen.parts else new_file(HERE / "results" / processor_kind()))
    if out is not None:
        about = {"kind": processor_kind(), "features": processor_features(), "rounds": chosen.rounds, **provenance()}
        seconds = round(time.perf_counter() - start)
        write_json(out, {"setting": SETTING, "measured": found, "seconds": seconds, **about})
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
