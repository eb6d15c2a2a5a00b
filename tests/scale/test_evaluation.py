"""`evaluate`: panels of worlds without a run folder."""

from __future__ import annotations

import pytest

import evolvent as ev
from evolvent.errors import ConfigError
from evolvent.stats import wilson_interval
from evolvent.worlds.panel import Sizes

SIZES = Sizes(train=6, dev=6, test=8)


def test_experts_win_and_the_interval_is_wilsons():
    rows = ev.evaluate(ev.Expert(), ev.Lookup(sizes=SIZES))
    assert {row.tier for row in rows} == set(ev.Lookup(sizes=SIZES).tiers) and {row.n for row in rows} == {8}
    interval = wilson_interval(8, 8)
    assert all((row.mean, row.low, row.high) == (1.0, interval.low, interval.high) for row in rows)


def test_a_policy_gives_the_rows_of_a_run(tmp_path):
    worlds = [ev.Lookup(sizes=SIZES), ev.Crafting(sizes=SIZES)]
    policy = ev.make_policy(worlds, seed=1)
    episodes = []
    rows = ev.evaluate(policy, worlds, tiers=["seen"], limit=4, max_tokens=64, on_trajectory=episodes.append)
    assert [(row.world, row.tier, row.n) for row in rows] == [("lookup", "seen", 4), ("crafting", "seen", 4)]
    assert len(episodes) == 8 and sum(row.generated for row in rows) > 0 and sum(row.computed for row in rows) > 0
    again = ev.evaluate(
        policy, {world.name: world for world in worlds}, tiers=["seen"], limit=4, max_tokens=64, slots=1
    )
    assert [row.outcomes for row in again] == [row.outcomes for row in rows], "slots change nothing"


@pytest.mark.parametrize(
    ("player", "worlds", "message"),
    [
        ("expert", [ev.Lookup()], "neither a policy nor an agent"),
        (ev.Expert(), [], "got none"),
        (ev.Expert(), [ev.Lookup(), ev.Lookup()], "expected at least one world, each with a unique name"),
    ],
)
def test_mistakes_are_refused(player, worlds, message):
    with pytest.raises(ConfigError, match=message):
        ev.evaluate(player, worlds)
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        ev.evaluate(ev.Expert(), ev.Lookup(), split="tests")
