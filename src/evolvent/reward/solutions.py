"""A solution as tokens: the prompt and the tokens of each written span, never tokenized again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evolvent.errors import SampleInvalid
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.dialects import Dialect
from evolvent.reward.labels import SpanLabels

__all__ = ["Solution", "find_span_ends", "tokenize_solution"]


@dataclass(frozen=True, slots=True)
class Solution:
    """A prompt and the spans written after it, as token ids.

    Args:
        prompt: Tokens of the prompt.
        spans: Tokens of each span, in order, none empty.
        name: Unique name, for seeds and records.
    Raises:
        SampleInvalid: an empty prompt or span.
    """

    prompt: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.prompt or not all(self.spans):
            raise SampleInvalid(
                f"solution {self.name!r} has an empty prompt or span", expected="at least one token in each"
            )

    @property
    def ids(self) -> tuple[int, ...]:
        """Returns all tokens."""
        return (*self.prompt, *self.response)

    @property
    def response(self) -> tuple[int, ...]:
        """Returns the tokens of all spans."""
        return tuple(token for span in self.spans for token in span)

    @property
    def ends(self) -> tuple[int, ...]:
        """Returns the end of each span in `ids`, exclusive."""
        return tuple(np.cumsum([len(self.prompt), *map(len, self.spans)])[1:].tolist())

    def to_sequence(self) -> TokenSequence:
        """Returns the tokens as one sequence without learning weights; `span` counts the spans, -1 in the prompt."""
        ids = np.asarray(self.ids, np.int32)
        sizes = [len(self.prompt), *map(len, self.spans)]
        span = np.repeat(np.arange(-1, len(self.spans), dtype=np.int32), sizes)
        zeros = np.zeros(len(ids), np.float32)
        return TokenSequence(
            self.name, ids, span >= 0, np.zeros(len(ids), np.bool_), zeros, np.zeros(len(ids), np.int32), span, zeros
        )


def find_span_ends(
    ids: Sequence[int], separators: Collection[int], *, opening: Collection[int] = ()
) -> tuple[int, ...]:
    """Finds the ends of the spans of written tokens, exclusive; the last one at the end.

    Args:
        separators: a token of these ends its span, such as that of ";" or of a line's end.
        opening: the first of a run of these begins a span, such as the marks before an answer.
    """
    ends = []
    for position in range(1, len(ids)):
        begins_span = ids[position] in opening and ids[position - 1] not in opening
        if ids[position - 1] in separators or begins_span:
            ends.append(position)
    return (*ends, len(ids)) if ids else ()


def tokenize_solution(
    labels: SpanLabels,
    dialect: Dialect,
    *,
    instructions: str = "",
    separator: str = "\n",
    encode: Callable[[str], Sequence[int]] | None = None,
) -> Solution:
    """Tokenizes a solution known as text; each span is tokenized separately, so that its end is the end of a token.

    Args:
        separator: written after each span but the last; for dialects of whole words a word of theirs.
        encode: the tokens of a span's text; None: those of an action of the dialect, without its stop token.
    Raises:
        VocabularyMismatch: a word that the dialect does not know. SampleInvalid: a span without tokens.
    """
    texts = (*(span + separator for span in labels.spans[:-1]), labels.spans[-1])
    if encode is None:
        spans = tuple(tuple(_drop_stop_token(dialect.action(text), dialect)) for text in texts)
    else:
        spans = tuple(tuple(encode(text)) for text in texts)
    return Solution(tuple(dialect.open(instructions, labels.question)), spans, labels.question[:60])


def _drop_stop_token(ids: Iterable[int], dialect: Dialect) -> list[int]:
    """Returns the tokens of a text without a final stop token."""
    token_ids = list(ids)
    return token_ids[:-1] if token_ids and token_ids[-1] in dialect.stop_ids else token_ids
