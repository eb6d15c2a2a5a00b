"""Monte Carlo tree search: worked by hand, against a second implementation, and by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import SmallTree, Watch, end, random_tree, run

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.mcts import Commit, Descend, Explore, Restart, mcts
from evolvent.search.records import Budget
from evolvent.search.select import puct, uct

SEEDS = range(12)
# 0 -> 1 (.6), 2 (.5); 1 -> 3 (.9), 4 (.1); 2 -> 5 (.3); 3, 4, 5 -> one end each
HAND = SmallTree(
    {0: (1, 2), 1: (3, 4), 2: (5,), 3: (6,), 4: (7,), 5: (8,), 6: (), 7: (), 8: ()},
    dict.fromkeys(range(9), 0.0),
    {6: 0.95, 7: 0.2, 8: 0.4},
)
TOLD = {0: 0.5, 1: 0.6, 2: 0.5, 3: 0.9, 4: 0.1, 5: 0.3, 6: 0.95, 7: 0.2, 8: 0.4}


def search(start, rng=0, *, root=0, budget=None, width=3, depth=6, **options):
    draws = np.random.default_rng(rng) if isinstance(rng, int) else rng
    return mcts(root, budget or Budget(), draws, width=width, depth=depth, start=start, **options)


def noisy(tree: SmallTree, seed: int):
    """A value that differs from the truth, the same whenever it is asked."""
    return lambda state: tree.best(state) + float(np.random.default_rng([seed, state]).normal(0, 0.3))


def by_state(result) -> dict[int, tuple[int, float]]:
    tree = result.tree
    return {tree.states[node]: (int(tree.visits[node]), float(tree.total[node])) for node in range(len(tree))}


def own_visits(tree, node: int) -> int:
    return int(tree.visits[node] - tree.visits[tree.child_ids(node)].sum())


def check_sums(result, *, lazy: bool = True) -> None:
    """N and S of every node are those of its children, and what ended in it."""
    tree = result.tree
    for node in range(len(tree)):
        own = own_visits(tree, node)
        if tree.width[node] and tree.visits[node]:
            assert own == (1 if lazy and node else 0)
        below = float(tree.total[tree.child_ids(node)].sum())
        value = float(tree.value[node]) if own else 0.0
        assert tree.total[node] == pytest.approx(below + own * value)


def test_three_simulations_by_hand():
    watch = Watch(HAND, TOLD.__getitem__)
    result = run(search(Restart(9, simulations=3)), watch)
    # 1: N_parent is 0, so the higher value, 1. 2: .6 + .5 * 1.25 / 2 < .5 + .5 * 1.25, so 2.
    # 3: .6 + .44 > .5 + .44: 1 again, which is expanded now; .9 > .1 with equal priors: 3.
    assert watch.expanded == [0, 1]
    expected = {0: (3, 0.6 + 0.5 + 0.9), 1: (2, 0.6 + 0.9), 2: (1, 0.5), 3: (1, 0.9), 4: (0, 0.0)}
    assert {state: counts[0] for state, counts in by_state(result).items()} == {s: n for s, (n, _) in expected.items()}
    assert {state: counts[1] for state, counts in by_state(result).items()} == pytest.approx(
        {state: total for state, (_, total) in expected.items()}
    )
    assert result.best_node is None and result.finished == () and result.notes["simulations"] == 3


def reference(tree: SmallTree, value, simulations: int, select) -> dict[int, tuple[int, float]]:
    """A lazy search by plain recursion, one simulation after another."""
    visits: dict[int, int] = dict.fromkeys(tree.below, 0)
    total: dict[int, float] = dict.fromkeys(tree.below, 0.0)
    order = {state: sorted(below, key=lambda child: -tree.logprob[child]) for state, below in tree.below.items()}

    def simulate(state: int) -> float:
        told = value(state)
        if tree.below[state] and (visits[state] or state == 0):
            at = order[state]
            weights = np.exp([tree.logprob[child] for child in at])
            q = [total[child] / visits[child] if visits[child] else value(child) for child in at]
            counts = np.array([visits[child] for child in at])
            scores = select(np.array(q), weights / weights.sum(), parent_visits=visits[state], visits=counts)
            told = simulate(at[int(np.argmax(scores))])
        visits[state] += 1
        total[state] += told
        return told

    for _ in range(simulations):
        simulate(0)
    return {state: (visits[state], total[state]) for state in tree.below}


@pytest.mark.parametrize("seed", SEEDS)
def test_one_leaf_at_a_time_is_the_sequential_search(seed):
    tree = random_tree(seed)
    value = noisy(tree, seed)
    expected = reference(tree, value, 40, puct)
    result = run(search(Restart(10**6, simulations=40)), Watch(tree, value))
    found = by_state(result)
    assert found == {state: expected[state] for state in found}  # bit for bit
    assert all(expected[state][0] == 0 for state in set(tree.below) - set(found))


@pytest.mark.parametrize("leaves", [1, 3])
@pytest.mark.parametrize("start", [Commit(15), Restart(6), Commit(8, 1.0, 3), Descend(6)], ids=repr)
def test_sums(start, leaves):
    for seed in SEEDS:
        tree = random_tree(seed)
        result = run(search(start, leaves=leaves), Watch(tree, noisy(tree, seed)))
        check_sums(result, lazy=not isinstance(start, Descend))
        assert result.ended_by == "done" and result.best_node is not None


EXPLORE = [Explore(partial(puct, c_init=0.5)), Explore(partial(uct, c=1.0))]


@pytest.mark.parametrize("explore", EXPLORE, ids=["puct", "uct"])
def test_the_best_end_is_found(explore):
    for seed in SEEDS:
        tree = random_tree(seed, gap=0.5)
        for start in (Commit(80), Restart(60), Descend(200)):
            result = run(search(start, explore=explore), Watch(tree))
            assert tree.reward[end(result)] == tree.best(), (seed, start)


def test_the_best_end_is_found_among_wrong_values():
    """Ends are valued right, everything above them at random: many descents see through it."""
    hits = 0
    for seed in SEEDS:
        tree = random_tree(seed, gap=0.5)
        told = np.random.default_rng(seed).random(len(tree.below))
        watch = Watch(tree, lambda state, tree=tree, told=told: tree.reward.get(state, told[state]))
        result = run(search(Descend(60), explore=Explore(partial(uct, c=0.7))), watch)
        hits += tree.reward[end(result)] == tree.best()
    assert hits >= len(SEEDS) - 1


def test_descents_expand_on_their_way():
    watch = Watch(HAND, TOLD.__getitem__)
    result = run(search(Descend(2)), watch)
    # .6 > .5, .9 > .1. Then N_parent 1: .95 + .5 * 1.25 / 2 > .5 + .5 * 1.25: 1 again, where .1 + .625 < .95 + .3125.
    assert watch.expanded == [0, 1, 3]
    assert [result.tree.states[node] for node in result.finished] == [6, 6]
    assert by_state(result)[0] == pytest.approx((2, 1.9)) and end(result) == 6


def test_moves_go_where_most_visits_went():
    result = run(search(Commit(3)), Watch(HAND, TOLD.__getitem__))
    assert [result.tree.states[node] for node in result.notes["moves"][0]] == [1, 3, 6]
    assert by_state(result)[1][0] == 2 + 3 + 3  # what was below the move was kept,
    assert by_state(result)[0][0] == 9  # and what started there was backed up to the root


def test_equal_visits_are_told_apart_by_values():
    flat = SmallTree({0: (1, 2), 1: (), 2: ()}, {0: 0.0, 1: 0.0, 2: 0.0}, {1: 0.2, 2: 0.7})
    result = run(search(Commit(2), explore=Explore(partial(puct, c_init=3.0))), Watch(flat))
    assert by_state(result)[1][0] == by_state(result)[2][0] == 1
    assert end(result) == 2


def test_leaves_wait_together():
    watch = Watch(HAND, TOLD.__getitem__)
    result = run(search(Restart(9, simulations=4), leaves=2), watch)
    # The third simulation waits for the children of 1, which counts as a visit worth .5 to the fourth: (.6 + .5) / 2
    # + .5 * 1.25 * sqrt(3) / 3 < .5 + .5 * 1.25 * sqrt(3) / 2. So 2 is expanded in the same batch.
    assert [[wish.state for wish in batch.expand] for batch in watch.batches] == [[0], [1, 2]]
    assert by_state(result)[0] == pytest.approx((4, 0.6 + 0.5 + 0.9 + 0.3))


def test_more_leaves_ask_less_often():
    asked = dict.fromkeys((1, 4, 16), 0)
    for seed in SEEDS:
        tree = random_tree(seed, depth=6)
        for leaves in asked:
            watch = Watch(tree, noisy(tree, seed))
            run(search(Restart(10**6, simulations=60), leaves=leaves), watch)
            asked[leaves] += len(watch.batches)
    assert asked[1] > 2 * asked[4] > 2 * asked[16]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 500),
    start=st.sampled_from([Commit(6), Commit(4, 1.0, 2, "inter"), Restart(5), Descend(4)]),
    leaves=st.integers(1, 4),
    limit=st.tuples(st.sampled_from(["expansions", "generated", "computed"]), st.integers(1, 120)),
    told=st.booleans(),
    widen=st.sampled_from([0.0, 0.5]),
)
def test_never_over_budget(seed, start, leaves, limit, told, widen):
    tree = random_tree(seed)
    budget = Budget(**{limit[0]: limit[1]})
    again = widen > 0 or (isinstance(start, Commit) and start.trees == "inter")
    watch = Watch(tree, None if told else lambda state: None, again=again)
    explore = Explore(widen=widen)
    result = run(search(start, leaves=leaves, budget=budget, width=1 if widen else 3, explore=explore), watch, budget)
    assert result.ended_by in ("done", limit[0])
    ends = result.tree.terminal[: len(result.tree)]
    assert (result.best_node is None) == (not ends.any())


def test_a_budget_decides_for_the_best_end_that_was_seen():
    budget = Budget(expansions=4)
    result = run(search(Commit(50), budget=budget), Watch(HAND, TOLD.__getitem__), budget)
    assert result.ended_by == "expansions" and result.notes["fallback"] is True
    assert end(result) == 6


def test_values_that_nobody_told_are_asked_for():
    for seed in SEEDS:
        tree = random_tree(seed)
        for start in (Commit(10), Restart(5), Descend(5)):
            watch = Watch(tree, lambda state: None)
            told, asked = run(search(start), Watch(tree)), run(search(start), watch)
            assert by_state(told) == by_state(asked)
            assert sorted(watch.evaluated) == sorted(asked.tree.states[1:])


class Flawed(Watch):
    """States of `without` have no action; those of `unvalued` no value."""

    without: tuple[int, ...] = ()
    unvalued: tuple[int, ...] = ()

    def _children(self, wish):
        children = super()._children(wish)
        return [] if wish.state in self.without else children

    def _valued(self, state):
        value = super()._valued(state)
        return math.nan if state in self.unvalued else value


def flawed(without=(), unvalued=()):
    watch = Flawed(HAND, (lambda state: None) if unvalued else TOLD.__getitem__)
    watch.without, watch.unvalued = without, unvalued
    return watch


@pytest.mark.parametrize("start", [Commit(6), Restart(2), Descend(2)], ids=repr)
@pytest.mark.parametrize("leaves", [1, 3])
def test_a_dead_end_is_left_for_good(start, leaves):
    result = run(search(start, leaves=leaves), flawed(without=(3,)))
    dead = result.tree.states.index(3)
    assert own_visits(result.tree, dead) == (1 if isinstance(start, Descend) else 2)
    assert ("3", "there is no action to take in it") in [(each.action, each.reason) for each in result.dropped]
    assert end(result) in (7, 8)


def test_moves_into_a_dead_end_are_taken_back():
    chain = SmallTree(
        {0: (1, 2), 1: (3,), 2: (4,), 3: (5,), 4: (), 5: ()}, dict.fromkeys(range(6), 0.0), {4: 0.1, 5: 1.0}
    )
    watch = Flawed(chain)
    watch.without = (3,)
    result = run(search(Commit(1)), watch)
    assert [result.tree.states[node] for node in result.notes["moves"][0]] == [2, 4]
    assert end(result) == 4


@pytest.mark.parametrize("start", [Commit(6), Restart(2), Descend(2)], ids=repr)
def test_nothing_leads_to_an_end(start):
    result = run(search(start), flawed(without=(3, 4, 5)))
    assert result.best_node is None and result.ended_by == "done"
    assert result.tree.dead[0]


@pytest.mark.parametrize("start", [Commit(6), Restart(3), Descend(3)], ids=repr)
def test_what_cannot_be_valued_is_dropped(start):
    result = run(search(start), flawed(unvalued=(1,)))
    assert [(each.node, each.action, each.reason) for each in result.dropped] == [(0, "1", "its value is nan")]
    assert result.tree.visits[1] == 0 and end(result) == 8


@pytest.mark.parametrize("watch", [{"without": (0,)}, {"unvalued": (1, 2)}], ids=repr)
@pytest.mark.parametrize("start", [Commit(6), Restart(3), Descend(3)], ids=repr)
def test_nothing_to_do_at_the_root(start, watch):
    with pytest.raises(NoLegalAction):
        run(search(start), flawed(**watch))


@pytest.mark.parametrize("start", [Commit(6), Restart(3), Descend(3)], ids=repr)
def test_the_depth_limit_holds(start):
    watch = Watch(HAND, TOLD.__getitem__)
    result = run(search(start, depth=2), watch)
    assert result.best_node is None and result.ended_by == "done"
    assert set(watch.expanded) <= {0, 1, 2}


def test_trees_one_after_another():
    tree = random_tree(4)
    watch = Watch(tree, noisy(tree, 4))
    intra = run(search(Commit(8, paths=3)), watch)  # no state is expanded twice: `watch` would say so
    assert len(intra.finished) == 3 and len(set(intra.finished)) == 1  # without noise all trees are the same
    assert intra.tree.visits[0] == 8 * len(intra.notes["moves"][2])  # of the last tree alone
    inter = Watch(tree, noisy(tree, 4), again=True)
    result = run(search(Commit(8, paths=3, trees="inter")), inter)
    assert len(set(result.finished)) == 3
    firsts = [wish.first for batch in inter.batches for wish in batch.expand]
    assert sorted(set(firsts)) == [0, 3, 6] and firsts == sorted(firsts)
    assert result.tree.path(result.finished[2]) == [0, *result.notes["moves"][2]]


def test_drawn_moves_follow_the_visits():
    flat = SmallTree({0: (1, 2), 1: (), 2: ()}, {0: 0.0, 1: 0.0, 2: 0.0}, {1: 0.2, 2: 0.7})
    visits = by_state(run(search(Commit(12)), Watch(flat)))
    share = {t: (visits[1][0] / visits[2][0]) ** (1 / t) for t in (1.0, 0.5)}
    for temperature, odds in share.items():
        ends = [end(run(search(Commit(12, temperature), seed), Watch(flat))) for seed in range(400)]
        expected = 400 * odds / (1 + odds)
        assert abs(ends.count(1) - expected) < 4 * math.sqrt(expected), temperature


def test_noise_changes_priors_of_the_root_alone():
    tree = random_tree(7, depth=5)
    seen = []

    def spy(q, prior, *, parent_visits, visits):
        seen.append(prior)
        return puct(q, prior, parent_visits=parent_visits, visits=visits)

    result = run(search(Restart(10**6, simulations=30), explore=Explore(spy, noise=0.25)), Watch(tree))
    clean = {tuple(result.tree.prior[result.tree.children(node)]) for node in range(len(result.tree))}
    assert sum(tuple(prior) not in clean for prior in seen) == 30  # once a simulation
    again = run(search(Restart(10**6, simulations=30), explore=Explore(spy, noise=0.25)), Watch(tree))
    assert by_state(again) == by_state(result)


def test_without_noise_the_generator_is_not_used():
    rng = np.random.default_rng(3)
    before = rng.bit_generator.state
    for start in (Commit(6), Restart(3), Descend(3)):
        run(search(start, rng), Watch(HAND, TOLD.__getitem__))
    assert rng.bit_generator.state == before


# ------------------------------------------------------------------ progressive widening

FLAT = SmallTree(
    {0: (1, 2, 3, 4), 1: (), 2: (), 3: (), 4: ()}, dict.fromkeys(range(5), 0.0), {1: 0.1, 2: 0.2, 3: 0.9, 4: 0.4}
)


def assert_counts(result, expected: dict[int, tuple[int, float]]) -> None:
    found = by_state(result)
    for at in (0, 1):
        counts, by_hand = ({state: both[at] for state, both in each.items()} for each in (found, expected))
        assert counts == pytest.approx(by_hand)


def widened(start, watch, *, width=1, widen=0.5, **options):
    return run(search(start, width=width, explore=Explore(widen=widen), **options), watch)


def test_ten_simulations_of_a_tree_that_widens_by_hand():
    watch = Watch(FLAT, again=True)
    result = widened(Restart(99, simulations=10), watch)
    # One child while N < 4, two while N < 9, then three. The first four simulations have nowhere to go but 1.
    # N = 4: .1 + .5 * 2 * 1.25 / 5 = .35 < .2 + .5 * 2 * 1.25 = 1.45, so 2. N = 5: .38 < .90. N = 6: .41 < .71.
    # N = 7: .43 < .61. N = 8: .45 < .55, 2 each time. N = 9: 3, of which nothing but .9 is known, with P = 1/3: 2.15.
    assert_counts(result, {0: (10, 2.3), 1: (4, 0.4), 2: (5, 1.0), 3: (1, 0.9)})
    assert [(wish.width, wish.after, wish.first) for batch in watch.batches for wish in batch.expand] == [
        (1, 0, 0),
        (1, 1, 1),
        (1, 2, 2),
    ]
    assert result.tree.prior[1:4].tolist() == pytest.approx([1 / 3] * 3) and end(result) == 3
    two = widened(Restart(99, simulations=5), Watch(FLAT, again=True), width=2)
    assert len(two.tree) == 1 + 4  # floor(2 sqrt(4)) samples at the fifth


def test_an_inner_node_widens_by_its_own_visits():
    deep = SmallTree({0: (1,), 1: (2, 3), 2: (), 3: ()}, dict.fromkeys(range(4), 0.0), {2: 0.3, 3: 0.6})
    watch = Watch(deep, again=True)
    result = widened(Restart(99, simulations=5), watch)
    # 0 is widened in vain at N = 4, it has no other child; 1 is expanded at its second visit and has N = 4 at the last.
    assert [wish.state for batch in watch.batches for wish in batch.expand] == [0, 1, 0, 1]
    assert_counts(result, {0: (5, 2.1), 1: (5, 2.1), 2: (3, 0.9), 3: (1, 0.6)})  # its own .6, then 3 * .3, then .6


def test_what_is_drawn_again_is_the_child_that_is_there():
    class Same(Watch):
        def _children(self, wish):
            return [replace(super()._children(replace(wish, after=0))[0], count=wish.width, generated=7)]

    result = widened(Restart(99, simulations=30), Same(FLAT, again=True))
    assert len(result.tree) == 2 and result.tree.counts[1] == 5 and result.tree.generated[1] == 35
    assert result.tree.visits[1] == 30 and result.tree.width[0] == 1


def test_all_children_come_in_the_end_and_the_best_is_found():
    for seed in SEEDS:
        tree = random_tree(seed, gap=0.5)
        for start in (Commit(80), Restart(10**6, simulations=400), Descend(200)):
            result = widened(start, Watch(tree, again=True), widen=0.8)
            check_sums(result, lazy=not isinstance(start, Descend))
            assert tree.reward[end(result)] == tree.best(), (seed, start)


def test_what_is_added_is_valued_dropped_and_stirred_like_the_first():
    told = {0: 0.5, 1: 0.1, 2: math.nan, 3: 0.9, 4: 0.4}
    result = widened(Restart(99, simulations=12), Watch(FLAT, told.__getitem__, again=True))
    assert [(each.action, each.reason) for each in result.dropped] == [("2", "its value is nan")]
    assert end(result) == 3
    asked = widened(Restart(99, simulations=12), Watch(FLAT, lambda state: None, again=True))
    assert sorted(asked.tree.states[1:]) == [1, 2, 3] and not np.isnan(asked.tree.value[1:4]).any()
    noisy_ = [
        run(search(Commit(20, 1.0, 2), width=1, explore=Explore(noise=0.25, widen=0.5)), Watch(FLAT, again=True))
        for _ in range(2)
    ]
    assert by_state(noisy_[0]) == by_state(noisy_[1])


def test_trees_that_start_anew_draw_what_no_tree_before_has_drawn():
    watch = Watch(FLAT, again=True)
    widened(Commit(10, paths=2, trees="inter"), watch)
    wishes = [(wish.first, wish.after) for batch in watch.batches for wish in batch.expand if wish.state == 0]
    assert wishes == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]


def test_what_is_infinitely_good_is_tried_in_random_order():
    first = set()
    for seed in range(20):
        result = run(search(Restart(9, simulations=1), seed, explore=Explore(uct)), Watch(HAND, TOLD.__getitem__))
        first.add(result.tree.states[int(np.argmax(result.tree.visits[1:3])) + 1])
    assert first == {1, 2}


def test_wrong_settings_are_named_together():
    with pytest.raises(ConfigError, match=r"(?s)width.*depth.*leaves.*paths"):
        search(Restart(0), width=0, depth=0, leaves=0)
    with pytest.raises(ConfigError, match=r"(?s)temperature.*noise.*alpha"):
        search(Commit(1, -1.0), explore=Explore(noise=2.0, alpha=0.0))
    with pytest.raises(ConfigError, match=r"widen: got 1\.5, expected between 0 and 1"):
        search(Commit(1), explore=Explore(widen=1.5))
    with pytest.raises(ConfigError, match="simulations"):
        search(Commit(0))
