"""The derivation of all seeds: every random number of a run depends on the seed of the run and on its purpose."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(purpose: str, *numbers: int) -> int:
    """A seed for one purpose, independent of the seeds for other purposes or numbers.

    It has 63 bits, of which torch's CPU generator uses 32.

    >>> derive_seed("order", 0, 1) != derive_seed("order", 1, 0) != derive_seed("noise", 1, 0)
    True
    """
    words = " ".join((purpose, *map(str, numbers)))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by `derive_seed`."""
    return torch.Generator(device).manual_seed(derive_seed(purpose, *numbers))
