"""Training: what a run leaves, that it can be killed and resumed, and that many processes train one network."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import training_worker as worker
from PIL import Image

import kernelseed as ks
from kernelseed.core.files import StorageError
from kernelseed.training import Config, ConfigError, RunFolder, fit, train
from kernelseed.training.evaluation import read_prediction, summarise
from kernelseed.training.steps import noise_seed

SMALL = Config(width=8, epochs=2, batch_size=256, samples=2, recalibrate=0)
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


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def finish(process):
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
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
def pictures(tmp_path_factory):
    """A folder of two classes, dark and bright, twenty pictures each: two steps an epoch."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for level, name in ((40, "dark"), (180, "bright")):
        (folder / name).mkdir()
        for i in range(20):
            pixels = rng.integers(level, level + 60, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def tiny(pictures):
    """Two steps an epoch."""
    return Config(data=f"folder:{pictures}", width=4, epochs=4, batch_size=16, samples=2, recalibrate=0)


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
    assert list(rows[0]) == ["epoch", "train_loss", "train_nll", "train_kl", "seconds"]
    assert rows[1]["train_nll"] < rows[0]["train_nll"]
    assert 0 < rows[0]["seconds"] < rows[1]["seconds"]
    net = ks.load(run.path)
    weight = min(1, 1438 / sum(w.num_weights for _, w in net.weights.items()))
    for row in rows:  # train_kl is per example, as the loss is
        assert row["train_loss"] == pytest.approx(row["train_nll"] + weight * row["train_kl"], rel=1e-5)


def test_the_result_says_what_was_found_and_where_it_came_from(finished):
    run, returned = finished
    result = json.loads((run.path / "result.json").read_text())
    assert result == returned
    assert list(result["metrics"]) == ["mean", "ensemble"]
    for way in result["metrics"]:
        prediction, labels = read_prediction(run.path / f"test-{way}.safetensors")
        assert result["metrics"][way] == summarise(prediction, labels)
        assert torch.equal(labels, ks.data.load("digits").test.labels)
    plain = sum(p.numel() for p in ks.models.resnet18(10, 1, stem="cifar", width=8).parameters())
    trained = sum(p.numel() for p in ks.load(run.path).parameters())
    assert result["parameters"] == {
        "trained": trained, "stored": trained, "plain": plain, "relative": trained / plain
    }  # fmt: skip
    assert result["labels"] == {"mean": "KSN-P δ=0.25", "ensemble": "KSN-E δ=0.25"}
    assert Config.from_json(result["config"]) == SMALL
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
    expected, _ = read_prediction(run.path / "test-ensemble.safetensors")
    for field in dataclasses.fields(p):
        assert torch.equal(getattr(p, field.name), getattr(expected, field.name))
    mean, _ = read_prediction(run.path / "test-mean.safetensors")
    assert not torch.equal(mean.probs, expected.probs)
    assert not mean.mutual_information.any()


def test_a_run_never_overwrites_another(finished, monkeypatch):
    run, _ = finished
    before = contents(run.path)
    monkeypatch.setattr(Config, "load_data", None)  # it is said at once, not after a download
    with pytest.raises(StorageError, match=r"a exists; choose another --out, or continue it with --resume"):
        train(SMALL, run.path, progress=False)
    assert contents(run.path) == before


@pytest.mark.parametrize("there", ["an empty folder", "a file", "a dangling link"])
def test_whatever_is_in_the_place_of_a_run_stays(there, tmp_path, tiny):
    out = tmp_path / "a"
    {"an empty folder": out.mkdir, "a file": out.touch, "a dangling link": lambda: out.symlink_to("b")}[there]()
    with pytest.raises(StorageError, match="a exists; choose another --out"):
        train(tiny, out, progress=False)
    with pytest.raises(StorageError, match="a exists; choose another --out"):
        RunFolder.create(out, {})
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert out.is_symlink() == (there == "a dangling link")
    assert not (out.is_dir() and any(out.iterdir()))


def test_a_folder_that_appears_while_the_run_is_made_stays(tmp_path, monkeypatch):
    out = tmp_path / "a"
    rename = os.rename

    def slower(source, target):
        out.mkdir()
        (out / "config.json").write_text("another's")
        rename(source, target)

    monkeypatch.setattr(os, "rename", slower)
    with pytest.raises(StorageError, match="a exists"):
        RunFolder.create(out, {})
    assert contents(tmp_path) == {"a/config.json": b"another's"}


def test_the_seed_decides_everything(finished, tmp_path):
    run, _ = finished
    again, other = tmp_path / "again", tmp_path / "other"
    train(SMALL, again, progress=False)
    assert (again / "model.safetensors").read_bytes() == run.weights.read_bytes()
    assert (again / "test-ensemble.safetensors").read_bytes() == (run.path / "test-ensemble.safetensors").read_bytes()
    train(dataclasses.replace(SMALL, seed=1), other, progress=False)
    assert (other / "model.safetensors").read_bytes() != run.weights.read_bytes()


@pytest.mark.parametrize("name", ks.methods.METHODS)
def test_every_method_trains_and_its_network_loads(name, tmp_path, tiny):
    config = dataclasses.replace(tiny, method=name, epochs=1)
    result = train(config, tmp_path / "a", progress=False)
    random = config.build_method().random
    assert list(result["metrics"]) == (["mean", "ensemble"] if random else ["mean"])
    net, data = ks.load(tmp_path / "a"), config.load_data()
    assert result["parameters"]["stored"] == sum(p.numel() for p in net.parameters())
    x = ks.data.normalise(data.test.images, data.mean, data.std)
    for way, samples in (("mean", 0), *((("ensemble", 2),) if random else ())):
        expected, _ = read_prediction(tmp_path / "a" / f"test-{way}.safetensors")
        assert torch.equal(ks.predict(net, x, samples=samples).probs, expected.probs)
    assert checkpointed_steps(tmp_path / "a") == 2


# Config


def test_a_config_goes_through_json_and_back():
    config = Config(method="dropout", options={"rate": 0.3}, validation=0.1, patience=3, clip=1.0, stem="cifar")
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config
    assert Config.from_json({}) == Config()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"bach_size": 3}, "unknown key 'bach_size'; did you mean 'batch_size'"),
        ({"zzz": 3}, "unknown key 'zzz'; known are data, method"),
        ({"method": "kns"}, "method is 'kns'.*Did you mean 'ksn'"),
        ({"method": "bnn", "options": {"delta": 0.5}}, "delta is no option of method 'bnn', which has: .*prior"),
        ({"options": {"lr": -1.0}}, "lr is -1.0"),
        ({"options": {"kl": "much"}}, "kl is 'much'; allowed are automatic"),
        ({"options": [1]}, r"options is \[1\]; it must be of type dict"),
        ({"width": "8"}, "width is '8'; it must be of type int"),
        ({"width": True}, "width is True; it must be of type int"),
        ({"width": None}, "width is None; it must be of type int"),
        ({"clip": "1"}, "clip is '1'; it must be of type float or null"),
        ({"augment": 1}, "augment is 1; it must be of type bool"),
        ({"width": 0}, "width is 0; it must be at least 1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"samples": -1}, "samples is -1"),
        ({"stem": "tiny"}, "stem is 'tiny'.*imagenet.*cifar"),
        ({"precision": "8"}, "precision is '8'; allowed are 32-true"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"clip": 1.0, "precision": "16-mixed"}, "clip is 1.0 with precision '16-mixed'.*take bf16-mixed"),
        ({"patience": 2}, "patience is 2 with validation 0.0"),
        ({"patience": 0, "validation": 0.1}, "patience is 0"),
        ({"method": "vadam", "devices": 2}, "'vadam' keeps statistics.*devices x nodes is 2: set both to 1"),
    ],
)
def test_a_config_that_can_not_be_says_which_setting_and_what_is_allowed(given, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(given)


def test_whole_numbers_are_numbers():
    assert Config.from_json({"validation": 0, "clip": 1}).clip == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"accelerator": "gpu"}, ConfigError, "accelerator 'gpu'"),
        ({"strategy": "quickly"}, ConfigError, "strategy 'quickly'"),
        ({"options": {"delta": 2.0}}, ValueError, "delta is 2.0"),
        ({"data": "digit"}, ks.data.DataError, "did you mean digits"),
    ],
)
def test_settings_that_can_not_be_leave_no_folder(change, error, message, tmp_path, tiny):
    if "accelerator" in change and torch.cuda.is_available():
        pytest.skip("there is a GPU, so asking for one is no mistake")
    with pytest.raises(error, match=message):
        train(dataclasses.replace(tiny, **change), tmp_path / "a", progress=False)
    assert not list(tmp_path.iterdir())


# Killed and resumed


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The real command: never stopped, killed before any checkpoint, killed after the first one."""
    folder = tmp_path_factory.mktemp("killed")
    command = ["-m", "kernelseed", "train", "--data", "digits", "--method", "ksn", "--width", "8", "--epochs", "4"]
    command += ["--batch-size", "256", "--samples", "2", "--recalibrate", "512", "--quiet", "--out"]
    whole, early, late = (start(*command, folder / name) for name in ("whole", "early", "late"))
    wait_for((folder / "early" / "config.json").exists, early)
    early.send_signal(signal.SIGKILL)
    wait_for(lambda: RunFolder(folder / "late").latest_checkpoint() is not None, late)
    time.sleep(0.2)  # into the next epoch
    late.send_signal(signal.SIGKILL)
    for process in (early, late):
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    stopped = {name: sorted(contents(folder / name)) for name in ("early", "late")}
    finish(whole)
    resumed = [start(*command, folder / name, "--resume") for name in ("early", "late")]
    for process in resumed:
        finish(process)
    return folder, stopped


def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(killed):
    folder, stopped = killed
    assert not any("ckpt" in name for name in stopped["early"])
    assert any(name.endswith(".ckpt") for name in stopped["late"])
    whole = RunFolder(folder / "whole")
    for name in ("early", "late"):
        assert not {"result.json", "model.safetensors"} & set(stopped[name])  # it was killed in the middle
        run = RunFolder(folder / name)
        assert run.weights.read_bytes() == whole.weights.read_bytes()
        for key in ("test-mean.safetensors", "test-ensemble.safetensors"):
            assert (run.path / key).read_bytes() == (whole.path / key).read_bytes()
        assert run.result()["metrics"] == whole.result()["metrics"]
        assert [row["epoch"] for row in run.metrics()] == [1, 2, 3, 4]
        for mine, other in zip(run.metrics(), whole.metrics(), strict=True):
            assert {**mine, "seconds": 0} == {**other, "seconds": 0}


class Killed(Exception):
    pass


def die_at(monkeypatch, step):
    """The process ends in the middle of a training step, and nothing is tidied up after it."""
    training_step = fit.Training.training_step

    def dying(self, batch, batch_idx):
        if self.global_step == step:
            raise Killed
        training_step(self, batch, batch_idx)

    monkeypatch.setattr(fit.Training, "training_step", dying)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "vadam", "options": {"samples": 1}},
        {"method": "vogn"},
        {"method": "ivon"},
        {"method": "dropout"},
        {"method": "ensemble", "options": {"members": 2}},
        {"method": "ksn", "options": {"kl_warmup": 6}, "augment": True, "clip": 0.1, "validation": 0.2, "patience": 9},
    ],
    ids=lambda change: change["method"],
)
def test_resumed_training_ends_with_the_same_bits_for_every_kind_of_state(change, tmp_path, tiny, monkeypatch):
    config = dataclasses.replace(tiny, **change)
    train(config, tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        die_at(patch, 5)  # the third epoch's second step
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", progress=False)
    run, whole = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / "whole")
    assert len(run.metrics()) == 2
    assert not run.finished
    result = train(Config(), run.path, resume=True, progress=False)  # the folder's own config counts
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    assert result["metrics"] == whole.result()["metrics"]
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3, 4]
    for mine, other in zip(run.metrics(), whole.metrics(), strict=True):
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}


def test_killed_while_it_was_evaluated_it_only_evaluates(tmp_path, tiny, monkeypatch):
    train(tiny, tmp_path / "whole", progress=False)

    def dying(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fit, "_evaluate", dying)
        with pytest.raises(Killed):
            train(tiny, tmp_path / "killed", progress=False)
    run, whole = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / "whole")
    metrics = (run.path / "metrics.csv").read_bytes()
    die_at(monkeypatch, 0)
    die_at(monkeypatch, 8)
    result = train(tiny, run.path, resume=True, progress=False)
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    assert (run.path / "metrics.csv").read_bytes() == metrics
    assert (result["metrics"], result["epochs"]) == (whole.result()["metrics"], 4)


def test_resuming_a_finished_run_returns_its_result_and_changes_nothing(finished, monkeypatch):
    run, result = finished
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    monkeypatch.setattr(Config, "load_data", None)  # not even the data is needed
    assert train(Config(), run.path, resume=True, progress=False) == result
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before


def test_what_is_not_there_can_not_be_resumed(tmp_path):
    with pytest.raises(StorageError, match="a is not there, so nothing can go on; start it without --resume"):
        train(SMALL, tmp_path / "a", resume=True, progress=False)
    ks.save(ks.models.resnet18(2, 1, width=4), tmp_path / "saved")
    with pytest.raises(StorageError, match="saved holds a network but no run"):
        train(SMALL, tmp_path / "saved", resume=True, progress=False)
    assert not (tmp_path / "a").exists()


def test_the_newest_checkpoint_is_the_one_of_the_last_epoch(tmp_path):
    run = RunFolder(tmp_path)
    assert run.latest_checkpoint() is None
    run.checkpoints.mkdir()
    for date, name in enumerate(("epoch-0010.ckpt", "epoch-0009.ckpt", ".epoch-0011.ckpt.1.part")):
        (run.checkpoints / name).touch()
        os.utime(run.checkpoints / name, (date, date))  # as a copy of a folder may be dated
    assert run.latest_checkpoint().name == "epoch-0010.ckpt"


# Broken, foreign and hostile checkpoints


class Hostile:
    """Unpickling it would run a command."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def stopped(tmp_path, tiny, monkeypatch):
    with monkeypatch.context() as patch:
        die_at(patch, 2)
        with pytest.raises(Killed):
            train(tiny, tmp_path / "a", progress=False)
    return RunFolder(tmp_path / "a")


def truncated(path, mark):
    path.write_bytes(path.read_bytes()[:-2000])


def emptied(path, mark):
    path.write_bytes(b"")


def scribbled(path, mark):
    path.write_bytes(b"not a checkpoint at all")


def hostile(path, mark):
    torch.save({**torch.load(path, weights_only=True), "hyper_parameters": Hostile(mark)}, path)


def hostile_old_format(path, mark):
    torch.save(Hostile(mark), path, _use_new_zipfile_serialization=False)


def of_another_architecture(path, mark):
    held = torch.load(path, weights_only=True)
    held["state_dict"] = {f"other.{name}": value for name, value in held["state_dict"].items()}
    torch.save(held, path)


def of_another_width(path, mark):
    held = torch.load(path, weights_only=True)
    held["state_dict"] = {name: torch.zeros(3, 3) for name in held["state_dict"]}
    torch.save(held, path)


def of_another_optimizer(path, mark):
    held = torch.load(path, weights_only=True)
    held["optimizer_states"][0]["param_groups"][0]["params"].pop()
    torch.save(held, path)


def a_list(path, mark):
    torch.save([1, 2], path)


@pytest.mark.parametrize(
    "spoil",
    [
        truncated, emptied, scribbled, hostile, hostile_old_format, of_another_architecture, of_another_width,
        of_another_optimizer, a_list,
    ],
)  # fmt: skip
def test_a_checkpoint_that_can_not_be_restored_is_named_and_nothing_runs_or_changes(spoil, stopped, tmp_path, tiny):
    mark = tmp_path / "executed"
    checkpoint = stopped.latest_checkpoint()
    spoil(checkpoint, mark)
    before = contents(stopped.path)
    with pytest.raises(StorageError, match=r"epoch-0000\.ckpt can't be resumed from .*; remove it to start this run"):
        train(tiny, stopped.path, resume=True, progress=False)
    assert not mark.exists()
    assert contents(stopped.path) == before
    if spoil is hostile:  # the trap works: an unsafe load would have sprung it
        torch.load(checkpoint, weights_only=False)
        assert mark.exists()


def test_the_remedy_of_a_broken_checkpoint_helps(stopped, tiny):
    scribbled(stopped.latest_checkpoint(), None)
    stopped.latest_checkpoint().unlink()
    train(tiny, stopped.path, resume=True, progress=False)
    assert [row["epoch"] for row in stopped.metrics()] == [1, 2, 3, 4]


def test_a_mistake_in_training_is_not_blamed_on_the_checkpoint(stopped, tiny, monkeypatch):
    die_at(monkeypatch, 3)
    with pytest.raises(Killed):
        train(tiny, stopped.path, resume=True, progress=False)


@pytest.mark.parametrize("victim", ["epoch-0001.ckpt", "metrics.csv", "model.safetensors", "result.json"])
def test_a_full_disk_is_named_and_what_was_there_is_whole(victim, stopped, tiny, monkeypatch):
    before = contents(stopped.path)
    replace = os.replace

    def full(source, target):
        if Path(target).name == victim:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match=rf"can't write .*{victim}: No space left on device; what was there"):
            train(tiny, stopped.path, resume=True, progress=False)
    after = contents(stopped.path)
    assert not [name for name in after if name.endswith(".part")]
    assert after["config.json"] == before["config.json"]
    assert victim not in after or after[victim] == before[victim]
    train(tiny, stopped.path, resume=True, progress=False)  # there is room again
    assert [row["epoch"] for row in stopped.metrics()] == [1, 2, 3, 4]


def test_a_checkpoint_is_never_seen_half_written(tmp_path, monkeypatch):
    path = tmp_path / "checkpoints" / "a.ckpt"
    io = fit.WholeCheckpoints()
    io.save_checkpoint({"a": 1}, path)
    save = torch.save

    def slow(value, target):
        save(value, target)
        assert Path(target).parent == path.parent  # so that the rename is one step, on one file system
        assert io.load_checkpoint(path, weights_only=True) == {"a": 1}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", slow)
    with pytest.raises(StorageError, match=r"a\.ckpt: No space"):
        io.save_checkpoint({"a": 2}, path)
    assert io.load_checkpoint(path, weights_only=True) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["a.ckpt"]


# Options


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


def test_gradients_are_clipped(tmp_path, tiny, monkeypatch):
    norms = recorded_gradients(monkeypatch)
    train(dataclasses.replace(tiny, epochs=1), tmp_path / "free", progress=False)
    free = list(norms)
    norms.clear()
    for precision in ("32-true", "bf16-mixed"):
        train(dataclasses.replace(tiny, epochs=1, clip=0.01, precision=precision), tmp_path / precision, progress=False)
    assert min(free) > 0.02
    assert norms == pytest.approx([0.01] * 2 * len(free), rel=1e-3)


def test_mixed_precision_trains_in_bfloat16_and_keeps_float32(tmp_path, tiny, monkeypatch):
    seen = set()
    nll = ks.likelihoods.Categorical.nll

    def recording(self, output, target):
        seen.add(output.dtype)
        return nll(self, output, target)

    monkeypatch.setattr(ks.likelihoods.Categorical, "nll", recording)
    result = train(dataclasses.replace(tiny, precision="bf16-mixed"), tmp_path / "a", progress=False)
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in ks.load(tmp_path / "a").parameters()} == {torch.float32}
    rows = RunFolder(tmp_path / "a").metrics()
    assert rows[-1]["train_nll"] < rows[0]["train_nll"]
    assert 0 <= result["metrics"]["mean"]["accuracy"] <= 1


def test_validation_is_the_posterior_mean_on_what_was_held_out(tmp_path, tiny):
    config = dataclasses.replace(tiny, validation=0.25)
    train(config, tmp_path / "a", progress=False)
    data, net = config.load_data(), ks.load(tmp_path / "a")
    x = ks.data.normalise(data.validation.images, data.mean, data.std)
    expected = ks.predict(net, x, samples=0)
    last = RunFolder(tmp_path / "a").metrics()[-1]
    assert last["val_nll"] == pytest.approx(F.nll_loss(expected.probs.log(), data.validation.labels).item(), rel=1e-4)
    assert last["val_accuracy"] == pytest.approx((expected.label == data.validation.labels).float().mean().item())
    assert RunFolder(tmp_path / "a").config()["data"]["validation"] == len(data.validation) == 8


@pytest.fixture
def worse_every_epoch(monkeypatch):
    """Validation that finds every epoch worse than the one before."""

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val_nll": torch.tensor(float(self.current_epoch)), "val_accuracy": torch.tensor(0.5)})

    monkeypatch.setattr(fit.Training, "validation_step", validation_step)


def test_early_stopping_stops_and_a_run_killed_after_it_stays_stopped(tmp_path, tiny, worse_every_epoch, monkeypatch):
    config = dataclasses.replace(tiny, epochs=9, validation=0.25, patience=2)
    result = train(config, tmp_path / "whole", progress=False)
    whole, run = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    assert (result["epochs"], len(whole.metrics())) == (3, 3)

    def dying(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fit, "write_weights", dying)
        with pytest.raises(Killed):
            train(config, run.path, progress=False)
    assert train(config, run.path, resume=True, progress=False)["epochs"] == 3
    assert len(run.metrics()) == 3
    assert run.weights.read_bytes() == whole.weights.read_bytes()


def test_augmentation_changes_what_is_seen(tmp_path, tiny):
    for name, augment in (("plain", False), ("augmented", True)):
        train(dataclasses.replace(tiny, epochs=1, augment=augment), tmp_path / name, progress=False)
    plain, augmented = (RunFolder(tmp_path / name) for name in ("plain", "augmented"))
    assert plain.metrics()[0]["train_nll"] != augmented.metrics()[0]["train_nll"]


def test_tensorboard_gets_the_curves_too(tmp_path, tiny):
    train(dataclasses.replace(tiny, epochs=1), tmp_path / "a", tensorboard=True, progress=False)
    (events,) = (tmp_path / "a" / "tensorboard").glob("events.out.tfevents.*")
    assert b"nll" in events.read_bytes()


def test_one_example_left_over_does_not_stop_batchnorm(tmp_path, tiny):
    data = tiny.load_data()
    assert len(data.train) == 32
    config = dataclasses.replace(tiny, epochs=1, batch_size=31)
    train(config, tmp_path / "a", progress=False)
    assert checkpointed_steps(tmp_path / "a") == 1


def test_noise_has_a_seed_for_every_step_of_every_rank():
    seeds = {noise_seed(seed, step, rank) for seed in range(5) for step in range(50) for rank in range(4)}
    assert len(seeds) == 1000
    assert len({seed % 2**32 for seed in seeds}) == 1000  # what torch keeps
    assert all(0 <= seed < 2**63 for seed in seeds)


# Many processes


def checkpointed_steps(run):
    return torch.load(RunFolder(run).latest_checkpoint(), weights_only=True)["global_step"]


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """Two processes by the real command, and two that record what they do."""
    folder = tmp_path_factory.mktemp("ddp")
    command = start(
        "-m", "kernelseed", "train", "--data", "digits", "--method", "ksn", "--width", "8", "--epochs", "2",
        "--batch-size", "256", "--samples", "2", "--recalibrate", "0", "--devices", "2", "--strategy", "ddp",
        "--accelerator", "cpu", "--json", "--out", folder / "run",
    )  # fmt: skip
    recorded = start(worker.__file__, folder)
    printed = finish(command)
    finish(recorded)
    return folder, json.loads(printed)


def test_two_processes_train_one_run_in_half_the_steps_and_rank_zero_alone_writes(parallel, finished):
    folder, printed = parallel  # one JSON value: the other rank printed nothing
    run = RunFolder(folder / "run")
    assert run.result() == printed
    assert sorted(contents(run.path)) == sorted(contents(finished[0].path))
    assert checkpointed_steps(finished[0].path) == 2 * 6  # 1438 examples in batches of 256
    assert checkpointed_steps(run.path) == 2 * 3
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert printed["config"]["devices"] == 2
    x = torch.rand(3, 1, 8, 8)
    assert ks.predict(ks.load(run.path), x).probs.isfinite().all()


def test_each_rank_draws_its_own_noise_gradients_are_averaged_and_the_kl_is_counted_once(parallel):
    folder, _ = parallel
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    gradients = []
    for rank, seen in enumerate(ranks):
        assert seen["steps"] == len(seen["draws"]) == worker.STEPS
        net = worker.network()
        x, y = next(iter(worker.batches(rank, 2)))
        torch.manual_seed(noise_seed(worker.SEED, 0, rank))
        draw = net.draw()
        for name, value in draw.weights.items():
            torch.testing.assert_close(seen["draws"][0][name], value)
        kl = draw.kl(ks.ScaleMixture()) / worker.NUM_DATA
        (F.cross_entropy(draw(x), y) + kl).backward()
        gradients.append({name: p.grad for name, p in net.named_parameters()})
    for name, averaged in ranks[0]["gradients"].items():
        assert torch.equal(averaged, ranks[1]["gradients"][name])
        torch.testing.assert_close(averaged, (gradients[0][name] + gradients[1][name]) / 2)
    assert any(not torch.allclose(a, b) for a, b in zip(*(g.values() for g in gradients), strict=True))
    for step in range(worker.STEPS):
        first, second = (seen["draws"][step] for seen in ranks)
        assert all(not torch.equal(first[name], second[name]) for name in first)


def test_the_result_is_the_same_model_on_every_rank(parallel):
    folder, _ = parallel
    one, two = (torch.load(folder / f"{rank}.pt", weights_only=True)["weights"] for rank in (0, 1))
    start = dict(worker.network().named_parameters())
    assert set(one) == set(two) == set(start)
    for name, value in one.items():
        assert torch.equal(value, two[name])
        assert not torch.equal(value, start[name])
