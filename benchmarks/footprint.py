"""What a network takes of memory and disk, and its import of time; each in new processes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import subjects
from timing import rounds

import kernelseed as ks

HERE = Path(__file__).resolve().parent
# glibc would return large blocks to the system, and page faults would get them back.
MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_MMAP_THRESHOLD_": "10000000000",
    "MALLOC_TOP_PAD_": "500000000",
}


def _peak(code):
    """Peak resident megabytes of a new process that trains for three steps, minus the peak before the network."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import subjects, torch\n"
        # Not getrusage, whose peak is inherited from the parent process.
        "peak = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024\n"
        "x, y = subjects.batch(); torch.randn(64, 64) @ torch.randn(64, 64); before = peak()\n"
        f"step = {code}\nfor _ in range(3):\n    step()\nprint(peak() - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(HERE)], capture_output=True, text=True, env=_without_malloc()
    )
    return round(float(ran.stdout), 1) if ran.returncode == 0 else None


def _without_malloc():
    return {key: value for key, value in os.environ.items() if key not in MALLOC}


def memory(count):
    """Peak memory of training, batch 128."""
    named = {
        "bayesian-torch BNN": "subjects.bayesian_torch(x, y)",
        "plain": "subjects.plain(x, y)",
        "KSN .25": "subjects.ksn(x, y, 0.25)",
        "KSN 1": "subjects.ksn(x, y, 1.0)",
        "BNN": "subjects.bnn(x, y)",
    }
    peaks = {name: _peak(code) for name, code in named.items()}
    reference = peaks["bayesian-torch BNN"] or float("nan")
    return {name: {"MB": peak, "ratio": round(peak / reference, 3)} for name, peak in peaks.items() if peak}


def size(count):
    """The size of a saved network, compared with the plain network."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, net in {
            "plain": subjects.model(),
            "KSN .25": ks.germinate(subjects.model(), 0.25, over="weights"),
        }.items():
            ks.save(net, Path(folder) / name)
            found[name] = sum(file.stat().st_size for file in (Path(folder) / name).iterdir())
    return {name: {"MB": round(b / 1e6, 2), "ratio": round(b / found["plain"], 3)} for name, b in found.items()}


def imports(count):
    """The time of an import, in new processes."""

    def run(package):
        return lambda: subprocess.run([sys.executable, "-c", f"import {package}"], check=True)

    return rounds({"import torch": run("torch"), "import kernelseed": run("kernelseed")}, 5, "import")


def memory_scaling(count):
    """Peak memory of training KSN .25 against batch size and delta."""
    codes = {f"batch {amount}": f"subjects.ksn(*subjects.batch({amount}))" for amount in (16, 64, 128, 256)}
    codes |= {f"delta {delta}": f"subjects.ksn(x, y, {delta})" for delta in (0.25, 0.5, 1.0)}
    return {name: {"MB": _peak(code)} for name, code in codes.items()}
