"""Writes episodes as a Minari data set (HDF5), which the `minari` package and `store.offline.read_minari` read.

    FOLDER/data/main_data.hdf5    a group an episode: observations [T + 1], actions, rewards, terminations, truncations
    FOLDER/data/metadata.json     counts, and the spaces of Gymnasium that hold all observations and actions

Observations and actions are arrays of numbers, or texts. Whole numbers from 0 are a `Discrete` space, other numbers an
unbounded `Box`, texts a `Text` space of the characters that occur.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, Problem, SampleInvalid
from evolvent.files import atomic_writer, write_atomic
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Trajectory, Value

__all__ = ["write_minari", "write_minari_episodes"]

_FORMAT_VERSION = "0.5.0"  # of Minari's layout; later releases read it
_DEFAULT_ID = "evolvent/episodes-v0"


@dataclass(frozen=True, slots=True)
class _Record:
    """An episode of T steps as Minari keeps it.

    Attributes:
        observations, actions: arrays [T + 1, ...] and [T, ...], or lists of texts.
        rewards: [T] float64.
        terminated: whether the world ended the episode; else it was cut.
    """

    observations: NDArray[Any] | list[str]
    actions: NDArray[Any] | list[str]
    rewards: NDArray[np.float64]
    terminated: bool


def write_minari(
    trajectories: Iterable[Trajectory],
    folder: Path,
    *,
    dataset_id: str = _DEFAULT_ID,
    problems: list[Problem] | None = None,
) -> int:
    """Writes trajectories as a Minari data set; returns the number of episodes.

    A step without a reward has 0; where no step has one, the last has the raw score of the episode.

    Args:
        folder: receives `data/`.
        dataset_id: the name of the data set, `NAMESPACE/NAME-vN`.
        problems: receives a problem for every episode that is left out: one that ended with an error, has no steps or
            no last observation, or whose arrays do not fit each other or the first episode; None: it is an error.
    Raises:
        MissingExtra: h5py is not installed. ConfigError: the folder holds a data set.
        SampleInvalid: an episode cannot be written, or none is left. NoSpace, StoreUnavailable: see `atomic_writer`.
    """

    def records() -> Iterator[tuple[str, _Record]]:
        for trajectory in trajectories:
            try:
                yield trajectory.id, _record_of_trajectory(trajectory)
            except SampleInvalid as error:
                _refuse(trajectory.id, error, problems)

    return _write_records(records(), folder, dataset_id, problems)


def write_minari_episodes(episodes: Episodes, folder: Path, *, dataset_id: str = _DEFAULT_ID) -> int:
    """Writes episodes of numbers as a Minari data set, the inverse of `read_minari`; returns their number.

    Raises:
        The errors of `write_minari`.
    """

    def records() -> Iterator[tuple[str, _Record]]:
        for number, (start, length) in enumerate(zip(episodes.starts, episodes.lengths, strict=True)):
            rows = slice(start, start + length)
            observations = np.concatenate([episodes.observation[rows], episodes.final[[number]]])
            terminated = bool(episodes.terminated[number])
            yield str(number), _Record(observations, episodes.action[rows], episodes.reward[rows], terminated)

    return _write_records(records(), folder, dataset_id, None)


def _refuse(name: str, error: SampleInvalid, problems: list[Problem] | None) -> None:
    if problems is None:
        raise SampleInvalid(f"episode {name!r} cannot be written: {error}") from error
    problems.append(Problem(name, str(error), "the episode is left out"))


def _record_of_trajectory(trajectory: Trajectory) -> _Record:
    if trajectory.error is not None or not trajectory.steps:
        reason = "no steps" if trajectory.error is None else f"the error {trajectory.error.kind}"
        raise SampleInvalid("the episode is not complete", value=reason, expected="an episode with steps")
    observations = [step.observation for step in trajectory.steps]
    rewards = [step.reward for step in trajectory.steps]
    if all(reward is None for reward in rewards):
        rewards[-1] = trajectory.score.raw
    reward_array = np.array([0.0 if reward is None else reward for reward in rewards], np.float64)
    if not np.isfinite(reward_array).all():
        raise SampleInvalid("a reward is not finite", value=str(reward_array.tolist()), expected="finite numbers")
    return _Record(
        _stack([*observations, trajectory.final_observation], "observation"),
        _stack([step.action for step in trajectory.steps], "action"),
        reward_array,
        trajectory.terminated,
    )


def _stack(values: Sequence[Value], name: str) -> NDArray[Any] | list[str]:
    """Returns the values of an episode as one array, or as a list where they are texts."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        for text in texts:
            if "\0" in text or text != text.encode("utf-8", "ignore").decode():
                message = f"an {name} cannot be stored in HDF5"
                raise SampleInvalid(message, value=repr(text[:80]), expected="UTF-8 without NUL characters")
        return texts
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if texts or len(shapes) != 1 or any(array.dtype.kind not in "fiub" for array in arrays):
        raise SampleInvalid(
            f"the {name}s of the episode do not fit each other",
            value="texts and arrays" if texts else sorted(shapes),
            expected="numbers of one shape, also after the last step",
        )
    stacked = np.stack(arrays)
    if stacked.dtype.kind == "b":
        stacked = stacked.astype(np.int8)
    is_index = stacked.dtype.kind in "iu" and stacked[0].size == 1 and int(stacked.min()) >= 0
    return stacked.reshape(len(stacked)).astype(np.int64) if is_index else stacked


class _SpaceSummary:
    """The smallest space of Gymnasium that holds all values so far, in Minari's description."""

    def __init__(self, name: str) -> None:
        self._name, self._kind = name, ""
        self._characters: set[str] = set()
        self._lengths = (0, 0)
        self._count = 0

    def check(self, values: NDArray[Any] | list[str]) -> None:
        """Refuses values of another kind or shape than the first ones."""
        kind = "texts" if isinstance(values, list) else f"{values.dtype} of shape {values.shape[1:]}"
        if self._kind and kind != self._kind:
            message = f"the {self._name}s differ from those of the first episode"
            raise SampleInvalid(message, value=kind, expected=self._kind)

    def add(self, values: NDArray[Any] | list[str]) -> None:
        """Adds the values of an episode."""
        if isinstance(values, list):
            lengths = [len(text) for text in values]
            min_length = min([*lengths, self._lengths[0]] if self._kind else lengths)
            self._lengths = (min_length, max([*lengths, self._lengths[1]]))
            self._characters.update(*values)
            self._kind = "texts"
            return
        self._kind = f"{values.dtype} of shape {values.shape[1:]}"
        self._dtype, self._shape = values.dtype, values.shape[1:]
        if self._is_discrete:
            self._count = max(self._count, int(values.max()) + 1)

    @property
    def _is_discrete(self) -> bool:
        return self._dtype == np.int64 and self._shape == ()

    def describe(self) -> str:
        """Returns the space as JSON text."""
        if self._kind == "texts":
            min_length, max_length = self._lengths
            characters = "".join(sorted(self._characters))
            text_space = {"min_length": min_length, "max_length": max(max_length, 1), "charset": characters}
            return json.dumps({"type": "Text", **text_space})
        if self._is_discrete:
            return json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": self._count})
        bounds = (-np.inf, np.inf)
        if self._dtype.kind in "iu":
            bounds = (np.iinfo(self._dtype).min, np.iinfo(self._dtype).max)
        low, high = (np.full(self._shape, bound).tolist() for bound in bounds)
        box = {"dtype": str(self._dtype), "shape": list(self._shape), "low": low, "high": high}
        return json.dumps({"type": "Box", **box})  # infinities as Minari writes them


def _write_records(
    records: Iterable[tuple[str, _Record]], folder: Path, dataset_id: str, problems: list[Problem] | None
) -> int:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("offline", "data in HDF5") from error
    data_folder = folder / "data"
    if (data_folder / "metadata.json").exists():
        raise ConfigError([Problem("--to", f"{folder} already holds a data set", "choose another folder")])
    observation_space, action_space = _SpaceSummary("observation"), _SpaceSummary("action")
    num_episodes = num_steps = 0
    path = data_folder / "main_data.hdf5"
    with atomic_writer(path) as opened, h5py.File(opened.name, "w") as file:
        for name, record in records:
            try:
                observation_space.check(record.observations)
                action_space.check(record.actions)
            except SampleInvalid as error:
                _refuse(name, error, problems)
                continue
            observation_space.add(record.observations)
            action_space.add(record.actions)
            _write_group(file.create_group(f"episode_{num_episodes}"), num_episodes, record)
            num_episodes, num_steps = num_episodes + 1, num_steps + len(record.rewards)
        if not num_episodes:
            reason = str(problems[0]) if problems else "no episodes"
            raise SampleInvalid("the data set would be empty", value=reason, expected="an episode with steps")
    metadata = {
        "total_episodes": num_episodes,
        "total_steps": num_steps,
        "data_format": "hdf5",
        "observation_space": observation_space.describe(),
        "action_space": action_space.describe(),
        "dataset_id": dataset_id,
        "minari_version": _FORMAT_VERSION,
        "dataset_size": round(path.stat().st_size / 1e6, 1),
        "jpeg_encoding": False,
    }
    write_atomic(data_folder / "metadata.json", json.dumps(metadata, indent=1) + "\n")
    return num_episodes


def _write_group(group: Any, number: int, record: _Record) -> None:
    import h5py

    group.attrs["id"], group.attrs["total_steps"] = number, len(record.rewards)
    for name, values in (("observations", record.observations), ("actions", record.actions)):
        if isinstance(values, list):
            group.create_dataset(name, data=values, dtype=h5py.string_dtype())
        else:
            group.create_dataset(name, data=values)
    group.create_dataset("rewards", data=record.rewards)
    ends = np.arange(len(record.rewards)) == len(record.rewards) - 1
    group.create_dataset("terminations", data=ends & record.terminated)
    group.create_dataset("truncations", data=ends & (not record.terminated))
