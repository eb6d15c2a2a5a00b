"""The study of MAT by number of agents: its tasks, rates, figures and gates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.frozen import freeze_plan
from benchmarks.mat.__main__ import main
from benchmarks.mat.cell import METHODS
from benchmarks.mat.sizes import (
    SIZES,
    SizeCell,
    SizeCells,
    chance_return,
    count_updates,
    layout_of,
    make_batch,
    report_sizes,
    run_sizes,
)
from benchmarks.study import write_cell

PLAN = replace(SIZES, tasks=("distinct 4", "distinct 8"), rates=(1e-4, 1e-3, 1e-2), seeds=(0, 1, 2))


def test_chance_is_the_mean_over_all_choices():
    shares = [np.mean([choice.count(own) == 1 for own in choice]) for choice in itertools.product(range(4), repeat=4)]
    assert chance_return(4) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("agents", [4, 8, 12])
def test_tasks_of_a_size_are_games_with_other_labels(agents):
    batch = make_batch(f"distinct {agents}")
    batch.close()
    assert {task.spec["agents"] for task in batch.tasks} == {agents}
    assert len({tuple(task.spec["meaning"]) for task in batch.tasks}) == len(batch.tasks) == 16


def test_methods_differ_in_kind_and_rate_alone():
    settings = [SIZES.configure(SizeCell("foraging", method, 1, 1e-3, 2048)).model_dump() for method in METHODS]
    assert {row.pop("kind") for row in settings} == set(METHODS) and all(row == settings[0] for row in settings)
    for task in SIZES.tasks:
        rows, steps = layout_of(task)
        assert SIZES.decisions % (rows * steps) == 0 == SIZES.tuned_on % (rows * steps)
        assert count_updates(SIZES, task) >= 1000


def keep_study(folder, *, best=1e-3, last=0.9, tuned_last=0.9, **heights):
    for task in PLAN.tasks:
        for method in METHODS:
            for rate in PLAN.rates:
                height = 0.5 if rate == best else 0.4
                keep(folder, SizeCell(task, method, PLAN.development, rate, PLAN.tuned_on), height, last=tuned_last)
            for seed in PLAN.seeds:
                cell = SizeCell(task, method, seed, best, PLAN.decisions)
                keep(folder, cell, heights.get(method, 0.5) + 0.01 * seed, last=last)


def keep(folder, cell, height, last=0.9):
    row = {**cell.__dict__, "digest": PLAN.cell_digest, "curve": [0.4, last], "area": height}
    write_cell(folder, cell.key, {**row, "sources": "made up", "cpu_s": 36.0, "updates": 1})


@pytest.mark.parametrize(
    ("heights", "first", "verdict"),
    [
        ({"mat": 0.8}, True, "distinct 8: MAT is first"),
        ({"mat": 0.6, "happo": 0.7}, False, "distinct 8: MAT is not first"),
    ],
)
def test_who_is_first(tmp_path, heights, first, verdict):
    keep_study(tmp_path, **heights)
    figures = report_sizes(tmp_path, PLAN)
    assert figures["mat_first"] == {"distinct 4": first, "distinct 8": first} and figures["gate_passed"] is True
    assert figures["verdict"] == verdict
    assert figures["mat_minus_ci"]["distinct 8"]["mappo"] == pytest.approx([heights["mat"] - 0.5] * 3)


def test_an_interval_that_holds_nothing_is_told(tmp_path):
    keep_study(tmp_path, mat=0.51)
    keep(tmp_path, SizeCell("distinct 8", "mat", 0, 1e-3, PLAN.decisions), 0.45)
    keep(tmp_path, SizeCell("distinct 8", "mat", 1, 1e-3, PLAN.decisions), 0.7)
    verdict = report_sizes(tmp_path, PLAN)["verdict"]
    assert verdict == "distinct 8: MAT is first (interval holds 0: mat_dec, mappo, happo)"


@pytest.mark.parametrize("change", [{"best": 1e-2}, {"last": 0.42}])
def test_a_gate_that_fails_withholds_the_verdict(tmp_path, change):
    keep_study(tmp_path, mat=0.8, **change)
    figures = report_sizes(tmp_path, PLAN)
    assert figures["gate_passed"] is False and figures["verdict"] == "distinct 8: no verdict, a gate failed"


def test_a_rate_at_the_end_of_the_grid_does_not_matter_where_none_learns(tmp_path):
    keep_study(tmp_path, mat=0.8, best=1e-2, tuned_last=0.44)
    figures = report_sizes(tmp_path, PLAN)
    assert figures["verdict"] == "distinct 8: MAT is first" and not figures["at_grid_end"]
    assert "distinct 8: mappo" in figures["learns_at_no_rate"]


def test_what_is_missing_is_counted(tmp_path):
    assert SizeCells(tmp_path, PLAN).count_missing() == {"distinct 4": 24, "distinct 8": 24}
    keep_study(tmp_path, mat=0.8)
    (tmp_path / "cell-distinct8-mat-2-0.001-25600.json").unlink()
    figures = report_sizes(tmp_path, PLAN)
    assert figures["missing"] == {"distinct 8": 1} and figures["verdict"].endswith("trainings are missing")
    (cell,) = SizeCells(tmp_path, PLAN).list_missing()
    assert (cell.method, cell.seed, cell.rate) == ("mat", 2, 1e-3)


def test_a_wider_grid_keeps_the_trainings_that_it_does_not_change():
    wider, longer = replace(PLAN, rates=(*PLAN.rates, 0.1)), replace(PLAN, ppo_epochs=9)
    assert wider.digest != PLAN.digest and wider.cell_digest == PLAN.cell_digest != longer.cell_digest


def test_a_folder_of_another_plan_is_refused_in_a_line(tmp_path):
    freeze_plan(tmp_path, {}, "0" * 16)
    with pytest.raises(SystemExit, match=r"^error: .* holds a study with another plan"):
        main(["--study", "sizes", "--folder", str(tmp_path), "--only", "distinct 4"])


@pytest.mark.long
def test_a_short_study_is_played_and_read_back(tmp_path):
    plan = replace(SIZES, tasks=("distinct 4",), decisions=2048, rates=(1e-3,), seeds=(0,))
    figures = run_sizes(tmp_path, plan, play=True, quick=True)
    assert not figures["missing"] and set(figures["area"]["distinct 4"]) == set(METHODS)
    again = run_sizes(tmp_path, plan, play=False, quick=True)
    assert again["area"] == figures["area"] and again["cells"] == 8
