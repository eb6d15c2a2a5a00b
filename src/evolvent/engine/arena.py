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
    """What a model keeps per token: `layers` times keys and values of `heads` x `head`, and a hidden state."""

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

    def cut(self, at: int) -> tuple[Spilled, Spilled | None]:
        """The part before an offset, and the rest."""
        upper = Spilled(self.cache[:, :at], self.hidden[:at])
        return upper, Spilled(self.cache[:, at:], self.hidden[at:]) if at < self.count else None


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
        """Whether a model of this shape, whose weights are like `weight`, can use this arena."""
        same = (self.cache.dtype, self.cache.device) == (weight.dtype, weight.device)
        return same and (self.shape, self.capacity) == (shape, capacity)

    def copy(self, source: int, target: int, *, first: int, last: int) -> None:
        """Copy positions first..last of a row into another."""
        self.cache[:, target, first:last] = self.cache[:, source, first:last]
        self.hidden[target, first:last] = self.hidden[source, first:last]

    def take(self, row: int, first: int, last: int) -> Spilled:
        """A compact copy of positions of a row."""
        return Spilled(self.cache[:, row, first:last].clone(), self.hidden[row, first:last].clone())

    def put(self, row: int, spilled: Spilled, *, at: int, first: int, last: int) -> None:
        """Write tokens first..last of a spilled segment into a row, from position `at` on."""
        self.cache[:, row, at : at + last - first] = spilled.cache[:, first:last]
        self.hidden[row, at : at + last - first] = spilled.hidden[first:last]

    def clear(self, row: int) -> None:
        """Zero a row that has held numbers that are not finite."""
        self.cache[:, row] = 0
        self.hidden[row] = 0
