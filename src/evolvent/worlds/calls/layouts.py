"""Function-calling sets in the layouts of their publishers, read as samples.

    Hammer       {"query", "tools", "answers"}: an array or JSON lines; tools and answers may be JSON text (xLAM). The
                 sets of Hammer's evaluation have it too: API-Bank and ToolAlpaca, and Seal-Tools, whose answers are
                 {"tool", "parameters"}. A query is a text or messages; the role "agent" is an assistant that talks.
    Seal-Tools   {"id", "query", "calling": [{"api", "parameters"}]} in JSON lines, and tool.jsonl beside it
    NexusRaven   {"prompt", "python_function_name", "python_args_dict", "context_functions", "dataset"}, and the list of
                 its functions {"dataset", "name", "description", "args_dicts"}

A row that cannot be used is told and left out. Parameters become `{"type": "object", "properties", "required"}`; the
words for types stay those of the set. Licences: Hammer and Seal-Tools Apache-2.0, NexusRaven CC-BY-NC-4.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, InvalidAction, Problem, SampleInvalid
from evolvent.grade.calls import decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import sample_rng

__all__ = ["read_hammer", "read_hammer_row", "read_nexus_raven", "read_seal_tools"]

Samples = tuple[tuple[CallSample, ...], tuple[Problem, ...]]


def read_hammer(path: Path) -> Samples:
    """Samples of a file in Hammer's layout, and what is wrong with the rows left out; ids are `<file>/<place>`.

    Raises:
        ConfigError: a file that cannot be read.
    """
    return _each(path, lambda row, place: read_hammer_row(row, f"{path.stem}/{place}"))


def read_hammer_row(row: object, name: str) -> CallSample:
    """One row `{"query", "tools", "answers"}` as the sample of that id; SampleInvalid where it is none."""
    fields = _fields(row, name, "query", "tools", "answers")
    tools: dict[str, Tool] = {}
    for one in _list(fields["tools"], name, "tools"):
        tool = _tool(one, name)
        tools.setdefault(tool.name, tool)  # a tool twice is one, as in Hammer's training
    calls = tuple(_answer(one, name) for one in _list(fields["answers"], name, "answers"))
    return _sample(name, _messages(fields["query"], name), tuple(tools.values()), calls)


def read_seal_tools(path: Path, tools: Path, *, others: int = 4, seed: int = 0) -> Samples:
    """Samples of Seal-Tools in its own layout.

    Args:
        path: a file of items.
        tools: the file of all tools.
        others: how many tools that are not called each sample also shows; drawn from (seed, id), and all are shuffled.
    Raises:
        ConfigError: a file that cannot be read.
        SampleInvalid: a tool that is none.
    """
    rows, _ = _rows(tools)
    known = {tool.name: tool for tool in (_tool(row, tools.name) for row in rows)}
    return _each(path, partial(_seal_row, known=known, others=others, seed=seed))


def read_nexus_raven(queries: Path, functions: Path) -> Samples:
    """Samples of NexusRaven's evaluation: its standardised queries, and the standardised list of functions.

    Raises:
        ConfigError: a file that cannot be read.
        SampleInvalid: a function that is none.
    """
    rows, _ = _rows(functions)
    known: dict[tuple[str, str], Tool] = {}
    for row in rows:
        fields = _fields(row, functions.name, "dataset", "name", "args_dicts")
        arguments = _list(fields["args_dicts"], functions.name, "args_dicts")
        properties = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in arguments if "name" in one}
        tool = _tool({**fields, "parameters": properties}, functions.name)
        known[str(fields["dataset"]), tool.name] = tool
    return _each(queries, partial(_nexus_row, known=known))


def _each(path: Path, read: Callable[[object, int], CallSample]) -> Samples:
    rows, problems = _rows(path)
    samples = list[CallSample]()
    for place, row in enumerate(rows):
        try:
            samples.append(read(row, place))
        except SampleInvalid as error:
            problems.append(Problem(f"{path.name}, row {place}", str(error), "the row is left out"))
    return tuple(samples), tuple(problems)


def _rows(path: Path) -> tuple[list[Any], list[Problem]]:
    """The rows of an array or of JSON lines; a line that is no JSON is a row of text, which no reader takes."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    if text.lstrip().startswith("["):
        return list(_json(text, path.name)), []
    rows = list[Any]()
    for line in filter(str.strip, text.split("\n")):
        try:
            rows.append(_json(line, path.name))
        except ConfigError:
            rows.append(line)
    return rows, []


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no JSON ({error})", value=text[:80], expected="JSON") from error


def _fields(row: object, name: str, *wanted: str) -> Mapping[str, Any]:
    lost = [field for field in wanted if not isinstance(row, Mapping) or field not in row]
    if lost or not isinstance(row, Mapping):
        raise SampleInvalid(f"{name}: a row without {', '.join(lost)}", value=row, expected=list(wanted))
    return row


def _list(value: object, name: str, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SampleInvalid(f"{name}: {field} are no JSON", value=value, expected="a list") from error
    if not isinstance(value, list):
        raise SampleInvalid(f"{name}: {field} are no list", value=value, expected="a list")
    return value


def _tool(row: object, name: str) -> Tool:
    """A tool under any of the names of its fields, its flat parameters as a schema of an object."""
    fields = row if isinstance(row, Mapping) else {}
    called = fields.get("name", fields.get("api_name"))
    parameters = fields.get("parameters")
    if not isinstance(called, str) or not isinstance(parameters, Mapping):
        raise SampleInvalid(f"{name}: a tool that is none", value=row, expected='{"name", "parameters"}')
    text = str(fields.get("description") or fields.get("api_description") or "")
    if isinstance(parameters.get("properties"), Mapping):
        return Tool(called, text, dict(parameters))
    if not all(isinstance(one, Mapping) for one in parameters.values()):
        raise SampleInvalid(f"{name}: a parameter that is no object", value=called, expected='{"type", "description"}')
    required = fields.get("required")
    listed = list(required) if isinstance(required, list) else []
    listed += [one for one, schema in parameters.items() if schema.get("required") is True and one not in listed]
    properties = {one: {k: v for k, v in schema.items() if k != "required"} for one, schema in parameters.items()}
    return Tool(called, text, {"type": "object", "properties": properties, "required": listed})


def _answer(row: object, name: str) -> Call:
    """A call `{"name", "arguments"}`, or `{"tool", "parameters"}`, or `{"api", "parameters"}`."""
    fields = row if isinstance(row, Mapping) else {}
    called = next((fields[key] for key in ("name", "tool", "api") if key in fields), None)
    arguments = fields.get("arguments", fields.get("parameters"))
    if not isinstance(called, str) or not isinstance(arguments, Mapping):
        raise SampleInvalid(f"{name}: an answer that is no call", value=row, expected='{"name", "arguments"}')
    return Call(called, dict(arguments))


def _messages(query: object, name: str) -> tuple[Message, ...]:
    if isinstance(query, str):
        return (Message("user", query),)
    found = list[Message]()
    for one in _list(query, name, "messages"):
        fields = _fields(one, name, "role", "content")
        role, text = fields["role"], fields["content"]
        if role not in ("user", "agent", "assistant", "tool", "system") or not isinstance(text, str):
            raise SampleInvalid(f"{name}: a message that is none", value=one, expected='{"role", "content"}')
        found.append(_message(role, text))
    return tuple(found)


def _message(role: str, text: str) -> Message:
    if role == "assistant":
        try:
            return Message(role, None, decode_calls(text, form="json"))
        except InvalidAction:
            return Message(role, text)
    return Message("assistant" if role == "agent" else role, text)


def _sample(name: str, messages: tuple[Message, ...], tools: tuple[Tool, ...], calls: tuple[Call, ...]) -> CallSample:
    lost = sorted({call.name for call in calls} - {tool.name for tool in tools})
    if lost:
        raise SampleInvalid(f"{name}: an answer that calls no tool of its own", value=lost, expected="tools of the row")
    return CallSample(name, messages, tools, calls)


def _seal_row(row: object, place: int, *, known: Mapping[str, Tool], others: int, seed: int) -> CallSample:
    fields = _fields(row, f"row {place}", "id", "query", "calling")
    name = str(fields["id"])
    calls = tuple(_answer(one, name) for one in _list(fields["calling"], name, "calling"))
    shown = list(dict.fromkeys(call.name for call in calls if call.name in known))
    rest = [one for one in known if one not in shown]
    rng = sample_rng("seal tools", seed, name)
    shown += [rest[at] for at in rng.choice(len(rest), min(others, len(rest)), replace=False)] if rest else []
    tools = tuple(known[shown[at]] for at in rng.permutation(len(shown)))
    return _sample(name, _messages(fields["query"], name), tools, calls)


def _nexus_row(row: object, place: int, *, known: Mapping[tuple[str, str], Tool]) -> CallSample:
    name = f"nexusraven/{place}"
    fields = _fields(row, name, "dataset", "prompt", "python_function_name", "python_args_dict", "context_functions")
    arguments = fields["python_args_dict"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise SampleInvalid(f"{name}: arguments that are no JSON", value=arguments, expected="an object") from error
    call = _answer({"name": fields["python_function_name"], "arguments": arguments}, name)
    shown: Sequence[Any] = _list(fields["context_functions"], name, "context_functions")
    lost = [one for one in shown if (str(fields["dataset"]), str(one)) not in known]
    if lost:
        raise SampleInvalid(f"{name}: functions that are in no list", value=lost, expected="functions of its set")
    tools = tuple(known[str(fields["dataset"]), str(one)] for one in dict.fromkeys(map(str, shown)))
    return _sample(name, _messages(fields["prompt"], name), tools, (call,))
