"""What is a retrieved thought worth to a reader that follows demonstrations? The controlled study of TRAD on SmolLM2.

    evolvent models get smollm2                  first, once
    python -m benchmarks.trad_real --tune        learning rates of the reader, on a development seed; resumes
    python -m benchmarks.trad_real               freezes the study with the chosen rate, and plays it; resumes
    python -m benchmarks.trad_real --report      prints what was played

The world is the back office, with tasks that take the expert at most five steps. Its commands are hidden behind words
without a meaning, others in every prompt that is learned and in play (`benchmarks.trad_agents.lessons`): what a command
is called, only the demonstrations of a prompt tell. The reader of a seed, SmolLM2 with a LoRA adapter, learns the
expert's answers to prompts of all systems in equal shares. Then every system plays the same tasks with the same
weights, and at most 500, 1,000 and 2,000 tokens in a prompt: demonstrations fill it, the best first.

Prediction, before any run: TRAD above Synapse at 500 tokens, where no whole demonstration of another task fits beside
the task's own, and no difference at 2,000. The study judges only where the reader gives the right action in nine of ten
steps whose command a demonstration shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.pretrained import Pretrained, RealStudy, list_interval, play_command, study_facts
from benchmarks.trad_agents.cell import acts, followed, is_told
from benchmarks.trad_agents.lessons import (
    UNSHOWN,
    Code,
    Coded,
    Protocol,
    agent_config,
    lessons,
    memory_of,
    panel,
    world_of,
)
from evolvent.agents.writers import writer_for
from evolvent.bench.study import Arm, ArmResult, ArmRun, Gate, PrimaryComparison, Study, read_costs
from evolvent.bench.verdict import StudySummary
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.trad import trad
from evolvent.models.policy import Policy, load_policy
from evolvent.trajectory import Json, Start, sample_rng

WORLD = "backoffice"
ARMS: Mapping[str, tuple[str, str]] = {
    "trad": ("trad", "the claim: windows around steps with a similar thought"),
    "synapse": ("synapse", "whole demonstrations of similar tasks"),
    "rap": ("rap", "windows around steps with a similar observation"),
    "react": ("react", "fixed demonstrations"),
    "unshown": (UNSHOWN, "nothing is shown"),
}
"""Systems of `benchmarks.trad_agents`, and what each shows."""
GATES = (Gate("steps right after the right demonstration", "reader", "followed", minimum=0.9),)


@dataclass(frozen=True)
class Plan:
    """What the study fixes before it runs.

    Args:
        protocol: tasks, their length, and how demonstrations are cut.
        lessons: prompts that are learned. lesson_tokens: no lesson is longer.
        tokens, tuned_tokens: learned tokens of the reader, and of a rate that is tried.
        budgets: most tokens of a prompt in play. shots: demonstrations that are looked for.
        development: seed of the tuning.
    """

    pretrained: Pretrained = field(default_factory=lambda: Pretrained(rank=16, context=2304, batch_tokens=2048))
    protocol: Protocol = field(default_factory=lambda: Protocol(shown=48, test=16, k=2, tokens=(48, 48)))
    lessons: int = 600
    lesson_tokens: int = 1000
    tokens: int = 6000
    tuned_tokens: int = 3000
    budgets: tuple[int, ...] = (500, 1000, 2000)
    shots: int = 12
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    development: int = 100


PLAN = Plan()
QUICK = Plan(
    protocol=Protocol(shown=8, test=2, k=1, tokens=(16, 16)),
    lessons=6,
    lesson_tokens=700,
    tokens=40,
    budgets=(500,),
    shots=2,
)
SEEDS = (0, 1, 2)


def _make_lesson(policy: Policy, prompt: str, answer: str, name: str) -> TokenSequence:
    """Returns a prompt and its answer as tokens; the answer is learned."""
    read, written = policy.dialect.open("", prompt), policy.dialect.action(answer)
    ids = np.array([*read, *written], np.int32)
    steps = np.zeros(len(ids), np.int32)
    weight = (np.arange(len(ids)) >= len(read)).astype(np.float32)
    return TokenSequence(name, ids, weight > 0, weight < 0, np.zeros(len(ids), np.float32), steps, steps - 1, weight)


def _draw_lessons(plan: Plan, policy: Policy, seed: int) -> list[TokenSequence]:
    """Returns prompts of all systems in equal shares, each in another code."""
    rng = sample_rng("trad real", seed)
    drawn = []
    for number in range(plan.lessons):
        system = [*ARMS.values()][number % len(ARMS)][0]
        asked = [lesson for task in lessons(plan.protocol, WORLD, system, "train") for lesson in task]
        lesson = asked[int(rng.integers(len(asked)))]
        prompt, answer = Code.drawn(WORLD, "lesson", seed, number).hide_lesson(lesson)
        sequence = _make_lesson(policy, prompt, answer, f"{system}-{number}")
        drawn += [sequence] if len(sequence) <= plan.lesson_tokens else []
    return drawn


def _train(plan: Plan, folder: Path, *, seed: int, rate: float, tokens: int) -> Policy:
    """Returns the reader of a seed, saved in the folder."""
    path = folder / "policy"
    if not path.exists():
        world = world_of(plan.protocol, WORLD)
        start = plan.pretrained.start([world], seed)
        with plan.pretrained.open_run(folder / "run", {WORLD: world}, rate=rate, seed=seed) as run:
            run.fit(start, _draw_lessons(plan, start, seed), weighted_nll, tokens=tokens).save(path)
    return load_policy(path)


def _measure_followed(plan: Plan, policy: Policy, seed: int, split: str) -> dict[str, float]:
    """Returns by task how often the reader acts as the expert where a demonstration shows the command, the thought is
    the expert's and so are the steps before.
    """
    tasks = panel(plan.protocol, WORLD, split)
    asked = dict(zip((task.id for task in tasks), lessons(plan.protocol, WORLD, "trad", split), strict=True))
    told = {task_id: [lesson for lesson in acts(each) if is_told(lesson)] for task_id, each in asked.items()}
    told = {task_id: each for task_id, each in told.items() if each}
    shares = followed([*told.values()], policy, Code.drawn(WORLD, "play", seed), LocalEngine(policy, slots=16))
    return dict(zip(told, shares, strict=True))


def _try_rate(plan: Plan, folder: Path, arm: str, rate: float) -> float:
    seed, place = plan.development, folder / "runs" / "tuning" / f"{arm}-{rate:g}"
    reader = _train(plan, place, seed=seed, rate=rate, tokens=plan.tuned_tokens)
    return float(np.mean([*_measure_followed(plan, reader, seed, "dev").values()]))


def _play_reader(plan: Plan, arm_run: ArmRun, *, rate: float) -> ArmResult:
    started = process_time()
    reader = _train(plan, arm_run.folder, seed=arm_run.seed, rate=rate, tokens=plan.tokens)
    shares = _measure_followed(plan, reader, arm_run.seed, "test")
    kinds = {task.id: task.kind for task in panel(plan.protocol, WORLD, "test")}
    steps = tuple((task_id, kinds[task_id], share == 1) for task_id, share in shares.items())
    notes: dict[str, Json] = {"followed": float(np.mean([*shares.values()]))}
    tokens = read_costs(arm_run.folder / "run", verbs=("fit",))[0]
    return ArmResult({f"{WORLD}/steps": steps}, dict(tokens), process_time() - started, notes)


def _play(plan: Plan, arm_run: ArmRun) -> ArmResult:
    """Plays the tasks with a system, once for each size of prompts."""
    started = process_time()
    reader = load_policy(arm_run.previous["reader"].folder / "policy")
    world, tasks = world_of(plan.protocol, WORLD), panel(plan.protocol, WORLD, "test")
    code, system = Code.drawn(WORLD, "play", arm_run.seed), ARMS[arm_run.arm][0]
    config = agent_config(plan.protocol, WORLD, system).model_copy(update={"k": plan.shots})
    outcomes, tokens, read = {}, Counter[str](), dict[str, Json]()
    for budget in plan.budgets:
        policy = replace(reader, limit=budget + max(plan.protocol.tokens))
        engine = LocalEngine(policy, slots=plan.protocol.slots)
        played = trad(
            Coded(writer_for(policy), code),
            [*map(Start, tasks)],
            config=config,
            worlds={world.name: world},
            memory=None if system == UNSHOWN else memory_of(plan.protocol, WORLD),
            engine=engine,
            seed=arm_run.seed,
        )
        episodes = {episode.task.id: episode for episode in played}
        if failed := [episode.id for episode in episodes.values() if episode.success is None]:
            raise ScoringError("episodes that could not be scored", value=failed[:5])
        outcomes[f"{WORLD}/{budget}"] = tuple((task.id, task.kind, bool(episodes[task.id].success)) for task in tasks)
        prompts = [int((~generation.sampled).sum()) for each in episodes.values() for generation in each.generations]
        read[f"prompt_tokens_{budget}"] = float(np.mean(prompts))
        tokens.update(generated=engine.usage.generated, computed=engine.usage.computed)
    return ArmResult(outcomes, dict(tokens), process_time() - started, read)


def build(plan: Plan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gate and all that its result depends on."""
    arms = [Arm("reader", "learns to read demonstrations", partial(_play_reader, plan, rate=rates["reader"]))]
    arms += [Arm(name, question, partial(_play, plan), after=("reader",)) for name, (_, question) in ARMS.items()]
    primary = PrimaryComparison("trad", "synapse", tiers=tuple(map(str, plan.budgets)))
    return Study("trad_real", tuple(arms), tuple(seeds), None, primary, 0.05, study_facts(plan, rates), GATES)


def figures(summary: StudySummary, folder: Path) -> dict[str, Json]:
    """Returns the figures of TRAD: its difference from Synapse, and each system's success by tokens of a prompt."""
    success: dict[str, Json] = {}
    for system in ARMS:
        rates = {rate.tier: list_interval(rate.interval) for rate in summary.rates if rate.arm == system}
        success |= {system: dict(rates)} if rates else {}
    difference = summary.difference
    return {
        "trad_minus_synapse_ci": list_interval(difference.interval if difference else None),
        "success": success,
    }


STUDY = RealStudy("trad_real", __doc__ or "", PLAN, QUICK, SEEDS, ("reader",), _try_rate, build, figures)


def main(arguments: Sequence[str] | None = None) -> None:
    play_command(STUDY, arguments)


if __name__ == "__main__":
    main()
