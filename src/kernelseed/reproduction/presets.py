"""Presets: how large the networks of a table are and how long they train. The settings are in presets.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

IMAGES = {"mnist": "28 x 28", "fashion-mnist": "28 x 28", "cifar10": "32 x 32", "cifar100": "32 x 32"}
"""The size of each data set's images, by which a preset is chosen."""
STEMS = {"small": "a 3x3 stem of stride 2"}


@dataclass(frozen=True)
class Preset:
    """Settings of a `Config` for each size of images, the same for every method."""

    name: str
    about: str
    settings: dict[str, dict[str, Any]]

    def for_data(self, data: str) -> dict[str, Any]:
        """The settings for a data set."""
        return self.settings[IMAGES[data]]

    def words(self, data: str) -> str:
        """The settings for a data set, in words.

        >>> PRESETS["medium"].words("cifar10")
        'width 32, a 3x3 stem of stride 2, 10 epochs, crops and flips, cosine with .05 of the steps as warm-up'
        """
        chosen = self.for_data(data)
        parts = [f"width {chosen['width']}"]
        parts += [STEMS[chosen["stem"]]] if "stem" in chosen else []
        parts += [f"{chosen['epochs']} epochs", "crops and flips" if chosen.get("augment") else "no augmentation"]
        parts.append(
            f"{chosen['schedule']} with {str(chosen['warmup']).lstrip('0')} of the steps as warm-up"
            if "warmup" in chosen
            else "a constant rate"
        )
        return ", ".join(parts)


def _read() -> dict[str, Preset]:
    source = resources.files("kernelseed.reproduction").joinpath("presets.json")
    return {
        name: Preset(name, found.pop("about"), found)
        for name, found in json.loads(source.read_text(encoding="utf-8")).items()
    }


PRESETS = _read()
