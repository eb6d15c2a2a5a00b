"""Checkpoints: a folder of safetensors and JSON that is either complete or absent, written by all ranks at once.

Each rank writes the parts that it owns, once, and the marker `COMPLETE` comes last (`models/writing.py`).
Whatever happens on the way, the previous checkpoint stays the newest complete one. Any layout reads the
checkpoints of any other (`models/pieces.py`). Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from evolvent.errors import (
    CheckpointError,
    ConfigError,
    HashMismatch,
    Problem,
    RankFailed,
    ShapeMismatch,
    StateMissing,
)
from evolvent.files import disk_errors
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Ranks
from evolvent.models.pieces import fill_all, is_dtensor, local_tensor, region_of
from evolvent.models.writing import MARKER, STATE, SaveJob, StoredCheckpoint, TensorPart, is_live, open_checkpoint
from evolvent.trajectory import JsonObject

__all__ = ["CheckpointContent", "Checkpointer", "SaveHandle", "check_tensors", "owned_parts"]

_TEMPORARY_PREFIX, _STEP_PREFIX = ".writing-", "update-"
_WEIGHTS_ONLY_HINT = (
    "use the model it was made with, or take its weights alone: load(groups=('model',)), in a new folder"
)

Best = tuple[str, Literal["min", "max"]]
Groups = Mapping[str, Mapping[str, Tensor]]


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The content of a checkpoint: named groups of tensors (`model`, `optimizer`, ...), and JSON values.

    Names are those of the whole model on every layout. A sharded tensor is a DTensor; a rank brings what it has.
    """

    tensors: Groups
    values: JsonObject = field(default_factory=dict)


def check_tensors(
    stored: Mapping[str, _Shaped],
    expected: Mapping[str, _Shaped],
    *,
    group_name: str,
    missing_error: type[CheckpointError],
    complete: bool = True,
) -> None:
    """Checks names and shapes before anything is copied.

    Args:
        stored: tensors of the checkpoint.
        expected: tensors of the model.
        group_name: the group, for messages.
        missing_error: raised for a missing tensor.
        complete: whether `expected` holds all tensors that may be there.
    Raises:
        missing_error: a tensor is missing; the message names it.
        ShapeMismatch: a tensor has another shape, or is not expected.
    """
    for name, tensor in expected.items():
        if name not in stored:
            raise missing_error(
                f"the checkpoint's {group_name} has no tensor {name!r}",
                value=f"{len(stored)} tensors",
                expected=tuple(tensor.shape),
                hint=_WEIGHTS_ONLY_HINT,
            )
        if tuple(stored[name].shape) != tuple(tensor.shape):
            raise ShapeMismatch(
                f"shape of tensor {name!r} in the checkpoint's {group_name} differs from the model's",
                value=tuple(stored[name].shape),
                expected=tuple(tensor.shape),
                hint=_WEIGHTS_ONLY_HINT,
            )
    extra = sorted(set(stored) - set(expected)) if complete else []
    if extra:
        raise ShapeMismatch(
            f"the checkpoint's {group_name} has tensors that the model does not have",
            value=extra[:5],
            hint=_WEIGHTS_ONLY_HINT,
        )


class SaveHandle:
    """A checkpoint that is being written, or was.

    Attributes:
        path: its folder when it is complete.
        told: whether `wait` was called, so that an error of the save was raised.
    """

    def __init__(self, path: Path, future: Future[None] | None = None) -> None:
        self.path, self._future, self.told = path, future, False

    @property
    def is_finished(self) -> bool:
        """Returns whether writing has ended, with or without success."""
        return self._future is None or self._future.done()

    def wait(self) -> Path:
        """Waits for the checkpoint to be complete and returns its path; until then this rank must not read it.

        Raises:
            NoSpace, StoreUnavailable: this rank could not write.
            RankFailed: another rank did not write its part.
        """
        self.told = True
        if self._future is not None:
            self._future.result()
        return self.path


class Checkpointer:
    """Keeps the newest checkpoints of one training in a folder, which all ranks share and use alike.

    Args:
        folder: created if missing; leftovers of an interrupted writer are removed by rank 0.
        every: updates between checkpoints.
        keep: number of complete checkpoints that stay.
        best: (name, "min" or "max") of a number in `values["metrics"]`: the best checkpoint by it stays too.
        ranks: this process among those that train; None: a single process.
        timeout: seconds that rank 0 waits for the parts of other ranks.
    Raises:
        ConfigError: numbers are below 1.
        StoreUnavailable: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 200,
        keep: int = 2,
        best: Best | None = None,
        ranks: Ranks | None = None,
        timeout: float = 600.0,
    ) -> None:
        numbers = (("every", every), ("keep", keep), ("timeout", timeout))
        problems = [Problem(name, f"got {value}, expected 1 or more") for name, value in numbers if not value >= 1]
        if problems:
            raise ConfigError(problems)
        self.folder, self.every, self._keep, self._best = folder, every, keep, best
        self._ranks, self._timeout = ranks or SINGLE_PROCESS, timeout
        self._running: SaveHandle | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saves = 0
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in list(folder.iterdir()) if self._ranks.is_leader else ():
                if _is_leftover(path) and not is_live(path, seconds=timeout) and _is_leftover(path):  # still
                    shutil.rmtree(path)
        self._session = self._broadcast(secrets.randbits(62))  # no rank's left-overs are taken for another training's

    def list_complete(self) -> list[Path]:
        """Lists all complete checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob(f"{_STEP_PREFIX}*") if (path / MARKER).exists())

    def find_newest(self) -> Path | None:
        """Returns the newest complete checkpoint, or None."""
        complete = self.list_complete()
        return complete[-1] if complete else None

    def find_best(self) -> Path | None:
        """Returns the complete checkpoint with the best metric, the first of equal ones; None where none has the
        metric.
        """
        name, order = self._best or ("", "min")
        candidates = []
        for path in self.list_complete() if self._best else ():
            with suppress(FileNotFoundError):  # rank 0 may be removing it
                value = json.loads((path / STATE).read_bytes()).get("metrics", {}).get(name)
                if isinstance(value, int | float) and math.isfinite(value):
                    candidates.append((value if order == "min" else -value, path))
        return min(candidates)[1] if candidates else None

    def save(self, update: int, saved: CheckpointContent, *, wait: bool = True) -> SaveHandle:
        """Saves a checkpoint named after its update, then removes old checkpoints. All ranks call it.

        Args:
            wait: until it is complete. Otherwise tensors are copied, and the rest happens on a thread, one save at a
                time: a running save is waited for first.
        Raises:
            NoSpace: the disk is full; earlier checkpoints stay as they are.
            StoreUnavailable: it cannot be written.
            RankFailed: another rank did not write its part. Errors of the previous save are raised too if nobody waited
                for it.
        """
        self._saves += 1  # on all ranks, whatever happens to a save on one of them
        self.wait()
        target = self.folder / f"{_STEP_PREFIX}{update:09d}"
        if (target / MARKER).exists():
            return SaveHandle(target)
        job = SaveJob(
            target=target,
            temporary=self.folder / f"{_TEMPORARY_PREFIX}{update:09d}-{self._session:x}-{self._saves}",
            groups={
                group: owned_parts(tensors, self._ranks, copy_tensors=not wait)
                for group, tensors in saved.tensors.items()
            },
            state=json.dumps(dict(saved.values)).encode(),
            rank=self._ranks.rank,
            size=self._ranks.mesh.size,
            timeout=self._timeout,
        )
        if not wait:
            self._running = SaveHandle(target, self._pool.submit(self._finish, job))
            return self._running
        self._finish(job)
        return SaveHandle(target)

    def wait(self) -> None:
        """Waits until nothing is written any more; raises the error of the save, unless its handle has raised it."""
        running, self._running = self._running, None
        if running is not None and not running.told:
            running.wait()

    def _finish(self, job: SaveJob) -> None:
        with disk_errors(job.target):
            job.run()
            if job.rank == 0:
                complete = self.list_complete()
                for old in sorted(set(complete[: -self._keep]) - {self.find_best()}):
                    (old / MARKER).unlink()  # first: a removal that is interrupted must not look complete
                    shutil.rmtree(old)

    def open(self, path: Path | None = None) -> StoredCheckpoint | None:
        """Opens a checkpoint (None: the newest complete one) before any tensor is read; None: there is none. All
        ranks call it.

        Raises:
            Incomplete, HashMismatch, UnknownSchema: see `open_checkpoint`.
        """
        self.wait()
        if path is None:
            newest = self.find_newest()
            update = self._broadcast(int(newest.name.removeprefix(_STEP_PREFIX)) if newest else -1)
            path = self.folder / f"{_STEP_PREFIX}{update:09d}" if update >= 0 else None
        return None if path is None else open_checkpoint(path)

    def load(
        self, path: Path | None = None, *, into: Groups | None = None, groups: Sequence[str] | None = None
    ) -> CheckpointContent | None:
        """Reads a checkpoint (None: the newest complete one), every byte verified; None where there is none.

        All ranks call it, each with its tensors, whatever layout they were saved from. Nothing is changed before every
        rank has verified everything.

        Args:
            into: tensors to fill, by group; together the ranks have the same ones as the checkpoint. Values are
                converted to their types. A group that is not in it is read as whole tensors on the CPU.
            groups: the groups to read; None: those of `into`, or all.
        Raises:
            Incomplete: a marker or file is missing.
            HashMismatch: the content has changed; the message names the tensors.
            ShapeMismatch: the tensors are of another model.
            StateMissing: a tensor other than a weight is missing.
            RankFailed: another rank cannot use it.
        """
        stored, into = self.open(path), into or {}
        if stored is None:
            return None
        selected = list(groups if groups is not None else into or stored.groups)
        missing = [group for group in selected if group not in stored.groups]
        if missing:
            raise StateMissing(
                f"{stored.path} does not hold {missing[0]}", value=sorted(stored.groups), hint=_WEIGHTS_ONLY_HINT
            )
        self._check_files(stored, selected)
        self._check_names(stored, {group: into[group] for group in selected if group in into})
        read_groups = {group: stored.groups[group].tensors() for group in selected if group not in into}
        filled_groups = {group: into[group] for group in selected if group in into}
        for group, targets in filled_groups.items():
            fill_all(targets.items(), stored.groups[group])
        return CheckpointContent({**read_groups, **filled_groups}, stored.values)

    def _check_files(self, stored: StoredCheckpoint, groups: Sequence[str]) -> None:
        """Checks a share of the files' hashes on each rank; an error on one rank is raised on all."""
        files = stored.group_files(groups)
        faults = torch.zeros(len(files), dtype=torch.int64)
        for number in range(self._ranks.rank, len(files), self._ranks.mesh.size):
            faults[number] = stored.find_fault(files[number]) is not None
        damaged = [file for file, count in zip(files, self._sum_over_ranks(faults).tolist(), strict=True) if count]
        if damaged:
            message = f"ranks read different contents of {stored.path / damaged[0]}"
            raise stored.find_fault(damaged[0]) or HashMismatch(
                message, hint="try again, or use the checkpoint before it"
            )

    def _check_names(self, stored: StoredCheckpoint, into: Groups) -> None:
        """Checks that the checkpoint has all tensors that each rank needs, and that the ranks together need all of
        them.
        """
        problem: CheckpointError | None = None
        for group, tensors in into.items():
            missing_error = ShapeMismatch if group == "model" else StateMissing
            group_name = group if group == "model" else f"{group} state"
            try:
                check_tensors(
                    stored.groups[group], tensors, group_name=group_name, missing_error=missing_error, complete=False
                )
            except CheckpointError as error:
                problem = problem or error
        failed = int(self._sum_over_ranks(torch.tensor([problem is not None], dtype=torch.int64)))
        if problem is not None:
            raise problem
        if failed:
            raise RankFailed(
                "another rank refused the checkpoint",
                value=f"{failed} ranks",
                hint="read the messages of those ranks",
            )
        for group, tensors in into.items():
            names = sorted(stored.groups[group])
            request_counts = self._sum_over_ranks(
                torch.tensor([name in tensors for name in names], dtype=torch.int64)
            ).tolist()
            requested = {
                name: stored.groups[group][name] for name, count in zip(names, request_counts, strict=True) if count
            }
            check_tensors(stored.groups[group], requested, group_name=group, missing_error=StateMissing)

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        return self._ranks.sum(value.to(self._ranks.device), "pp", "dp", "tp").cpu()

    def _broadcast(self, number: int) -> int:
        """Returns rank 0's number on all ranks; no rank continues before all are here."""
        return int(self._sum_over_ranks(torch.tensor([number if self._ranks.is_leader else 0], dtype=torch.int64)))


def _is_leftover(path: Path) -> bool:
    """Returns whether a folder is, or could be, a leftover of an interrupted writer."""
    is_unfinished = path.name.startswith(_STEP_PREFIX) and not (path / MARKER).exists()
    return path.is_dir() and (is_unfinished or path.name.startswith(_TEMPORARY_PREFIX))


def owned_parts(tensors: Mapping[str, Tensor], ranks: Ranks, *, copy_tensors: bool = False) -> dict[str, TensorPart]:
    """Returns the parts of a group that this rank saves, copied where the training may change them meanwhile."""
    parts = {}
    for name, tensor in tensors.items():
        shape, region, owned = region_of(tensor)
        if owned and _is_first_holder(tensor, ranks):
            part = TensorPart(shape, region, local_tensor(tensor))
            parts[name] = part.copy_to_host() if copy_tensors else part
    if copy_tensors and ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
    return parts


def _is_first_holder(tensor: Tensor, ranks: Ranks) -> bool:
    """Returns whether this rank is the first along the dimensions that the tensor's own mesh does not have.

    Nothing is known of a mesh with other names: then several ranks write a part, and the first one written counts.
    """
    names = set(tensor.device_mesh.mesh_dim_names or ("",)) if is_dtensor(tensor) else set()
    if names - {"pp", "replicate", "shard", "tp", "dp"}:
        return True
    covered = names | ({"replicate", "shard"} if "dp" in names else set())
    return all(ranks.rank_along(dim) == 0 for dim in ("replicate", "shard", "tp") if dim not in covered)
