"""Rollouts of teams: what learning is given, what is recorded, resuming, and episodes that environments lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ConfigError, ErrorRecord, ShapeMismatch
from evolvent.marl.rollout import Decision
from evolvent.rollout.teams import TeamCollector, extract_trajectories, outcome_row, play_episodes, record_scenes
from evolvent.trajectory import Score, Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.games import GameWorld
from evolvent.worlds.teams.relay import RelayWorld
from evolvent.worlds.teams.rescue import RescueWorld
from evolvent.worlds.teams.rows import LocalRows, RowTeam, episode_seed
from tests.team_support import actions_for, make_counting, played, same

RELAY = RelayWorld(horizon=12)
RESCUE = RescueWorld(grid=7, horizon=10, sizes=Sizes(train=4, dev=0, test=0, per_kind=4))


class Drawing:
    """Acts as the episode's number and step say; what it claims to know tells where it was asked."""

    def __init__(self, spec):
        self.spec = spec

    def act(self, view, *, seed, greedy=False):
        claim = (view.number * 100 + view.time)[:, None] * np.ones(self.spec.agents)
        return Decision(
            actions=actions_for(view, self.spec, salt=f"{seed} {greedy}"),
            logp=-claim.astype(np.float32) - 1,
            value=claim.astype(np.float32),
        )


def counting(size, **env) -> RowTeam:
    task = Task("counting", "1", {"env": env})
    return RowTeam(make_counting(task).spec, [task], size, host=LocalRows(make_counting))


def relay(size=3):
    return RELAY.batch(RELAY.tasks("train", "seen")[:2], size)


def test_axes_and_ends():
    batch = relay()
    collector = TeamCollector(batch, first=6)
    rollout = collector.collect(Drawing(batch.spec), 30)
    agents = batch.spec.agents
    assert rollout.observation.shape == (30, 3, agents, 6) and rollout.actions.shape == (30, 3, agents)
    assert rollout.number[0].tolist() == [6, 7, 8]
    assert (rollout.value[..., 0] == rollout.number * 100 + rollout.time).all()
    over = rollout.terminated | rollout.truncated
    assert over.any() and not rollout.lost.any()
    assert np.array_equal(rollout.number[1:], rollout.number[:-1] + 3 * over[:-1])
    assert rollout.final_at.tolist() == np.argwhere(rollout.truncated).tolist()
    for at, (t, row) in enumerate(rollout.final_at):
        assert rollout.final.number[at] == rollout.number[t, row] and rollout.final.time[at] == 12
    assert same(rollout.last, collector.view)


def test_rollouts_join():
    batch, other = relay(), relay()
    whole = TeamCollector(batch).collect(Drawing(batch.spec), 20)
    collector = TeamCollector(other)
    parts = [collector.collect(Drawing(batch.spec), 8), collector.collect(Drawing(batch.spec), 12)]
    for name in ("observation", "actions", "reward", "terminated", "truncated", "number", "time", "alive", "available"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts])), name


@pytest.mark.parametrize(
    "make", [relay, lambda: counting(3, ends=5), lambda: RESCUE.batch(RESCUE.tasks("train", "seen"), 3)]
)
def test_resuming_gives_the_same_rollout(make):
    batch = make()
    player = Drawing(batch.spec)
    collector = TeamCollector(batch, first=3, seed=5)
    collector.collect(player, 7)
    kept = {name: array.copy() for name, array in collector.snapshot().items()}
    expected = collector.collect(player, 9)
    again = TeamCollector(make(), first=0, seed=5)
    again.restore(kept)
    found = again.collect(player, 9)
    for name in ("observation", "actions", "reward", "terminated", "truncated", "number", "time", "state"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    with pytest.raises(BatchMismatch, match="not the snapshot of a collector"):
        again.restore({name: array for name, array in kept.items() if name != "collector_lost"})


def test_an_episode_that_is_lost_teaches_nothing():
    batch = counting(4, what="raise", at=3, only=0, ends=4)
    bad = [n for n in range(8) if episode_seed(batch.tasks[0], n) % 2 == 0]
    collector = TeamCollector(batch)
    rollout = collector.collect(Drawing(batch.spec), 7)
    assert collector.lost == len(bad) > 0
    assert np.array_equal(rollout.lost, np.isin(rollout.number, bad))
    assert not (rollout.terminated | rollout.truncated)[rollout.lost].any()
    ends = {int(rollout.number[t, row]) for t, row in np.argwhere(rollout.lost_end)}
    assert ends == set(bad)
    records = {record.sample: record for record in extract_trajectories(rollout, batch)}
    assert set(records) >= set(bad)
    for number in bad:
        assert records[number].ended_by == "error" and records[number].score.raw is None
        assert set(records[number].rewards) == {None} and len(records[number].steps) == 3


def test_what_an_earlier_rollout_held_stays():
    batch = counting(1, what="raise", at=5)
    collector = TeamCollector(batch)
    first, second = collector.collect(Drawing(batch.spec), 3), collector.collect(Drawing(batch.spec), 3)
    assert not first.lost.any() and second.lost[:, 0].tolist() == [True, True, False]


def test_episodes_are_the_same_whatever_the_batch():
    for make in (lambda size: RELAY.batch(RELAY.tasks("train", "seen")[:2], size), lambda size: counting(size, ends=3)):
        player = Drawing(make(1).spec)
        one, many = play_episodes(make(1), player, 5, first=2), play_episodes(make(4), player, 5, first=2, stage="")
        assert one == many and len(one) == 5
    assert (
        play_episodes(relay(), Drawing(relay().spec), 2)[0]
        != play_episodes(relay(), Drawing(relay().spec), 2, seed=1)[0]
    )


def test_a_record_of_an_episode():
    batch = relay(2)
    player = Drawing(batch.spec)
    records = play_episodes(batch, player, 4, stage="eval/0")
    episodes = played(relay(2), [0, 1], 60, salt="0 True")
    for number, record in enumerate(records):
        task, sample = batch.tasks[number % 2], number // 2
        assert record.task == task and record.sample == sample and record.id == f"eval/0/{task.id}/{sample}"
        *steps, last = episodes[number]
        assert len(record.steps) == len(steps) and np.array_equal(record.final_observation, last.observation[0])
        for step, (view, reward, *_) in zip(record.steps, steps, strict=True):
            assert np.array_equal(step.observation, view.observation[0]) and step.reward == reward
            assert step.info["alive"] == view.alive[0].tolist()
        assert record.ended_by == ("world" if steps[-1][2] else "horizon")
        assert record.success is steps[-1][4] and record.score.raw == sum(s[1] for s in steps)


def test_records_of_a_rollout_are_those_of_playing():
    batch = relay(2)
    player = Drawing(batch.spec)
    rollout = TeamCollector(batch).collect(player, 30)
    found = extract_trajectories(rollout, batch)
    assert len(found) == (rollout.terminated | rollout.truncated).sum()
    whole = {r.id: r for r in play_episodes(relay(2), player, 2 * len(found), greedy=False)}
    for record in found:
        expected = whole[record.id]
        if record.ended_by == "world":
            record = replace(record, final_observation=expected.final_observation)
        assert record == expected


def test_records_of_a_rollout_come_by_number():
    tasks = RELAY.tasks("train", "seen")[:4]
    for order in (tasks, tasks[::-1]):
        batch = RELAY.batch(order, 2)
        found = extract_trajectories(TeamCollector(batch).collect(Drawing(batch.spec), 80), batch)
        numbers = [record.sample * 4 + [task.id for task in order].index(record.task.id) for record in found]
        assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers) > 4


def test_a_lost_episode_is_recorded_with_its_error():
    batch = counting(2, what="nan", at=2, ends=4)
    records = play_episodes(batch, Drawing(batch.spec), 2)
    assert [r.ended_by for r in records] == ["error"] * 2 and records[0].error.kind == "NonFinite"
    assert records[0].score.raw is None and records[0].rewards == (1.5, None)


def test_players_of_other_spaces_are_refused():
    batch = relay()
    other = Drawing(replace(batch.spec, observation=7))
    for call in (lambda: TeamCollector(batch).collect(other, 1), lambda: play_episodes(batch, other, 1)):
        with pytest.raises(ShapeMismatch, match="observation: trained on 7, got 6"):
            call()
    roomy = Drawing(replace(batch.spec, agents=12))
    with pytest.raises(ConfigError, match="1 or more"):
        TeamCollector(batch).collect(roomy, 0)
    with pytest.raises(ConfigError, match="1 or more"):
        play_episodes(batch, roomy, 0)


def test_a_row_of_the_table():
    world = GameWorld("distinct")
    tasks = world.tasks("train", "seen")[:6]
    records = play_episodes(world.batch(tasks, 4), Drawing(world.batch(tasks, 1).spec), 24)
    row = outcome_row("drawing", world, records)
    assert row["episodes"] == 24 and row["lost"] == 0 and row["optimum"] == [1.0, True]
    mean, low, high = row["return"]
    assert mean == pytest.approx(np.mean([r.score.raw for r in records])) and low < mean < high
    assert row["success"][0] == np.mean([r.success for r in records])
    assert row == outcome_row("drawing", world, records)
    lost = replace(records[0], ended_by="error", error=ErrorRecord("EnvLost", "x"), score=Score())
    assert outcome_row("drawing", world, [lost, records[1]]) == {
        "name": "drawing",
        "world": "team_distinct",
        "episodes": 1,
        "lost": 1,
        "optimum": [1.0, True],
        "return": [records[1].score.raw, None, None],
        "success": [float(records[1].success), None, None],
    }
    silent = [replace(record, score=Score(1.0)) for record in records]
    assert outcome_row("drawing", world, silent)["success"] is None
    with pytest.raises(ConfigError, match="no episode has a score"):
        outcome_row("drawing", world, [lost])


def test_a_film_shows_every_decision():
    batch = RESCUE.batch(RESCUE.tasks("train", "seen"), 2)
    player = Drawing(batch.spec)
    scenes = record_scenes(batch, player, 3)
    record = play_episodes(RESCUE.batch(RESCUE.tasks("train", "seen"), 1), player, 1, first=3)[0]
    assert len(scenes) == len(record.steps)
    agents = [sum(mark.role == "agent" for mark in scene.marks) for scene in scenes]
    assert agents == [sum(step.info["alive"]) for step in record.steps]
    game = GameWorld("team")
    with pytest.raises(ConfigError, match="cannot be drawn"):
        record_scenes(game.batch(game.tasks("train", "seen"), 1), player, 0)
