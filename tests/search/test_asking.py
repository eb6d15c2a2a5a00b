"""What a search may still ask when a limit of its budget is reached."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.search.beam import beam
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes
from evolvent.search.drive import search_functions
from evolvent.search.records import Budget, Child, ExpandRequest, Response, Spent


def test_expansions_that_are_used_up_do_not_keep_states_from_being_valued():
    """Width 2, one expansion: both ends are there without values, and the better one is still found."""

    def children(wish: ExpandRequest) -> list[Child]:
        return [Child(state, str(state), terminal=True) for state in (3, 7)]

    search = beam("root", Budget(expansions=1), np.random.default_rng(0), width=2, keep=2, depth=4)
    result = search_functions(search, children, float)
    assert result.tree.states[result.best_node] == 7
    assert (result.spent.expansions, result.spent.evaluations) == (1, 2)


def test_what_is_reached_ends_it():
    asking = BudgetTracker(Budget(generated=10, expansions=2))
    asking.spent = Spent(generated=10)
    with pytest.raises(Exhausted) as stop:
        next(asking.request(evaluate=["state"]))
    assert stop.value.limit == "generated"
    asking.spent = Spent(expansions=2)
    with pytest.raises(Exhausted) as stop:
        next(asking.request([ExpandRequest("state", 1)], ["state"]))
    assert stop.value.limit == "expansions"
    wanted = next(asking.request(evaluate=["state"]))
    assert wanted.left == Budget(generated=10)


def test_more_wishes_than_expansions_are_cut():
    ask = BudgetTracker(Budget(expansions=2)).request([ExpandRequest(name, 1) for name in "abc"])
    wanted = next(ask)
    assert [wish.state for wish in wanted.expand] == ["a", "b"]
    with pytest.raises(StopIteration) as done:
        ask.send(Response(children=[[], []]))
    assert list(done.value.value.children) == [[], [], None] and done.value.value.short == "expansions"


def test_sizes_are_refused_together():
    with pytest.raises(ConfigError) as wrong:
        check_sizes(width=0, depth=-1, paths=None, keep=2)
    assert "width" in str(wrong.value.problems) and "depth" in str(wrong.value.problems)
    assert "keep" not in str(wrong.value.problems)
