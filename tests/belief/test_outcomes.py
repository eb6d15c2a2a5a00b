"""Outcome tables and replays, by hand and against what a detector really did."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.belief.answers import AnswerBelief
from evolvent.belief.comparison import (
    ScoredRun,
    annotations_to_scores,
    replay_threshold,
    risk_coverage,
    scores_to_annotations,
    sweep_thresholds,
)
from evolvent.belief.outcomes import CELLS, tabulate_outcomes, tabulate_trajectories
from evolvent.belief.stopping import Agreement, Decided, EntropyBelow
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import BatchMismatch, ConfigError, ErrorRecord, NonFinite
from evolvent.stats import wilson_interval
from evolvent.trajectory import Annotation, AnnotationTarget, Score, Step, Task, Trajectory


def test_the_four_cells_by_hand():
    table = tabulate_outcomes(
        [True, True, True, False, False],
        [True, True, False, True, False],
        [4, 6, 1, 10, 9],
        distance=[4.0, 8.0, 1.0, 10.0, 9.0],
        generated=[40, 60, 10, 100, 90],
    )
    assert [getattr(table, cell) for cell in CELLS] == [2, 1, 1, 1]
    assert (table.episodes, table.unknown, table.stops) == (5, 0, 3)
    assert table.rate("right_stop") == wilson_interval(2, 5) and table.rate("false_stop") == wilson_interval(1, 5)
    assert table.false_among_stops == wilson_interval(1, 3)
    assert {name: mean and mean.mean for name, mean in table.means.items()} == {
        "steps": 6.0,
        "steps_right": 5.0,
        "distance": 6.4,
        "distance_right": 6.0,
        "generated": 60.0,
    }
    told = json.loads(json.dumps(table.as_dict(), allow_nan=False))
    assert told["rates"]["withheld"] == pytest.approx([0.2, *(wilson_interval(1, 5).low, wilson_interval(1, 5).high)])


def test_without_a_truth_there_is_no_rate():
    table = tabulate_outcomes([True, False], [None, None], [1, 2])
    assert (table.unknown, table.stops, table.right_stop) == (2, 1, 0)
    assert all(table.rate(cell) is None for cell in CELLS) and table.false_among_stops is None
    assert table.as_dict()["rates"] == dict.fromkeys(CELLS) and table.means["steps_right"] is None
    partly = tabulate_outcomes([True, True, False], [None, False, True], [1, 2, 3])
    assert partly.rate("false_stop") == wilson_interval(1, 2) and partly.false_among_stops == wilson_interval(1, 1)


def test_a_collapsed_belief_on_the_wrong_place_is_a_false_stop():
    """The agent takes its reward for believed convergence; the table does not."""
    sure = BeliefSummary(entropy=np.array([0.0]))
    ceased = bool(EntropyBelow(0.1)(sure, []).stop[0])
    assert tabulate_outcomes([ceased], [False], [3]).false_stop == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([True, False, None])), min_size=1, max_size=30))
def test_cells_sum_to_the_episodes(rows):
    table = tabulate_outcomes([row[0] for row in rows], [row[1] for row in rows], [1.0] * len(rows))
    assert sum(getattr(table, cell) for cell in CELLS) + table.unknown == table.episodes == len(rows)


def test_what_does_not_fit_is_refused():
    with pytest.raises(BatchMismatch, match="episodes and outcomes must have the same number, 1 or more"):
        tabulate_outcomes([True], [True, False], [1])
    with pytest.raises(BatchMismatch):
        tabulate_outcomes([], [], [])
    with pytest.raises(NonFinite, match="distance"):
        tabulate_outcomes([True], [True], [1], distance=[math.nan])


def episode(number: int, ended: str, success: bool | None, steps: int) -> Trajectory:
    error = ErrorRecord("BeliefCollapsed", "no particle is left") if ended == "error" else None
    return Trajectory(
        str(number),
        Task("world", "1", {"n": number}),
        (Step("seen", "done"),) * steps,
        ended_by=ended,
        score=Score(0.0, 0.0, success),
        error=error,
    )


def test_recorded_episodes():
    table = tabulate_trajectories(
        [
            episode(0, "agent", True, 3),
            episode(1, "agent", False, 1),
            episode(2, "horizon", False, 9),
            episode(3, "world", True, 5),
            episode(4, "error", None, 2),
        ]
    )
    assert [getattr(table, cell) for cell in CELLS] == [1, 1, 1, 1]
    assert (table.unknown, table.stops) == (1, 2)  # an error is never a stop
    assert table.means["steps"].mean == 4.0 and table.means["steps_right"].mean == 3.0


# ---------------------------------------------------------------- replay


def test_a_threshold_stops_at_the_first_look_below_it():
    run = ScoredRun(
        scores=[math.inf, 3.0, math.nan, 2.0, 1.0],
        correct=[False, False, False, True, True],
        distance=[1, 2, 3, 4, 5],
        generated=[10, 20, 30, 40, 50],
    )
    assert [run.find_stop(each) for each in (4.0, 3.0, 2.5, 1.0)] == [1, 3, 3, None]
    assert run.find_stop(1.0, inclusive=True) == 4
    tables = dict(sweep_thresholds([run, run], [4.0, 2.5, 0.5]))
    assert (tables[4.0].false_stop, tables[2.5].right_stop, tables[0.5].withheld) == (2, 2, 2)
    assert tables[2.5].means["steps"].mean == 4 and tables[2.5].means["distance_right"].mean == 4
    assert tables[0.5].means["generated"].mean == 50 and tables[0.5].means["steps_right"] is None
    with pytest.raises(BatchMismatch):
        ScoredRun(scores=[1.0], correct=[True, False])
    with pytest.raises(BatchMismatch, match="only some"):
        replay_threshold([run, ScoredRun(scores=[1.0], correct=[True])], 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=15),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.5, 0.6, 2 / 3, 0.7, 0.9, 1.0]),
)
def test_a_replay_stops_where_the_detector_did(cast, least, patience, q):
    """Scores of one share, replayed at another one, are what a detector of that share does."""

    def played(detector):
        belief, history = AnswerBelief(len(cast)), []
        for answer in cast:
            belief = belief.add(answer)
            history.append(detector(belief.summarize(), history))
        return history

    stored = played(Agreement(0.99, least, patience))
    truths = [False] * len(cast)
    run = ScoredRun(scores=[float(each.score[0]) for each in stored], correct=truths)
    real = [bool(each.stop[0]) for each in played(Agreement(q, least, patience))]
    assert run.find_stop(1 - q, inclusive=True) == (real.index(True) if any(real) else None)
    decided = played(Decided())
    scores = ScoredRun(scores=[float(each.score[0]) for each in decided], correct=truths)
    first = [bool(each.stop[0]) for each in decided]
    assert scores.find_stop(0) == (first.index(True) if any(first) else None)


def test_risk_grows_with_coverage_by_hand():
    curve = risk_coverage([0.1, 0.2, 0.2, 0.9], [True, False, True, False])
    assert curve.threshold.tolist() == [0.1, 0.2, 0.9]
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0] and curve.risk.tolist() == pytest.approx([0, 1 / 3, 0.5])
    # the tie in either order: 0, 1/2, 1/3, 1/2 or 0, 0, 1/3, 1/2
    assert curve.area == pytest.approx(((0 + 1 / 2 + 1 / 3 + 1 / 2) + (0 + 0 + 1 / 3 + 1 / 2)) / 8)
    assert (curve.n, risk_coverage([0.5, 0.1], [None, True]).n) == (4, 1)
    assert risk_coverage([0.5], [None]) is None
    with pytest.raises(NonFinite):
        risk_coverage([math.nan], [True])
    with pytest.raises(BatchMismatch):
        risk_coverage([0.5], [])


def test_scores_are_kept_as_annotations():
    said = [EntropyBelow(1.0)(BeliefSummary(entropy=np.array([2.0, score])), []) for score in (0.5, 0.25)]
    rows = scores_to_annotations("run/1", "stop/entropy", said, row=1)
    assert [(each.target, each.value) for each in rows] == [
        (AnnotationTarget(step=0), 0.5),
        (AnnotationTarget(step=1), 0.25),
    ]
    others = [
        Annotation("run/2", "stop/entropy", AnnotationTarget(step=0), 9.0),
        Annotation("run/1", "value", AnnotationTarget(step=0), 8.0),
    ]
    assert annotations_to_scores([*others, *rows], "run/1", "stop/entropy", looks=3).tolist() == [0.5, 0.25, math.inf]
    with pytest.raises(ConfigError, match="does not belong to any observation"):
        annotations_to_scores(rows, "run/1", "stop/entropy", looks=1)
