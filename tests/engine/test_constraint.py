"""Constraints in the engines: whose distribution is sampled, when a text ends, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evolvent.engine.asks import GREEDY, LogitsAsk, SampleAsk, Sampling
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.engine.streams import distribution
from evolvent.errors import ConfigError, EngineError
from tests.engine.models import VOCABULARY, Policy, llama

STOP = 7
SETTINGS = (Sampling(), Sampling(temperature=0.7), Sampling(top_k=3), Sampling(top_p=0.6), GREEDY)


class Steps:
    """Even tokens, then odd ones, in turn; `most` of them, then the stop token or nothing."""

    def __init__(self, most: int, *, stop: int | None = STOP, fault: str = "", size: int = VOCABULARY) -> None:
        self.written, self.most, self.stop, self.size, self._fault = [], most, stop, size, fault

    def copy(self) -> Steps:
        other = Steps(self.most, stop=self.stop, fault=self._fault, size=self.size)
        other.written = list(self.written)
        return other

    def allowed(self) -> np.ndarray:
        mask = np.zeros(self.size, np.bool_)
        if len(self.written) < self.most:
            mask[len(self.written) % 2 :: 2] = True
            mask[STOP] = False
        elif self.stop is not None:
            mask[self.stop] = True
        return mask

    def advance(self, token: int) -> None:
        assert self.allowed()[token], (self.written, token)
        self.written.append(token)

    @property
    def fault(self) -> str:
        return self._fault if len(self.written) == self.most else ""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return llama()


@pytest.fixture(params=[LocalEngine, RecomputeEngine])
def engine(request, policy):
    return request.param(policy, slots=4)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_log_probabilities_are_of_the_limited_distribution(engine, sampling):
    steps = Steps(4)
    ((one, two),) = ask_and_wait(
        [SampleAsk(None, [3, 4], 9, frozenset([STOP]), (), sampling, (5, 6), constraint=steps)], engine
    )
    assert steps.written == [], "the ask's own state stays where it is"
    for found in (one, two):
        assert found.stop == "stop" and len(found.ids) == 5 and found.logprobs[-1] == 0.0
        check = Steps(4)
        for at, token in enumerate(found.ids.tolist()):
            (logits,) = ask_and_wait([LogitsAsk(None, [3, 4, *found.ids[:at].tolist()])], engine)
            expected = distribution(
                torch.tensor(logits)[None],
                temperature=torch.tensor([sampling.temperature]),
                top_k=torch.tensor([sampling.top_k]),
                top_p=torch.tensor([sampling.top_p]),
                allowed=torch.tensor(check.allowed())[None],
            )
            assert float(found.logprobs[at]) == pytest.approx(float(expected[0, token]), abs=1e-5)
            check.advance(token)


def test_samples_follow_the_limited_distribution(engine):
    (logits,) = ask_and_wait([LogitsAsk(None, [3])], engine)
    odds = np.exp(logits - logits.max()) * Steps(1).allowed()
    (found,) = ask_and_wait([SampleAsk(None, [3], 1, seeds=tuple(range(800)), constraint=Steps(1))], engine)
    counts = np.bincount([int(one.ids[0]) for one in found], minlength=VOCABULARY) / 800
    assert np.abs(counts - odds / odds.sum()).max() < 0.07 and counts[~Steps(1).allowed()].sum() == 0
    assert {one.stop for one in found} == {"length"}


def test_a_text_ends_by_itself_by_its_stop_token_or_cut(engine):
    asks = [
        SampleAsk(None, [1], 9, constraint=Steps(3, stop=None)),
        SampleAsk(None, [1], 9, frozenset([STOP]), constraint=Steps(3)),
        SampleAsk(None, [1], 2, frozenset([STOP]), constraint=Steps(3)),
        SampleAsk(None, [1], 3, constraint=Steps(3, stop=None)),
        SampleAsk(None, [1], 5, constraint=Steps(9, size=11)),
    ]
    found = [one for (one,) in ask_and_wait(asks, engine)]
    assert [(len(one.ids), one.stop) for one in found] == [
        (3, "stop"),
        (4, "stop"),
        (2, "length"),
        (3, "stop"),
        (5, "length"),
    ]
    assert found[4].ids.max() < 11, "a tokenizer may know fewer tokens than the model has rows"


def test_a_constraint_that_fails_ends_its_ask_alone(engine):
    asks = [SampleAsk(None, [1], 9, constraint=Steps(2, stop=None, fault="too complex")), SampleAsk(None, [1], 4)]
    tickets = [engine.submit(ask) for ask in asks]
    done = {}
    while engine.pending():
        done |= {one.ticket: one for one in engine.poll()}
    assert isinstance(done[tickets[0]].error, EngineError) and "too complex" in str(done[tickets[0]].error)
    assert done[tickets[1]].error is None and len(done[tickets[1]].answer[0].ids) == 4


def test_neighbours_of_a_constrained_text_are_what_they_are_alone(policy):
    free = [SampleAsk(None, [2, at], 12, sampling=setting, seeds=(at,)) for at, setting in enumerate(SETTINGS)]
    alone = ask_and_wait(free, LocalEngine(policy, slots=8))
    held = [SampleAsk(None, [2, at], 12, seeds=(at,), constraint=Steps(20)) for at in range(3)]
    beside = ask_and_wait([held[0], *free, *held[1:]], LocalEngine(policy, slots=8))[1:-2]
    for (ours,), (theirs,) in zip(beside, alone, strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist()
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)


def test_a_fork_in_the_middle_goes_on_from_a_copy(engine):
    whole = Steps(6)
    ((first,),) = ask_and_wait([SampleAsk(None, [1], 3, frozenset([STOP]), (), GREEDY, constraint=whole)], engine)
    middle = whole.copy()
    for token in first.ids.tolist():
        middle.advance(token)
    ((rest, other),) = ask_and_wait(
        [SampleAsk(first.node, [], 9, frozenset([STOP]), (), GREEDY, (1, 2), constraint=middle)], engine
    )
    ((again,),) = ask_and_wait([SampleAsk(None, [1], 9, frozenset([STOP]), (), GREEDY, constraint=Steps(6))], engine)
    assert [*first.ids, *rest.ids] == again.ids.tolist() and rest.ids.tolist() == other.ids.tolist()
    assert len(middle.written) == 3


def test_asks_that_cannot_be_are_refused(engine):
    with pytest.raises(ConfigError, match="choices and a constraint"):
        engine.submit(SampleAsk(None, [1], 3, choices=((1, 2),), constraint=Steps(3)))
    with pytest.raises(ConfigError, match="allows no token"):
        engine.submit(SampleAsk(None, [1], 3, constraint=Steps(0, stop=None)))
    assert engine.pending() == 0
