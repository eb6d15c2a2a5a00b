"""Collection: worlds may be slow, fail or hang, and the others go on; the result depends on neither order nor slots."""

import re
import threading

import pytest

import evolvent as ev
from evolvent.agents.base import Decision
from evolvent.rollout.episode import Limits
from tests.rollout.conftest import Count, task


def play(world, tasks, agent=None, **options):
    starts = [ev.Start(t, sample) for t in tasks for sample in range(options.pop("samples", 1))]
    return list(ev.collect({"count": world}, starts, agent or ev.Expert(), engine=None, **options))


@pytest.mark.parametrize("blocking", [True, False])
def test_expert_succeeds(blocking):
    world = Count(blocking=blocking)
    trajectories = play(world, [task(n) for n in range(20)], slots=3)
    assert all(t.success and t.ended_by == "world" and t.score.unit == 1.0 for t in trajectories)
    assert sorted(world.closed) == list(range(20)), "every environment was closed"


def test_a_failing_world_is_data_and_the_others_go_on(world):
    tasks = [task(1), task(2, "fails"), task(3, "fails at reset"), task(4)]
    found = {t.task.spec["number"]: t for t in play(world, tasks)}
    assert found[1].success and found[4].success
    for number, kind in ((2, "ZeroDivisionError"), (3, "OSError")):
        broken = found[number]
        assert (broken.ended_by, broken.error.kind, broken.score) == ("error", "EnvLost", ev.Score(None, None, None))
        assert kind in broken.error.message
        assert broken.success is None


def test_a_hanging_world_meets_its_deadline_and_the_others_go_on(world):
    tasks = [task(1, "hangs"), *[task(n) for n in range(2, 12)]]
    trajectories = play(world, tasks, slots=2, limits=Limits(step_s=0.3))
    hung = [t for t in trajectories if t.error]
    assert [t.task.spec["number"] for t in hung] == [1]
    assert hung[0].error.kind == "StepTimeout" and hung[0].error.retryable
    assert trajectories[-1] is hung[0], "ten others ended before its deadline"
    assert sum(t.success is True for t in trajectories) == 10


def test_slow_worlds_wait_at_the_same_time(world):
    trajectories = play(world, [task(n, "slow") for n in range(8)], slots=8)
    assert all(t.success for t in trajectories)


def test_horizon_truncates(world):
    (trajectory,) = play(world, [task(1)], ev.Script(lambda w, t: ["x"] * 9))
    assert (trajectory.ended_by, len(trajectory.steps), trajectory.success) == ("horizon", 4, False)
    (shorter,) = play(world, [task(1)], ev.Script(lambda w, t: ["x"] * 9), limits=Limits(horizon=2))
    assert len(shorter.steps) == 2


def test_an_agent_may_stop(world):
    (trajectory,) = play(world, [task(1)], ev.Script(lambda w, t: ["x"]))
    assert (trajectory.ended_by, trajectory.success) == ("agent", False)


def test_missing_world_and_no_slots_are_named(world):
    stranger = ev.Task("cuont", "1", {})
    with pytest.raises(ev.ConfigError, match=r"unknown world 'cuont'.*did you mean 'count'"):
        play(world, [stranger])
    with pytest.raises(ev.ConfigError, match="number of slots out of range"):
        play(world, [task(1)], slots=0)


def test_ids_name_task_and_sample(world):
    trajectories = play(world, [task(1)], samples=3)
    assert sorted(t.id for t in trajectories) == [f"{task(1).id}/{n}" for n in range(3)]
    assert {t.group for t in trajectories} == {task(1).id}


def test_two_starts_of_one_id_are_refused(world):
    start = ev.Start(task(1))
    with pytest.raises(
        ev.ConfigError,
        match=r"two starts would produce the same trajectory id.*Give each sample of a task a different number",
    ):
        list(ev.collect({"count": world}, [start, ev.Start(task(2)), start], ev.Expert(), engine=None))


def test_a_world_that_cannot_score_or_answers_nonsense_ends_its_own_episode():
    class Unscored(Count):
        def score(self, rewards, info):
            raise KeyError("no such mark")

    class Nonsense(Count):
        def play(self, spec):
            yield "say"
            yield {0: 7, 1: ("x", float("nan")), 2: ("x", 0.0, 1)}[spec["number"]]

    (broken,) = play(Unscored(), [task(1)])
    assert (broken.ended_by, broken.error.kind, broken.success) == ("error", "EnvLost", None)
    assert len(broken.steps) == 1 and re.search(
        r"failed in score at \S+test_collect.py:\d+: KeyError", broken.error.message
    )
    found = play(Nonsense(), [task(n) for n in range(3)])
    assert [t.error.kind for t in found] == ["EnvLost"] * 3
    assert any("reward is not finite" in t.error.message for t in found)


def test_a_hung_environment_is_closed_when_its_call_returns(world):
    closed = threading.Event()

    class Env:
        def reset(self, *, seed=None, options=None):
            world.release.wait(60)
            return "late", {}

        def close(self):
            closed.set()

    world.make = lambda task: Env()
    (hung,) = play(world, [task(1)], limits=Limits(reset_s=0.1))
    assert hung.error.kind == "StepTimeout" and not closed.is_set()
    world.release.set()
    assert closed.wait(30)


def test_a_close_that_hangs_or_fails_loses_no_trajectory(world, caplog):
    make = world.make

    def made(task):
        env = make(task)
        env.close = lambda: world.release.wait(60) if task.spec["number"] == 1 else 1 / 0
        return env

    world.make = made
    found = play(world, [task(1), task(2)], limits=Limits(step_s=0.2))
    assert [t.success for t in found] == [True, True]
    assert "did not close" in caplog.text and "ZeroDivisionError" in caplog.text


def test_environments_are_closed_at_once_when_the_caller_stops():
    class Ponders:
        def begin(self, world, task, *, seed):
            return self

        def act(self, observation, info):
            while not observation.endswith(" 1"):
                yield ()
            return Decision("", ends="agent")

    world = Count(blocking=False)
    playing = ev.collect({"count": world}, [ev.Start(task(n)) for n in (5, 6, 0, 7)], Ponders(), engine=None, slots=3)
    assert next(playing).ended_by == "agent"
    with pytest.raises(KeyboardInterrupt) as caught:
        playing.throw(KeyboardInterrupt())
    assert sorted(world.closed) == [0, 5, 6], "though the traceback still holds the loop"
    assert caught.tb is not None
