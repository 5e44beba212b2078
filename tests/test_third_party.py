"""Models that others wrote, built from small configurations: they convert, run, train and collapse."""

import copy
import warnings

import pytest
import torch

import kernelseed as ks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports are not ours
    import transformers


def resnet():
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=3,
    )
    return transformers.ViTForImageClassification(config)


def bert_config():
    return transformers.BertConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        num_labels=3,
    )


def bert():
    return transformers.BertForSequenceClassification(bert_config())


IMAGES = {"pixel_values": torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))}
TEXT = {
    "input_ids": torch.randint(31, (4, 6), generator=torch.Generator().manual_seed(0)),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1]] * 3 + [[1, 1, 0, 0, 0, 0]]),
}
LABELS = torch.tensor([0, 1, 2, 0])
MODELS = {"resnet": (resnet, IMAGES), "vit": (vit, IMAGES), "bert": (bert, TEXT)}
CONVERSIONS = {
    "seed": lambda model: ks.germinate(model, 0.5, min_rank=2, over="weights"),
    "channels": lambda model: ks.germinate(model, 0.5, min_rank=2),
    "fixed": lambda model: ks.germinate(model, 0.5, min_rank=2, fixed=True),
    "mean_field": ks.bayesianize,
}
every = pytest.mark.parametrize("model", MODELS)
converted = pytest.mark.parametrize(
    ("model", "conversion"),
    [
        ("resnet", "seed"),
        ("vit", "seed"),
        ("bert", "seed"),
        ("vit", "channels"),
        ("bert", "channels"),
        ("resnet", "fixed"),
        ("bert", "mean_field"),
    ],
)


def logits(output):
    return output.logits


@every
def test_at_delta_one_it_is_the_same_model(model):
    make, batch = MODELS[model]
    plain = make().eval()
    net = ks.germinate(plain, 1.0, over="weights")
    torch.testing.assert_close(net(**batch).logits, plain(**batch).logits, rtol=1e-4, atol=1e-5)
    chosen = {name for name, p in plain.named_parameters() if p.dim() >= 2}
    assert set(net.weights) == chosen
    assert not any(p.dim() >= 2 for p in net.skeleton.parameters())


@converted
def test_it_trains(model, conversion):
    make, batch = MODELS[model]
    net = CONVERSIONS[conversion](make())
    loss = ks.ELBO(40, kl_weight=1e-4, likelihood=ks.likelihoods.Categorical(read=logits))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        terms = loss(net.draw(), batch, LABELS)
        terms.loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.weights.parameters())
        optimizer.step()
        values.append(terms.nll.item())
    assert min(values[-3:]) < 0.8 * values[0]


@converted
def test_it_predicts_and_collapses(model, conversion):
    make, batch = MODELS[model]
    net = CONVERSIONS[conversion](make())
    likelihood = ks.likelihoods.Categorical(read=logits)
    p = ks.predict(net, [{**batch, "labels": LABELS}], samples=3, likelihood=likelihood)
    assert p.probs.shape == (4, 3)
    assert (p.variance.max() > 0) == (conversion != "fixed")
    plain = ks.collapse(net).eval()
    assert type(plain) is type(make())
    mean = ks.predict(net, [batch], samples=0, likelihood=likelihood)
    torch.testing.assert_close(mean.probs, plain(**batch).logits.softmax(1).detach(), rtol=1e-4, atol=1e-5)
    # In pieces, and from a copy.
    halves = [{name: value[i : i + 2] for name, value in batch.items()} for i in (0, 2)]
    again = ks.predict(copy.deepcopy(net), halves, samples=3, likelihood=likelihood)
    torch.testing.assert_close(again.probs, p.probs, rtol=1e-4, atol=1e-5)


def test_berts_embedding_is_its_output_layer():
    plain = transformers.BertForMaskedLM(bert_config())
    first, second = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    assert plain.get_parameter(first) is plain.get_parameter(second)
    net = ks.germinate(plain, 0.5, min_rank=2, over="weights")
    assert net.weights[first] is net.weights[second]
    draw = net.draw()
    assert draw.weights[first] is draw.weights[second]
    assert draw(**TEXT).logits.shape == (4, 6, 31)
    assert sum(key.endswith("decoder.weight.seed") for key in net.state_dict()) <= 1
    collapsed = ks.collapse(net)
    assert collapsed.get_parameter(first) is collapsed.get_parameter(second)


def test_resnet_statistics_are_estimated_again():
    net = ks.germinate(resnet(), 0.5, min_rank=2, over="weights")
    before = {name: b.clone() for name, b in net.named_buffers()}
    likelihood = ks.likelihoods.Categorical(read=logits)
    p = ks.predict(net, [IMAGES], samples=2, likelihood=likelihood, update_bn=[IMAGES])
    q = ks.predict(net, [IMAGES], samples=2, likelihood=likelihood)
    assert not torch.allclose(p.probs, q.probs)
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
