"""A world of generated questions: panels by chains, one step per episode, an expert that shows its rationale.

A concrete world defines how a question is drawn for a chain and a seed; this module does the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Task, sample_seed
from evolvent.worlds.base import check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.episode import OUTCOMES
from evolvent.worlds.reasoning.naming import Pools, digest_question, insert_names, pool_words
from evolvent.worlds.reasoning.question import MARK, SEPARATOR, Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["Generated"]

_MAX_CACHED_QUESTIONS = 4096  # questions kept ready
_NAMINGS, _FIRST_SEEDS = 1_000_000, 840


class Generated(DealtOnce, Questions):
    """A world whose questions are made by `draw`.

    Args:
        chains: the kinds of tasks.
        pools: the names that roles can have.
        extra_spec: settings, besides chain and seed, on which questions depend; they are part of every spec.
        sizes: panel sizes.
    Attributes:
        vocabulary_source: all other words of observations and demonstrations.
        ending: the end of every observation.
    """

    vocabulary_source: str
    ending = ""

    def __init__(
        self, chains: Chains, pools: Pools, *, extra_spec: Mapping[str, Json] | None = None, sizes: Sizes | None = None
    ) -> None:
        self._also = dict(extra_spec or {})
        self.chains, self.pools, self.tiers = chains, pools, chains.tiers
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._candidates, recipe=self.recipe
        )
        self._known: OrderedDict[str, Question] = OrderedDict()

    @abstractmethod
    def draw(self, chain: Chain, seed: int) -> Question | None:
        """Draws the question of a chain and a seed, with roles instead of names; None if no question results."""

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations and demonstrations, sorted."""
        texts = (self.vocabulary_source, MARK, SEPARATOR, *OUTCOMES)
        return sorted({*pool_words(self.pools), *(word for text in texts for word in words_of(text))})

    def _candidates(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end. The seeds of a chain count up, so that a world can cycle through its answers."""
        seeds: dict[Chain, int] = {}
        for chain in self.chains.draw(tier):
            if chain not in seeds:  # where a chain has one task only, answers must be dealt in turn all the same
                seeds[chain] = sample_seed(self.name, "first", *chain) % _FIRST_SEEDS
            seed = seeds[chain]
            seeds[chain] += 1
            question = self.draw(chain, seed)
            if question is not None:
                names = sample_seed(self.name, "names", seed, *chain) % _NAMINGS
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed, "names": names, **self._also}
                yield Candidate(spec, " ".join(chain), tier, digest_question(question))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def question(self, task: Task) -> Question:
        """Returns the question of a task.

        Raises:
            ConfigError: a task of another world, or a spec that names no question.
            VersionMismatch: a task of another version.
        """
        question = self._known.get(task.id)
        if question is None:
            question = insert_names(self._draw_task(task), self.pools, task.spec["names"])
            question = replace(question, text=question.text + self.ending)
            while len(self._known) >= _MAX_CACHED_QUESTIONS:
                self._known.popitem(last=False)
            self._known[task.id] = question
        return question

    def _draw_task(self, task: Task) -> Question:
        check_task(self, task)
        chain, seed, names = (task.spec.get(field) for field in ("chain", "seed", "names"))
        problems = []
        if not isinstance(chain, Sequence) or isinstance(chain, str) or not self.chains.is_valid(chain):
            parts = ", ".join(self.chains.parts)
            problems.append(Problem("chain", f"unknown chain {chain!r} of world {self.name!r}", f"parts: {parts}"))
        for key, value in (("seed", seed), ("names", names)):
            if type(value) is not int or value < 0:
                problems.append(Problem(key, f"got {value!r}, expected a whole number of 0 or more"))
        for key, expected in self._also.items():
            if task.spec.get(key) != expected:
                mismatch = f"got {task.spec.get(key)!r}, but this world has {expected!r}"
                problems.append(Problem(key, mismatch, "create the world with the settings of the task"))
        if problems:
            raise ConfigError(problems)
        question = self.draw(tuple(task.spec["chain"]), task.spec["seed"])
        if question is None:
            raise ConfigError("no question for this chain and seed", value=dict(task.spec), expected="another seed")
        return question

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names; panels are dealt by it."""
        return digest_question(self._draw_task(task))

    def rename(self, task: Task, rng: Random) -> Task:
        """The same task under other names: another id, the same key, kind, tier and split."""
        self._draw_task(task)
        spec = {**task.spec, "names": rng.randrange(_NAMINGS)}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)
