"""The most uncertain and most confidently wrong test images, embedded in the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from kernelseed.report.record import RunRecord

MOST_PIXELS = 64  # the longer side of an image; larger ones are scaled down to keep the page small


@dataclass(frozen=True)
class Tile:
    """A test image and its prediction."""

    uri: str
    truth: str
    guess: str
    right: bool
    confidence: str
    tooltip: str


def most_uncertain(run: RunRecord, count: int = 6) -> list[Tile]:
    """The test images with the highest predictive entropy."""
    chosen = np.argsort(-run.entropy, kind="stable")[:count]
    return [_tile(run, i) for i in chosen]


def confidently_wrong(run: RunRecord, count: int = 6) -> list[Tile]:
    """The mistakes made with the highest confidence."""
    wrong = np.flatnonzero(~run.correct)
    chosen = wrong[np.argsort(-run.confidence[wrong], kind="stable")[:count]]
    return [_tile(run, i) for i in chosen]


def _tile(run: RunRecord, i: int) -> Tile:
    assert run.images is not None
    truth, guess = (_class_name(run, int(which[i])) for which in (run.labels, run.predicted))
    told = f"test example {i}: entropy {run.entropy[i]:.2f} nats"
    if run.mutual_information is not None:
        told += f", of which {run.mutual_information[i]:.2f} is disagreement between draws"
    return Tile(data_uri(run.images[i]), truth, guess, bool(run.correct[i]), _sure(run.confidence[i]), told)


def _sure(confidence: float) -> str:
    return f"{confidence:.1%}" if confidence < 0.9995 else ">99.9%"  # not "100.0%", which would claim certainty


def _class_name(run: RunRecord, index: int) -> str:
    return run.class_names[index] if index < len(run.class_names) else str(index)


def data_uri(image: np.ndarray) -> str:
    """A (C, H, W) uint8 image as a PNG data URI; if C is neither 3 nor 4, only the first channel."""
    pixels = image.transpose(1, 2, 0) if len(image) in (3, 4) else image[0]
    stored = Image.fromarray(np.ascontiguousarray(pixels))
    stored.thumbnail((MOST_PIXELS, MOST_PIXELS))
    file = io.BytesIO()
    stored.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
