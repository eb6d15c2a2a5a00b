"""The kitchen: an order worked by hand, rewards, plans against an exhaustive search, tiers, both forms, bad input."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.kitchen.orders import FOODS, PARTS, list_orders_by_tier, parse_part, part_name
from evolvent.worlds.kitchen.rooms import BIN, BOARDS, MAPS, PLATES, SHELVES, Kitchen, State, draw_kitchen
from evolvent.worlds.kitchen.rooms import _compute_distances as ways_of
from evolvent.worlds.kitchen.rules import Action, Rewards, apply_action, find_refusal, list_commands, list_macro_actions
from evolvent.worlds.kitchen.world import Kitchen as KitchenWorld
from evolvent.worlds.kitchen.world import KitchenEnv, Speaker, plan
from evolvent.worlds.panel import Sizes

SMALL = Sizes(train=30, dev=20, test=20)
WORLDS = {form: KitchenWorld(form, sizes=SMALL) for form in ("commands", "macro")}
TOMATO, LETTUCE, ONION = 0, 2, 4  # whole; chopped is one more


def cell(row: int, col: int) -> int:
    return row * 7 + col


def by_hand(order: tuple[int, ...] = (TOMATO + 1, LETTUCE), **start: object) -> Kitchen:
    """An open kitchen: shelves along the top, boards right, plates at the bottom, the cook before the first shelf."""
    cells = tuple(cell(*at) for at in ((1, 1), (1, 2), (1, 3), (2, 5), (4, 5), (5, 1), (5, 3), (5, 5), (3, 1)))
    names = ("left shelf", "upper shelf", "shelf", "first board", "board", "blue plate", "plate", "bin", "hatch")
    state = State(cell(1, 1), -1, (-1, -1), (0, 0), 0)._replace(**start)
    return Kitchen(order, ((TOMATO,), (LETTUCE,), (ONION,)), names, cells, ways_of("open"), state)


def env_of(kitchen: Kitchen, form: str = "commands") -> KitchenEnv:
    task = Task("kitchen", "1", {"by": "hand"})
    return KitchenEnv(task, Speaker(kitchen, form), Rewards(), penalty=-0.001)


def test_an_order_worked_by_hand():
    """Steps counted on paper: to the first board 1 + 5 + 1, chopping 3, to the blue plate 1 + 7 + 1, and so on."""
    env = env_of(by_hand())
    text, info = env.reset()
    assert text == (
        "order : chopped tomato , whole lettuce . on the left shelf tomato . on the upper shelf lettuce . on the shelf "
        "onion . on the first board nothing . on the board nothing . on the blue plate nothing . on the plate nothing"
    )
    assert info["share"] == 0.0 and not info["won"]
    played = [
        ("move the tomato from the left shelf to the first board", "on the first board tomato", -0.007),
        ("chop the tomato on the first board", "on the first board chopped tomato", 0.2 - 0.003),
        ("move the chopped tomato from the first board to the blue plate", "on the blue plate chopped tomato", 0.191),
        (
            "move the lettuce from the upper shelf to the blue plate",
            "on the blue plate chopped tomato , lettuce",
            0.188,
        ),
        ("deliver the blue plate", "right , the order is delivered", 1.0 - 0.004),
    ]
    for action, seen, reward in played:
        assert action in info["admissible"]
        text, got, over, _, info = env.step(action)
        assert (text, round(got, 9)) == (seen, round(reward, 9))
    assert over and info["won"] and info["share"] == 1.0
    with pytest.raises(SessionGone):
        env.step("deliver the blue plate")


def test_the_same_order_by_macro_actions():
    env = env_of(by_hand(), "macro")
    _, info = env.reset()
    rewards = []
    for action in (
        "take the tomato",
        "put the tomato on board one",
        "chop the tomato",
        "take the chopped tomato",
        "put the tomato on plate one",
        "take the lettuce",
        "put the lettuce on plate one",
        "deliver plate one",
    ):
        assert action in info["admissible"] and 3 <= len(action.split()) <= 7
        _, reward, over, _, info = env.step(action)
        rewards.append(round(reward, 9))
    assert over
    assert rewards == [-0.001, -0.006, 0.197, -0.001, 0.192, -0.006, 0.194, 0.996]


def test_a_wrong_delivery_costs_and_the_plate_comes_back():
    env = env_of(by_hand(plates=(1 << ONION, 0)))
    env.reset()
    text, reward, over, _, info = env.step("deliver the blue plate")
    assert text == "wrong , the plate comes back" and not over and not info["won"]
    assert reward == pytest.approx(-0.1 - 0.001 * (4 + 1 + 2 + 1))
    assert "move the onion from the blue plate to the bin" in info["admissible"]


def test_subtasks_are_paid_once():
    """A part laid down, thrown away and laid down again earns nothing more; nor does what the start brings along."""
    env = env_of(by_hand(order=(LETTUCE,)))
    env.reset()
    there, away = "move the lettuce from the upper shelf to the plate", "move the lettuce from the plate to the bin"
    assert env.step(there)[1] > 0.19
    for action in (away, there, away, there):
        assert env.step(action)[1] < 0
    paid = draw_kitchen((TOMATO + 1,), 0).start._replace(reached_subtasks=0b11)
    kitchen = by_hand(order=(TOMATO + 1,), boards=(TOMATO + 1, -1), reached_subtasks=paid.reached_subtasks)
    assert apply_action(kitchen, kitchen.start, Action("move", TOMATO + 1, BOARDS[0], PLATES[0])).num_subtasks == 0


def test_refusals_change_nothing_and_say_why():
    env = env_of(by_hand(boards=(ONION + 1, -1), plates=(1 << LETTUCE, 0)))
    env.reset()
    before = env.snapshot()
    said = {
        "move the onion from the left shelf to the board": "there is no onion on the left shelf",
        "move the tomato from the left shelf to the first board": "the first board has no room for that",
        "chop the chopped onion on the first board": "that is chopped already",
        "move the lettuce from the upper shelf to the blue plate": "the blue plate has no room for that",
        "deliver the plate": "the plate is empty",
        "deliver the first board": "there is no such place",
        "move the pizza from the shelf to the plate": "there is no such thing",
        "eat": "expected move the , chop the or deliver the",
    }
    for action, answer in said.items():
        text, reward, over, _, info = env.step(action)
        assert (text, reward, over, info["invalid"]) == (answer, -0.001, False, True)
    assert env.snapshot() == before
    macro = env_of(by_hand(held_part=ONION), "macro")
    macro.reset()
    assert macro.step("take the tomato")[0] == "put down what is in hand first"
    assert macro.step("put the tomato on board one")[0] == "that is not in hand"
    assert macro.step("put the onion on board one")[:2] == ("on the board one onion", pytest.approx(-0.006))


def fewest(kitchen: Kitchen, single: bool) -> int:
    """How many acts a shortest plan has, by breadth-first search over everything that can be done."""
    of = list_macro_actions if single else list_commands
    seen, queue = {kitchen.start._replace(cook_cell=0, reached_subtasks=0)}, deque([(kitchen.start, 0)])
    while queue:
        state, depth = queue.popleft()
        for act in of(kitchen, state):
            change = apply_action(kitchen, state, act)
            if change.is_right_delivery:
                return depth + 1
            plain = change.state._replace(cook_cell=0, reached_subtasks=0)
            if plain not in seen and change.is_right_delivery is None:
                seen.add(plain)
                queue.append((change.state, depth + 1))
    raise AssertionError("cannot be solved")


@pytest.mark.parametrize("single", [False, True])
def test_plans_have_as_few_acts_as_any(single):
    """Only foods of the order on the shelves, so that the search is small."""
    tried = 0
    for order in ((1,), (0,), (1, 2)):
        for seed in range(12):
            drawn = draw_kitchen(order, seed)
            shelves = tuple(tuple(part for part in of if part | 1 in {p | 1 for p in order}) for of in drawn.shelves)
            kitchen = Kitchen(order, shelves, drawn.names, drawn.access_cells, drawn.distances, drawn.start)
            found = plan(kitchen, one_step=single)
            if len(found) <= 6:
                assert len(found) == fewest(kitchen, single)
                tried += 1
    assert tried >= 15


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), turns=st.lists(st.integers(0, 10**6), max_size=25), single=st.booleans())
def test_random_walks_keep_the_rules(seed, turns, single):
    """Every listed act can be done; at most one thing a board, four a plate; payments never fall; all is understood."""
    tiers = list_orders_by_tier()
    order = tiers[tuple(tiers)[seed % 4]][seed % 40]
    kitchen = draw_kitchen(order, seed)
    speaker = Speaker(kitchen, "macro" if single else "commands")
    state, known = kitchen.start, set(KitchenWorld(sizes=SMALL).vocabulary())
    for turn in turns:
        listed = list((list_macro_actions if single else list_commands)(kitchen, state))
        assert all(not find_refusal(kitchen, state, act) for act in listed)
        texts = [speaker.render_action(act) for act in listed]
        assert len(set(texts)) == len(texts)
        assert [speaker.parse_action(text, state) for text in texts] == listed
        assert {word for text in texts for word in words_of(text)} <= known
        act = listed[turn % len(listed)]
        change = apply_action(kitchen, state, act)
        assert change.num_steps >= 1 and change.num_subtasks in (0, 1)
        assert change.state.reached_subtasks & state.reached_subtasks == state.reached_subtasks
        assert all(mask.bit_count() <= 4 for mask in change.state.plates)
        things = sum(part >= 0 for part in state.boards) + sum(mask.bit_count() for mask in state.plates)
        after = sum(p >= 0 for p in change.state.boards) + sum(mask.bit_count() for mask in change.state.plates)
        assert abs(after - things) <= (4 if act.verb == "clear" else 1)
        state = change.state


def test_drawn_kitchens_are_whole():
    """Every food of the order on a shelf, a board free, six foods, places that differ, no order laid out already."""
    for tier, orders in list_orders_by_tier().items():
        for order in orders[:12]:
            for seed in range(4):
                kitchen = draw_kitchen(order, seed)
                offered = [part for shelf in kitchen.shelves for part in shelf]
                assert {part & ~1 for part in order} <= set(offered) and len(offered) == len(set(offered)) == 6
                assert -1 in kitchen.start.boards
                assert len(set(kitchen.names)) == len(kitchen.access_cells) == 9
                assert max(Counter(kitchen.access_cells).values()) <= 2  # a corner serves two walls
                assert kitchen.order_mask not in kitchen.start.plates, tier
                assert all(kitchen.distances[a][b] >= 0 for a in kitchen.access_cells for b in kitchen.access_cells)


def test_ways_go_round_counters():
    assert ways_of("open")[cell(1, 2)][cell(1, 4)] == 2
    assert ways_of("jutting")[cell(1, 2)][cell(1, 4)] == 6
    assert ways_of("divided")[cell(1, 2)][cell(1, 4)] == 10
    assert all(ways_of(name)[at][at] == (-1 if divmod(at, 7) in MAPS[name] else 0) for name in MAPS for at in (10, 17))


def test_tiers_hold_what_they_promise():
    tiers = list_orders_by_tier()
    parts = {part for order in tiers["seen"] for part in order}
    together = {order for order in tiers["seen"] if len(order) == 2}
    assert (1,) in tiers["seen"] and (1, 3) in tiers["seen"]  # the published salads
    assert {part | 1 for part in parts} == {part | 1 for part in PARTS}  # every food is met
    assert all(set(order) - parts for order in tiers["evo"])
    assert all(set(order) <= parts and order not in together for order in tiers["combo"])
    for order in tiers["longer"]:
        assert len(order) == 3 and {order[:2], order[1:], (order[0], order[2])} <= together
    assert all(len(set(orders)) == len(orders) >= 30 for orders in tiers.values())
    assert [parse_part(part_name(part)) for part in PARTS] == list(PARTS) and len(FOODS) == 10


@pytest.mark.parametrize("form", list(WORLDS))
def test_environments_keep_their_promises(form):
    world = WORLDS[form]
    for tier in world.tiers:
        assert check_env(partial(world.make, world.tasks("dev", tier)[0]), forkable=True, walks=2) == []


def test_the_panels_are_sound():
    found = audit(KitchenWorld(), "test", limit=40)
    assert found.problems == ()


@pytest.mark.parametrize("form", list(WORLDS))
def test_experts_win_with_known_words(form):
    world = WORLDS[form]
    known = set(world.vocabulary())
    lengths = set()
    for task in [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]:
        env = world.make(task)
        text, info = env.reset()
        said, rewards, over = [str(text)], [], False
        for action in world.expert(task):
            assert action in info["admissible"]
            lengths.add(len(action.split()))
            text, reward, over, _, info = env.step(action)
            said += [str(text), action]
            rewards.append(reward)
        assert over and world.score(rewards, info).success is True and len(rewards) <= world.horizon
        assert set(words_of(" ".join(said))) <= known
    assert (min(lengths), max(lengths), len(lengths)) == ((3, 7, 5) if form == "macro" else (3, 19, 16))


def test_small_kitchens_are_small_and_different_tasks():
    """Four foods, one part, three at hand, nothing lying about; by chance they are seldom solved."""
    small = KitchenWorld(level="small")
    assert small.name == "kitchen-small" and small.tiers == ("seen",)
    tasks = [task for split in SPLITS for task in small.tasks(split, "seen")]
    assert [len(small.tasks(split, "seen")) for split in SPLITS] == [1200, 80, 80]
    assert len({small.key(task) for task in tasks}) == len(tasks) and len({task.kind for task in tasks}) == 8
    words = {word for task in tasks[::20] for word in words_of(str(small.make(task).reset()[0]))}
    assert words <= set(small.vocabulary()) and {"tomato", "carrot"} <= words and not {"cucumber", "celery"} & words
    plans = [small.expert(task) for task in tasks]
    assert {len(found) for found in plans} == {2, 4} and small.horizon == 8
    found = audit(small, "test").tiers["seen"]
    assert found.expert == 1.0 and found.random < 0.1
    with pytest.raises(ConfigError, match="invalid order"):
        small.make(Task("kitchen-small", "1", {"order": ["whole celery"], "seed": 1}))
    task = tasks[0]
    assert small.key(task) != KitchenWorld(sizes=SMALL).key(Task("kitchen", "1", task.spec))


def test_the_right_delivery_can_be_all_that_is_paid():
    world = KitchenWorld(rewards=Rewards(subtask=0, wrong=0, step=0), penalty=0.0, sizes=SMALL)
    task = world.tasks("train", "seen")[0]
    env = world.make(task)
    env.reset()
    assert [env.step(action)[1] for action in world.expert(task)][-1] == 1.0
    assert world.reward_range == (0.0, 1.0)


def test_tasks_and_settings_that_are_none():
    world = WORLDS["commands"]
    for spec, what in (
        ({"order": ["boiled tomato"], "seed": 1}, "invalid order"),
        ({"order": [], "seed": 1}, "invalid order"),
        ({"order": ["whole tomato", "chopped tomato"], "seed": 1}, "invalid order"),
        ({"order": "x", "seed": 1}, "invalid order"),
        ({"order": ["whole tomato"], "seed": True}, ", expected a whole number"),
    ):
        with pytest.raises(ConfigError, match=what):
            world.make(Task("kitchen", "1", spec))
    with pytest.raises(ConfigError) as caught:
        world.make(Task("kitchen", "1", {}))
    assert len(caught.value.problems) == 2
    with pytest.raises(VersionMismatch):
        world.make(Task("kitchen", "0", {}))
    with pytest.raises(ConfigError) as caught:
        KitchenWorld("micro", level="tiny", penalty=1.0, horizon=0)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError) as caught:
        Rewards(subtask=-1.0, right=0.0, wrong=0.1, step=float("nan"))
    assert len(caught.value.problems) == 4
    assert (len(SHELVES), len(BOARDS), len(PLATES), BIN) == (3, 2, 2, 7)
