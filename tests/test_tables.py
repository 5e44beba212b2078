"""Tables: CSV files in, standardised regression and classification, every method, and what a run of one leaves."""

import csv
import json
import math
import os
import random
from dataclasses import replace

import pytest
import torch
from test_training import killed, same_run
from typer.testing import CliRunner

import kernelseed as ks
from kernelseed import metrics, report
from kernelseed.cli.app import app
from kernelseed.data import Batches, load
from kernelseed.errors import ArgumentError, ConfigError, DataError, KernelseedError
from kernelseed.training import Config, RunFolder, evaluate, predict_files, train

COLOURS = ("red", "green", "blue")


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)


def write(path, rows, heading="size,colour,price"):
    path.write_text("\n".join([heading, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def houses(count=60):
    """size, colour and a price of 1000 + 50 size, 200 more for a red one, with noise of 10."""
    rng = random.Random(0)
    rows = []
    for i in range(count):
        size, colour = round(rng.uniform(1, 9), 3), COLOURS[i % 3]
        rows.append((size, colour, round(1000 + 50 * size + 200 * (colour == "red") + rng.gauss(0, 10), 3)))
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("table") / "houses.csv", houses())


@pytest.fixture(scope="module")
def small(table):
    """Three steps an epoch."""
    return Config(
        data=f"csv:{table}", target="price", epochs=3, batch_size=16, samples=2, options={"lr": 0.01},
        model_args={"widths": [8]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    torch.set_num_threads(1)
    run = RunFolder(tmp_path_factory.mktemp("runs") / "a")
    train(replace(small, validation=0.2, epochs=4), run.path, progress=False)
    return run


# Reading


def test_a_table_is_split_encoded_and_standardised_by_its_training_rows(table):
    data = load(f"csv:{table}", target="price", test=0.25, validation=0.2, seed=3)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [36, 9, 15]
    assert data.table.features == ("size", "colour=blue", "colour=green", "colour=red")
    every = torch.cat([part.inputs for part in (data.train, data.validation, data.test)])
    assert sorted(every[:, 0].tolist()) == sorted(size for size, _, _ in houses())
    colours = {(row[0], round(row[-1], 3)): row[1] for row in houses()}
    for part in (data.train, data.test):
        for row, price in zip(part.inputs.tolist(), part.targets.double().flatten().tolist(), strict=True):
            words = [key for key in colours if key[0] == row[0] and abs(key[1] - price) < 1e-3]
            assert row[1:] == [float(colours[words[0]] == colour) for colour in sorted(COLOURS)]
    x, y = next(iter(Batches(data.train, data.mean, data.std, 36)))
    assert x.dtype == y.dtype == torch.float32
    assert torch.allclose(x.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(x.std(0, correction=0), torch.ones(4), atol=1e-5)
    assert data.table.target.mean == pytest.approx(y.double().mean().item(), rel=1e-6)
    assert data.table.target.std == pytest.approx(y.double().std(correction=0).item(), rel=1e-6)
    again, other = (load(f"csv:{table}", target="price", test=0.25, seed=seed) for seed in (3, 4))
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert not torch.equal(other.test.inputs, data.test.inputs)


def test_semicolons_quotes_a_mark_of_order_and_another_file_to_test_on(table, tmp_path):
    text = "\ufeff" + table.read_text().replace(",", ";").replace("red", '"red"').replace("\n", "\r\n")
    (tmp_path / "other.csv").write_bytes(text.encode())
    one, two = load(f"csv:{table}", target="price"), load(f"csv:{tmp_path / 'other.csv'}", target="price")
    assert torch.equal(one.train.inputs, two.train.inputs)
    (tmp_path / "quoted.csv").write_text('"price, in EUR";"area, in m2";rooms\n1;2;3\n4;5;6\n7;8;9\n1;1;1\n')
    data = load(f"csv:{tmp_path / 'quoted.csv'}", target="rooms", test=0.4)
    assert data.table.features == ("price, in EUR", "area, in m2")
    more = write(tmp_path / "test.csv", [("extra", 1300, "red", 2.5)], "note,price,colour,size")
    data = load(f"csv:{table}", target="price", test=str(more))
    assert len(data.train) == 60
    assert data.test.inputs.tolist() == [[2.5, 0, 0, 1]]
    assert data.test.targets.tolist() == [[1300.0]]


def test_classes_are_words_or_numbers_as_written(table, tmp_path):
    data = load(f"csv:{table}", target="colour", test=0.1)
    assert data.class_names == ("blue", "green", "red")
    assert data.table.features == ("size", "price")
    assert data.test.targets.bincount().tolist() == [2, 2, 2]
    path = write(tmp_path / "a.csv", [(i, 10 * (i % 3), "x") for i in range(12)], "a,b,c")
    assert load(f"csv:{path}", target="b", task="classification", ignore=["c"]).class_names == ("0", "10", "20")
    assert load(f"csv:{path}", target="b").class_names == ()


def rows(*changed, count=8):
    """A table with some rows changed."""
    return [*(",".join(map(str, row)) for row in houses(count)), *changed]


BAD = {
    "empty": ("", "is empty; give a table"),
    "no rows": ("size,colour,price\n", "has no rows under the names"),
    "numbers for names": ("1,2,3\n1,2,3\n", "begins with a row of numbers"),
    "no name": (",size,price\n1,2,3\n", r"no name for column 1; .*index=False"),
    "twice": ("size,size,price\n1,2,3\n", "has the column 'size' twice"),
    "no target": ("size,colour\n" + "1,2\n" * 9, "no column 'price' to be the target; it has size, colour"),
    "target alone": ("price\n" + "1\n2\n" * 9, "has the target 'price' alone"),
    "one row": ("size,colour,price\n1,red,3\n", "has 1 rows; at least 4"),
    "text in numbers": (rows("big,red,1"), "in row 10 'big' in column 'size', whose other cells are numbers"),
    "numbers in text": (rows("1,7,1"), "in row 10 the number '7' in column 'colour', whose first cell is a word"),
    "missing": (rows("1,,1"), "in row 10 nothing in column 'colour'; missing values are not guessed"),
    "na": (rows("NA,red,1"), "in row 10 'NA' in column 'size'"),
    "nan target": (rows("1,red,nan"), "in row 10 'nan' in column 'price'; numbers must be finite"),
    "inf": (rows("1,red,-inf"), "'-inf' in column 'price'; numbers must be finite"),
    "huge": (rows("1e300,red,1"), "'1e300' in column 'size'; numbers must be finite and at most 1e"),
    "decimal comma": (["1;a;\"3,5\"", *["2;a;3"] * 9], "'3,5' in column 'price'; write numbers with a point"),
    "short row": (rows("1,red"), "has 2 cells in row 10, and 3 columns"),
    "constant": (["1,red,5"] * 9, "has 5 in every training row of the target 'price'"),
    "far away": ([f"1,red,{1e9 + 1000 * i}" for i in range(9)], "float32 can't tell such numbers apart"),
    "people": ([f"1,p{'abcdefghijklmnop'[i]},{i}" for i in range(16)], "16 different words .*--ignore colour"),
    "quote": (rows('1,"red,1'), "is no CSV file"),
    "latin": (("\n".join(["size,colour,price", *rows()]) + "\n1,gr\xfcn,1").encode("latin-1"), "is no text in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_table_that_can_not_be_is_one_line_and_leaves_no_folder(kind, tmp_path):
    content, message = BAD[kind]
    if isinstance(content, list):
        separator = ";" if ";" in content[0] else ","
        content = "\n".join([separator.join(("size", "colour", "price")), *content])
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as raised:
        train(Config(data=f"csv:{path}", target="price"), tmp_path / "run", progress=False)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": None}, "without a target; name the column to predict: --target"),
        ({"data": "digits"}, "target is 'price', but data is 'digits', and no table"),
        ({"task": "ranking"}, "task is 'ranking'; allowed: regression, classification"),
        ({"test": 1.5}, "test is 1.5; .* 0 < test < 1, or the path"),
        ({"augment": True}, "augment is for images"),
        ({"model": "resnet18", "model_args": {}}, "model is 'resnet18', which takes images, and data is a table"),
        ({"size": 8}, "size, channels and skip_unreadable are for folder:PATH only"),
        ({"ignore": "price"}, "ignore has 'price', which is the target"),
        ({"ignore": "wealth"}, "no column 'wealth'; it has size, colour, price"),
        ({"task": "regression", "target": "colour"}, "words in the target 'colour', such as 'red'"),
        ({"task": "classification"}, "60 different values in the 60 rows of the target 'price'; that is too many"),
        ({"data": "csv:"}, "csv: has no path"),
        ({"data": "csv:nowhere.csv"}, "nowhere.csv is not there"),
        ({"test": "nowhere.csv"}, "nowhere.csv is not there"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_a_table_that_can_not_be_are_one_line(given, message, small, tmp_path):
    settings = {**small.as_json(), **given}
    with pytest.raises(KernelseedError, match=message) as raised:
        train(Config.from_json(settings), tmp_path / "run", progress=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_too_large_or_a_pipe_is_refused_before_it_is_read(tmp_path, monkeypatch, table):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is no regular file"):
        load(f"csv:{tmp_path / 'pipe'}", target="y")
    monkeypatch.setattr("kernelseed.data.csv_file.memory_limit", lambda: 1000)
    with pytest.raises(DataError, match="there is memory for"):
        load(f"csv:{table}", target="price")


# Mathematics


def test_a_gaussian_in_the_targets_own_units_is_the_standardised_one_moved_and_stretched():
    likelihood = ks.likelihoods.Gaussian("output", mean=7.0, std=3.0)
    output = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, 1, dtype=torch.float64) * 3 + 7
    mean, std = output[:, :1], torch.nn.functional.softplus(output[:, 1:])
    exact = -torch.distributions.Normal(7 + 3 * mean, 3 * std).log_prob(y).mean()
    assert likelihood.nll(output, y).item() == pytest.approx(exact.item(), rel=1e-12)
    gradient = torch.autograd.grad(likelihood.nll(output, y), output)[0]
    standard = torch.autograd.grad(ks.likelihoods.Gaussian("output").nll(output, (y - 7) / 3), output)[0]
    assert torch.allclose(gradient, standard, rtol=1e-12)
    found = likelihood.predictive([output.detach(), -output.detach()])
    assert torch.allclose(found.mean, torch.full((5, 1), 7.0, dtype=torch.float64))
    assert torch.allclose(found.epistemic, 9 * mean.detach().square())
    for wrong in ({"std": 0.0}, {"mean": math.nan}, {"std": math.inf}):
        with pytest.raises(ArgumentError, match="both must be finite, and std above 0"):
            ks.likelihoods.Gaussian("output", **wrong)


def test_metrics_of_numbers_agree_with_quadrature_and_with_the_normal_distribution():
    mean, std = torch.tensor([0.0, 1.0, -2.0]), torch.tensor([1.0, 0.5, 2.0])
    y = torch.tensor([0.3, 1.9, -7.0])
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    scores = []
    for m, s, t in zip(mean.double(), std.double(), y.double(), strict=True):
        below = torch.distributions.Normal(m, s).cdf(grid)
        scores.append(torch.trapezoid((below - (grid >= t).double()).square(), grid).item())
    assert metrics.crps(mean, std, y) == pytest.approx(sum(scores) / 3, abs=2e-4)
    exact = -torch.distributions.Normal(mean.double(), std.double()).log_prob(y.double()).mean().item()
    assert metrics.gaussian_nll(mean, std, y) == pytest.approx(exact, rel=1e-12)
    assert metrics.rmse(mean, y) == pytest.approx(math.sqrt((0.09 + 0.81 + 25) / 3), rel=1e-6)
    assert [metrics.interval_coverage(mean, std, y, level) for level in (0.2, 0.5, 0.95)] == pytest.approx(
        [0, 1 / 3, 2 / 3]
    )
    drawn = torch.randn(20_000, dtype=torch.float64)
    found = metrics.regression_summary(torch.zeros_like(drawn), torch.ones_like(drawn), drawn)
    assert found["coverage_90"] == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / 20_000))
    assert found["interval_error"] < 0.01
    with pytest.raises(ArgumentError, match="they must be equal"):
        metrics.rmse(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ArgumentError, match="not positive and finite"):
        metrics.crps(torch.zeros(3), torch.zeros(3), torch.zeros(3))


def test_the_best_of_a_metric_with_an_aim_is_the_nearest():
    metric = metrics.REGRESSION_METRICS["coverage_90"]
    assert metric.best([0.99, 0.87, 0.5]) == "0.870"
    assert metric.gain(0.95, 0.8) == pytest.approx(0.05)
    assert metric.direction == "nearer to 0.9"


# Training


METHODS = [
    *((name, {}) for name in ("baseline", "dropout", "bnn", "fksn", "ksn-last", "vadam", "vogn", "ivon", "ensemble")),
    *(("ksn", {"over": over}) for over in ("weights", "factors", "channels")),
]


@pytest.mark.parametrize(("name", "options"), METHODS, ids=str)
def test_every_method_trains_the_noise_with_the_network(name, options):
    """Steps of a method on standardised numbers y = 2x + noise of .1: the noise is found, and so is the line."""
    torch.manual_seed(0)
    x = torch.randn(128, 1)
    y = 2 * x + 0.1 * torch.randn(128, 1)
    own = {"vadam": {"lr": 0.1, "train_samples": 1}, "vogn": {"lr": 0.05}, "ivon": {"lr": 0.05}}
    method = ks.methods.make(name, **own.get(name, {"lr": 0.05}), **options)
    net = method.build(ks.models.WithNoise(ks.models.mlp(1, 1, (), widths=(8,))))
    likelihood = ks.likelihoods.Gaussian("output")
    optimizer = method.build_optimizer(net, len(x))
    for step in range(200 if name == "vadam" else 100):
        method.step(net, optimizer, x, y, ks.schedules.Moment(step, len(x)), likelihood=likelihood)
    found = ks.predict(method.posterior(net, optimizer), x, 4, likelihood=likelihood)
    assert found.mean.shape == found.aleatoric.shape == (128, 1)
    assert (found.mean - y).square().mean().sqrt() < 0.7 * y.std()
    assert found.aleatoric.mean().sqrt() < 0.85  # it started at 1


def test_a_run_of_a_table_is_evaluated_described_and_reported(finished, tmp_path):
    config, result = finished.config(), finished.result()
    assert config["data"]["table"]["columns"][1] == {"name": "colour", "categories": ["blue", "green", "red"]}
    assert config["data"]["table"]["target"].keys() == {"name", "mean", "std"}
    assert result["task"] == "regression"
    for way in ("mean", "ensemble"):
        prediction, targets = finished.prediction("test", way)
        found = result["metrics"][way]
        assert found == ks.training.summarise(prediction, targets)
        assert 0 < found["aleatoric"] < 400
        assert found["rmse"] == pytest.approx((prediction.mean - targets).square().mean().sqrt().item(), rel=1e-5)
    assert result["metrics"]["mean"]["epistemic"] == 0
    assert finished.metrics()[-1].keys() >= {"train_nll", "val_nll", "val_mae"}
    again = evaluate(finished.path)
    assert again["metrics"] == result["metrics"]
    ran = CliRunner().invoke(app, ["info", str(finished.path)])
    assert "model.0.weight" in ran.output
    assert ran.exit_code == 0
    page = report.render(report.read([finished.path]))
    for section in ("predicted", "coverage", "errors", "sure", "curves"):
        assert f'<section id="{section}">' in page
    assert '<section id="reliability">' not in page
    for name, value, said in (
        ("temperature", True, "task is reg"),
        ("ood", "digits", "data is a"),
        ("shift", "all", "data is a"),
    ):
        with pytest.raises(ConfigError, match=f"{name} is .*, but the run's {said}"):
            evaluate(finished.path, **{name: value})


def test_predictions_for_a_table_are_in_the_targets_unit(finished, tmp_path, table):
    out = tmp_path / "out.csv"
    ran = CliRunner().invoke(app, ["predict", str(finished.path), str(table), "-o", str(out)])
    assert ran.exit_code == 0, ran.output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "mean", "std", "aleatoric", "epistemic"]
    assert [int(row["row"]) for row in rows] == list(range(1, 61))
    for row in rows:
        parts = math.hypot(float(row["aleatoric"]), float(row["epistemic"]))
        assert float(row["std"]) == pytest.approx(parts, rel=1e-4)
    stored = finished.prediction("test", "ensemble")[0].mean.flatten().tolist()
    assert {float(f"{value:.6g}") for value in stored} <= {float(row["mean"]) for row in rows}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("size\n1\n", "has no column 'colour'; it has size"),
        ("size,colour\n1,pink\n", "has 'pink' in column 'colour', which was not there in training; known are blue"),
        ("size,colour\nsmall,red\n", "'small' in column 'size', whose other cells are numbers"),
        ("size,colour\n1,\n", "in row 2 nothing in column 'colour'"),
    ],
)  # fmt: skip
def test_a_table_that_the_run_does_not_know_is_refused_and_nothing_is_written(content, message, finished, tmp_path):
    (tmp_path / "in.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        predict_files(finished.path, [tmp_path / "in.csv"])


def test_absurd_questions_about_a_run_of_a_table(finished, table):
    with pytest.raises(ConfigError, match=r"risk is 0\.0, but the run's task is regression"):
        predict_files(finished.path, [table], risk=0.0)
    with pytest.raises(ArgumentError, match=r"2 files are given; .* one CSV file at a time"):
        predict_files(finished.path, [table, table])


def test_classes_of_a_table_train_and_predict(tmp_path):
    table = write(tmp_path / "many.csv", houses(120))
    config = Config(
        data=f"csv:{table}", target="colour", method="baseline", epochs=1, validation=0.2, model_args={"widths": [4]}
    )
    train(config, tmp_path / "a", progress=False)
    rows = predict_files(tmp_path / "a", [table], risk=0.5)["predictions"]
    assert len(rows) == 120
    assert rows[0].keys() == {"row", "label", "confidence", "entropy", "mutual_information", "abstain"}
    assert rows[0]["label"] in COLOURS
    assert evaluate(tmp_path / "a", temperature=True)["settings"]["temperature"]["mean"] > 0
    with pytest.raises(ConfigError, match="ood is 'digits', but the run's data is a table"):
        evaluate(tmp_path / "a", ood="digits")
    assert '<section id="reliability">' in report.render(report.read([tmp_path / "a"]))


@pytest.mark.parametrize("method", ["ksn", "ivon"])
def test_a_table_resumed_after_a_kill_ends_with_the_same_bits(method, small, tmp_path):
    config = replace(small, method=method, options={}, validation=0.2)
    train(config, tmp_path / "whole", progress=False)
    run = killed(config, tmp_path / "killed", step=5)
    assert not run.finished
    train(None, run.path, resume=True, progress=False)
    assert same_run(run, RunFolder(tmp_path / "whole"))
    for name in ("test-ensemble.safetensors", "validation-mean.safetensors"):
        assert (run.path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_table_that_changed_is_not_resumed_or_evaluated(small, tmp_path):
    path = write(tmp_path / "a.csv", houses(20))
    config = replace(small, data=f"csv:{path}", epochs=2, method="baseline", options={})
    run = killed(config, tmp_path / "run", step=1)
    write(path, houses(20)[:-1])
    changed = r"is not the data that .* was started with: it has train \d+ and not \d+; put it back"
    with pytest.raises(DataError, match=changed):
        train(None, run.path, resume=True, progress=False)
    write(path, houses(20))
    train(None, run.path, resume=True, progress=False)
    write(path, houses(20)[:-1])
    with pytest.raises(DataError, match=changed):
        evaluate(run.path)


def test_a_table_and_a_model_given_in_python(table, tmp_path):
    data = load(f"csv:{table}", target="price")
    result = train(Config(method="baseline", epochs=1, validation=0.25), tmp_path / "a", data=data, progress=False)
    assert result["config"]["model"] == "mlp"
    assert json.loads((tmp_path / "a" / "config.json").read_text())["data"]["train"] == 36
    model = torch.nn.Linear(4, 1)
    train(Config(method="bnn", epochs=1), tmp_path / "b", data=data, model=model, progress=False)
    net = ks.load(tmp_path / "b", model=model)
    assert isinstance(ks.collapse(net), ks.models.WithNoise)
    assert predict_files(tmp_path / "b", [table], model=model)["predictions"][0]["std"] > 0
    with pytest.raises(ConfigError, match=r"it must be a tensor of shape \(2, 1\): the mean of the target"):
        train(Config(epochs=1), tmp_path / "c", data=data, model=torch.nn.Linear(4, 3), progress=False)
    assert not (tmp_path / "c").exists()


def test_intervals_of_a_table_stand_around_the_mean(finished, table):
    """mean ± q std, with one q for all rows; they are written with six digits."""
    pytest.importorskip("mapie", reason="the extra conformal is not installed")
    rows = predict_files(finished.path, [table], coverage=0.5)["predictions"]
    factors = [(row["high"] - row["mean"]) / row["std"] for row in rows]
    assert factors == pytest.approx([factors[0]] * len(rows), rel=1e-3)
    assert factors[0] > 0
    assert all(row["mean"] - row["low"] == pytest.approx(row["high"] - row["mean"], rel=1e-3) for row in rows)
