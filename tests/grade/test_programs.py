"""Programs as answers: bodies put together, straight lines worked out as Python would, and what is left to a box."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.grade.programs import Ran, assemble, near, run_straight


def value(body: str) -> object:
    ran = run_straight(assemble(body))
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
        assert assemble(body) == "def solution():\n    a = 1\n    return a\n"

    def test_blocks_keep_their_shape(self):
        assert assemble("for i in x:\n        a = i\n    return a").split("\n")[1:3] == [
            "    for i in x:",
            "        a = i",
        ]
        assert assemble("if a:\n        return 1\n    return 2") == (
            "def solution():\n    if a:\n        return 1\n    return 2\n"
        )
        assert assemble("if a:\n        return 1") == "def solution():\n    if a:\n        return 1\n"
        assert assemble("def solution(): return 5") == "def solution():\n    return 5\n"
        assert assemble("") == "def solution():\n"


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
        ran = run_straight(assemble(body))
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
        ran = run_straight(assemble(body))
        deep = body.startswith("return (((")  # brackets leave no trace in the tree
        assert ran is None or deep

    @given(st.text(max_size=80) | st.text("abre()=;+-*/.0123 \n'\"\\[]{}:", max_size=60))
    def test_any_text_is_answered(self, text):
        ran = run_straight(assemble(text))
        assert ran is None or ran.value is not None or ran.error


class TestNear:
    def test_a_hundredth_is_near_enough(self):
        gold = Fraction(1, 3)
        assert near(0.33, gold) and near(1 / 3, gold) and not near(0.35, gold)
        assert near(5, Fraction(501, 100)) and not near(5, Fraction(5011, 1000))

    def test_only_finite_numbers_are_numbers(self):
        for wrong in (True, None, "5", float("nan"), float("inf"), [5], 5 + 0j, 10**5000):
            assert not near(wrong, Fraction(5))
        assert near(10**400, Fraction(10**400))


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
    assert run_straight(source) is None
    assert run_straight("def solution() -> int:\n    return 3") == Ran(3)
