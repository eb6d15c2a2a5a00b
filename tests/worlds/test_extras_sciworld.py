"""ScienceWorld itself: real Java machines, reused, killed and hung."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evolvent.errors import AtCapacity, ConfigError, EnvLost, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.extras.sciworld import AGENTGYM_TASKS, JvmLimits, SciWorld, official_split
from evolvent.worlds.panel import Sizes

pytest.importorskip("scienceworld")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def world():
    made = SciWorld(sizes=Sizes(50, 30, 40), limits=JvmLimits(max_machines=2, wait_s=0.0, call_s=30.0), horizon=60)
    yield made
    made.close()
    assert not made.pool.free_pids and made.pool.count == 0


def quick(world, kind="find-plant", variation=3):
    return Task("sciworld", world.version, {"task": kind, "variation": variation}, kind)


def test_the_gold_path_wins_and_the_machine_is_given_back(world):
    task = quick(world)
    plan = world.expert(task)
    assert plan is not None and play_actions(world, task, plan)
    env = world.make(task)
    text, info = env.reset()
    assert text.startswith("Your task is to find a(n) plant") and "\nThis outside location is called" in text
    assert info == {"score": 0}
    assert not world.pool.free_pids
    rewards = []
    for action in plan:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
    assert (terminated, truncated, info["score"], sum(rewards)) == (True, False, 100, 100)
    score = world.score(rewards, info)
    assert (score.raw, score.unit, score.success) == (100, 1.0, True)
    assert len(world.pool.free_pids) == 1
    with pytest.raises(SessionGone):
        env.step("look around")
    env.close()


def test_a_used_machine_plays_as_a_new_one(world):
    """Twice the same episode, with another one between, on one machine; then as the package plays it."""
    from scienceworld import ScienceWorldEnv

    actions = ["open door to kitchen", "look around", "teleport to moon", "inventory", "wait1"]

    def play():
        env = world.make(quick(world, "boil", 2))
        seen = [env.reset()[0], *(env.step(action)[:4] for action in actions)]
        env.close()
        return seen

    first = play()
    used = list(world.pool.free_pids)
    other = world.make(quick(world, "lifespan-longest-lived", 1))
    other.reset()
    other.close()
    assert play() == first
    assert list(world.pool.free_pids) == used
    official = ScienceWorldEnv("boil")
    official.load("boil", 2)
    seen, _ = official.reset()
    assert first[0] == f"{official.get_task_description()}\n{seen}"
    for action, mine in zip(actions, first[1:], strict=True):
        observation, reward, done, _ = official.step(action)
        assert mine == (observation, reward, done, False)
    official.close()


def test_no_action_is_paid_for_the_score_at_the_start(world):
    """With "easy", the simulator's score of the find-* tasks is 8 before any action: as the package plays it."""
    from scienceworld import ScienceWorldEnv

    task = Task("sciworld", world.version, {"task": "find-animal", "variation": 0, "simplify": "easy"}, "find-animal")
    env = world.make(task)
    assert env.reset()[1] == {"score": 8, "start_score": 8}
    reply = env.step("xyzzy")
    assert reply[1] == 0.0 and reply[4] == {"score": 8, "start_score": 8, "invalid": True}
    assert world.score([reply[1]], reply[4]).unit == 0.08
    official = ScienceWorldEnv("find-animal")
    official.load("find-animal", 0, "easy")
    official.reset()
    _, reward, _, info = official.step("xyzzy")
    official.close()
    assert (reward, info["score"]) == (0, 8)
    rewards = []
    for action in world.expert(task):
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
    score = world.score(rewards, info)
    assert terminated and sum(rewards) == 92 and (score.raw, score.unit, score.success) == (100, 1.0, True)


def test_texts_are_answered_and_a_wrong_focus_ends(world):
    env = world.make(quick(world))
    env.reset()
    for text in ("", "xyzzy", "\ud800", "\x00", "look " * 500, "größe"):
        reply = env.step(text)
        assert reply[4]["invalid"] and reply[:4] == ("No known action matches that input.", 0.0, False, False)
    _, reward, terminated, _, info = env.step("focus on agent")
    assert (reward, terminated, info["score"]) == (-100, True, -100)
    score = world.score([reward], info)
    assert (score.raw, score.unit, score.success) == (-100, 0.0, False)


def test_snapshots_are_replayed(world):
    env = world.make(quick(world))
    env.reset()
    env.step("open door to hallway")
    moment = env.snapshot()
    after = env.step("look around")
    env.restore(moment)
    assert env.step("look around") == after
    env.close()


def test_possible_actions_on_demand():
    world = SciWorld(admissible=True, limits=JvmLimits(max_machines=1))
    env = world.make(quick(world))
    _, info = env.reset()
    assert "look around" in info["admissible"] and len(info["admissible"]) > 50
    env.close()
    world.close()


def test_no_more_machines_than_allowed(world):
    envs = [world.make(quick(world, variation=number)) for number in range(3)]
    envs[0].reset()
    envs[1].reset()
    with pytest.raises(AtCapacity):
        envs[2].reset()
    envs[0].close()
    assert "plant" in envs[2].reset()[0]
    envs[2].close()
    del envs[:]  # the second was never closed
    gc.collect()
    assert len(world.pool.free_pids) == 2


def test_a_killed_machine_is_a_lost_env(world):
    env = world.make(quick(world))
    env.reset()
    pid = next(iter(set(children()) - set(world.pool.free_pids)))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvLost):
        env.step("look around")
    with pytest.raises(SessionGone):
        env.step("look around")
    assert "plant" in env.reset()[0]
    env.close()
    assert pid not in world.pool.free_pids


def test_a_hung_machine_is_killed_after_its_time():
    world = SciWorld(limits=JvmLimits(max_machines=1, call_s=20.0))
    env = world.make(quick(world))
    env.reset()
    env.close()
    (pid,) = world.pool.free_pids
    jvm = world.pool.take()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EnvLost, match=r"step failed \(within 0\.3 s\)"):
        jvm.call("step", "look around", timeout_s=0.3)
    assert not jvm.is_alive and pid not in children()
    world.pool.give_back(jvm)
    assert world.pool.count == 0
    world.close()


def children():
    """The Java processes that this process started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and name == "java" and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def test_no_machine_outlives_its_program():
    program = (
        "import sys, time\nfrom evolvent.worlds.extras.sciworld import SciWorld\nfrom evolvent.trajectory import Task\n"
        "world = SciWorld()\n"
        "env = world.make(Task('sciworld', world.version, {'task': 'find-plant', 'variation': 0}))\n"
        "env.reset()\nprint(env._session._jvm.pid, flush=True)\ntime.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(run.stdout.readline())
    run.kill()
    run.wait()
    run.stdout.close()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists() or "(java) Z" in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the Java machine still runs")


def test_panels_follow_the_official_split(world):
    for split, size in zip(SPLITS, (50, 30, 40), strict=True):
        tasks = world.tasks(split, "seen")
        assert len({task.id for task in tasks}) == len(tasks) == size
        assert all(official_split(task.kind, task.spec["variation"]) == split == task.split for task in tasks)
        assert {task.kind for task in tasks} == set(AGENTGYM_TASKS)


def test_official_splits_and_counts_are_the_simulators(world):
    jvm = world.pool.take()
    for kind in ("identify-life-stages-2", "boil", "power-component", "find-animal"):
        jvm.call("load", kind, 0, "", False)
        for split, method in zip(SPLITS, ("Train", "Dev", "Test"), strict=True):
            numbers = sorted(map(int, jvm.call(f"getVariations{method}")))
            assert all(official_split(kind, number) == split for number in numbers) and numbers
    world.pool.give_back(jvm)


def test_indices_and_specs(world):
    assert dict(world.task_at_index(0).spec) == {"task": "boil", "variation": 0}
    assert dict(world.task_at_index(30).spec) == {"task": "melt", "variation": 0}
    with pytest.raises(ConfigError, match="0 to 4638"):
        world.task_at_index(10**6)
    wrong = (
        {"task": "boil"},
        {"task": "boil", "variation": 30},
        {"task": "fly", "variation": 0},
        {"task": "boil", "variation": 0, "simplify": "very"},
    )
    for spec in wrong:
        with pytest.raises(ConfigError):
            world.make(Task("sciworld", world.version, spec))
