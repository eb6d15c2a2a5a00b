"""Updates of teams: losses by hand, every switch, HAPPO's order and products, resuming, and matrix games."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from team_play import SPEC, play, rollout_of

from evolvent.errors import NonFinite, ShapeMismatch
from evolvent.marl.credit import ValueNormalizer, estimate_team_advantages
from evolvent.marl.policy import TeamPolicy, rollout_actions, rollout_tensors, team_shape
from evolvent.marl.rollout import ArrayRollout
from evolvent.marl.updates import (
    TeamLearner,
    TeamUpdateConfig,
    build_team_buffer,
    iterate_minibatches,
    team_policy_loss,
    team_value_loss,
)
from evolvent.models.team_actions import TeamInputs
from evolvent.models.team_files import make_team
from evolvent.trajectory import sample_rng
from evolvent.worlds.teams.base import Continuous, Discrete, Multi, TeamSpec
from evolvent.worlds.teams.games import GameWorld

KINDS = ["mat", "mat_encoder", "mat_decoder", "mat_gru", "mat_dec", "mappo", "happo"]
FEW = TeamUpdateConfig(lr=1e-3, ppo_epochs=2, minibatches=3, clip_range=0.2)


def policy_of(kind: str = "mat", spec: TeamSpec = SPEC, **settings) -> TeamPolicy:
    return TeamPolicy(make_team(team_shape(spec, kind, width=16, **settings), seed=0), spec)


def told(rollout: ArrayRollout, policy: TeamPolicy) -> ArrayRollout:
    """The rollout as this policy would have sampled it: its own log-probabilities and values."""
    with torch.no_grad():
        found = policy.model.evaluate(rollout_tensors(rollout), rollout_actions(rollout))
    shape = rollout.logp.shape
    return replace(rollout, logp=found.logp.numpy().reshape(shape), value=found.values.numpy().reshape(shape))


def example(spec: TeamSpec = SPEC, *, alive=None, seed: int = 0) -> ArrayRollout:
    reward = np.random.default_rng(seed).normal(size=(6, 2))
    return rollout_of(reward, spec=spec, terminated=[(2, 0)], truncated=[(4, 1)], alive=alive, seed=seed)


# ------------------------------------------------------------------ losses


def test_the_policys_term_by_hand():
    """Ratios 2, .5, 1.05, 1; A = 1, -1, 2, 5; clip .1; the last is dead: min(2, 1.1) - min(.5, .9) ... over three."""
    old = torch.zeros(2, 2)
    logp = torch.log(torch.tensor([[2.0, 0.5], [1.05, 3.0]]))
    advantage, weights = torch.tensor([[1.0, -1.0], [2.0, 5.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    found, count = team_policy_loss(logp, old, advantage, weights=weights, clip_range=0.1)
    assert found.item() == pytest.approx(-(1.1 - 0.9 + 2.1), abs=1e-6) and count == 3
    unread = logp.clone()
    unread[1, 1] = torch.nan
    assert team_policy_loss(unread, old, advantage, weights=weights, clip_range=0.1)[0] == found


def test_the_values_term_by_hand():
    """Errors 1, 12 (linear beyond 10), and one whose value moved too far towards its return: the clipped one counts."""
    values, returns = torch.tensor([[2.0, 13.0, 0.9, 7.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    old, weights = torch.tensor([[2.0, 13.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    settings = TeamUpdateConfig(clip_range=0.2)
    found, count = team_value_loss(values, returns, old, weights=weights, settings=settings)
    assert found.item() == pytest.approx(0.5 + 10 * (12 - 5) + 0.5 * 0.8**2, abs=1e-5) and count == 3
    free, _ = team_value_loss(
        values, returns, old, weights=weights, settings=settings.model_copy(update={"clip_values": False})
    )
    assert free.item() == pytest.approx(0.5 + 70 + 0.5 * 0.1**2, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_first_step_the_gradient_is_reinforces(kind):
    policy = policy_of(kind)
    rollout = told(example(), policy)
    last = policy.values(rollout.last)
    credit = estimate_team_advantages(
        rollout, last_values=last, final_values=policy.values(rollout.final), gamma=0.9, gae_lambda=0.9
    )
    buffer = build_team_buffer(rollout, credit, norm=ValueNormalizer())
    assert float(buffer.advantage.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(buffer.advantage.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    judged = policy.model.evaluate(buffer.observations, buffer.actions)
    ours, count = team_policy_loss(
        judged.logp, buffer.old_logprobs, buffer.advantage, weights=buffer.policy_mask, clip_range=0.2
    )
    plain = -(buffer.advantage * judged.logp).sum()
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    for one, two in zip(
        torch.autograd.grad(ours, weights, retain_graph=True, allow_unused=True),
        torch.autograd.grad(plain, weights, allow_unused=True),
        strict=True,
    ):
        assert (one is None and two is None) or torch.allclose(one, two, atol=1e-5)
    assert count == rollout.alive.sum()


# ------------------------------------------------------------------ switches


def changed(
    settings: TeamUpdateConfig, *, alive=None, kind: str = "mat", rollout: ArrayRollout | None = None, **policy
):
    """All weights after one update, and what was measured."""
    learner = TeamLearner(policy_of(kind, **policy), settings, seed=0)
    given = told(rollout or example(alive=alive), learner.policy)
    stats = learner.update(given)
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()]), stats


ALIVE = np.ones((6, 2, 2), bool)
ALIVE[1:3, 0, 1] = ALIVE[5, 1, 0] = False


@pytest.mark.parametrize(
    "switch",
    [
        {"value_norm": False},
        {"mask_policy": False},
        {"mask_values": False},
        {"clip_values": False},
        {"entropy_coef": 0.5},
        {"huber": 0.01},
        {"gae_lambda": 0.5},
        {"gamma": 0.5},
        {"clip_range": 0.001},
        {"grad_norm": 0.01},
        {"value_weight": 3.0},
        {"ppo_epochs": 1},
        {"minibatches": 1},
        {"lr": 2e-3},
    ],
)
def test_every_setting_changes_what_it_names(switch):
    few = FEW.model_copy(update={"lr": 1e-2, "ppo_epochs": 4})
    assert not torch.equal(changed(few, alive=ALIVE)[0], changed(few.model_copy(update=switch), alive=ALIVE)[0])
    assert torch.equal(changed(few, alive=ALIVE)[0], changed(few, alive=ALIVE)[0])


def test_masks_are_on_at_first_and_leave_the_dead_out():
    """The published switches turned off what they name; here each is on, and off it looks at the dead."""
    assert TeamUpdateConfig().mask_policy and TeamUpdateConfig().mask_values
    policy = policy_of()
    rollout = told(example(alive=ALIVE), policy)
    credit = estimate_team_advantages(
        rollout, last_values=np.zeros((2, 2)), final_values=np.zeros((1, 2)), gamma=0.9, gae_lambda=0.9
    )
    for name, weights in (("mask_policy", "policy_mask"), ("mask_values", "value_mask")):
        for on in (True, False):
            buffer = build_team_buffer(rollout, credit, norm=ValueNormalizer(), **{name: on})
            found = getattr(buffer, weights).numpy().reshape(ALIVE.shape) > 0
            assert (found == ALIVE).all() if on else found.all()


def test_what_the_dead_did_does_not_matter():
    rollout = example(alive=ALIVE)
    noise = replace(
        rollout,
        actions=np.where(ALIVE, rollout.actions, 1 - rollout.actions),
        observation=np.where(ALIVE[..., None], rollout.observation, 9.0).astype(np.float32),
        value=np.where(ALIVE, rollout.value, 50.0).astype(np.float32),
    )
    for kind in ("mat", "mappo"):
        results = []
        for given in (rollout, noise):
            learner = TeamLearner(policy_of(kind), FEW, seed=0)
            learner.update(given)
            results.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
        assert torch.equal(*results)


def test_lost_episodes_are_left_out():
    whole = example()
    lost = np.zeros((6, 2), bool)
    lost[:3, 0] = True
    broken = replace(whole, lost=lost, reward=np.where(lost, np.nan, whole.reward))
    policy = policy_of()
    credit = estimate_team_advantages(
        broken, last_values=np.zeros((2, 2)), final_values=np.zeros((1, 2)), gamma=0.9, gae_lambda=0.9
    )
    buffer = build_team_buffer(broken, credit, norm=ValueNormalizer())
    taken = torch.cat([batch.observations.observation for batch in iterate_minibatches(buffer, 3, 0)])
    kept = torch.from_numpy(broken.observation).flatten(0, 1)[[1, 3, 5, 6, 7, 8, 9, 10, 11]]
    assert sorted(taken.flatten(1).tolist()) == sorted(kept.flatten(1).tolist())
    learner = TeamLearner(policy, FEW, seed=0)
    assert np.isfinite(list(learner.update(broken).values())).all()


def test_a_pass_takes_every_decision_once():
    policy, rollout = policy_of(), example()
    credit = estimate_team_advantages(
        rollout, last_values=np.zeros((2, 2)), final_values=np.zeros((1, 2)), gamma=0.9, gae_lambda=0.9
    )
    buffer = build_team_buffer(rollout, credit, norm=ValueNormalizer())
    one, two = ([batch.old_logprobs for batch in iterate_minibatches(buffer, 3, 0, epoch)] for epoch in (0, 1))
    assert [len(x) for x in one] == [4, 4, 4]
    assert sorted(torch.cat(one).tolist()) == sorted(torch.cat(two).tolist()) == sorted(buffer.old_logprobs.tolist())
    assert not torch.equal(torch.cat(one), torch.cat(two))
    assert len(list(iterate_minibatches(buffer, 40, 0))) == 12
    for batch in iterate_minibatches(buffer, 3, 0):  # what belongs together stays together
        at = [buffer.old_logprobs.tolist().index(row) for row in batch.old_logprobs.tolist()]
        for a, b in zip(batch[2:], buffer.select_rows(torch.tensor(at))[2:], strict=True):
            assert torch.equal(a, b)
    assert policy.spec == rollout.spec


@pytest.mark.parametrize("spec", [replace(SPEC, actions=Continuous(2)), replace(SPEC, actions=Multi((2, 2)))])
@pytest.mark.parametrize("kind", KINDS)
def test_all_spaces_are_learned(kind, spec):
    rollout = example(spec) if isinstance(spec.actions, Continuous) else example()
    if not isinstance(spec.actions, Continuous):
        rollout = replace(rollout, spec=spec, actions=np.stack([rollout.actions] * 2, -1))
    learner = TeamLearner(policy_of(kind, spec), FEW, seed=0)
    stats = learner.update(told(rollout, learner.policy))
    assert np.isfinite(list(stats.values())).all() and stats["grad_norm"] > 0


# ------------------------------------------------------------------ HAPPO


def test_happo_goes_one_by_one_with_the_product_of_ratios():
    """Against a plain loop over agents with networks of their own and torch's optimizer."""
    settings = FEW.model_copy(
        update={"ppo_epochs": 1, "minibatches": 1, "entropy_coef": 0.0, "lr": 0.05, "grad_norm": 1e9}
    )
    learner = TeamLearner(policy_of("happo"), settings, seed=3)
    rollout = told(example(), learner.policy)
    plain = make_team(learner.model.shape, seed=0)
    policy = TeamPolicy(plain, SPEC)
    credit = estimate_team_advantages(
        rollout,
        last_values=policy.values(rollout.last),
        final_values=policy.values(rollout.final),
        gamma=0.99,
        gae_lambda=0.95,
    )
    advantage = credit.advantage.reshape(-1, 2)
    advantage = torch.from_numpy((advantage - advantage.mean()) / advantage.std()).float()
    old, seen, actions = (
        torch.from_numpy(rollout.logp).reshape(-1, 2),
        rollout_tensors(rollout),
        rollout_actions(rollout),
    )
    factor = torch.ones(12)
    order = sample_rng("team-order", 3, 0).permutation(2)
    for agent in order:
        optimizer = torch.optim.Adam(plain.actor_parameters(agent), 0.05, eps=1e-5)
        ratio = (plain.evaluate(seen, actions).logp[:, agent] - old[:, agent]).exp()
        gain = factor * advantage[:, agent]
        (-torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            factor = factor * (plain.evaluate(seen, actions).logp[:, agent] - old[:, agent]).exp()
    learner.update(rollout)
    assert not torch.allclose(factor, torch.ones(12), atol=1e-2)
    for agent in range(2):
        for one, two in zip(learner.model.actor_parameters(agent), plain.actor_parameters(agent), strict=True):
            assert torch.allclose(one, two, atol=1e-5)
    assert {tuple(sample_rng("team-order", 3, number).permutation(2)) for number in range(12)} == {(0, 1), (1, 0)}


@pytest.mark.parametrize("mask", [True, False])
def test_what_the_dead_did_is_no_factor_for_the_others(mask):
    alive = np.ones((6, 2, 2), bool)
    alive[1, :, 0] = alive[4, 1, 1] = False
    learner = TeamLearner(policy_of("happo"), FEW.model_copy(update={"mask_policy": mask}), seed=0)
    rollout = example(alive=alive)
    credit = estimate_team_advantages(
        rollout, last_values=np.zeros((2, 2)), final_values=np.zeros((1, 2)), gamma=0.9, gae_lambda=0.9
    )
    buffer = build_team_buffer(rollout, credit, norm=ValueNormalizer(), mask_policy=mask)
    for agent in range(2):
        ratio = learner._compute_ratio(learner.model, buffer, agent)[:, 0].numpy()
        assert np.array_equal(ratio != 1.0, alive[..., agent].reshape(-1))


# ------------------------------------------------------------------ resuming, faults


@pytest.mark.parametrize("kind", ["mat", "mat_dec", "happo"])
def test_taken_up_again_it_goes_on_to_the_same_weights(kind):
    one, two = (TeamLearner(policy_of(kind), FEW, seed=1) for _ in range(2))
    one.update(example(seed=1))
    torch.manual_seed(5)
    two.update(example(seed=1))
    again = TeamLearner(TeamPolicy(make_team(one.model.shape, seed=9), SPEC), FEW, seed=1)
    again.restore(one.tensors(), one.numbers())
    for learner in (one, two, again):
        learner.update(example(seed=2))
    assert again.norm == one.norm and again.updates == 2
    for a, b, c in zip(*(learner.model.parameters() for learner in (one, two, again)), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    other = TeamLearner(policy_of("mappo"), FEW, seed=1)
    with pytest.raises(ShapeMismatch, match="another network"):
        other.restore(one.tensors(), one.numbers())


def test_a_loss_that_is_not_finite_takes_no_step():
    """A rollout that is damaged after it was checked."""
    learner = TeamLearner(policy_of(), FEW, seed=0)
    before = [p.detach().clone() for p in learner.model.parameters()]
    rollout = example()
    rollout.observation[0, 0, 0, 0] = np.nan
    with pytest.raises(NonFinite):
        learner.update(rollout)
    single = FEW.model_copy(update={"minibatches": 1})
    learner = TeamLearner(policy_of(), single, seed=0)
    with pytest.raises(NonFinite):
        learner.update(rollout)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def test_a_gradient_that_is_not_finite_takes_no_step():
    """The loss is a number, its slope is not: 0 times the root of 0."""
    learner = TeamLearner(policy_of(), FEW, seed=0)
    before = [p.detach().clone() for p in learner.model.parameters()]
    weight = next(learner.model.parameters())
    with pytest.raises(NonFinite, match="gradient"):
        learner.optimizers[0].step((0.0 * weight.flatten()[0]).sqrt())
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def test_credit_and_values_go_together():
    with pytest.raises(ShapeMismatch, match="prefix values and credit by parts"):
        TeamLearner(policy_of(), FEW.model_copy(update={"credit": "part"}), seed=0)
    with pytest.raises(ShapeMismatch, match="prefix values and credit by parts"):
        TeamLearner(policy_of(prefix_values=True), FEW, seed=0)


# ------------------------------------------------------------------ games whose value is known


def joint(policy: TeamPolicy, view, agents: int, actions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All joint actions of the first row, and their probabilities."""
    every = torch.tensor(list(product(range(actions), repeat=agents)))[..., None]
    with torch.no_grad():
        wide = TeamInputs(torch.from_numpy(view.observation[:1]).expand(len(every), -1, -1))
        return every[..., 0], policy.model.evaluate(wide, every).logp.sum(1).exp().double()


@pytest.mark.parametrize(
    ("kind", "credit"),
    [("mat", "action"), ("mat", "part"), ("mat_dec", "action"), ("mappo", "action"), ("happo", "action")],
)
def test_no_update_makes_a_team_worse(kind, credit):
    """The team game of the specification: the exact expected pay of the policy rises from about 2 to 5."""
    world = GameWorld("team")
    batch = world.batch([world.task(3)], 128)
    now = batch.reset(np.arange(128))
    settings = {"share": True} if kind == "mat_dec" else {}
    policy = policy_of(kind, batch.spec, prefix_values=credit == "part", **settings)
    updates = TeamUpdateConfig(lr=5e-3, ppo_epochs=4, minibatches=1, clip_range=0.1, entropy_coef=0.0, credit=credit)
    learner = TeamLearner(policy, updates, seed=0)
    pays = []
    for _ in range(25):
        bits, chance = joint(policy, now, 3, batch.spec.actions.n)
        assert chance.sum().item() == pytest.approx(1.0, abs=1e-5)
        ones = bits.sum(1)
        pays.append((chance * (ones + 2.0 * ((ones == 0) | (ones == 3)))).sum().item())
        rollout, now = play(batch, policy, 2, seed=0, now=now)
        learner.update(rollout)
    assert isinstance(batch.spec.actions, Discrete)
    assert pays[0] < 2.6 and pays[-1] > 4.8
    assert min(np.diff(pays)) > -0.02, "no update costs more than what sampling may"
