"""Learning from recorded sessions: which are taken, in which groups, and what a training on them does."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import openai
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evolvent as ev
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train.command import run as train_by_recipe
from evolvent.cli.train.rl import run
from evolvent.errors import ConfigError, StoreUnavailable
from evolvent.models.policy import load_policy
from evolvent.rl.trainer import RLConfig
from evolvent.scale.recorded_backend import RecordedBackend, RecordedSessions, find_fault, select_groups
from evolvent.serve.openai.recording import SessionRecorder
from evolvent.store.store import Store
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import taught, word_policy

ids = np.array([5, 6], np.int32)
GENERATION = Generation(ids, np.array([False, True]), np.array([0, -1], np.float32), policy_version=3)


def make_session(number, task="a", *, score=1.0, info=None, generation=GENERATION):
    step = Step("see", "go", score, generations=(generation,), info=info or {})
    return Trajectory(
        f"sessions/{number}", Task("sessions", "1", {"name": task}), (step,), score=Score(score), group=task
    )


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 4), st.integers(0, 40))
def test_groups_have_one_task_and_never_change(tasks, size, num_first):
    sessions = [make_session(number, task) for number, task in enumerate(tasks)]
    groups = select_groups(sessions, size)
    assert all(len(group) == size and len({session.group for session in group}) == 1 for group in groups)
    assert len(groups) == sum(tasks.count(task) // size for task in "abc")
    taken = [session.id for group in groups for session in group]
    assert len(set(taken)) == len(taken)
    earlier = select_groups(sessions[:num_first], size)
    assert [[s.id for s in group] for group in earlier] == [[s.id for s in group] for group in groups[: len(earlier)]]


def test_sessions_that_cannot_be_compared_are_told_apart():
    practice = RLConfig()
    assert find_fault(make_session(1), practice) == ""
    assert find_fault(make_session(1, info={"sampling": {"temperature": 0.7}}), RLConfig(temperature=0.7)) == ""
    faults = {
        "have no score": make_session(1, score=None),
        "were sampled with temperature 0.7; set --rl.practice.temperature": make_session(
            1, info={"sampling": {"temperature": 0.7}}
        ),
        "were sampled with temperature 0": make_session(1, info={"sampling": {"temperature": 0}}),
        "were sampled with top_p 0.9": make_session(1, info={"sampling": {"top_p": 0.9}}),
        "were sampled under a constraint": make_session(1, info={"constrained": True}),
        "have no finished reply": make_session(1, generation=replace(GENERATION, acted=False)),
    }
    for fault, session in faults.items():
        assert find_fault(session, practice).startswith(fault)
    assert find_fault(make_session(1), practice, min_version=4) == "are of too old a policy"
    assert find_fault(make_session(1), RLConfig(temperature=0.7)).startswith("were sampled with temperature 1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of 3 tasks with 6 sessions each, and one with a single session; replies of `door` are rewarded."""
    folder = tmp_path_factory.mktemp("recorded")
    policy = word_policy()
    policy.save(folder / "model")
    with (
        Store.open(folder / "run" / "trajectories", writing=True) as store,
        policy_server(policy, recorder=SessionRecorder(store)) as served,
        openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        texts = [text for text in ("see a door", "get a key", "go") for _ in range(6)]
        for seed, text in enumerate([*texts, "which is here"]):
            messages = [{"role": "user", "content": text}]
            reply = client.chat.completions.create(model=NAME, messages=messages, seed=seed, max_tokens=4)
            share = len(set((reply.choices[0].message.content or "").split())) / 4
            client.post(f"/sessions/{reply.id}/reward", body={"reward": share}, cast_to=object)
        client.chat.completions.create(model=NAME, messages=messages, max_tokens=4)
    return folder


def train(recorded, folder, **settings):
    settings = {
        "method": "grpo",
        "from-run": recorded / "run",
        "policy": recorded / "model",
        "to": folder,
        "rl.practice.group_size": 3,
        "rl.practice.tasks_per_iteration": 2,
        **settings,
    }
    output = io.StringIO()
    assert (
        run([word for key, value in settings.items() for word in (f"--{key}", str(value))], make_console(output, {}))
        == 0
    )
    return output.getvalue()


def test_a_run_of_sessions_is_learned_once(recorded, tmp_path):
    text = train(recorded, tmp_path / "run")
    assert "20 sessions in" in text and ": 6 groups of 3 of one task" in text
    assert "1 have no score" in text and "1 are of tasks with fewer than 3 further sessions" in text
    assert "in iteration 1" in text and "in iteration 3" in text
    assert load_policy(tmp_path / "run" / "model").version == 3
    used = list(Store.open(tmp_path / "run" / "trajectories").trajectories())
    assert len({episode.meta["session"] for episode in used}) == len(used) == 18
    rows = [row for row in RecordedSessions(recorded / "run").read() if row.score.raw is not None]
    by_id = {row.id: row for row in rows}
    for episode in used:
        session = by_id[episode.meta["session"]]
        assert list(episode.generations) == list(session.generations) and episode.group == session.group
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_fewer_iterations_than_asked_for_are_told(recorded, tmp_path):
    text = train(recorded, tmp_path / "run", **{"rl.practice.iterations": 2, "rl.practice.tasks_per_iteration": 5})
    assert "they suffice for 1 iteration of 5 tasks; 1 group left over\n" in text
    assert re.search(r"^mean return \d\.\d{3} in iteration 1$", text, re.MULTILINE)
    assert "[1/1] grpo training, 1/1 iterations" in text and "evaluate" not in text and "[2/1]" not in text


def test_recomputation_changes_how_they_are_learned_and_nothing_else(recorded, tmp_path, monkeypatch):
    layouts, open_trainer = [], RecordedBackend.train_rl

    def note_layout(backend, policy, stage, *, spec):
        layouts.append(backend.parallelism.recompute)
        return open_trainer(backend, policy, stage, spec=spec)

    monkeypatch.setattr(RecordedBackend, "train_rl", note_layout)
    for name, value in (("plain", "false"), ("again", "true")):
        train(recorded, tmp_path / name, **{"parallel.recompute": value})
    plain, again = (load_policy(tmp_path / name / "model").model.state_dict() for name in ("plain", "again"))
    assert layouts == [False, True]
    assert all(torch.allclose(plain[name], again[name], rtol=0, atol=2e-6) for name in plain)
    with pytest.raises(ConfigError, match="learned in one process: got shard 2"):
        train(recorded, tmp_path / "two", **{"parallel.shard": 2})


def test_the_same_sessions_give_the_same_weights_and_a_finished_run_is_read(recorded, tmp_path):
    train(recorded, tmp_path / "one")
    train(recorded, tmp_path / "two")
    one, two = (load_policy(tmp_path / name / "model").model.state_dict() for name in ("one", "two"))
    assert all(one[name].equal(two[name]) for name in one)
    output = io.StringIO()
    assert run(["--method", "grpo", "--resume", str(tmp_path / "one")], make_console(output, {})) == 0
    again = load_policy(tmp_path / "one" / "model").model.state_dict()
    assert all(one[name].equal(again[name]) for name in one)


def test_too_few_sessions_and_other_folders_are_refused(recorded, tmp_path):
    with pytest.raises(ConfigError, match="0 groups of 7 of one task"):
        train(recorded, tmp_path / "run", **{"rl.practice.group_size": 7})
    with pytest.raises(ConfigError, match=r"set --rl.practice.temperature|sampled with temperature 1"):
        train(recorded, tmp_path / "run", **{"rl.practice.temperature": 0.5})
    with pytest.raises(StoreUnavailable, match="holds no recorded sessions"):
        train(recorded, tmp_path / "run", **{"from-run": tmp_path})
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="name the model that was served"):
        run(["--method", "grpo", "--from_run", str(recorded / "run")], make_console(io.StringIO(), {}))


def test_other_weights_than_those_that_played_are_told(recorded, tmp_path):
    prompt = word_policy().dialect.open("", "see a door")
    other = taught(word_policy(), [(prompt, word_policy().dialect.action("see a door"))], updates=40)
    other.save(tmp_path / "other")
    hint = "check that --policy is the model that was served"
    assert hint in train(recorded, tmp_path / "one", policy=tmp_path / "other")
    assert hint not in train(recorded, tmp_path / "two")


def test_sessions_are_imitated_like_other_episodes(tmp_path):
    ev.make_policy([ev.Lookup(), ev.Crafting()], seed=0).save(tmp_path / "model")
    with Store.open(tmp_path / "run" / "trajectories", writing=True) as store:
        for number in range(4):
            store.append(make_session(number, score=1.0))
    words = (tmp_path / "run", "--policy", tmp_path / "model", "--to", tmp_path / "sft", "--train.max_steps", "2")
    assert train_by_recipe(["sft", *map(str, words)], make_console(io.StringIO(), {})) == 0
    assert load_policy(tmp_path / "sft" / "model").version == 1
