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
from kernelseed.core.files import read_json, whole_or_nothing, write_json
from kernelseed.core.network import BayesianModule
from kernelseed.core.weights import FixedKernelSeed, KernelSeed, MeanField, WeightDistribution
from kernelseed.errors import PathExistsError, StorageError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OWN_DISTRIBUTIONS: tuple[type[WeightDistribution], ...] = (MeanField, KernelSeed, FixedKernelSeed)


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
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(net, folder / WEIGHTS)
    write_json(folder / CONFIG, {"network": describe(net), **extra})


def load(
    folder: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    distributions: Iterable[type[WeightDistribution]] = (),
) -> nn.Module:
    """The network that `save` or `kernelseed train` wrote, in eval mode.

    model          another instance of a model of your own, if the network was made of one: `load(folder, MyModel())`
    distributions  weight distributions of your own that the network has: a file never chooses what is called
    """
    folder = Path(folder)
    config = read_json(folder / CONFIG)
    if not isinstance(config.get("network"), dict):
        raise StorageError(f"{folder / CONFIG} describes no network; was it written by ks.save?")
    known = {kind.__name__: kind for kind in (*OWN_DISTRIBUTIONS, *distributions)}
    try:
        net = rebuild(config["network"], model, known)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise StorageError(
            f"{folder / CONFIG} does not describe a network that can be built ({error}); take another copy of it, or "
            "give the model that it was made from: load(folder, model=...)."
        ) from None
    read_weights(net, folder / WEIGHTS)
    return net.eval()


def describe(net: nn.Module) -> dict[str, Any]:
    """What a network is made of, as JSON."""
    if isinstance(net, nn.ModuleList):
        return {"kind": "ensemble", "members": [describe(member) for member in net]}
    if not isinstance(net, BayesianModule):
        return {"kind": "plain", "model": models.recipe(net)}
    weights = {name: {"distribution": type(w).__name__, **w.spec()} for name, w in net.weights.items()}
    aliases = dict(net.weights.aliases)
    return {"kind": "bayesian", "model": models.recipe(net.skeleton), "weights": weights, "aliases": aliases}


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
    for name in (*weights, *description["aliases"]):
        remove_parameter(plain, name)
    return BayesianModule(plain, weights, description["aliases"])


def _blank(entry: dict[str, Any], distributions: dict[str, type[WeightDistribution]]) -> WeightDistribution:
    spec = dict(entry)
    name = spec.pop("distribution")
    if name not in distributions:
        raise StorageError(
            f"the network has weights of the distribution {name!r}, which is none of {', '.join(distributions)}; "
            f"give the class that it was saved with: load(folder, distributions=[{name}])."
        )
    return distributions[name].from_spec(spec)


def write_weights(net: nn.Module, path: Path) -> None:
    """All parameters and buffers, whole or not at all."""
    from safetensors.torch import save_model

    with whole_or_nothing(path) as scratch:
        save_model(net, str(scratch))


def read_weights(net: nn.Module, path: Path) -> None:
    """Fill a network from the file; names and shapes must fit, the precision becomes the file's."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_model

    if not path.exists():
        raise StorageError(f"{path} is missing; give a folder that was written by kernelseed.")
    try:
        with safe_open(str(path), "pt") as file:
            stored = set(file.keys())
            for name, tensor in (*net.named_parameters(), *net.named_buffers()):
                if name in stored:
                    tensor.data = tensor.data.to(file.get_tensor(name).dtype)
        load_model(net, str(path))
    except SafetensorError as error:
        raise StorageError(f"{path} is not a whole safetensors file ({error}); take another copy of it.") from None
    except RuntimeError as error:
        reason = textwrap.shorten(str(error).strip().splitlines()[-1], 200)
        raise StorageError(
            f"{path} belongs to another architecture ({reason}); give the file that was saved with this {CONFIG}."
        ) from None
