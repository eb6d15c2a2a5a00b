"""Fault 39: an endpoint serves other weights in the middle of an episode: WeightsChanged, or marked and told apart."""

from __future__ import annotations

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

import evolvent as ev
from evolvent.agents.chat import ChatAgent
from evolvent.engine.asks import Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.rollout.evaluate import summarize_outcomes
from tests.serve.small_policy import NAME, completion, policy_server, scripted

WORDS = ["say", "left", "right", "no", "yes"]


class Turns(ev.TextWorld):
    """Four turns; before the third of one task, something happens to the server."""

    name, horizon, run_in_thread = "turns", 4, False

    def __init__(self):
        self.happens = lambda: None

    def specs(self):
        return ({"n": n} for n in range(40))

    def play(self, spec):
        for turn in range(4):
            if turn == 2 and spec["n"] == 1:
                self.happens()
            yield "say left"
        return 1.0


def task(n):
    return ev.Task("turns", "1", {"n": n}, "turns")


def policies():
    first = ev.tiny_policy(WORDS, context=128, seed=1)
    return first, ev.tiny_policy(WORDS, context=128, seed=2).next_version()


def collect(world, endpoint, *, slots, **options):
    agent = ChatAgent(endpoint, Sampling(), max_tokens=5, **options)
    starts = [ev.Start(task(n)) for n in range(4)]
    found = ev.collect({"turns": world}, starts, agent, engine=None, slots=slots)
    return {trajectory.task.spec["n"]: trajectory for trajectory in found}


def changed(world, url, happens, **options):
    """Play four tasks one after the other; during the second, something happens."""
    world.happens = happens
    with Endpoint(url, NAME, tokens=True, processed=True, timeout_s=30) as endpoint:
        return collect(world, endpoint, slots=1, **options)


def check_second_is_broken(found):
    broken = found[1]
    assert (broken.ended_by, broken.error.kind, broken.score) == ("error", "WeightsChanged", ev.Score(None, None, None))
    assert broken.error.at_step == len(broken.steps) == 2
    assert [g.policy_version for g in broken.generations] == [0, 0], "nothing of the new weights is in it"
    assert "evolvent-v1-" in broken.error.message and "evolvent-v0-" in broken.error.message
    assert all(found[n].error is None for n in (0, 2, 3))
    assert {g.policy_version for g in found[0].generations} == {0}
    assert {g.policy_version for n in (2, 3) for g in found[n].generations} == {1}
    (row,) = summarize_outcomes(found.values())
    assert row.errors == 1 and row.mean is None, "a panel with an unscored episode has no rate"


def test_new_weights_in_a_running_server():
    first, second = policies()
    with policy_server(first) as served:
        check_second_is_broken(changed(Turns(), served.url, lambda: served.sync(second)))


def test_a_server_that_was_restarted_with_others():
    """The client finds the new server on the same port: its connections are tried again, its episodes are not."""
    first, second = policies()
    with ExitStack() as stack:
        inner = stack.enter_context(ExitStack())
        served = inner.enter_context(policy_server(first))
        port = urlsplit(served.url).port

        def restart():
            inner.close()
            stack.enter_context(policy_server(second, port=port))

        check_second_is_broken(changed(Turns(), served.url, restart))


def test_a_server_that_was_restarted_with_the_same_weights_changes_nothing():
    first, _ = policies()
    with ExitStack() as stack:
        inner = stack.enter_context(ExitStack())
        served = inner.enter_context(policy_server(first))
        port = urlsplit(served.url).port

        def restart():
            inner.close()
            stack.enter_context(policy_server(first.clone(), port=port))

        found = changed(Turns(), served.url, restart)
    assert all(t.error is None for t in found.values())


def test_where_that_is_wanted_the_tokens_after_it_bear_the_new_version():
    first, second = policies()
    with policy_server(first) as served:
        found = changed(Turns(), served.url, lambda: served.sync(second), steady=False)
    broken = found[1]
    assert broken.error is None
    assert [g.policy_version for g in broken.generations] == [0, 0, 1, 1]
    assert [step.info.get("weights_changed", False) for step in broken.steps] == [False, False, True, False]


@pytest.mark.parametrize(
    ("field", "told", "ends"),
    [
        ("model", "other", True),
        ("system_fingerprint", "evolvent-v1-0a", True),
        ("system_fingerprint", "fp_2", False),  # such ones change with a provider's machines too
    ],
)
def test_endpoints_of_others_are_watched_too(field, told, ends):
    def answer(number, path, body):
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return 200, {}, completion("left", ids=None, logprobs=None, **({field: told} if turn == 2 else {}))

    with scripted(answer) as (url, _), Endpoint(url, "m") as endpoint:
        usual = collect(Turns(), endpoint, slots=4)
        strict = collect(Turns(), endpoint, slots=4, steady=True)
        noted = collect(Turns(), endpoint, slots=4, steady=False)
    assert {t.error.kind for t in strict.values()} == {"WeightsChanged"}
    assert all(t.error is None and t.steps[2].info["weights_changed"] for t in noted.values())
    assert all((t.error is not None) == ends for t in usual.values())
