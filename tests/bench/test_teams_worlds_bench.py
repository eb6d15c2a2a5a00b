"""The benchmark of battles: the plain game and the batch are one game, and the package's games are compared."""

from __future__ import annotations

from types import SimpleNamespace

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
    assert teams_worlds.beside_smaclite(Game(lies=True), 12)["parity_mismatches"] == 12
