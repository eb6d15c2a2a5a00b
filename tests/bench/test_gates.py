"""Gates of a study: a figure outside its bounds withholds the verdict, and every report names the figure."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from evolvent.bench.results import ArmFailure, ArmResult
from evolvent.bench.study import Arm, Gate, freeze_study, read_study, run_study
from evolvent.bench.verdict import check_gate, read_summary, summarize_study, to_json
from evolvent.errors import ConfigError
from evolvent.view.study import study_page, study_table
from tests.bench.studies import played, study

AUC = Gate("AUC of the judge", "evolve", "auc", minimum=0.75)
BAND = Gate("success of the base", "base", "success", minimum=0.005, maximum=0.2)
MARKS = {"base": "100000000", "evolve": "111110111", "control": "100000010"}


def results(aucs=(0.8,) * 6):
    """Six seeds; the arm `evolve` reports these AUCs, and without an AUC no note."""
    played_arms = {(arm, seed): played(marks) for arm, marks in MARKS.items() for seed in range(6)}
    for seed, auc in enumerate(aucs):
        played_arms["evolve", seed] = played(MARKS["evolve"], notes={} if auc is None else {"auc": auc})
    return played_arms


def test_passed_gates_leave_the_verdict():
    plain = summarize_study(study(), results())
    gated = summarize_study(study(gates=(AUC,)), results())
    assert plain.verdict == gated.verdict == "improves"
    assert (plain.gates, plain.gate_passed) == ((), None) and gated.gate_passed is True
    assert gated.gates[0].value == pytest.approx(0.8) and gated.gates[0].by_seed == dict.fromkeys(range(6), 0.8)


def test_a_failed_gate_withholds_the_verdict_and_is_named_with_its_number():
    aucs = (0.5, 0.9, 0.6, 0.7, 0.8, 0.6)
    summary = summarize_study(study(gates=(AUC,)), results(aucs))
    assert summary.gate_passed is False and summary.gates[0].value == pytest.approx(np.mean(aucs))
    assert summary.verdict == (
        "no verdict: gate AUC of the judge failed: auc of evolve is 0.683, expected at least 0.75"
    )
    assert "is 0.683" in summary.sentence and "exploration, not a result" in summary.sentence
    ungated = summarize_study(study(), results(aucs))
    assert ungated.verdict == "improves" and summary.difference.by_seed == ungated.difference.by_seed


def test_success_of_an_arm_is_its_primary_number():
    """The base solves (1/4 + 0) / 2 of lookup and none of maze: 1/16."""
    passed = summarize_study(study(gates=(BAND,)), results())
    assert passed.gates[0].value == pytest.approx(1 / 16) and passed.verdict == "improves"
    sparse = replace(BAND, maximum=0.05)
    assert summarize_study(study(gates=(sparse,)), results()).verdict == (
        "no verdict: gate success of the base failed: success of base is 0.0625, expected 0.005 to 0.05"
    )


@pytest.mark.parametrize(
    ("aucs", "told"),
    [
        ((0.9, None, 0.9, None, 0.9, 0.9), "auc of evolve is 0.9, not reported by seeds 1, 3"),
        ((None,) * 6, "auc of evolve was not measured, not reported by seeds 0, 1, 2, 3, 4, 5"),
        (("high", True, 0.9, 0.9, 0.9, 0.9), "not reported by seeds 0, 1"),
    ],
)
def test_a_figure_that_a_seed_does_not_report_fails_its_gate(aucs, told):
    summary = summarize_study(study(gates=(AUC,)), results(aucs))
    assert summary.gate_passed is False and told in summary.verdict


def test_seeds_that_failed_or_are_missing_are_no_part_of_a_gate():
    some = results() | {("evolve", 3): ArmFailure("NonFinite", "loss is NaN")}
    del some["evolve", 4]
    summary = summarize_study(study(gates=(AUC,)), some)
    assert summary.gate_passed is True and sorted(summary.gates[0].by_seed) == [0, 1, 2, 5]
    assert summary.verdict.startswith("no verdict: evolve failed on seed 3")
    assert summarize_study(study(gates=(AUC,)), {}).gate_passed is False, "nothing was measured"


def test_a_bound_is_part_of_the_band():
    for value, passed in ((0.2, True), (0.8, True), (0.19, False), (0.81, False)):
        assert check_gate(Gate("band", "evolve", "rate", 0.2, 0.8), {0: value}).passed is passed
    exact = dict(enumerate((0.1, 0.2, 0.3)))  # sums to .6000000000000001
    assert check_gate(Gate("most", "evolve", "rate", maximum=0.2), exact).passed


def test_gates_are_part_of_the_digest_and_no_gates_are_not(tmp_path):
    assert "gates" not in study().describe() and study(gates=()).digest() == study().digest()
    digests = {
        study(gates=gates).digest() for gates in ((), (AUC,), (BAND,), (AUC, BAND), (replace(AUC, minimum=0.7),))
    }
    assert len(digests) == 5
    plan = study(gates=(AUC, BAND))
    freeze_study(plan, tmp_path)
    assert read_study(tmp_path) == plan
    with pytest.raises(ConfigError, match=r"gates: .* -> absent"):
        freeze_study(study(), tmp_path)


@pytest.mark.parametrize(
    "gates",
    [
        (replace(AUC, arm="judge"),),
        (AUC, AUC),
        (replace(AUC, name=""),),
        (replace(AUC, figure=""),),
        (replace(AUC, minimum=None),),
        (replace(BAND, minimum=0.3),),
        (replace(AUC, minimum=float("nan")),),
    ],
)
def test_a_gate_that_cannot_be_checked_is_refused(gates):
    with pytest.raises(ConfigError, match=r"gates\."):
        study(gates=gates)


def test_reports_name_the_gate_and_its_number(tmp_path):
    def play(arm_run):
        return played(MARKS[arm_run.arm], notes={"auc": 0.6 + 0.01 * arm_run.seed})

    arms = tuple(Arm(name, "why", play) for name in MARKS)
    run_study(study(arms=arms, gates=(AUC, BAND)), tmp_path)
    summary = json.loads(json.dumps(to_json(read_summary(tmp_path)), allow_nan=False))
    assert summary["gate_passed"] is False and summary["verdict"].startswith("no verdict: gate AUC of the judge failed")
    assert [gate["passed"] for gate in summary["gates"]] == [False, True]
    screen = io.StringIO()
    Console(file=screen, width=100).print(study_table(summary))
    assert "gate AUC of the judge failed: auc of evolve is 0.625, expected at least 0.75" in screen.getvalue()
    page = study_page(summary)
    assert "failed, so there is no verdict" in page and "0.625" in page
    assert "Gates" not in study_page(to_json(summarize_study(study(), results())))


def test_a_result_of_another_kind_has_no_figure():
    nested = {key: ArmResult(one.outcomes, one.tokens, notes={"auc": [0.9]}) for key, one in results().items()}
    assert summarize_study(study(gates=(AUC,)), nested).gate_passed is False
