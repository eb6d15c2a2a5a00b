"""The list of faults, provoked one after another, and a soak of mixed load.

    python -m benchmarks.faults [--soak-minutes 30] [--quick] [--json] [--save]

`tests/faults` is run by pytest in a process of its own. A number of the list is `provoked` where at least one of its
tests ran, and `as_expected` where none of them failed and at least one passed; a test that is skipped because a browser
or a package is missing provokes nothing. Then `benchmarks.soak_mixed` runs for `--soak-minutes`; 0: it does not.
A run that is interrupted goes on behind its last test while the sources are the same (`benchmarks.kept_tests`).
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import soak_mixed
from benchmarks.kept_tests import KeptTest, kept_file, read_kept, run_kept
from benchmarks.reporting import RESULTS, about, command_line, finish, show

LISTED = 85
RESULT = RESULTS / "faults.json"
NUMBERED = re.compile(r"/test_f(\d\d)_")
GOALS = {"listed": LISTED, "provoked": LISTED, "as_expected": LISTED, "lost": 0, "doubled": 0}


@dataclass
class Seen:
    """What became of the tests of one number."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


def tally_tests(kept: Sequence[KeptTest]) -> dict[int, Seen]:
    """Returns the outcomes by number; tests of the folder without a number are left out."""
    found: dict[int, Seen] = defaultdict(Seen)
    for test in kept:
        numbered = NUMBERED.search(test.test)
        if numbered is None:
            continue
        seen = found[int(numbered[1])]
        seen.failed += test.outcome == "failed"
        seen.skipped += test.outcome == "skipped"
        seen.passed += test.outcome == "passed"
        seen.seconds += test.seconds
    return dict(found)


def provoked(tests: Sequence[str], file: Path) -> dict[str, Any]:
    """Runs the tests that the file does not hold yet; returns the figures of all of them."""
    code = run_kept(file, tests)
    kept = read_kept(file)
    seconds = round(sum(test.seconds for test in kept), 1)
    return {**judged(tally_tests(kept)), "pytest_code": code, "seconds": seconds}


def judged(found: dict[int, Seen]) -> dict[str, Any]:
    """Which numbers were provoked, and which of them as expected."""
    numbers = range(1, LISTED + 1)
    ran = [number for number in numbers if (seen := found.get(number)) and seen.passed + seen.failed]
    good = [number for number in ran if not found[number].failed and found[number].passed]
    return {
        "listed": LISTED,
        "provoked": len(ran),
        "as_expected": len(good),
        "not_provoked": sorted(set(numbers) - set(ran)),
        "unexpected": sorted(set(ran) - set(good)),
        "tests": sum(seen.passed + seen.failed for seen in found.values()),
        "tests_skipped": sum(seen.skipped for seen in found.values()),
    }


def report(soak_minutes: float, tests: Sequence[str], file: Path) -> dict[str, Any]:
    """Runs it all; returns the figures."""
    result: dict[str, Any] = {
        "benchmark": "faults",
        **provoked(tests, file),
        "lost": None,
        "doubled": None,
        "goals": GOALS,
    }
    if soak_minutes > 0:
        soak = soak_mixed.report(soak_minutes)
        result |= {"lost": soak["lost"], "doubled": soak["doubled"], "soak": soak}
    return result | {"seed": soak_mixed.SEED, **about("evolvent", "pytest", cores=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("faults", __doc__, quick="a soak of one minute", save=RESULT)
    parser.add_argument("--soak-minutes", type=float, default=30.0, help="0: no soak")
    parser.add_argument("--tests", nargs="+", default=["tests/faults"], help="what pytest runs")
    options = parser.parse_args(arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs, and all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    file = kept_file("faults", *options.tests)
    result = report(1.0 if options.quick else options.soak_minutes, options.tests, file)
    show(result)
    finish(result, options)
    file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
