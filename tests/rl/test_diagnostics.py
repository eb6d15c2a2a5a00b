"""Practice that teaches nothing says why, with counts that are true; a practice that was stopped says the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from acting import Echo, Endless, quick, run_of, small
from flat_tables import Told, table

from evolvent.errors import BatchMismatch, NothingToLearn
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.rl.advantages import Advantages
from evolvent.rl.diagnostics import DegenerateBatchMonitor, explained_variance
from evolvent.rl.estimators import GroupEstimator
from evolvent.rl.presets import DAPO, GRPO
from evolvent.rl.rollout_batch import CUT_OFF, TERMINATED, TRUNCATED, RolloutBatch
from evolvent.rl.trainer import PolicyTrainer
from evolvent.scale.initial import make_policy
from evolvent.worlds.base import Play

TIMES = 20  # iterations in a row


def flat_of(ends: list[int], rewards: list[float], groups: list[int]) -> RolloutBatch:
    made = table(*(Told([1], [reward], group=group) for reward, group in zip(rewards, groups, strict=True)))
    made.ended[:] = ends
    return made


def said(found: RolloutBatch, credit: Advantages, *, times: int = TIMES) -> str:
    idle = DegenerateBatchMonitor()
    for _ in range(times):
        idle.record(found, credit, is_trained=False)
    with pytest.raises(NothingToLearn) as problem:
        idle.check(0.25)
    return str(problem.value)


def test_episodes_that_were_cut_are_not_called_equal() -> None:
    """Both groups differ; each of the four episodes was cut, one of them at its horizon."""
    found = flat_of([CUT_OFF, CUT_OFF, TRUNCATED, CUT_OFF], [1, 0, 1, 0], [0, 0, 1, 1])
    credit = DAPO.estimator(found)
    assert credit.counts == {"groups_single": 0, "groups_equal": 0, "masked_horizon": 1, "masked_cut": 3}
    assert credit.learned_mask is not None and not credit.learned_mask.any() and credit.advantage.any()
    message = said(found, credit)
    assert "80 of 80 episodes were left out because they were cut: 20 at the horizon, 60 by the context" in message
    assert "same" not in message and "difficulty" not in message and "max_tokens" in message
    assert "success 25%" in message


def test_equal_groups_are_not_called_cut() -> None:
    """GRPO learns from cut episodes too: that they were cut is no reason."""
    found = flat_of([CUT_OFF] * 4, [1, 1, 0, 0], [0, 0, 1, 1])
    message = said(found, GRPO.estimator(found))
    assert "in 40 of 40 groups all episodes earned the same" in message and "they were cut" not in message
    assert "Choose tasks of other difficulty" in message


def test_every_reason_is_told_with_its_own_count() -> None:
    """One group is equal, one has a lone member, and of one the episode with an advantage was cut."""
    ends, rewards = [TERMINATED, TERMINATED, TERMINATED, CUT_OFF, CUT_OFF], [0.0, 0.0, 1.0, 1.0, 0.0]
    found = flat_of(ends, rewards, [0, 0, 1, 2, 2])
    message = said(found, DAPO.estimator(found))
    assert "40 of 100 episodes were left out because they were cut: 0 at the horizon, 40 by" in message
    assert "in 20 of 60 groups all episodes earned the same" in message
    assert "20 of 60 groups had one episode" in message and "2 samples" in message


def test_credit_that_says_nothing_of_itself_is_not_guessed_at() -> None:
    found = flat_of([TERMINATED, CUT_OFF], [1.0, 0.0], [0, 0])
    message = said(found, Advantages(np.zeros(2), np.zeros(2)))
    assert "no part of 40 episodes had an advantage other than 0" in message and "same" not in message


def test_an_iteration_that_teaches_begins_anew() -> None:
    found, idle = flat_of([CUT_OFF, CUT_OFF], [1.0, 0.0], [0, 0]), DegenerateBatchMonitor()
    for number in range(3 * TIMES):
        idle.record(found, DAPO.estimator(found), is_trained=number % TIMES == 0)
        idle.check(0.0)
    assert idle.count == TIMES - 1 and idle.why["masked_cut"] == 2 * (TIMES - 1)


def test_counts_of_what_is_masked_are_there_only_where_something_masks() -> None:
    found = flat_of([TRUNCATED, CUT_OFF], [1.0, 0.0], [0, 0])
    assert GroupEstimator()(found).counts == {"groups_single": 0, "groups_equal": 0}


class Cut(Echo):
    """Pays for every word that is said, and never ends: an episode is cut at its horizon, if not before."""

    name = "cut"
    reward_range = (0.0, 9.0)

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"say {spec['first']}"
        while True:
            said = yield f"say {spec['then']}", float(len(said.split()))


SHORT = {"iterations": 30, "tasks_per_iteration": 2, "group_size": 2}


@pytest.mark.parametrize(("context", "where"), [(48, "80 at the horizon, 0 by"), (10, "0 at the horizon, 80 by")])
def test_dapo_says_that_every_answer_was_cut(tmp_path: Path, context: int, where: str) -> None:
    """In 10 tokens no second turn fits."""
    world, config = Cut(), GRPOConfig(kind="dapo", practice=quick(**SHORT))
    with run_of(tmp_path, world) as run, pytest.raises(NothingToLearn) as problem:
        grpo(make_policy([world], seed=1, context=context), world.tasks("train", "seen"), config=config, run=run)
    assert f"80 of 80 episodes were left out because they were cut: {where}" in str(problem.value)


def test_a_practice_that_was_stopped_says_what_the_whole_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, config, messages = Endless(), GRPOConfig(kind="dapo", practice=quick(**SHORT)), []

    def practise(name: str) -> None:
        with run_of(tmp_path / name, world) as run:
            grpo(small(world), world.tasks("train", "seen"), config=config, run=run)

    improve = PolicyTrainer.update

    def stops(self: PolicyTrainer, *given: Any, **more: Any) -> None:
        if self.iteration == 12:
            raise KeyboardInterrupt
        improve(self, *given, **more)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        practise("stopped")
    monkeypatch.undo()
    for name in ("stopped", "whole"):
        with pytest.raises(NothingToLearn) as problem:
            practise(name)
        messages.append(str(problem.value))
    assert messages[0] == messages[1] and "80 of 80 episodes" in messages[0] and "40 of 40 groups" in messages[0]


def test_explained_variance_is_one_of_exact_values_and_falls_when_rewards_are_shuffled() -> None:
    rng = np.random.default_rng(5)
    returns = rng.normal(size=400)
    values = returns + rng.normal(size=400, scale=0.5)
    by_hand = 1 - sum((returns - values - (returns - values).mean()) ** 2) / sum((returns - returns.mean()) ** 2)
    assert explained_variance(values, returns) == pytest.approx(by_hand) and 0.6 < by_hand < 0.9
    assert explained_variance(returns + 7.0, returns) == pytest.approx(1.0), "a constant error explains as much"
    assert explained_variance(np.full(400, 3.0), returns) == pytest.approx(0.0)
    assert explained_variance(values, rng.permutation(returns)) < -0.5
    assert np.isnan(explained_variance(values, np.ones(400)))
    with pytest.raises(BatchMismatch, match="differ in shape"):
        explained_variance(values, returns[:-1])
