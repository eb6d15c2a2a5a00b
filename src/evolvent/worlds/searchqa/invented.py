"""Invented facts about people, towns, firms and books, drawn afresh for each question, and the chains that are asked.

Fifteen relations, each a function from entities of one type to entities of one type. A `chain` is a sequence of
relations in the order in which they are looked up: ("teacher", "home") is the home of the teacher of somebody. The
pools of names are fixed; which names a question uses, and for whom, is drawn: no name says anything about the answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evolvent.trajectory import sample_seed
from evolvent.worlds.base import TIERS
from evolvent.worlds.facts import CITIES, PEOPLE

__all__ = [
    "POOLS",
    "RELATIONS",
    "Chain",
    "Draws",
    "Facts",
    "Relation",
    "chains",
    "draw_facts",
    "possible",
    "tiers_of_chains",
]

Chain = tuple[str, ...]

POOLS: Mapping[str, tuple[str, ...]] = {
    "person": PEOPLE,
    "town": (*CITIES, "ashcombe", "birlow", "caldmere", "dorrick", "eastrow", "glenmoor", "highfell", "kirkdale"),
    "firm": (
        "altrisk",
        "arcadon",
        "belcora",
        "bromvek",
        "castriva",
        "cindral",
        "dominel",
        "dovexa",
        "erlium",
        "estrelva",
        "falmora",
        "fintora",
        "gravixa",
        "hexalo",
        "infrel",
        "jovenda",
        "korvask",
        "lumbrix",
        "mordane",
        "novalisk",
        "optrava",
        "pelorix",
        "quandor",
        "rondelva",
        "sintrava",
        "telmora",
        "umbraxa",
        "vantrel",
        "wolvane",
        "xerivo",
        "yottan",
        "zentrava",
        "calvendo",
        "drimatec",
        "ferrovan",
        "gondrel",
        "hestrum",
        "ilvanta",
        "krellon",
        "nerovia",
    ),
    "book": (
        "ashes",
        "beacon",
        "cascade",
        "driftwood",
        "ember",
        "frost",
        "gale",
        "harvest",
        "island",
        "journey",
        "kingdom",
        "labyrinth",
        "meadow",
        "nightfall",
        "orchard",
        "pilgrim",
        "quarry",
        "raven",
        "shadow",
        "tempest",
        "uprising",
        "voyage",
        "whisper",
        "yearling",
        "zenith",
        "almanac",
        "bridges",
        "compass",
        "daybreak",
        "echoes",
        "fathom",
        "glacier",
        "horizon",
        "inferno",
        "lagoon",
        "mirage",
        "nomad",
        "outpost",
        "paradox",
        "rainfall",
    ),
}
"""The names that an entity of each type can have."""

_HELD = {"person": 8, "town": 6, "firm": 5, "book": 5}  # entities of a question's world, by type
_FIRST = {"person": 0, "town": 8, "firm": 14, "book": 19}
_LONGEST = 6  # relations in a chain
_SAME = 2  # most entities that share one value of a relation


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation: its name, the type of entity it is asked of, and the type of its value."""

    name: str
    of: str
    value: str

    @property
    def subjects(self) -> range:
        """The numbers of the entities that have this relation."""
        return range(_FIRST[self.of], _FIRST[self.of] + _HELD[self.of])


RELATIONS: Mapping[str, Relation] = {
    name: Relation(name, of, value)
    for name, of, value in (
        ("teacher", "person", "person"),
        ("friend", "person", "person"),
        ("home", "person", "town"),
        ("birthplace", "person", "town"),
        ("employer", "person", "firm"),
        ("masterpiece", "person", "book"),
        ("mayor", "town", "person"),
        ("founder", "town", "person"),
        ("twin", "town", "town"),
        ("director", "firm", "person"),
        ("seat", "firm", "town"),
        ("bestseller", "firm", "book"),
        ("author", "book", "person"),
        ("setting", "book", "town"),
        ("publisher", "book", "firm"),
    )
}
"""All relations by name. None of them need be mutual."""

_OF_TYPE = {kind: tuple(r for r in RELATIONS.values() if r.of == kind) for kind in POOLS}


def possible(chain: object) -> bool:
    """Whether this is a chain that can be asked.

    That is one to six known relations, each asked of the type of value of the one before it, and no more entities of a
    type on the way than there are.
    """
    if not isinstance(chain, list | tuple) or not 1 <= len(chain) <= _LONGEST:
        return False
    if not all(isinstance(name, str) and name in RELATIONS for name in chain):
        return False
    types = [RELATIONS[chain[0]].of, *(RELATIONS[name].value for name in chain)]
    asked = all(RELATIONS[name].of == kind for name, kind in zip(chain, types, strict=False))
    return asked and all(times <= _HELD[kind] for kind, times in Counter(types).items())


def chains(length: int) -> Iterator[Chain]:
    """All sequences of so many relations (at least 1), each asked of the type of value of the one before it."""
    if length == 1:
        yield from ((name,) for name in RELATIONS)
        return
    for head in chains(length - 1):
        yield from ((*head, relation.name) for relation in _OF_TYPE[RELATIONS[head[-1]].value])


def _demonstrated(first: str, then: str) -> bool:
    """Whether demonstrations show these two relations one after the other: two thirds of all pairs are shown.

    Number the relations that lead to a type and those that are asked of it: every third diagonal is kept back.
    """
    kind = RELATIONS[first].value
    leading = [name for name, relation in RELATIONS.items() if relation.value == kind]
    asked = [relation.name for relation in _OF_TYPE[kind]]
    return (leading.index(first) + asked.index(then)) % 3 != 0


def tiers_of_chains(hops: int) -> dict[str, tuple[Chain, ...]]:
    """The chains of each tier, where training chains have up to `hops` (at least 3) relations.

    Chains of demonstrated pairs are `seen` up to two relations; of the longer ones the hash of the chain makes half
    `seen` and half `combo`. A chain with another pair is `evo`. `longer` chains have `hops + 1` relations, of
    demonstrated pairs. Within a tier chains of all lengths are mixed, in the order of a hash.
    """
    tiers: dict[str, list[Chain]] = {tier: [] for tier in TIERS}
    for length in range(1, hops + 2):
        for chain in filter(possible, chains(length)):
            shown = all(_demonstrated(*pair) for pair in pairwise(chain))
            if length > hops:
                tiers["longer"] += [chain] if shown else []
            elif not shown:
                tiers["evo"].append(chain)
            else:
                kept_back = length > 2 and sample_seed("searchqa", "seen", *chain) % 2 == 0
                tiers["combo" if kept_back else "seen"].append(chain)
    return {tier: tuple(sorted(found, key=lambda chain: sample_seed("chain", *chain))) for tier, found in tiers.items()}


class Draws:
    """512 random numbers by name: the bytes of SHAKE-256, the same under every version of Python and numpy.

    Args:
        name: equal names give equal numbers.
    """

    def __init__(self, *name: object) -> None:
        self._raw = hashlib.shake_256(" ".join(map(str, ("evolvent searchqa 1", *name))).encode()).digest(4 * 512)
        self._taken = 0

    def numbers(self, size: int) -> NDArray[np.uint32]:
        """`[size]` numbers below 2**32 that were not given before."""
        begin, self._taken = self._taken, self._taken + size
        return np.frombuffer(self._raw, dtype="<u4", count=size, offset=4 * begin)

    def order(self, size: int) -> list[int]:
        """The numbers 0 to size - 1 in an order drawn."""
        order: list[int] = self.numbers(size).argsort(kind="stable").tolist()
        return order


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one question.

    Args:
        names: the name of each entity, by its number: people, towns, firms, books.
        values: relation -> the numbers of its values, in the order of its subjects.
        start: the entity that the question is about.
        chain: the relations of the question in the order in which they are looked up.
    """

    names: tuple[str, ...]
    values: Mapping[str, Sequence[int]]
    start: int
    chain: Chain

    def value(self, relation: Relation, entity: int) -> int:
        """The number of the value of `relation` of `entity`."""
        return self.values[relation.name][entity - _FIRST[relation.of]]

    def walk(self) -> list[int]:
        """The numbers of all entities on the way from the start to the answer, both included."""
        path = [self.start]
        for name in self.chain:
            path.append(self.value(RELATIONS[name], path[-1]))
        return path

    @property
    def question(self) -> str:
        """The question in words, last relation first: "what is the home of the teacher of anna?"."""
        asked = " of ".join(f"the {name}" for name in reversed(self.chain))
        who = "who" if RELATIONS[self.chain[-1]].value == "person" else "what"
        return f"{who} is {asked} of {self.names[self.start]}?"

    @property
    def answer(self) -> str:
        """The name of the entity at the end of the way."""
        return self.names[self.walk()[-1]]

    def canonical(self) -> str:
        """A digest of question and facts that is the same exactly for those that differ in names only.

        Relations are functions, so numbering entities as they are met from the start, relations in a fixed order, gives
        one numbering for all namings. Facts that cannot be reached from the start do not count.
        """
        number = {self.start: 0}
        met, code = [self.start], []
        for entity in met:
            for relation in _OF_TYPE[_TYPES[entity]]:
                value = self.value(relation, entity)
                if value not in number:
                    number[value] = len(met)
                    met.append(value)
                code.append(number[value])
        return hashlib.sha256(bytes(code) + " ".join(self.chain).encode()).hexdigest()


_TYPES = tuple(kind for kind, held in _HELD.items() for _ in range(held))


def draw_facts(chain: Chain, seed: int, *, naming: int | None = None) -> Facts:
    """The facts of the question (chain, seed): no relation has one value more than twice, nobody is related to itself.

    The start is drawn among the entities from which the chain meets no entity twice: then no search can be left out.
    Where there is none, all is drawn again.

    Args:
        chain: a `possible` one.
        naming: draw other names; all else stays.
    """
    names = _draw_names(Draws("names", seed, *chain) if naming is None else Draws("renamed", naming))
    attempt = 0
    while True:
        draws = Draws("facts", seed, attempt, *chain)
        values = {relation.name: _draw_values(draws, relation) for relation in RELATIONS.values()}
        subjects = RELATIONS[chain[0]].subjects
        for place in draws.order(len(subjects)):
            facts = Facts(names, values, subjects[place], chain)
            path = facts.walk()
            if len(set(path)) == len(path):
                return facts
        attempt += 1


def _draw_names(draws: Draws) -> tuple[str, ...]:
    return tuple(pool[place] for kind, pool in POOLS.items() for place in draws.order(len(pool))[: _HELD[kind]])


def _draw_values(draws: Draws, relation: Relation) -> tuple[int, ...]:
    """The numbers of the values: any of their type, none more than twice, none the subject itself."""
    first, held = _FIRST[relation.value], _HELD[relation.value]
    values = [first + place % held for place in draws.order(_SAME * held)[: _HELD[relation.of]]]
    if relation.of == relation.value:
        for place, subject in enumerate(relation.subjects):
            if values[place] == subject:
                other = next(
                    i for i, own in enumerate(relation.subjects) if values[i] != subject and own != values[place]
                )
                values[place], values[other] = values[other], values[place]
    return tuple(values)
