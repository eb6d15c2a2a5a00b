"""The tasks that a server offers: by id, by index, by panel. Panels are built once, off the event loop.

By default a client can name tasks of these panels only. A spec that a client wrote itself goes into a world's code,
and some worlds read the files that a spec names: that is for servers whose clients are trusted (`specs=True`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evolvent.errors import ConfigError, Problem, WorldError, boundary, unknown_name_problem
from evolvent.serve.wire import NotFound, decode_task
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.panel import check_names

__all__ = ["TaskIndex"]

_MIN_HINT_CHARS = 4  # so many characters of an id are enough to name the task that may have been meant


@dataclass(slots=True)
class _TaskList:
    """All tasks of a world in the order of their indices, and the index of each id."""

    tasks: list[Task] = field(default_factory=list)
    index_by_id: dict[str, int] = field(default_factory=dict)


class TaskIndex:
    """The panels of all worlds of a server.

    Args:
        worlds: worlds by the name they are served under.
        specs: whether a task that is in no panel may be played; the world then checks its spec.
    """

    def __init__(self, worlds: Mapping[str, World], *, specs: bool = False) -> None:
        self._worlds, self._specs = worlds, specs
        self._dealt: dict[str, asyncio.Task[_TaskList]] = {}

    async def get_by_id(self, world: str, id: str) -> Task:
        """Returns the task of this id.

        Raises:
            NotFound: no such world or task; names the task whose id begins like this one, if there is one.
        """
        task_list = await self._load_tasks(world)
        index = task_list.index_by_id.get(id)
        if index is None:
            raise NotFound([Problem("task", f"unknown task {id[:64]!r} of {world!r}", _suggest_task(id, task_list))])
        return task_list.tasks[index]

    async def get(self, world: str, task_or_id: object) -> Task:
        """Returns the task that a request names by its id or gives as a whole row.

        Raises:
            NotFound: no such world or task, or a row whose task is in no panel here.
            SampleInvalid: an invalid row.
        """
        if isinstance(task_or_id, str):
            return await self.get_by_id(world, task_or_id)
        task = decode_task(task_or_id)
        task_list = await self._load_tasks(world)
        index = task_list.index_by_id.get(task.id)
        if index is not None:
            return task_list.tasks[index]
        if not self._specs:
            hint = "choose a task of its panels, or start the server with allow_specs"
            raise NotFound([Problem("task", f"task {task.id} is not in a panel of world {world!r}", hint)])
        if task.world != world:
            raise ConfigError([Problem("task", f"got a task of world {task.world!r}, expected a task of {world!r}")])
        return task

    async def get_by_index(self, world: str, index: int) -> Task:
        """Returns the task of this index: the train panels of all tiers in their order, then dev, then test.

        Raises:
            NotFound: no such world.
            ConfigError: an index out of range, which it names.
        """
        tasks = (await self._load_tasks(world)).tasks
        if not 0 <= index < len(tasks):
            raise ConfigError([Problem("index", f"got {index} in world {world!r}, expected 0 to {len(tasks) - 1}")])
        return tasks[index]

    async def count_tasks(self, world: str) -> int:
        """Returns the number of tasks that the world has in all panels."""
        return len((await self._load_tasks(world)).tasks)

    async def get_panel(self, world: str, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of a split and tier; raises ConfigError for names that do not exist."""
        await self._load_tasks(world)
        served_world = self._worlds[world]
        check_names(split, tier, served_world.tiers)
        return served_world.tasks(split, tier)

    async def _load_tasks(self, world: str) -> _TaskList:
        """Returns the world's tasks, built on the first request. A failed build is repeated by the next request."""
        if world not in self._worlds:
            raise NotFound([unknown_name_problem("world", world, self._worlds)])
        loading = self._dealt.get(world)
        if loading is None or (loading.done() and (loading.cancelled() or loading.exception() is not None)):
            loading = self._dealt[world] = asyncio.create_task(asyncio.to_thread(_build_task_list, self._worlds[world]))
        return loading.result() if loading.done() else await asyncio.shield(loading)


def _build_task_list(world: World) -> _TaskList:
    task_list = _TaskList()
    with boundary(WorldError, f"the panels of {world.name!r} cannot be dealt"):
        for split in SPLITS:
            for tier in world.tiers:
                for task in world.tasks(split, tier):
                    task_list.index_by_id.setdefault(task.id, len(task_list.tasks))
                    task_list.tasks.append(task)
    return task_list


def _suggest_task(id: str, task_list: _TaskList) -> str:
    similar_ids = [
        known_id
        for known_id in task_list.index_by_id
        if len(id) >= _MIN_HINT_CHARS and known_id.startswith(id[:_MIN_HINT_CHARS])
    ]
    similar_ids.sort(key=lambda known_id: (-_common_prefix_length(known_id, id), known_id))
    return (
        f"did you mean {similar_ids[0]!r}?"
        if similar_ids
        else f"it has {len(task_list.tasks)} tasks; its panels list them"
    )


def _common_prefix_length(first: str, second: str) -> int:
    """Returns the number of characters that both begin with."""
    return next(
        (position for position, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first)
    )
