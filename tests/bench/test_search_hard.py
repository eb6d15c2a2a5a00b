"""The study of hard countdown: what a judge reads, what known judges know, gates, and that the kept figures hold."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from benchmarks.reporting import RESULTS
from benchmarks.search_quality.hard import check_gates, choose_settings, configure, play_hard, report_hard
from benchmarks.search_quality.hard_plan import GATES, HARD, QUICK_HARD, SEARCHES, Cell, list_cells, list_known_cells
from benchmarks.search_quality.lines import (
    KnownJudge,
    LineScorer,
    Position,
    compute_auc,
    draw_number_sets,
    draw_positions,
    measure_priors,
    number_waves,
    predict,
    read_position,
    train_judge,
)
from benchmarks.study import read_rows, write_cell
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.learn.settings import TrainConfig
from evolvent.models.policy import Policy, tiny_policy
from evolvent.search.scorers import Ending
from evolvent.trajectory import Task
from evolvent.worlds.countdown import Countdown

START = "<bos> <obs> make 9 from 2 3 4 <act>"


@pytest.fixture(scope="module")
def judge() -> Policy:
    """An untrained value model."""
    return tiny_policy(Countdown().vocabulary(), context=64, seed=1)


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("turns", "left"),
    [
        ("", (2, 3, 4)),
        (" 4 + 3 <eos> <obs> left 2 7 <act>", (2, 7)),
        (" 4 + 3 <eos> <obs> left 7 2 <act>", (2, 7)),
        (" left 9 9 <eos> <obs> expected two numbers left and + - * or / between <act>", None),
        (" 5 + 3 <eos> <obs> 5 is not left <act>", None),
        (" 5 + 3 <eos> <obs> 5 is not left <act> 4 + 3 <eos> <obs> left 2 7 <act>", (2, 7)),
    ],
)
def test_a_position_is_read_from_the_last_observation_alone(turns, left):
    assert read_position((START + turns).split()) == (None if left is None else Position(9, left))


def test_labels_are_exact_for_all_targets_of_the_numbers_that_walks_come_to():
    assert Position(24, (4, 6)).is_solvable and not Position(23, (4, 6)).is_solvable
    tasks = [Task("countdown", "1", {"numbers": [1, 4, 8, 11, 11], "target": 35}, "kind", "seen", "train")]
    positions = draw_positions(tasks, walks=60, seed=0)
    assert positions[0] == Position(35, (1, 4, 8, 11, 11))
    assert {len(position.left) for position in positions[1:]} == {2, 3, 4}
    number_sets = draw_number_sets(tasks, walks=60, seed=0)
    assert {number_set.left for number_set in number_sets} == {position.left for position in positions[1:]}
    for left, labels in number_sets[:20]:
        assert labels.tolist() == [Position(target, left).is_solvable for target in range(1, 101)]


def test_a_value_model_learns_which_targets_can_be_made():
    """Of few sets, it remembers the labels."""
    untrained = tiny_policy(Countdown().vocabulary(), context=64, seed=3)
    tasks = [Task("countdown", "1", {"numbers": [1, 4, 8, 11, 11], "target": 35}, "kind", "seen", "train")]
    number_sets = draw_number_sets(tasks, walks=4, seed=0)
    config = TrainConfig(lr=3e-3, tokens=100 * len(number_sets))
    trained = train_judge(untrained, number_sets, config, batch_lines=8, seed=0)
    positions = [Position(target, left) for left, _ in number_sets for target in (1, 20, 35, 60)]
    truths = [position.is_solvable for position in positions]
    chances = np.array(predict(trained, positions))
    assert ((chances > 0.5) == truths).mean() > 0.95


@pytest.mark.parametrize("auc", [1.0, 0.9, 0.78])
def test_a_known_judge_has_its_auc_and_is_calibrated(auc):
    rng = np.random.default_rng(0)
    positions = [Position(30, tuple(sorted(rng.integers(1, 40, size=2).tolist()))) for _ in range(600)]
    positions += [Position(30, tuple(sorted(rng.integers(1, 12, size=3).tolist()))) for _ in range(1500)]
    positions = list(dict.fromkeys(positions))
    known = KnownJudge(auc, measure_priors(positions), seed=0)
    figures = compute_auc(lambda listed: [known(position) for position in listed], {"task": positions})
    assert figures["within_levels"] == pytest.approx(auc, abs=0.04)
    truths = [position.is_solvable for position in positions]
    assert np.mean([known(position) for position in positions]) == pytest.approx(np.mean(truths), abs=0.03)
    assert [known(position) for position in positions[:9]] == [known(position) for position in positions[:9]]


def test_a_scorer_says_what_the_value_model_says_of_the_line(judge):
    """An illegal move is worth 0, a known judge speaks instead, and both pay for the line."""
    known = KnownJudge(1.0, {2: 0.2}, seed=0)
    vocabulary = judge.tokenizer.get_vocab()
    turns = ("", " 4 + 3 <eos> <obs> left 2 7 <act>", " 5 + 3 <eos> <obs> 5 is not left <act>")
    conversations = [START + turn for turn in turns]
    paths = [tuple(vocabulary[word] for word in conversation.split()) for conversation in conversations]
    queries = [Ending(None, path, (len(path),)) for path in paths]
    scores, computed = [], []
    for speaker in (None, known):
        engine = LocalEngine(judge)
        scorer = LineScorer(judge, speaker, model=None)
        (result,) = run_jobs([scorer.scores(queries)], engine, slots=1)
        scores.append([score for (score,) in result.value])
        computed.append(engine.usage.computed)
    expected = predict(judge, [Position(9, (2, 3, 4)), Position(9, (2, 7))])
    assert len(set(expected)) == 2 and scores[0] == pytest.approx([*expected, 0.0], abs=1e-5)
    assert scores[1] == [known(Position(9, (2, 3, 4))), known(Position(9, (2, 7))), 0.0] and scores[1][1] > 0.99
    assert computed[0] == computed[1] > 0


def test_number_waves_tell_neighbors_from_far_numbers_and_ratios_from_others(judge):
    policy = tiny_policy(Countdown().vocabulary(), context=64, seed=2)
    before = policy.model.get_input_embeddings().weight.detach().clone()
    number_waves(policy)
    vocabulary, after = policy.tokenizer.get_vocab(), policy.model.get_input_embeddings().weight.detach()
    waves = [after[vocabulary[str(number)], [6, 7, 8, 21, 22, 23]] for number in (50, 51, 150)]
    assert (waves[0] - waves[1]).norm() < (waves[0] - waves[2]).norm()
    over_log = [(after[vocabulary[str(n)], 9:15], after[vocabulary[str(n)], 24:30]) for n in (3, 6, 50, 100)]
    angles = [torch.atan2(sine, cosine) for cosine, sine in over_log]
    assert torch.allclose(torch.cos(angles[1] - angles[0]), torch.cos(angles[3] - angles[2]), atol=1e-3), "of a ratio"
    assert torch.equal(after[vocabulary["left"]], before[vocabulary["left"]])


# ---------------------------------------------------------------- the plan


def test_every_method_has_the_same_budget_and_ends_are_paid_by_the_world():
    configs = {cell.method: configure(HARD, cell.method, {}) for cell in list_cells(HARD, 0)}
    assert {name for name, config in configs.items() if config.generated != HARD.budget} == {"greedy"}
    assert {config.terminal for config in configs.values()} == {"reward"}
    assert {name for name, config in configs.items() if config.uses_judge} == set(SEARCHES)
    assert configs["best_of_n"].value == "reward"
    known = list_known_cells(HARD, HARD.known_seeds[0])
    assert {(cell.method, cell.judge) for cell in known} == {(name, str(auc)) for name in SEARCHES for auc in HARD.aucs}
    assert not list_known_cells(HARD, HARD.development)


def test_settings_are_the_best_on_dev_and_all_must_be_tried(tmp_path):
    with pytest.raises(ConfigError, match="13 candidates were not tried"):
        choose_settings(HARD, tmp_path)
    for method in SEARCHES:
        for number in range(len(HARD.candidates[method])):
            success = 0.5 if (method, number) in (("mcts", 1), ("mcts", 2)) else 0.1 * number
            row = {"digest": HARD.digest, "method": method, "candidate": number, "success": success}
            write_cell(tmp_path, f"tuning-{method}-{number}", row)
    choice = choose_settings(HARD, tmp_path)
    assert choice["settings"]["mcts"] == HARD.candidates["mcts"][1], "the first of equals"
    assert choice["best"] == "mcts" and choice["dev"]["beam"] == pytest.approx(0.3)


def test_gates_are_the_policy_and_the_learned_judge():
    row = {"seed": 0, "pass_at_1_5": 0.01, "pass_at_1_6": 0.01, "auc_5": 0.8, "auc_6": 0.8}
    assert all(result.passed for result in check_gates([row]))
    for figure, value in (("pass_at_1_5", 0.04), ("pass_at_1_6", 0.0), ("auc_5", 0.74), ("auc_6", None)):
        failed = [result.figure for result in check_gates([{**row, figure: value}]) if not result.passed]
        assert failed == [figure]
    assert len({HARD.digest, replace(HARD, budget=1999).digest, replace(HARD, judge_walks=3).digest}) == 3


@pytest.mark.long
def test_a_quick_study_is_played_to_its_end_and_resumes(tmp_path, capsys):
    figures = play_hard(tmp_path, seeds=[0], step="play", quick=True)
    assert figures["over_budget"] == 0 and figures["seeds"] == [0] and figures["gate_passed"] is False
    assert set(figures["search_minus_bon"]["5"]["beam"]) == {"learned", "1.0"}
    capsys.readouterr()
    again = play_hard(tmp_path, seeds=[0], step="play", quick=True)
    assert {**again, "cpu_hours": 0} == {**figures, "cpu_hours": 0}
    assert "cpu-s" not in capsys.readouterr().out, "nothing is played twice"
    assert len(read_rows(tmp_path)) == 1 + len(SEARCHES) + len(list_cells(QUICK_HARD, 0)) + len(SEARCHES)


# ---------------------------------------------------------------- what is kept


def test_the_kept_rows_are_of_the_plan_in_the_source():
    frozen = read_rows(RESULTS / "search_hard", "protocol")["protocol"]
    assert frozen["plan_digest"] == HARD.digest
    assert frozen["plan"]["gates"] == [asdict(gate) for gate in GATES]
    assert frozen["choice"] == choose_settings(HARD, RESULTS / "search_hard")
    assert {row["digest"] for row in read_rows(RESULTS / "search_hard").values()} == {frozen["digest"], HARD.digest}


def test_the_kept_figures_are_those_of_the_kept_rows():
    kept = json.loads((RESULTS / "search_hard.json").read_text(encoding="utf-8"))
    figures = report_hard(RESULTS / "search_hard")
    changing = {"versions", "machine", "quick"}
    assert {name: value for name, value in kept.items() if name not in changing} == {
        name: value for name, value in json.loads(json.dumps(figures)).items() if name not in changing
    }
    rows = read_rows(RESULTS / "search_hard")
    for size in ("5", "6"):
        means = [
            np.mean([rows[f"cell-{Cell(method, judge, seed).key}"]["values"][size] for seed in kept["seeds"]])
            for method, judge in ((kept["best_search"], "learned"), ("best_of_n", "none"))
        ]
        assert kept["best_search_minus_bon"][size][0] == pytest.approx(means[0] - means[1], abs=1e-4)
        assert kept["accuracy"][size]["best_of_n, none"][0] == pytest.approx(means[1], abs=1e-4)
