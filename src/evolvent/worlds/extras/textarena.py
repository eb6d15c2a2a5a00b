"""The single-player games of TextArena (Guertler et al. 2025); a task is a game's name and a seed.

The package seeds and draws from generators that the whole process shares. Here every episode has its own
generators, put in place while the package is called, so that episodes disturb neither each other nor the
program around them. Games that fetch word lists or query another model are refused unless they are allowed.
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

from evolvent.errors import ConfigError, EnvLost, Problem, boundary, unknown_name_problem
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply
from evolvent.worlds.extras.wrapped import (
    Extra,
    WrappedWorld,
    common_problems,
    make_candidate,
    read_number,
    redirect_prints,
    widen_sizes,
)
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

_MAX_ACTION_LENGTH = 4000  # characters of an action
_NETWORK_MARKS = ("nltk", "OpenRouter", "OpenAI", "word_lists", "urlopen", "requests")  # in the source of a game
_INVALID = "You attempted an invalid move"
_UNREADABLE = "The game could not read this action; write it as the game's rules say, in square brackets."
_ACTION_LIST = re.compile(r"Available [Aa]ctions?: ((?:\[[^\]]+\],? ?)+)")
# What a game that does not check a text may raise over it: the agent's mistake, and answered as one.
_ACTION_ERRORS = (ValueError, IndexError, KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError)
_LOCK = threading.RLock()


class TextArena(WrappedWorld):
    """Games for one player.

    The reward comes with the last action: 1 for a won game, for many games the solved share, 0 or -1 for a lost
    game.

    Args:
        games: names as TextArena has them, such as "Sudoku-v0-easy"; None: `SOLO`.
        horizon: maximum number of actions of an episode; games have their own limits too.
        downloads: whether to play games that fetch word lists or query a model over the network.
        sizes: the panel sizes; the games take turns.
        penalty: the reward of an action that breaks a game's rules, added to the game's own reward.

    Raises:
        ConfigError: no games, invalid names, or an invalid horizon or penalty.
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
            problems.append(Problem("games", f"got {list(names)!r}, expected different names such as FrozenLake-v0"))
        if problems:
            raise ConfigError(problems)
        self.games, self.horizon, self.downloads = names, horizon, downloads
        self.reward_range = (-1.0 + min(0.0, penalty), 1.0)
        super().__init__(TEXTARENA, sizes=widen_sizes(sizes, len(names)), penalty=penalty)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for seed in count():
            for game in self.games:
                yield make_candidate({"game": game, "seed": seed}, game)

    def _open_session(self, task: Task) -> _GameSession:
        seed = read_number(task.spec, "seed", names=("game", "seed"))
        return _GameSession(str(task.spec["game"]), seed, downloads=self.downloads)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the sum of the rewards; unit = the largest reward, clipped to 0..1; success =
        full marks.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        best_reward = max(known_rewards, default=0.0)
        return Score(math.fsum(known_rewards), min(1.0, max(0.0, best_reward)), best_reward >= 1.0 - 1e-9)


class _EpisodeRandomness:
    """Random generators of one episode that replace the process-wide ones of Python and numpy."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with _LOCK:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


class _GameSession:
    """An episode of a game without the package's wrappers: observations hold new messages only."""

    def __init__(self, game: str, seed: int, *, downloads: bool) -> None:
        self._game, self._seed, self._downloads = game, seed, downloads
        self._env: Any = None
        self._listed: tuple[str, ...] = ()

    def begin(self) -> tuple[str, Info]:
        self._chance = _EpisodeRandomness(self._seed)
        self._listed = ()
        with self._chance():
            self._env = _make_game(self._game, downloads=self._downloads)
            self._env.reset(num_players=1, seed=self._seed)
            text = self._new_messages()
        return text, self._info()

    def act(self, action: str) -> Reply:
        text = " ".join(action[:_MAX_ACTION_LENGTH].encode("utf-8", "replace").decode().split())
        if "[" not in text and "]" not in text:
            text = f"[{text}]"
        env = self._env
        with self._chance():
            try:
                done, _ = env.step(text)
            except _ACTION_ERRORS as error:
                log.debug("%s raised over an action: %r", self._game, error)
                return _UNREADABLE, 0.0, False, False, {**self._info(), "invalid": True}
            observation = self._new_messages()
            rewards, closing_info = env.close() if done else ({}, {})
        invalid = _INVALID in observation or bool(closing_info.get(0, {}).get("invalid_move"))
        if done and closing_info.get(0, {}).get("reason"):
            observation = f"{observation}\n{closing_info[0]['reason']}".strip()
        info = {**self._info(), "invalid": True} if invalid else self._info()
        return observation, _to_reward((rewards or {}).get(0)), bool(done), False, info

    def _new_messages(self) -> str:
        """Returns the game's messages since the last action, without the action itself."""
        _, messages = self._env.get_observation()
        game_messages = [str(message) for sender, message, _ in messages if sender == -1]
        text = "\n".join(game_messages).strip()
        action_lists = _ACTION_LIST.findall(text)
        if action_lists:
            self._listed = tuple(re.findall(r"\[[^\]]+\]", action_lists[-1]))
        return text

    def _info(self) -> dict[str, object]:
        return {"admissible": self._listed} if self._listed else {}

    def close(self) -> None:
        self._env = None


def _to_reward(value: object) -> float:
    """Converts a value to a reward in [-1, 1]; one game returns a sentence instead of a number, which counts as 0."""
    is_number = isinstance(value, (int, float, np.floating, np.integer)) and math.isfinite(value)
    return min(1.0, max(-1.0, float(value))) if is_number else 0.0  # type: ignore[arg-type]


def _make_game(game: str, *, downloads: bool) -> Any:
    """Creates the package's game without wrappers.

    Raises:
        ConfigError: the game is unknown, not for one player, or needs the network and may not use it.
        EnvLost: the package cannot load the game.
    """
    package = TEXTARENA.load_module("textarena")
    registry = TEXTARENA.load_module("textarena.envs.registration").ENV_REGISTRY
    if game not in registry:
        names = [name for name in registry if not name.endswith(("-raw", "-train"))]
        raise ConfigError([unknown_name_problem("game", game, names)])
    module = str(registry[game].entry_point).split(":")[0]
    folder = Path(str(package.__file__)).parent.joinpath(*module.split(".")[1:-1])
    source = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))
    if not downloads and any(word in source for word in _NETWORK_MARKS):
        raise ConfigError(
            f"the game {game} fetches word lists or asks a model over the network",
            hint="set downloads=True to allow it",
        )
    if "SinglePlayerState" not in source:
        raise ConfigError(f"the game {game} needs several players", hint="choose a single-player game")
    with boundary(EnvLost, f"TextArena cannot load the game {game}"):
        env = package.make(game)
    while isinstance(env, package.Wrapper):
        env = env.env
    redirect_prints(module.rpartition(".")[0])
    return env
