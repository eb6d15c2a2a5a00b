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

__all__ = ["EPISODES", "STEPS", "Tables", "digest", "readable"]

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
_HEAD = ("trajectory_id", "task_id", "task", "kind", "metadata", "final_observation")
_SEEN = ("observation", "thought", "action")


def readable(found: Demonstration) -> Demonstration:
    """The demonstration with half surrogates, which no file can hold, as U+FFFD, and steps numbered from 0."""
    head = {name: _whole(getattr(found, name)) for name in _HEAD}
    steps = tuple(
        StepRecord(
            trajectory_id=head["trajectory_id"],
            step=at,
            task=head["task"],
            kind=head["kind"],
            observation=_whole(step.observation),
            thought=_whole(step.thought),
            action=_whole(step.action),
        )
        for at, step in enumerate(found.steps)
    )
    return Demonstration(steps=steps, **head)


def _whole(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def digest(found: Demonstration) -> str:
    """What a demonstration is, in 32 hex digits."""
    steps = [[getattr(step, name) for name in _SEEN] for step in found.steps]
    text = canonical_json([*(getattr(found, name) for name in _HEAD), steps])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Tables:
    """Episodes and their steps; never changed.

    Attributes:
        episodes, steps: tables of the two schemas above.
        place: the number of each episode by its id. first: `[E + 1]` the row at which each episode's steps begin.
    Raises:
        SampleInvalid: episodes whose lengths do not add up to the steps, or an id that stands twice.
    """

    def __init__(self, episodes: pa.Table, steps: pa.Table) -> None:
        self.episodes, self.steps = episodes, steps
        ids = episodes.column("trajectory").to_pylist()
        lengths = episodes.column("length").to_numpy()
        self.place: Mapping[str, int] = {name: at for at, name in enumerate(ids)}
        self.first: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if int(self.first[-1]) != steps.num_rows or (len(lengths) and int(lengths.min()) < 0):
            raise SampleInvalid(
                "episodes and steps of a memory do not fit each other",
                value=steps.num_rows,
                expected=f"{int(self.first[-1])} steps",
            )
        if len(self.place) != len(ids):
            raise SampleInvalid("an episode stands twice in a memory", value=f"{len(ids) - len(self.place)} do")

    @classmethod
    def of(cls, found: Sequence[Demonstration]) -> Tables:
        """The tables of demonstrations, in this order."""
        head = {
            name: [getattr(one, field) for one in found] for name, field in zip(EPISODES.names[:-1], _HEAD, strict=True)
        }
        steps = {name: [getattr(step, name) for one in found for step in one.steps] for name in STEPS.names}
        lengths = [len(one.steps) for one in found]
        return cls(pa.table({**head, "length": lengths}, schema=EPISODES), pa.table(steps, schema=STEPS))

    def extended(self, more: Tables) -> Tables:
        """These and more after them."""
        return Tables(pa.concat_tables([self.episodes, more.episodes]), pa.concat_tables([self.steps, more.steps]))

    def owners(self) -> NDArray[np.int64]:
        """`[N]` the number of the episode of each step."""
        return np.repeat(np.arange(self.episodes.num_rows), np.diff(self.first))

    def order(self) -> NDArray[np.int64]:
        """`[N]` the rank of each step by (trajectory id, step), by which ties are broken."""
        names = self.episodes.column("trajectory").to_pylist()
        ranks = np.empty(len(names), np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        made = np.empty(self.steps.num_rows, np.int64)
        made[np.lexsort((np.arange(len(made)), ranks[self.owners()]))] = np.arange(len(made))
        return made

    def episode(self, number: int) -> Demonstration:
        """One episode, whole."""
        trajectory, task_id, task, kind, metadata, final = (
            self.episodes.column(name)[number].as_py() for name in EPISODES.names[:-1]
        )
        begin, end = int(self.first[number]), int(self.first[number + 1])
        rows = self.steps.slice(begin, end - begin).to_pylist()
        steps = tuple(
            StepRecord(trajectory_id=trajectory, step=at, task=task, kind=kind, **row) for at, row in enumerate(rows)
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

    def all(self) -> Iterator[Demonstration]:
        """Every episode, in order."""
        return map(self.episode, range(self.episodes.num_rows))
