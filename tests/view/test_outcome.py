"""What is compared with what, and what is withheld."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evolvent.view import page
from evolvent.view.data import Episode, ReportData, Result, RunInfo
from evolvent.view.outcome import build_headline, build_panels, compare_kinds, select_pairs


def result(arm: str, number: int, wins: list[float | None], *, world: str = "maze", tier: str = "evo") -> Result:
    outcomes = tuple((f"{world}{tier}{k}", f"kind {k % 5}", win) for k, win in enumerate(wins))
    known = [win for win in wins if win is not None]
    errors = len(wins) - len(known)
    mean = None if errors else sum(known) / len(known)
    return Result("s", arm, number, world, tier, "test", len(wins), mean, None, None, errors, 0, 0, outcomes)


def report_of(*results: Result) -> ReportData:
    return ReportData(info=RunInfo(seed="0", arms=("evolve", "control")), results=results)


def episode(task: str, arm: str, number: int, success: bool | None, world: str = "maze") -> Episode:
    return Episode(task, world, "evo", "k", arm, number, success, "world", "", (), "", ())


BASE = result("base", 0, [0.0] * 20)
HALF = result("evolve", 1, [1.0, 0.0] * 10)
ALL = result("evolve", 2, [1.0] * 20)
CONTROL = result("control", 1, [0.0, 0.0] * 10)


def test_arms_are_compared_at_the_last_round_both_have() -> None:
    (panel,) = build_panels(report_of(ALL, CONTROL, BASE, HALF))
    assert panel.last is ALL
    assert panel.compared is HALF
    assert panel.difference is not None
    assert panel.difference.mean == 0.5
    assert panel.base is BASE


def test_a_control_evaluated_once_is_compared_with_the_last_round() -> None:
    (panel,) = build_panels(report_of(HALF, replace(ALL, round=3), replace(CONTROL, round=9)))
    assert panel.compared is not None
    assert panel.compared.round == 3


def test_an_episode_with_an_error_withholds_the_difference() -> None:
    assert build_panels(report_of(HALF, replace(CONTROL, errors=1)))[0].difference is None
    data = report_of(BASE, HALF, result("control", 1, [None, *[0.0] * 19]))
    (panel,) = build_panels(data)
    assert panel.difference is None
    assert panel.withheld == "withheld: episodes with errors"
    assert build_headline(data, [panel]).control is None
    assert "cannot be compared (withheld: episodes with errors)" in build_headline(data, [panel]).sentence


def test_different_tasks_are_never_paired() -> None:
    (panel,) = build_panels(report_of(HALF, replace(CONTROL, outcomes=CONTROL.outcomes[:-1])))
    assert panel.difference is None
    assert panel.withheld == "the arms played different tasks"


def test_the_headline_is_the_plain_mean_over_held_out_panels() -> None:
    data = report_of(
        result("evolve", 1, [1.0] * 10, world="a"),
        result("control", 1, [0.0] * 10, world="a"),
        result("evolve", 1, [1.0, 0.0] * 20, world="b"),
        result("control", 1, [0.0, 1.0] * 20, world="b"),
        result("evolve", 1, [0.0] * 10, tier="seen"),
        result("control", 1, [1.0] * 10, tier="seen"),
    )
    head = build_headline(data, build_panels(data))
    assert head.tiers == ("evo",)
    assert (head.main, head.control) == (0.75, 0.25)
    assert head.difference is not None
    assert head.difference.mean == 0.5


@pytest.mark.parametrize(
    ("evolve", "control", "says"),
    [
        ([1.0, 0.0] * 10, [0.0, 0.0] * 10, "evolve ended 50.0 points above its train-matched control (95 % interval +"),
        ([0.0] * 20, [1.0, 0.0] * 10, "evolve ended 50.0 points below its train-matched control"),
        ([1.0, 0.0] * 10, [1.0, 0.0] * 10, "evolve ended level with its train-matched control"),
    ],
)
def test_the_sentence_says_exploration_and_one_seed(
    evolve: list[float | None], control: list[float | None], says: str
) -> None:
    data = report_of(result("evolve", 1, evolve), result("control", 1, control))
    sentence = build_headline(data, build_panels(data)).sentence
    assert sentence.startswith("Exploration on one seed: ")
    assert says in sentence
    assert "improve" not in sentence


def test_an_interval_across_zero_shows_no_difference() -> None:
    data = report_of(result("evolve", 1, [1.0, 0.0] * 10), result("control", 1, [0.0, 1.0] * 9 + [0.0, 0.0]))
    assert "no difference is shown" in build_headline(data, build_panels(data)).sentence


def test_tiers_come_nearest_first_and_unknown_ones_last() -> None:
    data = report_of(*(result("base", 0, [1.0], tier=tier) for tier in ("zz", "longer", "seen", "combo", "evo")))
    assert [panel.tier for panel in build_panels(data)] == ["seen", "evo", "combo", "longer", "zz"]


def test_kinds_count_wins_and_start_with_the_largest_gap() -> None:
    evolve = result("evolve", 1, [1.0 if k % 5 == 3 else 0.0 for k in range(20)])
    (panel,) = build_panels(report_of(BASE, evolve, CONTROL))
    rows = compare_kinds(panel)
    assert rows[0].kind == "kind 3"
    assert rows[0].rates == {"base": (0.0, 4), "main": (4.0, 4), "control": (0.0, 4)}


def test_pairs_take_turns_and_use_the_last_round() -> None:
    data = ReportData(
        examples=(
            episode("t1", "base", 0, False),
            episode("t2", "base", 0, False),
            episode("t3", "base", 0, True),
            episode("t4", "base", 0, None),
            episode("t9", "base", 0, True),
            episode("t1", "evolve", 1, False),
            episode("t1", "evolve", 2, True),
            episode("t2", "evolve", 2, True),
            episode("t3", "evolve", 2, False),
            episode("t4", "evolve", 2, True),
            episode("t1", "control", 2, False),
        )
    )
    shown = select_pairs(data)
    assert [(pair.after.task, pair.change) for pair in shown] == [
        ("t1", "solved now"),
        ("t3", "lost"),
        ("t4", "not scored"),
        ("t2", "solved now"),
    ]
    assert {pair.after.round for pair in shown} == {2}
    assert len(select_pairs(data, max_pairs=2)) == 2


def test_a_measurement_is_told_alone() -> None:
    info = RunInfo(seed="0", arms=("base",))
    data = ReportData(info=info, results=(result("base", 0, [1.0, 0.0, 0.0, 1.0]),))
    headline = build_headline(data, build_panels(data))
    assert headline.is_measurement and headline.sentence == "The policy succeeds in 50.0 % of 4 tasks."
    withheld = ReportData(info=info, results=(result("base", 0, [None, 1.0]),))
    sentence = build_headline(withheld, build_panels(withheld)).sentence
    assert sentence == "1 of 2 tasks could not be scored, so no success is given."
    nothing = ReportData(info=info)
    assert build_headline(nothing, build_panels(nothing)).sentence == "Nothing was measured yet."
    assert not build_headline(report_of(BASE), build_panels(report_of(BASE))).is_measurement


def test_the_report_of_a_measurement_names_no_other_arm() -> None:
    info = RunInfo(name="measured", seed="0", arms=("base",))
    text = page(ReportData(info=info, results=(result("base", 0, [1.0, 0.0]),)))
    assert "The policy succeeds in 50.0" in text and "Success, 95 % interval" in text
    assert not any(word in text for word in ("Control<", "After cloning", "after cloning", "Success by round"))


def test_run_without_a_control_arm_is_not_said_to_await_one() -> None:
    data = ReportData(
        info=RunInfo(seed="0", arms=("return_text",)), results=(result("return_text", 1, [1.0, 0.0] * 5),)
    )
    assert build_headline(data, build_panels(data)).sentence == (
        "return_text succeeds in 50.0 % of 10 tasks. This run has no control arm to compare return_text with."
    )
    shown = page(data)
    assert ">Base, after cloning<" in shown
    assert "train-matched" not in shown and "not evaluated yet" not in shown and ">Control<" not in shown
    assert "train-matched" in page(report_of(HALF, CONTROL)) and ">Control<" in page(report_of(HALF, CONTROL))
    nothing = replace(data, results=())
    assert build_headline(nothing, []).sentence.startswith("Nothing was measured yet. This run has no control arm")
