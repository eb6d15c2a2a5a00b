"""Searches over texts: requests become asks of an engine, and samples become states.

All parts of a request are asked at once, and all new children are scored at once. States hold the engine's
nodes, so every token of the tree is computed once for each model; the last tokens of children that are neither
scored nor expanded never are. Seeds derive from the tokens before, so a sample depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from evolvent.engine.asks import Ask, Continuation, Job, LogitsAsk, Output, SampleAsk
from evolvent.errors import ContextOverflow, EngineError, EvolventError
from evolvent.search.drive import fit_to_budget, run_search
from evolvent.search.isolation import IsolatedAsker
from evolvent.search.meter import Meter, limits_tokens
from evolvent.search.records import Child, ExpandRequest, Request, Response, Spent
from evolvent.search.scorers import Scorer
from evolvent.search.scoring import StateScores
from evolvent.search.writing import TextState, Writing
from evolvent.trajectory import sample_seed

__all__ = ["search_text"]

T = TypeVar("T")


def search_text(search: Generator[Request, Response, T], *, writing: Writing, scorer: Scorer | None = None) -> Job[T]:
    """Runs a search over continuations of a text, as a job for the driver.

    Expanding a state samples `width` spans (or whole texts, or the likeliest one); at token level it takes the
    `width` likeliest tokens, and nothing is sampled. Equal samples are one child, which counts them. A failed
    sample, or a sample that its scorer failed at, is a child with a problem, which the tree lists. A state that is
    over has no child.

    Args:
        search: a `Search`, or a forest, begun at a state of `begin_text`; its values are those of the scorer.
        scorer: scores the spans of all new children together; None: no state has a value.
    Raises:
        StaleNode, WeightsChanged: the engine took other weights meanwhile. ContextOverflow: the prompt is too long.
        TokensMissing: an endpoint that gives no tokens. ConfigError: an ask that the engine does not answer.
        ScoringError: a scorer gave not one score for each end. The errors of the search.
    """
    return run_search(search, _TextAnswerer(writing, scorer).answer)


@dataclass(frozen=True, slots=True)
class _NewState:
    """The extension of a state by an action, before equal ones are merged."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ends: tuple[int, ...]  # in `ids`
    stop: str
    state: TextState
    sampled: int  # tokens


class _TextAnswerer:
    """Answers the requests of one search over texts, with its scores and costs."""

    def __init__(self, writing: Writing, scorer: Scorer | None) -> None:
        self._writing = writing
        self._meter = Meter()
        self._careful = IsolatedAsker(self._meter)
        self._scoring = StateScores(writing, scorer, self._meter)

    def answer(self, request: Request) -> Job[Response]:
        """Samples, scores, and returns the response."""
        self._meter.spent = Spent()
        scoring, expansions = self._scoring, request.expand
        if limits_tokens(request.left):
            worst = (
                [scoring.max_cost([state]) for state in request.evaluate],
                [self._max_cost(expansion) for expansion in expansions],
            )
        else:
            worst = [Spent()] * len(request.evaluate), [Spent()] * len(expansions)
        (num_states, num_expansions), short = fit_to_budget(request, *worst)
        asks = [self._build_asks(expansion) for expansion in expansions[:num_expansions]]
        answers = iter((yield from self._careful.ask([ask for siblings in asks for ask in siblings], request.left)))
        proposed = [
            self._children(expansion, [next(answers) for _ in siblings])
            for expansion, siblings in zip(expansions, asks, strict=False)
        ]
        new_states = [
            child.state
            for expansion, siblings in zip(expansions, proposed, strict=False)
            if expansion.valued
            for child in siblings
            if not child.problem
        ]
        scoring_limit = yield from scoring.score_states([*request.evaluate[:num_states], *new_states], request.left)
        children = [
            [self._with_value(child) for child in siblings] if expansion.valued else siblings
            for expansion, siblings in zip(expansions, proposed, strict=False)
        ]
        values = [scoring.value(state) for state in request.evaluate[:num_states]]
        return Response(
            [*children, *[None] * (len(expansions) - num_expansions)],
            [*values, *[None] * (len(request.evaluate) - num_states)],
            self._meter.spent,
            short or scoring_limit,
        )

    def _max_cost(self, expansion: ExpandRequest) -> Spent:
        """Returns the maximum cost of an expansion."""
        asks = self._build_asks(expansion)
        if not asks:
            return Spent()
        spent = self._meter.max_cost(asks)
        if not expansion.valued:
            return spent
        tokens = max((ask.max_tokens for ask in asks if isinstance(ask, SampleAsk)), default=1)
        children = 1 if expansion.greedy else expansion.width
        has_many_spans = expansion.to_end and self._writing.level == "span" and self._writing.reduce != "last"
        ends = tokens if has_many_spans else 1
        scoring_cost = self._scoring.max_cost_below(
            expansion.state, children=children, tokens=tokens, ends=ends, to_end=expansion.to_end
        )
        return spent + scoring_cost

    def _build_asks(self, expansion: ExpandRequest) -> list[Ask]:
        """Returns the asks of an expansion; at token level they keep the node, which would otherwise be forgotten."""
        state: TextState = expansion.state
        if state.above is None and state.length >= self._writing.context:
            raise ContextOverflow(
                "a prompt that leaves no room to write",
                value=f"{state.length} tokens",
                expected=f"fewer than {self._writing.context}",
            )
        if state.stop:
            return []
        if self._writing.level == "token" and not expansion.to_end:
            return [LogitsAsk(state.node, state.pending, keep=True)]
        if expansion.greedy:
            seeds: tuple[int, ...] = (0,)
        else:
            level = "whole" if expansion.to_end else "span"
            numbers = range(expansion.first, expansion.first + expansion.width)
            seeds = tuple(sample_seed(state.seed, level, expansion.kind, number) for number in numbers)
        build_ask = self._writing.rest if expansion.to_end else self._writing.span
        return [build_ask(state, seeds, greedy=expansion.greedy)]

    def _children(self, expansion: ExpandRequest, answers: Sequence[Any]) -> list[Child]:
        """Returns the children of an expansion; equal ones are one."""
        if not answers:
            return []
        if isinstance(answers[0], tuple):
            new_states = [self._state_from_sample(expansion, sample) for sample in answers[0]]
        else:
            new_states = self._likeliest_tokens(expansion, answers[0])
        children: dict[tuple[int, ...], Child] = {}
        problems = []
        for new_state in new_states:
            if isinstance(new_state, EvolventError):
                problems.append(Child(expansion.state, kind=expansion.kind, problem=str(new_state)))
            elif new_state.ids in children:
                equal_child = children[new_state.ids]
                children[new_state.ids] = replace(
                    equal_child, count=equal_child.count + 1, generated=equal_child.generated + new_state.sampled
                )
            else:
                children[new_state.ids] = Child(
                    new_state.state,
                    self._writing.text(new_state.ids),
                    float(np.mean(new_state.logprobs)),
                    terminal=bool(new_state.stop),
                    generated=new_state.sampled,
                    kind=expansion.kind,
                )
        return [*children.values(), *problems]

    def _state_from_sample(
        self, expansion: ExpandRequest, sample: Continuation | EvolventError
    ) -> _NewState | EvolventError:
        """Converts one sample to a state. A whole text is cut where it was over, though more was written."""
        if isinstance(sample, EvolventError):
            return sample
        if not len(sample.ids):
            return EngineError("an empty completion", value=sample.stop, expected="at least one token")
        above: TextState = expansion.state
        ids, stop = tuple(sample.ids.tolist()), ""
        ends = self._writing.spans(ids) if expansion.to_end else (len(ids),)
        for index, end in enumerate(ends):
            stop = self._writing.over((*above.written, *ids[:end]), above.length + end)
            if stop:
                ends = ends[: index + 1]
                break
        kept_ids = ids[: ends[-1]]
        is_uncut = len(kept_ids) == len(ids)
        logprobs = tuple(sample.logprobs[: len(kept_ids)].tolist())
        state = replace(
            self._extend_state(above, kept_ids, logprobs),
            stop=stop,
            ends=_extend_ends(above, ends),
            node=sample.node if is_uncut else above.node,
            pending=() if is_uncut else (*above.pending, *kept_ids),
        )
        return _NewState(kept_ids, logprobs, ends, stop, state, len(ids))

    def _likeliest_tokens(
        self, expansion: ExpandRequest, output: Output | EvolventError
    ) -> list[_NewState | EvolventError]:
        """Returns the likeliest tokens after a state, the lower id first among equals."""
        if isinstance(output, EvolventError):
            return [output]
        above: TextState = expansion.state
        temperature = self._writing.sampling.temperature or 1.0
        scaled = output.values.astype(np.float64) / temperature
        logprobs = scaled - scaled.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        token_ids = np.argsort(-logprobs, kind="stable")[expansion.after :][
            : 1 if expansion.greedy else expansion.width
        ]
        above = replace(above, node=output.node, pending=())
        return [
            self._state_from_token(expansion.state, above, int(token), float(logprobs[token]))
            for token in token_ids
            if logprobs[token] > -np.inf
        ]

    def _state_from_token(self, above: TextState, node_state: TextState, token: int, logprob: float) -> _NewState:
        """Returns a state with one more token, which was not fed yet."""
        stop = self._writing.over((*above.written, token), above.length + 1)
        state = replace(
            self._extend_state(above, (token,), (logprob,)),
            stop=stop,
            ends=_extend_ends(above, (1,)),
            node=node_state.node,
            pending=(*node_state.pending, token),
        )
        return _NewState((token,), (logprob,), (1,), stop, state, 0)

    def _extend_state(self, above: TextState, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> TextState:
        written = (*above.written, *ids)
        return TextState(
            above.prompt,
            written,
            (*above.logprobs, *logprobs),
            above.ends,
            None,
            (),
            self._writing.text(written),
            seed=sample_seed(above.seed, *ids),
            above=above,
            version=self._writing.version,
        )

    def _with_value(self, child: Child) -> Child:
        if child.problem:
            return child
        problem = self._scoring.problem(child.state)
        if problem:
            return replace(child, problem=problem)
        return replace(
            child,
            value=None if self._scoring.none else self._scoring.value(child.state),
            scores=self._scoring.scores(child.state),
        )


def _extend_ends(above: TextState, ends: Sequence[int]) -> tuple[int, ...]:
    return (*above.ends, *(len(above.written) + end for end in ends))
