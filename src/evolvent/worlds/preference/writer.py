"""Writer of prompts, and of continuations of every quality: from flawless ones to those with many faults of each
sort.

A flawless continuation is planned backwards from the goal: the subjects of its sentences are planned first
(from the prompt's last entity to its first, all others between), every sentence names the next one's subject,
and the lengths of sentences are drawn so that the last stop is the last word.
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
from evolvent.worlds.preference.quality import LENGTH, Prompt, parse_prompt

__all__ = ["FORMS", "Faults", "write_continuation", "write_prompt"]

FORMS: tuple[str, ...] = ("one is", "many are", "one does", "many do", "one near", "many see")
"""The forms of a prompt's sentences: how many there are of the entity, and how it is told of."""
_MIN_WORDS, _MAX_WORDS, _MEAN_WORDS = (
    7,
    10,
    8,
)  # words of a planned sentence; every length between has a shape that recalls


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults, each 0..1 and drawn for every sentence.

    Args:
        agreement: the verb has the wrong number.
        topic: a noun of another topic is named.
        truth: an adjective is the opposite of an earlier claim.
        repeat: the previous sentence is repeated.
        forget: the subject is not the planned one.
        form: two words are swapped, or a word is lost.

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
        problems = [
            Problem(field.name, f"a probability of {getattr(self, field.name)}", "give 0 to 1")
            for field in fields(self)
            if not 0 <= getattr(self, field.name) <= 1
        ]
        if problems:
            raise ConfigError(problems)

    @classmethod
    def sample(cls, rng: Random) -> Faults:
        """Samples a rate for each fault: mostly none or few, sometimes many. Pairs come from this mixture."""
        return cls(*(rng.choice((0.0, 0.0, 0.1, 0.3, 0.6)) for _ in fields(cls)))


def write_prompt(forms: Sequence[str], rng: Random) -> str:
    """Writes a prompt of one topic: each sentence has the given form and is about another entity."""
    topic = rng.choice(tuple(TOPICS))
    nouns = rng.sample(TOPICS[topic], len(TOPICS[topic]))
    sentences = []
    for index, form in enumerate(forms):
        plural = form.startswith("many")
        noun = f"{nouns[index]}s" if plural else nouns[index]
        adjective = rng.choice(ADJECTIVES)
        object_phrase = f"the {rng.choice(nouns[len(forms) :])}"
        determiner = rng.choice([word for word, numbers in DETERMINERS.items() if plural in numbers])
        verb = rng.choice(TRANSITIVE if form == "many see" else VERBS)
        sentences.append(
            {
                "is": f"{determiner} {noun} is {adjective}",
                "are": f"{determiner} {noun} are {adjective}",
                "does": f"{determiner} {adjective} {noun} {verb}s",
                "do": f"{determiner} {adjective} {noun} {verb}",
                "near": f"{determiner} {adjective} {noun} is {rng.choice(PREPOSITIONS)} {object_phrase}",
                "see": f"{determiner} {adjective} {noun} {verb} {object_phrase}",
            }[form.split()[1]]
        )
    return f" {STOP} ".join(sentences) + f" {STOP}"


def write_continuation(text: str, rng: Random, faults: Faults | None = None, *, length: int = LENGTH) -> list[str]:
    """Writes a continuation of a prompt [length]. Without faults its true reward is 1.

    Raises:
        ConfigError: the prompt is not in this language or has more entities than fit, or the length is below 32.
    """
    parsed_prompt = parse_prompt(text)
    sentences = round(length / _MEAN_WORDS)
    if length < 4 * _MEAN_WORDS or len(parsed_prompt.entities) > sentences:
        raise ConfigError("no room for a continuation", value=length, expected=f"{4 * _MEAN_WORDS} words or more")
    return _Writer(parsed_prompt, rng, faults or Faults()).write(sentences, length)


class _Writer:
    """One text under construction: the claims so far, and the verbs of each subject."""

    def __init__(self, prompt: Prompt, rng: Random, faults: Faults) -> None:
        self._asked, self._rng, self._faults = prompt, rng, faults
        self._said = {noun: min(adjectives) for noun, adjectives in prompt.claims.items()}
        self._recalled: set[str] = set()
        self._used: set[tuple[str, str]] = set()

    def write(self, sentences: int, length: int) -> list[str]:
        subjects = self._plan_subjects(sentences)
        tokens: list[str] = []
        last_sentence: list[str] = []
        for index, size in enumerate(self._draw_lengths(sentences, length)):
            subject = self._draw_noun() if self._happens(self._faults.forget) else subjects[index]
            next_subject = subjects[index + 1] if index + 1 < sentences else self._draw_noun(subject)
            if self._happens(self._faults.topic):
                next_subject = self._draw_off_topic_noun()
            is_repeated = bool(last_sentence) and self._happens(self._faults.repeat)
            last_sentence = (
                last_sentence if is_repeated else self._corrupt(self._write_sentence(subject, next_subject, size))
            )
            tokens += last_sentence
        while len(tokens) < length:  # faults may have made it shorter
            tokens += self._corrupt(self._write_sentence(self._draw_noun(), self._draw_noun(), _MEAN_WORDS))
        return tokens[:length]

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _plan_subjects(self, count: int) -> list[str]:
        """Plans the subjects from the prompt's last entity to its first, all others between, without equal
        neighbors.
        """
        names = [name for name, _ in self._asked.entities]
        middle = names[1:-1]
        num_free = count - len(middle) - 2
        while True:
            inner_subjects = middle + [self._draw_noun() for _ in range(num_free)]
            self._rng.shuffle(inner_subjects)
            planned = [names[-1], *inner_subjects, names[0]]
            if all(a != b for a, b in pairwise(planned)):
                return planned

    def _draw_noun(self, excluded: str = "") -> str:
        """Draws a noun of the topic in one of its forms."""
        nouns = [form for noun in TOPICS[self._asked.topic] for form in (noun, f"{noun}s") if form != excluded]
        return self._rng.choice(nouns)

    def _draw_off_topic_noun(self) -> str:
        return self._rng.choice([noun for noun in NOUNS if noun not in TOPICS[self._asked.topic]])

    def _draw_lengths(self, count: int, length: int) -> list[int]:
        """Draws lengths of sentences that add up to the text's length."""
        sizes: list[int] = []
        for num_remaining in range(count - 1, -1, -1):
            remaining_words = length - sum(sizes)
            fitting = [
                size
                for size in range(_MIN_WORDS, _MAX_WORDS + 1)
                if _MIN_WORDS * num_remaining <= remaining_words - size <= _MAX_WORDS * num_remaining
            ]
            sizes.append(self._rng.choice(fitting))
        return sizes

    def _write_sentence(self, subject: str, next_subject: str, size: int) -> list[str]:
        """Writes a sentence of this size about a subject that also names the next subject."""
        needs_adjective = subject not in self._recalled and any(subject == name for name, _ in self._asked.entities)
        shapes = [
            (adjectives, shape, adverb)
            for shape, min_words in (("see", 6), ("near", 7), ("with", 7), ("and", 7))
            for adverb in ((0, 1) if shape in ("with", "and") else (0,))
            for adjectives in ((0, 0), (1, 0), (0, 1), (1, 1))
            if min_words + sum(adjectives) + adverb == size and (adjectives[0] or not needs_adjective)
        ]
        adjectives, shape, adverb = self._rng.choice(shapes)
        self._recalled |= {subject} if adjectives[0] else set()
        first, second = self._write_phrase(subject, adjectives[0]), self._write_phrase(next_subject, adjectives[1])
        plural = is_plural(subject) or shape == "and"
        plural = plural != self._happens(self._faults.agreement)
        if shape == "near":
            return [*first, "are" if plural else "is", self._draw_fresh_word(subject, PREPOSITIONS), *second, STOP]
        verb = self._draw_fresh_word(subject, TRANSITIVE if shape == "see" else VERBS)
        self._used |= {(next_subject, verb)} if shape == "and" else set()
        verb = verb if plural else f"{verb}s"
        if shape == "see":
            return [*first, verb, *second, STOP]
        connector = "and" if shape == "and" else self._rng.choice(PREPOSITIONS)
        return [*first, connector, *second, verb, *([self._rng.choice(ADVERBS)] if adverb else []), STOP]

    def _write_phrase(self, noun: str, adjective: int) -> list[str]:
        determiner = self._rng.choice([word for word, numbers in DETERMINERS.items() if is_plural(noun) in numbers])
        if not adjective:
            return [determiner, noun]
        claimed_adjective = self._said.setdefault(noun, self._rng.choice(ADJECTIVES))
        return [
            determiner,
            OPPOSITE[claimed_adjective] if self._happens(self._faults.truth) else claimed_adjective,
            noun,
        ]

    def _draw_fresh_word(self, subject: str, candidates: Sequence[str]) -> str:
        """Draws one of the words that this subject has not used, while there are any."""
        word = self._rng.choice(
            [candidate for candidate in candidates if (subject, candidate) not in self._used] or list(candidates)
        )
        self._used.add((subject, word))
        return word

    def _corrupt(self, tokens: list[str]) -> list[str]:
        if not self._happens(self._faults.form):
            return tokens
        index = self._rng.randrange(len(tokens) - 1)
        if self._happens(0.5):
            return [*tokens[:index], tokens[index + 1], tokens[index], *tokens[index + 2 :]]
        return [*tokens[:index], self._rng.choice(WORDS), *tokens[index + 2 :]]
