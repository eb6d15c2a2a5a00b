"""Does a pretrained model choose its own data? The controlled study of P3 on SmolLM2-135M-Instruct with wrong answers.

    evolvent models get smollm2                  first, once
    python -m benchmarks.p3_real --tune          learning rates, on a development seed; resumes
    python -m benchmarks.p3_real                 freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.p3_real --report        prints what was played

The pool holds word problems with the program that answers each; two of five have the program of another problem of
their kind. The base of a seed has learned some right ones of the lowest level. All arms go on from it with as many
learned tokens in as many rounds: P3 (easiest first, a determinant over features, easiness as quality), as many drawn
at random, the whole pool, and, as what could be reached, as many drawn among the right ones (`clean`). The panels are
held-out problems of all levels and of one more.

Prediction, before any run: P3 above random, random at the whole pool. The study judges only where the base's score
tells wrong answers from right ones (AUC of .7 or more), and solves some problems but not most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
from scipy.stats import mannwhitneyu

from benchmarks.p3 import cell as pool
from benchmarks.pretrained import Pretrained, RealStudy, list_interval, play_command, study_facts
from evolvent.bench.study import Arm, ArmResult, ArmRun, Gate, PrimaryComparison, Study, read_costs
from evolvent.bench.verdict import StudySummary
from evolvent.curate.difficulty import answer_logprobs, mean_logprob_score
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.p3 import FULL, P3Config, p3
from evolvent.models.policy import Policy, load_policy
from evolvent.trajectory import Json, Task

TASK = "programs"
ARMS: Mapping[str, Mapping[str, object]] = {"p3": {"quality": True}, "random": FULL, "pool": FULL, "clean": FULL}
TUNED = ("random", "p3")
_RATE_OF = {"p3": "p3", "random": "random", "pool": "random", "clean": "random"}
GATES = (
    Gate("AUC of the base's score for right against wrong answers", "base", "auc", minimum=0.7),
    Gate("success of the base", "base", "success", minimum=0.05, maximum=0.7),
)


@dataclass(frozen=True)
class Plan:
    """What the study fixes before it runs.

    Args:
        protocol: of the pool: its size, the share of wrong answers, samples and rounds, learned tokens of a round.
        base_rate: learning rate of the base. development: seed of the tuning.
        tuned_rounds, tuned_panel: of a rate that is tried; problems are of each tier, on dev.
    """

    pretrained: Pretrained = field(default_factory=lambda: Pretrained(rank=16, context=512))
    protocol: pool.Protocol = field(
        default_factory=lambda: pool.Protocol(
            pool=1000, chosen=200, rounds=4, tokens=6000, base=3000, noise=0.4, panel=100, context=512
        )
    )
    base_rate: float = 1e-3
    tuned_rounds: int = 1
    tuned_panel: int = 40
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    development: int = 100


PLAN = Plan()
QUICK = Plan(
    protocol=pool.Protocol(pool=12, chosen=4, rounds=1, tokens=60, base=60, noise=0.4, panel=2, context=512),
    tuned_panel=2,
)
SEEDS = (0, 1, 2)


def _make_base(plan: Plan, folder: Path, seed: int) -> Policy:
    """Returns the policy that all arms of a seed go on from, saved in the folder."""
    path = folder / "policy"
    if not path.exists():
        world = pool.world_of(plan.protocol, TASK)
        start = plan.pretrained.start([world], seed)
        known, _ = pool.drawn(plan.protocol, TASK, seed)
        shown = pool.parts_of(world, start, known[: plan.protocol.pool], seed)
        with plan.pretrained.open_run(folder / "run", {world.name: world}, rate=plan.base_rate, seed=seed) as run:
            run.fit(start, shown, weighted_nll, tokens=plan.protocol.base).save(path)
    return load_policy(path)


def _read_pool(plan: Plan, policy: Policy, seed: int) -> tuple[list[TokenSequence], list[bool]]:
    """Returns the pool with its wrong answers, and whether each answer is right."""
    world = pool.world_of(plan.protocol, TASK)
    _, tasks = pool.drawn(plan.protocol, TASK, seed)
    right = pool.parts_of(world, policy, tasks, seed)
    shown = pool.parts_of(world, policy, tasks, seed, noise=plan.protocol.noise)
    return shown, [np.array_equal(one.ids, other.ids) for one, other in zip(shown, right, strict=True)]


def measure_auc(scores: Sequence[float], is_right: Sequence[bool]) -> float:
    """Returns how often a right answer has the higher score of a right and a wrong one; a tie counts half."""
    chosen = np.asarray(scores, float)
    flags = np.asarray(is_right, bool)
    statistic = float(mannwhitneyu(chosen[flags], chosen[~flags]).statistic)
    return statistic / (int(flags.sum()) * int((~flags).sum()))


def _train(plan: Plan, folder: Path, base: Policy, arm: str, *, seed: int, rate: float, rounds: int) -> Policy:
    world = pool.world_of(plan.protocol, TASK)
    shown, is_right = _read_pool(plan, base, seed)
    if arm == "clean":
        shown = [sequence for sequence, right in zip(shown, is_right, strict=True) if right]
    count = len(shown) if arm == "pool" else plan.protocol.chosen
    settings = {"rounds": rounds, "count": count, "tokens": plan.protocol.tokens, **ARMS[arm]}
    with plan.pretrained.open_run(folder, {world.name: world}, rate=rate, seed=seed, panel=pool.ROUNDS) as run:
        return p3(base, shown, config=P3Config.model_validate(settings), run=run)


def _solve(plan: Plan, policy: Policy, tasks: Sequence[Task]) -> tuple[list[int], int]:
    return pool.solved(plan.protocol, policy, pool.world_of(plan.protocol, TASK), tasks)


def _try_rate(plan: Plan, folder: Path, arm: str, rate: float) -> float:
    place, seed = folder / "runs" / "tuning", plan.development
    base = _make_base(plan, place / "base", seed)
    policy = _train(plan, place / f"{arm}-{rate:g}", base, arm, seed=seed, rate=rate, rounds=plan.tuned_rounds)
    tasks = [
        task
        for tier in pool.TIERS
        for task in pool.world_of(plan.protocol, TASK).tasks("dev", tier)[: plan.tuned_panel]
    ]
    return float(np.mean(_solve(plan, policy, tasks)[0]))


def _measure(plan: Plan, policy: Policy) -> tuple[dict[str, tuple[tuple[str, str, bool], ...]], float, int]:
    """Returns the outcomes on the panels, the mean success over them, and the tokens that were generated."""
    tasks = pool.panel(plan.protocol, TASK)
    solved, generated = _solve(plan, policy, tasks)
    outcomes: dict[str, list[tuple[str, str, bool]]] = {}
    for task, success in zip(tasks, solved, strict=True):
        outcomes.setdefault(f"{TASK}/{task.tier}", []).append((task.id, task.kind, bool(success)))
    return {panel: tuple(rows) for panel, rows in outcomes.items()}, float(np.mean(solved)), generated


def _play_base(plan: Plan, arm_run: ArmRun) -> ArmResult:
    started = process_time()
    base = _make_base(plan, arm_run.folder, arm_run.seed)
    shown, is_right = _read_pool(plan, base, arm_run.seed)
    auc = measure_auc(mean_logprob_score(answer_logprobs(base, shown)).tolist(), is_right)
    outcomes, success, generated = _measure(plan, base)
    notes: dict[str, Json] = {"auc": auc, "success": success, "wrong": 1 - sum(is_right) / len(is_right)}
    tokens = Counter(read_costs(arm_run.folder / "run", verbs=("fit",))[0])
    tokens["generated"] += generated
    return ArmResult(outcomes, dict(tokens), process_time() - started, notes)


def _play(plan: Plan, arm_run: ArmRun, *, rate: float) -> ArmResult:
    started = process_time()
    base = load_policy(arm_run.previous["base"].folder / "policy")
    rounds = plan.protocol.rounds
    policy = _train(plan, arm_run.folder, base, arm_run.arm, seed=arm_run.seed, rate=rate, rounds=rounds)
    outcomes, success, generated = _measure(plan, policy)
    tokens = Counter(read_costs(arm_run.folder, verbs=("fit",))[0])
    tokens["generated"] += generated
    return ArmResult(outcomes, dict(tokens), process_time() - started, {"success": success})


def build(plan: Plan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gates and all that its result depends on."""
    questions = {
        "p3": "the claim: the policy's own choice leaves wrong answers out",
        "random": "as many samples, drawn at random",
        "pool": "all samples, as often as the tokens allow",
        "clean": "what could be reached: only right answers",
    }
    arms = [Arm("base", "some right answers of the lowest level", partial(_play_base, plan))]
    arms += [Arm(arm, questions[arm], partial(_play, plan, rate=rates[_RATE_OF[arm]]), after=("base",)) for arm in ARMS]
    primary = PrimaryComparison("p3", "random", tiers=pool.TIERS, upper="clean")
    return Study("p3_real", tuple(arms), tuple(seeds), None, primary, 0.03, study_facts(plan, rates), GATES)


def figures(summary: StudySummary, folder: Path) -> dict[str, Json]:
    """Returns the figures of P3: its difference from random, and the success of each arm."""
    difference = summary.difference
    return {
        "p3_minus_random_ci": list_interval(difference.interval if difference else None),
        "success": {arm.name: arm.interval.mean for arm in summary.arms if arm.interval is not None},
        "share_of_clean": summary.room,
    }


STUDY = RealStudy("p3_real", __doc__ or "", PLAN, QUICK, SEEDS, TUNED, _try_rate, build, figures)


def main(arguments: Sequence[str] | None = None) -> None:
    play_command(STUDY, arguments)


if __name__ == "__main__":
    main()
