"""Kinds of generated questions, and the tiers that they belong to.

A kind says what is asked for, of which rows, over how many tables, and in which domain: `average both parent league`.

    select  list, count, distinct, total, average, most, least, top, group, having
    filter  plain (all rows), equal, above, below, both (two conditions), either (one of two), mean (above or below an
            average: a nested query), hint (a word that a hint explains)
    link    own (one table), parent (a join: the condition is on the parent), grand (two joins)

The first three are its shape; parts of a shape pair up, as in (average, both) and (both, parent). Some pairs and one
domain are never demonstrated: kinds with one of them are `evo`. Of the other shapes about half are held back as
`combo`, in all domains, as long as each of their pairs stays in a demonstrated shape. `longer` kinds have two joins,
one more than any that is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from types import MappingProxyType

from evolvent.trajectory import sample_seed
from evolvent.worlds.base import TIERS
from evolvent.worlds.sql.domains import DOMAINS
from evolvent.worlds.sql.query import SELECTS

__all__ = ["FILTERS", "LINKS", "UNDEMONSTRATED", "UNSHOWN", "Kind", "kinds_of_tiers"]

FILTERS: tuple[str, ...] = ("plain", "equal", "above", "below", "both", "either", "mean", "hint")
LINKS: tuple[str, ...] = ("own", "parent", "grand")
UNSHOWN = "clinic"
"""The domain that no demonstration is of."""

UNDEMONSTRATED: frozenset[tuple[str, str]] = frozenset(
    {
        ("list", "mean"),
        ("count", "hint"),
        ("distinct", "both"),
        ("total", "below"),
        ("average", "above"),
        ("most", "either"),
        ("least", "equal"),
        ("top", "hint"),
        ("group", "both"),
        ("having", "mean"),
        ("either", "parent"),
        ("distinct", "parent"),
        ("least", "parent"),
    }
)
"""Pairs of parts that no demonstration shows; each part is shown with others."""

_POINTLESS = frozenset({"list", "count", "most", "least"})  # without a condition the same query solves too many tasks


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: see the module."""

    select: str
    filter: str
    link: str
    domain: str

    def __str__(self) -> str:
        return f"{self.shape} {self.domain}"

    @property
    def shape(self) -> str:
        """All but the domain."""
        return f"{self.select} {self.filter} {self.link}"

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The pairs of its shape's parts; two joins count as one."""
        link = "parent" if self.link == "grand" else self.link
        return frozenset(combinations((self.select, self.filter, link), 2))

    @classmethod
    def read(cls, text: object) -> Kind | None:
        """The kind of that name; None where there is none."""
        return _by_name().get(text) if isinstance(text, str) else None


@cache
def _by_name() -> Mapping[str, Kind]:
    return MappingProxyType({str(kind): kind for kind in _all()})


def _all() -> Iterator[Kind]:
    for select, test, link, domain in product(SELECTS, FILTERS, LINKS, DOMAINS):
        if test != "plain" or (link == "own" and select not in _POINTLESS):
            yield Kind(select, test, link, domain)


@cache
def kinds_of_tiers() -> Mapping[str, tuple[Kind, ...]]:
    """The kinds of each tier, shapes and domains mixed in the order of a hash."""
    tiers: dict[str, list[Kind]] = {tier: [] for tier in TIERS}
    held_back = _held_back()
    for kind in sorted(_all(), key=lambda kind: sample_seed("sql", "kind", kind)):
        shown = kind.domain != UNSHOWN and not kind.pairs & UNDEMONSTRATED
        if kind.link == "grand":
            tiers["longer"] += [kind] if shown else []
        elif not shown:
            tiers["evo"].append(kind)
        else:
            tiers["combo" if kind.shape in held_back else "seen"].append(kind)
    return MappingProxyType({tier: tuple(kinds) for tier, kinds in tiers.items()})


def _held_back() -> frozenset[str]:
    """The shapes of `combo`: every other one in the order of a hash, unless it is the last to hold one of its pairs."""
    shapes = {kind.shape: kind.pairs for kind in _all() if kind.link != "grand" and not kind.pairs & UNDEMONSTRATED}
    order = sorted(shapes, key=lambda shape: sample_seed("sql", "shape", shape))
    left = Counter(pair for pairs in shapes.values() for pair in pairs)
    found: set[str] = set()
    for shape in order:
        if len(found) < len(shapes) // 2 and all(left[pair] > 1 for pair in shapes[shape]):
            found.add(shape)
            left.subtract(shapes[shape])
    return frozenset(found)
