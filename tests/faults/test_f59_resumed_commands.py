"""Fault 59: every long command is killed by SIGKILL in the midst of its writes and resumed: it ends as if never killed.

The moments are chosen writes, one in the first and one in the second half of what is left, not moments of a clock. The
recipes and methods of `train` that learn from data or from a search are in `test_f59_resumed_training.py`. The same for
`evolve` is in `test_f59_interrupted.py`, for `train sft` in `tests/cli/test_cli_train.py`, for `search` in
`tests/cli/test_cli_search.py`, for the other stages of `data` in `tests/curate/test_data_stages.py`. `bench compare`,
`leaderboard` and `study` read results and write one page: there is nothing to go on with.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.cli.setup.registry import load_worlds
from evolvent.store.store import Store
from tests.faults import sums
from tests.faults.halted import CLOCKS, Long, ends_equal, episodes, measured, table, weights
from tests.learn.byte_policy import byte_policy
from tests.worlds import bfcl_mini

RL = (
    "--worlds",
    "lookup",
    "--demonstrations",
    12,
    "--clone_tokens",
    500,
    "--tasks",
    6,
    "--panel.limit",
    2,
    "--rl.practice.tasks_per_iteration",
    2,
    "--rl.practice.group_size",
    2,
    "--rl.practice.iterations",
    3,
    "--rl.practice.save_every",
    1,
)
MAT = (
    "chain",
    "--mat.rows",
    8,
    "--mat.steps",
    4,
    "--mat.decisions",
    128,
    "--mat.width",
    16,
    "--mat.keep_every",
    1,
    "--episodes",
    4,
    "--mat.update.ppo_epochs",
    1,
)
AGDC = (
    "--agdc.budget",
    128,
    "--agdc.at_once",
    4,
    "--agdc.n_particles",
    20,
    "--agdc.width",
    8,
    "--agdc.zeta",
    4,
    "--episodes",
    2,
    "--particles",
    40,
    "--agdc.algorithm",
    "ppo",
    "--control",
    "false",
    "--planners",
    '["go_to_mean"]',
)
WRITES = ("--agent", "policy", "--policy", "bytes", "--temperature", 1, "--max_tokens", 6)
PROGRAM = {
    "prompt": 'def half(x):\n    """Half of x, rounded down."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x // 2\n",
    "test": "def check(f):\n    assert f(5) == 2\n",
}
CODE = ("def area(width, height):\n    return width * height\n", "total = 1\ntotal += 1\n", "def broken(:\n    pass\n")


def panels(run: Path) -> object:
    sheet = json.loads((run / "agent-eval.json").read_text(encoding="utf-8"))
    return episodes(run), [{k: v for k, v in row.items() if not k.endswith(CLOCKS)} for row in sheet["panels"]]


def sheet(run: Path) -> object:
    """The one file of a set of problems, and every episode."""
    (path,) = (path for path in run.glob("*.json") if path.name != "run.json")
    row = json.loads(path.read_text(encoding="utf-8"))
    return episodes(run), {key: value for key, value in row.items() if key != "last_session"}


def searches(run: Path) -> object:
    """Table, episodes, what the detector thought after every step, and what is drawn."""
    said = sorted(
        (one.trajectory, one.target.step, one.value) for one in Store.open(run / "trajectories").annotations()
    )
    drawn = {path.name: path.read_bytes() for path in (run / "beliefs").iterdir()}
    assert said and drawn
    return table(run), episodes(run), said, drawn


def memory(folder: Path) -> list[str]:
    return sorted(
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in folder.rglob("*") if path.is_file()
    )


def commented(run: Path) -> list[str]:
    """The rows and their card, which begins with their name."""
    return [
        run.with_name(f"{run.name}{ending}").read_text(encoding="utf-8").replace(run.name, "NAME")
        for ending in (".jsonl", ".card.md")
    ]


COMMANDS = {
    "collect": Long(("collect", "--worlds", "crafting", "--agent", "random", "--limit", 60, "--samples", 2), episodes),
    "eval": Long(("eval", "--policy", "model", "--worlds", "lookup", "--panel.limit", 6), measured),
    "bench agent-eval": Long(
        ("bench", "agent-eval", "--agent", "random", "--worlds", "lookup,maze", "--limit", 4), panels, verb=2
    ),
    "bench bfcl": Long(
        ("bench", "bfcl", "bfcl", "--categories", "simple_python,parallel,irrelevance", *WRITES),
        sheet,
        verb=2,
    ),
    "bench code": Long(("bench", "code", "programs.jsonl", "--samples", 2, "--k", "1,2", *WRITES), sheet, verb=2),
    "bench seek": Long(
        ("bench", "seek", "--planners", '["random", "go_to_mean"]', "--episodes", 3, "--particles", 40),
        searches,
        verb=2,
    ),
    "train rl": Long(("train", "rl", "--method", "grpo", *RL), lambda run: (measured(run), weights(run)), verb=2),
    "train mat": Long(("train", "mat", *MAT), lambda run: (table(run), weights(run), episodes(run)), verb=2),
    "train agdc": Long(("train", "agdc", *AGDC), lambda run: (searches(run), weights(run)), verb=2),
    "memory build": Long(("memory", "build", "shown"), memory, resumes=False, verb=2),
    "data comment": Long(
        ("data", "comment", "code.jsonl", "--policy", "bytes", "--max_tokens", 4, "--shard_rows", 1),
        commented,
        resumes=False,
        to=("--to", "{}.jsonl", "--cache", "{}-cache"),
    ),
}
SHORT = ("collect", "eval", "bench agent-eval", "train mat", "memory build", "data comment")  # of the default run


def prepare(folder: Path) -> Path:
    """A policy, recorded episodes, sets of problems, and code with a policy that can read it."""
    made = list(load_worlds(["lookup"]).values())
    ev.make_policy(made, size="xs").save(folder / "model")
    with Store.open(folder / "shown" / "trajectories", writing=True) as store:
        for shown in ev.collect_demonstrations(made, made[0].tasks("train", "seen")[:40]):
            store.append(shown)
    bfcl_mini.build(folder / "bfcl")
    sums.lines(folder / "programs.jsonl", [{"task_id": f"Made/{k}", **PROGRAM} for k in range(2)])
    sums.lines(folder / "code.jsonl", [{"code": code, "language": "python"} for code in CODE] + [{"text": "no code"}])
    byte_policy(context=4096).save(folder / "bytes")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("resumed"))


@pytest.mark.parametrize(
    "name", [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in COMMANDS]
)
def test_killed_twice_and_resumed_it_ends_equal(place, name):
    if name == "train agdc":
        pytest.importorskip("stable_baselines3")
    ends_equal(place, name, COMMANDS[name])
