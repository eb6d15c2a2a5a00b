"""Reinforcement learning over two ranks against one process, and with a player and a rank that are killed on the way.

    python -m benchmarks.rl_ranks [--policy smollm2] [--quick] [--json] [--save]

`max_difference`: the largest difference of a loss, return or entropy to one process, as a share of values above 1, over
`updates` of the weights.
`resumes`, `lost`, `doubled`: of a run whose ranks play in players. First a player of the second rank is killed
(`player_killed`), an iteration later that rank, and the run goes on in one process.
`two_ranks_efficiency`: tokens learned per CPU-second of two ranks, the CPU of both counted, over those of one process.
The model is `--policy` with LoRA. Both learn the same tokens, and starting is left out: the CPU-seconds are those of
the iterations beyond the first one.
`lag1_speedup`: wall time of a practice whose learner waits for its player (lag 0) over that of one whose player is one
version ahead (lag 1), where playing and learning take equally long; the median of interleaved pairs. Both have one
player, a process of its own. The environment sleeps, so that the overlap shows on a busy machine too: `play_s` and
`learn_s` are the seconds of an iteration at lag 0, `load` the processes that wanted a core meanwhile.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evolvent as ev
from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
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


def _difference(folder: Path, other: Path) -> float:
    one, two = _iterations(folder), _iterations(other)
    return max(
        abs(one[step][name] - two[step][name]) / max(1.0, abs(one[step][name]))
        for step in one
        for name in COMPARED
        if name in one[step]
    )


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


def _measure_cpu(ranks: int, folder: Path, *, policy: str, iterations: int) -> float:
    """Returns the CPU-seconds of all ranks in the iterations beyond the first one."""
    adapter = {} if policy == "xs" else {"adapter__kind": "lora", "demonstrations": 0}
    counts = (1, 1 + iterations)
    first, all_of_them = (_run(ranks, _argv(folder / f"{ranks}-{n}", n, 8, policy=policy, **adapter)) for n in counts)
    return all_of_them - first


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
_EPISODES = 32  # of an iteration


def make_worlds() -> dict[str, ev.World]:
    """Makes the world of the player."""
    return {"sleeping": Sleeping()}


def _practise(folder: Path, policy: Policy, players: PlayerPool, *, lag: int, pause_s: float) -> tuple[float, ...]:
    """Practises for six iterations; returns its wall time and the median seconds of playing and of learning."""
    config = RLConfig(
        iterations=6,
        tasks_per_iteration=_EPISODES // 4,
        ppo_epochs=6,
        save_every=100,
        prefetch_rollouts=lag > 0,
        max_policy_lag=max(1, lag),
    )
    objective = policy_gradient(replace(POAD.loss, target_kl=None), name="poad")  # a limit would end passes early
    spec = RLSpec("poad", config, objective, critic_objective())
    backend = RayBackend(make_worlds(), players=players, slots=_EPISODES, max_tokens=4)
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


def measure_lag(*, repeats: int) -> dict[str, Any]:
    """Returns the figures of playing ahead; see the module."""
    world = make_worlds()
    policy = make_policy(list(world.values()), seed=1, context=48)
    cluster, factory = parse_cluster("here?players=1"), WorldFactory("benchmarks.rl_ranks:make_worlds")
    speedups, seconds, loads = [], [], []
    with tempfile.TemporaryDirectory() as temporary, open_players(cluster, factory, world) as players:

        def practise(name: str, lag: int, pause_s: float) -> tuple[float, ...]:
            loads.append(load()[0])
            return _practise(Path(temporary) / name, policy, players, lag=lag, pause_s=pause_s)

        pause_s = 0.0
        for attempt in range(2):  # the first one warms up
            _, play_s, learn_s = practise(f"pilot-{attempt}", 0, pause_s)
            pause_s = max(0.0, pause_s + (learn_s - play_s) / (2 * _EPISODES))
        for repeat in range(repeats):
            apart = practise(f"{repeat}-0", 0, pause_s)
            ahead = practise(f"{repeat}-1", 1, pause_s)
            speedups.append(apart[0] / ahead[0])
            seconds.append(apart[1:])
            pause_s = max(0.0, pause_s + (apart[2] - apart[1]) / (2 * _EPISODES))  # others change the speed of learning
    return {
        "lag1_speedup": round(statistics.median(speedups), 3),
        "lag1_speedups": [round(speedup, 3) for speedup in speedups],
        "play_s": round(statistics.median(pair[0] for pair in seconds), 3),
        "learn_s": round(statistics.median(pair[1] for pair in seconds), 3),
        "load": round(statistics.median(loads), 1),
    }


def report(*, policy: str, iterations: int, tasks: int, timed_iterations: int) -> dict[str, Any]:
    """Runs it all; returns the figures."""
    with tempfile.TemporaryDirectory() as temporary:
        one, two, killed = (Path(temporary) / name for name in ("one", "two", "killed"))
        _run(1, _argv(one, iterations, tasks))
        _run(2, _argv(two, iterations, tasks))
        in_players = _argv(killed, iterations, tasks, backend="here?players=2")
        player_killed, was_ended = _kill_player_and_rank(in_players, killed)
        _run(1, ["train", "rl", "--resume", str(killed), "--backend", "here"])
        expected, found = _episodes(one), _episodes(killed)
        lag_figures = measure_lag(repeats=3)
        cpu = [_measure_cpu(ranks, Path(temporary), policy=policy, iterations=timed_iterations) for ranks in (1, 2)]
        return {
            "benchmark": "rl_ranks",
            "max_difference": _difference(one, two),
            "updates": int(sum(row.get("updates", 0) for row in _iterations(one).values())),
            "resumes": was_ended and len(_iterations(killed)) == iterations,
            "player_killed": player_killed,
            "lost": len(expected - found),
            "doubled": sum(count - 1 for count in found.values()),
            "two_ranks_efficiency": round(cpu[0] / cpu[1], 3),
            "cpu_s_of_iterations": [round(seconds, 1) for seconds in cpu],
            **lag_figures,
            "policy": policy,
            "iterations": iterations,
            "goals": GOALS,
            "seed": SEED,
            **about("evolvent", "torch", threads=1),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("rl_ranks", __doc__, quick="three small iterations of the small policy", save=RESULT)
    parser.add_argument("--policy", default="smollm2", help="the model of the efficiency (default: smollm2)")
    options = parser.parse_args(arguments)
    result = (
        report(policy="xs", iterations=3, tasks=4, timed_iterations=2)
        if options.quick
        else report(policy=options.policy, iterations=20, tasks=16, timed_iterations=4)
    )
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
