"""Fault 12: a server of AgentGym's answers 200 with an error, without its keys, or with wrong types. Each is a typed
error that shows the address, what was sent and what came back, never a KeyError and never a reward of 0."""

from __future__ import annotations

import pytest

from evolvent.errors import EnvLost, SessionGone, WorldError
from evolvent.serve.agentgym.client import AgentGymWorld, LinkLimits
from evolvent.serve.agentgym.dialects import DIALECTS
from evolvent.worlds.base import SPLITS
from tests.serve.foreign_server import Answer, foreign

QUICK = LinkLimits(step_s=5.0, reset_s=5.0, retry_s=0.3)
CREATED = {"object": {"id": 1}, "array": 1, "text": 1, "web": {"env_idx": 1}}
RESET = {
    "sciworld": {"task_description": "boil water", "observation": "a room"},
    "webarena": {"observation": "page"},
}


def begin(world, index=0):
    """An Env of the task with this number."""
    tasks = [task for split in SPLITS for task in world.tasks(split, "seen")]
    return world.make(next(task for task in tasks if task.spec["index"] == index))


def good(row, path):
    """What a sound server answers."""
    if path == "/create":
        return CREATED[row.shape]
    if path == "/reset":
        return RESET.get(row.name, {"observation": "go"}) if row.shape in ("object", "web") else ["go", None]
    if path.startswith("/filtered_vocab"):
        return ["crane"]
    if path.startswith("/observation"):
        return "go"
    return (
        {row.text: "seen", row.value: 0.5, row.done: False, "available_actions": ["look"]} if path == "/step" else True
    )


def failing(row, where, wrong):
    """A server that answers `wrong` at one path: the error of the Env that asked."""
    with foreign(lambda method, path, body: wrong if path.split("?")[0] == where else good(row, path)) as (url, _):
        with AgentGymWorld(url, row.name, [4], limits=QUICK, token="a-very-secret-token") as world:
            env = begin(world, 4)
            with pytest.raises(WorldError) as caught:
                env.reset()
                env.step("an action")
            assert "a-very-secret-token" not in str(caught.value)
            return caught.value


@pytest.mark.parametrize("row", DIALECTS.values(), ids=lambda row: row.name)
def test_a_sound_server_is_understood(row):
    with foreign(lambda method, path, body: good(row, path)) as (url, _):
        with AgentGymWorld(url, row.name, [4], limits=QUICK) as world:
            env = begin(world, 4)
            assert "go" in env.reset()[0] or row.name in ("sciworld", "webarena")
            observation, reward, terminated, truncated, _ = env.step("an action")
            assert observation == "seen" and not truncated
            assert reward == (0.0 if row.shape == "web" else 0.5) and terminated is (row.name == "babyai")
            env.close()


@pytest.mark.parametrize("row", DIALECTS.values(), ids=lambda row: row.name)
def test_an_error_told_as_200_is_an_error(row):
    for where in ("/create", "/reset", "/step"):
        error = failing(row, where, {"error": "list index out of range"})
        assert type(error) is WorldError and where in str(error)
        assert "the server reports an error" in str(error) and "list index out of range" in str(error)
    ended = failing(row, "/step", {"error": "The task with environment 1 has finished."})
    assert isinstance(ended, SessionGone)


@pytest.mark.parametrize("row", DIALECTS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize(
    "wrong", [{}, [], None, "text", 3.5, {"observation": 7}, {"id": "x"}, {"env_idx": None}], ids=repr
)
def test_missing_keys_and_wrong_types_show_what_came_back(row, wrong):
    for where in ("/create", "/step"):
        error = failing(row, where, Answer(wrong))
        assert type(error) is WorldError, where
        assert where in str(error) and f"Check that the dialect of this server is {row.name!r}" in str(error)


@pytest.mark.parametrize("value", ["1.0", [1], {"a": 1}], ids=repr)
def test_a_reward_of_a_wrong_type_is_no_reward(value):
    row = DIALECTS["textcraft"]
    error = failing(row, "/step", {"observation": "seen", "reward": value, "done": False})
    assert "'reward': a number" in str(error)
    assert "'done': true or false" in str(failing(row, "/step", {"observation": "s", "reward": 1, "done": "yes"}))


def test_a_step_that_was_not_scored_is_none():
    row = DIALECTS["textcraft"]
    unscored = {"observation": "seen", "reward": None, "done": True}
    with foreign(lambda method, path, body: unscored if path == "/step" else good(row, path)) as (url, _):
        with AgentGymWorld(url, "textcraft", [0]) as world:
            env = begin(world, 0)
            env.reset()
            assert env.step("x")[1] is None
            assert world.score([0.0, None], {}).success is None


@pytest.mark.parametrize("raw", [b"", b"<html>", b"{", b"\xff\xfe", b"NaN", b'{"observation": NaN}', b"[" * 100_000])
def test_what_is_no_json_is_an_error(raw):
    error = failing(DIALECTS["maze"], "/step", Answer(raw=raw))
    assert "the answer is not JSON" in str(error) and '"action":"an action"' in str(error)


@pytest.mark.parametrize("status, kind", [(500, WorldError), (404, WorldError), (422, WorldError), (502, EnvLost)])
def test_other_answers_than_200_are_errors(status, kind):
    error = failing(DIALECTS["sqlgym"], "/step", Answer({"detail": "the token is a-very-secret-token"}, status))
    assert type(error) is kind and "***" in str(error)


def test_our_own_typed_bodies_arrive_as_their_kind():
    body = {"kind": "SessionGone", "message": "no session 1 here", "expected": None, "status": 404}
    assert isinstance(failing(DIALECTS["maze"], "/step", Answer(body, 404)), SessionGone)
    hostile = {"kind": "SystemExit", "message": "x"}
    assert type(failing(DIALECTS["maze"], "/step", Answer(hostile, 400))) is WorldError


def test_a_wrong_address_says_so():
    with foreign(lambda *request: Answer({"detail": "Not Found"}, 404)) as (url, _):
        with AgentGymWorld(url, "textcraft", [0], limits=QUICK) as world, pytest.raises(WorldError) as caught:
            begin(world, 0).reset()
    assert "is this a server of AgentGym's?" in str(caught.value) and f"{url}/create" in str(caught.value)
