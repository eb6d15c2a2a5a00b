"""ALFWorld's own engine over games that our household wrote: the same words, move by move."""

from __future__ import annotations

import threading

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.alfworld import AlfWorld
from evolvent.worlds.household.games import read_official_texts
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

pytest.importorskip("alfworld")
pytest.importorskip("textworld")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found, texts = tmp_path_factory.mktemp("games"), read_official_texts()
    own = HouseholdWorld(sizes=Sizes(0, 0, 3))
    for number, task in enumerate(own.tasks("test", "seen")):
        own.write_game(task, found / "valid_seen" / f"game{number}" / "trial", texts=texts)
    return found


@pytest.fixture(scope="module")
def world(folder):
    return AlfWorld(folder)


def test_the_expert_wins_and_engines_are_used_again(world):
    tasks = world.tasks("test", "seen")
    assert len(tasks) == 3
    for task in tasks:
        plan = world.expert(task)
        assert plan is not None and play_actions(world, task, plan)
    assert len(world.engines) == 1
    world.close()
    assert len(world.engines) == 0


def test_the_household_says_the_same(world, folder):
    own = HouseholdWorld(games=folder)
    pairs = zip(world.tasks("test", "seen"), own.tasks("test", "seen"), strict=True)
    for task, ours in pairs:
        assert task.spec == ours.spec
        env, mine = world.make(task), own.make(ours)
        (text, info), (same, listed) = env.reset(), mine.reset()
        rng = sample_rng("walk", task.id)
        assert (text, info["admissible"]) == (same, listed["admissible"])
        for _ in range(8):
            action = info["admissible"][int(rng.random() * len(info["admissible"]))]
            reply, other = env.step(action), mine.step(action)
            info = reply[4]
            assert reply[:4] == other[:4] and info["admissible"] == other[4]["admissible"]
        env.close()


def test_it_keeps_the_promises_of_an_env(world):
    task = world.tasks("test", "seen")[0]
    assert check_env(lambda: world.make(task), forkable=True, walks=1, steps=6) == []


def test_texts_are_answered(world):
    env = world.make(world.tasks("test", "seen")[0])
    env.reset()
    for text in ("", "xyzzy", "\ud800", "\x00", "go to " * 500, "take all"):
        reply = env.step(text)
        assert reply[4]["invalid"] and reply[:4] == ("Nothing happens.", 0.0, False, False)
    env.close()


def test_episodes_on_threads_do_not_mix(world):
    """TextWorld's parser is one for all threads; without a turn for each, they break it."""
    won = []

    def play(task):
        won.append(play_actions(world, task, world.expert(task)))

    threads = [threading.Thread(target=play, args=(task,)) for task in world.tasks("test", "seen")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [True] * 3


def test_folders_and_tasks_are_checked(world, tmp_path):
    with pytest.raises(ConfigError, match="folder without game files"):
        AlfWorld(tmp_path)
    with pytest.raises(ConfigError):
        world.make(Task(world.name, world.version, {"dialect": "0.4", "game": "gone", "sha256": ""}))
    assert [len(world.tasks(split, "seen")) for split in SPLITS] == [0, 0, 3]
