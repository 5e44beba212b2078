"""make bench: this library's speed, memory and size against the plain network and its peers.

All subjects take turns in one process: each round runs every subject once. The ratio of a subject is the median over
rounds of its time divided by the time of the plain network in the same round. Results go to
benchmarks/results/<name>.json with versions and the name of the processor.

    python benchmarks/bench.py [--rounds 15] [--out benchmarks/results/bench.json] [--only steps,predict,...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# glibc would return large blocks to the system, and page faults would get them back.
MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_MMAP_THRESHOLD_": "10000000000",
    "MALLOC_TOP_PAD_": "500000000",
}
if __name__ == "__main__" and "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})

import torch  # noqa: E402  (after the allocator's settings)
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

sys.path.insert(0, str(HERE))
import subjects  # noqa: E402

import kernelseed as ks  # noqa: E402
from kernelseed.core.files import write_json  # noqa: E402
from kernelseed.training.origin import provenance  # noqa: E402

console = Console()


def rounds(named, count, title):
    """The median milliseconds of each subject, and the median of its ratio to the first one in the same round."""
    for run in named.values():
        run()
    times = {name: [] for name in named}
    for _ in track(range(count), title, console=console):
        for name, run in named.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    reference = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(taken) * 1e3, 2),
            "ratio": round(statistics.median(t / r for t, r in zip(taken, reference, strict=True)), 3),
        }
        for name, taken in times.items()
    }


def present(makers, x, y):
    """The subjects whose package is installed; the names of the others are printed."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make(x, y)
        except ImportError as error:
            console.print(f"[yellow]{name} is left out: {error}[/]")
    return found


def steps(count):
    """Training steps, batch 128."""
    x, y = subjects.batch()
    ours = {
        "plain": lambda x, y: subjects.plain(x, y),
        "KSN .25": lambda x, y: subjects.ksn(x, y, 0.25),
        "KSN 1": lambda x, y: subjects.ksn(x, y, 1.0),
        "BNN": subjects.bnn,
        "FKSN .25": lambda x, y: subjects.ksn(x, y, 0.25, fixed=True),
    }
    return rounds(present(ours | subjects.PEERS, x, y), count, "training steps, float32")


def taps(count):
    """Training steps with and without the taps that see only padding, and with channels last."""
    x, y = subjects.batch()
    last = x.to(memory_format=torch.channels_last)
    named = {}
    for name, step in (("plain", subjects.plain), ("KSN .25", subjects.ksn), ("BNN", subjects.bnn)):
        named[name], named[f"{name}, trimmed"] = step(x, y), step(x, y, trimmed=True)
        named[f"{name}, trimmed, channels last"] = step(last, y, trimmed=True)
    return rounds(named, count, "small images")


def steps_bf16(count):
    """Training steps under bfloat16 autocast."""
    x, y = subjects.batch()
    named = {
        "plain": subjects.plain(x, y, bf16=True),
        "KSN .25": subjects.ksn(x, y, 0.25, bf16=True),
        "KSN 1": subjects.ksn(x, y, 1.0, bf16=True),
    }
    start = time.perf_counter()
    named["plain"]()
    # A processor without bfloat16 units takes half a minute per step; one round is enough there.
    return rounds(named, 1 if time.perf_counter() - start > 5 else count, "training steps, bf16")


def floor(count):
    """The matrix products of germination alone, forward and backward: a lower bound on the cost of a draw."""
    x, y = subjects.batch()

    def products(delta):
        weights = [w for _, w in ks.germinate(subjects.model(), delta).weights.items()]
        factors = [
            (torch.cat((w.mean_germinator, w.rho_germinator)).detach(), w.seed.detach().flatten(1)) for w in weights
        ]

        def run():
            for germinators, seed in factors:
                both = germinators @ seed
                germinators.T @ both
                both @ seed.T

        return run

    named = {"plain step": subjects.plain(x, y), "products, δ=.25": products(0.25), "products, δ=1": products(1.0)}
    return rounds(named, count, "floor")


PIECES = {
    "convolutions": ("conv",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::matmul"),
    "the draw's own passes": ("_Germinate", "_MixtureKL"),
    "normals": ("aten::normal_",),
    "optimizer": ("adam",),
}


def profile(count):
    """Milliseconds of a training step by kind of work: plain, KSN .25 with plain operations, and KSN .25 as it is."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    from kernelseed.fast import kernels

    x, y = subjects.batch()
    library = kernels.library
    ways = {"plain": (subjects.plain(x, y), library), "KSN .25 before": (subjects.ksn(x, y), lambda: None)}
    ways["KSN .25 now"] = (subjects.ksn(x, y), library)
    found = {name: dict.fromkeys([*PIECES, "everything else"], 0.0) for name in ways}
    for number in range(4):
        for name, (step, kernels.library) in ways.items():
            with recorded(activities=[ProfilerActivity.CPU]) as record:
                step()
            for event in record.key_averages() if number else ():  # the first round warms up
                pieces = (p for p, marks in PIECES.items() if any(mark in event.key for mark in marks))
                found[name][next(pieces, "everything else")] += event.self_cpu_time_total / 3e3
    kernels.library = library
    pieces = found["plain"]
    return {piece: {name: round(found[name][piece], 1) for name in ways} for piece in pieces}


def predict(count):
    """Ten draws over 2,000 images, compared with ten plain passes."""
    x, _ = subjects.batch(2000)
    plain = subjects.model().eval()
    net = ks.germinate(plain, 0.25)

    @torch.no_grad()
    def ten_passes():
        for _ in range(10):
            for part in x.split(250):
                plain(part).softmax(1)

    named = {"ten plain passes": ten_passes, "predict(samples=10)": lambda: ks.predict(net, x, 10, batch_size=250)}
    return rounds(named, max(2, count // 4), "prediction")


def factorised(count):
    """One forward pass of the factorised mean, compared with the plain network."""
    plain = subjects.model().eval()
    thin = ks.factorise(ks.germinate(plain, 0.25)).eval()
    found = {}
    for size in (128, 1):
        x, _ = subjects.batch(size)

        def forward(net, x=x, repeat=1 if size > 1 else 20):
            with torch.no_grad():
                for _ in range(repeat):
                    net(x)

        named = {
            f"plain, batch {size}": lambda f=forward: f(plain),
            f"factorised, batch {size}": lambda f=forward: f(thin),
        }
        found |= rounds(named, 2 * count, f"factorised forward, batch {size}")
    return found


def single_profile(count):
    """One image: the number of convolutions, the milliseconds in them, and the milliseconds in everything else."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    plain = subjects.model().eval()
    x, found = subjects.batch(1)[0], {}
    for name, net in {"plain": plain, "factorised": ks.factorise(ks.germinate(plain, 0.25)).eval()}.items():
        with torch.no_grad():
            net(x)
            with recorded(activities=[ProfilerActivity.CPU]) as record:
                for _ in range(20):
                    net(x)
        events = record.key_averages()
        # For one image torch replaces some convolutions of oneDNN by matrix products.
        inside = [event for event in events if "conv" in event.key or event.key in ("aten::mm", "aten::addmm")]
        spent = sum(event.self_cpu_time_total for event in inside)
        found[name] = {
            "convolutions": sum(event.count for event in events if event.key == "aten::convolution") // 20,
            "ms in them": round(spent / 20e3, 2),
            "ms in all else": round((sum(event.self_cpu_time_total for event in events) - spent) / 20e3, 2),
        }
    return found


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
        for name, net in {"plain": subjects.model(), "KSN .25": ks.germinate(subjects.model(), 0.25)}.items():
            ks.save(net, Path(folder) / name)
            found[name] = sum(file.stat().st_size for file in (Path(folder) / name).iterdir())
    return {name: {"MB": round(b / 1e6, 2), "ratio": round(b / found["plain"], 3)} for name, b in found.items()}


def imports(count):
    """The time of an import, in new processes."""

    def run(package):
        return lambda: subprocess.run([sys.executable, "-c", f"import {package}"], check=True)

    return rounds({"import torch": run("torch"), "import kernelseed": run("kernelseed")}, max(5, count // 2), "import")


def scaling(count):
    """Milliseconds per step against batch size, delta, width and draws, each with the plain network."""
    found = {}
    for amount in (16, 32, 64, 128, 256):
        x, y = subjects.batch(amount)
        found[f"batch {amount}"] = {"plain": subjects.plain(x, y), "KSN .25": subjects.ksn(x, y)}
    x, y = subjects.batch()
    found["delta"] = {"plain": subjects.plain(x, y)} | {
        f"KSN {delta:g}": subjects.ksn(x, y, delta) for delta in (0.125, 0.25, 0.5, 0.75, 1.0)
    }
    for width in (16, 32, 64, 96):
        found[f"width {width}"] = {
            "plain": subjects.plain(x, y, width),
            "KSN .25": subjects.ksn(x, y, 0.25, width),
        }
    found["draws"] = {"plain": subjects.plain(x, y)} | {
        f"KSN .25 x {draws}": subjects.ksn(x, y, draws=draws) for draws in (1, 2, 4)
    }
    return {name: rounds(named, max(3, count // 4), name) for name, named in found.items()}


def memory_scaling(count):
    """Peak memory of training KSN .25 against batch size and delta."""
    codes = {f"batch {amount}": f"subjects.ksn(*subjects.batch({amount}))" for amount in (16, 64, 128, 256)}
    codes |= {f"delta {delta}": f"subjects.ksn(x, y, {delta})" for delta in (0.25, 0.5, 1.0)}
    return {name: {"MB": _peak(code)} for name, code in codes.items()}


PARTS = {
    f.__name__: f
    for f in (
        steps,
        taps,
        steps_bf16,
        floor,
        profile,
        predict,
        factorised,
        single_profile,
        memory,
        size,
        imports,
        scaling,
        memory_scaling,
    )
}


def show(name, found):
    table = Table("", *next(iter(found.values())), title=PARTS[name].__doc__, title_justify="left")
    for subject, values in found.items():
        table.add_row(subject, *(str(value) for value in values.values()))
    console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "bench.json")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run; the others keep what the file has")
    chosen = parser.parse_args()
    before = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"measured": {}, "made": {}}
    found, made = before["measured"], before["made"]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen.only.split(","):
        found[name] = PARTS[name](chosen.rounds)
        if name != "scaling":
            show(name, found[name])
        setting = "ResNet-18, width 64, ImageNet stem, batch 128, 1 x 28 x 28, Adam"
        where = provenance()
        made[name] = {"rounds": chosen.rounds, "commit": where.pop("commit")}
        write_json(chosen.out, {"setting": setting, "measured": found, "made": made, **where})
    console.print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()
