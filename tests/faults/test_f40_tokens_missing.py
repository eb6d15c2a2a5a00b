"""Fault 40: an endpoint gives text without token ids or log-probabilities: TokensMissing, and nothing is made up."""

from __future__ import annotations

import pytest

import evolvent as ev
from evolvent.agents.chat import ChatAgent
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import TokensMissing
from evolvent.learn.token_sequences import flatten
from tests.serve.small_policy import NAME, completion, policy_server, scripted

WORDS = ["say", "left", "right"]


class Left(ev.TextWorld):
    """Say left twice."""

    name, horizon, run_in_thread = "left", 2, False

    def specs(self):
        return ({"n": n} for n in range(40))

    def play(self, spec):
        heard = yield "say left"
        heard = yield f"say {heard}"
        return float(heard == "left")


def played(url, *, model=NAME, **settings):
    world = Left()
    starts = [ev.Start(task) for task in world.tasks("train", "seen")[:3]]
    with Endpoint(url, model, **settings) as endpoint:
        agent = ChatAgent(endpoint, ev.Sampling(), max_tokens=4)
        return list(ev.collect({"left": world}, starts, agent, engine=None))


LACKING = {
    "no token ids": {"ids": None},
    "empty token ids": {"ids": ()},
    "no prompt ids": {"prompt": None},
    "no log-probabilities": {"logprobs": None},
    "fewer log-probabilities than tokens": {"logprobs": (-0.5,)},
    "more log-probabilities than tokens": {"logprobs": (-0.5, -0.5, -0.5)},
    "log-probabilities that are not numbers": {"logprobs": (-0.5, None)},
    "log-probabilities above 0": {"logprobs": (-0.5, 0.5)},
    "ids below 0": {"ids": (5, -1)},
    "ids that are no whole numbers": {"ids": (5, 6.0)},
    "ids that are truth values": {"ids": (5, True)},
    "text alone": {"ids": None, "prompt": None, "logprobs": None},
}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_is_missing_ends_the_episode_unscored_without_tokens(lacking):
    with scripted(lambda *asked: (200, {}, completion("left", **LACKING[lacking]))) as (url, script):
        found = played(url, tokens=True)
    for trajectory in found:
        assert (trajectory.ended_by, trajectory.error.kind) == ("error", "TokensMissing")
        assert trajectory.score == ev.Score(None, None, None) and not trajectory.steps
        assert not list(trajectory.generations), "text is never tokenised to make up for it"
    assert len(script.asked) == 3, "asking again would not help"
    assert all(body["return_token_ids"] and body["logprobs"] for _, _, body in script.asked)


def test_the_same_endpoint_is_good_for_text():
    with scripted(lambda *asked: (200, {}, completion("left", ids=None, prompt=None, logprobs=None))) as (url, script):
        found = played(url)
    assert all(t.success and not list(t.generations) for t in found)
    assert not any("return_token_ids" in body for _, _, body in script.asked), (
        "plain endpoints refuse what is new to them"
    )


def test_tokens_from_a_server_that_gives_them_can_be_learned():
    policy = ev.tiny_policy(WORDS, context=64, seed=1)
    with policy_server(policy) as served:
        found = played(served.url, tokens=True, processed=True)
    assert all(t.error is None for t in found)
    assert all(g.sampled.sum() == (g.logprobs < 0).sum() > 0 for t in found for g in t.generations)
    flat = flatten(found, policy.dialect, instructions=lambda task: "", context=64)
    assert not flat.refused and len(flat.sequences) == len(found)
    for trajectory, parts in zip(found, flat.sequences, strict=True):
        assert parts.ids.tolist() == [token for g in trajectory.generations for token in g.ids.tolist()]


def test_a_completion_is_never_read_without_them():
    row = {"choices": [{"text": "left", "finish_reason": "stop"}]}
    with scripted(lambda *asked: (200, {}, row)) as (url, _), Endpoint(url, "m") as endpoint:
        with pytest.raises(TokensMissing, match=r"no token_ids.*vLLM"):
            endpoint.complete([1, 2], sampling=ev.Sampling(), max_tokens=3)
