"""The LoRA adapters that a served policy has loaded: each a model of its own name over the served base.

They share the base's weights, and have an engine each. Requests that name an adapter are answered by it, others by the
base. The routes are those of vLLM and SGLang, so that a trainer can send an adapter alone to any of the three.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from evolvent.engine.asks import Usage
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.serve.openai.generator import Generator
from evolvent.serve.wire import NotFound

__all__ = ["AdapterTable", "sum_usage"]

_log = logging.getLogger(__name__)
_MAX_DRAIN_S, _DRAIN_POLL_S = 60.0, 0.01  # how long replies of a dropped adapter may take, and between two looks
_SUMMED = ("generated", "computed")
D = TypeVar("D")  # what answers requests: the dialect of a policy


@dataclass(slots=True, eq=False)
class _LoadedAdapter(Generic[D]):
    dialect: D
    generator: Generator


def sum_usage(usages: list[Usage]) -> Usage:
    """Adds the tokens that engines have written and computed."""
    return Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in _SUMMED})


class AdapterTable(Generic[D]):
    """The loaded adapters by name, those used longest ago first.

    Args:
        max_loaded: maximum number of adapters. One more drops the one that was used longest ago.
    """

    def __init__(self, *, max_loaded: int = 8) -> None:
        self._max_loaded = max_loaded
        self._loaded: OrderedDict[str, _LoadedAdapter[D]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._past_usage = Usage()

    @property
    def names(self) -> list[str]:
        """Returns the names of the adapters, those used longest ago first."""
        return list(self._loaded)

    @property
    def dialects(self) -> list[D]:
        """Returns what answers for each adapter, in the order of `names`."""
        return [loaded.dialect for loaded in self._loaded.values()]

    def count_usage(self) -> Usage:
        """Returns the tokens of all adapters so far, the dropped ones included."""
        return sum_usage([self._past_usage, *(loaded.generator.usage for loaded in self._loaded.values())])

    def find(self, name: str) -> D | None:
        """Returns what answers for an adapter, and counts as a use of it; None for an unknown one."""
        loaded = self._loaded.get(name)
        if loaded is None:
            return None
        self._loaded.move_to_end(name)
        return loaded.dialect

    def check_name(self, name: str, *, base: str) -> None:
        """Checks that an adapter may have a name. Raises ConfigError for one that is taken, in vLLM's words."""
        if name == base:
            raise ConfigError([Problem("lora_name", f"{name[:80]!r} is the name of the base", "use another name")])
        if name in self._loaded:
            raise ConfigError(
                [Problem("lora_name", f"the lora adapter {name[:80]!r} has already been loaded", "unload it first")]
            )

    async def add(self, name: str, generator: Generator, make_dialect: Callable[[Generator], D]) -> None:
        """Starts to answer for an adapter."""
        await generator.__aenter__()
        self._loaded[name] = _LoadedAdapter(make_dialect(generator), generator)
        while len(self._loaded) > self._max_loaded:
            self._drop(next(iter(self._loaded)))

    def remove(self, name: str) -> None:
        """Drops an adapter once its requests under way are answered. Raises NotFound for an unknown one."""
        if name not in self._loaded:
            raise NotFound([unknown_name_problem("adapter", name[:80], self.names)])
        self._drop(name)

    def remove_all(self) -> None:
        """Drops all adapters, as their base is replaced."""
        for name in self.names:
            self._drop(name)

    async def close(self) -> None:
        """Ends all adapters at once."""
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for loaded in self._loaded.values():
            await loaded.generator.__aexit__(None, None, None)
        self._loaded.clear()

    def _drop(self, name: str) -> None:
        loaded = self._loaded.pop(name)
        _log.info("the adapter %s is not served any more", name)
        task = asyncio.get_running_loop().create_task(self._end(loaded.generator))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, generator: Generator) -> None:
        """Waits for the replies under way, then ends the thread of the engine."""
        deadline = time.monotonic() + _MAX_DRAIN_S
        try:
            while generator.open and time.monotonic() < deadline:
                await asyncio.sleep(_DRAIN_POLL_S)
        finally:
            self._past_usage = sum_usage([self._past_usage, generator.usage])
            await generator.__aexit__(None, None, None)
