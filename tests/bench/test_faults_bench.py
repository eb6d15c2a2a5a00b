"""What `benchmarks.faults` counts: numbers whose tests ran, and those of them of which none failed."""

from __future__ import annotations

from benchmarks.faults import LISTED, judged, read_report

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.faults.test_f01_server_killed" name="test_a" time="1.5"/>
<testcase classname="tests.faults.test_f01_server_killed" name="test_b[x]" time="0.5"><skipped/></testcase>
<testcase classname="tests.faults.test_f12_versions" name="test_a" time="1"/>
<testcase classname="tests.faults.test_f12_foreign_errors" name="test_a" time="1"><failure/></testcase>
<testcase classname="tests.faults.test_f53_hostile_report" name="test_a" time="0"><skipped/></testcase>
<testcase classname="" name="tests.faults.test_f44_no_action" time="0"><error/></testcase>
<testcase classname="tests.faults.test_f_late_reply" name="test_a" time="9"><failure/></testcase>
</testsuite></testsuites>"""


def test_what_is_counted(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    found = read_report(tmp_path / "report.xml")
    assert set(found) == {1, 12, 44, 53}
    assert (found[1].passed, found[1].skipped, found[1].seconds) == (1, 1, 2.0)
    told = judged(found)
    assert told["listed"] == LISTED == 85
    assert (told["provoked"], told["as_expected"]) == (3, 1), "what was skipped alone provokes nothing"
    assert told["unexpected"] == [12, 44] and 53 in told["not_provoked"] and 1 not in told["not_provoked"]
    assert (told["tests"], told["tests_skipped"]) == (4, 2)


def test_all_as_expected(tmp_path):
    cases = "".join(f'<testcase classname="tests.faults.test_f{n:02}_x" name="t"/>' for n in range(1, LISTED + 1))
    (tmp_path / "report.xml").write_text(f"<testsuites>{cases}</testsuites>", encoding="utf-8")
    told = judged(read_report(tmp_path / "report.xml"))
    assert (told["provoked"], told["as_expected"], told["not_provoked"], told["unexpected"]) == (85, 85, [], [])
