"""Kinds of generated questions, and the tiers that they belong to.

A kind states the selection, the filter, the number of tables, and the domain: `average both parent league`.

    select  list, count, distinct, total, average, most, least, top, group, having
    filter  plain (all rows), equal, above, below, both (two conditions), either (one of two), mean (above or below an
            average: a nested query), hint (a word that a hint explains)
    link    own (one table), parent (a join: the condition is on the parent), grand (two joins)

The first three are its shape; parts of a shape form pairs, as in (average, both) and (both, parent). Some pairs
and one domain are never demonstrated: kinds with one of them are `evo`. Of the other shapes about half are held
back as `combo`, in all domains, as long as each of their pairs stays in a demonstrated shape. `longer` kinds
have two joins, one more than any trained kind.
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

__all__ = ["FILTERS", "HELD_OUT_DOMAIN", "HELD_OUT_PAIRS", "LINKS", "Kind", "kinds_by_tier"]

FILTERS: tuple[str, ...] = ("plain", "equal", "above", "below", "both", "either", "mean", "hint")
LINKS: tuple[str, ...] = ("own", "parent", "grand")
HELD_OUT_DOMAIN = "clinic"
"""The domain that no demonstration is of."""

HELD_OUT_PAIRS: frozenset[tuple[str, str]] = frozenset(
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

_FILTERED_SELECTS = frozenset(
    {"list", "count", "most", "least"}
)  # without a condition the same query solves too many tasks


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question; see the module."""

    select: str
    filter: str
    link: str
    domain: str

    def __str__(self) -> str:
        return f"{self.shape} {self.domain}"

    @property
    def shape(self) -> str:
        """Returns the kind without its domain."""
        return f"{self.select} {self.filter} {self.link}"

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Returns the pairs of its shape's parts; two joins count as one."""
        link = "parent" if self.link == "grand" else self.link
        return frozenset(combinations((self.select, self.filter, link), 2))

    @classmethod
    def from_name(cls, text: object) -> Kind | None:
        """Returns the kind with this name, or None."""
        return _kinds_by_name().get(text) if isinstance(text, str) else None


@cache
def _kinds_by_name() -> Mapping[str, Kind]:
    return MappingProxyType({str(kind): kind for kind in _iterate_kinds()})


def _iterate_kinds() -> Iterator[Kind]:
    for select, filter_name, link, domain in product(SELECTS, FILTERS, LINKS, DOMAINS):
        if filter_name != "plain" or (link == "own" and select not in _FILTERED_SELECTS):
            yield Kind(select, filter_name, link, domain)


@cache
def kinds_by_tier() -> Mapping[str, tuple[Kind, ...]]:
    """Returns the kinds of each tier, shapes and domains mixed in the order of a hash."""
    tiers: dict[str, list[Kind]] = {tier: [] for tier in TIERS}
    held_back = _held_back_shapes()
    for kind in sorted(_iterate_kinds(), key=lambda kind: sample_seed("sql", "kind", kind)):
        is_demonstrated = kind.domain != HELD_OUT_DOMAIN and not kind.pairs & HELD_OUT_PAIRS
        if kind.link == "grand":
            tiers["longer"] += [kind] if is_demonstrated else []
        elif not is_demonstrated:
            tiers["evo"].append(kind)
        else:
            tiers["combo" if kind.shape in held_back else "seen"].append(kind)
    return MappingProxyType({tier: tuple(kinds) for tier, kinds in tiers.items()})


def _held_back_shapes() -> frozenset[str]:
    """Returns the shapes of `combo`: every other one in the order of a hash, unless one of its pairs has no other
    shape.
    """
    shapes = {
        kind.shape: kind.pairs for kind in _iterate_kinds() if kind.link != "grand" and not kind.pairs & HELD_OUT_PAIRS
    }
    order = sorted(shapes, key=lambda shape: sample_seed("sql", "shape", shape))
    remaining_counts = Counter(pair for pairs in shapes.values() for pair in pairs)
    held_back: set[str] = set()
    for shape in order:
        if len(held_back) < len(shapes) // 2 and all(remaining_counts[pair] > 1 for pair in shapes[shape]):
            held_back.add(shape)
            remaining_counts.subtract(shapes[shape])
    return frozenset(held_back)
