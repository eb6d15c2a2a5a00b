"""The single-player games of TextArena (Guertler et al. 2025); a task is a game's name and a seed.

The package seeds and draws from generators that the whole process shares. Here every episode has its own
generators, put in place while the package is called, so that episodes disturb neither each other nor the
program around them. Games that fetch word lists or query another model are refused unless they are allowed.

A few games of the package pay something else than their rules say; their rewards are corrected here, each with the
line of textarena 0.7.4 that is corrected. `benchmarks/package_tasks.py` plays every game well, badly and not at all.
"""

from __future__ import annotations

import logging
import math
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
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
    "2048-v0-mega-easy",
    "Bandit-v0",
    "Blackjack-v0",
    "Countdown-v0",
    "Cryptarithm-v0",
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
"""Games for one player that need nothing but the package and can be won within the default horizon.

Left out: FifteenPuzzle-v0, because it shuffles without regard to parity, so that half of its boards have no solution
(textarena 0.7.4, FifteenPuzzle/env.py, line 50), and most others need more than 50 moves; the larger goals of 2048,
because 50 moves add about 110 to the board; Klondike-v0 and UltimateTexasHoldem-v0, because Python cannot read their
source (Klondike/env.py, line 119, and UltimateTexasHoldem/env.py, line 229, before Python 3.12).
"""

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
    game. A share may be above 0 from the start: of Countdown it is the distance to the target, of Slitherlink the clues
    of 0. Only a won game pays 1.

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
            _correct_game(self._env)
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
        reward = _to_reward(env, (rewards or {}).get(0)) if done else 0.0
        return observation, reward, bool(done), False, info

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


def _correct_game(game: Any) -> None:
    """Corrects the calls between a game and its state, and the cards that Set takes."""
    state = game.state
    mark_invalid = state.set_invalid_move

    def set_invalid_move(reason: Any = None, reward: Any = -1.0) -> None:
        # Four games pass the reward where the reason belongs: Countdown/env.py, line 48, Cryptarithm/env.py, line 36,
        # Slitherlink/env.py, line 104, and ThreeCardMonte/env.py, line 43 (textarena 0.7.4).
        if isinstance(reward, str):
            reason, reward = reward, reason
        mark_invalid(reason, reward)

    state.set_invalid_move = set_invalid_move
    if not hasattr(state, "set_winners"):
        # A solved FifteenPuzzle calls what only states of several players have (FifteenPuzzle/env.py, line 84).
        state.set_winners = lambda player_ids, reason: state.set_outcome(1.0, reason)
    if type(game).__name__ == "SetEnv":
        parse_cards = game._parse_action

        def parse_different_cards(action: str) -> Any:
            # The same card three times counts as a set (Set/env.py, line 20), so that [1, 1, 1] always scores.
            cards = parse_cards(action)
            return cards if cards and len(set(cards)) == len(cards) else None

        game._parse_action = parse_different_cards


def _pay_bandit(game: Any, value: float) -> float:
    """Pays 1 less the regret: the package pays the regret, also for the best button (Bandit/env.py, lines 44 to 45)."""
    is_regret = value < 1.0 and not game.state.game_info[0]["invalid_move"]
    return 1.0 - value if is_regret else value


def _pay_set(game: Any, value: float) -> float:
    """Pays the share of the turns that found a set: the package pays their number (Set/env.py, line 142).

    A set can be dealt in each of the 20 turns, because 21 cards always hold one and at least 24 are left.
    """
    return value / float(game.state.max_turns)


def _pay_slitherlink(game: Any, value: float) -> float:
    """Pays less than 1 without the loop: the package pays 1 for clues that are met by no loop (Slitherlink/env.py,
    line 145). The loop counts as one more clue then.
    """
    clues = sum(clue is not None for row in game.clues for clue in row)
    return value if value < 1.0 or game._is_solved() else clues / (clues + 1)


def _pay_cryptarithm(game: Any, value: float) -> float:
    """Pays the share of the letters with the digit of a solution: the package counts every digit, right or wrong, and
    pays 0 for all letters but one more (Cryptarithm/env.py, lines 55 to 64).
    """
    if len(game.mapping) == len(game.letters):
        return value
    solutions = _solve_cryptarithm(game.equation_raw)
    right = max(
        (sum(solution[letter] == game.mapping.get(letter) for letter in solution) for solution in solutions), default=0
    )
    return right / len(game.letters)


_PAYMENTS: Mapping[str, Callable[[Any, float], float]] = {
    "BanditEnv": _pay_bandit,
    "SetEnv": _pay_set,
    "SlitherlinkEnv": _pay_slitherlink,
    "CryptarithmEnv": _pay_cryptarithm,
}
"""Corrected rewards, by the class of the package's game."""


@cache
def _solve_cryptarithm(equation: str) -> tuple[Mapping[str, int], ...]:
    """Finds all digits that make an equation such as SEND+MORE=MONEY right."""
    left, right = equation.split("=")
    weights: dict[str, int] = {}
    for sign, addends in ((1, left.split("+")), (-1, [right])):
        for word in addends:
            for power, letter in enumerate(reversed(word)):
                weights[letter] = weights.get(letter, 0) + sign * 10**power
    letters = sorted(weights, key=lambda letter: -abs(weights[letter]))
    leading = {word[0] for word in (*left.split("+"), right)}
    bounds = [9 * sum(abs(weights[letter]) for letter in letters[index:]) for index in range(len(letters) + 1)]
    solutions: list[Mapping[str, int]] = []

    def assign(digits: tuple[int, ...], total: int) -> None:
        if abs(total) > bounds[len(digits)]:
            return
        if len(digits) == len(letters):
            solutions.append(dict(zip(letters, digits, strict=True)))
            return
        letter = letters[len(digits)]
        for digit in range(letter in leading, 10):
            if digit not in digits:
                assign((*digits, digit), total + digit * weights[letter])

    assign((), 0)
    return tuple(solutions)


def _to_reward(game: Any, value: object) -> float:
    """Converts what a game pays to a reward in [-1, 1]; what is not a number counts as 0."""
    is_number = isinstance(value, (int, float, np.floating, np.integer)) and math.isfinite(value)
    paid = float(value) if is_number else 0.0  # type: ignore[arg-type]
    correct = _PAYMENTS.get(type(game).__name__)
    return min(1.0, max(-1.0, paid if correct is None else correct(game, paid)))


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
