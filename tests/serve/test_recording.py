"""Sessions of the official `openai` client and of plain HTTP clients, recorded token-exact into a store."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager

import httpx2
import numpy as np
import openai
import pytest

import evolvent as ev
from evolvent.engine.asks import ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.errors import ConfigError
from evolvent.learn.token_sequences import flatten
from evolvent.serve.openai.recording import SessionRecorder
from evolvent.store.store import Store
from evolvent.worlds.prompts.rewards import Reward
from tests.serve.command import command, expect_output
from tests.serve.served import until
from tests.serve.small_policy import NAME, policy_server
from tests.serve.test_openai_client import shown
from tests.serve.tool_policies import LOOK, hermes_policy, taught, word_policy

EXACT = {"return_token_ids": True}
QUESTION = [{"role": "system", "content": "look"}, {"role": "user", "content": "see a door"}]


@pytest.fixture(scope="module")
def policy():
    return word_policy()


class SlowEngine(ev.LocalEngine):
    """Takes a moment for every token, so that a client can leave before the last."""

    def poll(self):
        time.sleep(0.03)
        return super().poll()


class Recording:
    """A server that records, and a reader of its store."""

    def __init__(self, served, folder):
        self.url, self.folder = served.url, folder
        self.http = httpx2.Client(base_url=served.url, timeout=60, trust_env=False)
        self.client = openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=60)

    def chat(self, messages, *, session=None, task=None, **settings):
        """One reply, and the name of the session that it was recorded in."""
        names = {"x-evolvent-session": session, "x-evolvent-task": task}
        headers = {name: value for name, value in names.items() if value is not None}
        settings = {"max_tokens": 6, "logprobs": True, "extra_body": EXACT, **settings}
        answer = self.client.chat.completions.with_raw_response.create(
            model=NAME, messages=messages, extra_headers=headers, **settings
        )
        return answer.parse(), answer.headers["x-evolvent-session"]

    def reward(self, name, **body):
        return self.http.post(f"/sessions/{name}/reward", json=body)

    def stored(self):
        return {trajectory.id: trajectory for trajectory in Store.open(self.folder).trajectories()}

    def one(self):
        (trajectory,) = self.stored().values()
        return trajectory


@contextmanager
def recording(policy, folder, *, reward=None, reload=None, engine=None, **settings):
    with Store.open(folder, writing=True) as store:
        recorder = SessionRecorder(store, reward=reward, **settings)
        with policy_server(policy, recorder=recorder, reload=reload, engine=engine) as served:
            server = Recording(served, folder)
            with server.http, server.client:
                yield server


@pytest.fixture
def server(policy, tmp_path):
    with recording(policy, tmp_path / "store") as running:
        yield running


def answered(messages, reply, text):
    """The conversation after a reply and the next message of the user."""
    return [
        *messages,
        {"role": "assistant", "content": reply.choices[0].message.content},
        {"role": "user", "content": text},
    ]


def test_a_session_by_header_is_recorded_token_exact(server, policy):
    first, _ = server.chat(QUESTION, session="one", task="door", seed=1)
    messages = answered(QUESTION, first, "go")
    second, name = server.chat(messages, session="one", seed=2)
    assert name == "one"
    told = server.reward("one", reward=0.5, success=True).json()
    assert told == {"session": "one", "task": told["task"], "steps": 2, "reward": 0.5, "success": True, "open": False}

    trajectory = server.one()
    assert trajectory.id == "sessions/one" and dict(trajectory.task.spec) == {"name": "door"}
    assert trajectory.group == trajectory.task.id == told["task"] and trajectory.ended_by == "world"
    assert (trajectory.score.raw, trajectory.score.unit, trajectory.score.success) == (0.5, 0.5, True)
    assert trajectory.rewards == (0.0, 0.5)
    for reply, step in zip((first, second), trajectory.steps, strict=True):
        (generation,) = step.generations
        choice = reply.choices[0]
        assert generation.ids[generation.sampled].tolist() == choice.token_ids
        sampled = [entry.logprob for entry in choice.logprobs.content]
        np.testing.assert_array_equal(generation.logprobs[generation.sampled], np.array(sampled, np.float32))
        assert step.info["reply"]["content"] == choice.message.content
    ids = np.concatenate([generation.ids for generation in trajectory.generations])
    assert ids.tolist() == [*second.prompt_token_ids, *second.choices[0].token_ids]
    assert [generation.extends for generation in trajectory.generations] == [None, 0]
    assert (
        trajectory.steps[0].observation == "system: look\n\nuser: see a door"
        and trajectory.steps[1].observation == "go"
    )


def test_recorded_log_probabilities_are_those_of_the_model(server, policy):
    first, name = server.chat(QUESTION, seed=1)
    server.chat(answered(QUESTION, first, "go"), seed=2)
    server.reward(name, reward=1)
    (sequence,) = flatten([server.one()], policy.dialect, instructions=lambda task: "", context=256).sequences
    (scored,) = ask_and_wait([ScoreAsk(None, sequence.ids.tolist())], ev.LocalEngine(policy, slots=1))
    np.testing.assert_allclose(sequence.logprobs[sequence.sampled], scored.logprobs[sequence.sampled], atol=1e-5)
    assert (sequence.weight[1:] != 0).tolist() == sequence.sampled[1:].tolist()


def test_sessions_without_a_name_are_told_apart_by_their_messages(server):
    first, one = server.chat(QUESTION, seed=1)
    other, two = server.chat(QUESTION, seed=2)
    assert one != two and first.choices[0].message.content != other.choices[0].message.content
    _, one_again = server.chat(answered(QUESTION, first, "go"))
    _, two_again = server.chat(answered(QUESTION, other, "go"))
    assert (one_again, two_again) == (one, two)
    for name, reward in ((one, 1), (two, 0)):
        assert server.reward(name, reward=reward).status_code == 200
    stored = server.stored()
    assert {trajectory.task.id for trajectory in stored.values()} == {stored[f"sessions/{one}"].task.id}
    assert [stored[f"sessions/{name}"].success for name in (one, two)] == [True, False]
    assert dict(stored[f"sessions/{one}"].task.spec) == {"prompt": "see a door"}


def test_a_fork_is_a_branch(server):
    first, one = server.chat(QUESTION, seed=1)
    messages = answered(QUESTION, first, "go")
    _, one_again = server.chat(messages, seed=2)
    fork, two = server.chat(messages, seed=3)
    assert one_again == one and two != one
    _, two_again = server.chat(answered(messages, fork, "open"), seed=4)
    assert two_again == two
    server.reward(one, reward=0)
    server.reward(two, reward=1)
    branch = server.stored()[f"sessions/{two}"]
    assert (branch.branch.parent, branch.branch.step) == (f"sessions/{one}", 1) and len(branch.steps) == 2
    assert branch.steps[0].generations[0].extends is None, "what was read before it is context"
    assert branch.steps[0].generations[0].ids[: len(fork.prompt_token_ids)].tolist() == fork.prompt_token_ids
    assert branch.steps[0].observation == "go" and branch.task.id == server.stored()[f"sessions/{one}"].task.id
    whole = Store.open(server.folder).get(branch.id, with_parent_steps=True)
    assert [step.observation for step in whole.steps] == ["system: look\n\nuser: see a door", "go", "open"]


def test_names_in_the_metadata_and_ids_of_replies(server):
    reply, name = server.chat(QUESTION, metadata={"evolvent_session": "meta", "evolvent_task": "t"})
    assert name == "meta"
    assert server.http.get("/sessions/meta").json()["steps"] == 1
    assert server.http.get("/sessions").json() == {"open": 1, "scored": 0, "unscored": 0}
    assert server.reward(reply.id, reward=1).json()["session"] == "meta"
    assert dict(server.one().task.spec) == {"name": "t"}


def test_the_choice_that_the_agent_goes_on_with_is_the_one_that_acted(server):
    reply, name = server.chat(QUESTION, seed=1, n=3)
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) == 3
    chosen = [*QUESTION, {"role": "assistant", "content": texts[2]}, {"role": "user", "content": "go"}]
    _, again = server.chat(chosen, seed=2)
    server.reward(name, reward=1)
    trajectory = server.one()
    assert again == name and [generation.acted for generation in trajectory.generations] == [False, False, True, True]
    assert [generation.extends for generation in trajectory.generations] == [None, None, None, 2]
    assert trajectory.steps[0].info["reply"]["content"] == texts[2]


def test_rewards_of_steps_are_summed(server):
    first, name = server.chat(QUESTION, session="sum")
    assert server.reward(name, reward=0.25, done=False).json()["open"]
    server.chat(answered(QUESTION, first, "go"), session="sum")
    assert server.reward(name, reward=0.5).json()["reward"] == 0.75
    assert server.one().rewards == (0.25, 0.5) and server.one().score.raw == 0.75 and server.one().success is False


def test_a_closed_session_stays_closed(server):
    server.chat(QUESTION, session="closed")
    assert server.reward("closed", reward=1).json() == server.reward("closed", reward=1).json(), "a repetition is safe"
    refused = server.reward("closed", reward=0)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "session_closed"
    with pytest.raises(openai.ConflictError, match="session 'closed' is closed"):
        server.chat(QUESTION, session="closed")
    assert server.one().score.raw == 1


@pytest.mark.parametrize(
    "body", [{}, {"reward": "1"}, {"reward": None}, {"reward": 1e300}, {"reward": 1, "score": 1}, []]
)
def test_rewards_of_another_form_are_refused(server, body):
    server.chat(QUESTION, session="kept")
    refused = server.http.post("/sessions/kept/reward", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
    unknown = server.reward("never", reward=1)
    assert unknown.status_code == 404 and "unknown session 'never'" in unknown.json()["error"]["message"]
    assert server.reward("kept", reward=1).status_code == 200


@pytest.mark.parametrize("name", [" ", "a\tb", "x" * 201])
def test_names_are_bounded(server, name):
    with pytest.raises(openai.APIStatusError) as refused:
        server.chat(QUESTION, metadata={"evolvent_session": name})
    assert refused.value.status_code in (400, 413)


def test_a_client_that_leaves_in_mid_stream_keeps_what_was_played(policy, tmp_path):
    with recording(policy, tmp_path / "store", engine=SlowEngine(policy, slots=4)) as server:
        first, name = server.chat(QUESTION, seed=1)
        messages = answered(QUESTION, first, "go")
        stream = server.client.chat.completions.create(
            model=NAME, messages=messages, stream=True, max_tokens=90, temperature=50.0, seed=5
        )
        next(iter(stream))
        next(iter(stream))
        stream.close()
        until(lambda: server.http.get(f"/sessions/{name}").json()["steps"] == 2)
        again, name_again = server.chat(messages, seed=2)
        assert name_again == name, "the request may be repeated"
        assert server.reward(name, reward=1).json()["steps"] == 3
        trajectory = server.one()
    unfinished = trajectory.steps[1]
    assert unfinished.info["unfinished"] and not unfinished.generations[0].acted
    assert 0 < unfinished.generations[0].sampled.sum() < 90
    sequences = flatten([trajectory], policy.dialect, instructions=lambda task: "", context=256).sequences
    learned = sum(int((sequence.weight != 0).sum()) for sequence in sequences)
    assert learned == sum(len(reply.choices[0].token_ids) for reply in (first, again))


def test_new_weights_wait_for_recorded_streams(policy, tmp_path):
    word_policy(seed=9).next_version().save(tmp_path / "root" / "later")
    with recording(policy, tmp_path / "store", reload=tmp_path / "root") as server:
        stream = server.client.chat.completions.create(
            model=NAME, messages=QUESTION, stream=True, max_tokens=100, temperature=50.0, seed=5
        )
        chunks = [next(iter(stream))]
        url = server.url.removesuffix("/v1") + "/update_weights_from_disk"
        loads = []
        load = threading.Thread(
            target=lambda: loads.append(httpx2.post(url, json={"model_path": "later"}, timeout=60, trust_env=False))
        )
        load.start()
        chunks += stream
        load.join()
        reply, _ = server.chat(QUESTION)
    assert len({chunk.system_fingerprint for chunk in chunks}) == 1, "the stream is whole, and of one version"
    assert loads[0].json()["success"] and reply.system_fingerprint == loads[0].json()["system_fingerprint"]
    versions = [[g.policy_version for g in trajectory.generations] for trajectory in server.stored().values()]
    assert versions == [[0], [1]]


def test_a_whole_stream_is_recorded_like_a_whole_reply(server):
    chunks = list(
        server.client.chat.completions.create(
            model=NAME, messages=QUESTION, stream=True, seed=3, max_tokens=8, extra_body=EXACT
        )
    )
    ids = [token for chunk in chunks for choice in chunk.choices for token in getattr(choice, "token_ids", None) or ()]
    assert server.reward(chunks[0].id, reward=1).status_code == 200
    (generation,) = server.one().generations
    assert generation.ids[generation.sampled].tolist() == ids


def test_two_clients_in_one_session_are_both_kept(server, policy):
    replies = {}

    def ask(number):
        messages = [{"role": "user", "content": "see a door" if number else "get a key"}]
        replies[number], _ = server.chat(messages, session="shared", seed=number, max_tokens=20)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.reward("shared", reward=1)
    trajectory = server.one()
    sampled = sorted(generation.ids[generation.sampled].tolist() for generation in trajectory.generations)
    assert sampled == sorted(reply.choices[0].token_ids for reply in replies.values())
    assert len(flatten([trajectory], policy.dialect, instructions=lambda task: "", context=256).sequences) == 2


def test_a_session_without_a_reward_is_kept_and_told(policy, tmp_path, caplog):
    with recording(policy, tmp_path / "store", idle_s=0.2) as server:
        server.chat(QUESTION, session="idle")
        until(lambda: server.http.get("/sessions").json()["unscored"] == 1)
        refused = server.reward("idle", reward=1)
        assert refused.status_code == 409
        server.chat(QUESTION, session="open at the end")
    assert "session 'idle' is kept without a score: no request for 0.2 s" in caplog.text
    assert "session 'open at the end' is kept without a score: the server stopped" in caplog.text
    for trajectory in server.stored().values():
        assert trajectory.score == ev.Score() and trajectory.ended_by == "agent" and trajectory.rewards == (None,)
        assert trajectory.failure


def test_a_function_scores_sessions(policy, tmp_path, caplog):
    seen = []

    def score(completion, messages, task):
        seen.append((completion, messages, task))
        if task == "broken":
            raise ZeroDivisionError("a mistake")
        return 0.75

    with recording(policy, tmp_path / "store", reward=Reward(score)) as server:
        reply, _ = server.chat(QUESTION, session="asked", task="door")
        assert server.reward("asked").json()["reward"] == 0.75, "an empty body ends a session"
        server.chat(QUESTION, session="broken", task="broken")
        assert server.reward("broken").json()["reward"] is None
        server.chat(QUESTION, session="posted")
        assert server.reward("posted", reward=0.5).json()["reward"] == 0.5, "a posted reward goes first"
        server.chat(QUESTION, session="at the end")
    stored = server.stored()
    assert stored["sessions/at the end"].score.raw == 0.75
    assert stored["sessions/broken"].score.raw is None and "ZeroDivisionError" in stored["sessions/broken"].failure
    text = reply.choices[0].message.content
    assert seen[0] == (text, [*QUESTION, {"role": "assistant", "content": text}], "door")
    assert "reward 'score' raised ZeroDivisionError" in caplog.text and "test_recording.py" in caplog.text


def test_too_many_sessions_are_refused(policy, tmp_path):
    with recording(policy, tmp_path / "store", capacity=1) as server:
        server.chat(QUESTION, session="one")
        with pytest.raises(openai.InternalServerError, match="too many sessions are open"):
            server.chat(QUESTION, session="two")
        server.reward("one", reward=1)
        server.chat(QUESTION, session="two")


def test_conversations_with_tools_go_on_from_their_tokens(tmp_path):
    fresh = hermes_policy()
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>'
    prompt = shown(fresh, [{"role": "user", "content": "see"}], [LOOK])
    stop = next(iter(fresh.dialect.stop_ids))
    ids = [*fresh.tokenizer.encode(call, add_special_tokens=False), stop]
    policy = taught(fresh, [(prompt, ids)], updates=120)
    messages = [{"role": "user", "content": "see"}]
    with recording(policy, tmp_path / "store") as server:
        settings = {"tools": [LOOK], "max_tokens": 80, "temperature": 0}
        reply, name = server.chat(messages, **settings)
        (tool_call,) = reply.choices[0].message.tool_calls
        messages += [reply.choices[0].message, {"role": "tool", "tool_call_id": tool_call.id, "content": "open"}]
        _, name_again = server.chat(messages, **settings)
        assert name_again == name
        server.reward(name, reward=1)
        trajectory = server.one()
    assert [generation.extends for generation in trajectory.generations] == [None, 0]
    assert trajectory.steps[0].action.strip() == call and trajectory.steps[1].observation == "open"
    assert trajectory.steps[0].info["sampling"] == {"temperature": 0}


def test_the_command_records_and_scores(tmp_path, policy):
    policy.save(tmp_path / "model")
    (tmp_path / "my_rewards.py").write_text("def short(completion):\n    return 1.0\n", encoding="utf-8")
    run = tmp_path / "run"
    words = ("--policy", tmp_path / "model", "--record", run, "--reward", f"{tmp_path / 'my_rewards.py'}:short")
    with command(*words, OMP_NUM_THREADS="1") as server:
        expect_output(server, f"sessions are recorded in {run}")
        with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60) as client:
            client.chat.completions.create(model="model", messages=QUESTION, max_tokens=4)
        os.kill(server.process.pid, signal.SIGTERM)
        until(lambda: not server.process.is_alive())
        expect_output(server, f"recorded 1 session in {run}")
    (trajectory,) = Store.open(run / "trajectories").trajectories()
    assert trajectory.score.raw == 1.0 and json.loads((run / "run.json").read_text())["state"] == "finished"


def test_the_command_refuses_what_it_cannot_record(tmp_path):
    from evolvent.cli.serve import ServeConfig, _check_config

    with pytest.raises(ConfigError, match="serve a policy with --policy"):
        _check_config(ServeConfig(record=tmp_path))
    with pytest.raises(ConfigError, match="name a folder with --record"):
        _check_config(ServeConfig(policy="xs", session_reward="exact"))
