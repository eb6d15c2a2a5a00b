"""One training of the command line, in one rank: its folder, tokens, record and report, and how it is stopped."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from evolvent.cli.planning import too_large
from evolvent.cli.preflight import Asked
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.run_setup import write_report
from evolvent.cli.train_recipes import Given, Prepared
from evolvent.cli.training_data import data_digest
from evolvent.files import append_line, disk_errors
from evolvent.learn.learner import FitReport, Metrics
from evolvent.learn.parallel.ranks import Meeting, Ranks
from evolvent.learn.sources import source_digest, vocabulary_digest
from evolvent.learn.tokens import TokenFile, write_tokens
from evolvent.learn.windows import Intake
from evolvent.models.policy import Policy
from evolvent.scale.training import Training, reached, train
from evolvent.store.lock import WriterLock
from evolvent.view.escape import plain
from evolvent.view.redraw import redrawing

__all__ = ["INTERRUPTED", "Lesson", "Voice"]

INTERRUPTED = 130
_TERMINATED = 143
_TOLD = 5  # rows left out of which the reason is told
_QUIET_S = 60.0  # where there is no terminal, a line is printed so often


@dataclass
class Voice:
    """Who speaks here, and how far the training was heard of.

    Attributes:
        rank: of this process; only the first has a console that shows anything. update: the last one that was taken.
    """

    rank: int
    console: Console
    meeting: Meeting
    update: int = 0

    def say(self, text: str) -> None:
        """Print a line now."""
        self.console.print(plain(text), soft_wrap=True)
        self.console.file.flush()


class Lesson:
    """A training that can begin.

    Args:
        name: of the recipe. asked: what was asked for. given: what the recipe works with.
        tuned: what is trained: the given policy, or that with an adapter.
    """

    def __init__(self, name: str, asked: Asked, *, given: Given, tuned: Policy, ranks: Ranks, voice: Voice) -> None:
        self._name, self._asked, self._config = name, asked, asked.config
        self._given, self._tuned, self._ranks, self._voice = given, tuned, ranks, voice
        self._began = time.monotonic()
        self._stopped = 0  # the signal that asked for the end

    def run(self) -> int:
        """Read the data, train, write the model and say where it is; returns the exit code.

        Raises:
            ConfigError: the folder holds a run already, or a checkpoint of another training. Locked: it is being
                trained. KeyboardInterrupt, SystemExit: a signal ended it, and a checkpoint was saved.
        """
        voice, prepared = self._voice, self._config.prepare(self._given)
        folder = self._asked.resume or self._named()
        with self._locked(folder):
            tokens = self._tokens(folder, prepared)
            if self._tuned.model is not self._given.policy.model:
                self._given.policy.model.to("meta")  # a reference has said what it had to; an adapter has its own base
            self._tuned.model.to(self._ranks.device)
            job = Training(
                folder,
                self._tuned,
                prepared.objective,
                tokens,
                self._config.seed,
                self._config.train,
                self._config.optimizer,
                self._config.parallel,
                self._config.keep,
            )
            with self._recorded(folder):
                report = self._trained(job, tokens)
                if not report.finished:
                    self._leave()
        voice.say(f"model {folder / 'model'}")
        voice.say(f"report {folder / 'report.html'}")
        return 0

    # ------------------------------------------------------------------ before

    def _named(self) -> Path:
        """The folder of a new run; with several ranks it has a name, and the first looks whether it is free."""
        to = self._config.to
        return new_folder("train", to) if self._ranks.leads or to is None else to

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """In the leading rank: nobody else trains in the folder. A new one without tokens is no run: it goes again."""
        if not self._ranks.leads:
            yield
            return
        begun = [place for place in (folder, folder.parent) if not place.exists()]
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / ".train.lock")
        try:
            yield
        finally:
            lock.release()
            if folder in begun and not (folder / "run.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                for place in begun[1:]:
                    with suppress(OSError):  # somebody uses it by now
                        place.rmdir()

    def _tokens(self, folder: Path, prepared: Prepared) -> TokenFile:
        """The data, tokenised once by the leading rank; the others open what it wrote. A run keeps its tokens."""
        place = folder / "tokens"
        if self._asked.reads:
            self._voice.meeting.first(lambda: self._written(place, prepared))
        found = TokenFile(place)
        if self._ranks.leads:
            warning = too_large(self._config, self._tuned, longest=int(found.feeds.max()))
            if warning is not None:
                self._voice.say(f"warning: {warning}")
        return found

    def _written(self, place: Path, prepared: Prepared) -> None:
        config, policy, intake = self._config, self._given.policy, Intake()
        content = f"{data_digest(config.data)} {prepared.also} {prepared.objective!r}"
        found = write_tokens(
            place,
            prepared.made(intake),
            source=source_digest(content, policy, config.reading()),
            vocabulary=vocabulary_digest(policy.tokenizer),
            intake=intake,
        )
        say, refused = self._voice.say, intake.refused
        say(f"{len(found):,} sequences, {found.tokens:,} tokens, {found.targets:,} learned")
        for number, word in ((intake.truncated, "truncated"), (intake.split, "split")):
            if number:
                say(f"{word}: {number:,} that were longer than the context")
        for problem in intake.problems[:_TOLD]:
            say(f"left out: {problem}")
        if refused > _TOLD:
            say(f"left out: {refused - _TOLD:,} more")

    # ------------------------------------------------------------------ training

    def _trained(self, job: Training, tokens: TokenFile) -> FitReport:
        config, leads, folder = self._config.train, self._ranks.leads, job.folder
        before = reached(folder)
        if self._asked.resume is not None:
            self._voice.say(f"goes on after update {before.update}" if before.update else "begins: no checkpoint yet")
        counted = config.updates is None and job.objective.together == 1
        size = (config.tokens or config.epochs * tokens.targets) - before.tokens if counted else None
        progress = Progress(self._voice.console)
        telling = _Telling(self._voice, progress)

        def log(values: Mapping[str, Any]) -> None:
            spent = {"time_s": round(time.monotonic() - self._began, 3), "cpu_s": round(time.process_time(), 3)}
            where = {"stage": self._name, "arm": "base", "round": 0, "kind": "fit"}
            append_line(folder / "metrics.jsonl", {**spent, **where, **values}, durable=False)
            telling.note(values)

        def updated(metrics: Metrics) -> None:
            self._voice.update = metrics.update

        with progress if leads else nullcontext(), self._stopping():
            if leads:
                unit = "pairs" if job.objective.together > 1 else None
                progress.begin("fit", self._name, size if size and size > 0 else None, unit=unit)
            report = train(job, self._ranks, log=log, on_update=updated, should_stop=lambda: self._stopped != 0)
            if leads and report.updates > before.update:
                progress.end()
        if report.updates == before.update and report.finished:
            self._voice.say(f"all {report.updates} updates were taken before: nothing is left to do")
        return report

    @contextmanager
    def _recorded(self, folder: Path) -> Iterator[None]:
        """In the leading rank: the run's settings, its state as it changes, its report now and then and at the end."""
        world = self._ranks.mesh.size
        program = "evolvent" if world == 1 else f"torchrun --nproc-per-node {world} -m evolvent"
        record = Record(f"train {self._name}", self._config, self._config.seed, ("base",), program=program)
        if not self._ranks.leads:
            yield
            return
        try:
            with recorded(folder, record), redrawing(partial(write_report, folder)):
                yield
        finally:
            write_report(folder)

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


class _Telling:
    """What is shown of a training while it runs: a living line, or one a minute."""

    def __init__(self, voice: Voice, progress: Progress) -> None:
        self._voice, self._progress = voice, progress
        self._said = time.monotonic()

    def note(self, values: Mapping[str, Any]) -> None:
        """Take a row of the log."""
        self._progress.note(values)
        now = time.monotonic()
        if not self._voice.console.is_terminal and now - self._said > _QUIET_S and "loss" in values:
            self._said = now
            loss = values["loss"]
            self._voice.say(f"update {values['step']:,}, loss {'not finite' if loss is None else f'{loss:.3f}'}")
