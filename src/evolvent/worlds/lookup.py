"""Lookup: questions over a hidden database, drawn afresh for each task; each action queries one relation.

    find home of boss of anna  ->  boss of anna  ->  oscar  ->  home of oscar  ->  keldon  ->  answer keldon

The kind of a task is its chain of relations. Two thirds of the adjacent pairs of relations are demonstrated. `seen` and
`combo` chains hold only such pairs, and no `combo` chain is ever trained as a whole; `evo` chains hold at least one
other pair, which only exploring can find; `longer` chains are one relation longer than any trained, of demonstrated
pairs.

The facts are drawn afresh for each task and queried one at a time through SQL. Twelve relations are each a function
from entities of one type to entities of one type. A `chain` is a sequence of relations in the order in which they are
asked, so that ("friend", "boss", "home") is the home of the boss of the friend of somebody.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, EnvLost, Problem
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.facts import CITIES, COUNTRIES, NAMES, PEOPLE
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = [
    "RELATIONS",
    "Chain",
    "Facts",
    "FactsDatabase",
    "Lookup",
    "LookupEnv",
    "Relation",
    "chains",
    "draw_facts",
    "tiers_of_chains",
]

Chain = tuple[str, ...]

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
# Per entity: the indices of its facts, relations in their fixed order.
_FACTS_OF = tuple(
    tuple(relation.base + index for relation in _OF_TYPE[kind])
    for kind, pool in _POOLS.items()
    for index in range(len(pool))
)


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
        values, number = self.values, {self.start: 0}
        entities, code = [self.start], []
        for entity in entities:
            for index in _FACTS_OF[entity]:
                value = values[index]
                if value not in number:
                    number[value] = len(entities)
                    entities.append(value)
                code.append(number[value])
        return hashlib.sha256(bytes(code) + " ".join(self.chain).encode()).hexdigest()


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


@lru_cache(maxsize=1 << 14)
def _canonical_key(chain: Chain, seed: int) -> str:
    """Returns `Facts.canonical` of a task; every world of a process deals its panels from the same tasks."""
    return draw_facts(chain, seed).canonical()


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


_EXPECTED = "expected relation of name or answer name"
_RIGHT, _WRONG = "right", "wrong"


@dataclass(frozen=True, slots=True)
class _Action:
    """A parsed action: a relation (None: an answer) and an entity; `refusal` explains why it is impossible, if it
    is.
    """

    relation: str | None
    entity: int
    refusal: str = ""


def _build_actions() -> dict[str, _Action]:
    """Maps every action text to its action, possible or not."""
    actions = {f"answer {name}": _Action(None, entity) for entity, name in enumerate(NAMES)}
    for relation in RELATIONS.values():
        for entity, name in enumerate(NAMES):
            refusal = "" if entity in relation.subjects else f"{name} has no {relation.name}"
            actions[f"{relation.name} of {name}"] = _Action(relation.name, entity, refusal)
    return actions


_ACTIONS: Mapping[str, _Action] = _build_actions()
_ADMISSIBLE = tuple(text for text, action in _ACTIONS.items() if not action.refusal)


def _render_question(chain: Chain) -> str:
    """Renders a chain as a question names it, last relation first: ("boss", "home") is "home of boss"."""
    return " of ".join(reversed(chain))


def _is_demonstrated(first: str, then: str) -> bool:
    """Returns whether demonstrations show these two relations one after the other.

    Number the relations that lead to a type and those that apply to it: every third diagonal is held out, so that
    each relation keeps about two thirds of its possible predecessors and successors.
    """
    kind = RELATIONS[first].value_type
    leading = [name for name, relation in RELATIONS.items() if relation.value_type == kind]
    following = [name for name, relation in RELATIONS.items() if relation.subject_type == kind]
    return (leading.index(first) + following.index(then)) % 3 != 0


def tiers_of_chains(hops: int) -> dict[str, tuple[Chain, ...]]:
    """Returns the chains of each tier, where training chains have up to `hops` (at least 3) relations.

    Of the chains of demonstrated pairs, those of up to two relations are `seen`; of the longer ones a hash of the chain
    makes half of them `seen` and half `combo`. Within a tier chains of all lengths are mixed, in the order of a hash.
    """
    demonstrated_pairs = {pair for pair in chains(2) if _is_demonstrated(*pair)}
    tiers: dict[str, list[Chain]] = {tier: [] for tier in TIERS}
    for length in range(1, hops + 2):
        for chain in chains(length):
            is_demonstrated = demonstrated_pairs.issuperset(pairwise(chain))
            if length > hops:
                tiers["longer"] += [chain] if is_demonstrated else []
            elif not is_demonstrated:
                tiers["evo"].append(chain)
            else:
                is_held_out = length > 2 and sample_seed("lookup", "seen", *chain) % 2 == 0
                tiers["combo" if is_held_out else "seen"].append(chain)
    return {
        tier: tuple(sorted(tier_chains, key=lambda chain: sample_seed("chain", *chain)))
        for tier, tier_chains in tiers.items()
    }


class Lookup(DealtOnce):
    """The world of questions over a hidden database.

    Args:
        hops: most relations in a training question (3 to 5); `longer` has one more.
        penalty: reward of an action that is none or cannot be (zero or negative).
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: for hops outside 3 to 5 or a positive penalty.
    """

    name = "lookup"
    version = "1"
    grammar: Grammar = Plain()
    tiers = TIERS
    run_in_thread = False
    instructions = (
        "Answer a question about people, cities and countries. Ask one relation of one name at a time, for example "
        f"'boss of {NAMES[0]}'; you are told its value. When you know the answer, write 'answer' and the name. "
        f"Relations: {', '.join(RELATIONS)}."
    )

    def __init__(self, *, hops: int = 3, penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = []
        if not 3 <= hops <= 5:
            problems.append(Problem("hops", f"got {hops} relations in a question, expected 3, 4 or 5 (combo needs 3)"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got {penalty}, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.hops, self.penalty = hops, penalty
        self.horizon = 2 * hops + 2
        self.reward_range = (penalty, 1.0)
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    @cached_property
    def _chains(self) -> Mapping[str, tuple[Chain, ...]]:
        return tiers_of_chains(self.hops)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end: one of every kind of the tier, then the next of every kind."""
        for seed in count():
            for chain in self._chains[tier]:
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed}
                yield Candidate(spec, _render_question(chain), tier, _canonical_key(chain, seed))

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names; panels are dealt by it."""
        return _canonical_key(*self._parse_spec(task))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> LookupEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: for a task of another world, or a spec without a possible chain and a seed.
            VersionMismatch: for a task of another version.
        """
        return LookupEnv(task, *self._parse_spec(task), penalty=self.penalty)

    def _parse_spec(self, task: Task) -> tuple[Chain, int]:
        check_task(self, task)
        chain, seed = task.spec.get("chain"), task.spec.get("seed")
        problems = []
        if not _is_possible(chain):
            problems.append(Problem("chain", f"unknown chain of relations {chain!r}", f"known: {', '.join(RELATIONS)}"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if problems:
            raise ConfigError(problems)
        return tuple(task.spec["chain"]), task.spec["seed"]

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the right answer, whatever penalties came before; raw = the sum of the
        rewards.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the shortest solution: query the relations in order, then answer."""
        facts = draw_facts(*self._parse_spec(task))
        names = [NAMES[entity] for entity in facts.walk()]
        queries = [f"{relation} of {name}" for relation, name in zip(facts.chain, names, strict=False)]
        return [*queries, f"answer {names[-1]}"]

    def vocabulary(self) -> Sequence[str]:
        texts = (*_ACTIONS, *(action.refusal for action in _ACTIONS.values()), "find", _EXPECTED, _RIGHT, _WRONG)
        return sorted({word for text in texts for word in text.split()})


def _is_possible(chain: object) -> bool:
    """Returns whether each relation of the chain is known and applies to the value of the one before."""
    if not isinstance(chain, Sequence) or isinstance(chain, str) or not chain:
        return False
    if not all(isinstance(name, str) and name in RELATIONS for name in chain):
        return False
    return all(RELATIONS[first].value_type == RELATIONS[then].subject_type for first, then in pairwise(chain))


class LookupEnv(StateEnv[None]):
    """One question, about facts that never change. The database is filled at the first query and closed at the end
    of the episode.
    """

    def __init__(self, task: Task, chain: Chain, seed: int, *, penalty: float) -> None:
        super().__init__(task, None)
        self._penalty = penalty
        self._facts = draw_facts(chain, seed)
        self._database: FactsDatabase | None = None

    def _observe_start(self) -> tuple[Value, Info]:
        self.close()  # An earlier episode may have left its database open.
        return f"find {_render_question(self._facts.chain)} of {NAMES[self._facts.start]}", {"admissible": _ADMISSIBLE}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        info: dict[str, object] = {"admissible": _ADMISSIBLE}
        parsed_action = _ACTIONS.get(str(action)) or _ACTIONS.get(" ".join(str(action).lower().split()))
        if parsed_action is None or parsed_action.refusal:
            info["invalid"] = True
            refusal = parsed_action.refusal if parsed_action else _EXPECTED
            return None, (refusal, self._penalty, False, False, info)
        if parsed_action.relation is None:
            is_correct = parsed_action.entity == self._facts.walk()[-1]
            self.close()
            return None, (_RIGHT if is_correct else _WRONG, float(is_correct), True, False, info)
        if self._database is None:
            self._database = FactsDatabase(self._facts)
        answer = NAMES[self._database.ask(parsed_action.relation, parsed_action.entity)]
        return None, (answer, 0.0, False, False, info)

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        super().restore(value)
        if not self._running:
            self.close()

    def close(self) -> None:
        super().close()
        if self._database is not None:
            self._database.close()
            self._database = None
