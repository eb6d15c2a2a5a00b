"""BabyAI played by the package minigrid: its levels and rules, with the texts and macros of our grid world.

MiniGrid draws the map from the seed, moves the agent, checks the mission and gives the reward. The observation
texts and the translation of `go to red ball 1` into moves are ours (`grid.view`, `grid.plan`), read from
MiniGrid's grid at every step. The tasks are AgentGym's: index i is level i mod 40, counted from 0, with seed i
div 40.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from evolvent.errors import ConfigError, EnvLost, Problem, boundary
from evolvent.trajectory import JsonObject, Score, Task
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.wrapped import (
    Extra,
    WrappedWorld,
    common_problems,
    make_candidate,
    read_number,
    redirect_prints,
    widen_sizes,
)
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.levels import LEVELS, full_level_name
from evolvent.worlds.grid.map import DOOR, FIRST_OBJECT_CODE, FLOOR, GOAL, LETTERS, WALL, Board, Pose
from evolvent.worlds.grid.plan import expand_macro
from evolvent.worlds.grid.scene import CHECK, Scene, Turn, build_turn, explain_refusal, parse_action
from evolvent.worlds.grid.spec import build_scene, canonical_key
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.panel import Candidate, Sizes, choose_split

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

__all__ = ["MiniGridBabyAI", "map_of"]

MINIGRID = Extra("babyai", "minigrid", "BabyAI by minigrid")
_KNOWN_TASKS = 1024  # scenes kept ready
_MAX_PLAN_LENGTH = 300  # actions of an expert
_DONE, _FAILED = "The task is completed.", "mission failed"
_AGENT = (">.", "v.", "<.", "^.")
_CELLS_WITHOUT_COLOUR = {"wall": ("##", WALL), "goal": ("GG", GOAL)}


class MiniGridBabyAI(WrappedWorld):
    """BabyAI played by minigrid.

    Args:
        level: "babyai" (the forty levels of AgentGym), or the name of one level, with or without `BabyAI-` and
            `-v0`.
        text: "babyai" (AgentGym's server) or "short" (ours).
        horizon: maximum number of actions of an episode; 20 is AgentGym's. MiniGrid's own limit of moves holds as
            well.
        sizes, penalty: see `WrappedWorld`.

    Raises:
        ConfigError: an unknown level or text, an invalid horizon or penalty; lists all problems.
        MissingExtra: minigrid is not installed.
    """

    name = "minigrid"

    def __init__(
        self,
        level: str = "babyai",
        *,
        text: Literal["babyai", "short"] = "babyai",
        horizon: int = 20,
        sizes: Sizes | None = None,
        penalty: float = 0.0,
    ) -> None:
        problems = common_problems(horizon=horizon, penalty=penalty)
        try:
            self.levels = LEVELS if level == "babyai" else (full_level_name(level),)
        except ConfigError as error:
            problems += error.problems
        if text not in ("babyai", "short"):
            problems.append(Problem("text", f"unknown text {text!r}", "give 'babyai' or 'short'"))
        if problems:
            raise ConfigError(problems)
        self.plain, self.horizon = text == "short", horizon
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = GridWorld("babyai", text=text).instructions
        self._scenes: dict[str, Scene] = {}
        super().__init__(MINIGRID, sizes=widen_sizes(sizes, len(self.levels)), penalty=penalty)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for seed in count():
            for level in self.levels:
                yield make_candidate({"level": level, "seed": seed}, level)

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an index of AgentGym's BabyAI; raises ConfigError for an index below 0."""
        if type(index) is not int or index < 0:
            raise ConfigError("AgentGym index out of range", value=index, expected="a whole number of at least 0")
        candidate = make_candidate(
            {"level": LEVELS[index % len(LEVELS)], "seed": index // len(LEVELS)}, LEVELS[index % len(LEVELS)]
        )
        return Task(
            self.name, self.version, candidate.spec, candidate.kind, candidate.tier, choose_split(self.name, candidate)
        )

    def _open_session(self, task: Task) -> _LevelSession:
        seed = read_number(task.spec, "seed", names=("level", "seed"))
        level = task.spec["level"]
        return _LevelSession(self, task.id, full_level_name(level if isinstance(level, str) else repr(level)), seed)

    def scene(self, task_id: str, spec: Mapping[str, object]) -> Scene:
        """Builds the scene of a task whose map was read, or returns the cached one."""
        scene = self._scenes.get(task_id)
        if scene is None:
            scene = build_scene(spec, short_text=self.plain)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)), None)
            self._scenes[task_id] = scene
        return scene

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the mission was fulfilled, however late (a reward above 0); unit = that
        reward, else 0.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        best_reward = max(known_rewards, default=0.0)
        return Score(math.fsum(known_rewards), max(0.0, best_reward), best_reward > 0.0)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the plan of our expert on MiniGrid's map: macros to visible things, right turns until a thing is
        visible.
        """
        check_task(self, task)
        session = self._open_session(task)
        with boundary(EnvLost, "minigrid could not begin", task=task.id):
            session.begin()
        session.close()
        return solve(self._scenes[task.id], max_actions=_MAX_PLAN_LENGTH)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in colors, rotation or reflection, as small levels
        have.
        """
        check_task(self, task)
        session = self._open_session(task)
        with boundary(EnvLost, "minigrid could not begin", task=task.id):
            session.begin()
            key = canonical_key(session.spec)
        session.close()
        return key


class _LevelSession:
    """An episode of a level."""

    def __init__(self, world: MiniGridBabyAI, task_id: str, level: str, seed: int) -> None:
        self._world, self._task_id, self._level, self._seed = world, task_id, level, seed
        self._env: Any = None
        self._codes: dict[int, int] = {}
        self._kept: list[object] = []  # so that no other thing gets the identity of one that was taken away
        self.spec: dict[str, Any] = {}

    def begin(self) -> tuple[str, Info]:
        if self._env is None:
            self._env = _make_env(self._level)
        self._env.reset(seed=self._seed)
        minigrid_env = self._env.unwrapped
        self.spec = {**map_of(minigrid_env), **({"strict": 1} if self._level.endswith("Debug-v0") else {})}
        self._scene = self._world.scene(self._task_id, self.spec)
        self._register_objects(minigrid_env, self._scene.board)
        turn = self._observe()
        text = self._scene.mission.text
        return f"{text} . {turn.text}" if self._scene.short_text else f"Your goal: {text}\n{turn.text}", _info(turn)

    def _register_objects(self, minigrid_env: MiniGridEnv, board: Board) -> None:
        """Records the board's code of each of MiniGrid's objects; for a door, the code of its open state."""
        self._codes, self._kept = {}, []

        def register(minigrid_object: Any, code: int) -> None:
            state = (
                ("open", "closed", "locked").index(board.get_object(code).state) if minigrid_object.type == DOOR else 0
            )
            self._codes[id(minigrid_object)] = code - state
            self._kept.append(minigrid_object)
            if minigrid_object.type == "box" and minigrid_object.contains is not None:
                register(minigrid_object.contains, board.inside[code])

        for minigrid_object, (x, y) in _iterate_objects(minigrid_env.grid):
            register(minigrid_object, board.start.cells[board.cell_number(x, y)])
        if minigrid_env.carrying is not None:
            register(minigrid_env.carrying, board.start.held_code)

    def _observe(self) -> Turn:
        """Reads the pose from MiniGrid's current state and returns its turn."""
        minigrid_env, board = self._env.unwrapped, self._scene.board
        cells = bytearray(board.start.cells)
        for y in range(minigrid_env.grid.height):
            first = minigrid_env.grid.width * y
            row = minigrid_env.grid.grid[first : first + minigrid_env.grid.width]
            row_start = board.cell_number(0, y)
            cells[row_start : row_start + len(row)] = bytes(self._code_of(minigrid_object) for minigrid_object in row)
        x, y = map(int, minigrid_env.agent_pos)
        hold = self._code_of(minigrid_env.carrying) if minigrid_env.carrying is not None else 0
        self._turn = build_turn(
            self._scene, Pose(bytes(cells), board.cell_number(x, y), int(minigrid_env.agent_dir), hold)
        )
        return self._turn

    def _code_of(self, minigrid_object: Any) -> int:
        if minigrid_object is None:
            return FLOOR
        code = self._codes[id(minigrid_object)]
        if minigrid_object.type == DOOR and code >= FIRST_OBJECT_CODE:
            return code + (0 if minigrid_object.is_open else 2 if minigrid_object.is_locked else 1)
        return code

    def act(self, action: str) -> Reply:
        turn, plain = self._turn, self._scene.short_text
        name = parse_action(turn, action)
        if name is None:
            if not plain and action.lower().strip() == CHECK:
                listing = f"You can take the following actions: {', '.join(turn.admissible)}."
                return f"{listing}\n{turn.text.rpartition(chr(10))[2]}", 0.0, False, False, _info(turn)
            return explain_refusal(turn, action), 0.0, False, False, {**_info(turn), "invalid": True}
        reward, terminated, truncated = 0.0, False, False
        for move in expand_macro(turn.actions[name], turn.sight):
            _, reward, terminated, truncated, _ = self._env.step(move)
            if terminated or truncated:
                break
        turn = self._observe()
        text = turn.text
        if terminated:
            text = f"{turn.text}\n{_DONE}" if reward > 0 else _FAILED
        return text, float(reward), bool(terminated), bool(truncated and not terminated), _info(turn)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None


def _info(turn: Turn) -> dict[str, object]:
    return {"admissible": turn.admissible}


def _make_env(level: str) -> Any:
    """Creates MiniGrid's environment of a level, whose name depends on the version of minigrid."""
    gymnasium = MINIGRID.load_module("gymnasium")
    MINIGRID.load_module("minigrid")
    redirect_prints("minigrid.envs.babyai.core")  # its generator prints every map that it rejects
    names = (level, f"{level.removesuffix('-v0')}-v1")
    registered_name = next((name for name in names if name in gymnasium.registry), None)
    if registered_name is None:
        raise ConfigError("unknown level in this version of minigrid", value=level)
    return gymnasium.make(registered_name, disable_env_checker=True)


def _iterate_objects(grid: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yields the objects of MiniGrid's grid with their positions, walls and goals included."""
    for number, minigrid_object in enumerate(grid.grid):
        if minigrid_object is not None:
            yield minigrid_object, (number % grid.width, number // grid.width)


def _render_object(minigrid_object: Any) -> str:
    """Renders an object as the two characters of our maps."""
    if minigrid_object.type in _CELLS_WITHOUT_COLOUR:
        return _CELLS_WITHOUT_COLOUR[minigrid_object.type][0]
    state = (
        ("open" if minigrid_object.is_open else "locked" if minigrid_object.is_locked else "closed")
        if minigrid_object.type == DOOR
        else ""
    )
    return LETTERS[minigrid_object.color] + LETTERS[state or minigrid_object.type]


def map_of(minigrid_env: MiniGridEnv) -> JsonObject:
    """Builds the spec of our grid world (see `grid.spec`) from the current state of a minigrid environment.

    Raises:
        KeyError: the grid holds an object that BabyAI does not have.
    """
    grid = minigrid_env.grid
    cells = [[".."] * grid.width for _ in range(grid.height)]
    for minigrid_object, (x, y) in _iterate_objects(grid):
        cells[y][x] = _render_object(minigrid_object)
    x, y = map(int, minigrid_env.agent_pos)
    cells[y][x] = _AGENT[int(minigrid_env.agent_dir)]
    inside = [
        [x, y, _render_object(minigrid_object.contains)]
        for minigrid_object, (x, y) in _iterate_objects(grid)
        if minigrid_object.type == "box" and minigrid_object.contains
    ]
    spec: dict[str, Any] = {
        "map": ["".join(row) for row in cells],
        "mission": minigrid_env.mission,
        "moves": minigrid_env.max_steps,
        "inside": inside,
    }
    return {**spec, "hold": _render_object(minigrid_env.carrying)} if minigrid_env.carrying else spec
