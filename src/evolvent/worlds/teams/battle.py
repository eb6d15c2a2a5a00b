"""Battles of two armies on a plane, after the StarCraft Multi-Agent Challenge (SMAC, arXiv 1902.04043).

Each agent commands one unit and sees what is within 9 of it; a scripted army marches on the agents' start and attacks
whatever comes near. Observations, masks, the central state, actions and episode limits are SMAC's, number for number;
units and rules of a fight are those that SMAClite publishes (arXiv 2305.05566). No game binary is needed.

- A step is 8 ticks of 1/16 s. In a tick all units choose targets, move, and fire at the same time.
- A unit within range (edge to edge) of its target stands and fires, another one moves towards it. Each hit is absorbed
  by the target's shield first; armor is subtracted from what remains. A shield regrows 2 a second once it was
  not hit for 10 s. A medivac heals 9 a second, for a third as much energy.
- Enemies keep a target that they can reach or that attacks them. Otherwise they choose the nearest agent within 5, or
  one that attacks them, medivacs before others; without any they march on. Agents do nothing that they are not told.
- Units of one plane (ground or air) that overlap push each other apart.
- The reward is the damage done to enemies, 10 for a kill and 200 for a victory, scaled so that they add up to 20.
  Health that was healed and shields that regrew are not paid again, so no episode pays more.
- An army without a fighter has lost. At the episode limit the episode is truncated.

Arrays of units are `[U, E]`: agents first, then enemies, in SMAC's order of types; the last axis are the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import JsonObject, Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.teams.base import Discrete, Mark, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["LAYOUTS", "UNITS", "BattleBatch", "BattleWorld", "Layout", "UnitType"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, ATTACK = range(7)
SIGHT_RANGE, SHOOT_RANGE, MOVE_DISTANCE, SCAN_RANGE = 9.0, 6.0, 2.0, 5.0
TICKS_PER_STEP, TICK_S = 8, 1.0 / 16.0
KILL_REWARD, WIN_REWARD, MAX_RETURN = 10.0, 200.0, 20.0
MAP_SIZE, LOW_Y, HIGH_Y = 32.0, 8.0, 24.0  # units stand in 0 to 32 by 8 to 24
START, ENEMY_START = (9.0, 16.0), (23.0, 16.0)
START_SHIFT, START_JITTER, SLOT_GAP = 0.5, 0.25, 0.05
SHIELD_PER_S, SHIELD_DELAY_S = 2.0, 10.0
HEAL_PER_S, HEAL_PER_ENERGY, ENERGY_PER_S, MAX_ENERGY, START_ENERGY = 9.0, 3.0, 0.5625, 200.0, 50.0
PATIENCE_STEPS, GAP_COST, LINE_X, LINE_PITCH = 20, 10.0, 10.0, 0.9  # of the script, chosen on 3m
_SHIFT_X = np.array([0.0, 0.0, 0.0, 0.0, MOVE_DISTANCE, -MOVE_DISTANCE, 0.0])  # of NO_OP to ATTACK
_SHIFT_Y = np.array([0.0, 0.0, MOVE_DISTANCE, -MOVE_DISTANCE, 0.0, 0.0, 0.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitType:
    """One kind of unit.

    Args:
        health, shield, armor: hit points, points of the shield, and damage that each hit loses to armor.
        damage, hits: damage of one hit, and hits of one attack.
        cooldown_s: seconds between two attacks.
        speed: distance a second.
        attack_range: from edge to edge; of a healer, to heal.
        diameter: of its circle.
        armored_bonus: damage added against armored units.
        is_armored, flies, heals, hits_air: its properties.
    """

    health: float
    shield: float = 0.0
    armor: float = 0.0
    damage: float = 0.0
    hits: int = 1
    cooldown_s: float = 0.0
    speed: float = 3.15
    attack_range: float = 0.1
    diameter: float = 1.0
    armored_bonus: float = 0.0
    is_armored: bool = False
    flies: bool = False
    heals: bool = False
    hits_air: bool = False


UNITS: Mapping[str, UnitType] = MappingProxyType(
    {
        "marine": UnitType(health=45, damage=6, cooldown_s=0.61, attack_range=5, diameter=0.75, hits_air=True),
        "marauder": UnitType(
            health=125,
            armor=1,
            damage=10,
            cooldown_s=1.07,
            attack_range=6,
            diameter=1.125,
            armored_bonus=10,
            is_armored=True,
        ),
        "medivac": UnitType(
            health=150, armor=1, speed=3.5, attack_range=4, diameter=1.5, is_armored=True, flies=True, heals=True
        ),
        "stalker": UnitType(
            health=80,
            shield=80,
            armor=1,
            damage=13,
            cooldown_s=1.34,
            speed=4.13,
            attack_range=6,
            diameter=1.25,
            armored_bonus=5,
            is_armored=True,
            hits_air=True,
        ),
        "zealot": UnitType(health=100, shield=50, armor=1, damage=8, hits=2, cooldown_s=0.86),
    }
)
"""The units by name, with the values of SMAClite."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Two armies and an episode limit.

    Args:
        allies, enemies: names of the units, one for each, grouped by type.
        limit: number of steps of an episode.
    """

    allies: tuple[str, ...]
    enemies: tuple[str, ...]
    limit: int

    @property
    def types(self) -> tuple[str, ...]:
        """Returns the types in the order of their one-hot features, or nothing if all units are alike."""
        types = tuple(dict.fromkeys(self.allies + self.enemies))
        return types if len(types) > 1 else ()


def _army(**counts: int) -> tuple[str, ...]:
    return tuple(name for name, number in counts.items() for _ in range(number))


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "3m": Layout(_army(marine=3), _army(marine=3), 60),
        "8m": Layout(_army(marine=8), _army(marine=8), 120),
        "2s3z": Layout(_army(stalker=2, zealot=3), _army(stalker=2, zealot=3), 120),
        "3s5z": Layout(_army(stalker=3, zealot=5), _army(stalker=3, zealot=5), 150),
        "MMM2": Layout(_army(marauder=2, marine=7, medivac=1), _army(marauder=3, marine=8, medivac=1), 180),
    }
)
"""The layouts by SMAC's names."""


class _Army:
    """Constants of the units of a layout as arrays: `[U, 1]` of units, `[U, U]` of (unit, target), `[P]` of pairs."""

    def __init__(self, layout: Layout) -> None:
        names = layout.allies + layout.enemies
        units = [UNITS[name] for name in names]
        self.agents, self.enemies, self.size = len(layout.allies), len(layout.enemies), len(units)
        self.num_types = len(layout.types)
        self.is_type = np.array([[name == unit_type for unit_type in layout.types] for name in names], dtype=np.float32)

        def column(attribute: str) -> Floats:
            return np.array([[float(getattr(unit, attribute))] for unit in units])

        self.health, self.shield, self.armor = column("health"), column("shield"), column("armor")
        self.cooldown, self.radius = column("cooldown_s"), column("diameter") / 2.0
        self.stride, self.hits = column("speed") * TICK_S, np.array([unit.hits for unit in units])
        self.heals = np.array([[unit.heals] for unit in units])
        is_enemy = np.arange(self.size)[:, None] >= self.agents
        slowest = self.stride[self.agents :].min()
        self.march_stride = np.where(self.heals & is_enemy, slowest, self.stride)  # healers do not overtake their army
        self.reach = column("attack_range") + self.radius + self.radius.T
        is_armored, flies = column("is_armored").T > 0, column("flies").T > 0
        self.damage = column("damage") + column("armored_bonus") * is_armored
        is_other_side = is_enemy != is_enemy.T
        self.can_target = np.where(
            self.heals, ~is_other_side & ~self.heals.T, is_other_side & ((column("hits_air") > 0) | ~flies)
        )
        first, second = np.triu_indices(self.size, 1)
        is_same_plane = (flies == flies.T)[first, second]
        self.first, self.second = first[is_same_plane], second[is_same_plane]
        self.contact = (self.radius + self.radius.T)[self.first, self.second][:, None]
        self.has_shields = bool(self.shield.any())
        self.has_healers = bool(self.heals.any())
        self.slots = np.concatenate(
            [
                _slots(self.radius[: self.agents, 0], START, 1.0),
                _slots(self.radius[self.agents :, 0], ENEMY_START, -1.0),
            ]
        )
        self.max_reward = float(
            KILL_REWARD * self.enemies + WIN_REWARD + (self.health + self.shield)[self.agents :].sum()
        )


def _slots(radii: Floats, center: tuple[float, float], sign: float) -> Floats:
    """Returns places `[n, 2]` of an army in a square grid; equal armies with opposite signs mirror each other."""
    side = int(np.ceil(np.sqrt(len(radii))))
    pitch = 2.0 * float(radii.max()) + SLOT_GAP
    index = np.arange(len(radii))
    offsets = (np.stack([index % side, index // side], -1) - (side - 1) / 2.0) * pitch
    return np.asarray(np.array(center) + sign * offsets, dtype=np.float64)


class BattleBatch(ArrayTeam):
    """E battles in parallel. Actions: no-op (dead agents only), stop, north, south, east, west, attack enemy i.

    A medivac heals agent i in place of attacking enemy i. For other arrays than those of `TeamView` see the module.
    """

    state_names = ("x", "y", "health", "shield", "cooldown", "shield_wait", "energy", "target", "unpaid", "last_action")

    def __init__(self, layout: Layout, tasks: Sequence[Task], size: int, *, horizon: int) -> None:
        self._army = army = _Army(layout)
        self.num_actions = ATTACK + army.enemies
        self._width = 5 + army.has_shields + army.num_types  # of one unit in an observation
        observation = 4 + (army.size - 1) * self._width + self._width - 4
        state = army.agents * (self._width - 1 + self.num_actions) + army.enemies * (self._width - 2)
        super().__init__(
            tasks,
            size,
            spec=TeamSpec(
                agents=army.agents,
                observation=observation,
                actions=Discrete(self.num_actions),
                state=state,
                horizon=horizon,
            ),
        )
        shape = (army.size, size)
        self.x, self.y = np.zeros(shape), np.zeros(shape)
        self.health, self.shield = np.zeros(shape), np.zeros(shape)
        self.cooldown, self.shield_wait, self.energy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.target = np.full(shape, -1)  # index of the unit that a unit attacks, heals or follows; -1: none
        self.unpaid = np.zeros((army.enemies, size))  # the least health and shield that an enemy had after a step
        self.last_action = np.full((army.agents, size), -1)
        self._columns = np.arange(size)
        self._goal_x, self._goal_y = np.full(shape, START[0]), np.full(shape, START[1])
        self._marches = np.ones(shape, dtype=bool)
        agent = np.arange(army.agents)
        self._others = np.array([np.delete(agent, index) for index in agent]).reshape(army.agents, -1)

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        army = self._army
        positions = np.empty((army.size, 2, len(rows)))
        for column, (task, sample) in enumerate(zip(tasks, samples, strict=True)):
            rng = sample_rng("battle starts", task.id, sample)
            shift = np.repeat(rng.uniform(-START_SHIFT, START_SHIFT, (2, 2)), [army.agents, army.enemies], 0)
            positions[..., column] = army.slots + shift + rng.uniform(-START_JITTER, START_JITTER, (army.size, 2))
        self.x[:, rows], self.y[:, rows] = positions[:, 0], positions[:, 1]
        self.health[:, rows], self.shield[:, rows] = army.health, army.shield
        self.cooldown[:, rows], self.shield_wait[:, rows] = 0.0, 0.0
        self.energy[:, rows] = np.where(army.heals, START_ENERGY, 0.0)
        self.target[:, rows], self.last_action[:, rows] = -1, -1
        self.unpaid[:, rows] = (army.health + army.shield)[army.agents :]

    def _move(self, actions: NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        army, agents = self._army, self._army.agents
        orders = np.ascontiguousarray(actions.T)
        self.last_action = orders
        first_target = np.where(army.heals[:agents], 0, agents) - ATTACK
        self.target[:agents] = np.where(orders >= ATTACK, orders + first_target, -1)
        kinds = np.minimum(orders, ATTACK)
        self._marches[:agents] = (kinds >= NORTH) & (kinds <= WEST)
        self._goal_x[:agents] = self.x[:agents] + _SHIFT_X[kinds]
        self._goal_y[:agents] = self.y[:agents] + _SHIFT_Y[kinds]
        was_alive = self.health[agents:] > 0
        for _ in range(TICKS_PER_STEP):
            self._tick()
        remaining = (self.health + self.shield)[agents:]
        kills = (was_alive & (self.health[agents:] <= 0)).sum(0)
        reward = KILL_REWARD * kills
        for enemy in range(army.enemies):  # added in order, so that a sum does not depend on the number of rows
            reward += np.maximum(self.unpaid[enemy] - remaining[enemy], 0.0)
        self.unpaid = np.minimum(self.unpaid, remaining)
        fights = (self.health > 0) & ~army.heals
        has_agents, has_enemies = fights[:agents].any(0), fights[agents:].any(0)
        is_won = has_agents & ~has_enemies
        reward = (reward + WIN_REWARD * is_won) * (MAX_RETURN / army.max_reward)
        return reward, ~(has_agents & has_enemies), is_won

    def _tick(self) -> None:
        """Steps all rows by one tick."""
        army, size = self._army, self.size
        alive = self.health > 0
        self._choose_targets(alive)
        target = np.maximum(self.target, 0)
        flat = target * size + self._columns
        is_engaged = (self.target >= 0) & alive.take(flat)
        pair = np.arange(army.size)[:, None] * army.size + target
        offset_x = np.where(is_engaged, self.x.take(flat), self._goal_x) - self.x
        offset_y = np.where(is_engaged, self.y.take(flat), self._goal_y) - self.y
        distance = np.sqrt(offset_x * offset_x + offset_y * offset_y)
        is_in_reach = is_engaged & alive & (distance <= army.reach.take(pair))
        is_moving = alive & ~is_in_reach & (is_engaged | self._marches)
        stride = np.where(is_engaged, army.stride, army.march_stride) if army.has_healers else army.stride
        share = np.minimum(stride, distance) / np.maximum(distance, 1e-9) * is_moving
        self.x += offset_x * share
        self.y += offset_y * share
        self._push_apart(alive)
        np.maximum(self.cooldown - TICK_S, 0.0, out=self.cooldown)
        if army.has_shields:
            np.maximum(self.shield_wait - TICK_S, 0.0, out=self.shield_wait)
            growth = SHIELD_PER_S * TICK_S * (alive & (self.shield_wait <= 0))
            np.minimum(self.shield + growth, army.shield, out=self.shield)
        can_act = is_in_reach & army.can_target.take(pair)
        self._fire(can_act & ~army.heals & (self.cooldown <= 0), target)
        if army.has_healers:
            self._heal(can_act & army.heals, flat)

    def _choose_targets(self, alive: Bools) -> None:
        """Chooses the enemies' targets."""
        army, agents = self._army, self._army.agents
        offset_x = self.x[None, :agents] - self.x[agents:, None]
        offset_y = self.y[None, :agents] - self.y[agents:, None]
        squares = offset_x * offset_x + offset_y * offset_y  # [enemies, agents, E]
        enemy = np.arange(agents, army.size)[:, None]
        is_attacker = self.target[None, :agents] == enemy[..., None]
        scan = (SCAN_RANGE + army.radius[:agents]) ** 2
        is_candidate = ((squares < scan) | is_attacker) & alive[:agents] & army.can_target[agents:, :agents, None]
        rank = squares + np.where(army.heals[:agents], 0.0, 1e6) if army.has_healers else squares
        choice = np.where(is_candidate, rank, np.inf).argmin(1)
        has_candidate = is_candidate.any(1)
        current = self.target[agents:]
        index = np.clip(current, 0, agents - 1)[:, None]
        reach = army.reach[agents:, :agents, None] ** 2
        is_holdable = ((squares <= reach) | is_attacker) & alive[:agents]
        keeps = (current >= 0) & np.take_along_axis(is_holdable, index, 1)[:, 0]
        if army.has_healers:
            heals = army.heals[:, 0]
            keeps &= heals[index[:, 0]] | ~(has_candidate & heals[choice])
        self.target[agents:] = np.where(keeps, current, np.where(has_candidate, choice, -1))
        if army.has_healers:
            self._choose_patients(alive)

    def _choose_patients(self, alive: Bools) -> None:
        """Chooses whom the enemies' healers heal: the weakest hurt unit near them."""
        army, agents = self._army, self._army.agents
        for healer in agents + np.flatnonzero(army.heals[agents:, 0]):
            squares = (self.x[agents:] - self.x[healer]) ** 2 + (self.y[agents:] - self.y[healer]) ** 2
            is_hurt = alive[agents:] & (self.health[agents:] < army.health[agents:])
            is_near = squares < (SCAN_RANGE + army.radius[agents:]) ** 2
            is_patient = is_hurt & is_near & army.can_target[healer, agents:, None]
            weakest = np.where(is_patient, self.health[agents:], np.inf).argmin(0)
            self.target[healer] = np.where(is_patient.any(0), agents + weakest, -1)

    def _push_apart(self, alive: Bools) -> None:
        """Moves units that overlap by half of the overlap each, and keeps all inside the map."""
        army, size = self._army, self.size
        offset_x = self.x[army.second] - self.x[army.first]
        offset_y = self.y[army.second] - self.y[army.first]
        squares = offset_x * offset_x + offset_y * offset_y
        pair, column = np.nonzero(squares < army.contact**2)
        first, second = army.first[pair] * size + column, army.second[pair] * size + column
        is_real = alive.take(first) & alive.take(second)
        if is_real.any():
            pair, column, first, second = pair[is_real], column[is_real], first[is_real], second[is_real]
            distance = np.sqrt(squares[pair, column])
            is_apart = distance > 1e-9
            half = (army.contact[pair, 0] - distance) / 2.0 / np.where(is_apart, distance, 1.0)
            push_x = np.where(is_apart, offset_x[pair, column], 1.0) * half
            push_y = np.where(is_apart, offset_y[pair, column], 0.0) * half
            moved = np.concatenate([first, second])  # bincount adds in this order, whatever else is in the batch
            for coordinate, push in ((self.x, push_x), (self.y, push_y)):
                total = np.bincount(moved, np.concatenate([-push, push]), coordinate.size)
                coordinate += total.reshape(coordinate.shape)
        np.clip(self.x, army.radius, MAP_SIZE - army.radius, out=self.x)
        np.clip(self.y, LOW_Y + army.radius, HIGH_Y - army.radius, out=self.y)

    def _fire(self, fires: Bools, target: Ints) -> None:
        """Lets units hit their targets, all at once; hits on one target are applied in the order of the units."""
        army = self._army
        shooter, column = np.nonzero(fires)
        if not shooter.size:
            return
        self.cooldown[shooter, column] = army.cooldown[shooter, 0]
        shooter, column = np.repeat(shooter, army.hits[shooter]), np.repeat(column, army.hits[shooter])
        victim = target[shooter, column]
        keys, damage = victim * self.size + column, army.damage[shooter, victim]
        order = np.argsort(keys, kind="stable")
        keys, damage = keys[order], damage[order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        rank = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
        health, shield, wait = self.health.reshape(-1), self.shield.reshape(-1), self.shield_wait.reshape(-1)
        for turn in range(int(rank.max()) + 1):
            hit = rank == turn
            units, remaining = keys[hit], damage[hit]
            absorbed = np.minimum(remaining, shield[units])
            shield[units] -= absorbed
            wait[units] = SHIELD_DELAY_S
            dealt = np.maximum(remaining - absorbed - army.armor[units // self.size, 0], 0.0)
            health[units] -= np.minimum(dealt, health[units])

    def _heal(self, heals: Bools, flat: Ints) -> None:
        """Lets healers heal, one after the other."""
        army = self._army
        health = self.health.reshape(-1)
        for healer in np.flatnonzero(army.heals[:, 0]):
            columns = np.flatnonzero(heals[healer])
            patients = flat[healer, columns]
            missing = army.health[patients // self.size, 0] - health[patients]
            amount = np.minimum(missing, HEAL_PER_S * TICK_S)
            amount = np.minimum(amount, HEAL_PER_ENERGY * self.energy[healer, columns]) * (health[patients] > 0)
            health[patients] += amount
            self.energy[healer, columns] -= amount / HEAL_PER_ENERGY
        np.minimum(self.energy + ENERGY_PER_S * TICK_S, np.where(army.heals, MAX_ENERGY, 0.0), out=self.energy)

    def _observe(self, rows: Ints) -> TeamView:
        army, agents = self._army, self._army.agents
        alive = self.health[:, rows] > 0
        x, y = self.x[:, rows], self.y[:, rows]
        shares = [self.health[:, rows] / army.health]
        if army.has_shields:
            shares.append(self.shield[:, rows] / np.maximum(army.shield, 1.0))
        offset_x, offset_y = x[None] - x[:agents, None], y[None] - y[:agents, None]  # [n, U, E]
        distance = np.sqrt(offset_x * offset_x + offset_y * offset_y)
        is_seen = (distance < SIGHT_RANGE) & alive & alive[:agents, None]
        available = self._available(alive, distance, x, y)
        observation = np.zeros((agents, self.spec.observation, len(rows)), dtype=np.float32)
        observation[:, :4] = available[:, NORTH:ATTACK]
        end = 4 + army.enemies * self._width
        enemies = observation[:, 4:end].reshape(agents, army.enemies, self._width, len(rows))
        allies = observation[:, end : 4 - self._width].reshape(agents, agents - 1, self._width, len(rows))
        agent = np.arange(agents)[:, None]
        for features, units, first in (
            (enemies, np.broadcast_to(np.arange(agents, army.size), (agents, army.enemies)), available[:, ATTACK:]),
            (allies, self._others, True),
        ):
            is_visible = is_seen[agent, units]
            features[:, :, 0] = is_visible & first
            features[:, :, 1] = distance[agent, units] / SIGHT_RANGE * is_visible
            features[:, :, 2] = offset_x[agent, units] / SIGHT_RANGE * is_visible
            features[:, :, 3] = offset_y[agent, units] / SIGHT_RANGE * is_visible
            for index, share in enumerate(shares):
                features[:, :, 4 + index] = share[units] * is_visible
            features[:, :, 4 + len(shares) :] = army.is_type[units][..., None] * is_visible[:, :, None]
        own_features = observation[:, 4 - self._width :]
        for index, share in enumerate(shares):
            own_features[:, index] = share[:agents]
        own_features[:, len(shares) :] = army.is_type[:agents, :, None] * alive[:agents, None]
        return TeamView(
            observation=np.ascontiguousarray(observation.transpose(2, 0, 1)),
            alive=np.ascontiguousarray(alive[:agents].T),
            available=np.ascontiguousarray(available.transpose(2, 0, 1)),
            state=self._build_state(rows, alive, shares),
            number=self.number[rows],
            time=self.time[rows],
        )

    def _available(self, alive: Bools, distance: Floats, x: Floats, y: Floats) -> Bools:
        """Returns the masks `[n, A, E]`: a step of 1 must stay on the map, targets are within shooting range."""
        army, agents = self._army, self._army.agents
        x, y, half = x[:agents], y[:agents], MOVE_DISTANCE / 2.0
        available = np.zeros((agents, self.num_actions, x.shape[1]), dtype=bool)
        available[:, STOP] = True
        available[:, NORTH], available[:, SOUTH] = y + half < HIGH_Y, y - half >= LOW_Y
        available[:, EAST], available[:, WEST] = x + half < MAP_SIZE, x - half >= 0.0
        is_target = (distance <= SHOOT_RANGE) & alive
        available[:, ATTACK:] = is_target[:, agents:]
        for healer in np.flatnonzero(army.heals[:agents, 0]):
            available[healer, ATTACK:] = False
            available[healer, ATTACK : ATTACK + agents] = is_target[healer, :agents] & ~army.heals[:agents]
        available &= alive[:agents, None]
        available[:, NO_OP] = ~alive[:agents]
        return available

    def available(self) -> Bools:
        """Returns which actions each agent has now, `[E, n, A]`."""
        agents = self._army.agents
        offset_x, offset_y = self.x[None] - self.x[:agents, None], self.y[None] - self.y[:agents, None]
        distance = np.sqrt(offset_x * offset_x + offset_y * offset_y)
        return self._available(self.health > 0, distance, self.x, self.y).transpose(2, 0, 1)

    def moves_by_enemies(self) -> tuple[Ints, Ints]:
        """Returns the moves of each agent towards its nearest living enemy and away from it, `[E, n]` each."""
        agents = self._army.agents
        offset_x, offset_y = self.x[agents:] - self.x[:agents, None], self.y[agents:] - self.y[:agents, None]
        distance = np.sqrt(offset_x * offset_x + offset_y * offset_y)
        approach, retreat = _choose_moves(offset_x, offset_y, np.where(self.health[agents:] > 0, distance, np.inf))
        return approach.T, retreat.T

    def copy_rows(self, batch: BattleBatch, rows: Ints) -> None:
        """Copies the state of these rows of another batch of the layout, `[E]`, into the rows of this one."""
        for name in self.state_names:
            setattr(self, name, getattr(batch, name).take(rows, axis=-1))  # contiguous: hits write through flat views
        self.number, self.time = batch.number[rows], batch.time[rows]

    def step_unobserved(self, actions: Ints) -> tuple[Floats, Bools]:
        """Steps every team once, without a view; a row that ended goes on, and none begins anew.

        Returns:
            (reward `[E]`, whether the episode has ended `[E]`).
        """
        self.time += 1
        reward, terminated, _ = self._move(actions)
        return reward, terminated | (self.time >= self._horizons())

    def _build_state(self, rows: Ints, alive: Bools, shares: Sequence[Floats]) -> NDArray[np.float32]:
        """Builds the central state: agents, enemies, then the agents' last actions."""
        army, agents, num_rows = self._army, self._army.agents, len(rows)
        x, y = (self.x[:, rows] - MAP_SIZE / 2.0) / MAP_SIZE, (self.y[:, rows] - MAP_SIZE / 2.0) / MAP_SIZE
        weapon = self.cooldown[:, rows] / np.maximum(army.cooldown, 1e-9)
        charge = np.where(army.heals, self.energy[:, rows] / MAX_ENERGY, weapon)
        types = np.broadcast_to(army.is_type[..., None], (*army.is_type.shape, num_rows))
        health, shields = shares[0][:, None], [share[:, None] for share in shares[1:]]
        features = np.concatenate([health, charge[:, None], x[:, None], y[:, None], *shields, types], 1)
        features *= alive[:, None]
        enemies = np.delete(features[agents:], 1, 1)
        actions = self.last_action[:, None, rows] == np.arange(self.num_actions)[:, None]
        parts = [part.reshape(-1, num_rows) for part in (features[:agents], enemies, actions)]
        return np.ascontiguousarray(np.concatenate(parts).T, dtype=np.float32)

    def scene(self, row: int) -> Scene:
        """Returns the present scene of a row: a unit with full health is drawn twice as large as it is, so that it can
        be seen, and smaller the less health it has left.
        """
        army = self._army
        marks = [
            Mark(
                "circle",
                float(self.x[unit, row]),
                MAP_SIZE - float(self.y[unit, row]),
                2.0 * float(army.radius[unit, 0]) * (0.4 + 0.6 * float(self.health[unit, row] / army.health[unit, 0])),
                "agent" if unit < army.agents else "enemy",
            )
            for unit in np.flatnonzero(self.health[:, row] > 0)
        ]
        return Scene((0.0, MAP_SIZE - HIGH_Y, MAP_SIZE, MAP_SIZE - LOW_Y), tuple(marks))


def _focus_fire(batch: BattleBatch) -> Ints:
    """Returns actions `[E, n]` of a team that knows everything.

    Agents wait in a line for the first enemy, join those who fight, and fire at the weakest enemy that the others do
    not kill already. One that its attackers could kill with their next shots steps back, so that they turn to another.
    """
    army, agents = batch._army, batch._army.agents
    alive, health = batch.health > 0, batch.health[:agents] / army.health[:agents]
    offset_x, offset_y = batch.x[None] - batch.x[:agents, None], batch.y[None] - batch.y[:agents, None]  # [n, U, E]
    distance = np.sqrt(offset_x * offset_x + offset_y * offset_y)
    available = batch._available(alive, distance, batch.x, batch.y)
    offset_x, offset_y = offset_x[:, agents:], offset_y[:, agents:]
    distance = np.where(alive[agents:], distance[:, agents:], np.inf)  # [n, enemies, E]
    reach = army.reach[:agents, agents:, None]
    costs = (batch.health + batch.shield)[agents:] + GAP_COST * np.maximum(distance - reach, 0.0)
    for healer in np.flatnonzero(army.heals[:agents, 0]):
        costs[healer, :agents] = np.where(health < 1.0, health, 1e3)[: army.enemies]
    can_attack = available[:, ATTACK:]
    best = np.zeros((agents, batch.size), dtype=np.int64)
    planned, columns = np.zeros((army.enemies, batch.size)), np.arange(batch.size)
    for agent in range(agents):  # one after the other, so that nobody fires at what the others kill already
        is_covered = (planned >= (batch.health + batch.shield)[agents:]) & ~army.heals[agent]
        best[agent] = np.where(can_attack[agent], costs[agent] + 1e4 * is_covered, np.inf).argmin(0)
        fires = can_attack[agent].any(0) & (batch.cooldown[agent] < TICKS_PER_STEP * TICK_S) & ~army.heals[agent]
        volley = army.damage[agent, agents + best[agent]] * army.hits[agent]
        planned[best[agent], columns] += volley * fires
    approach, retreat = _choose_moves(offset_x, offset_y, distance)
    is_fighting = can_attack[~army.heals[:agents, 0]].any((0, 1)) | (batch.time >= PATIENCE_STEPS)
    attackers = (batch.target[agents:, None] == np.arange(agents)[:, None]) & alive[agents:, None]
    threat = (attackers * (army.damage[agents:, :agents] * army.hits[agents:, None])[..., None]).sum(0)
    strength = (batch.health + batch.shield)[:agents]
    is_hunted = (threat >= strength) & (threat > 0) & (strength < strength.max(0))
    waits = np.where(distance.min((0, 1)) > SHOOT_RANGE + MOVE_DISTANCE, _line_up(batch), STOP)
    actions = np.where(can_attack.any(1), ATTACK + best, np.where(is_fighting, approach, waits))
    actions = np.where(is_hunted, retreat, actions)
    is_open = np.take_along_axis(available, actions[:, None], 1)[:, 0]
    return np.where(alive[:agents], np.where(is_open, actions, STOP), NO_OP).T


def _choose_moves(offset_x: Floats, offset_y: Floats, distance: Floats) -> tuple[Ints, Ints]:
    """Returns the moves of each agent towards its nearest enemy and away from it, `[n, E]` each.

    Args:
        offset_x, offset_y: from each agent to each enemy, `[n, enemies, E]`.
        distance: the same; infinite to the dead.
    """
    nearest = distance.argmin(1)[:, None]
    to_x, to_y = (np.take_along_axis(offset, nearest, 1)[:, 0] for offset in (offset_x, offset_y))
    is_level = np.abs(to_x) >= np.abs(to_y)
    approach = np.where(is_level, np.where(to_x > 0, EAST, WEST), np.where(to_y > 0, NORTH, SOUTH))
    retreat = np.where(is_level, np.where(to_x > 0, WEST, EAST), np.where(to_y > 0, SOUTH, NORTH))
    return approach, retreat


def _line_up(batch: BattleBatch) -> Ints:
    """Returns moves `[n, E]` into a line across the way of the enemy, so that all fire when the first one comes."""
    agents = batch._army.agents
    x, y = batch.x[:agents], batch.y[:agents]
    rank_in_line = np.argsort(np.argsort(y, 0, kind="stable"), 0, kind="stable") - (agents - 1) / 2.0
    to_x, to_y = LINE_X - x, START[1] + LINE_PITCH * rank_in_line - y
    along_y = np.where(to_y > 0, NORTH, SOUTH)
    along_x = np.where(to_x > 0, EAST, WEST)
    half = 0.5 * TICKS_PER_STEP * batch._army.stride[:agents]
    return np.where(np.abs(to_y) > half, along_y, np.where(np.abs(to_x) > half, along_x, STOP))


class BattleWorld(DealtOnce):
    """Battles of one layout. There is one tier, "seen"; tasks differ in where the units begin.

    Args:
        layout: a name of `LAYOUTS`.
        horizon: steps of an episode; None: the limit of the layout.
    Raises:
        ConfigError: an unknown layout, or a horizon below 1.
    """

    name, version = "team_battle", "1"
    tiers = ("seen",)

    def __init__(self, layout: str = "3m", *, horizon: int | None = None, sizes: Sizes | None = None) -> None:
        problems = [] if layout in LAYOUTS else [unknown_name_problem("layout", layout, LAYOUTS)]
        problems += (
            [] if horizon is None or horizon >= 1 else [Problem("horizon", f"got {horizon}, expected 1 or more")]
        )
        if problems:
            raise ConfigError(problems)
        self.layout = layout
        self.horizon = LAYOUTS[layout].limit if horizon is None else horizon
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=32, dev=6, test=12, per_kind=12),
            recipe=self.recipe,
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def batch(self, tasks: Sequence[Task], size: int) -> BattleBatch:
        """Creates E rows; raises ConfigError for tasks of another layout."""
        others = sorted({str(task.spec["layout"]) for task in tasks} - {self.layout})
        if others:
            raise ConfigError("battles have another layout", value=others, expected=self.layout)
        return BattleBatch(LAYOUTS[self.layout], tasks, size, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns the bound 20, which a victory over every unit pays."""
        return Optimum(MAX_RETURN, exact=False)

    def expert(self, batch: BattleBatch) -> Ints:
        """Returns actions `[E, n]` of a script that waits for the enemy and concentrates its fire on the weakest."""
        return _focus_fire(batch)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for level in count():
            spec: JsonObject = {"layout": self.layout, "level": level}
            kind = f"{len(LAYOUTS[self.layout].allies)} agents, {self.layout}"
            yield Candidate(spec, kind, tier, canonical_json(spec))
