"""`evolvent train RECIPE DATA`: train a policy, a reward model or a value head, in one process or over many ranks.

Under torchrun every rank runs this same program; the first speaks, writes the run and draws its report.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from rich.console import Console

from evolvent.cli.jobs import write_report
from evolvent.cli.names import policy, worlds
from evolvent.cli.planning import plan
from evolvent.cli.progress import Planned, Progress
from evolvent.cli.recipes import RECIPES, Given, Prepared, Recipe
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.settings import Command, read_given
from evolvent.errors import ConfigError, Problem
from evolvent.files import append_line
from evolvent.learn.learner import FitReport
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.ranks import Ranks, ranks_of
from evolvent.learn.sources import file_digest, source_digest, vocabulary_digest
from evolvent.learn.tokens import TokenFile, write_tokens
from evolvent.learn.windows import Intake
from evolvent.models.adapters import adapt
from evolvent.models.policy import Policy
from evolvent.scale.training import Training, train
from evolvent.store.lock import WriterLock
from evolvent.view.escape import plain
from evolvent.view.redraw import redrawing

__all__ = ["COMMANDS", "run"]

COMMANDS = {
    name: Command(f"train {name}", about, config, main="data", resumes=True)
    for name, (config, about) in RECIPES.items()
}
_TERMINATED = 143


def run(words: Sequence[str], console: Console) -> int:
    """Train by a recipe (`sft` where none is named); returns the exit code."""
    if not words or (words[0] in ("-h", "--help")):
        console.print(_usage(), soft_wrap=True)
        return 0 if words else 2
    name, rest = (words[0], words[1:]) if words[0] in RECIPES else ("sft", words)
    planning = "--plan" in rest
    given = read_given(COMMANDS[name], [word for word in rest if word != "--plan"], console)
    if given is None:
        return 0
    config: Recipe = given.config
    torch.set_num_threads(config.threads)
    if planning:
        return plan(config, console)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    made = worlds(config.worlds)
    initial = policy(config.policy, list(made.values()), seed=config.seed)
    check_layout(initial.model.config, config.parallel, world=world)
    with ranks_of(config.parallel.mesh, device=config.device, timeout=config.parallel.timeout) as ranks:
        return _Job(name, config, console, ranks, given.resume).run(Given(initial, made))


class _Job:
    """One training of the command line, in one rank."""

    def __init__(self, name: str, config: Recipe, console: Console, ranks: Ranks, resume: Path | None) -> None:
        self._name, self._config, self._console, self._ranks, self._resume = name, config, console, ranks, resume
        self._began = time.monotonic()
        self._stopped = 0  # the signal that asked for the end

    def run(self, given: Given) -> int:
        """Prepare, train, and say where the model is."""
        config, ranks = self._config, self._ranks
        folder = self._folder()
        prepared = config.prepare(given)
        with self._writing(folder), self._stopping():
            tokens = self._tokens(folder / "tokens", given.policy, prepared)
            model = (
                given.policy if config.adapter.kind == "none" else adapt(given.policy, config.adapter, seed=config.seed)
            )
            model.model.to(ranks.device)
            job = Training(
                folder, model, prepared.objective, tokens, config.seed, config.train, config.optimizer,
                config.parallel, config.keep,
            )  # fmt: skip
            report = self._train(job, tokens)
            if not report.finished:
                self._leave()
        if ranks.leads:
            self._console.print(f"model {folder / 'model'}", soft_wrap=True)
            self._console.print(f"report {folder / 'report.html'}", soft_wrap=True)
        return 0

    def _folder(self) -> Path:
        """The run's folder; all ranks are told the first one's choice by its name in the store of the group."""
        if self._resume is not None:
            return self._resume
        if self._ranks.devices is None:
            return new_folder("train", self._config.to)
        if self._config.to is None:
            raise ConfigError([Problem("to", "several ranks need one folder", "name it: --to runs/NAME")])
        return new_folder("train", self._config.to) if self._ranks.leads else self._config.to

    def _tokens(self, folder: Path, policy: Policy, prepared: Prepared) -> TokenFile:
        """The data, tokenised once by the leading rank; the others open what it wrote."""
        config = self._config
        if self._ranks.leads:
            intake = Intake()
            content = f"{_data_digest(config.data)} {prepared.also} {prepared.objective!r}"
            found = write_tokens(
                folder, prepared.made(intake), source=source_digest(content, policy, config.reading()),
                vocabulary=vocabulary_digest(policy.tokenizer), intake=intake,
            )  # fmt: skip
            self._tell(found, intake)
        self._ranks.sum(torch.zeros(1, device=self._ranks.device), "dp", "pp", "tp")  # all wait for the first
        return TokenFile(folder)

    def _tell(self, found: TokenFile, intake: Intake) -> None:
        say = self._console.print
        say(f"{len(found):,} sequences, {found.tokens:,} tokens, {found.targets:,} learned", soft_wrap=True)
        for problem in intake.problems[:5]:
            say(f"left out: {plain(str(problem))}", soft_wrap=True)
        if intake.refused > 5:
            say(f"left out: {intake.refused - 5} more", soft_wrap=True)

    def _train(self, job: Training, tokens: TokenFile) -> FitReport:
        config = self._config.train
        size = None if config.updates else config.tokens or config.epochs * tokens.targets
        progress = Progress(self._console, (Planned("fit", size),))
        with progress if self._ranks.leads else nullcontext():
            if self._ranks.leads:
                progress.begin("fit", self._name, size)

            def log(values: Mapping[str, Any]) -> None:
                spent = {"time_s": round(time.monotonic() - self._began, 3), "cpu_s": round(time.process_time(), 3)}
                where = {"stage": self._name, "arm": "base", "round": 0, "kind": "fit"}
                append_line(job.folder / "metrics.jsonl", {**spent, **where, **values}, durable=False)
                progress.note(values)

            report = train(job, self._ranks, log=log, should_stop=lambda: self._stopped != 0)
            if self._ranks.leads:
                progress.end()
        return report

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        """In the leading rank: the folder locked, its record kept, its report drawn now and then and at the end."""
        if not self._ranks.leads:
            yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / ".train.lock")
        try:
            record = Record(f"train {self._name}", self._config, self._config.seed, ("base",))
            with recorded(folder, record), redrawing(partial(write_report, folder)):
                yield
        finally:
            write_report(folder)
            lock.release()

    def _leave(self) -> NoReturn:
        if self._stopped == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(_TERMINATED)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end the training after its update, with a checkpoint; a second one ends it at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stopped:
                self._leave()
            self._stopped = number

        before: dict[int, Callable[..., Any] | int | None] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for known, handler in before.items():
                signal.signal(known, handler)


def _data_digest(data: Path) -> str:
    inner = data / "trajectories"
    return file_digest(inner if inner.is_dir() else data)


def _usage() -> str:
    lines = "\n".join(f"  {name:9}{about}" for name, (_, about) in RECIPES.items())
    return (
        "usage: evolvent train RECIPE DATA [FILE.toml] [--key value ...]\n\n" + lines + "\n\n"
        "Without a recipe it is sft. `evolvent train RECIPE --help` lists the settings,\n"
        "`--plan` says what memory a rank needs and what fits. Over several processes:\n"
        "torchrun --nproc-per-node 4 -m evolvent train sft DATA --to runs/NAME \\\n"
        "  --parallel.shard 2 --parallel.tp 2"
    )
