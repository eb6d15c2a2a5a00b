"""BFCL as a world: every item is a test task, and the score is the leaderboard's verdict.

Nobody may train on these items, so there are no train and dev panels.

Files of the Berkeley Function-Calling Leaderboard, read line by line; a broken line is reported, the others go
on.

BFCL_v4_<category>.json                  JSON lines, an item each
possible_answer/BFCL_v4_<category>.json  JSON lines, the answers to them
multi_turn_func_doc/<class>.json         JSON lines, the functions of a class
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.data.jsonl import read_json_lines
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch, unknown_name_problem
from evolvent.grade.calls import Form, encode_calls
from evolvent.messages import Tool
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Env, Grammar, Info, Parsed, check_task, score_if_won
from evolvent.worlds.bfcl.episode import CallEnv, TurnsEnv
from evolvent.worlds.bfcl.items import (
    CATEGORIES,
    IRRELEVANCE,
    MULTI_TURN,
    RELEVANCE,
    CallItem,
    TurnsItem,
    language_of,
    read_item,
    read_tool,
)
from evolvent.worlds.bfcl.multi_turn import MOST_STEPS, MultiTurn, find_padding, read_multi_turn
from evolvent.worlds.panel import check_names

__all__ = [
    "CLASS_FILES",
    "FORM_EXAMPLES",
    "GROUPS",
    "Bfcl",
    "Items",
    "Reply",
    "count_problems",
    "group_of",
    "read_documents",
    "read_items",
]


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
        hint = "needed for the multi-turn items" if category in MULTI_TURN else ""
        answers: dict[str, Any] = {}
        if category not in (*IRRELEVANCE, *RELEVANCE):
            for _, row in read_json_lines(folder / "possible_answer" / name, problems, hint=hint):
                if isinstance(row, dict):
                    answers.setdefault(str(row.get("id")), row)
        known_ids: set[str] = set()
        for line, row in read_json_lines(folder / name, problems, hint=hint):
            try:
                item = read_item(row, answers.get(str(row.get("id"))) if isinstance(row, dict) else None, category)
                if item.id in known_ids:
                    raise SampleInvalid("an id occurs twice", value=item.id, expected="unique ids")
            except SampleInvalid as error:
                problems.append(Problem(f"{name}, line {line}", str(error), "the item is skipped"))
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
        Problem(f"BFCL_v4_{name}.json", f"got {counts[name]} readable items", f"version 4 has {CATEGORIES[name]}")
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
        for line, row in read_json_lines(folder / "multi_turn_func_doc" / f"{stem}.json", problems):
            try:
                tools.append(read_tool(row, name))
            except SampleInvalid as error:
                problems.append(Problem(f"{stem}.json, line {line}", str(error)))
        tools_by_class[name] = tuple(tools)
    if problems:
        raise ConfigError(problems)
    return tools_by_class


GROUPS = ("non_live", "live", "irrelevance", "relevance", "multi_turn")
"""The tiers: the groups that the leaderboard's totals are made of."""
_BASE, _LONG_CONTEXT = "multi_turn_base", "multi_turn_long_context"
_NO_CALL = "That is all."
FORM_EXAMPLES: Mapping[Form, str] = {
    "python": "[name(parameter=value, ...), ...]",
    "json": '[{"name": "...", "arguments": {...}}, ...]',
    "xml": '<tool_call>{"name": "...", "arguments": {...}}</tool_call>, once for every call',
}
_INSTRUCTIONS = (
    "Functions and a request follow. Call the functions that the request needs. If none fits, or something is missing, "
    "say so and call none. Write calls as {form} and nothing else. Results of calls are told; when nothing is left to "
    "call, answer without a call."
)


def group_of(category: str) -> str:
    """Returns the tier of a category."""
    if category in MULTI_TURN:
        return "multi_turn"
    if category in RELEVANCE:
        return "relevance"
    if category in IRRELEVANCE:
        return "irrelevance"
    return "live" if category.startswith("live") else "non_live"


class Reply:
    """A grammar whose action is the whole reply, also an empty one: a reply without calls means something here."""

    def parse(self, text: str) -> Parsed:
        return Parsed(text.strip())

    def render(self, parsed: Parsed) -> str:
        return parsed.action


class Bfcl:
    """The items of a folder in the layout of BFCL v4 (see `files`).

    A task of one turn is one reply. In a task of several turns, calls are done and answered, and a reply without calls
    ends the user's turn; the verdict comes with the last one. `info["tools"]` and `info["messages"]` hold the functions
    and the new messages of a moment in OpenAI's form, for agents with a chat template of their own; the observation is
    the same as text.

    Args:
        folder: the folder.
        form: how calls are written: "python", "json" or "xml". With "python", items of Java and JavaScript are answered
            with literals of their language.
        categories: which to read; all of them if nothing is said.
    Attributes:
        problems: items that could not be used, and why.
    Raises:
        ConfigError: an unknown form or category, a file that is missing, or a line that documents no function.
    """

    name = "bfcl"
    version = "1"
    tiers: tuple[str, ...] = GROUPS
    run_in_thread = False
    reward_range = (0.0, 1.0)

    def __init__(
        self, folder: str | Path, *, form: Form = "python", categories: Sequence[str] = tuple(CATEGORIES)
    ) -> None:
        problems = [unknown_name_problem("category", name, CATEGORIES) for name in categories if name not in CATEGORIES]
        if form not in FORM_EXAMPLES:
            problems.append(unknown_name_problem("form", form, FORM_EXAMPLES))
        if problems:
            raise ConfigError(problems)
        self.form: Form = form
        self.grammar: Grammar = Reply()
        self._documents: Mapping[str, Sequence[Tool]] = {}
        # The long items need the base ones: the two together tell what was added (see `find_padding`).
        needed = dict.fromkeys([*categories, *([_BASE] if _LONG_CONTEXT in categories else [])])
        items = read_items(Path(folder), list(needed))
        self._calls = {item.id: item for item in items.calls}
        self._turns: dict[str, MultiTurn] = {}
        self._panels: dict[str, tuple[Task, ...]] = {}
        self.problems = items.problems
        if items.turns:
            self._documents = read_documents(Path(folder))
        self.instructions = _INSTRUCTIONS.format(form=FORM_EXAMPLES[form])
        padding = find_padding(items.turns)
        for item in items.turns:
            try:
                if item.category in categories:
                    self._turns[item.id] = read_multi_turn(item, padding)
            except SampleInvalid as error:
                self.problems += (Problem(item.id, str(error), "the item is skipped"),)
        # 20 replies with calls in every turn, and one without.
        self.horizon = max([1, *((MOST_STEPS + 1) * len(conversation.gold) for conversation in self._turns.values())])

    def _build_task(self, item: CallItem | TurnsItem) -> Task:
        """Builds the task of an item; it names the item and a digest of its content, not the answer."""
        digest = hashlib.sha256(repr(item).encode()).hexdigest()[:16]
        spec = {"category": item.category, "id": item.id, "digest": digest}
        return Task(self.name, self.version, spec, item.category, group_of(item.category), "test")

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the items of a group in the order of the files; only the split "test" has any.

        Raises:
            ConfigError: a split or tier that does not exist.
        """
        check_names(split, tier, GROUPS)
        if split != "test":
            return ()
        if tier not in self._panels:
            items: list[CallItem | TurnsItem] = [
                *self._calls.values(),
                *(conversation.item for conversation in self._turns.values()),
            ]
            self._panels[tier] = tuple(self._build_task(item) for item in items if group_of(item.category) == tier)
        return self._panels[tier]

    def item(self, task: Task) -> CallItem | MultiTurn:
        """Returns the item of a task.

        Raises:
            ConfigError: a task of another world, or of an item that the folder does not have.
            VersionMismatch: the item says something else than when the task was made.
        """
        check_task(self, task)
        name = str(task.spec.get("id"))
        if name not in self._calls and name not in self._turns:
            raise ConfigError("item not found in the folder", value=name, hint="pass the folder and the categories")
        item: CallItem | MultiTurn = self._calls[name] if name in self._calls else self._turns[name]
        current_task = self._build_task(item if isinstance(item, CallItem) else item.item)
        if current_task.id != task.id:
            raise VersionMismatch(
                f"the content of {name} has changed", value=dict(task.spec), expected=dict(current_task.spec)
            )
        return item

    def make(self, task: Task) -> Env:
        """Creates an Env for one task; raises as `expert` does."""
        item = self.item(task)
        if isinstance(item, CallItem):
            return CallEnv(item, self.form)
        return TurnsEnv(task, item, self._documents, form=self.form)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success is the verdict."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns replies with the gold calls; None for items without gold calls or answered in Java or JavaScript.

        Raises:
            ConfigError: a task of another world, or of an item that the folder does not have.
            VersionMismatch: the item says something else than when the task was made.
        """
        item = self.item(task)
        if isinstance(item, MultiTurn):
            turns = ([encode_calls(gold, form=self.form)] if gold else [] for gold in item.gold)
            return [reply for turn in turns for reply in (*turn, _NO_CALL)]
        if item.category in IRRELEVANCE:
            return [_NO_CALL]
        if item.category in RELEVANCE or language_of(item.category) != "python":
            return None
        return [encode_calls(item.sample.calls, form=self.form)]

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None
