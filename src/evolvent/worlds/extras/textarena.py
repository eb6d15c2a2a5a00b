"""The games for one player of TextArena (Guertler et al. 2025), each a task by its name and a seed.

The package seeds and draws from the generators that a whole process shares. Here every episode has generators of its
own, put in place while the package is called, so that episodes neither disturb one another nor the program around them.
Games that fetch word lists or ask another model are refused unless they are allowed to.
"""

from __future__ import annotations

import logging
import math
import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, EnvLost, Problem, boundary, unknown
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply
from evolvent.worlds.extras.wrapped import Extra, Wrapped, common_problems, indexed, quieted, read_number, widened
from evolvent.worlds.panel import Candidate, Sizes

__all__ = ["SOLO", "TextArena"]

log = logging.getLogger(__name__)
TEXTARENA = Extra("textarena", "textarena", "games by TextArena")
SOLO: tuple[str, ...] = (
    "2048-v0-easy",
    "Bandit-v0",
    "Blackjack-v0",
    "Countdown-v0",
    "Cryptarithm-v0",
    "FifteenPuzzle-v0",
    "FrozenLake-v0",
    "GuessTheNumber-v0",
    "LightsOut-v0",
    "LogicPuzzle-v0",
    "Mastermind-v0",
    "Minesweeper-v0",
    "PegJump-v0",
    "RushHour-v0",
    "Secretary-v0",
    "Set-v0",
    "Slitherlink-v0",
    "Sokoban-v0",
    "Sudoku-v0",
    "ThreeCardMonte-v0",
    "TowerOfHanoi-v0",
)
"""Games for one player that need nothing but the package."""

_LONGEST = 4000  # characters of an action
_REACHES_OUT = ("nltk", "OpenRouter", "OpenAI", "word_lists", "urlopen", "requests")  # in the source of a game
_INVALID = "You attempted an invalid move"
_UNREAD = "The game could not read this action; write it as the game's rules say, in square brackets."
_LISTED = re.compile(r"Available [Aa]ctions?: ((?:\[[^\]]+\],? ?)+)")
# What a game that does not check a text may raise over it: the agent's mistake, and answered as one.
_OVER_TEXT = (ValueError, IndexError, KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError)
_TURN = threading.RLock()


class TextArena(Wrapped):
    """Games for one player.

    The reward comes with the last action: 1 for a game that is won, for many games the share that was solved, 0 or -1
    for one that is lost.

    Args:
        games: names as TextArena has them, such as "Sudoku-v0-easy"; None: `SOLO`.
        horizon: how many actions an episode may take; games have limits of their own.
        downloads: whether games may be played that fetch word lists or ask a model over the network.
        sizes: how many tasks the panels hold, one of each game in turn.
        penalty: the reward of an action that breaks a game's rules, on top of the game's own answer.

    Raises:
        ConfigError: no games, names that are none, a horizon or a penalty that is none.
        MissingExtra: textarena is not installed.
    """

    name = "textarena"
    instructions = (
        "Play the game by the rules that you are told first. Give one action at a time, in square brackets where the "
        "rules say so."
    )

    def __init__(
        self,
        games: str | Sequence[str] | None = None,
        *,
        horizon: int = 50,
        downloads: bool = False,
        sizes: Sizes | None = None,
        penalty: float = 0.0,
    ) -> None:
        names = SOLO if games is None else (games,) if isinstance(games, str) else tuple(games)
        problems = common_problems(horizon=horizon, penalty=penalty)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            problems.append(Problem("games", f"{list(names)!r}", "give different names, such as FrozenLake-v0"))
        if problems:
            raise ConfigError(problems)
        self.games, self.horizon, self.downloads = names, horizon, downloads
        self.reward_range = (-1.0 + min(0.0, penalty), 1.0)
        super().__init__(TEXTARENA, sizes=widened(sizes, len(names)), penalty=penalty)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for seed in count():
            for game in self.games:
                yield indexed({"game": game, "seed": seed}, game)

    def _open(self, task: Task) -> _Play:
        seed = read_number(task.spec, "seed", names=("game", "seed"))
        return _Play(str(task.spec["game"]), seed, downloads=self.downloads)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """raw = the sum of the rewards; unit = the game's last word within 0 to 1; success = full marks."""
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        best = max(known, default=0.0)
        return Score(math.fsum(known), min(1.0, max(0.0, best)), best >= 1.0 - 1e-9)


class _Chance:
    """Random generators of one episode in place of those that a process shares: Python's and numpy's."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with _TURN:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


class _Play:
    """An episode of a game, without the package's wrappers: what is new is told, not everything again."""

    def __init__(self, game: str, seed: int, *, downloads: bool) -> None:
        self._game, self._seed, self._downloads = game, seed, downloads
        self._env: Any = None
        self._listed: tuple[str, ...] = ()

    def begin(self) -> tuple[str, Info]:
        self._chance = _Chance(self._seed)
        self._listed = ()
        with self._chance():
            self._env = _made(self._game, downloads=self._downloads)
            self._env.reset(num_players=1, seed=self._seed)
            text = self._news()
        return text, self._info()

    def act(self, action: str) -> Reply:
        text = " ".join(action[:_LONGEST].encode("utf-8", "replace").decode().split())
        if "[" not in text and "]" not in text:
            text = f"[{text}]"
        env = self._env
        with self._chance():
            try:
                done, _ = env.step(text)
            except _OVER_TEXT as error:
                log.debug("%s raised over an action: %r", self._game, error)
                return _UNREAD, 0.0, False, False, {**self._info(), "invalid": True}
            seen = self._news()
            rewards, about = env.close() if done else ({}, {})
        invalid = _INVALID in seen or bool(about.get(0, {}).get("invalid_move"))
        if done and about.get(0, {}).get("reason"):
            seen = f"{seen}\n{about[0]['reason']}".strip()
        info = {**self._info(), "invalid": True} if invalid else self._info()
        return seen, _number((rewards or {}).get(0)), bool(done), False, info

    def _news(self) -> str:
        """What the game said since the last action, without the action itself."""
        _, messages = self._env.get_observation()
        said = [str(message) for sender, message, _ in messages if sender == -1]
        text = "\n".join(said).strip()
        listed = _LISTED.findall(text)
        if listed:
            self._listed = tuple(re.findall(r"\[[^\]]+\]", listed[-1]))
        return text

    def _info(self) -> dict[str, object]:
        return {"admissible": self._listed} if self._listed else {}

    def close(self) -> None:
        self._env = None


def _number(value: object) -> float:
    """A reward; one game has a sentence where the number should be."""
    known = isinstance(value, (int, float, np.floating, np.integer)) and math.isfinite(value)
    return min(1.0, max(-1.0, float(value))) if known else 0.0  # type: ignore[arg-type]


def _made(game: str, *, downloads: bool) -> Any:
    """The package's game itself.

    Raises:
        ConfigError: there is no such game, it is not for one player, or it needs the network and may not use it.
        EnvLost: the package cannot load it.
    """
    package = TEXTARENA.module("textarena")
    registry = TEXTARENA.module("textarena.envs.registration").ENV_REGISTRY
    if game not in registry:
        plain = [name for name in registry if not name.endswith(("-raw", "-train"))]
        raise ConfigError([unknown("game", game, plain)])
    module = str(registry[game].entry_point).split(":")[0]
    folder = Path(str(package.__file__)).parent.joinpath(*module.split(".")[1:-1])
    source = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))
    if not downloads and any(word in source for word in _REACHES_OUT):
        raise ConfigError(
            f"the game {game} fetches word lists or asks a model over the network", hint="allow it with downloads=True"
        )
    if "SinglePlayerState" not in source:
        raise ConfigError(f"the game {game} is for several players", hint="choose one for a single player")
    with boundary(EnvLost, f"TextArena cannot load the game {game}"):
        env = package.make(game)
    while isinstance(env, package.Wrapper):
        env = env.env
    quieted(module.rpartition(".")[0])
    return env
