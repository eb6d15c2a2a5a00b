"""Worlds of servers by name: `http://HOST/v1/worlds/NAME`, `agentgym:DIALECT@URL#0-99`, `openenv:URL#100`.

The part after `#` selects the tasks: indices of an AgentGym server, or the number of seeds of an OpenEnv
server.
"""

from __future__ import annotations

import os
import re

from evolvent.errors import ConfigError, Problem
from evolvent.worlds.base import World

__all__ = ["TOKEN_VARIABLE", "open_agentgym_world", "open_http_world", "open_https_world", "open_openenv_world"]

TOKEN_VARIABLE = "EVOLVENT_TOKEN"  # the environment variable that holds the token of a server
_MAX_TASKS = 100_000  # tasks of one server


def _read_token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


def open_http_world(address: str) -> World:
    """Opens a world of an evolvent server by its address without `http:`."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"http:{address}", token=_read_token())


def open_https_world(address: str) -> World:
    """Opens a world of an evolvent server by its address without `https:`."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"https:{address}", token=_read_token())


def open_agentgym_world(option: str) -> World:
    """Opens a world of an AgentGym server: `DIALECT@URL#FIRST-LAST`."""
    from evolvent.serve.agentgym.client import AgentGymWorld

    match = re.fullmatch(r"(?P<dialect>[^@#]+)@(?P<url>[^#]+)#(?P<first>\d{1,9})-(?P<last>\d{1,9})", option)
    if match is None:
        raise ConfigError(
            [
                Problem(
                    "agentgym",
                    f"got {option!r}, expected DIALECT@URL#FIRST-LAST",
                    "for example agentgym:textcraft@http://127.0.0.1:36001#0-99",
                )
            ]
        )
    first, last = int(match["first"]), int(match["last"])
    if last < first or last - first >= _MAX_TASKS:
        raise ConfigError(
            [Problem("agentgym", f"got the tasks {first}-{last}", f"give at most {_MAX_TASKS:,}, upwards")]
        )
    return AgentGymWorld(match["url"], match["dialect"], range(first, last + 1), token=_read_token())


def open_openenv_world(option: str) -> World:
    """Opens the environment of an OpenEnv server, `URL#SEEDS`, reset with the seeds 0, 1, ..."""
    from evolvent.serve.openenv.client import OpenEnvWorld

    url, hash_sign, seeds = option.partition("#")
    if not url or (hash_sign and not re.fullmatch(r"[1-9]\d{0,4}", seeds)):
        raise ConfigError(
            [
                Problem(
                    "openenv",
                    f"got {option!r}, expected URL or URL#SEEDS",
                    "for example openenv:http://127.0.0.1:8000#100",
                )
            ]
        )
    return OpenEnvWorld(url, tasks=[{"seed": seed} for seed in range(int(seeds or 100))], token=_read_token())
