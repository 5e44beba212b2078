"""All weights of a network, decoded and drawn in as few operations as they allow."""

from __future__ import annotations

from collections.abc import Iterable

from kernelseed.core.distributions import Decoded, Sample
from kernelseed.core.joint import Joint
from kernelseed.core.noise import Noise
from kernelseed.core.weights.base import WeightDistribution


def sample_together(weights: Iterable[WeightDistribution], noise: Noise) -> list[Sample]:
    """One sample of each weight: on the CPU, that of `weight.sample(noise.for_weight(index))`."""
    samples: dict[int, Sample] = {}
    left: dict[int, WeightDistribution] = {}
    for index, weight in enumerate(weights):
        own = noise.for_weight(index)
        overridden = type(weight).sample is not WeightDistribution.sample
        if (drawn := weight.sample(own) if overridden else weight.fused(own)) is None:
            left[index] = weight
        else:
            samples[index] = drawn
    samples |= Joint(dict(zip(left, decode_together(left.values()), strict=True))).sample(noise)
    return [samples[index] for index in range(len(samples))]


def decode_together(weights: Iterable[WeightDistribution]) -> list[Decoded]:
    """`weight.decoded()` of each weight; those of one class are decoded by it together."""
    weights = list(weights)
    kinds: dict[type[WeightDistribution], list[int]] = {}
    for index, weight in enumerate(weights):
        kinds.setdefault(type(weight), []).append(index)
    decoded: dict[int, Decoded] = {}
    for kind, indices in kinds.items():
        decoded |= zip(indices, kind.decoded_together([weights[i] for i in indices]), strict=True)
    return [decoded[index] for index in range(len(weights))]
