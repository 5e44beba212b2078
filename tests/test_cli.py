"""The command: what it prints, what it writes, and one line with exit code 2 for what a user can put right."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import kernelseed as ks
from kernelseed import cli
from kernelseed.cli import train_commands as cli_training
from kernelseed.metrics import threshold_at_risk
from kernelseed.training import RunFolder, fit
from kernelseed.training.evaluation import read_prediction, summarise

COMMANDS = {
    "demo": ["--out", "--epochs"],
    "train": ["--data", "--method", "--delta", "--out", "--resume", "--devices", "--precision", "--json"],
    "evaluate": ["RUN", "--samples", "--recalibrate", "--temperature", "--ood", "--json"],
    "predict": ["RUN", "IMAGES", "--out", "--risk", "--json"],
    "report": ["RUN", "--out", "--overwrite"],
    "info": ["RUN", "--json"],
    "reproduce": [
        "data",
        "--preset",
        "--rows",
        "--seeds",
        "--out",
        "--results",
        "--recalibrate",
        "--devices",
        "--json",
    ],
    "data": ["list", "get"],
    "data list": ["--data-dir", "--json"],
    "data get": ["name", "--data-dir"],
}
TRAIN = ["train", "--data", "digits", "--width", "8", "--epochs", "1", "--batch-size", "256", "--samples", "3", "-q"]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


class Result:
    """How a command ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command as the shell does, here, on the threads that the runs were trained on."""
    torch.set_num_threads(1)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which main sets for its own process

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kernelseed", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command):
    """Run a command that a user has to put right: exit code 2, one line on stderr, nothing on stdout."""

    def run(*arguments):
        result = command(*arguments)
        assert result.code == 2, (result.out, result.err)
        assert result.out == ""
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
        return result.err

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trained once for all: ksn with a validation share, and the plain network."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    small = {"data": "digits", "width": 8, "epochs": 2, "batch_size": 256, "samples": 3, "recalibrate": 300}
    fit.train(ks.training.Config(**small, validation=0.1), folder / "ksn", progress=False)
    fit.train(ks.training.Config(**small, method="baseline"), folder / "plain", progress=False)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Ten noisy colour pictures in two class folders: foreign to digits in every way."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def digit_files(tmp_path_factory):
    """The first ten pictures of the digits' test set, as files."""
    folder = tmp_path_factory.mktemp("digits")
    paths = [folder / f"{i}.png" for i in range(10)]
    for path, image in zip(paths, ks.data.load_test("digits").images, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    return paths


# Help, version, data


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_reads_well(name, command):
    result = command(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    text = re.sub(r"[\s│╭╮╰╯─]+", " ", result.out)
    assert "Usage: kernelseed" in text
    for word in COMMANDS[name] if name else [key for key in COMMANDS if " " not in key]:
        assert word in text
    assert "Traceback" not in text


def test_without_arguments_it_helps(command):
    result = command()
    assert "Usage: kernelseed" in result.out + result.err


def test_version(command):
    assert command("--version").out == f"{ks.__version__}\n"


def test_as_a_module_it_is_the_same_command():
    environment = {**os.environ, "PYTHONPATH": str(Path(ks.__file__).parents[1])}
    answer = subprocess.run(
        [sys.executable, "-m", "kernelseed", "evaluate", "absent"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 2
    assert re.fullmatch(r"error: absent .*result\.json.*\n", answer.stderr)


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["train", "--out", "a", "--widht", "8"], ["info"]])
def test_mistakes_in_the_command_line_are_explained(arguments, command):
    result = command(*arguments)
    assert result.code == 2
    assert "Usage: kernelseed" in result.err
    assert "Traceback" not in result.err


def test_data_sets_are_listed(command, tmp_path):
    listed = command("data", "list", "--json", "--data-dir", tmp_path).json
    assert [entry["name"] for entry in listed][:2] == ["digits", "mnist"]
    assert [entry["where"] for entry in listed] == ["scikit-learn", *[None] * (len(listed) - 1)]
    table = command("data", "list", "--data-dir", tmp_path)
    assert table.code == 0
    for entry in listed:
        assert entry["name"] in table.out
    assert "folder:PATH" in table.out


def test_digits_need_no_fetching(command, refused, tmp_path):
    assert "digits: ready" in command("data", "get", "digits").out
    assert "did you mean mnist" in refused("data", "get", "mnits", "--data-dir", tmp_path)


# Train


def test_training_prints_a_table_and_where_the_run_is(command, tmp_path):
    out = tmp_path / "run[a]"
    result = command(*TRAIN, "--method", "fksn", "--delta", "0.5", "--out", out)
    assert result.code == 0, result.err
    assert "FKSN" in result.out
    assert f"next: kernelseed report {out}" in result.out
    config = RunFolder(out).training_config()
    assert (config.method, config.options, config.width, config.samples) == ("fksn", {"delta": 0.5}, 8, 3)


def test_training_prints_json_and_nothing_else(command, tmp_path):
    options = {"--kl": "0.5", "--prior": "0.2", "--kl-warmup": 3, "--rho-offset": -4.0, "--lr": 0.01, "--min-rank": 4}
    flat = [word for pair in options.items() for word in pair]
    more = ["--validation", "0.1", "--clip", "1", "--augment", "--json"]
    result = command(*TRAIN, *flat, *more, "--out", tmp_path / "a")
    assert result.json == RunFolder(tmp_path / "a").result()
    config = result.json["config"]
    assert config["options"] == {
        "min_rank": 4, "rho_offset": -4.0, "kl": "0.5", "kl_warmup": 3, "prior": "0.2", "lr": 0.01
    }  # fmt: skip
    assert (config["validation"], config["clip"], config["augment"]) == (0.1, 1.0, True)


def test_training_shows_its_progress(command, tmp_path):
    result = command(*TRAIN[:-1], "--out", tmp_path / "a")
    assert result.code == 0
    shown = result.out + result.err
    assert all(word in shown for word in ("Epoch 0/0", "6/6", "loss", "nll", "kl"))


def test_a_run_can_be_described_by_a_config_file(command, refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"method": "baseline", "width": 4, "epochs": 1, "batch_size": 512, "seed": 7}))
    result = command("train", "--config", path, "--json", "--out", tmp_path / "a").json
    assert (result["seed"], result["config"]["width"], result["config"]["method"]) == (7, 4, "baseline")
    for text, message in (
        ('{"epocs": 3}', "unknown key 'epocs'; did you mean 'epochs'?"),
        ('{"width": "wide"}', "width is 'wide'; it must be of type int"),
        ("{", "config.json is not readable JSON"),
    ):
        path.write_text(text)
        assert message in refused("train", "--config", path, "--out", tmp_path / "b")
    assert "absent.json is missing" in refused("train", "--config", tmp_path / "absent.json", "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_run_is_never_overwritten(refused, runs):
    before = contents(runs / "ksn")
    message = refused(*TRAIN, "--out", runs / "ksn")
    assert f"{runs / 'ksn'} exists; choose another --out, or continue it with --resume" in message
    assert contents(runs / "ksn") == before


def test_resuming_a_finished_run_shows_its_result(command, runs):
    before = contents(runs / "ksn")
    assert command("train", "--resume", "--json", "--out", runs / "ksn").json == RunFolder(runs / "ksn").result()
    assert contents(runs / "ksn") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digit"], "unknown data set 'digit'; did you mean digits?"),
        (["--data", "folder:absent"], "absent is not a folder"),
        (["--data", "folder:"], "folder: needs a path"),
        (["--method", "kns"], "Did you mean 'ksn'?"),
        (["--delta", "2"], "delta is 2.0"),
        (["--delta", "0"], "delta is 0.0"),
        (["--method", "bnn", "--delta", "0.5"], "delta is no option of method 'bnn'"),
        (["--method", "dropout", "--rate", "1.5"], "rate is 1.5"),
        (["--width", "0"], "width is 0"),
        (["--epochs", "0"], "epochs is 0"),
        (["--precision", "8"], "precision is '8'; allowed are 32-true"),
        (["--patience", "2"], "patience is 2 with validation 0.0"),
        (["--strategy", "fast"], "strategy 'fast'"),
        (["--method", "vadam", "--devices", "2"], "devices x nodes is 2: set both to 1"),
        (["--size", "8"], "size, channels and skip_unreadable are for folder:PATH only"),
        (["--resume"], "is not there, so nothing can go on; start it without --resume"),
        (["--data", "mnist", "--data-dir", "data"], "train-images"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_can_not_be_are_one_line_and_leave_no_folder(arguments, message, refused, tmp_path, monkeypatch):
    import pooch

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", offline)
    monkeypatch.chdir(tmp_path)
    assert message in refused(*TRAIN, *arguments, "--out", "a")
    assert not Path("a").exists()


def spoil_picture(folder):
    (folder / "cats" / "0.png").write_bytes(b"not a picture")


def one_class(folder):
    for path in (folder / "dogs").iterdir():
        path.unlink()
    (folder / "dogs").rmdir()


def another_size(folder):
    Image.new("L", (30, 30)).save(folder / "dogs" / "0.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_picture, "0.png cannot be read as a picture"),
        (one_class, "has one class only, cats"),
        (another_size, "pictures differ in size"),
    ],
)
def test_mistakes_in_a_folder_of_pictures_are_named(spoil, message, refused, pictures, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(pictures, folder)
    spoil(folder)
    assert message in refused("train", "--data", f"folder:{folder}", "-q", "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_pictures_of_ones_own_train_and_broken_ones_are_skipped_by_option(command, pictures, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(pictures, folder)
    spoil_picture(folder)
    options = ["--size", 8, "--channels", 1, "--skip-unreadable", "--width", 4, "--epochs", 1, "--samples", 2]
    with pytest.warns(UserWarning, match="skipped 1 unreadable of 10"):
        result = command("train", "--data", f"folder:{folder}", *options, "--json", "--out", tmp_path / "a").json
    assert result["config"]["skip_unreadable"]
    assert RunFolder(tmp_path / "a").config()["data"]["classes"] == ["cats", "dogs"]
    assert RunFolder(tmp_path / "a").config()["data"]["image"] == [1, 8, 8]


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def unfinished(runs, tmp_path):
    """A run with a checkpoint and without a result."""
    shutil.copytree(runs / "ksn", tmp_path / "a")
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "a" / name).unlink()
    return tmp_path / "a"


def test_a_hostile_checkpoint_does_not_run(refused, unfinished, tmp_path):
    checkpoint = RunFolder(unfinished).latest_checkpoint()
    torch.save({"state_dict": Trap(tmp_path / "executed")}, checkpoint)
    before = contents(unfinished)
    message = refused("train", "--resume", "-q", "--out", unfinished)
    assert f"{checkpoint} can't be resumed from" in message
    assert "remove it to start this run over" in message
    assert not (tmp_path / "executed").exists()
    assert contents(unfinished) == before


def test_a_checkpoint_of_another_architecture_is_named(refused, unfinished, runs):
    checkpoint = RunFolder(unfinished).latest_checkpoint()
    checkpoint.write_bytes(RunFolder(runs / "plain").latest_checkpoint().read_bytes())
    before = contents(unfinished)
    assert f"{checkpoint} can't be resumed from" in refused("train", "--resume", "-q", "--out", unfinished)
    assert contents(unfinished) == before


def test_an_edited_config_is_answered_when_a_run_is_resumed(refused, unfinished):
    config = json.loads((unfinished / "config.json").read_text())
    config["training"]["epoch"] = config["training"].pop("epochs")
    (unfinished / "config.json").write_text(json.dumps(config))
    assert "unknown key 'epoch'; did you mean 'epochs'?" in refused("train", "--resume", "--out", unfinished)


def test_a_full_disk_is_one_line(refused, tmp_path, monkeypatch):
    replace = os.replace

    def full(source, target):
        if str(target).endswith("model.safetensors"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    message = refused(*TRAIN, "--method", "baseline", "--out", tmp_path / "a")
    assert f"can't write {tmp_path / 'a' / 'model.safetensors'}: No space left on device" in message
    assert not [name for name in contents(tmp_path) if name.endswith(".part")]


def test_ctrl_c_says_how_to_go_on(command, tmp_path, monkeypatch):
    training_step = fit.Training.training_step
    before = signal.getsignal(signal.SIGINT)

    def interrupted(self, batch, batch_idx):
        if self.global_step == 2:
            raise KeyboardInterrupt
        training_step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(fit.Training, "training_step", interrupted)
        result = command(*TRAIN, "--method", "baseline", "--out", tmp_path / "a")
    signal.signal(signal.SIGINT, before)  # Lightning shuts its ears
    assert result.code == 130
    assert f"error: stopped; it goes on with: kernelseed train --resume --out {tmp_path / 'a'}" in result.err
    assert command("train", "--resume", "-q", "--out", tmp_path / "a").code == 0


# Evaluate


def test_evaluating_again_finds_what_training_found(command, runs):
    found = command("evaluate", runs / "ksn", "--json").json
    assert found["settings"] == {"samples": 3, "recalibrate": 300, "seed": 0, "temperature": {}}
    assert found["metrics"] == RunFolder(runs / "ksn").result()["metrics"]
    assert json.loads((runs / "ksn" / "evaluation.json").read_text()) == found


def test_evaluating_with_other_draws_and_on_foreign_images(command, runs, pictures):
    found = command(
        "evaluate", runs / "ksn", "--json", "--samples", 5, "--no-recalibrate", "--ood", f"folder:{pictures}"
    ).json
    assert found["settings"] == {"samples": 5, "recalibrate": 0, "seed": 0, "temperature": {}}
    data = ks.data.load("digits", validation=0.1)
    x = ks.data.normalise(data.test.images, data.mean, data.std)
    for way, samples in (("ensemble", 5), ("mean", 0)):
        inside = ks.predict(ks.load(runs / "ksn"), x, samples)
        assert found["metrics"][way] == pytest.approx(summarise(inside, data.test.labels))
        outside, labels = read_prediction(runs / "ksn" / f"ood-{way}.safetensors")
        assert len(labels) == len(outside.probs) == 2  # a fifth of the folder is its test split
        auroc = ks.metrics.auroc(inside.entropy, outside.entropy)
        assert found["ood"][way]["auroc_entropy"] == pytest.approx(auroc, abs=1e-6)
    assert found["ood"]["name"] == f"folder:{pictures}"


def test_a_data_set_against_itself_is_no_better_than_chance(command, runs):
    result = command("evaluate", runs / "ksn", "--samples", 2, "--ood", "digits")
    assert result.code == 0, result.err
    assert "against digits: AUROC 0.5000 by entropy, 0.5000 by mutual information" in " ".join(result.out.split())
    assert "KSN-E" in result.out


def test_a_temperature_is_fitted_on_what_was_held_out(command, refused, runs):
    scaled = command("evaluate", runs / "ksn", "--json", "--temperature").json
    plain = command("evaluate", runs / "ksn", "--json").json
    data, options = ks.data.load("digits", validation=0.1), {"samples": 0, "recalibrate": 300, "seed": 0}
    held_out = ks.training.evaluation.predict_split(ks.load(runs / "ksn"), data.validation, data, **options)
    scaling = ks.calibration.TemperatureScaling.fit(held_out.probs, data.validation.labels)
    assert scaled["settings"]["temperature"]["mean"] == pytest.approx(scaling.temperature, rel=1e-4)
    for way in ("mean", "ensemble"):
        assert scaled["settings"]["temperature"][way] != 1.0
        assert scaled["metrics"][way]["accuracy"] == plain["metrics"][way]["accuracy"]
        assert scaled["metrics"][way]["nll"] < plain["metrics"][way]["nll"]  # two epochs leave much to scale
    message = refused("evaluate", runs / "plain", "--temperature")
    assert "plain held out no data to fit a temperature on; train it with --validation 0.1" in message


def test_a_method_without_randomness_has_one_answer(command, runs):
    assert list(command("evaluate", runs / "plain", "--json", "--samples", 9).json["metrics"]) == ["mean"]
    assert list(command("evaluate", runs / "ksn", "--json", "--samples", 0).json["metrics"]) == ["mean"]


# Predict


def test_pictures_are_classified_as_the_run_would(command, runs, digit_files, tmp_path):
    out = tmp_path / "out[a].csv"
    result = command("predict", runs / "ksn", *digit_files, "-o", out, "--risk", "0.2")
    assert (result.code, result.out) == (0, "")
    assert f"10 predictions in {out}" in result.err
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "confidence", "entropy", "mutual_information", "abstain"]
    assert [row["file"] for row in rows] == list(map(str, digit_files))
    test, labels = read_prediction(runs / "ksn" / "test-ensemble.safetensors")
    threshold = threshold_at_risk(test.confidence, test.label == labels, 0.2)
    assert [row["label"] for row in rows] == [str(label) for label in test.label[:10].tolist()]
    for key in ("confidence", "entropy", "mutual_information"):
        assert [float(row[key]) for row in rows] == pytest.approx(getattr(test, key)[:10].tolist(), abs=1e-5)
    assert [row["abstain"] for row in rows] == [str(c < threshold) for c in test.confidence[:10].tolist()]


def test_without_its_training_data_a_run_predicts_and_says_what_is_missing(command, runs, digit_files, tmp_path):
    shutil.copytree(runs / "ksn", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["training"]["data"] = "folder:gone[a]"
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    result = command("predict", tmp_path / "a", *digit_files, "--json")
    assert "no BatchNorm statistics for each draw: gone[a] is not a folder" in result.err
    data = ks.data.load("digits", validation=0.1)
    p = ks.predict(ks.load(runs / "ksn"), ks.data.normalise(data.test.images[:10], data.mean, data.std), samples=3)
    confidences = [row["confidence"] for row in result.json["predictions"]]
    assert confidences == pytest.approx(p.confidence.tolist(), abs=1e-5)


def test_the_threshold_belongs_to_the_way_of_predicting_and_to_the_risk(command, runs, digit_files):
    for way, samples in (("mean", 0), ("ensemble", 3)):
        test, labels = read_prediction(runs / "ksn" / f"test-{way}.safetensors")
        for risk in (0.1, 0.3):
            found = command("predict", runs / "ksn", *digit_files, "--json", "--samples", samples, "--risk", risk).json
            assert found["risk"] == risk
            assert found["threshold"] == threshold_at_risk(test.confidence, test.label == labels, risk)
            assert len(found["predictions"]) == 10
            for row in found["predictions"]:
                assert row["abstain"] == (row["confidence"] < round(found["threshold"], 6))
                assert (row["mutual_information"] == 0) or samples


def test_predictions_can_be_printed(command, runs, digit_files):
    result = command("predict", runs / "plain", *digit_files[:3])
    assert result.code == 0
    assert all(word in result.out for word in ("confid", "entropy", "abstain"))


def test_predictions_overwrite_nothing_and_name_what_is_wrong(refused, runs, digit_files, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    assert f"{out} exists; choose another name, or remove it first" in refused(
        "predict", runs / "ksn", *digit_files, "-o", out
    )
    assert out.read_text() == "mine"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    assert f"{broken} is not a readable picture" in refused("predict", runs / "ksn", digit_files[0], broken)
    assert "absent.png is not a readable picture" in refused("predict", runs / "ksn", "absent.png")
    assert "samples is -1" in refused("predict", runs / "ksn", *digit_files, "--samples", "-1")
    assert "risk is 2.0" in refused("predict", runs / "ksn", *digit_files, "--risk", "2")
    absent = tmp_path / "absent" / "out.csv"
    assert f"can't write {absent}: No such file" in refused("predict", runs / "ksn", *digit_files, "-o", absent)


# Report and info


def test_a_report_is_one_page_and_overwrites_nothing(command, refused, runs, tmp_path):
    out = tmp_path / "report[a].html"
    result = command("report", runs / "ksn", runs / "plain", "-o", out)
    assert result.code == 0, result.err
    assert f"Report: {out}" in result.out
    page = out.read_text()
    assert all(label in page for label in ("KSN-E δ=0.25", "KSN-P δ=0.25", "Baseline"))
    assert f"{out} exists" in refused("report", runs / "plain", "-o", out)
    assert out.read_text() == page
    assert command("report", runs / "plain", "-o", out, "--overwrite").code == 0
    assert "KSN-E" not in out.read_text()
    assert "absent" in refused("report", runs / "plain", "-o", tmp_path / "absent" / "report.html")


def test_a_report_tells_runs_of_one_name_apart(command, runs, tmp_path):
    for network in ("one", "other"):
        shutil.copytree(runs / "ksn", tmp_path / network / "seed-0")
    out = tmp_path / "report.html"
    assert command("report", tmp_path / "one/seed-0", tmp_path / "other/seed-0", "-o", out).code == 0
    page = out.read_text()
    assert "Two runs with four ways of predicting" in page
    assert all(f"KSN-E δ=0.25 ({network}/seed-0)" in page for network in ("one", "other"))


def test_a_report_shows_the_foreign_images_of_the_last_evaluation(command, runs, tmp_path):
    assert command("evaluate", runs / "ksn", "--samples", 2, "--ood", "digits").code == 0
    assert command("report", runs / "ksn", "-o", tmp_path / "with.html").code == 0
    assert command("evaluate", runs / "ksn", "--samples", 2).code == 0
    assert command("report", runs / "ksn", "-o", tmp_path / "without.html").code == 0
    with_foreign, without = ((tmp_path / name).read_text() for name in ("with.html", "without.html"))
    assert len(with_foreign) > len(without)


def test_info_counts_what_is_stored(command, runs):
    found = command("info", runs / "ksn", "--json").json
    net = ks.load(runs / "ksn")
    assert found["parameters"] == RunFolder(runs / "ksn").result()["parameters"]
    assert [layer["weight"] for layer in found["layers"]] == list(net.weights)
    for layer in found["layers"]:
        weight = net.weights[layer["weight"]]
        assert layer["shape"] == list(weight.shape)
        assert (layer["distribution"], layer["rank"]) == ("KernelSeed", weight.rank)
        assert layer["parameters"] == sum(p.numel() for p in weight.parameters())
        assert layer["sigma"] == pytest.approx(weight.moments().std.mean().item())
    shown = command("info", runs / "ksn").out
    assert all(re.search(rf"^ {layer['weight']} +\d", shown, re.MULTILINE) for layer in found["layers"])
    assert f"{sum(p.numel() for p in net.parameters()):,} parameters" in shown
    assert "of the plain network's 176.3k" in shown
    assert "plain network: 176,258 parameters, 1.00" in command("info", runs / "plain").out


def test_info_knows_a_network_that_was_only_saved(command, tmp_path):
    ks.save(ks.germinate(ks.models.resnet18(3, 1, width=4), fixed=True), tmp_path)
    found = command("info", tmp_path, "--json").json
    assert found["parameters"] == {}
    assert {layer["sigma"] for layer in found["layers"]} == {None}
    assert command("info", tmp_path).code == 0


# Runs that are none


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("evaluate", "has no result.json: the run is not finished; continue it with --resume"),
        ("report", "has no result.json: the run is not finished; continue it with --resume"),
        ("predict", "model.safetensors is missing"),
        ("info", "model.safetensors is missing"),
    ],
)
def test_an_unfinished_run_is_said_to_be_one(name, message, refused, unfinished, digit_files, tmp_path):
    more = {"predict": digit_files, "report": ["-o", tmp_path / "report.html"]}.get(name, [])
    before = contents(unfinished)
    answer = refused(name, unfinished, *more)
    assert str(unfinished) in answer
    assert message in answer
    assert contents(unfinished) == before
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["evaluate", "report", "predict", "info"])
def test_what_is_no_run_is_named(name, refused, digit_files, tmp_path):
    more = {"predict": digit_files, "report": ["-o", tmp_path / "report.html"]}.get(name, [])
    assert str(tmp_path / "absent") in refused(name, tmp_path / "absent", *more)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    assert str(tmp_path / "other") in refused(name, tmp_path / "other", *more)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("evaluate", "model.safetensors"),
        ("evaluate", "result.json"),
        ("evaluate", "config.json"),
        ("predict", "model.safetensors"),
        ("predict", "test-ensemble.safetensors"),
        ("report", "test-mean.safetensors"),
        ("report", "result.json"),
        ("info", "model.safetensors"),
    ],
)
def test_a_truncated_file_of_a_run_is_named(name, victim, refused, runs, digit_files, tmp_path):
    run = tmp_path / "a"
    shutil.copytree(runs / "ksn", run)
    truncate(run / victim)
    before = contents(run)
    more = {"predict": digit_files, "report": ["-o", tmp_path / "report.html"]}.get(name, [])
    assert str(run / victim) in refused(name, run, *more)
    assert contents(run) == before
    assert not (tmp_path / "report.html").exists()


# Demo


@pytest.fixture
def quick_demo(monkeypatch):
    """The demo with networks of a quarter of its width."""

    def smaller(**settings):
        return ks.training.Config(**{**settings, "width": 4, "samples": 2, "recalibrate": 0})

    monkeypatch.setattr(cli_training, "Config", smaller)


def test_the_demo_trains_five_methods_and_writes_their_page(command, quick_demo, tmp_path):
    result = command("demo", "--epochs", 1, "--out", tmp_path / "demo")
    assert result.code == 0, result.err
    assert [f"{i}/5 {name}" in result.err for i, name in enumerate(cli_training.DEMO, 1)] == [True] * 5
    assert set(cli_training.DEMO) == {"baseline", "dropout", "bnn", "fksn", "ksn"}
    for label in ("Baseline", "MC-Drop 0.1", "Baseline DR 0.1", "BNN-E", "FKSN δ=0.25", "KSN-E δ=0.25"):
        assert re.search(rf"^ {label} +\d", result.out, re.MULTILINE)  # a row of its own, the name whole
    page = tmp_path / "demo" / "report.html"
    assert f"Report: {page}" in result.out
    assert "KSN-E δ=0.25" in page.read_text()
    assert all(RunFolder(tmp_path / "demo" / name).finished for name in cli_training.DEMO)


def test_a_second_demo_finds_a_name_of_its_own(command, quick_demo, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_training, "DEMO", {"baseline": {}})
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    results = command("demo", "--epochs", 1, "--json", "--out", tmp_path / "demo").json
    assert [result["config"]["method"] for result in results] == ["baseline"]
    assert (tmp_path / "demo-3" / "report.html").exists()
    assert not any((tmp_path / "demo").iterdir())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_it(shell, command, monkeypatch):
    monkeypatch.setenv("_KERNELSEED_COMPLETE", f"complete_{shell}")
    for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.setenv(name, "kernelseed ev")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert "evaluate" in command().out
