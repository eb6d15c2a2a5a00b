"""Sequences longer than a context: refused, truncated or split into windows, and counted; documents joined to
blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.data.forms import UNKNOWN_FORM, detect_form
from evolvent.errors import EvolventError, Problem, SampleInvalid
from evolvent.learn.token_sequences import TokenSequence

__all__ = [
    "Intake",
    "Overlong",
    "build_blocks",
    "fit_to_context",
    "slice_sequence",
    "split_into_windows",
    "text_sequence",
]

Overlong = Literal["refuse", "truncate", "split"]
_MAX_PROBLEMS = 100


@dataclass
class Intake:
    """Counts of the rows of a source, updated while they are read.

    Attributes:
        rows: rows so far.
        parts: sequences made of them.
        truncated, split: rows that were longer than the context.
        refused: rows that were left out; `problems` gives the reason, for the first hundred.
        forms: rows by their form (see `data.forms`).
        thoughts_left_out: rows whose thoughts the policy's dialect has no form for.
    """

    rows: int = 0
    parts: int = 0
    truncated: int = 0
    split: int = 0
    refused: int = 0
    problems: list[Problem] = field(default_factory=list)
    forms: dict[str, int] = field(default_factory=dict)
    thoughts_left_out: int = 0

    def count_row(self, row: object) -> None:
        """Counts a row and its form."""
        self.rows += 1
        form = detect_form(row) or UNKNOWN_FORM
        self.forms[form] = self.forms.get(form, 0) + 1

    def refuse(self, location: str, error: EvolventError) -> None:
        """Records a row that is left out, with its location and the reason."""
        self.refused += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(location, str(error)))


def text_sequence(name: str, ids: Sequence[int] | NDArray[np.int32], *, num_context: int = 1) -> TokenSequence:
    """Builds the sequence of raw text, all tokens written and learned except the first `num_context` (at least one)."""
    count = len(ids)
    weight = np.ones(count, np.float32)
    weight[: max(1, num_context)] = 0.0
    return TokenSequence(
        name,
        np.asarray(ids, np.int32),
        np.ones(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        weight,
    )


def slice_sequence(
    sequence: TokenSequence, start: int, stop: int, *, num_context: int = 1, name: str | None = None
) -> TokenSequence:
    """Returns the tokens `start` to `stop` (exclusive) of a sequence, as a sequence.

    Args:
        num_context: number of its first tokens (at least one) that are context: their weight becomes 0.
        name: of the new sequence; None: as before.
    """
    window = slice(start, stop)
    weight = sequence.weight[window].copy()
    weight[: max(1, num_context)] = 0.0
    arrays = {
        entry: getattr(sequence, entry)[window] for entry in ("ids", "written", "sampled", "logprobs", "step", "span")
    }
    columns = {entry: column[window] for entry, column in sequence.columns.items()}
    return replace(sequence, trajectory=name or sequence.trajectory, **arrays, weight=weight, columns=columns)


def split_into_windows(sequence: TokenSequence, context: int, *, overlap: int = 0) -> list[TokenSequence]:
    """Splits a sequence into windows of at most `context` tokens.

    A window begins with the last `overlap` tokens of the window before, as context that is not learned again: with an
    overlap every token is a target once, without one the first token of a window never is. Windows without a learned
    token are left out.
    """
    if len(sequence) <= context:
        return [sequence]
    pieces = []
    for start in range(0, len(sequence) - overlap, context - overlap):
        name = f"{sequence.trajectory}/{start}"
        pieces.append(slice_sequence(sequence, start, start + context, num_context=overlap if start else 1, name=name))
    return [window for window in pieces if window.feed]


def fit_to_context(
    sequence: TokenSequence,
    context: int,
    *,
    overlong: Overlong = "refuse",
    overlap: int = 0,
    intake: Intake | None = None,
) -> list[TokenSequence]:
    """Fits a sequence to the context.

    Args:
        overlong: "refuse", "truncate" (the first `context` tokens stay) or "split" (see `split_into_windows`).
        overlap: of windows.
        intake: counts sequences that were truncated or split.
    Raises:
        SampleInvalid: it is too long and refused, or no learned token would be left.
    """
    if len(sequence) <= context:
        return [sequence]
    if overlong == "refuse":
        raise SampleInvalid(
            "the sequence is longer than the context",
            value=f"{len(sequence)} tokens",
            expected=f"at most {context}",
            hint="truncate or split such samples, or use a longer context",
        )
    pieces = (
        split_into_windows(sequence, context, overlap=overlap)
        if overlong == "split"
        else [slice_sequence(sequence, 0, context)]
    )
    if not pieces or not pieces[0].feed:
        raise SampleInvalid(
            "no learned token fits into the context",
            value=f"{len(sequence)} tokens, the first learned one number {int(np.flatnonzero(sequence.weight)[0])}"
            if sequence.feed
            else f"{len(sequence)} tokens, none learned",
            expected=f"a learned token among the first {context}",
        )
    if intake is not None:
        intake.truncated += overlong == "truncate"
        intake.split += overlong == "split"
    return pieces


def build_blocks(documents: Iterable[Sequence[int]], context: int, *, overlap: int = 0) -> Iterator[TokenSequence]:
    """Joins documents one after the other and splits them into blocks of exactly `context` tokens; the last may be
    shorter.

    Overlap as in `split_into_windows`. A block may hold the end of one document and the beginning of the next.
    """
    pending, num_context, number = np.zeros(0, np.int32), 1, 0
    for document in documents:
        pending = np.concatenate([pending, np.asarray(document, np.int32)])
        start = 0
        while len(pending) - start >= context:
            yield text_sequence(f"block-{number}", pending[start : start + context], num_context=num_context)
            start, num_context, number = start + context - overlap, max(1, overlap), number + 1
        pending = pending[start:]
    if len(pending) > num_context:
        yield text_sequence(f"block-{number}", pending, num_context=num_context)
