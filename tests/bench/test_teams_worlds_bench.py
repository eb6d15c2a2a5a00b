"""The benchmark of battles: the plain game and the batch are one game, and the package's games are compared."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchmarks import teams_worlds
from evolvent.worlds.teams.battle import LAYOUTS, BattleWorld


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_game_unit_by_unit_equals_the_batch(layout):
    steps, mismatches = teams_worlds.compare_plain(layout, 1)
    assert steps >= 12 and mismatches == 0


def test_a_difference_is_counted(monkeypatch):
    monkeypatch.setattr(teams_worlds.PlainUnit, "reach", lambda unit, other: unit.kind.attack_range)
    assert teams_worlds.compare_plain("3m", 2)[1] >= 1


class Game:
    """Stands for a game of smaclite: ours, with the package's members."""

    def __init__(self, *, lies: bool = False) -> None:
        world = BattleWorld(teams_worlds.HEADLINE)
        self.batch, self.lies = world.batch(world.tasks("train", "seen"), 1), lies

    def reset(self, seed=None):
        self.view = self.batch.reset([0])

    def step(self, actions):
        step = self.batch.step(np.array([actions]))
        self.view = step.view
        return tuple(self.view.observation[0] + self.lies), float(step.reward[0]), bool(step.ended.size), {}

    def get_avail_actions(self):
        return self.view.available[0]

    def get_state(self):
        return self.view.state[0]

    @property
    def last_actions(self):
        return self.view.state[0, -55:]

    def units(self, numbers):
        arrays = self.batch
        return {
            index: SimpleNamespace(
                pos=np.array([arrays.x[unit, 0], arrays.y[unit, 0]]),
                hp=arrays.health[unit, 0],
                shield=arrays.shield[unit, 0],
                cooldown=arrays.cooldown[unit, 0],
                energy=arrays.energy[unit, 0],
            )
            for index, unit in enumerate(numbers)
            if arrays.health[unit, 0] > 0
        }

    @property
    def agents(self):
        return self.units(range(5))

    @property
    def enemies(self):
        return self.units(range(5, 10))


def test_features_are_compared_with_the_package_on_equal_states():
    same = teams_worlds.beside_smaclite(Game(), 12)
    assert (same["parity_steps"], same["parity_mismatches"]) == (12, 0) and same["smaclite_steps_per_cpu_s"] > 0
    assert same["parity_off_map_steps"] == 0
    assert teams_worlds.beside_smaclite(Game(lies=True), 12)["parity_mismatches"] == 12


def test_moves_of_an_agent_off_the_map_are_left_out_and_nothing_else():
    """.4 west of the map the package allows east only, since north and south end in no cell of the map."""
    game, world = Game(), BattleWorld(teams_worlds.HEADLINE)
    game.reset()
    game.batch.x[0, 0] = -0.4
    game.view = game.batch._observe(np.array([0]))
    observation, available = game.view.observation[0], game.view.available[0]
    observation[0, :4], available[0, 2:6] = [0, 0, 1, 0], [0, 0, 1, 0]
    batch = world.batch(world.tasks("train", "seen"), 1)
    batch.reset([0])
    assert teams_worlds.compare_features(batch, game, tuple(observation)) == (True, True)
    for agent, action in ((0, 6), (1, 2)):  # an attack of that agent, and a move of another one
        available[agent, action] ^= True
        assert teams_worlds.compare_features(batch, game, tuple(observation)) == (False, True)
        available[agent, action] ^= True
    observation[0, 4 + 1] += 0.01  # the distance to the first enemy
    assert teams_worlds.compare_features(batch, game, tuple(observation)) == (False, True)


def test_a_game_of_the_package_gets_the_units_in_our_order(monkeypatch):
    registration = pytest.importorskip("gymnasium").envs.registration
    module, name = ModuleType("smaclite"), "smaclite/MMM2-v0"
    module.__spec__ = ModuleSpec("smaclite", None)
    group = SimpleNamespace(units=[(SimpleNamespace(name=unit), 1) for unit in ("MEDIVAC", "MARINE", "MARAUDER")])

    class Battle(pytest.importorskip("gymnasium").Env):
        map_info = SimpleNamespace(groups=[group])

    monkeypatch.setitem(sys.modules, "smaclite", module)
    monkeypatch.setitem(registration.registry, name, registration.EnvSpec(id=name, entry_point=Battle))
    game = teams_worlds.make_smaclite("MMM2")
    assert [unit.name for unit, _ in game.map_info.groups[0].units] == ["MARAUDER", "MARINE", "MEDIVAC"]


def test_without_the_package_there_is_no_game(monkeypatch):
    monkeypatch.setattr(teams_worlds, "find_spec", lambda name: None)
    assert teams_worlds.make_smaclite() is None
