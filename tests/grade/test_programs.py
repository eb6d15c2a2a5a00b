"""Programs as answers: bodies put together, straight lines worked out as Python would, and what is left to a box."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.grade.programs import ProgramResult, assemble_solution, evaluate_straight, is_near


def value(body: str) -> object:
    ran = evaluate_straight(assemble_solution(body))
    assert ran is not None
    return ran.value


class TestAssemble:
    @pytest.mark.parametrize(
        "body",
        [
            "a = 1\n    return a",
            "    a = 1\n    return a",
            "\n    a = 1\n    return a\n",
            "a = 1\nreturn a",
            "def solution():\n    a = 1\n    return a",
            "def solution ( ) :\n  a = 1\n  return a",
            "a = 1\n    return a\n\n    return 5",
            "a = 1\n    return a\n   \nmore text",
            " a = 1\n\treturn a",
        ],
    )
    def test_ways_to_write_a_body(self, body):
        assert assemble_solution(body) == "def solution():\n    a = 1\n    return a\n"

    def test_blocks_keep_their_shape(self):
        assert assemble_solution("for i in x:\n        a = i\n    return a").split("\n")[1:3] == [
            "    for i in x:",
            "        a = i",
        ]
        assert assemble_solution("if a:\n        return 1\n    return 2") == (
            "def solution():\n    if a:\n        return 1\n    return 2\n"
        )
        assert assemble_solution("if a:\n        return 1") == "def solution():\n    if a:\n        return 1\n"
        assert assemble_solution("def solution(): return 5") == "def solution():\n    return 5\n"
        assert assemble_solution("") == "def solution():\n"


class TestStraight:
    @pytest.mark.parametrize(
        ("body", "result"),
        [
            ("a = 3 ; b = a * 4 ; return b", 12),
            ('"""How many?"""\n    a = 7\n    a += 2\n    a /= 3\n    return a', 3.0),
            ("return 2 ** 10 - 7 // 2 + 7 % 4", 1024),
            ("return - 3 + + 4", 1),
            ("a = 1 ; return a ; a = 2", 1),
            ("max = 4 ; return max", 4),
            ("return min(3, 1.5) + max(1, 2, 3) + abs(-2) + int(3.9) + float(1)", 10.5),
            ("return -7 // 2", -4),
            ("return 0.1 + 0.2", 0.1 + 0.2),
        ],
    )
    def test_what_comes_out(self, body, result):
        found = value(body)
        assert found == result and type(found) is type(result)

    @pytest.mark.parametrize(
        ("body", "error"),
        [
            ("return 1 / 0", "ZeroDivisionError"),
            ("return b", "NameError"),
            ("b = b + 1 ; return b", "NameError"),
            ("a += 1 ; return a", "NameError"),
            ("a = 3", "returns nothing"),
            ("return", "returns nothing"),
            ("retrun 3", "SyntaxError"),
            ("", "SyntaxError"),
            ("return 3 +", "SyntaxError"),
            ("return 2.0 ** 64 ** 2", ""),
            ("return int(1e308 * 10)", "OverflowError"),
            ("a = = 3", "SyntaxError"),
        ],
    )
    def test_what_goes_wrong(self, body, error):
        ran = evaluate_straight(assemble_solution(body))
        if error:
            assert ran is not None and ran.value is None and error in ran.error
        else:
            assert ran is None

    @pytest.mark.parametrize(
        "body",
        [
            "import math\n    return 3",
            "for i in range(3):\n        a = i\n    return a",
            "return len([1])",
            "return '3'",
            "a, b = 1, 2 ; return a",
            "a = b = 3 ; return a",
            "return round(2.5)",
            "return [3][0]",
            "return True",
            "a.b = 3 ; return 1",
            "return (lambda: 3)()",
            "return 1 if 2 else 3",
            "return 9 ** 65",
            "return (-8) ** 0.5",
            "return 10 ** 60 * 10 ** 60 * 10 ** 60 * 10 ** 60 * 10 ** 60 * 10 ** 60",
            "abs = 3 ; return abs(4)",
            "return __import__('os')",
            "return max(1)",
            "return int('7')",
            "return 1j",
            "return " + "(" * 150 + "1" + ")" * 150,
            "return 1" + " + 1" * 3000,
            "return " + "-" * 60 + "1",
            "a = 3 ; return a ; import os",
            "return 0x1f",
            "def f():\n        return 1\n    return f()",
            "yield 3",
            "return 1 < 2",
            "return 1 or 2",
            "return max(1, 2, key=3)",
        ],
    )
    def test_what_only_a_box_can_say(self, body):
        ran = evaluate_straight(assemble_solution(body))
        deep = body.startswith("return (((")  # brackets leave no trace in the tree
        assert ran is None or deep

    @given(st.text(max_size=80) | st.text("abre()=;+-*/.0123 \n'\"\\[]{}:", max_size=60))
    def test_any_text_is_answered(self, text):
        ran = evaluate_straight(assemble_solution(text))
        assert ran is None or ran.value is not None or ran.error


class TestNear:
    def test_a_hundredth_is_near_enough(self):
        gold = Fraction(1, 3)
        assert is_near(0.33, gold) and is_near(1 / 3, gold) and not is_near(0.35, gold)
        assert is_near(5, Fraction(501, 100)) and not is_near(5, Fraction(5011, 1000))

    def test_only_finite_numbers_are_numbers(self):
        for wrong in (True, None, "5", float("nan"), float("inf"), [5], 5 + 0j, 10**5000):
            assert not is_near(wrong, Fraction(5))
        assert is_near(10**400, Fraction(10**400))


@pytest.mark.parametrize(
    "source",
    [
        "def other():\n    return 3",
        "def solution(n):\n    return 3",
        "def solution(*, n=1):\n    return 3",
        "def solution(*n):\n    return 3",
        "@staticmethod\ndef solution():\n    return 3",
    ],
)
def test_what_is_not_a_plain_solution_is_left_to_a_box(source):
    assert evaluate_straight(source) is None
    assert evaluate_straight("def solution() -> int:\n    return 3") == ProgramResult(3)
