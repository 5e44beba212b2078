"""Activation checkpointing inside a model: the recomputation runs after the draw's call has ended."""

import pytest
import torch
from kinds import generator, trained
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertForSequenceClassification

import kernelseed as ks
from kernelseed.fast import kernels

PRIOR = ks.ScaleMixture()


class Checkpointed(nn.Module):
    """An MLP whose two hidden layers are recomputed in the backward pass."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.inner = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return self.head(x)


def gradients(net, x):
    draw = net.draw(generator())
    loss = draw(x).square().sum() + 0.1 * draw.kl(PRIOR)
    net.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


CONVERSIONS = {
    "ksn": lambda model: ks.germinate(model, 0.5, min_rank=1, over="weights"),
    "channels": lambda model: ks.germinate(model, 0.5, min_rank=1),
    "bnn": ks.bayesianize,
    "fksn": lambda model: ks.germinate(model, 0.5, min_rank=1, fixed=True),
}


@pytest.mark.parametrize("plain", [False, True], ids=["kernels", "plain"])
@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_gradients_are_those_without_checkpointing(conversion, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(kernels, "library", lambda: None)
    x = torch.randn(5, 6)
    found = []
    for model in (Checkpointed(), Checkpointed(use_reentrant=False)):
        torch.manual_seed(0)
        model.apply(lambda module: module.reset_parameters() if isinstance(module, nn.Linear) else None)
        found.append(gradients(trained(CONVERSIONS[conversion](model)), x))
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, msg=name)


@pytest.mark.parametrize("plain", [False, True], ids=["kernels", "plain"])
@pytest.mark.parametrize("conversion", ["ksn", "bnn"])
def test_the_reentrant_kind_is_refused_in_words(conversion, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(kernels, "library", lambda: None)
    net = CONVERSIONS[conversion](Checkpointed(use_reentrant=True))
    with pytest.raises(ks.errors.GraphError, match="use_reentrant=False"):
        gradients(net, torch.randn(5, 6))


def test_two_backward_passes_of_ones_own_need_their_graph():
    net, x = ks.germinate(nn.Linear(6, 3), over="weights"), torch.randn(5, 6)
    draw = net.draw()
    draw(x).sum().backward(retain_graph=True)
    draw.kl(PRIOR).backward()
    with pytest.raises(ks.errors.GraphError, match="retain_graph=True"):
        draw(x).sum().backward()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")  # by transformers, for another name
def test_transformers_gradient_checkpointing():
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    tokens, found = torch.randint(0, 30, (4, 7)), []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = BertForSequenceClassification(config).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        net = trained(ks.germinate(model, 0.5, min_rank=1, over="weights"))
        draw = net.draw(generator())
        terms = ks.ELBO(100, kl_weight=1.0).with_nll(draw(tokens, labels=torch.tensor([0, 1, 2, 0])).loss, draw)
        terms.loss.backward()
        found.append({name: p.grad for name, p in net.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-4, atol=1e-6, msg=name)
