"""One training from its parts to a model folder, over all its ranks: checkpoints, snapshots, monitor, and its end."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.errors import EvolventError
from evolvent.files import disk_errors
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import FitReport, Learner, Metrics, TrainConfig
from evolvent.learn.monitor import Cost, monitored
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.parts import Parts
from evolvent.models.exchange import export_hf, write_hf
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.stored import open_checkpoint
from evolvent.models.tuned import FILES as ADAPTER_FILES
from evolvent.models.tuned import adapter_names, kind_of

__all__ = ["Keeping", "Training", "train"]

_log = logging.getLogger(__name__)
_START = "adapter-start"


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


def train(
    job: Training,
    ranks: Ranks,
    *,
    log: Callable[[Mapping[str, Any]], None],
    should_stop: Callable[[], bool] | None = None,
) -> FitReport:
    """Train to the end, going on from the newest checkpoint in the folder, and write the model. All ranks call it.

    Args:
        log: takes rows about updates and their cost; called in the leading rank.
        should_stop: asked after every update; True in any rank saves a checkpoint and ends the training in all.
    Raises:
        ConfigError, TrainingError, CheckpointError: see `Learner`. StoreUnavailable, NoSpace: what cannot be written.
    """
    cost = Cost.of(job.policy.model)  # of the whole model, before it is laid over ranks
    names = adapter_names(job.policy.model) if kind_of(job.policy.model) is not None else None
    if names is not None and ranks.leads and not (job.folder / _START).exists():
        with disk_errors(job.folder):
            job.policy.advanced().save(job.folder / _START)
    learner = Learner(
        job.policy, job.objective, job.train, seed=job.seed, optimizer=job.optimizer, parallelism=job.parallelism,
        ranks=ranks,
    )  # fmt: skip
    monitor = monitored(learner, cost, job.parts)
    keeping = job.keeping
    checkpoints = Checkpointer(
        job.folder / "checkpoints", every=keeping.every, keep=keeping.last, ranks=ranks,
        best=("loss", "min") if keeping.best else None,
    )  # fmt: skip
    with _Publisher(job, learner, checkpoints, names=names) as publisher:

        def note(metrics: Metrics) -> None:
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


class _Publisher:
    """Turns checkpoints into models that others can use, on a thread of the leading rank; training does not wait."""

    def __init__(
        self, job: Training, learner: Learner, checkpoints: Checkpointer, *, names: Mapping[str, str] | None
    ) -> None:
        self._job, self._learner, self._checkpoints = job, learner, checkpoints
        self._leads = learner.ranks.leads
        self._names = names
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
        if not (self._job.keeping.snapshots and self._leads) or time.monotonic() - self._looked < 0.5:
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
            publish_snapshot(self._job.folder, step, lambda folder: self._write(checkpoint, folder))
        except EvolventError as error:  # the checkpoint may be gone by now; the next one comes
            _log.warning("no snapshot of update %d: %s", step, error)

    def _write(self, checkpoint: Path, folder: Path) -> None:
        if self._names is None:
            write_hf(checkpoint, self._learner.policy.advanced(), folder)
        else:
            self._write_adapter(checkpoint, folder)

    def _write_adapter(self, checkpoint: Path, folder: Path) -> None:
        """The folder that the adapter began as, with the trained weights: the base below may be on other ranks."""
        from safetensors.torch import save_file

        index = open_checkpoint(checkpoint).groups["model"]
        shutil.copytree(self._job.folder / _START, folder, dirs_exist_ok=True)
        names = self._names or {}
        save_file({names[name]: index.whole(name) for name in index}, folder / ADAPTER_FILES[1], {"format": "pt"})

    def finish(self) -> None:
        """Write the trained model into `model/`."""
        folder, newest = self._job.folder / "model", self._checkpoints.newest()
        if not self._leads or newest is None:
            return
        if self._job.keeping.snapshots:
            self._pool.submit(self._publish, newest).result()
        if self._names is not None:
            with disk_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                self._write_adapter(newest, folder)
        elif not folder.exists():
            export_hf(newest, self._learner.policy.advanced(), folder)
