"""The study of credit: areas and steps by hand, rates chosen as it says, figures of rows that were made up."""

import json
from pathlib import Path

import pytest

from benchmarks.credit.__main__ import INNERS, report
from benchmarks.credit.cell import PLACES, WAYS, Cell, Protocol, area, curve_of, panels, steps_to
from benchmarks.credit.schedule import STUDIED, Asked, Cells, wanted
from evolvent.errors import ConfigError

PROTOCOL = Protocol(rates=(0.1, 0.2), development=(100,), seeds=(0, 1, 2), panel=4)
CURVE = [[0, 0.1, -1.0], [100, 0.3, 0.0], [200, 0.5, 1.0]]


def test_a_curve_holds_what_was_taken_before_each_iteration() -> None:
    rows = [{"env_steps": 90, "success": 0.5, "return": 1.0}, {"env_steps": 200, "success": 0.7, "return": 2.0}]
    assert curve_of(rows) == [[0, 0.5, 1.0], [90, 0.7, 2.0]]


@pytest.mark.parametrize(("budget", "expected"), [(200, 0.3), (150, 0.25), (400, 0.4)])
def test_area_is_the_mean_height_inside_the_budget(budget: int, expected: float) -> None:
    assert area(CURVE, measure="success", budget=budget) == pytest.approx(expected)


def test_area_of_the_other_measure_and_of_nothing() -> None:
    assert area(CURVE, measure="return", budget=200) == pytest.approx(0.0)
    with pytest.raises(ConfigError, match="no curve"):
        area([], measure="success", budget=200)


def test_steps_to_a_threshold_ask_for_three_iterations() -> None:
    assert steps_to(CURVE, 0.3, measure="success", budget=500) == (200, True)
    assert steps_to(CURVE, 0.31, measure="success", budget=500) == (500, False)
    assert steps_to(CURVE[:2], 0.0, measure="success", budget=500) == (500, False)


def row(folder: Path, cell: Cell, height: float, start: str = "here") -> None:
    """Keep a made-up row whose curve is level."""
    world, tasks = cell.world, panels(cell.world, PROTOCOL.panel)[1]
    ends = {
        name: {"success": [height] * len(own), "return": [height] * len(own)}
        for name, own in (("final", tasks.final), ("swapped", tasks.swapped))
    }
    made = {
        "world": world,
        "seed": cell.seed,
        "method": cell.method,
        "rate": cell.rate,
        "digest": PROTOCOL.digest,
        "curve": [[at, height, height] for at in (0, 10, 20)],
        "budget": 100,
        "note": "",
        "start": start,
        "sources": "made up",
        **ends,
        **dict.fromkeys(("tokens_generated", "tokens_computed", "tokens_trained", "env_steps"), 1),
        "cpu_train_s": 1.0,
        "cpu_play_s": 1.0,
    }
    (folder / f"cell-{cell.key}.json").write_text(json.dumps(made), encoding="utf-8")


def test_the_rate_of_the_best_area_is_played_by_all_seeds(tmp_path: Path) -> None:
    asked = Asked(tmp_path, ["kitchen"], ["poad", "ppo", "poad0.5"], (0, 1), ("study",))
    first = wanted(Cells(tmp_path, PROTOCOL), asked, "tuning")
    assert {(cell.method, cell.rate) for cell in first} == {("poad", 0.1), ("poad", 0.2), ("ppo", 0.1), ("ppo", 0.2)}
    assert wanted(Cells(tmp_path, PROTOCOL), asked, "study") == []
    for cell in first[:2]:
        row(tmp_path, cell, 0.2 if cell.rate == 0.2 else 0.1)
    study = wanted(Cells(tmp_path, PROTOCOL), asked, "study")
    assert study == [Cell("kitchen", 0, "poad", 0.2), Cell("kitchen", 1, "poad", 0.2)]
    inner = wanted(Cells(tmp_path, PROTOCOL), asked, "inner")
    assert {(cell.method, cell.rate) for cell in inner} == {("poad0.5", 0.2)}


def test_rows_of_another_protocol_are_not_mixed_in(tmp_path: Path) -> None:
    row(tmp_path, Cell("kitchen", 100, "poad", 0.1), 0.1)
    assert len(Cells(tmp_path, PROTOCOL).kept) == 1
    assert Cells(tmp_path, Protocol(panel=4)).kept == {}


def test_figures_say_who_wins_and_who_does_not(tmp_path: Path) -> None:
    heights = {"poad": 0.5, "ntpo": 0.12, "ppo": 0.1}
    for name in STUDIED:
        for rate in PROTOCOL.rates:
            row(tmp_path, Cell("kitchen", 100, name, rate), rate)
        for seed in PROTOCOL.seeds:
            place = "elsewhere" if (name, seed) == ("ppo", 1) else "here"
            row(tmp_path, Cell("kitchen", seed, name, 0.2), heights.get(name, 0.1) + 0.01 * seed, place)
    for at, (inner, name) in enumerate(INNERS.items()):
        for seed in PROTOCOL.seeds if inner < 1 else ():
            row(tmp_path, Cell("kitchen", seed, name, 0.2), 0.4 - 0.05 * at)
    found = report(Cells(tmp_path, PROTOCOL))
    assert found["auc"]["kitchen"]["poad"][0] == pytest.approx(0.51)
    assert found["poad_over"]["kitchen"]["ppo"] == pytest.approx([0.4, 0.4, 0.4])
    assert (found["poad_wins"], found["poad_wins_in"], found["fails"]) == (1, ["kitchen"], [])
    assert found["steps_ratio"]["kitchen"] == {"ppo": 0.2, "ntpo": 0.2}
    assert found["reached"]["kitchen"]["poad"] == 3
    assert found["reached"]["kitchen"]["grpo"] == 0
    assert found["one_start"]["kitchen"] == {**dict.fromkeys(STUDIED, 3), "ppo": 2}
    assert found["inner_discount_monotone"] is True
    row(tmp_path, Cell("kitchen", 2, "ntpo", 0.2), 0.9)
    worse = report(Cells(tmp_path, PROTOCOL))
    assert (worse["poad_wins"], worse["fails"]) == (0, ["kitchen"])


def test_methods_differ_in_their_credit_alone() -> None:
    place = PLACES["kitchen"]
    own, naive, whole = (WAYS[name].config(PROTOCOL, place).model_dump() for name in ("poad", "ntpo", "ppo"))
    assert {name for name in own if own[name] != naive[name]} == {"token_gamma"}
    assert naive["token_gamma"] == place.gamma
    assert {name for name in own if name in whole and own[name] != whole[name]} == set()


@pytest.mark.parametrize("world", ["kitchen", "household"])
def test_nouns_of_generalisation_are_never_practised(world: str) -> None:
    tasks = panels(world, 20)[1]
    known = {word for task in tasks.practised for word in task.kind.split(" like ")[0].split()}
    noun = {task.kind.split()[1] for task in tasks.swapped}
    assert noun
    assert not noun & known
    assert not {task.id for task in tasks.spoken} & {task.id for task in [*tasks.final, *tasks.swapped]}
