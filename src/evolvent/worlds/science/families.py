"""The families of tasks: their topics, the things and texts of a task, its goals, and the kinds of each tier.

A kind of tasks is a family with a topic: a substance, a component, a species and the like. The things of a task are in
a drawn room. Topics and rooms are dealt to tiers: `seen` and `evo` have different topics in the same rooms; `combo` has
topics and rooms that are never trained; `longer` has two tasks of different families, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from evolvent.worlds.base import TIERS
from evolvent.worlds.science.catalogue import (
    ANIMAL_STAGES,
    CONDUCTORS,
    INSULATORS,
    LIFESPANS,
    PAINT_MIXES,
    PLANT_STAGES,
    PLANTS,
    RECIPES,
    SUBSTANCES,
    Substance,
    ThingType,
    make_substance,
    substance_type,
)
from evolvent.worlds.science.house import Builder, Goal, Scene
from evolvent.worlds.science.lab import WATER, Lab, Thing

__all__ = [
    "FAMILIES",
    "Family",
    "Part",
    "build_scene",
    "collect_names",
    "collect_task_words",
    "iterate_parts",
    "list_kinds_by_tier",
    "name_kind",
]

_ROOMS = ("bathroom", "living room", "bedroom", "workshop", "greenhouse")  # of trained kinds
_UNSEEN_ROOMS = ("art studio", "foundry", "outside")
_HEATERS = (("kitchen", "stove"), ("kitchen", "oven"), ("workshop", "hot plate"))


class Part(NamedTuple):
    """A task of one family: its topic, and the room where its things are."""

    family: str
    topic: str
    room: str


class Family(NamedTuple):
    """A family of tasks.

    Args:
        topics: what its tasks are about.
        build: adds the things, text and goals of a task (builder, topic, room) and returns its things by name.
    """

    topics: tuple[str, ...]
    build: Callable[[Builder, str, str], dict[str, Thing]]


# Heat

_BOILED = (
    "water,ethanol,acetone,methanol,hexane,vinegar,toluene,octane,isopropanol,diethyl ether,chloroform,mercury,"
    "glycerol,cyclohexane,pentane,butanol,heptane,xylene,dioxane,nonane"
)
_MELTED = (
    "gallium,chocolate,tin,paraffin wax,sulfur,naphthalene,indium,bismuth,sodium,potassium,lauric acid,stearic acid,"
    "benzoic acid,menthol,butter,lard,coconut oil,lead,camphor,thymol,zinc,aluminum,xylitol,vanillin,urea"
)
_FROZEN = (
    "water,orange juice,milk,vinegar,glycerol,cyclohexane,olive oil,sea water,octane,mercury,bromine,aniline,"
    "formic acid,dioxane,xylene,nitrobenzene,decane,nonane,chlorobenzene,apple juice"
)
_MEASURED = (
    "caesium,gallium,rubidium,potassium,sodium,indium,tin,bismuth,sulfur,naphthalene,lauric acid,stearic acid,"
    "benzoic acid,menthol,thymol,camphor,paraffin wax,beeswax,urea,xylitol,vanillin,salol,acetamide,palmitic acid,"
    "iodine"
)


def is_on_heater(lab: Lab, entity: Thing, *, is_running: bool = False) -> bool:
    """Returns whether a thing is on or in a heater, and whether that runs if asked."""
    while entity.parent >= 0:
        entity = lab.things[entity.parent]
        if (entity.type.source_temperature or 0.0) > 100.0:
            return entity.is_on or not is_running
    return False


def _is_in_cooler(lab: Lab, entity: Thing, *, is_closed: bool = False) -> bool:
    while entity.parent >= 0:
        entity = lab.things[entity.parent]
        if (entity.type.source_temperature or 100.0) < 10.0:
            return not entity.is_open or not is_closed
    return False


def _add_heat_goals(builder: Builder, number: int, start: float) -> None:
    builder.subgoals += [
        Goal("put it on a heater", lambda lab: is_on_heater(lab, lab.things[number])),
        Goal("heat it", lambda lab: is_on_heater(lab, lab.things[number], is_running=True)),
        Goal("warm it by 5 degrees", lambda lab: (lab.things[number].temperature or 0.0) >= start + 5.0),
    ]


def _add_sample(builder: Builder, substance: Substance, location: str) -> dict[str, Thing]:
    vessel = builder.add_vessel(builder.spot(location))
    return {"vessel": vessel, "target": builder.add(substance_type(substance), vessel)}


def _build_phase_change(builder: Builder, topic: str, location: str, *, verb: str, phase: int) -> dict[str, Thing]:
    entities = _add_sample(builder, SUBSTANCES[topic], location)
    number, start = entities["target"].number, entities["target"].temperature or 0.0
    state = ("solid", "liquid", "gas")[phase]
    builder.texts.append(
        f"{verb} the {topic}, which is in the {location}. Focus on it, then change its temperature until it is {state}."
    )
    builder.visit(location)
    builder.focus_on(entities["target"])
    # A long wait may pass the liquid state.
    builder.sequence.append(
        Goal(f"{verb} it", lambda lab: lab.things[number].phase >= phase > 0 or lab.things[number].phase == phase)
    )
    if verb == "freeze":
        builder.subgoals += [
            Goal("put it into a cooler", lambda lab: _is_in_cooler(lab, lab.things[number])),
            Goal("close the cooler", lambda lab: _is_in_cooler(lab, lab.things[number], is_closed=True)),
            Goal("cool it by 1 degree", lambda lab: (lab.things[number].temperature or 0.0) <= start - 1.0),
        ]
    else:
        _add_heat_goals(builder, number, start)
        builder.break_one_of(((), (), _HEATERS[:1], _HEATERS[:2]))
    return entities


def _build_boil(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    return _build_phase_change(builder, topic, location, verb="boil", phase=2)


def _build_melt(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    return _build_phase_change(builder, topic, location, verb="melt", phase=1)


def _build_freeze(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    return _build_phase_change(builder, topic, location, verb="freeze", phase=0)


def _add_thermometer_goals(builder: Builder, location: str, target: int) -> Thing:
    thermometer = builder.fixtures["kitchen", "thermometer"]
    tool = thermometer.number
    builder.subgoals.append(Goal("take the thermometer", lambda lab: lab.things[tool].parent == 0))
    builder.visit(location)
    builder.subgoals.append(Goal("measure the temperature", lambda lab: (tool, target) in lab.used))
    builder.focus_on(thermometer)
    return thermometer


def _add_boxes(builder: Builder, location: str) -> tuple[Thing, Thing]:
    return builder.add_box(location), builder.add_box(location)


def _build_thermometer(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    threshold = builder.choose((40, 50, 60, 70, 80))
    is_above = builder.choose((True, False))
    distance = builder.choose((15, 20, 25, 30))
    temperature = threshold + 3.0 * distance if is_above else threshold - distance
    target = builder.add(
        ThingType(topic, (topic.split()[-1],), has_temperature=True), builder.spot(location), temperature=temperature
    )
    box_room = builder.choose(_ROOMS)
    above_box, below_box = _add_boxes(builder, box_room)
    number, above, below = target.number, above_box.number, below_box.number
    builder.texts.append(
        f"measure the temperature of the {topic}, which is in the {location}. Focus on the thermometer, then on the "
        f"{topic}. If it is warmer than {threshold} degrees celsius, put it into the {above_box.label}, else into the "
        f"{below_box.label}. The boxes are in the {box_room}. The thermometer is in the kitchen."
    )
    thermometer = _add_thermometer_goals(builder, location, number)
    builder.focus_on(target)
    builder.visit(box_room)
    builder.sequence.append(
        Goal(
            "put it into the right box",
            lambda lab: (
                lab.things[number].parent == (above if (lab.things[number].temperature or 0.0) > threshold else below)
            ),
        )
    )
    return {"thermometer": thermometer, "target": target, "above": above_box, "below": below_box}


def _build_melting_point(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    return _build_measurement(builder, SUBSTANCES[topic], location)


def _build_unknown_melting_point(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    low, high = _UNKNOWN_RANGES[topic]
    melting_point = float(low + builder.choose(range(0, high - low, 5)))
    name = f"substance {builder.draw_letter()}".lower()
    return _build_measurement(builder, make_substance(name, melting_point, 2000.0), location)


_UNKNOWN_RANGES = {
    f"{adjective} powder": (low, low + 60)
    for low, adjective in zip(
        range(30, 255, 15),
        [
            "white",
            "gray",
            "black",
            "brown",
            "blue",
            "pink",
            "coarse",
            "fine",
            "waxy",
            "glossy",
            "dull",
            "damp",
            "dry",
            "heavy",
            "light",
        ],
        strict=True,
    )
}


def _build_measurement(builder: Builder, substance: Substance, location: str) -> dict[str, Thing]:
    is_above = builder.choose((True, False))
    distance = builder.choose((15, 20, 25, 30))
    threshold = round(substance.melting_point) + (-distance if is_above else distance)
    entities = _add_sample(builder, substance, location)
    number = entities["target"].number
    box_room = builder.choose(_ROOMS)
    above_box, below_box = _add_boxes(builder, box_room)
    builder.texts.append(
        f"measure the melting point of the {substance.name}, which is in the {location}. Focus on the thermometer, "
        f"then on the {substance.name}. If its melting point is above {threshold} degrees celsius, focus on the "
        f"{above_box.label}, else on the {below_box.label}. The boxes are in the {box_room}. The thermometer is in "
        "the kitchen."
    )
    thermometer = _add_thermometer_goals(builder, location, number)
    builder.focus_on(entities["target"])
    _add_heat_goals(builder, number, entities["target"].temperature or 0.0)
    builder.subgoals.append(Goal("melt it", lambda lab: lab.things[number].phase > 0))
    builder.visit(box_room)
    builder.focus_on(above_box if is_above else below_box)
    builder.break_one_of(((), (), _HEATERS[:1]))
    return {**entities, "thermometer": thermometer, "answer": above_box if is_above else below_box}


# Electricity

_COMPONENTS = "red light bulb,green light bulb,blue light bulb,yellow light bulb,white light bulb,buzzer,motor,fan"
_SOURCES = ("battery", "gas generator", "solar panel")


def _build_circuit_parts(builder: Builder, location: str, source_name: str, num_wires: int) -> dict[str, Thing]:
    """Adds a source and wires to a room; a solar panel stands outside."""
    is_solar = source_name == "solar panel"
    source = builder.add(
        ThingType(
            source_name,
            (source_name.split()[-1],),
            role="source",
            is_portable=source_name == "battery",
            is_switchable=source_name == "gas generator",
            has_terminals=True,
            is_polarized=True,
            conducts=True,
        ),
        "outside" if is_solar else location,
    )
    target_number = builder.spot(location)
    wires = {
        f"wire {position}": builder.add(
            ThingType(f"{builder.draw_color()} wire", ("wire",), role="wire", has_terminals=True, conducts=True),
            target_number,
        )
        for position in range(num_wires)
    }
    return {"source": source, **wires}


def _component_type(name: str) -> ThingType:
    return ThingType(name, (name.split()[-1],), role="load", has_terminals=True, is_polarized=True, conducts=True)


def is_wired_to_source(lab: Lab, entity: Thing) -> bool:
    """Returns whether a way of connections leads from a thing to a source."""
    for terminal in (0, 1):
        link = entity.links[terminal]
        for _ in lab.things:
            if link is None or link[0] == entity.number:
                break
            if lab.things[link[0]].type.role == "source":
                return True
            link = lab.things[link[0]].links[1 - link[1]]
    return False


def _add_wiring_goals(builder: Builder, number: int) -> None:
    builder.subgoals += [
        Goal("connect one end", lambda lab: any(lab.things[number].links)),
        Goal("connect both ends", lambda lab: all(lab.things[number].links)),
        Goal("connect it to a source", lambda lab: is_wired_to_source(lab, lab.things[number])),
    ]


def _build_power(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    component_name, _, source_name = topic.partition(" with ")
    component = builder.add(_component_type(component_name), builder.spot(location))
    parts_room = builder.choose(("workshop", "living room", "bathroom"))
    entities = _build_circuit_parts(builder, parts_room, source_name, 3)
    number = component.number
    source_room = "outside" if source_name == "solar panel" else parts_room
    builder.texts.append(
        f"power the {component_name}, which is in the {location}. Focus on it, then build a circuit with the "
        f"{source_name}, so that it is on. Wires are in the {parts_room}, the {source_name} is in the {source_room}."
    )
    builder.visit(location)
    builder.focus_on(component)
    builder.subgoals.append(
        Goal(
            "bring it to the source", lambda lab: lab.find_room(lab.things[number]) == builder.rooms[source_room].number
        )
    )
    _add_wiring_goals(builder, number)
    builder.sequence.append(Goal("switch it on", lambda lab: lab.things[number].is_on))
    return {"component": component, **entities}


def _build_conductivity(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    conducts = topic in CONDUCTORS
    if topic not in CONDUCTORS and topic not in INSULATORS:
        conducts = builder.choose((True, False))
        topic = f"{topic} {builder.draw_letter()}".lower()
    target = builder.add(
        ThingType(topic, (topic.split()[-1],), has_terminals=True, conducts=conducts), builder.spot(location)
    )
    parts_room = builder.choose(("workshop", "living room", "bathroom"))
    entities = _build_circuit_parts(builder, parts_room, "battery", 3)
    lamp = builder.add(_component_type(builder.choose(_COMPONENTS.split(",")[:5])), parts_room)
    yes_box, no_box = _add_boxes(builder, parts_room)
    builder.texts.append(
        f"find out if the {topic} conducts electricity. It is in the {location}. Focus on it. If it conducts, put it "
        f"into the {yes_box.label}, else into the {no_box.label}. The boxes, a battery, a {lamp.label} and wires are "
        f"in the {parts_room}."
    )
    number, answer = target.number, (yes_box if conducts else no_box).number
    builder.visit(location)
    builder.focus_on(target)
    builder.visit(parts_room)
    _add_wiring_goals(builder, number)
    builder.sequence.append(Goal("put it into the right box", lambda lab: lab.things[number].parent == answer))
    return {"target": target, "lamp": lamp, "yes": yes_box, "no": no_box, **entities}


# Living things

_WILD_PLANTS = [
    "rose",
    "fern",
    "cactus",
    "oak sapling",
    "tulip",
    "daisy",
    "ivy",
    "moss",
    "clover",
    "thistle",
    "orchid",
    "lily",
    "nettle",
    "bamboo",
    "heather",
]
_LIFELESS = [
    "brick",
    "marble statue",
    "plastic duck",
    "metal bucket",
    "glass bottle",
    "paper kite",
    "wool sweater",
    "clay tile",
]
_SOUGHT = ("living thing", "nonliving thing", "plant", "animal")


def _species(name: str, life: str) -> ThingType:
    return ThingType(name, (life, name.split()[-1]) if life else (name.split()[-1],), life=life)


def _build_find(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    sought, _, group = topic.partition(" of group ")
    position = int(group)
    animals = [name for number, name in enumerate(LIFESPANS) if number % 5 == position]
    plants = _WILD_PLANTS[3 * position : 3 * position + 3]
    names = [
        *((animals[number], "animal") for number in builder.permute(len(animals))[:2]),
        *((plants[number], "plant") for number in builder.permute(len(plants))[:2]),
        *((_LIFELESS[number], "") for number in builder.permute(len(_LIFELESS))[:2]),
    ]
    choices = []
    for number in builder.permute(len(names)):
        entity = builder.add(_species(*names[number]), location)
        is_fit = {"living thing": bool(entity.type.life), "nonliving thing": not entity.type.life}.get(
            sought, entity.type.life == sought
        )
        if is_fit:
            choices.append(entity)
    box_room = builder.choose([name for name in _ROOMS if name != location])
    box = builder.add_box(box_room)
    box_number, numbers = box.number, frozenset(entity.number for entity in choices)
    article = "an" if sought == "animal" else "a"
    builder.texts.append(
        f"find {article} {sought}; there are some in the {location}. Focus on it, then put it into the {box.label}, "
        f"which is in the {box_room}."
    )
    builder.visit(location)
    if sought == "nonliving thing":
        builder.sequence.append(
            Goal("focus on a nonliving thing", lambda lab: False, lambda lab, n: not lab.things[n].type.life)
        )
    else:
        builder.focus_on(*choices)

    def is_found(lab: Lab, target_number: int) -> bool:
        return any(
            lab.things[n].parent == target_number for n in lab.focused if n in numbers or sought == "nonliving thing"
        )

    builder.subgoals.append(Goal("take it", lambda lab: is_found(lab, 0)))
    builder.visit(box_room)
    builder.sequence.append(Goal("put it into the box", lambda lab: is_found(lab, box_number)))
    return {"target": builder.choose(choices), "box": box}


def _build_grow(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    jar = builder.add_vessel(builder.spot(location), "seed jar")
    seed_type = ThingType(f"{topic} seed", ("seed", topic), role="seed", life="plant")
    seeds = [builder.add(seed_type, jar) for _ in range(3)]
    pots = [builder.add_vessel("greenhouse", f"flower pot {number}", "flower pot") for number in (1, 2)]
    builder.add(ThingType("soil", article="some", role="soil"), builder.choose(pots))
    jug = builder.add_vessel(builder.spot("greenhouse"), "jug")
    pot_numbers, seed_numbers = frozenset(pot.number for pot in pots), frozenset(seed.number for seed in seeds)
    article = "an" if topic[0] in "aeiou" else "a"
    builder.texts.append(
        f"grow {article} {topic} plant from a seed. Seeds are in the {location}. Focus on a seed, and make it grow in "
        "a flower pot with soil and water until the plant flowers. Flower pots are in the greenhouse."
    )
    builder.visit(location)
    builder.focus_on(*seeds)

    def has_reached(lab: Lab, stage: int) -> bool:
        return any(stage <= lab.things[n].phase < 4 for n in lab.focused if n in seed_numbers)

    def is_potted(lab: Lab, name: str) -> bool:
        pots_with_soil = [lab.things[n] for n in pot_numbers if lab.holds(lab.things[n], "soil")]
        return any(lab.holds(pot, name) is not None for pot in pots_with_soil)

    builder.subgoals += [
        Goal("carry seeds", lambda lab: any(lab.is_within(lab.things[n], 0) for n in seed_numbers)),
        Goal("put a seed into soil", lambda lab: is_potted(lab, f"{topic} seed")),
        Goal("water the soil", lambda lab: is_potted(lab, "water")),
    ]
    builder.visit("greenhouse")
    for stage, name in ((1, "seedling"), (2, "plant"), (3, "flowering plant")):
        builder.sequence.append(Goal(f"grow a {name}", partial(has_reached, stage=stage)))
    return {"jar": jar, "seed": seeds[0], "jug": jug, "pot": pots[0], "other pot": pots[1]}


_QUESTIONS = ("longest", "shortest", "longest, then shortest")


def _build_lifespan(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    question, _, group = topic.partition(" of group ")
    names = [name for number, name in enumerate(LIFESPANS) if number % 5 == int(group)]
    kept_names = [names[number] for number in builder.permute(len(names))[:4]]
    animals = [builder.add(_species(name, "animal"), location) for name in kept_names]
    ranked = sorted(animals, key=lambda animal: LIFESPANS[animal.label])
    longest, shortest = ranked[-1], ranked[0]
    builder.visit(location)
    if question != "shortest":
        builder.focus_on(longest)
    if question != "longest":
        builder.focus_on(shortest)
    orders = {
        "longest": "focus on the animal with the longest life span.",
        "shortest": "focus on the animal with the shortest life span.",
        "longest, then shortest": "focus on the animal with the longest life span, then on the one with the shortest.",
    }
    builder.texts.append(f"{orders[question]} The animals are in the {location}.")
    return {"longest": longest, "shortest": shortest}


def _build_stages(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    remaining_names = [name for name in ANIMAL_STAGES if name != topic]
    names = [(topic, stage) for stage in ANIMAL_STAGES[topic]]
    for number in builder.permute(len(remaining_names))[:2]:
        names.append((remaining_names[number], ANIMAL_STAGES[remaining_names[number]][builder.choose((0, 1, 2, 3))]))
    entities = {}
    for number in builder.permute(len(names)):
        name, stage = names[number]
        entity = builder.add(ThingType(f"{name} {stage}", (name, stage), life="animal"), location)
        if name == topic:
            entities[stage] = entity
    builder.visit(location)
    for stage in ANIMAL_STAGES[topic]:
        builder.focus_on(entities[stage])
    builder.texts.append(
        f"focus on the life stages of the {topic}, from the earliest to the last. They are in the {location}."
    )
    return {f"stage {position}": entities[stage] for position, stage in enumerate(ANIMAL_STAGES[topic])}


# Chemistry


def _build_mix(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    ingredients = [RECIPES[topic][number] for number in builder.permute(len(RECIPES[topic]))]
    other_room = builder.choose([name for name in _ROOMS if name != location])
    recipe_room = builder.choose((location, other_room))
    note = builder.add(
        ThingType("recipe", text=f"to make {topic}, mix {', '.join(RECIPES[topic])}."), builder.spot(recipe_room)
    )
    entities = {"recipe": note}
    for position, name in enumerate(ingredients):
        vessel = builder.add_vessel(builder.spot(location if position else other_room))
        known = SUBSTANCES.get(name)
        portion = ThingType(name, (name.split()[-1],), "some") if known is None else substance_type(known)
        if name == "water":
            portion = WATER
        entities[f"vessel {position}"], entities[f"ingredient {position}"] = vessel, builder.add(portion, vessel)
    decoy = builder.choose([name for name in ("salt", "sugar", "pepper", "ash") if name not in ingredients])
    builder.add(ThingType(decoy, article="some"), builder.add_vessel(builder.spot(location)))
    note_number, names = note.number, frozenset(ingredients)
    builder.texts.append(
        f"make {topic} from its ingredients, and focus on it. A recipe is in the {recipe_room}. The ingredients are in "
        f"the {other_room} and the {location}."
    )
    builder.visit(location)
    builder.visit(other_room)
    builder.subgoals += [
        Goal("read the recipe", lambda lab: (-1, note_number) in lab.used),
        Goal("bring the ingredients together", partial(_is_prepared, names=names, product=topic)),
        Goal("mix them", partial(_exists, name=topic)),
    ]
    builder.sequence.append(_product_goal(topic))
    return entities


def _are_together(lab: Lab, names: frozenset[str]) -> bool:
    return any(
        len(entity.contents) == len(names) and {lab.things[n].type.name for n in entity.contents} == names
        for entity in lab.things
    )


def _is_prepared(lab: Lab, names: frozenset[str], product: str) -> bool:
    return _are_together(lab, names) or _exists(lab, product)


def _exists(lab: Lab, name: str) -> bool:
    return any(entity.type.name == name and entity.parent >= 0 for entity in reversed(lab.things))


def _product_goal(name: str) -> Goal:
    return Goal(f"focus on the {name}", lambda lab: False, lambda lab, number: lab.things[number].type.name == name)


def _build_paint(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    is_tertiary = len(topic.split()) == 3
    middle = next((part for part in PAINT_MIXES[topic] if part in PAINT_MIXES), "")
    primaries = ["red paint", "yellow paint", "blue paint"]
    entities = {}
    for number in builder.permute(3):
        name = primaries[number]
        cups = [builder.add_vessel(location, "wood cup") for _ in range(1 + is_tertiary)]
        for cup in cups:
            entities[name] = builder.add(ThingType(name, ("paint",), "some"), cup)
        entities[f"cup of {name}"] = cups[-1]
    entities["bowl"] = builder.add_vessel(builder.spot(location))
    builder.visit(location)
    pairs = [*([(middle, PAINT_MIXES[middle])] if middle else []), (topic, PAINT_MIXES[topic])]
    for product, parts in pairs:
        names = frozenset(parts)
        builder.subgoals += [
            Goal(f"bring the paints for {product} together", partial(_is_prepared, names=names, product=product)),
            Goal(f"mix {product}", partial(_exists, name=product)),
        ]
        builder.sequence.append(_product_goal(product))
    then = f"focus on the {middle} that you make on the way, then on the {topic}" if middle else "focus on it"
    builder.texts.append(f"mix {topic}, and {then}. Paints are in the {location}.")
    return entities


# Motion

_SURFACES = {"glass": 0.1, "steel": 0.15, "plastic": 0.2, "wood": 0.25, "rubber": 0.35}
_ANGLES = (30, 35, 40, 45, 50, 55, 60)
_SCALE = 8.0  # percent of a plane's length per tick and tick at the acceleration of gravity


def _acceleration(angle: float, friction: float) -> float:
    radians = math.radians(angle)
    return _SCALE * (math.sin(radians) - friction * math.cos(radians))


def slide_ticks(acceleration: float) -> int:
    """Returns how many ticks a block takes to the bottom of a plane.

    >>> slide_ticks(10.0)  # 10 + 20 + 30 + 40
    4
    """
    speed = way = 0.0
    ticks = 0
    while way < 100.0:
        speed, ticks = speed + acceleration, ticks + 1
        way += speed
    return ticks


def _is_on(lab: Lab, number: int, target_number: int) -> bool:
    return lab.things[number].parent == target_number


def _build_plane(builder: Builder, topic: str, location: str) -> dict[str, Thing]:
    question, _, detail = topic.partition(" at ")
    by_angle = question in ("steepest", "shallowest")
    while True:
        if by_angle:
            options = [
                _acceleration(_ANGLES[number], _SURFACES[detail]) for number in builder.permute(len(_ANGLES))[:2]
            ]
        else:
            frictions = list(_SURFACES.values())
            numbers = builder.permute(len(frictions))[:2]
            options = [_acceleration(float(detail.split()[0]), frictions[number]) for number in numbers]
        if abs(slide_ticks(options[0]) - slide_ticks(options[1])) >= 2 - (not by_angle):
            break
    planes = [
        builder.add(
            ThingType(
                f"inclined plane {builder.draw_letter().lower()}",
                ("inclined plane", "plane"),
                holds="on",
                role="plane",
                is_portable=False,
                acceleration=acceleration,
            ),
            location,
        )
        for acceleration in options
    ]
    block = builder.add(ThingType("wood block", ("block",), role="block"), builder.spot(location))
    stopwatch = builder.add(ThingType("stopwatch", role="stopwatch", is_switchable=True), builder.spot(location))
    is_fast = question in ("steepest", "least friction")
    ranked = sorted(planes, key=lambda plane: plane.type.acceleration)
    answer = ranked[-1] if is_fast else ranked[0]
    wishes = {
        "steepest": "the steepest angle",
        "shallowest": "the least steep angle",
        "most friction": "the most friction",
        "least friction": "the least friction",
    }
    common = f"surfaces of {detail}" if by_angle else f"an angle of {detail}"
    builder.texts.append(
        f"find out which of the two inclined planes has {wishes[question]}, and focus on it. They are in the "
        f"{location} and both have {common}. A block slides down faster on a steeper plane, and slower "
        "with more friction."
    )
    numbers_of_planes = [plane.number for plane in planes]
    watch, sliding = stopwatch.number, block.number
    builder.visit(location)
    for position, plane_number in enumerate(numbers_of_planes):
        builder.subgoals.append(
            Goal(
                f"put the block on plane {position + 1}",
                partial(_is_on, number=sliding, target_number=plane_number),
            )
        )
    builder.subgoals += [
        Goal("start the stopwatch", lambda lab: lab.things[watch].is_on),
        Goal("let the block slide down", lambda lab: lab.things[sliding].progress >= 100.0),
    ]
    builder.focus_on(answer)
    return {"block": block, "stopwatch": stopwatch, "plane 0": planes[0], "plane 1": planes[1], "answer": answer}


def _groups(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name} of group {group}" for group in range(5) for name in names)


_TEMPERED = (
    "stone,brick,potato,egg,metal cube,loaf of bread,clay ball,glass bead,wooden spoon,cheese,pie,iron pan,gel pack,"
    "honey jar,sandbag"
)
FAMILIES: Mapping[str, Family] = {
    "boil": Family(tuple(_BOILED.split(",")), _build_boil),
    "melt": Family(tuple(_MELTED.split(",")), _build_melt),
    "freeze": Family(tuple(_FROZEN.split(",")), _build_freeze),
    "use thermometer": Family(tuple(_TEMPERED.split(",")), _build_thermometer),
    "melting point": Family(tuple(_MEASURED.split(",")), _build_melting_point),
    "unknown melting point": Family(tuple(_UNKNOWN_RANGES), _build_unknown_melting_point),
    "power component": Family(
        tuple(f"{component} with {source}" for component in _COMPONENTS.split(",") for source in _SOURCES), _build_power
    ),
    "test conductivity": Family(
        tuple(name for pair in zip(CONDUCTORS, INSULATORS, strict=True) for name in pair), _build_conductivity
    ),
    "test conductivity of unknown": Family(
        tuple(
            f"{name} sample"
            for name in ["dark", "bright", "rough", "smooth", "heavy", "round", "flat", "thin", "hard", "soft"]
        ),
        _build_conductivity,
    ),
    "find": Family(_groups(_SOUGHT), _build_find),
    "grow plant": Family(tuple(PLANTS), _build_grow),
    "mix chemicals": Family(tuple(RECIPES), _build_mix),
    "mix paint": Family(tuple(PAINT_MIXES), _build_paint),
    "life span": Family(_groups(_QUESTIONS), _build_lifespan),
    "life stages": Family(tuple(ANIMAL_STAGES), _build_stages),
    "inclined plane": Family(
        (
            *(f"{question} at {surface}" for surface in _SURFACES for question in ("steepest", "shallowest")),
            *(
                f"{question} at {angle} degrees"
                for angle in (30, 35, 40, 45, 50)
                for question in ("most friction", "least friction")
            ),
        ),
        _build_plane,
    ),
}
"""The families of tasks by name."""


def name_kind(parts: Sequence[Part]) -> str:
    """Returns the name of a kind of tasks."""
    if len(parts) == 1:
        return f"{parts[0].family}, {parts[0].topic}"
    return " and then ".join(part.family for part in parts)


def list_kinds_by_tier() -> Mapping[str, tuple[tuple[Part, ...], ...]]:
    """Returns the kinds of tasks of each tier; rooms, and in `longer` topics, are drawn later and are empty here.

    Of five topics, two are `seen`, two `evo`, and one is never trained.
    """
    kinds: dict[str, list[tuple[Part, ...]]] = {tier: [] for tier in TIERS}
    for name, family in FAMILIES.items():
        for position, topic in enumerate(family.topics):
            tier = "combo" if position % 5 == 4 else "evo" if position % 2 else "seen"
            kinds[tier].append((Part(name, topic, ""),))
        kinds["longer"] += [(Part(name, "", ""), Part(partner, "", "")) for partner in FAMILIES if partner != name]
    return {tier: tuple(parts) for tier, parts in kinds.items()}


_ROOMS_OF_TIERS = {"combo": _UNSEEN_ROOMS, "longer": (*_ROOMS, *_UNSEEN_ROOMS)}


def _draw_part(part: Part, tier: str, rng: np.random.Generator) -> Part:
    """Draws the room of a part, and its topic if it has none."""
    topic = part.topic or _pick(FAMILIES[part.family].topics, rng)
    return Part(part.family, topic, _pick(_ROOMS_OF_TIERS.get(tier, _ROOMS), rng))


def _pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def iterate_parts(tier: str, draw_rng: Callable[[int], np.random.Generator]) -> Iterator[tuple[Part, ...]]:
    """Yields the parts of tasks of a tier without end, of all its kinds in turn."""
    kinds = list_kinds_by_tier()[tier]
    number = 0
    while True:
        rng = draw_rng(number)
        for position in rng.permutation(len(kinds)).tolist():
            yield tuple(_draw_part(part, tier, rng) for part in kinds[position])
        number += 1


def build_scene(parts: Sequence[Part], rng: np.random.Generator, *, is_easy: bool = False) -> Scene:
    """Builds the lab, text and goals of a task."""
    builder = Builder(rng, is_easy=is_easy)
    for part in parts:
        builder.things.append(FAMILIES[part.family].build(builder, part.topic, part.room))
    kind = " and ".join(", ".join(part) for part in parts)
    return builder.build(kind, [part.room for part in parts])


def collect_task_words() -> set[str]:
    """Returns the texts of a task of each family, for the vocabulary; their names are in `collect_names`."""
    texts = set()
    for name, family in FAMILIES.items():
        for topic in family.topics:
            for seed in range(2):
                scene = build_scene([Part(name, topic, _ROOMS[0])], np.random.default_rng(seed))
                texts.add(scene.text)
                texts |= {f"{entity.label} {entity.type.name} {entity.type.text}" for entity in scene.lab.things}
    return texts | {"First: After that:", *"ABCDEFGHJK", *"abcdefghjk"}


def collect_names() -> set[str]:
    """Returns all names that tasks give their things, for the vocabulary."""
    return {
        *(topic for family in FAMILIES.values() for topic in family.topics),
        *(name for substance in SUBSTANCES.values() for name in substance.phase_names),
        *(name for parts in RECIPES.values() for name in parts),
        *(paint for product, paints in PAINT_MIXES.items() for paint in (product, *paints)),
        *("salt", "sugar", "pepper", "ash"),
        *CONDUCTORS,
        *INSULATORS,
        *(stage.format("") for stage in PLANT_STAGES),
        *(f"{name} {stage}" for name, stages in ANIMAL_STAGES.items() for stage in stages),
        *LIFESPANS,
        *_WILD_PLANTS,
        *_LIFELESS,
    }
