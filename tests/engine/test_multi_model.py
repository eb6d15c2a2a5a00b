"""Several models behind one driver: each ask is answered by its model, tickets and counts are kept apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolvent.engine.asks import GREEDY, Engine, LogitsAsk, RoutedAsk, SampleAsk, ScoreAsk
from evolvent.engine.driver import MultiModelEngine, ask_and_wait, run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, StaleNode
from tests.engine.models import llama


@pytest.fixture(scope="module")
def policies():
    return llama(), llama(seed=5)


def both(policies) -> MultiModelEngine:
    return MultiModelEngine({"policy": LocalEngine(policies[0], slots=8), "judge": LocalEngine(policies[1], slots=8)})


def asks(seed: int):
    return [
        SampleAsk(None, [1, 2, seed % 5], 6, seeds=(seed, seed + 1)),
        LogitsAsk(None, [3, seed % 7]),
        ScoreAsk(None, [4, 5, seed % 3]),
    ]


def plain(answer):
    if isinstance(answer, tuple):
        return [(sample.ids.tolist(), sample.logprobs.tolist()) for sample in answer]
    return np.asarray(getattr(answer, "logprobs", answer)).tolist()


def test_every_ask_is_answered_by_the_model_it_names(policies):
    engine: Engine = both(policies)
    own = [LocalEngine(policy, slots=8) for policy in policies]
    mixed = [ask for seed in range(6) for ask in asks(seed)]
    named = [
        RoutedAsk("judge", ask) if at % 2 else (RoutedAsk("policy", ask) if at % 4 else ask)
        for at, ask in enumerate(mixed)
    ]
    found = ask_and_wait(named, engine)
    for at, (ask, answer) in enumerate(zip(mixed, found, strict=True)):
        (expected,) = ask_and_wait([ask], own[at % 2])
        np.testing.assert_allclose(flat(plain(answer)), flat(plain(expected)), atol=1e-5)
    (ours,), (theirs,) = ask_and_wait([mixed[1]], own[0]), ask_and_wait([mixed[1]], own[1])
    assert np.abs(ours - theirs).max() > 0.01, "the models differ, or nothing was tested"


def flat(values) -> list[float]:
    return [values] if isinstance(values, int | float) else [each for value in values for each in flat(value)]


def test_works_under_a_driver_may_ask_both(policies):
    def work(seed):
        (samples,) = yield [SampleAsk(None, [1, 2], 5, sampling=GREEDY, seeds=(seed,))]
        ids = samples[0].ids.tolist()
        (scored,) = yield [RoutedAsk("judge", ScoreAsk(None, [1, 2, *ids]))]
        more = yield [SampleAsk(samples[0].node, [3], 2), RoutedAsk("judge", LogitsAsk(scored.node, [3]))]
        return ids, scored.logprobs.tolist(), plain(more[0]), plain(more[1])

    done = {one.index: one.value for one in run_jobs((work(seed) for seed in range(5)), both(policies), slots=5)}
    alone = [next(run_jobs([work(seed)], both(policies), slots=1)).value for seed in range(5)]
    for at in range(5):
        np.testing.assert_allclose(flat(done[at]), flat(alone[at]), atol=1e-5)


def test_a_node_belongs_to_its_model(policies):
    engine = both(policies)
    ((sample,),) = ask_and_wait([SampleAsk(None, [1, 2], 3)], engine)
    with pytest.raises(StaleNode):
        ask_and_wait([RoutedAsk("judge", LogitsAsk(sample.node))], engine)
    with engine.hold([sample.node]):
        assert sample.node.segment.holds > 0
    assert sample.node.segment.holds == 0


def test_counts_are_sums_and_begin_with_the_engine(policies):
    first = LocalEngine(policies[0], slots=8)
    ask_and_wait([LogitsAsk(None, [9, 9, 9])], first)
    engine = MultiModelEngine({"policy": first, "judge": RecomputeEngine(policies[1])})
    before = replace(first.usage)
    named = [*asks(3), *(RoutedAsk("judge", ask) for ask in asks(4))]
    ask_and_wait(named, engine)
    judge = engine.engine_of("judge").usage
    assert engine.usage.computed == first.usage.computed - before.computed + judge.computed
    assert engine.usage.generated == first.usage.generated + judge.generated == 24
    assert engine.usage.forwards == first.usage.forwards - before.forwards + judge.forwards > 0


def test_what_is_cancelled_is_forgotten_by_its_model_alone(policies):
    engine = both(policies)
    kept = engine.submit(SampleAsk(None, [1, 2], 4))
    gone = [engine.submit(RoutedAsk("judge", SampleAsk(None, [1, 2], 4))), engine.submit(SampleAsk(None, [3], 4))]
    engine.cancel([*gone, 999])
    assert (
        engine.pending() == 1 and engine.engine_of("judge").pending() == 0 and engine.engine_of("policy").pending() == 1
    )
    found = []
    while engine.pending():
        found += engine.poll()
    assert [one.ticket for one in found] == [kept] and engine.engine_of("judge").usage.computed == 0


def test_new_weights_go_to_the_first(policies):
    engine = both(policies)
    ((ours,),) = ask_and_wait([SampleAsk(None, [1, 2], 3)], engine)
    (theirs,) = ask_and_wait([RoutedAsk("judge", ScoreAsk(None, [1, 2]))], engine)
    engine.sync(replace(policies[0], version=1))
    assert engine.version == 1 and engine.engine_of("judge").version == 0 and engine.context == policies[0].context
    with pytest.raises(StaleNode):
        ask_and_wait([SampleAsk(ours.node, [3], 2)], engine)
    ask_and_wait([RoutedAsk("judge", LogitsAsk(theirs.node, [3]))], engine)


def test_one_engine_may_have_two_names(policies):
    shared = LocalEngine(policies[0], slots=8)
    engine = MultiModelEngine({"policy": shared, "critic": shared})
    ((sample,),) = ask_and_wait([SampleAsk(None, [1, 2], 3)], engine)
    ask_and_wait([RoutedAsk("critic", LogitsAsk(sample.node))], engine)
    assert engine.usage.computed == shared.usage.computed == 2 + 3


def test_names_are_checked(policies):
    engine = both(policies)
    with pytest.raises(ConfigError, match="did you mean 'judge'"):
        ask_and_wait([RoutedAsk("judg", LogitsAsk(None, [1]))], engine)
    with pytest.raises(ConfigError, match="the request names a model, but the engine serves only one"):
        ask_and_wait([RoutedAsk("judge", LogitsAsk(None, [1]))], LocalEngine(policies[0], slots=2))
    with pytest.raises(ConfigError):
        MultiModelEngine({})

    def work():
        yield [RoutedAsk("judge", LogitsAsk(None, [1]))]

    (done,) = run_jobs([work()], LocalEngine(policies[0], slots=2), slots=1)
    assert isinstance(done.error, ConfigError)
