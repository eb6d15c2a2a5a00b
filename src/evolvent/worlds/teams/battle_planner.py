"""A planner of battles: it plays what the team could do now to the end, and does what ends best.

After its first step every choice goes on as the script plays (`BattleWorld.expert`), so that the planner is one step
of policy improvement over it: a rollout algorithm (Tesauro and Galperin 1996, "On-line Policy Improvement using
Monte-Carlo Search"). The script's own action is among the choices and battles have no chance in them, so no battle
pays less than the script's.
"""

from __future__ import annotations

import numpy as np

from evolvent.worlds.teams.battle import (
    ATTACK,
    EAST,
    NORTH,
    SOUTH,
    STOP,
    WEST,
    BattleBatch,
    BattleWorld,
    Bools,
    Floats,
    Ints,
)

__all__ = ["BattlePlanner"]

_TIE_SHARE = 1e-3  # of the health and shields that are left: it decides only between equal returns


class BattlePlanner:
    """Plans the actions of a team that knows the state and the rules of its world.

    The choices of a step: what the script does; all attack one enemy; one agent steps back; all step back, come closer
    or stop. Whoever cannot follow a choice does what the script says. A step of E rows plays `E * K` battles to their
    end, K = 4 + agents + enemies.

    Args:
        world: the world of the battles.
    """

    def __init__(self, world: BattleWorld) -> None:
        self._world = world
        self._imagined: BattleBatch | None = None

    def plan(self, batch: BattleBatch) -> Ints:
        """Returns actions `[E, n]` for the present state of a batch, which stays as it is."""
        choices = self._list_choices(batch)
        num_rows, num_choices, agents = choices.shape
        imagined = self._imagine(batch, num_choices)
        returns = self._play_out(imagined, choices.reshape(-1, agents))
        best = returns.reshape(num_rows, num_choices).argmax(1)
        actions: Ints = choices[np.arange(num_rows), best]
        return actions

    def _list_choices(self, batch: BattleBatch) -> Ints:
        """Returns the choices `[E, K, n]`; the first is the script's."""
        army, agents = batch._army, batch._army.agents
        script, available = self._world.expert(batch), batch.available()
        to_x, to_y = batch.nearest_enemies()
        is_level = np.abs(to_x) >= np.abs(to_y)
        back = np.where(is_level, np.where(to_x > 0, WEST, EAST), np.where(to_y > 0, SOUTH, NORTH))
        closer = np.where(is_level, np.where(to_x > 0, EAST, WEST), np.where(to_y > 0, NORTH, SOUTH))
        fighters = ~army.heals[:agents, 0]
        attacks = [np.where(fighters, ATTACK + enemy, script) for enemy in range(army.enemies)]
        steps_back = [np.where(np.arange(agents) == agent, back, script) for agent in range(agents)]
        wished = np.stack([script, *attacks, *steps_back, back, closer, np.full_like(script, STOP)], 1)
        is_allowed = np.take_along_axis(available[:, None], wished[..., None], 3)[..., 0]
        return np.where(is_allowed, wished, script[:, None])

    def _imagine(self, batch: BattleBatch, copies: int) -> BattleBatch:
        """Returns a batch in which every row of another stands this often, one copy behind the other."""
        if self._imagined is None or self._imagined.size != batch.size * copies:
            self._imagined = self._world.batch(batch.tasks, batch.size * copies)
        self._imagined.copy_rows(batch, np.repeat(np.arange(batch.size), copies))
        return self._imagined

    def _play_out(self, imagined: BattleBatch, actions: Ints) -> Floats:
        """Plays all rows to their end, first with these actions, then as the script does; returns what each paid."""
        agents = imagined._army.agents
        returns, is_over = np.zeros(imagined.size), np.zeros(imagined.size, dtype=bool)
        while not is_over.all():
            reward, is_ended = imagined.step_unobserved(actions)
            is_ending: Bools = is_ended & ~is_over
            remaining = (imagined.health + imagined.shield)[:agents].sum(0)
            returns += np.where(is_over, 0.0, reward) + np.where(is_ending, _TIE_SHARE * remaining, 0.0)
            is_over |= is_ended
            actions = self._world.expert(imagined)
        return returns
