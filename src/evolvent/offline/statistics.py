"""Statistics of the future: what a step is conditioned on when it is asked for more than a return.

"Generalized Decision Transformer for Offline Hindsight Information Matching" (arXiv 2111.10364). A return-to-go is the
sum of the rewards that follow. Any feature of a step has such a sum: its vector, or the count of each of its bins,
which is a distribution once divided by the number of steps. Counts are subtracted while an episode is played, as
rewards are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import ConfigError
from evolvent.store.episodes import Episodes

__all__ = ["FeatureBins", "count_distance", "future_counts"]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBins:
    """Bins of some numbers of an observation, each between its least and most value in the data.

    Attributes:
        columns: `[F]`, which numbers of an observation are features.
        low: `[F]`, the least values.
        high: `[F]`, the largest values.
        bins: V, bins of each feature.
    """

    columns: tuple[int, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bins: int

    @classmethod
    def fit(cls, observation: NDArray[np.float32], *, columns: tuple[int, ...], bins: int) -> FeatureBins:
        """Builds bins from observations `[N, O]`.

        Raises:
            ConfigError: a column that the observations do not have, or less than one bin.
        """
        size = observation.shape[1]
        if not columns or min(columns) < 0 or max(columns) >= size:
            raise ConfigError("feature out of range", value=columns, expected=f"numbers from 0 to {size - 1}")
        if bins < 1:
            raise ConfigError("number of bins out of range", value=bins, expected="1 or more")
        values = observation[:, list(columns)].astype(np.float64)
        return cls(columns, values.min(0), values.max(0), bins)

    @property
    def size(self) -> int:
        """Returns F V, the numbers of a condition."""
        return len(self.columns) * self.bins

    def one_hot(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Returns `[..., F V]`: for each feature 1 at its bin; values beyond the data fall into the outer bins.

        >>> FeatureBins((1,), np.array([0.0]), np.array([4.0]), 4).one_hot([[9.0, 2.5], [9.0, 7.0]]).tolist()
        [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
        """
        values = np.asarray(observation, np.float64)[..., list(self.columns)]
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        index = np.clip(((values - self.low) / width * self.bins).astype(np.int64), 0, self.bins - 1)
        return np.eye(self.bins)[index].reshape(*index.shape[:-1], self.size)


def future_counts(episodes: Episodes, features: FeatureBins) -> NDArray[np.float64]:
    """Computes `I_t = phi(o_(t+1)) + I_(t+1)` to the end of each episode, `[N, F V]`, phi: one-hot bins.

    Entry v of a feature is how many of the observations after the decision are in bin v.
    """
    counts = np.zeros((len(episodes.reward), features.size))
    for number, (start, length) in enumerate(zip(episodes.starts, episodes.lengths, strict=True)):
        after = np.concatenate([episodes.observation[start + 1 : start + length], episodes.final[number : number + 1]])
        counts[start : start + length] = features.one_hot(after)[::-1].cumsum(0)[::-1]
    return counts


def count_distance(counts: NDArray[np.float64], target: NDArray[np.float64], *, bins: int) -> float:
    """Computes the mean earth mover's distance between two distributions of each feature, in widths of a bin.

    Args:
        counts: `[F V]`, of one episode.
        target: `[F V]`, of another.
        bins: V.

    >>> count_distance(np.array([4.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0]), bins=3)
    1.5
    """
    shares = [values.reshape(-1, bins) / values.reshape(-1, bins).sum(1, keepdims=True) for values in (counts, target)]
    return float(np.abs(np.cumsum(shares[0] - shares[1], 1)).sum(1).mean())
