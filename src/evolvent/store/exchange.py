"""Trajectories in the formats of others: AgentTraj conversations, OpenAI messages, and the store's own records.

Reading gives what is good and lists what is not: a malformed row never hides the others. Imported trajectories have no
generations and no rewards. Writing streams to a temporary file; the file appears whole or not at all. What was read is
written back with the same text, order, ids, roles and calls.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import EvolventError, SampleInvalid, boundary
from evolvent.files import atomic_writer, disk_errors, plain_json
from evolvent.messages import Call, Message, Tool
from evolvent.store.frame import read_lines, to_line
from evolvent.store.log import Record
from evolvent.store.schema import decode, encode
from evolvent.trajectory import Score, Step, Task, Trajectory, Value

__all__ = [
    "Imported",
    "chat_row",
    "read_agenttraj",
    "read_jsonl",
    "read_messages",
    "write_agenttraj",
    "write_csv",
    "write_jsonl",
    "write_messages",
]


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file held: the trajectories in its order, and an error for each row that is none."""

    trajectories: tuple[Trajectory, ...]
    invalid: tuple[SampleInvalid, ...]


def _import(path: Path, rows: Iterable[tuple[int, Any]], read: Callable[[int, Any], Trajectory]) -> Imported:
    good: list[Trajectory] = []
    bad: list[SampleInvalid] = []
    for number, row in rows:
        try:
            with boundary(SampleInvalid, "it cannot be read"):  # a number beyond all floats, NaN in a call, ...
                good.append(read(number, row))
        except EvolventError as error:
            bad.append(SampleInvalid(f"{path} row {number}: {error}"))
    return Imported(tuple(good), tuple(bad))


def _load(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{where} is not JSON: {error}") from error


def _text_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with disk_errors(path), path.open("rb") as file:
        for number, line in enumerate(file):
            if line.strip():
                yield number, line


def _write(path: Path, pieces: Iterable[str]) -> None:
    with atomic_writer(path) as file:
        for piece in pieces:
            # A half surrogate becomes its JSON escape: the text read back is the same.
            file.write(piece.encode("utf-8", "backslashreplace"))


def _only_text(value: Value, traj: str) -> str:
    if not isinstance(value, str):
        raise SampleInvalid(f"trajectory {traj!r} holds arrays, which this format has no place for", value=value.dtype)
    return value


# ---------------------------------------------------------------------------------------------------- AgentTraj


def read_agenttraj(path: Path) -> Imported:
    """AgentTraj: a JSON array of `{"conversations": [{"from", "loss", "value"}], "item_id"}`.

    `item_id` is the id (with `#2`, `#3` where it repeats) and stays in `meta["item_id"]`; the world is the text before
    its last `_`. A first pair without loss (rules and acknowledgement) is kept in `meta["preamble"]`; a later reply
    without loss has `info["loss"]` False. `reward` and `success` of rollout files become the score.
    Raises:
        SampleInvalid: the file as a whole is no JSON array; StoreUnavailable: it cannot be read.
    """
    with disk_errors(path):
        rows = _load(path.read_bytes(), str(path))
    if not isinstance(rows, list):
        raise SampleInvalid(f"{path} is no AgentTraj file", value=type(rows).__name__, expected="a JSON array")
    seen: dict[str, int] = {}
    return _import(path, enumerate(rows), lambda _, row: _of_agenttraj(row, seen))


def _of_agenttraj(row: Any, seen: dict[str, int]) -> Trajectory:
    item = row.get("item_id") if isinstance(row, dict) else None
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(item, str) or not item or not isinstance(turns, list) or not turns:
        raise SampleInvalid("no conversation with an item_id", value=row, expected='"conversations" and "item_id"')
    for i, turn in enumerate(turns):
        speaker = ("human", "gpt")[i % 2]
        if not isinstance(turn, dict) or turn.get("from") != speaker or not isinstance(turn.get("value"), str):
            raise SampleInvalid(f"turn {i} of {item} is wrong", value=turn, expected=f'text in "value", from {speaker}')
        if turn.get("loss") not in (None, True, False):
            raise SampleInvalid(
                f"loss of turn {i} of {item} is wrong", value=turn["loss"], expected="true, false, null"
            )
    begin = 2 if len(turns) > 1 and turns[0].get("loss") is None and turns[1].get("loss") is False else 0
    pairs = zip(turns[begin::2], turns[begin + 1 :: 2], strict=False)
    steps = tuple(
        Step(seen_turn["value"], said["value"], info={} if said.get("loss") is not False else {"loss": False})
        for seen_turn, said in pairs
    )
    final = turns[-1]["value"] if len(turns) % 2 else ""
    kept: dict[str, Any] = {"preamble": [turn["value"] for turn in turns[:begin]]} if begin else {}
    if len(turns) % 2 and not final:
        kept["final"] = True  # an empty last turn, which is not the same as none
    seen[item] = seen.get(item, 0) + 1
    name = item if seen[item] == 1 else f"{item}#{seen[item]}"
    reward, success = row.get("reward"), row.get("success")
    if reward is not None and (not isinstance(reward, (int, float)) or reward != reward):
        raise SampleInvalid(f"the reward of {item} is wrong", value=reward, expected="a number or null")
    raw = None if reward is None else float(reward)
    task = Task(item.rpartition("_")[0] or item, "agenttraj", {"item_id": item})
    return Trajectory(
        name,
        task,
        steps,
        final,
        "agent",
        Score(raw, None, None if success is None else bool(success)),
        sample=seen[item] - 1,
        group=task.id,
        meta={"item_id": item, **kept},
    )


def write_agenttraj(trajectories: Iterable[Trajectory], path: Path, *, instructions: str | None = None) -> int:
    """Write an AgentTraj file; returns the number of rows. The `item_id` of our own episodes is `WORLD_ID`.

    Args:
        instructions: the world's rules, for trajectories that were not imported with theirs.
    Raises:
        SampleInvalid: a trajectory of arrays; no file is written.
    """
    count = 0

    def pieces() -> Iterator[str]:
        nonlocal count
        yield "[\n"
        for trajectory in trajectories:
            yield ("" if count == 0 else ",\n") + plain_json(_as_agenttraj(trajectory, instructions))
            count += 1
        yield "\n]\n"

    _write(path, pieces())
    return count


def _as_agenttraj(trajectory: Trajectory, instructions: str | None) -> dict[str, Any]:
    preamble = trajectory.meta.get("preamble") or ([instructions, "OK."] if instructions is not None else [])
    turns = [
        {"from": speaker, "loss": loss, "value": text}
        for speaker, loss, text in zip(("human", "gpt"), (None, False), preamble, strict=False)
    ]
    for step in trajectory.steps:
        turns.append({"from": "human", "loss": None, "value": _only_text(step.observation, trajectory.id)})
        said = _only_text(step.action, trajectory.id)
        turns.append({"from": "gpt", "loss": step.info.get("loss", True), "value": said})
    final = _only_text(trajectory.final_observation, trajectory.id)
    if final or trajectory.meta.get("final"):
        turns.append({"from": "human", "loss": None, "value": final})
    own = f"{trajectory.task.world}_{trajectory.id.replace('_', '-')}"
    return {"conversations": turns, "item_id": trajectory.meta.get("item_id", own)}


# ---------------------------------------------------------------------------------------------- OpenAI messages


def read_messages(path: Path) -> Imported:
    """OpenAI chats, one `{"messages": [...], "tools"?: [...], "id"?}` a line: assistant turns are the actions.

    What lies between two of them is the observation; where it is more than one user message, the messages themselves
    are kept in `info["messages"]`. Calls are in `info["tool_calls"]`, tools in `meta["tools"]`.
    Raises:
        StoreUnavailable: the file cannot be read.
    """

    def read(number: int, line: bytes) -> Trajectory:
        return _of_chat(_load(line, "the line"), f"{path.stem}-{number}")

    return _import(path, _text_lines(path), read)


def _of_chat(row: Any, name: str) -> Trajectory:
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list) or not row["messages"]:
        raise SampleInvalid("a line without messages", value=row, expected='{"messages": [...]}')
    if not isinstance(row.get("tools") or [], list):
        raise SampleInvalid("tools that are no list", value=row["tools"], expected="a list of tools")
    tools = [Tool.of_openai(tool).as_openai() for tool in row.get("tools") or []]
    steps: list[Step] = []
    between: list[Message] = []
    for message in map(Message.of_openai, row["messages"]):
        if message.role != "assistant":
            between.append(message)
            continue
        steps.append(_chat_step(between, message))
        between = []
    final, info = _observed(between)
    extra = {key: value for key, value in row.items() if key not in ("messages", "tools", "id")}
    identity = row.get("id")
    name = identity if isinstance(identity, str) and identity else name
    meta = {
        **info,
        **({"tools": tools} if tools else {}),
        **({"extra": extra} if extra else {}),
        **({"line_id": identity} if identity is not None else {}),
    }
    return Trajectory(name, Task("messages", "openai", {"id": name}), tuple(steps), final, "agent", meta=meta)


def _observed(between: Sequence[Message]) -> tuple[str, dict[str, Any]]:
    """The observation that messages make, and the messages where the observation does not tell all."""
    text = "\n\n".join(message.text for message in between)
    if not between or list(between) == [Message("user", text)]:
        return text, {} if between else {"messages": []}
    return text, {"messages": [message.as_openai() for message in between]}


def _chat_step(between: Sequence[Message], said: Message) -> Step:
    text, info = _observed(between)
    extra = dict(said.extra)
    thought = extra.pop("reasoning_content", None)
    if thought is not None and not isinstance(thought, str):
        raise SampleInvalid("reasoning_content that is not text", value=thought, expected="text")
    if said.calls:
        info["tool_calls"] = [call.as_openai() for call in said.calls]
    if extra:
        info["assistant"] = extra
    return Step(text, said.text, thought=thought, info=info)


def write_messages(trajectories: Iterable[Trajectory], path: Path, *, instructions: str | None = None) -> int:
    """Write OpenAI chats, one a line; returns how many.

    Args:
        instructions: the world's, as a system message before trajectories that bring no messages of their own.
    Raises:
        SampleInvalid: a trajectory of arrays; no file is written.
    """
    count = 0

    def pieces() -> Iterator[str]:
        nonlocal count
        for trajectory in trajectories:
            yield plain_json(chat_row(trajectory, instructions)) + "\n"
            count += 1

    _write(path, pieces())
    return count


def chat_row(trajectory: Trajectory, instructions: str | None = None) -> dict[str, Any]:
    """A trajectory as the row that `write_messages` writes. Raises SampleInvalid for one of arrays."""
    rows: list[Mapping[str, Any]] = []
    imported = trajectory.task.version == "openai"
    if instructions is not None and not imported:
        rows.append(Message("system", instructions).as_openai())
    for step in trajectory.steps:
        text = _only_text(step.observation, trajectory.id)
        rows += step.info.get("messages", [Message("user", text).as_openai()])
        rows.append(_assistant(step, _only_text(step.action, trajectory.id)).as_openai())
    final, meta = _only_text(trajectory.final_observation, trajectory.id), trajectory.meta
    rows += meta.get("messages", [Message("user", final).as_openai()] if final or imported else [])
    tools = {"tools": meta["tools"]} if meta.get("tools") else {}
    identity = {"id": meta["line_id"]} if "line_id" in meta else {} if imported else {"id": trajectory.id}
    return {"messages": rows, **tools, **identity, **meta.get("extra", {})}


def _assistant(step: Step, text: str) -> Message:
    calls = tuple(Call.of_openai(row) for row in step.info.get("tool_calls", ()))
    thought = {"reasoning_content": step.thought} if step.thought is not None else {}
    content = None if calls and not text else text
    return Message("assistant", content, calls, extra={**thought, **step.info.get("assistant", {})})


# --------------------------------------------------------------------------------------------------- spreadsheets

_COLUMNS = (
    "id",
    "world",
    "kind",
    "tier",
    "split",
    "sample",
    "steps",
    "generated",
    "raw",
    "unit",
    "success",
    "ended_by",
    "error",
    "message",
    "last_action",
)
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # what a cell of a formula begins with, in full width too


def write_csv(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write a table for people, a row an episode; returns how many rows there are.

    Text that a spreadsheet would take for a formula gets an apostrophe in front and stays text: ids, errors and actions
    are written by worlds and models. Numbers are numbers; what was not scored is an empty cell.
    """

    count = 0
    with atomic_writer(path) as file:
        file.write(_csv_line(_COLUMNS))
        for one in trajectories:
            task, error = one.task, one.error
            file.write(
                _csv_line(
                    (
                        one.id,
                        task.world,
                        task.kind,
                        task.tier,
                        task.split,
                        one.sample,
                        len(one.steps),
                        one.generated(),
                        one.score.raw,
                        one.score.unit,
                        one.score.success,
                        one.ended_by,
                        error and error.kind,
                        error and error.message,
                        str(one.steps[-1].action) if one.steps else None,
                    )
                )
            )
            count += 1
    return count


def _csv_line(values: Sequence[object]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line).writerow([_cell(value) for value in values])
    return line.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: object) -> object:
    """A value as a cell; text is inert."""
    if not isinstance(value, str):
        return value
    plain = value.replace("\0", "")
    return f"'{plain}" if plain.lstrip(" ").startswith(_FORMULA) else plain


# -------------------------------------------------------------------------------------------- the store's records


def write_jsonl(trajectories: Iterable[Trajectory], path: Path, *, run: str = "") -> int:
    """Write whole records, token-exact, one checked line each (the form of the store's log); returns how many."""
    count = 0
    with atomic_writer(path) as file:
        for trajectory in trajectories:
            file.write(to_line(encode(trajectory), run=run, traj=trajectory.id))
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[Trajectory]:
    """The trajectories of such a file, one after the other.

    Raises:
        SampleInvalid: the file is of another format; StoreUnavailable: it cannot be read.
        CorruptRecord, UnknownSchema: a record that is damaged or of another version, naming the byte.
    """
    _, first = next(_text_lines(path), (0, b""))
    if _is_foreign(first):
        raise SampleInvalid(
            f"{path} holds no records of evolvent",
            value=repr(first[:60]),
            expected="jsonl of `runs export`",
            hint="bring other formats in with: evolvent runs import FILE --format messages|agenttraj --to RUN",
        )
    for line in read_lines(path, torn=False):
        if line.kind == "trajectory":
            yield decode(Record(line.traj, line.kind, (line,)).fields())


def _is_foreign(first: bytes) -> bool:
    """Whether a first line is sound JSON, or the begin of a JSON array, but no record: another format, not damage."""
    if first.strip() == b"[":
        return True
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(row, dict) and {"v", "crc"} & set(row))
