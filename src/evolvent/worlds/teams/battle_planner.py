"""A planner of battles: it plays what the team could do now to the end, and does what ends best.

After its first step every choice goes on as the script plays (`BattleWorld.expert`), so that the planner is one step
of policy improvement over it: a rollout algorithm (Tesauro and Galperin 1996, "On-line Policy Improvement using
Monte-Carlo Search"). The script's own action is among the choices and battles have no chance in them, so no battle
pays less than the script's.
"""

from __future__ import annotations

import numpy as np

from evolvent.worlds.teams.battle import ATTACK, STOP, BattleBatch, BattleWorld, Floats, Ints

__all__ = ["BattlePlanner"]

_EQUAL_RETURN = 1e-9  # returns that differ by less are equal


class BattlePlanner:
    """Plans the actions of a team that knows the state and the rules of its world.

    The choices of a step: what the script does; all attack one enemy; one agent steps back; all step back, come closer
    or stop. Whoever cannot follow a choice does what the script says. Of choices that pay alike, as all victories do,
    the planner takes the one that leaves the most health and shields. A step of E rows plays `E * K` battles to their
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
        outcomes = self._play_out(imagined, choices.reshape(-1, agents))
        returns, remaining = (outcome.reshape(num_rows, num_choices) for outcome in outcomes)
        is_best = returns >= returns.max(1, keepdims=True) - _EQUAL_RETURN
        best = np.where(is_best, remaining, -1.0).argmax(1)
        actions: Ints = choices[np.arange(num_rows), best]
        return actions

    def _list_choices(self, batch: BattleBatch) -> Ints:
        """Returns the choices `[E, K, n]`; the first is the script's."""
        army, agents = batch._army, batch._army.agents
        script, available = self._world.expert(batch), batch.available()
        closer, back = batch.moves_by_enemies()
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

    def _play_out(self, imagined: BattleBatch, actions: Ints) -> tuple[Floats, Floats]:
        """Plays all rows to their end, first with these actions, then as the script does.

        Returns:
            (what each row paid, health and shields that its team had left), `[E]` each.
        """
        agents = imagined._army.agents
        returns, remaining = np.zeros(imagined.size), np.zeros(imagined.size)
        is_over = np.zeros(imagined.size, dtype=bool)
        while not is_over.all():
            reward, is_ended = imagined.step_unobserved(actions)
            strength = (imagined.health + imagined.shield)[:agents].sum(0)
            returns += np.where(is_over, 0.0, reward)
            remaining = np.where(is_over, remaining, strength)
            is_over |= is_ended
            actions = self._world.expert(imagined)
        return returns, remaining
