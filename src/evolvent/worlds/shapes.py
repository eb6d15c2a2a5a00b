"""Shapes of recipe trees: the kinds of fresh crafting tasks, their tiers, and the fresh book drawn for one task.

A shape says which recipe needs how many of what, without names. It is the kind of a task, written like `1+2(1+1)`: one
raw item and two of something made from two raw items. The names come from one pool by a permutation drawn for each
task, so a word tells nothing: the recipes must be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import combinations_with_replacement, count
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import sample_seed
from evolvent.worlds.panel import Candidate
from evolvent.worlds.recipes import Ingredient, Recipe, canonical_key

__all__ = ["LEVELS", "NAMES", "Level", "Shape", "Slot", "draw_book", "draw_tasks", "kinds_of", "shapes_of"]

NAMES: tuple[str, ...] = (
    "acorn", "amber", "apron", "badge", "banjo", "basil", "bench", "berry", "bonnet", "bugle",
    "candle", "canoe", "cedar", "chalk", "cider", "cloak", "clover", "cobalt", "comet", "copper",
    "coral", "crate", "dahlia", "daisy", "denim", "drum", "ebony", "fable", "fennel", "fern",
    "flint", "flute", "garnet", "ginger", "glove", "harp", "hazel", "helmet", "indigo", "ivory",
    "jacket", "jasmine", "kettle", "lantern", "lemon", "linen", "maple", "marble", "mitten", "nutmeg",
    "onyx", "opal", "paddle", "pebble", "quartz", "ribbon", "saddle", "thimble", "velvet", "walnut",
)  # fmt: skip
_PER_TIER = 60  # kinds of a tier
_PER_DEPTH = 200  # shapes of one depth
_PER_STEP = 60  # crafted slots, of the depth just below, that shapes are built from


@dataclass(frozen=True, slots=True)
class Level:
    """One rung of the ladder of difficulty.

    Args:
        depth: the deepest recipe tree that is trained on; tier `longer` is one deeper.
        slots: most ingredients of a recipe.
        made: most crafted ingredients of a recipe (2: trees that branch).
        most: largest count in a recipe.
        distractors: recipes shown that the goal does not need; each shares an ingredient with the goal's tree.
        surplus: recipes may give more or less than is needed at once.
        recipes, raws: most recipes and most raw items of a tree of training depth; `longer` may have one more of each.
    """

    depth: int = 3
    slots: int = 2
    made: int = 1
    most: int = 2
    distractors: int = 2
    surplus: bool = False
    recipes: int = 3
    raws: int = 4

    def __post_init__(self) -> None:
        least = {"distractors": 0}
        problems = [
            Problem(field.name, f"a level with {getattr(self, field.name)}", f"give at least {least.get(field.name, 1)}")
            for field in fields(self)
            if field.name != "surplus" and getattr(self, field.name) < least.get(field.name, 1)
        ]
        if self.most > 3 or self.raws + 2 * self.distractors + self.recipes > len(NAMES) - 10:
            problems.append(Problem("level", f"too large: {self}", "counts up to 3 and at most 50 names"))
        if problems:
            raise ConfigError(problems)


LEVELS: tuple[Level, ...] = (
    Level(depth=1, most=3, recipes=1),
    Level(depth=2, made=2),
    Level(depth=3),
    Level(depth=3, made=2, distractors=4, surplus=True, recipes=4, raws=5),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """`count` of a raw item (`made` is None), or of an item whose recipe gives `yields` at a time."""

    count: int
    made: Shape | None = None
    yields: int = 0

    def __str__(self) -> str:
        if self.made is None:
            return str(self.count)
        return f"{self.count}{'' if self.yields == self.count else f'/{self.yields}'}({self.made})"

    @property
    def part(self) -> str:
        """The slot without what is below it."""
        return str(self.count) if self.made is None else f"{self.count}/{self.yields}m"


@dataclass(frozen=True, slots=True)
class Shape:
    """A recipe tree without names: the slots of the recipe at its root, in the order of their text."""

    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.slots))

    @property
    def part(self) -> str:
        """The recipe at the root, without what is below it."""
        return "+".join(sorted(slot.part for slot in self.slots))

    @property
    def children(self) -> tuple[tuple[Slot, Shape], ...]:
        return tuple((slot, slot.made) for slot in self.slots if slot.made is not None)

    @property
    def recipes(self) -> int:
        return 1 + sum(child.recipes for _, child in self.children)

    @property
    def raws(self) -> int:
        return len(self.slots) - len(self.children) + sum(child.raws for _, child in self.children)

    def pairs(self) -> frozenset[str]:
        """Every recipe together with one that makes an ingredient of it."""
        below = {pair for _, child in self.children for pair in child.pairs()}
        return frozenset(below | {f"{self.part}>{slot.part}>{child.part}" for slot, child in self.children})


def shapes_of(level: Level, depth: int) -> tuple[Shape, ...]:
    """All shapes of exactly that depth (at most 200, chosen by hash where there are more), in hash order."""
    extra = max(0, depth - level.depth)
    raw = [Slot(n) for n in range(1, level.most + 1)]
    made: list[Slot] = []
    last: tuple[Shape, ...] = ()
    for height in range(1, depth + 1):
        low = list(made)
        high = [
            Slot(n, shape, yields)
            for shape in last
            for n in range(1, level.most + 1)
            for yields in (range(1, level.most + 1) if level.surplus else (n,))
        ]
        high = sorted(high, key=lambda slot: sample_seed("slot", slot))[:_PER_STEP]
        made += high
        found = {
            str(shape): shape
            for shape in _combine(raw, low, high, level) if height == 1 or shape.children
            if shape.recipes <= level.recipes + extra and shape.raws <= level.raws + extra
        }  # fmt: skip
        last = tuple(found[text] for text in sorted(found, key=lambda text: sample_seed("shape", text)))[:_PER_DEPTH]
    return last


def _combine(raw: list[Slot], low: list[Slot], high: list[Slot], level: Level) -> Iterator[Shape]:
    """Recipes with at least one slot of `high` (or none, where `high` is empty) and the rest from below."""
    for first in high or [None]:
        taken = [first] if first else []
        for size in range(0 if first else 1, level.slots + 1 - len(taken)):
            for rest in combinations_with_replacement(raw + (low + high if first else []), size):
                slots = taken + list(rest)
                if sum(slot.made is not None for slot in slots) <= level.made:
                    yield Shape(tuple(sorted(slots, key=str)))


def kinds_of(level: Level) -> Mapping[str, tuple[Shape, ...]]:
    """The kinds of every tier that the level has, at most 60 each, in a fixed order.

    A third of the trained depths' shapes, and all of depth 1, are `seen`. Of the others, a shape with at least two adjacent
    pairs, all of them in `seen` shapes, may be `combo`; these are dealt to `combo` and `evo` in turn, the rest is `evo`.
    """
    shallow = list(shapes_of(level, 1))
    deeper = [shape for depth in range(2, level.depth + 1) for shape in shapes_of(level, depth)]
    deeper.sort(key=lambda shape: sample_seed("tier", shape))
    if not deeper:
        half = (len(shallow) + 1) // 2
        tiers = {"seen": shallow[:half], "evo": shallow[half:], "combo": []}
    else:
        third = min(len(deeper) // 3, _PER_TIER - len(shallow))
        tiers = {"seen": shallow + deeper[:third], "evo": [], "combo": []}
        trained = {pair for shape in tiers["seen"] for pair in shape.pairs()}
        for shape in deeper[third:]:
            pairs = shape.pairs()
            whole = len(pairs) > 1 and pairs <= trained and len(tiers["combo"]) <= len(tiers["evo"])
            tiers["combo" if whole else "evo"].append(shape)
    tiers["longer"] = list(shapes_of(level, level.depth + 1))
    return {tier: tuple(shapes[:_PER_TIER]) for tier, shapes in tiers.items() if shapes}


def draw_book(shape: Shape, level: Level, rng: Random) -> tuple[list[Recipe], str]:
    """A fresh book of that shape in shuffled order, with distractors, and its goal."""
    names = iter(_shuffled(NAMES, rng))
    goal = next(names)
    tree: list[Recipe] = []

    def build(output: str, gives: int, node: Shape) -> None:
        slots = [(slot, next(names)) for slot in node.slots]
        tree.append(Recipe(gives, output, tuple(_shuffled((Ingredient(slot.count, name) for slot, name in slots), rng))))
        for slot, name in slots:
            if slot.made is not None:
                build(name, slot.yields, slot.made)

    build(goal, 1, shape)
    inputs = [slot.name for recipe in tree for slot in recipe.inputs]
    distractors = []
    for _ in range(level.distractors):
        chosen = [inputs[_below(len(inputs), rng)]]
        if level.slots > 1 and rng.random() < 0.5:
            other = inputs[_below(len(inputs), rng)] if rng.random() < 0.5 else next(names)
            chosen += [other] if other not in chosen else []
        amounts = (Ingredient(1 + _below(level.most, rng), name) for name in chosen)
        distractors.append(Recipe(1 + _below(level.most, rng), next(names), tuple(_shuffled(amounts, rng))))
    return _shuffled(tree + distractors, rng), goal


def draw_tasks(level: Level, tier: str, shapes: Iterable[Shape], *, version: str) -> Iterator[Candidate]:
    """Endless candidates of a tier, its kinds in turn; always the same ones."""
    kinds = [(shape, str(shape)) for shape in shapes]
    for number in count():
        for shape, kind in kinds:
            recipes, goal = draw_book(shape, level, Random(sample_seed("crafting", version, level, kind, number)))
            spec = {"recipes": [str(recipe) for recipe in recipes], "goal": goal}
            yield Candidate(spec, kind, tier, canonical_key(recipes, goal))


def _below(n: int, rng: Random) -> int:
    return int(rng.random() * n)


def _shuffled(values: Iterable[Any], rng: Random) -> list[Any]:
    """The values in random order. Only `random()` is drawn from: its stream is the same in every version of Python."""
    return [value for _, _, value in sorted((rng.random(), i, value) for i, value in enumerate(values))]
