"""`evolvent bench bfcl` and `evolvent bench calls`: function calling on BFCL's items, and on samples of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.bench.bfcl import CategoryRow, MaskedBfcl, category_rows, compute_totals, masking_loss
from evolvent.cli.setup.agent_options import AgentConfig, AgentSetup, prepare_agent, resume_collection
from evolvent.cli.setup.record import RunRecord, choose_run_folder, collect_versions, record_run
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.progress import Progress
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.grade.call_metrics import CallScore, score_calls
from evolvent.stats import Interval, wilson_interval
from evolvent.store.store import Store
from evolvent.trajectory import Start
from evolvent.view.escape import show_hidden
from evolvent.worlds.bfcl.items import BAD_ITEMS, CATEGORIES, MULTI_TURN
from evolvent.worlds.bfcl.world import Bfcl
from evolvent.worlds.calls.world import CallSet, read_call_samples

__all__ = ["CALLS_COMMAND", "COMMAND", "run", "run_calls"]

_ALL = "all"


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
        with Store.open(folder / "trajectories", writing=True) as store:
            with record_run(folder, RunRecord(COMMAND.verb, config, config.seed)), Progress(console) as progress:
                trajectories_by_world = [
                    resume_collection(
                        bench_world,
                        _name_starts(bench_world, config),
                        agent_setup,
                        store=store,
                        progress=progress,
                        config=config,
                        label=bench_world.name,
                    )
                    for bench_world in (world, masked_world)
                    if bench_world is not None
                ]
    category_results, masked_rows = (
        category_rows(trajectories_by_world[0]),
        category_rows(trajectories_by_world[1]) if masked_world is not None else (),
    )
    loss_interval = masking_loss(*trajectories_by_world) if masked_world is not None else None
    _write_results(
        folder / "bfcl.json",
        config,
        agent_setup,
        category_results=category_results,
        masked_rows=masked_rows,
        loss_interval=loss_interval,
        problems=world.problems,
    )
    _print_results(console, category_results, masked_rows, loss_interval)
    for problem in world.problems[:5]:
        console.print(show_hidden(str(problem)), soft_wrap=True)
    console.print(show_hidden(f"results {folder / 'bfcl.json'}"), soft_wrap=True)
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


def _write_results(
    path: Path,
    config: BfclBenchConfig,
    agent_setup: AgentSetup,
    *,
    category_results: Sequence[CategoryRow],
    masked_rows: Sequence[CategoryRow],
    loss_interval: Interval | None,
    problems: Sequence[Problem],
) -> None:
    usage = agent_setup.usage()
    counts_by_side = {
        name: {row.category: [row.correct, row.items, row.ungraded] for row in side}
        for name, side in (("plain", category_results), ("masked", masked_rows))
    }
    row = {
        "player": agent_setup.player.name,
        "about": dict(agent_setup.player.about),
        "form": config.form,
        "seed": config.seed,
        "constrained": config.constrained,
        **counts_by_side,
        "totals": compute_totals(category_results),
        "bad_items": dict(BAD_ITEMS),
        "problems": [str(problem) for problem in problems],
        "lost_to_names": None if loss_interval is None else [loss_interval.mean, loss_interval.low, loss_interval.high],
        "last_session": {"computed": usage.computed, "prompted": usage.prompted, "completed": usage.completed},
        "versions": collect_versions(),
    }
    write_atomic(path, plain_json(row) + "\n")


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
        record = RunRecord(CALLS_COMMAND.verb, config, config.seed)
        with Store.open(folder / "trajectories", writing=True) as store:
            with record_run(folder, record), Progress(console) as progress:
                names = {Start(task): f"calls/{task.id}" for task in world.tasks("test", "all")}
                trajectories = resume_collection(
                    world, names, agent_setup, store=store, progress=progress, config=config, label="calls"
                )
    answered = [trajectory for trajectory in trajectories if trajectory.success is not None]
    score = score_calls(
        [world.predicted_calls(trajectory) for trajectory in answered],
        [world.sample(trajectory.task).calls for trajectory in answered],
    )
    num_exact = sum(bool(trajectory.success) for trajectory in answered)
    row = {
        **_build_calls_row(config, agent_setup, score),
        "exact": num_exact,
        "not_answered": len(trajectories) - len(answered),
        "problems": [str(problem) for problem in problems],
    }
    write_atomic(folder / "calls.json", plain_json(row) + "\n")
    _print_call_scores(console, score, num_exact)
    for problem in problems[:5]:
        console.print(show_hidden(str(problem)), soft_wrap=True)
    if len(problems) > 5:
        console.print(f"{len(problems)} rows could not be used", soft_wrap=True)
    console.print(show_hidden(f"results {folder / 'calls.json'}"), soft_wrap=True)
    return 1 if len(answered) < len(trajectories) else 0


def _build_calls_row(config: CallsBenchConfig, agent_setup: AgentSetup, score: CallScore) -> dict[str, object]:
    usage = agent_setup.usage()
    return {
        "player": agent_setup.player.name,
        "about": dict(agent_setup.player.about),
        "file": config.data.name,
        "form": config.form,
        "seed": config.seed,
        "items": score.items,
        **{
            name: {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
            for name, counts in (("names", score.names), ("arguments", score.arguments))
        },
        "abstained": score.abstained,
        "unparsable": score.unparsable,
        "last_session": {"computed": usage.computed, "prompted": usage.prompted, "completed": usage.completed},
        "versions": collect_versions(),
    }


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
