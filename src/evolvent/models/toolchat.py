"""Prompts with tools by the chat template of a tokenizer: the format that the model was tuned to read and to write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.calls import Form, decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.dialects import Dialect
from evolvent.models.toolprompt import RenderedSample, ToolTokens, refuse_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatTools"]

_TOOL = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_CALL = Call("probe_tool", {"probe_key": "probed"})
_USER = Message("user", "probe")
_FORMS: tuple[Form, ...] = ("xml", "json", "python")
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_XML = re.compile(r"<tool_call>|<function=")  # what stands before is said, not called
_MARK = re.compile(r"\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>)\s*")  # Mistral's and Llama's, before calls


class ChatTools:
    """Tools in the chat template of a tokenizer. The template's form of calls is detected by writing and reading a
    call.

    Args:
        tokenizer: of Hugging Face, with a chat template.
        abstain: the answer without calls; a text without calls is read as that.
    Attributes:
        form: the form of calls. abstain: as given.
    Raises:
        ConfigError: no chat template, one that does not show the tools or the calls, or one that writes calls in a
            form that `grade.calls` does not read.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, abstain: str = "None of the tools can answer this."
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("the tokenizer has no chat template", hint="use FourBlocks or Compact")
        self._tokenizer, self.abstain = tokenizer, abstain
        frame = _render_frame(tokenizer)  # some models do not flag the marks of their turns as special
        special = [
            (index, str(added_token))
            for index, added_token in tokenizer.added_tokens_decoder.items()
            if added_token.special or (str(added_token).strip() and str(added_token) in frame)
        ]
        self._special = {int(index) for index, _ in special} | set(map(int, tokenizer.all_special_ids))
        self._marks = sorted({text for _, text in special} | set(map(str, tokenizer.all_special_tokens)))
        probe = CallSample("probe", (_USER,), (_TOOL,), (_CALL,))
        try:
            prompt = self._apply_template(probe, ())
            if _TOOL.name not in prompt or "probe_key" not in prompt:
                hint = "use FourBlocks or Compact, or the tokenizer of a model trained to call tools"
                raise ConfigError("the chat template ignores tools", value=prompt[:200], hint=hint)
            target = self.render(probe).target
        except SampleInvalid as error:
            raise ConfigError("the chat template cannot be used with tools", value=str(error)) from error
        self.form = self._detect_form(target)

    def _detect_form(self, target: str) -> Form:
        for form in _FORMS:
            try:
                if [Call(call.name, call.arguments) for call in _parse_calls(self._strip_marks(target), form)] == [
                    _CALL
                ]:
                    return form
            except InvalidAction:
                continue
        failure = "drops calls" if "probed" not in target else "writes calls in an unknown format"
        raise ConfigError(f"the chat template {failure}", value=target, expected=f"one of {', '.join(_FORMS)}")

    def render(self, sample: CallSample) -> RenderedSample:
        """Renders a sample. Raises SampleInvalid: it spells a control token, or the template refuses or rewrites it."""
        refuse_marks(sample, self._marks)
        prompt = self._apply_template(sample, ())
        answer = Message("assistant", "" if sample.calls else self.abstain, sample.calls)
        full_text = self._apply_template(sample, (answer,))
        if not full_text.startswith(prompt):
            raise SampleInvalid(
                f"sample {sample.id!r}: the chat template changes the prompt before an answer",
                value=full_text[-200:],
                expected=prompt[-200:],
            )
        return RenderedSample(prompt, full_text[len(prompt) :])

    def tokens(self, sample: CallSample, dialect: Dialect | None = None) -> ToolTokens:
        """Returns the prompt with its control tokens, and the calls up to the end-of-turn token. The dialect is not
        used.

        Raises:
            SampleInvalid: see `render`.
        """
        rendered = self.render(sample)
        prompt, target = [
            list(self._tokenizer.encode(text, add_special_tokens=False)) for text in (rendered.prompt, rendered.target)
        ]
        # What ends a turn is the last control token; calls may begin with another one.
        last = max((position for position, index in enumerate(target) if index in self._special), default=-1)
        if last >= 0 and not self._strip_marks(self._tokenizer.decode(target[last + 1 :])).strip():
            return ToolTokens(prompt, target[: last + 1])
        return ToolTokens(prompt, [*target, int(self._tokenizer.eos_token_id)])

    def parse_calls(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Parses the calls of a text after any thoughts; returns () for a text without any mark of a call.

        Raises:
            InvalidAction: calls that cannot be read.
        """
        body = self._strip_marks(text)
        return () if not re.search(r"[\[{<]", body) else _parse_calls(body, self.form)

    def _strip_marks(self, text: str) -> str:
        text = _MARK.sub("", _THOUGHT.sub("", text, count=1), count=1)
        for mark in self._marks:
            text = text if "tool_call" in mark.lower() else text.replace(mark, "")
        start = _XML.search(text)
        return text[start.start() :].strip() if start else text.strip()

    def _apply_template(self, sample: CallSample, further: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        rows = _template_rows((*sample.messages, *further))
        tools = [tool.as_openai() for tool in sample.tools] or None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    rows, tools=tools, tokenize=False, add_generation_prompt=not further
                )
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise SampleInvalid(f"sample {sample.id!r}: the chat template cannot write it", value=str(error)) from error


def _render_frame(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the template's text around turns without tools; empty where it cannot render them."""
    from jinja2 import TemplateError

    turns = [{"role": role, "content": "probe"} for role in ("user", "assistant", "user")]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError, TypeError):
        return ""


def _template_rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Converts messages to the form of templates: arguments as objects, and nine letters and digits as the id of a
    call.

    A result without a call id belongs to the first unanswered call of its turn.
    """
    rows, ids, call_count = [], dict[str, str](), 0
    unanswered: list[str] = []
    for message in messages:
        row: dict[str, Any] = {"role": message.role, "content": message.text, **message.extra}
        calls, turn_ids = [], list[str]()
        for call in message.calls:
            identity = f"call{call_count:05d}"
            turn_ids.append(identity)
            call_count += 1
            ids |= {call.id: identity} if call.id else {}
            function = {"name": call.name, "arguments": dict(call.arguments)}
            calls.append({"id": identity, "type": "function", "function": function})
        if calls:
            row["tool_calls"], unanswered = calls, turn_ids
        if message.role == "tool":
            first = unanswered[0] if unanswered else f"call{max(0, call_count - 1):05d}"
            row["tool_call_id"] = identity = ids.get(message.tool_call_id or "", first)
            unanswered = [call_id for call_id in unanswered if call_id != identity]
        rows.append(row)
    return rows


def _parse_calls(text: str, form: Form) -> tuple[Call, ...]:
    """Parses calls as `decode_calls`, and Llama's form too: `parameters` for arguments, and semicolons between
    objects.
    """
    if form != "json" or '"parameters"' not in text or '"arguments"' in text:
        return decode_calls(text, form=form)
    try:
        objects = [json.loads(part) for part in re.split(r"(?<=\})\s*;\s*(?=\{)", text)]
        rows = [{"name": call["name"], "arguments": call["parameters"]} for call in objects]
        return decode_calls(json.dumps(rows), form=form)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidAction("text that is no calls in JSON", value=text) from error
