"""The session table alone: leases, capacity, repeated steps, what is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import AtCapacity, EnvLost, InvalidAction, SessionGone, WrongStep
from evolvent.serve.sessions import ACTION_CHARS, OBSERVATION_CHARS, SessionTable, begin_episode, step_env
from evolvent.serve.wire import EpisodeEnded, NotFound
from tests.serve.served import Echo


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def table(capacity=4, idle_s=10.0, clock=None):
    return SessionTable({"echo": Echo()}, capacity=capacity, idle_s=idle_s, clock=clock or Clock())


def running(held):
    session = held.open("echo")
    task = session.world.tasks("train", "seen")[0]
    env, seen = begin_episode(session.world, task, None)
    session.start(env, task, seen)
    return session


def step(session, action, number=None):
    stored = session.find_stored_answer(action, number)
    return stored or session.record_step(action, step_env(session, action))


def test_ids_are_random_and_short_ones_are_31_bit_numbers():
    held = table(capacity=400)
    ids = [held.open("echo", short=short).id for short in (False, True) for _ in range(150)]
    assert len(set(ids)) == 300
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in ids[:150])
    assert all(0 < int(id) < 2**31 for id in ids[150:])


def test_a_full_table_gives_nobody_elses_session_away():
    held = table(capacity=2)
    first, second = held.open("echo"), held.open("echo")
    with pytest.raises(AtCapacity) as caught:
        held.open("echo")
    assert caught.value.retry_after_s > 0
    assert held.remove(first) and not held.remove(first)
    third = held.open("echo")
    assert len({first.id, second.id, third.id}) == 3
    assert held.count_by_world() == {"echo": 2}


def test_an_unknown_world_names_the_nearest():
    with pytest.raises(NotFound, match="did you mean 'echo'"):
        table().open("ecko")


def test_a_lease_ends_after_the_last_use_and_not_before():
    clock = Clock()
    held = table(clock=clock)
    old, used, busy = held.open("echo"), held.open("echo"), held.open("echo")
    busy.busy = 1
    clock.now += 9
    held.get(used.id)
    assert held.pop_idle() == []
    clock.now += 1
    assert held.pop_idle() == [old]
    with pytest.raises(SessionGone):
        held.get(old.id)
    clock.now += 8.9
    assert held.pop_idle() == []
    clock.now += 0.1
    assert held.pop_idle() == [used]
    busy.busy = 0
    assert held.pop_idle() == [busy]
    assert held.count_by_world() == {"echo": 0}


def test_looking_without_using_does_not_renew():
    clock = Clock()
    held = table(clock=clock)
    session = held.open("echo")
    clock.now += 9
    assert held.find(session.id) is session
    clock.now += 1
    assert held.pop_idle() == [session]


def test_a_lost_session_says_how_it_was_lost():
    held = table(capacity=1)
    session = held.open("echo")
    assert held.mark_lost(session, EnvLost("the engine crashed")) and not held.mark_lost(session, "twice")
    with pytest.raises(EnvLost, match="the engine crashed"):
        held.get(session.id)
    held.open("echo")


def test_a_repeated_step_is_answered_from_the_store():
    session = running(table())
    first = step(session, "a", 0)
    assert step(session, "a", 0) is first
    second = step(session, "a")
    assert (first.observation, second.observation, second.step) == ("1: a", "2: a", 1)
    assert step(session, "a", 1) is second
    for action, number in (("a", 0), ("b", 1), ("a", 3)):
        with pytest.raises(WrongStep) as caught:
            step(session, action, number)
        assert caught.value.expected == 2


def test_the_last_step_can_be_asked_for_after_the_end():
    session = running(table())
    last = step(session, "quit", 0)
    assert last.is_done and session.state == "ended"
    assert step(session, "quit", 0) is last
    with pytest.raises(EpisodeEnded):
        step(session, "more")
    with pytest.raises(EpisodeEnded):
        step(session, "more", 1)
    look = session.snapshot()
    assert (look.state, look.rewards, look.step, look.observation) == ("ended", (1.0,), 1, "")


def test_a_step_before_the_first_reset():
    with pytest.raises(EpisodeEnded, match="before the first reset"):
        table().open("echo").find_stored_answer("a", None)


@pytest.mark.parametrize("action", ["x" * (ACTION_CHARS + 1), "a\0b", "half \ud800 pair"])
def test_actions_that_cannot_be_written_change_nothing(action):
    session = running(table())
    with pytest.raises(InvalidAction):
        session.find_stored_answer(action, None)
    assert step(session, "fine").step == 0


def test_a_failing_world_is_a_lost_env():
    session = running(table())
    with pytest.raises(EnvLost, match="ZeroDivisionError: a bug in the world"):
        step_env(session, "fail")


class Odd(Echo):
    """Hands out what no client can use."""

    def __init__(self, reply):
        self.reply = reply

    def make(self, task):
        return self

    def reset(self, *, seed=None, options=None):
        return "begin", {}

    def step(self, action):
        return self.reply

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(
    "reply",
    [("x", float("nan"), False, False, {}), (b"x", 0.0, False, False, {}), ("x", 0.0, False, False, None), None],
)
def test_replies_that_are_none_are_lost_envs(reply):
    session = table().open("echo")
    session.env, session.state = Odd(reply), "running"
    with pytest.raises(EnvLost):
        step_env(session, "a")


def test_a_reward_of_none_stays_none():
    session = table().open("echo")
    session.env, session.state = Odd(("x", None, False, False, {})), "running"
    assert step(session, "a").reward is None


def test_long_observations_are_cut_and_marked():
    session = table().open("echo")
    session.env, session.state = Odd(("y" * (OBSERVATION_CHARS + 5), 0.0, False, False, {"k": 1})), "running"
    done = step(session, "a")
    assert len(done.observation) == OBSERVATION_CHARS and done.info == {"k": 1, "obs_truncated": True}


def test_an_env_whose_reset_fails_is_closed():
    class Half(Odd):
        def reset(self, *, seed=None, options=None):
            raise OSError("no disk")

    world = Half(None)
    with pytest.raises(EnvLost, match="no disk"):
        begin_episode(world, world.tasks("train", "seen")[0], None)
    assert world.is_closed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b"]), st.booleans()), max_size=25))
def test_any_order_of_repetitions_advances_the_world_once_a_number(asked):
    """Oracle: the world's own counter, and a dictionary of what each number was answered."""
    session = running(table())
    answers: dict[int, tuple[str, str]] = {}
    for number, action, numbered in asked:
        due = len(answers)
        try:
            done = step(session, action, number if numbered else None)
        except WrongStep as error:
            assert numbered and number != due and error.expected == due
            assert not (number == due - 1 and answers[number][0] == action)
            continue
        assert done.observation == f"{done.step + 1}: {action}"
        assert answers.setdefault(done.step, (action, done.observation)) == (action, done.observation)
    assert len(session.rewards) == len(answers)
