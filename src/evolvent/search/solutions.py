"""rStar's kinds of actions over a model: each is asked for in a prompt of its own, and its reply makes a solution.

The texts are those of `search/rstar_prompts.py`. Replies to prompts that begin alike share what is computed of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from evolvent.engine.asks import GREEDY, Continuation, SampleAsk, To, Work
from evolvent.errors import EvolventError
from evolvent.search.drive import answered, fitting
from evolvent.search.isolation import Careful
from evolvent.search.meter import Meter
from evolvent.search.records import Child, Expand, Found, Spent, Wanted
from evolvent.search.rstar_prompts import Solution, after, ended, prompt, stops
from evolvent.search.writing import Writing
from evolvent.trajectory import Generation, sample_seed

__all__ = ["Completer", "SolutionState", "begin_solution", "over_solutions"]

MASKED = "mutual"  # the kind of wishes by which `rstar.mutual_consistency` has masked solutions completed
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completer:
    """Who is asked for replies: the policy, or another model that completes masked solutions.

    Args:
        encode: the tokens of a prompt, up to where the reply begins: `lambda text: dialect.open("", text)`.
        writing: how replies are sampled and read; `span_tokens` is the most of a step's, `max_tokens` that of a wish
            for the whole rest.
        model: its name among several engines, which may read other tokens; None: the engine that writes.
    """

    encode: Callable[[str], Sequence[int]]
    writing: Writing
    model: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SolutionState:
    """A solution so far, and what the model read and wrote for its last step (None at the root)."""

    solution: Solution
    seed: int
    generation: Generation | None = None
    above: SolutionState | None = None


def begin_solution(problem: str, *, seed: int = 0) -> SolutionState:
    """The root of a search for a solution; every sample derives from the seed and the solution before it."""
    return SolutionState(Solution(problem), sample_seed(seed, "solution", problem))


def over_solutions(
    search: Generator[Wanted, Found, T],
    *,
    encode: Callable[[str], Sequence[int]],
    writing: Writing,
    judge: Completer | None = None,
) -> Work[T]:
    """A search over solutions (`rstar`), as a work for the driver. States have no values.

    A wish of a kind samples replies to the kind's prompt; equal solutions are one child, which counts them. A reply
    that makes no solution is a child with a problem; where the whole rest was wanted it is an end without an answer.

    Args:
        search: a `Search`, or a forest, begun at a state of `begin_solution`; the answer of a state is
            `answer_of(state.solution)`.
        encode, writing: those of the policy, see `Completer`.
        judge: who completes masked solutions (wishes of the kind "mutual"); None: the policy itself.
    Raises:
        ConfigError: a wish without kind. ContextOverflow: a prompt that does not fit. Else as `over_text`.
    """
    own = Completer(encode, writing)
    return answered(search, _Solutions(own, judge or own).answer)


class _Solutions:
    """One search over solutions."""

    def __init__(self, own: Completer, judge: Completer) -> None:
        self._own, self._judge = own, judge
        self._meter = Meter()
        self._careful = Careful(self._meter)

    def answer(self, wanted: Wanted) -> Work[Found]:
        """Ask, read the replies, and tell."""
        self._meter.spent = Spent()
        asks = [self._ask(wish) for wish in wanted.expand]
        free = [Spent()] * len(wanted.evaluate)
        worst = [Spent() if ask is None else self._meter.worst([ask]) for ask in asks]
        (states, begun), short = fitting(wanted, free, worst)
        answers = iter((yield from self._careful.asked([ask for ask in asks[:begun] if ask is not None], wanted.left)))
        children = [
            [_too_long(wish)] if ask is None else self._children(wish, ask, next(answers))
            for wish, ask in zip(wanted.expand[:begun], asks, strict=False)
        ]
        values = [float("nan") if at < states else None for at in range(len(wanted.evaluate))]
        rest = [None] * (len(asks) - begun)
        return Found([*children, *rest], values, self._meter.spent, short)

    def _who(self, wish: Expand) -> Completer:
        return self._judge if wish.kind == MASKED else self._own

    def _ask(self, wish: Expand) -> SampleAsk | To | None:
        """None: the prompt leaves no room to reply. The policy is asked at the root anyway, which says so at once."""
        who, state = self._who(wish), wish.state
        writing = who.writing
        ids = [int(token) for token in who.encode(prompt(state.solution, wish.kind))]
        most = min(writing.max_tokens if wish.whole else writing.span_tokens, writing.context - len(ids))
        if most < 1 and (state.above is not None or wish.kind == MASKED):
            return None
        seeds = tuple(
            sample_seed(state.seed, wish.kind, number)
            for number in range(wish.first, wish.first + (1 if wish.greedy else wish.width))
        )
        sampling = GREEDY if wish.greedy else writing.sampling
        ask = SampleAsk(None, ids, max(1, most), writing.stop_ids, stops(wish.kind), sampling, seeds)
        return ask if who.model is None else To(who.model, ask)

    def _children(self, wish: Expand, asked: SampleAsk | To, samples: Sequence[Any]) -> list[Child]:
        """The children of a wish; equal solutions are one."""
        ask = asked.ask if isinstance(asked, To) else asked
        found: dict[Solution, Child] = {}
        problems = []
        for sample in samples:
            child = self._child(wish, ask, sample)
            same = found.get(child.state.solution)
            if child.problem:
                problems.append(child)
            elif same is None:
                found[child.state.solution] = child
            else:
                found[child.state.solution] = replace(
                    same, count=same.count + 1, generated=same.generated + child.generated
                )
        return [*found.values(), *problems]

    def _child(self, wish: Expand, ask: Any, sample: Continuation | EvolventError) -> Child:
        state: SolutionState = wish.state
        if isinstance(sample, EvolventError):
            return Child(state, kind=wish.kind, problem=str(sample))
        writing = self._who(wish).writing
        reply = writing.text(sample.ids.tolist())
        cut = min(
            [place for stop in ask.stop_strings if (place := reply.find(stop, _begun(reply))) >= 0], default=len(reply)
        )
        solution = after(state.solution, wish.kind, reply[:cut])
        if solution is None and wish.whole and len(sample.ids):  # it says that there is nothing to add
            solution = replace(state.solution, whole=True)
        if solution is None or not len(sample.ids):
            return Child(
                state,
                reply,
                kind=wish.kind,
                generated=len(sample.ids),
                problem="a reply that makes no step of a solution",
            )
        read = len(ask.tokens)
        ids = np.concatenate([np.asarray(ask.tokens, np.int32), sample.ids])
        logprobs = np.concatenate([np.zeros(read, np.float32), sample.logprobs])
        generation = Generation(
            ids, np.arange(len(ids)) >= read, logprobs, policy_version=writing.version, stop=sample.stop
        )
        below = SolutionState(solution, sample_seed(state.seed, wish.kind, *ids[read:].tolist()), generation, state)
        return Child(
            below,
            reply[:cut].strip(),
            float(np.mean(sample.logprobs)),
            terminal=ended(solution),
            generated=len(sample.ids),
            kind=wish.kind,
        )


def _too_long(wish: Expand) -> Child:
    return Child(wish.state, kind=wish.kind, problem="the prompt for it leaves no room in the context")


def _begun(reply: str) -> int:
    """Where a reply's text begins."""
    return len(reply) - len(reply.lstrip())
