"""Progress: one living line on a terminal, a plain line per finished stage elsewhere, with throughput and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evolvent.run import Evaluation, Stage, Verbs
from evolvent.trajectory import Start, Trajectory
from evolvent.view.escape import plain

__all__ = ["Planned", "Progress", "Watched"]

P = TypeVar("P")
_PAUSE_S = 0.2  # between two pictures of the living line
_UNITS = {
    "fit": "tokens",
    "collect": "episodes",
    "evaluate": "episodes",
    "practise": "iterations",
    "search": "searches",
    "label": "labellings",
}
_QUIET_S = 60.0  # where there is no terminal, a practice says so often how far it is


@dataclass(frozen=True)
class Planned:
    """A stage to come: its verb, and how much it has to do in tokens or episodes (None: not known before)."""

    verb: str
    size: int | None


@dataclass
class _Now:
    """The stage that runs: how much of it is done, and the last numbers it reported."""

    unit: str
    label: str
    began: float
    size: int | None
    done: int = 0
    env_steps: int = 0
    success: float | None = None
    loss: float | None = None


@dataclass
class Progress:
    """Shows what a run does. Use it in a `with` statement, so that the terminal is always restored.

    Args:
        console: where to.
        plan: the stages to come, in order; stages found in the ledger are passed over.
        clock: seconds.
    """

    console: Console
    plan: Sequence[Planned] = ()
    clock: Callable[[], float] = time.monotonic
    _live: Live | None = None
    _now: _Now | None = None
    _outer: list[_Now] = field(default_factory=list)
    _said: float = 0.0
    _place: int = 0
    _drawn: float = 0.0
    _spent: dict[str, tuple[float, int]] = field(default_factory=dict)  # unit -> seconds, amount

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
        """A stage begins. Planned stages before it were found in the ledger.

        Args:
            verb: "fit", "collect", "evaluate", or "practise", in which others may lie.
            label: what its line begins with.
            size: its tokens or episodes; None: what is planned.
            unit: what is counted, where it is neither.
        """
        while self._place < len(self.plan) and self.plan[self._place].verb != verb:
            self._place += 1
        planned = self.plan[self._place].size if self._place < len(self.plan) else None
        self._place += 1
        self._outer += [self._now] if self._now is not None else []
        self._now = _Now(unit or _UNITS[verb], label, self.clock(), size if size is not None else planned)
        self._draw(force=True)

    def note(self, values: Mapping[str, Any]) -> None:
        """Numbers that the stage logged: episodes so far (in all), or tokens learned (by this update)."""
        now = self._now
        if now is None:
            return
        if values.get("kind") == "practise":
            now.done, now.env_steps = int(values["step"]), int(values.get("env_steps", 0))
            now.success = float(values["success"]) if "success" in values else None
            self._say(now)
        elif "episodes" in values:
            now.done, now.env_steps = int(values["episodes"]), int(values.get("env_steps", 0))
            now.success = float(values["success"]) if "success" in values else None
        elif "tokens" in values:
            now.done += int(values["tokens"])
            now.loss = values.get("loss")
        self._draw(force=False)

    def end(self) -> None:
        """The stage is done: its line stays."""
        now = self._now
        if now is None:
            return
        seconds, amount = self._spent.get(now.unit, (0.0, 0))
        self._spent[now.unit] = (seconds + self.clock() - now.began, amount + now.done)
        self.console.print(self._line(now), soft_wrap=True)
        self._now = self._outer.pop() if self._outer else None

    def _say(self, now: _Now) -> None:
        """A practice is long: without a terminal it says now and then how far it is; its last iteration ends it."""
        if now.size is not None and now.done >= now.size:
            self.end()
        elif self._live is None and self.clock() - max(self._said, now.began) > _QUIET_S:
            self._said = self.clock()
            self.console.print(self._line(now), soft_wrap=True)

    def _draw(self, *, force: bool) -> None:
        if self._live is None or self._now is None or (not force and self.clock() - self._drawn < _PAUSE_S):
            return
        self._drawn = self.clock()
        self._live.update(Text(self._line(self._now), overflow="ellipsis", no_wrap=True), refresh=True)

    def _line(self, now: _Now) -> str:
        spent = max(1e-9, self.clock() - now.began)
        where = f"[{self._place}/{len(self.plan)}] " if self.plan else ""
        of = f"/{now.size:,}" if now.size else ""
        parts = [f"{where}{now.label}", f"{now.done:,}{of} {now.unit}"]
        if now.success is not None:
            parts.append(f"success {now.success:.1%}")
        if now.loss is not None:
            parts.append(f"loss {now.loss:.3f}")
        amount, what = (now.env_steps, "env steps") if now.env_steps else (now.done, now.unit)
        parts += [f"{amount / spent:,.0f} {what}/s", minutes(spent)]
        left = self.left_s()
        if left:
            parts.append(f"about {minutes(left)} left")
        return plain(", ".join(parts))

    def left_s(self) -> float | None:
        """Seconds until the plan is done, by the rates so far; None until every kind of stage has been seen."""
        now = self._now
        rates = {unit: seconds / amount for unit, (seconds, amount) in self._spent.items() if amount}
        rest: list[tuple[str, int | None]] = [(_UNITS[p.verb], p.size) for p in self.plan[self._place :]]
        if now is not None:
            if now.done:
                rates.setdefault(now.unit, (self.clock() - now.began) / now.done)
            rest.append((now.unit, None if now.size is None else max(0, now.size - now.done)))
        if not self.plan or any(size is None or unit not in rates for unit, size in rest):
            return None
        return sum(rates[unit] * size for unit, size in rest if size is not None)


def minutes(seconds: float) -> str:
    """Seconds as minutes:seconds, or hours:minutes:seconds."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Watched(Generic[P]):
    """The verbs of a run, with a progress that is told what they do."""

    def __init__(self, verbs: Verbs[P], progress: Progress) -> None:
        self._verbs, self._progress = verbs, progress

    def _begin(self, stage: Stage, size: int | None) -> None:
        self._progress.begin(stage.verb, f"{stage.arm} round {stage.round} {stage.verb}", size)

    def _told(self, stage: Stage) -> Stage:
        def log(values: Mapping[str, Any]) -> None:
            stage.log(values)
            self._progress.note(values)

        return replace(stage, log=log)

    def collect(
        self, policy: P, starts: Sequence[Start], stage: Stage, *, temperature: float = 1.0, horizon: int | None = None
    ) -> Iterator[Trajectory]:
        """Play the starts, and show how far that is."""
        self._begin(stage, len(starts))
        told = self._told(stage)
        yield from self._verbs.collect(policy, starts, told, temperature=temperature, horizon=horizon)
        self._progress.end()

    def search(
        self, policy: P, starts: Sequence[Start], stage: Stage, *, how: Any, judge: P | None = None
    ) -> Iterator[Trajectory]:
        """Search from the starts, and show how far that is."""
        self._begin(stage, len(starts))
        yield from self._verbs.search(policy, starts, self._told(stage), how=how, judge=judge)
        self._progress.end()

    def label(
        self, policy: P, data: Sequence[Trajectory], stage: Stage, *, how: Any
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Label trajectories, and show how far that is."""
        self._begin(stage, len(data))
        yield from self._verbs.label(policy, data, self._told(stage), how=how)
        self._progress.end()

    def fit(
        self,
        policy: P,
        data: Sequence[Any],
        stage: Stage,
        *,
        objective: Any,
        weight: Callable[[Trajectory], float] | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Learn from data, and show how far that is."""
        self._begin(stage, tokens)
        fitted = self._verbs.fit(
            policy, data, self._told(stage), objective=objective, weight=weight, tokens=tokens, lr_scale=lr_scale
        )
        self._progress.end()
        return fitted

    def evaluate(
        self, policy: P, stage: Stage, *, split: str | None = None, **guided: Any
    ) -> tuple[Sequence[Evaluation], Sequence[Mapping[str, Any]]]:
        """Play the panels, and show how far that is."""
        self._begin(stage, None)
        result = self._verbs.evaluate(policy, self._told(stage), split=split, **guided)
        self._progress.end()
        return result

    def practise(self, policy: P, stage: Stage, *, setup: Any) -> Any:
        """Learn by acting, and show how far that is."""
        self._begin(stage, setup.config.iterations)
        return self._verbs.practise(policy, self._told(stage), setup=setup)

    def save(self, policy: P, folder: Path) -> None:
        """Keep a policy."""
        self._verbs.save(policy, folder)

    def load(self, folder: Path) -> P:
        """A kept policy."""
        return self._verbs.load(folder)

    def origin(self, policy: P) -> str:
        """A digest of a policy from elsewhere."""
        return self._verbs.origin(policy)

    def usage(self) -> Mapping[str, int]:
        """Running totals of what was generated, computed, trained."""
        return self._verbs.usage()
