"""Files of the Berkeley Function-Calling Leaderboard, read line by line; a broken line is reported, the others go
on.

BFCL_v4_<category>.json                  JSON lines, an item each
possible_answer/BFCL_v4_<category>.json  JSON lines, the answers to them
multi_turn_func_doc/<class>.json         JSON lines, the functions of a class
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, Problem, SampleInvalid, unknown_name_problem
from evolvent.messages import Tool
from evolvent.worlds.bfcl.items import (
    CATEGORIES,
    IRRELEVANCE,
    MULTI_TURN,
    RELEVANCE,
    CallItem,
    TurnsItem,
    read_item,
    read_tool,
)

__all__ = ["CLASS_FILES", "Items", "count_problems", "read_documents", "read_items"]

CLASS_FILES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Which file documents the functions of which class."""


@dataclass(frozen=True, slots=True)
class Items:
    """The items of one turn and of several turns, in the order of the files, and the problems of the lines left out."""

    calls: tuple[CallItem, ...]
    turns: tuple[TurnsItem, ...]
    problems: tuple[Problem, ...]


def read_items(folder: Path, categories: Sequence[str] = tuple(CATEGORIES)) -> Items:
    """Reads the items of these categories, as many as are valid.

    A line that is no JSON, is of another form, has no answer, or repeats an id is a problem, and the others go on.

    Raises:
        ConfigError: an unknown category, or a file that is missing or no text.
    """
    problems_of_names = [
        unknown_name_problem("category", name, CATEGORIES) for name in categories if name not in CATEGORIES
    ]
    if problems_of_names:
        raise ConfigError(problems_of_names)
    calls, turns, problems = list[CallItem](), list[TurnsItem](), list[Problem]()
    for category in categories:
        name = f"BFCL_v4_{category}.json"
        answers: dict[str, Any] = {}
        if category not in (*IRRELEVANCE, *RELEVANCE):
            for _, row in _read_json_lines(folder / "possible_answer" / name, problems):
                if isinstance(row, dict):
                    answers.setdefault(str(row.get("id")), row)
        known_ids: set[str] = set()
        for line, row in _read_json_lines(folder / name, problems):
            try:
                item = read_item(row, answers.get(str(row.get("id"))) if isinstance(row, dict) else None, category)
                if item.id in known_ids:
                    raise SampleInvalid("an id that stands there twice", value=item.id, expected="ids that differ")
            except SampleInvalid as error:
                problems.append(Problem(f"{name}, line {line}", str(error), "the item is left out"))
                continue
            known_ids.add(item.id)
            if isinstance(item, CallItem):
                calls.append(item)
            else:
                turns.append(item)
    return Items(tuple(calls), tuple(turns), tuple(problems))


def count_problems(items: Items, categories: Sequence[str] = tuple(CATEGORIES)) -> tuple[Problem, ...]:
    """Reports the categories that have more or fewer items than version 4 has."""
    counts = Counter([*(item.category for item in items.calls), *(item.category for item in items.turns)])
    return tuple(
        Problem(f"BFCL_v4_{name}.json", f"{counts[name]} items that can be read", f"version 4 has {CATEGORIES[name]}")
        for name in categories
        if counts[name] != CATEGORIES[name]
    )


def read_documents(folder: Path) -> dict[str, tuple[Tool, ...]]:
    """Reads, for each class of the multi-turn items, its functions, in the order of its file.

    Raises:
        ConfigError: a file that is missing, or a line of it that documents no function.
    """
    tools_by_class: dict[str, tuple[Tool, ...]] = {}
    problems = list[Problem]()
    for name, stem in CLASS_FILES.items():
        tools = list[Tool]()
        for line, row in _read_json_lines(folder / "multi_turn_func_doc" / f"{stem}.json", problems):
            try:
                tools.append(read_tool(row, name))
            except SampleInvalid as error:
                problems.append(Problem(f"{stem}.json, line {line}", str(error)))
        tools_by_class[name] = tuple(tools)
    if problems:
        raise ConfigError(problems)
    return tools_by_class


def _read_json_lines(path: Path, problems: list[Problem]) -> Iterator[tuple[int, Any]]:
    """Yields the JSON of each line that is not empty, with its number from 1; a line without JSON becomes a problem."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        hint = "needed for the multi-turn items" if any(name in path.name for name in MULTI_TURN) else ""
        raise ConfigError([Problem(path.name, f"this file cannot be read ({error})", hint)]) from error
    for line, entry in enumerate(text.split("\n"), 1):
        if entry.strip():
            try:
                row = json.loads(entry)
            except (ValueError, RecursionError) as error:
                problems.append(Problem(f"{path.name}, line {line}", f"no JSON ({error})", "the line is left out"))
                continue
            yield line, row
