"""The chat agent over HTTP: the same episodes as the language agent in process; text, full contexts, errors."""

from __future__ import annotations

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.chat import ChatAgent, format_hint
from evolvent.agents.history import Refuse, Summarise, Window
from evolvent.engine.asks import GREEDY
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError
from evolvent.models.dialects import Chat
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.rollout.evaluate import summarize_outcomes
from evolvent.store.store import Store
from evolvent.worlds.base import Plain, ReAct
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.tags import SearchGrammar
from tests.models.test_dialects import CHATML, byte_tokenizer
from tests.serve.small_policy import NAME, completion, policy_server, scripted


class Greet(ev.TextWorld):
    """Say yes three times; anything else is told off."""

    name, instructions, horizon, run_in_thread = "greet", "Say yes.", 6, False

    def __init__(self, grammar=None):
        self.grammar = grammar or Plain()

    def specs(self):
        return ({"n": n} for n in range(40))

    def play(self, spec):
        heard, count = (yield f"question {spec['n']}"), 0
        while True:
            count += heard == "yes"
            if count == 3:
                return 1.0
            heard = yield f"heard {heard}"


def play(world, agent, starts, *, engine=None, seed=0, slots=16):
    found = ev.collect({world.name: world}, starts, agent, engine=engine, seed=seed, slots=slots)
    return {trajectory.id: trajectory for trajectory in found}


def beside(policy, world, starts, *, sampling=GREEDY, max_tokens=8, history=None, hint=None):
    """The same starts played in process and over HTTP."""
    history = history or Refuse()
    inside = ev.LanguageAgent(policy, sampling, max_tokens=max_tokens, history=history)
    with policy_server(policy) as served, Endpoint(served.url, NAME, tokens=True, processed=True) as endpoint:
        outside = ChatAgent(endpoint, sampling, max_tokens=max_tokens, history=history, hint=hint)
        over_http = play(world, outside, starts)
    return play(world, inside, starts, engine=ev.LocalEngine(policy, slots=16)), over_http


def byte_policy(context=512):
    """An untrained policy with a chat template: it writes any bytes, which no tokenizer reads back as they were."""
    tokenizer = byte_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"])
    model = init_tiny(tiny_config(len(tokenizer), context=context), seed=5)
    return Policy(model, tokenizer, Chat(tokenizer))


@pytest.fixture(scope="module")
def lookup():
    world = ev.Lookup(sizes=Sizes(train=20, dev=10, test=20))
    starts = [ev.Start(task, sample) for task in world.tasks("test", "seen")[:5] for sample in (0, 1)]
    return world, ev.make_policy([world], seed=3), starts


SAMPLINGS = [GREEDY, ev.Sampling(), ev.Sampling(temperature=4.0), ev.Sampling(temperature=4.0, top_k=9, top_p=0.9)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "plain", "hot", "cut"])
def test_episodes_over_http_are_those_in_process(lookup, sampling):
    world, policy, starts = lookup
    inside, outside = beside(policy, world, starts, sampling=sampling)
    assert outside == inside, "actions, scores, token ids, log-probabilities, where each turn extends the last"
    assert sum(trajectory.count_generated_tokens() for trajectory in outside.values()) > 100


def test_so_are_those_of_a_chat_template_over_bytes():
    """What this model writes is mostly not valid text: continued from its text, the tokens would be others."""
    world, policy = Greet(), byte_policy()
    starts = [ev.Start(task, sample) for task in world.tasks("train", "seen")[:4] for sample in (0, 1)]
    inside, outside = beside(policy, world, starts, sampling=ev.Sampling(temperature=4.0), max_tokens=12, hint="")
    assert outside == inside
    assert any("\ufffd" in action for t in outside.values() for action in t.actions)


def test_full_contexts_end_as_they_do_in_process(lookup):
    world = lookup[0]
    policy = ev.make_policy([world], context=60, seed=3)
    inside, outside = beside(policy, world, lookup[2])
    assert outside == inside
    assert all(t.truncated and t.meta == {"context_full": True} for t in outside.values())


@pytest.mark.parametrize("history", [Window(), Summarise()])
def test_full_contexts_are_cut_by_the_history_policy(lookup, history):
    world = lookup[0]
    policy = ev.make_policy([world], context=90, seed=3)
    _, outside = beside(policy, world, lookup[2], history=history)
    assert all(t.error is None for t in outside.values()), [t.error for t in outside.values()]
    roots = [
        (step.info.get("new_root", False), step.generations[0].extends) for t in outside.values() for step in t.steps
    ]
    assert any(new for new, _ in roots)
    assert all((extends is None) == new for new, extends in roots if new)
    for t in outside.values():
        total = 0
        for g in t.generations:
            total = len(g.ids) + (0 if g.extends is None else total)
            assert total <= 90


def answering(texts, **more):
    """A script that answers with these texts in turn, as an endpoint without token ids does."""

    def answer(number, path, body):
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return 200, {}, completion(texts[turn % len(texts)], ids=None, logprobs=None, prompt=None, **more)

    return answer


def test_text_only_acts_is_scored_and_stored(tmp_path):
    world = Greet()
    starts = [ev.Start(task) for task in world.tasks("train", "seen")[:5]]
    with scripted(answering(["yes"])) as (url, script), Endpoint(url, "m") as endpoint:
        found = play(world, ChatAgent(endpoint, GREEDY, max_tokens=9), starts)
        assert (endpoint.usage.requests, endpoint.usage.prompt) == (15, 45)
    assert all(t.success and len(t.steps) == 3 and not list(t.generations) for t in found.values())
    assert found[starts[0].task.id + "/0"].steps[0].info == {"tokens": {"prompt": 3, "completion": 2}}
    assert summarize_outcomes(found.values())[0].mean == 1.0
    with Store.open(tmp_path / "store", writing=True) as store:
        for trajectory in found.values():
            store.append(trajectory)
        assert {t.id: t for t in store.trajectories()} == found
    sessions = {headers["x-session-id"] for _, headers, _ in script.asked}
    assert len(sessions) == 5, "one session an episode"
    seeds = [body["seed"] for _, _, body in script.asked]
    assert len(set(seeds)) == 15 and all(0 <= seed < 2**63 for seed in seeds)
    last = max((body for _, _, body in script.asked), key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert last[0]["content"] == "Say yes.\n\nAnswer with one action and nothing else."
    assert last[2]["content"] == "yes" and last[3]["content"] == "heard yes"


def test_two_plays_of_one_seed_ask_the_same():
    world = Greet()
    starts = [ev.Start(world.tasks("train", "seen")[0], sample) for sample in (0, 1)]
    asked = []
    for _ in range(2):
        with scripted(answering(["no"])) as (url, script), Endpoint(url, "m") as endpoint:
            play(world, ChatAgent(endpoint), starts, slots=1)
        asked.append([body for _, _, body in script.asked])
    assert asked[0] == asked[1]


def test_thoughts_are_kept_and_the_text_stays_what_was_said():
    world = Greet(ReAct())
    said = "Thought:\nit asks\n\nAction:\nyes"
    row = completion(said, ids=None, logprobs=None)
    row["choices"][0]["message"]["reasoning_content"] = "hidden"
    with scripted(lambda *asked: (200, {}, row)) as (url, script), Endpoint(url, "m") as endpoint:
        (found,) = play(world, ChatAgent(endpoint), [ev.Start(world.tasks("train", "seen")[0])]).values()
    assert found.success and found.actions == ("yes", "yes", "yes")
    assert found.steps[0].thought == "it asks" and found.steps[0].info["reasoning"] == "hidden"
    assert script.asked[1][2]["messages"][2]["content"] == said, "reasoning is not sent back"


def test_reasoning_alone_is_the_thought():
    row = completion("yes", ids=None, logprobs=None)
    row["choices"][0]["message"]["reasoning"] = "hidden"
    world = Greet()
    with scripted(lambda *asked: (200, {}, row)) as (url, _), Endpoint(url, "m") as endpoint:
        (found,) = play(world, ChatAgent(endpoint), [ev.Start(world.tasks("train", "seen")[0])]).values()
    assert found.steps[0].thought == "hidden" and "reasoning" not in found.steps[0].info


def test_text_without_an_action_is_marked_and_goes_on():
    world = Greet(ReAct())
    with scripted(answering(["what?", ""])) as (url, _), Endpoint(url, "m") as endpoint:
        (found,) = play(world, ChatAgent(endpoint), [ev.Start(world.tasks("train", "seen")[0])]).values()
    assert found.truncated and found.actions[:2] == ("what?", "")
    assert all(step.info["unparsed"] for step in found.steps)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Plain(), "Answer with one action and nothing else."),
        (ReAct(), "for ACTION and WHY:\nThought:\nWHY\n\nAction:\nACTION"),
        (SearchGrammar(tags=True), "<think>WHY</think>\nACTION"),
    ],
)
def test_the_form_of_an_action_is_told(grammar, said):
    assert said in format_hint(grammar)


def test_a_failing_endpoint_ends_its_episode_unscored_and_the_others_go_on():
    world = Greet()
    tasks = world.tasks("train", "seen")[:4]
    bad = f"question {tasks[1].spec['n']}"

    def answer(number, path, body):
        if len(body["messages"]) > 2 and body["messages"][1]["content"] == bad:
            return 400, {}, {"error": {"message": "no"}}
        return answering(["yes"])(number, path, body)

    with scripted(answer) as (url, _), Endpoint(url, "m") as endpoint:
        found = play(world, ChatAgent(endpoint), [ev.Start(task) for task in tasks])
    broken = found.pop(f"{tasks[1].id}/0")
    assert (broken.ended_by, broken.error.kind, broken.error.at_step) == ("error", "EndpointError", 1)
    assert broken.score == ev.Score(None, None, None) and "got 400" in broken.error.message
    assert all(t.success for t in found.values())


def test_a_full_context_of_a_plain_endpoint_is_cut_by_messages():
    world = Greet()

    def answer(number, path, body):
        if len(body["messages"]) > 4:
            return 400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}}
        return answering(["no"])(number, path, body)

    start = [ev.Start(world.tasks("train", "seen")[0])]
    with scripted(answer) as (url, script), Endpoint(url, "m") as endpoint:
        (ended,) = play(world, ChatAgent(endpoint), start).values()
        assert ended.truncated and len(ended.steps) == 2 and ended.meta == {"context_full": True}
        (cut,) = play(world, ChatAgent(endpoint, history=Window(1.0)), start).values()
    assert cut.truncated and len(cut.steps) == world.horizon and cut.error is None
    assert [step.info.get("new_root", False) for step in cut.steps] == [False, False, True, True, True, True]
    last = script.asked[-1][2]["messages"]
    assert last[0]["role"] == "system" and last[1]["content"].startswith("question"), "the task is kept"


def test_a_prompt_that_does_not_extend_is_a_new_root():
    """A template that strips what was thought gives other tokens: nothing is mended, the turn begins anew."""
    prompts = [(1, 2, 3), (1, 2, 3, 5, 6, 9), (1, 2, 3, 9, 9)]
    world = Greet()

    def answer(number, path, body):
        return 200, {}, completion("yes", prompt=prompts[number])

    with scripted(answer) as (url, _), Endpoint(url, "m", tokens=True) as endpoint:
        (found,) = play(world, ChatAgent(endpoint), [ev.Start(world.tasks("train", "seen")[0])]).values()
    assert [g.extends for g in found.generations] == [None, 0, None]
    assert [g.ids.tolist() for g in found.generations] == [[1, 2, 3, 5, 6], [9, 5, 6], [1, 2, 3, 9, 9, 5, 6]]
    assert [g.sampled.sum() for g in found.generations] == [2, 2, 2]
    assert all(np.all(g.logprobs[~g.sampled] == 0) for g in found.generations)
    assert [step.info.get("new_root", False) for step in found.steps] == [False, False, True]


def test_log_probabilities_of_another_distribution_are_not_recorded():
    with Endpoint("http://127.0.0.1:1", "m", tokens=True) as raw, pytest.raises(ConfigError, match="temperature 1"):
        ChatAgent(raw, GREEDY)
    with pytest.raises(ConfigError, match="max_tokens"):
        ChatAgent(raw, max_tokens=0)
    ChatAgent(raw)
