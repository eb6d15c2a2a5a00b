from __future__ import annotations

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.grade.code import classify_tests, grade_code, parse_humaneval, parse_mbpp
from evolvent.grade.exchanges import Exchanges, grade_exchanges, is_same_text, is_same_value
from evolvent.sandbox.limits import Outcome, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60)
PROMPT = 'import math\ndef helper(x):\n    return x * 2\n\ndef f(x):\n    """Doubles."""\n'
PLAIN = "def check(candidate):\n    assert candidate(2) == 4, 'doubles'\n    assert not candidate(0)\n"
LOOP = "def check(candidate):\n    for x in range(5):\n        assert candidate(x) == helper(x)\n"
RIGHT = "def f(x):\n    return x * 2\n"


@pytest.fixture(scope="module")
def opened():
    try:
        pool = SandboxPool()
    except IsolationUnavailable as error:
        pytest.skip(f"this host has no isolation: {error}")
    with pool:
        yield pool.opener(LIMITS)


class Recorded:
    """A box that only writes down what it is asked, and answers with the double."""

    def __init__(self, source, seen, outcome=None):
        self.source, self.seen, self.outcome = source, seen, outcome

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def ask(self, entry, args=(), kwargs=None):
        self.seen.append((self.source, entry, args))
        return self.outcome or Outcome("value", args[0] * 2)

    def end(self):
        return True


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert candidate(1) == 2", "plain"),
        ("'Checks.'\n    assert True\n    pass\n    assert abs(candidate(1) - 2.0) < 1e-6", "plain"),
        ("assert set(candidate((1,))) == {1} and candidate([]) == []", "plain"),
        ("assert f(1) == candidate(1)", "plain"),
        ("for x in (1, 2):\n        assert candidate(x) == x", "boxed"),
        ("y = 3\n    assert candidate(y) == y", "boxed"),
        ("assert candidate(candidate(1)) == 4", "boxed"),
        ("assert candidate(math.floor(1.5)) == helper(1)", "boxed"),
        ("assert [candidate(x) for x in (1, 2)] == [2, 4]", "boxed"),
        ("assert candidate(Pair(1, 2)) == 4", "weak"),
    ],
)
def test_forms(body, expected):
    assert classify_tests(parse_humaneval(PROMPT, f"def check(candidate):\n    {body}\n", "f")) == expected


def test_the_box_sees_arguments_and_never_what_is_expected():
    seen = []
    grade = grade_code(RIGHT, parse_humaneval(PROMPT, PLAIN, "f"), lambda source, outside: Recorded(source, seen))
    assert grade.correct is True
    assert seen == [(RIGHT, "f", (2,)), (RIGHT, "f", (0,))]


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome("value", 5), "candidate(2) == 4: returned 5"),
        (Outcome("value", "4"), "candidate(2) == 4: returned '4'"),
        (Outcome("raised", error="ValueError: no"), "candidate(2): raised: ValueError: no"),
        (Outcome("timeout", error="late"), "candidate(2): timeout: late"),
        (Outcome("killed", error="exit code 0"), "candidate(2): killed: exit code 0"),
        (Outcome("malformed", error="forged"), "candidate(2): malformed: forged"),
        (Outcome("limit", error="memory"), "candidate(2): limit: memory"),
    ],
)
def test_what_fails_says_why(outcome, why):
    grade = grade_code("", parse_humaneval(PROMPT, PLAIN, "f"), lambda source, outside: Recorded(source, [], outcome))
    assert (grade.correct, grade.why) == (False, why)


def test_one_answer_too_many_fails():
    class Lying(Recorded):
        def end(self):
            return False

    grade = grade_code("", parse_humaneval(PROMPT, PLAIN, "f"), lambda source, outside: Lying(source, []))
    assert grade.correct is False and "malformed" in grade.why


@pytest.mark.parametrize("test", [PLAIN, LOOP], ids=["plain", "boxed"])
@pytest.mark.parametrize(
    ("source", "correct"),
    [
        (RIGHT, True),
        ("def f(x):\n    return x + 2\n", False),
        ("def f(x):\n    return x * 2.5\n", False),
        ("def g(x):\n    return x * 2\n", False),
        ("def f(x)\n    return x * 2\n", False),
        ("def f(x):\n    raise ValueError(x)\n", False),
        ("import os\ndef f(x):\n    os._exit(0)\n", False),
        ("class A:\n    __eq__ = lambda *a: True\n    __bool__ = lambda a: False\ndef f(x): return A()", False),
        ("class I(int):\n    def __eq__(self, other): return True\ndef f(x): return I(x)", False),
    ],
)
def test_verdicts_in_real_boxes(opened, source, correct, test):
    assert grade_code(source, parse_humaneval(PROMPT, test, "f"), opened).correct is correct


def test_the_test_of_a_boxed_problem_is_in_no_box_with_the_code(opened):
    """Code that looks for the test's text, or for its helper, finds nothing."""
    source = """
import gc
def f(x):
    texts = [t for t in gc.get_objects() if callable(t) and getattr(t, "__name__", "") in ("helper", "run_the_test")]
    return texts[0](x) if texts else None
"""
    assert grade_code(source, parse_humaneval(PROMPT, LOOP, "f"), opened).correct is False


def test_a_box_that_is_lost_fails_even_where_the_test_forgives(opened):
    test = "def check(candidate):\n    try:\n        candidate(1)\n    except Exception:\n        pass\n"
    tests = parse_humaneval(PROMPT, test, "f")
    assert classify_tests(tests) == "boxed"
    assert grade_code("def f(x): raise ValueError", tests, opened).correct is True
    lost = grade_code("import os\ndef f(x): os._exit(0)", tests, opened)
    assert lost.correct is False and lost.why.startswith("killed")


def test_mbpp(opened):
    tests = parse_mbpp("assert double(2) == 4\nassert set(double((1,))) == {1}")
    assert (tests.entry, classify_tests(tests)) == ("double", "plain")
    assert grade_code("def double(x): return x * 2", tests, opened).correct is True
    assert grade_code("def double(x): return x", tests, opened).correct is False
    close = parse_mbpp("assert math.isclose(half(3), 1.5, rel_tol=0.001)", imports="import math")
    assert grade_code("def half(x): return x / 2", close, opened).correct is True
    looped = parse_mbpp("for k in range(3):\n    assert same(k) == math.floor(k)", imports="import math", entry="same")
    assert classify_tests(looped) == "boxed" and grade_code("def same(x): return x", looped, opened).correct is True


def test_mbpp_entries_that_cannot_be_told():
    for asserts in ("assert True", "assert f(Pair(1, 2)) == 3"):
        with pytest.raises(ValueError, match="not one function"):
            parse_mbpp(asserts)
    weak = grade_code(
        "", parse_mbpp("assert f(Pair(1, 2)) == 3", entry="f"), lambda source, outside: Recorded(source, [])
    )
    assert weak.correct is None and weak.why.startswith("weak")


def test_tests_that_ask_nothing_are_weak():
    """No call, no verdict: `assert True` alone would let everything pass."""
    for test in ("assert True", "for x in ():\n        pass"):
        grade = grade_code(
            "", parse_humaneval(PROMPT, f"def check(candidate):\n    {test}\n", "f"), lambda *given: None
        )
        assert grade.correct is None and "never call" in grade.why


def test_no_check():
    with pytest.raises(ValueError, match="no function check"):
        parse_humaneval(PROMPT, "assert candidate(1)", "f")
    with pytest.raises(SyntaxError):
        parse_humaneval(PROMPT, "def check(candidate:", "f")


@pytest.mark.parametrize("made", [int, lambda number: [number], lambda number: {number: 1}])
def test_a_number_too_long_to_be_written_is_wrong_and_no_crash(made):
    """Python writes out no whole number of more than 4,300 digits; a program may return one."""
    outcome = Outcome("value", made(10**5000))
    for asserts in ("assert f(1) == 1", "assert f(1)[0] == 1", "assert {}[f(1)] == 1", "assert not f(1)"):
        grade = grade_code("", parse_mbpp(asserts), lambda source, outside: Recorded(source, [], outcome))
        assert grade.correct is False and grade.why.startswith(asserts.removeprefix("assert "))
    tests = Exchanges(([1],), (1,), "f")
    grade = grade_exchanges("", tests, lambda source, outside: Recorded(source, [], outcome))
    assert grade.correct is False and grade.why.startswith("exchange 1: got")
    assert not is_same_value({10**5000: 1}, {"1": 1}) and not is_same_value(10**5000, 1.0)


@pytest.mark.parametrize(
    "value",
    [
        '{"t": "list", "v": [{"t": "str", "v": "a" * 900_000}, {"t": "none"}]}',
        '{"t": "list", "v": [{"t": "complex", "v": ["1", "1"]}] * 33_000}',
    ],
)
def test_code_that_writes_its_own_answer_fails_and_does_not_end_the_judge(opened, value):
    """A frame may be small enough to be read, and what it holds too large to be sent into the box of the test."""
    source = f"""
import json, os, time
def f(x):
    body = json.dumps({{"value": {value}}}, separators=(",", ":")).encode()
    for descriptor in range(3, 1024):
        try:
            data = memoryview(len(body).to_bytes(4, "little") + body)
            while data:
                data = data[os.write(descriptor, data):]
        except OSError:
            continue
    time.sleep(600)
"""
    assert grade_code(source, parse_humaneval(PROMPT, LOOP, "f"), opened).correct is False


def test_a_long_number_that_is_none_is_compared_in_linear_time():
    """A program may print a megabyte of digits; time that grew with their square would be days here."""
    digits = "1" * 1_000_000
    assert not is_same_text(f"{digits}.x", "1.5") and not is_same_text(f"-{digits}x", "1.5")
    assert not is_same_text(f"{digits}.", "1.5") and is_same_text("+1.e0 .5 7.", "1.0 0.5 7.0")
