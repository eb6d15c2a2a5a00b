"""AgentGym's tasks that need no server: the same start, rules and texts, by the number that a client would send.

| environment | how the original's server finds a task | what plays it here |
|---|---|---|
| maze | the number of a start in LMRL-Gym's double-T maze | our map, the server's sentences |
| wordle | `random.Random(number)` draws from its list of words at each guess | the same draws over the user's list |
| sqlgym | the rows of BIRD, train before dev | `SqlWorld.from_bird` over the user's copy |
| alfworld | a game in its two lists (`mappings_train.json`, `mappings_test.json`) | our engine over the user's games |
| sciworld | ScienceWorld's tasks and variations, counted | the package scienceworld |

Source: WooooDyy/AgentGym, `agentenv-lmrlgym`, `-sqlgym`, `-alfworld`, `-sciworld` (the servers), and
abdulhaim/LMRL-Gym, `llm_rl_scripts/{maze,wordle}/env`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors
from evolvent.serve.agentgym.client import add_word_list
from evolvent.serve.agentgym.text import list_admissible
from evolvent.trajectory import Task
from evolvent.worlds.base import Info, Play, World
from evolvent.worlds.maze import DIRECTIONS, DOUBLE_T_GOAL, STARTS, double_t
from evolvent.worlds.wordle import marks_of

__all__ = ["Original", "describe_need", "open_original"]

# Levels and seeds of BabyAI are minigrid's, but the world minigrid has macros and sentences of its own, and of the 920
# maps that AgentGym's levels draw from the seeds 0 to 22, 29 differ between minigrid 2.3.1 and 3.2.0 (GoToObjS6,
# SynthLoc, SynthSeq).
_SERVER_REASONS: Mapping[str, str] = {
    "babyai": "the world minigrid has the same levels, but other sentences and, since minigrid 3, some other maps",
    "textcraft": "its numbers follow the order in which the server's file system lists the recipes",
    "webshop": "products and instructions are the server's, and the world shop has others",
    "webarena": "the sites are the server's, and the world site has others",
    "searchqa": "questions and documents are the server's",
    **dict.fromkeys(
        ("weather", "movie", "academia", "todo", "sheet"),
        "answers come from the server's services, and the world of that name invents its own",
    ),
}
"""Why tasks of an environment are played on its server alone."""


class Original(Protocol):
    """The tasks of one environment, by AgentGym's numbers."""

    def check(self, index: int) -> None:
        """Raises ConfigError where there is no task of this number."""
        ...

    def play(self, index: int) -> Play:
        """Plays an episode with the texts and rewards of the original's server."""
        ...

    def expert(self, index: int) -> Sequence[str] | None:
        """Returns actions that solve a task, None where they are not known."""
        ...


_SIDES = (("right", "to your right"), ("left", "to your left"), ("up", "above you"), ("down", "below you"))
_MAX_MOVES = 50


class _Maze:
    """LMRL-Gym's double-T maze, fully observed."""

    def check(self, index: int) -> None:
        if index >= len(STARTS):
            raise ConfigError("unknown start of the maze", value=index, expected=f"0 to {len(STARTS) - 1}")

    def play(self, index: int) -> Play:
        layout = double_t()
        cell, goal = layout.cell(*STARTS[index]), layout.cell(*DOUBLE_T_GOAL)
        notes: Info = {"admissible": [f"move {direction}" for direction in DIRECTIONS]}
        for _ in range(_MAX_MOVES):
            action = yield self._describe(cell), 0.0, notes
            verb, _, direction = action.partition(" ")
            is_move = verb == "move" and direction in DIRECTIONS
            notes = {"admissible": notes["admissible"]} if is_move else {**notes, "invalid": True}
            cell = layout.move(cell, direction) if is_move else cell
            if cell == goal:
                return "Success\n", 1.0
        yield self._describe(cell), 0.0, notes
        return "Failure\n", -1.0

    @staticmethod
    def _describe(cell: int) -> str:
        layout = double_t()
        closed = layout.walls(cell)
        walls = [description for side, description in _SIDES if side in closed]
        walls_text = f"There are walls {', '.join(walls)}." if len(walls) > 1 else f"There is a wall {walls[0]}."
        goal, position = (", ".join(map(str, pair)) for pair in (DOUBLE_T_GOAL, layout.position(cell)))
        return f"The goal is at position {goal}. Your current position is at position {position}. {walls_text}"

    def expert(self, index: int) -> Sequence[str]:
        layout = double_t()
        path = layout.path(layout.cell(*STARTS[index]), layout.cell(*DOUBLE_T_GOAL))
        return [f"move {direction}" for direction in path]


_LETTERS = 5
_TRIES = 6
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz")


class _Wordle:
    """LMRL-Gym's Wordle: each guess is marked by a word that is drawn anew among those that fit all marks so far.

    Args:
        word_list: the list in its order, which the draws depend on.
    """

    def __init__(self, word_list: Sequence[str]) -> None:
        self._words = tuple(word_list)
        self._known = frozenset(word_list)

    def check(self, index: int) -> None:
        """Accepts every number: it is the seed of the draws."""

    def play(self, index: int) -> Play:
        rng, candidates, reward = random.Random(index), list(self._words), 0.0
        notes: Info = {"admissible": [" ".join(word) for word in self._words]}
        text = add_word_list("Let's start Wordle!", self._words)
        for tries in range(_TRIES + 1):
            if reward or tries == _TRIES:
                break
            guess = (yield text, 0.0, notes).strip().replace(" ", "")
            is_word = len(guess) == _LETTERS and _ALPHABET.issuperset(guess) and guess in self._known
            notes = {"admissible": notes["admissible"], **({} if is_word else {"invalid": True})}
            text = "invalid word"
            if is_word:
                marks = marks_of(guess, rng.choice(candidates), rules="lmrl")
                candidates = [word for word in candidates if marks_of(guess, word, rules="lmrl") == marks]
                reward = float(candidates == [guess])
                text = f"{' '.join(marks)}\n"
        return text, reward, notes

    def expert(self, index: int) -> None:
        return None


class _Wrapped:
    """Tasks that a world of this library plays; its texts are changed to those of the original's server and client.

    Args:
        world: the world.
        find_task: returns the task of a number; raises ConfigError.
        first, later: change the first text and those after it.
    """

    def __init__(
        self,
        world: World,
        find_task: Callable[[int], Task],
        *,
        first: Callable[[str, Info], str],
        later: Callable[[str, Info], str] = lambda text, info: text,
    ) -> None:
        self._world, self._find_task, self._first, self._later = world, find_task, first, later

    def check(self, index: int) -> None:
        self._find_task(index)

    def play(self, index: int) -> Play:
        env = self._world.make(self._find_task(index))
        try:
            observation, info = env.reset()
            turn = self._first(str(observation), info), 0.0, _keep_notes(info)
            while True:
                action = yield turn
                observation, reward, terminated, truncated, info = env.step(action)
                turn = self._later(str(observation), info), reward, _keep_notes(info)
                if terminated or truncated:
                    return turn
        finally:
            env.close()

    def expert(self, index: int) -> Sequence[str] | None:
        return self._world.expert(self._find_task(index))


def _keep_notes(info: Info) -> Info:
    """Returns what agents and stores read of a world's info."""
    notes: Info = {"admissible": actions} if (actions := list_admissible(info)) else {}
    return {**notes, "invalid": True} if info.get("invalid") else notes


def open_original(environment: str, source: str, *, folder: Path) -> Original:
    """Opens the tasks of an environment that need no server.

    Args:
        environment: AgentGym's name.
        source: the file or folder that the environment's tasks are read from; empty where it needs none.
        folder: the folder of the released files, where the lists of ALFWorld's games may lie.
    Raises:
        ConfigError: the environment needs its server, or its source is missing or is not what it should be.
        MissingExtra: the package that plays it is not installed.
    """
    needed = describe_need(environment)
    if environment in _SERVER_REASONS:
        raise ConfigError([Problem(environment, f"needs {needed}", f"agentgym:{environment}@http://HOST:PORT#...")])
    openers: Mapping[str, Callable[[], Original]] = {
        "maze": _Maze,
        "sciworld": _open_sciworld,
        "wordle": lambda: _Wordle(_read_words(Path(source))),
        "sqlgym": lambda: _open_bird(source),
        "alfworld": lambda: _open_alfworld(Path(source), folder),
    }
    if bool(needed) != bool(source):
        message = f"needs {needed}" if needed else f"needs no source, got {source!r}"
        raise ConfigError([Problem(environment, message, f"agentgym:{environment}{'@PATH' if needed else ''}#...")])
    return openers[environment]()


_SOURCES: Mapping[str, str] = {
    "wordle": "LMRL-Gym's list of words (tweet_words.txt)",
    "sqlgym": "the folder of BIRD",
    "alfworld": "the folder of ALFWorld's games",
}


def describe_need(environment: str) -> str:
    """Returns what an environment's tasks are played with, empty where they need nothing but this library."""
    if environment in _SERVER_REASONS:
        return f"the address of AgentGym's server: {_SERVER_REASONS[environment]}"
    source = _SOURCES.get(environment, "")
    return f"{source}, or the address of AgentGym's server" if source else ""


def _read_words(path: Path) -> list[str]:
    """Reads a list as LMRL-Gym does: one word a line, words of other lengths are left out."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("wordle", f"cannot read the list {str(path)!r}: {error}")]) from error
    entries = [line for line in lines if len(line) == _LETTERS]
    if not entries:
        raise ConfigError([Problem("wordle", f"{path} holds no word of {_LETTERS} letters", "write one word a line")])
    return entries


def _open_bird(folder: str) -> Original:
    from evolvent.serve.agentgym.text import get_translator
    from evolvent.worlds.sql.world import SqlWorld

    world = SqlWorld.from_bird(folder, text="agentgym", compare="set", verify=False)
    translator = get_translator("sqlgym", world)
    return _Wrapped(
        world,
        world.task_at_index,
        first=lambda text, info: text,
        later=lambda text, info: translator.translate(text, info, action="", truncated=False),
    )


_MAPPING_FILES = ("mappings_train.json", "mappings_test.json")
_GAME_FOLDERS = ("train", "valid_train")  # of the games of either list
_PLACE = re.compile(r"\AYou arrive at loc .*?\. ", re.DOTALL)


def _open_alfworld(games: Path, folder: Path) -> Original:
    from evolvent.worlds.household.world import HouseholdWorld

    world = HouseholdWorld("0.3", games=games)
    paths = _read_mappings(games, folder)

    def find_task(index: int) -> Task:
        if index not in paths:
            raise ConfigError("unknown game of AgentGym's lists", value=index, expected=f"one of {len(paths)} numbers")
        for root in ("", "json_2.1.1/"):
            if (games / root / paths[index]).is_file():
                return world.task_of_game(f"{root}{paths[index]}")
        raise ConfigError(f"{games} lacks the game of task {index}", value=paths[index], hint="run alfworld-download")

    return _Wrapped(
        world,
        find_task,
        first=lambda text, info: (
            f"{text.replace(chr(10) * 2, chr(10))}\nAVAILABLE ACTIONS: {','.join(list_admissible(info))}"
        ),
        later=lambda text, info: _PLACE.sub("", text),
    )


def _read_mappings(games: Path, folder: Path) -> dict[int, str]:
    """Reads AgentGym's lists of games; returns the path of each game below ALFWorld's data by its number."""
    paths: dict[int, str] = {}
    for name, split in zip(_MAPPING_FILES, _GAME_FOLDERS, strict=True):
        file = next((root / name for root in (games, folder) if (root / name).is_file()), None)
        if file is None:
            continue
        with disk_errors(file):
            text = file.read_text(encoding="utf-8")
        try:
            for row in json.loads(text):
                paths[int(row["item_id"])] = f"{split}/{row['task_type']}/{row['task_id']}/game.tw-pddl"
        except (ValueError, TypeError, KeyError) as error:
            message = f"is not one of AgentGym's lists of games: {type(error).__name__} {error}"
            raise ConfigError([Problem(str(file), message, "copy it from agentenv-alfworld/configs")]) from error
    if not paths:
        message = f"needs {' and '.join(_MAPPING_FILES)} in {games} or {folder}"
        raise ConfigError([Problem("alfworld", message, "copy them from AgentGym's agentenv-alfworld/configs")])
    return paths


def _open_sciworld() -> Original:
    from evolvent.worlds.extras.sciworld import SciWorld

    world = SciWorld()
    return _Wrapped(world, world.task_at_index, first=lambda text, info: text)
