"""Grid world: rooms, doors, keys and objects, in the manner of MiniGrid and BabyAI, on an engine of our own.

    go to the ball . see grey door closed right 3 , red key left 2
        ->  toggle and go through grey door 1
        ->  see red ball left 2 , blue box ahead 3  ->  go to red ball 1

The agent sees the 7 x 7 cells before it and acts by moves (`turn left`, `drop`, ...) and macros (`go to red
ball 1`). Fulfilling the mission after t of at most T moves earns 1 - 0.9 t / T, as in MiniGrid; every move of a
macro counts. Going to, picking up or opening a wrong object is allowed; it only takes time.

`GridWorld()` has panels of kinds of tasks (see `grid.kinds`): small maps, one to three rooms, missions that take
one to nine actions. Such a task allows two actions more than the expert takes, then it has failed; only
possible actions count. `GridWorld("BabyAI-BossLevel-v0")` is a level of BabyAI and `GridWorld("babyai")` the
forty of AgentGym, drawn by a generator of our own and bounded by their moves alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any, Literal

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Score, Task, Value
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.kinds import list_kinds_by_tier
from evolvent.worlds.grid.levels import LEVELS, draw_level, full_level_name
from evolvent.worlds.grid.map import COLOURS, TYPES
from evolvent.worlds.grid.mission import Progress
from evolvent.worlds.grid.scene import (
    CHECK,
    REFUSALS,
    Scene,
    Turn,
    apply_action,
    build_turn,
    explain_refusal,
    parse_action,
)
from evolvent.worlds.grid.spec import build_scene, canonical_key, recolor_spec
from evolvent.worlds.grid.tasks import iterate_candidates
from evolvent.worlds.grid.view import FULL_WORDS
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes, choose_split

__all__ = ["GridEnv", "GridWorld"]

_MAX_CACHED_SCENES = 4096  # scenes kept ready
_SEEDS_PER_TASK = 4  # seeds drawn for each task of a level's panels, until they are full
_MAX_PLAN_LENGTH = 300  # actions of an expert
_DONE, _FAILED, _NO_ACTIONS_LEFT = "mission fulfilled", "mission failed", "no actions left"
_COMPLETED = "The task is completed."
_WORDS = (
    *COLOURS,
    *TYPES,
    *REFUSALS,
    _DONE,
    _FAILED,
    _NO_ACTIONS_LEFT,
    "hold see nothing . , ahead left right",
    "open closed locked door",
    "go to the object on your left right behind you pick up open put next to and then after you",
    "turn left turn right move forward pick up drop toggle go to go through toggle and go through drop next to",
)
_FULL_INSTRUCTIONS = (
    "Fulfil the goal in a house of rooms; you see what is in front of you. Actions: turn left, turn right, move "
    "forward, drop, toggle, go to red ball 1, pickup red ball 1, go through red open door 1, toggle and go through red "
    "closed door 1, go to goal, check available actions. The number tells the nearest thing of a name from the next. "
    "A locked door needs the key of its colour. You can carry one thing."
)
_LEVEL_WORDS = ("a in front of you goal",)


@dataclass(frozen=True, slots=True)
class _State:
    """The state of an episode: what the agent sees and may do, the progress, and two counts."""

    turn: Turn
    progress: Progress
    moves: int = 0
    tries: int = 0


class GridEnv(StateEnv[_State]):
    """One episode."""

    def __init__(self, task: Task, scene: Scene, penalty: float) -> None:
        super().__init__(task, _State(build_turn(scene, scene.board.start), Progress()))
        self._scene, self._penalty = scene, penalty

    @property
    def moves(self) -> int:
        """Returns the number of moves of the episode: MiniGrid's step count."""
        return self._state.moves

    def _observe_start(self) -> tuple[Value, Info]:
        turn, text = self._start.turn, self._scene.mission.text
        return f"{text} . {turn.text}" if self._scene.short_text else f"Your goal: {text}\n{turn.text}", _info(turn)

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        scene, turn, moves = self._scene, state.turn, state.moves
        name = action if isinstance(action, str) and action in turn.actions else parse_action(turn, str(action))
        if name is None:
            return self._reply_to_invalid(state, str(action))
        outcome = apply_action(scene, turn, name, progress=state.progress)
        if moves + outcome.num_moves > scene.max_moves:
            outcome = apply_action(scene, turn, name, progress=state.progress, limit=scene.max_moves - moves)
        next_turn = build_turn(scene, outcome.pose)
        next_state = _State(next_turn, outcome.progress, moves + outcome.num_moves, state.tries)
        if outcome.is_fulfilled is not None:
            return next_state, self._end(next_state, outcome.is_fulfilled)
        return self._continue(next_state, next_turn.text)

    def _continue(self, state: _State, text: str) -> tuple[_State, Reply]:
        """Returns the state and the reply after an action that did not end the mission; a limit may still end the
        episode.
        """
        info, next_state = _info(state.turn), replace(state, tries=state.tries + 1)
        if next_state.tries == self._scene.max_actions:
            return next_state, (_NO_ACTIONS_LEFT, 0.0, True, False, info)
        return next_state, (text, 0.0, False, state.moves >= self._scene.max_moves, info)

    def _end(self, state: _State, fulfilled: bool) -> Reply:
        reward = 1.0 - 0.9 * state.moves / self._scene.max_moves if fulfilled else 0.0
        text = _DONE if fulfilled else _FAILED
        if not self._scene.short_text and fulfilled:
            text = f"{state.turn.text}\n{_COMPLETED}"
        return text, reward, True, False, _info(state.turn)

    def _reply_to_invalid(self, state: _State, text: str) -> tuple[_State, Reply]:
        """Returns the state and the reply to a text that is not an action; it takes no move, and none of the actions
        that a task allows.
        """
        turn = state.turn
        if not self._scene.short_text and text.lower().strip() == CHECK:
            last_line = turn.text.rpartition("\n")[2]
            actions = ", ".join(turn.admissible)
            return self._continue(state, f"You can take the following actions: {actions}.\n{last_line}")
        return state, (explain_refusal(turn, text), self._penalty, False, False, {**_info(turn), "invalid": True})


def _info(turn: Turn) -> dict[str, object]:
    return {"admissible": turn.admissible}


class GridWorld(DealtOnce):
    """The grid world.

    Args:
        level: "embedded" (kinds of tasks in four tiers), "babyai" (the forty levels of AgentGym), or the name of a
            level of BabyAI, with or without `BabyAI-` and `-v0`. Levels have the tier `seen` alone.
        text: "short", or "babyai" for texts and names of actions like those of AgentGym's server.
        penalty: the reward of an invalid action, 0 or less.
        sizes: the panel sizes. Small levels have fewer distinct tasks than the default requests.
        horizon: maximum number of actions of an episode; AgentGym's 20 is too few for the largest mazes.

    Raises:
        ConfigError: an unknown level or text, a horizon below 1, or a penalty that is positive or not finite.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False
    instructions = (
        "Fulfil the mission in a house of rooms; you see what is before you. Actions: turn left, turn right, move "
        "forward, pick up, drop, toggle, go to red ball 1, pick up red ball 1, drop next to red ball 1, go through red "
        "door 1, toggle and go through red door 1. A locked door needs the key of its colour. You can hold one thing."
    )

    def __init__(
        self,
        level: str = "embedded",
        *,
        text: Literal["short", "babyai"] = "short",
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int = 20,
    ) -> None:
        problems = []
        try:
            self.levels = () if level == "embedded" else LEVELS if level == "babyai" else (full_level_name(level),)
        except ConfigError as error:
            problems += error.problems
        if text not in ("short", "babyai"):
            problems.append(Problem("text", f"unknown text {text!r}", "give 'short' or 'babyai'"))
        if horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} actions, expected at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.name = "babyai" if self.levels else "gridworld"
        self.tiers = TIERS[:1] if self.levels else TIERS
        self.text, self.penalty, self.horizon = text, penalty, horizon
        if text == "babyai":
            self.instructions = _FULL_INSTRUCTIONS
        self.reward_range = (min(0.0, penalty), 1.0)
        self._sizes = sizes or Sizes()
        if len(self.levels) == 1:  # a level is one kind
            self._sizes = replace(self._sizes, per_kind=max(1, self._sizes.dev, self._sizes.test))
        self._scenes: dict[str, Scene] = {}
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=self._sizes, draw=self._draw, recipe=self.recipe
        )

    def _draw(self, tier: str) -> Iterator[Candidate]:
        if not self.levels:
            yield from iterate_candidates(list_kinds_by_tier()[tier], tier)
        num_candidates = self._sizes.train + 10 * max(self._sizes.dev, self._sizes.test)
        for seed, level in product(range(_SEEDS_PER_TASK * num_candidates // max(1, len(self.levels))), self.levels):
            yield _candidate(level, seed)

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an index of AgentGym's BabyAI: its level and its seed, but not the same map.

        Raises:
            ConfigError: this world is not a level of BabyAI, or the index is below 0.
        """
        if not self.levels or index < 0:
            raise ConfigError("AgentGym index out of range", value=index, hint="give 0 or more to GridWorld('babyai')")
        candidate = _candidate(LEVELS[index % len(LEVELS)], index // len(LEVELS))
        return Task(
            self.name, self.version, candidate.spec, candidate.kind, candidate.tier, choose_split(self.name, candidate)
        )

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> GridEnv:
        """Creates an Env for one task of this world, or for any map and mission (see `grid.spec`).

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version.
        """
        return GridEnv(task, self._scene(task), self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the mission was fulfilled, however late (any reward above 0); unit = that
        reward, else 0.

        raw = the sum of the rewards, penalties included.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        best_reward = max(known_rewards, default=0.0)
        return Score(float(sum(known_rewards)), max(0.0, best_reward), best_reward > 0.0)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns actions that fulfill the mission: macros to objects in view, right turns until an object is in
        view.
        """
        return solve(self._scene(task), max_actions=_MAX_PLAN_LENGTH)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in colors, rotation or reflection; panels are dealt
        by it.
        """
        self._check(task)
        return canonical_key(_map_spec(task.spec))

    def rename(self, task: Task, rng: Random) -> Task:
        """Draws new colors and a rotation for a task: another id; the same key, kind, tier and split.

        Raises:
            ConfigError: the task is a level of BabyAI, which is a name and a seed.
        """
        self._check(task)
        if "level" in task.spec:
            raise ConfigError("colors of a level cannot change", value=task.id, hint="use embedded tasks")
        return Task(task.world, task.version, recolor_spec(task.spec, rng), task.kind, task.tier, task.split)

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and possible actions, sorted."""
        texts = [*_WORDS, *map(str, range(1, 10))]
        if self.levels or self.text == "babyai":
            texts += [*_LEVEL_WORDS, *map(str, range(61))]
        if self.text == "babyai":
            texts += [*FULL_WORDS, CHECK, _COMPLETED, 'Your goal: You can take the following actions: ["pickup", ]']
        return sorted({word for text in texts for word in words_of(text)})

    def _scene(self, task: Task) -> Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            self._check(task)
            scene = build_scene(_map_spec(task.spec), short_text=self.text == "short")
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _check(self, task: Task) -> None:
        check_task(self, task)


def _candidate(level: str, seed: int) -> Candidate:
    return Candidate({"level": level, "seed": seed}, level, "seen", canonical_key(draw_level(level, seed)))


def _map_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the spec of a map, drawn where a spec names a level and a seed."""
    if "level" not in spec:
        return spec
    level, seed = spec["level"], spec.get("seed")
    problems = [] if isinstance(level, str) else [Problem("level", f"got {level!r}, expected the name of a level")]
    if not isinstance(seed, int) or isinstance(seed, bool):
        seed = -1
        problems.append(Problem("seed", f"got {spec.get('seed')!r}, expected a whole number"))
    problems += [Problem(str(name), "unknown", "known: level, seed") for name in spec if name not in ("level", "seed")]
    if problems:
        raise ConfigError(problems)
    return draw_level(level, seed)
