"""Trajectories in other formats: AgentTraj conversations, OpenAI messages, and the store's own records.

`curate.origins` imports rows of more forms, by the parsers of this module.

Reading returns the valid rows and lists the others: a malformed row never hides the others. Imported trajectories have
no generations and no rewards. Writing streams to a temporary file; the file appears whole or not at all. An imported
file is written back with the same text, order, ids, roles and calls.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import EvolventError, SampleInvalid, boundary
from evolvent.files import atomic_writer, disk_errors, plain_json
from evolvent.messages import Call, Message, Tool, parse_weight
from evolvent.store.log import Record, encode_line, read_lines
from evolvent.store.schema import decode_trajectory, encode_trajectory
from evolvent.trajectory import JsonObject, Score, Step, Task, Trajectory, Value

__all__ = [
    "IMPORTED_VERSIONS",
    "ImportResult",
    "TaskInstructions",
    "chat_row",
    "parse_agenttraj",
    "parse_chat",
    "read_agenttraj",
    "read_jsonl",
    "read_messages",
    "write_agenttraj",
    "write_csv",
    "write_jsonl",
    "write_messages",
]


IMPORTED_VERSIONS = ("agenttraj", "openai")
"""Versions of the tasks of imported conversations, which no world of this machine has to know."""
TaskInstructions = Callable[[Task], str | None]
"""Returns the rules of a task's world, or None where they are not known."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The trajectories of a file in its order, and an error for each invalid row."""

    trajectories: tuple[Trajectory, ...]
    invalid: tuple[SampleInvalid, ...]


def _import_rows(
    path: Path, rows: Iterable[tuple[int, Any]], parse_row: Callable[[int, Any], Trajectory]
) -> ImportResult:
    trajectories: list[Trajectory] = []
    errors: list[SampleInvalid] = []
    for number, row in rows:
        try:
            with boundary(SampleInvalid, "it cannot be read"):  # a number beyond all floats, NaN in a call, ...
                trajectories.append(parse_row(number, row))
        except EvolventError as error:
            errors.append(SampleInvalid(f"{path} row {number}: {error}"))
    return ImportResult(tuple(trajectories), tuple(errors))


def _load_json(text: str | bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{name} is not valid JSON: {error}") from error


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


def _require_text(value: Value, trajectory_id: str) -> str:
    if not isinstance(value, str):
        raise SampleInvalid(
            f"trajectory {trajectory_id!r} holds arrays, which this format does not support", value=value.dtype
        )
    return value


# ---------------------------------------------------------------------------------------------------- AgentTraj


def read_agenttraj(path: Path) -> ImportResult:
    """Reads AgentTraj: a JSON array of `{"conversations": [{"from", "loss", "value"}], "item_id"}`.

    `item_id` is the id (with `#2`, `#3` where it repeats) and stays in `meta["item_id"]`; the world is the text before
    its last `_`. A first pair without loss (rules and acknowledgement) is kept in `meta["preamble"]`; a later reply
    without loss has `info["loss"]` False. `reward` and `success` of rollout files become the score.
    Raises:
        SampleInvalid: the file as a whole is not a JSON array. StoreUnavailable: it cannot be read.
    """
    with disk_errors(path):
        rows = _load_json(path.read_bytes(), str(path))
    if not isinstance(rows, list):
        raise SampleInvalid(f"{path} is not an AgentTraj file", value=type(rows).__name__, expected="a JSON array")
    item_counts: dict[str, int] = {}
    return _import_rows(path, enumerate(rows), lambda _, row: parse_agenttraj(row, item_counts))


def parse_agenttraj(row: JsonObject, item_counts: dict[str, int]) -> Trajectory:
    """Parses a row of AgentTraj; see `read_agenttraj`. AgentInstruct has `id` in place of `item_id`.

    Args:
        item_counts: rows of each id so far; counts this one.
    Raises:
        SampleInvalid: the row has no id, or a turn, flag or reward that cannot be read.
    """
    item = row.get("item_id", row.get("id")) if isinstance(row, dict) else None
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(item, str) or not item or not isinstance(turns, list) or not turns:
        raise SampleInvalid(
            "the row is not a conversation with an item_id", value=row, expected='"conversations" and "item_id"'
        )
    for i, turn in enumerate(turns):
        speaker = ("human", "gpt")[i % 2]
        if not isinstance(turn, dict) or turn.get("from") != speaker or not isinstance(turn.get("value"), str):
            raise SampleInvalid(
                f"turn {i} of {item} is invalid", value=turn, expected=f'text in "value", from {speaker}'
            )
    flags = [_parse_loss(turn, i, item) for i, turn in enumerate(turns)]
    first_turn = 2 if len(turns) > 1 and flags[0] is None and flags[1] is False else 0
    pairs = zip(turns[first_turn::2], turns[first_turn + 1 :: 2], flags[first_turn + 1 :: 2], strict=False)
    steps = tuple(
        Step(observation["value"], reply["value"], info={} if flag is not False else {"loss": False})
        for observation, reply, flag in pairs
    )
    final = turns[-1]["value"] if len(turns) % 2 else ""
    meta: dict[str, Any] = {"preamble": [turn["value"] for turn in turns[:first_turn]]} if first_turn else {}
    if len(turns) % 2 and not final:
        meta["final"] = True  # an empty last turn, which is not the same as none
    item_counts[item] = item_counts.get(item, 0) + 1
    name = item if item_counts[item] == 1 else f"{item}#{item_counts[item]}"
    reward, success = row.get("reward"), row.get("success")
    if reward is not None and (not isinstance(reward, (int, float)) or reward != reward):
        raise SampleInvalid(f"the reward of {item} is invalid", value=reward, expected="a number or null")
    raw = None if reward is None else float(reward)
    task = Task(item.rpartition("_")[0] or item, "agenttraj", {"item_id": item})
    return Trajectory(
        name,
        task,
        steps,
        final,
        "agent",
        Score(raw, None, None if success is None else bool(success)),
        sample=item_counts[item] - 1,
        group=task.id,
        meta={"item_id": item, **meta},
    )


def _parse_loss(turn: JsonObject, number: int, item: str) -> bool | None:
    """Parses the flag of a turn, in every spelling of true, false and null."""
    try:
        weight = parse_weight(turn.get("loss"))
    except SampleInvalid:
        weight = -1.0
    if weight not in (None, 0.0, 1.0):
        message = f"loss of turn {number} of {item} is invalid"
        raise SampleInvalid(message, value=turn["loss"], expected="true, false, null")
    return None if weight is None else bool(weight)


def write_agenttraj(
    trajectories: Iterable[Trajectory], path: Path, *, instructions: str | TaskInstructions | None = None
) -> int:
    """Writes an AgentTraj file; returns the number of rows. Of our own episodes, `item_id` is the world's name, `_` and
    the id.

    Args:
        instructions: the world's rules, or a function that returns those of a task, for trajectories that were not
            imported with their own.
    Raises:
        SampleInvalid: a trajectory of arrays; no file is written.
    """
    count = 0

    def pieces() -> Iterator[str]:
        nonlocal count
        yield "[\n"
        for trajectory in trajectories:
            yield ("" if count == 0 else ",\n") + plain_json(_agenttraj_row(trajectory, instructions))
            count += 1
        yield "\n]\n"

    _write(path, pieces())
    return count


def _agenttraj_row(trajectory: Trajectory, instructions: str | TaskInstructions | None) -> dict[str, Any]:
    text = instructions(trajectory.task) if callable(instructions) else instructions
    preamble = trajectory.meta.get("preamble") or ([text, "OK."] if text is not None else [])
    turns = [
        {"from": speaker, "loss": loss, "value": text}
        for speaker, loss, text in zip(("human", "gpt"), (None, False), preamble, strict=False)
    ]
    for step in trajectory.steps:
        turns.append({"from": "human", "loss": None, "value": _require_text(step.observation, trajectory.id)})
        action = _require_text(step.action, trajectory.id)
        turns.append({"from": "gpt", "loss": step.info.get("loss", True), "value": action})
    final = _require_text(trajectory.final_observation, trajectory.id)
    if final or trajectory.meta.get("final"):
        turns.append({"from": "human", "loss": None, "value": final})
    item_id = f"{trajectory.task.world}_{trajectory.id.replace('_', '-')}"
    return {"conversations": turns, "item_id": trajectory.meta.get("item_id", item_id)}


# ---------------------------------------------------------------------------------------------- OpenAI messages


def read_messages(path: Path) -> ImportResult:
    """Reads OpenAI chats, one `{"messages": [...], "tools"?: [...], "id"?}` a line: assistant turns are the actions.

    The messages between two assistant turns are the observation; where it is more than one user message, the messages
    themselves are kept in `info["messages"]`. Calls are in `info["tool_calls"]`, tools in `meta["tools"]`. A reply of
    weight 0 has `info["loss"]` False.
    Raises:
        StoreUnavailable: the file cannot be read.
    """

    def parse_line(number: int, line: bytes) -> Trajectory:
        return parse_chat(_load_json(line, "the line"), f"{path.stem}-{number}")

    return _import_rows(path, _text_lines(path), parse_line)


def parse_chat(row: JsonObject, name: str) -> Trajectory:
    """Parses a row of OpenAI messages; see `read_messages`.

    Args:
        name: the id of a row that has none.
    Raises:
        SampleInvalid: the row has no messages, or a message or tool that cannot be read.
    """
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list) or not row["messages"]:
        raise SampleInvalid("the line has no messages", value=row, expected='{"messages": [...]}')
    if not isinstance(row.get("tools") or [], list):
        raise SampleInvalid("tools is not a list", value=row["tools"], expected="a list of tools")
    tools = [Tool.of_openai(tool).as_openai() for tool in row.get("tools") or []]
    steps: list[Step] = []
    pending: list[Message] = []
    for message in map(Message.of_openai, row["messages"]):
        if message.role != "assistant":
            pending.append(message)
            continue
        steps.append(_chat_step(pending, message))
        pending = []
    final, info = _join_messages(pending)
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


def _join_messages(messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
    """Returns the text of messages as an observation, and the messages themselves where the text does not say all."""
    text = "\n\n".join(message.text for message in messages)
    if not messages or list(messages) == [Message("user", text)]:
        return text, {} if messages else {"messages": []}
    return text, {"messages": [message.as_openai() for message in messages]}


def _chat_step(messages: Sequence[Message], reply: Message) -> Step:
    text, info = _join_messages(messages)
    extra = dict(reply.extra)
    thought = extra.pop("reasoning_content", None)
    if thought is not None and not isinstance(thought, str):
        raise SampleInvalid("reasoning_content is not text", value=thought, expected="text")
    if reply.calls:
        info["tool_calls"] = [call.as_openai() for call in reply.calls]
    if extra:
        info["assistant"] = extra
    if not reply.weight:
        info["loss"] = False
    return Step(text, reply.text, thought=thought, info=info)


def write_messages(
    trajectories: Iterable[Trajectory],
    path: Path,
    *,
    instructions: str | TaskInstructions | None = None,
    ends_with_reply: bool = False,
) -> int:
    """Writes OpenAI chats, one a line; returns the number of chats.

    Args:
        instructions: see `chat_row`.
        ends_with_reply: see `chat_row`. An episode without a reply is left out.
    Raises:
        SampleInvalid: a trajectory of arrays; no file is written.
    """
    count = 0

    def pieces() -> Iterator[str]:
        nonlocal count
        for trajectory in trajectories:
            row = chat_row(trajectory, instructions, ends_with_reply=ends_with_reply)
            if row["messages"] or not ends_with_reply:
                yield plain_json(row) + "\n"
                count += 1

    _write(path, pieces())
    return count


def chat_row(
    trajectory: Trajectory, instructions: str | TaskInstructions | None = None, *, ends_with_reply: bool = False
) -> JsonObject:
    """Converts a trajectory to the row that `write_messages` writes.

    The rules and the acknowledgement with which an AgentTraj conversation begins are its first two messages. A reply
    that is not learned has the weight 0.

    Args:
        instructions: the world's, or a function that returns those of a task; a system message before trajectories
            that have no instructions themselves.
        ends_with_reply: whether what follows the last reply, such as a last observation, is left out.
    Raises:
        SampleInvalid: a trajectory of arrays.
    """
    meta, imported = trajectory.meta, trajectory.task.version == "openai"
    preamble = meta.get("preamble", [])
    messages: list[JsonObject] = [
        Message(role, text, extra=extra).as_openai()
        for role, text, extra in zip(("user", "assistant"), preamble, ({}, {"weight": 0}), strict=False)
    ]
    if instructions is not None and not imported and not preamble:
        text = instructions(trajectory.task) if callable(instructions) else instructions
        messages += [Message("system", text).as_openai()] if text is not None else []
    num_until_reply = 0
    for step in trajectory.steps:
        text = _require_text(step.observation, trajectory.id)
        messages += step.info.get("messages", [Message("user", text).as_openai()])
        messages.append(_assistant_message(step, _require_text(step.action, trajectory.id)).as_openai())
        num_until_reply = len(messages)
    final = _require_text(trajectory.final_observation, trajectory.id)
    messages += meta.get("messages", [Message("user", final).as_openai()] if final or imported else [])
    if ends_with_reply:
        messages = messages[:num_until_reply]
    tools = {"tools": meta["tools"]} if meta.get("tools") else {}
    identity = {"id": meta["line_id"]} if "line_id" in meta else {} if imported else {"id": trajectory.id}
    return {"messages": messages, **tools, **identity, **meta.get("extra", {})}


def _assistant_message(step: Step, text: str) -> Message:
    calls = tuple(Call.of_openai(row) for row in step.info.get("tool_calls", ()))
    thought = {"reasoning_content": step.thought} if step.thought is not None else {}
    content = None if calls and not text else text
    extra = step.info.get("assistant", {})
    is_marked = step.info.get("loss") is not False or {"weight", "loss"} & set(extra)
    weight = {} if is_marked else {"weight": 0}
    return Message("assistant", content, calls, extra={**thought, **weight, **extra})


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
_FORMULA_PREFIXES = tuple(
    "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
)  # what a cell of a formula begins with, in full width too


def write_csv(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Writes a table for spreadsheets, a row an episode; returns the number of rows.

    Text that a spreadsheet would take for a formula gets an apostrophe in front and stays text: ids, errors and actions
    are written by worlds and models. Numbers are numbers; a missing score is an empty cell.
    """

    count = 0
    with atomic_writer(path) as file:
        file.write(_csv_line(_COLUMNS))
        for trajectory in trajectories:
            task, error = trajectory.task, trajectory.error
            file.write(
                _csv_line(
                    (
                        trajectory.id,
                        task.world,
                        task.kind,
                        task.tier,
                        task.split,
                        trajectory.sample,
                        len(trajectory.steps),
                        trajectory.count_generated_tokens(),
                        trajectory.score.raw,
                        trajectory.score.unit,
                        trajectory.score.success,
                        trajectory.ended_by,
                        error and error.kind,
                        error and error.message,
                        str(trajectory.steps[-1].action) if trajectory.steps else None,
                    )
                )
            )
            count += 1
    return count


def _csv_line(values: Sequence[object]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line).writerow([_safe_cell(value) for value in values])
    return line.getvalue().encode("utf-8", "backslashreplace")


def _safe_cell(value: object) -> object:
    """Converts a value to a cell; text is inert."""
    if not isinstance(value, str):
        return value
    plain = value.replace("\0", "")
    return f"'{plain}" if plain.lstrip(" ").startswith(_FORMULA_PREFIXES) else plain


# -------------------------------------------------------------------------------------------- the store's records


def write_jsonl(trajectories: Iterable[Trajectory], path: Path, *, run: str = "") -> int:
    """Writes whole records, token-exact, one checked line each (the form of the store's log); returns their number."""
    count = 0
    with atomic_writer(path) as file:
        for trajectory in trajectories:
            file.write(encode_line(encode_trajectory(trajectory), run=run, traj=trajectory.id))
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[Trajectory]:
    """Yields the trajectories of a file that `write_jsonl` wrote, one after the other.

    Raises:
        SampleInvalid: the file is of another format. StoreUnavailable: it cannot be read.
        CorruptRecord, UnknownSchema: a record that is damaged or of another version, naming the byte.
    """
    _, first = next(_text_lines(path), (0, b""))
    if _is_foreign(first):
        raise SampleInvalid(
            f"{path} does not hold evolvent records",
            value=repr(first[:60]),
            expected="jsonl of `runs export`",
            hint="import other formats with: evolvent runs import FILE --format messages|agenttraj --to RUN",
        )
    for line in read_lines(path, torn=False):
        if line.kind == "trajectory":
            yield decode_trajectory(Record(line.traj, line.kind, (line,)).fields())


def _is_foreign(first: bytes) -> bool:
    """Returns whether a first line is valid JSON, or the start of a JSON array, but not a record: another format."""
    if first.strip() == b"[":
        return True
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(row, dict) and {"v", "crc"} & set(row))
