"""Replies of OpenAI-compatible endpoints, read strictly: text, and tokens only where they arrived complete.

Token ids come as vLLM gives them (`return_token_ids`): `prompt_token_ids` beside the choice (chat) or in it
(completions), `token_ids` in it, and as many log-probabilities. Text is never tokenized to make up for missing
ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import EndpointError, TokensMissing

__all__ = ["FINGERPRINT", "RECORDED_WORLD", "SESSION_HEADER", "Reply", "Tokens", "read_reply"]

SESSION_HEADER = "x-session-id"  # names an episode: routers use it to find the replica that holds its prefix
RECORDED_WORLD = "sessions"  # the world in the tasks of sessions that a server of ours recorded
FINGERPRINT = re.compile(r"evolvent-v(\d+)-[0-9a-f]+")  # how a server of ours tells which version it serves
_MAX_TOKEN_ID = 2**31
_BROKEN = ("abort", "error")  # how vLLM and SGLang end what they did not write to its end
_ROUNDING_TOLERANCE = 1e-4  # a log-probability may exceed 0 by what rounding does
_MIN_LOGPROB = -3e38  # what single precision can hold


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens that a model read and wrote.

    Args:
        prompt: `[P]` int32, all ids that it read.
        ids: `[T]` int32, the ids that it wrote; a stop token is the last of them.
        logprobs: `[T]` float32, their log-probabilities as the endpoint gives them.
    """

    prompt: NDArray[np.int32]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model behind an endpoint.

    Args:
        text: the reply's text.
        thought: the reasoning, where the endpoint returns it apart from the text.
        stop: "stop" (it ended) or "length" (it was cut).
        model, fingerprint: the writing model, as the endpoint reports it; "" where it does not.
        prompt_tokens, completion_tokens: as the endpoint counts them.
        tokens: token ids and log-probabilities, where they were requested.
    """

    text: str
    thought: str | None
    stop: Literal["stop", "length"]
    model: str
    fingerprint: str
    prompt_tokens: int
    completion_tokens: int
    tokens: Tokens | None = None

    @property
    def version(self) -> int:
        """Returns the policy version in the fingerprint of our own servers; 0 for other servers."""
        match = FINGERPRINT.fullmatch(self.fingerprint)
        return int(match[1]) if match else 0


def read_reply(row: object, *, chat: bool, tokens: bool, request_name: str) -> Reply:
    """Parses the first choice of a completion.

    Args:
        row: the parsed body. chat: of `/chat/completions`, else of `/completions`.
        tokens: token ids and log-probabilities are demanded.
        request_name: the answered request, for errors.
    Raises:
        EndpointError: a body that is not a completion, or one that a content filter or the endpoint itself broke
            off.
        TokensMissing: demanded ids or log-probabilities are missing, damaged, or not as many as each other.
    """
    choices = row.get("choices") if isinstance(row, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(row, Mapping) or not isinstance(choice, Mapping):
        raise EndpointError(
            f"{request_name}: the answer has no choice", value=ascii(row)[:200], expected="a completion"
        )
    message = choice.get("message") if chat else choice
    content = message.get("content" if chat else "text") if isinstance(message, Mapping) else None
    text, part_thoughts = _join_parts(content) if chat and isinstance(content, list) else (content, "")
    if not isinstance(message, Mapping) or not (isinstance(text, str) or (chat and content is None)):
        raise EndpointError(f"{request_name}: the choice has no text", value=ascii(choice)[:200], expected="a message")
    finish_reason = choice.get("finish_reason")
    if finish_reason == "content_filter":
        raise EndpointError(
            f"{request_name}: the endpoint's content filter ended the reply",
            value=ascii(text)[:200],
            hint="the reply cannot be scored",
        )
    if finish_reason in _BROKEN:
        raise EndpointError(
            f"{request_name}: the endpoint aborted the reply",
            value=ascii(finish_reason),
            hint="weights were loaded meanwhile, or another client aborted all requests",
        )
    usage = row.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    return Reply(
        _replace_surrogates(text or ""),
        _parse_reasoning(message) or _replace_surrogates(part_thoughts.strip()) or None,
        "length" if finish_reason == "length" else "stop",
        _parse_name(row, "model"),
        _parse_name(row, "system_fingerprint"),
        _parse_count(counts, "prompt_tokens"),
        _parse_count(counts, "completion_tokens"),
        _parse_tokens(row, choice, chat=chat, request_name=request_name) if tokens else None,
    )


def _replace_surrogates(text: str) -> str:
    """Replaces halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parse_name(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value[:200] if isinstance(value, str) else ""


def _parse_count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _join_parts(parts: Sequence[object]) -> tuple[str | None, str]:
    """Joins the parts of a content, as Mistral's reasoning models send it: its texts, and its thoughts.

    The texts are None where a part is of another kind: an image or audio is not a reply that can be read.

    >>> _join_parts([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "7"}])
    ('7', 'Hm.')
    """
    texts, thoughts = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") in ("thinking", "reasoning"):
            thought = part.get("thinking") or part.get("text") or part.get("reasoning") or ""
            is_nested = isinstance(thought, list)
            thoughts.append((_join_parts(thought)[0] or "") if is_nested else str(thought))
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            return None, ""
    return "".join(texts), "".join(thoughts)


def _parse_reasoning(message: Mapping[str, Any]) -> str | None:
    """Reads the reasoning under either name: `reasoning_content` (DeepSeek, SGLang, vLLM until 2025) or `reasoning`."""
    values = [message.get(key) for key in ("reasoning_content", "reasoning")]
    return next((_replace_surrogates(text.strip()) for text in values if isinstance(text, str) and text.strip()), None)


def _parse_tokens(row: Mapping[str, Any], choice: Mapping[str, Any], *, chat: bool, request_name: str) -> Tokens:
    prompt = choice.get("prompt_token_ids", row.get("prompt_token_ids"))
    logprobs_field = choice.get("logprobs")
    raw_logprobs: object = (
        logprobs_field.get("content" if chat else "token_logprobs") if isinstance(logprobs_field, Mapping) else None
    )
    if chat and isinstance(raw_logprobs, list):
        raw_logprobs = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in raw_logprobs]
    ids = _parse_ids(choice.get("token_ids"), "token_ids", request_name)
    values = _parse_logprobs(raw_logprobs, request_name)
    if len(ids) != len(values):
        raise _tokens_missing(
            f"{request_name}: ids and log-probabilities differ in length", f"{len(ids)} and {len(values)}"
        )
    return Tokens(_parse_ids(prompt, "prompt_token_ids", request_name), ids, values)


def _parse_ids(value: object, name: str, request_name: str) -> NDArray[np.int32]:
    if not isinstance(value, list) or not value:
        raise _tokens_missing(f"{request_name}: the reply has no {name}", ascii(value)[:80])
    if not all(type(token) is int and 0 <= token < _MAX_TOKEN_ID for token in value):
        raise _tokens_missing(f"{request_name}: {name} are not token ids", ascii(value)[:80])
    return np.array(value, np.int32)


def _parse_logprobs(value: object, request_name: str) -> NDArray[np.float32]:
    if not isinstance(value, Sequence) or not value:
        raise _tokens_missing(f"{request_name}: the reply has no log-probabilities", ascii(value)[:80])
    wrong = [
        entry for entry in value if type(entry) not in (int, float) or not _MIN_LOGPROB <= entry <= _ROUNDING_TOLERANCE
    ]
    if wrong:
        raise _tokens_missing(f"{request_name}: invalid log-probabilities", ascii(wrong[:4]))
    return np.minimum(np.array(value, np.float32), np.float32(0))


def _tokens_missing(message: str, value: str) -> TokensMissing:
    return TokensMissing(
        message,
        value=value,
        expected="token_ids, prompt_token_ids and a log-probability per generated token",
        hint="use an endpoint that returns token ids (vLLM, evolvent), or set tokens=False to collect text only",
    )
