"""Searches over texts: wishes become asks of an engine, and what is sampled becomes states.

All that a search wants at once is asked at once, and all new children are scored at once. States hold the engine's
nodes, so every token of the tree is computed once for each model; the last tokens of children that are neither scored
nor expanded never are. Seeds derive from the tokens before, so a sample depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from evolvent.engine.asks import Ask, Continuation, LogitsAsk, Output, SampleAsk, Work
from evolvent.errors import ContextOverflow, EngineError, EvolventError
from evolvent.search.drive import answered, fitting
from evolvent.search.isolation import Careful
from evolvent.search.meter import Meter, limited
from evolvent.search.records import Child, Expand, Found, Spent, Wanted
from evolvent.search.scorers import Scorer
from evolvent.search.scoring import Scoring
from evolvent.search.writing import TextState, Writing
from evolvent.trajectory import sample_seed

__all__ = ["over_text"]

T = TypeVar("T")


def over_text(search: Generator[Wanted, Found, T], *, writing: Writing, scorer: Scorer | None = None) -> Work[T]:
    """A search over continuations of a text, as a work for the driver.

    Expanding a state samples `width` spans (or whole texts, or the likeliest one); at token level it takes the `width`
    likeliest tokens, and nothing is sampled. Equal samples are one child, which counts them. A sample that failed, and
    one that its scorer failed at, is a child with a problem, which the tree lists. A state that is over has no child.

    Args:
        search: a `Search`, or a forest, begun at a state of `begin_text`; its values are those of the scorer.
        scorer: scores the spans of all new children together; None: no state has a value.
    Raises:
        StaleNode, WeightsChanged: the engine took other weights meanwhile. ContextOverflow: the prompt is too long.
        TokensMissing: an endpoint that gives no tokens. ConfigError: an ask that the engine does not answer.
        ScoringError: a scorer gave not one score for each end. What the search raises.
    """
    return answered(search, _Texts(writing, scorer).answer)


@dataclass(frozen=True, slots=True)
class _Grown:
    """What an action adds to a state, before equal ones are merged."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ends: tuple[int, ...]  # in `ids`
    stop: str
    state: TextState
    sampled: int  # tokens


class _Texts:
    """One search over texts: what was scored in it, and what it costs."""

    def __init__(self, writing: Writing, scorer: Scorer | None) -> None:
        self._writing = writing
        self._meter = Meter()
        self._careful = Careful(self._meter)
        self._scoring = Scoring(writing, scorer, self._meter)

    def answer(self, wanted: Wanted) -> Work[Found]:
        """Write, score, and tell."""
        self._meter.spent = Spent()
        scoring, wishes = self._scoring, wanted.expand
        if limited(wanted.left):
            worst = [scoring.worst([state]) for state in wanted.evaluate], [self._worst(wish) for wish in wishes]
        else:
            worst = [Spent()] * len(wanted.evaluate), [Spent()] * len(wishes)
        (states, begun), short = fitting(wanted, *worst)
        asks = [self._asks(wish) for wish in wishes[:begun]]
        answers = iter((yield from self._careful.asked([ask for own in asks for ask in own], wanted.left)))
        made = [self._children(wish, [next(answers) for _ in own]) for wish, own in zip(wishes, asks, strict=False)]
        new = [
            child.state
            for wish, own in zip(wishes, made, strict=False)
            if wish.valued
            for child in own
            if not child.problem
        ]
        told = yield from scoring.scored([*wanted.evaluate[:states], *new], wanted.left)
        children = [
            [self._valued(child) for child in own] if wish.valued else own
            for wish, own in zip(wishes, made, strict=False)
        ]
        values = [scoring.value(state) for state in wanted.evaluate[:states]]
        return Found(
            [*children, *[None] * (len(wishes) - begun)],
            [*values, *[None] * (len(wanted.evaluate) - states)],
            self._meter.spent,
            short or told,
        )

    def _worst(self, wish: Expand) -> Spent:
        """The most that a wish can cost."""
        asks = self._asks(wish)
        if not asks:
            return Spent()
        spent = self._meter.worst(asks)
        if not wish.valued:
            return spent
        tokens = max((ask.max_tokens for ask in asks if isinstance(ask, SampleAsk)), default=1)
        children = 1 if wish.greedy else wish.width
        many = wish.whole and self._writing.level == "span" and self._writing.reduce != "last"
        ends = tokens if many else 1
        below = self._scoring.worst_below(wish.state, children=children, tokens=tokens, ends=ends, whole=wish.whole)
        return spent + below

    def _asks(self, wish: Expand) -> list[Ask]:
        """What an engine is asked for a wish; at token level also for the node, without which it would forget."""
        state: TextState = wish.state
        if state.above is None and state.length >= self._writing.context:
            raise ContextOverflow(
                "a prompt that leaves no room to write",
                value=f"{state.length} tokens",
                expected=f"fewer than {self._writing.context}",
            )
        if state.stop:
            return []
        if self._writing.level == "token" and not wish.whole:
            return [LogitsAsk(state.node, state.pending, keep=True)]
        if wish.greedy:
            seeds: tuple[int, ...] = (0,)
        else:
            level = "whole" if wish.whole else "span"
            numbers = range(wish.first, wish.first + wish.width)
            seeds = tuple(sample_seed(state.seed, level, wish.kind, number) for number in numbers)
        write = self._writing.rest if wish.whole else self._writing.span
        return [write(state, seeds, greedy=wish.greedy)]

    def _children(self, wish: Expand, answers: Sequence[Any]) -> list[Child]:
        """The children of a wish; equal ones are one."""
        if not answers:
            return []
        if isinstance(answers[0], tuple):
            grown = [self._sampled(wish, sample) for sample in answers[0]]
        else:
            grown = self._likeliest(wish, answers[0])
        found: dict[tuple[int, ...], Child] = {}
        problems = []
        for one in grown:
            if isinstance(one, EvolventError):
                problems.append(Child(wish.state, kind=wish.kind, problem=str(one)))
            elif one.ids in found:
                same = found[one.ids]
                found[one.ids] = replace(same, count=same.count + 1, generated=same.generated + one.sampled)
            else:
                found[one.ids] = Child(
                    one.state,
                    self._writing.text(one.ids),
                    float(np.mean(one.logprobs)),
                    terminal=bool(one.stop),
                    generated=one.sampled,
                    kind=wish.kind,
                )
        return [*found.values(), *problems]

    def _sampled(self, wish: Expand, sample: Continuation | EvolventError) -> _Grown | EvolventError:
        """One sample. A whole text is cut where it was over, though more was written."""
        if isinstance(sample, EvolventError):
            return sample
        if not len(sample.ids):
            return EngineError("an empty completion", value=sample.stop, expected="at least one token")
        above: TextState = wish.state
        ids, stop = tuple(sample.ids.tolist()), ""
        ends = self._writing.spans(ids) if wish.whole else (len(ids),)
        for at, end in enumerate(ends):
            stop = self._writing.over((*above.written, *ids[:end]), above.length + end)
            if stop:
                ends = ends[: at + 1]
                break
        kept = ids[: ends[-1]]
        whole = len(kept) == len(ids)
        logprobs = tuple(sample.logprobs[: len(kept)].tolist())
        state = replace(
            self._after(above, kept, logprobs),
            stop=stop,
            ends=_longer(above, ends),
            node=sample.node if whole else above.node,
            pending=() if whole else (*above.pending, *kept),
        )
        return _Grown(kept, logprobs, ends, stop, state, len(ids))

    def _likeliest(self, wish: Expand, output: Output | EvolventError) -> list[_Grown | EvolventError]:
        """The likeliest tokens after a state, the lower id first among equals."""
        if isinstance(output, EvolventError):
            return [output]
        above: TextState = wish.state
        temperature = self._writing.sampling.temperature or 1.0
        scaled = output.values.astype(np.float64) / temperature
        logprobs = scaled - scaled.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        chosen = np.argsort(-logprobs, kind="stable")[wish.after :][: 1 if wish.greedy else wish.width]
        above = replace(above, node=output.node, pending=())
        return [
            self._token(wish.state, above, int(token), float(logprobs[token]))
            for token in chosen
            if logprobs[token] > -np.inf
        ]

    def _token(self, above: TextState, known: TextState, token: int, logprob: float) -> _Grown:
        """One more token, which nobody has to feed yet."""
        stop = self._writing.over((*above.written, token), above.length + 1)
        state = replace(
            self._after(above, (token,), (logprob,)),
            stop=stop,
            ends=_longer(above, (1,)),
            node=known.node,
            pending=(*known.pending, token),
        )
        return _Grown((token,), (logprob,), (1,), stop, state, 0)

    def _after(self, above: TextState, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> TextState:
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

    def _valued(self, child: Child) -> Child:
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


def _longer(above: TextState, ends: Sequence[int]) -> tuple[int, ...]:
    return (*above.ends, *(len(above.written) + end for end in ends))
