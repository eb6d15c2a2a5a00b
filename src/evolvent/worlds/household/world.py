"""Household: ALFWorld's tasks in rooms of our own, or in a folder of ALFWorld's games.

    You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, a drawer 2, and a drawer 1.
    Your task is to: put some pen on desk.
        ->  go to drawer 2  ->  You arrive at drawer 2. The drawer 2 is closed.  ->  open drawer 2  ->  ...

Six families of tasks; the texts, the possible actions and the end of an episode are those of alfworld 0.4.2, in
one of two dialects. Contents are visible only at an open receptacle, so most of a task is searching. See
`kinds` for the tiers, `rules` for the rules, `text` for the dialects, `games` for game files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, CorruptRecord, Problem, VersionMismatch, WorldError, unknown_name_problem
from evolvent.trajectory import Json, Score, Step, Task
from evolvent.worlds.base import TIERS, Grammar, Info, Parsed, Plain, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.household.collection import Collection
from evolvent.worlds.household.env import HouseholdEnv
from evolvent.worlds.household.game import Game, Goal
from evolvent.worlds.household.games import OfficialTexts, write_game
from evolvent.worlds.household.kinds import iterate_goals, kind_name
from evolvent.worlds.household.plans import explain, explore, plan, thought_texts
from evolvent.worlds.household.rooms import SIZES, canonical_key, draw_game, draw_layout, rooms_for
from evolvent.worlds.household.rules import Action
from evolvent.worlds.household.text import DIALECTS, Speaker, dialect_text
from evolvent.worlds.household.things import PROPERTIES, ROOMS
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = ["HouseholdWorld"]

_MAX_CACHED_GAMES = 1024  # games kept ready
_ROOM_SIZES = {"small": ("small", "medium"), "alfworld": ("large", "huge")}  # size -> rooms, and those of `longer`
_HORIZONS = {"small": 30, "alfworld": 50}  # AgentGym's and alfworld's own
_MAX_PER_TYPE = 3  # of one type in a room


class HouseholdWorld(DealtOnce):
    """The household world.

    Args:
        dialect: "0.4" (`move X to Y`) or "0.3" (`put X in/on Y`, as most published prompts have it).
        size: "small" rooms (6 to 8 receptacles; 9 to 11 in `longer`), or "alfworld" (20 to 24; 25 to 27).
        games: a folder of ALFWorld's games to play instead of generated rooms; see `collection` for its splits.
        penalty: the reward of an invalid or impossible action, 0 or less.
        sizes: the panel sizes; with `games`, the maximum number of tasks of each split (None: all).
        horizon: maximum number of actions of an episode (None: AgentGym's 30; alfworld's 50 for its size).

    Raises:
        ConfigError: an unknown dialect or size, a horizon below 1, a penalty that is positive or not finite, or a
            folder without games.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False

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
        problems = [] if dialect in DIALECTS else [unknown_name_problem("dialect", str(dialect), DIALECTS)]
        if size not in _ROOM_SIZES:
            problems.append(unknown_name_problem("size", str(size), _ROOM_SIZES))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.dialect, self.size, self.penalty = DIALECTS[dialect], size, penalty
        self.horizon = horizon or (_HORIZONS["small"] if games else _HORIZONS[size])
        self.reward_range = (min(0.0, penalty), 1.0)
        base = "alfworld" if games else "household" if size == "small" else "household-large"
        self.name = base + ("" if dialect == "0.4" else "-03")
        self.instructions = _build_instructions(self.dialect.put, has_help=self.dialect.has_help)
        self.tiers = TIERS
        self.collection: Collection | None = None
        if games:
            self.collection = Collection(games, (self.name, self.version), dialect=dialect, sizes=sizes)
            self.tiers = self.collection.tiers
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )
        self._speakers: dict[str, Speaker] = {}

    @property
    def broken_files(self) -> Mapping[str, CorruptRecord]:
        """Returns the invalid files of the folder, among those read so far, with their errors."""
        return {} if self.collection is None else dict(self.collection.broken)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier) if self.collection is None else self.collection.tasks(split, tier)

    def task_of_game(self, name: str) -> Task:
        """Returns the task of a game file of the folder, by its path.

        Raises:
            ConfigError: the world plays generated rooms. UnsafePath, CorruptRecord: the path or the file is broken.
        """
        if self.collection is None:
            raise ConfigError("generated rooms have no game files", value=name, hint="name a folder of games")
        return self.collection.task_of_game(name)

    def _draw(self, tier: str) -> Iterator[Candidate | None]:
        """Yields tasks without end, of all kinds of the tier in turn; None where one takes the expert too long."""
        size = _ROOM_SIZES[self.size][tier == "longer"]
        for goal, seed in iterate_goals(tier):
            game = draw_game(goal, seed, size=size)
            expert_actions = explore(game)
            if expert_actions is None or len(expert_actions) > self.horizon:
                yield None
                continue
            spec: dict[str, Json] = {"dialect": self.dialect.name, "goal": list(goal), "seed": seed, "size": size}
            yield Candidate(spec, kind_name(goal, tier), tier, canonical_key(game))

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in numbers, places and wording; panels are dealt by
        it.
        """
        return canonical_key(self._get_speaker(task).game)

    def make(self, task: Task) -> HouseholdEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version or dialect, or its game file has changed.
            CorruptRecord: its game file is no longer a game.
        """
        return HouseholdEnv(task, self._get_speaker(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns a plan that searches for objects and uses observations only; None if the horizon is too short.

        Demonstrations are made of it: a plan that knows where objects are would teach guessing.
        """
        rationales = self.explain(task)
        return None if rationales is None else [parsed.action for parsed in rationales]

    def explain(self, task: Task) -> Sequence[Parsed] | None:
        """Returns the expert's actions, each with the thought that led to it, which uses earlier observations only."""
        speaker = self._get_speaker(task)
        explained_plan = explain(speaker.game)
        if explained_plan is None or len(explained_plan) > self.horizon:
            return None
        return [Parsed(speaker.render_action(action), thought) for action, thought in explained_plan]

    def demonstrate(self, task: Task) -> tuple[Step, ...]:
        """Plays the expert's episode step by step, each with its thought, as data for a memory or a learner of
        thoughts.

        Raises:
            WorldError: the expert does not reach the goal within the horizon.
        """
        rationales = self.explain(task)
        if rationales is None:
            raise WorldError(f"world {self.name!r} has no expert for this task", value=task.id)
        env = self.make(task)
        observation, _ = env.reset()
        steps = []
        for parsed in rationales:
            previous_observation = observation
            observation, reward, _, _, _ = env.step(parsed.action)
            steps.append(Step(previous_observation, parsed.action, reward, parsed.thought))
        return tuple(steps)

    def plan(self, task: Task) -> Sequence[str] | None:
        """Returns a shortest plan that knows where everything is: a lower bound for any agent."""
        return self._render_actions(task, plan(self._get_speaker(task).game))

    def _render_actions(self, task: Task, actions: Sequence[Action] | None) -> list[str] | None:
        return None if actions is None else [self._get_speaker(task).render_action(action) for action in actions]

    def write_game(self, task: Task, folder: str | Path, *, texts: OfficialTexts) -> Path:
        """Writes a generated task as a game that alfworld can play; returns the path of the game file.

        Args:
            texts: alfworld's own texts, see `games.read_official_texts`.
        Raises:
            ConfigError: the task is a game file already, or does not belong to this world.
            NoSpace, StoreUnavailable: the folder cannot be written to.
        """
        if self.collection is not None:
            raise ConfigError("the task is already a game file", value=task.spec.get("game"))
        goal, seed, size = self._parse_spec(task)
        layout, wording = draw_layout(goal, seed, size=size)
        return write_game(folder, layout, goal, task=goal.describe(wording), texts=texts)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations, actions and instructions, sorted; None for a folder of games."""
        if self.collection is not None:
            return None
        rooms = _ROOM_SIZES[self.size]
        max_number = max(
            counts[self.size == "alfworld"] for room_type in ROOMS.values() for counts in room_type.furniture.values()
        )
        max_number = max(max_number, _MAX_PER_TYPE, SIZES[rooms[1]][1] + 1 if self.dialect.names_places else 0)
        texts = (
            *PROPERTIES,
            *(kind for room_type in ROOMS.values() for kind in room_type.furniture),
            *map(str, range(1, max_number + 1)),
            dialect_text(self.dialect),
            *thought_texts(),
            self.instructions,
        )
        return sorted({word for text in texts for word in words_of(text)})

    def _get_speaker(self, task: Task) -> Speaker:
        speaker = self._speakers.get(task.id)
        if speaker is None:
            speaker = Speaker(self._load_game(task), self.dialect)
            while len(self._speakers) >= _MAX_CACHED_GAMES:
                self._speakers.pop(next(iter(self._speakers)))
            self._speakers[task.id] = speaker
        return speaker

    def _load_game(self, task: Task) -> Game:
        check_task(self, task)
        if task.spec.get("dialect") != self.dialect.name:
            raise VersionMismatch(
                "the task uses another dialect", value=task.spec.get("dialect"), expected=self.dialect.name
            )
        if self.collection is not None:
            return self.collection.load_game(task)
        goal, seed, size = self._parse_spec(task)
        return draw_game(goal, seed, size=size)

    def _parse_spec(self, task: Task) -> tuple[Goal, int, str]:
        """Parses goal, seed and size of a generated task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        spec = task.spec
        goal, seed, size = spec.get("goal"), spec.get("seed"), spec.get("size")
        field_names = ("dialect", "goal", "seed", "size")
        problems = [
            Problem(str(name), "unknown", f"known: {', '.join(field_names)}")
            for name in spec
            if name not in field_names
        ]
        goal_words = list(goal) if isinstance(goal, list | tuple) else []
        if (
            len(goal_words) != 3
            or not all(isinstance(word, str) for word in goal_words)
            or not rooms_for(Goal(*goal_words))
        ):
            problems.append(Problem("goal", f"invalid goal {goal!r}", "use a family, an object and a target"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if not isinstance(size, str) or size not in SIZES:
            problems.append(Problem("size", f"unknown room size {size!r}", f"known: {', '.join(SIZES)}"))
        if problems:
            raise ConfigError(problems)
        return Goal(*goal_words), int(str(seed)), str(size)


def _build_instructions(put: str, *, has_help: bool) -> str:
    """Builds the agent's instructions: the actions in the dialect's words."""
    return (
        "Do the task in a room. You see what is in or on a receptacle when you go to it and, if it is closed, open it. "
        "Actions: go to desk 1; open drawer 1; close drawer 1; take pen 1 from drawer 1; "
        f"{put.format('pen 1', 'desk 1')}; clean mug 1 with sinkbasin 1; heat mug 1 with microwave 1; cool mug 1 with "
        "fridge 1; use desklamp 1; slice apple 1 with knife 1; examine desk 1; look; inventory"
        f"{'; help' if has_help else ''}. You can hold one object. If an action is not possible, nothing happens."
    )
