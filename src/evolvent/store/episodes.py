"""Episodes of worlds whose observations and actions are numbers, end to end in arrays: what offline methods learn from.

`Trajectory` is the record of everything; these arrays are the same episodes without texts and tokens, many thousand
decisions in one piece (D4RL, arXiv 2004.07219, and Minari keep them so too).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra, SampleInvalid
from evolvent.files import write_atomic

__all__ = ["Episodes", "joined", "load_episodes", "save_episodes"]

_ARRAYS = ("observation", "final", "action", "reward", "lengths", "terminated")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """N decisions of E episodes, episode after episode.

    Args:
        observation: `[N, O]` float32, what was seen before each decision. final: `[E, O]`, what was seen at the end.
        action: `[N]` int64 in 0..actions - 1, or `[N, D]` float32.
        reward: `[N]` float64. lengths: `[E]` int64, decisions of each episode, at least 1; they sum to N.
        terminated: `[E]` bool: ended by the world; False: cut by a horizon, the episode would have gone on.
        actions: how many discrete actions there are; 0: actions are numbers.
    Raises:
        SampleInvalid: arrays that do not fit each other, an empty episode, a number that is not finite, an action that
            there is not; names episode and step.
    """

    observation: NDArray[np.float32]
    final: NDArray[np.float32]
    action: NDArray[Any]
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
            raise SampleInvalid("an episode of no decisions", value=episodes and int(self.lengths.argmin()))
        if self.final.shape != (episodes, *self.observation.shape[1:]) or self.terminated.shape != (episodes,):
            raise SampleInvalid("not one end an episode", value=(self.final.shape, self.terminated.shape))
        if self.observation.ndim != 2 or self.action.ndim != (1 if self.actions else 2):
            raise SampleInvalid(
                "arrays of other axes",
                value=(self.observation.shape, self.action.shape),
                expected="[N, O] and [N] or [N, D]",
            )
        for name in ("observation", "action", "reward"):
            odd = ~np.isfinite(np.asarray(getattr(self, name), np.float64)).reshape(decisions, -1).all(1)
            if odd.any():
                raise SampleInvalid(f"the {name} of {self.where(int(odd.argmax()))} is not finite")
        if not np.isfinite(self.final).all():
            raise SampleInvalid("a final observation is not finite")
        if self.actions:
            odd = (self.action < 0) | (self.action >= self.actions)
            if odd.any():
                at = int(odd.argmax())
                raise SampleInvalid(
                    f"no action in {self.where(at)}", value=int(self.action[at]), expected=f"0..{self.actions - 1}"
                )

    @property
    def starts(self) -> NDArray[np.int64]:
        """`[E]`, the first decision of each episode."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @property
    def episode(self) -> NDArray[np.int64]:
        """`[N]`, which episode each decision belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def dim(self) -> int:
        """D, numbers of an action; 0: actions are discrete."""
        return 0 if self.actions else int(self.action.shape[1])

    @property
    def returns(self) -> NDArray[np.float64]:
        """`[E]`, the sum of each episode's rewards."""
        return np.add.reduceat(self.reward, self.starts)

    @property
    def digest(self) -> str:
        """SHA-256 of everything in them: what a manifest says."""
        found = hashlib.sha256(f"{self.actions} {self.observation.shape} {self.action.shape}".encode())
        for array in (self.observation, self.final, self.action, self.reward, self.lengths, self.terminated):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def where(self, decision: int) -> str:
        """A decision's place in words."""
        episode = int(np.searchsorted(np.cumsum(self.lengths), decision, side="right"))
        return f"episode {episode}, step {decision - int(self.starts[episode])}"

    def chosen(self, episodes: Sequence[int] | NDArray[np.int64]) -> Episodes:
        """These episodes, in this order; one may come several times. SampleInvalid for none."""
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


def joined(parts: Sequence[Episodes]) -> Episodes:
    """Episodes of several sources of one world, one source after the other.

    Raises:
        ConfigError: no source, or sources of different worlds (other numbers of observations or actions).
    """
    kinds = {(part.observation.shape[1], part.actions, part.dim) for part in parts}
    if len(kinds) != 1:
        raise ConfigError(
            "episodes of different worlds cannot be joined",
            value=sorted(kinds),
            expected="one (observation, actions, dim)",
        )
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return Episodes(**whole, actions=parts[0].actions)


def save_episodes(episodes: Episodes, path: Path) -> None:
    """Write them as one safetensors file; NoSpace or StoreUnavailable where that fails, MissingExtra without it."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise MissingExtra("train", "episodes in a file") from error
    arrays = {name: np.ascontiguousarray(getattr(episodes, name)) for name in _ARRAYS}
    write_atomic(path, save(arrays, metadata={"actions": str(episodes.actions)}))


def load_episodes(path: Path) -> Episodes:
    """Read what `save_episodes` wrote; CorruptRecord: no file of episodes, SampleInvalid: wrong ones."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("train", "episodes in a file") from error
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
            return Episodes(**arrays, actions=int((file.metadata() or {})["actions"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CorruptRecord(f"{path} holds no episodes: {error}", offset=0) from error
