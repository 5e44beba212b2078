"""Fold BatchNorm into the convolutions before it, for evaluation.

Modules do not say in which order they are called. So the module is run on an example, and everything that reads the
output of a convolution is watched: a BatchNorm that is its only reader can become part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelseed.core.network import BayesianModule
from kernelseed.core.objective import call
from kernelseed.core.prediction import evaluating
from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast import TrimmedConv2d

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, TrimmedConv2d)
"""Exactly these classes, because a subclass may use its weight in another way."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def fold_bn(module: nn.Module, example: Any) -> nn.Module:
    """Fold each BatchNorm into the convolution whose output it alone reads, in place; return the module in eval mode.

    example  an input of the module, as in prediction: a tensor, or a tuple or dict of arguments

    In eval mode the output is the same up to rounding. What can't be folded stays as it is: a convolution that is
    called twice or whose output something else reads too, shared weights, layers with hooks. The example decides, so a
    module that calls its layers in another order for other inputs must not be folded.

    >>> fold_bn(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.zeros(1, 3, 5, 5))
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    if inside := [name for name, m in module.named_modules() if isinstance(m, BayesianModule)]:
        raise ArgumentTypeError(
            f"module{'.' + inside[0] if inside[0] else ''} is a BayesianModule, whose weights are drawn; fold the "
            "posterior mean: ks.collapse(net, fold_bn=True, example=images[:1])."
        )
    for convolution, norm in _pairs(module, example):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        for parent in module.modules():
            for name, child in parent._modules.items():
                if child is norm:
                    parent._modules[name] = nn.Identity()
    return module.eval()


def require_example(example: Any) -> Any:
    """The example, or an error that says why it is needed."""
    if example is None:
        raise ArgumentError(
            "fold_bn is True, but example is None; give an input of the network, which is run once to see which "
            "BatchNorm reads which convolution: fold_bn=True, example=images[:1]."
        )
    return example


def _pairs(module: nn.Module, example: Any) -> list[tuple[_ConvNd, _BatchNorm]]:
    """The convolutions, each with the BatchNorm that can be folded into it."""
    watch = _Watch()
    owners: dict[int, int] = {}
    for each in module.modules():
        for parameter in each.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    handles = []
    for each in module.modules():
        if type(each) in CONVOLUTIONS or type(each) in NORMS:
            watch.owners |= {id(parameter): each for parameter in each.parameters(recurse=False)}
            handles.append(each.register_forward_pre_hook(watch.begins, with_kwargs=True))
            handles.append(each.register_forward_hook(watch.ends))
    try:
        with evaluating([module]), watch:
            output = call(module, example)
    finally:
        for handle in handles:
            handle.remove()
    for tensor in tree_leaves(output):
        watch.read(tensor)

    def is_plain(layer: nn.Module) -> bool:
        own = all(owners[id(parameter)] == 1 for parameter in layer.parameters(recurse=False))
        return own and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)

    return [
        (convolution, norm)
        for norm, convolution in watch.before.items()
        if watch.calls[norm] == watch.calls[convolution] == 1 and not watch.readers[id(watch.outputs[convolution])]
        if isinstance(norm, _BatchNorm) and isinstance(convolution, _ConvNd) and norm.running_mean is not None
        if is_plain(norm) and is_plain(convolution) and not watch.read_elsewhere & {norm, convolution}
    ]


class _Watch(TorchDispatchMode):
    """Who reads the outputs of convolutions, but for a BatchNorm that gets them as they are, and others' parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[nn.Module, Tensor] = {}  # held, so that no other tensor gets the same id
        self.makers: dict[int, nn.Module] = {}
        self.readers: dict[int, int] = {}
        self.calls: dict[nn.Module, int] = {}
        self.before: dict[nn.Module, nn.Module] = {}
        self.owners: dict[int, nn.Module] = {}
        """The layer of a parameter, by the parameter's id."""
        self.read_elsewhere: set[nn.Module] = set()
        """The layers whose parameters something else reads too."""
        self.running: nn.Module | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count it for each output and parameter that it reads."""
        for tensor in tree_leaves((args, kwargs)):
            owner = self.owners.get(id(tensor), self.running)
            if owner is not None and owner is not self.running:
                self.read_elsewhere.add(owner)
            if type(self.running) not in NORMS:  # what it reads is its input, which has been seen
                self.read(tensor)
        return func(*args, **(kwargs or {}))

    def read(self, tensor: Any) -> None:
        """Count a reader of this tensor, if it is the output of a convolution."""
        if id(tensor) in self.readers:
            self.readers[id(tensor)] += 1

    def begins(self, layer: nn.Module, inputs: tuple[Any, ...], by_name: dict[str, Any]) -> None:
        """Before a layer."""
        self.calls[layer], self.running = self.calls.get(layer, 0) + 1, layer
        x = next(iter((*inputs, *by_name.values())), None)
        if type(layer) in NORMS and id(x) in self.makers:
            self.before[layer] = self.makers[id(x)]
            if list(self.before.values()).count(self.before[layer]) > 1:
                self.read(x)

    def ends(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        """After a layer."""
        self.running = None
        if type(layer) in CONVOLUTIONS:
            self.outputs[layer], self.makers[id(output)], self.readers[id(output)] = output, layer, 0
