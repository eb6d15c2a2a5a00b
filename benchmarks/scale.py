"""What Ray costs and what it brings: overhead of a player beside this process, two nodes beside one, a node killed.

    python -m benchmarks.scale [--json] [--quick] [--save] [--part overhead|nodes|killed]

`overhead`: CPU-seconds of the same episodes played by one player on Ray over those of playing them in this process,
less 1. On Ray the player and this process count. What Ray's own daemons use on the way is told beside it, by the second
(`daemons_cpu`), since they use it whether anything is played or not. The worlds are crafting and lookup, the policy is
the untrained default (xs). Sides are interleaved; the ratio is the median of passes. It is CPU time because machines
are shared; `wall_overhead` is beside it.

`x_two_nodes`: wall time of one simulated node over that of two, one player each, on a load that is bound by its
environments: every step sleeps. Two cores have room for that and for nothing heavier: on a load that an engine bounds,
two nodes of one machine share its cores and say nothing.

`lost`, `doubled`: one of two nodes is killed in the middle, and the episodes of the store are compared with those that
were played here: how many are missing or differ, and how many are there twice.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

import evolvent as ev
from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.agents.language import LanguageAgent
from evolvent.engine.local import LocalEngine
from evolvent.rollout.episode import collect
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import LocalBackend
from evolvent.scale.ray_backend import RayBackend, collect_on_cluster
from evolvent.scale.ray_cluster import Cluster, Placement, connect
from evolvent.scale.ray_players import PlayerPool, WorldFactory, open_players
from evolvent.scale.ray_wire import trajectory_to_line
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup

GOALS = {"overhead": 0.05, "x_two_nodes": 1.8, "lost": 0, "doubled": 0}
_MEMORY = 80 << 20
_PAUSE_S = 0.4


class Waiting(ev.TextWorld):
    """Four steps that sleep, as a page does that loads."""

    name, horizon, instructions, run_in_thread = "waiting", 4, "say a", True
    reward_range = (0.0, 1.0)

    def specs(self) -> list[dict[str, int]]:
        """Numbers."""
        return [{"n": n} for n in range(400)]

    def play(self, spec: Any) -> Any:
        """It always says the same."""
        said = yield "a"
        for _ in range(3):
            time.sleep(_PAUSE_S)
            yield "a"
        time.sleep(_PAUSE_S)
        return float(said == "a")

    def vocabulary(self) -> list[str]:
        """All words there are."""
        return ["say", "a", "b"]


def own_worlds() -> dict[str, World]:
    """The worlds of the overhead."""
    return {world.name: world for world in (Crafting(), Lookup())}


def waiting_worlds() -> dict[str, World]:
    """The world of the nodes."""
    return {"waiting": Waiting()}


@contextmanager
def simulated(nodes: int) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster on this machine: a head without room for a player, and nodes for one each."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default, which others on this machine would starve
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        made = [cluster.add_node(num_cpus=1, resources={"place": 1}, object_store_memory=_MEMORY) for _ in range(nodes)]
        with connect(Cluster(cluster.address)):
            yield cluster, made
    finally:
        cluster.shutdown()


@contextmanager
def crew_of(where: str, worlds: dict[str, World], count: int) -> Iterator[PlayerPool]:
    """Players on the cluster that is connected."""
    place = Cluster(None, Placement(players=count, resources={"place": 1}, lost_s=400))
    with open_players(place, WorldFactory(f"benchmarks.scale:{where}"), worlds) as crew:
        yield crew


def cpu_s(pids: Sequence[int]) -> tuple[float, float]:
    """CPU-seconds so far: of this process and these, and of all else that it has started."""
    own = psutil.Process()
    spent = {one.pid: sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True)) if one.is_running()}
    working = {own.pid, *pids}
    return (
        sum(amount for pid, amount in spent.items() if pid in working),
        sum(amount for pid, amount in spent.items() if pid not in working),
    )


@dataclass(frozen=True)
class Pass:
    """CPU-seconds of those that work, of daemons, and seconds; what was played."""

    cpu_s: float
    daemons_s: float
    wall_s: float
    played: Sequence[Trajectory]


def measured(play: Callable[[], Iterator[Trajectory]], pids: Sequence[int]) -> Pass:
    """Play, and say what it took."""
    before, wall = cpu_s(pids), time.perf_counter()
    played = list(play())
    after = cpu_s(pids)
    return Pass(after[0] - before[0], after[1] - before[1], time.perf_counter() - wall, played)


def overhead(*, quick: bool) -> dict[str, Any]:
    """One player beside this process."""
    worlds = own_worlds()
    policy = make_policy(list(worlds.values()), seed=0)
    count, passes = (24, 2) if quick else (60, 5)
    starts = [Start(task) for world in worlds.values() for task in world.tasks("train", "seen")[:count]]
    agent, engine = LanguageAgent(policy), LocalEngine(policy, slots=96)
    passed: list[tuple[Pass, Pass]] = []
    with simulated(1), crew_of("own_worlds", worlds, 1) as crew:
        list(collect_on_cluster(crew, starts[:4], agent, slots=96))
        for seed in range(passes):
            play = partial(collect, worlds, starts, agent, engine=engine, seed=seed, slots=96)
            play_there = partial(collect_on_cluster, crew, starts, agent, seed=seed, slots=96)
            passed.append((measured(play, crew.pids()), measured(play_there, crew.pids())))
            same(passed[-1][0].played, passed[-1][1].played)
    cpu = [[1e3 * one.cpu_s / len(starts) for one in side] for side in zip(*passed, strict=True)]
    return {
        "overhead": statistics.median(there.cpu_s / here.cpu_s for here, there in passed) - 1,
        "overhead_of": [round(there.cpu_s / here.cpu_s - 1, 4) for here, there in passed],
        "wall_overhead": statistics.median(there.wall_s / here.wall_s for here, there in passed) - 1,
        "cpu_ms_per_episode": [round(statistics.median(side), 3) for side in cpu],
        "daemons_cpu": round(statistics.median(there.daemons_s / there.wall_s for _, there in passed), 4),
        "episodes": len(starts),
        "passes": passes,
    }


def same(here: Sequence[Trajectory], there: Sequence[Trajectory]) -> None:
    """Stop where both sides have not played the same episodes, bit for bit."""
    if {one.id: trajectory_to_line(one) for one in here} != {one.id: trajectory_to_line(one) for one in there}:
        raise SystemExit("the episodes on Ray are not those of this process")


def nodes(*, quick: bool) -> dict[str, Any]:
    """One node beside two, on a world that sleeps."""
    worlds = waiting_worlds()
    policy, count = make_policy(list(worlds.values()), seed=0), 32 if quick else 96
    starts = [Start(task) for task in worlds["waiting"].tasks("train", "seen")[:count]]
    agent, walls = LanguageAgent(policy, max_tokens=1), {1: [0.0], 2: [0.0]}
    with simulated(2):
        for size in (1, 2) if quick else (1, 2, 1, 2):
            with crew_of("waiting_worlds", worlds, size) as crew:
                while len(crew.pids()) < size:  # a player that has not begun to live is no node
                    list(collect_on_cluster(crew, starts[: 8 * size], agent, slots=8))
                list(collect_on_cluster(crew, starts[: 8 * size], agent, slots=8))  # all have their weights
                began = time.perf_counter()
                list(collect_on_cluster(crew, starts, agent, seed=1, slots=8))
                walls[size].append(time.perf_counter() - began)
    one, two = (statistics.median(walls[number][1:]) for number in (1, 2))
    return {
        "x_two_nodes": one / two,
        "one_node_s": round(one, 2),
        "two_nodes_s": round(two, 2),
        "asleep_s": round(count / 8 * 4 * _PAUSE_S, 2),
        "waiting_episodes": count,
    }


def killed() -> dict[str, Any]:
    """One of two nodes is killed in the middle of a collection."""
    worlds = own_worlds()
    policy = make_policy(list(worlds.values()), seed=0)
    starts = [Start(task) for world in worlds.values() for task in world.tasks("train", "seen")[:60]]
    with (
        tempfile.TemporaryDirectory() as made,
        simulated(2) as (cluster, found),
        crew_of("own_worlds", worlds, 2) as crew,
    ):
        folder = Path(made)
        here, there = LocalBackend(worlds, slots=16), RayBackend(worlds, slots=16, players=crew)
        play = there.collect

        def hurt(*given: Any, **named: Any) -> Iterator[Trajectory]:
            for count, one in enumerate(play(*given, **named), 1):
                yield one
                if count == 10:
                    cluster.remove_node(found[0], allow_graceful=False)

        there.collect = hurt  # type: ignore[method-assign]
        for name, using in (("here", here), ("there", there)):
            with ev.Run(folder / name, using, seed=1, settings=using.settings()) as run:
                run.collect(policy, starts)
        expected, kept = (
            [trajectory_to_line(one) for one in Store.open(folder / name / "trajectories").trajectories()]
            for name in ("here", "there")
        )
        again = crew.counts["again"]
    return {
        "lost": len(set(expected) - set(kept)),
        "doubled": len(kept) - len(set(kept)),
        "episodes_again": again,
        "episodes_killed": len(starts),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run it; prints a table, and with `--json` one line of JSON after it."""
    parser = command_line("scale", __doc__, quick="fewer episodes and passes", save=RESULTS / "scale.json")
    parser.add_argument("--part", choices=("overhead", "nodes", "killed"), help="one part alone")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    logging.getLogger("evolvent").setLevel(logging.ERROR)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "overhead": lambda: overhead(quick=asked.quick),
        "nodes": lambda: nodes(quick=asked.quick),
        "killed": killed,
    }
    result: dict[str, Any] = {}
    for name, part in parts.items():
        if asked.part in (None, name):
            with redirect_stdout(sys.stderr):  # Ray says there which nodes have died
                result |= part()
    result |= {"goals": GOALS, "quick": asked.quick, "cores": os.cpu_count(), "seeds": [0, 1]}
    result |= about("evolvent", "ray", "torch", cores=True)
    show(result)
    finish(result, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
