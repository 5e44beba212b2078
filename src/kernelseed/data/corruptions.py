"""Corrupted images, made on the fly: ten kinds of damage at five severities, for grey and colour images of any size.

Lengths are shares of the shorter side, so that a severity looks alike at 8 x 8 and at 224 x 224; noise is per pixel.
What is random about an image follows from the seed and the image itself, and is the same at each severity: severity 4
rotates to the same side as severity 3, only farther.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.core import check_count, derive_seed
from kernelseed.data.batches import normalise
from kernelseed.data.dataset import Split, check_seed
from kernelseed.errors import ArgumentError, ArgumentTypeError

SEVERITIES = (1, 2, 3, 4, 5)
Draws = Callable[[Callable[[torch.Generator], Tensor]], Tensor]
"""Calls a function with each image's own generator, and stacks what it returns."""


@dataclass(frozen=True)
class Corruption:
    """A kind of damage: what its levels mean, one for each severity, and what it does to pixels in [0, 1]."""

    means: str
    levels: tuple[float, float, float, float, float]
    apply: Callable[[Tensor, float, Draws], Tensor]


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Images (uint8, N x C x H x W, 1 or 3 channels), damaged in one way; again uint8 of the same shape.

    name       one of CORRUPTIONS: gaussian-noise, shot-noise, blur, rotation, translation, contrast, brightness,
               pixelation, elastic, occlusion
    severity   from 1, just visible, to 5, hard for a person
    seed       with the image, it decides all that is random: batches and their order do not matter

    >>> images = torch.full((2, 1, 8, 8), 100, dtype=torch.uint8)
    >>> corrupt(images, "brightness", 3)[0, 0, 0, 0].item()
    202
    """
    names = corruption_names([name])
    if len(names) > 1:
        raise ArgumentError(f"name is {name!r}; one corruption at a time is made: take one of {', '.join(names)}.")
    check_severity(severity)
    check_seed(seed)
    _check_images(images)
    if not images.numel():
        return images.clone()

    def draws(draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        drawn = []
        for image in images.cpu():
            digest = hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=8).digest()
            own = derive_seed(f"corruption {name}", seed, int.from_bytes(digest, "big"))
            drawn.append(draw(torch.Generator().manual_seed(own)))
        return torch.stack(drawn).to(images.device, torch.float64)

    known = CORRUPTIONS[name]
    pixels = images.double() / 255  # in float32, products would round differently in a batch of another size
    damaged = known.apply(pixels, known.levels[severity - 1], draws)
    return (damaged * 255).round().clamp(0, 255).to(torch.uint8)


def corruption_names(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The corruptions that are asked for: names, their list with commas between, or "all"."""
    names = [part.strip() for part in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    if "all" in names:
        return tuple(CORRUPTIONS)
    for name in names:
        if name not in CORRUPTIONS:
            nearest = difflib.get_close_matches(str(name).lower().replace("_", "-"), CORRUPTIONS, n=1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            raise ArgumentError(
                f"the corruption {name!r} is unknown{hint}; known are {', '.join(CORRUPTIONS)}, and all."
            )
    if not names:
        raise ArgumentError("the list of corruptions is empty; give at least one name, or all.")
    return tuple(dict.fromkeys(names))


def _check_images(images: Tensor) -> None:
    if isinstance(images, Tensor) and images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] in (1, 3):
        return
    kind = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
    raise ArgumentTypeError(
        f"images is {kind}; it must be uint8 of shape (N, C, H, W) with 1 or 3 channels: give pixels from 0 to 255."
    )


def check_severity(severity: int) -> None:
    """Raise unless it is one of SEVERITIES."""
    if not isinstance(severity, Integral) or isinstance(severity, bool) or severity not in SEVERITIES:
        raise ArgumentError(f"severity is {severity!r}; it is a whole number from 1, just visible, to 5, hard to see.")


class CorruptedBatches:
    """Normalised batches of a split: undamaged, then for each corruption and severity; made when they are asked for.

    One pass is `len(settings) * len(split)` images, so that one `predict` goes over all of them with the same draws.
    Its rows `i * len(split)` to `(i + 1) * len(split)` are those of `settings[i]`: a name and a severity, at first 0.
    """

    def __init__(
        self,
        split: Split,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        names: str | Sequence[str] = "all",
        seed: int = 0,
    ) -> None:
        check_count("batch_size", batch_size, 1, "256 is common")
        check_seed(seed)
        _check_images(split.images)
        self.split, self.mean, self.std, self.batch_size, self.seed = split, mean, std, batch_size, seed
        self.settings = [("", 0), *((name, severity) for name in corruption_names(names) for severity in SEVERITIES)]

    def __len__(self) -> int:
        return len(self.settings) * -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for name, severity in self.settings:
            batches = self.split.images.split(self.batch_size)
            for images, labels in zip(batches, self.split.labels.split(self.batch_size), strict=True):
                seen = corrupt(images, name, severity, self.seed) if severity else images
                yield normalise(seen, self.mean, self.std), labels


# Each takes pixels in [0, 1], a level and `draws`. Results outside [0, 1] are cut off by `corrupt`.


def _gaussian_noise(x: Tensor, std: float, draws: Draws) -> Tensor:
    return x + std * draws(lambda g: torch.randn(x.shape[1:], generator=g))


def _shot_noise(x: Tensor, photons: float, draws: Draws) -> Tensor:
    each = iter(x.cpu())
    return draws(lambda g: torch.poisson(next(each) * photons, generator=g)) / photons


def _blur(x: Tensor, share: float, draws: Draws) -> Tensor:
    return _smoothed(x, share * max(min(x.shape[-2:]), SMALLEST_BLURRED))


def _smoothed(x: Tensor, std: float) -> Tensor:
    """Convolved with a Gaussian of so many pixels, along each axis in turn; the edge pixels go on outside."""
    down, across = (_smoothing(side, std).to(x) for side in x.shape[-2:])
    return down @ x @ across.mT  # for such wide kernels, products are much faster than convolutions


def _smoothing(side: int, std: float) -> Tensor:
    """The matrix that smooths a line of pixels: from all of them (columns) to each (rows)."""
    reach = max(1, math.ceil(3 * std))
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = (-0.5 * (offset / std).square()).exp()
    taken = (torch.arange(side)[:, None] + offset.long()).clamp(0, side - 1)
    return offset.new_zeros(side, side).scatter_add(1, taken, (kernel / kernel.sum()).expand(side, -1))


def _rotation(x: Tensor, degrees: float, draws: Draws) -> Tensor:
    """To the left or to the right, about the middle; what comes in from outside is black."""
    angle = math.radians(degrees) * _sign(draws)
    height, width = x.shape[-2:]
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    # the grid's coordinates go from -1 to 1 along both axes, whatever the sides
    rows = [[cos, -sin * height / width, zero], [sin * width / height, cos, zero]]
    grid = F.affine_grid(
        torch.stack([torch.stack(row, 1) for row in rows], 1).to(x), list(x.shape), align_corners=False
    )
    return F.grid_sample(x, grid, align_corners=False)


def _sign(draws: Draws) -> Tensor:
    return draws(lambda g: 2.0 * torch.randint(2, (), generator=g) - 1)


def _translation(x: Tensor, share: float, draws: Draws) -> Tensor:
    """In any direction; what comes in from outside is black."""
    angle = 2 * math.pi * draws(lambda g: torch.rand((), generator=g))
    moved = torch.stack([angle.cos(), angle.sin()], 1)[:, :, None, None] * share * min(x.shape[-2:])
    return _displaced(x, moved.expand(-1, -1, *x.shape[-2:]), "zeros")


def _displaced(x: Tensor, by: Tensor, outside: str) -> Tensor:
    """Each pixel from another place, so many pixels to the right and down of it."""
    height, width = x.shape[-2:]
    identity = torch.eye(2, 3, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(identity, list(x.shape), align_corners=False)
    scale = torch.tensor([2 / width, 2 / height], dtype=x.dtype, device=x.device)
    return F.grid_sample(x, grid + by.movedim(1, -1) * scale, padding_mode=outside, align_corners=False)


def _contrast(x: Tensor, kept: float, draws: Draws) -> Tensor:
    middle = x.mean((1, 2, 3), keepdim=True)
    return middle + kept * (x - middle)


def _brightness(x: Tensor, added: float, draws: Draws) -> Tensor:
    return x + added


def _pixelation(x: Tensor, share: float, draws: Draws) -> Tensor:
    down, across = (_block_means(side, max(1, round(share * side))).to(x) for side in x.shape[-2:])
    return down @ x @ across.mT


def _block_means(side: int, blocks: int) -> Tensor:
    """The matrix that gives each pixel of a line the mean of its block; the blocks are as equal as can be."""
    block = torch.arange(side) * blocks // side
    same = (block[:, None] == block).double()
    return same / same.sum(1, keepdim=True)


def _elastic(x: Tensor, share: float, draws: Draws) -> Tensor:
    """Places moved by smooth random fields (Simard et al., 2003): `share` of the side is their root mean square.

    That is along each axis; a place moves by 1.4 of it.
    """
    height, width = x.shape[-2:]
    side = min(height, width)
    margin = math.ceil(3 * ELASTIC_SMOOTHNESS * side)  # or the field would be stronger at the edges
    size = (2, height + 2 * margin, width + 2 * margin)
    field = _smoothed(draws(lambda g: torch.randn(size, generator=g)), ELASTIC_SMOOTHNESS * side)
    field = field[:, :, margin : margin + height, margin : margin + width]
    field = field / field.square().mean((1, 2, 3), keepdim=True).sqrt()
    return _displaced(x, field * share * side, "border")


def _occlusion(x: Tensor, share: float, draws: Draws) -> Tensor:
    """A grey square. At each severity it keeps its share of the room left and above."""
    height, width = x.shape[-2:]
    side = math.ceil(share * min(height, width))
    place = draws(lambda g: torch.rand(2, generator=g))
    top, left = ((place[:, i] * (room - side)).round() for i, room in enumerate((height, width)))
    down, across = (torch.arange(room, device=x.device) for room in (height, width))
    rows = (down >= top[:, None]) & (down < top[:, None] + side)
    columns = (across >= left[:, None]) & (across < left[:, None] + side)
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 0.5, x)


ELASTIC_SMOOTHNESS = 0.09  # the standard deviation by which its field is smoothed, of the side
SMALLEST_BLURRED = 20  # a shorter side counts as so many pixels: less than a third of a pixel would not be seen
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": Corruption("standard deviation, where white is 1", (0.04, 0.1, 0.18, 0.3, 0.5), _gaussian_noise),
    "shot-noise": Corruption("photons of a white pixel", (120, 35, 12, 5, 2), _shot_noise),
    "blur": Corruption(
        "standard deviation of a Gaussian, of the shorter side (at least of 20 pixels)",
        (0.02, 0.035, 0.05, 0.07, 0.1),
        _blur,
    ),
    "rotation": Corruption("degrees, to the left or to the right", (8, 18, 32, 50, 75), _rotation),
    "translation": Corruption(
        "distance in any direction, of the shorter side", (0.05, 0.1, 0.17, 0.25, 0.35), _translation
    ),
    "contrast": Corruption("contrast kept around the image's mean", (0.8, 0.55, 0.35, 0.2, 0.1), _contrast),
    "brightness": Corruption("added, where white is 1", (0.1, 0.25, 0.4, 0.55, 0.7), _brightness),
    "pixelation": Corruption("pixels left, of each side", (0.85, 0.65, 0.48, 0.33, 0.2), _pixelation),
    "elastic": Corruption(
        "root mean square of the displacement along each axis, of the shorter side",
        (0.014, 0.028, 0.043, 0.062, 0.085),
        _elastic,
    ),
    "occlusion": Corruption("side of a grey square, of the shorter side", (0.2, 0.3, 0.42, 0.55, 0.7), _occlusion),
}
