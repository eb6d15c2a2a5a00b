"""`evolvent bench trad`: TRAD and its family with one model on the same tasks, and their order.

In households (ALFWorld) the measure is success; on recorded pages (Mind2Web) it is the success of steps, beside
element accuracy, the F1 of operations and the success of tasks. The published evaluation of pages is that of
`--step_success exact`; `mindact` takes any of the right elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator
from rich.console import Console

from evolvent.bench.suite import PanelSpec, list_panels
from evolvent.cli.bfclbench import open_bench_run
from evolvent.cli.setup.agent_options import (
    AgentSetup,
    MemoryConfig,
    TokenUsage,
    WorldPlayerConfig,
    WorldsAgentConfig,
    prepare_agent,
    resume_collection,
)
from evolvent.cli.setup.extensions import load_encoder
from evolvent.cli.setup.model_defaults import read_model_facts
from evolvent.cli.setup.record import choose_run_folder, collect_versions
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.config import resolve
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import plain_json, write_atomic
from evolvent.grade.web_actions import ScoringRules, WebScores
from evolvent.rollout.episode import Limits
from evolvent.stats import Interval, paired_interval, wilson_interval
from evolvent.trajectory import JsonObject, Trajectory, trajectory_name
from evolvent.view.escape import show_hidden
from evolvent.worlds.base import World
from evolvent.worlds.web_replay.world import WebReplayWorld

if TYPE_CHECKING:
    from evolvent.memory.steps import StepMemory

__all__ = ["COMMAND", "SYSTEMS", "TradBenchConfig", "run"]

_FAMILY = ("trad", "synapse", "rap", "react", "zero_shot")
SYSTEMS: tuple[str, ...] = (*_FAMILY, "no_expansion", "no_mark", "no_alignment", "no_thought")
"""The systems by the names of this command: TRAD, the systems it is compared with, no memory at all, its ablations."""
_WEB_WINDOW = {"before": 0, "after": 2}  # of TRAD on web pages


class TradBenchConfig(WorldsAgentConfig):
    """Settings of `evolvent bench trad`."""

    worlds: tuple[str, ...] = Field(
        default=("household",), description="household:FOLDER of ALFWorld's games, webreplay:FOLDER of Mind2Web, ..."
    )
    agent: WorldPlayerConfig = Field(
        default_factory=lambda: WorldPlayerConfig(kind="policy"), description="who plays, and the prompt"
    )
    temperature: float = Field(default=0.0, ge=0, description="of the model; 0: the likeliest token")
    systems: tuple[str, ...] = Field(default=_FAMILY, description="which systems play; the first is the one compared")
    step_success: Literal["exact", "mindact"] = Field(default="exact", description="when a step on a page is right")
    split: Literal["train", "dev", "test"] = Field(default="test", description="whose tasks are played")
    tiers: tuple[str, ...] = Field(default=(), description="the tiers that are played; none: all")
    limit: int | None = Field(default=None, ge=1, description="most tasks of a panel; none: all")
    horizon: int | None = Field(default=None, ge=1, description="steps of an episode; none: the world's; paper: 50")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/trad-N")

    @model_validator(mode="after")
    def _check_systems(self) -> TradBenchConfig:
        problems = [unknown_name_problem("systems", name, SYSTEMS) for name in self.systems if name not in SYSTEMS]
        if problems:
            raise ValueError("; ".join(problem.describe() for problem in problems))
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems: got {list(self.systems)}, expected each once and at least one")
        if self.agent.kind not in ("policy", "endpoint"):
            raise ValueError(f"bench trad needs --agent policy or endpoint, got {self.agent.kind}")
        if self.memory.folder is None and set(self.systems) != {"zero_shot"}:
            raise ValueError("bench trad needs --memory.folder, made by evolvent memory build")
        if self.memory.system != "trad":
            raise ValueError("bench trad plays several systems: name them with --systems, not --memory.system")
        return self


COMMAND = Command(
    "bench trad",
    "TRAD, Synapse, RAP, ReAct and no memory with one model on the same tasks: a table, and their order.",
    TradBenchConfig,
    resumes=True,
)


@dataclass(frozen=True)
class _SystemResult:
    """The result of a system on a panel.

    Args:
        system, panel: which.
        episodes: in the order of the panel's tasks.
        scores: by task: success, or on pages the share of right steps; None: not scored.
        web: the measures of pages; None: the world has none.
        usage: tokens used.
    """

    system: str
    panel: PanelSpec
    episodes: tuple[Trajectory, ...]
    scores: tuple[float | None, ...]
    web: WebScores | None
    usage: TokenUsage

    @property
    def mean(self) -> float | None:
        """Returns the mean over scored tasks, None without one."""
        scored_tasks = [score for score in self.scores if score is not None]
        return sum(scored_tasks) / len(scored_tasks) if scored_tasks else None


def run(argv: Sequence[str], console: Console) -> int:
    """Measures the systems; returns the exit code: 1 where an episode could not be scored."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    is_pretrained = config.agent.kind == "policy" and read_model_facts(config.policy).is_pretrained
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=is_pretrained)
    worlds_by_name = config.agent.load_worlds(config.worlds, prompt)
    panels = list_panels(worlds_by_name, split=config.split, tiers=config.tiers, limit=config.limit, own_horizons=True)
    memory = _load_memory(config)
    plain_config = config.model_copy(update={"memory": MemoryConfig()})
    with prepare_agent(plain_config, worlds_by_name, verb=COMMAND.verb) as agent_setup:
        setups = {
            (panel.name, system): _make_setup(agent_setup, system, panel.world, config=config, memory=memory)
            for panel in panels
            for system in config.systems
        }
        folder = args.resume or choose_run_folder("trad", config.output_dir)
        results = []
        with open_bench_run(COMMAND.verb, folder, config, agent_setup, console) as bench_run:
            for panel in panels:
                horizon = config.horizon or panel.horizon
                for system in config.systems:
                    usage_before = agent_setup.usage()
                    episodes = resume_collection(
                        panel.world,
                        {start: f"{trajectory_name(start, 'trad')}-{system}" for start in panel.starts()},
                        setups[panel.name, system],
                        store=bench_run.store,
                        progress=bench_run.progress,
                        config=config,
                        label=f"{panel.name}, {system}",
                        limits=Limits(horizon=horizon),
                    )
                    usage = _subtract_usage(agent_setup.usage(), usage_before)
                    results.append(_summarize(system, panel, episodes, config=config, usage=usage))
    _print_results(console, results, config)
    file = folder / "trad.json"
    write_atomic(file, plain_json(_results_row(results, config, agent_setup)) + "\n")
    console.print(show_hidden(f"results {file}"), soft_wrap=True)
    return 1 if any(score is None for result in results for score in result.scores) else 0


def _load_memory(config: TradBenchConfig) -> StepMemory | None:
    if config.memory.folder is None:
        return None
    from evolvent.memory.steps import StepMemory

    encoder = load_encoder(config.memory.encoder) if config.memory.encoder else None
    return StepMemory.load(config.memory.folder, encoder)


def _make_setup(
    agent_setup: AgentSetup, system: str, world: World, *, config: TradBenchConfig, memory: StepMemory | None
) -> AgentSetup:
    """Returns the setup whose agent is a system; raises ConfigError for a memory that cannot serve it."""
    from evolvent.methods import trad

    presets = {"trad": trad.TRAD, "synapse": trad.SYNAPSE, "rap": trad.RAP, "react": trad.REACT}
    presets |= {"zero_shot": trad.ZERO_SHOT}
    presets |= {name.replace(" ", "_"): preset for name, preset in trad.ABLATIONS.items()}
    is_own_window = "level" in presets[system] or system == "rap"
    is_page = isinstance(world, WebReplayWorld) and not is_own_window
    preset = {**(_WEB_WINDOW if is_page else {}), **presets[system]}
    shared: dict[str, object] = {"k": config.memory.num_examples, "temperature": config.temperature}
    if system != "zero_shot":
        shared["kind_words"] = config.memory.kind_words
    if config.max_tokens is not None:
        shared["action_tokens"] = config.max_tokens
    settings = resolve(trad.TradConfig, preset={**preset, **shared})
    if agent_setup.model is None:
        raise ConfigError([Problem("agent", "no model plays", "use --agent policy or endpoint")])
    agent = trad.build_agent(agent_setup.model, settings, memory=None if system == "zero_shot" else memory)
    return replace(agent_setup, agent=agent)


def _subtract_usage(after: TokenUsage, before: TokenUsage) -> TokenUsage:
    return TokenUsage(
        after.computed - before.computed, after.prompted - before.prompted, after.completed - before.completed
    )


def _summarize(
    system: str, panel: PanelSpec, episodes: Sequence[Trajectory], *, config: TradBenchConfig, usage: TokenUsage
) -> _SystemResult:
    by_task = {episode.task.id: episode for episode in episodes}
    ordered = tuple(by_task[task.id] for task in panel.tasks)
    world = panel.world
    if not isinstance(world, WebReplayWorld):
        successes = (None if episode.success is None else float(episode.success) for episode in ordered)
        return _SystemResult(system, panel, ordered, tuple(successes), None, usage)
    rules = ScoringRules(step_success=config.step_success)
    scores = [
        None if episode.error is not None else world.evaluate([episode], rules=rules).micro.success
        for episode in ordered
    ]
    web = world.evaluate([episode for episode in ordered if episode.error is None], rules=rules)
    return _SystemResult(system, panel, ordered, tuple(scores), web, usage)


def _print_results(console: Console, results: Sequence[_SystemResult], config: TradBenchConfig) -> None:
    columns = ("panel", "system", "tasks", "score, %", "95 %", "element", "operation", "tasks won, %", "tokens read")
    rows = []
    for result in results:
        interval = _interval(result)
        web = result.web
        rows.append(
            (
                result.panel.name,
                result.system,
                len(result.scores),
                None if result.mean is None else f"{100 * result.mean:.1f}",
                "" if interval is None else f"{100 * interval.low:.1f} to {100 * interval.high:.1f}",
                None if web is None or web.macro.element is None else f"{100 * web.macro.element:.1f}",
                None if web is None or web.macro.operation is None else f"{100 * web.macro.operation:.1f}",
                None if web is None or web.task_success is None else f"{100 * web.task_success:.1f}",
                f"{tokens:,}" if (tokens := result.usage.prompted or result.usage.computed) else None,
            )
        )
    console.print(render_table(console, columns, rows, numbers=[name for name in columns[2:] if name != "95 %"]))
    for line in _describe_order(results, config):
        console.print(show_hidden(line), soft_wrap=True)


def _interval(result: _SystemResult) -> Interval | None:
    """Returns the interval of a success rate; None on pages, whose steps of a task belong together."""
    scored_tasks = [score for score in result.scores if score is not None]
    return (
        None
        if result.web is not None or not scored_tasks
        else wilson_interval(int(sum(scored_tasks)), len(scored_tasks))
    )


def _describe_order(results: Sequence[_SystemResult], config: TradBenchConfig) -> list[str]:
    """Returns for each panel the order of the systems, and how far the first system is ahead of each other one."""
    lines = []
    for panel_name in dict.fromkeys(result.panel.name for result in results):
        by_system = {result.system: result for result in results if result.panel.name == panel_name}
        ranked = sorted(
            by_system.values(), key=lambda result: -1.0 if result.mean is None else result.mean, reverse=True
        )
        order = ", ".join(
            f"{result.system} {'not scored' if result.mean is None else format_rate(result.mean)}" for result in ranked
        )
        lines.append(f"{panel_name}: {order}")
        if web := by_system[config.systems[0]].web:
            shown = 1 - web.missed / web.steps if web.steps else 0.0
            lines.append(f"  the page shows a right element in {format_rate(shown)} of the {web.steps} steps")
        for name in config.systems[1:]:
            difference = _compare(by_system[config.systems[0]], by_system[name], seed=config.seed)
            if difference is None:
                continue
            span = f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
            verdict = "undecided" if not difference.excludes(0) else "ahead" if difference.mean > 0 else "behind"
            lines.append(f"  {config.systems[0]} - {name}: {100 * difference.mean:+.1f} points {span}, {verdict}")
    return lines


def _compare(a: _SystemResult, b: _SystemResult, *, seed: int) -> Interval | None:
    """Computes the mean difference over the tasks that both have a score for; None without two tasks."""
    pairs = [
        (score_a, score_b, task.kind)
        for score_a, score_b, task in zip(a.scores, b.scores, a.panel.tasks, strict=True)
        if score_a is not None and score_b is not None
    ]
    if len(pairs) < 2:
        return None
    scores_a, scores_b, kinds = zip(*pairs, strict=True)
    return paired_interval(scores_a, scores_b, levels=[kinds], rng=np.random.default_rng(seed))


def _results_row(results: Sequence[_SystemResult], config: TradBenchConfig, agent_setup: AgentSetup) -> JsonObject:
    rows = [
        {
            "world": result.panel.world.name,
            "tier": result.panel.tier,
            "system": result.system,
            "score": result.mean,
            "scores": list(result.scores),
            "steps": sum(len(episode.steps) for episode in result.episodes),
            "web": None if result.web is None else asdict(result.web),
            "usage": asdict(result.usage),
        }
        for result in results
    ]
    return {
        "player": agent_setup.player.name,
        "systems": list(config.systems),
        "step_success": config.step_success,
        "order": _describe_order(results, config),
        "panels": rows,
        "versions": collect_versions(),
    }
