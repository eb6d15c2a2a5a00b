"""The verdict on results worked by hand: means, differences, when there is one and which, and what is withheld."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.bench.results import ArmFailure, ArmResult
from evolvent.bench.study import Arm, PrimaryComparison, run_study
from evolvent.bench.verdict import read_summary, summarize_study, to_json
from evolvent.errors import ConfigError
from tests.bench.studies import PANELS, answers, outcomes, played, study

KINDS = 10  # of each panel below, two tasks each


def results(rates, *, seeds=range(6), panels=("lookup/evo", "lookup/combo", "maze/evo", "maze/combo"), number=0):
    """Arms that win each task by chance: arm -> rate. Every seed of an arm wins a little more or less often."""
    found, rng = {}, np.random.default_rng(number)
    for arm, rate in rates.items():
        for seed in seeds:
            wins = {panel: rng.random(2 * KINDS) < rate + 0.01 * (seed % 3) for panel in panels}
            rows = {
                panel: [(f"{panel}-{n}", f"k{n // 2}", bool(won[n])) for n in range(2 * KINDS)]
                for panel, won in wins.items()
            }
            found[arm, seed] = ArmResult(rows, tokens={"computed": 100 + seed}, cpu_s=36.0)
    return found


RATES = {"base": 0.2, "evolve": 0.8, "control": 0.3}


def test_means_and_differences_are_worked_by_hand():
    """Worlds count alike: lookup has both tiers, maze only evo."""
    marks = {"base": "000000000", "evolve": "111010110", "control": "100000010"}
    found = summarize_study(study(), {(arm, seed): played(word) for arm, word in marks.items() for seed in range(6)})
    # evolve: lookup (3/4 + 1/2) / 2 = 5/8, maze 2/3; control: lookup (1/4 + 0) / 2 = 1/8, maze 1/3
    means = {arm.name: arm.interval.mean for arm in found.arms}
    assert means == {
        "base": 0,
        "evolve": pytest.approx((5 / 8 + 2 / 3) / 2),
        "control": pytest.approx((1 / 8 + 1 / 3) / 2),
    }
    assert found.difference.interval.mean == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found.difference.by_seed == {seed: pytest.approx(5 / 12) for seed in range(6)}
    assert found.p == 2 / 2**6
    rates = {(rate.arm, rate.world, rate.tier): rate.interval.mean for rate in found.rates}
    assert rates["evolve", "lookup", "evo"] == 3 / 4 and rates["control", "maze", "evo"] == pytest.approx(1 / 3)
    apart = {(d.arm, d.against, d.world, d.tier): d.interval.mean for d in found.differences}
    assert apart == {
        ("evolve", "control", "", ""): pytest.approx(5 / 12),
        ("evolve", "base", "", ""): pytest.approx((5 / 8 + 2 / 3) / 2),
        ("base", "control", "", ""): pytest.approx(-(1 / 8 + 1 / 3) / 2),
        ("evolve", "control", "lookup", ""): pytest.approx(1 / 2),
        ("evolve", "control", "maze", ""): pytest.approx(1 / 3),
        ("evolve", "control", "lookup", "evo"): 1 / 2,
        ("evolve", "control", "lookup", "combo"): 1 / 2,
        ("evolve", "control", "maze", "evo"): pytest.approx(1 / 3),
        ("evolve", "base", "lookup", ""): pytest.approx(5 / 8),
        ("evolve", "base", "maze", ""): pytest.approx(2 / 3),
        ("evolve", "base", "lookup", "evo"): 3 / 4,
        ("evolve", "base", "lookup", "combo"): 1 / 2,
        ("evolve", "base", "maze", "evo"): pytest.approx(2 / 3),
    }


def test_other_tiers_do_not_move_the_primary_number():
    plain = results(RATES)
    more = results({arm: 1 - rate for arm, rate in RATES.items()}, panels=("lookup/seen", "maze/longer"))
    joined = {key: replace(one, outcomes={**one.outcomes, **more[key].outcomes}) for key, one in plain.items()}
    one, other = summarize_study(study(), plain), summarize_study(study(), joined)
    assert (one.difference, one.verdict, one.p) == (other.difference, other.verdict, other.p)
    assert [(r.world, r.tier) for r in other.rates if r.arm == "base"] == [
        ("lookup", "seen"),
        ("lookup", "evo"),
        ("lookup", "combo"),
        ("maze", "evo"),
        ("maze", "combo"),
        ("maze", "longer"),
    ]


def test_a_clear_difference_improves():
    found = summarize_study(study(), results(RATES))
    assert found.verdict == "improves"
    assert found.difference.interval.low > 0.05
    assert "evolve improves on control: evolve minus control is +" in found.sentence
    assert "6 seeds" in found.sentence and "threshold of 5 points" in found.sentence


def test_below_the_threshold_is_no_difference_shown():
    found = summarize_study(study(threshold=0.9), results(RATES))
    assert found.verdict == "no difference shown"
    assert "below the frozen threshold of 90 points" in found.sentence


def test_a_mean_of_exactly_the_threshold_reaches_it():
    marks = {"base": "0" * 9, "evolve": "1" * 9, "control": "0" * 9}
    same = {(arm, seed): played(word) for arm, word in marks.items() for seed in range(6)}
    assert summarize_study(study(threshold=1.0), same).verdict == "improves"


def test_no_difference_and_a_loss_are_not_improvements():
    level = summarize_study(study(), results({"base": 0.2, "evolve": 0.5, "control": 0.5}))
    assert level.verdict == "no difference shown" and "the interval reaches 0 or below" in level.sentence
    worse = summarize_study(study(), results({"base": 0.2, "evolve": 0.2, "control": 0.8}))
    assert worse.verdict == "no difference shown"
    assert "the whole interval lies below 0: evolve is worse" in worse.sentence


def test_few_seeds_have_no_verdict():
    found = summarize_study(study(seeds=range(5)), results(RATES, seeds=range(5)))
    assert found.verdict == "no verdict: 5 complete seeds, at least 6 are needed"
    assert found.p == 0.0625 and "exploration, not a result" in found.sentence


@pytest.mark.parametrize("arm", ["evolve", "control"])
def test_a_failed_seed_withholds_the_verdict_and_enters_no_mean(arm):
    whole = results(RATES, seeds=range(8))
    failed = whole | {(arm, 3): ArmFailure("NonFinite", "loss is NaN")}
    found = summarize_study(study(seeds=range(8)), failed)
    assert found.verdict == f"no verdict: {arm} failed on seed 3"
    assert [(one.arm, one.seed, one.why) for one in found.unfinished] == [(arm, 3, "NonFinite: loss is NaN")]
    assert sorted(found.difference.by_seed) == [0, 1, 2, 4, 5, 6, 7]
    kept = summarize_study(study(seeds=range(8)), whole).difference.by_seed
    assert found.difference.by_seed == {seed: value for seed, value in kept.items() if seed != 3}
    (row,) = [row for row in found.arms if row.name == arm]
    assert (row.finished, row.failed, row.tokens, row.cpu_s) == (7, 1, {"computed": 725}, 252.0)


def test_every_reason_is_told():
    some = results(RATES, seeds=range(6))
    some |= {("evolve", 1): ArmFailure("NoSpace", "full"), ("evolve", 4): ArmFailure("NoSpace", "full")}
    del some["control", 0]
    short = some["control", 5]
    some["control", 5] = replace(short, outcomes={"lookup/evo": short.outcomes["lookup/evo"]})
    found = summarize_study(study(), some)
    assert found.verdict == (
        "no verdict: evolve failed on seeds 1, 4; control is not played yet on seed 0; "
        "control lacks a panel on seed 5; 2 complete seeds, at least 6 are needed"
    )
    assert ("control", 0, "not played yet") in [(one.arm, one.seed, one.why) for one in found.unfinished]


def test_a_failed_arm_beside_the_two_is_listed_and_withholds_nothing():
    some = results(RATES) | {("base", 2): ArmFailure("NonFinite", "NaN")}
    found = summarize_study(study(), some)
    assert found.verdict == "improves" and len(found.unfinished) == 1


def test_nothing_played_yet():
    found = summarize_study(study(), {})
    assert found.verdict.startswith("no verdict: evolve is not played yet on seeds 0, 1, 2, 3, 4, 5")
    assert "no panel of the tiers evo, combo was played" in found.verdict
    assert (found.difference, found.p, found.room, found.rates) == (None, None, None, ())
    assert json.loads(json.dumps(to_json(found), allow_nan=False))["verdict"] == found.verdict


def test_a_panel_of_one_task_has_no_interval_and_no_verdict():
    one = {"w/evo": 1}
    same = {
        (arm, seed): ArmResult(outcomes("1" if arm == "evolve" else "0", one), tokens={"computed": 1})
        for arm in RATES
        for seed in range(6)
    }
    found = summarize_study(study(), same)
    assert isnan(found.difference.interval.low)
    assert found.verdict == "no verdict: a panel has only one task: there is no interval"
    assert to_json(found)["difference"]["interval"]["low"] is None


def test_the_way_to_the_upper_arm():
    arms = (*study().arms, Arm("best", "experts on all tasks", answers))
    plan = study(arms=arms, primary=PrimaryComparison("evolve", "control", upper="best"))
    marks = {"base": "000000000", "evolve": "110010100", "control": "100000000", "best": "111111110"}
    some = {(arm, seed): played(word) for arm, word in marks.items() for seed in range(6)}
    # control (1/8 + 0) / 2, evolve (1/2 + 1/3) / 2, best (1 + 2/3) / 2
    assert summarize_study(plan, some).room == pytest.approx((5 / 12 - 1 / 16) / (5 / 6 - 1 / 16))
    none = some | {("best", seed): played("0" * 9) for seed in range(6)}
    assert summarize_study(plan, none).room is None
    assert summarize_study(study(), {key: one for key, one in some.items() if key[0] != "best"}).room is None


def test_other_tasks_are_refused():
    some = results(RATES)
    rows = dict(some["control", 2].outcomes)
    rows["maze/evo"] = [("other", "k", True), *rows["maze/evo"][1:]]
    some["control", 2] = replace(some["control", 2], outcomes=rows)
    with pytest.raises(ConfigError, match="control was evaluated on maze/evo with different tasks"):
        summarize_study(study(), some)


@settings(max_examples=5, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_results_and_tasks_does_not_matter(random):
    some = results(RATES, panels=("lookup/evo", "maze/combo"))
    keys = list(some)
    random.shuffle(keys)
    turned = {}
    for key in keys:
        panels = list(some[key].outcomes)
        random.shuffle(panels)
        rows = {panel: random.sample(some[key].outcomes[panel], 2 * KINDS) for panel in panels}
        turned[key] = replace(some[key], outcomes=rows)
    assert summarize_study(study(), turned) == summarize_study(study(), some)


def test_swapping_arm_and_control_turns_the_sign():
    some = results(RATES)
    one = summarize_study(study(), some).difference
    other = summarize_study(study(primary=PrimaryComparison("control", "evolve")), some).difference
    assert other.by_seed == {seed: -value for seed, value in one.by_seed.items()}
    assert other.interval.mean == pytest.approx(-one.interval.mean)


def test_more_than_22_seeds_have_no_exact_p():
    found = summarize_study(study(seeds=range(23)), results(RATES, seeds=range(23)))
    assert (found.p, found.verdict) == (None, "improves")
    assert "sign-flip" not in found.sentence


def test_a_folder_is_summarised_as_it_was_run(tmp_path):
    plan = study()
    kept = run_study(plan, tmp_path)
    assert read_summary(tmp_path) == summarize_study(plan, kept)
    assert set(PANELS) == {f"{rate.world}/{rate.tier}" for rate in read_summary(tmp_path).rates}
    text = json.dumps(to_json(read_summary(tmp_path)), allow_nan=False)
    assert json.loads(text)["digest"] == plan.digest()


def test_intervals_of_two_seeds_are_wide_and_stay_where_rates_can_be():
    found = summarize_study(study(seeds=(0, 1)), results(RATES, seeds=(0, 1)))
    ends = [one.interval for one in (*found.rates, *found.arms)]
    assert all(0 <= one.low <= one.mean <= one.high <= 1 for one in ends)
    assert all(-1 <= one.interval.low <= one.interval.high <= 1 for one in found.differences)
    assert found.difference.interval.low < 0 < found.difference.interval.high
