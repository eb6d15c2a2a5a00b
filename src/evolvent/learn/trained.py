"""The trained state: weights and the state of their optimizer, as a checkpoint holds them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from evolvent.errors import ConfigError, Problem, boundary
from evolvent.learn.optim.make import OptimizerConfig, build_optimizer, is_builtin
from evolvent.models.pieces import local_tensor

__all__ = ["LEARNING", "OptimizerNumbers", "TrainState", "check_resumes"]

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
            weight,
            which is one there.
    """

    weights: Mapping[str, Tensor]
    optimizer: Optimizer
    whole_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def averages(self) -> bool:
        """Returns whether the training weights differ from the weights that play.

        Schedule-free optimizers (arXiv 2405.15682) take gradients at one point and average another, and have
        `train()` and
        `eval()` to switch between them.
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
        nothing where
        both are the same.
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
        restore its
        numbers afterwards.
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
        message = f"{config.name} keeps more than a checkpoint holds: a resumed training would not be the same"
        raise ConfigError(
            [Problem("optimizer.name", message, "use adamw, adan, lion, adafactor or another that resumes")]
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
