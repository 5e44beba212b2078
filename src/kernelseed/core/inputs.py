"""The inputs of a network, out of whatever holds them: tensors, loaders, tuples and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from kernelseed.core.objective import call, is_positional
from kernelseed.errors import ArgumentError, ArgumentTypeError

TARGET_KEYS = {"label", "labels", "target", "targets"}
Data = Tensor | Iterable[Any]


class Passes:
    """Data to go over, several times where there are many draws: a pass that differs from the first is an error."""

    def __init__(self, name: str, data: Data, batch_size: int, several: bool, same_order: bool = True) -> None:
        if isinstance(data, Mapping):
            raise ArgumentTypeError(f"{name} is a mapping, which is one batch; give batches: [{name}].")
        if isinstance(data, tuple) and len({_kind(part) for part in data}) > 1:
            raise ArgumentTypeError(f"{name} is a tuple of unlike things, which is one batch; give batches: [{name}].")
        if type(data).__module__ == "numpy":
            raise ArgumentTypeError(f"{name} is a {type(data).__name__} of numpy; give torch.from_numpy({name}).")
        if not isinstance(data, Iterable):
            raise ArgumentTypeError(f"{name} is a {type(data).__name__}; give a tensor, or a loader of batches.")
        if several and isinstance(data, Iterator):
            raise ArgumentError(
                f"{name} is a {type(data).__name__}, which can be gone over once only, and so many draws take several "
                f"passes; give a tensor, a list or a loader, or fewer samples."
            )
        self._name, self._data, self._batch_size = name, data, batch_size
        self._compares = several and same_order and not isinstance(data, Tensor)
        self._first: list[Tensor] | None = None

    def __iter__(self) -> Iterator[Any]:
        if not self._compares:
            yield from self._batches()
            return
        marks = []
        for batch in self._batches():
            marks.append(_mark(batch))
            self._compare(marks, len(marks))
            yield batch
        self._compare(marks, None)
        self._first = marks

    def _batches(self) -> Iterator[Any]:
        if isinstance(self._data, Tensor):
            # Of nearly the same size: to BatchNorm each counts as much as another, and one row alone has no variance.
            # An empty tensor is one empty batch, so that an empty prediction has the right shape.
            yield from self._data.tensor_split(max(1, -(-len(self._data) // self._batch_size)))
        else:
            yield from map(_inputs_of, self._data)

    def _compare(self, marks: list[Tensor], count: int | None) -> None:
        if self._first is None:
            return
        first = self._first[:count]
        if len(first) != len(marks) or not torch.equal(first[-1], marks[-1]):
            raise ArgumentError(
                f"{self._name} differs from one pass to the next, and so many draws take several; give a loader "
                "without shuffling or augmentation, or fewer samples."
            )


def _kind(part: Any) -> Any:
    """What batches of one loader have in common."""
    return (part.dtype, part.shape[1:]) if isinstance(part, Tensor) else type(part)


def rows_of(x: Any) -> int | None:
    """How many examples a batch of inputs has, where it is of tensors."""
    return next((len(tensor) for tensor in tensors_of(x) if tensor.dim()), None)


def to_place(x: Any, device: torch.device, double: bool) -> Any:
    """Inputs moved, whatever holds them; numbers in float32 become double if the network is."""

    def move(part: Any) -> Any:
        return part.to(device, torch.float64) if double and _dtype(part) == torch.float32 else part.to(device)

    return _each(x, move)


def _dtype(part: Tensor | PackedSequence) -> torch.dtype:
    return part.data.dtype if isinstance(part, PackedSequence) else part.dtype


class SameInputs:
    """Calls draws on the same inputs: none sees what another has written into them, and the user's stay as they are."""

    def __init__(self) -> None:
        self.written: bool | None = None
        """Whether a network writes into its inputs; None before the first call."""

    def __call__(self, draw: Any, x: Any) -> Any:
        """The output of a draw."""
        if self.written is False:
            return call(draw, x)
        own = _each(x, _copy)
        before = _versions(own)
        output = call(draw, own)
        self.written = not _equal(own, x) if before is None else _versions(own) != before
        return output


def _copy(part: Tensor | PackedSequence) -> Any:
    return part._replace(data=part.data.clone()) if isinstance(part, PackedSequence) else part.clone()


def _versions(x: Any) -> list[int] | None:
    """How often each tensor was written into; None where it is not counted, in inference mode."""
    tensors = list(tensors_of(x))
    return None if any(t.is_inference() for t in tensors) else [t._version for t in tensors]


def _equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))


def _each(x: Any, change: Callable[[Any], Any]) -> Any:
    """The inputs with each tensor changed, whatever holds them."""
    if isinstance(x, (Tensor, PackedSequence)):
        return change(x)
    if isinstance(x, Mapping):
        return {key: _each(value, change) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        parts = [_each(value, change) for value in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)  # a named tuple takes them one by one
    return x


def _inputs_of(batch: Any) -> Any:
    """The inputs of a loader's batch, labels left out."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in TARGET_KEYS}
    if is_positional(batch):
        inputs = batch[:-1] if len(batch) > 1 else batch
        return inputs[0] if len(inputs) == 1 else inputs
    return batch


def tensors_of(x: Any) -> Iterator[Tensor]:
    """The tensors among the inputs of a batch."""
    if isinstance(x, PackedSequence):
        yield x.data
    elif isinstance(x, Tensor):
        yield x
    elif isinstance(x, (Mapping, tuple, list)):
        for value in x.values() if isinstance(x, Mapping) else x:
            yield from tensors_of(value)


def _row_sums(t: Tensor) -> Tensor:
    return t.sum(tuple(range(1, t.dim()))) if t.dim() > 1 else t.reshape(-1)


def _mark(x: Any) -> Tensor:
    """A number for each row, by which a batch is known again."""
    sums = [_row_sums(t.detach().nan_to_num().double()).cpu() for t in tensors_of(x)]
    return torch.cat(sums) if sums else torch.zeros(1)
