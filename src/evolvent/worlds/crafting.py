"""Crafting: get raw items and craft them, by the recipes shown, into the goal. The rules are TextCraft's (ADaPT, 2024).

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

from evolvent.errors import ConfigError, Problem, SessionGone, VersionMismatch
from evolvent.trajectory import Json, Score, Task, Value, canonical_json, sample_seed
from evolvent.worlds.base import TIERS, Info, Reply, own_moment, score_won
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.recipes import Book, Recipe, canonical_key, own_book, read_folder, read_recipe
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
    """The words and punctuation marks of a text, as a word tokenizer splits it."""
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(frozen=True, slots=True)
class _Act:
    """An action understood: what it takes, what it gives, and what is answered. `gives` None: nothing happens."""

    fail: str
    ok: str = ""
    takes: tuple[tuple[str, int], ...] = ()
    gives: tuple[str, int] | None = None
    looks: bool = False


@dataclass(slots=True)
class _Scene:
    """What all episodes of one task share: the book, the first observation, the legal actions, the texts understood."""

    book: Book
    goal: str
    first: str
    admissible: tuple[str, ...]
    most: int | None
    acts: dict[str, _Act] = field(default_factory=dict)

    def understand(self, text: str) -> _Act:
        act = self.acts.get(text)
        if act is None:
            act = self._understand(" ".join(text.split()))
            if len(self.acts) < _KNOWN_ACTIONS:
                self.acts[text] = act
        return act

    def _understand(self, text: str) -> _Act:
        if text == "inventory":
            return _Act("", looks=True)
        found = _GET.fullmatch(text)
        if found:
            return self._get(int(found[1]), found[2])
        asked = read_recipe(text)
        return self._craft(asked) if asked else _Act(_MALFORMED)

    def _get(self, count: int, item: str) -> _Act:
        known = item in self.book.items or item in self.book.tags
        if item not in self.book.items or item in self.book.of or item in self.book.tags:
            return _Act(f"Could not find {item if known else 'that item'}")
        if count < 1:
            return _Act("Could not count below 1.")
        if self.most is not None and count > self.most:
            return _Act(self.too_many(item))
        return _Act(self.too_many(item), f"Got {count} {item}", gives=(item, count))

    def _craft(self, asked: Recipe) -> _Act:
        if asked.count < 1 or any(slot.count < 1 for slot in asked.inputs):
            return _Act("Could not count below 1.")
        recipe = self.book.match(asked)
        if recipe is None:
            name = asked.output if asked.output in self.book.items else "that item"
            return _Act(f"Could not find a valid recipe for {name}")
        takes: dict[str, int] = {}
        for slot in asked.inputs:
            takes[slot.name] = takes.get(slot.name, 0) + slot.count
        return _Act(
            f"Could not find enough items to craft {recipe.output}",
            f"Crafted {recipe.count} {recipe.output}",
            tuple(takes.items()),
            (recipe.output, recipe.count),
        )

    def too_many(self, item: str) -> str:
        return f"Could not hold more than {self.most} {item}"


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and what is held, in the order in which it was got."""

    task: str
    running: bool
    held: tuple[tuple[str, int], ...]


class CraftingEnv:
    """One episode: a multiset of items, and the actions get, craft and inventory. Forks by copying the multiset."""

    def __init__(self, task: Task, scene: _Scene, penalty: float) -> None:
        self._task, self._scene, self._penalty = task, scene, penalty
        self._held: dict[str, int] = {}
        self._running = False

    @property
    def held(self) -> Mapping[str, int]:
        """How many of each item the agent holds (a copy)."""
        return dict(self._held)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._held = {}
        self._running = True
        return self._scene.first, {"admissible": self._scene.admissible}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        scene, held = self._scene, self._held
        act = scene.acts.get(action) if isinstance(action, str) else None
        if act is None:
            act = scene.understand(str(action))
        if act.gives is None:
            if act.looks:
                return self._inventory(), 0.0, False, False, {"admissible": scene.admissible}
            return self._refuse(act.fail)
        for item, count in act.takes:
            if held.get(item, 0) < count:
                return self._refuse(act.fail)
        item, count = act.gives
        if scene.most is not None and held.get(item, 0) + count > scene.most:
            return self._refuse(scene.too_many(item))
        for taken, used in act.takes:
            if held[taken] == used:
                del held[taken]
            else:
                held[taken] -= used
        held[item] = held.get(item, 0) + count
        self._running = item != scene.goal
        return act.ok, 0.0 if self._running else 1.0, not self._running, False, {"admissible": scene.admissible}

    def _refuse(self, sentence: str) -> Reply:
        return sentence, self._penalty, False, False, {"admissible": self._scene.admissible, "invalid": True}

    def _inventory(self) -> str:
        return "Inventory: " + (", ".join(f"{count} {item}" for item, count in self._held.items()) or "nothing")

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, tuple(self._held.items()))

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._held = moment.running, dict(moment.held)

    def close(self) -> None:
        self._running = False


class Crafting:
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
    blocking = False

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
            problems.append(Problem("level", f"there is no level {level}", f"give 0 to {len(LEVELS) - 1}"))
        if book not in ("fresh", "own") and not isinstance(book, Book):
            problems.append(Problem("book", f"unknown book {book!r}", "give 'fresh', 'own' or a Book"))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.level = LEVELS[level] if isinstance(level, int) else level
        self.book = own_book() if book == "own" else book if isinstance(book, Book) else None
        self.name = "crafting" if self.book is None else "workshop" if book == "own" else "textcraft"
        self.most = {"crafting": 9, "workshop": 64}.get(self.name)
        self.horizon = horizon or {"crafting": self.level.horizon, "workshop": 40}.get(self.name, 20)
        self.penalty = penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self._scenes: dict[str, _Scene] = {}
        draw, tiers = self._fresh() if self.book is None else _known(self.name, self.book)
        self.tiers = tuple(tier for tier in TIERS if tier in tiers)
        sizes = sizes or Sizes()
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=draw)

    @classmethod
    def from_folder(cls, path: str | Path, *, penalty: float = 0.0, sizes: Sizes | None = None) -> Crafting:
        """TextCraft itself, on a user's folder of Minecraft recipe files; see `read_folder` for what is read."""
        return cls(read_folder(path), penalty=penalty, sizes=sizes)

    def _fresh(self) -> tuple[_Draw, Sequence[str]]:
        level, kinds = self.level, kinds_of(self.level)
        return lambda tier: draw_tasks(level, tier, kinds[tier], version=self.version), tuple(kinds)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> CraftingEnv:
        """An Env for one task; ConfigError if it is not of this world, VersionMismatch if of another book."""
        return CraftingEnv(task, self._scene(task), self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the goal was made; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """A shortest plan."""
        scene = self._scene(task)
        return scene.book.plan(scene.goal)

    def key(self, task: Task) -> str:
        """The canonical form of a task: equal for tasks that differ only in names."""
        scene = self._scene(task)
        return canonical_key(scene.book.recipes, scene.goal) if self.book is None else scene.goal

    def renamed(self, task: Task, rng: Random) -> Task:
        """The same fresh task under other names: another id, the same key, kind, tier and split. More to learn from.

        Raises ConfigError in a world with a book of its own, whose names mean something.
        """
        if self.book is not None:
            raise ConfigError(f"the names of {self.name!r} are part of its book", value=task.id, hint="use fresh books")
        scene = self._scene(task)
        pool = NAMES[: self.level.names]
        names = dict(zip(sorted(scene.book.items), sorted(pool, key=lambda name: rng.random()), strict=False))
        if len(names) < len(scene.book.items):
            raise ConfigError("too few names at this level", value=len(pool), expected=len(scene.book.items))
        recipes: list[Json] = [str(recipe.renamed(names)) for recipe in scene.book.recipes]
        spec = {"recipes": recipes, "goal": names[scene.goal]}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations and legal actions, sorted; None for a user's folder (any count)."""
        if self.most is None:
            return None
        names = NAMES[: self.level.names] if self.book is None else (*self.book.items, *self.book.tags)
        numbers = map(str, range(1, self.most + 1))
        return sorted({word for text in (*names, *_SENTENCES, ", :", *numbers) for word in words_of(text)})

    def _scene(self, task: Task) -> _Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build(task)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _build(self, task: Task) -> _Scene:
        lines, goal = task.spec.get("recipes"), task.spec.get("goal")
        shown = [read_recipe(line) for line in lines] if isinstance(lines, list) else []
        recipes = [recipe for recipe in shown if recipe is not None]
        if task.world != self.name or not isinstance(goal, str) or not recipes or len(recipes) < len(shown):
            raise ConfigError(f"not a task of the world {self.name!r}", value=canonical_json(dict(task.spec)))
        if task.spec.get("book") != (self.book.digest if self.book else None):
            raise VersionMismatch(
                "a task of another recipe book", value=task.spec.get("book"), expected=self.book and self.book.digest
            )
        book = self.book or Book(recipes)
        title = "Crafting commands:\n" if self.book else ""
        first = f"{title}{chr(10).join(map(str, recipes))}\n\nGoal: craft {goal}."
        return _Scene(book, goal, first, _legal(book, recipes, goal), self.most)


_Draw = Callable[[str], Iterator[Candidate]]


def _legal(book: Book, shown: Sequence[Recipe], goal: str) -> tuple[str, ...]:
    """The actions that the shown recipes speak of: raw items up to the largest count of any use, crafts, inventory."""
    raw = set(book.raw)
    items = dict.fromkeys(name for recipe in shown for slot in recipe.inputs for name in book.choices(slot.name))
    counts = [slot.count for recipe in shown for slot in recipe.inputs]
    counts += [int(action.split()[1]) for action in book.plan(goal) if action.startswith("get ")]
    gets = [f"get {n} {item}" for item in items if item in raw for n in range(1, max(counts) + 1)]
    crafts = [str(variant) for recipe in shown for variant in book.variants(recipe)]
    return (*gets, *crafts, "inventory")


def _known(name: str, book: Book) -> tuple[_Draw, Sequence[str]]:
    """One task for every item that can be made; the deepest items are the tier `longer`. A goal has one split."""
    goals = sorted((item for item in book.of if item in book.depth), key=lambda item: sample_seed("goal", name, item))
    deepest = max(book.depth.values())

    def draw(tier: str) -> Iterator[Candidate]:
        for goal in goals:
            if (tier == "longer") == (book.depth[goal] == deepest):
                spec: dict[str, Json] = {"book": book.digest, "recipes": _show(name, book, goal), "goal": goal}
                yield Candidate(spec, goal, tier, goal)

    return draw, ("seen", "longer")


def _show(name: str, book: Book, goal: str) -> list[str]:
    """The recipes that the plan needs and up to ten others that use the same ingredients, in an order drawn by goal."""
    rng = Random(sample_seed("show", name, book.digest, goal))
    needed = [str(book.match(recipe)) for recipe in book.needed(goal)]
    names = {slot.name for recipe in book.needed(goal) for slot in recipe.inputs}
    names |= {tag for tag, members in book.tags.items() if names & set(members)}
    others = {str(recipe) for recipe in book.recipes if any(slot.name in names for slot in recipe.inputs)} - set(needed)
    drawn = sorted(sorted(others), key=lambda line: rng.random())[:10]
    return sorted(dict.fromkeys(needed + drawn), key=lambda line: rng.random())
