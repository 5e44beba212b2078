"""How much memory there is: what a file or a setting asks for is compared with it before anything is allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

GIGA = 1e9
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """The bytes that this process may have at most: of the machine, of its container, or of its own limit."""
    if resource is None:
        return sys.maxsize
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(limits) if own == resource.RLIM_INFINITY else min(*limits, own)


def gigabytes(size: float) -> str:
    """1,234,567,890 as "1.2 GB"."""
    return f"{size / GIGA:,.1f} GB"
