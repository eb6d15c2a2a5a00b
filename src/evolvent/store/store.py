"""The trajectory database of a run: append, annotate, read, seal, recover.

    with Store.open(folder, writing=True) as store:
        store.append(trajectory)
    for trajectory in Store.open(folder).trajectories(where={"success": True}):
        ...

A store is a folder: `log/seg-NNNNNN.jsonl` is written, `parquet/<table>/part-<hash>.parquet` is what sealed segments
became, `manifest.jsonl` says which are sealed. Reading is the same from the log, from Parquet, and from both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, Locked, SampleInvalid, StoreUnavailable
from evolvent.files import disk_errors
from evolvent.store.lock import WriterLock
from evolvent.store.log import Disk, LogWriter, log_folder, segments
from evolvent.store.recover import Recovered, tidy
from evolvent.store.schema import INTERRUPTED, begin_fields, encode, encode_annotation, encode_step, end_fields
from evolvent.trajectory import Annotation, Branch, EndedBy, Score, Step, Task, Trajectory, Value, unscored

if TYPE_CHECKING:
    import pyarrow as pa

    from evolvent.errors import ErrorRecord
    from evolvent.store.scan import Table
    from evolvent.store.seal import SealReport

__all__ = ["Store"]

SEGMENT_BYTES = 32 << 20


class Store:
    """See the module. Open one with `Store.open`; any number may read while one writes."""

    def __init__(self, path: Path) -> None:
        """A store for reading; `Store.open` is the way to get one."""
        self.path = path
        self._lock: WriterLock | None = None
        self._log: LogWriter | None = None
        self._finished: dict[str, bool] = {}  # id -> whether it has an end of its own; interrupted ones may come again
        self._recovered = Recovered(0, 0, 0)
        self._process = os.getpid()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        writing: bool = False,
        run: str | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
    ) -> Store:
        """Open the store in a folder.

        Args:
            writing: take the lock, recover what an earlier writer left, and be able to append.
            run: the name of the run in its records; by default that of the folder that holds the store's.
            segment_bytes: size at which a segment of the log ends.
            disk: what the log asks of the system (to simulate failures).
        Raises:
            StoreUnavailable: nothing there to read, or a folder that cannot be used.
            Locked: another process writes it.
            CorruptRecord, UnknownSchema: found while recovering.
        """
        store = cls(Path(path))
        if writing:
            store._begin_writing(run, segment_bytes, disk or Disk())
        elif not store.path.is_dir():
            raise StoreUnavailable(f"{path} is no store", hint="check the folder, or open it with writing=True")
        return store

    def _begin_writing(self, run: str | None, segment_bytes: int, disk: Disk) -> None:
        with disk_errors(self.path):
            log_folder(self.path).mkdir(parents=True, exist_ok=True)
        self._lock = WriterLock(self.path / "writer.lock")
        ready = False
        try:
            self._recovered = self._recover()
            name = run if run is not None else self.path.resolve().parent.name
            first = self._next_segment()
            self._log = LogWriter(self.path, first=first, run=name, segment_bytes=segment_bytes, disk=disk)
            ready = True
        finally:
            if not ready:
                self._lock.release()

    def _next_segment(self) -> int:
        from evolvent.store.seal import manifest

        return max([0, *segments(self.path), *manifest(self.path)]) + 1

    def close(self) -> None:
        """Wait until everything is on disk and give the lock back; calling it twice is harmless."""
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

    def _writer(self) -> LogWriter:
        if self._log is None:
            raise StoreUnavailable(f"{self.path} is not open for writing", hint="use Store.open(path, writing=True)")
        if os.getpid() != self._process:
            raise Locked("this store was opened before a fork", pid=self._process, host="this host")
        return self._log

    def _fresh(self, log: LogWriter, traj: str) -> None:
        """Refuse an id that is taken; an interrupted episode may be done again."""
        if not traj or not traj.isprintable():
            raise SampleInvalid("an id that is empty or not printable", value=repr(traj), expected="printable text")
        if self._finished.get(traj) or traj in log.open:
            raise SampleInvalid(f"{self.path} already has a trajectory of this id", value=traj, expected="a new id")

    def append(self, trajectory: Trajectory) -> None:
        """Append a whole episode.

        Raises:
            SampleInvalid: its id is taken, or it holds NaN or values that are not JSON; nothing is written.
            NoSpace, StoreUnavailable: everything appended before stays readable.
        """
        log = self._writer()
        self._fresh(log, trajectory.id)
        log.whole(trajectory.id, encode(trajectory))
        self._finished[trajectory.id] = trajectory.error is None or trajectory.error.kind != INTERRUPTED
        log.settle()

    def begin(
        self,
        traj: str,
        task: Task,
        *,
        sample: int = 0,
        branch: Branch | None = None,
        group: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to stream an episode. If its process ends before it does, it reads as interrupted, with its steps."""
        log = self._writer()
        self._fresh(log, traj)
        log.begin(traj, begin_fields(task, sample=sample, branch=branch, group=group, meta=meta or {}))

    def step(self, traj: str, step: Step) -> None:
        """The next step of an episode that has begun."""
        self._begun(traj).step(traj, encode_step(step))

    def end(
        self,
        traj: str,
        *,
        final_observation: Value = "",
        ended_by: EndedBy = "world",
        score: Score | None = None,
        error: ErrorRecord | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """The end of an episode that has begun; `meta` is added to that of its beginning."""
        if (error is not None) != (ended_by == "error"):
            raise SampleInvalid("an episode has an error exactly where it ended by one", value=(ended_by, error))
        log = self._begun(traj)
        fields = end_fields(final_observation, ended_by=ended_by, score=score or unscored(), error=error)
        log.end(traj, {**fields, **({"meta": dict(meta)} if meta else {})})
        self._finished[traj] = error is None or error.kind != INTERRUPTED
        log.settle()

    def _begun(self, traj: str) -> LogWriter:
        log = self._writer()
        if traj not in log.open:
            raise SampleInvalid("no episode of this id has begun here", value=traj, expected="begin() first")
        return log

    def annotate(self, annotation: Annotation) -> None:
        """Append something learned about a trajectory of this store; records are never rewritten.

        Raises:
            SampleInvalid: no such trajectory, or NaN.
        """
        log = self._writer()
        if annotation.trajectory not in self._finished and annotation.trajectory not in log.open:
            raise SampleInvalid(
                "an annotation of a trajectory that is not here",
                value=annotation.trajectory,
                expected=f"an id of {self.path}",
            )
        log.annotate(annotation.trajectory, encode_annotation(annotation))
        log.settle()

    def flush(self) -> None:
        """Wait until everything appended so far is on disk (it is within 200 ms while appends go on)."""
        self._writer().flush()

    # ------------------------------------------------------------------ reading

    def trajectories(self, *, where: Mapping[str, Any] | None = None, prefix: str = "") -> Iterator[Trajectory]:
        """The trajectories in the order of their appending, interrupted ones last, in constant memory.

        Args:
            where: column -> value, or values of which one must fit: {"world": "lookup", "tier": ["evo", "combo"]}.
            prefix: how their ids begin.
        Raises:
            ConfigError: for an unknown column.
            CorruptRecord, UnknownSchema: naming the file and the byte.
        """
        from evolvent.store.query import find

        return (found.read() for found in find(self.path, where=where, prefix=prefix))

    def ids(self, *, where: Mapping[str, Any] | None = None, prefix: str = "") -> Iterator[str]:
        """The ids of `trajectories`, in the same order."""
        from evolvent.store.query import find

        return (found.id for found in find(self.path, where=where, prefix=prefix, ids_only=True))

    def get(self, traj: str, *, joined: bool = False) -> Trajectory:
        """The trajectory of an id.

        Args:
            joined: a branch holds its own steps only; put its parent's steps before them, up to the branching step
                (which counts the parent's steps as joined).
        Raises:
            SampleInvalid: where there is none.
        """
        found = next(self.trajectories(where={"traj": traj}, prefix=traj), None)
        if found is None:
            raise SampleInvalid(f"{self.path} has no trajectory of this id", value=traj)
        if not joined or found.branch is None:
            return found
        chain: list[Trajectory] = [found]
        while (branch := chain[-1].branch) is not None:
            if any(branch.parent == child.id for child in chain):
                raise SampleInvalid("branches that go round in a circle", value=[child.id for child in chain])
            chain.append(self.get(branch.parent))
        steps: tuple[Step, ...] = ()
        for member, child in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
            steps += member.steps
            if child is not None and child.branch is not None:
                steps = steps[: child.branch.step]
        return replace(found, steps=steps)

    def annotations(self, *, trajectory: str | None = None, scorer: str | None = None) -> Iterator[Annotation]:
        """The annotations, of one trajectory or of one scorer if given."""
        from evolvent.store.query import find_annotations

        return find_annotations(self.path, trajectory=trajectory, scorer=scorer)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
        table: Table = "trajectories",
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the table of trajectories or of steps, for queries over few columns."""
        from evolvent.store.scan import scan

        return scan(self.path, columns=columns, where=where, table=table)

    # ------------------------------------------------------------------ upkeep

    def recover(self) -> Recovered:
        """Put the store in order after a kill; a store open for writing did so when it was opened.

        Raises:
            Locked: somebody writes it.
            CorruptRecord: damage that is not the torn end of a killed writer; nothing is dropped then.
        """
        if self._log is not None:
            return self._recovered
        lock = WriterLock(self.path / "writer.lock")
        try:
            return self._recover()
        finally:
            lock.release()

    def _recover(self) -> Recovered:
        from evolvent.store.query import find
        from evolvent.store.seal import manifest

        dropped = tidy(self.path, sealed=set(manifest(self.path)))
        self._finished = {found.id: not found.interrupted for found in find(self.path, ids_only=True)}
        kept = sum(self._finished.values())
        return Recovered(kept, dropped, len(self._finished) - kept)

    def seal(self, *, older_than: int = 0) -> SealReport:
        """Turn the log into Parquet; a writing store goes on in a new segment.

        Args:
            older_than: only segments last written at least so many seconds ago.
        Raises:
            Locked: another process writes the store.
            NoSpace, StoreUnavailable, CorruptRecord: what is not sealed stays in the log.
        """
        from evolvent.store.seal import seal

        if older_than < 0:
            raise ConfigError("older_than is a number of seconds", value=older_than, expected="0 or more")
        if self._log is not None:
            log = self._writer()
            log.rotate()
            return seal(self.path, before=log.number, older_than=older_than)
        lock = WriterLock(self.path / "writer.lock")
        try:
            self._recover()
            return seal(self.path, before=self._next_segment(), older_than=older_than)
        finally:
            lock.release()
