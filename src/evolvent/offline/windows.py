"""Windows of episodes: the input of sequence policies, in training and while they act.

A window is K consecutive steps. Episodes shorter than that, and windows that reach beyond an episode's end, are
padded on the left, so that the newest step is always on the right. Padding is 0 (a discrete action: -1), and no
model reads it: `seen` marks the real steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, SampleInvalid
from evolvent.learn.returns import reward_to_go
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Array

__all__ = ["History", "ObservationScaler", "WindowSource", "Windows", "recent_window", "returns_to_go"]

_EPSILON = 1e-6  # added to a deviation, as published


@dataclass(frozen=True, slots=True, eq=False)
class ObservationScaler:
    """Standardization of observations: `(x - mean) / (deviation + 1e-6)`; mean, deviation: `[O]`.

    A number that never varies in the data has deviation 1: otherwise it would be scaled a million times where it
    does.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def from_episodes(cls, episodes: Episodes) -> ObservationScaler:
        """Computes mean and deviation from the decisions of these episodes."""
        deviation = episodes.observation.std(0, dtype=np.float64)
        return cls(episodes.observation.mean(0, dtype=np.float64), np.where(deviation > 0, deviation, 1.0))

    @classmethod
    def identity(cls, observation: int) -> ObservationScaler:
        """Returns a scaler that leaves O numbers as they are, up to 1e-6 of them."""
        return cls(np.zeros(observation), np.ones(observation))

    @classmethod
    def from_json(cls, row: Mapping[str, object], observation: int) -> ObservationScaler:
        """Builds it from the JSON values of `to_json`; SampleInvalid where they do not standardize O numbers."""
        mean, deviation = (np.asarray(row.get(name), np.float64) for name in ("mean", "deviation"))
        if (
            mean.shape != (observation,)
            or deviation.shape != mean.shape
            or not np.isfinite([mean, deviation]).all()
            or (deviation <= 0).any()
        ):
            raise SampleInvalid(
                "invalid observation statistics",
                value=(mean.shape, deviation.shape),
                expected=f"{observation} finite means, and deviations above 0",
            )
        return cls(mean, deviation)

    @property
    def as_json(self) -> dict[str, list[float]]:
        """Returns its JSON values."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    def __call__(self, observation: ArrayLike) -> NDArray[np.float32]:
        """Returns `[..., O]`, standardized; raises BatchMismatch for observations of another world."""
        if np.shape(observation)[-1:] != self.mean.shape:
            raise BatchMismatch(
                "observation size differs from the data",
                value=np.shape(observation)[-1:],
                expected=self.mean.shape,
            )
        scaled = (np.asarray(observation, np.float64) - self.mean) / (self.deviation + _EPSILON)
        return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """B windows of K steps.

    Attributes:
        observation: `[B, K, O]` float32.
        action: `[B, K]` int64 or `[B, K, D]` float32.
        reward: `[B, K]` float32.
        to_go: `[B, K]` float32, the return from this step on (the requested return, while acting); or `[B, K, C]`,
            another condition of each step (`WindowSource`).
        time: `[B, K]` int64, the step's number in its episode.
        seen: `[B, K]` bool, False at padding.
        decided: `[B, K]` bool, steps with an action to learn; a final observation is seen and has none.
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
        """Returns the number of actions to learn."""
        return self.decided.sum()

    def to(self, device: str | torch.device) -> Windows:
        """Returns the windows on a device."""
        return Windows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def returns_to_go(episodes: Episodes, *, gamma: float = 1.0, cut_return: float = 0.0) -> NDArray[np.float64]:
    """Computes `R_t = r_t + gamma R_(t+1)` to the end of each episode, `[N]`.

    Args:
        gamma: discount.
        cut_return: return after the end of an episode that was cut.
    """
    last, reward = np.cumsum(episodes.lengths) - 1, episodes.reward.copy()
    reward[last[~episodes.terminated]] += gamma * cut_return
    return reward_to_go(reward, gamma=gamma, last=last)


class WindowSource:
    """Samples windows of these episodes.

    Every decision is equally likely to be the first step, so that an episode is sampled in proportion to its length
    (Decision Transformer, arXiv 2106.01345, published code).

    Args:
        context: K.
        gamma: discount of the returns-to-go.
        cut_return: return after the end of an episode that was cut.
        standard: scaler of observations; None: from these episodes.
        ahead: the observation after an episode's last decision is a step too, visible and not decided.
        conditions: `[N]` or `[N, C]`, what each decision is conditioned on in place of its return-to-go.
    Raises:
        ConfigError: the context is below 1.
        BatchMismatch: the number of conditions differs from the number of decisions.
    """

    def __init__(
        self,
        episodes: Episodes,
        *,
        context: int,
        gamma: float = 1.0,
        cut_return: float = 0.0,
        standard: ObservationScaler | None = None,
        ahead: bool = False,
        conditions: NDArray[np.float64] | None = None,
    ) -> None:
        if context < 1:
            raise ConfigError("context out of range", value=context, expected="1 or more")
        self.episodes, self.context, self.ahead = episodes, context, ahead
        self.standard = ObservationScaler.from_episodes(episodes) if standard is None else standard
        self.to_go = returns_to_go(episodes, gamma=gamma, cut_return=cut_return) if conditions is None else conditions
        if len(self.to_go) != len(episodes.reward):
            raise BatchMismatch(
                "number of conditions does not match the decisions",
                value=len(self.to_go),
                expected=len(episodes.reward),
            )
        self._observation, self._final = self.standard(episodes.observation), self.standard(episodes.final)
        self._starts, self._episode = episodes.starts, episodes.episode_index

    def sample(self, rng: np.random.Generator, batch: int) -> Windows:
        """Samples `batch` windows."""
        return self.windows_from(rng.integers(len(self.episodes.reward), size=batch))

    def windows_from(self, decisions: ArrayLike) -> Windows:
        """Returns the windows that begin with these decisions `[B]` (numbers in 0..N - 1)."""
        first = np.asarray(decisions, np.int64)
        data, episode = self.episodes, self._episode[first]
        start, length = self._starts[episode], data.lengths[episode]
        steps = np.minimum(self.context, length + self.ahead - (first - start))  # that the window really has
        time = (first - start + steps - self.context)[:, None] + np.arange(self.context)
        is_visible = time >= (first - start)[:, None]
        is_decided = is_visible & (time < length[:, None])
        row = np.where(is_decided, start[:, None] + time, 0)
        is_final = is_visible & ~is_decided
        observation = np.where(is_final[..., None], self._final[episode][:, None], self._observation[row])
        is_last = first - start + steps == length + self.ahead
        action = data.action[row]
        return _build_windows(
            observation=np.where(is_visible[..., None], observation, 0),
            seen=is_visible,
            decided=is_decided,
            action=np.where(is_decided, action, -1) if data.actions else np.where(is_decided[..., None], action, 0),
            reward=np.where(is_decided, data.reward[row], 0),
            to_go=np.where(is_decided.reshape(*row.shape, *[1] * (self.to_go.ndim - 1)), self.to_go[row], 0),
            time=np.where(is_visible, time, 0),
            terminated=data.terminated[episode] & is_last,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Observations, actions and rewards so far of E episodes that are at the same step t.

    Args:
        observation: `[E, t + 1, O]`.
        action: `[E, t]` or `[E, t, D]`.
        reward: `[E, t]`.
        seed: `[E]` int64, of each episode: an actor's samples depend on it and on t alone.
    """

    observation: NDArray[np.float32]
    action: Array
    reward: NDArray[np.float64]
    seed: NDArray[np.int64]

    @property
    def step(self) -> int:
        """Returns t."""
        return int(self.observation.shape[1]) - 1


def recent_window(history: History, context: int, *, standard: ObservationScaler, target: ArrayLike = 0.0) -> Windows:
    """Returns the last `context` steps, with the newest action still open.

    Rewards so far are subtracted from the target step by step. Nothing is padded, because all episodes are at the
    same step.

    Args:
        target: `[E]`, the requested return of each episode.

    Raises:
        NonFinite: a target or an observation is not finite.
        BatchMismatch: the number of targets differs from the number of episodes.
    """
    rows, step = len(history.observation), history.step
    targets = np.asarray(target, np.float64)
    if targets.shape not in ((), (rows,)):
        raise BatchMismatch(
            "number of target returns does not match the episodes", value=targets.shape, expected=(rows,)
        )
    if not np.isfinite(targets).all():
        raise NonFinite("a target return is not finite", value=targets.tolist())
    newest = history.observation[:, -1]
    if not np.isfinite(newest).all():
        row = int((~np.isfinite(newest)).any(1).argmax())
        raise NonFinite(f"the observation of episode {row}, step {step} is not finite", value=newest[row].tolist())
    earned = np.concatenate([np.zeros((rows, 1)), np.cumsum(history.reward, 1)], 1)
    first = max(0, step + 1 - context)
    open_action = np.full(
        (rows, 1, *history.action.shape[2:]), 0 if history.action.ndim == 3 else -1, history.action.dtype
    )
    is_decided = np.zeros((rows, step + 1 - first), np.bool_)
    return _build_windows(
        observation=standard(history.observation[:, first:]),
        decided=is_decided,
        seen=np.ones_like(is_decided),
        action=np.concatenate([history.action[:, first:], open_action], 1),
        reward=np.concatenate([history.reward[:, first:], np.zeros((rows, 1))], 1),
        to_go=(targets.reshape(-1, 1) - earned)[:, first:],
        time=np.broadcast_to(np.arange(first, step + 1), is_decided.shape),
        terminated=np.zeros(rows, np.bool_),
    )


def _build_windows(**arrays: NDArray[Any]) -> Windows:
    """Builds windows from arrays; floats become float32, other types stay."""
    return Windows(
        **{
            name: torch.from_numpy(np.array(array, np.float32 if array.dtype.kind == "f" else None))
            for name, array in arrays.items()
        }
    )
