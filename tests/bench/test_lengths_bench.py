"""The study of credit by length: its lock by enumeration, its choice among listed actions, its figures and gates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.credit import tables
from benchmarks.credit.lengths import LENGTHS_PLAN, QUICK_PLAN, LengthCell, LengthCells, report_lengths, run_lengths
from benchmarks.credit.lock import COLORS, DOORS, END, PASS_PAY, START, VOCABULARY, Lock, play
from benchmarks.frozen import freeze_plan
from benchmarks.study import read_rows, write_cell
from evolvent.errors import ConfigError
from evolvent.learn.objectives import Outputs
from evolvent.learn.token_sequences import Batch
from evolvent.rl.candidates import choice_objective
from evolvent.rl.settings import ChoiceConfig, Clip

LOCK = Lock(np.array([[0, 2], [5, 1]]))


def random_chances(length: int) -> np.ndarray:
    logits = np.random.default_rng(0).normal(size=(DOORS, length + 1, COLORS + 1, VOCABULARY))
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def pay_of(door: int, words: tuple[int, ...]) -> tuple[float, bool]:
    """Pays an action as the lock is described: an opposite or equal neighbor is illegal; only two words open a door."""
    if not words:
        return PASS_PAY / 2, True
    is_legal = all(abs(first - second) not in (0, 3) for first, second in itertools.pairwise(words))
    if len(words) != 2 or not is_legal:
        return 0.0, False
    return sum(map(int.__eq__, words, LOCK.codes[door].tolist())) / 2 / 2, True


def test_the_expected_return_is_that_of_all_actions():
    chances, expected, reached = random_chances(2), 0.0, 1.0
    for door in range(DOORS):
        opens = 0.0
        for length in range(3):
            for words in itertools.product(range(COLORS), repeat=length):
                befores = (START, *words)
                chance = np.prod([chances[door, i, befores[i], token] for i, token in enumerate((*words, END))])
                pay, goes_on = pay_of(door, words)
                expected += reached * chance * pay
                opens += chance * goes_on
        reached *= opens
    assert LOCK.measure_return(chances) == pytest.approx(expected, abs=1e-12)


def test_played_episodes_return_on_average_what_is_expected():
    chances = random_chances(2)
    rollout = play(LOCK, chances, episodes=20_000, rng=np.random.default_rng(1))
    returns = np.bincount(rollout.batch.episode_of_token, weights=rollout.batch.reward)
    assert returns.mean() == pytest.approx(LOCK.measure_return(chances), abs=4 * returns.std() / 20_000**0.5)


def say(*actions: tuple[int, ...]) -> np.ndarray:
    """Returns the chances of a policy that writes these tokens at the doors."""
    chances = np.zeros((DOORS, 3, COLORS + 1, VOCABULARY))
    for door, tokens in enumerate(actions):
        for position, token in enumerate(tokens):
            chances[door, position, :, token] = 1.0
    return chances


@pytest.mark.parametrize(
    ("first", "rewards", "actions"),
    [
        ((0, 2, END), [0, 0, 0.5, 0, 0, 0.25], 2),  # right, then one word of two
        ((END,), [0.05, 0, 0, 0.25], 2),
        ((0, END), [0, 0], 1),
        ((0, 0, END), [0, 0, 0], 1),
        ((0, 3, END), [0, 0, 0], 1),
        ((0, 2, 4), [0, 0, 0], 1),  # does not end
    ],
)
def test_what_actions_pay_and_where_they_end(first, rewards, actions):
    rollout = play(LOCK, say(first, (5, 0, END)), episodes=1, rng=np.random.default_rng(0))
    assert rollout.batch.reward.tolist() == rewards and len(rollout.batch.episode) == actions
    assert rollout.batch.ended.tolist() == [0] * (actions - 1) + [1]
    assert rollout.broken.any() == (first in ((0, 0, END), (0, 3, END)))


def test_a_choice_among_listed_actions_has_the_loss_and_gradient_of_twosome():
    """Against `rl.candidates`, where every decision brings its own candidates."""
    listed = tables._list_actions(LOCK, 4, seed=0)
    logits = torch.from_numpy(np.log(random_chances(2))).requires_grad_()
    door, chosen = torch.tensor([0, 1, 0]), torch.tensor([3, 0, 1])
    old, advantages = torch.tensor([-1.2, -1.5, -3.0]).double(), torch.tensor([1.0, -0.5, 2.0]).double()
    scores = tables.score_listed(logits, listed)
    own = tables.choice_loss(scores, door, chosen, old=old, advantages=advantages, entropy_coef=0.1)
    rows = []
    for decision in range(3):
        for candidate in range(4):
            length = int(listed.num_words[door[decision], candidate])
            is_chosen = float(candidate == chosen[decision])
            for position in range(length + 1):
                cell = (int(door[decision]), position, *(int(column[door[decision], candidate, position])
                        for column in (listed.previous, listed.tokens)))  # fmt: skip
                rows.append((decision, candidate + 1, is_chosen, length, *cell))
    columns = torch.tensor(rows).double().T
    decision, candidate = columns[0].long(), columns[1].long()
    index = columns[4:].long()
    batch = Batch(
        torch.zeros(1, len(rows), dtype=torch.int64),
        torch.arange(len(rows)),
        index[3],
        torch.ones(len(rows)),
        (0, 1, 2),
        len(rows),
        sequence=decision,
        columns={
            "candidate": candidate,
            "decision": torch.ones_like(decision),
            "chosen": columns[2],
            "words": columns[3],
            "old": old[decision],
            "advantages": advantages[decision],
        },
    )
    logprobs = logits.log_softmax(-1)[tuple(index)]
    loss, count = choice_objective(ChoiceConfig(Clip(0.2, 0.2), 0.1)).loss(Outputs(logprobs=logprobs), batch)
    expected = loss / count
    assert own.item() == pytest.approx(expected.item(), abs=1e-10)
    gradients = [torch.autograd.grad(each, [logits], retain_graph=True)[0] for each in (own, expected)]
    assert torch.allclose(*gradients, atol=1e-10) and gradients[0].abs().max() > 0.01


def test_listed_actions_hold_the_right_one_and_shorter_ones():
    lock = Lock.draw(5, seed=1)
    listed = tables._list_actions(lock, 50, seed=1)
    assert np.allclose(listed.pay.max(1), 0.5) and (listed.num_words <= 5).all()
    best = listed.pay.argmax(1)
    for door in range(DOORS):
        assert listed.tokens[door, best[door]].tolist() == [*lock.codes[door].tolist(), END]
        assert not listed.opens[door][listed.num_words[door] < 5].any()


def test_arms_differ_in_their_credit_alone():
    plan = LENGTHS_PLAN.practice
    poad, ntpo, ntpo99, ppo = (tables._make_preset(arm, plan) for arm in ("poad", "ntpo", "ntpo99", "ppo"))
    assert poad.loss == ntpo.loss == ntpo99.loss
    assert replace(ntpo.estimator, token_gamma=1.0) == replace(ntpo99.estimator, token_gamma=1.0) == poad.estimator
    assert (ntpo.estimator.token_gamma, ntpo99.estimator.token_gamma) == (0.9, 0.99)
    assert ppo.estimator.level == "action" and ppo.loss.ratio == "action"
    shared = ("gamma", "gae_lambda", "whiten")
    assert all(getattr(ppo.estimator, name) == getattr(poad.estimator, name) for name in shared)
    assert (ppo.loss.entropy_coef, ppo.loss.surrogate) == (poad.loss.entropy_coef, poad.loss.surrogate)
    assert plan.updates >= 1000


@pytest.mark.parametrize("arm", ["poad", "etpo", "twosome10"])
def test_an_arm_learns_a_short_lock(arm):
    plan = replace(LENGTHS_PLAN.practice, iterations=40)
    result = tables.practise(arm, 2, seed=3, rate=0.1, plan=plan)
    assert len(result.curve) == 41 and result.curve[-1] > result.curve[0] + 0.2


def test_the_divergence_holds_etpo_at_its_reference():
    plan = replace(LENGTHS_PLAN.practice, iterations=20, beta=100.0)
    curve = tables.practise("etpo", 2, seed=3, rate=0.1, plan=plan).curve
    assert max(curve) - min(curve) < 0.01


def test_the_optimum_of_etpo_lies_between_its_reference_and_the_best_return():
    chances = tables.make_logits(2).double().softmax(-1).numpy()
    optimum = {beta: tables.measure_soft_optimum(LOCK, beta=beta, gamma=0.9) for beta in (1e6, 0.3, 0.05, 1e-3)}
    assert optimum[1e6] == pytest.approx(LOCK.measure_return(chances), abs=1e-5)
    assert optimum[1e-3] == pytest.approx(1.0, abs=1e-6)
    assert list(optimum.values()) == sorted(optimum.values())


def test_the_optimum_of_etpo_at_one_word_by_hand():
    """Without a discount: the second door's soft value adds to what opens the first."""
    lock, beta = Lock(np.array([[4], [2]])), 0.2
    rho = tables.make_logits(1).double().softmax(-1)[0].numpy()
    end, word = rho[1, 0, END], rho[0, START, 0]
    passing = rho[0, START, END]
    value = returned = 0.0
    for _ in range(DOORS):
        last = [(1 - end) + end * np.exp((pay + value) / beta) for pay in (0.5, 0.0)]  # after a right and a wrong word
        weights = np.array([word * last[0], 5 * word * last[1], passing * np.exp((PASS_PAY / 2 + value) / beta)])
        ends = [end * np.exp((pay + value) / beta) / z for pay, z in zip((0.5, 0.0), last, strict=True)]
        paid = np.array([ends[0] * (0.5 + returned), ends[1] * returned, PASS_PAY / 2 + returned])
        value, returned = beta * np.log(weights.sum()), float(weights / weights.sum() @ paid)
    assert tables.measure_soft_optimum(lock, beta=beta, gamma=1.0) == pytest.approx(returned, abs=1e-10)


# ------------------------------------------------------------------ the study

PLAN = replace(
    QUICK_PLAN, lengths=(4, 16), listed_lengths=(), stable_length=12, rates=(0.01, 0.1, 0.3), seeds=(0, 1, 2)
)


def keep(folder, cell, height, *, explained=0.5, end=None):
    curve = [0.1, height, height if end is None else end]
    row = {**cell.__dict__, "digest": PLAN.digest, "curve": curve, "area": height, "explained_variance": explained}
    write_cell(folder, cell.key, {**row, "sources": "made up", "cpu_s": 36.0, "updates": 1, "actions": 1})


def keep_study(folder, *, best=0.1, explained=0.5, end=None, ppo=0.4):
    heights = {"poad": 0.6, "ppo": ppo}
    for length in PLAN.all_lengths:
        for arm in PLAN.list_arms(length):
            for rate in PLAN.rates:
                keep(folder, LengthCell(length, arm, PLAN.development, rate), 0.5 if rate == best else 0.2)
            for seed in PLAN.list_seeds(length):
                cell = LengthCell(length, arm, seed, best)
                keep(folder, cell, heights.get(arm, 0.3) + 0.01 * seed, explained=explained, end=end)


def test_rates_come_first_and_the_best_one_is_played(tmp_path):
    cells = LengthCells(tmp_path, PLAN)
    first = cells.list_missing()
    assert {cell.seed for cell in first} == {PLAN.development} and {cell.arm for cell in first} == {"poad", "ppo"}
    for cell in first:
        keep(tmp_path, cell, 0.5 if cell.rate == 0.1 else 0.2)
    study = LengthCells(tmp_path, PLAN).list_missing()
    assert {cell.rate for cell in study} == {0.1} and {cell.seed for cell in study} == {0, 1, 2}
    assert [cell.seed for cell in study] == sorted(cell.seed for cell in study)
    assert {cell.arm for cell in study if cell.length == 12} == {"poad"}
    assert {cell.arm for cell in study if cell.length == 16} == {"poad", "ppo"}


def test_a_study_whose_gates_pass_is_judged(tmp_path):
    keep_study(tmp_path)
    figures = report_lengths(tmp_path, PLAN)
    assert figures["gate_passed"] is True and figures["missing"] == {} and figures["at_grid_end"] == []
    assert figures["poad_minus_action_ci"]["16"] == pytest.approx([0.2, 0.2, 0.2])
    assert figures["verdict"] == "POAD is above PPO over actions at 16 words"
    assert (figures["stable_runs"], figures["stable_of"]) == (2, 2)
    keep_study(tmp_path, ppo=0.7)
    assert report_lengths(tmp_path, PLAN)["verdict"] == "POAD is above PPO at no length"


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"best": 0.3}, ["rate inside the grid, 16 words"] * 2),
        ({"explained": 0.1}, ["explained variance of the critic, 16 words"]),
        ({"explained": None}, ["explained variance of the critic, 16 words"]),
    ],
)
def test_a_study_whose_gate_fails_has_no_verdict(tmp_path, change, failed):
    keep_study(tmp_path, **change)
    figures = report_lengths(tmp_path, PLAN)
    assert figures["gate_passed"] is False and figures["verdict"].startswith("no verdict at 16 words")
    assert [gate["name"] for gate in figures["gates"]["16"] if not gate["passed"]] == failed


def test_a_run_that_falls_is_not_stable(tmp_path):
    keep_study(tmp_path, end=0.2)
    assert report_lengths(tmp_path, PLAN)["stable_runs"] == 0


@pytest.mark.parametrize(
    ("arm", "verdict"),
    [
        ("ppo", "no verdict: 1 cells of POAD and PPO over actions are not played yet"),
        ("etpo", "POAD is above PPO over actions at 16 words"),
    ],
)
def test_a_missing_cell_withholds_the_verdict_where_it_decides(tmp_path, arm, verdict):
    keep_study(tmp_path)
    (tmp_path / f"cell-16-{arm}-2-0.1.json").unlink()
    figures = report_lengths(tmp_path, PLAN)
    assert figures["missing"] == {arm: 1} and figures["verdict"] == verdict
    assert figures["gate_passed"] is (arm == "etpo")


def test_a_folder_holds_one_plan(tmp_path):
    freeze_plan(tmp_path, {"seeds": [0]}, "one")
    freeze_plan(tmp_path, {"seeds": [0]}, "one")
    with pytest.raises(ConfigError, match="holds a study with another plan"):
        freeze_plan(tmp_path, {"seeds": [1]}, "two")


def test_a_quick_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    plan = replace(QUICK_PLAN, lengths=(2,), listed_lengths=(), stable_length=2, rates=(0.1,))
    monkeypatch.setattr("benchmarks.credit.lengths.QUICK_PLAN", plan)
    figures = run_lengths(tmp_path, quick=True, play=True)
    assert not figures["missing"] and figures["cells"] == 15 and set(figures["area"]["2"]) == set(plan.list_arms(2))
    assert set(read_rows(tmp_path, "protocol")) == {"protocol"}
    monkeypatch.setattr("benchmarks.credit.lengths.practise", None)  # nothing is played again
    again = run_lengths(tmp_path, quick=True, play=True)
    assert again["area"] == figures["area"]
