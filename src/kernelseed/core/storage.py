"""Save and load: weights as safetensors, structure as JSON. Loading executes nothing that the files contain."""

from __future__ import annotations

import copy
import os
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelseed import models
from kernelseed.core.conversion import remove_parameters
from kernelseed.core.network import BayesianModule
from kernelseed.core.weights import (
    FixedKernelSeed,
    GaussianFactors,
    KernelSeed,
    MeanField,
    Pruned,
    WeightDistribution,
)
from kernelseed.errors import ArgumentError, MissingPackageError, PathExistsError, StorageError
from kernelseed.system import (
    gigabytes,
    make_folder,
    memory_limit,
    read_json,
    to_json,
    utf8_path,
    whole_folder,
    whole_or_nothing,
    write_text,
)

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FLOATS = {"F64", "F32", "F16", "BF16"}
OWN_DISTRIBUTIONS: tuple[type[WeightDistribution], ...] = (
    MeanField,
    KernelSeed,
    FixedKernelSeed,
    GaussianFactors,
    Pruned,
)


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
    known_name = recipe.get("name") if isinstance(recipe, dict) and "function" not in recipe else None
    own = (isinstance(recipe, dict) and "function" in recipe) if model is None else model != known_name
    plain = models.build(recipe, model, trust_model, folder) if own else None
    with _reading(folder / WEIGHTS) as name, _safetensors().safe_open(name, "pt") as file:
        members = len({key.partition(".")[0] for key in file.keys()})  # noqa: SIM118  (it is no mapping)
    try:
        # Without memory, until it is known that the weights fit: a few bytes can describe a network of any size.
        with torch.device("meta"):
            net = rebuild(config["network"], plain, known, members)
    except StorageError:
        raise
    except Exception as error:  # whatever nonsense in a description leads to
        raise StorageError(
            f"{folder / CONFIG} does not describe a network that can be built ({_short(error)}); take another copy of "
            "it, or give the model that it was made from: load(folder, model=...)."
        ) from error
    check_weights(net, folder / WEIGHTS)
    _require_memory(net, folder)
    allocate(net)
    read_weights(net, folder / WEIGHTS)
    return net.eval()


def describe(net: nn.Module, own_recipe: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a network is made of, as JSON; `own_recipe` stands for a model that is none of kernelseed.models."""
    if isinstance(net, nn.ModuleList):
        return {"kind": "ensemble", "members": [describe(member, own_recipe) for member in net]}
    if not isinstance(net, BayesianModule):
        return {"kind": "plain", "model": models.recipe(net) or own_recipe}
    _by_name(type(weight.of if isinstance(weight, Pruned) else weight) for weight in net.weights.values())
    weights = {name: {"distribution": type(w).__name__, **w.spec()} for name, w in net.weights.items()}
    aliases = dict(net.weights.aliases)
    made = models.recipe(net.skeleton) or own_recipe
    return {"kind": "bayesian", "model": made, "weights": weights, "aliases": aliases}


def rebuild(
    description: dict[str, Any],
    model: nn.Module | None,
    distributions: dict[str, type[WeightDistribution]],
    members: int | None = None,
) -> nn.Module:
    """The network of a description, its tensors not yet filled; a model of one's own is copied with what it has.

    members  how many an ensemble has by the names of its weights; in an ensemble is no other
    """
    if members is not None and description["kind"] == "ensemble":
        described = description["members"]
        if len(described) != members:
            raise ValueError(f"an ensemble of {len(described)} members, with the weights of {members}")
        return nn.ModuleList([rebuild(member, model, distributions) for member in described])
    if description["kind"] not in ("plain", "bayesian"):
        raise ValueError(f"its kind is {_short(description['kind'])}")
    plain = models.from_recipe(description["model"]) if model is None else copy.deepcopy(model)
    if description["kind"] == "plain":
        return plain
    weights, aliases = {}, description["aliases"]
    for name, entry in description["weights"].items():
        plain.get_parameter(name)  # before any is made of what may be a long list
        weights[name] = _blank(entry, distributions)
    for name in (*weights, *aliases):
        stored, there = weights[aliases.get(name, name)].shape, plain.get_parameter(name).shape
        if stored != there:
            raise ValueError(f"{name} is of shape {tuple(stored)}, and in the model {tuple(there)}")
    remove_parameters(plain, (*weights, *aliases))
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
    kind = distributions[name]
    if kind is Pruned:
        return Pruned.blank(_blank(spec["of"], distributions), spec["kept"])
    if kind in OWN_DISTRIBUTIONS:
        return kind.from_spec(spec)
    with torch.device("cpu"):  # somebody's own code need not know what a tensor without memory is
        return kind.from_spec(spec)


def _short(reason: object) -> str:
    return textwrap.shorten(str(reason), 200)


def write_weights(net: nn.Module, path: Path) -> None:
    """All parameters and buffers, whole or not at all."""
    safetensors = _safetensors()
    with whole_or_nothing(path) as scratch:
        safetensors.torch.save_model(net, str(scratch))


def check_weights(net: nn.Module, path: Path) -> None:
    """An error unless the names and shapes in the file's head are the network's. Nothing is allocated."""
    with _reading(path) as name:
        with _safetensors().safe_open(name, "pt") as file:
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (it is no mapping)
            found = {key: (tuple(part.get_shape()), part.get_dtype()) for key, part in parts.items()}
        tied: dict[int, list[str]] = {}
        state = net.state_dict(keep_vars=True)
        for key, tensor in state.items():
            tied.setdefault(id(tensor), []).append(key)  # which are stored once
        for keys in tied.values():
            key, tensor = next((key for key in keys if key in found), keys[0]), state[keys[0]]
            if key not in found:
                raise RuntimeError(f"it has no {key}")
            shape, dtype = found[key]
            if shape != tuple(tensor.shape):
                raise RuntimeError(f"{key} is of shape {shape}, and in the network {tuple(tensor.shape)}")
            if tensor.is_floating_point() != (dtype in FLOATS) or (tensor.dtype == torch.bool) != (dtype == "BOOL"):
                raise RuntimeError(f"{key} is of type {dtype}, and in the network {tensor.dtype}")
        if more := set(found) - set(state):
            raise RuntimeError(f"the network has no {min(more)}")


def _require_memory(net: nn.Module, folder: Path) -> None:
    """An error if the weights that the network stands for are more than there is memory: seeds are much smaller."""
    dense = sum(p.numel() for p in net.parameters())
    dense += sum(w.num_weights for m in net.modules() if isinstance(m, BayesianModule) for w in m.weights.values())
    if 4 * dense > memory_limit():
        raise StorageError(
            f"{folder / CONFIG} describes a network of {dense:,} weights, {gigabytes(4 * dense)}, and there is memory "
            f"for {gigabytes(memory_limit())}; take another copy of it, or a larger machine."
        )


def allocate(net: nn.Module) -> None:
    """Memory for the tensors that have none, their values not yet set; those that are tied stay so."""
    made: dict[int, Any] = {}
    for module in net.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    blank = torch.empty_like(tensor, device="cpu")
                    made[id(tensor)] = (
                        nn.Parameter(blank, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else blank
                    )
                tensors[name] = made[id(tensor)]


def read_weights(net: nn.Module, path: Path) -> None:
    """Fill a network from the file; names and shapes must fit, the precision becomes the file's."""
    safetensors = _safetensors()
    with _reading(path) as name:
        with safetensors.safe_open(name, "pt") as file:
            stored = set(file.keys())
            for key, tensor in (*net.named_parameters(), *net.named_buffers()):
                if key in stored:
                    tensor.data = tensor.data.to(file.get_tensor(key).dtype)
        safetensors.torch.load_model(net, name)


@contextmanager
def _reading(path: Path) -> Iterator[str]:
    """A name to open a file of weights by; what can be wrong with it, in words."""
    safetensors = _safetensors()
    if not path.is_file():  # opening a pipe would wait for ever
        reason = "is not a file" if path.exists() else "is missing"
        raise StorageError(f"{path} {reason}; give a folder that was written by kernelseed.")
    try:
        with utf8_path(path) as name:
            yield name
    except (safetensors.SafetensorError, OSError) as error:
        raise StorageError(
            f"{path} is not a whole safetensors file ({_short(error)}); take another copy of it."
        ) from None
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
