"""Training: what a run leaves, that it can be killed and resumed, and that many processes train one network."""

import contextlib
import csv
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import kernelseed as ks
from kernelseed.core.seeds import derive_seed
from kernelseed.errors import ConfigError, DataError, MissingPackageError, PathExistsError, StorageError
from kernelseed.training import Config, RunFolder, read_settings, summarise, train, trainer
from kernelseed.training.inference import statistics_batches

SMALL = Config(width=8, epochs=2, batch_size=256, samples=2, update_bn=0)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(ks.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
PATIENCE = 300  # seconds until a process that hangs is a failure


def contents(folder):
    """Every file below a folder, byte by byte."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def finish(process):
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the other ranks too
    assert process.returncode == 0, err
    return out


def wait_for(found, process):
    """Until something is there; the process must still be running then."""
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    """The same bits take the same number of threads, here, in fixtures and in other processes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, and what `train` returned."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "deep" / "a"
    return RunFolder(out), train(SMALL, out, progress=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of two classes, dark and bright, twenty images each."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for level, name in ((40, "dark"), (180, "bright")):
        (folder / name).mkdir()
        for i in range(20):
            pixels = rng.integers(level, level + 60, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def tiny(images):
    """Two steps an epoch."""
    return Config(data=f"folder:{images}", width=4, epochs=3, batch_size=16, samples=2, update_bn=0)


# A run's data


def test_a_folder_of_other_classes_is_not_taken_for_the_runs_data(images, tiny, tmp_path):
    """With `bright` under another name, all labels would be others."""
    folder = shutil.copytree(images, tmp_path / "images")
    config = dataclasses.replace(tiny, data=f"folder:{folder}", epochs=1)
    train(config, tmp_path / "run", progress=False)
    (folder / "bright").rename(folder / "a light one")
    changed = r"it has classes \['a light one', 'dark'\] and not \['bright', 'dark'\]; put it back as it was"
    for use in (ks.training.evaluate, ks.training.pruning_curve):
        with pytest.raises(DataError, match=changed):
            use(tmp_path / "run")
    with pytest.warns(UserWarning, match=f"no images in the report: .*{changed}"):
        (record, _) = ks.report.read([tmp_path / "run"])
    assert record.images is None
    run = killed(dataclasses.replace(config, data=f"folder:{images}"), tmp_path / "killed", step=1)
    described = json.loads((run.path / "config.json").read_text())
    described["data"]["classes"] = ["bright", "night"]
    (run.path / "config.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match="is not the data that"):
        train(None, run.path, resume=True, progress=False)


# A run is a folder


def test_a_run_leaves_these_files_and_no_others(finished):
    run, _ = finished
    assert list(contents(run.path)) == [
        "checkpoints/epoch-0001.ckpt",
        "config.json",
        "metrics.csv",
        "model.safetensors",
        "result.json",
        "test-ensemble.safetensors",
        "test-mean.safetensors",
    ]


def test_metrics_have_a_row_an_epoch_and_the_loss_is_its_terms(finished):
    run, _ = finished
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert rows == run.metrics()
    assert [row["epoch"] for row in rows] == [1, 2]
    assert list(rows[0]) == ["epoch", "lr", "train_loss", "train_nll", "train_kl", "seconds"]
    assert rows[1]["train_nll"] < rows[0]["train_nll"]
    assert 0 < rows[0]["seconds"] < rows[1]["seconds"]
    net = ks.load(run.path)
    weight = min(1, 0.05 * 1438 / net.draw().num_weights)
    for row in rows:  # train_kl is per example, as the loss is
        assert row["train_loss"] == pytest.approx(row["train_nll"] + weight * row["train_kl"], rel=1e-5)


def test_the_result_says_what_was_found_and_where_it_came_from(finished):
    run, returned = finished
    result = json.loads((run.path / "result.json").read_text())
    assert result == returned
    assert list(result["metrics"]) == ["mean", "ensemble"]
    for way in result["metrics"]:
        prediction, labels = run.prediction("test", way)
        assert result["metrics"][way] == summarise(prediction, labels)
        assert torch.equal(labels, ks.data.load("digits").test.labels)
    plain = sum(p.numel() for p in ks.models.resnet18(10, 1, stem="cifar", width=8).parameters())
    trained = sum(p.numel() for p in ks.load(run.path).parameters())
    assert result["parameters"] == {
        "trained": trained, "stored": trained, "plain": plain, "relative": trained / plain
    }  # fmt: skip
    assert result["labels"] == {"mean": "KSN-P channels", "ensemble": "KSN-E channels"}
    assert Config.from_json(result["config"]) == SMALL
    assert result["config"] == run.config()["training"]
    assert result["config"]["options"] == dataclasses.asdict(ks.methods.make("ksn"))  # whole, defaults included
    assert (result["epochs"], result["seed"], result["threads"]) == (2, 0, 1)
    assert result["seconds"] == pytest.approx(run.metrics()[-1]["seconds"], abs=0.01)
    assert result["versions"]["torch"] == torch.__version__
    assert {"python", "lightning", "numpy"} <= set(result["versions"])
    assert result["commit"] is None or len(result["commit"].rstrip("+")) == 40
    assert result["processor"]


def test_a_trained_model_loads_in_three_lines_and_predicts_what_the_run_did(finished):
    run, _ = finished
    net = ks.load(run.path)
    digits = ks.data.load("digits")
    p = ks.predict(net, ks.data.normalise(digits.test.images, digits.mean, digits.std), samples=2)
    expected, _ = run.prediction("test", "ensemble")
    for field in dataclasses.fields(p):
        assert torch.equal(getattr(p, field.name), getattr(expected, field.name))
    mean, _ = run.prediction("test", "mean")
    assert not torch.equal(mean.probs, expected.probs)
    assert not mean.mutual_information.any()


def test_what_is_in_the_place_of_a_run_stays(finished, tmp_path, tiny, monkeypatch):
    run, _ = finished
    before = contents(run.path)
    monkeypatch.setattr(Config, "load_data", None)  # it is said at once, not after a download
    with pytest.raises(PathExistsError, match=r"a exists; choose another --out, or continue it with --resume"):
        train(SMALL, run.path, progress=False)
    assert contents(run.path) == before
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    for take in (lambda: train(tiny, link, progress=False), lambda: RunFolder.create(link, {})):
        with pytest.raises(PathExistsError, match="link exists; choose another --out"):
            take()
    assert [p.name for p in tmp_path.iterdir()] == ["link"]


def test_a_folder_that_appears_while_the_run_is_made_stays(tmp_path, monkeypatch):
    out = tmp_path / "a"
    rename = os.rename

    def slower(source, target):
        out.mkdir()
        (out / "config.json").write_text("another's")
        rename(source, target)

    monkeypatch.setattr(os, "rename", slower)
    with pytest.raises(PathExistsError, match="a exists"):
        RunFolder.create(out, {})
    assert contents(tmp_path) == {"a/config.json": b"another's"}


# Every method


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny):
    """Runs that nothing disturbed, one for each change of the config, with the batches that their steps saw."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def run(**change):
        key = json.dumps(change)
        if key not in made:
            config, seen = dataclasses.replace(tiny, **change), []
            kind = type(config.build_method())
            step = kind.step
            with pytest.MonkeyPatch.context() as patch:

                def recording(self, net, optimizer, x, y, *rest):
                    seen.append((x.clone(), y.clone()))
                    return step(self, net, optimizer, x, y, *rest)

                patch.setattr(kind, "step", recording)
                train(config, folder / str(len(made)), progress=False)
            made[key] = config, RunFolder(folder / str(len(made))), seen
        return made[key]

    return run


def change(method):
    """To a config that trains by another method, quickly."""
    quick = {"vadam": {"train_samples": 1}, "ensemble": {"members": 2}}
    return {"method": method, "options": quick.get(method, {}), "plain_epochs": 0}


@pytest.mark.parametrize("name", ks.methods.METHODS)
def test_every_method_trains_on_the_same_batches_and_its_network_loads(name, whole):
    config, run, seen = whole(**change(name))
    _, _, reference = whole(**change("baseline"))
    assert len(seen) == 6
    for (x, y), (x_too, y_too) in zip(seen, reference, strict=True):
        assert torch.equal(x, x_too)
        assert torch.equal(y, y_too)
    assert not torch.equal(seen[0][0], seen[2][0])  # the second epoch has an order of its own
    result, random = run.result(), config.build_method().random
    assert result["data_order"] == "permutations of 32 examples by (seed 0, epoch)"
    assert list(result["metrics"]) == (["mean", "ensemble"] if random else ["mean"])
    net, data = ks.load(run.path), config.load_data()
    assert result["parameters"]["stored"] == sum(p.numel() for p in net.parameters())
    x = ks.data.normalise(data.test.images, data.mean, data.std)
    for way, samples in (("mean", 0), *((("ensemble", 2),) if random else ())):
        assert torch.equal(ks.predict(net, x, samples=samples).probs, run.prediction("test", way)[0].probs)


@pytest.mark.parametrize("name", ["baseline", "ensemble", "ksn"])
def test_the_scores_of_an_epoch_are_those_of_the_posterior_mean_on_the_validation_split(name, whole):
    _, run, _ = whole(**change(name), validation=0.25)
    logged = run.metrics()[-1]
    prediction, labels = run.prediction("validation", "mean")
    assert logged["val_accuracy"] == pytest.approx(ks.metrics.accuracy(prediction.probs, labels), abs=1e-6)
    assert logged["val_nll"] == pytest.approx(ks.metrics.nll(prediction.probs, labels), abs=1e-4)


def test_a_run_in_double_precision_tests_and_predicts_images_in_single(whole):
    config, run, _ = whole(**change("ksn"), precision="64-true")
    net, data = ks.load(run.path), config.load_data()
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    x = ks.data.normalise(data.test.images, data.mean, data.std)
    assert x.dtype == torch.float32
    assert torch.equal(ks.predict(net, x, samples=2).probs, run.prediction("test", "ensemble")[0].probs)


def test_the_seed_decides_everything(whole, tmp_path):
    config, run, _ = whole(**change("ksn"))
    for seed in (0, 1):
        train(dataclasses.replace(config, seed=seed), tmp_path / str(seed), progress=False)
    same, other = (RunFolder(tmp_path / str(seed)) for seed in (0, 1))
    assert same.weights.read_bytes() == run.weights.read_bytes()
    for mine, first in zip(same.prediction("test", "ensemble"), run.prediction("test", "ensemble"), strict=True):
        assert torch.equal(getattr(mine, "probs", mine), getattr(first, "probs", first))
    assert other.weights.read_bytes() != run.weights.read_bytes()


# Config


def test_a_config_goes_through_json_and_back():
    config = Config(method="dropout", options={"rate": 0.3}, validation=0.1, patience=3, clip=1, stem="cifar")
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config
    assert Config.from_json({}) == Config() == Config(options={"lr": 1e-3}) != Config(options={"delta": 0.5})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "epoch is no setting of a run; allowed: data, .* Did you mean 'epochs'"),
        ({"method": "kns"}, "method is 'kns'.*Did you mean 'ksn'"),
        ({"method": "bnn", "options": {"delta": 0.5}}, "delta is no option of method 'bnn'; allowed: lr, .*prior"),
        ({"options": {"lr": -1.0}}, "lr is -1.0; allowed: 0 < lr"),
        ({"options": [1]}, r"options is \[1\]; it must be of type dict"),
        ({"width": "8"}, "width is '8'; it must be of type int: channels"),
        ({"width": True}, "width is True; it must be of type int"),
        ({"clip": "1"}, "clip is '1'; it must be of type float or null"),
        ({"epochs": 0}, "epochs is 0; allowed: 1 <= epochs"),
        ({"validation": 1.0}, "validation is 1.0; allowed: 0 <= validation < 1"),
        ({"stem": "cifer"}, "stem is 'cifer'; allowed: imagenet, cifar, small .*Did you mean 'cifar'"),
        ({"clip": 1.0, "precision": "16-mixed"}, "clip is 1.0 with precision '16-mixed'.*take bf16-mixed"),
        ({"clip": 1.0, "method": "vadam"}, "clip is 1.0, but method 'vadam' uses its gradients itself"),
        ({"patience": 2}, "patience is 2 with validation 0.0"),
        ({"method": "vadam", "devices": 2}, "devices x nodes is 2; method 'vadam' .*: set both to 1"),
    ],
)
def test_a_config_that_can_not_be_says_which_setting_and_what_is_allowed(given, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(given)


def test_settings_are_read_from_json_and_yaml(tmp_path, monkeypatch):
    written = {"method": "bnn", "options": {"lr": 1e-3, "kl": 0.5}, "epochs": 7}
    (tmp_path / "a.json").write_text(json.dumps(written))
    (tmp_path / "a.yaml").write_text("method: bnn\nepochs: 7\noptions:\n  lr: 1e-3\n  kl: 0.5\n")
    assert read_settings(tmp_path / "a.json") == read_settings(tmp_path / "a.yaml") == written
    for name, text, message in (
        ("b.json", "{", "b.json is not readable JSON"),
        ("b.yaml", "a: [", "b.yaml is not readable YAML"),
        ("c.yaml", "epochs", "c.yaml holds a str; write one setting a line"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(StorageError, match=message):
            read_settings(tmp_path / name)
    with pytest.raises(StorageError, match=r"d.yaml is missing; check the path"):
        read_settings(tmp_path / "d.yaml")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingPackageError, match=r"a.yaml needs the package PyYAML: pip install"):
        read_settings(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"accelerator": "gpu"}, ConfigError, "accelerator 'gpu'"),
        ({"strategy": "quickly"}, ConfigError, "strategy is 'quickly'; allowed: auto, ddp"),
        ({"data": "digit"}, DataError, "did you mean digits"),
    ],
)
def test_settings_that_can_not_be_leave_no_folder(change, error, message, tmp_path, tiny):
    if "accelerator" in change and torch.cuda.is_available():
        pytest.skip("there is a GPU, so asking for one is no mistake")
    with pytest.raises(error, match=message):
        train(dataclasses.replace(tiny, **change), tmp_path / "a", progress=False)
    assert not list(tmp_path.iterdir())


def test_training_without_lightning_says_how_to_get_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "kernelseed.training.trainer")
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingPackageError, match=r"training needs the package 'lightning': pip install"):
        ks.training.train  # noqa: B018


# Killed and resumed


def same_run(run, whole):
    """Whether two runs ended with the same bits and the same curves."""
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    assert run.result()["metrics"] == whole.result()["metrics"]
    for mine, other in zip(run.metrics(), whole.metrics(), strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    return True


class Killed(Exception):
    pass


def die_at(monkeypatch, step):
    """The process ends in the middle of a training step, and nothing is tidied up after it."""
    training_step = trainer.Training.training_step

    def dying(self, batch, batch_idx):
        if self.global_step == step:
            raise Killed
        training_step(self, batch, batch_idx)

    monkeypatch.setattr(trainer.Training, "training_step", dying)


def killed(config, path, step):
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, step)
        with pytest.raises(Killed):
            train(config, path, progress=False)
    return RunFolder(path)


ALL_AT_ONCE = {
    "method": "ksn", "options": {"kl_warmup": 6}, "augment": True, "clip": 0.1, "validation": 0.2, "patience": 9
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "step"),
    [
        *((change(name), 5) for name in ("vadam", "vogn", "ivon", "dropout", "ensemble")),
        (ALL_AT_ONCE, 5),  # the third epoch's second step
        (change("ksn"), 1),  # before there is any checkpoint
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else str(value),
)
def test_resumed_training_ends_with_the_same_bits_for_every_kind_of_state(changed, step, whole, tmp_path):
    config, undisturbed, _ = whole(**changed)
    run = killed(config, tmp_path / "a", step)
    assert len(run.metrics()) == step // 2
    assert not run.finished
    train(None, run.path, resume=True, progress=False)
    assert same_run(run, undisturbed)


def test_killed_while_it_was_evaluated_it_only_evaluates(whole, tmp_path, monkeypatch):
    config, undisturbed, _ = whole(**change("ksn"))
    run = RunFolder(tmp_path / "a")

    def dying(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "test_and_keep", dying)
        with pytest.raises(Killed):
            train(config, run.path, progress=False)
    die_at(monkeypatch, 0)
    die_at(monkeypatch, 6)
    assert train(config, run.path, resume=True, progress=False)["epochs"] == 3
    assert same_run(run, undisturbed)


def test_resuming_a_finished_run_returns_its_result_and_changes_nothing(finished, monkeypatch):
    run, result = finished
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    monkeypatch.setattr(Config, "load_data", None)  # not even the data is needed
    assert train(None, run.path, resume=True, progress=False) == result
    assert train(SMALL, run.path, resume=True, progress=False) == result
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before


def test_a_changed_setting_is_refused_on_a_resume_with_both_values(finished):
    run, _ = finished
    other = dataclasses.replace(SMALL, epochs=50, options={"delta": 0.5})
    message = r"delta is 0.5, .*a was started with .*epochs 2.* delta None; a resumed run keeps its settings"
    with pytest.raises(ConfigError, match=message) as caught:
        train(other, run.path, resume=True, progress=False)
    assert "epochs is 50" in str(caught.value)
    assert "width" not in str(caught.value)


def test_what_is_not_there_can_not_be_resumed(tmp_path):
    with pytest.raises(StorageError, match="a is not there; give the folder of a run, or start one without --resume"):
        train(SMALL, tmp_path / "a", resume=True, progress=False)
    ks.save(ks.models.resnet18(2, 1, width=4), tmp_path / "saved")
    with pytest.raises(StorageError, match="saved holds a network but no run"):
        train(SMALL, tmp_path / "saved", resume=True, progress=False)
    with pytest.raises(ConfigError, match="config is None; a run that is not resumed needs its settings"):
        train(None, tmp_path / "a", progress=False)
    assert not (tmp_path / "a").exists()


def test_the_newest_checkpoint_is_the_one_of_the_last_epoch(tmp_path):
    run = RunFolder(tmp_path)
    assert run.latest_checkpoint() is None
    run.checkpoints.mkdir()
    for date, name in enumerate(("epoch-0010.ckpt", "epoch-0009.ckpt", ".epoch-0011.ckpt.1.part")):
        (run.checkpoints / name).touch()
        os.utime(run.checkpoints / name, (date, date))  # as a copy of a folder may be dated
    assert run.latest_checkpoint().name == "epoch-0010.ckpt"


# Broken and hostile checkpoints, and full disks


class Hostile:
    """Unpickling it would run a command."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def after_an_epoch(tmp_path_factory, tiny):
    return killed(tiny, tmp_path_factory.mktemp("stopped") / "a", 2)


@pytest.fixture
def stopped(after_an_epoch, tmp_path):
    """A run that was killed after its first epoch."""
    shutil.copytree(after_an_epoch.path, tmp_path / "a")
    return RunFolder(tmp_path / "a")


def truncated(path, mark):
    path.write_bytes(path.read_bytes()[:-2000])


def hostile(path, mark):
    torch.save({**torch.load(path, weights_only=True), "hyper_parameters": Hostile(mark)}, path)


def hostile_old_format(path, mark):
    torch.save(Hostile(mark), path, _use_new_zipfile_serialization=False)


def of_another_architecture(path, mark):
    held = torch.load(path, weights_only=True)
    held["state_dict"] = {f"other.{name}": value for name, value in held["state_dict"].items()}
    torch.save(held, path)


def of_another_optimizer(path, mark):
    held = torch.load(path, weights_only=True)
    held["optimizer_states"][0]["param_groups"][0]["params"].pop()
    torch.save(held, path)


@pytest.mark.parametrize(
    "spoil", [truncated, hostile, hostile_old_format, of_another_architecture, of_another_optimizer]
)
def test_a_checkpoint_that_can_not_be_restored_is_named_and_nothing_runs_or_changes(spoil, stopped, tmp_path):
    mark = tmp_path / "executed"
    checkpoint = stopped.latest_checkpoint()
    spoil(checkpoint, mark)
    before = contents(stopped.path)
    with pytest.raises(StorageError, match=r"epoch-0000\.ckpt can't be resumed from .*; remove it to start this run"):
        train(None, stopped.path, resume=True, progress=False)
    assert not mark.exists()
    assert contents(stopped.path) == before
    if spoil is hostile:  # the trap works: an unsafe load would have sprung it
        torch.load(checkpoint, weights_only=False)
        assert mark.exists()


def test_the_remedy_of_a_broken_checkpoint_helps(stopped):
    stopped.latest_checkpoint().unlink()
    train(None, stopped.path, resume=True, progress=False)
    assert [row["epoch"] for row in stopped.metrics()] == [1, 2, 3]


def test_a_mistake_in_training_is_not_blamed_on_the_checkpoint(stopped, monkeypatch):
    die_at(monkeypatch, 3)
    with pytest.raises(Killed):
        train(None, stopped.path, resume=True, progress=False)


@pytest.mark.parametrize("victim", ["epoch-0001.ckpt", "model.safetensors"])
def test_a_full_disk_is_named_and_what_was_there_is_whole(victim, stopped, monkeypatch):
    before = contents(stopped.path)
    replace = os.replace

    def full(source, target):
        if Path(target).name == victim:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match=rf"can't write .*{victim}: No space left on device; what was there"):
            train(None, stopped.path, resume=True, progress=False)
    after = contents(stopped.path)
    assert not [name for name in after if name.endswith(".part")]
    assert after["config.json"] == before["config.json"]
    assert victim not in after
    train(None, stopped.path, resume=True, progress=False)  # there is room again
    assert [row["epoch"] for row in stopped.metrics()] == [1, 2, 3]


def test_a_checkpoint_is_never_seen_half_written(tmp_path, monkeypatch):
    path = tmp_path / "checkpoints" / "a.ckpt"
    io = trainer.WholeCheckpoints()
    io.save_checkpoint({"a": 1}, path)
    save = torch.save

    def slow(value, target):
        save(value, target)
        assert Path(target.name).parent.parent == path.parent  # the rename is one step, on one file system
        assert io.load_checkpoint(path, weights_only=True) == {"a": 1}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", slow)
    with pytest.raises(StorageError, match=r"a\.ckpt: No space"):
        io.save_checkpoint({"a": 2}, path)
    assert io.load_checkpoint(path, weights_only=True) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["a.ckpt"]


# Settings that change the training


def recorded_gradients(monkeypatch):
    """The gradient norms that the optimizer gets."""
    norms = []
    step = torch.optim.Adam.step

    def recording(self, closure=None):
        result = step(self, closure)
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.stack([g.norm() for g in grads]).norm().item())
        return result

    monkeypatch.setattr(torch.optim.Adam, "step", recording)
    return norms


def test_gradients_are_clipped_in_mixed_precision_too_which_keeps_float32_weights(tmp_path, tiny, monkeypatch):
    seen, norms = set(), recorded_gradients(monkeypatch)
    nll = ks.likelihoods.Categorical.nll

    def recording(self, output, target):
        seen.add(output.dtype)
        return nll(self, output, target)

    monkeypatch.setattr(ks.likelihoods.Categorical, "nll", recording)
    train(dataclasses.replace(tiny, epochs=1), tmp_path / "free", progress=False)
    free = list(norms)
    norms.clear()
    config = dataclasses.replace(tiny, epochs=2, clip=0.01, precision="bf16-mixed")
    train(config, tmp_path / "clipped", progress=False)
    assert min(free) > 0.02
    assert norms == pytest.approx([0.01] * 4, rel=1e-3)
    assert seen == {torch.float32, torch.bfloat16}
    assert {p.dtype for p in ks.load(tmp_path / "clipped").parameters()} == {torch.float32}
    first, last = RunFolder(tmp_path / "clipped").metrics()
    assert last["train_nll"] < first["train_nll"]


def test_validation_is_the_posterior_mean_on_what_was_held_out(whole):
    config, run, _ = whole(**ALL_AT_ONCE)
    data, net = config.load_data(), ks.load(run.path)
    x = ks.data.normalise(data.validation.images, data.mean, data.std)
    expected = ks.predict(net, x, samples=0)
    last = run.metrics()[-1]
    assert last["val_nll"] == pytest.approx(F.nll_loss(expected.probs.log(), data.validation.labels).item(), rel=1e-4)
    assert last["val_accuracy"] == pytest.approx((expected.label == data.validation.labels).float().mean().item())
    assert run.config()["data"]["validation"] == len(data.validation)
    for way, samples in (("mean", 0), ("ensemble", 2)):  # kept, to choose thresholds by
        kept, labels = run.prediction("validation", way)
        assert torch.equal(labels, data.validation.labels)
        torch.testing.assert_close(kept.probs, ks.predict(net, x, samples=samples).probs)


def test_early_stopping_stops_and_a_run_killed_after_it_stays_stopped(tmp_path, tiny, monkeypatch):
    def worse_every_epoch(self, batch, batch_idx):
        self.log_dict({"val_nll": torch.tensor(float(self.current_epoch)), "val_accuracy": torch.tensor(0.5)})

    def dying(*_):
        raise Killed

    monkeypatch.setattr(trainer.Training, "validation_step", worse_every_epoch)
    run = RunFolder(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_weights", dying)
        with pytest.raises(Killed):
            train(dataclasses.replace(tiny, epochs=9, validation=0.25, patience=2), run.path, progress=False)
    assert len(run.metrics()) == 3
    assert train(None, run.path, resume=True, progress=False)["epochs"] == 3
    assert len(run.metrics()) == 3


def test_augmentation_changes_what_is_seen(whole):
    seen = {augment: whole(**change("baseline"), augment=augment)[2] for augment in (False, True)}
    (x, y), (x_too, y_too) = seen[False][0], seen[True][0]
    assert torch.equal(y, y_too)
    assert not torch.equal(x, x_too)


def test_tensorboard_gets_the_curves_too(tmp_path, tiny):
    train(dataclasses.replace(tiny, epochs=1), tmp_path / "a", logger="tensorboard", progress=False)
    (events,) = (tmp_path / "a" / "tensorboard").glob("events.out.tfevents.*")
    assert b"nll" in events.read_bytes()


def test_one_example_left_over_does_not_stop_batchnorm(tmp_path, tiny):
    assert len(tiny.load_data().train) == 32
    train(dataclasses.replace(tiny, epochs=1, batch_size=31), tmp_path / "a", progress=False)
    assert checkpointed_steps(tmp_path / "a") == 1


# Many processes

OWN = "own_models:convnet"


def checkpointed_steps(run):
    return torch.load(RunFolder(run).latest_checkpoint(), weights_only=True)["global_step"]


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """A run of a user's model in two processes by the real command, what it printed, and what each rank saw."""
    folder = tmp_path_factory.mktemp("ddp")
    config = Config(
        model=OWN, epochs=2, batch_size=256, samples=2, update_bn=0, devices=2, strategy="ddp", accelerator="cpu"
    )
    (folder / "config.json").write_text(json.dumps(config.as_json()))
    script = Path(__file__).with_name("training_worker.py")
    command = ["train", "--config", folder / "config.json", "--model", OWN, "--json", "--out", folder / "run"]
    printed = json.loads(finish(start(script, folder, *command)))
    return RunFolder(folder / "run"), printed, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_two_processes_train_one_run_in_half_the_steps_and_rank_zero_alone_writes(parallel, finished):
    run, printed, _ = parallel  # one JSON value: the other rank printed nothing
    assert run.result() == printed
    assert sorted(contents(run.path)) == sorted(contents(finished[0].path))
    assert checkpointed_steps(finished[0].path) == 2 * 6  # 1438 examples in batches of 256
    assert checkpointed_steps(run.path) == 2 * 3
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert printed["config"]["devices"] == 2
    assert ks.predict(ks.load(run.path, OWN), torch.rand(3, 1, 8, 8)).probs.isfinite().all()


def test_each_rank_draws_its_own_noise_gradients_are_averaged_and_the_kl_is_counted_once(parallel):
    run, _, ranks = parallel
    config = run.training_config()
    data, method, num_data = config.load_data(), config.build_method(), 1438
    gradients = []
    for rank, seen in enumerate(ranks):
        net = method.build(config.build_model(data, OWN))
        net.load_state_dict(seen["start"], strict=False)  # BatchNorm's buffers are as built
        share = {"batch_size": 256, "shuffle": True, "seed": 0, "rank": rank, "world_size": 2}
        x, y = next(iter(ks.data.Batches(data.train, data.mean, data.std, **share)))
        torch.manual_seed(derive_seed("training step", 0, 0, rank))
        draw = net.draw()
        x = x.to(memory_format=config.layout)  # another would round differently, and flip a ReLU here and there
        for name, value in draw.weights.items():
            torch.testing.assert_close(seen["draws"][0][name], value)
        weight = min(1, 0.05 * num_data / draw.num_weights)
        loss = F.cross_entropy(draw(x), y) + weight * draw.kl(ks.ScaleMixture()) / num_data
        loss.backward()
        gradients.append({name: p.grad for name, p in net.named_parameters()})
    for name, averaged in ranks[0]["gradients"].items():
        assert torch.equal(averaged, ranks[1]["gradients"][name])
        torch.testing.assert_close(averaged, (gradients[0][name] + gradients[1][name]) / 2)
    assert any(not torch.allclose(a, b) for a, b in zip(*(g.values() for g in gradients), strict=True))
    for first, second in zip(*(seen["draws"] for seen in ranks), strict=True):
        assert all(not torch.equal(first[name], second[name]) for name in first)


def test_the_result_is_the_same_model_on_every_rank(parallel):
    _, _, (one, two) = parallel
    assert len(one["draws"]) == 2 * 3
    for name, start in one["start"].items():
        assert torch.equal(start, two["start"][name])
        assert torch.equal(one["end"][name], two["end"][name])
        assert not torch.equal(one["end"][name], start)


@pytest.mark.parametrize("augment", [False, True])
def test_batch_norm_statistics_are_those_of_images_as_in_training(augment):
    white = ks.data.Split(torch.full((40, 1, 12, 12), 255, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64))
    data = ks.data.Dataset("white", white, None, white, ("a", "b"), (0.0,), (1.0,))
    batches = statistics_batches(data, Config(update_bn=32, augment=augment))
    (images, _), *others = batches
    assert not others
    assert len(images) == 32
    assert (images.amin().item() < 0.5) == augment  # a crop's border is black
    assert torch.equal(images, next(iter(batches))[0])  # the same again
