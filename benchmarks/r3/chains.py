"""Hidden chains: the study of R3 on worlds whose reward is sparse, with the gates under which it may judge.

    python -m benchmarks.r3 --study chains --tune        rates, on a development seed; resumes
    python -m benchmarks.r3 --study chains               freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.r3 --study chains --report      only prints what is there

A task names a word; the right answer walks on from it by an unknown permutation, 8, 12 or 16 words long, and only the
whole walk is paid. The base imitates walks whose steps are wrong half of the time, all wrong words alike: its likeliest
walks are right, so that walks are sampled wherever success is measured. (A first version measured greedy walks; it was
stopped in its first seed, and the seeds are others now.) Demonstrations show the walks from a tenth of the words. Every
arm goes on from the base of its seed: PPO on outcomes alone, staged and mixed starts at the
ends of steps, and imitation of the demonstrations with as many learned tokens as mixed. Prediction, before any run:
mixed minus outcome is above 5 points, and grows with the length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.pretrained import list_interval
from benchmarks.rates import RateGrid
from benchmarks.reporting import about, versions, write
from benchmarks.study import read_rows, study_run, summary_path, unpack, unpacked_copy
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Script
from evolvent.bench.results import ArmResult, collect_outcomes, read_costs
from evolvent.bench.study import Arm, ArmRun, Gate, PrimaryComparison, Study, StudyEvent, run_study
from evolvent.bench.verdict import StudySummary, read_summary, to_json
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.r3 import R3Config, r3
from evolvent.models.policy import Policy, load_policy
from evolvent.rl.trainer import RLConfig
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.trajectory import Json, Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.view.study import study_table
from evolvent.worlds.base import Play, TextWorld, World

__all__ = [
    "ARMS",
    "CHAINS",
    "GATES",
    "Chain",
    "ChainPlan",
    "build_study",
    "choose_rates",
    "play_chains",
    "summarize_chains",
    "tune",
    "tuning_digest",
]

WORDS = tuple(f"{first}{second}" for first in ("ba", "de", "fi", "go", "ku", "ly") for second in ("n", "r", "s", "t"))
ARMS = ("outcome", "staged", "mixed")
GATES = (
    Gate("success of the base, sampled", "base", "sampled_success", maximum=0.005),
    Gate("right steps of the base", "base", "step_accuracy", minimum=0.35, maximum=0.65),
    Gate("explained variance of the critic", "mixed", "explained_variance", minimum=0.2),
)
_SLOTS = 64

IMITATING = TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=1024)


@dataclass(frozen=True)
class ChainPlan:
    """What the study fixes before it runs.

    Args:
        lengths: steps of the walks, a world each.
        copies: tasks of each first word.
        shown: share of the first words whose walks are demonstrated.
        base_tokens: learned tokens of the base.
        iterations, tuned_iterations: of every arm with a seed, and of a rate that is tried.
        rates: the rates that every arm tries; the best must not be at an end. tuned: length of the walks there.
        development: seed of the tuning.
        samples: walks of the base by which its success and its steps are measured.
        panel: held-out tasks of each length at most, each walked once at temperature 1.
    """

    lengths: tuple[int, ...] = (8, 12, 16)
    copies: int = 40
    shown: float = 0.1
    base_tokens: int = 150_000
    iterations: int = 250
    tuned_iterations: int = 100
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3)
    tuned: int = 8
    development: int = 100
    samples: int = 1024
    panel: int = 150
    imitating: TrainConfig = IMITATING

    def configure(self, kind: str, *, length: int, iterations: int) -> R3Config:
        """Returns the settings of R3 for an arm."""
        practice = RLConfig(
            iterations=iterations,
            tasks_per_iteration=64,
            group_size=1,
            ppo_epochs=2,
            minibatches=2,
            save_every=max(1, iterations // 20),
            critic="separate",
            critic_lr=1e-3,
        )
        return R3Config.model_validate(
            {"kind": kind, "stages": length - 1, "at": "spans", "kl": 0.01, "partial": 0.0, "practice": practice}
        )

    def describe(self) -> dict[str, Any]:
        """Returns everything as JSON values."""
        plan = asdict(self) | {"imitating": version_1_values(self.imitating)}
        settings = {kind: version_1_values(self.configure(kind, length=8, iterations=self.iterations)) for kind in ARMS}
        return {**plan, "settings": settings}


CHAINS = ChainPlan()
QUICK_CHAINS = ChainPlan(
    lengths=(3,),
    copies=4,
    base_tokens=2000,
    iterations=1,
    tuned_iterations=1,
    rates=(1e-4, 1e-3, 1e-2),
    tuned=3,
    samples=32,
)


class Chain(TextWorld):
    """Walk on from a word by an unknown permutation of the words; only the whole walk is paid."""

    horizon, run_in_thread, reward_range = 1, False, (0.0, 1.0)

    def __init__(self, length: int, copies: int) -> None:
        self.name, self.length, self.copies = f"chain{length}", length, copies
        order = sample_rng("chain").permutation(len(WORDS)).tolist()
        self.next_word = {WORDS[one]: WORDS[other] for one, other in zip(order, order[1:] + order[:1], strict=True)}

    def specs(self) -> Iterable[Mapping[str, object]]:
        return [{"word": word, "copy": copy} for word in WORDS for copy in range(self.copies)]

    def walk(self, word: str, wrong: Callable[[], str | None] = lambda: None) -> str:
        """Returns the walk from a word; `wrong` returns a word to write instead of the right one, or None."""
        steps: list[str] = []
        for _ in range(self.length):
            steps.append(wrong() or self.next_word[steps[-1] if steps else word])
        return " ; ".join(steps)

    def play(self, spec: Mapping[str, object]) -> Play:
        said = yield f"walk {spec['word']}"
        return float(" ".join(said.split()) == self.walk(str(spec["word"])))

    def vocabulary(self) -> Sequence[str]:
        return ("walk", ";", *WORDS)


@cache
def _world(plan: ChainPlan, length: int) -> Chain:
    return Chain(length, plan.copies)


def _open_run(folder: Path, plan: ChainPlan, length: int, seed: int, *, rate: float | None = None) -> Run[Policy]:
    train = plan.imitating if rate is None else plan.imitating.model_copy(update={"lr": rate})
    rl_train = TrainConfig(lr=rate or 3e-4, weight_decay=0.0, warmup_steps=0, batch_tokens=4096)  # falls to a tenth
    world = _world(plan, length)
    backend = LocalBackend(
        {world.name: world},
        train,
        EvaluationPanel(limit=plan.panel, temperature=1.0),
        slots=_SLOTS,
        max_tokens=2 * length + 4,
        rl_train=rl_train,
    )
    return Run(folder, backend, seed=seed, settings=backend.settings())


def _demonstrate(world: Chain, tasks: Sequence[Task], *, seed: int, wrong: float) -> list[Trajectory]:
    """Plays walks whose steps are wrong this often."""

    def say(_: World, task: Task) -> list[str]:
        rng = sample_rng("walk", seed, task.id)
        return [world.walk(task.spec["word"], lambda: str(rng.choice(WORDS)) if rng.random() < wrong else None)]

    return list(collect({world.name: world}, [Start(task) for task in tasks], Script(say), engine=None))


def make_base(plan: ChainPlan, folder: Path, length: int, seed: int) -> Policy:
    """Returns the policy that all arms of a seed go on from, saved in the folder."""
    path = folder / "policy"
    if not path.exists():
        world = _world(plan, length)
        walks = _demonstrate(world, world.tasks("train", "seen"), seed=seed, wrong=0.5)
        with _open_run(folder / "run", plan, length, seed) as run:
            untrained = make_policy([world], seed=sample_seed("chain", seed) % 2**31, context=4 * length + 16)
            run.fit(untrained, walks, weighted_nll, tokens=plan.base_tokens).save(path)
    return load_policy(path)


def measure_base(plan: ChainPlan, policy: Policy, length: int, seed: int) -> dict[str, float]:
    """Measures the success of sampled walks, and how often a step is right, as the gates need them."""
    world = _world(plan, length)
    tasks = world.tasks("train", "seen")
    starts = [Start(tasks[number % len(tasks)], number) for number in range(plan.samples)]
    agent = LanguageAgent(policy, Sampling(1.0), max_tokens=2 * length + 4)
    engine = LocalEngine(policy, slots=_SLOTS)
    played = list(collect({world.name: world}, starts, agent, engine=engine, seed=sample_seed("base", seed)))
    is_right = []
    for trajectory in played:
        words = [trajectory.task.spec["word"], *str(trajectory.steps[-1].action).replace(";", " ").split()]
        is_right += [world.next_word.get(word) == following for word, following in pairwise(words)]
    success = float(np.mean([trajectory.success is True for trajectory in played]))
    return {"sampled_success": success, "step_accuracy": float(np.mean(is_right))}


def train_arm(
    plan: ChainPlan, folder: Path, base: Policy, kind: str, *, length: int, seed: int, rate: float, iterations: int
) -> tuple[Run[Policy], Policy]:
    """Trains an arm on walks of this length; returns its open run and its policy. An interrupted run resumes."""
    world = _world(plan, length)
    tasks = world.tasks("train", "seen")
    shown = _demonstrate(world, _shown_tasks(plan, world, seed), seed=seed, wrong=0.0)
    run = _open_run(folder, plan, length, seed, rate=rate)
    config = plan.configure(kind, length=length, iterations=iterations)
    return run, r3(base, tasks, shown, config=config, run=run)


def _shown_tasks(plan: ChainPlan, world: Chain, seed: int) -> list[Task]:
    num_shown = max(1, round(plan.shown * len(WORDS)))
    shown_words = sample_rng("shown", seed).permutation(WORDS)[:num_shown].tolist()
    return [task for task in world.tasks("train", "seen") if task.spec["word"] in shown_words]


# ---------------------------------------------------------------- rates


def tune(plan: ChainPlan, folder: Path) -> Iterable[str]:
    """Tries every rate of every arm that has no cell yet, on the dev panel; yields a line for each."""
    return _grid(plan).tune(folder, partial(_try_rate, plan, folder))


def _try_rate(plan: ChainPlan, folder: Path, kind: str, rate: float) -> float:
    length, seed = plan.tuned, plan.development
    base = make_base(plan, folder / "runs" / "tuning" / "base", length, seed)
    run, policy = train_arm(
        plan,
        folder / "runs" / "tuning" / f"{kind}-{rate:g}",
        base,
        kind,
        length=length,
        seed=seed,
        rate=rate,
        iterations=plan.tuned_iterations,
    )
    with run:
        return run.evaluate(policy, 0, split="dev")[0].mean


def tuning_digest(plan: ChainPlan) -> str:
    """Returns 16 hex digits of the plan: cells of another plan are not read."""
    return f"{sample_seed(canonical_json(plan.describe())):016x}"


def _grid(plan: ChainPlan) -> RateGrid:
    return RateGrid(ARMS, plan.rates, tuning_digest(plan))


def choose_rates(plan: ChainPlan, folder: Path) -> dict[str, float]:
    """Returns the best rate of every arm on dev (`RateGrid.choose`)."""
    return _grid(plan).choose(folder)


# ---------------------------------------------------------------- arms


def build_study(plan: ChainPlan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gates and all that its result depends on."""
    questions = {
        "outcome": "are outcomes enough where the base almost never succeeds?",
        "staged": "do starts near the end help, one stage after another?",
        "mixed": "the claim: starts at all steps of a few demonstrations",
    }
    arms = [Arm("base", "walks whose steps are wrong half of the time, imitated", partial(_play_base, plan))]
    arms += [
        Arm(kind, questions[kind], partial(_play_arm, plan, rate=rates[kind]), after=("base",)) for kind in questions
    ]
    arms.append(Arm("sft", "is it only the demonstrations?", partial(_play_sft, plan), after=("base", "mixed")))
    return Study(
        "chains",
        tuple(arms),
        tuple(seeds),
        None,
        PrimaryComparison("mixed", "outcome", tiers=("seen",)),
        facts={"plan": plan.describe(), "rates": dict(rates), "versions": versions("evolvent", "torch")},
        gates=GATES,
    )


def _play_base(plan: ChainPlan, arm_run: ArmRun) -> ArmResult:
    evaluations, notes = [], []
    for length in plan.lengths:
        base = make_base(plan, arm_run.folder / str(length), length, arm_run.seed)
        notes.append(measure_base(plan, base, length, arm_run.seed))
        with _open_run(arm_run.folder / str(length) / "run", plan, length, arm_run.seed) as run:
            evaluations += run.evaluate(base, 0)
    means = {name: float(np.mean([note[name] for note in notes])) for name in notes[0]}
    return ArmResult(collect_outcomes(evaluations), notes=means)


def _play_arm(plan: ChainPlan, arm_run: ArmRun, *, rate: float) -> ArmResult:
    evaluations, explained, cpu_s = [], [], 0.0
    tokens: Counter[str] = Counter()
    learned: dict[str, int] = {}
    for length in plan.lengths:
        folder = arm_run.folder / str(length)
        base = load_policy(arm_run.previous["base"].folder / str(length) / "policy")
        run, policy = train_arm(
            plan, folder, base, arm_run.arm, length=length, seed=arm_run.seed, rate=rate, iterations=plan.iterations
        )
        with run:
            evaluations += run.evaluate(policy, 0)
            rows = [row for row in run.metrics("practise") if row.get("explained") is not None]
        explained += [float(row["explained"]) for row in rows[-max(1, plan.iterations // 10) :]]
        costs, seconds = read_costs(folder, verbs=("practise",))
        learned[str(length)] = costs["trained"] // 2  # the separate critic learns each token too
        tokens.update(costs)
        cpu_s += seconds
    notes = {"explained_variance": float(np.mean(explained)) if explained else None, "learned": learned, "rate": rate}
    return ArmResult(collect_outcomes(evaluations), dict(tokens), cpu_s, notes)


def _play_sft(plan: ChainPlan, arm_run: ArmRun) -> ArmResult:
    evaluations, cpu_s = [], 0.0
    tokens: Counter[str] = Counter()
    learned = arm_run.previous["mixed"].result.notes["learned"]
    assert isinstance(learned, Mapping)
    for length in plan.lengths:
        folder, world = arm_run.folder / str(length), _world(plan, length)
        base = load_policy(arm_run.previous["base"].folder / str(length) / "policy")
        shown = _demonstrate(world, _shown_tasks(plan, world, arm_run.seed), seed=arm_run.seed, wrong=0.0)
        with _open_run(folder, plan, length, arm_run.seed, rate=plan.imitating.lr / 3) as run:
            policy = run.fit(base, shown, weighted_nll, tokens=max(1, int(str(learned[str(length)]))))
            evaluations += run.evaluate(policy, 0)
        costs, seconds = read_costs(folder, verbs=("fit",))
        tokens.update(costs)
        cpu_s += seconds
    return ArmResult(collect_outcomes(evaluations), dict(tokens), cpu_s)


# ---------------------------------------------------------------- the command


def play_chains(folder: Path, *, seeds: Sequence[int], step: str, quick: bool) -> dict[str, Any]:
    """Tunes ("tune"), plays ("play") or only reads ("report") the study in its folder; returns its figures.

    Raises:
        ConfigError: nothing to report, rates that were not tried, or another study in the folder.
    """
    if step == "report":
        if not read_rows(folder, "study"):
            raise ConfigError(f"{folder} does not hold a frozen study", hint="run it without --report first")
        with unpacked_copy(folder) as copy:
            return _show_figures(copy, quick=quick)
    plan = QUICK_CHAINS if quick else CHAINS
    folder.mkdir(parents=True, exist_ok=True)
    with study_run(folder):
        unpack(folder)
        if step == "tune" or quick:
            for line in tune(plan, folder):
                print(line, flush=True)
        if step == "tune":
            return {"benchmark": "r3 chains", "rates": {kind: _grid(plan).tried(folder, kind) for kind in ARMS}}
        rates = dict.fromkeys(ARMS, plan.rates[1]) if quick else choose_rates(plan, folder)
        run_study(build_study(plan, rates, seeds), folder, observe=_print_event)
        figures = _show_figures(folder, quick=quick)
    if not quick:
        write(summary_path(folder, "r3_chains"), figures)
    return figures


def _show_figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    summary = read_summary(folder)
    Console(width=110).print(study_table(to_json(summary), width=110))
    facts = about("evolvent", "torch", threads=1)
    return {"benchmark": "r3 chains", "quick": quick, **summarize_chains(summary), **facts}


def summarize_chains(summary: StudySummary) -> dict[str, Any]:
    """Computes the figures: success of every arm by length, and R3 minus outcomes alone, with their intervals."""
    success: dict[str, dict[str, list[Json] | None]] = {}
    for rate in summary.rates:
        success.setdefault(rate.arm, {})[rate.world.removeprefix("chain")] = list_interval(rate.interval)
    by_length = {
        difference.world.removeprefix("chain"): list_interval(difference.interval)
        for difference in summary.differences
        if (difference.arm, difference.against) == ("mixed", "outcome") and difference.world and not difference.tier
    }
    return {
        "digest": summary.digest,
        "verdict": summary.verdict,
        "gate_passed": summary.gate_passed,
        "gates": to_json(summary)["gates"],
        "seeds": sorted(summary.difference.by_seed) if summary.difference else [],
        "frozen_seeds": list(summary.seeds),
        "r3_minus_outcome_ci": list_interval(summary.difference.interval if summary.difference else None),
        "r3_minus_outcome_by_length": by_length,
        "p": summary.p,
        "success": success,
        "cpu_hours": round(sum(arm.cpu_s for arm in summary.arms) / 3600, 3),
        "unfinished": len(summary.unfinished),
    }


def _print_event(event: StudyEvent) -> None:
    if event.state != "known":
        print(f"{event.arm} {event.seed} {event.state} {event.why}".rstrip(), flush=True)
