"""Breaks ranks that a test starts: called in every rank before its command runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evolvent.cli.train import rl_backends
from evolvent.engine.endpoint import Endpoint
from evolvent.rl.trainer import PolicyTrainer
from evolvent.scale.endpoint_ranks import EndpointRanksBackend
from evolvent.scale.ray_players import PlayerPool
from evolvent.scale.ray_wire import PolicyFiles
from evolvent.scale.ray_work import ClusterJob, WorkQueue
from evolvent.trajectory import Trajectory


def halts(rank: int) -> None:
    """Make the rank that `HALTED_RANK` names wait in the second update, and say so in a file, until it is killed."""
    update = PolicyTrainer.update

    def halting(self: PolicyTrainer, *seen: Any, **more: Any) -> None:
        if self.iteration == 2 and rank == int(os.environ["HALTED_RANK"]):
            Path("halted").write_text("here\n", encoding="utf-8")
            time.sleep(300)
        update(self, *seen, **more)

    PolicyTrainer.update = halting  # type: ignore[method-assign]


def loses_a_player(rank: int) -> None:
    """Kill a player of the last rank while it plays the second iteration, and say so in a file."""
    assign = PlayerPool._assign_items

    def assign_and_kill(self: PlayerPool, queue: WorkQueue, job: ClusterJob, files: Mapping[str, PolicyFiles]) -> None:
        assign(self, queue, job, files)
        busy = [player.pid for player in self._hands if player.open_items]
        if rank == 1 and busy and job.head["name"].endswith("/2") and not Path("lost").exists():
            Path("lost").write_text(f"{busy[0]}\n", encoding="utf-8")
            os.kill(busy[0], signal.SIGKILL)

    PlayerPool._assign_items = assign_and_kill  # type: ignore[method-assign]


def halts_beside_players(rank: int) -> None:
    """Make a rank halt as `halts` does; each rank names its players in a file."""
    halts(rank)
    start_all = PlayerPool.start_all

    def start_and_tell(self: PlayerPool) -> None:
        start_all(self)
        Path(f"players-{rank}").write_text(" ".join(map(str, self.pids())), encoding="utf-8")

    PlayerPool.start_all = start_and_tell  # type: ignore[method-assign]


def loses_a_server(rank: int) -> None:
    """Kill the server of the last rank in the middle of its second iteration, and give up requests after 2 s."""
    make_endpoint, check_version = rl_backends._make_endpoint, EndpointRanksBackend._check_version

    def make_impatient(*settings: Any, **more: Any) -> Endpoint:
        endpoint = make_endpoint(*settings, **more)
        endpoint.timeout_s = 2.0
        return endpoint

    def check_and_kill(self: EndpointRanksBackend, episode: Trajectory, version: int) -> Trajectory:
        if rank == 1 and "/2/" in episode.id and not Path("lost").exists():
            Path("lost").write_text(episode.id, encoding="utf-8")
            os.kill(int(os.environ["SERVER_PID"]), signal.SIGKILL)
        return check_version(self, episode, version)

    rl_backends._make_endpoint = make_impatient
    EndpointRanksBackend._check_version = check_and_kill  # type: ignore[method-assign]
