"""Fault 59: every long command is killed by SIGKILL in the midst of its writes and resumed: it ends as if never killed.

The moments are chosen writes, one in the first and one in the second half of what is left, not moments of a clock. The
same for `evolve` is in `test_f59_interrupted.py`, for `train` in `tests/cli/test_cli_train.py`, for `search` in
`tests/cli/test_cli_search.py`, for `data` in `tests/curate/test_data_stages.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import evolvent as ev
from evolvent.cli.names import worlds
from evolvent.store.store import Store
from tests.faults.launched import Launched

RL = ("--worlds", "lookup", "--demonstrations", 12, "--clone_tokens", 500, "--tasks", 6, "--panel.limit", 2,
      "--rl.practice.tasks", 2, "--rl.practice.samples", 2, "--rl.practice.iterations", 3,
      "--rl.practice.save_every", 1)  # fmt: skip
MAT = ("chain", "--mat.rows", 8, "--mat.steps", 4, "--mat.decisions", 128, "--mat.width", 16, "--mat.keep_every", 1,
       "--episodes", 4, "--mat.update.epochs", 1)  # fmt: skip
AGDC = ("--agdc.budget", 128, "--agdc.at_once", 4, "--agdc.n_particles", 20, "--agdc.width", 8, "--agdc.zeta", 4,
        "--episodes", 2, "--particles", 40, "--agdc.algorithm", "ppo", "--control", "false",
        "--planners", '["go_to_mean"]')  # fmt: skip


def episodes(run: Path) -> list[tuple[Any, ...]]:
    found = Store.open(run / "trajectories").trajectories()
    return sorted((one.id, tuple(map(str, one.actions)), one.score.raw, one.success) for one in found)


def lines(path: Path, *dropped: str) -> list[str]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(json.dumps({key: row[key] for key in sorted(row) if key not in dropped}) for row in rows)


def measured(run: Path) -> object:
    return episodes(run), lines(run / "results.jsonl", "computed")


def weights(run: Path) -> list[str]:
    files = sorted((run / "policy").rglob("*.safetensors")) or sorted((run / "model").rglob("*.safetensors"))
    assert files
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def table(run: Path) -> list[dict[str, Any]]:
    rows = json.loads((run / "table.json").read_text(encoding="utf-8"))
    return [{key: value for key, value in row.items() if not key.endswith(("_ms", "_s", "seconds"))} for row in rows]


def panels(run: Path) -> object:
    sheet = json.loads((run / "agent-eval.json").read_text(encoding="utf-8"))
    clocks = ("wall_s", "cpu_s", "seconds")
    return episodes(run), [{k: v for k, v in row.items() if k not in clocks} for row in sheet["panels"]]


def memory(folder: Path) -> list[str]:
    return sorted(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
                  for path in folder.rglob("*") if path.is_file())  # fmt: skip


@dataclass(frozen=True)
class Long:
    """A command, what of it must be equal, and how it goes on: `--resume RUN`, or the same words once more."""

    words: tuple[object, ...]
    outcome: Callable[[Path], object]
    resumes: bool = True
    verb: int = 1  # how many words its verb has


COMMANDS = {
    "collect": Long(("collect", "--worlds", "crafting", "--agent", "random", "--limit", 60, "--samples", 2), episodes),
    "eval": Long(("eval", "--policy", "model", "--worlds", "lookup", "--panel.limit", 6), measured),
    "bench agent-eval": Long(
        ("bench", "agent-eval", "--agent", "random", "--worlds", "lookup,maze", "--limit", 4), panels, verb=2
    ),
    "train rl": Long(
        ("train", "rl", "--method", "grpo", *RL), lambda run: (measured(run), weights(run)), verb=2
    ),
    "train mat": Long(("train", "mat", *MAT), lambda run: (table(run), weights(run)), verb=2),
    "train agdc": Long(("train", "agdc", *AGDC), lambda run: (table(run), weights(run), episodes(run)), verb=2),
    "memory build": Long(
        ("memory", "build", "shown"), memory, resumes=False, verb=2
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a policy and recorded episodes in it."""
    folder = tmp_path_factory.mktemp("resumed")
    made = list(worlds(["lookup"]).values())
    ev.policy_for(made, size="xs").save(folder / "model")
    with Store.open(folder / "shown" / "trajectories", writing=True) as store:
        for shown in ev.demonstrations(made, made[0].tasks("train", "seen")[:40]):
            store.append(shown)
    return folder


def ended(place: Path, words: tuple[object, ...], *, killed_at: int = 0) -> int:
    """Run a command, or kill it at one of its writes; how many there were."""
    counted = place / "counted"
    counted.write_text("0", encoding="ascii")
    env = {"COUNTED": str(counted), "KILLED_AT": str(killed_at)}
    with Launched(1, words, cwd=place, before="tests.faults.killed:at_write", env=env) as launched:
        assert launched.wait() == [-9 if killed_at else 0], launched.said()
    return int(counted.read_text(encoding="ascii"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.long) if one in ("train rl", "train agdc") else one for one in COMMANDS],
)
def test_killed_twice_and_resumed_it_ends_equal(place, name):
    if name == "train agdc":
        pytest.importorskip("stable_baselines3")
    long, slug = COMMANDS[name], name.replace(" ", "-")
    whole, halting = f"{slug}-whole", f"{slug}-halting"
    writes = ended(place, (*long.words, "--to", whole))
    assert writes >= 4, "there is no moment to kill it in"
    words = (*long.words, "--to", halting)
    ended(place, words, killed_at=max(3, writes // 3))
    more = (*long.words[: long.verb], "--resume", halting) if long.resumes else words
    ended(place, more, killed_at=max(2, writes // 4))
    ended(place, more)
    assert long.outcome(place / halting) == long.outcome(place / whole)
