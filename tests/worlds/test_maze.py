"""The maze world: a walk by hand, the published maze and its 25 starts, symmetric tasks, sound panels, bad input."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit, play_actions
from evolvent.worlds.base import SPLITS, SupportsRenaming
from evolvent.worlds.crafting import words_of
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes

RANDOM, PUBLISHED = Maze(), Maze("double_t")
SMALL = Sizes(train=30, dev=20, test=20)
# A corridor right along the top, down at its end, and back left: from (0, 0) to (1, 0) in five moves.
BEND = {"rows": 2, "cols": 3, "exits": "8c68c5", "start": [0, 0], "goal": [1, 0]}


def task_of(world: Maze, **changes: object) -> Task:
    return Task(world.name, world.version, {**BEND, **changes})


def test_a_walk_worked_by_hand():
    env = RANDOM.make(task_of(RANDOM))
    observation, info = env.reset()
    assert observation == "at 0 0 goal 1 0 walls up down left"
    assert info == {"admissible": ("move up", "move down", "move left", "move right")}
    assert env.step("move down") == ("at 0 0 goal 1 0 walls up down left", 0.0, False, False, info)
    assert env.step("move right")[0] == "at 0 1 goal 1 0 walls up down"
    assert env.step(" Move  RIGHT\n")[0] == "at 0 2 goal 1 0 walls up right"
    assert env.step("move down")[0] == "at 1 2 goal 1 0 walls down right"
    assert env.step("move left")[0] == "at 1 1 goal 1 0 walls up down"
    assert env.step("move left") == ("goal reached", 1.0, True, False, info)
    with pytest.raises(SessionGone):
        env.step("move left")
    assert RANDOM.expert(task_of(RANDOM)) == ("move right", "move right", "move down", "move left", "move left")
    assert RANDOM.score([0.0, 1.0], {}).success is True
    assert RANDOM.score([0.0, 0.0], {}).success is False
    assert RANDOM.score([0.0, None], {}).success is None


def test_an_open_place_has_no_walls():
    layout = {"rows": 3, "cols": 3, "exits": "020" + "8f4" + "010", "start": [1, 1], "goal": [0, 1]}
    assert RANDOM.make(task_of(RANDOM, **layout)).reset()[0] == "at 1 1 goal 0 1 walls none"


def test_the_published_starts():
    """All 25 are solved by the expert within the horizon; the farthest need 12 moves."""
    tasks = [PUBLISHED.task_from(index) for index in range(25)]
    assert PUBLISHED.horizon == 15
    dealt = {task.id: task for split in SPLITS for task in PUBLISHED.tasks(split, "seen")}
    assert {task.id: task for task in tasks} == dealt
    assert [task.split for task in tasks] == [dealt[task.id].split for task in tasks]
    lengths = [len(PUBLISHED.expert(task)) for task in tasks]
    assert lengths == [12, 11, 10, 11, 12, 12, 11, 10, 11, 12, 9, 8, 7, 6, 5, 4, 3, 2, 1, 4, 5, 6, 7, 8, 9]
    assert all(play_actions(PUBLISHED, task, PUBLISHED.expert(task)) for task in tasks)
    assert tasks[0].spec == {"start": [1, 1]} and tasks[0].kind == "12 steps"
    assert PUBLISHED.make(tasks[0]).reset()[0] == "at 1 1 goal 8 6 walls up down left"
    assert Maze("double_t", sizes=Sizes(0, 0, 0)).task_from(24).spec == {"start": [2, 9]}


def test_starts_that_are_none():
    with pytest.raises(ConfigError, match="start 25 is the goal"):
        PUBLISHED.task_from(25)
    for index in (-1, 26):
        with pytest.raises(ConfigError, match="start of the published maze out of range"):
            PUBLISHED.task_from(index)
    with pytest.raises(ConfigError, match="no numbered starts"):
        RANDOM.task_from(0)
    with pytest.raises(ConfigError, match="the start is the goal"):
        PUBLISHED.make(Task("double_t", "1", {"start": [8, 6]}))
    with pytest.raises(ConfigError, match="is not a free cell of the maze"):
        PUBLISHED.make(Task("double_t", "1", {"start": [0, 0]}))


def test_fifty_steps_are_the_limit():
    env = PUBLISHED.make(PUBLISHED.task_from(0))
    _, info = env.reset()
    for _ in range(48):
        assert env.step("move up")[2:4] == (False, False)
    moment = env.snapshot()
    assert env.step("jump")[1:4] == (0.0, False, False)
    assert env.step("move up") == ("at 1 1 goal 8 6 walls up down left", 0.0, False, True, info)
    with pytest.raises(SessionGone):
        env.step("move up")
    env.restore(moment)
    assert env.step("move right")[3] is False
    assert env.step("jump")[1:4] == (0.0, False, True)


@pytest.mark.parametrize(
    "world", [RANDOM, Maze(size=4), Maze(size=7), Maze(loops=2)], ids=["default", "small", "large", "loops"]
)
def test_the_panels_are_sound(world):
    found = audit(world, "test")
    assert found.problems == ()
    tasks = [task for split in SPLITS for task in world.tasks(split, "seen")]
    assert [len(world.tasks(split, "seen")) for split in SPLITS] == [1200, 100, 200]
    lengths = {len(world.expert(task)) for task in tasks}
    assert min(lengths) == 4 and max(lengths) <= 2 * world.size == world.horizon // 2
    assert {task.spec[side] for task in tasks for side in ("rows", "cols")} == set(range(3, world.size + 1))


def test_the_kind_counts_steps_turns_and_forks():
    """Recounted by walking the expert's plan: a fork is where another way than on and back is open."""
    for task in RANDOM.tasks("dev", "seen"):
        plan, env = RANDOM.expert(task), RANDOM.make(task)
        observation, _ = env.reset()
        forks = 0
        for n, action in enumerate(plan):
            walls = observation.split(" walls ")[1].split()
            exits = 4 if walls == ["none"] else 4 - len(walls)
            forks += exits > (1 if n == 0 else 2)
            observation = env.step(action)[0]
        turns = sum(plan[n] != plan[n + 1] for n in range(len(plan) - 1))
        assert task.kind == f"{len(plan)} steps {turns} turns {forks} forks"


@settings(max_examples=40, deadline=None)
@given(pick=st.integers(0, 29), seed=st.integers(0, 10**6))
def test_turned_tasks_are_as_hard_and_have_one_key(pick, seed):
    world = Maze(sizes=SMALL)
    assert isinstance(world, SupportsRenaming)
    task = world.tasks("train", "seen")[pick]
    turned = world.rename(task, Random(seed))
    assert world.key(turned) == world.key(task)
    assert (turned.kind, turned.tier, turned.split) == (task.kind, task.tier, task.split)
    assert len(world.expert(turned)) == len(world.expert(task))
    assert play_actions(world, turned, world.expert(turned))
    again = {world.rename(task, Random(n)).id for n in range(60)} | {task.id}
    assert 4 <= len(again) <= 8


def test_tasks_of_the_published_maze_are_not_turned():
    task = PUBLISHED.task_from(3)
    assert PUBLISHED.rename(task, Random(0)) is task
    assert len({PUBLISHED.key(PUBLISHED.task_from(index)) for index in range(25)}) == 25


@pytest.mark.parametrize("world", [RANDOM, PUBLISHED, Maze(size=12, sizes=SMALL)], ids=["random", "published", "12"])
def test_everything_seen_is_in_the_vocabulary(world):
    known, rng = set(world.vocabulary()), Random(1)
    for task in world.tasks("train", "seen")[:30]:
        env = world.make(task)
        observation, info = env.reset()
        texts, over = [observation], False
        while not over:
            action = rng.choice([*info["admissible"], "hmm"])
            observation, _, ended, late, info = env.step(action)
            texts += [observation, *info["admissible"]]
            over = ended or late
        assert {word for text in texts for word in words_of(text)} <= known
        assert all(len(words_of(text)) <= 12 for text in texts)


def test_an_expert_episode_is_short():
    """At most 12 words of observation and 2 of action a step; 70 words in the mean."""
    words = []
    for task in RANDOM.tasks("test", "seen"):
        env = RANDOM.make(task)
        texts = [env.reset()[0]]
        for action in RANDOM.expert(task):
            texts += [action, env.step(action)[0]]
        words.append(sum(len(words_of(text)) for text in texts))
    assert max(words) <= 130
    assert sum(words) / len(words) < 80


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=40) | st.sampled_from(["__import__('os')", "\x00", "move", "up"]), max_size=8))
def test_any_text_is_answered(texts):
    world = Maze("double_t", penalty=-0.05)
    env = world.make(world.task_from(0))
    env.reset()
    for text in texts:
        answer = env.step(text)
        assert answer[:4] == ("expected move up, down, left or right", -0.05, False, False)
        assert answer[4]["invalid"] is True


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        Maze("double-t", size=3, loops=-1, horizon=51, penalty=1.0)
    assert [problem.where for problem in caught.value.problems] == ["layout", "size", "loops", "horizon", "penalty"]
    assert caught.value.problems[0].hint == "did you mean 'double_t'?"
    assert Maze(horizon=30).horizon == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 6}, "expected 1 to 5"),
        ({"rows": "2"}, "maze size out of range"),
        ({"cols": True}, "maze size out of range"),
        ({"cols": 2}, "6 cells in a map of 2 x 2"),
        ({"exits": "8c68c"}, "5 cells in a map"),
        ({"exits": "8c68cg"}, "hexadecimal"),
        ({"exits": 7}, "hexadecimal"),
        ({"exits": "8c68c4"}, r"lead only one way; the first is down of \(0, 2\)"),
        ({"exits": "8c4" + "8c4"}, r"no path from \(0, 0\) to \(1, 0\)"),
        ({"start": [0, 3]}, "start is not a free cell of the maze"),
        ({"start": [0]}, "is not a position"),
        ({"start": "00"}, "is not a position"),
        ({"goal": [0, 1.0]}, "is not a position"),
        ({"goal": None}, "is not a position"),
        ({"goal": [0, 0]}, "the start is the goal"),
    ],
)
def test_broken_tasks_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        RANDOM.make(task_of(RANDOM, **changes))


def test_foreign_tasks_are_refused():
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        PUBLISHED.make(task_of(RANDOM))
    with pytest.raises(VersionMismatch, match="another version of 'maze'"):
        RANDOM.make(Task("maze", "0", BEND))
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        RANDOM.tasks("tset", "seen")
