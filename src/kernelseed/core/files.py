"""Files that are either whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelseed.errors import StorageError


@contextmanager
def whole_or_nothing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; it becomes `path` when the block ends well, and is removed when it does not."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        scratch.touch()
        mode = scratch.stat().st_mode  # what the user's umask gives; safetensors would leave 0600
        yield scratch
        scratch.chmod(mode)
        os.replace(scratch, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"can't write {path}: {reason}; what was there before is as it was.") from error
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with whole_or_nothing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def to_json(value: Any) -> str:
    """Readable JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, to_json(value))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an error that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; give a folder that was written by kernelseed.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StorageError(f"{path} is not readable JSON ({error}); take another copy of it.") from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} holds a {type(value).__name__}, not an object; take another copy of it.")
    return value
