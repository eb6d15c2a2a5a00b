"""Tests as a measurement: what ended stays ended, also behind a killed process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kept_tests import ROOT, KeptTest, digest_sources, kept_file, read_kept, run_kept

TESTS = """
import os, signal, pathlib, pytest
HERE = pathlib.Path(__file__).parent
def count(name):
    with (HERE / "ran").open("a") as stream:
        stream.write(name)
def test_a(): count("a")
@pytest.mark.parametrize("x", [1, 2])
def test_b(x):
    count("b")
    assert x == 1
def test_c():
    count("c")
    if not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
@pytest.fixture
def broken():
    yield
    raise RuntimeError("after the test")
def test_d(broken): count("d")
def test_e(): pytest.skip("not here")
"""


def made(folder: Path) -> Path:
    (folder / "test_few.py").write_text(TESTS, encoding="utf-8")
    (folder / "test_none.py").write_text("import pytest\npytest.skip('all', allow_module_level=True)\n")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return folder / "state" / "kept.jsonl"


def outcomes(file: Path) -> dict[str, str]:
    return {kept.test: kept.outcome for kept in read_kept(file)}


def test_a_killed_run_goes_on_and_a_failed_test_stays_failed(tmp_path, monkeypatch):
    file = made(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(RuntimeError, match=f"pytest exited with -{signal.SIGKILL.value}"):
        run_kept(file, ["."], cwd=tmp_path)
    assert outcomes(file) == {
        "test_none.py": "skipped",
        "test_few.py::test_a": "passed",
        "test_few.py::test_b[1]": "passed",
        "test_few.py::test_b[2]": "failed",
    }
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"test": "torn')
    assert len(read_kept(file)) == 4
    assert run_kept(file, ["."], cwd=tmp_path) == 1, "a test failed behind its end"
    assert (tmp_path / "ran").read_text() == "abbccd", "only what had not ended ran again"
    assert list(outcomes(file).values()) == ["skipped", "passed", "passed", "failed", "passed", "failed", "skipped"]
    assert run_kept(file, ["test_few.py"], cwd=tmp_path) == 0
    assert (tmp_path / "ran").read_text() == "abbccd" and len(read_kept(file)) == 7


def test_only_chosen_tests_run(tmp_path, monkeypatch):
    file = made(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    run_kept(file, ["test_few.py"], chosen=["test_few.py::test_b"], cwd=tmp_path)
    assert outcomes(file) == {"test_few.py::test_b[1]": "passed", "test_few.py::test_b[2]": "failed"}


def test_state_follows_files_that_are_tested_and_what_was_asked_for(tmp_path):
    (tmp_path / "src").mkdir()
    module = tmp_path / "src" / "a.py"
    module.write_text("x = 1\n", encoding="utf-8")
    first = digest_sources(tmp_path)
    (tmp_path / "notes.py").write_text("", encoding="utf-8")
    for written in ("src/__pycache__/a.pyc", "benchmarks/results/faults.json"):
        (tmp_path / written).parent.mkdir(parents=True)
        (tmp_path / written).write_text("", encoding="utf-8")
    assert digest_sources(tmp_path) == first and len(first) == 12
    assert kept_file("faults", "a", root=tmp_path) != kept_file("faults", "b", root=tmp_path)
    (tmp_path / "src" / "page.html").write_text("", encoding="utf-8")
    second = digest_sources(tmp_path)
    module.rename(tmp_path / "src" / "b.py")
    assert len({first, second, digest_sources(tmp_path)}) == 3


def test_a_file_that_was_skipped_as_a_whole_counts_by_its_tests_once_they_ran(tmp_path):
    lines = [("test_a.py", "skipped"), ("test_b.py", "skipped"), ("test_a.py::test_x", "passed")]
    text = "".join(json.dumps({"test": test, "outcome": outcome, "seconds": 0}) + "\n" for test, outcome in lines)
    (tmp_path / "kept.jsonl").write_text(text, encoding="utf-8")
    assert [kept.test for kept in read_kept(tmp_path / "kept.jsonl")] == ["test_b.py", "test_a.py::test_x"]


def test_what_cannot_begin_is_no_result(tmp_path, monkeypatch):
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(RuntimeError, match="pytest exited with 2"):
        run_kept(tmp_path / "kept.jsonl", ["."], cwd=tmp_path)


def test_plugin_is_silent_outside_of_a_measurement(tmp_path):
    made(tmp_path)
    (tmp_path / "killed").touch()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("EVOLVENT_KEPT_TESTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.kept_tests", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "test_few.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 4 passed, 1 skipped, 1 error" in done.stdout
    assert read_kept(tmp_path / "absent.jsonl") == [] and KeptTest("t", "passed").seconds == 0
