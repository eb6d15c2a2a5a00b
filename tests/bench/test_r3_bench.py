"""The study of reverse curricula: how a rate is chosen, which cells are compared, figures of rows that were made up."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks.r3 import __main__ as r3
from benchmarks.r3.__main__ import QUICK, average, report
from benchmarks.r3.bases import base_of, untrained
from benchmarks.r3.cell import Budgeted
from benchmarks.r3.protocol import METHODS, PANELS, Cell, panel
from benchmarks.r3.schedule import Cells, studied, tuning
from evolvent import Lookup, Run, TrainConfig, make_policy
from evolvent.errors import ConfigError
from evolvent.methods.grpo import GRPOConfig, build_preset
from evolvent.rl.trainer import RLConfig, RLSpec

SMALL = replace(
    QUICK, rates=(0.1, 0.2), imitated=(0.3, 0.4), tuned=("arithmetic", "entailment"), development=(100, 101)
)


def keep(folder, cell, quarters):
    """A row that was made up, of so many quarters of the panel won."""
    count = len(panel(SMALL, cell.task, "test"))
    won = quarters * count // 4
    made = {
        **{name: getattr(cell, name) for name in Cell.__dataclass_fields__},
        "digest": SMALL.digest,
        "outcomes": "1" * won + "0" * (count - won),
        "accuracy": won / count,
        "base": 0.25,
        "sources": "s",
        "env_steps": 60,
        "replayed": 0,
        "tokens_generated": 1,
        "tokens_computed": 2,
        "tokens_trained": 30,
        "cpu_train_s": 1.0,
    }
    (folder / f"cell-{cell.key}.json").write_text(json.dumps(made), encoding="utf-8")


def tuned(folder):
    """Rows of all tuning cells: staged is best at .1, all others at .2, and sft is as good at both."""
    for cell in tuning(SMALL):
        best = cell.method == "sft" or (cell.rate == 0.1) == (cell.method == "staged")
        keep(folder, cell, 3 if best else 1)


def test_every_method_tries_every_rate_on_every_seed_and_panel_of_development(tmp_path):
    cells = tuning(SMALL)
    assert len(cells) == len({*cells}) == 2 * 2 * 2 * len(METHODS)
    assert {cell.seed for cell in cells} == {100, 101}
    tuned(tmp_path)
    kept = Cells(tmp_path, SMALL)
    assert kept.tried("mixed") == {0.1: 0.25, 0.2: 0.75}
    assert {method: kept.rate(method) for method in METHODS} == {
        "sft": 0.3,
        "outcome": 0.2,
        "staged": 0.1,
        "mixed": 0.2,
    }


def test_no_study_before_all_rates_are_tried(tmp_path):
    tuned(tmp_path)
    (tmp_path / f"cell-{tuning(SMALL)[-1].key}.json").unlink()
    with pytest.raises(ConfigError, match="no rate yet"):
        next(studied(Cells(tmp_path, SMALL), ["arithmetic"], [0]))
    assert report(Cells(tmp_path, SMALL), quick=True)["rate"] == {}


def test_the_first_seed_is_complete_before_the_second_begins(tmp_path):
    tuned(tmp_path)
    cells = list(studied(Cells(tmp_path, SMALL), ["arithmetic", "programs"], [0, 1]))
    assert [cell.seed for cell in cells] == [0] * 16 + [1] * 16
    assert [cell.method for cell in cells[:4]] == ["mixed", "staged", "outcome", "sft"]  # sft learns what mixed did
    assert {cell.model for cell in cells if cell.task == "programs"} == {"xs", "wide", "qwen3"}
    assert {cell.rate for cell in cells if cell.method == "staged"} == {0.1}


def test_only_complete_rows_at_their_own_rates_are_compared(tmp_path):
    tuned(tmp_path)
    wins = {"sft": 4, "outcome": 1, "staged": 2, "mixed": 3}
    for cell in studied(Cells(tmp_path, SMALL), ["arithmetic", "reading"], [0, 1]):
        if (cell.task, cell.seed, cell.method) != ("reading", 1, "sft"):
            keep(tmp_path, cell, wins[cell.method] + (cell.task == "reading" and cell.method == "outcome"))
    keep(tmp_path, Cell("arithmetic", "xs", "mixed", 0, 0.1), 0)  # not its rate
    found = report(Cells(tmp_path, SMALL), quick=True)
    assert found["seeds"] == {"arithmetic": [0, 1], "reading": [0]}
    assert found["r3_minus_outcome"] == {"arithmetic": 0.5, "reading": 0.25}
    assert found["r3_minus_outcome_mean"][0] == 0.375  # of the seed that both have played
    assert found["accuracy"]["arithmetic"]["staged"][0] == 0.5
    assert average(Cells(tmp_path, SMALL), {}) == []


def test_the_third_configurations_have_their_shapes():
    weights = {model: untrained(SMALL, "programs", model, 0).parameters() for model in ("xs", "wide", "qwen3")}
    assert len({*weights.values()}) == 3 and weights["wide"] > 1.5 * weights["xs"]


def test_a_base_is_made_once(tmp_path):
    first = base_of(SMALL, "arithmetic", "xs", 0, folder=tmp_path)
    (made,) = (tmp_path / "runs").iterdir()
    before = made.stat().st_mtime_ns
    again, other = (base_of(SMALL, "arithmetic", "xs", seed, folder=tmp_path) for seed in (0, 1))
    assert made.stat().st_mtime_ns == before and len(list((tmp_path / "runs").iterdir())) == 2
    assert torch.equal(first.model.lm_head.weight, again.model.lm_head.weight)
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)


def test_gains_are_told_by_depth(tmp_path):
    """Outcome solves all of depth 2 and nothing else; mixed solves everything."""
    tuned(tmp_path)
    tasks = panel(SMALL, "arithmetic", "test")
    depths = [len(task.spec["chain"]) for task in tasks]
    assert len({*depths}) > 1
    for cell in studied(Cells(tmp_path, SMALL), ["arithmetic"], [0, 1]):
        keep(tmp_path, cell, 4)
        if cell.method == "outcome":
            path = tmp_path / f"cell-{cell.key}.json"
            row = json.loads(path.read_text(encoding="utf-8"))
            row["outcomes"] = "".join("1" if depth == min(depths) else "0" for depth in depths)
            path.write_text(json.dumps(row), encoding="utf-8")
    found = report(Cells(tmp_path, SMALL), quick=True)["r3_minus_outcome_by_depth"]["arithmetic"]
    assert {depth: gain[0] for depth, gain in found.items()} == {
        str(depth): float(depth != min(depths)) for depth in sorted({*depths})
    }


def test_a_change_of_a_panel_is_another_protocol(monkeypatch):
    before = SMALL.digest
    monkeypatch.setitem(PANELS, "reading", replace(PANELS["reading"], tokens=1))
    assert SMALL.digest != before


def test_seeds_that_chose_the_rates_are_not_studied(tmp_path):
    with pytest.raises(SystemExit, match="choose the rates"):
        r3.main(["--folder", str(tmp_path), "--seeds", "0", "100"])


def test_a_practice_ends_with_the_iteration_that_uses_up_its_environment_steps(tmp_path):
    """Names of the trainer that the study replaces: a renamed one would leave it without a budget."""
    world = Lookup()
    policy = make_policy([world], seed=0)
    verbs = Budgeted({world.name: world}, slots=16, rl_train=TrainConfig(lr=1e-4))
    verbs.most = 1
    config = RLConfig(iterations=5, tasks_per_iteration=2, group_size=2)
    preset = build_preset(GRPOConfig(practice=config))
    tasks = world.tasks("train", "seen")[:4]
    with Run(tmp_path, verbs, seed=0) as run:
        with run.train_rl(policy, RLSpec("grpo", config, preset.objective), [task.id for task in tasks]) as practice:
            numbers = []
            for number in practice.iterations():
                numbers.append(number)
                practice.rollout(practice.next_starts(tasks))
                assert not practice.should_evaluate()
    assert numbers == [1] and verbs.env_steps > 1
