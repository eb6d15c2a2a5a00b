"""The life cycle that `StateEnv` gives to an environment whose whole changing state is one value."""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError, SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Env, Forkable, Info, Reply, Snapshot, StateEnv
from evolvent.worlds.check import check_env

TASK = Task("counter", "1", {"goal": 3})


class CounterEnv(StateEnv[int]):
    """Counts: 3 wins, -2 ends the episode early."""

    def __init__(self, task: Task = TASK) -> None:
        super().__init__(task, 0)

    def _observe_start(self) -> tuple[Value, Info]:
        return str(self._start), {"admissible": ("up", "down")}

    def _transition(self, state: int, action: Value) -> tuple[int, Reply]:
        if action == "break":
            raise ValueError("the counter jams")
        next_state = state + (1 if action == "up" else -1)
        won, lost = next_state == 3, next_state == -2
        return next_state, (str(next_state), float(won), won, lost, {"admissible": ("up", "down")})


class ListEnv(StateEnv[list[str]]):
    """Lists all actions; its state is changed in place."""

    def __init__(self) -> None:
        super().__init__(TASK, [])

    def _observe_start(self) -> tuple[Value, Info]:
        return "", {}

    def _transition(self, state: list[str], action: Value) -> tuple[list[str], Reply]:
        state.append(str(action))
        return state, (" ".join(state), 0.0, False, False, {})

    def _copy_state(self, state: list[str]) -> list[str]:
        return list(state)


@pytest.fixture
def counter() -> CounterEnv:
    env = CounterEnv()
    env.reset()
    return env


def assert_over(env: Env) -> None:
    with pytest.raises(SessionGone) as refusal:
        env.step("up")
    assert str(refusal.value) == "step was called after the end of the episode: got up, expected reset() first"


def test_counter_keeps_the_promises_of_an_env() -> None:
    assert isinstance(CounterEnv(), Forkable)
    assert check_env(CounterEnv, forkable=True, steps=12) == []


def test_step_before_reset_and_after_each_kind_of_end_is_refused() -> None:
    env = CounterEnv()
    assert_over(env)
    for action, num_steps, terminated, truncated in (("up", 3, True, False), ("down", 2, False, True)):
        assert env.reset() == ("0", {"admissible": ("up", "down")})
        replies = [env.step(action) for _ in range(num_steps)]
        assert replies[-1][2:4] == (terminated, truncated)
        assert not any(reply[2] or reply[3] for reply in replies[:-1])
        assert_over(env)


def test_reset_in_an_episode_starts_again(counter: CounterEnv) -> None:
    counter.step("up")
    counter.reset()
    assert counter.step("up")[0] == "1"


def test_step_that_raises_keeps_the_state_and_the_episode(counter: CounterEnv) -> None:
    counter.step("up")
    with pytest.raises(ValueError, match="jams"):
        counter.step("break")
    assert counter.step("up")[0] == "2"


def test_snapshot_is_restored_in_the_same_and_in_another_env(counter: CounterEnv) -> None:
    counter.step("up")
    snapshot = counter.snapshot()
    assert snapshot == Snapshot(TASK.id, True, 1)
    counter.step("up")
    counter.step("up")
    other = CounterEnv()
    for env in (counter, other):
        env.restore(snapshot)
        assert env.step("up")[0] == "2"


def test_snapshot_of_a_finished_episode_restores_its_end(counter: CounterEnv) -> None:
    for _ in range(3):
        counter.step("up")
    snapshot = counter.snapshot()
    counter.reset()
    counter.restore(snapshot)
    assert_over(counter)
    counter.reset()
    counter.restore(CounterEnv().snapshot())
    assert_over(counter)


def test_foreign_snapshot_is_refused_and_changes_nothing(counter: CounterEnv) -> None:
    counter.step("up")
    other_task = CounterEnv(Task("counter", "1", {"goal": 4}))
    for value in (None, 1, (TASK.id, True, 1), other_task.snapshot()):
        with pytest.raises(ConfigError, match="the snapshot does not belong to this task") as refusal:
            counter.restore(value)
        assert refusal.value.value == value
        assert refusal.value.expected == f"a snapshot of task {TASK.id}"
    assert counter.step("up")[0] == "2"


def test_close_ends_the_episode_and_may_be_repeated(counter: CounterEnv) -> None:
    counter.close()
    counter.close()
    assert_over(counter)
    assert counter.reset()[0] == "0"


def test_state_changed_in_place_leaves_snapshots_and_the_start_alone() -> None:
    env, other = ListEnv(), ListEnv()
    env.reset()
    env.step("a")
    snapshot = env.snapshot()
    env.step("b")
    for fork in (other, env):
        fork.restore(snapshot)
        assert fork.step("c")[0] == "a c"
    assert snapshot == Snapshot(TASK.id, True, ["a"])
    env.reset()
    assert env.step("d")[0] == "d"
