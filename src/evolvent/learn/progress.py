"""Progress of a training, with saving and restoring of everything that a resumed run needs to equal an uninterrupted
one.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from evolvent.config import Config
from evolvent.errors import ConfigError, EvolventError, StateMissing, VocabularyMismatch
from evolvent.identity import version_1_values
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer, SaveHandle
from evolvent.learn.loader import DataOrder
from evolvent.learn.objectives import Objective
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.trained import LEARNING, TrainState
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

__all__ = [
    "FitReport",
    "TrainingProgress",
    "UpdateMetrics",
    "finish_pending_save",
    "restore_progress",
    "save_progress",
    "training_identity",
]

_COUNTS = ("updates", "tokens", "fed", "padded", "lr", "in_row")


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The metrics of one update.

    Attributes:
        update: its number, from 1.
        loss: sum / count.
        grad_norm: before clipping.
        lr: its learning rate.
        tokens: targets learned.
        fed: real tokens fed.
        padded: padding tokens beside them.
        skipped: the loss or gradient was not finite, and the weights stayed.
        stopped: a metric exceeded the objective's limit before the backward pass; the weights stayed.
        stats: the objective's metrics, as means over all ranks.
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

    def as_row(self) -> dict[str, object]:
        """Returns JSON values for a log: `step` is the update; numbers that are not finite become None."""
        values = {name: getattr(self, name) for name in self.__slots__ if name not in ("update", "stats", "stopped")}
        values |= {"stopped": True} if self.stopped else {}
        values |= self.stats
        finite = {n: None if value != value or abs(value) == float("inf") else value for n, value in values.items()}
        return {"step": self.update, **finite}


@dataclass(frozen=True, slots=True)
class FitReport:
    """A finished or stopped training: totals from its beginning, also where it was resumed.

    Attributes:
        updates: number of updates, skipped ones included.
        tokens: targets learned.
        fed, padded: real tokens fed, and padding beside them.
        losses: of every update.
        lr: of the last update.
        skipped: (update, trajectory ids) of updates that were not finite.
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
class TrainingProgress:
    """The progress of a training: position in the data, counts, the loss of every update, and skipped updates.

    `in_row` counts the updates that were not finite since the last finite one.
    """

    stream: DataOrder
    updates: int = 0
    tokens: int = 0
    fed: int = 0
    padded: int = 0
    lr: float = 0.0
    in_row: int = 0
    losses: list[float] = field(default_factory=list)
    skipped: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def record(self, metrics: UpdateMetrics, trajectories: Iterable[str]) -> None:
        """Records an update on these trajectories (read only if it was skipped)."""
        self.updates, self.lr = metrics.update, metrics.lr
        self.tokens += metrics.tokens
        self.fed += metrics.fed
        self.padded += metrics.padded
        self.losses.append(metrics.loss)
        self.in_row = self.in_row + 1 if metrics.skipped else 0
        if metrics.skipped:
            self.skipped.append((metrics.update, tuple(dict.fromkeys(trajectories))))

    def report(self, *, finished: bool) -> FitReport:
        """Returns the progress so far as a value."""
        return FitReport(
            self.updates, self.tokens, self.fed, self.padded, tuple(self.losses), self.lr, tuple(self.skipped), finished
        )


def training_identity(
    policy: Policy,
    objective: Objective,
    data: str,
    *,
    config: Config,
    optimizer: Config,
    seed: int,
    base_digest: str | None,
) -> dict[str, str]:
    """Returns the values that must be equal for a resumed training: digests of tokenizer and data, and the settings.

    Args:
        data: digest of the training data.
        base_digest: of the weights below an adapter, where there is one.

    The layout is not among them: a training resumes on any other.
    """
    vocabulary = canonical_json(policy.tokenizer.get_vocab())
    return {
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "config": canonical_json(version_1_values(config)),
        "optimizer": canonical_json(version_1_values(optimizer)),
        "objective": repr(objective),
        "seed": str(seed),
        "data": data,
        **({"base": base_digest} if base_digest is not None else {}),
    }


def save_progress(
    checkpoint: Checkpointer,
    progress: TrainingProgress,
    train_state: TrainState,
    *,
    identity: Mapping[str, str],
    wait: bool = True,
) -> SaveHandle:
    """Saves weights, optimizer, schedule, data position and counts; all ranks call it.

    Data order and dropout derive from the seed and the update, so there is no random state to save. The group "model"
    has
    the weights that play; where the training weights differ, they are a group beside it.

    Args:
        wait: until it is on disk; otherwise it is copied, and written while training goes on.
    """
    values = {
        "same": dict(identity),
        "position": progress.stream.position,
        "counts": {name: getattr(progress, name) for name in _COUNTS},
        "metrics": {"loss": progress.losses[-1]} if progress.losses else {},
        "skipped": progress.skipped,
        "numbers": train_state.optimizer_numbers(),
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__},
    }
    record = {"losses": torch.tensor(progress.losses, dtype=torch.float64)}
    with train_state.averaged() as extra_groups:
        groups = {
            "model": train_state.named_weights(),
            "optimizer": train_state.moments(),
            "record": record,
            **extra_groups,
        }
        return checkpoint.save(progress.updates, CheckpointContent(groups, values), wait=wait)


@contextmanager
def finish_pending_save(checkpoint: Checkpointer | None, ranks: Ranks) -> Iterator[None]:
    """Finishes a running save when the block fails; other ranks are not waited for."""
    is_finished = False
    try:
        yield
        is_finished = True
    finally:
        if not is_finished and checkpoint is not None and ranks.devices is None:
            with suppress(EvolventError):
                checkpoint.wait()


def restore_progress(
    checkpoint: Checkpointer, progress: TrainingProgress, train_state: TrainState, *, identity: Mapping[str, str]
) -> bool:
    """Restores the newest complete checkpoint, whatever layout wrote it; returns False where there is none.

    All ranks call it. No weight changes before everything is checked.

    Raises:
        ConfigError: it was made with another config, optimizer, seed, objective or data.
        VocabularyMismatch: it was made with another tokenizer.
        Incomplete, HashMismatch, ShapeMismatch, StateMissing: it is damaged, or of another model.
    """
    stored = checkpoint.open()
    if stored is None:
        return False
    _check_identity(stored.values["same"], identity)
    is_new_optimizer = not train_state.optimizer.state
    if is_new_optimizer:
        state_names = {name.partition("/")[2] for name in stored.groups.get("optimizer", ())}
        train_state.create_state(state_names or train_state.named_weights())
    weights = LEARNING if LEARNING in stored.groups else "model"
    into = {weights: train_state.named_weights(), "optimizer": train_state.moments()}
    try:
        saved = checkpoint.load(stored.path, into=into, groups=(weights, "optimizer", "record"))
    except EvolventError:
        if is_new_optimizer:
            train_state.optimizer.state.clear()
        raise
    if saved is None or "losses" not in saved.tensors["record"]:
        raise StateMissing("the checkpoint has no tensor 'losses' of its record", value=str(stored.path))
    train_state.sync_tied_weights()
    values = saved.values
    train_state.restore_numbers(values.get("numbers", {}))  # checkpoints of earlier versions have none
    progress.stream.position = values["position"]
    for name in _COUNTS:
        setattr(progress, name, values["counts"][name])
    progress.losses = saved.tensors["record"]["losses"].tolist()
    progress.skipped = [(update, tuple(ids)) for update, ids in values["skipped"]]
    return True


def _check_identity(saved: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name, value in ours.items():
        saved_value = saved.get(name)
        if saved_value == value:
            continue
        message = f"the checkpoint was made with another {name}"
        if name == "tokenizer":
            raise VocabularyMismatch(
                message, value=value, expected=saved_value, hint="resume with the policy it was made with"
            )
        own_difference, saved_difference = _format_differences(value, saved_value or "")
        raise ConfigError(
            message,
            value=own_difference,
            expected=saved_difference,
            hint="resume the same training, or use a new folder",
        )


def _format_differences(own_text: str, saved_text: str) -> tuple[str, str]:
    """Returns the differing settings of two JSON texts; other texts are returned unchanged."""
    if not (own_text.startswith("{") and saved_text.startswith("{")):
        return own_text, saved_text
    settings = json.loads(own_text), json.loads(saved_text)
    names = sorted(name for name in {*settings[0], *settings[1]} if settings[0].get(name) != settings[1].get(name))
    own_differences, saved_differences = (
        ", ".join(f"{name} = {values.get(name)}" for name in names) for values in settings
    )
    return own_differences, saved_differences
