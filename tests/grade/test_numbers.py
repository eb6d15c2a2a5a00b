"""Numbers out of responses: marks, boxes, last numbers, decoration, and what is no number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.grade.numbers import extract_number, grade_number, parse_number, text_after_mark


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", Fraction(18)),
        (" $1,234.50 ", Fraction(2469, 2)),
        ("12%", Fraction(12)),
        ("-3", Fraction(-3)),
        ("- 3", Fraction(-3)),
        ("$-3", Fraction(-3)),
        ("-$3", Fraction(-3)),
        ("\u22127", Fraction(-7)),
        ("3/4", Fraction(3, 4)),
        ("-1 / 2", Fraction(-1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1/0", None),
        ("", None),
        (".", None),
        ("ten", None),
        ("1e5", Fraction(100_000)),
        ("-1.5E-2", Fraction(-3, 200)),
        ("3 1/2", Fraction(7, 2)),
        ("1e500", None),
        ("1 2", None),
        ("9" * 61, None),
        ("9" * 60, Fraction(10**60 - 1)),
    ],
)
def test_what_a_number_is(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("48 / 2 = 24 clips.\n#### 72", "72"),
        ("#### 5\nno, #### 6", "6"),
        ("47 + 3 = 50 # # # 50", "50"),
        ("so ### $1,000 dollars for 3 days", "$1,000"),
        ("### 5 + 3 = 8", "8"),
        ("### 5 + 3 =", "5"),
        ("#### - 4", "- 4"),
        ("7 ### ", None),
        ("7 ### none", None),
        ("## 7 and 8", "8"),
        (r"the box \boxed{12} then \boxed{\$1{,}234} of 99", "\\$1234"),
        (r"\boxed{\frac{3}{4}} in 5", "3/4"),
        (r"\boxed{\frac{1}{\text{x}}", "1"),
        ("I get \\$18.00.", "\\$18.00"),
        ("from 9 take 4, that is 5 apples", "5"),
        ("9-4", "4"),
        ("it is -4 degrees", "-4"),
        ("x = - 4", "- 4"),
        ("room b12 of 1,234,567 rooms", "1,234,567"),
        ("no numbers at all", None),
        ("", None),
    ],
)
def test_where_the_answer_stands(text: str, found: str | None) -> None:
    got = extract_number(text)
    assert (None if got is None else got.strip()) == found


def test_grades() -> None:
    right = grade_number("24 + 48 = 72\n#### 72.0", "72")
    assert (right.correct, right.extracted) == (True, "72.0")
    wrong = grade_number("#### 71", "72")
    assert (wrong.correct, wrong.extracted, wrong.why) == (False, "71", "another number")
    none = grade_number("seventy-two", "72")
    assert (none.correct, none.extracted) == (False, None)
    assert grade_number("#### 72", "many").correct is None
    assert grade_number("#### 50%", "50").correct is True
    assert grade_number("#### 0.333", "1/3").correct is False
    assert grade_number("#### " + "9" * 5000, "9" * 50).correct is False


@given(
    st.fractions(max_denominator=999, min_value=-(10**9), max_value=10**9), st.sampled_from(["###", "####", "# # #"])
)
def test_every_fraction_is_read_back(value: Fraction, mark: str) -> None:
    text = f"because of 7 and 8 {mark} {value}"
    assert grade_number(text, str(value)).correct is True
    assert grade_number(text, str(value + 1)).correct is False


@given(st.integers(-(10**12), 10**12))
def test_commas_and_dollars_change_nothing(value: int) -> None:
    assert grade_number(f"it costs ${value:,} in all", str(value)).correct is True


@given(st.text(max_size=200))
def test_any_text_is_answered(text: str) -> None:
    found = extract_number(text)
    assert found is None or found in text.replace("\\", "") or "frac" in text or found in text
    assert grade_number(text, "1").correct in (True, False)


def test_after_the_last_mark() -> None:
    assert text_after_mark("a ### b #### c ") == "c"
    assert text_after_mark("a # # # # b") == "b"
    assert text_after_mark("a ## b") is None


@pytest.mark.parametrize("sign", ["", "-", "/"])
def test_many_spaces_are_read_in_linear_time(sign):
    """Time that grew with the square of a run of spaces would be an hour here."""
    many = " " * 500_000
    assert parse_number(f"1{many}x") is None
    assert parse_number(f"1 {sign}{many}x") is None
    assert parse_number(f"{many}-{many}3{many}/{many}4{many}%") == Fraction(-3, 4)
    assert grade_number(f"#### 7{many}or so", "7").correct is True
