"""Isolation of failures: a failed ask costs one answer, its error is recorded, and the search continues."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from evolvent.engine.asks import Answer, Ask, BlockingCall, RoutedAsk, SampleAsk
from evolvent.errors import EndpointError, EngineError, EvolventError, ScoringError, WorldError
from evolvent.search.meter import Meter
from evolvent.search.records import Budget, EndedBy

__all__ = ["IsolatedAsker", "is_recoverable"]

_MAX_UNANSWERED = 3  # times in a row that an endpoint did not answer, after which nothing more of a batch is tried


def is_recoverable(error: EvolventError) -> bool:
    """Returns whether an error concerns one ask alone, so that a search can continue without its answer.

    It does not where the weights have changed, a node is stale, or the ask itself is invalid.
    """
    return isinstance(error, EndpointError | ScoringError | WorldError) or type(error) is EngineError


class IsolatedAsker:
    """Sends asks through a meter. When a batch fails, its asks are sent one by one, each sample by itself.

    The same seeds bring the same samples, so a repetition changes nothing; the meter counts a failed batch at its
    maximum cost. Asks that do not fit the budget are not repeated.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def ask(
        self, asks: Sequence[Ask | RoutedAsk], left: Budget
    ) -> Generator[Sequence[Ask | RoutedAsk | BlockingCall], Sequence[Answer], list[Answer]]:
        """Returns one answer per ask, in order: of samples a tuple with an entry per seed; errors stand in for failed
        answers.

        Raises:
            EvolventError: one that is not `is_recoverable`.
        """
        if not asks:
            return []
        limit = left.over(self._meter.spent, more=self._meter.max_cost(asks))
        if limit is not None:  # only where failures have cost what was meant for this
            refusal = _budget_error(limit)
            sample_asks = [_sample_ask(ask) for ask in asks]
            return [refusal if sampling is None else (refusal,) * len(sampling.seeds) for sampling in sample_asks]
        try:
            return (yield from self._meter.ask(asks))
        except EvolventError as error:
            if not is_recoverable(error):
                raise
            answers, num_failed, last = [], 0, error
        for ask in asks:
            ask_answers: list[Any] = []
            for single_ask in _split_seeds(ask):
                answer = last if num_failed >= _MAX_UNANSWERED else (yield from self._ask_alone(single_ask, left))
                num_failed = num_failed + 1 if _is_unanswered(answer) else 0
                last = answer if isinstance(answer, EvolventError) else last
                ask_answers.append(answer)
            answers.append(ask_answers[0] if _sample_ask(ask) is None else _join_samples(ask_answers))
        return answers

    def _ask_alone(
        self, ask: Ask | RoutedAsk, left: Budget
    ) -> Generator[Sequence[Ask | RoutedAsk | BlockingCall], Sequence[Answer], Any]:
        limit = left.over(self._meter.spent, more=self._meter.max_cost([ask]))
        if limit is not None:
            return _budget_error(limit)
        try:
            (answer,) = yield from self._meter.ask([ask])
        except EvolventError as error:
            if not is_recoverable(error):
                raise
            return error
        return answer


def _sample_ask(ask: Ask | RoutedAsk) -> SampleAsk | None:
    """Returns the inner ask for samples, whichever model it is for; None: another kind of ask."""
    inner = ask.ask if isinstance(ask, RoutedAsk) else ask
    return inner if isinstance(inner, SampleAsk) else None


def _split_seeds(ask: Ask | RoutedAsk) -> list[Ask | RoutedAsk]:
    """Splits an ask for samples into asks for one sample each; returns other asks unchanged."""
    inner = _sample_ask(ask)
    if inner is None:
        return [ask]
    single_asks = [replace(inner, seeds=(seed,)) for seed in inner.seeds]
    return [
        RoutedAsk(ask.model, single_ask) if isinstance(ask, RoutedAsk) else single_ask for single_ask in single_asks
    ]


def _is_unanswered(answer: object) -> bool:
    """Returns whether an endpoint did not answer; for answered errors, `value` is the status."""
    return isinstance(answer, EndpointError) and not isinstance(answer.value, int)


def _budget_error(limit: EndedBy) -> EngineError:
    return EngineError("the budget has no room left after failures", value=limit)


def _join_samples(answers: Sequence[Any]) -> tuple[Any, ...]:
    """Joins answers to single samples to one."""
    return tuple(answer if isinstance(answer, EvolventError) else answer[0] for answer in answers)
