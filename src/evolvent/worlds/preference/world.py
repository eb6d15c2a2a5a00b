"""The world `preference`: continue a prompt by 64 words (a small version of TS-LLM's alignment task, arXiv
2309.17179).

    the boat is old . these bright gulls rest .
        ->  many bright gulls see the island . the island is near one old net . ... the old boat turns again .

An action is the whole continuation, and the environment pays its true reward (`quality`). Searching or training
on that reward would be cheating: allowed are labeled pairs (`pairs`), to which a reward model is fitted.
Policies and searches that optimize a fitted model can exploit its mistakes, and the true reward, used by
evaluation only, shows when. Token by token the tree is about a hundred words wide and 64 deep.

The kind of a task is the chain of its prompt's sentence forms; `longer` prompts have one entity more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv, check_task, score_episode
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.preference.language import WORDS
from evolvent.worlds.preference.quality import LENGTH, compute_quality
from evolvent.worlds.preference.writer import FORMS, Faults, write_continuation, write_prompt
from evolvent.worlds.reasoning.chains import Chain, Chains

__all__ = ["SUCCESS", "Pair", "Preference", "PreferenceEnv"]

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


class Preference:
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
            raise ConfigError([Problem("length", f"a continuation of {length} words", "give 32 to 256")])
        self.length = length
        self.chains = Chains(self.name, FORMS, _NUM_ENTITIES)
        self.tiers = self.chains.tiers
        self.instructions = (
            f"Continue the text by {length} words, stops included: whole sentences that tell of everybody in it, keep "
            "to its topic, name something of the sentence before, contradict nothing and repeat nothing. The last "
            "sentence is about the one who was named first."
        )
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._candidates)

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
            problems.append(Problem("chain", f"{chain!r} is no chain of prompts", f"parts: {', '.join(FORMS)}"))
        if type(seed) is not int or seed < 0:
            problems.append(Problem("seed", f"{seed!r} is no number to draw from", "give a whole number from 0 on"))
        if length != self.length:
            problems.append(
                Problem("length", f"{length!r}, but this world has {self.length}", "make it with that length")
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
        problems = [] if count >= 0 else [Problem("count", f"{count} pairs", "give 0 or more")]
        if not temperature > 0:
            problems.append(Problem("temperature", f"a temperature of {temperature}", "give more than 0"))
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
