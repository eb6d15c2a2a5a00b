"""Chained arithmetic: questions by hand, every question worked out again from its text, and bad settings."""

from __future__ import annotations

import re

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.arithmetic import OPERATIONS, Arithmetic
from evolvent.worlds.reasoning.question import Question

SMALL = Sizes(train=60, dev=20, test=40)
WORLD = Arithmetic(sizes=SMALL)
TOLD = {word: name for name, (_, _, words) in OPERATIONS.items() for word in words}


def worked_out(text: str) -> list[int]:
    """All numbers on the way, from the text alone."""
    start, *told, asked = (part.strip() for part in text.split(";"))
    assert asked == "what is it ?"
    numbers = [int(start.removeprefix("start with "))]
    for one in told:
        word, _, operand = one.partition(" ")
        x = numbers[-1]
        by = int(operand) if operand else 2 if TOLD[word] in ("double", "halve") else 3
        name = TOLD[word]
        if name in ("over", "halve", "third"):
            assert x % by == 0
            numbers.append(x // by)
        else:
            numbers.append({"add": x + by, "take": x - by}.get(name, x * by))
    return numbers


@pytest.mark.parametrize("world", [WORLD, Arithmetic(depth=2, sizes=SMALL), Arithmetic(depth=9, top=99, sizes=SMALL)])
def test_answers_follow_from_the_text(world):
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            question = world.question(task)
            numbers = worked_out(question.text)
            assert question.answer == str(numbers[-1])
            assert len(numbers) == len(task.spec["chain"]) + 1
            assert all(1 <= number <= world.top for number in numbers)
            for span, x, made in zip(question.rationale, numbers[:-1], numbers[1:], strict=True):
                left, symbol, by, result = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+)", span).groups()
                assert (int(left), int(result)) == (x, made)
                exact = {"+": x + int(by), "-": x - int(by), "*": x * int(by), "/": x / int(by)}[symbol]
                assert exact == made


def test_a_question_by_hand():
    """Pins the drawing: the same spec is the same question for ever."""
    task = Task("arithmetic", "1", {"chain": ["times", "take"], "seed": 5, "names": 7, "top": 60})
    assert WORLD.question(task) == Question(
        "start with 26 ; * 2 ; minus 1 ; what is it ?", ("26 * 2 = 52", "52 - 1 = 51"), "51"
    )


def test_depth_is_the_longest_training_chain():
    for depth in (2, 5):
        world = Arithmetic(depth=depth, sizes=SMALL)
        lengths = {tier: {len(task.spec["chain"]) for task in world.tasks("test", tier)} for tier in world.tiers}
        assert max(lengths["seen"] | lengths["evo"]) == depth
        assert lengths["longer"] == {depth + 1}
        assert ("combo" in lengths) is (depth > 2)


def test_steps_are_checked_in_their_places():
    task = WORLD.tasks("dev", "combo")[0]
    right = WORLD.question(task).rationale
    said = " ; ".join(right)
    assert WORLD.check_steps(task, f"{said} ### 1") == (True,) * len(right)
    assert WORLD.check_steps(task, f"{right[0]} ; 1 + 1 = 3 ; {right[2]}") == (True, False, True)
    assert WORLD.check_steps(task, f"{right[1]} ; {right[1]}")[:1] == (False,)
    assert WORLD.check_steps(task, f"{said} ; {right[-1]}")[-1] is False
    assert WORLD.check_steps(task, "") == ()


def test_bad_settings_are_told_all_at_once():
    with pytest.raises(ConfigError) as caught:
        Arithmetic(depth=1, top=7)
    assert [problem.where for problem in caught.value.problems] == ["depth", "top"]
    task = WORLD.tasks("dev", "seen")[0]
    with pytest.raises(ConfigError, match=", but this world has"):
        Arithmetic(top=99).question(task)
