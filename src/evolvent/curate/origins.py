"""Sources of rows: files and folders of rows, and stores of trajectories, read lazily one row at a time.

A trajectory becomes a row of chat messages with fields of its episode:

    {"id", "messages": [{"role", "content", ...}], "world", "task", "kind", "tier", "split", "score", "success"}

so that any reader of conversations reads episodes. The instructions of the world are not among the messages: a
store does not hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evolvent.curate.shards import Row, find_store, list_shards, read_shard, row_to_line
from evolvent.errors import Problem, SampleInvalid
from evolvent.store.exchange import chat_row
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory

__all__ = ["check_outputs", "episode_row", "read_located_rows", "read_source", "store_rows"]


def read_source(path: Path, refusals: list[str]) -> Iterator[Row]:
    """Yields all rows of a source in order; see `read_located_rows`."""
    return (row for _, row in read_located_rows(path, refusals))


def read_located_rows(path: Path, refusals: list[str]) -> Iterator[tuple[str, Row]]:
    """Yields the position and the content of all rows of a source, in order.

    Args:
        path: A file, a folder of files, a data set saved by `datasets`, a run or a store.
        refusals: Receives a sentence for everything that is not a row, while the result is consumed.
    Raises:
        ConfigError: the path holds no rows. CorruptRecord, UnknownSchema, StoreUnavailable: it cannot be read.
    """
    store = find_store(path)
    located_rows = (
        store_rows(store)
        if store is not None
        else (
            (f"{shard.path.name}, row {index}", row) for shard in list_shards(path) for index, row in read_shard(shard)
        )
    )
    for location, row in located_rows:
        try:
            if isinstance(row, SampleInvalid):
                raise row
            row_to_line(row)
        except SampleInvalid as error:
            refusals.append(f"{location}: {error}")
        else:
            yield location, row


def check_outputs(data: Path, *outputs: Path) -> list[Problem]:
    """Lists the problems of output paths: those that are the data, or would be read with it the next time."""
    data_path = data.resolve()
    return [
        Problem("--to", f"{output} is the data or lies in its folder", "choose another path")
        for output in outputs
        if data_path in (output.resolve(), *output.resolve().parents)
    ]


def store_rows(store: Path) -> Iterator[tuple[str, Row | SampleInvalid]]:
    """Yields the trajectories of a store as rows with their ids, in constant memory; an error where none can be
    made.
    """
    for trajectory in Store.open(store).trajectories():
        try:
            yield trajectory.id, episode_row(trajectory)
        except SampleInvalid as error:
            yield trajectory.id, error


def episode_row(trajectory: Trajectory) -> Row:
    """Converts a trajectory to a row of chat messages and episode fields.

    Raises:
        SampleInvalid: it ended by an error, or its observations or actions are arrays.
    """
    if trajectory.error is not None:
        raise SampleInvalid(
            "the episode ended with an error", value=trajectory.error.kind, expected="a complete episode"
        )
    task, score = trajectory.task, trajectory.score
    episode_fields = {
        "world": task.world,
        "task": task.id,
        "kind": task.kind,
        "tier": task.tier,
        "split": task.split,
        "score": score.unit,
        "success": score.success,
    }
    return {"id": trajectory.id, **chat_row(trajectory), **episode_fields}
