"""The world `preference`: continue a prompt by 64 words (TS-LLM's alignment task, arXiv 2309.17179, in small).

    the boat is old . these bright gulls rest .
        ->  many bright gulls see the island . the island is near one old net . ... the old boat turns again .

An action is the whole continuation, and the environment pays the true reward of it (`quality`). To search or train on
that reward would be cheating: what may be used are labelled pairs (`pairs`), to which a reward model is fitted.
Policies and searches that optimise a fitted model can exploit its mistakes, and the true reward, seen by evaluation
alone, tells when. Token by token the tree is some hundred words wide and 64 deep.

The kind of a task is the chain of its prompt's sentence forms; `longer` prompts have one entity more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import Info, Reply, check_task, own_moment, score_of
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.preference.language import WORDS
from evolvent.worlds.preference.quality import LENGTH, quality
from evolvent.worlds.preference.writer import FORMS, Faults, continuation, prompt
from evolvent.worlds.reasoning.chains import Chain, Chains

__all__ = ["SUCCESS", "Pair", "Preference", "PreferenceEnv"]

SUCCESS = 0.95
"""The true reward from which a continuation counts as good."""
_ENTITIES, _LETTERS, _END = 3, 40, "the end"  # a word and the space around it have fewer letters than that


@dataclass(frozen=True, slots=True)
class Pair:
    """Two continuations of a prompt, and which of them was preferred: what a reward model is fitted to.

    Args:
        task: whose prompt it is.
        prompt, chosen, rejected: texts.
    """

    task: Task
    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: a prompt never changes, so all that an episode carries is whether it runs."""

    task: str
    running: bool


class PreferenceEnv:
    """One prompt. The only step takes the whole continuation; its info has the parts of the reward as `quality`."""

    def __init__(self, task: Task, text: str, length: int) -> None:
        self._task, self._text, self._length = task, text, length
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        return self._text, {}

    def step(self, action: Value) -> Reply:
        """The true reward; the episode is over. `invalid` marks a text without one whole sentence."""
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._running = False
        words = words_of(str(action)[: self._length * _LETTERS].lower())
        found = quality(words, self._text, length=self._length)
        info: dict[str, Any] = {"quality": found}
        if not found["form"]:
            info["invalid"] = True
        return _END, found["reward"], True, False, info

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._running = own_moment(value, _Moment, self._task).running

    def close(self) -> None:
        self._running = False


class Preference:
    """The world of continuations.

    Args:
        length: words of a continuation, 32 to 256.
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: a length out of range.
    """

    name = "preference"
    version = "1"
    grammar: Grammar = Plain()
    horizon = 1
    reward_range = (0.0, 1.0)
    blocking = False

    def __init__(self, *, length: int = LENGTH, sizes: Sizes | None = None) -> None:
        if not 32 <= length <= 256:
            raise ConfigError([Problem("length", f"a continuation of {length} words", "give 32 to 256")])
        self.length = length
        self.chains = Chains(self.name, FORMS, _ENTITIES)
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
            yield Candidate(spec, ", ".join(chain), tier, self._text(chain, seed))

    def _text(self, chain: Chain, seed: int) -> str:
        return prompt(chain, Random(sample_seed(self.name, "prompt", seed, *chain)))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def prompt(self, task: Task) -> str:
        """The prompt of a task.

        Raises:
            ConfigError: a task of another world or length, or a spec that names no prompt.
            VersionMismatch: a task of another version.
        """
        check_task(self, task)
        chain, seed, length = (task.spec.get(part) for part in ("chain", "seed", "length"))
        problems = []
        if not isinstance(chain, Sequence) or isinstance(chain, str) or not self.chains.valid(chain):
            problems.append(Problem("chain", f"{chain!r} is no chain of prompts", f"parts: {', '.join(FORMS)}"))
        if type(seed) is not int or seed < 0:
            problems.append(Problem("seed", f"{seed!r} is no number to draw from", "give a whole number from 0 on"))
        if length != self.length:
            problems.append(
                Problem("length", f"{length!r}, but this world has {self.length}", "make it with that length")
            )
        if problems:
            raise ConfigError(problems)
        return self._text(tuple(task.spec["chain"]), task.spec["seed"])

    def key(self, task: Task) -> str:
        """The prompt: equal for copies."""
        return self.prompt(task)

    def make(self, task: Task) -> PreferenceEnv:
        """An Env for one task; raises what `prompt` raises."""
        return PreferenceEnv(task, self.prompt(task), self.length)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """raw = unit = the true reward, success = it is at least `SUCCESS`."""
        return score_of(rewards, self.reward_range, success=SUCCESS)

    def expert(self, task: Task) -> Sequence[str]:
        """One continuation, whose true reward is 1."""
        return [self.continuation(task)]

    def continuation(self, task: Task, *, faults: Faults | None = None, seed: int = 0) -> str:
        """A continuation of a task's prompt, with faults of these rates (none: a flawless one)."""
        rng = Random(sample_seed(self.name, "continuation", seed, task.id))
        return " ".join(continuation(self.prompt(task), rng, faults, length=self.length))

    def quality(self, words: Sequence[str], task: Task) -> Mapping[str, float]:
        """What the true reward of a continuation is made of (`evolvent.worlds.preference.quality`); for evaluation."""
        return quality(words, self.prompt(task), length=self.length)

    def pairs(
        self, split: str, count: int, seed: int, *, tier: str = "seen", temperature: float = 0.1
    ) -> tuple[Pair, ...]:
        """Labelled pairs: two continuations each, from a mixture of qualities, of tasks drawn from a panel.

        The label is drawn by Bradley and Terry: the first is chosen with probability sigmoid((r1 - r2) / temperature),
        r the true rewards. A pair depends on its number and the seed alone, so more pairs begin with the same ones.

        Args:
            temperature: of the labels, above 0; a small one makes them exact.

        Raises:
            ConfigError: an unknown or empty panel, a count below 0, a temperature that is not above 0.
        """
        wrong = [] if count >= 0 else [Problem("count", f"{count} pairs", "give 0 or more")]
        if not temperature > 0:
            wrong.append(Problem("temperature", f"a temperature of {temperature}", "give more than 0"))
        panel = self.tasks(split, tier)
        if not panel:
            wrong.append(Problem("panel", f"no tasks in {split}/{tier}", "choose another"))
        if wrong:
            raise ConfigError(wrong)
        return tuple(self._pair(panel, (split, tier, seed, place), temperature) for place in range(count))

    def _pair(self, panel: Sequence[Task], names: tuple[object, ...], temperature: float) -> Pair:
        rng = Random(sample_seed(self.name, "pair", *names))
        task = rng.choice(panel)
        text = self.prompt(task)
        first, second = (continuation(text, rng, Faults.drawn(rng), length=self.length) for _ in range(2))
        gap = quality(first, text, length=self.length)["reward"] - quality(second, text, length=self.length)["reward"]
        if rng.random() >= 1 / (1 + exp(max(-50.0, min(50.0, -gap / temperature)))):
            first, second = second, first
        return Pair(task, text, " ".join(first), " ".join(second))

    def vocabulary(self) -> Sequence[str]:
        """Every word of prompts, continuations and the last observation, sorted."""
        return sorted({*WORDS, *_END.split()})
