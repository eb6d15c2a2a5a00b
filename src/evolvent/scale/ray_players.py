"""The players of a run, on a cluster or in processes of this machine: started, given slices, queried, and replaced
when they or their nodes are lost.

    with open_players(parse_cluster("ray"), WorldFactory("package.module:worlds"), worlds) as pool:
        for item, info, line in pool.run_job(job):
            ...

Every item ends once. The items of a lost player that it had not returned are dealt again, by task and seed,
with the same results.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from evolvent import errors
from evolvent.deadline import Deadline, backoff
from evolvent.errors import EndpointError, EngineError, EvolventError
from evolvent.models.policy import Policy
from evolvent.scale.player_processes import open_processes
from evolvent.scale.ray_cluster import Cluster, Placement, connect, count_player_slots
from evolvent.scale.ray_versions import read_versions
from evolvent.scale.ray_wire import PolicyFiles, PolicyPacker, build_message, parse_message
from evolvent.scale.ray_work import ClusterJob, WorkItem, WorkQueue
from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FinishedItem", "PlayerPool", "WorldFactory", "make_error", "open_players"]

_log = logging.getLogger(__name__)
_AHEAD = 2  # calls that wait at a player, so that it need not wait for this process
_BATCH, _BATCH_S = 512, 0.25  # most that a player hands over at once; how long it gathers
_POLL_S = 0.5


@dataclass(frozen=True)
class WorldFactory:
    """The function that creates the worlds on players: a function by name, as in entry points, and its arguments.

    Args:
        function_path: `package.module:function`; it returns worlds by name. The package is installed on every node.
        arguments: JSON values.
    """

    function_path: str
    arguments: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedItem:
    """An item that has ended.

    Attributes:
        item: The item.
        info: The player's message about it; `lost`: number of players lost with it, where it was given up.
        line: Line of its trajectory; empty where there is none.
    """

    item: WorkItem
    info: JsonObject
    line: bytes


class _PlayerHost(Protocol):
    """Starts players, carries calls to them, and keeps files of weights for them."""

    def start(self, setup: bytes, /) -> Any:
        """Starts a player."""
        ...

    def call(self, player: Any, name: str, /, *arguments: Any) -> Any:
        """Calls a method of a player; calls of one player are answered in their order."""
        ...

    def wait(self, calls: Sequence[Any], /, *, timeout_s: float) -> Sequence[Any]:
        """Waits until one of the calls is answered; returns the answered ones, none after `timeout_s` seconds."""
        ...

    def take_answer(self, call: Any, /) -> bytes | None:
        """Returns the answer to a call; None where the player is lost."""
        ...

    def end(self, player: Any, /) -> None:
        """Ends a player."""
        ...

    def store(self, content: NDArray[np.uint8], /) -> Any:
        """Stores the content of a file for all players; what it returns may be an argument of a call."""
        ...


class _RayHost:
    """Players as actors on a connected Ray cluster; a `_PlayerHost`."""

    def __init__(self, ray: ModuleType, placement: Placement) -> None:
        from evolvent.scale.ray_player import Player

        needs = {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "resources": dict(placement.resources)}
        self._ray = ray
        self._actor = ray.remote(Player).options(**needs, max_restarts=0, scheduling_strategy="SPREAD")

    def start(self, setup: bytes) -> Any:
        return self._actor.remote(setup)

    def call(self, player: Any, name: str, *arguments: Any) -> Any:
        return getattr(player, name).remote(*arguments)

    def wait(self, calls: Sequence[Any], *, timeout_s: float) -> Sequence[Any]:
        ready_calls: list[Any] = self._ray.wait(list(calls), num_returns=1, timeout=timeout_s)[0]
        return ready_calls

    def take_answer(self, call: Any) -> bytes | None:
        """Returns the answer to a call; None where the player, or the node of the answer, is lost."""
        ray_errors = self._ray.exceptions
        try:
            answer: bytes = self._ray.get(call)
        except ray_errors.RayTaskError as error:
            raise EngineError("a player failed", value=str(error)[-400:]) from error
        except ray_errors.RayError:
            return None
        return answer

    def end(self, player: Any) -> None:
        self._ray.kill(player)

    def store(self, content: NDArray[np.uint8]) -> Any:
        return self._ray.put(content)


@dataclass(eq=False)
class _PlayerHandle:
    """A player, as seen by this process.

    Attributes:
        calls: Unanswered calls, the oldest first.
        open_items: Items of its slice that have not ended.
        loaded_policies: Policies that it has loaded.
        loaded_bases: Bases of adapters that it has loaded.
        is_ready: Whether it answered hello.
        last_answer_time: Time of its last answer.
    """

    actor: Any
    calls: deque[Any]
    last_answer_time: float
    is_ready: bool = False
    pid: int = 0
    open_items: dict[str, WorkItem] = field(default_factory=dict)
    loaded_policies: set[str] = field(default_factory=set)
    loaded_bases: set[str] = field(default_factory=set)


class PlayerPool:
    """The pool of players; see the module. `open_players` creates it.

    Attributes:
        counts: Players started and lost, items dealt again, given up, and received twice; bytes of weights stored for
            the players, and of files written to pack them.
        placement: Resources and waiting times of players; changes take effect immediately.
    """

    def __init__(self, host: _PlayerHost, setup: bytes, placement: Placement, *, num_players: int) -> None:
        self._host, self._setup, self.placing, self._count = host, setup, placement, num_players
        self._hands: list[_PlayerHandle] = []
        self._files: WeakKeyDictionary[Policy, PolicyFiles] = WeakKeyDictionary()
        self._packer = PolicyPacker()
        self._held: dict[str, Any] = {}  # SHA-256 of a file -> where the host has it
        self._failed, self._rng, self._next = 0, Random(0), 0.0
        self._alive = Deadline(placement.lost_s)
        self.counts: Counter[str] = Counter()

    def pids(self) -> list[int]:
        """Returns the process ids of the players that answered hello."""
        return [hand.pid for hand in self._hands if hand.is_ready]

    def close(self) -> None:
        """Ends all players.

        A player that has not started yet ends with its handle: where the cluster is gone, a request to end it would
        wait for its start.
        """
        for player in self._hands:
            if player.is_ready:
                self._host.end(player.actor)
        self._hands.clear()
        self._held.clear()
        self._packer.close()

    def start_all(self) -> None:
        """Starts all players and waits until each has created its worlds.

        Raises:
            VersionMismatch, ConfigError, EngineError: errors of a player; one that ended while it started.
            EndpointError: a player was not ready after `lost_s` seconds.
        """
        self._start_players(self._count)
        deadline = Deadline(self.placing.lost_s)
        while not all(player.is_ready for player in self._hands):
            if deadline.expired:
                raise EndpointError(
                    "a player did not start",
                    value=f"no answer for {deadline.total_s:g} s",
                    expected="one that has created its worlds",
                    hint="look for a world that waits while it is created",
                )
            for player, answer in self._collect_answers():
                if answer is None:
                    raise EngineError(
                        "a player ended while it started",
                        hint="check the memory of this machine, or set fewer players",
                    )
                for _ in self._process_answer(player, answer, WorkQueue([], slots=1), None):
                    pass

    def run_job(self, job: ClusterJob, *, usage: Counter[str] | None = None) -> Generator[FinishedItem, None, None]:
        """Runs a job; yields each item once, as it ends.

        When the caller stops early, the players stop too.

        Args:
            job: The job.
            usage: Counter to which the players' counts are added.
        Raises:
            EndpointError: no player has lived for `lost_s` seconds. VersionMismatch, ConfigError, EngineError: errors
                of a player.
        """
        queue = WorkQueue(job.items, slots=job.slots)
        files = {role: self._broadcast(policy) for role, policy in job.policies.items()}
        self._alive = Deadline(self.placing.lost_s)
        for player in self._hands:
            player.last_answer_time = time.monotonic()
        try:
            while queue:
                self._start_players(len(queue))
                self._assign_items(queue, job, files)
                for player, answer in self._collect_answers():
                    yield from self._process_answer(player, answer, queue, usage)
                for player in self._list_silent():
                    yield from self._drop_player(player, queue)
        finally:
            for player in self._hands:
                if player.open_items:
                    player.open_items.clear()
                    player.calls.clear()
                    self._host.call(player.actor, "stop")

    # ------------------------------------------------------------------ players

    def _start_players(self, max_players: int) -> None:
        """Starts players up to the required number. Those without a node wait for one."""
        while len(self._hands) < min(self._count, max_players) and time.monotonic() >= self._next:
            actor = self._host.start(self._setup)
            self._hands.append(_PlayerHandle(actor, deque([self._host.call(actor, "hello")]), time.monotonic()))
            self.counts["hired"] += 1

    def _list_silent(self) -> list[_PlayerHandle]:
        """Lists players that have been silent for too long; raises an error where none has lived for too long."""
        current_time, limit = time.monotonic(), self.placing.silent_s
        if any(player.is_ready for player in self._hands):
            self._alive = Deadline(self.placing.lost_s)
        elif self._alive.expired:
            raise EndpointError(
                "no player is alive",
                value=f"for {self._alive.total_s:g} s",
                expected="a cluster, or a machine, with room for a player",
                hint="check it and resume; finished episodes are kept",
            )
        return [
            player
            for player in self._hands
            if player.is_ready and player.calls and current_time - player.last_answer_time > limit
        ]

    def _drop_player(self, player: _PlayerHandle, queue: WorkQueue) -> Iterator[FinishedItem]:
        """Drops a player and returns its items to the queue; yields the items that are given up."""
        self._hands.remove(player)
        self._host.end(player.actor)
        self.counts["lost"] += 1
        self._failed = 0 if player.is_ready else self._failed + 1
        self._next = time.monotonic() + (backoff(self._failed, self._rng, base_s=0.5, cap_s=30) if self._failed else 0)
        if player.open_items:
            _log.warning(
                "a player was lost (process %d): %d items are assigned again", player.pid, len(player.open_items)
            )
        given_up = queue.put_back(list(player.open_items.values()))
        self.counts["again"] += len(player.open_items) - len(given_up)
        for item in given_up:
            self.counts["given up"] += 1
            yield FinishedItem(item, {"lost": True}, b"")

    # ------------------------------------------------------------------ what they are handed

    def _broadcast(self, policy: Policy) -> PolicyFiles:
        """Puts a policy where every node can fetch it, once; files that are there already are not put again."""
        files = self._files.get(policy)
        if files is None:
            written_before = self._packer.written_bytes
            files, contents = self._packer.pack(policy, held_digests=self._held)
            self.counts["packed_bytes"] += self._packer.written_bytes - written_before
            self._files[policy] = files
            needed = {digest for policy_files in self._files.values() for digest in policy_files.names.values()}
            unknown = {digest: data for digest, data in contents.items() if digest not in self._held}
            new = {digest: self._host.store(data) for digest, data in unknown.items()}
            self.counts["weight_bytes"] += sum(data.nbytes for data in unknown.values())
            self._held = {
                digest: object_ref for digest, object_ref in {**self._held, **new}.items() if digest in needed
            }
        return files

    def _assign_items(self, queue: WorkQueue, job: ClusterJob, files: Mapping[str, PolicyFiles]) -> None:
        for player in self._hands:
            if player.is_ready and not player.calls and queue.has_waiting:
                items = queue.next_slice(len(self._hands))
                player.open_items = {item.key: item for item in items}
                self._send_slice(player, items, job, files)

    def _send_slice(
        self, player: _PlayerHandle, items: Sequence[WorkItem], job: ClusterJob, files: Mapping[str, PolicyFiles]
    ) -> None:
        missing = [policy_files for policy_files in files.values() if policy_files.digest not in player.loaded_policies]
        player.loaded_policies = {policy_files.digest for policy_files in files.values()}
        contents = list(
            dict.fromkeys(
                digest
                for policy_files in missing
                for digest in policy_files.list_digests(without_base=policy_files.base_digest in player.loaded_bases)
            )
        )
        player.loaded_bases = {policy_files.base_digest for policy_files in files.values()} - {""}
        parents = list(dict.fromkeys(item.parent for item in items if item.parent is not None))
        head = {
            **job.head,
            "slots": job.slots,
            "rows": [item.row for item in items],
            "parents": len(parents),
            "policies": {
                role: {"names": policy_files.names, "limit": policy_files.limit} for role, policy_files in files.items()
            },
            "contents": contents,
        }
        slice_message = build_message(head, [*map(job.parent, parents), *(item.line for item in items)])
        player.last_answer_time = time.monotonic()
        files_of_slice = [self._held[digest] for digest in contents]
        player.calls.append(self._host.call(player.actor, "play", slice_message, *files_of_slice))
        for _ in range(_AHEAD):
            player.calls.append(self._host.call(player.actor, "more", _BATCH, _BATCH_S))

    # ------------------------------------------------------------------ what they say

    def _collect_answers(self) -> list[tuple[_PlayerHandle, bytes | None]]:
        """Returns the next answers of players; None instead of an answer: the player is lost."""
        player_of_call = {player.calls[0]: player for player in self._hands if player.calls}
        if not player_of_call:
            time.sleep(_POLL_S / 10)
            return []
        ready_calls = self._host.wait(list(player_of_call), timeout_s=_POLL_S)
        answers: list[tuple[_PlayerHandle, bytes | None]] = []
        for call in ready_calls:
            player = player_of_call[call]
            player.calls.popleft()
            player.last_answer_time = time.monotonic()
            answers.append((player, self._host.take_answer(call)))
        return answers

    def _process_answer(
        self, player: _PlayerHandle, answer: bytes | None, queue: WorkQueue, usage: Counter[str] | None
    ) -> Iterator[FinishedItem]:
        """Yields the items that ended according to an answer."""
        if answer is None:
            yield from self._drop_player(player, queue)
            return
        head, lines = parse_message(answer)
        if not player.is_ready and "error" not in head:
            player.is_ready, player.pid, self._failed = True, head["pid"], 0
            return
        if usage is not None:
            usage.update(head.get("usage", {}))
        for (key, info), line in zip(head.get("rows", ()), lines, strict=True):
            player.open_items.pop(key, None)
            item = queue.finish(key)
            if item is None:
                self.counts["twice"] += 1
            else:
                yield FinishedItem(item, info, line if line != b"\n" else b"")
        if "error" in head:
            raise make_error(*head["error"])
        if head.get("end"):
            player.calls.clear()  # one that was asked ahead finds nothing
            if player.open_items:
                raise EngineError("a player ended its slice too early", value=sorted(player.open_items)[:3])
        elif "end" in head:
            player.calls.append(self._host.call(player.actor, "more", _BATCH, _BATCH_S))


def make_error(kind: str, text: str) -> EvolventError:
    """Creates the error that a player reported: of its own kind where that takes only a sentence."""
    error_class = getattr(errors, kind, None)
    is_plain = (
        isinstance(error_class, type)
        and issubclass(error_class, EvolventError)
        and error_class.__init__ is EvolventError.__init__
    )
    if error_class is not None and (is_plain or kind == "ConfigError"):
        error: EvolventError = error_class(text)
        return error
    return EngineError(f"{kind}: {text}")


@contextmanager
def open_players(
    cluster: Cluster, factory: WorldFactory, worlds: Mapping[str, World], *, threads: int = 1
) -> Iterator[PlayerPool]:
    """Opens players on a cluster or in processes of this machine, and ends them after the block.

    Processes of this machine have created their worlds when the block begins.

    Args:
        factory: how they make the worlds. worlds: the same ones, here: theirs must be of the same versions.
        threads: of torch, in each player; the same as here where results are to be the same.
    Raises:
        MissingExtra: Ray is not installed. EndpointError: no cluster. ConfigError: no node has room. VersionMismatch,
            EngineError: a process of this machine cannot create the same worlds.
    """
    world_versions = {name: world.version for name, world in worlds.items()}
    setup = build_message(
        {
            "worlds": [factory.function_path, list(factory.arguments)],
            "versions": read_versions(),
            "made": world_versions,
            "threads": threads,
        }
    )
    with ExitStack() as stack:
        placement = cluster.placement
        if cluster.is_here:
            processes = stack.enter_context(open_processes())
            num_players = placement.players or 1
            if num_players > (num_cores := os.cpu_count() or num_players):
                _log.warning("more players than cores: got %d players for cpu_count %d", num_players, num_cores)
            pool = PlayerPool(processes, setup, placement, num_players=num_players)
            stack.callback(pool.close)
            pool.start_all()
        else:
            ray = stack.enter_context(connect(cluster))
            num_players = placement.players or count_player_slots(ray, placement)
            pool = PlayerPool(_RayHost(ray, placement), setup, placement, num_players=num_players)
            stack.callback(pool.close)
        yield pool
