"""`evolvent bench bfcl`, `bench calls` and `bench code`: one agent on the items of a benchmark's files.

Each bench states its settings, its world, what is counted and the table. `open_bench_run` and `_write_results` do
for all of them what is common: they record a run, play what it lacks and write the results file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from rich.console import Console

from evolvent.bench.bfcl import CategoryRow, MaskedBfcl, category_rows, compute_totals, masking_loss
from evolvent.bench.code import ProblemTally, check_ks, count_samples, mean_pass_at
from evolvent.cli.setup.agent_options import AgentConfig, AgentSetup, prepare_agent, resume_collection
from evolvent.cli.setup.record import RunRecord, choose_run_folder, collect_versions, record_run
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.progress import Progress
from evolvent.errors import ConfigError, HashMismatch, Problem, unknown_name_problem
from evolvent.files import plain_json, write_atomic
from evolvent.grade.call_metrics import CallScore, score_calls
from evolvent.stats import Interval, wilson_interval
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory
from evolvent.view.escape import show_hidden
from evolvent.worlds.base import World
from evolvent.worlds.bfcl.items import BAD_ITEMS, CATEGORIES, MULTI_TURN
from evolvent.worlds.bfcl.world import Bfcl
from evolvent.worlds.calls.world import CallSet, read_call_samples
from evolvent.worlds.code.world import Code
from evolvent.worlds.manifest import manifests, sha256_of, verify_file

__all__ = [
    "CALLS_COMMAND",
    "CODE_COMMAND",
    "COMMAND",
    "BenchRun",
    "CodeBenchConfig",
    "open_bench_run",
    "run",
    "run_calls",
    "run_code",
]

_ALL = "all"
_ANY = "any"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """An open run of a bench.

    Args:
        config: the settings of the bench.
        agent_setup: the agent that is measured.
        store: the trajectories, open for writing.
        progress: the progress line.
    """

    config: AgentConfig
    agent_setup: AgentSetup
    store: Store
    progress: Progress

    def play(self, world: World, names_by_start: Mapping[Start, str]) -> list[Trajectory]:
        """Returns the episodes of a world under these names; plays those that the run lacks."""
        return resume_collection(
            world,
            names_by_start,
            self.agent_setup,
            store=self.store,
            progress=self.progress,
            config=self.config,
            label=world.name,
        )


@contextmanager
def open_bench_run(
    verb: str, folder: Path, config: AgentConfig, agent_setup: AgentSetup, console: Console
) -> Iterator[BenchRun]:
    """Opens the run of a bench in its folder, new or resumed, and records its state until the context ends."""
    with (
        Store.open(folder / "trajectories", writing=True) as store,
        record_run(folder, RunRecord(verb, config, config.seed)),
        Progress(console) as progress,
    ):
        yield BenchRun(config, agent_setup, store, progress)


def _write_results(path: Path, agent_setup: AgentSetup, counts: Mapping[str, object]) -> None:
    """Writes the results file of a bench: the measured agent, what it used, and what this bench counts."""
    usage = agent_setup.usage()
    row = {
        "player": agent_setup.player.name,
        "about": dict(agent_setup.player.about),
        **counts,
        "last_session": {"computed": usage.computed, "prompted": usage.prompted, "completed": usage.completed},
        "versions": collect_versions(),
    }
    write_atomic(path, plain_json(row) + "\n")


def _print_lines(console: Console, *lines: object) -> None:
    for line in lines:
        console.print(show_hidden(str(line)), soft_wrap=True)


# ---------------------------------------------------------------------- the Berkeley Function Calling Leaderboard


class BfclBenchConfig(AgentConfig):
    """Settings of `evolvent bench bfcl`."""

    data: Path = Field(description="the folder of BFCL v4's files")
    categories: tuple[str, ...] = Field(default=(_ALL,), description="which are played; all: every one")
    form: Literal["python", "json", "xml"] = Field(default="python", description="how calls are written")
    masked: bool = Field(default=True, description="play the items of one turn in other names too")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    constrained: bool = Field(default=False, description="a policy can write nothing but valid calls, or []")
    limit: int | None = Field(default=None, ge=1, description="most items of a category; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest reply")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/bfcl-N")


COMMAND = Command(
    "bench bfcl",
    "Let an agent call functions on BFCL v4: a table, the totals, and what other names cost.",
    BfclBenchConfig,
    main_field="data",
    resumes=True,
)


def run(argv: Sequence[str], console: Console) -> int:
    """Measures an agent on BFCL; returns the exit code: 1 where an item could not be judged."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    categories = tuple(CATEGORIES) if _ALL in config.categories else config.categories
    world = Bfcl(config.data, form=config.form, categories=categories)
    single_turn = tuple(name for name in categories if name not in MULTI_TURN)
    masked_world = (
        MaskedBfcl(config.data, form=config.form, categories=single_turn, seed=config.seed)
        if config.masked and single_turn
        else None
    )
    with prepare_agent(config, {world.name: world}, verb=COMMAND.verb) as base_setup:
        agent_setup = _constrain_calls(base_setup) if config.constrained else base_setup
        folder = args.resume or choose_run_folder("bfcl", config.output_dir)
        with open_bench_run(COMMAND.verb, folder, config, agent_setup, console) as bench_run:
            trajectories_by_world = [
                bench_run.play(bench_world, _name_starts(bench_world, config))
                for bench_world in (world, masked_world)
                if bench_world is not None
            ]
    category_results, masked_rows = (
        category_rows(trajectories_by_world[0]),
        category_rows(trajectories_by_world[1]) if masked_world is not None else (),
    )
    loss_interval = masking_loss(*trajectories_by_world) if masked_world is not None else None
    counts = {
        "form": config.form,
        "seed": config.seed,
        "constrained": config.constrained,
        "plain": _count_by_category(category_results),
        "masked": _count_by_category(masked_rows),
        "totals": compute_totals(category_results),
        "bad_items": dict(BAD_ITEMS),
        "problems": [str(problem) for problem in world.problems],
        "lost_to_names": None if loss_interval is None else [loss_interval.mean, loss_interval.low, loss_interval.high],
    }
    path = folder / "bfcl.json"
    _write_results(path, agent_setup, counts)
    _print_results(console, category_results, masked_rows, loss_interval)
    _print_lines(console, *world.problems[:5], f"results {path}")
    return 1 if any(row.ungraded for row in (*category_results, *masked_rows)) else 0


def _constrain_calls(agent_setup: AgentSetup) -> AgentSetup:
    """Returns the setup with an agent whose answers can only be valid calls.

    Raises:
        ConfigError: the agent is not a policy in this process.
        MissingExtra: llguidance is not installed.
    """
    if agent_setup.player.kind != "policy":
        raise ConfigError(
            "constrained answers need a local model",
            value=agent_setup.player.kind,
            expected="--agent policy",
            hint="an endpoint cannot constrain its answers",
        )
    from evolvent.agents.calling import ValidCalls
    from evolvent.models.constraints import CallConstraints

    agent: Any = agent_setup.agent
    return replace(agent_setup, agent=replace(agent, constrain=ValidCalls(CallConstraints(agent.policy))))


def _name_starts(world: Bfcl, config: BfclBenchConfig) -> dict[Start, str]:
    """Returns the names of the starts: the first items of every category, by start."""
    tasks = [task for tier in world.tiers for task in world.tasks("test", tier)]
    counts: dict[str, int] = {}
    names_by_start = {}
    for task in tasks:
        counts[task.kind] = counts.get(task.kind, 0) + 1
        if config.limit is None or counts[task.kind] <= config.limit:
            names_by_start[Start(task)] = f"{world.name}/{task.id}"
    if not names_by_start:
        raise ConfigError("no items in these categories", value=list(config.categories))
    return names_by_start


def _count_by_category(rows: Sequence[CategoryRow]) -> dict[str, list[int]]:
    """Returns the numbers of right, all and ungraded items by category."""
    return {row.category: [row.correct, row.items, row.ungraded] for row in rows}


def _print_results(
    console: Console,
    category_results: Sequence[CategoryRow],
    masked_rows: Sequence[CategoryRow],
    loss_interval: Interval | None,
) -> None:
    masked_by_category = {row.category: row for row in masked_rows}
    columns = ("category", "items", "right, %", "in other names, %", "not judged")
    lines = []
    for row in category_results:
        masked_row = masked_by_category.get(row.category)
        lines.append(
            (
                row.category,
                row.items,
                _format_percent(row.accuracy),
                None if masked_row is None else _format_percent(masked_row.accuracy),
                row.ungraded or None,
            )
        )
    console.print(render_table(console, columns, lines, numbers=columns[1:]))
    totals_text = ", ".join(
        f"{name.replace('_', '-')} {100 * value:.1f}" for name, value in compute_totals(category_results).items()
    )
    console.print(f"totals of the leaderboard: {totals_text} (agentic tasks are not here and count 0)", soft_wrap=True)
    if loss_interval is not None:
        interval = (
            "" if isnan(loss_interval.low) else f" [{100 * loss_interval.low:+.1f}, {100 * loss_interval.high:+.1f}]"
        )
        console.print(
            f"lost to other names: {100 * loss_interval.mean:+.1f}{interval} points over {loss_interval.n} items",
            soft_wrap=True,
        )


def _format_percent(share: float) -> str | None:
    return None if isnan(share) else f"{100 * share:.1f}"


# ---------------------------------------------------------------------- samples of a file


class CallsBenchConfig(AgentConfig):
    """Settings of `evolvent bench calls`."""

    data: Path = Field(description="a file of samples: API-Bank, ToolAlpaca, Seal-Tools, NexusRaven, xLAM, Hammer")
    tools: Path | None = Field(
        default=None, description="the file of functions of Seal-Tools (none: tool.jsonl beside it) or NexusRaven"
    )
    form: Literal["python", "json", "xml"] = Field(default="json", description="how calls are written")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    limit: int | None = Field(default=None, ge=1, description="most samples; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest reply")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/calls-N")


CALLS_COMMAND = Command(
    "bench calls",
    "Let an agent call functions on the samples of a file: F1 of names and of arguments.",
    CallsBenchConfig,
    main_field="data",
    resumes=True,
)


def run_calls(argv: Sequence[str], console: Console) -> int:
    """Measures an agent on a file of samples; returns the exit code: 1 where a reply is missing."""
    args = parse_command(CALLS_COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    samples, problems = read_call_samples(config.data, config.tools)
    world = CallSet(samples[: config.limit], form=config.form)
    with prepare_agent(config, {world.name: world}, verb=CALLS_COMMAND.verb) as agent_setup:
        folder = args.resume or choose_run_folder("calls", config.output_dir)
        with open_bench_run(CALLS_COMMAND.verb, folder, config, agent_setup, console) as bench_run:
            trajectories = bench_run.play(
                world, {Start(task): f"calls/{task.id}" for task in world.tasks("test", "all")}
            )
    answered = [trajectory for trajectory in trajectories if trajectory.success is not None]
    score = score_calls(
        [world.predicted_calls(trajectory) for trajectory in answered],
        [world.sample(trajectory.task).calls for trajectory in answered],
    )
    num_exact = sum(bool(trajectory.success) for trajectory in answered)
    counts = {
        "file": config.data.name,
        "form": config.form,
        "seed": config.seed,
        "items": score.items,
        **{
            name: {"f1": count.f1, "precision": count.precision, "recall": count.recall}
            for name, count in (("names", score.names), ("arguments", score.arguments))
        },
        "abstained": score.abstained,
        "unparsable": score.unparsable,
        "exact": num_exact,
        "not_answered": len(trajectories) - len(answered),
        "problems": [str(problem) for problem in problems],
    }
    path = folder / "calls.json"
    _write_results(path, agent_setup, counts)
    _print_call_scores(console, score, num_exact)
    _print_lines(console, *problems[:5])
    if len(problems) > 5:
        _print_lines(console, f"{len(problems)} rows could not be used")
    _print_lines(console, f"results {path}")
    return 1 if len(answered) < len(trajectories) else 0


def _print_call_scores(console: Console, score: CallScore, num_exact: int) -> None:
    columns = ("measure", "F1, %", "precision, %", "recall, %")
    rows = [
        (name, *(_format_percent(share) for share in (counts.f1, counts.precision, counts.recall)))
        for name, counts in (("names", score.names), ("arguments", score.arguments))
    ]
    console.print(render_table(console, columns, rows, numbers=columns[1:]))
    if not score.items:
        return
    exact = wilson_interval(num_exact, score.items)
    ends = f"{_format_percent(exact.low)} to {_format_percent(exact.high)}"
    parts = [f"{score.items} items", f"exactly the expected calls: {_format_percent(exact.mean)} % (95 % {ends})"]
    if score.abstained is not None:
        parts.append(f"called nothing where nothing fits: {_format_percent(score.abstained)} %")
    parts.append(f"unreadable replies: {_format_percent(score.unparsable)} %")
    console.print("; ".join(parts), soft_wrap=True)


# ---------------------------------------------------------------------- programs


class CodeBenchConfig(AgentConfig):
    """Settings of `evolvent bench code`."""

    data: Path = Field(description="a file of problems, or the folder it lies in")
    set: str = Field(default=_ANY, description="whose hash the file must have: humaneval, mbpp-sanitized; any: none")
    accept_license: bool = Field(default=False, description="your word that you may use a set of a limited license")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    samples: int = Field(default=1, ge=1, description="responses to each problem")
    k: tuple[int, ...] = Field(default=(1,), description="of pass@k")
    split: str = Field(default="test", description="whose problems: train, dev or test, by the names of the files")
    limit: int | None = Field(default=None, ge=1, description="most problems; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest response")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/code-N")

    @model_validator(mode="after")
    def _check_settings(self) -> CodeBenchConfig:
        problems = list(check_ks(self.k, self.samples))
        set_names = [name for name, entry in manifests().items() if entry.world == "code"]
        if self.set not in (_ANY, *set_names):
            problems.append(unknown_name_problem("evaluation set", self.set, (_ANY, *set_names), location="set"))
        if self.samples > 1 and self.agent.kind != "expert" and not self.temperature:
            problems.append(
                Problem("samples", "several samples at temperature 0 are identical", "set --temperature 0.8")
            )
        if problems:
            raise ValueError("; ".join(entry.describe() for entry in problems))
        return self


CODE_COMMAND = Command(
    "bench code",
    "Let an agent write programs, run them in boxes, and count: pass@k without bias.",
    CodeBenchConfig,
    main_field="data",
    resumes=True,
)


def run_code(argv: Sequence[str], console: Console) -> int:
    """Measures an agent on a set of problems; returns the exit code: 1 where a response could not be judged."""
    args = parse_command(CODE_COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    path = (
        config.data
        if config.set == _ANY
        else verify_file(config.set, config.data, accept_licence=config.accept_license)
    )
    with closing(Code(path)) as world:
        if config.set != _ANY and world.count != manifests()[config.set].items:
            raise HashMismatch(
                f"wrong number of rows in {path.name}", value=world.count, expected=manifests()[config.set].items
            )
        tasks = world.tasks(config.split, "all")[: config.limit]
        if not tasks:
            raise ConfigError("no problems in this split", value=config.split, expected="the split in the file names")
        with prepare_agent(config, {world.name: world}, verb=CODE_COMMAND.verb) as agent_setup:
            folder = args.resume or choose_run_folder("code", config.output_dir)
            with open_bench_run(CODE_COMMAND.verb, folder, config, agent_setup, console) as bench_run:
                names = {
                    start: f"code/{start.task.id}/{start.sample}"
                    for task in tasks
                    for start in (Start(task, number) for number in range(config.samples))
                }
                problem_tallies = count_samples(tasks, bench_run.play(world, names))
    results_path = folder / "code.json"
    _write_results(results_path, agent_setup, _count_problems(config, path, world, problem_tallies))
    _print_pass_rates(console, config, problem_tallies, world)
    _print_lines(console, f"results {results_path}")
    return 1 if any(tally.samples < config.samples for tally in problem_tallies) else 0


def _count_problems(
    config: CodeBenchConfig, path: Path, world: Code, problem_tallies: Sequence[ProblemTally]
) -> dict[str, object]:
    intervals_by_k = {
        str(k): mean_pass_at(problem_tallies, k)
        for k in config.k
        if any(entry.samples >= k for entry in problem_tallies)
    }
    return {
        "set": config.set,
        "file": path.name,
        "sha256": sha256_of(path) if path.is_file() else None,
        "split": config.split,
        "problems": len(problem_tallies),
        "left_out": len(world.problems),
        "samples": config.samples,
        "seed": config.seed,
        "pass_at": {
            k: [entry.mean, None if isnan(entry.low) else entry.low, None if isnan(entry.high) else entry.high]
            for k, entry in intervals_by_k.items()
        },
        "passed": [entry.passed for entry in problem_tallies],
        "judged": [entry.samples for entry in problem_tallies],
    }


def _print_pass_rates(
    console: Console, config: CodeBenchConfig, problem_tallies: Sequence[ProblemTally], world: Code
) -> None:
    rows = []
    for k in config.k:
        if not any(tally.samples >= k for tally in problem_tallies):
            continue
        interval = mean_pass_at(problem_tallies, k)
        ends_text = "" if isnan(interval.low) else f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
        rows.append((f"pass@{k}", interval.n, config.samples, f"{100 * interval.mean:.1f}", ends_text))
    columns = ("measure", "problems", "samples", "%", "95 %")
    console.print(render_table(console, columns, rows, numbers=columns[1:4]))
    if world.problems:
        console.print(f"{len(world.problems)} rows left out: unreadable, or tests that cannot be run", soft_wrap=True)
    num_unjudged = sum(config.samples - tally.samples for tally in problem_tallies)
    if num_unjudged:
        console.print(f"{num_unjudged} responses could not be judged; go on with --resume", soft_wrap=True)
