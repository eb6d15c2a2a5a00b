"""Household tasks with swapped nouns: the same room and rules, nouns held out, sound panels, bad input."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.household.game import Game, Goal
from evolvent.worlds.household.nouns import NOUNS, HouseholdNouns, swap_noun
from evolvent.worlds.household.plans import plan
from evolvent.worlds.household.rooms import draw_game, draw_layout
from evolvent.worlds.household.things import PROPERTIES
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

SMALL = Sizes(train=60, dev=30, test=30)
WORLD = HouseholdNouns(sizes=SMALL)


def every() -> list[Task]:
    return [task for split in SPLITS for tier in WORLD.tiers for task in WORLD.tasks(split, tier)]


@pytest.mark.parametrize("goal", [Goal("heat", "egg", "countertop"), Goal("clean", "cloth", "shelf")])
def test_a_swap_changes_the_noun_and_nothing_else(goal):
    """The planner's way in the swapped room is the way in the room itself, with the other noun in every sentence."""
    for seed in range(6):
        layout, wording = draw_layout(goal, seed, size="small")
        before = (dict(layout.objects), list(layout.object_receptacles), set(layout.allowed_contents))
        renamed, asked = swap_noun(layout, goal, "zzz")
        assert (layout.objects, layout.object_receptacles, layout.allowed_contents) == before
        game, plain = Game(renamed, asked, asked.describe(wording)), draw_game(goal, seed, size="small")
        assert game.task == plain.task.replace(goal.object, "zzz")
        assert Counter(game.object_types) == Counter(
            "zzz" if kind == goal.object else kind for kind in plain.object_types
        )
        assert game.goal_objects.bit_count() == plain.goal_objects.bit_count() > 0
        assert game.names == plain.names and len(plan(game)) == len(plan(plain))
        assert all((kind, "zzz") in game.holds for kind, thing in plain.holds if thing == goal.object)


def test_held_out_nouns_are_in_no_training_task_and_in_the_vocabulary():
    nouns = {tier: set(of) for tier, of in NOUNS.items()}
    everything = [noun for of in nouns.values() for noun in of]
    assert len(set(everything)) == len(everything) == 10
    assert not set(everything) & set(PROPERTIES)
    known = set(WORLD.vocabulary())
    assert known == set(HouseholdWorld(sizes=SMALL).vocabulary()) | set(everything)
    assert {task.spec["noun"] for task in WORLD.tasks("train", "seen")} == {"pancake"}
    assert not WORLD.tasks("train", "combo") and not WORLD.tasks("train", "longer")
    assert {task.spec["noun"] for task in WORLD.tasks("test", "combo")} == nouns["combo"]
    assert {task.spec["noun"] for task in WORLD.tasks("test", "longer")} == nouns["longer"]
    for task in WORLD.tasks("train", "seen")[:20]:
        text = str(WORLD.make(task).reset()[0])
        assert not (nouns["combo"] | nouns["longer"]) & set(words_of(text))


def test_experts_win_with_known_words():
    known = set(WORLD.vocabulary())
    for task in every()[::3]:
        found, shortest = WORLD.expert(task), WORLD.plan(task)
        assert len(shortest) <= len(found) <= WORLD.horizon
        for actions in (found, shortest):
            env = WORLD.make(task)
            text, info = env.reset()
            said, rewards = [str(text), *actions], []
            assert task.spec["noun"] in words_of(str(text))
            for action in actions:
                assert action in info["admissible"]
                text, reward, over, _, info = env.step(action)
                said.append(str(text))
                rewards.append(reward)
            assert over and WORLD.score(rewards, info).success is True
            assert set(words_of(" ".join(said))) <= known
            with pytest.raises(SessionGone):
                env.step("look")


def test_panels_are_sound_and_disjoint():
    found = audit(HouseholdNouns(), "test", limit=30)
    assert found.problems == ()
    keys = Counter(WORLD.key(task) for task in every())
    assert max(keys.values()) == 1 and len(keys) == 60 + 3 * 60
    assert WORLD.name == "household-nouns" and HouseholdNouns("0.3").name == "household-nouns-03"
    assert [task.id for task in HouseholdNouns(sizes=SMALL).tasks("dev", "combo")] == [
        task.id for task in WORLD.tasks("dev", "combo")
    ]


def test_environments_keep_their_promises():
    for tier in WORLD.tiers:
        assert check_env(partial(WORLD.make, WORLD.tasks("dev", tier)[0]), forkable=True, walks=2) == []


def test_tasks_that_are_none():
    name, good = WORLD.name, dict(WORLD.tasks("dev", "combo")[0].spec)
    for change, what in (
        ({"noun": "bread"}, "unknown noun"),
        ({"goal": ["clean", "plate", "shelf"]}, "invalid goal"),
        ({"seed": "1"}, ", expected a whole number"),
        ({"size": "alfworld"}, ", the size of this world"),
    ):
        with pytest.raises(ConfigError, match=what):
            WORLD.make(Task(name, "1", {**good, **change}))
    with pytest.raises(ConfigError) as caught:
        WORLD.make(Task(name, "1", {}))
    assert len(caught.value.problems) == 3
    with pytest.raises(VersionMismatch):
        WORLD.make(Task(name, "0", good))
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        HouseholdWorld(sizes=SMALL).make(WORLD.tasks("dev", "combo")[0])
