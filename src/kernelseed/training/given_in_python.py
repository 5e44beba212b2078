"""Models and data that are given in Python, in the place of those that a config names."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from kernelseed.core import check_kind
from kernelseed.data import Dataset, absolute_name, hold_out, normalise, standardised
from kernelseed.errors import ArgumentError, ArgumentTypeError, ConfigError, DataError
from kernelseed.models import BUILDERS, GIVEN, Model, WithNoise
from kernelseed.training.config import Config
from kernelseed.training.run_settings import TABLE_MODEL
from kernelseed.training.tasks import task_of


def settle(config: Config, model: Model | None, data: Dataset | None) -> Config:
    """The config with what is given written into it: a run says by its config what it was made of, and where."""
    check_kind("config", config, Config, "make one by kernelseed.training.Config(...)")
    test = str(Path(config.test).absolute()) if isinstance(config.test, str) else config.test
    config = replace(config, data=absolute_name(config.data), test=test)
    if model is not None:
        name = model if isinstance(model, str) else GIVEN
        _require_one("model", config.model, name)
        config = replace(config, model=name)
    if data is None:
        return config
    if not isinstance(data, Dataset):
        raise ArgumentTypeError(f"data is a {type(data).__name__}; it must be a ks.data.Dataset.")
    _require_one("data", config.data, GIVEN)
    config = replace(config, data=GIVEN)
    if (config.size, config.channels, config.skip_unreadable) != (None, None, False):
        raise ConfigError("size, channels and skip_unreadable are for folder:PATH; data that is given is as it is.")
    if data.table is not None and config.model == Config().model:
        config = replace(config, model=TABLE_MODEL)
    if data.validation is None:
        return config
    share = len(data.validation) / (len(data.train) + len(data.validation))
    return replace(config, validation=share)  # its own split, whatever the config says


def _require_one(name: str, said: str, given: str) -> None:
    if said not in (given, getattr(Config(), name)):
        raise ConfigError(f"{name} is {said!r} in the config, and {given!r} beside it: leave one of them out.")


def prepared(config: Config, data: Dataset) -> Dataset:
    """Data that is given, with the validation share held out if it has no split of its own."""
    if config.data != GIVEN:
        raise ArgumentError(f"data is given, but the run names its data, {config.data!r}: leave it out.")
    for name, split in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if split is None:
            continue
        if not len(split):
            raise DataError(f"the {name} split is empty; give it one image at least.")
        if split.inputs.shape[1:] != data.train.inputs.shape[1:]:
            raise DataError(
                f"the {name} images have shape {tuple(split.inputs.shape[1:])}, and those to train on "
                f"{tuple(data.train.inputs.shape[1:])}; give all of them one shape."
            )
        if split.targets.is_floating_point() != task_of(data).has_noise:
            raise DataError(f"the {name} targets are {split.targets.dtype}, but the task is {task_of(data).name}.")
        if split.targets.is_floating_point():
            continue
        low, high = split.labels.min().item(), split.labels.max().item()
        if low < 0 or high >= len(data.class_names):
            raise DataError(
                f"the {name} labels go from {low} to {high}, but there are {len(data.class_names)} class names; count "
                "classes from 0, and name all of them."
            )
    if data.validation is not None or not config.validation:
        return data
    data = hold_out(data, config.validation, config.seed)
    return data if data.table is None else standardised(data, data.name)  # by the rows that are left to train on


def plain_model(config: Config, data: Dataset, model: Model | None, trust_model: bool, where: str | Path) -> nn.Module:
    """The network before a method makes its own of it; one that is none of ours is tried on two images."""
    plain = config.build_model(data, model, trust_model, where)
    if config.model not in BUILDERS:
        check_output(plain, data)
    return plain


def check_output(model: nn.Module, data: Dataset) -> None:
    """An error unless the model gives as many numbers as the task needs: better than after an epoch."""
    task, model = task_of(data), model.model if isinstance(model, WithNoise) else model
    images = normalise(data.train.inputs[:2], data.mean, data.std)
    first = next((p for p in model.parameters() if p.is_floating_point()), images)
    shape, what = tuple(images.shape[1:]), "images" if data.table is None else "rows"
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = copy.deepcopy(model).eval()(images.to(first))
    except Exception as error:  # whatever a model of another kind makes of images
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"the model {type(model).__name__} can't take {what} of shape {shape}: {reason}.") from error
    wanted = (len(images), task.num_outputs)
    if not isinstance(output, Tensor) or output.shape != wanted:
        got = f"of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ConfigError(
            f"the output of the model {type(model).__name__} for {len(images)} {what} is {got}; it must be a tensor "
            f"of shape {wanted}: {task.wanted}."
        )
