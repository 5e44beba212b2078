"""What a test may take."""

import signal
from contextlib import contextmanager

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
