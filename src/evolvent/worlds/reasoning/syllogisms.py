"""Statements about all, no and some members of a category, and an exact check of their consequences.

Every category has at least one member. A model is the set of combinations of categories that members have.
Whether statements can hold together is decided over models of any size: "all" and "no" forbid combinations;
"some" and the existence of each category require one. Requirements never conflict with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["FORMS", "Statement", "follows", "is_consistent", "strongest_claims"]

FORMS: tuple[str, ...] = ("all", "no", "some", "some not")


class Statement(NamedTuple):
    """A statement: one of `FORMS` about the categories `subject` and `predicate`."""

    form: str
    subject: str
    predicate: str

    def __str__(self) -> str:
        first, _, negated = self.form.partition(" ")
        return f"{first} {self.subject} are {'not ' if negated else ''}{self.predicate}"

    @property
    def opposite(self) -> Statement:
        """Returns the statement that is true exactly if this one is false."""
        opposites = {"all": "some not", "some not": "all", "no": "some", "some": "no"}
        return Statement(opposites[self.form], self.subject, self.predicate)


def is_consistent(statements: Sequence[Statement]) -> bool:
    """Returns whether all statements can be true together.

    A required member (one of each category, one for each "some") exists if some combination of categories has the
    required properties and is not forbidden. All required members can exist at once: each is restricted only by
    "all" and "no".
    """
    kinds = sorted({kind for statement in statements for kind in statement[1:]})
    with_kind = {kind: _combinations_with(index, len(kinds)) for index, kind in enumerate(kinds)}
    allowed = (1 << (1 << len(kinds))) - 1
    for form, subject, predicate in statements:
        if form in ("all", "no"):
            in_predicate = with_kind[predicate] if form == "no" else ~with_kind[predicate]
            allowed &= ~(with_kind[subject] & in_predicate)
    needed = list(with_kind.values())
    for form, subject, predicate in statements:
        if form in ("some", "some not"):
            in_predicate = with_kind[predicate] if form == "some" else ~with_kind[predicate]
            needed.append(with_kind[subject] & in_predicate)
    return all(allowed & need for need in needed)


@lru_cache(maxsize=256)
def _combinations_with(index: int, count: int) -> int:
    """Returns the combinations of `count` categories that contain the category at `index`, as the set bits of a
    number.
    """
    return sum(1 << combination for combination in range(1 << count) if combination >> index & 1)


def follows(premises: Sequence[Statement], claim: Statement) -> bool | None:
    """Returns True if the claim follows, False if its opposite follows, None if both are possible."""
    if not is_consistent([*premises, claim.opposite]):
        return True
    return None if is_consistent([*premises, claim]) else False


def strongest_claims(premises: Sequence[Statement], subject: str, predicate: str) -> tuple[Statement, ...]:
    """Returns the statements about two categories that follow, without those implied by another of them."""
    pairs = ((subject, predicate), (predicate, subject))
    claims = [Statement(form, *pair) for form in FORMS for pair in pairs]
    valid_claims = [claim for claim in claims if follows(premises, claim)]
    return tuple(claim for index, claim in enumerate(valid_claims) if not _is_implied(claim, valid_claims, index))


def _is_implied(claim: Statement, claims: Sequence[Statement], index: int) -> bool:
    """Returns whether a claim, at its index, is implied by another claim; of two equivalent claims the first stays."""
    stronger = [
        other_claim
        for other_index, other_claim in enumerate(claims)
        if other_index < index or not follows([claim], other_claim)
    ]
    return any(follows([other_claim], claim) for other_claim in stronger)
