"""How far a training is, and how that is saved and restored: everything that a resumed run needs to equal the other."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evolvent.config import Config
from evolvent.errors import ConfigError, ShapeMismatch, StateMissing, VocabularyMismatch
from evolvent.learn.checkpoint import Checkpointer, Saved, check_tensors
from evolvent.learn.objectives import Objective
from evolvent.learn.packing import Position, Stream
from evolvent.learn.parts import Parts
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

__all__ = ["FitReport", "Metrics", "Progress", "identity", "restore", "save"]

_COUNTS = ("updates", "tokens", "fed", "padded", "lr", "in_row")


@dataclass(frozen=True, slots=True)
class Metrics:
    """One update.

    Attributes:
        update: its number, from 1. loss: sum / count. grad_norm: before clipping. lr: that it used.
        tokens: targets learned. fed: real tokens fed. padded: filler beside them.
        skipped: the loss or gradient was not finite, and the weights stayed as they were.
    """

    update: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    fed: int
    padded: int
    skipped: bool = False

    def as_row(self) -> dict[str, Any]:
        """As JSON values for a log: `step` is the update; what is not finite is None."""
        row = {
            name: None if value != value or abs(value) == float("inf") else value
            for name, value in asdict(self).items()
        }
        return {"step": row.pop("update"), **row}


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
    policy: Policy, objective: Objective, parts: Sequence[Parts], *, config: Config, seed: int
) -> dict[str, str]:
    """What must be equal for a resumed training to be the same one: digests of tokenizer and data, and the rest."""
    data = hashlib.sha256()
    for sequence in parts:
        data.update(sequence.trajectory.encode())
        data.update(sequence.ids.tobytes())
        data.update(sequence.weight.tobytes())
    vocabulary = canonical_json(policy.tokenizer.get_vocab())
    return {
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "config": canonical_json(config.model_dump(mode="json")),
        "objective": repr(objective),
        "seed": str(seed),
        "data": data.hexdigest(),
    }


def save(
    checkpoint: Checkpointer, progress: Progress, model: nn.Module, *, optimizer: Optimizer, same: Mapping[str, str]
) -> None:
    """Save weights, optimizer, schedule, random states, data position and counts.

    The order of the data is derived from seed and epoch, so its state is the position; torch's generators are saved.
    """
    names = _names(model)
    moments = {
        f"{key}/{names[weight]}": value for weight, state in optimizer.state.items() for key, value in state.items()
    }
    random = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        random |= {f"cuda-{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    values = {
        "same": dict(same),
        "position": asdict(progress.stream.position),
        "counts": {name: getattr(progress, name) for name in _COUNTS},
        "skipped": progress.skipped,
        "moments": {name: list(value.shape) for name, value in moments.items()},
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__},
    }
    record = {"losses": torch.tensor(progress.losses, dtype=torch.float64)}
    groups = {"model": _weights(model), "optimizer": moments, "random": random, "record": record}
    checkpoint.save(progress.updates, Saved(groups, values))


def restore(
    checkpoint: Checkpointer, progress: Progress, model: nn.Module, *, optimizer: Optimizer, same: Mapping[str, str]
) -> bool:
    """Go back to the newest complete checkpoint; False where there is none. Nothing changes before all is checked.

    Raises:
        ConfigError: it was made with another config, seed, objective or data. VocabularyMismatch: with another
            tokenizer. Incomplete, HashMismatch, ShapeMismatch, StateMissing: it is damaged, or of another model.
    """
    saved = checkpoint.load()
    if saved is None:
        return False
    values, tensors, weights = saved.values, saved.tensors, _weights(model)
    check_tensors(tensors.get("model", {}), weights, what="model", missing=ShapeMismatch)
    shapes = {name: torch.empty(shape, device="meta") for name, shape in values["moments"].items()}
    check_tensors(tensors.get("optimizer", {}), shapes, what="optimizer state", missing=StateMissing)
    for group, name in (("random", "torch"), ("record", "losses")):
        if name not in tensors.get(group, {}):
            raise StateMissing(f"the checkpoint has no tensor {name!r} of its {group} state", value=sorted(tensors))
    _check_same(values["same"], same)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors["model"][name])
    named = dict(model.named_parameters())
    for full, value in tensors["optimizer"].items():
        key, _, name = full.partition("/")
        optimizer.state[named[name]][key] = value.to(named[name].device)
    torch.set_rng_state(tensors["random"]["torch"])
    cuda = sorted(name for name in tensors["random"] if name.startswith("cuda-"))
    if cuda and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all([tensors["random"][name] for name in cuda])
    progress.stream.position = Position(**values["position"])
    for name in _COUNTS:
        setattr(progress, name, values["counts"][name])
    progress.losses = tensors["record"]["losses"].tolist()
    progress.skipped = [(update, tuple(ids)) for update, ids in values["skipped"]]
    return True


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {weight: name for name, weight in model.named_parameters()}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, tied ones once, and the buffers that belong to the saved model."""
    kept = model.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def _check_same(saved: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name, value in ours.items():
        theirs = saved.get(name)
        if theirs == value:
            continue
        what = f"the checkpoint was made with another {name}"
        if name == "tokenizer":
            raise VocabularyMismatch(what, value=value, expected=theirs, hint="resume with the policy it was made with")
        raise ConfigError(what, value=value, expected=theirs, hint="resume the same training, or use a new folder")
