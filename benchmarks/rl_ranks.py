"""Reinforcement learning over two ranks against one process, and with a player and a rank that are killed on the way.

    python -m benchmarks.rl_ranks [--policy smollm2] [--parts runs lag efficiency] [--quick] [--json] [--save]

`max_difference`: the largest difference of a loss, return or entropy between an iteration of two ranks and the same one
of one process, both from the same checkpoint, as a share of values above 1; over `updates` of the weights in several
iterations. `drift`: the same between two whole runs, over `drift_updates`: two ranks add in another order, and what is
rounded otherwise in one update grows in those that follow.
`resumes`, `lost`, `doubled`: of a run whose ranks play in players. First a player of the second rank is killed
(`player_killed`), an iteration later that rank, and the run goes on in one process.
`two_ranks_efficiency`: tokens learned per CPU-second of two ranks, the CPU of both counted, over those of one process.
The model is `--policy` with LoRA. Both learn the same tokens, and starting is left out: the CPU-seconds are those of
an iteration, less those of one with a single task.
`lag1_speedup`: wall time of a practice whose learner waits for its player (lag 0) over that of one whose player is one
version ahead (lag 1), where playing and learning take equally long; the median of interleaved pairs. Both have one
player, a process of its own, and one thread, and a learning rate so small that both write and learn the same texts:
this is about time alone. The environment sleeps, so that the overlap shows on a busy machine too: `play_s` and
`learn_s` are the seconds of an iteration at lag 0, `load` the processes that wanted a core meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evolvent as ev
from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from evolvent.learn.settings import RL_TRAIN
from evolvent.models.policy import Policy
from evolvent.rl.critic import critic_objective
from evolvent.rl.objective import policy_gradient
from evolvent.rl.presets import POAD
from evolvent.rl.trainer import RLConfig, RLSpec
from evolvent.scale.initial import make_policy
from evolvent.scale.ray_backend import RayBackend
from evolvent.scale.ray_cluster import parse_cluster
from evolvent.scale.ray_players import PlayerPool, WorldFactory, open_players
from evolvent.store.log import read_rows
from evolvent.store.store import Store
from evolvent.worlds.base import Play, TextWorld

SEED = 0
RESULT = RESULTS / "rl_ranks.json"
GOALS = {
    "max_difference": 2e-6,
    "resumes": True,
    "player_killed": True,
    "two_ranks_efficiency": 0.85,
    "lost": 0,
    "doubled": 0,
    "lag1_speedup": 1.5,
}
COMPARED = ("loss", "return", "sampled_entropy", "kl", "advantage_deviation")
START_S = 300  # longest wait for the first iteration of the run that is killed


def _argv(folder: Path, iterations: int, tasks: int, **more: object) -> list[str]:
    """Returns the words of a command; `more` are further settings, with `__` for a point."""
    settings: dict[str, object] = {
        "method": "ppo",  # it learns from every iteration, also where no group has a difference
        "worlds": "lookup",
        "demonstrations": 20,
        "clone_tokens": 2000,
        "tasks": 32,
        "seed": SEED,
        "panel.limit": 2,
        "max_tokens": 8,
        "rl.practice.tasks_per_iteration": tasks,
        "rl.practice.temperature": 2,
        "rl.practice.save_every": 1,
        "rl.practice.iterations": iterations,
        "output_dir": folder,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return ["train", "rl", *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]


def _start(ranks: int, argv: Sequence[str]) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "evolvent", *argv],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(ranks: int, argv: Sequence[str]) -> float:
    """Returns the CPU-seconds of a run with all its ranks; raises RuntimeError with its last words where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = _start(ranks, argv)
    _, error = process.communicate()
    if process.returncode:
        raise RuntimeError(error[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _iterations(folder: Path) -> dict[int, dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    return {row["step"]: dict(row) for row in rows if row["kind"] == "practise"}


def _difference(folder: Path, other: Path, steps: Iterable[int] | None = None) -> float:
    """Returns the largest difference of two runs in these iterations; None: in all of the first run."""
    one, two = _iterations(folder), _iterations(other)
    shares = [
        abs(one[step][name] - two[step][name]) / max(1.0, abs(one[step][name]))
        for step in (one if steps is None else steps)
        for name in COMPARED
        if name in one[step]
    ]
    return float(np.max(shares))  # nan if one of them is


def _count_updates(folder: Path, steps: Iterable[int] | None = None) -> int:
    rows = _iterations(folder)
    return int(sum(rows[step].get("updates", 0) for step in (rows if steps is None else steps)))


def _compare_iterations(folder: Path, argv: Sequence[str], saved: Sequence[int]) -> tuple[float, int]:
    """Runs one process to its end, and from its checkpoints after some iterations two ranks for the next one.

    Args:
        folder: of the run of one process.
        saved: numbers of the iterations after which two ranks go on from a copy.
    Returns:
        the largest difference, and the updates of the compared iterations.
    """
    command, copies = argv, dict[int, Path]()
    for number in saved:
        process = _start(1, command)
        if not _await_iterations(process, folder, number):
            raise RuntimeError(f"the run of one process ended before iteration {number}: {process.communicate()[1]}")
        process.kill()
        process.communicate()
        done = len(_iterations(folder))
        copies[done + 1] = folder.with_name(f"{folder.name}-{done}")
        shutil.copytree(folder, copies[done + 1])
        command = ["train", "rl", "--resume", str(folder)]
    _run(1, command)
    differences, updates = list[float](), 0
    for step, copy in copies.items():
        process = _start(2, ["train", "rl", "--resume", str(copy)])
        is_played = _await_iterations(process, copy, step)
        process.terminate()
        error = process.communicate()[1]
        if not is_played and len(_iterations(copy)) < step:
            raise RuntimeError(f"two ranks did not play iteration {step}: {error[-2000:]}")
        differences.append(_difference(folder, copy, [step]))
        updates += _count_updates(folder, [step])
    return max(differences), updates


def _episodes(folder: Path) -> Counter[str]:
    stored = Store.open(folder / "trajectories").trajectories()
    return Counter("/".join(one.id.split("/")[1:]) for one in stored if "practise" in one.id)


def _list_children(pid: int) -> list[int]:
    """Returns the processes that a process has started, the oldest first."""
    listed = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True)
    return sorted(map(int, listed.stdout.split()))


def _await_iterations(process: subprocess.Popen[str], folder: Path, count: int) -> bool:
    """Waits until a run has logged so many iterations; returns whether it has, and goes on."""
    end = time.monotonic() + START_S
    while len(_iterations(folder)) < count and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return len(_iterations(folder)) >= count and process.poll() is None


def _kill_player_and_rank(argv: Sequence[str], folder: Path) -> tuple[bool, bool]:
    """Starts two ranks with a player each; kills the second one's player after an iteration, and then that rank.

    Returns:
        whether the player was killed and its rank went on, and whether the run then ended with a failure.
    """
    process = _start(2, argv)
    ranks, players = list[int](), list[int]()
    if _await_iterations(process, folder, 1):
        ranks = _list_children(process.pid)
        players = _list_children(ranks[-1]) if ranks else []
    if players:
        os.kill(players[-1], signal.SIGKILL)
    went_on = bool(players) and _await_iterations(process, folder, 2)
    if ranks and process.poll() is None:
        os.kill(ranks[-1], signal.SIGKILL)
    process.communicate()
    return went_on, process.returncode != 0


def _measure_cpu(ranks: int, folder: Path, plan: Plan) -> float:
    """Returns the CPU-seconds of all ranks in an iteration, less those of one with a single task."""
    adapter = {} if plan.policy == "xs" else {"adapter__kind": "lora", "demonstrations": 0}
    small, large = (
        _run(ranks, _argv(folder / f"{ranks}-{tasks}", 1, tasks, policy=plan.policy, **adapter))
        for tasks in (1, plan.timed_tasks)
    )
    return large - small


class Sleeping(TextWorld):
    """Say the word that is shown, twice; each answer comes after the seconds that the task names."""

    name = "sleeping"
    horizon = 2
    reward_range = (0.0, 2.0)
    run_in_thread = False

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"first": first, "then": then} for first in _WORDS for then in _WORDS]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"say {spec['first']}"
        time.sleep(spec.get("pause_s", 0.0))
        said = yield f"say {spec['then']}", float(said.strip() == spec["first"])
        time.sleep(spec.get("pause_s", 0.0))
        return float(said.strip() == spec["then"])

    def vocabulary(self) -> Sequence[str]:
        return ("say", *_WORDS)


_WORDS = ("red", "green", "blue", "grey")


@dataclass(frozen=True)
class LagPlan:
    """How long the practice is that shows playing ahead.

    Args:
        repeats: interleaved pairs of a practice at lag 0 and one at lag 1.
        episodes: of an iteration. ppo_epochs: passes through them; both make learning longer.
    """

    repeats: int = 3
    episodes: int = 128
    ppo_epochs: int = 12
    iterations: int = 10


def make_worlds() -> dict[str, ev.World]:
    """Makes the world of the player."""
    return {"sleeping": Sleeping()}


def _practise(
    folder: Path, policy: Policy, players: PlayerPool, *, plan: LagPlan, lag: int, pause_s: float
) -> tuple[float, ...]:
    """Practices; returns its wall time and the median seconds of playing and of learning."""
    config = RLConfig(
        iterations=plan.iterations,
        tasks_per_iteration=plan.episodes // 4,
        ppo_epochs=plan.ppo_epochs,
        save_every=100,
        prefetch_rollouts=lag > 0,
        max_policy_lag=max(1, lag),
    )
    objective = policy_gradient(replace(POAD.loss, target_kl=None), name="poad")  # a limit would end passes early
    spec = RLSpec("poad", config, objective, critic_objective())
    # Else both sides would write other texts, and have other amounts to learn.
    train = RL_TRAIN.model_copy(update={"lr": 1e-12})
    backend = RayBackend(make_worlds(), players=players, slots=plan.episodes, max_tokens=4, train=train)
    tasks = [
        ev.Task(task.world, task.tier, {**task.spec, "pause_s": pause_s}) for task in Sleeping().tasks("train", "seen")
    ]
    play_s, learn_s = [], []
    with ev.Run(folder, backend, seed=SEED, settings=backend.settings()) as run, run.train_rl(policy, spec) as trainer:
        started = time.perf_counter()
        for _ in trainer.iterations():
            begun = time.perf_counter()
            trajectories = trainer.rollout(trainer.next_starts(tasks))
            played = time.perf_counter()
            rollout = trainer.score(trajectories)
            trainer.update(rollout, rollout.estimate_advantages(POAD.estimator))
            play_s.append(played - begun)
            learn_s.append(time.perf_counter() - played)
        wall_s = time.perf_counter() - started
    return wall_s, statistics.median(play_s), statistics.median(learn_s)


def measure_lag(plan: Plan, folder: Path) -> dict[str, Any]:
    """Returns the figures of playing ahead; see the module."""
    torch.set_num_threads(1)  # the other core is the player's
    lag_plan = plan.lag
    world = make_worlds()
    policy = make_policy(list(world.values()), seed=1, context=48)
    cluster, factory = parse_cluster("here?players=1"), WorldFactory("benchmarks.rl_ranks:make_worlds")
    speedups, seconds, loads = [], [], []
    with open_players(cluster, factory, world) as players:

        def practise(name: str, lag: int, pause_s: float) -> tuple[float, ...]:
            loads.append(load()[0])
            return _practise(folder / name, policy, players, plan=lag_plan, lag=lag, pause_s=pause_s)

        pause_s = 0.0
        for attempt in range(2):  # the first one warms up
            _, play_s, learn_s = practise(f"pilot-{attempt}", 0, pause_s)
            pause_s = max(0.0, pause_s + (learn_s - play_s) / (2 * lag_plan.episodes))
        for repeat in range(lag_plan.repeats):
            apart = practise(f"{repeat}-0", 0, pause_s)
            ahead = practise(f"{repeat}-1", 1, pause_s)
            speedups.append(apart[0] / ahead[0])
            seconds.append(apart[1:])
            # Other processes change the speed of learning.
            pause_s = max(0.0, pause_s + (apart[2] - apart[1]) / (2 * lag_plan.episodes))
    return {
        "lag1_speedup": round(statistics.median(speedups), 3),
        "lag1_speedups": [round(speedup, 3) for speedup in speedups],
        "play_s": round(statistics.median(pair[0] for pair in seconds), 3),
        "learn_s": round(statistics.median(pair[1] for pair in seconds), 3),
        "load": round(statistics.median(loads), 1),
    }


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        policy: the model of the efficiency.
        iterations, tasks: of the runs that are compared. saved: iterations after which two ranks go on.
        timed_tasks: tasks of the iteration whose efficiency is measured. drifts: whether two ranks play a whole run.
    """

    policy: str
    iterations: int = 20
    tasks: int = 16
    saved: tuple[int, ...] = (1, 6, 11, 16)
    timed_tasks: int = 16
    drifts: bool = True
    lag: LagPlan = LagPlan()


def measure_runs(plan: Plan, folder: Path) -> dict[str, Any]:
    """Returns the figures of whole runs: what two ranks compute, and what is left when a player and a rank are lost."""
    one, two, killed = (folder / name for name in ("one", "two", "killed"))
    max_difference, updates = _compare_iterations(one, _argv(one, plan.iterations, plan.tasks), plan.saved)
    if plan.drifts:
        _run(2, _argv(two, plan.iterations, plan.tasks))
    in_players = _argv(killed, plan.iterations, plan.tasks, backend="here?players=2")
    player_killed, was_ended = _kill_player_and_rank(in_players, killed)
    _run(1, ["train", "rl", "--resume", str(killed), "--backend", "here"])
    expected, stored = _episodes(one), _episodes(killed)
    return {
        "max_difference": max_difference,
        "updates": updates,
        "drift": _difference(one, two) if plan.drifts else None,
        "drift_updates": _count_updates(one),
        "resumes": was_ended and len(_iterations(killed)) == plan.iterations,
        "player_killed": player_killed,
        "lost": len(expected - stored),
        "doubled": sum(count - 1 for count in stored.values()),
        "iterations": plan.iterations,
    }


def measure_efficiency(plan: Plan, folder: Path) -> dict[str, Any]:
    """Returns tokens learned per CPU-second of two ranks over those of one process; see the module."""
    one, two = (_measure_cpu(ranks, folder, plan) for ranks in (1, 2))
    return {
        "two_ranks_efficiency": round(one / two, 3),
        "cpu_s_of_iteration": [round(one, 1), round(two, 1)],
        "policy": plan.policy,
    }


PARTS: Mapping[str, Callable[[Plan, Path], dict[str, Any]]] = {
    "runs": measure_runs,
    "lag": measure_lag,
    "efficiency": measure_efficiency,
}


def report(plan: Plan, parts: Sequence[str], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Measures these parts; returns their figures, and those of the others as they were kept."""
    measured = dict(kept)
    for part in parts:
        with tempfile.TemporaryDirectory() as temporary:
            measured |= PARTS[part](plan, Path(temporary))
    return {
        "benchmark": "rl_ranks",
        **measured,
        "goals": GOALS,
        "seed": SEED,
        **about("evolvent", "torch", threads=1),
    }


QUICK = Plan(
    "xs", iterations=3, tasks=4, saved=(1,), drifts=False, lag=LagPlan(1, episodes=32, ppo_epochs=6, iterations=4)
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(
        "rl_ranks",
        __doc__,
        quick="three small iterations of the small policy, without efficiency and drift",
        save=RESULT,
    )
    parser.add_argument("--policy", default="smollm2", help="the model of the efficiency (default: smollm2)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="measure only these; --save keeps the others")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else Plan(options.policy)
    parts = options.parts or (("runs", "lag") if options.quick else tuple(PARTS))
    # Figures of a quick run and of a whole one never stand in one file.
    is_partial = not options.quick and set(parts) != set(PARTS) and options.save is not None and options.save.exists()
    kept = json.loads(options.save.read_text(encoding="utf-8")) if is_partial else {}
    result = report(plan, parts, kept)
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
