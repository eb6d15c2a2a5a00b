"""The state of a lab and its physics: heat, states of matter, water, fire, electricity, growth and motion.

A lab is a tree of things: rooms hold furniture, furniture holds vessels, vessels hold substances. Time advances in
ticks. In each tick

- a thing with a temperature T moves toward its surroundings by Newton's law, T += rate (T_source - T), where the source
  is the nearest heater or cooler around it, else the air; a substance changes its state at its melting and boiling
  point, and a gas leaves an open vessel;
- a running tap fills the vessels below it; a fire burns its wood;
- a block on an inclined plane slides, v += a, x += v;
- a plant in soil and water grows, uses the water up, and withers without it;
- a component is powered where it lies in a closed circuit with a working source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evolvent.worlds.science.catalogue import (
    AIR_TEMPERATURE,
    PLANT_STAGES,
    SUBSTANCES,
    WATER_TEMPERATURE,
    ThingType,
    substance_type,
)

__all__ = ["WATER", "Command", "Lab", "Thing"]

WATER = substance_type(SUBSTANCES["water"])
_AIR_RATE = 0.01
_OPEN_COOLER_FACTOR = 0.4
_STAGE_TICKS = 5  # that a plant with soil and water needs for a stage
_DROUGHT_TICKS = 60  # that a seedling survives without water
_FIRE_TICKS = 40
DEAD = len(PLANT_STAGES) - 1
_ACTIVE_ROLES = frozenset(("sink", "fire pit", "stopwatch", "block", "seed"))
_SUNNY_ROOMS = ("greenhouse", "outside")
Link = tuple[int, int]


class Command(NamedTuple):
    """An action on certain things: numbers of the things, -1 for none, and terminals of connections."""

    verb: str
    first: int = -1
    second: int = -1
    first_terminal: int = -1
    second_terminal: int = -1


class Thing:
    """A thing in the lab.

    Attributes:
        number: its index in the lab.
        type: its unchanging properties.
        label: its name now, which changes with its state of matter or stage of life.
        parent: number of the thing that it is in or on, -1 where it no longer exists.
        contents: numbers of the things in or on it.
        temperature: in degrees Celsius; None for things without one.
        is_open, is_on, is_broken: states of devices and containers.
        phase: 0 solid, 1 liquid, 2 gas; of plants, the stage.
        links: what its two terminals are connected to, (number, terminal) or None.
        timer: ticks of a stopwatch, of a fire or of a plant in its stage.
        progress: way of a block down its plane in percent; ticks of a plant without water.
        speed: of a block, in percent a tick.
    """

    __slots__ = (
        "contents",
        "is_broken",
        "is_on",
        "is_open",
        "label",
        "links",
        "number",
        "parent",
        "phase",
        "progress",
        "speed",
        "temperature",
        "timer",
        "type",
    )

    def __init__(self, number: int, thing_type: ThingType, parent: int, temperature: float | None) -> None:
        self.number, self.type, self.parent, self.temperature = number, thing_type, parent, temperature
        self.label = thing_type.name
        self.contents: list[int] = []
        self.is_open = not thing_type.is_lidded
        self.is_on = self.is_broken = False
        self.phase = 0
        self.links: list[Link | None] = [None, None]
        self.timer, self.progress, self.speed = 0, 0.0, 0.0

    def copy(self) -> Thing:
        """Returns an independent copy."""
        twin: Thing = Thing.__new__(Thing)
        twin.number, twin.type, twin.label, twin.parent = self.number, self.type, self.label, self.parent
        twin.contents, twin.temperature, twin.phase = self.contents[:], self.temperature, self.phase
        twin.is_open, twin.is_on, twin.is_broken = self.is_open, self.is_on, self.is_broken
        twin.links, twin.timer, twin.progress, twin.speed = self.links[:], self.timer, self.progress, self.speed
        return twin


class Lab:
    """The whole changing state of an episode.

    Attributes:
        things: all things by number; 0 is the inventory of the agent.
        room: number of the room that the agent is in.
        doors: (room, room) -> whether the door between them is open, with the smaller number first.
        active: numbers of the things that change by themselves.
        ticks: time since the start.
        version: grows whenever the visible structure changes.
        num_links: number of connections between terminals.
        focused: numbers of the things that the agent focused on, in order.
        used: pairs (tool, thing) that the agent used together; (-1, thing) for a note that was read.
        step_number: number of reached goals of the sequence.
        reached: bit mask of the reached optional subgoals.
        score: 0 to 100, or -100 after a mistake.
        question: the commands between which an ambiguous action leaves the choice.
    """

    __slots__ = (
        "active",
        "doors",
        "focused",
        "num_links",
        "question",
        "reached",
        "room",
        "score",
        "step_number",
        "things",
        "ticks",
        "used",
        "version",
    )

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self.room = 0
        self.doors: dict[Link, bool] = {}
        self.active: list[int] = []
        self.ticks = self.version = self.num_links = self.step_number = self.reached = self.score = 0
        self.focused: tuple[int, ...] = ()
        self.used: frozenset[Link] = frozenset()
        self.question: tuple[Command, ...] = ()

    def copy(self) -> Lab:
        """Returns an independent copy."""
        twin: Lab = Lab.__new__(Lab)
        twin.things = [entity.copy() for entity in self.things]
        twin.doors, twin.active = self.doors.copy(), self.active[:]
        for name in _PLAIN_FIELDS:
            setattr(twin, name, getattr(self, name))
        return twin

    def create(self, thing_type: ThingType, parent: int, *, temperature: float = AIR_TEMPERATURE) -> Thing:
        """Creates a thing in or on another."""
        entity = Thing(len(self.things), thing_type, parent, None)
        self.things.append(entity)
        if parent >= 0:
            self.things[parent].contents.append(entity.number)
        if thing_type.substance is not None or thing_type.has_temperature:
            entity.temperature = temperature
            self.active.append(entity.number)
        elif thing_type.role in _ACTIVE_ROLES:
            self.active.append(entity.number)
        if thing_type.substance is not None:
            self._set_phase(entity, thing_type.substance.phase_at(temperature))
        elif thing_type.role == "seed":
            self.set_stage(entity, 0)
        self.version += 1
        return entity

    def move(self, entity: Thing, target: int) -> None:
        """Moves a thing into or onto another; its connections come loose."""
        if entity.parent >= 0:
            self.things[entity.parent].contents.remove(entity.number)
        entity.parent = target
        if target >= 0:
            self.things[target].contents.append(entity.number)
        entity.progress = 0.0 if entity.type.role == "block" else entity.progress
        entity.speed = 0.0
        self.disconnect(entity)
        self.version += 1

    def remove(self, entity: Thing) -> None:
        """Removes a thing from the lab, with everything in it."""
        for number in entity.contents[:]:
            self.remove(self.things[number])
        self.move(entity, -1)

    def merge(self, container: Thing) -> None:
        """Merges portions of the same substance in a container; their temperatures are averaged."""
        portions: dict[str, Thing] = {}
        for number in container.contents[:]:
            entity = self.things[number]
            if entity.type.article != "some":
                continue
            first = portions.setdefault(entity.type.name, entity)
            if first is not entity:
                if first.temperature is not None and entity.temperature is not None:
                    first.temperature = (first.temperature + entity.temperature) / 2
                if entity.number in self.focused:
                    self.focused = tuple(first.number if n == entity.number else n for n in self.focused)
                self.remove(entity)

    def find_room(self, entity: Thing) -> int:
        """Returns the number of the room that a thing is in: that of the agent for things in the inventory."""
        while entity.type.role != "room":
            if entity.parent < 0:
                return self.room if entity.number == 0 else -1
            entity = self.things[entity.parent]
        return entity.number

    def is_within(self, entity: Thing, container: int) -> bool:
        """Returns whether a thing is in or on another one, at any depth."""
        while entity.parent >= 0:
            if entity.parent == container:
                return True
            entity = self.things[entity.parent]
        return False

    def iterate_contents(self, container: Thing) -> Iterator[Thing]:
        """Yields what can be seen in or on a thing, at any depth: what closed containers hold cannot."""
        if container.is_open:
            for number in container.contents:
                entity = self.things[number]
                yield entity
                if entity.contents:
                    yield from self.iterate_contents(entity)

    def list_visible(self) -> list[Thing]:
        """Lists what the agent sees: the things of its room, then those it carries."""
        return [*self.iterate_contents(self.things[self.room]), *self.iterate_contents(self.things[0])]

    def list_neighbors(self, location: int) -> list[int]:
        """Lists the rooms that a room has doors to."""
        return [b if a == location else a for a, b in self.doors if location in (a, b)]

    def holds(self, container: Thing, name: str) -> Thing | None:
        """Returns the thing of a type that lies directly in a container, or None."""
        return next((self.things[n] for n in container.contents if self.things[n].type.name == name), None)

    def holds_liquid(self, container: Thing) -> Thing | None:
        """Returns the first liquid directly in a container, or None."""
        portions = (self.things[number] for number in container.contents)
        return next((portion for portion in portions if portion.temperature is not None and portion.phase == 1), None)

    # Electricity

    def connect(self, first: Thing, first_terminal: int, second: Thing, second_terminal: int) -> None:
        """Connects two free terminals."""
        first.links[first_terminal] = (second.number, second_terminal)
        second.links[second_terminal] = (first.number, first_terminal)
        self.num_links += 1
        self.version += 1

    def disconnect(self, entity: Thing) -> None:
        """Removes the connections of both terminals of a thing."""
        for terminal, link in enumerate(entity.links):
            if link is not None:
                self.things[link[0]].links[link[1]] = None
                entity.links[terminal] = None
                self.num_links -= 1
                self.version += 1

    def _is_source_working(self, source: Thing) -> bool:
        if source.type.name in ("solar panel", "wind generator"):
            return self.things[self.find_room(source)].label == "outside"
        return source.is_on or not source.type.is_switchable

    def trace_circuit(self, source: Thing) -> list[tuple[Thing, int]] | None:
        """Traces the connections from the anode of a source.

        Returns:
            The things of the circuit, each with the terminal at which it is entered, if the way leads back to the
            cathode of the source and everything on it conducts; None otherwise. Every terminal has at most one
            connection, so the way never forks.
        """
        way: list[tuple[Thing, int]] = []
        link = source.links[0]
        while link is not None:
            entity, terminal = self.things[link[0]], link[1]
            if entity is source:
                return way if terminal == 1 else None
            is_conducting = entity.type.conducts and (entity.type.role != "switch" or entity.is_on)
            if not is_conducting or len(way) > len(self.things):
                return None
            way.append((entity, terminal))
            link = entity.links[1 - terminal]
        return None

    def update_circuits(self) -> None:
        """Updates which components are on: a component is powered if its cathode leads to the anode of a source."""
        powered = set()
        for entity in self.things:
            if entity.type.role == "source" and entity.links[0] is not None and self._is_source_working(entity):
                circuit = self.trace_circuit(entity)
                powered |= {part.number for part, terminal in circuit or () if terminal == 1}
        for entity in self.things:
            if entity.type.role == "load" and entity.is_on != (entity.number in powered):
                entity.is_on = not entity.is_on
                self.version += 1

    # Time

    def advance(self, ticks: int = 1) -> None:
        """Lets time pass."""
        for _ in range(ticks):
            self.ticks += 1
            for number in self.active[:]:
                entity = self.things[number]
                if entity.parent < 0:
                    continue
                if entity.temperature is not None:
                    if entity.phase < 2 or self.things[entity.parent].type.role != "room":  # thin vapor stays vapor
                        self._exchange_heat(entity)
                elif entity.type.role == "seed":
                    self._grow(entity)
                elif entity.is_on:
                    self._run(entity)
                elif entity.type.role == "block":
                    self._slide(entity)
        if self.num_links:
            self.update_circuits()

    def find_surroundings(self, entity: Thing) -> tuple[float, float]:
        """Returns the temperature around a thing, and the share of the difference that it loses in a tick."""
        container = self.things[entity.parent]
        while container.parent >= 0:
            source = container.type.source_temperature
            if source is not None:
                if not container.type.is_switchable and container.type.role != "fire pit":  # a cooler always runs
                    factor = _OPEN_COOLER_FACTOR if container.is_open else 1.0
                    return source, container.type.exchange_rate * factor
                if container.is_on:
                    return source, container.type.exchange_rate
            container = self.things[container.parent]
        return AIR_TEMPERATURE, _AIR_RATE

    def _exchange_heat(self, entity: Thing) -> None:
        surroundings, rate = self.find_surroundings(entity)
        temperature = entity.temperature or 0.0
        entity.temperature = temperature + rate * (surroundings - temperature)
        if entity.type.substance is not None:
            phase = entity.type.substance.phase_at(entity.temperature)
            if phase != entity.phase:
                self._set_phase(entity, phase)

    def _set_phase(self, entity: Thing, phase: int) -> None:
        if entity.type.substance is None:
            return
        entity.phase, entity.label = phase, entity.type.substance.phase_names[phase]
        self.version += 1
        if phase == 2 and entity.parent >= 0:
            container = self.things[entity.parent]
            if container.type.role != "room" and container.is_open:
                self.move(entity, self.find_room(entity))

    def _run(self, entity: Thing) -> None:
        """Runs a switched-on device for a tick: a stopwatch, a tap or a fire."""
        if entity.type.role == "sink":
            self._fill(entity)
            for number in entity.contents[:]:
                vessel = self.things[number]
                if vessel.type.holds == "in" and vessel.is_open:
                    self._fill(vessel)
            return
        entity.timer += 1
        if entity.type.role == "fire pit" and entity.timer >= _FIRE_TICKS:
            entity.is_on, entity.timer = False, 0
            wood = self.holds(entity, "wood")
            if wood is not None:
                self.remove(wood)
            self.version += 1

    def _fill(self, vessel: Thing) -> None:
        if self.holds(vessel, "water") is None:
            self.create(WATER, vessel.number, temperature=WATER_TEMPERATURE)

    def _slide(self, block: Thing) -> None:
        plane = self.things[block.parent]
        if plane.type.role == "plane" and block.progress < 100.0:
            block.speed += plane.type.acceleration
            block.progress = min(100.0, block.progress + block.speed)

    def set_stage(self, plant: Thing, stage: int) -> None:
        """Sets the stage of a plant, which begins anew."""
        plant.phase, plant.timer, plant.progress = stage, 0, 0.0
        plant.label = PLANT_STAGES[stage].format(plant.type.name.removesuffix(" seed"))
        self.version += 1

    def _grow(self, plant: Thing) -> None:
        pot = self.things[plant.parent]
        if plant.phase >= DEAD - 1:
            return
        water = self.holds(pot, "water") if pot.type.role == "flower pot" else None
        if water is None or water.phase != 1 or self.holds(pot, "soil") is None:
            plant.progress += 1
            if plant.phase > 0 and plant.progress >= _DROUGHT_TICKS:
                self.set_stage(plant, DEAD)
            return
        plant.progress = 0.0
        if self.things[self.find_room(plant)].label in _SUNNY_ROOMS:
            plant.timer += 1
            if plant.timer >= _STAGE_TICKS:
                self.set_stage(plant, plant.phase + 1)
                self.remove(water)


_PLAIN_FIELDS: Sequence[str] = tuple(name for name in Lab.__slots__ if name not in ("things", "doors", "active"))
