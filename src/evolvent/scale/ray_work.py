"""What is dealt to the players of a cluster: items of work in slices, each done once, and done again if it is lost.

Pure bookkeeping, without Ray. Slices begin large, so that an engine is rarely drained, and become smaller, so that all
players end together. What was lost with a player is dealt again in smaller and smaller slices, which finds an episode
that kills whoever plays it: alone, and after some tries, it is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolvent.models.policy import Policy

__all__ = ["Item", "Job", "Todo"]

_TRIES = 3  # players that may be lost with an item, at the last alone


@dataclass(frozen=True, slots=True)
class Item:
    """One episode, search or labelling.

    Args:
        key: its name, unique in a job.
        row: JSON values that say what it is.
        line: of the trajectory that it is about (labellings).
        parent: the id of the trajectory that it leaves (branches).
    """

    key: str
    row: Mapping[str, Any]
    line: bytes = b""
    parent: str | None = None


@dataclass(frozen=True)
class Job:
    """What a verb has done on a cluster.

    Args:
        head: what all of it has in common, as `ray_player` reads it.
        items: the work.
        policies: by their role: "policy", "judge".
        slots: how much of it a player has under way at once.
        parent: the line of a parent, by its id.
    """

    head: Mapping[str, Any]
    items: Sequence[Item]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    slots: int = 1
    parent: Callable[[str], bytes] = lambda name: b""


class Todo:
    """The items of a job that have not ended.

    Args:
        slots: how many items of a slice a player has under way at once.
        tries: players that may be lost with an item.
    """

    def __init__(self, items: Sequence[Item], *, slots: int, tries: int = _TRIES) -> None:
        self._slots, self._tries = slots, tries
        self._fresh, self._count = deque(items), len(items)
        self._again: deque[Item] = deque()
        self._lost: dict[str, int] = {}
        self._open = {item.key: item for item in items}

    def __len__(self) -> int:
        """How many items have not ended, dealt or not."""
        return len(self._open)

    @property
    def waiting(self) -> bool:
        """Whether there is something to deal."""
        return bool(self._again or self._fresh)

    def deal(self, players: int) -> list[Item]:
        """The next slice, for one of so many players; empty where nothing waits."""
        if self._again:
            size = self._again_size(self._lost[self._again[0].key])
            few: list[Item] = []
            while self._again and len(few) < min(size, self._again_size(self._lost[self._again[0].key])):
                few.append(self._again.popleft())
            return few
        left = len(self._fresh)
        least = min(self._slots, -(-self._count // players))  # fewer would leave slots idle for an episode's time
        size = left if players == 1 else max(-(-left // (2 * players)), least)
        size = -(-size // least) * least  # whole rounds of slots: a remainder would leave the others idle at its end
        return [self._fresh.popleft() for _ in range(min(left, size))]

    def _again_size(self, lost: int) -> int:
        return max(1, self._slots >> (2 * lost))

    def done(self, key: str) -> Item | None:
        """An item has ended; None: it had ended before, and does not count again."""
        return self._open.pop(key, None)

    def back(self, items: Sequence[Item]) -> list[Item]:
        """These were lost with their player; returns those that are given up, which have ended so."""
        given_up = []
        for item in items:
            lost = self._lost[item.key] = self._lost.get(item.key, 0) + 1
            if len(items) == 1 and lost >= self._tries:
                del self._open[item.key]
                given_up.append(item)
            else:
                self._again.append(item)
        return given_up
