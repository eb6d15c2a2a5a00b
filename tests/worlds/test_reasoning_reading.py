"""Passages: every question answered again from its text, and nothing else tells."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.reading import LETTERS, Reading

WORLD = Reading(sizes=Sizes(train=60, dev=20, test=80))
LONG = Reading(relations=4, sizes=Sizes(train=10, dev=5, test=20))
LAST = {
    "live": "lives in",
    "born": "was born in",
    "arrive": "arrives on",
    "work": "works in",
    "travel": "travels in",
    "what": "is a",
}


def answered(text: str) -> str:
    """The value that a question asks for, from its text alone."""
    passage, asked, options = re.fullmatch(r"(.+) \. ((?:where|when|what) .+) \? (A : .+) \.", text).groups()
    facts = passage.split(" . ")
    linked = dict(re.fullmatch(r"the (\w+ of \w+) is (\w+)", one).groups() for one in facts if one.startswith("the "))
    whom = re.search(r"(?:does|was|is) (.+?)(?: live| born| arrive| work| travel)?$", asked)[1]
    *relations, who = whom.replace("the ", "").split(" of ")
    for relation in reversed(relations):
        who = linked[f"{relation} of {who}"]
    verb = next(told for word, told in LAST.items() if word in asked)
    (value,) = [one.removeprefix(f"{who} {verb} ") for one in facts if one.startswith(f"{who} {verb} ")]
    listed = dict(option.split(" : ") for option in options.split(" . "))
    (letter,) = [letter for letter, option in listed.items() if option == value]
    return letter


@pytest.mark.parametrize("world", [WORLD, LONG])
def test_answers_follow_from_the_text(world):
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            question = world.question(task)
            assert answered(question.text) == question.answer
            assert all(step in question.text for step in question.rationale)
            assert len(question.rationale) == len(task.spec["chain"])


def test_everybody_and_every_option_is_named_as_often():
    for task in WORLD.tasks("test", "seen"):
        text = WORLD.question(task).text
        passage, _, rest = re.split(r" \. (where|when|what) ", text)
        facts = passage.split(" . ")
        people = Counter(word for one in facts for word in re.findall(r"of (\w+) is (\w+)", one) for word in word)
        assert len(set(people.values())) == 1 and len(people) == 4
        options = re.findall(r"[ABCD] : (\w+)", rest)
        assert len(set(options)) == len(LETTERS)
        assert all(sum(option in one.split() for one in facts) == 1 for option in options)


def test_relations_are_bounded():
    for relations in (1, 5):
        with pytest.raises(ConfigError, match="relations in a question"):
            Reading(relations=relations)
