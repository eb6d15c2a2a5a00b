"""Worlds of servers by name: `http://HOST/v1/worlds/NAME`, `agentgym:DIALECT@URL#0-99`, `openenv:URL#100`.

What comes after `#` says which tasks: indices of an AgentGym server, or how many seeds of an OpenEnv one.
"""

from __future__ import annotations

import os
import re

from evolvent.errors import ConfigError, Problem
from evolvent.worlds.base import World

__all__ = ["TOKEN", "agentgym", "native", "openenv", "secure"]

TOKEN = "EVOLVENT_TOKEN"  # the environment variable that holds the token of a server
_MOST = 100_000  # tasks of one server


def _token() -> str | None:
    return os.environ.get(TOKEN) or None


def native(rest: str) -> World:
    """A world of an evolvent server, by its address without `http:`."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"http:{rest}", token=_token())


def secure(rest: str) -> World:
    """The same over https."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"https:{rest}", token=_token())


def agentgym(option: str) -> World:
    """A world of an AgentGym server: `DIALECT@URL#FIRST-LAST`."""
    from evolvent.serve.agentgym.client import AgentGymWorld

    found = re.fullmatch(r"(?P<dialect>[^@#]+)@(?P<url>[^#]+)#(?P<first>\d{1,9})-(?P<last>\d{1,9})", option)
    if found is None:
        raise ConfigError(
            [
                Problem(
                    "agentgym",
                    f"got {option!r}, expected DIALECT@URL#FIRST-LAST",
                    "for example agentgym:textcraft@http://127.0.0.1:36001#0-99",
                )
            ]
        )
    first, last = int(found["first"]), int(found["last"])
    if last < first or last - first >= _MOST:
        raise ConfigError([Problem("agentgym", f"got the tasks {first}-{last}", f"give at most {_MOST:,}, upwards")])
    return AgentGymWorld(found["url"], found["dialect"], range(first, last + 1), token=_token())


def openenv(option: str) -> World:
    """The environment of an OpenEnv server: `URL#SEEDS`, reset with the seeds 0, 1, ..."""
    from evolvent.serve.openenv.client import OpenEnvWorld

    url, mark, seeds = option.partition("#")
    if not url or (mark and not re.fullmatch(r"[1-9]\d{0,4}", seeds)):
        raise ConfigError(
            [
                Problem(
                    "openenv",
                    f"got {option!r}, expected URL or URL#SEEDS",
                    "for example openenv:http://127.0.0.1:8000#100",
                )
            ]
        )
    return OpenEnvWorld(url, tasks=[{"seed": seed} for seed in range(int(seeds or 100))], token=_token())
