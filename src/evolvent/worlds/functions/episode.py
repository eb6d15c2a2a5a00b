"""One conversation: the data that all episodes of a task share, and the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from evolvent.errors import InvalidAction
from evolvent.grade.calls import decode_calls, encode_calls, exact_gold_calls, grade_calls
from evolvent.messages import Call, Message, Tool
from evolvent.schemas import json_schema
from evolvent.trajectory import Task, Value, canonical_json
from evolvent.worlds.base import Info, Parsed, Reply, StateEnv
from evolvent.worlds.functions.spelling import decode_words, encode_words, resolve_names, show_messages, show_tools
from evolvent.worlds.functions.tasks import CallConversation, remove_defaults

__all__ = ["FORMS", "UNREADABLE", "CallForm", "Calls", "FunctionsEnv", "Scene", "read_calls", "write_calls"]

CallForm = Literal["words", "python", "json", "xml"]
FORMS: tuple[str, ...] = ("words", "python", "json", "xml")
UNREADABLE = "no calls can be read here ; write calls , or [ ]"
_NO_CALLS = "[]"  # no calls, in every form
_WORD = re.compile(r"\w+")


def read_calls(text: str, form: CallForm, tools: Sequence[Tool] = ()) -> tuple[Call, ...]:
    """Reads the calls of tools in a text; `[]` means no calls in every form. Raises InvalidAction for unreadable
    text.
    """
    if "".join(text.split()) == _NO_CALLS:
        return ()
    return decode_words(text) if form == "words" else decode_calls(text, form=form, tools=tools)


def write_calls(calls: Sequence[Call], form: CallForm) -> str:
    """Writes calls as the text of an action; `read_calls` reads it back."""
    if not calls:
        return _NO_CALLS
    return encode_words(calls) if form == "words" else encode_calls(calls, form=form)


@dataclass(frozen=True, slots=True)
class Calls:
    """Grammar in which the whole text is calls in one form."""

    form: CallForm = "words"

    def parse(self, text: str) -> Parsed:
        """Parses the calls of a model's text and writes them in canonical form; raises InvalidAction for unreadable
        text.
        """
        return Parsed(write_calls(read_calls(text, self.form), self.form))

    def render(self, parsed: Parsed) -> str:
        return parsed.action


@dataclass
class Scene:
    """Data that all episodes of one task share.

    Args:
        talk: the conversation.
        form: notation of calls and tools.
    """

    talk: CallConversation
    form: CallForm

    @cached_property
    def first_observation(self) -> str:
        """Returns the first observation: the tools, then the messages."""
        tools = show_tools(self.talk.tools) if self.form == "words" else _render_json_tools(self.talk.tools)
        return f"{tools}\n{self.render_messages(self.talk.messages)}"

    def render_messages(self, messages: Sequence[Message]) -> str:
        """Renders messages as an observation, one per line with its speaker."""
        return show_messages(messages, write=lambda calls: write_calls(calls, self.form))

    @cached_property
    def plan(self) -> tuple[str, ...]:
        """Returns the expected answers."""
        return tuple(write_calls(turn.calls, self.form) for turn in self.talk.turns)

    @cached_property
    def admissible(self) -> tuple[tuple[str, ...], ...]:
        """Returns plausible answers for each turn, the right one included, in alphabetical order."""
        return tuple(tuple(sorted({self.plan[turn], *self._plausible_answers(turn)})) for turn in range(len(self.plan)))

    def _plausible_answers(self, turn: int) -> Iterator[str]:
        calls, request_words = self.talk.turns[turn].calls, _last_request_words(self.talk, turn)
        yield _NO_CALLS
        for call in calls:
            yield write_calls([call], self.form)
            for name in call.arguments:
                remaining_arguments = {
                    argument: value for argument, value in call.arguments.items() if argument != name
                }
                yield write_calls([Call(call.name, remaining_arguments)], self.form)
        for tool in self.talk.tools:
            properties = json_schema(tool.parameters).get("properties", {})
            for variant in range(2):
                guess = {name: _guess_value(schema, request_words, variant) for name, schema in properties.items()}
                yield write_calls([Call(tool.name, guess)], self.form)
            for call in calls:
                yield write_calls([Call(tool.name, call.arguments)], self.form)

    def is_right(self, turn: int, calls: Sequence[Call]) -> bool:
        """Checks whether calls are the expected answer of a turn."""
        expected = self.talk.turns[turn].calls
        if not calls or not expected:
            return not calls and not expected
        given_calls, gold_calls = (remove_defaults(turn_calls, self.talk.tools) for turn_calls in (calls, expected))
        return grade_calls(given_calls, exact_gold_calls(gold_calls), self.tools).valid

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """Returns the tools with their parameters as JSON Schema, whatever dialect they are written in."""
        return tuple(Tool(tool.name, tool.description, json_schema(tool.parameters)) for tool in self.talk.tools)


def _render_json_tools(tools: Sequence[Tool]) -> str:
    return "\n".join(canonical_json(tool.as_openai()) for tool in tools)


def _last_request_words(talk: CallConversation, turn: int) -> tuple[str, ...]:
    """Returns the words of the last request."""
    past_messages = [
        *talk.messages,
        *(message for past_turn in talk.turns[:turn] for message in past_turn.messages_after),
    ]
    requests = [message.text for message in past_messages if message.role == "user"]
    return tuple(_WORD.findall(requests[-1])) if requests else ()


def _guess_value(schema: Any, request_words: Sequence[str], variant: int) -> Any:
    """Returns a value of the schema's type, from the last request where it has a matching word."""
    row: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    numbers = [int(word) for word in request_words if word.isascii() and word.isdigit() and len(word) < 5] or [1]
    if row.get("enum"):
        return row["enum"][variant % len(row["enum"])]
    if row.get("type") == "object":
        return {name: _guess_value(part, request_words, variant) for name, part in row.get("properties", {}).items()}
    if row.get("type") == "array":
        return [_guess_value(row.get("items"), request_words, variant)]
    guesses = {"integer": numbers[variant % len(numbers)], "number": numbers[-1] + 0.5, "boolean": variant == 0}
    return guesses.get(str(row.get("type")), request_words[-1 - variant] if variant < len(request_words) else "")


class FunctionsEnv(StateEnv[tuple[int, float]]):
    """One conversation. A right answer earns its share, a wrong answer ends it, an unreadable answer may be
    repeated. The state is the turn and the reward earned so far.
    """

    def __init__(self, task: Task, scene: Scene, *, penalty: float) -> None:
        super().__init__(task, (0, 0.0))
        self._scene, self._penalty = scene, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.first_observation, self._info(0)

    def _info(self, turn: int) -> dict[str, Any]:
        return {"admissible": self._scene.admissible[turn]}

    def _transition(self, state: tuple[int, float], action: Value) -> tuple[tuple[int, float], Reply]:
        turn, earned = state
        try:
            calls = resolve_names(read_calls(str(action), self._scene.form, self._scene.tools), self._scene.tools)
        except InvalidAction:
            return state, (UNREADABLE, self._penalty, False, False, {**self._info(turn), "invalid": True})
        turns = self._scene.talk.turns
        if not self._scene.is_right(turn, calls):
            return state, ("", 0.0, True, False, self._info(turn))
        is_last_turn = turn + 1 == len(turns)
        reward = 1.0 - earned if is_last_turn else 1.0 / len(turns)
        if is_last_turn:
            return (turn, earned + reward), ("", reward, True, False, self._info(turn))
        observation = self._scene.render_messages(turns[turn].messages_after)
        return (turn + 1, earned + reward), (observation, reward, False, False, self._info(turn + 1))
