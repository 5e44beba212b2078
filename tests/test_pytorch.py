"""Works with PyTorch: dtypes, devices, autocast, compile, accumulation, data parallelism, checkpoints."""

import copy
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import ddp
import pytest
import torch
import torch.multiprocessing
from kinds import DISTRIBUTIONS, KINDS, convnet, generator, mlp, trained
from torch import nn

import kernelseed as ks
from kernelseed.fast import kernels

X, Y = torch.randn(12, 3, generator=generator()), torch.arange(12) % 4
PRIOR = ks.ScaleMixture()
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


# --- dtypes and devices ----------------------------------------------------------------------------------------


@every_distribution
def test_to_a_dtype_and_back(distribution):
    net = trained(DISTRIBUTIONS[distribution](mlp(3, 6, 4)))
    before = net.mean()(X)
    assert net.to(torch.float64) is net
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    torch.testing.assert_close(net.mean()(X.double()).float(), before)
    assert net.draw()(X.double()).dtype == torch.float64
    assert torch.equal(net.float().mean()(X), before)


@every_distribution
@pytest.mark.parametrize("kind", ["conv2d", "lstm"])
def test_construction_on_the_meta_device(distribution, kind):
    x = KINDS[kind].inputs()
    real = trained(DISTRIBUTIONS[distribution](KINDS[kind].make()))
    with torch.device("meta"):
        filled, assigned = (DISTRIBUTIONS[distribution](KINDS[kind].make()) for _ in range(2))
    assert all(t.is_meta for t in filled.state_dict().values())
    filled.to_empty(device="cpu").load_state_dict(real.state_dict())
    assigned.load_state_dict(real.state_dict(), assign=True)
    for net in (filled, assigned):
        assert torch.equal(net.mean()(*x), real.mean()(*x))
        assert torch.equal(net.draw(generator())(*x), real.draw(generator())(*x))


@pytest.mark.parametrize("with_kernels", [True, False])
@every_distribution
def test_a_training_step_waits_for_no_device(distribution, with_kernels, monkeypatch):
    """On the meta device whatever reads a number back raises: what would stop a GPU raises here."""
    if not with_kernels:
        monkeypatch.setattr(kernels, "library", lambda: None)
    net = DISTRIBUTIONS[distribution](convnet(classes=4)).to("meta")
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)
    for prior in (PRIOR, ks.priors.Gaussian()):
        draw = net.draw()
        terms = ks.ELBO(100, prior)(draw, torch.empty(12, 1, 4, 4, device="meta"), Y.to("meta"), step=3)
        assert terms.loss.is_meta
        assert terms.kl.is_meta
        terms.loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


# --- autocast --------------------------------------------------------------------------------------------------


@every_distribution
def test_autocast_keeps_deviations_and_kl_in_single_precision(distribution):
    net = trained(DISTRIBUTIONS[distribution](mlp(3, 6, 4)))
    exact = net.draw(generator())
    with torch.autocast("cpu", torch.bfloat16):
        draw = net.draw(generator())
        kl = draw.kl(PRIOR)
        output = draw(X)
        terms = ks.ELBO(12)(draw, X, Y)
    assert output.dtype == torch.bfloat16
    assert kl.dtype == terms.loss.dtype == torch.float32
    for sample in draw.samples.values():
        assert sample.source.std is None or sample.source.std.dtype == torch.float32
    torch.testing.assert_close(output.float(), exact(X), rtol=0.1, atol=0.1)
    torch.testing.assert_close(kl, exact.kl(PRIOR), rtol=0.03, atol=0)
    terms.loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters())


def test_autocast_does_not_lose_a_small_deviation():
    for net in (
        ks.germinate(mlp(3, 6, 4), rho_offset=-20.0, over="weights"),
        ks.bayesianize(mlp(3, 6, 4), rho_offset=-20.0),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            std = net.weights["0.weight"].moments().std
        torch.testing.assert_close(std, torch.full_like(std, 2.0611537e-09), rtol=1e-4, atol=0)


# --- compile ---------------------------------------------------------------------------------------------------


def check_compiled_steps(net, x, **options):
    """A compiled training step draws what the plain one draws from the same seed, and has its loss and gradients."""
    torch._dynamo.reset()
    loss = ks.ELBO(12, ks.ScaleMixture.blundell())
    twin = copy.deepcopy(net)
    results = []
    for each, wrap in ((net, lambda f: f), (twin, lambda f: torch.compile(f, fullgraph=True, **options))):
        torch.manual_seed(4)
        step = wrap(lambda x, y, net=each: loss(net.draw(), x, y).loss)
        optimizer = torch.optim.SGD(each.parameters(), lr=1e-2)
        values = []
        for _ in range(2):
            optimizer.zero_grad()
            values.append(step(x, Y))
            values[-1].backward()
            optimizer.step()
        results.append((values, [p.grad for p in each.parameters()], list(each.buffers())))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert results[0][0][0] != results[0][0][1]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of its own imports
def test_inductor_compiles_a_whole_training_step():
    check_compiled_steps(
        ks.germinate(nn.Linear(3, 4), 0.5, min_rank=2, over="weights"), X
    )  # small: compiling C++ takes its time


def test_a_compiled_step_updates_batchnorm_as_the_plain_one_does():
    net = ks.germinate(convnet(classes=4), 0.5, min_rank=2, over="weights")
    check_compiled_steps(net, torch.randn(12, 1, 4, 4), backend="aot_eager")


def test_the_net_itself_compiles():
    torch._dynamo.reset()
    net = ks.germinate(mlp(3, 4, 2), 0.5, min_rank=2, over="weights")
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for mode in (True, False):
        outputs = []
        for run in (net.train(mode), compiled.train(mode)):
            torch.manual_seed(0)
            outputs.append(run(X))
        torch.testing.assert_close(*outputs)


# --- training loops --------------------------------------------------------------------------------------------


@every_distribution
def test_gradient_accumulation_equals_the_big_batch(distribution):
    net = DISTRIBUTIONS[distribution](mlp(3, 6, 4)).double()
    loss, x = ks.ELBO(12), X.double()
    loss(net.draw(generator()), x, Y).loss.backward()
    whole = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    draw = net.draw(generator())  # one draw for all parts
    sum(loss(draw, x[i : i + 4], Y[i : i + 4]).loss / 3 for i in (0, 4, 8)).backward()
    for p, expected in zip(net.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, expected)
    net.zero_grad()
    for i in (0, 4, 8):  # the same draw, made anew for each part, with a backward of its own
        (loss(net.draw(generator()), x[i : i + 4], Y[i : i + 4]).loss / 3).backward()
    for p, expected in zip(net.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, expected)


def test_data_parallel_processes_share_gradients_and_have_noise_of_their_own(tmp_path):
    torch.multiprocessing.spawn(ddp.work, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name in ddp.NETS:
        one, two = first[name], second[name]
        assert torch.equal(one["noise"], two["noise"]) == (name == "fixed")
        for a, b, local_a, local_b in zip(
            *(seen[k] for k in ("gradients", "local") for seen in (one, two)), strict=True
        ):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(a, (local_a + local_b) / 2)
        for a, b in zip(one["parameters"], two["parameters"], strict=True):
            torch.testing.assert_close(a, b)


@every_distribution
def test_a_checkpoint_goes_on_where_it_stopped(distribution, tmp_path):
    def train(net, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            ks.ELBO(12)(net.draw(generator(step)), X, Y).loss.backward()
            optimizer.step()

    model = mlp(3, 6, 4)
    net = DISTRIBUTIONS[distribution](model)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    train(net, optimizer, range(3))
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    train(net, optimizer, range(3, 6))

    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = DISTRIBUTIONS[distribution](mlp(3, 6, 4))
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
    other.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    train(other, optimizer, range(3, 6))
    assert torch.equal(net.mean()(X), other.mean()(X))


def test_a_state_dict_of_another_kind_is_refused():
    net = ks.germinate(mlp(3, 6, 4), 0.5, min_rank=2, over="weights")
    with pytest.raises(RuntimeError, match=r"weights\.0\.weight"):
        net.load_state_dict(ks.bayesianize(mlp(3, 6, 4)).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(ks.germinate(mlp(3, 6, 4), 1.0, over="weights").state_dict())


def test_weight_averaging_and_gradient_clipping():
    net = ks.germinate(convnet(classes=4), over="weights")
    average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    ks.ELBO(12)(net.draw(), torch.randn(12, 1, 4, 4), Y).loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    average.update_parameters(net)
    assert average.eval()(torch.randn(2, 1, 4, 4)).shape == (2, 4)


def test_a_net_may_be_part_of_a_larger_module():
    whole = nn.Sequential(nn.Linear(3, 3), ks.germinate(nn.Linear(3, 6), over="weights"), nn.Linear(6, 2))
    whole(X).sum().backward()
    assert all(p.grad is not None for p in whole.parameters())
    assert "1.weights.weight.seed" in whole.state_dict()


# --- the package -----------------------------------------------------------------------------------------------

PACKAGE = Path(ks.__file__).parent
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_run(module):
    found = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert found.attempted
    assert found.failed == 0


def test_the_core_needs_torch_alone():
    script = (
        "import sys, torch; before = set(sys.modules); import kernelseed; new = set(sys.modules) - before\n"
        "tops = {m.split('.')[0] for m in new} - set(sys.stdlib_module_names)\n"
        "assert tops <= {'kernelseed', 'torch'}, tops\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_whole_surface_in_a_few_lines():
    model = ks.models.resnet18(num_classes=10, in_channels=1, stem="imagenet", width=4, dropout=0.0)
    net = ks.germinate(model, delta=0.25, min_rank=16, rho_offset=-5.0, init="model", fixed=False, where=None)
    x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 9])
    assert net.weights["layer1.0.conv1.weight"].moments().mean.shape == (4, 4, 3, 3)
    loss = ks.ELBO(
        num_data=60_000,
        prior=ks.ScaleMixture(),
        kl_weight=ks.schedules.uniform(),
        likelihood=ks.likelihoods.Categorical(),
    )
    terms = loss(net.draw(), x, y)
    terms.loss.backward()
    assert all(torch.as_tensor(t).isfinite() for t in (terms.nll, terms.kl, terms.kl_weight))
    p = ks.predict(net, x, samples=10)
    for name in ("probs", "label", "confidence", "entropy", "expected_entropy", "mutual_information", "variance"):
        assert len(getattr(p, name)) == 4
    assert type(ks.collapse(net)) is type(model)
