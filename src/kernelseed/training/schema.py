"""What a JSON file of a run must hold, as a value, and the one function that compares a file with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelseed.errors import StorageError


@dataclass(frozen=True)
class Kind:
    """A kind of value: what it is called, and whether a value is one."""

    words: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 63


TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXT_OR_NULL = Kind("a text or null", lambda value: value is None or isinstance(value, str))
NUMBER = Kind("a number", lambda value: isinstance(value, float) or _is_whole(value))
WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a whole number above 0", lambda value: _is_whole(value) and value > 0)
SIZE = Kind("a whole number from 1 to 16384", lambda value: _is_whole(value) and 0 < value <= 1 << 14)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list that is not empty", lambda value: isinstance(value, list) and bool(value))
CURVE = Kind("six numbers", lambda value: isinstance(value, list) and len(value) == 6 and all(map(NUMBER.holds, value)))

Schema = Any
"""A Kind; [schema] for a list of them; {key: schema} for an object, where "key?" may be missing and others may be."""


def require(schema: Schema, value: Any, path: Path, place: str = "") -> Any:
    """The value, or an error that names the file and the first place in it that is not as the schema says."""
    kind = schema if isinstance(schema, Kind) else OBJECT if isinstance(schema, dict) else LIST
    if not kind.holds(value):
        shown = f"{value!r:.60}"
        raise StorageError(f"{path} has {place} {shown}; it must be {kind.words}: take another copy of the run.")
    if isinstance(schema, list):
        for number, item in enumerate(value):
            require(schema[0], item, path, f"{place}[{number}]")
    if isinstance(schema, dict):
        for key, inner in schema.items():
            name, within = key.rstrip("?"), f"{place}.{key.rstrip('?')}".lstrip(".")
            if name in value:
                require(inner, value[name], path, within)
            elif name == key:
                raise StorageError(f"{path} lacks {within}; take another copy of the run, or train it again.")
    return value
