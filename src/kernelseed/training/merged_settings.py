"""Settings from several places: which of them win, which are not the same, and those of a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelseed.errors import ConfigError, MissingPackageError, StorageError
from kernelseed.methods import settings_of
from kernelseed.system import read_json, read_text
from kernelseed.training.config import Config, default_model

MOST_YAML = 1 << 20


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run where those of `above` win. Another method leaves the options of the one below
    behind, another model its arguments, and what is random its start of sigma.

    >>> overlay({"epochs": 5, "options": {"delta": 0.5}}, {"epochs": 50, "options": {"lr": 0.1}})
    {'epochs': 50, 'options': {'delta': 0.5, 'lr': 0.1}}
    """
    known = settings_of(Config)
    for part in (below, above):
        known["options"].check(part.get("options", {}), ConfigError)
    method = below.get("method", known["method"].default)
    kept = dict(below.get("options", {})) if above.get("method", method) == method else {}
    if (over := above.get("options", {}).get("over")) != kept.get("over", over):
        kept.pop("sigma", None)  # a share of what is random no more
    data = above.get("data", below.get("data"))
    if above.get("model", model := below.get("model", default_model(data))) != model:
        below = {name: value for name, value in below.items() if name != "model_args"}
    return {**below, **above, "options": {**kept, **above.get("options", {})}}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that both have and that are not the same, options of the method included.

    >>> differences({"epochs": 5, "seed": 0}, {"epochs": 50, "seed": 0})
    {'epochs': (5, 50)}
    """
    one, two = ({**settings, **settings.get("options", {}), "options": None} for settings in (old, new))
    return {key: (one[key], two[key]) for key in one if key in two and one[key] != two[key]}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON or YAML file."""
    if path.suffix not in (".yaml", ".yml"):
        return read_json(path)
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingPackageError(f"{path} needs the package PyYAML: pip install PyYAML, or write JSON.") from None

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number, as YAML 1.2 does; PyYAML follows 1.1. A key that is there twice is an error."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            written = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
            if twice := [key for key, count in written.items() if count > 1]:
                raise yaml.YAMLError(f"{twice[0][:60]!r} is there twice")
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    text = read_text(path, MOST_YAML)
    try:
        found = yaml.load(text, Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise StorageError(f"{path} is not readable YAML ({' '.join(str(error).split())}); mend the file.") from None
    if not isinstance(found, dict):
        raise StorageError(f"{path} holds a {type(found).__name__}; write one setting a line, such as `epochs: 50`.")
    return found
