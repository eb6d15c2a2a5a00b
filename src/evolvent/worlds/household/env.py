"""One episode in a household: the Env of a game in a dialect."""

from __future__ import annotations

from typing import NamedTuple

from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, StateEnv
from evolvent.worlds.household.game import FAMILIES, State
from evolvent.worlds.household.rules import apply_action, is_possible, is_won
from evolvent.worlds.household.text import NOTHING, Speaker

__all__ = ["HouseholdEnv"]


class _View(NamedTuple):
    """A state of the household, and the texts of the actions that are possible in it."""

    state: State
    admissible: tuple[str, ...]


class HouseholdEnv(StateEnv[_View]):
    """One episode. It forks by keeping the state, which never changes but is replaced.

    `info` holds `admissible` (the possible actions, sorted) and `won`; at the start also `task_type`, ALFWorld's
    name of the family. The answer to an impossible or invalid action is `Nothing happens.`, as in ALFWorld, whose
    policies know that sentence; `info["expected"]` states the expected form.
    """

    def __init__(self, task: Task, speaker: Speaker, *, penalty: float) -> None:
        super().__init__(task, _View(speaker.game.start, speaker.list_actions(speaker.game.start)))
        self._speaker, self._penalty = speaker, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        task_type = FAMILIES[self._speaker.game.goal.family].task_type
        return self._speaker.first_observation, {
            "admissible": self._start.admissible,
            "won": False,
            "task_type": task_type,
        }

    def _transition(self, state: _View, action: Value) -> tuple[_View, Reply]:
        speaker, game = self._speaker, self._speaker.game
        parsed_action = speaker.parse_action(str(action))
        if parsed_action is None or not is_possible(game, state.state, parsed_action):
            expected = "an action of the list" if parsed_action is None else "an action that is possible now"
            info = {"admissible": state.admissible, "won": False, "invalid": True, "expected": expected}
            return state, (NOTHING, self._penalty, False, False, info)
        next_state = apply_action(game, state.state, parsed_action)
        won = False
        if next_state is not state.state:
            state = _View(next_state, speaker.list_actions(next_state))
            won = is_won(game, next_state)
        text = speaker.describe_result(next_state, parsed_action)
        return state, (text, float(won), won, False, {"admissible": state.admissible, "won": won})
