"""Warm starts: the plain network begins with the weights of a finished run or of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import nn

from kernelseed.errors import ConfigError, StorageError
from kernelseed.system import utf8_path
from kernelseed.training.run_folder import RunFolder


def start_from(model: nn.Module, source: str | Path) -> dict[str, str]:
    """Fill a plain model, in place; returns where the weights came from, by path and SHA-256.

    source  the folder of a finished run whose network is plain, or a safetensors file of a state dict
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    file = _weights_file(Path(source))
    try:
        digest = hashlib.sha256()
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
        with utf8_path(file) as name:
            load_model(model, name)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"init_from is {str(source)!r}, but {file} can't be read ({reason}); give a finished run or a safetensors "
            "file."
        ) from None
    except RuntimeError as error:
        reason = " ".join(str(error).strip().splitlines()[-1].split())
        raise ConfigError(
            f"init_from is {str(source)!r}, which holds another architecture ({reason}); give weights of the same "
            f"{type(model).__name__}."
        ) from None
    return {"path": str(source), "sha256": digest.hexdigest()}


def _weights_file(source: Path) -> Path:
    if not source.exists():
        raise StorageError(f"init_from is {str(source)!r}, which is not there; give a run or a safetensors file.")
    if source.is_file():
        return source
    if not source.is_dir():  # a pipe, which one would wait for
        raise StorageError(f"init_from is {str(source)!r}, which is no file; give a run or a safetensors file.")
    run = RunFolder(source)
    kind = run.config().get("network", {}).get("kind")
    if kind != "plain":
        raise ConfigError(
            f"init_from is {str(source)!r}, whose network is {kind}; give a run of a plain one, such as a baseline's."
        )
    if not run.weights.exists():
        raise StorageError(f"init_from is {str(source)!r}, a run that is not finished; continue it with --resume.")
    return run.weights
