"""Continual learning: parts against literal references, approaches against their promises, bad input by its message."""

import itertools
import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import kernelseed as ks
from kernelseed import continual
from kernelseed.cli.app import app
from kernelseed.continual.benchmarks import BENCHMARKS, read_results_of, run_benchmark
from kernelseed.continual.curves import Line, draw_curves
from kernelseed.continual.examples import Rows, one_epoch
from kernelseed.system import write_json


def task_of(n=20, shape=(4,), classes=3, **given):
    generator = torch.Generator().manual_seed(n)
    x, test_x = torch.randn(n, *shape, generator=generator), torch.randn(9, *shape, generator=generator)
    return continual.Task(x, torch.arange(n) % classes, test_x, torch.arange(9) % classes, **given)


def trunk_of(inputs=4, width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU())


def learn(tasks, approach, **given):
    return continual.learn(tasks, trunk_of(tasks[0].x[0].numel()), approach, progress=False, samples=3, **given)


@pytest.fixture(scope="module")
def digits():
    return ks.data.load("digits")


# --- tasks --------------------------------------------------------------------------------------------------------


def test_split_classes_shares_out_all_examples_and_counts_labels_anew(digits):
    tasks = continual.split_classes(digits, 2)
    assert len(tasks) == 5
    assert sum(len(task.x) for task in tasks) == len(digits.train)
    for number, task in enumerate(tasks):
        assert task.y.unique().tolist() == [0, 1]
        theirs = digits.train.images[digits.train.labels // 2 == number].flatten(1) / 255
        torch.testing.assert_close(task.x, theirs)


def test_permuted_pixels_are_those_of_the_image_in_another_order(digits):
    plain, *others = continual.permute_pixels(digits, 3, seed=1)
    assert plain.order is None
    for task in others:
        rows = task.read(task.x[:5])
        assert not torch.equal(rows, plain.x[:5])
        torch.testing.assert_close(rows.sort(1).values, plain.x[:5].sort(1).values)
        torch.testing.assert_close(task.read(task.test_x)[:, 3], plain.test_x[:, task.order[3]])
    again = continual.permute_pixels(digits, 3, seed=1)[1].order
    assert torch.equal(again, others[0].order)
    assert not torch.equal(continual.permute_pixels(digits, 3, seed=2)[1].order, again)


def test_an_epoch_has_every_example_once_at_its_own_head():
    tasks = [task_of(13), task_of(8)]
    columns = [slice(0, 3), slice(3, 6)]
    sources = [Rows(task, c, torch.arange(len(task.x))) for task, c in zip(tasks, columns, strict=True)]
    output = torch.randn(21, 6)
    seen = []
    for batch in one_epoch(sources, 5, torch.Generator().manual_seed(0)):
        seen.append(batch.x)
        start, expected = 0, 0.0
        for length, where in batch.parts:
            for row in range(start, start + length):
                expected -= output[row, where].log_softmax(0)[batch.y[row]].item() / len(batch.x)
            start += length
        assert batch.nll(output[: len(batch.x)]).item() == pytest.approx(expected, rel=1e-5)
    everything = torch.cat([task.x for task in tasks])
    torch.testing.assert_close(torch.cat(seen).sort(0).values, everything.sort(0).values)


# --- coresets -----------------------------------------------------------------------------------------------------


def test_k_centre_takes_the_farthest_row_each_time_and_is_within_twice_the_best():
    for seed in range(20):
        x = torch.randn(9, 2, generator=torch.Generator().manual_seed(seed))
        chosen = continual.k_centre(x, 3, torch.Generator().manual_seed(seed)).tolist()
        distances = [[math.dist(a, b) for b in x.tolist()] for a in x.tolist()]
        for count in (1, 2):  # the literal rule
            to_chosen = [min(row[j] for j in chosen[:count]) for row in distances]
            assert to_chosen[chosen[count]] == max(to_chosen)

        def radius(centres, distances=distances):
            return max(min(row[j] for j in centres) for row in distances)

        best = min(radius(centres) for centres in itertools.combinations(range(9), 3))
        assert best <= radius(chosen) <= 2 * best


def test_k_centre_takes_no_row_twice_even_if_all_are_equal():
    chosen = continual.k_centre(torch.zeros(5, 2), 5, torch.Generator().manual_seed(0))
    assert sorted(chosen.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("heads", "again"), [("one", [(0,), (0, 1)]), ("each", [(0,), (0,), (1,)])])
@pytest.mark.parametrize("rule", ["random", "k-centre"])
def test_a_coreset_is_left_out_of_the_training_and_learned_before_a_test(rule, heads, again, monkeypatch):
    """Again: the tasks whose coresets are learned together, each time."""
    seen = []
    loss = continual.FineTune.loss

    def watching(self, net, batch, memory, num_data):
        seen.append((self.epochs, batch.x, num_data))
        return loss(self, net, batch, memory, num_data)

    monkeypatch.setattr(continual.FineTune, "loss", watching)
    tasks = [task_of(20), task_of(21)]
    coreset = continual.Coreset(5, rule, 7)
    found = learn(tasks, continual.FineTune(epochs=1), heads=heads, coreset=coreset)
    kept = [task.x[coreset.choose(task.x, 0, i)] for i, task in enumerate(tasks)]
    assert [len(x) for epochs, x, _ in seen if epochs == 1] == [15, 16]
    learned = [(x, num_data) for epochs, x, num_data in seen if epochs == 7]
    expected = [torch.cat([kept[i] for i in together]) for together in again for _ in range(7)]
    for (x, num_data), rows in zip(learned, expected, strict=True):
        assert num_data == len(rows)
        torch.testing.assert_close(x.sort(0).values, rows.sort(0).values)
    assert found.label == "fine-tuning, coreset"


# --- approaches ---------------------------------------------------------------------------------------------------


def test_ewcs_penalty_is_the_literal_sum():
    torch.manual_seed(0)
    names = {"a": (3, 2), "b": (3,)}
    parameters, *rest = ({name: torch.randn(shape) for name, shape in names.items()} for _ in range(5))
    anchors = [(rest[0], rest[1]), (rest[2], rest[3])]
    expected = 0.0
    for place, fisher in anchors:
        for name in names:
            for w, w0, f in zip(*(t[name].flatten().tolist() for t in (parameters, place, fisher)), strict=True):
                expected += f * (w - w0) ** 2
    assert continual.penalty(parameters, anchors).item() == pytest.approx(expected, rel=1e-5)


def test_the_fisher_information_is_that_of_logistic_regression():
    """For logits W x the diagonal is p_k (1 - p_k) x_i^2; here every row is the same, so only the labels are random."""
    torch.manual_seed(0)
    net = nn.Linear(3, 4, bias=False)
    x = torch.tensor([[0.5, -1.0, 2.0]]).expand(1000, 3)
    p = net(x[0]).detach()[1:].softmax(0)
    fisher = continual.diagonal_fisher(net, x, slice(1, 4), torch.Generator().manual_seed(0))["weight"]
    expected = (p * (1 - p))[:, None] * x[0].square()
    torch.testing.assert_close(fisher[1:], expected, rtol=0.15, atol=0)
    assert fisher[0].abs().max() == 0


def test_the_fisher_information_is_the_mean_of_squared_gradients_one_by_one():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), torch.randn(70, 3)
    found = continual.diagonal_fisher(net, x, slice(0, 4), torch.Generator().manual_seed(1))
    labels = torch.multinomial(net(x).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    expected = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    for row, label in zip(x, labels, strict=True):
        gradients = torch.autograd.grad(net(row).log_softmax(0)[label], list(net.parameters()))
        for name, gradient in zip(expected, gradients, strict=True):
            expected[name] += gradient.square() / len(x)
    torch.testing.assert_close(found, expected)


def test_ewc_without_strength_is_fine_tuning_and_with_much_of_it_keeps_the_trunk():
    tasks = [task_of(40), task_of(41)]
    plain, one = (learn(some, continual.FineTune(epochs=5)) for some in (tasks, tasks[:1]))
    free, held = (learn(tasks, continual.EWC(epochs=5, strength=strength)) for strength in (0.0, 1e8))
    moved = [(found.net.trunk[0].weight - one.net.trunk[0].weight).abs().max().item() for found in (free, plain, held)]
    assert moved[0] == pytest.approx(moved[1])
    assert moved[2] < 0.2 * moved[1]


def test_vcl_has_the_first_prior_once_and_then_the_posterior():
    tasks = [task_of(20), task_of(21)]
    approach = continual.VCL(prior_std=0.5)
    model = continual.MultiHead(trunk_of(), tasks)
    net = approach.build(model)
    assert set(net.weights) == {name for name, _ in model.named_parameters()}  # biases too
    prior = approach.before(net, model, 0, None)
    first = {name for name in net.weights if isinstance(prior[name], ks.priors.Gaussian)}
    assert first == {"trunk.0.weight", "trunk.0.bias", "heads.0.weight", "heads.0.bias"}
    assert net.draw().samples["heads.1.weight"].kl(prior["heads.1.weight"]).item() == 0
    posterior = net.weights["trunk.0.weight"].moments()
    prior = approach.before(net, model, 1, prior)
    assert {name for name in net.weights if isinstance(prior[name], ks.priors.Gaussian)} == {
        "heads.1.weight",
        "heads.1.bias",
    }
    torch.testing.assert_close(prior["trunk.0.weight"].moments().std, posterior.std.detach())


def test_vcl_trains_numbers_without_axes_too():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 8)
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.scale * super().forward(x)

    found = continual.learn([task_of(20)], Scaled(), continual.VCL(epochs=2, start_epochs=0), progress=False)
    assert found.net.skeleton.trunk.scale != 1


@pytest.mark.parametrize("weights", ["mean-field", "kernel-seed"])
def test_a_task_leaves_the_heads_of_others_as_they_are(weights, monkeypatch):
    seen = []
    monkeypatch.setattr(
        continual.VCL,
        "after",
        lambda self, net, *rest: seen.append({n: w.mean().value.detach().clone() for n, w in net.weights.items()}),
    )
    learn([task_of(40), task_of(41), task_of(42)], continual.VCL(weights=weights, epochs=3, start_epochs=0))
    changed = [
        {name for name in now if not torch.equal(now[name], later[name])} for now, later in itertools.pairwise(seen)
    ]
    trunk = {"trunk.0.weight", "trunk.0.bias"}
    assert changed == [trunk | {"heads.1.weight", "heads.1.bias"}, trunk | {"heads.2.weight", "heads.2.bias"}]


def rates_of(approach, net):
    """The learning rate of each parameter of a network, of which none may be left out."""
    rate = {id(p): group["lr"] for group in approach.groups(net) for p in group["params"]}
    found = {name: rate.pop(id(parameter)) for name, parameter in net.named_parameters()}
    assert not rate
    return found


def test_a_rho_that_a_germinator_decides_learns_as_fast_as_any_other():
    approach = continual.VCL(weights="kernel-seed", delta=0.5, min_rank=2, lr=0.1, rho_lr=0.8)
    net = approach.build(continual.MultiHead(trunk_of(64, 32), [task_of(shape=(64,))]))
    weight = net.weights["trunk.0.weight"]
    with torch.no_grad():
        weight.seed.copy_(0.03 * weight.seed.sign())
    rates = {name.rpartition(".")[2]: lr for name, lr in rates_of(approach, net).items() if "trunk" in name}
    germinator = rates.pop("rho_germinator")
    assert rates == {"seed": 0.1, "mean_germinator": 0.1, "mu": 0.1, "rho": 0.8, "rho_offset": 0.8}
    before = weight.decoded().rho.detach().clone()
    with torch.no_grad():  # Adam's first step towards a larger first rho: each number of the row by its rate
        weight.rho_germinator[0] += germinator * weight.seed[:, 0].sign()
    torch.testing.assert_close((weight.decoded().rho - before).flatten()[0].item(), 0.8)
    with torch.no_grad():
        weight.seed.zero_()
    assert rates_of(approach, net)["weights.trunk.0.weight.rho_germinator"] == 0.8 / weight.rank


def test_a_seed_that_saves_nothing_is_a_mean_and_a_rho():
    trunk = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())
    net = continual.VCL(weights="kernel-seed", delta=1.0).build(continual.MultiHead(trunk, [task_of(shape=(64,))]))
    kinds = {name: type(weight).__name__ for name, weight in net.weights.items() if name.endswith("weight")}
    # 30 (64 + 60) numbers against 2 x 64 x 30; 30 (30 + 60) against 2 x 30 x 30; 3 (30 + 6) against 2 x 3 x 30
    assert kinds == {"trunk.0.weight": "KernelSeed", "trunk.2.weight": "MeanField", "heads.0.weight": "KernelSeed"}


@pytest.mark.parametrize("width", [5, 90], ids=["wide", "narrow"])
def test_a_seed_of_full_rank_can_be_the_means_themselves(width):
    """Its germinator stays the identity, and the rhos are learned from the means."""
    approach = continual.VCL(
        weights="kernel-seed", delta=1.0, germinator="identity", epochs=3, start_epochs=0, batch_size=8, rho_lr=0.1
    )
    trunk = nn.Sequential(nn.Linear(20, width), nn.ReLU())
    model = continual.MultiHead(trunk, [task_of(shape=(20,))])
    started = approach.build(model)
    torch.testing.assert_close(started.weights["trunk.0.weight"].mean().value, model.trunk[0].weight)
    net = continual.learn([task_of(40, shape=(20,))], trunk, approach, progress=False).net
    weight = net.weights["trunk.0.weight"]
    assert torch.equal(weight.mean_germinator, torch.eye(min(20, width)))
    assert not torch.equal(weight.seed, started.weights["trunk.0.weight"].seed)
    assert weight.rho_germinator.abs().min() > 0


def test_vcl_forgets_less_than_fine_tuning_and_joint_training_least(digits):
    tasks = continual.permute_pixels(digits, 2)
    settings = {"epochs": 8, "batch_size": 64, "lr": 1e-2}
    tuned, vcl, joint = (
        continual.learn(tasks, trunk_of(64, 32), approach, heads="one", progress=False, samples=3)
        for approach in (
            continual.FineTune(**settings),
            continual.VCL(**settings, prior_std=0.3),
            continual.Joint(**settings),
        )
    )
    assert tuned.forgetting > 0.1
    assert vcl.forgetting < 0.5 * tuned.forgetting
    assert vcl.average_accuracy > tuned.average_accuracy
    assert joint.average_accuracy > 0.9
    assert joint.forgetting < 0.1


# --- learn --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approach", [continual.VCL(epochs=2), continual.EWC(epochs=2)])
def test_a_seed_gives_the_same_result_and_leaves_torchs_generator_alone(approach):
    tasks, trunk = [task_of(20), task_of(21)], trunk_of()
    state = torch.get_rng_state()
    coreset = continual.Coreset(3, epochs=5)
    first, again, other = (
        continual.learn(tasks, trunk, approach, coreset=coreset, seed=seed, progress=False) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    mine, same, others = (found.net.state_dict() for found in (first, again, other))
    assert all(torch.equal(mine[name], same[name]) for name in mine)
    assert not any(torch.equal(mine[name], others[name]) for name in mine)


def test_the_trunk_that_was_given_stays_as_it_is():
    trunk = trunk_of()
    before = [parameter.clone() for parameter in trunk.parameters()]
    continual.learn([task_of()], trunk, continual.FineTune(epochs=2), progress=False)
    assert all(map(torch.equal, before, trunk.parameters()))


def test_what_an_outcome_says():
    nan = math.nan
    accuracy = torch.tensor([[0.9, nan, nan], [0.7, 0.8, nan], [0.75, 0.6, 0.5]], dtype=torch.float64)
    found = continual.Outcome("x", accuracy, nn.Identity(), 1, 1)
    assert found.averages == pytest.approx([0.9, 0.75, 1.85 / 3])
    assert found.average_accuracy == pytest.approx(1.85 / 3)
    assert found.forgetting == pytest.approx(((0.9 - 0.75) + (0.8 - 0.6)) / 2)
    assert found.as_json()["accuracy"] == [[0.9], [0.7, 0.8], [0.75, 0.6, 0.5]]
    assert continual.Outcome("x", accuracy[:1, :1], nn.Identity(), 1, 1).forgetting == 0


def test_progress_is_shown(capsys):
    continual.learn([task_of(), task_of()], trunk_of(), continual.FineTune(epochs=1))
    assert "after task 2: average accuracy 0." in capsys.readouterr().out


BAD = {
    "no task": (lambda: learn_bad([]), "tasks is empty; give at least one"),
    "empty task": (lambda: task_of(0), "a task: x or y is empty; a task has examples: leave it out"),
    "shapes": (
        lambda: learn_bad([task_of(), task_of(shape=(5,))]),
        r"tasks\[1\] has inputs of shape \(5,\), tasks\[0\] of \(4,\); one trunk takes one shape",
    ),
    "test shape": (
        lambda: continual.Task(torch.zeros(2, 4), torch.zeros(2).long(), torch.zeros(2, 5), torch.zeros(2).long()),
        r"inputs are \(4,\) to learn and \(5,\) to test",
    ),
    "labels outside of the head": (
        lambda: learn_bad([task_of(), task_of(classes=5)], heads="one"),
        r"tasks\[1\] has the label 4, and the one head has 3 classes",
    ),
    "negative label": (
        lambda: continual.Task(torch.zeros(1, 4), torch.tensor([-1]), torch.zeros(1, 4), torch.tensor([0])),
        "y has the label -1; labels are counted from 0",
    ),
    "labels of another length": (
        lambda: continual.Task(torch.zeros(2, 4), torch.tensor([1]), torch.zeros(1, 4), torch.tensor([0])),
        r"y is torch.int64 of shape \(1,\); it must be int64 of shape \(2,\)",
    ),
    "bytes": (
        lambda: continual.Task(torch.zeros(1, 4).byte(), torch.tensor([1]), torch.zeros(1, 4), torch.tensor([0])),
        "x of floating point numbers: convert them, images by data.normalise",
    ),
    "no task of ours": (lambda: learn_bad([(1, 2)]), r"tasks has a tuple; give ks.continual.Task\("),
    "coreset larger than the task": (
        lambda: learn_bad([task_of(20)], coreset=continual.Coreset(20)),
        r"the coreset's size is 20, and tasks\[0\] has 20 examples; .* give at most 19",
    ),
    "coreset of nothing": (lambda: continual.Coreset(0), "size is 0; it must be at least 1"),
    "rule": (lambda: continual.Coreset(3, "best"), "rule is 'best'; allowed are 'random', 'k-centre'"),
    "heads": (lambda: learn_bad([task_of()], heads="two"), "heads is 'two'; allowed are 'each', 'one'"),
    "features": (
        lambda: continual.learn([task_of(shape=(4, 4))], nn.Linear(4, 2), continual.FineTune(), progress=False),
        r"the trunk gives \(1, 4, 2\) for one input; heads take features of shape \(N, F\): end it with nn.Flatten",
    ),
    "epochs": (lambda: continual.VCL(epochs=0), "epochs is 0; allowed: 1 <= epochs"),
    "weights": (lambda: continual.VCL(weights="full"), "weights is 'full'; allowed: mean-field, kernel-seed"),
    "identity": (
        lambda: continual.VCL(weights="kernel-seed", delta=0.5, germinator="identity"),
        "germinator is 'identity' and delta 0.5; the seed is the means only at full rank: delta=1",
    ),
    "approach": (
        lambda: continual.learn([task_of()], trunk_of(), "vcl"),
        r"approach is 'vcl'; give a value of an approach, such as ks.continual.VCL\(\)",
    ),
    "strength": (lambda: continual.EWC(strength=-1.0), "strength is -1.0; allowed: 0 <= strength"),
    "infinite": (
        lambda: replace(task_of(), x=torch.full((20, 4), torch.inf)),
        "a task: x has numbers that are infinite or none; leave them out",
    ),
    "a loss that is none": (
        lambda: learn_bad([replace(task_of(), x=torch.full((20, 4), 1e38))]),
        "the loss of task 1/1 is (inf|nan); lower lr",
    ),
    "one task": (lambda: learn_bad(task_of()), "tasks is a Task; give a list of ks.continual.Task"),
    "double": (
        lambda: learn_bad([task_of(), replace(task_of(), x=task_of().x.double())]),
        r"tasks\[1\] has inputs of torch.float64 to learn and torch.float32 to test, tasks\[0\] of torch.float32",
    ),
    "trunk": (
        lambda: continual.learn([task_of(shape=(7,))], nn.Linear(4, 2), continual.FineTune(), progress=False),
        r"the trunk can't take inputs of torch.float32 and shape \(7,\) \(mat1 and mat2",
    ),
    "a number for a coreset": (
        lambda: learn_bad([task_of()], coreset=40),
        r"coreset is a int; it must be a Coreset: such as ks.continual.Coreset\(40\)",
    ),
}


def learn_bad(tasks, **given):
    continual.learn(tasks, trunk_of(), continual.FineTune(epochs=1), progress=False, **given)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name):
    act, message = BAD[name]
    with pytest.raises(ks.KernelseedError, match=message) as raised:
        act()
    assert "\n" not in str(raised.value)


# --- benchmarks ---------------------------------------------------------------------------------------------------


def test_a_benchmark_runs_what_is_missing_and_says_where_its_numbers_come_from(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(ks.data, "load", lambda name, data_dir: digits)
    told = []
    given = {"approaches": ["fine-tune", "joint"], "seeds": 1, "progress": False, "tell": told.append}
    first = run_benchmark("split-mnist", tmp_path, **given)
    assert told == ["split-mnist: fine-tune, seed 0", "split-mnist: joint, seed 0"]
    assert [result["name"] for result in first] == ["fine-tune", "joint"]
    assert len(first[0]["accuracy"]) == 5
    assert first[0]["config"]["epochs"] == BENCHMARKS["split-mnist"].approaches["fine-tune"].epochs
    assert {"versions", "commit", "seconds"} <= set(first[0])
    (tmp_path / "split-mnist.joint.0.json").unlink()
    torch.rand(3)  # what else a process does changes nothing
    again = run_benchmark("split-mnist", tmp_path, **given)
    assert told[2:] == ["split-mnist: joint, seed 0"]
    assert again[1]["accuracy"] == first[1]["accuracy"]
    assert read_results_of("split-mnist", tmp_path)[0] == first[0]
    words = ["continual", "split-mnist", "--approaches", "fine-tune,joint", "--seeds", "1", "--results", str(tmp_path)]
    shown = CliRunner().invoke(app, [*words, "--figure", str(tmp_path / "curves.svg")])
    assert shown.exit_code == 0, shown.output
    assert f"{100 * first[0]['average_accuracy']:.1f}" in shown.output
    assert "split-mnist: " not in shown.output  # all was there
    drawn = draw_curves(tmp_path).axes[0].lines[0].get_ydata()
    assert list(drawn) == pytest.approx([100 * value for value in first[0]["averages"]])
    assert "</svg>" in (tmp_path / "curves.svg").read_text()
    changed = {**first[0], "config": {**first[0]["config"], "epochs": 77}}
    write_json(tmp_path / "split-mnist.fine-tune.0.json", changed)
    with pytest.raises(
        ks.KernelseedError, match=r"0.json was made with epochs 77, and now it is 5: move the file away"
    ):
        run_benchmark("split-mnist", tmp_path, **given)
    with pytest.raises(ks.KernelseedError, match="has no results of a benchmark; run one first"):
        draw_curves(tmp_path / "elsewhere")
    with pytest.raises(ks.KernelseedError, match="the approach is 'best'; allowed are fine-tune, ewc"):
        run_benchmark("split-mnist", tmp_path, approaches=["best"])
    with pytest.raises(ks.KernelseedError, match="the benchmark is 'cifar'; allowed are split-mnist, permuted-mnist"):
        run_benchmark("cifar", tmp_path)


def test_settings_are_tried_on_held_out_training_images(tmp_path, monkeypatch):
    explore = runpy.run_path(str(Path(__file__).parents[1] / "experiments/continual/explore.py"))
    load = ks.data.load
    monkeypatch.setattr(ks.data, "load", lambda name, data_dir, **given: load("digits", **given))
    used = explore["held_out"](None)
    assert used.test is used.validation
    assert len(used.train) + len(used.test) == len(load("digits").train)
    words = ["split-mnist", "fine-tune", '{"epochs": 1}', "--tasks", "2", "--out", str(tmp_path / "tried.jsonl")]
    explore["main"](words)
    explore["main"](words)
    lines = (tmp_path / "tried.jsonl").read_text().splitlines()
    found = json.loads(lines[0])
    assert lines[0] == lines[1]
    assert found["config"]["epochs"] == 1
    assert len(found["averages"]) == 2


def test_a_line_has_the_mean_and_the_spread_over_seeds():
    line = Line("vcl", "VCL, mean-field", 3, 2.0, [0.97, 0.98, 0.99], 0.012, [], 0.97)
    assert line.cells() == ["VCL, mean-field", "2.00", "98.0 ± 1.0", "97.0", "1.2", "3"]
