"""Demonstrations as Arrow tables: compact in memory, read row by row, written as Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evolvent.errors import SampleInvalid
from evolvent.memory.records import Demonstration, StepRecord
from evolvent.trajectory import canonical_json

__all__ = ["EPISODES", "STEPS", "MemoryTables", "demonstration_digest", "sanitize"]

_TEXT = pa.large_string()
EPISODES = pa.schema(
    [
        ("trajectory", _TEXT),
        ("task_id", _TEXT),
        ("task", _TEXT),
        ("kind", _TEXT),
        ("metadata", _TEXT),
        ("final_observation", _TEXT),
        ("length", pa.int32()),
    ]
)
"""One row an episode, in the order in which they came."""
STEPS = pa.schema([("observation", _TEXT), ("thought", _TEXT), ("action", _TEXT)])
"""One row a step, episode after episode."""
_EPISODE_FIELDS = ("trajectory_id", "task_id", "task", "kind", "metadata", "final_observation")
_STEP_FIELDS = ("observation", "thought", "action")


def sanitize(demonstration: Demonstration) -> Demonstration:
    """Returns the demonstration with lone surrogates, which no file can hold, as U+FFFD, and steps numbered from 0."""
    head = {name: _replace_surrogates(getattr(demonstration, name)) for name in _EPISODE_FIELDS}
    steps = tuple(
        StepRecord(
            trajectory_id=head["trajectory_id"],
            step=index,
            task=head["task"],
            kind=head["kind"],
            observation=_replace_surrogates(step.observation),
            thought=_replace_surrogates(step.thought),
            action=_replace_surrogates(step.action),
        )
        for index, step in enumerate(demonstration.steps)
    )
    return Demonstration(steps=steps, **head)


def _replace_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def demonstration_digest(demonstration: Demonstration) -> str:
    """Computes a digest of a demonstration, 32 hex digits."""
    steps = [[getattr(step, name) for name in _STEP_FIELDS] for step in demonstration.steps]
    text = canonical_json([*(getattr(demonstration, name) for name in _EPISODE_FIELDS), steps])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class MemoryTables:
    """Tables of episodes and their steps; never changed.

    Attributes:
        episodes, steps: Tables of the two schemas above.
        place: Number of each episode by its id.
        first: `[E + 1]`. Row at which each episode's steps begin.
    Raises:
        SampleInvalid: episodes whose lengths do not add up to the steps, or a repeated id.
    """

    def __init__(self, episodes: pa.Table, steps: pa.Table) -> None:
        self.episodes, self.steps = episodes, steps
        ids = episodes.column("trajectory").to_pylist()
        lengths = episodes.column("length").to_numpy()
        self.place: Mapping[str, int] = {name: number for number, name in enumerate(ids)}
        self.first: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if int(self.first[-1]) != steps.num_rows or (len(lengths) and int(lengths.min()) < 0):
            raise SampleInvalid(
                "episodes and steps of the memory do not match",
                value=steps.num_rows,
                expected=f"{int(self.first[-1])} steps",
            )
        if len(self.place) != len(ids):
            raise SampleInvalid("the memory holds an episode twice", value=f"{len(ids) - len(self.place)} duplicates")

    @classmethod
    def from_demonstrations(cls, demonstrations: Sequence[Demonstration]) -> MemoryTables:
        """Builds the tables of demonstrations, in this order."""
        head = {
            name: [getattr(demonstration, field) for demonstration in demonstrations]
            for name, field in zip(EPISODES.names[:-1], _EPISODE_FIELDS, strict=True)
        }
        steps = {
            name: [getattr(step, name) for demonstration in demonstrations for step in demonstration.steps]
            for name in STEPS.names
        }
        lengths = [len(demonstration.steps) for demonstration in demonstrations]
        return cls(pa.table({**head, "length": lengths}, schema=EPISODES), pa.table(steps, schema=STEPS))

    def extend(self, other_tables: MemoryTables) -> MemoryTables:
        """Returns these tables followed by others."""
        return MemoryTables(
            pa.concat_tables([self.episodes, other_tables.episodes]), pa.concat_tables([self.steps, other_tables.steps])
        )

    def owners(self) -> NDArray[np.int64]:
        """Returns the episode number of each step, `[N]`."""
        return np.repeat(np.arange(self.episodes.num_rows), np.diff(self.first))

    def rank_steps(self) -> NDArray[np.int64]:
        """Computes the rank of each step by (trajectory id, step), `[N]`, which breaks ties."""
        names = self.episodes.column("trajectory").to_pylist()
        ranks = np.empty(len(names), np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        step_ranks = np.empty(self.steps.num_rows, np.int64)
        step_ranks[np.lexsort((np.arange(len(step_ranks)), ranks[self.owners()]))] = np.arange(len(step_ranks))
        return step_ranks

    def get_episode(self, number: int) -> Demonstration:
        """Returns one episode."""
        trajectory, task_id, task, kind, metadata, final = (
            self.episodes.column(name)[number].as_py() for name in EPISODES.names[:-1]
        )
        begin, end = int(self.first[number]), int(self.first[number + 1])
        rows = self.steps.slice(begin, end - begin).to_pylist()
        steps = tuple(
            StepRecord(trajectory_id=trajectory, step=index, task=task, kind=kind, **row)
            for index, row in enumerate(rows)
        )
        return Demonstration(
            trajectory_id=trajectory,
            task_id=task_id,
            task=task,
            kind=kind,
            metadata=metadata,
            steps=steps,
            final_observation=final,
        )

    def iterate_episodes(self) -> Iterator[Demonstration]:
        """Yields every episode, in order."""
        return map(self.get_episode, range(self.episodes.num_rows))
