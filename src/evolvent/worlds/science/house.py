"""The house of the lab with its ten rooms and fixtures, the builder of tasks, and their goals and score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from evolvent.worlds.science.catalogue import COLORS, ThingType
from evolvent.worlds.science.lab import WATER, Lab, Thing

__all__ = ["FIXTURE_TYPES", "ROOMS", "Builder", "Goal", "Scene", "update_score"]

T = TypeVar("T")
ROOMS = (
    "hallway",
    "kitchen",
    "bathroom",
    "workshop",
    "living room",
    "greenhouse",
    "bedroom",
    "art studio",
    "foundry",
    "outside",
)
_DOORS = (
    "hallway-kitchen,hallway-workshop,hallway-living room,hallway-greenhouse,hallway-bedroom,hallway-art studio,"
    "kitchen-bathroom,kitchen-outside,greenhouse-outside,foundry-outside"
)


def _surface(name: str, *, is_portable: bool = False) -> ThingType:
    return ThingType(name, holds="on", is_portable=is_portable)


def _cupboard(name: str, temperature: float | None = None, rate: float = 0.0) -> ThingType:
    return ThingType(
        name,
        holds="in",
        is_lidded=True,
        is_portable=False,
        source_temperature=temperature,
        exchange_rate=rate,
    )


def _vessel(name: str, role: str = "") -> ThingType:
    return ThingType(name, (name.split()[-1],), holds="in", role=role)


def _tap(name: str) -> ThingType:
    return ThingType(name, holds="in", role="sink", is_portable=False, is_switchable=True)


def _heater(name: str, temperature: float, rate: float, *, is_lidded: bool = False) -> ThingType:
    return ThingType(
        name,
        (name.split()[-1],),
        holds="in" if is_lidded else "on",
        is_lidded=is_lidded,
        is_portable=False,
        is_switchable=True,
        source_temperature=temperature,
        exchange_rate=rate,
    )


def _basin(name: str, role: str) -> ThingType:
    return ThingType(name, holds="in", role=role, is_portable=False)


_FIRE_PIT = ThingType(
    "fire pit", ("pit",), holds="in", role="fire pit", is_portable=False, source_temperature=700.0, exchange_rate=0.06
)
_GROUND = ThingType("ground", article="the", role="ground", is_portable=False)
_WOOD = ThingType("wood", article="some", role="wood")
_FIXTURES: Mapping[str, tuple[ThingType, ...]] = {
    "kitchen": (
        _surface("counter"),
        _cupboard("cupboard"),
        _heater("stove", 400.0, 0.06),
        _heater("oven", 250.0, 0.05, is_lidded=True),
        _cupboard("fridge", 4.0, 0.08),
        _cupboard("freezer", -20.0, 0.08),
        _tap("sink"),
        ThingType("thermometer", role="thermometer"),
        ThingType("lighter", role="lighter"),
    ),
    "bathroom": (_tap("sink"), _tap("bathtub"), _basin("toilet", "toilet")),
    "workshop": (_surface("workbench"), _heater("hot plate", 300.0, 0.06), _cupboard("deep freezer", -80.0, 0.08)),
    "living room": (_surface("couch"), _surface("desk")),
    "greenhouse": (_tap("sink"), _surface("shelf"), ThingType("shovel", role="shovel")),
    "bedroom": (_surface("bed"), _cupboard("closet")),
    "art studio": (_surface("easel"), _cupboard("large cupboard")),
    "foundry": (_heater("blast furnace", 1600.0, 0.08, is_lidded=True), _tap("sink"), _surface("anvil")),
    "outside": (_FIRE_PIT, _GROUND, _WOOD, _basin("fountain", "")),
    "hallway": (),
}
_DECORATIONS = tuple(
    ThingType(name)
    for name in [
        "chair",
        "pillow",
        "painting",
        "book",
        "lamp",
        "vase",
        "rug",
        "clock",
        "ball",
        "umbrella",
        "broom",
        "mirror",
        "candle holder",
        "picture frame",
        "hat",
        "toy car",
    ]
)
_VESSELS = ("glass cup", "tin cup", "ceramic bowl", "metal pot", "wooden cup", "plastic cup", "glass jar", "clay mug")
FIXTURE_TYPES: Sequence[ThingType] = (
    *(thing_type for types in _FIXTURES.values() for thing_type in types),
    *_DECORATIONS,
    *map(_vessel, (*_VESSELS, "jug", "seed jar", "flower pot 1", "flower pot 2", "flower pot 3")),
    *(_vessel(f"{color} box") for color in COLORS),
)
"""The types of everything that the house can hold before a task adds its own things."""


class Goal(NamedTuple):
    """A goal: a state of the lab to reach, or things to focus on.

    Args:
        name: what to do, for people.
        is_reached: whether a lab is in the state.
        may_focus: whether focusing on a thing is right; None where the goal is not about focusing.
    """

    name: str
    is_reached: Callable[[Lab], bool]
    may_focus: Callable[[Lab, int], bool] | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A task with its lab.

    Args:
        lab: the lab at the start; nothing changes it.
        text: the task in words.
        sequence: the goals to reach one after another.
        subgoals: optional steps on the way; they give partial scores.
        things: the things of the task by their part in it, for the expert.
        key: canonical form, equal for tasks that differ only in colors.
        can_teleport: whether the agent can teleport.
    """

    lab: Lab
    text: str
    sequence: tuple[Goal, ...]
    subgoals: tuple[Goal, ...]
    things: tuple[Mapping[str, Thing], ...]
    key: str
    can_teleport: bool


def update_score(scene: Scene, lab: Lab, focus: int = -1) -> None:
    """Updates the reached goals and the score after a step.

    Half of the score is the share of the sequence, half the share of the subgoals; the whole sequence scores 100. A
    wrong focus scores -100.

    Args:
        focus: number of the thing that the step focused on, -1 for none.
    """
    for position, goal in enumerate(scene.subgoals):
        if not lab.reached >> position & 1 and goal.is_reached(lab):
            lab.reached |= 1 << position
    sequence = scene.sequence
    if focus >= 0 and lab.step_number < len(sequence):
        may_focus = sequence[lab.step_number].may_focus
        if may_focus is not None and may_focus(lab, focus):
            lab.step_number += 1
        elif lab.focused.count(focus) < 2:  # focusing again on a right thing is harmless
            lab.score = -100
            return
    while lab.step_number < len(sequence):
        goal = sequence[lab.step_number]
        if goal.may_focus is not None or not goal.is_reached(lab):
            break
        lab.step_number += 1
    if lab.step_number == len(sequence):
        lab.score = 100
        return
    shares = lab.step_number / len(sequence) + lab.reached.bit_count() / max(1, len(scene.subgoals))
    lab.score = min(99, round(50 * shares))


class Builder:
    """Builds the lab of a task and collects its goals.

    Args:
        rng: draws everything that varies.
        is_easy: whether doors and containers are open at the start.
    """

    def __init__(self, rng: np.random.Generator, *, is_easy: bool = False) -> None:
        self.lab, self._rng, self._is_easy = Lab(), rng, is_easy
        self.sequence: list[Goal] = []
        self.subgoals: list[Goal] = []
        self.texts: list[str] = []
        self.things: list[dict[str, Thing]] = []
        self._choices: list[int] = []
        self._free_colors = [str(color) for color in rng.permutation(COLORS)]
        self._letters = [str(letter) for letter in rng.permutation(list("ABCDEFGHJK"))]
        self._names: set[str] = set()
        self.lab.create(ThingType("inventory", holds="in", role="agent"), -1)
        self.rooms = {
            name: self.lab.create(ThingType(name, holds="in", role="room", is_portable=False), -1) for name in ROOMS
        }
        self.fixtures: dict[tuple[str, str], Thing] = {}
        for location, types in _FIXTURES.items():
            for thing_type in types:
                self.fixtures[location, thing_type.name] = self.add(thing_type, location)
        for name in ("toilet", "fountain"):
            self.add(WATER, next(entity for (_, label), entity in self.fixtures.items() if label == name))
        for pair in _DOORS.split(","):
            first, second = (self.rooms[name].number for name in pair.split("-"))
            self.lab.doors[min(first, second), max(first, second)] = is_easy
        for position in self.permute(len(_DECORATIONS))[:6]:
            self.add(_DECORATIONS[position], self.choose(ROOMS[:-1]))
        if is_easy:
            for entity in self.fixtures.values():
                entity.is_open = True

    def choose(self, options: Sequence[T]) -> T:
        """Draws one of several options."""
        position = int(self._rng.integers(len(options)))
        self._choices.append(position)
        return options[position]

    def permute(self, count: int) -> list[int]:
        """Draws an order of numbers."""
        order: list[int] = self._rng.permutation(count).tolist()
        self._choices += order
        return order

    def draw_color(self) -> str:
        """Draws a color that no other thing has."""
        return self._free_colors.pop()

    def draw_letter(self) -> str:
        """Draws a letter for an unknown thing."""
        return self._letters.pop()

    def add(self, thing_type: ThingType, target_number: str | Thing, *, temperature: float = 20.0) -> Thing:
        """Adds a thing to a room or to another thing."""
        self._names.add(thing_type.name)
        parent = self.rooms[target_number] if isinstance(target_number, str) else target_number
        return self.lab.create(thing_type, parent.number, temperature=temperature)

    def add_vessel(self, target_number: str | Thing, name: str = "", role: str = "") -> Thing:
        """Adds a vessel with a drawn name, which no other vessel has, or the given one."""
        free_names = [vessel for vessel in _VESSELS if vessel not in self._names]
        return self.add(_vessel(name or self.choose(free_names), role), target_number)

    def add_box(self, target_number: str) -> Thing:
        """Adds a box for an answer, in a color of its own."""
        return self.add(_vessel(f"{self.draw_color()} box"), target_number)

    def spot(self, location: str) -> Thing:
        """Draws a place in a room: its floor or a table there."""
        surfaces = [
            entity
            for (name, _), entity in self.fixtures.items()
            if name == location and entity.type.holds == "on" and not entity.type.is_switchable
        ]
        return self.choose([self.rooms[location], *surfaces])

    def break_one_of(self, options: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Marks as broken the fixtures of one drawn option."""
        for fixture in self.choose(options):
            self.fixtures[fixture].is_broken = True

    def visit(self, location: str) -> None:
        """Adds the subgoal of being in a room."""
        number = self.rooms[location].number
        self.subgoals.append(Goal(f"be in the {location}", lambda lab: lab.room == number))

    def focus_on(self, *entities: Thing) -> None:
        """Adds the goal of focusing on one of several things."""
        numbers = frozenset(entity.number for entity in entities)
        name = f"focus on the {entities[0].label}"
        self.sequence.append(Goal(name, lambda lab: False, lambda lab, number: number in numbers))

    def build(self, kind: str, busy_rooms: Sequence[str]) -> Scene:
        """Returns the finished task, which starts in a room where nothing of it is.

        Args:
            kind: the kind of the task.
            busy_rooms: where the agent does not start.
        """
        free_rooms = [name for name in ROOMS if name not in busy_rooms]
        self.lab.room = self.rooms[self.choose(free_rooms)].number
        text = (
            self.texts[0]
            if len(self.texts) == 1
            else " After that: ".join(["First: " + self.texts[0], *self.texts[1:]])
        )
        return Scene(
            self.lab,
            f"Your task: {text}",
            tuple(self.sequence),
            tuple(self.subgoals),
            tuple(self.things),
            f"{kind} {' '.join(map(str, self._choices))}",
            self._is_easy,
        )
