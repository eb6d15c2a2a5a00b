"""Sources of rows: files and folders of rows, and stores of trajectories, read lazily one row at a time.

A trajectory becomes a row of chat messages with fields of its episode:

    {"id", "messages": [{"role", "content", ...}], "world", "task", "kind", "tier", "split", "score", "success"}

so that any reader of conversations reads episodes. The instructions of the world are not among the messages: a
store does not hold them. The other way round, rows of every form of `data.forms` become trajectories of a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evolvent.curate.shards import Row, find_store, list_shards, read_shard, row_to_line
from evolvent.data.forms import (
    Preference,
    detect_form,
    parse_conversation,
    parse_list,
    parse_preference,
    standardize_row,
)
from evolvent.errors import Problem, SampleInvalid, boundary
from evolvent.messages import Message
from evolvent.store.exchange import chat_row, parse_agenttraj, parse_chat
from evolvent.store.store import Store
from evolvent.trajectory import Score, Trajectory

__all__ = ["check_outputs", "episode_row", "read_located_rows", "read_source", "row_to_trajectories", "store_rows"]


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


def row_to_trajectories(row: object, name: str, id_counts: dict[str, int]) -> list[Trajectory]:
    """Converts a row of any form of conversations to trajectories: one, or the two sides of a preference.

    AgentTraj and AgentInstruct keep their ids, flags and scores where their turns alternate; other conversations become
    those of OpenAI messages. The chosen side of a preference has the score 1 and the rejected one 0; both are of one
    group, so that pairs can be built of them again.

    Args:
        name: id of a row that has none.
        id_counts: rows of each id so far; a repeated id gets `#2`, `#3`.
    Raises:
        SampleInvalid: the row has another form, or cannot be read.
    """
    with boundary(SampleInvalid, "the row cannot be read"):  # a number beyond all floats, NaN in a call, ...
        if not isinstance(row, Mapping):
            raise SampleInvalid("the row is not an object", value=type(row).__name__, expected="a JSON object")
        form, conversation = detect_form(row), parse_conversation(row)
        turns = parse_list(row.get("conversations"))
        if (
            form in ("agenttraj", "agentinstruct")
            and turns is not None
            and _alternates(turns)
            and not row.get("system")
        ):
            return [parse_agenttraj({**row, "conversations": turns}, id_counts)]
        identity = str(row.get("id") or name)
        id_counts[identity] = id_counts.get(identity, 0) + 1
        if id_counts[identity] > 1:
            identity = f"{identity}#{id_counts[identity]}"
        if form == "preferences":
            return _pair_to_trajectories(parse_preference(row), identity)
        is_plain = form == "messages" and isinstance(row.get("messages"), list) and "functions" not in row
        if not is_plain or tuple(Message.of_openai(entry) for entry in row["messages"]) != conversation.messages:
            row = standardize_row(row)
        return [replace(parse_chat(dict(row), name), id=identity)]


def _alternates(turns: Sequence[object]) -> bool:
    """Returns whether turns are those of a human and a model in turn, without instructions and calls."""
    speakers = [turn.get("from") if isinstance(turn, Mapping) else None for turn in turns]
    return speakers == [("human", "gpt")[number % 2] for number in range(len(speakers))]


def _pair_to_trajectories(pair: Preference, name: str) -> list[Trajectory]:
    prompt = [
        replace(message, extra={**message.extra, "weight": 0}) if message.role == "assistant" else message
        for message in pair.prompt
    ]
    tools = {"tools": [tool.as_openai() for tool in pair.tools]} if pair.tools else {}
    trajectories = []
    for number, (side, messages) in enumerate((("chosen", pair.chosen), ("rejected", pair.rejected))):
        chat = {"messages": [message.as_openai() for message in (*prompt, *messages)], **tools}
        score = Score(1.0, 1.0, True) if side == "chosen" else Score(0.0, 0.0, False)
        trajectory = parse_chat(chat, name)
        trajectories.append(replace(trajectory, id=f"{name}/{side}", group=name, sample=number, score=score))
    return trajectories
