"""The hidden reward: how good a continuation is, as a fixed function of its words and the prompt's.

It is there for evaluation. Whoever trains or searches sees pairs that were labelled by it (`Preference.pairs`), and
what is fitted to those pairs is another function: policies and searches that optimise it can exploit where it is wrong.
That is the point of the world; report both against the budget (TS-LLM's alignment task, arXiv 2309.17179;
over-optimisation: Gao, Schulman and Hilton, arXiv 2210.10760).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

from evolvent.errors import ConfigError
from evolvent.worlds.preference.language import OPPOSITE, TOPIC_OF, Sentence, sentences_of

__all__ = ["LENGTH", "WEIGHTS", "Prompt", "quality", "read_prompt", "true_reward"]

LENGTH = 64
"""Words of a continuation, as in TS-LLM."""
WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "coverage": 0.3,
        "agreement": 0.2,
        "consistency": 0.15,
        "thread": 0.15,
        "topic": 0.1,
        "closing": 0.1,
    }
)
"""What each part weighs; the sum is 1, and `form` and `variety` multiply it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, read.

    Args:
        entities: (noun, adjective) of whoever is the subject of a sentence, in order; the adjective is what is said of
            it, "" for nothing.
        claims: everything that is said: noun -> adjectives.
        topic: that of the first entity.
        last: the nouns of the last sentence.
    """

    entities: tuple[tuple[str, str], ...]
    claims: Mapping[str, frozenset[str]]
    topic: str
    last: frozenset[str]


@lru_cache(maxsize=1 << 12)
def read_prompt(text: str) -> Prompt:
    """What a prompt says.

    Raises:
        ConfigError: a text that is not sentences of the language.
    """
    found = [sentence for _, sentence in sentences_of(text.split())]
    known = [sentence for sentence in found if sentence is not None]
    if not known or len(known) < len(found):
        raise ConfigError("a prompt that is not sentences of this language", value=text[:200])
    claims: dict[str, frozenset[str]] = {}
    for sentence in known:
        _add(claims, sentence)
    heads = dict.fromkeys(head for sentence in known for head in sentence.heads)
    entities = tuple((head, min(claims.get(head, ("",)))) for head in heads)
    return Prompt(entities, MappingProxyType(claims), TOPIC_OF[entities[0][0]], known[-1].nouns)


def _add(claims: dict[str, frozenset[str]], sentence: Sentence) -> None:
    for noun, adjective in sentence.claims():
        claims[noun] = claims.get(noun, frozenset()) | {adjective}


def quality(words: Sequence[str], prompt: str, *, length: int = LENGTH) -> dict[str, float]:
    """What the true reward is made of, each in 0..1.

    - form: the share of the `length` words that stand in whole sentences of the grammar, stops included.
    - variety: the share of sentences that have another subject than the one before and say something new.
    - agreement: the share of sentences whose determiners and verb all agree with their noun or subject in number.
    - topic: the share of nouns of the prompt's topic.
    - coverage: the mean over the prompt's entities: half for being the subject of a sentence, half for what the prompt
      says of it being recalled.
    - consistency: the share of claims without their opposite in the prompt or earlier.
    - thread: the share of sentences that name a noun of the sentence before; for the first that is the prompt's last.
    - closing: 1 if the very last word ends a sentence whose subject is the prompt's first entity.
    - reward: form * variety * the sum of the others by `WEIGHTS`.

    So what a word is worth is often known only later: a sentence must end where the text ends, entities must be
    returned to, threads prepared. All parts are 0 without a sentence. Only the first `length` words count; missing ones
    are ill-formed.

    Args:
        words: the continuation [up to length].
        prompt: the prompt's text.

    Raises:
        ConfigError: no prompt of this language.
    """
    asked = read_prompt(prompt)
    found = list(sentences_of(words[:length]))
    whole = [sentence for _, sentence in found if sentence is not None]
    parts = dict.fromkeys(("form", "variety", *WEIGHTS), 0.0)
    if whole:
        nouns = [phrase.noun for sentence in whole for phrase in (*sentence.subject, *sentence.others)]
        parts = {
            "form": sum(size for size, sentence in found if sentence is not None) / length,
            "variety": _variety(whole),
            "coverage": _coverage(whole, asked),
            "agreement": sum(sentence.agrees for sentence in whole) / len(whole),
            "consistency": _consistency(whole, asked),
            "thread": _thread([sentence for _, sentence in found], asked),
            "topic": sum(TOPIC_OF[noun] == asked.topic for noun in nouns) / len(nouns),
            "closing": _closing(found, asked, length),
        }
    weighed = sum(weight * parts[name] for name, weight in WEIGHTS.items())
    reward = round(parts["form"] * parts["variety"] * weighed, 12)  # flawless is 1, whatever the order of the sum
    return {**parts, "reward": reward}


def true_reward(words: Sequence[str], prompt: str, *, length: int = LENGTH) -> float:
    """The reward of `quality`, 0..1."""
    return quality(words, prompt, length=length)["reward"]


def _variety(whole: Sequence[Sentence]) -> float:
    said: set[tuple[object, ...]] = set()
    new, before = 0, None
    for sentence in whole:
        told = (frozenset(sentence.heads), sentence.verb, sentence.rest)
        new += told not in said and sentence.heads != before
        said.add(told)
        before = sentence.heads
    return new / len(whole)


def _coverage(whole: Sequence[Sentence], asked: Prompt) -> float:
    heads = {head for sentence in whole for head in sentence.heads}
    claims = {claim for sentence in whole for claim in sentence.claims()}
    return sum((name in heads) + ((name, said) in claims) for name, said in asked.entities) / (2 * len(asked.entities))


def _consistency(whole: Sequence[Sentence], asked: Prompt) -> float:
    known = dict(asked.claims)
    right, claims = 0, 0
    for sentence in whole:
        for noun, adjective in sentence.claims():
            right += OPPOSITE[adjective] not in known.get(noun, ())
            claims += 1
            known[noun] = known.get(noun, frozenset()) | {adjective}
    return right / claims if claims else 1.0


def _thread(found: Sequence[Sentence | None], asked: Prompt) -> float:
    """An ill-formed sentence cuts the thread on both sides."""
    before = [asked.last, *(sentence.nouns if sentence else frozenset() for sentence in found)]
    links = [bool(last & then) for last, then in pairwise(before)]
    return sum(links) / len(links)


def _closing(found: Sequence[tuple[int, Sentence | None]], asked: Prompt, length: int) -> float:
    end = found[-1][1]
    exact = sum(size for size, _ in found) == length
    return float(exact and end is not None and asked.entities[0][0] in end.heads)
