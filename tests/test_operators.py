"""The draw as operators of PyTorch: opcheck, compile, export, vmap; and its products, by processor and precision."""

import platform
from functools import partial

import pytest
import torch
from kinds import generator
from torch import nn

import kernelseed as ks
from kernelseed.fast import draw_kernel_seed, draw_mean_field, in_bfloat16, kernels, scale_mixture_kl

KEY = torch.tensor([-123456789, 987654321], dtype=torch.int32)
STREAM = (KEY, 3, 0)
SHAPES = [(5, 7), (41, 20, 3, 3), (130, 260), (13, 1, 7, 7)]  # both orders, edges of tiles, one channel
PRECISIONS = {"highest": (False, False), "high": (False, True), "medium": (True, True)}


@pytest.fixture(autouse=True)
def _kernels_are_here():
    assert kernels.library() is not None, "these tests need a C compiler, as make setup's machine has"
    yield
    torch.set_float32_matmul_precision("highest")


def factors(shape, rank=3, grad=True):
    """A seed, two germinators and an offset with sigmas of several sizes."""
    small, large = sorted(shape[:2])
    sizes = [(rank, large, *shape[2:]), (small, rank), (small, rank), (1,)]
    made = [torch.randn(size, generator=generator(i), dtype=torch.float32) for i, size in enumerate(sizes)]
    return [t.requires_grad_(grad) for t in (*made[:3], made[3] - 3)]


def arguments():
    seed_draw = (*factors((6, 4, 3, 3)), [6, 4, 3, 3], *STREAM, False, True)
    mean_draw = (torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True), *STREAM)
    token, prior = torch.zeros(4, dtype=torch.float64, requires_grad=True), (0.5, 1.0, 0.1)
    kl = (token, torch.randn(4, 6), torch.tensor(2.0, dtype=torch.float64), *prior)
    return {"draw_kernel_seed": seed_draw, "draw_mean_field": mean_draw, "scale_mixture_kl": kl}


@pytest.mark.parametrize("name", arguments())
def test_opcheck(name):
    torch.library.opcheck(getattr(torch.ops.kernelseed, name).default, arguments()[name])


def test_opcheck_of_the_gradients():
    ops, (seed, mean, rho, _) = torch.ops.kernelseed, factors((6, 4), grad=False)
    message = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    value, std = torch.randn(6, 4), torch.rand(4, 6) + 0.1
    for given in ((None, message), (torch.randn(6, 4), None)):
        saved = (value.T.contiguous().T, std, seed, mean, rho)
        torch.library.opcheck(ops.draw_kernel_seed_backward.default, (*given, *saved, *STREAM, False, True))
        torch.library.opcheck(ops.draw_mean_field_backward.default, (*given, value, value.abs() + 0.1, value - 1))


def test_the_defaults_of_torch_do_not_matter():
    expected = drawn_with_gradients((6, 4), 3)
    torch.set_default_dtype(torch.float64)
    try:
        found = drawn_with_gradients((6, 4), 3)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one, two)


# --- compile, export, vmap ---------------------------------------------------------------------------------------


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("make", [partial(ks.germinate, over="weights"), ks.bayesianize])
def test_a_compiled_step_keeps_the_fast_draw(make):
    net, seen = make(nn.Linear(20, 30)), []

    def backend(graph, _):
        seen.extend(targets(graph))
        return graph

    def step(x):
        draw = net.draw()
        return draw(x).square().mean() + 1e-2 * draw.kl(ks.ScaleMixture())

    found = []
    for run in (step, torch.compile(step, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        loss = run(torch.ones(5, 20))
        found.append((loss, *torch.autograd.grad(loss, list(net.weights.parameters()))))
    name = "draw_mean_field" if make is ks.bayesianize else "draw_kernel_seed"
    drawn = [t for t in seen if name in str(t)]
    assert len(drawn) == 1
    assert sum("scale_mixture_kl" in str(t) for t in seen) == 1
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_export_sees_one_node_for_a_draw():
    net = ks.germinate(nn.Sequential(nn.Conv2d(3, 20, 3), nn.Flatten(), nn.Linear(20 * 36, 7)), over="weights").train()
    program = torch.export.export(net, (torch.randn(2, 3, 8, 8),))
    assert sum("draw_kernel_seed" in str(t) for t in targets(program)) == 2


def test_vmap_over_keys_and_over_parameters_is_one_by_one():
    shape, keys = torch.Size((6, 4)), torch.randint(-(2**31), 2**31, (3, 2)).to(torch.int32)
    parameters = factors(shape, grad=False)
    seeds = torch.stack([parameters[0], 2 * parameters[0], -parameters[0]])

    def kl_and_value(seed, key):
        drawn = draw_kernel_seed(seed, *parameters[1:], shape, (key, 1, 2))
        return scale_mixture_kl(drawn, 0.5, 1.0, 0.1), drawn.value

    batched = torch.vmap(kl_and_value)(seeds, keys)
    for i, (seed, key) in enumerate(zip(seeds, keys, strict=True)):
        for one, all_of_them in zip(kl_and_value(seed, key), batched, strict=True):  # the KL adds in another order
            torch.testing.assert_close(all_of_them[i], one, rtol=1e-6, atol=0)
    mean = torch.vmap(lambda key: draw_mean_field(seeds[0], seeds[1], (key, 0, 0)).value)(keys)
    assert torch.equal(mean[2], draw_mean_field(seeds[0], seeds[1], (keys[2], 0, 0)).value)


# --- the products --------------------------------------------------------------------------------------------------


def drawn_with_gradients(shape, rank):
    parameters = factors(shape, rank)
    drawn = draw_kernel_seed(*parameters, torch.Size(shape), STREAM)
    loss = drawn.value.square().sum() + 0.1 * scale_mixture_kl(drawn, 0.5, 1.0, 0.1)
    return [drawn.value, loss, *torch.autograd.grad(loss, parameters)]


def close(found, expected, tolerance):
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=tolerance * two.abs().max().item())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are names of x86 processors")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
def test_other_processors_draw_the_same(processor, monkeypatch, tmp_path):
    cases = [(shape, rank) for shape in SHAPES for rank in (1, 3, 40)] + [((260, 520), 300)]
    native = [drawn_with_gradients(*case) for case in cases]
    flags = tuple(flag.replace("native", processor) for flag in kernels.FLAGS)
    monkeypatch.setattr(kernels, "FLAGS", flags)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = kernels.library.__wrapped__()
    monkeypatch.setattr(kernels, "library", lambda: other)
    for case, expected in zip(cases, native, strict=True):
        close(drawn_with_gradients(*case), expected, 1e-5)


@pytest.mark.parametrize("rank", [1, 3, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_switch_of_torch_chooses_the_precision_of_the_products(shape, rank):
    exact, units = drawn_with_gradients(shape, rank), bool(kernels.library().ks_has_bf16())
    for precision, (mean, rho) in PRECISIONS.items():
        torch.set_float32_matmul_precision(precision)
        assert in_bfloat16(exact[0]) == (mean and units, rho and units)
        found = drawn_with_gradients(shape, rank)
        close(found, exact, 0.03)
        same = [torch.equal(one, two) for one, two in zip(found, exact, strict=True)]
        assert all(same) == (not any(in_bfloat16(exact[0])))


def test_bfloat16_autocast_is_medium_precision_also_in_gradients_that_are_made_outside_of_it():
    torch.set_float32_matmul_precision("medium")
    expected = drawn_with_gradients((41, 20, 3, 3), 3)
    torch.set_float32_matmul_precision("highest")
    parameters = factors((41, 20, 3, 3))
    with torch.autocast("cpu", torch.bfloat16):
        drawn = draw_kernel_seed(*parameters, torch.Size((41, 20, 3, 3)), STREAM)
        kl = scale_mixture_kl(drawn, 0.5, 1.0, 0.1)
    loss = drawn.value.square().sum() + 0.1 * kl
    for one, two in zip([drawn.value, loss, *torch.autograd.grad(loss, parameters)], expected, strict=True):
        assert torch.equal(one, two)
    with torch.autocast("cpu", torch.float16):
        assert in_bfloat16(parameters[0]) == (False, False)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_decoded_later_is_rounded_as_the_draw_was(inside):
    net = ks.germinate(nn.Conv2d(30, 40, 3), 0.5, over="weights")
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        sample = net.draw(generator()).samples["weight"]
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        again = sample.source.mean + sample.source.std * sample.noise
    torch.testing.assert_close(again, sample.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_moments_are_those_of_the_draw_in_every_precision(precision):
    torch.set_float32_matmul_precision(precision)
    net = ks.germinate(nn.Conv2d(30, 40, 3), 0.5, over="weights")
    with torch.no_grad():
        net.weights["weight"].rho_germinator.normal_(std=0.1)
    noise = ks.Noise.new(generator())
    moments, sample = net.weights["weight"].moments(), net.weights["weight"].sample(noise)
    torch.testing.assert_close(moments.sample(noise).value, sample.value, rtol=0, atol=1e-5)
