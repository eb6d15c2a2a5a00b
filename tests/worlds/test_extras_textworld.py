"""TextWorld itself: games that are made and played here."""

from __future__ import annotations

import shutil
import threading

import pytest

from evolvent.errors import ConfigError, CorruptRecord, UnsafePath, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.textworld import TextGames, make_games

pytest.importorskip("textworld")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("games")
    make_games(found, 2, rooms=2, objects=3, steps=2, seed=5)
    return found


@pytest.fixture(scope="module")
def world(folder):
    return TextGames(folder)


def all_tasks(world):
    return [task for split in SPLITS for task in world.tasks(split, "seen")]


def test_the_way_through_wins(world):
    tasks = all_tasks(world)
    assert len(tasks) == 2
    for task in tasks:
        plan = world.expert(task)
        assert plan is not None and len(plan) == 2
        env = world.make(task)
        text, info = env.reset()
        assert "$" not in text and not text.endswith(">") and "-= " in text
        assert plan[0] in info["admissible"] and info["won"] is False
        rewards = []
        for action in plan:
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
        assert (rewards, terminated, truncated, info["won"]) == ([0.0, 1.0], True, False, True)
        assert world.score(rewards, info).success is True
        env.close()


def test_it_keeps_the_promises_of_an_env(world):
    for task in all_tasks(world):
        assert check_env(lambda task=task: world.make(task), forkable=True, walks=2, steps=8) == []


def test_texts_are_answered_and_the_interpreter_is_out_of_reach(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = world.make(all_tasks(world)[0])
    env.reset()
    for text in ("", "xyzzy", "save", "look. save", "look then quit", "RESTART", "\ud800", "\x00", "x " * 500, "größe"):
        reply = env.step(text)
        assert reply[4]["invalid"] and reply[0] and reply[1:4] == (0.0, False, False), text
    assert list(tmp_path.iterdir()) == []
    assert "invalid" not in env.step("look")[4]
    env.close()


def test_episodes_on_threads_do_not_mix(world):
    tasks, won = all_tasks(world), []

    def play(task):
        won.extend(play_actions(world, task, world.expert(task)) for _ in range(3))

    threads = [threading.Thread(target=play, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [True] * 6


def test_folders_that_are_named_so_are_the_splits(folder, tmp_path):
    for split, game in zip(("train", "valid"), sorted(folder.glob("*.z8")), strict=True):
        (tmp_path / split).mkdir()
        for file in (game, game.with_suffix(".json")):
            shutil.copy(file, tmp_path / split)
    world = TextGames(tmp_path)
    assert [len(world.tasks(split, "seen")) for split in SPLITS] == [1, 1, 0]


def test_a_copy_is_no_other_task_and_a_foreign_game_knows_no_commands(folder, tmp_path):
    game = min(folder.glob("*.z8"))
    shutil.copy(game, tmp_path / "a.z8")
    shutil.copy(game, tmp_path / "b.z8")
    world = TextGames(tmp_path)
    (task,) = all_tasks(world)
    assert world.expert(task) is None
    env = world.make(task)
    _, info = env.reset()
    assert "admissible" not in info
    assert env.step("look")[0].startswith("-= ")
    env.close()


def test_files_that_are_none_changed_or_outside(folder, tmp_path):
    story = min(folder.glob("*.z8")).read_bytes()
    changed = bytearray(story)
    changed[70] ^= 1
    (tmp_path / "good.z8").write_bytes(story)
    for name, broken in (("text", b"no game at all" * 9), ("empty", b""), ("cut", story[:-600]), ("bit", changed)):
        (tmp_path / f"{name}.z8").write_bytes(broken)
    world = TextGames(tmp_path)
    (task,) = all_tasks(world)
    assert set(world.broken) == {"text.z8", "empty.z8", "cut.z8", "bit.z8"}
    assert "is truncated" in str(world.broken["cut.z8"]) and "checksum" in str(world.broken["bit.z8"])
    for name, kind in (("../x.z8", UnsafePath), ("gone.z8", ConfigError), ("bit.z8", CorruptRecord)):
        with pytest.raises(kind):
            world.make(Task("textworld", world.version, {"game": name, "sha256": "0"}))
    (tmp_path / "good.z8").write_bytes(sorted(folder.glob("*.z8"))[1].read_bytes())
    with pytest.raises(VersionMismatch):
        world.make(task)
