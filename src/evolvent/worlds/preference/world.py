"""The world `preference`: continue a prompt by 64 words (a small version of TS-LLM's alignment task, arXiv
2309.17179).

    the boat is old . these bright gulls rest .
        ->  many bright gulls see the island . the island is near one old net . ... the old boat turns again .

An action is the whole continuation, and the environment pays its true reward (`quality`). Searching or training
on that reward would be cheating: allowed are labeled pairs (`pairs`), to which a reward model is fitted.
Policies and searches that optimize a fitted model can exploit its mistakes, and the true reward, used by
evaluation only, shows when. Token by token the tree is about a hundred words wide and 64 deep.

The kind of a task is the chain of its prompt's sentence forms; `longer` prompts have one entity more.

Writer of prompts, and of continuations of every quality: from flawless ones to those with many faults of each
sort.

A flawless continuation is planned backwards from the goal: the subjects of its sentences are planned first
(from the prompt's last entity to its first, all others between), every sentence names the next one's subject,
and the lengths of sentences are drawn so that the last stop is the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import exp
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv, check_task, score_episode
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
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
from evolvent.worlds.preference.quality import LENGTH, Prompt, compute_quality, parse_prompt
from evolvent.worlds.reasoning.chains import Chain, Chains

__all__ = ["FORMS", "SUCCESS", "Faults", "Pair", "Preference", "PreferenceEnv", "write_continuation", "write_prompt"]


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
            Problem(field.name, f"got a probability of {getattr(self, field.name)}, expected 0 to 1")
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
        raise ConfigError("the continuation is too short", value=length, expected=f"{4 * _MEAN_WORDS} words or more")
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


SUCCESS = 0.95
"""The true reward from which a continuation counts as good."""
_NUM_ENTITIES, _MAX_LETTERS_PER_WORD, _END_TEXT = (
    3,
    40,
    "the end",
)  # a word and the space around it have fewer letters than that


@dataclass(frozen=True, slots=True)
class Pair:
    """Two continuations of a prompt with the preferred one marked: the data of a reward model.

    Args:
        task: the task of the prompt.
        prompt, chosen, rejected: texts.
    """

    task: Task
    prompt: str
    chosen: str
    rejected: str


class PreferenceEnv(StateEnv[None]):
    """One prompt, which never changes. The only step takes the whole continuation; its info has the parts of the
    reward, see `compute_quality`.
    """

    def __init__(self, task: Task, text: str, length: int) -> None:
        super().__init__(task, None)
        self._text, self._length = text, length

    def _observe_start(self) -> tuple[Value, Info]:
        return self._text, {}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        """Scores the continuation with the true reward and ends the episode. `invalid` marks a text without a valid
        sentence.
        """
        tokens = words_of(str(action)[: self._length * _MAX_LETTERS_PER_WORD].lower())
        reward_parts = compute_quality(tokens, self._text, length=self._length)
        info: dict[str, Any] = {"quality": reward_parts}
        if not reward_parts["form"]:
            info["invalid"] = True
        return None, (_END_TEXT, reward_parts["reward"], True, False, info)


class Preference(DealtOnce):
    """The world of continuations.

    Args:
        length: number of words of a continuation, 32 to 256.
        sizes: the panel sizes.
    Raises:
        ConfigError: a length out of range.
    """

    name = "preference"
    version = "1"
    grammar: Grammar = Plain()
    horizon = 1
    reward_range = (0.0, 1.0)
    run_in_thread = False

    def __init__(self, *, length: int = LENGTH, sizes: Sizes | None = None) -> None:
        if not 32 <= length <= 256:
            raise ConfigError([Problem("length", f"got {length} words, expected 32 to 256")])
        self.length = length
        self.chains = Chains(self.name, FORMS, _NUM_ENTITIES)
        self.tiers = self.chains.tiers
        self.instructions = (
            f"Continue the text by {length} words, stops included: whole sentences that tell of everybody in it, keep "
            "to its topic, name something of the sentence before, contradict nothing and repeat nothing. The last "
            "sentence is about the one who was named first."
        )
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._candidates, recipe=self.recipe
        )

    def _candidates(self, tier: str) -> Iterator[Candidate]:
        seeds: dict[Chain, int] = {}
        for chain in self.chains.draw(tier):
            seed = seeds[chain] = seeds.get(chain, -1) + 1
            spec: dict[str, Json] = {"chain": list(chain), "seed": seed, "length": self.length}
            yield Candidate(spec, ", ".join(chain), tier, self._draw_prompt(chain, seed))

    def _draw_prompt(self, chain: Chain, seed: int) -> str:
        return write_prompt(chain, Random(sample_seed(self.name, "prompt", seed, *chain)))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def prompt(self, task: Task) -> str:
        """Returns the prompt of a task.

        Raises:
            ConfigError: the task belongs to another world or length, or its spec does not name a prompt.
            VersionMismatch: the task belongs to another version.
        """
        check_task(self, task)
        chain, seed, length = (task.spec.get(part) for part in ("chain", "seed", "length"))
        problems = []
        if not isinstance(chain, Sequence) or isinstance(chain, str) or not self.chains.is_valid(chain):
            problems.append(Problem("chain", f"unknown chain of prompts {chain!r}", f"parts: {', '.join(FORMS)}"))
        if type(seed) is not int or seed < 0:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number of 0 or more"))
        if length != self.length:
            problems.append(
                Problem(
                    "length", f"got {length!r}, but this world has {self.length}", "create the world with that length"
                )
            )
        if problems:
            raise ConfigError(problems)
        return self._draw_prompt(tuple(task.spec["chain"]), task.spec["seed"])

    def key(self, task: Task) -> str:
        """Returns the prompt, which is equal for copies."""
        return self.prompt(task)

    def make(self, task: Task) -> PreferenceEnv:
        """Creates an Env for one task; raises the errors of `prompt`."""
        return PreferenceEnv(task, self.prompt(task), self.length)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = unit = the true reward, success = it is at least `SUCCESS`."""
        return score_episode(rewards, self.reward_range, success=SUCCESS)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns a continuation with a true reward of 1."""
        return [self.continuation(task)]

    def continuation(self, task: Task, *, faults: Faults | None = None, seed: int = 0) -> str:
        """Returns a continuation of a task's prompt, with faults at these rates (None: without faults)."""
        rng = Random(sample_seed(self.name, "continuation", seed, task.id))
        return " ".join(write_continuation(self.prompt(task), rng, faults, length=self.length))

    def quality(self, tokens: Sequence[str], task: Task) -> Mapping[str, float]:
        """Computes the parts of a continuation's true reward (`evolvent.worlds.preference.quality`), for evaluation."""
        return compute_quality(tokens, self.prompt(task), length=self.length)

    def pairs(
        self, split: str, count: int, seed: int, *, tier: str = "seen", temperature: float = 0.1
    ) -> tuple[Pair, ...]:
        """Draws labeled pairs: two continuations each, of mixed quality, for tasks drawn from a panel.

        The label follows Bradley and Terry: the first is chosen with probability sigmoid((r1 - r2) / temperature),
        where r are the true rewards. A pair depends on its number and the seed alone, so a longer list starts with the
        same pairs.

        Args:
            split, tier: the panel.
            count: number of pairs.
            seed: seed of the pairs.
            temperature: temperature of the labels, above 0; a small one makes them exact.

        Raises:
            ConfigError: an unknown or empty panel, a negative count, a temperature that is not above 0.
        """
        problems = [] if count >= 0 else [Problem("count", f"got {count} pairs, expected 0 or more")]
        if not temperature > 0:
            problems.append(Problem("temperature", f"got {temperature}, expected more than 0"))
        panel = self.tasks(split, tier)
        if not panel:
            problems.append(Problem("panel", f"no tasks in {split}/{tier}", "choose another"))
        if problems:
            raise ConfigError(problems)
        return tuple(self._draw_pair(panel, (split, tier, seed, index), temperature) for index in range(count))

    def _draw_pair(self, panel: Sequence[Task], names: tuple[object, ...], temperature: float) -> Pair:
        rng = Random(sample_seed(self.name, "pair", *names))
        task = rng.choice(panel)
        text = self.prompt(task)
        first, second = (write_continuation(text, rng, Faults.sample(rng), length=self.length) for _ in range(2))
        reward_difference = (
            compute_quality(first, text, length=self.length)["reward"]
            - compute_quality(second, text, length=self.length)["reward"]
        )
        if rng.random() >= 1 / (1 + exp(max(-50.0, min(50.0, -reward_difference / temperature)))):
            first, second = second, first
        return Pair(task, text, " ".join(first), " ".join(second))

    def vocabulary(self) -> Sequence[str]:
        """Returns every word of prompts, continuations and the last observation, sorted."""
        return sorted({*WORDS, *_END_TEXT.split()})
