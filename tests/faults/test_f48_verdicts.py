"""Fault 48: no cheat of a judge passes, right solutions do, and what one job changes no other job sees."""

from __future__ import annotations

import pytest
from attack_base import CHEATS

from benchmarks.sandbox_problems import made
from evolvent.errors import IsolationUnavailable
from evolvent.grade.code import classify_tests, grade_code, parse_humaneval
from evolvent.sandbox.limits import SandboxLimits
from evolvent.sandbox.pool import SandboxPool

PROBLEMS = made()[:18]  # each family twice
LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60)
PATCHES = {
    "builtins": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.sorted = builtins.set = lambda *a, **k: ()",
    "the encoder": "import sys\nsys.modules['evolvent.sandbox.child'].encode = lambda *a: {'t': 'bool', 'v': True}",
    "check": "def check(*args): return True\ncandidate = run_the_test = check\nclass AssertionError(Exception): pass",
    "printed": 'print(\'passed\')\nprint(\'{"value": {"t": "bool", "v": true}}\', flush=True)',
    "a result file": "open('result.json', 'w').write('{\"passed\": true}')",
    "an exit": "import atexit, os\natexit.register(os._exit, 0)\nimport sys\nsys.exit(0)",
}


@pytest.fixture(scope="module")
def opened():
    try:
        pool = SandboxPool()
    except IsolationUnavailable as error:
        pytest.skip(f"this host has no isolation: {error}")
    with pool:
        yield pool.opener(LIMITS)


def as_tests(problem):
    return parse_humaneval(problem.prompt, problem.test, problem.entry_point)


def test_both_forms_are_among_them():
    assert {classify_tests(as_tests(problem)) for problem in PROBLEMS} == {"plain", "boxed"}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.task_id)
def test_solutions_pass_and_cheats_do_not(opened, problem):
    right = problem.prompt + problem.canonical_solution
    assert grade_code(right, as_tests(problem), opened).correct is True
    for cheat in CHEATS:
        source = cheat.source.replace("{entry}", problem.entry_point)
        assert grade_code(source, as_tests(problem), opened).correct is False, cheat.name
    assert grade_code(right, as_tests(problem), opened).correct is True


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("problem", [PROBLEMS[2], PROBLEMS[7]], ids=["plain", "boxed"])
def test_patches_change_nothing(opened, patch, problem):
    wrong = f"{PATCHES[patch]}\ndef {problem.entry_point}(*args): return None\n"
    right = problem.prompt + problem.canonical_solution
    assert grade_code(wrong, as_tests(problem), opened).correct is False
    assert grade_code(right, as_tests(problem), opened).correct is True
