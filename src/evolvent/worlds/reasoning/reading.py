"""Reading: a passage about people, places and times, a question that takes several of its facts, and four options.

    the boss of anna is boris . ... boris lives in keldon . ... where does the boss of anna live ? A : arvik . B : ...
        ->  the boss of anna is boris ; boris lives in keldon ### B

The kind of a task is the chain of relations asked about. Every person of the passage is named as often as any other
one, and so is every option; the letter of the right one is dealt in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import sample_seed
from evolvent.worlds.facts import CITIES, PEOPLE
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question

__all__ = ["LETTERS", "Reading"]

LETTERS: tuple[str, ...] = ("A", "B", "C", "D")
_RELATIONS = ("boss", "friend", "teacher", "doctor", "cousin", "coach")
_FACTS = {  # what is asked at the end: the fact as it is told, and the question
    "home": ("{who} lives in {city}", "where does {whom} live"),
    "birthplace": ("{who} was born in {city}", "where was {whom} born"),
    "arrival": ("{who} arrives on {day}", "when does {whom} arrive"),
    "office": ("{who} works in {city}", "where does {whom} work"),
    "holiday": ("{who} travels in {month}", "when does {whom} travel"),
    "job": ("{who} is a {job}", "what is {whom}"),
}
_POOLS: Pools = {
    "person": PEOPLE,
    "city": CITIES,
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "month": ("january", "march", "april", "may", "june", "july", "august", "october", "november"),
    "job": ("baker", "cook", "diver", "farmer", "guard", "judge", "miner", "nurse", "pilot", "tailor"),
}


class Reading(Generated):
    """The world of passages.

    Args:
        relations: relations from one person to another in the longest training question, 2 to 4; `longer` has one more.
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: relations out of range.
    """

    name = "reading"
    chance = 0.25
    instructions = (
        "Read the passage and answer the question. Write the facts that lead to the answer, divided by ';', then '###' "
        "and the letter of the right option."
    )
    words = (
        f"the of is . : ? A B C D {' '.join(_RELATIONS)} lives in was born arrives on works travels a "
        "where does live when arrive work travel what"
    )

    def __init__(self, *, relations: int = 3, sizes: Sizes | None = None) -> None:
        if not 2 <= relations <= 4:
            raise ConfigError([Problem("relations", f"{relations} relations in a question", "give 2 to 4")])
        self.relations = relations
        super().__init__(Chains(self.name, _RELATIONS, relations + 1, ends=tuple(_FACTS)), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question:
        rng = Random(sample_seed(self.name, seed, *chain))
        *relations, asked = chain
        people = [f"{{person{place}}}" for place in range(max(4, len(relations) + 1))]
        links = _links(relations, len(people), rng)
        told, question = _FACTS[asked]
        kind = next(kind for kind in ("city", "day", "month", "job") if f"{{{kind}}}" in told)
        values = [f"{{{kind}{place}}}" for place in range(len(people))]
        facts = [
            told.replace("{who}", who).replace(f"{{{kind}}}", value) for who, value in zip(people, values, strict=True)
        ]
        linked = {
            (relation, place): f"the {relation} of {people[place]} is {people[to]}"
            for relation, link in links.items()
            for place, to in enumerate(link)
        }
        passage = [*linked.values(), *facts]
        rng.shuffle(passage)
        way = [linked[relation, place] for place, relation in enumerate(relations)]
        whom = people[0]
        for relation in relations:
            whom = f"the {relation} of {whom}"
        right, letter = len(relations), seed % len(LETTERS)
        wrong = rng.sample([value for place, value in enumerate(values) if place != right], len(LETTERS) - 1)
        options = [*wrong[:letter], values[right], *wrong[letter:]]
        listed = " . ".join(f"{name} : {value}" for name, value in zip(LETTERS, options, strict=True))
        text = f"{' . '.join(passage)} . {question.replace('{whom}', whom)} ? {listed} ."
        return Question(text, (*way, facts[right]), LETTERS[letter], LETTERS)


def _links(relations: Sequence[str], people: int, rng: Random) -> dict[str, list[int]]:
    """For each relation, whom it leads to from each person: to everybody once, to nobody from themselves.

    The chain leads from person 0 to 1, to 2, and so on.
    """
    found = {}
    for relation in dict.fromkeys(relations):
        fixed = {place: place + 1 for place, name in enumerate(relations) if name == relation}
        rest = [place for place in range(people) if place not in fixed]
        free = [place for place in range(people) if place not in fixed.values()]
        rng.shuffle(free)
        while any(place == to for place, to in zip(rest, free, strict=True)):
            rng.shuffle(free)
        link = {**fixed, **dict(zip(rest, free, strict=True))}
        found[relation] = [link[place] for place in range(people)]
    return found
