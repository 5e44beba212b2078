"""Which settings of a run go together: each error names both, and what to do."""

from __future__ import annotations

from kernelseed import models
from kernelseed.data import CSV
from kernelseed.errors import ArgumentError, ConfigError
from kernelseed.methods import Method, did_you_mean, settings_of
from kernelseed.training.run_settings import TABLE_MODEL, RunSettings


def check_together(config: RunSettings) -> None:
    """An error for the first settings that do not fit each other; each of them is allowed by itself."""
    _check_data(config)
    _check_model(config)
    method = config.build_method()
    _check_method(config, method)
    _check_course(config, method)


def _check_method(config: RunSettings, method: Method) -> None:
    """That the method allows it."""
    if config.patience is not None and not config.validation:
        raise ConfigError(
            f"patience is {config.patience} with validation {config.validation}; early stopping needs a validation "
            "share to watch, such as 0.1."
        )
    if config.clip is not None and config.precision == "16-mixed":
        raise ConfigError(
            f"clip is {config.clip} with precision '16-mixed', whose gradients are scaled; take bf16-mixed, or do "
            "without clip."
        )
    if config.clip is not None and not method.clips:
        raise ConfigError(f"clip is {config.clip}, but method {config.method!r} uses its gradients itself: do without.")
    if config.devices * config.nodes > 1 and not method.distributed:
        raise ConfigError(
            f"devices x nodes is {config.devices * config.nodes}; method {config.method!r} keeps statistics of its own "
            "gradients and trains in one process: set both to 1."
        )


def _check_course(config: RunSettings, method: Method) -> None:
    """That the method can be trained in this way."""
    for name, default in (("accumulate", 1), ("ema", None)):
        if method.is_optimizer and getattr(config, name) != default:
            raise ConfigError(
                f"{name} is {getattr(config, name)}, but method {config.method!r} is an optimizer itself, whose "
                f"posterior belongs to its own steps: leave {name} at {default}."
            )
    if config.init_from is not None and not method.keeps_weights:
        raise ConfigError(
            f"init_from is {config.init_from!r}, but method {config.method!r} starts from weights of its own; do "
            "without, or take init 'model' for kernel seeds."
        )
    if config.warmup >= 1 and config.warmup % 1:
        raise ConfigError(f"warmup is {config.warmup}; allowed: a whole number of steps, or a share below 1.")
    if not config.plain_epochs:
        return
    if not isinstance(method.plain(), Method):
        raise ConfigError(
            f"plain_epochs is {config.plain_epochs}, but method {config.method!r} takes no trained plain network over; "
            "allowed: bnn, and ksn, fksn and ksn-last with init 'model'."
        )
    if (config.plain_epochs >= 1 and config.plain_epochs % 1) or not 0 < config.num_plain_epochs < config.epochs:
        raise ConfigError(
            f"plain_epochs is {config.plain_epochs} of {config.epochs} epochs; allowed: a whole number of fewer than "
            "all of them, or a share below 1 that leaves each part at least one."
        )
    if config.patience is not None:
        raise ConfigError(
            f"patience is {config.patience} with plain_epochs {config.plain_epochs}; early stopping could end the run "
            "as a plain network: do without one of them."
        )


def _check_data(config: RunSettings) -> None:
    """That a table has its settings, and that other data has none of them."""
    if not config.data.startswith(CSV):
        for name in ("target", "task", "test", "ignore"):
            if (value := getattr(config, name)) != settings_of(type(config))[name].default:
                raise ConfigError(f"{name} is {value!r}, but data is {config.data!r}, and no table, csv:PATH.")
        return
    try:
        config.table_options()
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
    if config.target is None:
        raise ConfigError(f"data is {config.data!r} without a target; name the column to predict: --target.")
    if config.augment:
        raise ConfigError(f"augment is for images, and data is the table {config.data!r}: leave it out.")
    if "stem" in config.model_parameters():
        raise ConfigError(f"model is {config.model!r}, which takes images, and data is a table: take {TABLE_MODEL}.")


def _check_model(config: RunSettings) -> None:
    """Of a model of ours all that can be known without data; of any other, its name."""
    if config.model not in models.BUILDERS and config.model != models.GIVEN and not models.is_path(config.model):
        allowed = ", ".join(models.BUILDERS)
        hint = did_you_mean(config.model, models.BUILDERS)
        raise ConfigError(f"model is {config.model!r}; allowed: {allowed} and package.module:function.{hint}")
    known = config.model_parameters()
    for name in ("width", "stem"):
        if name not in known and getattr(config, name) != settings_of(type(config))[name].default:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, but the model {config.model!r} has none: leave it out, and set "
                "the model's own arguments with model_args."
            )
    if config.model in models.BUILDERS:
        free = [name for name in known if name not in (*models.FACTS, "width", "stem")]
        for name in config.model_args:
            if name not in free:
                hint = did_you_mean(name, free)
                raise ConfigError(
                    f"model_args has {name!r}; allowed for the model {config.model!r}: {', '.join(free)}.{hint}"
                )
