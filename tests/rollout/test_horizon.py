"""ScalingInter-RL's schedule: golden values, purity, and what it does to episodes."""

import pytest

import evolvent as ev
from evolvent.errors import ConfigError
from evolvent.rollout.episode import Limits
from evolvent.rollout.horizon import HorizonSchedule


def test_golden_values():
    horizon = HorizonSchedule((10, 20, 30), every=100)
    assert [horizon(g) for g in (1, 99, 100, 199, 200, 299, 300, 10**6)] == [10, 10, 20, 20, 30, 30, 30, 30]
    assert HorizonSchedule()(7) is None
    assert HorizonSchedule((6, 13, 20))(1) == 13, "with phases of one update, update 1 is in the second"


def test_wrong_schedules_are_refused_at_once():
    with pytest.raises(ConfigError) as refused:
        HorizonSchedule((5, 0, -1), every=0)
    assert len(refused.value.problems) == 3


def test_episodes_end_at_the_scheduled_horizon():
    world = ev.Lookup()
    starts = [ev.Start(task) for task in world.tasks("dev", "longer")[:5]]
    horizon = HorizonSchedule((1, 3), every=10)
    for g, most in ((1, 1), (10, 3)):
        limits = Limits(horizon=horizon(g))
        played = list(ev.collect({"lookup": world}, starts, ev.Expert(), engine=None, limits=limits))
        assert {len(trajectory.steps) for trajectory in played} == {most}
        assert {trajectory.ended_by for trajectory in played} == {"horizon"}
        assert not any(trajectory.success for trajectory in played)
