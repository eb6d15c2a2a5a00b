"""The benchmark of votes that end early: what an answer is, and replays against looking vote by vote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.stopping.__main__ import detector_of, looks_of, of_task, replay, report, show
from benchmarks.stopping.votes import Cell, Protocol, expression, votes_of
from evolvent.belief.answers import AnswerBelief

NAMES = (
    "decided",
    "agreement:0.6:least=2",
    "agreement:0.9:least=4",
    "agreement:1:least=4 or scattered:0.5:least=3",
    "first 1",
    "first 3",
    "first 9",
)


def made(seed: int, *, panel: int = 12, votes: int = 9) -> dict:
    """A cell of random votes: answer 0 is right, and some problems are harder than others."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(2 * panel):
        shares = rng.dirichlet([3.0, 1.0, 1.0, 0.5])
        answers = (rng.choice(4, size=votes, p=shares) - 1).tolist()
        rows.append(
            {
                "id": str(number),
                "kind": str(number % 4),
                "answers": answers,
                "right": [int(each == 0) for each in answers],
                "generated": rng.integers(5, 20, votes).tolist(),
            }
        )
    return {
        "task": "problems",
        "temperature": 0.7,
        "seed": seed,
        "digest": "d",
        "votes": votes,
        "cpu_s": 1.0,
        "base": {"cpu_s": 2.0},
        "dev": rows[:panel],
        "test": rows[panel:],
    }


def by_hand(row: dict, name: str) -> tuple[bool, int, int]:
    """(right, tokens, votes) of one problem, one vote after the other."""
    belief, history = AnswerBelief(len(row["answers"])), []
    for vote in row["answers"]:
        belief = belief.add(None if vote < 0 else vote)
        if name.startswith("first"):
            if belief.cast == int(name.split()[1]):
                break
            continue
        history.append(detector_of(name)(belief.summarize(), history))
        if history[-1].stop[0]:
            break
    return belief.leader == 0, sum(row["generated"][: belief.cast]), belief.cast


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_of_all_at_once_is_that_of_each_vote_by_vote(name):
    cells = [made(seed) for seed in range(3)]
    found = replay(looks_of(cells, "test"), name)
    assert found.right.shape == (3, 12)
    for seed, cell in enumerate(cells):
        for at, row in enumerate(cell["test"]):
            own = bool(found.right[seed, at]), int(found.used[seed, at]), int(found.votes[seed, at])
            assert own == by_hand(row, name)
            assert found.ceased[seed, at] == (own[2] < 9)


def test_the_report_of_made_votes():
    cells = [made(seed) for seed in range(3)]
    found = report(cells, Protocol())
    json.dumps(found, allow_nan=False)
    own = found["tasks"]["problems-0.7"]
    decided = own["at_equal_accuracy"]["decided"]
    assert decided["gained"][0] == 0 and decided["changed"] == 0 and decided["saved"][0] > 0
    assert own["curve"]["decided"]["accuracy"] == own["majority"] == own["curve"]["first 9"]["accuracy"]
    assert own["curve"]["first 9"]["saved"] == 0
    chosen = own["at_equal_accuracy"]["agreement or scattered"]
    assert (
        found["tokens_saved_at_equal_accuracy"]
        == chosen["saved"][0]
        == pytest.approx(own["curve"][chosen["detector"]]["saved"], abs=1e-4)
    )
    outcome = own["outcomes"]["decided"]
    assert (
        outcome["episodes"]
        == 36
        == sum(outcome[cell] for cell in ("right_stop", "false_stop", "withheld", "unfinished"))
    )
    assert found["cpu_s"] == {"policies": 6.0, "votes": 3.0}
    show(found)


def test_the_detector_is_chosen_on_dev():
    """On dev the first vote is always right, and on test never."""
    cell = made(0)
    for row in cell["dev"]:
        row |= {"answers": [0] * 9, "right": [1] * 9}
    for row in cell["test"]:
        row |= {"answers": [1, 1] + [0] * 7, "right": [0, 0] + [1] * 7}
    found = of_task([cell])["at_equal_accuracy"]
    assert found["first"]["detector"] == "first 1" and found["first"]["gained"][0] == -1
    assert found["agreement"]["detector"].endswith("least=2") and found["agreement"]["gained"][0] == -1


SAME = [
    ([4, 9, 10, 13], ["13 - 10", "9 - 3", "6 * 4"], ["10 + 9", "19 - 13", "4 * 6"]),  # 9 - (13 - 10) = 10 + 9 - 13
    ([2, 3, 4], ["2 + 3", "5 + 4"], ["4 + 3 = 7 ( left: 2 7 )", "7 + 2"]),
    ([12, 3, 2], ["12 / 3", "4 / 2"], ["3 * 2", "12 / 6"]),
    ([6, 6, 2], ["6 + 6", "12 * 2"], ["6 + 6", "2 * 12"]),
]
OTHER = [
    ([4, 2, 3], ["4 - 2", "3 + 2"], ["4 + 2", "6 - 3"]),
    ([2, 3, 4], ["2 + 3", "5 * 4"], ["3 * 4", "12 + 2"]),
    ([6, 6, 2], ["6 + 6", "12 * 2"], ["6 * 2", "12 + 6"]),
]


@pytest.mark.parametrize("numbers, one, other", SAME)
def test_an_answer_of_countdown_is_what_its_moves_build_in_any_order(numbers, one, other):
    assert expression(numbers, one) == expression(numbers, other) is not None


@pytest.mark.parametrize("numbers, one, other", OTHER)
def test_other_expressions_are_other_answers(numbers, one, other):
    assert None not in (expression(numbers, one), expression(numbers, other))
    assert expression(numbers, one) != expression(numbers, other)


def test_moves_that_build_nothing_are_no_answer():
    for moves in (["2 + 3"], ["2 + 9", "4 + 3"], ["3 / 2", "4 + 1"], ["two + 3", "5 + 4"], ["2 + 2", "4 + 4"], []):
        assert expression([2, 3, 4], moves) is None
    assert expression([7], []) is not None


@pytest.mark.parametrize("task", ["problems"])
def test_votes_are_samples_in_order_and_kept_apart_by_temperature(task, tmp_path):
    protocol = Protocol(dev=2, test=2, votes=4, quick=True)
    cell = votes_of(protocol, tmp_path, Cell(task, 0.7, 0))
    assert json.loads(json.dumps(cell)) == cell
    assert {len(cell["dev"]), len(cell["test"])} == {2} and not {row["id"] for row in cell["dev"]} & {
        row["id"] for row in cell["test"]
    }
    for row in [*cell["dev"], *cell["test"]]:
        assert len(row["answers"]) == len(row["right"]) == len(row["generated"]) == 4
        known = [each for each in row["answers"] if each >= 0]
        assert sorted(set(known)) == list(range(len(set(known)))) and min(row["generated"]) > 0
    again = votes_of(protocol, tmp_path, Cell(task, 0.7, 0))
    assert {**again, "cpu_s": 0} == {**cell, "cpu_s": 0}
    assert protocol.digest(task, 0.7) != protocol.digest(task, 1.0)
    assert Cell(task, 0.7, 0).key != Cell(task, 1.0, 0).key
