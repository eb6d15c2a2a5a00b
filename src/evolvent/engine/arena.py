"""The arena: preallocated keys, values and last hidden states of the paths that are being worked on.

A row is one path; position = depth. Rows are written in place and never moved. What leaves a row goes to compact
storage of a segment and comes back when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Arena", "Shape", "Spilled"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the state that a model stores per token: `layers` times keys and values of `heads` x `head`, and a
    hidden state.
    """

    layers: int
    heads: int
    head: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Spilled:
    """Keys and values `[layers, n, 2, heads, head]` and hidden states `[n, hidden]` of a segment's first n tokens."""

    cache: Tensor
    hidden: Tensor

    @property
    def count(self) -> int:
        return len(self.hidden)

    def cut(self, offset: int) -> tuple[Spilled, Spilled | None]:
        """Splits at an offset and returns the part before it and the rest, or None where nothing is left."""
        upper = Spilled(self.cache[:, :offset], self.hidden[:offset])
        return upper, Spilled(self.cache[:, offset:], self.hidden[offset:]) if offset < self.count else None


class Arena:
    """`cache [layers, rows, capacity, 2, heads, head]` (keys, values) and `hidden [rows, capacity, hidden]`.

    Untouched memory is zero: masked positions get weight 0, which only makes 0 of finite numbers. `aside` is the stream
    on which forwards over it are recorded (`engine/cuda_graphs.py`).
    """

    aside: Any = None

    def __init__(self, shape: Shape, rows: int, capacity: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.rows, self.capacity = shape, rows, capacity
        sizes = (shape.layers, rows, capacity, 2, shape.heads, shape.head)
        self.cache = torch.zeros(sizes, dtype=dtype, device=device)
        self.hidden = torch.zeros((rows, capacity, shape.hidden), dtype=dtype, device=device)

    def serves(self, shape: Shape, capacity: int, weight: Tensor) -> bool:
        """Returns whether a model with this shape, whose weights are like `weight`, can use this arena."""
        same = (self.cache.dtype, self.cache.device) == (weight.dtype, weight.device)
        return same and (self.shape, self.capacity) == (shape, capacity)

    def copy(self, source: int, target: int, *, first: int, last: int) -> None:
        """Copies positions first..last of a row into another row."""
        self.cache[:, target, first:last] = self.cache[:, source, first:last]
        self.hidden[target, first:last] = self.hidden[source, first:last]

    def copy_out(self, row: int, first: int, last: int) -> Spilled:
        """Returns a compact copy of positions first..last of a row."""
        return Spilled(self.cache[:, row, first:last].clone(), self.hidden[row, first:last].clone())

    def copy_in(self, row: int, spilled: Spilled, *, position: int, first: int, last: int) -> None:
        """Writes tokens first..last of a spilled segment into a row, starting at `position`."""
        self.cache[:, row, position : position + last - first] = spilled.cache[:, first:last]
        self.hidden[row, position : position + last - first] = spilled.hidden[first:last]

    def clear(self, row: int) -> None:
        """Clears a row that held non-finite numbers by setting it to zero."""
        self.cache[:, row] = 0
        self.hidden[row] = 0
