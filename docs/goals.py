"""What the benchmark is to reach: a row for each goal of docs/performance.md, with the floor from the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Measured = dict[str, Any]
OPERATIONS = "starting operations"
PASSES = "memory traffic of the passes, starting operations"
IMAGES = {"steps": "28 x 28", "steps_64": "64 x 64", "steps_224": "224 x 224"}


@dataclass(frozen=True)
class Goal:
    """A row of the table.

    part, subject  where the benchmark has its ratio
    reach          a ratio; "products" for 1.1 times a plain step with germination's products; "float32" for the ratio
                   of the same step in float32
    rest           what is above the floor
    """

    label: str
    part: str
    subject: str
    reach: float | str
    rest: str = ""

    def row(self, measured: Measured) -> list[str] | None:
        """Its cells: label, ratio, reach, floor and rest. None if it was not measured."""
        found = self._ratio(measured, self.subject)
        reach, floor = self._reach(measured), self._floor(measured)
        if found is None or reach is None:
            return None
        reached = f"**{found:.2f}**" if round(found, 2) <= round(reach, 2) else f"{found:.2f}"
        if (low_high := measured[self.part][self.subject].get("range")) is not None:
            reached += f" ({low_high[0]:.2f} to {low_high[1]:.2f})"
        whole = self._ratio(measured, f"floor of {self.subject}") is not None or self.reach != "products"
        rest = "" if floor is None else self.rest if whole else "the draw's passes"
        return [self.label, reached, f"{reach:.2f}", "" if floor is None else f"{floor:.2f}", rest]

    def _ratio(self, measured: Measured, subject: str, part: str | None = None) -> float | None:
        values = measured.get(part or self.part, {}).get(subject)
        return None if values is None else float(values["ratio"])

    def _with_products(self, measured: Measured) -> float | None:
        """A plain step and germination's products."""
        products = self._ratio(measured, f"products of {self.subject}")
        if products is None and self.part == "steps":  # one file has them in a part of their own
            products = self._ratio(measured, f"products, δ={self.subject.removeprefix('KSN ')}", "floor")
        return None if products is None else 1 + products

    def _reach(self, measured: Measured) -> float | None:
        if self.reach == "products":
            bound = self._with_products(measured)
            return None if bound is None else 1.1 * bound
        if self.reach == "float32":
            return self._ratio(measured, self.subject, "steps")
        return float(self.reach)

    def _floor(self, measured: Measured) -> float | None:
        found = self._ratio(measured, f"floor of {self.subject}")
        return self._with_products(measured) if found is None and self.reach == "products" else found


def _small(network: str) -> Sequence[Goal]:
    kinds = ("BNN", "KSN .25", "over factors", "over channels")
    return [
        Goal(f"ten draws of the {network}, {kind}", "small_networks", f"{network}, {kind}", 3, OPERATIONS)
        for kind in kinds
    ]


GOALS: Sequence[Goal] = (
    *(
        Goal(f"{name} step, {images}", part, name, "products", f"{PASSES}, copies")
        for part, images in IMAGES.items()
        for name in ("KSN .25", "KSN 1")
    ),
    Goal('KSN .25 step, "medium"', "steps", "KSN .25, medium", 1.3, PASSES),
    Goal("KSN .25 step, bf16 autocast", "steps_bf16", "KSN .25", "float32"),
    Goal("KSN 1 step, bf16 autocast", "steps_bf16", "KSN 1", "float32"),
    Goal("BNN step", "steps", "BNN", 1.15, PASSES),
    Goal("FKSN .25 step", "steps", "FKSN .25", 0.5, OPERATIONS),
    Goal("over factors, step", "steps", "over factors", 0.8, PASSES),
    Goal("over channels, step", "steps", "over channels", 0.8, PASSES),
    Goal("over channels, ranks by stage, step", "steps", "over channels, ranks by stage", 0.8, PASSES),
    Goal("`predict(samples=10)`, KSN .25", "predict", "predict(samples=10)", 1.02),
    Goal("`predict(samples=10)`, over factors", "predict", "predict(samples=10), over factors", 0.6),
    Goal("`factorise`, 128 images", "folded", "factorised, batch 128", 0.5),
    Goal("`factorise`, one image", "folded", "factorised, batch 1", 0.75),
    *_small("digits MLP"),
    *_small("50-unit tabular net"),
)


def rows(measured: Measured) -> list[list[str]]:
    """Those of the benchmark's runs on one kind of processor."""
    return [row for goal in GOALS if (row := goal.row(measured)) is not None]
