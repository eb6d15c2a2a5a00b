"""Replies of OpenAI-compatible endpoints, read strictly: text, and tokens only where they came whole.

Token ids come as vLLM gives them (`return_token_ids`): `prompt_token_ids` beside the choice (chat) or in it
(completions), `token_ids` in it, and as many log-probabilities. Text is never tokenised to make up for missing ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import EndpointError, TokensMissing

__all__ = ["FINGERPRINT", "SESSION_HEADER", "Reply", "Tokens", "read_reply"]

SESSION_HEADER = "x-session-id"  # names an episode: routers use it to find the replica that holds its prefix
FINGERPRINT = re.compile(r"evolvent-v(\d+)-[0-9a-f]+")  # how a server of ours tells which version it serves
_LARGEST = 2**31
_BROKEN = ("abort", "error")  # how vLLM and SGLang end what they did not write to its end
_SURE = 1e-4  # a log-probability may exceed 0 by what rounding does
_LEAST = -3e38  # what single precision can hold


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What a model read and wrote, token by token.

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
        text: what it says.
        thought: its reasoning, where the endpoint hands that out apart from the text.
        stop: "stop" (it ended) or "length" (it was cut).
        model, fingerprint: who wrote it, as the endpoint tells; "" where it does not.
        prompt_tokens, completion_tokens: as the endpoint counts them.
        tokens: token ids and log-probabilities, where they were asked for.
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
        """The policy version that a server of ours tells in its fingerprint; 0 for others."""
        found = FINGERPRINT.fullmatch(self.fingerprint)
        return int(found[1]) if found else 0


def read_reply(row: object, *, chat: bool, tokens: bool, where: str) -> Reply:
    """The first choice of a completion.

    Args:
        row: the parsed body. chat: of `/chat/completions`, else of `/completions`.
        tokens: token ids and log-probabilities are demanded.
        where: which request it answers, for errors.
    Raises:
        EndpointError: a body that is no completion, or one that a content filter or the endpoint itself broke off.
        TokensMissing: demanded ids or log-probabilities are missing, damaged, or not as many as each other.
    """
    choices = row.get("choices") if isinstance(row, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(row, Mapping) or not isinstance(choice, Mapping):
        raise EndpointError(f"{where}: an answer without a choice", value=ascii(row)[:200], expected="a completion")
    said = choice.get("message") if chat else choice
    text = said.get("content" if chat else "text") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not (isinstance(text, str) or (chat and text is None)):
        raise EndpointError(f"{where}: a choice without a text", value=ascii(choice)[:200], expected="a message")
    ended = choice.get("finish_reason")
    if ended == "content_filter":
        raise EndpointError(
            f"{where}: the endpoint's filter ended the reply",
            value=ascii(text)[:200],
            hint="nothing was decided, so nothing can be scored",
        )
    if ended in _BROKEN:
        raise EndpointError(
            f"{where}: the endpoint broke the reply off",
            value=ascii(ended),
            hint="weights were taken meanwhile, or somebody aborted all requests",
        )
    usage = row.get("usage")
    counted = usage if isinstance(usage, Mapping) else {}
    return Reply(
        _sound(text or ""),
        _thought(said),
        "length" if ended == "length" else "stop",
        _name(row, "model"),
        _name(row, "system_fingerprint"),
        _count(counted, "prompt_tokens"),
        _count(counted, "completion_tokens"),
        _tokens(row, choice, chat=chat, where=where) if tokens else None,
    )


def _sound(text: str) -> str:
    """The text with what no file can hold (halves of surrogate pairs) replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _name(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value[:200] if isinstance(value, str) else ""


def _count(usage: Mapping[str, Any], key: str) -> int:
    value = usage.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _thought(message: Mapping[str, Any]) -> str | None:
    """Reasoning goes by two names: `reasoning_content` (DeepSeek, SGLang, vLLM until 2025) and `reasoning`."""
    found = [message.get(key) for key in ("reasoning_content", "reasoning")]
    return next((_sound(text.strip()) for text in found if isinstance(text, str) and text.strip()), None)


def _tokens(row: Mapping[str, Any], choice: Mapping[str, Any], *, chat: bool, where: str) -> Tokens:
    prompt = choice.get("prompt_token_ids", row.get("prompt_token_ids"))
    told = choice.get("logprobs")
    held: object = told.get("content" if chat else "token_logprobs") if isinstance(told, Mapping) else None
    if chat and isinstance(held, list):
        held = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in held]
    ids = _ids(choice.get("token_ids"), "token_ids", where)
    values = _logprobs(held, where)
    if len(ids) != len(values):
        raise _missing(f"{where}: ids and log-probabilities differ in length", f"{len(ids)} and {len(values)}")
    return Tokens(_ids(prompt, "prompt_token_ids", where), ids, values)


def _ids(value: object, name: str, where: str) -> NDArray[np.int32]:
    if not isinstance(value, list) or not value:
        raise _missing(f"{where}: no {name}", ascii(value)[:80])
    if not all(type(token) is int and 0 <= token < _LARGEST for token in value):
        raise _missing(f"{where}: {name} that are no token ids", ascii(value)[:80])
    return np.array(value, np.int32)


def _logprobs(value: object, where: str) -> NDArray[np.float32]:
    if not isinstance(value, Sequence) or not value:
        raise _missing(f"{where}: no log-probabilities of the tokens", ascii(value)[:80])
    wrong = [one for one in value if type(one) not in (int, float) or not _LEAST <= one <= _SURE]
    if wrong:
        raise _missing(f"{where}: log-probabilities that are none", ascii(wrong[:4]))
    return np.minimum(np.array(value, np.float32), np.float32(0))


def _missing(what: str, value: str) -> TokensMissing:
    return TokensMissing(
        what,
        value=value,
        expected="token_ids, prompt_token_ids and a log-probability for each token written",
        hint="use an endpoint that returns them (vLLM, evolvent), or collect text only with tokens=False",
    )
