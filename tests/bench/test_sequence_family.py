"""Decision Transformer over ten seeds: the comparison by hand, its gate, and that kept cells hold the figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.reporting import RESULTS
from benchmarks.sequence.__main__ import Protocol
from benchmarks.sequence.family import BEST, SEEDS, compare_family, format_family
from benchmarks.study import read_cells


def build_rows(name, cloned, conditioned):
    """Builds rows of one task, a seed for each score, with two episodes around it."""
    cost = {"cpu_train_s": 3.0, "cpu_play_s": 0.6}
    return [
        {"data": name, "method": method, "seed": seed, "scores": [score - 1, score + 1], **cost}
        for method, scores in (("bc", cloned), ("dt", conditioned))
        for seed, score in enumerate(scores)
    ]


def test_a_task_is_above_where_its_whole_interval_is():
    rows = build_rows("hopper-replay", [10, 20, 30, 20, 10, 30], [40, 60, 50, 55, 45, 50])
    rows += build_rows("pendulum-replay", [10, 20, 30, 20, 10, 30], [40, 5, 50, 15, 0, 20])
    figures = compare_family(rows)
    assert figures["above"] == ["hopper-replay"] and figures["judged"] == ["pendulum-replay", "hopper-replay"]
    mean, low, high = figures["tasks"]["hopper-replay"]["difference"]
    assert mean == pytest.approx(30.0) and 0 < low < mean < high
    assert figures["tasks"]["pendulum-replay"]["difference"][1] < 0
    assert figures["gate_passed"] is False, "three tasks were not played"
    assert figures["cpu_hours"] == pytest.approx(24 * 3.6 / 3600, abs=1e-3)
    assert format_family(figures)[-1] == "DT above cloning in 1 of 5 tasks, 2 judged"


def test_a_task_without_room_above_cloning_is_not_judged():
    """Of the best, 2 in the maze of pieces, cloning earns .925 on average; .9 is the most that leaves room."""
    figures = compare_family(build_rows("stitching-pieces", [1.8, 1.9], [2.0, 2.0]))
    gate = figures["tasks"]["stitching-pieces"]["gate"]
    assert gate["value"] == pytest.approx(0.925) and not gate["passed"]
    assert figures["judged"] == figures["above"] == [] and "not judged" in format_family(figures)[0]
    assert compare_family(build_rows("stitching-pieces", [1.7, 1.9], [2.0, 2.0]))["judged"] == ["stitching-pieces"]


def test_only_seeds_that_both_have_played_are_compared():
    rows = build_rows("stitching-whole", [1, 2, 3], [10, 10, 10])
    figures = compare_family([row for row in rows if (row["method"], row["seed"]) != ("dt", 1)])
    assert figures["tasks"]["stitching-whole"]["seeds"] == [0, 2]
    assert figures["tasks"]["stitching-whole"]["difference"][0] == pytest.approx(8.0)


def test_the_kept_figures_are_those_of_the_kept_rows():
    kept = json.loads((RESULTS / "sequence.json").read_text(encoding="utf-8"))["family"]
    rows = read_cells(RESULTS / "sequence", Protocol().digest)
    assert kept == json.loads(json.dumps(compare_family(rows)))
    for name in BEST:
        task = kept["tasks"][name]
        assert len(task["seeds"]) >= 3 and task["seeds"] == list(SEEDS[: len(task["seeds"])])
        assert task["difference"][0] == pytest.approx(np.mean(task["dt"]) - np.mean(task["bc"]), abs=2e-3)
