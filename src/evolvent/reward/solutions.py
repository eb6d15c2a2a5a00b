"""A solution as tokens: what was read, and the tokens of each span that was written. Nothing is tokenised again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evolvent.errors import SampleInvalid
from evolvent.learn.token_sequences import Parts
from evolvent.models.dialects import Dialect
from evolvent.reward.labels import SpanLabels

__all__ = ["Solution", "span_ends", "tokenised"]


@dataclass(frozen=True, slots=True)
class Solution:
    """A prompt and the spans that were written after it, as token ids.

    Args:
        prompt: what was read. spans: the tokens of each span, in order, none empty.
        name: tells it from others, for seeds and records.
    Raises:
        SampleInvalid: an empty prompt or span.
    """

    prompt: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.prompt or not all(self.spans):
            raise SampleInvalid(f"solution {self.name!r} has an empty prompt or span", expected="tokens in each")

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens."""
        return (*self.prompt, *self.response)

    @property
    def response(self) -> tuple[int, ...]:
        """The tokens of all spans."""
        return tuple(token for span in self.spans for token in span)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each span ends among `ids`, exclusive."""
        return tuple(np.cumsum([len(self.prompt), *map(len, self.spans)])[1:].tolist())

    def parts(self) -> Parts:
        """The tokens as one sequence of which nothing is learned; `span` counts the spans, -1 in the prompt."""
        ids = np.asarray(self.ids, np.int32)
        sizes = [len(self.prompt), *map(len, self.spans)]
        span = np.repeat(np.arange(-1, len(self.spans), dtype=np.int32), sizes)
        none = np.zeros(len(ids), np.float32)
        return Parts(
            self.name, ids, span >= 0, np.zeros(len(ids), np.bool_), none, np.zeros(len(ids), np.int32), span, none
        )


def span_ends(ids: Sequence[int], separators: Collection[int], *, opening: Collection[int] = ()) -> tuple[int, ...]:
    """Where the spans of written tokens end, exclusive; the last one at the end.

    Args:
        separators: a token of these ends its span, such as that of ";" or of a line's end.
        opening: the first of a run of these begins a span, such as the marks before an answer.
    """
    ends = []
    for place in range(1, len(ids)):
        opens = ids[place] in opening and ids[place - 1] not in opening
        if ids[place - 1] in separators or opens:
            ends.append(place)
    return (*ends, len(ids)) if ids else ()


def tokenised(
    labels: SpanLabels,
    dialect: Dialect,
    *,
    instructions: str = "",
    separator: str = "\n",
    encode: Callable[[str], Sequence[int]] | None = None,
) -> Solution:
    """The tokens of a solution that is known as text; each span is tokenised alone, so that its end is a token's end.

    Args:
        separator: written after each span but the last; for dialects of whole words a word of theirs.
        encode: the tokens of a span's text; None: those of an action of the dialect, without its stop token.
    Raises:
        VocabularyMismatch: a word that the dialect does not know. SampleInvalid: a span without tokens.
    """
    texts = (*(span + separator for span in labels.spans[:-1]), labels.spans[-1])
    if encode is None:
        spans = tuple(tuple(_unstopped(dialect.action(text), dialect)) for text in texts)
    else:
        spans = tuple(tuple(encode(text)) for text in texts)
    return Solution(tuple(dialect.open(instructions, labels.question)), spans, labels.question[:60])


def _unstopped(ids: Iterable[int], dialect: Dialect) -> list[int]:
    """The tokens of a text, without the stop token at their end."""
    found = list(ids)
    return found[:-1] if found and found[-1] in dialect.stop_ids else found
