"""Pruning of runs: the curve, the smaller network as a run, the command, and the section of the report."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelseed as ks
from kernelseed import cli
from kernelseed.core import needed_parameters
from kernelseed.errors import ArgumentError, ConfigError, PathExistsError, StorageError
from kernelseed.report import pruning_picture, read, render
from kernelseed.report.pruning_section import points_of, pruning_figures
from kernelseed.training import Config, RunFolder, describe_run, evaluate, prune_run, pruning_curve, summarise, trainer

SMALL = {"data": "digits", "model": "mlp", "model_args": {"widths": [12]}, "epochs": 1, "samples": 2, "batch_size": 512}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trained once for all."""
    folder = tmp_path_factory.mktemp("runs")
    ksn = Config(**SMALL, options={"delta": 0.25, "over": "weights"}, validation=0.2)
    trainer.train(ksn, folder / "ksn", progress=False)
    trainer.train(Config(**SMALL, method="bnn"), folder / "bnn", progress=False)
    trainer.train(Config(**SMALL, method="baseline"), folder / "plain", progress=False)
    return folder


@pytest.fixture(scope="module")
def curve(runs):
    return pruning_curve(runs / "ksn", sparsities=(0.9, 0.5), shares=(0.6,))


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command; its exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kernelseed", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_a_curve_is_what_predict_says_of_each_network(runs, curve):
    folder = RunFolder(runs / "ksn")
    assert folder.found()["pruning"] == json.loads(json.dumps(curve))
    assert curve["split"] == "validation"
    assert [(p["what"], p["by"], p["share"]) for p in curve["points"]] == [
        ("nothing", "", 0.0),
        *(("weights", by, share) for by in ("snr", "magnitude", "random") for share in (0.5, 0.9)),
        *(("channels", by, 0.6) for by in ("snr", "magnitude", "random")),
    ]
    net, config = folder.network(), folder.training_config()
    data = config.load_data()
    x = ks.data.normalise(data.validation.images, data.mean, data.std)
    for point, smaller in ((curve["points"][4], ks.prune(net, 0.9, "magnitude")), (curve["points"][0], net)):
        for way, samples in (("mean", 0), ("ensemble", 2)):
            expected = summarise(ks.predict(smaller, x, samples), data.validation.labels)
            assert point["metrics"][way] == pytest.approx(expected, abs=1e-5)
    whole, shrunk = curve["points"][0]["relative"], curve["points"][-1]["relative"]
    assert 0.5 * whole < shrunk <= 0.6 * whole


def test_a_mean_field_network_needs_two_numbers_for_each_weight_that_is_left(runs):
    found = pruning_curve(runs / "bnn", sparsities=(0.75,))
    weights, biases = 64 * 12 + 12 * 10, 22
    assert found["split"] == "test"
    assert [p["parameters"] for p in found["points"]] == [2 * weights + biases, *3 * [weights // 2 + biases]]
    assert needed_parameters(nn.Linear(3, 4)) == 16


def test_the_smaller_network_is_a_run_like_any_other(runs, tmp_path):
    result = prune_run(runs / "ksn", tmp_path / "a", sparsity=0.5, budget=0.7)
    folder = RunFolder(tmp_path / "a")
    net = ks.load(tmp_path / "a")
    zeros = sum(int((w == 0).sum()) for w in net.mean().weights.values())
    assert zeros == round(0.5 * 888)
    assert needed_parameters(net) <= 0.7 * 910
    assert result["labels"]["mean"] == "KSN-P δ=0.25, budget 0.7, 0.5 zeros"
    assert result["parameters"]["relative"] == needed_parameters(net) / 910
    assert result["pruned"] == {"run": str(runs / "ksn"), "sparsity": 0.5, "budget": 0.7, "by": "snr"}
    again = evaluate(tmp_path / "a")
    assert again["metrics"]["ensemble"] == pytest.approx(result["metrics"]["ensemble"], abs=1e-5)
    described = describe_run(tmp_path / "a")
    assert sum(layer["zeros"] for layer in described["layers"]) == zeros
    assert described["layers"][0]["distribution"] == "KernelSeed, pruned"
    assert folder.metrics() == RunFolder(runs / "ksn").metrics()
    assert folder.has_prediction("validation", "ensemble")
    assert "0.5 zeros" in render(read([tmp_path / "a"]))
    assert trainer.train(None, tmp_path / "a", resume=True, progress=False) == folder.result()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ArgumentError, "sparsity and budget are None; say how much to remove"),
        ({"sparsity": 1.2}, ArgumentError, "sparsity is 1.2"),
        ({"budget": 3}, ArgumentError, r"budget is 3, 2,730 of the plain network's 910 parameters"),
        ({"sparsity": 0.5, "by": "luck"}, ArgumentError, "by is 'luck'; allowed are"),
    ],
)
def test_what_can_not_be_done_leaves_nothing_behind(runs, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        prune_run(runs / "ksn", tmp_path / "a", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_curve_begins_where_the_network_is_and_ends_where_no_seed_can_go(runs, tmp_path):
    prune_run(runs / "bnn", tmp_path / "sparse", sparsity=0.75)
    found = pruning_curve(tmp_path / "sparse", sparsities=(0.5, 0.75, 0.9))
    assert {p["share"] for p in found["points"] if p["what"] == "weights"} == {0.75, 0.9}
    least = [p["share"] for p in pruning_curve(runs / "ksn", sparsities=(), shares=(0.9, 0.01))["points"]]
    assert least == [0.0, 0.9, 0.9, 0.9]


def test_a_pruned_run_says_what_its_file_holds(runs, tmp_path):
    counts = prune_run(runs / "bnn", tmp_path / "a", sparsity=0.75)["parameters"]
    net = RunFolder(tmp_path / "a").network()
    assert counts["stored"] == sum(p.numel() for p in net.parameters()) > needed_parameters(net) == counts["trained"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--picture", "kept.svg"], "kept.svg exists; choose another name, or remove it first"),
        (["--picture", "nowhere/a.svg"], "nowhere is no folder, so a.svg can't be written to it; make it first"),
        (["--split", "foo"], "split is 'foo'; allowed are 'test', 'validation'"),
        (["--samples", -4], "samples is -4"),
        (["--no-curve", "--picture", "a.svg"], "curve is off, so there is nothing to draw"),
    ],
)
def test_what_is_wrong_with_the_curve_is_found_before_the_run_is_written(
    arguments, message, command, runs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("kept.svg").write_text("mine")
    code, _, err = command("prune", runs / "ksn", "--sparsity", 0.5, "--out", "a", *arguments)
    assert code != 0
    assert message in " ".join(err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["kept.svg"]
    assert Path("kept.svg").read_text() == "mine"


def test_a_curve_in_another_setting_replaces_the_last_one_with_a_warning(runs, tmp_path):
    prune_run(runs / "bnn", tmp_path / "a", sparsity=0.5)
    pruning_curve(tmp_path / "a", sparsities=(), samples=1)
    with pytest.warns(UserWarning, match=r"pruning.json was made with samples 1, and now it is 2: what was found then"):
        pruning_curve(tmp_path / "a", sparsities=(), samples=2)


def test_runs_that_can_not_be_pruned(runs, tmp_path):
    with pytest.raises(StorageError, match=r"is a run of the method 'baseline', whose network has no weight distrib"):
        pruning_curve(runs / "plain")
    with pytest.raises(ConfigError, match=r"validation is 0.0 in .*, so there is nothing to draw the curve on"):
        pruning_curve(runs / "bnn", split="validation")
    with pytest.raises(ArgumentError, match=r"split is 'train'; allowed are 'test', 'validation'"):
        pruning_curve(runs / "bnn", split="train")
    with pytest.raises(ArgumentError, match=r"net has no seed whose channels could be dropped"):
        prune_run(runs / "bnn", tmp_path / "a", budget=0.2)
    with pytest.raises(PathExistsError):
        prune_run(runs / "bnn", runs / "ksn", sparsity=0.2)


def test_the_command(command, runs, tmp_path):
    code, out, err = command("prune", runs / "ksn", "--sparsity", 0.9, "--by", "magnitude", "--out", tmp_path / "a")
    assert code == 0, err
    assert "random    99% zeros" in out
    assert "20% of size" in out
    assert "0.9 zeros" in out
    assert (runs / "ksn" / "pruning.svg").read_text().startswith("<svg ")
    code, out, _ = command("prune", runs / "ksn", "--sparsity", 0.9, "--no-curve", "--out", tmp_path / "b", "--json")
    assert list(json.loads(out)) == ["result"]
    code, out, err = command("info", tmp_path / "b")
    assert "Zeros" in out
    for wrong in (["--sparsity", 1.2, "--out", tmp_path / "c"], ["--out", tmp_path / "c"], ["--sparsity", 0.5]):
        code, out, err = command("prune", runs / "ksn", *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert not (tmp_path / "c").exists()


def test_the_page_has_a_section_where_a_run_holds_a_curve(runs, curve):
    records = read([runs / "ksn", runs / "plain"])
    assert ["pruning" in record.found for record in records] == [True, True, False]
    page = render(records)
    section = page[page.index('<section id="pruning">') : page.index('<section id="images">')]
    assert section.count("<figure>") == 8  # error and NLL, zeros and size, by draws and by the mean
    assert '<a href="#pruning">' in page
    assert 'id="pruning"' not in render(records[2:])


def test_the_figures_go_through_the_points(curve):
    points = points_of(curve, "mean")
    assert points[0]["error"] == 1 - curve["points"][0]["metrics"]["mean"]["accuracy"]
    drawn = pruning_figures(points)
    assert len(drawn) == 4
    assert all("signal-to-noise, magnitude, random" in str(one) for one in drawn)
    whole_and_pruned = pruning_figures([p for p in points if p["what"] != "channels"])
    assert len(whole_and_pruned) == 2
    assert pruning_picture(curve).count("<svg") == 5


def test_a_curve_that_is_no_curve_is_answered(runs, tmp_path):
    folder = RunFolder(runs / "bnn")
    (folder.path / "pruning.json").write_text(
        '{"split": "test", "labels": {"mean": "a", "ensemble": "b"}, "points": []}'
    )
    with pytest.raises(StorageError, match="points"):
        folder.found()
    (folder.path / "pruning.json").unlink()


def test_a_fixed_seed_network_has_no_order_by_signal_to_noise(tmp_path):
    torch.manual_seed(0)
    trainer.train(Config(**SMALL, method="fksn"), tmp_path / "fksn", progress=False)
    found = pruning_curve(tmp_path / "fksn", sparsities=(0.5,), shares=(0.6,))
    assert [(p["what"], p["by"]) for p in found["points"]] == [
        ("nothing", ""), ("weights", "magnitude"), ("weights", "random"),
        ("channels", "snr"), ("channels", "magnitude"), ("channels", "random"),
    ]  # fmt: skip
