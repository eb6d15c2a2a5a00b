"""Episodes as the tokens of whole transitions: the training data of Trajectory Transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from evolvent.models.sequence_bins import QuantileBins
from evolvent.offline.windows import ObservationScaler, WindowSource, returns_to_go
from evolvent.store.episodes import Episodes

__all__ = ["TransitionSource"]


class TransitionSource:
    """Windows of K transitions as bins of their columns: observation, action, reward, return after it, end of the
    episode.

    Attributes:
        bins: of the columns, by these episodes.
    Args:
        context: K.
        bins: limit of bins per column.
        gamma: discount of later rewards.
        terminal: added to the reward that ends an episode for good.
    """

    def __init__(self, episodes: Episodes, *, context: int, bins: int, gamma: float, terminal: float = 0.0) -> None:
        last = np.cumsum(episodes.lengths) - 1
        reward, is_end = episodes.reward.copy(), np.zeros(len(episodes.reward))
        reward[last[episodes.terminated]] += terminal
        is_end[last[episodes.terminated]] = 1.0
        adjusted_episodes = replace(episodes, reward=reward)
        return_after = np.append(returns_to_go(adjusted_episodes, gamma=gamma)[1:], 0.0)  # of the next step
        return_after[last] = 0.0
        self._windows = WindowSource(
            adjusted_episodes,
            context=context,
            standard=ObservationScaler.identity(episodes.observation.shape[1]),
            ahead=True,
        )
        action = episodes.action.reshape(len(reward), -1)
        columns = np.concatenate([episodes.observation, action, np.stack([reward, return_after, is_end], 1)], 1)
        self.bins = QuantileBins.fit(columns, bins=bins)
        self._tokens, self._final = self.bins.encode(columns), self.bins.encode(episodes.final)
        self._context, self._episodes = context, episodes

    def sample(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Samples `batch` windows: tokens `[B, K T]`, whether each is visible, and whether each is learned.

        After an episode's last decision comes its final observation; the rest of that transition is not learned.
        """
        return self.windows_from(rng.integers(len(self._episodes.reward), size=batch))

    def windows_from(self, decisions: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the windows that begin with these decisions `[B]`."""
        windows = self._windows.windows_from(decisions)
        is_visible, is_decided, time = windows.seen.numpy(), windows.decided.numpy(), windows.time.numpy()
        episode = self._episodes.episode_index[decisions]
        row = np.where(is_decided, self._episodes.starts[episode][:, None] + time, 0)
        tokens = np.where(is_decided[..., None], self._tokens[row], 0)
        final = is_visible & ~is_decided
        num_observed = self._final.shape[1]
        tokens[..., :num_observed] = np.where(
            final[..., None], self._final[episode][:, None], tokens[..., :num_observed]
        )
        is_learned = np.repeat(is_decided[..., None], tokens.shape[-1], -1)
        is_learned[..., :num_observed] |= final[..., None]
        token_visible = np.repeat(is_visible[..., None], tokens.shape[-1], -1)
        return tuple(
            torch.from_numpy(array.reshape(len(decisions), -1)) for array in (tokens, token_visible, is_learned)
        )  # type: ignore[return-value]
