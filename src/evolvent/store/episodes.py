"""Episodes of worlds whose observations and actions are numbers, concatenated in arrays: the data of offline
methods.

`Trajectory` is the record of everything; these arrays are the same episodes without texts and tokens, many thousand
decisions in one piece (D4RL, arXiv 2004.07219, and Minari keep them so too).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra, SampleInvalid
from evolvent.files import write_atomic
from evolvent.trajectory import Array

__all__ = ["Episodes", "concatenate_episodes", "load_episodes", "save_episodes"]

_ARRAYS = ("observation", "final", "action", "reward", "lengths", "terminated")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """N decisions of E episodes, episode after episode.

    Args:
        observation: [N, O] float32. Observation before each decision.
        final: [E, O] float32. Observation at the end of each episode.
        action: [N] int64 in 0..actions - 1, or [N, D] float32.
        reward: [N] float64.
        lengths: [E] int64. Decisions of each episode, at least 1; they sum to N.
        terminated: [E] bool. True: ended by the world; False: cut by a horizon, the episode would have gone on.
        actions: number of discrete actions; 0: actions are numbers.
    Raises:
        SampleInvalid: arrays that do not fit each other, an empty episode, a number that is not finite, an action out
            of range; names episode and step.
    """

    observation: NDArray[np.float32]
    final: NDArray[np.float32]
    action: Array
    reward: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    actions: int

    def __post_init__(self) -> None:
        decisions, episodes = len(self.reward), len(self.lengths)
        sizes = {"observation": len(self.observation), "action": len(self.action), "lengths": int(self.lengths.sum())}
        if set(sizes.values()) - {decisions}:
            raise SampleInvalid("arrays of episodes differ in length", value=sizes, expected=decisions)
        if not episodes or (self.lengths < 1).any():
            raise SampleInvalid("an episode has no decisions", value=episodes and int(self.lengths.argmin()))
        if self.final.shape != (episodes, *self.observation.shape[1:]) or self.terminated.shape != (episodes,):
            raise SampleInvalid(
                "number of episode ends does not match the episodes", value=(self.final.shape, self.terminated.shape)
            )
        if self.observation.ndim != 2 or self.action.ndim != (1 if self.actions else 2):
            raise SampleInvalid(
                "arrays have the wrong shape",
                value=(self.observation.shape, self.action.shape),
                expected="[N, O] and [N] or [N, D]",
            )
        for name in ("observation", "action", "reward"):
            invalid = ~np.isfinite(np.asarray(getattr(self, name), np.float64)).reshape(decisions, -1).all(1)
            if invalid.any():
                raise SampleInvalid(f"the {name} of {self.describe_position(int(invalid.argmax()))} is not finite")
        if not np.isfinite(self.final).all():
            raise SampleInvalid("a final observation is not finite")
        if self.actions:
            invalid = (self.action < 0) | (self.action >= self.actions)
            if invalid.any():
                position = int(invalid.argmax())
                raise SampleInvalid(
                    f"action out of range in {self.describe_position(position)}",
                    value=int(self.action[position]),
                    expected=f"0..{self.actions - 1}",
                )

    @property
    def starts(self) -> NDArray[np.int64]:
        """Returns the first decision of each episode, [E]."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @property
    def episode_index(self) -> NDArray[np.int64]:
        """Returns the episode of each decision, [N]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def action_dim(self) -> int:
        """Returns D, the numbers of an action; 0 if actions are discrete."""
        return 0 if self.actions else int(self.action.shape[1])

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns the sum of each episode's rewards, [E]."""
        return np.add.reduceat(self.reward, self.starts)

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of all arrays, as manifests record it."""
        digest = hashlib.sha256(f"{self.actions} {self.observation.shape} {self.action.shape}".encode())
        for array in (self.observation, self.final, self.action, self.reward, self.lengths, self.terminated):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def describe_position(self, decision: int) -> str:
        """Describes a decision by its episode and step."""
        episode = int(np.searchsorted(np.cumsum(self.lengths), decision, side="right"))
        return f"episode {episode}, step {decision - int(self.starts[episode])}"

    def select(self, episodes: Sequence[int] | NDArray[np.int64]) -> Episodes:
        """Selects episodes in the given order; an episode may come several times. Raises SampleInvalid if none is
        given.
        """
        index = np.asarray(episodes, np.int64)
        starts, lengths = self.starts[index], self.lengths[index]
        cuts = zip(starts, lengths, strict=True)
        rows = np.concatenate([np.arange(0), *(np.arange(first, first + n) for first, n in cuts)])
        return Episodes(
            observation=self.observation[rows],
            final=self.final[index],
            action=self.action[rows],
            reward=self.reward[rows],
            lengths=lengths,
            terminated=self.terminated[index],
            actions=self.actions,
        )


def concatenate_episodes(parts: Sequence[Episodes]) -> Episodes:
    """Combines episodes of several sources of one world, one source after the other.

    Raises:
        ConfigError: no source, or sources of different worlds (other numbers of observations or actions).
    """
    kinds = {(part.observation.shape[1], part.actions, part.action_dim) for part in parts}
    if len(kinds) != 1:
        raise ConfigError(
            "episodes of different worlds cannot be joined",
            value=sorted(kinds),
            expected="a single (observation, actions, dim)",
        )
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return Episodes(**arrays, actions=parts[0].actions)


def save_episodes(episodes: Episodes, path: Path) -> None:
    """Writes episodes as one safetensors file; raises NoSpace, StoreUnavailable, or MissingExtra without
    safetensors.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise MissingExtra("train", "episodes in a file") from error
    arrays = {name: np.ascontiguousarray(getattr(episodes, name)) for name in _ARRAYS}
    write_atomic(path, save(arrays, metadata={"actions": str(episodes.actions)}))


def load_episodes(path: Path) -> Episodes:
    """Reads a file that `save_episodes` wrote; raises CorruptRecord for another file, SampleInvalid for invalid
    episodes.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("train", "episodes in a file") from error
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
            return Episodes(**arrays, actions=int((file.metadata() or {})["actions"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CorruptRecord(f"{path} does not hold episodes: {error}", offset=0) from error
