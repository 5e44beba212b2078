"""The kind of processor: what decides how fast one way of computing is compared with another."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")
VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
GENERATIONS = {("AuthenticAMD", "26"): "zen5"}
"""Families that have the units of an older one, but are wider: Zen 5 multiplies 512 bits at once where Zen 4 takes two
halves."""


@functools.cache
def processor_features() -> tuple[str, ...]:
    """The vector and matrix units that the processor has, as Linux names them; empty on other systems."""
    has = set(_cpuinfo("flags", "Features").split())
    return tuple(name for name in FEATURES if name in has)


@functools.cache
def processor_kind() -> str:
    """A short name for all processors that are alike in what matters here, such as "amd-avx512-bf16".

    It consists of the maker, of the generation where that matters, of the vector units that torch uses, and of the
    units for bfloat16.
    """
    maker = _cpuinfo("vendor_id")
    names = [VENDORS.get(maker, maker.lower() or platform.machine().lower())]
    names += [generation] if (generation := GENERATIONS.get((maker, _cpuinfo("cpu family")))) else []
    names.append(torch.backends.cpu.get_cpu_capability().lower().replace(" ", ""))
    bf16 = {"avx512_bf16": "bf16", "bf16": "bf16", "amx_bf16": "amx"}
    names += sorted({bf16[feature] for feature in processor_features() if feature in bf16})
    return "-".join(names)


def _cpuinfo(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() in keys), "")
