"""What the worlds around other packages share, with none of the packages: what is missing, the Env, the pool."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import AtCapacity, ConfigError, EnvLost, MissingExtra, SessionGone, VersionMismatch
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras import wrapped
from evolvent.worlds.extras.alfworld import AlfWorld
from evolvent.worlds.extras.babyai import MiniGridBabyAI
from evolvent.worlds.extras.reasoning_gym import ReasoningGym, runs_answers
from evolvent.worlds.extras.sciworld import (
    AGENTGYM_TASKS,
    VARIATIONS,
    JvmLimits,
    JvmPool,
    SciWorld,
    find_java,
    official_split,
)
from evolvent.worlds.extras.textarena import TextArena
from evolvent.worlds.extras.textworld import TextGames, make_games
from evolvent.worlds.extras.wrapped import (
    Extra,
    WrappedEnv,
    WrappedWorld,
    clean_command,
    make_candidate,
    read_number,
    widen_sizes,
)
from evolvent.worlds.panel import Sizes


@pytest.fixture
def nothing_installed(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wrapped.metadata, "version", version)


@pytest.fixture
def games(tmp_path):
    (tmp_path / "one.z8").write_bytes(b"no game, but a file of that name")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "game.tw-pddl").write_text("{}")
    return tmp_path


MAKERS = {
    "babyai": lambda folder: MiniGridBabyAI(),
    "sciworld": lambda folder: SciWorld(),
    "textworld": TextGames,
    "alfworld": AlfWorld,
    "textarena": lambda folder: TextArena(),
    "reasoning": lambda folder: ReasoningGym("leg_counting"),
}


@pytest.mark.parametrize("extra", MAKERS)
def test_a_missing_package_is_one_sentence_with_the_command(extra, games, nothing_installed):
    with pytest.raises(MissingExtra) as caught:
        MAKERS[extra](games)
    assert f"pip install 'evolvent[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_extras_are_those_of_the_project(pytestconfig):
    declared = (pytestconfig.rootpath / "pyproject.toml").read_text(encoding="utf-8")
    for extra in MAKERS:
        assert f"\n{extra} = [" in declared


def test_a_package_that_does_not_import_is_missing():
    with pytest.raises(MissingExtra, match=r"evolvent\[babyai\]"):
        Extra("babyai", "minigrid", "BabyAI").load_module("no_such_module_anywhere")


def test_nothing_is_imported_before_it_is_used():
    names = ("alfworld", "babyai", "reasoning_gym", "sciworld", "textarena", "textworld")
    program = (
        "import sys\n"
        + "".join(f"import evolvent.worlds.extras.{name}\n" for name in names)
        + "print([m for m in ('alfworld', 'textworld', 'minigrid', 'gymnasium', 'py4j', 'scienceworld', 'textarena',"
        " 'reasoning_gym', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_wrong_options_are_told_together_whatever_is_installed(tmp_path, nothing_installed):
    wrong = {
        "babyai": lambda: MiniGridBabyAI("GoToObje", text="long", horizon=0, penalty=1.0),
        "sciworld": lambda: SciWorld("some", simplify="very", horizon=0, penalty=float("nan")),
        "textworld": lambda: TextGames(tmp_path, horizon=True, penalty=1.0),
        "textarena": lambda: TextArena([], horizon=-1, penalty=float("-inf")),
        "reasoning": lambda: ReasoningGym(["a", "a"], config={"x": {1}}),
        "make_games": lambda: make_games(tmp_path, 0, rooms=0, theme="space"),
        "limits": lambda: JvmLimits(max_machines=0, heap_mb=1, call_s=0),
    }
    counts = {"babyai": 4, "sciworld": 4, "textworld": 3, "textarena": 3, "reasoning": 3, "make_games": 3, "limits": 3}
    for name, make in wrong.items():
        with pytest.raises(ConfigError) as caught:
            make()
        assert len(caught.value.problems) == counts[name], name


def test_a_folder_of_given_up_games_says_so(tmp_path):
    (tmp_path / "old.ulx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no longer plays \.ulx"):
        TextGames(tmp_path)


def test_missing_java_is_one_sentence_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="apt-get install default-jre-headless") as caught:
        find_java()
    assert "\n" not in str(caught.value)


def test_the_java_of_java_home_comes_first(tmp_path, monkeypatch):
    for folder in ("path", "home/bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").write_text("#!/bin/sh\n")
        (tmp_path / folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java() == str(tmp_path / "path" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == str(tmp_path / "home" / "bin" / "java")


def test_variations_of_scienceworld():
    """The paper's 7,207 variations of thirty tasks; the official split of thirty variations is 14, 7 and 9."""
    assert (len(VARIATIONS), sum(VARIATIONS.values()), len(AGENTGYM_TASKS)) == (30, 7207, 23)
    counts = [sum(official_split("boil", number) == split for number in range(30)) for split in SPLITS]
    assert counts == [14, 7, 9]


# --- the Env and the world around a session ----------------------------------------------------------------


class Counting:
    """A session that counts to three; `boom` breaks it."""

    def __init__(self):
        self.closed = 0

    def begin(self):
        self.at = 0
        return "count", {"admissible": ("up", "down")}

    def act(self, action):
        if action == "boom":
            raise OSError("the package broke")
        if action not in ("up", "down"):
            return "up or down", 0.0, False, False, {"admissible": ("up", "down"), "invalid": True}
        self.at += 1 if action == "up" else -1
        return str(self.at), float(self.at == 3), self.at == 3, False, {"admissible": ("up", "down")}

    def close(self):
        self.closed += 1


TASK = Task("counting", "1", {"n": 1})


def env_of(penalty=0.0):
    return WrappedEnv(TASK, Counting(), player_name="counting", penalty=penalty)


def test_an_episode_of_a_session():
    env = env_of(penalty=-0.5)
    with pytest.raises(SessionGone):
        env.step("up")
    assert env.reset() == ("count", {"admissible": ("up", "down")})
    assert env.step("sideways")[:4] == ("up or down", -0.5, False, False)
    assert [env.step("up")[:3] for _ in range(3)] == [("1", 0.0, False), ("2", 0.0, False), ("3", 1.0, True)]
    with pytest.raises(SessionGone):
        env.step("up")
    env.close()
    env.close()
    with pytest.raises(SessionGone):
        env.step("up")


def test_it_keeps_the_promises_of_an_env():
    assert check_env(env_of, forkable=True, steps=12) == []


def test_what_a_package_raises_is_a_lost_env_and_ends_the_episode():
    env = env_of()
    env.reset()
    env.step("up")
    with pytest.raises(EnvLost, match=r"step 1\): OSError: the package broke") as caught:
        env.step("boom")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(SessionGone):
        env.step("up")
    assert env.reset()[0] == "count"


def test_snapshots_are_replayed_and_foreign_ones_refused():
    env, other = env_of(), env_of()
    before = env.snapshot()
    env.reset()
    env.step("up")
    moment = env.snapshot()
    env.step("up")
    other.restore(moment)
    assert other.step("up")[0] == "2"
    env.step("up")
    ended = env.snapshot()
    env.restore(moment)
    assert env.step("down")[0] == "0"
    for over in (ended, before):
        env.restore(over)
        with pytest.raises(SessionGone):
            env.step("up")
    foreign = WrappedEnv(Task("counting", "1", {"n": 2}), Counting(), player_name="counting").snapshot()
    for value in (None, ("up",), foreign):
        with pytest.raises(ConfigError, match="snapshot"):
            env.restore(value)


class CountingWorld(WrappedWorld):
    name, instructions, horizon, reward_range = "counting", "count", 9, (0.0, 1.0)

    def _draw(self, tier):
        return (make_candidate({"n": number}, f"kind {number % 3}") for number in range(10**9))

    def _open_session(self, task):
        read_number(task.spec, "n", names=("n",))
        return Counting()

    def score(self, rewards, info):
        return Score(1.0, 1.0, True)


def test_a_world_around_a_session(monkeypatch):
    monkeypatch.setattr(wrapped.metadata, "version", lambda name: "2.5")
    world = CountingWorld(Extra("x", "counting", "counting"), sizes=Sizes(30, 6, 9, 4))
    assert (world.version, world.expert(TASK), world.vocabulary(), world.run_in_thread) == ("2.5", None, None, True)
    panels = [world.tasks(split, "seen") for split in SPLITS]
    assert [len(panel) for panel in panels] == [30, 6, 9]
    assert len({task.id for panel in panels for task in panel}) == 45
    assert world.make(panels[0][0]).reset()[0] == "count"
    with pytest.raises(VersionMismatch):
        world.make(TASK)
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        world.make(Task("other", "2.5", {"n": 1}))
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        world.tasks("tset", "seen")


def test_specs_are_read_with_all_their_mistakes():
    assert read_number({"n": 3, "of": "a"}, "n", names=("of", "n")) == 3
    for spec, mistakes in (({}, 1), ({"n": -1}, 1), ({"n": True}, 1), ({"n": "3", "m": 1}, 2), ({"n": 1.0}, 1)):
        with pytest.raises(ConfigError) as caught:
            read_number(spec, "n", names=("n",))
        assert len(caught.value.problems) == mistakes


def test_few_kinds_make_panels_of_more_each():
    assert widen_sizes(Sizes(100, 20, 40), 1).per_kind == 40
    assert widen_sizes(Sizes(100, 20, 40), 40).per_kind == 10
    assert widen_sizes(None, 4).per_kind == 100


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_command_is_one_printable_line_within_its_limit(text, most):
    line = clean_command(text, max_length=most)
    if line is None:
        words = " ".join(text.split())
        assert not words or len(words) > most or not all(" " <= letter <= "~" for letter in words)
    else:
        assert line == " ".join(text.split()) and 0 < len(line) <= most
        assert all(" " <= letter <= "~" for letter in line)


# --- scorers that run what they score ------------------------------------------------------------------------


class Compares:
    def score_answer(self, answer, entry):
        return float(sorted(eval(entry["answer"])) == answer.split())  # noqa: S307


class Evaluates:
    def score_answer(self, answer, entry):
        return float(eval(answer) == entry["answer"])  # noqa: S307


class Parses:
    def score_answer(self, answer, entry):
        import sympy

        cleaned = answer.strip()
        return float(sympy.parse_expr(cleaned) == entry["answer"])


class HandsOn:
    def score_answer(self, answer, entry):
        return self.inner.score_answer(answer, entry)


class Asks(Compares):
    def score_answer(self, answer, entry):
        return super().score_answer(answer.lower(), entry)


def test_scorers_that_run_answers_are_found():
    assert [runs_answers(kind) for kind in (Compares, Evaluates, Parses, HandsOn, Asks)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert runs_answers(type("Made", (), {}))


# --- the pool of machines ------------------------------------------------------------------------------------


class Machine:
    """Something that can be taken and given back."""

    def __init__(self, pid):
        self.pid, self.is_alive, self.is_busy, self.killed = pid, True, False, 0

    def kill(self):
        self.is_alive = False
        self.killed += 1


def pool_of(most=2, wait_s=0.0):
    made = []

    def start():
        made.append(Machine(len(made)))
        return made[-1]

    return JvmPool(start, JvmLimits(max_machines=most, wait_s=wait_s)), made


def test_machines_are_used_again_and_bounded():
    pool, made = pool_of()
    first, second = pool.take(), pool.take()
    with pytest.raises(AtCapacity, match="Retry after 1 s"):
        pool.take()
    pool.give_back(first)
    assert pool.take() is first
    pool.give_back(second)
    assert (len(made), pool.count, list(pool.free_pids)) == (2, 2, [1])


def test_a_dead_or_hung_machine_is_never_used_again():
    pool, made = pool_of()
    dead, hung = pool.take(), pool.take()
    hung.is_busy = True
    pool.give_back(hung)
    pool.give_back(dead)
    dead.is_alive = False
    assert pool.take() is made[2]
    assert (hung.killed, pool.count, list(pool.free_pids)) == (1, 1, [])


def test_who_waits_gets_the_machine_that_is_given_back():
    pool, _ = pool_of(most=1, wait_s=30.0)
    held, got = pool.take(), []
    waiting = threading.Thread(target=lambda: got.append(pool.take()))
    waiting.start()
    pool.give_back(held)
    waiting.join()
    assert got == [held]


def test_a_machine_that_does_not_start_takes_no_place():
    failing = [True]

    def start():
        if failing:
            raise EnvLost("no")
        return Machine(1)

    pool = JvmPool(start, JvmLimits(max_machines=1, wait_s=0.0))
    with pytest.raises(EnvLost):
        pool.take()
    failing.clear()
    assert pool.take().pid == 1


def test_a_closed_pool_kills_what_is_given_back():
    pool, made = pool_of()
    free, used = pool.take(), pool.take()
    pool.give_back(free)
    pool.close()
    pool.close()
    pool.give_back(used)
    assert [machine.killed for machine in made] == [1, 1]
    with pytest.raises(EnvLost, match="closed"):
        pool.take()
