"""Fault 41: more paths than the arena has rows, one longer than the context, and asks that fail: nothing leaks.

Who finds no row waits for one, and all get the answers of an engine with room for all. What can never fit is refused at
once by ContextOverflow and takes nothing from others. After any mixture of errors all rows are free.
"""

from __future__ import annotations

import gc

import pytest
import torch

from evolvent.engine.asks import SampleAsk, ScoreAsk
from evolvent.engine.driver import ask_and_wait, run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ContextOverflow, EngineError
from tests.engine.models import CONTEXT, llama
from tests.engine.test_local import free_rows

POISON = frozenset([9])  # a token whose embedding one test destroys: whoever samples it stops


def texts(engine: LocalEngine, count: int) -> list[list[int]]:
    asks = [SampleAsk(None, [index % 5 + 1, index % 3], 6, POISON, seeds=(index,)) for index in range(count)]
    return [one.ids.tolist() for (one,) in ask_and_wait(asks, engine)]


def test_who_finds_no_row_waits_and_gets_the_same():
    policy = llama()
    assert texts(LocalEngine(policy, slots=2), 20) == texts(LocalEngine(policy, slots=32), 20)


def test_what_never_fits_is_refused_at_once_and_its_neighbours_go_on():
    engine = LocalEngine(llama(), slots=2)
    with pytest.raises(ContextOverflow, match=f"{CONTEXT}"):
        engine.submit(ScoreAsk(None, [1] * (CONTEXT + 1)))

    def work(tokens):
        ((sample,),) = yield (SampleAsk(None, tokens, 4),)
        return len(sample.ids)

    done = {one.index: one for one in run_jobs([work([1] * size) for size in (3, CONTEXT + 5, 2, 4)], engine, slots=4)}
    assert isinstance(done[1].error, ContextOverflow)
    assert [done[index].value for index in (0, 2, 3)] == [4, 4, 4]
    del done
    gc.collect()  # an error's trace holds what was under way
    assert engine.pending() == 0 and free_rows(engine) == 2


def test_no_row_leaks_after_errors_and_cancellations():
    policy = llama()
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[9] = torch.nan  # whoever reads it has no finite logits
    engine = LocalEngine(policy, slots=3)
    before = texts(engine, 4)
    for turn in range(6):
        asks = [
            SampleAsk(None, [9, turn], 4, seeds=(1, 2)),
            SampleAsk(None, [1, turn], 8, POISON),
            SampleAsk(None, [2], 8, POISON),
        ]
        failing, cancelled, fine = (engine.submit(ask) for ask in asks)
        with pytest.raises(ContextOverflow):
            engine.submit(SampleAsk(None, [1] * CONTEXT, 1))
        found = {one.ticket: one.error for one in engine.poll()}
        engine.cancel([cancelled])
        while engine.pending():
            found |= {one.ticket: one.error for one in engine.poll()}
        assert isinstance(found.pop(failing), EngineError)
        assert found == {fine: None}
    gc.collect()
    assert free_rows(engine) == 3
    assert texts(engine, 4) == before
