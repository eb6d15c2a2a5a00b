"""Fault 44: nothing can be done at the root of a search: NoLegalAction from every method, not the best of nothing."""

from __future__ import annotations

import math

import pytest

from evolvent.errors import NoLegalAction
from evolvent.search.drive import search_functions
from evolvent.search.proposers import ListedProposer
from evolvent.search.records import Child
from tests.faults.test_f43_poor_judges import SEARCHES, begun
from tests.search.test_environments import SEARCHES as IN_WORLDS
from tests.search.test_environments import Listing, Steps, run, step_task

ROOTS = {
    "nothing is offered": lambda state: [],
    "all has a problem": lambda state: [Child(1, "go", problem="forbidden"), Child(2, "stay", problem="forbidden")],
    "no value is one": lambda state: [Child(1, "go", value=math.nan), Child(2, "stay", value=math.inf)],
    "no chance is one": lambda state: [Child(1, "go", logprob=math.nan, value=0.5)],
}


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_says_so(name, root):
    with pytest.raises(NoLegalAction, match="no action is available at the root of the search"):
        search_functions(begun(name), ROOTS[root], lambda state: 0.5)


class Nothing(Steps):
    """Lists no action from the beginning on."""

    def make(self, task):
        env = super().make(task)
        return type("Still", (Listing,), {"_info": lambda self: {"admissible": []}})(env.env, self)


@pytest.mark.parametrize("name", IN_WORLDS)
def test_an_environment_that_lists_nothing(name):
    with pytest.raises(NoLegalAction):
        run(IN_WORLDS[name], Nothing(), step_task(), proposer=ListedProposer())
