"""Household: ALFWorld's tasks in rooms of our own, or in a folder of ALFWorld's games.

    You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, a drawer 2, and a drawer 1.
    Your task is to: put some pen on desk.
        ->  go to drawer 2  ->  You arrive at drawer 2. The drawer 2 is closed.  ->  open drawer 2  ->  ...

Six families of tasks; the texts, the possible actions and the end of an episode are those of alfworld 0.4.2, in one
of two dialects. Nothing is seen before it is gone to and opened, so most of a task is searching. See `kinds` for the
tiers, `rules` for the rules, `text` for the dialects, `games` for game files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, CorruptRecord, Problem, VersionMismatch, WorldError, unknown
from evolvent.trajectory import Json, Score, Step, Task
from evolvent.worlds.base import TIERS, Info, check_task, score_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar, Parsed, Plain
from evolvent.worlds.household.collection import Collection
from evolvent.worlds.household.env import HouseholdEnv
from evolvent.worlds.household.game import Game, Goal
from evolvent.worlds.household.games import OfficialTexts, write_game
from evolvent.worlds.household.kinds import kind_of, rounds
from evolvent.worlds.household.plans import explain, explore, plan, thoughts_said
from evolvent.worlds.household.rooms import SIZES, canonical_key, draw_game, draw_layout, rooms_for
from evolvent.worlds.household.rules import Action
from evolvent.worlds.household.text import DIALECTS, Speaker, words_said
from evolvent.worlds.household.things import PROPERTIES, ROOMS
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["HouseholdWorld"]

_KNOWN_TASKS = 1024  # games kept ready
_GROWN = {"small": ("small", "medium"), "alfworld": ("large", "huge")}  # size -> rooms, and those of `longer`
_HORIZONS = {"small": 30, "alfworld": 50}  # AgentGym's and alfworld's own
_MOST_THINGS = 3  # of one type in a room


class HouseholdWorld:
    """The household world.

    Args:
        dialect: "0.4" (`move X to Y`) or "0.3" (`put X in/on Y`, as most published prompts have it).
        size: "small" rooms (6 to 8 receptacles; 9 to 11 in `longer`), or "alfworld" (20 to 24; 25 to 27).
        games: a folder of ALFWorld's games to play instead of generated rooms; see `collection` for its splits.
        penalty: the reward of an action that is none or impossible, 0 or less.
        sizes: the sizes of the panels; with `games`, at most so many tasks of each split (None: all).
        horizon: how many actions an episode may take (None: 30 as in AgentGym; 50 as in alfworld for its size).

    Raises:
        ConfigError: an unknown dialect or size, a horizon below 1, a penalty that is positive or not finite, or a
            folder without games.
    """

    version = "1"
    grammar: Grammar = Plain()
    blocking = False

    def __init__(
        self,
        dialect: str = "0.4",
        *,
        size: str = "small",
        games: str | Path | None = None,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        problems = [] if dialect in DIALECTS else [unknown("dialect", str(dialect), DIALECTS)]
        if size not in _GROWN:
            problems.append(unknown("size", str(size), _GROWN))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.dialect, self.size, self.penalty = DIALECTS[dialect], size, penalty
        self.horizon = horizon or (_HORIZONS["small"] if games else _HORIZONS[size])
        self.reward_range = (min(0.0, penalty), 1.0)
        base = "alfworld" if games else "household" if size == "small" else "household-large"
        self.name = base + ("" if dialect == "0.4" else "-03")
        self.instructions = _instructions(self.dialect.put, helps=self.dialect.helps)
        self.tiers = TIERS
        self.collection: Collection | None = None
        if games:
            self.collection = Collection(games, (self.name, self.version), dialect=dialect, sizes=sizes)
            self.tiers = self.collection.tiers
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)
        self._speakers: dict[str, Speaker] = {}

    @property
    def broken(self) -> Mapping[str, CorruptRecord]:
        """The files of the folder that are no games, as far as they were read, with what is wrong with them."""
        return {} if self.collection is None else dict(self.collection.broken)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier) if self.collection is None else self.collection.tasks(split, tier)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Tasks without end, of all kinds of the tier in turn, except those that the expert cannot finish in time."""
        size = _GROWN[self.size][tier == "longer"]
        for goal, seed in rounds(tier):
            game = draw_game(goal, seed, size=size)
            found = explore(game)
            if found is not None and len(found) <= self.horizon:
                spec: dict[str, Json] = {"dialect": self.dialect.name, "goal": list(goal), "seed": seed, "size": size}
                yield Candidate(spec, kind_of(goal, tier), tier, canonical_key(game))

    def key(self, task: Task) -> str:
        """Equal for tasks that differ in numbers, places and wording only; what panels are dealt by."""
        return canonical_key(self._speaker(task).game)

    def make(self, task: Task) -> HouseholdEnv:
        """An Env for a task of this world.

        Raises:
            ConfigError: for a task of another world, or a spec that is none.
            VersionMismatch: for a task of another version or dialect, or of a game file that was changed.
            CorruptRecord: for a game file that is no game any more.
        """
        return HouseholdEnv(task, self._speaker(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """A way to the goal that looks for things and acts only on what it has seen; None if the horizon is too short.

        It is what demonstrations are made of: a plan that knew where things are would teach to guess.
        """
        found = self.explained(task)
        return None if found is None else [parsed.action for parsed in found]

    def explained(self, task: Task) -> Sequence[Parsed] | None:
        """The expert's actions, each with the thought that led to it, which says nothing that was not seen before."""
        speaker = self._speaker(task)
        found = explain(speaker.game)
        if found is None or len(found) > self.horizon:
            return None
        return [Parsed(speaker.say(action), thought) for action, thought in found]

    def demonstration(self, task: Task) -> tuple[Step, ...]:
        """The expert's episode step by step, each with its thought: what a memory or a learner of thoughts is given.

        Raises:
            WorldError: the expert does not reach the goal within the horizon.
        """
        plan = self.explained(task)
        if plan is None:
            raise WorldError(f"world {self.name!r} has no expert for this task", value=task.id)
        env = self.make(task)
        observation, _ = env.reset()
        steps = []
        for parsed in plan:
            seen = observation
            observation, reward, _, _, _ = env.step(parsed.action)
            steps.append(Step(seen, parsed.action, reward, parsed.thought))
        return tuple(steps)

    def planner(self, task: Task) -> Sequence[str] | None:
        """A shortest way to the goal, knowing where everything is: the least that any agent can need."""
        return self._said(task, plan(self._speaker(task).game))

    def _said(self, task: Task, found: Sequence[Action] | None) -> list[str] | None:
        return None if found is None else [self._speaker(task).say(action) for action in found]

    def write_game(self, task: Task, folder: str | Path, *, texts: OfficialTexts) -> Path:
        """Write a generated task as a game that alfworld can play; returns the path of the game file.

        Args:
            texts: alfworld's own, see `games.official_texts`.
        Raises:
            ConfigError: for a task of a game file, or one that is none of this world.
            NoSpace, StoreUnavailable: the folder cannot be written to.
        """
        if self.collection is not None:
            raise ConfigError("a task that is a game file already", value=task.spec.get("game"))
        goal, seed, size = self._read(task)
        layout, wording = draw_layout(goal, seed, size=size)
        return write_game(folder, layout, goal, task=goal.say(wording), texts=texts)

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations, actions and instructions, sorted; None for a folder of games."""
        if self.collection is not None:
            return None
        rooms = _GROWN[self.size]
        most = max(counts[self.size == "alfworld"] for room in ROOMS.values() for counts in room.furniture.values())
        most = max(most, _MOST_THINGS, SIZES[rooms[1]][1] + 1 if self.dialect.by_place else 0)
        texts = (
            *PROPERTIES,
            *(kind for room in ROOMS.values() for kind in room.furniture),
            *map(str, range(1, most + 1)),
            words_said(self.dialect),
            *thoughts_said(),
            self.instructions,
        )
        return sorted({word for text in texts for word in words_of(text)})

    def _speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            speaker = Speaker(self._game(task), self.dialect)
            while len(self._speakers) >= _KNOWN_TASKS:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _game(self, task: Task) -> Game:
        check_task(self, task)
        if task.spec.get("dialect") != self.dialect.name:
            raise VersionMismatch(
                "a task in another dialect", value=task.spec.get("dialect"), expected=self.dialect.name
            )
        if self.collection is not None:
            return self.collection.game(task)
        goal, seed, size = self._read(task)
        return draw_game(goal, seed, size=size)

    def _read(self, task: Task) -> tuple[Goal, int, str]:
        """Goal, seed and size of a generated task's spec, or ConfigError with all that is wrong."""
        check_task(self, task)
        spec = task.spec
        goal, seed, size = spec.get("goal"), spec.get("seed"), spec.get("size")
        known = ("dialect", "goal", "seed", "size")
        problems = [Problem(str(name), "unknown", f"known: {', '.join(known)}") for name in spec if name not in known]
        words = list(goal) if isinstance(goal, list | tuple) else []
        if len(words) != 3 or not all(isinstance(word, str) for word in words) or not rooms_for(Goal(*words)):
            problems.append(Problem("goal", f"{goal!r} is no goal of any room", "give a family, an object, a target"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if not isinstance(size, str) or size not in SIZES:
            problems.append(Problem("size", f"{size!r} is no size of rooms", f"known: {', '.join(SIZES)}"))
        if problems:
            raise ConfigError(problems)
        return Goal(*words), int(str(seed)), str(size)


def _instructions(put: str, *, helps: bool) -> str:
    """What an agent is told: the actions in the dialect's words."""
    return (
        "Do the task in a room. You see what is in or on a receptacle when you go to it and, if it is closed, open it. "
        "Actions: go to desk 1; open drawer 1; close drawer 1; take pen 1 from drawer 1; "
        f"{put.format('pen 1', 'desk 1')}; clean mug 1 with sinkbasin 1; heat mug 1 with microwave 1; cool mug 1 with "
        "fridge 1; use desklamp 1; slice apple 1 with knife 1; examine desk 1; look; inventory"
        f"{'; help' if helps else ''}. You can hold one object. If an action is not possible, nothing happens."
    )
