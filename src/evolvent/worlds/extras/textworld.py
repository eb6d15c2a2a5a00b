"""TextWorld (Côté et al. 2018): the text games of a folder, played by the package's interpreter.

A folder holds games for the Z-machine (`.z3` to `.z8`), made by TextWorld (then with a `.json` of the same name beside
it, which knows the possible commands, the score and a way through) or by anybody. Where it has folders named train,
valid or dev, and test, these are the splits; any other folder is split by the hash of its games. `make_games` makes
games as the program tw-make does. Glulx games (`.ulx`) were given up by TextWorld 1.7.
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
from evolvent.worlds.extras.wrapped import Extra, Wrapped, common_problems, one_line
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["TURN", "TextGames", "make_games"]

TEXTWORLD = Extra("textworld", "textworld", "text games by TextWorld")
TURN = threading.RLock()
"""Held by whoever calls TextWorld: its parsers are shared and keep stacks, so that two threads spoil each other's."""
_GAME = re.compile(r"\.z[3-8]")
_FOLDERS = {"train": "train", "valid": "dev", "dev": "dev", "test": "test"}
_HEADER = 64  # bytes
_LONGEST = 120  # characters of a command
_SEED = 1  # of games that throw dice
_EXPECTED = "expected a command such as go east or take key from table"
_REFUSED = "the interpreter's own commands are not part of the game"
_INTERPRETER = {
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
_NO_ACTION = (
    "That's not a verb I recognise",
    "I only understood you as far as",
    "I didn't understand",
    "I beg your pardon",
    "You can't see any such thing",
    "I don't know the word",
    "I don't understand",
)
_PROMPT = re.compile(r"\s*\n>[^\n]*\Z")


class TextGames(Wrapped):
    """The games of a folder.

    The reward of a step is what it adds to the score, as a share of the largest score where the game tells it.

    Args:
        folder: holds games at any depth.
        horizon: how many commands an episode may take.
        sizes: at most so many tasks of each split, the first by name (None: all of them).
        penalty: the reward of a text that is no command.

    Attributes:
        broken: the files that are no games, as far as they were read, with what is wrong with them.

    Raises:
        ConfigError: no folder, or no games in it; a horizon or a penalty that is none.
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
        found = sorted(path for path in self.folder.rglob("*") if path.is_file()) if self.folder.is_dir() else []
        self._names = [path.relative_to(self.folder).as_posix() for path in found if _GAME.fullmatch(path.suffix)]
        if not self._names:
            glulx = any(path.suffix == ".ulx" for path in found)
            hint = "TextWorld 1.7 no longer plays .ulx games" if glulx else "make some with make_games or tw-make"
            problems.append(Problem("folder", f"no .z3 to .z8 games in {folder}", hint))
        if problems:
            raise ConfigError(problems)
        super().__init__(TEXTWORLD, sizes=sizes, penalty=penalty)
        self.horizon, self._sizes = horizon, sizes
        self.broken: dict[str, CorruptRecord] = {}
        self.reward_range = (-1.0 + min(0.0, penalty), 1.0)

    @cached_property
    def _all(self) -> Sequence[Task]:
        tasks: dict[str, Task] = {}
        self.broken = {}
        named = all(_folder_split(name) for name in self._names)
        for name in self._names:
            try:
                sha256 = self._digest(name)
            except CorruptRecord as error:
                self.broken[name] = error
                continue
            split = _folder_split(name) if named else split_of({"sha256": sha256}, salt=self.name)
            made = PurePosixPath(name).parent.name or "game"
            task = Task(self.name, self.version, {"game": name, "sha256": sha256}, made, self.tiers[0], str(split))
            tasks.setdefault(sha256, task)
        return tuple(tasks.values())

    def _digest(self, name: str) -> str:
        story = (self.folder / name).read_bytes()
        _check_story(name, story)
        return hashlib.sha256(story).hexdigest()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The games of a split in the order of their paths; of equal games the first; broken files are left out."""
        check_names(split, tier, self.tiers)
        limit = None if self._sizes is None else self._sizes.of(split)
        return tuple(task for task in self._all if task.split == split)[:limit]

    def _open(self, task: Task) -> _Game:
        return _Game(self._file(task))

    def _file(self, task: Task) -> Path:
        """The file of a task.

        Raises:
            ConfigError, UnsafePath: it is not there, or outside of the folder.
            VersionMismatch: it is another than the task was made of. CorruptRecord: it is no game.
        """
        name = task.spec.get("game")
        if not isinstance(name, str) or set(task.spec) != {"game", "sha256"}:
            raise ConfigError("not a task of a game", value=sorted(task.spec), expected="game and sha256")
        file = safe_join(self.folder, name)
        if not file.is_file() or not _GAME.fullmatch(file.suffix):
            raise ConfigError("no such game in this folder", value=name, hint=f"the folder is {self.folder}")
        if self._digest(name) != task.spec["sha256"]:
            raise VersionMismatch(f"another version of the game {name}", value=task.spec["sha256"])
        return file

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """raw = the sum of the rewards, unit = that within 0 to 1, success = the game was won."""
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        raw, won = math.fsum(known), bool(info.get("won"))
        return Score(raw, 1.0 if won else min(1.0, max(0.0, raw)), won)

    def expert(self, task: Task) -> Sequence[str] | None:
        """The way through that TextWorld noted when it made the game; None for other games, or beyond the horizon."""
        check_task(self, task)
        notes = self._file(task).with_suffix(".json")
        if not notes.is_file():
            return None
        with boundary(EnvLost, f"{notes.name} cannot be read"):
            found = json.loads(notes.read_bytes()).get("metadata", {}).get("walkthrough")
        plan = [str(command) for command in found] if isinstance(found, list) else []
        return plan if 0 < len(plan) <= self.horizon else None


def _check_story(name: str, story: bytes) -> None:
    """Raise CorruptRecord for a file that is no game: the interpreter would end the whole program over it.

    The header of a story (Z-Machine Standards Document, section 11) has its version at 0, its length at 26, in words of
    a size that depends on the version, and at 28 the sum of its bytes from 64 on. Oldest stories have neither.
    """
    if len(story) < _HEADER or not 3 <= story[0] <= 8:
        raise CorruptRecord(f"{name} is no game for the Z-machine", offset=0, value=story[:4].hex())
    unit = 2 if story[0] == 3 else 4 if story[0] <= 5 else 8
    length = unit * int.from_bytes(story[26:28], "big")
    if length > len(story):
        raise CorruptRecord(f"the game {name} is cut short", offset=len(story), value=f"{len(story)} of {length} bytes")
    if length and sum(story[_HEADER:length]) % 65536 != int.from_bytes(story[28:30], "big"):
        raise CorruptRecord(f"the game {name} has another checksum than its header says", offset=28)


def _folder_split(name: str) -> str | None:
    return next((_FOLDERS[part] for part in PurePosixPath(name).parts[:-1] if part in _FOLDERS), None)


class _Game:
    """An episode of a game. What is possible is known of TextWorld's own games alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._env: Any = None
        self._points = 0.0
        self._most: float | None = None

    def begin(self) -> tuple[str, Info]:
        with TURN:
            return self._begin()

    def _begin(self) -> tuple[str, Info]:
        if self._env is None:
            textworld = TEXTWORLD.module("textworld")
            known = self._file.with_suffix(".json").is_file()
            asked = {"won": True, "lost": True, "score": True, "max_score": True, "admissible_commands": known}
            self._env = textworld.start(str(self._file), textworld.EnvInfos(**asked))
        self._env.seed(_SEED)
        state = self._env.reset()
        self._points = _number(state.get("score"))
        self._most = _number(state.get("max_score")) or None
        self._state: Mapping[str, Any] = state
        return _without_banner(_text(state)), self._info()

    def act(self, action: str) -> Reply:
        line = one_line(action, most=_LONGEST)
        refused = line is not None and _for_interpreter(line)
        if line is None or refused:
            return _REFUSED if refused else _EXPECTED, 0.0, False, False, {**self._info(), "invalid": True}
        with TURN:
            state, _, done = self._env.step(line)
        self._state = state
        points = _number(state.get("score"), self._points)
        reward, self._points = (points - self._points) / (self._most or 1.0), points
        over = bool(done or state.get("won") or state.get("lost"))
        text, info = _text(state), self._info()
        if text.startswith(_NO_ACTION):
            info["invalid"] = True
        return text, reward, over, False, info

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


def _number(value: object, other: float = 0.0) -> float:
    return float(value) if isinstance(value, (int, float)) else other


def _for_interpreter(line: str) -> bool:
    """Whether a command, or one of several in a line, would write or read files, or end the game."""
    words = [sentence.split() for sentence in _SENTENCE.split(line.lower())]
    return any(sentence and sentence[0] in _INTERPRETER for sentence in words)


def _text(state: Mapping[str, Any]) -> str:
    """What the game said, without its prompt and the status line behind it."""
    return _PROMPT.sub("", str(state.get("feedback") or "")).strip()


def _without_banner(text: str) -> str:
    """The text without the drawing that TextWorld's games begin with."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if re.search(r"[A-Za-z]", line)), 0)
    return "\n".join(lines[first:]).strip()


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
    """Make games as `tw-make custom` does; compiling one takes seconds.

    Args:
        folder: where the games go, with their notes.
        number: how many, from seeds `seed`, `seed + 1` and so on.
        rooms, objects, steps: how large they are, and how many commands their quests take.
        theme: "house" or "basic": how rooms and things are described.

    Raises:
        ConfigError: sizes below 1 or an unknown theme. MissingExtra: textworld is not installed.
        EnvLost: a game of such sizes could not be made.
    """
    sizes = {"number": number, "rooms": rooms, "objects": objects, "steps": steps}
    problems = [
        Problem(name, f"{value!r}", "give a whole number of at least 1")
        for name, value in sizes.items()
        if type(value) is not int or value < 1
    ]
    if theme not in ("house", "basic"):
        problems.append(Problem("theme", f"unknown theme {theme!r}", "give 'house' or 'basic'"))
    if problems:
        raise ConfigError(problems)
    textworld = TEXTWORLD.module("textworld")
    made = []
    for one in range(seed, seed + number):
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, steps
        options.seeds, options.grammar.theme = one, theme
        options.path = str(Path(folder) / f"game-{rooms}-{objects}-{steps}-{one}.z8")
        with TURN, boundary(EnvLost, "TextWorld could not make a game", seed=one):
            made.append(Path(textworld.make(options)[0]))
    return made
