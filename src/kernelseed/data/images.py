"""Images from files: the one place where a decoder is started."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelseed.data.optional import require
from kernelseed.errors import ArgumentError, DataError
from kernelseed.system import gigabytes, memory_limit

# Pillow chooses the decoder by a file's content, not by its name, and has some that start other programs: an EPS file
# named photo.png would run Ghostscript. These decoders are Pillow's own.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

# A few bytes can promise any number of pixels. Of 8192 x 8192, decoding takes up to 0.7 GB.
MAX_PIXELS = 8192 * 8192
MAX_SIDE = 65_535  # JPEG's own; Pillow also keeps a pointer for each row
_TOO_LARGE = f"it has more than {MAX_PIXELS:,} pixels, or more than {MAX_SIDE:,} on one side"


@dataclass(frozen=True)
class ImageOptions:
    """How images are read: see `kernelseed.data.load`."""

    size: int | tuple[int, int] | None = None
    channels: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3):
            raise ArgumentError(f"channels is {self.channels}; it must be 1 (grey), 3 (colour) or None (decide).")
        if self.shape is not None and not _is_shape(self.shape):
            raise ArgumentError(
                f"size is {self.size}; it must be a number of pixels, or height and width, at least 1 each and "
                f"{MAX_PIXELS:,} together: 224 is common."
            )

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, (tuple, list)) or len(shape) != 2 or not all(isinstance(side, int) for side in shape):
        return False
    height, width = shape
    return min(height, width) >= 1 and height * width <= MAX_PIXELS


def read_images(
    paths: Sequence[str | Path], *, size: int | tuple[int, int] | None = None, channels: int | None = None
) -> torch.Tensor:
    """Single images as one uint8 tensor (N, C, H, W), resized and converted as asked."""
    options = ImageOptions(size, channels)
    images = []
    for path in paths:
        images.append(decode(Path(path), options))
        require_memory(len(images), len(paths), images[-1])
    shapes = {image.shape for image in images}
    if not shapes:
        raise ArgumentError("paths is empty; there must be at least one image: give its path.")
    if len(shapes) > 1:
        raise DataError(
            f"the images have {len(shapes)} different shapes; in one tensor all are alike: give size= and channels=."
        )
    return torch.from_numpy(np.stack(images))


def require_memory(read: int, count: int, image: np.ndarray) -> None:
    """An error, at the first image, if so many of its size are more than there is memory for."""
    if read == 1 and (size := 2 * 3 * count * math.prod(image.shape[1:])) > memory_limit():  # apart, then in one tensor
        raise DataError(
            f"{count:,} images of {image.shape[1]} x {image.shape[2]} take {gigabytes(size)}, and there is memory for "
            f"{gigabytes(memory_limit())}; give size, such as size=64."
        )


def decode(path: Path, options: ImageOptions) -> np.ndarray:
    """The bytes of one image, 1 or 3 channels x height x width; a DataError if it can't be read."""
    pillow, operations = (require(f"PIL.{module}", "reading images") for module in ("Image", "ImageOps"))
    try:
        with _opened(path, pillow) as image:
            operations.exif_transpose(image, in_place=True)  # cameras store how they were held beside the pixels
            return _pixels(image, options, pillow)
    except Exception as error:  # on broken files, decoders raise nearly everything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path} is not a readable image ({reason}); PNG, JPEG, BMP, GIF, TIFF and WebP files are read: replace "
            "it or leave it out; training on a folder can skip it, by skip_unreadable=True."
        ) from error


@contextmanager
def _opened(path: Path, pillow: Any) -> Iterator[Any]:
    """A Pillow image of an allowed format and size, of which only the header has been read."""
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError("it is not a regular file" if path.exists() else "there is no such file")
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # our limit is below Pillow's
        try:
            image = pillow.open(file, formats=FORMATS)
        except pillow.DecompressionBombError:
            raise ValueError(_TOO_LARGE) from None
        except pillow.UnidentifiedImageError:
            raise ValueError("its content is of no known format") from None
        with image:
            if image.width * image.height > MAX_PIXELS or max(image.size) > MAX_SIDE:
                raise ValueError(_TOO_LARGE)
            yield image


def _pixels(image: Any, options: ImageOptions, pillow: Any) -> np.ndarray:
    if image.mode.startswith("I;16"):  # Pillow would clip at 255 instead of scaling
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, 8 or 16 are known")
    is_grey = image.mode in ("1", "L", "LA", "La")
    mode = "L" if options.channels == 1 or (options.channels is None and is_grey) else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if options.shape is not None:
        height, width = options.shape
        image = image.resize((width, height), pillow.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
