"""The options of `kernelseed train`, made from the settings of a run and of the methods."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from kernelseed.errors import ConfigError
from kernelseed.methods import METHODS, Setting, options_of, settings_of
from kernelseed.system import parse_json
from kernelseed.training import Config


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting; its argument `given` holds those that were used, as `Config` does."""
    own = {name: known for name, known in settings_of(Config).items() if name != "options"}
    kinds = {name: known.kinds for name, known in own.items()}
    made = {name: _option(known, "Run", str(known.default)) for name, known in own.items()}
    made |= {name: _option(*described) for name, described in _method_options().items()}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        used = {name: value for name in made if (value := values.pop(name)) is not None}
        used |= {name: _json_object(name, used[name]) for name in used if dict in kinds.get(name, ())}
        given = {name: value for name, value in used.items() if name in settings_of(Config)}
        given["options"] = {name: value for name, value in used.items() if name not in given}
        command(**values, given=given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    rest = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    new = [inspect.Parameter(name, keyword, default=None, annotation=made[name]) for name in made]
    parameters = [p.replace(kind=keyword) for p in rest] + new
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _method_options() -> dict[str, tuple[Setting, str, str]]:
    """Each option of a method with its help panel and its default."""
    found: dict[str, dict[str, Setting]] = {}
    for method in METHODS:
        for name, known in options_of(method).items():
            found.setdefault(name, {})[method] = known
    described = {}
    for name, by_method in found.items():
        defaults = {known.default for known in by_method.values()}
        panel = "Every method" if len(by_method) == len(METHODS) else ", ".join(by_method)
        first = next(iter(by_method.values()))
        described[name] = first, panel, str(*defaults) if len(defaults) == 1 else "the method's"
    return described


def _option(known: Setting, panel: str, default: str) -> Any:
    kind = next(kind for kind in known.kinds if kind is not type(None))
    allowed = f": {known.allowed}" if known.choices else ""
    shown = f" [default: {default}]" if default not in ("None", "False") and kind is not dict else ""
    words = f"{known.help[0].upper()}{known.help[1:]}{allowed}.{shown}"
    info: dict[str, Any] = {"help": escape(words), "rich_help_panel": panel, "show_default": False}
    if set(known.kinds) == {str, float}:
        info |= {"parser": _number_or_word, "metavar": "<str|float>"}
    if kind is dict:
        kind = str  # an error of a parser would not be one line
        info |= {"metavar": "<json>"}
    return Annotated[kind | None, typer.Option(**info)]


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _json_object(name: str, text: str) -> dict[str, Any]:
    example = '{"widths": [200, 200]}'
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text[:200]!r}, which is no JSON ({error}); write it as {example!r}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {text[:200]!r}, a {type(found).__name__}; write it as {example!r}.")
    return found


ModelAgain = Annotated[str | None, typer.Option("--model", help="The run's module:function again, if it is your own.")]
TrustModel = Annotated[
    bool, typer.Option("--trust-model", help="Import and call the function that the stored run or config names.")
]


def own_model(model: str | None, trust_model: bool) -> dict[str, Any]:
    """Both as keyword arguments. A function may then be found in the current folder, after all that is installed."""
    here = os.getcwd()
    if (model is not None or trust_model) and here not in sys.path:
        sys.path.append(here)
    return {"model": model, "trust_model": trust_model}
