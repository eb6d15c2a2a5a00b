"""Chat with tools: how a policy is shown tools, and the calls in its reply.

Tools are shown by the checkpoint's own chat template if it supports them (`models.toolchat`); else by a prompt of the
library: one line a tool for a vocabulary of whole words, four blocks for all others (`models.toolprompt`). Calls are
read in the form of that prompt and never evaluated. Text that is not a call of an offered tool stays text.

A required call ("required", or a function by its name) can be guaranteed only by constrained decoding
(`models.constraints`): tokens that cannot become a valid call have probability zero. Where a call is free and one is
allowed at most, the first of a reply is told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.engine.asks import Constraint
from evolvent.errors import ConfigError, InvalidAction, MissingExtra, Problem, SampleInvalid, unknown_name_problem
from evolvent.grade.call_formats import harmony_text
from evolvent.grade.call_forms import call_finder, call_openings, find_call_spans
from evolvent.grade.thoughts import find_thoughts, mask_thoughts
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.call_grammars import CallForm
from evolvent.models.call_schemas import AnswerLimits
from evolvent.models.toolchat import ChatTools
from evolvent.models.toolprompt import Compact, FourBlocks, ToolPrompt
from evolvent.schemas import check_tools, find_argument_faults
from evolvent.serve.openai.request import ChatRequest
from evolvent.serve.wire import replace_surrogates, to_json
from evolvent.trajectory import JsonObject, canonical_json

if TYPE_CHECKING:
    from evolvent.models.constraints import CallConstraints
    from evolvent.models.policy import Policy

__all__ = ["RenderedChat", "ToolOffer", "ToolRenderer", "parse_offer", "select_tool_prompt", "session_key"]

_CALL_STARTS = "[{<`"  # how calls begin in a form without marks: a list, an object, a tag or a fence
_CONSTRAINABLE: tuple[CallForm, ...] = ("python", "json", "xml")


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of a request.

    Args:
        tools: tools that are shown.
        strict: names of tools whose arguments must fit their schemas.
        callable_tools: tools that may be called.
        is_required: whether a call is required.
        allows_several: whether more than one call may be made.
    """

    tools: tuple[Tool, ...] = ()
    strict: frozenset[str] = frozenset()
    callable_tools: tuple[Tool, ...] = ()
    is_required: bool = False
    allows_several: bool = True


def parse_offer(chat_request: ChatRequest) -> ToolOffer:
    """Parses the tools of a request. With the choice "none" they are not shown at all.

    Raises:
        ConfigError: every mistake at once: invalid or conflicting tools, malformed schemas, an invalid choice or one
            that names no tool.
    """
    problems: list[Problem] = []
    tools: list[Tool] = []
    for number, row in enumerate(chat_request.tools):
        path = f"tools[{number}]"
        if row.get("type") != "function":
            problems.append(Problem(path, f"got type {row.get('type')!r:.80}, expected 'function'"))
            continue
        try:
            tools.append(_clean_tool(Tool.of_openai(row)))
        except SampleInvalid as error:
            problems.append(Problem(path, str(error)))
    problems += check_tools(tools)
    callable_tools, choice_problems = _select_callable(chat_request.tool_choice, tools)
    problems += choice_problems
    is_auto = chat_request.tool_choice == "auto"
    if problems:
        raise ConfigError(problems)
    if not tools or chat_request.tool_choice == "none":
        return ToolOffer()
    strict = {
        tool.name for tool, row in zip(tools, chat_request.tools, strict=True) if row["function"].get("strict") is True
    }
    allows_several = chat_request.parallel_tool_calls and not isinstance(chat_request.tool_choice, dict)
    return ToolOffer(tuple(tools), frozenset(strict), callable_tools, not is_auto, allows_several)


def _clean_tool(tool: Tool) -> Tool:
    """Returns the tool without halves of surrogate pairs, which no tokenizer reads."""
    parameters = json.loads(replace_surrogates(json.dumps(dict(tool.parameters), ensure_ascii=False)))
    return Tool(replace_surrogates(tool.name), replace_surrogates(tool.description), parameters)


def _select_callable(choice: str | dict[str, Any], tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], list[Problem]]:
    """Returns the tools that may be called, and the problems of the choice."""
    hint = '\'auto\', \'none\', \'required\', or {"type": "function", "function": {"name": ...}}'
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            return (), [
                unknown_name_problem("tool_choice", choice[:80], ("auto", "none", "required"), location="tool_choice")
            ]
        missing_problems = (
            [Problem("tool_choice", "a call is required, but the tool list is empty")] if choice == "required" else []
        )
        return tuple(tools), [] if tools else missing_problems
    function = choice.get("function") if choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        return (), [Problem("tool_choice", f"unknown choice {choice!r:.80}", hint)]
    matching = tuple(tool for tool in tools if tool.name == name)
    return matching, [] if matching else [
        unknown_name_problem("tool", name[:80], [tool.name for tool in tools], location="tool_choice")
    ]


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as a policy reads it with tools, and the parser of its reply.

    Args:
        prompt: tool prompt.
        sample: the tools and the messages; a dialect writes the system message itself.
        ids: all token ids up to the start of the reply.
        text: the same as text if the template wrote them, else "".
        offer: tools of the request.
        constraint: constraint of the reply; None: no constraint.
    """

    prompt: ToolPrompt
    sample: CallSample
    ids: list[int]
    text: str
    offer: ToolOffer
    constraint: Constraint | None = None

    def parse_reply(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Returns the text and the calls of a whole reply.

        If it makes no call, names a tool that was not offered, or a strict one with invalid arguments, all of it is
        text.
        """
        thoughts = self._find_thoughts(text)
        call_start = self._find_call_start(mask_thoughts(text, thoughts))
        if call_start is None:
            return self._show_text(text), ()
        try:
            parsed_calls = self.prompt.parse_calls(text if self._openings else text[call_start:], self.sample)
            calls = tuple(_to_json_call(call) for call in parsed_calls)
        except (InvalidAction, SampleInvalid):
            return text, ()
        callable_by_name = {tool.name: tool for tool in self.offer.callable_tools}
        unfit = any(
            call.name not in callable_by_name
            or (
                call.name in self.offer.strict
                and find_argument_faults(call.arguments, callable_by_name[call.name].parameters)
            )
            for call in calls
        )
        if not calls or unfit:
            return self._show_text(text), ()
        reply_text = harmony_text(text) if self._is_harmony else text[:call_start] + self._text_after_calls(text)
        return reply_text if reply_text.strip() else "", calls

    def _text_after_calls(self, text: str) -> str:
        """Returns the text between and after calls of a form with marks; "" where that is white space."""
        if not isinstance(self.prompt, ChatTools) or not self._openings:
            return ""
        _, spans = find_call_spans(text, form=self.prompt.form, in_thought=self._in_thought)
        starts, ends = [span.start for span in spans[1:]], [span.end for span in spans]
        text_after = "".join(text[end:start] for end, start in zip(ends, [*starts, len(text)], strict=True))
        return text_after if text_after.strip() else ""

    def count_settled(self, text: str) -> int:
        """Returns the number of characters at the start of an unfinished reply that are certainly text."""
        if self._is_harmony:
            return 0  # its messages are told apart at the end
        thoughts = self._find_thoughts(text, implied=False)
        masked = mask_thoughts(text, thoughts)
        starts = [start for mark in self._openings if (start := masked.find(mark)) >= 0]
        body = masked.lstrip()
        if starts:
            length = min(starts)
        elif thoughts and thoughts[-1][1] == len(text):
            length = max(0, len(text) - len("</think>") + 1)
        elif self._openings:
            partial = [size for mark in self._openings for size in range(1, len(mark)) if text.endswith(mark[:size])]
            length = len(text) - max([0, *partial])
        else:
            length = len(text) if body and body[0] not in _CALL_STARTS else len(text) - len(body)
        return length if text[:length].strip() else 0

    def tokens_after(self, message_index: int, stopped: bool, *, policy: Policy) -> list[int] | None:
        """Returns the tokens between a reply and the next one; None if this prompt does not determine them.

        Args:
            message_index: index of the reply among the messages.
            stopped: whether its stop token has been written already.
        """
        if not self.text:
            return None
        earlier_text = self.prompt.render(replace(self.sample, messages=self.sample.messages[:message_index])).prompt
        if not self.text.startswith(earlier_text):
            return None  # the template writes earlier turns otherwise than it did then
        rest = self.text[len(earlier_text) :]
        ends = [
            (rest.find(mark), stop, mark) for stop in policy.dialect.stop_ids if (mark := _spell(policy, stop)) in rest
        ]
        if not ends:
            return None
        position, stop, mark = min(ends)
        tail = rest[position + len(mark) :]
        ids = [int(token) for token in policy.tokenizer.encode(tail, add_special_tokens=False)]
        return ids if stopped else [stop, *ids]

    @property
    def _openings(self) -> tuple[str, ...]:
        return call_openings(self.prompt.form) if isinstance(self.prompt, ChatTools) else ()

    @property
    def _is_harmony(self) -> bool:
        return isinstance(self.prompt, ChatTools) and self.prompt.form == "harmony"

    @property
    def _in_thought(self) -> bool:
        return isinstance(self.prompt, ChatTools) and self.prompt.opens_thought

    def _find_thoughts(self, text: str, *, implied: bool = True) -> list[tuple[int, int]]:
        find_call = call_finder(self.prompt.form) if isinstance(self.prompt, ChatTools) else call_finder("json")
        return find_thoughts(text, is_open=self._in_thought, find_call=find_call, implied=implied)

    def _find_call_start(self, masked: str) -> int | None:
        """Returns the start of calls in a reply whose thoughts are masked, if there are any."""
        if not self.offer.callable_tools:
            return None
        if self._openings:
            starts = [start for mark in self._openings if (start := masked.find(mark)) >= 0]
            return min(starts, default=None)
        body = masked.lstrip()
        return len(masked) - len(body) if body[:1] in tuple(_CALL_STARTS) else None

    def _show_text(self, text: str) -> str:
        """Returns what a client sees of a text without calls: of harmony's messages, the contents."""
        return harmony_text(text) if self._is_harmony else text


def _to_json_call(call: Call) -> Call:
    """Converts a call's arguments to JSON values. Raises SampleInvalid if that fails."""
    arguments = to_json(dict(call.arguments))
    return Call(call.name, arguments if isinstance(arguments, dict) else {})


def select_tool_prompt(policy: Policy) -> ToolPrompt:
    """Selects how a policy is shown tools: by its own chat template, or by a prompt of the library."""
    if policy.dialect.name == "words":
        return Compact()
    if policy.dialect.name == "chat":
        try:
            return ChatTools(policy.tokenizer)
        except ConfigError:
            pass  # its template does not show tools, or writes calls in a form that is not known
    return FourBlocks()


class ToolRenderer:
    """Renders conversations with tools for one policy.

    Args:
        policy: its tokenizer and its dialect are used, not its weights.
    Attributes:
        prompt: tool prompt.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self.prompt = policy, select_tool_prompt(policy)
        self._constrained_prompt: ToolPrompt = self.prompt
        if isinstance(self.prompt, ChatTools) and self.prompt.form not in _CONSTRAINABLE:
            self._constrained_prompt = FourBlocks()  # no grammar writes the template's own form of calls
        self._constraints: dict[bool, CallConstraints] = {}
        self._schemas: CallConstraints | None = None

    def supports(self, policy: Policy) -> bool:
        """Returns whether the renderer fits this policy too: other weights with the same tokenizer."""
        return policy.tokenizer is self._policy.tokenizer

    def render(
        self, messages: Sequence[Message], offer: ToolOffer, *, answer_schema: JsonObject | None = None
    ) -> RenderedChat:
        """Renders the conversation with its tools as tokens.

        Args:
            answer_schema: a reply that makes no call is JSON of this schema; None: it is free text.
        Raises:
            ConfigError: messages that cannot be continued, or a guarantee that cannot be given here.
            SampleInvalid: text that contains control marks, or is refused by the template; schemas that no constraint
                can hold. VocabularyMismatch: a word that the policy does not have.
        """
        _check_order(messages)
        turns = list(messages)
        is_constrained = offer.is_required or (answer_schema is not None and bool(offer.tools))
        prompt = self._constrained_prompt if is_constrained else self.prompt
        if isinstance(prompt, ChatTools):
            sample = CallSample("request", tuple(turns), offer.tools)
            text, ids = prompt.render(sample).prompt, prompt.tokens(sample).prompt
        else:
            system = turns.pop(0).text if turns[0].role == "system" else ""
            sample = CallSample("request", tuple(turns), offer.tools)
            text, ids = "", self._policy.dialect.open(system, prompt.render(sample).prompt)
        constraint = self._make_constraint(offer, prompt, answer_schema) if is_constrained else None
        return RenderedChat(prompt, sample, ids, text, offer, constraint)

    def prepare(self, offer: ToolOffer, answer_schema: JsonObject | None) -> None:
        """Builds the constraint of a reply, so that `render` finds it ready; raises what `render` raises."""
        self._make_constraint(offer, self._constrained_prompt, answer_schema)

    def constrain_schema(self, schema: JsonObject) -> Constraint:
        """Returns the constraint of a reply that is JSON of a schema.

        Raises:
            ConfigError: it cannot be guaranteed here, or the schema cannot be read.
        """
        try:
            from evolvent.models.constraints import CallConstraints

            if self._schemas is None:
                self._schemas = CallConstraints(self._policy)
            return self._schemas.for_schema(schema)
        except (MissingExtra, ConfigError, SampleInvalid) as error:
            raise _format_error(error) from error

    def _make_constraint(self, offer: ToolOffer, prompt: ToolPrompt, answer_schema: JsonObject | None) -> Constraint:
        """Returns the constraint of a reply that must call, or else has the form of an answer."""
        try:
            from evolvent.models.constraints import CallConstraints

            if offer.allows_several not in self._constraints:
                limits = AnswerLimits() if offer.allows_several else AnswerLimits(calls=1)
                self._constraints[offer.allows_several] = CallConstraints(self._policy, limits=limits)
            build_constraint = partial(
                self._constraints[offer.allows_several].for_tools,
                offer.callable_tools,
                abstain=None,
                answer_schema=None if offer.is_required else answer_schema,
            )
            if isinstance(prompt, ChatTools):
                form = next(form for form in _CONSTRAINABLE if form == prompt.form)
                return build_constraint(form=form)
            return (
                build_constraint(form="words")
                if isinstance(prompt, Compact)
                else build_constraint(form="json", fenced=True)
            )
        except (MissingExtra, ConfigError) as error:
            if not offer.is_required:
                raise _format_error(error) from error
            problem = f"this server cannot guarantee a call: {error}"
            raise ConfigError([Problem("tool_choice", problem, "use tool_choice 'auto'")]) from error


def _format_error(error: Exception) -> ConfigError:
    problem = f"this server cannot guarantee the format: {error}"
    return ConfigError([Problem("response_format", problem, "leave it out, or simplify the schema")])


def _check_order(messages: Sequence[Message]) -> None:
    """Refuses messages that are not a conversation with tools: calls without answers, and answers without calls."""
    problems: list[Problem] = []
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                problems.append(
                    Problem(
                        f"{path}.tool_call_id",
                        f"got {message.tool_call_id!r:.80}, which is not an open call",
                        f"one of {open_calls[:8]}",
                    )
                )
            open_calls = [call_id for call_id in open_calls if call_id != message.tool_call_id]
            continue
        if open_calls:
            problems.append(Problem(path, f"unanswered calls: {open_calls[:8]}", "add a message of the role 'tool'"))
        open_calls = []
        if message.calls:
            open_calls = [str(call.id) for call in message.calls if call.id]
            if message.role != "assistant" or len(set(open_calls)) < len(message.calls):
                problems.append(
                    Problem(f"{path}.tool_calls", "only an assistant can call tools, and each call needs a unique id")
                )
    if open_calls or messages[-1].role not in ("user", "tool"):
        problems.append(
            Problem(
                "messages",
                f"the last message has the role {messages[-1].role!r}",
                "end with a message of the user or the answer of a tool",
            )
        )
    if problems:
        raise ConfigError(problems[:8])


def session_key(session: str | None, offer: ToolOffer) -> str | None:
    """Returns the name of a conversation with these tools: with other tools, its earlier turns have other tokens."""
    if session is None or not offer.tools:
        return session
    return canonical_json([session, [tool.as_openai() for tool in offer.tools]])


def _spell(policy: Policy, token: int) -> str:
    return str(policy.tokenizer.decode([token]))
