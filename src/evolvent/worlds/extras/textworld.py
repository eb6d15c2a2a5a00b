"""TextWorld (Côté et al. 2018): the text games of a folder, played by the package's interpreter.

A folder holds games for the Z-machine (`.z3` to `.z8`), made by TextWorld or anybody else. A game by TextWorld
has a `.json` of the same name beside it, with the possible commands, the score and a walkthrough. If the folder
has subfolders named train, valid or dev, and test, these are the splits; any other folder is split by the hash
of its games. `make_games` makes games as the program tw-make does. TextWorld 1.7 dropped Glulx games (`.ulx`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, EnvLost, Problem, VersionMismatch, boundary
from evolvent.files import safe_join
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply, check_task, split_of
from evolvent.worlds.extras.wrapped import Extra, WrappedWorld, clean_command, common_problems
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["LOCK", "TextGames", "make_games"]

TEXTWORLD = Extra("textworld", "textworld", "text games by TextWorld")
LOCK = threading.RLock()
"""Held by whoever calls TextWorld: its parsers are shared and keep stacks, so that two threads spoil each other's."""
_GAME_SUFFIX = re.compile(r"\.z[3-8]")
_SPLIT_OF_FOLDER = {"train": "train", "valid": "dev", "dev": "dev", "test": "test"}
_HEADER_SIZE = 64  # bytes
_MAX_COMMAND_LENGTH = 120  # characters of a command
_SEED = 1  # of games that throw dice
_EXPECTED = "expected a command such as go east or take key from table"
_REFUSAL = "the interpreter's own commands are not part of the game"
_INTERPRETER_COMMANDS = {
    "save",
    "restore",
    "restart",
    "quit",
    "q",
    "script",
    "transcript",
    "unscript",
    "record",
    "replay",
    "undo",
}
_SENTENCE = re.compile(r"[.,;]|\bthen\b")
_ERROR_PREFIXES = (
    "That's not a verb I recognise",
    "I only understood you as far as",
    "I didn't understand",
    "I beg your pardon",
    "You can't see any such thing",
    "I don't know the word",
    "I don't understand",
)
_PROMPT = re.compile(r"\s*\n>[^\n]*\Z")


class TextGames(WrappedWorld):
    """The games of a folder.

    The reward of a step is the change of the score, as a share of the largest score where the game states it.

    Args:
        folder: holds games at any depth.
        horizon: maximum number of commands of an episode.
        sizes: maximum number of tasks of each split, the first by name (None: all of them).
        penalty: the reward of a text that is not a command.

    Attributes:
        broken: the invalid files among those read so far, with their errors.

    Raises:
        ConfigError: the folder does not exist or has no games, or the horizon or penalty is invalid.
        MissingExtra: textworld is not installed.
    """

    name = "textworld"
    instructions = (
        "Play a text adventure. Give one command at a time, such as: look, inventory, go east, open chest, examine "
        "table, take key from table, put key on table, insert coin into box, unlock door with key, drop key, eat apple."
    )

    def __init__(
        self, folder: str | Path, *, horizon: int = 50, sizes: Sizes | None = None, penalty: float = 0.0
    ) -> None:
        self.folder = Path(folder)
        problems = common_problems(horizon=horizon, penalty=penalty)
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file()) if self.folder.is_dir() else []
        self._names = [
            path.relative_to(self.folder).as_posix() for path in paths if _GAME_SUFFIX.fullmatch(path.suffix)
        ]
        if not self._names:
            has_glulx = any(path.suffix == ".ulx" for path in paths)
            hint = "TextWorld 1.7 no longer plays .ulx games" if has_glulx else "make some with make_games or tw-make"
            problems.append(Problem("folder", f"no .z3 to .z8 games in {folder}", hint))
        if problems:
            raise ConfigError(problems)
        super().__init__(TEXTWORLD, sizes=sizes, penalty=penalty)
        self.horizon, self._sizes = horizon, sizes
        self.broken: dict[str, CorruptRecord] = {}
        self.reward_range = (-1.0 + min(0.0, penalty), 1.0)

    @cached_property
    def _all_tasks(self) -> Sequence[Task]:
        tasks: dict[str, Task] = {}
        self.broken = {}
        has_split_folders = all(_folder_split(name) for name in self._names)
        for name in self._names:
            try:
                sha256 = self._digest(name)
            except CorruptRecord as error:
                self.broken[name] = error
                continue
            split = _folder_split(name) if has_split_folders else split_of({"sha256": sha256}, salt=self.name)
            kind = PurePosixPath(name).parent.name or "game"
            task = Task(self.name, self.version, {"game": name, "sha256": sha256}, kind, self.tiers[0], str(split))
            tasks.setdefault(sha256, task)
        return tuple(tasks.values())

    def _digest(self, name: str) -> str:
        story = (self.folder / name).read_bytes()
        _check_story(name, story)
        return hashlib.sha256(story).hexdigest()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the games of a split in path order, without duplicates and broken files."""
        check_names(split, tier, self.tiers)
        limit = None if self._sizes is None else self._sizes.of(split)
        return tuple(task for task in self._all_tasks if task.split == split)[:limit]

    def _open_session(self, task: Task) -> _GameSession:
        return _GameSession(self._find_file(task))

    def _find_file(self, task: Task) -> Path:
        """Returns the file of a task.

        Raises:
            ConfigError, UnsafePath: the file does not exist, or lies outside the folder.
            VersionMismatch: the file has changed since the task was made. CorruptRecord: it is not a game.
        """
        name = task.spec.get("game")
        if not isinstance(name, str) or set(task.spec) != {"game", "sha256"}:
            raise ConfigError("the task does not name a game", value=sorted(task.spec), expected="game and sha256")
        file = safe_join(self.folder, name)
        if not file.is_file() or not _GAME_SUFFIX.fullmatch(file.suffix):
            raise ConfigError("game not found", value=name, hint=f"the folder is {self.folder}")
        if self._digest(name) != task.spec["sha256"]:
            raise VersionMismatch(f"another version of the game {name}", value=task.spec["sha256"])
        return file

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the sum of the rewards, unit = raw clipped to 0..1, success = the game was won."""
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        raw, won = math.fsum(known_rewards), bool(info.get("won"))
        return Score(raw, 1.0 if won else min(1.0, max(0.0, raw)), won)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the walkthrough that TextWorld stored with the game; None for other games, or beyond the horizon."""
        check_task(self, task)
        metadata_file = self._find_file(task).with_suffix(".json")
        if not metadata_file.is_file():
            return None
        with boundary(EnvLost, f"{metadata_file.name} cannot be read"):
            walkthrough = json.loads(metadata_file.read_bytes()).get("metadata", {}).get("walkthrough")
        plan = [str(command) for command in walkthrough] if isinstance(walkthrough, list) else []
        return plan if 0 < len(plan) <= self.horizon else None


def _check_story(name: str, story: bytes) -> None:
    """Raises CorruptRecord for an invalid game file, because the interpreter would end the whole program over it.

    The header of a story (Z-Machine Standards Document, section 11) has its version at 0, its length at 26, in
    words of a size that depends on the version, and at 28 the sum of its bytes from 64 on. The oldest stories have
    neither.
    """
    if len(story) < _HEADER_SIZE or not 3 <= story[0] <= 8:
        raise CorruptRecord(f"{name} is not a Z-machine game", offset=0, value=story[:4].hex())
    word_size = 2 if story[0] == 3 else 4 if story[0] <= 5 else 8
    length = word_size * int.from_bytes(story[26:28], "big")
    if length > len(story):
        raise CorruptRecord(f"the game {name} is truncated", offset=len(story), value=f"{len(story)} of {length} bytes")
    if length and sum(story[_HEADER_SIZE:length]) % 65536 != int.from_bytes(story[28:30], "big"):
        raise CorruptRecord(f"the checksum of the game {name} does not match its header", offset=28)


def _folder_split(name: str) -> str | None:
    return next((_SPLIT_OF_FOLDER[part] for part in PurePosixPath(name).parts[:-1] if part in _SPLIT_OF_FOLDER), None)


class _GameSession:
    """An episode of a game. The possible commands are known for TextWorld's own games only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._env: Any = None
        self._points = 0.0
        self._most: float | None = None

    def begin(self) -> tuple[str, Info]:
        with LOCK:
            return self._begin_locked()

    def _begin_locked(self) -> tuple[str, Info]:
        if self._env is None:
            textworld = TEXTWORLD.load_module("textworld")
            has_metadata = self._file.with_suffix(".json").is_file()
            requested_infos = {
                "won": True,
                "lost": True,
                "score": True,
                "max_score": True,
                "admissible_commands": has_metadata,
            }
            self._env = textworld.start(str(self._file), textworld.EnvInfos(**requested_infos))
        self._env.seed(_SEED)
        state = self._env.reset()
        self._points = _to_number(state.get("score"))
        self._most = _to_number(state.get("max_score")) or None
        self._state: Mapping[str, Any] = state
        return _remove_banner(_read_feedback(state)), self._info()

    def act(self, action: str) -> Reply:
        line = clean_command(action, max_length=_MAX_COMMAND_LENGTH)
        is_refused = line is not None and _is_interpreter_command(line)
        if line is None or is_refused:
            return _REFUSAL if is_refused else _EXPECTED, 0.0, False, False, {**self._info(), "invalid": True}
        with LOCK:
            state, _, done = self._env.step(line)
        self._state = state
        points = _to_number(state.get("score"), self._points)
        reward, self._points = (points - self._points) / (self._most or 1.0), points
        is_over = bool(done or state.get("won") or state.get("lost"))
        text, info = _read_feedback(state), self._info()
        if text.startswith(_ERROR_PREFIXES):
            info["invalid"] = True
        return text, reward, is_over, False, info

    def _info(self) -> dict[str, object]:
        info: dict[str, object] = {"won": bool(self._state.get("won"))}
        commands = self._state.get("admissible_commands")
        if commands:
            info["admissible"] = tuple(commands)
        return info

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None


def _to_number(value: object, default: float = 0.0) -> float:
    return float(value) if isinstance(value, (int, float)) else default


def _is_interpreter_command(line: str) -> bool:
    """Checks whether any command of a line would read or write files, or end the game."""
    sentences = [sentence.split() for sentence in _SENTENCE.split(line.lower())]
    return any(sentence and sentence[0] in _INTERPRETER_COMMANDS for sentence in sentences)


def _read_feedback(state: Mapping[str, Any]) -> str:
    """Returns the game's text without its prompt and the status line after it."""
    return _PROMPT.sub("", str(state.get("feedback") or "")).strip()


def _remove_banner(text: str) -> str:
    """Removes the drawing that TextWorld's games start with."""
    lines = text.split("\n")
    first_line = next((number for number, line in enumerate(lines) if re.search(r"[A-Za-z]", line)), 0)
    return "\n".join(lines[first_line:]).strip()


def make_games(
    folder: str | Path,
    number: int,
    *,
    rooms: int = 3,
    objects: int = 5,
    steps: int = 4,
    seed: int = 0,
    theme: str = "house",
) -> list[Path]:
    """Makes games as `tw-make custom` does; compiling a game takes seconds.

    Args:
        folder: receives the games and their metadata.
        number: number of games, with the seeds `seed`, `seed + 1` and so on.
        rooms, objects, steps: numbers of rooms and objects of a game, and of commands of its quest.
        seed: seed of the first game.
        theme: "house" or "basic": the style in which rooms and things are described.

    Raises:
        ConfigError: sizes below 1 or an unknown theme. MissingExtra: textworld is not installed.
        EnvLost: a game of these sizes could not be made.
    """
    sizes = {"number": number, "rooms": rooms, "objects": objects, "steps": steps}
    problems = [
        Problem(name, f"got {value!r}, expected a whole number of at least 1")
        for name, value in sizes.items()
        if type(value) is not int or value < 1
    ]
    if theme not in ("house", "basic"):
        problems.append(Problem("theme", f"unknown theme {theme!r}", "give 'house' or 'basic'"))
    if problems:
        raise ConfigError(problems)
    textworld = TEXTWORLD.load_module("textworld")
    paths = []
    for game_seed in range(seed, seed + number):
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, steps
        options.seeds, options.grammar.theme = game_seed, theme
        options.path = str(Path(folder) / f"game-{rooms}-{objects}-{steps}-{game_seed}.z8")
        with LOCK, boundary(EnvLost, "TextWorld could not make a game", seed=game_seed):
            paths.append(Path(textworld.make(options)[0]))
    return paths
