"""The expert: a plan for each family of tasks, played in a lab of its own.

The plans search and measure as an agent has to: a heater is tried before it is known to be broken, temperatures, slides
and circuits are read before the answer. Where a text leaves several equal things, the expert answers the question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evolvent.errors import WorldError
from evolvent.worlds.science.catalogue import PAINT_MIXES, Substance
from evolvent.worlds.science.describe import index_phrases, name_terminal, refer
from evolvent.worlds.science.episode import play_action
from evolvent.worlds.science.families import Part
from evolvent.worlds.science.house import Scene
from evolvent.worlds.science.lab import Lab, Thing

__all__ = ["solve"]

_HEATERS = (("kitchen", "stove"), ("kitchen", "oven"), ("workshop", "hot plate"), ("foundry", "blast furnace"))
_COOLERS = (("kitchen", "fridge"), ("kitchen", "freezer"), ("workshop", "deep freezer"))
_MARGIN = 6.0  # degrees by which a heater or cooler must pass the wanted temperature
_MAX_WAITS = 40


def solve(scene: Scene, parts: Sequence[Part]) -> list[str]:
    """Returns actions that solve a task.

    Args:
        scene: the task.
        parts: its families, topics and rooms, in order.
    """
    worker = _Worker(scene)
    for part, entities in zip(parts, scene.things, strict=True):
        _PLANS[part.family](worker, part, {name: entity.number for name, entity in entities.items()})
    return worker.actions


class _Worker:
    """Plays actions in a copy of a task's lab and keeps them.

    Args:
        scene: the task.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self.lab = scene, scene.lab.copy()
        self.actions: list[str] = []
        self._rooms = {entity.label: entity.number for entity in self.lab.things if entity.type.role == "room"}

    def act(self, action: str, *numbers: int) -> None:
        """Plays an action, and answers the question that it may raise: with certain things, else the first choice."""
        play_action(self.scene, self.lab, action)
        self.actions.append(action)
        if self.lab.question:
            fits = [
                position
                for position, command in enumerate(self.lab.question)
                if (command.first, command.second)[: len(numbers)] == numbers
            ]
            self.act(str(fits[0] if fits else 0))

    def act_on(self, pattern: str, *numbers: int) -> None:
        """Plays an action with the names of things in place of braces."""
        index = index_phrases(self.lab.list_visible())
        names = (refer(self.lab, self.lab.things[number], index) for number in numbers)
        self.act(pattern.format(*names), *numbers)

    def thing(self, number: int) -> Thing:
        """Returns a thing."""
        return self.lab.things[number]

    def get_substance(self, number: int) -> Substance:
        """Returns the substance that a thing consists of."""
        substance = self.lab.things[number].type.substance
        if substance is None:
            raise WorldError("the expert looks for a substance", value=self.lab.things[number].label)
        return substance

    def find(self, location: str, name: str) -> int:
        """Returns the number of a fixture in a room."""
        contents = self.lab.things[self._rooms[location]].contents
        return next(number for number in contents if self.lab.things[number].type.name == name)

    def room_of(self, number: int) -> str:
        """Returns the name of the room that a thing is in."""
        return self.lab.things[self.lab.find_room(self.lab.things[number])].label

    def go(self, location: str) -> None:
        """Moves to a room by the shortest way and looks around there."""
        target = self._rooms[location]
        if self.lab.room == target:
            return
        if self.scene.can_teleport:
            self.act(f"teleport to {location}")
        else:
            for step in self._find_way(target):
                name = self.lab.things[step].label
                if not self.lab.doors[min(self.lab.room, step), max(self.lab.room, step)]:
                    self.act(f"open door to {name}")
                self.act(f"go to {name}")
        self.act("look around")

    def _find_way(self, target: int) -> list[int]:
        ways: dict[int, list[int]] = {self.lab.room: []}
        queue = [self.lab.room]
        for location in queue:
            for neighbor in self.lab.list_neighbors(location):
                if neighbor not in ways:
                    ways[neighbor] = [*ways[location], neighbor]
                    queue.append(neighbor)
        return ways[target]

    def take(self, number: int) -> None:
        """Picks a thing up if it is not carried yet."""
        if self.thing(number).parent != 0:
            self.act_on("pick up {}", number)

    def wait_until(self, is_done: Callable[[Lab], bool], watch: Callable[[], None] | None = None) -> None:
        """Waits until something has happened: long waits first, then closer looks."""
        for _ in range(_MAX_WAITS):
            if is_done(self.lab):
                return
            future = self.lab.copy()
            future.advance(10)
            if not is_done(future):
                self.act("wait")
            elif watch is not None:
                watch()
            else:
                self.act("wait1")


Numbers = Mapping[str, int]


def _heat(
    worker: _Worker, entities: Numbers, wanted: float, phase: int, watch: Callable[[], None] | None = None
) -> None:
    """Takes the vessel to heaters until one works, and waits for the state of matter."""
    worker.take(entities["vessel"])
    for location, name in _HEATERS:
        heater = worker.find(location, name)
        if (worker.thing(heater).type.source_temperature or 0.0) < wanted + _MARGIN:
            continue
        worker.go(location)
        if not worker.thing(heater).is_open:
            worker.act_on("open {}", heater)
        worker.act_on("move {} to {}", entities["vessel"], heater)
        if not worker.thing(heater).is_on:
            worker.act_on("activate {}", heater)
        if worker.thing(heater).is_on:
            break
        worker.take(entities["vessel"])
    target = entities["target"]
    look = watch or (lambda: worker.act_on("look at {}", target))
    worker.wait_until(lambda lab: lab.things[target].phase >= phase, look)


def _plan_heating(worker: _Worker, part: Part, entities: Numbers) -> None:
    substance = worker.get_substance(entities["target"])
    worker.go(part.room)
    worker.act_on("focus on {}", entities["target"])
    phase = 2 if part.family == "boil" else 1
    _heat(worker, entities, substance.boiling_point if phase == 2 else substance.melting_point, phase)


def _plan_freezing(worker: _Worker, part: Part, entities: Numbers) -> None:
    target = entities["target"]
    substance = worker.get_substance(target)
    worker.go(part.room)
    worker.act_on("focus on {}", target)
    worker.take(entities["vessel"])
    for location, name in _COOLERS:
        cooler = worker.find(location, name)
        if (worker.thing(cooler).type.source_temperature or 0.0) <= substance.melting_point - _MARGIN:
            worker.go(location)
            if not worker.thing(cooler).is_open:
                worker.act_on("open {}", cooler)
            worker.act_on("move {} to {}", entities["vessel"], cooler)
            worker.act_on("close {}", cooler)
            break
    worker.wait_until(lambda lab: lab.things[target].phase == 0)


def _fetch_thermometer(worker: _Worker, thermometer: int) -> None:
    if worker.thing(thermometer).parent != 0:
        worker.go("kitchen")
        worker.take(thermometer)
    worker.act_on("focus on {}", thermometer)


def _plan_thermometer(worker: _Worker, part: Part, entities: Numbers) -> None:
    target = entities["target"]
    _fetch_thermometer(worker, entities["thermometer"])
    worker.go(part.room)
    worker.act_on("focus on {}", target)
    worker.act_on("use {} on {}", entities["thermometer"], target)
    right_box = next(box for box in ("above", "below") if _would_finish(worker, target, entities[box]))
    worker.take(target)
    worker.go(worker.room_of(entities[right_box]))
    worker.act_on("move {} to {}", target, entities[right_box])


def _would_finish(worker: _Worker, target: int, box: int) -> bool:
    """Returns whether a box is the right one for the temperature that was measured."""
    lab = worker.lab.copy()
    lab.move(lab.things[target], box)
    return worker.scene.sequence[worker.lab.step_number].is_reached(lab)


def _plan_measurement(worker: _Worker, part: Part, entities: Numbers) -> None:
    target = entities["target"]
    substance = worker.get_substance(target)
    _fetch_thermometer(worker, entities["thermometer"])
    worker.go(part.room)
    worker.act_on("focus on {}", target)

    def measure() -> None:
        worker.act_on("use {} on {}", entities["thermometer"], target)

    measure()
    _heat(worker, entities, substance.melting_point, 1, measure)
    measure()
    worker.go(worker.room_of(entities["answer"]))
    worker.act_on("focus on {}", entities["answer"])


def _connect(worker: _Worker, first: int, first_terminal: int, second: int, second_terminal: int) -> None:
    names = [name_terminal(worker.thing(first), first_terminal), name_terminal(worker.thing(second), second_terminal)]
    worker.act_on(f"connect {{}} {names[0]} to {{}} {names[1]}", first, second)


def _plan_power(worker: _Worker, part: Part, entities: Numbers) -> None:
    component, source = entities["component"], entities["source"]
    worker.go(part.room)
    worker.act_on("focus on {}", component)
    worker.take(component)
    worker.go(worker.room_of(entities["wire 0"]))
    if worker.room_of(source) != worker.room_of(entities["wire 0"]):
        worker.take(entities["wire 0"])
        worker.take(entities["wire 1"])
        worker.go(worker.room_of(source))
    _connect(worker, source, 0, entities["wire 0"], 0)
    _connect(worker, entities["wire 0"], 1, component, 1)
    _connect(worker, source, 1, entities["wire 1"], 0)
    _connect(worker, entities["wire 1"], 1, component, 0)
    if worker.thing(source).type.is_switchable:
        worker.act_on("activate {}", source)


def _plan_conductivity(worker: _Worker, part: Part, entities: Numbers) -> None:
    target, lamp, source = entities["target"], entities["lamp"], entities["source"]
    worker.go(part.room)
    worker.act_on("focus on {}", target)
    worker.take(target)
    worker.go(worker.room_of(lamp))
    _connect(worker, source, 0, entities["wire 0"], 0)
    _connect(worker, entities["wire 0"], 1, lamp, 1)
    _connect(worker, lamp, 0, entities["wire 1"], 0)
    _connect(worker, entities["wire 1"], 1, target, 0)
    _connect(worker, target, 1, entities["wire 2"], 0)
    _connect(worker, entities["wire 2"], 1, source, 1)
    worker.act_on("look at {}", lamp)
    worker.act_on("move {} to {}", target, entities["yes" if worker.thing(lamp).is_on else "no"])


def _plan_find(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(part.room)
    worker.act_on("focus on {}", entities["target"])
    worker.take(entities["target"])
    worker.go(worker.room_of(entities["box"]))
    worker.act_on("move {} to {}", entities["target"], entities["box"])


def _plan_growing(worker: _Worker, part: Part, entities: Numbers) -> None:
    seed, jug = entities["seed"], entities["jug"]
    worker.go(part.room)
    worker.act_on("focus on {}", seed)
    worker.take(entities["jar"])
    worker.go("greenhouse")
    pot = next(
        entities[name]
        for name in ("pot", "other pot")
        if worker.lab.holds(worker.thing(entities[name]), "soil") is not None
    )
    worker.act_on("move {} to {}", seed, pot)
    sink = worker.find("greenhouse", "sink")
    worker.act_on("move {} to {}", jug, sink)
    if not worker.thing(sink).is_on:
        worker.act_on("activate {}", sink)
    for stage in (1, 2, 3):
        worker.act_on("pour {} into {}", jug, pot)
        for _ in range(_MAX_WAITS):
            if worker.thing(seed).phase >= stage:
                break
            worker.act_on("look at {}", pot)


def _plan_mixing(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(worker.room_of(entities["recipe"]))
    worker.act_on("read {}", entities["recipe"])
    worker.go(worker.room_of(entities["vessel 0"]))
    worker.take(entities["vessel 0"])
    worker.go(part.room)
    bowl = entities["vessel 1"]
    worker.act_on("pour {} into {}", entities["vessel 0"], bowl)
    if "vessel 2" in entities:
        worker.act_on("pour {} into {}", entities["vessel 2"], bowl)
    worker.act_on("mix {}", bowl)
    worker.act_on("focus on {}", worker.thing(bowl).contents[0])


def _plan_paint(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(part.room)
    bowl = entities["bowl"]
    middle = next((paint for paint in PAINT_MIXES[part.topic] if paint in PAINT_MIXES), None)
    for product in filter(None, (middle, part.topic)):
        for paint in PAINT_MIXES[product]:
            if paint != middle:
                worker.act_on(f"pour wood cup containing {paint} into {{}}", bowl)
        worker.act_on("mix {}", bowl)
        worker.act_on("focus on {}", worker.thing(bowl).contents[0])


def _plan_life_span(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(part.room)
    question = part.topic.partition(" of group ")[0]
    for name in ("longest", "shortest"):
        if name in question:
            worker.act_on("focus on {}", entities[name])


def _plan_stages(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(part.room)
    for number in entities.values():
        worker.act_on("focus on {}", number)


def _plan_plane(worker: _Worker, part: Part, entities: Numbers) -> None:
    worker.go(part.room)
    block, stopwatch = entities["block"], entities["stopwatch"]
    for plane in (entities["plane 0"], entities["plane 1"]):
        worker.act_on("activate {}", stopwatch)
        worker.act_on("move {} to {}", block, plane)
        for _ in range(_MAX_WAITS):
            if worker.thing(block).progress >= 100.0:
                break
            worker.act_on("look at {}", block)
        worker.act_on("deactivate {}", stopwatch)
        worker.act_on("look at {}", stopwatch)
    worker.act_on("focus on {}", entities["answer"])


_PLANS: Mapping[str, Callable[[_Worker, Part, Numbers], None]] = {
    "boil": _plan_heating,
    "melt": _plan_heating,
    "freeze": _plan_freezing,
    "use thermometer": _plan_thermometer,
    "melting point": _plan_measurement,
    "unknown melting point": _plan_measurement,
    "power component": _plan_power,
    "test conductivity": _plan_conductivity,
    "test conductivity of unknown": _plan_conductivity,
    "find": _plan_find,
    "grow plant": _plan_growing,
    "mix chemicals": _plan_mixing,
    "mix paint": _plan_paint,
    "life span": _plan_life_span,
    "life stages": _plan_stages,
    "inclined plane": _plan_plane,
}
