"""Invented facts about people, cities and countries, drawn afresh for each task and queried one at a time through
SQL.

Twelve relations, each a function from entities of one type to entities of one type. A `chain` is a sequence of
relations in the order in which they are asked, so that ("friend", "boss", "home") is the home of the boss of the
friend of somebody. The names are fixed, the facts are drawn: no name says anything about the answer.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import EnvLost

__all__ = [
    "CITIES",
    "COUNTRIES",
    "NAMES",
    "PEOPLE",
    "RELATIONS",
    "Chain",
    "Facts",
    "FactsDatabase",
    "Relation",
    "chains",
    "draw_facts",
]

Chain = tuple[str, ...]

PEOPLE: tuple[str, ...] = (
    "adam",
    "anna",
    "bella",
    "boris",
    "carla",
    "cyrus",
    "david",
    "diana",
    "elena",
    "emil",
    "fatima",
    "felix",
    "greta",
    "gustav",
    "helga",
    "hugo",
    "irene",
    "ivan",
    "jonas",
    "julia",
    "karin",
    "kenji",
    "leila",
    "louis",
    "marco",
    "maria",
    "nadia",
    "nina",
    "oscar",
    "paula",
    "quinn",
    "rafael",
    "sonia",
    "tomas",
    "ursula",
    "viktor",
    "wanda",
    "xenia",
    "yusuf",
    "zelda",
)
CITIES: tuple[str, ...] = (
    "arvik",
    "belmor",
    "corvan",
    "dunmere",
    "elstow",
    "farrin",
    "galdry",
    "harvick",
    "ismere",
    "jorvale",
    "keldon",
    "lorwick",
    "marden",
    "norvale",
    "ostrey",
    "perrin",
    "quelby",
    "rosmere",
    "selwick",
    "tarvin",
    "ulmere",
    "velden",
    "wexmoor",
    "yarvale",
    "zelmar",
    "brinfell",
    "crosby",
    "dorlund",
    "fenmarch",
    "holtby",
    "stanmoor",
    "thornby",
)
COUNTRIES: tuple[str, ...] = (
    "avaria",
    "bodonia",
    "cresia",
    "dravia",
    "elunia",
    "falonia",
    "goravia",
    "hestria",
    "ildoria",
    "jastria",
    "kelvonia",
    "lumeria",
    "morunia",
    "nerilia",
    "ostavia",
    "pelonia",
    "quaria",
    "rhodavia",
    "sorania",
    "tavaria",
    "ulmaria",
    "vestria",
    "wendia",
    "zandoria",
)
NAMES: tuple[str, ...] = PEOPLE + CITIES + COUNTRIES
"""All entities; an entity's number is its place in here."""

_POOLS = {"person": PEOPLE, "city": CITIES, "country": COUNTRIES}
_FIRST = {"person": 0, "city": len(PEOPLE), "country": len(PEOPLE) + len(CITIES)}


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between entities.

    Args:
        name: its name.
        subject_type: the type of entity that has the relation.
        value_type: the type of its value.
        base: index of its first fact.
    """

    name: str
    subject_type: str
    value_type: str
    base: int

    @property
    def subjects(self) -> range:
        """Returns the numbers of the entities that have this relation."""
        return range(_FIRST[self.subject_type], _FIRST[self.subject_type] + len(_POOLS[self.subject_type]))


def _build_relations(*rows: tuple[str, str, str]) -> dict[str, Relation]:
    relations, base = {}, 0
    for name, subject_type, value_type in rows:
        relations[name] = Relation(name, subject_type, value_type, base)
        base += len(_POOLS[subject_type])
    return relations


RELATIONS = _build_relations(
    ("boss", "person", "person"),
    ("friend", "person", "person"),
    ("teacher", "person", "person"),
    ("doctor", "person", "person"),
    ("home", "person", "city"),
    ("birthplace", "person", "city"),
    ("mayor", "city", "person"),
    ("rival", "city", "city"),
    ("country", "city", "country"),
    ("leader", "country", "person"),
    ("capital", "country", "city"),
    ("patron", "country", "country"),
)
"""All relations by name. None of them need be mutual: the rival of a city's rival is any city."""

_OF_TYPE = {kind: tuple(r for r in RELATIONS.values() if r.subject_type == kind) for kind in _POOLS}


def chains(length: int) -> Iterator[Chain]:
    """Yields all chains of `length` relations in which each applies to the value of the one before."""
    if length < 1:
        yield ()
        return
    for head in chains(length - 1):
        followers = _OF_TYPE[RELATIONS[head[-1]].value_type] if head else RELATIONS.values()
        yield from ((*head, relation.name) for relation in followers)


def _fact_layout() -> tuple[NDArray[np.int64], ...]:
    """Computes, per fact: the first number of the value's type, its size, the number of allowed values, the smallest
    shift.
    """
    first, size, allowed, shift = [], [], [], []
    for relation in RELATIONS.values():
        count, is_same_type = len(_POOLS[relation.value_type]), relation.subject_type == relation.value_type
        for index in range(len(_POOLS[relation.subject_type])):
            first.append(_FIRST[relation.value_type])
            size.append(count)
            allowed.append(count - 1 if is_same_type else count)
            shift.append(index + 1 if is_same_type else 0)
    return np.array(first), np.array(size), np.array(allowed), np.array(shift)


_VALUE_FIRST, _VALUE_SIZE, _ALLOWED, _SHIFT = _fact_layout()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one task.

    Args:
        values: the number of the value of each fact, relations one after another (`Relation.base`).
        start: number of the entity that the question is about.
        chain: the relations of the question in the order in which they are asked.
    """

    values: Sequence[int]
    start: int
    chain: Chain

    def value(self, relation: Relation, entity: int) -> int:
        """Returns the number of the value of `relation` for `entity`."""
        return self.values[relation.base + entity - _FIRST[relation.subject_type]]

    def walk(self, start: int | None = None) -> list[int]:
        """Returns the numbers of all entities from the start (or another entity) to the answer, both included."""
        path = [self.start if start is None else start]
        for name in self.chain:
            path.append(self.value(RELATIONS[name], path[-1]))
        return path

    def canonical(self) -> str:
        """Hashes question and facts; the digest is equal exactly for tasks that differ only in names.

        Every relation is a function, so numbering the entities as they are met from the start, relations in a fixed
        order, gives one numbering for all renamings. Facts that cannot be reached from the start do not count.
        """
        number = {self.start: 0}
        entities, code = [self.start], []
        for entity in entities:
            for relation in _OF_TYPE[_type_of(entity)]:
                value = self.value(relation, entity)
                if value not in number:
                    number[value] = len(entities)
                    entities.append(value)
                code.append(number[value])
        return hashlib.sha256(bytes(code) + " ".join(self.chain).encode()).hexdigest()


def _type_of(entity: int) -> str:
    return "person" if entity < _FIRST["city"] else "city" if entity < _FIRST["country"] else "country"


def draw_facts(chain: Chain, seed: int) -> Facts:
    """Draws the facts of the task (chain, seed): every value is uniform over its type, nobody is related to
    themselves.

    The bytes come from SHAKE-256, so they are the same under every version of Python and numpy. The start is the
    first entity, from a drawn index on, from which the chain visits no entity twice: then no query can be left out.
    """
    key = f"evolvent lookup 1 {seed} {' '.join(chain)}".encode()
    raw = np.frombuffer(hashlib.shake_256(key).digest(2 * len(_VALUE_FIRST) + 2), dtype="<u2").astype(np.int64)
    values = (_VALUE_FIRST + (_SHIFT + raw[:-1] % _ALLOWED) % _VALUE_SIZE).tolist()
    subject_type = RELATIONS[chain[0]].subject_type
    first, count = _FIRST[subject_type], len(_POOLS[subject_type])
    for shift in range(count):
        facts = Facts(values, first + (int(raw[-1]) + shift) % count, chain)
        path = facts.walk()
        if len(set(path)) == len(path):
            break
    return facts


_SCHEMA = ";".join(
    f"CREATE TABLE {kind} (id INTEGER PRIMARY KEY, {', '.join(f'{r.name} INTEGER NOT NULL' for r in relations)})"
    for kind, relations in _OF_TYPE.items()
)
_INSERT = {kind: f"INSERT INTO {kind} VALUES (?{', ?' * len(rows)})" for kind, rows in _OF_TYPE.items()}
_SELECT = {r.name: f"SELECT {r.name} FROM {r.subject_type} WHERE id = ?" for r in RELATIONS.values()}


@cache
def _empty_image() -> bytes:
    """Returns an image of a database with tables but no rows; loading it takes half the time of creating the tables."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return connection.serialize()


class _Budget:
    """Progress handler that SQLite calls every 1,000 instructions; True interrupts the query."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


class FactsDatabase:
    """The facts of one task in an in-memory SQLite database, read-only once it is filled.

    One table per type of entity, one column per relation; entities are their numbers. The statements are fixed texts,
    one per relation, and the number is a bound parameter: no text of a model reaches SQL.

    Args:
        facts: what to hold.
        limit: how many thousand SQLite instructions one query may run; then it is broken off.
    """

    def __init__(self, facts: Facts, *, limit: int = 10) -> None:
        self._budget = _Budget(limit)
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.deserialize(_empty_image())
        self._connection.execute("BEGIN")
        for kind, relations in _OF_TYPE.items():
            first, count = _FIRST[kind], len(_POOLS[kind])
            columns = [facts.values[r.base : r.base + count] for r in relations]
            self._connection.executemany(_INSERT[kind], zip(range(first, first + count), *columns, strict=True))
        self._connection.execute("COMMIT")
        self._connection.execute("PRAGMA query_only = ON")
        self._connection.set_progress_handler(self._budget, 1_000)

    def ask(self, relation: str, entity: int) -> int:
        """Returns the number of the value of a relation of an entity.

        Raises:
            EnvLost: where the database is closed, the query is broken off, or the entity has no such relation.
        """
        self._budget.left = self._budget.limit
        try:
            row = self._connection.execute(_SELECT[relation], (entity,)).fetchone()
        except sqlite3.Error as error:
            raise EnvLost(f"the hidden database did not answer ({error})", value=f"{relation} of {entity}") from error
        if row is None:
            raise EnvLost("the hidden database does not hold this fact", value=f"{relation} of {entity}")
        return int(row[0])

    def close(self) -> None:
        """Releases the memory; a second call is harmless."""
        self._connection.close()
