"""Several trees in play: one tree is the plain search, budgets are shared, and what trees share is fed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.models.policy import Policy
from evolvent.rollout.search import SearchOutcome, SearchPlayer, check_search, search_starts
from evolvent.scale.initial import make_policy
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import Start
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes
from evolvent.worlds.preference.world import Preference
from tests.rollout.test_searching import SMALL, Noted

SIZES = Sizes(train=20, dev=6, test=6)


@pytest.fixture(scope="module", params=["deduction", pytest.param("countdown", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> tuple[World, Policy]:
    world: World = Countdown(sizes=SIZES) if request.param == "countdown" else Deduction(sizes=SIZES)
    return world, make_policy([world], context=256, seed=1)


def play(place: tuple[World, Policy], how: SearchConfig, *, engine: Any = None, trees: int = 0) -> list[SearchOutcome]:
    world, policy = place
    starts = [Start(task) for task in world.tasks("test", "seen")[: 1 if engine is not None else 2]]
    player = SearchPlayer(policy, engine or LocalEngine(policy, slots=16), Noted() if how.uses_judge else None)
    return list(search_starts({world.name: world}, starts, how, player=player, seed=5, trees=trees))


def told(one: SearchOutcome) -> tuple[Any, ...]:
    return replace(one, spent=replace(one.spent, seconds=0.0), tree=timeless(one.tree), forest=()), one.trajectory


def timeless(tree: Any) -> dict[str, Any]:
    return {**tree, "spent": {**tree["spent"], "seconds": 0.0}} if tree else {}


@pytest.mark.parametrize("method", ["mcts", "beam", "gumbel", "sampled_tree"])
def test_one_tree_is_the_plain_search(place: tuple[World, Policy], method: str) -> None:
    value = "none" if method == "sampled_tree" else "judge"
    given: dict[str, Any] = {**SMALL, "method": method, "value": value, "generated": 200}
    plain = play(place, SearchConfig(**given), trees=2)
    one = play(place, ForestConfig(**given, between="majority"), trees=2)
    assert sorted(map(told, plain), key=str) == sorted(map(told, one), key=str)
    assert all(found.tree and not found.forest for found in one)


@pytest.mark.parametrize("trees", [2, 3, 4])
@pytest.mark.parametrize("limit", ["generated", "computed", "expansions"])
def test_the_budget_of_a_problem_is_shared(place: tuple[World, Policy], trees: int, limit: str) -> None:
    most = {"generated": 400, "computed": 900, "expansions": 9}[limit]
    how = ForestConfig(**SMALL, method="mcts", forest=trees, between="majority", **{limit: most})
    for one in play(place, how, trees=1):
        assert 0 < getattr(one.spent, limit) <= most and one.trajectory.error is None
        if one.tree:
            assert 1 < len(one.forest) <= trees
            parts = [tree["spent"][limit] for tree in one.forest]
            assert sum(parts) == getattr(one.spent, limit) and min(parts) > 0
            assert len({tuple(tree["action"]) for tree in one.forest}) == len(one.forest), "trees are independent"
            assert one.tree in one.forest


def test_trees_of_an_episode_turn_by_turn() -> None:
    world = Countdown(numbers=3, sizes=Sizes(train=4, dev=2, test=2))
    place = world, make_policy([world], context=128, seed=1)
    how = ForestConfig(**SMALL, method="mcts", forest=3, between="max", expansions=7)
    for one in play(place, how, trees=2):
        assert len(one.forest) == 3 and one.spent.expansions <= 7
        assert one.trajectory.error is None and one.trajectory.success is not None
        assert len({tuple(tree["action"]) for tree in one.forest}) == 3


def test_what_trees_of_a_response_share_is_fed_once() -> None:
    """A problem alone on a new engine: what was counted is what the engine has fed, its prompt once for all trees."""
    world = Deduction(sizes=SIZES)
    place = world, make_policy([world], context=256, seed=1)
    engine = LocalEngine(place[1], slots=16)
    (one,) = play(place, ForestConfig(**SMALL, method="sampled_tree", value="none", forest=3), engine=engine)
    assert (one.spent.generated, one.spent.computed) == (engine.usage.generated, engine.usage.computed)
    assert one.spent.generated > 0


def test_the_first_tree_of_several_is_the_only_one_of_one(place: tuple[World, Policy]) -> None:
    given: dict[str, Any] = {**SMALL, "method": "beam"}
    alone = {one.start.task.id: one for one in play(place, ForestConfig(**given), trees=2)}
    for one in play(place, ForestConfig(**given, forest=2), trees=2):
        assert timeless(one.forest[0]) == timeless(alone[one.start.task.id].tree)
        assert one.spent.generated > alone[one.start.task.id].spent.generated


def test_what_cannot_be_grown_is_refused() -> None:
    world = Deduction(sizes=SIZES)
    known = {world.name: world}

    def refused(said: str, worlds: Any = known, *, stopped: bool = False, **given: Any) -> None:
        with pytest.raises(ConfigError, match=said):
            check_search(worlds, ForestConfig(**{**SMALL, **given}), has_scorer=True, has_detector=stopped)

    refused(
        "got a budget of 60, shared by 4 trees, but a single request may take 24 tokens",
        method="mcts",
        forest=4,
        generated=60,
    )
    refused("a detector needs the votes of a single tree", method="mcts", forest=2, stopped=True)
    refused("all trees would be equal", method="beam", forest=2, level="token")
    refused("has no votes", method="rstar", stopped=True)
    refused("a single request may take 240 tokens", method="rstar", generated=239)
    refused("thoughts, sub-questions", method="rstar", level="token")
    countdown, preference = Countdown(sizes=SIZES), Preference()
    refused("single questions, but world 'countdown' has several turns", {"countdown": countdown}, method="rstar")
    refused(
        "end in an answer, but world 'preference' does not ask for an answer",
        {"preference": preference},
        method="rstar",
    )
    check_search(known, ForestConfig(**SMALL, method="rstar", generated=240, value="none"), has_scorer=False)


def test_a_policy_of_whole_words_is_not_asked_in_english() -> None:
    world = Deduction(sizes=SIZES)
    how = ForestConfig(**SMALL, method="rstar", value="none")
    with pytest.raises(ConfigError, match="knows only the words of its worlds"):
        play((world, make_policy([world], context=256, seed=1)), how)
