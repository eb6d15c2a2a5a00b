"""The study of retrieved steps by the size of prompts: prompts that fit, what they show, gates, and figures by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.study import write_cell
from benchmarks.trad_agents.budgets import (
    BUDGETS,
    QUICK_BUDGETS,
    SHOWING,
    list_lessons,
    list_tasks,
    rename_entities,
    report_budgets,
    run_budgets,
)
from benchmarks.trad_agents.cell import acts, is_told
from benchmarks.trad_agents.lessons import TOKEN, UNSHOWN
from evolvent.errors import ConfigError

PLAN = replace(BUDGETS, shown=16, taught=16, test=3, budgets=(600, 900), shots=4, seeds=(0, 1))

STAY = {"open", "find", "show", "set", "orders", "staff", "page", "1", "2", "act", "Step", "customer"}


def count_demonstrations(prompt):
    """The instructions of a task stand once in each demonstration, and once in the task itself."""
    return prompt.count("do this :")


@pytest.mark.parametrize("system", [*SHOWING, UNSHOWN])
def test_prompts_fit_and_a_smaller_one_shows_no_more(system):
    for task in list_tasks(PLAN, "test"):
        small, large = (list_lessons(PLAN, system, task, budget) for budget in PLAN.budgets)
        for lessons, budget in ((small, 600), (large, 900)):
            sizes = {lesson.prompt: len(TOKEN.findall(lesson.prompt)) + 2 for lesson in lessons}
            assert all(size <= budget for prompt, size in sizes.items() if count_demonstrations(prompt) > 1)
            assert max(sizes.values()) < PLAN.limit(budget), "a bare prompt may leave less room for its answer"
        for less, more in zip(small, large, strict=False):
            assert less.answer == more.answer
            assert count_demonstrations(less.prompt) <= count_demonstrations(more.prompt)


def test_nothing_shown_tells_no_command():
    asked = [acts(list_lessons(PLAN, UNSHOWN, task, 600)) for task in list_tasks(PLAN, "test")]
    assert asked and not any(is_told(lesson) for each in asked for lesson in each)


def test_lessons_get_other_names_one_for_one():
    """What may be copied is renamed alike everywhere; commands, tables, marks and pages stay."""
    (task, *_), changed = list_tasks(PLAN, "test"), 0
    for lesson in list_lessons(PLAN, "trad", task, 900):
        renamed = rename_entities(lesson, np.random.default_rng(0))
        words, others = (TOKEN.findall(f"{one.prompt} {one.answer}") for one in (lesson, renamed))
        pairs = set(zip(words, others, strict=True))
        assert len(pairs) == len({word for word, _ in pairs}) == len({other for _, other in pairs})
        moved = {word for word, other in pairs if word != other}
        assert not moved & STAY
        changed += len(moved)
    assert changed > 50


def test_played_kinds_are_not_among_the_remembered():
    kinds = {task.kind for task in list_tasks(PLAN, "train")}
    assert kinds and not kinds & {task.kind for task in list_tasks(PLAN, "test")}
    assert not {task.id for task in list_tasks(PLAN, "test")} & {task.id for task in list_tasks(PLAN, "dev")}


def test_figures_by_hand(tmp_path):
    """TRAD .75 and 1 at 600, Synapse .25 and .5: +.5; the second seed follows in .8 of the steps."""
    with pytest.raises(ConfigError, match="no seed has finished"):
        report_budgets(tmp_path / "nothing", PLAN)
    success = {("trad", 0): [1, 1, 1, 0], ("trad", 1): [1, 1, 1, 1], ("synapse", 0): [1, 0, 0, 0]}
    success[("synapse", 1)] = [1, 1, 0, 0]
    for seed, followed in zip(PLAN.seeds, (0.92, 0.8), strict=True):
        systems = {}
        for name in (*SHOWING, UNSHOWN):
            for budget in PLAN.budgets:
                own = success.get((name, seed), [0, 0, 0, 0]) if budget == 600 else [0, 0, 0, 0]
                row = {"success": own, "told": [1.0], "followed": [followed], "prompt_tokens": 500.0}
                systems[f"{name} {budget}"] = row
        row = {"seed": seed, "digest": PLAN.digest, "systems": systems, "training": {}, "sources": "s", "cpu_s": 36.0}
        write_cell(tmp_path, f"{seed}", row)
    figures = report_budgets(tmp_path, PLAN)
    assert figures["trad_minus_synapse_ci"][0] == pytest.approx(0.5)
    assert figures["trad_minus"]["rap"]["600"][0] == pytest.approx(0.875)
    assert figures["trad_minus"]["synapse"]["900"][0] == 0
    assert figures["success"]["synapse"]["600"][0] == pytest.approx(0.375) and figures["cpu_hours"] == 0.02
    assert not figures["gate_passed"], "followed in .86 of the steps"
    assert [gate["value"] for gate in figures["gates"]] == [pytest.approx(0.86), 0]


def test_the_quick_study_runs_and_plays_nothing_twice(tmp_path, capsys):
    first = run_budgets(tmp_path / "budgets", seeds=None, quick=True, play=True)
    assert "seed 0: trad 600" in capsys.readouterr().out and first["seeds"] == list(QUICK_BUDGETS.seeds)
    with pytest.raises(ConfigError, match="seeds that the plan does not have"):
        run_budgets(tmp_path / "budgets", seeds=[7], quick=True, play=True)
    again = run_budgets(tmp_path / "budgets", seeds=None, quick=True, play=True)
    assert "seed 0:" not in capsys.readouterr().out and again == first
