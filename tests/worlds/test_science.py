"""The science lab: its physics by hand, the grammar and its questions, scores, families, tiers and experts."""

from __future__ import annotations

from random import Random

import pytest

from evolvent.errors import ConfigError, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit, play_actions
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.science.catalogue import RECIPES, SUBSTANCES, ThingType, substance_type
from evolvent.worlds.science.families import FAMILIES, list_kinds_by_tier, slide_ticks
from evolvent.worlds.science.lab import Lab, Thing
from evolvent.worlds.science.world import Science, ScienceEnv

WORLD = Science(sizes=Sizes(train=40, dev=20, test=40))
EASY = Science("easy", sizes=Sizes(train=10, dev=5, test=5))


def task_of(family: str, topic: str, room: str = "bedroom", seed: int = 0) -> Task:
    return Task("science", "1", {"parts": [[family, topic, room]], "seed": seed})


def start(task: Task) -> ScienceEnv:
    env = WORLD.make(task)
    env.reset()
    return env


def put(env: ScienceEnv, name: str, place: str) -> Thing:
    """Moves a thing or the agent of a running episode to a place by hand."""
    lab = env._state
    target = next(thing for thing in lab.things if thing.label == place)
    thing = next(thing for thing in lab.things if thing.label == name)
    lab.move(thing, target.number)
    return thing


def enter(env: ScienceEnv, room: str) -> Lab:
    lab = env._state
    lab.room = next(thing.number for thing in lab.things if thing.label == room)
    lab.version += 1
    return lab


def tiny_lab(*, source_temperature: float | None = None, rate: float = 0.0) -> tuple[Lab, Thing]:
    """A lab with one room and one running heater or cooler."""
    lab = Lab()
    lab.create(ThingType("inventory", holds="in", role="agent"), -1)
    room = lab.create(ThingType("greenhouse", holds="in", role="room"), -1)
    lab.room = room.number
    heater = lab.create(
        ThingType("heater", holds="on", is_switchable=True, source_temperature=source_temperature, exchange_rate=rate),
        room.number,
    )
    heater.is_on = True
    return lab, heater


# --------------------------------------------------------------------------------------------------------- physics


def test_heat_follows_newtons_law_and_water_boils_at_100() -> None:
    """From 20 degrees on a heater of 400 at a rate of .1: 400 - 380 * .9 ** n, which passes 100 in the third tick."""
    lab, heater = tiny_lab(source_temperature=400.0, rate=0.1)
    cup = lab.create(ThingType("cup", holds="in"), heater.number)
    water = lab.create(substance_type(SUBSTANCES["water"]), cup.number)
    lab.advance(2)
    assert water.temperature == pytest.approx(400 - 380 * 0.9**2)
    assert (water.label, water.parent) == ("water", cup.number)
    lab.advance()
    assert (water.label, water.parent) == ("steam", lab.room)  # it leaves the open cup


def test_a_closed_vessel_keeps_its_gas() -> None:
    lab, heater = tiny_lab(source_temperature=400.0, rate=0.1)
    jar = lab.create(ThingType("jar", holds="in", is_lidded=True), heater.number)
    water = lab.create(substance_type(SUBSTANCES["water"]), jar.number)
    lab.advance(3)
    assert (water.label, water.parent) == ("steam", jar.number)


@pytest.mark.parametrize(
    ("name", "temperature", "label"),
    [
        ("water", -1.0, "ice"),
        ("water", 1.0, "water"),
        ("gallium", 20.0, "gallium"),
        ("gallium", 31.0, "liquid gallium"),
        ("mercury", 20.0, "mercury"),
        ("mercury", -40.0, "solid mercury"),
        ("ethanol", 79.0, "ethanol vapor"),
    ],
)
def test_the_state_of_matter_follows_melting_and_boiling_points(name: str, temperature: float, label: str) -> None:
    lab, _ = tiny_lab()
    assert lab.create(substance_type(SUBSTANCES[name]), lab.room, temperature=temperature).label == label


def test_an_open_freezer_cools_more_slowly_than_a_closed_one() -> None:
    temperatures = []
    for is_open in (True, False):
        lab, _ = tiny_lab()
        freezer = lab.create(
            ThingType("freezer", holds="in", is_lidded=True, source_temperature=-20.0, exchange_rate=0.1), lab.room
        )
        freezer.is_open = is_open
        water = lab.create(substance_type(SUBSTANCES["water"]), freezer.number)
        lab.advance(5)
        temperatures.append(water.temperature)
    assert temperatures[1] == pytest.approx(-20 + 40 * 0.9**5) and temperatures[0] > temperatures[1]


def circuit(*, is_reversed: bool = False, bridge: bool | None = None) -> Thing:
    """A lamp on a battery by wires, through a thing that conducts or does not; returns the lamp after a tick."""
    lab, _ = tiny_lab()
    wire = ThingType("wire", role="wire", has_terminals=True, conducts=True)
    polar = {"has_terminals": True, "is_polarized": True, "conducts": True}
    battery = lab.create(ThingType("battery", role="source", **polar), lab.room)
    lamp = lab.create(ThingType("lamp", role="load", **polar), lab.room)
    wires = [lab.create(wire, lab.room) for _ in range(3)]
    lab.connect(battery, 0, wires[0], 0)
    lab.connect(wires[0], 1, lamp, 0 if is_reversed else 1)
    lab.connect(lamp, 1 if is_reversed else 0, wires[1], 0)
    if bridge is None:
        lab.connect(wires[1], 1, battery, 1)
    else:
        thing = lab.create(ThingType("thing", has_terminals=True, conducts=bridge), lab.room)
        lab.connect(wires[1], 1, thing, 0)
        lab.connect(thing, 1, wires[2], 0)
        lab.connect(wires[2], 1, battery, 1)
    lab.advance()
    if lamp.is_on:
        lab.disconnect(wires[0])
        lab.update_circuits()
        assert not lamp.is_on
        lamp.is_on = True
    return lamp


def test_current_needs_a_closed_circuit_of_conductors_and_the_right_polarity() -> None:
    assert circuit().is_on
    assert not circuit(is_reversed=True).is_on
    assert circuit(bridge=True).is_on
    assert not circuit(bridge=False).is_on


def test_a_block_slides_by_its_acceleration() -> None:
    """v += 10, x += v: 10, 30, 60, 100."""
    lab, _ = tiny_lab()
    plane = lab.create(ThingType("plane", holds="on", role="plane", acceleration=10.0), lab.room)
    block = lab.create(ThingType("block", role="block"), plane.number)
    seen = []
    for _ in range(4):
        lab.advance()
        seen.append(block.progress)
    assert seen == [10, 30, 60, 100] and slide_ticks(10.0) == 4


def test_a_plant_grows_in_soil_and_water_and_uses_the_water_up() -> None:
    lab, _ = tiny_lab()
    pot = lab.create(ThingType("flower pot", holds="in", role="flower pot"), lab.room)
    plant = lab.create(ThingType("pea seed", role="seed", life="plant"), pot.number)
    lab.advance(10)
    assert plant.label == "pea seed"  # no soil, no water
    lab.create(ThingType("soil", article="some"), pot.number)
    for label in ("pea seedling", "pea plant", "flowering pea plant"):
        lab.create(substance_type(SUBSTANCES["water"]), pot.number)
        lab.advance(5)
        assert plant.label == label and lab.holds(pot, "water") is None
    lab.set_stage(plant, 1)
    lab.advance(60)
    assert plant.label == "dead pea plant"


# --------------------------------------------------------------------------------------------------------- actions


def test_an_impossible_action_changes_nothing_and_takes_no_time() -> None:
    env = start(task_of("boil", "ethanol"))
    lab = enter(env, "kitchen")
    for action in (
        "pick up stove",
        "open stove",
        "go to bathroom",
        "teleport to bathroom",
        "eat counter",
        "mix sink",
        "look in cupboard",
        "move lighter to cupboard",
        "pick up moon",
        "dance",
        "",
    ):
        ticks = lab.ticks
        _, reward, is_over, _, info = env.step(action)
        assert (info.get("invalid"), reward, is_over, lab.ticks) == (True, 0.0, False, ticks), action


def test_names_may_be_short_and_placed() -> None:
    env = start(task_of("boil", "ethanol"))
    enter(env, "kitchen")
    assert env.step("take the lighter")[0] == "You take the lighter."
    assert env.step("put down lighter in inventory")[0] == "You put down the lighter."
    assert env.step("turn on stove")[0] in ("The stove is now on.", "The stove is broken.")
    assert env.step("open door to hallway")[0] == "The door is now open."
    assert env.step("go hallway")[0] == "You go to the hallway."


def test_an_ambiguous_action_asks_and_a_number_answers() -> None:
    env = start(task_of("grow plant", "apple"))
    lab = enter(env, "bedroom")
    question, reward, _, _, info = env.step("focus on seed")
    assert question.splitlines()[1] == "0: focus on apple seed (in seed jar)"
    assert (reward, info["admissible"], lab.ticks) == (0.0, ("0", "1", "2", ""), 0)
    assert env.step("")[0] == "You do none of these."
    env.step("focus on seed")
    assert env.step("1")[0] == "You focus on the apple seed." and lab.step_number == 1
    env.step("pick up seed")
    assert env.step("inventory")[0] == "You carry nothing."  # another action drops the question


def test_liquids_need_a_vessel_and_can_be_poured_dunked_and_frozen() -> None:
    env = start(task_of("freeze", "water", "kitchen"))
    enter(env, "kitchen")
    env.step("activate sink")
    assert "liquid" in env.step("pick up water in sink")[0]
    vessel = next(
        thing
        for thing in env._state.things
        if thing.contents and thing.type.name.split()[-1] in ("cup", "bowl", "pot", "jar", "mug")
    )
    assert env.step(f"pour {vessel.label} into sink")[1:] != ()
    assert not vessel.contents
    assert env.step(f"dunk {vessel.label} into sink")[0] == f"You fill the {vessel.label} with water."
    assert len(vessel.contents) == 1
    env.step("deactivate sink")
    assert env.step("look in sink")[0] == "In the sink you see nothing."


def test_a_lighter_burns_wood_in_the_fire_pit_and_a_thermometer_reads_the_heat() -> None:
    env = start(task_of("melt", "gallium"))
    lab = enter(env, "outside")
    put(env, "lighter", "inventory")
    put(env, "thermometer", "inventory")
    gallium = put(env, "gallium", "fire pit")
    assert env.step("use lighter on fire pit")[4].get("invalid")
    env.step("move wood to fire pit")
    assert env.step("use lighter on wood")[0] == "The wood catches fire."
    assert gallium.label == "liquid gallium"
    assert env.step("use thermometer on gallium")[0].startswith("The thermometer reads ")
    lab.advance(40)
    assert not any(thing.type.name == "wood" and thing.parent >= 0 for thing in lab.things)


@pytest.mark.parametrize("product", list(RECIPES))
def test_every_recipe_mixes(product: str) -> None:
    task = task_of("mix chemicals", product, seed=1)
    assert play_actions(WORLD, task, WORLD.expert(task))


# ---------------------------------------------------------------------------------------------------------- scores


def test_a_wrong_focus_ends_the_episode_with_minus_100() -> None:
    env = start(task_of("boil", "ethanol"))
    enter(env, "kitchen")
    _, reward, is_over, truncated, info = env.step("focus on stove")
    assert (reward, is_over, truncated, info["score"]) == (-1.0, True, False, -100)
    score = WORLD.score([reward], info)
    assert (score.raw, score.unit, score.success) == (-1.0, 0.0, False)


def test_rewards_are_shares_of_the_goals_and_sum_to_one() -> None:
    """Boiling has two goals in a row and four subgoals: half of the score each."""
    task = task_of("boil", "ethanol", seed=3)
    env = start(task)
    scores = []
    for action in WORLD.expert(task):
        _, reward, is_over, _, info = env.step(action)
        scores.append(info["score"])
        assert reward == pytest.approx((scores[-1] - ([0, *scores])[-2]) / 100, abs=0.01)
    assert sorted(scores) == scores and scores[-1] == 100 and is_over
    assert {12, 38} <= set(scores)  # the room; then the focus


def test_focusing_again_on_a_right_thing_is_harmless() -> None:
    env = start(task_of("boil", "ethanol"))
    enter(env, "bedroom")
    for _ in range(2):
        assert env.step("focus on ethanol")[2] is False


# --------------------------------------------------------------------------------------------- families and experts


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_expert_wins_every_family_in_both_forms(family: str) -> None:
    topics = FAMILIES[family].topics
    for seed, topic in enumerate(topics[:: max(1, len(topics) // 6)]):
        parts = [[family, topic, ("bedroom", "outside", "workshop")[seed % 3]]]
        for world in (WORLD, EASY):
            task = Task(world.name, "1", {"parts": parts, "seed": seed})
            plan = world.expert(task)
            assert len(plan) <= 60 and play_actions(world, task, plan), (world.name, topic)


def test_listed_actions_are_possible() -> None:
    """No listed action is refused, at the start and after random walks."""
    rng = Random(0)
    for task in WORLD.tasks("test", "seen")[:12]:
        env = start(task)
        env.step("look around")
        for room in ("kitchen", "workshop", "greenhouse"):
            enter(env, room)
            for _ in range(3):
                _, info = "", env._info(env._state)
                moment = env.snapshot()
                for action in rng.sample(info["admissible"], min(12, len(info["admissible"]))):
                    assert not env.step(action)[4].get("invalid"), action
                    env.restore(moment)
                safe = [action for action in info["admissible"] if not action.startswith("focus")]
                env.step(rng.choice(safe))


def test_an_episode_keeps_the_contract_of_environments() -> None:
    for world in (WORLD, EASY):
        for task in world.tasks("dev", "combo")[:2]:
            assert check_env(lambda world=world, task=task: world.make(task), walks=3, forkable=True) == []


def test_texts_hold_known_words_only() -> None:
    known = set(WORLD.vocabulary())
    for tier in WORLD.tiers:
        for task in WORLD.tasks("test", tier)[:20]:
            env = WORLD.make(task)
            text, info = env.reset()
            assert set(words_of(text)) <= known
            for action in WORLD.expert(task):
                text, _, _, _, info = env.step(action)
                assert set(words_of(text)) | {w for a in info["admissible"] for w in words_of(a)} <= known


def test_the_tiers_hold_different_topics_and_rooms() -> None:
    kinds = list_kinds_by_tier()
    topics = {tier: {(p.family, p.topic) for (p,) in kinds[tier]} for tier in ("seen", "evo", "combo")}
    assert not (topics["seen"] & topics["evo"] | topics["seen"] & topics["combo"] | topics["evo"] & topics["combo"])
    assert {family for family, _ in topics["seen"]} == set(FAMILIES)
    rooms = {
        tier: {part[2] for task in WORLD.tasks("test", tier) for part in task.spec["parts"]}
        for tier in ("seen", "evo", "combo")
    }
    assert not (rooms["seen"] | rooms["evo"]) & rooms["combo"]


@pytest.mark.long
def test_the_audit_finds_no_problem() -> None:
    assert audit(Science(), limit=60).problems == ()


def test_bad_tasks_and_options_are_refused() -> None:
    for options in ({"form": "esay"}, {"horizon": 0}, {"penalty": 0.5}):
        with pytest.raises(ConfigError):
            Science(**options)
    bad = [
        {"parts": [["boil", "gold", "bedroom"]], "seed": 0},
        {"parts": [["boil", "ethanol", "cellar"]], "seed": 0},
        {"parts": [["cook", "ethanol", "bedroom"]], "seed": 0},
        {"parts": [["boil", "ethanol"]], "seed": 0},
        {"parts": [], "seed": 0},
        {"parts": [["boil", "ethanol", "bedroom"]] * 2, "seed": 0},
        {"parts": [["boil", "ethanol", "bedroom"]], "seed": "0"},
    ]
    for spec in bad:
        with pytest.raises(ConfigError):
            WORLD.make(Task("science", "1", spec))
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("science", "0", {"parts": [["boil", "ethanol", "bedroom"]], "seed": 0}))
