"""Searches that votes end early: the same first samples, the same answer where it is decided, nothing drawn in vain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import Watch, end, random_tree, run

from evolvent.belief.answers import AnswerBelief
from evolvent.belief.stopping import Agreement, AnyOf, Decided, EntropyBelow, Patience, StdBelow
from evolvent.errors import ConfigError
from evolvent.search.aggregate import Sample, aggregate
from evolvent.search.mcts import Commit, Descend, Restart, mcts
from evolvent.search.records import Budget
from evolvent.search.samples import sampled_tree, self_consistency, voted_tree
from evolvent.search.settings import SearchConfig, stoppable_searches
from evolvent.search.stopping import Stop, Visits

FREE = Budget()
NEVER = EntropyBelow(-1.0)
DETECTORS = [
    Decided(),
    Agreement(0.7),
    Agreement(0.5, least=2),
    AnyOf(Agreement(0.8, least=4), Decided()),
    Patience(Agreement(0.6, least=2), 2),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def third(state: int) -> int | None:
    """Answers of which some agree, and some cannot be read."""
    return None if state % 7 == 0 else state % 3


def ends(result) -> list[int]:
    return [int(result.tree.states[node]) for node in result.finished]


def expected(detector, answers, most: int) -> int:
    """Votes after which a detector that looks at every one stops."""
    belief, history = AnswerBelief(most), []
    for answer in answers:
        belief = belief.add(answer)
        history.append(detector(belief.summarize(), history))
        if history[-1].stop[0]:
            break
    return belief.cast


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(1, 25), st.sampled_from(DETECTORS))
def test_samples_end_where_one_at_a_time_would_have(seed, n, detector):
    tree = random_tree(seed)
    drawn = [tree.drawn(0, number) for number in range(n)]
    watch, whole = Watch(tree), Watch(tree)
    result = run(self_consistency(0, FREE, rng(), n=n, answer=third, stop=detector), watch)
    full = run(self_consistency(0, FREE, rng(), n=n, answer=third), whole)
    used = expected(detector, [third(state) for state in drawn], n)
    assert Counter(ends(result)) == Counter(drawn[:used])  # the first ones of the same samples, and none in vain
    assert result.notes["votes"] == used and result.notes["spared"] == n - used
    assert watch.spent.generated <= whole.spent.generated
    assert bool(result.notes["stopped"]) == (used < n) and result.ended_by == "done"
    if detector == Decided():
        assert third(end(result)) == third(end(full))
    firsts = [wish.first for wanted in watch.batches for wish in wanted.expand]
    assert firsts[0] == 0 and len(firsts) <= used
    if isinstance(detector, Decided):
        assert watch.batches[0].expand[0].width == n // 2 + 1


@pytest.mark.parametrize("seed", range(4))
def test_a_detector_that_never_fires_changes_nothing(seed):
    tree = random_tree(seed)
    plain = run(self_consistency(0, FREE, rng(), n=9, answer=third), Watch(tree))
    same = run(self_consistency(0, FREE, rng(), n=9, answer=third, stop=NEVER), Watch(tree))
    assert Counter(ends(plain)) == Counter(ends(same)) and third(end(plain)) == third(end(same))
    assert same.notes["stopped"] == "" and same.notes["spared"] == 0
    walks = [
        run(sampled_tree(0, FREE, rng(3), width=3, depth=4, paths=12), Watch(tree)),
        run(voted_tree(0, FREE, rng(3), width=3, depth=4, paths=12, stop=Stop(NEVER)), Watch(tree)),
    ]
    assert ends(walks[0]) == ends(walks[1])
    for start in (Restart(5), Descend(5), Commit(8)):
        searches = [
            run(mcts(0, FREE, rng(), width=3, depth=5, start=replace(start, stop=stop)), Watch(tree))
            for stop in (None, Stop(NEVER))
        ]
        assert ends(searches[0]) == ends(searches[1])
        assert searches[0].tree.visits[:9].tolist() == searches[1].tree.visits[:9].tolist()


def test_samples_that_failed_are_votes_that_nobody_can_read():
    tree = random_tree(3)
    drawn = [tree.drawn(0, number) for number in range(9)]
    broken = drawn[0]

    class Broken(Watch):
        def _children(self, wish):
            return [
                replace(child, problem="no answer") if child.state == broken else child
                for child in super()._children(wish)
            ]

    found = run(self_consistency(0, FREE, rng(), n=9, answer=lambda state: 1, stop=Decided()), Broken(tree))
    votes = [None if state == broken else 1 for state in drawn]
    assert found.notes["votes"] == expected(Decided(), votes, 9) > 5


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 9),
    st.sampled_from(["generated", "computed", "expansions"]),
    st.integers(1, 200),
    st.sampled_from(DETECTORS),
)
def test_no_budget_is_exceeded_and_every_budget_gives_a_result(seed, limit, most, detector):
    budget = Budget(**{limit: most})
    tree, stop = random_tree(seed), Stop(detector, third)
    for search in (
        self_consistency(0, budget, rng(), n=9, answer=third, stop=detector),
        voted_tree(0, budget, rng(), width=3, depth=4, paths=9, stop=stop),
        mcts(0, budget, rng(), width=3, depth=5, start=Restart(6, stop=stop)),
        mcts(0, budget, rng(), width=3, depth=5, start=Commit(6, stop=stop)),
    ):
        assert run(search, Watch(tree), budget).ended_by in ("done", limit)


def test_what_a_budget_cut_short_is_the_beginning_of_the_vote():
    tree = random_tree(5)
    drawn = [tree.drawn(0, number) for number in range(40)]
    for most in (30, 100, 300):
        budget = Budget(generated=most)
        found = run(self_consistency(0, budget, rng(), n=40, answer=third, stop=Decided()), Watch(tree), budget)
        assert Counter(ends(found)) == Counter(drawn[: found.notes["votes"]])
        assert found.ended_by == "generated" and most - found.spent.generated < 8 * 3  # one more might not fit


# ---------------------------------------------------------------- trees


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("detector", DETECTORS, ids=repr)
def test_walks_end_where_one_at_a_time_would_have(seed, detector):
    tree = random_tree(seed)
    whole = run(sampled_tree(0, FREE, rng(seed), width=3, depth=4, paths=15), Watch(tree))
    watch = Watch(tree)
    found = run(voted_tree(0, FREE, rng(seed), width=3, depth=4, paths=15, stop=Stop(detector, third)), watch)
    used = expected(detector, [third(state) for state in ends(whole)], 15)
    assert ends(found) == ends(whole)[:used] and found.notes["spared"] == 15 - used


def majority(result, answer):
    """The answer of most ends."""
    samples = [Sample(answer(result.tree.states[node])) for node in result.finished]
    return aggregate(samples, span="last", rule="majority").answer


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("start", [Restart(9), Descend(9)])
@pytest.mark.parametrize("leaves", [1, 3])
def test_a_decided_tree_has_the_majority_of_the_whole_one(seed, start, leaves):
    tree = random_tree(seed)

    def both(stop):
        watch = Watch(tree)
        begun = mcts(0, FREE, rng(), width=3, depth=5, start=replace(start, stop=stop), leaves=leaves)
        return run(begun, watch), watch

    (whole, dear), (found, cheap) = both(None), both(Stop(Decided(), lambda state: state % 2))
    assert majority(found, lambda state: state % 2) == majority(whole, lambda state: state % 2)
    assert ends(found) == ends(whole)[: len(ends(found))]
    assert cheap.spent.computed <= dear.spent.computed
    assert found.notes["votes"] == len(found.finished) and bool(found.notes["stopped"]) == (len(found.finished) < 9)


def test_a_tree_stops_at_the_first_round_at_which_it_may():
    """All ends have one answer: five of nine votes decide it."""
    start = Restart(9, stop=Stop(Decided(), lambda state: 1))
    found = run(mcts(0, FREE, rng(), width=3, depth=5, start=start), Watch(random_tree(1)))
    assert (found.notes["votes"], found.notes["spared"], found.notes["stop_score"]) == (5, 4, -1.0)


@pytest.mark.parametrize("seed", range(12))
def test_a_move_that_cannot_be_overtaken_is_the_move_of_all_simulations(seed):
    tree = random_tree(seed, least=2)

    def first(stop):
        return run(mcts(0, FREE, rng(), width=3, depth=1, start=Commit(20, stop=stop)), Watch(tree))

    whole, found = first(None), first(Stop(Decided()))
    assert found.notes["moves"][0][0] == whole.notes["moves"][0][0]
    assert found.notes["simulations"] == 20 - found.notes.get("spared", 0)
    visits = np.sort(found.tree.visits[found.tree.children(0)])[::-1]
    left = found.notes.get("spared", 0)
    assert not left or visits[0] - visits[1] > left


def test_visits_by_hand():
    looks = Visits(Decided())
    assert not looks.should_stop(np.array([0, 0, 0]), 10) and not looks.should_stop(np.array([6, 1, 0]), 5)
    assert looks.should_stop(np.array([1, 7, 0]), 5) and looks.history[-1].score.tolist() == [-1]
    assert len(looks.history) == 3
    assert Visits(Decided()).should_stop(np.array([3]), 2)


def test_only_votes_can_be_ended():
    for method in ("greedy", "best_of_n", "beam", "depth_first", "gumbel"):
        with pytest.raises(ConfigError, match="has no votes to stop early"):
            SearchConfig(method=method).begin(stop=Stop(Decided()))
    for method in ("mcts_restart", "mcts_descend"):
        with pytest.raises(ConfigError, match="rule 'max' does not count votes"):
            SearchConfig(method=method).begin(stop=Stop(Decided()))
        assert not SearchConfig(method=method, rule="majority").stopping_problems()
    assert SearchConfig(sampled=True).stopping_problems() and not SearchConfig().stopping_problems()
    with pytest.raises(ConfigError, match="set temperature to 0"):
        mcts(0, FREE, rng(), width=2, depth=2, start=Commit(4, temperature=1.0, stop=Stop(Decided())))
    with pytest.raises(ConfigError, match="std"):
        run(self_consistency(0, FREE, rng(), n=3, stop=StdBelow(1.0)), Watch(random_tree(0)))
    assert set(stoppable_searches()) == {"samples", "sampled_tree", "mcts", "mcts_restart", "mcts_descend"}


@pytest.mark.parametrize("method", ["samples", "sampled_tree"])
def test_settings_hand_the_detector_on(method):
    how = SearchConfig(method=method, width=3, depth=4, paths=12)
    found = run(how.begin(stop=Stop(Decided(), lambda state: 1))(0, FREE, rng()), Watch(random_tree(2)))
    assert found.notes["votes"] == 7 and found.notes["stopped"]
