"""What a step, a token, an episode and a hand-over cost here: CPU-seconds, medians of interleaved repeats, and fits.

Each cost is measured by itself, on the world of the calibration (crafting). What an environment step costs beside its
forwards (parsing, dialect, the driver of asks) is what a collection spends above them. Nothing is fitted to the circles
that the model is checked on.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rl_step import Clocks
from benchmarks.scale_sim.crew import learned_from, shape_of, worlds
from benchmarks.scale_sim.model import fitted
from benchmarks.serve import COMMAND, Tally, cpu_clock, one_round
from benchmarks.serve_sides import InProcess, Native, deal, episodes
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.episode import collect
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.scale.ray_wire import (
    build_message,
    load_policy_files,
    parse_message,
    read_policy_files,
    start_to_row,
    trajectory_from_line,
    trajectory_to_line,
)
from evolvent.serve.launch import launch_server
from evolvent.store.store import Store
from evolvent.trajectory import Generation, Start, Step, Task, Trajectory, sample_rng

__all__ = ["calibrated", "natural_policy", "slowed_by_others"]

ROWS = (1, 2, 4, 8, 16, 32, 64)
_WRITTEN, _PROMPT = 32, 64
_LENGTHS = ((4, 8), (4, 64), (16, 32), (64, 16), (64, 64))  # of a stored episode: steps, tokens written in each
_GROWN = 300  # updates of cloning, after which actions have natural lengths


def natural_policy(*, seed: int, updates: int = _GROWN) -> Policy:
    """The default policy (xs), cloned from experts of both worlds for a short while: episodes end by themselves."""
    made = list(worlds().values())
    policy = make_policy(made, seed=seed)
    shown = collect_demonstrations(made, [task for world in made for task in list(world.tasks("train", "seen"))[:60]])
    parts = flatten(shown, policy.dialect, instructions=lambda task: "", context=policy.context).sequences
    learner = Learner(policy, weighted_nll, TrainConfig(max_steps=updates), seed=seed)
    learner.fit(parts)
    learner.policy.model.eval()
    return learner.policy


def _medians(calls: Mapping[Any, Callable[[], float]], repeats: int) -> dict[Any, float]:
    """The median of what each call returns, the calls taking turns; a first turn warms up."""
    seen: dict[Any, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            value = call()
            if number:
                seen[name].append(value)
    return {name: statistics.median(values) for name, values in seen.items()}


def _cpu(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


# ------------------------------------------------------------------ the engine


def engine_costs(policy: Policy, repeats: int) -> dict[str, Any]:
    """A forward by the rows in it, its part outside of the model, and a token that is read."""
    engines = {rows: LocalEngine(policy, slots=rows) for rows in ROWS}
    numbers, clocks = count(), Clocks()
    outside: dict[int, list[float]] = {rows: [] for rows in ROWS}

    def asked(rows: int, written: int) -> float:
        rng = sample_rng("scale sim prompts", next(numbers))  # prompts that the trie has never seen
        prompts = rng.integers(8, engines[rows].vocabulary, (rows, _PROMPT)).tolist()
        asks = [SampleAsk(None, prompt, written, seeds=(row,)) for row, prompt in enumerate(prompts)]
        return _cpu(lambda: ask_and_wait(asks, engines[rows]))

    def decode(rows: int) -> float:
        first, inside = asked(rows, 1), clocks.spent["model"]
        whole = asked(rows, _WRITTEN + 1)
        outside[rows].append((whole - clocks.spent["model"] + inside) / (_WRITTEN + 1))
        return (whole - first) / _WRITTEN

    with clocks.running():
        seconds = _medians({rows: partial(decode, rows) for rows in ROWS}, repeats)
        read = _medians({rows: partial(asked, rows, 1) for rows in (16, 64)}, repeats)
    sizes, beside = list(map(float, ROWS)), [statistics.median(outside[rows][1:]) for rows in ROWS]
    forward, row = fitted([[1.0] * len(ROWS), sizes], list(seconds.values()))
    over_forward, over_row = fitted([[1.0] * len(ROWS), sizes], beside)
    each = [max(0.0, taken - forward - row * size) / (size * (_PROMPT - 1)) for size, taken in read.items()]
    return {
        "forward_s": forward,
        "row_s": row,
        "read_s": statistics.mean(each),
        "outside_forward_s": over_forward,
        "outside_row_s": over_row,
        "token_s_by_rows": {str(rows): taken / rows for rows, taken in seconds.items()},
        "fit_error": max(abs(forward + row * rows - taken) / taken for rows, taken in seconds.items()),
    }


def collection_costs(
    policy: Policy, engine: Mapping[str, Any], *, tasks: int, repeats: int
) -> tuple[dict[str, Any], list[Trajectory]]:
    """What a collection costs beside bare forwards: by forward (reading and writing rows together), and by step.

    Returns:
        `mixed_s` and `step_s`, and their parts outside of the model; and the episodes that were played.
    """
    world = worlds()["crafting"]
    starts = [Start(task) for task in list(world.tasks("train", "seen"))[:tasks]]
    agent, numbers, clocks = LanguageAgent(policy), count(), Clocks()
    engines = {rows: LocalEngine(policy, slots=rows) for rows in (2, 8, 32)}
    seen: dict[int, list[tuple[float, ...]]] = {rows: [] for rows in engines}
    played: list[Trajectory] = []

    def beside(rows: int) -> float:
        before, inside = engines[rows].usage.forwards, clocks.spent["model"]
        chosen = starts if rows > 2 else starts[: max(4, tasks // 4)]
        playing = collect({world.name: world}, chosen, agent, engine=engines[rows], seed=next(numbers), slots=rows)
        kept: list[Trajectory] = []
        seconds = _cpu(lambda: kept.extend(playing))
        played[:] = kept if len(kept) >= len(played) else played
        shape, forwards = shape_of(kept), engines[rows].usage.forwards - before
        steps, written = int(shape.steps.sum()), int(shape.written.sum())
        known = engine["forward_s"] * forwards + engine["row_s"] * written + engine["read_s"] * int(shape.read.sum())
        outside = seconds - clocks.spent["model"] + inside
        outside -= engine["outside_forward_s"] * forwards + engine["outside_row_s"] * written
        seen[rows].append((forwards / steps, (seconds - known) / steps, outside / steps, seconds / steps))
        return seconds

    with clocks.running():
        _medians({rows: partial(beside, rows) for rows in engines}, repeats)
    middle = [[statistics.median(column) for column in zip(*each[1:], strict=True)] for each in seen.values()]
    forwards, more, outside, whole = zip(*middle, strict=True)
    columns = [list(forwards), [1.0] * len(middle)]
    (mixed, step), (outside_mixed, outside_step) = fitted(columns, more, whole), fitted(columns, outside, whole)
    return {"mixed_s": mixed, "step_s": step, "outside_mixed_s": outside_mixed, "outside_step_s": outside_step}, played


# ------------------------------------------------------------------ environments


def environment_costs(repeats: int, *, lines: int, steps: int) -> dict[str, float]:
    """An environment step in process, and over the library's server: CPU of the server and seconds until the answer."""
    world = worlds()["crafting"]
    served = ("crafting", "--port", "0", "--capacity", "4096", "--idle_s", "3600")
    with launch_server([*COMMAND, *served]) as server:
        cpu = cpu_clock(server.process.pid)
        sides = {
            "in_process": Tally(InProcess(world), lambda: 0.0),
            "ws": Tally(Native(server.url, world, door="ws"), cpu),
            "alone": Tally(Native(server.url, world, door="ws"), cpu),
        }
        scripts = deal(episodes(world, seed=0, most=200), lines, steps)

        async def all_rounds() -> None:
            for number in range(repeats + 1):
                await one_round([sides["in_process"], sides["ws"]], scripts, steps, counted=number > 0)
                await one_round([sides["alone"]], scripts[:1], steps, counted=number > 0)
            for side in sides.values():
                await side.side.close()

        asyncio.run(all_rounds())
    return {
        "env_step_s": 1e-6 * statistics.median(sides["in_process"].client_us),
        "server_step_s": 1e-6 * statistics.median(sides["ws"].server_us),
        "server_latency_s": 1e-3 * float(statistics.median(sides["alone"].p50_ms)),
        "server_errors": float(sum(side.errors for side in sides.values())),
    }


# ------------------------------------------------------------------ episodes on their way


def _written(steps: int, tokens: int) -> Trajectory:
    """An episode of so many steps, in each of which as many tokens were written, and twice as many read."""
    rng = sample_rng("scale sim episode", steps, tokens)
    made = []
    for number in range(steps):
        ids = rng.integers(8, 200, 3 * tokens).astype(np.int32)
        sampled = np.arange(3 * tokens) >= 2 * tokens
        logprobs = np.where(sampled, -rng.exponential(1.0, 3 * tokens), 0.0).astype(np.float32)
        generation = Generation(ids, sampled, logprobs, extends=number - 1 if number else None)
        words = [f"word{number}" for number in ids]
        made.append(Step(" ".join(words[: 2 * tokens]), " ".join(words[2 * tokens :]), 0.0, generations=(generation,)))
    return Trajectory(
        f"episode-{steps}-{tokens}", Task("storing", "1", {"steps": steps, "tokens": tokens}), tuple(made)
    )


def episode_costs(repeats: int, copies: int) -> dict[str, Any]:
    """What an episode costs and weighs on its way: dealt, told as a line, read by the driver, stored. Fits by length.

    Each fit is [an episode, a step, a token written or read].
    """
    shown = {length: _written(*length) for length in _LENGTHS}
    lines = {length: trajectory_to_line(one) for length, one in shown.items()}
    sizes = {length: (1.0, float(length[0]), 3.0 * length[0] * length[1]) for length in _LENGTHS}

    def dealt(one: Trajectory) -> None:
        build_message({"rows": [start_to_row(Start(one.task, number)) for number in range(copies)]})

    def told(one: Trajectory) -> None:
        for _ in range(copies):
            trajectory_to_line(one)

    def received(line: bytes, one: Trajectory) -> None:
        _, parts = parse_message(build_message({}, [line] * copies))
        for part in parts:
            trajectory_from_line(part, Start(one.task))

    stored: dict[Any, int] = {}

    def kept(length: tuple[int, int]) -> float:
        with tempfile.TemporaryDirectory() as folder, Store.open(folder, writing=True) as store:
            made = [_renamed(shown[length], number) for number in range(copies)]
            began = time.process_time()
            for one in made:
                store.append(one)
            taken = time.process_time() - began
            store.flush()
            stored[length] = sum(path.stat().st_size for path in Path(folder).rglob("seg-*")) // copies
        return taken / copies

    calls: dict[Any, Callable[[], float]] = {}
    for length, one in shown.items():
        ways = {
            "deal": partial(dealt, one),
            "tell": partial(told, one),
            "receive": partial(received, lines[length], one),
        }
        calls |= {(name, length): lambda call=call: _cpu(call) / copies for name, call in ways.items()}  # type: ignore[misc]
        calls["store", length] = partial(kept, length)
    seconds = _medians(calls, repeats)
    columns = [[sizes[length][at] for length in _LENGTHS] for at in range(3)]
    fits = {
        f"{name}_s": fitted(columns, [seconds[name, length] for length in _LENGTHS])
        for name in ("tell", "receive", "store")
    }
    return {
        "deal_s": statistics.median(seconds["deal", length] for length in _LENGTHS),
        **fits,
        "wire_bytes": fitted(columns, [float(len(lines[length])) for length in _LENGTHS]),
        "store_bytes": fitted(columns, [float(stored[length]) for length in _LENGTHS]),
    }


def _renamed(one: Trajectory, number: int) -> Trajectory:
    return Trajectory(f"{one.id}-{number}", one.task, one.steps, sample=number)


# ------------------------------------------------------------------ learning and weights


def learning_costs(policy: Policy, played: Sequence[Trajectory], repeats: int) -> dict[str, Any]:
    """A training: what it costs to begin, a token that it is fed, and the bytes of its gradients."""
    fed: dict[int, int] = {}

    def learn(size: int) -> float:
        began = time.process_time()
        _, fed[size] = learned_from(policy, played[:size])
        return time.process_time() - began

    chosen = sorted({max(4, len(played) // 8), max(8, len(played) // 2), len(played)})
    seconds = _medians({size: partial(learn, size) for size in chosen}, repeats)
    start, token = fitted([[1.0] * len(chosen), [float(fed[size]) for size in chosen]], list(seconds.values()))
    weights = [each for each in policy.model.parameters() if each.requires_grad]
    return {
        "learn_s": start,
        "learn_token_s": token,
        "gradient_bytes": float(sum(each.numel() * each.element_size() for each in weights)),
    }


def hand_over_costs(repeats: int) -> dict[str, Any]:
    """Weights as files in the driver, and loaded by a worker: fits [once, a byte], and the seconds by parameters."""
    words = [f"word{number}" for number in range(400)]
    policies = {size: tiny_policy(words, size=size) for size in ("xs", "s", "m")}
    packed = {size: read_policy_files(policy) for size, policy in policies.items()}

    def loaded(size: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            load_policy_files(Path(folder), *packed[size])

    calls: dict[Any, Callable[[], float]] = {}
    for size, policy in policies.items():
        calls["pack", size] = partial(_cpu, partial(read_policy_files, policy))
        calls["load", size] = partial(_cpu, partial(loaded, size))
    seconds = _medians(calls, repeats)
    weights = {size: float(sum(len(each) for each in packed[size][1].values())) for size in policies}
    columns = [[1.0] * len(policies), list(weights.values())]
    return {
        "pack_s": fitted(columns, [seconds["pack", size] for size in policies]),
        "load_s": fitted(columns, [seconds["load", size] for size in policies]),
        "hand_over": {
            str(policies[size].parameters()): {
                "bytes": weights[size],
                "pack_s": seconds["pack", size],
                "load_s": seconds["load", size],
            }
            for size in policies
        },
    }


# ------------------------------------------------------------------ all of it


def calibrated(policy: Policy, *, quick: bool) -> dict[str, Any]:
    """Every cost: CPU-seconds and bytes, as one JSON object."""
    repeats = 3 if quick else 7
    engine = engine_costs(policy, repeats)
    steps, played = collection_costs(policy, engine, tasks=32 if quick else 96, repeats=repeats)
    shape = shape_of(played)
    return {
        **engine,
        **steps,
        **environment_costs(repeats, lines=16 if quick else 64, steps=24),
        **episode_costs(repeats, 4 if quick else 16),
        **learning_costs(policy, played, repeats),
        **hand_over_costs(repeats),
        "lengths": [int(steps) for steps in shape.steps],
        "parameters": policy.parameters(),
    }


def slowed_by_others(policy: Policy, repeats: int) -> float:
    """What a core loses while another process computes: 1 - CPU-seconds alone over CPU-seconds beside it, 0 or more."""
    engine, numbers = LocalEngine(policy, slots=16), count()

    def job() -> float:
        asks = [SampleAsk(None, [8 + row], _WRITTEN, seeds=(next(numbers),)) for row in range(16)]
        return _cpu(lambda: ask_and_wait(asks, engine))

    def beside() -> float:
        with _busy():
            return job()

    found = _medians({"alone": job, "beside": beside}, repeats)
    return min(0.9, max(0.0, 1 - found["alone"] / found["beside"]))


@contextmanager
def _busy() -> Iterator[None]:
    """Another process that multiplies small matrices."""
    program = "import numpy as np\na = np.ones((96, 96), np.float32)\nprint(flush=True)\nwhile True: a @ a"
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=settings) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()
            yield
        finally:
            process.kill()
