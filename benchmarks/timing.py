"""Subjects that take turns, and the medians of what they took."""

import contextlib
import functools
import statistics
import time
from unittest import mock

from rich.console import Console
from rich.progress import track

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
            "ms": float(f"{statistics.median(taken) * 1e3:.5g}"),
            "ratio": round(statistics.median(t / r for t, r in zip(taken, reference, strict=True)), 3),
        }
        for name, taken in times.items()
    }


def pieces(run, functions, count):
    """The median seconds of a run in each of these functions, {piece: (owner, name)}, and in everything else."""
    taken = {}

    def timed(piece, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken[piece] = taken.get(piece, 0.0) + time.perf_counter() - start

        return call

    records = []
    with contextlib.ExitStack() as replaced:
        for piece, (owner, name) in functions.items():
            replaced.enter_context(mock.patch.object(owner, name, timed(piece, getattr(owner, name))))
        for _ in range(count):
            taken.clear()
            start = time.perf_counter()
            run()
            whole = time.perf_counter() - start
            records.append({**taken, "everything else": whole - sum(taken.values())})
    return {
        piece: statistics.median(record.get(piece, 0.0) for record in records)
        for piece in [*functions, "everything else"]
    }


def present(makers, *given):
    """The subjects whose package is installed; the names of the others are printed."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make(*given)
        except ImportError as error:
            console.print(f"[yellow]{name} is left out: {error}[/]")
    return found
