"""Items of work for the players of a cluster, dealt in slices; each is done once, and repeated if it is lost.

Pure bookkeeping, without Ray. Slices start large, so that an engine is rarely drained, and become smaller, so
that all players end together. Items lost with a player are dealt again in smaller and smaller slices, which
isolates an episode that kills its player: alone, and after some attempts, it is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evolvent.models.policy import Policy
from evolvent.trajectory import JsonObject

__all__ = ["ClusterJob", "WorkItem", "WorkQueue"]

_MAX_LOST = 3  # players that may be lost with an item, at the last alone


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One episode, search or labeling.

    Args:
        key: Its name, unique in a job.
        row: JSON values that describe it.
        line: Line of its trajectory (labelings).
        parent: Id of the trajectory that it branches from.
    """

    key: str
    row: JsonObject
    line: bytes = b""
    parent: str | None = None


@dataclass(frozen=True)
class ClusterJob:
    """An operation on a cluster.

    Args:
        head: Values that all items share, as `ray_player` reads them.
        items: The items.
        policies: Policies by role: "policy", "judge".
        slots: Number of simultaneous items of a player.
        parent: Returns the line of a parent by its id.
    """

    head: JsonObject
    items: Sequence[WorkItem]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    slots: int = 1
    parent: Callable[[str], bytes] = lambda name: b""


class WorkQueue:
    """The items of a job that have not ended.

    Args:
        items: The items.
        slots: Number of simultaneous items of a player.
        tries: Players that may be lost with an item.
    """

    def __init__(self, items: Sequence[WorkItem], *, slots: int, tries: int = _MAX_LOST) -> None:
        self._slots, self._tries = slots, tries
        self._fresh, self._count = deque(items), len(items)
        self._again: deque[WorkItem] = deque()
        self._lost: dict[str, int] = {}
        self._open = {item.key: item for item in items}

    def __len__(self) -> int:
        """Returns the number of items that have not ended, dealt or not."""
        return len(self._open)

    @property
    def has_waiting(self) -> bool:
        """Returns whether there are items to deal."""
        return bool(self._again or self._fresh)

    def next_slice(self, players: int) -> list[WorkItem]:
        """Returns the next slice for one of so many players; empty where nothing waits."""
        if self._again:
            size = self._retry_size(self._lost[self._again[0].key])
            retried: list[WorkItem] = []
            while self._again and len(retried) < min(size, self._retry_size(self._lost[self._again[0].key])):
                retried.append(self._again.popleft())
            return retried
        num_left = len(self._fresh)
        min_size = min(self._slots, -(-self._count // players))  # fewer would leave slots idle for an episode's time
        size = num_left if players == 1 else max(-(-num_left // (2 * players)), min_size)
        size = (
            -(-size // min_size) * min_size
        )  # whole rounds of slots: a remainder would leave the others idle at its end
        return [self._fresh.popleft() for _ in range(min(num_left, size))]

    def _retry_size(self, num_lost: int) -> int:
        return max(1, self._slots >> (2 * num_lost))

    def finish(self, key: str) -> WorkItem | None:
        """Marks an item as ended and returns it; None where it had ended before."""
        return self._open.pop(key, None)

    def put_back(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """Puts lost items back into the queue; returns those that are given up and have thereby ended."""
        given_up = []
        for item in items:
            num_lost = self._lost[item.key] = self._lost.get(item.key, 0) + 1
            if len(items) == 1 and num_lost >= self._tries:
                del self._open[item.key]
                given_up.append(item)
            else:
                self._again.append(item)
        return given_up
