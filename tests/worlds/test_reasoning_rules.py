"""Defeasible rules: what holds, by hand; and every question of the world decided again from its text."""

from __future__ import annotations

import re

import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.rules import Literal, Rule, RuleBook, Rules

SMALL = Sizes(train=40, dev=20, test=60)
WORLDS = {form: Rules(form=form, sizes=SMALL) for form in ("main", "conflict")}


def literal(text: str) -> Literal:
    negated, verb = re.fullmatch(r"can (not )?(\w+)", text).groups()
    return Literal(verb, negated is None)


def book(text: str) -> RuleBook:
    """Facts, rules and preferences out of sentences."""
    facts, rules, preferred = set(), [], set()
    for one in text.split(" . "):
        if found := re.fullmatch(r"rule (\d+) : whoever (.+?) (can (?:not )?\w+)", one):
            assert int(found[1]) == len(rules) + 1
            rules.append(Rule(tuple(map(literal, found[2].split(" and "))), literal(found[3])))
        elif found := re.fullmatch(r"rule (\d+) beats rule (\d+)", one):
            preferred.add((int(found[1]) - 1, int(found[2]) - 1))
        else:
            who, fact = re.fullmatch(r"(the \w+) (can .+)", one).groups()
            facts.add((who, literal(fact)))
    return RuleBook(frozenset(facts), tuple(rules), frozenset(preferred))


class TestRuleBook:
    @pytest.mark.parametrize(
        ("text", "holds"),
        [
            ("the dog can sing . rule 1 : whoever can sing can dance", True),
            ("the cat can sing . rule 1 : whoever can sing can dance", None),
            ("the dog can sing . rule 1 : whoever can sing can not dance", False),
            ("the dog can not sing . rule 1 : whoever can not sing can dance", True),
            ("the dog can sing . rule 1 : whoever can sing and can hum can dance", None),
            ("the dog can sing . the dog can hum . rule 1 : whoever can sing and can hum can dance", True),
            ("the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can sing can not dance", None),
            (
                "the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can sing can not dance . "
                "rule 2 beats rule 1",
                False,
            ),
            (
                "the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can hum can not dance . "
                "rule 2 beats rule 1",
                True,
            ),  # the preferred rule does not apply
            ("the dog can dance . the dog can sing . rule 1 : whoever can sing can not dance", True),
            (
                "the dog can sing . rule 1 : whoever can sing can hum . rule 2 : whoever can sing can not hum . "
                "rule 3 : whoever can hum can dance . rule 1 beats rule 2",
                True,
            ),
            (
                "the dog can sing . rule 1 : whoever can sing can hum . rule 2 : whoever can sing can not hum . "
                "rule 3 : whoever can hum can dance . rule 2 beats rule 1",
                None,
            ),
            (
                "the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can sing can not dance . "
                "rule 3 : whoever can sing can not dance . rule 1 beats rule 2",
                None,
            ),  # one of two is not beaten
            (
                "the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can sing can not dance . "
                "rule 3 : whoever can sing can not dance . rule 1 beats rule 2 . rule 1 beats rule 3",
                True,
            ),
        ],
    )
    def test_what_holds(self, text, holds):
        assert book(text).holds("the dog", "dance") is holds

    def test_circles_and_contradictions_are_refused(self):
        with pytest.raises(ConfigError, match="rules depend on each other in a cycle"):
            book("rule 1 : whoever can sing can hum . rule 2 : whoever can hum can sing").holds("the dog", "sing")
        with pytest.raises(ConfigError, match="contradict"):
            book("the dog can sing . the dog can not sing").holds("the dog", "sing")


@pytest.mark.parametrize("form", list(WORLDS))
def test_answers_follow_from_the_text(form):
    world = WORLDS[form]
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            question = world.question(task)
            given, who, claim = re.fullmatch(
                r"(.+) \. proved , disproved or unknown : (the \w+) (can .+) \?", question.text
            ).groups()
            asked, rules = literal(claim), book(given)
            holds = rules.holds(who, asked.verb)
            truth = "unknown" if holds is None else "proved" if holds is asked.positive else "disproved"
            assert question.answer == truth
            for step in question.rationale:
                if found := re.fullmatch(r"rule (\d+) : (the \w+) (can .+)", step):
                    rule = rules.rules[int(found[1]) - 1]
                    assert str(rule).endswith(found[3]) and found[2] == who
                    assert rules.holds(who, rule.head.verb) is rule.head.positive
                elif not step.startswith("so "):
                    assert step in given.split(" . ")
            last = question.rationale[-1]
            assert (
                last.startswith("so it is open whether")
                if holds is None
                else last.endswith(str(Literal(asked.verb, holds)))
            )


def test_conflict_means_a_rule_against_every_step():
    for form, least in (("main", 0), ("conflict", 1)):
        world = WORLDS[form]
        against = [
            WORLDS[form].question(task).text.count("beats rule") / (2 * len(task.spec["chain"]))
            for task in world.tasks("test", "evo")
        ]
        assert min(against) >= least
    assert WORLDS["main"].name != WORLDS["conflict"].name


def test_bad_settings_are_told_all_at_once():
    with pytest.raises(ConfigError) as caught:
        Rules(form="mian", steps=9)  # type: ignore[arg-type]
    assert [str(problem) for problem in caught.value.problems] == [
        "form: unknown form 'mian' (did you mean 'main'?)",
        "steps: got 9 steps in a chain, expected 3 to 5",
    ]
