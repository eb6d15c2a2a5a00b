"""What `benchmarks.faults` counts: numbers whose tests ran, and those of them of which none failed."""

from __future__ import annotations

from benchmarks.faults import LISTED, judged, tally_tests
from benchmarks.kept_tests import KeptTest

FOLDER = "tests/faults"
KEPT = [
    KeptTest(f"{FOLDER}/test_f01_server_killed.py::test_a", "passed", 1.5),
    KeptTest(f"{FOLDER}/test_f01_server_killed.py::test_b[x]", "skipped", 0.5),
    KeptTest(f"{FOLDER}/test_f12_versions.py::test_a", "passed", 1),
    KeptTest(f"{FOLDER}/test_f12_foreign_errors.py::test_a", "failed", 1),
    KeptTest(f"{FOLDER}/test_f53_hostile_report.py::test_a", "skipped"),
    KeptTest(f"{FOLDER}/test_f44_no_action.py", "failed"),
    KeptTest(f"{FOLDER}/test_f_late_reply.py::test_a", "failed", 9),
]


def test_what_is_counted():
    found = tally_tests(KEPT)
    assert set(found) == {1, 12, 44, 53}
    assert (found[1].passed, found[1].skipped, found[1].seconds) == (1, 1, 2.0)
    told = judged(found)
    assert told["listed"] == LISTED == 85
    assert (told["provoked"], told["as_expected"]) == (3, 1), "what was skipped alone provokes nothing"
    assert told["unexpected"] == [12, 44] and 53 in told["not_provoked"] and 1 not in told["not_provoked"]
    assert (told["tests"], told["tests_skipped"]) == (4, 2)


def test_all_as_expected():
    told = judged(tally_tests([KeptTest(f"{FOLDER}/test_f{n:02}_x.py::t", "passed") for n in range(1, LISTED + 1)]))
    assert (told["provoked"], told["as_expected"], told["not_provoked"], told["unexpected"]) == (85, 85, [], [])
