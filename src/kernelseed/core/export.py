"""Export a network as a plain module, without any class of this library."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core import folding
from kernelseed.core.conversion import deep_copy
from kernelseed.core.folding import CONVOLUTIONS, require_example
from kernelseed.core.network import BayesianModule, Draw
from kernelseed.core.objective import call
from kernelseed.core.prediction import evaluating
from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast import is_transposed, thin_is_cheaper, thin_weights


@torch.no_grad()
def collapse(net: BayesianModule, draw: Draw | None = None, *, fold_bn: bool = False, example: Any = None) -> nn.Module:
    """An ordinary module of the model's class, with dense weights: the posterior mean, or the given draw.

    fold_bn  whether to fold BatchNorm into the convolutions before it, for evaluation: see `kernelseed.fold_bn`
    example  an input of the network, which `fold_bn` needs

    It runs without kernelseed and works with torch.export, ONNX and quantisation as any plain module does.

    >>> import kernelseed as ks
    >>> type(collapse(ks.germinate(nn.Linear(20, 30)))).__name__
    'Linear'
    """
    if not isinstance(net, BayesianModule):
        raise ArgumentTypeError(
            f"net is a {type(net).__name__}; only a BayesianModule collapses, others are plain already."
        )
    if fold_bn:
        require_example(example)
    draw = net.mean() if draw is None else draw
    if draw.skeleton is not net.skeleton:
        raise ArgumentError("draw was made by another network; pass a draw of this one: collapse(net, net.draw()).")
    plain = deep_copy(net.skeleton)
    for name, sample in draw.samples.items():
        # Germination may return transposed views; stored and exported weights are contiguous.
        value = sample.value.detach().clone(memory_format=torch.contiguous_format)
        trained = any(p.requires_grad for p in net.weights[name].parameters())
        parameter = nn.Parameter(value, requires_grad=trained)
        for place in (name, *(alias for alias, first in draw.aliases.items() if first == name)):
            path, _, leaf = place.rpartition(".")
            setattr(plain.get_submodule(path), leaf, parameter)
    for name, value in draw.buffers.items():
        plain.get_buffer(name).copy_(value)
    return folding.fold_bn(plain, example) if fold_bn else plain


@torch.no_grad()
def factorise(net: BayesianModule, *, fold_bn: bool = False, example: Any = None) -> nn.Module:
    """The posterior mean as an ordinary module with fewer multiplications.

    fold_bn  whether to fold BatchNorm into the convolutions before it, for evaluation: see `kernelseed.fold_bn`
    example  an input like those to come. Each layer is then timed on what reaches it, dense and as two layers, and
             stays dense if that is faster: for one image two calls may take longer than they save. The weights of
             convolutions have their channels last if the network is faster so. Without an example, multiplications
             are counted

    A germinated weight is the product of its germinator and its seed. Its layer therefore becomes a k x k convolution
    into C_pip channels and a 1 x 1 convolution (or the reverse, if the weight is transposed). At delta .25 a ResNet-18
    then needs .30 of its multiplications, and .63 by default. Layers for which that is not cheaper, layers of other
    kinds, and layers with hooks stay dense. A model whose own forward reads the weight of a layer can't run so: take
    `collapse`. The result equals `collapse(net)` up to rounding.

    >>> import kernelseed as ks
    >>> factorise(ks.germinate(nn.Linear(256, 256), delta=0.25))
    Sequential(
      (0): Linear(in_features=256, out_features=64, bias=False)
      (1): Linear(in_features=64, out_features=256, bias=True)
    )
    """
    if fold_bn:
        require_example(example)
    plain = _factorised(net, fold_bn, example, torch.contiguous_format)
    if example is None or not _takes_channels_last(plain):
        return plain
    try:
        last = _factorised(net, fold_bn, example, torch.channels_last)
    except RuntimeError:  # such as that of a `view`, which needs contiguous outputs
        return plain
    with evaluating([plain, last]):
        return last if _faster(last, plain, example) else plain


def _takes_channels_last(module: nn.Module) -> bool:
    """Whether there are convolutions of images, and none whose gradient PyTorch 2.13 would write past its end then.

    On a CPU with AVX2 these are strided 1 x 1 convolutions of fewer than eight channels.
    """
    layers = [layer for layer in module.modules() if type(layer) is nn.Conv2d]
    strided = [layer for layer in layers if math.prod(layer.kernel_size) == 1 < math.prod(layer.stride)]
    return bool(layers) and all(min(layer.in_channels, layer.out_channels) >= 8 for layer in strided)


def _factorised(net: BayesianModule, fold_bn: bool, example: Any, layout: torch.memory_format) -> nn.Module:
    """The factorised mean, with the weights of its convolutions, and therefore their outputs, in a memory format."""
    plain = _laid_out(collapse(net), layout)
    seen = {} if example is None else _inputs(plain, example)
    for name, weight in net.weights.items():
        path, _, leaf = name.rpartition(".")
        layer = plain.get_submodule(path)
        factors = weight.factors()
        if leaf != "weight" or factors is None or name in net.weights.aliases.values():
            continue
        if not _needs_less(layer, weight.shape, len(factors[1])) or _is_read_from_outside(layer, plain):
            continue
        pair = _laid_out(_pair(layer, weight.shape, *factors), layout)
        if layer in seen and _faster(layer, pair, seen[layer]):
            continue
        pair.train(layer.training)
        if not path:
            plain = pair
            break
        for parent, child in _places(layer, plain):
            setattr(parent, child, pair)
    plain = folding.fold_bn(plain, example) if fold_bn else plain
    return _laid_out(plain, layout)


def _laid_out(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    return module.to(memory_format=layout)  # type: ignore[call-overload]  # torch's types do not know it


def _needs_less(layer: nn.Module, shape: torch.Size, rank: int) -> bool:
    """Whether two layers need fewer multiplications than this one."""
    if type(layer) in CONVOLUTIONS:
        assert isinstance(layer, CONVOLUTIONS)
        return layer.groups == 1 and thin_is_cheaper(shape, rank, math.prod(layer.stride))
    return type(layer) is nn.Linear and thin_is_cheaper(shape, rank)


def _is_read_from_outside(layer: nn.Module, module: nn.Module) -> bool:
    """Whether something but the layer's own forward needs it as it is: a hook, or a parent that reads its weight.

    PyTorch's encoder layers do that in eval mode. A forward of the user's that does can't be seen from here.
    """
    hooks = (value for name, value in vars(layer).items() if name.endswith("_hooks"))
    return any(hooks) or any(isinstance(parent, nn.TransformerEncoderLayer) for parent, _ in _places(layer, module))


def _places(layer: nn.Module, module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Every parent that has the layer, and the name that it has there."""
    return [(parent, name) for parent in module.modules() for name, child in parent._modules.items() if child is layer]


def _inputs(module: nn.Module, example: Any) -> dict[nn.Module, Tensor]:
    """What reaches each layer when the module is called with this example."""
    seen: dict[nn.Module, Tensor] = {}

    def remember(layer: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            seen[layer] = given[0]

    layers = [layer for layer in module.modules() if type(layer) in (*CONVOLUTIONS, nn.Linear)]
    handles = [layer.register_forward_pre_hook(remember) for layer in layers]
    try:
        with evaluating([module]):
            call(module, example)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _faster(one: nn.Module, other: nn.Module, x: Any, repeats: int = 7) -> bool:
    """Whether the one takes less time than the other on this input, by the shortest of some calls in turns.

    Whatever else the machine does only adds to a call.
    """
    took: dict[nn.Module, list[float]] = {one: [], other: []}
    for number in range(repeats + 2):
        for layer, times in took.items():
            start = time.perf_counter()
            call(layer, x)
            if number > 1:  # the first calls choose and prepare kernels
                times.append(time.perf_counter() - start)
    return min(took[one]) < min(took[other])


def _pair(layer: nn.Module, shape: torch.Size, germinator: Tensor, seed: Tensor) -> nn.Sequential:
    """The seed as a k x k layer and the germinator as a 1 x 1 layer, in the order given by the weight's orientation."""
    first, second = thin_weights(germinator.detach(), seed.detach(), shape)
    bias = layer.bias.detach() if isinstance(layer.bias, Tensor) else None
    if isinstance(layer, nn.Linear):
        return nn.Sequential(_filled(nn.Linear, first, None), _filled(nn.Linear, second, bias))
    assert isinstance(layer, CONVOLUTIONS)
    point: dict[str, Any] = {"kernel_size": 1}
    spatial = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    before, after = (point, spatial) if is_transposed(shape) else (spatial, point)
    kind = type(layer)
    return nn.Sequential(_filled(kind, first, None, **before), _filled(kind, second, bias, **after))


def _filled(make: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None, **arguments: Any) -> nn.Module:
    outputs, inputs = weight.shape[:2]
    layer = make(inputs, outputs, bias=bias is not None, device="meta", **arguments)
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone())
    return layer
