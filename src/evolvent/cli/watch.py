"""`evolvent watch RUN`: evaluate the snapshots of a training as they come, in a process of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field
from rich.console import Console

from evolvent.bench.evaluators import (
    ClassificationConfig,
    GenerationConfig,
    PerplexityConfig,
    SuccessConfig,
    classification,
    generation,
    perplexity,
    success,
)
from evolvent.bench.measures import Evaluator
from evolvent.bench.questions import read_choices, read_questions, read_texts
from evolvent.bench.watch import Watcher, watch
from evolvent.cli.registry import needs_train, worlds
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors
from evolvent.rollout.evaluate import panel_starts
from evolvent.trajectory import canonical_json
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.engine.asks import Engine
    from evolvent.models.policy import Policy

__all__ = ["COMMAND", "Watch", "run"]

T = TypeVar("T")
_DATA = "a file of JSON lines; none: not measured"


class Perplexity(PerplexityConfig):
    """Texts or conversations that are predicted."""

    data: Path | None = Field(default=None, description=_DATA)


class Classification(ClassificationConfig):
    """Questions with choices."""

    data: Path | None = Field(default=None, description=_DATA)


class Generation(GenerationConfig):
    """Questions that are answered freely."""

    data: Path | None = Field(default=None, description=_DATA)


class Watch(OverWorlds):
    """Everything that can be chosen about `evolvent watch`."""

    run: Path = Field(description="the folder of the run")
    worlds: tuple[str, ...] = Field(default=(), description="the worlds whose panels are played; none: no world")
    perplexity: Perplexity = Field(default_factory=Perplexity, description="texts that are predicted")
    classification: Classification = Field(default_factory=Classification, description="questions with choices")
    generation: Generation = Field(default_factory=Generation, description="questions that are answered freely")
    success: SuccessConfig = Field(default_factory=SuccessConfig, description="the panels of the worlds")
    once: bool = Field(default=False, description="evaluate the newest snapshot and end")
    poll_s: float = Field(default=2.0, gt=0, description="how often it is looked for a new snapshot")
    idle_s: float | None = Field(default=None, gt=0, description="end when none has come for so long; none: wait")
    slots: int = Field(default=64, ge=1, description="texts worked on at once")
    context: int | None = Field(default=4096, ge=2, description="most tokens of a text; none: what the model takes")
    device: str = Field(default="cpu", description="where the model runs, as cuda:1")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    nice: int = Field(default=10, ge=0, le=19, description="how far the training on this machine comes first")


COMMAND = Command("watch", "Evaluate the snapshots of a training while it runs.", Watch, main="run")


def run(words: Sequence[str], console: Console) -> int:
    """Watch until the run has ended; returns the exit code: 1 where a snapshot or an evaluation failed."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    chosen = _evaluators(config)
    needs_train("evolvent watch")
    import torch

    torch.set_num_threads(config.threads)
    with Watcher(
        config.run,
        chosen,
        device=config.device,
        slots=config.slots,
        context=config.context,
        on_row=partial(_tell, console),
    ) as watcher:
        os.nice(config.nice)
        if config.once:
            if not watcher.once():
                console.print(plain(f"{config.run} has no snapshot"), soft_wrap=True)
        else:
            console.print(plain(f"watching {config.run}: {', '.join(one.name for one in chosen)}"), soft_wrap=True)
            console.file.flush()
            watch(watcher, poll_s=config.poll_s, idle_s=config.idle_s)
        did = watcher.did
    console.print(
        f"snapshots: {did.evaluated} evaluated, {did.skipped} passed over, {did.broken} broken; "
        f"evaluations that failed: {did.failed}",
        soft_wrap=True,
    )
    return 1 if did.broken or did.failed else 0


def _evaluators(config: Watch) -> list[Evaluator]:
    """What is to be measured, its data read; everything wrong with it at once."""
    problems: list[Problem] = []
    made: list[Evaluator] = []
    of_data: tuple[tuple[Any, Callable[[Path], list[Any]], Callable[..., Any]], ...] = (
        (config.perplexity, read_texts, perplexity),
        (config.classification, read_choices, classification),
        (config.generation, read_questions, generation),
    )
    for chosen, read, measure in of_data:
        try:
            if chosen.data is not None:
                made.append(_over_data(chosen, read(chosen.data), measure))
        except ConfigError as error:
            problems += error.problems
    try:
        if config.worlds:
            made.append(_over_worlds(config))
    except ConfigError as error:
        problems += error.problems
    if not made and not problems:
        what = "nothing to evaluate"
        problems.append(Problem("evolvent watch", what, "give --perplexity.data FILE, --worlds NAME, ... (--help)"))
    if problems:
        raise ConfigError(problems)
    return made


def _over_data(config: Any, data: Sequence[T], measure: Callable[..., Any]) -> Evaluator:
    path: Path = config.data
    with disk_errors(path):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    settings = {**config.model_dump(mode="json"), "data": content}
    return Evaluator(measure.__name__, _bound(measure, data, config), canonical_json(settings))


def _over_worlds(config: Watch) -> Evaluator:
    made = worlds(config.worlds)
    panel_starts(made, split=config.success.split, tiers=config.success.tiers, limit=config.success.limit)
    settings = [list(config.worlds), config.success.model_dump(mode="json"), [one.version for one in made.values()]]
    return Evaluator("success", _bound(success, made, config.success), canonical_json(settings))


def _bound(measure: Callable[..., Any], data: object, config: Config) -> Callable[[Policy, Engine], Any]:
    return lambda policy, engine: measure(policy, data, config, engine=engine)


def _tell(console: Console, row: Mapping[str, Any]) -> None:
    """A line a number; an error is a line too."""
    head = f"step {row['step']}  {row['stage']}"
    if "error" in row:
        console.print(plain(f"{head}  {row['error']['kind']}: {row['error']['message']}"), soft_wrap=True)
    for one in row.get("measures", ()):
        value = "withheld" if one["value"] is None else f"{one['value']:.4g}"
        ends = "" if one["low"] is None else f" ({one['low']:.4g} to {one['high']:.4g})"
        name = "" if one["metric"] == row["stage"] else f" {one['metric'].removeprefix('success/')}"
        console.print(plain(f"{head}{name}  {value}{ends}  n {one['n']:,}"), soft_wrap=True)
    console.file.flush()
