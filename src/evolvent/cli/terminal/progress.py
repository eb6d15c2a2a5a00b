"""Progress: one updating line on a terminal, elsewhere a line per finished stage, with throughput and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evolvent.run import Backend, Evaluation, RunStage
from evolvent.trajectory import Json, JsonObject, Start, Trajectory
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.learn.objectives import Objective
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.reward.labelling import LabellingConfig
    from evolvent.rl.trainer import PolicyTrainer, RLSpec
    from evolvent.search.settings import SearchConfig

__all__ = ["PlannedStage", "Progress", "ProgressBackend"]

P = TypeVar("P")
_REDRAW_INTERVAL_S = 0.2  # between two pictures of the living line
_UNITS = {
    "fit": "tokens",
    "collect": "episodes",
    "evaluate": "episodes",
    "practise": "iterations",
    "search": "searches",
    "label": "labellings",
}
_LINE_INTERVAL_S = 60.0  # between two lines of RL training where there is no terminal


@dataclass(frozen=True)
class PlannedStage:
    """A stage to come: its verb, and its size in tokens or episodes (None: not known in advance)."""

    verb: str
    size: int | None


@dataclass
class _ActiveStage:
    """The running stage, with its completed amount and the last numbers that it reported."""

    unit: str
    label: str
    start_time: float
    size: int | None
    plan_position: int = 0
    done: int = 0
    env_steps: int = 0
    success: float | None = None
    loss: float | None = None


@dataclass
class Progress:
    """Displays what a run does. Use it in a `with` statement, so that the terminal is always restored.

    Args:
        console: the console to write to.
        plan: the stages to come, in order; stages found in the ledger are skipped.
        clock: returns the time in seconds.
    """

    console: Console
    plan: Sequence[PlannedStage] = ()
    clock: Callable[[], float] = time.monotonic
    _live: Live | None = None
    _active: _ActiveStage | None = None
    _outer_stages: list[_ActiveStage] = field(default_factory=list)
    _last_line_time: float = 0.0
    _plan_position: int = 0
    _last_redraw_time: float = 0.0
    _totals: dict[str, tuple[float, int]] = field(default_factory=dict)  # unit -> seconds, amount

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(Text(), console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, verb: str, label: str, size: int | None, *, unit: str | None = None) -> None:
        """Starts a stage. Planned stages before it were found in the ledger.

        Args:
            verb: "fit", "collect", "evaluate", or "practise", in which others may be nested.
            label: the start of its line.
            size: its tokens or episodes; None: as planned.
            unit: the counted unit, where it is neither.
        """
        while self._plan_position < len(self.plan) and self.plan[self._plan_position].verb != verb:
            self._plan_position += 1
        planned = self.plan[self._plan_position].size if self._plan_position < len(self.plan) else None
        self._plan_position += 1
        self._outer_stages += [self._active] if self._active is not None else []
        size = size if size is not None else planned
        self._active = _ActiveStage(unit or _UNITS[verb], label, self.clock(), size, self._plan_position)
        self._redraw(force=True)

    def update(self, values: JsonObject) -> None:
        """Updates the stage with logged numbers: episodes or steps so far (in total), or tokens learned (by this
        update).
        """
        stage = self._active
        if stage is None:
            return
        if values.get("kind") == "practise":
            stage.done, stage.env_steps = int(values["step"]), int(values.get("env_steps", 0))
            stage.success = float(values["success"]) if "success" in values else None
            self._report_rl(stage)
        elif "episodes" in values:
            stage.done, stage.env_steps = int(values["episodes"]), int(values.get("env_steps", 0))
            stage.success = float(values["success"]) if "success" in values else None
        elif "steps" in values:
            stage.done = int(values["steps"])
            stage.success = float(values["success"]) if "success" in values else None
            self._print_interim_line(stage)
        elif "tokens" in values:
            stage.done += int(values["tokens"])
            stage.loss = values.get("loss")
        self._redraw(force=False)

    def end(self) -> None:
        """Ends the stage and prints its line. Lines are numbered in their order: a stage inside another ends first."""
        stage = self._active
        if stage is None:
            return
        is_unplanned = bool(self.plan) and stage.plan_position > len(self.plan)
        is_shown = bool(stage.done or stage.size) or not is_unplanned  # an evaluation without tasks has no line
        for outer in self._outer_stages if is_shown else ():
            first, second = sorted((stage.plan_position, outer.plan_position))
            stage.plan_position, outer.plan_position = first, second
        seconds, amount = self._totals.get(stage.unit, (0.0, 0))
        self._totals[stage.unit] = (seconds + self.clock() - stage.start_time, amount + stage.done)
        if is_shown:
            self.console.print(self._format_line(stage), soft_wrap=True)
        self._active = self._outer_stages.pop() if self._outer_stages else None

    def _report_rl(self, stage: _ActiveStage) -> None:
        """Reports RL training: without a terminal it prints a line at intervals, and its last iteration ends it."""
        if stage.size is not None and stage.done >= stage.size:
            self.end()
        else:
            self._print_interim_line(stage)

    def _print_interim_line(self, stage: _ActiveStage) -> None:
        if self._live is None and self.clock() - max(self._last_line_time, stage.start_time) > _LINE_INTERVAL_S:
            self._last_line_time = self.clock()
            self.console.print(self._format_line(stage), soft_wrap=True)

    def _redraw(self, *, force: bool) -> None:
        if (
            self._live is None
            or self._active is None
            or (not force and self.clock() - self._last_redraw_time < _REDRAW_INTERVAL_S)
        ):
            return
        self._last_redraw_time = self.clock()
        self._live.update(Text(self._format_line(self._active), overflow="ellipsis", no_wrap=True), refresh=True)

    def _format_line(self, stage: _ActiveStage) -> str:
        elapsed_s = max(1e-9, self.clock() - stage.start_time)
        is_planned = stage.plan_position <= len(self.plan)
        position_text = f"[{stage.plan_position}/{len(self.plan)}] " if is_planned else ""
        size_text = f"/{stage.size:,}" if stage.size else ""
        parts = [f"{position_text}{stage.label}", f"{stage.done:,}{size_text} {stage.unit}"]
        if stage.success is not None:
            parts.append(f"success {stage.success:.1%}")
        if stage.loss is not None:
            parts.append(f"loss {stage.loss:.3f}")
        amount, unit = (stage.env_steps, "env steps") if stage.env_steps else (stage.done, stage.unit)
        parts += [f"{amount / elapsed_s:,.0f} {unit}/s", format_duration(elapsed_s)]
        left_s = self.estimate_time_left()
        if left_s:
            parts.append(f"about {format_duration(left_s)} left")
        return show_hidden(", ".join(parts))

    def estimate_time_left(self) -> float | None:
        """Estimates the seconds until the plan is done, from the rates so far.

        Returns:
            Seconds; None until every kind of stage has run.
        """
        stage = self._active
        rates = {unit: seconds / amount for unit, (seconds, amount) in self._totals.items() if amount}
        remaining: list[tuple[str, int | None]] = [
            (_UNITS[planned.verb], planned.size) for planned in self.plan[self._plan_position :]
        ]
        if stage is not None:
            if stage.done:
                rates.setdefault(stage.unit, (self.clock() - stage.start_time) / stage.done)
            remaining.append((stage.unit, None if stage.size is None else max(0, stage.size - stage.done)))
        if not self.plan or any(size is None or unit not in rates for unit, size in remaining):
            return None
        return sum(rates[unit] * size for unit, size in remaining if size is not None)


def format_duration(seconds: float) -> str:
    """Formats seconds as minutes:seconds or hours:minutes:seconds."""
    total_seconds = round(seconds)
    hours, remainder = divmod(total_seconds, 3600)
    return f"{hours}:{remainder // 60:02}:{remainder % 60:02}" if hours else f"{remainder // 60}:{remainder % 60:02}"


class ProgressBackend(Generic[P]):
    """A backend that reports the operations of another backend to a progress display."""

    def __init__(self, backend: Backend[P], progress: Progress) -> None:
        self._verbs, self._progress = backend, progress

    def _begin_stage(self, stage: RunStage, size: int | None) -> None:
        label = f"{stage.arm} training" if stage.verb == "practise" else f"{stage.arm} round {stage.round} {stage.verb}"
        self._progress.begin(stage.verb, label, size)

    def _with_progress_log(self, stage: RunStage) -> RunStage:
        def log_and_report(values: Mapping[str, Any]) -> None:
            stage.log(values)
            self._progress.update(values)

        return replace(stage, log=log_and_report)

    def collect(
        self,
        policy: P,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:
        """Plays the starts and reports the progress."""
        self._begin_stage(stage, len(starts))
        logging_stage = self._with_progress_log(stage)
        yield from self._verbs.collect(policy, starts, logging_stage, temperature=temperature, horizon=horizon)
        self._progress.end()

    def search(
        self, policy: P, starts: Sequence[Start], stage: RunStage, *, search: SearchConfig, value_model: P | None = None
    ) -> Iterator[Trajectory]:
        """Searches from the starts and reports the progress."""
        self._begin_stage(stage, len(starts))
        yield from self._verbs.search(
            policy, starts, self._with_progress_log(stage), search=search, value_model=value_model
        )
        self._progress.end()

    def label(
        self, policy: P, data: Sequence[Trajectory], stage: RunStage, *, labeler: LabellingConfig
    ) -> Iterator[tuple[str, list[dict[str, Json]]]]:
        """Labels trajectories and reports the progress."""
        self._begin_stage(stage, len(data))
        yield from self._verbs.label(policy, data, self._with_progress_log(stage), labeler=labeler)
        self._progress.end()

    def fit(
        self,
        policy: P,
        data: Sequence[Trajectory | TokenSequence],
        stage: RunStage,
        *,
        objective: Objective,
        weight: Callable[[Trajectory], float] | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Trains on data and reports the progress."""
        self._begin_stage(stage, tokens)
        fitted = self._verbs.fit(
            policy,
            data,
            self._with_progress_log(stage),
            objective=objective,
            weight=weight,
            tokens=tokens,
            lr_scale=lr_scale,
        )
        self._progress.end()
        return fitted

    def evaluate(
        self,
        policy: P,
        stage: RunStage,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: P | None = None,
    ) -> tuple[Sequence[Evaluation], Sequence[Mapping[str, Json]]]:
        """Plays the panels and reports the progress."""
        self._begin_stage(stage, None)
        result = self._verbs.evaluate(
            policy, self._with_progress_log(stage), split=split, search=search, value_model=value_model
        )
        self._progress.end()
        return result

    def train_rl(self, policy: P, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        """Learn by acting, and show how far that is."""
        self._begin_stage(stage, spec.config.iterations)
        return self._verbs.train_rl(policy, self._with_progress_log(stage), spec=spec)

    def save(self, policy: P, folder: Path) -> None:
        """Saves a policy."""
        self._verbs.save(policy, folder)

    def load(self, folder: Path) -> P:
        """Loads a saved policy."""
        return self._verbs.load(folder)

    def origin(self, policy: P) -> str:
        """Returns a digest of a policy that no stage of the run produced."""
        return self._verbs.origin(policy)

    def usage(self) -> Mapping[str, int]:
        """Returns running totals of generated, computed and trained tokens."""
        return self._verbs.usage()
