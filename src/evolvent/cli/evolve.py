"""`evolvent evolve`, the main command: clone, explore, select, learn and measure, beside a control of equal
training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from rich.console import Console

from evolvent.cli.setup.backends import BackendConfig
from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.setup.prompt_data import check_isolation, print_world_notes
from evolvent.cli.setup.prompting import ActingConfig, fill_history
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import check_named_inputs, describe_worlds, resolve_policy
from evolvent.cli.setup.run_setup import EvaluationConfig, RunSetup, count_panel_episodes, open_backend, open_run
from evolvent.cli.setup.settings import Command, ModelConfig, WorldsConfig, parse_command
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.learn.settings import TrainConfig
from evolvent.methods.agentevol import EMBEDDED, FORMULATED, PUBLISHED, AgentEvolConfig, agentevol
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.placement import check_working_memory, multiplies_bfloat16
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.trajectory import Task, Trajectory
from evolvent.view import read_run, summary
from evolvent.worlds.audit import audit
from evolvent.worlds.base import World

__all__ = ["COMMAND", "EvolveConfig", "choose_exploration_tasks", "plan_stages", "run"]


class EvolveConfig(ModelConfig, BackendConfig, WorldsConfig):
    """Settings of `evolvent evolve`."""

    policy: str = Field(default="xs", description="a size (xs, s, m), a model (folder, GGUF file, name), or a run")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/evolve-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(200,), min_length=1, description="demonstrated tasks of each world, in order; the last for the rest"
    )
    namings: int = Field(
        default=1, ge=1, description="times a demonstration is shown, under other names where possible"
    )
    explore: int = Field(default=400, ge=0, description="tasks of each world to explore without demonstration")
    slots: int = Field(default=384, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    agent: ActingConfig = Field(default_factory=ActingConfig, description="the prompt and the actions")
    method: AgentEvolConfig = Field(default_factory=AgentEvolConfig, description="the method")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement")

    def check_inputs(self) -> None:
        """Checks that the policy exists; raises what `check_named_inputs` raises."""
        check_named_inputs(self.policy)

    @field_validator("method")
    @classmethod
    def _check_thresholds(cls, method: AgentEvolConfig) -> AgentEvolConfig:
        unknown_worlds = [
            unknown_name_problem("world", name, describe_worlds())
            for name in method.thresholds
            if name not in describe_worlds()
        ]
        if unknown_worlds:
            raise ValueError("thresholds: " + "; ".join(problem.describe() for problem in unknown_worlds))
        return method


# What two cores can show in six minutes, near what the study of AgentEvol fixed (benchmarks/evolve.py).
LAPTOP: Mapping[str, object] = {
    "demonstrations": [200, 50],
    "namings": 10,
    "train": {"lr": 5e-3, "betas": [0.9, 0.95], "batch_tokens": 512},
}

# What two cores can show in half an hour with a model of a hundred million weights, near what its study fixed
# (benchmarks/evolve_real.py). Rounds take a third of the rate of cloning: at the full rate the second round forgot what
# cloning had taught (59.5 % of held-out tasks after 67.5 %).
_BFLOAT16 = multiplies_bfloat16()
PRETRAINED: Mapping[str, object] = {
    "demonstrations": [30],
    "explore": 120,
    "adapter": {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["all-linear"]},
    "dtype": "bfloat16" if _BFLOAT16 else "auto",
    "train": {
        "lr": 1e-3,
        "batch_tokens": 1024,
        "epochs": 9,
        "warmup_steps": 5,
        "dtype": "bfloat16" if _BFLOAT16 else "float32",
    },
    "method": {"iterations": 2, "samples_per_task": 3, "round_tokens": 8000, "lr_scale": 0.3},
    "panel": {"limit": 25},
    "slots": 64,
}


def _choose_preset(config: EvolveConfig) -> str:
    """Returns the preset that fits the policy."""
    return "pretrained" if read_model_facts(config.policy).is_pretrained else "embedded"


COMMAND = Command(
    "evolve",
    "Clone demonstrations, explore tasks that nobody demonstrated, keep what was rewarded, learn, measure; repeat.",
    EvolveConfig,
    presets={
        "embedded": {**LAPTOP, "method": dict(EMBEDDED)},
        "pretrained": PRETRAINED,
        "paper": {
            "method": dict(PUBLISHED),
            "train": {"lr": 1e-5, "weight_decay": 0.0, "epochs": 1, "final_lr_ratio": 0.0},
        },
        "formulated": {"method": dict(FORMULATED)},
    },
    resumes=True,
    free_settings=("backend", "device"),
    choose_preset=_choose_preset,
)


def run(argv: Sequence[str], console: Console) -> int:
    """Runs the main command; returns the exit code."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    facts = read_model_facts(args.config.policy, adapter=args.config.adapter.kind)
    config = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    _check_selection(config)
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    worlds_by_name = config.agent.load_worlds(config.worlds, prompt)
    print_world_notes(console, worlds_by_name)
    check_isolation(worlds_by_name, backend=config.backend)
    panel_size = count_panel_episodes(worlds_by_name, config.panel)
    demonstration_tasks, exploration_tasks = choose_tasks(worlds_by_name, config)
    folder = args.resume or choose_run_folder("evolve", config.output_dir)
    worlds = list(worlds_by_name.values())
    loaded_policy = resolve_policy(
        config.policy, worlds, seed=config.seed, placement=config.placement, history=config.agent.history
    )
    config = fill_history(config, loaded_policy, console)
    initial = adapt(loaded_policy, config.adapter, seed=config.seed)
    check_working_memory(initial.model, context=initial.context, trains=True)
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with open_backend(
        config.backend, config.worlds, worlds_by_name, threads=config.threads, prompt=prompt
    ) as backend_factory:
        job = RunSetup(
            folder,
            worlds_by_name,
            RunRecord("evolve", config, config.seed, ("evolve", "control"), "agentevol"),
            train=config.train,
            panel=config.panel.make_panel(),
            slots=config.slots,
            max_tokens=config.max_tokens,
            threads=config.threads,
            plan=plan_stages(config, len(exploration_tasks), panel_size),
            backend_factory=backend_factory,
            placement=config.placement,
            restrict_to_admissible=config.agent.restrict_to_admissible,
        )
        with open_run(job, console) as active_run:
            write_floors(folder, worlds_by_name, config)
            demonstrations = collect_demonstrations(
                worlds, demonstration_tasks, seed=config.seed, namings=config.namings
            )
            best_policy = _run_arms(initial, exploration_tasks, demonstrations, config=config.method, run=active_run)
            best_policy.save(folder / "model")
    console.print(summary(read_run(folder), width=console.width))
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


def _check_selection(config: EvolveConfig) -> None:
    """Checks that the tasks which choose the best round do not measure it too."""
    if config.method.select == "best" and config.panel.split == "dev":
        hint = "set panel.split to 'test', or use the last round"
        raise ConfigError([Problem("panel.split", "the dev split already chooses the best round", hint)])


def _run_arms(
    initial: Policy,
    exploration_tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
    *,
    config: AgentEvolConfig,
    run: Run[Policy],
) -> Policy:
    """Evolves the policy, then trains its control on as many tokens of the demonstrations; returns the evolved one."""
    best_policy = agentevol(initial, exploration_tasks, demonstrations, config=config, run=run)
    control_config = config.model_copy(update={"keep": "none", "samples_per_task": 0})
    agentevol(initial, exploration_tasks, demonstrations, config=control_config, run=run.arm("control"))
    return best_policy


def choose_tasks(worlds: Mapping[str, World], config: EvolveConfig) -> tuple[list[Task], list[Task]]:
    """Chooses the tasks to demonstrate and the tasks to explore, from all worlds.

    Returns:
        (tasks to demonstrate, tasks to explore).
    Raises:
        ConfigError: a world with fewer tasks than requested.
    """
    demonstration_tasks: list[Task] = []
    exploration_tasks: list[Task] = []
    problems = []
    counts = [*config.demonstrations, *[config.demonstrations[-1]] * len(worlds)]
    for count, (name, world) in zip(counts, worlds.items(), strict=False):
        panel = list(world.tasks("train", world.tiers[0]))
        available = choose_exploration_tasks(world, count, config.explore)
        if len(panel) < count:
            message = f"got {count} for world {name!r}, which has {len(panel)} tasks"
            problems.append(Problem("demonstrations", message, f"set at most {len(panel)}"))
        if len(available) < config.explore:
            message = f"got {config.explore} for world {name!r}, which has {len(available)} more tasks to explore"
            problems.append(Problem("explore", message, f"set at most {len(available)}"))
        demonstration_tasks += panel[:count]
        exploration_tasks += available
    if problems:
        raise ConfigError(problems)
    return demonstration_tasks, exploration_tasks


def choose_exploration_tasks(world: World, num_demonstrated: int, count: int) -> list[Task]:
    """Returns at most `count` training tasks that are not demonstrated, evenly from all trainable tiers."""
    panels = [list(world.tasks("train", tier)) for tier in world.tiers]
    panels[0] = panels[0][num_demonstrated:]
    interleaved = [task for row in zip_longest(*panels) for task in row if task is not None]
    return interleaved[:count]


def plan_stages(config: EvolveConfig, num_exploration_tasks: int, panel_size: int) -> list[PlannedStage]:
    """Returns the planned stages of both arms, in order, with their sizes in tokens and episodes."""
    method, train = config.method, config.train
    learn = PlannedStage("fit", method.round_tokens or train.tokens)
    measure = PlannedStage("evaluate", panel_size)
    explore = (
        [PlannedStage("collect", num_exploration_tasks * method.samples_per_task)]
        if num_exploration_tasks * method.samples_per_task
        else []
    )
    plan = [*(PlannedStage("fit", tokens or train.tokens) for tokens in method.cloning_tokens), measure]
    return plan + [*explore, learn, measure] * method.iterations + [learn, measure] * method.iterations


def write_floors(folder: Path, worlds: Mapping[str, World], config: EvolveConfig) -> None:
    """Writes the success of random actions, blind replay and the expert in each panel, as baselines of success
    rates.
    """
    path = folder / "floors.json"
    if path.exists() or config.panel.split == "train":
        return
    floors: dict[str, dict[str, Any]] = {}
    for name, world in worlds.items():
        report = audit(world, config.panel.split, limit=config.panel.limit, seed=config.seed)
        floors[name] = {
            tier: {"random": row.random, "blind_replay": row.replay, "expert": row.expert}
            for tier, row in report.tiers.items()
        }
    write_atomic(path, json.dumps(floors))
