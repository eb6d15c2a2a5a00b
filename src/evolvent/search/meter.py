"""What a search's asks cost, counted at the asks: tokens sampled, and tokens fed to each model.

An engine's own counts are of everybody who shares it. So the meter keeps a trie of its own for each model, which knows
what this search has had computed and still holds, and counts what an engine would feed that had begun with nothing. An
engine that knows more already feeds less; one that had to drop what was held feeds more and says so (`recomputed`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from evolvent.engine.asks import Answer, Ask, LogitsAsk, Node, SampleAsk, ScoreAsk, To, Wait, Work
from evolvent.engine.trie import Place, Segment, Trie
from evolvent.errors import EvolventError, ScoringError, boundary
from evolvent.search.records import Budget, EndedBy, Spent

__all__ = ["Meter", "OverBudget", "limited"]

Asked = Generator[Sequence["Ask | To | Wait"], Sequence[Answer], list[Answer]]
T = TypeVar("T")


class OverBudget(Exception):
    """What a scorer asks next does not fit the budget. It never leaves an adapter."""

    def __init__(self, limit: EndedBy) -> None:
        super().__init__(limit)
        self.limit = limit


class Meter:
    """Passes asks on and counts them.

    Attributes:
        spent: since it was last set to nothing.
    """

    def __init__(self) -> None:
        self.spent = Spent()
        self._tries: dict[str | None, Trie] = {}
        self._held: dict[int, tuple[Node, Place]] = {}  # what the search holds: nodes by identity

    def worst(self, asks: Sequence[Ask | To | Wait]) -> Spent:
        """The most that asks of one batch can cost; what they share is fed once."""
        generated = computed = 0
        seen: dict[Segment, int] = {}
        places = [(ask, *self._place(model, ask)) for model, ask in _plain(asks)]  # all first: one may cut another's
        for ask, place, need in places:
            computed += _unknown(place, need, seen)
            if isinstance(ask, SampleAsk):
                generated += len(ask.seeds) * ask.max_tokens
                computed += len(ask.seeds) * (ask.max_tokens - 1)
        return Spent(generated, computed)

    def unknown(self, paths: Sequence[Sequence[int]], *, model: str | None = None) -> int:
        """How many tokens of some paths have to be fed to a model; what they share is fed once."""
        trie = self._trie(model)
        seen: dict[Segment, int] = {}
        places = [_placed(trie, (trie.root, 0), list(path)) for path in paths]
        return sum(_unknown(place, place[1], seen) for place in places)

    def asked(self, asks: Sequence[Ask | To | Wait], *, held: bool = True) -> Asked:
        """Ask, and count. Where that fails, it counts as much as it could have cost.

        Args:
            held: what is sampled stays known as long as the search runs. What is scored (`ScoreAsk`), and a path of
                which an output is kept, always does: it is how a scorer asks for it.
        """
        answers: Sequence[Answer] | None = None
        try:
            answers = yield asks
        finally:
            if answers is None:
                self.spent += self.worst(asks)
        self._count(asks, answers, held)
        return list(answers)

    def scored(self, work: Work[T], *, model: str | None, left: Budget) -> Work[T]:
        """A scorer's work, with its asks sent to its model, counted, and none of them begun that does not fit.

        Raises:
            OverBudget: what it asks next does not fit. ScoringError: it failed; errors of the library pass unchanged.
        """
        answers: Sequence[Answer] | None = None
        problem: Exception | None = None
        while True:
            try:
                with boundary(ScoringError, "a scorer failed"):
                    try:
                        raw = work.send(answers) if problem is None else work.throw(problem)  # type: ignore[arg-type]
                    except StopIteration as stop:
                        scores: T = stop.value
                        return scores
            finally:
                answers = problem = None  # what was answered is let go before anything more is asked
            asks = [To(model, ask) if model is not None and not isinstance(ask, To | Wait) else ask for ask in raw]
            limit = left.over(self.spent, more=self.worst(asks)) if limited(left) else None
            if limit is not None:
                work.close()
                raise OverBudget(limit)
            try:
                with boundary(ScoringError, "what a scorer waited for failed"):
                    answers = yield from self.asked(asks, held=False)
            except EvolventError as error:  # it belongs to the scorer, which may handle it
                problem = error

    def _trie(self, model: str | None) -> Trie:
        trie = self._tries.get(model)
        if trie is None:
            trie = self._tries[model] = Trie(0)
        trie.dropped.clear()
        return trie

    def _place(self, model: str | None, ask: Ask) -> tuple[Place, int]:
        """Where the tokens of an ask end, and how many of them must be fed to answer it."""
        trie, tokens = self._trie(model), list(ask.tokens)
        start = (trie.root, 0)
        if ask.node is not None:
            node, place = self._held.get(id(ask.node), (None, start))
            known = node is ask.node and place[0].trie is trie
            start, tokens = (place, tokens) if known else (start, [*ask.node.tokens(), *tokens])
        place = _placed(trie, start, tokens)
        return place, place[1] - isinstance(ask, ScoreAsk)

    def _count(self, asks: Sequence[Ask | To | Wait], answers: Sequence[Answer], held: bool) -> None:
        generated = computed = 0
        alive = []  # asks of one batch are there together, so what they share is fed once
        for (model, ask), answer in zip(_plain(asks), _answers(asks, answers), strict=True):
            place, need = self._place(model, ask)
            alive.append(place)
            computed += _unknown(place, need)
            if isinstance(ask, ScoreAsk) or (isinstance(ask, LogitsAsk) and ask.keep):
                self._hold(answer.node, place)
            if isinstance(ask, SampleAsk):
                trie = self._trie(model)
                for sample in answer:
                    generated += len(sample.ids)
                    computed += max(0, len(sample.ids) - 1)  # each is fed on its own; its last token is not
                    if held:
                        end = _placed(trie, place, sample.ids.tolist())
                        _unknown(end, end[1] - 1)
                        self._hold(sample.node, end)
        self.spent += Spent(generated, computed)

    def _hold(self, node: Node, place: Place) -> None:
        self._held[id(node)] = (node, place)


def limited(left: Budget) -> bool:
    """Whether tokens are counted in what is left: only then must anybody know beforehand what asks can cost."""
    return left.generated is not None or left.computed is not None


def _plain(asks: Sequence[Ask | To | Wait]) -> list[tuple[str | None, Ask]]:
    """The asks of models, each with the model's name."""
    return [(ask.model, ask.ask) if isinstance(ask, To) else (None, ask) for ask in asks if not isinstance(ask, Wait)]


def _answers(asks: Sequence[Ask | To | Wait], answers: Sequence[Answer]) -> list[Answer]:
    return [answer for ask, answer in zip(asks, answers, strict=True) if not isinstance(ask, Wait)]


def _placed(trie: Trie, start: Place, tokens: list[int]) -> Place:
    """Where tokens end. As in an engine at work, nothing grows out of there in place: it may be let go alone."""
    place = trie.extend(start, tokens)
    place[0].pins = 1
    return place


def _unknown(place: Place, need: int, seen: dict[Segment, int] | None = None) -> int:
    """How many of the first `need` tokens of a path were not computed yet. Now they are, or with `seen` they are there.

    Args:
        seen: up to where segments would be computed, beside what was.
    """
    count = 0
    for segment in place[0].path():
        last = min(segment.end, need)
        known = segment.computed if seen is None else max(segment.computed, seen.get(segment, segment.start))
        if last > known:
            count += last - known
            if seen is None:
                segment.computed = last
            else:
                seen[segment] = last
        elif last > segment.start:  # what comes before a token was computed with it
            break
    return count
