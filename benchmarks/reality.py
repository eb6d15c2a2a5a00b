"""What models really write, and what graders really accept: figures that no test of ours alone could give.

Calls: calls of generated tools, written by the chat templates that TRL ships, by mistral-common and by our own writers,
are read back (`benchmarks.call_cases`). `call_roundtrips` came back as they were, and `call_wrong` did not.
`call_ambiguous` are texts that stand for two calls that both fit the schemas, `call_refused` hold marks of the format.

Maths: a table of pairs of answers whose truth comes from exact fractions, from sympy or by hand
(`benchmarks.maths_pairs`), graded in both orders. `maths_false_accept` differ and were accepted; `maths_true_accept` is
the share of equal ones that were accepted; `math_verify_false_accept` and `math_verify_true_accept` are the same of
math-verify alone. `numeric_per_cpu_s` are responses with a number that are graded in a CPU-second.

Packages: tasks of TextArena, Reasoning Gym and ScienceWorld, played well, badly and with nonsense
(`benchmarks.package_tasks`). In `package_order_wrong` of `package_tasks` the best did not earn most, or nonsense won.
Both are null, with the reason in `package_missing`, where one of the packages is missing.

Cases: what once failed on public reports, real files and a newcomer's first day (`benchmarks.reality_cases`). Of
`cases`, `cases_right` are those whose tests ran and passed; `cases_wrong` and `cases_not_run` name the others. They
come last; when interrupted they go on behind the last test while the sources are the same.

    python -m benchmarks.reality --json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.call_cases import list_writers, run_cases
from benchmarks.maths_pairs import grade_pairs, measure_numeric_speed, read_pairs, verify_pairs
from benchmarks.package_tasks import measure_packages
from benchmarks.reality_cases import CASES, run_tests
from benchmarks.reporting import RESULTS, about, command_line, finish, show

SEED = 0
NUM_CALL_CASES = 10_000


def measure_calls(num_cases: int) -> dict[str, Any]:
    """Writes and reads calls."""
    writers = list_writers()
    tally = run_cases(num_cases, seed=SEED, writers=writers)
    return {
        "call_writers": len(writers),
        "call_roundtrips": tally.right,
        "call_wrong": tally.wrong,
        "call_ambiguous": tally.ambiguous,
        "call_refused": tally.refused,
        "call_unwritten": tally.unwritten,
        "call_examples": tally.examples[:5],
    }


def measure_maths(step: int) -> dict[str, Any]:
    """Grades every so many-th pair of the table, and the same by math-verify alone."""
    pairs = read_pairs()[::step]
    equal = 2 * sum(pair.equal for pair in pairs)
    ours, theirs = grade_pairs(pairs), verify_pairs(pairs)
    return {
        "maths_pairs": len(pairs),
        "maths_false_accept": len(ours["false"]),
        "maths_true_accept": round(1 - len(ours["missed"]) / equal, 4),
        "math_verify_false_accept": len(theirs["false"]),
        "math_verify_true_accept": round(1 - len(theirs["missed"]) / equal, 4),
        "numeric_per_cpu_s": round(measure_numeric_speed()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measures everything; prints a table, or one JSON object."""
    parser = command_line(
        "reality",
        __doc__,
        quick="a tenth of the calls, an eighth of the pairs, a quarter of the tasks, a seventh of the cases",
        save=RESULTS / "reality.json",
    )
    options = parser.parse_args(argv)
    figures: dict[str, Any] = {
        "benchmark": "reality",
        **measure_calls(NUM_CALL_CASES // (10 if options.quick else 1)),
        **measure_maths(8 if options.quick else 1),
        **measure_packages(quick=options.quick),
        **run_tests(CASES[:: 7 if options.quick else 1]),
        "seed": SEED,
        **about(
            *("trl", "transformers", "mistral-common", "math-verify", "sympy"),
            *("textarena", "reasoning-gym", "scienceworld"),
        ),
    }
    show(figures, without=("versions", "machine"))
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
