"""Credit on decision problems that can be enumerated: backups by parts against solutions by whole actions.

A problem is a table: every action of every state is one episode of one action, cut after it, and the value of what
follows is its bootstrap. One sweep of `decomposed_gae` over all of them is one step of value iteration by parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flat_tables import Told, table
from numpy.typing import NDArray

from evolvent.rl.advantages import decomposed_gae, q_targets
from evolvent.rl.soft_values import expected_soft_value, hard_value, log_sum_exp_value, soft_policy

Array = NDArray[np.float64]
Reduce = Callable[[Array], Array]  # values of the next words [..., W] to that of the prefix [...]


@dataclass(frozen=True)
class Problem:
    """States S, words W, actions of n words: what an action pays `[S, W ** n]`, and where it leads `[S, W ** n, S]`.

    Rows that do not add up to 1 may end.
    """

    pay: Array
    leads: Array
    words: int
    gamma: float

    @property
    def length(self) -> int:
        return round(math.log(self.pay.shape[1], self.words))

    @property
    def actions(self) -> list[tuple[int, ...]]:
        return list(itertools.product(range(self.words), repeat=self.length))

    def whole(self, reduce: Reduce) -> tuple[Array, Array]:
        """The solution by whole actions: V `[S]`, Q `[S, W ** n]`."""
        value = np.zeros(len(self.pay))
        for _ in range(600):
            q = self.pay + self.gamma * self.leads @ value
            value = reduce(q)
        return value, q


@dataclass(frozen=True)
class Solved:
    """By parts: v of prefixes of each length, `[S, W ** j]`; Q of their next words, `[S, W ** j, W]`; advantages."""

    v: list[Array]
    q: list[Array]
    advantage: Array  # [S, W ** n, n], of each part of each action

    def policy(self, reduce: Callable[[Array], Array]) -> Array:
        """The product of the parts' policies, `[S, W ** n]`."""
        joint = np.ones((len(self.v[0]), 1))
        for q in self.q:
            joint = (joint[..., None] * reduce(q)).reshape(len(joint), -1)
        return joint


def by_parts(problem: Problem, reduce: Reduce, *, gamma_part: float = 1.0) -> Solved:
    """Value iteration whose every backup is the library's one-step return, until nothing changes."""
    states, n, words = len(problem.pay), problem.length, problem.words
    v = [np.zeros((states, words**j)) for j in range(n)]
    q: list[Array] = []
    told = [Told([n], [paid], bootstrap=0.0) for paid in problem.pay.ravel().tolist()]
    flat = table(*told)
    while True:
        flat.bootstrap[:] = (problem.leads @ v[0][:, 0]).ravel()
        values = np.stack([np.repeat(v[j], words ** (n - j), axis=1) for j in range(n)], axis=-1)
        credit = decomposed_gae(
            values.ravel(), flat, gamma=problem.gamma, gae_lambda=0.0, token_gamma=gamma_part, token_lambda=0.0
        )
        returns = credit.returns.reshape(states, -1, n)
        q = [returns[:, :: words ** (n - j - 1), j].reshape(states, words**j, words) for j in range(n)]
        before, v = v, [reduce(values) for values in q]
        if max(np.abs(old - new).max() for old, new in zip(before, v, strict=True)) < 1e-13:
            return Solved(v, q, credit.advantage.reshape(states, -1, n))


def best(q: Array) -> Array:
    found: Array = hard_value(torch.from_numpy(np.ascontiguousarray(q))).numpy()
    return found


def mean(q: Array) -> Array:
    found: Array = q.mean(-1)
    return found


def soft(beta: float) -> Reduce:
    def reduce(q: Array) -> Array:
        given = torch.from_numpy(np.ascontiguousarray(q))
        return log_sum_exp_value(given, torch.full_like(given, -math.log(q.shape[-1])), beta=beta).numpy()

    return reduce


def soft_chances(beta: float) -> Callable[[Array], Array]:
    def reduce(q: Array) -> Array:
        given = torch.from_numpy(np.ascontiguousarray(q))
        return soft_policy(given, torch.full_like(given, -math.log(q.shape[-1])), beta=beta).exp().numpy()

    return reduce


def near(found: object, expected: object, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


# ------------------------------------------------------------------ M1: length decides


def first_words(gamma_part: float) -> tuple[float, float]:
    """Q of the first words of `a .` (pays .9) and `b b b .` (pays 1)."""
    flat = table(Told([2], [0.9]), Told([4], [1.0]))
    found = decomposed_gae(np.zeros(6), flat, gamma=0.7, gae_lambda=1.0, token_gamma=gamma_part)
    return float(found.returns[0]), float(found.returns[2])


@pytest.mark.parametrize(
    ("gamma_part", "short", "long"),
    [(1.0, 0.9, 1.0), (0.95, 0.855, 0.857375), (0.9, 0.81, 0.729), (0.5, 0.45, 0.125)],
)
def test_length_decides(gamma_part: float, short: float, long: float) -> None:
    near(first_words(gamma_part), [short, long])


def test_the_decision_flips_at_the_root() -> None:
    below, above = first_words(0.9486), first_words(0.9487)
    assert below[0] > below[1] and above[0] < above[1]
    even = first_words(math.sqrt(0.9))
    assert even[0] == pytest.approx(even[1], abs=1e-12)


# ------------------------------------------------------------------ M2: two states, two parts


def two_states() -> Problem:
    pay = np.asarray([[0, 1, 0, 2], [4, 0, 0, 1]], np.float64)
    goes = [[0, 1, 1, None], [None, 0, 1, 0]]
    leads = np.zeros((2, 4, 2))
    for state, action in itertools.product(range(2), range(4)):
        if (to := goes[state][action]) is not None:
            leads[state, action, to] = 1.0
    return Problem(pay, leads, words=2, gamma=0.5)


def test_two_states_optimal() -> None:
    """Also what Q-Transformer's backup finds."""
    problem = two_states()
    solved = by_parts(problem, best)
    near(solved.v[0][:, 0], [3, 4])
    near(solved.q[0][:, 0], [[3, 2], [4, 2.5]])
    near(solved.q[1], [[[1.5, 3], [2, 2]], [[4, 1.5], [2, 2.5]]])
    near(problem.whole(best)[0], [3, 4])


def test_two_states_with_a_discount_between_parts() -> None:
    near(by_parts(two_states(), best, gamma_part=0.5).v[0][:, 0], [1, 2])


def test_two_states_soft() -> None:
    problem, reduce = two_states(), soft(1.0)
    solved, (value, _) = by_parts(problem, reduce), problem.whole(reduce)
    near(solved.v[0][:, 0], [1.842094755, 2.834142287], 1e-9)
    near(value, solved.v[0][:, 0])
    near(solved.q[0][0, 0], [1.926064, 1.750423], 1e-6)
    chances = soft_chances(1.0)
    near(chances(solved.q[0])[0, 0], [0.543798, 0.456202], 1e-6)
    near(solved.policy(chances)[0], [0.099525, 0.444272, 0.163439, 0.292764], 1e-6)


@pytest.mark.parametrize(("lam", "lam_part"), [(0.0, 0.0), (0.9, 1.0), (1.0, 1.0)])
def test_targets_of_the_right_q_are_itself(lam: float, lam_part: float) -> None:
    """However far they reach back: on a way through the two states, 0 -01-> 1 -01-> 0 -11-> the end."""
    solved = by_parts(two_states(), soft(1.0))
    way = [(0, 0, 1, 1.0), (1, 0, 1, 0.0), (0, 1, 1, 2.0)]
    value = [x for state, word, _, _ in way for x in (solved.v[0][state, 0], solved.v[1][state, word])]
    chosen = [x for state, word, then, _ in way for x in (solved.q[0][state, 0, word], solved.q[1][state, word, then])]
    flat = table(Told([2, 2, 2], [pay for *_, pay in way]))
    near(q_targets(value, chosen, flat, gamma=0.5, gae_lambda=lam, token_lambda=lam_part), chosen)
    if lam:  # and of a wrong one they are wrong by less, the farther they reach
        wrong = q_targets(np.zeros(6), np.zeros(6), flat, gamma=0.5, gae_lambda=lam, token_lambda=lam_part)
        assert (
            wrong[0] > 0.0 == decomposed_gae(np.zeros(6), flat, gamma=0.5, gae_lambda=0.0, token_lambda=0.0).returns[0]
        )


def test_two_states_uniform() -> None:
    problem = two_states()
    solved, (value, q) = by_parts(problem, mean), problem.whole(mean)
    near(value, [62 / 45, 82 / 45])
    near(solved.v[0][:, 0], value)
    near(solved.advantage[0, 1], [-7 / 90, 11 / 18])
    near(solved.advantage[0, 1].sum(), 8 / 15)
    near(solved.advantage.sum(-1), q - value[:, None])
    for q_prefix, v_prefix in zip(solved.q, solved.v, strict=True):
        near((q_prefix - v_prefix[..., None]).mean(-1), np.zeros(v_prefix.shape))


# ------------------------------------------------------------------ M3: the microwave


PHRASES = ("open the mic ro wave", "put the pan cake in", "close the mic ro wave")
NEXT = ((1, 0, 0), (1, 2, 0), (2, 2, None))  # closed, open, full


def test_microwave() -> None:
    """The first word of a phrase decides: it has all the credit, the words after it have exactly none."""
    gamma, states = 0.9, range(3)
    moves = np.zeros((3, 3))
    for state, phrase in itertools.product(states, states):
        if (to := NEXT[state][phrase]) is not None:
            moves[state, to] += 1 / 3
    value = np.linalg.solve(np.eye(3) - gamma * moves, [0, 0, 1 / 3])
    near(value, [15 / 38, 10 / 19, 5 / 6])
    told, values = [], []
    for state, phrase in itertools.product(states, states):
        to, words = NEXT[state][phrase], len(PHRASES[phrase].split())
        paid = 1.0 if to is None else 0.0
        told.append(Told([words], [paid], bootstrap=0.0 if to is None else float(value[to])))
        follows = paid + (0.0 if to is None else gamma * value[to])
        values += [value[state], *[follows] * (words - 1)]
    for lam in (0.0, 0.95, 1.0):
        found = decomposed_gae(values, table(*told), gamma=gamma, gae_lambda=0.95, token_lambda=lam).advantage.reshape(
            9, -1
        )
        near(found[:, 0], [3 / 38, -3 / 76, -3 / 76, -1 / 19, 17 / 76, -13 / 76, -1 / 12, -1 / 12, 1 / 6])
        assert (found[:, 1:] == 0).all()
    near([17 / 76, -1 / 19, -13 / 76], [0.2236842, -0.0526316, -0.1710526], 1e-7)


# ------------------------------------------------------------------ M4: a team


def team_credit(action: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """Advantages of the agents in the order in which they act; pay is the sum, and 2 more if all are equal."""
    pay = {joint: sum(joint) + 2.0 * (len(set(joint)) == 1) for joint in itertools.product((0, 1), repeat=3)}
    values = []
    for acted in range(3):
        same = [paid for joint, paid in pay.items() if all(joint[a] == action[a] for a in order[:acted])]
        values.append(sum(same) / len(same))
    flat = table(Told([3], [pay[action]]))
    return decomposed_gae(values, flat, gamma=0.9, gae_lambda=0.9, token_lambda=0.0).advantage


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_team(order: tuple[int, ...]) -> None:
    near(team_credit((1, 1, 1), order), [0.5, 1, 1.5])
    for action in itertools.product((0, 1), repeat=3):
        worth = sum(action) + 2 * (len(set(action)) == 1) - 2
        near(team_credit(action, order).sum(), worth)


def test_team_golden() -> None:
    near(team_credit((1, 1, 0), (0, 1, 2)), [0.5, 1, -1.5])
    near(team_credit((1, 1, 0), (2, 0, 1)), [-0.5, 0, 0.5])


# ------------------------------------------------------------------ M5: random problems


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem(rng.random((4, 27)), rng.dirichlet(np.ones(4), (4, 27)), words=3, gamma=0.9)


@pytest.mark.parametrize("seed", range(3))
def test_parts_and_actions_have_one_optimum(seed: int) -> None:
    problem = random_problem(seed)
    solved, (value, q) = by_parts(problem, best), problem.whole(best)
    near(solved.v[0][:, 0], value)
    near(solved.q[-1].reshape(4, -1), q)
    for j in range(3):
        completed = q.reshape(4, 3**j, 3, -1).max(-1)
        near(solved.q[j], completed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_parts_and_actions_have_one_soft_optimum(seed: int, beta: float) -> None:
    problem = random_problem(seed)
    solved, (value, q) = by_parts(problem, soft(beta)), problem.whole(soft(beta))
    near(solved.v[0][:, 0], value)
    joint = solved.policy(soft_chances(beta))
    near(joint, soft_chances(beta)(q))
    near(joint.sum(-1), np.ones(4))


@pytest.mark.parametrize("seed", range(3))
def test_part_advantages_add_up_and_have_mean_zero(seed: int) -> None:
    problem = random_problem(seed)
    solved, (value, q) = by_parts(problem, mean), problem.whole(mean)
    near(solved.advantage.sum(-1), q - value[:, None])
    for j in range(3):
        by_prefix = solved.advantage[:, :, j].reshape(4, 3**j, 3, -1)
        near(by_prefix.mean((-1, -2)), np.zeros((4, 3**j)))


@pytest.mark.parametrize("seed", range(3))
def test_a_policys_soft_values_agree(seed: int) -> None:
    """The expected soft value of any policy, by parts and by whole actions, with the chain rule for divergences."""
    problem, rng, beta = random_problem(seed), np.random.default_rng(seed), 0.3
    pi = [rng.dirichlet(np.ones(3), (4, 3**j)) for j in range(3)]

    def reduce(q: Array) -> Array:
        depth = {1: 0, 3: 1, 9: 2}[q.shape[1]]
        given, own = torch.from_numpy(np.ascontiguousarray(q)), torch.from_numpy(pi[depth]).log()
        found: Array = expected_soft_value(given, own, torch.full_like(own, -math.log(3)), beta=beta).numpy()
        return found

    joint = (pi[0][..., None] * pi[1].reshape(4, 1, 3, 3)).reshape(4, 9)
    joint = (joint[..., None] * pi[2]).reshape(4, 27)

    def whole(q: Array) -> Array:
        found: Array = (joint * (q - beta * np.log(joint * 27))).sum(-1)
        return found

    near(by_parts(problem, reduce).v[0][:, 0], problem.whole(whole)[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_discount_inside_actions_falsifies_values(seed: int) -> None:
    """The more so the stronger it is; without one there is no gap."""
    problem = random_problem(seed)
    value = problem.whole(best)[0]
    gaps = [value - by_parts(problem, best, gamma_part=factor).v[0][:, 0] for factor in (1.0, 0.99, 0.9, 0.5)]
    near(gaps[0], np.zeros(4))
    for smaller, greater in itertools.pairwise(gaps):
        assert (greater > smaller + 1e-3).all()
