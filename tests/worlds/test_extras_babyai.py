"""BabyAI by minigrid itself: MiniGrid's rules and rewards under our texts and macros."""

from __future__ import annotations

from random import Random

import pytest

from evolvent.errors import ConfigError, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions, play_random
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.babyai import MiniGridBabyAI
from evolvent.worlds.grid.levels import LEVELS
from evolvent.worlds.grid.plan import MOVES
from evolvent.worlds.panel import Sizes

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = Sizes(train=60, dev=20, test=20)
OTHER_RULE = "BabyAI-OpenDoorsOrderN4Debug-v0"  # there the move that opens the first door fails the second


@pytest.fixture(scope="module")
def world():
    return MiniGridBabyAI(sizes=SMALL)


def test_the_expert_wins_all_levels_and_chance_few(world):
    tasks = [world.task_at_index(index) for index in range(len(LEVELS))]
    assert [task.kind for task in tasks] == list(LEVELS)
    lost = [task.kind for task in tasks if not play_actions(world, task, world.expert(task) or ())]
    assert lost in ([], [OTHER_RULE])
    assert sum(bool(play_random(world, task)) for task in tasks) < len(tasks) / 2


def test_rewards_and_moves_are_those_of_minigrid(world):
    """The same moves one by one in an environment of our own making."""
    task = world.task_at_index(7)
    inner = gymnasium.make(task.kind, disable_env_checker=True)
    inner.reset(seed=task.spec["seed"])
    plain = list(MOVES)[:3]
    env, rng = world.make(task), Random(3)
    text, _ = env.reset()
    assert text.startswith(f"Your goal: {inner.unwrapped.mission}\n")
    over = False
    while not over:
        action = rng.choice(plain)
        _, _, done, cut, _ = reply = env.step(action)
        if not reply[4].get("invalid"):  # MiniGrid counts a move that changes nothing; here it is none
            _, reward, terminated, truncated, _ = inner.step(MOVES[action])
            assert (reply[1], done, cut) == (reward, terminated, truncated and not terminated)
            over = terminated or truncated
    inner.close()


@pytest.mark.parametrize("index", [5, 26, 38])
def test_it_keeps_the_promises_of_an_env(world, index):
    assert check_env(lambda: world.make(world.task_at_index(index)), forkable=True, walks=3) == []


def test_a_first_look(world):
    env = world.make(world.task_at_index(3))
    text, info = env.reset()
    assert text.startswith("Your goal: ") and text.endswith('"check available actions"]')
    assert "Available actions: [" in text
    listed = env.step("check available actions")
    assert listed[0].startswith("You can take the following actions: turn left, turn right")
    refused = env.step("fly to the moon")
    assert refused[4]["invalid"] and refused[1:4] == (0.0, False, False)
    assert set(info["admissible"]) == set(refused[4]["admissible"])
    env.close()


def test_minigrids_own_limit_of_moves_truncates():
    world = MiniGridBabyAI("GoToObjS4", sizes=SMALL, text="short")
    env = world.make(world.tasks("train", "seen")[0])
    env.reset()
    replies = []
    while not replies or not (replies[-1][2] or replies[-1][3]):
        replies.append(env.step("turn left" if len(replies) % 2 else "turn right"))
    assert replies[-1][3] or replies[-1][1] > 0
    assert len(replies) <= 64


def test_nothing_is_printed_and_texts_are_answered(world, capsys):
    for index in (13, 21, 35):
        env = world.make(world.task_at_index(index))
        env.reset()
        for text in ("", "\x00", "\ud800", "go to " * 500, "__import__('os')"):
            reply = env.step(text)
            assert reply[4]["invalid"] and reply[0]
        env.close()
    assert capsys.readouterr().out == ""


def test_panels_are_stable_and_specs_are_checked(world):
    train, test = world.tasks("train", "seen"), world.tasks("test", "seen")
    assert (len(train), len(test)) == (60, 20)
    again = MiniGridBabyAI(sizes=SMALL)
    assert [task.id for task in again.tasks("test", "seen")] == [task.id for task in test]
    assert world.key(train[0]) == again.key(train[0]) != world.key(train[1])
    for spec in ({"level": "BabyAI-GoTo-v0"}, {"level": "GoToNowhere", "seed": 1}, {"level": 3, "seed": 0}):
        with pytest.raises(ConfigError):
            world.make(Task("minigrid", world.version, spec))
    with pytest.raises(VersionMismatch):
        world.make(Task("minigrid", "0.0", {"level": "BabyAI-GoTo-v0", "seed": 1}))
    with pytest.raises(ConfigError):
        world.task_at_index(-1)
