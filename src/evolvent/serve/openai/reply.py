"""Replies of the OpenAI form: whole bodies, chunks of streams, and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    CheckpointError,
    ConfigError,
    ContextOverflow,
    EvolventError,
    LimitExceeded,
    SampleInvalid,
    UnsafeFile,
    UnsafePath,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.messages import Call
from evolvent.serve.openai.generator import Written
from evolvent.serve.wire import NotFound

__all__ = ["Choice", "Form", "cut_at", "error_body", "held_back", "status_code", "stops_after"]

_STATUS: Sequence[tuple[type[EvolventError], int, str, str | None]] = (
    (NotFound, 404, "invalid_request_error", "model_not_found"),
    (ContextOverflow, 400, "invalid_request_error", "context_length_exceeded"),
    (ConfigError, 400, "invalid_request_error", None),
    (SampleInvalid, 400, "invalid_request_error", None),
    (VocabularyMismatch, 400, "invalid_request_error", "unknown_token"),
    (AccessDenied, 403, "permission_error", None),
    (UnsafePath, 403, "permission_error", "unsafe_path"),
    (UnsafeFile, 400, "invalid_request_error", "unsafe_file"),
    (CheckpointError, 400, "invalid_request_error", "unusable_weights"),
    (LimitExceeded, 413, "invalid_request_error", "request_too_large"),
    (WeightsChanged, 409, "server_error", "weights_changed"),
    (AtCapacity, 503, "server_error", "overloaded"),
)


def status_code(error: EvolventError) -> int:
    """The HTTP status that says what kind of error it is."""
    return next((status for kind, status, _, _ in _STATUS if isinstance(error, kind)), 500)


def error_body(error: EvolventError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`; `param` names the field where exactly one is wrong."""
    known = next((row for row in _STATUS if isinstance(error, row[0])), None)
    problems = error.problems if isinstance(error, ConfigError) else []
    where = problems[0].where if len(problems) == 1 else None
    kind, code = (known[2], known[3]) if known else ("server_error", None)
    return {"error": {"message": str(error), "type": kind, "param": where, "code": code}}


@dataclass(slots=True)
class Choice:
    """A sample as it is given: its text, all its tokens so far, and why it ended (None: it has not).

    Args:
        index: its place among the choices. prompt: the ids that were read for it.
        calls: of tools; they stand beside the text, not in it.
    """

    index: int
    prompt: list[int]
    text: str
    written: Written
    ended: Literal["stop", "length", "tool_calls"] | None = None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Form:
    """How replies to one request look.

    Args:
        chat: a chat completion, else a plain one.
        model: its name. word: the text of one token.
        logprobs, ids, versions: what is given beside the text.
    """

    chat: bool
    model: str
    word: Callable[[int], str]
    logprobs: bool = False
    ids: bool = False
    versions: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The whole reply."""
        rows = [
            self._row(choice, {"role": "assistant", **self._said(choice)}, choice.text, upto=len(choice.written.ids))
            for choice in choices
        ]
        return {**self._head(choices, rows, stream=False), "usage": _usage(choices)}

    def begun(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a choice in a chat's stream: who speaks, and what was read."""
        row = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._head([choice], [row], stream=True)

    def chunk(self, choice: Choice, text: str, *, first: int) -> dict[str, Any]:
        """A part of a stream: new text, and the tokens from `first` on."""
        new = Written(choice.written.ids[first:], choice.written.logprobs[first:], "", choice.written.writer)
        part = Choice(choice.index, choice.prompt, text, new, choice.ended)
        upto = len(choice.written.ids)
        said: dict[str, Any] = {"content": text} if text else {}
        if choice.calls:
            said["tool_calls"] = [{"index": number, **call} for number, call in enumerate(self._calls(choice))]
        row = self._row(part, said, text, key="delta", upto=upto)
        head = self._head([choice], [row], stream=True)
        if self.chat or first:  # what was read is told once
            head.pop("prompt_token_ids", None)
            row.pop("prompt_token_ids", None)
        return head

    def counted(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The chunk after all others that counts their tokens."""
        return {**self._head(choices, [], stream=True), "usage": _usage(choices)}

    def _head(self, choices: Sequence[Choice], rows: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        head = {
            "id": ("chatcmpl-" if self.chat else "cmpl-") + self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": choices[0].written.writer,
            "choices": rows,
        }
        return {**head, "prompt_token_ids": choices[0].prompt} if self.chat and self.ids and rows else head

    def _row(
        self, choice: Choice, said: dict[str, Any], text: str, *, upto: int, key: str = "message"
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"index": choice.index, **({key: said} if self.chat else {"text": text})}
        row["logprobs"] = (self._entries(choice) if self.chat else self._table(choice)) if self.logprobs else None
        row["finish_reason"] = choice.ended
        if self.versions:  # of all tokens, also in the last chunk of a stream, and in no other
            row["weight_versions"] = _spans(choice, upto) if choice.ended else None
        if self.ids:
            row["token_ids"] = choice.written.ids.tolist()
            if not self.chat:
                row["prompt_token_ids"] = choice.prompt
        return row

    def _said(self, choice: Choice) -> dict[str, Any]:
        if not choice.calls:
            return {"content": choice.text}
        return {"content": choice.text or None, "tool_calls": self._calls(choice)}

    def _calls(self, choice: Choice) -> list[dict[str, Any]]:
        """Calls with ids of their own; their arguments in the order in which they were written."""
        return [
            {
                "id": f"call_{self.id}{choice.index:03d}{number:03d}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for number, call in enumerate(choice.calls)
        ]

    def _entries(self, choice: Choice) -> dict[str, Any]:
        """Log-probabilities as a chat has them. A token that is part of a character has no text of its own."""
        rows = []
        for index, value in zip(choice.written.ids.tolist(), _values(choice), strict=True):
            text = self.word(index)
            told = None if "\ufffd" in text else list(text.encode())
            rows.append({"token": text, "logprob": value, "bytes": told, "top_logprobs": []})
        return {"content": rows, "refusal": None}

    def _table(self, choice: Choice) -> dict[str, Any]:
        """Log-probabilities as a completion has them."""
        words = [self.word(index) for index in choice.written.ids.tolist()]
        places = np.cumsum([0, *map(len, words)])[:-1].tolist()
        return {"tokens": words, "token_logprobs": _values(choice), "text_offset": places, "top_logprobs": None}


def _spans(choice: Choice, upto: int) -> list[dict[str, Any]]:
    """Whose weights wrote the tokens up to here: always one version, since what two have written is refused."""
    return [{"version": choice.written.writer, "start": 0, "end": upto}]


def _values(choice: Choice) -> list[float]:
    """Log-probabilities as JSON numbers from which the same float32 is read back."""
    return [float(value) for value in choice.written.logprobs]


def _usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens read, once for every prompt, and written."""
    read = sum({id(choice.prompt): len(choice.prompt) for choice in choices}.values())
    written = sum(len(choice.written.ids) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first of the stops, and whether there was one."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def stops_after(text: str, stops: Sequence[str], since: int) -> bool:
    """Whether one of the stops is in the text and ends behind its first `since` characters, which hold none."""
    return any(text.find(stop, max(0, since - len(stop) + 1)) >= 0 for stop in stops)


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of an unfinished text may not be sent yet.

    They could become part of a stop, or are the beginning of a character whose other tokens have not come.
    """
    begun = [_begun(text, stop) for stop in stops]
    broken = len(text) - len(text.rstrip("\ufffd"))
    return max([broken, *begun])


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of a stop that is not whole yet."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
