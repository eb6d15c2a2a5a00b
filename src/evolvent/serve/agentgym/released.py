"""Worlds of AgentGym's released tasks: played in this process where the original needs no server, else on its server.

    world = open_released_world("maze", "", Path("AgentEval"))
    world = open_released_world("webshop", "http://127.0.0.1:36001", Path("AgentEval/webshop_test.json"))

Both have the same name, tasks, texts and scores, so episodes of either compare. A task that this machine cannot play
as the server does is left out and listed in `problems`; none is replaced by one that is merely alike.

AgentGym's tasks that need no server: the same start, rules and texts, by the number that a client would send.

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

from evolvent.data.agentgym_files import ENVIRONMENTS, find_task_files, name_environment, read_tasks
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import disk_errors
from evolvent.serve.agentgym.client import (
    REFUSAL_MESSAGE,
    AgentGymWorld,
    add_word_list,
    build_panels,
    score_rewards,
)
from evolvent.serve.agentgym.dialects import get_dialect
from evolvent.serve.agentgym.text import get_translator, list_admissible
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import SPLITS, Grammar, Info, Play, TextWorld, World
from evolvent.worlds.maze import DIRECTIONS, DOUBLE_T_GOAL, STARTS, double_t
from evolvent.worlds.wordle import marks_of

__all__ = [
    "Original",
    "ReleasedWorld",
    "is_address",
    "name_worlds",
    "open_numbered_world",
    "open_released_world",
]


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


class ReleasedWorld(TextWorld):
    """The tasks of one of AgentGym's environments, played in this process.

    Args:
        dialect: the environment.
        original: plays its tasks.
        indices: the numbers of the tasks: by split, or all together (then a hash deals them to train, dev and test).
        skipped: tasks and rows that were left out, each with its reason.
    """

    version = AgentGymWorld.version

    def __init__(
        self,
        dialect: str,
        original: Original,
        indices: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        skipped: Sequence[Problem] = (),
    ) -> None:
        self.dialect = get_dialect(dialect)
        self.name = f"agentgym_{dialect}"
        self.horizon = self.dialect.horizon
        self.instructions = self.dialect.instructions
        self.grammar: Grammar = self.dialect.grammar
        self.reward_range = (-self.dialect.full, self.dialect.full)
        self.problems = tuple(skipped)
        self._original = original
        self._panels = build_panels(self.name, self.dialect, indices)

    def specs(self) -> list[Mapping[str, object]]:
        """Lists the specs of all tasks."""
        return [task.spec for tasks in self._panels.values() for task in tasks]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split; raises ConfigError for a split or tier that does not exist."""
        problems = [] if split in SPLITS else [unknown_name_problem("split", split, SPLITS)]
        problems += [] if tier in self.tiers else [unknown_name_problem("tier", tier, self.tiers)]
        if problems:
            raise ConfigError(problems)
        return self._panels[split]

    def play(self, spec: Mapping[str, object]) -> Play:
        """Plays an episode; actions are read as AgentGym's client reads them."""
        index = spec.get("index")
        if type(index) is not int:
            raise ConfigError("the task has no number", value=dict(spec), expected='{"index": 0}')
        self._original.check(index)
        episode = self._original.play(index)
        try:
            turn = next(episode)
            while True:
                text = self.dialect.grammar.to_wire((yield turn))
                while text is None:
                    text = self.dialect.grammar.to_wire((yield REFUSAL_MESSAGE, 0.0, {"invalid": True}))
                turn = episode.send(text)
        except StopIteration as end:
            last_turn: tuple[str, float] = end.value
            return last_turn
        finally:
            episode.close()

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode as `AgentGymWorld` does."""
        return score_rewards(rewards, self.dialect)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns actions that solve a task, None where they are not known."""
        return self._original.expert(int(task.spec["index"]))


def open_released_world(environment: str, source: str, path: Path, *, token: str | None = None) -> World:
    """Opens the tasks that released files name.

    Args:
        environment: AgentGym's name, such as `textcraft`.
        source: the address of the environment's server; else what its tasks are read from, empty where nothing is.
        path: a file of tasks, or the folder of the released files.
        token: sent to the server.
    Raises:
        ConfigError: an unknown environment; no file or no task; a source that the environment does not take.
        MissingExtra: the package that plays the environment is not installed.
    """
    get_dialect(environment)
    files = read_tasks(path, environment)
    if is_address(source):
        return AgentGymWorld(source, environment, files.indices, token=token, skipped=files.problems)
    original = open_original(environment, source, folder=path if path.is_dir() else path.parent)
    indices, problems = _select_known(original, files.indices, files.locations)
    if not any(indices.values()):
        raise ConfigError(problems)
    return ReleasedWorld(environment, original, indices, skipped=(*files.problems, *problems))


def _select_known(
    original: Original, indices: Mapping[str, Sequence[int]], locations: Mapping[int, str]
) -> tuple[dict[str, list[int]], list[Problem]]:
    """Selects the numbers that have a task here; returns them, and a problem for each of the others."""
    selected: dict[str, list[int]] = {split: [] for split in indices}
    problems = []
    for split, numbers in indices.items():
        for index in numbers:
            try:
                original.check(index)
            except ConfigError as error:
                problems.append(Problem(locations[index], str(error), "the task is left out"))
            else:
                selected[split].append(index)
    return selected, problems


def open_numbered_world(environment: str, source: str, indices: Sequence[int]) -> ReleasedWorld:
    """Opens tasks by their numbers in this process; raises as `open_released_world`."""
    get_dialect(environment)
    original = open_original(environment, source, folder=Path(source or "."))
    for index in indices:
        original.check(index)
    return ReleasedWorld(environment, original, indices)


def is_address(source: str) -> bool:
    """Returns whether a source is the address of a server."""
    return "://" in source


def name_worlds(path: Path, environments: Sequence[str] = (), sources: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names of the worlds that play released files, as `load_world` takes them.

    Args:
        path: a file of tasks, or the folder of the released files.
        environments: only these; empty: all that the files name.
        sources: `ENVIRONMENT=SOURCE`, see `open_released_world`.
    Raises:
        ConfigError: no released files, an unknown environment, a source of another form, and environments without a
            source that need one; all of them at once.
    """
    present = tuple(find_task_files(path)) if path.is_dir() else (name_environment(path),)
    problems = [
        unknown_name_problem("environment", name, present, location="environments")
        for name in environments
        if name not in present
    ]
    source_of: dict[str, str] = {}
    for entry in sources:
        name, equals, source = entry.partition("=")
        if not equals or not source:
            problems.append(Problem("sources", f"got {entry!r}, expected ENVIRONMENT=URL or ENVIRONMENT=PATH"))
        elif name not in ENVIRONMENTS:
            problems.append(unknown_name_problem("environment", name, ENVIRONMENTS, location="sources"))
        source_of[name] = source
    selected = [name for name in present if not environments or name in environments]
    for name in selected:
        if name not in source_of and (needed := describe_need(name)):
            hint = f"--sources {name}=..., or leave it out with --environments"
            problems.append(Problem(name, f"needs {needed}", hint))
    if problems:
        raise ConfigError(problems)
    return tuple(f"agentgym:{name}{'@' * (name in source_of)}{source_of.get(name, '')}#{path}" for name in selected)
