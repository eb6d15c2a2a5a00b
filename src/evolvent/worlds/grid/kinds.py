"""Kinds of embedded grid tasks, and the tiers that they belong to.

A kind says what is to be done, how the thing is told, and what lies between: `pick type door` is "pick up the ball"
with the ball behind a closed door. Colours, types, places and rooms are drawn for each task, so a kind says nothing
about the plan but its form.

    verb    go, pick, open, put
    words   full (the red ball), type (the ball), colour (the red object), side (the ball on your left);
            to put something somewhere takes two: full-type is "put the red ball next to the box"
    access  view (in view), turn (in the room, not in view), door (behind a closed door), lock (behind a locked door
            whose key lies in the room; for `open`: the door itself is locked)

Two atoms are joined by `and`, `then` or `after`. The parts of a kind pair up, as in (pick, type), (pick, door) and
(type, door). Some pairs are never demonstrated: kinds that hold one are `evo`. Of the others about half are held back
as `combo`, as long as each of their pairs stays in a demonstrated kind. `longer` kinds have two doors in a row or three
atoms, of demonstrated pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import MappingProxyType

from evolvent.trajectory import sample_seed

__all__ = ["UNDEMONSTRATED", "AtomKind", "Kind", "kinds_of_tiers", "pairs_of"]

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

_FEW = ("full", "type", "colour")
_SINGLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "go": (_FEW, ("view", "turn", "door", "lock")),
        "pick": (_FEW, ("view", "turn", "door", "lock")),
        "open": (("full", "type"), ("view", "turn", "lock")),
        "put": (tuple(f"{moved}-{fixed}" for moved, fixed in product(_FEW, _FEW)), ("view", "turn", "door")),
    }
)
_SIDES = (("go", "view"), ("go", "turn"), ("pick", "view"), ("pick", "turn"), ("open", "view"), ("open", "turn"))
_TWO_DOORS = ("door door", "door lock", "lock door")
_JOINTS = ("and", "then", "after")
_PAIRED = 24  # kinds of two atoms in a tier
_TRIPLED = 24  # kinds of three atoms


@dataclass(frozen=True, slots=True)
class AtomKind:
    """One atom: verb, words and access (see the module)."""

    verb: str
    words: str
    access: str

    def __str__(self) -> str:
        return f"{self.verb} {self.words} {self.access}"

    @property
    def ways(self) -> tuple[str, ...]:
        """The doors between the rooms, on the way to what it is about: `door` or `lock` each."""
        return tuple(part for part in self.access.split() if part in ("door", "lock")) if self.verb != "open" else ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Atoms in the order in which they are told; what joins them: nothing, `and`, `then`, `after`, or `and then`."""

    atoms: tuple[AtomKind, ...]
    joint: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        """The doors between the rooms: those on the longest way to anything."""
        longest: tuple[str, ...] = ()
        for atom in self.atoms:
            longest = atom.ways if len(atom.ways) > len(longest) else longest
        return longest

    def __str__(self) -> str:
        joints = {"": [""], "and then": [" and ", " then ", ""]}.get(self.joint, [f" {self.joint} ", ""])
        return "".join(f"{atom}{joint}" for atom, joint in zip(self.atoms, joints, strict=True))


def pairs_of(kind: Kind) -> frozenset[tuple[str, str]]:
    """The pairs of parts that a kind holds."""
    found: set[tuple[str, str]] = set()
    for atom in kind.atoms:
        words = [f"{atom.words.split('-')[0]}-", f"-{atom.words.split('-')[1]}"] if "-" in atom.words else [atom.words]
        accesses = [atom.access] if atom.access in ("view", "turn") else atom.access.split()
        found |= {(atom.verb, part) for part in (*words, *accesses)}
        found |= set(product(words, accesses))
        if len(words) == 2:
            found.add((words[0], words[1]))
    if kind.joint:
        first, *_, last = kind.atoms
        joint = kind.joint.split()[-1]
        found |= {(first.verb, joint), (joint, last.verb), (f"{first.verb} first", last.verb)}
        if len(kind.atoms) == 3:
            middle = kind.atoms[1]
            found |= {(first.verb, "and"), ("and", middle.verb), (middle.verb, joint)}
    return frozenset(found)


def _singles() -> Iterator[Kind]:
    for verb, (words, accesses) in _SINGLES.items():
        for word, access in product(words, accesses):
            yield Kind((AtomKind(verb, word, access),))
    for verb, access in _SIDES:
        yield Kind((AtomKind(verb, "side", access),))


def _doubles() -> Iterator[Kind]:
    """Two atoms; the first in view, the second in view or behind a door."""
    verbs = {"go": _FEW, "pick": _FEW, "open": ("full",)}
    for joint, first, last in product(_JOINTS, verbs, verbs):
        for one, other, access in product(verbs[first], verbs[last], ("view", "door")):
            if access == "door" and (joint == "after" or last == "open" or first == "pick"):
                continue
            if first == last and joint == "and" and first != "pick":  # comes about by chance
                continue
            yield Kind((AtomKind(first, one, "view"), AtomKind(last, other, access)), joint)


def _longer() -> Iterator[Kind]:
    for verb, word, access in product(("go", "pick"), _FEW, _TWO_DOORS):
        yield Kind((AtomKind(verb, word, access),))
    verbs = {"go": _FEW, "pick": _FEW}
    for a, b, c in product(verbs, verbs, verbs):
        for words in product(_FEW, _FEW, _FEW):
            atoms = tuple(AtomKind(verb, word, "view") for verb, word in zip((a, b, c), words, strict=True))
            yield Kind(atoms, "and then")


@cache
def kinds_of_tiers() -> Mapping[str, tuple[Kind, ...]]:
    """The kinds of each tier, in a fixed mixed order."""
    singles, doubles = _shuffled(_singles()), _shuffled(_doubles())
    new = [[kind for kind in kinds if pairs_of(kind) & UNDEMONSTRATED] for kinds in (singles, doubles)]
    shown, held = _hold_back([kind for kind in singles if kind not in new[0]])
    shown_two, held_two = _hold_back([kind for kind in doubles if kind not in new[1]])
    seen = shown + _covering(shown_two)[:_PAIRED]
    known = frozenset().union(*map(pairs_of, seen))
    combo, longer = ([kind for kind in kinds if pairs_of(kind) <= known] for kinds in (held_two, _shuffled(_longer())))
    deeper = [kind for kind in longer if len(kind.atoms) == 1]
    tiers = {
        "seen": seen,
        "evo": new[0] + new[1][:_PAIRED],
        "combo": [kind for kind in held if pairs_of(kind) <= known] + combo[:_PAIRED],
        "longer": deeper + [kind for kind in longer if kind not in deeper][:_TRIPLED],
    }
    return MappingProxyType({tier: tuple(_shuffled(found)) for tier, found in tiers.items()})


def _shuffled(kinds: Iterable[Kind]) -> list[Kind]:
    """In an order that a hash of each kind gives."""
    return sorted(kinds, key=lambda kind: sample_seed("grid kind", str(kind)))


def _hold_back(kinds: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """Kinds to be demonstrated, and about as many held back, all of whose pairs stay in kinds that are not.

    What one action does, a single thing in view, is always demonstrated.
    """
    times = Counter(pair for kind in kinds for pair in pairs_of(kind))
    shown: list[Kind] = []
    held: list[Kind] = []
    for kind in kinds:
        simple = len(kind.atoms) == 1 and kind.atoms[0].access == "view" and kind.atoms[0].verb != "put"
        if simple or len(held) > len(shown) or any(times[pair] < 2 for pair in pairs_of(kind)):
            shown.append(kind)
        else:
            held.append(kind)
            times.subtract(pairs_of(kind))
    return shown, held


def _covering(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds, first those that bring a pair that no earlier one has."""
    met: set[tuple[str, str]] = set()
    first: list[Kind] = []
    rest: list[Kind] = []
    for kind in kinds:
        (rest if pairs_of(kind) <= met else first).append(kind)
        met |= pairs_of(kind)
    return first + rest
