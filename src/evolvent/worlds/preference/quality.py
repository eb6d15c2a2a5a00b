"""The hidden reward: the quality of a continuation, a fixed function of its words and the prompt's.

It is meant for evaluation. Training and search get pairs that were labeled by it (`Preference.pairs`), and a
model fitted to those pairs is another function: policies and searches that optimize it can exploit its errors.
That is the purpose of the world; report both against the budget (TS-LLM's alignment task, arXiv 2309.17179;
over-optimization: Gao, Schulman and Hilton, arXiv 2210.10760).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

from evolvent.errors import ConfigError
from evolvent.worlds.preference.language import OPPOSITE, TOPIC_OF, Sentence, parse_sentences

__all__ = ["LENGTH", "WEIGHTS", "Prompt", "compute_quality", "compute_true_reward", "parse_prompt"]

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
    """A parsed prompt.

    Args:
        entities: (noun, adjective) of each noun that is the subject of a sentence, in order; the adjective is the
            prompt's claim about it, "" for none.
        claims: all claims: noun -> adjectives.
        topic: topic of the first entity.
        last_nouns: the nouns of the last sentence.
    """

    entities: tuple[tuple[str, str], ...]
    claims: Mapping[str, frozenset[str]]
    topic: str
    last_nouns: frozenset[str]


@lru_cache(maxsize=1 << 12)
def parse_prompt(text: str) -> Prompt:
    """Parses a prompt.

    Raises:
        ConfigError: the text does not consist of sentences of the language.
    """
    parsed = [sentence for _, sentence in parse_sentences(text.split())]
    valid_sentences = [sentence for sentence in parsed if sentence is not None]
    if not valid_sentences or len(valid_sentences) < len(parsed):
        raise ConfigError("the prompt does not consist of sentences of this language", value=text[:200])
    claims: dict[str, frozenset[str]] = {}
    for sentence in valid_sentences:
        _add_claims(claims, sentence)
    subject_nouns = dict.fromkeys(head for sentence in valid_sentences for head in sentence.subject_nouns)
    entities = tuple((head, min(claims.get(head, ("",)))) for head in subject_nouns)
    return Prompt(entities, MappingProxyType(claims), TOPIC_OF[entities[0][0]], valid_sentences[-1].nouns)


def _add_claims(claims: dict[str, frozenset[str]], sentence: Sentence) -> None:
    for noun, adjective in sentence.iterate_claims():
        claims[noun] = claims.get(noun, frozenset()) | {adjective}


def compute_quality(tokens: Sequence[str], prompt: str, *, length: int = LENGTH) -> dict[str, float]:
    """Computes the parts of the true reward, each in 0..1.

    - form: the share of the `length` words that belong to valid sentences of the grammar, stops included.
    - variety: the share of sentences with another subject than the one before and with new content.
    - agreement: the share of sentences whose determiners and verb all agree with their noun or subject in number.
    - topic: the share of nouns of the prompt's topic.
    - coverage: the mean over the prompt's entities: half for being the subject of a sentence, half for a repeated
      claim of the prompt about it.
    - consistency: the share of claims without their opposite in the prompt or earlier.
    - thread: the share of sentences that name a noun of the sentence before; for the first sentence, the prompt's
      last.
    - closing: 1 if the very last word ends a sentence whose subject is the prompt's first entity.
    - reward: form * variety * the sum of the others by `WEIGHTS`.

    So the value of a word is often known only later: a sentence must end where the text ends, entities must recur,
    threads need preparation. All parts are 0 without a sentence. Only the first `length` words count; missing words
    are ill-formed.

    Args:
        tokens: the words of the continuation [up to length].
        prompt: the prompt's text.

    Raises:
        ConfigError: the prompt is not in this language.
    """
    parsed_prompt = parse_prompt(prompt)
    sized_sentences = list(parse_sentences(tokens[:length]))
    valid_sentences = [sentence for _, sentence in sized_sentences if sentence is not None]
    parts = dict.fromkeys(("form", "variety", *WEIGHTS), 0.0)
    if valid_sentences:
        nouns = [phrase.noun for sentence in valid_sentences for phrase in (*sentence.subject, *sentence.other_phrases)]
        parts = {
            "form": sum(size for size, sentence in sized_sentences if sentence is not None) / length,
            "variety": _compute_variety(valid_sentences),
            "coverage": _compute_coverage(valid_sentences, parsed_prompt),
            "agreement": sum(sentence.has_agreement for sentence in valid_sentences) / len(valid_sentences),
            "consistency": _compute_consistency(valid_sentences, parsed_prompt),
            "thread": _compute_thread([sentence for _, sentence in sized_sentences], parsed_prompt),
            "topic": sum(TOPIC_OF[noun] == parsed_prompt.topic for noun in nouns) / len(nouns),
            "closing": _compute_closing(sized_sentences, parsed_prompt, length),
        }
    weighted_sum = sum(weight * parts[name] for name, weight in WEIGHTS.items())
    reward = round(parts["form"] * parts["variety"] * weighted_sum, 12)  # flawless is 1, whatever the order of the sum
    return {**parts, "reward": reward}


def compute_true_reward(tokens: Sequence[str], prompt: str, *, length: int = LENGTH) -> float:
    """Returns the reward of `compute_quality`, 0..1."""
    return compute_quality(tokens, prompt, length=length)["reward"]


def _compute_variety(valid_sentences: Sequence[Sentence]) -> float:
    known_contents: set[tuple[object, ...]] = set()
    num_new, previous_subject = 0, None
    for sentence in valid_sentences:
        content = (frozenset(sentence.subject_nouns), sentence.verb, sentence.predicate_words)
        num_new += content not in known_contents and sentence.subject_nouns != previous_subject
        known_contents.add(content)
        previous_subject = sentence.subject_nouns
    return num_new / len(valid_sentences)


def _compute_coverage(valid_sentences: Sequence[Sentence], prompt: Prompt) -> float:
    subject_nouns = {noun for sentence in valid_sentences for noun in sentence.subject_nouns}
    claims = {claim for sentence in valid_sentences for claim in sentence.iterate_claims()}
    return sum((name in subject_nouns) + ((name, adjective) in claims) for name, adjective in prompt.entities) / (
        2 * len(prompt.entities)
    )


def _compute_consistency(valid_sentences: Sequence[Sentence], prompt: Prompt) -> float:
    known_claims = dict(prompt.claims)
    num_consistent, num_claims = 0, 0
    for sentence in valid_sentences:
        for noun, adjective in sentence.iterate_claims():
            num_consistent += OPPOSITE[adjective] not in known_claims.get(noun, ())
            num_claims += 1
            known_claims[noun] = known_claims.get(noun, frozenset()) | {adjective}
    return num_consistent / num_claims if num_claims else 1.0


def _compute_thread(sentences: Sequence[Sentence | None], prompt: Prompt) -> float:
    """Returns the share of linked sentences; an ill-formed sentence breaks the links on both sides."""
    noun_sets = [prompt.last_nouns, *(sentence.nouns if sentence else frozenset() for sentence in sentences)]
    links = [bool(previous_nouns & next_nouns) for previous_nouns, next_nouns in pairwise(noun_sets)]
    return sum(links) / len(links)


def _compute_closing(sized_sentences: Sequence[tuple[int, Sentence | None]], prompt: Prompt, length: int) -> float:
    last_sentence = sized_sentences[-1][1]
    has_exact_length = sum(size for size, _ in sized_sentences) == length
    return float(
        has_exact_length and last_sentence is not None and prompt.entities[0][0] in last_sentence.subject_nouns
    )
