"""A small artificial language of 107 words, and a parser of its sentences.

    sentence   subject predicate .
    subject    phrase | phrase prep phrase | phrase and phrase
    phrase     det [adjective] noun                  det: the this these one many
    predicate  is|are adjective | is|are prep phrase | verb [adverb] | verb phrase

Every noun belongs to one of four topics and has two forms; adjectives come in pairs of opposites. The parser
accepts any grammatical numbers; their agreement is checked afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "ADJECTIVES",
    "ADVERBS",
    "DETERMINERS",
    "NOUNS",
    "OPPOSITE",
    "PREPOSITIONS",
    "STOP",
    "TOPICS",
    "TOPIC_OF",
    "TRANSITIVE",
    "VERBS",
    "WORDS",
    "Phrase",
    "Sentence",
    "is_plural",
    "parse_sentence",
    "parse_sentences",
]

STOP = "."
TOPICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sea": ("boat", "gull", "sailor", "wave", "island", "net"),
        "farm": ("cow", "barn", "field", "farmer", "goat", "cart"),
        "town": ("bridge", "tower", "market", "baker", "tram", "lamp"),
        "school": ("pupil", "teacher", "desk", "book", "bell", "map"),
    }
)
"""The nouns of each topic in the singular; the plural has an s."""
NOUNS: tuple[str, ...] = tuple(noun for nouns in TOPICS.values() for noun in nouns)
TOPIC_OF: Mapping[str, str] = MappingProxyType(
    {form: topic for topic, nouns in TOPICS.items() for noun in nouns for form in (noun, f"{noun}s")}
)
"""Either form of a noun -> its topic."""
_PAIRS = (("old", "new"), ("big", "small"), ("clean", "dirty"), ("warm", "cold"), ("full", "empty"), ("bright", "dark"))
OPPOSITE: Mapping[str, str] = MappingProxyType(dict(_PAIRS) | {second: first for first, second in _PAIRS})
ADJECTIVES: tuple[str, ...] = tuple(sorted(OPPOSITE))
VERBS: tuple[str, ...] = ("rest", "wait", "turn", "shine", "fall", "stay", "sleep", "move")
"""Verbs without an object, in the plural; the singular has an s."""
TRANSITIVE: tuple[str, ...] = ("see", "find", "need", "help", "meet", "follow")
PREPOSITIONS: tuple[str, ...] = ("near", "behind", "with", "under")
ADVERBS: tuple[str, ...] = ("today", "again", "slowly", "often", "alone", "early")
DETERMINERS: Mapping[str, tuple[bool, ...]] = MappingProxyType(
    {"the": (False, True), "this": (False,), "one": (False,), "these": (True,), "many": (True,)}
)
"""Determiner -> the numbers that it goes with (True: plural)."""
_VERB_OF = {form: (verb, form == verb) for verb in (*VERBS, *TRANSITIVE) for form in (verb, f"{verb}s")}
_COPULA = {"is": False, "are": True}
WORDS: tuple[str, ...] = tuple(
    sorted(
        {
            *TOPIC_OF,
            *ADJECTIVES,
            *_VERB_OF,
            *_COPULA,
            *PREPOSITIONS,
            *ADVERBS,
            *DETERMINERS,
            "and",
            STOP,
        }
    )
)


def is_plural(noun: str) -> bool:
    """Returns whether a form of a noun is the plural."""
    return noun not in NOUNS


@dataclass(frozen=True, slots=True)
class Phrase:
    """A determiner, an adjective ("" for none) and a noun in one of its forms."""

    determiner: str
    adjective: str
    noun: str

    @property
    def has_agreement(self) -> bool:
        """Returns whether the determiner agrees with the number of the noun."""
        return is_plural(self.noun) in DETERMINERS[self.determiner]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A parsed sentence.

    Args:
        subject: the phrases that the verb has to agree with: one, or two joined by "and".
        other_phrases: all other phrases.
        verb: the verb without its ending; "be" for is and are.
        is_verb_plural: whether the verb is plural.
        predicate_adjective: the adjective of the predicate, "" for none.
        predicate_words: all words after the verb.
    """

    subject: tuple[Phrase, ...]
    other_phrases: tuple[Phrase, ...]
    verb: str
    is_verb_plural: bool
    predicate_adjective: str
    predicate_words: tuple[str, ...]

    @property
    def subject_nouns(self) -> tuple[str, ...]:
        """Returns the nouns of the subject."""
        return tuple(phrase.noun for phrase in self.subject)

    @property
    def nouns(self) -> frozenset[str]:
        """Returns all nouns."""
        return frozenset(phrase.noun for phrase in (*self.subject, *self.other_phrases))

    def iterate_claims(self) -> Iterator[tuple[str, str]]:
        """Yields the claims (noun, adjective) of the phrases with an adjective and of the predicate."""
        for phrase in (*self.subject, *self.other_phrases):
            if phrase.adjective:
                yield phrase.noun, phrase.adjective
        if self.predicate_adjective:
            yield from ((noun, self.predicate_adjective) for noun in self.subject_nouns)

    @property
    def has_agreement(self) -> bool:
        """Returns whether every determiner agrees with its noun, and the verb with its subject; a joined subject is
        plural.
        """
        is_subject_plural = len(self.subject) > 1 or is_plural(self.subject_nouns[0])
        return self.is_verb_plural == is_subject_plural and all(
            phrase.has_agreement for phrase in (*self.subject, *self.other_phrases)
        )


class _Parser:
    """One pass over the words of a sentence."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.words, self.place = tokens, 0

    @property
    def next_word(self) -> str:
        """Returns the next word; "" at the end."""
        return self.words[self.place] if self.place < len(self.words) else ""

    def take_word(self) -> str:
        word = self.next_word
        self.place += 1
        return word

    def parse_phrase(self) -> Phrase | None:
        determiner = self.take_word()
        adjective = self.take_word() if self.next_word in OPPOSITE else ""
        noun = self.take_word()
        is_valid = determiner in DETERMINERS and noun in TOPIC_OF
        return Phrase(determiner, adjective, noun) if is_valid else None


def parse_sentence(tokens: Sequence[str]) -> Sentence | None:
    """Parses words without the final stop as a sentence; returns None if they are not one."""
    parser = _Parser(tokens)
    first_phrase = parser.parse_phrase()
    if first_phrase is None:
        return None
    subject: list[Phrase] = [first_phrase]
    other_phrases: list[Phrase] = []
    if parser.next_word == "and" or parser.next_word in PREPOSITIONS:
        phrases = subject if parser.take_word() == "and" else other_phrases
        second_phrase = parser.parse_phrase()
        if second_phrase is None:
            return None
        phrases.append(second_phrase)
    word = parser.take_word()
    verb, plural = _VERB_OF.get(word, ("", False)) if word not in _COPULA else ("be", _COPULA[word])
    predicate_words, predicate_adjective = tuple(tokens[parser.place :]), ""
    if verb in TRANSITIVE or (verb == "be" and parser.next_word in PREPOSITIONS):
        if verb == "be":
            parser.take_word()
        object_phrase = parser.parse_phrase()
        if object_phrase is None:
            return None
        other_phrases.append(object_phrase)
    elif verb == "be":
        predicate_adjective = parser.take_word()
    elif parser.next_word in ADVERBS:
        parser.take_word()
    is_complete = (
        parser.place == len(tokens)
        and verb
        and (verb != "be" or not predicate_adjective or predicate_adjective in OPPOSITE)
    )
    return (
        Sentence(tuple(subject), tuple(other_phrases), verb, plural, predicate_adjective, predicate_words)
        if is_complete
        else None
    )


def parse_sentences(tokens: Sequence[str]) -> Iterator[tuple[int, Sentence | None]]:
    """Parses each sentence of a text; yields its number of words with the stop, and the sentence.

    The sentence is None if the words are not a sentence, or have no stop.
    """
    start = 0
    for index, word in enumerate(tokens):
        if word == STOP:
            yield index + 1 - start, parse_sentence(tokens[start:index])
            start = index + 1
    if start < len(tokens):
        yield len(tokens) - start, None
