"""The players of a run on a cluster: hired, handed slices, listened to, and replaced when they or their nodes are lost.

    with players(where("ray"), Making("package.module:worlds"), worlds) as crew:
        for item, told, line in crew.work(job):
            ...

Every item ends once. A player that is lost takes nothing with it: what it had not handed over is dealt again, by task
and seed, and what comes of it is what would have come of it there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from evolvent import errors
from evolvent.deadline import Deadline, backoff
from evolvent.errors import EndpointError, EngineError, EvolventError
from evolvent.models.policy import Policy
from evolvent.scale.ray_cluster import Placing, Where, connected, room
from evolvent.scale.ray_versions import versions
from evolvent.scale.ray_wire import Files, files_of, message, parts_of
from evolvent.scale.ray_work import Item, Job, Todo
from evolvent.trajectory import Json
from evolvent.worlds.base import World

__all__ = ["Done", "Making", "Players", "error_of", "players"]

_log = logging.getLogger(__name__)
_AHEAD = 2  # calls that wait at a player, so that it need not wait for this process
_BATCH, _BATCH_S = 512, 0.25  # most that a player hands over at once; how long it gathers
_LOOK_S = 0.5


@dataclass(frozen=True)
class Making:
    """How players make the worlds: a function by name, as entry points have it, and what it is called with.

    Args:
        where: `package.module:function`; it returns worlds by name. The package is installed on every node.
        arguments: JSON values.
    """

    where: str
    arguments: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """An item that has ended.

    Attributes:
        told: what the player says of it; `lost`: how many players were lost with it, where it was given up.
        line: of its trajectory; empty where there is none.
    """

    item: Item
    told: Mapping[str, Any]
    line: bytes


@dataclass(eq=False)
class _Hand:
    """A player, as this process sees it.

    Attributes:
        calls: what it was asked and has not answered, the oldest first.
        part: the items of its slice that have not ended. has: the policies that it has loaded.
        ready: it has said hello. heard: when it last said something.
    """

    actor: Any
    calls: deque[Any]
    heard: float
    ready: bool = False
    pid: int = 0
    part: dict[str, Item] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)


class Players:
    """See the module. Make them with `players`.

    Attributes:
        counts: players hired and lost, items dealt again, given up, and heard of twice.
        placing: what a player takes, and how long it is waited for; what is changed here holds from then on.
    """

    def __init__(self, ray: Any, setup: bytes, placing: Placing) -> None:
        from evolvent.scale.ray_player import Player

        self._ray, self._setup, self.placing = ray, setup, placing
        self._count = placing.players or room(ray, placing)
        needs = {"num_cpus": placing.cpus, "num_gpus": placing.gpus, "resources": dict(placing.resources)}
        self._actor = ray.remote(Player).options(**needs, max_restarts=0, scheduling_strategy="SPREAD")
        self._hands: list[_Hand] = []
        self._files: WeakKeyDictionary[Policy, Files] = WeakKeyDictionary()
        self._held: dict[str, Any] = {}  # SHA-256 of a file -> where Ray has it
        self._failed, self._rng, self._next = 0, Random(0), 0.0
        self._alive = Deadline(placing.lost_s)
        self.counts: Counter[str] = Counter()

    def pids(self) -> list[int]:
        """The processes of the players that have said hello."""
        return [hand.pid for hand in self._hands if hand.ready]

    def close(self) -> None:
        """Let all players go. One that has not begun to live goes with its handle: where the cluster is gone, asking
        for its end would wait for its beginning.
        """
        for hand in self._hands:
            if hand.ready:
                self._ray.kill(hand.actor)
        self._hands.clear()
        self._held.clear()

    def work(self, job: Job, *, usage: Counter[str] | None = None) -> Generator[Done, None, None]:
        """Have a job done; yields each item once, as it ends.

        When the caller stops early, the players stop too.

        Args:
            usage: what the players count is added here.
        Raises:
            EndpointError: no player has lived for `lost_s` seconds. VersionMismatch, ConfigError, EngineError: what a
                player cannot do, in its words.
        """
        todo = Todo(job.items, slots=job.slots)
        files = {role: self._broadcast(policy) for role, policy in job.policies.items()}
        self._alive = Deadline(self.placing.lost_s)
        for hand in self._hands:
            hand.heard = time.monotonic()
        try:
            while todo:
                self._hire(len(todo))
                self._deal(todo, job, files)
                for hand, told in self._heard():
                    yield from self._ended(hand, told, todo, usage)
                for hand in self._silent():
                    yield from self._lost(hand, todo)
        finally:
            for hand in self._hands:
                if hand.part:
                    hand.part.clear()
                    hand.calls.clear()
                    hand.actor.stop.remote()

    # ------------------------------------------------------------------ players

    def _hire(self, wanted: int) -> None:
        """See that there are as many players as there should be. Those without a node to be on wait for one."""
        while len(self._hands) < min(self._count, wanted) and time.monotonic() >= self._next:
            actor = self._actor.remote(self._setup)
            self._hands.append(_Hand(actor, deque([actor.hello.remote()]), time.monotonic()))
            self.counts["hired"] += 1

    def _silent(self) -> list[_Hand]:
        """Players that have said nothing for too long; raises where nobody has lived for too long."""
        now, limit = time.monotonic(), self.placing.silent_s
        if any(hand.ready for hand in self._hands):
            self._alive = Deadline(self.placing.lost_s)
        elif self._alive.expired:
            raise EndpointError(
                "no player of the Ray cluster has lived",
                value=f"for {self._alive.total_s:g} s",
                expected="a cluster with room for one",
                hint="what it had played is kept",
            )
        return [hand for hand in self._hands if hand.ready and hand.calls and now - hand.heard > limit]

    def _lost(self, hand: _Hand, todo: Todo) -> Iterator[Done]:
        """Strike a player off and give back what it had; yields what is given up."""
        self._hands.remove(hand)
        self._ray.kill(hand.actor)
        self.counts["lost"] += 1
        self._failed = 0 if hand.ready else self._failed + 1
        self._next = time.monotonic() + (backoff(self._failed, self._rng, base_s=0.5, cap_s=30) if self._failed else 0)
        if hand.part:
            _log.warning("a player was lost (process %d): %d items are dealt again", hand.pid, len(hand.part))
        given_up = todo.back(list(hand.part.values()))
        self.counts["again"] += len(hand.part) - len(given_up)
        for item in given_up:
            self.counts["given up"] += 1
            yield Done(item, {"lost": True}, b"")

    # ------------------------------------------------------------------ what they are handed

    def _broadcast(self, policy: Policy) -> Files:
        """Put a policy where every node can fetch it, once; files that were there before are not put again."""
        files = self._files.get(policy)
        if files is None:
            files, contents = files_of(policy)
            self._files[policy] = files
            needed = {digest for one in self._files.values() for digest in one.names.values()}
            new = {digest: self._ray.put(data) for digest, data in contents.items() if digest not in self._held}
            self._held = {digest: place for digest, place in {**self._held, **new}.items() if digest in needed}
        return files

    def _deal(self, todo: Todo, job: Job, files: Mapping[str, Files]) -> None:
        for hand in self._hands:
            if hand.ready and not hand.calls and todo.waiting:
                items = todo.deal(len(self._hands))
                hand.part = {item.key: item for item in items}
                self._play(hand, items, job, files)

    def _play(self, hand: _Hand, items: Sequence[Item], job: Job, files: Mapping[str, Files]) -> None:
        missing = [one for one in files.values() if one.digest not in hand.has]
        hand.has = {one.digest for one in files.values()}
        contents = list(dict.fromkeys(digest for one in missing for digest in one.names.values()))
        parents = list(dict.fromkeys(item.parent for item in items if item.parent is not None))
        head = {
            **job.head,
            "slots": job.slots,
            "rows": [item.row for item in items],
            "parents": len(parents),
            "policies": {role: {"names": one.names, "limit": one.limit} for role, one in files.items()},
            "contents": contents,
        }
        told = message(head, [*map(job.parent, parents), *(item.line for item in items)])
        hand.heard = time.monotonic()
        hand.calls.append(hand.actor.play.remote(told, *(self._held[digest] for digest in contents)))
        for _ in range(_AHEAD):
            hand.calls.append(hand.actor.more.remote(_BATCH, _BATCH_S))

    # ------------------------------------------------------------------ what they say

    def _heard(self) -> list[tuple[_Hand, bytes | None]]:
        """What the next players to say something have said; None: they are lost."""
        waiting = {hand.calls[0]: hand for hand in self._hands if hand.calls}
        if not waiting:
            time.sleep(_LOOK_S / 10)
            return []
        found, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_LOOK_S)
        heard: list[tuple[_Hand, bytes | None]] = []
        for call in found:
            hand = waiting[call]
            hand.calls.popleft()
            hand.heard = time.monotonic()
            heard.append((hand, self._answer(call)))
        return heard

    def _answer(self, call: Any) -> bytes | None:
        """The answer to a call; None: whoever should give it, or where it lay, is lost."""
        lost = self._ray.exceptions
        try:
            answer: bytes = self._ray.get(call)
        except lost.RayTaskError as error:
            raise EngineError("a player failed", value=str(error)[-400:]) from error
        except lost.RayError:
            return None
        return answer

    def _ended(self, hand: _Hand, told: bytes | None, todo: Todo, usage: Counter[str] | None) -> Iterator[Done]:
        """What an answer says has ended."""
        if told is None:
            yield from self._lost(hand, todo)
            return
        head, lines = parts_of(told)
        if not hand.ready and "error" not in head:
            hand.ready, hand.pid, self._failed = True, head["pid"], 0
            return
        if usage is not None:
            usage.update(head.get("usage", {}))
        for (key, more), line in zip(head.get("rows", ()), lines, strict=True):
            hand.part.pop(key, None)
            item = todo.done(key)
            if item is None:
                self.counts["twice"] += 1
            else:
                yield Done(item, more, line if line != b"\n" else b"")
        if "error" in head:
            raise error_of(*head["error"])
        if head.get("end"):
            hand.calls.clear()  # one that was asked ahead finds nothing
            if hand.part:
                raise EngineError("a player ended its slice too early", value=sorted(hand.part)[:3])
        elif "end" in head:
            hand.calls.append(hand.actor.more.remote(_BATCH, _BATCH_S))


def error_of(kind: str, text: str) -> EvolventError:
    """The error that a player told: of its own kind where that takes a sentence alone."""
    found = getattr(errors, kind, None)
    plain = isinstance(found, type) and issubclass(found, EvolventError) and found.__init__ is EvolventError.__init__
    if found is not None and (plain or kind == "ConfigError"):
        made: EvolventError = found(text)
        return made
    return EngineError(f"{kind}: {text}")


@contextmanager
def players(cluster: Where, making: Making, worlds: Mapping[str, World], *, threads: int = 1) -> Iterator[Players]:
    """Players on a cluster, connected and let go.

    Args:
        making: how they make the worlds. worlds: the same ones, here: theirs must be of the same versions.
        threads: of torch, in each player; the same as here where results are to be the same.
    Raises:
        MissingExtra: Ray is not installed. EndpointError: no cluster. ConfigError: no node has room.
    """
    made = {name: world.version for name, world in worlds.items()}
    setup = message(
        {
            "worlds": [making.where, list(making.arguments)],
            "versions": versions(),
            "made": made,
            "threads": threads,
        }
    )
    with ExitStack() as stack:
        crew = Players(stack.enter_context(connected(cluster)), setup, cluster.placing)
        stack.callback(crew.close)
        yield crew
