"""make faults: a small training is killed a hundred times and given full disks; what it leaves must be exact.

    python benchmarks/faults.py --kills 100 --out results/faults.json

Half of the kills are counted: kill -9 just before the n-th operation on a file (create, open, sync, rename, remove).
The other half come at random times. Every second run is killed again while it is resumed. A full disk is a limit on
the size of files, or a small tmpfs where one can be mounted. After each fault the run is resumed until it ends, and
is compared with one that nothing disturbed: weights and predictions bit by bit, metrics, and the names of all files.

Processes are forked from one that has imported torch, so that a kill costs a training and not an import.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelseed.errors import KernelseedError
from kernelseed.training import Config, RunFolder, provenance, train

CONFIG = Config(width=8, epochs=2, batch_size=256, samples=2, update_bn=257, validation=0.1)
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")
Fault = Callable[[Path], Any]


def count_operations(folder: Path, at: Callable[[int], Any]) -> None:
    """Call `at` with the number of each operation on a file below a folder, just before it is done."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        at(done)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and str(folder) in str(arguments[0]):
            step()

    fsync = os.fsync

    def counted_fsync(file: int) -> None:
        step()
        fsync(file)

    sys.addaudithook(audit)
    os.fsync = counted_fsync


def kill_at(number: int) -> Fault:
    """Kill -9 at the n-th operation."""
    return lambda folder: count_operations(
        folder, lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == number else None
    )


def limit_files(size: int) -> Fault:
    """No file may be larger."""
    return lambda folder: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def attempt(run: Path, fault: Fault | None = None, seconds: float | None = None) -> tuple[int, str]:
    """Train or resume in a process of its own, which is killed after some seconds; its exit status and its words."""
    words = run.parent.with_suffix(".txt")
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.dup2(os.open(words, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            if fault is not None:
                fault(run.parent)
            train(CONFIG, run, resume=run.exists(), progress=False)
            code = 0
        except KernelseedError as error:
            print(error, file=sys.stderr)
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), words.read_text()


def is_exact(run: Path, whole: Path) -> bool:
    """Whether two runs ended with the same bits."""
    one, two = RunFolder(run), RunFolder(whole)
    names = [path.name for path in whole.glob("*.safetensors")]
    return (
        len(names) == 5
        and all((run / name).read_bytes() == (whole / name).read_bytes() for name in names)
        and one.result()["metrics"] == two.result()["metrics"]
        and [{**row, "seconds": 0} for row in one.metrics()] == [{**row, "seconds": 0} for row in two.metrics()]
    )


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Trial:
    """One run after another, each in a folder of its own, and what was counted."""

    def __init__(self, work: Path) -> None:
        self.work, self.number = work, 0
        self.whole = self.new()
        operations = work / "operations"
        started = time.perf_counter()
        code, words = attempt(self.whole, lambda folder: count_operations(folder, self.note(operations)))
        assert code == 0, words
        self.seconds = time.perf_counter() - started
        self.operations = int(operations.read_text())

    @staticmethod
    def note(path: Path) -> Callable[[int], Any]:
        return lambda done: os.write(os.open(path, os.O_CREAT | os.O_WRONLY), str(done).encode())

    def new(self) -> Path:
        self.number += 1
        folder = self.work / str(self.number)
        folder.mkdir()
        return folder / "run"

    def conclude(self, run: Path, answers: list[tuple[int, str]]) -> dict[str, int]:
        """Resume a run to its end, and say what is wrong with it."""
        answers = [*answers, attempt(run)]
        ended = answers[-1][0] == 0
        found = {
            "exact": int(ended and is_exact(run, self.whole)),
            "leftovers": int(ended and listing(run.parent) != listing(self.whole.parent)),
            "tracebacks": sum("Traceback" in words for _, words in answers),
        }
        if found != {"exact": 1, "leftovers": 0, "tracebacks": 0}:
            print(run, found, answers, listing(run.parent), file=sys.stderr)
        else:
            shutil.rmtree(run.parent)
        return found

    def kill(self, wanted: int, draw: random.Random) -> Counter[str]:
        """So many kills, some of them of one run."""
        total: Counter[str] = Counter()
        while total["kills"] < wanted:
            run, answers, moments = self.new(), [], 1 + (self.number % 2 and total["kills"] + 1 < wanted)
            for _ in range(moments):
                if draw.random() < 0.5:
                    answers.append(attempt(run, kill_at(draw.randint(1, self.operations))))
                else:
                    answers.append(attempt(run, seconds=draw.uniform(0, self.seconds)))
            kills = sum(code == -signal.SIGKILL for code, _ in answers)
            found = self.conclude(run, answers)
            found["exact"] *= kills
            total.update(found, kills=kills, runs=1)
        return total

    def fill(self, wanted: int) -> Counter[str]:
        """So many limits on the size of files, evenly up to the largest file's."""
        largest = max(path.stat().st_size for path in self.whole.rglob("*") if path.is_file())
        total: Counter[str] = Counter()
        for number in range(wanted):
            run = self.new()
            answer = attempt(run, limit_files(largest * (number + 1) // (wanted + 1)))
            total.update(self.conclude(run, [answer]), faults=1, one_line=int(_is_one_line(answer)))
        return total

    def fill_disks(self, wanted: int) -> Counter[str]:
        """So many disks that are too small, made larger afterwards; none where they can't be mounted."""
        needed = 2 * sum(path.stat().st_size for path in self.whole.rglob("*") if path.is_file())
        total: Counter[str] = Counter()
        for number in range(wanted):
            run = self.new()
            size = needed * (number + 1) // (4 * wanted)
            mount = ["mount", "-t", "tmpfs", "-o"]
            made = subprocess.run([*mount, f"size={size}", "tmpfs", str(run.parent)], capture_output=True)
            if made.returncode:
                shutil.rmtree(run.parent)
                break
            try:
                answer = attempt(run)
                subprocess.run([*mount[:1], "-o", f"remount,size={2 * needed}", str(run.parent)], check=True)
                after = self.new()
                shutil.copytree(run.parent, after.parent, dirs_exist_ok=True)
            finally:
                subprocess.run(["umount", str(run.parent)], check=True)
            total.update(self.conclude(after, [answer]), faults=1, one_line=int(_is_one_line(answer)))
        return total


def _is_one_line(answer: tuple[int, str]) -> bool:
    """Whether the run was refused with one line that says what to do, or had all the room that it needed."""
    code, words = answer
    return code == 0 or (code == 2 and words.count("\n") == 1 and "try again" in words)


def main() -> None:
    """Do it all, and write what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--disks", type=int, default=20, help="limits on the size of files, and as many full disks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/faults.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    CONFIG.load_data()  # imported once
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kernelseed-faults-") as work:
        trial = Trial(Path(work))
        found = {
            "kills": trial.kill(given.kills, random.Random(given.seed)),
            "file_size_limits": trial.fill(given.disks),
            "full_disks": trial.fill_disks(given.disks),
        }
    result = {
        **found,
        "operations": trial.operations,
        "config": CONFIG.as_json(),
        "seed": given.seed,
        "seconds": round(time.perf_counter() - started),
        **provenance(),
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found))
    perfect = all(
        part["exact"] == part["kills"] + part["faults"]
        and part["one_line"] == part["faults"]
        and not part["leftovers"] + part["tracebacks"]
        for part in found.values()
    )
    sys.exit(0 if perfect else "some runs were not exact, left files behind or ended without a word of ours: see above")


if __name__ == "__main__":
    main()
