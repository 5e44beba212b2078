"""Save and load: weights as safetensors, structure as JSON. Loading executes nothing that the files contain."""

from __future__ import annotations

import copy
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from kernelseed import models
from kernelseed.core.conversion import remove_parameter
from kernelseed.core.files import make_folder, read_json, to_json, whole_folder, whole_or_nothing, write_text
from kernelseed.core.network import BayesianModule
from kernelseed.core.weights import FixedKernelSeed, GaussianFactors, KernelSeed, MeanField, WeightDistribution
from kernelseed.errors import ArgumentError, MissingPackageError, PathExistsError, StorageError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OWN_DISTRIBUTIONS: tuple[type[WeightDistribution], ...] = (MeanField, KernelSeed, FixedKernelSeed, GaussianFactors)


def save(net: nn.Module, folder: str | os.PathLike[str], **extra: Any) -> None:
    """Write `config.json` and `model.safetensors` into a folder that has neither.

    `extra` is kept in the config beside the network's description.

    >>> import kernelseed as ks, tempfile
    >>> net = ks.germinate(ks.models.resnet18(10, 1, width=8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ks.save(net, folder)
    ...     twin = ks.load(folder)
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if (folder / name).exists():
            raise PathExistsError(f"{folder / name} exists; choose another folder, or remove the file first.")
    if "network" in extra:
        raise ArgumentError("extra has 'network', under which the network's description is kept; take another name.")
    config = to_json({"network": describe(net), **extra})  # first: what is no JSON should leave no file behind
    if not os.path.lexists(folder):
        with whole_folder(folder) as scratch:
            write_weights(net, scratch / WEIGHTS)
            write_text(scratch / CONFIG, config)
        return
    make_folder(folder)
    try:
        with whole_or_nothing(folder / CONFIG) as scratch:
            scratch.write_text(config, encoding="utf-8")
            write_weights(net, folder / WEIGHTS)
    except BaseException:
        (folder / WEIGHTS).unlink(missing_ok=True)  # half a network would be in the way of the next attempt
        raise


def load(
    folder: str | os.PathLike[str],
    model: models.Model | None = None,
    *,
    trust_model: bool = False,
    distributions: Iterable[type[WeightDistribution]] = (),
) -> nn.Module:
    """The network that `save` or `kernelseed train` wrote, in eval mode.

    model          a model of your own again, if the network was made of one: another instance, `load(folder,
                   MyModel())`, or what makes it, a callable or its name "package.module:function"
    trust_model    import and call the function that the folder of a run names
    distributions  weight distributions of your own that the network has: a file never chooses what is called
    """
    folder = Path(folder)
    config = read_json(folder / CONFIG)
    if not isinstance(config.get("network"), dict):
        raise StorageError(f"{folder / CONFIG} describes no network; was it written by ks.save?")
    known = _by_name(distributions)
    recipe = _recipe(config["network"])
    own = model is not None or (isinstance(recipe, dict) and "function" in recipe)
    plain = models.build(recipe, model, trust_model, folder) if own else None
    try:
        net = rebuild(config["network"], plain, known)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise StorageError(
            f"{folder / CONFIG} does not describe a network that can be built ({_short(error)}); take another copy of "
            "it, or give the model that it was made from: load(folder, model=...)."
        ) from error
    read_weights(net, folder / WEIGHTS)
    return net.eval()


def describe(net: nn.Module, own_recipe: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a network is made of, as JSON; `own_recipe` stands for a model that is none of kernelseed.models."""
    if isinstance(net, nn.ModuleList):
        return {"kind": "ensemble", "members": [describe(member, own_recipe) for member in net]}
    if not isinstance(net, BayesianModule):
        return {"kind": "plain", "model": models.recipe(net) or own_recipe}
    _by_name(type(weight) for weight in net.weights.values())
    weights = {name: {"distribution": type(w).__name__, **w.spec()} for name, w in net.weights.items()}
    aliases = dict(net.weights.aliases)
    made = models.recipe(net.skeleton) or own_recipe
    return {"kind": "bayesian", "model": made, "weights": weights, "aliases": aliases}


def rebuild(
    description: dict[str, Any], model: nn.Module | None, distributions: dict[str, type[WeightDistribution]]
) -> nn.Module:
    """The network of a description, its tensors not yet filled."""
    if description["kind"] == "ensemble":
        return nn.ModuleList([rebuild(member, model, distributions) for member in description["members"]])
    plain = models.from_recipe(description["model"]) if model is None else copy.deepcopy(model)
    if description["kind"] == "plain":
        return plain
    weights = {name: _blank(entry, distributions) for name, entry in description["weights"].items()}
    aliases = description["aliases"]
    for name in (*weights, *aliases):
        stored, there = weights[aliases.get(name, name)].shape, plain.get_parameter(name).shape
        if stored != there:
            raise ValueError(f"{name} is of shape {tuple(stored)}, and in the model {tuple(there)}")
        remove_parameter(plain, name)
    return BayesianModule(plain, weights, aliases)


def _recipe(description: Any) -> Any:
    """Of the model; all members of an ensemble have the same."""
    while isinstance(description, dict) and isinstance(description.get("members"), list):
        description = next(iter(description["members"]), None)
    return description.get("model") if isinstance(description, dict) else None


def _by_name(kinds: Iterable[type[WeightDistribution]]) -> dict[str, type[WeightDistribution]]:
    """The library's distributions and these, by the names that files know them by."""
    named = {kind.__name__: kind for kind in OWN_DISTRIBUTIONS}
    for kind in kinds:
        if named.setdefault(kind.__name__, kind) is not kind:
            raise ArgumentError(
                f"{kind.__module__}.{kind.__qualname__} has the name of another weight distribution, and files tell "
                "them apart by name; rename the class."
            )
    return named


def _blank(entry: dict[str, Any], distributions: dict[str, type[WeightDistribution]]) -> WeightDistribution:
    spec = dict(entry)
    name = spec.pop("distribution")
    if name not in distributions:
        what = name if str(name).isidentifier() else "..."  # nobody should paste an expression out of a file
        raise StorageError(
            f"the network has weights of the distribution {name!r}, which is none of {', '.join(distributions)}; "
            f"give the class that it was saved with: load(folder, distributions=[{what}])."
        )
    return distributions[name].from_spec(spec)


def _short(reason: object) -> str:
    return textwrap.shorten(str(reason), 200)


def write_weights(net: nn.Module, path: Path) -> None:
    """All parameters and buffers, whole or not at all."""
    safetensors = _safetensors()
    with whole_or_nothing(path) as scratch:
        safetensors.torch.save_model(net, str(scratch))


def read_weights(net: nn.Module, path: Path) -> None:
    """Fill a network from the file; names and shapes must fit, the precision becomes the file's."""
    safetensors = _safetensors()
    if not path.exists():
        raise StorageError(f"{path} is missing; give a folder that was written by kernelseed.")
    try:
        with safetensors.safe_open(str(path), "pt") as file:
            stored = set(file.keys())
            for name, tensor in (*net.named_parameters(), *net.named_buffers()):
                if name in stored:
                    tensor.data = tensor.data.to(file.get_tensor(name).dtype)
        safetensors.torch.load_model(net, str(path))
    except safetensors.SafetensorError as error:
        raise StorageError(f"{path} is not a whole safetensors file ({error}); take another copy of it.") from None
    except RuntimeError as error:
        reason = _short(str(error).strip().splitlines()[-1])
        raise StorageError(
            f"{path} belongs to another architecture ({reason}); give the file that was saved with this {CONFIG}."
        ) from None


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingPackageError(
            'a network\'s file needs the package safetensors: pip install "kernelseed[train]".'
        ) from None
    return safetensors
