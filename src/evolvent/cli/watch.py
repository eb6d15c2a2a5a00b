"""`evolvent watch RUN`: evaluates the snapshots of a training as they appear, in its own process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field
from rich.console import Console

from evolvent.bench.best import BestConfig
from evolvent.bench.evaluators import (
    ClassificationConfig,
    GenerationConfig,
    PerplexityConfig,
    SuccessConfig,
    measure_classification,
    measure_generation,
    measure_perplexity,
    measure_success,
)
from evolvent.bench.measures import Evaluator
from evolvent.bench.questions import read_choices, read_questions, read_texts
from evolvent.bench.text_metrics import check_text_metrics
from evolvent.bench.watch import Watcher, watch
from evolvent.cli.setup.registry import load_worlds, require_train_extra
from evolvent.cli.setup.settings import Command, ModelConfig, WorldsConfig, parse_command
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors
from evolvent.identity import version_1_values
from evolvent.rollout.evaluate import panel_starts
from evolvent.trajectory import canonical_json
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.engine.asks import Engine
    from evolvent.models.policy import Policy

__all__ = ["COMMAND", "WatchConfig", "run"]

T = TypeVar("T")
_DATA_HELP = "a file of JSON lines with {fields}; none: not measured"


class WatchPerplexityConfig(PerplexityConfig):
    """Settings of the prediction of texts or conversations."""

    data: Path | None = Field(default=None, description=_DATA_HELP.format(fields="text, or messages"))


class WatchClassificationConfig(ClassificationConfig):
    """Settings of questions with choices."""

    data: Path | None = Field(default=None, description=_DATA_HELP.format(fields="prompt, choices, answer"))


class WatchGenerationConfig(GenerationConfig):
    """Settings of questions with free answers."""

    data: Path | None = Field(default=None, description=_DATA_HELP.format(fields="prompt, reference (or references)"))


class WatchConfig(ModelConfig, WorldsConfig):
    """Settings of `evolvent watch`."""

    run: Path = Field(description="the folder of the run")
    worlds: tuple[str, ...] = Field(default=(), description="the worlds whose panels are played; none: no world")
    perplexity: WatchPerplexityConfig = Field(
        default_factory=WatchPerplexityConfig, description="texts that are predicted"
    )
    classification: WatchClassificationConfig = Field(
        default_factory=WatchClassificationConfig, description="questions with choices"
    )
    generation: WatchGenerationConfig = Field(
        default_factory=WatchGenerationConfig, description="questions that are answered freely"
    )
    success: SuccessConfig = Field(default_factory=SuccessConfig, description="the panels of the worlds")
    best: BestConfig = Field(default_factory=BestConfig, description="the snapshots that stay for good")
    once: bool = Field(default=False, description="evaluate the newest snapshot and end")
    poll_s: float = Field(default=2.0, gt=0, description="how often it is looked for a new snapshot")
    idle_s: float | None = Field(default=None, gt=0, description="end when none has come for so long; none: wait")
    slots: int = Field(default=64, ge=1, description="texts worked on at once")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    nice: int = Field(default=10, ge=0, le=19, description="how far the training on this machine comes first")


COMMAND = Command("watch", "Evaluate the snapshots of a training while it runs.", WatchConfig, main_field="run")


def run(argv: Sequence[str], console: Console) -> int:
    """Evaluates snapshots until the run has ended; returns the exit code: 1 where a snapshot or an evaluation
    failed.
    """
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    evaluators = _make_evaluators(config)
    if config.generation.data is not None:
        check_text_metrics(config.generation.text_metrics)
    require_train_extra("evolvent watch")
    import torch

    torch.set_num_threads(config.threads)
    with Watcher(
        config.run,
        evaluators,
        placement=config.placement,
        slots=config.slots,
        on_row=partial(_print_row, console),
        best=config.best,
    ) as watcher:
        os.nice(config.nice)
        if config.once:
            if not watcher.evaluate_newest():
                console.print(show_hidden(f"{config.run} has no snapshot"), soft_wrap=True)
        else:
            console.print(
                show_hidden(f"watching {config.run}: {', '.join(evaluator.name for evaluator in evaluators)}"),
                soft_wrap=True,
            )
            console.file.flush()
            watch(watcher, poll_s=config.poll_s, idle_s=config.idle_s)
        counts = watcher.did
    console.print(
        f"snapshots: {counts.evaluated} evaluated, {counts.skipped} passed over, {counts.broken} broken; "
        f"evaluations that failed: {counts.failed}",
        soft_wrap=True,
    )
    return 1 if counts.broken or counts.failed else 0


def _make_evaluators(config: WatchConfig) -> list[Evaluator]:
    """Makes the evaluators and reads their data; reports all problems at once."""
    problems: list[Problem] = []
    evaluators: list[Evaluator] = []
    data_evaluators: tuple[tuple[Any, Callable[[Path], list[Any]], Callable[..., Any]], ...] = (
        (config.perplexity, read_texts, measure_perplexity),
        (config.classification, read_choices, measure_classification),
        (config.generation, read_questions, measure_generation),
    )
    for evaluator_config, read_file, measure in data_evaluators:
        try:
            if evaluator_config.data is not None:
                evaluators.append(_data_evaluator(evaluator_config, read_file(evaluator_config.data), measure))
        except ConfigError as error:
            problems += error.problems
    try:
        if config.worlds:
            evaluators.append(_world_evaluator(config))
    except ConfigError as error:
        problems += error.problems
    if not evaluators and not problems:
        message = "got no evaluator, expected at least one"
        problems.append(Problem("evolvent watch", message, "pass --perplexity.data FILE, --worlds NAME, ... (--help)"))
    if problems:
        raise ConfigError(problems)
    return evaluators


def _data_evaluator(config: Any, data: Sequence[T], measure: Callable[..., Any]) -> Evaluator:
    path: Path = config.data
    with disk_errors(path):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    settings = {**version_1_values(config), "data": content}
    return Evaluator(
        measure.__name__.removeprefix("measure_"), _bind_measure(measure, data, config), canonical_json(settings)
    )


def _world_evaluator(config: WatchConfig) -> Evaluator:
    worlds_by_name = load_worlds(config.worlds)
    panel_starts(worlds_by_name, split=config.success.split, tiers=config.success.tiers, limit=config.success.limit)
    settings = [
        list(config.worlds),
        version_1_values(config.success),
        [evaluated_world.version for evaluated_world in worlds_by_name.values()],
    ]
    return Evaluator(
        "success", _bind_measure(measure_success, worlds_by_name, config.success), canonical_json(settings)
    )


def _bind_measure(measure: Callable[..., Any], data: object, config: Config) -> Callable[[Policy, Engine], Any]:
    return lambda policy, engine: measure(policy, data, config, engine=engine)


def _print_row(console: Console, row: Mapping[str, Any]) -> None:
    """Prints a line for each number or error."""
    head = f"step {row['step']}  {row['stage']}"
    if "error" in row:
        console.print(show_hidden(f"{head}  {row['error']['kind']}: {row['error']['message']}"), soft_wrap=True)
    for measure_row in row.get("measures", ()):
        value = "withheld" if measure_row["value"] is None else f"{measure_row['value']:.4g}"
        interval_text = (
            "" if measure_row["low"] is None else f" ({measure_row['low']:.4g} to {measure_row['high']:.4g})"
        )
        name = "" if measure_row["metric"] == row["stage"] else f" {measure_row['metric'].removeprefix('success/')}"
        console.print(show_hidden(f"{head}{name}  {value}{interval_text}  n {measure_row['n']:,}"), soft_wrap=True)
    console.file.flush()
