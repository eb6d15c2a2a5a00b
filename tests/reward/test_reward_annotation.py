"""Math-Shepherd and OmegaPRM: trees by hand, countdown where the truth of every prefix is known, and a real engine.

The countdown player is a policy whose distribution is known exactly: it draws each legal move evenly. Its tokens are
the states that moves lead to, so that a span is a token, and `solve_probability` is the exact MC of a prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.engine.asks import BlockingCall, Continuation, Job, SampleAsk, Sampling
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, GraderTimeout
from evolvent.models.policy import tiny_policy
from evolvent.reward.labelling import (
    Completer,
    LabelledSolution,
    LabellingConfig,
    OmegaConfig,
    OmegaTree,
    build_omega_tree,
    find_first_error,
    label_spans,
    priority,
    rows_to_solutions,
)
from evolvent.reward.solutions import Solution
from evolvent.trajectory import AnnotationTarget, Generation, Step, Task, Trajectory, sample_rng
from evolvent.worlds.numbers import State, is_reachable, moves, solve_probability

Policy = Callable[[tuple[int, ...], int], Sequence[int]]  # (all tokens so far, seed) -> what follows


def played(work: Job[Any], policy: Policy) -> Any:
    """Answer a work's asks with a policy."""
    try:
        asks = next(work)
        while True:
            answers: list[Any] = []
            for ask in asks:
                if isinstance(ask, BlockingCall):
                    answers.append(ask.call())
                    continue
                assert isinstance(ask, SampleAsk)
                written = [list(policy(tuple(ask.tokens), seed))[: ask.max_tokens] for seed in ask.seeds]
                answers.append(
                    tuple(
                        Continuation(None, np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), "stop")  # type: ignore[arg-type]
                        for ids in written
                    )
                )
            asks = work.send(answers)
    except StopIteration as stop:
        return stop.value


# ------------------------------------------------------------------ the formulas


@pytest.mark.parametrize(
    ("mc", "words", "wanted"), [(0.25, 100, 0.5822050996), (0.5, 250, 0.6708203932), (0.75, 0, 0.8408964153)]
)
def test_the_first_term_of_the_priority(mc: float, words: int, wanted: float) -> None:
    assert priority(mc, words, visits=0, total=0, config=OmegaConfig(c=0.0)) == pytest.approx(wanted, abs=1e-10)


def test_the_second_term_of_the_priority() -> None:
    def explored(visits: int, total: int) -> float:
        return priority(1.0, 0, visits=visits, total=total, config=OmegaConfig()) - 1.0

    assert [explored(0, 0), explored(0, 1), explored(1, 4), explored(3, 16)] == pytest.approx([0.125] * 4)
    assert explored(0, 9) == pytest.approx(0.375)


def test_bisection_finds_the_first_error_with_few_probes() -> None:
    for count in range(40):
        for first in range(count + 1):
            found, probed = find_first_error(lambda span, first=first: float(span < first), count)  # type: ignore[misc]
            assert found == first and len(probed) == len(set(probed)) <= ceil(log2(count + 1))


def test_settings_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        OmegaConfig(c=-1, alpha=0, beta=2, length=0, completions=0, searches=0, rollouts=-1)
    assert [problem.where for problem in caught.value.problems] == [
        "c",
        "alpha",
        "beta",
        "length",
        "completions",
        "searches",
        "rollouts",
    ]
    with pytest.raises(ConfigError, match="rollouts"):
        OmegaConfig(rollouts=15)
    with pytest.raises(ConfigError, match="count"):
        next(label_spans(Solution((1,), ((2,),)), COMPLETER, count=0))
    with pytest.raises(ConfigError) as caught:
        Completer(str, bool, 0, frozenset(), context=0)
    assert [problem.where for problem in caught.value.problems] == ["max_tokens", "context"]


# ------------------------------------------------------------------ a tree by hand

RIGHT, WRONG, STRANGE = 90, 91, 92
SCRIPT: dict[tuple[int, ...], list[tuple[int, ...]]] = {
    (): [(1, 2, 3, WRONG), (1, 9, RIGHT), (1, 2, 3, WRONG), (STRANGE,)],
    (1, 2): [(4, WRONG), (WRONG,), (3, WRONG), (5, WRONG)],
    (1,): [(7, RIGHT), (7, WRONG), (8, WRONG), (7, RIGHT)],
    (1, 7): [(RIGHT,), (RIGHT,), (WRONG,), (STRANGE,)],
    (1, 8): [(STRANGE,)] * 4,
}
COMPLETER = Completer(
    lambda ids: " ".join(map(str, ids)),
    lambda text: {str(RIGHT): True, str(STRANGE): None}.get(text.split()[-1], False),
    20,
    frozenset([RIGHT, WRONG, STRANGE]),
)


def scripted() -> Policy:
    asked: Counter[tuple[int, ...]] = Counter()

    def go_on(tokens: tuple[int, ...], seed: int) -> Sequence[int]:
        begun = tokens[1:]
        asked[begun] += 1
        return SCRIPT[begun][asked[begun] - 1]

    return go_on


def grown(**changes: Any) -> OmegaTree:
    config = OmegaConfig(**{"completions": 4, **changes})
    work = build_omega_tree((0,), COMPLETER, split=lambda ids: range(1, len(ids) + 1), config=config)
    return played(work, scripted())  # type: ignore[no-any-return]


def test_an_omega_tree_by_hand() -> None:
    """Root MC 1/3: one of three graded; equal wrong ones are one. Of its 4 spans (1, 2) is dead, (1) is not.

    In the pool are then (1)'s (7, WRONG) and (8, WRONG), MC 1/2. The first is taken: (1, 7) is alive (2 of 3), the
    whole is wrong. Then (1, 7)'s (WRONG,), whose whole is known; then (8, WRONG), of which nothing can be graded.
    """
    tree = grown()
    seen = [(state.ids, state.parent, None if state.mc is None else round(state.mc, 4)) for state in tree.states]
    assert seen == [
        ((), None, 0.3333),
        ((1, 9, RIGHT), 0, 1.0),
        ((1, 2), 0, 0.0),
        ((1,), 0, 0.5),
        ((1, 7, RIGHT), 3, 1.0),
        ((1, 7), 3, 0.6667),
        ((1, 7, WRONG), 5, 0.0),
        ((1, 8), 3, None),
    ]
    assert [state.visits for state in tree.states] == [1, 0, 0, 2, 0, 1, 0, 0]
    assert [state.finished for state in tree.states] == [False, True, False, False, True, False, True, False]
    assert (tree.searches, tree.rollouts, tree.ungraded, tree.ended) == (4, 20, 1 + 1 + 4, "pool")
    assert tree.generated == (4 + 3 + 4 + 1) + (2 + 1 + 2 + 2) + 8 + 4 + 4
    assert tree.chains() == [
        (((1,), (9,), (RIGHT,)), (0.5, None, 1.0)),
        (((1,), (2,)), (0.5, 0.0)),
        (((1,), (7,), (RIGHT,)), (0.5, pytest.approx(2 / 3), 1.0)),
        (((1,), (7,), (WRONG,)), (0.5, pytest.approx(2 / 3), 0.0)),
        (((1,), (8,)), (0.5, None)),
    ]
    told = tree.to_labels("q", COMPLETER.text)
    assert told[1].spans == ("1", "2") and told[1].labels == (0.5, 0.0) and told[1].source == "omega"


def test_the_pair_of_highest_priority_is_searched_first() -> None:
    """Of one state's wrong completions the shorter one, though it is younger; with beta 1 the older of the two."""
    wrong = [(WRONG,)] * 3
    script = {(): [(1, 2, 3, WRONG), (5, WRONG), (RIGHT,)], (5,): [(RIGHT,)] * 3, (1, 2): wrong, (1,): wrong}

    def first_tested(beta: float) -> tuple[int, ...]:
        given = {prefix: iter(rows) for prefix, rows in script.items()}
        config = OmegaConfig(completions=3, searches=1, beta=beta, length=1.0)
        work = build_omega_tree((0,), COMPLETER, split=singles, config=config)
        tree: OmegaTree = played(work, lambda tokens, seed: next(given[tokens[1:]]))
        return next(state.ids for state in tree.states[1:] if not state.finished)

    assert first_tested(0.9) == (5,) and first_tested(1.0) == (1, 2)


def test_limits_end_a_tree() -> None:
    assert (grown(searches=1).ended, grown(searches=1).rollouts, len(grown(searches=1).states)) == ("searches", 12, 5)
    for most, states in ((4, 2), (7, 2), (8, 3), (11, 3), (12, 5)):
        tree = grown(rollouts=most)
        assert tree.ended == "rollouts" and tree.rollouts == most // 4 * 4 and len(tree.states) == states


def test_a_shepherd_by_hand() -> None:
    solution = Solution((0,), ((1,), (7,), (RIGHT,)), "s")
    found: LabelledSolution = played(label_spans(solution, COMPLETER, count=4), scripted())
    assert found.labels == (0.5, pytest.approx(2 / 3), 1.0)
    assert (found.rollouts, found.ungraded, found.generated) == (8, 1, 8 + 4)
    assert found.to_labels("q", COMPLETER.text).to_hard().labels == (1.0, 1.0, 1.0)
    first = found.annotations()[0]
    assert (first.trajectory, first.target, first.value) == ("s", AnnotationTarget(0, 0, 0), 0.5)
    dead = played(label_spans(Solution((0,), ((1,), (8,), (WRONG,))), COMPLETER, count=4), scripted())
    assert dead.labels == (0.5, None, 0.0) and dead.ungraded == 4 and len(dead.annotations()) == 2
    none = played(label_spans(Solution((0,), ((1,), (STRANGE,))), COMPLETER, count=4), scripted())
    assert none.labels == (0.5, None)
    tight = replace(COMPLETER, context=2)  # after prompt and first span there is no room
    assert played(label_spans(solution, tight, count=4), scripted()).labels == (None, None, 1.0)


def test_a_grader_that_fails_is_not_a_zero() -> None:
    def failing(text: str) -> bool:
        if text.endswith(str(WRONG)):
            raise GraderTimeout("too slow")
        return text.endswith(str(RIGHT))

    for slow in (False, True):
        completer = replace(COMPLETER, correct=failing, slow=slow)
        found = played(label_spans(Solution((0,), ((1,), (7,))), completer, count=4), scripted())
        assert found.labels == (1.0, pytest.approx(2 / 3)) and found.ungraded == 2 + 1


# ------------------------------------------------------------------ countdown: the truth is known


class Numbers:
    """Countdown as tokens: token n is the n-th state that can be reached."""

    def __init__(self, numbers: State, target: int) -> None:
        self.target, self.states, waiting = target, [tuple(sorted(numbers))], [tuple(sorted(numbers))]
        while waiting:
            for move in moves(waiting.pop()):
                if move.left not in self.states:
                    self.states.append(move.left)
                    waiting.append(move.left)
        self.token = {state: at for at, state in enumerate(self.states)}
        ends = frozenset(at for at, state in enumerate(self.states) if len(state) == 1)
        self.completer = Completer(lambda ids: " ".join(map(str, ids)), self.right, 10, ends)

    def right(self, text: str) -> bool:
        return self.states[int(text.split()[-1])] == (self.target,)

    def evenly(self, tokens: tuple[int, ...], seed: int) -> list[int]:
        rng, state, found = sample_rng(seed), self.states[tokens[-1]], []
        while len(state) > 1:
            choices = moves(state)
            state = choices[int(rng.integers(len(choices)))].left
            found.append(self.token[state])
        return found

    def alive(self, token: int) -> bool:
        return is_reachable(self.states[token], self.target)

    def exact(self, token: int) -> float:
        return solve_probability(self.states[token], self.target)


GAME = Numbers((2, 3, 4, 4), 24)
EASY = Numbers((1, 1, 4, 6), 24)


def singles(ids: Sequence[int]) -> range:
    return range(1, len(ids) + 1)


def test_first_errors_of_countdown_are_where_the_target_is_lost() -> None:
    lost = Counter()
    for seed in range(200):
        way = GAME.evenly((0,), seed)
        found, _ = find_first_error(lambda span, way=way: GAME.exact(way[span]), len(way))  # type: ignore[misc]
        assert found == next((at for at, token in enumerate(way) if not GAME.alive(token)), len(way))
        lost[found] += 1
    assert set(lost) == {0, 1, 2, 3}


def test_shepherd_labels_are_the_exact_values_up_to_sampling() -> None:
    ways = [EASY.evenly((0,), seed) for seed in range(6)]
    count, errors = 300, []
    for number, way in enumerate(ways):
        solution = Solution((0,), tuple((token,) for token in way), f"way {number}")
        found: LabelledSolution = played(label_spans(solution, EASY.completer, count=count), EASY.evenly)
        assert found.rollouts == count * (len(way) - 1) and found.ungraded == 0
        for token, label in zip(way, found.labels, strict=True):
            exact = EASY.exact(token)
            assert label is not None and (label > 0) <= EASY.alive(token)  # a dead prefix is never called alive
            assert abs(label - exact) <= 5 * (exact * (1 - exact) / count) ** 0.5 + 1e-12
            errors.append(abs(label - exact))
    assert max(errors) > 0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 12), st.integers(0, 60))
def test_omega_keeps_its_limits_and_tells_the_truth(seed: int, k: int, searches: int, more: int) -> None:
    config = OmegaConfig(completions=k, searches=searches, rollouts=k + more)
    asked: Counter[tuple[int, ...]] = Counter()

    def policy(tokens: tuple[int, ...], number: int) -> list[int]:
        asked[tokens] += 1
        return EASY.evenly(tokens, number)

    tree: OmegaTree = played(build_omega_tree((0,), EASY.completer, split=singles, config=config, seed=seed), policy)
    assert tree.rollouts == sum(asked.values()) <= config.rollouts and set(asked.values()) == {k}
    assert tree.searches == sum(state.visits for state in tree.states) <= searches
    assert len({state.ids for state in tree.states}) == len(tree.states)
    for state in tree.states[1:]:
        parent = tree.states[state.parent or 0]
        assert state.ids[: len(parent.ids)] == parent.ids and parent.mc and state.ends == tuple(singles(state.ids))
        assert state.mc is not None and (state.mc > 0) <= EASY.alive(state.ids[-1])
        assert state.finished == (len(state.ids) == 3) and (not state.finished or state.mc == EASY.exact(state.ids[-1]))
    again = played(build_omega_tree((0,), EASY.completer, split=singles, config=config, seed=seed), EASY.evenly)
    assert again == tree
    assert tree.ended != "rollouts" or tree.rollouts + k > config.rollouts
    assert tree.ended != "searches" or tree.searches == searches


def test_omega_labels_are_right_where_completions_can_find_the_answer() -> None:
    right = total = 0
    for seed in range(6):
        config = OmegaConfig(completions=32, rollouts=600)
        tree: OmegaTree = played(
            build_omega_tree((0,), EASY.completer, split=singles, config=config, seed=seed), EASY.evenly
        )
        for state in tree.states[1:]:
            right += bool(state.mc) == EASY.alive(state.ids[-1])
            total += 1
    assert total > 100 and right / total > 0.95


# ------------------------------------------------------------------ a real engine


def test_works_on_an_engine_count_their_tokens_and_do_not_disturb_each_other() -> None:
    policy = tiny_policy([f"w{number}" for number in range(12)], context=64, seed=1)
    stop = frozenset(range(7, 11))
    completer = Completer(
        policy.dialect.text, lambda text: text[-1] in "13579", 16, stop, Sampling(8.0), context=40, slow=True
    )
    solution = Solution(tuple(range(11, 19)), ((12, 13), (14, 15, 16), (17,)), "engine")

    def works() -> list[Job[Any]]:
        config = OmegaConfig(completions=6, rollouts=60)
        return [
            label_spans(solution, completer, count=5, seed=2),
            build_omega_tree(solution.prompt, completer, split=singles, config=config, seed=2, name="one"),
            build_omega_tree(solution.prompt, completer, split=singles, config=config, seed=2, name="two"),
        ]

    alone, computed = [], []
    for number in range(3):
        engine = LocalEngine(policy)
        (done,) = run_jobs([works()[number]], engine, slots=1)
        alone.append(done.value)
        assert engine.usage.generated == done.value.generated and engine.usage.recomputed == 0
        computed.append(engine.usage.computed)
    found = alone[0]
    assert found.rollouts == 15 and computed[0] <= len(solution.ids) + found.generated
    assert alone[1] != alone[2] and alone[1].rollouts > 6 and len(alone[1].states) > 3
    assert computed[1] <= len(solution.prompt) + alone[1].generated  # probes fork off what was written
    together = {done.index: done.value for done in run_jobs(works(), LocalEngine(policy, slots=4), slots=3)}
    assert [together[number] for number in range(3)] == alone


def test_what_was_spent_where_nothing_came_right_is_told() -> None:
    """No completion is right: there is no state beside the root, so nothing to learn, but the tokens were sampled."""
    policy = tiny_policy([f"w{number}" for number in range(12)], context=64, seed=1)
    ids = np.asarray([*range(8, 12), 13, 14], np.int32)
    wrote = Generation(ids, np.arange(6) >= 4, np.zeros(6, np.float32))
    one = Trajectory("one", Task("w", "1", {}, "w"), (Step("?", "w", generations=(wrote,)),))
    for right in (False, True):
        engine = LocalEngine(policy)
        how = LabellingConfig(kind="omega", count=3, max_tokens=5)
        (done,) = run_jobs([how.work(policy, one, lambda text, right=right: right, seed=3)], engine, slots=1)
        assert sum(row.get("rollouts", 0) for row in done.value) == 3
        assert sum(row.get("generated", 0) for row in done.value) == engine.usage.generated > 0
        assert bool(list(rows_to_solutions(done.value))) == right
