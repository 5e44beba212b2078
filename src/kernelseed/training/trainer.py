"""Train: from a config to a finished run folder, resumable at any moment."""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from kernelseed.core import derive_seed, describe, write_weights
from kernelseed.data import Batches, Dataset, augment
from kernelseed.errors import ConfigError, KernelseedError, StorageError
from kernelseed.models import Model, is_path
from kernelseed.system import disk_file, explained, make_folder, whole_or_nothing
from kernelseed.training.config import Config
from kernelseed.training.given_in_python import plain_model, prepared, settle
from kernelseed.training.inference import predict_split, test_and_keep, ways
from kernelseed.training.loggers import build_logger, check_logger
from kernelseed.training.lost_ranks import TimeToSpeak, stopped
from kernelseed.training.merged_settings import differences
from kernelseed.training.origin import provenance
from kernelseed.training.run_folder import RunFolder
from kernelseed.training.steps import EpochBatches, Training
from kernelseed.training.tasks import describe_data, summarise, task_of
from kernelseed.training.warm_start import start_from


def train(
    config: Config | None,
    out: str | Path,
    *,
    model: Model | None = None,
    data: Dataset | None = None,
    trust_model: bool = False,
    resume: bool = False,
    data_dir: str | Path | None = None,
    logger: str = "csv",
    progress: bool = True,
) -> dict[str, Any]:
    """Train, evaluate and write a run folder; returns what its result.json holds.

    With `resume`, training goes on from the folder's last checkpoint, and the weights end as if it had never stopped,
    bit by bit, on the same kind of machine and number of threads. The config is the folder's own: give None or the
    same.

    model        in the place of the config's: a module, whose weights the run starts from, or what makes one, a
                 callable or "package.module:function"; it is called with those of num_classes, in_channels and
                 image_size that it takes, and the config's model_args
    data         in the place of the config's
    trust_model  on a resume, import and call the function that the folder names
    logger       where the curves go beside metrics.csv: "tensorboard", "wandb" or "mlflow"
    """
    run = RunFolder(out)
    config = None if config is None else settle(config, model, data)
    if config is not None and model is None and is_path(config.model):
        model = config.model  # as the caller says there
    if resume:
        config = _own_config(run, config)
        if run.finished:
            run.tidy()
            return run.result()
    if config is None:
        raise ConfigError("config is None; a run that is not resumed needs its settings: give a Config.")
    check_logger(logger, run)
    curves = Curves(run)
    trainer = _trainer(config, run, curves, progress)
    if trainer.is_global_zero and not resume:
        run.require_absent()
    data = _loaded(run, config, data, data_dir, resume)
    torch.manual_seed(derive_seed("initial weights", config.seed))
    plain, origin = _warm_start(plain_model(config, data, model, trust_model, run.path), config, run)
    batches, validation = _batches(config, data, trainer)
    module = Training(plain, config, task_of(data), num_data=len(data.train), num_steps=_epoch_steps(config, batches))
    if trainer.is_global_zero:
        posterior = _posterior_to_be(module, plain)
        _rehearse(posterior, config, data)
        if not resume:  # what can be wrong with the settings has been found by now
            _create(run, config, data, posterior, origin)
    with run.locked() if trainer.is_global_zero else nullcontext():
        if trainer.world_size == 1 and run.finished:  # by another process, while this one waited for its data
            return run.result()
        trainer.logger = build_logger(logger, run) if trainer.is_global_zero else None
        _fit(trainer, module, batches, validation, run.latest_checkpoint(), curves)
        if module.global_rank != 0:
            return {}
        return _finish(run, config, data, module, plain, curves.seconds)


def _loaded(run: RunFolder, config: Config, data: Dataset | None, data_dir: str | Path | None, resume: bool) -> Dataset:
    """The data that is given or named; a resumed run's must be what it was."""
    if resume:
        return run.data(data, data_dir)
    return config.load_data(data_dir) if data is None else prepared(config, data)


def _own_config(run: RunFolder, given: Config | None) -> Config:
    """The config of a run that is there; one that is given must be the same."""
    if not run.path.is_dir():
        raise StorageError(f"{run.path} is not there; give the folder of a run, or start one without --resume.")
    own = run.training_config()
    if given is not None and (changed := differences(own.as_json(), given.as_json())):
        now = ", ".join(f"{name} is {new!r}" for name, (_, new) in changed.items())
        before = ", ".join(f"{name} {old!r}" for name, (old, _) in changed.items())
        raise ConfigError(
            f"{now}, but {run.path} was started with {before}; a resumed run keeps its settings: leave them as they "
            "were, or start another run."
        )
    return own


def _warm_start(plain: nn.Module, config: Config, run: RunFolder) -> tuple[nn.Module, dict[str, Any]]:
    """The plain model with the weights that it is to start from, and what to keep of where they came from."""
    if config.init_from is None or run.latest_checkpoint():
        return plain, {}
    origin = start_from(plain, config.init_from)
    if run.path.exists() and (before := run.config()["init_from"]) != origin:
        raise StorageError(
            f"init_from is {config.init_from!r}, whose SHA-256 is {origin['sha256']} and was {before['sha256']} when "
            f"{run.path} was started; put the weights back, or start another run."
        )
    return plain, {"init_from": origin}


def _epoch_steps(config: Config, batches: Batches) -> int:
    steps = -(-len(batches) // config.accumulate)
    total = config.epochs * steps
    if config.num_warmup_steps(total) >= total:
        raise ConfigError(
            f"warmup is {config.warmup}, {config.num_warmup_steps(total)} steps, and the run has {total} steps; give a "
            "smaller one."
        )
    return steps


def _posterior_to_be(module: Training, plain: nn.Module) -> nn.Module:
    """A network like the one that the run will leave."""
    method = module.config.build_method()
    net = method.build(plain) if module.is_plain else module.net
    return method.posterior(net, method.build_optimizer(net, module.num_data))


def _rehearse(net: nn.Module, config: Config, data: Dataset) -> None:
    """Test the untrained network on two examples: what can fail after the training fails before it."""
    config = replace(config, samples=min(config.samples, 2), update_bn=min(config.update_bn, 2))
    few = data.test.select(torch.arange(min(len(data.test), 2)))
    for way in ways(config):
        summarise(predict_split(net, few, data, config, way), few.targets)


def _create(run: RunFolder, config: Config, data: Dataset, posterior: nn.Module, origin: dict[str, Any]) -> None:
    network = describe(posterior, config.recipe(data))
    described = {"network": network, "training": config.as_json(), "data": describe_data(data)}
    run.create(run.path, {**described, **origin})


def _finish(
    run: RunFolder, config: Config, data: Dataset, module: Training, plain: nn.Module, seconds: float
) -> dict[str, Any]:
    """Store the trained network, test it, and write and return its result, which says how it came about."""
    run.keep_latest_checkpoint()
    net, method = module.net, module.method
    posterior = module.posterior().to(module.trainer.strategy.root_device)  # from which Lightning has moved it away
    if module.plain_steps:  # the ranks may follow from what the plain network had learned
        run.write_network(describe(posterior, config.recipe(data)))
    write_weights(posterior, run.weights)
    result = {
        "task": module.task.name,
        "metrics": test_and_keep(posterior, config, data, run),
        "parameters": {
            "trained": _count(net),
            "stored": _count(posterior),
            "plain": _count(plain),
            "relative": _count(net) / _count(plain),
        },
        "labels": {key: method.label(key == "ensemble") for key in ("mean", "ensemble")},
        "epochs": module.current_epoch,
        "data_order": f"permutations of {len(data.train)} examples by (seed {config.seed}, epoch)",
        "seconds": round(seconds, 2),
        "seed": config.seed,
        "config": config.as_json(),
        **{key: value for key, value in run.config().items() if key in ("trained", "init_from")},  # a branch, elsewhere
        **provenance(),
    }
    run.write_result(result)
    return result


class Curves(Callback):
    """Writes metrics.csv, a row an epoch, and counts the seconds; both survive a resume inside the checkpoint."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        self.started = time.perf_counter()
        self.restored = False

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint."""
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """All states are in place, and a run that early stopping had ended before it was killed stays ended."""
        self.restored = True
        trainer.should_stop = any(c.stopped_epoch > 0 for c in trainer.early_stopping_callbacks)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The clock runs for whole epochs."""
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """One more row."""
        assert isinstance(pl_module, Training)
        self.seconds += time.perf_counter() - self.started
        logged = {key: value.item() for key, value in trainer.callback_metrics.items() if not key.endswith("_step")}
        names = {"loss_epoch": "train_loss", "nll_epoch": "train_nll", "kl_epoch": "train_kl"}
        kept = {names.get(key, key): value for key, value in logged.items() if key not in ("loss", "nll", "kl")}
        if pl_module.plain_steps:
            kept["plain"] = float(pl_module.is_plain)
        self.rows.append({"epoch": trainer.current_epoch + 1, **kept, "seconds": round(self.seconds, 3)})
        if trainer.is_global_zero:
            self.run.write_metrics(self.rows)


class WholeCheckpoints(TorchCheckpointIO):
    """Checkpoints that a kill can't cut short: Lightning's own are copied in from the system's temporary folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Beside its place, then into it."""
        path = Path(path)
        make_folder(path.parent)
        with whole_or_nothing(path) as scratch, disk_file(scratch) as file:
            torch.save(checkpoint, file)


def _batches(config: Config, data: Dataset, trainer: L.Trainer) -> tuple[Batches, Batches | None]:
    """This rank's share of the training and of the validation data."""
    loader = partial(
        Batches, mean=data.mean, std=data.std, seed=config.seed, rank=trainer.global_rank, world_size=trainer.world_size
    )
    # One example left over would stop BatchNorm, which can't normalise it.
    batches = loader(
        data.train, batch_size=config.batch_size, shuffle=True, augment=augment if config.augment else None,
        drop_last=len(data.train) // trainer.world_size % config.batch_size == 1,
    )  # fmt: skip
    return batches, loader(data.validation, batch_size=config.batch_size) if data.validation else None


def _fit(
    trainer: L.Trainer,
    module: Training,
    batches: Batches,
    validation: Batches | None,
    checkpoint: Path | None,
    curves: Curves,
) -> None:
    """Run Lightning's loop to the last epoch, from the checkpoint if there is one."""
    if trainer.logger:
        trainer.logger.log_hyperparams(module.config.as_json())
    try:
        with warnings.catch_warnings():
            # Lightning's advice is for its own data loaders and loggers, which are not used here.
            warnings.filterwarnings("ignore", module="lightning")
            with explained(f"can't read or write in {curves.run.path}"):
                trainer.fit(module, EpochBatches(batches, module), validation, ckpt_path=checkpoint, weights_only=True)
    except KernelseedError:
        raise
    except Exception as error:  # whatever a broken or hostile file makes of the attempt to restore it
        if (said := stopped(error, trainer.world_size, curves.run.path)) is not None:
            raise said from error
        if checkpoint is None or curves.restored:
            raise
        raise StorageError(
            f"{checkpoint} can't be resumed from ({_first_line(error)}); remove it to start this run over."
        ) from error
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None


def _trainer(config: Config, run: RunFolder, curves: Curves, progress: bool) -> L.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    callbacks: list[Callback] = [
        curves,
        ModelCheckpoint(
            run.checkpoints,
            filename="epoch-{epoch:04d}",
            auto_insert_metric_name=False,
            save_on_train_epoch_end=True,  # after Curves' row
        ),
    ]
    if config.devices * config.nodes > 1:
        callbacks.append(TimeToSpeak())
    if config.patience is not None:
        callbacks.append(EarlyStopping("val_nll", patience=config.patience))
    if progress:
        callbacks.append(RichProgressBar())
    try:
        return L.Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=config.strategy,
            precision=config.precision,  # type: ignore[arg-type]
            max_epochs=config.epochs,
            callbacks=callbacks,
            plugins=[WholeCheckpoints()],
            logger=False,  # once the run's folder is there
            enable_progress_bar=progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"accelerator {config.accelerator!r}, strategy {config.strategy!r}, devices {config.devices} and precision "
            f"{config.precision!r} do not go together here: {_first_line(error)}"
        ) from None


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
