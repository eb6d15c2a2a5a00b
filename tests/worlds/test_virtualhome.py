"""TWOSOME's tasks of VirtualHome: published texts, the rules of the simulator, the traps of the offers."""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.virtualhome import FOODS, VirtualHome

HOUSE = "There are four rooms: the kitchen, bathroom, bedroom, and living room. You are in the "
FOOD_GOAL = "In order to heat up the pancake in the microwave, your next step is to"
TV_GOAL = "In order to enjoy the chips and the milk while watching TV, your next step is to"


def play(world, *actions):
    """The reply to the last action; all of them are offered."""
    env = world.make(world.tasks("train", "seen")[0])
    observation, info = env.reset()
    reply = observation, 0.0, False, False, info
    for action in actions:
        assert action in reply[4]["admissible"], (action, reply[4]["admissible"])
        reply = env.step(action)
    return reply


FOOD_STEPS = [
    ("", "You notice pancake and microwave. Currently, you are not grabbing anything in hand. The pancake and the "
     "microwave are not within your immediate reach. The microwave is not opend. "),
    ("reach for the pancake", "You notice pancake and microwave. Currently, you are not grabbing anything in hand. The "
     "pancake is within your immediate reach. The microwave is not opend. "),
    ("grab the pancake", "You notice pancake and microwave. Currently, you have grabbed the pancake in hand. The "
     "microwave is not within your immediate reach. The microwave is not opend. "),
    ("move to the microwave", "You notice pancake and microwave. Currently, you have grabbed the pancake in hand. The "
     "microwave is within your immediate reach. The microwave is not opend. "),
    ("open the microwave", "You notice pancake and microwave. Currently, you have grabbed the pancake in hand. The "
     "microwave is within your immediate reach. The microwave is opened. "),
    ("put the pancake in the microwave", "You notice pancake and microwave. The microwave is opened. "),
    ("close the microwave", "The pancake is in the microwave. The microwave is closed. "),
]  # fmt: skip


def test_food_preparation_in_the_published_texts():
    world = VirtualHome()
    actions = [action for action, _ in FOOD_STEPS[1:]]
    assert world.expert(world.tasks("train", "seen")[0]) == actions
    for number, (_, text) in enumerate(FOOD_STEPS):
        observation, reward, over, _, _ = play(world, *actions[:number])
        assert observation == f"{HOUSE}kitchen. {text}{FOOD_GOAL}"
        assert (reward, over) == ((1.0, True) if number == 6 else (0.0, False))


@pytest.mark.parametrize(
    ("actions", "offered"),
    [
        ((), ["living room", "bathroom", "bedroom", "reach for the pancake", "move to the microwave"]),
        (("move to the microwave",), ["living room", "bathroom", "bedroom", "reach", "open", "close"]),
        (("walk to the bedroom",), ["living room", "kitchen", "bathroom"]),
        (
            ("reach for the pancake", "grab the pancake", "move to the microwave"),
            ["living room", "bathroom", "bedroom", "reach", "put the pancake", "open", "close"],
        ),
    ],
)
def test_what_is_offered_is_what_was_published(actions, offered):
    admissible = play(VirtualHome(), *actions)[4]["admissible"]
    assert len(admissible) == len(offered)
    assert all(part in action for part, action in zip(offered, admissible, strict=True))


def test_a_door_must_be_open_and_what_is_left_stays():
    """A closed microwave takes nothing; what was put in is reached there again, also from another room."""
    take = ("reach for the pancake", "grab the pancake", "move to the microwave")
    observation = play(VirtualHome(), *take, "put the pancake in the microwave")[0]
    assert "you have grabbed the pancake in hand" in observation
    inside = (*take, "open the microwave", "put the pancake in the microwave")
    away = (*inside, "walk to the bathroom", "walk to the kitchen", "reach for the pancake", "close the microwave")
    assert play(VirtualHome(), *away)[1:3] == (1.0, True)
    again = play(VirtualHome(), "reach for the pancake", "grab the pancake", "walk to the bedroom")[0]
    assert again == (
        f"{HOUSE}bedroom. and notice nothing useful. Currently, you have grabbed the pancake in hand. {FOOD_GOAL}"
    )


BRING = ("reach for the chips", "grab the chips", "reach for the milk", "grab the milk", "walk to the living room")


def test_entertainment_in_the_published_texts():
    world = VirtualHome("entertainment")
    start = "and notice chips and milk. But they are not within your immediate reach. "
    idle = "Currently, you are not grabbing anything in hand. "
    assert play(world)[0] == f"{HOUSE}kitchen {start}{idle}{TV_GOAL}"
    near = "and you notice a coffee table, a TV and a sofa. "
    both = "Currently, you have grabbed the chips and the milk in hand. "
    assert play(world, *BRING)[0] == f"{HOUSE}living room {near}They are not close to you. {both}{TV_GOAL}"
    half = (*BRING, "move to the coffee table", "put the milk on the coffee table")
    chips = "Currently, you have grabbed the chips in hand. "
    table = "Currently, you have the milk on the coffee table and the chips in your hand. "
    assert play(world, *half)[0] == f"{HOUSE}living room {near}The TV is not close to you. {chips}{table}{TV_GOAL}"
    end = ("move to the TV", "turn on the TV", "move to the sofa", "take a seat on the sofa")
    assert play(world, *half, *end)[1:3] == (1.0, True)
    assert len(world.expert(world.tasks("test", "seen")[0])) == 11


def test_tasks_start_in_every_room():
    world = VirtualHome()
    tasks = world.tasks("train", "seen")
    assert [task.spec["start"] for task in tasks] == ["kitchen", "living room", "bathroom", "bedroom"]
    assert [world.expert(task)[0] for task in tasks[1:]] == ["walk to the kitchen"] * 3
    assert [len(world.expert(task)) for task in tasks] == [6, 7, 7, 7]


def test_hands_and_traps_of_entertainment():
    """Full hands turn nothing on; who put both things down can only leave; who sits down too early stays there."""
    world = VirtualHome("entertainment")
    assert "The TV is close to you" in play(world, *BRING, "move to the TV", "turn on the TV")[0]
    puts = ("move to the coffee table", "put the milk on the coffee table")
    assert "put the chips on the coffee table" not in play(world, *BRING, *puts)[4]["admissible"]
    alone = (
        "walk to the living room",
        "move to the TV",
        "turn on the TV",
        "move to the sofa",
        "take a seat on the sofa",
    )
    sitting = play(world, *alone)
    assert not sitting[2] and "You are sitting on the sofa" in sitting[0]
    assert play(world, *alone, "walk to the kitchen")[0] == sitting[0]


def test_other_food_is_for_evaluation_alone():
    world = VirtualHome()
    assert [world.tasks(split, "combo") == () for split in ("train", "dev", "test")] == [True, False, False]
    tasks = world.tasks("test", "combo")
    assert [task.spec["food"] for task in tasks] == list(FOODS[1:])
    observation, _ = world.make(tasks[2]).reset()
    assert "The apple pie and the microwave are not within" in observation and "pancake" not in observation


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stage": "fod"}, "did you mean 'food'"),
        ({"penalty": 1.0}, "expected 0 or less"),
        ({"horizon": 0}, "at least 1"),
    ],
)
def test_mistakes_are_told(settings, said):
    with pytest.raises(ConfigError, match=said):
        VirtualHome(**settings)
    world = VirtualHome()
    with pytest.raises(ConfigError, match="food: unknown value 'stew'"):
        world.make(
            Task(world.name, world.version, {"stage": "food", "start": "kitchen", "split": "train", "food": "stew"})
        )


def test_an_action_that_is_not_offered_changes_nothing():
    world = VirtualHome(penalty=-0.1)
    env = world.make(world.tasks("train", "seen")[0])
    observation, _ = env.reset()
    assert env.step("grab the pancake")[:2] == ("That is not one of the actions that are possible.", -0.1)
    reply = env.step("Reach for  the pancake")
    assert reply[4].get("invalid") is None and "The pancake is within your immediate reach" in reply[0]
    assert reply[0].startswith(observation[:100])
