"""Fault 16: a Ray actor is killed in the middle of an episode, an episode kills every actor, the cluster is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

import psutil

import evolvent as ev
from evolvent.agents.language import LanguageAgent
from evolvent.engine.fitting import engine_for
from evolvent.rollout.episode import collect
from evolvent.scale.local_backend import LocalBackend
from evolvent.scale.ray_backend import collect_on_cluster
from evolvent.scale.ray_cluster import Cluster, Placement, connect
from evolvent.scale.ray_players import WorldFactory, open_players
from evolvent.store.store import Store
from evolvent.trajectory import Start
from tests.learn.byte_policy import byte_policy
from tests.scale.ray_worlds import made

ROOT = Path(__file__).parents[2]
OWN = Cluster(None, Placement(players=2, lost_s=300))


@pytest.fixture(scope="module")
def policy():
    return byte_policy(context=256, seed=3)


@pytest.fixture(scope="module")
def cluster():
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: on a busy machine nothing would ever begin
    with connect(OWN) as ray:
        yield ray


def starts(count):
    return [Start(task) for task in made()["pausing"].tasks("train", "seen")[:count]]


def here(policy, wanted):
    agent = LanguageAgent(policy, max_tokens=3)
    return list(collect(made(), wanted, agent, engine=engine_for(policy, slots=8), seed=9, slots=8))


def by_id(played):
    found = {one.id: one for one in played}
    assert len(found) == len(played), "doubled"
    return found


def test_a_killed_actor_is_replaced_and_each_episode_counts_once(cluster, policy):
    wanted, played = starts(60), []
    with open_players(OWN, WorldFactory("tests.scale.ray_worlds:made"), made()) as crew:
        for one in collect_on_cluster(crew, wanted, LanguageAgent(policy, max_tokens=3), seed=9, slots=4):
            played.append(one)
            if len(played) == 5:
                struck = crew.pids()[0]
                psutil.Process(struck).kill()
        counts = dict(crew.counts)
    assert by_id(played) == by_id(here(policy, wanted)), "what was lost was played again by task and seed"
    assert counts["lost"] == 1 and counts["again"] > 0 and counts.get("twice", 0) == counts.get("given up", 0) == 0
    assert struck not in crew.pids()


def test_an_episode_that_kills_whoever_plays_it_is_given_up_unscored(cluster, policy):
    wanted = starts(3)
    deadly = wanted[1].task
    making, alone = (
        WorldFactory("tests.scale.ray_worlds:made", (deadly.spec["n"],)),
        Cluster(None, Placement(players=1)),
    )
    with open_players(alone, making, made()) as crew:
        played = list(collect_on_cluster(crew, wanted, LanguageAgent(policy, max_tokens=3), seed=9, slots=1))
        counts = crew.counts
    found, expected = by_id(played), by_id(here(policy, wanted))
    lost = found.pop(f"{deadly.id}/0")
    del expected[lost.id]
    assert found == expected
    assert (lost.ended_by, lost.success, lost.score.raw, lost.steps) == ("error", None, None, ())
    assert lost.error is not None and lost.error.kind == "EnvLost" and lost.error.retryable
    assert counts["lost"] == 3 and counts["given up"] == 1


def test_a_cluster_that_is_gone_ends_the_run_by_its_deadline_and_the_run_goes_on_here(policy, tmp_path):
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("gone_cluster.py"), folder],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
        timeout=280,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "no player is alive: got for 4 s" in done.stdout
    kept = list(Store.open(folder / "trajectories").ids())
    assert 5 <= len(kept) == len(set(kept)) < 200
    using = LocalBackend(made(), slots=8, max_tokens=2)
    wanted = [Start(task, n) for task in made()["pausing"].tasks("train", "seen")[:50] for n in range(4)]
    with ev.Run(folder, using, seed=6, settings=using.settings()) as run:
        played = run.collect(policy, wanted)
    with ev.Run(tmp_path / "whole", using, seed=6, settings=using.settings()) as run:
        assert played == run.collect(policy, wanted)
    assert len(list(Store.open(folder / "trajectories").ids())) == 200
