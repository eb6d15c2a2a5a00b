"""Game files of ALFWorld, `game.tw-pddl` with `traj_data.json` beside it: reading and writing.

A game file holds the problem (the layout and the goal), the planning domain and the grammar that alfworld's own
engine runs. Those two are alfworld's texts; they are not part of this library. `write_game` takes them from an
installed alfworld, from its downloaded data, or from any game file: see `official_texts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra
from evolvent.files import write_atomic
from evolvent.worlds.household.game import FAMILIES, Game, Goal, Layout
from evolvent.worlds.household.pddl import parse_problem, render_problem
from evolvent.worlds.household.plans import plan
from evolvent.worlds.household.things import SPELLING

__all__ = ["GAME_FILE", "OfficialTexts", "find_games", "read_folder", "read_game", "read_official_texts", "write_game"]

GAME_FILE = "game.tw-pddl"
_TRAJECTORY_FILE = "traj_data.json"  # beside it
_MAX_FILE_BYTES = 16 << 20  # bytes of a game file; ALFWorld's have some 70,000
_TASK = re.compile(r"Your task is to: ([^\"\\\n]+?)\.?\s*(?=[\"\\\n])")
_UNKNOWN_TASK = "UNKNOWN GOAL"
_SKIPPED_WORDS = ("movable", "Sliced")  # in a path: kinds of tasks that ALFWorld's engine skips too


@dataclass(frozen=True, slots=True)
class OfficialTexts:
    """The two texts of alfworld that its engine needs in every game file: the planning domain and the grammar."""

    domain: str
    grammar: str


def read_official_texts(source: str | Path | None = None) -> OfficialTexts:
    """Reads the domain and the grammar that `write_game` needs.

    Args:
        source: a game file, whose texts are taken; a folder that holds `alfred.pddl` and `alfred.twl2` (alfworld's
            `data`, or `logic` of its downloaded data); None for the installed alfworld, which is not imported.

    Raises:
        MissingExtra: no source was given and alfworld is not installed.
        ConfigError: the source does not hold these texts.
    """
    if source is None:
        spec = find_spec("alfworld")
        if spec is None or spec.origin is None:
            raise MissingExtra("alfworld", "writing games that alfworld can play")
        source = Path(spec.origin).parent / "data"
    path = Path(source)
    try:
        if path.is_file():
            record = json.loads(path.read_bytes())
            return OfficialTexts(
                str(record["pddl_domain"]), _TASK.sub(_task_sentence(_UNKNOWN_TASK), str(record["grammar"]))
            )
        folder = path / "logic" if (path / "logic").is_dir() else path
        domain, grammar = (folder / name for name in ("alfred.pddl", "alfred.twl2"))
        return OfficialTexts(domain.read_text(encoding="utf-8"), grammar.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            "no texts of alfworld here",
            value=f"{path} ({type(error).__name__})",
            expected="a game file, or a folder with alfred.pddl and alfred.twl2",
        ) from error


def _task_sentence(task: str) -> str:
    return f"Your task is to: {task}."


def read_game(path: str | Path) -> Game:
    """Reads the game in a game file, or in the folder that holds one.

    The task has the wording of the file's grammar; the rules and all other sentences are ours (see `rules`,
    `text`), whatever the file's domain and grammar say.

    Raises:
        CorruptRecord: the file cannot be read, is not a game, has a goal outside the six families, or cannot be
            solved. The error names the file.
    """
    file = Path(path)
    file = file / GAME_FILE if file.is_dir() else file
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"a file of more than {_MAX_FILE_BYTES} bytes", value=file.stat().st_size)
        record = json.loads(file.read_bytes())
        game = _parse_game(record)
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        offset = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptRecord(f"{file} is no game: {error}", offset=offset, hint="remove it or get it again") from error
    if record.get("solvable", True) is not True or not plan(game):
        raise CorruptRecord(f"{file} cannot be solved", offset=0, value=game.task, hint="remove it or get it again")
    return game


def _parse_game(record: Any) -> Game:
    if not isinstance(record, Mapping) or not isinstance(record.get("pddl_problem"), str):
        raise ConfigError("no pddl_problem in it", value=type(record).__name__)
    layout, goal = parse_problem(record["pddl_problem"])
    match = _TASK.search(str(record.get("grammar", "")))
    task = match[1] if match and match[1] != _UNKNOWN_TASK else goal.describe()
    return Game(layout, goal, task)


def find_games(folder: str | Path) -> tuple[str, ...]:
    """Finds all game files that ALFWorld would play; returns their paths, relative to the folder and sorted.

    As in ALFWorld, tasks with movable receptacles or slices are left out by the names in their paths.

    Raises:
        ConfigError: the folder does not exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError("no such folder of games", value=str(folder), hint=f"it should hold {GAME_FILE} files")
    names = (file.relative_to(root).as_posix() for file in root.rglob(GAME_FILE))
    return tuple(sorted(name for name in names if not any(word in name for word in _SKIPPED_WORDS)))


def read_folder(
    folder: str | Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Game], tuple[CorruptRecord, ...]]:
    """Reads all games of a folder by their relative paths, and returns an error for each invalid file.

    Args:
        names: the relative paths to read (None: all of `find_games`).
    """
    games: dict[str, Game] = {}
    broken: list[CorruptRecord] = []
    for name in find_games(folder) if names is None else names:
        try:
            games[name] = read_game(Path(folder) / name)
        except CorruptRecord as error:
            broken.append(error)
    return games, tuple(broken)


def write_game(folder: str | Path, layout: Layout, goal: Goal, *, task: str, texts: OfficialTexts) -> Path:
    """Writes `game.tw-pddl` and `traj_data.json` into a folder; returns the path of the game file.

    Args:
        folder: created if it does not exist. ALFWorld finds games at any depth below its data folder.
        task: the sentence of the task, without its full stop.
        texts: alfworld's domain and grammar, see `read_official_texts`.

    Raises:
        ConfigError: the grammar has no place for the task.
        NoSpace, StoreUnavailable: the folder cannot be written to.
    """
    grammar = texts.grammar.replace(_UNKNOWN_TASK, task)
    if _task_sentence(task) not in grammar:
        raise ConfigError("a grammar without a task", value=texts.grammar[:80], expected=_task_sentence(_UNKNOWN_TASK))
    file = Path(folder) / GAME_FILE
    problem = render_problem(layout, goal, name="household", spelling=SPELLING)
    record = {"pddl_domain": texts.domain, "grammar": grammar, "pddl_problem": problem, "solvable": True}
    write_atomic(file, json.dumps(record))
    write_atomic(file.with_name(_TRAJECTORY_FILE), json.dumps(_build_trajectory(goal, task)))
    return file


def _build_trajectory(goal: Goal, task: str) -> dict[str, Any]:
    """Builds the parts of a trajectory that ALFWorld's loader and its hand-coded expert read."""
    object_type, target = SPELLING.get(goal.object, goal.object), SPELLING.get(goal.target, goal.target)
    is_look = goal.family == "look"
    return {
        "task_type": FAMILIES[goal.family].task_type,
        "pddl_params": {
            "object_target": object_type,
            "parent_target": "" if is_look else target,
            "toggle_target": target if is_look else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": f"{task.capitalize()}.", "high_descs": []}]},
    }
