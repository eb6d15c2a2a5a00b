"""rStar's kinds of actions over a model: each has its own prompt, and its reply makes a solution.

The texts are those of `search/rstar_prompts.py`. Replies to prompts with a common beginning share its
computation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from evolvent.engine.asks import GREEDY, Continuation, Job, RoutedAsk, SampleAsk
from evolvent.errors import EvolventError
from evolvent.search.drive import fit_to_budget, run_search
from evolvent.search.isolation import IsolatedAsker
from evolvent.search.meter import Meter
from evolvent.search.records import Child, ExpandRequest, Request, Response, Spent
from evolvent.search.rstar_prompts import Solution, build_prompt, extend_solution, is_ended, stop_strings
from evolvent.search.writing import Writing
from evolvent.trajectory import Generation, sample_seed

__all__ = ["Completer", "SolutionState", "begin_solution", "search_solutions"]

MASKED = "mutual"  # the kind of wishes by which `rstar.mutual_consistency` has masked solutions completed
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completer:
    """A source of replies: the policy, or another model that completes masked solutions.

    Args:
        encode: the tokens of a prompt, up to where the reply begins: `lambda text: dialect.open("", text)`.
        writing: samples and reads replies; `span_tokens` is the maximum of a step's, `max_tokens` that of a request
            for the whole rest.
        model: its name among several engines, which may read other tokens; None: the engine that writes.
    """

    encode: Callable[[str], Sequence[int]]
    writing: Writing
    model: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SolutionState:
    """A solution so far, and the model's tokens for its last step (None at the root)."""

    solution: Solution
    seed: int
    generation: Generation | None = None
    above: SolutionState | None = None


def begin_solution(problem: str, *, seed: int = 0) -> SolutionState:
    """Returns the root of a search for a solution; every sample derives from the seed and the solution before it."""
    return SolutionState(Solution(problem), sample_seed(seed, "solution", problem))


def search_solutions(
    search: Generator[Request, Response, T],
    *,
    encode: Callable[[str], Sequence[int]],
    writing: Writing,
    judge: Completer | None = None,
) -> Job[T]:
    """Runs a search over solutions (`rstar`), as a job for the driver. States have no values.

    A request of a kind samples replies to the kind's prompt; equal solutions are one child, which counts them. A
    reply that makes no solution is a child with a problem; where the whole rest was requested it is an end without
    an answer.

    Args:
        search: a `Search`, or a forest, begun at a state of `begin_solution`; the answer of a state is
            `read_answer(state.solution)`.
        encode, writing: those of the policy, see `Completer`.
        judge: completes masked solutions (requests of the kind "mutual"); None: the policy itself.
    Raises:
        ConfigError: a request without kind. ContextOverflow: a prompt that does not fit. Else as `search_text`.
    """
    policy_completer = Completer(encode, writing)
    return run_search(search, _SolutionAnswerer(policy_completer, judge or policy_completer).answer)


class _SolutionAnswerer:
    """Answers the requests of one search over solutions."""

    def __init__(self, policy_completer: Completer, judge: Completer) -> None:
        self._own, self._judge = policy_completer, judge
        self._meter = Meter()
        self._careful = IsolatedAsker(self._meter)

    def answer(self, request: Request) -> Job[Response]:
        """Submits the asks of a request, reads the replies, and returns the response."""
        self._meter.spent = Spent()
        asks = [self._build_ask(expansion) for expansion in request.expand]
        no_cost = [Spent()] * len(request.evaluate)
        worst = [Spent() if ask is None else self._meter.max_cost([ask]) for ask in asks]
        (num_states, num_expansions), short = fit_to_budget(request, no_cost, worst)
        answers = iter(
            (yield from self._careful.ask([ask for ask in asks[:num_expansions] if ask is not None], request.left))
        )
        children = [
            [_overlong_child(expansion)] if ask is None else self._children(expansion, ask, next(answers))
            for expansion, ask in zip(request.expand[:num_expansions], asks, strict=False)
        ]
        values = [float("nan") if index < num_states else None for index in range(len(request.evaluate))]
        unanswered = [None] * (len(asks) - num_expansions)
        return Response([*children, *unanswered], values, self._meter.spent, short)

    def _completer(self, expansion: ExpandRequest) -> Completer:
        return self._judge if expansion.kind == MASKED else self._own

    def _build_ask(self, expansion: ExpandRequest) -> SampleAsk | RoutedAsk | None:
        """Returns the ask of an expansion; None: the prompt leaves no room to reply.

        At the root the policy is asked anyway, so that its error is raised at once.
        """
        completer, state = self._completer(expansion), expansion.state
        writing = completer.writing
        ids = [int(token) for token in completer.encode(build_prompt(state.solution, expansion.kind))]
        max_tokens = min(writing.max_tokens if expansion.to_end else writing.span_tokens, writing.context - len(ids))
        if max_tokens < 1 and (state.above is not None or expansion.kind == MASKED):
            return None
        seeds = tuple(
            sample_seed(state.seed, expansion.kind, number)
            for number in range(expansion.first, expansion.first + (1 if expansion.greedy else expansion.width))
        )
        sampling = GREEDY if expansion.greedy else writing.sampling
        ask = SampleAsk(None, ids, max(1, max_tokens), writing.stop_ids, stop_strings(expansion.kind), sampling, seeds)
        return ask if completer.model is None else RoutedAsk(completer.model, ask)

    def _children(
        self, expansion: ExpandRequest, sent_ask: SampleAsk | RoutedAsk, samples: Sequence[Any]
    ) -> list[Child]:
        """Returns the children of an expansion; equal solutions are one."""
        ask = sent_ask.ask if isinstance(sent_ask, RoutedAsk) else sent_ask
        children: dict[Solution, Child] = {}
        problems = []
        for sample in samples:
            child = self._child(expansion, ask, sample)
            equal_child = children.get(child.state.solution)
            if child.problem:
                problems.append(child)
            elif equal_child is None:
                children[child.state.solution] = child
            else:
                children[child.state.solution] = replace(
                    equal_child, count=equal_child.count + 1, generated=equal_child.generated + child.generated
                )
        return [*children.values(), *problems]

    def _child(self, expansion: ExpandRequest, ask: Any, sample: Continuation | EvolventError) -> Child:
        state: SolutionState = expansion.state
        if isinstance(sample, EvolventError):
            return Child(state, kind=expansion.kind, problem=str(sample))
        writing = self._completer(expansion).writing
        reply = writing.text(sample.ids.tolist())
        cut = min(
            [position for stop in ask.stop_strings if (position := reply.find(stop, _text_start(reply))) >= 0],
            default=len(reply),
        )
        solution = extend_solution(state.solution, expansion.kind, reply[:cut])
        if solution is None and expansion.to_end and len(sample.ids):  # it says that there is nothing to add
            solution = replace(state.solution, is_complete=True)
        if solution is None or not len(sample.ids):
            return Child(
                state,
                reply,
                kind=expansion.kind,
                generated=len(sample.ids),
                problem="a reply that makes no step of a solution",
            )
        num_read = len(ask.tokens)
        ids = np.concatenate([np.asarray(ask.tokens, np.int32), sample.ids])
        logprobs = np.concatenate([np.zeros(num_read, np.float32), sample.logprobs])
        generation = Generation(
            ids,
            np.arange(len(ids)) >= num_read,
            logprobs,
            policy_version=writing.version,
            stop=sample.stop,
            model_logprobs=sample.pad_model_logprobs(num_read),
        )
        child_state = SolutionState(
            solution, sample_seed(state.seed, expansion.kind, *ids[num_read:].tolist()), generation, state
        )
        return Child(
            child_state,
            reply[:cut].strip(),
            float(np.mean(sample.logprobs)),
            terminal=is_ended(solution),
            generated=len(sample.ids),
            kind=expansion.kind,
        )


def _overlong_child(expansion: ExpandRequest) -> Child:
    return Child(expansion.state, kind=expansion.kind, problem="the prompt for it leaves no room in the context")


def _text_start(reply: str) -> int:
    """Returns where a reply's text begins."""
    return len(reply) - len(reply.lstrip())
