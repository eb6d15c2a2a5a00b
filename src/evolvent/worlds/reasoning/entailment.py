"""Entailment: from a premise, does the hypothesis follow, is it ruled out, or can one not tell?

    premise : all dax are wug . no fep are wug . ... hypothesis : some fep are dax . does it follow ?
        ->  all dax are wug ; no fep are wug ; so no dax are fep ### no

The answers are those of R3's entailment tasks. What follows is decided exactly (`syllogisms`). The kind of a task is
the chain of statements that links its kinds of things. Answers are dealt in turn among hypotheses of the same form, and
other statements, about other things, fill the premise up to two of each form: its words do not tell the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question
from evolvent.worlds.reasoning.syllogisms import FORMS, Statement, follows, strongest

__all__ = ["ANSWERS", "LINKS", "Entailment"]

ANSWERS: tuple[str, ...] = ("yes", "it is not possible to tell", "no")
LINKS: tuple[str, ...] = ("all", "all of", "no", "some", "some not", "some not of")
"""How two neighbours in a chain are linked: a form, and with "of" the later one is its subject."""
_TRUTHS = (True, None, False)
_OF_EACH = 2  # statements of each form in a premise
_THINGS = (
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


def _statement(link: str, place: int) -> Statement:
    form = link.removesuffix(" of")
    pair = (f"{{things{place}}}", f"{{things{place + 1}}}")
    return Statement(form, *(pair if form == link else pair[::-1]))


@lru_cache(maxsize=1 << 15)
def _truth(links: Chain, form: str, backwards: bool) -> bool | None:
    """Whether a statement about the two ends of a chain follows from it. What hangs on either end does not matter."""
    premises = [_statement(link, place) for place, link in enumerate(links)]
    ends = ("{things0}", f"{{things{len(links)}}}")
    return follows(premises, Statement(form, *(ends[::-1] if backwards else ends)))


@lru_cache(maxsize=1 << 13)
def _hypotheses(chain: Chain) -> dict[str, dict[bool | None, tuple[Statement, ...]]]:
    """Form -> truth -> hypotheses that no premise says or denies; forms that have all three truths alone."""
    premises = [_statement(link, place) for place, link in enumerate(chain)]
    kinds = [f"{{things{place}}}" for place in range(len(chain) + 1)]
    found: dict[str, dict[bool | None, tuple[Statement, ...]]] = {}
    for form in FORMS:
        truths: dict[bool | None, tuple[Statement, ...]] = dict.fromkeys(_TRUTHS, ())
        for at, first in enumerate(kinds):
            for place, second in enumerate(kinds):
                claim = Statement(form, first, second)
                if at != place and claim not in premises and claim.opposite not in premises:
                    truth = _truth(chain[min(at, place) : max(at, place)], form, at > place)
                    truths[truth] = (*truths[truth], claim)
        if all(truths.values()):
            found[form] = truths
    return found


_POOLS: Pools = {"things": _THINGS}


class Entailment(Generated):
    """The world of entailments.

    Args:
        links: statements in the longest training chain, 3 to 5; `longer` has one more.
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: links out of range.
    """

    name = "entailment"
    chance = 1 / 3
    instructions = (
        "Does the hypothesis follow from the premise? There is at least one thing of each kind. Write what leads to "
        f"your answer, divided by ';', then '###' and one of: {', '.join(ANSWERS)}."
    )
    words = f"premise hypothesis : . ? does it follow so all no some are not and {' '.join(ANSWERS)} both are possible"

    def __init__(self, *, links: int = 4, sizes: Sizes | None = None) -> None:
        if not 3 <= links <= 5:
            raise ConfigError([Problem("links", f"{links} statements in a chain", "give 3 to 5")])
        self.links = links
        super().__init__(Chains(self.name, LINKS, links, fewest=2), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        forms = [link.removesuffix(" of") for link in chain]
        found = _hypotheses(chain) if max(forms.count(form) for form in FORMS) <= _OF_EACH else None
        if not found:
            return None
        rng = Random(sample_seed(self.name, seed, *chain))
        truth = _TRUTHS[seed % 3]
        claim = rng.choice(found[rng.choice(list(found))][truth])
        premises = [_statement(link, place) for place, link in enumerate(chain)]
        told = [*premises, *_others(forms, len(chain) + 1)]
        rng.shuffle(told)
        text = f"premise : {' . '.join(map(str, told))} . hypothesis : {claim} . does it follow ?"
        return Question(text, _rationale(premises, claim, truth), ANSWERS[_TRUTHS.index(truth)], ANSWERS)


def _others(forms: Sequence[str], first: int) -> list[Statement]:
    """Statements about other things, so that there are two of each form in all."""
    missing = [form for form in FORMS for _ in range(_OF_EACH - forms.count(form))]
    return [
        Statement(form, f"{{things{first + place}}}", f"{{things{first + place + 1}}}")
        for place, form in enumerate(missing)
    ]


def _rationale(premises: Sequence[Statement], claim: Statement, truth: bool | None) -> tuple[str, ...]:
    """The statements between the two kinds, and what they come to."""
    at, place = sorted(int(kind.strip("{}").removeprefix("things")) for kind in claim[1:])
    used = premises[at:place]
    if truth is None:
        return (*map(str, used), f"so both {claim} and {claim.opposite} are possible")
    right = claim if truth else claim.opposite
    closest = strongest(used, claim.subject, claim.other)
    steps = [f"so {one}" for one in closest if one != right and follows([one], right)][:1]
    return (*map(str, used), *steps, f"so {right}")
