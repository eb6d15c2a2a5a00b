"""Replies in OpenAI's form: whole bodies, chunks of streams, and errors."""

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
    SessionGone,
    UnsafeFile,
    UnsafePath,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.messages import Call
from evolvent.serve.openai.generator import GeneratedSample, TokenScores
from evolvent.serve.wire import EpisodeEnded, NotFound
from evolvent.trajectory import JsonObject

__all__ = [
    "Choice",
    "ReplyFormat",
    "count_unsendable",
    "cut_at_stop",
    "encode_error",
    "encode_refusal",
    "has_stop_after",
    "http_status",
]

_STATUS_BY_ERROR: Sequence[tuple[type[EvolventError], int, str, str | None]] = (
    (NotFound, 404, "invalid_request_error", "model_not_found"),
    (EpisodeEnded, 409, "invalid_request_error", "session_closed"),
    (SessionGone, 404, "invalid_request_error", "unknown_session"),
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


def http_status(error: EvolventError) -> int:
    """Returns the HTTP status of an error."""
    return next((status for kind, status, _, _ in _STATUS_BY_ERROR if isinstance(error, kind)), 500)


def encode_error(error: EvolventError) -> dict[str, dict[str, str | None]]:
    """Returns `{"error": {"message", "type", "param", "code"}}`; `param` names the field if there is exactly one
    problem.
    """
    status_row = next((row for row in _STATUS_BY_ERROR if isinstance(error, row[0])), None)
    problems = error.problems if isinstance(error, ConfigError) else []
    parameter = problems[0].where if len(problems) == 1 else None
    kind, code = (status_row[2], status_row[3]) if status_row else ("server_error", None)
    return {"error": {"message": str(error), "type": kind, "param": parameter, "code": code}}


def encode_refusal(error: EvolventError, status: int) -> dict[str, dict[str, str | None]]:
    """Returns the body of an error that the server answers without the app, in OpenAI's form."""
    return encode_error(error)


@dataclass(slots=True)
class Choice:
    """A sample as it is returned: its text, all its tokens so far, and its finish reason (None: unfinished).

    Args:
        index: index among the choices.
        prompt: token ids of its prompt.
        text: text without calls.
        sample: tokens and log-probabilities.
        finish_reason: reason of the end.
        calls: calls of tools; they stand beside the text, not in it.
        drops_calls: whether the reply wrote more calls than are told, because one is allowed at most.
        refusal: why there is no text, where a call was cut.
        scores: scores of the tokens; None: those of the sample.
        prompt_text: text of the prompt, where it is echoed.
        prompt_scores: scores of the prompt's tokens from the second on, where they are echoed.
    """

    index: int
    prompt: list[int]
    text: str
    sample: GeneratedSample
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    calls: tuple[Call, ...] = ()
    drops_calls: bool = False
    refusal: str = ""
    scores: TokenScores | None = None
    prompt_text: str = ""
    prompt_scores: TokenScores | None = None


@dataclass(frozen=True)
class ReplyFormat:
    """The format of the replies to one request.

    Args:
        chat: a chat completion, else a plain one.
        model: name of the model.
        decode_token: returns the text of one token.
        with_logprobs: whether to include log-probabilities.
        with_ids: whether to include token ids.
        with_versions: whether to include the versions of the weights.
        num_top: number of the likeliest tokens beside every token.
    """

    chat: bool
    model: str
    decode_token: Callable[[int], str]
    with_logprobs: bool = False
    with_ids: bool = False
    with_versions: bool = False
    num_top: int = 0
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def reply_id(self) -> str:
        """Returns the id of the reply."""
        return ("chatcmpl-" if self.chat else "cmpl-") + self.id

    def body(self, choices: Sequence[Choice]) -> JsonObject:
        """Returns the whole reply."""
        rows = [
            self._choice_row(
                choice,
                {"role": "assistant", **self._message_fields(choice)},
                choice.prompt_text + choice.text,
                num_tokens=len(choice.sample.ids),
            )
            for choice in choices
        ]
        return {**self._head(choices, rows, stream=False), "usage": _count_usage(choices)}

    def first_chunk(self, choice: Choice) -> dict[str, object]:
        """Returns the first chunk of a choice in a chat's stream: its role, and the prompt ids."""
        row = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._head([choice], [row], stream=True)

    def chunk(self, choice: Choice, text: str, *, first: int) -> dict[str, object]:
        """Returns a chunk of a stream: new text, and the tokens from `first` on."""
        new = GeneratedSample(choice.sample.ids[first:], choice.sample.logprobs[first:], "", choice.sample.fingerprint)
        scores = None if choice.scores is None else choice.scores[first:]
        part = Choice(choice.index, choice.prompt, text, new, choice.finish_reason, scores=scores)
        upto = len(choice.sample.ids)
        delta: dict[str, Any] = {"content": text} if text else {}
        if choice.refusal:
            delta["refusal"] = choice.refusal
        if choice.calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(self._call_rows(choice))]
        row = self._choice_row(part, delta, text, key="delta", num_tokens=upto)
        head = self._head([choice], [row], stream=True)
        if self.chat or first:  # what was read is told once
            head.pop("prompt_token_ids", None)
            row.pop("prompt_token_ids", None)
        return head

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, object]:
        """Returns the last chunk, which counts the tokens of all others."""
        return {**self._head(choices, [], stream=True), "usage": _count_usage(choices)}

    def _head(self, choices: Sequence[Choice], rows: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        head = {
            "id": self.reply_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": choices[0].sample.fingerprint,
            "choices": rows,
        }
        return {**head, "prompt_token_ids": choices[0].prompt} if self.chat and self.with_ids and rows else head

    def _choice_row(
        self, choice: Choice, message: dict[str, Any], text: str, *, num_tokens: int, key: str = "message"
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"index": choice.index, **({key: message} if self.chat else {"text": text})}
        row["logprobs"] = (
            (self._chat_logprobs(choice) if self.chat else self._completion_logprobs(choice))
            if self.with_logprobs
            else None
        )
        row["finish_reason"] = choice.finish_reason
        if self.with_versions:  # of all tokens, also in the last chunk of a stream, and in no other
            row["weight_versions"] = _version_spans(choice, num_tokens) if choice.finish_reason else None
        if self.with_ids:
            row["token_ids"] = choice.sample.ids.tolist()
            if not self.chat:
                row["prompt_token_ids"] = choice.prompt
        return row

    def _message_fields(self, choice: Choice) -> dict[str, Any]:
        if choice.refusal:
            return {"content": None, "refusal": choice.refusal}
        if not choice.calls:
            return {"content": choice.text}
        return {"content": choice.text or None, "tool_calls": self._call_rows(choice)}

    def _call_rows(self, choice: Choice) -> list[dict[str, Any]]:
        """Returns calls with unique ids; their arguments in the order in which they were written."""
        return [
            {
                "id": f"call_{self.id}{choice.index:03d}{number:03d}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for number, call in enumerate(choice.calls)
        ]

    def _chat_logprobs(self, choice: Choice) -> dict[str, Any]:
        """Returns log-probabilities in the chat format."""
        rows = []
        for position, (index, value) in enumerate(
            zip(choice.sample.ids.tolist(), _logprob_values(choice), strict=True)
        ):
            top = [self._token_row(token, logprob) for token, logprob in _top_tokens(choice.scores, position)]
            rows.append({**self._token_row(index, value), "top_logprobs": top[: self.num_top]})
        return {"content": rows, "refusal": None}

    def _token_row(self, index: int, logprob: float) -> dict[str, Any]:
        """Returns a token in the chat format. A token that is part of a character has no bytes here."""
        text = self.decode_token(index)
        text_bytes = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": text_bytes}

    def _completion_logprobs(self, choice: Choice) -> dict[str, Any]:
        """Returns log-probabilities in the completion format."""
        ids, values = choice.sample.ids.tolist(), list[float | None](_logprob_values(choice))
        tops: list[dict[str, float] | None] = self._top_rows(ids, values, choice.scores)
        prompt_scores = choice.prompt_scores
        if prompt_scores is not None:
            prompt_values = [float(value) for value in prompt_scores.logprobs]
            tops = [None, *self._top_rows(choice.prompt[1:], prompt_values, prompt_scores), *tops]
            ids, values = [*choice.prompt, *ids], [None, *prompt_values, *values]
        token_texts = [self.decode_token(index) for index in ids]
        offsets = np.cumsum([0, *map(len, token_texts)])[:-1].tolist()
        return {
            "tokens": token_texts,
            "token_logprobs": values,
            "text_offset": offsets,
            "top_logprobs": tops if self.num_top else None,
        }

    def _top_rows(
        self, ids: Sequence[int], values: Sequence[float | None], scores: TokenScores | None
    ) -> list[dict[str, float] | None]:
        """Returns the likeliest tokens of every position by their text, and the token itself."""
        rows: list[dict[str, float] | None] = []
        for position, (index, value) in enumerate(zip(ids, values, strict=True)):
            row: dict[str, float] = {}
            for token, logprob in _top_tokens(scores, position)[: self.num_top]:
                row.setdefault(self.decode_token(token), logprob)
            if value is not None:
                row.setdefault(self.decode_token(index), value)
            rows.append(row)
        return rows


def _version_spans(choice: Choice, num_tokens: int) -> list[dict[str, Any]]:
    """Returns the version of the weights that generated the tokens: always one, since mixed replies are refused."""
    return [{"version": choice.sample.fingerprint, "start": 0, "end": num_tokens}]


def _logprob_values(choice: Choice) -> list[float]:
    """Returns log-probabilities as JSON numbers from which the same float32 is read back."""
    return [float(value) for value in (choice.sample if choice.scores is None else choice.scores).logprobs]


def _top_tokens(scores: TokenScores | None, position: int) -> list[tuple[int, float]]:
    """Returns the likeliest tokens of a position with their log-probabilities; none has probability 0."""
    if scores is None:
        return []
    pairs = zip(scores.top_ids[position].tolist(), scores.top_logprobs[position].tolist(), strict=True)
    return [(token, logprob) for token, logprob in pairs if logprob > -np.inf]


def _count_usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Counts prompt tokens, once for every prompt, and completion tokens."""
    prompt_tokens = sum({id(choice.prompt): len(choice.prompt) for choice in choices}.values())
    completion_tokens = sum(len(choice.sample.ids) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Returns the text up to the first stop, and whether there was one."""
    positions = [position for position in (text.find(stop) for stop in stops) if position >= 0]
    return (text[: min(positions)], True) if positions else (text, False)


def has_stop_after(text: str, stops: Sequence[str], since: int) -> bool:
    """Returns whether a stop occurs in the text and ends after its first `since` characters, which hold none."""
    return any(text.find(stop, max(0, since - len(stop) + 1)) >= 0 for stop in stops)


def count_unsendable(text: str, stops: Sequence[str]) -> int:
    """Returns the number of characters at the end of an unfinished text that may not be sent yet.

    They could become part of a stop, or start a character whose other tokens have not been generated.
    """
    partial_stops = [_partial_stop_length(text, stop) for stop in stops]
    broken = len(text) - len(text.rstrip("\ufffd"))
    return max([broken, *partial_stops])


def _partial_stop_length(text: str, stop: str) -> int:
    """Returns the number of characters at the end of the text that start an incomplete stop."""
    position = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while position >= 0:
        if stop.startswith(text[position:]):
            return len(text) - position
        position = text.find(stop[0], position + 1)
    return 0
