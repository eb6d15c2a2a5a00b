"""The tasks of a folder of ALFWorld's game files.

Where the folder has ALFWorld's own subfolders, they are the splits: `train` is trained on, `valid_train` is dev,
`valid_seen` is test of the tier `seen`; `valid_unseen`, known things in rooms never seen, is test of the tier `combo`.
Any other folder has the tier `seen`, and its games are split by the hash of what they hold.
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

_PLACES: Mapping[str, tuple[str, str]] = {
    "train": ("train", "seen"),
    "valid_train": ("dev", "seen"),
    "valid_seen": ("test", "seen"),
    "valid_unseen": ("test", "combo"),
}


class Collection:
    """The games of a folder, read when a split is first asked for.

    Args:
        folder: holds `game.tw-pddl` files at any depth.
        world: name and version of the world, part of every task id.
        dialect: the dialect in which the tasks are played, part of their specs.
        sizes: at most so many tasks of each split, the first by name (None: all of them).

    Raises:
        ConfigError: there is no such folder, or no game file in it.
    """

    def __init__(self, folder: str | Path, world: tuple[str, str], *, dialect: str, sizes: Sizes | None = None) -> None:
        self.folder = Path(folder)
        self._world, self._dialect, self._sizes = world, dialect, sizes
        names = find_games(self.folder)
        if not names:
            raise ConfigError("no game files in this folder", value=str(folder), hint="run alfworld-download")
        places = {name: _place(name) for name in names}
        official = all(places.values())
        tiers = {place[1] for place in places.values() if place} if official else {"seen"}
        self.tiers: tuple[str, ...] = tuple(tier for tier in ("seen", "combo") if tier in tiers | {"seen"})
        self._names = {name: places[name] if official else None for name in names}
        self._panels: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._tasks: dict[str, Task | None] = {}
        self.broken: dict[str, CorruptRecord] = {}

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """The tasks of a split and tier in the order of their paths; broken files are left out (see `broken`)."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._panels:
            names = [name for name, place in self._names.items() if place is None or place == (split, tier)]
            found = [task for task in map(self._task, names) if task is not None and task.split == split]
            limit = None if self._sizes is None else self._sizes.of(split)
            self._panels[split, tier] = tuple(found[:limit])
        return self._panels[split, tier]

    def _task(self, name: str) -> Task | None:
        if name not in self._tasks:
            self._tasks[name] = self._read(name)
        return self._tasks[name]

    def _read(self, name: str) -> Task | None:
        try:
            game = read_game(self.folder / name)
        except CorruptRecord as error:
            self.broken[name] = error
            return None
        split, tier = self._names[name] or (split_of({"key": canonical_key(game)}, salt=self._world[0]), "seen")
        spec: dict[str, Json] = {"dialect": self._dialect, "game": name, "sha256": self._digest(name)}
        return Task(*self._world, spec, " ".join(game.goal), tier, split)

    def _digest(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def game(self, task: Task) -> Game:
        """The game of a task.

        Raises:
            ConfigError: the spec names no file of this folder.
            UnsafePath: it names a file outside of it.
            VersionMismatch: the file is another than the task was made of.
            CorruptRecord: it is no game.
        """
        name = task.spec.get("game")
        if not isinstance(name, str) or set(task.spec) != {"dialect", "game", "sha256"}:
            raise ConfigError("not a task of a game file", value=sorted(task.spec), expected="dialect, game, sha256")
        file = safe_join(self.folder, name)
        if not file.is_file():
            raise ConfigError("no such game in this folder", value=name, hint=f"the folder is {self.folder}")
        if self._digest(name) != task.spec["sha256"]:
            raise VersionMismatch(
                f"another version of the game {name}", value=task.spec["sha256"], expected=self._digest(name)
            )
        return read_game(file)


def _place(name: str) -> tuple[str, str] | None:
    """The split and tier that a path's folders name."""
    return next((_PLACES[part] for part in PurePosixPath(name).parts[:-1] if part in _PLACES), None)
