"""Reward against language: ETPO and PPO over tokens at equal divergence from the reference.

    python -m benchmarks.credit --study language            plays what has no cell yet: rates, then the study; resumes
    python -m benchmarks.credit --study language --report   only prints what is there

An action is twelve words of six colors. The base, a model of 0.2 million weights, has imitated two things: random
colors at a door, and a language, chains of colors in which each has a likely successor. Learning by acting pays the
share of right colors of the door's code. Nothing pays the language; how well its held-out sentences are still known is
their perplexity. ETPO (coefficient beta) and PPO over tokens (coefficient of log pi - log reference in the reward)
have the same objective, and take the same coefficients; each plays as many episodes, with the passes over an iteration
that its command has by default (ETPO 4, PPO 2).

Every 20 iterations 256 texts are sampled: their mean return, and their divergence from the base in nats a token. An arm
may choose its coefficient and its iteration: of the points within a divergence the one of the greatest return. It is
chosen by one half of the texts and reported by the other. Frozen before it was played: ETPO's return minus PPO's within
.1 nats a token is above 0. Gates: the base returns .05 to .3, both arms gain .1 or more somewhere, and their rates lie
inside the grid. A rate is chosen by the return at its end less the coefficient times the divergence of twelve tokens:
what both arms maximize.

The limit stands beside. A base that says all colors equally often, tilted at every word, returns p at a divergence of
`p log 6p + (1 - p) log(6 (1 - p) / 5)` nats a word, and no policy returns more at this divergence from such a base. A
text of twelve words has thirteen tokens; the last one, its end, need not diverge.

Before a cell was played the plan changed twice. With coefficients from .001 to .03 every point of ETPO, and of PPO all
after 20 iterations, had more than .1 nats (development seed), and the return alone chose ETPO's smallest rate. Then the
rate of 1e-5 took the place of 3e-3, since ETPO's best of the first five was the smallest; trials of the four rates that
stayed were kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.optimize import brentq

from benchmarks.frozen import describe_gate, freeze_plan, seed_interval
from benchmarks.rates import RateGrid
from benchmarks.reporting import about, write
from benchmarks.study import load_or_make_policy, play_once, read_cells, study_run, summary_path
from benchmarks.tuning.cell import sources
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Script
from evolvent.backend import RunStage
from evolvent.bench.plan import Gate
from evolvent.bench.verdict import GateResult, check_gate
from evolvent.curate.difficulty import answer_logprobs
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.identity import version_1_values
from evolvent.learn.learner import RL_TRAIN, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.methods.etpo import ETPOConfig, etpo
from evolvent.methods.ppo import TOKEN, PPOConfig, ppo
from evolvent.models.policy import Policy
from evolvent.rl.settings import RLConfig
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import Play, TextWorld, World

__all__ = ["LANGUAGE", "QUICK_LANGUAGE", "LanguagePlan", "play_language", "report_language", "run_language"]

COLORS = ("red", "green", "blue", "gray", "white", "black")
DOORS = ("north", "south", "east", "west")
LENGTH = 12
ARMS = ("etpo", "token_ppo")
_CLAIMED_AT = 0.1  # nats a token
_WORDS = ("door", "tell", *DOORS, *COLORS)


@dataclass(frozen=True)
class LanguagePlan:
    """What the study fixes before it runs.

    Args:
        base_tokens: learned tokens of the base, on both worlds.
        coefs: of the divergence, tried by both arms. tuned_coef: the one that rates are tried with.
        levels: divergences in nats a token, at which returns are compared.
        measure_every: iterations between measurements. samples: texts of a measurement, in two halves.
        sentences: held-out sentences of the language.
    """

    base_tokens: int = 80_000
    iterations: int = 200
    tasks_per_iteration: int = 16
    group_size: int = 4
    coefs: tuple[float, ...] = (0.02, 0.03, 0.05, 0.1)
    tuned_coef: float = 0.05
    rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    levels: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    measure_every: int = 20
    samples: int = 256
    sentences: int = 64
    development: int = 100
    seeds: tuple[int, ...] = tuple(range(5))

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan: a folder holds the cells of one."""
        return f"{sample_seed(canonical_json([self.cell_digest, self.rates, self.levels])):016x}"

    @property
    def cell_digest(self) -> str:
        """Returns 16 hex digits of what a cell depends on: all but which rates are tried, and the compared levels."""
        settings = {arm: version_1_values(self.configure(arm, coef=self.tuned_coef, rate=1e-4)) for arm in ARMS}
        settings["train"] = version_1_values(RL_TRAIN)
        facts = {name: value for name, value in asdict(self).items() if name not in ("rates", "levels")}
        return f"{sample_seed(canonical_json({**facts, 'settings': settings, 'edition': 2})):016x}"

    def configure(self, arm: str, *, coef: float, rate: float) -> ETPOConfig | PPOConfig:
        """Returns the settings of an arm: the defaults of its method but for the coefficient of the divergence."""
        practice = RLConfig(
            iterations=self.iterations,
            tasks_per_iteration=self.tasks_per_iteration,
            group_size=self.group_size,
            save_every=self.iterations,
        )
        if arm == "etpo":
            return ETPOConfig(beta=coef, practice=practice.model_copy(update={"ppo_epochs": 4, "critic_lr": rate}))
        return PPOConfig.model_validate({**TOKEN, "kl": coef, "practice": practice})

    @property
    def grid(self) -> RateGrid:
        """Returns the rates that are tried."""
        return RateGrid(ARMS, self.rates, self.cell_digest)


LANGUAGE = LanguagePlan()
QUICK_LANGUAGE = LanguagePlan(
    base_tokens=2000,
    iterations=2,
    tasks_per_iteration=4,
    coefs=(0.01,),
    rates=(1e-4, 1e-3, 1e-2),
    measure_every=1,
    samples=8,
    sentences=4,
    seeds=(0, 1),
)


class Code(TextWorld):
    """Say the twelve colors of a door's code: pays the share of right ones, and nothing for another length."""

    name, horizon, run_in_thread, reward_range = "code", 1, False, (0.0, 1.0)

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"door": door, "copy": copy} for door in DOORS for copy in range(24)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"door {spec['door']}"
        indices = sample_rng("code", spec["door"]).integers(len(COLORS), size=LENGTH)
        words = said.split()
        num_right = sum(word == COLORS[index] for word, index in zip(words, indices, strict=False))
        return num_right / LENGTH if len(words) == LENGTH else 0.0

    def vocabulary(self) -> Sequence[str]:
        return _WORDS


class Talk(TextWorld):
    """Say a sentence of the language about a place; it is imitated and read, never practiced."""

    name, horizon, run_in_thread, reward_range = "talk", 1, False, (0.0, 1.0)

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"place": door, "copy": copy} for door in DOORS for copy in range(60)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"tell {spec['place']}"
        return float(len(said.split()) == LENGTH)

    def vocabulary(self) -> Sequence[str]:
        return _WORDS


def write_sentence(key: str) -> str:
    """Returns a sentence of the language: each color is followed by its successor with probability .8."""
    rng = sample_rng("sentence", key)
    index = int(rng.integers(len(COLORS)))
    words = [COLORS[index]]
    while len(words) < LENGTH:
        index = (index + 1) % len(COLORS) if rng.random() < 0.8 else int(rng.integers(len(COLORS)))
        words.append(COLORS[index])
    return " ".join(words)


def write_random_colors(key: str) -> str:
    """Returns twelve colors at random."""
    return " ".join(COLORS[index] for index in sample_rng("colors", key).integers(len(COLORS), size=LENGTH))


def _demonstrate(world: World, tasks: Sequence[Task], write_text: Callable[[str], str]) -> list[Trajectory]:
    """Plays a text for each task."""
    script = Script(lambda _, task: [write_text(task.id)])
    return list(collect({world.name: world}, [Start(task) for task in tasks], script, engine=None))


def _flatten(policy: Policy, trajectories: Sequence[Trajectory]) -> list[TokenSequence]:
    """Returns the trajectories as sequences; a text that is only its end is one, too."""
    flat = flatten(trajectories, policy.dialect, instructions=lambda _: "", context=policy.context, stops=True)
    return [sequence for sequence in flat.sequences if sequence.weight.any()]


def make_base(plan: LanguagePlan, folder: Path, seed: int) -> Policy:
    """Returns the policy of a seed that all arms begin with; made once and kept in the folder."""

    def make() -> tuple[Policy, Mapping[str, Any]]:
        worlds: list[World] = [Code(), Talk()]
        shown = [
            trajectory
            for world, write_text in zip(worlds, (write_random_colors, write_sentence), strict=True)
            for trajectory in _demonstrate(world, world.tasks("train", "seen"), write_text)
        ]
        untrained = make_policy(worlds, seed=sample_seed("language", seed) % 2**31, context=48)
        train = TrainConfig(lr=5e-3, warmup_steps=5, batch_tokens=512)
        backend = LocalBackend({world.name: world for world in worlds}, train, EvaluationPanel(limit=2))
        with TemporaryDirectory() as scratch, Run(Path(scratch), backend, seed=seed) as run:
            return run.fit(untrained, shown, weighted_nll, tokens=plan.base_tokens), {}

    return load_or_make_policy(folder, f"base-{plan.cell_digest}-{seed}", make)


def measure_policy(plan: LanguagePlan, policy: Policy, base: Policy, *, seed: int) -> dict[str, list[float]]:
    """Measures a policy on sampled texts: [first half, second half] of return and divergence, and the perplexity.

    The divergence is the mean of log pi - log reference over the sampled tokens, in nats a token.
    """
    world = Code()
    tasks = world.tasks("train", "seen")
    starts = [Start(tasks[number % len(tasks)], number // len(tasks)) for number in range(plan.samples)]
    agent, engine = LanguageAgent(policy, Sampling(1.0), max_tokens=LENGTH + 8), LocalEngine(policy, slots=64)
    played = {
        (trajectory.task.id, trajectory.sample): trajectory
        for trajectory in collect({world.name: world}, starts, agent, engine=engine, seed=seed)
    }
    texts = [played[start.task.id, start.sample] for start in starts]
    halves = [texts[half::2] for half in (0, 1)]
    returns = [fmean(float(trajectory.score.raw or 0.0) for trajectory in half) for half in halves]
    divergences = [_measure_divergence(policy, base, _flatten(policy, half)) for half in halves]
    talk = Talk()
    held_out = _demonstrate(talk, talk.tasks("test", "seen")[: plan.sentences], write_sentence)
    known = np.concatenate(answer_logprobs(policy, _flatten(policy, held_out)))
    return {
        "return": [round(value, 4) for value in returns],
        "kl": [round(value, 5) for value in divergences],
        "perplexity": [round(float(np.exp(-known.mean())), 4)],
    }


def _measure_divergence(policy: Policy, base: Policy, sequences: Sequence[TokenSequence]) -> float:
    """Returns the mean over sampled tokens of log pi - log reference; 0 where no text has a token."""
    if not sequences:
        return 0.0
    pairs = zip(answer_logprobs(policy, sequences), answer_logprobs(base, sequences), strict=True)
    return float(np.concatenate([own - reference for own, reference in pairs]).mean())


class _Measuring(LocalBackend):
    """A backend whose reinforcement calls `measure` every few iterations, in place of an evaluation."""

    measure: Callable[[Policy, int], None]
    every = 1

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        trainer = super().train_rl(policy, stage, spec=spec)
        iterate = trainer.iterations

        def iterate_and_measure() -> Iterator[int]:
            for number in iterate():
                yield number
                if number % self.every == 0:
                    self.measure(trainer.policy, number)

        vars(trainer).update(iterations=iterate_and_measure, should_evaluate=lambda: False)
        return trainer


def train_arm(
    plan: LanguagePlan, base: Policy, arm: str, *, coef: float, rate: float, seed: int
) -> list[dict[str, list[float]]]:
    """Trains an arm and returns the measurements on its way."""
    world = Code()
    points: list[dict[str, list[float]]] = []
    backend = _Measuring(
        {world.name: world},
        None,
        EvaluationPanel(limit=2),
        slots=64,
        max_tokens=LENGTH + 8,
        rl_train=RL_TRAIN.model_copy(update={"lr": rate}),
    )
    backend.every = plan.measure_every
    backend.measure = lambda policy, number: points.append(
        measure_policy(plan, policy, base, seed=sample_seed("language", seed, number))
    )
    with TemporaryDirectory() as scratch, Run(Path(scratch), backend, seed=seed) as run:
        config = plan.configure(arm, coef=coef, rate=rate)
        if isinstance(config, ETPOConfig):
            etpo(base, world.tasks("train", "seen"), config=config, run=run)
        else:
            ppo(base, world.tasks("train", "seen"), config=config, run=run)
    return points


def _try_rate(plan: LanguagePlan, folder: Path, arm: str, rate: float) -> float:
    seed = plan.development
    points = train_arm(plan, make_base(plan, folder, seed), arm, coef=plan.tuned_coef, rate=rate, seed=seed)
    return fmean(points[-1]["return"]) - plan.tuned_coef * LENGTH * fmean(points[-1]["kl"])


def _play_cell(plan: LanguagePlan, folder: Path, arm: str, coef: float, seed: int, rate: float) -> dict[str, Any]:
    began = time.process_time()
    base = make_base(plan, folder, seed)
    start = measure_policy(plan, base, base, seed=sample_seed("language", seed, 0))
    points = [start, *train_arm(plan, base, arm, coef=coef, rate=rate, seed=seed)]
    cell = {"arm": arm, "coef": coef, "seed": seed, "rate": rate, "digest": plan.cell_digest, "points": points}
    return {**cell, "sources": sources(), "cpu_s": round(time.process_time() - began, 1)}


def play_language(folder: Path, plan: LanguagePlan) -> None:
    """Tries the rates and plays the cells that are missing, and keeps each."""
    with study_run(folder):
        freeze_plan(folder, asdict(plan), plan.digest)
        for line in plan.grid.tune(folder, partial(_try_rate, plan, folder)):
            print(line, flush=True)
        rates = _choose_rates(plan, folder)
        for seed, coef, arm in product(plan.seeds, plan.coefs, ARMS):
            key = f"{arm}-{coef:g}-{seed}"
            run = partial(_play_cell, plan, folder, arm, coef, seed, rates[arm])
            if (row := play_once(folder, key, plan.cell_digest, run)) is not None:
                last = row["points"][-1]
                print(f"{key:20} return {last['return']} kl {last['kl']} perplexity {last['perplexity']}", flush=True)


def _choose_rates(plan: LanguagePlan, folder: Path) -> dict[str, float]:
    """Returns the best rate of each arm, at an end of the grid or not: the gate looks at that."""
    chosen = {}
    for arm in ARMS:
        tried = plan.grid.tried(folder, arm)
        chosen[arm] = max(tried, key=lambda rate: (tried[rate], -rate))
    return chosen


# ------------------------------------------------------------------ figures


def choose_point(points: Sequence[Mapping[str, Sequence[float]]], level: float) -> Mapping[str, Sequence[float]]:
    """Returns the point of the greatest return within a divergence, both read off the first half of the texts.

    The base, whose divergence is 0, is among the points.

    >>> choose_point([{"return": [.1, .1], "kl": [0, 0]}, {"return": [.5, .4], "kl": [.2, .2]}], level=.1)["return"]
    [0.1, 0.1]
    """
    within = [point for point in points if point["kl"][0] <= level]
    return max(within or points[:1], key=lambda point: point["return"][0])


def compute_limit(level: float) -> float:
    """Computes the largest share of right colors within a divergence from colors at random, in nats a token.

    >>> round(compute_limit(0.1), 3), compute_limit(2.0)
    (0.36, 1.0)
    """
    word_level = level * (LENGTH + 1) / LENGTH  # the end of a text is a token too, and need not diverge
    if word_level >= np.log(len(COLORS)):
        return 1.0

    def exceed(share: float) -> float:
        rest = (1 - share) * np.log((1 - share) * len(COLORS) / (len(COLORS) - 1))
        return float(share * np.log(share * len(COLORS)) + rest - word_level)

    return float(brentq(exceed, 1 / len(COLORS), 1 - 1e-12))


def report_language(folder: Path, plan: LanguagePlan) -> dict[str, Any]:
    """Computes all figures of the kept cells, over the seeds that have every one."""
    rows = [row for row in (read_cells(folder, plan.cell_digest) if folder.is_dir() else []) if "points" in row]
    by_seed = {
        seed: {arm: [row for row in rows if row["seed"] == seed and row["arm"] == arm] for arm in ARMS}
        for seed in plan.seeds
    }
    finished = [seed for seed in plan.seeds if all(len(by_seed[seed][arm]) == len(plan.coefs) for arm in ARMS)]
    if not finished:
        raise ConfigError(f"{folder.name}: no seed has finished", hint="run the study without --report")
    points = {
        arm: {seed: [point for row in by_seed[seed][arm] for point in row["points"]] for seed in finished}
        for arm in ARMS
    }
    figures: dict[str, Any] = {
        "return": {},
        "perplexity": {},
        "etpo_minus_ppo_return": {},
        "etpo_over_ppo_perplexity": {},
    }
    for level in plan.levels:
        chosen = {arm: {seed: choose_point(own, level) for seed, own in points[arm].items()} for arm in ARMS}
        returns = {arm: {seed: point["return"][1] for seed, point in own.items()} for arm, own in chosen.items()}
        known = {arm: {seed: point["perplexity"][0] for seed, point in own.items()} for arm, own in chosen.items()}
        logs = {arm: {seed: float(np.log(value)) for seed, value in own.items()} for arm, own in known.items()}
        name = f"{level:g}"
        figures["return"][name] = {arm: seed_interval(own) for arm, own in returns.items()}
        figures["perplexity"][name] = {arm: seed_interval(own) for arm, own in known.items()}
        figures["etpo_minus_ppo_return"][name] = seed_interval(returns["etpo"], returns["token_ppo"])
        ratio = seed_interval(logs["etpo"], logs["token_ppo"])
        figures["etpo_over_ppo_perplexity"][name] = [round(float(np.exp(value)), 4) for value in ratio]
    starts = {seed: fmean(points["etpo"][seed][0]["return"]) for seed in finished}
    gates = _check_gates(plan, folder, points, starts)
    claimed = figures["etpo_minus_ppo_return"].get(f"{_CLAIMED_AT:g}")
    passed = all(gate.passed for gate in gates) and len(finished) == len(plan.seeds)
    return {
        "benchmark": "credit_language",
        "digest": plan.digest,
        "gate_passed": passed,
        "gates": [describe_gate(gate) for gate in gates],
        "etpo_minus_ppo_ci": claimed,
        **figures,
        "base": {
            "return": round(fmean(starts.values()), 4),
            "perplexity": round(fmean(points["etpo"][seed][0]["perplexity"][0] for seed in finished), 4),
        },
        "rates": _choose_rates(plan, folder),
        "tried": {arm: {f"{rate:g}": value for rate, value in plan.grid.tried(folder, arm).items()} for arm in ARMS},
        "seeds": finished,
        "cpu_hours": round(sum(row["cpu_s"] for row in rows) / 3600, 3),
        "points": {
            arm: [
                [round(point["kl"][1], 4), round(point["return"][1], 4)] for listed in own.values() for point in listed
            ]
            for arm, own in points.items()
        },
        "frontier": [[nats / 50, round(compute_limit(nats / 50), 4)] for nats in range(60)],
        "limit": {f"{level:g}": round(compute_limit(level), 4) for level in plan.levels},
        "interval": "95 %, over seeds in pairs",
        "sources": sorted({row["sources"] for row in rows}),
        **about("evolvent", "torch", "numpy", threads=1),
    }


def _check_gates(
    plan: LanguagePlan,
    folder: Path,
    points: Mapping[str, Mapping[int, Sequence[Mapping[str, Sequence[float]]]]],
    starts: Mapping[int, float],
) -> list[GateResult]:
    results = [check_gate(Gate("return of the base", "base", "return", minimum=0.05, maximum=0.3), starts)]
    rates = _choose_rates(plan, folder)
    for arm in ARMS:
        gains = {seed: max(fmean(point["return"]) for point in own) - starts[seed] for seed, own in points[arm].items()}
        results.append(check_gate(Gate(f"largest gain of {arm}", arm, "gain", minimum=0.1), gains))
        inside = float(rates[arm] not in (min(plan.rates), max(plan.rates)))
        gate = Gate(f"rate of {arm} inside the grid", arm, "rate_inside", minimum=1.0)
        results.append(check_gate(gate, {plan.development: inside}))
    return results


def show_language(figures: Mapping[str, Any]) -> None:
    """Prints the table for people."""
    print(f"base: return {figures['base']['return']:.3f}, perplexity {figures['base']['perplexity']:.2f}")
    for level, own in figures["return"].items():
        for arm, (mean, low, high) in own.items():
            perplexity = figures["perplexity"][level][arm][0]
            print(
                f"within {level} nats  {arm:10} return {mean:.3f} [{low:.3f}, {high:.3f}]  perplexity {perplexity:.2f}"
            )
        mean, low, high = figures["etpo_minus_ppo_return"][level]
        print(f"within {level} nats  ETPO minus PPO {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
        print(f"within {level} nats  limit      return {figures['limit'][level]:.3f}")
    for gate in figures["gates"]:
        print(f"gate {gate['name']}: {gate['value']}, {'passed' if gate['passed'] else 'failed'}")
    print(f"gates passed: {figures['gate_passed']}; seeds {figures['seeds']}; {figures['cpu_hours']:.2f} CPU-hours")


def run_language(folder: Path, *, quick: bool, play: bool) -> dict[str, Any]:
    """Plays what is missing where asked, keeps the summary, and returns the figures."""
    plan = QUICK_LANGUAGE if quick else LANGUAGE
    if play:
        play_language(folder, plan)
    figures = {**report_language(folder, plan), "quick": quick}
    if play and not quick:
        write(summary_path(folder, "credit_language"), figures)
    show_language(figures)
    return figures
