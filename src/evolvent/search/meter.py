"""The cost of a search's asks: tokens sampled, and tokens fed to each model.

An engine's own counts cover all of its users. So the meter keeps its own trie for each model, which records the
tokens that this search has had computed and still holds, and counts the tokens that an initially empty engine
would feed. An engine with more cached tokens feeds less; one that had to drop held tokens feeds more and
reports it (`recomputed`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from evolvent.engine.asks import Answer, Ask, BlockingCall, Job, LogitsAsk, Node, RoutedAsk, SampleAsk, ScoreAsk
from evolvent.engine.trie import Segment, Trie, TriePosition
from evolvent.errors import EvolventError, ScoringError, boundary
from evolvent.search.records import Budget, EndedBy, Spent

__all__ = ["Meter", "OverBudget", "limits_tokens"]

Asking = Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], list[Answer]]
T = TypeVar("T")


class OverBudget(Exception):
    """Raised when a scorer's next asks do not fit the budget. It never leaves an adapter."""

    def __init__(self, limit: EndedBy) -> None:
        super().__init__(limit)
        self.limit = limit


class Meter:
    """Passes asks on and counts them.

    Attributes:
        spent: since it was last reset.
    """

    def __init__(self) -> None:
        self.spent = Spent()
        self._tries: dict[str | None, Trie] = {}
        self._held: dict[int, tuple[Node, TriePosition]] = {}  # what the search holds: nodes by identity

    def max_cost(self, asks: Sequence[Ask | RoutedAsk | BlockingCall]) -> Spent:
        """Returns the maximum cost of the asks of one batch; shared tokens are fed once."""
        generated = computed = 0
        counted_depths: dict[Segment, int] = {}
        located_asks = [
            (ask, *self._locate(model, ask)) for model, ask in _model_asks(asks)
        ]  # all first: one may cut another's
        for ask, position, need in located_asks:
            computed += _count_uncomputed(position, need, counted_depths)
            if isinstance(ask, SampleAsk):
                generated += len(ask.seeds) * ask.max_tokens
                computed += len(ask.seeds) * (ask.max_tokens - 1)
        return Spent(generated, computed)

    def count_unfed(self, paths: Sequence[Sequence[int]], *, model: str | None = None) -> int:
        """Counts the tokens of some paths that have to be fed to a model; shared tokens are fed once."""
        trie = self._trie(model)
        counted_depths: dict[Segment, int] = {}
        positions = [_extend_pinned(trie, (trie.root, 0), list(path)) for path in paths]
        return sum(_count_uncomputed(position, position[1], counted_depths) for position in positions)

    def ask(self, asks: Sequence[Ask | RoutedAsk | BlockingCall], *, keep_samples: bool = True) -> Asking:
        """Sends asks and counts them. A failed batch counts at its maximum cost.

        Args:
            keep_samples: sampled tokens stay known as long as the search runs. Scored paths (`ScoreAsk`), and paths of
                which an output is kept, always do, as scorers require.
        """
        answers: Sequence[Answer] | None = None
        try:
            answers = yield asks
        finally:
            if answers is None:
                self.spent += self.max_cost(asks)
        self._count(asks, answers, keep_samples)
        return list(answers)

    def run_scorer(self, job: Job[T], *, model: str | None, left: Budget) -> Job[T]:
        """Runs a scorer's job: its asks are sent to its model and counted, and asks that do not fit are not begun.

        Raises:
            OverBudget: its next asks do not fit. ScoringError: it failed; errors of the library pass unchanged.
        """
        answers: Sequence[Answer] | None = None
        problem: Exception | None = None
        while True:
            try:
                with boundary(ScoringError, "a scorer failed"):
                    try:
                        scorer_asks = job.send(answers) if problem is None else job.throw(problem)  # type: ignore[arg-type]
                    except StopIteration as stop:
                        scores: T = stop.value
                        return scores
            finally:
                answers = problem = None  # what was answered is let go before anything more is asked
            asks = [
                RoutedAsk(model, ask) if model is not None and not isinstance(ask, RoutedAsk | BlockingCall) else ask
                for ask in scorer_asks
            ]
            limit = left.over(self.spent, more=self.max_cost(asks)) if limits_tokens(left) else None
            if limit is not None:
                job.close()
                raise OverBudget(limit)
            try:
                with boundary(ScoringError, "what a scorer waited for failed"):
                    answers = yield from self.ask(asks, keep_samples=False)
            except EvolventError as error:  # it belongs to the scorer, which may handle it
                problem = error

    def _trie(self, model: str | None) -> Trie:
        trie = self._tries.get(model)
        if trie is None:
            trie = self._tries[model] = Trie(0)
        trie.dropped.clear()
        return trie

    def _locate(self, model: str | None, ask: Ask) -> tuple[TriePosition, int]:
        """Returns the position where the tokens of an ask end, and how many of them must be fed to answer it."""
        trie, tokens = self._trie(model), list(ask.tokens)
        start = (trie.root, 0)
        if ask.node is not None:
            node, position = self._held.get(id(ask.node), (None, start))
            is_known = node is ask.node and position[0].trie is trie
            start, tokens = (position, tokens) if is_known else (start, [*ask.node.tokens(), *tokens])
        position = _extend_pinned(trie, start, tokens)
        return position, position[1] - isinstance(ask, ScoreAsk)

    def _count(
        self, asks: Sequence[Ask | RoutedAsk | BlockingCall], answers: Sequence[Answer], keep_samples: bool
    ) -> None:
        generated = computed = 0
        alive = []  # asks of one batch are there together, so what they share is fed once
        for (model, ask), answer in zip(_model_asks(asks), _model_answers(asks, answers), strict=True):
            position, need = self._locate(model, ask)
            alive.append(position)
            computed += _count_uncomputed(position, need)
            if isinstance(ask, ScoreAsk) or (isinstance(ask, LogitsAsk) and ask.keep):
                self._hold(answer.node, position)
            if isinstance(ask, SampleAsk):
                trie = self._trie(model)
                for sample in answer:
                    generated += len(sample.ids)
                    computed += max(0, len(sample.ids) - 1)  # each is fed on its own; its last token is not
                    if keep_samples:
                        end = _extend_pinned(trie, position, sample.ids.tolist())
                        _count_uncomputed(end, end[1] - 1)
                        self._hold(sample.node, end)
        self.spent += Spent(generated, computed)

    def _hold(self, node: Node, position: TriePosition) -> None:
        self._held[id(node)] = (node, position)


def limits_tokens(left: Budget) -> bool:
    """Returns whether the remaining budget limits tokens: only then are maximum costs needed beforehand."""
    return left.generated is not None or left.computed is not None


def _model_asks(asks: Sequence[Ask | RoutedAsk | BlockingCall]) -> list[tuple[str | None, Ask]]:
    """Returns the asks to models, each with the model's name."""
    return [
        (ask.model, ask.ask) if isinstance(ask, RoutedAsk) else (None, ask)
        for ask in asks
        if not isinstance(ask, BlockingCall)
    ]


def _model_answers(asks: Sequence[Ask | RoutedAsk | BlockingCall], answers: Sequence[Answer]) -> list[Answer]:
    return [answer for ask, answer in zip(asks, answers, strict=True) if not isinstance(ask, BlockingCall)]


def _extend_pinned(trie: Trie, start: TriePosition, tokens: list[int]) -> TriePosition:
    """Extends a trie by tokens and pins the end, so that later tokens form their own segment, as in a running
    engine.
    """
    position = trie.extend(start, tokens)
    position[0].pins = 1
    return position


def _count_uncomputed(position: TriePosition, need: int, counted_depths: dict[Segment, int] | None = None) -> int:
    """Counts how many of the first `need` tokens of a path were not computed yet, and marks them as computed or
    counted.

    Args:
        counted_depths: the depths to which segments would be computed; None: the tokens are marked as computed.
    """
    count = 0
    for segment in position[0].path():
        last = min(segment.end, need)
        known_depth = (
            segment.computed
            if counted_depths is None
            else max(segment.computed, counted_depths.get(segment, segment.start))
        )
        if last > known_depth:
            count += last - known_depth
            if counted_depths is None:
                segment.computed = last
            else:
                counted_depths[segment] = last
        elif last > segment.start:  # what comes before a token was computed with it
            break
    return count
