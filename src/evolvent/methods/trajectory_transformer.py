"""Trajectory Transformer: a model of whole trajectories, and a beam search in it for the best plan.

"Offline Reinforcement Learning as One Big Sequence Modeling Problem" (arXiv 2106.02039). Every number of a
transition is a bin of equal weight and a token; a GPT learns them all. To act, continue the episode so far:
actions are sampled from the likelier bins, everything after them is the likeliest, and a beam keeps the plans
with the highest return.

It departs from the paper on purpose: a column says whether the episode ends, so that nothing is earned beyond
an end. `memory` is the number of past steps that a plan reads: with all of an episode the model repeats whole
episodes, with one step it is a model of a Markov world, and pieces of different episodes can be combined
(`worlds/stitching.py`).
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
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from evolvent.models.sequence_bins import QuantileBins
    from evolvent.models.trajectory_model import TrajectoryModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History
    from evolvent.rollout.imagined import ImaginedSteps

__all__ = [
    "PRESETS",
    "Planner",
    "PlanningConfig",
    "TrajectoryTransformerConfig",
    "load_planner",
    "save_planner",
    "trajectory_transformer",
]


class PlanningConfig(Config):
    """Settings of the search for a plan; the defaults are the paper's."""

    keep: int = Field(default=128, ge=1, description="plans that a beam keeps")
    horizon: int = Field(default=15, ge=1, description="steps of a plan")
    width: int = Field(default=2, ge=1, description="continuations of each plan")
    kept: float = Field(default=0.6, gt=0, le=1, description="actions are drawn from the bins that hold so much")
    memory: int = Field(default=5, ge=1, description="steps that are read, the newest included")


def _check_memory(planning: PlanningConfig, context: int) -> None:
    if planning.memory >= context:
        message = f"got {planning.memory} steps, which do not fit a context of {context} with the next step"
        raise ConfigError([Problem("planning.memory", message, "set a lower number")])


class TrajectoryTransformerConfig(Config):
    """Settings of Trajectory Transformer."""

    context: int = Field(default=10, ge=2, description="transitions that the model reads")
    bins: int = Field(default=100, ge=2, description="of every number")
    gamma: float = Field(default=0.99, gt=0, le=1, description="discount of what is earned later")
    terminal: float = Field(default=0.0, description="added to the reward that ends an episode (locomotion: -100)")
    action_weight: float = Field(default=5.0, gt=0, description="of the loss on actions")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=4, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    train: SequenceTrainingConfig = Field(
        default=SequenceTrainingConfig(lr=6e-4, weight_decay=0.1, beta2=0.95, grad_norm=1.0, warmup=1000),
        description="how it is trained",
    )
    planning: PlanningConfig = Field(default=PlanningConfig(), description="how a plan is looked for")
    seed: int = Field(default=0, ge=0, description="of everything random")

    @model_validator(mode="after")
    def _check_planning(self) -> TrajectoryTransformerConfig:
        _check_memory(self.planning, self.context)
        return self


PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "paper": {"terminal": -100.0},
        "small": {
            "context": 4,
            "bins": 32,
            "width": 64,
            "layers": 2,
            "heads": 2,
            "dropout": 0.0,
            "train": {"max_steps": 1500, "lr": 1e-3, "warmup": 50},
            "planning": {"keep": 16, "horizon": 8, "width": 4, "memory": 2},
        },
    }
)
"""The paper's settings for locomotion, and ones for small worlds on a processor."""


@dataclass(frozen=True)
class Planner:
    """A trained model, its bins and its planning. `discrete`: actions are choices. `history`: update and loss."""

    model: TrajectoryModel
    bins: QuantileBins
    planning: PlanningConfig
    gamma: float
    discrete: bool
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self) -> ArrayActor:
        """Builds an actor that makes a plan at every step and takes its first action."""
        from evolvent.rollout.imagined import plan_by_beam

        shape, planning = self.model.shape, self.planning

        def act(history: History) -> NDArray[Any]:
            seeds = [sample_seed("plan", int(seed), history.step) for seed in history.seed]
            first_actions = [
                plan_by_beam(
                    self._continue,
                    prefix,
                    columns=shape.action,
                    width=planning.width,
                    keep=planning.keep,
                    horizon=planning.horizon,
                    gamma=self.gamma,
                    seed=seed,
                ).first
                for prefix, seed in zip(self._encode_history(history), seeds, strict=True)
            ]
            decoded = self.bins.decode(np.array(first_actions), first=shape.observation)
            return decoded[:, 0].astype(np.int64) if self.discrete else decoded.astype(np.float32)

        return act

    def _encode_history(self, history: History) -> NDArray[np.int64]:
        """Encodes `[E, L]`, the last `memory` steps as tokens; each claims the highest return after it (published)."""
        shape, step = self.model.shape, history.step
        first = max(0, step + 1 - self.planning.memory)
        action = history.action[:, first:step].reshape(len(history.seed), step - first, shape.action)
        reward = history.reward[:, first:step, None]
        best_return, no_end = np.full_like(reward, self.bins.middles[-2][-1]), np.zeros_like(reward)
        past = self.bins.encode(
            np.concatenate([history.observation[:, first:step], action, reward, best_return, no_end], -1)
        )
        newest = self.bins.encode(history.observation[:, step])
        return np.concatenate([past.reshape(len(newest), (step - first) * shape.columns), newest], 1)

    def _continue(self, tokens: NDArray[np.int64], draws: NDArray[np.float64]) -> ImaginedSteps:
        import torch

        from evolvent.rollout.imagined import ImaginedSteps

        shape = self.model.shape
        context_length = (self.planning.memory - 1) * shape.columns + shape.observation
        continued = self.model.continue_transition(
            torch.from_numpy(tokens), torch.from_numpy(draws).float(), top_p=self.planning.kept
        ).numpy()
        new_tokens = continued[:, tokens.shape[1] : tokens.shape[1] + shape.action + 3]
        decoded = self.bins.decode(new_tokens[:, shape.action :], first=shape.observation + shape.action)
        return ImaginedSteps(
            continued[:, -context_length:],
            new_tokens[:, : shape.action],
            decoded[:, 0],
            decoded[:, 1],
            decoded[:, 2] > 0.5,
        )


def trajectory_transformer(
    config: TrajectoryTransformerConfig,
    episodes: Episodes,
    *,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> Planner:
    """Trains on episodes.

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the networks learn, as "cuda:1"; the policy is on the CPU afterwards.
    Raises:
        ConfigError: there are more choices than bins, or the checkpoint is of a training with other settings.
        NonFinite: training diverged.
    """
    import torch

    from evolvent.learn.losses import target_logprobs, weighted_nll
    from evolvent.models.trajectory_model import TrajectoryModel, TrajectoryShape
    from evolvent.offline.state import configure_checkpoint
    from evolvent.offline.training import build_seeded, fit_windows
    from evolvent.offline.transitions import TransitionSource

    if episodes.actions > config.bins:
        raise ConfigError(
            "the number of bins is too small for the actions",
            value=episodes.actions,
            expected=f"at most {config.bins} actions",
            hint=f"set bins={episodes.actions}",
        )
    source = TransitionSource(
        episodes, context=config.context, bins=config.bins, gamma=config.gamma, terminal=config.terminal
    )
    shape = TrajectoryShape(
        counts=source.bins.counts,
        observation=episodes.observation.shape[1],
        action=episodes.action_dim or 1,
        context=config.context,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model = build_seeded(lambda: TrajectoryModel(shape), config.seed)
    column_offset = torch.arange(shape.columns) - shape.observation
    weight = (
        torch.where((column_offset >= 0) & (column_offset < shape.action), config.action_weight, 1.0)
        .repeat(config.context)[1:]
        .to(device)
    )

    def loss(rng: np.random.Generator) -> Any:
        tokens, is_visible, is_learned = (array.to(device) for array in source.sample(rng, config.train.batch))
        logits = model(tokens[:, :-1], attention_mask=is_visible[:, :-1])
        mask = is_learned[:, 1:] & is_visible[:, :-1]  # the first token of a window is foretold by nothing
        logp = target_logprobs(logits[mask], tokens[:, 1:][mask])
        return weighted_nll(logp, weight.expand(mask.shape)[mask]), mask.sum()

    history = fit_windows(
        model,
        loss,
        config.train,
        seed=config.seed,
        checkpoint=configure_checkpoint(checkpoint, config, episodes.digest),
        device=device,
    )
    return Planner(model, source.bins, config.planning, config.gamma, bool(episodes.actions), history)


def save_planner(policy: Planner, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
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
    """Reads a policy that `save_planner` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_bins import QuantileBins
    from evolvent.models.sequence_files import load_sequence, raise_incomplete
    from evolvent.models.trajectory_model import TrajectoryModel, TrajectoryShape

    model, extra = load_sequence(TrajectoryModel, TrajectoryShape, folder)
    with raise_incomplete(folder):
        bins = QuantileBins(
            *(tuple(np.array(array, np.float64) for array in extra[name]) for name in ("borders", "middles"))
        )
        if bins.counts != model.shape.counts:
            raise SampleInvalid("the bins belong to another model", value=bins.counts, expected=model.shape.counts)
        _check_memory(planning := PlanningConfig(**extra["planning"]), model.shape.context)
        return Planner(model, bins, planning, float(extra["gamma"]), bool(extra["discrete"]))
