"""The numbers of a run as a table and as curves."""

from __future__ import annotations

import builtins

import pytest

from evolvent.errors import ConfigError, MissingExtra
from evolvent.store.metrics import MetricsTable, read_metrics


def row(arm, kind, stage, step, **numbers):
    return {"arm": arm, "kind": kind, "stage": stage, "step": step, "round": 0, "time_s": 1.0, **numbers}


ROWS = MetricsTable(
    [
        row("base", "fit", "one", 1, loss=3.0),
        row("base", "fit", "one", 2, loss=2.0),
        row("base", "stage", "one", 0, loss=99.0),
        row("evolve", "fit", "two", 1, loss=1.0),
        row("base", "fit", "three", 1, loss=1.5),
        row("base", "fit", "three", 2, loss=1.25),
        row("base", "fit", "three", 2, loss=1.125),  # of a step that was done again
        row("base", "evaluate", "four", 1, round=3, success=0.5),
        row("base", "evaluate", "four", 2, round=3, success=0.25),
        row("base", "fit", "five", 1, loss=None, note="words", ok=True),
    ]
)


def test_stages_follow_each_other_and_steps_done_again_count_once():
    assert ROWS.curves("loss") == {
        "base": [(1.0, 3.0), (2.0, 2.0), (3.0, 1.5), (4.0, 1.125)],
        "evolve": [(1.0, 1.0)],
    }


def test_an_evaluation_is_a_point_at_its_round_and_kinds_are_told_apart():
    assert ROWS.curves("success") == {"base": [(3.0, 0.25)]}
    both = MetricsTable([*ROWS, row("base", "fit", "six", 1, success=1.0)])
    assert both.curves("success") == {"base evaluate": [(3.0, 0.25)], "base fit": [(1.0, 1.0)]}


def test_a_figure_has_a_panel_a_number_and_a_curve_an_arm():
    pytest.importorskip("matplotlib")
    figure = ROWS.plot("loss", "success")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "success"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["step", "round"]
    drawn = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in figure.axes[0].lines}
    assert drawn == ROWS.curves("loss")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in ROWS.plot().axes] == ["success", "loss"], "those of the usual that there are"


def test_what_cannot_be_drawn_is_named(monkeypatch):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=r"got los. Did you mean 'loss'"):
        ROWS.plot("los")
    with pytest.raises(ConfigError, match=r"got note. Logged so far: loss, success"):
        ROWS.plot("note")
    with pytest.raises(ConfigError, match=r"got success. Logged so far: nothing"):
        MetricsTable().plot()
    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *more: (_ for _ in ()).throw(ImportError(name)) if "matplotlib" in name else real(name, *more),
    )
    with pytest.raises(MissingExtra, match=r"evolvent\[plot\]"):
        ROWS.plot("loss")


def test_rows_of_one_kind(tmp_path):
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"kind": "fit", "loss": 1}\n{"kind": "stage"}\n', encoding="utf-8")
    assert read_metrics(tmp_path, "fit") == [{"kind": "fit", "loss": 1}]
