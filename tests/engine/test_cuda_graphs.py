"""What a recorded forward is handed: its shape, and filler that changes nothing. Recording itself: `test_cuda.py`."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from evolvent.engine.arena import Arena
from evolvent.engine.asks import SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.fused import FusedDecoder, GraphRecorder, _Graph, find_graph_shape, pad_order
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.engine.streams import plan
from tests.engine.models import CONTEXT, SHAPE, VOCABULARY, llama, model_of
from tests.engine.test_local import random_ask, same_answer


def laid(rows: list[int], starts: list[int], counts: list[int] | None = None, capacity: int = 512):
    ones = np.array(counts or [1] * len(rows))
    return plan(np.array(rows), np.array(starts), ones, limit=2**18, capacity=capacity)


@pytest.mark.parametrize(
    ("rows", "starts", "counts", "shape"),
    [
        ([0, 1, 2], [5, 6, 7], None, (8, 64, None)),  # filled up, and so not side by side
        (list(range(8)), [63] * 8, None, (8, 64, 0)),
        (list(range(4, 12)), [64] * 8, None, (8, 128, None)),
        ([*range(7), 9], [64] * 8, None, (8, 128, None)),
        (list(range(8)), [510] * 8, None, (8, 512, 0)),  # never beyond the arena's rows
        (list(range(100)), [5] * 100, None, (104, 64, None)),
        (list(range(300)), [5] * 300, None, (320, 64, None)),
        (list(range(8)), [5] * 8, [1] * 7 + [2], None),  # one reads a prompt
        (list(range(40)), [5] * 39 + [500], None, None),  # all would look as far as one does
    ],
)
def test_shapes(rows, starts, counts, shape) -> None:
    assert find_graph_shape(laid(rows, starts, counts), capacity=512) == shape


class Played(GraphRecorder):
    """Graphs that run the body anew, and how many were made and replayed; `fails`: so many recordings do."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__()
        self.fails, self.replays = fails, 0

    def _capture(self, shape, device, arena, body):
        if self.fails:
            self.fails -= 1
            raise torch.OutOfMemoryError("no room")
        inputs = torch.zeros((3, shape[0]), dtype=torch.int64)

        def replay() -> None:
            self.replays += 1
            body(*inputs, shape, arena)

        return _Graph(SimpleNamespace(replay=replay), inputs)


@pytest.mark.parametrize("fails", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_replays_answers_as_one_that_does_not(seed: int, fails: int) -> None:
    policy, rng, nodes = llama(), np.random.default_rng(seed), list[Any]()
    engine, oracle = LocalEngine(policy, slots=8), RecomputeEngine(policy)
    played = engine._decoder._recorder = Played(fails)
    engine._decoder._attention._cpu = engine._decoder._attention._blocks = False
    for _ in range(12):
        asks = [random_ask(rng, nodes) for _ in range(rng.integers(1, 9))]
        for ask, found in zip(asks, ask_and_wait(asks, engine), strict=True):
            same_answer(ask, found, oracle)
            if isinstance(ask, SampleAsk):
                nodes += [each.node for each in found if each.node.length < CONTEXT - 16]
    assert (played.replays > 20 and len(played._graphs) >= 1) if fails < 2 else played._broken


def test_another_arena_has_graphs_of_its_own() -> None:
    decoder, recorder = FusedDecoder(model_of(LlamaConfig(**SHAPE, num_key_value_heads=2)), capacity=64), Played()
    decoder._recorder = recorder
    arenas = [Arena(decoder.shape, 8, 64, dtype=torch.float32, device=torch.device("cpu")) for _ in "ab"]
    step = laid(list(range(8)), [3] * 8, capacity=64)
    with torch.inference_mode():
        for arena, replays in ((arenas[0], 0), (arenas[0], 1), (arenas[0], 2), (arenas[1], 2), (arenas[1], 3)):
            decoder.forward(torch.arange(8), step, arena)
            assert recorder.replays == replays and recorder._arena is arena
    assert torch.equal(arenas[0].hidden, arenas[1].hidden)


def test_a_decoder_goes_with_its_last_reference() -> None:
    """Old weights must not wait for the collector, which no device's memory wakes up."""
    decoder = FusedDecoder(model_of(LlamaConfig(**SHAPE, num_key_value_heads=2)), capacity=64)
    decoder._recorder = GraphRecorder()
    arena = Arena(decoder.shape, 8, 64, dtype=torch.float32, device=torch.device("cpu"))
    step = laid(list(range(8)), [3] * 8, capacity=64)
    with torch.inference_mode():
        decoder.forward(torch.arange(8), step, arena)  # its shape is known from now on
    left = weakref.ref(decoder), weakref.ref(arena)
    gc.disable()
    try:
        del decoder, arena
        assert [ref() for ref in left] == [None, None]
    finally:
        gc.enable()


def test_filler_repeats_the_last() -> None:
    assert pad_order(np.array([2, 0, 1]), 5).tolist() == [2, 0, 1, 1, 1]
    assert pad_order(np.array([2, 0, 1]), 3).tolist() == [2, 0, 1]


@pytest.mark.parametrize("count", [1, 5, 8])
def test_what_would_be_recorded_is_the_forward(count: int) -> None:
    """Filled up and sorted, the body writes what the planned forward writes."""
    rng = np.random.default_rng(count)
    model = model_of(LlamaConfig(**SHAPE, num_key_value_heads=2))
    decoder = FusedDecoder(model, capacity=64)
    decoder._attention._cpu = decoder._attention._blocks = False
    planned, recorded = (Arena(decoder.shape, 9, 64, dtype=torch.float32, device=torch.device("cpu")) for _ in "ab")
    rows = rng.permutation(8)[:count] if count < 8 else np.arange(8)[::-1].copy()
    starts = rng.integers(1, 20, count)
    with torch.inference_mode():
        for arena in (planned, recorded):
            shown = plan(rows, np.zeros(count, np.int64), starts, limit=2**18, capacity=64)
            ids = torch.from_numpy(np.random.default_rng(7).integers(0, VOCABULARY, len(shown.rows)))
            decoder.forward(ids, shown, arena)
        step = plan(rows, starts, np.ones(count, np.int64), limit=2**18, capacity=64)
        ids = torch.from_numpy(rng.integers(0, VOCABULARY, count))
        decoder.forward(ids, step, planned)
        shape = find_graph_shape(step, capacity=64)
        assert shape is not None and shape[2] == (0 if count == 8 else None)
        order = pad_order(np.argsort(step.rows), shape[0])
        given = (ids[order], torch.from_numpy(step.rows[order]), torch.from_numpy(step.positions[order]))
        decoder._forward_single(*given, shape, recorded)
    assert torch.allclose(planned.hidden, recorded.hidden, atol=1e-5) and planned.hidden.abs().sum() > 0
    assert torch.allclose(planned.cache, recorded.cache, atol=1e-5)
