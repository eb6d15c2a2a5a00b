"""One episode in a household: what an Env gives for a game in a dialect."""

from __future__ import annotations

from dataclasses import dataclass

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.household.game import FAMILIES, State
from evolvent.worlds.household.rules import apply, possible, won
from evolvent.worlds.household.text import NOTHING, Speaker

__all__ = ["HouseholdEnv"]


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and the state."""

    task: str
    running: bool
    state: State


class HouseholdEnv:
    """One episode. It forks by keeping the state, which never changes but is replaced.

    `info` holds `admissible` (the possible actions, sorted) and `won`; at the start also `task_type`, ALFWorld's name
    of the family. What is impossible or no action is answered `Nothing happens.`, as in ALFWorld, whose policies know
    that sentence; what was expected is in `info["expected"]`.
    """

    def __init__(self, task: Task, speaker: Speaker, *, penalty: float) -> None:
        self._task, self._speaker, self._penalty = task, speaker, penalty
        self._state = speaker.game.start
        self._admissible: tuple[str, ...] = ()
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        game = self._speaker.game
        self._state, self._running = game.start, True
        self._admissible = self._speaker.legal(self._state)
        task_type = FAMILIES[game.goal.family].task_type
        return self._speaker.first, {"admissible": self._admissible, "won": False, "task_type": task_type}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        speaker, game = self._speaker, self._speaker.game
        meant = speaker.understand(str(action))
        if meant is None or not possible(game, self._state, meant):
            expected = "an action of the list" if meant is None else "an action that is possible now"
            info = {"admissible": self._admissible, "won": False, "invalid": True, "expected": expected}
            return NOTHING, self._penalty, False, False, info
        before, self._state = self._state, apply(game, self._state, meant)
        done = False
        if self._state is not before:
            self._admissible = speaker.legal(self._state)
            done = won(game, self._state)
            self._running = not done
        text = speaker.answer(self._state, meant)
        return text, float(done), done, False, {"admissible": self._admissible, "won": done}

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._state)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._state = moment.running, moment.state
        self._admissible = self._speaker.legal(self._state)

    def close(self) -> None:
        self._running = False
