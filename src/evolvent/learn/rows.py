"""Rows of common data sets as token sequences: raw text, conversations, and pairs of a better and a worse reply.

The forms of rows are those of `data.forms`. Conversations are tokenized by the policy's dialect, turn by turn as an
agent would read them; everything between two replies is one observation. Of a pair the chosen side can also be learned
as a conversation. A row of another form is refused by its location and reason, and counted; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.data.forms import Conversation, parse_conversation, parse_preference
from evolvent.errors import BatchMismatch, ConfigError, SampleInvalid, VocabularyMismatch
from evolvent.learn.token_sequences import Render, TokenSequence, flatten
from evolvent.learn.windows import Intake, Overlong, build_blocks, fit_to_context, text_sequence
from evolvent.messages import Message, Tool
from evolvent.models.chat_template import ConversationTokens
from evolvent.models.dialects import Chat, Dialect
from evolvent.models.policy import Policy
from evolvent.store.exchange import chat_row
from evolvent.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "ReadingConfig",
    "Row",
    "conversation_sequence",
    "conversation_sequences",
    "document_encoder",
    "flatten_conversation",
    "read_rows",
    "read_trajectories",
]

Row = tuple[str, object]  # where it stands ("train.jsonl:7"), and what it is
_ROW_ERRORS = (SampleInvalid, VocabularyMismatch, BatchMismatch)
_INSTRUCTION_ROLES = ("system", "developer")


class ReadingConfig(Config):
    """Settings of turning rows into token sequences."""

    kind: Literal["text", "messages", "pairs"] = Field(
        default="messages", description="raw text, conversations, or pairs of a better and a worse reply"
    )
    context: int | None = Field(default=None, ge=2, description="longest sequence in tokens; none: the policy's")
    overlong: Overlong = Field(
        default="refuse", description="longer ones are refused, truncated at their end, or split into windows"
    )
    overlap: int = Field(default=0, ge=0, description="tokens of the window before that a window begins with")
    join: bool = Field(default=False, description="text: join documents and cut them into blocks of the context")

    @model_validator(mode="after")
    def _check_combination(self) -> ReadingConfig:
        if self.kind == "pairs" and self.overlong == "split":
            raise ValueError("preference pairs cannot be split; set overlong to 'refuse' or 'truncate'")
        if self.join and self.kind != "text":
            raise ValueError("only raw text documents can be joined; set join to false")
        if self.overlap and not (self.join or self.overlong == "split"):
            raise ValueError("overlap needs windows; set overlong to 'split' or join to true")
        if self.context is not None and self.overlap >= self.context:
            raise ValueError("overlap must be less than context")
        return self

    def max_tokens(self, policy: Policy) -> int:
        """Returns the length limit of a sequence for a policy.

        Raises:
            ConfigError: it exceeds the policy's context, or is not longer than the overlap.
        """
        context = self.context or policy.context
        if not self.overlap < context <= policy.context:
            raise ConfigError(
                "context out of range for the policy",
                value=context,
                expected=f"{self.overlap + 1} to {policy.context} tokens",
            )
        return context


def read_rows(
    rows: Iterable[Row], policy: Policy, config: ReadingConfig, *, intake: Intake | None = None
) -> Iterator[TokenSequence]:
    """Reads rows as token sequences, one after the other, in constant memory; of a pair first the chosen, then the
    rejected.

    Args:
        rows: (location, row), as the readers of `learn.sources` yield them.
        config: settings.
        intake: counts, while the result is consumed.
    Raises:
        ConfigError: the settings do not fit the policy.
    """
    context, counts = config.max_tokens(policy), Intake() if intake is None else intake
    if config.kind == "text":
        encode = document_encoder(policy.tokenizer)
        if config.join:
            yield from _count_sequences(_join_documents(rows, encode, context, config=config, counts=counts), counts)
            return

        def build(location: str, row: Any) -> list[TokenSequence]:
            sequence = text_sequence(location, encode(_get_text(row)))
            return fit_to_context(sequence, context, overlong=config.overlong, overlap=config.overlap, intake=counts)

    elif config.kind == "messages":

        def build(location: str, row: Any) -> list[TokenSequence]:
            conversation = parse_conversation(row)
            counts.thoughts_left_out += _drops_thoughts(conversation, policy.dialect)
            return [
                part
                for sequence in conversation_sequences(
                    location, conversation.messages, policy.dialect, tools=conversation.tools
                )
                for part in fit_to_context(
                    sequence, context, overlong=config.overlong, overlap=config.overlap, intake=counts
                )
            ]

    else:

        def build(location: str, row: Any) -> list[TokenSequence]:
            return _pair_sequences(
                location, row, policy.dialect, context=context, overlong=config.overlong, counts=counts
            )

    yield from _count_sequences(_build_each(rows, build, counts), counts)


def read_trajectories(
    trajectories: Iterable[Trajectory],
    policy: Policy,
    config: ReadingConfig,
    *,
    instructions: Callable[[Task], str],
    weight: Callable[[Trajectory], float] | None = None,
    render: Render | None = None,
    transform: Callable[[Trajectory, TokenSequence], TokenSequence] | None = None,
    is_conversation: Callable[[Task], bool] = lambda task: False,
    intake: Intake | None = None,
) -> Iterator[TokenSequence]:
    """Reads trajectories as token sequences, flattened one at a time (see `learn.token_sequences.flatten`).

    Args:
        trajectories: of a store, for instance.
        is_conversation: returns whether an episode is read as the conversation that was imported, without a world.
        config: its context and its handling of longer sequences; kind and join are ignored.
        transform: applied to each sequence before it is fitted to the context, such as `add_returns` or
            `append_outcome_readout` of `learn.preferences`. An episode for which it raises SampleInvalid is refused
            and counted.
    Raises:
        ConfigError: the settings do not fit the policy.
    """
    context, counts = config.max_tokens(policy), Intake() if intake is None else intake

    def build(location: str, trajectory: Any) -> list[TokenSequence]:
        if is_conversation(trajectory.task):
            flattened_sequences = flatten_conversation(trajectory, policy.dialect, weight=weight)
        else:
            flattened_sequences = flatten(
                [trajectory],
                policy.dialect,
                instructions=instructions,
                weight=weight,
                render=render,
                context=np.iinfo(np.int64).max,
            ).sequences
        if not any(sequence.feed for sequence in flattened_sequences):
            raise SampleInvalid("the episode has nothing to learn", value=f"{len(trajectory.steps)} steps")
        sequences = [
            sequence if transform is None else transform(trajectory, sequence)
            for sequence in flattened_sequences
            if sequence.feed
        ]
        pieces_by_sequence = [
            fit_to_context(sequence, context, overlong=config.overlong, overlap=config.overlap, intake=counts)
            for sequence in sequences
        ]
        return [sequence for pieces in pieces_by_sequence for sequence in pieces]

    yield from _count_sequences(_build_each(((t.id, t) for t in trajectories), build, counts), counts)


def flatten_conversation(
    trajectory: Trajectory, dialect: Dialect, *, weight: Callable[[Trajectory], float] | None = None
) -> list[TokenSequence]:
    """Tokenizes an imported episode as the conversation that it was, with its own instructions, tools and weights.

    Args:
        weight: returns the learning weight of a whole trajectory; None: 1.
    Raises:
        SampleInvalid, VocabularyMismatch: see `conversation_sequence`.
    """
    conversation = parse_conversation(chat_row(trajectory))
    sequences = conversation_sequences(trajectory.id, conversation.messages, dialect, tools=conversation.tools)
    scale = np.float32(1.0 if weight is None else weight(trajectory))
    return [replace(sequence, weight=sequence.weight * scale) for sequence in sequences]


def _build_each(
    rows: Iterable[Row], build: Callable[[str, Any], list[TokenSequence]], counts: Intake
) -> Iterator[TokenSequence]:
    for location, row in rows:
        if isinstance(row, Trajectory):
            counts.rows += 1
        else:
            counts.count_row(row)
        try:
            sequences = build(location, row)
        except _ROW_ERRORS as error:
            counts.refuse(location, error)
            continue
        yield from sequences


def _count_sequences(sequences: Iterable[TokenSequence], counts: Intake) -> Iterator[TokenSequence]:
    for sequence in sequences:
        counts.parts += 1
        yield sequence


# ------------------------------------------------------------------ raw text


def document_encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    """Returns a function from text to tokens: the tokenizer's begin token where it uses one, the text, the
    end-of-text token.

    Control tokens that are spelled out in the text stay text.

    Raises:
        ConfigError: the tokenizer has no end-of-text token.

    The function raises VocabularyMismatch for an unknown token, and SampleInvalid for empty text.
    """
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    if end is None:
        raise ConfigError(
            "the tokenizer lacks an end-of-text token to separate documents",
            value=type(tokenizer).__name__,
            hint="set its eos_token",
        )
    prefix = [int(begin)] if begin is not None and tokenizer.encode("")[:1] == [begin] else []
    unknown_id = tokenizer.unk_token_id

    def encode(text: str) -> list[int]:
        _check_text(text)
        ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        if not ids or not text.strip():
            raise SampleInvalid("the document has no text", value=repr(text[:40]))
        if unknown_id is not None and unknown_id in ids:
            raise VocabularyMismatch(
                "a word is missing from the policy's vocabulary",
                value=text[:80],
                hint="use a model with an open vocabulary",
            )
        return [*prefix, *ids, int(end)]

    return encode


def _check_text(text: str) -> None:
    """Refuses half surrogates: JSON can hold them, UTF-8 and tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SampleInvalid(
            "text contains a lone surrogate",
            value=repr(text[error.start : error.end]),
            expected="text that can be encoded as UTF-8",
        ) from error


def _get_text(row: Any) -> str:
    text = row.get("text") if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        names = sorted(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise SampleInvalid("unknown row format", value=names, expected='{"text": "..."}')
    return text


def _join_documents(
    rows: Iterable[Row], encode: Callable[[str], list[int]], context: int, *, config: ReadingConfig, counts: Intake
) -> Iterator[TokenSequence]:
    def encode_documents() -> Iterator[list[int]]:
        for location, row in rows:
            counts.count_row(row)
            try:
                yield encode(_get_text(row))
            except _ROW_ERRORS as error:
                counts.refuse(location, error)

    return build_blocks(encode_documents(), context, overlap=config.overlap)


# ------------------------------------------------------------------ conversations


def conversation_sequence(
    name: str,
    messages: Sequence[Message],
    dialect: Dialect,
    *,
    tools: Sequence[Tool] = (),
    first_learned: int = 0,
) -> TokenSequence:
    """Tokenizes a conversation: the replies of the assistant are learned, with weight 1.

    System messages at the beginning are the instructions; messages after the last reply are left out. A reply's own
    `"weight"` counts; an empty reply has none. With a chat template, thoughts (`reasoning_content`), calls and results
    of tools are written as the template renders them, and each reply as the template writes a last one. Other dialects
    have text alone: other messages between two replies are one observation.

    Args:
        tools: the tools that the conversation offers.
        first_learned: replies among this number of first messages are context.
    Raises:
        SampleInvalid: there is no reply to learn, two replies have nothing between them, the template refuses the
            conversation, or a reply calls tools in a dialect that has no form for calls.
        VocabularyMismatch: the dialect does not know a word.
    """
    _check_conversation(messages)
    if isinstance(dialect, Chat):
        tokens = dialect.template.conversation(messages, tools)
        return _template_sequence(name, tokens, messages, first_learned=first_learned)
    first = next(
        (index for index, message in enumerate(messages) if message.role not in _INSTRUCTION_ROLES), len(messages)
    )
    instructions = "\n\n".join(message.text for message in messages[:first])
    ids: list[int] = []
    pieces: list[tuple[int, int, float]] = []  # (tokens read, tokens written, weight) of each reply
    observation_texts: list[str] = []
    for number, message in enumerate(messages[first:], first):
        if message.role != "assistant":
            observation_texts.append(message.text)
            continue
        if message.calls:
            raise SampleInvalid(
                "the reply calls tools",
                value=message.calls[0].name,
                expected="text",
                hint="use a model whose chat template has a form for calls",
            )
        observation = "\n\n".join(observation_texts)
        prompt_ids = dialect.turn(observation, stopped=True) if pieces else dialect.open(instructions, observation)
        reply_ids = dialect.action(message.text)
        ids += [*prompt_ids, *reply_ids]
        pieces.append((len(prompt_ids), len(reply_ids), _reply_weight(message) if number >= first_learned else 0.0))
        observation_texts = []
    return _build_sequence(name, ids, _require_learned(pieces, messages))


def conversation_sequences(
    name: str, messages: Sequence[Message], dialect: Dialect, *, tools: Sequence[Tool] = ()
) -> list[TokenSequence]:
    """Tokenizes a conversation as its dialect keeps the past.

    Returns:
        One sequence; or, for a chat template that renders the past otherwise and the history "template", a sequence for
        every reply, which is learned behind the past as the template renders it.
    Raises:
        SampleInvalid, VocabularyMismatch: see `conversation_sequence`.
    """
    if not (isinstance(dialect, Chat) and dialect.renders_past):
        return [conversation_sequence(name, messages, dialect, tools=tools)]
    _check_conversation(messages)
    learned = [
        tokens
        for tokens in dialect.template.exchanges(messages, tools)
        if _reply_weight(messages[tokens.replies[-1].message])
    ]
    _require_learned([(0, 0, float(len(learned)))], messages)
    return [
        _template_sequence(f"{name}/{tokens.replies[-1].message}", tokens, messages, first_learned=0)
        for tokens in learned
    ]


def _check_conversation(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        _check_text(message.text)
        if message.role == "assistant" and number and messages[number - 1].role == "assistant":
            raise SampleInvalid(f"message {number} is a reply that follows a reply", value=message.text[:80])


def _template_sequence(
    name: str, tokens: ConversationTokens, messages: Sequence[Message], *, first_learned: int
) -> TokenSequence:
    pieces, position = [], 0
    for reply in tokens.replies:
        weight = _reply_weight(messages[reply.message]) if reply.message >= first_learned else 0.0
        pieces.append((reply.start - position, reply.end - reply.start, weight))
        position = reply.end
    return _build_sequence(name, tokens.ids[:position], _require_learned(pieces, messages))


def _require_learned(
    pieces: Sequence[tuple[int, int, float]], messages: Sequence[Message]
) -> Sequence[tuple[int, int, float]]:
    if not any(weight for _, _, weight in pieces):
        raise SampleInvalid("the conversation has no reply to learn", value=f"{len(messages)} messages")
    return pieces


def _build_sequence(name: str, ids: Sequence[int], pieces: Sequence[tuple[int, int, float]]) -> TokenSequence:
    sizes = [size for num_read, num_written, _ in pieces for size in (num_read, num_written)]
    written = np.repeat(np.tile([False, True], len(pieces)), sizes)
    step = np.repeat(
        np.arange(len(pieces), dtype=np.int32), [num_read + num_written for num_read, num_written, _ in pieces]
    )
    weight = np.repeat(
        np.asarray([reply_weight for _, _, reply_weight in pieces], np.float32),
        [num_read + num_written for num_read, num_written, _ in pieces],
    )
    weight = weight * written
    weight[:1] = 0.0
    no_flags = np.zeros(len(ids), np.bool_)
    return TokenSequence(
        name,
        np.asarray(ids, np.int32),
        written,
        no_flags,
        no_flags.astype(np.float32),
        step,
        np.where(written, step, np.int32(-1)),
        weight,
    )


def _reply_weight(message: Message) -> float:
    weight = message.weight  # also of an empty reply, so that a weight that cannot be read is refused
    return weight if message.text.strip() or message.calls else 0.0


def _drops_thoughts(conversation: Conversation, dialect: Dialect) -> bool:
    """Returns whether a conversation has thoughts that the dialect has no form for."""
    has_thoughts = any(message.extra.get("reasoning_content") for message in conversation.messages)
    return has_thoughts and not (isinstance(dialect, Chat) and dialect.template.takes_thoughts)


# ------------------------------------------------------------------ pairs


def _pair_sequences(
    location: str, row: Any, dialect: Dialect, *, context: int, overlong: Overlong, counts: Intake
) -> list[TokenSequence]:
    pair = parse_preference(row)
    sides = (pair.chosen, pair.rejected)
    if sides[0] == sides[1]:
        raise SampleInvalid("both sides of the pair are equal", value=sides[0][0].text[:80] if sides[0] else "no reply")
    side_sequences = [
        conversation_sequence(
            f"{location}/{name}", [*pair.prompt, *side], dialect, tools=pair.tools, first_learned=len(pair.prompt)
        )
        for name, side in zip(("chosen", "rejected"), sides, strict=True)
    ]
    is_long = any(len(sequence) > context for sequence in side_sequences)
    fitted_sequences = [
        sequence for side in side_sequences for sequence in fit_to_context(side, context, overlong=overlong)
    ]
    counts.truncated += is_long
    return fitted_sequences
