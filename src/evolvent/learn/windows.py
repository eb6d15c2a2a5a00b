"""Sequences longer than a context: refused, truncated or cut into windows, and counted; documents joined to blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import EvolventError, Problem, SampleInvalid
from evolvent.learn.token_sequences import Parts

__all__ = ["Intake", "TooLong", "blocks", "cut", "fitted", "text_parts", "windows"]

TooLong = Literal["refuse", "truncate", "split"]
_KEPT = 100


@dataclass
class Intake:
    """What became of the rows of a source, counted while they are read.

    Attributes:
        rows: read so far. parts: sequences made of them. truncated, split: rows that were longer than the context.
        refused: rows that were left out; `problems` says why, for the first hundred.
    """

    rows: int = 0
    parts: int = 0
    truncated: int = 0
    split: int = 0
    refused: int = 0
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, where: str, error: EvolventError) -> None:
        """Count a row that is left out, with its place and the reason."""
        self.refused += 1
        if len(self.problems) < _KEPT:
            self.problems.append(Problem(where, str(error)))


def text_parts(name: str, ids: Sequence[int] | NDArray[np.int32], *, known: int = 1) -> Parts:
    """Tokens of raw text, all of them written and learned but the first `known` (at least one)."""
    count = len(ids)
    weight = np.ones(count, np.float32)
    weight[: max(1, known)] = 0.0
    return Parts(
        name,
        np.asarray(ids, np.int32),
        np.ones(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        weight,
    )


def cut(parts: Parts, start: int, stop: int, *, known: int = 1, name: str | None = None) -> Parts:
    """The tokens `start` to `stop` (exclusive) of a sequence, as a sequence.

    Args:
        known: so many of its first tokens (at least one) are context: their weight becomes 0.
        name: of the new sequence; None: as before.
    """
    place = slice(start, stop)
    weight = parts.weight[place].copy()
    weight[: max(1, known)] = 0.0
    arrays = {
        entry: getattr(parts, entry)[place] for entry in ("ids", "written", "sampled", "logprobs", "step", "span")
    }
    columns = {entry: column[place] for entry, column in parts.columns.items()}
    return replace(parts, trajectory=name or parts.trajectory, **arrays, weight=weight, columns=columns)


def windows(parts: Parts, context: int, *, overlap: int = 0) -> list[Parts]:
    """A sequence as windows of at most `context` tokens.

    A window begins with the last `overlap` tokens of the one before, as context that is not learned again: with an
    overlap every token is a target once, without one the first token of a window never is. Windows with nothing to
    learn are left out.
    """
    if len(parts) <= context:
        return [parts]
    made = []
    for start in range(0, len(parts) - overlap, context - overlap):
        name = f"{parts.trajectory}/{start}"
        made.append(cut(parts, start, start + context, known=overlap if start else 1, name=name))
    return [window for window in made if window.feed]


def fitted(
    parts: Parts, context: int, *, too_long: TooLong = "refuse", overlap: int = 0, intake: Intake | None = None
) -> list[Parts]:
    """What of a sequence fits the context.

    Args:
        too_long: "refuse", "truncate" (the first `context` tokens stay) or "split" (see `windows`).
        overlap: of windows. intake: counts what was truncated or split.
    Raises:
        SampleInvalid: it is too long and to be refused, or nothing that is learned would be left.
    """
    if len(parts) <= context:
        return [parts]
    if too_long == "refuse":
        raise SampleInvalid(
            "longer than the context",
            value=f"{len(parts)} tokens",
            expected=f"at most {context}",
            hint="truncate or split such samples, or use a longer context",
        )
    made = windows(parts, context, overlap=overlap) if too_long == "split" else [cut(parts, 0, context)]
    if not made or not made[0].feed:
        raise SampleInvalid(
            "nothing that is learned fits into the context",
            value=f"{len(parts)} tokens, the first learned one number {int(np.flatnonzero(parts.weight)[0])}"
            if parts.feed
            else f"{len(parts)} tokens, none learned",
            expected=f"a learned one among the first {context}",
        )
    if intake is not None:
        intake.truncated += too_long == "truncate"
        intake.split += too_long == "split"
    return made


def blocks(documents: Iterable[Sequence[int]], context: int, *, overlap: int = 0) -> Iterator[Parts]:
    """Documents joined one after the other and cut into blocks of exactly `context` tokens; the last may be shorter.

    Overlap as in `windows`. A block may hold the end of one document and the beginning of the next.
    """
    rest, known, number = np.zeros(0, np.int32), 1, 0
    for document in documents:
        rest = np.concatenate([rest, np.asarray(document, np.int32)])
        start = 0
        while len(rest) - start >= context:
            yield text_parts(f"block-{number}", rest[start : start + context], known=known)
            start, known, number = start + context - overlap, max(1, overlap), number + 1
        rest = rest[start:]
    if len(rest) > known:
        yield text_parts(f"block-{number}", rest, known=known)
