"""Statements about kinds: the exact check against every model there is, and entailments worked out from their text."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.entailment import (
    ANSWERS,
    FORMS,
    Entailment,
    Statement,
    follows,
    is_consistent,
    strongest_claims,
)

WORLD = Entailment(sizes=Sizes(train=60, dev=20, test=60))
KINDS = ("a", "b", "c")
THINGS = tuple(frozenset(kinds) for n in range(4) for kinds in combinations(KINDS, n))  # what one thing can be
MODELS = [
    model for n in range(1, 9) for model in combinations(THINGS, n) if all(any(k in t for t in model) for k in KINDS)
]
"""Things of equal kinds cannot be told apart by statements: sets of different things are all the models there are."""
STATEMENTS = st.builds(Statement, st.sampled_from(FORMS), st.sampled_from(KINDS), st.sampled_from(KINDS)).filter(
    lambda one: one.subject != one.predicate
)


def true_in(model: tuple[frozenset[str], ...], one: Statement) -> bool:
    subjects = [one.predicate in thing for thing in model if one.subject in thing]
    return {"all": all(subjects), "no": not any(subjects), "some": any(subjects), "some not": not all(subjects)}[
        one.form
    ]


def read(text: str) -> Statement:
    first, subject, negated, other = re.fullmatch(r"(all|no|some) (\w+) are (not )?(\w+)", text).groups()
    return Statement("some not" if negated else first, subject, other)


class TestSyllogisms:
    @settings(max_examples=100)
    @given(st.lists(STATEMENTS, max_size=4), STATEMENTS)
    def test_what_follows_is_what_holds_in_every_model(self, premises, claim):
        models = [model for model in MODELS if all(true_in(model, one) for one in premises)]
        truths = {true_in(model, claim) for model in models}
        assert is_consistent(premises) is bool(models)
        if truths:
            assert follows(premises, claim) is (None if len(truths) == 2 else truths.pop())

    @given(STATEMENTS)
    def test_the_opposite_is_true_exactly_where_a_statement_is_not(self, one):
        assert one.opposite.opposite == one
        assert all(true_in(model, one) is not true_in(model, one.opposite) for model in MODELS)

    def test_the_old_moods(self):
        """Barbara, celarent, darii, ferio, and darapti, which needs things to exist."""
        for first, second, claim in (
            ("all b are c", "all a are b", "all a are c"),
            ("no b are c", "all a are b", "no a are c"),
            ("all b are c", "some a are b", "some a are c"),
            ("no b are c", "some a are b", "some a are not c"),
            ("all b are c", "all b are a", "some a are c"),
        ):
            premises = [read(first), read(second)]
            assert follows(premises, read(claim)) is True
            assert follows(premises, read(claim).opposite) is False
        assert follows([read("some a are b"), read("some b are c")], read("some a are c")) is None

    def test_the_strongest_statements(self):
        assert strongest_claims([read("all a are b"), read("no b are c")], "a", "c") == (read("no a are c"),)
        assert strongest_claims([read("all a are b")], "a", "b") == (read("all a are b"),)
        assert strongest_claims([read("some a are b"), read("some b are c")], "a", "c") == ()


class TestWorld:
    def test_answers_follow_from_the_whole_premise(self):
        for tier in WORLD.tiers:
            for task in WORLD.tasks("test", tier):
                question = WORLD.question(task)
                premise, claim = re.fullmatch(
                    r"premise : (.+) \. hypothesis : (.+) \. does it follow \?", question.text
                ).groups()
                premises = [read(one) for one in premise.split(" . ")]
                assert is_consistent(premises)
                truth = follows(premises, read(claim))
                assert question.answer == {True: ANSWERS[0], None: ANSWERS[1], False: ANSWERS[2]}[truth]
                assert read(claim) not in premises and read(claim).opposite not in premises
                assert Counter(one.form for one in premises) == dict.fromkeys(FORMS, 2)
                for step in question.rationale[:-1]:
                    assert follows(premises, read(step.removeprefix("so "))) is True
                last = question.rationale[-1]
                if truth is None:
                    assert last == f"so both {claim} and {read(claim).opposite} are possible"
                else:
                    assert read(last.removeprefix("so ")) == (read(claim) if truth else read(claim).opposite)

    def test_the_form_of_a_hypothesis_does_not_tell(self):
        counts: dict[str, Counter[str]] = {form: Counter() for form in FORMS}
        for tier, split in product(WORLD.tiers, ("train", "test")):
            for task in WORLD.tasks(split, tier):
                question = WORLD.question(task)
                claim = read(question.text.partition("hypothesis : ")[2].removesuffix(" . does it follow ?"))
                counts[claim.form][question.answer] += 1
        for form, answers in counts.items():
            assert max(answers.values()) / answers.total() < 0.5, form

    def test_links(self):
        for links in (2, 6):
            with pytest.raises(ConfigError, match="statements in a chain"):
                Entailment(links=links)
