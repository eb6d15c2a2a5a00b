"""A training from its token sequences to a model folder, over all ranks: checkpoints, snapshots, monitor, and its
end.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save_file

from evolvent.errors import EvolventError
from evolvent.files import disk_errors, sync_folder
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.cost import Cost
from evolvent.learn.learner import FitReport, Learner, UpdateMetrics
from evolvent.learn.monitor import build_monitor
from evolvent.learn.objectives import Objective
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.settings import CheckpointConfig, OptimizerConfig, Parallelism, TrainConfig
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.tokens import TokenFile
from evolvent.models.exchange import write_hf
from evolvent.models.heads import ValueHead
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.tuned import FILES as ADAPTER_FILES
from evolvent.models.tuned import adapter_names, kind_of
from evolvent.models.writing import MARKER, open_checkpoint

__all__ = ["CheckpointConfig", "TrainingJob", "TrainingProgress", "read_progress", "run_training"]

_log = logging.getLogger(__name__)
_START = "adapter-start"
_HEAD = "value_head."  # how the names of a value head begin in a checkpoint
_POLL_S = 0.5  # how often it is looked for a new checkpoint


@dataclass(frozen=True)
class TrainingJob:
    """A training: model, data, settings and folder.

    Args:
        folder: Folder of the run, shared by all ranks: checkpoints are in `checkpoints/`, the trained model in
            `model/`.
        policy, objective, sequences, seed: The same in every rank.
        train, optimizer, parallelism, checkpoints: Settings.
    """

    folder: Path
    policy: Policy
    objective: Objective
    sequences: Sequence[TokenSequence]
    seed: int
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallelism: Parallelism = field(default_factory=Parallelism)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of the newest complete checkpoint of a run: updates and learned targets, 0 where there is none."""

    update: int = 0
    tokens: int = 0


def read_progress(folder: Path) -> TrainingProgress:
    """Reads the progress from which a training in this folder of a run would resume.

    Raises:
        Incomplete: the newest checkpoint cannot be read.
    """
    complete = sorted(path for path in (folder / "checkpoints").glob("update-*") if (path / MARKER).exists())
    if not complete:
        return TrainingProgress()
    counts = open_checkpoint(complete[-1]).values["counts"]
    return TrainingProgress(int(counts["updates"]), int(counts["tokens"]))


def run_training(
    job: TrainingJob,
    ranks: Ranks,
    *,
    log: Callable[[Mapping[str, object]], None],
    on_update: Callable[[UpdateMetrics], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FitReport:
    """Trains to the end, resuming from the newest checkpoint in the folder, and writes the model. All ranks call it.

    Args:
        log: takes rows about updates and their cost; called in the leading rank.
        on_update: called after every update, in every rank.
        should_stop: asked after every update; True in any rank saves a checkpoint and ends the training in all.
    Raises:
        ConfigError, TrainingError, CheckpointError: see `Learner`. StoreUnavailable, NoSpace: what cannot be written.
    """
    cost = Cost.from_model(job.policy.model)  # of the whole model, before it is laid over ranks
    exporter = _Exporter.for_job(job, leads=ranks.is_leader)
    learner = Learner(
        job.policy,
        job.objective,
        job.train,
        seed=job.seed,
        optimizer=job.optimizer,
        parallelism=job.parallelism,
        ranks=ranks,
    )
    monitor = build_monitor(
        learner,
        cost,
        job.sequences,
        dataset_tokens=job.sequences.targets if isinstance(job.sequences, TokenFile) else 0,
        learned_tokens=read_progress(job.folder).tokens,
    )
    keeping = job.checkpoints
    checkpoints = Checkpointer(
        job.folder / "checkpoints",
        every=keeping.every,
        keep=keeping.last,
        ranks=ranks,
        best=("loss", "min") if keeping.best else None,
        timeout=max(1.0, job.parallelism.timeout),
    )
    with _Publisher(job, exporter, checkpoints, leads=ranks.is_leader) as publisher:

        def note(metrics: UpdateMetrics) -> None:
            if on_update is not None:
                on_update(metrics)
            if not ranks.is_leader:
                return
            log(metrics.as_row())
            row = monitor(metrics, waited=learner.waited)
            if row is not None:
                log(row)
            publisher.publish_newest()

        report = learner.fit(job.sequences, checkpoint=checkpoints, on_update=note, should_stop=should_stop)
        checkpoints.wait()
        if report.finished:
            publisher.finish()
    return report


@dataclass(frozen=True)
class _Exporter:
    """Converts a checkpoint to a model folder, whatever layout wrote it.

    Args:
        policy: The policy.
        start: Of an adapter: a folder with its initial state, including everything that is not trained; the base
            may be distributed over ranks by now.
        names: Of an adapter: names of its weights in the model -> in its file.
    """

    policy: Policy
    start: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def for_job(cls, job: TrainingJob, *, leads: bool) -> _Exporter:
        """Creates an exporter; must be called before the model is distributed over ranks."""
        if kind_of(job.policy.model) is None:
            return cls(job.policy.next_version())
        start = job.folder / _START
        if leads and not start.exists():
            with _atomic_folder(start) as folder:
                job.policy.next_version().save(folder)
        return cls(job.policy, start, adapter_names(job.policy.model))

    def write(self, checkpoint: Path, folder: Path) -> None:
        """Fills an empty folder.

        Raises:
            Incomplete, HashMismatch: the checkpoint is damaged. NoSpace, StoreUnavailable: it cannot be written.
        """
        if self.start is None:
            write_hf(checkpoint, self.policy, folder)
            return
        stored = open_checkpoint(checkpoint)
        for file in stored.group_files(("model",)):
            if (fault := stored.find_fault(file)) is not None:
                raise fault
        index = stored.groups["model"]
        heads = {name: name.removeprefix(_HEAD) for name in index if name.startswith(_HEAD)}
        with disk_errors(folder):
            shutil.copytree(self.start, folder, dirs_exist_ok=True)
            for file, names in ((ADAPTER_FILES[1], self.names), (ValueHead.FILE, heads)):
                tensors = {file_name: index.whole(name) for name, file_name in names.items()}
                if tensors:
                    save_file(tensors, folder / file, {"format": "pt"})


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder to fill, which appears under its final name when it is complete."""
    temporary = folder.with_name(f".writing-{folder.name}")
    with disk_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in [path for path in temporary.rglob("*") if path.is_file()]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        temporary.rename(folder)


class _Publisher:
    """Converts checkpoints to models that others can use, on a thread of the leading rank; training does not wait."""

    def __init__(self, job: TrainingJob, exporter: _Exporter, checkpoints: Checkpointer, *, leads: bool) -> None:
        self._folder, self._exporter, self._checkpoints = job.folder, exporter, checkpoints
        self._leads, self._snapshots = leads, job.checkpoints.snapshots and leads
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._running: Future[None] | None = None
        self._seen: Path | None = checkpoints.find_newest()
        self._looked = 0.0

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def publish_newest(self) -> None:
        """Starts publishing the newest checkpoint, unless it was published already or another is being published."""
        if not self._snapshots or time.monotonic() - self._looked < _POLL_S:
            return
        self._looked = time.monotonic()
        newest = self._checkpoints.find_newest()
        if newest == self._seen or (self._running is not None and not self._running.done()):
            return
        self._seen = newest
        if newest is not None:
            self._running = self._pool.submit(self._publish, newest)

    def _publish(self, checkpoint: Path) -> None:
        step = int(checkpoint.name.removeprefix("update-"))
        try:
            publish_snapshot(self._folder, step, lambda folder: self._exporter.write(checkpoint, folder))
        except EvolventError as error:  # the checkpoint may be gone by now; the next one comes
            _log.warning("no snapshot of update %d: %s", step, error)

    def finish(self) -> None:
        """Writes the last checkpoint as a snapshot, and the trained model to `model/`."""
        folder, newest = self._folder / "model", self._checkpoints.find_newest()
        if not self._leads or newest is None or folder.exists():
            return
        if self._snapshots:
            self._pool.submit(self._publish, newest).result()
        with _atomic_folder(folder) as temporary:
            self._exporter.write(newest, temporary)
