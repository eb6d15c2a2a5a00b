"""Writers, which answer a prompt: a policy of ours over an engine, a model behind an endpoint, or a script.

Every prompt is a separate text, so every generation is a new root; the common tokens of prompts are found again
in the engine's trie.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evolvent.agents.prompts import Prompt
from evolvent.engine.asks import GREEDY, Answer, Ask, BlockingCall, SampleAsk, Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, ContextOverflow
from evolvent.files import append_line
from evolvent.messages import Message
from evolvent.models.policy import Policy
from evolvent.store.log import parse_rows
from evolvent.trajectory import Generation, JsonObject, canonical_json

__all__ = [
    "EpisodeWriter",
    "KeptWriter",
    "ScriptedWriter",
    "WriteRequest",
    "Writer",
    "WriterReply",
    "Writing",
    "writer_for",
]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1  # seeds of turns as the language agent draws them


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One request to a writer.

    Args:
        prompt: the text to read. stop: texts that end the answer. max_tokens: its maximum length.
        allow_shorter: a shorter answer is accepted where the prompt leaves less space than that.
    """

    prompt: Prompt
    stop: tuple[str, ...]
    max_tokens: int
    allow_shorter: bool = False


@dataclass(frozen=True, slots=True)
class WriterReply:
    """One answer: its text, its tokens where they are known, and marks for the step's record."""

    text: str
    generation: Generation | None = None
    marks: JsonObject = field(default_factory=dict)


Writing = Generator[Sequence[Ask | BlockingCall], Sequence[Answer], WriterReply]


class EpisodeWriter(Protocol):
    """A writer in one episode."""

    def write(self, request: WriteRequest) -> Writing:
        """Returns the answer. Raises ContextOverflow where the prompt leaves no space for an answer."""
        ...


@runtime_checkable
class Writer(Protocol):
    """A model that answers prompts."""

    def begin(self, seed: int) -> EpisodeWriter:
        """Returns a writer for one episode; the same seed writes alike."""
        ...


def writer_for(policy: Policy | Endpoint | Writer, sampling: Sampling = GREEDY) -> Writer:
    """Returns the writer of a policy or an endpoint; a writer is returned unchanged.

    Raises:
        ConfigError: none of these.
    """
    if isinstance(policy, Policy):
        return _PolicyWriter(policy, sampling)
    if isinstance(policy, Endpoint):
        return _EndpointWriter(policy, sampling)
    if not isinstance(policy, Writer):
        raise ConfigError("unsupported writer", value=type(policy).__name__, expected="a policy or an endpoint")
    return policy


@dataclass(frozen=True)
class ScriptedWriter:
    """A function answers: for tests, rules, and external models.

    Args:
        answer: prompt to text. It must not remember episodes; many are played at once.
    """

    answer: Callable[[Prompt], str]

    def begin(self, seed: int) -> _ScriptedEpisodeWriter:
        return _ScriptedEpisodeWriter(self.answer)


@dataclass(frozen=True)
class _ScriptedEpisodeWriter:
    answer: Callable[[Prompt], str]

    def write(self, request: WriteRequest) -> Writing:
        return WriterReply(self.answer(request.prompt))
        yield ()  # a generator that never asks


class KeptWriter:
    """A writer whose answers are kept in a file: what was answered once is not asked again, also by a later run.

    An answer belongs to the prompt, to what is asked for, to the seed of its episode and to its number in it. So a run
    that was interrupted ends as if it had not been.

    Args:
        writer: answers what is not in the file.
        path: a file of JSON lines; it is made where there is none.
        settings: everything else that an answer depends on, such as the name of the model.
    Raises:
        CorruptRecord: the file has a broken line before its last.
    """

    def __init__(self, writer: Writer, path: Path, settings: JsonObject) -> None:
        self.writer, self.path, self.settings = writer, path, settings
        self.num_asked = self.num_found = 0
        self._texts: dict[str, str] = dict(parse_rows(path, lambda row: (row["key"], str(row["text"]))))

    def begin(self, seed: int) -> _KeptEpisodeWriter:
        return _KeptEpisodeWriter(self, seed)

    def find(self, key: str) -> str | None:
        """Returns a kept answer, or None."""
        text = self._texts.get(key)
        self.num_found += text is not None
        return text

    def keep(self, key: str, text: str) -> None:
        """Writes an answer to the file."""
        self.num_asked += 1
        self._texts[key] = text
        append_line(self.path, {"key": key, "text": text})


class _KeptEpisodeWriter:
    def __init__(self, writer: KeptWriter, seed: int) -> None:
        self._writer, self._seed, self._count = writer, seed, 0

    def write(self, request: WriteRequest) -> Writing:
        seed = (self._seed + self._count * _STRIDE) & _MASK
        self._count += 1
        prompt = request.prompt
        parts = [dict(self._writer.settings), prompt.system, prompt.user, list(request.stop), request.max_tokens, seed]
        key = hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]
        text = self._writer.find(key)
        if text is not None:
            return WriterReply(text)
        reply = yield from self._writer.writer.begin(seed).write(request)
        self._writer.keep(key, reply.text)
        return reply


@dataclass(frozen=True)
class _PolicyWriter:
    policy: Policy
    sampling: Sampling

    def begin(self, seed: int) -> _PolicyEpisodeWriter:
        return _PolicyEpisodeWriter(self, seed)


class _PolicyEpisodeWriter:
    def __init__(self, writer: _PolicyWriter, seed: int) -> None:
        self._policy, self._sampling, self._seed, self._count = writer.policy, writer.sampling, seed, 0

    def write(self, request: WriteRequest) -> Writing:
        policy, dialect = self._policy, self._policy.dialect
        tokens = dialect.open(request.prompt.system, request.prompt.user)
        space = policy.context - len(tokens)
        if space < (1 if request.allow_shorter else request.max_tokens):
            raise ContextOverflow(
                "the prompt leaves no room for an answer",
                value=f"{len(tokens)} tokens",
                expected=f"at most {policy.context - request.max_tokens} tokens",
            )
        seed = (self._seed + self._count * _STRIDE) & _MASK
        self._count += 1
        ask = SampleAsk(
            None,
            tokens,
            min(request.max_tokens, space),
            stop_ids=dialect.stop_ids,
            stop_strings=(*dialect.stop_strings, *request.stop),
            sampling=self._sampling,
            seeds=(seed,),
        )
        ((continuation,),) = yield (ask,)
        text = dialect.read_reply(continuation.ids.tolist()).text
        token_arrays = _root_arrays(np.array(tokens, np.int32), continuation.ids, continuation.logprobs)
        model_logprobs = continuation.pad_model_logprobs(len(tokens))
        generation = Generation(
            *token_arrays, None, (), True, policy.version, continuation.stop, model_logprobs=model_logprobs
        )
        return WriterReply(text, generation)


def _root_arrays(read_ids: Any, ids: Any, logprobs: Any) -> tuple[Any, Any, Any]:
    """Returns ids, the sampled mask, and log-probabilities of a generation that is a new root."""
    sampled = np.arange(len(read_ids) + len(ids)) >= len(read_ids)
    return (
        np.concatenate([read_ids, ids]).astype(np.int32),
        sampled,
        np.concatenate([np.zeros(len(read_ids), np.float32), logprobs]).astype(np.float32),
    )


@dataclass(frozen=True)
class _EndpointWriter:
    endpoint: Endpoint
    sampling: Sampling

    def begin(self, seed: int) -> _EndpointEpisodeWriter:
        return _EndpointEpisodeWriter(self, seed)


class _EndpointEpisodeWriter:
    def __init__(self, writer: _EndpointWriter, seed: int) -> None:
        self._endpoint, self._sampling, self._seed, self._count = writer.endpoint, writer.sampling, seed, 0
        self._session = secrets.token_hex(12)  # only a name: two runs of one seed share nothing at the endpoint

    def write(self, request: WriteRequest) -> Writing:
        system_messages = [Message("system", request.prompt.system)] if request.prompt.system else []
        seed = (self._seed + self._count * _STRIDE) & _MASK
        self._count += 1
        call = partial(
            self._endpoint.chat,
            [*system_messages, Message("user", request.prompt.user)],
            sampling=self._sampling,
            max_tokens=request.max_tokens,
            seed=seed,
            stop=request.stop,
            session=self._session,
        )
        (reply,) = yield (BlockingCall(call, self._endpoint.call_timeout_s),)
        tokens = reply.tokens
        if tokens is None:
            marks = {"prompt": reply.prompt_tokens, "completion": reply.completion_tokens}
            return WriterReply(reply.text, None, marks)
        token_arrays = _root_arrays(tokens.prompt, tokens.ids, tokens.logprobs)
        return WriterReply(reply.text, Generation(*token_arrays, None, (), True, reply.version, reply.stop))
