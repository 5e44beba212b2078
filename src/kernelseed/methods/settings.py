"""Settings: dataclass fields whose type, limits and help stand once.

The checks of Python and of files are made from them, and so are the options of the command line.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from kernelseed.errors import ArgumentError, KernelseedError

LARGEST_FLOAT = sys.float_info.max
LARGEST_INT = 2**31 - 1


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with limits and help. A subclass may restate the default alone: `lr: float = 0.1`."""
    limits = {"above": above, "least": least, "below": below, "most": most}
    return field(default=default, metadata={"help": help, "choices": choices, **limits})


@dataclass(frozen=True)
class Setting:
    """What is known of one field."""

    name: str
    kinds: tuple[type, ...]
    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()
    """Words that are allowed; empty: any."""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    @property
    def limits(self) -> str:
        """Of numbers, such as "0 < rate < 1"; empty where there are none."""
        low = f"{self.above} < " if self.above is not None else f"{self.least} <= " if self.least is not None else ""
        high = f" < {self.below}" if self.below is not None else f" <= {self.most}" if self.most is not None else ""
        return f"{low}{self.name}{high}" if low or high else ""

    @property
    def allowed(self) -> str:
        """Choices and limits in words; empty where all is allowed."""
        number = f"a number with {self.limits}" if self.choices and self.limits else self.limits
        return ", ".join(filter(None, (*self.choices, number)))

    def check(self, value: Any, error: type[KernelseedError] = ArgumentError) -> None:
        """An error unless the value has a type of the field and is allowed."""
        if value is None and NoneType in self.kinds:
            return
        kinds = (*self.kinds, int) if float in self.kinds else self.kinds
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in self.kinds)
            raise error(f"{self.name} is {shown(value)}; it must be of type {names}: {self.help}.")
        if self.allowed and value not in self.choices and not self._is_within(value):
            hint = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            raise error(f"{self.name} is {shown(value)}; allowed: {self.allowed} ({self.help}).{hint}")
        if isinstance(value, (int, float)) and not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:  # NaN is not either
            raise error(f"{self.name} is {shown(value)}; it must be a finite number: {self.help}.")

    def _is_within(self, value: Any) -> bool:
        if float in self.kinds and isinstance(value, str):  # a number where words are allowed too
            try:
                value = float(value)
            except ValueError:
                return False
        if isinstance(value, str):
            return False
        return (  # written so that NaN is not within
            -LARGEST_FLOAT <= value <= LARGEST_FLOAT
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
        )


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    hints = get_type_hints(cls)
    found = {}
    for f in fields(cls):
        kinds, stated = _kinds(hints[f.name]), _stated(cls, f.name)
        if int in kinds and stated.get("below") is None and stated.get("most") is None:
            stated["most"] = LARGEST_INT
        found[f.name] = Setting(f.name, kinds, f.default, **stated)
    return found


def check_settings(value: Any, error: type[KernelseedError] = ArgumentError) -> None:
    """Check every field of a dataclass instance."""
    for name, known in settings_of(type(value)).items():
        known.check(getattr(value, name), error)


def shown(value: Any) -> str:
    """A value for an error; it may come from a file, and be of any length."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    try:
        return short.repr(value)
    except ValueError:  # Python does not write an int of thousands of digits
        return f"a {type(value).__name__} that is too long to print"


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """A second sentence for an error about an unknown name; empty where nothing is near."""
    near = difflib.get_close_matches(given, list(allowed), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _kinds(hint: Any) -> tuple[type, ...]:
    return (dict,) if get_origin(hint) is dict else get_args(hint) or (hint,)


def _stated(cls: type, name: str) -> dict[str, Any]:
    """Limits and help, from the nearest class that states them."""
    found = (vars(c).get("__dataclass_fields__", {}).get(name) for c in cls.__mro__)
    return next((dict(f.metadata) for f in found if f is not None and f.metadata), {})
