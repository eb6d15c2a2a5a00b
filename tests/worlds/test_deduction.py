"""Deduction: what follows, checked against a theory worked by hand; proofs step by step; answers that words hide."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.crafting import words_of
from evolvent.worlds.deduction.world import (
    ENDS,
    PARTS,
    Deduction,
    Fact,
    Predicate,
    Rule,
    Theory,
    draw_deduction,
    parse_fact,
    parse_rule,
    parse_theory,
)
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.question import split_rationale

WORLD = Deduction(sizes=Sizes(train=60, dev=20, test=60))
GIVEN = [
    "anna is a dax",
    "anna is a fep",
    "ben is a dax",
    "every dax is a wug and red",
    "everything that is a fep and a wug is a zil",
    "every zil or kip is not old",
    "every kip is old",
]
THEORY = parse_theory(GIVEN)
CHAINS = st.lists(st.sampled_from(PARTS), max_size=6).flatmap(
    lambda parts: st.sampled_from(ENDS).map(lambda end: (*parts, end))
)


class TestTheory:
    def test_all_that_follows(self):
        found = {str(fact) for fact in THEORY.closure()}
        assert found == {
            "anna is a dax",
            "anna is a fep",
            "ben is a dax",
            "anna is a wug",
            "anna is red",
            "ben is a wug",
            "ben is red",
            "anna is a zil",
            "anna is not old",
        }

    def test_sentences_are_read_as_they_are_written(self):
        assert [str(parse_fact(text) or parse_rule(text)) for text in GIVEN] == GIVEN
        assert parse_fact("every dax is a wug") is None and parse_rule("anna is a dax") is None
        for text in (
            "",
            "anna",
            "anna is",
            "anna is a",
            "is a dax",
            "every is a dax",
            "every dax is",
            "anna is not not old",
        ):
            assert parse_fact(text) is None and parse_rule(text) is None, text
        with pytest.raises(ConfigError, match="the sentence states neither a fact nor a rule"):
            parse_theory(["anna likes ben"])

    @pytest.mark.parametrize(
        ("steps", "truth"),
        [
            (["anna is a dax", "every dax is a wug and red", "anna is a wug"], [True, True, True]),
            (["anna is a wug", "anna is a zil", "anna is not old"], [True, True, True]),
            (["anna is a zil"], [False]),  # two rules in one step
            (["anna is a zil", "anna is a wug", "anna is a zil"], [False, True, True]),
            (["ben is a wug", "ben is a zil", "ben is not old"], [True, False, False]),
            (["anna is a kip", "anna is old"], [False, False]),
            (["every dax is red and a wug", "every fep is a wug"], [False, False]),  # said otherwise, and not given
            (["Anna is  a dax .", "so it is", ""], [True, False, False]),
            (["carla is a dax", "carla is a wug"], [False, False]),
        ],
    )
    def test_steps(self, steps, truth):
        assert list(THEORY.check(steps)) == truth

    @given(st.lists(st.sampled_from(GIVEN), min_size=1, unique=True), st.integers(0, 99))
    def test_every_right_step_is_in_the_closure(self, given_, seed):
        theory = parse_theory(given_)
        everything = [str(fact) for fact in THEORY.closure()]
        Random(seed).shuffle(everything)
        verdicts = theory.check(everything)
        right = {text for text, verdict in zip(everything, verdicts, strict=True) if verdict}
        assert right <= {str(fact) for fact in theory.closure()}
        again = theory.check([*sorted(right), *everything] * 5)[-len(everything) :]  # in some order all of it comes
        assert {text for text, verdict in zip(everything, again, strict=True) if verdict} == {
            str(fact) for fact in theory.closure()
        }


class TestDrawing:
    @settings(max_examples=60)
    @given(CHAINS, st.integers(0, 10**6), st.booleans())
    def test_the_answer_wanted_is_the_one_that_follows(self, chain, seed, true):
        drawn = draw_deduction(chain, Random(seed), true=true)
        closure = drawn.theory.closure()
        opposite = Fact(
            drawn.statement.subject, drawn.statement.predicate._replace(positive=not drawn.statement.predicate.positive)
        )
        assert (drawn.statement in closure) is true
        assert (opposite in closure) is not true
        plain = [
            [re.sub(r"[{}]", "", one) for one in told] for told in (drawn.sentences, drawn.proof)
        ]  # roles as words
        assert all(parse_theory(plain[0]).check(plain[1]))
        assert drawn.proof[-1] == str(drawn.statement if true else opposite)
        assert len([one for one in drawn.proof if one.startswith("every")]) == len(chain)

    @given(CHAINS, st.integers(0, 10**6))
    def test_no_step_of_a_proof_can_be_left_out(self, chain, seed):
        """Without any one of its rules the statement does not follow."""
        drawn = draw_deduction(chain, Random(seed), true=True)
        used = {one for one in drawn.proof if one.startswith("every")}
        for lost in used:
            rest = Theory(drawn.theory.facts, tuple(rule for rule in drawn.theory.rules if str(rule) != lost))
            assert drawn.statement not in rest.closure()

    def test_rules_of_each_form(self):
        dax, wug, zil = (Predicate(word) for word in ("dax", "wug", "zil"))
        assert str(Rule((dax, wug), (zil,), "or")) == "every dax or wug is a zil"
        assert str(Rule((dax, wug), (zil,), "and")) == "everything that is a dax and a wug is a zil"
        both = Rule((dax, wug), (zil,), "and")
        assert both.derive("anna", {Fact("anna", dax)}) == ()
        assert both.derive("anna", {Fact("anna", dax), Fact("anna", wug)}) == (Fact("anna", zil),)
        assert both.derive("anna", {Fact("anna", dax), Fact("ben", wug)}) == ()


class TestWorld:
    def test_questions_are_whole_theories(self):
        for tier in WORLD.tiers:
            for task in WORLD.tasks("test", tier):
                question = WORLD.question(task)
                asked = parse_fact(question.text.rpartition(" : ")[2].removesuffix(" ?"))
                assert (asked in WORLD.theory(task).closure()) is (question.answer == "true")
                assert all(WORLD.check_steps(task, f"{' ; '.join(question.rationale)} ### {question.answer}"))
                assert split_rationale((WORLD.expert(task) or ("",))[0]) == question.rationale

    def test_steps_written_by_a_model_of_words(self):
        task = WORLD.tasks("dev", "seen")[0]
        (said,) = WORLD.expert(task) or ()
        assert all(WORLD.check_steps(task, " ".join(words_of(said))))
        *rest, last = WORLD.question(task).rationale
        wrong = last.replace("is not ", "is ") if "is not " in last else last.replace("is ", "is not ")
        assert WORLD.check_steps(task, " ; ".join([*rest, wrong, "nothing at all"])) == (
            *[True] * len(rest),
            False,
            False,
        )

    def test_a_proof_is_right_as_a_whole_or_not_at_all(self):
        for task in WORLD.tasks("test", "seen")[:20]:
            if len(task.spec["chain"]) < 2:
                continue  # its conclusion follows by one rule: a proof of one step is whole
            question = WORLD.question(task)
            (said,) = WORLD.expert(task) or ("",)
            assert WORLD.grade_proof(task, said).correct is True
            assert WORLD.grade_proof(task, " ".join(words_of(said))).correct is True
            other = "false" if question.answer == "true" else "true"
            *rest, last = question.rationale
            guess, unproved = f"### {question.answer}", f"{' ; '.join(rest)} ### {question.answer}"
            wrong = last.replace("is not ", "is ") if "is not " in last else last.replace("is ", "is not ")
            for text, why in (
                (said.replace(f"### {question.answer}", f"### {other}"), "another answer"),
                (guess, "not what was asked"),
                (unproved, "not what was asked"),
                (f"{' ; '.join([wrong, *question.rationale])} ### {question.answer}", f"does not follow: {wrong}"),
                (f"{last} ; {last} ### {question.answer}", f"does not follow: {last}"),
                (" ; ".join(question.rationale), "no ### in the response"),
            ):
                found = WORLD.grade_proof(task, text)
                assert found.correct is False and why in found.why, text

    def test_words_are_the_same_for_both_answers(self):
        """A question holds the property twice, once with "not", whatever the answer: each person leads to one."""
        for task in WORLD.tasks("test", "combo"):
            given_, _, asked = WORLD.question(task).text.partition(" . true or false : ")
            counts = Counter(words_of(given_))
            property_ = asked.split()[-2]
            assert (counts["not"], counts[property_]) == (1, 2)

    def test_depths(self):
        for depth in (0, 3, 16):
            with pytest.raises(ConfigError, match="rules in a proof"):
                Deduction(depth=depth)
        deep = Deduction(depth=15, sizes=Sizes(train=4, dev=2, test=4))
        task = deep.tasks("test", "longer")[0]
        assert len(task.spec["chain"]) == 16
        assert all(deep.check_steps(task, (deep.expert(task) or ("",))[0]))
        with pytest.raises(ConfigError, match=", but this world has"):
            WORLD.question(task)
