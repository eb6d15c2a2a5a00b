"""Speed of the battle world: `python -m benchmarks.teams_worlds [--quick] [--json] [--save]`.

Random legal actions, one thread, CPU time without the choice of actions. `steps_per_cpu_s` counts steps of single games
while 256 are played in one batch; `x_one_by_one` is that beside a batch of one. `x_plain` is that beside `PlainBattle`,
the same rules written as one would write them for one game: a loop over units, without arrays; `plain_steps` of its
steps are compared with the batch (places, health, observation, mask, reward), `plain_mismatches` of them differ.

`x_smaclite` is 2s3z beside the package `smaclite` (not on PyPI: null with the reason where it is not installed), with
the collision avoidance in numpy that it uses unless told otherwise. For `parity_steps` steps of its games on 2s3z, 3s5z
and MMM2 its units are put into our arrays; `parity_mismatches` are those whose observations, masks or states differ by
more than 1e-4, or whose rewards leave 0 to 20. In `parity_off_map_steps` of them an agent stood outside the map, where
its units can get and ours cannot: whether that agent may move is not compared. Fights differ: see docs/teams.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.reporting import RESULTS, about, command_line, finish
from evolvent.trajectory import sample_rng
from evolvent.worlds.teams.battle import (
    ATTACK,
    HIGH_Y,
    LAYOUTS,
    LOW_Y,
    MAP_SIZE,
    NORTH,
    UNITS,
    BattleBatch,
    BattleWorld,
    UnitType,
)

ROWS, SEED = 256, 0
GOALS = {"x_smaclite": 20.0, "parity_mismatches": 0, "plain_mismatches": 0}
HEADLINE = "2s3z"
PARITY_LAYOUTS = (HEADLINE, "3s5z", "MMM2")  # the layouts that both have
SHIFTS = {2: (0.0, 2.0), 3: (0.0, -2.0), 4: (2.0, 0.0), 5: (-2.0, 0.0)}


@dataclass
class PlainUnit:
    """One unit of a plain battle."""

    kind: UnitType
    number: int
    is_agent: bool
    x: float
    y: float
    health: float
    shield: float
    energy: float
    cooldown: float = 0.0
    wait: float = 0.0
    target: PlainUnit | None = None
    goal: tuple[float, float] | None = None
    lowest: float = 0.0

    def distance(self, other: PlainUnit) -> float:
        return math.hypot(other.x - self.x, other.y - self.y)

    def reach(self, other: PlainUnit) -> float:
        return self.kind.attack_range + (self.kind.diameter + other.kind.diameter) / 2

    def scans(self, other: PlainUnit) -> bool:
        return self.distance(other) < 5.0 + other.kind.diameter / 2

    def can_target(self, other: PlainUnit) -> bool:
        if self.kind.heals:
            return other.is_agent == self.is_agent and not other.kind.heals
        return other.is_agent != self.is_agent and (self.kind.hits_air or not other.kind.flies)


class PlainBattle:
    """One game, unit by unit; it begins where a row of a batch stands."""

    def __init__(self, layout: str, batch: BattleBatch, row: int = 0) -> None:
        names = LAYOUTS[layout].allies + LAYOUTS[layout].enemies
        agents = len(LAYOUTS[layout].allies)
        self.types = LAYOUTS[layout].types
        self.names = names
        self.units = [
            PlainUnit(
                UNITS[name],
                number,
                number < agents,
                float(batch.x[number, row]),
                float(batch.y[number, row]),
                UNITS[name].health,
                UNITS[name].shield,
                50.0 if UNITS[name].heals else 0.0,
                lowest=UNITS[name].health + UNITS[name].shield,
            )
            for number, name in enumerate(names)
        ]
        self.agents, self.enemies = self.units[:agents], self.units[agents:]
        self.has_shields = any(unit.kind.shield for unit in self.units)
        self.full = 200.0 + sum(10.0 + unit.lowest for unit in self.enemies)

    def step(self, actions: Sequence[int]) -> tuple[float, bool]:
        """Plays one step; returns (reward, whether the game has ended)."""
        for unit, action in zip(self.agents, actions, strict=True):
            unit.target, unit.goal = None, None
            if action >= 6:
                unit.target = (self.agents if unit.kind.heals else self.enemies)[action - 6]
            elif action in SHIFTS:
                unit.goal = (unit.x + SHIFTS[action][0], unit.y + SHIFTS[action][1])
        living = [unit for unit in self.enemies if unit.health > 0]
        for _ in range(8):
            self._tick()
        reward = 0.0
        for unit in living:
            reward += 10.0 * (unit.health <= 0)
        for unit in self.enemies:
            left = unit.health + unit.shield
            reward += max(unit.lowest - left, 0.0)
            unit.lowest = min(unit.lowest, left)
        ours = any(unit.health > 0 and not unit.kind.heals for unit in self.agents)
        theirs = any(unit.health > 0 and not unit.kind.heals for unit in self.enemies)
        reward += 200.0 * (ours and not theirs)
        return reward * 20.0 / self.full, not (ours and theirs)

    def _tick(self) -> None:
        living = [unit for unit in self.units if unit.health > 0]
        for enemy in self.enemies:
            if enemy.health > 0:
                self._aim(enemy, living)
        slowest = min(unit.kind.speed for unit in self.enemies)
        engaged: list[tuple[PlainUnit, PlainUnit]] = []
        moves: list[tuple[PlainUnit, float, float]] = []
        for unit in living:
            target = unit.target if unit.target is not None and unit.target.health > 0 else None
            if target is not None and unit.distance(target) <= unit.reach(target):
                if unit.can_target(target):
                    engaged.append((unit, target))
                continue
            goal = (target.x, target.y) if target else unit.goal if unit.is_agent else (9.0, 16.0)
            if goal is None:
                continue
            speed = slowest if unit.kind.heals and not unit.is_agent and target is None else unit.kind.speed
            gap = math.hypot(goal[0] - unit.x, goal[1] - unit.y)
            share = min(speed / 16.0, gap) / max(gap, 1e-9)
            moves.append((unit, (goal[0] - unit.x) * share, (goal[1] - unit.y) * share))
        for unit, x, y in moves:
            unit.x, unit.y = unit.x + x, unit.y + y
        self._push_apart(living)
        for unit in living:
            unit.cooldown = max(unit.cooldown - 1 / 16, 0.0)
            unit.wait = max(unit.wait - 1 / 16, 0.0)
            if unit.wait == 0:
                unit.shield = min(unit.shield + 2 / 16, unit.kind.shield)
        ready = [pair for pair in engaged if not pair[0].kind.heals and pair[0].cooldown <= 0]
        for unit, target in ready:
            unit.cooldown = unit.kind.cooldown_s
            for _ in range(unit.kind.hits):
                damage = unit.kind.damage + unit.kind.armored_bonus * target.kind.is_armored
                absorbed = min(damage, target.shield)
                target.shield, target.wait = target.shield - absorbed, 10.0
                target.health -= min(max(damage - absorbed - target.kind.armor, 0.0), target.health)
        for unit, target in engaged:
            if unit.kind.heals and target.health > 0:
                amount = min(target.kind.health - target.health, 9 / 16, 3 * unit.energy)
                target.health, unit.energy = target.health + amount, unit.energy - amount / 3
        for unit in self.units:
            if unit.kind.heals:
                unit.energy = min(unit.energy + 0.5625 / 16, 200.0)

    def _aim(self, enemy: PlainUnit, living: Sequence[PlainUnit]) -> None:
        if enemy.kind.heals:
            hurt = [unit for unit in living if enemy.can_target(unit) and unit.health < unit.kind.health]
            enemy.target = min((unit for unit in hurt if enemy.scans(unit)), key=lambda unit: unit.health, default=None)
            return
        foes = [unit for unit in living if unit.is_agent and enemy.can_target(unit)]
        foes = [unit for unit in foes if enemy.scans(unit) or unit.target is enemy]
        best = min(foes, key=lambda unit: (not unit.kind.heals, enemy.distance(unit)), default=None)
        now = enemy.target
        is_held = now is not None and now.health > 0
        is_held = is_held and (enemy.distance(now) <= enemy.reach(now) or now.target is enemy)
        if is_held and (now.kind.heals or best is None or not best.kind.heals):
            return
        enemy.target = best

    def _push_apart(self, living: Sequence[PlainUnit]) -> None:
        pushes = {unit.number: [0.0, 0.0] for unit in living}
        for index, one in enumerate(living):
            for other in living[index + 1 :]:
                contact = (one.kind.diameter + other.kind.diameter) / 2
                gap = one.distance(other)
                if one.kind.flies != other.kind.flies or gap >= contact:
                    continue
                along = ((other.x - one.x) / gap, (other.y - one.y) / gap) if gap > 1e-9 else (1.0, 0.0)
                for axis in (0, 1):
                    pushes[one.number][axis] -= along[axis] * (contact - gap) / 2
                    pushes[other.number][axis] += along[axis] * (contact - gap) / 2
        for unit in living:
            radius = unit.kind.diameter / 2
            unit.x = min(max(unit.x + pushes[unit.number][0], radius), 32.0 - radius)
            unit.y = min(max(unit.y + pushes[unit.number][1], 8.0 + radius), 24.0 - radius)

    def masks(self) -> list[list[bool]]:
        """Returns what each agent may do."""
        rows = []
        for unit in self.agents:
            mask = [False] * (6 + len(self.enemies))
            rows.append(mask)
            if unit.health <= 0:
                mask[0] = True
                continue
            mask[1:6] = [True, unit.y + 1 < 24, unit.y - 1 >= 8, unit.x + 1 < 32, unit.x - 1 >= 0]
            for index, target in enumerate(self.agents if unit.kind.heals else self.enemies):
                if target.health > 0 and unit.distance(target) <= 6 and not (unit.kind.heals and target.kind.heals):
                    mask[6 + index] = True
        return rows

    def observations(self) -> list[list[float]]:
        """Returns what each agent sees."""
        rows = []
        for unit, mask in zip(self.agents, self.masks(), strict=True):
            row = [float(each) for each in mask[2:6]]
            for index, other in enumerate(self.enemies):
                row += self._features(unit, other, float(mask[6 + index]))
            for other in self.agents:
                if other is not unit:
                    row += self._features(unit, other, 1.0)
            row += self._body(unit)
            rows.append(row if unit.health > 0 else [0.0] * len(row))
        return rows

    def _features(self, unit: PlainUnit, other: PlainUnit, first: float) -> list[float]:
        gap = unit.distance(other)
        if other.health <= 0 or gap >= 9:
            return [0.0] * (4 + len(self._body(other)))
        return [first, gap / 9, (other.x - unit.x) / 9, (other.y - unit.y) / 9, *self._body(other)]

    def _body(self, unit: PlainUnit) -> list[float]:
        shield = [unit.shield / max(unit.kind.shield, 1.0)] if self.has_shields else []
        return [
            unit.health / unit.kind.health,
            *shield,
            *(float(self.names[unit.number] == name) for name in self.types),
        ]


def choose(available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns a random legal action of each agent."""
    return (rng.random(available.shape) * available).argmax(-1)


def batch_speed(layout: str, rows: int, steps: int) -> float:
    """Steps of single games per CPU-second in a batch of `rows`."""
    world, rng = BattleWorld(layout), sample_rng("teams worlds", layout, rows)
    batch = world.batch(world.tasks("train", "seen"), rows)
    view, seconds = batch.reset(np.arange(rows)), 0.0
    for _ in range(steps):
        actions = choose(view.available, rng)
        start = time.process_time()
        view = batch.step(actions).view
        seconds += time.process_time() - start
    return steps * rows / seconds


def plain_speed(layout: str, steps: int) -> float:
    """Steps per CPU-second of the plain game, with its observations and masks."""
    world, rng = BattleWorld(layout), sample_rng("teams worlds plain", layout)
    batch = world.batch(world.tasks("train", "seen"), 1)
    seconds, over, number, game, masks = 0.0, True, 0, None, []
    for _ in range(steps):
        if over:
            batch.reset([number])
            number, game = number + 1, PlainBattle(layout, batch)
            masks = game.masks()
        actions = choose(np.array(masks), rng).tolist()
        start = time.process_time()
        _, over = game.step(actions)
        game.observations()
        masks = game.masks()
        seconds += time.process_time() - start
    return steps / seconds


def compare_plain(layout: str, games: int) -> tuple[int, int]:
    """Plays games with both implementations; returns (steps, steps that differ)."""
    world, steps, mismatches = BattleWorld(layout), 0, 0
    for number in range(games):
        batch = world.batch(world.tasks("test", "seen"), 1)
        view, rng = batch.reset([number]), sample_rng("teams worlds parity", layout, number)
        plain, is_over = PlainBattle(layout, batch), False
        while not is_over and steps < games * world.horizon:
            actions = world.expert(batch) if rng.random() < 0.6 else choose(view.available, rng)
            step = batch.step(actions)
            reward, is_over = plain.step(actions[0].tolist())
            view = step.view
            seen = step.final if step.final is not None else view
            same = math.isclose(reward, float(step.reward[0]), abs_tol=1e-6)
            same &= np.allclose(plain.observations(), seen.observation[0], atol=1e-5)
            same &= np.array_equal(plain.masks(), seen.available[0])
            same &= is_over == bool(step.terminated[0])
            steps, mismatches = steps + 1, mismatches + (not same)
            is_over |= bool(step.ended.size) or not same  # after a difference the games are different ones
    return steps, mismatches


def make_smaclite(layout: str = HEADLINE) -> Any | None:
    """Makes the package's game of a layout, with its units in our order; None where the package is not installed."""
    if find_spec("smaclite") is None:
        return None
    import_module("smaclite")
    name = f"smaclite/{layout}-v0"
    libraries = (import_module(library) for library in ("gym", "gymnasium") if find_spec(library) is not None)
    library = next(library for library in libraries if name in library.envs.registration.registry)
    game = library.make(name, disable_env_checker=True).unwrapped
    order = LAYOUTS[layout].types
    for group in game.map_info.groups:  # MMM2 begins with the medivac there, and with the marauders in SMAC and here
        group.units = sorted(group.units, key=lambda entry: order.index(entry[0].name.lower()))
    return game


def load_units(batch: BattleBatch, game: Any) -> None:
    """Puts the units of a game of smaclite into the first row of a batch."""
    state = {name: array.copy() for name, array in batch.snapshot().items()}
    state["health"][:], state["shield"][:] = 0.0, 0.0
    agents = batch.spec.agents
    for first, units in ((0, game.agents), (agents, game.enemies)):
        for index, unit in units.items():
            state["x"][first + index, 0], state["y"][first + index, 0] = unit.pos
            state["health"][first + index, 0], state["shield"][first + index, 0] = unit.hp, unit.shield
            state["cooldown"][first + index, 0], state["energy"][first + index, 0] = unit.cooldown, unit.energy
    last = np.asarray(game.last_actions).reshape(agents, -1)
    state["last_action"][:, 0] = np.where(last.any(-1), last.argmax(-1), -1)
    batch.restore(state)


def compare_features(batch: BattleBatch, game: Any, observation: Sequence[np.ndarray]) -> tuple[bool, bool]:
    """Compares features of a game of smaclite with ours; returns (whether they agree, whether an agent is off the map).

    The package allows a move whose half ends in a cell of the map. A unit beyond the western or eastern edge may thus
    not go north or south there, and one more than 1 beyond it may not go back. Our units stay inside: such moves are
    not compared.
    """
    load_units(batch, game)
    view = batch._observe(np.array([0]))
    x, y = batch.x[: batch.spec.agents, 0], batch.y[: batch.spec.agents, 0]
    is_inside = (x >= 0.0) & (x < MAP_SIZE) & (y >= LOW_Y) & (y < HIGH_Y)
    is_off = view.alive[0] & ~is_inside
    features, masks = np.stack(observation), np.array(game.get_avail_actions(), dtype=bool)
    features[is_off, : ATTACK - NORTH] = view.observation[0, is_off, : ATTACK - NORTH]
    masks[is_off, NORTH:ATTACK] = view.available[0, is_off, NORTH:ATTACK]
    is_same = np.allclose(features, view.observation[0], atol=1e-4) and np.array_equal(masks, view.available[0])
    return is_same and np.allclose(game.get_state(), view.state[0], atol=1e-4), bool(is_off.any())


def beside_smaclite(game: Any, steps: int, layout: str = HEADLINE) -> dict[str, Any]:
    """Plays the package's game; returns its speed, and how many of its steps our features match."""
    world, rng = BattleWorld(layout, horizon=10**6), sample_rng("teams worlds smaclite", layout)
    batch = world.batch(world.tasks("train", "seen"), 1)
    batch.reset([0])
    np.random.seed(SEED)  # the package draws from numpy's global generator, and ignores the seed of a reset
    game.reset(seed=SEED)
    seconds, mismatches, off_map, length = 0.0, 0, 0, 0
    for _ in range(steps):
        masks = np.array(game.get_avail_actions(), dtype=bool)
        actions = [int(action) for action in choose(masks, rng)]
        start = time.process_time()
        observation, reward, over, *_ = game.step(actions)
        seconds += time.process_time() - start
        is_same, is_off = compare_features(batch, game, observation)
        mismatches += not (is_same and 0 <= reward <= 20)
        off_map += is_off
        length += 1
        if over or length == LAYOUTS[layout].limit:
            game.reset()
            length = 0
    return {
        "smaclite_steps_per_cpu_s": steps / seconds,
        "parity_steps": steps,
        "parity_mismatches": mismatches,
        "parity_off_map_steps": off_map,
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """Returns all figures."""
    steps, games = (20, 1) if quick else (150, 8)
    layouts = ("3m", HEADLINE) if quick else tuple(LAYOUTS)
    speed = {layout: batch_speed(layout, ROWS, steps) for layout in layouts}
    single = {layout: batch_speed(layout, 1, 4 * steps) for layout in layouts}
    plain = {layout: plain_speed(layout, 2 * steps) for layout in layouts}
    compared = [compare_plain(layout, games) for layout in layouts]
    found: dict[str, Any] = {
        "steps_per_cpu_s": speed,
        "one_by_one_steps_per_cpu_s": single,
        "plain_steps_per_cpu_s": plain,
        "x_one_by_one": {layout: speed[layout] / single[layout] for layout in layouts},
        "x_plain": {layout: speed[layout] / plain[layout] for layout in layouts},
        "plain_steps": sum(steps for steps, _ in compared),
        "plain_mismatches": sum(mismatches for _, mismatches in compared),
        "x_smaclite": None,
        "parity_steps": None,
        "parity_mismatches": None,
        "parity_off_map_steps": None,
        "smaclite_reason": "the package smaclite is not installed, and PyPI does not have it",
    }
    games_beside = {layout: make_smaclite(layout) for layout in PARITY_LAYOUTS}
    if games_beside[HEADLINE] is not None:
        beside = {layout: beside_smaclite(game, 5 * steps, layout) for layout, game in games_beside.items()}
        for name in ("parity_steps", "parity_mismatches", "parity_off_map_steps"):
            found[name] = sum(figures[name] for figures in beside.values())
        found["smaclite_steps_per_cpu_s"] = beside[HEADLINE]["smaclite_steps_per_cpu_s"]
        found["x_smaclite"] = speed[HEADLINE] / found["smaclite_steps_per_cpu_s"]
        found["smaclite_reason"] = None
    return found


def table(found: dict[str, Any]) -> str:
    """Returns the figures for people."""
    rows = [f"layout  steps/cpu-s ({ROWS} games)  one by one      x   plain      x"]
    for layout, speed in found["steps_per_cpu_s"].items():
        single, plain = found["one_by_one_steps_per_cpu_s"][layout], found["plain_steps_per_cpu_s"][layout]
        rows.append(f"{layout:7}{speed:24,.0f}{single:12,.0f}{speed / single:6.1f}x{plain:8,.0f}{speed / plain:6.1f}x")
    rows.append(f"plain game: {found['plain_mismatches']} of {found['plain_steps']} steps differ")
    if found["x_smaclite"] is None:
        rows.append(f"smaclite: {found['smaclite_reason']}")
    else:
        differ = f"{found['parity_mismatches']} of {found['parity_steps']} steps differ"
        differ += f", an agent is off the map in {found['parity_off_map_steps']}"
        rows.append(f"smaclite: {found['x_smaclite']:.1f} x on {HEADLINE}, {differ}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    few = "two layouts and fewer steps"
    parser = command_line("teams_worlds", __doc__, quick=few, save=RESULTS / "teams_worlds.json")
    options = parser.parse_args(arguments)
    found = measure(quick=options.quick)
    print(table(found))
    finish(
        {
            "benchmark": "teams_worlds",
            **found,
            "rows": ROWS,
            "goals": GOALS,
            "quick": options.quick,
            "seed": SEED,
            **about("python", "numpy", "smaclite", threads=1),
        },
        options,
    )


if __name__ == "__main__":
    main()
