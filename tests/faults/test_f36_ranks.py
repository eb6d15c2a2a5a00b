"""Fault 36: a rank that raises, is killed or hangs: all end in time, the first failure is told once, nothing is lost.

The ranks are real processes that run `evolvent train`, with the store that torchrun's agent would hold.
"""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from evolvent.cli.main import main
from tests.faults import sums
from tests.faults.launched import Launched

UPDATES = 40
HALF = ("--parallel.shard", 2, "--parallel.timeout", 5)
GRACE_S = 40  # for the timeout of 5 s, 5 s of listening to each other, and a busy machine


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return sums.write(tmp_path_factory.mktemp("ranks"))


def words(data: Path, run: str, *more: object) -> list[object]:
    return [
        "train",
        "sft",
        data / "messages.jsonl",
        "--policy",
        data / "policy",
        "--to",
        run,
        "--keep.every",
        5,
        "--train.batch_tokens",
        128,
        "--train.max_steps",
        UPDATES,
        *more,
    ]


@pytest.fixture(scope="module")
def whole(data):
    """The same training in one process."""
    assert main([str(word) for word in words(data, str(data / "whole"))]) == 0
    return data / "whole"


def state(run: Path) -> str:
    return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["state"])


@pytest.mark.parametrize(("victim", "size"), [(1, 2), (0, 2), (2, 4)])
def test_a_killed_rank_is_named_once_and_the_run_goes_on(data, whole, tmp_path, capsys, victim, size):
    more = (*HALF, "--parallel.replicate", size // 2)
    with Launched(size, words(data, "run", *more, "--train.max_steps", 4000), cwd=tmp_path) as ranks:
        ranks.until(tmp_path / "run" / "metrics.jsonl", 12)
        ranks.signal(signal.SIGKILL, victim)
        codes = ranks.wait(seconds=GRACE_S)
        errors = [line for text in ranks.errors() for line in text.splitlines()]
    assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(size)]
    assert len(errors) == 1, errors
    named = re.match(
        r"error: ranks? (\d(?:, \d)*) died, or w[a-z]+ silent for too long after update \d+: got ", errors[0]
    )
    assert named and str(victim) in named[1].split(", "), errors[0]
    assert "/" not in errors[0].partition("got ")[2].partition(";")[0], "no place in somebody's source"
    assert state(tmp_path / "run") == ("running" if victim == 0 else "failed")


def test_a_rank_that_raises_is_heard_and_the_run_goes_on_elsewhere(data, whole, tmp_path, capsys):
    broken = "tests.faults.broken_ranks:raises"
    with Launched(2, words(data, "run", *HALF), cwd=tmp_path, before=broken) as ranks:
        assert ranks.wait(seconds=GRACE_S) == [1, 1]
        first, second = ranks.errors()
    assert first == "" and second.count("\n") == 1
    assert "KeyError: 'something is wrong with rank 1'" in second
    assert state(tmp_path / "run") == "failed" and sorted(sums.logged(tmp_path / "run")) == [1, 2, 3, 4, 5, 6, 7]
    resumed = ["train", "--resume", str(tmp_path / "run"), "--parallel.shard", "1", "--keep.every", "50"]
    assert main(resumed) == 0 and "goes on after update 5" in capsys.readouterr().out
    assert sums.apart(tmp_path / "run", whole) < 2e-6
    settings = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert "shard = 2" in settings and "every = 5" in settings, "the first settings stay"


def test_a_rank_that_hangs_ends_the_others_in_the_timeout(data, tmp_path):
    with Launched(2, words(data, "run", *HALF, "--train.max_steps", 4000), cwd=tmp_path) as ranks:
        ranks.until(tmp_path / "run" / "metrics.jsonl", 5)
        ranks.signal(signal.SIGSTOP, 1)
        began = time.monotonic()
        assert ranks.wait(0, seconds=GRACE_S) == [1]
        assert time.monotonic() - began > 4
        first, second = ranks.errors()
    assert second == "" and first.count("\n") == 1 and "error: rank 1 died, or was silent for too long" in first


def test_a_mistake_that_all_make_is_told_once(data, tmp_path):
    with Launched(2, words(data, "run", *HALF, "--optimizer.name", "adamv"), cwd=tmp_path) as ranks:
        codes, errors = ranks.wait(), "".join(ranks.errors())
    assert sorted(codes) == [1, 2], "the one that tells it has the code of bad input"
    assert errors.count("\n") == 1 and "unknown optimizer 'adamv'" in errors and not (tmp_path / "run").exists()


def test_what_only_the_first_rank_sees_ends_all(data, tmp_path):
    rows = sums.lines(tmp_path / "odd.jsonl", [{"prompt": "1 plus 1"}])
    told = ["train", "sft", rows, "--policy", data / "policy", "--to", "run", *HALF]
    with Launched(2, told, cwd=tmp_path) as ranks:
        codes, (first, second) = ranks.wait(seconds=GRACE_S), ranks.errors()
    assert codes == [1, 1] and second == "" and not (tmp_path / "run").exists()
    assert "unknown row format" in first and first.count("\n") == 1


@pytest.mark.long
def test_ranks_wait_for_the_one_that_reads_as_long_as_it_lives(data, whole, tmp_path):
    slow, short = "tests.faults.broken_ranks:slow_to_read", ("--parallel.shard", 2, "--parallel.timeout", 1.5)
    with Launched(2, words(data, "run", *short), cwd=tmp_path, before=slow) as ranks:
        assert ranks.wait() == [0, 0], ranks.said()
        assert ranks.said(1) == "", "one rank speaks"
    assert sums.apart(tmp_path / "run", whole) < 2e-6
    with Launched(2, words(data, "other", *short), cwd=tmp_path, before=slow) as ranks:
        ranks.until(tmp_path / ".out-0", 1)  # it reads
        ranks.signal(signal.SIGSTOP, 0)
        assert ranks.wait(1, seconds=GRACE_S) == [1]
        assert "rank 0 died, or was silent" in ranks.said(1)


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_without_an_agent_the_first_rank_holds_the_store(data, tmp_path, victim):
    """As under a launcher that only sets the environment: who is left speaks, and a fault is heard before it goes."""
    with Launched(2, words(data, "run", *HALF, "--train.max_steps", 4000), cwd=tmp_path, agent=False) as ranks:
        ranks.until(tmp_path / "run" / "metrics.jsonl", 5)
        ranks.signal(signal.SIGKILL, victim)
        assert ranks.wait(1 - victim, seconds=GRACE_S) == [1]
        assert f"error: rank {victim} died, or was silent" in ranks.errors()[1 - victim]
    with Launched(2, words(data, "other", *HALF, "--optimizer.name", "adamv"), cwd=tmp_path, agent=False) as ranks:
        assert sorted(map(str, ranks.wait(seconds=GRACE_S))) == ["1", "2"]
        assert "".join(ranks.errors()).count("\n") == 1
