"""How far a training is, and how that is saved and restored: everything that a resumed run needs to equal the other."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from evolvent.config import Config
from evolvent.errors import ConfigError, EvolventError, StateMissing, VocabularyMismatch
from evolvent.learn.checkpoint import Checkpointer, Handle, Saved
from evolvent.learn.loader import Stream
from evolvent.learn.objectives import Objective
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.trained import LEARNING, Trained
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

__all__ = ["FitReport", "Metrics", "Progress", "identity", "restore", "save", "settled"]

_COUNTS = ("updates", "tokens", "fed", "padded", "lr", "in_row")


@dataclass(frozen=True, slots=True)
class Metrics:
    """One update.

    Attributes:
        update: its number, from 1. loss: sum / count. grad_norm: before clipping. lr: that it used.
        tokens: targets learned. fed: real tokens fed. padded: filler beside them.
        skipped: the loss or gradient was not finite, and the weights stayed as they were.
        stopped: a measured number was beyond the objective's limit before the backward pass; the weights stayed.
        stats: what the objective measured, as means over all ranks.
    """

    update: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    fed: int
    padded: int
    skipped: bool = False
    stopped: bool = False
    stats: Mapping[str, float] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """As JSON values for a log: `step` is the update; what is not finite is None."""
        values = {name: getattr(self, name) for name in self.__slots__ if name not in ("update", "stats", "stopped")}
        values |= {"stopped": True} if self.stopped else {}
        values |= self.stats
        finite = {n: None if value != value or abs(value) == float("inf") else value for n, value in values.items()}
        return {"step": self.update, **finite}


@dataclass(frozen=True, slots=True)
class FitReport:
    """A finished or stopped training: totals from its beginning, also where it was resumed.

    Attributes:
        updates: taken, skipped ones included. tokens: targets learned. fed, padded: tokens fed, and filler beside them.
        losses: of every update. lr: of the last one. skipped: (update, trajectory ids) of those that were not finite.
        finished: False where `should_stop` ended it early.
    """

    updates: int
    tokens: int
    fed: int
    padded: int
    losses: tuple[float, ...]
    lr: float
    skipped: tuple[tuple[int, tuple[str, ...]], ...] = ()
    finished: bool = True


@dataclass
class Progress:
    """What has been done of a training: the place in the data, counts, the loss of every update, what was skipped.

    `in_row` counts the updates that were not finite since the last finite one.
    """

    stream: Stream
    updates: int = 0
    tokens: int = 0
    fed: int = 0
    padded: int = 0
    lr: float = 0.0
    in_row: int = 0
    losses: list[float] = field(default_factory=list)
    skipped: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def note(self, metrics: Metrics, trajectories: Iterable[str]) -> None:
        """Count an update, made from these trajectories (looked at only if it was skipped)."""
        self.updates, self.lr = metrics.update, metrics.lr
        self.tokens += metrics.tokens
        self.fed += metrics.fed
        self.padded += metrics.padded
        self.losses.append(metrics.loss)
        self.in_row = self.in_row + 1 if metrics.skipped else 0
        if metrics.skipped:
            self.skipped.append((metrics.update, tuple(dict.fromkeys(trajectories))))

    def report(self, *, finished: bool) -> FitReport:
        """What has been done so far, as a value."""
        return FitReport(
            self.updates, self.tokens, self.fed, self.padded, tuple(self.losses), self.lr, tuple(self.skipped), finished
        )


def identity(
    policy: Policy, objective: Objective, data: str, *, config: Config, optimizer: Config, seed: int, base: str | None
) -> dict[str, str]:
    """What must be equal for a resumed training to be the same one: digests of tokenizer and data, and the rest.

    Args:
        data: digest of what is learned. base: of the weights below an adapter, where there is one.

    The layout is not among it: a training goes on on any other.
    """
    vocabulary = canonical_json(policy.tokenizer.get_vocab())
    return {
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "config": canonical_json(config.model_dump(mode="json")),
        "optimizer": canonical_json(optimizer.model_dump(mode="json")),
        "objective": repr(objective),
        "seed": str(seed),
        "data": data,
        **({"base": base} if base is not None else {}),
    }


def save(
    checkpoint: Checkpointer, progress: Progress, trained: Trained, *, same: Mapping[str, str], wait: bool = True
) -> Handle:
    """Save weights, optimizer, schedule, data position and counts; all ranks call it.

    The order of the data and dropout are derived from the seed and the update, so there is no random state to save.
    The group "model" has the weights to play; where those that learn are others, they are a group beside it.

    Args:
        wait: until it is on disk; otherwise it is copied, and written while training goes on.
    """
    values = {
        "same": dict(same),
        "position": progress.stream.position,
        "counts": {name: getattr(progress, name) for name in _COUNTS},
        "metrics": {"loss": progress.losses[-1]} if progress.losses else {},
        "skipped": progress.skipped,
        "numbers": trained.numbers(),
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__},
    }
    record = {"losses": torch.tensor(progress.losses, dtype=torch.float64)}
    with trained.averaged() as more:
        groups = {"model": trained.named(), "optimizer": trained.moments(), "record": record, **more}
        return checkpoint.save(progress.updates, Saved(groups, values), wait=wait)


@contextmanager
def settled(checkpoint: Checkpointer | None, ranks: Ranks) -> Iterator[None]:
    """Whatever ends a training in here, a checkpoint that is being written is finished; other ranks are not awaited."""
    done = False
    try:
        yield
        done = True
    finally:
        if not done and checkpoint is not None and ranks.devices is None:
            with suppress(EvolventError):
                checkpoint.wait()


def restore(checkpoint: Checkpointer, progress: Progress, trained: Trained, *, same: Mapping[str, str]) -> bool:
    """Go back to the newest complete checkpoint, whatever layout wrote it; False where there is none.

    All ranks call it. No weight changes before all is checked.

    Raises:
        ConfigError: it was made with another config, optimizer, seed, objective or data. VocabularyMismatch: with
            another tokenizer. Incomplete, HashMismatch, ShapeMismatch, StateMissing: it is damaged, or of another
            model.
    """
    stored = checkpoint.open()
    if stored is None:
        return False
    _check_same(stored.values["same"], same)
    fresh = not trained.optimizer.state
    if fresh:
        known = {name.partition("/")[2] for name in stored.groups.get("optimizer", ())}
        trained.begin(known or trained.named())
    weights = LEARNING if LEARNING in stored.groups else "model"
    into = {weights: trained.named(), "optimizer": trained.moments()}
    try:
        saved = checkpoint.load(stored.path, into=into, groups=(weights, "optimizer", "record"))
    except EvolventError:
        if fresh:
            trained.optimizer.state.clear()
        raise
    if saved is None or "losses" not in saved.tensors["record"]:
        raise StateMissing("the checkpoint has no tensor 'losses' of its record", value=str(stored.path))
    trained.agree()
    values = saved.values
    trained.renumber(values.get("numbers", {}))  # checkpoints of earlier versions have none
    progress.stream.position = values["position"]
    for name in _COUNTS:
        setattr(progress, name, values["counts"][name])
    progress.losses = saved.tensors["record"]["losses"].tolist()
    progress.skipped = [(update, tuple(ids)) for update, ids in values["skipped"]]
    return True


def _check_same(saved: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name, value in ours.items():
        theirs = saved.get(name)
        if theirs == value:
            continue
        what = f"the checkpoint was made with another {name}"
        if name == "tokenizer":
            raise VocabularyMismatch(what, value=value, expected=theirs, hint="resume with the policy it was made with")
        mine, before = _apart(value, theirs or "")
        raise ConfigError(what, value=mine, expected=before, hint="resume the same training, or use a new folder")


def _apart(ours: str, theirs: str) -> tuple[str, str]:
    """What is different in two settings that are written as JSON; other texts as they are."""
    if not (ours.startswith("{") and theirs.startswith("{")):
        return ours, theirs
    both = json.loads(ours), json.loads(theirs)
    names = sorted(name for name in {*both[0], *both[1]} if both[0].get(name) != both[1].get(name))
    one, other = (", ".join(f"{name} = {values.get(name)}" for name in names) for values in both)
    return one, other
