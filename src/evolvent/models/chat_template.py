"""Chat templates: a conversation is rendered whole, encoded whole, and cut into prompts and replies.

A template is a program, so nothing is assumed about its form. Every text of a conversation is replaced by a
placeholder, the template renders the placeholders, and the rendering is cut at them. What stands between the
generation prompt and a reply (an empty thought, a channel header, a space) and what ends a reply are read off such
renderings. The texts are then put back, and the whole text is encoded at once, because SentencePiece and byte-level
tokenizers encode a piece otherwise when it stands alone.

Text of users, tools and worlds never becomes a control token: where it spells one, the letters are encoded.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, LimitExceeded, SampleInvalid
from evolvent.messages import Message, Tool
from evolvent.models.template_process import TemplateRefusal, apply_template
from evolvent.models.text_encoder import EncodedText, Piece, TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "ChatTemplate",
    "ConversationTokens",
    "ReplySpan",
    "ReplyText",
]

_PLACE = re.compile(r"Evolvent(\d+)x(\d+)Text")  # number of the message, number of its piece
_NO_END = "it does not mark the end of a reply"
_CALL_MARK = re.compile(r"tool_?call|function", re.IGNORECASE)  # marks around calls, which end no turn
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_DEFAULT_CLOSE = "\n</think>\n\n"  # DeepSeek-R1's own form, for templates that never show how a thought ends


def _fill(text: str, contents: Mapping[str, Piece]) -> list[Piece]:
    """Puts texts in the place of their placeholders."""
    pieces, position = list[Piece](), 0
    for match in _PLACE.finditer(text):
        if match.start() > position:
            pieces.append(Piece(text[position : match.start()]))
        piece = contents.get(match[0], Piece(match[0]))
        if piece.text:
            pieces.append(piece)
        position = match.end()
    if position < len(text):
        pieces.append(Piece(text[position:]))
    return pieces


_NO_TOOLS = "it does not show tools"
_NO_TOOLS_HINT = "evolvent train hammer shows tools in a prompt, as evolvent serve does; or use another model"


class _Refusal(ValueError):
    """A template that refuses a conversation, or drops a part of it."""


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A text with placeholders, and what stands in their places."""

    text: str
    contents: Mapping[str, Piece]

    def places(self, message: int) -> list[re.Match[str]]:
        """Returns the first occurrences of a message's placeholders, in the order of the text.

        The name of a called tool may stand before the tool's result again.
        """
        matches = dict[str, re.Match[str]]()
        for match in _PLACE.finditer(self.text):
            if int(match[1]) == message:
                matches.setdefault(match[0], match)
        return list(matches.values())

    def end_of(self, message: int) -> int:
        """Returns the position behind the last placeholder of a message."""
        return self.places(message)[-1].end()


@dataclass(frozen=True, slots=True)
class ReplySpan:
    """Tokens `start` to `end` of a conversation are the reply of message number `message`, its end mark included."""

    message: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ConversationTokens:
    """A conversation as token ids `[T]`, and the spans of its replies in them."""

    ids: list[int]
    replies: list[ReplySpan]


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A reply that was read back: the thought before it, None where there was none, and the text."""

    thought: str | None
    text: str


_USER, _REPLY = Message("user", "probe"), Message("assistant", "probe")
_THOUGHTFUL_REPLY = Message("assistant", "probe", extra={"reasoning_content": "probe"})
_THINKING_REPLY = Message("assistant", f"{_THINK_OPEN}\nprobe\n{_THINK_CLOSE}\n\nprobe")


class ChatTemplate:
    """The chat template of a tokenizer, analyzed once.

    Args:
        tokenizer: of Hugging Face, with a chat template.
        end_ids: further tokens that end a reply, such as those of the model's generation_config.
    Attributes:
        encoder: encodes pieces of renderings.
        takes_system: whether the template has a place for instructions; else they go before the first user text.
        takes_thoughts: whether the template writes the thought of a last reply (`reasoning_content`).
        stop_ids: every token that ends a reply: the template's, the tokenizer's end-of-text token, and `end_ids`. A
            token that the template writes between a thought and its reply is not among them.
        stop_strings: texts that end a reply, where the template has no token for that.
        extends: whether the rendering of a conversation extends the rendering of its beginning.
        keeps_thoughts: whether that is so where replies have thoughts, too.
    Raises:
        ConfigError: a template that cannot be rendered, drops or reorders turns, or writes nothing behind a reply.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, end_ids: Iterable[int] = ()) -> None:
        self._tokenizer, self._uses_parts, self._suffix = tokenizer, False, ""
        self._end_texts: tuple[str, ...] = ()
        self._apply = lru_cache(maxsize=1024)(self._apply_template)
        try:
            self._uses_parts = self._try_render([_USER], prompt=True) is None
            prompt = self._render([_USER], prompt=True)
            last = self._render([_USER, _REPLY])
            middle = self._render([_USER, _REPLY, _USER], prompt=True)
        except (_Refusal, LimitExceeded) as error:
            raise ConfigError(f"the chat template cannot be used: {error}", hint="set another chat template") from error
        self.takes_system = self._try_render([Message("system", "probe"), _USER], prompt=True) is not None
        source = getattr(tokenizer, "chat_template", None) or ""
        self.encoder = TextEncoder(tokenizer, f"{source}{last.text}{middle.text}")
        thoughtful = self._try_render([_USER, _THOUGHTFUL_REPLY])
        self._analyze_replies(prompt, last, thoughtful)
        self._analyze_ends(last, middle, thoughtful, end_ids)
        self._shared_tail = self._measure_shared_tail()
        self.extends = self._extends(_REPLY)
        self.keeps_thoughts = self._extends(_THOUGHTFUL_REPLY) and self._extends(_THINKING_REPLY)

    # ------------------------------------------------------------------ analysis

    def _analyze_replies(self, prompt: _Rendering, last: _Rendering, thoughtful: _Rendering | None) -> None:
        """Finds what stands between the generation prompt and a reply, and how a thought begins and ends."""
        text, user_end, reply_start = prompt.text, prompt.end_of(0), last.places(1)[0].start()
        if text == self._render([_USER]).text and last.text.startswith(text):
            # The template ignores `add_generation_prompt`: the header of a reply belongs to the prompt all the same.
            header = last.text[len(text) : reply_start]
            self._suffix = header.rstrip(" ") if header.strip() else ""
            text += self._suffix
        self._header = text[user_end:]
        thought_start = self._header.rfind(_THINK_OPEN)
        self._opens_thought = thought_start >= 0 and _THINK_CLOSE not in self._header[thought_start:]
        self._opener = self._header[thought_start:] if self._opens_thought else ""
        self._thought_open, self._thought_close, self._close = _THINK_OPEN, _THINK_CLOSE, _DEFAULT_CLOSE
        thought_places = thoughtful.places(1) if thoughtful is not None else []
        self.takes_thoughts = len(thought_places) == 2
        if thoughtful is not None and len(thought_places) == 2:
            between = thoughtful.text[thought_places[0].end() : thought_places[1].start()]
            before = thoughtful.text[user_end : thought_places[0].start()]
            self._close = between
            self._thought_close = between.strip() or _THINK_CLOSE
            self._thought_open = before.removeprefix(self._header).strip() or _THINK_OPEN
        try:
            reply = self._reply_after(_Rendering(text, {}), last)
        except _Refusal as error:
            raise ConfigError(str(error), value=last.text, expected=text) from error
        self._gap = reply[: next(_PLACE.finditer(reply)).start()]

    def _analyze_ends(
        self, last: _Rendering, middle: _Rendering, thoughtful: _Rendering | None, end_ids: Iterable[int]
    ) -> None:
        """Finds what ends a reply."""
        end = last.text[last.end_of(1) :]
        middle_end = middle.text[middle.end_of(1) : middle.places(2)[0].start()]
        thought_places = thoughtful.places(1) if thoughtful is not None else []
        between = (
            thoughtful.text[thought_places[0].end() : thought_places[1].start()]
            if thoughtful and len(thought_places) == 2
            else ""
        )
        thought_ids = {index for index in self._encode_template(between) if index in self.encoder.mark_ids}
        eos = self._tokenizer.eos_token_id
        eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        size = len(self._tokenizer)
        end_tokens = {int(index) for index in [*eos_ids, *end_ids] if 0 <= int(index) < size} - thought_ids
        middle_mark = self._end_mark(middle_end, end_tokens)
        mark = self._end_mark(end, end_tokens) or middle_mark
        self.stop_strings: tuple[str, ...] = ()
        if mark is not None:
            self._end_text = mark[1]
            end_tokens.add(mark[0])
        else:
            self._end_text = end.rstrip() or middle_end.rstrip() or self._spell(end_tokens)
            self.stop_strings = tuple(filter(str.strip, [end.strip() or middle_end.rstrip()]))
        self.stop_ids = frozenset(end_tokens)
        if not self.stop_ids and not self.stop_strings:
            raise ConfigError(
                "the chat template does not mark the end of a reply, and the tokenizer has no end-of-text token",
                value=repr(end or middle_end),
                hint="set the tokenizer's eos_token",
            )
        space = end or middle_end
        self._trailing_space = space[: len(space) - len(space.lstrip())] if mark is not None else ""
        marks = [end_mark[1] for end_mark in (middle_mark, mark) if end_mark is not None]
        spellings = [self._spell([index]) for index in sorted(self.stop_ids)]
        self._end_texts = tuple(dict.fromkeys(filter(None, [*marks, *self.stop_strings, *spellings])))

    def _spell(self, ids: Iterable[int]) -> str:
        first = sorted(ids)[:1]
        return str(self._tokenizer.decode(first, skip_special_tokens=False)) if first else ""

    def _first_mark(self, text: str) -> tuple[int, str] | None:
        """Returns the first control token of a text, and its spelling there."""
        encoded = self.encoder.encode([Piece(text)])
        for index, start, end in zip(encoded.ids, encoded.starts, encoded.ends, strict=True):
            if index in self.encoder.mark_ids:
                return index, text[start:end].strip() or text[start:end]
        return None

    def _end_mark(self, text: str, end_ids: Collection[int]) -> tuple[int, str] | None:
        """Returns the control token that ends a reply before a text.

        It is the first one; of several that follow directly, the first that the model is known to stop at, because some
        templates close the text before they close the turn.
        """
        first = self._first_mark(text)
        if first is None:
            return None
        position = text.index(first[1])
        while (mark := self._first_mark(text[position:])) is not None and text[position:].startswith(mark[1]):
            if mark[0] in end_ids:
                return mark
            position += len(mark[1])
        return first

    def _encode_template(self, text: str) -> list[int]:
        return self.encoder.encode([Piece(text)]).ids

    def _measure_shared_tail(self) -> int:
        """Counts the last characters of a prompt whose tokens depend on the beginning of the reply.

        Such characters belong to the reply, because the author of a reply has to write them: Qwen3.5 opens a thought
        with one newline, and an empty thought has two, which are one token.
        """
        context = f"x{self._header}"
        prompt = self.encoder.encode([Piece(context)])
        exchange = self.encoder.encode([Piece(f"{context}{self._gap}x{self._end_text}")])
        prompt_tokens = list(zip(prompt.ids, prompt.starts, prompt.ends, strict=True))
        exchange_tokens = zip(exchange.ids, exchange.starts, exchange.ends, strict=True)
        num_shared = 0
        for prompt_token, exchange_token in zip(prompt_tokens, exchange_tokens, strict=False):
            if prompt_token != exchange_token:
                break
            num_shared += 1
        return len(context) - prompt.starts[num_shared] if 0 < num_shared < len(prompt_tokens) else 0

    def _extends(self, reply: Message) -> bool:
        """Returns whether a conversation that goes on behind a reply is rendered as it was written turn by turn."""
        messages = [_USER, reply, _USER, _REPLY]
        try:
            rendering, transcript = self._render(messages).text, self._transcript(messages, ())[0].text
        except _Refusal:
            return False
        return rendering.startswith(transcript) or transcript.startswith(rendering)

    # ------------------------------------------------------------------ rendering

    def _try_render(self, messages: Sequence[Message], *, prompt: bool = False) -> _Rendering | None:
        try:
            return self._render(messages, prompt=prompt)
        except _Refusal:
            return None

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, prompt: bool = False) -> _Rendering:
        """Renders a conversation with placeholders.

        Args:
            prompt: whether the rendering ends where the next reply begins.
        Raises:
            _Refusal: the template refuses the conversation, or drops one of its texts.
        """
        self._refuse_marks(messages, tools)
        rows, contents, required = self._template_rows(messages)
        shown_tools = json.dumps([tool.as_openai() for tool in tools], default=str) if tools else ""
        text = self._apply(json.dumps(rows, ensure_ascii=False), shown_tools, prompt)
        written = {match[0] for match in _PLACE.finditer(text)}
        for name, role in required.items():
            if name not in written:
                raise _Refusal(f"it drops a turn of the {role}")
        return _Rendering(text + self._suffix if prompt else text, contents)

    def _refuse_marks(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Refuses calls and tools that spell a control token: templates write them as JSON, not as plain text."""
        values: list[object] = [tool.as_openai() for tool in tools]
        values += [[call.name, dict(call.arguments)] for message in messages for call in message.calls]
        for value in values:
            text = json.dumps(value, ensure_ascii=False, default=str)
            mark = self.encoder.find_mark(text) or next((match[0] for match in _PLACE.finditer(text)), None)
            if mark is not None:
                raise _Refusal(f"a tool or a call spells the control token {mark!r}")

    def _apply_template(self, rows: str, tools: str, prompt: bool) -> str:
        try:
            return self._apply_once(json.loads(rows), tools, prompt)
        except _Refusal:
            # Some templates want the arguments of calls as JSON text (DeepSeek-V3), most as objects.
            text_rows = json.loads(rows)
            for row in text_rows:
                for call in row.get("tool_calls", ()):
                    call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if '"tool_calls"' not in rows:
                raise
            return self._apply_once(text_rows, tools, prompt)

    def _apply_once(self, rows: list[dict[str, Any]], tools: str, prompt: bool) -> str:
        try:
            shown_tools = json.loads(tools) if tools else None
            return apply_template(self._tokenizer, rows, tools=shown_tools, add_generation_prompt=prompt)
        except TemplateRefusal as error:
            raise _Refusal(str(error)) from error

    def _template_rows(
        self, messages: Sequence[Message]
    ) -> tuple[list[dict[str, Any]], dict[str, Piece], dict[str, str]]:
        """Converts messages to the rows of a template, with placeholders for every text.

        Returns:
            The rows; what stands in each placeholder's place; and the placeholders that a rendering must have, with
            the role of their message.
        """
        contents, required = dict[str, Piece](), dict[str, str]()
        call_ids, call_count, unanswered = dict[str, str](), 0, list[str]()
        rows = []
        for number, message in enumerate(messages):
            parts = itertools.count()

            def place(text: str, *, is_content: bool, number: int = number, parts: Iterator[int] = parts) -> str:
                name, core = f"Evolvent{number}x{next(parts)}Text", text.strip()
                contents[name] = Piece(core, is_content)
                begin = text.find(core) if core else 0
                return f"{text[:begin]}{name}{text[begin + len(core) :]}" if core else name

            row: dict[str, Any] = {"role": message.role}
            text = message.text
            if message.role == "assistant":
                is_forged = self._spells_end(text)
                pieces = re.split(rf"({_THINK_OPEN}|{_THINK_CLOSE})", text) if text.strip() else []
                content = "".join(
                    [
                        place(piece, is_content=is_forged) if part % 2 == 0 and piece.strip() else piece
                        for part, piece in enumerate(pieces)
                    ]
                )
                if not text.strip() and not message.calls:
                    content = place("", is_content=False)
                thought = message.extra.get("reasoning_content") or message.extra.get("thinking")
                if isinstance(thought, str) and thought.strip():
                    shown_thought = place(thought, is_content=self._spells_end(thought))
                    row["reasoning_content"] = row["thinking"] = shown_thought
                if message.calls:
                    row["tool_calls"], unanswered = [], []
                    for call in message.calls:
                        identity = f"call{call_count:05d}"
                        call_count += 1
                        unanswered.append(identity)
                        call_ids |= {call.id: identity} if call.id else {}
                        name = place(call.name, is_content=True)
                        required[name] = "assistant that calls tools"
                        function = {"name": name, "arguments": dict(call.arguments)}
                        row["tool_calls"].append({"id": identity, "type": "function", "function": function})
                elif text.strip() or not pieces:
                    required |= dict.fromkeys([match[0] for match in _PLACE.finditer(content)][-1:], message.role)
            else:
                content = place(text, is_content=True) if text.strip() else text
                required |= {match[0]: message.role for match in _PLACE.finditer(content)}
                if message.role == "tool":
                    first_unanswered = unanswered[0] if unanswered else f"call{max(0, call_count - 1):05d}"
                    identity = call_ids.get(message.tool_call_id or "", first_unanswered)
                    unanswered = [call_id for call_id in unanswered if call_id != identity]
                    row["tool_call_id"] = identity
                    row |= {"name": message.extra["name"]} if isinstance(message.extra.get("name"), str) else {}
            row["content"] = [{"type": "text", "text": content}] if self._uses_parts else content
            rows.append(row)
        return rows, contents, required

    def _spells_end(self, text: str) -> bool:
        """Returns whether a text spells something that would end a reply: its control tokens are then letters."""
        return any(end_text in text for end_text in self._end_texts)

    def _normalize(self, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        """Returns the messages as templates expect them, each with its number in the given list.

        Instructions come first, as one message, and are put before the first user text where the template has no
        place for them. User messages that follow one another become one.
        """
        head = 0
        while head < len(messages) and messages[head].role in ("system", "developer"):
            head += 1
        instructions = "\n\n".join([message.text for message in messages[:head]])
        rows: list[tuple[int, Message]] = []
        if head and (self.takes_system or head == len(messages)):
            rows.append((0, Message("system" if self.takes_system else "user", instructions)))
        elif instructions:
            if messages[head].role == "user":
                rows.append((head, Message("user", f"{instructions}\n\n{messages[head].text}")))
                head += 1
            else:
                rows.append((0, Message("user", instructions)))
        if head < len(messages) and messages[head].role == "assistant" and not any(r.role == "user" for _, r in rows):
            rows.append((head, Message("user", "")))  # templates want a user first
        for number in range(head, len(messages)):
            message = messages[number]
            role = "user" if message.role in ("system", "developer") else message.role
            if role == "user" and rows and rows[-1][1].role == "user":
                rows[-1] = (number, Message("user", f"{rows[-1][1].text}\n\n{message.text}"))
            else:
                rows.append((number, message if role == message.role else Message(role, message.content)))
        return rows

    # ------------------------------------------------------------------ replies

    def _reply_after(self, prompt: _Rendering, full: _Rendering) -> str:
        """Returns what follows a prompt in a rendering that ends with a reply.

        Only what stands behind the last text of the prompt is compared, because templates may render the past otherwise
        once there is a reply. Where the prompt opens a thought that the rendering does not have, the reply closes it.
        """
        last_place = next(reversed(list(_PLACE.finditer(prompt.text))), None)
        positions = (0, 0)
        if last_place is not None:
            position = full.text.find(last_place[0])
            if position < 0:
                raise _Refusal("the chat template drops a turn before a reply")
            positions = (prompt.text.find(last_place[0]) + len(last_place[0]), position + len(last_place[0]))
        header, reply = prompt.text[positions[0] :], full.text[positions[1] :]
        if reply.startswith(header):
            return reply[len(header) :]
        base = header.removesuffix(self._opener)
        if self._opener and reply.startswith(base):
            reply = reply[len(base) :]
            if reply.startswith(_THINK_OPEN) and _THINK_CLOSE in reply:
                thought, _, reply = reply.removeprefix(_THINK_OPEN).partition(_THINK_CLOSE)
                return f"{thought.strip()}{self._close}{reply.lstrip()}"
            return f"{self._close}{reply}"
        raise _Refusal("the chat template changes earlier turns")

    def _find_end(self, text: str, position: int) -> tuple[int, int] | None:
        """Finds the first text that ends a reply at or behind a position: its beginning and end."""
        matches = [(text.find(end, position), -len(end)) for end in self._end_texts if end in text[position:]]
        if not matches:
            return None
        start, negative_length = min(matches)  # of two that begin together, the longer one
        return start, start - negative_length

    def _transcript(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[_Rendering, list[tuple[int, int, int]]]:
        """Writes a conversation turn by turn: every reply as the template writes a last one.

        Returns:
            The text with placeholders, and for each reply its number in `messages` and its beginning and end in the
            text. Messages behind the last reply are left out.
        """
        turns = self._normalize(messages)
        rows = [message for _, message in turns]
        text, spans, contents = "", list[tuple[int, int, int]](), dict[str, Piece]()
        previous: tuple[int, str] | None = None  # the last reply's position and text
        for position, (number, message) in enumerate(turns):
            if message.role != "assistant":
                continue
            prompt = self._render(rows[:position], tools, prompt=True)
            if previous is None:
                text = prompt.text
            else:
                text += prompt.text[self._position_behind(prompt, *previous) :]
            full = self._render_reply(rows, position, tools)
            contents |= full.contents
            reply = self._ended_reply(self._reply_after(prompt, full), rows, position, tools)
            spans.append((number, len(text), len(text) + len(reply)))
            text += reply
            previous = (position, reply)
        return _Rendering(text, contents), spans

    def _render_reply(self, rows: Sequence[Message], position: int, tools: Sequence[Tool]) -> _Rendering:
        """Renders a conversation up to a reply, as the last message."""
        full = self._render(rows[: position + 1], tools)
        if self._opener or not self._header.rstrip().endswith(_THINK_CLOSE):
            return full
        # The prompt says that there is no thought: it is left out.
        reply = rows[position]
        extra = {key: value for key, value in reply.extra.items() if key not in ("reasoning_content", "thinking")}
        return self._render([*rows[:position], replace(reply, extra=extra)], tools)

    def _ended_reply(self, reply: str, rows: Sequence[Message], position: int, tools: Sequence[Tool]) -> str:
        """Cuts the text of a reply behind what ends it; where nothing does, what ends it is written.

        After calls of tools, that may be another mark than after text: the one that ends the rendering, or the one that
        opens the result of the tool.
        """
        end = self._find_end(reply, _content_end(reply, position))
        if end is not None:
            return reply[: end[1]]
        tail = reply[_content_end(reply, position) :].rstrip()
        if rows[position].calls:
            last_mark = self._last_mark(tail)
            if last_mark and tail.endswith(last_mark) and not _CALL_MARK.search(last_mark):
                return reply.rstrip()
            later_replies = (later for later in range(position + 1, len(rows)) if rows[later].role == "assistant")
            following = next(later_replies, len(rows))
            if following > position + 1:
                prompt = self._render(rows[:following], tools, prompt=True)
                prompt_tail = prompt.text[prompt.end_of(position) :] if prompt.places(position) else ""
                mark = self._first_mark(prompt_tail[len(tail) :]) if prompt_tail.startswith(tail) else None
                if mark is not None and prompt_tail[len(tail) :].lstrip().startswith(mark[1]):
                    return reply.rstrip() + mark[1]
        return reply.rstrip("\n") + self._end_text

    def _position_behind(self, prompt: _Rendering, message: int, reply: str) -> int:
        """Returns the position in a prompt behind an earlier reply and what ends it."""
        if not prompt.places(message):
            raise _Refusal("it drops a turn of the assistant")
        start = prompt.end_of(message)
        written = reply[_content_end(reply, message) :]
        if prompt.text.startswith(written, start):
            return start + len(written)
        end = self._find_end(prompt.text, start)
        if end is None:
            raise _Refusal(_NO_END)
        return end[1]

    def _last_mark(self, text: str) -> str:
        encoded = self.encoder.encode([Piece(text)])
        marks = [
            text[start:end].strip()
            for index, start, end in zip(encoded.ids, encoded.starts, encoded.ends, strict=True)
            if index in self.encoder.mark_ids
        ]
        return marks[-1] if marks else ""

    # ------------------------------------------------------------------ tokens

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Returns all tokens up to where the next reply begins.

        Raises:
            SampleInvalid: the template refuses the conversation, or drops a turn.
        """
        with _sample_errors():
            rendering = self._render([message for _, message in self._normalize(messages)], tools, prompt=True)
            _check_tools(rendering.text, messages, tools)
        encoded = self.encoder.encode(_fill(rendering.text, rendering.contents))
        return encoded.before(self._boundary(encoded))

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> ConversationTokens:
        """Returns a conversation written turn by turn, every reply as the template writes a last one.

        Where the template's renderings extend one another, these are the tokens of the whole rendering. Else they are
        what a policy reads and writes that keeps its tokens. Messages behind the last reply are left out.

        Raises:
            SampleInvalid: the template refuses the conversation, or drops a turn.
        """
        with _sample_errors():
            rendering, spans = self._transcript(messages, tools)
            _check_tools(rendering.text, messages, tools)
        return self._encode_transcript(rendering, spans)

    def exchanges(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[ConversationTokens]:
        """Returns every reply behind the conversation before it as the template renders that, each anew.

        Raises:
            SampleInvalid: the template refuses the conversation, or drops a turn.
        """
        turns, results = self._normalize(messages), []
        rows = [message for _, message in turns]
        for position, (number, message) in enumerate(turns):
            if message.role != "assistant":
                continue
            with _sample_errors():
                prompt = self._render(rows[:position], tools, prompt=True)
                full = self._render_reply(rows, position, tools)
                reply = self._ended_reply(self._reply_after(prompt, full), rows, position, tools)
                _check_tools(prompt.text + reply, messages, tools)
            text = prompt.text + reply
            span = (number, len(prompt.text), len(text))
            results.append(self._encode_transcript(_Rendering(text, full.contents), [span]))
        return results

    def _encode_transcript(self, rendering: _Rendering, spans: Sequence[tuple[int, int, int]]) -> ConversationTokens:
        pieces, bounds = list[Piece](), list[int]()
        position = length = 0
        for bound in [bound for _, start, end in spans for bound in (start, end)]:
            part = _fill(rendering.text[position:bound], rendering.contents)
            pieces += part
            length += sum(len(piece.text) for piece in part)
            bounds.append(length)
            position = bound
        encoded = self.encoder.encode(pieces)
        replies = []
        for (number, _, _), bound, end in zip(spans, bounds[::2], bounds[1::2], strict=True):
            start = bound - self._shared_tail if bound - self._shared_tail in encoded.starts else bound
            replies.append(ReplySpan(number, len(encoded.before(start)), len(encoded.before(end))))
        return ConversationTokens(encoded.ids, replies)

    def _boundary(self, encoded: EncodedText) -> int:
        """Returns the position behind the last token of a prompt that no reply shares."""
        length = encoded.ends[-1] if encoded.ends else 0
        position = length - self._shared_tail
        return position if self._shared_tail and position in encoded.starts else length

    def between(self, text: str, *, stopped: bool) -> list[int]:
        """Returns the tokens between a reply and the next: the end of the reply where it did not stop, and a user turn.

        Args:
            text: of the user.
            stopped: whether the reply's end was written already.
        """
        return self.between_messages([Message("user", text)], stopped=stopped)

    def between_messages(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Returns the tokens between a reply and the next with other messages there, such as results of tools.

        Raises:
            SampleInvalid: the template refuses them, or drops one of them.
        """
        with _sample_errors():
            rendering = self._render([_USER, _REPLY, *messages], prompt=True)
            start = rendering.end_of(1)
            end = self._find_end(rendering.text, start)
            if end is None:
                raise _Refusal(_NO_END)
        context = rendering.text[end[0] : end[1]] if stopped else ""
        tail = rendering.text[end[1] if stopped else start :]
        if not stopped and self._first_mark(tail[: end[1] - start]) is None:
            context = "x"  # a text that goes on behind letters
        encoded = self.encoder.encode([Piece(context), *_fill(tail, rendering.contents)])
        first, end_index = len(encoded.before(len(context))), len(encoded.before(self._boundary(encoded)))
        return encoded.ids[first:end_index]

    def reply(self, text: str) -> list[int]:
        """Returns the tokens of a reply behind a prompt: what the template writes before it, the text, and its end.

        Control tokens that the text spells stay control tokens, such as those around a call, unless one of them would
        end the reply.
        """
        rows = [_USER, Message("assistant", text)]
        with _sample_errors():
            rendering = self._render(rows)
            reply = self._ended_reply(self._reply_after(self._render(rows[:1], prompt=True), rendering), rows, 1, ())
        pieces = _fill(reply, rendering.contents)
        context = f"x{self._header}"
        boundary = len(context) - self._shared_tail
        encoded = self.encoder.encode([Piece(context), *pieces])
        if boundary in encoded.starts:
            return encoded.after(boundary)
        return self.encoder.encode(
            [Piece(context[boundary:]), *pieces]
        ).ids  # the text shares a token with the prompt that was read

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        """Reads a reply back from its tokens: without what ends it, and without a thought that it begins with.

        A thought that the prompt opened, or that the reply opens, ends at the first mark that closes it. One that is
        not closed has no text behind it.
        """
        text = self.decode(ids)
        thought, opened = None, self._opens_thought
        while True:
            begun = text.lstrip()
            for mark in (self._thought_open, _THINK_OPEN):
                if mark and begun.startswith(mark):
                    text, opened = begun[len(mark) :], True
                    break
            if not opened:
                break
            closes = [mark for mark in dict.fromkeys([self._thought_close, _THINK_CLOSE]) if mark in text]
            if not closes:
                return ReplyText(_join_thoughts(thought, text), "")
            mark = min(closes, key=text.find)
            before, _, text = text.partition(mark)
            thought, opened = _join_thoughts(thought, before), False
        plain_gap = self._gap.strip()
        text = text.strip()
        if plain_gap and text.startswith(plain_gap):
            text = text[len(plain_gap) :].strip()
        return ReplyText(thought or None, text)

    def strip_frame(self, text: str) -> str:
        """Removes what the template writes around the text of a reply without thought."""
        return text.removeprefix(self._gap).removesuffix(self._trailing_space)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes a reply with all its marks, without what ends it."""
        text = str(
            self._tokenizer.decode(
                [int(index) for index in ids if int(index) not in self.stop_ids], skip_special_tokens=False
            )
        )
        for end in self.stop_strings:
            text = text.partition(end)[0]
        return text


def _check_tools(text: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Refuses a template that shows neither tools nor calls; DeepSeek-V3's shows calls alone."""
    if any(tool.name not in text for tool in tools) and not any(message.calls for message in messages):
        raise _Refusal(_NO_TOOLS)


def _content_end(text: str, message: int) -> int:
    """Returns the position behind the last content of a message."""
    return max((match.end() for match in _PLACE.finditer(text) if int(match[1]) == message), default=0)


def _join_thoughts(first: str | None, second: str) -> str:
    return "\n".join(filter(None, [first, second.strip()]))


@contextmanager
def _sample_errors() -> Iterator[None]:
    try:
        yield
    except (_Refusal, LimitExceeded) as error:
        hint = _NO_TOOLS_HINT if str(error) == _NO_TOOLS else None
        raise SampleInvalid("the chat template cannot write a conversation", value=str(error), hint=hint) from error
