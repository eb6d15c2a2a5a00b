"""Shapes of recipe trees: the kinds of fresh crafting tasks, their tiers, and the book drawn for one task.

A shape says which recipe needs how many of what, without names. It is the kind of a task, written like `1+2(1+1)`: one
raw item and two of something made from two raw items. The names come from one pool by a permutation drawn for each
task, so a word tells nothing: the recipes must be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, count
from math import ceil
from random import Random
from types import MappingProxyType
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.panel import Candidate
from evolvent.worlds.recipes import Ingredient, Recipe, canonical_key

__all__ = ["LEVELS", "NAMES", "Level", "Shape", "Slot", "draw_book", "draw_tasks", "kinds_of", "shapes_of"]

NAMES: tuple[str, ...] = (
    "acorn",
    "amber",
    "apron",
    "badge",
    "banjo",
    "basil",
    "bench",
    "berry",
    "bonnet",
    "bugle",
    "candle",
    "canoe",
    "cedar",
    "chalk",
    "cider",
    "cloak",
    "clover",
    "cobalt",
    "comet",
    "copper",
    "coral",
    "crate",
    "dahlia",
    "daisy",
    "denim",
    "drum",
    "ebony",
    "fable",
    "fennel",
    "fern",
    "flint",
    "flute",
    "garnet",
    "ginger",
    "glove",
    "harp",
    "hazel",
    "helmet",
    "indigo",
    "ivory",
    "jacket",
    "jasmine",
    "kettle",
    "lantern",
    "lemon",
    "linen",
    "maple",
    "marble",
    "mitten",
    "nutmeg",
    "onyx",
    "opal",
    "paddle",
    "pebble",
    "quartz",
    "ribbon",
    "saddle",
    "thimble",
    "velvet",
    "walnut",
)
_PER_TIER = 60  # kinds of a tier
_PER_DEPTH = 400  # shapes of one depth
_PER_STEP = 60  # crafted slots, of the depth just below, that shapes are built from


@dataclass(frozen=True, slots=True)
class Level:
    """One rung of the ladder of difficulty.

    Args:
        depth: the deepest recipe tree that is trained on; tier `longer` is one deeper.
        slots: most ingredients of a recipe.
        made: most crafted ingredients of a recipe (2: trees that branch).
        most: largest count in a recipe.
        gives: most of the goal that its recipe gives.
        distractors: recipes shown that the goal does not need; each shares an ingredient with the goal's tree.
        shuffled: the recipes are shown in any order; else what is made comes before where it is used.
        surplus: recipes may give more or less than is needed at once.
        names: how many of the pool's names are used; fewer are learned sooner.
        crafts, raws: most crafts and most raw items of a tree of training depth; `longer` may have one more of each.
    """

    depth: int = 3
    slots: int = 2
    made: int = 1
    most: int = 2
    gives: int = 1
    distractors: int = 2
    shuffled: bool = True
    surplus: bool = False
    names: int = 24
    crafts: int = 3
    raws: int = 4

    def __post_init__(self) -> None:
        minimums = {"distractors": 0}
        problems = [
            Problem(field.name, f"got {getattr(self, field.name)}", f"give at least {minimums.get(field.name, 1)}")
            for field in fields(self)
            if field.type != "bool" and getattr(self, field.name) < minimums.get(field.name, 1)
        ]
        num_spare_names = min(self.names, len(NAMES)) - (self.raws + self.crafts + 2 + 2 * self.distractors)
        if self.most > 5 or self.gives > 5 or num_spare_names < 0:
            problems.append(Problem("level", f"too large: {self}", "counts up to 5, names for every item, at most 60"))
        if problems:
            raise ConfigError(problems)

    @property
    def horizon(self) -> int:
        """Returns the steps needed for the longest plan of `longer` and three mistakes."""
        return self.crafts + self.raws + 5


LEVELS: tuple[Level, ...] = (
    Level(depth=1, slots=3, most=3, gives=5, crafts=1, raws=3, names=16, shuffled=False),
    Level(depth=2, made=2, most=3, raws=3, names=16, shuffled=False),
    Level(depth=3),
    Level(depth=3, made=2, distractors=4, surplus=True, crafts=5, raws=5, names=60),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """`count` of a raw item (`shape` is None), or of an item whose recipe yields `yields` at a time."""

    count: int
    shape: Shape | None = None
    yields: int = 0

    def __str__(self) -> str:
        if self.shape is None:
            return str(self.count)
        return f"{self.count}{'' if self.yields == self.count else f'/{self.yields}'}({self.shape})"

    @property
    def part(self) -> str:
        """Returns the text of the slot without its subtree."""
        return str(self.count) if self.shape is None else f"{self.count}/{self.yields}m"


@dataclass(frozen=True, slots=True)
class Shape:
    """A recipe tree without names: the slots of the recipe at its root, in the order of their text, and its output
    count.

    `gives` applies to the goal's recipe alone; below it, the slot above states the output count.
    """

    slots: tuple[Slot, ...]
    gives: int = 1

    def __str__(self) -> str:
        return f"{'' if self.gives == 1 else f'{self.gives}='}{'+'.join(map(str, self.slots))}"

    @property
    def part(self) -> str:
        """Returns the text of the root's recipe without its subtrees."""
        return "+".join(sorted(slot.part for slot in self.slots))

    @property
    def children(self) -> tuple[tuple[Slot, Shape], ...]:
        return tuple((slot, slot.shape) for slot in self.slots if slot.shape is not None)

    @property
    def raws(self) -> int:
        """Returns the number of raw items of the tree."""
        return len(self.slots) - len(self.children) + sum(child.raws for _, child in self.children)

    @property
    def depth(self) -> int:
        """Returns how many crafts deep the tree is."""
        return 1 + max((child.depth for _, child in self.children), default=0)

    def crafts(self, times: int = 1) -> int:
        """Counts the crafts needed to use the recipe at the root `times` times."""
        return times + sum(child.crafts(ceil(slot.count * times / slot.yields)) for slot, child in self.children)

    def pairs(self) -> frozenset[str]:
        """Returns every recipe paired with a recipe of one of its ingredients; for a single recipe, every two of its
        counts.
        """
        if not self.children:
            return frozenset(
                f"{first}&{second}" for first, second in combinations([f"={self.gives}", *map(str, self.slots)], 2)
            )
        below = {pair for _, child in self.children if child.children for pair in child.pairs()}
        return frozenset(below | {f"{self.part}>{slot.part}>{child.part}" for slot, child in self.children})


def shapes_of(level: Level, depth: int) -> tuple[Shape, ...]:
    """Returns all shapes of exactly that depth (at most 400, chosen by hash where there are more), in hash order."""
    extra = max(0, depth - level.depth)
    raw = [Slot(n) for n in range(1, level.most + 1)]
    crafted_slots: list[Slot] = []
    shapes: tuple[Shape, ...] = ()
    for height in range(1, depth + 1):
        shallow_slots = list(crafted_slots)
        deep_slots = [
            Slot(n, shape, yields)
            for shape in shapes
            for n in range(1, level.most + 1)
            for yields in (range(1, level.most + 1) if level.surplus else (n,))
        ]
        deep_slots = sorted(deep_slots, key=lambda slot: sample_seed("slot", slot))[:_PER_STEP]
        crafted_slots += deep_slots
        shapes_by_text = {
            str(shape): shape
            for shape in _combine(raw, shallow_slots, deep_slots, level)
            if height == 1 or shape.children
            if shape.crafts() <= level.crafts + extra and shape.raws <= level.raws + extra
        }
        shapes = tuple(
            shapes_by_text[text] for text in sorted(shapes_by_text, key=lambda text: sample_seed("shape", text))
        )[:_PER_DEPTH]
    return tuple(replace(shape, gives=gives) for shape in shapes for gives in range(1, level.gives + 1))


def _combine(raw: list[Slot], low: list[Slot], high: list[Slot], level: Level) -> Iterator[Shape]:
    """Yields recipes with a slot of `high` (of `raw`, where `high` is empty) and any other slots."""
    other_slots = [*raw, *low, *high] if level.made > 1 else raw
    for first in high or raw:
        for size in range(level.slots):
            for remaining_slots in combinations_with_replacement(other_slots, size):
                if sum(slot.shape is not None for slot in (first, *remaining_slots)) <= level.made:
                    yield Shape(tuple(sorted((first, *remaining_slots), key=str)))


@lru_cache(maxsize=32)
def kinds_of(level: Level) -> Mapping[str, tuple[Shape, ...]]:
    """Returns the kinds of every tier that the level has, at most 60 each, in a fixed order.

    A third of the shapes is `seen` (half of those of depth 1, where there are deeper shapes). Of the others, a
    shape with at least two adjacent pairs, all of them in `seen` shapes, may be `combo`: `combo` and `evo` take
    these in turn. The rest is `evo`.
    """
    shallow = list(shapes_of(level, 1)) if level.depth > 1 else []
    deeper = [shape for depth in range(min(2, level.depth), level.depth + 1) for shape in shapes_of(level, depth)]
    deeper.sort(key=lambda shape: sample_seed("tier", shape))
    half = (len(shallow) + 1) // 2
    third = min(len(deeper) // 3, _PER_TIER - half)
    tiers = {"seen": shallow[:half] + deeper[:third], "evo": shallow[half:], "combo": []}
    trained = {pair for shape in tiers["seen"] for pair in shape.pairs()}
    for shape in deeper[third:]:
        pairs = shape.pairs()
        is_combo = len(pairs) > 1 and pairs <= trained and len(tiers["combo"]) <= len(tiers["evo"])
        tiers["combo" if is_combo else "evo"].append(shape)
    tiers["longer"] = list(shapes_of(level, level.depth + 1))
    return MappingProxyType({tier: tuple(shapes[:_PER_TIER]) for tier, shapes in tiers.items() if shapes})


def draw_book(shape: Shape, level: Level, rng: Random) -> tuple[list[Recipe], str]:
    """Draws a fresh book of a shape, with distractors among its recipes, and its goal."""
    names = iter(_shuffle(NAMES[: level.names], rng))
    goal = next(names)
    tree: list[Recipe] = []

    def build(output: str, gives: int, node: Shape) -> None:
        slots = [(slot, next(names)) for slot in node.slots]
        tree.append(Recipe(gives, output, tuple(_shuffle((Ingredient(slot.count, name) for slot, name in slots), rng))))
        for slot, name in slots:
            if slot.shape is not None:
                build(name, slot.yields, slot.shape)

    build(goal, shape.gives, shape)
    inputs = [slot.name for recipe in tree for slot in recipe.inputs]
    distractors = []
    for _ in range(level.distractors):
        ingredient_names = [inputs[_draw_below(len(inputs), rng)]]
        if level.slots > 1 and rng.random() < 0.5:
            second_name = inputs[_draw_below(len(inputs), rng)] if rng.random() < 0.5 else next(names)
            ingredient_names += [second_name] if second_name not in ingredient_names else []
        amounts = [Ingredient(1 + _draw_below(level.most, rng), name) for name in ingredient_names]
        distractors.append(Recipe(1 + _draw_below(level.most, rng), next(names), tuple(_shuffle(amounts, rng))))
    if level.shuffled:
        return _shuffle(tree + distractors, rng), goal
    lines = tree[::-1]
    for recipe in distractors:
        lines.insert(_draw_below(len(lines) + 1, rng), recipe)
    return lines, goal


def draw_tasks(level: Level, tier: str, shapes: Iterable[Shape], *, version: str) -> Iterator[Candidate]:
    """Yields endless candidates of a tier, its depths in turn and the kinds of a depth in turn; always the same
    ones.

    Every depth thus has an equal share of the candidates: shallow tasks teach the reading that deep tasks need.
    """
    depths: dict[int, list[tuple[Shape, str]]] = {}
    for shape in shapes:
        depths.setdefault(shape.depth, []).append((shape, str(shape)))
    for number in count():
        for kinds in depths.values():
            turn, index = divmod(number, len(kinds))
            shape, kind = kinds[index]
            recipes, goal = draw_book(shape, level, Random(sample_seed("crafting", version, level, kind, turn)))
            spec: dict[str, Json] = {"recipes": [str(recipe) for recipe in recipes], "goal": goal}
            yield Candidate(spec, kind, tier, canonical_key(recipes, goal))


def _draw_below(n: int, rng: Random) -> int:
    return int(rng.random() * n)


def _shuffle(values: Iterable[Any], rng: Random) -> list[Any]:
    """Returns the values in random order. Only `random()` is used: its stream is the same in every version of
    Python.
    """
    return [value for _, _, value in sorted((rng.random(), i, value) for i, value in enumerate(values))]
