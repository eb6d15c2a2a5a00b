"""Players in processes of this machine: what they play is what is played here, whichever of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

import evolvent as ev
from evolvent.agents.language import LanguageAgent
from evolvent.engine.fitting import engine_for
from evolvent.errors import ConfigError, EndpointError, EngineError, VersionMismatch
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.rl.trainer import RLConfig
from evolvent.rollout.episode import collect
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.scale.player_processes import open_processes
from evolvent.scale.ray_backend import RayBackend, collect_on_cluster
from evolvent.scale.ray_cluster import Placement, parse_cluster
from evolvent.scale.ray_players import PlayerPool, WorldFactory, open_players
from evolvent.scale.ray_versions import read_versions
from evolvent.scale.ray_wire import build_message
from evolvent.store.lock import WriterLock
from evolvent.trajectory import Start
from tests.learn.byte_policy import byte_policy
from tests.scale.ray_worlds import made

HERE = parse_cluster("here?players=2")


@pytest.fixture(scope="module")
def players():
    with open_players(HERE, WorldFactory("tests.scale.ray_worlds:made"), made()) as pool:
        yield pool


@pytest.fixture(scope="module")
def policy():
    return byte_policy(context=256, seed=3)


def make_backend(kind=LocalBackend, **more):
    train = ev.TrainConfig(lr=2e-3, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=2048)
    return kind(made(), train, EvaluationPanel(limit=2), slots=4, max_tokens=4, **more)


def practise(folder, backend, policy, *, lag, iterations=3):
    """Practises with players that are `lag` versions behind; returns the policy and what the run logged."""
    practice = RLConfig(
        iterations=iterations,
        tasks_per_iteration=2,
        group_size=3,
        temperature=1.3,
        save_every=1,
        prefetch_rollouts=lag > 0,
        max_policy_lag=lag,
    )
    with ev.Run(folder, backend, seed=5, settings=backend.settings()) as run:
        config = GRPOConfig(practice=practice)
        best = grpo(policy, made()["pausing"].tasks("train", "seen"), config=config, run=run)
        return best, [row for row in run.metrics("practise") if "lag" in row]


def read_episodes(folder):
    """Returns the episodes of a run's store by id, as stored; fails where one is there twice."""
    rows = [
        json.loads(line)
        for path in sorted((folder / "trajectories" / "log").iterdir())
        for line in path.read_bytes().splitlines()
    ]
    episodes = [row for row in rows if row["kind"] == "trajectory"]
    assert max(Counter(row["traj"] for row in episodes).values()) == 1
    return {row["traj"]: {**row, "crc": 0, "run": ""} for row in episodes}


def assert_same_weights(policy, other):
    for own, others in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(own, others)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_practice_with_players_is_the_practice_of_one_process(tmp_path, players, policy, lag):
    here, rows = practise(tmp_path / "here", make_backend(), policy, lag=lag)
    there, rows_there = practise(tmp_path / "there", make_backend(RayBackend, players=players), policy, lag=lag)
    assert read_episodes(tmp_path / "there") == read_episodes(tmp_path / "here"), "log-probabilities included"
    assert_same_weights(there, here)
    assert [row["lag_max"] for row in rows_there] == [row["lag_max"] for row in rows] == [0, lag, lag]
    assert [row["mismatch"] for row in rows_there] == [row["mismatch"] for row in rows]
    assert len(set(players.pids())) == 2 and os.getpid() not in players.pids()


def test_a_killed_player_costs_no_episode(tmp_path, players, policy, monkeypatch):
    """It is killed while it plays ahead: its episodes are played again, and the practice is that of one process."""
    here, _ = practise(tmp_path / "here", make_backend(), policy, lag=1)
    assign, victims, before = players._assign_items, [], Counter(players.counts)

    def assign_and_kill(queue, job, files):
        assign(queue, job, files)
        busy = [player.pid for player in players._hands if player.open_items]
        if busy and not victims and job.head["name"].endswith("/2"):
            victims.append(busy[0])
            os.kill(busy[0], signal.SIGKILL)

    monkeypatch.setattr(players, "_assign_items", assign_and_kill)
    there, _ = practise(tmp_path / "there", make_backend(RayBackend, players=players), policy, lag=1)
    counts = players.counts - before
    assert counts["lost"] == len(victims) == 1 and counts["again"] > 0 and counts["given up"] == 0
    assert read_episodes(tmp_path / "there") == read_episodes(tmp_path / "here")
    assert_same_weights(there, here)


@contextmanager
def open_pool(factory_path="tests.scale.ray_worlds:made", *arguments, silent_s):
    """Yields a player that is lost after `silent_s` seconds without a heartbeat."""
    versions = {name: world.version for name, world in made().items()}
    setup = {"worlds": [factory_path, arguments], "versions": read_versions(), "made": versions, "threads": 1}
    with open_processes(silent_s=silent_s) as host:
        pool = PlayerPool(host, build_message(setup), Placement(), num_players=1)
        pool.start_all()
        yield pool


def test_a_stopped_player_is_replaced_and_costs_no_episode(policy, monkeypatch):
    """It is alive and says nothing: SIGSTOP stops its heartbeat with the rest."""
    starts = [Start(task) for task in made()["pausing"].tasks("train", "seen")[:4]]
    agent = LanguageAgent(policy, max_tokens=2)
    expected_episodes = {episode.id: episode for episode in collect(made(), starts, agent, engine=engine_for(policy))}
    with open_pool(silent_s=8.0) as pool:
        assign, stopped = pool._assign_items, []

        def assign_and_stop(queue, job, files):
            assign(queue, job, files)
            if not stopped:
                stopped.append(pool.pids()[0])
                os.kill(stopped[0], signal.SIGSTOP)

        monkeypatch.setattr(pool, "_assign_items", assign_and_stop)
        episodes = {episode.id: episode for episode in collect_on_cluster(pool, starts, agent)}
        assert pool.counts["lost"] >= 1 and pool.counts["given up"] == 0 and pool.pids() != stopped
    assert episodes == expected_episodes


@pytest.mark.long
def test_a_player_that_works_for_longer_than_it_may_be_silent_is_kept():
    with open_pool("tests.scale.ray_worlds:made_slowly", 8, silent_s=5.0) as pool:
        assert pool.counts["hired"] == 1 and pool.counts["lost"] == 0


def test_weights_travel_once_a_version_and_of_an_adapter_alone_what_it_changes(players):
    starts = [Start(task) for task in made()["pausing"].tasks("train", "seen")[:2]]
    base = byte_policy(context=256, seed=9)
    tuned = adapt(base, AdapterConfig(kind="lora", rank=2), seed=0)
    stored_bytes, packed_bytes = [], []
    for is_changed in (False, False, True):
        if is_changed:
            tuned = tuned.next_version()
            with torch.no_grad():
                for weight in tuned.model.parameters():
                    weight.add_(0.1 if weight.requires_grad else 0)
        before, packed_before = players.counts["weight_bytes"], players.counts["packed_bytes"]
        list(collect_on_cluster(players, starts, LanguageAgent(tuned, max_tokens=2)))
        stored_bytes.append(players.counts["weight_bytes"] - before)
        packed_bytes.append(players.counts["packed_bytes"] - packed_before)
    first, again, changed = stored_bytes
    base_bytes = sum(weight.nbytes for weight in base.model.parameters())
    assert first > base_bytes and again == 0
    assert 0 < changed < base_bytes / 4
    num_files = packed_bytes[2] - changed  # the tokenizer is written again, and is not stored again
    assert packed_bytes[0] > base_bytes and packed_bytes[1] == 0 and num_files < packed_bytes[0] - base_bytes


@pytest.mark.parametrize("address", ["here?players=0", "here?players=2&cpus=1", "here?cpus=1"])
def test_processes_take_a_number_alone(address):
    with pytest.raises(ConfigError, match=r"here|players"):
        parse_cluster(address)


def test_worlds_that_a_process_cannot_make_are_refused_before_anything_is_played():
    factory = WorldFactory("tests.scale.nowhere:made")
    with pytest.raises(EngineError, match="nowhere"), open_players(parse_cluster("here?players=1"), factory, made()):
        raise AssertionError("the block must not begin")


def test_a_player_that_fails_says_why():
    """Not that it is gone, and in every later answer what failed first."""
    with open_processes() as host:
        player = host.start(b"no setup")
        call = host.call(player, "hello")
        with pytest.raises(EngineError, match=r"a player failed.*start failed.*JSONDecodeError"):
            host.take_answer(call)


def test_worlds_of_another_version_are_refused_and_more_players_than_cores_are_told(monkeypatch, caplog):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    worlds = made()
    worlds["pausing"].version = "another"
    factory = WorldFactory("tests.scale.ray_worlds:made")
    with pytest.raises(VersionMismatch, match="pausing"), open_players(HERE, factory, worlds):
        raise AssertionError("the block must not begin")
    assert "got 2 players for cpu_count 1" in caplog.text


class SilentHost:
    """Players that never answer, as where a world waits while it is created."""

    def start(self, setup):
        return object()

    def call(self, player, name):
        return object()

    def wait(self, calls, *, timeout_s):
        return []


def test_players_that_do_not_start_are_not_waited_for_without_end():
    pool = PlayerPool(SilentHost(), b"", Placement(lost_s=0.2), num_players=1)
    with pytest.raises(EndpointError, match=r"a player did not start: got no answer for 0\.2 s"):
        pool.start_all()


_CALLER = """
import time
import numpy as np
from evolvent.scale.player_processes import open_processes
with open_processes() as host:
    player, content = host.start(b"no setup"), host.store(np.ones(10, np.uint8))
    print(player._process._process.pid, content.path, flush=True)
    time.sleep(600)
"""


def test_weights_of_callers_that_were_killed_are_deleted_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr("evolvent.scale.player_processes.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {name: tmp_path / f"evolvent-players-{name}" for name in ("killed", "alive", "new", "unlocked")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "0").write_bytes(b"weights")
        if name != "unlocked":
            WriterLock(folder / "caller.lock").release()
        if name != "new":
            os.utime(folder, (0, 0))
    (tmp_path / "evolvent-players-link").symlink_to(folders["unlocked"], target_is_directory=True)
    lock = WriterLock(folders["alive"] / "caller.lock")
    os.utime(folders["alive"], (0, 0))
    try:
        with open_processes():
            kept = {path.name.removeprefix("evolvent-players-") for path in tmp_path.iterdir()}
    finally:
        lock.release()
    assert {"alive", "new", "unlocked", "link"} < kept and "killed" not in kept and len(kept) == 5
    assert len(list(tmp_path.iterdir())) == 4, "its own folder is deleted in order"


def test_a_player_ends_with_its_caller_and_deletes_the_weights_of_a_killed_one():
    with subprocess.Popen([sys.executable, "-c", _CALLER], stdout=subprocess.PIPE, text=True) as caller:
        pid, _, path = caller.stdout.readline().strip().partition(" ")
        player, content = psutil.Process(int(pid)), Path(path)
        assert content.is_file()
        caller.kill()
    end = time.monotonic() + 60
    while player.is_running() and player.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.1)
    assert not player.is_running() or player.status() == psutil.STATUS_ZOMBIE
    assert not content.parent.exists()
