"""Fault 59: every recipe and method of `evolvent train` is killed by SIGKILL twice in its writes, and ends as if never.

The same as in `test_f59_resumed_commands.py`, for what learns from data, from a search, or from what it prepared.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.cli.setup.registry import load_worlds
from evolvent.models.policy import tiny_policy
from evolvent.store.store import Store
from tests.faults import sums
from tests.faults.halted import Long, ends_equal, measured, table, weights

THINGS, PLACES = ("rain", "mail", "song", "train"), ("oslo", "rome", "bern")
FEW = ("--train.max_steps", 6, "--train.warmup_steps", 1, "--train.batch_tokens", 128, "--keep.every", 2)
SUMS = ("--policy", "policy", *FEW)
PREPARED = ("--train.batch_tokens", 256, "--train.epochs", 1, "--train.warmup_steps", 0, "--context", 256)
SEARCH = {"width": 2, "depth": 2, "simulations": 2, "max_tokens": 24, "paths": 1}
SEQUENCE = (
    "pendulum",
    "--episodes",
    6,
    "--horizon",
    15,
    "--evaluation",
    2,
    "--keep_every",
    4,
    "--learn.width",
    16,
    "--learn.layers",
    1,
    "--learn.train.max_steps",
    9,
    "--learn.train.batch",
    8,
    "--learn.rounds",
    2,
    "--learn.updates",
    3,
)
TSLLM = (
    "--worlds",
    "microwave",
    "--demonstrations",
    1,
    "--clone_tokens",
    400,
    "--tasks",
    2,
    "--panel.limit",
    2,
    "--tsllm.rounds",
    1,
    "--tsllm.samples",
    3,
    "--tsllm.trajectories",
    1,
    "--tsllm.judge_tokens",
    60,
    "--tsllm.tokens",
    60,
)
OPENR = (
    "--worlds",
    "arithmetic:2",
    "--demonstrations",
    30,
    "--clone_tokens",
    6000,
    "--tasks",
    6,
    "--panel.limit",
    2,
    "--openr.samples",
    4,
    "--openr.labelling.kind",
    "shepherd",
    "--openr.labelling.count",
    2,
    "--openr.labelling.max_tokens",
    24,
    "--openr.prm_tokens",
    60,
    "--openr.practice.iterations",
    2,
    "--openr.practice.tasks_per_iteration",
    2,
    "--openr.practice.group_size",
    2,
    "--openr.practice.save_every",
    1,
)


def searched(name: str) -> list[object]:
    return [word for key, value in SEARCH.items() for word in (f"--{name}.search.{key}", value)]


def calls(place: str) -> list[dict[str, object]]:
    """Requests of which one of two tools answers each."""
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "the place"}},
        "required": ["place"],
    }
    tools = {
        thing: {"name": f"get_{thing}", "description": f"about the {thing}", "parameters": schema} for thing in THINGS
    }
    return [
        {
            "id": f"{place}/{one}",
            "query": f"the {one} of {place}",
            "tools": json.dumps([tools[one], tools[other]]),
            "answers": json.dumps([{"name": f"get_{one}", "arguments": {"place": place}}]),
        }
        for one, other in pairwise(THINGS)
    ]


CODE: list[dict[str, object]] = [
    {
        "source": f"def {deed}({thing}):\n    # {deed}s the {thing}\n    return {deed}_all({thing})\n",
        "language": "python",
    }
    for deed in ("count", "drop")
    for thing in ("rows", "cells")
]


def learned(run: Path) -> object:
    return weights(run), sums.logged(run)


def prepared(run: Path) -> object:
    """The weights, the tables of what was prepared and what was measured of it."""
    said = {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in run.glob("*.json")
        if path.name != "run.json"
    }
    assert said
    return weights(run), said


def searching(run: Path) -> object:
    return measured(run), weights(run, "model", "judge")


def sequence(run: Path) -> object:
    history = json.loads((run / "history.json").read_text(encoding="utf-8"))
    return weights(run, "policy", "played"), table(run), history


COMMANDS = {
    "train dpo": Long(("train", "dpo", "pairs.jsonl", *SUMS), learned, verb=2),
    "train reward": Long(("train", "reward", "pairs.jsonl", *SUMS), learned, verb=2),
    "train value": Long(("train", "value", "shown", "--worlds", "lookup", "--policy", "model", *FEW), learned, verb=2),
    "train distill": Long(
        ("train", "distill", "messages.jsonl", *SUMS, "--teacher", "teacher", "--top", 4), learned, verb=2
    ),
    "train pretrain": Long(("train", "pretrain", "text.jsonl", *SUMS), learned, verb=2),
    "train hammer": Long(
        (
            "train",
            "hammer",
            "hammer.jsonl",
            "--test",
            "kiev.jsonl",
            *PREPARED,
            "--hammer.copies",
            2,
            "--hammer.tokens",
            150,
            "--max_tokens",
            12,
        ),
        prepared,
        verb=2,
    ),
    "train comments": Long(
        (
            "train",
            "comments",
            "code.jsonl",
            *PREPARED,
            "--comments.rounds",
            2,
            "--comments.pair_tokens",
            60,
            "--comments.tokens",
            60,
            "--max_tokens",
            8,
        ),
        prepared,
        verb=2,
    ),
    "train p3": Long(
        (
            "train",
            "p3",
            "completions.jsonl",
            "--test",
            "messages.jsonl",
            *PREPARED,
            "--p3.rounds",
            2,
            "--p3.count",
            3,
            "--p3.within",
            0.5,
            "--p3.tokens",
            30,
        ),
        prepared,
        verb=2,
    ),
    "train sequence": Long(("train", "sequence", "--method", "odt", *SEQUENCE), sequence, verb=2),
    "train tsllm": Long(("train", "tsllm", *TSLLM, *searched("tsllm")), searching, verb=2),
    "train openr": Long(("train", "openr", *OPENR, *searched("openr")), searching, verb=2),
}
SHORT = ("train sequence",)  # of the default run


def prepare(folder: Path) -> Path:
    """Data of every form, policies, and recorded episodes."""
    sums.write(folder)
    tiny_policy(sums.WORDS, context=32, seed=7).save(folder / "teacher")
    sums.lines(folder / "hammer.jsonl", [row for place in PLACES for row in calls(place)])
    sums.lines(folder / "kiev.jsonl", calls("kiev"))
    sums.lines(folder / "code.jsonl", CODE)
    made = list(load_worlds(["lookup"]).values())
    ev.make_policy(made, size="xs").save(folder / "model")
    with Store.open(folder / "shown" / "trajectories", writing=True) as store:
        for shown in ev.collect_demonstrations(made, made[0].tasks("train", "seen")[:8]):
            store.append(shown)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("resumed"))


@pytest.mark.parametrize(
    "name", [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in COMMANDS]
)
def test_a_training_killed_twice_and_resumed_ends_equal(place, name):
    if name == "train sequence":
        pytest.importorskip("gymnasium")
    ends_equal(place, name, COMMANDS[name])
