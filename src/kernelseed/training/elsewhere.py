"""Data from elsewhere: loaded as a network takes it, and told from the test set by scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed import metrics
from kernelseed.core import OF_DRAWS, SCORES, Classification
from kernelseed.data import Dataset, Split, load_test
from kernelseed.errors import ConfigError, DataError
from kernelseed.training.config import Config
from kernelseed.training.inference import averages, predict_split
from kernelseed.training.run_folder import RunFolder

FITS = ("resize", "pad", "refuse")


@dataclass(frozen=True)
class Elsewhere:
    """A data set that a network was not trained on."""

    name: str
    split: Split
    converted: str | None
    """What was done to its images; None for nothing."""


def load_elsewhere(
    names: str | Sequence[str], data: Dataset, fit: str = "resize", data_dir: str | Path | None = None
) -> list[Elsewhere]:
    """The test splits of other data sets, in the channels and size of the network's images: see `fitted`."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(wanted, Sequence) or not wanted or not all(name and isinstance(name, str) for name in wanted):
        told = repr(names) if isinstance(names, str | list | tuple) else f"a {type(names).__name__}"
        raise ConfigError(f"ood is {told}; give names of data sets, with commas between: --ood mnist,kmnist.")
    check_fit(fit, names)
    found = []
    for name in dict.fromkeys(wanted):
        split = load_test(name, data_dir, **_size_of_folder(name, data, fit))
        images, converted = fitted(split.images, data.test.images, fit, name)
        found.append(Elsewhere(name, Split(images, split.labels), converted))
    return found


def check_fit(fit: str, ood: object) -> None:
    """An error unless it is one of FITS, and asked for with data that it is for."""
    if fit not in FITS:
        raise ConfigError(f"ood_fit is {fit!r}; allowed are {', '.join(FITS)}.")
    if ood is None and fit != FITS[0]:
        raise ConfigError(f"ood_fit is {fit!r} without ood; it is for images of other data: name some, --ood mnist.")


def _size_of_folder(name: str, data: Dataset, fit: str) -> dict[str, Any]:
    """Images of your own may differ in size among each other; they are resized as they are read."""
    if not name.startswith("folder:") or fit != "resize":
        return {}
    return {"size": tuple(data.test.images.shape[-2:])}


def fitted(images: Tensor, wanted: Tensor, fit: str, name: str = "the data") -> tuple[Tensor, str | None]:
    """Images in the channels and size of others, and what was done to them in words, None for nothing.

    fit   "resize": bilinear, with antialiasing
          "pad": in the middle of a black image, or the middle of a larger one
          "refuse": an error, unless they have the shape already

    Colour becomes grey by the mean of the channels; grey is repeated in each channel.

    >>> fitted(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, 3, 12, 12), "pad")[1]
    '1 x 8 x 8 to 3 x 12 x 12: grey repeated, padded with black or cropped'
    """
    was, now = tuple(images.shape[1:]), tuple(wanted.shape[1:])
    if was == now:
        return images, None
    shapes = [" x ".join(map(str, shape)) for shape in (was, now)]
    if fit == "refuse":
        raise DataError(
            f"{name} has images of {shapes[0]}, and the network takes {shapes[1]}; choose data of that shape, or "
            'convert it with ood_fit "resize" or "pad".'
        )
    done = []
    if was[0] != now[0]:
        done.append("grey repeated" if was[0] == 1 else "the channels' mean")
        images = images.float().mean(1, keepdim=True).round().to(torch.uint8).expand(-1, now[0], -1, -1)
    if was[1:] != now[1:] and fit == "pad":
        done.append("padded with black or cropped")
        images = _padded(images, now[1], now[2])
    elif was[1:] != now[1:]:
        done.append("resized, bilinear with antialiasing")
        images = F.interpolate(images.float(), now[1:], mode="bilinear", antialias=True).round().clamp(0, 255)
    return images.to(torch.uint8), f"{' to '.join(shapes)}: {', '.join(done)}"


def _padded(images: Tensor, height: int, width: int) -> Tensor:
    """In the middle of a black image; what is larger is cut off, as much at both ends."""
    above, left = (height - images.shape[-2]) // 2, (width - images.shape[-1]) // 2
    below, right = height - images.shape[-2] - above, width - images.shape[-1] - left
    return F.pad(images, (left, right, above, below))  # a negative length cuts off


def against(
    sets: Sequence[Elsewhere],
    net: nn.Module,
    inside: Mapping[str, Classification],
    data: Dataset,
    config: Config,
    folder: RunFolder,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """The scores of each set against the predictions for the test set, by "mean" and "ensemble"; these are kept.

    before   what was found of other sets in the same setting, which stays
    """
    described, predicted = {found["name"]: found for found in before.get("sets", ())}, []
    for other in sets:
        number, scores = [*described, other.name].index(other.name), {}
        for way, prediction in inside.items():
            outside = predict_split(net, other.split, data, config, way)
            predicted.append((f"ood-{number}", way, outside, other.split.labels))
            scores[way] = told_apart(prediction, outside, one_draw=not averages(config, way))
        images = {"images": len(other.split), "converted": other.converted}
        described[other.name] = {"name": other.name, **images, "scores": scores}
    # First, or a kill would leave it saying of these predictions that they are those of other sets.
    folder.forget_ood(predictions=not before)
    for part in predicted:
        folder.write_prediction(*part)
    return {"images": len(data.test), "sets": list(described.values())}


def told_apart(inside: Classification, outside: Classification, one_draw: bool) -> dict[str, dict[str, float]]:
    """AUROC, AUPR and FPR at 95 % by each of `outlier_scores`; of one draw, not by those of the draws' disagreement."""
    wanted = [name for name in SCORES if not (one_draw and name in OF_DRAWS)]
    return {name: metrics.detection(SCORES[name](inside), SCORES[name](outside)) for name in wanted}
