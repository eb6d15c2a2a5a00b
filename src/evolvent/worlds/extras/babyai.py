"""BabyAI as the package minigrid plays it: its levels and rules, with the texts and macros of our grid world.

MiniGrid draws the map from the seed, moves the agent, judges the mission and gives the reward. What is seen and told,
and how `go to red ball 1` becomes moves, is ours (`grid.view`, `grid.plan`), read from MiniGrid's grid at every step.
The tasks are AgentGym's: index i is level i mod 40, counted from 0, with seed i div 40.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from evolvent.errors import ConfigError, EnvLost, Problem, boundary
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.wrapped import Extra, Wrapped, common_problems, indexed, quieted, read_number, widened
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.levels import LEVELS, level_name
from evolvent.worlds.grid.map import DOOR, FIRST, FLOOR, GOAL, LETTERS, WALL, Board, Pose
from evolvent.worlds.grid.plan import moves_of
from evolvent.worlds.grid.scene import CHECK, Scene, Turn, refusal, turn_of, understand
from evolvent.worlds.grid.spec import build_scene, canonical_key
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.panel import Candidate, Sizes, place

__all__ = ["MiniGridBabyAI", "map_of"]

MINIGRID = Extra("babyai", "minigrid", "BabyAI by minigrid")
_KNOWN_TASKS = 1024  # scenes kept ready
_LONGEST = 300  # actions of an expert
_DONE, _FAILED = "The task is completed.", "mission failed"
_AGENT = (">.", "v.", "<.", "^.")
_PLAIN = {"wall": ("##", WALL), "goal": ("GG", GOAL)}


class MiniGridBabyAI(Wrapped):
    """BabyAI by minigrid.

    Args:
        level: "babyai" (the forty levels of AgentGym), or the name of one, with `BabyAI-` and `-v0` or without.
        text: "babyai" (AgentGym's server) or "short" (ours).
        horizon: how many actions an episode may take; 20 is AgentGym's. MiniGrid's own limit of moves holds as well.
        sizes, penalty: see `Wrapped`.

    Raises:
        ConfigError: an unknown level or text, a horizon or a penalty that is none; all of them at once.
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
            self.levels = LEVELS if level == "babyai" else (level_name(level),)
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
        super().__init__(MINIGRID, sizes=widened(sizes, len(self.levels)), penalty=penalty)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for seed in count():
            for level in self.levels:
                yield indexed({"level": level, "seed": seed}, level)

    def indexed(self, index: int) -> Task:
        """The task that stands at an index of AgentGym's BabyAI; ConfigError for an index below 0."""
        if type(index) is not int or index < 0:
            raise ConfigError("no index of AgentGym's", value=index, expected="a whole number of at least 0")
        found = indexed(
            {"level": LEVELS[index % len(LEVELS)], "seed": index // len(LEVELS)}, LEVELS[index % len(LEVELS)]
        )
        return Task(self.name, self.version, found.spec, found.kind, found.tier, place(self.name, found))

    def _open(self, task: Task) -> _House:
        seed = read_number(task.spec, "seed", names=("level", "seed"))
        level = task.spec["level"]
        return _House(self, task.id, level_name(level if isinstance(level, str) else repr(level)), seed)

    def scene(self, task_id: str, spec: Mapping[str, Any]) -> Scene:
        """The scene of a task whose map was read, made once."""
        found = self._scenes.get(task_id)
        if found is None:
            found = build_scene(spec, plain=self.plain)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)), None)
            self._scenes[task_id] = found
        return found

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the mission was fulfilled, however late: a reward above 0; unit = that reward, else 0."""
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        best = max(known, default=0.0)
        return Score(math.fsum(known), max(0.0, best), best > 0.0)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Macros to what is in view, turns to the right until it is: our expert, on MiniGrid's map."""
        check_task(self, task)
        house = self._open(task)
        with boundary(EnvLost, "minigrid could not begin", task=task.id):
            house.begin()
        house.close()
        return solve(self._scenes[task.id], most=_LONGEST)

    def key(self, task: Task) -> str:
        """Equal for tasks that differ in colours, by a turn or by a mirror only. Small levels have such tasks."""
        check_task(self, task)
        house = self._open(task)
        with boundary(EnvLost, "minigrid could not begin", task=task.id):
            house.begin()
            found = canonical_key(house.spec)
        house.close()
        return found


class _House:
    """An episode of a level."""

    def __init__(self, world: MiniGridBabyAI, task_id: str, level: str, seed: int) -> None:
        self._world, self._task_id, self._level, self._seed = world, task_id, level, seed
        self._env: Any = None
        self._codes: dict[int, int] = {}
        self._kept: list[object] = []  # so that no other thing gets the identity of one that was taken away
        self.spec: dict[str, Any] = {}

    def begin(self) -> tuple[str, Info]:
        if self._env is None:
            self._env = _made(self._level)
        self._env.reset(seed=self._seed)
        inner = self._env.unwrapped
        self.spec = {**map_of(inner), **({"strict": 1} if self._level.endswith("Debug-v0") else {})}
        self._scene = self._world.scene(self._task_id, self.spec)
        self._number(inner, self._scene.board)
        turn = self._look()
        text = self._scene.mission.text
        return f"{text} . {turn.text}" if self._scene.plain else f"Your goal: {text}\n{turn.text}", _info(turn)

    def _number(self, inner: Any, board: Board) -> None:
        """Note the code that each of MiniGrid's things has on our board; of a door, that of its open state."""
        self._codes, self._kept = {}, []

        def note(thing: Any, code: int) -> None:
            state = ("open", "closed", "locked").index(board.thing(code).state) if thing.type == DOOR else 0
            self._codes[id(thing)] = code - state
            self._kept.append(thing)
            if thing.type == "box" and thing.contains is not None:
                note(thing.contains, board.inside[code])

        for thing, (x, y) in _things(inner.grid):
            note(thing, board.start.cells[board.cell(x, y)])
        if inner.carrying is not None:
            note(inner.carrying, board.start.hold)

    def _look(self) -> Turn:
        """The moment as MiniGrid has it now."""
        inner, board = self._env.unwrapped, self._scene.board
        cells = bytearray(board.start.cells)
        for y in range(inner.grid.height):
            first = inner.grid.width * y
            row = inner.grid.grid[first : first + inner.grid.width]
            at = board.cell(0, y)
            cells[at : at + len(row)] = bytes(self._code(thing) for thing in row)
        x, y = map(int, inner.agent_pos)
        hold = self._code(inner.carrying) if inner.carrying is not None else 0
        self._turn = turn_of(self._scene, Pose(bytes(cells), board.cell(x, y), int(inner.agent_dir), hold))
        return self._turn

    def _code(self, thing: Any) -> int:
        if thing is None:
            return FLOOR
        code = self._codes[id(thing)]
        if thing.type == DOOR and code >= FIRST:
            return code + (0 if thing.is_open else 2 if thing.is_locked else 1)
        return code

    def act(self, action: str) -> Reply:
        turn, plain = self._turn, self._scene.plain
        name = understand(turn, action)
        if name is None:
            if not plain and action.lower().strip() == CHECK:
                listed = f"You can take the following actions: {', '.join(turn.admissible)}."
                return f"{listed}\n{turn.text.rpartition(chr(10))[2]}", 0.0, False, False, _info(turn)
            return refusal(turn, action), 0.0, False, False, {**_info(turn), "invalid": True}
        reward, terminated, truncated = 0.0, False, False
        for move in moves_of(turn.actions[name], turn.sight):
            _, reward, terminated, truncated, _ = self._env.step(move)
            if terminated or truncated:
                break
        turn = self._look()
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


def _made(level: str) -> Any:
    """MiniGrid's environment of a level. Versions of minigrid call one level differently."""
    gymnasium = MINIGRID.module("gymnasium")
    MINIGRID.module("minigrid")
    quieted("minigrid.envs.babyai.core")  # its generator prints every map that it rejects
    names = (level, f"{level.removesuffix('-v0')}-v1")
    known = next((name for name in names if name in gymnasium.registry), None)
    if known is None:
        raise ConfigError("this version of minigrid has no such level", value=level)
    return gymnasium.make(known, disable_env_checker=True)


def _things(grid: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    """The things of MiniGrid's grid with their places, walls and goals among them."""
    for number, thing in enumerate(grid.grid):
        if thing is not None:
            yield thing, (number % grid.width, number // grid.width)


def _text_of(thing: Any) -> str:
    """A thing in the two characters of our maps."""
    if thing.type in _PLAIN:
        return _PLAIN[thing.type][0]
    state = ("open" if thing.is_open else "locked" if thing.is_locked else "closed") if thing.type == DOOR else ""
    return LETTERS[thing.color] + LETTERS[state or thing.type]


def map_of(inner: Any) -> dict[str, Any]:
    """The spec of our grid world (see `grid.spec`) for an environment of minigrid as it stands.

    Raises:
        KeyError: something lies there that BabyAI does not have.
    """
    grid = inner.grid
    cells = [[".."] * grid.width for _ in range(grid.height)]
    for thing, (x, y) in _things(grid):
        cells[y][x] = _text_of(thing)
    x, y = map(int, inner.agent_pos)
    cells[y][x] = _AGENT[int(inner.agent_dir)]
    inside = [
        [x, y, _text_of(thing.contains)] for thing, (x, y) in _things(grid) if thing.type == "box" and thing.contains
    ]
    found: dict[str, Any] = {
        "map": ["".join(row) for row in cells],
        "mission": inner.mission,
        "moves": inner.max_steps,
        "inside": inside,
    }
    return {**found, "hold": _text_of(inner.carrying)} if inner.carrying else found
