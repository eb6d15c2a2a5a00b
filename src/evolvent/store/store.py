"""The trajectory database of a run: append, annotate, read, seal, recover.

    with Store.open(folder, writing=True) as store:
        store.append(trajectory)
    for trajectory in Store.open(folder).trajectories(filters={"success": True}):
        ...

A store is a folder: `log/seg-NNNNNN.jsonl` is written, `parquet/<table>/part-<hash>.parquet` are the sealed segments,
`manifest.jsonl` lists them. Reading is the same from the log, from Parquet, and from both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, Locked, SampleInvalid, StoreUnavailable
from evolvent.files import disk_errors
from evolvent.store.lock import WriterLock
from evolvent.store.log import DiskOperations, LogWriter, RecoveryReport, list_segments, log_folder, repair_log
from evolvent.store.schema import (
    INTERRUPTED,
    encode_annotation,
    encode_episode_end,
    encode_episode_start,
    encode_step,
    encode_trajectory,
)
from evolvent.trajectory import Annotation, Branch, EndedBy, JsonObject, Score, Step, Task, Trajectory, Value, unscored

if TYPE_CHECKING:
    import pyarrow as pa

    from evolvent.errors import ErrorRecord
    from evolvent.store.query import SealReport, Table

__all__ = ["Store"]

SEGMENT_BYTES = 32 << 20


class Store:
    """A trajectory database in a folder. Open it with `Store.open`; any number may read while one process writes."""

    def __init__(self, path: Path) -> None:
        """Opens a store for reading; use `Store.open` instead."""
        self.path = path
        self._lock: WriterLock | None = None
        self._log: LogWriter | None = None
        self._finished: dict[str, bool] = {}  # id -> whether it has an end of its own; interrupted ones may come again
        self._recovered = RecoveryReport(0, 0, 0)
        self._process = os.getpid()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        writing: bool = False,
        run: str | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        disk: DiskOperations | None = None,
    ) -> Store:
        """Opens the store in a folder.

        Args:
            writing: take the lock, recover the log of an earlier writer, and allow appending.
            run: name of the run in its records; by default the name of the folder that holds the store's.
            segment_bytes: size at which a segment of the log ends.
            disk: system calls of the log (to simulate failures).
        Raises:
            StoreUnavailable: nothing there to read, or a folder that cannot be used.
            Locked: another process writes it.
            CorruptRecord, UnknownSchema: found while recovering.
        """
        store = cls(Path(path))
        if writing:
            store._begin_writing(run, segment_bytes, disk or DiskOperations())
        elif not store.path.is_dir():
            raise StoreUnavailable(f"{path} is not a store", hint="check the folder, or open it with writing=True")
        return store

    def _begin_writing(self, run: str | None, segment_bytes: int, disk: DiskOperations) -> None:
        with disk_errors(self.path):
            log_folder(self.path).mkdir(parents=True, exist_ok=True)
        self._lock = WriterLock(self.path / "writer.lock")
        is_ready = False
        try:
            self._recovered = self._recover()
            name = run if run is not None else self.path.resolve().parent.name
            first = self._next_segment()
            self._log = LogWriter(self.path, first=first, run=name, segment_bytes=segment_bytes, disk=disk)
            is_ready = True
        finally:
            if not is_ready:
                self._lock.release()

    def _next_segment(self) -> int:
        from evolvent.store.query import read_seal_manifest

        return max([0, *list_segments(self.path), *read_seal_manifest(self.path)]) + 1

    def close(self) -> None:
        """Waits until all data is on disk and releases the lock; calling it twice is harmless."""
        log, self._log = self._log, None
        lock, self._lock = self._lock, None
        if lock is not None and os.getpid() == self._process:
            try:
                if log is not None:
                    log.close()
            finally:
                lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ writing

    def _require_writer(self) -> LogWriter:
        if self._log is None:
            raise StoreUnavailable(f"{self.path} is not open for writing", hint="use Store.open(path, writing=True)")
        if os.getpid() != self._process:
            raise Locked("this store was opened before a fork", pid=self._process, host="this host")
        return self._log

    def _check_new_id(self, log: LogWriter, trajectory_id: str) -> None:
        """Refuses an id that is taken; an interrupted episode may be repeated."""
        if not trajectory_id or not trajectory_id.isprintable():
            raise SampleInvalid(
                "trajectory id is empty or not printable", value=repr(trajectory_id), expected="printable text"
            )
        if self._finished.get(trajectory_id) or trajectory_id in log.open:
            raise SampleInvalid(
                f"{self.path} already has a trajectory with this id", value=trajectory_id, expected="a new id"
            )

    def has_finished(self, trajectory_id: str) -> bool:
        """Returns whether this writing store holds an episode of this id with an end of its own."""
        return self._finished.get(trajectory_id, False)

    def append(self, trajectory: Trajectory) -> None:
        """Appends a whole episode.

        Raises:
            SampleInvalid: its id is taken, or it holds NaN or values that are not JSON; nothing is written.
            NoSpace, StoreUnavailable: all episodes appended before stay readable.
        """
        log = self._require_writer()
        self._check_new_id(log, trajectory.id)
        log.append_episode(trajectory.id, encode_trajectory(trajectory))
        self._finished[trajectory.id] = trajectory.error is None or trajectory.error.kind != INTERRUPTED
        log.sync_if_due()

    def begin(
        self,
        trajectory_id: str,
        task: Task,
        *,
        sample: int = 0,
        branch: Branch | None = None,
        group: str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> None:
        """Starts to stream an episode. If its process ends before the episode, it reads as interrupted, with its
        steps.
        """
        log = self._require_writer()
        self._check_new_id(log, trajectory_id)
        log.begin(trajectory_id, encode_episode_start(task, sample=sample, branch=branch, group=group, meta=meta or {}))

    def step(self, trajectory_id: str, step: Step) -> None:
        """Appends the next step of an episode that has begun."""
        self._require_open(trajectory_id).step(trajectory_id, encode_step(step))

    def end(
        self,
        trajectory_id: str,
        *,
        final_observation: Value = "",
        ended_by: EndedBy = "world",
        score: Score | None = None,
        error: ErrorRecord | None = None,
        meta: JsonObject | None = None,
    ) -> None:
        """Ends an episode that has begun; `meta` is added to that of its beginning."""
        if (error is not None) != (ended_by == "error"):
            raise SampleInvalid("ended_by and error of an episode contradict each other", value=(ended_by, error))
        log = self._require_open(trajectory_id)
        fields = encode_episode_end(final_observation, ended_by=ended_by, score=score or unscored(), error=error)
        log.end(trajectory_id, {**fields, **({"meta": dict(meta)} if meta else {})})
        self._finished[trajectory_id] = error is None or error.kind != INTERRUPTED
        log.sync_if_due()

    def _require_open(self, trajectory_id: str) -> LogWriter:
        log = self._require_writer()
        if trajectory_id not in log.open:
            raise SampleInvalid("unknown episode id", value=trajectory_id, expected="an id that begin() received")
        return log

    def annotate(self, annotation: Annotation) -> None:
        """Appends an annotation of a trajectory of this store; records are never rewritten.

        Raises:
            SampleInvalid: no such trajectory, or NaN.
        """
        log = self._require_writer()
        if annotation.trajectory not in self._finished and annotation.trajectory not in log.open:
            raise SampleInvalid(
                "annotation of an unknown trajectory",
                value=annotation.trajectory,
                expected=f"a trajectory id of {self.path}",
            )
        log.annotate(annotation.trajectory, encode_annotation(annotation))
        log.sync_if_due()

    def flush(self) -> None:
        """Waits until all data appended so far is on disk (it is within 200 ms while appends go on)."""
        self._require_writer().flush()

    # ------------------------------------------------------------------ reading

    def trajectories(self, *, filters: JsonObject | None = None, prefix: str = "") -> Iterator[Trajectory]:
        """Yields the trajectories in the order of their appending, interrupted ones last, in constant memory.

        Args:
            filters: column -> value, or a list of accepted values: {"world": "lookup", "tier": ["evo", "combo"]}.
            prefix: start of their ids.
        Raises:
            ConfigError: for an unknown column.
            CorruptRecord, UnknownSchema: naming the file and the byte.
        """
        from evolvent.store.query import find_trajectories

        return (stored.load() for stored in find_trajectories(self.path, filters=filters, prefix=prefix))

    def ids(self, *, filters: JsonObject | None = None, prefix: str = "") -> Iterator[str]:
        """Yields the ids of `trajectories`, in the same order."""
        from evolvent.store.query import find_trajectories

        return (stored.id for stored in find_trajectories(self.path, filters=filters, prefix=prefix, ids_only=True))

    def get(self, trajectory_id: str, *, with_parent_steps: bool = False) -> Trajectory:
        """Returns the trajectory of an id.

        Args:
            with_parent_steps: a branch holds its own steps only; put its parent's steps before them, up to the
                branching step (which counts the parent's steps as joined).
        Raises:
            SampleInvalid: no trajectory has this id.
        """
        trajectory = next(self.trajectories(filters={"traj": trajectory_id}, prefix=trajectory_id), None)
        if trajectory is None:
            raise SampleInvalid(f"{self.path} does not hold a trajectory with this id", value=trajectory_id)
        if not with_parent_steps or trajectory.branch is None:
            return trajectory
        chain: list[Trajectory] = [trajectory]
        while (branch := chain[-1].branch) is not None:
            if any(branch.parent == child.id for child in chain):
                raise SampleInvalid("branches form a cycle", value=[child.id for child in chain])
            chain.append(self.get(branch.parent))
        steps: tuple[Step, ...] = ()
        for member, child in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
            steps += member.steps
            if child is not None and child.branch is not None:
                steps = steps[: child.branch.step]
        return replace(trajectory, steps=steps)

    def annotations(self, *, trajectory: str | None = None, scorer: str | None = None) -> Iterator[Annotation]:
        """Yields the annotations, of one trajectory or of one scorer if given."""
        from evolvent.store.query import find_annotations

        return find_annotations(self.path, trajectory=trajectory, scorer=scorer)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filters: Mapping[str, object] | None = None,
        table: Table = "trajectories",
    ) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches of the table of trajectories or of steps, for queries over few columns."""
        from evolvent.store.query import scan

        return scan(self.path, columns=columns, filters=filters, table=table)

    # ------------------------------------------------------------------ upkeep

    def recover(self) -> RecoveryReport:
        """Restores the store after a kill; a store open for writing did so when it was opened.

        Raises:
            Locked: another process writes it.
            CorruptRecord: damage that is not the torn end of a killed writer; nothing is dropped then.
        """
        if self._log is not None:
            return self._recovered
        lock = WriterLock(self.path / "writer.lock")
        try:
            return self._recover()
        finally:
            lock.release()

    def _recover(self) -> RecoveryReport:
        from evolvent.store.query import find_trajectories, read_seal_manifest

        dropped_bytes = repair_log(self.path, sealed=set(read_seal_manifest(self.path)))
        self._finished = {stored.id: not stored.interrupted for stored in find_trajectories(self.path, ids_only=True)}
        num_finished = sum(self._finished.values())
        return RecoveryReport(num_finished, dropped_bytes, len(self._finished) - num_finished)

    def seal(self, *, older_than: int = 0) -> SealReport:
        """Converts the log to Parquet; a writing store goes on in a new segment.

        Args:
            older_than: only segments last written at least this number of seconds ago.
        Raises:
            Locked: another process writes the store.
            NoSpace, StoreUnavailable, CorruptRecord: segments that are not sealed stay in the log.
        """
        from evolvent.store.query import seal_segments

        if older_than < 0:
            raise ConfigError("older_than out of range", value=older_than, expected="0 or more seconds")
        if self._log is not None:
            log = self._require_writer()
            log.rotate()
            return seal_segments(self.path, before=log.number, older_than=older_than)
        lock = WriterLock(self.path / "writer.lock")
        try:
            self._recover()
            return seal_segments(self.path, before=self._next_segment(), older_than=older_than)
        finally:
            lock.release()
