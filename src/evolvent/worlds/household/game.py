"""A household game: what stands where, what can be done with it, and what is to be achieved.

A `Layout` holds the facts of a game under the ids of its file; a `Game` is the same with everything numbered, named and
looked up once. Names are those of ALFWorld: the ids are sorted, and each type is numbered from its highest number down,
so that of three mugs the one with the smallest id is `mug 3`. Ids stay as game files write them
(`mug_bar__plus_01_dot_30`), since their order counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = [
    "FAMILIES",
    "FLAGS",
    "TREATED_AT",
    "Family",
    "Game",
    "Goal",
    "Layout",
    "State",
    "bits",
    "names_of_ids",
]

FLAGS = ("hot", "cool", "clean", "toggled", "sliced")
"""What may become true of an object; each is a set of objects in a `State`."""
TREATED_AT = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The type of receptacle at which an object is cleaned, heated or cooled."""


@dataclass(frozen=True, slots=True)
class Family:
    """One of ALFWorld's six families of tasks.

    Args:
        name: ours, one word.
        task_type: ALFWorld's name.
        wordings: the two ways to say the task; `{obj}` and `{recep}` are types in lower case.
        flag: what the object must be ("clean", "hot" or "cool"), or "".
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

    def say(self, wording: int = 0) -> str:
        """The task in words, in one of its two wordings."""
        return FAMILIES[self.family].wordings[wording].format(obj=self.object, recep=self.target)


class State(NamedTuple):
    """Everything that changes in an episode. Sets of objects are bit masks over their numbers.

    Args:
        at: the agent's place.
        held: the object in its hand, -1 for none.
        opened: the receptacles that stand open, as a bit mask.
        contents: what is in each receptacle.
        lying: what is at each place.
        hot, cool, clean, toggled, sliced: which objects are.
        parted: (object, receptacle) pairs that were parted and not joined again; kept only where receptacles share a
            place, because only there can it be seen (`look`).
    """

    at: int
    held: int
    opened: int
    contents: tuple[int, ...]
    lying: tuple[int, ...]
    hot: int = 0
    cool: int = 0
    clean: int = 0
    toggled: int = 0
    sliced: int = 0
    parted: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Layout:
    """The facts of a game by ids, in lower case, as a game file states them.

    Args:
        receptacles, objects: id -> type.
        stands: receptacle -> place.
        lies: (object, place).
        inside: (object, receptacle).
        within: (object, object that it is in).
        openable, opened: receptacles.
        properties: a property ("pickupable", "heatable", ..., or a flag) -> objects.
        holds: (type of receptacle, type of object) that may be put in it.
        start: the agent's place.
    """

    receptacles: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    stands: dict[str, str] = field(default_factory=dict)
    lies: list[tuple[str, str]] = field(default_factory=list)
    inside: list[tuple[str, str]] = field(default_factory=list)
    within: list[tuple[str, str]] = field(default_factory=list)
    openable: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    properties: dict[str, set[str]] = field(default_factory=dict)
    holds: set[tuple[str, str]] = field(default_factory=set)
    start: str = ""


def bits(mask: int) -> Iterator[int]:
    """The numbers in a bit mask, smallest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def names_of_ids(ids: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names: the type, which is the id up to its first bar (and `basin` if it holds that), and a number.

    The ids are sorted and every type is numbered from its highest number down; an id without a bar keeps its text.
    """
    kinds = [(one, *one.partition("_bar_")[:2]) for one in sorted(set(ids))]
    types = {one: kind + "basin" if "basin" in one else kind for one, kind, bar in kinds if bar}
    left = Counter(types.values())
    names = {one: one for one, _, bar in kinds if not bar}
    for one, kind in types.items():
        names[one] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


class Game:
    """A layout with its goal, numbered and named.

    Receptacles, objects and places are known by their number in the order of their ids, which is the order in which
    ALFWorld lists them.

    Args:
        layout: the facts; not changed and not kept.
        goal: what is to be achieved.
        task: the sentence that says so, without its full stop.

    Raises:
        ConfigError: a fact about an id that the layout does not declare.
    """

    def __init__(self, layout: Layout, goal: Goal, task: str) -> None:
        self.goal, self.task = goal, task
        self.ids = tuple(sorted(layout.receptacles))
        self.object_ids = tuple(sorted(layout.objects))
        self.place_ids = tuple(sorted({layout.start, *layout.stands.values(), *(place for _, place in layout.lies)}))
        number = {one: i for ids in (self.ids, self.object_ids, self.place_ids) for i, one in enumerate(ids)}
        names = names_of_ids((*self.ids, *self.object_ids, *self.place_ids))
        self.names = tuple(names[one] for one in self.ids)
        self.object_names = tuple(names[one] for one in self.object_ids)
        self.place_names = tuple(names[one] for one in self.place_ids)
        self.types = tuple(layout.receptacles[one] for one in self.ids)
        self.object_types = tuple(layout.objects[one] for one in self.object_ids)
        self.holds = frozenset(layout.holds)
        try:
            self.place = tuple(number[layout.stands[one]] if one in layout.stands else -1 for one in self.ids)
            self.openable = _mask(number[one] for one in layout.openable)
            self._given = {name: _mask(number[one] for one in of) for name, of in layout.properties.items()}
            self.within = {
                number[outer]: _mask(number[one] for one, other in layout.within if other == outer)
                for _, outer in layout.within
            }
            self.start = self._start(layout, number)
        except KeyError as error:
            raise ConfigError("a fact about something that is not there", value=error.args[0]) from error
        self.here = tuple(
            tuple(r for r, stands in enumerate(self.place) if stands == place) for place in range(len(self.place_ids))
        )
        self.shared = any(len(receptacles) > 1 for receptacles in self.here)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.object_number = {name: i for i, name in enumerate(self.object_names)}

    def _start(self, layout: Layout, number: Mapping[str, int]) -> State:
        contents, lying = [0] * len(self.ids), [0] * len(self.place_ids)
        for one, receptacle in layout.inside:
            contents[number[receptacle]] |= 1 << number[one]
        for one, place in layout.lies:
            lying[number[place]] |= 1 << number[one]
        opened = _mask(number[one] for one in layout.opened)
        hot, cool, clean, toggled, sliced = map(self.having, FLAGS)
        return State(
            number[layout.start],
            -1,
            opened,
            tuple(contents),
            tuple(lying),
            hot=hot,
            cool=cool,
            clean=clean,
            toggled=toggled,
            sliced=sliced,
        )

    def having(self, name: str) -> int:
        """The objects with a property ("pickupable", "cleanable", ...) or, at the start, a flag."""
        return self._given.get(name, 0)

    @cached_property
    def of_type(self) -> Mapping[str, int]:
        """Type of object -> the objects of it."""
        found: dict[str, int] = {}
        for i, kind in enumerate(self.object_types):
            found[kind] = found.get(kind, 0) | 1 << i
        return found

    @cached_property
    def fits(self) -> tuple[int, ...]:
        """For each receptacle the objects that may be put in it."""
        masks = {
            kind: _mask(i for i, other in enumerate(self.object_types) if (kind, other) in self.holds)
            for kind in set(self.types)
        }
        return tuple(masks[kind] for kind in self.types)

    @cached_property
    def properties(self) -> tuple[int, int, int]:
        """The objects that may be taken, used and sliced."""
        return self.having("pickupable"), self.having("toggleable"), self.having("sliceable")

    @cached_property
    def sharp(self) -> int:
        """The objects that slice."""
        return self.of_type.get("knife", 0) | self.of_type.get("butterknife", 0)

    @cached_property
    def treats(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """For each receptacle what can be done there to what is held: (verb, the objects that allow it)."""
        ways = {where: (verb, self.having(f"{verb}able")) for verb, where in TREATED_AT.items()}
        return tuple((ways[kind],) if kind in ways else () for kind in self.types)

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """The receptacles of the goal's type (`look`: none)."""
        return tuple(r for r, kind in enumerate(self.types) if kind == self.goal.target)

    @cached_property
    def wanted(self) -> int:
        """The objects of the goal's type that its family can be done with (`clean` needs one that allows it, ...)."""
        mask = self.of_type.get(self.goal.object, 0)
        return mask & self.having(f"{self.goal.family}able") if self.goal.family in TREATED_AT else mask

    @cached_property
    def lights(self) -> int:
        """`look`: the lights of the goal's type that can be switched on."""
        return self.of_type.get(self.goal.target, 0) & self.having("toggleable")

    def listed(self, mask: int) -> Sequence[str]:
        """The names of the objects in a mask, in the order in which they are listed."""
        return [self.object_names[i] for i in bits(mask)]


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
