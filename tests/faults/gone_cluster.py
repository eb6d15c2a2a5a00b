"""A run on a cluster of its own whose every process is killed after some episodes: `gone_cluster.py FOLDER`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import psutil

import evolvent as ev
from evolvent.agents.plain import Random
from evolvent.errors import EndpointError
from evolvent.scale.ray_backend import RayBackend, collect_on_cluster
from evolvent.scale.ray_cluster import Cluster, Placement
from evolvent.scale.ray_players import WorldFactory, open_players
from evolvent.trajectory import Start
from tests.learn.byte_policy import byte_policy
from tests.scale.ray_worlds import made

EPISODES, BEFORE = 200, 5


def main(folder: Path) -> int:
    os.environ.setdefault("RAY_worker_niceness", "0")
    policy, worlds = byte_policy(context=256, seed=3), made()
    starts = [Start(task, n) for task in worlds["pausing"].tasks("train", "seen")[:50] for n in range(EPISODES // 50)]
    with open_players(Cluster(None, Placement(players=1)), WorldFactory("tests.scale.ray_worlds:made"), worlds) as crew:
        list(collect_on_cluster(crew, starts[:1], Random()))  # it has begun to live
        crew.placing = replace(crew.placing, lost_s=4)
        using = RayBackend(worlds, slots=2, max_tokens=2, players=crew)
        play = using.collect

        def hurt(*given, **named):
            for count, one in enumerate(play(*given, **named), 1):
                yield one
                if count == BEFORE:
                    for process in psutil.Process().children(recursive=True):
                        process.kill()

        using.collect = hurt
        with ev.Run(folder, using, seed=6, settings=using.settings()) as run:
            try:
                run.collect(policy, starts)
            except EndpointError as error:
                sys.stdout.write(f"{error}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
