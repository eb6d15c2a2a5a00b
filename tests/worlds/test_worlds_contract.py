"""What every world and its environments promise, checked on each of them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.backoffice.world import Backoffice
from evolvent.worlds.base import SPLITS, Env, Forkable, World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.crafting import Crafting, words_of
from evolvent.worlds.datasci.world import DataSci
from evolvent.worlds.functions.world import Functions
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.household.nouns import HouseholdNouns
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.kitchen.world import Kitchen
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.microwave import Microwave
from evolvent.worlds.panel import Sizes
from evolvent.worlds.science.world import Science
from evolvent.worlds.searchqa.world import SearchQA
from evolvent.worlds.shop.world import Shop
from evolvent.worlds.site.world import Site
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.todo import Todo
from evolvent.worlds.tools.weather import Weather
from evolvent.worlds.virtualhome import VirtualHome
from evolvent.worlds.wordle import Wordle

SMALL = Sizes(train=30, dev=20, test=20)
WORLDS = {
    "backoffice": Backoffice(sizes=SMALL),
    "crafting": Crafting(sizes=SMALL),
    "crafting level 0": Crafting(level=0, sizes=SMALL),
    "crafting level 3": Crafting(level=3, sizes=SMALL),
    "workshop": Crafting("own", sizes=SMALL),
    "lookup": Lookup(sizes=SMALL),
    "countdown": Countdown(sizes=SMALL),
    "countdown 24": Countdown(numbers=4, target=24, low=1, high=13, sizes=Sizes(train=20, dev=5, test=5)),
    "gridworld": GridWorld(sizes=SMALL),
    "babyai": GridWorld("babyai", text="babyai", sizes=SMALL),
    "maze": Maze(sizes=SMALL),
    "double_t": Maze("double_t"),
    "wordle": Wordle(sizes=SMALL),
    "wordle lmrl": Wordle(rules="lmrl", sizes=SMALL),
    "household": HouseholdWorld(sizes=SMALL),
    "household nouns": HouseholdNouns(sizes=SMALL),
    "kitchen": Kitchen(sizes=SMALL),
    "kitchen macro": Kitchen("macro", sizes=SMALL),
    "kitchen small": Kitchen(level="small", sizes=SMALL),
    "microwave": Microwave(),
    "virtualhome": VirtualHome(),
    "virtualhome entertainment": VirtualHome("entertainment"),
    "datasci": DataSci(sizes=SMALL),
    "household 0.3": HouseholdWorld("0.3", size="alfworld", sizes=SMALL),
    "searchqa": SearchQA(sizes=SMALL),
    "searchqa until right": SearchQA(text="searchqa", until_right=True, sizes=SMALL),
    "science": Science(sizes=SMALL),
    "science easy": Science("easy", sizes=SMALL),
    "shop": Shop(sizes=SMALL),
    "site": Site(sizes=SMALL),
    "sql": SqlWorld(sizes=SMALL),
    "sql rounds": SqlWorld(rounds=3, sizes=SMALL),
    "weather": Weather(sizes=SMALL),
    "movie": Movie(sizes=SMALL),
    "academia": Academia(sizes=SMALL),
    "todo": Todo(sizes=SMALL),
    "sheet": Sheet(sizes=SMALL),
    "sheet json": Sheet(style="json", sizes=SMALL),
    "functions": Functions(sizes=SMALL),
    "functions json": Functions("json", sizes=SMALL),
}
FEW_WORDS = [word for word in Wordle().words.words if word[0] in "bcr"]
PENAL = {
    "backoffice": Backoffice(sizes=SMALL, penalty=-0.05),
    "crafting": Crafting(sizes=SMALL, penalty=-0.05),
    "lookup": Lookup(sizes=SMALL, penalty=-0.05),
    "countdown": Countdown(sizes=SMALL, penalty=-0.05),
    "gridworld": GridWorld(sizes=SMALL, penalty=-0.05),
    "maze": Maze(sizes=SMALL, penalty=-0.05),
    "wordle": Wordle(FEW_WORDS, sizes=SMALL, penalty=-0.05),
    "household": HouseholdWorld(sizes=SMALL, penalty=-0.05),
    "searchqa": SearchQA(sizes=SMALL, penalty=-0.05),
    "science": Science(sizes=SMALL, penalty=-0.05),
    "sql": SqlWorld(sizes=SMALL, penalty=-0.05),
    "weather": Weather(sizes=SMALL, penalty=-0.05),
    "sheet": Sheet(sizes=SMALL, penalty=-0.05),
    "kitchen": Kitchen(sizes=SMALL, penalty=-0.05),
    "kitchen macro": Kitchen("macro", sizes=SMALL, penalty=-0.05),
    "microwave": Microwave(penalty=-0.05),
    "virtualhome": VirtualHome(penalty=-0.05),
    "datasci": DataSci(sizes=SMALL, penalty=-0.05),
    "household nouns": HouseholdNouns(sizes=SMALL, penalty=-0.05),
    "functions": Functions(penalty=-0.05, sizes=SMALL),
}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]


def some(world: World, n: int = 5) -> list[Task]:
    return [task for tier in world.tiers for task in world.tasks("dev", tier)[:n]]


def wander(env: Env, rng: Random, info: object, steps: int) -> list[object]:
    """Random legal actions; returns all that was seen."""
    seen: list[object] = []
    for _ in range(steps):
        action = rng.choice(info["admissible"])  # type: ignore[index]
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((action, observation, reward, terminated, truncated, dict(info)))
        if terminated or truncated:
            break
    return seen


def test_reset_twice_is_the_same_episode(world: World) -> None:
    for task in some(world):
        env, other = world.make(task), world.make(task)
        first = env.reset()
        seen = wander(env, Random(1), first[1], 6)
        again = env.reset()
        assert again == first == other.reset()
        assert wander(env, Random(1), again[1], 6) == seen == wander(other, Random(1), again[1], 6)
        env.close()
        other.close()


@pytest.mark.parametrize("name", list(WORLDS))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), before=st.integers(0, 6), after=st.integers(0, 8))
def test_snapshot_and_restore_are_exact(name: str, seed: int, before: int, after: int) -> None:
    """The same actions after a restore give the same results, in the same Env and in another one."""
    world, rng = WORLDS[name], Random(seed)
    task = rng.choice(some(world, 20))
    env, other = world.make(task), world.make(task)
    assert isinstance(env, Forkable)
    assert isinstance(other, Forkable)
    _, info = env.reset()
    seen = wander(env, rng, info, before)
    if seen and seen[-1][3]:  # type: ignore[index]
        return
    moment, state = env.snapshot(), rng.getstate()
    branch = wander(env, rng, info, after)
    other.reset()
    for fork in (env, other):
        rng.setstate(state)
        fork.restore(moment)
        assert wander(fork, rng, info, after) == branch
        fork.close()


def test_foreign_snapshots_are_refused(world: World) -> None:
    """Other values, and snapshots of another task of the same world."""
    env, other = world.make(some(world)[0]), world.make(some(world)[1])
    env.reset()
    other.reset()
    assert isinstance(env, Forkable) and isinstance(other, Forkable)
    for value in (None, "text", 3, ("a",), (True, ()), other.snapshot()):
        with pytest.raises(Exception, match="snapshot"):
            env.restore(value)
    env.close()


def test_experts_win_and_then_the_episode_is_over(world: World) -> None:
    for task in some(world):
        plan = world.expert(task)
        assert plan is not None
        env = world.make(task)
        env.reset()
        rewards: list[float | None] = []
        for action in plan:
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            assert not truncated
        assert terminated
        assert world.reward_range[0] <= sum(reward or 0.0 for reward in rewards) <= world.reward_range[1]
        assert world.score(rewards, info).success is True
        assert world.score([*rewards, None], info).success is None
        with pytest.raises(SessionGone):
            env.step(plan[0])
        env.close()
        env.close()
        with pytest.raises(SessionGone):
            env.step(plan[0])


def test_a_step_before_reset_is_refused(world: World) -> None:
    with pytest.raises(SessionGone):
        world.make(some(world)[0]).step("inventory")


@pytest.mark.parametrize("name", list(PENAL))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pick=st.integers(0, 79),
    texts=st.lists(
        st.text(max_size=40)
        | st.sampled_from(
            [
                "__import__('os')",
                "get 1",
                "craft",
                "' ; DROP TABLE person ; --",
                "get 99999999999999999999 a",
                "answer",
                "\x00",
            ]
        ),
        max_size=5,
    ),
)
def test_any_text_is_answered(name: str, pick: int, texts: list[str]) -> None:
    """Nothing is raised; a wrong action costs the penalty, is marked, and is answered with known words."""
    world = PENAL[name]
    known = set(world.vocabulary() or ())
    tasks = some(world, 20)
    task = tasks[pick % len(tasks)]
    env = world.make(task)
    _, info = env.reset()
    legal = set(info["admissible"])
    for text in texts:
        observation, reward, terminated, _, info = env.step(text)
        if " ".join(words_of(text)) not in {" ".join(words_of(action)) for action in legal} | {"inventory"}:
            read = text.split()[:1] == ["get"] or (name == "wordle" and " ".join(text) in legal)
            assert info.get("invalid") is True or read
        if info.get("invalid"):
            assert (reward, terminated) == (-0.05, False)
            assert 0 < len(words_of(str(observation))) <= 16
        assert set(words_of(str(observation))) <= known
        if terminated:
            break
    env.close()


def garbled(text: str, words: list[str], rng: Random) -> str:
    """An action with some of its words left out, said in another place, or put in from the world's own words."""
    said = words_of(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(said) + 1)
        said[at : at + rng.randint(0, 1)] = rng.choices(words, k=rng.randint(0, 2))
    return " ".join(said)


def test_what_a_policy_can_write_is_answered_with_words_it_knows(world: World) -> None:
    """A policy over the world's words must be able to read the answer to anything it writes in them."""
    words = sorted(world.vocabulary() or ())
    if not words:
        pytest.skip("an open vocabulary")
    rng, known = Random(0), set(words)
    for task in some(world, 4) * 8:
        env = world.make(task)
        _, info = env.reset()
        for _ in range(6):
            action = garbled(rng.choice(info["admissible"] or [""]), words, rng)
            observation, _, terminated, truncated, info = env.step(action)
            assert set(words_of(str(observation))) <= known, action
            if terminated or truncated:
                break


def test_names_are_checked(world: World) -> None:
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        world.tasks("tset", world.tiers[0])
    with pytest.raises(ConfigError, match="unknown tier"):
        world.tasks("test", "hard")


def test_static_facts(world: World) -> None:
    assert not world.run_in_thread
    assert world.horizon > 0
    assert world.tiers[0] == "seen"
    ids = [task.id for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]
    assert len(ids) == len(set(ids))
    for tier in world.tiers:
        for split in SPLITS:
            for task in world.tasks(split, tier)[:3]:
                assert (task.world, task.version, task.split, task.tier) == (world.name, world.version, split, tier)
                assert task.kind
        assert not (tier in ("combo", "longer") and world.tasks("train", tier)) or world.name == "workshop"
