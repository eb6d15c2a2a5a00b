"""The crafting world: replies by hand, conservation, refusals, the closed vocabulary, own and folder books."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recipes import tiny_folder

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import Crafting, words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.recipes import read_recipe

SMALL = Sizes(train=40, dev=20, test=20)
SPEC = {"recipes": ["craft 2 y using 1 a, 2 b", "craft 1 x using 2 y, 1 c", "craft 3 z using 1 c"], "goal": "x"}
TASK = Task("crafting", "1", SPEC)
WORLD = Crafting(sizes=SMALL)


def test_an_episode_by_hand() -> None:
    world = Crafting(penalty=-0.05)
    env = world.make(TASK)
    first, info = env.reset()
    assert first == "craft 2 y using 1 a, 2 b\ncraft 1 x using 2 y, 1 c\ncraft 3 z using 1 c\n\nGoal: craft x."
    assert info["admissible"] == (
        "get 1 a",
        "get 2 a",
        "get 1 b",
        "get 2 b",
        "get 1 c",
        "get 2 c",
        "craft 2 y using 1 a, 2 b",
        "craft 1 x using 2 y, 1 c",
        "craft 3 z using 1 c",
        "inventory",
    )
    rows = [
        ("inventory", "Inventory: nothing", 0.0, None),
        ("get 2 a", "Got 2 a", 0.0, None),
        ("get 1 y", "Could not find y", -0.05, True),
        ("get 1 gold", "Could not find that item", -0.05, True),
        ("get 0 a", "Could not count below 1.", -0.05, True),
        ("craft 2 y using 1 a , 2 b", "Could not find enough items to craft y", -0.05, True),
        (" get  3 b ", "Got 3 b", 0.0, None),
        ("craft 2 y using 2 b, 1 a", "Crafted 2 y", 0.0, None),
        ("inventory", "Inventory: 1 a, 1 b, 2 y", 0.0, None),
        ("craft 1 y using 1 a, 2 b", "Could not find a valid recipe for y", -0.05, True),
        ("craft 0 y using 1 a, 2 b", "Could not count below 1.", -0.05, True),
        ("craft 1 gold using 1 a", "Could not find a valid recipe for that item", -0.05, True),
        ("get 7 c", "Got 7 c", 0.0, None),
        ("get 3 c", "Could not hold more than 9 c", -0.05, True),
        ("get 10 c", "Could not hold more than 9 c", -0.05, True),
        ("make x", "Could not understand. Expected: get, craft or inventory.", -0.05, True),
        ("craft 1 x using 2 y, 1 c", "Crafted 1 x", 1.0, None),
    ]
    rewards = []
    for action, said, reward, invalid in rows:
        observation, got, terminated, truncated, info = env.step(action)
        assert (observation, got, info.get("invalid")) == (said, reward, invalid), action
        assert (terminated, truncated) == (action == rows[-1][0], False)
        assert info["admissible"]
        rewards.append(got)
    assert env.inventory == {"a": 1, "b": 1, "c": 6, "x": 1}
    assert world.score(rewards, info) == Score(pytest.approx(0.5), 1.0, True)  # 10 refusals cost 0.05 each
    with pytest.raises(SessionGone):
        env.step("inventory")


def test_score() -> None:
    world = Crafting()
    assert world.score([0.0, 0.0], {}) == Score(0.0, 0.0, False)
    assert world.score([], {}) == Score(0.0, 0.0, False)
    assert world.score([0.0, None], {}) == Score(None, None, None)


def test_crafting_over_the_limit_keeps_the_inputs() -> None:
    spec = {"recipes": ["craft 3 z using 1 c", "craft 1 x using 1 z"], "goal": "x"}
    env = Crafting().make(Task("crafting", "1", spec))
    env.reset()
    for action in ("get 4 c", *["craft 3 z using 1 c"] * 3):
        assert "invalid" not in env.step(action)[4]
    assert env.step("craft 3 z using 1 c")[0] == "Could not hold more than 9 z"
    assert env.inventory == {"c": 1, "z": 9}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=25), st.integers(0, 10**6))
def test_items_are_conserved(moves: list[int], pick: int) -> None:
    """Every step changes the inventory by exactly a get, a recipe, or nothing."""
    task = WORLD.tasks("dev", "combo")[pick % 20]
    env = WORLD.make(task)
    _, info = env.reset()
    for move in moves:
        before = Counter(env.inventory)
        action = info["admissible"][move % len(info["admissible"])]
        _, reward, terminated, _, info = env.step(action)
        change = Counter(env.inventory)
        change.subtract(before)
        expected = Counter[str]()
        if not info.get("invalid") and action != "inventory":
            if action.startswith("get "):
                _, count, item = action.split()
                expected[item] += int(count)
            else:
                recipe = read_recipe(action)
                assert recipe
                expected[recipe.output] += recipe.count
                expected.subtract({slot.name: slot.count for slot in recipe.inputs})
        assert {item: n for item, n in change.items() if n} == {item: n for item, n in expected.items() if n}
        assert min(env.inventory.values(), default=1) >= 1
        assert terminated == (reward == 1.0) == (env.inventory.get(task.spec["goal"], 0) > 0)
        if terminated:
            return


@pytest.mark.parametrize("level", range(4))
def test_experts_solve_every_task_with_legal_actions(level: int) -> None:
    world = Crafting(level=level, sizes=SMALL)
    for split in SPLITS:
        for tier in world.tiers:
            for task in world.tasks(split, tier)[:30]:
                env = world.make(task)
                _, info = env.reset()
                plan = world.expert(task)
                assert len(plan) <= world.horizon
                for i, action in enumerate(plan):
                    assert action in info["admissible"]
                    _, reward, terminated, _, info = env.step(action)
                    assert "invalid" not in info
                    assert (reward, terminated) == (float(i == len(plan) - 1), i == len(plan) - 1)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_episodes_are_short(level: int) -> None:
    """First observation at most 90 tokens, later ones 12, expert episodes 110 (one recipe more in `longer`: 140)."""
    world = Crafting(level=level)
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            env = world.make(task)
            first, _ = env.reset()
            plan = world.expert(task)
            later = [env.step(action)[0] for action in plan]
            total = sum(len(words_of(text)) for text in (first, *plan, *later))
            assert len(words_of(first)) <= 90
            assert max(len(words_of(text)) for text in later) <= 12
            assert total <= (140 if tier == "longer" else 110)


@pytest.mark.parametrize("world", [WORLD, Crafting(level=3, sizes=SMALL), Crafting("own")], ids=lambda w: w.name)
def test_vocabulary_is_closed(world: Crafting) -> None:
    """What experts, random agents and babblers are shown is made of known words; spaces before commas do no harm."""
    words = world.vocabulary()
    assert words is not None
    assert list(words) == sorted(set(words))
    known, rng = set(words), Random(0)
    babble = [
        "get 0 acorn",
        "get 99 acorn",
        "get 1 unheard",
        "craft 1 unheard using 1 acorn",
        "hello",
        "",
        "craft",
        "get",
    ]
    for tier in world.tiers:
        for task in (*world.tasks("train", tier)[:20], *world.tasks("test", tier)[:20]):
            env = world.make(task)
            said, info = env.reset()
            texts = [str(said), *info["admissible"]]
            for action in (*babble, *rng.choices(info["admissible"], k=25), *world.expert(task)):
                said, _, terminated, _, _ = env.step(" ".join(words_of(action)))
                texts.append(str(said))
                if terminated:
                    break
            assert {word for text in texts for word in words_of(text)} <= known


def test_own_book_world() -> None:
    world = Crafting("own")
    tasks = [task for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]
    assert len({task.spec["goal"] for task in tasks}) == len(tasks) > 150
    for task in tasks[::5]:
        env = world.make(task)
        first, info = env.reset()
        assert str(first).startswith("Crafting commands:\ncraft ")
        assert sum(line.startswith("craft") for line in str(first).splitlines()) <= len(world.expert(task)) + 10
        for action in world.expert(task):
            assert action in info["admissible"]
            _, reward, _, _, info = env.step(action)
        assert reward == 1.0
    loom = next(Task("workshop", "1", task.spec) for task in tasks if "loom" in task.spec["goal"])
    env = world.make(loom)
    env.reset()
    assert env.step("get 1 yarn")[0] == "Could not find yarn"  # a tag
    assert env.step("get 64 flax tuft")[0] == "Got 64 flax tuft"


def test_folder_world(tmp_path) -> None:  # type: ignore[no-untyped-def]
    world = Crafting.from_folder(tiny_folder(tmp_path))
    assert (world.name, world.vocabulary()) == ("textcraft", None)
    tasks = {task.spec["goal"]: task for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)}
    assert set(tasks) == {"bar", "sword", "torch", "fir planks", "oak planks", "stick"}
    assert tasks["sword"].tier == "longer"
    env = world.make(tasks["torch"])
    env.reset()
    for action in ("get 1 oak log", "craft 4 oak planks using 1 oak log", "get 1000 coals"):
        assert "invalid" not in env.step(action)[4]
    assert env.step("get 1 planks")[0] == "Could not find planks"
    assert env.step("craft 4 stick using 2 planks")[0] == "Could not find a valid recipe for stick"
    assert env.step("craft 4 stick using 2 oak planks")[0] == "Crafted 4 stick"  # any member of the tag
    assert env.step("craft torch using 1 stick, 1 coals")[1] == 1.0


def test_key_ignores_names() -> None:
    world = Crafting()
    names = {"a": "p", "b": "q", "c": "r", "x": "s", "y": "t", "z": "u"}
    lines = [
        " ".join(names.get(word.strip(","), word.strip(",")) + "," * word.endswith(",") for word in line.split())
        for line in SPEC["recipes"]
    ]
    other = Task("crafting", "1", {"recipes": lines[::-1], "goal": "s"})
    assert lines[0] == "craft 2 t using 1 p, 2 q"
    assert world.key(TASK) == world.key(other)
    assert world.key(TASK) != world.key(Task("crafting", "1", {**SPEC, "goal": "z"}))


def test_renamed_tasks_are_the_same_up_to_names() -> None:
    rng = Random(2)
    for tier in WORLD.tiers:
        for task in WORLD.tasks("dev", tier):
            other = WORLD.rename(task, rng)
            assert other.id != task.id
            assert (other.kind, other.tier, other.split) == (task.kind, task.tier, task.split)
            assert WORLD.key(other) == WORLD.key(task)
            assert [len(action) for action in map(words_of, WORLD.expert(other))] == [
                len(action) for action in map(words_of, WORLD.expert(task))
            ]
    goals = {WORLD.rename(task, rng).spec["goal"] for _ in range(400)}
    assert goals == set(WORLD.vocabulary() or ()) & goals
    assert len(goals) == WORLD.level.names
    own = Crafting("own")
    with pytest.raises(ConfigError, match="part of its book"):
        own.rename(own.tasks("test", "seen")[0], rng)


def test_tasks_of_other_worlds_and_books_are_refused() -> None:
    for spec in (
        {},
        {"goal": "x"},
        {"goal": "x", "recipes": []},
        {"goal": "x", "recipes": ["get 1 a"]},
        {"goal": 3, "recipes": SPEC["recipes"]},
        {"goal": "x", "recipes": "craft 1 x using 1 a"},
    ):
        with pytest.raises(ConfigError, match="the task does not belong to world"):
            Crafting().make(Task("crafting", "1", spec))
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        Crafting().make(Task("lookup", "1", SPEC))
    with pytest.raises(ConfigError, match="unknown goal 'nothing'"):
        Crafting().make(Task("crafting", "1", {**SPEC, "goal": "nothing"}))
    with pytest.raises(VersionMismatch):
        Crafting("own").make(Task("workshop", "1", {**SPEC, "book": "0" * 16}))


def test_bad_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Crafting("minecraft", level=9, penalty=1.0)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3
    for penalty in (float("nan"), float("-inf")):
        with pytest.raises(ConfigError, match=f"penalty: got a reward of {penalty}"):
            Crafting(penalty=penalty)
    with pytest.raises(ConfigError, match="did you mean 'combo'"):
        Crafting().tasks("test", "comb")


def test_many_tasks_do_not_pile_up() -> None:
    world = Crafting()
    for n in range(5000):
        world.make(Task("crafting", "1", {**SPEC, "n": n}))
    env = world.make(TASK)
    env.reset()
    for n in range(3000):
        env.step(f"babble {n}")
    assert len(world._scenes) <= 4096
    assert len(env._scene.parsed_actions) <= 1024
