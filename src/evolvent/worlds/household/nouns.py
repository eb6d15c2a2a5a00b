"""Household tasks whose object has an untrained noun: the unseen tasks of POAD (2405.15821).

POAD trains one task, preparing food with a pancake, and tests on others of the same rules (cheese, hamburger,
apple pie, pizza) and of other chores (washing a plate, laundry). Here a room is drawn for a goal of
`HouseholdWorld`, and its object gets another noun, in the goal, in the names and in the texts. Nothing else
changes.

- `seen`: the family of heating, with the trained noun;
- `combo`: the same family with nouns that no training task has;
- `longer`: other chores, of the family of cleaning, with nouns of their own. That family is not trained here
  either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, sample_seed
from evolvent.worlds.base import Grammar, Info, Parsed, Plain, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.household.env import HouseholdEnv
from evolvent.worlds.household.game import Game, Goal, Layout
from evolvent.worlds.household.kinds import list_possible_goals
from evolvent.worlds.household.plans import explain, explore, plan
from evolvent.worlds.household.rooms import canonical_key, draw_layout
from evolvent.worlds.household.text import Speaker
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = ["NOUNS", "HouseholdNouns", "swap_noun"]

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
_ROOM_SIZE = {"small": "small", "alfworld": "large"}  # size of the world -> of its rooms
_MAX_CACHED_GAMES = 1024  # games kept ready


def swap_noun(layout: Layout, goal: Goal, noun: str) -> tuple[Layout, Goal]:
    """Replaces the noun of all objects of the goal's type in a room and goal. The results share nothing with the
    input.

    Args:
        noun: one word that no object of the room has.
    """
    old_noun = goal.object
    new_ids = {
        id_: f"{noun}{id_.removeprefix(old_noun)}" if kind == old_noun else id_ for id_, kind in layout.objects.items()
    }
    new_layout = Layout(
        receptacles=dict(layout.receptacles),
        objects={new_ids[id_]: noun if kind == old_noun else kind for id_, kind in layout.objects.items()},
        place_of_receptacle=dict(layout.place_of_receptacle),
        object_places=[(new_ids[id_], place_id) for id_, place_id in layout.object_places],
        object_receptacles=[(new_ids[id_], receptacle) for id_, receptacle in layout.object_receptacles],
        object_containers=[(new_ids[id_], new_ids[outer]) for id_, outer in layout.object_containers],
        openable=set(layout.openable),
        opened=set(layout.opened),
        properties={name: {new_ids[id_] for id_ in holders} for name, holders in layout.properties.items()},
        allowed_contents={
            (kind, noun if object_type == old_noun else object_type) for kind, object_type in layout.allowed_contents
        },
        start=layout.start,
    )
    return new_layout, goal._replace(object=noun)


class HouseholdNouns(DealtOnce):
    """The household with swapped nouns.

    Args:
        dialect, size, penalty, sizes, horizon: as in `HouseholdWorld`.
    Raises:
        ConfigError: as in `HouseholdWorld`.
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = tuple(NOUNS)
    run_in_thread = False

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
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )
        self._speakers: dict[str, Speaker] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def _draw(self, tier: str) -> Iterator[Candidate | None]:
        """Yields tasks without end: all nouns with their goals in turn; None where one takes the expert too long."""
        pairs = [(noun, goal) for noun in NOUNS[tier] for goal in _goals_of_noun(tier, noun)]
        pairs.sort(key=lambda pair: sample_seed("noun", pair[0], *pair[1]))
        for number in count():
            for noun, goal in pairs:
                seed = sample_seed("nouns", noun, number) % 2**31  # no two nouns share their rooms
                spec: dict[str, Json] = {"goal": list(goal), "noun": noun, "seed": seed, "size": self.size}
                game = _draw_game(goal, noun, seed, size=_ROOM_SIZE[self.size])
                expert_actions = explore(game)
                if expert_actions is None or len(expert_actions) > self.horizon:
                    yield None
                    continue
                kind = " ".join((*game.goal, "like", goal.object))
                yield Candidate(spec, kind, tier, canonical_key(game))

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in numbers, places and wording; panels are dealt by
        it.
        """
        return canonical_key(self._speaker(task).game)

    def make(self, task: Task) -> HouseholdEnv:
        """Creates an Env for a task of this world; raises ConfigError or VersionMismatch for any other."""
        return HouseholdEnv(task, self._speaker(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return self._base.score(rewards, info)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns a plan that searches for objects, as in `HouseholdWorld`; None if the horizon is too short."""
        rationales = self.explain(task)
        return None if rationales is None else [parsed.action for parsed in rationales]

    def explain(self, task: Task) -> Sequence[Parsed] | None:
        """Returns the expert's actions, each with the thought that led to it, as in `HouseholdWorld`."""
        speaker = self._speaker(task)
        explained_plan = explain(speaker.game)
        if explained_plan is None or len(explained_plan) > self.horizon:
            return None
        return [Parsed(speaker.render_action(action), thought) for action, thought in explained_plan]

    def plan(self, task: Task) -> Sequence[str] | None:
        """Returns a shortest plan that knows where everything is."""
        speaker = self._speaker(task)
        shortest_plan = plan(speaker.game)
        return None if shortest_plan is None else [speaker.render_action(action) for action in shortest_plan]

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations, actions and instructions, sorted; includes the nouns of all
        tiers.
        """
        nouns = {noun for nouns_of_tier in NOUNS.values() for noun in nouns_of_tier}
        return sorted({*(self._base.vocabulary() or ()), *(word for noun in nouns for word in words_of(noun))})

    def _speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            goal, noun, seed = self._parse_spec(task)
            speaker = Speaker(_draw_game(goal, noun, seed, size=_ROOM_SIZE[self.size]), self._base.dialect)
            while len(self._speakers) >= _MAX_CACHED_GAMES:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _parse_spec(self, task: Task) -> tuple[Goal, str, int]:
        """Parses goal, noun and seed of a task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        goal_words, noun, seed, size = (task.spec.get(name) for name in ("goal", "noun", "seed", "size"))
        tier = next((tier for tier, nouns_of_tier in NOUNS.items() if noun in nouns_of_tier), None)
        goals = [] if tier is None else _goals_of_noun(tier, str(noun))
        problems = []
        if tier is None:
            known_nouns = ", ".join(name for nouns_of_tier in NOUNS.values() for name in nouns_of_tier)
            problems.append(Problem("noun", f"unknown noun {noun!r}", f"known: {known_nouns}"))
        elif not isinstance(goal_words, list | tuple) or tuple(goal_words) not in goals:
            problems.append(
                Problem("goal", f"invalid goal {goal_words!r} for {noun!r}", "use a family, an object and a target")
            )
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if size != self.size:
            problems.append(Problem("size", f"got {size!r}, expected {self.size!r}, the size of this world"))
        if problems:
            raise ConfigError(problems)
        return Goal(*task.spec["goal"]), str(noun), task.spec["seed"]


def _goals_of_noun(tier: str, noun: str) -> Sequence[Goal]:
    """Returns the goals whose object the noun can replace."""
    family, object_types = NOUNS[tier][noun]
    return [goal for goal in list_possible_goals() if goal.family == family and goal.object in object_types]


def _draw_game(goal: Goal, noun: str, seed: int, *, size: str) -> Game:
    layout, wording = draw_layout(goal, seed, size=size)
    swapped_layout, swapped_goal = swap_noun(layout, goal, noun)
    return Game(swapped_layout, swapped_goal, swapped_goal.describe(wording))
