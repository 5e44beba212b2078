"""What a test may take."""

import signal
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def at_most(seconds):
    """Turn a hang into a failure, which no `except Exception` stops."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"still running after {seconds} s"))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def little_memory(megabytes=500):
    """A failure if the block takes more memory than that, at any moment."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _peak()
    yield
    taken = _peak() - before
    assert taken < megabytes, f"{taken:.0f} MB taken"


def _peak():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1000
