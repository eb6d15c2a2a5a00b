"""Kinds of tasks as chains of parts, dealt to tiers; draws of a task from its seed; canonical digests of drawn
tasks.

A kind is a sequence of parts, such as ("film", "director", "birthplace"). Two thirds of the adjacent pairs of
parts are demonstrated. `seen` and `combo` kinds contain only demonstrated pairs, and no `combo` kind is ever
trained as a whole. `evo` kinds contain at least one other pair. `longer` kinds are longer than any trained
kind, with pairs of `seen`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, pairwise
from typing import TypeVar

from evolvent.trajectory import Json, canonical_json, sample_seed
from evolvent.worlds.base import TIERS

__all__ = ["MAX_ATTEMPTS", "Draw", "Kind", "digest_task", "kinds_by_tier"]

Kind = tuple[str, ...]
T = TypeVar("T")
MAX_KINDS_PER_TIER = 60  # kinds of a tier
MAX_ATTEMPTS = 1000
"""How often a task is drawn until it has one answer; every kind needs a handful."""


def kinds_by_tier(name: str, kinds: Iterable[Kind], *, trained_length: int) -> Mapping[str, tuple[Kind, ...]]:
    """Returns the kinds of each tier, at most 60, in the order of a hash.

    Args:
        name: name of the world; part of the hash.
        kinds: all kinds, of two parts or more.
        trained_length: number of parts of the longest trained kinds.
    """
    ordered = sorted(set(kinds), key=lambda kind: sample_seed("kind", name, *kind))
    short = [kind for kind in ordered if len(kind) <= trained_length]
    hidden = _choose_hidden_pairs(name, short)
    demonstrated = [kind for kind in short if hidden.isdisjoint(pairwise(kind))]
    held_back = {kind for kind in demonstrated if len(kind) > 2 and sample_seed("seen", name, *kind) % 2 == 0}
    seen_kinds = _select_covering([kind for kind in demonstrated if kind not in held_back])
    pairs = {pair for kind in seen_kinds for pair in pairwise(kind)}
    parts = {part for kind in seen_kinds for part in kind}
    evo_kinds = [kind for kind in short if not hidden.isdisjoint(pairwise(kind)) and parts.issuperset(kind)]
    combo_kinds = [kind for kind in demonstrated if kind in held_back and pairs.issuperset(pairwise(kind))]
    longer_kinds = [kind for kind in ordered if len(kind) > trained_length and pairs.issuperset(pairwise(kind))]
    return {
        tier: tuple(tier_kinds[:MAX_KINDS_PER_TIER])
        for tier, tier_kinds in zip(TIERS, (seen_kinds, evo_kinds, combo_kinds, longer_kinds), strict=True)
    }


def _choose_hidden_pairs(name: str, kinds: Sequence[Kind]) -> set[tuple[str, str]]:
    """Returns a third of the adjacent pairs. Every part retains at least one of the parts that may follow it."""
    followers_of: dict[str, set[str]] = {}
    for kind in kinds:
        for first, second in pairwise(kind):
            followers_of.setdefault(first, set()).add(second)
    hidden: set[tuple[str, str]] = set()
    for first, followers in sorted(followers_of.items()):
        order = sorted(followers, key=lambda second: sample_seed("pair", name, first, second))
        hidden |= {(first, second) for second in order[: (len(order) + 1) // 3 if len(order) > 1 else 0]}
    return hidden


def _select_covering(kinds: Sequence[Kind]) -> list[Kind]:
    """Selects up to 60 kinds: first those with a pair that no earlier kind has, then the rest, each in the given
    order.
    """
    pairs: set[tuple[str, str]] = set()
    covering: list[Kind] = []
    remaining_kinds: list[Kind] = []
    for kind in kinds:
        has_new_pair = not pairs.issuperset(pairwise(kind))
        pairs.update(pairwise(kind))
        (covering if has_new_pair else remaining_kinds).append(kind)
    return [*covering, *remaining_kinds][:MAX_KINDS_PER_TIER]


class Draw:
    """Pseudorandom numbers from names (SHAKE-256): the same in every version of Python, without limit."""

    def __init__(self, *names: object) -> None:
        key = canonical_json([str(name) for name in names]).encode()
        self._next_number = chain.from_iterable(_draw_block(key, block) for block in count()).__next__

    # A panel takes millions of numbers: each method reads the stream itself.

    @property
    def next_number(self) -> Callable[[], int]:
        """Returns the function that reads the next number of 16 bits, for callers that read hundreds."""
        return self._next_number

    def below(self, limit: int) -> int:
        """Returns a number from 0 to limit - 1 (limit at most some hundreds: the bias of a 16-bit remainder is that
        small).
        """
        return self._next_number() % limit

    def between(self, low: int, high: int) -> int:
        """Returns a number from low to high, both included."""
        return low + self._next_number() % (high - low + 1)

    def choice(self, values: Sequence[T]) -> T:
        """Returns one of the values."""
        return values[self._next_number() % len(values)]

    def sample(self, size: int, values: Sequence[T]) -> list[T]:
        """Returns `size` different values, in random order."""
        pool, next_number = list(values), self._next_number
        num_values = len(pool)
        for index in range(size):
            swap_index = index + next_number() % (num_values - index)
            pool[index], pool[swap_index] = pool[swap_index], pool[index]
        return pool[:size]


def _draw_block(key: bytes, block: int) -> Sequence[int]:
    """Returns 256 numbers of 16 bits, the low byte first."""
    raw = hashlib.shake_256(key + b"%d" % block).digest(512)
    return memoryview(raw).cast("H") if _IS_LITTLE_ENDIAN else [low | high << 8 for low, high in _byte_pairs(raw)]


def _byte_pairs(raw: bytes) -> Iterator[tuple[int, int]]:
    return zip(raw[::2], raw[1::2], strict=True)


_IS_LITTLE_ENDIAN = memoryview(b"\x01\x00").cast("H")[0] == 1


def digest_task(
    kind: Kind, roots: Sequence[str], entities: Mapping[str, tuple[Json, Sequence[str]]], *, extra: Json = None
) -> str:
    """Returns a digest that is equal for two tasks exactly if they differ only in names.

    Args:
        kind: the task's kind.
        roots: the entities that the question mentions, in its order.
        entities: name -> its facts (JSON without names) and the names it leads to, in a fixed order. A name
            that leads nowhere may be left out.
        extra: all other properties of the task that are not names.

    Names are numbered in the order of discovery from the roots; unreachable names do not count.
    """
    number_of: dict[str, int] = {}
    code: list[Json] = []
    queue = list(roots)
    for name in roots:
        number_of.setdefault(name, len(number_of))
    for name in queue:  # grows while it is walked
        facts, links = entities.get(name, (None, ()))
        for link in links:
            if link not in number_of:
                number_of[link] = len(number_of)
                queue.append(link)
        code.append([number_of[name], facts, [number_of[link] for link in links]])
    text = canonical_json([list(kind), code, extra])
    return hashlib.sha256(text.encode()).hexdigest()
