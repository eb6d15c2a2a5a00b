"""Battles of several layouts in one form: the same episodes, and every feature in its place."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.base import check_view
from evolvent.worlds.teams.battle import ATTACK, LAYOUTS, UNITS, BattleWorld
from evolvent.worlds.teams.battles import MAX_ALLIES, MAX_ENEMIES, TYPES, BattlesWorld
from tests.team_support import actions_for, equal_episodes, played, same

FEW = Sizes(train=4, dev=0, test=0, per_kind=4)
UNIT = 6 + len(TYPES)


def make_batch(*layouts: str, size: int = 4, horizon: int | None = None):
    world = BattlesWorld(layouts, horizon=horizon, sizes=FEW)
    return world, world.batch(world.tasks("train", "seen"), size)


def read_unit(row, start: int) -> dict[str, object]:
    """Returns the features of another unit in an observation, by name."""
    block = row[start : start + UNIT]
    types = [name for name, bit in zip(TYPES, block[6:], strict=True) if bit]
    return dict(zip(("first", "distance", "x", "y", "health", "shield"), block, strict=False)) | {"types": types}


def test_the_form_has_room_for_every_layout():
    specs = [make_batch(name)[1].spec for name in LAYOUTS]
    sizes = {(spec.observation, spec.actions.n, spec.state) for spec in specs}
    assert sizes == {(4 + 21 * 11 + 7, 18, 10 * 28 + 12 * 9)}
    assert [spec.agents for spec in specs] == [3, 8, 5, 8, 10] and (MAX_ALLIES, MAX_ENEMIES) == (10, 12)
    assert [spec.horizon for spec in specs] == [60, 120, 120, 150, 180]
    assert make_batch("3m", "MMM2")[1].spec.agents == 10


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_episodes_are_those_of_one_layout(layout):
    """Step for step: rewards, ends, masks, and every feature at its place, where the rest is 0."""
    names = ("2s3z", layout) if layout != "2s3z" else ("3m", layout)
    world, batch = make_batch(*names, size=2)
    tasks = world.tasks("train", "seen")
    batch.reset([0, 1])  # the second row plays the layout, whose episodes are the odd numbers
    single_world = BattleWorld(layout, sizes=FEW)
    single = single_world.batch(single_world.tasks("train", "seen"), 1)
    assert tasks[1] == single.tasks[0] and batch.layout[1] == 1
    view, own = batch._view, single.reset([0])
    agents, enemies = len(LAYOUTS[layout].allies), len(LAYOUTS[layout].enemies)
    for step in range(16):
        assert np.array_equal(view.alive[1, :agents], own.alive[0]) and not view.alive[1, agents:].any()
        assert np.array_equal(view.available[1, :agents, : ATTACK + enemies], own.available[0])
        assert not view.available[1, :agents, ATTACK + enemies :].any() and view.available[1, agents:, 0].all()
        check_features(layout, view.observation[1], own.observation[0])
        actions = single_world.expert(single) if step % 2 else actions_for(own, single.spec)
        both = np.zeros((2, batch.spec.agents), dtype=np.int64)
        both[0] = view.available[0].argmax(-1)
        both[1, :agents] = actions[0]
        result, own_result = batch.step(both), single.step(actions)
        assert result.reward[1] == own_result.reward[0]
        assert result.terminated[1] == own_result.terminated[0] and result.success[1] == own_result.success[0]
        if own_result.ended.size:
            break
        view, own = result.view, own_result.view


def check_features(layout: str, padded, plain) -> None:
    """Reads every unit of both forms by hand."""
    allies, enemies, types = LAYOUTS[layout].allies, LAYOUTS[layout].enemies, LAYOUTS[layout].types
    has_shields = any(UNITS[unit].shield for unit in allies + enemies)
    width = 5 + has_shields + len(types)
    for agent, (row, own) in enumerate(zip(padded[: len(allies)], plain, strict=True)):
        assert np.array_equal(row[:4], own[:4])
        others = [name for index, name in enumerate(allies) if index != agent]
        starts = [4 + 11 * slot for slot in range(len(enemies))]
        starts += [4 + 11 * (MAX_ENEMIES + slot) for slot in range(len(others))]
        for slot, (start, name) in enumerate(zip(starts, [*enemies, *others], strict=True)):
            unit, block = read_unit(row, start), own[4 + slot * width : 4 + (slot + 1) * width]
            assert [unit[key] for key in ("first", "distance", "x", "y", "health")] == block[:5].tolist()
            assert unit["shield"] == (block[5] if has_shields else 0.0)
            assert unit["types"] == ([name] if block[4] > 0 else [])
        used = {*range(4), *range(len(row) - 7, len(row)), *(start + k for start in starts for k in range(11))}
        assert not np.delete(row, sorted(used)).any()
        assert row[-7] == own[4 - width]
        assert [name for name, bit in zip(TYPES, row[-5:], strict=True) if bit] == ([allies[agent]] if row[-7] else [])


def test_a_state_holds_every_unit_at_its_place():
    world, batch = make_batch("3m", size=1)
    batch.reset([0])
    for _ in range(12):
        step = batch.step(world.expert(batch))
    single_world = BattleWorld("3m", sizes=FEW)
    single = single_world.batch(single_world.tasks("train", "seen"), 1)
    single.reset([0])
    for _ in range(12):
        own = single.step(single_world.expert(single)).view.state[0]
    state = step.view.state[0]
    for agent in range(3):  # health, weapon, x, y; no shield; a marine
        block = state[10 * agent : 10 * agent + 10]
        assert block[:4].tolist() == own[4 * agent : 4 * agent + 4].tolist() and block[4] == 0
        assert block[5:].tolist() == [float(name == "marine" and block[0] > 0) for name in TYPES]
        last = state[10 * 10 + 12 * 9 + 18 * agent :][:18]
        assert last[:9].tolist() == own[12 + 9 + 9 * agent :][:9].tolist() and not last[9:].any()
    for enemy in range(3):  # health, x, y
        block = state[100 + 9 * enemy :][:9]
        assert block[:3].tolist() == own[12 + 3 * enemy : 15 + 3 * enemy].tolist() and block[3] == 0
        assert block[4:].tolist() == [float(name == "marine" and block[0] > 0) for name in TYPES]


def test_layouts_come_in_turn_and_rows_go_from_one_to_another():
    world, batch = make_batch("3m", "MMM2", "8m", size=4, horizon=5)
    tasks = world.tasks("train", "seen")
    assert [task.spec["layout"] for task in tasks[:4]] == ["3m", "MMM2", "8m", "3m"] and len(tasks) == 12
    together = played(batch, np.arange(4), 20)
    assert len(together) == 16
    alone = world.batch(tasks, 1)
    for number in (1, 4, 6, 11, 15):
        assert equal_episodes(together[number], played(alone, [number], 5)[number]), f"episode {number}"
    view = batch.reset([2, 1, 7, 0])
    check_view(view, batch.spec)
    assert view.alive.sum(1).tolist() == [8, 10, 10, 3]


def test_every_layout_has_its_own_limit():
    _, batch = make_batch("3m", "8m", size=2)
    truncated = {}
    for before in (58, 59, 118, 119):
        view = batch.reset([0, 1])
        batch.time[:] = before
        truncated[before + 1] = batch.step(np.where(view.available[..., 1], 1, 0)).truncated.tolist()
    assert truncated == {59: [False, False], 60: [True, False], 119: [True, False], 120: [True, True]}


def test_a_snapshot_goes_on_in_another_batch():
    world, batch = make_batch("3m", "2s3z", size=3)
    batch.reset([3, 1, 4])
    for _ in range(7):
        view = batch.step(world.expert(batch)).view
    kept = batch.snapshot()
    steps = [batch.step(world.expert(batch)) for _ in range(6)]
    other = make_batch("3m", "2s3z", size=3)[1]
    for stored in (kept, {name: np.asfortranarray(array) for name, array in kept.items()}):
        assert same(other.restore(stored), view)
        for step in steps:
            again = other.step(world.expert(other))
            assert np.array_equal(again.reward, step.reward) and same(again.view, step.view)
    for layouts, size in ((("3m", "8m"), 3), (("3m",), 3), (("3m", "2s3z"), 2)):
        with pytest.raises(BatchMismatch):
            make_batch(*layouts, size=size)[1].restore(kept)


def test_mistakes_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)unknown layout '9m'.*'3m' occurs 2 times"):
        BattlesWorld(("3m", "9m", "3m"))
    world = BattlesWorld(("3m",), sizes=FEW)
    with pytest.raises(ConfigError, match="other layouts"):
        world.batch(BattleWorld("8m", sizes=FEW).tasks("train", "seen"), 2)
    assert BattlesWorld().layouts == tuple(LAYOUTS) and world.optimum(world.tasks("train", "seen")[0]).value == 20
