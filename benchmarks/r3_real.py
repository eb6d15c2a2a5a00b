"""Do starts inside demonstrations help a pretrained model? The controlled study of R3 on SmolLM2-135M-Instruct.

    evolvent models get smollm2                  first, once
    python -m benchmarks.r3_real --tune          learning rates, on a development seed; resumes
    python -m benchmarks.r3_real                 freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.r3_real --report        prints what was played

The tasks are word problems whose programs have five to seven lines. The base of a seed, SmolLM2 with a LoRA adapter,
has imitated programs of two and three lines: it knows the form, and rarely gets a long program right. Two hundred long
problems have a demonstration. Every arm goes on from the base: PPO on outcomes from the beginning, R3 with starts at
the ends of all lines (`mixed`), the same starts one stage after another (`staged`), and imitation of the demonstrations
with as many learned tokens as R3. Arms of reinforcement play equally many episodes; `staged` takes the rate of
`mixed`. Measured is the share of held-out long problems whose greedy program is right.

Prediction, before any run: mixed above outcome. The study judges only where the base samples a right long program in
half a percent to fifteen percent of its tries, and where R3's critic explains a tenth of the variance of its returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.pretrained import Pretrained, RealStudy, list_interval, play_command, study_facts
from evolvent.agents.language import LanguageAgent
from evolvent.bench.study import Arm, ArmResult, ArmRun, Gate, PrimaryComparison, Study, read_costs
from evolvent.bench.verdict import StudySummary
from evolvent.engine.asks import GREEDY, Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.r3 import R3Config, r3
from evolvent.models.policy import Policy, load_policy
from evolvent.rl.settings import RLConfig
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.scale.local_backend import EvaluationPanel
from evolvent.trajectory import Json, Start, Task, Trajectory, sample_rng, sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.problems import Problems

ARMS: Mapping[str, str] = {
    "outcome": "PPO on outcomes, from the beginning",
    "mixed": "the claim: starts at the ends of all lines of the demonstrations",
    "staged": "the same starts, one stage after another",
    "sft": "is it only the demonstrations?",
}
TUNED = ("outcome", "mixed", "sft")
_RATE_OF = {"outcome": "outcome", "mixed": "mixed", "staged": "mixed", "sft": "sft"}
GATES = (
    Gate("success of the base, sampled", "base", "sampled_success", minimum=0.005, maximum=0.15),
    Gate("explained variance of the critic", "mixed", "explained_variance", minimum=0.1),
)


@dataclass(frozen=True)
class Plan:
    """What the study fixes before it runs.

    Args:
        relations: sentences with a relation in a long problem, from and to; its program has one line more, and a
            `return`. known: the same of the problems that the base imitates.
        base_demonstrations, base_tokens: problems that the base imitates, and learned tokens. base_rate: its rate.
        shown: long problems with a demonstration, which all arms practice on.
        iterations, tuned_iterations: of an arm, and of a rate that is tried. episodes: of an iteration.
        panel: held-out long problems. tuned_panel: on dev. samples: of the base, for its gate.
        development: seed of the tuning.
    """

    pretrained: Pretrained = field(default_factory=lambda: Pretrained(rank=16, context=384))
    relations: tuple[int, int] = (4, 6)
    known: tuple[int, int] = (1, 2)
    base_demonstrations: int = 200
    base_tokens: int = 3000
    base_rate: float = 1e-3
    shown: int = 200
    iterations: int = 16
    tuned_iterations: int = 6
    episodes: int = 64
    panel: int = 100
    tuned_panel: int = 40
    samples: int = 256
    max_tokens: int = 96
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    development: int = 100

    def configure(self, kind: str, *, iterations: int) -> R3Config:
        """Returns the settings of R3 for an arm."""
        practice = RLConfig(
            iterations=iterations,
            tasks_per_iteration=self.episodes,
            group_size=1,
            ppo_epochs=1,
            minibatches=4,
            save_every=max(1, iterations // 4),
        )
        stages = self.relations[1] + 1
        return R3Config.model_validate(
            {"kind": kind, "stages": stages, "at": "spans", "kl": 0.01, "partial": 0.0, "practice": practice}
        )


PLAN = Plan()
QUICK = Plan(
    base_demonstrations=6,
    base_tokens=60,
    shown=6,
    iterations=1,
    tuned_iterations=1,
    episodes=2,
    panel=2,
    tuned_panel=2,
    samples=2,
    max_tokens=16,
)
SEEDS = (0, 1, 2)


@cache
def _world() -> Problems:
    return Problems(form="program", relations=7, sizes=Sizes(train=4000, dev=400, test=600))


def list_tasks(split: str, relations: tuple[int, int], count: int, *, seed: int = 0) -> list[Task]:
    """Lists problems of a split with this many relations: as many of each number, in an order of the seed."""
    low, high = relations
    tasks = [task for tier in ("seen", "evo") for task in _world().tasks(split, tier)]
    by_length: dict[int, list[Task]] = {number: [] for number in range(low, high + 1)}
    for index in sample_rng("r3 real", split, seed).permutation(len(tasks)).tolist():
        number = len(tasks[index].kind.split()) - 1  # a kind is its relations and the form of the question
        if low <= number <= high:
            by_length[number].append(tasks[index])
    turns = zip(*by_length.values(), strict=False)
    return [task for turn in turns for task in turn][:count]


def _play_tasks(
    plan: Plan, policy: Policy, starts: Sequence[Start], sampling: Sampling, *, seed: int = 0
) -> tuple[list[Trajectory], Counter[str]]:
    """Plays starts and returns their trajectories in order, and the tokens of playing."""
    world, engine = _world(), LocalEngine(policy, slots=64)
    agent = LanguageAgent(policy, sampling, max_tokens=plan.max_tokens)
    played = collect({world.name: world}, starts, agent, engine=engine, seed=seed)
    by_start = {(trajectory.task.id, trajectory.sample): trajectory for trajectory in played}
    trajectories = [by_start[start.task.id, start.sample] for start in starts]
    if unscored := [trajectory.id for trajectory in trajectories if trajectory.success is None]:
        raise ScoringError("episodes that could not be scored", value=unscored[:5])
    return trajectories, Counter(generated=engine.usage.generated, computed=engine.usage.computed)


def _make_base(plan: Plan, folder: Path, seed: int) -> Policy:
    """Returns the policy that all arms of a seed go on from, saved in the folder."""
    path = folder / "policy"
    if not path.exists():
        world = _world()
        start = plan.pretrained.start([world], seed)
        tasks = list_tasks("train", plan.known, plan.base_demonstrations, seed=seed)
        shown = collect_demonstrations([world], tasks, seed=seed)
        with plan.pretrained.open_run(folder / "run", {world.name: world}, rate=plan.base_rate, seed=seed) as run:
            run.fit(start, shown, weighted_nll, tokens=plan.base_tokens).save(path)
    return load_policy(path)


def _train(
    plan: Plan, folder: Path, base: Policy, arm: str, *, seed: int, rate: float, iterations: int, tokens: int = 0
) -> tuple[Run[Policy], Policy]:
    """Trains an arm; returns its open run and its policy. tokens: learned tokens of `sft`."""
    world, panel = _world(), EvaluationPanel(split="dev", limit=2)  # measured when it is over
    tasks = list_tasks("train", plan.relations, plan.shown, seed=seed)
    shown = collect_demonstrations([world], tasks, seed=seed)
    run = plan.pretrained.open_run(
        folder, {world.name: world}, rate=rate, seed=seed, max_tokens=plan.max_tokens, panel=panel
    )
    if arm == "sft":
        return run, run.fit(base, shown, weighted_nll, tokens=tokens)
    return run, r3(base, tasks, shown, config=plan.configure(arm, iterations=iterations), run=run)


def _measure_success(plan: Plan, policy: Policy, split: str, count: int) -> float:
    starts = [Start(task) for task in list_tasks(split, plan.relations, count)]
    return float(np.mean([played.success is True for played in _play_tasks(plan, policy, starts, GREEDY)[0]]))


def _try_rate(plan: Plan, folder: Path, arm: str, rate: float) -> float:
    place, seed = folder / "runs" / "tuning", plan.development
    base = _make_base(plan, place / "base", seed)
    tokens = plan.tuned_iterations * plan.episodes * plan.max_tokens // 4  # about what `mixed` writes
    run, policy = _train(
        plan,
        place / f"{arm}-{rate:g}",
        base,
        arm,
        seed=seed,
        rate=rate,
        iterations=plan.tuned_iterations,
        tokens=tokens,
    )
    with run:
        return _measure_success(plan, policy, "dev", plan.tuned_panel)


def _measure(plan: Plan, policy: Policy) -> tuple[tuple[tuple[str, str, bool], ...], Counter[str]]:
    """Returns (task, kind, whether it is right) of the panel, and the tokens of playing; a kind is a length."""
    tasks = list_tasks("test", plan.relations, plan.panel)
    played, usage = _play_tasks(plan, policy, [Start(task) for task in tasks], GREEDY)
    rows = [(task.id, task.kind, trajectory.success is True) for task, trajectory in zip(tasks, played, strict=True)]
    return tuple(rows), usage


def _play_base(plan: Plan, arm_run: ArmRun) -> ArmResult:
    started = process_time()
    base = _make_base(plan, arm_run.folder, arm_run.seed)
    tasks = list_tasks("train", plan.relations, plan.shown, seed=arm_run.seed)
    starts = [Start(tasks[number % len(tasks)], number // len(tasks)) for number in range(plan.samples)]
    sampled, _ = _play_tasks(plan, base, starts, Sampling(1.0), seed=sample_seed("r3 base", arm_run.seed))
    outcomes, usage = _measure(plan, base)
    notes: dict[str, Json] = {"sampled_success": float(np.mean([played.success is True for played in sampled]))}
    tokens = Counter(read_costs(arm_run.folder / "run", verbs=("fit",))[0]) + usage
    return ArmResult({"problems/long": outcomes}, dict(tokens), process_time() - started, notes)


def _play(plan: Plan, arm_run: ArmRun, *, rate: float) -> ArmResult:
    started = process_time()
    base = load_policy(arm_run.previous["base"].folder / "policy")
    learned = 0
    if arm_run.arm == "sft":
        learned = int(str(arm_run.previous["mixed"].result.notes["learned"]))
    run, policy = _train(
        plan,
        arm_run.folder,
        base,
        arm_run.arm,
        seed=arm_run.seed,
        rate=rate,
        iterations=plan.iterations,
        tokens=max(1, learned),
    )
    with run:
        rows = run.metrics("practise")
    outcomes, usage = _measure(plan, policy)
    costs, _ = read_costs(arm_run.folder, verbs=("fit", "practise"))
    explained = [float(row["explained"]) for row in rows if row.get("explained") is not None]
    notes: dict[str, Json] = {
        "explained_variance": float(np.mean(explained[len(explained) // 2 :])) if explained else None,
        "learned": costs["trained"],
        "returns": [round(float(row["return"]), 4) for row in rows if row.get("return") is not None],
    }
    return ArmResult({"problems/long": outcomes}, dict(Counter(costs) + usage), process_time() - started, notes)


def build(plan: Plan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gates and all that its result depends on."""
    arms = [Arm("base", "imitated short programs", partial(_play_base, plan))]
    for arm, question in ARMS.items():
        after = ("base", "mixed") if arm == "sft" else ("base",)
        arms.append(Arm(arm, question, partial(_play, plan, rate=rates[_RATE_OF[arm]]), after=after))
    primary = PrimaryComparison("mixed", "outcome", tiers=("long",))
    return Study("r3_real", tuple(arms), tuple(seeds), None, primary, 0.05, study_facts(plan, rates), GATES)


def figures(summary: StudySummary, folder: Path) -> dict[str, Json]:
    """Returns R3's difference from outcomes alone, and the success of each arm."""
    difference = summary.difference
    return {
        "r3_minus_outcome_ci": list_interval(difference.interval if difference else None),
        "success": {arm.name: arm.interval.mean for arm in summary.arms if arm.interval is not None},
    }


STUDY = RealStudy("r3_real", __doc__ or "", PLAN, QUICK, SEEDS, TUNED, _try_rate, build, figures)


def main(arguments: Sequence[str] | None = None) -> None:
    play_command(STUDY, arguments)


if __name__ == "__main__":
    main()
