"""The command: what it prints, what it writes, and one line with exit code 2 for what a user can put right."""

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import kernelseed as ks
from kernelseed import cli
from kernelseed.cli import run_commands, train_commands
from kernelseed.errors import StorageError
from kernelseed.training import Config, RunFolder, predict_split, summarise, trainer

COMMANDS = {
    "demo": ["--out", "--epochs"],
    "train": ["--data", "--delta", "--train-samples", "--out", "--config", "--print-config", "--resume", "--json"],
    "evaluate": [
        "RUN",
        "--samples",
        "--update-bn",
        "--temperature",
        "--ood",
        "--ood-fit",
        "--shift",
        "--shift-images",
        "--json",
    ],
    "predict": ["RUN", "FILES", "--out", "--risk", "--json"],
    "prune": ["RUN", "--sparsity", "--budget", "--by", "--out", "--split", "--json"],
    "report": ["RUN", "--out", "--overwrite"],
    "info": ["RUN", "--json"],
    "reproduce": ["data", "--preset", "--rows", "--seeds", "--out", "--results", "--devices", "--json"],
    "continual": ["benchmark", "--approaches", "--seeds", "--results", "--figure", "--json"],
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
    small = {"data": "digits", "width": 8, "epochs": 2, "batch_size": 256, "samples": 3, "update_bn": 300}
    small |= {"schedule": "constant", "warmup": 0}
    ksn = Config(**small, options={"delta": 0.25, "over": "weights"}, validation=0.1)
    trainer.train(ksn, folder / "ksn", progress=False)
    trainer.train(Config(**small, method="baseline"), folder / "plain", progress=False)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten noisy colour images in two class folders: unlike digits in every way."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def fresh(runs, tmp_path):
    """A run of which nothing has been found yet."""
    forget = shutil.ignore_patterns("ood*", "shift.json", "evaluation.json")
    return Path(shutil.copytree(runs / "ksn", tmp_path / "ksn", ignore=forget))


@pytest.fixture(scope="module")
def digit_files(tmp_path_factory):
    """The first ten images of the digits' test set, as files."""
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


def test_every_setting_is_an_option_with_its_help_and_default(command):
    text = re.sub(r"[\s│╭╮╰╯─]+", " ", command("train", "--help").out)
    shown = ks.methods.settings_of(Config) | {
        name: known for method in ks.methods.METHODS for name, known in ks.methods.options_of(method).items()
    }
    del shown["options"]
    for name, known in shown.items():
        assert f"--{name.replace('_', '-')} " in text
        assert known.help[1:] in text
    assert "images that each draw's BatchNorm is re-estimated from; 0: its running statistics. [default: 0]" in text
    weights = "settled, automatic, uniform, blundell, a number with 0 <= kl <= 1000000. [default: settled]"
    assert f"The weight of the KL: {weights}" in text
    assert "The learning rate. [default: the method's]" in text


def test_version(command):
    assert command("--version").out == f"{ks.__version__}\n"


def test_as_a_module_it_is_the_same_command():
    environment = {**os.environ, "PYTHONPATH": str(Path(ks.__file__).parents[1])}
    answer = subprocess.run(
        [sys.executable, "-m", "kernelseed", "evaluate", "absent"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 2
    assert re.fullmatch(r"error: absent is not there; give the folder of a run.*\n", answer.stderr)


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train"], ["train", "--out", "a", "--widht", "8"], ["train", "--width", "x"]],
)
def test_mistakes_in_the_command_line_are_explained(arguments, command):
    result = command(*arguments)
    assert result.code == 2
    assert "Usage: kernelseed" in result.err
    assert "Traceback" not in result.err


def test_data_sets_are_listed(command, tmp_path):
    listed = command("data", "list", "--json", "--data-dir", tmp_path).json
    assert [entry["name"] for entry in listed][:2] == ["digits", "mnist"]
    assert [entry["where"] for entry in listed] == ["scikit-learn", *[None] * (len(listed) - 1)]
    table = command("data", "list", "--data-dir", tmp_path).out
    assert all(name in table for name in ("folder:PATH", *(entry["name"] for entry in listed)))


def test_digits_need_no_fetching(command, refused, tmp_path):
    assert "digits: ready" in command("data", "get", "digits").out
    assert "did you mean mnist" in refused("data", "get", "mnits", "--data-dir", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shells_can_complete_it(shell, command, monkeypatch):
    monkeypatch.setenv("_KERNELSEED_COMPLETE", f"complete_{shell}")
    for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.setenv(name, "kernelseed ev")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert "evaluate" in command().out


# Errors


def test_a_bug_shows_its_traceback_and_debug_shows_every_one(command, refused, monkeypatch, tmp_path):
    with pytest.raises(
        StorageError, match="absent is not there; give the folder of a run"
    ):  # what Python prints as a traceback
        command("--debug", "evaluate", tmp_path / "absent")
    for error in (ValueError("a bug"), OSError("a bug"), ImportError("a bug")):

        def broken(*_, error=error, **__):
            raise error

        monkeypatch.setattr(run_commands, "evaluate", broken)
        with pytest.raises(type(error), match="a bug"):
            command("evaluate", tmp_path)
    assert "absent" in refused("info", tmp_path / "absent")


def test_a_missing_package_says_how_to_get_the_command(command, monkeypatch):
    monkeypatch.delitem(sys.modules, "kernelseed.cli.app")
    monkeypatch.delattr(cli, "app")
    monkeypatch.setitem(sys.modules, "typer", None)
    result = command("--version")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: the command needs the package 'typer': pip install \"kernelseed[cli]\".\n"


# Train


def test_training_prints_a_table_and_where_the_run_is(command, tmp_path):
    out = tmp_path / "run[a]"
    result = command(*TRAIN[:-1], "--method", "fksn", "--delta", "0.5", "--out", out)
    assert result.code == 0, result.err
    assert "FKSN" in result.out
    assert f"next: kernelseed report {out}" in result.out
    assert all(word in result.out + result.err for word in ("Epoch 0/0", "6/6", "loss", "nll", "kl"))  # the progress
    config = RunFolder(out).training_config()
    assert (config.method, config.options["delta"], config.width, config.samples) == ("fksn", 0.5, 8, 3)


def test_training_prints_json_and_nothing_else(command, tmp_path):
    options = {"--kl": "0.5", "--prior": "0.2", "--kl-warmup": 3, "--sigma": 0.1, "--lr": 0.01, "--min-rank": 4}
    flat = [word for pair in options.items() for word in pair]
    more = ["--validation", "0.1", "--clip", "1", "--augment", "--json"]
    result = command(*TRAIN, *flat, *more, "--out", tmp_path / "a")
    assert result.json == RunFolder(tmp_path / "a").result()
    config = result.json["config"]
    given = {"lr": 0.01, "sigma": 0.1, "kl": 0.5, "kl_warmup": 3, "prior": 0.2, "min_rank": 4}
    assert config["options"] == dataclasses.asdict(ks.methods.make("ksn", **given))
    assert (config["validation"], config["clip"], config["augment"]) == (0.1, 1.0, True)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a model of the user's own, and no other way to find it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "nets_of_mine.py").write_text("from own_models import convnet, words")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    yield "nets_of_mine:convnet"
    sys.modules.pop("nets_of_mine", None)


def test_a_function_in_the_current_folder_is_a_model(own, command, refused, digit_files):
    arguments = [*TRAIN, "--model", own, "--model-args", '{"channels": 4}', "--out", "runs/a"]
    arguments[3:5] = []  # a function of your own has no width
    result = command(*arguments, "--json").json
    assert (result["config"]["model"], result["config"]["model_args"]) == (own, {"channels": 4})
    for name, *rest in (("evaluate",), ("info",), ("predict", digit_files[0])):
        line = refused(name, "runs/a", *rest)
        assert f"runs/a names the model '{own}'" in line
        assert f"--model {own} " in line
        assert "--trust-model" in line
        assert command(name, "runs/a", *rest, "--model", own, "--json").json
    with pytest.warns(UserWarning, match=f"as you trust runs/a, {own} is imported and called"):
        assert command("info", "runs/a", "--trust-model", "--json").json["layers"][0]["shape"] == [4, 1, 3, 3]
    assert command("report", "runs/a", "-o", "page.html").code == 0  # which runs no network
    assert command("train", "--resume", "--out", "runs/a", "--json").json == result  # it is finished
    (Path("runs/a") / "result.json").unlink()
    assert f"runs/a names the model '{own}'" in refused("train", "--resume", "--out", "runs/a")
    again = command("train", "--resume", "--out", "runs/a", "--model", own, "--json", "-q").json
    assert again["metrics"] == result["metrics"]


def test_a_model_that_only_a_file_names_is_not_imported(own, command, refused):
    Path("c.json").write_text(json.dumps({"model": own, "epochs": 1, "batch_size": 512, "samples": 0}))
    assert command("train", "--config", "c.json", "--print-config").json["model"] == own
    assert f"c.json names the model '{own}'" in refused("train", "--config", "c.json", "--out", "runs/a")
    assert "nets_of_mine" not in sys.modules
    with pytest.warns(UserWarning, match=f"as you trust c.json, {own} is imported"):
        assert command("train", "--config", "c.json", "--trust-model", "--out", "runs/a", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "absent_nets:net"], "there is no module 'absent_nets'"),
        (["--model", "nets_of_mine:absent"], "nets_of_mine has no 'absent'"),
        (["--model", "nets_of_mine:words"], "it must return an nn.Module"),
        (
            ["--model", "nets_of_mine:convnet", "--model-args", '{"chanels": 4}'],
            "unexpected keyword argument 'chanels'",
        ),
        (["--model", "mlp", "--width", "8"], "width is 8, but the model 'mlp' has none"),
        (["--model", "mlp", "--model-args", '{"widths": [0]}'], "widths[0] is 0; it must be at least 1"),
    ],
)
def test_a_model_that_can_not_be_is_one_line_and_leaves_no_folder(arguments, message, own, refused):
    assert message in refused("train", *arguments, "--out", "runs/a", "-q")
    assert not list(Path("runs").iterdir())


def test_model_arguments_are_a_json_object(refused):
    for text, words in (("{widths: 3}", "which is no JSON"), ("[200]", "a list")):
        said = refused("train", "--model", "mlp", "--model-args", text, "--print-config")
        assert f"model_args is '{text}', {words}" in said
        assert """write it as '{"widths": [200, 200]}'""" in said


def test_a_recipe_stands_below_the_file_and_the_options(command, refused, tmp_path):
    papers = command("train", "--print-config", "--recipe", "paper", "--epochs", "10").json
    assert (papers["schedule"], papers["plain_epochs"], papers["options"]["over"]) == ("constant", 0, "weights")
    (tmp_path / "c.json").write_text(json.dumps({"method": "bnn", "schedule": "onecycle"}))
    mixed = command("train", "--print-config", "--recipe", "paper", "--config", tmp_path / "c.json", "--warmup", "3")
    assert (mixed.json["method"], mixed.json["schedule"], mixed.json["warmup"]) == ("bnn", "onecycle", 3)
    assert mixed.json["plain_epochs"] == 0
    said = refused("train", "--recipe", "papers", "--print-config")
    assert "recipe is 'papers'; allowed: kernelseed, paper" in said


def test_the_start_of_sigma_is_that_of_what_is_random(command, tmp_path):
    printed = command("train", "--print-config").json
    assert (printed["options"]["over"], printed["options"]["sigma"]) == ("channels", 0.07)
    (tmp_path / "c.json").write_text(json.dumps(printed))
    for over in ("weights", "factors"):
        anew = command("train", "--print-config", "--over", over).json["options"]["sigma"]
        mixed = command("train", "--print-config", "--config", tmp_path / "c.json", "--over", over)
        assert mixed.json["options"]["sigma"] == anew != 0.07
    own = command("train", "--print-config", "--config", tmp_path / "c.json", "--over", "factors", "--sigma", "0.1")
    assert own.json["options"]["sigma"] == 0.1


def test_options_win_over_the_config_file_and_say_so(command, refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"epochs": 7, "seed": 3, "augment": True, "options": {"delta": 0.5, "lr": 0.1}}))
    printed = command("train", "--print-config", "--config", path)
    assert printed.err == ""
    assert Config.from_json(printed.json).as_json() == printed.json
    given = ["--epochs", "50", "--seed", "3", "--delta", "0.75", "--no-augment", "--width", "8"]
    won = command("train", "--print-config", "--config", path, *given)
    assert won.err.count("\n") == 1
    assert "the command line wins over" in won.err
    assert "--epochs 50 over 7, --augment False over True, --delta 0.75 over 0.5" in won.err
    assert "seed" not in won.err
    assert won.json == printed.json | {
        "epochs": 50, "plain_epochs": 10, "augment": False, "width": 8,
        "options": printed.json["options"] | {"delta": 0.75},
    }  # fmt: skip
    other = command("train", "--print-config", "--config", path, "--method", "bnn", "--kl", "uniform")
    assert "--method bnn over ksn, which leaves its options behind" in other.err
    assert other.json["options"] == dataclasses.asdict(ks.methods.make("bnn", kl="uniform"))
    for text, message in (
        ('{"epocs": 3}', "epocs is no setting of a run; allowed: data, target"),
        ('{"options": [1]}', "options is [1]; it must be of type dict"),
        ("{", "config.json is not readable JSON"),
    ):
        path.write_text(text)
        assert message in refused("train", "--config", path, "--out", tmp_path / "b")
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_is_resumed_with_its_own_settings_or_not_at_all(command, refused, runs, tmp_path):
    before = contents(runs / "ksn")
    result = RunFolder(runs / "ksn").result()
    assert command("train", "--resume", "--json", "--out", runs / "ksn").json == result
    assert command("train", "--resume", "--json", "--epochs", 2, "--out", runs / "ksn").json == result
    assert command("train", "--resume", "--print-config", "--out", runs / "ksn").json == result["config"]
    message = refused("train", "--resume", "--epochs", 50, "--lr", 0.1, "--out", runs / "ksn")
    assert "epochs is 50, lr is 0.1, but" in message
    assert "was started with epochs 2, lr 0.001; a resumed run keeps its settings" in message
    (tmp_path / "a.json").write_text('{"width": 16}')
    assert "width is 16, but" in refused("train", "--resume", "--config", tmp_path / "a.json", "--out", runs / "ksn")
    assert f"{runs / 'ksn'} exists; choose another --out" in refused(*TRAIN, "--out", runs / "ksn")
    assert contents(runs / "ksn") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "folder:absent"], "absent is not a folder"),
        (["--method", "kns"], "Did you mean 'ksn'?"),
        (["--delta", "2"], "delta is 2.0; allowed: 0 < delta <= 1"),
        (["--method", "bnn", "--delta", "0.5"], "delta is no option of method 'bnn'"),
        (["--strategy", "fsdp"], "strategy is 'fsdp'; allowed: auto, ddp, ddp_find_unused_parameters_true"),
        (["--resume"], "is not there; give the folder of a run"),
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


def test_images_of_ones_own_train_and_broken_ones_are_skipped_by_option(command, refused, images, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(images, folder)
    (folder / "cats" / "0.png").write_bytes(b"not an image")
    train = ["train", "--data", f"folder:{folder}", "--size", 8, "--channels", 1, "--width", 4, "--epochs", 1]
    train += ["--samples", 2, "--json", "--out", tmp_path / "a"]
    assert "0.png is not a readable image" in refused(*train)
    assert not (tmp_path / "a").exists()
    with pytest.warns(UserWarning, match="skipped 1 unreadable of 10"):
        result = command(*train, "--skip-unreadable").json
    assert result["config"]["skip_unreadable"]
    assert RunFolder(tmp_path / "a").config()["data"]["classes"] == ["cats", "dogs"]
    assert RunFolder(tmp_path / "a").config()["data"]["image"] == [1, 8, 8]


@pytest.fixture
def unfinished(runs, tmp_path):
    """A run with a checkpoint and without a result."""
    shutil.copytree(runs / "ksn", tmp_path / "a")
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "a" / name).unlink()
    return tmp_path / "a"


def test_an_edited_config_is_answered_when_a_run_is_resumed(refused, unfinished):
    config = json.loads((unfinished / "config.json").read_text())
    config["training"]["epoch"] = config["training"].pop("epochs")
    (unfinished / "config.json").write_text(json.dumps(config))
    assert "epoch is no setting of a run" in refused("train", "--resume", "--out", unfinished)


def test_ctrl_c_says_how_to_go_on(command, tmp_path, monkeypatch):
    training_step = trainer.Training.training_step
    before = signal.getsignal(signal.SIGINT)

    def interrupted(self, batch, batch_idx):
        if self.global_step == 2:
            raise KeyboardInterrupt
        training_step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Training, "training_step", interrupted)
        result = command(*TRAIN, "--method", "baseline", "--out", tmp_path / "a")
    signal.signal(signal.SIGINT, before)  # Lightning shuts its ears
    assert result.code == 130
    assert f"error: stopped; it goes on with: kernelseed train --resume --out {tmp_path / 'a'}" in result.err
    assert command("train", "--resume", "-q", "--out", tmp_path / "a").code == 0


# Evaluate


def test_evaluating_again_finds_what_training_found(command, runs):
    found = command("evaluate", runs / "ksn", "--json").json
    assert found["settings"] == {"samples": 3, "update_bn": 300, "seed": 0, "temperature": {}}
    assert found["metrics"] == RunFolder(runs / "ksn").result()["metrics"]
    assert RunFolder(runs / "ksn").evaluation() == found


def test_evaluating_with_other_draws_and_on_out_of_distribution_images(command, runs, images):
    found = command(
        "evaluate", runs / "ksn", "--json", "--samples", 5, "--update-bn", 0, "--ood", f"folder:{images}"
    ).json
    assert found["settings"] == {"samples": 5, "update_bn": 0, "seed": 0, "temperature": {}}
    data = ks.data.load("digits", validation=0.1)
    x = ks.data.normalise(data.test.images, data.mean, data.std)
    for way, samples in (("ensemble", 5), ("mean", 0)):
        inside = ks.predict(ks.load(runs / "ksn"), x, samples)
        # Other batches round differently, and mutual information is a difference of near-equal entropies.
        assert found["metrics"][way] == pytest.approx(summarise(inside, data.test.labels), abs=1e-7)
        outside, labels = RunFolder(runs / "ksn").prediction("ood-0", way)
        assert len(labels) == len(outside.probs) == 2  # a fifth of the folder is its test split
        (other,) = found["ood"]["sets"]
        for name, score in ks.outlier_scores(inside).items():
            expected = ks.metrics.detection(score, ks.outlier_scores(outside)[name])
            if way == "mean" and name in ("mutual_information", "variation_ratio"):
                assert name not in other["scores"][way]  # one network does not disagree
            else:
                assert other["scores"][way][name] == pytest.approx(expected, abs=1e-6)
    assert other["name"] == f"folder:{images}"
    assert other["images"] == 2
    kept = RunFolder(runs / "ksn").found()
    assert kept["ood"]["sets"] == found["ood"]["sets"]
    assert kept["ood"]["settings"]["samples"] == 5


def test_what_was_found_of_other_data_stays_if_it_was_found_alike(command, fresh, images):
    def found():
        return RunFolder(fresh).found()

    for ood in ("digits", f"folder:{images}"):
        assert command("evaluate", fresh, "--samples", 2, "--ood", ood, "--shift", "blur").code == 0
    assert command("evaluate", fresh, "--samples", 2, "--shift", "contrast").code == 0
    assert [kept["name"] for kept in found()["ood"]["sets"]] == ["digits", f"folder:{images}"]
    assert list(found()["shift"]["curves"]["mean"]) == ["blur", "contrast"]
    assert len(RunFolder(fresh).prediction("ood-1", "mean")[1]) == 2
    with pytest.warns(UserWarning, match=r"shift.json was made with settings .*: what was found then is replaced"):
        assert command("evaluate", fresh, "--samples", 3, "--shift", "blur").code == 0
    assert list(found()["shift"]["curves"]["mean"]) == ["blur"]
    with pytest.warns(UserWarning, match=r"ood.json was made with settings"):
        assert command("evaluate", fresh, "--samples", 3, "--ood", "digits").code == 0
    assert not RunFolder(fresh).has_prediction("ood-1", "mean")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "RUN", "--ood-fit", "crop"], "ood_fit is 'crop'; allowed are resize, pad, refuse"),
        (["evaluate", "RUN", "--ood-fit", "pad"], "ood_fit is 'pad' without ood"),
        (["evaluate", "RUN", "--shift-images", 10], "shift_images is 10 without shift"),
        (["predict", "RUN", "a.png", "--confidence", 0.9], "confidence is 0.9 with risk None"),
        (["prune", "RUN", "--by", "random"], "by is 'random' without --out"),
        (["prune", "RUN", "--no-curve"], "curve is off"),
        (["continual", "split-mnist", "--approaches", ""], "the approach is ''; allowed are"),
        (["continual", "split-mnist", "--figure", "a.txt"], "a.txt ends in .txt; figures are written as .svg, .png"),
        (["data", "get", "folder:x"], "folder:x is data of your own, so there is nothing to fetch"),
        (["evaluate", "."], ". has no config.json; give the folder of a run"),
        (["report", "mine.txt"], "mine.txt is no folder; give the folder of a run"),
        (["report", "RUN", "-o", "mine.txt"], "mine.txt exists; choose another name, or replace it with --overwrite"),
    ],
)
def test_what_has_no_effect_or_is_no_run_is_said(words, said, command, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("mine")
    result = command(*[runs / "ksn" if word == "RUN" else word for word in words])
    assert result.code != 0
    assert said in " ".join(result.err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_of_a_folder_is_evaluated_from_anywhere_and_beside_images_of_any_size(
    command, images, tmp_path, monkeypatch
):
    monkeypatch.chdir(images.parent)
    small = ["--width", 4, "--epochs", 1, "--samples", 1, "--size", 8, "--channels", 1]
    assert command("train", "--data", f"folder:{images.name}", *small, "--out", tmp_path / "a").code == 0
    shutil.copytree(images, tmp_path / "mixed")
    first = next((tmp_path / "mixed").rglob("*.png"))
    Image.open(first).resize((13, 9)).save(first)
    monkeypatch.chdir(tmp_path)
    assert command("evaluate", "a", "--ood", "folder:mixed").code == 0


def test_predictions_for_other_data_are_never_taken_for_those_of_a_set_before(command, fresh, images, monkeypatch):
    """A kill between the predictions and what says whose they are."""
    assert command("evaluate", fresh, "--samples", 2, "--ood", "digits").code == 0
    write, written = RunFolder.write_prediction, []

    def killed(self, *given):
        write(self, *given)
        written.append(given)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_prediction", killed)
    assert command("evaluate", fresh, "--samples", 2, "--ood", f"folder:{images}").code != 0
    assert "ood" not in RunFolder(fresh).found()


def test_a_data_set_against_itself_is_no_better_than_chance_and_the_report_shows_it(command, fresh, runs, tmp_path):
    result = command("evaluate", fresh, "--samples", 2, "--ood", "digits")
    assert result.code == 0, result.err
    assert "digits against digits" in result.out
    assert "mutual information 0.5000" in " ".join(result.out.split())
    assert "KSN-E" in result.out
    assert command("evaluate", fresh, "--samples", 2).code == 0  # what was found about other data stays
    assert command("report", fresh, "-o", tmp_path / "with.html").code == 0
    assert command("report", runs / "plain", "-o", tmp_path / "without.html").code == 0
    assert ["AUROC 0.500" in (tmp_path / name).read_text() for name in ("with.html", "without.html")] == [True, False]


def test_damaged_test_images_give_curves_that_are_kept_and_shown(command, runs, tmp_path):
    shown = command("evaluate", runs / "ksn", "--samples", 2, "--shift", "contrast", "--shift-images", 20).out
    found = RunFolder(runs / "ksn").found()["shift"]
    assert (found["images"], found["severities"], found["settings"]["samples"]) == (20, list(range(6)), 2)
    curve = found["curves"]["ensemble"]["contrast"]["accuracy"]
    assert " ".join(["contrast", "ACC ↑", *(f"{value:.4f}" for value in curve)]) in " ".join(shown.split())
    assert command("report", runs / "ksn", "-o", tmp_path / "page.html").code == 0
    assert "Test images (20) are damaged in one way" in (tmp_path / "page.html").read_text()


def test_shift_and_other_data_that_can_not_be_had_are_refused_in_one_line(refused, runs):
    for said, *options in (
        ("the corruption 'blurr' is unknown (did you mean blur?)", "--shift", "blurr"),
        ("shift_images is 0", "--shift", "all", "--shift-images", 0),
        ("the data set 'mnits' is unknown (did you mean mnist?)", "--ood", "digits,mnits"),
        ("ood_fit is 'cut'; allowed are resize, pad, refuse", "--ood", "digits", "--ood-fit", "cut"),
    ):
        assert said in refused("evaluate", runs / "ksn", *options)


def test_a_temperature_is_fitted_on_what_was_held_out(command, refused, runs):
    scaled = command("evaluate", runs / "ksn", "--json", "--temperature").json
    plain, config = RunFolder(runs / "ksn").result(), RunFolder(runs / "ksn").training_config()
    data = config.load_data()
    held_out = predict_split(ks.load(runs / "ksn"), data.validation, data, config, "mean")
    scaling = ks.metrics.TemperatureScaling.fit(held_out.probs, data.validation.labels)
    assert scaled["settings"]["temperature"]["mean"] == pytest.approx(scaling.temperature, rel=1e-4)
    for way in ("mean", "ensemble"):
        assert scaled["settings"]["temperature"][way] != 1.0
        assert scaled["metrics"][way]["accuracy"] == plain["metrics"][way]["accuracy"]
        assert scaled["metrics"][way]["nll"] < plain["metrics"][way]["nll"]  # two epochs leave much to scale
        kept, labels = RunFolder(runs / "ksn").prediction("test", way)
        factor = ks.metrics.TemperatureScaling(scaled["settings"]["temperature"][way])
        again = summarise(replace(kept, probs=factor.apply(kept.probs)), labels)
        for metric in ("entropy", "aurc"):
            assert scaled["metrics"][way][metric] == pytest.approx(again[metric], rel=1e-3)
        assert scaled["metrics"][way]["mutual_information"] == plain["metrics"][way]["mutual_information"]
    message = refused("evaluate", runs / "plain", "--temperature")
    assert f"validation is 0.0 in {runs / 'plain'}, so there is nothing to fit a temperature on" in message
    assert "train a run with --validation 0.1" in message


def test_a_method_without_randomness_has_one_answer(command, runs):
    assert list(command("evaluate", runs / "plain", "--json", "--samples", 9).json["metrics"]) == ["mean"]
    assert list(command("evaluate", runs / "ksn", "--json", "--samples", 0).json["metrics"]) == ["mean"]


# Predict


def test_images_are_classified_as_the_run_would(command, runs, digit_files, tmp_path):
    out = tmp_path / "out[a].csv"
    result = command("predict", runs / "ksn", *digit_files, "-o", out)
    assert (result.code, result.out, result.err) == (0, "", f"10 predictions in {out}\n")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "confidence", "entropy", "mutual_information"]
    assert [row["file"] for row in rows] == list(map(str, digit_files))
    test, _ = RunFolder(runs / "ksn").prediction("test", "ensemble")
    assert [row["label"] for row in rows] == [str(label) for label in test.label[:10].tolist()]
    for key in ("confidence", "entropy", "mutual_information"):
        assert [float(row[key]) for row in rows] == pytest.approx(getattr(test, key)[:10].tolist(), abs=1e-5)


def test_the_threshold_for_a_risk_comes_from_the_validation_split(command, refused, runs, digit_files, tmp_path):
    run = RunFolder(runs / "ksn")
    for way, samples, risk in (("mean", 0, 0.3), ("ensemble", 3, 0.4)):
        rule = ks.abstention(*run.prediction("validation", way), risk, 0.9)
        test, labels = run.prediction("test", way)
        assert rule.threshold != ks.abstention(test, labels, risk, 0.9).threshold
        options = ("--samples", samples, "--risk", risk, "--confidence", 0.9)
        found = command("predict", run.path, *digit_files, "--json", *options).json
        assert (found["risk"], found["confidence"]) == (risk, 0.9)
        assert found["threshold"] == (rule.threshold if rule.answered else None)
        assert [row["abstain"] for row in found["predictions"]] == rule.abstains(test)[:10].tolist()
    said = command("predict", run.path, *digit_files, "--risk", 0.4, "-o", tmp_path / "out.csv").err
    rule = ks.abstention(*run.prediction("validation", "ensemble"), 0.4)
    assert f"{rule.errors} of {rule.answered} answers wrong in validation, at most {rule.bound:.2%} of new" in said
    plain = command("predict", run.path, *digit_files, "--json").json
    assert list(plain) == ["predictions"]
    assert "abstain" not in plain["predictions"][0]
    message = refused("predict", runs / "plain", *digit_files, "--risk", 0.1)
    assert "so there is nothing to take a threshold from; train a run with --validation 0.1" in message
    assert "risk is 2.0; allowed: 0 < risk < 1" in refused("predict", run.path, *digit_files, "--risk", 2)
    assert "even without an error it takes" in refused("predict", run.path, *digit_files, "--risk", 0.01)
    message = refused("predict", run.path, *digit_files, "--risk", 0.4, "--samples", 4)
    assert "samples is 4 with risk, whose guarantee is from the run's own predictions" in message
    assert "leave samples out for 3 draws" in message


def test_a_coverage_adds_the_conformal_set(command, refused, runs, digit_files, tmp_path):
    run = RunFolder(runs / "ksn")
    sets = ks.conformal(*run.prediction("validation", "ensemble"), 0.8)(run.prediction("test", "ensemble")[0])
    found = command("predict", run.path, *digit_files, "--json", "--coverage", 0.8).json
    expected = [[str(i) for i in one.nonzero()[:, 0].tolist()] for one in sets[:10]]
    assert found["coverage"] == 0.8
    assert [row["set"] for row in found["predictions"]] == expected
    command("predict", run.path, *digit_files, "--coverage", 0.8, "-o", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["set"] for row in csv.DictReader(file)] == [" | ".join(names) for names in expected]
    message = refused("predict", runs / "plain", *digit_files, "--coverage", 0.9)
    assert "so there is nothing to fit sets on; train a run with --validation 0.1" in message
    assert "coverage is 1.5; allowed: 0 < coverage < 1" in refused("predict", run.path, *digit_files, "--coverage", 1.5)


def test_without_its_training_data_a_run_predicts_and_says_what_is_missing(
    command, refused, runs, digit_files, tmp_path
):
    shutil.copytree(runs / "ksn", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["training"]["data"] = "folder:gone[a]"
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match=r"no BatchNorm statistics for each draw: gone\[a\] is not a folder"):
        result = command("predict", tmp_path / "a", *digit_files, "--json")
    data = ks.data.load("digits", validation=0.1)
    p = ks.predict(ks.load(runs / "ksn"), ks.data.normalise(data.test.images[:10], data.mean, data.std), samples=3)
    confidences = [row["confidence"] for row in result.json["predictions"]]
    assert confidences == pytest.approx(p.confidence.tolist(), abs=1e-5)
    message = refused("predict", tmp_path / "a", *digit_files, "--coverage", 0.8)
    assert "gone[a] is not a folder" in message
    assert "The guarantee of coverage is for draws with BatchNorm statistics of their own" in message


def test_predictions_can_be_printed(command, runs, digit_files):
    result = command("predict", runs / "plain", *digit_files[:3])
    assert result.code == 0
    assert all(word in result.out for word in ("label", "confid", "entropy"))


def test_predictions_overwrite_nothing_and_name_what_is_wrong(refused, runs, digit_files, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    assert f"{out} exists; choose another name, or remove it first" in refused(
        "predict", runs / "ksn", *digit_files, "-o", out
    )
    assert out.read_text() == "mine"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    assert str(broken) in refused("predict", runs / "ksn", digit_files[0], broken)
    assert "samples is -1" in refused("predict", runs / "ksn", *digit_files, "--samples", "-1")
    assert "risk is 2.0" in refused("predict", runs / "ksn", *digit_files, "--risk", "2")
    absent = tmp_path / "absent" / "out.csv"
    assert f"{absent.parent} is no folder, so out.csv can't be written to it" in refused(
        "predict", runs / "ksn", *digit_files, "-o", absent
    )


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


def more_for(name, digit_files, tmp_path):
    return {"predict": digit_files, "report": ["-o", tmp_path / "report.html"]}.get(name, [])


@pytest.mark.parametrize("name", ["evaluate", "report", "predict", "info"])
def test_a_run_that_is_unfinished_or_none_is_said_to_be_so(name, refused, unfinished, digit_files, tmp_path):
    more, before = more_for(name, digit_files, tmp_path), contents(unfinished)
    answer = refused(name, unfinished, *more)
    missing = "result.json" if name in ("evaluate", "report") else "model.safetensors"
    assert f"{unfinished} has no {missing}: the run is not finished; continue it with --resume" in answer
    assert contents(unfinished) == before
    assert str(tmp_path / "absent") in refused(name, tmp_path / "absent", *more)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    assert str(tmp_path / "other") in refused(name, tmp_path / "other", *more)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("evaluate", "config.json"),
        ("info", "model.safetensors"),
        ("predict", "validation-ensemble.safetensors"),
        ("report", "test-mean.safetensors"),
    ],
)
def test_a_truncated_file_of_a_run_is_named(name, victim, refused, runs, digit_files, tmp_path):
    run = tmp_path / "a"
    shutil.copytree(runs / "ksn", run)
    (run / victim).write_bytes((run / victim).read_bytes()[:-100])
    before = contents(run)
    risk = ["--risk", 0.1] if name == "predict" else []
    assert str(run / victim) in refused(name, run, *more_for(name, digit_files, tmp_path), *risk)
    assert contents(run) == before
    assert not (tmp_path / "report.html").exists()


# Demo


@pytest.fixture
def quick_demo(monkeypatch):
    """The demo with networks of a quarter of its width."""

    def smaller(**settings):
        return Config(**{**settings, "width": 4, "samples": 2, "update_bn": 0})

    monkeypatch.setattr(train_commands, "Config", smaller)


def test_the_demo_trains_five_methods_and_writes_their_page(command, quick_demo, tmp_path):
    result = command("demo", "--epochs", 1, "--out", tmp_path / "demo")
    assert result.code == 0, result.err
    assert [f"{i}/5 {name}" in result.err for i, name in enumerate(train_commands.DEMO, 1)] == [True] * 5
    assert set(train_commands.DEMO) == {"baseline", "dropout", "bnn", "fksn", "ksn"}
    for label in ("Baseline", "MC-Drop 0.1", "Baseline DR 0.1", "BNN-E", "FKSN", "KSN-E channels"):
        assert re.search(rf"^ {label} +\d", result.out, re.MULTILINE)  # a row of its own, the name whole
    page = tmp_path / "demo" / "report.html"
    assert f"Report: {page}" in result.out
    assert "KSN-E channels" in page.read_text()
    assert all(RunFolder(tmp_path / "demo" / name).finished for name in train_commands.DEMO)


def test_a_second_demo_finds_a_name_of_its_own(command, quick_demo, tmp_path, monkeypatch):
    monkeypatch.setattr(train_commands, "DEMO", {"baseline": {}})
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    results = command("demo", "--epochs", 1, "--json", "--out", tmp_path / "demo").json
    assert [result["config"]["method"] for result in results] == ["baseline"]
    assert (tmp_path / "demo-3" / "report.html").exists()
    assert not any((tmp_path / "demo").iterdir())
