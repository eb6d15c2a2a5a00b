"""Items of the Berkeley Function-Calling Leaderboard: their fields, and the check of an answer.

Source: ShishirPatil/gorilla, berkeley-function-call-leaderboard, bfcl_eval/data (v4, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.errors import ConfigError, SampleInvalid, unknown_name_problem
from evolvent.grade.calls import OMITTED, CallGrade, Form, GoldCall, grade_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import JsonObject

__all__ = [
    "BAD_ITEMS",
    "CATEGORIES",
    "IRRELEVANCE",
    "MULTI_TURN",
    "RELEVANCE",
    "CallItem",
    "TurnsItem",
    "judge_calls",
    "language_of",
    "read_item",
    "read_tool",
]

CATEGORIES: Mapping[str, int] = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "irrelevance": 240,
    "live_irrelevance": 884,
    "live_relevance": 16,
    "multi_turn_base": 200,
    "multi_turn_miss_func": 200,
    "multi_turn_miss_param": 200,
    "multi_turn_long_context": 200,
}
"""The categories, with how many items version 4 has of each: 2,501 of calls, 1,140 of (ir)relevance, 800 of turns."""
IRRELEVANCE = ("irrelevance", "live_irrelevance")
"""No call is right."""
RELEVANCE = ("live_relevance",)
"""Any call is right."""
MULTI_TURN = tuple(name for name in CATEGORIES if name.startswith("multi_turn"))

BAD_ITEMS: Mapping[str, str] = {
    "live_simple_106-63-0": "two required parameters have an empty list of accepted values: nothing is accepted",
    "live_simple_112-68-0": "five required parameters have an empty list of accepted values: nothing is accepted",
    "live_multiple_862-181-3": "its answer must give journey_start_time, which the schema does not have",
    "live_multiple_964-207-0": "the schema requires statement, its answer has question instead",
}
"""Items of version 4 that no answer can solve, and why. Scores are given with and without them."""


@dataclass(frozen=True, slots=True)
class CallItem:
    """An item of one turn.

    Args:
        id, category: as in the files.
        messages: the question.
        tools: what may be called, in the data set's own dialect of JSON schema.
        gold: the calls that are expected; none in the (ir)relevance categories.
    """

    id: str
    category: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    gold: tuple[GoldCall, ...] = ()

    @property
    def language(self) -> str:
        """Returns the language of the arguments' literals: "python", "java" or "javascript"."""
        return language_of(self.category)

    @property
    def form(self) -> Form:
        """Returns the form in which a prompted model answers."""
        return "java" if self.language == "java" else "javascript" if self.language == "javascript" else "python"

    @property
    def sample(self) -> CallSample:
        """Returns the request with its tools and one right answer, made of the first accepted value of each
        parameter.

        In Java and JavaScript the values are plain ones, not source text.
        """
        parameters_by_tool = {tool.name: tool.parameters for tool in self.tools}
        calls = tuple(
            Call(gold_call.name, _first_accepted(gold_call, parameters_by_tool[gold_call.name]))
            for gold_call in self.gold
        )
        return CallSample(self.id, self.messages, self.tools, calls)


@dataclass(frozen=True, slots=True)
class TurnsItem:
    """An item of several turns (`multi_turn.py` plays it).

    Args:
        id, category: as in the files.
        turns: the user's messages, turn by turn; empty where something else begins the turn.
        initial_config: the initial state of each class.
        involved_classes: the classes whose functions may be called.
        path: the functions that a solution goes through, as `Class.function`.
        missed_function: turn -> functions that are shown from that turn on only.
        excluded_function: functions that are never shown.
        ground_truth: for each turn the calls of a solution, as Python-like text.
    """

    id: str
    category: str
    turns: tuple[tuple[Message, ...], ...]
    initial_config: JsonObject
    involved_classes: tuple[str, ...]
    path: tuple[str, ...]
    missed_function: Mapping[int, tuple[str, ...]]
    excluded_function: tuple[str, ...]
    ground_truth: tuple[tuple[str, ...], ...]


def language_of(category: str) -> str:
    """Returns the language of the types and literals of a category's items."""
    return {"simple_java": "java", "simple_javascript": "javascript"}.get(category, "python")


def judge_calls(item: CallItem, calls: Sequence[Call] | None, *, underscore_names: bool = False) -> CallGrade:
    """Checks whether an answer is right.

    Args:
        calls: what was called; None where the answer attempts a call that cannot be read. Text without any call is
            (). The leaderboard counts both as no call, which rewards broken calls where no tool fits
            (ShishirPatil/gorilla issue 1362).
        underscore_names: dots of function names are underscores in `calls`.
    Raises:
        SampleInvalid: the item itself is malformed.
    """
    if item.category in IRRELEVANCE:
        if calls is None:
            return CallGrade(False, "count", "calls", "a call that cannot be read where no tool fits")
        return CallGrade(True) if not calls else CallGrade(False, "count", "calls", "a call where no tool fits")
    if item.category in RELEVANCE:
        return CallGrade(True) if calls else CallGrade(False, "count", "calls", "no call where a tool fits")
    return grade_calls(calls or (), item.gold, item.tools, language=item.language, underscore_names=underscore_names)


def read_item(row: object, answer: object, category: str) -> CallItem | TurnsItem:
    """Reads one line of a category's file and the line of its answer.

    Args:
        answer: the line of `possible_answer` with the same id; None in the (ir)relevance categories.
    Raises:
        SampleInvalid: lines that are not of the form; the id is in the text.
        ConfigError: an unknown category.
    """
    if category not in CATEGORIES:
        raise ConfigError([unknown_name_problem("category", category, CATEGORIES)])
    if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
        raise SampleInvalid("the line has no id", value=row, expected='{"id": text, "question": [...], ...}')
    name = row["id"]
    turns = _get_list(row, "question", name)
    if not turns or not all(isinstance(turn, list) for turn in turns):
        raise SampleInvalid(f"{name}: the question is not a list of turns", value=turns, expected="[[message, ...]]")
    messages = tuple(tuple(map(Message.of_openai, turn)) for turn in turns)
    if category in MULTI_TURN:
        return _parse_turns_item(row, answer, category, messages)
    if len(messages) != 1:
        raise SampleInvalid(f"{name}: a single-turn item has several turns", value=len(messages), expected="one turn")
    tools = tuple(read_tool(tool, name) for tool in _get_list(row, "function", name))
    if len({tool.name for tool in tools}) != len(tools):
        raise SampleInvalid(f"{name}: two functions have the same name", value=[tool.name for tool in tools])
    if category in (*IRRELEVANCE, *RELEVANCE):
        return CallItem(name, category, messages[0], tools)
    gold = tuple(_parse_gold_call(gold_call, name) for gold_call in _get_ground_truth(answer, name))
    unknown_names = [gold_call.name for gold_call in gold if gold_call.name not in {tool.name for tool in tools}]
    if not gold or unknown_names:
        raise SampleInvalid(
            f"{name}: the answer has no calls or unknown tools", value=unknown_names, expected="calls of tools"
        )
    return CallItem(name, category, messages[0], tools, gold)


def read_tool(row: object, source_name: str) -> Tool:
    """Reads a function `{"name", "description", "parameters"}`; raises SampleInvalid where it is malformed."""
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise SampleInvalid(f"{source_name}: a function has no name", value=row, expected='{"name", "parameters"}')
    parameters = row.get("parameters")
    if not isinstance(parameters, Mapping) or not isinstance(parameters.get("properties", {}), Mapping):
        raise SampleInvalid(f"{source_name}: a function has no parameter schema", value=row["name"])
    return Tool(row["name"], str(row.get("description") or ""), dict(parameters))


def _get_list(row: Mapping[str, Any], field: str, name: str) -> list[Any]:
    entries = row.get(field)
    if not isinstance(entries, list):
        raise SampleInvalid(f"{name}: field {field!r} is not a list", value=entries, expected="a list")
    return entries


def _get_ground_truth(answer: object, name: str) -> list[Any]:
    if not isinstance(answer, Mapping) or answer.get("id") != name:
        raise SampleInvalid(f"{name}: missing answer for this id", value=answer, expected='{"id", "ground_truth"}')
    return _get_list(answer, "ground_truth", name)


def _parse_gold_call(row: object, name: str) -> GoldCall:
    """Parses `{function: {parameter: [accepted values]}}`."""
    (function, arguments) = next(iter(row.items())) if isinstance(row, Mapping) and len(row) == 1 else ("", None)
    if not isinstance(arguments, Mapping) or not all(isinstance(values, list) for values in arguments.values()):
        raise SampleInvalid(f"{name}: invalid expected call", value=row, expected="{name: {parameter: [..]}}")
    return GoldCall(function, {parameter: tuple(accepted) for parameter, accepted in arguments.items()})


def _parse_turns_item(
    row: Mapping[str, Any], answer: object, category: str, turns: tuple[tuple[Message, ...], ...]
) -> TurnsItem:
    name = row["id"]
    truth = _get_ground_truth(answer, name)
    are_texts = all(isinstance(turn, list) and all(isinstance(call, str) for call in turn) for turn in truth)
    missed, config = row.get("missed_function", {}), row.get("initial_config", {})
    if not are_texts or len(truth) != len(turns):
        raise SampleInvalid(
            f"{name}: the answer is not a list of calls for each turn",
            value=len(truth),
            expected=f"{len(turns)} lists of texts",
        )
    if not isinstance(missed, Mapping) or not isinstance(config, Mapping):
        raise SampleInvalid(f"{name}: missed_function or initial_config is not an object", value=missed)
    if not all(str(turn).isdecimal() and isinstance(names, list) for turn, names in missed.items()):
        raise SampleInvalid(
            f"{name}: the keys of missed_function are not turns", value=missed, expected="{turn: [names]}"
        )
    lists = [
        _get_list(row, "involved_classes", name),
        *(row.get(field) or [] for field in ("path", "excluded_function")),
    ]
    if not all(
        isinstance(names_list, list) and all(isinstance(text, str) for text in names_list) for names_list in lists
    ):
        raise SampleInvalid(f"{name}: the names are not lists of texts", value=lists, expected="lists of texts")
    return TurnsItem(
        name,
        category,
        turns,
        config,
        tuple(lists[0]),
        tuple(lists[1]),
        {int(turn): tuple(names) for turn, names in missed.items()},
        tuple(lists[2]),
        tuple(map(tuple, truth)),
    )


def _first_accepted(gold: GoldCall, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Takes the first accepted value of each parameter, without those that are unknown or can only be left out."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    arguments: dict[str, Any] = {}
    for name, accepted in gold.arguments.items():
        values = [option for option in accepted if not _omits(option)]
        if values and (name in properties or len(values) == len(accepted)):
            arguments[name] = _to_plain_value(values[0], properties.get(name))
        elif accepted and name in required:
            arguments[name] = OMITTED  # it must be given, and an empty text is all that is accepted
    return arguments


def _omits(value: Any) -> bool:
    return isinstance(value, str) and value == OMITTED


def _to_plain_value(value: Any, schema: Any) -> Any:
    """Converts an accepted value to a plain one: a dict holds lists of accepted values, also in a list of dicts."""
    if isinstance(value, dict):
        lists = {key: choices if isinstance(choices, list) else [choices] for key, choices in value.items()}
        given_choices = {key: [option for option in choices if not _omits(option)] for key, choices in lists.items()}
        return {key: choices[0] for key, choices in given_choices.items() if choices}
    items = schema.get("items") if isinstance(schema, Mapping) else None
    if isinstance(value, list) and isinstance(items, Mapping) and items.get("type") in ("dict", "object"):
        return [_to_plain_value(option, None) for option in value]
    return value
