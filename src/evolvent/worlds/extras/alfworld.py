"""ALFWorld (Shridhar et al. 2021) as alfworld's own engine plays it, over a folder of its games.

`household` plays the same games some hundred times faster and in the same words; this is for those who need the engine
that published results come from. The tasks, splits and the expert are those of `HouseholdWorld(games=FOLDER)`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply, check_task, score_won
from evolvent.worlds.extras.textworld import TURN
from evolvent.worlds.extras.wrapped import Extra, Wrapped, common_problems, one_line
from evolvent.worlds.household.collection import Collection
from evolvent.worlds.household.plans import explore
from evolvent.worlds.household.text import DIALECTS, Speaker
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

__all__ = ["AlfWorld"]

ALFWORLD = Extra("alfworld", "alfworld", "ALFWorld's own engine")
_LONGEST = 200  # characters of an action
_NOTHING = "Nothing happens."
_BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"  # agents are not shown it
_WORDED_NEWLY = (0, 4)  # since this version an object is moved to, before it was put in/on


class AlfWorld(Wrapped):
    """ALFWorld by alfworld.

    Args:
        games: a folder with `game.tw-pddl` files at any depth, such as alfworld-download makes.
        horizon: how many actions an episode may take; 30 is AgentGym's, 50 alfworld's.
        sizes: at most so many tasks of each split (None: all of them).
        penalty: the reward of an action that is none or impossible.

    Raises:
        ConfigError: a folder without games, a horizon or a penalty that is none.
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
        dialect = DIALECTS["0.4" if _release(self.version) >= _WORDED_NEWLY else "0.3"]
        self.collection = Collection(games, (self.name, self.version), dialect=dialect.name, sizes=sizes)
        self.dialect, self.tiers, self.horizon = dialect, self.collection.tiers, horizon
        self.instructions = HouseholdWorld(dialect.name).instructions
        self.reward_range = (min(0.0, penalty), 1.0)
        self.engines = _Engines()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The games of a split and tier; broken files are left out (see `collection.broken`)."""
        return self.collection.tasks(split, tier)

    def _open(self, task: Task) -> _Room:
        self.collection.game(task)
        return _Room(self.engines, self.collection.folder / str(task.spec["game"]))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """A way to the goal that looks for things, as our household's; None if the horizon is too short."""
        check_task(self, task)
        speaker = Speaker(self.collection.game(task), self.dialect)
        found = explore(speaker.game)
        return [speaker.say(action) for action in found] if found is not None and len(found) <= self.horizon else None

    def close(self) -> None:
        """Let the engines go that no episode uses."""
        self.engines.close()


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class _Engines:
    """Engines that wait for their next game. Each holds a copy of the planner's library, which is never given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Any] = []

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> Any:
        with self._lock:
            if self._free:
                return self._free.pop()
        textworld = ALFWORLD.module("textworld")
        wrapper = ALFWORLD.module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        pddl = ALFWORLD.module("textworld.envs.pddl").PddlEnv
        return wrapper(pddl(textworld.EnvInfos(won=True, admissible_commands=True)))

    def give(self, engine: Any) -> None:
        with self._lock:
            self._free.append(engine)

    def close(self) -> None:
        with self._lock:
            self._free.clear()


class _Room:
    """An episode of a game."""

    def __init__(self, engines: _Engines, file: Path) -> None:
        self._engines, self._file = engines, file
        self._engine: Any = None
        self._admissible: tuple[str, ...] = ()

    def begin(self) -> tuple[str, Info]:
        with TURN:
            if self._engine is None:
                engine = self._engines.take()
                engine.load(str(self._file))
                self._engine = engine  # one that cannot load a game is not used again
            state = self._engine.reset()
        self._admissible = tuple(state.admissible_commands)
        return str(state.feedback).removeprefix(_BANNER), {"admissible": self._admissible, "won": False}

    def act(self, action: str) -> Reply:
        line = one_line(action.lower(), most=_LONGEST)
        if line is None:
            info = {"admissible": self._admissible, "won": False, "invalid": True}
            return _NOTHING, 0.0, False, False, info
        engine, self._engine = self._engine, None  # one that fails is not used again
        with TURN:
            state, _, done = engine.step(line)
        self._engine = engine
        won = bool(state.won)
        possible, self._admissible = line in self._admissible, tuple(state.admissible_commands)
        said = {"admissible": self._admissible, "won": won, **({} if possible else {"invalid": True})}
        return str(state.feedback), float(won), bool(done or won), False, said

    def close(self) -> None:
        if self._engine is not None:
            self._engines.give(self._engine)
        self._engine = None
