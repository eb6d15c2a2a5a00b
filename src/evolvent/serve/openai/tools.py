"""Chat with tools: how a policy is shown them, and which calls its reply makes.

Tools are shown by the checkpoint's own chat template where that shows tools (`models.toolchat`); else by a prompt of
the library's: one line a tool for a vocabulary of whole words, four blocks for all others (`models.toolprompt`). Calls
are read in the form of that prompt and never evaluated. What is no call of an offered tool stays text.

A call that must be made ("required", or a function by its name), and one call at most, are promises that only
constrained decoding keeps (`models.constraints`): tokens that could not become a valid call have no probability.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.engine.asks import Constraint
from evolvent.errors import ConfigError, InvalidAction, MissingExtra, Problem, SampleInvalid, unknown
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.call_schemas import Limits
from evolvent.models.toolchat import ChatTools
from evolvent.models.toolprompt import Compact, FourBlocks, ToolPrompt
from evolvent.schemas import check_tools, faults
from evolvent.serve.openai.request import ChatRequest
from evolvent.serve.wire import plain, text_of
from evolvent.trajectory import canonical_json

if TYPE_CHECKING:
    from evolvent.models.constraints import CallConstraints
    from evolvent.models.policy import Policy

__all__ = ["Offer", "Shown", "Toolbox", "prompt_for", "read_offer", "session_of"]

_TAGS = ("<tool_call>", "<function=")  # how a call begins in the form "xml"
_TAG = re.compile("|".join(_TAGS))
_TAGGED = re.compile(r"<tool_call>(?:(?!<tool_call>).)*?</tool_call>|<function=(?:(?!<function=).)*?</function>", re.S)
_BEGINS = "[{<`"  # how calls begin in every other form: a list, an object, a mark or a fence
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a request says of tools.

    Args:
        tools: that are shown. strict: names of those whose arguments must fit their schemas.
        callable: those that may be called. must: one of them has to be. several: more than one call may be made.
    """

    tools: tuple[Tool, ...] = ()
    strict: frozenset[str] = frozenset()
    callable: tuple[Tool, ...] = ()
    must: bool = False
    several: bool = True


def read_offer(asked: ChatRequest) -> Offer:
    """The tools of a request. With the choice "none" they are not shown at all.

    Raises:
        ConfigError: every mistake at once: tools that are none or cannot be offered together, malformed schemas, a
            choice that is none or names no tool, and what "auto" cannot promise.
    """
    problems: list[Problem] = []
    tools: list[Tool] = []
    for number, row in enumerate(asked.tools):
        where = f"tools[{number}]"
        if row.get("type") != "function":
            problems.append(Problem(where, f"a tool of the type {row.get('type')!r:.80}", "'function'"))
            continue
        try:
            tools.append(_clean(Tool.of_openai(row)))
        except SampleInvalid as error:
            problems.append(Problem(where, str(error)))
    problems += check_tools(tools)
    chosen, wrong = _chosen(asked.tool_choice, tools)
    problems += wrong
    free = asked.tool_choice == "auto"
    if free and tools and not asked.parallel_tool_calls:
        problems.append(
            Problem(
                "parallel_tool_calls",
                "one call at most cannot be promised of a reply that is free",
                "leave it out, or give tool_choice 'required' or a function",
            )
        )
    if problems:
        raise ConfigError(problems)
    if not tools or asked.tool_choice == "none":
        return Offer()
    strict = {tool.name for tool, row in zip(tools, asked.tools, strict=True) if row["function"].get("strict") is True}
    return Offer(tuple(tools), frozenset(strict), chosen, not free, asked.parallel_tool_calls)


def _clean(tool: Tool) -> Tool:
    """The tool without halves of surrogate pairs, which no tokenizer reads."""
    parameters = json.loads(text_of(json.dumps(dict(tool.parameters), ensure_ascii=False)))
    return Tool(text_of(tool.name), text_of(tool.description), parameters)


def _chosen(choice: str | dict[str, Any], tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], list[Problem]]:
    """The tools that may be called, and what is wrong with the choice."""
    hint = '\'auto\', \'none\', \'required\', or {"type": "function", "function": {"name": ...}}'
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            return (), [unknown("tool_choice", choice[:80], ("auto", "none", "required"), where="tool_choice")]
        lacking = [Problem("tool_choice", "a call is required, and there are no tools")] if choice == "required" else []
        return tuple(tools), [] if tools else lacking
    function = choice.get("function") if choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        return (), [Problem("tool_choice", f"no choice that is known: {choice!r:.80}", hint)]
    found = tuple(tool for tool in tools if tool.name == name)
    return found, [] if found else [unknown("tool", name[:80], [tool.name for tool in tools], where="tool_choice")]


@dataclass(frozen=True)
class Shown:
    """A conversation as a policy reads it with tools, and how its reply is read.

    Args:
        prompt: how tools are shown. sample: the tools and the messages; a dialect writes the system's by itself.
        ids: all tokens up to where the reply begins. text: the same where the template wrote them, else "".
        offer: what the request says of tools.
        constraint: what the reply is held to; None: nothing.
    """

    prompt: ToolPrompt
    sample: CallSample
    ids: list[int]
    text: str
    offer: Offer
    constraint: Constraint | None = None

    def read(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """What a whole reply says, and what it calls.

        Where it makes no call, names a tool that was not offered, or a strict one with arguments that do not fit,
        all of it is what it says.
        """
        at = self._begin(text)
        if at is None:
            return text, ()
        try:
            found = self.prompt.read(text[at:], self.sample)
            calls = tuple(_plain_call(call) for call in found)
        except (InvalidAction, SampleInvalid):
            return text, ()
        known = {tool.name: tool for tool in self.offer.callable}
        unfit = any(
            call.name not in known
            or (call.name in self.offer.strict and faults(call.arguments, known[call.name].parameters))
            for call in calls
        )
        if not calls or unfit:
            return text, ()
        rest = _TAGGED.sub("", text[at:]) if self._tagged else ""
        said = text[:at] + rest if rest.strip() else text[:at]
        return said if said.strip() else "", calls

    def settled(self, text: str) -> int:
        """How many characters at the beginning of an unfinished reply are surely said, whatever comes."""
        start = _after_thought(text)
        if start is None:
            return max(0, len(text) - len(_THOUGHT_ENDS) + 1)
        if self._tagged:
            found = _TAG.search(text, start)
            begun = [size for tag in _TAGS for size in range(1, len(tag)) if text.endswith(tag[:size])]
            at = found.start() if found else len(text) - max([0, *begun])
        else:
            body = text[start:].lstrip()
            at = len(text) if body and body[0] not in _BEGINS else start
        return at if text[:at].strip() else 0

    def after(self, place: int, stopped: bool, *, policy: Policy) -> list[int] | None:
        """The tokens between a reply and the next one; None: this prompt does not say which they are.

        Args:
            place: of the reply among the messages. stopped: its stop token has been written already.
        """
        if not self.text:
            return None
        (stop,) = policy.dialect.stop_ids
        before = self.prompt.render(replace(self.sample, messages=self.sample.messages[:place])).prompt
        mark = str(policy.tokenizer.decode([stop]))
        if not self.text.startswith(before):
            return None  # the template writes earlier turns otherwise than it did then
        _, found, tail = self.text[len(before) :].partition(mark)
        if not found:
            return None
        ids = [int(token) for token in policy.tokenizer.encode(tail, add_special_tokens=False)]
        return ids if stopped else [stop, *ids]

    @property
    def _tagged(self) -> bool:
        return isinstance(self.prompt, ChatTools) and self.prompt.form == "xml"

    def _begin(self, text: str) -> int | None:
        """Where calls begin, if there are any; thoughts are passed over."""
        start = _after_thought(text)
        if start is None or not self.offer.callable:
            return None
        if self._tagged:
            found = _TAG.search(text, start)
            return found.start() if found else None
        return start if text[start:].lstrip()[:1] in tuple(_BEGINS) else None


def _after_thought(text: str) -> int | None:
    """Where the first thought has ended; 0: there is none; None: it has not ended yet."""
    end = text.find(_THOUGHT_ENDS)
    if end >= 0:
        return end + len(_THOUGHT_ENDS)
    return None if text.lstrip().startswith(_THOUGHT) else 0


def _plain_call(call: Call) -> Call:
    """The call with arguments that are JSON values. Raises SampleInvalid: they are none."""
    arguments = plain(dict(call.arguments))
    return Call(call.name, arguments if isinstance(arguments, dict) else {})


def prompt_for(policy: Policy) -> ToolPrompt:
    """How a policy is shown tools: by its own chat template, or by a prompt of the library's."""
    if policy.dialect.name == "words":
        return Compact()
    if policy.dialect.name == "chat":
        try:
            return ChatTools(policy.tokenizer)
        except ConfigError:
            pass  # its template does not show tools, or writes calls in a form that is not known
    return FourBlocks()


class Toolbox:
    """Shows tools to one policy.

    Args:
        policy: its tokenizer and its dialect are used, not its weights.
    Attributes:
        prompt: how it is shown tools.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self.prompt = policy, prompt_for(policy)
        self._constraints: dict[bool, CallConstraints] = {}

    def fits(self, policy: Policy) -> bool:
        """Whether it shows tools to this policy too: other weights with the same tokenizer."""
        return policy.tokenizer is self._policy.tokenizer

    def show(self, messages: Sequence[Message], offer: Offer) -> Shown:
        """The conversation with its tools as tokens.

        Raises:
            ConfigError: messages that cannot be continued, or a promise that cannot be kept here.
            SampleInvalid: text that spells control marks, or what the template refuses; schemas that no constraint
                can hold. VocabularyMismatch: a word that the policy does not have.
        """
        _check_order(messages)
        spoken = [replace(one, role="system") if one.role == "developer" else one for one in messages]
        if isinstance(self.prompt, ChatTools):
            sample = CallSample("request", tuple(spoken), offer.tools)
            text, ids = self.prompt.render(sample).prompt, self.prompt.tokens(sample).prompt
        else:
            system = spoken.pop(0).text if spoken[0].role == "system" else ""
            sample = CallSample("request", tuple(spoken), offer.tools)
            text, ids = "", self._policy.dialect.open(system, self.prompt.render(sample).prompt)
        return Shown(self.prompt, sample, ids, text, offer, self._held(offer) if offer.must else None)

    def _held(self, offer: Offer) -> Constraint:
        """The constraint of a reply that must call."""
        try:
            from evolvent.models.constraints import CallConstraints

            if offer.several not in self._constraints:
                limits = Limits() if offer.several else Limits(calls=1)
                self._constraints[offer.several] = CallConstraints(self._policy, limits=limits)
            hold = partial(self._constraints[offer.several].of, offer.callable, abstain=None)
            if isinstance(self.prompt, ChatTools):
                if self.prompt.form in ("python", "json", "xml"):
                    return hold(form=self.prompt.form)
                raise ConfigError("calls of this form are not constrained", value=self.prompt.form)
            return hold(form="words") if isinstance(self.prompt, Compact) else hold(form="json", fenced=True)
        except (MissingExtra, ConfigError) as error:
            what = f"a call cannot be promised by this server: {error}"
            raise ConfigError([Problem("tool_choice", what, "use tool_choice 'auto'")]) from error


def _check_order(messages: Sequence[Message]) -> None:
    """Refuse messages that are no conversation with tools: calls without answers, and answers without calls."""
    problems: list[Problem] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                problems.append(
                    Problem(
                        f"{where}.tool_call_id",
                        f"answers no open call: {message.tool_call_id!r:.80}",
                        f"one of {waiting[:8]}",
                    )
                )
            waiting = [one for one in waiting if one != message.tool_call_id]
            continue
        if waiting:
            problems.append(Problem(where, f"calls have no answer yet: {waiting[:8]}", "a message of the role 'tool'"))
        waiting = []
        if message.role in ("system", "developer") and number:
            problems.append(Problem(f"{where}.role", f"{message.role!r} after other messages", "let it be the first"))
        if message.calls:
            waiting = [str(call.id) for call in message.calls if call.id]
            if message.role != "assistant" or len(set(waiting)) < len(message.calls):
                problems.append(Problem(f"{where}.tool_calls", "calls of an assistant, each with an id of its own"))
    if waiting or messages[-1].role not in ("user", "tool"):
        problems.append(
            Problem(
                "messages",
                f"nothing to reply to: the last is of the role {messages[-1].role!r}",
                "the user's message, or the answer of a tool",
            )
        )
    if problems:
        raise ConfigError(problems[:8])


def session_of(session: str | None, offer: Offer) -> str | None:
    """The name of a conversation with these tools: with others its earlier turns were read otherwise."""
    if session is None or not offer.tools:
        return session
    return canonical_json([session, [tool.as_openai() for tool in offer.tools]])
