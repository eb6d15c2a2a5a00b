"""Where rows come from: files and folders of rows, and stores of trajectories. One row after the other, lazily.

A trajectory is a row of chat messages with what is known of its episode beside them:

    {"id", "messages": [{"role", "content", ...}], "world", "task", "kind", "tier", "split", "score", "success"}

so whatever reads conversations reads what agents did. Instructions of the world are not among the messages: a store
does not hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evolvent.curate.shards import Row, line_of, read_shard, shards_of, store_in
from evolvent.errors import Problem, SampleInvalid
from evolvent.store.exchange import chat_row
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory

__all__ = ["episode_row", "over_data", "read_all", "store_rows"]


def read_all(path: Path, refused: list[str]) -> Iterator[Row]:
    """All rows of a file, a folder of files, a data set that `datasets` saved, a run or a store, in their order.

    Args:
        refused: gets a sentence for everything that is no row, while the result is consumed.
    Raises:
        ConfigError: nothing there that holds rows. CorruptRecord, UnknownSchema, StoreUnavailable: it cannot be read.
    """
    store = store_in(path)
    found = (
        store_rows(store)
        if store is not None
        else ((f"{shard.path.name}, row {place}", row) for shard in shards_of(path) for place, row in read_shard(shard))
    )
    for where, row in found:
        try:
            if isinstance(row, SampleInvalid):
                raise row
            line_of(row)
        except SampleInvalid as error:
            refused.append(f"{where}: {error}")
        else:
            yield row


def over_data(data: Path, *written: Path) -> list[Problem]:
    """What is wrong with places to write to: one that is the data, or would be read with them the next time."""
    place = data.resolve()
    return [
        Problem("--to", f"{one} is the data, or lies in its folder", "name another place")
        for one in written
        if place in (one.resolve(), *one.resolve().parents)
    ]


def store_rows(store: Path) -> Iterator[tuple[str, Row | SampleInvalid]]:
    """The trajectories of a store as rows with their ids, in constant memory; an error where one makes no row."""
    for trajectory in Store.open(store).trajectories():
        try:
            yield trajectory.id, episode_row(trajectory)
        except SampleInvalid as error:
            yield trajectory.id, error


def episode_row(trajectory: Trajectory) -> Row:
    """A trajectory as a row, see the module.

    Raises:
        SampleInvalid: it ended by an error, or its observations or actions are arrays.
    """
    if trajectory.error is not None:
        raise SampleInvalid(
            "an episode that ended by an error", value=trajectory.error.kind, expected="one that was played to its end"
        )
    task, score = trajectory.task, trajectory.score
    about = {
        "world": task.world,
        "task": task.id,
        "kind": task.kind,
        "tier": task.tier,
        "split": task.split,
        "score": score.unit,
        "success": score.success,
    }
    return {"id": trajectory.id, **chat_row(trajectory), **about}
