"""Answers whose truth comes from exact fractions, from sympy, or from reading them: nothing different is accepted."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from benchmarks.maths_pairs import TABLE, draw_pairs, grade_pairs, read_pairs
from evolvent.grade.latex import extract_answer, extract_boxed
from evolvent.grade.markdown import strip_markdown
from evolvent.grade.maths import MathsGrader, decide
from evolvent.grade.numbers import (
    exact_value,
    grade_number,
    has_base,
    has_ellipsis,
    is_inexact,
)
from evolvent.grade.quantities import compare_words, read_quantity


@pytest.fixture(scope="module")
def grader():
    pytest.importorskip("math_verify")
    with MathsGrader(wall_s=20.0, max_processes=1) as made:
        yield made


def test_the_table_is_what_its_script_draws():
    pytest.importorskip("sympy")
    pairs = read_pairs()
    assert TABLE.exists() and pairs == draw_pairs()
    counts = Counter(pair.equal for pair in pairs)
    assert len(pairs) >= 400 and min(counts.values()) >= 300


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_no_pair_that_differs_is_accepted_and_equal_ones_are(every):
    pytest.importorskip("math_verify")
    pairs = read_pairs()[::every]
    found = grade_pairs(pairs)
    assert found["false"] == []
    assert len(found["missed"]) <= 0.02 * 2 * sum(pair.equal for pair in pairs), found["missed"]


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("Final answer: **73**", "73"),
        ("The answer is **$73$**.", "73"),
        ("Final answer: `73`", "73"),
        ("Final answer: *73*", "73"),
        ("Final answer: __73__", "73"),
        ("**Answer:** 73", "73"),
        ("**The answer is:** 73", "73"),
        ("#### **73**", "73"),
        ("Answer: **C**", r"\text{C}"),
        (r"Answer: **\(\frac{3}{4}\)**", r"\frac{3}{4}"),
        ("The total is **73**.", "73"),
        ("**Final Answer:**\n\n$\\boxed{73}$", "73"),
        ("So the answer is:\n\n**42**", "42"),
        ("The answer is **12** because 5+7=12.", "12"),
        ("The answer is **(C)** 12", r"\text{C}"),
        ("**Answer: 12** as asked", "12"),
        ("> **Answer:** 12", "12"),
        (r"\boxed{(C)}", r"\text{C}"),
        (r"\boxed\frac12", r"\frac{1}{2}"),
        (r"\boxed\sqrt{3}", r"\sqrt{3}"),
        (r"\boxed \dfrac{3}{4}", "0.75"),
        ("The answer is 18 eggs", "18"),
        ("The answer is 73 in total.", "73"),
        ("The answer is 5, not 7", "5"),
        ("Answer: 73 apples are left", "73"),
        ("#### 3 1/2", "3.5"),
        ("The answer is 12 million.", "12000000"),
    ],
)
def test_answers_are_found_as_chat_models_write_them(response, gold):
    assert MathsGrader()(response, gold).correct is True


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed\frac12", r"\frac12"),
        (r"\boxed\sqrt{3}", r"\sqrt{3}"),
        (r"\boxed \dfrac{3}{4} and", r"\dfrac{3}{4}"),
        (r"\boxed\sqrt[3]{2}.", r"\sqrt[3]{2}"),
        (r"\boxed\pi r", r"\pi"),
        (r"\boxed\frac\pi2", r"\frac\pi2"),
        (r"\boxed 12", "1"),  # as TeX reads it
    ],
)
def test_a_box_without_braces_takes_an_argument_of_tex(text, inside):
    assert extract_boxed(text) == inside


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        # A9: words that mean something.
        (r"n \text{ is even}", r"n \text{ is odd}", False),
        (r"12\text{ thousand}", r"12\text{ million}", False),
        (r"10\text{ p.m.}", r"10\text{ a.m.}", False),
        (r"5\text{ south}", r"5\text{ north}", False),
        (r"5 \text{ or more}", "5", None),
        (r"y\text{-axis}", r"y\text{-intercept}", False),
        (r"5\text{ hundredths}", "5", False),
        (r"30^\circ\text{ F}", r"30^\circ\text{ C}", False),
        (r"12\text{ million}", "12", False),
        (r"12\text{ million}", "12000000", True),
        (r"10\text{ cm}", "10", True),
        (r"\(\frac{270}7\text{ degrees}\)", r"\frac{270}7\text{ degrees}", True),
        (r"\[10\text{ cm}\].", "10", True),
        (r"n \text{ is even}", r"n \text{ is even}", True),
        # A10: exact numbers.
        ("1/2006!", "1/2004!", False),
        (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", False),
        ("10^{-21}", "10^{-20}", False),
        (r"\frac{1}{3^{50}}", r"\frac{1}{2^{60}}", False),
        ("2^{-40}", "2^{-41}", False),
        ("101_3", "101_2", False),
        ("1011", "1011_2", None),
        ("110_2", "6", True),
        ("3.141593", r"\pi", False),
        # A11: right answers.
        ("(C)", r"\text{C}", True),
        (r"\{1,1,2\}", r"\{1,2\}", True),
        ("1e-3", "0.001", True),
        ("1.5e3", "1500", True),
        (r"\varnothing", r"\emptyset", True),
        (r"0.\overline{3}", "1/3", True),
        ("x<3", r"(-\infty,3)", True),
        (r"60^\circ", r"\frac{\pi}{3}", True),
        (r"50\%", "0.5", False),
        # F1 to F5.
        (r"\text{B}", r"\text{B}", True),
        ("B", r"\text{B}", True),
        ("b", r"\text{B}", True),
        (r"\textbf{B}", r"\text{B}", True),
        ("C", r"\text{B}", False),
        ("4210_7", "4210_5", False),
        ("52_{16}", "52_8", False),
        ("52", "52_8", None),
        ("(2,1)", "x=1,y=2", False),
        ("2,1", "x=1,y=2", False),
        ("(1,2)", "x=1,y=2", True),
        ("x=2,y=1", "(1,2)", False),
        (r"2.\overline{3}", "2", False),
        (r"0.\overline{6}", r"0.\overline{3}", False),
        ("0", r"0.\overline{3}", False),
        (r"0.\overline{3}", "0", False),
        (r"2.\overline{3}", r"\frac{7}{3}", True),
        (r"2.\bar{3}", r"\frac{7}{3}", True),
        (r"2.\dot3", r"\frac{7}{3}", True),
        (r"\binom52", "10", True),
        ("0.333...", "0.333", None),
        # Spaces in numbers, which math-verify 0.9.0 takes for sums.
        (r"299\,792\,458", "299792458", True),
        ("1549", r"299\,792\,458", False),
        (r"12\ 345", "12345", True),
        (r"-1\,500", "-501", False),
        (r"1\,000", "0", False),
        ("1 000 000", "1000000", True),
        ("2 3/4", r"\frac{11}{4}", True),
        (r"\frac{5}{4}", "2 3/4", False),
    ],
)
def test_what_is_decided_without_math_verify(answer, gold, verdict):
    assert decide(answer, gold) is verdict


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("r-R", "R-r", False),
        (r"\frac{r}{R}", r"\frac{R}{r}", False),
        ("0", "R^2-r^2", False),
        ("X", "x", None),
        ("1.414214", r"\sqrt{2}", False),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("5 \\text{ or more}", "5", None),
        ("1011", "1011_2", None),
        ("e-3", "1e-3", False),
        (r"\triangle ACB", r"\triangle ABC", None),
        (r"f'(x)", "f(x)", None),
        ("x=1,y=2", "(x,y)", None),
        (r"\log_2 8", "3", True),
        (r"\sin 30^\circ", r"\frac12", True),
        ("4x+6y=10", "2x+3y=5", True),
        ("-2x<4", "x<-2", False),
        ("-2x<4", "x>-2", True),
    ],
)
def test_what_math_verify_would_fold_is_not_accepted(grader, answer, gold, verdict):
    assert grader.compare(answer, gold).correct is verdict


def test_exact_values():
    assert exact_value(r"\frac{1}{2006!}") != exact_value(r"\frac{1}{2004!}")
    assert exact_value(r"0.1\overline{6}") == Fraction(1, 6) and exact_value("-2^2") == -4
    for text in (
        "x",
        "2x",
        r"\sqrt2",
        "9^{9^{9}}",
        "0^0",
        r"\frac{1}{0}",
        "a_{11}",
        "2a_{12}",
        "92_8",
        "",
        ".",
        "1" * 500,
    ):
        assert exact_value(text) is None, text
    assert has_base("101_{2}") and not has_base("x_1") and not has_base("a_2")
    assert has_ellipsis(r"0.33\ldots") and is_inexact(r"0.\overline 3") and not is_inexact("0.3")


def test_words_and_units_around_numbers():
    quantity = read_quantity(r"864 \mbox{ inches}^2")
    assert (quantity.core.strip(), quantity.units, quantity.is_number) == ("864", ("inch^2",), True)
    assert read_quantity("12 square inches").units == ("inch^2",) and read_quantity("12 m").units == ()
    assert read_quantity("1.2 million people").scale == 10**6
    assert compare_words(read_quantity("5 apples"), read_quantity("5 pears")) is None
    assert compare_words(read_quantity("5 apples"), read_quantity("5 apples in total")) is True
    assert compare_words(read_quantity("5 apple"), read_quantity("5 apples")) is True


@pytest.mark.parametrize("text", ["**", "__", "*", "` `", "**x**", "2*3", "2**3", "x_1", "a*b*c", "_", ""])
def test_markdown_is_stripped_from_the_ends_alone(text):
    stripped = strip_markdown(text)
    assert stripped == {"**x**": "x", "**": "", "__": "", "` `": ""}.get(text, text)
    assert strip_markdown(stripped) == stripped


def test_numbers_in_science_and_mixed_numbers_are_graded():
    assert grade_number("1e3", "1000").correct and grade_number("#### 3 1/2", "3.5").correct
    assert grade_number(r"\boxed{3\frac{1}{2}}", "7/2").correct
    assert grade_number("**73**", "73").correct and extract_answer("**73**") == "73"
