"""Ray's simulation of a cluster on this machine: nodes that can be killed, and which processes are theirs."""

from __future__ import annotations

import os
from contextlib import contextmanager

import psutil
import pytest


@contextmanager
def simulated(nodes):
    """A cluster of a head without room for a player and so many nodes for one each; yields (cluster, its nodes).

    A node offers the resource `place` once. Nothing listens beyond this machine, and nothing is sent anywhere.
    """
    pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: on a busy machine nothing would ever begin
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    from ray.cluster_utils import Cluster

    few = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **few})
    try:
        yield cluster, [cluster.add_node(num_cpus=1, resources={"place": 1}, **few) for _ in range(nodes)]
    finally:
        cluster.shutdown()


def killed(pid):
    """Kill a process outright, and wait until it is gone."""
    process = psutil.Process(pid)
    process.kill()
    process.wait(30)


def node_of(pid, nodes):
    """The node whose process started this one."""
    above = {process.pid for process in psutil.Process(pid).parents()}
    found = [
        node for node in nodes if above & {info.process.pid for every in node.all_processes.values() for info in every}
    ]
    assert len(found) == 1
    return found[0]
