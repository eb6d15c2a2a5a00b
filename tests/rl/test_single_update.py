"""Iterations with one update: its own forward gives the log-probabilities before it, so nothing is scored first."""

import json

import numpy as np
import pytest
import torch
from acting import Echo, quick, run_of, talking

from evolvent.learn.objectives import Outputs
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.token_sequences import Batch
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.rl import scored_rollout
from evolvent.rl.objective import policy_gradient
from evolvent.rl.presets import GRPO, REINFORCE_PP, Preset
from evolvent.rl.settings import PolicyGradient


@pytest.fixture(scope="module")
def untrained_policy(tmp_path_factory):
    return talking(tmp_path_factory.mktemp("talking"), Echo())


def train(folder, policy, monkeypatch, *, scored=False, settings=None, optimizer="adamw", **practice):
    """Trains with GRPO; returns the weights, the metrics of each iteration, and how many times a policy scored."""
    calls = []
    score = scored_rollout.score_sequences

    def count_calls(*arguments, **options):
        calls.append(arguments[0])
        return score(*arguments, **options)

    world = Echo()
    with monkeypatch.context() as patch:
        patch.setattr(scored_rollout, "score_sequences", count_calls)
        if scored:
            patch.setattr(Preset, "single_update_objective", None)
        more = {"optimizer": OptimizerConfig(name=optimizer)}
        config = GRPOConfig(**(settings or {}), practice=quick(**{"iterations": 2, **practice}))
        with run_of(folder, world, **more) as run:
            trained = grpo(policy, world.tasks("train", "seen")[:8], config=config, run=run)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if line.get("kind") == "practise"]
    return {name: weight.detach().clone() for name, weight in trained.model.named_parameters()}, metrics, len(calls)


FAMILY = [
    {"kl": 0.04},
    {"kind": "gspo"},
    {"kind": "cispo"},
    {"kl": 0.0, "importance_correction": "truncated", "entropy_coef": 0.01},
]


@pytest.mark.parametrize("settings", FAMILY, ids=str)
def test_single_update_gives_the_weights_of_scoring_first(tmp_path, untrained_policy, monkeypatch, settings):
    weights, metrics, calls = train(tmp_path / "a", untrained_policy, monkeypatch, settings=settings)
    expected, scored_metrics, scored_calls = train(
        tmp_path / "b", untrained_policy, monkeypatch, settings=settings, scored=True
    )
    reference_calls = 2 if settings.get("kl") else 0
    assert (calls, scored_calls) == (reference_calls, reference_calls + 2), "two iterations"
    before = {name: weight.detach() for name, weight in untrained_policy.model.named_parameters()}
    moved = max(float((weights[name] - before[name]).abs().max()) for name in weights)
    furthest = max(float((weights[name] - expected[name]).abs().max()) for name in weights)
    assert moved > 1e-3 and furthest < 0.01 * moved
    for ours, theirs in zip(metrics, scored_metrics, strict=True):
        assert ours["return"] == theirs["return"] and ours["fed"] == theirs["fed"]
        assert abs(ours["mismatch"] - theirs["mismatch"]) < 1e-6
        assert ours["kl"] == 0.0 and (ours.get("ratio"), ours.get("clipped", 0.0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "practice", [{"minibatches": 2}, {"ppo_epochs": 2}, {"optimizer": "schedulefreeadamw"}], ids=str
)
def test_other_updates_are_scored_before(tmp_path, untrained_policy, monkeypatch, practice):
    _, metrics, calls = train(tmp_path, untrained_policy, monkeypatch, settings={"kl": 0.0}, **practice)
    assert calls == 2 and all("mismatch" in line for line in metrics)


def test_reward_with_a_divergence_needs_scores():
    assert REINFORCE_PP.estimator.kl_coef and REINFORCE_PP.single_update_objective is None
    assert GRPO.single_update_objective.name == GRPO.objective.name
    assert repr(GRPO.single_update_objective) == repr(GRPO.objective), "a resumed training is the same one"


def test_gradient_is_that_of_the_policy_gradient_theorem():
    """Two sequences of 2 and 1 tokens, token mean: the gradient of each log-probability is -A/3."""
    logprobs = torch.tensor([-0.5, -1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -2.0])
    batch = Batch(
        ids=torch.zeros(2, 3, dtype=torch.int64),
        real=5,
        index=torch.tensor([0, 1, 3]),
        targets=torch.tensor([0, 0, 0]),
        weights=torch.ones(3),
        columns={"advantages": advantages, "behaviour": torch.tensor([-0.5, -1.0, -2.5])},
        samples=(0, 1),
        sequence=torch.tensor([0, 0, 1]),
    )
    objective = policy_gradient(PolicyGradient(kl=None), single_update=True)
    loss, count = objective.loss(Outputs(logprobs=logprobs), batch)
    (loss / count).backward()
    assert count == 3 and logprobs.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, 2 / 3])
    total, number = objective.stats(Outputs(logprobs=logprobs), batch)["mismatch"]
    assert float(total) / number == pytest.approx((np.exp(0.5) - 1 - 0.5) / 3)
