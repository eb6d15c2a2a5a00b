"""Forwards of one new token per row, recorded as CUDA graphs: a device waits for nobody to launch the next kernel.

A small model's forward is hundreds of short kernels, and launching them one by one takes longer than running them. What
is replayed is the same kernels on the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.arena import Arena
from evolvent.engine.attention import side_by_side
from evolvent.engine.plan import Plan

__all__ = ["Recorder", "Shape", "filled", "shape_of"]

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]
Shape = tuple[int, int, int | None]  # rows, positions, the first of rows side by side
Body = Callable[[Tensor, Tensor, Tensor, Shape, Arena], None]
_KEYS, _ROWS = 64, 8  # a graph serves all numbers of positions and rows up to the next multiple
_WASTE = 2.0  # positions that may be looked at in vain, over those that must be


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    inputs: Tensor  # [3, n]: ids, rows, positions


class Recorder:
    """Records the forwards of one decoder when their shape comes back, and replays them from then on.

    Args:
        body: the forward over `ids [n]`, `rows [n]` and `positions [n]` of a shape, and an arena.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._arena: Arena | None = None
        self._graphs: dict[Shape, _Graph] = {}
        self._known: set[Shape] = set()
        self._pool: Any = None
        self._broken = False

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> bool:
        """Whether the forward was replayed; if not, it is the caller's to run."""
        shape = None if self._broken else shape_of(plan, capacity=arena.capacity)
        if shape is None:
            return False
        if arena is not self._arena:
            self._arena, self._graphs, self._known = arena, {}, set()
        graph = self._graphs.get(shape)
        if graph is None:
            if shape not in self._known:  # libraries choose their kernels outside of a recording
                self._known.add(shape)
                return False
            graph = self._recorded(shape, ids.device, arena)
            if graph is None:
                return False
        order = filled(np.argsort(plan.rows), shape[0])
        graph.inputs[1:].copy_(torch.from_numpy(np.stack([plan.rows[order], plan.positions[order]])))
        torch.index_select(ids, 0, torch.from_numpy(order).to(ids.device), out=graph.inputs[0])
        graph.graph.replay()
        return True

    def _recorded(self, shape: Shape, device: torch.device, arena: Arena) -> _Graph | None:
        inputs, graph = torch.zeros((3, shape[0]), dtype=torch.int64, device=device), torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    self._body(inputs[0], inputs[1], inputs[2], shape, arena)
                finally:
                    graph.capture_end()
        except RuntimeError as problem:  # without graphs everything goes on, one kernel at a time
            log.warning("forwards are not recorded: %s", problem)
            self._broken = True
            return None
        here.wait_stream(aside)
        self._pool = graph.pool() if self._pool is None else self._pool
        made = self._graphs[shape] = _Graph(graph, inputs)
        return made


def shape_of(plan: Plan, *, capacity: int) -> Shape | None:
    """The shape that serves a plan; None where rows have several new tokens, or unlike lengths.

    Args:
        capacity: positions that a row has.
    """
    if any(group.queries > 1 for group in plan.groups):
        return None
    looked = [min(capacity, -(-group.keys // _KEYS) * _KEYS) for group in plan.groups]
    keys, count = max(looked), len(plan.rows)
    if count * keys > _WASTE * sum(len(group.rows) * each for group, each in zip(plan.groups, looked, strict=True)):
        return None
    step = max(_ROWS, 1 << max(0, count.bit_length() - 4))  # at most an eighth of the rows is filler, above 64
    rows = -(-count // step) * step
    return rows, keys, side_by_side(np.sort(plan.rows)) if rows == count else None


def filled(order: Ints, count: int) -> Ints:
    """`[n] -> [count]`: copies of the last behind it, which write the same numbers to the same place."""
    return np.concatenate([order, np.full(count - len(order), order[-1])])
