"""The study of reverse curricula: how a rate is chosen, which cells are compared, figures of rows that were made up."""

import json
from dataclasses import replace

import pytest

from benchmarks import r3
from benchmarks.r3 import QUICK, Cells, average, report, studied, tuning
from benchmarks.r3_cells import METHODS, Cell, base_of, panel, untrained
from evolvent.errors import ConfigError

SMALL = replace(
    QUICK, rates=(0.1, 0.2), imitated=(0.3, 0.4), tuned=("arithmetic", "entailment"), development=(100, 101)
)


def keep(folder, cell, won):
    count = len(panel(SMALL, cell.task, "test"))
    made = {
        **{name: getattr(cell, name) for name in Cell.__dataclass_fields__}, "digest": SMALL.digest,
        "outcomes": "1" * won + "0" * (count - won), "accuracy": won / count, "base": 0.25, "sources": "s",
        "env_steps": 60, "replayed": 0, "tokens_generated": 1, "tokens_computed": 2, "tokens_trained": 30,
        "cpu_train_s": 1.0,
    }  # fmt: skip
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
        "sft": 0.3, "outcome": 0.2, "staged": 0.1, "mixed": 0.2,
    }  # fmt: skip


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


def test_the_third_configurations_have_their_shapes_and_the_bases_learn_each_demonstration_once():
    weights = {model: untrained(SMALL, "programs", model, 0).parameters() for model in ("xs", "wide", "qwen3")}
    assert len({*weights.values()}) == 3 and weights["wide"] > 1.5 * weights["xs"]
    never = replace(SMALL, solved=2.0)
    policy, learned = base_of(never, "arithmetic", "xs", 0)
    again, more = base_of(replace(never, shown=2 * SMALL.shown), "arithmetic", "xs", 0)
    assert learned < 24 * 30 and 1.5 * learned < more < 2.5 * learned
    assert policy.parameters() == again.parameters()


def test_a_base_must_solve_more_than_a_guess():
    assert SMALL.enough("arithmetic") == 0.5 and SMALL.enough("reading") == pytest.approx(0.625)


def test_seeds_that_chose_the_rates_are_not_studied(tmp_path):
    with pytest.raises(SystemExit, match="choose the rates"):
        r3.main(["--folder", str(tmp_path), "--seeds", "0", "100"])
