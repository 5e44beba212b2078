"""Many Gaussians drawn at once: slices of one flat tensor, so that a whole network takes a dozen operations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from kernelseed.core.distributions import Decoded, Gaussian, Prior, Sample, as_when_drawn
from kernelseed.core.noise import Noise, normals
from kernelseed.core.priors import Elementwise
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.fast import flatten, in_blocks, split, stored_as


@runtime_checkable
class OfGaussians(Decoded, Protocol):
    """A decoded weight made of independent Gaussians, which can be drawn together with those of other weights."""

    @property
    def gaussians(self) -> Sequence[Gaussian | RhoGaussian]:
        """What is drawn, each with the noise of its part."""
        ...

    def joined(self, samples: Sequence[Sample]) -> Sample:
        """The sample of the weight, from one sample of each Gaussian."""
        ...


Name = tuple[int, int]
"""The index of a weight in the network, and of one of its Gaussians."""


class Joint:
    """Decoded weights, by their indices in the network, whose Gaussians are drawn together."""

    def __init__(self, decoded: Mapping[int, Decoded]) -> None:
        # Asked once: a question of this kind takes longer than drawing a small weight.
        self._together = {index: weight for index, weight in decoded.items() if isinstance(weight, OfGaussians)}
        self._decoded = decoded
        alike: dict[Hashable, dict[Name, Gaussian | RhoGaussian]] = {}
        for index, weight in self._together.items():
            for part, gaussian in enumerate(weight.gaussians):
                if not gaussian.fixed:
                    alike.setdefault(_statement(gaussian), {})[index, part] = gaussian
        self._alone: dict[Name, Gaussian] = {}
        self._blocks: list[_Block] = []
        for members in alike.values():
            device = next(iter(members.values())).mean.device
            for block in in_blocks(members.items(), lambda member: member[1].shape.numel(), device):
                if len(block) > 1:
                    self._blocks.append(_Block(dict(block)))
                else:
                    [(name, gaussian)] = block
                    self._alone[name] = gaussian.moments()

    def sample(self, noise: Noise) -> dict[int, Sample]:
        """Draw every weight once, with its own noise."""
        made: dict[Name, Sample] = {name: g.sample(_noise_of(name, noise)) for name, g in self._alone.items()}
        for block in self._blocks:
            made |= block.sample(noise)
        samples = {}
        for index, weight in self._decoded.items():
            if (joint := self._together.get(index)) is not None:
                parts = enumerate(joint.gaussians)
                samples[index] = joint.joined([made.get((index, part)) or g.at_mean() for part, g in parts])
            else:
                samples[index] = weight.sample(noise.for_weight(index))
        return samples


def _noise_of(name: Name, noise: Noise) -> Noise:
    return Noise(noise.key, *name)


def _statement(gaussian: Gaussian | RhoGaussian) -> Hashable:
    """What Gaussians must have in common to be stated by the same flat tensors."""
    return type(gaussian), *((tensor.dtype, tensor.device) for tensor in gaussian.stored())


class _Block:
    """Gaussians that are stated alike, as one flat Gaussian."""

    def __init__(self, members: Mapping[Name, Gaussian | RhoGaussian]) -> None:
        self._names, gaussians = list(members), list(members.values())
        columns = zip(*(gaussian.stored() for gaussian in gaussians), strict=True)
        self._flat = gaussians[0].restated(*map(flatten, columns))
        self._shapes = [gaussian.shape for gaussian in gaussians]
        self._swapped = [gaussian.swapped for gaussian in gaussians]

    def sample(self, noise: Noise) -> dict[Name, Sample]:
        std = self._flat.std
        assert std is not None
        noises = [_noise_of(name, noise) for name in self._names]
        counts = [shape.numel() for shape in self._shapes]
        whole = Whole(self._flat.at(normals(noises, counts, std.dtype, std.device)), len(counts))
        values = split(whole.sample.value, self._shapes, self._swapped)
        ends = itertools.accumulate(counts)
        return {
            name: PartSample(value, whole, slice(end - count, end), swapped)
            for name, value, count, end, swapped in zip(self._names, values, counts, ends, self._swapped, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Whole:
    """The flat sample of a block, and how many samples are its slices."""

    sample: Sample
    count: int


class PartSample(Sample):
    """A weight that is a slice of a flat sample. Its Gaussian and its noise are looked up when they are read."""

    value: Tensor

    def __init__(self, value: Tensor, whole: Whole, place: slice, swapped: bool) -> None:
        self.value, self.whole = value, whole
        self._place, self._swapped = place, swapped
        self._look_up = as_when_drawn(self._slice)

    @functools.cached_property
    def source(self) -> Gaussian:
        """The Gaussian from which it was drawn."""
        return self._look_up()

    @functools.cached_property
    def noise(self) -> Tensor:
        """The standard normals of the draw."""
        normal = self.whole.sample.noise
        assert normal is not None
        return self._in_shape(normal)

    @property
    def fixed(self) -> bool:
        """Never, because fixed weights are not drawn."""
        return False

    def _slice(self) -> Gaussian:
        mean, std, *log_std = (self._in_shape(tensor) for tensor in self.whole.sample.source.stored())
        return Gaussian(mean, std, log_std[0] if log_std else None, self._swapped)

    def _in_shape(self, flat: Tensor) -> Tensor:
        return stored_as(flat[self._place], self.value.shape, self._swapped)


def kl_terms(samples: Iterable[Sample], prior: Prior) -> list[Tensor]:
    """Terms whose sum is the KL of all samples: one for those that were drawn together, if the prior allows it."""
    terms: list[Tensor] = []
    together: dict[Whole, list[PartSample]] = {}
    for part in itertools.chain.from_iterable(sample.parts for sample in samples if not sample.fixed):
        if isinstance(part, PartSample) and isinstance(prior, Elementwise):
            together.setdefault(part.whole, []).append(part)
        else:
            terms.append(part.kl(prior))
    for whole, parts in together.items():
        complete = len(set(parts)) == len(parts) == whole.count
        terms.extend([whole.sample.kl(prior)] if complete else [part.kl(prior) for part in parts])
    return terms
