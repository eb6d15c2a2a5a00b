"""The benchmark of worlds: its goals, its battles, and figures that are kept while the sources are the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import worlds
from evolvent.worlds.teams.battle import BattleWorld
from evolvent.worlds.teams.battle_planner import BattlePlanner
from evolvent.worlds.virtualhome import VirtualHome


def build_cell(rate, **tiers):
    rows = {
        tier: {"tasks": 9, "kinds": 3, "largest_kind": 3, "expert": e, "random": r, "replay": b, "duplicates": 0.0}
        for tier, (e, r, b) in tiers.items()
    }
    cold = {"load": 0.25, "panel": 0.5, "reset": 0.125}
    return {
        "steps_per_cpu_s": rate,
        "first_visit": 500.0,
        "first_visit_listed": 400.0,
        "panel_cpu_s": 2.0,
        "cold_cpu_s": cold,
        "tiers": rows,
        "problems": [],
    }


def test_goals_are_held_against_the_worst_held_out_tier():
    cells = {
        "shop": build_cell(9_999.0, seen=(0.5, 0.9, 0.9), evo=(1.0, 0.1, 0.0), combo=(0.94, 0.21, 0.06)),
        "site": build_cell(3_000.0, seen=(0.95, 0.2, 0.05)),
    }
    report = worlds.build_report(cells, quick=False)
    assert report["expert_success"]["shop"]["value"] == 0.94
    assert report["random_success"]["shop"]["value"] == 0.21
    assert report["missed"] == [
        "shop: blind_replay",
        "shop: expert_success",
        "shop: random_success",
        "shop: steps_per_cpu_s",
    ], "site reaches every goal to the digit, its only tier counts"
    assert report["new_worlds"] == ["shop", "site"]
    table = worlds.list_table(cells)
    assert "0.625" not in table and " 0.62" in table, "panel and reset of the cold start are added"


def test_kept_figures_are_not_measured_again(tmp_path, monkeypatch, capsys):
    calls = []

    def measure(name, *, quick):
        calls.append(name)
        return build_cell(5_000.0 + len(calls), seen=(1.0, 0.0, 0.0))

    monkeypatch.setattr(worlds, "measure_apart", measure)
    path = tmp_path / "worlds.json"
    worlds.main(["--worlds", "virtualhome", "--save", str(path)])
    worlds.main(["--worlds", "virtualhome", "battle:3m", "--save", str(path), "--json"])
    assert calls == ["virtualhome", "battle:3m"]
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["steps_per_cpu_s"] == {"virtualhome": 5_001.0, "battle:3m": 5_002.0}
    assert json.loads(path.read_text()) == report
    monkeypatch.setattr(worlds, "_FORMAT", 2)
    worlds.main(["--worlds", "virtualhome", "--save", str(path)])
    assert calls == ["virtualhome", "battle:3m", "virtualhome"]
    assert set(json.loads(path.read_text())["cells"]) == {"virtualhome", "battle:3m"}, "others stay in the file"


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, monkeypatch):
    def measure(name, *, quick):
        if name == "battle:8m":
            raise KeyboardInterrupt
        return build_cell(5_000.0, seen=(1.0, 0.0, 0.0))

    monkeypatch.setattr(worlds, "measure_apart", measure)
    path = tmp_path / "worlds.json"
    with pytest.raises(KeyboardInterrupt):
        worlds.main(["--worlds", "battle:3m", "battle:8m", "--save", str(path)])
    assert list(json.loads(path.read_text())["cells"]) == ["battle:3m"]


def test_sources_of_a_world_are_its_own():
    digests = {name: worlds.digest_sources(name) for name in ("virtualhome", "kitchen", "battle:3m", "battle:8m")}
    assert digests["battle:3m"] == digests["battle:8m"]
    assert len(set(digests.values())) == 3


def test_battles_are_won_by_the_script_and_not_by_chance():
    world = BattleWorld("3m")
    rng = np.random.default_rng(0)
    assert worlds.won_share(world, lambda batch, view: world.expert(batch), 12) >= 0.75
    assert worlds.won_share(world, lambda batch, view: worlds.choose(view.available, rng), 12) == 0.0
    plan = worlds.record_expert(world, BattlePlanner(world))
    assert plan.ndim == 2 and plan.shape[1] == 3 and 3 <= len(plan) <= world.horizon


def test_a_first_visit_counts_the_steps_of_every_plan(monkeypatch):
    """Three tasks in one CPU-second by a clock that stands at 1 and then at 2."""
    world = VirtualHome()
    plans = [(task, world.expert(task)) for task in world.tasks("train", "seen")[:3]]
    ticks = iter([1.0, 2.0])
    monkeypatch.setattr(worlds.time, "process_time", lambda: next(ticks))
    assert worlds.first_visit(VirtualHome(), plans) == sum(len(plan) for _, plan in plans)
