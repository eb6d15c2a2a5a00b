"""The study of sums on a clock: what its world pays, what the base is shown, gates, and figures by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.openr.clock import (
    CLOCK,
    HOURS,
    QUICK_CLOCK,
    STEPS,
    Clock,
    check_equations,
    draw_wrong_facts,
    report_clock,
    run_clock,
    write_solution,
)
from benchmarks.study import write_cell
from evolvent.errors import ConfigError

TASK = Clock().tasks("train", "seen")[0]
PLAN = replace(CLOCK, seeds=(0, 1))


def play(text):
    """Plays the episode of a text and returns its reward and the answer that votes count."""
    episode = Clock().play(TASK.spec)
    next(episode)
    with pytest.raises(StopIteration) as stop:
        episode.send(text)
    _, reward, notes = stop.value.value
    return reward, notes["answer"]


def write_right():
    return write_solution(TASK.spec["hours"], {}, 1.0, np.random.default_rng(0))


def test_a_solution_without_a_wrong_equation_is_paid():
    right = write_right()
    assert len(right.split(" ; ")) == STEPS and right.split()[-1] == str(sum(TASK.spec["hours"]) % HOURS)
    assert play(right) == (1.0, right)
    assert play(right.replace("=", " = "))[0] == 1.0
    wrong = f"{right.rsplit(' ', 1)[0]} {(sum(TASK.spec['hours']) + 1) % HOURS}"
    assert play(wrong) == (0.0, wrong), "votes count whole solutions"
    assert play(right.rsplit(" ; ", 1)[0])[0] == play(f"{right} ; 0 + 0 = 0")[0] == play("")[0] == 0.0


def test_equations_are_right_up_to_the_first_wrong_one():
    hours, equations = TASK.spec["hours"], write_right().split(" ; ")
    assert check_equations(hours, " ; ".join(equations)) == (True,) * STEPS
    changed = [*equations]
    changed[2] = changed[2].rsplit(" ", 1)[0] + " x"
    assert check_equations(hours, " ; ".join(changed)) == (True, True, False, False, False, False)
    assert check_equations(hours, " ; ".join([*equations, "0 + 0 = 0"]))[-2:] == (True, False)
    assert check_equations(hours, "") == (False,)


def test_a_quarter_of_the_facts_is_wrong_and_stated_three_times_of_four():
    facts = draw_wrong_facts(CLOCK, 0)
    assert all(wrong != (first + second) % HOURS for (first, second), wrong in facts.items())
    counts = [len(draw_wrong_facts(CLOCK, seed)) / HOURS**2 for seed in range(40)]
    assert np.mean(counts) == pytest.approx(0.25, abs=0.02)
    (pair, wrong), rng = next(iter(facts.items())), np.random.default_rng(1)
    said = Counter(write_solution(pair, facts, CLOCK.believed, rng).split()[-1] for _ in range(2000))
    assert said[str(wrong)] / 2000 == pytest.approx(0.75, abs=0.03)
    assert said[str(sum(pair) % HOURS)] == 2000 - said[str(wrong)]


def test_figures_by_hand(tmp_path):
    """Guided .75 and 1, majority .5 and .5, beam .5 and 1; an AUC of .75 on average fails its gate."""
    with pytest.raises(ConfigError, match="no seed has finished"):
        report_clock(tmp_path / "nothing", PLAN)
    guided, beam = {0: [1.0, 1.0, 1.0, 0.0], 1: [1.0] * 4}, {0: [1.0, 1.0, 0.0, 0.0], 1: [1.0] * 4}
    for seed, auc in zip(PLAN.seeds, (0.7, 0.8), strict=True):
        outcomes = {name: [1.0, 0.0, 1.0, 0.0] for name in ("greedy", "majority")}
        outcomes |= {"guided": guided[seed], "beam": beam[seed]}
        row = {"seed": seed, "digest": PLAN.digest, "outcomes": outcomes, "computed": dict.fromkeys(outcomes, 10.0)}
        judged = {"sampled": 0.3, "auc": auc, "first_wrong": 0.8}
        write_cell(tmp_path, f"{seed}", {**row, **judged, "sources": "s", "base_cpu_s": 36.0, "cpu_s": 36.0})
    figures = report_clock(tmp_path, PLAN)
    assert figures["guided_minus_majority"][0] == pytest.approx(0.375)
    assert figures["beam_minus_majority"][0] == pytest.approx(0.25)
    assert figures["beam_minus_guided"][0] == pytest.approx(-0.125)
    assert figures["decoded"]["guided"][0] == pytest.approx(0.875) and figures["cpu_hours"] == 0.04
    assert not figures["gate_passed"]
    failed = [gate["name"] for gate in figures["gates"] if not gate["passed"]]
    assert failed == ["AUC of the reward model, equally many equations"]


def test_the_quick_study_runs_and_plays_nothing_twice(tmp_path, capsys):
    first = run_clock(tmp_path / "clock", seeds=None, quick=True, play=True)
    assert capsys.readouterr().out.count("seed ") == 2 and first["seeds"] == list(QUICK_CLOCK.seeds)
    with pytest.raises(ConfigError, match="seeds that the plan does not have"):
        run_clock(tmp_path / "clock", seeds=[7], quick=True, play=True)
    again = run_clock(tmp_path / "clock", seeds=None, quick=True, play=True)
    assert "seed " not in capsys.readouterr().out and again == first
