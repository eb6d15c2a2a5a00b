"""Rollout speed: environment steps per CPU-second on the default model and worlds, beside transformers' generation.

    python -m benchmarks.rollout [--json] [--quick] [--save]

The default policy (xs) is cloned from demonstrations for a short while, so that its actions have natural lengths; then
every side plays the same tasks of crafting and lookup with the same weights in float32, one thread, temperature 1, the
same agent and driver. `sequential`: HF `generate`, one episode, the whole history again each turn; `padded`: HF
`generate` over 60 episodes, padded on the left; `continuous`: transformers' continuous batching. Sides are interleaved;
ratios are of medians. `computed_over_limit`: tokens computed over the tokens of all episodes but each one's last, which
feeding every token once would cost without sharing. `gemm_share`: 2 x parameters x tokens computed, over what the bare
matrix products of the model reach in the same time on batches of the same size.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.rollout_peers import Continuous, Padded
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Engine
from evolvent.engine.local import LocalEngine
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.trajectory import Start, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup

GOALS = {"x_sequential": 15.0, "x_padded": 6.0, "computed_over_limit": 1.0, "gemm_share": 0.35}


@dataclass
class Side:
    """One way to make tokens: its engine, how many episodes it plays at once and in one pass, and its rates."""

    engine: Engine
    slots: int
    episodes: int
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """The same work for everybody."""

    policy: Policy
    worlds: dict[str, World]
    starts: list[Start]
    seed: int

    def play(self, side: Side, count: int, seed: int) -> tuple[list[Trajectory], float]:
        """Trajectories of the first starts, and the CPU-seconds they took (all threads)."""
        agent = LanguageAgent(self.policy)
        began = time.process_time()
        played = list(collect(self.worlds, self.starts[:count], agent, engine=side.engine, seed=seed, slots=side.slots))
        return played, time.process_time() - began


def prepared(*, quick: bool, seed: int) -> Bench:
    """Clone the default policy and deal the tasks, three samples each, worlds in turn."""
    worlds: list[World] = [Crafting(), Lookup()]
    tasks = {world.name: list(world.tasks("train", "seen")) for world in worlds}
    policy = make_policy(worlds, seed=seed)
    shown = collect_demonstrations(worlds, [task for each in tasks.values() for task in each[: 60 if quick else 200]])
    parts = flatten(shown, policy.dialect, instructions=lambda task: "", context=policy.context).sequences
    learner = Learner(policy, weighted_nll, TrainConfig(max_steps=150 if quick else 600), seed=seed)
    learner.fit(parts)
    learner.policy.model.eval()
    dealt = [task for pair in zip(*(each[:200] for each in tasks.values()), strict=False) for task in pair]
    starts = [Start(task, sample) for task in dealt for sample in range(3)]
    return Bench(learner.policy, {world.name: world for world in worlds}, starts, seed)


def ceiling(policy: Policy, rows: int) -> float:
    """Floating point operations per CPU-second of the model's bare matrix products on `rows` tokens."""
    config = policy.model.config
    d, f = config.hidden_size, config.intermediate_size
    shapes = [(d, 3 * d), (d, d), (d, 2 * f), (f, d)] * config.num_hidden_layers + [(d, config.vocab_size)]
    pairs = [(torch.randn(rows, a), torch.randn(a, b)) for a, b in shapes]
    work = sum(2 * rows * a * b for a, b in shapes)
    repeats = max(1, int(2e9 / work))
    with torch.inference_mode():
        began = time.process_time()
        for _ in range(repeats):
            for x, weight in pairs:
                x @ weight
        return work * repeats / (time.process_time() - began)


def tokens_at_most(played: Sequence[Trajectory]) -> int:
    """Tokens of all episodes but the last of each: what feeding every one once costs."""
    return sum(sum(len(g.ids) for g in t.generations) - 1 for t in played if any(True for _ in t.generations))


def measure(bench: Bench, sides: dict[str, Side], passes: int) -> dict[str, Any]:
    """Interleaved passes; fills the sides' rates and returns what only ours can say."""
    ours = sides["ours"].engine
    names = ("gemm_share", "ceiling_gflops", "computed_over_limit", "fed_per_s", "generated_per_s")
    raw: dict[str, list[float]] = {name: [] for name in names}
    parameters = bench.policy.parameters()
    for number in range(passes + 1):  # the first one warms up
        for name, side in sides.items():
            before = (ours.usage.computed, ours.usage.generated, ours.usage.forwards)
            played, seconds = bench.play(side, side.episodes, bench.seed + number)
            if number == 0:
                continue
            side.rates.append(sum(len(t.steps) for t in played) / seconds)
            if name == "ours":
                fed, made, forwards = (
                    a - b
                    for a, b in zip(
                        (ours.usage.computed, ours.usage.generated, ours.usage.forwards), before, strict=True
                    )
                )
                most = ceiling(bench.policy, max(4, fed // forwards))
                raw["gemm_share"].append(2 * parameters * fed / seconds / most)
                raw["ceiling_gflops"].append(most / 1e9)
                raw["computed_over_limit"].append(fed / tokens_at_most(played))
                raw["fed_per_s"].append(fed / seconds)
                raw["generated_per_s"].append(made / seconds)
    return {name: statistics.median(values) for name, values in raw.items()}


def profile_of(bench: Bench, side: Side) -> dict[str, float]:
    """Shares of the time of one pass by part, from the profiler (which slows small operations somewhat)."""
    from torch.profiler import ProfilerActivity, profile

    parts = {
        "products": ("aten::mm", "aten::addmm"),
        "attention": ("aten::scaled_dot_product", "aten::_scaled_dot"),
        "gather": ("aten::index_select",),
    }
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        _, seconds = bench.play(side, side.episodes, bench.seed)
    rows = [(row.key, row.self_cpu_time_total / 1e6) for row in profiler.key_averages()]
    shares = {part: sum(t for key, t in rows if key.startswith(keys)) / seconds for part, keys in parts.items()}
    shares["other_torch"] = sum(t for key, t in rows if key.startswith("aten::")) / seconds - sum(shares.values())
    shares["python_and_worlds"] = 1 - sum(shares.values())
    return {part: round(share, 3) for part, share in shares.items()}


def bit_equal(bench: Bench, count: int) -> float:
    """Share of episodes whose tokens and log-probabilities are the same to the last bit with 4 and 64 slots."""
    played = []
    for slots in (4, 64):
        side = Side(LocalEngine(bench.policy, slots=slots), slots, count)
        episodes, _ = bench.play(side, count, bench.seed)
        played.append({t.id: [(g.ids.tobytes(), g.logprobs.tobytes()) for g in t.generations] for t in episodes})
    return sum(played[0][name] == played[1][name] for name in played[0]) / len(played[0])


def attempt(make: Callable[[], Side], bench: Bench) -> tuple[Side | None, str]:
    """A side that works, or why it does not."""
    try:
        side = make()
        bench.play(side, 2, bench.seed)
    except (RuntimeError, ValueError, TypeError, ImportError, NotImplementedError, KeyError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"
    return side, ""


def report(*, quick: bool, seed: int) -> dict[str, Any]:
    """Everything that is measured."""
    bench = prepared(quick=quick, seed=seed)
    sides = {
        "ours": Side(LocalEngine(bench.policy, slots=192), 192, 300 if quick else 1200),
        "padded": Side(Padded(bench.policy, width=60), 60, 60 if quick else 180),
        "sequential": Side(Padded(bench.policy, width=1), 1, 6 if quick else 20),
    }
    continuous, why = attempt(lambda: Side(Continuous(bench.policy, width=60), 60, 20 if quick else 60), bench)
    if continuous is not None:
        sides["continuous"] = continuous
    own = measure(bench, sides, 2 if quick else 5)
    median = {name: statistics.median(side.rates) for name, side in sides.items()}
    return {
        "benchmark": "rollout",
        "unit": "environment steps per CPU-second, one thread",
        "goals": GOALS,
        **{f"x_{name}": round(median["ours"] / rate, 2) for name, rate in median.items() if name != "ours"},
        **({} if continuous is not None else {"x_continuous": None, "continuous_reason": why}),
        **{name: round(value, 3) for name, value in own.items()},
        "median": {name: round(rate, 1) for name, rate in median.items()},
        "raw": {name: [round(rate, 1) for rate in side.rates] for name, side in sides.items()},
        "bit_equal": bit_equal(bench, 60 if quick else 240),
        "profile": profile_of(bench, sides["ours"]),
        "parameters": bench.policy.parameters(),
        "seed": seed,
        **about("torch", "transformers", "numpy", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    few = "fewer episodes and passes: under two minutes"
    parser = command_line("rollout", __doc__, quick=few, save=RESULTS / "rollout.json")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    result = report(quick=options.quick, seed=options.seed)
    for name, rate in result["median"].items():
        print(f"{name:12} {rate:9.1f} env steps/cpu-s   ours over it {result['median']['ours'] / rate:6.2f}")
    for name in ("computed_over_limit", "gemm_share", "fed_per_s", "generated_per_s"):
        print(f"{name:24} {result[name]:10.3f}")
    print(f"{'bit_equal':24} {result['bit_equal']:10.3f}")
    print("time: " + ", ".join(f"{part} {share:.0%}" for part, share in result["profile"].items()))
    finish(result, options)


if __name__ == "__main__":
    main()
