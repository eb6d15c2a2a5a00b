"""Tests as a measurement that can be interrupted: what became of each is kept as soon as it has ended.

`run_kept` runs pytest in a process of its own, with this module as a plugin, and appends a line to a file after every
test. A run that was interrupted goes on behind its last line; a test that failed stays failed. The file is named by the
files that were tested (`digest_sources`) and by what was asked for, so that anything else begins anew, and a benchmark
removes it once all is told.

Its lines are JSON: {"test": node id, "outcome": "passed", "failed" or "skipped", "seconds": of its three phases}.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["KeptTest", "digest_sources", "kept_file", "read_kept", "run_kept"]

ROOT = Path(__file__).parents[1]
_FILE_VARIABLE, _CHOSEN_VARIABLE = "EVOLVENT_KEPT_TESTS", "EVOLVENT_CHOSEN_TESTS"
_FOLDERS = ("src", "tests", "benchmarks")
_ENDED = (0, 1, 5)  # exit codes of pytest that has come to its end: passed, failed, nothing left to run


@dataclass(frozen=True, slots=True)
class KeptTest:
    """What became of one test.

    Attributes:
        test: its node id, with parameters; of a file that skips all of its tests at once, the path of the file.
        outcome: "passed", "failed" or "skipped".
        seconds: wall time of set-up, call and tear-down.
    """

    test: str
    outcome: str
    seconds: float = 0.0


def digest_sources(root: Path = ROOT) -> str:
    """Returns twelve hexadecimal digits that stand for the files of the package, its tests and its benchmarks.

    What a run writes itself, compiled files and the results of benchmarks, does not count.
    """
    found = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.is_file()):
        if "__pycache__" in path.parts or path.is_relative_to(root / "benchmarks" / "results"):
            continue
        found.update(f"{path.relative_to(root).as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def kept_file(name: str, *asked_for: str, root: Path = ROOT) -> Path:
    """Returns the file of a benchmark for the sources as they are.

    Args:
        asked_for: what the benchmark was asked to run; another choice has another file.
    """
    digest = hashlib.sha256("\0".join([digest_sources(root), *asked_for]).encode()).hexdigest()
    return root / "build" / "benchmarks" / f"{name}-{digest[:12]}.jsonl"


def read_kept(path: Path) -> list[KeptTest]:
    """Returns the tests of a file in the order in which they ended; a torn last line is left out.

    A test file that was skipped as a whole, and whose tests ran later, counts by its tests.
    """
    kept = list(_kept_lines(path)) if path.is_file() else []
    files = {file for test in kept if (file := test.test.partition("::")[0]) != test.test}
    return [test for test in kept if test.test not in files]


def _kept_lines(path: Path) -> Iterator[KeptTest]:
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield KeptTest(**json.loads(line))


def run_kept(path: Path, tests: Sequence[str], *, chosen: Collection[str] = (), cwd: Path = ROOT) -> int:
    """Runs what is not yet in the file; returns the exit code of pytest: 1 where a test failed in this run, else 0.

    Args:
        path: the file; it is made where it is missing.
        tests: files, folders or node ids, as pytest takes them.
        chosen: node ids without parameters that are kept of them; none: all.
    Raises:
        RuntimeError: pytest was killed, or could not begin; what has ended is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_torn_line(path)
    plugin = ("-p", "benchmarks.kept_tests", "-p", "no:cacheprovider")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", _FILE_VARIABLE: str(path), _CHOSEN_VARIABLE: " ".join(chosen)}
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *tests]
    code = subprocess.run(command, cwd=cwd, env=environment, check=False, stdout=sys.stderr).returncode
    if code not in _ENDED:
        raise RuntimeError(f"the tests did not come to their end: pytest exited with {code}; the same command goes on")
    return int(code == 1)


def _drop_torn_line(path: Path) -> None:
    """Removes a last line without an end, which a killed process left, so that the next line stands alone."""
    if path.is_file():
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            path.write_bytes(whole)


# ------------------------------------------------------------------------------------------ the plugin


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out the tests that were not chosen, and those that ended earlier.

    Files are collected whole, because one of them may skip all of its tests.
    """
    if _FILE_VARIABLE not in os.environ:
        return
    chosen = set(os.environ.get(_CHOSEN_VARIABLE, "").split())
    ended = {kept.test for kept in read_kept(Path(os.environ[_FILE_VARIABLE]))}
    left = [item for item in items if item.nodeid not in ended]
    left = [item for item in left if not chosen or item.nodeid.partition("[")[0] in chosen]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
    items[:] = left


_phases: dict[str, list[tuple[str, float]]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Appends a line once the last phase of a test has ended."""
    _phases.setdefault(report.nodeid, []).append((report.outcome, report.duration))
    if report.when == "teardown":
        phases = _phases.pop(report.nodeid)
        outcomes = [outcome for outcome, _ in phases]
        outcome = next((name for name in ("failed", "skipped") if name in outcomes), "passed")
        _keep(KeptTest(report.nodeid, outcome, round(sum(seconds for _, seconds in phases), 3)))


def pytest_collectreport(report: Any) -> None:
    """Appends a line for a file that cannot be collected, or that skips all of its tests."""
    if report.outcome != "passed" and _FILE_VARIABLE in os.environ:
        ended = {kept.test for kept in read_kept(Path(os.environ[_FILE_VARIABLE]))}
        if report.nodeid not in ended:
            _keep(KeptTest(report.nodeid, report.outcome))


def _keep(kept: KeptTest) -> None:
    if _FILE_VARIABLE not in os.environ:
        return
    line = json.dumps({"test": kept.test, "outcome": kept.outcome, "seconds": kept.seconds}) + "\n"
    with Path(os.environ[_FILE_VARIABLE]).open("a", encoding="utf-8") as stream:
        stream.write(line)
