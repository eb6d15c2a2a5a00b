"""Which cluster, and what a player on it takes: `--on ray`, `--on HOST:PORT`, `--on ray://HOST:PORT`.

    ray                    a cluster of its own, of this machine alone, which ends with the command
    HOST:PORT              the cluster whose head is there; this machine is one of its nodes
    ray://HOST:PORT        the same from outside, through Ray's client server (10001 by default)

What a player takes follows a question mark: `ray?players=2`, `HOST:6379?cpus=4&gpus=1&minecraft=1`. Every name that is
not `players`, `cpus` or `gpus` is a custom resource of the cluster, which is how worlds and engines are put on the
nodes that can hold them.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor, inf
from typing import Any
from urllib.parse import parse_qsl

from evolvent.errors import ConfigError, EndpointError, MissingExtra, Problem, boundary

__all__ = ["Placing", "Where", "connected", "room", "where"]

_ENDPOINT = "HOST:PORT"
_LEAST = 1e-4  # of a resource: Ray counts no finer


@dataclass(frozen=True)
class Placing:
    """How many players there are, what each takes of its node, and how long a silent cluster is waited for.

    Args:
        players: None: as many as the nodes that are there have room for.
        cpus, gpus, resources: of one player; `resources` are custom ones, by name.
        lost_s: seconds without any living player after which a job fails.
        silent_s: seconds without a word after which a player counts as lost: longer than the longest episode.
    """

    players: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    lost_s: float = 300.0
    silent_s: float = 1800.0

    def needs(self) -> dict[str, float]:
        """What a player takes, by Ray's names."""
        return {
            name: amount
            for name, amount in {"CPU": self.cpus, "GPU": self.gpus, **self.resources}.items()
            if amount > 0
        }


@dataclass(frozen=True)
class Where:
    """A cluster. address: None: one of its own."""

    address: str | None
    placing: Placing = field(default_factory=Placing)


def where(told: str) -> Where:
    """What `--on` says.

    Raises:
        ConfigError: an address that is none, or amounts that are no numbers; all of it at once.
    """
    address, _, asked = told.partition("?")
    problems = []
    plain = address.removeprefix("ray://")
    host, colon, port = plain.rpartition(":")
    if address != "ray" and not (colon and host and "/" not in host and port.isdigit() and 0 < int(port) < 65536):
        what = f"got {address!r}, expected ray, {_ENDPOINT} or ray://{_ENDPOINT}"
        problems.append(Problem("on", what, "ray starts a cluster of its own on this machine"))
    amounts: dict[str, float] = {}
    for name, text in parse_qsl(asked, keep_blank_values=True):
        amount = _amount(text)
        if name in ("CPU", "GPU"):  # Ray's own names are no custom resources
            problems.append(Problem(f"on, {name}", "is no custom resource", f"write {name.lower()}s"))
            continue
        if amount and amount < _LEAST:
            problems.append(Problem(f"on, {name}", f"got {text!r}", f"Ray counts in steps of {_LEAST:g}"))
            continue
        least = 1 if name == "players" else 0
        if amount is None or amount < least or (name == "players" and amount != floor(amount)):
            problems.append(Problem(f"on, {name}", f"got {text!r}, expected a number of {least} or more"))
        else:
            amounts[name] = amount
    if asked and not amounts and not problems:
        problems.append(Problem("on", f"got {asked!r} after the question mark", "write NAME=AMOUNT&NAME=AMOUNT"))
    if problems:
        raise ConfigError(problems)
    players, cpus, gpus = (
        amounts.pop("players", None),
        round(amounts.pop("cpus", 1.0), 4),
        round(amounts.pop("gpus", 0.0), 4),
    )
    amounts = {name: round(amount, 4) for name, amount in amounts.items()}
    placing = Placing(None if players is None else int(players), cpus, gpus, amounts)
    return Where(None if address == "ray" else address, placing)


def _amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if 0 <= amount < inf else None


@contextmanager
def connected(cluster: Where) -> Iterator[Any]:
    """Ray's module, connected; the connection, and a cluster of its own, end with the block.

    A cluster of its own sends no usage statistics and shows no dashboard. A connection that was there before is used
    and left.

    Raises:
        MissingExtra: Ray is not installed. EndpointError: no cluster answers there.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "playing on a cluster") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if cluster.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False}
    # Ray ends a process that cannot reach its cluster's head for a minute. Ours ends by its own deadline, in order.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(int(cluster.placing.lost_s) + 60))
    with boundary(EndpointError, "no Ray cluster was reached", at=cluster.address or "this machine"), _own_signals():
        ray.init(address=cluster.address or "local", **options)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """What this process does on SIGTERM stays as it was: Ray puts its own in its place."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if here and before is not None:
            signal.signal(signal.SIGTERM, before)


def room(ray: Any, placing: Placing) -> int:
    """How many players the living nodes have room for, if nobody else uses them.

    Raises:
        ConfigError: none of them has room for one.
    """
    needs = placing.needs()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count = sum(_fits(node, needs) for node in nodes)
    if not count:
        has = [{name: node.get(name, 0) for name in needs} for node in nodes]
        raise ConfigError(
            [
                Problem(
                    "on",
                    f"no node has room for a player: it takes {needs}, the nodes have {has}",
                    "ask for less, or say how many players to wait for: ?players=N",
                )
            ]
        )
    return count


def _fits(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    return min((floor(node.get(name, 0) / amount) for name, amount in needs.items()), default=1)
