"""The battle world: what units see, may do and do to each other, worked out by hand, and games as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError, InvalidAction
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.base import check_view
from evolvent.worlds.teams.battle import LAYOUTS, BattleWorld
from evolvent.worlds.teams.battle_planner import BattlePlanner
from tests.team_support import actions_for, equal_episodes, played, same

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, ATTACK = range(7)
FEW = Sizes(train=4, dev=0, test=2, per_kind=4)
FAR = (1.0, 9.0)  # a corner in which nobody meets anybody
each_layout = pytest.mark.parametrize("layout", sorted(LAYOUTS))


def make_batch(layout: str = "3m", size: int = 1, **settings):
    world = BattleWorld(layout, sizes=FEW, **settings)
    return world, world.batch(world.tasks("train", "seen"), size)


def place(layout: str, places: dict[int, tuple[float, float]], *, horizon=None, **arrays):
    """A batch of one row in which only the named units live, each at its place; arrays hold values of units."""
    _, batch = make_batch(layout, horizon=horizon)
    batch.reset([0])
    state = dict(batch.snapshot())
    lives = np.isin(np.arange(len(state["x"])), list(places))[:, None]
    state["health"], state["shield"] = state["health"] * lives, state["shield"] * lives
    for unit, (x, y) in places.items():
        state["x"][unit], state["y"][unit] = x, y
    for name, of_units in arrays.items():
        for unit, number in of_units.items():
            state[name][unit] = number
    agents = batch.spec.agents
    state["unpaid"] = (state["health"] + state["shield"])[agents:]
    return batch, batch.restore(state)


def orders(batch, **of_agents) -> np.ndarray:
    """Stop for everybody who lives, and what is said of `a0`, `a1` and so on."""
    actions = np.where(batch.health[: batch.spec.agents, 0] > 0, STOP, NO_OP)[None]
    for name, action in of_agents.items():
        actions[0, int(name[1:])] = action
    return actions


@pytest.mark.parametrize(
    ("layout", "agents", "observation", "actions", "state", "limit"),
    [
        ("3m", 3, 30, 9, 48, 60),
        ("8m", 8, 80, 14, 168, 120),
        ("2s3z", 5, 80, 11, 120, 120),
        ("3s5z", 8, 128, 14, 216, 150),
        ("MMM2", 10, 176, 18, 322, 180),
    ],
)
def test_spec_of_each_layout_is_smacs(layout, agents, observation, actions, state, limit):
    spec = make_batch(layout)[1].spec
    assert (spec.agents, spec.observation, spec.actions.n, spec.state) == (agents, observation, actions, state)
    assert spec.horizon == limit


def test_observation_of_marines_matches_hand_worked_features():
    places = {0: (10, 16), 1: (12, 16), 2: (10, 12), 3: (15, 16), 4: (15, 20), 5: (25, 16)}
    _, view = place("3m", places, health={1: 9.0, 4: 30.0})
    move, enemies, allies, own = np.split(view.observation[0, 0], [4, 19, 29])
    assert move.tolist() == [1, 1, 1, 1]
    expected = [
        [1, 5 / 9, 5 / 9, 0, 1],  # 5 away: within 6
        [0, 41**0.5 / 9, 5 / 9, 4 / 9, 30 / 45],  # 6.4 away: seen, but out of range
        [0, 0, 0, 0, 0],  # 15 away
    ]
    assert enemies.reshape(3, 5) == pytest.approx(np.array(expected))
    assert allies.reshape(2, 5) == pytest.approx(np.array([[1, 2 / 9, 2 / 9, 0, 0.2], [1, 4 / 9, 0, -4 / 9, 1]]))
    assert own.tolist() == [1]
    assert view.observation[0, 1, -1] == pytest.approx(0.2)  # its own health


def test_observation_holds_shields_and_types():
    places = {0: (10, 16), 2: (12, 16), 5: (14, 16), 7: (10, 20)}
    _, view = place("2s3z", places, shield={2: 25.0, 5: 20.0}, health={7: 50.0})
    enemies = view.observation[0, 0, 4:44].reshape(5, 8)
    assert enemies[0] == pytest.approx([1, 4 / 9, 4 / 9, 0, 1, 0.25, 1, 0])  # a stalker
    assert enemies[2] == pytest.approx([1, 4 / 9, 0, 4 / 9, 0.5, 1, 0, 1])  # a zealot
    assert not enemies[[1, 3, 4]].any()
    allies = view.observation[0, 0, 44:76].reshape(4, 8)
    assert allies[1] == pytest.approx([1, 2 / 9, 2 / 9, 0, 1, 0.5, 0, 1]) and not allies[[0, 2, 3]].any()
    assert view.observation[0, 0, 76:].tolist() == [1, 1, 1, 0]
    assert view.observation[0, 2, 76:] == pytest.approx([1, 0.5, 0, 1])
    assert not view.observation[0, [1, 3, 4]].any() and view.alive[0].tolist() == [True, False, True, False, False]


def test_dead_units_are_seen_by_nobody():
    _, view = place("3m", {0: (10, 16), 3: (12, 16)})
    assert not view.observation[0, 0, 9:29].any(), "two enemies and two agents are dead"
    assert not view.observation[0, 1:].any()


def test_mask_matches_the_map_and_the_range():
    places = {0: (10, 16), 1: (31.2, 23.2), 3: (16, 16), 4: (16.01, 16)}
    _, view = place("3m", places)
    assert view.available[0, 0].tolist() == [False, True, True, True, True, True, True, False, False]  # 6 is in range
    assert view.available[0, 1].tolist() == [False, True, False, True, False, True, False, False, False]
    assert view.available[0, 2].tolist() == [True] + [False] * 8  # dead: no-op and no other
    _, corner = place("3m", {0: (0.5, 8.5), 3: (30, 20)})
    assert corner.available[0, 0, NORTH:ATTACK].tolist() == [True, False, True, False]


def test_mask_of_a_medivac_names_agents_it_can_heal():
    places = {0: (10, 16), 3: (14, 16), 8: (17, 16), 9: (10, 18), 10: (11, 16)}
    _, view = place("MMM2", places)
    assert np.flatnonzero(view.available[0, 9]).tolist() == [1, 2, 3, 4, 5, ATTACK, ATTACK + 3]
    assert np.flatnonzero(view.available[0, 0, ATTACK:]).tolist() == [0]
    assert view.observation[0, 9, 4] == 1, "as SMAC: the first number of enemy i is whether action 6 + i is allowed"


def test_state_matches_hand_worked_features():
    places = {0: (10, 16), 9: (24, 20), 10: (20, 12)}
    batch, view = place("MMM2", places, cooldown={0: 0.535}, energy={9: 60.0}, health={10: 25.0})
    agents, enemies, actions = np.split(view.state[0], [70, 142])
    agents, enemies = agents.reshape(10, 7), enemies.reshape(12, 6)
    assert agents[0] == pytest.approx([1, 0.5, -6 / 32, 0, 1, 0, 0])  # half of the cooldown of 1.07 s
    assert agents[9] == pytest.approx([1, 0.3, 8 / 32, 4 / 32, 0, 0, 1])  # 60 of 200 energy
    assert enemies[0] == pytest.approx([0.2, 4 / 32, -4 / 32, 1, 0, 0])
    assert not agents[1:9].any() and not enemies[1:].any() and not actions.any()
    after = batch.step(orders(batch, a0=WEST)).view.state[0, 142:].reshape(10, 18)
    assert after.argmax(-1).tolist() == [WEST, *[NO_OP] * 8, STOP] and after.sum() == 10


def test_a_hit_of_a_marine_pays_its_damage():
    batch, _ = place("3m", {0: (10, 16), 1: FAR, 3: (15, 16)})
    step = batch.step(orders(batch, a0=ATTACK))
    assert batch.health[3, 0] == 39, "8 ticks are .5 s, the cooldown is .61 s: one hit of 6"
    assert batch.health[0, 0] == 39, "the enemy answers"
    assert step.reward[0] == pytest.approx(6 / 365 * 20)  # 3 * (45 + 10) + 200 = 365
    second = batch.step(orders(batch, a0=ATTACK))
    assert batch.health[3, 0] == 33 and second.reward[0] == pytest.approx(6 / 365 * 20)
    assert batch.cooldown[0, 0] == pytest.approx(0.61 - 5 / 16), "fired at tick 11 of 16"


def test_cooldown_counts_whole_ticks():
    batch, _ = place("3m", {0: (10, 16), 1: FAR, 3: (15, 16)}, health={3: 45.0})
    shots = []
    for _ in range(6):
        before = batch.health[3, 0]
        batch.step(orders(batch, a0=ATTACK))
        shots.append((before - batch.health[3, 0]) / 6)
        batch.health[0, 0] = 45.0
    assert shots == [1, 1, 1, 1, 0, 1], "one shot every 10 ticks: at ticks 1, 11, 21, 31 and 41 of 48"


@pytest.mark.parametrize(
    ("attacker", "victim", "shield", "expected"),
    [
        (0, 7, 50.0, (100, 37)),  # a stalker's 13 on a zealot's shield
        (0, 7, 5.0, (93, 0)),  # 5 absorbed, 8 less 1 of armor
        (0, 5, 10.0, (73, 0)),  # 18 on an armored stalker: 10 absorbed, 8 less 1
        (2, 5, 4.0, (70, 0)),  # a zealot's two hits of 8: 4 absorbed and 3, then 7
        (2, 7, 0.0, (86, 0)),  # 7 and 7
    ],
)
def test_shields_absorb_and_armor_is_subtracted_from_each_hit(attacker, victim, shield, expected):
    places = {attacker: (10, 16), victim: (11, 16)}
    batch, _ = place("2s3z", places, shield={victim: shield}, shield_wait={victim: 9.0}, cooldown={victim: 9.0})
    batch.step(orders(batch, **{f"a{attacker}": ATTACK + victim - 5}))
    assert (batch.health[victim, 0], batch.shield[victim, 0]) == expected


@pytest.mark.parametrize(
    ("attacker", "victim", "health"),
    [(2, 13, 39), (2, 10, 120), (0, 13, 35), (0, 10, 106), (2, 21, 145), (0, 21, 150)],
)
def test_damage_of_terran_units(attacker, victim, health):
    """Marine 6, marauder 10 and 20 on armored ones, less armor 1; a marauder cannot hit what flies."""
    batch, _ = place("MMM2", {attacker: (10, 16), victim: (14, 16), 20: (30, 20)}, cooldown={victim: 9.0})
    batch.step(orders(batch, **{f"a{attacker}": ATTACK + victim - 10}))
    assert batch.health[victim, 0] == health


def test_shields_regrow_after_ten_seconds():
    batch, _ = place("2s3z", {0: FAR, 1: (1, 23), 5: (30, 16)}, shield={0: 20.0, 1: 20.0}, shield_wait={1: 0.75})
    batch.step(orders(batch))
    assert batch.shield[0, 0] == 21, "2 a second for half a second"
    assert batch.shield[1, 0] == 20
    batch.step(orders(batch))
    assert batch.shield[1, 0] == pytest.approx(20.625), "from tick 12 of 16: five times .125"
    hit, _ = place("2s3z", {0: (10, 16), 5: (14, 16)})
    hit.step(orders(hit, a0=ATTACK))
    assert hit.shield_wait[5, 0] == pytest.approx(10 - 7 / 16) and hit.shield[5, 0] == 62


def test_a_medivac_heals_for_energy():
    batch, _ = place("MMM2", {2: (10, 16), 9: (12, 16), 10: (30, 16)}, health={2: 20.0})
    batch.step(orders(batch, a9=ATTACK + 2))
    assert batch.health[2, 0] == 24.5, "9 a second"
    assert batch.energy[9, 0] == pytest.approx(50 - 1.5 + 0.28125)
    empty, _ = place("MMM2", {2: (10, 16), 9: (12, 16), 10: (30, 16)}, health={2: 20.0}, energy={9: 0.0})
    empty.step(orders(empty, a9=ATTACK + 2))
    assert 20 < empty.health[2, 0] < 21
    full, _ = place("MMM2", {2: (10, 16), 9: (12, 16), 10: (30, 16)}, health={2: 44.9})
    full.step(orders(full, a9=ATTACK + 2))
    assert full.health[2, 0] == 45


def test_enemy_medivacs_heal_their_own():
    batch, _ = place("MMM2", {0: FAR, 11: (28, 16), 21: (28, 17)}, health={11: 100.0})
    batch.step(orders(batch))
    assert batch.health[11, 0] == 104.5


def test_moves_go_as_far_as_speed_allows():
    batch, _ = place("3m", {0: (10, 16), 1: (20, 10), 2: (5, 20), 3: (30, 16)})
    batch.step(orders(batch, a0=NORTH, a1=EAST, a2=STOP))
    step = 8 * 3.15 / 16
    assert (batch.x[:3, 0], batch.y[:3, 0]) == (
        pytest.approx([10, 20 + step, 5]),
        pytest.approx([16 + step, 10, 20]),
    )
    assert (batch.x[3, 0], batch.y[3, 0]) == (pytest.approx(30 - step), 16), "enemies march on the agents' start"
    fast, _ = place("2s3z", {0: (10, 16), 5: (30, 10)})
    fast.step(orders(fast, a0=WEST))
    assert fast.x[0, 0] == pytest.approx(8), "a move is 2 long, and 4.13 / 2 is more"


def test_units_that_overlap_push_each_other_apart():
    batch, _ = place("3m", {0: (10, 16), 1: (10.25, 16), 2: (10, 20), 3: (30, 16)})
    batch.step(orders(batch))
    assert batch.x[:2, 0] == pytest.approx([9.75, 10.5]) and batch.y[:2, 0].tolist() == [16, 16]
    together, _ = place("3m", {0: (10, 16), 1: (10, 16), 3: (30, 16)})
    together.step(orders(together))
    assert abs(together.x[1, 0] - together.x[0, 0]) == pytest.approx(0.75)
    wall, _ = place("3m", {0: (0.1, 8.1), 3: (30, 16)})
    wall.step(orders(wall))
    assert (wall.x[0, 0], wall.y[0, 0]) == (0.375, 8.375)


def test_enemies_choose_the_nearest_and_answer_attackers():
    batch, _ = place("3m", {0: (10, 16), 1: (11, 14), 3: (15.2, 16)})
    batch.step(orders(batch))
    assert batch.target[3, 0] == 1, "4.65 away rather than 5.2"
    far, _ = place("3m", {0: (9.6, 16), 1: (1, 20), 3: (15.2, 16)}, health={3: 7.0})
    far.step(orders(far, a0=ATTACK))
    assert far.target[3, 0] == 0, "5.6 away is further than 5.375, but it attacks"
    medic, _ = place("MMM2", {0: (12, 16), 9: (11, 16), 12: (15, 16), 13: (15, 18)})
    medic.step(orders(medic))
    assert medic.target[13, 0] == 9, "medivacs come first"
    assert medic.target[12, 0] == 0, "a marauder cannot hit what flies"


def test_the_last_kill_wins():
    batch, _ = place("3m", {0: (10, 16), 1: FAR, 3: (15, 16)}, health={3: 6.0})
    step = batch.step(orders(batch, a0=ATTACK))
    assert step.terminated[0] and step.success[0] and not step.truncated[0]
    assert step.reward[0] == pytest.approx((6 + 10 + 200) / 365 * 20)
    assert step.final.alive[0].tolist() == [True, True, False] and step.view.alive.all(), "the next battle begins"


def test_an_army_without_fighters_has_lost():
    lost, _ = place("3m", {0: (10, 16), 3: (15, 16), 4: (15, 17)}, health={0: 12.0})
    step = lost.step(orders(lost))
    assert step.terminated[0] and not step.success[0] and step.reward[0] == 0 and not step.final.alive.any()
    medic, _ = place("MMM2", {2: (10, 16), 9: (2, 10), 13: (14, 16)}, health={2: 6.0})
    step = medic.step(orders(medic))
    assert step.terminated[0] and not step.success[0] and step.final.alive[0].sum() == 1
    won, _ = place("MMM2", {2: (10, 16), 13: (14, 16), 21: (30, 10)}, health={13: 6.0})
    step = won.step(orders(won, a2=ATTACK + 3))
    assert step.terminated[0] and step.success[0] and step.reward[0] < 20


def test_two_last_units_that_kill_each_other_win_nothing():
    batch, _ = place("3m", {0: (10, 16), 3: (15, 16)}, health={0: 6.0, 3: 6.0})
    step = batch.step(orders(batch, a0=ATTACK))
    assert step.terminated[0] and not step.success[0]
    assert step.reward[0] == pytest.approx((6 + 10) / 365 * 20)


def test_the_episode_limit_truncates():
    batch, _ = place("3m", {0: FAR, 3: (30, 20)}, horizon=2)
    assert not batch.step(orders(batch)).ended.size
    step = batch.step(orders(batch))
    assert step.truncated[0] and not step.terminated[0] and not step.success[0] and step.final.time[0] == 2


def test_points_that_came_back_are_not_paid_again():
    batch, _ = place("2s3z", {0: (10, 16), 5: (15, 16)})
    state = {**batch.snapshot(), "unpaid": batch.unpaid - 20.0}  # 20 were paid before, and grew back
    batch.restore(state)
    assert batch.step(orders(batch, a0=ATTACK)).reward[0] == 0, "18 of damage"
    total = 5 * 10 + 200 + 2 * 160 + 3 * 150
    batch.restore({**state, "unpaid": batch.unpaid * 0 + np.array([[158.0], [0], [0], [0], [0]])})
    batch.shield[5] = 80.0
    assert batch.step(orders(batch, a0=ATTACK)).reward[0] == pytest.approx((158 - 142) / total * 20)


@each_layout
def test_battles_side_by_side_equal_battles_one_by_one(layout):
    _, batch = make_batch(layout, 6, horizon=16)
    together = played(batch, np.arange(6), 20)
    assert len(together) >= 6
    alone = make_batch(layout, 1, horizon=16)[1]
    for number in (0, 3, 5):
        assert equal_episodes(together[number], played(alone, [number], 16)[number]), f"episode {number}"


@pytest.mark.parametrize("layout", ["8m", "MMM2"])
def test_fights_of_256_rows_equal_single_ones(layout):
    world, many = make_batch(layout, 256)
    _, one = make_batch(layout, 1)
    numbers = np.arange(256)
    many.reset(numbers)
    one.reset([200])
    for _ in range(14):
        several, single = many.step(world.expert(many)), one.step(world.expert(one))
        assert several.reward[200] == single.reward[0]
        assert same(several.view.select_rows(np.array([200])), single.view)
    assert (many.health < many.health.max(1, keepdims=True)).any(), "they have fought"


def test_a_snapshot_continues_the_same_battle():
    world, batch = make_batch("2s3z", 4)
    batch.reset([3, 1, 7, 5])
    for _ in range(9):
        batch.step(world.expert(batch))
    saved = batch.snapshot()
    first = [batch.step(world.expert(batch)) for _ in range(6)]
    other = make_batch("2s3z", 4)[1]
    for stored in (saved, {name: np.asfortranarray(array) for name, array in saved.items()}):
        other.restore(stored)
        for step in first:
            again = other.step(world.expert(other))
            assert np.array_equal(again.reward, step.reward) and same(again.view, step.view)


def test_starts_are_a_function_of_task_and_sample():
    _, batch = make_batch("8m", 3)
    first = batch.reset([0, 4, 1])
    assert same(first, batch.reset([0, 4, 1]))
    assert len({row.tobytes() for row in first.observation}) == 3
    assert batch.x[:8].max() < 16 < batch.x[8:].min()


@each_layout
def test_masks_allow_what_is_legal_and_nothing_else(layout):
    world, batch = make_batch(layout, 8)
    view = batch.reset(np.arange(8))
    agents = batch.spec.agents
    for step in range(24):
        actions = world.expert(batch) if step % 3 else actions_for(view, batch.spec)
        view = batch.step(actions).view  # raises for an action that is not available
        check_view(view, batch.spec)
        assert (view.available[..., NO_OP] == ~view.alive).all() and (view.available[..., STOP] == view.alive).all()
        for row, agent, action in np.argwhere(view.available[..., ATTACK:]):
            heals = layout == "MMM2" and agent == agents - 1
            unit = action if heals else agents + action
            gap = np.hypot(batch.x[unit, row] - batch.x[agent, row], batch.y[unit, row] - batch.y[agent, row])
            assert gap <= 6 and batch.health[unit, row] > 0 and batch.health[agent, row] > 0
            assert not (heals and unit == agent)
    assert view.available[..., ATTACK:].any()
    row, agent, action = np.argwhere(~view.available & view.alive[..., None])[0]
    illegal = actions_for(view, batch.spec)
    illegal[row, agent] = action
    with pytest.raises(InvalidAction, match="not available"):
        batch.step(illegal)


def play_whole(world, choose, episodes: int) -> tuple[float, np.ndarray]:
    """Returns (share of victories, returns) of the first episodes of a batch."""
    batch = world.batch(world.tasks("test", "seen"), episodes)
    view, won, returns = batch.reset(np.arange(episodes)), np.zeros(episodes, bool), np.zeros(episodes)
    for _ in range(world.horizon):
        running = batch.number < episodes
        step = batch.step(choose(batch, view))
        won |= running & step.success
        returns += running * step.reward
        view = step.view
        if (batch.number >= episodes).all():
            break
    return float(won.mean()), returns


def test_focused_fire_wins_and_chance_loses():
    world = BattleWorld("3m", sizes=FEW)
    won, returns = play_whole(world, lambda batch, view: world.expert(batch), 64)
    assert won >= 0.85
    assert returns.max() == pytest.approx(20) and (returns <= 20 + 1e-9).all()
    lost, few = play_whole(world, lambda batch, view: actions_for(view, batch.spec), 64)
    assert lost <= 0.05 and few.max() < 10


def play_out(world, snapshot, actions) -> tuple[float, float]:
    """Returns (what a battle of marines pays from here on, its agents' health at the end): these actions, then the
    script's.
    """
    batch = world.batch(world.tasks("train", "seen"), 1)
    batch.restore(snapshot)
    total, is_over = 0.0, False
    while not is_over:
        step = batch.step(actions)
        total, is_over = total + float(step.reward[0]), bool(step.ended.size)
        actions = world.expert(batch)
    return round(total, 6), round(float(step.final.observation[0, :, -1].sum()) * 45, 3)


def list_choices(batch, script) -> list[np.ndarray]:
    """Returns the planner's choices by hand, for a batch of one row with fighters alone."""
    agents, allowed = batch.spec.agents, batch.available()[0]
    back, closer = [], []
    for agent in range(agents):
        living = [enemy for enemy in range(agents, len(batch.x)) if batch.health[enemy, 0] > 0]
        ways = [(batch.x[enemy, 0] - batch.x[agent, 0], batch.y[enemy, 0] - batch.y[agent, 0]) for enemy in living]
        x, y = min(ways, key=lambda way: way[0] ** 2 + way[1] ** 2)
        pair = (
            ((WEST, EAST) if x > 0 else (EAST, WEST))
            if abs(x) >= abs(y)
            else (SOUTH, NORTH)
            if y > 0
            else (NORTH, SOUTH)
        )
        back.append(pair[0])
        closer.append(pair[1])
    wished = [back, closer, [STOP] * agents, *([action] * agents for action in range(ATTACK, batch.num_actions))]
    wished += [[*script[0, :agent], back[agent], *script[0, agent + 1 :]] for agent in range(agents)]
    chosen = [
        [action if allowed[agent, action] else script[0, agent] for agent, action in enumerate(row)] for row in wished
    ]
    return [script, *(np.array([row]) for row in chosen)]


@pytest.mark.parametrize(("number", "is_lost_by_the_script"), [(1, False), (3, True)])
def test_the_planner_does_what_pays_most_of_its_choices(number, is_lost_by_the_script):
    """By brute force, through the public steps of a batch of one row."""
    world = BattleWorld("3m", sizes=FEW)
    batch, planner = world.batch(world.tasks("train", "seen"), 1), BattlePlanner(world)
    batch.reset([number])
    for _ in range(7):
        batch.step(world.expert(batch))
    gains = []
    for _ in range(6):
        snapshot, script = batch.snapshot(), world.expert(batch)
        chosen = planner.plan(batch)
        assert all(np.array_equal(array, batch.snapshot()[name]) for name, array in snapshot.items())
        outcomes = [play_out(world, snapshot, choice) for choice in list_choices(batch, script)]
        assert play_out(world, snapshot, chosen) == max(outcomes), "what pays most, then what leaves most health"
        gains.append(tuple(np.subtract(max(outcomes), outcomes[0])))
        batch.step(chosen)
    assert max(gains) > (0, 0) and (max(gains)[0] > 0) == is_lost_by_the_script


def test_the_planner_wins_where_the_script_loses():
    world = BattleWorld("3m", sizes=FEW)
    planner = BattlePlanner(world)
    scripted, _ = play_whole(world, lambda batch, view: world.expert(batch), 32)
    planned, returns = play_whole(world, lambda batch, view: planner.plan(batch), 32)
    assert scripted < 1 and planned == 1 and returns == pytest.approx(20)


def test_a_scene_shows_the_living():
    batch, _ = place("3m", {0: (10, 20), 3: (15, 16)}, health={3: 22.5})
    marks = batch.scene(0).marks
    assert [(mark.role, mark.x, mark.y) for mark in marks] == [("agent", 10, 12), ("enemy", 15, 16)]
    assert marks[0].radius > marks[1].radius


def test_mistakes_are_refused():
    with pytest.raises(ConfigError, match=r"unknown layout '3n'(.|\n)*3m(.|\n)*horizon: got 0"):
        BattleWorld("3n", horizon=0)
    with pytest.raises(ConfigError, match="another layout"):
        BattleWorld("8m", sizes=FEW).batch(BattleWorld("3m", sizes=FEW).tasks("train", "seen"), 1)
