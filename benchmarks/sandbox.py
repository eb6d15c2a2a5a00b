"""The sandbox: attacks, cheats of judges, and what a box costs.

    python -m benchmarks.sandbox [--data DIR] [--quick] [--json] [--save]

Attacks: the table of `tests/faults/attacks.py`, against a host with a secret in a file, in its environment and behind
sockets; what is left behind is a process, a descriptor, a thread, a group, a lock or an object of IPC. Cheats: three
programs that know nothing of any problem, given to two usual judges and to ours, on HumanEval (DIR holds
HumanEval.jsonl.gz) or on 164 problems made here. The usual judges: one forks, executes program and test in one
namespace, and asks a queue whether it passed (as openai/human-eval's does); one believes the exit code. The cost:
a box from nothing, in turns with the bare start of `python -I -S`; a box that waits, without and with packages.
"""

from __future__ import annotations

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, show, versions
from benchmarks.sandbox_problems import Problem, made
from evolvent.grade.code import CodeTests, classify_tests, grade_code, parse_humaneval
from evolvent.sandbox.bubblewrap import interpreter, isolation
from evolvent.sandbox.limits import CallRequest, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

GOALS = {
    "attacks": 200,
    "escaped": 0,
    "left_behind": 0,
    "cheats_passed": 0,
    "canonical": "all",
    "overhead_ms": 35,
    "late_s": 1.0,
}
RESULT = RESULTS / "sandbox.json"
LIMITS = SandboxLimits(wall_s=20.0, cpu_s=20)
SOURCE = "def f(x):\n    return x"
# The usual judges, as text: they execute what they judge, which nothing of this project does in its own process.
FORKING = """
import json, multiprocessing, sys
def run(program, result):
    try:
        exec(program, {})
        result.put("passed")
    except BaseException:
        result.put("failed")
def main():
    passed = 0
    context = multiprocessing.get_context("fork")
    for program in json.load(sys.stdin):
        result = context.SimpleQueue()
        process = context.Process(target=run, args=(program, result))
        process.start()
        process.join(20)
        process.kill()
        passed += not result.empty() and result.get() == "passed"
    sys.stderr.write(str(passed))
main()
"""


def problems(data: Path | None) -> list[Problem]:
    """HumanEval from a folder, or the problems made here."""
    if data is None:
        return made()
    with gzip.open(data / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        return [Problem(**json.loads(line)) for line in file]


def tests_of(problem: Problem) -> CodeTests:
    return parse_humaneval(problem.prompt, problem.test, problem.entry_point)


def forking(programs: Sequence[str]) -> int:
    """How many programs the forking judge lets pass."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        check=True,
        timeout=3000,
    )
    return int(done.stderr.split()[-1])


def exit_code(programs: Sequence[str]) -> int:
    """How many programs the judge of exit codes lets pass."""
    return sum(
        subprocess.run([interpreter(), "-I", "-S", "-c", program], capture_output=True, timeout=60).returncode == 0
        for program in programs
    )


def ours(sources: Sequence[str], chosen: Sequence[Problem], boxes: SandboxPool) -> int:
    """How many sources our judge lets pass."""
    opened = boxes.opener(LIMITS)

    def passed(pair: tuple[str, Problem]) -> bool:
        return grade_code(pair[0], tests_of(pair[1]), opened).correct is True

    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(passed, zip(sources, chosen, strict=True)))


def cheats(chosen: Sequence[Problem], boxes: SandboxPool) -> dict[str, Any]:
    """What passes which judge: the right solutions, and each cheat."""
    base = import_module("attack_base")
    sides = {"canonical": [problem.prompt + problem.canonical_solution for problem in chosen]}
    for cheat in base.CHEATS:
        # a cheat has nothing of the prompt but imports, as a model's answer would
        sides[cheat.name] = [cheat.source.replace("{entry}", problem.entry_point) for problem in chosen]
    found: dict[str, Any] = {}
    for name, sources in sides.items():
        # as judges do: what the prompt defines (helpers of tests) comes first, then the answer, then the test
        programs = [
            f"{problem.prompt}    pass\n{source}\n{problem.test}\ncheck({problem.entry_point})\n"
            for source, problem in zip(sources, chosen, strict=True)
        ]
        found[name] = {
            "ours": ours(sources, chosen, boxes),
            "forking": forking(programs),
            "exit_code": exit_code(programs),
        }
        print(f"{name:16} {found[name]} of {len(chosen)}")
    return found


def attacked() -> dict[str, Any]:
    """All attacks: how many escaped, what was left behind, and by how much the latest passed its wall limit."""
    attacks, base = import_module("attacks").ATTACKS, import_module("attack_base")
    late: list[float] = []

    def run(attack: Any) -> str:
        start = time.monotonic()
        (outcome,) = boxes.observe(found.filled(attack), [CallRequest("f")], attack.limits)
        late.append(time.monotonic() - start - attack.limits.wall_s)
        return str(found.escaped(attack, outcome))

    before = base.Before()
    with tempfile.TemporaryDirectory() as folder, base.host(Path(folder)) as found:
        with SandboxPool() as boxes, ThreadPoolExecutor(2) as threads:
            escaped = [why for why in threads.map(run, attacks) if why]
        touched = found.touched()
    left_behind = before.left_behind()
    return {
        "attacks": len(attacks),
        "escaped": len(escaped) + len(touched),
        "escapes": escaped + touched,
        "left_behind": len(left_behind),
        "left": left_behind,
        "late_s": round(max(late), 3),
    }


def _timed(work: Callable[[], object]) -> float:
    """Wall milliseconds of one go."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def costs(rounds: int, packages: tuple[str, ...]) -> dict[str, float]:
    """Medians in ms: bare Python, a box from nothing, one that waited; and one with packages, both ways."""
    bare = [interpreter(), "-I", "-S", "-c", f"{SOURCE}\nf(3)"]
    sides: dict[str, list[float]] = {"bare": [], "cold": [], "ready": [], "packages": []}

    def ask(boxes: SandboxPool, limits: SandboxLimits = LIMITS) -> None:
        if not boxes.observe(SOURCE, [CallRequest("f", (3,))], limits)[0].ok:
            raise RuntimeError("a box did not answer")

    roomy = SandboxLimits(wall_s=60.0, cpu_s=60, memory_mb=4096, total_mb=4096)
    with SandboxPool(ahead=0) as cold, SandboxPool(ahead=1) as ready, SandboxPool(ahead=1, packages=packages) as heavy:
        for _ in range(2 * rounds):
            sides["bare"].append(_timed(lambda: subprocess.run(bare, check=True)))
            sides["cold"].append(_timed(lambda: ask(cold)))
        for name, boxes, limits in (("ready", ready, LIMITS), ("packages", heavy, roomy)):
            for _ in range(rounds):
                time.sleep(0.5)  # until the next box waits
                sides[name].append(_timed(lambda boxes=boxes, limits=limits: ask(boxes, limits)))  # type: ignore[misc]
    found = {f"{name}_ms": statistics.median(times) for name, times in sides.items()}
    found["overhead_ms"] = found["cold_ms"] - found["bare_ms"]
    found["overhead_least_ms"] = min(sides["cold"]) - min(sides["bare"])  # on a busy machine nearer to the cost itself
    return {name: round(value, 2) for name, value in found.items()}


def report(chosen: Sequence[Problem], *, quick: bool) -> dict[str, Any]:
    """All figures as one JSON object."""
    host = isolation()
    figures: dict[str, Any] = costs(10 if quick else 40, ("numpy",))
    figures |= attacked()
    with SandboxPool() as boxes:
        judged = cheats(chosen, boxes)
    forms = [classify_tests(tests_of(problem)) for problem in chosen]
    return {
        **figures,
        "cheats_passed": sum(row["ours"] for name, row in judged.items() if name != "canonical"),
        "canonical": judged["canonical"]["ours"],
        "problems": len(chosen),
        "judged": judged,
        "forms": {name: forms.count(name) for name in ("plain", "boxed", "weak")},
        "isolation": {"bubblewrap": host.version, "machine": host.machine, "root": host.root},
        "goals": GOALS,
        "quick": quick,
        **versions("python"),
        **about("evolvent", "numpy", cores=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("sandbox", __doc__, quick="every fourth problem, fewer rounds", save=RESULT)
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder with HumanEval.jsonl.gz")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
    chosen = problems(options.data)
    result = report(chosen[::4] if options.quick else chosen, quick=options.quick)
    result["set"] = "made here" if options.data is None else "HumanEval"
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
