"""The cost of the noise: a KSN .25 training step, and the normals that the step needs, made in three ways.

A step makes the noise of every weight twice: for the draw and for its gradient. All subjects take turns in one process,
as in bench.py. It prints medians in milliseconds and as a share of the step in the same round, and writes no file.

    python benchmarks/noise.py [--rounds 15]
"""

import argparse
import ctypes
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import subjects
import torch
from footprint import MALLOC
from timing import rounds

from kernelseed.fast import kernels, philox
from kernelseed.training.origin import provenance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    count = parser.parse_args().rounds
    n = sum(parameter.numel() for parameter in subjects.model().parameters() if parameter.ndim > 1)
    key, noise, zero = torch.tensor([1, 2], dtype=torch.int32), torch.empty(n), ctypes.c_uint32(0)

    def twice(make):
        return lambda: (make(), make())

    named = {
        "training step": subjects.ksn(*subjects.batch()),
        "normals in C": twice(lambda: kernels.call("ks_noise", n, key, zero, zero, noise)),
        "normals by torch's operations": twice(lambda: philox._plain([n], key, [0], [0])),
        "torch.randn": twice(lambda: torch.randn(n, out=noise)),
    }
    found = rounds(named, count, "noise")
    made = provenance()
    print(f"2 x {n / 1e6:.1f} million normals on {made['processor']}, {made['threads']} threads, {count} rounds")
    for name, numbers in found.items():
        print(f"{name:30s} {numbers['ms']:8.1f} ms {numbers['ratio']:7.1%} of a step")


if __name__ == "__main__":
    if not os.environ.keys() >= MALLOC.keys():  # read by the allocator when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    main()
