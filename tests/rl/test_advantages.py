"""Credit: goldens worked by hand, a double loop as the oracle, and what must not change an estimate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_tables import Told, table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite
from evolvent.learn.returns import reverse_scan, reward_to_go
from evolvent.rl.advantages import decomposed_gae, discounted_returns, episode_returns, kl_in_reward, overlong_penalty
from evolvent.rl.rollout_batch import RolloutBatch

TWO = table(Told([2, 3], [0.0, 1.0]))
TWO_CUT = table(Told([2, 3], [0.0, 1.0], bootstrap=2.0))
VALUES = [0.5, 0.25, 0.75, 1.0, 0.5]


def near(found: NDArray[np.float64], expected: Sequence[float]) -> None:
    assert found.tolist() == pytest.approx(list(expected), abs=1e-12)


# ------------------------------------------------------------------ the scan


def test_scan_golden() -> None:
    """Worked backwards: 4; 3 + .5 * 4; 2 + 0; 1 + 2 * 2."""
    near(reverse_scan([1.0, 2.0, 3.0, 4.0], [2.0, 0.0, 0.5, 9.0]), [5.0, 2.0, 5.0, 4.0])
    assert reverse_scan([], []).shape == (0,) and reverse_scan([7.0], [3.0]).tolist() == [7.0]


@settings(deadline=None)
@given(st.integers(0, 70), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_scan_is_the_loop(parts: int, axes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    delta, carry = rng.normal(size=(parts, *[2] * axes)), rng.choice([0.0, 0.5, 0.95, 1.0], parts)
    expected, follows = np.zeros_like(delta), np.zeros(delta.shape[1:])
    for at in reversed(range(parts)):
        follows = expected[at] = delta[at] + carry[at] * follows
    np.testing.assert_allclose(reverse_scan(delta, carry), expected, rtol=0, atol=1e-12)


def test_scan_leaves_its_input_alone_and_stays_finite_where_products_vanish() -> None:
    """0.5 ** 5000 is 0 in float64: dividing by products of carries would give NaN."""
    delta, carry = np.ones(5000), np.full(5000, 0.5)
    found = reverse_scan(delta, carry)
    assert found[0] == 2.0 and found[-1] == 1.0 and np.isfinite(found).all()
    assert (delta == 1).all() and (carry == 0.5).all()


def test_scan_refuses_other_lengths() -> None:
    with pytest.raises(BatchMismatch, match="differ in length"):
        reverse_scan([1.0, 2.0], [1.0])


# ------------------------------------------------------------------ decomposed GAE


@pytest.mark.parametrize(
    ("flat", "gamma_part", "lam_part", "expected"),
    [
        (TWO, 1.0, 1.0, [-0.0625, 0.1875, 0.25, 0.0, 0.5]),
        (TWO, 1.0, 0.5, [-0.171875, 0.15625, 0.125, -0.25, 0.5]),
        (TWO, 0.5, 0.5, [-0.369140625, 0.0234375, -0.40625, -0.625, 0.5]),  # NTPO
        (TWO_CUT, 1.0, 1.0, [0.1875, 0.4375, 1.25, 1.0, 1.5]),
    ],
)
def test_gae_golden(flat: RolloutBatch, gamma_part: float, lam_part: float, expected: list[float]) -> None:
    credit = decomposed_gae(VALUES, flat, gamma=0.5, gae_lambda=0.5, token_gamma=gamma_part, token_lambda=lam_part)
    near(credit.advantage, expected)
    near(credit.returns, np.add(expected, VALUES).tolist())


def test_step_gae_golden() -> None:
    flat = table(Told([1, 1, 1], [0.5, 0.75, 1.0]))
    near(decomposed_gae([0.4, 0.6, 0.8], flat, gamma=0.95, gae_lambda=0.95).advantage, [1.65417625, 1.0905, 0.2])


def test_tppo_golden() -> None:
    """One action of two spans of two tokens each, the spans in the place of actions."""
    flat = replace(table(Told([[2, 2]], [1.0])), reward=np.asarray([0.0, 0.5, 0.0, 1.0]))
    credit = decomposed_gae(
        [0.1, 0.2, 0.3, 0.4], flat, gamma=0.95, gae_lambda=0.95, token_gamma=1.0, token_lambda=0.95, between="span"
    )
    near(credit.advantage, [1.23019125, 1.189675, 0.67, 0.6])


def test_appo_is_step_gae_over_spans() -> None:
    """Three spans of 2, 1 and 3 tokens with the values and rewards of the step golden."""
    flat = replace(table(Told([[2, 1], 3], [0.0, 0.0])), reward=np.asarray([0.2, 0.3, 0.75, 0.0, 0.0, 1.0]))
    credit = decomposed_gae(
        [0.4, 9.0, 0.6, 0.8, 9.0, 9.0], flat, gamma=0.95, gae_lambda=0.95, level="span", between="span"
    )
    near(credit.advantage, [1.65417625, 1.65417625, 1.0905, 0.2, 0.2, 0.2])


def test_a_span_ends_with_its_action() -> None:
    """Span numbers that go on over the border of an action do not join two actions into one unit."""
    flat = replace(table(Told([1, 1, 1], [0.5, 0.75, 1.0])), span=np.zeros(3, np.int64))
    cases: list[tuple[Any, Any]] = [("span", "span"), ("span", "action"), ("part", "span")]
    for level, between in cases:
        credit = decomposed_gae([0.4, 0.6, 0.8], flat, gamma=0.95, gae_lambda=0.95, level=level, between=between)
        near(credit.advantage, [1.65417625, 1.0905, 0.2])


def test_one_step_targets_are_the_values_of_what_follows() -> None:
    """lambda 0: inside an action the next prefix, at its end the reward and the next action's first prefix."""
    credit = decomposed_gae(VALUES, TWO, gamma=0.5, gae_lambda=0.0, token_lambda=0.0)
    near(credit.returns, [0.25, 0.5 * 0.75, 1.0, 0.5, 1.0])


def test_the_bootstrap_is_the_first_part_of_the_next_action() -> None:
    """Not its last one, as in a published code: what that one is worth does not reach over the border by itself."""
    other = [0.5, 0.25, 0.75, 1.0, 99.0]
    for values in (VALUES, other):
        near(decomposed_gae(values, TWO, gamma=0.5, gae_lambda=0.0, token_lambda=0.0).returns[:2], [0.25, 0.375])


def test_without_values_the_returns_are_discounted() -> None:
    flat = table(Told([2, 1, 3], [1.0, 0.0, 4.0]), Told([1], [2.0]))
    found = decomposed_gae(np.zeros(7), flat, gamma=0.5, gae_lambda=1.0)
    near(found.returns, [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 2.0])
    near(found.returns, discounted_returns(flat, gamma=0.5).tolist())
    near(discounted_returns(flat, gamma=1.0), [5.0, 5.0, 4.0, 4.0, 4.0, 4.0, 2.0])
    near(discounted_returns(flat, gamma=1.0, token_gamma=0.5), [1.0, 2.0, 1.0, 1.0, 2.0, 4.0, 2.0])
    near(episode_returns(flat), [5.0, 2.0])


def test_a_turn_that_pays_nothing_is_a_turn() -> None:
    """Turn ends are known from the record, not from rewards: gamma falls between all of three actions."""
    near(discounted_returns(table(Told([1, 1, 1], [0.0, 0.0, 1.0])), gamma=0.5), [0.25, 0.5, 1.0])


def test_episode_level() -> None:
    flat = table(Told([2, 1], [1.0, 2.0]), Told([1, 1], [0.5, 0.5], bootstrap=4.0))
    credit = decomposed_gae([0.5, 9.0, 9.0, 0.25, 9.0], flat, gamma=0.5, gae_lambda=0.5, level="episode")
    near(credit.advantage, [2.5, 2.5, 2.5, 2.75, 2.75])
    near(credit.returns, [3.0, 3.0, 3.0, 3.0, 3.0])


def test_truncation_is_not_an_end() -> None:
    """Reward 1 for ever at gamma .9, cut after every step: fitting the value to the returns goes to 10, not to 1."""
    value = 0.0
    for _ in range(200):
        flat = table(Told([1], [1.0], bootstrap=value))
        value = float(decomposed_gae([value], flat, gamma=0.9, gae_lambda=0.95).returns[0])
    assert value == pytest.approx(10.0, abs=1e-6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[RolloutBatch, NDArray[np.float64], np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    told = []
    for _ in range(draw(st.integers(1, 4))):
        actions = [rng.integers(1, 4, rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 5))]
        rewards = rng.normal(size=len(actions)).tolist()
        told.append(Told(actions, rewards, bootstrap=float(rng.normal()) if rng.random() < 0.5 else None))
    flat = table(*told)
    flat = replace(flat, reward=flat.reward + rng.normal(size=flat.num_tokens))  # something is paid at every part
    return flat, rng.normal(size=flat.num_tokens), rng


def looped(
    value: NDArray[np.float64], flat: RolloutBatch, *, discounts: Sequence[float], level: Any, between: Any
) -> list[float]:
    """The definition, read aloud: units of credit one after the other, each from the one behind it."""
    gamma, lam, gamma_part, lam_part = discounts
    key = {
        "part": lambda p: p,
        "span": lambda p: (flat.action[p], flat.span[p]),
        "action": lambda p: flat.action[p],
        "episode": lambda p: flat.episode[flat.action[p]],
    }
    units: list[list[int]] = []
    for p in range(flat.num_tokens):
        if units and key[level](p) == key[level](p - 1):
            units[-1].append(p)
        else:
            units.append([p])
    advantage = [0.0] * flat.num_tokens
    follows, first = 0.0, 0.0
    for unit in reversed(units):
        end = unit[-1]
        paid, before = sum(flat.reward[p] for p in unit), value[unit[0]]
        if end + 1 == flat.num_tokens or flat.episode[flat.action[end + 1]] != flat.episode[flat.action[end]]:
            final = flat.bootstrap[flat.action[end]] if flat.ended[flat.action[end]] == 2 else 0.0
            acc = paid + gamma * final - before
        elif key[between](end) != key[between](end + 1):
            acc = paid + gamma * first - before + gamma * lam * follows
        else:
            acc = paid + gamma_part * first - before + gamma_part * lam_part * follows
        for p in unit:
            advantage[p] = acc
        follows, first = acc, before
    return advantage


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["part", "span", "action", "episode"]), st.sampled_from(["action", "span"]))
def test_gae_is_the_double_loop(
    case: tuple[RolloutBatch, NDArray[np.float64], np.random.Generator], level: Any, between: Any
) -> None:
    flat, value, rng = case
    discounts = rng.choice([0.0, 0.5, 0.9, 1.0], 4).tolist()
    names = ("gamma", "gae_lambda", "token_gamma", "token_lambda")
    credit = decomposed_gae(value, flat, **dict(zip(names, discounts, strict=True)), level=level, between=between)
    expected = looped(value, flat, discounts=discounts, level=level, between=between)
    np.testing.assert_allclose(credit.advantage, expected, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(cases())
def test_one_part_an_action_is_step_gae(case: tuple[RolloutBatch, NDArray[np.float64], np.random.Generator]) -> None:
    """Parity with the recursion of stable-baselines3's rollout buffer, written down from its documentation."""
    rng = case[2]
    steps = int(rng.integers(1, 12))
    ended = np.append(rng.random(steps - 1) < 0.3, True)
    sizes = np.diff(np.flatnonzero(np.append(True, ended)))
    flat = table(*(Told([1] * size, rng.normal(size=size).tolist()) for size in sizes.tolist()))
    value = rng.normal(size=steps)
    expected, last = np.zeros(steps), 0.0
    for step in reversed(range(steps)):
        goes_on = 0.0 if ended[step] else 1.0
        following = value[step + 1] if step + 1 < steps else 0.0
        last = flat.reward[step] + 0.9 * following * goes_on - value[step] + 0.9 * 0.8 * goes_on * last
        expected[step] = last
    levels: list[Any] = ["part", "span", "action"]
    for level in levels:
        credit = decomposed_gae(value, flat, gamma=0.9, gae_lambda=0.8, token_gamma=0.3, token_lambda=0.1, level=level)
        np.testing.assert_allclose(credit.advantage, expected, rtol=0, atol=1e-12)


def test_parity_with_torchrl() -> None:
    """Its estimator on the same three episodes, the last one cut (made by make_policy_peers.py)."""
    peer = json.loads(Path(__file__).with_name("policy_peers.json").read_text(encoding="utf-8"))["gae"]
    reward = peer["reward"]
    flat = table(
        Told([1] * 3, reward[:3]), Told([1] * 2, reward[3:5]), Told([1] * 4, reward[5:], bootstrap=peer["final"][0])
    )
    credit = decomposed_gae(peer["value"], flat, gamma=0.9, gae_lambda=0.8)
    for found, expected in ((credit.advantage, peer["advantage"]), (credit.returns, peer["target"])):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)  # it has gamma and lambda in float32


@settings(max_examples=25, deadline=None)
@given(cases())
def test_a_value_constant_inside_gives_the_actions_credit(
    case: tuple[RolloutBatch, NDArray[np.float64], np.random.Generator],
) -> None:
    flat, value, _ = case
    reward = np.zeros(flat.num_tokens)
    reward[flat.is_last_in_action] = flat.reward[flat.is_last_in_action]
    flat, value = replace(flat, reward=reward), value[: len(flat.episode)][flat.action]
    one = decomposed_gae(value, flat, gamma=0.9, gae_lambda=0.8)
    whole = decomposed_gae(value, flat, gamma=0.9, gae_lambda=0.8, level="action")
    np.testing.assert_allclose(one.advantage, whole.advantage, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(cases(), st.sampled_from(["part", "span", "action", "episode"]))
def test_trailing_axes_are_scanned_apart(
    case: tuple[RolloutBatch, NDArray[np.float64], np.random.Generator], level: Any
) -> None:
    flat, _, rng = case
    values, finals = rng.normal(size=(flat.num_tokens, 3, 2)), rng.normal(size=(len(flat.episode), 3, 2))
    whole = decomposed_gae(
        values, replace(flat, bootstrap=finals), gamma=0.9, gae_lambda=0.8, token_lambda=0.5, level=level
    )
    for agent in range(3):
        alone = decomposed_gae(
            values[:, agent, 1],
            replace(flat, bootstrap=finals[:, agent, 1]),
            gamma=0.9,
            gae_lambda=0.8,
            token_lambda=0.5,
            level=level,
        )
        assert np.array_equal(whole.advantage[:, agent, 1], alone.advantage)
        assert np.array_equal(whole.returns[:, agent, 1], alone.returns)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 2**32 - 1))
def test_the_order_of_episodes_changes_nothing(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [rng.integers(1, 5, rng.integers(1, 5)).tolist() for _ in range(4)]
    told = [Told(size, rng.normal(size=len(size)).tolist(), float(rng.normal())) for size in sizes]
    values = [rng.normal(size=sum(size)) for size in sizes]
    straight = decomposed_gae(np.concatenate(values), table(*told), gamma=0.9, gae_lambda=0.8)
    moved = decomposed_gae(
        np.concatenate([values[at] for at in order]), table(*(told[at] for at in order)), gamma=0.9, gae_lambda=0.8
    )
    pieces = np.split(straight.advantage, np.cumsum([sum(size) for size in sizes])[:-1])
    np.testing.assert_allclose(moved.advantage, np.concatenate([pieces[at] for at in order]), rtol=0, atol=1e-12)


def test_what_a_terminated_episode_has_as_bootstrap_is_not_looked_at() -> None:
    flat = table(Told([1], [1.0]), Told([1], [1.0], bootstrap=3.0))
    assert np.isnan(flat.bootstrap[0])
    near(decomposed_gae([0.0, 0.0], flat, gamma=0.5, gae_lambda=0.5).advantage, [1.0, 2.5])


def test_bad_values_are_named() -> None:
    flat = table(Told([1], [0.0]), Told([2, 3], [0.0, 1.0]))
    with pytest.raises(NonFinite, match="the value of episode 1, action 1, part 2 is not finite: got nan"):
        decomposed_gae([0, 0, 0, 0, 0, np.nan], flat, gamma=0.9, gae_lambda=0.9)
    with pytest.raises(BatchMismatch, match=r"length of 'value' does not match the tokens: got \(2,\), expected 6"):
        decomposed_gae([0, 0], flat, gamma=0.9, gae_lambda=0.9)
    cut = table(Told([1], [0.0]), Told([1], [0.0], bootstrap=float("nan")))
    with pytest.raises(NonFinite, match="final observation of the truncated episode 1"):
        decomposed_gae([0, 0], cut, gamma=0.9, gae_lambda=0.9)
    with pytest.raises(BatchMismatch, match="values of final observations have the wrong shape"):
        decomposed_gae(np.zeros((2, 3)), replace(cut, bootstrap=np.zeros((2, 2))), gamma=0.9, gae_lambda=0.9)


# ------------------------------------------------------------------ rewards


def test_kl_in_reward_golden() -> None:
    near(kl_in_reward([0.0, 1.0], [-1.0, -2.0], [-1.5, -1.0], beta=0.1), [-0.05, 1.1])


def test_returns_to_go_of_other_rewards() -> None:
    near(discounted_returns(TWO, gamma=0.5, reward=[1.0, 2.0, 3.0, 4.0, 5.0]), [9.0, 8.0, 12.0, 9.0, 5.0])
    with pytest.raises(NonFinite, match="the reward of episode 0, action 1, part 0"):
        discounted_returns(TWO, gamma=1.0, reward=[0, 0, np.inf, 0, 0])
    with pytest.raises(BatchMismatch, match="reward"):
        discounted_returns(TWO, gamma=1.0, reward=[0.0, 1.0])


def test_reward_to_go_golden() -> None:
    near(reward_to_go([1.0, 0.0, 4.0], gamma=0.5), [2.0, 2.0, 4.0])
    near(reward_to_go([1.0, 0.0, 4.0], gamma=[0.5, 0.25, 9.0]), [1.5, 1.0, 4.0])
    near(reward_to_go([1, 2, 3, 4], last=[False, True, False, True]), [3.0, 2.0, 7.0, 4.0])
    assert reward_to_go([[1.0, 2.0], [3.0, 4.0]], gamma=0.5, last=[1]).tolist() == [[2.5, 4.0], [3.0, 4.0]]
    assert reward_to_go([], gamma=0.5).tolist() == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0, 1))
def test_reward_to_go_is_discounted_sums(rewards: list[float], discount: float) -> None:
    wanted = [sum(discount**k * r for k, r in enumerate(rewards[at:])) for at in range(len(rewards))]
    assert reward_to_go(rewards, gamma=discount).tolist() == pytest.approx(wanted, abs=1e-9)


def test_overlong_golden() -> None:
    near(overlong_penalty([0, 80, 85, 90, 100, 101, 500], limit=100, cache=20), [0, 0, -0.25, -0.5, -1, -1, -1])
