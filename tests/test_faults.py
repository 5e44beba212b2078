"""Faults of files and runs: full disks, kills, links, broken run folders, numbers that are not finite."""

import copy
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from kinds import mlp
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from PIL import Image
from test_training import ENVIRONMENT, contents, start, wait_for
from torch.utils.data import DataLoader

import kernelseed as ks
from kernelseed import report
from kernelseed.errors import ArgumentError, NonFiniteError, StorageError
from kernelseed.system import files
from kernelseed.training import Config, RunFolder, evaluate, lost_ranks, predict_files, train, trainer, write_csv
from kernelseed.training.run_schemas import RESULT_SCHEMA, RUN_SCHEMA

TINY = Config(width=4, epochs=2, batch_size=512, samples=2, update_bn=0, stem="cifar", schedule="constant", warmup=0)


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "a"
    train(TINY, out, progress=False)
    return RunFolder(out)


@pytest.fixture
def run(finished, tmp_path):
    """A finished run to spoil."""
    return RunFolder(shutil.copytree(finished.path, tmp_path / "run"))


@contextmanager
def limited_files(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def disk(tmp_path):
    """A function that makes a disk of so many bytes; it is the same disk each time, resized."""
    place, made = tmp_path / "disk", []
    place.mkdir()

    def resize(size):
        command = ["mount", "-t", "tmpfs", "-o", f"{'remount,' if made else ''}size={size}", "tmpfs", place]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode and not made:
            pytest.skip(f"no disk can be mounted here: {tried.stderr.strip()}")
        made.append(size)
        return place

    yield resize
    if made:
        subprocess.run(["umount", place], check=True)


# Writing


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".out.csv.{os.getpid()}.part").symlink_to(victim)
    write_csv(tmp_path / "out.csv", [{"a": 1}])
    assert victim.read_text() == "mine"
    (tmp_path / "out.csv").unlink()
    (tmp_path / "out.csv").symlink_to(victim)
    write_csv(tmp_path / "out.csv", [{"a": 1}])
    assert victim.read_text() == "mine"


def test_temporary_names_differ_and_nobody_else_may_enter(tmp_path):
    seen = []
    for _ in range(2):
        with files.whole_or_nothing(tmp_path / "a") as scratch:
            seen.append(scratch.parent.name)
            assert scratch.parent.parent == tmp_path
            assert scratch.parent.stat().st_mode & 0o777 == 0o700
    assert len(set(seen)) == 2
    with files.whole_or_nothing(tmp_path / ("é" * 120)):  # as long as a name may nearly be
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "é" * 120]


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(file):
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    def recorded_replace(source, target):
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    files.write_text(tmp_path / "a.txt", "content")
    assert done == ["a.txt", "renamed", tmp_path.name]


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    abandoned = tmp_path / ".a.txt.0123456789abcdef.part"
    abandoned.mkdir()
    (abandoned / "a.txt").write_text("half")
    mine = tmp_path / ".a.txt.part"
    mine.write_text("no temporary file of ours")
    with files.whole_or_nothing(tmp_path / "a.txt") as living:
        living.write_text("living")
        files.write_text(tmp_path / "a.txt", "another")
        assert living.read_text() == "living"
    assert contents(tmp_path) == {".a.txt.part": b"no temporary file of ours", "a.txt": b"living"}


def test_a_save_that_fails_is_not_in_the_way_of_the_next(tmp_path):
    net = ks.germinate(mlp(3, 8, 4), over="weights")
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "new" / "folder", tmp_path / "there"):
        with (
            limited_files(50_000),
            pytest.raises(StorageError, match=r"can't write .*config.json: File too large"),
        ):
            ks.save(net, folder, note="x" * 100_000)
        assert not contents(tmp_path)
        ks.save(net, folder)
        assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
        shutil.rmtree(folder)


@pytest.mark.parametrize("second", ["config.json", "model.safetensors"])
def test_half_a_saved_network_is_taken_back(second, tmp_path, monkeypatch):
    replace = os.replace

    def full(source, target):
        if Path(target).name == second:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=second):
        ks.save(ks.germinate(mlp(3, 8, 4), over="weights"), tmp_path)
    assert not list(tmp_path.iterdir())


# Disks that are really full


@pytest.mark.parametrize(
    "write",
    [
        lambda place: ks.save(ks.models.resnet18(3, 1, width=8), place / "net"),
        lambda place: write_csv(place / "a.csv", [{"name": "x" * 100}] * 3000),
        lambda place: trainer.WholeCheckpoints().save_checkpoint({"a": torch.zeros(50_000)}, place / "a" / "a.ckpt"),
    ],
    ids=["network", "csv", "checkpoint"],
)
def test_a_full_disk_is_one_line_and_nothing_is_left(write, disk):
    place = disk(100_000)
    message = r"^can't (write|make the folder) .*: No space left on device.*: make room on the disk, and try again\.$"
    with pytest.raises(StorageError, match=message):
        write(place)
    assert not contents(place)
    disk(10_000_000)
    write(place)


def test_a_report_on_a_full_disk_is_one_line(finished, disk):
    runs = report.read([finished.path])
    with pytest.raises(StorageError, match=r"can't write .*a.html: No space left on device"):
        report.write(runs, disk(10_000) / "a.html")


@pytest.mark.parametrize("size", [4_000, 40_000, 700_000])
def test_a_training_whose_disk_is_full_goes_on_when_there_is_room(size, disk, finished):
    out = disk(size) / "a"
    with pytest.raises(StorageError, match=r": No space left on device.*: make room on the disk, and try again\.$"):
        train(TINY, out, progress=False)
    assert not [name for name in contents(out.parent) if ".part" in name]
    disk(20_000_000)
    train(TINY, out, resume=out.exists(), progress=False)
    assert contents(out).keys() == contents(finished.path).keys()
    assert RunFolder(out).weights.read_bytes() == finished.weights.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_result_that_can_not_be_printed_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kernelseed", "data", "list"]
        ended = subprocess.run(command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: can't print the result: No space left on device; make room where the output goes, and try again.\n"
    )


# A training that ends


def test_the_last_batch_of_one_image_does_not_reach_batchnorm():
    net, x = ks.models.resnet18(3, 1, stem="cifar", width=4), torch.randn(9, 1, 8, 8)
    batches = DataLoader(x, 4)  # 4, 4 and 1
    expected = ks.predict(net, x, update_bn=[x[:4], x[4:8]]).probs
    for given in (batches, [(part, torch.zeros(len(part))) for part in batches]):
        assert torch.equal(ks.predict(net, x, update_bn=given).probs, expected)
    for alone in (x[:1], [x[:1]], [x[:1], x[1:2]]):
        with pytest.raises(ArgumentError, match="update_bn has batches of one example"):
            ks.predict(net, x, update_bn=alone)


def test_a_training_with_257_images_for_batchnorm_ends(tmp_path):
    train(dataclasses.replace(TINY, epochs=1, update_bn=257), tmp_path / "a", progress=False)


def test_a_folder_of_257_training_images_is_trained_and_tested(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (321, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):
        place = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    config = dataclasses.replace(TINY, data=f"folder:{tmp_path / 'images'}", epochs=1, update_bn=4096)
    assert len(config.load_data().train) == 257
    train(config, tmp_path / "a", progress=False)


def test_what_can_fail_after_the_training_fails_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_fit", None)
    with pytest.raises(ArgumentError, match="update_bn has batches of one example"):
        train(dataclasses.replace(TINY, update_bn=1), tmp_path / "a", progress=False)
    assert not list(tmp_path.iterdir())


def test_a_finished_training_is_stored_before_it_is_tested(tmp_path, monkeypatch, finished):
    def failing(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "test_and_keep", failing)
        with pytest.raises(MemoryError):
            train(TINY, tmp_path / "a", progress=False)
    assert RunFolder(tmp_path / "a").weights.read_bytes() == finished.weights.read_bytes()


# Numbers that are not finite


def spoilt(monkeypatch, spoil, at):
    """Training in which a step begins with something that is not finite."""
    step = trainer.Training.training_step

    def spoiling(self, batch, batch_idx):
        if self.global_step == at:
            spoil(self)
        step(self, batch, batch_idx)

    monkeypatch.setattr(trainer.Training, "training_step", spoiling)


def all_finite(checkpoint):
    held = torch.load(checkpoint, weights_only=True)["state_dict"]
    return all(value.isfinite().all() for value in held.values())


@pytest.mark.parametrize("method", ["ksn", "dropout", "vadam", "vogn", "ivon"])
def test_a_loss_that_is_not_finite_names_step_layer_and_rate_and_no_such_weights_are_kept(
    method, tmp_path, monkeypatch
):
    options = {"train_samples": 1} if method in ("vadam", "vogn") else {}
    config = dataclasses.replace(TINY, epochs=3, method=method, options=options)

    def layer(self):
        with torch.no_grad():
            next(p for name, p in self.net.named_parameters() if "layer2.0.bn1.weight" in name).fill_(torch.nan)

    spoilt(monkeypatch, layer, at=4)
    with pytest.raises(NonFiniteError, match=r"(loss is nan|of 5120 places) in epoch 2 at step 5 with lr") as caught:
        train(config, tmp_path / "a", progress=False)
    message = str(caught.value)
    assert "the first layer whose output is not finite is layer2.0.bn1; " in message
    assert "\n" not in message
    assert ("--clip 1" in message) == config.build_method().clips
    (checkpoint,) = RunFolder(tmp_path / "a").checkpoints.iterdir()
    assert all_finite(checkpoint)
    assert not RunFolder(tmp_path / "a").weights.exists()


def test_a_gradient_that_is_not_finite_names_its_weight(tmp_path, monkeypatch):
    def gradient(self):
        self.net.skeleton.layer1[0].bn1.bias.register_hook(lambda grad: grad * torch.inf)

    spoilt(monkeypatch, gradient, at=1)
    message = r"the gradient of layer1\.0\.bn1\.bias is not finite in epoch 1 at step 2 with lr 0.001; no such weights"
    with pytest.raises(NonFiniteError, match=message):
        train(TINY, tmp_path / "a", progress=False)
    assert not list((tmp_path / "a").rglob("*.ckpt"))


def test_weights_that_are_not_finite_after_an_epoch_are_not_checkpointed(tmp_path, monkeypatch):
    step = trainer.Training.training_step

    def spoiling(self, batch, batch_idx):
        step(self, batch, batch_idx)
        if self.global_step == 6:  # the last of the second epoch
            self.net.skeleton.bn1.running_var.fill_(torch.inf)

    monkeypatch.setattr(trainer.Training, "training_step", spoiling)
    with pytest.raises(NonFiniteError, match=r"bn1\.running_var is not finite after the last step in epoch 2"):
        train(TINY, tmp_path / "a", progress=False)
    assert [p.name for p in RunFolder(tmp_path / "a").checkpoints.iterdir()] == ["epoch-0000.ckpt"]


# Run folders that are broken


def places(schema, found, at=()):
    """Every place of a file that the schema asks for."""
    for key, inner in schema.items():
        name = key.rstrip("?")
        if name in found:
            yield (*at, name), key == name
            if isinstance(inner, dict):
                yield from places(inner, found[name], (*at, name))


@pytest.mark.parametrize("name", ["result.json", "config.json"])
def test_a_field_that_is_missing_or_wrong_is_named(name, run):
    schema = {"result.json": RESULT_SCHEMA, "config.json": RUN_SCHEMA}[name]
    whole = json.loads((run.path / name).read_text())
    read = {"result.json": run.result, "config.json": run.config}[name]
    looked = 0
    for place, required in places(schema, whole):
        if name == "config.json" and place == ("training",):
            continue  # without it, it is a network and no run
        for value in (None, [[]], "lacking"):
            if value is None and place == ("commit",):
                continue
            spoilt = copy.deepcopy(whole)
            inside = spoilt
            for key in place[:-1]:
                inside = inside[key]
            if value == "lacking":
                del inside[place[-1]]
            else:
                inside[place[-1]] = value
            (run.path / name).write_text(json.dumps(spoilt))
            if value == "lacking" and not required:
                read()
                continue
            with pytest.raises(StorageError, match=rf"{name} (has|lacks) {'.'.join(place)}") as caught:
                read()
            assert "\n" not in str(caught.value)
            looked += 1
    assert looked > 15


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("result.json", '{"metrics": {}}'),
        ("config.json", '{"training": 3}'),
        ("metrics.csv", "epoch,train_loss\n1,a\n"),
        ("metrics.csv", "train_loss\n1\n"),
        ("metrics.csv", "epoch,train_loss\n1\n"),
        ("metrics.csv", "epoch,train_loss\n1,2,3\n"),
        ("metrics.csv", "epoch\n\0\n"),
    ],
)
def test_every_use_of_a_broken_run_is_answered_with_the_file(name, text, run):
    (run.path / name).write_text(text)
    uses = [lambda: report.read([run.path])]
    if name != "metrics.csv":
        uses.append(lambda: evaluate(run.path))
    if name == "config.json":
        uses += [lambda: train(None, run.path, resume=True), lambda: predict_files(run.path, [])]
    for use in uses:
        with pytest.raises(StorageError, match=name):
            use()


def test_predictions_that_do_not_fit_are_named(run):
    from safetensors.torch import load_file, save_file

    path = run.path / "test-mean.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "labels": tensors["labels"][:5]}, path)
    with pytest.raises(StorageError, match=r"test-mean\.safetensors holds predictions and labels that do not fit"):
        report.read([run.path])


# Two processes, and what killed ones leave


def test_a_run_that_is_being_trained_can_not_be_resumed(run):
    (run.path / "result.json").unlink()
    with run.locked(), pytest.raises(StorageError, match=r"run is being trained by another process; wait for it"):
        train(None, run.path, resume=True, progress=False)
    link = run.path.with_name("link")
    link.symlink_to(run.path)
    with run.locked(), pytest.raises(StorageError, match=r"link is being trained by another process"):
        train(None, link, resume=True, progress=False)
    train(None, link, resume=True, progress=False)


def test_a_resume_removes_what_killed_processes_left(run, finished):
    (run.path / "result.json").unlink()
    latest = run.latest_checkpoint()
    shutil.copy(latest, latest.with_name("epoch-0000.ckpt"))
    for folder, name in ((run.path, "result.json"), (run.checkpoints, "epoch-0002.ckpt")):
        left = folder / f".{name}.0123456789abcdef.part"
        left.mkdir()
        (left / ".tmpAbCdEf").write_text("half")
    train(None, run.path, resume=True, progress=False)
    assert contents(run.path).keys() == contents(finished.path).keys()
    assert not list(run.path.rglob("*.part"))


def test_the_newest_of_more_than_ten_thousand_epochs(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("epoch-9999.ckpt", "epoch-10000.ckpt"):
        (tmp_path / "checkpoints" / name).touch()
    assert RunFolder(tmp_path).latest_checkpoint().name == "epoch-10000.ckpt"


def test_lightning_kills_no_process_that_has_not_had_time_to_speak(monkeypatch):
    observer, killed = _ChildProcessObserver(0, [], sleep_period=3600), []
    observer._terminate_all = lambda: killed.append(time.monotonic())
    observer.start()
    monkeypatch.setattr(lost_ranks, "GRACE", 0.2)
    lost_ranks.TimeToSpeak().on_fit_start()
    begun = time.monotonic()
    observer._terminate_all()
    assert killed[0] - begun >= 0.2


def test_when_a_rank_is_killed_the_others_say_so_in_a_line(tmp_path):
    run = RunFolder(tmp_path / "a")
    settings = {"width": 4, "epochs": 500, "batch_size": 256, "devices": 2, "strategy": "ddp", "accelerator": "cpu"}
    (tmp_path / "a.json").write_text(json.dumps(settings))
    process = start("-m", "kernelseed", "train", "--config", tmp_path / "a.json", "-q", "--out", run.path)
    try:
        wait_for(lambda: run.latest_checkpoint() is not None, process)
        (other,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(other), signal.SIGKILL)
        _, words = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2, words
    assert words.startswith("error: another of the 2 processes of this training has stopped; what is stored is whole")
    assert f"kernelseed train --resume --out {run.path}" in words.replace("\n", "")
    assert "Traceback" not in words
    assert run.latest_checkpoint() is not None


def test_kills_and_full_disks_at_any_moment_end_with_the_same_bits(tmp_path):
    script = Path(__file__).parents[1] / "benchmarks" / "faults.py"
    out = tmp_path / "faults.json"
    command = [sys.executable, script, "--kills", "4", "--disks", "1", "--seed", "1", "--out", out]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    assert found["kills"]["exact"] == found["kills"]["kills"] >= 4
