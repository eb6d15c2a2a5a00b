"""Entailment: decide whether a hypothesis follows from a premise, contradicts it, or is undecided.

    premise : all dax are wug . no fep are wug . ... hypothesis : some fep are dax . does it follow ?
        ->  all dax are wug ; no fep are wug ; so no dax are fep ### no

The answers are those of R3's entailment tasks. Entailment is decided exactly. The kind of a task is the
chain of statements that links its categories. Answers cycle among hypotheses of the same form. Other statements, about
other categories, fill the premise up to two of each form, so its words do not reveal the answer.

Statements about all, no and some members of a category, and an exact check of their consequences.

Every category has at least one member. A model is the set of combinations of categories that members have.
Whether statements can hold together is decided over models of any size: "all" and "no" forbid combinations;
"some" and the existence of each category require one. Requirements never conflict with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question

__all__ = ["ANSWERS", "FORMS", "LINKS", "Entailment", "Statement", "follows", "is_consistent", "strongest_claims"]


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


ANSWERS: tuple[str, ...] = ("yes", "it is not possible to tell", "no")
LINKS: tuple[str, ...] = ("all", "all of", "no", "some", "some not", "some not of")
"""How two neighbours in a chain are linked: a form, and with "of" the later one is its subject."""
_TRUTHS = (True, None, False)
_STATEMENTS_PER_FORM = 2  # statements of each form in a premise
_CATEGORIES = (
    "bakers",
    "cooks",
    "divers",
    "farmers",
    "guards",
    "hikers",
    "judges",
    "knights",
    "lawyers",
    "miners",
    "nurses",
    "pilots",
    "poets",
    "priests",
    "sailors",
    "scouts",
    "singers",
    "smiths",
    "tailors",
    "weavers",
)


def _build_statement(link: str, position: int) -> Statement:
    form = link.removesuffix(" of")
    pair = (f"{{things{position}}}", f"{{things{position + 1}}}")
    return Statement(form, *(pair if form == link else pair[::-1]))


@lru_cache(maxsize=1 << 15)
def _decide_ends(links: Chain, form: str, backwards: bool) -> bool | None:
    """Decides whether a statement about the two ends of a chain follows from it; other links do not matter."""
    premises = [_build_statement(link, position) for position, link in enumerate(links)]
    ends = ("{things0}", f"{{things{len(links)}}}")
    return follows(premises, Statement(form, *(ends[::-1] if backwards else ends)))


@lru_cache(maxsize=1 << 13)
def _list_hypotheses(chain: Chain) -> dict[str, dict[bool | None, tuple[Statement, ...]]]:
    """Returns form -> truth -> hypotheses that no premise states or denies, for forms that have all three truths."""
    premises = [_build_statement(link, position) for position, link in enumerate(chain)]
    kinds = [f"{{things{position}}}" for position in range(len(chain) + 1)]
    hypotheses: dict[str, dict[bool | None, tuple[Statement, ...]]] = {}
    for form in FORMS:
        truths: dict[bool | None, tuple[Statement, ...]] = dict.fromkeys(_TRUTHS, ())
        for first_index, first in enumerate(kinds):
            for position, second in enumerate(kinds):
                claim = Statement(form, first, second)
                if first_index != position and claim not in premises and claim.opposite not in premises:
                    truth = _decide_ends(
                        chain[min(first_index, position) : max(first_index, position)], form, first_index > position
                    )
                    truths[truth] = (*truths[truth], claim)
        if all(truths.values()):
            hypotheses[form] = truths
    return hypotheses


_POOLS: Pools = {"things": _CATEGORIES}


class Entailment(Generated):
    """The world of entailments.

    Args:
        links: statements in the longest training chain, 3 to 5; `longer` has one more.
        sizes: panel sizes.
    Raises:
        ConfigError: links out of range.
    """

    name = "entailment"
    chance = 1 / 3
    instructions = (
        "Does the hypothesis follow from the premise? There is at least one thing of each kind. Write what leads to "
        f"your answer, divided by ';', then '###' and one of: {', '.join(ANSWERS)}."
    )
    vocabulary_source = (
        f"premise hypothesis : . ? does it follow so all no some are not and {' '.join(ANSWERS)} both are possible"
    )

    def __init__(self, *, links: int = 4, sizes: Sizes | None = None) -> None:
        if not 3 <= links <= 5:
            raise ConfigError([Problem("links", f"got {links} statements in a chain, expected 3 to 5")])
        self.links = links
        super().__init__(Chains(self.name, LINKS, links, min_length=2), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        forms = [link.removesuffix(" of") for link in chain]
        hypotheses = (
            _list_hypotheses(chain) if max(forms.count(form) for form in FORMS) <= _STATEMENTS_PER_FORM else None
        )
        if not hypotheses:
            return None
        rng = Random(sample_seed(self.name, seed, *chain))
        truth = _TRUTHS[seed % 3]
        claim = rng.choice(hypotheses[rng.choice(list(hypotheses))][truth])
        premises = tuple(_build_statement(link, position) for position, link in enumerate(chain))
        statements = [*premises, *_draw_fillers(forms, len(chain) + 1)]
        rng.shuffle(statements)
        text = f"premise : {' . '.join(map(str, statements))} . hypothesis : {claim} . does it follow ?"
        return Question(text, _explain(premises, claim, truth), ANSWERS[_TRUTHS.index(truth)], ANSWERS)


def _draw_fillers(forms: Sequence[str], first: int) -> list[Statement]:
    """Returns statements about other categories, so that the premise has two statements of each form."""
    missing = [form for form in FORMS for _ in range(_STATEMENTS_PER_FORM - forms.count(form))]
    return [
        Statement(form, f"{{things{first + position}}}", f"{{things{first + position + 1}}}")
        for position, form in enumerate(missing)
    ]


@lru_cache(maxsize=1 << 13)
def _explain(premises: tuple[Statement, ...], claim: Statement, truth: bool | None) -> tuple[str, ...]:
    """Returns the statements between the two categories, and their conclusion."""
    start, stop = sorted(int(kind.strip("{}").removeprefix("things")) for kind in claim[1:])
    used = premises[start:stop]
    if truth is None:
        return (*map(str, used), f"so both {claim} and {claim.opposite} are possible")
    conclusion = claim if truth else claim.opposite
    closest = strongest_claims(used, claim.subject, claim.predicate)
    steps = [
        f"so {statement}" for statement in closest if statement != conclusion and follows([statement], conclusion)
    ][:1]
    return (*map(str, used), *steps, f"so {conclusion}")
