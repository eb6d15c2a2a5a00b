"""Gumbel search: visit by visit as mctx under the same noise; order and offsets do not matter; budgets; bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from trees import SmallTree, Watch, end, random_tree, run

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.gumbel import GumbelConfig, gumbel_mcts
from evolvent.search.mcts import Explore, Restart, mcts
from evolvent.search.records import Budget
from evolvent.search.simulate import Simulator

MCTX = json.loads(Path(__file__).with_name("mctx.json").read_text(encoding="utf-8"))  # see make_mctx.py
SEEDS = range(12)
RESCALE = GumbelConfig(c_scale=1.0, rescale=False, schedule="rescale")


class Frozen:
    """A generator of numbers that were drawn elsewhere."""

    def __init__(self, noise: list[float]) -> None:
        self.noise = np.array(noise)

    def gumbel(self, size: int) -> np.ndarray:
        assert size == len(self.noise)
        return self.noise


class InOrder(Watch):
    """Children in the order of the tree instead of the likeliest first."""

    def _children(self, wish):
        self.expanded.append(wish.state)
        return [self._child(child, 1, wish) for child in self.tree.below[wish.state]]


def search(rng=0, *, budget=None, width=3, depth=6, simulations=24, considered=3, settings=None):
    draws = np.random.default_rng(rng) if isinstance(rng, int) else rng
    sizes = {"simulations": simulations, "considered": considered}
    return gumbel_mcts(0, budget or Budget(), draws, width=width, depth=depth, settings=settings, **sizes)


def visits_by_state(result) -> dict[int, int]:
    tree = result.tree
    return {tree.states[node]: int(tree.visits[node]) for node in range(len(tree)) if tree.visits[node]}


def by_node(result):
    size = len(result.tree)
    return result.tree.visits[:size].tolist(), result.tree.total[1:size].tolist(), result.notes, result.finished


# ------------------------------------------------------------------ parity


def recorded(number: int) -> tuple[dict, SmallTree]:
    """A tree of mctx.json, whose states are numbered in breadth-first order."""
    told = MCTX["trees"][number]
    actions, size = told["actions"], len(told["values"])
    below: dict[int, tuple[int, ...]] = {}
    logprob = {0: 0.0}
    for state in range(size):
        children = tuple(range(state * actions + 1, state * actions + actions + 1))
        logits = np.array(told["logits"][state])
        logprob |= dict(zip(children, (logits - np.log(np.exp(logits).sum())).tolist(), strict=True))
        below[state] = () if told["terminal"][state] or children[-1] >= size else children
    ends = {state: told["values"][state] for state in below if not below[state]}
    return told, SmallTree(below, {state: logprob[state] for state in below}, ends)


def replayed(case: dict, survivors="visit"):
    told, tree = recorded(case["tree"])
    watch = InOrder(tree, told["values"].__getitem__)
    sizes = {"width": told["actions"], "depth": told["depth"]}
    if case["kind"] == "muzero":
        start = Restart(10**6, case["simulations"])
        return run(mcts(0, Budget(), None, start=start, explore=Explore(muzero=True), **sizes), watch)
    settings = GumbelConfig(c_scale=case["c_scale"], rescale=case["rescale"], survivors=survivors, moves=1)
    sizes |= {"simulations": case["simulations"], "considered": min(case["considered"], case["simulations"])}
    return run(gumbel_mcts(0, Budget(), Frozen(case["noise"]), settings=settings, **sizes), watch)


def expected_visits(case: dict) -> dict[int, int]:
    return {int(state): visits for state, visits in case["visits"].items()}


@pytest.mark.parametrize("case", MCTX["cases"], ids=lambda c: f"{c['kind']}-{c['tree']}-{c['simulations']}")
def test_every_node_is_visited_as_often_as_by_mctx(case):
    result = replayed(case)
    visits = visits_by_state(result)
    visits.pop(0)
    assert visits == expected_visits(case)
    if case["kind"] == "gumbel":
        first = result.notes["moves"][0]
        assert result.tree.states[first] == case["action"] + 1
        assert result.notes["policies"][0] == pytest.approx(case["policy"], abs=1e-12)


def test_survivors_of_a_phase_differ_from_those_of_every_visit():
    """The recorded cases tell the two apart; both are what they say."""
    cases = [case for case in MCTX["cases"] if case["kind"] == "gumbel"]
    apart = 0
    for case in cases:
        visits = visits_by_state(replayed(case, "phase"))
        visits.pop(0)
        apart += visits != expected_visits(case)
    assert 0 < apart < len(cases) / 2


# ------------------------------------------------------------------ what does not matter


@pytest.mark.parametrize("settings", [GumbelConfig(), GumbelConfig(survivors="visit"), RESCALE], ids=repr)
def test_a_round_is_the_same_in_any_order(settings, monkeypatch):
    """All at once, one after another, and backwards: the same tree, node by node."""
    together = Simulator.round

    def outcomes():
        trees = [random_tree(seed, depth=5) for seed in SEEDS[:8]]
        # Multiples of 1/64, so that sums do not depend on their order.
        watches = [Watch(tree, lambda state, tree=tree: round(tree.best(state) * 64) / 64) for tree in trees]
        return [run(search(seed, settings=settings), watch) for seed, watch in enumerate(watches)]

    def one_by_one(self, starts, *, leaves):
        for start in starts:
            yield from together(self, [start], leaves=1)

    def backwards(self, starts, *, leaves):
        yield from one_by_one(self, starts[::-1], leaves=leaves)

    def shapes(results):
        """Visits and sums by state: nodes are numbered in the order in which they were made."""
        return [
            {r.tree.states[n]: (int(r.tree.visits[n]), float(r.tree.total[n])) for n in range(1, len(r.tree))}
            | {"ends": [r.tree.states[n] for n in r.finished], "policies": r.notes["policies"]}
            for r in results
        ]

    expected = shapes(outcomes())
    for order in (one_by_one, backwards):
        monkeypatch.setattr(Simulator, "round", order)
        assert shapes(outcomes()) == expected


def test_rounds_are_asked_for_together():
    asked = {}
    for survivors in ("phase", "visit"):
        watches = [Watch(random_tree(seed, depth=4, least=3, most=6)) for seed in range(6)]
        for seed, watch in enumerate(watches):
            run(search(seed, width=6, simulations=48, considered=6, settings=GumbelConfig(survivors=survivors)), watch)
        asked[survivors] = sum(len(watch.batches) for watch in watches)
    wishes = sum(len(watch.expanded) for watch in watches)
    assert asked["phase"] <= asked["visit"] < 0.7 * wishes


@pytest.mark.parametrize("offset", [-64.0, 0.5, 1024.0])
def test_a_constant_added_to_all_values_changes_nothing(offset):
    for seed in SEEDS:
        tree = random_tree(seed)
        # Multiples of 1/64: sums of them, and of the offset, are exact.
        told = {state: round(tree.best(state) * 64) / 64 for state in tree.below}
        plain = run(search(seed), Watch(tree, told.__getitem__))
        moved = run(search(seed), Watch(tree, lambda state, told=told: told[state] + offset))
        assert visits_by_state(plain) == visits_by_state(moved)
        assert plain.notes["moves"] == moved.notes["moves"]
    changed = GumbelConfig(rescale=False)
    other = [run(search(0, settings=changed), Watch(random_tree(3), lambda s, c=c: (s % 7) / 7 * c)) for c in (1, 99)]
    assert visits_by_state(other[0]) != visits_by_state(other[1])


# ------------------------------------------------------------------ whole solutions


@pytest.mark.parametrize(
    "settings", [GumbelConfig(scale=0.0), GumbelConfig(scale=0.0, survivors="visit"), RESCALE], ids=repr
)
def test_the_best_end_is_found(settings):
    hits = 0
    for seed in SEEDS:
        tree = random_tree(seed, gap=0.5)
        result = run(search(seed, simulations=80, settings=settings), Watch(tree))
        hits += tree.reward[end(result)] == tree.best()
    assert hits == len(SEEDS)


def test_halving_counts_the_visits_of_each_move_alone():
    for seed in SEEDS:
        result = run(search(seed), Watch(random_tree(seed)))
        tree, moves = result.tree, result.notes["moves"]
        assert tree.path(result.finished[0]) == [0, *moves]
        assert result.notes["simulations"] == 24 * len(moves) == tree.visits[0]
        for node in range(1, len(tree)):
            if tree.width[node] and tree.visits[node]:
                below = int(tree.visits[tree.children(node)].sum())
                kept = node in moves  # its own first visit may be missing where it was made without one
                assert below == tree.visits[node] - 1 or (kept and below == tree.visits[node])
        for policy in result.notes["policies"]:
            assert sum(policy) == pytest.approx(1.0)


def test_the_schedule_is_spent_on_the_actions_considered():
    wide = SmallTree(
        {0: (1, 2, 3, 4, 5), **dict.fromkeys(range(1, 6), ())},
        dict.fromkeys(range(6), 0.0),
        {1: 0.1, 2: 0.5, 3: 0.2, 4: 0.9, 5: 0.3},
    )
    noise = Frozen([0.0, 0.5, 5.0, 0.4, -3.0])  # 3 comes first, then 2, 4, 1; 5 is not considered
    watch = InOrder(wide)
    result = run(search(noise, width=5, simulations=16, considered=4), watch)
    # mctx's schedule 0000 1111 22 33 44 55. After two visits each: sigma = 5.2 * (q - .1) / .8, so
    # 3: 5 + .65, 4: .4 + 5.2, 2: .5 + 2.6, 1: 0. So 3 and 4 survive; at six visits 5.6 * .125 + 5 > 5.6 + .4 is wrong.
    assert {state: n for state, n in visits_by_state(result).items() if state} == {1: 2, 2: 2, 3: 6, 4: 6}
    assert end(result) == 4


def test_without_noise_the_search_is_deterministic():
    settings = GumbelConfig(scale=0.0)
    for seed in SEEDS:
        tree = random_tree(seed)
        first, second = (run(search(rng, settings=settings), Watch(tree)) for rng in (1, 2))
        assert by_node(first) == by_node(second)


def test_the_root_alone():
    result = run(search(settings=GumbelConfig(moves=1)), Watch(random_tree(2)))
    assert len(result.notes["moves"]) == 1
    assert result.tree.parent[result.notes["moves"][0]] == 0


@profile(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 500),
    limit=st.tuples(st.sampled_from(["expansions", "generated", "computed"]), st.integers(1, 120)),
    told=st.booleans(),
    settings=st.sampled_from([GumbelConfig(), GumbelConfig(survivors="visit"), RESCALE]),
)
def test_never_over_budget(seed, limit, told, settings):
    tree = random_tree(seed)
    budget = Budget(**{limit[0]: limit[1]})
    watch = Watch(tree, None if told else lambda state: None)
    result = run(search(seed, budget=budget, settings=settings), watch, budget)
    assert result.ended_by in ("done", limit[0])
    ends = result.tree.terminal[: len(result.tree)]
    if result.ended_by == "done":
        assert result.notes["moves"][-1] == result.best_node
    assert (result.best_node is None) == (not ends.any())


# ------------------------------------------------------------------ bad input


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


def flawed(*, told=True, without=(), unvalued=()):
    chain = SmallTree(
        {0: (1, 2), 1: (3, 4), 2: (5,), 3: (6,), 4: (), 5: (), 6: ()},
        dict.fromkeys(range(7), 0.0),
        {4: 0.2, 5: 0.1, 6: 1.0},
    )
    watch = Flawed(chain, None if told else (lambda state: None))
    watch.without, watch.unvalued = without, unvalued
    return watch


def test_dead_ends_are_left():
    result = run(search(), flawed(without=(3,)))
    assert end(result) == 4
    assert [each.action for each in result.dropped] == ["3"]
    dead = result.tree.states.index(3)
    assert result.tree.visits[dead] == 2 and result.tree.dead[dead]


def test_a_move_into_a_dead_end_is_taken_back():
    result = run(search(simulations=1, considered=1, settings=GumbelConfig(scale=0.0)), flawed(without=(3,)))
    states = [result.tree.states[node] for node in result.notes["moves"]]
    assert states in ([1, 4], [2, 5])
    assert len(result.notes["policies"]) == len(states)


def test_all_considered_actions_may_die():
    """What is left is simulated in their place."""
    result = run(search(simulations=12, considered=1, settings=GumbelConfig(scale=0.0)), flawed(without=(1,)))
    assert [result.tree.states[node] for node in result.notes["moves"]] == [2, 5]
    assert result.notes["simulations"] == 24
    nothing = run(search(), flawed(without=(1, 2)))
    assert nothing.best_node is None and nothing.tree.dead[0] and nothing.ended_by == "done"


def test_values_that_could_not_be_found():
    result = run(search(), flawed(told=False, unvalued=(1,)))
    assert [(each.action, each.reason) for each in result.dropped] == [("1", "its value is nan")]
    assert end(result) == 5
    rootless = run(search(), flawed(told=False, unvalued=(0,)))  # its children's values stand in for its own
    assert end(rootless) == 6 and np.isnan(rootless.tree.value[0])
    with pytest.raises(NoLegalAction):
        run(search(), flawed(told=False, unvalued=(1, 2)))
    with pytest.raises(NoLegalAction):
        run(search(), flawed(without=(0,)))


def test_wrong_settings_are_named_together():
    with pytest.raises(ConfigError, match=r"(?s)width.*depth.*moves"):
        search(width=0, depth=0, settings=GumbelConfig(moves=0))
    with pytest.raises(ConfigError, match=r"(?s)c_visit.*scale.*considered"):
        search(simulations=2, considered=3, settings=GumbelConfig(c_visit=-1.0, scale=math.nan))
