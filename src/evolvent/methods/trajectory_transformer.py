"""Trajectory Transformer: a model of whole trajectories, and a beam in it that looks for the best.

"Offline Reinforcement Learning as One Big Sequence Modeling Problem" (arXiv 2106.02039). Every number of a transition
is a bin of equal weight and a token; a GPT learns them all. To act, continue what happened so far: actions are drawn
from the likelier bins, what follows is the likeliest, and a beam keeps the plans that are worth most.

It departs from the paper on purpose: a column says whether the episode ends, so that nothing is earned beyond an end.
How far back a plan looks is `memory`: with all of an episode in sight the model repeats whole episodes, with one step
it is a model of a Markov world, and pieces of different episodes can be put together (`worlds/stitching.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.offline.training import SequenceTraining
from evolvent.store.episodes import Episodes
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from evolvent.models.sequence_bins import QuantileBins
    from evolvent.models.trajectory_model import TrajectoryModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping
    from evolvent.offline.windows import History
    from evolvent.rollout.imagined import Imagined

__all__ = [
    "PRESETS",
    "Planner",
    "Planning",
    "TrajectoryTransformer",
    "load_planner",
    "save_planner",
    "trajectory_transformer",
]


class Planning(Config):
    """How a plan is looked for; the defaults are the paper's."""

    keep: int = Field(default=128, ge=1, description="plans that a beam keeps")
    horizon: int = Field(default=15, ge=1, description="steps of a plan")
    width: int = Field(default=2, ge=1, description="continuations of each plan")
    kept: float = Field(default=0.6, gt=0, le=1, description="actions are drawn from the bins that hold so much")
    memory: int = Field(default=5, ge=1, description="steps that are read, the newest included")


def _fits(planning: Planning, context: int) -> None:
    if planning.memory >= context:
        what = f"{planning.memory} steps and the next one do not fit a context of {context}"
        raise ConfigError([Problem("planning.memory", what, "give fewer")])


class TrajectoryTransformer(Config):
    """What can be chosen about Trajectory Transformer."""

    context: int = Field(default=10, ge=2, description="transitions that the model reads")
    bins: int = Field(default=100, ge=2, description="of every number")
    gamma: float = Field(default=0.99, gt=0, le=1, description="discount of what is earned later")
    terminal: float = Field(default=0.0, description="added to the reward that ends an episode (locomotion: -100)")
    action_weight: float = Field(default=5.0, gt=0, description="of the loss on actions")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=4, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    train: SequenceTraining = Field(
        default=SequenceTraining(lr=6e-4, weight_decay=0.1, beta2=0.95, grad_norm=1.0, warmup=1000),
        description="how it is trained",
    )
    planning: Planning = Field(default=Planning(), description="how a plan is looked for")
    seed: int = Field(default=0, ge=0, description="of everything random")

    @model_validator(mode="after")
    def _memory_fits(self) -> TrajectoryTransformer:
        _fits(self.planning, self.context)
        return self


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {"terminal": -100.0},
        "small": {
            "context": 4,
            "bins": 32,
            "width": 64,
            "layers": 2,
            "heads": 2,
            "dropout": 0.0,
            "train": {"updates": 1500, "lr": 1e-3, "warmup": 50},
            "planning": {"keep": 16, "horizon": 8, "width": 4, "memory": 2},
        },
    }
)
"""The paper's settings for locomotion, and ones for small worlds on a processor."""


@dataclass(frozen=True)
class Planner:
    """A trained model, its bins and how it plans. `discrete`: actions are choices. `history`: update and loss."""

    model: TrajectoryModel
    bins: QuantileBins
    planning: Planning
    gamma: float
    discrete: bool
    history: tuple[dict[str, float], ...] = ()

    def actor(self) -> ArrayActor:
        """Who makes a plan at every step and takes its first action."""
        from evolvent.rollout.imagined import beam_plan

        shape, how = self.model.shape, self.planning

        def act(history: History) -> NDArray[Any]:
            seeds = [sample_seed("plan", int(seed), history.step) for seed in history.seed]
            chosen = [
                beam_plan(
                    self._imagine,
                    prefix,
                    columns=shape.action,
                    width=how.width,
                    keep=how.keep,
                    horizon=how.horizon,
                    gamma=self.gamma,
                    seed=seed,
                ).first
                for prefix, seed in zip(self._prefixes(history), seeds, strict=True)
            ]
            found = self.bins.decoded(np.array(chosen), first=shape.observation)
            return found[:, 0].astype(np.int64) if self.discrete else found.astype(np.float32)

        return act

    def _prefixes(self, history: History) -> NDArray[np.int64]:
        """`[E, L]`, the last `memory` steps as tokens; after each of them, it says, the most was earned (published)."""
        shape, now = self.model.shape, history.step
        first = max(0, now + 1 - self.planning.memory)
        action = history.action[:, first:now].reshape(len(history.seed), now - first, shape.action)
        reward = history.reward[:, first:now, None]
        most, goes_on = np.full_like(reward, self.bins.middles[-2][-1]), np.zeros_like(reward)
        past = self.bins.encoded(np.concatenate([history.observation[:, first:now], action, reward, most, goes_on], -1))
        newest = self.bins.encoded(history.observation[:, now])
        return np.concatenate([past.reshape(len(newest), (now - first) * shape.columns), newest], 1)

    def _imagine(self, tokens: NDArray[np.int64], draws: NDArray[np.float64]) -> Imagined:
        import torch

        from evolvent.rollout.imagined import Imagined

        shape = self.model.shape
        back = (self.planning.memory - 1) * shape.columns + shape.observation
        found = self.model.continued(
            torch.from_numpy(tokens), torch.from_numpy(draws).float(), kept=self.planning.kept
        ).numpy()
        made = found[:, tokens.shape[1] : tokens.shape[1] + shape.action + 3]
        paid = self.bins.decoded(made[:, shape.action :], first=shape.observation + shape.action)
        return Imagined(found[:, -back:], made[:, : shape.action], paid[:, 0], paid[:, 1], paid[:, 2] > 0.5)


def trajectory_transformer(
    config: TrajectoryTransformer, episodes: Episodes, *, keep: Keeping | None = None
) -> Planner:
    """Train, or go on in `keep`. ConfigError: more choices than bins, other settings. NonFinite: learning broke."""
    import torch

    from evolvent.learn.losses import target_logprobs, weighted_nll
    from evolvent.models.trajectory_model import TrajectoryModel, TrajectoryShape
    from evolvent.offline.state import begun
    from evolvent.offline.training import fit_windows, seeded
    from evolvent.offline.transitions import TransitionSource

    if episodes.actions > config.bins:
        raise ConfigError(
            "choices would share a bin",
            value=episodes.actions,
            expected=f"at most {config.bins}",
            hint=f"give bins={episodes.actions}",
        )
    source = TransitionSource(
        episodes, context=config.context, bins=config.bins, gamma=config.gamma, terminal=config.terminal
    )
    shape = TrajectoryShape(
        counts=source.bins.counts,
        observation=episodes.observation.shape[1],
        action=episodes.dim or 1,
        context=config.context,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model = seeded(lambda: TrajectoryModel(shape), config.seed)
    past = torch.arange(shape.columns) - shape.observation
    weight = torch.where((past >= 0) & (past < shape.action), config.action_weight, 1.0).repeat(config.context)[1:]

    def loss(rng: np.random.Generator) -> Any:
        tokens, seen, learned = source.draw(rng, config.train.batch)
        logits = model(tokens[:, :-1], seen=seen[:, :-1])
        mask = learned[:, 1:] & seen[:, :-1]  # the first token of a window is foretold by nothing
        logp = target_logprobs(logits[mask], tokens[:, 1:][mask])
        return weighted_nll(logp, weight.expand(mask.shape)[mask]), mask.sum()

    history = fit_windows(model, loss, config.train, seed=config.seed, keep=begun(keep, config, episodes.digest))
    return Planner(model, source.bins, config.planning, config.gamma, bool(episodes.actions), history)


def save_planner(policy: Planner, folder: Path) -> None:
    """Write the policy; NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {
        "borders": [x.tolist() for x in policy.bins.borders],
        "middles": [x.tolist() for x in policy.bins.middles],
        "planning": policy.planning.model_dump(),
        "gamma": policy.gamma,
        "discrete": policy.discrete,
    }
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_planner(folder: Path) -> Planner:
    """Read what `save_planner` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_bins import QuantileBins
    from evolvent.models.sequence_files import described, load_sequence
    from evolvent.models.trajectory_model import TrajectoryModel, TrajectoryShape

    model, extra = load_sequence(TrajectoryModel, TrajectoryShape, folder)
    with described(folder):
        bins = QuantileBins(*(tuple(np.array(x, np.float64) for x in extra[name]) for name in ("borders", "middles")))
        if bins.counts != model.shape.counts:
            raise SampleInvalid("bins of another model", value=bins.counts, expected=model.shape.counts)
        _fits(planning := Planning(**extra["planning"]), model.shape.context)
        return Planner(model, bins, planning, float(extra["gamma"]), bool(extra["discrete"]))
