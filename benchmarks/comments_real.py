"""Does commented code teach what bare code cannot? The controlled study of comments on SmolLM2-135M-Instruct.

    evolvent models get smollm2                       first, once
    python -m benchmarks.comments_real --tune         learning rates, on a development seed; resumes
    python -m benchmarks.comments_real                freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.comments_real --report       prints what was played

The corpus is code over an invented library whose names say nothing: `ys = vel.torka(xs)`. A generator that knows the
manual writes comments in plain words, one of seven about another function than the line's; a quarter of the sources are
of low value, and it skips these. Every arm learns the next token of its corpus: the bare code (`raw`), the commented
code, or what is left of it after the filters, each with as much code as `raw` or with as many tokens. Asked is in
words, as HumanEval asks: the panel's comments and first line stand there, and the model completes the function. Its
functions combine what the corpus shows apart. Nothing is run: an answer is right if it calls the right functions in
the right order.

Prediction, before any run: commented above raw at equal code and at equal tokens. The study judges only where what was
commented can be learned at all: a policy taught the same corpus with every comment right answers three of ten.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.pretrained import Pretrained, RealStudy, list_interval, play_command, study_facts
from evolvent.agents.plain import Script
from evolvent.bench.measures import run_all_jobs
from evolvent.bench.study import Arm, ArmResult, ArmRun, Gate, PrimaryComparison, Study, read_costs
from evolvent.bench.verdict import StudySummary
from evolvent.curate.commenting import Commenting, Source
from evolvent.curate.notes import Note, format_answer
from evolvent.engine.asks import GREEDY, Job, SampleAsk
from evolvent.engine.local import LocalEngine
from evolvent.methods.comments import COMMENTED, COMMENTED_FILTERED, RAW, CommentsConfig, comments
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.trajectory import Json, Start, Task, Trajectory, sample_rng
from evolvent.worlds.base import World

MANUAL: Mapping[str, str] = {
    "torka": "keep the even numbers",
    "bimsel": "keep the odd numbers",
    "dravo": "keep the positive numbers",
    "fenlu": "keep the negative numbers",
    "gospi": "drop the zeros",
    "hulna": "double every number",
    "jertax": "halve every number",
    "kolmi": "square every number",
    "lapru": "add one to every number",
    "mexol": "take one from every number",
    "nibdar": "change the sign of every number",
    "osket": "reverse the order",
    "palvi": "sort from small to large",
    "quirmo": "sort from large to small",
    "rusfa": "leave out repeated numbers",
    "sewtin": "drop the first number",
    "tulgop": "drop the last number",
    "ubrak": "keep the first three numbers",
    "vastil": "keep the last three numbers",
    "wenzor": "replace every number by the sum so far",
}
ARMS: Mapping[str, tuple[Mapping[str, object], str]] = {
    "raw": (RAW, "code"),
    "commented": (COMMENTED, "code"),
    "filtered": (COMMENTED_FILTERED, "code"),
    "commented_tokens": (COMMENTED, "tokens"),
    "filtered_tokens": (COMMENTED_FILTERED, "tokens"),
    "right_tokens": (COMMENTED_FILTERED, "tokens"),
}
"""Settings of `comments`, and what an arm has as much of as `raw`."""
TUNED = ("raw", "filtered")
GATES = (Gate("commented code can be learned", "right_tokens", "success", minimum=0.3),)


@dataclass(frozen=True)
class Plan:
    """What the study fixes before it runs.

    Args:
        sources: functions of the corpus. low: sources of low value beside them. passes: through the raw code.
        wrong: share of the generator's comments that are about another function.
        panel: functions that are asked. tuned_panel: on dev. tuned_passes: of a rate that is tried.
    """

    pretrained: Pretrained = field(default_factory=lambda: Pretrained(rank=16, context=512, batch_tokens=512))
    sources: int = 450
    low: int = 150
    passes: int = 2
    tuned_passes: int = 1
    wrong: float = 1 / 7
    panel: int = 100
    tuned_panel: int = 40
    max_tokens: int = 48
    rates: tuple[float, ...] = (6e-4, 2e-3, 6e-3, 2e-2)
    development: int = 100


PLAN = Plan()
QUICK = Plan(sources=8, low=4, passes=1, panel=3, tuned_panel=3, max_tokens=16)
SEEDS = (0, 1, 2)


@cache
def _compositions(split: str) -> tuple[tuple[str, str], ...]:
    """Returns the ordered pairs of functions of a split: three fifths are in the corpus, the others are asked."""
    names = list(MANUAL)
    pairs = [(first, second) for first in names for second in names if first != second]
    order = sample_rng("invented library").permutation(len(pairs)).tolist()
    bounds = {"train": (0.0, 0.6), "dev": (0.6, 0.7), "test": (0.7, 1.0)}[split]
    first, last = (round(bound * len(pairs)) for bound in bounds)
    return tuple(pairs[number] for number in order[first:last])


def write_function(number: int, names: Sequence[str], *, commented: bool = False) -> str:
    """Returns a function that calls these functions of the library in order, with the manual's words above it or not.

    >>> print(write_function(7, ["torka", "osket"]))
    def task_7(xs):
        xs = vel.torka(xs)
        xs = vel.osket(xs)
        return xs
    <BLANKLINE>
    """
    heading = "".join(f"# {MANUAL[name]}\n" for name in names) if commented else ""
    body = "".join(f"    xs = vel.{name}(xs)\n" for name in names)
    return f"{heading}def task_{number}(xs):\n{body}    return xs\n"


def write_opening(number: int, names: Sequence[str]) -> str:
    """Returns what is asked: the comments of a function and its first line.

    It ends before the line break, which tokenizers join to the spaces that follow it: after a line break alone a model
    continues a text that it never saw, and leaves the indentation out.
    """
    return write_function(number, names, commented=True).partition("(xs):\n")[0] + "(xs):"


def build_corpus(plan: Plan, seed: int) -> list[Source]:
    """Returns the sources of a seed: functions over the library, and tables of numbers of low value."""
    rng = sample_rng("corpus", seed)
    pairs = _compositions("train")
    functions = [
        Source(f"function-{number}", write_function(number, pairs[int(rng.integers(len(pairs)))]), "python")
        for number in range(plan.sources)
    ]
    low = [
        Source(f"table-{number}", "".join(f"x{row} = {rng.integers(1000)}\n" for row in range(12)), "python")
        for number in range(plan.low)
    ]
    mixed = [*functions, *low]
    return [mixed[place] for place in rng.permutation(len(mixed)).tolist()]


def comment_source(text: str, wrong: float, rng: np.random.Generator) -> str:
    """Returns the generator's answer for a source: a comment above its first line for each call, SKIP for a table."""
    names = read_calls(text)
    said = [
        str(rng.choice([each for each in MANUAL if each != name])) if rng.random() < wrong else name for name in names
    ]
    return format_answer([Note(1, MANUAL[name]) for name in said])


def read_calls(text: str) -> list[str]:
    """Returns the names that a text calls on the library, in order; none where it cannot be read."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = [(call.lineno, call.end_col_offset or 0, call.func) for call in calls]
    return [
        function.attr
        for _, _, function in sorted(functions, key=lambda found: found[:2])
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "vel"
    ]


def _train(plan: Plan, folder: Path, arm: str, *, seed: int, rate: float, passes: int) -> Policy:
    settings, equal = ARMS[arm]
    config = CommentsConfig.model_validate({**settings, "teach": False, "equal": equal, "passes": passes})
    world = Commenting()
    wrong = 0.0 if arm == "right_tokens" else plan.wrong

    def answer(_: World, task: Task) -> list[str]:
        return [comment_source(task.spec["source"], wrong, sample_rng("generator", seed, task.id))]

    def play(starts: Sequence[Start]) -> Iterator[Trajectory]:
        yield from collect({world.name: world}, starts, Script(answer), engine=None)

    start = plan.pretrained.start([world], seed)
    with plan.pretrained.open_run(folder, {world.name: world}, rate=rate, seed=seed) as run:
        return comments(start, build_corpus(plan, seed), config=config, run=run, play=play)


def ask(plan: Plan, policy: Policy, split: str, count: int) -> tuple[list[tuple[str, str, bool]], Mapping[str, int]]:
    """Returns (name, kind, whether it is right) of every function that is asked, and the tokens of asking."""
    engine = LocalEngine(policy, slots=32)
    dialect = policy.dialect
    asked = list(enumerate(_compositions(split)[:count], 1000))

    def complete(number: int, names: Sequence[str]) -> Job[tuple[str, str, bool]]:
        opening = write_opening(number, names)
        ids = policy.tokenizer.encode(opening, add_special_tokens=False)
        seeds = (0,)
        ask = SampleAsk(None, ids, plan.max_tokens, dialect.stop_ids, ("return xs", "\n\n"), GREEDY, seeds)
        ((generation,),) = yield [ask]
        body = dialect.text(generation.ids.tolist()).partition("return xs")[0]
        return (
            f"{names[0]}-{names[1]}",
            names[0],
            read_calls(f"{opening}{body.rstrip()}\n    return xs\n") == list(names),
        )

    outcomes = run_all_jobs((complete(number, names) for number, names in asked), engine)
    return outcomes, {"generated": engine.usage.generated, "computed": engine.usage.computed}


def _try_rate(plan: Plan, folder: Path, arm: str, rate: float) -> float:
    place = folder / "runs" / "tuning" / f"{arm}-{rate:g}"
    policy = _train(plan, place, arm, seed=plan.development, rate=rate, passes=plan.tuned_passes)
    outcomes, _ = ask(plan, policy, "dev", plan.tuned_panel)
    return sum(success for _, _, success in outcomes) / len(outcomes)


def _play(plan: Plan, arm_run: ArmRun, *, rate: float | None) -> ArmResult:
    """Trains an arm and asks it the panel; without a rate it is the pretrained model."""
    started = process_time()
    policy = (
        plan.pretrained.start([Commenting()], arm_run.seed)
        if rate is None
        else _train(plan, arm_run.folder, arm_run.arm, seed=arm_run.seed, rate=rate, passes=plan.passes)
    )
    outcomes, usage = ask(plan, policy, "test", plan.panel)
    tokens = Counter(read_costs(arm_run.folder, verbs=("fit",))[0])
    tokens.update(usage)
    notes: dict[str, Json] = {"success": sum(success for _, _, success in outcomes) / len(outcomes)}
    return ArmResult({"library/combo": tuple(outcomes)}, dict(tokens), process_time() - started, notes)


def build(plan: Plan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gates and all that its result depends on."""
    questions = {
        "raw": "the bare code",
        "commented": "as much code, with all comments of the generator",
        "filtered": "the claim: as much code, of what the generator and the rules leave",
        "commented_tokens": "as many tokens as the bare code",
        "filtered_tokens": "as many tokens as the bare code, filtered",
        "right_tokens": "the same with every comment right: what could be reached",
    }
    arms = [Arm("base", "the model as it was published", partial(_play, plan, rate=None))]
    arms += [
        Arm(arm, questions[arm], partial(_play, plan, rate=rates["raw" if arm == "raw" else "filtered"]))
        for arm in ARMS
    ]
    primary = PrimaryComparison("filtered", "raw", tiers=("combo",), upper="right_tokens")
    return Study("comments_real", tuple(arms), tuple(seeds), None, primary, 0.05, study_facts(plan, rates), GATES)


def figures(summary: StudySummary, folder: Path) -> dict[str, Json]:
    """Returns the success of every arm, and the differences from the bare code with their intervals."""
    differences = {
        difference.arm: list_interval(difference.interval)
        for difference in summary.differences
        if difference.against == "raw" and not difference.world
    }
    return {
        "comments_minus_raw_ci": differences.get("filtered"),
        "minus_raw": dict(differences),
        "success": {arm.name: arm.interval.mean for arm in summary.arms if arm.interval is not None},
    }


STUDY = RealStudy("comments_real", __doc__ or "", PLAN, QUICK, SEEDS, TUNED, _try_rate, build, figures)


def main(arguments: Sequence[str] | None = None) -> None:
    play_command(STUDY, arguments)


if __name__ == "__main__":
    main()
