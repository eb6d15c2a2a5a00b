"""The replies to one request in OpenAI's form, generated at once, or chunk by chunk into a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Constraint, SampleAsk
from evolvent.errors import ConfigError, Problem, WeightsChanged
from evolvent.models.dialects import Dialect, Lines
from evolvent.serve.openai.generator import GeneratedSample, Generator, TokenScores
from evolvent.serve.openai.reply import Choice, ReplyFormat, count_unsendable, cut_at_stop, has_stop_after
from evolvent.serve.openai.request import BaseCompletionRequest, SamplingSpec
from evolvent.serve.openai.tools import RenderedChat
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["AdjustedConstraint", "ReplyWriter", "adjust_tokens"]

T = TypeVar("T")
Event = JsonObject
_REPLACEMENT = "\ufffd"  # how a decoder shows the beginning of a character whose rest comes with the next token
_TOKENS_PER_CHUNK = 4  # tokens of a stream that are asked for at once, after the first, which somebody waits for


@dataclass(frozen=True)
class ReplyWriter:
    """Generates the replies to one request.

    Args:
        generator: generates the tokens.
        dialect: converts tokens to text.
        sampling_spec: how to sample.
        reply_format: format of the replies.
        on_choice: called with every finished choice.
        constraint: constraint of the replies; None: that of the tools, if any.
        echoed_prompts: texts of the prompts, where the replies begin with them.
        on_part: called with every unfinished choice of a stream after its newest part was sent.
        tools: parser of calls and constraint; None: there are no tools.
    """

    generator: Generator
    dialect: Dialect
    sampling_spec: SamplingSpec
    reply_format: ReplyFormat
    on_choice: Callable[[Choice], None] = lambda choice: None
    tools: RenderedChat | None = None
    constraint: Constraint | None = None
    echoed_prompts: Sequence[str] = ()
    on_part: Callable[[Choice], None] = lambda choice: None

    async def write_all(self, prompts: Sequence[list[int]]) -> Event:
        """Returns all samples of all prompts as one body, all by one version of the weights.

        Stop texts are searched for in the text that the client reads: token by token, as in a stream.

        Raises:
            WeightsChanged: the weights changed between two parts of the reply. Also the errors of `Generator.generate`.
        """
        spec = self.sampling_spec
        if spec.max_tokens == 0:
            return await self._write_prompts(prompts)
        if spec.stops:
            streamed = await _gather_all(self._make_jobs(prompts))
            _check_single_version(choice.sample.fingerprint for choice in streamed)
            await _gather_all([self._echo_prompt(choice) for choice in streamed])
            return self.reply_format.body(streamed)
        asks = [self._make_ask(prompt, spec.max_tokens, spec.seeds, constraint=self._constraint) for prompt in prompts]
        sample_groups = await _gather_all([self.generator.generate(ask) for ask in asks])
        _check_single_version(sample.fingerprint for samples in sample_groups for sample in samples)
        pairs = [(prompt, sample) for prompt, samples in zip(prompts, sample_groups, strict=True) for sample in samples]
        choices = []
        for index, (prompt, sample) in enumerate(pairs):
            finish_reason: Literal["stop", "length"] = "length" if sample.stop == "length" else "stop"
            choice = Choice(index, prompt, self._clean_text(self._decode_raw(sample.ids)), sample, finish_reason)
            self._finish_choice(choice)
            choices.append(choice)
        if self._is_scored:
            all_scores = await _gather_all(
                [self._score(choice.prompt, choice.sample.ids, self._constraint) for choice in choices]
            )
            for choice, scores in zip(choices, all_scores, strict=True):
                choice.scores = scores
        await _gather_all([self._echo_prompt(choice) for choice in choices])
        return self.reply_format.body(choices)

    async def _write_prompts(self, prompts: Sequence[list[int]]) -> Event:
        """Returns replies without tokens, which may echo their prompts."""
        sample = GeneratedSample(np.zeros(0, np.int32), np.zeros(0, np.float32), "length", self.generator.fingerprint)
        pairs = [prompt for prompt in prompts for _ in self.sampling_spec.seeds]
        choices = [Choice(index, prompt, "", sample, "length") for index, prompt in enumerate(pairs)]
        await _gather_all([self._echo_prompt(choice) for choice in choices])
        return self.reply_format.body(choices)

    async def _echo_prompt(self, choice: Choice) -> None:
        """Puts the prompt before a reply, with its scores, where it is to be echoed."""
        if not self.echoed_prompts:
            return
        choice.prompt_text = self.echoed_prompts[choice.index // len(self.sampling_spec.seeds)]
        if self.reply_format.with_logprobs:
            num_top = self.reply_format.num_top
            choice.prompt_scores = await self.generator.score(choice.prompt, first=1, num_top=num_top)

    @property
    def _is_scored(self) -> bool:
        """Returns whether tokens are scored again: for their alternatives, and where the likeliest token was taken.

        Beside token ids, log-probabilities are those of the distribution that was sampled from: 0 at temperature 0.
        """
        chosen_format = self.reply_format
        is_greedy = self.sampling_spec.sampling.temperature == 0
        return chosen_format.with_logprobs and not chosen_format.with_ids and (chosen_format.num_top > 0 or is_greedy)

    async def _score(self, prefix: Sequence[int], ids: NDArray[np.int32], constraint: Constraint | None) -> TokenScores:
        """Scores tokens after a prefix; `constraint` is its state before them."""
        return await self.generator.score(
            [*prefix, *ids.tolist()],
            first=len(prefix),
            num_top=self.reply_format.num_top,
            sampling=self.sampling_spec.sampling,
            constraint=constraint,
        )

    async def stream_events(self, prompts: Sequence[list[int]], *, usage: bool) -> AsyncIterator[Event]:
        """Yields the chunks of a stream: the choices are generated separately, all into this stream.

        Args:
            usage: end with a chunk that counts tokens.
        Raises:
            WeightsChanged: the weights changed within a choice.
            The errors of `Generator.generate`, when they happen; the other choices end too.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        writing_task = asyncio.ensure_future(_gather_all(self._make_jobs(prompts, emit=queue.put_nowait)))
        writing_task.add_done_callback(lambda done: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            choices = await writing_task
        finally:
            writing_task.cancel()
        if usage:
            yield self.reply_format.usage_chunk(choices)

    def _make_jobs(
        self, prompts: Sequence[list[int]], *, emit: Callable[[Event], None] | None = None
    ) -> list[Awaitable[Choice]]:
        """Returns one awaitable for every sample of every prompt; `emit` sends the parts of a stream."""
        pairs = [(prompt, seed) for prompt in prompts for seed in self.sampling_spec.seeds]
        return [self._write_streamed(index, *pair, emit=emit) for index, pair in enumerate(pairs)]

    async def _write_streamed(
        self, index: int, prompt: list[int], seed: int, *, emit: Callable[[Event], None] | None
    ) -> Choice:
        """Generates a choice a few tokens at a time, and emits every part. The tokens equal those of a single
        generation.
        """
        spec, chosen_format = self.sampling_spec, self.reply_format
        ids, logprobs, num_sent_chars, num_sent_tokens, first_fingerprint = (
            np.zeros(0, np.int32),
            np.zeros(0, np.float32),
            0,
            0,
            "",
        )
        constraint, growing = self._constraint, _IncrementalText(self._decode_raw)
        score_parts: list[TokenScores] = []
        while True:
            max_new_tokens = min(
                1 if spec.stops or not num_sent_tokens else _TOKENS_PER_CHUNK, spec.max_tokens - len(ids)
            )
            (new_sample,) = await self.generator.generate(
                self._make_ask([*prompt, *ids.tolist()], max_new_tokens, (seed,), constraint=constraint),
                is_continued=bool(num_sent_tokens),
            )
            _check_single_version([first_fingerprint or new_sample.fingerprint, new_sample.fingerprint])
            first_fingerprint = new_sample.fingerprint
            ids, logprobs = np.concatenate([ids, new_sample.ids]), np.concatenate([logprobs, new_sample.logprobs])
            if self._is_scored:
                prefix = [*prompt, *ids[: len(ids) - len(new_sample.ids)].tolist()]
                score_parts.append(await self._score(prefix, new_sample.ids, constraint))
            since = growing.num_settled
            raw, cut = growing.add(new_sample.ids), False
            constraint = _advance_constraint(constraint, new_sample)
            full = len(prompt) + len(ids) >= self.generator.context or len(ids) >= spec.max_tokens
            if full or new_sample.stop == "stop" or has_stop_after(raw, spec.stops, since):
                raw, cut = cut_at_stop(self._decode_raw(ids), spec.stops)
            choice = Choice(
                index,
                prompt,
                self._clean_text(raw),
                GeneratedSample(ids, logprobs, new_sample.stop, new_sample.fingerprint),
                scores=TokenScores.concatenate(score_parts) if score_parts else None,
            )
            if cut or new_sample.stop == "stop":
                choice.finish_reason = "stop"
            elif full:
                choice.finish_reason = "length"
            if emit is not None and chosen_format.chat and not num_sent_tokens:
                emit(chosen_format.first_chunk(choice))
            if choice.finish_reason:
                self._finish_choice(choice)
                if emit is not None:
                    emit(chosen_format.chunk(choice, choice.text[num_sent_chars:], first=num_sent_tokens))
                return choice
            end = max(num_sent_chars, self._count_settled(raw))
            if emit is not None:
                emit(chosen_format.chunk(choice, choice.text[num_sent_chars:end], first=num_sent_tokens))
                self.on_part(choice)
            num_sent_chars, num_sent_tokens = end, len(ids)

    def _finish_choice(self, choice: Choice) -> None:
        """Parses the calls of a finished choice, and reports it. Truncated text stays text: a call could have
        continued. The beginning of a required call is no text: it is told as a cut call.
        """
        if self.tools is not None and choice.finish_reason == "length" and self.tools.offer.is_required:
            num_tokens = len(choice.sample.ids)
            choice.text, choice.refusal = "", f"the tool call was cut after {num_tokens} tokens; raise max_tokens"
        if self.tools is not None and choice.finish_reason == "stop":
            choice.text, calls = self.tools.parse_reply(choice.text)
            choice.calls = calls if self.tools.offer.allows_several else calls[:1]
            choice.drops_calls = len(choice.calls) < len(calls)
            if choice.calls:
                choice.finish_reason = "tool_calls"
        self.on_choice(choice)

    def _count_settled(self, raw: str) -> int:
        """Returns the number of characters of the reply that cannot change; the others are held back."""
        sendable_text = self._clean_text(raw[: len(raw) - count_unsendable(raw, self.sampling_spec.stops)])
        return len(sendable_text) if self.tools is None else self.tools.count_settled(sendable_text)

    def _decode_raw(self, ids: NDArray[np.int32]) -> str:
        """Decodes the text with the white space at its ends, in which stops are searched for too."""
        if not isinstance(self.dialect, Lines):
            return self.dialect.text(ids)
        text_ids = [int(token) for token in ids if int(token) not in self.dialect.stop_ids]
        return str(self.generator.policy.tokenizer.decode(text_ids, skip_special_tokens=False))

    def _clean_text(self, raw: str) -> str:
        """Returns the text for the client: the raw text, or in a chat with an action the text as the dialect reads
        it.
        """
        return raw.strip() if self.reply_format.chat and isinstance(self.dialect, Lines) else raw

    @property
    def _constraint(self) -> Constraint | None:
        if self.constraint is not None:
            return self.constraint
        return None if self.tools is None else self.tools.constraint

    def _make_ask(
        self, prompt: list[int], max_new_tokens: int, seeds: tuple[int, ...], *, constraint: Constraint | None
    ) -> SampleAsk:
        stops, sampling = self.dialect.stop_ids, self.sampling_spec.sampling
        return SampleAsk(
            None,
            prompt,
            max_new_tokens,
            stops,
            self.dialect.stop_strings if self.reply_format.chat else (),
            sampling=sampling,
            seeds=seeds,
            constraint=constraint,
        )


class _IncrementalText:
    """The growing text of a reply: only its newest tokens are decoded, after those of the previous chunk.

    Tokens that start a character, or change the text before them, are decoded again with the next chunk.
    """

    def __init__(self, decode: Callable[[NDArray[np.int32]], str]) -> None:
        self._decode, self._ids, self._known = decode, np.zeros(0, np.int32), 0
        self._text = ""

    @property
    def num_settled(self) -> int:
        """Returns the number of characters that cannot change."""
        return len(self._text)

    def add(self, new: NDArray[np.int32]) -> str:
        """Returns the text with more tokens."""
        ids = self._ids = np.concatenate([self._ids, new])
        known_text, full_text = self._decode(ids[: self._known]), self._decode(ids)
        text = self._text + full_text[len(known_text) :]
        if (
            len(full_text) > len(known_text)
            and full_text.startswith(known_text)
            and not full_text.endswith(_REPLACEMENT)
        ):
            self._ids, self._known, self._text = ids[self._known :], len(ids) - self._known, text
        return text


def _advance_constraint(constraint: Constraint | None, new: GeneratedSample) -> Constraint | None:
    """Returns the constraint after a sample's tokens."""
    if constraint is None or new.stop == "stop":
        return constraint
    advanced = constraint.copy()
    for token in new.ids:
        advanced.advance(int(token))
    return advanced


def _check_single_version(writers: Iterable[str]) -> None:
    """Refuses a reply that two versions of the weights generated: the client has to repeat the request."""
    names = sorted(set(writers))
    if len(names) > 1:
        raise WeightsChanged(
            "the weights changed while the reply was generated",
            value=" and ".join(names),
            hint="send the request again",
        )


async def _gather_all(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """Returns all values; the first failure, or a cancellation, ends the others."""
    tasks = [asyncio.ensure_future(work) for work in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class AdjustedConstraint:
    """Adds numbers to the logits of tokens, beside another constraint or none.

    The bias of a token is `logit_bias - presence_penalty * (count > 0) - frequency_penalty * count`, where `count` is
    the number of times that the reply holds the token already.

    Args:
        logit_bias: [V] float32. The fixed part of the bias.
        frequency_penalty, presence_penalty: as in OpenAI's API.
        inner: the other constraint.
    """

    def __init__(
        self,
        logit_bias: NDArray[np.float32],
        *,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        inner: Constraint | None = None,
    ) -> None:
        self._fixed, self._frequency, self._presence = logit_bias, frequency_penalty, presence_penalty
        self._inner = inner
        self._counts: dict[int, int] = {}

    def copy(self) -> AdjustedConstraint:
        """Returns an independent copy of the same state."""
        copied = AdjustedConstraint(
            self._fixed,
            frequency_penalty=self._frequency,
            presence_penalty=self._presence,
            inner=None if self._inner is None else self._inner.copy(),
        )
        copied._counts = dict(self._counts)
        return copied

    def allowed(self) -> NDArray[np.bool_]:
        """Returns the mask of the tokens that may follow, `[V]`: without another constraint, all."""
        return np.ones(len(self._fixed), np.bool_) if self._inner is None else self._inner.allowed()

    def advance(self, token: int) -> None:
        """Counts a token of the reply."""
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._inner is not None:
            self._inner.advance(token)

    def logit_bias(self) -> NDArray[np.float32]:
        """Returns what is added to the logits of the next token, `[V]` float32."""
        bias = self._fixed.copy()
        for token, count in self._counts.items():
            bias[token] -= self._presence + self._frequency * count
        return bias

    @property
    def fault(self) -> str:
        """Returns the reason why no token may follow, where that is a failure."""
        return "" if self._inner is None else self._inner.fault


def adjust_tokens(request: BaseCompletionRequest, policy: Policy, constraint: Constraint | None) -> Constraint | None:
    """Returns the constraint with the biases and penalties of a request, where it has any.

    Raises:
        ConfigError: a bias of a token that the policy does not have.
    """
    biases = {int(token): bias for token, bias in request.logit_bias.items() if bias}
    if not (biases or request.frequency_penalty or request.presence_penalty):
        return constraint
    size = len(policy.tokenizer)
    unknown = sorted(token for token in biases if token >= size)
    if unknown:
        raise ConfigError([Problem("logit_bias", f"got token {unknown[0]}, expected 0 to {size - 1}")])
    fixed = np.zeros(size, np.float32)
    for token, bias in biases.items():
        fixed[token] = bias
    return AdjustedConstraint(
        fixed,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        inner=constraint,
    )
