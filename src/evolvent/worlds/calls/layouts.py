"""Readers of function-calling data sets in the layouts of their publishers.

    Hammer       {"query", "tools", "answers"}: an array or JSON lines; tools and answers may be JSON text (xLAM). The
                 sets of Hammer's evaluation have it too: API-Bank and ToolAlpaca, and Seal-Tools, whose answers are
                 {"tool", "parameters"}. A query is a text or messages; the role "agent" is an assistant that talks.
    Seal-Tools   {"id", "query", "calling": [{"api", "parameters"}]} in JSON lines, and tool.jsonl beside it
    NexusRaven   {"prompt", "python_function_name", "python_args_dict", "context_functions", "dataset"}, and the list of
                 its functions {"dataset", "name", "description", "args_dicts"}

An unusable row is reported and left out. Parameters become `{"type": "object", "properties", "required"}`; the
words for types stay those of the set. Licenses: Hammer and Seal-Tools Apache-2.0, NexusRaven CC-BY-NC-4.0.
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
    """Reads the samples of a file in Hammer's layout and the problems of the rows left out; ids are
    `<file>/<index>`.

    Raises:
        ConfigError: a file that cannot be read.
    """
    return _read_each(path, lambda row, index: read_hammer_row(row, f"{path.stem}/{index}"))


def read_hammer_row(row: object, name: str) -> CallSample:
    """Reads one row `{"query", "tools", "answers"}` as the sample of that id; raises SampleInvalid where it is
    malformed.
    """
    fields = _require_fields(row, name, "query", "tools", "answers")
    tools: dict[str, Tool] = {}
    for entry in _parse_list(fields["tools"], name, "tools"):
        tool = _parse_tool(entry, name)
        tools.setdefault(tool.name, tool)  # a tool twice is one, as in Hammer's training
    calls = tuple(_parse_call(entry, name) for entry in _parse_list(fields["answers"], name, "answers"))
    return _build_sample(name, _parse_messages(fields["query"], name), tuple(tools.values()), calls)


def read_seal_tools(path: Path, tools: Path, *, num_other_tools: int = 4, seed: int = 0) -> Samples:
    """Reads the samples of Seal-Tools in its own layout.

    Args:
        path: a file of items.
        tools: the file of all tools.
        num_other_tools: number of uncalled tools that each sample also shows; drawn from (seed, id), and all are
            shuffled.
        seed: seed of that draw.
    Raises:
        ConfigError: a file that cannot be read.
        SampleInvalid: a malformed tool.
    """
    rows, _ = _read_rows(tools)
    tools_by_name = {tool.name: tool for tool in (_parse_tool(row, tools.name) for row in rows)}
    return _read_each(
        path, partial(_parse_seal_row, tools_by_name=tools_by_name, num_other_tools=num_other_tools, seed=seed)
    )


def read_nexus_raven(queries: Path, functions: Path) -> Samples:
    """Reads the samples of NexusRaven's evaluation: its standardized queries, and the standardized list of
    functions.

    Raises:
        ConfigError: a file that cannot be read.
        SampleInvalid: a function that is none.
    """
    rows, _ = _read_rows(functions)
    tools_by_key: dict[tuple[str, str], Tool] = {}
    for row in rows:
        fields = _require_fields(row, functions.name, "dataset", "name", "args_dicts")
        arguments = _parse_list(fields["args_dicts"], functions.name, "args_dicts")
        properties = {
            argument["name"]: {key: value for key, value in argument.items() if key != "name"}
            for argument in arguments
            if "name" in argument
        }
        tool = _parse_tool({**fields, "parameters": properties}, functions.name)
        tools_by_key[str(fields["dataset"]), tool.name] = tool
    return _read_each(queries, partial(_parse_nexus_row, tools_by_key=tools_by_key))


def _read_each(path: Path, read_sample: Callable[[object, int], CallSample]) -> Samples:
    rows, problems = _read_rows(path)
    samples = list[CallSample]()
    for index, row in enumerate(rows):
        try:
            samples.append(read_sample(row, index))
        except SampleInvalid as error:
            problems.append(Problem(f"{path.name}, row {index}", str(error), "the row is skipped"))
    return tuple(samples), tuple(problems)


def _read_rows(path: Path) -> tuple[list[Any], list[Problem]]:
    """Reads the rows of an array or of JSON lines; a line without JSON becomes a row of text, which every reader
    refuses.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    if text.lstrip().startswith("["):
        return list(_parse_json(text, path.name)), []
    rows = list[Any]()
    for line in filter(str.strip, text.split("\n")):
        try:
            rows.append(_parse_json(line, path.name))
        except ConfigError:
            rows.append(line)
    return rows, []


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid JSON ({error})", value=text[:80], expected="JSON") from error


def _require_fields(row: object, name: str, *required: str) -> Mapping[str, Any]:
    missing = [field for field in required if not isinstance(row, Mapping) or field not in row]
    if missing or not isinstance(row, Mapping):
        raise SampleInvalid(f"{name}: the row lacks {', '.join(missing)}", value=row, expected=list(required))
    return row


def _parse_list(value: object, name: str, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SampleInvalid(f"{name}: {field} is not JSON", value=value, expected="a list") from error
    if not isinstance(value, list):
        raise SampleInvalid(f"{name}: {field} is not a list", value=value, expected="a list")
    return value


def _parse_tool(row: object, name: str) -> Tool:
    """Parses a tool under any of the names of its fields, its flat parameters as a schema of an object."""
    fields = row if isinstance(row, Mapping) else {}
    tool_name = fields.get("name", fields.get("api_name"))
    parameters = fields.get("parameters")
    if not isinstance(tool_name, str) or not isinstance(parameters, Mapping):
        raise SampleInvalid(f"{name}: invalid tool", value=row, expected='{"name", "parameters"}')
    text = str(fields.get("description") or fields.get("api_description") or "")
    if isinstance(parameters.get("properties"), Mapping):
        return Tool(tool_name, text, dict(parameters))
    if not all(isinstance(parameter, Mapping) for parameter in parameters.values()):
        raise SampleInvalid(
            f"{name}: a parameter is not an object", value=tool_name, expected='{"type", "description"}'
        )
    required = fields.get("required")
    required_names = list(required) if isinstance(required, list) else []
    required_names += [
        parameter
        for parameter, schema in parameters.items()
        if schema.get("required") is True and parameter not in required_names
    ]
    properties = {
        parameter: {key: value for key, value in schema.items() if key != "required"}
        for parameter, schema in parameters.items()
    }
    return Tool(tool_name, text, {"type": "object", "properties": properties, "required": required_names})


def _parse_call(row: object, name: str) -> Call:
    """Parses a call `{"name", "arguments"}`, or `{"tool", "parameters"}`, or `{"api", "parameters"}`."""
    fields = row if isinstance(row, Mapping) else {}
    tool_name = next((fields[key] for key in ("name", "tool", "api") if key in fields), None)
    arguments = fields.get("arguments", fields.get("parameters"))
    if not isinstance(tool_name, str) or not isinstance(arguments, Mapping):
        raise SampleInvalid(f"{name}: the answer is not a call", value=row, expected='{"name", "arguments"}')
    return Call(tool_name, dict(arguments))


def _parse_messages(query: object, name: str) -> tuple[Message, ...]:
    if isinstance(query, str):
        return (Message("user", query),)
    messages = list[Message]()
    for entry in _parse_list(query, name, "messages"):
        fields = _require_fields(entry, name, "role", "content")
        role, text = fields["role"], fields["content"]
        if role not in ("user", "agent", "assistant", "tool", "system") or not isinstance(text, str):
            raise SampleInvalid(f"{name}: invalid message", value=entry, expected='{"role", "content"}')
        messages.append(_build_message(role, text))
    return tuple(messages)


def _build_message(role: str, text: str) -> Message:
    if role == "assistant":
        try:
            return Message(role, None, decode_calls(text, form="json"))
        except InvalidAction:
            return Message(role, text)
    return Message("assistant" if role == "agent" else role, text)


def _build_sample(
    name: str, messages: tuple[Message, ...], tools: tuple[Tool, ...], calls: tuple[Call, ...]
) -> CallSample:
    unknown_tools = sorted({call.name for call in calls} - {tool.name for tool in tools})
    if unknown_tools:
        raise SampleInvalid(
            f"{name}: the answer calls an unknown tool", value=unknown_tools, expected="tools of the row"
        )
    return CallSample(name, messages, tools, calls)


def _parse_seal_row(
    row: object, index: int, *, tools_by_name: Mapping[str, Tool], num_other_tools: int, seed: int
) -> CallSample:
    fields = _require_fields(row, f"row {index}", "id", "query", "calling")
    name = str(fields["id"])
    calls = tuple(_parse_call(entry, name) for entry in _parse_list(fields["calling"], name, "calling"))
    shown_names = list(dict.fromkeys(call.name for call in calls if call.name in tools_by_name))
    other_names = [entry for entry in tools_by_name if entry not in shown_names]
    rng = sample_rng("seal tools", seed, name)
    shown_names += (
        [
            other_names[position]
            for position in rng.choice(len(other_names), min(num_other_tools, len(other_names)), replace=False)
        ]
        if other_names
        else []
    )
    tools = tuple(tools_by_name[shown_names[position]] for position in rng.permutation(len(shown_names)))
    return _build_sample(name, _parse_messages(fields["query"], name), tools, calls)


def _parse_nexus_row(row: object, index: int, *, tools_by_key: Mapping[tuple[str, str], Tool]) -> CallSample:
    name = f"nexusraven/{index}"
    fields = _require_fields(
        row, name, "dataset", "prompt", "python_function_name", "python_args_dict", "context_functions"
    )
    arguments = fields["python_args_dict"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise SampleInvalid(f"{name}: the arguments are not JSON", value=arguments, expected="an object") from error
    call = _parse_call({"name": fields["python_function_name"], "arguments": arguments}, name)
    shown_names: Sequence[Any] = _parse_list(fields["context_functions"], name, "context_functions")
    unknown_names = [
        function_name
        for function_name in shown_names
        if (str(fields["dataset"]), str(function_name)) not in tools_by_key
    ]
    if unknown_names:
        raise SampleInvalid(
            f"{name}: functions are missing from the lists", value=unknown_names, expected="functions of its set"
        )
    tools = tuple(
        tools_by_key[str(fields["dataset"]), str(function_name)]
        for function_name in dict.fromkeys(map(str, shown_names))
    )
    return _build_sample(name, _parse_messages(fields["prompt"], name), tools, (call,))
