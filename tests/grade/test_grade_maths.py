"""Answers in mathematics: reading them, deciding what strings and numbers can, and math-verify in its cage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.grade import maths
from evolvent.grade.base import Grade
from evolvent.grade.latex import extract_answer, extract_boxed, normalize, parse_plain_number, split_sequence
from evolvent.grade.maths import MAX_ANSWER_CHARS, MathsGrader, decide


@pytest.fixture(scope="module")
def grader():
    pytest.importorskip("math_verify")
    with MathsGrader(wall_s=4.0, max_processes=1) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{4}.", "4"),
        (r"\boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ x \mid x > 0 \right.}", r"\left\{ x \mid x > 0 \right."),  # a brace that is a sign
        (r"\fbox{7}", "7"),
        (r"\boxed 5 is it", "5"),
        (r"\boxed{1} \boxed{2", None),
        ("no box", None),
    ],
)
def test_the_last_box(text, inside):
    assert extract_boxed(text) == inside


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{3}. The answer is 5.", "3"),
        ("### Step 1\nadd\n#### 1,000\nthanks", "1,000"),  # three marks are a heading
        ("### Step 1\nThe answer is $\\frac{1}{2}$. Done.", "$\\frac{1}{2}$"),
        ("The answer is 3.5", "3.5"),
        ("Final answer: (1, 2)\nnice", "(1, 2)"),
        (r"I get \$18.00", r"\$18.00"),
        ("that makes 4, not 5 apples", "5"),
        (r"2\sqrt{2}", r"2\sqrt{2}"),
        ("6 + 7 = 13", "13"),
        (r"\boxed{1", None),
        ("nothing here", None),
        ("", None),
    ],
)
def test_where_the_answer_stands(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (r"$\dfrac12$.", r"\frac{1}{2}"),
        (r"\tfrac{3}7", r"\frac{3}{7}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"1\frac{4}{5}", r"\frac{9}{5}"),
        ("3 1/2", r"\frac{7}{2}"),
        (r"\$32,\!348", "32348"),
        ("(1,234)", "(1,234)"),  # in a bracket the comma parts a pair
        (r"864 \mbox{ inches}^2", "864"),
        (r"5.4 \text{ cents}", "5.4"),
        ("12 square units", "12"),
        ("12 m", "12m"),  # m may be a variable
        (r"90^\circ", "90"),
        (r"50\%", "50"),
        (r"\text{Navin}", "navin"),
        (r"\text{(C)}", "C"),
        ("(c)", "c"),
        (".5", "0.5"),
        (r"4210_{5}", "4210_5"),
        (r"x=1 \text{ or } x=2", "x=1,x=2"),
        (r"\cot x", r"\cot x"),
        (r"11 \sqrt 5", r"11\sqrt{5}"),
        (r"\begin{pmatrix} -1/3 \\ 2 \\ 5 \end{pmatrix}", r"\begin{pmatrix}-\frac{1}{3}\\2\\5\end{pmatrix}"),
        (r"\pi r^{2}", r"\pi r^2"),
        ("3 − 4i", "3-4i"),
    ],
)
def test_plain_forms(text, form):
    assert normalize(text) == form
    assert normalize(form) == form or "_" in form or r"\text" in text  # nothing changes twice


def test_numbers_and_sequences_of_plain_forms():
    assert parse_plain_number(r"-\frac{3}{-6}") == Fraction(1, 2)
    assert parse_plain_number("-0.250") == Fraction(-1, 4)
    assert (
        parse_plain_number(r"\frac{1}{0}") is None
        and parse_plain_number("x") is None
        and parse_plain_number("9" * 61) is None
    )
    assert split_sequence(r"(3,\frac{\pi}{2}]") == ("(", "]", ("3", r"\frac{\pi}{2}"))
    assert split_sequence(r"\{1,2\}") == (r"\{", r"\}", ("1", "2"))
    assert split_sequence("(0,9)\\cup(9,36)") is None  # two intervals are no tuple
    assert split_sequence("f(1,2)") is None and split_sequence("1,2") == ("", "", ("1", "2"))


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("0.5", r"\frac12", True),
        ("3 1/2", "3.5", True),
        ("0.33", r"\frac13", False),  # nothing is rounded
        ("1,234", "1234", True),
        (r"5 \text{ cm}", "5", True),
        ("x = 5", "5", True),
        ("5", "x=5", True),
        ("y = 2x + 3", "2x+3", True),
        ("2x=5", "25", None),
        ("(1, 2)", "(1,2)", True),
        ("(2, 1)", "(1,2)", False),
        ("[0, 1]", "[0,1)", False),
        (r"x \in [0, 1)", "[0,1)", True),
        ("2, 1", "1,2", True),
        (r"\{2, 1/2\}", "0.5, 2", True),
        ("1, 1, 2", "1, 2", False),
        ("(1,2)", "1,2", None),
        ("(1,x)", "(2,x)", False),
        ("(1,x+1)", "(1,1+x)", None),
        ("East", r"\text{east}", True),
        ("seat", r"\text{east}", False),  # no product of letters
        ("C", r"\text{(C)}", True),
        ("ab", "ba", None),
        ("X", "x", None),
        (r"\sqrt{8}", r"2\sqrt{2}", None),
        ("24", r"\pi", False),  # pi is irrational
        ("", "3", None),
    ],
)
def test_what_strings_and_numbers_decide(answer, gold, verdict):
    assert decide(answer, gold) is verdict


PIECES = [*r"\{}()[],.$%^_/ 019abxpi=-+", r"\frac", r"\left(", r"\text{"]


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_has_a_plain_form_that_equals_itself(text):
    form = normalize(text)
    assert decide(text, text) is (True if form else None)
    parse_plain_number(form)
    split_sequence(form)


@settings(max_examples=60, deadline=None)
@given(a=st.integers(-500, 500), b=st.integers(1, 60), c=st.integers(-500, 500), d=st.integers(1, 60))
def test_fractions_are_compared_exactly_in_every_writing(a, b, c, d):
    same = Fraction(a, b) == Fraction(c, d)
    for left in (rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}", rf"\dfrac{{{a}}}{{{b}}} \text{{ cm}}"):
        assert decide(left, rf"\frac{{{c}}}{{{d}}}") is same


def test_without_the_extra_what_is_undecided_is_unknown_and_says_why(monkeypatch):
    monkeypatch.setattr(maths, "find_spec", lambda name: None)
    made = MathsGrader()
    found = made(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
    assert found.correct is None and "evolvent[math]" in found.why
    assert made(r"\boxed{3}", "4") == Grade(False, "3", "another answer")
    assert made(r"\boxed{4}", "4") == Grade(True, "4", "")
    assert made("hm", "4") == Grade(False, None, "no answer in the response")


@pytest.mark.parametrize(
    "text",
    [
        "1" * 10**6,
        r"\boxed{" + "1" * 10**6 + "}",
        r"\boxed{" * 150_000,
        "# " * 500_000,
        " " * 10**6,
        "answer is " * 100_000,
        "(" * 10**6,
        r"\frac{" * 160_000,
        "$" * 10**6,
        "1 " * 499_999 + "4",
        "- " * 500_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_responses_are_wrong_and_do_not_hang(text):
    """A pattern that takes quadratic time would take hours here."""
    assert MathsGrader()(text, "3").correct is False


def test_an_answer_of_more_characters_than_any_is_wrong():
    x, one = "x" * MAX_ANSWER_CHARS, "y" * (MAX_ANSWER_CHARS + 1)
    assert MathsGrader().compare(x, x).correct is True
    found = MathsGrader().compare(one, one)
    assert found.correct is False and "501 characters" in found.why


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("(x-1)(x+1)", "x^2-1", True),
        ("yx", "xy", True),
        ("x+2", "x+1", False),
        ("2x=5", "25", False),
        (r"\begin{pmatrix} 1 \\ 12/6 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
        ("(1, x+1)", "(1, 1+x)", True),
        (r"\left(" * 80, "x^2", False),
        ("\x00", "1", False),
        ("the first one", "x+1", False),
    ],
)
def test_math_verify_decides_the_rest(grader, answer, gold, verdict):
    assert grader.compare(answer, gold).correct is verdict


def test_what_takes_too_long_is_unknown_is_remembered_and_the_next_answer_is_graded(grader, monkeypatch):
    bomb = Grade(None, "9^{9^{9}}", "GraderTimeout")
    for _ in range(2):  # once more, as the machine may have been busy
        assert grader(r"\boxed{9^{9^{9}}}", "24") == bomb
    with monkeypatch.context() as without:
        without.setattr(maths, "find_spec", lambda name: None)  # a fresh comparison would say that the extra is missing
        assert grader(r"\boxed{9^{9^{9}}}", "24") == bomb
    assert grader(r"\boxed{9**9**9}", "24").correct in (False, None)
    assert grader(r"\boxed{2^3}", "8").correct is True


def test_what_took_too_long_on_a_busy_machine_is_graded_when_it_comes_again():
    """A process that is stopped gets no time, as on a machine with too much to do."""
    pytest.importorskip("math_verify")
    psutil = pytest.importorskip("psutil")
    others = {child.pid for child in psutil.Process().children()}
    with MathsGrader(wall_s=3.0, max_processes=1) as made:
        assert made.compare("x+1", "1+x").correct is True
        (worker,) = [child for child in psutil.Process().children() if child.pid not in others]
        worker.suspend()
        assert made.compare("y+1", "1+y") == Grade(None, "y+1", "GraderTimeout")
        assert made.compare("y+1", "1+y") == Grade(True, "y+1", "")


def test_many_threads_and_a_small_memory_of_verdicts():
    pytest.importorskip("math_verify")
    pairs = [(f"{n}+x", f"x+{n % 3}") for n in range(6)]
    with MathsGrader(cache_size=2, max_processes=1) as made, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: made.compare(*pair).correct, pairs * 2))
    assert found == [n % 3 == n for n in range(6)] * 2
    made.close()


def test_a_run_of_spaces_or_of_points_takes_no_long_time():
    """Time that grew with the square of such a run would be an hour here."""
    many = " " * 200_000
    assert normalize(f"1{many}x") == "1x"
    assert normalize(f"1{many}and{many}2 ,{many}or 3") == "1,2,3"
    assert normalize(f"1{'.' * 200_000}x") == f"1{'.' * 200_000}x" and normalize(f"1{'.,;' * 70_000}") == "1"
    assert normalize(r"\left(1, 2\right).") == "(1,2)" and normalize(r"\left. x \right..;") == normalize(
        r"\left. x \right."
    )
    assert decide("1" * 40_000 + "x", "2") is None
