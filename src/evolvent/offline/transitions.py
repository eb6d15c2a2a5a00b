"""Episodes as the tokens of whole transitions: what Trajectory Transformer learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from evolvent.models.sequence_bins import QuantileBins
from evolvent.offline.windows import Standard, WindowSource, to_go
from evolvent.store.episodes import Episodes

__all__ = ["TransitionSource"]


class TransitionSource:
    """Windows of K transitions as bins of their columns: observation, action, reward, what is earned after it, the end.

    Attributes:
        bins: of the columns, by these episodes.
    Args:
        context: K. bins: at most so many a column. gamma: discount of what is earned later.
        terminal: added to the reward that ends an episode for good.
    """

    def __init__(self, episodes: Episodes, *, context: int, bins: int, gamma: float, terminal: float = 0.0) -> None:
        last = np.cumsum(episodes.lengths) - 1
        reward, end = episodes.reward.copy(), np.zeros(len(episodes.reward))
        reward[last[episodes.terminated]] += terminal
        end[last[episodes.terminated]] = 1.0
        paid = replace(episodes, reward=reward)
        after = np.append(to_go(paid, gamma=gamma)[1:], 0.0)  # of the next step
        after[last] = 0.0
        self._windows = WindowSource(
            paid, context=context, standard=Standard.plain(episodes.observation.shape[1]), ahead=True
        )
        action = episodes.action.reshape(len(reward), -1)
        whole = np.concatenate([episodes.observation, action, np.stack([reward, after, end], 1)], 1)
        self.bins = QuantileBins.of(whole, bins=bins)
        self._tokens, self._final = self.bins.encoded(whole), self.bins.encoded(episodes.final)
        self._context, self._episodes = context, episodes

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """`batch` windows at random: tokens `[B, K T]`, where they are seen, and where they are there to be learned.

        After an episode's last decision stands its final observation, the rest of that transition is not learned.
        """
        return self.at(rng.integers(len(self._episodes.reward), size=batch))

    def at(self, decisions: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """The windows that begin with these decisions `[B]`."""
        read = self._windows.at(decisions)
        seen, decided, time = read.seen.numpy(), read.decided.numpy(), read.time.numpy()
        episode = self._episodes.episode[decisions]
        row = np.where(decided, self._episodes.starts[episode][:, None] + time, 0)
        tokens = np.where(decided[..., None], self._tokens[row], 0)
        final = seen & ~decided
        observed = self._final.shape[1]
        tokens[..., :observed] = np.where(final[..., None], self._final[episode][:, None], tokens[..., :observed])
        learned = np.repeat(decided[..., None], tokens.shape[-1], -1)
        learned[..., :observed] |= final[..., None]
        whole = np.repeat(seen[..., None], tokens.shape[-1], -1)
        return tuple(torch.from_numpy(x.reshape(len(decisions), -1)) for x in (tokens, whole, learned))  # type: ignore[return-value]
