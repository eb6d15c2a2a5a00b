"""Values of text states: the spans still to be scored, all of them at once, and the value that scores make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from evolvent.engine.asks import Job
from evolvent.errors import EvolventError, ScoringError
from evolvent.search.budgeted import request_in_parts
from evolvent.search.isolation import is_recoverable
from evolvent.search.meter import Meter
from evolvent.search.records import Budget, EndedBy, Spent
from evolvent.search.scorers import BoundedScorer, Ending, Scorer
from evolvent.search.writing import TextState, Writing

__all__ = ["StateScores"]


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
                "a scorer gave not one score for each end",
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
