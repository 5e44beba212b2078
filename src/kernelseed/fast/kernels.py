"""Compile kernels.c once per machine, and call it. Without a C compiler there are no kernels."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.c")
# Not -ffast-math: linking with it would flush denormal numbers to zero in the whole process.
FLAGS = ("-O3", "-march=native", "-std=gnu99", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")

log = logging.getLogger("kernelseed")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None. The first call on a machine takes about a second.

    They are built on Linux only, where torch has loaded an OpenMP runtime that they can share. KERNELSEED_KERNELS=0
    turns them off.
    """
    if platform.system() != "Linux" or os.environ.get("KERNELSEED_KERNELS") == "0":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.info("no C compiler was found: draws use plain PyTorch")
        return None
    try:
        kernels = ctypes.CDLL(str(_built(compiler)))
        for name in ("ks_block", "ks_tiles", "ks_germinate_scratch", "ks_ungerminate_scratch"):
            getattr(kernels, name).restype = ctypes.c_int64
        return kernels
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:  # RuntimeError: there is no home directory
        log.info("the kernels can't be built or loaded (%s): draws use plain PyTorch", error)
        return None


def _built(compiler: str) -> Path:
    """The shared library for this source, compiler and processor; it is compiled if it is not in the cache."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    cpu = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    identity = (*FLAGS, compiler, next((line for line in cpu.splitlines() if line.startswith("flags")), ""))
    digest = hashlib.sha256(_source() + version + "\n".join(identity).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelseed"
    target = folder / f"kernels-{digest}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "kernels.so"
            # Not linked with libgomp: its functions are found in the one that torch has loaded, so that there is one
            # thread pool and not two that compete.
            command = [compiler, *FLAGS, "-nostdlib", str(SOURCE), "-o", str(built)]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
            os.replace(built, target)
    return target


def _source() -> bytes:
    """The C code with everything that it includes."""
    return b"".join(file.read_bytes() for file in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))


def _in_c(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    kind = type(argument)
    return ctypes.c_int64(argument) if kind is int else ctypes.c_int(argument) if kind is bool else argument


def call(name: str, *arguments: Any) -> None:
    """Call a kernel. Tensors are passed by address, sizes as int64; the last argument is torch's number of threads."""
    function: Callable[..., Any] = getattr(library(), name)
    function(*map(_in_c, arguments), torch.get_num_threads())  # an int of Python is one of C


def count(name: str, *arguments: int) -> int:
    """A number that a function of the kernels computes from whole numbers."""
    found: int = getattr(library(), name)(*(ctypes.c_int64(a) for a in arguments))
    return found


def scratch(name: str, rows: int, columns: int, rank: int, mean_bf16: int, rho_bf16: int) -> Tensor:
    """Memory for a kernel, in words of 32 bits, as many as the function of this name says."""
    sizes = (ctypes.c_int64(rows), ctypes.c_int64(columns), ctypes.c_int64(rank))
    words = getattr(library(), name)(*sizes, mean_bf16, rho_bf16, torch.get_num_threads())
    return torch.empty(words, dtype=torch.float32, device="cpu")


def blocks(n: int) -> int:
    """The number of blocks for n elements. Each block has one sum and one range of the noise counter."""
    kernels = library()
    assert kernels is not None
    size = kernels.ks_block()
    return -(-n // size)
