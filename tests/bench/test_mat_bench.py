"""The study of MAT: what decides that it is first, how curves and transfers are read, and that it goes on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks.mat import __main__ as mat
from benchmarks.mat import cell as mat_cell
from benchmarks.mat.cell import GRID, MOVES, PARTS, TASKS, curve_of
from benchmarks.mat.sizes import FORAGING, SIZES, run_sizes


def area(value, seed=0):
    return {"auc": value, "last": value, "seed": seed}


def trained(**methods):
    return {method: [area(value + seed, seed) for seed in range(3)] for method, value in methods.items()}


def test_the_curve_is_a_mean_over_equal_stretches():
    history = [
        {"decisions": 10.0, "episodes": 0.0},
        {"decisions": 20.0, "episodes": 1.0, "episode_return": 4.0},
        {"decisions": 30.0, "episodes": 3.0, "episode_return": 8.0},
        {"decisions": 40.0, "episodes": 0.0},
        {"decisions": 50.0, "episodes": 0.0},
        {"decisions": 60.0, "episodes": 0.0},
        {"decisions": 70.0, "episodes": 2.0, "episode_return": 1.0},
        {"decisions": 80.0, "episodes": 0.0},
    ]
    assert curve_of(history, 80, 4) == [4.0, 8.0, 8.0, 1.0]
    assert curve_of(history, 80, 8) == [4.0, 4.0, 8.0, 8.0, 8.0, 8.0, 1.0, 1.0]
    assert curve_of(history, 80, 2) == [7.0, 1.0], "episodes count, not updates"
    with pytest.raises(ValueError, match="no episode ended"):
        curve_of(history[:1], 80)


@pytest.mark.parametrize(("others", "first"), [((9, 8, 7), True), ((9, 8, 10.5), False), ((10, 8, 7), False)])
def test_who_is_first(others, first):
    dec, mappo, happo = others
    found = mat.areas({mat.HEAD: trained(mat=10, mat_dec=dec, mappo=mappo, happo=happo)})
    assert found["mat_first"] is first
    mean, low, high = found["auc"][mat.HEAD]["mat"]
    assert mean == 11.0 and high - mean == mean - low == pytest.approx(4.3027 / 3**0.5, abs=1e-3), "10, 11, 12"
    assert found["above"][mat.HEAD]["mat_dec"] == [10.0 - dec] * 3, "seed by seed: what they share is no doubt"


def test_without_everybody_nobody_is_first():
    assert mat.areas({mat.HEAD: trained(mat=10, mappo=1)})["mat_first"] is None
    assert mat.areas({"foraging": trained(mat=4, mat_dec=3, mappo=2, happo=1)})["mat_first"] is None
    assert mat.areas({mat.HEAD: {method: [] for method in mat.METHODS}}) == {
        "auc": {mat.HEAD: {}},
        "above": {mat.HEAD: {}},
        "mat_first": None,
        "mat_first_by_task": {},
    }


def test_transfers_are_compared_place_by_place_and_seed_by_seed():
    def row(place, arm, seed, value):
        return {
            "task": "rescue",
            "place": place,
            "arm": arm,
            "seed": seed,
            "returns": {str(p): value + p for p in PARTS},
        }

    rows = [
        row(place, arm, seed, base + seed + 10 * at)
        for at, place in enumerate(("2 agents", "6 agents"))
        for arm, base in (("mat", 5.0), ("scratch", 2.0 + 2 * at))
        for seed in range(3)
    ]
    found = mat.transfers([*rows, row("2 agents", "happo", 7, 0.0)])
    assert found["few_shot"]["rescue"]["6 agents"]["mat"]["5"][0] == 21.0
    assert found["few_shot_above"]["rescue"]["scratch"]["10"] == [2.0, 2.0, 2.0], "3 and 1, in every seed"
    assert "happo" not in found["few_shot_above"]["rescue"], "no MAT of that seed"


def test_methods_differ_in_their_learning_rates_alone():
    settings = [
        mat_cell.settings_of("foraging", method, lr=GRID[0], seed=1, decisions=1024).model_dump()
        for method in mat.METHODS
    ]
    assert len({row.pop("kind") for row in settings}) == 4 and all(row == settings[0] for row in settings)
    assert settings[0]["rows"] * settings[0]["steps"] == 1024
    for name, play in TASKS.items():
        assert 1024 % play.rows == 0 and play.decisions % 1024 == 0 == play.quick % 1024, name
    assert {move.task for move in MOVES} == {mat.HEAD, "rescue", "distinct"}


@pytest.fixture
def small(monkeypatch):
    """Trainings of one rollout of two methods, and one place."""
    play = replace(TASKS["distinct"], decisions=4096, quick=1024, episodes=16, places=("2 agents",))
    monkeypatch.setattr(mat, "METHODS", ("mat", "mappo"))
    monkeypatch.setattr(mat, "QUICK", ("distinct",))
    monkeypatch.setattr(mat, "STUDY", ("distinct",))
    monkeypatch.setattr(mat, "SEEDS", (0,))
    monkeypatch.setattr(mat_cell, "TASKS", {"distinct": play})
    monkeypatch.setattr(mat, "TASKS", mat_cell.TASKS)
    monkeypatch.setattr(
        mat,
        "MOVES",
        tuple(move for move in MOVES if move.place == "2 agents" and move.task == "distinct" and move.arm != "happo"),
    )


def test_a_study_goes_on_and_is_read_back(tmp_path, small, monkeypatch, capsys):
    made = []
    train = mat.train

    def stopping(task, config, policy=None):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(config.kind)
        return train(task, config, policy)

    monkeypatch.setattr(mat, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        mat.report(tmp_path, (), quick=True, making=True)
    half = mat.report(tmp_path, (), quick=True, making=False)
    assert set(half["auc"]["distinct"]) == {"mat"} and half["few_shot"] == {}
    monkeypatch.setattr(mat, "train", train)
    whole = mat.report(tmp_path, (), quick=True, making=True)
    assert set(whole["few_shot"]["distinct"]["2 agents"]) == {"mat", "scratch", "mappo"}
    kept = sorted(tmp_path.glob("cell-*.json"))
    times = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(sys, "argv", ["mat", "--quick", "--report", "--json", "--folder", str(tmp_path)])
    capsys.readouterr()
    mat.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == whole
    assert len(kept) == 5 and [path.stat().st_mtime_ns for path in kept] == times
    start = {arm: own["0"][0] for arm, own in whole["few_shot"]["distinct"]["2 agents"].items()}
    assert start["mat"] != start["scratch"], "a policy that was trained is another one"


def test_a_learning_rate_is_chosen_with_a_seed_of_its_own(tmp_path, small, monkeypatch):
    areas = dict(zip(GRID, (3.0, 5.0, 4.0), strict=True))
    seen = []

    def train(task, config, policy=None):
        seen.append((config.update.lr, config.seed, config.decisions, policy is not None))
        return {"curve": [0.0], "auc": areas[config.update.lr], "last": 0.0, "cpu_s": 0.0}

    monkeypatch.setattr(mat, "train", train)
    study = mat.Study(tmp_path, making=True, quick=False)
    (row,) = study.trained("distinct", "mappo")
    assert seen == [*((lr, 100, 1024, False) for lr in GRID), (GRID[1], 0, 4096, True)]
    assert row["config"]["update"]["lr"] == GRID[1] and len(study.tuning) == 3


def test_studies_with_gates_have_plans_and_folders_of_their_own(tmp_path):
    """The plan of `sizes` is frozen; that of `foraging` ranks its own task."""
    (tmp_path / "mat_foraging").mkdir()
    found = run_sizes(tmp_path / "mat_foraging", FORAGING, play=False)
    assert found["verdict"] == "foraging: no verdict, trainings are missing" and not found["gate_passed"]
    assert found["missing"] == {"foraging": 4 * (5 + 3)} and found["updates"] == {"foraging": 5120}
    assert FORAGING.digest != SIZES.digest and FORAGING.cell_digest == SIZES.cell_digest


def test_a_task_of_another_study_is_refused():
    with pytest.raises(SystemExit, match="error: --only: got ant_4x2, distinct 4, expected of: foraging"):
        mat.main(["--study", "foraging", "--report", "--only", "distinct 4", "ant_4x2"])
