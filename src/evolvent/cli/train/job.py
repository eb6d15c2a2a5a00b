"""One training of the command line, in one rank: its folder, tokens, record and report, and its interruption."""

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

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.run_setup import write_report
from evolvent.cli.terminal.progress import Progress
from evolvent.cli.train.data import data_digest
from evolvent.cli.train.planning import memory_warning
from evolvent.cli.train.preflight import TrainingRequest
from evolvent.cli.train.ranks import format_program
from evolvent.cli.train.recipes import PreparedTraining, RecipeInputs
from evolvent.data.forms import describe_forms
from evolvent.files import append_line, disk_errors
from evolvent.learn.learner import FitReport, UpdateMetrics
from evolvent.learn.parallel.ranks import RankCoordinator, Ranks
from evolvent.learn.sources import source_digest, vocabulary_digest
from evolvent.learn.tokens import TokenFile, write_tokens
from evolvent.learn.windows import Intake
from evolvent.models.policy import Policy
from evolvent.scale.training import TrainingJob, read_progress, run_training
from evolvent.store.lock import WriterLock
from evolvent.view.escape import show_hidden
from evolvent.view.redraw import redraw_repeatedly

__all__ = ["INTERRUPTED_EXIT_CODE", "Logger", "TrainingCommand"]

INTERRUPTED_EXIT_CODE = 130
_TERMINATED_EXIT_CODE = 143
_MAX_MESSAGES = 5  # rows left out of which the reason is told
_LINE_INTERVAL_S = 60.0  # where there is no terminal, a line is printed so often


@dataclass
class Logger:
    """The output of a rank.

    Attributes:
        rank: the rank of this process.
        console: its console; only that of the first rank shows anything.
        coordinator: coordinates the ranks.
        last_update: the last completed update.
    """

    rank: int
    console: Console
    coordinator: RankCoordinator
    last_update: int = 0

    def print_line(self, text: str) -> None:
        """Prints a line now."""
        self.console.print(show_hidden(text), soft_wrap=True)
        self.console.file.flush()


class TrainingCommand:
    """A training that is ready to begin.

    Args:
        name: the name of the recipe.
        request: the requested training.
        inputs: the inputs of the recipe.
        tuned: the trained policy: that of the inputs, or the same with an adapter.
        ranks: the ranks of the training.
        logger: the output of this rank.
    """

    def __init__(
        self, name: str, request: TrainingRequest, *, inputs: RecipeInputs, tuned: Policy, ranks: Ranks, logger: Logger
    ) -> None:
        self._name, self._asked, self._config = name, request, request.config
        self._given, self._tuned, self._ranks, self._voice = inputs, tuned, ranks, logger
        self._began = time.monotonic()
        self._stopped = 0  # the signal that asked for the end

    def run(self) -> int:
        """Reads the data, trains, writes the model and prints its path; returns the exit code.

        Raises:
            ConfigError: the folder holds a run already, or a checkpoint of another training.
            Locked: another process trains in the folder.
            KeyboardInterrupt, SystemExit: a signal ended the training; a checkpoint was saved.
        """
        logger, prepared = self._voice, self._config.prepare(self._given)
        folder = self._asked.resume or self._choose_folder()
        with self._lock_folder(folder):
            tokens = self._open_tokens(folder, prepared)
            if self._tuned.model is not self._given.policy.model:
                self._given.policy.model.to("meta")  # a reference has said what it had to; an adapter has its own base
            self._tuned.model.to(self._ranks.device)
            job = TrainingJob(
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
            with self._record_run(folder):
                report = self._train(job, tokens)
                if not report.finished:
                    self._exit_on_signal()
        logger.print_line(f"model {folder / 'model'}")
        logger.print_line(f"report {folder / 'report.html'}")
        return 0

    # ------------------------------------------------------------------ before

    def _choose_folder(self) -> Path:
        """Returns the folder of a new run; with several ranks it is given, and the first rank checks that it is
        free.
        """
        output_dir = self._config.output_dir
        return choose_run_folder("train", output_dir) if self._ranks.is_leader or output_dir is None else output_dir

    @contextmanager
    def _lock_folder(self, folder: Path) -> Iterator[None]:
        """Locks the folder in the leading rank; a new folder without a run is removed again at the end."""
        if not self._ranks.is_leader:
            yield
            return
        created_folders = [path for path in (folder, folder.parent) if not path.exists()]
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / ".train.lock")
        try:
            yield
        finally:
            lock.release()
            if folder in created_folders and not (folder / "run.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                for path in created_folders[1:]:
                    with suppress(OSError):  # somebody uses it by now
                        path.rmdir()

    def _open_tokens(self, folder: Path, prepared: PreparedTraining) -> TokenFile:
        """Opens the tokenized data, which the leading rank writes once; a run keeps its tokens."""
        token_folder = folder / "tokens"
        if self._asked.reads_data:
            self._voice.coordinator.run_on_leader(lambda: self._write_tokens(token_folder, prepared))
        token_file = TokenFile(token_folder)
        if self._ranks.is_leader:
            warning = memory_warning(self._config, self._tuned, max_sequence_length=int(token_file.feeds.max()))
            if warning is not None:
                self._voice.print_line(f"warning: {warning}")
        return token_file

    def _write_tokens(self, token_folder: Path, prepared: PreparedTraining) -> None:
        config, policy, intake = self._config, self._given.policy, Intake()
        content = f"{data_digest(config.data)} {prepared.extra_settings} {prepared.objective!r}"
        token_file = write_tokens(
            token_folder,
            prepared.make_sequences(intake),
            source=source_digest(content, policy, config.make_reading_config()),
            vocabulary=vocabulary_digest(policy.tokenizer),
            intake=intake,
        )
        print_line, refused = self._voice.print_line, intake.refused
        if intake.forms:
            chosen_text = "; of preferences the chosen side is learned" if self._learns_chosen(intake) else ""
            print_line(f"{describe_forms(intake.forms)}{chosen_text}")
        print_line(f"{len(token_file):,} sequences, {token_file.tokens:,} tokens, {token_file.targets:,} learned")
        for count, action in ((intake.truncated, "truncated"), (intake.split, "split")):
            if count:
                print_line(f"{action}: {count:,} that were longer than the context")
        if intake.thoughts_left_out:
            print_line(f"left out: the thoughts of {intake.thoughts_left_out:,} rows; the policy has no form for them")
        for problem in intake.problems[:_MAX_MESSAGES]:
            print_line(f"left out: {problem}")
        if refused > _MAX_MESSAGES:
            print_line(f"left out: {refused - _MAX_MESSAGES:,} more")

    def _learns_chosen(self, intake: Intake) -> bool:
        return self._config.make_reading_config().kind == "messages" and "preferences" in intake.forms

    # ------------------------------------------------------------------ training

    def _train(self, job: TrainingJob, tokens: TokenFile) -> FitReport:
        config, leads, folder = self._config.train, self._ranks.is_leader, job.folder
        start_progress = read_progress(folder)
        if self._asked.resume is not None:
            self._voice.print_line(
                f"goes on after update {start_progress.update}"
                if start_progress.update
                else "begins: no checkpoint yet"
            )
        is_size_known = config.max_steps is None and job.objective.together == 1
        size = (config.tokens or config.epochs * tokens.targets) - start_progress.tokens if is_size_known else None
        progress = Progress(self._voice.console)
        training_display = _TrainingDisplay(self._voice, progress)

        def log(values: Mapping[str, Any]) -> None:
            times = {"time_s": round(time.monotonic() - self._began, 3), "cpu_s": round(time.process_time(), 3)}
            context = {"stage": self._name, "arm": "base", "round": 0, "kind": "fit"}
            append_line(folder / "metrics.jsonl", {**times, **context, **values}, durable=False)
            training_display.update(values)

        def record_update(metrics: UpdateMetrics) -> None:
            self._voice.last_update = metrics.update

        with progress if leads else nullcontext(), self._stop_on_signal():
            if leads:
                unit = "pairs" if job.objective.together > 1 else None
                progress.begin("fit", self._name, size if size and size > 0 else None, unit=unit)
            report = run_training(
                job, self._ranks, log=log, on_update=record_update, should_stop=lambda: self._stopped != 0
            )
            if leads and report.updates > start_progress.update:
                progress.end()
        if report.updates == start_progress.update and report.finished:
            self._voice.print_line(f"all {report.updates} updates were taken before: nothing is left to do")
        return report

    @contextmanager
    def _record_run(self, folder: Path) -> Iterator[None]:
        """Records the run in the leading rank: its settings, its state as it changes, and its report from time to
        time.
        """
        program = format_program(self._ranks.mesh.size)
        record = RunRecord(f"train {self._name}", self._config, self._config.seed, ("base",), program=program)
        if not self._ranks.is_leader:
            yield
            return
        try:
            with record_run(folder, record), redraw_repeatedly(partial(write_report, folder)):
                yield
        finally:
            write_report(folder)

    def _exit_on_signal(self) -> NoReturn:
        if self._stopped == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(_TERMINATED_EXIT_CODE)

    @contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        """Makes SIGTERM and Ctrl-C end the training after its update, with a checkpoint; a second signal ends it at
        once.
        """

        def request_stop(number: int, frame: FrameType | None) -> None:
            if self._stopped:
                self._exit_on_signal()
            self._stopped = number

        previous_handlers: dict[int, Callable[..., Any] | int | None] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            previous_handlers[number] = signal.signal(number, request_stop)
        try:
            yield
        finally:
            for handled_signal, handler in previous_handlers.items():
                signal.signal(handled_signal, handler)


class _TrainingDisplay:
    """The display of a running training: an updating line, or a line a minute."""

    def __init__(self, logger: Logger, progress: Progress) -> None:
        self._voice, self._progress = logger, progress
        self._said = time.monotonic()

    def update(self, values: Mapping[str, Any]) -> None:
        """Updates the display with a row of the log."""
        self._progress.update(values)
        current_time = time.monotonic()
        if not self._voice.console.is_terminal and current_time - self._said > _LINE_INTERVAL_S and "loss" in values:
            self._said = current_time
            loss = values["loss"]
            self._voice.print_line(f"update {values['step']:,}, loss {'not finite' if loss is None else f'{loss:.3f}'}")
