"""What a retrieved step is worth by the size of a prompt: TRAD and three others, for a reader that passes a gate.

    python -m benchmarks.trad_agents --study budgets            plays what has no cell yet; resumes
    python -m benchmarks.trad_agents --study budgets --report   only prints what is there
    python -m benchmarks.trad_agents --study budgets --develop  the development seed on dev tasks, in its own folder

The world is the back office, with its commands hidden behind words without a meaning, others in every prompt that is
learned and in play (`benchmarks.trad_agents.lessons`): what a command is called, only the demonstrations of a prompt
tell. Thoughts end with the command's name in clear. Remembered are short tasks of kinds that training has; played are
kinds that it has not, six to nine steps long for the expert. So no whole demonstration is of the same kind, but each
step resembles some remembered one. Records are named by their key or by one value: kinds that compare numbers, or read
twice to find a record, are left out, since the reader is small.

The reader of a seed begins with heads that look up (`benchmarks.looking_up`) and learns the expert's answers to prompts
of all systems in equal shares, at both sizes of prompts. Then every system plays the same tasks with the same weights
and at most 600 and 900 tokens (words) in a prompt: as many demonstrations as fit, the best first.

Prediction, frozen before the study: TRAD's success is above that of Synapse, whole demonstrations of similar tasks, at
600 tokens, and above it by less at 900. Gates: in nine of ten steps the reader acts as the expert where a demonstration
of the prompt shows the command (all else of the prompt is the expert's), and without demonstrations one task of ten
succeeds at most. What was tried before stands in `pilot.md` of `benchmarks.trad`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.frozen import choose_seeds, describe_gate, freeze_plan, seed_interval
from benchmarks.looking_up import look_up
from benchmarks.reporting import about, write
from benchmarks.study import load_or_make_policy, play_once, read_cells, read_policy_note, study_run, summary_path
from benchmarks.trad_agents.cell import acts, followed, is_told, learn_stages, make_part
from benchmarks.trad_agents.lessons import (
    CODE_WORDS,
    COMMANDS,
    SYSTEMS,
    TOKEN,
    UNSHOWN,
    Code,
    Coded,
    Lesson,
    Teacher,
)
from benchmarks.tuning.cell import sources
from evolvent.agents.plain import Expert
from evolvent.agents.prompts import PROMPT_VOCABULARY
from evolvent.agents.writers import WriteRequest, Writing, writer_for
from evolvent.bench.plan import Gate
from evolvent.bench.verdict import check_gate
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, ContextOverflow, ScoringError
from evolvent.learn.token_sequences import TokenSequence
from evolvent.memory.records import METADATA, THOUGHT, Key, make_demonstration
from evolvent.memory.steps import StepMemory
from evolvent.methods.trad import TradConfig, build_agent, trad
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.backoffice.applications import APPLICATIONS
from evolvent.worlds.backoffice.world import Backoffice, thought_texts
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes

__all__ = ["BUDGETS", "QUICK_BUDGETS", "BudgetsPlan", "list_lessons", "play_budgets", "report_budgets", "run_budgets"]

WORLD = "backoffice"
SHOWING = ("trad", "synapse", "rap", "react")
_WORD = re.compile(r"\w+")
_OPENING = 2  # tokens that open a prompt
_SLOTS = 16
_HARDER_TO_FIND = {"largest", "smallest", "both", "of"}  # kinds that compare numbers, or read twice to find a record
_FROM_COMMAND = (3, 4)  # tokens from the end of `; find > act :`, and from what follows it, back to the command's name

GATES = (
    Gate("steps right after a demonstration that shows the command", "reader", "followed", minimum=0.9),
    Gate("success with nothing shown", "reader", "unshown", maximum=0.1),
)


@dataclass(frozen=True)
class BudgetsPlan:
    """What the study fixes before it runs.

    Args:
        shown: tasks with a remembered demonstration; taught: tasks whose prompts are learned, the shown ones among
            them; test: tasks that are played. shown_steps, test_steps: fewest and most steps of them for the expert.
        budgets: most tokens of a prompt. shots: demonstrations that are looked for.
        horizon: no episode is longer. tokens: longest thought and action; equal, since ReAct writes both
            as lines.
        size, rope_theta: of the reader. drills: texts of random words before the lessons. lessons: prompts that are
            learned. aside: weight of what demonstrations and the history wrote, beside 1 of the answer.
    """

    shown: int = 48
    taught: int = 144
    test: int = 24
    shown_steps: tuple[int, int] = (4, 11)
    test_steps: tuple[int, int] = (6, 9)
    budgets: tuple[int, ...] = (600, 900)
    shots: int = 8
    horizon: int = 12
    tokens: tuple[int, int] = (40, 40)
    size: str = "xs"
    rope_theta: float = 1_000_000.0
    drills: int = 1000
    lessons: int = 8000
    aside: float = 0.5
    lr: float = 3e-3
    batch_tokens: int = 2048
    development: int = 100
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan: cells of another plan are not read."""
        return f"{sample_seed(canonical_json({**asdict(self), 'edition': 2}), *CODE_WORDS):016x}"

    def configure(self, system: str) -> TradConfig:
        """Returns the settings of a system: the published ones but for those that the plan makes equal."""
        equal = {"k": self.shots, "kind_words": None, "thought_tokens": self.tokens[0], "action_tokens": self.tokens[1]}
        window = {"before": 1, "after": 1} if system == "trad" else {}
        published = {name: value for name, value in SYSTEMS[system].items() if name != "k"}
        return TradConfig.model_validate({**equal, **window, **published})

    def limit(self, budget: int) -> int:
        """Returns the context of the reader where a prompt with its answer has at most so many tokens."""
        return budget + max(self.tokens)


BUDGETS = BudgetsPlan()
QUICK_BUDGETS = BudgetsPlan(shown=6, taught=6, test=2, budgets=(600,), shots=2, drills=8, lessons=16, seeds=(0,))


# ------------------------------------------------------------------ tasks, memory and lessons


@cache
def _world(plan: BudgetsPlan) -> Backoffice:
    sizes = Sizes(train=4 * plan.taught, dev=10 * plan.test, test=10 * plan.test)
    return Backoffice(horizon=plan.horizon, sizes=sizes)


@cache
def list_tasks(plan: BudgetsPlan, split: str) -> tuple[Task, ...]:
    """Lists the tasks of a split that the plan admits, by kind and length, and that the expert solves."""
    world = _world(plan)
    tier, (fewest, most) = ("seen", plan.shown_steps) if split == "train" else ("combo", plan.test_steps)
    named = [task for task in world.tasks(split, tier) if not _HARDER_TO_FIND & set(task.kind.split())]
    fitting = [task for task in named if fewest <= len(world.expert(task) or ()) <= most]
    played = collect({WORLD: world}, [*map(Start, fitting)], Expert(), engine=None)
    solved = {trajectory.task.id for trajectory in played if trajectory.success}
    count = plan.taught if split == "train" else plan.test
    return tuple(task for task in fitting if task.id in solved)[:count]


def name_command(thought: str, action: str) -> str:
    """Adds the name of a thought's command, in clear: thoughts say what is to be done, and prompts what that is called.

    >>> name_command("i look for tickets with topic discount", "find topic discount")
    'i look for tickets with topic discount ; find'
    """
    return f"{thought} ; {action.split()[0]}"


@cache
def make_memory(plan: BudgetsPlan) -> StepMemory:
    """Makes the memory of the expert's demonstrations, which is found by each key."""
    starts = [Start(task) for task in list_tasks(plan, "train")[: plan.shown]]
    played = collect({WORLD: _world(plan)}, starts, Expert(), engine=None, name=lambda start: f"shown/{start.task.id}")
    demonstrations = []
    for trajectory in sorted(played, key=lambda trajectory: trajectory.id):
        steps = [replace(step, thought=name_command(step.thought or "", str(step.action))) for step in trajectory.steps]
        demonstrations.append(make_demonstration(replace(trajectory, steps=tuple(steps)), kind=trajectory.task.kind))
    return StepMemory.from_trajectories(demonstrations, key=[THOUGHT, METADATA, Key("observation")])


class _BudgetedTeacher(Teacher):
    """Answers as the expert does, where the prompt leaves room for the answer."""

    limit: int

    def write(self, request: WriteRequest) -> Writing:
        space = self.limit - _OPENING - len(TOKEN.findall(request.prompt.user))
        if space < (1 if request.allow_shorter else request.max_tokens):
            raise ContextOverflow("the prompt leaves no room for an answer", value=f"{space} tokens")
        return (yield from super().write(request))


@cache
def list_lessons(plan: BudgetsPlan, system: str, task: Task, budget: int) -> tuple[Lesson, ...]:
    """Lists the prompts of a system of at most so many tokens, with the expert's answers, as they come in play."""
    teacher = _BudgetedTeacher(
        [
            replace(step, thought=name_command(step.thought or "", str(step.action)))
            for step in _world(plan).explain(task)
        ]
    )
    teacher.limit = plan.limit(budget)
    memory = None if system == UNSHOWN else make_memory(plan)
    agent = build_agent(teacher, plan.configure(system), memory=memory)
    for _ in collect({WORLD: _world(plan)}, [Start(task)], agent, engine=None):
        pass
    return tuple(teacher.lessons)


@cache
def _list_taught(plan: BudgetsPlan) -> tuple[tuple[str, Lesson], ...]:
    """Lists every prompt of the taught tasks, each task and system at one size of prompts; the same for all seeds."""
    rng = sample_rng("trad budgets", "sizes")
    found = []
    for task in list_tasks(plan, "train"):
        for system in (*SHOWING, UNSHOWN):
            budget = plan.budgets[int(rng.integers(len(plan.budgets)))]
            found += [(system, lesson) for lesson in list_lessons(plan, system, task, budget)]
    return tuple(found)


# ------------------------------------------------------------------ the reader


@cache
def _list_entities() -> tuple[tuple[str, ...], ...]:
    """Lists the words that are given others in lessons, by class: values, fields, and numbers of two digits."""
    kept = {*COMMANDS[WORLD], *(word for text in (*thought_texts(), *PROMPT_VOCABULARY) for word in words_of(text))}
    fields = [field for application in APPLICATIONS.values() for field in application.fields]
    values = {choice for field in fields for choice in field.choices} - kept
    names = {field.name for field in fields if not field.link} - kept - values - {"number", "name"}
    return tuple(sorted(values)), tuple(sorted(names)), tuple(map(str, range(10, 100)))


def rename_entities(lesson: Lesson, rng: np.random.Generator) -> Lesson:
    """Gives every value, field and number of a lesson the place of another, so that none is learned by heart."""
    renamed = {
        word: other
        for words in _list_entities()
        for word, other in zip(words, rng.permutation(words).tolist(), strict=True)
    }

    def rename(text: str) -> str:
        return _WORD.sub(lambda found: renamed.get(found[0], found[0]), text)

    return Lesson(rename(lesson.prompt), rename(lesson.answer))


def _make_untrained(plan: BudgetsPlan, seed: int) -> Policy:
    known = {*CODE_WORDS, *(_world(plan).vocabulary() or ()), ";"}
    known |= {word for text in PROMPT_VOCABULARY for word in words_of(text)}
    context = plan.limit(max(plan.budgets))
    tokenizer = word_tokenizer(sorted(known), context=context)
    config = tiny_config(len(tokenizer), plan.size, context=context)
    config.rope_parameters = {"rope_type": "default", "rope_theta": plan.rope_theta}  # prompts are longer than usual
    model = init_tiny(config, seed=sample_seed("trad budgets", seed) % 2**31)
    policy = Policy(model, tokenizer, dialect_for(tokenizer, "words"))
    look_up(policy, offsets=(*_FROM_COMMAND, 1), shifts=(_FROM_COMMAND,) * 4)
    return policy


def _draw_drill(words: Sequence[str], rng: np.random.Generator) -> Lesson:
    """Draws a text of random words in the form of a prompt, in which only what an earlier line tells can be known."""
    size = int(rng.integers(2, len(COMMANDS[WORLD]) + 1))
    names, hidden = (rng.choice(list(of), size, replace=False) for of in (COMMANDS[WORLD], CODE_WORDS))
    lines: list[str] = []
    action = ""
    for _ in range(int(rng.integers(8, 15))):
        index, about = int(rng.integers(size)), " ".join(rng.choice(words, int(rng.integers(1, 4))))
        action = f"{hidden[index]} {about}"
        seen = " ".join(rng.choice(words, int(rng.integers(1, 7))))
        lines += [seen, f"> think: {about} ; {names[index]}", f"> act: {action}"]
    return Lesson("\n".join([*lines[:-1], "> act:"]), action)


def _draw_drills(plan: BudgetsPlan, policy: Policy, seed: int) -> list[TokenSequence]:
    rng, plain = sample_rng("trad budgets drills", seed), Code({})
    words = sorted(word for word in _world(plan).vocabulary() or () if word.isalpha())
    parts = (
        make_part(_draw_drill(words, rng), policy, plain, aside=1.0, name=f"drill-{number}", thoughts=False)
        for number in range(plan.drills)
    )
    return [part for part in parts if part is not None]


def _draw_lessons(plan: BudgetsPlan, policy: Policy, seed: int) -> list[TokenSequence]:
    """Draws prompts of all systems, each in a code and with names of its own, all once before any comes again."""
    taught, rng = _list_taught(plan), sample_rng("trad budgets lessons", seed)
    rounds = -(-plan.lessons // len(taught))
    order = np.concatenate([rng.permutation(len(taught)) for _ in range(rounds)])[: plan.lessons]
    parts = (
        make_part(
            rename_entities(taught[index][1], rng),
            policy,
            Code.drawn(WORLD, "lesson", seed, number),
            aside=plan.aside,
            name=f"{taught[index][0]}-{number}",
        )
        for number, index in enumerate(order.tolist())
    )
    return [part for part in parts if part is not None]


def train_reader(plan: BudgetsPlan, seed: int) -> tuple[Policy, dict[str, Any]]:
    """Trains the reader of a seed, and tells what its training came to."""
    began, policy = time.process_time(), _make_untrained(plan, seed)
    stages = [("drills", _draw_drills(plan, policy, seed), 0.5), ("lessons", _draw_lessons(plan, policy, seed), 0.1)]
    policy, report = learn_stages(policy, stages, lr=plan.lr, batch_tokens=plan.batch_tokens, seed=seed)
    return policy, {
        "tokens": report["tokens_read"],
        "loss": round(report["loss"], 4),
        "cpu_s": round(time.process_time() - began, 1),
    }


def make_reader(plan: BudgetsPlan, folder: Path, seed: int) -> Policy:
    """Returns the reader of a seed; made once and kept in the folder."""
    return load_or_make_policy(folder, f"reader-{plan.digest}-{seed}", partial(train_reader, plan, seed))


# ------------------------------------------------------------------ cells


def measure_followed(
    plan: BudgetsPlan, policy: Policy, tasks: Sequence[Task], *, system: str, budget: int, code: Code
) -> dict[str, list[float]]:
    """Measures on the expert's own prompts, by task, which commands they show and how often the reader acts right.

    Returns:
        told: the share of actions whose command a demonstration shows. followed: the share of those that the reader
        gets right, without tasks that have none.
    """
    asked = [acts(list_lessons(plan, system, task, budget)) for task in tasks]
    told = [[lesson for lesson in each if is_told(lesson)] for each in asked]
    limited = replace(policy, limit=plan.limit(budget))
    right = followed([each for each in told if each], limited, code, LocalEngine(limited, slots=_SLOTS))
    shares = [len(each) / max(1, len(every)) for each, every in zip(told, asked, strict=True)]
    return {"told": [round(share, 4) for share in shares], "followed": [round(share, 4) for share in right]}


def play_system(
    plan: BudgetsPlan, policy: Policy, tasks: Sequence[Task], *, system: str, budget: int, code: Code, seed: int
) -> dict[str, Any]:
    """Plays the tasks with a system and prompts of at most so many tokens.

    Raises:
        ScoringError: episodes that could not be scored.
    """
    began, limited = time.process_time(), replace(policy, limit=plan.limit(budget))
    engine, world = LocalEngine(limited, slots=_SLOTS), _world(plan)
    playing = trad(
        Coded(writer_for(limited), code),
        [*map(Start, tasks)],
        config=plan.configure(system),
        worlds={WORLD: world},
        memory=None if system == UNSHOWN else make_memory(plan),
        engine=engine,
        seed=seed,
    )
    played = {trajectory.task.id: trajectory for trajectory in playing}
    if failed := [trajectory.id for trajectory in played.values() if trajectory.success is None]:
        raise ScoringError("episodes that could not be scored", value=failed[:5])
    prompts = [int((~each.sampled).sum()) for trajectory in played.values() for each in trajectory.generations]
    return {
        "success": [float(bool(played[task.id].success)) for task in tasks],
        "prompt_tokens": round(fmean(prompts), 1) if prompts else 0.0,
        "generated": engine.usage.generated,
        "computed": engine.usage.computed,
        "cpu_s": round(time.process_time() - began, 1),
    }


def _play_cell(plan: BudgetsPlan, folder: Path, seed: int) -> dict[str, Any]:
    began, policy = time.process_time(), make_reader(plan, folder, seed)
    tasks, code = list_tasks(plan, "dev" if seed == plan.development else "test"), Code.drawn(WORLD, "play", seed)
    systems = {}
    for system, budget in [*((name, size) for name in SHOWING for size in plan.budgets), (UNSHOWN, max(plan.budgets))]:
        common = {"system": system, "budget": budget, "code": code}
        row = play_system(plan, policy, tasks, **common, seed=seed)  # type: ignore[arg-type]
        row |= measure_followed(plan, policy, tasks, **common)  # type: ignore[arg-type]
        systems[f"{system} {budget}"] = row
        told = f", told {fmean(row['told']):.2f}, followed {fmean(row['followed'] or [0]):.2f}"
        print(f"seed {seed}: {system} {budget}: success {fmean(row['success']):.3f}{told}", flush=True)
    note = read_policy_note(folder, f"reader-{plan.digest}-{seed}")
    return {
        "seed": seed,
        "digest": plan.digest,
        "systems": systems,
        "training": dict(note),
        "sources": sources(),
        "cpu_s": round(time.process_time() - began, 1),
    }


def play_budgets(folder: Path, plan: BudgetsPlan, seeds: Iterable[int]) -> None:
    """Plays the seeds that have no cell, and keeps each."""
    with study_run(folder):
        freeze_plan(folder, asdict(plan), plan.digest)
        for seed in seeds:
            play_once(folder, f"{seed}", plan.digest, partial(_play_cell, plan, folder, seed))


# ------------------------------------------------------------------ figures


def report_budgets(folder: Path, plan: BudgetsPlan) -> dict[str, Any]:
    """Computes all figures of the kept cells.

    Raises:
        ConfigError: no seed has finished.
    """
    rows = read_cells(folder, plan.digest) if folder.is_dir() else []
    by_seed = {row["seed"]: row for row in rows if row["seed"] in plan.seeds}
    if not by_seed:
        raise ConfigError(f"{folder.name}: no seed has finished", hint="run the study without --report")

    def share(system: str, budget: int, figure: str) -> dict[int, float]:
        each = {seed: row["systems"][f"{system} {budget}"][figure] for seed, row in by_seed.items()}
        return {seed: fmean(values) if values else 0.0 for seed, values in each.items()}

    def mean_prompt(system: str, budget: int) -> int:
        return round(fmean(row["systems"][f"{system} {budget}"]["prompt_tokens"] for row in by_seed.values()))

    def table(figure: str) -> dict[str, dict[str, list[float]]]:
        return {
            system: {str(budget): seed_interval(share(system, budget, figure)) for budget in plan.budgets}
            for system in SHOWING
        }

    def differences(figure: str, other: str) -> dict[str, list[float]]:
        return {
            str(budget): seed_interval(share("trad", budget, figure), share(other, budget, figure))
            for budget in plan.budgets
        }

    judged = {
        "followed": {
            seed: fmean(
                value
                for system in SHOWING
                for budget in plan.budgets
                for value in row["systems"][f"{system} {budget}"]["followed"]
            )
            for seed, row in by_seed.items()
        },
        "unshown": share(UNSHOWN, max(plan.budgets), "success"),
    }
    gates = [check_gate(gate, judged[gate.figure]) for gate in GATES]
    least = str(min(plan.budgets))
    success = {other: differences("success", other) for other in SHOWING if other != "trad"}
    return {
        "benchmark": "trad_budgets",
        "digest": plan.digest,
        "gate_passed": all(gate.passed for gate in gates) and len(by_seed) == len(plan.seeds),
        "gates": [describe_gate(gate) for gate in gates],
        "trad_minus_synapse_ci": success["synapse"][least],
        "trad_minus": success,
        "success": table("success"),
        "told": table("told"),
        "followed": table("followed"),
        "unshown": seed_interval(judged["unshown"]),
        "prompt_tokens": {
            system: {str(budget): mean_prompt(system, budget) for budget in plan.budgets} for system in SHOWING
        },
        "tasks": plan.test,
        "training": {str(seed): row["training"] for seed, row in by_seed.items()},
        "seeds": sorted(by_seed),
        "cpu_hours": round(sum(row["cpu_s"] for row in by_seed.values()) / 3600, 3),
        "interval": "95 %, over seeds in pairs",
        "sources": sorted({row["sources"] for row in by_seed.values()}),
        **about("evolvent", "torch", "numpy", threads=1),
    }


def show_budgets(figures: Mapping[str, Any]) -> None:
    """Prints the tables for people."""
    for system, by_budget in figures["success"].items():
        for budget, (mean, low, high) in by_budget.items():
            told, right = figures["told"][system][budget][0], figures["followed"][system][budget][0]
            print(
                f"{system:8} {budget:>5} tokens: success {mean:.3f} [{low:.3f}, {high:.3f}]  "
                f"commands shown {told:.3f}  right where shown {right:.3f}"
            )
    for other, by_budget in figures["trad_minus"].items():
        for budget, (mean, low, high) in by_budget.items():
            print(f"TRAD minus {other:8} {budget:>5} tokens: {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    for gate in figures["gates"]:
        print(f"gate {gate['name']}: {gate['value']}, {'passed' if gate['passed'] else 'failed'}")
    print(f"gates passed: {figures['gate_passed']}; seeds {figures['seeds']}; {figures['cpu_hours']:.2f} CPU-hours")


def run_budgets(
    folder: Path, *, seeds: Sequence[int] | None, quick: bool, play: bool, develop: bool = False
) -> dict[str, Any]:
    """Plays what is missing where asked, keeps the summary, and returns the figures.

    Args:
        develop: the development seed alone, on dev tasks; no summary is kept.

    Raises:
        ConfigError: a seed that is not in the plan, another plan in the folder, or nothing to report.
    """
    plan = QUICK_BUDGETS if quick else replace(BUDGETS, seeds=(BUDGETS.development,)) if develop else BUDGETS
    chosen = choose_seeds(seeds, plan.seeds)
    if play:
        play_budgets(folder, plan, chosen)
    figures = {**report_budgets(folder, plan), "quick": quick}
    if play and not quick and not develop:
        write(summary_path(folder, "trad_budgets"), figures)
    show_budgets(figures)
    return figures
