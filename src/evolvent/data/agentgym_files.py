"""AgentGym's released files: the tasks that they name, by environment and split.

    AgentEval/textcraft_test.json         [{"item_id": "textcraft_31"}, ...]
    AgentTraj-L/lmrlgym_maze_train.json   [{"conversations": [...], "item_id": "lmrlgym_maze_3"}, ...]

The number at the end of an `item_id` is what a client sends to the environment's server when it resets. Two groups of
environments have a prefix in names of files and in some ids: `lmrlgym_` (maze, wordle) and `tool_` (weather, movie,
academia, todo, sheet). A file is named after its environment and its split; `_test` and `_eval` mean the split test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evolvent.data.tables import iterate_rows
from evolvent.errors import ConfigError, Problem, SampleInvalid

__all__ = ["ENVIRONMENTS", "TaskFiles", "find_task_files", "name_environment", "parse_item_id", "read_tasks"]

ENVIRONMENTS: tuple[str, ...] = (
    "alfworld",
    "babyai",
    "maze",
    "sciworld",
    "sqlgym",
    "textcraft",
    "webarena",
    "webshop",
    "wordle",
    "weather",
    "movie",
    "academia",
    "todo",
    "sheet",
    "searchqa",
)
"""AgentGym's environments, without the prefixes of their files."""
_NAME = rf"(?:lmrlgym_|tool_)?(?P<environment>{'|'.join(ENVIRONMENTS)})"
_FILE_NAME = re.compile(rf"{_NAME}_(?P<split>train|test|eval|dev)\.jsonl?")
_ITEM_ID = re.compile(rf"{_NAME}_(?P<index>[0-9]{{1,9}})")
_SPLITS: Mapping[str, str] = {"train": "train", "test": "test", "eval": "test", "dev": "dev"}
_SPLIT_IN_NAME = re.compile(r"_(train|test|eval|dev)(?:_|\.)")


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The tasks of one environment.

    Attributes:
        indices: by split, the numbers of the tasks in the order of their files, each once.
        locations: by number, `FILE:ROW` where the task is named first.
        problems: rows that name no task of the environment, and tasks of train that are evaluated too.
    """

    indices: Mapping[str, tuple[int, ...]]
    locations: Mapping[int, str]
    problems: tuple[Problem, ...]


def parse_item_id(item_id: str) -> tuple[str, int] | None:
    """Parses an id; returns the environment and the number of the task, None for an id of another form.

    >>> parse_item_id("lmrlgym_maze_3"), parse_item_id("movie_12"), parse_item_id("crafting_1")
    (('maze', 3), ('movie', 12), None)
    """
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else (match["environment"], int(match["index"]))


def find_task_files(folder: Path) -> dict[str, list[Path]]:
    """Finds the released files of a folder and its subfolders; returns them by environment, train before test.

    Raises:
        ConfigError: the folder does not exist, or holds no file with the name of an environment and a split.
    """
    if not folder.is_dir():
        raise ConfigError([Problem("tasks", f"{folder} is not a folder", "name the folder of the released files")])
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.json*"), key=lambda path: (not path.stem.endswith("_train"), path)):
        match = _FILE_NAME.fullmatch(path.name)
        if match is not None and path.is_file():
            files.setdefault(match["environment"], []).append(path)
    if not files:
        hint = "expected names such as textcraft_test.json or lmrlgym_maze_train.json"
        raise ConfigError([Problem("tasks", f"{folder} holds no released file of AgentGym", hint)])
    return {name: files[name] for name in ENVIRONMENTS if name in files}


def name_environment(file: Path) -> str:
    """Returns the environment that a file is named after, or that of its first id.

    Raises:
        ConfigError: the file cannot be read, or neither its name nor its first row names an environment.
    """
    if match := _FILE_NAME.fullmatch(file.name):
        return match["environment"]
    location, row = next(iter(iterate_rows(file)), (str(file), None))
    item_id = row.get("item_id") if isinstance(row, dict) else None
    parsed = parse_item_id(item_id) if isinstance(item_id, str) else None
    if parsed is None:
        message = f"got the item_id {item_id!r}, expected ENVIRONMENT_NUMBER"
        raise ConfigError([Problem(location, message, f"environments: {', '.join(ENVIRONMENTS)}")])
    return parsed[0]


def read_tasks(path: Path, environment: str) -> TaskFiles:
    """Reads the tasks of an environment from a file, or from all of its files in a folder.

    A task that is named for training and for evaluation, as some of the 25 mazes may be, is left out of training.

    Raises:
        ConfigError: the path does not exist, a file cannot be read, or no row names a task of the environment.
    """
    if path.is_dir():
        files = find_task_files(path)
        if environment not in files:
            message = f"{path} holds no file of {environment}; it has {', '.join(files)}"
            raise ConfigError([Problem("tasks", message, f"add {environment}_test.json")])
        paths = files[environment]
    else:
        paths = [path]
    indices: dict[str, dict[int, None]] = {split: {} for split in ("train", "dev", "test")}
    locations: dict[int, str] = {}
    problems: list[Problem] = []
    for file in paths:
        split = _SPLITS[match[1]] if (match := _SPLIT_IN_NAME.search(file.name)) else "test"
        for location, index in _read_indices(file, environment, problems):
            indices[split].setdefault(index)
            locations.setdefault(index, location)
    evaluated = set(indices["test"])
    for split in ("dev", "train"):
        shared = [index for index in indices[split] if index in evaluated]
        if shared:
            message = f"{len(shared)} tasks of {split} are evaluated too, for example {shared[0]}"
            problems.append(Problem(environment, message, f"they are left out of {split}"))
        evaluated.update(indices[split])
        indices[split] = {index: None for index in indices[split] if index not in shared}
    if not locations:
        reason = f"; the first: {problems[0]}" if problems else ""
        raise ConfigError([Problem("tasks", f"{path} names no task of {environment}{reason}")])
    return TaskFiles({split: tuple(numbers) for split, numbers in indices.items()}, locations, tuple(problems))


def _read_indices(file: Path, environment: str, problems: list[Problem]) -> Iterator[tuple[str, int]]:
    """Yields the place and the number of every row that names a task; the others go to `problems`."""
    for location, row in iterate_rows(file):
        item_id = row.get("item_id") if isinstance(row, dict) else None
        parsed = parse_item_id(item_id) if isinstance(item_id, str) else None
        if isinstance(row, SampleInvalid):
            problems.append(Problem(location, str(row), "the row is skipped"))
        elif parsed is None or parsed[0] != environment:
            message = f"got the item_id {item_id!r}, expected {environment}_NUMBER"
            problems.append(Problem(location, message, "the row is skipped"))
        else:
            yield location, parsed[1]
