"""Ray Train as a launcher: what torchrun's two ranks learn is learned, whatever is killed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")

from evolvent.errors import RankFailed
from evolvent.models.policy import load_policy
from evolvent.scale.ray_cluster import Cluster, Placement, connect
from evolvent.scale.ray_train import train_on_cluster
from tests.faults import sums
from tests.faults.launched import Launched
from tests.scale.ray_nodes import killed, node_of, simulated

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own
PLACING = Placement(players=2, resources={"place": 1})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return sums.write(tmp_path_factory.mktemp("sums"))


def words(data, updates=60):
    told = [
        "sft",
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
        20,
    ]
    return [str(word) for word in told]


@pytest.fixture(scope="module")
def whole(data):
    """The same training by two ranks as torchrun starts them."""
    with Launched(2, ["train", *words(data), "--to", "whole", "--parallel.shard", 2], cwd=data) as ranks:
        assert ranks.wait() == [0, 0], ranks.said()
    return data / "whole"


@pytest.fixture(scope="module")
def cluster():
    with simulated(2) as (found, nodes):
        with connect(Cluster(found.address)):
            yield found, nodes


def differ(run, whole):
    one, other = (load_policy(folder / "model").model.state_dict() for folder in (run, whole))
    return max(sums.apart(run, whole), *(float((one[name] - other[name]).abs().max()) for name in one))


def rank_of(run, number):
    """The process of a rank that trains in a folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if str(run) in line and "-c" in line and process.environ().get("RANK") == str(number):
                return process.pid
    raise AssertionError("no such rank")


def then(run: Path, do) -> threading.Thread:
    """Do something when a run has taken twelve updates, once."""

    def wait():
        log, end = run / "metrics.jsonl", time.monotonic() + 900
        while (not log.exists() or len(sums.logged(run)) < 12) and time.monotonic() < end:
            time.sleep(0.02)
        do()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_killed_rank_is_begun_again_and_all_learn_what_torchrun_does(cluster, data, whole, tmp_path, capfd):
    run = tmp_path / "run"
    hurt = then(run, lambda: killed(rank_of(run, 1)))
    said = train_on_cluster(words(data), folder=run, placement=PLACING)
    hurt.join()
    assert "goes on after update 1" in said and said.splitlines()[-2:] == [
        f"model {run}/model",
        f"report {run}/report.html",
    ]
    assert differ(run, whole) == 0.0, "bit for bit"
    assert "nothing is left to do" in train_on_cluster(words(data), folder=run, placement=PLACING), (
        "what is there goes on"
    )


def test_what_a_rank_says_of_its_end_is_told(cluster, data, tmp_path):
    with pytest.raises(RankFailed, match="unknown optimizer 'adamv'"):
        train_on_cluster(
            [*words(data), "--optimizer.name", "adamv"], folder=tmp_path / "run", placement=PLACING, restarts=0
        )
    assert not (tmp_path / "run").exists()


def test_a_killed_node_is_done_without(cluster, data, whole, tmp_path):
    """The last test: a node is gone. Whoever is left goes on from the last checkpoint."""
    import ray

    found, nodes = cluster
    run, own = tmp_path / "run", ray.get_runtime_context().get_node_id()  # Ray ends us with our own node

    def lose():
        there = [node_of(rank_of(run, number), nodes) for number in range(2)]
        found.remove_node(next(node for node in there if node.node_id != own), allow_graceful=False)

    hurt = then(run, lose)
    said = train_on_cluster(words(data), folder=run, placement=PLACING, min_ranks=1)
    hurt.join()
    assert "goes on after update 1" in said and load_policy(run / "model").version == 1
    assert sums.apart(run, whole) < 2e-6 and differ(run, whole) < 1e-4
