"""The watcher evaluates the snapshots of a training in a separate process; training never waits for it.

It reads the pointer to the newest snapshot, takes a lease, loads the policy, runs its evaluators, and appends
one line for each evaluator to the run's `evaluations.jsonl` (the run's `metrics.jsonl` has one writer: the
training). A line holds the step of the snapshot, whenever it was evaluated:

    {"at", "time_s", "cpu_s", "kind": "snapshot", "arm": "", "stage": NAME, "step", "snapshot": "step-000123",
     "settings": digest, "seconds", "measures": [{"metric", "value", "low", "high", "n"}, ...]}

or, in place of the measures, `"error": {"kind", "message"}`; a snapshot that cannot be loaded is one line with
the stage "load". Where an evaluation takes longer than the next snapshot, those in between are skipped.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolvent.bench.best import BestConfig, BestSnapshots
from evolvent.bench.measures import Evaluator, Measure
from evolvent.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    EvolventError,
    Incomplete,
    Locked,
    MissingExtra,
    SafetyError,
    boundary,
)
from evolvent.files import append_line
from evolvent.models.placement import Placement
from evolvent.models.snapshots import Snapshot, lease, newest_snapshot, read_run_state
from evolvent.store.lock import WriterLock
from evolvent.store.log import read_rows

if TYPE_CHECKING:
    from evolvent.engine.asks import Engine
    from evolvent.models.policy import Policy

__all__ = ["EVALUATIONS_FILE", "WatchCounts", "Watcher", "watch"]

_log = logging.getLogger(__name__)
EVALUATIONS_FILE = "evaluations.jsonl"
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """Counts of a watcher's work.

    Args:
        evaluated: Snapshots that were evaluated, failed evaluators included.
        skipped: Published snapshots that were skipped.
        broken: Snapshots that could not be read.
        failed: Evaluations that ended with an error.
    """

    evaluated: int = 0
    skipped: int = 0
    broken: int = 0
    failed: int = 0


class Watcher:
    """Evaluates the newest snapshot on request: calling `once` after every snapshot is the synchronous mode.

    Used in a `with` statement: one watcher a run at a time.

    Args:
        run: Folder of the run.
        evaluators: Evaluators, in order.
        placement: Where and how the model runs, and maximum tokens of a text.
        slots: Number of simultaneous texts.
        on_row: Called with every appended line.
        best: The metric by which the best snapshots are kept; None: none is kept.
    Raises:
        ConfigError: no such run, no evaluators, or two of one name. Locked: the run is watched already.
        CorruptRecord: earlier evaluations that cannot be read.
    """

    def __init__(
        self,
        run: Path,
        evaluators: Sequence[Evaluator],
        *,
        placement: Placement | None = None,
        slots: int = 64,
        on_row: Callable[[Row], None] = lambda row: None,
        best: BestConfig | None = None,
    ) -> None:
        names = [evaluator.name for evaluator in evaluators]
        if not names or len(set(names)) < len(names):
            raise ConfigError("evaluator names are not unique", value=names, expected="one or more different names")
        if not run.is_dir():
            raise ConfigError("run folder not found", value=str(run), expected="the folder of a run")
        self.run, self.did = run, WatchCounts()
        self._evaluators, self._on_row = tuple(evaluators), on_row
        self._placement, self._slots = placement or Placement(), slots
        self._best = BestSnapshots(run, best) if best is not None and best.metric else None
        self._engine: Engine | None = None
        self._seen: Snapshot | None = None
        self._began = time.monotonic()
        self._done: set[tuple[object, ...]] = {
            (row.get("snapshot"), row.get("step"), row.get("stage"), row.get("settings"))
            for row in read_rows(run / EVALUATIONS_FILE)
            if "measures" in row
        }
        try:
            self._lock = WriterLock(run / "evaluations.lock")
        except Locked as error:
            raise Locked(
                f"another process watches {run}, or a killed watcher left evaluations.lock behind",
                pid=error.pid,
                host=error.host,
            ) from error

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the run for other watchers; repeated calls have no effect."""
        self._lock.release()

    def evaluate_newest(self) -> bool:
        """Evaluates the newest snapshot, unless that was done; returns whether it was new.

        A snapshot that cannot be read, and an evaluator that fails, are noted and counted, and others go on.

        Raises:
            NoSpace, StoreUnavailable: a line cannot be written. MissingExtra: torch is not installed.
            ConfigError: the best snapshots are kept by a metric that no evaluator measures.
        """
        try:
            newest = newest_snapshot(self.run)
        except EvolventError as error:
            _log.warning("%s", error)  # the next snapshot writes the pointer anew
            return False
        if newest is None or newest == self._seen:
            return False
        previous, self._seen = self._seen, newest
        names: set[str] = set()
        try:
            with lease(self.run) as snapshot:
                self._seen = snapshot
                self._count(skipped=max(0, snapshot.serial - previous.serial - 1) if previous else 0)
                pending = [
                    evaluator for evaluator in self._evaluators if self._key(snapshot, evaluator) not in self._done
                ]
                if pending:
                    names = self._evaluate(snapshot, pending)
        except (CheckpointError, ConfigError, EngineError, SafetyError) as error:
            self._record_broken(self._seen, error)
        if self._best is not None and names:
            self._best.check_metric(names)
        return True

    def _evaluate(self, snapshot: Snapshot, evaluators: Sequence[Evaluator]) -> set[str]:
        """Evaluates a snapshot; returns the names of all metrics, or none where an evaluator failed or was left out."""
        names: set[str] = set()
        is_complete = len(evaluators) == len(self._evaluators)
        policy, engine = self._load(snapshot)
        for evaluator in evaluators:
            start_time = time.monotonic()
            outcome: dict[str, Any]
            measures: list[Measure] = []
            try:
                with boundary(EvolventError, f"the evaluator {evaluator.name!r} failed"):
                    measures = list(evaluator.measure(policy, engine))
                    outcome = {"measures": [asdict(measure) for measure in measures]}
            except MissingExtra:
                raise
            except EvolventError as error:
                _log.warning("%s at step %d: %s", evaluator.name, snapshot.step, error)
                outcome = {"error": _error_row(error)}
                is_complete = False
                self._count(failed=1)
            names |= {f"{evaluator.name}/{measure.metric}" for measure in measures}
            self._append(
                snapshot,
                evaluator.name,
                {
                    "settings": _digest(evaluator),
                    "seconds": round(time.monotonic() - start_time, 3),
                    **outcome,
                },
            )
            if "measures" in outcome:
                self._done.add(self._key(snapshot, evaluator))
                if self._best is not None:
                    self._best.consider(snapshot, evaluator.name, measures)
        self._count(evaluated=1)
        return names if is_complete else set()

    def _load(self, snapshot: Snapshot) -> tuple[Policy, Engine]:
        from evolvent.engine.fitting import engine_for
        from evolvent.models.policy import load_policy

        previous_engine, self._engine = self._engine, None  # one that fails to take the weights is not used again
        with boundary(Incomplete, "a snapshot that cannot be loaded", step=snapshot.step):
            placement = self._placement
            policy = load_policy(
                snapshot.path, context=placement.context, device=placement.device, dtype=placement.dtype
            )
            self._engine = engine_for(policy, slots=self._slots, engine=previous_engine)
        return policy, self._engine

    def _record_broken(self, snapshot: Snapshot, error: EvolventError) -> None:
        _log.warning("skipped the snapshot of step %d: %s", snapshot.step, error)
        self._count(broken=1)
        self._append(snapshot, "load", {"error": _error_row(error)})

    def _append(self, snapshot: Snapshot, stage: str, outcome: Row) -> None:
        row = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "time_s": round(time.monotonic() - self._began, 3),
            "cpu_s": round(time.process_time(), 3),
            "kind": "snapshot",
            "arm": "",
            "stage": stage,
            "step": snapshot.step,
            "snapshot": snapshot.path.name,
            **outcome,
        }
        append_line(self.run / EVALUATIONS_FILE, row)
        self._on_row(row)

    def _count(self, **more: int) -> None:
        self.did = replace(self.did, **{name: getattr(self.did, name) + count for name, count in more.items()})

    def _key(self, snapshot: Snapshot, evaluator: Evaluator) -> tuple[object, ...]:
        return snapshot.path.name, snapshot.step, evaluator.name, _digest(evaluator)


def watch(watcher: Watcher, *, poll_s: float = 2.0, idle_s: float | None = None) -> WatchCounts:
    """Runs a watcher on snapshots as they come, the newest first, until the run has ended.

    A killed run still counts as running: it may be resumed, and is waited for.

    Args:
        watcher: The watcher.
        poll_s: Seconds between looks at the pointer.
        idle_s: Maximum seconds without a new snapshot; None: unlimited.
    Raises:
        ConfigError: a pause that is not positive. Others: see `Watcher.evaluate_newest`.
    """
    if not poll_s > 0:
        raise ConfigError("poll_s out of range", value=poll_s, expected="more than 0 seconds")
    last_time = time.monotonic()
    while True:
        is_ended = read_run_state(watcher.run) not in (
            None,
            "running",
        )  # asked first: the last snapshot came before the end
        if watcher.evaluate_newest():
            last_time = time.monotonic()
        elif is_ended or (idle_s is not None and time.monotonic() - last_time > idle_s):
            return watcher.did
        else:
            time.sleep(poll_s)


def _error_row(error: EvolventError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": str(error)}


def _digest(evaluator: Evaluator) -> str:
    return hashlib.sha256(evaluator.settings.encode()).hexdigest()[:16]
