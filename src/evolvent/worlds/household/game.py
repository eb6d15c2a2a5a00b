"""A household game: the receptacles and objects, their properties, and the goal.

A `Layout` holds the facts of a game under the ids of its file; a `Game` is the same with everything numbered,
named and looked up once. Names are those of ALFWorld: the ids are sorted, and each type is numbered from its
highest number down, so that of three mugs the one with the smallest id is `mug 3`. Ids stay as game files write
them (`mug_bar__plus_01_dot_30`), since their order counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = [
    "APPLIANCE_OF_TREATMENT",
    "FAMILIES",
    "FLAGS",
    "Family",
    "Game",
    "Goal",
    "Layout",
    "State",
    "iterate_bits",
    "names_of_ids",
]

FLAGS = ("hot", "cool", "clean", "toggled", "sliced")
"""What may become true of an object; each is a set of objects in a `State`."""
APPLIANCE_OF_TREATMENT = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The type of receptacle at which an object is cleaned, heated or cooled."""


@dataclass(frozen=True, slots=True)
class Family:
    """One of ALFWorld's six families of tasks.

    Args:
        name: our name, one word.
        task_type: ALFWorld's name.
        wordings: the two sentences of the task; `{obj}` and `{recep}` are types in lower case.
        flag: the required flag of the object ("clean", "hot" or "cool"), or "".
    """

    name: str
    task_type: str
    wordings: tuple[str, str]
    flag: str = ""


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("put", "pick_and_place_simple", ("put a {obj} in {recep}", "put some {obj} on {recep}")),
        Family(
            "look", "look_at_obj_in_light", ("look at {obj} under the {recep}", "examine the {obj} with the {recep}")
        ),
        Family(
            "clean",
            "pick_clean_then_place_in_recep",
            ("put a clean {obj} in {recep}", "clean some {obj} and put it in {recep}"),
            "clean",
        ),
        Family(
            "heat",
            "pick_heat_then_place_in_recep",
            ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
            "hot",
        ),
        Family(
            "cool",
            "pick_cool_then_place_in_recep",
            ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
            "cool",
        ),
        Family("two", "pick_two_obj_and_place", ("put two {obj} in {recep}", "find two {obj} and put them in {recep}")),
    )
}
"""The six families by our name."""


class Goal(NamedTuple):
    """A family, the type of the object, and the type of the receptacle (`look`: of the light), in lower case."""

    family: str
    object: str
    target: str

    def describe(self, wording: int = 0) -> str:
        """Describes the task in one of its two wordings."""
        return FAMILIES[self.family].wordings[wording].format(obj=self.object, recep=self.target)


class State(NamedTuple):
    """The changing state of an episode. Sets of objects are bit masks over their numbers.

    Args:
        agent_place: the agent's place.
        held_object: the object in its hand, -1 for none.
        opened: bit mask of the open receptacles.
        contents: the objects in each receptacle.
        objects_at_places: the objects at each place.
        hot, cool, clean, toggled, sliced: the objects with this flag.
        separated_pairs: (object, receptacle) pairs that were separated and not joined again; kept only where
            receptacles share a place, because only there `look` shows it.
    """

    agent_place: int
    held_object: int
    opened: int
    contents: tuple[int, ...]
    objects_at_places: tuple[int, ...]
    hot: int = 0
    cool: int = 0
    clean: int = 0
    toggled: int = 0
    sliced: int = 0
    separated_pairs: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Layout:
    """The facts of a game by ids, in lower case, as a game file states them.

    Args:
        receptacles, objects: id -> type.
        place_of_receptacle: receptacle -> place.
        object_places: (object, place) pairs.
        object_receptacles: (object, receptacle) pairs.
        object_containers: (object, object that contains it) pairs.
        openable, opened: receptacles.
        properties: a property ("pickupable", "heatable", ..., or a flag) -> objects.
        allowed_contents: (type of receptacle, type of object) pairs: the object may be put in the receptacle.
        start: the agent's place.
    """

    receptacles: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    place_of_receptacle: dict[str, str] = field(default_factory=dict)
    object_places: list[tuple[str, str]] = field(default_factory=list)
    object_receptacles: list[tuple[str, str]] = field(default_factory=list)
    object_containers: list[tuple[str, str]] = field(default_factory=list)
    openable: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    properties: dict[str, set[str]] = field(default_factory=dict)
    allowed_contents: set[tuple[str, str]] = field(default_factory=set)
    start: str = ""


def iterate_bits(mask: int) -> Iterator[int]:
    """Yields the numbers in a bit mask, smallest first."""
    while mask:
        lowest_bit = mask & -mask
        yield lowest_bit.bit_length() - 1
        mask ^= lowest_bit


def names_of_ids(ids: Iterable[str]) -> dict[str, str]:
    """Returns ALFWorld's names: the type (the id up to its first bar, with `basin` where the id holds that) and a
    number.

    The ids are sorted and every type is numbered from its highest number down; an id without a bar keeps its text.
    """
    kinds = [(id_, *id_.partition("_bar_")[:2]) for id_ in sorted(set(ids))]
    types = {id_: kind + "basin" if "basin" in id_ else kind for id_, kind, separator in kinds if separator}
    next_numbers = Counter(types.values())
    names = {id_: id_ for id_, _, separator in kinds if not separator}
    for id_, kind in types.items():
        names[id_] = f"{kind} {next_numbers[kind]}"
        next_numbers[kind] -= 1
    return names


class Game:
    """A layout with its goal, numbered and named.

    Receptacles, objects and places are known by their number in the order of their ids, which is the order in which
    ALFWorld lists them.

    Args:
        layout: the facts; neither changed nor kept.
        goal: the goal.
        task: the sentence that states the goal, without its full stop.

    Raises:
        ConfigError: a fact mentions an id that the layout does not declare.
    """

    def __init__(self, layout: Layout, goal: Goal, task: str) -> None:
        self.goal, self.task = goal, task
        self.ids = tuple(sorted(layout.receptacles))
        self.object_ids = tuple(sorted(layout.objects))
        self.place_ids = tuple(
            sorted(
                {
                    layout.start,
                    *layout.place_of_receptacle.values(),
                    *(location for _, location in layout.object_places),
                }
            )
        )
        number = {id_: i for ids in (self.ids, self.object_ids, self.place_ids) for i, id_ in enumerate(ids)}
        names = names_of_ids((*self.ids, *self.object_ids, *self.place_ids))
        self.names = tuple(names[id_] for id_ in self.ids)
        self.object_names = tuple(names[id_] for id_ in self.object_ids)
        self.place_names = tuple(names[id_] for id_ in self.place_ids)
        self.types = tuple(layout.receptacles[id_] for id_ in self.ids)
        self.object_types = tuple(layout.objects[id_] for id_ in self.object_ids)
        self.holds = frozenset(layout.allowed_contents)
        try:
            self.place = tuple(
                number[layout.place_of_receptacle[id_]] if id_ in layout.place_of_receptacle else -1 for id_ in self.ids
            )
            self.openable = _mask(number[id_] for id_ in layout.openable)
            self._given = {name: _mask(number[id_] for id_ in holders) for name, holders in layout.properties.items()}
            self.within = {
                number[outer]: _mask(number[id_] for id_, container in layout.object_containers if container == outer)
                for _, outer in layout.object_containers
            }
            self.start = self._build_start(layout, number)
        except KeyError as error:
            raise ConfigError("a fact names an unknown object", value=error.args[0]) from error
        self.here = tuple(
            tuple(receptacle for receptacle, receptacle_place in enumerate(self.place) if receptacle_place == location)
            for location in range(len(self.place_ids))
        )
        self.shared = any(len(receptacles) > 1 for receptacles in self.here)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.object_number = {name: i for i, name in enumerate(self.object_names)}

    def _build_start(self, layout: Layout, number: Mapping[str, int]) -> State:
        contents, objects_at_places = [0] * len(self.ids), [0] * len(self.place_ids)
        for id_, receptacle in layout.object_receptacles:
            contents[number[receptacle]] |= 1 << number[id_]
        for id_, place_id in layout.object_places:
            objects_at_places[number[place_id]] |= 1 << number[id_]
        opened = _mask(number[id_] for id_ in layout.opened)
        hot, cool, clean, toggled, sliced = map(self.objects_with, FLAGS)
        return State(
            number[layout.start],
            -1,
            opened,
            tuple(contents),
            tuple(objects_at_places),
            hot=hot,
            cool=cool,
            clean=clean,
            toggled=toggled,
            sliced=sliced,
        )

    def objects_with(self, name: str) -> int:
        """Returns the objects with a property ("pickupable", "cleanable", ...) or, at the start, a flag."""
        return self._given.get(name, 0)

    @cached_property
    def objects_by_type(self) -> Mapping[str, int]:
        """Returns the objects of each type."""
        masks: dict[str, int] = {}
        for i, kind in enumerate(self.object_types):
            masks[kind] = masks.get(kind, 0) | 1 << i
        return masks

    @cached_property
    def accepted_objects(self) -> tuple[int, ...]:
        """Returns the objects that may be put in each receptacle."""
        masks = {
            kind: _mask(i for i, object_type in enumerate(self.object_types) if (kind, object_type) in self.holds)
            for kind in set(self.types)
        }
        return tuple(masks[kind] for kind in self.types)

    @cached_property
    def ability_masks(self) -> tuple[int, int, int]:
        """Returns the objects that may be taken, used and sliced."""
        return self.objects_with("pickupable"), self.objects_with("toggleable"), self.objects_with("sliceable")

    @cached_property
    def sharp_objects(self) -> int:
        """Returns the objects that slice."""
        return self.objects_by_type.get("knife", 0) | self.objects_by_type.get("butterknife", 0)

    @cached_property
    def treatments(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Returns the treatments of the held object at each receptacle: (verb, the objects that allow it)."""
        treatment_by_appliance = {
            appliance: (verb, self.objects_with(f"{verb}able")) for verb, appliance in APPLIANCE_OF_TREATMENT.items()
        }
        return tuple((treatment_by_appliance[kind],) if kind in treatment_by_appliance else () for kind in self.types)

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """Returns the receptacles of the goal's type (`look`: none)."""
        return tuple(r for r, kind in enumerate(self.types) if kind == self.goal.target)

    @cached_property
    def goal_objects(self) -> int:
        """Returns the objects of the goal's type that its family can treat (`clean` needs a cleanable one, ...)."""
        mask = self.objects_by_type.get(self.goal.object, 0)
        return (
            mask & self.objects_with(f"{self.goal.family}able") if self.goal.family in APPLIANCE_OF_TREATMENT else mask
        )

    @cached_property
    def lights(self) -> int:
        """Returns, for `look`, the lights of the goal's type that can be switched on."""
        return self.objects_by_type.get(self.goal.target, 0) & self.objects_with("toggleable")

    def names_in(self, mask: int) -> Sequence[str]:
        """Returns the names of the objects in a mask, in listing order."""
        return [self.object_names[i] for i in iterate_bits(mask)]


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
