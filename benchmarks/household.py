"""The household world: its speed, and its parity with the official engine.

    python -m benchmarks.household [--official PYTHON] [--quick] [--json] [--save]

PYTHON is an interpreter in whose environment alfworld is installed (without it: this one, if it is). The official
engine runs in a process of its own. Games are generated, written as game files, and played in both engines at once:
expert walks, random walks, impossible actions. Text, admissible actions and `won` are compared in every state. Without
alfworld only the speed is measured, and the parity figures are null.

The games of the comparison were used for nothing else: panels count their seeds up from 0, tests and development used
seeds below 1,000,000, and the comparison begins at `PARITY_SEED`.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, show, versions
from benchmarks.worlds import first_visit, steps_per_cpu_s
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import Env
from evolvent.worlds.household.game import FAMILIES
from evolvent.worlds.household.games import OfficialTexts, read_official_texts
from evolvent.worlds.household.kinds import list_possible_goals
from evolvent.worlds.household.world import HouseholdWorld

PARITY_SEED = 7_000_000
GOALS = {"steps_per_cpu_s": 10_000, "parity_states": 200, "parity_games": 40, "parity_mismatches": 0}
RESULT = RESULTS / "household.json"
WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\n"
WORDS = ("look", "dance", "go to the moon 1", "take mug 1", "open fridge", "examine room", "move pen 1 to bed 1")
RANDOM_STEPS = 25
SIZES = ("small", "small", "medium", "large")


@dataclass
class Parity:
    """What the comparison found; `differences` holds the first of them."""

    games: int = 0
    states: int = 0
    mismatches: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)
    official_loads: list[float] = field(default_factory=list)
    official_resets: list[float] = field(default_factory=list)
    official_steps: list[float] = field(default_factory=list)
    families: set[str] = field(default_factory=set)


class Official:
    """The official engine in its process."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("household_official.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, **what: object) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the official engine has no pipes")
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the official engine ended with code {self._process.wait()} at {what}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def official(python: str) -> Iterator[Official]:
    engine = Official(python)
    try:
        yield engine
    finally:
        engine.close()


def older(texts: OfficialTexts) -> OfficialTexts:
    """The texts as games for alfworld 0.2 and 0.3 have them: other words for putting and arriving, and no help."""
    grammar = texts.grammar.replace("You arrive at {r.name}.", "You arrive at {lend.name}.")
    grammar = grammar.replace("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}.")
    grammar = grammar.replace('"move {o} to {r}"', '"put {o} in/on {r}"')
    grammar = re.sub(r"action help \{.*?\n\}", "", grammar, flags=re.DOTALL)
    return OfficialTexts(re.sub(r"\(:action help\n.*?\n\)\n", "", texts.domain, flags=re.DOTALL), grammar)


def games(world: HouseholdWorld, count: int) -> list[Task]:
    """So many new tasks of each family, in rooms of all sizes."""
    found = []
    for family in FAMILIES:
        goals = [goal for goal in list_possible_goals() if goal.family == family]
        for i in range(count):
            seed = PARITY_SEED + i
            rng = Random(sample_seed("parity", world.name, family, i))
            goal, size = goals[int(rng.random() * len(goals))], SIZES[i % len(SIZES)]
            spec = {"dialect": world.dialect.name, "goal": list(goal), "seed": seed, "size": size}
            found.append(Task(world.name, world.version, spec, " ".join(goal)))
    return found


def compare(found: Parity, ours: dict[str, Any], theirs: dict[str, Any], where: dict[str, Any]) -> None:
    """Count a state, and list what differs in it."""
    found.states += 1
    differs = {name: [ours[name], theirs[name]] for name in ours if ours[name] != theirs[name]}
    if differs:
        found.mismatches += 1
        if len(found.differences) < 20:
            found.differences.append({**where, **differs})


def walk(found: Parity, engine: Official, env: Env, *, task: Task, file: Path, actions: Sequence[str] | None) -> None:
    """One walk through a game in both engines: the given actions, or random ones with impossible ones among them."""
    theirs = engine.ask(load=str(file)) if actions is None else engine.ask(reset=True)
    (found.official_loads if actions is None else found.official_resets).append(theirs["cpu_s"])
    text, info = env.reset()
    where = {"goal": task.kind, "seed": task.spec["seed"], "dialect": task.spec["dialect"], "walk": []}
    ours = {"text": f"{WELCOME}{text}", "admissible": list(info["admissible"]), "won": info["won"]}
    compare(found, ours, theirs, where)
    rng = Random(sample_seed("walk", task.id))
    for place in range(RANDOM_STEPS if actions is None else len(actions)):
        action = _draw(rng, ours["admissible"]) if actions is None else actions[place]
        theirs = engine.ask(step=action)
        found.official_steps.append(theirs["cpu_s"])
        text, _, terminated, _, info = env.step(action)
        ours = {"text": text, "admissible": list(info["admissible"]), "won": info["won"]}
        where = {**where, "walk": [*where["walk"], action]}
        compare(found, ours, theirs, where)
        if terminated or theirs["won"]:
            break


def _draw(rng: Random, admissible: Sequence[str]) -> str:
    """Any possible action, an impossible one, or one that handles something; evenly drawn ones mostly go about."""
    kind = rng.random()
    if kind < 0.1:
        return WORDS[int(rng.random() * len(WORDS))]
    handling = [action for action in admissible if not action.startswith(("go to", "examine", "look", "help", "inv"))]
    choices = handling if kind < 0.6 and handling else admissible
    return choices[int(rng.random() * len(choices))]


def parity(python: str, texts: OfficialTexts, *, count: int) -> Parity:
    """Play new games of all families, sizes and dialects in both engines."""
    found = Parity()
    for dialect, own in (("0.4", texts), ("0.3", older(texts))):
        world = HouseholdWorld(dialect)
        with official(python) as engine, tempfile.TemporaryDirectory() as folder:
            for place, task in enumerate(games(world, count)):
                file = world.write_game(task, Path(folder) / f"game{place}", texts=own)
                walk(found, engine, world.make(task), task=task, file=file, actions=None)
                walk(found, engine, world.make(task), task=task, file=file, actions=world.expert(task) or ())
                found.games += 1
                found.families.add(task.kind.split()[0])
            read = HouseholdWorld(dialect, games=folder)
            tasks = [task for split in ("train", "dev", "test") for task in read.tasks(split, "seen")]
            found.mismatches += len(read.broken_files) + abs(len(tasks) - len(games(world, count)))
    return found


def speed(*, quick: bool) -> dict[str, float]:
    """Steps per CPU-second of expert episodes, again and again and on a first visit; what a reset costs."""
    world = HouseholdWorld()
    tasks = [task for tier in ("seen", "evo") for task in world.tasks("train", tier)[:200]]
    plans = [(task, world.expert(task) or ()) for task in tasks]
    steps_per_cpu_s(world, plans, 1)
    rounds = [steps_per_cpu_s(world, plans, 10_000 if quick else 100_000) for _ in range(3 if quick else 7)]
    fresh = HouseholdWorld()
    return {
        "steps_per_cpu_s": statistics.median(rounds),
        "first_visit_steps_per_cpu_s": first_visit(HouseholdWorld(), plans),
        "first_reset_cpu_ms": _reset_cpu_ms(fresh, tasks),
        "reset_cpu_ms": _reset_cpu_ms(fresh, tasks),
    }


def _reset_cpu_ms(world: HouseholdWorld, tasks: Sequence[Task]) -> float:
    """CPU-milliseconds to make and reset an environment."""
    start = time.process_time()
    for task in tasks:
        world.make(task).reset()
    return 1000 * (time.process_time() - start) / len(tasks)


def _texts(python: str | None) -> OfficialTexts | None:
    """The official texts, from where the given interpreter has alfworld; None where there is none."""
    if python is None:
        return read_official_texts() if find_spec("alfworld") else None
    code = "import importlib.util as u; print(u.find_spec('alfworld').origin)"
    origin = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return read_official_texts(Path(origin).parent / "data")


def report(found: Parity | None, figures: dict[str, float], *, quick: bool) -> dict[str, Any]:
    """The figures as one JSON object."""
    result: dict[str, Any] = {**{name: round(value, 3) for name, value in figures.items()}}
    names = ("parity_states", "parity_games", "parity_mismatches", "parity_families", "differences")
    result |= dict.fromkeys(names)
    result["official"] = None
    if found is not None:
        result |= {
            "parity_states": found.states,
            "parity_games": found.games,
            "parity_mismatches": found.mismatches,
            "parity_families": len(found.families),
            "differences": found.differences,
        }
        step, load, reset = map(statistics.mean, (found.official_steps, found.official_loads, found.official_resets))
        result["official"] = {
            "steps_per_cpu_s": round(1 / step, 2),
            "first_reset_cpu_ms": round(1000 * load, 1),
            "reset_cpu_ms": round(1000 * reset, 1),
            "x_steps": round(figures["steps_per_cpu_s"] * step),
            "x_first_reset": round(1000 * load / figures["first_reset_cpu_ms"]),
            "x_reset": round(1000 * reset / figures["reset_cpu_ms"]),
        }
    return {
        **result,
        "goals": GOALS,
        "quick": quick,
        "parity_seed": PARITY_SEED,
        **versions("python"),
        "seed": PARITY_SEED,
        **about("evolvent", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("household", __doc__, quick="fewer games and steps", save=RESULT)
    parser.add_argument("--official", metavar="PYTHON", help="an interpreter that has alfworld")
    options = parser.parse_args(arguments)
    figures = speed(quick=options.quick)
    texts = _texts(options.official)
    found = None
    if texts is None:
        print("alfworld is not installed here: speed alone is measured (--official PYTHON names another interpreter)")
    else:
        found = parity(options.official or sys.executable, texts, count=1 if options.quick else 4)
    result = report(found, figures, quick=options.quick)
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
