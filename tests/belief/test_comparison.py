"""Policies and planners on the same searches: episodes that depend on nothing but themselves, outcomes, records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolvent.belief import seeking
from evolvent.belief.comparison import (
    SCORER,
    annotations_to_scores,
    compare_choosers,
    make_chooser,
    play_episodes,
    summary_row,
)
from evolvent.belief.outcomes import CELLS, tabulate_trajectories
from evolvent.belief.stopping import StdBelow
from evolvent.errors import BatchMismatch, ConfigError
from evolvent.trajectory import Start
from evolvent.worlds.plume.presets import get_preset
from evolvent.worlds.plume.world import PlumeWorld

WORLD = PlumeWorld(horizon=30)
TASKS = WORLD.tasks("test", "seen")
MEAN, RANDOM = make_chooser("go_to_mean"), make_chooser("random")


def test_an_episode_is_the_same_alone_and_among_others():
    starts = [Start(task, sample) for task in TASKS[:3] for sample in (0, 1)]
    together = play_episodes(MEAN, WORLD, starts, name="mean", detector=StdBelow(3.0), particles=80, batch_size=4)
    assert [(one.task.id, one.sample) for one in together.trajectories] == [(s.task.id, s.sample) for s in starts]
    for start, one in zip(starts, together.trajectories, strict=True):
        (alone,) = play_episodes(MEAN, WORLD, [start], name="mean", detector=StdBelow(3.0), particles=80).trajectories
        assert [step.action for step in alone.steps] == [step.action for step in one.steps]
        assert (alone.id, alone.ended_by, alone.score) == (one.id, one.ended_by, one.score)
        assert alone.meta["error_m"] == pytest.approx(one.meta["error_m"], abs=1e-3)
    first, second = together.trajectories[:2]
    assert [s.observation[3] for s in first.steps] != [s.observation[3] for s in second.steps], (
        "a sample is other noise"
    )


def test_everybody_meets_the_same_sources_and_the_same_sensor():
    a, b = compare_choosers(
        {"random": RANDOM, "mean": MEAN}, WORLD, TASKS[:3], detector=StdBelow(2.0), episodes=5, particles=60
    )
    assert a.sensor == b.sensor == WORLD.preset.sensor.id
    for one, other in zip(a.trajectories, b.trajectories, strict=True):
        assert (one.task, one.sample) == (other.task, other.sample)
        np.testing.assert_array_equal(one.steps[0].observation, other.steps[0].observation)
    assert [one.sample for one in a.trajectories] == [0, 0, 0, 1, 1]
    trained = {WORLD.key(task) for task in WORLD.tasks("train", "seen")}
    assert not trained & {WORLD.key(one.task) for one in a.trajectories}


def test_a_collapsed_wrong_belief_is_a_false_stop():
    """Believed convergence is not success: a filter of one particle is sure at once, and wrong nearly always."""
    played = play_episodes(
        MEAN, WORLD, [Start(task) for task in TASKS[:12]], name="mean", detector=StdBelow(1.0), particles=1
    )
    table = played.table
    assert table.stops == 12 and table.false_stop >= 11
    assert [len(one.steps) for one in played.trajectories] == [1] * 12
    assert all(one.score.raw == 100.0 for one in played.trajectories), "AGDC is paid for believing"


def test_the_table_is_that_of_the_records():
    played = play_episodes(
        MEAN, WORLD, [Start(task) for task in TASKS[:10]], name="mean", detector=StdBelow(2.5), particles=100
    )
    table, recorded = played.table, tabulate_trajectories(played.trajectories)
    for cell in CELLS:
        assert getattr(table, cell) == getattr(recorded, cell)
    assert sum(getattr(table, cell) for cell in CELLS) + table.unknown == table.episodes == 10
    row = summary_row(played)
    assert row["success"][0] == table.right_stop / 10 and row["false_cessation"][0] == table.false_stop / 10
    assert row["success"][1] <= row["success"][0] <= row["success"][2]
    assert row["decision_ms"][0] > 0 and row["distance"][0] <= row["steps"][0] + 1e-9, "a step is 1 m at most"


def test_the_records():
    (one,), scores = (
        (
            played := play_episodes(MEAN, WORLD, [Start(TASKS[0])], name="mean", detector=StdBelow(2.0), particles=100)
        ).trajectories,
        played.scores,
    )
    looks = annotations_to_scores(scores, one.id, SCORER, looks=len(one.steps))
    assert one.ended_by == "agent" and (looks[:-1] >= 2.0).all() and looks[-1] < 2.0
    assert [step.reward for step in one.steps] == [-1.0] * (len(one.steps) - 1) + [100.0]
    # The record is enough to play the episode again in the world itself.
    again = PlumeWorld(observe="array", horizon=30).make(one.task)
    seen, _ = again.reset(seed=one.sample)
    for step in one.steps:
        np.testing.assert_allclose(seen, step.observation)
        seen = again.step(step.action)[0]
    np.testing.assert_allclose(seen, one.final_observation)
    source = WORLD.source(one.task)
    error = float(np.hypot(*(np.array(one.steps[-1].info["mean"]) - (source.x, source.y))))
    assert one.meta["error_m"] == pytest.approx(error, abs=1e-4) and one.success == (error < 2.0)


def test_headings_are_recorded_as_numbers():
    world = PlumeWorld(replace(get_preset("plume/25"), moves="heading"), observe="array", horizon=6)
    (one,) = play_episodes(
        MEAN, world, [Start(TASKS[0])], name="mean", detector=StdBelow(1e-6), particles=50
    ).trajectories
    env = world.make(one.task)
    env.reset(seed=0)
    for step in one.steps:
        seen = env.step(step.action)[0]
    np.testing.assert_allclose(seen, one.final_observation)
    assert one.ended_by == "horizon" and one.success is not None


def test_a_lost_belief_ends_by_an_error_and_is_no_stop(monkeypatch):
    real = seeking.update

    def lossy(cloud, position, z, **options):
        """As if the fourth reading were impossible, in the first belief."""
        found = real(cloud, position, z, **options)
        lost = (found.counts == 4) & (found.seeds == seed)
        return replace(found, collapses=found.collapses + lost)

    starts = [Start(task) for task in TASKS[:3]]
    seed = seeking.sample_seed("belief", TASKS[1].id, 0)
    monkeypatch.setattr(seeking, "update", lossy)
    played = play_episodes(MEAN, WORLD, starts, name="mean", detector=StdBelow(1e9), particles=50)
    assert [one.ended_by for one in played.trajectories] == ["agent"] * 3, "they all stop at the first look"
    played = play_episodes(MEAN, WORLD, starts, name="mean", detector=StdBelow(1e-9), particles=50)
    lost = played.trajectories[1]
    assert [one.ended_by for one in played.trajectories] == ["horizon", "error", "horizon"]
    assert lost.error.kind == "BeliefCollapsed" and lost.error.at_step == 2 and len(lost.steps) == 3
    assert lost.steps[-1].reward is None and lost.success is None
    assert played.table.unknown == 1 and played.table.stops == 0


def test_mistakes():
    with pytest.raises(ConfigError, match="planner"):
        make_chooser("entrotaxi")
    with pytest.raises(ConfigError, match="nz"):
        make_chooser("dcee", nz=0)
    with pytest.raises(BatchMismatch, match="one or more different episodes"):
        play_episodes(MEAN, WORLD, [Start(TASKS[0])] * 2, name="mean", detector=StdBelow(1.0))
    with pytest.raises(ConfigError, match="not enough to compare"):
        compare_choosers({}, WORLD, TASKS, detector=StdBelow(1.0))
