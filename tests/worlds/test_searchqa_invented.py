"""Invented facts and their documents: what is drawn, what names do not change, and that every fact can be found."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.invented import (
    POOLS,
    RELATIONS,
    Chain,
    Draws,
    Facts,
    chains_by_tier,
    draw_facts,
    is_chain,
    iterate_chains,
)
from evolvent.worlds.searchqa.pages import Document, build_documents, render_results

TIERS = chains_by_tier(3)
CHAINS = st.sampled_from([chain for found in TIERS.values() for chain in found])
SENTENCE = re.compile(r"the (\w+) of (\w+) is (\w+)\.|(\w+) is the (\w+) of (\w+)\.")


def pages(facts: Facts, seed: int = 0) -> tuple[Document, ...]:
    return build_documents(facts, Draws("pages", seed))


def told(text: str) -> list[tuple[str, str, str]]:
    """The facts (relation, subject, value) that a text tells."""
    return [(one[0] or one[4], one[1] or one[5], one[2] or one[3]) for one in SENTENCE.findall(text)]


def all_facts(facts: Facts) -> list[tuple[str, str, str]]:
    names = facts.names
    return [
        (relation.name, names[entity], names[facts.value_of(relation, entity)])
        for relation in RELATIONS.values()
        for entity in relation.subjects
    ]


def test_names_are_many_and_differ() -> None:
    names = [name for pool in POOLS.values() for name in pool]
    assert len(set(names)) == len(names)
    assert min(map(len, POOLS.values())) >= 40
    assert not set(names) & set(RELATIONS)
    assert all(re.fullmatch("[a-z]+", name) for name in names)


def test_tiers() -> None:
    shown_pairs = {pair for chain in TIERS["seen"] for pair in pairwise(chain)}
    pairs = set(iterate_chains(2))
    assert 0.6 < len(shown_pairs) / len(pairs) < 0.75
    assert {len(chain) for chain in TIERS["seen"]} == {1, 2, 3}
    assert {name for chain in TIERS["seen"] for name in chain} == set(RELATIONS)
    for tier in ("combo", "longer"):
        assert {pair for chain in TIERS[tier] for pair in pairwise(chain)} <= shown_pairs
        assert {len(chain) for chain in TIERS[tier]} == {3 if tier == "combo" else 4}
    assert all(set(pairwise(chain)) - shown_pairs for chain in TIERS["evo"])
    every = [chain for found in TIERS.values() for chain in found]
    assert len(set(every)) == len(every)
    assert min(map(len, TIERS.values())) >= 30


@given(CHAINS, st.integers(0, 10**9))
def test_facts_are_as_promised(chain: Chain, seed: int) -> None:
    facts = draw_facts(chain, seed)
    assert len(set(facts.names)) == 24
    for relation in RELATIONS.values():
        values = [facts.value_of(relation, entity) for entity in relation.subjects]
        assert max(Counter(values).values()) <= 2
        assert all(facts.names[value] in POOLS[relation.value_type] for value in values)
        assert all(value != entity for value, entity in zip(values, relation.subjects, strict=True))
    path = facts.walk()
    assert len(set(path)) == len(path) == len(chain) + 1
    assert draw_facts(chain, seed) == facts != draw_facts(chain, seed + 1)


@given(CHAINS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_other_names_change_nothing_but_names(chain: Chain, seed: int, naming: int) -> None:
    facts, other = draw_facts(chain, seed), draw_facts(chain, seed, naming=naming)
    assert (facts.values, facts.start_entity, facts.digest()) == (other.values, other.start_entity, other.digest())
    assert facts.names != other.names
    told_as = dict(zip(facts.names, other.names, strict=True))
    for own, its in zip(pages(facts), pages(other), strict=True):
        assert re.sub(r"\w+", lambda word: told_as.get(word[0], word[0]), own.text) == its.text


def test_canonical_forms_of_different_facts_differ() -> None:
    every = [draw_facts(chain, seed).digest() for chain in TIERS["seen"] for seed in range(3)]
    assert len(set(every)) == len(every)


@given(CHAINS, st.integers(0, 10**6))
def test_every_fact_is_told_once_and_found_by_its_words(chain: Chain, seed: int) -> None:
    """The search 'R of E' shows the document with R of E, whatever else is told of E."""
    facts = draw_facts(chain, seed)
    documents = pages(facts, seed)
    assert sorted(fact for document in documents for fact in told(document.text)) == sorted(all_facts(facts))
    assert [document.id for document in documents] == [str(number) for number in range(1, len(documents) + 1)]
    index = Index(document.contents for document in documents)
    for fact in all_facts(facts):
        best = [documents[place] for place in index.search(f"{fact[0]} of {fact[1]}")]
        assert len(best) == 3
        assert any(fact in told(document.text) for document in best)


@given(CHAINS, st.integers(0, 10**6))
def test_a_document_names_what_it_tells_and_its_title_first(chain: Chain, seed: int) -> None:
    for document in pages(draw_facts(chain, seed)):
        facts = told(document.text)
        assert 1 <= len(facts) <= 2
        assert document.names[0] == document.title
        assert set(document.names) == {name for _, subject, value in facts for name in (subject, value)}


def test_questions_read_from_the_last_relation() -> None:
    facts = draw_facts(("teacher", "home"), 0)
    start, teacher, home = (facts.names[entity] for entity in facts.walk())
    assert facts.question == f"what is the home of the teacher of {start}?"
    assert draw_facts(("home", "mayor"), 0).question.startswith("who is the mayor of the home of ")
    assert facts.answer == home
    assert {("teacher", start, teacher), ("home", teacher, home)} <= set(all_facts(facts))


@pytest.mark.parametrize(
    "chain",
    [None, "teacher", [], ["boss"], ["home", "home"], [["home"]], ["twin"] * 6, ["teacher"] * 7, {"home": 1}, [1]],
)
def test_what_is_no_chain(chain: object) -> None:
    assert not is_chain(chain)


def test_the_longest_chains_are_drawn() -> None:
    for chain in (("teacher",) * 6, ("home", *("twin",) * 5), ("director", "employer") * 3):
        assert is_chain(chain)
        assert len(draw_facts(chain, 0).walk()) == 7


def test_documents_as_they_are_shown() -> None:
    documents = [
        Document("1", "anna", "the home of anna is arvik."),
        Document("2", "Oslo", "A town."),
        Document("3", "", "x"),
    ]
    assert (
        render_results(documents, numbered=False)
        == "<information>the home of anna is arvik.\nOslo: A town.\nx</information>"
    )
    assert render_results(documents, numbered=True) == (
        "<information>Doc 1(Title: anna) the home of anna is arvik.\nDoc 2(Title: Oslo) A town.\nDoc 3 x</information>"
    )
    assert render_results([], numbered=True) == "<information>nothing found</information>"
