"""Who writes the answer to a prompt: a policy of ours over an engine, a model behind an endpoint, or a script.

Every prompt is a text of its own, so every generation is a new root; what prompts have in common is found again in the
engine's trie.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evolvent.agents.prompts import Prompt
from evolvent.engine.asks import GREEDY, Answer, Ask, SampleAsk, Sampling, Wait
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, ContextOverflow
from evolvent.messages import Message
from evolvent.models.policy import Policy
from evolvent.trajectory import Generation

__all__ = ["Asked", "Pen", "Scripted", "Writer", "Writing", "Written", "writer_for"]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1  # seeds of turns as the language agent draws them


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Args:
        prompt: what is read. stop: texts that end the answer. max_tokens: its longest.
        tight: a shorter answer is taken where the prompt leaves less room than that.
    """

    prompt: Prompt
    stop: tuple[str, ...]
    max_tokens: int
    tight: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """One answer: its text, its tokens where they are known, and marks for the step's record."""

    text: str
    generation: Generation | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)


Writing = Generator[Sequence[Ask | Wait], Sequence[Answer], Written]


class Pen(Protocol):
    """A writer in one episode."""

    def write(self, asked: Asked) -> Writing:
        """The answer. Raises ContextOverflow where the prompt leaves no room for one."""
        ...


@runtime_checkable
class Writer(Protocol):
    """Anything that answers prompts."""

    def begin(self, seed: int) -> Pen:
        """A pen for one episode; the same seed writes alike."""
        ...


def writer_for(policy: Policy | Endpoint | Writer, sampling: Sampling = GREEDY) -> Writer:
    """The writer of a policy or an endpoint; a writer is handed back.

    Raises:
        ConfigError: none of these.
    """
    if isinstance(policy, Policy):
        return _PolicyWriter(policy, sampling)
    if isinstance(policy, Endpoint):
        return _EndpointWriter(policy, sampling)
    if not isinstance(policy, Writer):
        raise ConfigError("nobody who could write", value=type(policy).__name__, expected="a policy or an endpoint")
    return policy


@dataclass(frozen=True)
class Scripted:
    """A function answers: for tests, rules, and models that are none of ours.

    Args:
        answer: prompt to text. It must not remember episodes; many are played at once.
    """

    answer: Callable[[Prompt], str]

    def begin(self, seed: int) -> _ScriptedPen:
        return _ScriptedPen(self.answer)


@dataclass(frozen=True)
class _ScriptedPen:
    answer: Callable[[Prompt], str]

    def write(self, asked: Asked) -> Writing:
        return Written(self.answer(asked.prompt))
        yield ()  # a generator that never asks


@dataclass(frozen=True)
class _PolicyWriter:
    policy: Policy
    sampling: Sampling

    def begin(self, seed: int) -> _PolicyPen:
        return _PolicyPen(self, seed)


class _PolicyPen:
    def __init__(self, writer: _PolicyWriter, seed: int) -> None:
        self._policy, self._sampling, self._seed, self._count = writer.policy, writer.sampling, seed, 0

    def write(self, asked: Asked) -> Writing:
        policy, dialect = self._policy, self._policy.dialect
        tokens = dialect.open(asked.prompt.system, asked.prompt.user)
        room = policy.context - len(tokens)
        if room < (1 if asked.tight else asked.max_tokens):
            raise ContextOverflow(
                "a prompt leaves no room for an answer",
                value=f"{len(tokens)} tokens",
                expected=f"at most {policy.context - asked.max_tokens}",
            )
        seed = (self._seed + self._count * _STRIDE) & _MASK
        self._count += 1
        ask = SampleAsk(
            None,
            tokens,
            min(asked.max_tokens, room),
            stop_ids=dialect.stop_ids,
            stop_strings=asked.stop,
            sampling=self._sampling,
            seeds=(seed,),
        )
        ((found,),) = yield (ask,)
        text = dialect.text(found.ids.tolist())
        made = _rooted(np.array(tokens, np.int32), found.ids, found.logprobs)
        return Written(text, Generation(*made, None, (), True, policy.version, found.stop))


def _rooted(read: Any, ids: Any, logprobs: Any) -> tuple[Any, Any, Any]:
    """Ids, which of them were sampled, and log-probabilities of a generation that is a new root."""
    sampled = np.arange(len(read) + len(ids)) >= len(read)
    return (
        np.concatenate([read, ids]).astype(np.int32),
        sampled,
        np.concatenate([np.zeros(len(read), np.float32), logprobs]).astype(np.float32),
    )


@dataclass(frozen=True)
class _EndpointWriter:
    endpoint: Endpoint
    sampling: Sampling

    def begin(self, seed: int) -> _EndpointPen:
        return _EndpointPen(self, seed)


class _EndpointPen:
    def __init__(self, writer: _EndpointWriter, seed: int) -> None:
        self._endpoint, self._sampling, self._seed, self._count = writer.endpoint, writer.sampling, seed, 0
        self._session = secrets.token_hex(12)  # only a name: two runs of one seed share nothing at the endpoint

    def write(self, asked: Asked) -> Writing:
        said = [Message("system", asked.prompt.system)] if asked.prompt.system else []
        seed = (self._seed + self._count * _STRIDE) & _MASK
        self._count += 1
        call = partial(
            self._endpoint.chat,
            [*said, Message("user", asked.prompt.user)],
            sampling=self._sampling,
            max_tokens=asked.max_tokens,
            seed=seed,
            stop=asked.stop,
            session=self._session,
        )
        (reply,) = yield (Wait(call, self._endpoint.patience_s),)
        tokens = reply.tokens
        if tokens is None:
            marks = {"prompt": reply.prompt_tokens, "completion": reply.completion_tokens}
            return Written(reply.text, None, marks)
        made = _rooted(tokens.prompt, tokens.ids, tokens.logprobs)
        return Written(reply.text, Generation(*made, None, (), True, reply.version, reply.stop))
