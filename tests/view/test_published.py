"""Which evaluations are a policy's own, what it is compared with, and what it cost; ledgers written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evolvent.view.data import ReportData, Result, RunInfo, StageRow
from evolvent.view.published import (
    PolicyFacts,
    PublishedPolicy,
    build_lines,
    compare_with_control,
    find_final_evaluation,
    find_lineage,
)

WEIGHTS = PolicyFacts("LlamaForCausalLM", 100, 10, 64, "float32", "words")


def stage(index: int, arm: str, number: int, verb: str) -> StageRow:
    return StageRow(index, f"{arm}-{number}-{verb}", verb, arm, number, 1.0, 1.0, {"trained": 10.0**index}, {})


def result(arm: str, number: int, wins: int, *, split: str = "test", stage: str = "", tier: str = "evo") -> Result:
    outcomes = tuple((f"{tier}{split}{task}", f"kind {task % 4}", float(task < wins)) for task in range(20))
    name = stage or f"{arm}-{number}-evaluate"
    return Result(name, arm, number, "maze", tier, split, 20, wins / 20, 0.1, 0.9, 0, 5, 6, outcomes)


def rounds(*arms: str, select: str = "last") -> tuple[list[StageRow], list[Result]]:
    """Cloning, then two rounds an arm: evolve solves 10 and 8 of 20, the control 5 and 6."""
    schedule = [("base", 0, "fit"), ("base", 0, "evaluate")]
    schedule += [(arm, number, verb) for arm in arms for number in (1, 2) for verb in ("collect", "fit", "evaluate")]
    stages = [stage(index, *row) for index, row in enumerate(schedule)]
    split = "dev" if select == "best" else "test"
    wins = {"evolve": (10, 8), "control": (5, 6)}
    results = [result("base", 0, 3)]
    results += [result(arm, number, wins[arm][number - 1], split=split) for arm in arms for number in (1, 2)]
    return stages, results


def published(stages, results, *, fit: str | None, is_result=False, state="finished", floors=None) -> PublishedPolicy:
    info = RunInfo(seed="0", state=state, arms=("evolve", "control"), config={"panel": {"split": "test"}})
    data = ReportData(info=info, stages=tuple(stages), results=tuple(results), floors=floors or {})
    chosen = next((row for row in stages if row.name == fit), None)
    return PublishedPolicy("run", data, WEIGHTS, "model", chosen, is_result)


def told(one: PublishedPolicy) -> list[tuple[str, str, int, str]]:
    return [(line.result.stage, line.result.arm, line.result.round, line.result.split) for line in build_lines(one)]


def test_the_result_of_a_run_is_measured_by_its_last_evaluation():
    stages, results = rounds("evolve", "control")
    one = published(stages, results, fit="evolve-2-fit", is_result=True)
    assert told(one) == [("evolve-2-evaluate", "evolve", 2, "test")]
    (line,) = build_lines(one)
    assert line.base is results[0] and line.control is results[4]
    assert line.difference is not None and line.difference.mean == pytest.approx(0.1)
    head = compare_with_control(one)
    assert head is not None and head.difference == line.difference


def test_an_earlier_round_is_held_against_the_control_of_that_round():
    stages, results = rounds("evolve", "control")
    (line,) = build_lines(published(stages, results, fit="evolve-1-fit"))
    assert (line.result, line.control) == (results[1], results[3])
    assert line.difference is not None and line.difference.mean == pytest.approx(0.25)


def test_a_control_that_is_not_there_yet_is_not_compared():
    stages, results = rounds("evolve", "control")
    one = published(stages, results[:-1], fit="evolve-2-fit")
    (line,) = build_lines(one)
    assert (line.control, line.difference, compare_with_control(one)) == (None, None, None)


@pytest.mark.parametrize(("fit", "arm", "number"), [("base-0-fit", "base", 0), ("control-2-fit", "control", 2)])
def test_the_base_and_the_control_themselves(fit, arm, number):
    one = published(*rounds("evolve", "control"), fit=fit)
    assert told(one) == [(f"{arm}-{number}-evaluate", arm, number, "test")]
    (line,) = build_lines(one)
    assert (line.control, line.difference, compare_with_control(one)) == (None, None, None)
    assert (line.base is None) == (arm == "base")


def best_of_dev():
    """Round 1 was the best on dev; it was then measured on test, recorded under the last round."""
    stages, results = rounds("evolve", select="best")
    stages.append(replace(stage(len(stages), "evolve", 2, "evaluate"), name="ending"))
    return stages, [*results, result("evolve", 2, 11, stage="ending")]


def test_the_best_round_owns_the_final_panel():
    """Its dev panel, on which it was chosen, is not shown: those figures are too good."""
    stages, results = best_of_dev()
    one = published(stages, results, fit="evolve-1-fit", is_result=True)
    assert told(one) == [("ending", "evolve", 2, "test")]
    assert [line.base for line in build_lines(one)] == [results[0]]


def test_the_last_round_does_not_own_the_final_panel_of_another_policy():
    stages, results = best_of_dev()
    one = published(stages, results, fit="evolve-2-fit")
    assert told(one) == [("evolve-2-evaluate", "evolve", 2, "dev")]
    assert [line.base for line in build_lines(one)] == [None], "splits are not compared with each other"


def test_what_was_fitted_after_an_evaluation_was_not_measured_by_it():
    stages = [
        stage(0, "base", 0, "fit"),
        stage(1, "base", 0, "evaluate"),
        replace(stage(2, "base", 0, "fit"), name="b"),
    ]
    results = [result("base", 0, 3)]
    assert told(published(stages, results, fit="b", state="")) == []
    assert len(told(published(stages, results, fit="base-0-fit", state=""))) == 1


def test_without_a_ledger_only_a_finished_run_tells_whose_its_results_are():
    stages, results = rounds("evolve")
    ending = [stages[-1]]
    assert len(build_lines(published(ending, results, fit=None, is_result=True))) == 1
    for state in ("", "running", "interrupted", "failed"):
        one = published(ending, results, fit=None, is_result=True, state=state)
        assert find_final_evaluation(one.data) is None and build_lines(one) == ()
    assert build_lines(published([], results, fit=None, is_result=True)) == ()


def test_floors_are_those_of_the_split_that_they_were_measured_on():
    floors = {("maze", "evo"): {"random": 0.1}}
    stages, results = best_of_dev()
    one = published(stages, results, fit="evolve-1-fit", is_result=True, floors=floors)
    assert [dict(line.floors) for line in build_lines(one)] == [{"random": 0.1}]
    one = published(stages, results, fit="evolve-2-fit", floors=floors)
    assert [(line.result.split, dict(line.floors)) for line in build_lines(one)] == [("dev", {})]


def test_the_cost_of_a_policy():
    stages, results = rounds("evolve", "control")
    names = [row.name for row in find_lineage(published(stages, results, fit="evolve-1-fit"))]
    assert names == ["base-0-fit", "base-0-evaluate", "evolve-1-collect", "evolve-1-fit", "evolve-1-evaluate"]
    assert len(find_lineage(published(stages, results, fit="evolve-1-fit", is_result=True))) == 8, "all rounds chose it"
    assert len(find_lineage(published(stages, results, fit="control-2-fit"))) == 8
    assert find_lineage(published([], [], fit=None)) == ()


def test_many_panels_come_by_world_and_tier():
    stages, results = rounds("evolve")
    more = [result("evolve", 2, 2, tier=tier) for tier in ("longer", "seen", "combo")]
    one = published(stages, [*more, *results], fit="evolve-2-fit", is_result=True)
    assert [line.result.tier for line in build_lines(one)] == ["seen", "evo", "combo", "longer"]
