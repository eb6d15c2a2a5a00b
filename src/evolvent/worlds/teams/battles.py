"""Battles of several layouts with one form of observations, actions and states, so that one policy plays them all.

MAT's study of few-shot learning trains on some maps of SMAC and goes on with few decisions on others (arXiv 2205.14953,
section 5.3): features and actions of every map are padded to those of the largest. Here they are padded to the largest
of `battle.LAYOUTS`, whichever are played, so weights of one selection fit any other:

- An observation has room for `MAX_ENEMIES` enemies and `MAX_ALLIES - 1` other agents. A unit has a shield and a type in
  every layout; features of units that a layout does not have are 0.
- Actions are those of the layout with most enemies; the others are never available.
- A state has room for `MAX_ALLIES` agents and `MAX_ENEMIES` enemies.

An episode is that of `BattleWorld` with the same task and sample, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Array, Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.base import Discrete, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam
from evolvent.worlds.teams.battle import ATTACK, LAYOUTS, MAX_RETURN, UNITS, BattleBatch, BattleWorld

__all__ = ["MAX_ALLIES", "MAX_ENEMIES", "BattlesBatch", "BattlesWorld"]

Ints = NDArray[np.int64]

TYPES = tuple(UNITS)
MAX_ALLIES = max(len(layout.allies) for layout in LAYOUTS.values())
MAX_ENEMIES = max(len(layout.enemies) for layout in LAYOUTS.values())
_NUM_ACTIONS = ATTACK + MAX_ENEMIES
_MOVES, _PLACE = 4, 4  # features of an observation before its units; of a unit before its health
_UNIT = _PLACE + 2 + len(TYPES)  # place, health, shield and type of another unit in an observation
_BODY = _UNIT - _PLACE
_OBSERVATION = _MOVES + (MAX_ENEMIES + MAX_ALLIES - 1) * _UNIT + _BODY
_AGENT_STATE, _ENEMY_STATE = _PLACE + 1 + len(TYPES), _PLACE + len(TYPES)
_STATE = MAX_ALLIES * (_AGENT_STATE + _NUM_ACTIONS) + MAX_ENEMIES * _ENEMY_STATE


class _Padding:
    """The columns of a layout's features in the common form.

    Attributes:
        observation: `[O]` columns of the common observation, of the layout's features in their order.
        state: `[S]` columns of the common state.
        health_and_type: of a layout whose units are alike, `[2, units]` columns of the health and of the type of each
            unit in an observation, which the layout's own features leave out; `state_health_and_type`: in the state.
    """

    def __init__(self, name: str) -> None:
        layout = LAYOUTS[name]
        self.agents, enemies = len(layout.allies), len(layout.enemies)
        self.actions = ATTACK + enemies
        units = layout.allies + layout.enemies
        shield = [1] if any(UNITS[unit].shield for unit in units) else []
        types = [2 + TYPES.index(unit) for unit in layout.types]
        body = [0, *shield, *types]  # health, shield, types
        first_ally, own_start = _MOVES + MAX_ENEMIES * _UNIT, _OBSERVATION - _BODY
        starts = [_MOVES + unit * _UNIT for unit in range(enemies)]
        starts += [first_ally + unit * _UNIT for unit in range(self.agents - 1)]
        place_columns = [range(start, start + _PLACE) for start in starts]
        bodies = [[start + _PLACE + column for column in body] for start in starts]
        unit_columns = chain.from_iterable(map(chain, place_columns, bodies))
        self.observation = np.array([*range(_MOVES), *unit_columns, *(own_start + column for column in body)])
        self.state, state_starts = self._locate_state(enemies, body)
        only_type = 1 + TYPES.index(units[0])  # behind the health and the shield
        is_alike = not layout.types
        self.health_and_type = _pair([*(start + _PLACE for start in starts), own_start], only_type + 1, is_alike)
        self.state_health_and_type = np.concatenate(
            [
                _pair(state_starts[: self.agents], _PLACE + only_type, is_alike),
                _pair(state_starts[self.agents :], _PLACE - 1 + only_type, is_alike),
            ],
            1,
        )

    def _locate_state(self, enemies: int, body: Sequence[int]) -> tuple[Ints, list[int]]:
        """Returns the columns of the layout's state, and the first column of each agent and enemy."""
        enemy_start = MAX_ALLIES * _AGENT_STATE
        action_start = enemy_start + MAX_ENEMIES * _ENEMY_STATE
        starts = [unit * _AGENT_STATE for unit in range(self.agents)]
        columns = []
        for start in starts:  # health, weapon or energy, x, y, shield, types
            columns += [*range(start, start + _PLACE), *(start + _PLACE - 1 + column for column in body[1:])]
        enemy_starts = [enemy_start + unit * _ENEMY_STATE for unit in range(enemies)]
        for start in enemy_starts:
            columns += [*range(start, start + _PLACE - 1), *(start + _PLACE - 2 + column for column in body[1:])]
        for agent in range(self.agents):
            start = action_start + agent * _NUM_ACTIONS
            columns += range(start, start + self.actions)
        return np.array(columns), [*starts, *enemy_starts]


def _pair(health_columns: Sequence[int], type_offset: int, is_alike: bool) -> Ints:
    """Returns columns `[2, units]` of health and type; none where a layout's own features hold the types."""
    columns = np.array(health_columns if is_alike else [], dtype=np.int64)
    return np.stack([columns, columns + type_offset])


class BattlesBatch(ArrayTeam):
    """E battles in parallel, each of the layout of its task.

    Args:
        tasks: of `BattleWorld`, of any layouts.
        horizon: steps of an episode; None: the limit of each layout.
    """

    def __init__(self, tasks: Sequence[Task], size: int, *, horizon: int | None = None) -> None:
        self.layouts = tuple(dict.fromkeys(str(task.spec["layout"]) for task in tasks))
        self._paddings = [_Padding(name) for name in self.layouts]
        self._limits = np.array([LAYOUTS[name].limit if horizon is None else horizon for name in self.layouts])
        spec = TeamSpec(
            agents=max((padding.agents for padding in self._paddings), default=1),
            observation=_OBSERVATION,
            actions=Discrete(_NUM_ACTIONS),
            state=_STATE,
            horizon=int(max(self._limits, default=1)),
        )
        super().__init__(tasks, size, spec=spec)
        self._parts = [
            BattleBatch(
                LAYOUTS[name], [task for task in tasks if task.spec["layout"] == name], size, horizon=int(limit)
            )
            for name, limit in zip(self.layouts, self._limits, strict=True)
        ]
        self.layout = np.zeros(size, dtype=np.int64)  # index of the layout that a row plays

    def _horizons(self) -> Ints:
        horizons: Ints = self._limits[self.layout]
        return horizons

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        self.layout[rows] = [self.layouts.index(str(task.spec["layout"])) for task in tasks]
        for index, part in enumerate(self._parts):
            picks = np.flatnonzero(self.layout[rows] == index)
            part.health[:, np.setdiff1d(rows, rows[picks])] = 0.0  # nobody lives in rows of other layouts
            if picks.size:
                part._begin(rows[picks], [tasks[int(pick)] for pick in picks], [samples[int(pick)] for pick in picks])

    def _move(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        reward = np.zeros(self.size)
        terminated, success = np.zeros(self.size, dtype=bool), np.zeros(self.size, dtype=bool)
        for part, padding, is_played in self._iterate_parts():
            orders = np.where(is_played[:, None], actions[:, : padding.agents], 0)
            for total, values in zip((reward, terminated, success), part._move(orders), strict=True):
                total[is_played] = values[is_played]
        return reward, terminated, success

    def _iterate_parts(self) -> list[tuple[BattleBatch, _Padding, NDArray[np.bool_]]]:
        """Lists the batch and the padding of each layout that some row plays, and which rows `[E]` do."""
        parts = []
        for index, (part, padding) in enumerate(zip(self._parts, self._paddings, strict=True)):
            part.time = self.time
            if (is_played := self.layout == index).any():
                parts.append((part, padding, is_played))
        return parts

    def _observe(self, rows: Ints) -> TeamView:
        agents, size = self.spec.agents, len(rows)
        observation = np.zeros((size, agents, _OBSERVATION), dtype=np.float32)
        state = np.zeros((size, _STATE), dtype=np.float32)
        alive = np.zeros((size, agents), dtype=bool)
        available = np.zeros((size, agents, _NUM_ACTIONS), dtype=bool)
        available[:, :, 0] = True
        for part, padding, is_played in self._iterate_parts():
            picks = np.flatnonzero(is_played[rows])
            if not picks.size:
                continue
            view = part._observe(rows[picks])
            if view.available is None or view.state is None:
                raise ConfigError("a battle without masks or states")
            team = np.arange(padding.agents)
            observation[np.ix_(picks, team, padding.observation)] = view.observation
            health, unit_type = padding.health_and_type
            observation[np.ix_(picks, team, unit_type)] = observation[np.ix_(picks, team, health)] > 0
            state[np.ix_(picks, padding.state)] = view.state
            health, unit_type = padding.state_health_and_type
            state[np.ix_(picks, unit_type)] = state[np.ix_(picks, health)] > 0
            alive[np.ix_(picks, team)] = view.alive
            available[np.ix_(picks, team, np.arange(padding.actions))] = view.available
        return TeamView(
            observation=observation,
            alive=alive,
            available=available,
            state=state,
            number=self.number[rows],
            time=self.time[rows],
        )

    def snapshot(self) -> Mapping[str, Array]:
        """Returns `number`, `time` and the arrays of every layout, copied."""
        arrays = dict(super().snapshot())
        for name, part in zip(self.layouts, self._parts, strict=True):
            arrays |= {f"{name}.{field}": getattr(part, field).copy() for field in part.state_names}
        return arrays

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> TeamView:
        """Restores a snapshot; raises BatchMismatch for one of other layouts, tasks or rows."""
        own_arrays = {name: array for name, array in state.items() if "." not in name}
        parts = [
            {field: state[f"{name}.{field}"] for field in part.state_names if f"{name}.{field}" in state}
            for name, part in zip(self.layouts, self._parts, strict=True)
        ]
        expected = len(own_arrays) + sum(len(part.state_names) for part in self._parts)
        if sum(map(len, parts)) + len(own_arrays) != len(state) or len(state) != expected:
            raise BatchMismatch("the snapshot belongs to other layouts", value=sorted(state), expected=self.layouts)
        for part, arrays in zip(self._parts, parts, strict=True):
            wrong = {name: array.shape for name, array in arrays.items() if array.shape != getattr(part, name).shape}
            if wrong:
                raise BatchMismatch("the snapshot belongs to another batch", value=wrong, expected=self.size)
        super().restore(own_arrays)
        for part, arrays in zip(self._parts, parts, strict=True):
            for name, array in arrays.items():
                setattr(part, name, array.astype(getattr(part, name).dtype, order="C"))
        return self._check_and_store(self._observe(np.arange(self.size)))

    def scene(self, row: int) -> Scene:
        """Returns the present scene of a row."""
        part: BattleBatch = self._parts[int(self.layout[row])]
        return part.scene(row)


class BattlesWorld:
    """Battles of several layouts; see the module. Tasks are those of `BattleWorld`, the layouts in turn.

    Args:
        layouts: names of `LAYOUTS`; none: all.
        horizon: steps of an episode; None: the limit of each layout.
        sizes: panel sizes of each layout.
    Raises:
        ConfigError: an unknown layout, one that is named twice, or a horizon below 1.
    """

    name, version = "team_battle", "1"
    tiers = ("seen",)

    def __init__(self, layouts: Sequence[str] = (), *, horizon: int | None = None, sizes: Sizes | None = None) -> None:
        self.layouts = tuple(layouts) or tuple(LAYOUTS)
        problems = [unknown_name_problem("layout", name, LAYOUTS) for name in self.layouts if name not in LAYOUTS]
        problems += [
            Problem("layout", f"{name!r} occurs {self.layouts.count(name)} times", "name each layout once")
            for name in dict.fromkeys(self.layouts)
            if self.layouts.count(name) > 1
        ]
        if problems:
            raise ConfigError(problems)
        self._worlds = [BattleWorld(name, horizon=horizon, sizes=sizes) for name in self.layouts]
        self._horizon = horizon
        self.horizon = max(world.horizon for world in self._worlds)

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panels of all layouts, a task of each in turn."""
        panels = [world.tasks(split, tier) for world in self._worlds]
        longest = max(map(len, panels))
        return tuple(panel[index] for index in range(longest) for panel in panels if index < len(panel))

    def batch(self, tasks: Sequence[Task], size: int) -> BattlesBatch:
        """Creates E rows; raises ConfigError for tasks of other layouts."""
        other_layouts = sorted({str(task.spec["layout"]) for task in tasks} - set(self.layouts))
        if other_layouts:
            raise ConfigError("battles have other layouts", value=other_layouts, expected=self.layouts)
        return BattlesBatch(tasks, size, horizon=self._horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns the bound 20, which a victory over every unit pays."""
        return Optimum(MAX_RETURN, exact=False)

    def expert(self, batch: BattlesBatch) -> Ints:
        """Returns actions `[E, n]` of the script of `BattleWorld.expert`."""
        actions = np.zeros((batch.size, batch.spec.agents), dtype=np.int64)
        for part, padding, is_played in batch._iterate_parts():
            actions[is_played, : padding.agents] = self._worlds[0].expert(part)[is_played]
        return actions
