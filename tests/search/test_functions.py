"""Driving a search by functions: what fits is answered, in order, and what is spent is charged."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import NoLegalAction
from evolvent.search.beam import beam
from evolvent.search.drive import fit_to_budget, search_functions
from evolvent.search.records import Budget, Child, ExpandRequest, Request, Spent
from evolvent.search.samples import best_of_n


def children(wish: ExpandRequest) -> list[Child]:
    """Numbers: a state has its double and its double plus one, and ends above 30."""
    if wish.to_end:
        ends = [wish.state * 32 + at for at in range(wish.first, wish.first + wish.width)]
        return [Child(end, str(end), value=end / 100, terminal=True, generated=2) for end in ends]
    below = [2 * wish.state, 2 * wish.state + 1]
    return [Child(each, str(each), terminal=each > 30, generated=1) for each in below]


def test_a_beam_finds_the_best_number():
    search = beam(1, Budget(), np.random.default_rng(0), width=2, keep=2, depth=9)
    found = search_functions(search, children, lambda state: state % 7)
    assert found.tree.states[found.best_node] % 7 == max(state % 7 for state in found.tree.states if state > 30)
    assert found.spent.generated == len(found.tree) - 1 and found.spent.seconds > 0
    assert found.spent.evaluations == len(found.tree) - 1


@pytest.mark.parametrize("limit", range(1, 14))
def test_what_a_wish_may_cost_is_looked_at_before(limit):
    search = best_of_n(1, Budget(generated=limit), np.random.default_rng(0), n=5)
    found = search_functions(search, children, cost=lambda wish: Spent(generated=2 * wish.width))
    assert found.spent.generated <= limit and len(found.tree) - 1 == min(5, limit // 2)


def test_without_values_all_are_dropped():
    with pytest.raises(NoLegalAction):
        search_functions(beam(1, Budget(), np.random.default_rng(0), width=2, keep=2, depth=9), children)


def test_fitting_goes_in_order_and_stops_at_the_first_that_does_not():
    wanted = Request([ExpandRequest(0, 1)] * 3, [1, 2], Budget(generated=10, expansions=2))
    one, five, nine = Spent(generated=1), Spent(generated=5), Spent(generated=9)
    assert fit_to_budget(wanted, [one, one], [five, one, one]) == ((2, 2), "expansions")
    assert fit_to_budget(wanted, [one, one], [nine, one, one]) == ((2, 0), "generated")
    assert fit_to_budget(wanted, [nine, five], [one, one, one]) == ((1, 0), "generated")
    assert fit_to_budget(Request([ExpandRequest(0, 1)], [1]), [five], [nine]) == ((1, 1), None)
