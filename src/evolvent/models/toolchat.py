"""Prompts with tools by the chat template of a tokenizer: the format that the model was tuned to read and to write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, InvalidAction, LimitExceeded, SampleInvalid
from evolvent.grade.call_formats import calls_in_harmony
from evolvent.grade.call_forms import Form, call_finder, call_openings, decode_calls
from evolvent.grade.thoughts import opens_thought, remove_thoughts
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.dialects import Dialect
from evolvent.models.template_process import TemplateRefusal, apply_template
from evolvent.models.toolprompt import RenderedSample, ToolTokens, refuse_marks
from evolvent.trajectory import canonical_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatTools"]

_TOOL = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_CALL = Call("probe_tool", {"probe_key": "probed"})
_USER = Message("user", "probe")
# The forms with marks of their own come first, so that no other form reads their marks as text around calls.
_FORMS: tuple[Form, ...] = (
    "xml",
    "glm",
    "minimax",
    "deepseek",
    "kimi_k2",
    "harmony",
    "gemma4",
    "lfm2",
    "json",
    "python",
    "mistral",
)
_KEPT_MARKS = ("[TOOL_CALLS]", "<|python_tag|>", "<think>", "[THINK]")  # at the beginning of a reply
_OPEN_THOUGHT = re.compile(r"<think>\s*\Z")
_SKIPPED_THOUGHT = re.compile(r"\s*<think>\s*</think>\s*")


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
        self._takes_text, self.opens_thought = False, False
        self.form: Form = "json"
        try:
            prompt = self._apply_template(probe, ())
            if _TOOL.name not in prompt or "probe_key" not in prompt:
                hint = "use FourBlocks or Compact, or the tokenizer of a model trained to call tools"
                raise ConfigError("the chat template ignores tools", value=prompt[:200], hint=hint)
            self.opens_thought = opens_thought(prompt)
            target = self._render_probe(probe)
        except SampleInvalid as error:
            raise ConfigError("the chat template cannot be used with tools", value=str(error)) from error
        self.form = self._detect_form(target)

    def _render_probe(self, probe: CallSample) -> str:
        """Renders a call with arguments as an object, else as JSON text, which is all that some templates write."""
        try:
            return self._render(probe).target
        except SampleInvalid:
            self._takes_text = True
            return self._render(probe).target

    def _detect_form(self, target: str) -> Form:
        for form in _FORMS:
            try:
                calls = decode_calls(self._strip_marks(target, form), form=form, tools=(_TOOL,))
                if [Call(call.name, call.arguments) for call in calls] == [_CALL]:
                    return form
            except InvalidAction:
                continue
        failure = "drops calls" if "probed" not in target else "writes calls in an unknown format"
        raise ConfigError(f"the chat template {failure}", value=target, expected=f"one of {', '.join(_FORMS)}")

    def render(self, sample: CallSample) -> RenderedSample:
        """Renders a sample.

        Where the prompt opens a thought and the template writes none for an answer, the target begins by closing it.

        Raises:
            SampleInvalid: a sample that spells a control token, that the template refuses or rewrites, or whose calls
                would be read back as others.
        """
        rendered = self._render(sample)
        if sample.calls:
            self._check_read_back(sample, rendered.target)
        return rendered

    def _render(self, sample: CallSample) -> RenderedSample:
        refuse_marks(sample, self._marks)
        prompt = self._apply_template(sample, ())
        answer = Message("assistant", "" if sample.calls else self.abstain, sample.calls)
        full_text = self._apply_template(sample, (answer,))
        if full_text.startswith(prompt):
            return RenderedSample(prompt, full_text[len(prompt) :])
        base = _OPEN_THOUGHT.sub("", prompt)
        if base == prompt or not full_text.startswith(base):
            raise SampleInvalid(
                f"sample {sample.id!r}: the chat template changes the prompt before an answer",
                value=full_text[-200:],
                expected=prompt[-200:],
            )
        return RenderedSample(prompt, "</think>\n\n" + _SKIPPED_THOUGHT.sub("", full_text[len(base) :], count=1))

    def _check_read_back(self, sample: CallSample, target: str) -> None:
        try:
            calls = self.parse_calls(target, sample)
        except InvalidAction as error:
            raise SampleInvalid(
                f"sample {sample.id!r}: its calls cannot be read back: {error}", value=target
            ) from error
        if list(map(_write_bare, calls)) != list(map(_write_bare, sample.calls)):
            raise SampleInvalid(
                f"sample {sample.id!r}: its calls change when they are read back", value=calls, expected=sample.calls
            )

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
        if last >= 0 and not self._tokenizer.decode(target[last + 1 :]).strip():
            return ToolTokens(prompt, target[: last + 1])
        return ToolTokens(prompt, [*target, int(self._tokenizer.eos_token_id)])

    def parse_calls(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Parses the calls of a text after any thoughts; returns () for a text without any mark of a call.

        Values have the types that the schemas of the sample's tools allow.

        Raises:
            InvalidAction: calls that cannot be read.
        """
        body, openings = self._strip_marks(text, self.form), call_openings(self.form)
        visible = remove_thoughts(body, is_open=self.opens_thought, find_call=call_finder(self.form))
        if not (any(mark in visible for mark in openings) if openings else re.search(r"[\[{<]", visible)):
            return ()
        if self.form == "harmony" and not calls_in_harmony(visible):
            return ()
        return decode_calls(body, form=self.form, tools=sample.tools, in_thought=self.opens_thought)

    def _strip_marks(self, text: str, form: Form) -> str:
        """Removes control marks around calls of a form that has no marks to tell calls from other text."""
        text = text.strip()
        if call_openings(form):
            return text
        while mark := next((mark for mark in self._marks if mark and text.endswith(mark)), ""):
            text = text.removesuffix(mark).rstrip()
        while mark := next((mark for mark in self._marks if mark not in _KEPT_MARKS and text.startswith(mark)), ""):
            text = text.removeprefix(mark).lstrip()
        return text

    def _apply_template(self, sample: CallSample, further: Sequence[Message]) -> str:
        rows = _template_rows((*sample.messages, *further), as_text=self._takes_text)
        tools = [tool.as_openai() for tool in sample.tools] or None
        try:
            return apply_template(self._tokenizer, rows, tools=tools, add_generation_prompt=not further)
        except (TemplateRefusal, LimitExceeded) as error:
            raise SampleInvalid(f"sample {sample.id!r}: the chat template cannot write it", value=str(error)) from error


_CONSTANTS = {"None": "null", "True": "true", "False": "false"}


def _write_bare(call: Call) -> tuple[str, dict[str, str]]:
    """Returns a call with its values as bare text: a value whose type its schema does not have is not another value."""
    texts = {key: value if isinstance(value, str) else canonical_json(value) for key, value in call.arguments.items()}
    return call.name, {key: _CONSTANTS.get(text, text) for key, text in texts.items()}


def _render_frame(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the template's text around turns without tools; empty where it cannot render them."""
    turns = [{"role": role, "content": "probe"} for role in ("user", "assistant", "user")]
    try:
        return apply_template(tokenizer, turns, add_generation_prompt=True)
    except (TemplateRefusal, LimitExceeded):
        return ""


def _template_rows(messages: Sequence[Message], *, as_text: bool = False) -> list[dict[str, Any]]:
    """Converts messages to the form of templates: arguments as objects, and nine letters and digits as the id of a
    call.

    With `as_text` the arguments are JSON text. A result without a call id belongs to the first unanswered call of its
    turn.
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
            arguments = dict(call.arguments)
            function = {
                "name": call.name,
                "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
            }
            calls.append({"id": identity, "type": "function", "function": function})
        if calls:
            row["tool_calls"], unanswered = calls, turn_ids
        if message.role == "tool":
            first = unanswered[0] if unanswered else f"call{max(0, call_count - 1):05d}"
            row["tool_call_id"] = identity = ids.get(message.tool_call_id or "", first)
            unanswered = [call_id for call_id in unanswered if call_id != identity]
        rows.append(row)
    return rows
