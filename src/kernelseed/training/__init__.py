"""Training, evaluation and run folders: what the command line does, for use from Python.

from kernelseed.training import Config, train
train(Config(data="digits", method="ksn", width=16, epochs=12), out="runs/a")
"""

from typing import Any

from kernelseed.training.config import Config, ConfigError
from kernelseed.training.run_folder import RunFolder

__all__ = ["Config", "ConfigError", "RunFolder", "train"]


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and reading a run does not need it.
    if name == "train":
        from kernelseed.training.fit import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
