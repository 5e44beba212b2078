"""What layers cost on a processor: the numbers that decide between two ways of computing the same.

A choice depends on shapes and on the kind of the processor, and on nothing that is measured while a network runs. So a
run agrees with itself when it is continued, and its processes agree with each other. costs.json has the numbers of the
kinds that were measured, by `python benchmarks/costs.py`; other kinds take those of the kind that is called "other".
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.fast.processor import processor_kind

TABLE = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of what a forward pass consists of. A backward pass takes about twice as much of each.

    >>> counted = Costs(convolution=1, product=1)   # nothing but multiplications
    >>> counted.product_time(10, 4, 5)
    200
    """

    convolution: float
    """A multiplication with its addition in a library convolution."""
    product: float
    """A multiplication with its addition in a matrix product."""
    weight: float = 0
    """What a library convolution takes for a weight at least, however few positions there are, if it is trained."""
    byte: float = 0
    """A byte that is read or written, in another order than before."""
    call: float = 0
    """A call, however little it computes."""
    channels_last: float = 1
    """How many times as long a training step of a residual block takes in the channels-last memory format."""

    def convolution_time(
        self, inputs: int, outputs: int, taps: int, pixels: float, positions: float, *, training: bool
    ) -> float:
        """A library convolution that reads so many pixels and writes so many positions, over all images."""
        weights = inputs * outputs * taps
        work = max(weights * positions * self.convolution, weights * self.weight if training else 0)
        return self.call + work + self.moving(pixels * inputs + positions * outputs + weights)

    def product_time(self, rows: float, inputs: int, outputs: int) -> float:
        """A matrix product (rows x inputs) (inputs x outputs)."""
        return self.call + rows * inputs * outputs * self.product

    def moving(self, numbers: float) -> float:
        """So many float32 numbers, read or written."""
        return 4 * numbers * self.byte

    @property
    def layout(self) -> torch.memory_format:
        """The memory format in which a convolutional network is faster."""
        return torch.channels_last if self.channels_last < 1 else torch.contiguous_format

    @classmethod
    def measured(cls, repeats: int = 9) -> Costs:
        """The costs here and now, in about a second: for a processor that the table does not have."""
        image, weight = torch.ones(32, 64, 14, 14), torch.ones(64, 64, 3, 3)
        left, right, pixel = torch.ones(1024, 512), torch.ones(512, 512), torch.ones(1, 1, 1, 1)
        # Images that are hardly larger than the kernel, of which four taps meet them.
        few, many = torch.ones(128, 64, 2, 2, requires_grad=True), torch.ones(512, 64, 3, 3, requires_grad=True)
        took = _medians(
            {
                "convolution": lambda: F.conv2d(image, weight, padding=1),
                "product": lambda: left @ right,
                "weights": _step(lambda: F.conv2d(few, many, stride=2, padding=1), few, many),
                "copy": lambda: image.permute(0, 2, 3, 1).contiguous(),
                "calls": lambda: [F.conv2d(pixel, pixel) for _ in range(20)],
                "contiguous": _block(image),
                "channels last": _block(image.to(memory_format=torch.channels_last)),
            },
            repeats,
        )
        return cls(
            convolution=took["convolution"] / (image.numel() * weight[0].numel()),
            product=took["product"] / (left.numel() * len(right)),
            weight=took["weights"] / (3 * many[..., :2, :2].numel()),
            byte=took["copy"] / (2 * 4 * image.numel()),
            call=took["calls"] / 20,
            channels_last=took["channels last"] / took["contiguous"],
        )


def _step(forward: Callable[[], Tensor], *parameters: Tensor) -> Callable[[], object]:
    """Forward and backward."""

    def step() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(forward().sum(), parameters)

    return step


def _block(image: Tensor) -> Callable[[], object]:
    """A training step of a pooling layer and a residual block."""
    channels = image.shape[1]
    block = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())

    def forward() -> Tensor:
        pooled = F.max_pool2d(image, 3, 2, 1)
        return pooled + block(pooled)

    return _step(forward, *block.parameters())


@torch.no_grad()
def _medians(named: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median nanoseconds of each, in turns, after one call to warm up."""
    times: dict[str, list[int]] = {name: [] for name in named}
    for number in range(repeats + 1):
        for name, run in named.items():
            start = time.perf_counter_ns()
            run()
            if number:
                times[name].append(time.perf_counter_ns() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


@functools.cache
def known_costs(kind: str) -> Costs:
    """The costs of a kind of processor, from the table."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    found = table.get(kind, table["other"])
    return Costs(**{field.name: found[field.name] for field in fields(Costs)})


_ASSUMED: ContextVar[Costs | None] = ContextVar("_ASSUMED", default=None)


def current_costs() -> Costs:
    """The costs by which layers choose: those of this kind of processor, unless `assuming` gives others."""
    return _ASSUMED.get() or known_costs(processor_kind())


@contextmanager
def assuming(given: Costs) -> Iterator[None]:
    """Choose by these costs: `Costs.measured()`, or those of another kind, to make its choices here.

    >>> with assuming(known_costs("other")):
    ...     F.linear(torch.ones(1, 2), torch.ones(3, 2)).shape
    torch.Size([1, 3])
    """
    token = _ASSUMED.set(given)
    try:
        yield
    finally:
        _ASSUMED.reset(token)
