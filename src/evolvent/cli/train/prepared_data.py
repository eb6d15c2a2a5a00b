"""`evolvent train hammer | comments | p3`: training on data prepared by masks, by a generator, or by the policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import POLICIES, check_named_inputs, load_worlds, resolve_policy
from evolvent.cli.setup.run_setup import (
    EvaluationConfig,
    RunSetup,
    count_panel_episodes,
    open_run,
    print_results,
    write_report,
)
from evolvent.cli.setup.settings import AnyCommand, Command, ModelConfig, WorldsConfig, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.cli.train.data_sources import MethodData, read_comments_data, read_hammer_data, read_p3_data
from evolvent.curate.commenting import Commenting
from evolvent.curate.subset import SELECTORS
from evolvent.engine.servers import ServerDialect
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.learn.settings import TrainConfig
from evolvent.methods.comments import CommentPlayer, CommentsConfig, comments
from evolvent.methods.hammer import HammerConfig, hammer
from evolvent.methods.p3 import P3Config, p3
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import Policy, tiny_policy
from evolvent.run import Run
from evolvent.trajectory import sample_seed
from evolvent.view.escape import show_hidden
from evolvent.view.redraw import redraw_repeatedly

__all__ = ["COMMANDS", "DataMethodConfig", "TrainCommentsConfig", "TrainHammerConfig", "TrainP3Config", "run"]

_HAMMER_DEFAULTS, _P3_DEFAULTS = (
    HammerConfig(style="snake"),
    P3Config(count=200),
)  # named, so that a setting given beside them leaves the others


class DataMethodConfig(ModelConfig, WorldsConfig):
    """Settings that all three methods share, beside their own."""

    data: Path = Field(description="a file of rows, a folder of such, a saved data set, a run or a store")
    policy: str = Field(
        default="xs", description="what to begin with: a size, a model (folder, GGUF file, name), or a run"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    test: Path | None = Field(default=None, description="other rows, to measure on before and after; none: no measure")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    slots: int = Field(default=64, ge=1, description="episodes open at once")
    context: int | None = Field(
        default=None, ge=16, description="longest sequence in tokens; none: the model's, or room for every row"
    )
    worlds: tuple[str, ...] = Field(default=(), description="worlds to measure in after every round; none: none")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the updates")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement in worlds")

    def check_inputs(self) -> None:
        """Checks that the policy and the data exist; raises what `check_named_inputs` raises."""
        check_named_inputs(self.policy, self.data)


class TrainHammerConfig(DataMethodConfig):
    """Settings of `evolvent train hammer`."""

    max_tokens: int = Field(default=64, ge=1, description="longest answer when it is measured")
    hammer: HammerConfig = Field(default_factory=lambda: _HAMMER_DEFAULTS.model_copy(), description="the method")


class TrainCommentsConfig(DataMethodConfig):
    """Settings of `evolvent train comments`."""

    examples: Path | None = Field(default=None, description="code with comments for the generator; none: the data")
    max_tokens: int = Field(default=256, ge=1, description="longest answer of the generator")
    endpoint: str | None = Field(
        default=None, description="URL of another generator, which is not tuned; none: the policy"
    )
    model: str = Field(default="", description="the model to ask there")
    dialect: ServerDialect = Field(default="openai", description="the dialect that the endpoint speaks")
    key_env: str = Field(default="OPENAI_API_KEY", description="the environment variable that holds its key")
    comments: CommentsConfig = Field(default_factory=CommentsConfig, description="the method")


class TrainP3Config(DataMethodConfig):
    """Settings of `evolvent train p3`."""

    truncate: bool = Field(default=False, description="cut rows longer than the context; else they are left out")
    by: Literal["dpp", "random", "d2", "facility", "k_centre"] = Field(
        default="dpp", description="how samples are chosen among those that are let in; dpp: as in the paper"
    )
    p3: P3Config = Field(default_factory=lambda: _P3_DEFAULTS.model_copy(), description="the method")


_HAMMER_PRESET = {
    "hammer": {"style": "random"},
    "adapter": {"kind": "lora", "rank": 32},
    "train": {"lr": 5e-5, "weight_decay": 0.01, "epochs": 1, "batch_tokens": 16_384, "max_tokens_per_forward": 2048},
}
_P3_PRESET = {
    "p3": {"rounds": 5, "count": 1000, "quality": True},
    "adapter": {"kind": "lora", "rank": 64, "alpha": 16, "dropout": 0.1},
    "train": {"lr": 4e-4, "epochs": 1, "batch_tokens": 5120, "max_tokens_per_forward": 1024},
}
COMMANDS: dict[str, AnyCommand] = {
    "hammer": Command(
        "train hammer",
        "Function calling under masked names, beside requests that no tool answers (Hammer).",
        TrainHammerConfig,
        main_field="data",
        presets={"small": {}, "published": _HAMMER_PRESET},
        resumes=True,
        free_settings=("device",),
    ),
    "comments": Command(
        "train comments",
        "Comment code with a generator, filter it, learn it; repeat (comment augmentation).",
        TrainCommentsConfig,
        main_field="data",
        resumes=True,
        free_settings=("device",),
    ),
    "p3": Command(
        "train p3",
        "Rounds of samples that the policy itself finds easy enough, chosen to be diverse (P3).",
        TrainP3Config,
        main_field="data",
        presets={"small": {}, "published": _P3_PRESET},
        resumes=True,
        free_settings=("device",),
    ),
}


@dataclass(frozen=True)
class _DataMethod:
    """A method: functions that read its data, train by it, and list the planned stages."""

    read_data: Callable[..., MethodData]
    train: Callable[[Policy, MethodData, Any, Run[Policy]], Policy]
    plan_stages: Callable[[Any], list[PlannedStage]]


def run(argv: Sequence[str], console: Console) -> int:
    """Trains by the method that the first argument names; returns the exit code."""
    name = argv[0]
    args = parse_command(COMMANDS[name], argv[1:], console)
    if args is None:
        return 0
    facts = read_model_facts(args.config.policy, adapter=args.config.adapter.kind)
    config = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    method = _METHODS[name]
    _check_paths(config)
    worlds_by_name = load_worlds(config.worlds) if config.worlds else {}
    if worlds_by_name:
        count_panel_episodes(worlds_by_name, config.panel)
    folder = args.resume or choose_run_folder(name, config.output_dir)
    method_data = method.read_data(config)
    base_policy = adapt(_load_base_policy(config, method_data), config.adapter, seed=config.seed)
    for line in method_data.describe_refused():
        console.print(show_hidden(line), soft_wrap=True)
    job = RunSetup(
        folder,
        {**worlds_by_name, Commenting.name: Commenting()},
        RunRecord(f"train {name}", config, config.seed, (name,), name),
        train=config.train,
        panel=config.panel.make_panel(),
        slots=config.slots,
        max_tokens=getattr(config, "max_tokens", 32),
        threads=config.threads,
        plan=method.plan_stages(config),
        placement=config.placement,
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with open_run(job, console) as active_run, redraw_repeatedly(partial(write_report, folder)):
        arm = active_run.arm(name)
        best_policy = method.train(base_policy, method_data, config, arm)
        best_policy.save(folder / "model")
        rows = (
            arm.evaluate(best_policy, getattr(config, name).rounds if name != "hammer" else 1) if worlds_by_name else []
        )
        figures = {
            moment: method_data.measure(measured_policy)
            for moment, measured_policy in (("before", base_policy), ("after", best_policy))
        }
    if rows:
        print_results(console, rows)
    _report_figures(console, folder / f"{name}.measured.json", figures)
    for line in method_data.describe_outcomes(folder):
        console.print(show_hidden(line), soft_wrap=True)
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


def _check_paths(config: DataMethodConfig) -> None:
    """Checks that the named paths exist, before anything is read."""
    paths = {"data": config.data, "test": config.test, "examples": getattr(config, "examples", None)}
    problems = [
        Problem(name, f"{path} does not exist", "pass rows, a run or a store")
        for name, path in paths.items()
        if path is not None and not path.exists()
    ]
    if isinstance(config, TrainCommentsConfig) and bool(config.endpoint) != bool(config.model):
        problems.append(Problem("model", "an endpoint and its model go together", "pass --endpoint URL --model NAME"))
    if problems:
        raise ConfigError(problems)


def _load_base_policy(config: DataMethodConfig, method_data: MethodData) -> Policy:
    """Loads a policy by name; a size is untrained, over the words of the data and with room for its longest row."""
    if config.policy not in POLICIES:
        return resolve_policy(config.policy, [], seed=config.seed, placement=config.placement)
    vocabulary, max_length = method_data.collect_vocabulary()
    context = config.context or 1 << max(8, (max_length + 16).bit_length())
    untrained_policy = tiny_policy(
        sorted(vocabulary), size=config.policy, context=context, seed=sample_seed(config.seed, "initialisation") % 2**31
    )
    return untrained_policy.to(config.device, config.dtype)


def _report_figures(console: Console, file: Path, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the figures to a file and prints them as a table; three numbers are a mean with its interval."""
    if not figures["after"]:
        return
    write_atomic(file, plain_json(figures) + "\n")
    rows = [
        (name, _format_figure(figures["before"].get(name)), _format_figure(after))
        for name, after in figures["after"].items()
    ]
    console.print(render_table(console, ("measure", "before, 95 %", "after, 95 %"), rows))


def _format_figure(value: object) -> str | None:
    """Formats a figure.

    >>> _format_figure([0.25, 0.1, 0.4]), _format_figure(3), _format_figure([1.5, None, None])
    ('0.25 (0.1 to 0.4)', '3', '1.5')
    """
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3:
        mean, low, high = (None if end is None else float(end) for end in value)
        if mean is None:
            return None
        return f"{mean:.3g}" if low is None or high is None else f"{mean:.3g} ({low:.3g} to {high:.3g})"
    return None if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _train_hammer(base_policy: Policy, method_data: MethodData, config: TrainHammerConfig, run: Run[Policy]) -> Policy:
    prompt = method_data.make_prompt(base_policy)
    return hammer(
        base_policy, method_data.items, config=config.hammer, run=run, prompt=prompt, dialect=base_policy.dialect
    )


def _train_comments(
    base_policy: Policy, method_data: MethodData, config: TrainCommentsConfig, run: Run[Policy]
) -> Policy:
    with ExitStack() as resources:
        return comments(
            base_policy,
            method_data.items,
            config=config.comments,
            run=run,
            examples=method_data.examples,
            play=_open_player(config, resources) if config.endpoint else None,
        )


def _open_player(config: TrainCommentsConfig, resources: ExitStack) -> CommentPlayer:
    """Opens the endpoint of another generator; it stays open until the resources are closed."""
    from pydantic import SecretStr

    from evolvent.agents.chat import ChatAgent
    from evolvent.engine.asks import Sampling
    from evolvent.engine.servers import endpoint_type
    from evolvent.rollout.episode import collect

    key = os.environ.get(config.key_env)
    endpoint = resources.enter_context(
        endpoint_type(config.dialect)(config.endpoint or "", config.model, key=SecretStr(key) if key else None)
    )
    endpoint.check()
    agent = ChatAgent(endpoint, Sampling(config.comments.temperature), max_tokens=config.max_tokens, hint="")
    world = Commenting()
    return lambda starts: collect({world.name: world}, starts, agent, engine=None, seed=config.seed, slots=config.slots)


def _train_p3(base_policy: Policy, method_data: MethodData, config: TrainP3Config, run: Run[Policy]) -> Policy:
    pool = method_data.tokenize(base_policy, lines=config.p3.difficulty == "spans" or config.p3.within < 1)
    return p3(base_policy, pool, config=config.p3, run=run, select=SELECTORS[config.by])


_METHODS: dict[str, _DataMethod] = {
    "hammer": _DataMethod(read_hammer_data, _train_hammer, lambda config: [PlannedStage("fit", config.hammer.tokens)]),
    "comments": _DataMethod(
        read_comments_data,
        _train_comments,
        lambda config: (
            [
                *([PlannedStage("fit", None)] if config.comments.augment and config.comments.teach else []),
                *([PlannedStage("collect", None)] if config.comments.augment else []),
                PlannedStage("fit", None),
                PlannedStage("evaluate", None),
            ]
            * config.comments.rounds
        ),
    ),
    "p3": _DataMethod(
        read_p3_data,
        _train_p3,
        lambda config: [PlannedStage("fit", config.p3.tokens), PlannedStage("evaluate", None)] * config.p3.rounds,
    ),
}
