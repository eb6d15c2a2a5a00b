"""`evolvent collect`: plays tasks with an expert, at random or with a policy, and stores every episode."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator
from rich.console import Console

from evolvent.cli.setup.agent_options import AgentSetup, WorldsAgentConfig, prepare_agent, store_episodes
from evolvent.cli.setup.backends import HERE, BackendConfig, open_cluster_players
from evolvent.cli.setup.model_defaults import print_budget, read_model_facts
from evolvent.cli.setup.prompt_data import check_isolation, print_world_notes
from evolvent.cli.setup.prompting import fill_history
from evolvent.cli.setup.record import RunRecord, check_code, choose_run_folder, record_run
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import format_rate
from evolvent.cli.terminal.progress import Progress
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.rollout.episode import collect, trajectory_name
from evolvent.store.store import Store
from evolvent.trajectory import Score, Start, Task, Trajectory
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.scale.ray_players import PlayerPool

__all__ = ["COMMAND", "CollectConfig", "run"]

_PREFIX = "collect"  # of the ids


class CollectConfig(BackendConfig, WorldsAgentConfig):
    """Settings of `evolvent collect`."""

    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/collect-N")
    split: Literal["train", "dev", "test"] = Field(default="train", description="whose tasks are played")
    tiers: tuple[str, ...] = Field(default=("seen",), description="the tiers that are played")
    limit: int = Field(default=200, ge=1, description="most tasks of a world and tier")
    samples: int = Field(default=1, ge=1, description="episodes per task")

    @model_validator(mode="after")
    def _check_backend_agent(self) -> CollectConfig:
        if self.backend != HERE and (self.agent.kind == "endpoint" or self.memory.folder is not None):
            raise ValueError("--on works only with --agent expert, random or policy, and without a memory")
        return self


COMMAND = Command(
    "collect",
    "Play tasks with an expert, at random, with a policy or an endpoint; keep every episode.",
    CollectConfig,
    resumes=True,
    free_settings=("backend", "device"),
)


def run(argv: Sequence[str], console: Console) -> int:
    """Collects episodes; returns the exit code: 1 where an episode could not be scored. `--experts` writes a corpus."""
    if "--experts" in argv:
        from evolvent.cli.collect_experts import run as run_collect_experts

        return run_collect_experts([word for word in argv if word != "--experts"], console)
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    facts = read_model_facts(config.policy if config.agent.kind == "policy" else "xs")
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    worlds_by_name = config.agent.load_worlds(config.worlds, prompt)
    print_world_notes(console, worlds_by_name)
    check_isolation(worlds_by_name, backend=config.backend)
    print_budget(console, facts, config.device)
    starts = _list_starts(worlds_by_name, config)
    with (
        prepare_agent(config, worlds_by_name, verb="collect") as agent_setup,
        open_cluster_players(
            config.backend, config.worlds, worlds_by_name, threads=config.threads, prompt=prompt
        ) as player_pool,
    ):
        if agent_setup.policy is not None:
            config = fill_history(config, agent_setup.policy, console)
        folder = args.resume or choose_run_folder("collect", config.output_dir)
        check_code(folder, worlds_by_name, is_resumed=args.resume is not None)
        record = RunRecord("collect", config, config.seed)
        with Store.open(folder / "trajectories", writing=True) as store, record_run(folder, record):
            score_by_id = {stored.id: stored.score for stored in store.trajectories()}
            remaining_starts = [start for start in starts if _name_start(start) not in score_by_id]
            with (
                Progress(console) as progress,
                closing(
                    _play_starts(worlds_by_name, remaining_starts, agent_setup, config, player_pool)
                ) as episode_stream,
            ):
                new_scores = [
                    trajectory.score
                    for trajectory in store_episodes(episode_stream, store, progress, count=len(remaining_starts))
                ]
    scores = [*score_by_id.values(), *new_scores]
    console.print(_format_summary(scores), soft_wrap=True)
    console.print(f"run {folder}", soft_wrap=True)
    return 1 if any(score.success is None for score in scores) else 0


def _format_summary(scores: Sequence[Score]) -> str:
    """Formats success, and the mean return where rewards are more than won and lost."""
    scored = [score for score in scores if score.success is not None]
    returns = [score.raw for score in scored if score.raw is not None]
    says_more = any(score.raw not in (None, float(bool(score.success))) for score in scored)
    mean_return = f"mean return {sum(returns) / len(returns):.3f}, " if says_more and returns else ""
    rate = format_rate(sum(bool(score.success) for score in scored) / max(1, len(scored)))
    return f"{len(scores)} episodes, success {rate}, {mean_return}{len(scores) - len(scored)} not scored"


def _play_starts(
    worlds: Mapping[str, World],
    starts: Sequence[Start],
    agent_setup: AgentSetup,
    config: CollectConfig,
    player_pool: PlayerPool | None,
) -> Generator[Trajectory, None, None]:
    """Plays the starts in this process or on a cluster."""
    if player_pool is None:
        return collect(
            worlds,
            starts,
            agent_setup.agent,
            engine=agent_setup.engine,
            seed=config.seed,
            slots=config.slots,
            name=_name_start,
        )
    from evolvent.scale.ray_backend import collect_on_cluster

    return collect_on_cluster(
        player_pool, starts, agent_setup.agent, seed=config.seed, slots=config.slots, prefix=_PREFIX
    )


def _name_start(start: Start) -> str:
    return trajectory_name(start, _PREFIX)


def _list_starts(worlds: Mapping[str, World], config: CollectConfig) -> list[Start]:
    tier_names = sorted({tier for world in worlds.values() for tier in world.tiers})
    problems = [unknown_name_problem("tier", tier, tier_names) for tier in config.tiers if tier not in tier_names]
    tasks: list[Task] = []
    for world in worlds.values() if not problems else ():
        for tier in (tier for tier in config.tiers if tier in world.tiers):
            tasks += world.tasks(config.split, tier)[: config.limit]
    if not tasks and not problems:
        message = f"the panels {config.split}/{','.join(config.tiers)} are empty"
        problems.append(Problem("tiers", message, "choose another split or tier"))
    if problems:
        raise ConfigError(problems)
    return [Start(task, sample) for task in tasks for sample in range(config.samples)]
