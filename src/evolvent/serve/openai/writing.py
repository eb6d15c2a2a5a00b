"""The replies to one request of the OpenAI form as they are written: at once, or piece by piece into a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Constraint, SampleAsk
from evolvent.errors import WeightsChanged
from evolvent.models.dialects import Dialect, Lines
from evolvent.serve.openai.generator import Generator, Written
from evolvent.serve.openai.reply import Choice, Form, cut_at, held_back, stops_after
from evolvent.serve.openai.request import Wanted
from evolvent.serve.openai.tools import Shown

__all__ = ["Writing"]

T = TypeVar("T")
Event = dict[str, Any]
_LOST = "\ufffd"  # how a decoder shows the beginning of a character whose rest comes with the next token
_PIECE = 4  # tokens of a stream that are asked for at once, after the first, which somebody waits for


@dataclass(frozen=True)
class Writing:
    """Writes what one request wants.

    Args:
        generator: who writes. dialect: how its tokens become text.
        wanted: how to sample. form: how the replies look.
        note: told of every choice when it is whole.
        tools: how calls are read from it, and what it is held to; None: there are no tools.
    """

    generator: Generator
    dialect: Dialect
    wanted: Wanted
    form: Form
    note: Callable[[Choice], None] = lambda choice: None
    tools: Shown | None = None

    async def whole(self, prompts: Sequence[list[int]]) -> Event:
        """All samples of all prompts as one body, all by one version of the weights.

        Where texts end a reply, it is looked for them in what the client will read: token by token, as in a stream.

        Raises:
            WeightsChanged: they were replaced between two parts of the reply. What `Generator.write` raises.
        """
        wanted = self.wanted
        if wanted.stops:
            pieced = await _together(self._works(prompts, tell=lambda event: None))
            _check_one(choice.written.writer for choice in pieced)
            return self.form.body(pieced)
        asks = [self._ask(prompt, wanted.max_tokens, wanted.seeds, held=self._held) for prompt in prompts]
        several = await _together([self.generator.write(ask) for ask in asks])
        _check_one(one.writer for written in several for one in written)
        pairs = [(prompt, one) for prompt, written in zip(prompts, several, strict=True) for one in written]
        choices = []
        for index, (prompt, one) in enumerate(pairs):
            ended: Literal["stop", "length"] = "length" if one.stop == "length" else "stop"
            choice = Choice(index, prompt, self._clean(self._raw(one.ids)), one, ended)
            self._end(choice)
            choices.append(choice)
        return self.form.body(choices)

    async def events(self, prompts: Sequence[list[int]], *, usage: bool) -> AsyncIterator[Event]:
        """The chunks of a stream: every choice is written on its own, all of them into this one.

        Args:
            usage: end with a chunk that counts tokens.
        Raises:
            WeightsChanged: they were replaced in the middle of a choice.
            What `Generator.write` raises, at the moment it happens; the other choices end too.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        writing = asyncio.ensure_future(_together(self._works(prompts, tell=queue.put_nowait)))
        writing.add_done_callback(lambda done: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            choices = await writing
        finally:
            writing.cancel()
        if usage:
            yield self.form.counted(choices)

    def _works(self, prompts: Sequence[list[int]], *, tell: Callable[[Event], None]) -> list[Awaitable[Choice]]:
        """One work for every sample of every prompt."""
        pairs = [(prompt, seed) for prompt in prompts for seed in self.wanted.seeds]
        return [self._piecewise(index, *pair, tell=tell) for index, pair in enumerate(pairs)]

    async def _piecewise(self, index: int, prompt: list[int], seed: int, *, tell: Callable[[Event], None]) -> Choice:
        """Write a choice a few tokens at a time, and tell every part. The same tokens come as when written at once."""
        wanted, form = self.wanted, self.form
        ids, logprobs, sent, told, writer = np.zeros(0, np.int32), np.zeros(0, np.float32), 0, 0, ""
        held, growing = self._held, _Growing(self._raw)
        while True:
            most = min(1 if wanted.stops or not told else _PIECE, wanted.max_tokens - len(ids))
            (new,) = await self.generator.write(self._ask([*prompt, *ids.tolist()], most, (seed,), held=held))
            _check_one([writer or new.writer, new.writer])
            writer = new.writer
            ids, logprobs = np.concatenate([ids, new.ids]), np.concatenate([logprobs, new.logprobs])
            since = growing.settled
            raw, cut = growing.add(new.ids), False
            held = _advanced(held, new)
            full = len(prompt) + len(ids) >= self.generator.context or len(ids) >= wanted.max_tokens
            if full or new.stop == "stop" or stops_after(raw, wanted.stops, since):
                raw, cut = cut_at(self._raw(ids), wanted.stops)
            choice = Choice(index, prompt, self._clean(raw), Written(ids, logprobs, new.stop, new.writer))
            if cut or new.stop == "stop":
                choice.ended = "stop"
            elif full:
                choice.ended = "length"
            if form.chat and not told:
                tell(form.begun(choice))
            if choice.ended:
                self._end(choice)
                tell(form.chunk(choice, choice.text[sent:], first=told))
                return choice
            upto = max(sent, self._settled(raw))
            tell(form.chunk(choice, choice.text[sent:upto], first=told))
            sent, told = upto, len(ids)

    def _end(self, choice: Choice) -> None:
        """Read the calls of a choice that is whole, and tell of it. What was cut is text: a call could have gone on."""
        if self.tools is not None and choice.ended == "stop":
            choice.text, choice.calls = self.tools.read(choice.text)
            if choice.calls:
                choice.ended = "tool_calls"
        self.note(choice)

    def _settled(self, raw: str) -> int:
        """How many characters of the reply so far are told whatever comes; the others are held back."""
        told = self._clean(raw[: len(raw) - held_back(raw, self.wanted.stops)])
        return len(told) if self.tools is None else self.tools.settled(told)

    def _raw(self, ids: NDArray[np.int32]) -> str:
        """The text as it was written, with the white space at its ends, in which stops are looked for too."""
        if not isinstance(self.dialect, Lines):
            return self.dialect.text(ids)
        kept = [int(token) for token in ids if int(token) not in self.dialect.stop_ids]
        return str(self.generator.policy.tokenizer.decode(kept, skip_special_tokens=False))

    def _clean(self, raw: str) -> str:
        """A text as it is given: what was written, and in a chat, where it is an action, as the dialect reads that."""
        return raw.strip() if self.form.chat and isinstance(self.dialect, Lines) else raw

    @property
    def _held(self) -> Constraint | None:
        return None if self.tools is None else self.tools.constraint

    def _ask(self, prompt: list[int], most: int, seeds: tuple[int, ...], *, held: Constraint | None) -> SampleAsk:
        stops, sampling = self.dialect.stop_ids, self.wanted.sampling
        return SampleAsk(None, prompt, most, stops, sampling=sampling, seeds=seeds, constraint=held)


class _Growing:
    """The text of a reply that gets longer: only its newest tokens are decoded, behind those of the piece before.

    Tokens that are the beginning of a character, or change what stands before them, are decoded again with the next.
    """

    def __init__(self, decode: Callable[[NDArray[np.int32]], str]) -> None:
        self._decode, self._ids, self._known = decode, np.zeros(0, np.int32), 0
        self._text = ""

    @property
    def settled(self) -> int:
        """How many characters of the text stay as they are."""
        return len(self._text)

    def add(self, new: NDArray[np.int32]) -> str:
        """The text with more tokens."""
        ids = self._ids = np.concatenate([self._ids, new])
        known, whole = self._decode(ids[: self._known]), self._decode(ids)
        text = self._text + whole[len(known) :]
        if len(whole) > len(known) and whole.startswith(known) and not whole.endswith(_LOST):
            self._ids, self._known, self._text = ids[self._known :], len(ids) - self._known, text
        return text


def _advanced(held: Constraint | None, new: Written) -> Constraint | None:
    """The constraint after what was written."""
    if held is None or new.stop == "stop":
        return held
    later = held.copy()
    for token in new.ids:
        later.advance(int(token))
    return later


def _check_one(writers: Iterable[str]) -> None:
    """Refuse a reply of which two versions of the weights wrote parts: the client asks again."""
    names = sorted(set(writers))
    if len(names) > 1:
        raise WeightsChanged(
            "the weights were replaced while the reply was written", value=" and ".join(names), hint="ask again"
        )


async def _together(works: Sequence[Awaitable[T]]) -> list[T]:
    """All values; the first failure, or being cancelled, ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
