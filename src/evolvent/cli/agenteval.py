"""`evolvent bench agent-eval`: one agent on the test panels of many worlds at their official horizons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from rich.console import Console, RenderableType

from evolvent.bench.suite import (
    PanelResult,
    PanelSpec,
    Player,
    Sheet,
    list_panels,
    overall_success,
    read_sheet,
    summarize_panel,
)
from evolvent.cli.bfclbench import open_bench_run
from evolvent.cli.setup.agent_options import AgentSetup, WorldsAgentConfig, prepare_agent, store_episodes
from evolvent.cli.setup.model_defaults import read_model_facts
from evolvent.cli.setup.prompting import fill_history
from evolvent.cli.setup.record import choose_run_folder, collect_versions
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.cli.terminal.progress import Progress
from evolvent.rollout.episode import Limits, collect
from evolvent.store.store import Store
from evolvent.trajectory import Start, trajectory_name
from evolvent.view.escape import clip, show_hidden
from evolvent.worlds.panel import digest

__all__ = ["COMMAND", "AgentEvalConfig", "run"]


_PANEL_LIMIT = 100


class AgentEvalConfig(WorldsAgentConfig):
    """Settings of `evolvent bench agent-eval`."""

    worlds: tuple[str, ...] = Field(default=("all",), description="the worlds to act in; all: every embedded one")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    name: str = Field(default="", description="how tables call the agent; none: what plays")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/agent-eval-N")
    sheet: Path | None = Field(default=None, description="also write the results file here")
    split: Literal["dev", "test"] = Field(default="test", description="whose panels are played")
    tiers: tuple[str, ...] = Field(default=(), description="the tiers that are played; none: all")
    limit: int | None = Field(
        default=None, ge=1, description=f"most tasks of a panel; none: {_PANEL_LIMIT}, of released files all"
    )
    horizons: Literal["official", "own"] = Field(default="official", description="steps of an episode")
    tasks: Path | None = Field(
        default=None, description="AgentGym's released files: a folder, or a file; none: the panels of the worlds"
    )
    environments: tuple[str, ...] = Field(default=(), description="of the released files; none: all that they name")
    sources: tuple[str, ...] = Field(
        default=(), description="ENVIRONMENT=URL of its server, or ENVIRONMENT=PATH of what its tasks are read from"
    )

    @model_validator(mode="after")
    def _check_tasks(self) -> AgentEvalConfig:
        if self.tasks is None and (self.environments or self.sources):
            raise ValueError("environments and sources belong to released files: name them with --tasks FOLDER")
        return self


COMMAND = Command(
    "bench agent-eval",
    "Play the test panels of all worlds with one agent: a table, and a results file to share.",
    AgentEvalConfig,
    resumes=True,
)


def run(argv: Sequence[str], console: Console) -> int:
    """Measures an agent; returns the exit code: 1 where an episode could not be scored."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    is_pretrained = config.agent.kind == "policy" and read_model_facts(config.policy).is_pretrained
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=is_pretrained)
    worlds_by_name = config.agent.load_worlds(_list_worlds(config), prompt)
    panels = list_panels(
        worlds_by_name,
        split=config.split,
        tiers=config.tiers,
        limit=config.limit or (_PANEL_LIMIT if config.tasks is None else None),
        own_horizons=config.horizons == "own",
    )
    with prepare_agent(config, worlds_by_name, verb=COMMAND.verb) as agent_setup:
        if agent_setup.policy is not None:
            config = fill_history(config, agent_setup.policy, console)
        folder = args.resume or choose_run_folder("agent-eval", config.output_dir)
        file = folder / "agent-eval.json"
        with open_bench_run(COMMAND.verb, folder, config, agent_setup, console) as bench_run:
            store = bench_run.store
            sheet = Sheet(
                _named_player(agent_setup, config),
                config.seed,
                _format_time(),
                collect_versions(),
                _read_finished_rows(file, panels),
            )
            for panel in panels[len(sheet.panels) :]:
                row = _measure_panel(panel, agent_setup, store, progress=bench_run.progress, config=config)
                sheet = replace(sheet, panels=(*sheet.panels, row))
                sheet.write(file)
            error_counts = _count_errors(store)
    if config.sheet is not None:
        sheet.write(config.sheet)
    console.print(_build_table(console, sheet))
    for message, count in error_counts.most_common(3):
        console.print(show_hidden(f"{count} not scored, {clip(message, 300)}"), soft_wrap=True)
    console.print(_summarize(sheet), soft_wrap=True)
    console.print(show_hidden(f"results {config.sheet or file}"), soft_wrap=True)
    return 1 if any(row.errors for row in sheet.panels) else 0


def _list_worlds(config: AgentEvalConfig) -> tuple[str, ...]:
    """Returns the names of the worlds that are played: those of the settings, or those of the released files."""
    if config.tasks is None:
        return config.worlds
    from evolvent.serve.agentgym.released import name_worlds

    return name_worlds(config.tasks, config.environments, config.sources)


def _named_player(agent_setup: AgentSetup, config: AgentEvalConfig) -> Player:
    return replace(agent_setup.player, name=config.name) if config.name else agent_setup.player


def _format_time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _read_finished_rows(file: Path, panels: Sequence[PanelSpec]) -> tuple[PanelResult, ...]:
    """Returns the leading rows of an interrupted evaluation that match their panels and have every score."""
    if not file.exists():
        return ()
    rows = read_sheet(file).panels
    is_valid = [row.digest == digest(panel.tasks) and not row.errors for row, panel in zip(rows, panels, strict=False)]
    return rows[: is_valid.index(False) if False in is_valid else len(is_valid)]


def _count_errors(store: Store) -> Counter[str]:
    """Counts the errors of unscored tasks by message; only the last try of a task counts."""
    last_errors = {trajectory.task.id: trajectory.error for trajectory in store.trajectories()}
    return Counter(error.summary for error in last_errors.values() if error)


def _measure_panel(
    panel: PanelSpec, agent_setup: AgentSetup, store: Store, *, progress: Progress, config: AgentEvalConfig
) -> PanelResult:
    """Plays the episodes of a panel that the store lacks; seconds and tokens are those of this panel alone."""
    task_ids = {task.id for task in panel.tasks}
    stored = [
        trajectory
        for trajectory in store.trajectories(filters={"world": panel.world.name})
        if trajectory.task.id in task_ids
    ]
    finished = [trajectory for trajectory in stored if trajectory.error is None]
    finished_ids = {trajectory.task.id for trajectory in finished}
    tries = Counter(trajectory.task.id for trajectory in stored)
    remaining_starts = [start for start in panel.starts() if start.task.id not in finished_ids]

    def name_of(start: Start) -> str:
        """Returns the trajectory name of a start; a repeated episode gets a new one."""
        base_name = trajectory_name(start, "agent-eval")
        return f"{base_name}~{tries[start.task.id]}" if tries[start.task.id] else base_name

    start_time, usage_before = time.monotonic(), agent_setup.usage()
    episodes = collect(
        {panel.world.name: panel.world},
        remaining_starts,
        agent_setup.agent,
        engine=agent_setup.engine,
        seed=config.seed,
        slots=config.slots,
        limits=Limits(horizon=panel.horizon),
        name=name_of,
    )
    with closing(episodes) as episode_stream:
        finished += store_episodes(episode_stream, store, progress, count=len(remaining_starts), label=panel.name)
    usage, wall_s = agent_setup.usage(), round(time.monotonic() - start_time, 3)
    return summarize_panel(
        panel,
        finished,
        wall_s=wall_s,
        computed=usage.computed - usage_before.computed,
        prompted=usage.prompted - usage_before.prompted,
        completed=usage.completed - usage_before.completed,
    )


def _build_table(console: Console, sheet: Sheet) -> RenderableType:
    columns = ("panel", "tasks", "steps", "won, %", "95 %", "score", "tokens", "s")
    rows = []
    for row in sheet.panels:
        success = row.success
        mean = None if success is None else f"{100 * success.mean:.1f}"
        interval = (
            f"{row.errors} not scored" if success is None else f"{100 * success.low:.1f} to {100 * success.high:.1f}"
        )
        score = None if row.unit is None else f"{row.unit:.2f}"
        rows.append(
            (
                row.name,
                len(row.outcomes),
                row.horizon,
                mean,
                interval,
                score,
                f"{row.generated:,}",
                f"{row.wall_s:.1f}",
            )
        )
    return render_table(console, columns, rows, numbers=tuple(name for name in columns[1:] if name != "95 %"))


def _summarize(sheet: Sheet) -> str:
    overall_interval = overall_success(sheet.panels)
    num_worlds = len({row.world for row in sheet.panels})
    if overall_interval is None:
        return "no overall success: episodes of a panel could not be scored"
    interval, worlds_text = (
        f"[{format_rate(overall_interval.low)} to {format_rate(overall_interval.high)}]",
        f"{num_worlds} world{'s' * (num_worlds > 1)}",
    )
    method_text = "the mean over worlds of the mean over their panels"
    return (
        f"{show_hidden(sheet.player.name)}: {format_rate(overall_interval.mean)} {interval} over "
        f"{worlds_text}, {method_text}"
    )
