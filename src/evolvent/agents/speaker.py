"""A policy in conversation with a person. Where it is in training, it speaks with the newest weights there are.

A conversation is a value: what was said, and the very tokens of every reply. Between two turns the speaker looks for
newer weights; what was said before stays as it was, whoever said it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evolvent.agents.history import History, Turn, Window
from evolvent.engine.asks import Ask, Engine, SampleAsk, Sampling, ScoreAsk
from evolvent.errors import ContextOverflow, EngineError, EvolventError, Incomplete, boundary
from evolvent.models.dialects import Dialect
from evolvent.models.snapshots import Snapshot, lease, newest_snapshot, run_state
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Conversation", "Exchange", "Fixed", "Following", "Piece", "Source", "Speaker", "Voice"]

_LOST = "\ufffd"  # how a decoder shows the beginning of a character whose rest comes with the next token


@dataclass(frozen=True, eq=False)
class Voice:
    """A policy that speaks: its name for people ("step 120"), and its step where it is a snapshot."""

    policy: Policy
    name: str
    step: int | None = None


class Source(Protocol):
    """Where voices come from."""

    def newer(self) -> Voice | None:
        """A newer voice than the last one that was given out; None: there is none."""
        ...

    def newest(self) -> str | None:
        """The name of the newest voice, without loading it; None: nobody can speak yet."""
        ...


@dataclass
class Fixed:
    """One policy for ever."""

    voice: Voice
    _given: bool = False

    def newer(self) -> Voice | None:
        """The policy, once."""
        given, self._given = self._given, True
        return None if given else self.voice

    def newest(self) -> str | None:
        """Its name."""
        return self.voice.name


@dataclass
class Following:
    """The newest snapshot of a run; when the run has ended with a model, that.

    Args:
        run: the folder of the run.
        device: where the model runs.
        context: most tokens of a conversation; None: what the model takes.
    """

    run: Path
    device: str = "cpu"
    context: int | None = 4096
    _last: Snapshot | Path | None = None

    def newer(self) -> Voice | None:
        """The newest voice, unless it was given out already.

        Raises:
            CheckpointError, SafetyError, EngineError: one that cannot be loaded. It is not tried again.
        """
        found = self._found()
        if found is None or found == self._last:
            return None
        self._last = found
        if isinstance(found, Path):
            return Voice(self._loaded(found), "final model")
        with lease(self.run) as snapshot:
            self._last = snapshot
            return Voice(self._loaded(snapshot.path), f"step {snapshot.step}", snapshot.step)

    def newest(self) -> str | None:
        """The name of what is newest."""
        found = self._found()
        return f"step {found.step}" if isinstance(found, Snapshot) else None if found is None else "final model"

    def _found(self) -> Snapshot | Path | None:
        final = self.run / "model"
        there = any((final / name).is_file() for name in ("config.json", "adapter_config.json"))
        if there and run_state(self.run) not in ("running", "interrupted", "failed"):
            return final
        return newest_snapshot(self.run)

    def _loaded(self, folder: Path) -> Policy:
        from evolvent.models.policy import load_policy

        with boundary(Incomplete, "a policy that cannot be loaded", folder=folder):
            policy = load_policy(folder, context=self.context)
            policy.model.to(self.device)
        return policy


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a reply, one token or a few, and the log-probability that the model itself gave it."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a person said and what was replied.

    Args:
        said, reply: the texts.
        pieces: the reply in pieces; their texts joined are the reply.
        turn: its tokens, for whoever goes on.
        voice: who replied. notes: what happened before: another voice, or trouble with one.
        cut: the reply ended at its limit. shortened: the beginning of the conversation did not fit any more.
        seconds: how long it took.
    """

    said: str
    reply: str
    pieces: tuple[Piece, ...]
    turn: Turn
    voice: str
    notes: tuple[str, ...]
    cut: bool
    shortened: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """Instructions, and what was said since."""

    system: str = ""
    exchanges: tuple[Exchange, ...] = ()

    def after(self, exchange: Exchange) -> Conversation:
        """The conversation with one more exchange."""
        return replace(self, exchanges=(*self.exchanges, exchange))


class Speaker:
    """Replies. One thread at a time may use it.

    Args:
        source: who speaks.
        sampling, max_tokens: how, and how long at most.
        seed: of all replies; the same conversation with the same weights has the same reply.
        history: what is done when a conversation is longer than the context.
    """

    def __init__(
        self,
        source: Source,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        seed: int = 0,
        history: History | None = None,
    ) -> None:
        self._source, self._sampling, self._longest = source, sampling or Sampling(), max_tokens
        self._seed, self._history = seed, history or Window(share=1.0)
        self._engine: Engine | None = None
        self.voice: Voice | None = None

    def newest(self) -> str | None:
        """The name of the newest voice there is, which speaks from the next reply on."""
        return self._source.newest()

    def refresh(self) -> tuple[str, ...]:
        """Take a newer voice where there is one; returns what a person should know of it: nothing if all is as it was.

        Raises:
            Incomplete: nobody can speak yet. CheckpointError and others: the first voice cannot be loaded. Trouble with
                a later one is a note: the one before goes on.
        """
        try:
            newer = self._source.newer()
            if newer is not None:
                self._take(newer)
                return (f"{newer.name} speaks",)
        except EvolventError as error:
            if self.voice is None:
                raise
            return (f"{self.voice.name} goes on, because a newer voice cannot be loaded: {error}",)
        if self.voice is None:
            raise Incomplete("there is no policy to talk to yet", hint="a training publishes snapshots while it runs")
        return ()

    def say(self, conversation: Conversation, text: str, *, stop: Callable[[], bool] = lambda: False) -> Exchange:
        """The reply to a text, by the newest voice; the conversation is left as it is.

        Args:
            stop: asked after every token; True gives the reply up.
        Raises:
            VocabularyMismatch: a word that the policy does not know. ContextOverflow: a text that does not fit.
            EngineError: the model's output is not finite, or the reply was given up. Incomplete: see `refresh`.
        """
        text = text.encode("utf-8", "replace").decode()  # a terminal may hand out half characters
        began, notes = monotonic(), self.refresh()
        if self.voice is None or self._engine is None:
            raise EngineError("a speaker without a voice", value=notes)
        policy = self.voice.policy
        ids, shortened = self._tokens(policy.dialect, conversation, text)
        seed = sample_seed(self._seed, len(conversation.exchanges), text)
        ask = SampleAsk(
            None,
            ids,
            min(self._longest, self._engine.context - len(ids)),
            seeds=(seed,),
            stop_ids=policy.dialect.stop_ids,
            sampling=self._sampling,
        )
        (found,) = self._answered(ask, stop)
        written = tuple(found.ids.tolist())
        scored = self._answered(ScoreAsk(None, [*ids, *written]), stop).logprobs[len(ids) :]
        reply = policy.dialect.text(written)
        cut = found.stop == "length"
        return Exchange(
            text,
            reply,
            _pieces(policy.dialect, written, scored, reply=reply),
            Turn(text, written, not cut),
            self.voice.name,
            notes,
            cut,
            shortened,
            monotonic() - began,
        )

    def _take(self, voice: Voice) -> None:
        from evolvent.engine.fitting import engine_for

        before, self._engine = self._engine, None
        try:
            self._engine = engine_for(voice.policy, slots=2, engine=before)
            self.voice = voice
        finally:
            if self._engine is None and self.voice is not None:  # the new one cannot be served: the old one can
                self._engine = engine_for(self.voice.policy, slots=2)

    def _tokens(self, dialect: Dialect, conversation: Conversation, text: str) -> tuple[list[int], bool]:
        """All tokens up to where the reply begins, and whether some of what was said had to be left out."""
        turns = [exchange.turn for exchange in conversation.exchanges]
        ids = dialect.open(conversation.system, turns[0].observation if turns else text)
        for turn, said in zip(turns, [*(later.observation for later in turns), text][1:], strict=True):
            ids = [*ids, *turn.action, *dialect.turn(said, stopped=turn.stopped)]
        context = self._engine.context if self._engine is not None else 0
        room = context - min(self._longest, context // 4)
        if len(ids) <= room or (not turns and len(ids) < context):
            return ids, False
        shorter = self._history(dialect, conversation.system, turns, text, room) if turns else None
        if shorter is None:
            raise ContextOverflow(
                "what was said does not fit the context",
                value=f"{len(ids)} tokens",
                expected=f"at most {room} of {context}",
                hint="say less, or begin anew",
            )
        return shorter, True

    def _answered(self, ask: Ask, stop: Callable[[], bool]) -> Any:
        engine = self._engine
        if engine is None:
            raise EngineError("a speaker without an engine", value=ask)
        ticket = engine.submit(ask)
        try:
            while True:
                for finished in engine.poll():
                    if finished.ticket == ticket:
                        if finished.error is not None:
                            raise finished.error
                        return finished.answer
                if stop():
                    raise EngineError("the reply was given up", value=self.voice.name if self.voice else None)
        finally:
            engine.cancel([ticket])


def _pieces(dialect: Dialect, ids: tuple[int, ...], logprobs: np.ndarray[Any, Any], *, reply: str) -> tuple[Piece, ...]:
    """The reply cut where its tokens end; tokens that make a character only together are one piece."""
    pieces, before, begin = [], 0, 0
    for end in range(1, len(ids) + 1):
        known, whole = dialect.text(ids[before:begin]), dialect.text(ids[before:end])
        if len(whole) > len(known) and whole.startswith(known) and not whole.endswith(_LOST):
            pieces.append(Piece(whole[len(known) :], float(np.sum(logprobs[begin:end], dtype=np.float64))))
            before, begin = begin, end
    if "".join(piece.text for piece in pieces) != reply:
        return (Piece(reply, float(np.sum(logprobs, dtype=np.float64))),)
    return tuple(pieces)
