"""A policy in conversation with a person. While the policy is in training, it replies with the newest weights.

A conversation is a value: the texts and the exact tokens of every reply. Between two turns the chat looks for
newer weights; earlier turns stay as they were, whichever weights wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evolvent.agents.history import History, Turn, Window
from evolvent.engine.asks import Ask, Engine, SampleAsk, Sampling, ScoreAsk
from evolvent.errors import ContextOverflow, EngineError, EvolventError, Incomplete, boundary
from evolvent.models.dialects import Chat, Dialect
from evolvent.models.placement import Placement
from evolvent.models.snapshots import Snapshot, lease, newest_snapshot, read_run_state
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "Conversation",
    "Exchange",
    "FixedSource",
    "NamedPolicy",
    "PolicyChat",
    "PolicySource",
    "ReplyPiece",
    "SnapshotSource",
]

_REPLACEMENT = "\ufffd"  # how a decoder shows the beginning of a character whose rest comes with the next token


@dataclass(frozen=True, eq=False)
class NamedPolicy:
    """A policy with its name for people ("step 120"), and its step where it is a snapshot."""

    policy: Policy
    name: str
    step: int | None = None


class PolicySource(Protocol):
    """A source of policies for a conversation."""

    def newer(self) -> NamedPolicy | None:
        """Returns a newer policy than the last returned one; None: there is none."""
        ...

    def newest(self) -> str | None:
        """Returns the name of the newest policy, without loading it; None: there is none yet."""
        ...


@dataclass
class FixedSource:
    """A source with one fixed policy."""

    named_policy: NamedPolicy
    _was_returned: bool = False

    def newer(self) -> NamedPolicy | None:
        """Returns the policy, once."""
        was_returned, self._was_returned = self._was_returned, True
        return None if was_returned else self.named_policy

    def newest(self) -> str | None:
        """Returns the policy's name."""
        return self.named_policy.name


@dataclass
class SnapshotSource:
    """The newest snapshot of a run; when the run has ended with a model, that model.

    Args:
        run: the folder of the run.
        placement: where and how the model runs.
    """

    run: Path
    placement: Placement = field(default_factory=Placement)
    _last: Snapshot | Path | None = None

    def newer(self) -> NamedPolicy | None:
        """Returns the newest policy, unless it was returned already.

        Raises:
            CheckpointError, SafetyError, EngineError: a policy that cannot be loaded. It is not tried again.
        """
        newest = self._find_newest()
        if newest is None or newest == self._last:
            return None
        self._last = newest
        if isinstance(newest, Path):
            return NamedPolicy(self._load(newest), "final model")
        with lease(self.run) as snapshot:
            self._last = snapshot
            return NamedPolicy(self._load(snapshot.path), f"step {snapshot.step}", snapshot.step)

    def newest(self) -> str | None:
        """Returns the name of the newest policy."""
        newest = self._find_newest()
        return f"step {newest.step}" if isinstance(newest, Snapshot) else None if newest is None else "final model"

    def _find_newest(self) -> Snapshot | Path | None:
        final = self.run / "model"
        has_model = any((final / name).is_file() for name in ("config.json", "adapter_config.json"))
        if has_model and read_run_state(self.run) not in ("running", "interrupted", "failed"):
            return final
        return newest_snapshot(self.run)

    def _load(self, folder: Path) -> Policy:
        from evolvent.models.policy import load_policy

        with boundary(Incomplete, "a policy that cannot be loaded", folder=folder):
            placement = self.placement
            return load_policy(folder, context=placement.context, device=placement.device, dtype=placement.dtype)


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A piece of a reply, one token or a few, and the log-probability that the model itself gave it."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """A person's message and the reply.

    Args:
        message, reply: the texts.
        pieces: the reply in pieces; their texts joined are the reply.
        turn: its tokens, for the continuation of the conversation.
        policy_name: the replying policy. notes: events before the reply: a newer policy, or an error while loading
            it.
        is_cut: the reply ended at its limit. is_shortened: the beginning of the conversation no longer fit.
        seconds: how long it took.
    """

    message: str
    reply: str
    pieces: tuple[ReplyPiece, ...]
    turn: Turn
    policy_name: str
    notes: tuple[str, ...]
    is_cut: bool
    is_shortened: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """Instructions, and the exchanges since."""

    system: str = ""
    exchanges: tuple[Exchange, ...] = ()

    def after(self, exchange: Exchange) -> Conversation:
        """Returns the conversation with one more exchange."""
        return replace(self, exchanges=(*self.exchanges, exchange))


class PolicyChat:
    """Replies to a person. One thread at a time may use it.

    Args:
        source: the source of policies.
        sampling, max_tokens: the distribution and the length limit of a reply.
        seed: of all replies; the same conversation with the same weights has the same reply.
        history: the policy for conversations that are longer than the context.
    """

    def __init__(
        self,
        source: PolicySource,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        seed: int = 0,
        history: History | None = None,
    ) -> None:
        self._source, self._sampling, self._longest = source, sampling or Sampling(), max_tokens
        self._seed, self._history = seed, history or Window(share=1.0)
        self._engine: Engine | None = None
        self.voice: NamedPolicy | None = None

    def newest(self) -> str | None:
        """Returns the name of the newest policy, which replies from the next turn on."""
        return self._source.newest()

    def refresh(self) -> tuple[str, ...]:
        """Takes a newer policy where there is one, and returns notes for the person; no notes if nothing changed.

        Raises:
            Incomplete: there is no policy yet. CheckpointError and others: the first policy cannot be loaded. An error
                with a later policy is a note: the previous policy stays.
        """
        try:
            newer = self._source.newer()
            if newer is not None:
                self._use_policy(newer)
                return (f"{newer.name} speaks",)
        except EvolventError as error:
            if self.voice is None:
                raise
            return (f"{self.voice.name} goes on, because a newer voice cannot be loaded: {error}",)
        if self.voice is None:
            raise Incomplete(
                "no policy has been published yet", hint="wait until the training job publishes its first snapshot"
            )
        return ()

    def reply(self, conversation: Conversation, text: str, *, stop: Callable[[], bool] = lambda: False) -> Exchange:
        """Returns the exchange of a text and the newest policy's reply; the conversation is left unchanged.

        Args:
            stop: called after every token; True cancels the reply.
        Raises:
            VocabularyMismatch: a word that the policy does not know. ContextOverflow: a text that does not fit.
            EngineError: the model's output is not finite, or the reply was canceled. Incomplete: see `refresh`.
        """
        text = text.encode("utf-8", "replace").decode()  # a terminal may hand out half characters
        began, notes = monotonic(), self.refresh()
        if self.voice is None or self._engine is None:
            raise EngineError("the chat agent has no logger", value=notes)
        policy = self.voice.policy
        ids, shortened = self._prompt_tokens(policy.dialect, conversation, text)
        seed = sample_seed(self._seed, len(conversation.exchanges), text)
        ask = SampleAsk(
            None,
            ids,
            min(self._longest, self._engine.context - len(ids)),
            seeds=(seed,),
            stop_ids=policy.dialect.stop_ids,
            stop_strings=policy.dialect.stop_strings,
            sampling=self._sampling,
        )
        (continuation,) = self._ask_and_wait(ask, stop)
        written = tuple(continuation.ids.tolist())
        logprobs = self._ask_and_wait(ScoreAsk(None, [*ids, *written]), stop).logprobs[len(ids) :]
        reply_text = policy.dialect.text(written)
        cut = continuation.stop == "length"
        return Exchange(
            text,
            reply_text,
            _split_reply(policy.dialect, written, logprobs, reply=reply_text),
            Turn(text, written, not cut),
            self.voice.name,
            notes,
            cut,
            shortened,
            monotonic() - began,
        )

    def _use_policy(self, named_policy: NamedPolicy) -> None:
        from evolvent.engine.fitting import engine_for

        previous, self._engine = self._engine, None
        try:
            self._engine = engine_for(named_policy.policy, slots=2, engine=previous)
            self.voice = named_policy
        finally:
            if self._engine is None and self.voice is not None:  # the new one cannot be served: the old one can
                self._engine = engine_for(self.voice.policy, slots=2)

    def _prompt_tokens(self, dialect: Dialect, conversation: Conversation, text: str) -> tuple[list[int], bool]:
        """Returns all tokens up to the beginning of the reply, and whether earlier turns had to be left out."""
        turns = [exchange.turn for exchange in conversation.exchanges]
        if isinstance(dialect, Chat) and dialect.renders_past:
            past = [(turn.observation, turn.action) for turn in turns]
            ids = dialect.rendered_prompt(conversation.system, past, text)
        else:
            ids = self._continued_tokens(dialect, conversation.system, turns, text)
        context = self._engine.context if self._engine is not None else 0
        max_length = context - min(self._longest, context // 4)
        if len(ids) <= max_length or (not turns and len(ids) < context):
            return ids, False
        shortened = self._history(dialect, conversation.system, turns, text, max_length) if turns else None
        if shortened is None:
            raise ContextOverflow(
                "the conversation does not fit the context",
                value=f"{len(ids)} tokens",
                expected=f"at most {max_length} of {context} tokens",
                hint="shorten the message, or start a new conversation",
            )
        return shortened, True

    @staticmethod
    def _continued_tokens(dialect: Dialect, system: str, turns: Sequence[Turn], text: str) -> list[int]:
        """Returns the tokens of a conversation whose replies stay the tokens that were sampled."""
        ids = dialect.open(system, turns[0].observation if turns else text)
        for turn, observation in zip(turns, [*(later.observation for later in turns), text][1:], strict=True):
            ids = [*ids, *turn.action, *dialect.turn(observation, stopped=turn.stopped)]
        return ids

    def _ask_and_wait(self, ask: Ask, stop: Callable[[], bool]) -> Any:
        engine = self._engine
        if engine is None:
            raise EngineError("the chat agent has no engine", value=ask)
        ticket = engine.submit(ask)
        try:
            while True:
                for finished in engine.poll():
                    if finished.ticket == ticket:
                        if finished.error is not None:
                            raise finished.error
                        return finished.answer
                if stop():
                    raise EngineError("the reply was cancelled", value=self.voice.name if self.voice else None)
        finally:
            engine.cancel([ticket])


def _split_reply(
    dialect: Dialect, ids: tuple[int, ...], logprobs: np.ndarray[Any, Any], *, reply: str
) -> tuple[ReplyPiece, ...]:
    """Splits the reply where its tokens end; tokens that only together make a character are one piece."""
    pieces, before, begin = [], 0, 0
    for end in range(1, len(ids) + 1):
        known_text, full_text = dialect.text(ids[before:begin]), dialect.text(ids[before:end])
        if (
            len(full_text) > len(known_text)
            and full_text.startswith(known_text)
            and not full_text.endswith(_REPLACEMENT)
        ):
            pieces.append(
                ReplyPiece(full_text[len(known_text) :], float(np.sum(logprobs[begin:end], dtype=np.float64)))
            )
            before, begin = begin, end
    if "".join(piece.text for piece in pieces) != reply:
        return (ReplyPiece(reply, float(np.sum(logprobs, dtype=np.float64))),)
    return tuple(pieces)
