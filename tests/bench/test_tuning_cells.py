"""The study of tuning methods: what a seed learns and is measured on, how rates are tried, rows that are not mixed."""

import json
from dataclasses import replace
from math import log10

import pytest

from benchmarks.tuning import __main__ as tuning
from benchmarks.tuning.__main__ import PROTOCOL, QUICK, Rows, complete, merit, report, tried
from benchmarks.tuning.cell import Cell, _shown, _told, _worded, panel
from evolvent.errors import ConfigError

SMALL = replace(QUICK, shown=20, told=10, namings=2, seeds=(1, 2))


def row(cell: Cell, *, success: float, loss: float = 1.0):
    count = len(panel(SMALL, cell.split))
    won = round(success * count)
    return {
        "key": cell.key,
        "optimizer": cell.optimizer,
        "tuning": cell.tuning,
        "rate": cell.rate,
        "seed": cell.seed,
        "split": cell.split,
        "success": won / count,
        "outcomes": "1" * won + "0" * (count - won),
        "loss": [2.0, loss],
        "tokens": 300,
        "fed": 900,
        "updates": 3,
        "weights": 10,
        "cpu_train_s": 1.0,
        "cpu_play_s": 1.0,
        "note": "",
        "base": "b",
        "sources": "s",
        "base_tokens": 2000,
        "base_solved": True,
    }


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path, SMALL)


def test_what_is_tuned_on_was_not_cloned_and_what_is_measured_is_in_words_of_its_own():
    shown, told, worded = _shown(SMALL, 3), _told(SMALL, 3), _worded(SMALL.worlds)["lookup-worded"]
    assert len(shown) == 20 and len(told) == 20  # ten tasks, each in two tellings
    own = [worded.original_task(task).id for task in told]
    assert len(set(own)) == 10 and not {task.id for task in shown} & set(own)
    forms = {split: {task.spec["form"] for task in panel(SMALL, split)} for split in ("dev", "test")}
    assert not forms["dev"] & forms["test"]
    assert not {task.spec["form"] for task in told} & (forms["dev"] | forms["test"])
    assert [task.id for task in _told(SMALL, 3)] == [task.id for task in told]
    assert {task.id for task in _shown(SMALL, 4)} != {task.id for task in shown}


@pytest.mark.parametrize(
    ("best", "tries"), [(0.0, (-1, 0, 1)), (-1.0, (-2, -1, 0, 1)), (1.0, (-1, 0, 1, 2)), (2.0, (-1, 0, 1, 2))]
)
def test_rates_are_tried_beyond_the_end_that_was_best_and_once_only(rows, best, tries):
    centre, asked = SMALL.centre("adamw", "lora"), []

    def train(cell):
        power = round(2 * log10(cell.rate / centre))
        asked.append(power)
        return row(cell, success=0.0, loss=abs(power - best))

    rows.row = train
    assert [round(one["rate"] / centre, 3) for one in tried(rows, "adamw", "lora")] == [
        round(10 ** (power / 2), 3) for power in tries
    ]
    assert sorted(asked) == list(tries)


def test_a_rate_is_chosen_by_success_then_by_loss():
    cell = Cell("adamw", "full", 1.0, 0, "dev")
    fine, better = row(cell, success=1.0, loss=0.5), row(cell, success=1.0, loss=0.4)
    diverged = {**row(cell, success=0.0), "loss": None}
    assert max([fine, better, row(cell, success=0.4, loss=0.1)], key=merit) is better
    assert min([fine, diverged, better], key=merit) is diverged


def test_rows_of_another_protocol_are_not_mixed_and_rows_of_another_base_are_refused(tmp_path, rows, monkeypatch):
    with pytest.raises(ConfigError, match="another protocol"):
        Rows(tmp_path, replace(SMALL, tokens=301))
    cell = Cell("adamw", "full", 1.0, 1, "test")
    rows.kept[cell.key] = row(cell, success=1.0)
    start = type("Start", (), {"digest": "c"})()
    monkeypatch.setattr(tuning, "ready", lambda *_: start)
    with pytest.raises(ConfigError, match="not that of its rows"):
        rows.base(1)


def test_the_report_drops_seeds_that_are_not_complete(rows, monkeypatch):
    monkeypatch.setattr(tuning, "refused", lambda rows: {})
    for optimizer, name in tuning.pairs(SMALL):
        for power, success in ((-1, 0.0), (0, 1.0), (1, 0.0)):
            rate = SMALL.centre(optimizer, name) * SMALL.step**power
            cell = Cell(optimizer, name, rate, SMALL.tuning_seed, "dev")
            rows.kept[cell.key] = row(cell, success=success)
        for seed in SMALL.seeds:
            cell = Cell(optimizer, name, SMALL.centre(optimizer, name), seed, "test")
            rows.kept[cell.key] = row(cell, success=0.5)
    for seed in SMALL.seeds:
        cell = Cell("none", "base", 0.0, seed, "test")
        rows.kept[cell.key] = row(cell, success=0.25)
    found = report(rows, quick=True)
    assert found["seeds"] == [1, 2] and found["effort"]["lomo"]["lora"] == 3 and not found["at_end"]
    assert found["success"]["adamw"]["full"][0] == 0.5 and found["over_base"]["adamw"]["full"][0] == 0.25
    assert found["over_full_adamw"]["lomo"]["prompt"] == [0.0, 0.0, 0.0]
    json.dumps(found, allow_nan=False)
    del rows.kept[Cell("lomo", "lora", SMALL.centre("lomo", "lora"), 2, "test").key]
    rates = {pair: SMALL.centre(*pair) for pair in tuning.pairs(SMALL)}
    assert complete(rows, rates) == [1]
    assert report(rows, quick=True)["dropped_seeds"] == [2]


def test_the_frozen_protocol_has_every_cell_of_the_issue():
    assert len(list(tuning.pairs(PROTOCOL))) == 6 * 5
    described = PROTOCOL.described()
    assert PROTOCOL.digest() == replace(PROTOCOL).digest() != replace(PROTOCOL, dev=41).digest()
    assert set(described["panels"]) == {"dev", "test"}
