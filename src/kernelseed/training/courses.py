"""The settings of a run under a name. The defaults themselves are the recipe that docs/recipe.md arrives at."""

from __future__ import annotations

from typing import Any

from kernelseed.errors import ConfigError

PAPERS_SEEDS = {"delta": 0.25, "min_rank": 1, "init": "glorot"}
PAPER: dict[str, Any] = {"schedule": "constant", "warmup": 0, "plain_epochs": 0, "update_bn": 0}
PAPERS_SIGMAS = {"rho_lr": 1.0, "kl": "automatic"}
PAPER_OPTIONS: dict[str, dict[str, Any]] = {
    "ksn": {**PAPERS_SEEDS, **PAPERS_SIGMAS, "over": "weights"},
    "bnn": PAPERS_SIGMAS,
    "fksn": PAPERS_SEEDS,
}
RECIPES = ("kernelseed", "paper")


def recipe(name: str, method: str) -> dict[str, Any]:
    """What a recipe says of a run of this method, as `Config` takes it; "kernelseed" leaves all at the defaults.

    >>> recipe("paper", "ksn")["schedule"]
    'constant'
    """
    if name not in RECIPES:
        raise ConfigError(f"recipe is {name!r}; allowed: {', '.join(RECIPES)}.")
    return {} if name == "kernelseed" else {**PAPER, "method": method, "options": dict(PAPER_OPTIONS.get(method, {}))}
