"""The tasks of a folder of ALFWorld's game files.

If the folder has ALFWorld's own subfolders, they are the splits: `train` is trained on, `valid_train` is dev,
`valid_seen` is test of the tier `seen`; `valid_unseen`, known objects in unseen rooms, is test of the tier
`combo`. Any other folder has the tier `seen`, and its games are split by the hash of their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from evolvent.errors import ConfigError, CorruptRecord, VersionMismatch
from evolvent.files import safe_join
from evolvent.trajectory import Json, Task
from evolvent.worlds.base import split_of
from evolvent.worlds.household.game import Game
from evolvent.worlds.household.games import find_games, read_game
from evolvent.worlds.household.rooms import canonical_key
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["Collection"]

_PANEL_OF_FOLDER: Mapping[str, tuple[str, str]] = {
    "train": ("train", "seen"),
    "valid_train": ("dev", "seen"),
    "valid_seen": ("test", "seen"),
    "valid_unseen": ("test", "combo"),
}


class Collection:
    """The games of a folder, read at the first request for their split.

    Args:
        folder: holds `game.tw-pddl` files at any depth.
        world: name and version of the world, part of every task id.
        dialect: the dialect of the tasks, part of their specs.
        sizes: maximum number of tasks of each split, the first by name (None: all of them).

    Raises:
        ConfigError: the folder does not exist, or has no game file.
    """

    def __init__(self, folder: str | Path, world: tuple[str, str], *, dialect: str, sizes: Sizes | None = None) -> None:
        self.folder = Path(folder)
        self._world, self._dialect, self._sizes = world, dialect, sizes
        names = find_games(self.folder)
        if not names:
            raise ConfigError("folder without game files", value=str(folder), hint="run alfworld-download")
        panel_names = {name: _panel_of_path(name) for name in names}
        has_official_folders = all(panel_names.values())
        tiers = (
            {panel_name[1] for panel_name in panel_names.values() if panel_name} if has_official_folders else {"seen"}
        )
        self.tiers: tuple[str, ...] = tuple(tier for tier in ("seen", "combo") if tier in tiers | {"seen"})
        self._names = {name: panel_names[name] if has_official_folders else None for name in names}
        self._panels: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._tasks: dict[str, Task | None] = {}
        self.broken: dict[str, CorruptRecord] = {}

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the tasks of a split and tier in path order; broken files are left out (see `broken`)."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._panels:
            names = [
                name for name, panel_name in self._names.items() if panel_name is None or panel_name == (split, tier)
            ]
            split_tasks = [task for task in map(self._get_task, names) if task is not None and task.split == split]
            limit = None if self._sizes is None else self._sizes.of(split)
            self._panels[split, tier] = tuple(split_tasks[:limit])
        return self._panels[split, tier]

    def _get_task(self, name: str) -> Task | None:
        if name not in self._tasks:
            self._tasks[name] = self._load_task(name)
        return self._tasks[name]

    def _load_task(self, name: str) -> Task | None:
        try:
            game = read_game(safe_join(self.folder, name))
        except CorruptRecord as error:
            self.broken[name] = error
            return None
        split, tier = self._names.get(name) or (split_of({"key": canonical_key(game)}, salt=self._world[0]), "seen")
        spec: dict[str, Json] = {"dialect": self._dialect, "game": name, "sha256": self._digest(name)}
        return Task(*self._world, spec, " ".join(game.goal), tier, split)

    def task_of_game(self, name: str) -> Task:
        """Returns the task of a game file, by its path below the folder; raises the error of a broken file."""
        task = self._get_task(name)
        if task is None:
            raise self.broken[name]
        return task

    def _digest(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def load_game(self, task: Task) -> Game:
        """Loads the game of a task.

        Raises:
            ConfigError: the spec does not name a file of this folder.
            UnsafePath: it names a file outside the folder.
            VersionMismatch: the file has changed since the task was made.
            CorruptRecord: the file is not a game.
        """
        name = task.spec.get("game")
        if not isinstance(name, str) or set(task.spec) != {"dialect", "game", "sha256"}:
            raise ConfigError(
                "the task does not name a game file", value=sorted(task.spec), expected="dialect, game, sha256"
            )
        file = safe_join(self.folder, name)
        if not file.is_file():
            raise ConfigError("game not found", value=name, hint=f"the folder is {self.folder}")
        if self._digest(name) != task.spec["sha256"]:
            raise VersionMismatch(
                f"another version of the game {name}", value=task.spec["sha256"], expected=self._digest(name)
            )
        return read_game(file)


def _panel_of_path(name: str) -> tuple[str, str] | None:
    """Returns the split and tier that a path's folders name."""
    return next((_PANEL_OF_FOLDER[part] for part in PurePosixPath(name).parts[:-1] if part in _PANEL_OF_FOLDER), None)
