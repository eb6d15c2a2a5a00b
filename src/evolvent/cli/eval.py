"""`evolvent eval POLICY`: measures a policy on the panels of its worlds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.backends import BackendConfig
from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.setup.prompt_data import check_isolation, print_world_notes
from evolvent.cli.setup.prompting import ActingConfig, fill_history
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import find_control_policy, resolve_policy
from evolvent.cli.setup.run_setup import (
    EvaluationConfig,
    RunSetup,
    count_panel_episodes,
    open_backend,
    open_run,
    print_results,
)
from evolvent.cli.setup.settings import Command, ModelConfig, WorldsConfig, parse_command
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.models.placement import check_working_memory

if TYPE_CHECKING:
    from evolvent.models.team_actions import TeamModel
    from evolvent.run import Run

__all__ = ["COMMAND", "EvalConfig", "run"]


class EvalConfig(ModelConfig, BackendConfig, WorldsConfig):
    """Settings of `evolvent eval`."""

    policy: str = Field(description="a model folder, a run (its last policy), or a size (xs, s, m; untrained)")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/eval-N")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    agent: ActingConfig = Field(default_factory=ActingConfig, description="the prompt and the actions")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement")


COMMAND = Command(
    "eval",
    "Measure a policy on the panels of its worlds, with intervals.",
    EvalConfig,
    main_field="policy",
    resumes=True,
    free_settings=("backend", "device"),
)


def run(argv: Sequence[str], console: Console) -> int:
    """Measures a policy; returns the exit code: 1 where an episode could not be scored."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    if find_control_policy(args.config.policy) is not None:
        return _measure_control_policy(args.config, args.resume, console)
    facts = read_model_facts(args.config.policy)
    config = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    worlds_by_name = config.agent.load_worlds(config.worlds, prompt)
    print_world_notes(console, worlds_by_name)
    check_isolation(worlds_by_name, backend=config.backend)
    num_episodes = count_panel_episodes(worlds_by_name, config.panel)
    folder = args.resume or choose_run_folder("eval", config.output_dir)
    evaluated_policy = resolve_policy(
        config.policy,
        list(worlds_by_name.values()),
        seed=config.seed,
        placement=config.placement,
        history=config.agent.history,
    )
    config = fill_history(config, evaluated_policy, console)
    check_working_memory(evaluated_policy.model, context=evaluated_policy.context, trains=False)
    panel = config.panel.make_panel(temperature=config.temperature)
    with open_backend(
        config.backend, config.worlds, worlds_by_name, threads=config.threads, prompt=prompt
    ) as backend_factory:
        job = RunSetup(
            folder,
            worlds_by_name,
            RunRecord("eval", config, config.seed, ("base",)),
            panel=panel,
            slots=config.slots,
            max_tokens=config.max_tokens,
            threads=config.threads,
            plan=(PlannedStage("evaluate", num_episodes),),
            backend_factory=backend_factory,
            placement=config.placement,
            restrict_to_admissible=config.agent.restrict_to_admissible,
        )
        with open_run(job, console) as active_run:
            rows = active_run.evaluate(evaluated_policy, 0)
    print_results(console, rows)
    console.print(f"run {folder}", soft_wrap=True)
    return 1 if any(row.errors for row in rows) else 0


def _measure_control_policy(config: EvalConfig, resume: Path | None, console: Console) -> int:
    """Measures a policy over numbers; returns the exit code: 1 where an episode could not be scored."""
    from evolvent.cli.train.control import load_control_policy, load_control_worlds, make_backend_factory

    worlds = load_control_worlds(config.worlds)
    print_world_notes(console, worlds)
    panel_size = count_panel_episodes(worlds, config.panel)
    policies = {name: load_control_policy(config.policy, world, device=config.device) for name, world in worlds.items()}
    setup = RunSetup(
        resume or choose_run_folder("eval", config.output_dir),
        worlds,
        RunRecord("eval", config, config.seed, ("base",)),
        panel=config.panel.make_panel(temperature=config.temperature),
        threads=config.threads,
        plan=(PlannedStage("evaluate", panel_size),),
        backend_factory=make_backend_factory(config.device),
    )
    with open_run(setup, console) as active_run:
        rows = cast("Run[TeamModel]", active_run).evaluate(next(iter(policies.values())), 0)
    print_results(console, rows)
    console.print(f"run {setup.folder}", soft_wrap=True)
    return 1 if any(row.errors for row in rows) else 0
