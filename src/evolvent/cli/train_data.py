"""`evolvent train hammer | comments | p3`: what is learned was prepared, by masks, by a generator, by the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.registry import POLICIES, policy, worlds
from evolvent.cli.run_setup import Job, PanelConfig, check_panel, opened, results_table, write_report
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.cli.train_data_sources import Material, comments_material, hammer_material, p3_material
from evolvent.curate.commenting import Commenting
from evolvent.curate.subset import SELECTORS
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.learn.learner import TrainConfig
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.methods.comments import Comments, comments
from evolvent.methods.hammer import Hammer, hammer
from evolvent.methods.p3 import P3, p3
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import Policy, tiny_policy
from evolvent.run import Run
from evolvent.trajectory import sample_seed
from evolvent.view.escape import plain
from evolvent.view.redraw import redrawing

__all__ = ["COMMANDS", "Curated", "TrainComments", "TrainHammer", "TrainP3", "run"]

_SMALL, _FEW = Hammer(style="snake"), P3(count=200)  # named, so that a setting given beside them leaves the others


class Curated(OverWorlds):
    """What all three can be told, beside the method's own."""

    data: Path = Field(description="a file of rows, a folder of such, a saved data set, a run or a store")
    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    test: Path | None = Field(default=None, description="other rows, to measure on before and after; none: no measure")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    slots: int = Field(default=64, ge=1, description="episodes open at once")
    context: int | None = Field(
        default=None, ge=16, description="longest sequence of an untrained size; none: room for every row"
    )
    worlds: tuple[str, ...] = Field(default=(), description="worlds to measure in after every round; none: none")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the updates")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    panel: PanelConfig = Field(default_factory=PanelConfig, description="the measurement in worlds")


class TrainHammer(Curated):
    """Everything that can be chosen about `evolvent train hammer`."""

    max_tokens: int = Field(default=64, ge=1, description="longest answer when it is measured")
    hammer: Hammer = Field(default_factory=lambda: _SMALL.model_copy(), description="the method")


class TrainComments(Curated):
    """Everything that can be chosen about `evolvent train comments`."""

    examples: Path | None = Field(default=None, description="code with comments for the generator; none: the data")
    max_tokens: int = Field(default=256, ge=1, description="longest answer of the generator")
    comments: Comments = Field(default_factory=Comments, description="the method")


class TrainP3(Curated):
    """Everything that can be chosen about `evolvent train p3`."""

    truncate: bool = Field(default=False, description="cut rows longer than the context; else they are left out")
    by: Literal["dpp", "random", "d2", "facility", "k_centre"] = Field(
        default="dpp", description="how samples are chosen among those that are let in; dpp: as in the paper"
    )
    p3: P3 = Field(default_factory=lambda: _FEW.model_copy(), description="the method")


_HAMMER = {
    "hammer": {"style": "random"},
    "adapter": {"kind": "lora", "rank": 32},
    "train": {"lr": 5e-5, "weight_decay": 0.01, "epochs": 1, "batch_tokens": 16_384, "micro_tokens": 2048},
}
_P3 = {
    "p3": {"rounds": 5, "count": 1000, "quality": True},
    "adapter": {"kind": "lora", "rank": 64, "alpha": 16, "dropout": 0.1},
    "train": {"lr": 4e-4, "epochs": 1, "batch_tokens": 5120, "micro_tokens": 1024},
}
COMMANDS: dict[str, Command[Any]] = {
    "hammer": Command(
        "train hammer",
        "Function calling under masked names, beside requests that no tool answers (Hammer).",
        TrainHammer,
        main="data",
        presets={"small": {}, "published": _HAMMER},
        resumes=True,
    ),
    "comments": Command(
        "train comments",
        "Comment code with a generator, filter it, learn it; repeat (comment augmentation).",
        TrainComments,
        main="data",
        resumes=True,
    ),
    "p3": Command(
        "train p3",
        "Rounds of samples that the policy itself finds easy enough, chosen to be diverse (P3).",
        TrainP3,
        main="data",
        presets={"small": {}, "published": _P3},
        resumes=True,
    ),
}


@dataclass(frozen=True)
class _Method:
    """How a method reads its data, and how it is called; the plan says how many of which stages are to come."""

    material: Callable[..., Material]
    call: Callable[[Policy, Material, Any, Run[Policy]], Policy]
    plan: Callable[[Any], list[Planned]]


def run(words: Sequence[str], console: Console) -> int:
    """Train by the method that the first word names; returns the exit code."""
    name = words[0]
    given = read_given(COMMANDS[name], words[1:], console)
    if given is None:
        return 0
    config, method = given.config, _METHODS[name]
    _check(config)
    made = worlds(config.worlds) if config.worlds else {}
    if made:
        check_panel(made, config.panel)
    folder = given.resume or new_folder(name, config.to)
    material = method.material(config)
    base = adapt(_policy(config, material), config.adapter, seed=config.seed)
    for line in material.told():
        console.print(plain(line), soft_wrap=True)
    job = Job(
        folder,
        {**made, Commenting.name: Commenting()},
        Record(f"train {name}", config, config.seed, (name,), name),
        train=config.train,
        panel=config.panel.panel(),
        slots=config.slots,
        max_tokens=getattr(config, "max_tokens", 32),
        threads=config.threads,
        plan=method.plan(config),
        optimizer=OptimizerConfig(),
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with opened(job, console) as running, redrawing(partial(write_report, folder)):
        arm = running.arm(name)
        best = method.call(base, material, config, arm)
        best.save(folder / "model")
        rows = arm.evaluate(best, getattr(config, name).rounds if name != "hammer" else 1) if made else []
        measured = {when: material.measured(one) for when, one in (("before", base), ("after", best))}
    if rows:
        results_table(console, rows)
    _tell(console, folder / f"{name}.measured.json", measured)
    for line in material.became(folder):
        console.print(plain(line), soft_wrap=True)
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


def _check(config: Curated) -> None:
    """Refuse places that are not there, before anything is read."""
    places = {"data": config.data, "test": config.test, "examples": getattr(config, "examples", None)}
    wrong = [
        Problem(name, f"there is nothing at {place}", "name rows, a run or a store")
        for name, place in places.items()
        if place is not None and not place.exists()
    ]
    if config.context is not None and config.policy not in POLICIES:
        wrong.append(Problem("context", f"{config.policy} has a context of its own", "leave it out"))
    if wrong:
        raise ConfigError(wrong)


def _policy(config: Curated, material: Material) -> Policy:
    """A policy by name; a size is untrained, over the words of the data and with room for its longest row."""
    if config.policy not in POLICIES:
        return policy(config.policy, [], seed=config.seed)
    words, longest = material.words()
    context = config.context or 1 << max(8, (longest + 16).bit_length())
    return tiny_policy(
        sorted(words), size=config.policy, context=context, seed=sample_seed(config.seed, "initialisation") % 2**31
    )


def _tell(console: Console, file: Path, measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep what was measured, and say it line by line."""
    if not measured["after"]:
        return
    write_atomic(file, plain_json(measured) + "\n")
    for what, after in measured["after"].items():
        console.print(plain(f"{what}: {measured['before'].get(what)} before, {after} after"), soft_wrap=True)


def _hammer(base: Policy, material: Material, config: TrainHammer, run: Run[Policy]) -> Policy:
    prompt = material.prompt(base)
    return hammer(base, material.items, config=config.hammer, run=run, prompt=prompt, dialect=base.dialect)


def _comments(base: Policy, material: Material, config: TrainComments, run: Run[Policy]) -> Policy:
    return comments(base, material.items, config=config.comments, run=run, examples=material.examples)


def _p3(base: Policy, material: Material, config: TrainP3, run: Run[Policy]) -> Policy:
    pool = material.pool(base, lines=config.p3.difficulty == "spans" or config.p3.within < 1)
    return p3(base, pool, config=config.p3, run=run, select=SELECTORS[config.by])


_METHODS: dict[str, _Method] = {
    "hammer": _Method(hammer_material, _hammer, lambda config: [Planned("fit", config.hammer.tokens)]),
    "comments": _Method(
        comments_material,
        _comments,
        lambda config: (
            [
                *([Planned("fit", None)] if config.comments.augment and config.comments.teach else []),
                *([Planned("collect", None)] if config.comments.augment else []),
                Planned("fit", None),
                Planned("evaluate", None),
            ]
            * config.comments.rounds
        ),
    ),
    "p3": _Method(
        p3_material,
        _p3,
        lambda config: [Planned("fit", config.p3.tokens), Planned("evaluate", None)] * config.p3.rounds,
    ),
}
