"""ALFWorld (Shridhar et al. 2021) played by alfworld's own engine, over a folder of its games.

`household` plays the same games about a hundred times faster with the same texts; this world is for comparisons
with the engine behind published results. The tasks, splits and expert are those of
`HouseholdWorld(games=FOLDER)`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply, check_task, score_if_won
from evolvent.worlds.extras.textworld import LOCK
from evolvent.worlds.extras.wrapped import Extra, WrappedWorld, clean_command, common_problems
from evolvent.worlds.household.collection import Collection
from evolvent.worlds.household.plans import explore
from evolvent.worlds.household.text import DIALECTS, Speaker
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

__all__ = ["AlfWorld"]

ALFWORLD = Extra("alfworld", "alfworld", "ALFWorld's own engine")
_MAX_ACTION_LENGTH = 200  # characters of an action
_NOTHING = "Nothing happens."
_BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"  # agents are not shown it
_NEW_WORDING_VERSION = (0, 4)  # since this version an object is moved to, before it was put in/on


class AlfWorld(WrappedWorld):
    """ALFWorld played by the alfworld package.

    Args:
        games: a folder with `game.tw-pddl` files at any depth, such as alfworld-download makes.
        horizon: maximum number of actions of an episode; 30 is AgentGym's, 50 alfworld's.
        sizes: maximum number of tasks of each split (None: all tasks).
        penalty: the reward of an invalid or impossible action.

    Raises:
        ConfigError: the folder has no games, or the horizon or penalty is invalid.
        MissingExtra: alfworld is not installed.
    """

    name = "alfworld-engine"

    def __init__(
        self, games: str | Path, *, horizon: int = 30, sizes: Sizes | None = None, penalty: float = 0.0
    ) -> None:
        problems = common_problems(horizon=horizon, penalty=penalty)
        if problems:
            raise ConfigError(problems)
        super().__init__(ALFWORLD, sizes=sizes, penalty=penalty)
        dialect = DIALECTS["0.4" if _parse_release(self.version) >= _NEW_WORDING_VERSION else "0.3"]
        self.collection = Collection(games, (self.name, self.version), dialect=dialect.name, sizes=sizes)
        self.dialect, self.tiers, self.horizon = dialect, self.collection.tiers, horizon
        self.instructions = HouseholdWorld(dialect.name).instructions
        self.reward_range = (min(0.0, penalty), 1.0)
        self.engines = _EnginePool()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the games of a split and tier; broken files are left out (see `collection.broken`)."""
        return self.collection.tasks(split, tier)

    def _open_session(self, task: Task) -> _GameSession:
        self.collection.load_game(task)
        return _GameSession(self.engines, self.collection.folder / str(task.spec["game"]))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the plan of `explore`, which searches for objects, as texts; None if it exceeds the horizon."""
        check_task(self, task)
        speaker = Speaker(self.collection.load_game(task), self.dialect)
        plan = explore(speaker.game)
        return (
            [speaker.render_action(action) for action in plan]
            if plan is not None and len(plan) <= self.horizon
            else None
        )

    def close(self) -> None:
        """Releases the engines that no episode uses."""
        self.engines.close()


def _parse_release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class _EnginePool:
    """Engines that wait for their next game. Each holds a copy of the planner's library, which is never freed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Any] = []

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> Any:
        with self._lock:
            if self._free:
                return self._free.pop()
        textworld = ALFWORLD.load_module("textworld")
        wrapper = ALFWORLD.load_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        pddl = ALFWORLD.load_module("textworld.envs.pddl").PddlEnv
        return wrapper(pddl(textworld.EnvInfos(won=True, admissible_commands=True)))

    def give(self, engine: Any) -> None:
        with self._lock:
            self._free.append(engine)

    def close(self) -> None:
        with self._lock:
            self._free.clear()


class _GameSession:
    """An episode of a game."""

    def __init__(self, engines: _EnginePool, file: Path) -> None:
        self._engines, self._file = engines, file
        self._engine: Any = None
        self._admissible: tuple[str, ...] = ()

    def begin(self) -> tuple[str, Info]:
        with LOCK:
            if self._engine is None:
                engine = self._engines.take()
                engine.load(str(self._file))
                self._engine = engine  # one that cannot load a game is not used again
            state = self._engine.reset()
        self._admissible = tuple(state.admissible_commands)
        return str(state.feedback).removeprefix(_BANNER), {"admissible": self._admissible, "won": False}

    def act(self, action: str) -> Reply:
        line = clean_command(action.lower(), max_length=_MAX_ACTION_LENGTH)
        if line is None:
            info = {"admissible": self._admissible, "won": False, "invalid": True}
            return _NOTHING, 0.0, False, False, info
        engine, self._engine = self._engine, None  # one that fails is not used again
        with LOCK:
            state, _, done = engine.step(line)
        self._engine = engine
        won = bool(state.won)
        possible, self._admissible = line in self._admissible, tuple(state.admissible_commands)
        step_info = {"admissible": self._admissible, "won": won, **({} if possible else {"invalid": True})}
        return str(state.feedback), float(won), bool(done or won), False, step_info

    def close(self) -> None:
        if self._engine is not None:
            self._engines.give(self._engine)
        self._engine = None
