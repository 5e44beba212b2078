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
    """Readable JSON. Names of files that are no UTF-8 come back as they were."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    plain = all(character.isprintable() or character == "\n" for character in text)
    return text if plain else json.dumps(value, indent=2) + "\n"


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, to_json(value))


def read_text(path: Path, most: int) -> str:
    """The text of a file that anybody may have written, or an error that names it: of no more than so many bytes."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            reason = "is not a file" if path.exists() else "is missing"
            raise StorageError(f"{path} {reason}; give a folder that was written by kernelseed.")
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise StorageError(f"{path} has more than {most:,} bytes; take another copy of it.")
        return content.decode()
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is not readable text ({error}); take another copy of it.") from None
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} can't be read ({error.strerror}); take another copy of it.") from None


MOST_JSON = 8 << 20  # bytes, of which the worst become 200 MB of objects


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an error that names the file."""
    text = read_text(path, MOST_JSON)
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not readable JSON ({error}); take another copy of it.") from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} holds a {type(value).__name__}, not an object; take another copy of it.")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:60]!r} is there twice")
    return found
