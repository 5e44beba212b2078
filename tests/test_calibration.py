import doctest
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar

from kernelseed import metrics
from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.metrics import TemperatureScaling, calibration
from kernelseed.metrics.calibration import HIGHEST, LOWEST

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def random_logits(n=500, k=4, scale=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


def nll_at(temperature, logits, labels):
    return torch.nn.functional.cross_entropy(logits / temperature, labels).item()


@st.composite
def predictions(draw):
    """Logits of any scale, ties among them, and labels."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    scale = 10 ** draw(st.floats(-3, 2.5))
    logits = scale * torch.tensor(draw(hnp.arrays(np.int64, (n, k), elements=st.integers(-3, 3))), dtype=torch.float64)
    return logits, torch.tensor(draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1))))


# --- the temperature


@pytest.mark.parametrize("p", [0.6, 0.9, 0.999])
def test_a_constant_predictor_has_a_closed_form(p):
    """Right r times in ten with confidence p: T = logit(p) / logit(r/10), after which it says r/10."""
    probs = torch.tensor([[p, 1 - p]], dtype=torch.float64).expand(10, 2)
    logit = lambda q: math.log(q / (1 - q))  # noqa: E731
    for right in (6, 8, 9):
        labels = torch.tensor([0] * right + [1] * (10 - right))
        scaling = TemperatureScaling.fit(probs, labels)
        assert scaling.temperature == pytest.approx(logit(p) / logit(right / 10), rel=1e-9)
        assert scaling.apply(probs)[0, 0].item() == pytest.approx(right / 10, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 10.0])
def test_a_known_temperature_is_recovered(temperature):
    """The labels come from softmax(z); the predictor says softmax(T z). Sampling error is 1 % here."""
    logits, labels = random_logits(n=20_000)
    fitted = TemperatureScaling.fit((temperature * logits).softmax(1), labels)
    assert fitted.temperature == pytest.approx(temperature, rel=0.04)


def test_scaling_the_logits_scales_the_temperature():
    logits, labels = random_logits()
    plain = TemperatureScaling.fit(logits, labels, logits=True).temperature
    for factor in (0.1, 20.0):
        scaled = TemperatureScaling.fit(factor * logits, labels, logits=True).temperature
        assert scaled == pytest.approx(factor * plain, rel=1e-9)


@pytest.mark.parametrize("scale", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("k", [2, 10])
def test_it_is_the_optimum_scipy_finds(k, scale):
    logits, labels = random_logits(k=k, scale=scale)
    logits = logits * 1.7 + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    found = minimize_scalar(
        lambda t: nll_at(math.exp(t), logits, labels),
        bounds=(math.log(LOWEST), math.log(HIGHEST)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert TemperatureScaling.fit(logits, labels, logits=True).temperature == pytest.approx(math.exp(found.x), rel=1e-5)


@quick
@given(predictions())
def test_no_temperature_on_a_grid_is_better(data):
    logits, labels = data
    temperature = TemperatureScaling.fit(logits, labels, logits=True).temperature
    assert LOWEST <= temperature <= HIGHEST
    least = nll_at(temperature, logits, labels)
    for other in np.geomspace(LOWEST, HIGHEST, 41):
        assert least <= nll_at(other, logits, labels) * (1 + 1e-12) + 1e-12


def test_newton_needs_few_passes_over_the_data(monkeypatch):
    """Bisection alone would take 37 softmaxes to reach 1e-10, after the three at T = 1 and the bounds."""
    passes = []
    softmax = torch.Tensor.softmax
    logits, labels = random_logits()
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *args: passes.append(1) or softmax(*args))
    TemperatureScaling.fit(5 * logits, labels, logits=True)
    assert 3 < len(passes) <= 15


def test_probabilities_and_logits_agree():
    logits, labels = random_logits()
    from_logits = TemperatureScaling.fit(logits, labels, logits=True)
    assert TemperatureScaling.fit(logits.softmax(1), labels).temperature == pytest.approx(
        from_logits.temperature, rel=1e-9
    )
    torch.testing.assert_close(from_logits.apply(logits.softmax(1)), from_logits.apply(logits, logits=True))


def test_logits_reach_beyond_underflow():
    """The wrong class is 2000 nats below: as a probability that is 0, as a logit it still tells T apart."""
    logits = torch.tensor([[0.0, -2000.0]]).expand(4, 2)
    labels = torch.tensor([0, 0, 0, 1])
    closed_form = min(2000 / math.log(3), HIGHEST)
    assert TemperatureScaling.fit(logits, labels, logits=True).temperature == closed_form == HIGHEST
    assert TemperatureScaling.fit(logits / 50, labels, logits=True).temperature == pytest.approx(40 / math.log(3))


# --- what it does to predictions


@quick
@given(predictions())
def test_the_nll_on_the_fitting_set_never_rises(data):
    logits, labels = data
    probs = logits.softmax(1)
    scaled = TemperatureScaling.fit(probs, labels).apply(probs)
    assert metrics.nll(scaled, labels) <= metrics.nll(probs, labels) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_top_class_stays_on_top(dtype):
    """Rounding to a coarse dtype may make a second class tie with it, but nothing overtakes it."""
    probs = random_logits(n=200, k=10)[0].softmax(1).to(dtype)
    top = probs.argmax(1, keepdim=True)
    for temperature in (0.01, 0.3, 2.5, 100.0):
        scaled = TemperatureScaling(temperature).apply(probs)
        assert scaled.dtype == dtype
        assert (scaled.gather(1, top) == scaled.amax(1, keepdim=True)).all()
        if dtype in (torch.float32, torch.float64):
            assert (scaled.argmax(1, keepdim=True) == top).all()


def test_apply_is_a_power_normalised():
    probs = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    expected = probs.sqrt() / probs.sqrt().sum()
    torch.testing.assert_close(TemperatureScaling(2).apply(probs), expected)
    torch.testing.assert_close(TemperatureScaling(1).apply(probs), probs)


def test_apply_leaves_its_input_and_the_graph_alone():
    probs = torch.tensor([[0.9, 0.1]], requires_grad=True)
    scaled = TemperatureScaling(2.0).apply(probs)
    assert not scaled.requires_grad
    assert torch.equal(probs, torch.tensor([[0.9, 0.1]]))


# --- the edges


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_separable_examples_stop_at_the_lowest_temperature(dtype):
    for p in (0.6, 0.99, 1.0):
        probs = torch.tensor([[p, 1 - p], [1 - p, p]], dtype=dtype)
        scaling = TemperatureScaling.fit(probs, torch.tensor([0, 1]))
        assert scaling.temperature == LOWEST
        torch.testing.assert_close(scaling.apply(probs), torch.eye(2, dtype=dtype))


def test_contradicted_examples_stop_at_the_highest_temperature():
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.2]])
    scaling = TemperatureScaling.fit(probs, torch.tensor([1, 0, 1]))
    assert scaling.temperature == HIGHEST
    assert scaling.apply(probs).isfinite().all()


@pytest.mark.parametrize("k", [1, 2, 7])
def test_where_every_temperature_is_as_good_it_is_one(k):
    probs = torch.full((5, k), 1 / k)
    scaling = TemperatureScaling.fit(probs, torch.tensor([0, 0, 0, 0, k - 1]))
    assert scaling.temperature == 1
    torch.testing.assert_close(scaling.apply(probs), probs)


def test_saturated_logits_give_no_nan():
    logits = torch.tensor([[0.0, -1e30], [3e38, -3e38]])
    for labels in ([0, 0], [0, 1], [1, 1]):
        scaling = TemperatureScaling.fit(logits, torch.tensor(labels), logits=True)
        assert LOWEST <= scaling.temperature <= HIGHEST
        assert scaling.apply(logits, logits=True).tolist() == [[1, 0], [1, 0]]


def test_it_is_a_frozen_value():
    scaling = TemperatureScaling(2.0)
    assert scaling == TemperatureScaling(2)
    with pytest.raises(FrozenInstanceError):
        scaling.temperature = 1.0


# --- bad input


def test_bad_temperatures():
    for temperature in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match=rf"temperature is {temperature}; it must be positive and finite"):
            TemperatureScaling(temperature)
    for temperature, kind in (("2", "str"), (True, "bool"), (torch.tensor(2.0), "torch.float32 tensor")):
        with pytest.raises(ArgumentTypeError, match=rf"temperature is a {kind}; .*float\(temperature\)"):
            TemperatureScaling(temperature)


def test_logits_passed_as_probabilities_are_noticed():
    logits = torch.tensor([[2.0, 1.2]])
    with pytest.raises(ArgumentError, match=r"sums to 3.2 in row 0; .*if they are logits, use"):
        TemperatureScaling.fit(logits, torch.tensor([0]))
    with pytest.raises(ArgumentError, match=r"sums to 3.2 in row 0; .*if they are logits, use"):
        TemperatureScaling(2.0).apply(logits)


@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        ([[1.0, 2.0]], ArgumentTypeError, r"probs is a list; it must be a floating-point tensor"),
        (torch.tensor([[1, 2]]), ArgumentTypeError, r"probs is a torch.int64 tensor"),
        (torch.tensor([1.0, 2.0]), ArgumentError, r"probs has shape \(2,\); logits must be .*logits\[None\]"),
        (torch.zeros(0, 2), ArgumentError, r"probs has shape \(0, 2\); .*not empty"),
        (torch.tensor([[0.0, -math.inf]]), ArgumentError, r"probs holds inf or nan; .*mask a class with -1e4"),
    ],
)
def test_bad_logits(logits, error, message):
    with pytest.raises(error, match=message):
        TemperatureScaling.fit(logits, torch.tensor([0]), logits=True)
    with pytest.raises(error, match=message):
        TemperatureScaling(2.0).apply(logits, logits=True)


@pytest.mark.parametrize("logits", [False, True])
def test_bad_labels(logits):
    probs = torch.tensor([[0.5, 0.5]])
    with pytest.raises(ArgumentError, match=r"labels is 2 in row 0; with 2 classes"):
        TemperatureScaling.fit(probs, torch.tensor([2]), logits=logits)
    with pytest.raises(ArgumentTypeError, match=r"labels is a torch.float32 tensor"):
        TemperatureScaling.fit(probs, torch.tensor([0.0]), logits=logits)


def test_the_example_runs():
    failed, attempted = doctest.testmod(calibration)
    assert attempted >= 4
    assert failed == 0
