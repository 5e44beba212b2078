"""The paper's tables: what has to be run, what has been, and how it is shown."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import reproduction_worker as worker
import scipy.stats
import torch
from run_files import run_config, run_result
from typer.testing import CliRunner

from kernelseed import metrics
from kernelseed.cli.app import app
from kernelseed.core.predictive import Classification
from kernelseed.errors import ConfigError, StorageError
from kernelseed.models import resnet18
from kernelseed.reproduction import (
    DATA,
    HEADING,
    NETWORKS,
    OWN_ROWS,
    PRINTED,
    RICH,
    ROWS,
    Plan,
    claims_markdown,
    draw_figure,
    paper_table,
    published,
    read_log_probs,
    read_results,
    reproduce,
    running,
    table_latex,
    table_markdown,
    write_panels,
)
from kernelseed.reproduction.claims import verdicts
from kernelseed.reproduction.pairing import STUDENT, Comparison, Evidence, Trained, better, compare
from kernelseed.reproduction.result_files import evidence, read_result, write_result
from kernelseed.reproduction.running import finished_results
from kernelseed.training import RunFolder

TRAIN = "kernelseed.reproduction.running._train"
LOAD = "kernelseed.training.config.load"

BEST = {  # as the paper sets them in bold
    "mnist": ("KSN-P 1", "KSN-P 1", "FKSN 1", "FKSN 0.25", "FKSN 0.25"),
    "fashion-mnist": ("KSN-P 0.75", "KSN-P 0.75", "FKSN 0.75", "KSN-E 1", "KSN-E 1"),
    "cifar10": ("Baseline DR", "MC-Drop", "KSN-E 1", "KSN-E 1", "KSN-E 1"),
    "cifar100": ("Baseline DR", "KSN-E 0.75", "KSN-E 0.25", "KSN-E 0.25", "KSN-E 0.25"),
}


def result(config, metrics, trained=11_000_000, **changes):
    ways = {way: {"brier": 0.5, **dict(zip(PRINTED, metrics, strict=True))} for way in ("mean", "ensemble")}
    return run_result(
        config,
        metrics=ways,
        correct=dict.fromkeys(ways, f"{(1 << round(metrics[0] * 10_000)) - 1:x}"),
        parameters={"trained": trained, "stored": trained, "plain": 11_000_000, "relative": trained / 11_000_000},
        **changes,
    )


GOOD, BAD = (0.95, 0.1, 0.01, 0.02, 0.05), (0.5, 2.0, 0.5, 0.5, 0.9)


@pytest.fixture
def trainings(monkeypatch):
    """Trainings that take no time, and which they were."""
    made = []

    def fake(run, folder, data_dir, progress):
        made.append(run.name)
        RunFolder.create(folder, run_config(run.config))
        RunFolder(folder).write_result(result(run.config, GOOD))
        return RunFolder(folder).result()

    monkeypatch.setattr(TRAIN, fake)
    monkeypatch.setattr(RunFolder, "prediction", lambda self, part, way: (few_predictions(), torch.tensor([0, 1])))
    return made


def few_predictions():
    """Two images of three classes."""
    return Classification.from_draws(torch.tensor([[[0.7, 0.2, 0.1], [0.5, 0.0, 0.5]]]))


def config_of(network, data="fashion-mnist", **options):
    return Plan(data, networks=[network], **options).runs()[0].config


def test_eighteen_rows_from_twelve_networks():
    assert len(ROWS) == 18
    assert len({row.network for row in ROWS}) == 12
    assert {row.network for row in (*ROWS, *OWN_ROWS)} == set(NETWORKS)


@pytest.mark.parametrize("data", DATA)
def test_published_numbers_are_the_papers_rows_with_its_bold_ones_best(data):
    shown = paper_table(data, {})
    assert [line.row.name for line in shown.lines] == list(published(data))
    for key, best in zip(PRINTED, BEST[data], strict=True):
        assert [line.row.name for line in shown.lines if line.cells[key].paper_best] == [best]


@pytest.mark.parametrize("data", ["mnist", "cifar100"])  # the other two have the first one's sizes
def test_published_sizes_are_ours(data):
    """The Params column is reproduced by counting, to its printed digit; the paper contradicts itself once."""
    classes, channels = (100 if data == "cifar100" else 10), (3 if data.startswith("cifar") else 1)
    stem = "cifar" if data.startswith("cifar") else "imagenet"
    for row in ROWS:
        if row.network in ("vogn", "mc-drop"):
            continue
        with torch.device("meta"):
            net = config_of(row.network).build_method().build(resnet18(classes, channels, stem=stem))
        counted = sum(p.numel() for p in net.parameters()) / 1e6
        printed = published(data)[row.name]["parameters"] / 1e6
        misprint = data == "cifar100" and row.name in ("FKSN 1", "BNN-P", "BNN-E")
        assert counted == pytest.approx(printed, abs=0.15 if misprint else 0.0501), row.name


@pytest.mark.parametrize(("data", "stem"), [("mnist", (7, 7)), ("cifar100", (3, 3))])
def test_each_data_set_has_its_stem(data, stem):
    with torch.device("meta"):
        model = config_of("baseline", data).build_model(worker.images(data))
    assert model.conv1.kernel_size == stem
    assert model.fc.out_features == (10 if data == "mnist" else 100)


def test_every_config_is_the_papers():
    for run in Plan("fashion-mnist").runs():
        config = run.config
        assert (config.width, config.epochs, config.batch_size, config.samples) == (64, 5, 128, 10)
        papers = (config.schedule, config.warmup, config.num_plain_epochs) == ("constant", 0, 0)
        assert papers != run.network.startswith("ours-")
        assert config.build_method().lr == 1e-3
    assert {run.config.epochs for run in Plan("cifar100").runs()} == {100}
    assert {run.config.width for run in Plan("mnist", "small").runs()} == {16}
    assert config_of("ksn-0.25").options == {
        "delta": 0.25, "min_rank": 1, "init": "glorot", "over": "weights",
        "rho_offset": -5.0, "rho_lr": 1.0, "kl": "automatic", "prior": "paper",
    }  # fmt: skip
    assert config_of("bnn", kl="blundell").options["kl"] == "blundell"
    assert config_of("ours-bnn", kl="blundell").options == {}
    assert Plan("mnist", kl="blundell").folder == "paper-blundell/mnist"
    assert {run.config.method for run in Plan("mnist", kl="blundell").runs()} == {"ksn", "bnn"}
    assert {run.network for run in Plan("mnist", update_bn=64).runs()} == set(NETWORKS)
    assert {run.network for run in Plan("mnist", augment=True).runs()} == set(NETWORKS)
    many = Plan("mnist", augment=True, machine={"devices": 2})
    assert {run.network for run in many.runs()} == set(NETWORKS) - {"vogn"}
    assert {run.config.batch_size for run in many.runs()} == {64}
    assert Plan("mnist", augment=True).folder == "paper-augmented/mnist"
    assert config_of("vogn", vogn_samples=2).options["train_samples"] == 2
    assert config_of("ours-ksn").options == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "svhn"}, r"data is 'svhn'; allowed: mnist, fashion-mnist, cifar10, cifar100\."),
        ({"preset": "papr"}, r"preset is 'papr'; allowed: paper, medium, small\. Did you mean 'paper'\?"),
        ({"networks": ["ksn-.25"]}, r"rows is 'ksn-\.25'; allowed: baseline, .*Did you mean 'ksn-0\.25'\?"),
        ({"networks": []}, "rows is empty; allowed: baseline"),
        ({"seeds": 0}, "seeds is 0; it is a number of seeds: give at least 1"),
        ({"machine": {"devices": 3, "nodes": 2}}, "devices times nodes is 6; .* a batch of 128 images"),
    ],
)
def test_bad_plans_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Plan(**{"data": "mnist", **arguments})


def test_what_is_finished_is_not_trained_again(trainings, tmp_path):
    plan = Plan("mnist", "small", ["ksn-0.25", "baseline"], seeds=2)
    found = reproduce(plan, tmp_path)
    assert trainings == ["baseline-seed-0", "ksn-0.25-seed-0", "baseline-seed-1", "ksn-0.25-seed-1"]
    assert {network: len(results) for network, results in found.items()} == {"baseline": 2, "ksn-0.25": 2}
    reproduce(Plan("mnist", "small", ["baseline", "bnn"]), tmp_path)
    assert trainings[4:] == ["bnn-seed-0"]


def test_results_are_copied_as_they_come_and_count_as_done(trainings, tmp_path):
    reproduce(Plan("mnist", "small", ["baseline"]), tmp_path / "runs")
    reproduce(Plan("mnist", "small", ["baseline", "bnn"]), tmp_path / "runs", results=tmp_path / "kept")
    files = sorted((tmp_path / "kept/small/mnist").iterdir())
    assert [file.name for file in files] == [
        "baseline-seed-0.json", "baseline-seed-0.npz", "bnn-seed-0.json", "bnn-seed-0.npz"
    ]  # fmt: skip
    found = reproduce(Plan("mnist", "small", ["bnn"]), tmp_path / "elsewhere", results=tmp_path / "kept")
    assert list(found) == ["baseline", "bnn"], "a table has all that is there"
    assert trainings == ["baseline-seed-0", "bnn-seed-0"]


def test_a_stop_leaves_what_was_finished(tmp_path, monkeypatch, trainings):
    train = running._train

    def stop(run, *rest):
        if run.network == "bnn":
            raise KeyboardInterrupt
        return train(run, *rest)

    monkeypatch.setattr(running, "_train", stop)
    words = ["reproduce", "mnist", "--preset", "small", "--rows", "baseline,bnn", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, [*words, "--results", str(tmp_path / "kept")])
    assert ran.exit_code == 130
    assert "stopped; the same command goes on from here" in ran.output
    assert list(read_results(tmp_path / "kept/small/mnist")) == ["baseline"]
    assert "**0.9500**" in (tmp_path / "small/mnist/table.md").read_text()


def test_result_files_keep_the_log_probabilities(tmp_path):
    """Rounded, but the most probable class stays so: here two of them are alike as float16."""
    probs = torch.tensor([[0.30003, 0.30001, 0.3, 0.09996], [0.30001, 0.30003, 0.3, 0.09996], [0.0, 1.0, 0.0, 0.0]])
    labels = torch.tensor([0, 0, 1])
    prediction = Classification.from_draws(probs[None])
    write_result(tmp_path / "a-0.25.json", run_result(), {"mean": (prediction, labels)})
    log_probs, truth = read_log_probs(tmp_path / "a-0.25.npz")
    assert (list(log_probs), log_probs["mean"].dtype, truth.tolist()) == (["mean"], np.float16, [0, 0, 1])
    assert (log_probs["mean"] == log_probs["mean"].max(1, keepdims=True)).sum(1).tolist() == [1, 1, 1]
    np.testing.assert_allclose(np.exp(log_probs["mean"], dtype=float), probs, atol=5e-4)
    assert evidence(read_result(tmp_path / "a-0.25.json"), "mean").correct.tolist() == [True, False, True]
    (tmp_path / "a-0.25.npz").write_bytes(b"PK")
    with pytest.raises(StorageError, match=r"a-0\.25\.npz holds no log-probabilities"):
        evidence(read_result(tmp_path / "a-0.25.json"), "mean")


@pytest.mark.parametrize("kept", [None, "kept"])
def test_another_setting_in_its_place_is_refused_before_any_training(trainings, tmp_path, kept):
    results = kept and tmp_path / kept
    reproduce(Plan("mnist", "small", ["vogn"], vogn_samples=2), tmp_path / "runs", results=results)
    out = tmp_path / ("elsewhere" if kept else "runs")
    with pytest.raises(
        StorageError, match=r"vogn.*was made with options .*'train_samples': 2.*not with .*'train_samples': 10"
    ):
        reproduce(Plan("mnist", "small", ["baseline", "vogn"]), out, results=results)
    assert trainings == ["vogn-seed-0"]


def test_what_another_machine_finished_counts(trainings, tmp_path):
    reproduce(Plan("mnist", "small", ["baseline"]), tmp_path)
    reproduce(Plan("mnist", "small", ["baseline"], machine={"devices": 2}), tmp_path)
    assert len(trainings) == 1


def test_what_another_machine_began_is_refused(trainings, tmp_path):
    run = Plan("mnist", "small").run("baseline", 0)
    RunFolder.create(tmp_path / "small/mnist/baseline/seed-0", run_config(run.config))
    with pytest.raises(
        StorageError, match="was made with batch_size 128, devices 1, not with batch_size 64, devices 2"
    ):
        reproduce(Plan("mnist", "small", ["baseline"], machine={"devices": 2}), tmp_path)
    assert trainings == []


def test_which_trainings_are_the_same():
    """Whether BatchNorm is re-estimated is a question of the test."""
    plan, anew = Plan("mnist", "small"), Plan("mnist", "small", update_bn=64)
    for first in NETWORKS:
        alike = [second for second in NETWORKS if plan.run(first, 0).trains_as(anew.run(second, 0).config)]
        assert alike == [first]
    assert not Plan("mnist", "small", kl="blundell").run("bnn", 0).trains_as(plan.run("bnn", 0).config)
    one, two = (Plan("mnist", vogn_samples=draws).run("vogn", 0) for draws in (1, 2))
    assert not one.trains_as(two.config)


def test_one_training_is_not_run_twice(tmp_path, monkeypatch):
    few = worker.images("mnist")
    monkeypatch.setattr(LOAD, lambda *given, **options: few)
    reproduce(Plan("mnist", "small", ["bnn"]), tmp_path, progress=False)
    steps = []
    monkeypatch.setattr("kernelseed.training.steps.Training.training_step", lambda *given: steps.append(given))
    ((first,),) = reproduce(Plan("mnist", "small", ["bnn"]), tmp_path, progress=False).values()
    told = []
    again = Plan("mnist", "small", ["bnn"], update_bn=8)
    ((second,),) = reproduce(again, tmp_path, progress=False, tell=told.append).values()
    assert (steps, told) == ([], ["1/1 bnn-seed-0: to be tested"])
    assert second["config"] == again.run("bnn", 0).config.as_json()
    assert (second["seconds"], second["epochs"]) == (first["seconds"], 2)
    assert second["metrics"]["ensemble"] != first["metrics"]["ensemble"]
    places = ("small/mnist/bnn", "small-update-bn/mnist/bnn")
    assert len({RunFolder(tmp_path / place / "seed-0").weights.read_bytes() for place in places}) == 1


def test_a_training_that_has_begun_is_resumed(tmp_path, monkeypatch):
    resumed = []
    monkeypatch.setattr("kernelseed.training.trainer.train", lambda *given, resume, **rest: resumed.append(resume))
    plan = Plan("mnist", "small", ["baseline"])
    reproduce(plan, tmp_path)
    RunFolder.create(tmp_path / "small/mnist/baseline/seed-0", run_config(plan.run("baseline", 0).config))
    reproduce(plan, tmp_path)
    assert resumed == [False, True]


def test_what_trains_in_one_process_is_left_out_of_many(trainings, tmp_path):
    told = []
    reproduce(Plan("mnist", "small", machine={"devices": 2}), tmp_path, tell=told.append)
    assert len(trainings) == len(NETWORKS) - 1
    assert told[0] == "vogn trains in one process and is left out: run it by itself, on one device"
    with pytest.raises(ConfigError, match="trains in one process"):
        reproduce(Plan("mnist", "small", ["vogn"], machine={"devices": 2}), tmp_path)


def test_two_processes_make_one_table(tmp_path):
    """The same command on two devices: network after network, and rank zero alone writes and speaks."""
    command = [sys.executable, worker.__file__, "reproduce", "mnist", "--preset", "small", "--rows", "bnn,ours-bnn"]
    places = ["--out", tmp_path / "runs", "--results", tmp_path / "results"]
    machine = ["--devices", "2", "--accelerator", "cpu", "--strategy", "ddp"]
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    ran = subprocess.run(
        [*command, *places, *machine, "--json"],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert list(found) == ["bnn", "ours-bnn"]
    assert found == read_results(tmp_path / "results/small/mnist")
    assert {(each["config"]["devices"], each["config"]["batch_size"]) for (each,) in found.values()} == {(2, 64)}
    assert re.findall(r"\d/2 \S+-seed-0", ran.stderr) == ["1/2 bnn-seed-0", "2/2 ours-bnn-seed-0"]
    assert (tmp_path / "runs/small/mnist/table.md").exists()


def test_other_ranks_leave_files_alone(tmp_path, monkeypatch):
    """Whether the environment tells that this is one of them, or its training does."""
    told, plan = [], Plan("mnist", "small", ["baseline"], machine={"devices": 2})
    monkeypatch.setattr(TRAIN, lambda *given: {})
    assert reproduce(plan, tmp_path, results=tmp_path / "kept", keep=told.append) == {}
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 1)
    assert reproduce(plan, tmp_path, results=tmp_path / "kept", tell=told.append, keep=told.append) == {}
    assert told == []
    assert not (tmp_path / "kept").exists()


def test_says_how_long_is_left(trainings, tmp_path):
    told = []
    reproduce(Plan("mnist", "small", ["baseline", "ksn-1", "vogn"]), tmp_path, tell=told.append)
    assert told == [
        "1/3 baseline-seed-0",
        "2/3 ksn-1-seed-0: about 2 min, 13 min for all that is left",
        "3/3 vogn-seed-0: about 7 min, 7 min for all that is left",
    ]


def test_cells_marks_and_bold():
    results = {
        "baseline": [result(config_of("baseline"), GOOD)],
        "bnn": [result(config_of("bnn"), BAD, trained=22_300_000)],
        "vogn": [result(config_of("vogn", vogn_samples=1), GOOD)],
    }
    shown = paper_table("fashion-mnist", results)
    lines = {line.row.name: line for line in shown.lines}
    assert [cell.mark for cell in lines["Baseline"].cells.values()] == ["▲"] * 5
    assert [cell.mark for cell in lines["BNN-E"].cells.values()] == ["▼"] * 5
    assert [cell.mark for cell in lines["VOGN"].cells.values()] == ["▲", "†", "†", "†", "†"]
    assert [cell.best for cell in lines["Baseline"].cells.values()] == [True] * 5
    assert not any(cell.best for cell in lines["BNN-E"].cells.values())
    assert lines["KSN-E 1"].cells["nll"].ours is None
    assert lines["KSN-E 1"].cells["nll"].mark == ""
    assert (lines["VOGN"].aside, lines["Baseline"].aside) == ("1 draw a step", "")
    assert "| VOGN, 1 draw a step |" in table_markdown(shown)
    assert "an abacus, 2 threads a run" in shown.remarks[0]
    assert any(remark.startswith("Not run: ksn-0.25, mc-drop") for remark in shown.remarks)
    assert "| KSN-E |" not in table_markdown(shown)


def test_a_difference_within_chance_is_not_marked():
    """The paper's baseline: .9046. Two standard errors of a difference between two such shares are .0083."""
    for accuracy, mark in ((0.9046, ""), (0.9125, ""), (0.9135, "▲"), (0.8955, "▼")):
        shown = paper_table(
            "fashion-mnist", {"baseline": [result(config_of("baseline"), (accuracy, 0.26, 0.02, 0.08, 0.3))]}
        )
        assert [cell.mark for cell in shown.lines[0].cells.values()] == [mark, "", "", "", ""]
    assert [better("nll", *pair) for pair in ((1.0, 0.81), (1.0, 0.79), (0.79, 1.0))] == [0, -1, 1]  # a fifth


def test_claims_are_judged_by_the_numbers():
    results = {
        "ksn-0.25": [result(config_of("ksn-0.25"), (0.86, 0.4, 0.02, 0.05, 0.2))],
        "bnn": [result(config_of("bnn"), (0.90, 0.39, 0.04, 0.05, 0.2))],
    }
    shown = paper_table("fashion-mnist", results)
    judged = {(v.claim.text, v.key): v for v in verdicts(shown)}
    smaller = "... with .15 of its parameters"
    assert (judged[smaller, "accuracy"].in_paper, judged[smaller, "accuracy"].here) == ("yes", "no")
    assert [judged[smaller, key].here for key in ("nll", "ece", "ace")] == ["even", "yes", "even"]
    assert judged["KSN is more accurate than BNN", "accuracy"].here == ""
    assert all(verdict.here == "" for verdict in judged.values() if verdict.claim.own)
    page = claims_markdown([shown, paper_table("mnist", {})])
    assert "| claim | rows | metric | Fashion-MNIST | MNIST |" in page
    assert "| **no**: 0.8600 / 0.9000 (1 seed); paper: yes | paper: yes |" in page
    assert "VOGN" not in page  # which was not run


@pytest.mark.parametrize(("accuracies", "verdict"), [((0.9, 0.88), 1), ((0.88, 0.9), -1), ((0.9, 0.899), 0)])
def test_accuracies_are_compared_image_by_image(accuracies, verdict):
    """Against the mean and the standard error of the differences, one by one."""
    chosen = torch.Generator().manual_seed(0)
    right = [(torch.rand(10_000, generator=chosen) < accuracy).int() for accuracy in accuracies]
    difference = (right[0] - right[1]).double()
    error = difference.std(correction=0) / 100
    assert (difference.mean() > 2 * error).int() - (difference.mean() < -2 * error).int() == verdict
    assert compare("accuracy", *(trained(Evidence(given.bool().numpy())) for given in right)).better == verdict


def made_up(accuracy, seed, classes=5, count=2000, sharpness=2.0):
    """Evidence of a classifier that is right so often, with log-probabilities as float16."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, classes, count)
    top = np.where(draws.random(count) < accuracy, labels, (labels + 1) % classes)
    logits = draws.normal(size=(count, classes))
    logits[np.arange(count), top] = logits.max(1) + sharpness * draws.random(count)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return Evidence.from_log_probs(log_probs.astype(np.float16), labels)


@pytest.mark.parametrize("key", ["accuracy", "nll", "ece", "ace"])
def test_a_metric_is_the_mean_of_what_images_contribute(key):
    found = made_up(0.8, 0)
    probs = torch.from_numpy(found.log_probs.astype(np.float64)).softmax(1)
    assert found.parts(key).mean() == pytest.approx(
        getattr(metrics, key)(probs, torch.from_numpy(found.labels)), abs=1e-12
    )


@pytest.mark.parametrize("key", ["nll", "ece"])
def test_the_standard_error_is_that_of_the_bootstrap(key):
    """Two thousand images: the errors agree within a fifth, where the signs of the bins' gaps hardly change."""
    found = made_up(0.8, 0, sharpness=4.0)
    draws = np.random.default_rng(0)
    resampled = []
    for _ in range(300):
        i = draws.integers(0, 2000, 2000)
        resampled.append(Evidence.from_log_probs(found.log_probs[i], found.labels[i]).parts(key).mean())
    assert found.parts(key).std() / 2000**0.5 == pytest.approx(np.std(resampled), rel=0.2)


def trained(*found, **metrics):
    """Trainings of the seeds 0, 1, ..., from their evidence."""
    return {
        seed: Trained({"accuracy": each.correct.mean() if each else 0.5, **metrics}, each)
        for seed, each in enumerate(found)
    }


def test_a_difference_within_the_spread_of_seeds_is_chance():
    """By each seed's images alone the first is far better or far worse; the seeds contradict each other."""
    high, low = (Evidence(np.arange(10_000) < count) for count in (9_500, 9_000))
    assert compare("accuracy", trained(high), trained(low)) == Comparison(1, (0.95, 0.9), 1)
    assert compare("accuracy", trained(high, low), trained(low, high)).better == 0
    assert compare("accuracy", trained(high, high), trained(low, low)).better == 1
    middle = Evidence(np.arange(10_000) < 9_200)
    # differences 500 and 100: mean 300, its standard error 200 by seeds alone
    assert compare("accuracy", trained(high, middle), trained(low, Evidence(np.arange(10_000) < 9_100))).better == 0


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_two_rows_that_differ_by_chance_alone_are_told_apart_in_one_case_of_twenty(seeds):
    """Accuracies that move by .008 from one training to the next, on the same images. Failure budget: 4.4 errors."""
    draws = np.random.default_rng(seeds)

    def row():
        return trained(*(Evidence(draws.random(10_000) < 0.9 + 0.008 * draws.normal()) for _ in range(seeds)))

    apart = sum(compare("accuracy", row(), row()).better != 0 for _ in range(400))
    assert apart <= 20 + 4.4 * 20**0.5
    assert apart >= 1


def test_the_table_of_students_t_is_scipys():
    expected = [scipy.stats.t.ppf(0.975, freedom) for freedom in range(1, len(STUDENT) + 1)]
    np.testing.assert_allclose(STUDENT, expected, rtol=5e-4)


def test_what_a_result_does_not_keep_is_not_compared():
    older = Evidence(np.ones(10_000, bool))  # a seed that does not keep what it needs is left out
    one, other = made_up(0.5, 0), made_up(0.5, 1)
    first, second = trained(older, one, nll=1.0), trained(one, other, nll=2.0)
    assert compare("nll", first, second).seeds == 1
    assert compare("nll", first, second) == compare("nll", {1: first[1]}, {1: second[1]})
    assert compare("nll", trained(older, nll=1.0), trained(other, nll=1.3)) == Comparison(1, (1.0, 1.3), 1)
    assert compare("mce", trained(one, mce=1.0), trained(other, mce=0.9)).better == 0
    assert compare("accuracy", {}, trained(other)) is None


def test_rows_are_compared_seed_by_seed():
    """The second has a seed more, which does not count, and their order does not matter."""
    high, low = (Evidence(np.arange(10_000) < count) for count in (9_500, 9_000))
    first, second = trained(high, low), trained(high, low, high)
    assert compare("accuracy", first, second) == Comparison(0, (0.925, 0.925), 2)
    assert compare("accuracy", first, dict(reversed(second.items()))) == Comparison(0, (0.925, 0.925), 2)
    assert compare("accuracy", {1: first[1]}, {0: second[0]}) is None


def test_the_same_images_tell_smaller_differences():
    """Thirty images more of ten thousand: nothing between strangers, something where all others are the same."""
    results = {n: [result(config_of(n), (a, *GOOD[1:]))] for n, a in (("ksn-0.25", 0.903), ("bnn", 0.9))}
    lines = {line.row.name: line for line in paper_table("mnist", results).lines}
    assert better("accuracy", 0.903, 0.9) == 0
    assert compare("accuracy", lines["KSN-E 0.25"].trained, lines["BNN-E"].trained).better == 1
    assert _smaller_and_accurate(results) == "yes"
    del results["bnn"][0]["correct"]  # as in results of an older version
    assert _smaller_and_accurate(results) == "even"


def _smaller_and_accurate(results):
    claims = {(v.claim.text, v.key): v.here for v in verdicts(paper_table("mnist", results))}
    return claims["... with .15 of its parameters", "accuracy"]


def test_seeds_are_averaged_with_their_spread():
    results = {"baseline": [result(config_of("baseline"), metrics) for metrics in (GOOD, BAD)]}
    cell = paper_table("mnist", results).lines[0].cells["accuracy"]
    assert cell.ours == pytest.approx(0.725)
    assert cell.spread == pytest.approx(0.3182, abs=1e-4)
    results["bnn"] = [result(config_of("bnn"), BAD)]
    shown = paper_table("mnist", results)
    assert "**0.7250**▼±0.3182 (0.9" in table_markdown(shown)
    assert RICH.cells(shown.lines[0])[5].startswith("[bold]0.7250[/]▼\n±0.3182\n[dim]0.9")
    assert "±: the standard deviation over seeds." in shown.remarks
    assert "With fewer seeds: bnn (1)." in shown.remarks


def test_notes_are_about_the_results():
    def said(**options):
        return " ".join(paper_table("mnist", {"bnn": [result(config_of("bnn", **options), GOOD)]}).notes)

    assert "min(1, N / number of weights)" in said()
    assert "no augmentation" in said()
    assert "min(1, N / number of weights)" not in said(kl="blundell")
    assert "2^(M-i)" in said(kl="blundell")
    assert "crops and flips" in said(augment=True)
    assert "running statistics" in said()
    assert "re-estimated for each draw from 512 training images" in said(update_bn=512)


def test_a_changed_source_is_seen():
    def said(commit):
        return paper_table("mnist", {"bnn": [result(config_of("bnn"), GOOD, commit=commit)]}).remarks[0]

    assert said("0123456789+").endswith("commit 0123456+.")
    assert said(None).endswith("commit unknown.")


def test_renderings_have_every_cell():
    """Of those rows that were run; the others are left out."""
    names = ("baseline", "ksn-1", "ours-bnn")
    shown = paper_table("fashion-mnist", {name: [result(config_of(name), GOOD)] for name in names})
    text = table_markdown(shown)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 3 + 2 + 2
    assert {row.count("|") for row in rows} == {len(HEADING) + 1}
    assert "| Baseline |  |  | 11.0M (11.2M) | 1.00 (1.00) | **0.9500**▲ (0.9046) |" in text
    assert (
        "| KSN-E | 1.00 |  | 11.0M (13.6M) | 1.00 (1.22) | **0.9500**▲ (0.9048) | **0.1000**▲ (0.2708) | "
        "**0.0100**▲ (0.0232) | **0.0200**▲ (**0.0338**) | **0.0500**▲ (**0.0708**) |" in text
    )
    tex = table_latex(shown)
    assert tex.isascii()
    assert len(re.findall(r"^[A-Z].*\\\\", tex, re.M)) == 1 + 3 + 2
    assert r"Baseline &  &  & 11.0M & 1.00 & \textbf{0.9500}$^{+}$ & " in tex
    assert r" &  &  & {\tiny(11.2M)} & {\tiny(1.00)} & {\tiny(0.9046)} & " in tex
    words = re.sub(r"\$[^$]*\$|\\[%&_]|\\textasciicircum{}", "", tex.split(r"\caption")[1])
    assert not re.search(r"[%&_^$`]", words)
    assert r"\texttt{{-}{-}kl blundell}" in words
    assert RICH.cells(shown.lines[0])[5] == "[bold]0.9500[/]▲\n[dim]0.9046 [/]"


def test_the_figure_is_svg_and_png_with_the_same_bytes_again(tmp_path):
    results = {"mnist": {"baseline": [result(config_of("baseline"), GOOD)]}}
    figure = draw_figure(results)
    assert [len(axis.lines) for axis in figure.axes] == [32, 24, 24, 24]
    paths = write_panels(figure, tmp_path / "figure")
    assert [path.name for path in paths] == ["figure.svg", "figure.png"]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_panels(draw_figure(results), tmp_path / "figure")] == first


def test_the_figure_needs_matplotlib_and_the_table_does_not(trainings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["reproduce", "mnist", "--preset", "small", "--rows", "baseline", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "no figure: matplotlib is not installed" in " ".join(ran.output.split())
    assert (tmp_path / "small/mnist/table.md").exists()


def test_the_command_shows_and_writes_the_table(trainings, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["reproduce", "mnist", "--preset", "small", "--rows", "baseline,ksn-0.25", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert trainings == ["baseline-seed-0", "ksn-0.25-seed-0"]
    assert "0.9500" in ran.output
    assert "0.9894" in ran.output
    assert max(len(line) for line in ran.output.splitlines() if not line.startswith("Wrote")) <= 80
    files = sorted(path.name for path in (tmp_path / "small/mnist").iterdir() if path.is_file())
    assert files == ["table.md", "table.tex"]
    assert sorted(path.name for path in (tmp_path / "small").glob("figure*")) == ["figure-3.png", "figure-3.svg"]


def test_a_table_from_real_trainings(tmp_path, monkeypatch):
    """The whole way: the table from the result files is the one from the run folders."""
    few = worker.images("mnist")
    monkeypatch.setattr(LOAD, lambda *given, **options: few)
    monkeypatch.setattr("kernelseed.cli.reproduce_command._figure", lambda *given: [])  # has a test of its own
    words = ["reproduce", "mnist", "--preset", "small", "--rows", "ksn-0.25,vogn", "--vogn-samples", "1", "-q"]
    ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--results", str(tmp_path / "kept")])
    assert ran.exit_code == 0, ran.output
    found = read_results(tmp_path / "kept/small/mnist")
    for network, (other,) in finished_results(tmp_path / "small/mnist").items():
        (kept,) = found[network]
        assert {**kept, "correct": other["correct"]} == {**other, "log_probs": kept["log_probs"]}
    lines = [line for line in paper_table("mnist", found).lines if line.cells["nll"].ours is not None]
    assert [line.row.name for line in lines] == ["VOGN", "KSN-E 0.25", "KSN-P 0.25"]
    for line in lines:
        assert line.trained[0].evidence.correct.mean() == line.cells["accuracy"].ours
    assert "| VOGN, 1 draw a step |" in (tmp_path / "small/mnist/table.md").read_text()
