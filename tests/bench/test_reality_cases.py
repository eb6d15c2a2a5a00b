"""The table of cases: every test it names exists, and a case is right where all of its tests passed."""

from __future__ import annotations

from benchmarks import reality
from benchmarks.kept_tests import KeptTest
from benchmarks.reality_cases import CASES, Case, find_tests, group_outcomes, judge_cases


def test_every_case_has_an_id_of_its_own_and_one_sentence():
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids) >= 85
    says = [case.says for case in CASES]
    assert all(text.endswith(".") and text.count(". ") == 0 and len(text) < 120 for text in says)


def test_every_test_of_a_case_exists():
    tests = [test for case in CASES for test in case.tests]
    assert set(tests) - set(find_tests(tests)) == set()
    assert all(len(set(case.tests)) == len(case.tests) for case in CASES)
    assert find_tests(["tests/bench/test_reality_cases.py::test_none", "tests/nothing.py::test_a"]) == []


def test_a_case_is_right_where_each_of_its_tests_passed():
    file = "tests/a/test_b.py"
    kept = [
        KeptTest(f"{file}::test_c[1-x]", "passed"),
        KeptTest(f"{file}::test_c[2]", "skipped"),
        KeptTest(f"{file}::test_d", "skipped"),
        KeptTest(f"{file}::test_e", "failed"),
        KeptTest("tests/a/test_whole.py", "skipped"),
    ]
    outcomes = group_outcomes(kept)
    assert outcomes["tests/a/test_b.py::test_c"] == ["passed", "skipped"]

    def tests(*names):
        return tuple(f"tests/a/test_b.py::test_{name}" for name in names)

    cases = [
        Case(name, "", tests(*name.lower()) if name != "none" else ()) for name in ("C", "CD", "CE", "DE", "CX", "none")
    ]
    assert judge_cases([Case("F", "", ("tests/a/test_whole.py::test_a",))], outcomes)["cases_not_run"] == ["F"]
    assert judge_cases(cases, outcomes) == {
        "cases": 6,
        "cases_right": 1,
        "cases_wrong": ["CE", "DE", "CX", "none"],
        "cases_not_run": ["CD"],
    }


def test_a_quick_run_takes_every_seventh_case(monkeypatch, capsys):
    taken = []
    monkeypatch.setattr(reality, "run_tests", lambda cases: taken.extend(cases) or {"cases": len(taken)})
    for name in ("measure_calls", "measure_maths", "measure_packages"):
        monkeypatch.setattr(reality, name, lambda *given, **named: {})
    assert reality.main(["--quick", "--json"]) == 0
    assert taken == list(CASES[::7]) and f'"cases": {len(taken)}' in capsys.readouterr().out
