"""Generated facts about people, towns, firms and books, drawn anew for each question, and the chains of the
questions.

There are fifteen relations, each a function from entities of one type to entities of one type. A `chain` is a
sequence of relations in the order of lookup: ("teacher", "home") is the home of somebody's teacher. The pools
of names are fixed; the names that a question uses, and their entities, are drawn: a name says nothing about the
answer.
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
    "chains_by_tier",
    "draw_facts",
    "is_chain",
    "iterate_chains",
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

_COUNT_BY_TYPE = {"person": 8, "town": 6, "firm": 5, "book": 5}  # entities of a question's world, by type
_FIRST_BY_TYPE = {"person": 0, "town": 8, "firm": 14, "book": 19}
_MAX_CHAIN_LENGTH = 6  # relations in a chain
_MAX_SHARED_VALUES = 2  # most entities that share one value of a relation


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation: its name, the type of its subjects, and the type of its values."""

    name: str
    subject_type: str
    value_type: str

    @property
    def subjects(self) -> range:
        """Returns the numbers of the entities that have this relation."""
        return range(
            _FIRST_BY_TYPE[self.subject_type], _FIRST_BY_TYPE[self.subject_type] + _COUNT_BY_TYPE[self.subject_type]
        )


RELATIONS: Mapping[str, Relation] = {
    name: Relation(name, subject_type, value)
    for name, subject_type, value in (
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

_RELATIONS_BY_TYPE = {kind: tuple(r for r in RELATIONS.values() if r.subject_type == kind) for kind in POOLS}


def is_chain(chain: object) -> bool:
    """Returns whether the value is a valid chain.

    A valid chain has one to six known relations. The subject type of each is the value type of the one before it,
    and the chain needs no more entities of a type than there are.
    """
    if not isinstance(chain, list | tuple) or not 1 <= len(chain) <= _MAX_CHAIN_LENGTH:
        return False
    if not all(isinstance(name, str) and name in RELATIONS for name in chain):
        return False
    types = [RELATIONS[chain[0]].subject_type, *(RELATIONS[name].value_type for name in chain)]
    types_match = all(RELATIONS[name].subject_type == kind for name, kind in zip(chain, types, strict=False))
    return types_match and all(times <= _COUNT_BY_TYPE[kind] for kind, times in Counter(types).items())


def iterate_chains(length: int) -> Iterator[Chain]:
    """Yields all sequences of `length` (at least 1) relations in which each subject type is the preceding value
    type.
    """
    if length == 1:
        yield from ((name,) for name in RELATIONS)
        return
    for head in iterate_chains(length - 1):
        yield from ((*head, relation.name) for relation in _RELATIONS_BY_TYPE[RELATIONS[head[-1]].value_type])


def _is_demonstrated(first: str, second: str) -> bool:
    """Returns whether demonstrations contain these two relations in sequence: two thirds of all pairs are
    demonstrated.

    Number the relations with a type as value and those with it as subject: every third diagonal is held back.
    """
    kind = RELATIONS[first].value_type
    leading = [name for name, relation in RELATIONS.items() if relation.value_type == kind]
    following = [relation.name for relation in _RELATIONS_BY_TYPE[kind]]
    return (leading.index(first) + following.index(second)) % 3 != 0


def chains_by_tier(hops: int) -> dict[str, tuple[Chain, ...]]:
    """Returns the chains of each tier, where training chains have up to `hops` (at least 3) relations.

    Chains of demonstrated pairs are `seen` up to two relations; of the longer ones the hash of the chain makes half
    `seen` and half `combo`. A chain with another pair is `evo`. `longer` chains have `hops + 1` relations, of
    demonstrated pairs. Within a tier, chains of all lengths are mixed, in the order of a hash.
    """
    tiers: dict[str, list[Chain]] = {tier: [] for tier in TIERS}
    for length in range(1, hops + 2):
        for chain in filter(is_chain, iterate_chains(length)):
            is_demonstrated = all(_is_demonstrated(*pair) for pair in pairwise(chain))
            if length > hops:
                tiers["longer"] += [chain] if is_demonstrated else []
            elif not is_demonstrated:
                tiers["evo"].append(chain)
            else:
                is_held_back = length > 2 and sample_seed("searchqa", "seen", *chain) % 2 == 0
                tiers["combo" if is_held_back else "seen"].append(chain)
    return {
        tier: tuple(sorted(tier_chains, key=lambda chain: sample_seed("chain", *chain)))
        for tier, tier_chains in tiers.items()
    }


class Draws:
    """A stream of 512 random numbers by name: the bytes of SHAKE-256, the same in every version of Python and numpy.

    Args:
        name: equal names give equal numbers.
    """

    def __init__(self, *name: object) -> None:
        self._raw = hashlib.shake_256(" ".join(map(str, ("evolvent searchqa 1", *name))).encode()).digest(4 * 512)
        self._taken = 0

    def draw_numbers(self, size: int) -> NDArray[np.uint32]:
        """Returns `[size]` numbers below 2**32 that were not returned before."""
        begin, self._taken = self._taken, self._taken + size
        return np.frombuffer(self._raw, dtype="<u4", count=size, offset=4 * begin)

    def draw_order(self, size: int) -> list[int]:
        """Returns the numbers 0 to size - 1 in random order."""
        order: list[int] = self.draw_numbers(size).argsort(kind="stable").tolist()
        return order


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one question.

    Args:
        names: the name of each entity, by its number: people, towns, firms, books.
        values: relation -> the numbers of its values, in the order of its subjects.
        start_entity: the entity that the question is about.
        chain: the relations of the question in the order of lookup.
    """

    names: tuple[str, ...]
    values: Mapping[str, Sequence[int]]
    start_entity: int
    chain: Chain

    def value_of(self, relation: Relation, entity: int) -> int:
        """Returns the number of the entity that is the value of `relation` for `entity`."""
        return self.values[relation.name][entity - _FIRST_BY_TYPE[relation.subject_type]]

    def walk(self) -> list[int]:
        """Returns the numbers of all entities on the path from the start to the answer, both included."""
        path = [self.start_entity]
        for name in self.chain:
            path.append(self.value_of(RELATIONS[name], path[-1]))
        return path

    @property
    def question(self) -> str:
        """Returns the question in words, last relation first: "what is the home of the teacher of anna?"."""
        description = " of ".join(f"the {name}" for name in reversed(self.chain))
        question_word = "who" if RELATIONS[self.chain[-1]].value_type == "person" else "what"
        return f"{question_word} is {description} of {self.names[self.start_entity]}?"

    @property
    def answer(self) -> str:
        """Returns the name of the entity at the end of the path."""
        return self.names[self.walk()[-1]]

    def digest(self) -> str:
        """Returns a digest of question and facts that is the same exactly for those that differ only in names.

        Relations are functions, so numbering entities in the order of discovery from the start, with relations in a
        fixed order, gives one numbering for all namings. Facts that are unreachable from the start do not count.
        """
        number_of = {self.start_entity: 0}
        visited, code = [self.start_entity], []
        for entity in visited:
            for relation in _RELATIONS_BY_TYPE[_TYPE_OF_ENTITY[entity]]:
                value = self.value_of(relation, entity)
                if value not in number_of:
                    number_of[value] = len(visited)
                    visited.append(value)
                code.append(number_of[value])
        return hashlib.sha256(bytes(code) + " ".join(self.chain).encode()).hexdigest()


_TYPE_OF_ENTITY = tuple(kind for kind, count in _COUNT_BY_TYPE.items() for _ in range(count))


def draw_facts(chain: Chain, seed: int, *, naming: int | None = None) -> Facts:
    """Draws the facts of the question (chain, seed): no value occurs more than twice in a relation, and none is
    reflexive.

    The start is drawn among the entities from which the chain visits no entity twice: then no search can be
    skipped. If there is none, all facts are drawn again.

    Args:
        chain: a valid chain (`is_chain`).
        naming: seed of other names; everything else stays.
    """
    names = _draw_names(Draws("names", seed, *chain) if naming is None else Draws("renamed", naming))
    attempt = 0
    while True:
        draws = Draws("facts", seed, attempt, *chain)
        values = {relation.name: _draw_values(draws, relation) for relation in RELATIONS.values()}
        subjects = RELATIONS[chain[0]].subjects
        for index in draws.draw_order(len(subjects)):
            facts = Facts(names, values, subjects[index], chain)
            path = facts.walk()
            if len(set(path)) == len(path):
                return facts
        attempt += 1


def _draw_names(draws: Draws) -> tuple[str, ...]:
    return tuple(
        pool[index] for kind, pool in POOLS.items() for index in draws.draw_order(len(pool))[: _COUNT_BY_TYPE[kind]]
    )


def _draw_values(draws: Draws, relation: Relation) -> tuple[int, ...]:
    """Returns the numbers of the values: any of their type, none more than twice, none the subject itself."""
    first_value, value_count = _FIRST_BY_TYPE[relation.value_type], _COUNT_BY_TYPE[relation.value_type]
    values = [
        first_value + index % value_count
        for index in draws.draw_order(_MAX_SHARED_VALUES * value_count)[: _COUNT_BY_TYPE[relation.subject_type]]
    ]
    if relation.subject_type == relation.value_type:
        for index, subject in enumerate(relation.subjects):
            if values[index] == subject:
                swap_index = next(
                    i
                    for i, other_subject in enumerate(relation.subjects)
                    if values[i] != subject and other_subject != values[index]
                )
                values[index], values[swap_index] = values[swap_index], values[index]
    return tuple(values)
