"""Practice where things go wrong: updates that are not finite, limits, rounding, full contexts, idle settings."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from evolvent.errors import ConfigError, NonFinite, NothingToLearn
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import Objective
from evolvent.methods.etpo import ETPOConfig, Networks
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.grpo import build_preset as grpo_preset
from evolvent.methods.poad import POADConfig
from evolvent.methods.ppo import PPOConfig, build_preset, ppo
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.rl.advantages import Advantages, group_advantage, overlong_penalty, whiten
from evolvent.rl.objective import PolicyGradient, policy_gradient
from evolvent.rl.presets import GRPO
from evolvent.rl.rollout_batch import add_columns
from evolvent.rl.trainer import RLSpec, run_epochs
from tests.rl.acting import Echo, Endless, quick, run_of, small


def tasks(world):
    return world.tasks("train", "seen")


def broken(times):
    """A loss that is not a number for so many updates, and then is."""
    base, left = policy_gradient(PolicyGradient(), name="broken"), [times]

    def loss(outputs, batch):
        found, count = base.loss(outputs, batch)
        left[0] -= 1
        return (found * float("nan") if left[0] >= 0 else found), count

    return replace(base, loss=loss)


def practised(run, world, times, iterations):
    setup = RLSpec("broken", quick(ppo_epochs=2, minibatches=2, iterations=iterations), broken(times))
    with run.train_rl(small(world), setup) as practice:
        for _ in practice.iterations():
            seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
            noise = np.random.default_rng(0).normal(size=seen.batch.num_tokens)
            practice.update(seen, Advantages(noise, noise))
    return practice


def test_updates_that_are_not_finite_are_counted_over_iterations_and_end_it(tmp_path):
    """Four to an iteration and a patience of five: the fifth is in the second iteration."""
    with (
        run_of(tmp_path, Echo()) as run,
        pytest.raises(NonFinite, match=r"5 consecutive updates of the policy were not finite, up to iteration 2"),
    ):
        practised(run, Echo(), times=99, iterations=12)


def test_an_update_that_is_not_finite_is_not_taken_and_not_averaged(tmp_path):
    """Four of the first iteration's four, then none: they are in no total, and the practice goes on."""
    with run_of(tmp_path, Echo()) as run:
        practised(run, Echo(), times=4, iterations=2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    first, second = (row for row in rows if row.get("kind") == "practise")
    assert (first["skipped"], first["updates"], first["trained"]) == (4, 0, 0) and "loss" not in first
    assert (second["skipped"], second["updates"]) == (0, 4) and np.isfinite(second["loss"])


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """Chains of which half are far from the old policy, and the divergence of the whole."""
    world = Echo()
    setup = RLSpec("g", quick(iterations=1), GRPO.objective)
    with run_of(tmp_path_factory.mktemp("drifted"), world) as run, run.train_rl(small(world), setup) as practice:
        next(iter(practice.iterations()))
        seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
    shift = np.where(seen.batch.episode_of_token < 4, 0.6, 0.0)
    noise = np.random.default_rng(0).normal(size=seen.batch.num_tokens)
    columns = {"old": seen.old - shift, "behaviour": seen.batch.logp, "advantages": noise}
    return (
        practice.initial_policy,
        add_columns(seen.sequences, seen.batch, columns),
        float((np.expm1(shift) - shift).mean()),
    )


@pytest.mark.parametrize("micro", [4096, 96, 48])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_limit_is_of_the_update_however_it_is_cut(drifted, micro, seed):
    policy, chains, whole = drifted
    train = TrainConfig(lr=1e-3, weight_decay=0.0, warmup_steps=0, batch_tokens=4096, max_tokens_per_forward=micro)
    for times, taken in ((1.5, 1), (0.9, 0)):
        objective = policy_gradient(PolicyGradient(target_kl=times * whole), name="careful")
        learner = Learner(policy.clone(), objective, train, seed=0)
        tally = run_epochs(learner, chains, num_epochs=1, minibatches=1, rng=np.random.default_rng(seed))
        assert (tally.updates, tally.stopped) == (taken, not taken)


# ------------------------------------------------------------------ rounding, sizes


def test_rewards_that_are_equal_but_for_rounding_are_equal():
    assert not whiten(np.full(24, 0.1)).any()
    sums = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]
    assert sums[0] != sums[1]
    found = group_advantage(sums, ["a", "a"], baseline="group_mean", scale="group_std")
    assert found.advantage.tolist() == [0.0, 0.0] and found.num_equal == 1 and not found.has_variance.any()
    assert whiten([0.1, 0.1 + 1e-9]).any()  # a small difference is one


class Tenth(Endless):
    """Pays a tenth, once."""

    name = "tenth"

    def play(self, spec):
        yield f"say {spec['first']}"
        yield f"say {spec['then']}", 0.1
        while True:
            yield f"say {spec['then']}", 0.0


def test_nothing_to_compare_is_noticed_after_whitening_too(tmp_path):
    world = Tenth()
    config = GRPOConfig(kind="reinforce_pp", kl=0.0, practice=quick(iterations=23, tasks_per_iteration=2, group_size=2))
    with run_of(tmp_path, world) as run, pytest.raises(NothingToLearn, match="no update in 20 consecutive iterations"):
        grpo(small(world), tasks(world), config=config, run=run)


def test_a_penalty_needs_tokens_to_grow_over():
    with pytest.raises(ConfigError, match="cache >= 1"):
        overlong_penalty([3], limit=4, cache=0)


class Long(Echo):
    """Asks with more words than fit."""

    name = "long"

    def play(self, spec):
        yield "say " + " ".join([spec["first"]] * 80)
        return 1.0


def test_prompts_that_fill_the_context_are_told_with_a_task(tmp_path):
    world = Long()
    with run_of(tmp_path, world) as run, pytest.raises(NothingToLearn, match="prompt fills the context") as caught:
        ppo(small(world), tasks(world), config=PPOConfig(practice=quick(iterations=2)), run=run)
    assert "longer context" in str(caught.value) and str(caught.value).endswith(" of long.")


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "rloo", "practice": {"group_size": 1}}, "practice.group_size: rloo compares"),
        ({"kind": "cispo", "practice": {"group_size": 1}}, "practice.group_size: cispo compares"),
        ({"kind": "gspo", "length": 8}, "length: gspo"),
        ({"kind": "rloo", "clip_range": 0.2}, "clip_range, clip_high: rloo"),
    ],
)
def test_settings_of_the_family_that_would_do_nothing_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        GRPOConfig(**settings)


def test_the_family_takes_what_has_an_effect():
    GRPOConfig(kind="reinforce_pp", practice=quick(group_size=1))
    GRPOConfig(kind="dr_grpo", length=8)


@pytest.mark.parametrize("config", [PPOConfig, POADConfig, GRPOConfig])
def test_a_sampler_that_lags_can_be_corrected(config):
    assert config().importance_weights() is None
    found = config(importance_correction="masked", max_importance_weight=3.0).importance_weights()
    assert (found.kind, found.max_weight, found.level) == ("masked", 3.0, "part")


def test_correction_reaches_the_loss():
    assert (
        build_preset(PPOConfig(importance_correction="truncated")).loss.importance_weights is not None
        and build_preset(PPOConfig()).loss.importance_weights is None
    )
    levels = {
        kind: grpo_preset(GRPOConfig(kind=kind, importance_correction="truncated")).loss.importance_weights.level
        for kind in ("grpo", "gspo")
    }
    assert levels == {"grpo": "part", "gspo": "sequence"}
    with pytest.raises(ValueError, match="listed"):
        PPOConfig(level="listed", importance_correction="truncated")


# ------------------------------------------------------------------ one base below all adapters


def test_a_target_network_has_the_base_of_the_policy(tmp_path):
    world = Echo()
    tuned = adapt(small(world), AdapterConfig(kind="lora", rank=2), seed=0)
    base = {name: weight.data_ptr() for name, weight in tuned.model.named_parameters() if "lora" not in name}
    networks = Networks(ETPOConfig(polyak=0.0, practice=quick(iterations=1)))
    objective = Objective("etpo", networks.policy_loss, lambda batch: batch.count, ("logits",))
    setup = RLSpec("etpo", quick(iterations=1), objective, on_start=networks.create)
    with run_of(tmp_path, world) as run, run.train_rl(tuned, setup):
        weights = dict(networks.target.named_parameters())
        assert {name: weights[name].data_ptr() for name in base} == base
        learning = networks.learner.policy.model
        with torch.no_grad():
            for name in networks.moved:
                dict(learning.named_parameters())[name].add_(1.0)
        networks.update_target(1)
        assert all(torch.equal(weights[name], dict(learning.named_parameters())[name]) for name in networks.moved)
        assert networks.moved and not set(networks.moved) & set(base)
