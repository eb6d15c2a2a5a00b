"""Asking so that one failure costs one answer: what went wrong is told in its place, and the search goes on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from evolvent.engine.asks import Answer, Ask, SampleAsk, To, Wait
from evolvent.errors import EndpointError, EngineError, EvolventError, ScoringError, WorldError
from evolvent.search.meter import Meter
from evolvent.search.records import Budget, EndedBy

__all__ = ["Careful", "passing"]

_LOST = 3  # times in a row that an endpoint did not answer, after which nothing more of a batch is tried


def passing(error: EvolventError) -> bool:
    """Whether an error is of one ask alone, so that a search can do without its answer.

    It is not where the weights have changed, a node is stale, or the ask itself is wrong.
    """
    return isinstance(error, EndpointError | ScoringError | WorldError) or type(error) is EngineError


class Careful:
    """Asks through a meter. When a batch fails, its asks are made one by one, each sample for itself.

    The same seeds bring the same samples, so a repetition changes nothing; the meter counts a batch that failed as much
    as it could have cost. What does not fit the budget is not repeated.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def asked(
        self, asks: Sequence[Ask | To], left: Budget
    ) -> Generator[Sequence[Ask | To | Wait], Sequence[Answer], list[Any]]:
        """One answer an ask, in order: of samples a tuple with an entry a seed; an error stands where none came.

        Raises:
            EvolventError: one that is not `passing`.
        """
        if not asks:
            return []
        limit = left.over(self._meter.spent, more=self._meter.worst(asks))
        if limit is not None:  # only where failures have cost what was meant for this
            none = _unasked(limit)
            many = [_sampling(ask) for ask in asks]
            return [none if sampling is None else (none,) * len(sampling.seeds) for sampling in many]
        try:
            return (yield from self._meter.asked(asks))
        except EvolventError as error:
            if not passing(error):
                raise
            found, failed, last = [], 0, error
        for ask in asks:
            own: list[Any] = []
            for one in _apart(ask):
                answer = last if failed >= _LOST else (yield from self._alone(one, left))
                failed = failed + 1 if _unanswered(answer) else 0
                last = answer if isinstance(answer, EvolventError) else last
                own.append(answer)
            found.append(own[0] if _sampling(ask) is None else _joined(own))
        return found

    def _alone(self, ask: Ask | To, left: Budget) -> Generator[Sequence[Ask | To | Wait], Sequence[Answer], Any]:
        limit = left.over(self._meter.spent, more=self._meter.worst([ask]))
        if limit is not None:
            return _unasked(limit)
        try:
            (answer,) = yield from self._meter.asked([ask])
        except EvolventError as error:
            if not passing(error):
                raise
            return error
        return answer


def _sampling(ask: Ask | To) -> SampleAsk | None:
    """The ask for samples that an ask is, whichever model it is for; None: another one."""
    inner = ask.ask if isinstance(ask, To) else ask
    return inner if isinstance(inner, SampleAsk) else None


def _apart(ask: Ask | To) -> list[Ask | To]:
    """An ask for samples as asks for one sample each; another one as it is."""
    inner = _sampling(ask)
    if inner is None:
        return [ask]
    alone = [replace(inner, seeds=(seed,)) for seed in inner.seeds]
    return [To(ask.model, one) if isinstance(ask, To) else one for one in alone]


def _unanswered(answer: object) -> bool:
    """Whether an endpoint did not answer; where it did so with an error, `value` is the status."""
    return isinstance(answer, EndpointError) and not isinstance(answer.value, int)


def _unasked(limit: EndedBy) -> EngineError:
    return EngineError("after failures the budget has no room for it", value=limit)


def _joined(own: Sequence[Any]) -> tuple[Any, ...]:
    """Answers to single samples as one."""
    return tuple(answer if isinstance(answer, EvolventError) else answer[0] for answer in own)
