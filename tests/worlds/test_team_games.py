"""Games with known optima: every number is found again by trying all that can be done."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from evolvent.errors import ConfigError, InvalidAction
from evolvent.worlds.teams.games import CLIMBING, GAMES, GameWorld, penalty_table
from evolvent.worlds.teams.relay import RelayWorld
from tests.team_support import same


def pays(world, task) -> dict[tuple[int, ...], float]:
    """Joint action -> pay, of all that are available, played side by side."""
    batch = world.batch([task], 1)
    free = batch.reset([0]).available[0]
    joint = list(product(*[np.flatnonzero(mask).tolist() for mask in free]))
    batch = world.batch([task], len(joint))
    batch.reset(np.arange(len(joint)))
    return dict(zip(joint, batch.step(np.array(joint)).reward.tolist(), strict=True))


@pytest.mark.parametrize("name", sorted(GAMES))
@pytest.mark.parametrize("shuffle", [None, 7])
def test_the_optimum_is_the_greatest_pay(name, shuffle):
    world = GameWorld(name)
    for agents in [n for n in GAMES[name].small_sizes if n <= 3]:
        task = world.task(agents, shuffle=shuffle)
        best = max(pays(world, task).values())
        assert world.optimum(task).value == best and world.optimum(task).exact


def test_tables_are_the_published_ones():
    found = pays(GameWorld("climbing"), GameWorld("climbing").task(2))
    assert found == {(a, b): CLIMBING[a, b] for a in range(3) for b in range(3)}
    assert found[0, 0] == 11 and found[0, 1] == found[1, 0] == -30 and found[1, 1] == 7 and found[2, 2] == 5
    table = penalty_table(-50.0)
    assert table[0, 2] == table[2, 0] == -50 and table[1, 1] == 2 and table[0, 0] == table[2, 2] == 10


def test_the_team_game_is_m4():
    found = pays(GameWorld("team"), GameWorld("team").task(3))
    assert np.mean(list(found.values())) == 2.0  # V under the uniform policy
    assert found[1, 1, 1] == 5.0 and found[1, 1, 0] == 2.0 and found[0, 0, 0] == 2.0

    # Action (1, 1, 0): advantages of the parts in the order 1-2-3 and 3-1-2.
    def value(fixed):
        return np.mean([pay for joint, pay in found.items() if all(joint[k] == a for k, a in fixed.items())])

    ways = {(0, 1, 2): [0.5, 1.0, -1.5], (2, 0, 1): [-0.5, 0.0, 0.5]}
    for order, expected in ways.items():
        fixed, parts, before = {}, [], value({})
        for agent in order:
            fixed[agent] = (1, 1, 0)[agent]
            parts.append(value(fixed) - before)
            before = value(fixed)
        assert parts == expected


def test_labels_mean_what_agents_are_told():
    world = GameWorld("distinct")
    plain, mixed = world.task(3), world.task(3, shuffle=5)
    meaning = mixed.spec["meaning"]
    assert meaning != list(range(12))
    by_meaning = pays(world, plain)
    for joint, pay in pays(world, mixed).items():
        assert by_meaning[tuple(meaning[label] for label in joint)] == pay
    seen = world.batch([mixed], 1).reset([0]).observation[0, 0]
    assert seen[3:].reshape(12, 12).argmax(-1).tolist() == meaning


def test_chain_follows_offsets():
    world = GameWorld("chain")
    task = world.task(3, shuffle=2)
    meaning, offsets = task.spec["meaning"], task.spec["offsets"]
    for joint, pay in pays(world, task).items():
        said = [meaning[label] for label in joint]
        right = sum(said[k] == (said[k - 1] + offsets[k]) % 4 for k in (1, 2))
        assert pay == right / 2


def test_a_smaller_team_has_agents_that_never_live():
    world = GameWorld("distinct")
    small, large = world.task(2), world.task(4)
    batch = world.batch([small, large], 2)
    view = batch.reset([0, 1])
    assert batch.spec.agents == 4
    assert view.alive.tolist() == [[True, True, False, False], [True] * 4]
    assert not view.observation[0, 2:].any()
    assert view.available[0, 2].tolist() == [True] + [False] * 11
    assert view.available[0, 0].sum() == 2 and view.available[1, 0].sum() == 4
    alone = world.batch([small], 1)
    alone.reset([0])
    together = batch.step(np.array([[0, 1, 11, 11], [0, 0, 1, 2]]))  # what those do that are not alive is ignored
    assert together.reward.tolist() == [1.0, 0.5] == [alone.step(np.array([[0, 1]])).reward[0], 0.5]
    batch.reset([0, 1])
    with pytest.raises(InvalidAction, match=r"row 0, episode 0, step 0, agent 1"):
        batch.step(np.array([[0, 5, 0, 0], [0, 0, 1, 2]]))


def test_rounds_add_up():
    world = GameWorld("climbing", rounds=3)
    batch = world.batch(world.tasks("train", "seen"), 1)
    batch.reset([0])
    steps = [batch.step(np.array([[0, 0]])) for _ in range(3)]
    assert sum(s.reward[0] for s in steps) == world.optimum(batch.tasks[0]).value == 33
    assert [bool(s.terminated[0]) for s in steps] == [False, False, True]


def best_relay(world, task, horizon) -> tuple[float, int]:
    """(greatest return, fewest steps to it) by trying every joint action at every step."""
    joint = [np.array(actions) for actions in product((0, 1), repeat=len(task.spec["line"]))]
    batch = world.batch([task], 1)
    batch.reset([0])
    states = [batch.snapshot()]
    for step in range(1, horizon + 1):
        following = {}
        for state in states:
            for actions in joint:
                batch.restore(state)
                free = batch._view.available[0]
                if not free[np.arange(len(actions)), actions].all():
                    continue
                result = batch.step(actions[None])
                if result.reward[0] > 0:
                    return float(result.reward[0]), step
                if not result.ended.size:
                    after = batch.snapshot()
                    following[after["holder"].tobytes() + after["out"].tobytes()] = after
        states = list(following.values())
    return 0.0, horizon


@pytest.mark.parametrize("line", [[0, 1, 2], [2, 0, 1]])
def test_the_relay_needs_as_many_steps_as_agents(line):
    world = RelayWorld()
    task = world.task(line)
    assert best_relay(world, task, 5) == (1.0, 3)
    assert world.optimum(task).value == 1.0
    batch = world.batch([task], 1)
    batch.reset([0])
    for step in range(3):
        result = batch.step(world.expert(batch))
        assert result.reward[0] == float(step == 2)
    assert result.terminated[0] and result.success[0]


def test_a_false_start_is_the_end_of_an_agent():
    world = RelayWorld()
    batch = world.batch([world.task([0, 1, 2])], 1)
    batch.reset([0])
    early = batch.step(np.array([[0, 0, 1]]))  # the third runs without the baton
    assert early.view.alive.tolist() == [[True, True, False]] and not early.terminated[0]
    assert early.view.available[0].tolist() == [[True, True], [True, True], [True, False]]
    assert not early.view.observation[0, 2].any()
    batch.step(np.array([[1, 0, 0]]))
    lost = batch.step(np.array([[0, 1, 0]]))  # now the baton is with who is out
    assert lost.terminated[0] and not lost.success[0] and lost.reward[0] == 0


@pytest.mark.parametrize("world", [GameWorld("distinct"), GameWorld("chain"), RelayWorld()], ids=lambda w: w.name)
def test_panels_do_not_overlap(world):
    panels = {(split, tier): world.tasks(split, tier) for split in ("train", "dev", "test") for tier in world.tiers}
    ids = [task.id for tasks in panels.values() for task in tasks]
    assert len(ids) == len(set(ids)) and not panels["train", "longer"] and panels["test", "longer"]
    again = type(world)(world.name[5:]) if isinstance(world, GameWorld) else RelayWorld()
    assert all(again.tasks(*at) == tasks for at, tasks in panels.items())


def test_mistakes_are_refused():
    with pytest.raises(ConfigError, match=r"climbing.*(\n|.)*rounds"):
        GameWorld("climbin", rounds=0)
    with pytest.raises(ConfigError, match="agents of 'team_climbing'"):
        GameWorld("climbing").task(3)
    with pytest.raises(ConfigError, match="split"):
        GameWorld("team").tasks("tran", "seen")
    with pytest.raises(ConfigError, match="each position from 0 once, at most 12"):
        RelayWorld().task([0, 0, 1])
    with pytest.raises(ConfigError, match="12 steps"):
        RelayWorld(horizon=3)


def test_views_are_equal_only_to_their_like():
    world = GameWorld("chain")
    batch = world.batch(world.tasks("train", "seen"), 2)
    view = batch.reset([0, 1])
    assert same(view, batch.reset([0, 1])) and not same(view, batch.reset([1, 0]))
