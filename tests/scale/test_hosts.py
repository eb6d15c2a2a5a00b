"""One training over two hosts by torchrun: what one host would have learned, whatever happens to one of the two."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evolvent.cli.main import main
from evolvent.models.policy import load_policy
from tests.faults import sums
from tests.faults.launched import Launched
from tests.scale.two_hosts import Host, Started, network

ELASTIC = Path(__file__).parents[2] / "examples" / "cluster" / "elastic.sh"
CABLE = {"GLOO_SOCKET_IFNAME": "eth0"}
MEET = ("--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", "one:29500")
QUICK = ("--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return sums.write(tmp_path_factory.mktemp("hosts"))


def words(data: Path, updates: int, *more: object) -> list[object]:
    return [
        data / "messages.jsonl",
        "--policy",
        data / "policy",
        "--keep.every",
        5,
        "--train.batch_tokens",
        128,
        "--train.max_steps",
        updates,
        "--train.lr",
        3e-4,
        "--parallel.timeout",
        10,
        *more,
    ]


def torchrun(*how: object) -> list[object]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 1, *how]


def started(host: Host, *how: object, cwd: Path, **env: str) -> Started:
    return host.start(torchrun(*how), cwd=cwd, env=CABLE | env)


def until(done: Callable[[], bool], *running: Started) -> None:
    """Wait for something while all these run."""
    end = time.monotonic() + 200
    while not done():
        assert all(one.alive() for one in running), [one.err.read_text() for one in running]
        assert time.monotonic() < end
        time.sleep(0.05)


def taken(run: Path) -> int:
    """How many updates the log of a run has."""
    return len(sums.logged(run)) if (run / "metrics.jsonl").exists() else 0


def differ(run: Path, whole: Path) -> float:
    """The largest difference between the losses or the weights of two runs."""
    one, other = (load_policy(folder / "model").model.state_dict() for folder in (run, whole))
    assert one.keys() == other.keys()
    return max(sums.apart(run, whole), *(float((one[name] - other[name]).abs().max()) for name in one))


@pytest.mark.long
def test_two_hosts_learn_what_two_ranks_of_one_learn(data, tmp_path):
    asked = ["train", "sft", *words(data, 20, "--to", "run", "--parallel.shard", 2)]
    (tmp_path / "here").mkdir()
    with network() as hosts, Launched(2, asked, cwd=tmp_path / "here") as ranks:
        both = [started(host, "--nnodes", 2, *MEET, "-m", "evolvent", *asked, cwd=tmp_path) for host in hosts]
        assert [one.wait() for one in both] == [0, 0], [one.err.read_text() for one in both]
        assert ranks.wait() == [0, 0], ranks.said()
    said = [one.out.read_text() for one in both]
    assert "model run/model" in said[0] and said[1] == "", "one rank speaks, on its host"
    assert differ(tmp_path / "run", tmp_path / "here" / "run") == 0.0, "bit for bit"


@pytest.mark.long
@pytest.mark.parametrize("interface", ["eth0", "lo"])
def test_the_static_way_and_a_network_that_leads_nowhere(data, tmp_path, interface):
    """Every host is told its number and the address of the first; ranks that cannot reach each other say what to do."""
    asked = words(data, 6, "--to", "run", "--parallel.shard", 2)
    with network() as hosts:
        where = ("--nnodes", 2, "--master-addr", hosts[0].address, "--master-port", 29500)
        both = [
            started(
                host,
                *where,
                "--node-rank",
                rank,
                "-m",
                "evolvent",
                "train",
                "sft",
                *asked,
                cwd=tmp_path,
                GLOO_SOCKET_IFNAME=interface,
            )
            for rank, host in enumerate(hosts)
        ]
        codes = [one.wait() for one in both]
    told = [line for one in both for line in one.err.read_text().splitlines() if line.startswith("error: ")]
    if interface == "eth0":
        assert codes == [0, 0] and not told and (tmp_path / "run" / "model").is_dir()
    else:
        assert codes == [1, 1] and 1 <= len(told) <= 2, told  # a host says it, or both do at the same moment
        for line in told:
            assert "the ranks cannot reach each other: got" in line and "GLOO_SOCKET_IFNAME=eth0" in line


@pytest.mark.long
def test_a_lost_host_is_done_without_until_it_is_back(data, tmp_path):
    """The training goes on from its last checkpoint: on one host, then on both again; its losses stay what they are."""
    run, slow = tmp_path / "run", tmp_path / "slow"
    assert main([str(word) for word in ["train", "sft", *words(data, 150, "--to", tmp_path / "whole")]]) == 0
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.scale.slowed "$@"\n')
    shim.chmod(0o755)
    how = ("--no-python", "--nnodes", "1:2", "--max-restarts", 3, *MEET, *QUICK, ELASTIC, run, "sft", *words(data, 150))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def begun() -> int:
        return one.out.read_text().count("goes on after update ")

    with network() as (first, second):
        one = started(first, *how, cwd=tmp_path, **env)
        two = started(second, *how, cwd=tmp_path, **env)
        until(lambda: taken(run) > 12, one, two)
        slow.touch()
        second.lose()
        until(lambda: begun() == 1, one)
        two = started(second, *how, cwd=tmp_path, **env)
        second.back()
        until(lambda: begun() == 2, one, two)
        slow.unlink()
        assert [one.wait(), two.wait()] == [0, 0], one.err.read_text() + two.err.read_text()
    told = [line for line in one.out.read_text().splitlines() if line.startswith("goes on")]
    lost, joined = (int(line.rpartition(" ")[2]) for line in told)
    assert lost % 5 == 0 and joined > lost, (
        "from the checkpoint before; from one that was saved when it was asked to end"
    )
    assert sums.apart(run, tmp_path / "whole") < 2e-6
    assert differ(run, tmp_path / "whole") < 1e-4, "AdamW makes rounding larger where gradients are small"
