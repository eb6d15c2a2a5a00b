"""Checkpoints: a folder of safetensors and JSON that is either whole or not there, written by all ranks at once.

Each rank writes the parts that it owns, once, and the marker `COMPLETE` comes last (`models/writing.py`): whatever
happens on the way, the previous checkpoint stays the newest complete one. Any layout reads what any other wrote
(`models/pieces.py`). Nothing is pickled.
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
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

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
from evolvent.learn.parallel.ranks import ALONE, Ranks
from evolvent.models.pieces import fill_all, local_of, region_of
from evolvent.models.stored import MARKER, STATE, Stored, open_checkpoint
from evolvent.models.writing import Part, SaveJob, is_live

__all__ = ["Checkpointer", "Handle", "Saved", "check_tensors"]

_TEMPORARY, _STEP = ".writing-", "update-"
_WEIGHTS_ONLY = "use the model it was made with, or take its weights alone: load(groups=('model',)), in a new folder"

Best = tuple[str, Literal["min", "max"]]
Groups = Mapping[str, Mapping[str, Tensor]]


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a checkpoint: named groups of tensors (`model`, `optimizer`, ...), and JSON values.

    Names are those of the whole model on every layout. A sharded tensor is a DTensor; a rank brings what it has.
    """

    tensors: Groups
    values: Mapping[str, Any] = field(default_factory=dict)


def check_tensors(
    found: Mapping[str, _Shaped],
    expected: Mapping[str, _Shaped],
    *,
    what: str,
    missing: type[CheckpointError],
    complete: bool = True,
) -> None:
    """Compare names and shapes before anything is copied.

    Args:
        complete: whether `expected` holds all that may be there.
    Raises:
        missing: a tensor that is not there, named. ShapeMismatch: one of another shape, or one too many.
    """
    for name, tensor in expected.items():
        if name not in found:
            raise missing(
                f"the checkpoint's {what} has no tensor {name!r}",
                value=f"{len(found)} tensors",
                expected=tuple(tensor.shape),
                hint=_WEIGHTS_ONLY,
            )
        if tuple(found[name].shape) != tuple(tensor.shape):
            raise ShapeMismatch(
                f"tensor {name!r} of the checkpoint's {what} has another shape than the model's",
                value=tuple(found[name].shape),
                expected=tuple(tensor.shape),
                hint=_WEIGHTS_ONLY,
            )
    extra = sorted(set(found) - set(expected)) if complete else []
    if extra:
        raise ShapeMismatch(
            f"the checkpoint's {what} has tensors that the model does not have", value=extra[:5], hint=_WEIGHTS_ONLY
        )


class Handle:
    """A checkpoint that is being written, or was.

    Attributes:
        path: where it is when it is complete. told: whether its end was waited for, so that an error of it was raised.
    """

    def __init__(self, path: Path, future: Future[None] | None = None) -> None:
        self.path, self._future, self.told = path, future, False

    @property
    def done(self) -> bool:
        """Whether nothing is written any more, for good or ill."""
        return self._future is None or self._future.done()

    def wait(self) -> Path:
        """The checkpoint, complete. Until this has returned on a rank, that rank must not read it.

        Raises:
            NoSpace, StoreUnavailable: this rank could not write. RankFailed: another rank did not do its part.
        """
        self.told = True
        if self._future is not None:
            self._future.result()
        return self.path


class Checkpointer:
    """Keeps the newest checkpoints of one training in a folder, which all ranks share and all use alike.

    Args:
        folder: made if missing; what an interrupted writer left in it is removed, by rank 0.
        every: updates between checkpoints.
        keep: how many complete ones stay.
        best: (name, "min" or "max") of a number in `values["metrics"]`: the checkpoint that is best in it stays too.
        ranks: this process among those that train; None: it is alone.
        timeout: seconds that rank 0 waits for the parts of other ranks.
    Raises:
        ConfigError: numbers below 1. StoreUnavailable: a folder that cannot be written.
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
        problems = [Problem(name, f"must be 1 or more, got {value}") for name, value in numbers if not value >= 1]
        if problems:
            raise ConfigError(problems)
        self.folder, self.every, self._keep, self._best = folder, every, keep, best
        self._ranks, self._timeout = ranks or ALONE, timeout
        self._running: Handle | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saves = 0
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in list(folder.iterdir()) if self._ranks.leads else ():
                if _is_left(path) and not is_live(path, seconds=timeout) and _is_left(path):  # still
                    shutil.rmtree(path)
        self._session = self._agreed(secrets.randbits(62))  # no rank's left-overs are taken for another training's

    def complete(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob(f"{_STEP}*") if (path / MARKER).exists())

    def newest(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        found = self.complete()
        return found[-1] if found else None

    def best(self) -> Path | None:
        """The complete checkpoint with the best metric, the first of equal ones; None where none has it."""
        name, order = self._best or ("", "min")
        found = []
        for path in self.complete() if self._best else ():
            with suppress(FileNotFoundError):  # rank 0 may be removing it
                value = json.loads((path / STATE).read_bytes()).get("metrics", {}).get(name)
                if isinstance(value, int | float) and math.isfinite(value):
                    found.append((value if order == "min" else -value, path))
        return min(found)[1] if found else None

    def save(self, update: int, saved: Saved, *, wait: bool = True) -> Handle:
        """Write a checkpoint named after its update, then remove what need not stay. All ranks call it.

        Args:
            wait: until it is complete. Otherwise tensors are copied, and the rest happens on a thread, one at a time:
                a save that is still under way is waited for first.
        Raises:
            NoSpace: the disk is full; earlier checkpoints stay as they are. StoreUnavailable: it cannot be written.
            RankFailed: another rank did not do its part. The same of the save before, if nobody waited for it.
        """
        self._saves += 1  # on all ranks, whatever happens to a save on one of them
        self.wait()
        target = self.folder / f"{_STEP}{update:09d}"
        if (target / MARKER).exists():
            return Handle(target)
        job = SaveJob(
            target=target,
            temporary=self.folder / f"{_TEMPORARY}{update:09d}-{self._session:x}-{self._saves}",
            groups={group: _parts(held, self._ranks, copied=not wait) for group, held in saved.tensors.items()},
            state=json.dumps(dict(saved.values)).encode(),
            rank=self._ranks.rank,
            size=self._ranks.mesh.size,
            timeout=self._timeout,
        )
        if not wait:
            self._running = Handle(target, self._pool.submit(self._finish, job))
            return self._running
        self._finish(job)
        return Handle(target)

    def wait(self) -> None:
        """Until nothing is written any more; raises what went wrong, unless its handle has."""
        running, self._running = self._running, None
        if running is not None and not running.told:
            running.wait()

    def _finish(self, job: SaveJob) -> None:
        with disk_errors(job.target):
            job.run()
            if job.rank == 0:
                complete = self.complete()
                for old in sorted(set(complete[: -self._keep]) - {self.best()}):
                    (old / MARKER).unlink()  # first: a removal that is interrupted must not look complete
                    shutil.rmtree(old)

    def open(self, path: Path | None = None) -> Stored | None:
        """What a checkpoint (None: the newest complete one) says of itself, before any tensor is read; None: there is
        none. All ranks call it.

        Raises:
            Incomplete, HashMismatch, UnknownSchema: see `open_checkpoint`.
        """
        self.wait()
        if path is None:
            newest = self.newest()
            update = self._agreed(int(newest.name.removeprefix(_STEP)) if newest else -1)
            path = self.folder / f"{_STEP}{update:09d}" if update >= 0 else None
        return None if path is None else open_checkpoint(path)

    def load(
        self, path: Path | None = None, *, into: Groups | None = None, groups: Sequence[str] | None = None
    ) -> Saved | None:
        """Read a checkpoint (None: the newest complete one), every byte checked; None where there is none.

        All ranks call it, each with the tensors that it has, whatever layout they were saved from. Nothing is changed
        before every rank has found that all is well.

        Args:
            into: tensors to fill, by group; together the ranks have the same ones as the checkpoint. Values are
                converted to their types. A group that is not in it is read as whole tensors on the CPU.
            groups: which to read; None: those of `into`, or all.
        Raises:
            Incomplete: a missing marker or file. HashMismatch: other content than was written; names the tensors.
            ShapeMismatch: another model's tensors. StateMissing: a tensor other than a weight that is not there.
            RankFailed: another rank cannot use it.
        """
        stored, into = self.open(path), into or {}
        if stored is None:
            return None
        chosen = list(groups if groups is not None else into or stored.groups)
        absent = [group for group in chosen if group not in stored.groups]
        if absent:
            raise StateMissing(f"no {absent[0]} in {stored.path}", value=sorted(stored.groups), hint=_WEIGHTS_ONLY)
        self._check_files(stored, chosen)
        self._check_names(stored, {group: into[group] for group in chosen if group in into})
        whole = {group: stored.groups[group].tensors() for group in chosen if group not in into}
        filled = {group: into[group] for group in chosen if group in into}
        for group, targets in filled.items():
            fill_all(targets.items(), stored.groups[group])
        return Saved({**whole, **filled}, stored.values)

    def _check_files(self, stored: Stored, groups: Sequence[str]) -> None:
        """Each rank hashes a share of the files; what one finds is raised by all."""
        files = stored.files_of(groups)
        faults = torch.zeros(len(files), dtype=torch.int64)
        for number in range(self._ranks.rank, len(files), self._ranks.mesh.size):
            faults[number] = stored.fault(files[number]) is not None
        bad = [file for file, count in zip(files, self._total(faults).tolist(), strict=True) if count]
        if bad:
            what = f"{stored.path / bad[0]} is read differently by different ranks"
            raise stored.fault(bad[0]) or HashMismatch(what, hint="try again, or use the checkpoint before it")

    def _check_names(self, stored: Stored, into: Groups) -> None:
        """All that each rank asks for is there, and all ranks together ask for all that is there."""
        problem: CheckpointError | None = None
        for group, wanted in into.items():
            missing = ShapeMismatch if group == "model" else StateMissing
            what = group if group == "model" else f"{group} state"
            try:
                check_tensors(stored.groups[group], wanted, what=what, missing=missing, complete=False)
            except CheckpointError as error:
                problem = problem or error
        failed = int(self._total(torch.tensor([problem is not None], dtype=torch.int64)))
        if problem is not None:
            raise problem
        if failed:
            raise RankFailed(
                "another rank cannot use the checkpoint",
                value=f"{failed} ranks that refuse it",
                hint="what it lacks is in their messages",
            )
        for group, wanted in into.items():
            names = sorted(stored.groups[group])
            asked = self._total(torch.tensor([name in wanted for name in names], dtype=torch.int64)).tolist()
            some = {name: stored.groups[group][name] for name, count in zip(names, asked, strict=True) if count}
            check_tensors(stored.groups[group], some, what=group, missing=StateMissing)

    def _total(self, value: Tensor) -> Tensor:
        return self._ranks.sum(value.to(self._ranks.device), "pp", "dp", "tp").cpu()

    def _agreed(self, number: int) -> int:
        """Rank 0's number, on all ranks; none goes on before all are here."""
        return int(self._total(torch.tensor([number if self._ranks.leads else 0], dtype=torch.int64)))


def _is_left(path: Path) -> bool:
    """Whether it is, or could be, what an interrupted writer left."""
    begun = path.name.startswith(_STEP) and not (path / MARKER).exists()
    return path.is_dir() and (begun or path.name.startswith(_TEMPORARY))


def _parts(held: Mapping[str, Tensor], ranks: Ranks, *, copied: bool) -> dict[str, Part]:
    """What this rank saves of a group: the parts that it owns, copied where the training may change them meanwhile."""
    parts = {}
    for name, tensor in held.items():
        shape, region, owned = region_of(tensor)
        if owned and _speaks(tensor, ranks):
            part = Part(shape, region, local_of(tensor))
            parts[name] = part.copied() if copied else part
    if copied and ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
    return parts


def _speaks(tensor: Tensor, ranks: Ranks) -> bool:
    """Whether this rank is the first along the dimensions that the tensor's own mesh does not have.

    Of a mesh with other names nothing is known: then several ranks write a part, and the first that did counts.
    """
    names = set(tensor.device_mesh.mesh_dim_names or ("",)) if isinstance(tensor, DTensor) else set()
    if names - {"pp", "replicate", "shard", "tp", "dp"}:
        return True
    covered = names | ({"replicate", "shard"} if "dp" in names else set())
    return all(ranks.at(dim) == 0 for dim in ("replicate", "shard", "tp") if dim not in covered)
