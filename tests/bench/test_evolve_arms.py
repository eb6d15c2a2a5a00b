"""The arms of the study of AgentEvol: what a seed draws, and the control that keeps whatever was tried."""

from dataclasses import replace

import pytest

import evolvent as ev
from benchmarks.evolve.__main__ import ARMS, PLAN, QUICK, SEEDS, VARIANTS, study
from benchmarks.evolve.arms import Regardless, _have_equal_outcomes, _idle, drawn
from benchmarks.reporting import RESULTS
from benchmarks.study import read_rows
from evolvent.errors import ErrorRecord
from evolvent.methods.agentevol import AgentEvolConfig
from evolvent.worlds.panel import Sizes

MADE = {"lookup": ev.Lookup(sizes=Sizes(train=60, dev=10, test=10))}
PLAN_HERE = replace(QUICK, demonstrated=(20,), explored=(50,))


def test_a_seed_draws_its_tasks_and_nothing_twice():
    shown, tried = drawn(PLAN_HERE, MADE, 3)
    assert (len(shown), len(tried)) == (20, 50)
    assert len({task.id for task in shown + tried}) == 70
    assert {task.split for task in shown + tried} == {"train"}
    assert {task.tier for task in shown} == {"seen"}
    assert {task.tier for task in tried} == {"seen", "evo"}
    assert drawn(PLAN_HERE, MADE, 3) == (shown, tried)
    other, _ = drawn(PLAN_HERE, MADE, 4)
    assert {task.id for task in other} != {task.id for task in shown}


def played(task: ev.Task, sample: int, success: bool | None) -> ev.Trajectory:
    error = None if success is not None else ErrorRecord("EnvLost", "gone")
    return ev.Trajectory(
        f"{task.id}/{sample}",
        task,
        (ev.Step("o", "a", 0.0),),
        sample=sample,
        score=ev.Score(success=success),
        ended_by="error" if error else "world",
        error=error,
    )


def test_keeping_regardless_of_reward_keeps_as_many_of_the_same_tasks():
    _, tried = drawn(PLAN_HERE, MADE, 3)
    episodes = [played(task, sample, sample == 1) for task in tried for sample in range(3)]
    choose = Regardless([5, 9, 9], seed=1)
    rounds = [choose(episodes, AgentEvolConfig()) for _ in range(3)]
    tasks = [[trajectory.task.id for trajectory in kept] for kept in rounds]
    assert [len(set(ids)) for ids in tasks] == [5, 9, 9]
    assert tasks[1][:5] == tasks[0] and tasks[2] == tasks[1]
    assert {trajectory.success for kept in rounds for trajectory in kept} == {True, False}
    again = Regardless([5, 9, 9], seed=1)
    assert [again(episodes, AgentEvolConfig()) for _ in range(3)] == rounds


@pytest.mark.parametrize(("name", "plan"), [("evolve", PLAN), ("variants", VARIANTS)])
def test_the_frozen_studies_are_those_of_today(name, plan):
    frozen = read_rows(RESULTS / name, "study")["study"]
    today = study(name, plan, SEEDS[name], ARMS[name])
    versions = frozen["study"]["facts"]["versions"]  # of the packages that it was played with
    assert replace(today, facts={**today.facts, "versions": versions}).digest() == frozen["digest"]


def test_the_frozen_studies_say_all_that_they_depend_on():
    names = ARMS["evolve"]
    one = study("evolve", PLAN, (1, 2), names)
    assert one.digest() == study("evolve", PLAN, (1, 2), names).digest()
    other_method = PLAN.method.model_copy(update={"samples_per_task": 5})
    for other in (replace(PLAN, clones=9), replace(PLAN, method=other_method)):
        assert study("evolve", other, (1, 2), names).digest() != one.digest()
    assert {name.partition("/")[0] for name in one.facts["panels"]} == {"crafting", "lookup"}


def test_controls_explore_nothing():
    config = _idle(PLAN, 5)
    assert (config.samples_per_task, config.keep, config.round_tokens) == (0, "none", 5)
    assert config == PLAN.method.model_copy(update={"samples_per_task": 0, "keep": "none", "round_tokens": 5})


def test_a_result_that_was_read_in_another_order_is_the_same_result():
    """A seed that goes on in a new process reads its base in the panel's order; it was played in another."""
    played_order = {"lookup/evo": (("b", "k", True), ("a", "k", False))}
    read_order = {"lookup/evo": (("a", "k", False), ("b", "k", True))}
    assert _have_equal_outcomes(played_order, read_order)
    assert not _have_equal_outcomes(played_order, {"lookup/evo": (("a", "k", True), ("b", "k", False))})
    assert not _have_equal_outcomes(played_order, {**read_order, "lookup/seen": ()})
