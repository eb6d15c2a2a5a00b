"""Statements about all, no and some things of a kind, and an exact check of what follows from them.

Every kind has at least one thing. A model is the set of combinations of kinds that some thing has; whether statements
can hold together is decided over all models, of any size: "all" and "no" forbid combinations, "some" and the existence
of each kind ask for one, and these never get in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["FORMS", "Statement", "follows", "possible", "strongest"]

FORMS: tuple[str, ...] = ("all", "no", "some", "some not")


class Statement(NamedTuple):
    """A statement: one of `FORMS` about the kinds `subject` and `other`."""

    form: str
    subject: str
    other: str

    def __str__(self) -> str:
        first, _, negated = self.form.partition(" ")
        return f"{first} {self.subject} are {'not ' if negated else ''}{self.other}"

    @property
    def opposite(self) -> Statement:
        """The statement that is true exactly where this one is false."""
        opposites = {"all": "some not", "some not": "all", "no": "some", "some": "no"}
        return Statement(opposites[self.form], self.subject, self.other)


def possible(statements: Sequence[Statement]) -> bool:
    """Whether all the statements can be true together.

    A thing that is needed (one of each kind, one for each "some") exists if some combination of kinds has what is asked
    and is forbidden by none. All things needed can be there at once, since each only forbids what "all" and "no" do.
    """
    kinds = sorted({kind for statement in statements for kind in statement[1:]})
    with_kind = {kind: _combinations(place, len(kinds)) for place, kind in enumerate(kinds)}
    allowed = (1 << (1 << len(kinds))) - 1
    for form, subject, other in statements:
        if form in ("all", "no"):
            in_other = with_kind[other] if form == "no" else ~with_kind[other]
            allowed &= ~(with_kind[subject] & in_other)
    needed = list(with_kind.values())
    for form, subject, other in statements:
        if form in ("some", "some not"):
            in_other = with_kind[other] if form == "some" else ~with_kind[other]
            needed.append(with_kind[subject] & in_other)
    return all(allowed & need for need in needed)


@lru_cache(maxsize=256)
def _combinations(place: int, count: int) -> int:
    """The combinations of `count` kinds that hold the kind at `place`, as the set bits of a number."""
    return sum(1 << combination for combination in range(1 << count) if combination >> place & 1)


def follows(premises: Sequence[Statement], claim: Statement) -> bool | None:
    """True: the claim follows; False: its opposite does; None: both are possible."""
    if not possible([*premises, claim.opposite]):
        return True
    return None if possible([*premises, claim]) else False


def strongest(premises: Sequence[Statement], subject: str, other: str) -> tuple[Statement, ...]:
    """The statements about two kinds that follow, without those that follow from another one of them."""
    pairs = ((subject, other), (other, subject))
    claims = [Statement(form, *pair) for form in FORMS for pair in pairs]
    found = [claim for claim in claims if follows(premises, claim)]
    return tuple(claim for place, claim in enumerate(found) if not _told_by(claim, found, place))


def _told_by(claim: Statement, others: Sequence[Statement], place: int) -> bool:
    """Whether a claim, at its place among others, follows from one of them; of two equal ones the first stays."""
    stronger = [other for at, other in enumerate(others) if at < place or not follows([claim], other)]
    return any(follows([other], claim) for other in stronger)
