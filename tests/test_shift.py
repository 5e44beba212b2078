"""Scores of outliers, curves under shift, and data from elsewhere."""

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn

import kernelseed as ks
from kernelseed.core import likelihoods, prediction
from kernelseed.core.predictive import concatenate
from kernelseed.data import CORRUPTIONS, Batches, Dataset, Split, corrupt
from kernelseed.errors import ArgumentError, ConfigError, DataError
from kernelseed.training import Config, average_curve, averages, shift_curves
from kernelseed.training.elsewhere import fitted, load_elsewhere, told_apart

# --- scores


def test_scores_are_their_definitions_draw_by_draw():
    logits = 3 * torch.randn(7, 20, 4, dtype=torch.float64)
    found = ks.outlier_scores(ks.Classification.from_logits(logits))
    for i in range(20):
        probs = [[math.exp(f) / sum(map(math.exp, row)) for f in row] for row in logits[:, i].tolist()]
        mean = [sum(p[k] for p in probs) / 7 for k in range(4)]
        entropies = [-sum(p_k * math.log(p_k) for p_k in p) for p in [mean, *probs]]
        votes = [max(range(4), key=p.__getitem__) for p in probs]
        energies = [-math.log(sum(map(math.exp, row))) for row in logits[:, i].tolist()]
        wanted = {
            "max_probability": 1 - max(mean),
            "entropy": entropies[0],
            "mutual_information": entropies[0] - sum(entropies[1:]) / 7,
            "energy": sum(energies) / 7,
            "variation_ratio": 1 - max(votes.count(k) for k in range(4)) / 7,
        }
        assert {name: score[i].item() for name, score in found.items()} == pytest.approx(wanted, abs=1e-12)


def test_scores_of_one_draw_have_no_disagreement():
    found = ks.outlier_scores(ks.Classification.from_logits(torch.randn(1, 9, 5)))
    assert found["variation_ratio"].abs().max() == 0
    assert found["mutual_information"].abs().max() < 1e-6


def test_energy_and_votes_of_a_dense_prediction_and_of_many_draws(monkeypatch):
    """The class axis is 1; draws that are averaged 32 at a time are averaged as they would be at once."""
    logits = torch.randn(5, 6, 3, 2, 2)
    p = ks.Classification.from_logits(logits)
    assert p.energy.shape == p.variation_ratio.shape == (6, 2, 2)
    torch.testing.assert_close(p.votes, F.one_hot(logits.argmax(2), 3).movedim(-1, 2).float().mean(0))
    several = ks.Classification.from_logits(logits[:2]).merged(ks.Classification.from_logits(logits[2:]), 3 / 5)
    torch.testing.assert_close(several.votes, p.votes)
    torch.testing.assert_close(several.energy, p.energy)
    parts = concatenate([ks.Classification.from_logits(logits[:, i : i + 2]) for i in (0, 2, 4)])
    torch.testing.assert_close(parts.energy, p.energy)

    monkeypatch.setattr(prediction, "DRAWS_AT_ONCE", 2)
    found = ks.predict(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4)), torch.randn(6, 3), samples=5)
    assert (found.votes * 5 - (found.votes * 5).round()).abs().max() < 1e-5
    assert found.votes.sum(1).sub(1).abs().max() < 1e-5
    assert found.energy.isfinite().all()


def test_a_prediction_made_of_probabilities_has_votes_but_no_energy():
    p = ks.Classification.from_draws(torch.rand(3, 4, 2).softmax(2))
    assert p.variation_ratio.shape == (4,)
    with pytest.raises(ArgumentError, match=r"keeps no energy, .*; predict again, from a network that gives logits"):
        ks.outlier_scores(p)
    old = ks.Classification(p.probs, p.expected_entropy, p.variance)
    with pytest.raises(ArgumentError, match=r"keeps no votes, .*; predict again"):
        old.variation_ratio  # noqa: B018
    assert old.merged(p, 0.5).votes is None


def test_detection_is_torchmetrics():
    inside, out = torch.randn(300).mul(8).round() / 8, torch.randn(200).add(0.7).mul(8).round() / 8  # with ties
    found = ks.metrics.detection(inside, out)
    squeezed, is_out = torch.cat([inside, out]).sigmoid(), torch.tensor([0] * 300 + [1] * 200)
    assert found["auroc"] == pytest.approx(torchmetrics.classification.BinaryAUROC()(squeezed, is_out).item(), abs=1e-6)
    wanted = torchmetrics.classification.BinaryAveragePrecision()(squeezed, is_out).item()
    assert found["aupr"] == pytest.approx(wanted, abs=1e-6)


def test_average_precision_of_separated_equal_and_reversed_scores():
    low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])
    assert ks.metrics.aupr(low, high) == 1
    assert ks.metrics.aupr(low, low) == pytest.approx(0.5)
    assert ks.metrics.aupr(high, low) == pytest.approx((1 / 3 + 2 / 4) / 2)


def test_one_network_is_not_asked_for_the_disagreement_of_draws():
    inside, outside = (ks.Classification.from_logits(torch.randn(1, 8, 3)) for _ in range(2))
    assert set(told_apart(inside, outside, one_draw=True)) == {"max_probability", "entropy", "energy"}
    assert len(told_apart(inside, outside, one_draw=False)) == 5
    assert not averages(Config(method="ksn"), "mean")
    assert averages(Config(method="ksn"), "ensemble")
    assert averages(Config(method="ensemble"), "mean")  # of its networks


# --- shift


@pytest.fixture
def digits():
    data = ks.data.load("digits")
    return data, data.test.select(torch.arange(30))


def test_curves_are_the_metrics_of_each_damaged_test_set(digits):
    data, split = digits
    net = ks.germinate(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)), over="weights"
    )
    training = Batches(data.train.select(torch.arange(64)), data.mean, data.std, 32)
    settings = {"samples": 3, "seed": 4, "update_bn": training}
    curves = shift_curves(net, split, data.mean, data.std, ["occlusion", "blur"], **settings)
    assert list(curves) == ["occlusion", "blur"]
    for name in curves:
        for severity in range(6):
            images = corrupt(split.images, name, severity, seed=4) if severity else split.images
            p = ks.predict(net, ks.data.normalise(images, data.mean, data.std), **settings)
            wanted = ks.metrics.summary(p.probs, split.labels)
            for key in ("accuracy", "nll", "ece"):
                assert curves[name][key][severity] == pytest.approx(wanted[key], abs=1e-5)
    assert average_curve(curves, "nll") == pytest.approx(
        [(a + b) / 2 for a, b in zip(curves["occlusion"]["nll"], curves["blur"]["nll"], strict=True)]
    )


def test_all_is_every_corruption_and_probabilities_may_be_scaled_first(digits):
    data, split = digits
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    flat = shift_curves(net, split, data.mean, data.std, scale=lambda probs: torch.full_like(probs, 0.1))
    assert set(flat) == set(CORRUPTIONS)
    assert average_curve(flat, "nll") == pytest.approx([math.log(10)] * 6)
    with pytest.raises(
        ArgumentError, match=r"labels is torch.int64 of shape \(29,\); it must be int64 of shape \(30,\)"
    ):
        Split(split.images, split.labels[:-1])
    with pytest.raises(ArgumentError, match=r"'rotate' is unknown \(did you mean rotation\?\)"):
        shift_curves(net, split, data.mean, data.std, "rotate")


# --- data from elsewhere


def data_of(images):
    split = Split(images, torch.zeros(len(images), dtype=torch.int64))
    return Dataset("mine", split, None, split, ("a",), (0.5,), (0.5,))


def test_images_are_converted_as_said():
    grey = torch.arange(2 * 4 * 4, dtype=torch.uint8).view(2, 1, 4, 4)
    same, said = fitted(grey, torch.zeros(9, 1, 4, 4), "resize")
    assert (same is grey, said) == (True, None)
    colour, said = fitted(grey, torch.zeros(1, 3, 4, 4), "resize")
    assert torch.equal(colour, grey.expand(-1, 3, -1, -1))
    assert said == "1 x 4 x 4 to 3 x 4 x 4: grey repeated"
    mixed = torch.stack([grey[:, 0], grey[:, 0] + 30, grey[:, 0] + 60], 1)
    back, said = fitted(mixed, torch.zeros(1, 1, 4, 4), "pad")
    assert torch.equal(back, grey + 30)
    assert said == "3 x 4 x 4 to 1 x 4 x 4: the channels' mean"
    padded, said = fitted(grey, torch.zeros(1, 1, 7, 3), "pad")
    assert padded.shape == (2, 1, 7, 3)
    assert torch.equal(padded[:, :, 1:5], grey[..., 1:])
    assert padded[:, :, [0, 5, 6]].sum() == 0
    resized, said = fitted(grey, torch.zeros(1, 1, 2, 2), "resize")
    assert (resized.dtype, resized.shape) == (torch.uint8, (2, 1, 2, 2))
    assert said == "1 x 4 x 4 to 1 x 2 x 2: resized, bilinear with antialiasing"
    with pytest.raises(DataError, match=r"digits has images of 1 x 8 x 8, and the network takes 1 x 4 x 4; .*resize"):
        load_elsewhere("digits", data_of(grey), "refuse")


def test_several_sets_by_name_and_errors_in_one_line():
    data = data_of(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    (only,) = load_elsewhere(" digits,digits", data)
    assert (only.name, only.split.images.shape[1:]) == ("digits", (3, 8, 8))
    with pytest.raises(DataError, match=r"the data set 'digit' is unknown \(did you mean digits\?\)"):
        load_elsewhere("digits,digit", data)
    with pytest.raises(ConfigError, match=r"ood is 'digits,'; give names of data sets, with commas between"):
        load_elsewhere("digits,", data)
    with pytest.raises(ConfigError, match=r"ood_fit is 'crop'; allowed are resize, pad, refuse"):
        load_elsewhere("digits", data, "crop")


def test_a_likelihood_of_logits_keeps_the_energy():
    p = likelihoods.Categorical().predictive([torch.zeros(2, 4), torch.ones(2, 4)])
    torch.testing.assert_close(p.energy, torch.full((2,), -math.log(4) - 0.5))
