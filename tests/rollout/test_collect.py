"""Collection: worlds may be slow, fail or hang, and the others go on; the result depends on neither order nor slots."""

import pytest

import evolvent as ev
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
    with pytest.raises(ev.ConfigError, match="no slots"):
        play(world, [task(1)], slots=0)


def test_ids_name_task_and_sample(world):
    trajectories = play(world, [task(1)], samples=3)
    assert sorted(t.id for t in trajectories) == [f"{task(1).id}/{n}" for n in range(3)]
    assert {t.group for t in trajectories} == {task(1).id}
