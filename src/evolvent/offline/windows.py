"""Windows of episodes: what sequence policies read, in training and while they act.

A window is K steps in a row. Episodes shorter than that, and windows that reach over an episode's end, are padded on
the left, so that the newest step always stands at the right. What stands at padding is 0 (a discrete action: -1), and
no model looks at it: `seen` says where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, SampleInvalid
from evolvent.learn.returns import reward_to_go
from evolvent.store.episodes import Episodes

__all__ = ["History", "Standard", "WindowSource", "Windows", "recent", "to_go"]

_SMALLEST = 1e-6  # added to a deviation, as published


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """How observations are standardised: `(x - mean) / (deviation + 1e-6)`; mean, deviation: `[O]`.

    A number that never varies in the data has deviation 1: else it would be blown up a million times where it does.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, episodes: Episodes) -> Standard:
        """By the decisions of these episodes."""
        deviation = episodes.observation.std(0, dtype=np.float64)
        return cls(episodes.observation.mean(0, dtype=np.float64), np.where(deviation > 0, deviation, 1.0))

    @classmethod
    def plain(cls, observation: int) -> Standard:
        """Leaves O numbers as they are, up to 1e-6 of them."""
        return cls(np.zeros(observation), np.ones(observation))

    @classmethod
    def read(cls, row: Mapping[str, Any], observation: int) -> Standard:
        """From the JSON values of `kept`; SampleInvalid where they do not standardise O numbers."""
        mean, deviation = (np.asarray(row.get(name), np.float64) for name in ("mean", "deviation"))
        if (
            mean.shape != (observation,)
            or deviation.shape != mean.shape
            or not np.isfinite([mean, deviation]).all()
            or (deviation <= 0).any()
        ):
            raise SampleInvalid(
                "nothing to standardise with",
                value=(mean.shape, deviation.shape),
                expected=f"{observation} finite means, and deviations above 0",
            )
        return cls(mean, deviation)

    @property
    def kept(self) -> dict[str, list[float]]:
        """It as JSON values."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    def __call__(self, observation: ArrayLike) -> NDArray[np.float32]:
        """`[..., O]`, standardised; BatchMismatch for observations of another world."""
        if np.shape(observation)[-1:] != self.mean.shape:
            raise BatchMismatch(
                "observations of another size than the data's",
                value=np.shape(observation)[-1:],
                expected=self.mean.shape,
            )
        whole = (np.asarray(observation, np.float64) - self.mean) / (self.deviation + _SMALLEST)
        return whole.astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """B windows of K steps.

    Attributes:
        observation: `[B, K, O]` float32. action: `[B, K]` int64 or `[B, K, D]` float32. reward: `[B, K]` float32.
        to_go: `[B, K]` float32, what is still earned from this step on (asked for, while acting).
        time: `[B, K]` int64, the step's number in its episode.
        seen: `[B, K]` bool, False at padding. decided: `[B, K]` bool, steps with an action to learn; a final
            observation is seen and has none.
        terminated: `[B]` bool, whether the window's last decision ended its episode for good.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    to_go: Tensor
    time: Tensor
    seen: Tensor
    decided: Tensor
    terminated: Tensor

    @property
    def count(self) -> Tensor:
        """How many actions are to be learned."""
        return self.decided.sum()


def to_go(episodes: Episodes, *, gamma: float = 1.0, cut: float = 0.0) -> NDArray[np.float64]:
    """`R_t = r_t + gamma R_(t+1)` to the end of each episode, `[N]`; `cut` stands for what was cut off."""
    last, reward = np.cumsum(episodes.lengths) - 1, episodes.reward.copy()
    reward[last[~episodes.terminated]] += gamma * cut
    return reward_to_go(reward, gamma=gamma, last=last)


class WindowSource:
    """Windows of these episodes. Every decision is as likely a first step as any other, so that an episode is drawn in
    proportion to its length (Decision Transformer, arXiv 2106.01345, published code).

    Args:
        context: K. gamma: of the returns-to-go. cut: what stands in them for what was cut off.
        standard: of observations; None: by these episodes.
        ahead: the observation after an episode's last decision is a step too, seen and not decided.
    Raises:
        ConfigError: a context below 1.
    """

    def __init__(
        self,
        episodes: Episodes,
        *,
        context: int,
        gamma: float = 1.0,
        cut: float = 0.0,
        standard: Standard | None = None,
        ahead: bool = False,
    ) -> None:
        if context < 1:
            raise ConfigError("a window needs a step", value=context, expected="1 or more")
        self.episodes, self.context, self.ahead = episodes, context, ahead
        self.standard = Standard.of(episodes) if standard is None else standard
        self.to_go = to_go(episodes, gamma=gamma, cut=cut)
        self._observation, self._final = self.standard(episodes.observation), self.standard(episodes.final)
        self._starts, self._episode = episodes.starts, episodes.episode

    def draw(self, rng: np.random.Generator, batch: int) -> Windows:
        """`batch` windows at random."""
        return self.at(rng.integers(len(self.episodes.reward), size=batch))

    def at(self, decisions: ArrayLike) -> Windows:
        """The windows that begin with these decisions `[B]` (numbers in 0..N - 1)."""
        first = np.asarray(decisions, np.int64)
        data, episode = self.episodes, self._episode[first]
        start, length = self._starts[episode], data.lengths[episode]
        steps = np.minimum(self.context, length + self.ahead - (first - start))  # that the window really has
        time = (first - start + steps - self.context)[:, None] + np.arange(self.context)
        seen = time >= (first - start)[:, None]
        decided = seen & (time < length[:, None])
        row = np.where(decided, start[:, None] + time, 0)
        after = seen & ~decided
        observation = np.where(after[..., None], self._final[episode][:, None], self._observation[row])
        last = first - start + steps == length + self.ahead
        action = data.action[row]
        return _windows(
            observation=np.where(seen[..., None], observation, 0),
            seen=seen,
            decided=decided,
            action=np.where(decided, action, -1) if data.actions else np.where(decided[..., None], action, 0),
            reward=np.where(decided, data.reward[row], 0),
            to_go=np.where(decided, self.to_go[row], 0),
            time=np.where(seen, time, 0),
            terminated=data.terminated[episode] & last,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What was seen and done so far in E episodes that are at the same step t.

    Args:
        observation: `[E, t + 1, O]`. action: `[E, t]` or `[E, t, D]`. reward: `[E, t]`.
        seed: `[E]` int64, of each episode: what an actor draws depends on it and on t alone.
    """

    observation: NDArray[np.float32]
    action: NDArray[Any]
    reward: NDArray[np.float64]
    seed: NDArray[np.int64]

    @property
    def step(self) -> int:
        """t."""
        return int(self.observation.shape[1]) - 1


def recent(history: History, context: int, *, standard: Standard, target: ArrayLike = 0.0) -> Windows:
    """The last `context` steps, the action of the newest still open; `target [E]`, the return asked of each episode.

    What was earned is taken off the target step by step. Nothing is padded, as all episodes are at the same step.

    Raises:
        NonFinite: a target or an observation that is not finite. BatchMismatch: targets of another number.
    """
    rows, now = len(history.observation), history.step
    asked = np.asarray(target, np.float64)
    if asked.shape not in ((), (rows,)):
        raise BatchMismatch("not one target an episode", value=asked.shape, expected=(rows,))
    if not np.isfinite(asked).all():
        raise NonFinite("a target return is not finite", value=asked.tolist())
    newest = history.observation[:, -1]
    if not np.isfinite(newest).all():
        row = int((~np.isfinite(newest)).any(1).argmax())
        raise NonFinite(f"the observation of episode {row}, step {now} is not finite", value=newest[row].tolist())
    paid = np.concatenate([np.zeros((rows, 1)), np.cumsum(history.reward, 1)], 1)
    first = max(0, now + 1 - context)
    none = np.full((rows, 1, *history.action.shape[2:]), 0 if history.action.ndim == 3 else -1, history.action.dtype)
    decided = np.zeros((rows, now + 1 - first), np.bool_)
    return _windows(
        observation=standard(history.observation[:, first:]),
        decided=decided,
        seen=np.ones_like(decided),
        action=np.concatenate([history.action[:, first:], none], 1),
        reward=np.concatenate([history.reward[:, first:], np.zeros((rows, 1))], 1),
        to_go=(asked.reshape(-1, 1) - paid)[:, first:],
        time=np.broadcast_to(np.arange(first, now + 1), decided.shape),
        terminated=np.zeros(rows, np.bool_),
    )


def _windows(**arrays: NDArray[Any]) -> Windows:
    """Floats become float32, all else stays."""
    return Windows(
        **{
            name: torch.from_numpy(np.array(array, np.float32 if array.dtype.kind == "f" else None))
            for name, array in arrays.items()
        }
    )
