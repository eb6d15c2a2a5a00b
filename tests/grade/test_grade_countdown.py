"""Whole answers to countdown: expressions and the lines of Game24, against plans and an oracle of fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.grade.countdown import (
    check_lines,
    grade_countdown,
    grade_expression,
    grade_lines,
    parse_expression,
)
from evolvent.worlds.numbers import countdowns, game24_lines, plan

FOUR = [6, 4, 4, 8]
LINES = ["13 - 9 = 4 (left: 4 4 10)", "10 - 4 = 6 (left: 4 6)", "4 * 6 = 24 (left: 24)"]
ANSWER = "The answer is (13 - 9) * (10 - 4) = 24"


@pytest.mark.parametrize(
    "said",
    [
        "(6 - 4) * (4 + 8) = 24",
        "The answer is (6 - 4) * (4 + 8) = 24.",
        "I think first.\n(6-4)*(8+4)",
        "so the answer is: $(6 - 4) \\times [4 + 8] = 24$",
        "(6 − 4) × (4 + 8)",
        "((6) - 4) * (((4 + 8)))",
    ],
)
def test_right_expressions(said):
    assert grade_expression(said, FOUR, 24).correct is True


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("24", "it uses 24"),
        ("6 * 4 = 24", "it uses 6 4"),
        ("(6 - 4) * (4 + 8) * 4 / 4", "it uses"),
        ("6 + 4 + 4 + 8", "it is 22"),
        ("(6 - 4) * (4 + 8) = 25", "it says 25"),
        ("(6 - 4) * (4 + 8) = 24 = 24", "it says 24 = 24"),
        ("(6 - 4) * (4 + 8", "not closed"),
        ("(6 - 4) (4 + 8)", "out of place"),
        ("-4 + 6 + 4 + 8", "a number is missing"),
        ("9**9**9", "a number is missing"),
        ("6 / (4 - 4) * 8", "division by zero"),
        ("6.0 - 4 + 4 * 8", "no number and no operator"),
        ("__import__('os')", "no number and no operator"),
        ("(" * 10**6, "over 400 characters"),
        ("(" * 100 + "6" + ")" * 100, "brackets too deep"),
        ("", "an empty answer"),
        ("9999999999 + 4", "no number and no operator"),
    ],
)
def test_wrong_expressions_say_why(said, why):
    found = grade_expression(said, FOUR, 24)
    assert found.correct is False and why in found.why


def test_fractions_are_exact():
    assert grade_expression("8 / (3 - 8 / 3)", [3, 3, 8, 8], 24).correct is True
    found = parse_expression("1 / 3 + 1 / 3 + 1 / 3")
    assert found is not None and found.value == 1 and found.numbers == (1, 3, 1, 3, 1, 3)


tree = st.recursive(
    st.integers(0, 13).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=7,
)


def worked_out(text: str) -> Fraction | None:
    """The value of a whole tree, by its brackets: an oracle with no precedence to get wrong."""
    if not text.startswith("("):
        return Fraction(text)
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 1 and sign in "+-*/":
            left, right = worked_out(text[1 : place - 1]), worked_out(text[place + 2 : -1])
            if left is None or right is None or (sign == "/" and not right):
                return None
            return {"+": left + right, "-": left - right, "*": left * right}[sign] if sign != "/" else left / right
    raise AssertionError(text)


@settings(max_examples=100, deadline=None)
@given(text=tree)
def test_values_are_those_of_the_tree(text):
    found, value = parse_expression(text), worked_out(text)
    assert (None if found is None else found.value) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("8 - 4 - 2", 2), ("8 / 4 / 2", 1), ("2 + 3 * 4", 14), ("2 * 3 + 4", 10), ("8 - 4 + 2", 6), ("8 / 4 * 2", 4)],
)
def test_precedence_and_order(text, value):
    found = parse_expression(text)
    assert found is not None and found.value == value


def test_a_game_in_lines():
    assert grade_lines("\n".join([*LINES, ANSWER]), [4, 9, 10, 13], 24).correct is True
    assert check_lines(LINES, [4, 9, 10, 13]) == (True, True, True)
    shuffled = ["13 - 9 = 4 (left: 10 4 4)", *LINES[1:]]
    assert check_lines(shuffled, [4, 9, 10, 13]) == (True, True, True)
    assert check_lines(
        ["8 / 3 = 8/3 (left: 3 8 8/3)", "3 - 8/3 = 1/3 (left: 8 1/3)", "8 / 1/3 = 24 (left: 24)"], [3, 3, 8, 8]
    ) == (True, True, True)


@pytest.mark.parametrize(
    ("place", "line", "truth"),
    [
        (0, "13 - 9 = 5 (left: 4 5 10)", (False, False, False)),
        (0, "13 - 9 = 4 (left: 4 10)", (False, False, False)),
        (1, "10 - 3 = 7 (left: 4 7)", (True, False, False)),
        (1, "4 + 4 = 8 (left: 4 10 8)", (True, False, False)),
        (1, "6 + 4 = 10 (left: 4 10 10)", (True, False, False)),  # there is no 6
        (1, "10 + 10 = 20 (left: 4 4 20)", (True, False, False)),  # and only one 10
        (2, "4 / 0 = 24 (left: 24)", (True, True, False)),
        (2, "6 * 4 = 24", (True, True, False)),
    ],
)
def test_wrong_lines(place, line, truth):
    lines = [*LINES[:place], line, *LINES[place + 1 :]]
    assert check_lines(lines, [4, 9, 10, 13]) == truth
    assert grade_lines("\n".join([*lines, ANSWER]), [4, 9, 10, 13], 24).correct is False


def test_lines_need_their_answer_and_the_answer_needs_its_lines():
    numbers = [4, 9, 10, 13]
    for said in ("\n".join(LINES), "\n".join([*LINES[1:], ANSWER]), ANSWER, "\n".join([*LINES, "(13 - 9) * (10 - 4)"])):
        assert grade_lines(said, numbers, 24).correct is False
    elsewhere = ["13 + 9 = 22 (left: 4 10 22)", "22 + 10 = 32 (left: 4 32)", "32 + 4 = 36 (left: 36)"]
    found = grade_lines("\n".join([*elsewhere, ANSWER]), numbers, 24)
    assert (found.correct, found.why) == (False, "the moves end elsewhere")


def test_every_plan_is_right_and_right_for_its_own_task_alone():
    tasks = [*islice(countdowns(4, low=1, high=13, target=24), 60), *islice(countdowns(3, low=1, high=12), 60)]
    for numbers, target in tasks:
        lines = game24_lines(numbers, plan(numbers, target) or ())
        gold = f"make {target} from {' '.join(map(str, numbers))}"
        said = "\n".join(lines)
        assert grade_countdown(said, gold).correct is True, said
        assert grade_countdown(lines[-1], gold).correct is True
        assert all(check_lines(lines[:-1], numbers))
        assert grade_countdown(said, gold.replace(f"make {target}", f"make {target + 1}")).correct is False
        assert grade_countdown(said, f"{gold} 1").correct is False


def test_a_gold_answer_that_is_no_task_is_not_guessed():
    assert grade_countdown("6 * 4", "24").correct is None


def test_a_number_below_0_may_be_played_on():
    lines = ["4 - 10 = -6 (left: 9 13 -6)", "-6 + 13 = 7 (left: 9 7)", "9 - 7 = 2 (left: 2)"]
    assert check_lines(lines, [4, 9, 10, 13]) == (True, True, True)
    assert check_lines(["1 - 3 = -2 (left: 2 -2)", "2 - -2 = 4 (left: 4)"], [1, 2, 3]) == (True, True)
    assert check_lines(["1 / 3 = 1/3 (left: 1 1/3)", "1/3 - 1 = -2/3 (left: -2/3)"], [1, 1, 3]) == (True, True)
    assert check_lines(["4 - 10 = -6 (left: 9 13 -6)", "6 + 13 = 19 (left: 9 19)"], [4, 9, 10, 13]) == (True, False)


def test_a_gold_answer_of_one_long_number_is_no_task():
    """There are more ways to cut it into short ones than anybody could try."""
    for gold in ("1" * 60, "1" * 60 + "x", "1 " * 60 + "x"):
        assert grade_countdown("6 * 4", f"make 24 from {gold}").correct is None
