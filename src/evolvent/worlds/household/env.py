"""One episode in a household: the Env of a game in a dialect."""

from __future__ import annotations

from dataclasses import dataclass

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, check_snapshot
from evolvent.worlds.household.game import FAMILIES, State
from evolvent.worlds.household.rules import apply_action, is_possible, is_won
from evolvent.worlds.household.text import NOTHING, Speaker

__all__ = ["HouseholdEnv"]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot: whether the episode runs, and the state."""

    task: str
    running: bool
    state: State


class HouseholdEnv:
    """One episode. It forks by keeping the state, which never changes but is replaced.

    `info` holds `admissible` (the possible actions, sorted) and `won`; at the start also `task_type`, ALFWorld's
    name of the family. The answer to an impossible or invalid action is `Nothing happens.`, as in ALFWorld, whose
    policies know that sentence; `info["expected"]` states the expected form.
    """

    def __init__(self, task: Task, speaker: Speaker, *, penalty: float) -> None:
        self._task, self._speaker, self._penalty = task, speaker, penalty
        self._state = speaker.game.start
        self._admissible: tuple[str, ...] = ()
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        game = self._speaker.game
        self._state, self._running = game.start, True
        self._admissible = self._speaker.list_actions(self._state)
        task_type = FAMILIES[game.goal.family].task_type
        return self._speaker.first_observation, {"admissible": self._admissible, "won": False, "task_type": task_type}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        speaker, game = self._speaker, self._speaker.game
        parsed_action = speaker.parse_action(str(action))
        if parsed_action is None or not is_possible(game, self._state, parsed_action):
            expected = "an action of the list" if parsed_action is None else "an action that is possible now"
            info = {"admissible": self._admissible, "won": False, "invalid": True, "expected": expected}
            return NOTHING, self._penalty, False, False, info
        previous_state, self._state = self._state, apply_action(game, self._state, parsed_action)
        won = False
        if self._state is not previous_state:
            self._admissible = speaker.list_actions(self._state)
            won = is_won(game, self._state)
            self._running = not won
        text = speaker.describe_result(self._state, parsed_action)
        return text, float(won), won, False, {"admissible": self._admissible, "won": won}

    def snapshot(self) -> object:
        return _Snapshot(self._task.id, self._running, self._state)

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        snapshot = check_snapshot(value, _Snapshot, self._task)
        self._running, self._state = snapshot.running, snapshot.state
        self._admissible = self._speaker.list_actions(self._state)

    def close(self) -> None:
        self._running = False
