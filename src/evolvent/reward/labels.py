"""A solution in spans with a label for each: the common form of all process data."""

from __future__ import annotations

from dataclasses import dataclass, field

from evolvent.errors import SampleInvalid
from evolvent.trajectory import JsonObject

__all__ = ["STEP_TAG", "SpanLabels"]

STEP_TAG = "\u043a\u0438"
"""Marks the end of each step in Math-Shepherd's files: two Cyrillic letters, U+043A U+0438."""


@dataclass(frozen=True, slots=True)
class SpanLabels:
    """A question, the spans of a solution, and a label for each.

    Args:
        question: The question.
        spans: Texts of the spans, in order.
        labels: As many labels: the share of right completions from the span's end (its Monte Carlo value), or 0 or
            1 of a judge; None: not labeled.
        source: Origin, such as "math-shepherd".
        meta: JSON values. "hard_above": labels above it count as good (see `hard`); 0 by default.
    Raises:
        SampleInvalid: no span, another number of labels than spans, or a label outside 0..1.
    """

    question: str
    spans: tuple[str, ...]
    labels: tuple[float | None, ...]
    source: str = ""
    meta: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.spans:
            raise SampleInvalid("the solution has no spans", value=self.question[:80], expected="at least one")
        if len(self.spans) != len(self.labels):
            raise SampleInvalid(
                "number of labels does not match the spans",
                value=f"{len(self.labels)} labels",
                expected=f"{len(self.spans)}, with None for a span without a label",
            )
        invalid = [label for label in self.labels if label is not None and not _in_unit(label)]
        if invalid:
            raise SampleInvalid("label out of range", value=invalid[0], expected="a number from 0 to 1, or None")
        if not _in_unit(self.meta.get("hard_above", 0.0)):
            raise SampleInvalid(
                "hard_above out of range", value=self.meta["hard_above"], expected="a number from 0 to 1"
            )

    def to_hard(self, above: float | None = None) -> SpanLabels:
        """Returns the solution with labels 0 and 1: 1 where the label is above a bound.

        Args:
            above: The bound; None: that of the data (`meta["hard_above"]`), otherwise 0, so that one right completion
                is enough (Math-Shepherd, arXiv 2312.08935, equation 3).
        """
        bound = float(self.meta.get("hard_above", 0.0)) if above is None else above
        labels = tuple(None if label is None else float(label > bound) for label in self.labels)
        return SpanLabels(self.question, self.spans, labels, self.source, {**self.meta, "hard_above": 0.0})


def _in_unit(label: object) -> bool:
    return isinstance(label, int | float) and 0 <= label <= 1  # NaN is not; `isfinite` overflows at huge integers
