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
from evolvent.engine.attention import first_adjacent_row
from evolvent.engine.plan import Plan

__all__ = ["GraphRecorder", "GraphShape", "find_graph_shape", "pad_order"]

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]
GraphShape = tuple[int, int, int | None]  # rows, positions, the first of rows side by side
Body = Callable[[Tensor, Tensor, Tensor, GraphShape, Arena], None]
_KEYS, _ROWS = 64, 8  # a graph serves all numbers of positions and rows up to the next multiple
_WASTE = 2.0  # positions that may be looked at in vain, over those that must be
_MOST = 64  # graphs of a recorder: what comes in more shapes than that is not worth recording


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    inputs: Tensor  # [3, n]: ids, rows, positions


class GraphRecorder:
    """Records the forwards of one decoder when their shape comes back, and replays them from then on.

    It does not keep the decoder: old weights go when the engine lets them go, and their graphs with them. Graphs are
    recorded on the arena's own stream, since the libraries' workspaces belong to streams.
    """

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._graphs: dict[GraphShape, _Graph] = {}
        self._known: set[GraphShape] = set()
        self._pool: Any = None
        self._broken = False

    def forward(self, ids: Tensor, plan: Plan, arena: Arena, *, body: Body) -> bool:
        """Returns whether the forward was replayed; if not, the caller has to run it.

        Args:
            body: the forward over `ids [n]`, `rows [n]` and `positions [n]` of a shape, and an arena; always the same.
        """
        shape = None if self._broken else find_graph_shape(plan, capacity=arena.capacity)
        if shape is None:
            return False
        if arena is not self._arena:
            self._arena, self._graphs, self._known, self._pool = arena, {}, set(), None
        graph = self._graphs.get(shape)
        if graph is None:
            if shape not in self._known:  # libraries choose their kernels outside of a recording
                self._known.add(shape)
                return False
            graph = self._try_capture(shape, ids.device, arena, body) if len(self._graphs) < _MOST else None
            if graph is None:
                return False
        order = pad_order(np.argsort(plan.rows), shape[0])
        graph.inputs[1:].copy_(torch.from_numpy(np.stack([plan.rows[order], plan.positions[order]])))
        torch.index_select(ids, 0, torch.from_numpy(order).to(ids.device), out=graph.inputs[0])
        graph.graph.replay()
        return True

    def _try_capture(self, shape: GraphShape, device: torch.device, arena: Arena, body: Body) -> _Graph | None:
        """Returns a new graph; returns None, and stops recording, where there is no memory for it."""
        problem: RuntimeError | None = None
        for _ in range(2):
            try:
                captured = self._graphs[shape] = self._capture(shape, device, arena, body)
                return captured
            except RuntimeError as error:  # no room, as a rule: a graph's memory is its own, and not what others keep
                problem = error
                torch.cuda.empty_cache()
        log.warning("forwards are not recorded: %s", problem)  # all goes on, one kernel at a time
        self._broken = True
        return None

    def _capture(self, shape: GraphShape, device: torch.device, arena: Arena, body: Body) -> _Graph:
        if arena.aside is None:
            arena.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        inputs, graph = torch.zeros((3, shape[0]), dtype=torch.int64, device=device), torch.cuda.CUDAGraph()
        current_stream = torch.cuda.current_stream(device)
        arena.aside.wait_stream(current_stream)
        with torch.cuda.stream(arena.aside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                body(inputs[0], inputs[1], inputs[2], shape, arena)
            finally:
                graph.capture_end()
        current_stream.wait_stream(arena.aside)
        self._pool = graph.pool() if self._pool is None else self._pool
        return _Graph(graph, inputs)


def find_graph_shape(plan: Plan, *, capacity: int) -> GraphShape | None:
    """Returns the graph shape that serves a plan; None where rows have several new tokens or very unequal lengths.

    Args:
        capacity: positions that a row has.
    """
    if any(group.queries > 1 for group in plan.groups):
        return None
    widths = [min(capacity, -(-group.keys // _KEYS) * _KEYS) for group in plan.groups]
    keys, count = max(widths), len(plan.rows)
    if count * keys > _WASTE * sum(len(group.rows) * width for group, width in zip(plan.groups, widths, strict=True)):
        return None
    step = max(_ROWS, 1 << max(0, count.bit_length() - 4))  # at most an eighth of the rows is filler, above 64
    rows = -(-count // step) * step
    fills_arena = (
        rows == count and first_adjacent_row(np.sort(plan.rows)) == 0
    )  # the usual case; each other would be a graph
    return rows, keys, 0 if fills_arena else None


def pad_order(order: Ints, count: int) -> Ints:
    """Pads `[n]` to `[count]` with copies of the last entry, which write the same numbers to the same position."""
    return np.concatenate([order, np.full(count - len(order), order[-1])])
