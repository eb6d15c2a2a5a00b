"""Searches over texts: requests become asks of an engine, and samples become states.

All parts of a request are asked at once, and all new children are scored at once. States hold the engine's
nodes, so every token of the tree is computed once for each model; the last tokens of children that are neither
scored nor expanded never are. Seeds derive from the tokens before, so a sample depends on nothing else.

Values of text states: the spans still to be scored, all of them at once, and the value that scores make.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from evolvent.engine.asks import Ask, Continuation, Job, LogitsAsk, Output, SampleAsk
from evolvent.errors import ContextOverflow, EngineError, EvolventError, ScoringError
from evolvent.search.budgeted import request_in_parts
from evolvent.search.drive import fit_to_budget, run_search
from evolvent.search.isolation import IsolatedAsker, is_recoverable
from evolvent.search.meter import Meter, limits_tokens
from evolvent.search.records import Budget, Child, EndedBy, ExpandRequest, Request, Response, Spent
from evolvent.search.scorers import BoundedScorer, Ending, Scorer
from evolvent.search.writing import TextState, Writing
from evolvent.trajectory import sample_seed

__all__ = ["StateScores", "search_text"]


class StateScores:
    """The scores of one search's states. The root is scored at its prompt's end, which is not a span of the text.

    Args:
        writing: converts scores to a value. scorer: None: there are no scores. meter: counts their costs.
    """

    def __init__(self, writing: Writing, scorer: Scorer | None, meter: Meter) -> None:
        self._writing, self._scorer, self._meter = writing, scorer, meter
        self._scores: dict[TextState, tuple[float, ...]] = {}
        self._problems: dict[TextState, str] = {}

    def score_states(self, states: Sequence[TextState], left: Budget) -> Job[EndedBy | None]:
        """Scores all spans that the values of these states need; one that fails does not stop the others.

        Returns:
            the limit that some of it did not fit; None: all is known now.
        Raises:
            ScoringError: not one score for each end. EvolventError: one that is not `isolation.is_recoverable`.
        """
        needed = states if self._scorer is not None else ()
        pending = list(dict.fromkeys(due_state for state in needed for due_state in self._unscored_path(state)))
        return (
            yield from request_in_parts(
                pending, partial(self._request_scores, left=left), problems=self._problems, is_due=self._is_unscored
            )
        )

    def _is_unscored(self, state: TextState) -> bool:
        """Returns whether a state's own spans are neither scored nor failed."""
        return state not in self._scores and state not in self._problems

    @property
    def none(self) -> bool:
        """Returns whether there is no scorer."""
        return self._scorer is None

    def scores(self, state: TextState) -> tuple[float, ...]:
        """Returns the scores of the state's own spans; () where they are not known."""
        return self._scores.get(state, ())

    def value(self, state: TextState) -> float | None:
        """Returns a state's value: NaN where there is no scorer, or it failed; None where the state was not scored."""
        if self._scorer is None or self.problem(state):
            return math.nan
        if state not in self._scores:
            return None
        path_scores, ancestor = list[tuple[float, ...]](), state
        while ancestor.above is not None:
            path_scores.append(self._scores.get(ancestor, ()))
            ancestor = ancestor.above
        return self._writing.value(
            [score for state_scores in reversed(path_scores or [self._scores[state]]) for score in state_scores]
        )

    def problem(self, state: TextState) -> str:
        """Returns why the scorer gave no score, of the state or of one above; empty: it did, or was not queried."""
        return next(
            (
                self._problems[needed_state]
                for needed_state in self._scored_path(state)
                if needed_state in self._problems
            ),
            "",
        )

    def max_cost(self, states: Sequence[TextState]) -> Spent:
        """Returns the maximum cost of valuing states."""
        spent = Spent()
        for state in states if self._scorer is not None else ():
            unscored = self._unscored_path(state)
            if unscored:
                model = None if self._scorer is None else self._scorer.model
                num_fed = self._meter.count_unfed([[*state.prompt, *state.written]], model=model)
                ends = [end for due_state in unscored for end in self._score_positions(due_state)]
                spent += Spent(computed=num_fed) + self._scorer_cost(len(ends), min(ends, default=0))
        return spent

    def max_cost_below(self, state: TextState, *, children: int, tokens: int, ends: int, to_end: bool) -> Spent:
        """Returns the maximum cost of valuing so many children of a state, each of so many tokens and ends of spans.

        Args:
            to_end: each continues to the end of the text, so that nothing is left to write after its last span.
        """
        if self._scorer is None:
            return Spent()
        model = self._scorer.model
        unscored = self._unscored_path(state) if self._writing.reduce != "last" else []
        ancestor_ends = [end for due_state in unscored for end in self._score_positions(due_state)]
        path = self._meter.count_unfed([[*state.prompt, *state.written]], model=model) if model is not None else 0
        spent = Spent(computed=path + children * (tokens if model is not None else 1))
        spent += self._scorer_cost(len(ancestor_ends), min(ancestor_ends, default=0))
        for _ in range(children):  # a short child leaves more to write after it than a long one
            spent += self._scorer_cost(ends, state.length + (tokens if to_end else 1))
        return spent

    def _scored_path(self, state: TextState) -> list[TextState]:
        """Returns the states whose own scores make the value: the whole path, or the last one alone."""
        if self._writing.reduce == "last" or state.above is None:
            return [state]
        path, ancestor = [], state
        while ancestor.above is not None:
            path.append(ancestor)
            ancestor = ancestor.above
        return path[::-1]

    def _score_positions(self, state: TextState) -> tuple[int, ...]:
        """Returns where a state is scored, in the tokens of prompt and text: at its own spans, or at the last one
        alone.
        """
        ends = _own_ends(state)
        return ends[-1:] if self._writing.reduce == "last" else ends

    def _unscored_path(self, state: TextState) -> list[TextState]:
        return [needed_state for needed_state in self._scored_path(state) if self._is_unscored(needed_state)]

    def _scorer_cost(self, ends: int, length: int) -> Spent:
        """Returns the scorer's maximum cost; of an unbounded scorer one token per end is assumed (its tag).

        Args:
            length: tokens of prompt and text up to the first of the ends, at the least.
        """
        if not ends:
            return Spent()
        return self._scorer.most(ends, length) if isinstance(self._scorer, BoundedScorer) else Spent(computed=ends)

    def _request_scores(self, pending: Sequence[TextState], left: Budget) -> Job[str]:
        """Asks for the scores of some states; returns the reason of a failure, or ""."""
        scorer = self._scorer
        if scorer is None:
            return ""
        queries = [
            _build_query(state, self._score_positions(state), same_engine=scorer.model is None) for state in pending
        ]
        try:
            scores = yield from self._meter.run_scorer(scorer.scores(queries), model=scorer.model, left=left)
        except EvolventError as error:
            if not is_recoverable(error):
                raise
            return str(error)
        if [len(state_scores) for state_scores in scores] != [len(query.ends) for query in queries]:
            raise ScoringError(
                "number of scores does not match the ends",
                value=[len(state_scores) for state_scores in scores][:8],
                expected=[len(query.ends) for query in queries][:8],
            )
        self._scores.update(
            (state, tuple(map(float, state_scores))) for state, state_scores in zip(pending, scores, strict=True)
        )
        return ""


def _own_ends(state: TextState) -> tuple[int, ...]:
    """Returns where the state's own spans end, in the tokens of prompt and text."""
    if state.above is None:
        return (len(state.prompt),)
    num_before = len(state.above.written)
    return tuple(len(state.prompt) + end for end in state.ends if end > num_before)


def _build_query(state: TextState, ends: tuple[int, ...], *, same_engine: bool) -> Ending:
    """Builds the query for a state's own spans. Another model has no nodes of the engine that writes."""
    above = state.above
    if not same_engine:
        return Ending(None, (*state.prompt, *state.written), ends)
    if above is None or ends == (state.length,):
        return Ending(state.node, state.pending, (len(state.pending),))
    before = above.length - len(above.pending)
    new_tokens = state.written[len(above.written) :]
    return Ending(above.node, (*above.pending, *new_tokens), tuple(end - before for end in ends))


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
                "the prompt leaves no room for a completion",
                value=f"{state.length} tokens",
                expected=f"fewer than {self._writing.context} tokens",
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
            return EngineError("the completion is empty", value=sample.stop, expected="at least one token")
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
