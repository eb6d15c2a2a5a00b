"""Writing prompts, and continuations of every quality: from flawless ones to those with many faults of each sort.

A flawless continuation is planned backwards from what is wanted: the subjects of its sentences are laid out first (from
the prompt's last entity to its first, all others between), every sentence names the next one's subject, and the lengths
of sentences are dealt so that the last stop is the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.worlds.preference.language import (
    ADJECTIVES,
    ADVERBS,
    DETERMINERS,
    NOUNS,
    OPPOSITE,
    PREPOSITIONS,
    STOP,
    TOPICS,
    TRANSITIVE,
    VERBS,
    WORDS,
    is_plural,
)
from evolvent.worlds.preference.quality import LENGTH, Prompt, read_prompt

__all__ = ["FORMS", "Faults", "continuation", "prompt"]

FORMS: tuple[str, ...] = ("one is", "many are", "one does", "many do", "one near", "many see")
"""The forms of a prompt's sentences: how many there are of the entity, and how it is told of."""
_SHORTEST, _LONGEST, _USUAL = 7, 10, 8  # words of a planned sentence; every length between has a shape that recalls


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely a fault is, each 0..1 and drawn for every sentence.

    Args:
        agreement: the verb has the wrong number.
        topic: another topic's noun is named.
        truth: an adjective is the opposite of what was said.
        repeat: the sentence before stands there once more.
        forget: the subject is not the planned one.
        form: two words change places, or a word is lost.

    Raises:
        ConfigError: a probability outside of 0..1.
    """

    agreement: float = 0.0
    topic: float = 0.0
    truth: float = 0.0
    repeat: float = 0.0
    forget: float = 0.0
    form: float = 0.0

    def __post_init__(self) -> None:
        wrong = [
            Problem(field.name, f"a probability of {getattr(self, field.name)}", "give 0 to 1")
            for field in fields(self)
            if not 0 <= getattr(self, field.name) <= 1
        ]
        if wrong:
            raise ConfigError(wrong)

    @classmethod
    def drawn(cls, rng: Random) -> Faults:
        """Each fault with a rate of its own: mostly none or few, sometimes many. The mixture that pairs come from."""
        return cls(*(rng.choice((0.0, 0.0, 0.1, 0.3, 0.6)) for _ in fields(cls)))


def prompt(forms: Sequence[str], rng: Random) -> str:
    """A prompt of one topic: each sentence is of the given form and tells of another entity."""
    topic = rng.choice(tuple(TOPICS))
    nouns = rng.sample(TOPICS[topic], len(TOPICS[topic]))
    told = []
    for place, form in enumerate(forms):
        plural = form.startswith("many")
        noun = f"{nouns[place]}s" if plural else nouns[place]
        adjective = rng.choice(ADJECTIVES)
        other = f"the {rng.choice(nouns[len(forms) :])}"
        determiner = rng.choice([one for one, numbers in DETERMINERS.items() if plural in numbers])
        verb = rng.choice(TRANSITIVE if form == "many see" else VERBS)
        told.append(
            {
                "is": f"{determiner} {noun} is {adjective}",
                "are": f"{determiner} {noun} are {adjective}",
                "does": f"{determiner} {adjective} {noun} {verb}s",
                "do": f"{determiner} {adjective} {noun} {verb}",
                "near": f"{determiner} {adjective} {noun} is {rng.choice(PREPOSITIONS)} {other}",
                "see": f"{determiner} {adjective} {noun} {verb} {other}",
            }[form.split()[1]]
        )
    return f" {STOP} ".join(told) + f" {STOP}"


def continuation(text: str, rng: Random, faults: Faults | None = None, *, length: int = LENGTH) -> list[str]:
    """A continuation of a prompt [length]. Without faults its true reward is 1.

    Raises:
        ConfigError: no prompt of this language, one of more entities than fit, or a length below 32.
    """
    asked = read_prompt(text)
    sentences = round(length / _USUAL)
    if length < 4 * _USUAL or len(asked.entities) > sentences:
        raise ConfigError("no room for a continuation", value=length, expected=f"{4 * _USUAL} words or more")
    return _Writer(asked, rng, faults or Faults()).text(sentences, length)


class _Writer:
    """One text in the making: what was said of whom, and which verbs a subject has had."""

    def __init__(self, asked: Prompt, rng: Random, faults: Faults) -> None:
        self._asked, self._rng, self._faults = asked, rng, faults
        self._said = {noun: min(adjectives) for noun, adjectives in asked.claims.items()}
        self._recalled: set[str] = set()
        self._used: set[tuple[str, str]] = set()

    def text(self, sentences: int, length: int) -> list[str]:
        subjects = self._subjects(sentences)
        words: list[str] = []
        last: list[str] = []
        for place, size in enumerate(self._sizes(sentences, length)):
            subject = self._noun() if self._happens(self._faults.forget) else subjects[place]
            then = subjects[place + 1] if place + 1 < sentences else self._noun(subject)
            if self._happens(self._faults.topic):
                then = self._other_topic()
            repeated = bool(last) and self._happens(self._faults.repeat)
            last = last if repeated else self._broken(self._sentence(subject, then, size))
            words += last
        while len(words) < length:  # faults may have made it shorter
            words += self._broken(self._sentence(self._noun(), self._noun(), _USUAL))
        return words[:length]

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _subjects(self, count: int) -> list[str]:
        """From the prompt's last entity to its first, all others between, no two alike side by side."""
        names = [name for name, _ in self._asked.entities]
        middle = names[1:-1]
        free = count - len(middle) - 2
        while True:
            between = middle + [self._noun() for _ in range(free)]
            self._rng.shuffle(between)
            planned = [names[-1], *between, names[0]]
            if all(a != b for a, b in pairwise(planned)):
                return planned

    def _noun(self, but: str = "") -> str:
        """A noun of the topic in one of its forms."""
        nouns = [form for noun in TOPICS[self._asked.topic] for form in (noun, f"{noun}s") if form != but]
        return self._rng.choice(nouns)

    def _other_topic(self) -> str:
        return self._rng.choice([noun for noun in NOUNS if noun not in TOPICS[self._asked.topic]])

    def _sizes(self, count: int, length: int) -> list[int]:
        """Lengths of sentences that add up."""
        sizes: list[int] = []
        for left in range(count - 1, -1, -1):
            rest = length - sum(sizes)
            fitting = [
                size for size in range(_SHORTEST, _LONGEST + 1) if _SHORTEST * left <= rest - size <= _LONGEST * left
            ]
            sizes.append(self._rng.choice(fitting))
        return sizes

    def _sentence(self, subject: str, then: str, size: int) -> list[str]:
        """A sentence of this size about a subject that names the next one too."""
        wanted = subject not in self._recalled and any(subject == name for name, _ in self._asked.entities)
        shapes = [
            (adjectives, shape, adverb)
            for shape, least in (("see", 6), ("near", 7), ("with", 7), ("and", 7))
            for adverb in ((0, 1) if shape in ("with", "and") else (0,))
            for adjectives in ((0, 0), (1, 0), (0, 1), (1, 1))
            if least + sum(adjectives) + adverb == size and (adjectives[0] or not wanted)
        ]
        adjectives, shape, adverb = self._rng.choice(shapes)
        self._recalled |= {subject} if adjectives[0] else set()
        first, second = self._phrase(subject, adjectives[0]), self._phrase(then, adjectives[1])
        plural = is_plural(subject) or shape == "and"
        plural = plural != self._happens(self._faults.agreement)
        if shape == "near":
            return [*first, "are" if plural else "is", self._fresh(subject, PREPOSITIONS), *second, STOP]
        verb = self._fresh(subject, TRANSITIVE if shape == "see" else VERBS)
        self._used |= {(then, verb)} if shape == "and" else set()
        verb = verb if plural else f"{verb}s"
        if shape == "see":
            return [*first, verb, *second, STOP]
        joint = "and" if shape == "and" else self._rng.choice(PREPOSITIONS)
        return [*first, joint, *second, verb, *([self._rng.choice(ADVERBS)] if adverb else []), STOP]

    def _phrase(self, noun: str, adjective: int) -> list[str]:
        determiner = self._rng.choice([one for one, numbers in DETERMINERS.items() if is_plural(noun) in numbers])
        if not adjective:
            return [determiner, noun]
        said = self._said.setdefault(noun, self._rng.choice(ADJECTIVES))
        return [determiner, OPPOSITE[said] if self._happens(self._faults.truth) else said, noun]

    def _fresh(self, subject: str, words: Sequence[str]) -> str:
        """One of the words that this subject has not had, while there are such."""
        word = self._rng.choice([one for one in words if (subject, one) not in self._used] or list(words))
        self._used.add((subject, word))
        return word

    def _broken(self, words: list[str]) -> list[str]:
        if not self._happens(self._faults.form):
            return words
        place = self._rng.randrange(len(words) - 1)
        if self._happens(0.5):
            return [*words[:place], words[place + 1], words[place], *words[place + 2 :]]
        return [*words[:place], self._rng.choice(WORDS), *words[place + 2 :]]
