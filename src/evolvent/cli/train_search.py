"""`evolvent train tsllm` and `evolvent train openr`: what a search finds is learned, and so is who judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import Field
from rich.console import Console

from evolvent.cli.backends import Placed
from evolvent.cli.console import rate, table
from evolvent.cli.evolve import explored
from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.registry import policy, worlds
from evolvent.cli.run_setup import Job, PanelConfig, check_panel, opened, playing_on, write_report
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.cli.train_rl import CLONE, Improving
from evolvent.errors import ConfigError, Problem
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.preferences import pairs, readout
from evolvent.learn.token_sequences import Parts
from evolvent.methods.openr import PUBLISHED, OpenR, openr
from evolvent.methods.tsllm import ALIGNMENT, GAME24, GSM8K, TSLLM, tsllm
from evolvent.models.policy import Policy
from evolvent.rollout.evaluate import panel_starts
from evolvent.rollout.held_out import check_held_out
from evolvent.rollout.search import check_search
from evolvent.run import Run
from evolvent.scale.initial import demonstrations
from evolvent.store.ledger import read_rows
from evolvent.trajectory import Score, Step, Task, Trajectory
from evolvent.view.redraw import redrawing
from evolvent.worlds.base import World

__all__ = ["COMMANDS", "Distilled", "TrainOpenR", "TrainTSLLM", "preference_parts", "run"]

_SEARCH, _GUIDED = TSLLM().search, OpenR().search  # named, so that a setting given beside them leaves the others


class Distilled(OverWorlds, Placed):
    """What both can be told, beside the method's own."""

    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: int = Field(default=200, ge=0, description="tasks of each world whose solution is imitated first")
    clone_tokens: int = Field(default=200_000, ge=1, description="learned tokens of that imitation")
    tasks: int = Field(default=100, ge=1, description="further tasks of each world to learn from, at most")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    panel: PanelConfig = Field(default_factory=PanelConfig, description="the measurement")


class TrainTSLLM(Distilled):
    """Everything that can be chosen about `evolvent train tsllm`."""

    worlds: tuple[str, ...] = Field(default=("countdown",), description="the worlds to act in")
    pairs: int = Field(default=0, ge=0, description="labelled pairs of each world that a reward model is fitted to")
    tsllm: TSLLM = Field(default_factory=lambda: TSLLM(search=_SEARCH), description="the method")


class TrainOpenR(Distilled):
    """Everything that can be chosen about `evolvent train openr`."""

    worlds: tuple[str, ...] = Field(default=("deduction",), description="the worlds to act in")
    train: Improving = Field(default_factory=Improving, description="the updates online")
    openr: OpenR = Field(default_factory=lambda: OpenR(search=_GUIDED), description="the method")


COMMANDS: dict[str, Command[Any]] = {
    "tsllm": Command(
        "train tsllm",
        "Search with a learned value, learn from what is found, policy and value; repeat (TS-LLM).",
        TrainTSLLM,
        presets={
            "small": {},
            "gsm8k": {"tsllm": dict(GSM8K)},
            "game24": {"tsllm": dict(GAME24)},
            "alignment": {"worlds": ["preference"], "pairs": 2000, "tsllm": dict(ALIGNMENT)},
        },
        resumes=True,
    ),
    "openr": Command(
        "train openr",
        "Label steps, learn to judge them, learn from that online and offline, decode guided by it (OpenR).",
        TrainOpenR,
        presets={"small": {}, "published": {"openr": dict(PUBLISHED)}},
        resumes=True,
    ),
}


@runtime_checkable
class Comparing(Protocol):
    """A world that has labelled pairs of texts (`worlds.preference`)."""

    def pairs(self, split: str, count: int, seed: int) -> Sequence[Any]: ...


@dataclass(frozen=True)
class _Given:
    """What a method begins with."""

    tasks: Sequence[Task]
    taught: Sequence[Trajectory]
    config: Any
    worlds: Mapping[str, World]


def run(words: Sequence[str], console: Console) -> int:
    """Train by the method that the first word names; returns the exit code."""
    name = words[0]
    given = read_given(COMMANDS[name], words[1:], console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    _check(name, made, config)
    panel = check_panel(made, config.panel)
    shown, tried = _tasks(made, config)
    folder = given.resume or new_folder(name, config.to)
    initial = policy(config.policy, list(made.values()), seed=config.seed)
    how = config.tsllm.search if name == "tsllm" else config.openr.search
    job = Job(
        folder,
        made,
        Record(f"train {name}", config, config.seed, ("base", name, "guided"), name),
        train=CLONE,
        panel=config.panel.panel(),
        slots=config.slots,
        max_tokens=how.max_tokens,
        threads=config.threads,
        plan=_plan(config, len(tried), panel, cloned=bool(shown)),
        practising=config.train.config() if name == "openr" else None,
        optimizer=OptimizerConfig(),
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with (
        playing_on(config.on, config.worlds, made, threads=config.threads) as verbs,
        opened(replace(job, verbs=verbs), console) as running,
        redrawing(partial(write_report, folder)),
    ):
        taught = demonstrations(list(made.values()), shown, seed=config.seed) if shown else []
        arm = running.arm(name)
        base = arm.fit(initial, taught, weighted_nll, tokens=config.clone_tokens) if taught else initial
        best, judge = _METHODS[name](base, arm, _Given(tried, taught, config, made))
        best.save(folder / "model")
        judge.save(folder / "judge")
        _results(folder, console)
    where = f"model  {folder / 'model'}\njudge  {folder / 'judge'}\nreport {folder / 'report.html'}"
    console.print(where, soft_wrap=True)
    return 0


def _tsllm(base: Policy, run: Run[Policy], given: _Given) -> tuple[Policy, Policy]:
    config = given.config
    compared = [
        part
        for world in given.worlds.values()
        if config.pairs and isinstance(world, Comparing)
        for part in preference_parts(world, base, count=config.pairs, seed=config.seed)
    ]
    horizons = {name: world.horizon for name, world in given.worlds.items()}
    return tsllm(
        base,
        given.tasks,
        config=config.tsllm,
        run=run,
        demonstrations=given.taught,
        preferences=compared,
        horizons=horizons,
    )


def _openr(base: Policy, run: Run[Policy], given: _Given) -> tuple[Policy, Policy]:
    return openr(base, given.tasks, config=given.config.openr, run=run)


_METHODS: dict[str, Callable[[Policy, Run[Policy], _Given], tuple[Policy, Policy]]] = {
    "tsllm": _tsllm,
    "openr": _openr,
}


def preference_parts(world: Any, policy: Policy, *, count: int, seed: int) -> list[Parts]:
    """Labelled pairs of a world as read-outs, chosen, rejected, chosen, ..., for `learn.objectives.reward_pairs`.

    Args:
        world: with `pairs(split, count, seed)`; those of its train split are taken.
    """
    told = []
    for number, pair in enumerate(world.pairs("train", count, seed)):
        group = f"pair/{number}"
        for unit, said in ((1.0, pair.chosen), (0.0, pair.rejected)):
            steps, score = (Step(pair.prompt, said),), Score(unit, unit, unit == 1.0)
            told.append(Trajectory(f"{group}/{unit:.0f}", pair.task, steps, score=score, group=group))
    made = pairs(told, policy.dialect, instructions=lambda task: str(world.instructions), context=policy.context)
    token = min(policy.dialect.stop_ids, default=0)
    return [readout(part, token=token) for part in made.parts]


def _tasks(made: Mapping[str, World], config: Distilled) -> tuple[list[Task], list[Task]]:
    """(tasks to demonstrate, tasks to learn from), neither of them measured on.

    Raises:
        ConfigError: a world without enough of them; tasks that are measured on.
    """
    shown: list[Task] = []
    tried: list[Task] = []
    problems = []
    for name, world in made.items():
        panel = list(world.tasks("train", world.tiers[0]))
        count = config.demonstrations if panel and world.expert(panel[0]) is not None else 0
        own = explored(world, count, config.tasks)
        if len(panel) < count or not own:
            what = f"the world {name!r} has {len(panel)} training tasks, {count} of them to be demonstrated"
            problems.append(Problem("demonstrations", what, "ask for fewer, or choose another world"))
        shown += panel[:count]
        tried += own
    if problems:
        raise ConfigError(problems)
    measured = panel_starts(made, split=config.panel.split, limit=config.panel.limit)
    check_held_out([*shown, *tried], (start.task.id for start in measured))
    return shown, tried


def _check(name: str, made: Mapping[str, World], config: Any) -> None:
    """Refuse what these worlds cannot have, before a model is loaded."""
    problems = []
    if name == "tsllm":
        check_search(made, config.tsllm.search, judged=True)
        silent = [world for world, own in made.items() if not isinstance(own, Comparing)]
        if config.tsllm.reward == "model" and (silent or not config.pairs):
            what = f"{silent[0]!r} has no labelled pairs" if silent else "there are none"
            problems.append(Problem("pairs", what, "--worlds preference --pairs 2000, or --tsllm.reward world"))
    else:
        check_search(made, config.openr.search, judged=True)
        turns = [world for world, own in made.items() if own.horizon > 1]
        if turns:
            what = f"{turns[0]!r} has episodes of several turns, and OpenR labels spans of one response"
            problems.append(Problem("worlds", what, "deduction, problems, arithmetic, ...; or train tsllm"))
    if problems:
        raise ConfigError(problems)


def _plan(config: Any, tried: int, panel: int, *, cloned: bool) -> list[Planned]:
    """The stages to come."""
    measure, learn = Planned("evaluate", panel), Planned("fit", None)
    plan = [*([Planned("fit", config.clone_tokens)] if cloned else []), measure]
    if isinstance(config, TrainTSLLM):
        own = config.tsllm
        search = Planned("search", tried * own.trajectories)
        models = [learn] * (own.reward == "model")
        measures = [measure] * (1 + own.guided)
        return [
            *plan,
            Planned("collect", tried * own.samples),
            *models,
            learn,
            *[search, learn, learn, *measures] * own.rounds,
        ]
    method: OpenR = config.openr
    samples = Planned("collect", tried * method.samples)
    plan += [samples, Planned("label", None), learn]
    plan += [Planned("practise", method.practice.iterations), measure] * (method.online != "none")
    plan += [*([samples] if method.online != "none" else []), learn, measure] * (method.offline != "none")
    return [*plan, measure]


def _results(folder: Path, console: Console) -> None:
    """The last measurement of each arm; `guided` decodes with the search."""
    rows = read_rows(folder / "results.jsonl")
    last = {row["arm"]: max(other["round"] for other in rows if other["arm"] == row["arm"]) for row in rows}
    cells = [
        (
            row["arm"],
            f"{row['world']} {row['tier']}",
            row["n"],
            _told(row),
            f"{row['generated']:,}",
            f"{row['computed']:,}",
        )
        for row in rows
        if row["round"] == last[row["arm"]]
    ]
    columns = ("arm", "panel", "tasks", "success, 95 %", "generated", "computed")
    console.print(table(console, columns, cells, numbers=("tasks", "generated", "computed")))


def _told(row: Mapping[str, Any]) -> str:
    """A success rate with its interval."""
    if row["mean"] is None:
        return f"withheld: {row['errors']} errors"
    return f"{rate(row['mean'])} ({rate(row['low'])} to {rate(row['high'])})"
