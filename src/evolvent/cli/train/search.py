"""`evolvent train tsllm` and `evolvent train openr`: policy and judge are trained on the results of searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import Field
from rich.console import Console

from evolvent.cli.evolve import choose_exploration_tasks
from evolvent.cli.setup.backends import BackendConfig
from evolvent.cli.setup.model_defaults import fill_model_defaults, find_train_defaults, read_model_facts
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import check_named_inputs, load_worlds, resolve_policy
from evolvent.cli.setup.run_setup import (
    EvaluationConfig,
    RunSetup,
    count_panel_episodes,
    open_backend,
    open_run,
    write_report,
)
from evolvent.cli.setup.settings import AnyCommand, Command, ModelConfig, WorldsConfig, parse_command
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.cli.train.rl import CLONE_CONFIG
from evolvent.cli.train.rl_settings import EARLIER_DEFAULTS, UpdateConfig
from evolvent.errors import ConfigError, Problem
from evolvent.learn.preferences import append_readout, build_pairs
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.openr import PUBLISHED, OpenRConfig, openr
from evolvent.methods.tsllm import ALIGNMENT, GAME24, GSM8K, TSLLMConfig, tsllm
from evolvent.models.policy import Policy
from evolvent.rollout.evaluate import panel_starts
from evolvent.rollout.held_out import check_held_out
from evolvent.rollout.search import check_search
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.store.log import read_rows
from evolvent.trajectory import Score, Step, Task, Trajectory
from evolvent.view.redraw import redraw_repeatedly
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.worlds.preference.world import Pair

__all__ = [
    "COMMANDS",
    "SearchTrainingConfig",
    "TrainOpenRConfig",
    "TrainTSLLMConfig",
    "make_preference_sequences",
    "run",
]

_TSLLM_SEARCH, _OPENR_SEARCH = (
    TSLLMConfig().search,
    OpenRConfig().search,
)  # named, so that a setting given beside them leaves the others


class SearchTrainingConfig(ModelConfig, BackendConfig, WorldsConfig):
    """Settings that both methods share, beside their own."""

    policy: str = Field(
        default="xs", description="what to begin with: a size, a model (folder, GGUF file, name), or a run"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: int = Field(default=200, ge=0, description="tasks of each world whose solution is imitated first")
    clone_tokens: int = Field(default=200_000, ge=1, description="learned tokens of that imitation")
    tasks: int = Field(default=100, ge=1, description="further tasks of each world to learn from, at most")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement")

    def check_inputs(self) -> None:
        """Checks that the policy exists; raises what `check_named_inputs` raises."""
        check_named_inputs(self.policy)


class TrainTSLLMConfig(SearchTrainingConfig):
    """Settings of `evolvent train tsllm`."""

    worlds: tuple[str, ...] = Field(default=("countdown",), description="the worlds to act in")
    pairs: int = Field(default=0, ge=0, description="labeled pairs of each world that a reward model is fitted to")
    tsllm: TSLLMConfig = Field(default_factory=lambda: TSLLMConfig(search=_TSLLM_SEARCH), description="the method")


class TrainOpenRConfig(SearchTrainingConfig):
    """Settings of `evolvent train openr`."""

    worlds: tuple[str, ...] = Field(default=("deduction",), description="the worlds to act in")
    train: UpdateConfig = Field(default_factory=UpdateConfig, description="the updates online")
    openr: OpenRConfig = Field(default_factory=lambda: OpenRConfig(search=_OPENR_SEARCH), description="the method")


COMMANDS: dict[str, AnyCommand] = {
    "tsllm": Command(
        "train tsllm",
        "Search with a learned value, learn from what is found, policy and value; repeat (TS-LLM).",
        TrainTSLLMConfig,
        presets={
            "small": {},
            "gsm8k": {"tsllm": dict(GSM8K)},
            "game24": {"tsllm": dict(GAME24)},
            "alignment": {"worlds": ["preference"], "pairs": 2000, "tsllm": dict(ALIGNMENT)},
        },
        resumes=True,
        free_settings=("device",),
    ),
    "openr": Command(
        "train openr",
        "Label steps, learn to judge them, learn from that online and offline, decode guided by it (OpenR).",
        TrainOpenRConfig,
        presets={"small": {}, "published": {"openr": dict(PUBLISHED)}},
        resumes=True,
        free_settings=("device",),
        earlier_defaults=EARLIER_DEFAULTS,
    ),
}


@runtime_checkable
class HasLabeledPairs(Protocol):
    """A world that has labeled pairs of texts (`worlds.preference`)."""

    def pairs(self, split: str, count: int, seed: int) -> Sequence[Pair]: ...


class PairWorld(HasLabeledPairs, Protocol):
    """A world of labeled pairs with the instructions that their prompts follow."""

    instructions: str


@dataclass(frozen=True)
class _MethodInputs:
    """The inputs of a method."""

    tasks: Sequence[Task]
    demonstrations: Sequence[Trajectory]
    config: Any
    worlds: Mapping[str, World]


def run(argv: Sequence[str], console: Console) -> int:
    """Trains by the method that the first argument names; returns the exit code."""
    name = argv[0]
    args = parse_command(COMMANDS[name], argv[1:], console)
    if args is None:
        return 0
    from evolvent.learn.objectives import weighted_nll

    facts = read_model_facts(args.config.policy)
    config = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    worlds_by_name = load_worlds(config.worlds)
    _check_worlds(name, worlds_by_name, config)
    panel_size = count_panel_episodes(worlds_by_name, config.panel)
    demonstration_tasks, training_tasks = _choose_tasks(worlds_by_name, config)
    folder = args.resume or choose_run_folder(name, config.output_dir)
    worlds = list(worlds_by_name.values())
    initial = resolve_policy(config.policy, worlds, seed=config.seed, placement=config.placement)
    search = config.tsllm.search if name == "tsllm" else config.openr.search
    job = RunSetup(
        folder,
        worlds_by_name,
        RunRecord(f"train {name}", config, config.seed, ("base", name, "guided"), name),
        train=find_train_defaults(facts, CLONE_CONFIG),
        panel=config.panel.make_panel(),
        slots=config.slots,
        max_tokens=search.max_tokens,
        threads=config.threads,
        plan=_plan_stages(config, len(training_tasks), panel_size, is_cloned=bool(demonstration_tasks)),
        rl_train=config.train.make_train_config() if name == "openr" else None,
        optimizer=config.train.make_optimizer_config() if name == "openr" else None,
        placement=config.placement,
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with (
        open_backend(config.backend, config.worlds, worlds_by_name, threads=config.threads) as backend_factory,
        open_run(replace(job, backend_factory=backend_factory), console) as active_run,
        redraw_repeatedly(partial(write_report, folder)),
    ):
        demonstration_trajectories = (
            collect_demonstrations(list(worlds_by_name.values()), demonstration_tasks, seed=config.seed)
            if demonstration_tasks
            else []
        )
        arm_run = active_run.arm(name)
        base_policy = (
            arm_run.fit(initial, demonstration_trajectories, weighted_nll, tokens=config.clone_tokens)
            if demonstration_trajectories
            else initial
        )
        best_policy, judge = _METHODS[name](
            base_policy, arm_run, _MethodInputs(training_tasks, demonstration_trajectories, config, worlds_by_name)
        )
        best_policy.save(folder / "model")
        judge.save(folder / "judge")
        _print_results(folder, console)
    paths_text = f"model  {folder / 'model'}\njudge  {folder / 'judge'}\nreport {folder / 'report.html'}"
    console.print(paths_text, soft_wrap=True)
    return 0


def _train_tsllm(base_policy: Policy, run: Run[Policy], inputs: _MethodInputs) -> tuple[Policy, Policy]:
    config = inputs.config
    preference_sequences = [
        sequence
        for world in inputs.worlds.values()
        if config.pairs and isinstance(world, HasLabeledPairs)
        for sequence in make_preference_sequences(world, base_policy, count=config.pairs, seed=config.seed)
    ]
    horizons = {name: world.horizon for name, world in inputs.worlds.items()}
    return tsllm(
        base_policy,
        inputs.tasks,
        config=config.tsllm,
        run=run,
        demonstrations=inputs.demonstrations,
        preferences=preference_sequences,
        horizons=horizons,
    )


def _train_openr(base_policy: Policy, run: Run[Policy], inputs: _MethodInputs) -> tuple[Policy, Policy]:
    return openr(base_policy, inputs.tasks, config=inputs.config.openr, run=run)


_METHODS: dict[str, Callable[[Policy, Run[Policy], _MethodInputs], tuple[Policy, Policy]]] = {
    "tsllm": _train_tsllm,
    "openr": _train_openr,
}


def make_preference_sequences(world: PairWorld, policy: Policy, *, count: int, seed: int) -> list[TokenSequence]:
    """Makes read-outs from the labeled pairs of a world: chosen, rejected, chosen, ..., for a reward-pairs
    objective.

    Args:
        world: a world with `pairs(split, count, seed)`; pairs of its training split are used.
        policy: gives the dialect and the context.
        count: number of pairs.
        seed: seed of the pairs.
    """
    trajectories = []
    for number, pair in enumerate(world.pairs("train", count, seed)):
        group = f"pair/{number}"
        for unit, text in ((1.0, pair.chosen), (0.0, pair.rejected)):
            steps, score = (Step(pair.prompt, text),), Score(unit, unit, unit == 1.0)
            trajectories.append(Trajectory(f"{group}/{unit:.0f}", pair.task, steps, score=score, group=group))
    pair_set = build_pairs(
        trajectories, policy.dialect, instructions=lambda task: str(world.instructions), context=policy.context
    )
    token = min(policy.dialect.stop_ids, default=0)
    return [append_readout(sequence, token=token) for sequence in pair_set.sequences]


def _choose_tasks(worlds_by_name: Mapping[str, World], config: SearchTrainingConfig) -> tuple[list[Task], list[Task]]:
    """Chooses training tasks, none of which is measured on.

    Returns:
        (tasks to demonstrate, tasks to learn from).
    Raises:
        ConfigError: a world without enough tasks, or tasks that are measured on.
    """
    demonstration_tasks: list[Task] = []
    training_tasks: list[Task] = []
    problems = []
    for name, world in worlds_by_name.items():
        panel = list(world.tasks("train", world.tiers[0]))
        count = config.demonstrations if panel and world.expert(panel[0]) is not None else 0
        available = choose_exploration_tasks(world, count, config.tasks)
        if len(panel) < count or not available:
            message = f"got {count} for world {name!r}, which has {len(panel)} training tasks"
            problems.append(Problem("demonstrations", message, "lower demonstrations, or choose another world"))
        demonstration_tasks += panel[:count]
        training_tasks += available
    if problems:
        raise ConfigError(problems)
    measured_starts = panel_starts(worlds_by_name, split=config.panel.split, limit=config.panel.limit)
    check_held_out([*demonstration_tasks, *training_tasks], (start.task.id for start in measured_starts))
    return demonstration_tasks, training_tasks


def _check_worlds(name: str, worlds_by_name: Mapping[str, World], config: Any) -> None:
    """Checks that the worlds support the method, before a model is loaded."""
    problems = []
    if name == "tsllm":
        check_search(worlds_by_name, config.tsllm.search, has_scorer=True)
        worlds_without_pairs = [
            world for world, candidate in worlds_by_name.items() if not isinstance(candidate, HasLabeledPairs)
        ]
        if config.tsllm.reward == "model" and (worlds_without_pairs or not config.pairs):
            message = (
                f"world {worlds_without_pairs[0]!r} does not have labeled pairs"
                if worlds_without_pairs
                else "the list is empty"
            )
            problems.append(Problem("pairs", message, "set --worlds preference --pairs 2000, or --tsllm.reward world"))
    else:
        check_search(worlds_by_name, config.openr.search, has_scorer=True)
        multi_turn_worlds = [world for world, candidate in worlds_by_name.items() if candidate.horizon > 1]
        if multi_turn_worlds:
            message = f"OpenR labels single responses, but world {multi_turn_worlds[0]!r} has several turns"
            problems.append(Problem("worlds", message, "choose deduction, problems, arithmetic, ...; or train tsllm"))
    if problems:
        raise ConfigError(problems)


def _plan_stages(config: Any, num_tasks: int, panel_size: int, *, is_cloned: bool) -> list[PlannedStage]:
    """Returns the stages to come."""
    measure, learn = PlannedStage("evaluate", panel_size), PlannedStage("fit", None)
    plan = [*([PlannedStage("fit", config.clone_tokens)] if is_cloned else []), measure]
    if isinstance(config, TrainTSLLMConfig):
        method_config = config.tsllm
        search = PlannedStage("search", num_tasks * method_config.trajectories)
        models = [learn] * (method_config.reward == "model")
        measures = [measure] * (1 + method_config.guided)
        return [
            *plan,
            PlannedStage("collect", num_tasks * method_config.samples),
            *models,
            learn,
            *[search, learn, learn, *measures] * method_config.rounds,
        ]
    method: OpenRConfig = config.openr
    samples = PlannedStage("collect", num_tasks * method.samples)
    plan += [samples, PlannedStage("label", None), learn]
    plan += [PlannedStage("practise", method.practice.iterations), measure] * (method.online != "none")
    plan += [*([samples] if method.online != "none" else []), learn, measure] * (method.offline != "none")
    return [*plan, measure]


def _print_results(folder: Path, console: Console) -> None:
    """Prints the last measurement of each arm; `guided` decodes with the search."""
    rows = read_rows(folder / "results.jsonl")
    last_rounds = {
        row["arm"]: max(candidate["round"] for candidate in rows if candidate["arm"] == row["arm"]) for row in rows
    }
    cells = [
        (
            row["arm"],
            f"{row['world']} {row['tier']}",
            row["n"],
            _format_success(row),
            f"{row['generated']:,}",
            f"{row['computed']:,}",
        )
        for row in rows
        if row["round"] == last_rounds[row["arm"]]
    ]
    columns = ("arm", "panel", "tasks", "success, 95 %", "generated", "computed")
    console.print(render_table(console, columns, cells, numbers=("tasks", "generated", "computed")))


def _format_success(row: Mapping[str, Any]) -> str:
    """Formats a success rate with its interval."""
    if row["mean"] is None:
        return f"withheld: {row['errors']} errors"
    return f"{format_rate(row['mean'])} ({format_rate(row['low'])} to {format_rate(row['high'])})"
