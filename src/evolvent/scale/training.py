"""One training from its parts to a model folder, over all its ranks: checkpoints, snapshots, monitor, and its end."""

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
from typing import Any, Literal

from pydantic import Field
from safetensors.torch import save_file

from evolvent.config import Config
from evolvent.errors import EvolventError
from evolvent.files import disk_errors, sync_folder
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.cost import Cost
from evolvent.learn.learner import FitReport, Learner, Metrics, TrainConfig
from evolvent.learn.monitor import monitored
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.token_sequences import Parts
from evolvent.models.exchange import write_hf
from evolvent.models.heads import ValueHead
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.stored import MARKER, open_checkpoint
from evolvent.models.tuned import FILES as ADAPTER_FILES
from evolvent.models.tuned import adapter_names, kind_of

__all__ = ["Keeping", "Reached", "Training", "reached", "train"]

_log = logging.getLogger(__name__)
_START = "adapter-start"
_HEAD = "value_head."  # how the names of a value head begin in a checkpoint
_LOOK_S = 0.5  # how often it is looked for a new checkpoint


class Keeping(Config):
    """What a training leaves on disk while it runs."""

    every: int = Field(default=200, ge=1, description="updates between checkpoints")
    last: int = Field(default=2, ge=1, description="how many checkpoints stay")
    best: Literal["", "loss"] = Field(
        default="", description="also the checkpoint with the least training loss: 'loss'"
    )
    snapshots: bool = Field(default=False, description="publish a model at every checkpoint, for watch and chat")


@dataclass(frozen=True)
class Training:
    """What is trained, on what, how, and where it is kept.

    Args:
        folder: of the run. All ranks share it: checkpoints lie in `checkpoints/`, the trained model in `model/`.
        policy, objective, parts, seed: the same in every rank.
        train, optimizer, parallelism, keeping: how.
    """

    folder: Path
    policy: Policy
    objective: Objective
    parts: Sequence[Parts]
    seed: int
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallelism: Parallelism = field(default_factory=Parallelism)
    keeping: Keeping = field(default_factory=Keeping)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the newest complete checkpoint of a run is: updates taken and targets learned, 0 where there is none."""

    update: int = 0
    tokens: int = 0


def reached(folder: Path) -> Reached:
    """Where a training in this folder of a run would go on.

    Raises:
        Incomplete: the newest checkpoint cannot be read.
    """
    done = sorted(path for path in (folder / "checkpoints").glob("update-*") if (path / MARKER).exists())
    if not done:
        return Reached()
    counts = open_checkpoint(done[-1]).values["counts"]
    return Reached(int(counts["updates"]), int(counts["tokens"]))


def train(
    job: Training,
    ranks: Ranks,
    *,
    log: Callable[[Mapping[str, Any]], None],
    on_update: Callable[[Metrics], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FitReport:
    """Train to the end, going on from the newest checkpoint in the folder, and write the model. All ranks call it.

    Args:
        log: takes rows about updates and their cost; called in the leading rank.
        on_update: called after every update, in every rank.
        should_stop: asked after every update; True in any rank saves a checkpoint and ends the training in all.
    Raises:
        ConfigError, TrainingError, CheckpointError: see `Learner`. StoreUnavailable, NoSpace: what cannot be written.
    """
    cost = Cost.of(job.policy.model)  # of the whole model, before it is laid over ranks
    exporter = _Exporter.of(job, leads=ranks.leads)
    learner = Learner(
        job.policy,
        job.objective,
        job.train,
        seed=job.seed,
        optimizer=job.optimizer,
        parallelism=job.parallelism,
        ranks=ranks,
    )
    monitor = monitored(learner, cost, job.parts)
    keeping = job.keeping
    checkpoints = Checkpointer(
        job.folder / "checkpoints",
        every=keeping.every,
        keep=keeping.last,
        ranks=ranks,
        best=("loss", "min") if keeping.best else None,
        timeout=max(1.0, job.parallelism.timeout),
    )
    with _Publisher(job, exporter, checkpoints, leads=ranks.leads) as publisher:

        def note(metrics: Metrics) -> None:
            if on_update is not None:
                on_update(metrics)
            if not ranks.leads:
                return
            log(metrics.as_row())
            row = monitor(metrics, waited=learner.waited)
            if row is not None:
                log(row)
            publisher.look()

        report = learner.fit(job.parts, checkpoint=checkpoints, on_update=note, should_stop=should_stop)
        checkpoints.wait()
        if report.finished:
            publisher.finish()
    return report


@dataclass(frozen=True)
class _Exporter:
    """Turns a checkpoint into a model folder, whatever layout wrote it.

    Args:
        start: of an adapter: a folder that it began as, with all that is not trained; the base below it may lie over
            ranks by now.
        names: of an adapter: its weights' names in the model -> in its file.
    """

    policy: Policy
    start: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Training, *, leads: bool) -> _Exporter:
        """Call it before the model is laid over ranks."""
        if kind_of(job.policy.model) is None:
            return cls(job.policy.advanced())
        start = job.folder / _START
        if leads and not start.exists():
            with _whole(start) as folder:
                job.policy.advanced().save(folder)
        return cls(job.policy, start, adapter_names(job.policy.model))

    def write(self, checkpoint: Path, folder: Path) -> None:
        """Fill an empty folder.

        Raises:
            Incomplete, HashMismatch: the checkpoint is damaged. NoSpace, StoreUnavailable: it cannot be written.
        """
        if self.start is None:
            write_hf(checkpoint, self.policy, folder)
            return
        stored = open_checkpoint(checkpoint)
        for file in stored.files_of(("model",)):
            if (fault := stored.fault(file)) is not None:
                raise fault
        index = stored.groups["model"]
        heads = {name: name.removeprefix(_HEAD) for name in index if name.startswith(_HEAD)}
        with disk_errors(folder):
            shutil.copytree(self.start, folder, dirs_exist_ok=True)
            for file, names in ((ADAPTER_FILES[1], self.names), (ValueHead.FILE, heads)):
                tensors = {told: index.whole(name) for name, told in names.items()}
                if tensors:
                    save_file(tensors, folder / file, {"format": "pt"})


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which appears under its name when it is."""
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
    """Turns checkpoints into models that others can use, on a thread of the leading rank; training does not wait."""

    def __init__(self, job: Training, exporter: _Exporter, checkpoints: Checkpointer, *, leads: bool) -> None:
        self._folder, self._exporter, self._checkpoints = job.folder, exporter, checkpoints
        self._leads, self._snapshots = leads, job.keeping.snapshots and leads
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._running: Future[None] | None = None
        self._seen: Path | None = checkpoints.newest()
        self._looked = 0.0

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)

    def look(self) -> None:
        """Publish the newest checkpoint, if there is one that was not published and none is being published."""
        if not self._snapshots or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        newest = self._checkpoints.newest()
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
        """Publish the last checkpoint, and write the trained model into `model/`."""
        folder, newest = self._folder / "model", self._checkpoints.newest()
        if not self._leads or newest is None or folder.exists():
            return
        if self._snapshots:
            self._pool.submit(self._publish, newest).result()
        with _whole(folder) as temporary:
            self._exporter.write(newest, temporary)
