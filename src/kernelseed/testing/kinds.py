"""Kinds of parameters: small modules whose weights become distributions, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Kind:
    """A function that makes a module, and the shapes of its inputs (or the inputs themselves if they are indices)."""

    make: Callable[[], nn.Module]
    shapes: tuple[Any, ...]

    def inputs(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """The inputs, the same each time."""
        generator = torch.Generator().manual_seed(1)
        return tuple(
            s if isinstance(s, torch.Tensor) else torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)
            for s in self.shapes
        )


class Attention(nn.Module):
    """Self-attention: MultiheadAttention's three projections are one fused parameter."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **kwargs)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Attention from x to the memory, or to x itself."""
        memory = x if memory is None else memory
        output: Tensor = self.attention(x, memory, memory, need_weights=False)[0]
        return output


class Recurrent(nn.Module):
    """A recurrent layer that returns only its output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all steps."""
        output: Tensor = self.layer(x)[0]
        return output


class Bare(nn.Module):
    """A custom module with a parameter of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(0.5 * torch.randn(3, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the features of x."""
        return torch.einsum("ni,oik->nok", x, self.mixing)


class Parameters(nn.Module):
    """Parameters in a list and in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList([0.5 * torch.randn(4, 4) for _ in range(2)])
        self.heads = nn.ParameterDict({"a": 0.5 * torch.randn(4, 3)})

    def forward(self, x: Tensor) -> Tensor:
        """Two steps and a head."""
        for step in self.steps:
            x = torch.tanh(x @ step)
        return x @ self.heads["a"]


class Tied(nn.Module):
    """An embedding whose weight is also that of the output layer, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every token."""
        scores: Tensor = self.output(torch.tanh(self.embedding(tokens)))
        return scores


class Twice(nn.Module):
    """One module at two places in the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        """Run the same layer twice."""
        output: Tensor = self.second(torch.tanh(self.first(x)))
        return output


TOKENS = torch.tensor([[0, 3, 6], [2, 2, 5]])

KINDS = {
    "linear_wide": Kind(lambda: nn.Linear(4, 6), ((3, 4),)),
    "linear_narrow": Kind(lambda: nn.Linear(6, 4), ((3, 6),)),
    "conv1d": Kind(lambda: nn.Conv1d(3, 4, 3), ((2, 3, 6),)),
    "conv2d": Kind(lambda: nn.Conv2d(4, 3, 3, padding=1), ((2, 4, 4, 4),)),
    "conv3d": Kind(lambda: nn.Conv3d(2, 3, 2), ((2, 2, 3, 3, 3),)),
    "grouped": Kind(lambda: nn.Conv2d(4, 6, 2, groups=2), ((2, 4, 3, 3),)),
    "dilated_strided": Kind(lambda: nn.Conv2d(2, 3, (2, 3), stride=2, dilation=(2, 1)), ((2, 2, 6, 7),)),
    "reflect": Kind(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), ((2, 2, 4, 4),)),
    "replicate": Kind(lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="replicate"), ((2, 2, 4),)),
    "circular": Kind(lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"), ((2, 2, 4, 4),)),
    "depthwise": Kind(lambda: nn.Conv2d(4, 4, 3, groups=4), ((2, 4, 4, 4),)),
    "one_channel": Kind(lambda: nn.Conv2d(1, 4, 3), ((2, 1, 4, 4),)),
    "transposed1d": Kind(lambda: nn.ConvTranspose1d(3, 2, 3, stride=2), ((2, 3, 3),)),
    "transposed2d": Kind(lambda: nn.ConvTranspose2d(2, 4, 2, stride=2, groups=2), ((2, 2, 2, 2),)),
    "transposed3d": Kind(lambda: nn.ConvTranspose3d(2, 3, 2, output_padding=1, stride=2), ((1, 2, 2, 2, 2),)),
    "embedding": Kind(lambda: nn.Embedding(7, 4, padding_idx=1), (TOKENS,)),
    "attention": Kind(Attention, ((2, 3, 4),)),
    "attention_apart": Kind(lambda: Attention(kdim=5, vdim=5, add_bias_kv=True), ((2, 3, 4), (2, 2, 5))),
    "lstm": Kind(lambda: Recurrent(nn.LSTM(3, 2, 2, bidirectional=True)), ((3, 2, 3),)),
    "gru": Kind(lambda: Recurrent(nn.GRU(3, 2)), ((3, 2, 3),)),
    "bilinear": Kind(lambda: nn.Bilinear(3, 4, 2), ((3, 3), (3, 4))),
    "bare": Kind(Bare, ((2, 5),)),
    "parameter_containers": Kind(Parameters, ((2, 4),)),
    "tied": Kind(Tied, (TOKENS,)),
    "twice": Kind(Twice, ((3, 4),)),
}
