"""The remote engine against a policy behind a real server: the samples, trees and counts of a local engine."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

import evolvent as ev
from evolvent.engine.asks import GREEDY, Engine, LogitsAsk, RoutedAsk, SampleAsk, ScoreAsk
from evolvent.engine.driver import MultiModelEngine, ask_and_wait, run_jobs
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.local import LocalEngine
from evolvent.engine.remote import RemoteEngine
from evolvent.errors import (
    ConfigError,
    ContextOverflow,
    EndpointError,
    NoLegalAction,
    StaleNode,
    TokensMissing,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.models.policy import Policy
from evolvent.search.beam import beam
from evolvent.search.mcts import Commit, mcts
from evolvent.search.records import Budget
from evolvent.search.samples import best_of_n
from evolvent.search.scorers import FunctionScorer
from evolvent.search.texts import search_text
from evolvent.search.writing import Writing, begin_text
from tests.serve.small_policy import NAME, policy_server, scripted

WORDS = ["go", "left", "right", "stay", "see", "a", "door", "and", "key", ",", "."]
CONTEXT = 96


@pytest.fixture(scope="module")
def policy() -> Policy:
    return ev.tiny_policy(WORDS, context=CONTEXT, seed=4)


@pytest.fixture(scope="module")
def served(policy):
    with policy_server(policy) as running:
        yield running


@pytest.fixture
def engine(served, policy):
    with Endpoint(served.url, NAME, timeout_s=30, processed=True) as endpoint:
        remote = RemoteEngine(endpoint, context=CONTEXT, vocabulary=len(policy.tokenizer), threads=8)
        yield remote
        remote.close()


def plain(samples):
    return [(sample.ids.tolist(), sample.logprobs.tolist(), sample.stop, sample.node.tokens()) for sample in samples]


@pytest.mark.parametrize("sampling", [ev.Sampling(), GREEDY, ev.Sampling(temperature=0.8, top_k=6, top_p=0.9)])
def test_samples_are_those_of_a_local_engine(engine, policy, sampling):
    remote: Engine = engine
    local = LocalEngine(policy, slots=16)
    prompt = policy.dialect.open("", "see a door")
    asks = [
        SampleAsk(None, prompt, 9, policy.dialect.stop_ids, stops, sampling, tuple(range(at, at + 3)))
        for at, stops in enumerate(((), ("key",), (",", ".")))
    ]
    there, here = ask_and_wait(asks, remote), ask_and_wait(asks, local)
    assert [plain(one) for one in there] == [plain(one) for one in here]
    again = [SampleAsk(samples[0].node, [7, 8], 4, policy.dialect.stop_ids, sampling=sampling) for samples in there]
    own = [SampleAsk(samples[0].node, [7, 8], 4, policy.dialect.stop_ids, sampling=sampling) for samples in here]
    assert [plain(one) for one in ask_and_wait(again, remote)] == [plain(one) for one in ask_and_wait(own, local)]
    assert engine.usage.generated == local.usage.generated and engine.usage.computed > local.usage.computed


SEARCHES = {
    "best_of_n": lambda root, rng: best_of_n(root, Budget(), rng, n=4),
    "beam": lambda root, rng: beam(root, Budget(generated=150), rng, width=3, keep=2, depth=8),
    "mcts": lambda root, rng: mcts(root, Budget(), rng, width=3, depth=8, start=Commit(simulations=3), leaves=2),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_the_tree_that_it_finds_here(engine, policy, name):
    how = Writing.for_policy(policy, max_tokens=16, separators=(",", "."), span_tokens=5)
    value = FunctionScorer(lambda ids: (sum(ids) * 37 % 101) / 101)

    def works():
        for seed in range(3):
            root = begin_text(policy.dialect.open("", "see a door"), seed=seed)
            yield search_text(SEARCHES[name](root, np.random.default_rng(seed)), writing=how, scorer=value)

    trees = []
    for one in (engine, LocalEngine(policy, slots=16)):
        done = sorted(run_jobs(works(), one, slots=3), key=lambda each: each.index)
        assert all(each.error is None for each in done), done
        trees.append([each.value for each in done])
    for there, here in zip(*trees, strict=True):
        assert [state.written for state in there.tree.states] == [state.written for state in here.tree.states]
        assert there.tree.visits[: len(there.tree)].tolist() == here.tree.visits[: len(here.tree)].tolist()
        assert (there.best_node, there.finished, there.ended_by) == (here.best_node, here.finished, here.ended_by)
        assert (there.spent.generated, there.spent.computed) == (here.spent.generated, here.spent.computed)
    assert engine.usage.generated == sum(result.spent.generated for result in trees[0])


def test_what_an_endpoint_cannot_answer_is_refused(engine, policy):
    for ask in (LogitsAsk(None, [1]), ScoreAsk(None, [1, 2]), SampleAsk(None, [1], 4, choices=((5, 2),))):
        with pytest.raises(ConfigError, match="local engine"):
            ask_and_wait([ask], engine)
    with pytest.raises(ContextOverflow):
        ask_and_wait([SampleAsk(None, [1] * CONTEXT, 4)], engine)
    with pytest.raises(VocabularyMismatch):
        ask_and_wait([SampleAsk(None, [len(policy.tokenizer)], 4)], engine)
    ((mine,),) = ask_and_wait([SampleAsk(None, [1], 2)], LocalEngine(policy, slots=1))
    with pytest.raises(StaleNode):
        ask_and_wait([SampleAsk(mine.node, [1], 2)], engine)
    how = Writing.for_policy(policy, max_tokens=4, level="token")
    search = beam(begin_text([1, 2]), Budget(), np.random.default_rng(0), width=2, keep=1, depth=4)
    (done,) = run_jobs([search_text(search, writing=how)], engine, slots=1)
    assert isinstance(done.error, ConfigError)


def test_sizes_are_checked(engine):
    with pytest.raises(ConfigError) as caught:
        RemoteEngine(engine._endpoint, context=0, vocabulary=0, threads=0, wait_s=-1.0)
    assert len(caught.value.problems) == 4


def test_new_weights_make_nodes_stale(policy):
    with policy_server(policy) as running, Endpoint(running.url, NAME, timeout_s=30) as endpoint:
        engine = RemoteEngine(endpoint, context=CONTEXT, vocabulary=len(policy.tokenizer))
        ((sample,),) = ask_and_wait([SampleAsk(None, [1, 2], 3)], engine)
        newer = policy.clone().next_version()
        running.sync(newer)
        with pytest.raises(WeightsChanged):
            ask_and_wait([SampleAsk(sample.node, [3], 3)], engine)
        waiting = engine.submit(SampleAsk(None, [1, 2], 3))
        engine.sync(newer)
        assert [type(one.error) for one in engine.poll()] == [StaleNode] and not engine.pending() and waiting >= 0
        with pytest.raises(StaleNode):
            ask_and_wait([SampleAsk(sample.node, [3], 3)], engine)
        ((after,),) = ask_and_wait([SampleAsk(None, [1, 2], 3)], engine)
        assert engine.version == newer.version == after.node.version
        engine.close()


def test_it_works_beside_a_local_engine(engine, policy):
    both = MultiModelEngine({"policy": engine, "judge": LocalEngine(policy, slots=4)})
    found = ask_and_wait([SampleAsk(None, [1, 2], 4), RoutedAsk("judge", LogitsAsk(None, [1, 2]))], both)
    assert len(found[0][0].ids) and found[1].shape == (len(policy.tokenizer),)


# ------------------------------------------------------------------ endpoints that fail


def row(body, ids=(5, 9), **more):
    choice = {
        "index": 0,
        "text": "t",
        "finish_reason": "length",
        "token_ids": list(ids),
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
    }
    return {
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [choice | more],
        "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)},
    }


@contextmanager
def remote(url, *, timeout_s=0.8, **more):
    with Endpoint(url, "m", timeout_s=timeout_s) as endpoint:
        engine = RemoteEngine(endpoint, context=32, vocabulary=20, **more)
        yield engine
        engine.close()


def test_requests_are_many_at_once_each_with_its_seed_and_the_session():
    gate = threading.Barrier(5)

    def answer(number, path, body):
        gate.wait(20)
        return 200, {}, row(body)

    with scripted(answer) as (url, script):
        with remote(url, timeout_s=20, session="s1") as engine:
            (found,) = ask_and_wait([SampleAsk(None, [1, 2], 4, frozenset([9]), ("x",), seeds=(5, 6, 7, 8, 9))], engine)
    assert sorted(body["seed"] for _, _, body in script.asked) == [5, 6, 7, 8, 9]
    for path, headers, body in script.asked:
        sent = {key.lower(): value for key, value in headers.items()}
        assert path == "/v1/completions" and sent["x-session-id"] == "s1"
        assert body["prompt"] == [1, 2] and body["max_tokens"] == 4 and body["stop"] == ["x"]
    assert [sample.stop for sample in found] == ["stop"] * 5 and engine.usage.generated == 10


def test_replies_are_cut_after_a_stop_token():
    with scripted(lambda number, path, body: (200, {}, row(body, (5, 9, 6)))) as (url, _):
        with remote(url) as engine:
            ((cut,),) = ask_and_wait([SampleAsk(None, [1], 4, frozenset([9]))], engine)
            ((whole,),) = ask_and_wait([SampleAsk(None, [1], 4)], engine)
    assert (cut.ids.tolist(), cut.stop, cut.node.tokens()) == ([5, 9], "stop", [1, 5, 9])
    assert (whole.ids.tolist(), whole.stop) == ([5, 9, 6], "length")


@pytest.mark.parametrize(
    ("told", "error"), [({"token_ids": None}, TokensMissing), ({"prompt_token_ids": [3]}, EndpointError)]
)
def test_replies_that_cannot_be_used_are_errors(told, error):
    with scripted(lambda number, path, body: (200, {}, row(body, **told))) as (url, _):
        with remote(url) as engine:
            with pytest.raises(error):
                ask_and_wait([SampleAsk(None, [1], 4)], engine)
            assert not engine.pending()


def test_a_passing_failure_is_repeated_and_a_lasting_one_drops_its_child_alone():
    seen: dict[int, int] = {}

    def answer(number, path, body):
        seen[body["seed"]] = seen.get(body["seed"], 0) + 1
        if body["seed"] % 5 == 0:
            return 400, {}, {"error": {"message": "cannot", "code": "bad"}}
        if seen[body["seed"]] == 1:
            return 503, {"retry-after": "0"}, {"error": {"message": "busy"}}
        return 200, {}, row(body, (body["seed"] % 7 + 3, 9))

    with scripted(answer) as (url, _):
        with remote(url, timeout_s=10) as engine:
            how = Writing(str, frozenset([9]), 32, 8)
            search = best_of_n(begin_text([1, 2], seed=1), Budget(), np.random.default_rng(0), n=12, valued=False)
            (done,) = run_jobs([search_text(search, writing=how)], engine, slots=1)
    result = done.value
    failed = [each for each in result.dropped if "cannot" in each.reason]
    assert len(failed) == sum(seed % 5 == 0 for seed in seen) > 0
    assert sum(result.tree.counts[1:]) == 12 - len(failed) and result.best_node is not None


def test_an_endpoint_that_is_lost_ends_the_search_with_its_best_so_far():
    alive = threading.Event()
    alive.set()

    def answer(number, path, body):
        if number >= 6:
            alive.clear()
        return (200, {}, row(body, (body["seed"] % 5 + 3, 6))) if alive.is_set() else None

    value = FunctionScorer(lambda ids: sum(ids) / 100)
    how = Writing(str, frozenset([9]), 32, 12, span_tokens=2, separators=("x",))
    with scripted(answer) as (url, script):
        with remote(url, timeout_s=0.3) as engine:
            search = beam(begin_text([1, 2]), Budget(), np.random.default_rng(0), width=3, keep=1, depth=6)
            (done,) = run_jobs([search_text(search, writing=how, scorer=value)], engine, slots=1)
            result = done.value
            assert done.error is None and result.best_node is None and len(result.tree) > 1
            assert any("no answer" in each.reason for each in result.dropped)
            alive.clear()
            search = beam(begin_text([1, 2]), Budget(), np.random.default_rng(0), width=3, keep=1, depth=6)
            (done,) = run_jobs([search_text(search, writing=how, scorer=value)], engine, slots=1)
            assert isinstance(done.error, NoLegalAction)
    assert len(script.asked) > 6
