"""Where curves go beside metrics.csv, which every run has: Lightning's own loggers, imported when asked for."""

from __future__ import annotations

import os
from typing import Any

from kernelseed.errors import ArgumentError, MissingPackageError
from kernelseed.methods import did_you_mean
from kernelseed.training.run_folder import RunFolder

LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
PROJECT = "kernelseed"


def build_logger(name: str, run: RunFolder) -> Any:
    """A logger for Lightning; False for "csv". Nothing is written yet."""
    if name not in LOGGERS:
        raise ArgumentError(f"logger is {name!r}; allowed: {', '.join(LOGGERS)}.{did_you_mean(name, LOGGERS)}")
    if name == "csv":
        return False
    from lightning.pytorch import loggers

    try:
        if name == "tensorboard":
            return loggers.TensorBoardLogger(run.path, name="tensorboard", version="")
        if name == "wandb":
            return loggers.WandbLogger(name=run.path.name, project=PROJECT, save_dir=run.path)
        return loggers.MLFlowLogger(
            PROJECT, run.path.name, os.environ.get("MLFLOW_TRACKING_URI"), save_dir=str(run.path / "mlflow")
        )
    except ModuleNotFoundError:
        raise MissingPackageError(f"logger is {name!r}, which needs its package: pip install {name}.") from None
