"""A little language of 107 words, and the reading of its sentences.

    sentence   subject predicate .
    subject    phrase | phrase prep phrase | phrase and phrase
    phrase     det [adjective] noun                  det: the this these one many
    predicate  is|are adjective | is|are prep phrase | verb [adverb] | verb phrase

Every noun belongs to one of four topics and has two forms; adjectives come in pairs of opposites. A sentence is read
whatever its numbers are: whether they agree is said of it afterwards.
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
    "read_sentence",
    "sentences_of",
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
    """Whether a form of a noun is the plural."""
    return noun not in NOUNS


@dataclass(frozen=True, slots=True)
class Phrase:
    """A determiner, an adjective ("" for none) and a noun in one of its forms."""

    determiner: str
    adjective: str
    noun: str

    @property
    def agrees(self) -> bool:
        """Whether the determiner goes with the number of the noun."""
        return is_plural(self.noun) in DETERMINERS[self.determiner]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, read.

    Args:
        subject: the phrases that the verb has to agree with: one, or two joined by "and".
        others: all other phrases.
        verb: without its ending; "be" for is and are.
        plural: the number of the verb.
        says: the adjective of the predicate, "" for none.
        rest: all words after the verb.
    """

    subject: tuple[Phrase, ...]
    others: tuple[Phrase, ...]
    verb: str
    plural: bool
    says: str
    rest: tuple[str, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        """The nouns of the subject."""
        return tuple(phrase.noun for phrase in self.subject)

    @property
    def nouns(self) -> frozenset[str]:
        """All nouns."""
        return frozenset(phrase.noun for phrase in (*self.subject, *self.others))

    def claims(self) -> Iterator[tuple[str, str]]:
        """What is said of whom: (noun, adjective), of every phrase with an adjective and by the predicate."""
        for phrase in (*self.subject, *self.others):
            if phrase.adjective:
                yield phrase.noun, phrase.adjective
        if self.says:
            yield from ((head, self.says) for head in self.heads)

    @property
    def agrees(self) -> bool:
        """Whether every determiner goes with its noun, and the verb with its subject; two joined are plural."""
        plural = len(self.subject) > 1 or is_plural(self.heads[0])
        return self.plural == plural and all(phrase.agrees for phrase in (*self.subject, *self.others))


class _Reader:
    """One pass over the words of a sentence."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.place = words, 0

    @property
    def next(self) -> str:
        """The word to come; "" at the end."""
        return self.words[self.place] if self.place < len(self.words) else ""

    def take(self) -> str:
        word = self.next
        self.place += 1
        return word

    def phrase(self) -> Phrase | None:
        determiner = self.take()
        adjective = self.take() if self.next in OPPOSITE else ""
        noun = self.take()
        known = determiner in DETERMINERS and noun in TOPIC_OF
        return Phrase(determiner, adjective, noun) if known else None


def read_sentence(words: Sequence[str]) -> Sentence | None:
    """The sentence that these words are, without their stop; None where they are none."""
    reader = _Reader(words)
    first = reader.phrase()
    if first is None:
        return None
    subject: list[Phrase] = [first]
    others: list[Phrase] = []
    if reader.next == "and" or reader.next in PREPOSITIONS:
        into = subject if reader.take() == "and" else others
        more = reader.phrase()
        if more is None:
            return None
        into.append(more)
    word = reader.take()
    verb, plural = _VERB_OF.get(word, ("", False)) if word not in _COPULA else ("be", _COPULA[word])
    rest, says = tuple(words[reader.place :]), ""
    if verb in TRANSITIVE or (verb == "be" and reader.next in PREPOSITIONS):
        if verb == "be":
            reader.take()
        found = reader.phrase()
        if found is None:
            return None
        others.append(found)
    elif verb == "be":
        says = reader.take()
    elif reader.next in ADVERBS:
        reader.take()
    whole = reader.place == len(words) and verb and (verb != "be" or not says or says in OPPOSITE)
    return Sentence(tuple(subject), tuple(others), verb, plural, says, rest) if whole else None


def sentences_of(words: Sequence[str]) -> Iterator[tuple[int, Sentence | None]]:
    """Each sentence of a text: its words with the stop, and what it is; None for no sentence, or one without a stop."""
    start = 0
    for place, word in enumerate(words):
        if word == STOP:
            yield place + 1 - start, read_sentence(words[start:place])
            start = place + 1
    if start < len(words):
        yield len(words) - start, None
