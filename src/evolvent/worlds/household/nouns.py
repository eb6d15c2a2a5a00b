"""Household tasks whose object has a noun that was never trained: what POAD (2405.15821) calls unseen tasks.

POAD trains one task, preparing food with a pancake, and tests on others of the same rules (cheese, hamburger, apple
pie, pizza) and of other chores (washing a plate, laundry). Here a room is drawn for a goal of `HouseholdWorld`, and its
object gets another noun, in the goal, in the names and in what is said. Nothing else changes.

- `seen`: the family of heating, with the trained noun;
- `combo`: the same family with nouns that no task of training has;
- `longer`: other chores, of the family of cleaning, with nouns of their own. That family is not trained here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, sample_seed
from evolvent.worlds.base import Info, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar, Parsed, Plain
from evolvent.worlds.household.env import HouseholdEnv
from evolvent.worlds.household.game import Game, Goal, Layout
from evolvent.worlds.household.kinds import possible_goals
from evolvent.worlds.household.plans import explain, explore, plan
from evolvent.worlds.household.rooms import canonical_key, draw_layout
from evolvent.worlds.household.text import Speaker
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["NOUNS", "HouseholdNouns", "swapped"]

_FOOD = ("apple", "bread", "potato", "egg")
NOUNS: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "seen": {"pancake": ("heat", _FOOD)},
        "combo": dict.fromkeys(("cheese", "hamburger", "applepie", "pizza"), ("heat", _FOOD)),
        "longer": {
            "dinnerplate": ("clean", ("plate",)),
            "saucer": ("clean", ("bowl",)),
            "teacup": ("clean", ("cup",)),
            "shirt": ("clean", ("cloth",)),
            "sock": ("clean", ("cloth",)),
        },
    }
)
"""Tier -> noun -> the family of its tasks, and the things whose places in a room it takes."""
_ROOMS = {"small": "small", "alfworld": "large"}  # size of the world -> of its rooms
_KNOWN_TASKS = 1024  # games kept ready


def swapped(layout: Layout, goal: Goal, noun: str) -> tuple[Layout, Goal]:
    """The same room and goal with another noun for all things of the goal's type. New objects; nothing is shared.

    Args:
        noun: one word that no thing of the room has.
    """
    old = goal.object
    new = {one: f"{noun}{one.removeprefix(old)}" if kind == old else one for one, kind in layout.objects.items()}
    changed = Layout(
        receptacles=dict(layout.receptacles),
        objects={new[one]: noun if kind == old else kind for one, kind in layout.objects.items()},
        stands=dict(layout.stands),
        lies=[(new[one], place) for one, place in layout.lies],
        inside=[(new[one], receptacle) for one, receptacle in layout.inside],
        within=[(new[one], new[outer]) for one, outer in layout.within],
        openable=set(layout.openable),
        opened=set(layout.opened),
        properties={name: {new[one] for one in of} for name, of in layout.properties.items()},
        holds={(kind, noun if thing == old else thing) for kind, thing in layout.holds},
        start=layout.start,
    )
    return changed, goal._replace(object=noun)


class HouseholdNouns:
    """The household with swapped nouns.

    Args:
        dialect, size, penalty, sizes, horizon: as of `HouseholdWorld`.
    Raises:
        ConfigError: as `HouseholdWorld`.
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = tuple(NOUNS)
    blocking = False

    def __init__(
        self,
        dialect: str = "0.4",
        *,
        size: str = "small",
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        self._base = HouseholdWorld(dialect, size=size, penalty=penalty, sizes=sizes, horizon=horizon)
        self.name = self._base.name.replace("household", "household-nouns")
        self.instructions, self.horizon = self._base.instructions, self._base.horizon
        self.reward_range, self.penalty, self.size = self._base.reward_range, penalty, size
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)
        self._speakers: dict[str, Speaker] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Tasks without end: all nouns with all their goals in turn, except what the expert cannot finish in time."""
        pairs = [(noun, goal) for noun in NOUNS[tier] for goal in _goals(tier, noun)]
        pairs.sort(key=lambda pair: sample_seed("noun", pair[0], *pair[1]))
        for number in count():
            for noun, goal in pairs:
                seed = sample_seed("nouns", noun, number) % 2**31  # no two nouns share their rooms
                spec: dict[str, Json] = {"goal": list(goal), "noun": noun, "seed": seed, "size": self.size}
                game = _game(goal, noun, seed, size=_ROOMS[self.size])
                found = explore(game)
                if found is not None and len(found) <= self.horizon:
                    kind = " ".join((*game.goal, "like", goal.object))
                    yield Candidate(spec, kind, tier, canonical_key(game))

    def key(self, task: Task) -> str:
        """Equal for tasks that differ in numbers, places and wording only; what panels are dealt by."""
        return canonical_key(self._speaker(task).game)

    def make(self, task: Task) -> HouseholdEnv:
        """An Env for a task of this world; ConfigError or VersionMismatch for any other."""
        return HouseholdEnv(task, self._speaker(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return self._base.score(rewards, info)

    def expert(self, task: Task) -> Sequence[str] | None:
        """As of `HouseholdWorld`: a way to the goal that looks for things; None if the horizon is too short."""
        found = self.explained(task)
        return None if found is None else [parsed.action for parsed in found]

    def explained(self, task: Task) -> Sequence[Parsed] | None:
        """As of `HouseholdWorld`: the expert's actions, each with the thought that led to it."""
        speaker = self._speaker(task)
        found = explain(speaker.game)
        if found is None or len(found) > self.horizon:
            return None
        return [Parsed(speaker.say(action), thought) for action, thought in found]

    def planner(self, task: Task) -> Sequence[str] | None:
        """A shortest way to the goal, knowing where everything is."""
        speaker = self._speaker(task)
        found = plan(speaker.game)
        return None if found is None else [speaker.say(action) for action in found]

    def vocabulary(self) -> Sequence[str]:
        """Every word and mark of observations, actions and instructions, sorted; the nouns of all tiers are in it."""
        nouns = {noun for of in NOUNS.values() for noun in of}
        return sorted({*(self._base.vocabulary() or ()), *(word for noun in nouns for word in words_of(noun))})

    def _speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            goal, noun, seed = self._read(task)
            speaker = Speaker(_game(goal, noun, seed, size=_ROOMS[self.size]), self._base.dialect)
            while len(self._speakers) >= _KNOWN_TASKS:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _read(self, task: Task) -> tuple[Goal, str, int]:
        """Goal, noun and seed of a task's spec, or ConfigError with all that is wrong."""
        check_task(self, task)
        words, noun, seed, size = (task.spec.get(name) for name in ("goal", "noun", "seed", "size"))
        tier = next((tier for tier, of in NOUNS.items() if noun in of), None)
        goals = [] if tier is None else _goals(tier, str(noun))
        problems = []
        if tier is None:
            known = ", ".join(name for of in NOUNS.values() for name in of)
            problems.append(Problem("noun", f"{noun!r} is no noun of this world", f"known: {known}"))
        elif not isinstance(words, list | tuple) or tuple(words) not in goals:
            problems.append(Problem("goal", f"{words!r} is no goal for {noun!r}", "a family, a thing, a target"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if size != self.size:
            problems.append(Problem("size", f"{size!r} is not the size of this world", f"give {self.size!r}"))
        if problems:
            raise ConfigError(problems)
        return Goal(*task.spec["goal"]), str(noun), task.spec["seed"]


def _goals(tier: str, noun: str) -> Sequence[Goal]:
    """The goals whose object the noun stands for."""
    family, things = NOUNS[tier][noun]
    return [goal for goal in possible_goals() if goal.family == family and goal.object in things]


def _game(goal: Goal, noun: str, seed: int, *, size: str) -> Game:
    layout, wording = draw_layout(goal, seed, size=size)
    renamed, asked = swapped(layout, goal, noun)
    return Game(renamed, asked, asked.say(wording))
