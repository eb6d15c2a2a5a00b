"""The study of the plume: what decides that agents are above planners, and that finished cells are read back."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("stable_baselines3")

from benchmarks.plume import __main__ as plume
from evolvent.stats import wilson_interval

KINDS = [f"kind {i % 6}" for i in range(48)]


def cell(name, steps, *, wins=48, false=0, decision=1.0):
    """48 episodes: the first ones won, the last ones stopped wrongly; every other one a little longer."""
    rows = [
        [f"task {i}", KINDS[i], 0, i < wins or i >= 48 - false, i < wins, steps + i % 2, float(steps + i % 2), 1.0]
        for i in range(48)
    ]
    return {
        "name": name,
        "world": ["plume", "1", "sensor"],
        "episodes_played": rows,
        "decision_ms": [decision] * 3,
        "train_cpu_s": 0.0,
        "arithmetic": "torch",
    }


@pytest.fixture
def cells():
    """Everybody; agents win all in 30 steps, DCEE in 32, infotaxis and entrotaxis win half in 60."""
    found = {name: [cell(name, 60, wins=24)] for name in (*plume.PLANNED, *plume.TURNING)}
    found |= {name: [cell(name, 32, wins=47)] for name in ("dcee", "dcee/heading")}
    agents = [f"{name}/{arm}" for name in plume.LEARNED for arm in plume.ARMS]
    return found | {name: [cell(name, 30 + seed, decision=0.05) for seed in range(5)] for name in agents}


def test_agents_that_are_better_in_everything_are_above(cells):
    found = plume.compared_with_planners(cells)
    assert found["agdc_above_infotaxis"] is True
    mean, low, high = found["against"]["dqn/agdc"]["infotaxis"]["steps"]
    assert mean == -28.0 and low <= -28.0 <= high < 0
    assert found["against"]["dqn/agdc"]["infotaxis"]["success"][0] == 0.5
    assert (
        "infotaxis/heading" in found["against"]["ddpg/agdc"] and "infotaxis/heading" not in found["against"]["dqn/agdc"]
    )
    assert found["best_decision_of_dcee"] == 0.05 and found["best_reaches_dcee"] is True


@pytest.mark.parametrize("spoilt", ["steps", "success", "one seed", "headings"])
def test_one_measure_one_agent_or_one_rival_is_enough_not_to_be(cells, spoilt):
    if spoilt == "steps":
        cells["ppo/agdc"] = [cell("ppo/agdc", 60) for _ in range(5)]
    elif spoilt == "success":
        cells["entrotaxis"] = [cell("entrotaxis", 60, wins=48)]
    elif spoilt == "one seed":  # the mean is still better, the interval is not
        cells["dqn/agdc"][0] = cell("dqn/agdc", 100, wins=0)
    else:
        cells["infotaxis/heading"] = [cell("infotaxis/heading", 20, wins=48)]
    found = plume.compared_with_planners(cells)
    assert found["agdc_above_infotaxis"] is False
    expected = {"steps": [True, False, False], "success": [False, True, True]}.get(spoilt, [False, False, False])
    assert list(found["above_by_measure"].values()) == expected
    assert sorted(found["above_by_agent"].values()) == [False, *([True] * 2)] or spoilt == "success"


def test_without_everybody_nothing_is_decided(cells):
    del cells["entrotaxis"]
    found = plume.compared_with_planners(cells)
    assert found["agdc_above_infotaxis"] is None and "best" not in found


def test_rows_tell_rates_with_both_intervals():
    row = plume.row_of([cell("dqn/agdc", 30, wins=46, false=1, decision=0.25)])
    assert row["success"][0] == pytest.approx(46 / 48, abs=1e-4)
    assert row["false_cessation"][0] == pytest.approx(1 / 48, abs=1e-4)
    alone = wilson_interval(46, 48)
    assert row["success"][1] <= alone.low + 1e-4 and alone.high - 1e-4 <= row["success"][2] <= 1
    assert row["outcomes"] == {"right_stop": 46, "false_stop": 1, "withheld": 0, "unfinished": 1, "unknown": 0}
    assert (row["steps"][0], row["decision_ms"]) == (30.5, 0.25)
    never = plume.row_of([cell("dqn/agdc", 30)] * 5)
    assert never["false_cessation"][:2] == [0.0, 0.0] and never["false_cessation"][2] > 0, (
        "0 of 240 is not known to be 0"
    )


def test_a_cell_that_is_kept_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(plume, "EPISODES", 4)
    monkeypatch.setattr(plume, "PARTICLES", 50)
    made = plume.done(tmp_path, "go_to_mean", 0, quick=False)
    assert len(made["episodes_played"]) == 4
    monkeypatch.setattr(plume, "cell", lambda *_, **__: pytest.fail("played again"))
    assert plume.done(tmp_path, "go_to_mean", 0, quick=False) == json.loads(json.dumps(made))
    monkeypatch.undo()
    assert plume.protocol("dqn/agdc", 0, quick=False) != plume.protocol("dqn/agdc", 1, quick=False)
    assert plume.protocol("go_to_mean", 0, quick=False) == plume.protocol("go_to_mean", 1, quick=False)
