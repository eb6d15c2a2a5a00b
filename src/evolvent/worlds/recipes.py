"""Recipes and recipe books: ingredients of items, their depth, and shortest plans."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import islice, product
from math import ceil, inf
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, Problem, unknown_name_problem

__all__ = ["Book", "Ingredient", "Recipe", "canonical_key", "read_folder", "read_recipe", "workshop_book"]

_AMOUNT = re.compile(r"([0-9]{1,4}) (.+)")
_CRAFT = re.compile(r"craft (?:([0-9]{1,4}) )?(.+?) using (.+)")
_PREFIX = "minecraft:"
_MOST_VARIANTS = 16  # spelled-out ways to use one recipe whose slots are tags


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A count of an item; in a recipe the name may also be a tag, which any of its members satisfies."""

    count: int
    name: str

    def __str__(self) -> str:
        return f"{self.count} {self.name}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """`count` of `output` for the inputs, all of them consumed."""

    count: int
    output: str
    inputs: tuple[Ingredient, ...]

    def __str__(self) -> str:
        return f"craft {self.count} {self.output} using {', '.join(map(str, self.inputs))}"

    def rename(self, names: Mapping[str, str]) -> Recipe:
        """Returns the same recipe with every name replaced."""
        inputs = tuple(Ingredient(slot.count, names[slot.name]) for slot in self.inputs)
        return Recipe(self.count, names[self.output], inputs)


def read_recipe(text: str) -> Recipe | None:
    """Parses `craft N x using N a, M b` (with or without a space before commas); returns None for any other line.

    Counts may be 0 here: whether that is allowed is the caller's business. A missing first count means 1.
    """
    match = _CRAFT.fullmatch(" ".join(text.split()))
    if not match:
        return None
    inputs = [_AMOUNT.fullmatch(part.strip()) for part in match[3].split(",")]
    if not all(inputs):
        return None
    amounts = tuple(Ingredient(int(part[1]), part[2]) for part in inputs if part)
    return Recipe(int(match[1] or 1), match[2], amounts)


class Book:
    """A set of recipes and tags.

    Args:
        recipes: an item may have several; of equal ones the first counts.
        tags: name of a tag -> the items that satisfy it.

    Raises:
        ConfigError: a count below 1, a recipe without inputs, or a tag without members; all such mistakes at once.
    """

    def __init__(self, recipes: Iterable[Recipe], tags: Mapping[str, Iterable[str]] | None = None) -> None:
        self.recipes: tuple[Recipe, ...] = tuple(dict.fromkeys(recipes))
        self.tags: dict[str, tuple[str, ...]] = {
            tag: tuple(sorted(set(tag_items))) for tag, tag_items in (tags or {}).items()
        }
        problems = [Problem(str(recipe), "the recipe has no inputs") for recipe in self.recipes if not recipe.inputs]
        problems += [
            Problem(str(recipe), "got a count below 1", "use whole numbers of at least 1")
            for recipe in self.recipes
            if recipe.count < 1 or any(slot.count < 1 for slot in recipe.inputs)
        ]
        problems += [Problem(tag, "the tag has no members") for tag, members in self.tags.items() if not members]
        if problems:
            raise ConfigError(problems)
        self.of: dict[str, list[Recipe]] = {}
        for recipe in self.recipes:
            self.of.setdefault(recipe.output, []).append(recipe)
        input_names = {slot.name for recipe in self.recipes for slot in recipe.inputs} - self.tags.keys()
        members = {item for items in self.tags.values() for item in items}
        self.items: frozenset[str] = frozenset(input_names | members | self.of.keys())

    @cached_property
    def raw(self) -> tuple[str, ...]:
        """Returns the items that no recipe makes, in alphabetical order."""
        return tuple(sorted(self.items - self.of.keys() - self.tags.keys()))

    @cached_property
    def digest(self) -> str:
        """Returns the SHA-256 (16 hex digits) of the recipes and tags, whatever their order."""
        lines = sorted(map(str, self.recipes)) + [
            f"{tag}: {', '.join(members)}" for tag, members in sorted(self.tags.items())
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    @cached_property
    def depth(self) -> dict[str, int]:
        """Returns the depth of each item: 1 + the largest depth of its shallowest recipe's inputs; 0 if raw; none if
        impossible.
        """
        return {
            item: int(depth)
            for item, depth in self._solve_fixed_point(lambda recipe, input_depths: 1 + max(input_depths)).items()
            if depth < inf
        }

    @cached_property
    def _cost(self) -> dict[str, float]:
        """Returns a bound on the actions that make one of an item: 1 if raw, else 1 + the cost of every input."""
        return self._solve_fixed_point(lambda recipe, input_costs: 1 + sum(input_costs), raw=1.0)

    def _solve_fixed_point(self, rule: Callable[[Recipe, list[float]], float], raw: float = 0.0) -> dict[str, float]:
        """Computes the least fixed point of `rule` over all recipes; a tag has the value of its best member."""
        value: dict[str, float] = dict.fromkeys(self.of, inf) | dict.fromkeys(self.raw, raw)
        changed = True
        while changed:
            changed = False
            for recipe in self.recipes:
                new = rule(recipe, [min(value[item] for item in self.choices(slot.name)) for slot in recipe.inputs])
                if new < value[recipe.output]:
                    value[recipe.output], changed = new, True
        return value

    def choices(self, name: str) -> tuple[str, ...]:
        """Returns the items that satisfy a slot: the members of a tag, or the item itself."""
        return self.tags.get(name, (name,))

    def _rank_choices(self, name: str) -> tuple[str, ...]:
        return tuple(sorted(self.choices(name), key=lambda item: (self._cost[item], item)))

    def best(self, item: str) -> Recipe | None:
        """Returns the cheapest recipe of an item with tags replaced by their cheapest members; None if raw or
        impossible.
        """
        if self._cost.get(item, inf) == inf or item not in self.of:
            return None

        def price(recipe: Recipe) -> tuple[float, str]:
            return sum(self._cost[self._rank_choices(slot.name)[0]] for slot in recipe.inputs), str(recipe)

        return next(self.variants(min(self.of[item], key=price)))

    def variants(self, recipe: Recipe) -> Iterator[Recipe]:
        """Yields the recipe with every tag replaced by a member, cheapest first, at most 16 variants."""
        for names in islice(product(*(self._rank_choices(slot.name) for slot in recipe.inputs)), _MOST_VARIANTS):
            slots = zip(recipe.inputs, names, strict=True)
            yield Recipe(recipe.count, recipe.output, tuple(Ingredient(slot.count, name) for slot, name in slots))

    def match(self, requested: Recipe) -> Recipe | None:
        """Returns the recipe that `requested` spells out exactly (order of inputs free, tags by any member), or
        None.
        """
        for recipe in self.of.get(requested.output, ()):
            if recipe.count == requested.count and self._fits(recipe.inputs, requested.inputs):
                return recipe
        return None

    def _fits(self, slots: tuple[Ingredient, ...], inputs: tuple[Ingredient, ...]) -> bool:
        if len(slots) != len(inputs):
            return False
        if not slots:
            return True
        slot, remaining_slots = slots[0], slots[1:]
        return any(
            ingredient.count == slot.count
            and ingredient.name in self.choices(slot.name)
            and self._fits(remaining_slots, inputs[:i] + inputs[i + 1 :])
            for i, ingredient in enumerate(inputs)
        )

    def required_recipes(self, goal: str) -> tuple[Recipe, ...]:
        """Returns the recipes of the plan for `goal`, inputs before their products; raises ConfigError if
        impossible.
        """
        if self._cost.get(goal, inf) == inf or goal in self.tags:
            raise ConfigError([unknown_name_problem("goal", goal, self.of)])
        order: dict[str, Recipe] = {}

        def visit(item: str) -> None:
            recipe = None if item in order else self.best(item)
            if recipe:
                for slot in recipe.inputs:
                    visit(slot.name)
                order[item] = recipe

        visit(goal)
        return tuple(order.values())

    def plan(self, goal: str) -> tuple[str, ...]:
        """Returns actions that make `goal`: recipe by recipe, its missing raw items are obtained, then it is
        crafted.

        No plan is shorter where every item has one recipe: each raw item takes one action, and each craft is forced.
        """
        recipes = self.required_recipes(goal)
        need, times = Counter({goal: 1}), Counter[str]()
        for recipe in reversed(recipes):
            times[recipe.output] = ceil(need[recipe.output] / recipe.count)
            for slot in recipe.inputs:
                need[slot.name] += slot.count * times[recipe.output]
        actions: dict[str, int] = {}
        for recipe in recipes:
            for slot in recipe.inputs:
                if slot.name not in times:
                    actions[f"get {need[slot.name]} {slot.name}"] = 1
            actions[str(recipe)] = times[recipe.output]
        return tuple(action for action, repeats in actions.items() for _ in range(repeats))


def canonical_key(recipes: Iterable[Recipe], goal: str) -> str:
    """Computes a hash (32 hex digits) that ignores the names of items and the order of recipes and inputs.

    Equal books up to renaming have equal keys. It is the colour refinement of Weisfeiler and Leman (1968) on the graph
    of items and recipes, so two different books may share a key in rare, very regular cases.
    """
    lines = [(recipe.count, recipe.output, [(slot.count, slot.name) for slot in recipe.inputs]) for recipe in recipes]
    items = {goal} | {output for _, output, _ in lines} | {name for *_, inputs in lines for _, name in inputs}
    color_of = {item: "goal" if item == goal else "item" for item in items}
    kinds, signatures = 0, [""] * len(lines)
    while len(set(color_of.values())) > kinds:
        kinds = len(set(color_of.values()))
        signatures = [
            f"{count} {color_of[output]} {sorted((n, color_of[name]) for n, name in inputs)}"
            for count, output, inputs in lines
        ]
        uses: dict[str, list[str]] = {item: [] for item in items}
        for signature, (_, output, inputs) in zip(signatures, lines, strict=True):
            uses[output].append(signature)
            for n, name in inputs:
                uses[name].append(f"{n} {signature}")
        color_of = {item: _short_hash(f"{color_of[item]} {sorted(uses[item])}") for item in items}
    return hashlib.sha256("\n".join(sorted(signatures)).encode()).hexdigest()[:32]


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_folder(path: str | Path) -> Book:
    """Reads a folder of Minecraft recipe files (`*.json`) as TextCraft reads them.

    Shaped and shapeless recipes count; of alternatives the first; a recipe from one block of a material is dropped, and
    so is one that would close a circle. An item's `group` is its tag; a tag of which nothing can be made is an item.
    Files are read in the order of their names, so the order in which the folder lists them does not matter.

    Raises:
        ConfigError: no such folder, no recipe in it, or files that cannot be read (all of them are named).
    """
    folder = Path(path)
    folder = folder / "recipes" if (folder / "recipes").is_dir() else folder
    if not folder.is_dir():
        raise ConfigError(
            "recipe folder not found", value=str(path), hint="pass the folder that holds the *.json files"
        )
    recipes: list[Recipe] = []
    groups: dict[str, set[str]] = {}
    ancestors: dict[str, set[str]] = {}
    problems = []
    for file in sorted(folder.glob("*.json")):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            recipe = _parse_minecraft_recipe(raw)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            problems.append(Problem(file.name, f"not a recipe: {type(error).__name__}: {error}", "fix or remove it"))
            continue
        if recipe is None:
            continue
        group = _plain_name(raw["group"]) if raw.get("group") else recipe.output
        if group != recipe.output:
            groups.setdefault(group, set()).add(recipe.output)
        names = {slot.name for slot in recipe.inputs}
        if any(recipe.output in ancestors.get(name, ()) for name in names):
            continue
        ancestors.setdefault(recipe.output, set()).update(names, *(ancestors.get(name, ()) for name in names))
        recipes.append(recipe)
    if problems or not recipes:
        raise ConfigError(problems or [Problem(str(path), "no recipe in this folder", "add *.json files")])
    outputs = {recipe.output for recipe in recipes}
    slots = {slot.name for recipe in recipes for slot in recipe.inputs}
    return Book(
        recipes, {tag: members & outputs for tag, members in groups.items() if tag in slots and members & outputs}
    )


def _plain_name(name: str) -> str:
    return name.removeprefix(_PREFIX).replace("_", " ")


def _parse_minecraft_recipe(raw: dict[str, Any]) -> Recipe | None:
    """Parses one recipe file; returns None for the kinds that TextCraft leaves out."""
    if raw["type"] == _PREFIX + "crafting_shaped":
        pattern = "".join(raw["pattern"])
        parts = [(pattern.count(key), slot) for key, slot in raw["key"].items()]
    elif raw["type"] == _PREFIX + "crafting_shapeless":
        parts = [(1, slot) for slot in raw["ingredients"]]
    else:
        return None
    amounts = Counter[str]()
    for count, slot in parts:
        first = slot[0] if isinstance(slot, list) else slot
        amounts[_plain_name(first["item"] if "item" in first else first["tag"])] += count
    if len(amounts) == 1 and next(iter(amounts)).endswith(" block"):
        return None
    result = raw["result"]
    output, count = (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
    return Recipe(int(count), _plain_name(output), tuple(Ingredient(n, name) for name, n in amounts.items()))


def workshop_book() -> Book:
    """Reads the library's own book: a workshop of more than 300 items, up to five crafts deep, from `workshop.json`.

    A rule holds set names in braces and stands for one recipe per member: `craft 4 {wood} board using 1 {wood} log`.
    """
    raw = json.loads(files("evolvent.worlds").joinpath("workshop.json").read_text(encoding="utf-8"))
    sets: dict[str, list[str]] = raw["sets"]
    recipes = [read_recipe(line) for rule in raw["rules"] for line in _expand(rule, sets)]
    tags = {tag: [name for line in tag_lines for name in _expand(line, sets)] for tag, tag_lines in raw["tags"].items()}
    return Book([recipe for recipe in recipes if recipe], tags)


def _expand(text: str, sets: Mapping[str, list[str]]) -> list[str]:
    """Expands the text once for every choice of members for the sets that it names."""
    names = [name for name in sets if "{" + name + "}" in text]
    lines = []
    for combination in product(*(sets[name] for name in names)):
        line = text
        for name, member in zip(names, combination, strict=True):
            line = line.replace("{" + name + "}", member)
        lines.append(line)
    return lines
