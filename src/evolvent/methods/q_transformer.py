"""Q-Transformer: offline Q-learning in which an action is a sequence of its dimensions.

"Q-Transformer: Scalable Offline Reinforcement Learning via Autoregressive Q-Functions" (arXiv 2309.10150). Each
dimension is cut into bins and has a value given the dimensions before it. Inside an action the target is the most of
the next dimension's bins, at its end reward and discounted value of what is seen next: the backup with action
decomposition that the rest of this library uses, with a maximum for its value. Targets are not below the return that
the data show (what was cut off counts as the least return), and bins that the data do not show are pulled to that.

As it bootstraps, it puts pieces of episodes together that no episode has together (`worlds/stitching.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.offline.training import SequenceTraining
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evolvent.models.q_sequence import QSequence
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping
    from evolvent.offline.windows import History, Standard, Windows

__all__ = ["Autoregressive", "QTransformer", "load_autoregressive", "q_transformer", "save_autoregressive"]


class QTransformer(Config):
    """What can be chosen about Q-Transformer."""

    context: int = Field(default=1, ge=1, description="steps that are read")
    bins: int = Field(default=256, ge=2, description="of each dimension, where actions are numbers")
    gamma: float = Field(default=0.98, ge=0, le=1, description="discount between actions; inside one there is none")
    monte_carlo: bool = Field(default=True, description="no target below the return that the data show")
    conservative: float = Field(default=1.0, ge=0, description="weight of the pull of unseen bins to the least return")
    floor: float | None = Field(default=None, description="the least return; none: the least return-to-go of the data")
    scale: float = Field(default=1.0, gt=0, description="what rewards are divided by")
    polyak: float = Field(default=0.01, gt=0, le=1, description="how far the lagging network follows at each update")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=2, ge=1, description="blocks")
    train: SequenceTraining = Field(
        default=SequenceTraining(lr=3e-4, warmup=0, grad_norm=10.0), description="how it is trained"
    )
    seed: int = Field(default=0, ge=0, description="of everything random")


@dataclass(frozen=True)
class Autoregressive:
    """A trained Q-Transformer. `discrete`: actions are choices. `history`: update and loss."""

    model: QSequence
    standard: Standard
    discrete: bool
    history: tuple[dict[str, float], ...] = ()

    def actor(self) -> ArrayActor:
        """Who takes the best bin of each dimension, given those before it."""
        from evolvent.models.q_sequence import bin_middles
        from evolvent.offline.windows import recent

        def act(history: History) -> NDArray[Any]:
            read = recent(history, self.model.shape.context, standard=self.standard)
            best = self.model.best(read.observation, self.bins(read.action)).numpy()
            return best[:, 0] if self.discrete else bin_middles(best, bins=self.model.shape.bins)

        return act

    def bins(self, action: Any) -> Any:
        """Actions of windows as bins, `[B, K, d]` int64; -1 where none was taken yet."""
        import torch

        from evolvent.models.q_sequence import action_bins

        if self.discrete:
            return action[..., None]
        return torch.from_numpy(action_bins(action.numpy(), bins=self.model.shape.bins))


def q_transformer(config: QTransformer, episodes: Episodes, *, keep: Keeping | None = None) -> Autoregressive:
    """Train on episodes; actions that are numbers lie in -1..1.

    Args:
        keep: where the training is kept; one that is begun again there goes on.
    Raises:
        SampleInvalid: actions outside -1..1. ConfigError: a training of other settings is kept there.
        NonFinite: learning broke down.
    """
    import torch

    from evolvent.models.q_sequence import QSequence, QShape
    from evolvent.offline.losses import unseen_to_floor
    from evolvent.offline.q_targets import learned_steps, q_targets
    from evolvent.offline.state import begun
    from evolvent.offline.training import fit_windows, seeded
    from evolvent.offline.windows import WindowSource, to_go
    from evolvent.rl.soft_values import td_loss

    scaled = replace(episodes, reward=episodes.reward / config.scale)
    least = float(to_go(scaled, gamma=config.gamma).min())
    floor = least if config.floor is None else config.floor / config.scale
    source = WindowSource(scaled, context=config.context + 1, gamma=config.gamma, cut=floor, ahead=True)
    shape = QShape(
        observation=episodes.observation.shape[1],
        dims=episodes.dim or 1,
        context=config.context,
        bins=episodes.actions or config.bins,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
    )
    model = seeded(lambda: QSequence(shape), config.seed)
    with torch.no_grad():
        model.offset.fill_(floor)
    lagging = copy.deepcopy(model).eval()
    policy = Autoregressive(model, source.standard, bool(episodes.actions))
    policy.bins(torch.from_numpy(episodes.action))  # all of them, before the first update

    def loss(rng: np.random.Generator) -> Any:
        read = source.draw(rng, config.train.batch)
        bins, mask = policy.bins(read.action), learned_steps(read)[:, :-1]
        target = q_targets(_values(lagging, read, bins), read, gamma=config.gamma, monte_carlo=config.monte_carlo)
        target, bins = target[:, :-1], bins[:, :-1]
        q = model(read.observation[:, :-1], bins, seen=read.seen[:, :-1])
        chosen = q.gather(-1, bins.clamp(min=0)[..., None])[..., 0]
        every = mask[..., None].expand_as(chosen)
        missed = td_loss(chosen[every], target[every]).sum()
        pulled, count = unseen_to_floor(q, bins, every, floor=floor)
        return missed + config.conservative * pulled, count

    @torch.no_grad()
    def follow(_: int) -> None:
        for late, new in zip(lagging.parameters(), model.parameters(), strict=True):
            late.lerp_(new, config.polyak)

    keep = begun(keep, config, episodes.digest, lagging=lagging)
    history = fit_windows(model, loss, config.train, seed=config.seed, after=follow, keep=keep)
    return Autoregressive(model, source.standard, policy.discrete, history)


def _values(network: QSequence, read: Windows, bins: Any) -> Any:
    """`[B, K + 1, d]`, the most of each dimension's bins. What follows K steps is read with the last K - 1 of them, as
    it is while learning and acting: what longer windows are worth the network never learns."""
    import torch

    from evolvent.rl.soft_values import hard_value

    with torch.no_grad():
        before = network(read.observation[:, :-1], bins[:, :-1], seen=read.seen[:, :-1])
        after = network(read.observation[:, 1:], bins[:, 1:], seen=read.seen[:, 1:])
        return hard_value(torch.cat([before, after[:, -1:]], 1))


def save_autoregressive(policy: Autoregressive, folder: Path) -> None:
    """Write the policy; NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {**policy.standard.kept, "discrete": policy.discrete}
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_autoregressive(folder: Path) -> Autoregressive:
    """Read what `save_autoregressive` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.q_sequence import QSequence, QShape
    from evolvent.models.sequence_files import described, load_sequence
    from evolvent.offline.windows import Standard

    model, extra = load_sequence(QSequence, QShape, folder)
    with described(folder):
        return Autoregressive(model, Standard.read(extra, model.shape.observation), bool(extra["discrete"]))
