"""The course of a run: optimizers, learning rates, averages of weights, accumulation, warm starts and two phases."""

import dataclasses
import hashlib
import json
import signal
import sys
import types
from functools import partial

import lightning.pytorch.loggers
import pytest
import torch
from safetensors.torch import save_file
from test_training import finish, killed, same_run, start, wait_for
from torch import nn

import kernelseed as ks
from kernelseed.core import Moment
from kernelseed.errors import ArgumentError, ConfigError, MissingPackageError, StorageError
from kernelseed.methods import Engine, make
from kernelseed.training import Config, RunFolder, recipe, train, trainer
from kernelseed.training.learning_rate import lr_factor

SMALL = Config(  # three steps an epoch
    width=8, epochs=3, batch_size=480, samples=2, update_bn=0, schedule="constant", warmup=0, plain_epochs=0
)


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    """The same bits take the same number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """A finished run of a plain network."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("plain") / "a"
    train(dataclasses.replace(SMALL, method="baseline", epochs=1), out, progress=False)
    return RunFolder(out)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(count=24):
    return torch.randn(count, 6), torch.randint(0, 3, (count,))


# Optimizers


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"optimizer": "adamw", "weight_decay": 0.1}, partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)),
        ({"weight_decay": 0.1, "lr": 0.01}, partial(torch.optim.Adam, lr=0.01, weight_decay=0.1)),
        (
            {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "lr": 0.1},
            partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        ),
    ],
    ids=["adamw", "adam", "sgd"],
)
def test_an_optimizer_by_name_takes_torchs_steps_and_decays_all_parameters(options, reference):
    method, (x, y) = make("baseline", **options), batch()
    net, twin = method.build(mlp()), mlp()
    optimizer, expected = method.build_optimizer(net, len(x)), reference(twin.parameters())
    for step in range(3):
        method.step(net, optimizer, x, y, Moment(step, len(x)))
        expected.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        expected.step()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    ("method", "options"), [("ksn", {"over": "weights", "rho_lr": 1.0}), ("ksn", {"rho_lr": 1.0}), ("fksn", {})]
)
def test_seeds_and_germinators_learn_at_rates_of_their_own(method, options):
    method = make(method, lr=0.01, seed_lr=2.0, germinator_lr=0.0, delta=0.5, min_rank=1, **options)
    net, (x, y) = method.build(mlp()), batch()
    optimizer = method.build_optimizer(net, len(x))
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    method.step(net, optimizer, x, y, Moment(0, len(x)))
    for name, p in net.named_parameters():
        leaf = name.rpartition(".")[2]
        assert rates[p] == {"seed": 0.02, "seed_rho": 0.02, "bias": 0.01}.get(leaf, 0.0)
        assert torch.equal(p, before[name]) == ("germinator" in leaf or leaf == "rho_offset")
    assert len(rates) == len(before)


@pytest.mark.parametrize("options", [{"over": "weights"}, {"over": "channels"}, {"over": "factors"}, None])
def test_sigmas_learn_at_a_rate_of_their_own(options):
    method = make("bnn", lr=0.01, rho_lr=3.0) if options is None else make("ksn", lr=0.01, rho_lr=3.0, **options)
    net = method.build(mlp())
    names = {id(p): name.rpartition(".")[2] for name, p in net.named_parameters()}
    found = {
        names[id(p)]: group["lr"] for group in method.build_optimizer(net, 4).param_groups for p in group["params"]
    }
    assert all(lr == pytest.approx(0.03 if "rho" in leaf else 0.01) for leaf, lr in found.items())
    assert sum("rho" in leaf for leaf in found) == (1 if options is None else 2)


def test_only_distributions_have_rates_of_their_own_whatever_a_model_calls_its_parameters():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.rho, self.seed = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x + self.rho + self.seed)

    net = ks.prune(ks.germinate(Named(), over="weights"), 0.5)
    groups = net.parameter_groups(0.01, rho_lr=10.0, seed_lr=3.0, germinator_lr=2.0)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in net.named_parameters()}
    assert found == pytest.approx(
        {
            "skeleton.rho": 0.01,
            "skeleton.seed": 0.01,
            "skeleton.layer.bias": 0.01,
            "weights.layer.weight.of.seed": 0.03,
            "weights.layer.weight.of.mean_germinator": 0.02,
            "weights.layer.weight.of.rho_germinator": 0.2,
            "weights.layer.weight.of.rho_offset": 0.2,
        }
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"method": "vogn", "options": {"optimizer": "sgd"}},
            "optimizer is no option of method 'vogn', which is an",
        ),
        ({"options": {"momentum": 0.9}}, "momentum is 0.9 with optimizer 'adam', which has its own; take sgd"),
        ({"options": {"optimizer": "sdg"}}, "optimizer is 'sdg'; allowed: adam, adamw, sgd .*Did you mean 'sgd'"),
        ({"method": "bnn", "options": {"seed_lr": 2.0}}, "seed_lr is no option of method 'bnn'"),
        ({"schedule": "cosin"}, "schedule is 'cosin'; allowed: constant, cosine, onecycle .*Did you mean 'cosine'"),
        ({"ema": 1.0}, "ema is 1.0; allowed: 0 < ema < 1"),
        ({"method": "ivon", "ema": 0.9}, "ema is 0.9, but method 'ivon' is an optimizer itself.*leave ema at None"),
        ({"method": "vadam", "accumulate": 2}, "accumulate is 2, but method 'vadam' is an optimizer itself"),
        (
            {"method": "ensemble", "init_from": "a"},
            "init_from is 'a', but method 'ensemble' starts from weights",
        ),
        ({"options": {"init": "glorot"}, "init_from": "a"}, "init_from is 'a', but method 'ksn' .* take init 'model'"),
        ({"options": {"init": "glorot"}, "plain_epochs": 1}, "plain_epochs is 1, but method 'ksn' takes no trained"),
        ({"method": "baseline", "plain_epochs": 1}, "plain_epochs is 1, but method 'baseline' takes no trained plain"),
        ({"plain_epochs": 5}, "plain_epochs is 5 of 5 epochs; allowed: a whole number of fewer than all"),
        ({"plain_epochs": 1.5}, "plain_epochs is 1.5 of 5 epochs"),
        ({"plain_epochs": 0.05}, "plain_epochs is 0.05 of 5 epochs"),
        ({"plain_epochs": 1, "patience": 2, "validation": 0.1}, "patience is 2 with plain_epochs 1; early stopping"),
    ],
)
def test_what_can_not_be_trained_so_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(given)


# Learning rates


def test_the_cosine_and_the_warm_up_are_these_numbers():
    total, warmup = 50, 10
    for schedule in ("constant", "cosine"):
        rise = [lr_factor(schedule, step, total, warmup) for step in range(warmup)]
        assert rise == pytest.approx([(step + 1) / 10 for step in range(warmup)])
    assert {lr_factor("constant", step, total, warmup) for step in range(warmup, total)} == {1.0}
    for step in range(warmup, total):  # cos^2 of half the angle
        expected = torch.tensor(torch.pi * (step - 10) / 40 / 2).cos().item() ** 2
        assert lr_factor("cosine", step, total, warmup) == pytest.approx(expected, abs=1e-6)


def test_a_cycle_of_one_step_learns():
    assert lr_factor("onecycle", 0, 1) == 1


@pytest.mark.parametrize("warmup", [0, 20, 1])
def test_one_cycle_is_torchs(warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    if warmup == 1:  # where torch divides by zero
        assert lr_factor("onecycle", 0, 60, 1) == 1
        return
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=60, pct_start=warmup / 60 or 0.3, cycle_momentum=False
    )
    for step in range(60):
        assert lr_factor("onecycle", step, 60, warmup) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < 59:
            theirs.step()


def rates_of(monkeypatch, kind):
    """The learning rates of an optimizer's steps."""
    seen, step = [], kind.step

    def recording(self, *args, **kwargs):
        seen.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(kind, "step", recording)
    return seen


@pytest.mark.parametrize("method", ["ksn", "vogn"])
def test_every_step_has_the_schedules_rate_whatever_the_method(method, tmp_path, monkeypatch):
    kind = torch.optim.Adam if method == "ksn" else ks.optim.VOGN
    seen = rates_of(monkeypatch, kind)
    config = dataclasses.replace(SMALL, method=method, schedule="cosine", warmup=2, epochs=2, batch_size=720, width=4)
    train(config, tmp_path / "a", progress=False)
    factors = [lr_factor("cosine", step, 4, 2) for step in range(4)]
    assert [rate / seen[1] for rate in seen] == pytest.approx(factors)
    lr = config.build_method().lr
    assert [row["lr"] for row in RunFolder(tmp_path / "a").metrics()] == pytest.approx([lr, lr * factors[3]])


def test_a_warmup_below_one_is_a_share_of_all_steps():
    steps = {warmup: dataclasses.replace(SMALL, warmup=warmup).num_warmup_steps(2345) for warmup in (0, 0.05, 1, 100)}
    assert steps == {0: 0, 0.05: 117, 1: 1, 100: 100}
    with pytest.raises(ConfigError, match=r"warmup is 2\.5; allowed: a whole number of steps, or a share below 1"):
        dataclasses.replace(SMALL, warmup=2.5)


def test_a_warm_up_longer_than_the_run_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="warmup is 9, 9 steps, and the run has 9 steps; give a smaller one"):
        train(dataclasses.replace(SMALL, warmup=9), tmp_path / "a", progress=False)
    assert not list(tmp_path.iterdir())


# An average of weights, and several minibatches in a step


def test_the_average_of_weights_is_tested_and_stored(tmp_path, monkeypatch):
    decay, seen = 0.7, []
    training_step = trainer.Training.training_step

    def recording(self, batch, batch_idx):
        training_step(self, batch, batch_idx)
        seen.append({name: p.detach().clone() for name, p in self.net.named_parameters()})

    monkeypatch.setattr(trainer.Training, "training_step", recording)
    config = dataclasses.replace(SMALL, epochs=2, ema=decay, validation=0.2)
    train(config, tmp_path / "a", progress=False)
    expected = seen[0]
    for now in seen[1:]:
        expected = {name: decay * expected[name] + (1 - decay) * now[name] for name in now}
    run = RunFolder(tmp_path / "a")
    stored = ks.load(run.path)
    for name, p in stored.named_parameters():
        torch.testing.assert_close(p, expected[name])
        assert not torch.allclose(p, seen[-1][name])
    data = config.load_data()
    p = ks.predict(stored, ks.data.normalise(data.test.images, data.mean, data.std), samples=2)
    assert torch.equal(p.probs, run.prediction("test", "ensemble")[0].probs)
    x = ks.data.normalise(data.validation.images, data.mean, data.std)
    probs = ks.predict(stored, x, samples=0).probs
    nll = nn.functional.nll_loss(probs.log(), data.validation.labels).item()
    assert run.metrics()[-1]["val_nll"] == pytest.approx(nll, rel=1e-4)


def test_several_minibatches_are_one_large_one():
    method, (x, y) = make("baseline", optimizer="sgd", lr=0.1), batch(24)
    nets = [method.build(mlp()) for _ in range(2)]
    optimizers = [method.build_optimizer(net, 24) for net in nets]
    for step in range(3):
        moment = Moment(step, 24)
        whole = method.step(nets[0], optimizers[0], x, y, moment)
        parts = list(zip(x.split(10), y.split(10), strict=True))  # the last has four
        several = method.accumulate(nets[1], optimizers[1], parts, moment, Engine())
        torch.testing.assert_close(several.loss, whole.loss.detach())
        torch.testing.assert_close(several.nll, whole.nll)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, other)


def test_accumulation_counts_the_kl_once_and_draws_for_each_minibatch(monkeypatch):
    method = make("bnn", kl=1.0, optimizer="sgd")
    net, (x, y) = method.build(mlp()), batch(8)
    recorded, kl = [], ks.Draw.kl

    def recording(self, prior):
        recorded.append(kl(self, prior))
        return recorded[-1]

    monkeypatch.setattr(ks.Draw, "kl", recording)
    optimizer = method.build_optimizer(net, 8)
    terms = method.accumulate(net, optimizer, [(x[:4], y[:4]), (x[4:], y[4:])], Moment(0, 8), Engine())
    kls = torch.stack(recorded)
    assert len(kls) == 2
    assert kls[0] != kls[1]
    torch.testing.assert_close(terms.kl, kls.mean().detach())
    torch.testing.assert_close(terms.loss, terms.nll + terms.kl / 8)


def test_a_step_of_a_run_takes_as_many_minibatches_and_an_epoch_sees_all_examples_once(tmp_path, monkeypatch):
    seen, accumulate = [], ks.methods.KSN.accumulate

    def recording(self, net, optimizer, batches, *rest):
        seen.append([len(y) for _, y in batches])
        return accumulate(self, net, optimizer, batches, *rest)

    monkeypatch.setattr(ks.methods.KSN, "accumulate", recording)
    train(dataclasses.replace(SMALL, accumulate=2, epochs=2, width=4), tmp_path / "a", progress=False)
    assert seen == [[480, 480], [478]] * 2


# Warm starts


@pytest.mark.parametrize("kind", ["run", "file"])
def test_a_warm_start_keeps_the_function_and_the_run_says_where_it_came_from(kind, baseline, tmp_path, monkeypatch):
    source = baseline.path
    if kind == "file":
        source = tmp_path / "weights.safetensors"
        save_file(baseline.network().state_dict(), source)
    started, build = [], trainer.Training.configure_optimizers

    def recording(self):
        started.append(ks.core.collapse(self.net))
        return build(self)

    monkeypatch.setattr(trainer.Training, "configure_optimizers", recording)
    options = {"delta": 1.0, "over": "weights", "rho_offset": -20.0, "lr": 1e-9}
    config = dataclasses.replace(SMALL, epochs=1, options=options, init_from=str(source))
    result = train(config, tmp_path / "a", progress=False)
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(started[0].eval()(x), baseline.network()(x), rtol=1e-4, atol=1e-5)
    assert baseline.network()(x).std(0).max() > 0.01  # it has learned something to keep
    content = (baseline.weights if kind == "run" else source).read_bytes()
    expected = {"path": str(source), "sha256": hashlib.sha256(content).hexdigest()}
    assert result["init_from"] == RunFolder(tmp_path / "a").config()["init_from"] == expected


def test_a_warm_start_from_what_does_not_fit_is_one_line_and_leaves_no_folder(baseline, tmp_path):
    ks.save(ks.germinate(mlp(), over="weights"), tmp_path / "seeds")
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 99)
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    narrow = dataclasses.replace(SMALL, width=4)
    for config, source, error, message in (
        (SMALL, tmp_path / "nowhere", StorageError, "init_from is '.*nowhere', which is not there; give a run or a"),
        (SMALL, tmp_path / "seeds", ConfigError, "whose network is bayesian; give a run of a plain one"),
        (SMALL, tmp_path / "broken.safetensors", StorageError, r"broken.safetensors can't be read \("),
        (SMALL, tmp_path / "other.safetensors", ConfigError, "holds another architecture .*give weights of the same"),
        (narrow, baseline.path, ConfigError, "holds another architecture .*size mismatch"),
    ):
        with pytest.raises(error, match=message) as caught:
            train(dataclasses.replace(config, init_from=str(source)), tmp_path / "a", progress=False)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "a").exists()


def test_weights_that_changed_since_the_start_are_refused_on_a_resume(baseline, tmp_path):
    source = tmp_path / "weights.safetensors"
    weights = baseline.network().state_dict()
    save_file(weights, source)
    config = dataclasses.replace(SMALL, init_from=str(source))
    run = killed(config, tmp_path / "a", 1)  # before there is a checkpoint
    save_file({name: value + 1 for name, value in weights.items()}, source)
    with pytest.raises(StorageError, match=r"SHA-256 is \w{64} and was \w{64} when .*a was started"):
        train(None, run.path, resume=True, progress=False)


# Two phases

PHASES = dataclasses.replace(
    SMALL, epochs=4, plain_epochs=2, schedule="cosine", warmup=2, ema=0.5, accumulate=2, options={"optimizer": "adamw"}
)  # two steps an epoch


@pytest.fixture(scope="module")
def two_phases(tmp_path_factory):
    """A run of two phases that nothing disturbed."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("phases") / "a"
    train(PHASES, out, progress=False)
    return RunFolder(out)


def test_the_plain_network_is_trained_first_and_the_method_goes_on_from_it(tmp_path, monkeypatch):
    before, after = [], []
    take_over = trainer.Training._take_over

    def recording(self):
        before.append({name: p.detach().clone() for name, p in self.net.state_dict().items()})
        take_over(self)
        after.append(ks.core.collapse(self.net).state_dict())

    monkeypatch.setattr(trainer.Training, "_take_over", recording)
    seen = rates_of(monkeypatch, torch.optim.Adam)
    config = dataclasses.replace(SMALL, plain_epochs=0.4, schedule="cosine", options={"delta": 1.0, "lr": 0.01})
    train(config, tmp_path / "a", progress=False)
    (trained,), (germinated,) = before, after
    for name, value in trained.items():
        torch.testing.assert_close(germinated[name], value, rtol=1e-3, atol=1e-4)
    assert seen == pytest.approx([0.01 * lr_factor("cosine", step, 9) for step in range(9)])
    rows = RunFolder(tmp_path / "a").metrics()
    assert [(row["epoch"], row["plain"], row["train_kl"] > 0) for row in rows] == [
        (1, 1, False), (2, 0, True), (3, 0, True)
    ]  # fmt: skip
    assert rows[1]["train_nll"] < rows[0]["train_nll"]


def test_a_phases_kl_warms_up_from_its_own_beginning(tmp_path, monkeypatch):
    moments = []
    terms = ks.methods.KSN.terms

    def recording(self, net, x, y, moment, *rest):
        moments.append(moment.step)
        return terms(self, net, x, y, moment, *rest)

    monkeypatch.setattr(ks.methods.KSN, "terms", recording)
    train(dataclasses.replace(SMALL, plain_epochs=2, width=4), tmp_path / "a", progress=False)
    assert moments == [0, 1, 2]


@pytest.mark.parametrize("step", [1, 3, 4, 7])  # before any checkpoint, in the plain phase, between, after
def test_stopped_in_either_phase_it_ends_with_the_same_bits(step, two_phases, tmp_path):
    run = killed(PHASES, tmp_path / "a", step)
    assert len(run.metrics()) == step // 2
    train(None, run.path, resume=True, progress=False)
    assert same_run(run, two_phases)


def test_ranks_that_follow_from_learned_weights_survive_a_resume(baseline, tmp_path):
    seeds = {"budget": 0.5, "allocation": "spectrum"}
    source = tmp_path / "weights.safetensors"
    for name, change in {"phases": {"plain_epochs": 1}, "file": {"init_from": str(source)}}.items():
        save_file(baseline.network().state_dict(), source)
        config = dataclasses.replace(SMALL, options=seeds, **change)
        whole = RunFolder(tmp_path / f"{name}-whole")
        result = train(config, whole.path, progress=False)
        run = killed(config, tmp_path / name, 7)
        source.unlink()  # what it held is in the checkpoint
        train(None, run.path, resume=True, progress=False)
        assert same_run(run, whole)
        assert run.config()["network"] == whole.config()["network"]
        assert 0.45 < result["parameters"]["relative"] <= 0.5
        learned = {name: w.rank for name, w in ks.load(run.path).weights.items()}
        random = config.build_method().build(config.build_model(config.load_data()))
        assert learned != {name: w.rank for name, w in random.weights.items()}


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_process_killed_in_either_phase_ends_with_the_same_bits(epochs, two_phases, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PHASES.as_json()))
    run = RunFolder(tmp_path / "a")
    process = start("-m", "kernelseed", "train", "--config", tmp_path / "config.json", "--quiet", "--out", run.path)
    wait_for(lambda: len(run.metrics()) == epochs, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not run.finished
    train(None, run.path, resume=True, progress=False)
    assert same_run(run, two_phases)


def test_two_processes_go_through_both_phases_together(tmp_path):
    config = dataclasses.replace(
        PHASES, width=4, epochs=2, plain_epochs=1, devices=2, strategy="ddp", accelerator="cpu", batch_size=240
    )
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    command = ["train", "--config", tmp_path / "config.json", "--json", "--out", tmp_path / "run"]
    worker = [__file__.replace("test_training_course.py", "training_worker.py"), tmp_path]
    finish(start(*worker, *command))
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True)["end"] for rank in (0, 1))
    assert any(name.endswith("seed") for name in one)
    for name, value in one.items():
        assert torch.equal(value, two[name])


# Loggers


def test_a_logger_that_is_not_there_says_what_to_install_and_leaves_no_folder(tmp_path):
    for name in ("wandb", "mlflow"):
        with pytest.raises(MissingPackageError, match=f"logger is '{name}', which needs its package: pip install"):
            train(SMALL, tmp_path / "a", logger=name, progress=False)
    with pytest.raises(ArgumentError, match=r"logger is 'tensorbord'; allowed: csv, .*Did you mean 'tensorboard'"):
        train(SMALL, tmp_path / "a", logger="tensorbord", progress=False)
    assert not list(tmp_path.iterdir())


def stub_wandb(monkeypatch):
    """A package of that name that keeps what it is given."""
    calls = []
    experiment = types.SimpleNamespace(
        config=types.SimpleNamespace(update=lambda values, **_: calls.append(values)), log=calls.append
    )
    package = types.ModuleType("wandb")
    package.run, package.init = None, lambda **settings: calls.append(settings) or experiment
    kinds = types.SimpleNamespace(Run=int, RunDisabled=int)
    for name, module in (
        ("wandb", package),
        ("wandb.sdk", kinds),
        ("wandb.sdk.lib", kinds),
        ("wandb.wandb_run", kinds),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(lightning.pytorch.loggers.wandb, "_WANDB_AVAILABLE", True)
    return calls


def stub_mlflow(monkeypatch):
    """A package of that name that keeps what it is given."""
    calls = []

    class Client:
        def __init__(self, uri):
            calls.append({"uri": uri})

        def get_experiment_by_name(self, name):
            return types.SimpleNamespace(lifecycle_stage="active", experiment_id=name)

        def create_run(self, experiment_id, tags):
            calls.append({"experiment": experiment_id, "name": tags["name"]})
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))

        def log_batch(self, run_id, metrics=(), params=()):
            calls.append({entry["key"]: entry["value"] for entry in (*metrics, *params)})

        def get_run(self, run_id):
            return None

    context = types.SimpleNamespace()
    for name, module in {
        "mlflow": types.SimpleNamespace(set_tracking_uri=lambda uri: None),
        "mlflow.tracking": types.SimpleNamespace(MlflowClient=Client, context=context),
        "mlflow.entities": types.SimpleNamespace(Metric=dict, Param=dict),
        "mlflow.utils": types.ModuleType("mlflow.utils"),
        "mlflow.utils.mlflow_tags": types.SimpleNamespace(MLFLOW_RUN_NAME="name"),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(lightning.pytorch.loggers.mlflow, "_MLFLOW_AVAILABLE", True)
    return calls


@pytest.mark.parametrize(("name", "stub"), [("wandb", stub_wandb), ("mlflow", stub_mlflow)])
def test_a_logger_gets_the_settings_and_the_curves(name, stub, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    calls = stub(monkeypatch)
    train(dataclasses.replace(SMALL, epochs=1, width=4), tmp_path / "a", logger=name, progress=False)
    first = calls[0]
    assert str(tmp_path / "a") in (first["dir"] if name == "wandb" else first["uri"])
    given = {key: value for call in calls for key, value in call.items()}
    assert given["experiment" if name == "mlflow" else "project"] == "kernelseed"
    assert given["name"] == "a"
    assert str(given["epochs"]) == "1"
    assert given["nll_epoch"] == pytest.approx(RunFolder(tmp_path / "a").metrics()[0]["train_nll"])


# Recipes


def test_the_defaults_are_the_recipe_and_the_papers_settings_have_a_name():
    course = ("schedule", "warmup", "num_plain_epochs", "update_bn")
    assert [getattr(Config(epochs=10), name) for name in course] == ["cosine", 0.05, 2, 0]
    paper = Config.from_json({**recipe("paper", "ksn"), "epochs": 10})
    assert [getattr(paper, name) for name in course] == ["constant", 0, 0, 0]
    assert paper.build_method() == make(
        "ksn", delta=0.25, min_rank=1, init="glorot", over="weights", kl="automatic", rho_lr=1.0
    )
    assert Config.from_json(recipe("paper", "bnn")).build_method() == make("bnn", kl="automatic", rho_lr=1.0)
    assert recipe("kernelseed", "ksn") == {}
    with pytest.raises(ConfigError, match="recipe is 'papers'; allowed: kernelseed, paper"):
        recipe("papers", "ksn")


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({}, 1),
        ({"method": "bnn"}, 1),
        ({"method": "baseline"}, 0),
        ({"method": "ivon"}, 0),
        ({"options": {"init": "glorot"}}, 0),
        ({"init_from": "runs/plain"}, 0),
        ({"patience": 1, "validation": 0.1}, 0),
        ({"epochs": 2}, 0),
        ({"epochs": 20}, 4),
    ],
)
def test_a_fifth_of_the_epochs_is_plain_where_that_can_be(changes, epochs):
    config = Config(**{"epochs": 5, **changes})
    assert config.num_plain_epochs == config.as_json()["plain_epochs"] == epochs
