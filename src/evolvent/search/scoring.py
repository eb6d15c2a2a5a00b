"""Values of states of text: which spans are still to be scored, all of them at once, and what scores make a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from evolvent.engine.asks import Work
from evolvent.errors import EvolventError, ScoringError
from evolvent.search.budgeted import partwise
from evolvent.search.isolation import passing
from evolvent.search.meter import Meter
from evolvent.search.records import Budget, EndedBy, Spent
from evolvent.search.scorers import Bounded, Ending, Scorer
from evolvent.search.writing import TextState, Writing

__all__ = ["Scoring"]


class Scoring:
    """The scores of one search's states. The root is scored at its prompt's end; that is no span of the text.

    Args:
        writing: says how scores become a value. scorer: None: there are no scores. meter: counts what they cost.
    """

    def __init__(self, writing: Writing, scorer: Scorer | None, meter: Meter) -> None:
        self._writing, self._scorer, self._meter = writing, scorer, meter
        self._scores: dict[TextState, tuple[float, ...]] = {}
        self._problems: dict[TextState, str] = {}

    def scored(self, states: Sequence[TextState], left: Budget) -> Work[EndedBy | None]:
        """Have all spans scored that the values of these states need; one that fails does not stop the others.

        Returns:
            the limit that some of it did not fit; None: all is known now.
        Raises:
            ScoringError: not one score for each end. EvolventError: one that is not `careful.passing`.
        """
        needed = states if self._scorer is not None else ()
        due = list(dict.fromkeys(each for state in needed for each in self._due(state)))
        return (yield from partwise(due, partial(self._told, left=left), problems=self._problems, is_due=self._open))

    def _open(self, state: TextState) -> bool:
        """Whether a state's own spans are neither scored nor failed."""
        return state not in self._scores and state not in self._problems

    @property
    def none(self) -> bool:
        """Whether there is no scorer."""
        return self._scorer is None

    def scores(self, state: TextState) -> tuple[float, ...]:
        """Those of the state's own spans; () where they are not known."""
        return self._scores.get(state, ())

    def value(self, state: TextState) -> float | None:
        """NaN where there is no scorer, or it failed; None where the state was not scored."""
        if self._scorer is None or self.problem(state):
            return math.nan
        if state not in self._scores:
            return None
        path, at = list[tuple[float, ...]](), state
        while at.above is not None:
            path.append(self._scores.get(at, ()))
            at = at.above
        return self._writing.value([score for own in reversed(path or [self._scores[state]]) for score in own])

    def problem(self, state: TextState) -> str:
        """Why the scorer gave no score, of the state or of one above; empty: it did, or was not asked."""
        return next((self._problems[each] for each in self._needed(state) if each in self._problems), "")

    def worst(self, states: Sequence[TextState]) -> Spent:
        """The most that valuing states can cost."""
        spent = Spent()
        for state in states if self._scorer is not None else ():
            due = self._due(state)
            if due:
                model = None if self._scorer is None else self._scorer.model
                fed = self._meter.unknown([[*state.prompt, *state.written]], model=model)
                ends = [end for each in due for end in self._ends(each)]
                spent += Spent(computed=fed) + self._most(len(ends), min(ends, default=0))
        return spent

    def worst_below(self, state: TextState, *, children: int, tokens: int, ends: int, whole: bool) -> Spent:
        """The most that valuing so many children of a state can cost, each of so many tokens and ends of spans.

        Args:
            whole: each goes on to the end of the text, so that nothing is left to write after its last span.
        """
        if self._scorer is None:
            return Spent()
        model = self._scorer.model
        due = self._due(state) if self._writing.reduce != "last" else []
        above = [end for each in due for end in self._ends(each)]
        path = self._meter.unknown([[*state.prompt, *state.written]], model=model) if model is not None else 0
        spent = Spent(computed=path + children * (tokens if model is not None else 1))
        spent += self._most(len(above), min(above, default=0))
        for _ in range(children):  # a short child leaves more to write after it than a long one
            spent += self._most(ends, state.length + (tokens if whole else 1))
        return spent

    def _needed(self, state: TextState) -> list[TextState]:
        """The states whose own scores make the value: the whole path, or the last one alone."""
        if self._writing.reduce == "last" or state.above is None:
            return [state]
        found, at = [], state
        while at.above is not None:
            found.append(at)
            at = at.above
        return found[::-1]

    def _ends(self, state: TextState) -> tuple[int, ...]:
        """Where a state is scored, in the tokens of prompt and text: at its own spans, or at the last one alone."""
        ends = _own(state)
        return ends[-1:] if self._writing.reduce == "last" else ends

    def _due(self, state: TextState) -> list[TextState]:
        return [each for each in self._needed(state) if self._open(each)]

    def _most(self, ends: int, length: int) -> Spent:
        """What a scorer says beforehand; of one that does not, one token an end is expected (its tag).

        Args:
            length: tokens of prompt and text up to the first of the ends, at the least.
        """
        if not ends:
            return Spent()
        return self._scorer.most(ends, length) if isinstance(self._scorer, Bounded) else Spent(computed=ends)

    def _told(self, due: Sequence[TextState], left: Budget) -> Work[str]:
        """Ask for the scores of some states; returns why that failed, empty: it did not."""
        scorer = self._scorer
        if scorer is None:
            return ""
        asked = [_ending(state, self._ends(state), ours=scorer.model is None) for state in due]
        try:
            found = yield from self._meter.scored(scorer.scores(asked), model=scorer.model, left=left)
        except EvolventError as error:
            if not passing(error):
                raise
            return str(error)
        if [len(own) for own in found] != [len(item.ends) for item in asked]:
            raise ScoringError(
                "a scorer gave not one score for each end",
                value=[len(own) for own in found][:8],
                expected=[len(item.ends) for item in asked][:8],
            )
        self._scores.update((state, tuple(map(float, own))) for state, own in zip(due, found, strict=True))
        return ""


def _own(state: TextState) -> tuple[int, ...]:
    """Where the state's own spans end, in the tokens of prompt and text."""
    if state.above is None:
        return (len(state.prompt),)
    before = len(state.above.written)
    return tuple(len(state.prompt) + end for end in state.ends if end > before)


def _ending(state: TextState, ends: tuple[int, ...], *, ours: bool) -> Ending:
    """Ends of a state's own spans as they are asked about. Another model has no nodes of the one that writes."""
    above = state.above
    if not ours:
        return Ending(None, (*state.prompt, *state.written), ends)
    if above is None or ends == (state.length,):
        return Ending(state.node, state.pending, (len(state.pending),))
    before = above.length - len(above.pending)
    own = state.written[len(above.written) :]
    return Ending(above.node, (*above.pending, *own), tuple(end - before for end in ends))
