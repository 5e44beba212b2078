"""Figures by matplotlib, which may not be installed: in one style, and the same figure gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelseed.errors import ArgumentError, MissingPackageError
from kernelseed.system import whole_or_nothing

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure

STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "kernelseed"}


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, and the style to draw it in."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def require_kind(path: Path) -> None:
    """An error if a file's suffix says no kind that figures are written in."""
    if path.suffix not in ("", ".svg", ".png", ".pdf"):
        raise ArgumentError(f"{path} ends in {path.suffix}; figures are written as .svg, .png or .pdf: choose one.")


def write_figure(figure: Figure, path: Path, description: str | None = None) -> None:
    """Write a file of the kind that its suffix says; an SVG also holds the description."""
    require_kind(path)
    kind = path.suffix[1:] or "svg"
    about = {"Date": None, **({} if description is None else {"Description": description})} if kind == "svg" else None
    with whole_or_nothing(path) as scratch, _matplotlib().rc_context(STYLE):
        figure.savefig(scratch, format=kind, dpi=160, metadata=about)


def _matplotlib() -> ModuleType:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingPackageError(
            'matplotlib is not installed; the figure is drawn with it: pip install "kernelseed[all]".'
        ) from None
    return matplotlib
