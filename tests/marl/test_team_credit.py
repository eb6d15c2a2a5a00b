"""Credit of teams: by hand, beside a double loop, time limits, deaths, and the joint advantage by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_play import SPEC, rollout_of, view

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, NothingToLearn
from evolvent.marl.credit import ValueNormalizer, estimate_team_advantages, fill_dead_values
from evolvent.marl.rollout import draw_uniforms
from evolvent.worlds.teams.base import TeamSpec


def slow(rollout, last, final, *, gamma, lam):
    """One agent, one row, one step after the other."""
    steps, rows, agents = rollout.alive.shape
    found = np.zeros((steps, rows, agents))
    ends = {tuple(at): value for at, value in zip(rollout.final_at.tolist(), final, strict=True)}
    for e, j in product(range(rows), range(agents)):
        carry = 0.0
        for t in reversed(range(steps)):
            if rollout.terminated[t, e]:
                follows, carry = 0.0, 0.0
            elif rollout.truncated[t, e]:
                follows, carry = ends[t, e][j], 0.0
            else:
                follows = last[e, j] if t == steps - 1 else float(rollout.value[t + 1, e, j])
            delta = rollout.reward[t, e] + gamma * follows - float(rollout.value[t, e, j])
            carry = delta + gamma * lam * carry
            found[t, e, j] = carry
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10_000))
def test_it_is_the_double_loop(steps, rows, agents, seed):
    rng = np.random.default_rng(seed)
    ends = {(t, e): rng.integers(3) for t, e in product(range(steps), range(rows)) if rng.random() < 0.3}
    spec = replace(SPEC, agents=agents)
    rollout = rollout_of(
        rng.normal(size=(steps, rows)),
        spec=spec,
        seed=seed,
        terminated=[at for at, kind in ends.items() if kind == 1],
        truncated=[at for at, kind in ends.items() if kind == 2],
    )
    last, final = rng.normal(size=(rows, agents)), rng.normal(size=(len(rollout.final_at), agents))
    credit = estimate_team_advantages(rollout, last_values=last, final_values=final, gamma=0.9, gae_lambda=0.7)
    expected = slow(rollout, last, final, gamma=0.9, lam=0.7)
    assert np.allclose(credit.advantage, expected, atol=1e-9)
    assert np.allclose(credit.returns, expected + rollout.value, atol=1e-6)
    assert credit.learned.all()


def test_by_hand():
    """Two decisions, terminated: A_1 = 1 - .5, A_0 = 0 + .5 * .5 - .25 + .25 * A_1; the other agent has values 0."""
    rollout = rollout_of([[0.0], [1.0]], terminated=[(1, 0)], value=[[[0.25, 0.0]], [[0.5, 0.0]]])
    credit = estimate_team_advantages(
        rollout, last_values=np.full((1, 2), 9.0), final_values=np.zeros((0, 2)), gamma=0.5, gae_lambda=0.5
    )
    assert np.allclose(credit.advantage[:, 0], [[0.125, 0.25], [0.5, 1.0]])
    assert np.allclose(credit.returns[:, 0], [[0.375, 0.25], [1.0, 1.0]])


def test_by_parts_is_the_golden_scan():
    """Lengths 2 and 3 of the specification: the third agent is dead at first. Then a cut, worth 2."""
    spec = replace(SPEC, agents=3)
    alive = np.array([[[1, 1, 0]], [[1, 1, 1]]], bool)
    value = [[[0.5, 0.25, 7.0]], [[0.75, 1.0, 0.5]]]
    over = rollout_of([[0.0], [1.0]], spec=spec, terminated=[(1, 0)], value=value, alive=alive)
    given_ = {"gamma": 0.5, "gae_lambda": 0.5, "level": "part"}
    credit = estimate_team_advantages(over, last_values=np.ones((1, 3)), final_values=np.zeros((0, 3)), **given_)
    assert np.allclose(credit.advantage[:, 0], [[-0.0625, 0.1875, 0.0], [0.25, 0.0, 0.5]])
    half = estimate_team_advantages(
        over, last_values=np.ones((1, 3)), final_values=np.zeros((0, 3)), part_lambda=0.5, **given_
    )
    assert np.allclose(half.advantage[:, 0], [[-0.171875, 0.15625, 0.0], [0.125, -0.25, 0.5]])
    cut = rollout_of([[0.0], [1.0]], spec=spec, truncated=[(1, 0)], value=value, alive=alive)
    goes_on = rollout_of([[0.0], [1.0]], spec=spec, value=value, alive=alive)
    for rollout, last, final in ((cut, 5.0, [[2.0] * 3]), (goes_on, 2.0, np.zeros((0, 3)))):
        credit = estimate_team_advantages(rollout, last_values=np.full((1, 3), last), final_values=final, **given_)
        assert np.allclose(credit.advantage[:, 0], [[0.1875, 0.4375, 0.0], [1.25, 1.0, 1.5]])
    assert (credit.learned == alive).all()


def test_a_decision_of_nobody_is_worth_nothing_of_its_own():
    """Both are dead at the second of three decisions: what the critic says of them there is not looked at."""
    alive = np.array([[[1, 1]], [[0, 0]], [[1, 1]]], bool)
    value = np.array([[[0.5, 0.25]], [[np.nan, np.nan]], [[1.0, 0.5]]])
    rollout = rollout_of([[0.0], [2.0], [1.0]], terminated=[(2, 0)], value=value, alive=alive)
    credit = estimate_team_advantages(
        rollout, last_values=np.ones((1, 2)), final_values=np.zeros((0, 2)), gamma=0.5, gae_lambda=0.0, level="part"
    )
    assert np.allclose(credit.advantage[:, 0], [[-0.5, -0.25], [0.0, 0.0], [0.0, 0.5]])


def test_one_agent_by_parts_is_one_agent_at_action_level():
    spec = replace(SPEC, agents=1)
    rollout = rollout_of(np.random.default_rng(0).normal(size=(5, 3)), spec=spec, terminated=[(2, 1)])
    one, two = (
        estimate_team_advantages(
            rollout, last_values=np.ones((3, 1)), final_values=np.zeros((0, 1)), gamma=0.9, gae_lambda=0.8, level=level
        )
        for level in ("action", "part")
    )
    assert np.allclose(one.advantage, two.advantage) and np.allclose(one.returns, two.returns)


def test_a_cut_is_no_end():
    """Constant reward 1, gamma .9, episodes cut after 4 steps: values that are fitted to the returns tend to 10, and to
    (1 - .9^4) / (1 - .9) and less where a cut is taken for an end (the published code)."""
    found = {}
    for kind in ("truncated", "terminated"):
        values = 0.0
        for _ in range(300):
            rollout = rollout_of(np.ones((4, 1)), **{kind: [(3, 0)]}, value=np.full((4, 1, 2), values))
            credit = estimate_team_advantages(
                rollout,
                last_values=np.zeros((1, 2)),
                final_values=np.full((len(rollout.final_at), 2), values),
                gamma=0.9,
                gae_lambda=0.95,
            )
            values = float(credit.returns.mean())
        found[kind] = values
    assert found["truncated"] == pytest.approx(10.0, abs=1e-6)
    assert found["terminated"] < 3.5


def test_who_dies_is_credited_with_what_the_team_does_next():
    """Agent 1 dies after the first decision; its value is then that of agent 0. What the critic says of the dead does
    not matter."""
    alive = np.array([[[1, 1]], [[1, 0]], [[1, 0]]], bool)
    value = np.array([[[1.0, 3.0]], [[2.0, 99.0]], [[4.0, -99.0]]])
    rollout = rollout_of([[0.0], [0.0], [5.0]], terminated=[(2, 0)], alive=alive, value=value)
    credit = estimate_team_advantages(
        rollout, last_values=np.zeros((1, 2)), final_values=np.zeros((0, 2)), gamma=1.0, gae_lambda=1.0
    )
    assert np.allclose(credit.advantage[:, 0], [[4.0, 2.0], [3.0, 3.0], [1.0, 1.0]])
    assert credit.learned[:, 0].tolist() == [[True, True], [True, False], [True, False]]
    assert fill_dead_values([[1.0, 3.0, 8.0], [5.0, 6.0, 7.0]], [[1, 1, 0], [0, 0, 0]]).tolist() == [
        [1, 3, 2],
        [0, 0, 0],
    ]


def test_lost_episodes_teach_nothing():
    reward = np.array([[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0], [1.0, 1.0]])
    rollout = rollout_of(reward, terminated=[(2, 0)], lost=[(0, 0), (1, 0), (2, 0)])
    alone = rollout_of(np.ones((4, 2)), terminated=[(2, 0)])
    given_ = {"last_values": np.ones((2, 2)), "final_values": np.zeros((0, 2)), "gamma": 0.9, "gae_lambda": 0.9}
    credit, other = estimate_team_advantages(rollout, **given_), estimate_team_advantages(alone, **given_)
    assert not credit.learned[:3, 0].any() and not credit.advantage[:3, 0].any()
    assert np.allclose(credit.advantage[:, 1], other.advantage[:, 1])
    assert np.allclose(credit.advantage[3, 0], other.advantage[3, 0])
    every = rollout_of(np.ones((2, 1)), lost=[(0, 0), (1, 0)])
    with pytest.raises(NothingToLearn):
        estimate_team_advantages(
            every, last_values=np.ones((1, 2)), final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.9
        )


def test_rows_are_apart():
    rng = np.random.default_rng(0)
    reward, value, last = rng.normal(size=(5, 3)), rng.normal(size=(5, 3, 2)), rng.normal(size=(3, 2))
    rollout = rollout_of(reward, value=value, terminated=[(1, 2), (4, 0)])
    order = [2, 0, 1]
    moved = rollout_of(reward[:, order], value=value[:, order], terminated=[(1, 0), (4, 1)])
    for level in ("action", "part"):
        one = estimate_team_advantages(
            rollout, last_values=last, final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.9, level=level
        )
        two = estimate_team_advantages(
            moved, last_values=last[order], final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.9, level=level
        )
        assert np.allclose(one.advantage[:, order], two.advantage)


# ------------------------------------------------------------------ the game of the specification, enumerated

PAY = {bits: sum(bits) + 2 * (len(set(bits)) == 1) for bits in product((0, 1), repeat=3)}


def prefix(known: dict[int, int]) -> float:
    """The mean pay where some agents' actions are known and the others are drawn evenly."""
    return float(np.mean([pay for bits, pay in PAY.items() if all(bits[i] == b for i, b in known.items())]))


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("bits", list(PAY))
def test_parts_sum_to_the_joint_advantage_in_every_order(bits, order):
    value = [[[prefix({i: bits[i] for i in order[:m]}) for m in range(3)]]]
    spec = TeamSpec(agents=3, observation=1, actions=SPEC.actions, horizon=1)
    rollout = rollout_of([[PAY[bits]]], spec=spec, terminated=[(0, 0)], value=value)
    credit = estimate_team_advantages(
        rollout,
        last_values=np.zeros((1, 3)),
        final_values=np.zeros((0, 3)),
        gamma=0.9,
        gae_lambda=0.0,
        part_lambda=0.0,
        level="part",
    )
    parts = credit.advantage[0, 0]
    assert parts.sum() == pytest.approx(PAY[bits] - 2.0)
    own = [prefix({i: bits[i] for i in order[: m + 1]}) - prefix({i: bits[i] for i in order[:m]}) for m in range(3)]
    assert np.allclose(parts, own)
    if bits == (1, 1, 1):
        assert np.allclose(parts, [0.5, 1.0, 1.5])
    if bits == (1, 1, 0) and order == (0, 1, 2):
        assert np.allclose(parts, [0.5, 1.0, -1.5])
    if bits == (1, 1, 0) and order == (2, 0, 1):
        assert np.allclose(parts, [-0.5, 0.0, 0.5])


# ------------------------------------------------------------------ normalisation, draws, bad input


def test_value_norm_by_hand():
    norm = ValueNormalizer(beta=0.5)
    assert norm.moments == (0.0, 1.0) and norm.denormalize([3.0]).tolist() == [3.0]
    norm = norm.update([1.0, 3.0])
    assert norm.moments == pytest.approx((2.0, 1.0))  # the first batch alone, whatever beta is
    norm = norm.update([6.0])
    mean = (0.5 * 2.0 + 6.0) / 1.5
    assert norm.moments[0] == pytest.approx(mean)
    assert norm.moments[1] == pytest.approx(np.sqrt((0.5 * 5.0 + 36.0) / 1.5 - mean**2))
    assert norm.denormalize(norm.normalize([1.5, -2.0])) == pytest.approx([1.5, -2.0])
    assert norm.update([]) == norm
    assert ValueNormalizer().update([2.0, 2.0]).moments == pytest.approx((2.0, 0.1))


def test_credit_is_on_the_scale_of_rewards():
    norm = ValueNormalizer().update([3.0, 7.0])  # mean 5, std 2
    raw = rollout_of([[1.0], [2.0]], value=[[[4.0, 6.0]], [[5.0, 1.0]]])
    stored = replace(raw, value=((raw.value - 5.0) / 2.0).astype(np.float32))
    one = estimate_team_advantages(
        raw, last_values=np.full((1, 2), 8.0), final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.5
    )
    two = estimate_team_advantages(
        stored, last_values=np.full((1, 2), 1.5), final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.5, norm=norm
    )
    assert np.allclose(one.advantage, two.advantage, atol=1e-5) and np.allclose(one.returns, two.returns, atol=1e-5)


def test_draws_belong_to_their_episode():
    number, time = np.array([5, 9, 5]), np.array([0, 3, 1])
    draws = draw_uniforms(1, number, time, agents=3, parts=2)
    assert draws.shape == (3, 3, 2) and len(np.unique(draws)) == 18
    assert np.array_equal(draw_uniforms(1, number[1:2], time[1:2], agents=3, parts=2)[0], draws[1])
    assert np.array_equal(draw_uniforms(1, number, time, agents=5, parts=2)[:, :3], draws)
    assert not np.isclose(draw_uniforms(2, number, time, agents=3, parts=2), draws).any()
    with pytest.raises(ConfigError, match="too many samples for one decision: got 1025 agents"):
        draw_uniforms(1, number, time, agents=1025, parts=1)
    many = draw_uniforms(0, np.arange(4000), np.zeros(4000, int), agents=3, parts=1)
    assert abs(many.mean() - 0.5) < 0.01 and abs(np.corrcoef(many[:, 0, 0], many[:, 1, 0])[0, 1]) < 0.05


def test_what_does_not_fit():
    rollout = rollout_of(np.ones((2, 1)))
    with pytest.raises(BatchMismatch, match="bootstrap values have the wrong shape"):
        estimate_team_advantages(
            rollout, last_values=np.ones((1, 3)), final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.9
        )
    with pytest.raises(NonFinite):
        estimate_team_advantages(
            rollout, last_values=np.full((1, 2), np.nan), final_values=np.zeros((0, 2)), gamma=0.9, gae_lambda=0.9
        )
    with pytest.raises(BatchMismatch, match="observation"):
        replace(rollout, observation=rollout.observation[..., :2])
    with pytest.raises(BatchMismatch, match="both"):
        rollout_of(np.ones((2, 1)), terminated=[(0, 0)], truncated=[(0, 0)])
    cut = rollout_of(np.ones((2, 1)), truncated=[(0, 0)])
    with pytest.raises(BatchMismatch, match="a truncated episode has no final observation"):
        replace(cut, final=None, final_at=np.zeros((0, 2), int))
    with pytest.raises(BatchMismatch, match="final views"):
        replace(cut, final=view(SPEC, 2))
    with pytest.raises(NonFinite, match="reward at row 0, episode 0, step 1"):
        rollout_of([[1.0], [np.inf]])
    for name in ("observation", "logp", "value"):
        damaged = getattr(rollout, name).copy()
        damaged[1] = np.nan
        with pytest.raises(NonFinite, match=f"{name} at row 0, episode 0, step 1"):
            replace(rollout, **{name: damaged})
