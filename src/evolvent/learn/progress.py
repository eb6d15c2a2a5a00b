"""Progress of a training, with saving and restoring of everything that a resumed run needs to equal an uninterrupted
one.

The trained state: weights and the state of their optimizer, as a checkpoint holds them.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.config import Config
from evolvent.errors import ConfigError, EvolventError, Problem, StateMissing, VocabularyMismatch, boundary
from evolvent.identity import version_1_values
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer, SaveHandle
from evolvent.learn.loader import DataOrder
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig, build_optimizer, is_builtin
from evolvent.learn.parallel.ranks import Ranks
from evolvent.models.pieces import local_tensor
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

__all__ = [
    "LEARNING",
    "FitReport",
    "OptimizerNumbers",
    "TrainState",
    "TrainingProgress",
    "UpdateMetrics",
    "check_resumes",
    "finish_pending_save",
    "restore_progress",
    "save_progress",
    "training_identity",
]


LEARNING = "learning"  # group of a checkpoint: the weights that learn, where they are not those to play
OptimizerNumbers = dict[str, dict[str, bool | int | float | None]]
_REHEARSAL_UPDATES, _REHEARSAL_STOP = (
    12,
    5,
)  # of the rehearsal: some optimizers do something else every fifth or sixth update


@dataclass(frozen=True, slots=True)
class TrainState:
    """The state that a training changes on this rank: its weights by their names here, and their optimizer.

    Frozen weights are not part of it: a checkpoint does not hold them.

    Attributes:
        whole_names: a weight's name in the whole model, where it differs: pipeline stages have two copies of a tied
            weight, which is one there.
    """

    weights: Mapping[str, Tensor]
    optimizer: Optimizer
    whole_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def averages(self) -> bool:
        """Returns whether the training weights differ from the weights that play.

        Schedule-free optimizers (arXiv 2405.15682) take gradients at one point and average another, and have `train()`
        and `eval()` to switch between them.
        """
        return all(callable(getattr(self.optimizer, name, None)) for name in ("train", "eval"))

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Turns the weights into the training weights inside the block; outside are the weights that play, are
        evaluated and saved.
        """
        self._switch("train")
        try:
            yield
        finally:
            self._switch("eval")

    def use_averaged(self) -> None:
        """Converts training weights to averaged weights outside of `learning`; averaged weights stay."""
        self._switch("eval")

    @contextmanager
    def averaged(self) -> Iterator[Mapping[str, Mapping[str, Tensor]]]:
        """Turns the weights into the averaged weights inside the block, during training; afterwards all is as
        before, bit for bit.

        Yields a group for a checkpoint, by its name: the training weights, from which a training resumes. Yields
        nothing where both are the same.
        """
        if not self.averages:
            yield {}
            return
        training_weights = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._switch("eval")
        try:
            yield {LEARNING: {name: training_weights[local_name] for name, local_name in self._local_names().items()}}
        finally:
            self._switch("train")
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(training_weights[name])

    @torch.no_grad()
    def _switch(self, mode: str) -> None:
        if self.averages:
            with boundary(ConfigError, f"{type(self.optimizer).__name__} could not turn its weights to {mode!r}"):
                getattr(self.optimizer, mode)()

    def _local_names(self) -> dict[str, str]:
        """Returns each weight's name here by its name in the whole model; of two copies the first."""
        local_names: dict[str, str] = {}
        for name in self.weights:
            local_names.setdefault(self.whole_names.get(name, name), name)
        return local_names

    def named_weights(self) -> dict[str, Tensor]:
        """Returns the weights by their names in the whole model; of two copies the first."""
        return {name: self.weights[local_name] for name, local_name in self._local_names().items()}

    def moments(self) -> dict[str, Tensor]:
        """Returns the tensors of the optimizer's state, as `moment/weight`. A weight that never had a gradient has
        none.
        """
        state = self.optimizer.state
        return {
            f"{key}/{name}": value
            for name, weight in self.named_weights().items()
            if weight in state
            for key, value in state[weight].items()
            if isinstance(value, Tensor)
        }

    def optimizer_numbers(self) -> OptimizerNumbers:
        """Returns the numbers that the optimizer keeps for all weights together (updates, Prodigy's d, ...), as JSON
        values.

        They are grouped by "matrices" and "vectors", the two kinds of groups that every layout has (`optim.make`).
        """
        numbers: OptimizerNumbers = {}
        for group in self.optimizer.param_groups:
            single = {
                key: entry.item() if isinstance(entry, Tensor) and entry.numel() == 1 else entry
                for key, entry in group.items()
            }
            plain = {key: entry for key, entry in single.items() if isinstance(entry, bool | int | float | None)}
            numbers.setdefault(_group_kind(group["params"]), plain)
        return numbers

    def restore_numbers(self, numbers: OptimizerNumbers) -> None:
        """Restores these numbers; call it when the optimizer's state exists."""
        for group in self.optimizer.param_groups:
            for key, value in numbers.get(_group_kind(group["params"]), {}).items():
                if isinstance(group.get(key), Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value

    def create_state(self, names: Container[str]) -> None:
        """Creates the optimizer's state of these weights, so that there is something to fill.

        One weight after another takes a step of length 0 with a gradient of 0. The optimizer counts these steps, so
        restore its numbers afterwards.
        """
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for weight in (weight for name, weight in self.weights.items() if self.whole_names.get(name, name) in names):
            weight.grad = torch.zeros_like(weight)
            self.optimizer.step()
            weight.grad = None
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    @torch.no_grad()
    def sync_tied_weights(self) -> None:
        """Copies the first of two copies of a tied weight into the second, where both are on this rank."""
        named_weights, state = self.named_weights(), self.optimizer.state
        for name, copy in self.weights.items():
            original = named_weights[self.whole_names.get(name, name)]
            if copy is not original:
                pairs = [
                    (copy, original),
                    *(
                        (state[copy][key], value)
                        for key, value in state.get(original, {}).items()
                        if isinstance(value, Tensor)
                    ),
                ]
                for target, source in pairs:
                    local_tensor(target).copy_(local_tensor(source))


def _group_kind(weights: list[Tensor]) -> str:
    return "matrices" if weights[0].dim() > 1 else "vectors"


def check_resumes(config: OptimizerConfig) -> None:
    """Checks that an optimizer resumes from a checkpoint as if it had not been stopped.

    A checkpoint holds the tensors that an optimizer keeps for each weight, and the numbers of its groups. Some
    optimizers of `pytorch_optimizer` keep more: lists, projections, attributes. Those of torch and ours are known
    to be restored; others run a few updates on two small weights, once uninterrupted and once resumed.

    Raises:
        ConfigError: the two results differ.
    """
    if is_builtin(config.name):
        return
    with boundary(ConfigError, f"optimizer {config.name!r} failed where it was stopped and resumed"):
        uninterrupted, resumed = (_run_rehearsal(config, stop=stop) for stop in (None, _REHEARSAL_STOP))
    if resumed is None or uninterrupted is None or repr(uninterrupted) != repr(resumed):
        message = f"{config.name} has state that a checkpoint does not hold, so training could not resume exactly"
        raise ConfigError(
            [
                Problem(
                    "optimizer.name", message, "use adamw, adan, lion, adafactor or another optimizer that can resume"
                )
            ]
        )


def _run_rehearsal(
    config: OptimizerConfig, *, stop: int | None
) -> tuple[dict[str, list[Any]], OptimizerNumbers] | None:
    """Returns the final weights, moments and numbers; None where the state was not created again."""
    train_state = _build_rehearsal(config)
    with torch.random.fork_rng(devices=[]):
        for update in range(_REHEARSAL_UPDATES):
            torch.manual_seed(update)
            if update == _REHEARSAL_STOP:  # a checkpoint is no change, whether or not it is gone back to
                numbers = json.loads(json.dumps(train_state.optimizer_numbers()))
                with train_state.averaged() as extra_groups:
                    saved_state = [
                        {name: tensor.detach().clone() for name, tensor in tensors.items()}
                        for tensors in (extra_groups.get(LEARNING, train_state.named_weights()), train_state.moments())
                    ]
            if update == stop:
                train_state = _build_rehearsal(config)
                train_state.create_state(train_state.weights)
                new_state = (train_state.named_weights(), train_state.moments())
                if new_state[1].keys() != saved_state[1].keys():
                    return None
                for tensors, saved_tensors in zip(new_state, saved_state, strict=True):
                    for name, tensor in tensors.items():
                        tensor.detach().copy_(saved_tensors[name])
                train_state.restore_numbers(numbers)
            for weight in train_state.weights.values():
                weight.grad = torch.sin(7 * weight.detach() + update)
            train_state.optimizer.step()
    with train_state.averaged():
        final_state = {**train_state.named_weights(), **train_state.moments()}
        return {
            name: tensor.detach().flatten().tolist() for name, tensor in final_state.items()
        }, train_state.optimizer_numbers()


def _build_rehearsal(config: OptimizerConfig) -> TrainState:
    weights = {"matrix": torch.linspace(-1, 1, 24).reshape(6, 4), "vector": torch.linspace(-0.5, 1, 6)}
    weights = {name: weight.requires_grad_() for name, weight in weights.items()}
    return TrainState(weights, build_optimizer(config, weights.items(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1))


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

    The layout and what is offloaded are not among them: a training resumes with any other.
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
    has the weights that play; where the training weights differ, they are a group beside it.

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
        raise StateMissing("the checkpoint lacks the tensor 'losses'", value=str(stored.path))
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
            raise VocabularyMismatch(message, value=value, expected=saved_value, hint="resume with the same policy")
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
