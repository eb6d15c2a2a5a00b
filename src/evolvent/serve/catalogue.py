"""The tasks a server offers: by id, by index, by panel. Panels are dealt once, off the event loop.

By default a client can name tasks of these panels only. A spec that a client wrote itself goes into a world's code,
and some worlds read the files that a spec names: that is for servers whose clients are trusted (`specs=True`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evolvent.errors import ConfigError, Problem, WorldError, boundary, unknown
from evolvent.serve.wire import NotFound, task_of
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.panel import check_names

__all__ = ["Catalogue"]

_PREFIX = 4  # so many characters of an id are enough to name the task that may have been meant


@dataclass(slots=True)
class _Dealt:
    """All tasks of a world in the order of their indices, and where an id stands."""

    tasks: list[Task] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)


class Catalogue:
    """The panels of all worlds of a server.

    Args:
        worlds: by the name they are served under.
        specs: whether a task that is in no panel may be played; the world then judges its spec.
    """

    def __init__(self, worlds: Mapping[str, World], *, specs: bool = False) -> None:
        self._worlds, self._specs = worlds, specs
        self._dealt: dict[str, asyncio.Task[_Dealt]] = {}

    async def task(self, world: str, id: str) -> Task:
        """The task of this id.

        Raises:
            NotFound: no such world or task; names the task whose id begins like this one, where there is one.
        """
        dealt = await self._of(world)
        place = dealt.places.get(id)
        if place is None:
            raise NotFound([Problem("task", f"unknown task {id[:64]!r} of {world!r}", _hint(id, dealt))])
        return dealt.tasks[place]

    async def find(self, world: str, given: object) -> Task:
        """The task that a request names by its id or gives as a whole row.

        Raises:
            NotFound: no such world or task, or a row whose task is in no panel here.
            SampleInvalid: a row that is none.
        """
        if isinstance(given, str):
            return await self.task(world, given)
        found = task_of(given)
        dealt = await self._of(world)
        place = dealt.places.get(found.id)
        if place is not None:
            return dealt.tasks[place]
        if not self._specs:
            hint = "choose one of its panels, or start the server with allow_specs"
            raise NotFound([Problem("task", f"the task {found.id} is in no panel of {world!r} here", hint)])
        if found.world != world:
            raise ConfigError([Problem("task", f"a task of the world {found.world!r}, expected one of {world!r}")])
        return found

    async def at(self, world: str, index: int) -> Task:
        """The task of this index: the train panels of all tiers in their order, then dev, then test.

        Raises:
            NotFound: no such world.
            ConfigError: an index out of range, which it names.
        """
        tasks = (await self._of(world)).tasks
        if not 0 <= index < len(tasks):
            raise ConfigError([Problem("index", f"no task {index} of {world!r}", f"expected 0 to {len(tasks) - 1}")])
        return tasks[index]

    async def count(self, world: str) -> int:
        """How many tasks the world has in all panels."""
        return len((await self._of(world)).tasks)

    async def panel(self, world: str, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split and tier; ConfigError for names that do not exist."""
        await self._of(world)
        found = self._worlds[world]
        check_names(split, tier, found.tiers)
        return found.tasks(split, tier)

    async def _of(self, world: str) -> _Dealt:
        """The world's tasks, dealt by whoever asks first. A dealing that failed is tried again by the next."""
        if world not in self._worlds:
            raise NotFound([unknown("world", world, self._worlds)])
        task = self._dealt.get(world)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._dealt[world] = asyncio.create_task(asyncio.to_thread(_deal, self._worlds[world]))
        return task.result() if task.done() else await asyncio.shield(task)


def _deal(world: World) -> _Dealt:
    dealt = _Dealt()
    with boundary(WorldError, f"the panels of {world.name!r} cannot be dealt"):
        for split in SPLITS:
            for tier in world.tiers:
                for task in world.tasks(split, tier):
                    dealt.places.setdefault(task.id, len(dealt.tasks))
                    dealt.tasks.append(task)
    return dealt


def _hint(id: str, dealt: _Dealt) -> str:
    near = [known for known in dealt.places if len(id) >= _PREFIX and known.startswith(id[:_PREFIX])]
    near.sort(key=lambda known: (-_common(known, id), known))
    return f"did you mean {near[0]!r}?" if near else f"it has {len(dealt.tasks)} tasks; its panels list them"


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
