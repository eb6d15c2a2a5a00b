"""Facts: against byte-by-byte recomputation, brute force over chains, and renaming."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import EnvLost
from evolvent.worlds.facts import CITIES, COUNTRIES, NAMES, PEOPLE
from evolvent.worlds.lookup import (
    RELATIONS,
    Chain,
    Facts,
    FactsDatabase,
    chains,
    draw_facts,
)

TYPES = {"person": range(40), "city": range(40, 72), "country": range(72, 96)}
CHAINS: list[Chain] = [chain for length in (1, 2, 3) for chain in chains(length)]
tasks = st.builds(draw_facts, st.sampled_from(CHAINS), st.integers(0, 10**9))


def test_names_are_single_lower_case_words_used_once() -> None:
    assert (len(PEOPLE), len(CITIES), len(COUNTRIES)) == (40, 32, 24)
    words = [*NAMES, *RELATIONS]
    assert len(set(words)) == len(words)
    assert all(word.isalpha() and word == word.lower() for word in words)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_chains_are_all_sequences_whose_types_fit(length: int) -> None:
    fitting = {
        chain
        for chain in itertools.product(RELATIONS, repeat=length)
        if all(RELATIONS[a].value_type == RELATIONS[b].subject_type for a, b in itertools.pairwise(chain))
    }
    listed = list(chains(length))
    assert len(listed) == len(set(listed)) == {1: 12, 2: 54, 3: 252}[length]
    assert set(listed) == fitting


def test_values_are_the_bytes_of_shake_256() -> None:
    chain, seed = ("boss", "home", "rival"), 5
    stream = hashlib.shake_256(b"evolvent lookup 1 5 boss home rival").digest(1000)
    numbers = (int.from_bytes(stream[i : i + 2], "little") for i in itertools.count(step=2))
    expected = []
    for relation in RELATIONS.values():
        target = TYPES[relation.value_type]
        for place, entity in enumerate(TYPES[relation.subject_type]):
            number = next(numbers)
            if relation.subject_type == relation.value_type:
                others = [*target[place + 1 :], *target[:place]]
                assert entity not in others
                expected.append(others[number % len(others)])
            else:
                expected.append(target[number % len(target)])
    assert list(draw_facts(chain, seed).values) == expected


@given(tasks)
def test_values_have_their_type_and_no_entity_is_related_to_itself(facts: Facts) -> None:
    for relation in RELATIONS.values():
        for entity in TYPES[relation.subject_type]:
            value = facts.value(relation, entity)
            assert value in TYPES[relation.value_type]
            assert value != entity


@given(tasks)
def test_the_way_to_the_answer_meets_no_entity_twice(facts: Facts) -> None:
    path = facts.walk()
    assert len(set(path)) == len(path) == len(facts.chain) + 1


def test_answers_are_spread_evenly_over_their_type() -> None:
    answers = Counter(draw_facts(("home", "country"), seed).walk()[-1] for seed in range(2400))
    assert set(answers) == set(TYPES["country"])
    chi_square = sum((answers[country] - 100) ** 2 / 100 for country in TYPES["country"])
    assert chi_square < 49.7  # 99.9 % of chi square with 23 degrees of freedom


def renamed(facts: Facts, order: dict[int, int]) -> Facts:
    """The same facts with entity e called order[e]."""
    values = [0] * len(facts.values)
    for relation in RELATIONS.values():
        first = TYPES[relation.subject_type].start
        for entity in TYPES[relation.subject_type]:
            values[relation.base + order[entity] - first] = order[facts.value(relation, entity)]
    return Facts(values, order[facts.start], facts.chain)


@given(tasks, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_canonical_form_does_not_see_names(facts: Facts, random: object) -> None:
    order: dict[int, int] = {}
    for pool in TYPES.values():
        shuffled = list(pool)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        order |= dict(zip(pool, shuffled, strict=True))
    other = renamed(facts, order)
    assert other.canonical() == facts.canonical()
    assert [order[entity] for entity in facts.walk()] == other.walk()


@given(tasks, st.integers(0, 10_000), st.integers(1, 23))
@settings(max_examples=50)
def test_canonical_form_sees_each_fact_on_the_way(facts: Facts, pick: int, shift: int) -> None:
    path = facts.walk()
    at = pick % len(facts.chain)
    relation = RELATIONS[facts.chain[at]]
    target = TYPES[relation.value_type]
    changed = list(facts.values)
    place = relation.base + path[at] - TYPES[relation.subject_type].start
    changed[place] = target[(changed[place] - target.start + shift) % len(target)]
    assert Facts(changed, facts.start, facts.chain).canonical() != facts.canonical()


def test_canonical_form_sees_the_chain() -> None:
    facts = draw_facts(("boss", "home"), 1)
    assert Facts(facts.values, facts.start, ("friend", "home")).canonical() != facts.canonical()


def test_the_database_holds_every_fact() -> None:
    facts = draw_facts(("mayor", "friend"), 3)
    database = FactsDatabase(facts)
    for relation in RELATIONS.values():
        for entity in TYPES[relation.subject_type]:
            assert database.ask(relation.name, entity) == facts.value(relation, entity)
    database.close()


def test_one_join_gives_the_answer_of_the_walk() -> None:
    facts = draw_facts(("boss", "home", "country"), 8)
    database = FactsDatabase(facts)
    query = (
        "SELECT city.country FROM person AS a JOIN person AS b ON a.boss = b.id "
        "JOIN city ON b.home = city.id WHERE a.id = ?"
    )
    assert database._connection.execute(query, (facts.start,)).fetchone() == (facts.walk()[-1],)
    database.close()


def test_the_database_is_read_only() -> None:
    database = FactsDatabase(draw_facts(("boss",), 0))
    for statement in ("UPDATE person SET boss = 1", "DROP TABLE person", "INSERT INTO city VALUES (0, 0, 0, 0)"):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            database._connection.execute(statement)
    database.close()


def test_a_query_over_its_limit_is_broken_off() -> None:
    database = FactsDatabase(draw_facts(("boss",), 0), limit=0)
    with pytest.raises(EnvLost, match=r"did not answer.*interrupted.*boss of 3"):
        for _ in range(2000):
            database.ask("boss", 3)
    database.close()


def test_the_limit_counts_each_query_for_itself() -> None:
    """SQLite goes on counting instructions where a statement is used again."""
    facts = draw_facts(("boss",), 0)
    database = FactsDatabase(facts, limit=1)
    assert {database.ask("boss", 3) for _ in range(5000)} == {facts.value(RELATIONS["boss"], 3)}
    database.close()


def test_a_closed_database_and_a_missing_fact_are_typed_errors() -> None:
    database = FactsDatabase(draw_facts(("boss",), 0))
    with pytest.raises(EnvLost, match="the hidden database does not hold this fact: got boss of 90"):
        database.ask("boss", 90)
    database.close()
    database.close()
    with pytest.raises(EnvLost, match="closed"):
        database.ask("boss", 3)
