"""A world of generated questions: panels by chains, one step an episode, an expert that shows its rationale.

A world of this kind says how a question is drawn for a chain and a seed; everything else is here.
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
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.episode import OUTCOMES
from evolvent.worlds.reasoning.naming import Pools, canonical, named, pool_words
from evolvent.worlds.reasoning.question import MARK, SEPARATOR, Question
from evolvent.worlds.reasoning.world import Questions

__all__ = ["Generated"]

_KNOWN_TASKS = 4096  # questions kept ready
_NAMINGS, _FIRST_SEEDS = 1_000_000, 840


class Generated(Questions):
    """The world of the questions that `draw` makes.

    Args:
        chains: the kinds of tasks.
        pools: the names that roles can have.
        also: settings that questions depend on beside chain and seed; they stand in every spec.
        sizes: how many tasks the panels hold.
    Attributes:
        words: all other words of observations and demonstrations.
        ending: what every observation ends with.
    """

    words: str
    ending = ""

    def __init__(
        self, chains: Chains, pools: Pools, *, also: Mapping[str, Json] | None = None, sizes: Sizes | None = None
    ) -> None:
        self._also = dict(also or {})
        self.chains, self.pools, self.tiers = chains, pools, chains.tiers
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._candidates)
        self._known: OrderedDict[str, Question] = OrderedDict()

    @abstractmethod
    def draw(self, chain: Chain, seed: int) -> Question | None:
        """The question of a chain and a seed, with roles where names belong; None where these two give none."""

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations and demonstrations, sorted."""
        said = (self.words, MARK, SEPARATOR, *OUTCOMES)
        return sorted({*pool_words(self.pools), *(word for text in said for word in words_of(text))})

    def _candidates(self, tier: str) -> Iterator[Candidate]:
        """Tasks without end. The seeds of a chain count up, so that a world can deal its answers in turn."""
        seeds: dict[Chain, int] = {}
        for chain in self.chains.draw(tier):
            if chain not in seeds:  # where a chain has one task only, answers must be dealt in turn all the same
                seeds[chain] = sample_seed(self.name, "first", *chain) % _FIRST_SEEDS
            seed = seeds[chain]
            seeds[chain] += 1
            drawn = self.draw(chain, seed)
            if drawn is not None:
                names = sample_seed(self.name, "names", seed, *chain) % _NAMINGS
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed, "names": names, **self._also}
                yield Candidate(spec, " ".join(chain), tier, canonical(drawn))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def question(self, task: Task) -> Question:
        """The question of a task.

        Raises:
            ConfigError: a task of another world, or a spec that names no question.
            VersionMismatch: a task of another version.
        """
        found = self._known.get(task.id)
        if found is None:
            found = named(self._drawn(task), self.pools, task.spec["names"])
            found = replace(found, text=found.text + self.ending)
            while len(self._known) >= _KNOWN_TASKS:
                self._known.popitem(last=False)
            self._known[task.id] = found
        return found

    def _drawn(self, task: Task) -> Question:
        check_task(self, task)
        chain, seed, names = (task.spec.get(part) for part in ("chain", "seed", "names"))
        problems = []
        if not isinstance(chain, Sequence) or isinstance(chain, str) or not self.chains.valid(chain):
            known = ", ".join(self.chains.parts)
            problems.append(Problem("chain", f"{chain!r} is no chain of {self.name!r}", f"parts: {known}"))
        for where, value in (("seed", seed), ("names", names)):
            if type(value) is not int or value < 0:
                problems.append(Problem(where, f"{value!r} is no number to draw from", "give a whole number from 0 on"))
        for where, expected in self._also.items():
            if task.spec.get(where) != expected:
                told = f"{task.spec.get(where)!r}, but this world has {expected!r}"
                problems.append(Problem(where, told, "make the world with the settings of the task"))
        if problems:
            raise ConfigError(problems)
        drawn = self.draw(tuple(task.spec["chain"]), task.spec["seed"])
        if drawn is None:
            raise ConfigError("this chain and seed give no question", value=dict(task.spec), expected="another seed")
        return drawn

    def key(self, task: Task) -> str:
        """Equal for tasks that differ in names only; what panels are dealt by."""
        return canonical(self._drawn(task))

    def renamed(self, task: Task, rng: Random) -> Task:
        """The same task under other names: another id, the same key, kind, tier and split."""
        self._drawn(task)
        spec = {**task.spec, "names": rng.randrange(_NAMINGS)}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)
