"""Prompts with tools by the chat template of a tokenizer: what the model was tuned to read and to write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.calls import Form, decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.dialects import Dialect
from evolvent.models.toolprompt import Rendered, ToolTokens, refuse_marks

__all__ = ["ChatTools"]

_TOOL = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_CALL = Call("probe_tool", {"probe_key": "probed"})
_USER = Message("user", "probe")
_FORMS: tuple[Form, ...] = ("xml", "json", "python")
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_XML = re.compile(r"<tool_call>|<function=")  # what stands before is said, not called
_MARK = re.compile(r"\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>)\s*")  # Mistral's and Llama's, before calls


class ChatTools:
    """Tools in the chat template of a tokenizer. How it writes calls is found out by a call that is written and read.

    Args:
        tokenizer: of Hugging Face, with a chat template.
        abstain: what is said where nothing is to be called; a text without calls is read as that.
    Attributes:
        form: how calls are written. abstain: as given.
    Raises:
        ConfigError: no chat template, one that does not show the tools or the calls, or one that writes calls in a form
            that `grade.calls` does not read.
    """

    def __init__(self, tokenizer: Any, *, abstain: str = "None of the tools can answer this.") -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("the tokenizer has no chat template", hint="use FourBlocks or Compact")
        self._tokenizer, self.abstain = tokenizer, abstain
        frame = _frame(tokenizer)  # some models do not flag the marks of their turns as special
        special = [
            (index, str(one))
            for index, one in tokenizer.added_tokens_decoder.items()
            if one.special or (str(one).strip() and str(one) in frame)
        ]
        self._special = {int(index) for index, _ in special} | set(map(int, tokenizer.all_special_ids))
        self._marks = sorted({text for _, text in special} | set(map(str, tokenizer.all_special_tokens)))
        probe = CallSample("probe", (_USER,), (_TOOL,), (_CALL,))
        try:
            prompt = self._template(probe, ())
            if _TOOL.name not in prompt or "probe_key" not in prompt:
                hint = "use FourBlocks or Compact, or the tokenizer of a model that was tuned on tools"
                raise ConfigError("the chat template ignores tools", value=prompt[:200], hint=hint)
            target = self.render(probe).target
        except SampleInvalid as error:
            raise ConfigError("the chat template cannot be used with tools", value=str(error)) from error
        self.form = self._form_of(target)

    def _form_of(self, target: str) -> Form:
        for form in _FORMS:
            try:
                if [Call(one.name, one.arguments) for one in _read(self._body(target), form)] == [_CALL]:
                    return form
            except InvalidAction:
                continue
        what = "drops calls" if "probed" not in target else "writes calls in a form that is not known"
        raise ConfigError(f"the chat template {what}", value=target, expected=f"one of {', '.join(_FORMS)}")

    def render(self, sample: CallSample) -> Rendered:
        """Raises SampleInvalid: the sample spells a control token, or the template refuses it or rewrites it."""
        refuse_marks(sample, self._marks)
        prompt = self._template(sample, ())
        answer = Message("assistant", "" if sample.calls else self.abstain, sample.calls)
        whole = self._template(sample, (answer,))
        if not whole.startswith(prompt):
            raise SampleInvalid(
                f"sample {sample.id!r}: the chat template writes the prompt otherwise before an answer",
                value=whole[-200:],
                expected=prompt[-200:],
            )
        return Rendered(prompt, whole[len(prompt) :])

    def tokens(self, sample: CallSample, dialect: Dialect | None = None) -> ToolTokens:
        """The prompt with its control tokens, and the calls up to the token that ends a turn. The dialect is not asked.

        Raises:
            SampleInvalid: see `render`.
        """
        rendered = self.render(sample)
        prompt, target = [
            list(self._tokenizer.encode(text, add_special_tokens=False)) for text in (rendered.prompt, rendered.target)
        ]
        # What ends a turn is the last control token; calls may begin with another one.
        last = max((place for place, index in enumerate(target) if index in self._special), default=-1)
        if last >= 0 and not self._body(self._tokenizer.decode(target[last + 1 :])).strip():
            return ToolTokens(prompt, target[: last + 1])
        return ToolTokens(prompt, [*target, int(self._tokenizer.eos_token_id)])

    def read(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """The calls of a text, thoughts before them passed over; () for a text without any mark of a call.

        Raises:
            InvalidAction: calls that cannot be read.
        """
        body = self._body(text)
        return () if not re.search(r"[\[{<]", body) else _read(body, self.form)

    def _body(self, text: str) -> str:
        text = _MARK.sub("", _THOUGHT.sub("", text, count=1), count=1)
        for mark in self._marks:
            text = text if "tool_call" in mark.lower() else text.replace(mark, "")
        start = _XML.search(text)
        return text[start.start() :].strip() if start else text.strip()

    def _template(self, sample: CallSample, more: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        rows = _rows((*sample.messages, *more))
        tools = [tool.as_openai() for tool in sample.tools] or None
        try:
            return str(
                self._tokenizer.apply_chat_template(rows, tools=tools, tokenize=False, add_generation_prompt=not more)
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise SampleInvalid(f"sample {sample.id!r}: the chat template cannot write it", value=str(error)) from error


def _frame(tokenizer: Any) -> str:
    """What the template writes around turns without tools; nothing where it does not write any."""
    from jinja2 import TemplateError

    turns = [{"role": role, "content": "probe"} for role in ("user", "assistant", "user")]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError, TypeError):
        return ""


def _rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them: arguments as objects, and nine letters and digits as the id of a call.

    A result that does not say of which call it is belongs to the first call of its turn that has none.
    """
    rows, ids, made = [], dict[str, str](), 0
    waiting: list[str] = []
    for message in messages:
        row: dict[str, Any] = {"role": message.role, "content": message.text, **message.extra}
        calls, own = [], list[str]()
        for call in message.calls:
            identity = f"call{made:05d}"
            own.append(identity)
            made += 1
            ids |= {call.id: identity} if call.id else {}
            function = {"name": call.name, "arguments": dict(call.arguments)}
            calls.append({"id": identity, "type": "function", "function": function})
        if calls:
            row["tool_calls"], waiting = calls, own
        if message.role == "tool":
            first = waiting[0] if waiting else f"call{max(0, made - 1):05d}"
            row["tool_call_id"] = identity = ids.get(message.tool_call_id or "", first)
            waiting = [one for one in waiting if one != identity]
        rows.append(row)
    return rows


def _read(text: str, form: Form) -> tuple[Call, ...]:
    """As `decode_calls`; Llama writes `parameters` for arguments, and several objects with semicolons between them."""
    if form != "json" or '"parameters"' not in text or '"arguments"' in text:
        return decode_calls(text, form=form)
    try:
        found = [json.loads(part) for part in re.split(r"(?<=\})\s*;\s*(?=\{)", text)]
        rows = [{"name": one["name"], "arguments": one["parameters"]} for one in found]
        return decode_calls(json.dumps(rows), form=form)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidAction("text that is no calls in JSON", value=text) from error
