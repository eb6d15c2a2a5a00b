"""Kinds of embedded grid tasks, and the tiers that they belong to.

A kind states the action, the description of the object, and the obstacle: `pick type door` is "pick up the
ball" with the ball behind a closed door. Colors, types, positions and rooms are drawn for each task, so a kind
fixes the plan's form only.

    verb      go, pick, open, put
    wording   full (the red ball), type (the ball), colour (the red object), side (the ball on your left);
              to put something somewhere takes two: full-type is "put the red ball next to the box"
    access    view (in view), turn (in the room, not in view), door (behind a closed door), lock (behind a locked door
              whose key lies in the room; for `open`: the door itself is locked)

Two atoms are joined by `and`, `then` or `after`. The parts of a kind pair up, as in (pick, type), (pick, door)
and (type, door). Some pairs are never demonstrated: kinds that hold one are `evo`. Of the others about half are
held back as `combo`, as long as each of their pairs stays in a demonstrated kind. `longer` kinds have two doors
in a row or three atoms, of demonstrated pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import MappingProxyType

from evolvent.trajectory import sample_seed

__all__ = ["UNDEMONSTRATED", "AtomKind", "Kind", "list_kinds_by_tier", "pairs_of"]

UNDEMONSTRATED: frozenset[tuple[str, str]] = frozenset(
    {
        ("pick", "colour"),
        ("go", "lock"),
        ("side", "turn"),
        ("put", "turn"),
        ("put", "colour-"),
        ("open", "then"),
        ("after", "pick"),
    }
)
"""Pairs of parts that no demonstration shows; each part is shown with others."""

_DESCRIPTIONS = ("full", "type", "colour")
_OPTIONS_BY_VERB: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "go": (_DESCRIPTIONS, ("view", "turn", "door", "lock")),
        "pick": (_DESCRIPTIONS, ("view", "turn", "door", "lock")),
        "open": (("full", "type"), ("view", "turn", "lock")),
        "put": (
            tuple(f"{moved}-{fixed}" for moved, fixed in product(_DESCRIPTIONS, _DESCRIPTIONS)),
            ("view", "turn", "door"),
        ),
    }
)
_SIDES = (("go", "view"), ("go", "turn"), ("pick", "view"), ("pick", "turn"), ("open", "view"), ("open", "turn"))
_TWO_DOORS = ("door door", "door lock", "lock door")
_CONNECTORS = ("and", "then", "after")
_MAX_DOUBLE_KINDS = 24  # kinds of two atoms in a tier
_MAX_TRIPLE_KINDS = 24  # kinds of three atoms


@dataclass(frozen=True, slots=True)
class AtomKind:
    """One atom: verb, wording and access (see the module)."""

    verb: str
    wording: str
    access: str

    def __str__(self) -> str:
        return f"{self.verb} {self.wording} {self.access}"

    @property
    def doors(self) -> tuple[str, ...]:
        """Returns the doors between the rooms on the way to the object: `door` or `lock` each."""
        return tuple(part for part in self.access.split() if part in ("door", "lock")) if self.verb != "open" else ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Atoms in reading order, and their connector: nothing, `and`, `then`, `after`, or `and then`."""

    atoms: tuple[AtomKind, ...]
    connector: str = ""

    @property
    def doors(self) -> tuple[str, ...]:
        """Returns the doors between the rooms on the longest way to any object."""
        longest: tuple[str, ...] = ()
        for atom in self.atoms:
            longest = atom.doors if len(atom.doors) > len(longest) else longest
        return longest

    def __str__(self) -> str:
        connectors = {"": [""], "and then": [" and ", " then ", ""]}.get(self.connector, [f" {self.connector} ", ""])
        return "".join(f"{atom}{connector}" for atom, connector in zip(self.atoms, connectors, strict=True))


def pairs_of(kind: Kind) -> frozenset[tuple[str, str]]:
    """Returns the pairs of parts that a kind holds."""
    pairs: set[tuple[str, str]] = set()
    for atom in kind.atoms:
        wordings = (
            [f"{atom.wording.split('-')[0]}-", f"-{atom.wording.split('-')[1]}"]
            if "-" in atom.wording
            else [atom.wording]
        )
        accesses = [atom.access] if atom.access in ("view", "turn") else atom.access.split()
        pairs |= {(atom.verb, part) for part in (*wordings, *accesses)}
        pairs |= set(product(wordings, accesses))
        if len(wordings) == 2:
            pairs.add((wordings[0], wordings[1]))
    if kind.connector:
        first, *_, last = kind.atoms
        connector = kind.connector.split()[-1]
        pairs |= {(first.verb, connector), (connector, last.verb), (f"{first.verb} first", last.verb)}
        if len(kind.atoms) == 3:
            middle = kind.atoms[1]
            pairs |= {(first.verb, "and"), ("and", middle.verb), (middle.verb, connector)}
    return frozenset(pairs)


def _single_kinds() -> Iterator[Kind]:
    for verb, (wordings, accesses) in _OPTIONS_BY_VERB.items():
        for wording, access in product(wordings, accesses):
            yield Kind((AtomKind(verb, wording, access),))
    for verb, access in _SIDES:
        yield Kind((AtomKind(verb, "side", access),))


def _double_kinds() -> Iterator[Kind]:
    """Yields kinds of two atoms: the first in view, the second in view or behind a door."""
    verbs = {"go": _DESCRIPTIONS, "pick": _DESCRIPTIONS, "open": ("full",)}
    for connector, first, last in product(_CONNECTORS, verbs, verbs):
        for first_wording, last_wording, access in product(verbs[first], verbs[last], ("view", "door")):
            if access == "door" and (connector == "after" or last == "open" or first == "pick"):
                continue
            if first == last and connector == "and" and first != "pick":  # comes about by chance
                continue
            yield Kind((AtomKind(first, first_wording, "view"), AtomKind(last, last_wording, access)), connector)


def _longer_kinds() -> Iterator[Kind]:
    for verb, wording, access in product(("go", "pick"), _DESCRIPTIONS, _TWO_DOORS):
        yield Kind((AtomKind(verb, wording, access),))
    verbs = {"go": _DESCRIPTIONS, "pick": _DESCRIPTIONS}
    for a, b, c in product(verbs, verbs, verbs):
        for wordings in product(_DESCRIPTIONS, _DESCRIPTIONS, _DESCRIPTIONS):
            atoms = tuple(AtomKind(verb, wording, "view") for verb, wording in zip((a, b, c), wordings, strict=True))
            yield Kind(atoms, "and then")


@cache
def list_kinds_by_tier() -> Mapping[str, tuple[Kind, ...]]:
    """Lists the kinds of each tier, in a fixed mixed order."""
    singles, doubles = _order_by_hash(_single_kinds()), _order_by_hash(_double_kinds())
    undemonstrated = [[kind for kind in kinds if pairs_of(kind) & UNDEMONSTRATED] for kinds in (singles, doubles)]
    demonstrated, held_out = _hold_out([kind for kind in singles if kind not in undemonstrated[0]])
    demonstrated_doubles, held_out_doubles = _hold_out([kind for kind in doubles if kind not in undemonstrated[1]])
    seen_kinds = demonstrated + _order_by_coverage(demonstrated_doubles)[:_MAX_DOUBLE_KINDS]
    known_pairs = frozenset().union(*map(pairs_of, seen_kinds))
    combo, longer = (
        [kind for kind in kinds if pairs_of(kind) <= known_pairs]
        for kinds in (held_out_doubles, _order_by_hash(_longer_kinds()))
    )
    two_door_kinds = [kind for kind in longer if len(kind.atoms) == 1]
    tiers = {
        "seen": seen_kinds,
        "evo": undemonstrated[0] + undemonstrated[1][:_MAX_DOUBLE_KINDS],
        "combo": [kind for kind in held_out if pairs_of(kind) <= known_pairs] + combo[:_MAX_DOUBLE_KINDS],
        "longer": two_door_kinds + [kind for kind in longer if kind not in two_door_kinds][:_MAX_TRIPLE_KINDS],
    }
    return MappingProxyType({tier: tuple(_order_by_hash(tier_kinds)) for tier, tier_kinds in tiers.items()})


def _order_by_hash(kinds: Iterable[Kind]) -> list[Kind]:
    """Sorts kinds by their hash."""
    return sorted(kinds, key=lambda kind: sample_seed("grid kind", str(kind)))


def _hold_out(kinds: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """Splits kinds into demonstrated and held-out ones, about equally many, with all held-out pairs demonstrated.

    Single-action kinds, one object in view, are always demonstrated.
    """
    pair_counts = Counter(pair for kind in kinds for pair in pairs_of(kind))
    demonstrated: list[Kind] = []
    held_out: list[Kind] = []
    for kind in kinds:
        is_simple = len(kind.atoms) == 1 and kind.atoms[0].access == "view" and kind.atoms[0].verb != "put"
        if is_simple or len(held_out) > len(demonstrated) or any(pair_counts[pair] < 2 for pair in pairs_of(kind)):
            demonstrated.append(kind)
        else:
            held_out.append(kind)
            pair_counts.subtract(pairs_of(kind))
    return demonstrated, held_out


def _order_by_coverage(kinds: Sequence[Kind]) -> list[Kind]:
    """Orders kinds so that those with a pair that no earlier kind has come first."""
    covered_pairs: set[tuple[str, str]] = set()
    with_new_pairs: list[Kind] = []
    without_new_pairs: list[Kind] = []
    for kind in kinds:
        (without_new_pairs if pairs_of(kind) <= covered_pairs else with_new_pairs).append(kind)
        covered_pairs |= pairs_of(kind)
    return with_new_pairs + without_new_pairs
