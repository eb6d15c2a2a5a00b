"""The expert of the household says why it does what it does: only what it has seen, and all of it true."""

from __future__ import annotations

import re

import pytest

from evolvent.agents.plain import Expert
from evolvent.errors import WorldError
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start
from evolvent.worlds.crafting import words_of
from evolvent.worlds.household.nouns import HouseholdNouns
from evolvent.worlds.household.plans import explain, explore
from evolvent.worlds.household.rooms import draw_game
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

SMALL = Sizes(train=24, dev=24, test=24)
WORLDS = [
    HouseholdWorld(sizes=SMALL),
    HouseholdWorld("0.3", sizes=SMALL),
    HouseholdWorld(size="alfworld", sizes=SMALL),
    HouseholdNouns(sizes=SMALL),
]
NAME = re.compile(r"[a-z]+ \d+")
HELD = re.compile(r"I have ([a-z]+ \d+)\.")
NONE = re.compile(r"I see no ([a-z]+) (?:in|on) ([a-z]+ \d+)\.")
THERE = re.compile(r"(?:I see|I have seen) ([a-z]+ \d+) (?:in|on) ([a-z]+ \d+)\.")


def contents(observation):
    """Receptacle -> what it was seen to hold, by one observation."""
    found = re.search(
        r"On the ([a-z]+ \d+), you see (.*)\.|The ([a-z]+ \d+) is open. In it, you see (.*)\.", observation
    )
    if found is None:
        return {}
    return {found[1] or found[3]: set(NAME.findall(found[2] or found[4] or ""))}


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_thoughts_say_what_was_seen_and_nothing_else(world):
    """Every name was read before, what is held is held, and what is said to be somewhere was seen there last."""
    known, families = set(world.vocabulary()), set()
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            env, (observation, _) = (made := world.make(task)), made.reset()
            families.add(task.kind.split()[0])
            seen, lying, held = str(observation), {}, None
            for parsed in world.explain(task):
                lying |= contents(str(observation))
                thought = str(parsed.thought)
                assert set(NAME.findall(thought)) <= set(NAME.findall(seen))
                assert known.issuperset(words_of(thought))
                assert set(HELD.findall(thought)) <= {held}
                for kind, place in NONE.findall(thought):
                    assert not any(name.split()[0] == kind for name in lying[place])
                for thing, place in THERE.findall(thought):
                    assert thing in lying[place]
                if (taken := re.fullmatch(r"take (.+) from (.+)", parsed.action)) is not None:
                    held = taken[1]
                    lying[taken[2]] = lying[taken[2]] - {held}
                elif parsed.action.startswith(("move", "put")):
                    held = None
                observation, _, done, _, _ = env.step(parsed.action)
                seen += f" {observation}"
            assert done
    chores = {"clean", "heat"}
    assert families == (chores if isinstance(world, HouseholdNouns) else {*chores, "put", "look", "cool", "two"})


def test_the_next_action_is_named():
    """A thought ends with what is done next, so that steps with like thoughts have like actions."""
    for task in WORLDS[0].tasks("dev", "seen"):
        for parsed in WORLDS[0].explain(task):
            _, _, aim = str(parsed.thought).rpartition("Next, I need to ")
            assert set(NAME.findall(parsed.action)) == set(NAME.findall(aim))
            if parsed.action.startswith("open"):
                assert "I see no" not in str(parsed.thought), "what was seen elsewhere is no reason to open this"
        assert WORLDS[0].explain(task)[0].thought.startswith("My task is to ")


def test_thinking_changes_no_action():
    from evolvent.worlds.household.kinds import iterate_goals

    for (goal, seed), _ in zip(iterate_goals("seen"), range(40), strict=False):
        game = draw_game(goal, seed, size="small")
        found = explain(game)
        assert (None if found is None else [action for action, _ in found]) == explore(game)


def test_the_experts_trajectories_hold_the_thoughts():
    world = WORLDS[0]
    task = world.tasks("dev", "seen")[0]
    (played,) = collect({world.name: world}, [Start(task)], Expert(), engine=None)
    steps = world.demonstrate(task)
    assert [(one.observation, one.action, one.reward, one.thought) for one in played.steps] == [
        (one.observation, one.action, one.reward, one.thought) for one in steps
    ]
    assert world.expert(task) == [one.action for one in world.explain(task)]
    assert all(one.thought for one in steps)


def test_a_horizon_that_is_too_short_has_no_demonstration():
    world = WORLDS[0]
    task = max(world.tasks("dev", "seen"), key=lambda task: len(world.expert(task)))
    short = HouseholdWorld(sizes=SMALL, horizon=2)
    assert short.explain(task) is None
    with pytest.raises(WorldError, match="no expert"):
        short.demonstrate(task)
