"""One conversation: what all episodes of a task share, and the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from evolvent.errors import InvalidAction, SessionGone
from evolvent.grade.calls import check_calls, decode_calls, encode_calls, exact_gold
from evolvent.messages import Call, Message, Tool
from evolvent.schemas import json_schema
from evolvent.trajectory import Task, Value, canonical_json
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.functions.spelling import decode_words, encode_words, resolved, show_messages, show_tools
from evolvent.worlds.functions.tasks import Talk, without_defaults
from evolvent.worlds.grammar import Parsed

__all__ = ["FORMS", "UNREADABLE", "CallForm", "Calls", "FunctionsEnv", "Scene", "read_calls", "write_calls"]

CallForm = Literal["words", "python", "json", "xml"]
FORMS: tuple[str, ...] = ("words", "python", "json", "xml")
UNREADABLE = "no calls can be read here ; write calls , or [ ]"
_NONE = "[]"  # no calls, in every form
_WORD = re.compile(r"\w+")


def read_calls(text: str, form: CallForm) -> tuple[Call, ...]:
    """The calls in a text; `[]` is none of them, in every form. Raises InvalidAction where none can be read."""
    if "".join(text.split()) == _NONE:
        return ()
    return decode_words(text) if form == "words" else decode_calls(text, form=form)


def write_calls(calls: Sequence[Call], form: CallForm) -> str:
    """Calls as the text of an action; `read_calls` reads them again."""
    if not calls:
        return _NONE
    return encode_words(calls) if form == "words" else encode_calls(calls, form=form)


@dataclass(frozen=True, slots=True)
class Calls:
    """The grammar: the whole text is calls in one form."""

    form: CallForm = "words"

    def parse(self, text: str) -> Parsed:
        """The calls in a model's text, written in order; raises InvalidAction where there are none to be read."""
        return Parsed(write_calls(read_calls(text, self.form), self.form))

    def render(self, parsed: Parsed) -> str:
        return parsed.action


@dataclass
class Scene:
    """What all episodes of one task share.

    Args:
        talk: the conversation.
        form: how calls are written, and tools shown.
    """

    talk: Talk
    form: CallForm

    @cached_property
    def first(self) -> str:
        """The first observation: the tools, then what was said."""
        tools = show_tools(self.talk.tools) if self.form == "words" else _json_lines(self.talk.tools)
        return f"{tools}\n{self.said(self.talk.messages)}"

    def said(self, messages: Sequence[Message]) -> str:
        """Messages as an observation: one a line, after who speaks."""
        return show_messages(messages, write=lambda calls: write_calls(calls, self.form))

    @cached_property
    def plan(self) -> tuple[str, ...]:
        """The right answers."""
        return tuple(write_calls(turn.calls, self.form) for turn in self.talk.turns)

    @cached_property
    def admissible(self) -> tuple[tuple[str, ...], ...]:
        """For each turn answers that somebody might give, the right one among them, in alphabetical order."""
        return tuple(tuple(sorted({self.plan[turn], *self._tried(turn)})) for turn in range(len(self.plan)))

    def _tried(self, turn: int) -> Iterator[str]:
        calls, heard = self.talk.turns[turn].calls, _heard(self.talk, turn)
        yield _NONE
        for call in calls:
            yield write_calls([call], self.form)
            for name in call.arguments:
                rest = {other: value for other, value in call.arguments.items() if other != name}
                yield write_calls([Call(call.name, rest)], self.form)
        for tool in self.talk.tools:
            rows = json_schema(tool.parameters).get("properties", {})
            for place in range(2):
                guess = {name: _guess(row, heard, place) for name, row in rows.items()}
                yield write_calls([Call(tool.name, guess)], self.form)
            for call in calls:
                yield write_calls([Call(tool.name, call.arguments)], self.form)

    def right(self, turn: int, calls: Sequence[Call]) -> bool:
        """Whether these calls are the answer of a turn."""
        expected = self.talk.turns[turn].calls
        if not calls or not expected:
            return not calls and not expected
        said, gold = (without_defaults(one, self.talk.tools) for one in (calls, expected))
        return check_calls(said, exact_gold(gold), self.tools).valid

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools with their parameters as JSON Schema, whatever dialect they are written in."""
        return tuple(Tool(one.name, one.description, json_schema(one.parameters)) for one in self.talk.tools)


def _json_lines(tools: Sequence[Tool]) -> str:
    return "\n".join(canonical_json(tool.as_openai()) for tool in tools)


def _heard(talk: Talk, turn: int) -> tuple[str, ...]:
    """The words of the last request."""
    past = [*talk.messages, *(message for one in talk.turns[:turn] for message in one.then)]
    said = [message.text for message in past if message.role == "user"]
    return tuple(_WORD.findall(said[-1])) if said else ()


def _guess(schema: Any, heard: Sequence[str], place: int) -> Any:
    """A value of the type that a schema asks for, out of the last request where that has one."""
    row: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    numbers = [int(word) for word in heard if word.isascii() and word.isdigit() and len(word) < 5] or [1]
    if row.get("enum"):
        return row["enum"][place % len(row["enum"])]
    if row.get("type") == "object":
        return {name: _guess(part, heard, place) for name, part in row.get("properties", {}).items()}
    if row.get("type") == "array":
        return [_guess(row.get("items"), heard, place)]
    guesses = {"integer": numbers[place % len(numbers)], "number": numbers[-1] + 0.5, "boolean": place == 0}
    return guesses.get(str(row.get("type")), heard[-1 - place] if place < len(heard) else "")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: all that changes in an episode."""

    task: str
    running: bool
    turn: int
    earned: float


class FunctionsEnv:
    """One conversation. A right answer earns its share, a wrong one ends it, what cannot be read may be repeated."""

    def __init__(self, task: Task, scene: Scene, *, penalty: float) -> None:
        self._task, self._scene, self._penalty = task, scene, penalty
        self._set(_Moment(task.id, False, 0, 0.0))

    def _set(self, moment: _Moment) -> None:
        self._running, self._turn, self._earned = moment.running, moment.turn, moment.earned

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._set(_Moment(self._task.id, True, 0, 0.0))
        return self._scene.first, self._info()

    def _info(self) -> dict[str, Any]:
        return {"admissible": self._scene.admissible[self._turn]}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        try:
            calls = resolved(read_calls(str(action), self._scene.form), self._scene.tools)
        except InvalidAction:
            return UNREADABLE, self._penalty, False, False, {**self._info(), "invalid": True}
        turns = self._scene.talk.turns
        if not self._scene.right(self._turn, calls):
            self._running = False
            return "", 0.0, True, False, self._info()
        last = self._turn + 1 == len(turns)
        reward = 1.0 - self._earned if last else 1.0 / len(turns)
        self._earned += reward
        if last:
            self._running = False
            return "", reward, True, False, self._info()
        said = self._scene.said(turns[self._turn].then)
        self._turn += 1
        return said, reward, False, False, self._info()

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._turn, self._earned)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._set(own_moment(value, _Moment, self._task))

    def close(self) -> None:
        self._running = False
