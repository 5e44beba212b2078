"""What a training step takes, and where its time goes."""

import tempfile
import time
from functools import partial
from pathlib import Path

import floors
import subjects
import torch
from timing import present, rounds

import kernelseed as ks
from kernelseed.fast import kernels


def _beside_products(x, y, bf16=False):
    """A plain step, and KSN steps, each with the products of its germination: plain + products is a lower bound."""
    named = {"plain": subjects.plain(x, y, bf16=bf16)}
    for name, delta in (("KSN .25", 0.25), ("KSN 1", 1.0)):
        net = ks.germinate(subjects.model(x.shape[1]), delta, over="weights")
        named[name], named[f"products of {name}"] = subjects.bayesian(net, x, y, bf16), floors.products(net)
    return named


def steps(count):
    """Training steps, batch 128, 1 x 28 x 28."""
    x, y = subjects.batch()
    ours = {
        "BNN": subjects.bnn,
        "FKSN .25": lambda x, y: subjects.ksn(x, y, 0.25, fixed=True),
        **{name: partial(subjects.over, what=what, ranks=ranks) for name, what, ranks in subjects.OVER},
    }
    named = _beside_products(x, y) | _rounded(x, y) | present(ours | subjects.PEERS, x, y) | floors.of_steps(x, y)
    return rounds(named, count, "training steps, float32")


def _rounded(x, y):
    """KSN .25 with germination's products in bfloat16, for rho or for both, where the processor has units for it."""
    if not kernels.library().ks_has_bf16():
        return {}
    return {f"KSN .25, {name}": subjects.rounded(subjects.ksn(x, y), name) for name in ("high", "medium")}


def steps_64(count):
    """Training steps, batch 64, 3 x 64 x 64."""
    return rounds(_beside_products(*subjects.batch(64, (3, 64, 64))), max(3, count // 2), "training steps, 64 x 64")


def steps_224(count):
    """Training steps, batch 8, 3 x 224 x 224."""
    return rounds(_beside_products(*subjects.batch(8, (3, 224, 224))), max(3, count // 2), "training steps, 224 x 224")


def taps(count):
    """Training steps with and without the taps that see only padding, and with channels last."""
    x, y = subjects.batch()
    last = x.to(memory_format=torch.channels_last)
    named = {}
    for name, step in (("plain", subjects.plain), ("KSN .25", subjects.ksn), ("BNN", subjects.bnn)):
        named[name], named[f"{name}, trimmed"] = step(x, y), step(x, y, trimmed=True)
        named[f"{name}, trimmed, channels last"] = step(last, y, trimmed=True)
    return rounds(named, max(3, count // 2), "small images")


def steps_bf16(count):
    """Training steps under bfloat16 autocast."""
    named = _beside_products(*subjects.batch(), bf16=True)
    start = time.perf_counter()
    named["plain"]()
    # A processor without bfloat16 units takes half a minute per step; one round is enough there.
    return rounds(named, 1 if time.perf_counter() - start > 5 else count, "training steps, bf16")


def ddp(count):
    """A training step of KSN .25 on 128 images in one process, and on 64 images in each of two, a thread each."""
    with tempfile.TemporaryDirectory() as folder:
        taken = {}
        for processes in (1, 2):
            torch.multiprocessing.spawn(subjects.ddp_worker, (processes, folder, count), processes)
            taken[processes] = float((Path(folder) / f"{processes}.txt").read_text())
    return {
        "one process": {"ms": round(taken[1] * 1e3, 2), "ratio": 1.0},
        "two processes, DDP": {"ms": round(taken[2] * 1e3, 2), "ratio": round(taken[2] / taken[1], 3)},
    }


PIECES = {
    "convolutions": ("conv",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::matmul"),
    "the draw's own passes": ("kernelseed",),
    "BatchNorm, ReLU, pooling": ("batch_norm", "threshold_backward", "clamp_min", "max_pool"),
    "optimizer": ("adam",),
    "copies and fills": ("copy_", "clone", "fill_", "zero_"),
}


def profile(count):
    """Milliseconds of a training step by kind of work: plain, KSN .25 by plain operations and as it is, and others."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    x, y = subjects.batch()
    library = kernels.library
    ways = {"plain": (subjects.plain(x, y), library), "KSN .25 before": (subjects.ksn(x, y), lambda: None)}
    ways["KSN .25 now"] = (subjects.ksn(x, y), library)
    ways["KSN .25, medium"] = (subjects.rounded(subjects.ksn(x, y), "medium"), library)
    ways["BNN"] = (subjects.bnn(x, y), library)
    ways["FKSN .25"] = (subjects.ksn(x, y, fixed=True), library)
    ways["over factors"] = (subjects.over(x, y, "factors"), library)
    ways["over channels"] = (subjects.over(x, y, "channels"), library)
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
