"""Abstention and conformal prediction: bounds that hold, by simulation with known risks, and direct formulas."""

import math
import sys

import pytest
import torch
from scipy import stats
from torch import nn

import kernelseed as ks
from kernelseed.decisions.abstaining import upper_bound
from kernelseed.errors import ArgumentError, ArgumentTypeError, MissingPackageError


def classified(probs):
    return ks.Classification.from_draws(probs[None])


def answers(count, generator, error_rate, ties=False):
    """Two classes, confidences from .5 to 1, and a label that differs at a rate that is a function of them."""
    c = 0.5 + 0.5 * torch.rand(count, generator=generator, dtype=torch.float64)
    c = (c * 40).ceil() / 40 if ties else c
    wrong = torch.rand(count, generator=generator) < error_rate(c)
    return classified(torch.stack([c, 1 - c], 1)), wrong.long()


def true_risk(threshold, error_rate, ties):
    c = torch.linspace(0.5, 1, 20_001, dtype=torch.float64)[1:]
    c = (c * 40).ceil() / 40 if ties else c
    return error_rate(c)[c > threshold].mean().item()


RATES = {
    "calibrated": lambda c: (1 - c) ** 2,
    "flat at the risk": lambda c: torch.full_like(c, 0.0501),  # where every threshold is wrong
    "sure and wrong": lambda c: torch.where(c > 0.97, 0.3, torch.where(c > 0.6, 0.01, 0.2)),  # not monotone
    "just above where it starts": lambda c: torch.where(c > 0.75, 0.04, 0.08),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", RATES)
def test_the_risk_of_new_answers_is_kept_as_often_as_promised(name, ties):
    """At confidence .8, of 150 validation sets at most 20 % may break the risk; the count's chance is below 1e-4."""
    rate, generator, trials = RATES[name], torch.Generator().manual_seed(0), 150
    broken, answered = 0, 0.0
    for _ in range(trials):
        found = ks.abstention(*answers(800, generator, rate, ties), risk=0.05, confidence=0.8)
        if found.threshold < math.inf:
            broken += true_risk(found.threshold, rate, ties) > 0.05
            answered += found.coverage / trials
    assert broken <= stats.binom.isf(1e-4, trials, 0.2)
    if name == "calibrated":
        assert answered > 0.5  # of .77, which nobody could tell from 800 examples


def test_the_plug_in_threshold_breaks_the_risk_half_of_the_time():
    """What the bound is for: the same simulation can fail."""
    rate, generator, broken = RATES["calibrated"], torch.Generator().manual_seed(0), 0
    for _ in range(100):
        p, labels = answers(800, generator, rate)
        broken += true_risk(ks.metrics.threshold_at_risk(p.confidence, p.label == labels, 0.05), rate, False) > 0.05
    assert broken > 40


@pytest.mark.parametrize(("errors", "trials"), [(0, 10), (3, 50), (49, 50), (50, 50), (120, 4000)])
def test_the_bound_is_clopper_and_pearsons(errors, trials):
    expected = 1.0 if errors == trials else stats.beta.ppf(0.99, errors + 1, trials - errors)
    assert upper_bound(errors, trials, 0.01) == pytest.approx(expected, rel=1e-9)


def test_what_is_answered_is_what_was_counted():
    p, labels = answers(2000, torch.Generator().manual_seed(1), RATES["calibrated"])
    found = ks.abstention(p, labels, risk=0.05)
    keep = ~found.abstains(p)
    assert (keep.sum(), (p.label != labels)[keep].sum()) == (found.answered, found.errors)
    assert found.bound == upper_bound(found.errors, found.answered, 0.05 / 20) <= 0.05
    assert 0 < found.coverage == found.answered / 2000 < 1


def test_a_perfect_network_answers_all_and_a_useless_one_nothing():
    p, labels = answers(2000, torch.Generator().manual_seed(1), torch.zeros_like)
    found = ks.abstention(p, labels)
    assert (found.threshold, found.coverage) == (0.0, 1.0)
    nothing = ks.abstention(p, 1 - labels)
    assert (nothing.threshold, nothing.answered) == (math.inf, 0)
    assert nothing.abstains(p).all()


P, LABELS = answers(1000, torch.Generator().manual_seed(0), RATES["calibrated"])
R = ks.Regression(torch.zeros(50), torch.ones(50), torch.zeros(50))
BAD = {
    "risk": (lambda: ks.abstention(P, LABELS, risk=2), ArgumentError, "risk is 2; allowed: 0 < risk < 1"),
    "confidence": (lambda: ks.abstention(P, LABELS, confidence=1.0), ArgumentError, "confidence is 1.0; allowed: 0 <"),
    "length": (lambda: ks.abstention(P, LABELS[:9]), ArgumentError, r"labels has shape \(9,\); it must be \(1000,\)"),
    "few": (
        lambda: ks.abstention(P, LABELS, risk=0.001),
        ArgumentError,
        "risk is 0.001 with 1000 validation examples; even without an error it takes 5989",
    ),
    "coverage": (lambda: ks.conformal(P, LABELS, 1.5), ArgumentError, "coverage is 1.5; allowed: 0 < coverage < 1"),
    "set length": (lambda: ks.conformal(P, LABELS[:9]), ArgumentError, r"labels has shape \(9,\)"),
    "set few": (lambda: ks.conformal(P, LABELS, 0.9999), ArgumentError, "with 1000 examples; it takes at least 10001"),
    "score": (lambda: ks.conformal(P, LABELS, score="asp"), ArgumentError, "score is 'asp'; allowed: lac, aps"),
    "aps by class": (lambda: ks.conformal(P, LABELS, score="aps", by_class=True), ArgumentError, "with by_class=True"),
    "empty class": (
        lambda: ks.conformal(P, torch.zeros_like(LABELS), by_class=True),
        ArgumentError,
        "coverage is 0.9 with 0 examples of class 1; it takes at least 11",
    ),
    "no prediction": (lambda: ks.conformal(P.probs, LABELS), ArgumentTypeError, "prediction is a Tensor"),
    "targets": (lambda: ks.conformal(R, torch.zeros(9)), ArgumentError, r"labels is \(9,\); it must be a tensor of 50"),
    "nan": (lambda: ks.conformal(R, torch.full((50,), math.nan)), ArgumentError, "50 finite targets"),
    "other classes": (
        lambda: ks.conformal(P, LABELS)(classified(torch.full((2, 3), 1 / 3))),
        ArgumentError,
        "prediction has 3 classes, and the one that it was fitted on 2",
    ),
    "risk a word": (lambda: ks.abstention(P, LABELS, "0.5"), ArgumentTypeError, "risk is '0.5'; it must be a number"),
    "coverage a word": (
        lambda: ks.conformal(P, LABELS, ".9"),
        ArgumentTypeError,
        "coverage is '.9'; it must be a numb",
    ),
    "abstain by probabilities": (
        lambda: ks.abstention(P, LABELS, 0.5).abstains(P.probs),
        ArgumentTypeError,
        "prediction is a Tensor; it must be a Classification",
    ),
    "sets of numbers": (
        lambda: ks.conformal(P, LABELS)(R),
        ArgumentTypeError,
        "prediction is a Regression; it must be a Classification: these are sets of classes",
    ),
    "intervals of classes": (
        lambda: ks.conformal(R, torch.zeros(50))(P),
        ArgumentTypeError,
        "prediction is a Classification; it must be a Regression: these are intervals of numbers",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_without_mapie_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mapie.classification", None)
    with pytest.raises(
        MissingPackageError, match=r"conformal prediction needs .*pip install \"kernelseed\[conformal\]"
    ):
        ks.conformal(P, LABELS)


# Conformal sets and intervals


def examples(count, generator):
    """Three classes of unequal frequency, and probabilities that are wrong about them."""
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), count, replacement=True, generator=generator)
    logits = torch.randn(count, 3, generator=generator)
    logits[torch.arange(count), labels] += torch.tensor([2.0, 1.0, 0.3])[labels]
    return classified((2 * logits).softmax(1)), labels


@pytest.mark.parametrize(("score", "by_class"), [("lac", False), ("lac", True), ("aps", False)])
def test_sets_hold_the_label_as_often_as_promised(score, by_class):
    generator, trials, coverage = torch.Generator().manual_seed(0), 30, 0.8
    held = torch.zeros(trials, 4, dtype=torch.float64)
    for trial in range(trials):
        sets = ks.conformal(*examples(300, generator), coverage, score=score, by_class=by_class)
        p, labels = examples(2000, generator)
        inside = sets(p)[torch.arange(2000), labels]
        held[trial] = torch.stack([inside.double().mean(), *(inside[labels == k].double().mean() for k in range(3))])
    mean, error = held.mean(0), held.std(0) / math.sqrt(trials)
    promised = slice(None) if by_class else slice(1)  # each class, or all together
    assert (mean[promised] > coverage - 4 * error[promised]).all()
    if score == "lac":
        assert mean[0] < coverage + 0.04
        if not by_class:
            assert mean[3] < 0.7  # the rare class pays, which by_class is for
    else:
        assert ks.conformal(*examples(300, generator), coverage, score="aps")(p).any(1).all()


def test_sets_are_those_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    p, labels = examples(200, generator)
    new, _ = examples(50, generator)
    score = 1 - p.probs[torch.arange(200), labels].double()
    quantile = score.sort().values[math.ceil(201 * 0.9) - 1]
    assert torch.equal(ks.conformal(p, labels, 0.9)(new), 1 - new.probs.double() <= quantile + 1e-7)


def test_intervals_are_mean_and_a_quantile_of_std_and_hold_the_target_as_often_as_promised():
    generator, coverage = torch.Generator().manual_seed(0), 0.8
    held = []
    for _ in range(20):
        std = 0.1 + torch.rand(800, generator=generator)
        mean = torch.randn(800, 1, generator=generator)
        target = mean[:, 0] + 3 * std * torch.randn(800, generator=generator)  # overconfident by three
        parts = [
            ks.Regression(mean[i], 0.5 * std[i, None] ** 2, 0.5 * std[i, None] ** 2)
            for i in (slice(200), slice(200, 800))
        ]
        found = ks.conformal(parts[0], target[:200], coverage)(parts[1])
        held.append(((found[:, 0] <= target[200:]) & (target[200:] <= found[:, 1])).double().mean())
    score = ((target[:200] - mean[:200, 0]).abs() / std[:200]).sort().values[math.ceil(201 * coverage) - 1]
    half = score * std[200:]
    expected = torch.stack([mean[200:, 0] - half, mean[200:, 0] + half], 1)
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)
    held = torch.stack(held)
    assert coverage - 4 * held.std() / 20**0.5 < held.mean() < coverage + 0.03


def test_a_threshold_is_for_classes():
    found = ks.predict(ks.germinate(nn.Linear(2, 1)), torch.zeros(3, 2), likelihood=ks.likelihoods.Gaussian(0.1))
    with pytest.raises(ArgumentTypeError, match=r"prediction is a Regression; .* a threshold is for classes"):
        ks.abstention(found, torch.zeros(3))
