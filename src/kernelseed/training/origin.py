"""Where a number came from: versions, machine and commit, for every result file."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("kernelseed", "torch", "lightning", "numpy", "ivon-opt")


KEYS = ("versions", "processor", "threads", "commit")


def provenance() -> dict[str, Any]:
    """Versions of what computed, the processor, the thread count and the source's commit."""
    return {
        "versions": {"python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}},
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The commit of the source that runs, with "+" where it has been changed since; None for an installed package."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        # A package installed inside somebody else's repository is no commit of ours.
        if not git("ls-files", "--", str(here / "__init__.py")):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
