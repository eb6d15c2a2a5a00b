"""Rows of other people's data sets as parts: raw text, conversations, and pairs of a better and a worse reply.

    {"text": ...}
    {"messages": [{"role", "content"}, ...]}   or   {"prompt": ..., "completion": ...}
    {"prompt": ..., "chosen": ..., "rejected": ...}   or   {"chosen": [messages], "rejected": [messages]}

A prompt or reply is text or a list of messages. Conversations are tokenised by the policy's dialect, turn by turn as an
agent would read them; what lies between two replies is one observation. A row that is not of its form is refused by its
place and reason, and counted; the others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.errors import BatchMismatch, ConfigError, EvolventError, SampleInvalid, VocabularyMismatch
from evolvent.learn.token_sequences import Parts, Render, flatten
from evolvent.learn.windows import Intake, TooLong, blocks, fitted, text_parts
from evolvent.messages import Message
from evolvent.models.dialects import Dialect
from evolvent.models.policy import Policy
from evolvent.trajectory import Task, Trajectory

__all__ = ["Reading", "Row", "conversation", "document_encoder", "read_rows", "read_trajectories"]

Row = tuple[str, Any]  # where it stands ("train.jsonl:7"), and what it is
_BAD = (SampleInvalid, VocabularyMismatch, BatchMismatch)
_ROLES_BEFORE = ("system", "developer")


class Reading(Config):
    """How rows become sequences."""

    kind: Literal["text", "messages", "pairs"] = Field(
        default="messages", description="raw text, conversations, or pairs of a better and a worse reply"
    )
    context: int | None = Field(default=None, ge=2, description="longest sequence in tokens; none: the policy's")
    too_long: TooLong = Field(
        default="refuse", description="longer ones are refused, truncated at their end, or split into windows"
    )
    overlap: int = Field(default=0, ge=0, description="tokens of the window before that a window begins with")
    join: bool = Field(default=False, description="text: join documents and cut them into blocks of the context")

    @model_validator(mode="after")
    def _fits(self) -> Reading:
        if self.kind == "pairs" and self.too_long == "split":
            raise ValueError("a pair cannot be split: refuse or truncate it")
        if self.join and self.kind != "text":
            raise ValueError("only documents of raw text are joined")
        if self.overlap and not (self.join or self.too_long == "split"):
            raise ValueError("an overlap is of windows: too_long must be split, or join true")
        if self.context is not None and self.overlap >= self.context:
            raise ValueError("the overlap must be shorter than the context")
        return self

    def tokens(self, policy: Policy) -> int:
        """The longest sequence for a policy.

        Raises:
            ConfigError: longer than what the policy takes, or not longer than the overlap.
        """
        context = self.context or policy.context
        if not self.overlap < context <= policy.context:
            raise ConfigError(
                "a context that does not fit the policy",
                value=context,
                expected=f"{self.overlap + 1} to {policy.context} tokens",
            )
        return context


def read_rows(
    rows: Iterable[Row], policy: Policy, reading: Reading, *, intake: Intake | None = None
) -> Iterator[Parts]:
    """The sequences of rows, one after the other, in constant memory; of a pair the chosen one, then the rejected one.

    Args:
        rows: (where, row), as the readers of `learn.sources` give them.
        intake: counts, while the result is consumed.
    Raises:
        ConfigError: a reading that does not fit the policy.
    """
    context, tally = reading.tokens(policy), Intake() if intake is None else intake
    if reading.kind == "text":
        encode = document_encoder(policy.tokenizer)
        if reading.join:
            yield from _counted(_joined(rows, encode, context, reading=reading, tally=tally), tally)
            return

        def make(where: str, row: Any) -> list[Parts]:
            parts = text_parts(where, encode(_text(row)))
            return fitted(parts, context, too_long=reading.too_long, overlap=reading.overlap, intake=tally)

    elif reading.kind == "messages":

        def make(where: str, row: Any) -> list[Parts]:
            parts = conversation(where, _messages(row), policy.dialect)
            return fitted(parts, context, too_long=reading.too_long, overlap=reading.overlap, intake=tally)

    else:

        def make(where: str, row: Any) -> list[Parts]:
            return _pair(where, row, policy.dialect, context=context, too_long=reading.too_long, tally=tally)

    yield from _counted(_each(rows, make, tally), tally)


def read_trajectories(
    trajectories: Iterable[Trajectory],
    policy: Policy,
    reading: Reading,
    *,
    instructions: Callable[[Task], str],
    weight: Callable[[Trajectory], float] | None = None,
    render: Render | None = None,
    then: Callable[[Trajectory, Parts], Parts] | None = None,
    intake: Intake | None = None,
) -> Iterator[Parts]:
    """The sequences of trajectories, flattened one at a time (see `learn.parts.flatten`), in constant memory.

    Args:
        trajectories: a store's, say. reading: its context and what becomes of longer sequences; kind and join are not
            read.
        then: what is made of each sequence before it is fitted: `with_returns` or `outcome_readout` of
            `learn.preferences`, say. An episode for which it raises SampleInvalid is refused and counted.
    Raises:
        ConfigError: a reading that does not fit the policy.
    """
    context, tally = reading.tokens(policy), Intake() if intake is None else intake

    def make(where: str, trajectory: Any) -> list[Parts]:
        flat = flatten(
            [trajectory],
            policy.dialect,
            instructions=instructions,
            weight=weight,
            render=render,
            context=np.iinfo(np.int64).max,
        )
        if not any(parts.feed for parts in flat.parts):
            raise SampleInvalid("an episode with nothing to learn", value=f"{len(trajectory.steps)} steps")
        sequences = [parts if then is None else then(trajectory, parts) for parts in flat.parts if parts.feed]
        made = [
            fitted(parts, context, too_long=reading.too_long, overlap=reading.overlap, intake=tally)
            for parts in sequences
        ]
        return [parts for pieces in made for parts in pieces]

    yield from _counted(_each(((t.id, t) for t in trajectories), make, tally), tally)


def _each(rows: Iterable[Row], make: Callable[[str, Any], list[Parts]], tally: Intake) -> Iterator[Parts]:
    for where, row in rows:
        tally.rows += 1
        try:
            made = make(where, row)
        except _BAD as error:
            tally.refuse(where, error)
            continue
        yield from made


def _counted(parts: Iterable[Parts], tally: Intake) -> Iterator[Parts]:
    for sequence in parts:
        tally.parts += 1
        yield sequence


# ------------------------------------------------------------------ raw text


def document_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text to tokens: the tokenizer's begin token where it has the habit, the text, the end-of-text token.

    Control tokens spelled out in the text stay letters.

    Raises:
        ConfigError: a tokenizer without end-of-text token. The function: VocabularyMismatch, a word that it does not
            know; SampleInvalid, empty text.
    """
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    if end is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token to put between documents",
            value=type(tokenizer).__name__,
            hint="set its eos_token",
        )
    head = [int(begin)] if begin is not None and tokenizer.encode("")[:1] == [begin] else []
    strange = tokenizer.unk_token_id

    def encode(text: str) -> list[int]:
        _check_text(text)
        ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        if not ids or not text.strip():
            raise SampleInvalid("a document without text", value=repr(text[:40]))
        if strange is not None and strange in ids:
            raise VocabularyMismatch(
                "a word that the policy's vocabulary does not have",
                value=text[:80],
                hint="use a model with an open vocabulary",
            )
        return [*head, *ids, int(end)]

    return encode


def _check_text(text: str) -> None:
    """Refuse half surrogates: JSON can hold them, UTF-8 and tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SampleInvalid(
            "text with half a character", value=repr(text[error.start : error.end]), expected="text that UTF-8 can hold"
        ) from error


def _text(row: Any) -> str:
    text = row.get("text") if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        raise _wrong(row, '{"text": "..."}')
    return text


def _joined(
    rows: Iterable[Row], encode: Callable[[str], list[int]], context: int, *, reading: Reading, tally: Intake
) -> Iterator[Parts]:
    def documents() -> Iterator[list[int]]:
        for where, row in rows:
            tally.rows += 1
            try:
                yield encode(_text(row))
            except _BAD as error:
                tally.refuse(where, error)

    return blocks(documents(), context, overlap=reading.overlap)


# ------------------------------------------------------------------ conversations


def conversation(name: str, messages: Sequence[Message], dialect: Dialect, *, learned_from: int = 0) -> Parts:
    """A conversation as tokens: the replies of the assistant are learned, with weight 1.

    System messages at the beginning are the instructions; other messages between two replies are one observation, and
    those after the last one are left out. A reply's own `"weight"` counts; an empty reply has none.

    Args:
        learned_from: replies among so many first messages are context.
    Raises:
        SampleInvalid: no reply to learn, two replies with nothing between them, or calls of tools, for which dialects
            have no text. VocabularyMismatch: a word that the dialect does not know.
    """
    first = next((at for at, message in enumerate(messages) if message.role not in _ROLES_BEFORE), len(messages))
    instructions = "\n\n".join(message.text for message in messages[:first])
    ids: list[int] = []
    pieces: list[tuple[int, int, float]] = []  # (tokens read, tokens written, weight) of each reply
    said: list[str] = []
    for message in messages:
        _check_text(message.text)
    for number, message in enumerate(messages[first:], first):
        if message.role != "assistant":
            said.append(message.text)
            continue
        if message.calls:
            raise SampleInvalid("a reply that calls tools", value=message.calls[0].name, expected="text")
        if pieces and not said:
            raise SampleInvalid(f"message {number} is a reply right after a reply", value=message.text[:80])
        seen = "\n\n".join(said)
        read = dialect.turn(seen, stopped=True) if pieces else dialect.open(instructions, seen)
        written = dialect.action(message.text)
        ids += [*read, *written]
        pieces.append((len(read), len(written), _weight(message) if number >= learned_from else 0.0))
        said = []
    if not any(weight for _, _, weight in pieces):
        raise SampleInvalid("a conversation without a reply to learn", value=f"{len(messages)} messages")
    return _spoken(name, ids, pieces)


def _spoken(name: str, ids: Sequence[int], pieces: Sequence[tuple[int, int, float]]) -> Parts:
    sizes = [size for read, new, _ in pieces for size in (read, new)]
    written = np.repeat(np.tile([False, True], len(pieces)), sizes)
    step = np.repeat(np.arange(len(pieces), dtype=np.int32), [read + new for read, new, _ in pieces])
    weight = np.repeat(np.asarray([w for _, _, w in pieces], np.float32), [read + new for read, new, _ in pieces])
    weight = weight * written
    weight[:1] = 0.0
    none = np.zeros(len(ids), np.bool_)
    return Parts(
        name,
        np.asarray(ids, np.int32),
        written,
        none,
        none.astype(np.float32),
        step,
        np.where(written, step, np.int32(-1)),
        weight,
    )


def _weight(message: Message) -> float:
    weight = message.extra.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise SampleInvalid("a weight of a reply that is no number", value=weight, expected="a finite number")
    return float(weight) if message.text.strip() else 0.0


def _wrong(row: Any, expected: str) -> EvolventError:
    keys = sorted(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    return SampleInvalid("a row of another form", value=keys, expected=expected)


def _said(value: Any, role: str) -> list[Message]:
    """A prompt or reply: text, or messages."""
    if isinstance(value, str):
        return [Message(role, value)]
    if not isinstance(value, list) or not value:
        raise SampleInvalid(f"a part of a row that is neither text nor messages ({role})", value=value)
    return [Message.of_openai(message) for message in value]


def _messages(row: Any) -> list[Message]:
    if isinstance(row, Mapping) and isinstance(row.get("messages"), list):
        return [Message.of_openai(message) for message in row["messages"]]
    if isinstance(row, Mapping) and "prompt" in row and "completion" in row:
        return [*_said(row["prompt"], "user"), *_said(row["completion"], "assistant")]
    raise _wrong(row, '{"messages": [...]} or {"prompt", "completion"}')


# ------------------------------------------------------------------ pairs


def _sides(row: Any) -> tuple[list[Message], list[Message], list[Message]]:
    """(prompt, chosen, rejected); where no prompt is given it is what both sides begin with."""
    if not isinstance(row, Mapping) or "chosen" not in row or "rejected" not in row:
        raise _wrong(row, '{"prompt", "chosen", "rejected"}')
    chosen, rejected = (_said(row[side], "assistant") for side in ("chosen", "rejected"))
    if row.get("prompt") is not None:
        return _said(row["prompt"], "user"), chosen, rejected
    if isinstance(row["chosen"], str) or isinstance(row["rejected"], str):
        raise SampleInvalid("a pair of texts without a prompt", value=sorted(map(str, row)), expected='"prompt" too')
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], chosen[same:], rejected[same:]


def _pair(where: str, row: Any, dialect: Dialect, *, context: int, too_long: TooLong, tally: Intake) -> list[Parts]:
    prompt, *sides = _sides(row)
    if sides[0] == sides[1]:
        raise SampleInvalid("a pair whose sides are equal", value=sides[0][0].text[:80] if sides[0] else "no reply")
    made = [
        conversation(f"{where}/{name}", [*prompt, *side], dialect, learned_from=len(prompt))
        for name, side in zip(("chosen", "rejected"), sides, strict=True)
    ]
    long = any(len(parts) > context for parts in made)
    fits = [parts for side in made for parts in fitted(side, context, too_long=too_long)]
    tally.truncated += long
    return fits
