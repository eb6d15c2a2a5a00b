"""What a training changes: weights and the state of their optimizer, as a checkpoint holds them."""

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
from evolvent.learn.optim.make import OptimizerConfig, is_own, make
from evolvent.models.pieces import local_of

__all__ = ["LEARNING", "Numbers", "Trained", "check_resumes"]

LEARNING = "learning"  # group of a checkpoint: the weights that learn, where they are not those to play
Numbers = dict[str, dict[str, bool | int | float | None]]
_UPDATES, _STOP = 12, 5  # of the rehearsal: some optimizers do something else every fifth or sixth update


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training changes on this rank: its weights by their names here, and their optimizer.

    Frozen weights are not among them: a checkpoint does not hold those.

    Attributes:
        wholes: a weight's name in the whole model, where that is another: pipeline stages have two copies of a tied
            weight, which is one there.
    """

    weights: Mapping[str, Tensor]
    optimizer: Optimizer
    wholes: Mapping[str, str] = field(default_factory=dict)

    @property
    def averages(self) -> bool:
        """Whether the weights that learn are others than those that are good: schedule-free optimizers (arXiv
        2405.15682) take gradients at one point and average another, and have `train()` and `eval()` to go between."""
        return all(callable(getattr(self.optimizer, name, None)) for name in ("train", "eval"))

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Inside, the weights are those that updates change; outside, those to play, measure and keep."""
        self._turn("train")
        try:
            yield
        finally:
            self._turn("eval")

    def settle(self) -> None:
        """Outside of `learning`: weights that still are those that learn become those to play; others stay."""
        self._turn("eval")

    @contextmanager
    def averaged(self) -> Iterator[Mapping[str, Mapping[str, Tensor]]]:
        """While it learns: inside, the weights are those to play; afterwards all is as before, bit for bit.

        Yields a group for a checkpoint, by its name: the weights that learn, from which a training goes on. Nothing
        where these are the same.
        """
        if not self.averages:
            yield {}
            return
        kept = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._turn("eval")
        try:
            yield {LEARNING: {name: kept[first] for name, first in self._firsts().items()}}
        finally:
            self._turn("train")
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(kept[name])

    @torch.no_grad()
    def _turn(self, mode: str) -> None:
        if self.averages:
            with boundary(ConfigError, f"{type(self.optimizer).__name__} could not turn its weights to {mode!r}"):
                getattr(self.optimizer, mode)()

    def _firsts(self) -> dict[str, str]:
        """By its name in the whole model, the name here of each weight; of two copies the first."""
        found: dict[str, str] = {}
        for name in self.weights:
            found.setdefault(self.wholes.get(name, name), name)
        return found

    def named(self) -> dict[str, Tensor]:
        """The weights by their names in the whole model; of two copies the first."""
        return {name: self.weights[first] for name, first in self._firsts().items()}

    def moments(self) -> dict[str, Tensor]:
        """The tensors of the optimizer's state, as `moment/weight`. A weight that never had a gradient has none."""
        state = self.optimizer.state
        return {
            f"{key}/{name}": value
            for name, weight in self.named().items()
            if weight in state
            for key, value in state[weight].items()
            if isinstance(value, Tensor)
        }

    def numbers(self) -> Numbers:
        """What the optimizer counts and estimates for all weights together (updates, Prodigy's d, ...), as JSON values.

        By "matrices" and "vectors", the two kinds of groups that every layout has (`optim.make`).
        """
        found: Numbers = {}
        for group in self.optimizer.param_groups:
            single = {key: x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for key, x in group.items()}
            plain = {key: x for key, x in single.items() if isinstance(x, bool | int | float | None)}
            found.setdefault(_kind(group["params"]), plain)
        return found

    def renumber(self, numbers: Numbers) -> None:
        """Go on from these numbers; to be called when the state has begun."""
        for group in self.optimizer.param_groups:
            for key, value in numbers.get(_kind(group["params"]), {}).items():
                if isinstance(group.get(key), Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value

    def begin(self, names: Container[str]) -> None:
        """Let the optimizer make the state of these weights, so that there is something to fill: one after another
        takes a step of length 0 with a gradient of 0. The optimizer counts these steps: its numbers are to follow."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for weight in (weight for name, weight in self.weights.items() if self.wholes.get(name, name) in names):
            weight.grad = torch.zeros_like(weight)
            self.optimizer.step()
            weight.grad = None
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    @torch.no_grad()
    def agree(self) -> None:
        """Where both copies of a tied weight are on this rank: what the first was filled with goes into the second."""
        named, state = self.named(), self.optimizer.state
        for name, copy in self.weights.items():
            first = named[self.wholes.get(name, name)]
            if copy is not first:
                pairs = [
                    (copy, first),
                    *(
                        (state[copy][key], value)
                        for key, value in state.get(first, {}).items()
                        if isinstance(value, Tensor)
                    ),
                ]
                for target, source in pairs:
                    local_of(target).copy_(local_of(source))


def _kind(weights: list[Tensor]) -> str:
    return "matrices" if weights[0].dim() > 1 else "vectors"


def check_resumes(config: OptimizerConfig) -> None:
    """Refuse an optimizer that does not go on from a checkpoint as if it had not been stopped.

    A checkpoint holds the tensors that an optimizer keeps for each weight, and the numbers of its groups. Some of
    `pytorch_optimizer` keep more: lists, projections, attributes. Those of torch and ours are known to come back;
    others rehearse a few updates on two small weights, once straight on and once stopped.

    Raises:
        ConfigError: it ends elsewhere.
    """
    if is_own(config.name):
        return
    with boundary(ConfigError, f"optimizer {config.name!r} failed where it was stopped and resumed"):
        straight, stopped = (_rehearsed(config, stop=stop) for stop in (None, _STOP))
    if stopped is None or straight is None or repr(straight) != repr(stopped):
        what = f"{config.name} keeps more than a checkpoint holds: a resumed training would not be the same"
        raise ConfigError([Problem("optimizer.name", what, "use adamw, adan, lion, adafactor or another that resumes")])


def _rehearsed(config: OptimizerConfig, *, stop: int | None) -> tuple[dict[str, list[Any]], Numbers] | None:
    """Where weights, moments and numbers end; None where state was not made again."""
    trained = _fresh(config)
    with torch.random.fork_rng(devices=[]):
        for update in range(_UPDATES):
            torch.manual_seed(update)
            if update == _STOP:  # a checkpoint is no change, whether or not it is gone back to
                numbers = json.loads(json.dumps(trained.numbers()))
                with trained.averaged() as more:
                    kept = [
                        {name: x.detach().clone() for name, x in part.items()}
                        for part in (more.get(LEARNING, trained.named()), trained.moments())
                    ]
            if update == stop:
                trained = _fresh(config)
                trained.begin(trained.weights)
                made = (trained.named(), trained.moments())
                if made[1].keys() != kept[1].keys():
                    return None
                for part, old in zip(made, kept, strict=True):
                    for name, x in part.items():
                        x.detach().copy_(old[name])
                trained.renumber(numbers)
            for weight in trained.weights.values():
                weight.grad = torch.sin(7 * weight.detach() + update)
            trained.optimizer.step()
    with trained.averaged():
        found = {**trained.named(), **trained.moments()}
        return {name: x.detach().flatten().tolist() for name, x in found.items()}, trained.numbers()


def _fresh(config: OptimizerConfig) -> Trained:
    weights = {"matrix": torch.linspace(-1, 1, 24).reshape(6, 4), "vector": torch.linspace(-0.5, 1, 6)}
    weights = {name: weight.requires_grad_() for name, weight in weights.items()}
    return Trained(weights, make(config, weights.items(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1))
