"""Rows in worker processes: they say what rows in this process say, and a crash or a hang costs one row one episode."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from evolvent.errors import ConfigError, EnvLost, ErrorRecord
from evolvent.methods.mat import MATConfig, mat
from evolvent.rollout.team_workers import ProcessRows
from evolvent.trajectory import Task
from evolvent.worlds.teams.rows import Interrupted, LocalRows, RowTeam, episode_seed
from tests.team_support import actions_for, equal_episodes, make_counting, played, same


def team(host, size, **env) -> RowTeam:
    task = Task("counting", "1", {"env": env})
    return RowTeam(make_counting(task).spec, [task], size, host=host)


@pytest.fixture
def hosts():
    made = []

    def make(size, **settings):
        made.append(ProcessRows(make_counting, size, **settings))
        return made[-1]

    yield make
    for host in made:
        host.close()


def test_processes_say_what_this_process_says(hosts):
    here = played(team(LocalRows(make_counting), 5, agents=3, what="die", at=2), np.arange(5), 13)
    there = played(team(hosts(5), 5, agents=3, what="die", at=2), np.arange(5), 13)
    assert len(here) == 10 and here.keys() == there.keys()
    assert all(equal_episodes(here[number], there[number]) for number in here)


def first_with(parity, task, size) -> tuple[int, int]:
    """(base, row): of the numbers from `base` on, that row's alone has a seed of this parity."""
    for base in range(0, 1000, size):
        rows = [n for n in range(base, base + size) if episode_seed(task, n) % 2 == parity]
        if len(rows) == 1:
            return base, rows[0] - base
    raise AssertionError


@pytest.mark.parametrize("what", ["crash", "hang"])
def test_one_slot_is_lost_and_the_others_go_on(hosts, tmp_path, what):
    marker = str(tmp_path / "happened")
    host = hosts(4, workers=2, step_s=1.0)
    batch = team(host, 4, what=what, at=3, only=0, marker=marker, ends=6)
    base, guilty = first_with(0, batch.tasks[0], 4)
    view = batch.reset(base + np.arange(4))
    results = []
    for _ in range(6):
        result = batch.step(actions_for(view, batch.spec))
        results.append((view, result))
        view = result.view
    assert host.restarts == 1 and Path(marker).exists()
    lost = results[2][1]
    assert list(lost.errors) == [guilty] and lost.errors[guilty].kind == (
        "EnvLost" if what == "crash" else "StepTimeout"
    )
    assert lost.errors[guilty].retryable and lost.errors[guilty].at_step == 2
    assert lost.ended.tolist() == [guilty] and lost.view.number[guilty] == base + guilty + 4
    assert not any(result.errors for at, (_, result) in enumerate(results) if at != 2)
    others = [row for row in range(4) if row != guilty]
    calm = RowTeam(batch.spec, batch.tasks, 4, host=LocalRows(make_counting))  # the marker exists: all stays calm
    at = calm.reset(base + np.arange(4))
    for view, result in results:
        same_rows = np.array(others)
        assert same(view.select_rows(same_rows), at.select_rows(same_rows))
        step = calm.step(actions_for(at, calm.spec))
        assert np.array_equal(step.reward[others], result.reward[others])
        at = step.view


def test_a_process_that_dies_between_two_messages_costs_nothing(hosts):
    host = hosts(3, workers=1)
    batch, quiet = team(host, 3), team(LocalRows(make_counting), 3)
    view, at = batch.reset([0, 1, 2]), quiet.reset([0, 1, 2])
    for step in range(4):
        if step == 2:
            process = host._crew[0]._process
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        result, calm = batch.step(actions_for(view, batch.spec)), quiet.step(actions_for(at, quiet.spec))
        assert not result.errors and same(result.view, calm.view)
        view, at = result.view, calm.view
    assert host.restarts == 1


def test_one_that_does_not_repeat_itself_is_lost_with_its_process(hosts, tmp_path):
    marker = str(tmp_path / "happened")
    host = hosts(4, workers=1)
    batch = team(host, 4, what="crash", at=3, only=0, marker=marker, wild=True, ends=9)
    base, guilty = first_with(0, batch.tasks[0], 4)
    view = batch.reset(base + np.arange(4))
    results = [batch.step(actions_for(batch._view, batch.spec)) for _ in range(3)]
    del view
    assert not results[1].errors and sorted(results[2].errors) == [0, 1, 2, 3]
    told = {row: error.message for row, error in results[2].errors.items()}
    assert "does not repeat itself" in told[(guilty + 1) % 4] and "exit code 3" in told[guilty]


def test_a_crash_at_a_beginning_interrupts_who_was_playing(hosts):
    host = hosts(2, workers=1)
    calm, wrong = Task("counting", "1", {"env": {}}), Task("counting", "1", {"env": {"what": "crash", "at": 0}})
    host.begin({0: (calm, 1), 1: (calm, 1)})
    assert isinstance(host.begin({0: (wrong, 1)})[0], ErrorRecord)
    assert isinstance(host.step({1: np.zeros(2, np.int64)})[1], Interrupted)
    assert host.restarts == 1


def test_one_that_always_crashes_is_given_up(hosts):
    batch = team(hosts(2, workers=1), 2, what="crash", at=1)
    view = batch.reset([0, 1])
    result = batch.step(actions_for(view, batch.spec))
    assert sorted(result.errors) == [0, 1], "also who is played again meets its own crash"
    assert result.view.number.tolist() == [2, 3]


def test_an_environment_that_cannot_be_made(hosts):
    host = hosts(2, workers=1)
    batch = team(host, 2)
    batch.tasks = (Task("counting", "1", {"env": {"nothing": 1}}),)
    with pytest.raises(EnvLost, match="did not begin"):
        batch.reset([0, 1])


def test_training_goes_on_through_losses_and_interruptions(hosts, tmp_path):
    class Stopped(Exception):
        pass

    def told(row):
        if row["decisions"] >= 84:
            raise Stopped

    def made() -> RowTeam:
        return team(hosts(4), 4, ends=5, what="raise", at=4, only=0)

    config = MATConfig(rows=4, steps=7, decisions=140, keep_every=1, update={"minibatches": 1, "ppo_epochs": 2})
    whole = mat(config, made())
    with pytest.raises(Stopped):
        mat(config, made(), folder=tmp_path, on_row=told)
    assert mat(config, made(), folder=tmp_path).history == whole.history


def test_settings():
    with pytest.raises(ConfigError, match=r"size: got 0(\n|.)*step_s: got -1"):
        ProcessRows(make_counting, 0, step_s=-1)
    with pytest.raises(ConfigError, match="expected a function at the top level of a module"):
        ProcessRows(lambda task: None, 1)


def test_closing_twice(hosts):
    host = hosts(1)
    batch = team(host, 1)
    batch.reset([0])
    pid = host._crew[0]._process.pid
    batch.close()
    batch.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
