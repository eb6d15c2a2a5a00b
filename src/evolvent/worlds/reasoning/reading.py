"""Reading: a passage about people, places and times, a question that needs several of its facts, and four options.

    the boss of anna is boris . ... boris lives in keldon . ... where does the boss of anna live ? A : arvik . B : ...
        ->  the boss of anna is boris ; boris lives in keldon ### B

The kind of a task is the chain of relations in the question. All people of the passage are named equally often,
and so are the options; the letter of the right option cycles.
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
        relations: relations between people in the longest training question, 2 to 4; `longer` has one more.
        sizes: panel sizes.
    Raises:
        ConfigError: relations out of range.
    """

    name = "reading"
    chance = 0.25
    instructions = (
        "Read the passage and answer the question. Write the facts that lead to the answer, divided by ';', then '###' "
        "and the letter of the right option."
    )
    vocabulary_source = (
        f"the of is . : ? A B C D {' '.join(_RELATIONS)} lives in was born arrives on works travels a "
        "where does live when arrive work travel what"
    )

    def __init__(self, *, relations: int = 3, sizes: Sizes | None = None) -> None:
        if not 2 <= relations <= 4:
            raise ConfigError([Problem("relations", f"got {relations} relations in a question, expected 2 to 4")])
        self.relations = relations
        super().__init__(Chains(self.name, _RELATIONS, relations + 1, ends=tuple(_FACTS)), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question:
        rng = Random(sample_seed(self.name, seed, *chain))
        *relations, fact_name = chain
        people = [f"{{person{position}}}" for position in range(max(4, len(relations) + 1))]
        links = _draw_links(relations, len(people), rng)
        sentence, question = _FACTS[fact_name]
        kind = next(kind for kind in ("city", "day", "month", "job") if f"{{{kind}}}" in sentence)
        values = [f"{{{kind}{position}}}" for position in range(len(people))]
        facts = [
            sentence.replace("{who}", person).replace(f"{{{kind}}}", value)
            for person, value in zip(people, values, strict=True)
        ]
        linked = {
            (relation, position): f"the {relation} of {people[position]} is {people[target]}"
            for relation, targets in links.items()
            for position, target in enumerate(targets)
        }
        passage = [*linked.values(), *facts]
        rng.shuffle(passage)
        path = [linked[relation, position] for position, relation in enumerate(relations)]
        subject = people[0]
        for relation in relations:
            subject = f"the {relation} of {subject}"
        right_index, letter = len(relations), seed % len(LETTERS)
        distractors = rng.sample(
            [value for position, value in enumerate(values) if position != right_index], len(LETTERS) - 1
        )
        options = [*distractors[:letter], values[right_index], *distractors[letter:]]
        options_text = " . ".join(f"{name} : {value}" for name, value in zip(LETTERS, options, strict=True))
        text = f"{' . '.join(passage)} . {question.replace('{whom}', subject)} ? {options_text} ."
        return Question(text, (*path, facts[right_index]), LETTERS[letter], LETTERS)


def _draw_links(relations: Sequence[str], people: int, rng: Random) -> dict[str, list[int]]:
    """Draws, for each relation, the person it leads to from each person: everybody is a target once, nobody of
    themselves.

    The chain leads from person 0 to 1, to 2, and so on.
    """
    links = {}
    for relation in dict.fromkeys(relations):
        fixed = {person: person + 1 for person, name in enumerate(relations) if name == relation}
        open_sources = [person for person in range(people) if person not in fixed]
        open_targets = [person for person in range(people) if person not in fixed.values()]
        rng.shuffle(open_targets)
        while any(person == target for person, target in zip(open_sources, open_targets, strict=True)):
            rng.shuffle(open_targets)
        link = {**fixed, **dict(zip(open_sources, open_targets, strict=True))}
        links[relation] = [link[person] for person in range(people)]
    return links
