"""Memory of an engine: taken token by token, given back, and bounded by a budget that changes no answer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from evolvent.engine.arena import lazy_zeros
from evolvent.engine.asks import SampleAsk
from evolvent.engine.local import LocalEngine
from evolvent.models.placement import available_bytes
from evolvent.models.policy import tiny_policy

CPU = torch.device("cpu")
lazy_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are counted on Linux")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@lazy_only
def test_lazy_zeros_take_memory_when_written_and_give_it_back():
    tensor, memory = lazy_zeros((1024, 2**16), dtype=torch.float32, device=CPU)  # 256 MB
    assert memory is not None
    before = resident_bytes()
    assert float(tensor.sum()) == 0.0
    assert resident_bytes() - before < 2**24, "reading takes nothing"
    tensor[:512] = 1.0
    assert 2**27 <= resident_bytes() - before < 2**27 + 2**24
    memory.release(0, 512 * 2**18)
    assert resident_bytes() - before < 2**24 and float(tensor.sum()) == 0.0


@lazy_only
def test_mapping_of_more_than_the_memory_is_possible():
    tensor, _ = lazy_zeros((2, available_bytes(CPU)), dtype=torch.float32, device=CPU)
    tensor[1, -1] = 3.0
    assert float(tensor[1, -1]) == 3.0


def run_asks(engine: LocalEngine, *, count: int) -> list[list[int]]:
    """Writes `count` turns of four conversations, each behind its last."""
    rng = np.random.default_rng(0)
    nodes: list = [None] * 4
    written: list[list[int]] = []
    for _ in range(count):
        tickets = {}
        for number in range(4):
            tokens = rng.integers(4, engine.vocabulary, 9).tolist()
            ask = SampleAsk(nodes[number], tokens, 7, seeds=(number, number + 9))
            tickets[engine.submit(ask)] = number
        while engine.pending():
            for finished in engine.poll():
                assert finished.error is None, finished.error
                first, second = finished.answer
                nodes[tickets[finished.ticket]] = first.node
                written += [first.ids.tolist(), second.ids.tolist()]
    return sorted(written)


def test_a_small_budget_changes_no_answer_and_is_kept():
    policy = tiny_policy([f"w{number}" for number in range(60)], context=128)
    free = LocalEngine(policy, slots=16)
    expected = run_asks(free, count=5)
    token_bytes = free._decoder.shape.token_bytes(torch.float32)
    for budget in (1600, 400, 200, 97, 1):
        engine = LocalEngine(policy, slots=16, memory_bytes=budget * token_bytes)
        most = 0
        poll = engine.poll

        def watched(engine=engine, poll=poll):
            nonlocal most
            finished = poll()
            most = max(most, engine._rows.held_tokens())
            return finished

        engine.poll = watched
        assert run_asks(engine, count=5) == expected
        longest = 5 * 16
        assert most <= max(budget, 2 * longest), "one stream always runs, behind a row that it copies from"
        if budget >= 1600:
            assert engine.usage.recomputed == 0


@lazy_only
def test_memory_of_a_large_arena_is_that_of_the_tokens_held():
    """192 rows of 8,192 positions map 12 GB here; the conversations held take some megabytes."""
    script = """
    import resource, numpy as np
    from pathlib import Path
    from evolvent.engine.asks import SampleAsk
    from evolvent.engine.local import LocalEngine
    from evolvent.models.policy import Policy
    from evolvent.models.tiny import tiny_config, init_tiny, word_tokenizer
    from evolvent.models.dialects import dialect_for
    tokenizer = word_tokenizer([f"w{n}" for n in range(60)], context=8192)
    config = tiny_config(len(tokenizer), "m", context=8192)
    policy = Policy(init_tiny(config, seed=0), tokenizer, dialect_for(tokenizer, "words"))
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    warm = LocalEngine(policy, slots=2)
    warm.submit(SampleAsk(None, list(range(4, 50)), 4)); [warm.poll() for _ in range(9)]
    engine = LocalEngine(policy, slots=192)
    before = resident()
    texts = [np.random.default_rng(n).integers(4, 60, 490).tolist() for n in range(32)]
    answers, tickets = [], [engine.submit(SampleAsk(None, text, 10)) for text in texts]
    while engine.pending():
        answers += engine.poll()
    shape = engine._decoder.shape
    held = sum(f.answer[0].node.length for f in answers) * shape.token_bytes(engine._rows.arena.cache.dtype)
    print((resident() - before) / held, engine._rows.arena.cache.numel() * 4 / held)
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what was freed is given back at once
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    taken, mapped = map(float, done.stdout.split())
    assert taken <= 1.2 and mapped > 30
