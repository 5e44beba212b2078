import math
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import reference_metrics as reference
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernelseed import metrics
from kernelseed.errors import ArgumentError, ArgumentTypeError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports are not ours
    from torchmetrics.functional.classification import multiclass_calibration_error

BINNED = [metrics.ece, metrics.ace, metrics.mce, metrics.adaptive_ece, metrics.summary, metrics.reliability]
OF_PROBS = [metrics.accuracy, metrics.nll, metrics.brier, *BINNED]
SELECTIVE = [
    metrics.risk_coverage,
    metrics.aurc,
    lambda confidence, correct: metrics.threshold_at_risk(confidence, correct, 0.1),
]
NAMES = ["accuracy", "nll", "brier", "ece", "ace", "mce", "adaptive_ece"]
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@st.composite
def votes(draw, least=1):
    """Vote shares, full of ties and of confidences on bin edges, and labels."""
    n, k = draw(st.integers(1, 25)), draw(st.integers(1, 5))
    counts = torch.tensor(draw(hnp.arrays(np.int64, (n, k), elements=st.integers(least, 5))), dtype=torch.float64)
    counts[:, 0] += counts.sum(1) == 0
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return counts / counts.sum(1, keepdim=True), torch.tensor(labels)


@st.composite
def selections(draw):
    n = draw(st.integers(1, 25))
    confidence = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 8)))
    correct = draw(hnp.arrays(np.bool_, n))
    return torch.tensor(confidence / 8), torch.tensor(correct)


scores = st.lists(st.integers(-3, 8).map(float), min_size=1, max_size=45)


def random_predictions(n=400, k=5, seed=0):
    """Labels follow the probabilities, so that bins err to both sides and the choice of bins matters."""
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, k, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def two_class(confidences, dtype=torch.float64):
    c = torch.tensor(confidences, dtype=dtype)
    return torch.stack([c, 1 - c], 1)


# --- against the definitions, and against others


@quick
@given(votes(), st.integers(1, 20))
def test_every_metric_is_its_literal_definition(data, bins):
    probs, labels = data
    rows, y = probs.tolist(), labels.tolist()
    expected = {name: getattr(reference, name)(rows, y) for name in NAMES[:3]}
    expected |= {name: getattr(reference, name)(rows, y, bins) for name in NAMES[3:]}
    measured = metrics.summary(probs, labels, bins)
    assert list(measured) == NAMES
    assert measured == pytest.approx(expected, abs=1e-12)
    assert all(type(value) is float for value in measured.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_metrics_are_the_summary(dtype):
    probs, labels = random_predictions(k=10)
    probs = probs.to(dtype)
    whole = metrics.summary(probs, labels, bins=7)
    for name in NAMES[:3]:
        assert getattr(metrics, name)(probs, labels) == whole[name]
    for name in NAMES[3:]:
        assert getattr(metrics, name)(probs, labels, bins=7) == whole[name]
    assert metrics.ece(probs, labels) == metrics.ece(probs, labels, 15) != whole["ece"]


@pytest.mark.parametrize("k", [2, 5, 30])
def test_ece_and_mce_equal_torchmetrics(k):
    probs, labels = random_predictions(k=k)
    for bins in (1, 10, 15):
        for ours, norm in [(metrics.ece, "l1"), (metrics.mce, "max")]:
            theirs = multiclass_calibration_error(probs, labels, num_classes=k, n_bins=bins, norm=norm)
            assert ours(probs, labels, bins) == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("k", [2, 5, 30])
def test_nll_brier_and_accuracy_equal_sklearn(k):
    probs, labels = random_predictions(k=k)
    p, y, classes = probs.numpy(), labels.numpy(), list(range(k))
    assert metrics.nll(probs, labels) == pytest.approx(sklearn.metrics.log_loss(y, p, labels=classes))
    theirs = sklearn.metrics.brier_score_loss(y, p, labels=classes, scale_by_half=False)
    assert metrics.brier(probs, labels) == pytest.approx(theirs)
    assert metrics.accuracy(probs, labels) == sklearn.metrics.accuracy_score(y, p.argmax(1))


# --- closed forms


def test_a_calibrated_predictor_has_no_calibration_error():
    """Of ten examples with confidence c, exactly 10 c are right."""
    confidences = [0.6] * 10 + [0.7] * 10 + [0.8] * 10 + [0.9] * 10
    labels = torch.tensor([int(i >= round(10 * c)) for c in (0.6, 0.7, 0.8, 0.9) for i in range(10)])
    values = metrics.summary(two_class(confidences), labels, bins=10)
    assert values["accuracy"] == 0.75
    for name in ("ece", "ace", "mce"):
        assert values[name] == pytest.approx(0, abs=1e-12)
    assert metrics.adaptive_ece(two_class(confidences), labels, bins=4) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 10])
def test_the_uniform_predictor(k):
    """It always predicts the first class, with confidence 1/K, and that class has 3 of 4 labels."""
    probs, labels = torch.full((8, k), 1 / k), torch.tensor([0, 0, 0, k - 1] * 2)
    values = metrics.summary(probs, labels)
    right = 0.75 if k > 1 else 1.0
    gap = right - 1 / k
    assert values["accuracy"] == right
    assert values["nll"] == pytest.approx(math.log(k), rel=1e-6, abs=1e-12)
    assert values["brier"] == pytest.approx(1 - 1 / k, abs=1e-6)
    assert [values[name] for name in NAMES[3:]] == pytest.approx([gap] * 4, abs=1e-6)


def test_the_three_calibration_errors_by_hand():
    """Gaps 0.1 (three examples), 0.7 (one); the other bins are empty."""
    probs, labels = two_class([0.9, 0.9, 0.9, 0.7]), torch.tensor([0, 0, 0, 1])
    assert metrics.ece(probs, labels) == pytest.approx((3 * 0.1 + 0.7) / 4)
    assert metrics.ace(probs, labels) == pytest.approx((0.1 + 0.7) / 2)
    assert metrics.mce(probs, labels) == pytest.approx(0.7)


def test_ties_in_argmax_go_to_the_first_class():
    probs = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert metrics.accuracy(probs, torch.tensor([0, 1])) == 1
    assert metrics.accuracy(probs, torch.tensor([1, 2])) == 0


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_a_label_of_probability_zero_costs_the_tiniest_normal():
    for dtype in DTYPES:
        cost = metrics.nll(torch.tensor([[1, 0]], dtype=dtype), torch.tensor([1]))
        assert cost == pytest.approx(-math.log(torch.finfo(dtype).tiny))


# --- bins


@quick
@given(votes(), st.integers(1, 20), st.booleans())
def test_bins_are_half_open_and_hold_every_example(data, bins, equal_mass):
    probs, labels = data
    r = metrics.reliability(probs, labels, bins, equal_mass=equal_mass)
    confidence = probs.max(1).values
    assert r.edges.shape == (bins + 1,)
    assert r.count.sum() == len(labels)
    for b in range(bins):
        inside = confidence[(confidence > r.edges[b]) & (confidence <= r.edges[b + 1])]
        assert r.count[b] == len(inside)
        assert r.confidence[b].item() == pytest.approx(inside.mean().item(), nan_ok=True)
        assert r.accuracy[b].isnan() == (len(inside) == 0) == r.gap[b].isnan()


@pytest.mark.parametrize(
    ("confidence", "bins", "index"),
    [
        (0.6, 15, 8),
        (0.8, 15, 11),
        (0.8, 5, 3),
        (0.9, 10, 8),
        (0.5, 2, 0),
        (0.75, 4, 2),
        (1.0, 15, 14),
        (1.0, 1, 0),
    ],
)
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(confidence, bins, index):
    """Whatever the dtype, although 0.6 in float32 is above 0.6 in float64."""
    for dtype in DTYPES:
        r = metrics.reliability(two_class([confidence], dtype), torch.tensor([0]), bins)
        assert r.count.nonzero().flatten().tolist() == [index]


@pytest.mark.parametrize("k", [3, 5, 15])
def test_the_least_confidence_one_kth_lies_on_its_edge(k):
    r = metrics.reliability(torch.full((2, k), 1 / k), torch.tensor([0, 1]), bins=15)
    assert r.count.nonzero().flatten().tolist() == [15 // k - 1]
    assert r.accuracy[15 // k - 1] == 0.5


def test_a_confidence_rounded_above_one_is_in_the_last_bin():
    r = metrics.reliability(torch.tensor([[1.00001, 0.0]]), torch.tensor([0]), bins=4)
    assert r.count.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("n", "bins"), [(12, 4), (13, 4), (14, 4), (15, 4), (3, 5), (100, 15)])
def test_equal_mass_bins_differ_by_one_at_most(n, bins):
    confidences = torch.linspace(0.51, 0.99, n).tolist()
    r = metrics.reliability(two_class(confidences), torch.zeros(n, dtype=torch.long), bins, equal_mass=True)
    assert r.count.sum() == n
    assert set(r.count.tolist()) <= {n // bins, -(-n // bins)}


def test_examples_that_tie_share_an_equal_mass_bin():
    """Split in two, right ones apart from wrong ones, they would show an error of 0.5."""
    probs, labels = two_class([0.5] * 4), torch.tensor([0, 0, 1, 1])
    assert metrics.reliability(probs, labels, bins=2, equal_mass=True).count.tolist() == [4, 0]
    assert metrics.adaptive_ece(probs, labels, bins=2) == 0


def test_reliability_is_frozen():
    r = metrics.reliability(*random_predictions())
    with pytest.raises(FrozenInstanceError):
        r.count = torch.zeros(15)


# --- what must not matter


@quick
@given(votes(least=0), st.randoms(use_true_random=False))
def test_the_order_of_examples_does_not_matter(data, random):
    probs, labels = data
    order = random.sample(range(len(labels)), len(labels))
    assert metrics.summary(probs[order], labels[order]) == pytest.approx(metrics.summary(probs, labels), abs=1e-12)


@quick
@given(selections(), st.randoms(use_true_random=False))
def test_the_order_of_selected_examples_does_not_matter(data, random):
    confidence, correct = data
    order = random.sample(range(len(correct)), len(correct))
    for metric in SELECTIVE:
        np.testing.assert_allclose(metric(confidence[order], correct[order]), metric(confidence, correct), atol=1e-12)


def test_the_order_of_classes_does_not_matter():
    probs, labels = random_predictions()
    order = torch.tensor([3, 0, 4, 1, 2])
    assert metrics.summary(probs[:, order], order.argsort()[labels]) == pytest.approx(
        metrics.summary(probs, labels), abs=1e-12
    )


def test_integer_labels_and_gradients_are_welcome():
    probs, labels = random_predictions()
    expected = metrics.summary(probs, labels)
    for dtype in (torch.uint8, torch.int32):
        assert metrics.summary(probs.requires_grad_(), labels.to(dtype)) == expected


@pytest.mark.parametrize("k", [2, 1000])
def test_half_precision_probabilities_pass_as_such(k):
    probs, labels = random_predictions(k=k)
    for dtype in (torch.float16, torch.bfloat16):
        assert metrics.brier(probs.to(dtype), labels) == pytest.approx(metrics.brier(probs, labels), rel=0.02)


def test_sums_are_taken_in_float64():
    """In float32 the mean over many rows would drift; here it is the score of one row."""
    row = torch.tensor([[0.7, 0.2, 0.1]])
    many = metrics.brier(row.expand(99_999, 3), torch.zeros(99_999, dtype=torch.long))
    assert many == pytest.approx(metrics.brier(row, torch.tensor([0])), rel=1e-12)


# --- abstaining


@quick
@given(selections(), st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0]))
def test_selective_metrics_are_their_literal_definitions(data, risk):
    confidence, correct = data
    c, right = confidence.tolist(), correct.tolist()
    coverage, risks = metrics.risk_coverage(confidence, correct)
    assert coverage.dtype == risks.dtype == torch.float64
    np.testing.assert_allclose(torch.stack([coverage, risks], 1), reference.risk_coverage(c, right), atol=1e-12)
    assert metrics.aurc(confidence, correct) == pytest.approx(reference.aurc(c, right), abs=1e-12)
    assert metrics.threshold_at_risk(confidence, correct, risk) == reference.threshold_at_risk(c, right, risk)


def test_the_threshold_is_the_lowest_although_a_higher_one_fails():
    """From the most confident down, the risks are 1, 1/2, 1/3, 1/4, 2/5."""
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    correct = torch.tensor([False, True, True, True, False])
    threshold = metrics.threshold_at_risk(confidence, correct, 0.25)
    abstain = confidence < threshold
    assert abstain.tolist() == [False, False, False, False, True]


def test_an_unattainable_risk_abstains_always():
    confidence, correct = torch.tensor([0.9, 0.8]), torch.tensor([False, True])
    threshold = metrics.threshold_at_risk(confidence, correct, 0.4)
    assert threshold == math.inf
    assert (confidence < threshold).all()


def test_aurc_of_a_perfect_and_of_a_useless_ranking():
    correct = torch.tensor([True] * 6 + [False] * 2)
    assert metrics.aurc(torch.arange(8, 0, -1.0), correct) == pytest.approx((1 / 7 + 2 / 8) / 8)
    assert metrics.aurc(torch.zeros(8), correct) == pytest.approx(0.25)


# --- out of distribution


@quick
@given(scores, scores)
def test_ood_metrics_are_their_literal_definitions_and_sklearns(inside, out):
    is_out, both = [0] * len(inside) + [1] * len(out), inside + out
    auroc = metrics.auroc(torch.tensor(inside), torch.tensor(out))
    assert auroc == pytest.approx(reference.auroc(inside, out), abs=1e-12)
    assert auroc == pytest.approx(sklearn.metrics.roc_auc_score(is_out, both), abs=1e-12)
    fpr = metrics.fpr_at_95_tpr(torch.tensor(inside), torch.tensor(out))
    assert fpr == pytest.approx(reference.fpr_at_95_tpr(inside, out), abs=1e-12)
    aupr = metrics.aupr(torch.tensor(inside), torch.tensor(out))
    assert aupr == pytest.approx(sklearn.metrics.average_precision_score(is_out, both), abs=1e-12)
    all_fpr, all_tpr, _ = sklearn.metrics.roc_curve(is_out, both, drop_intermediate=False)
    assert fpr == pytest.approx(all_fpr[all_tpr >= 0.95 - 1e-12].min(), abs=1e-12)


def test_auroc_of_separated_equal_and_reversed_scores():
    low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, math.inf])
    assert metrics.auroc(low, high) == 1
    assert metrics.auroc(high, low) == 0
    assert metrics.auroc(low, low) == 0.5


def test_ninety_five_percent_of_a_hundred_is_ninety_five():
    """The five lowest of 100 out-scores may be missed: 5.0 is the threshold, and flags 5.0 but not 4.9."""
    out = torch.arange(100.0)
    assert metrics.fpr_at_95_tpr(torch.tensor([4.9, 5.0]), out) == 0.5


def test_the_other_positive_class_is_a_swap_and_a_sign():
    """As the docstring says: flag 95 % of the in-distribution inputs as such, count the others among them."""
    inside, out = torch.arange(20.0), torch.tensor([18.0, 18.5, 19.0, 30.0])
    assert metrics.fpr_at_95_tpr(-out, -inside) == 0.25


# --- bad input


def good():
    return torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("probs", "error", "message"),
    [
        ([[0.5, 0.5]], ArgumentTypeError, r"probs is a list; .*floating-point tensor: use torch.as_tensor\(probs\)"),
        (torch.ones(2, 1, dtype=torch.long), ArgumentTypeError, r"probs is a torch.int64 tensor; .*\.float\(\)"),
        (torch.ones(2), ArgumentError, r"probs has shape \(2,\); it must be \(examples, classes\).*probs\[None\]"),
        (torch.full((3, 2, 2), 0.5), ArgumentError, r"probs has shape \(3, 2, 2\).*average over draws first"),
        (torch.ones(0, 2), ArgumentError, r"probs has shape \(0, 2\).*not empty"),
        (torch.ones(2, 0), ArgumentError, r"probs has shape \(2, 0\).*not empty"),
        (torch.tensor([[0.5, 0.5], [2.2, 1.0]]), ArgumentError, r"probs sums to 3.2 in row 1; .*must sum to 1"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.499]]), ArgumentError, r"to 0.999 in row 1; .*0.0001 in torch.float32"),
        (torch.tensor([[0.5, 0.5], [0.9, 0.0]]).half(), ArgumentError, r"in row 1; .*0.0078 in torch.float16"),
        (torch.tensor([[0.5, 0.5], [0.9, 0.0]]).bfloat16(), ArgumentError, r"in row 1; .*0.062 in torch.bfloat16"),
        (torch.tensor([[1.5, -0.5], [1, 0]]), ArgumentError, r"probs is -0.5 in row 0; .*use logits.softmax\(-1\)"),
        (torch.tensor([[1, 0], [math.nan, 1]]), ArgumentError, r"probs is nan in row 1; .*lie in \[0, 1\]"),
        (torch.tensor([[1, 0], [math.inf, 1]]), ArgumentError, r"probs sums to inf in row 1"),
    ],
)
def test_bad_probs(probs, error, message):
    for metric in OF_PROBS:
        with pytest.raises(error, match=message):
            metric(probs, good()[1])


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([0, 1], ArgumentTypeError, r"labels is a list; .*integer tensor"),
        (torch.tensor([0.0, 1.0]), ArgumentTypeError, r"labels is a torch.float32 tensor; .*use labels.long\(\)"),
        (torch.tensor([False, True]), ArgumentTypeError, r"labels is a torch.bool tensor"),
        (torch.tensor([0j, 1j]), ArgumentTypeError, r"labels is a torch.complex64 tensor"),
        (torch.tensor([0, 1, 1]), ArgumentError, r"labels has shape \(3,\); it must be \(2,\)"),
        (torch.tensor([[1, 0], [0, 1]]), ArgumentError, r"has shape \(2, 2\).*labels.argmax\(-1\) for one-hot"),
        (torch.tensor([[0], [1]]), ArgumentError, r"labels has shape \(2, 1\).*labels.flatten\(\) for a column"),
        (torch.tensor([0, 2]), ArgumentError, r"labels is 2 in row 1; with 2 classes labels lie in 0\.\.1"),
        (torch.tensor([-100, 1]), ArgumentError, r"labels is -100 in row 0; .*drop ignored examples"),
    ],
)
def test_bad_labels(labels, error, message):
    for metric in OF_PROBS:
        with pytest.raises(error, match=message):
            metric(good()[0], labels)


@pytest.mark.parametrize(
    ("bins", "error", "message"),
    [
        (0, ArgumentError, "bins is 0; it must be at least 1: 15 is"),
        (10.0, ArgumentTypeError, "bins is 10.0; it must be an int"),
        (True, ArgumentTypeError, "bins is True; it must be an int"),
    ],
)
def test_bad_bins(bins, error, message):
    for metric in BINNED:
        with pytest.raises(error, match=message):
            metric(*good(), bins)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ([0.5, 0.5], ArgumentTypeError, r"is a list; it must be a floating-point tensor: use torch.as_tensor"),
        (torch.zeros(2, 2), ArgumentError, r"has shape \(2, 2\); it must be \(examples,\)"),
        (torch.zeros(0), ArgumentError, r"has shape \(0,\); .*not empty"),
        (torch.tensor([0.5, math.nan]), ArgumentError, r"is nan in row 1; NaN has no rank"),
    ],
)
def test_bad_scores(bad, error, message):
    for metric in SELECTIVE:
        with pytest.raises(error, match="confidence " + message):
            metric(bad, torch.tensor([True, False]))
    for metric in (metrics.auroc, metrics.fpr_at_95_tpr):
        with pytest.raises(error, match="in_scores " + message):
            metric(bad, torch.zeros(2))
        with pytest.raises(error, match="out_scores " + message):
            metric(torch.zeros(2), bad)


@pytest.mark.parametrize(
    ("correct", "error", "message"),
    [
        ([True, False], ArgumentTypeError, r"correct is a list; it must be a bool tensor"),
        (torch.tensor([1, 0]), ArgumentTypeError, r"is a torch.int64 tensor; .*probs.argmax\(-1\) == labels"),
        (torch.tensor([True]), ArgumentError, r"correct has shape \(1,\); it must be that of confidence, \(2,\)"),
    ],
)
def test_bad_correct(correct, error, message):
    for metric in SELECTIVE:
        with pytest.raises(error, match=message):
            metric(torch.tensor([0.5, 0.6]), correct)


@pytest.mark.parametrize("risk", [-0.1, 5, math.nan])
def test_bad_risk(risk):
    with pytest.raises(ArgumentError, match=rf"risk is {risk}; .*lies in \[0, 1\]: write 5 % as 0.05"):
        metrics.threshold_at_risk(torch.tensor([0.5]), torch.tensor([True]), risk)


def test_the_generalised_area_is_its_closed_form_and_the_excess_is_over_the_best_order():
    torch.manual_seed(0)
    for ties in (10, 10_000):
        confidence = (torch.rand(300) * ties).round() / ties
        correct = torch.rand(300) < confidence
        error = 1 - correct.double().mean().item()
        wrong_first = metrics.auroc(confidence[~correct], confidence[correct])
        expected = (1 - wrong_first) * error * (1 - error) + error**2 / 2
        assert metrics.augrc(confidence, correct) == pytest.approx(expected, abs=1e-12)
        best = sum(max(0, rank - int(correct.sum())) / rank for rank in range(1, 301)) / 300
        excess = metrics.eaurc(confidence, correct)
        assert excess == pytest.approx(metrics.aurc(confidence, correct) - best, abs=1e-12)
        assert excess > 0
    order = correct.double() + torch.rand(300) / 2
    assert metrics.eaurc(order, correct) == pytest.approx(0, abs=1e-12)
    assert metrics.eaurc(correct.double(), correct) == pytest.approx(0, abs=1e-12)  # also if all wrong ones tie
