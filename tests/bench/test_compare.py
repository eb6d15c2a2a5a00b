"""Two results paired task by task: by hand, the same run twice, studies with seeds, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.bench.compare import ComparedResult, compare_results, read_result
from evolvent.bench.results import ArmResult
from evolvent.bench.study import run_study
from evolvent.errors import ConfigError, CorruptRecord, NonFinite
from evolvent.run import Evaluation, Run
from tests.bench.studies import answers, outcomes, played, study


class Policy:
    """Weights that stand for the marks they earn."""

    def __init__(self, marks):
        self.marks = marks


class Verbs:
    """A toy: a fit gives the next policy of a list, an evaluation plays the panels of `studies`."""

    def __init__(self, *marks):
        self.marks = list(marks)

    def fit(self, policy, data, stage, **options):
        return Policy(self.marks.pop(0))

    def evaluate(self, policy, stage, *, split=None):
        rows = []
        for panel, tasks in outcomes(policy.marks).items():
            world, _, tier = panel.partition("/")
            found = tuple((f"{split or 'test'} {task}", kind, success) for task, kind, success in tasks)
            rows.append(Evaluation(world, tier, split or "test", len(found), None, None, None, None, 0, 0, 0, found))
        return rows, []

    def save(self, policy, folder):
        folder.mkdir(parents=True)

    def origin(self, policy):
        return policy.marks

    def usage(self):
        return {}


def run(folder, *rounds, base="000000000", control=None, arms=("evolve", "control")):
    """A run whose arms earn these marks, measured by a real `Run` on dev and on test."""
    with Run(folder, Verbs(base, *rounds, *([control] if control else []))) as at:
        policy = at.fit(Policy("start"), [], "clone")
        at.evaluate(policy, 0)
        for index, _ in enumerate(rounds, 1):
            policy = at.fit(policy, [], f"learn {index}")
            at.evaluate(policy, index, split="dev")
            at.evaluate(policy, index)
        if control:
            other = at.arm("control")
            other.evaluate(other.fit(Policy("start"), [], "control"), 1)
    (folder / "run.json").write_text(json.dumps({"arms": list(arms)}))
    return str(folder)


def test_two_runs_by_hand(tmp_path):
    a = run(tmp_path / "a", "100000000", "111100110")
    b = run(tmp_path / "b", "110000011")
    found = compare_results(read_result(a), read_result(b))
    rows = {(row.world, row.tier): row for row in found.rows}
    assert list(rows) == [("lookup", "evo"), ("lookup", "combo"), ("maze", "evo")]
    assert [(row.tasks, row.a, row.b) for row in rows.values()] == [
        (4, 1.0, 0.5),
        (2, 0.0, 0.0),
        (3, pytest.approx(2 / 3), pytest.approx(2 / 3)),
    ]
    assert [row.difference.mean for row in rows.values()] == [0.5, 0.0, pytest.approx(0.0)]
    whole = found.overall
    assert (whole.tasks, whole.a, whole.b) == (9, pytest.approx(5 / 9), pytest.approx(7 / 18))
    assert whole.difference.mean == pytest.approx(1 / 6)
    assert found.notes[0] == f"{a} is the arm evolve, round 2, split test"


def test_the_same_run_twice_is_all_zeros(tmp_path):
    side = read_result(run(tmp_path / "a", "101010101"))
    found = compare_results(side, side)
    for row in (*found.rows, found.overall):
        assert (row.difference.mean, row.difference.low, row.difference.high) == (0, 0, 0)
        assert (row.only_a, row.only_b, row.withheld) == (0, 0, "")


def test_arms_and_rounds_are_named(tmp_path):
    folder = run(tmp_path / "a: b@1", "100000000", "111111111", control="110000000")
    rates = {
        address: compare_results(read_result(folder + address), read_result(folder + ":base")).overall.a
        for address in ("", ":evolve", ":evolve@1", "@1", ":control", ":base", ":base@0")
    }
    one, all_, control = pytest.approx(1 / 12), 1.0, pytest.approx(1 / 6)
    assert rates == {
        "": all_,
        ":evolve": all_,
        ":evolve@1": one,
        "@1": one,
        ":control": control,
        ":base": 0,
        ":base@0": 0,
    }


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (":evolv", "unknown arm 'evolv' (did you mean 'evolve'?)"),
        (":evolve@7", "arm evolve does not have round 7"),
        (":evolve@0", "arm evolve does not have round 0 (known: 1; round 0 is the arm base)"),
    ],
)
def test_what_a_run_does_not_hold(tmp_path, address, said):
    with pytest.raises(ConfigError) as error:
        read_result(run(tmp_path / "a", "111111111") + address)
    assert said in str(error.value)


def test_the_arm_of_a_run_that_names_none(tmp_path):
    folder = run(tmp_path / "a", "111111111", base="100000000", arms=("base",))
    assert "is the arm evolve, round 1" in read_result(folder).notes[0]
    only = run(tmp_path / "b", base="100000000", arms=())
    assert "is the arm base, round 0" in read_result(only).notes[0]


def test_no_folder_no_results_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        read_result(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"the folder has neither results\.jsonl"):
        read_result(str(tmp_path))
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no evaluation yet"):
        read_result(str(tmp_path))
    (tmp_path / "results.jsonl").write_text('{"arm": "x"}\n')
    with pytest.raises(CorruptRecord, match="broken line"):
        read_result(str(tmp_path))


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = run(tmp_path / "a", "111111111")
    before = read_result(folder)
    with (tmp_path / "a" / "results.jsonl").open("a") as file:
        file.write('{"arm": "evolve", "rou')
    assert read_result(folder) == before


def side(name, panels):
    return ComparedResult(
        name, {panel: {task: (kind, (won,)) for task, kind, won in rows} for panel, rows in panels.items()}
    )


def test_tasks_of_one_side_only_are_counted_and_not_compared():
    a = side("a", {"w/evo": [("1", "k", True), ("2", "l", True), ("3", "m", False)], "x/evo": [("9", "k", True)]})
    b = side("b", {"w/evo": [("2", "l", False), ("3", "m", False), ("4", "k", True)], "y/evo": [("8", "k", True)]})
    found = compare_results(a, b)
    counts = [(row.world, row.tasks, row.only_a, row.only_b, row.withheld) for row in found.rows]
    assert counts == [("w", 2, 1, 1, ""), ("x", 0, 1, 0, "in A only"), ("y", 0, 0, 1, "in B only")]
    assert (found.overall.tasks, found.overall.a, found.overall.b) == (2, 0.5, 0.0)


def test_unscored_episodes_withhold_the_panel_and_the_mean():
    a = side("a", {"w/evo": [("1", "k", None), ("2", "l", True)], "x/evo": [("3", "k", True), ("4", "l", True)]})
    b = side("b", {"w/evo": [("1", "k", True), ("2", "l", True)], "x/evo": [("3", "k", True), ("4", "l", False)]})
    found = compare_results(a, b)
    assert [(row.withheld, row.difference is None) for row in found.rows] == [
        ("withheld: 1 episode not scored", True),
        ("", False),
    ]
    assert (found.overall.withheld, found.overall.a) == ("withheld: 1 episode not scored", None)


@pytest.mark.parametrize(
    ("panels", "why"),
    [
        ({"maze/evo": [("1", "k", True)]}, "other worlds (w and maze)"),
        ({"w/combo": [("1", "k", True)]}, "other tiers (w/evo and w/combo)"),
        (
            {"w/evo": [("2", "k", True)]},
            "both played w/evo, but no task of it is the same: another version of the world",
        ),
    ],
)
def test_nothing_in_common_says_why(panels, why):
    with pytest.raises(ConfigError) as error:
        compare_results(side("a", {"w/evo": [("1", "k", True)]}), side("b", panels))
    assert why in str(error.value)


def test_one_task_has_a_difference_without_an_interval():
    found = compare_results(side("a", {"w/evo": [("1", "k", True)]}), side("b", {"w/evo": [("1", "k", False)]}))
    assert found.overall.difference.mean == 1.0 and np.isnan(found.overall.difference.low)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 4)), min_size=2, max_size=30))
def test_swapping_the_sides_turns_the_sign(rows):
    a = side("a", {"w/evo": [(str(n), f"k{kind}", won) for n, (won, _, kind) in enumerate(rows)]})
    b = side("b", {"w/evo": [(str(n), f"k{kind}", won) for n, (_, won, kind) in enumerate(rows)]})
    one, other = compare_results(a, b).overall, compare_results(b, a).overall
    assert (one.a, one.b, one.difference.mean) == (other.b, other.a, pytest.approx(-other.difference.mean))
    assert one.difference.low == pytest.approx(-other.difference.high)


# ---------------------------------------------------------------- studies


def test_arms_of_a_study_with_all_their_seeds(tmp_path):
    run_study(study(), tmp_path)
    found = compare_results(read_result(f"{tmp_path}:evolve"), read_result(f"{tmp_path}:control"))
    assert found.seeds == tuple(range(6))
    # evolve 111111000, control 100000000 with every seed
    assert [(row.a, row.b) for row in found.rows] == [(1.0, 0.25), (1.0, 0.0), (0.0, 0.0)]
    assert found.overall.difference.mean == pytest.approx((0.75 + 1.0 + 0.0) / 3)
    one = compare_results(read_result(f"{tmp_path}:evolve@2"), read_result(f"{tmp_path}:control@3"))
    assert one.seeds == () and one.overall.a == pytest.approx(2 / 3)


def test_a_study_with_one_of_its_own_seeds_as_a_run(tmp_path):
    run_study(study(), tmp_path)
    with pytest.raises(ConfigError) as error:
        compare_results(read_result(f"{tmp_path}:evolve"), read_result(f"{tmp_path}:control@3"))
    assert f"{tmp_path}:evolve has 6 seeds" in str(error.value)
    assert f"Choose one seed, such as {tmp_path}:evolve@0" in str(error.value)


def test_seeds_that_failed_or_are_in_one_study_only_are_left_out_and_said(tmp_path):
    def play(seat):
        if (seat.arm, seat.seed) == ("control", 1):
            raise NonFinite("loss is NaN")
        return answers(seat)

    run_study(study(play), tmp_path / "a")
    run_study(study(seeds=(0, 2, 9)), tmp_path / "b")
    found = compare_results(read_result(f"{tmp_path}/a:control"), read_result(f"{tmp_path}/b:evolve"))
    assert found.seeds == (0, 2)
    assert f"{tmp_path}/a:control failed on seed 1: loss is NaN" in found.notes
    assert "seeds 3, 4, 5, 9 are in one of the two only and left out" in found.notes
    run_study(study(seeds=(20,)), tmp_path / "c")
    with pytest.raises(ConfigError, match="the two results share no seed"):
        compare_results(read_result(f"{tmp_path}/a:control"), read_result(f"{tmp_path}/c:control"))


def test_a_seed_that_lacks_a_panel_is_left_out_and_said(tmp_path):
    def play(seat):
        whole = played("1" * 9)
        short = replace(whole, outcomes={"maze/evo": whole.outcomes["maze/evo"]})
        return short if seat.seed == 4 else whole

    run_study(study(play), tmp_path)
    found = read_result(f"{tmp_path}:evolve")
    assert found.seeds == (0, 1, 2, 3, 5)
    assert found.notes == (f"{tmp_path}:evolve lacks a panel on seed 4: the seed is left out",)


@pytest.mark.parametrize(
    ("address", "said"),
    [("", "a study has several arms"), (":evolv", "did you mean 'evolve'"), (":evolve@9", "no seed has finished")],
)
def test_what_a_study_does_not_hold(tmp_path, address, said):
    run_study(study(seeds=(0, 1)), tmp_path)
    with pytest.raises(ConfigError, match=said):
        read_result(f"{tmp_path}{address}")


def test_seed_effects_widen_the_interval(tmp_path):
    def play(seat):
        lucky = seat.arm == "evolve" and seat.seed % 2
        return ArmResult(outcomes("1" * 9 if lucky else "0" * 9), tokens={"computed": 1})

    run_study(study(play), tmp_path)
    found = compare_results(read_result(f"{tmp_path}:evolve"), read_result(f"{tmp_path}:control")).overall.difference
    assert found.mean == 0.5 and found.low < 0.1 and found.high > 0.9
