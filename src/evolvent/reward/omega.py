"""OmegaPRM: where wrong solutions go wrong, found by bisection in one tree (Luo et al., arXiv 2406.06592).

MC(s) is the share of right completions of a state s, a response cut at the end of a span. Wrong completions r of states
with 0 < MC < 1 wait in a pool. The pair of highest priority

    alpha^(1 - MC(s)) beta^(words(r) / L) + c sqrt(sum_i N(s_i)) / (1 + N(s))

is taken out for good, and its first wrong span is searched for: the prefix up to the middle becomes a state with k
completions of its own; MC = 0 goes left of it, anything more goes right of it. A sum of 0 visits counts as 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, Problem
from evolvent.reward.labels import SpanLabels
from evolvent.reward.rollouts import Completer, Rollout, completions, share
from evolvent.trajectory import sample_seed

__all__ = ["Omega", "OmegaTree", "State", "first_error", "omega", "priority"]

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Omega:
    """The constants of the paper.

    Args:
        c: of the exploring term. alpha: in 0..1, how strongly states of high MC are preferred. beta: in 0..1, how
            strongly short completions are. length: L, in words.
        completions: k, of each state.
        searches: most bisections. rollouts: most completions in all; the first k are always taken.
    Raises:
        ConfigError: values out of range, all at once.
    """

    c: float = 0.125
    alpha: float = 0.5
    beta: float = 0.9
    length: float = 500.0
    completions: int = 16
    searches: int = 20
    rollouts: int = 200

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.c < math.inf, "c", "0 or more"),
            (0 < self.alpha <= 1, "alpha", "above 0 and at most 1"),
            (0 < self.beta <= 1, "beta", "above 0 and at most 1"),
            (0 < self.length < math.inf, "length", "above 0"),
            (self.completions >= 1, "completions", "1 or more"),
            (self.searches >= 1, "searches", "1 or more"),
            (self.rollouts >= self.completions, "rollouts", f"{self.completions} or more"),
        )
        problems = [
            Problem(name, f"must be {what}, got {getattr(self, name)}") for kept, name, what in rules if not kept
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class State:
    """A response cut at the end of a span.

    Attributes:
        ids: its tokens, those of the prompt apart. ends: where its spans end in them, exclusive.
        parent: the state from which it was reached; None for the root.
        mc: the share of right completions; None where none could be graded. A finished response is right or not: 1, 0.
        visits: N(s), how often a completion of it was taken.
        finished: whether it is a whole response, which was graded itself.
    """

    ids: Ids
    ends: tuple[int, ...]
    parent: int | None
    mc: float | None
    visits: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class OmegaTree:
    """What was found for one prompt.

    Attributes:
        states: all tested prefixes, the root (no span) first, and the right completions as finished ones.
        searches: bisections begun. rollouts: completions sampled. ungraded: those that could not be graded.
        generated: tokens sampled. What was computed for them is in the engine's `usage`.
        ended: what ended it: one of the two limits, or an empty pool.
    """

    prompt: Ids
    states: tuple[State, ...]
    searches: int
    rollouts: int
    ungraded: int
    generated: int
    ended: Literal["searches", "rollouts", "pool"]

    def chains(self) -> list[tuple[tuple[Ids, ...], tuple[float | None, ...]]]:
        """Every longest response as its spans, and for each the MC of the prefix that it ends; None: not tested."""
        known = {state.ids: state.mc for state in self.states}
        inside = {state.ids[:end] for state in self.states for end in state.ends[:-1]}
        found = []
        for state in self.states:
            if state.ends and state.ids not in inside:
                cuts = list(zip((0, *state.ends), state.ends, strict=False))
                labels = tuple(known.get(state.ids[:end]) for end in state.ends)
                found.append((tuple(state.ids[a:b] for a, b in cuts), labels))
        return found

    def labels(self, question: str, text: Callable[[Sequence[int]], str]) -> list[SpanLabels]:
        """The chains as text."""
        return [
            SpanLabels(question, tuple(text(span) for span in spans), labels, "omega")
            for spans, labels in self.chains()
        ]


def priority(mc: float, words: int, *, visits: int, total: int, config: Omega) -> float:
    """What a pair (state, wrong completion) is worth: see the head of this file.

    Args:
        mc: of the state. words: of the completion. visits: N(s). total: the sum of all N.
    """
    exploit: float = config.alpha ** (1.0 - mc) * config.beta ** (words / config.length)
    return exploit + config.c * math.sqrt(max(total, 1)) / (1 + visits)


# ------------------------------------------------------------------ bisection


def _bisection(count: int) -> Generator[int, bool, int]:
    """Asks for spans, is told whether the prefix up to and with them is dead, returns the first dead one."""
    low, high = 0, count - 1
    while low <= high:
        middle = (low + high) // 2
        if (yield middle):
            high = middle - 1
        else:
            low = middle + 1
    return low


def first_error(value: Callable[[int], float], count: int) -> tuple[int, tuple[int, ...]]:
    """The first of `count` spans after which nothing comes right any more, and the spans that were probed.

    Args:
        value: MC of the prefix that a span ends, counted from 0; exact values fall to 0 once and for all.
    Returns:
        The span (`count`: there is none), and at most `ceil(log2(count + 1))` probes.
    """
    search, probed = _bisection(count), []
    try:
        middle = next(search)
        while True:
            probed.append(middle)
            middle = search.send(value(middle) == 0)
    except StopIteration as stop:
        return int(stop.value), tuple(probed)


# ------------------------------------------------------------------ the tree


def omega(
    prompt: Sequence[int],
    completer: Completer,
    *,
    split: Callable[[Sequence[int]], Sequence[int]],
    config: Omega | None = None,
    seed: int = 0,
    name: str = "",
) -> Work[OmegaTree]:
    """Build the tree of one prompt, as a work for the driver.

    A prefix that two completions share is tested once. Seeds depend on `seed`, `name` and the tokens of the prefix, so
    that the tree depends on nothing else. The limit of completions is never passed.

    Args:
        split: where the spans of written tokens end, exclusive (`solutions.span_ends`).
        name: tells prompts apart, for the seeds.
    """
    growing = _Growing(tuple(prompt), completer, split, config or Omega(), (seed, "omega", name))
    return (yield from growing.run())


@dataclass(slots=True)
class _Growing:
    prompt: Ids
    completer: Completer
    split: Callable[[Sequence[int]], Sequence[int]]
    config: Omega
    seeds: tuple[object, ...]
    states: list[State] = field(default_factory=list)
    places: dict[Ids, int] = field(default_factory=dict)
    pool: dict[tuple[int, Ids], tuple[int, Rollout]] = field(default_factory=dict)  # (state, ids) -> (words, rollout)
    searches: int = 0
    rollouts: int = 0
    ungraded: int = 0
    generated: int = 0

    def run(self) -> Work[OmegaTree]:
        yield from self._tested((), (), None)
        ended: Literal["searches", "rollouts", "pool"] | None = None
        while ended is None:
            if not self.pool:
                ended = "pool"
            elif self.searches >= self.config.searches:
                ended = "searches"
            elif not self._affordable():
                ended = "rollouts"
            else:
                at, rollout = self._popped()
                self.searches += 1
                if not (yield from self._searched(at, rollout)):
                    ended = "rollouts"
        return OmegaTree(
            self.prompt, tuple(self.states), self.searches, self.rollouts, self.ungraded, self.generated, ended
        )

    def _affordable(self) -> bool:
        return self.rollouts + self.config.completions <= self.config.rollouts

    def _popped(self) -> tuple[int, Rollout]:
        """The pair of highest priority, the oldest of equal ones; it is taken out, and its state counts a visit."""
        total = sum(state.visits for state in self.states)

        def worth(key: tuple[int, Ids]) -> float:
            state = self.states[key[0]]
            return priority(state.mc or 0.0, self.pool[key][0], visits=state.visits, total=total, config=self.config)

        best = max(self.pool, key=worth)
        _, rollout = self.pool.pop(best)
        state = self.states[best[0]]
        self.states[best[0]] = replace(state, visits=state.visits + 1)
        return best[0], rollout

    def _searched(self, at: int, rollout: Rollout) -> Work[bool]:
        """Look for the first wrong span of a wrong completion; every prefix on the way becomes a state.

        Returns:
            Whether the limit of completions let it.
        """
        base, ends = self.states[at], self._cut(rollout.ids)
        search = _bisection(len(ends))
        try:
            middle = next(search)
            while True:
                ids = (*base.ids, *rollout.ids[: ends[middle]])
                cuts = (*base.ends, *(len(base.ids) + end for end in ends[: middle + 1]))
                if middle == len(ends) - 1:  # the whole response, which is known to be wrong
                    found = self._added(State(ids, cuts, at, 0.0, finished=True))
                else:
                    if ids not in self.places and not self._affordable():
                        return False
                    found = yield from self._tested(ids, cuts, at)
                value = self.states[found].mc
                if value is None:  # nothing could be graded: it cannot be said on which side to go on
                    return True
                at = found if value > 0 else at
                middle = search.send(value == 0)
        except StopIteration:
            return True

    def _tested(self, ids: Ids, ends: tuple[int, ...], parent: int | None) -> Work[int]:
        """The state of a prefix; a new one gets its completions, the right ones become leaves, wrong ones may wait."""
        if ids in self.places:
            return self.places[ids]
        seeds = [sample_seed(*self.seeds, *ids, "completion", k) for k in range(self.config.completions)]
        (found,) = yield from completions(self.prompt, [ids], self.completer, seeds=[seeds])
        self.rollouts += len(found)
        self.ungraded += sum(rollout.correct is None for rollout in found)
        self.generated += sum(len(rollout.ids) for rollout in found)
        value = share(found)
        at = self._added(State(ids, ends, parent, value))
        for rollout in found:
            if rollout.correct:
                cuts = (*ends, *(len(ids) + end for end in self._cut(rollout.ids)))
                self._added(State((*ids, *rollout.ids), cuts, at, 1.0, finished=True))
            elif rollout.correct is False and value:
                words = len(self.completer.text(rollout.ids).split())
                self.pool.setdefault((at, rollout.ids), (words, rollout))
        return at

    def _cut(self, ids: Ids) -> tuple[int, ...]:
        """The ends of the spans of written tokens, the last one at their end."""
        ends = tuple(self.split(ids))
        return ends if ends and ends[-1] == len(ids) else (*ends, len(ids))

    def _added(self, state: State) -> int:
        if state.ids not in self.places:
            self.places[state.ids] = len(self.states)
            self.states.append(state)
        return self.places[state.ids]
