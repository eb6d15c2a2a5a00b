"""Address of a cluster and resources of a player on it: `--on ray`, `--on HOST:PORT`, `--on ray://HOST:PORT`.

    here?players=N         so many processes of this machine, without Ray
    ray                    a separate cluster of this machine alone, which ends with the command
    HOST:PORT              the cluster whose head is there; this machine is one of its nodes
    ray://HOST:PORT        the same from outside, through Ray's client server (10001 by default)

The resources of a player follow a question mark: `ray?players=2`, `HOST:6379?cpus=4&gpus=1&minecraft=1`. Every
name that is not `players`, `cpus` or `gpus` is a custom resource of the cluster, which assigns worlds and
engines to nodes that can hold them.
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
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from evolvent.errors import ConfigError, EndpointError, MissingExtra, Problem, boundary

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Cluster", "Placement", "connect", "count_player_slots", "parse_cluster"]

_ENDPOINT = "HOST:PORT"
_MIN_AMOUNT = 1e-4  # of a resource: Ray counts no finer


@dataclass(frozen=True)
class Placement:
    """The number of players, their resources, and the waiting times for a silent cluster.

    Args:
        players: Number of players; None: as many as fit on the present nodes.
        cpus, gpus, resources: Resources of one player; `resources` are custom ones, by name.
        lost_s: Seconds without any living player after which a job fails.
        silent_s: Seconds without a message after which a player counts as lost: longer than the longest episode.
    """

    players: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    lost_s: float = 300.0
    silent_s: float = 1800.0

    def ray_resources(self) -> dict[str, float]:
        """Returns the resources of a player, by Ray's names."""
        return {
            name: amount
            for name, amount in {"CPU": self.cpus, "GPU": self.gpus, **self.resources}.items()
            if amount > 0
        }


@dataclass(frozen=True)
class Cluster:
    """A cluster: its address (None: a separate local cluster), and the resources of players.

    Args:
        is_here: Whether players are processes of this machine, without Ray.
    """

    address: str | None
    placement: Placement = field(default_factory=Placement)
    is_here: bool = False


def parse_cluster(option: str) -> Cluster:
    """Parses the value of `--on`.

    Raises:
        ConfigError: an address that is none, or amounts that are no numbers; all of it at once.
    """
    address, _, query = option.partition("?")
    problems: list[Problem] = []
    is_here = address == "here"
    host_port = address.removeprefix("ray://")
    host, colon, port = host_port.rpartition(":")
    if address not in ("ray", "here") and not (
        colon and host and "/" not in host and port.isdigit() and 0 < int(port) < 65536
    ):
        problem = f"got {address!r}, expected ray, {_ENDPOINT}, ray://{_ENDPOINT} or here?players=N"
        problems.append(Problem("backend", problem, "set backend to 'ray' to start a cluster on this machine"))
    amounts: dict[str, float] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        amount = _parse_amount(text)
        if name in ("CPU", "GPU"):  # Ray's own names are no custom resources
            problems.append(Problem(f"backend, {name}", "is not a custom resource", f"write {name.lower()}s"))
            continue
        if amount and amount < _MIN_AMOUNT:
            problems.append(Problem(f"backend, {name}", f"got {text!r}, expected a multiple of {_MIN_AMOUNT:g}"))
            continue
        min_amount = 1 if name == "players" else 0
        if amount is None or amount < min_amount or (name == "players" and amount != floor(amount)):
            problems.append(Problem(f"backend, {name}", f"got {text!r}, expected a number of {min_amount} or more"))
        else:
            amounts[name] = amount
    if is_here and not problems and set(amounts) != {"players"}:
        got = ", ".join(sorted(amounts)) or "nothing"
        problems.append(
            Problem("backend, here", f"takes a number of players alone: got {got}", "write here?players=1, or ray?...")
        )
    if query and not amounts and not problems:
        problems.append(Problem("backend", f"got {query!r} after the question mark", "write NAME=AMOUNT&NAME=AMOUNT"))
    if problems:
        raise ConfigError(problems)
    players, cpus, gpus = (
        amounts.pop("players", None),
        round(amounts.pop("cpus", 1.0), 4),
        round(amounts.pop("gpus", 0.0), 4),
    )
    amounts = {name: round(amount, 4) for name, amount in amounts.items()}
    placement = Placement(None if players is None else int(players), cpus, gpus, amounts)
    return Cluster(None if address in ("ray", "here") else address, placement, is_here)


def _parse_amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if 0 <= amount < inf else None


@contextmanager
def connect(cluster: Cluster) -> Iterator[ModuleType]:
    """Yields Ray's module, connected; the connection, and a separate local cluster, end with the block.

    A cluster of its own sends no usage statistics and shows no dashboard. A connection that was there before is used
    and left.

    Raises:
        MissingExtra: Ray is not installed. EndpointError: no cluster answers there.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "collecting on a cluster") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if cluster.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False}
    # Ray ends a process that cannot reach its cluster's head for a minute. Ours ends by its own deadline, in order.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(int(cluster.placement.lost_s) + 60))
    with (
        boundary(EndpointError, "no Ray cluster was reached", at=cluster.address or "this machine"),
        _preserve_sigterm(),
    ):
        ray.init(address=cluster.address or "local", **options)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _preserve_sigterm() -> Iterator[None]:
    """Restores this process's handler of SIGTERM, which Ray replaces."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main_thread and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def count_player_slots(ray: ModuleType, placement: Placement) -> int:
    """Counts the players that fit on the living nodes, if nobody else uses them.

    Raises:
        ConfigError: none of them has room for one.
    """
    needs = placement.ray_resources()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count = sum(_count_fitting(node, needs) for node in nodes)
    if not count:
        node_resources = [{name: node.get(name, 0) for name in needs} for node in nodes]
        raise ConfigError(
            [
                Problem(
                    "backend",
                    f"no node has room for a player: got {node_resources}, expected {needs}",
                    "lower the requested resources, or set the number of players to wait for: ?players=N",
                )
            ]
        )
    return count


def _count_fitting(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    return min((floor(node.get(name, 0) / amount) for name, amount in needs.items()), default=1)
