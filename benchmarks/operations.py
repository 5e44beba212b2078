"""How many operations a draw takes with its KL and their gradients, where no kernel serves: what a GPU launches.

    python benchmarks/operations.py

The counts depend on the layers and not on their sizes. They are taken in float64 on the CPU, without kernels, and with
all weights together, as on a GPU; for a CPU itself, large weights are worked on one by one, which is counted too.
"""

import json
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

import kernelseed as ks
from kernelseed.fast import flat

# These compute nothing: they give a new view of a tensor's memory, or allocate it.
VIEWS = {
    *("alias", "as_strided", "chunk", "detach", "expand", "flatten", "narrow", "permute", "reshape", "select", "slice"),
    *("split", "split_with_sizes", "squeeze", "t", "to", "transpose", "unbind", "unsqueeze", "view", "view_as"),
    *("empty", "empty_like", "empty_strided"),
}


def operations(run):
    """The operations that Python and autograd call while this runs, by name, without those that they call in turn."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        run()
    named = (event for event in record.events() if event.name.startswith("aten::"))
    outermost = (e for e in named if e.cpu_parent is None or not e.cpu_parent.name.startswith("aten::"))
    return Counter(event.name.removeprefix("aten::") for event in outermost)


def of_a_draw(net, prior=None, together=True):
    """The operations of a draw of this network with its KL and their gradients: (all, without views)."""
    net = net.double()
    cached, flat.CACHED = flat.CACHED, sum(w.num_weights for w in net.weights.values()) if together else 0
    try:
        return _count(net, prior)
    finally:
        flat.CACHED = cached


def _count(net, prior):
    prior = ks.ScaleMixture() if prior is None else prior
    made = []

    def forward():
        draw = net.draw()
        made[:] = [draw.kl(prior), *draw.weights.values()]

    forward()
    gradients = [torch.ones_like(tensor) for tensor in made]
    counts = operations(forward) + operations(lambda: torch.autograd.backward(made, gradients))
    return counts.total(), sum(count for name, count in counts.items() if name not in VIEWS)


def resnet18():
    """A ResNet-18 of width 64."""
    return ks.models.resnet18(num_classes=10, in_channels=1)


def bert():
    """The layers of a BERT-base, narrower: twelve blocks, embeddings and the pooler."""
    import transformers

    sizes = {"hidden_size": 48, "intermediate_size": 192, "vocab_size": 300, "max_position_embeddings": 64}
    return transformers.BertModel(transformers.BertConfig(**sizes))


NETWORKS = {"ResNet-18": resnet18, "BERT-base": bert}
METHODS = {"KSN .25": lambda model: ks.germinate(model, 0.25, over="weights"), "BNN": ks.bayesianize}


def measure():
    """The counts for each network and method."""
    found = {}
    for network, model in NETWORKS.items():
        for method, convert in METHODS.items():
            net = convert(model())
            everything, launches = of_a_draw(net)
            found[f"{network}, {method}"] = {
                "weights": len(net.weights),
                "operations": everything,
                "without views": launches,
                "one weight after another": of_a_draw(net, together=False)[0],
            }
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
