"""Where curves go beside metrics.csv, which every run has: Lightning's own loggers, imported when asked for."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kernelseed.errors import ArgumentError, MissingPackageError
from kernelseed.methods import did_you_mean
from kernelseed.training.run_folder import RunFolder

LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
PROJECT = "kernelseed"
MLFLOW_SERVER = "MLFLOW_TRACKING_URI"


def check_logger(name: str, run: RunFolder) -> None:
    """An error if there will be no such logger. Nothing is written."""
    if name not in LOGGERS:
        raise ArgumentError(f"logger is {name!r}; allowed: {', '.join(LOGGERS)}.{did_you_mean(name, LOGGERS)}")
    try:
        if name == "mlflow" and MLFLOW_SERVER not in os.environ:  # whose database needs the run's folder
            importlib.import_module("mlflow.tracking")
        else:
            build_logger(name, run)
    except ModuleNotFoundError:
        raise MissingPackageError(f"logger is {name!r}, which needs its package: pip install {name}.") from None
    except Exception as error:
        if name != "mlflow":
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ArgumentError(
            f"{MLFLOW_SERVER} is {os.environ[MLFLOW_SERVER]!r}, which MLflow refuses: {reason}"
        ) from None


def build_logger(name: str, run: RunFolder) -> Any:
    """A logger for Lightning; None for "csv". MLflow's own database, if no server is named, is in the run's folder."""
    if name == "csv":
        return None
    from lightning.pytorch import loggers

    if name == "tensorboard":
        return loggers.TensorBoardLogger(run.path, name="tensorboard", version="")
    if name == "wandb":
        return loggers.WandbLogger(name=run.path.name, project=PROJECT, save_dir=run.path)
    if server := os.environ.get(MLFLOW_SERVER):
        return loggers.MLFlowLogger(PROJECT, run.path.name, server)
    folder = run.path.resolve()
    return loggers.MLFlowLogger(
        PROJECT, run.path.name, f"sqlite:///{folder / 'mlflow.db'}", artifact_location=str(folder / "mlflow")
    )
