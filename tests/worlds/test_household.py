"""The household world: its panels and tiers, its words, its experts, what it refuses."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from evolvent.errors import ConfigError, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.household.game import FAMILIES, Goal
from evolvent.worlds.household.games import OfficialTexts, read_game
from evolvent.worlds.household.kinds import list_goals_by_tier, list_possible_goals
from evolvent.worlds.household.plans import explore
from evolvent.worlds.household.rooms import SIZES, canonical_key, draw_game, rooms_for
from evolvent.worlds.household.rules import is_won
from evolvent.worlds.household.things import OPENABLE, PROPERTIES, ROOMS, SPELLING
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

SMALL = Sizes(train=60, dev=30, test=30)
VARIANTS = {
    "small": HouseholdWorld(sizes=SMALL),
    "older words": HouseholdWorld("0.3", sizes=SMALL),
    "large": HouseholdWorld(size="alfworld", sizes=SMALL),
    "large, older words": HouseholdWorld("0.3", size="alfworld", sizes=SMALL),
}


@pytest.fixture(params=list(VARIANTS))
def world(request: pytest.FixtureRequest) -> HouseholdWorld:
    return VARIANTS[request.param]


def some(world: HouseholdWorld) -> list[Task]:
    return [task for tier in world.tiers for task in world.tasks("test", tier)]


def test_the_catalogue_is_whole():
    """Every thing belongs somewhere that its room has; every type has a spelling."""
    for room in ROOMS.values():
        assert all(0 < few <= many for few, many in room.furniture.values())
        assert all(
            set(places) <= set(room.furniture) and len(places) >= 2 for places in room.locations_by_object.values()
        )
        assert set(room.furniture) <= set(SPELLING)
    assert set(PROPERTIES) | OPENABLE <= set(SPELLING)
    assert all(spelled.lower() == kind for kind, spelled in SPELLING.items())


def test_tiers_hold_what_they_promise():
    """`evo`: no demonstration of the family has the object; `combo`: each part is demonstrated, the two never."""
    tiers = list_goals_by_tier()
    every = [goal for tier in ("seen", "evo", "combo") for of in tiers[tier].values() for goal in of]
    assert sorted(every) == sorted(list_possible_goals())
    for family in FAMILIES:
        seen = tiers["seen"][family]
        things, targets = {goal.object for goal in seen}, {goal.target for goal in seen}
        assert not things & {goal.object for goal in tiers["evo"][family]}
        assert all(goal.object in things and goal.target in targets for goal in tiers["combo"][family])
        assert tiers["longer"][family] == seen
        assert all(len(tiers[tier][family]) >= 8 for tier in ("seen", "evo", "combo"))
    met = {goal.object for of in tiers["seen"].values() for goal in of}
    assert {goal.object for of in tiers["evo"].values() for goal in of} <= met


def test_rooms_are_as_large_as_they_should_be(world):
    size = {"household": ("small", "medium")}.get(world.name.removesuffix("-03"), ("large", "huge"))
    for task in some(world)[::3]:
        least, most = SIZES[size[task.tier == "longer"]]
        game = draw_game(Goal(*task.spec["goal"]), task.spec["seed"], size=task.spec["size"])
        assert least <= len(game.names) <= most
        assert not is_won(game, game.start)
        assert canonical_key(game) == world.key(task)


@pytest.mark.parametrize("size", list(SIZES))
def test_every_goal_has_a_room_of_every_size(size):
    for goal in list_possible_goals():
        game = draw_game(goal, 0, size=size)
        assert SIZES[size][0] <= len(game.names) <= SIZES[size][1]
        assert explore(game) and not is_won(game, game.start)


def test_families_take_turns(world):
    for tier in world.tiers:
        counts = Counter(task.kind.split()[0] for task in world.tasks("test", tier))
        assert set(counts) == set(FAMILIES) and max(counts.values()) <= 15


def test_experts_win_with_known_words(world):
    """The explorer within the horizon, the planner at most as long; all that is said is in the vocabulary."""
    known = set(world.vocabulary())
    assert len(known) < 300
    assert set(words_of(world.instructions)) <= known
    for task in some(world):
        plan, shortest = world.expert(task), world.plan(task)
        assert plan is not None and shortest is not None
        assert len(shortest) <= len(plan) <= world.horizon
        for actions in (plan, shortest):
            env = world.make(task)
            text, info = env.reset()
            said = [str(text), *actions]
            for action in actions:
                assert action in info["admissible"]
                text, reward, terminated, _, info = env.step(action)
                said.append(str(text))
            assert (reward, terminated, info["won"]) == (1.0, True, True)
            assert set(words_of(" ".join(said))) <= known


def test_random_walks_with_known_words(world):
    known = set(world.vocabulary())
    for task in some(world)[::4]:
        env, rng = world.make(task), Random(task.id)
        _, info = env.reset()
        for _ in range(30):
            action = rng.choice(info["admissible"])
            text, _, terminated, _, info = env.step(action)
            assert "invalid" not in info
            assert set(words_of(f"{text} {action}")) <= known
            if terminated:
                break


def test_an_impossible_action_changes_nothing_and_costs_the_penalty():
    world = HouseholdWorld(penalty=-0.1, sizes=SMALL)
    task = world.tasks("dev", "seen")[0]
    env = world.make(task)
    _, info = env.reset()
    assert info["task_type"] in {family.task_type for family in FAMILIES.values()}
    before, taken = info["admissible"], env.snapshot()
    for text in ("", "go to", "take moon 1 from sky 1", "put a in/on b", "x" * 10_000, "move  to "):
        observation, reward, terminated, _, info = env.step(text)
        assert (observation, reward, terminated, info["invalid"]) == ("Nothing happens.", -0.1, False, True)
        assert info["expected"]
        assert info["admissible"] is before
    env.step(before[0])
    env.restore(taken)
    there = next(action for action in before if action.startswith("go to ")).removeprefix("go to ")
    assert str(env.step(f"  GO   to {there} ")[0]).startswith(f"You arrive at {there}.")
    assert world.score([-0.1, -0.1, 1.0], {}).success is True
    assert world.score([-0.1, 0.0], {}).unit == 0.0


def test_both_ways_to_put_are_understood():
    for dialect, said in (("0.4", "You move the"), ("0.3", "You put the")):
        world = HouseholdWorld(dialect, sizes=SMALL)
        task = next(task for task in world.tasks("test", "seen") if task.kind.startswith("put "))
        plan = world.expert(task)
        thing, target = plan[-1].replace("put ", "").replace("move ", "").replace(" to ", " in/on ").split(" in/on ")
        for form in ("move {} to {}", "put {} in/on {}", "put {} in {}", "put {} on {}"):
            env = world.make(task)
            env.reset()
            for action in plan[:-1]:
                env.step(action)
            text, reward, *_ = env.step(form.format(thing, target))
            assert str(text).startswith(said) and reward == 1.0


def test_the_spec_of_a_task_is_checked():
    world = HouseholdWorld(sizes=SMALL)
    task = world.tasks("dev", "seen")[0]

    def other(spec: object, **changes: str) -> Task:
        return Task(changes.get("world", "household"), changes.get("version", "1"), spec, "k")

    assert world.make(other(dict(task.spec))).reset()
    with pytest.raises(ConfigError) as caught:
        world.make(other({"dialect": "0.4", "goal": ["heat", "pen", "bed"], "seed": True, "size": "tiny", "colour": 1}))
    assert [problem.where for problem in caught.value.problems] == ["colour", "goal", "seed", "size"]
    for goal in (None, "put", ["put"], ["put", 1, "bed"], ["put", "desklamp", "desk"], [[], [], []], {}):
        with pytest.raises(ConfigError, match="invalid goal"):
            world.make(other({**task.spec, "goal": goal}))
    with pytest.raises(VersionMismatch, match="dialect"):
        world.make(other({**task.spec, "dialect": "0.3"}))
    with pytest.raises(VersionMismatch, match="another version"):
        world.make(other(dict(task.spec), version="0"))
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        world.make(other(dict(task.spec), world="lookup"))


def test_the_constructor_reports_everything_at_once():
    with pytest.raises(ConfigError) as caught:
        HouseholdWorld("0.5", size="smal", penalty=1.0, horizon=0)
    assert [problem.where for problem in caught.value.problems] == ["dialect", "size", "horizon", "penalty"]
    assert "did you mean 'small'?" in str(caught.value)
    with pytest.raises(ConfigError, match="penalty"):
        HouseholdWorld(penalty=float("nan"))
    with pytest.raises(ConfigError, match="folder of games not found"):
        HouseholdWorld(games="/nowhere/at/all")


def test_no_room_for_a_goal_that_makes_no_sense():
    assert rooms_for(Goal("heat", "apple", "fridge")) == ("kitchen",)
    assert rooms_for(Goal("heat", "pillow", "bed")) == rooms_for(Goal("look", "pen", "desk")) == ()
    assert rooms_for(Goal("put", "nothing", "desk")) == rooms_for(Goal("two", "houseplant", "shelf")) == ()


def test_a_task_is_written_as_the_game_it_is(tmp_path):
    """Read back and played by the file it is the same episode."""
    texts = OfficialTexts("domain", '"Your task is to: UNKNOWN GOAL."')
    world = HouseholdWorld(sizes=SMALL)
    for place, task in enumerate(some(world)[::10]):
        file = world.write_game(task, tmp_path / str(place), texts=texts)
        assert canonical_key(read_game(file)) == world.key(task)
    read = HouseholdWorld(games=tmp_path)
    tasks = [task for split in ("train", "dev", "test") for task in read.tasks(split, "seen")]
    assert len(tasks) == len(some(world)[::10]) and not read.broken_files
    firsts = {world.make(task).reset()[0] for task in some(world)[::10]}
    assert {read.make(task).reset()[0] for task in tasks} == firsts
