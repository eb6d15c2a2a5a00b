"""Crafting: get raw items and craft the goal by the shown recipes. The rules are those of TextCraft (ADaPT, 2024).

Three books, one engine: a fresh book for each task (`Crafting(level=...)`, the default), the library's own workshop
(`Crafting("own")`), and a user's folder of Minecraft recipes (`Crafting.from_folder(path)`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Literal

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Score, Task, Value, canonical_json, sample_seed
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, score_if_won
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.recipes import Book, Recipe, canonical_key, read_folder, read_recipe, workshop_book
from evolvent.worlds.shapes import LEVELS, NAMES, Level, draw_tasks, kinds_of

__all__ = ["Crafting", "CraftingEnv", "words_of"]

_GET = re.compile(r"get ([0-9]{1,4}) (.+)")
_MALFORMED = "Could not understand. Expected: get, craft or inventory."
_KNOWN_TASKS = 4096  # scenes kept ready
_KNOWN_ACTIONS = 1024  # action texts understood once per scene
_SENTENCES = (
    _MALFORMED,
    "get Got craft Crafted using Inventory: nothing Could not find that item",
    "Could not find a valid recipe for enough items to craft",
    "Could not hold more than. Could not count below 1. Crafting commands: Goal: craft",
)


def words_of(text: str) -> list[str]:
    """Splits a text into words and punctuation marks, as a word tokenizer does."""
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(frozen=True, slots=True)
class _ParsedAction:
    """A parsed action: what it consumes and produces, and the answers to it. `produced` is None where nothing
    changes.
    """

    failure_text: str
    success_text: str = ""
    consumed: tuple[tuple[str, int], ...] = ()
    produced: tuple[str, int] | None = None
    is_inventory: bool = False


@dataclass(slots=True)
class _Scene:
    """Data that all episodes of a task share: the book, first observation, legal actions and parsed texts."""

    book: Book
    goal: str
    first_observation: str
    admissible: tuple[str, ...]
    max_count: int | None
    parsed_actions: dict[str, _ParsedAction] = field(default_factory=dict)

    def parse(self, text: str) -> _ParsedAction:
        parsed_action = self.parsed_actions.get(text)
        if parsed_action is None:
            parsed_action = self._parse(" ".join(text.split()))
            if len(self.parsed_actions) < _KNOWN_ACTIONS:
                self.parsed_actions[text] = parsed_action
        return parsed_action

    def _parse(self, text: str) -> _ParsedAction:
        if text == "inventory":
            return _ParsedAction("", is_inventory=True)
        match = _GET.fullmatch(text)
        if match:
            return self._parse_get(int(match[1]), match[2])
        recipe = read_recipe(text)
        return self._parse_craft(recipe) if recipe else _ParsedAction(_MALFORMED)

    def _parse_get(self, count: int, item: str) -> _ParsedAction:
        is_known = item in self.book.items or item in self.book.tags
        if item not in self.book.items or item in self.book.of or item in self.book.tags:
            return _ParsedAction(f"Could not find {item if is_known else 'that item'}")
        if count < 1:
            return _ParsedAction("Could not count below 1.")
        if self.max_count is not None and count > self.max_count:
            return _ParsedAction(self.limit_text(item))
        return _ParsedAction(self.limit_text(item), f"Got {count} {item}", produced=(item, count))

    def _parse_craft(self, requested_recipe: Recipe) -> _ParsedAction:
        if requested_recipe.count < 1 or any(slot.count < 1 for slot in requested_recipe.inputs):
            return _ParsedAction("Could not count below 1.")
        recipe = self.book.match(requested_recipe)
        if recipe is None:
            name = requested_recipe.output if requested_recipe.output in self.book.items else "that item"
            return _ParsedAction(f"Could not find a valid recipe for {name}")
        consumed: dict[str, int] = {}
        for slot in requested_recipe.inputs:
            consumed[slot.name] = consumed.get(slot.name, 0) + slot.count
        return _ParsedAction(
            f"Could not find enough items to craft {recipe.output}",
            f"Crafted {recipe.count} {recipe.output}",
            tuple(consumed.items()),
            (recipe.output, recipe.count),
        )

    def limit_text(self, item: str) -> str:
        return f"Could not hold more than {self.max_count} {item}"


class CraftingEnv(StateEnv[dict[str, int]]):
    """One episode: a multiset of items, in the order in which they were obtained, and the actions get, craft and
    inventory.
    """

    def __init__(self, task: Task, scene: _Scene, penalty: float) -> None:
        super().__init__(task, {})
        self._scene, self._penalty = scene, penalty

    @property
    def inventory(self) -> Mapping[str, int]:
        """Returns the number of each item in the inventory (a copy)."""
        return dict(self._state)

    def _copy_state(self, state: dict[str, int]) -> dict[str, int]:
        return dict(state)

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.first_observation, {"admissible": self._scene.admissible}

    def _transition(self, state: dict[str, int], action: Value) -> tuple[dict[str, int], Reply]:
        scene = self._scene
        parsed_action = scene.parsed_actions.get(action) if isinstance(action, str) else None
        if parsed_action is None:
            parsed_action = scene.parse(str(action))
        if parsed_action.produced is None:
            if parsed_action.is_inventory:
                return state, (_render_inventory(state), 0.0, False, False, {"admissible": scene.admissible})
            return state, self._refuse(parsed_action.failure_text)
        for item, count in parsed_action.consumed:
            if state.get(item, 0) < count:
                return state, self._refuse(parsed_action.failure_text)
        item, count = parsed_action.produced
        if scene.max_count is not None and state.get(item, 0) + count > scene.max_count:
            return state, self._refuse(scene.limit_text(item))
        for consumed_item, consumed_count in parsed_action.consumed:
            if state[consumed_item] == consumed_count:
                del state[consumed_item]
            else:
                state[consumed_item] -= consumed_count
        state[item] = state.get(item, 0) + count
        is_goal = item == scene.goal
        reply = (parsed_action.success_text, float(is_goal), is_goal, False, {"admissible": scene.admissible})
        return state, reply

    def _refuse(self, sentence: str) -> Reply:
        return sentence, self._penalty, False, False, {"admissible": self._scene.admissible, "invalid": True}


def _render_inventory(inventory: Mapping[str, int]) -> str:
    return "Inventory: " + (", ".join(f"{count} {item}" for item, count in inventory.items()) or "nothing")


class Crafting(DealtOnce):
    """The crafting world.

    Args:
        book: "fresh" (a book of its own for every task), "own" (the library's workshop), or any `Book`.
        level: the rung of the ladder for fresh books: an index of `LEVELS` (0 to 3) or a `Level`.
        penalty: the reward of an action that is none, 0 or less.
        sizes: the sizes of the panels.
        horizon: how many steps an episode may take (None: by level with fresh books, 40 in the workshop, 20 else).

    Raises:
        ConfigError: an unknown book or level, or a penalty that is positive or not finite.
    """

    version = "1"
    instructions = (
        "Craft the goal by the recipes. Actions: get 1 item; craft 1 item using 1 item, 1 item; inventory. "
        "Only items without a recipe can be got."
    )
    grammar: Grammar = Plain()
    run_in_thread = False

    def __init__(
        self,
        book: Literal["fresh", "own"] | Book = "fresh",
        *,
        level: int | Level = 0,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        problems = []
        if isinstance(level, int) and not 0 <= level < len(LEVELS):
            problems.append(Problem("level", f"got {level}, expected 0 to {len(LEVELS) - 1}"))
        if book not in ("fresh", "own") and not isinstance(book, Book):
            problems.append(Problem("book", f"unknown book {book!r}", "give 'fresh', 'own' or a Book"))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.level = LEVELS[level] if isinstance(level, int) else level
        self.book = workshop_book() if book == "own" else book if isinstance(book, Book) else None
        self.name = "crafting" if self.book is None else "workshop" if book == "own" else "textcraft"
        self.most = {"crafting": 9, "workshop": 64}.get(self.name)
        self.horizon = horizon or {"crafting": self.level.horizon, "workshop": 40}.get(self.name, 20)
        self.penalty = penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self._scenes: dict[str, _Scene] = {}
        draw, tiers = self._draw_fresh() if self.book is None else _draw_from_book(self.name, self.book)
        self.tiers = tuple(tier for tier in TIERS if tier in tiers)
        sizes = sizes or Sizes()
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=draw, recipe=self.recipe)

    @classmethod
    def from_folder(cls, path: str | Path, *, penalty: float = 0.0, sizes: Sizes | None = None) -> Crafting:
        """Creates TextCraft from a user's folder of Minecraft recipe files; see `read_folder`."""
        return cls(read_folder(path), penalty=penalty, sizes=sizes)

    def _draw_fresh(self) -> tuple[_Draw, Sequence[str]]:
        level, kinds = self.level, kinds_of(self.level)
        return lambda tier: draw_tasks(level, tier, kinds[tier], version=self.version), tuple(kinds)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> CraftingEnv:
        """Creates an Env for one task; raises ConfigError for another world's task, VersionMismatch for another
        book.
        """
        return CraftingEnv(task, self._scene(task), self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was made; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns a shortest plan."""
        scene = self._scene(task)
        return scene.book.plan(scene.goal)

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task, equal for tasks that differ only in names."""
        recipes, goal = self._parse_spec(task)
        return canonical_key(dict.fromkeys(recipes), goal) if self.book is None else goal

    def rename(self, task: Task, rng: Random) -> Task:
        """Returns the same fresh task under other names: another id, but the same key, kind, tier and split.

        Raises ConfigError in a world with a book of its own, whose names mean something.
        """
        if self.book is not None:
            raise ConfigError(f"the names of {self.name!r} are part of its book", value=task.id, hint="use fresh books")
        scene = self._scene(task)
        pool = NAMES[: self.level.names]
        names = dict(zip(sorted(scene.book.items), sorted(pool, key=lambda name: rng.random()), strict=False))
        if len(names) < len(scene.book.items):
            raise ConfigError("too few names at this level", value=len(pool), expected=len(scene.book.items))
        recipes: list[Json] = [str(recipe.rename(names)) for recipe in scene.book.recipes]
        spec = {"recipes": recipes, "goal": names[scene.goal]}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations and legal actions, sorted; None for a user's folder (any
        count).
        """
        if self.most is None:
            return None
        names = NAMES[: self.level.names] if self.book is None else (*self.book.items, *self.book.tags)
        numbers = map(str, range(1, self.most + 1))
        return sorted({word for text in (*names, *_SENTENCES, ", :", *numbers) for word in words_of(text)})

    def _scene(self, task: Task) -> _Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build_scene(task)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _build_scene(self, task: Task) -> _Scene:
        recipes, goal = self._parse_spec(task)
        book = self.book or Book(recipes)
        title = "Crafting commands:\n" if self.book else ""
        first_observation = f"{title}{chr(10).join(map(str, recipes))}\n\nGoal: craft {goal}."
        return _Scene(book, goal, first_observation, _legal_actions(book, recipes, goal), self.most)

    def _parse_spec(self, task: Task) -> tuple[Sequence[Recipe], str]:
        """Parses the shown recipes and the goal of a task.

        Raises:
            ConfigError: the task belongs to another world, or its spec has no recipes or no goal.
            VersionMismatch: the task belongs to another recipe book.
        """
        lines, goal = task.spec.get("recipes"), task.spec.get("goal")
        parsed_recipes = [read_recipe(line) for line in lines] if isinstance(lines, list) else []
        recipes = [recipe for recipe in parsed_recipes if recipe is not None]
        if task.world != self.name or not isinstance(goal, str) or not recipes or len(recipes) < len(parsed_recipes):
            raise ConfigError(f"the task does not belong to world {self.name!r}", value=canonical_json(dict(task.spec)))
        if task.spec.get("book") != (self.book.digest if self.book else None):
            raise VersionMismatch(
                "the task belongs to another recipe book",
                value=task.spec.get("book"),
                expected=self.book and self.book.digest,
            )
        return recipes, goal


_Draw = Callable[[str], Iterator[Candidate]]


def _legal_actions(book: Book, recipes: Sequence[Recipe], goal: str) -> tuple[str, ...]:
    """Lists the actions that shown recipes mention: raw items up to the largest count of any use, crafts, inventory."""
    raw = set(book.raw)
    items = dict.fromkeys(name for recipe in recipes for slot in recipe.inputs for name in book.choices(slot.name))
    counts = [slot.count for recipe in recipes for slot in recipe.inputs]
    counts += [int(action.split()[1]) for action in book.plan(goal) if action.startswith("get ")]
    gets = [f"get {n} {item}" for item in items if item in raw for n in range(1, max(counts) + 1)]
    crafts = [str(variant) for recipe in recipes for variant in book.variants(recipe)]
    return (*gets, *crafts, "inventory")


def _draw_from_book(name: str, book: Book) -> tuple[_Draw, Sequence[str]]:
    """Returns one task for every item that can be made; the deepest items are the tier `longer`. A goal has one
    split.
    """
    goals = sorted((item for item in book.of if item in book.depth), key=lambda item: sample_seed("goal", name, item))
    deepest = max(book.depth.values())

    def draw(tier: str) -> Iterator[Candidate]:
        for goal in goals:
            if (tier == "longer") == (book.depth[goal] == deepest):
                spec: dict[str, Json] = {
                    "book": book.digest,
                    "recipes": _choose_shown_recipes(name, book, goal),
                    "goal": goal,
                }
                yield Candidate(spec, goal, tier, goal)

    return draw, ("seen", "longer")


def _choose_shown_recipes(name: str, book: Book, goal: str) -> list[str]:
    """Chooses the recipes of the plan and up to ten others that share ingredients, in an order drawn per goal."""
    rng = Random(sample_seed("show", name, book.digest, goal))
    needed = [str(book.match(recipe)) for recipe in book.required_recipes(goal)]
    names = {slot.name for recipe in book.required_recipes(goal) for slot in recipe.inputs}
    names |= {tag for tag, members in book.tags.items() if names & set(members)}
    candidates = {str(recipe) for recipe in book.recipes if any(slot.name in names for slot in recipe.inputs)} - set(
        needed
    )
    distractors = sorted(sorted(candidates), key=lambda line: rng.random())[:10]
    return sorted(dict.fromkeys(needed + distractors), key=lambda line: rng.random())
