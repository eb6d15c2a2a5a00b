"""The engine on a CUDA device, where there is one, against full recomputation on the CPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from evolvent.engine.asks import LogitsAsk, SampleAsk, ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from tests.engine.models import CONTEXT, llama
from tests.engine.test_local import random_ask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device found")


@pytest.mark.parametrize("keys", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_asks_equals_recomputation_on_the_cpu(keys: int, seed: int) -> None:
    policy, rng = llama(keys=keys), np.random.default_rng(seed)
    there = replace(policy, model=copy.deepcopy(policy.model).to("cuda"))
    engine, oracle = LocalEngine(there, slots=6), RecomputeEngine(policy)
    nodes: list = []
    for _ in range(20):
        asks = [random_ask(rng, nodes) for _ in range(rng.integers(1, 7))]
        for ask, found in zip(asks, ask_and_wait(asks, engine), strict=True):
            whole = [*(ask.node.tokens() if ask.node else []), *ask.tokens]
            if isinstance(ask, ScoreAsk):
                (expected,) = ask_and_wait([ScoreAsk(None, whole)], oracle)
                np.testing.assert_allclose(found.logprobs, expected.logprobs[-len(ask.tokens) :], atol=1e-4)
            elif isinstance(ask, LogitsAsk):
                (expected,) = ask_and_wait([LogitsAsk(None, whole, ask.hidden)], oracle)
                np.testing.assert_allclose(found, expected, atol=1e-3)
            else:
                (expected,) = ask_and_wait(
                    [SampleAsk(None, whole, ask.max_tokens, ask.stop_ids, (), ask.sampling, ask.seeds, ask.choices)],
                    oracle,
                )
                for ours, theirs in zip(found, expected, strict=True):
                    assert ours.ids.tolist() == theirs.ids.tolist()
                    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
                nodes += [each.node for each in found if each.node.length < CONTEXT - 16]
