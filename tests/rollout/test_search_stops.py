"""Searches of real policies that votes end early: the answers of the whole votes, for fewer tokens."""

from __future__ import annotations

from typing import Any

import pytest

from evolvent.belief.outcomes import tabulate_outcomes
from evolvent.belief.stopping import Agreement, Decided, Detector
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.models.policy import Policy
from evolvent.rollout.search import SearchOutcome, SearchPlayer, check_search, search_starts
from evolvent.scale.initial import make_policy
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.problems import Problems


@pytest.fixture(scope="module", params=["countdown", "problems"])
def place(request: pytest.FixtureRequest) -> tuple[World, Policy]:
    sizes = Sizes(train=20, dev=6, test=6)
    world: World = Countdown(sizes=sizes) if request.param == "countdown" else Problems(sizes=sizes)
    return world, make_policy([world], context=256, seed=1)


def play(
    place: tuple[World, Policy], stop: Detector | None, method: str = "samples", **more: Any
) -> list[SearchOutcome]:
    world, policy = place
    how = SearchConfig(
        **{
            "method": method,
            "value": "none",
            "paths": 9,
            "width": 3,
            "depth": 4,
            "span_tokens": 8,
            "max_tokens": 12,
            "temperature": 0.3,
            **more,
        }
    )
    player = SearchPlayer(policy, LocalEngine(policy, slots=16), stop=stop)
    starts = [Start(task) for task in world.tasks("test", "seen")[:4]]
    found = search_starts({world.name: world}, starts, how, player=player, seed=5)
    return sorted(found, key=lambda one: one.trajectory.id)


@pytest.mark.parametrize("method", ["samples", "sampled_tree"])
def test_a_decided_vote_has_the_answer_of_the_whole_one(place: tuple[World, Policy], method: str) -> None:
    whole, found = play(place, None, method), play(place, Decided(), method)
    for one, full in zip(found, whole, strict=True):
        assert one.trajectory.error is None
        cast = sum(answer["count"] for answer in one.answers)
        assert cast + one.spared <= 9 and bool(one.stopped) == bool(one.spared)
        leader = max(one.answers, key=lambda answer: answer["weight"], default=None)
        if one.stopped:
            assert leader["answer"] == max(full.answers, key=lambda answer: answer["weight"])["answer"]
            assert one.trajectory.success == full.trajectory.success
        assert one.spent.generated <= full.spent.generated
    if method == "samples":
        assert any(one.spared for one in found)
    table = tabulate_outcomes(
        [bool(one.stopped) for one in found],
        [one.trajectory.success for one in found],
        [9 - one.spared for one in found],
        generated=[one.spent.generated for one in found],
    )
    assert table.episodes == 4 and table.stops == sum(bool(one.stopped) for one in found)


def test_agreement_saves_more_where_samples_agree(place: tuple[World, Policy]) -> None:
    """At a temperature at which all samples are the same, three votes are enough."""
    found = play(place, Agreement(0.7, least=3), temperature=0.001)
    for one in found:
        read = one.answers[0]["answer"] is not None
        assert one.spared == (6 if read else 0) and bool(one.stopped) == read
    assert any(one.spared for one in found)
    decided = play(place, Decided(), temperature=0.001)
    assert [one.spared for one in decided] == [4 if one.spared else 0 for one in found]


def test_what_cannot_be_stopped_is_refused_before_anything_is_played() -> None:
    world = Problems(sizes=Sizes(train=4, dev=2, test=2))
    programs = Problems(form="program", sizes=Sizes(train=4, dev=2, test=2))
    plain = SearchConfig(method="samples", value="none", separators=(";",))
    check_search({world.name: world}, plain, has_scorer=False, has_detector=True)
    with pytest.raises(ConfigError, match="no votes to stop early"):
        check_search(
            {world.name: world}, SearchConfig(method="greedy", value="none"), has_scorer=False, has_detector=True
        )
    with pytest.raises(ConfigError, match="takes too long during sampling"):
        check_search({world.name: programs}, plain, has_scorer=False, has_detector=True)
