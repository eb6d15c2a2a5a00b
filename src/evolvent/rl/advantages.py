"""Advantage estimators: pure functions on numpy arrays from rewards and values to advantages.

An action is a sequence of tokens, so all estimators share one backward scan. With `v_p` the value of the prefix
before token p, `acc_p = delta_p + carry_p acc_(p+1)`, advantage `acc_p`, return `acc_p + v_p`:

- inside an action: `delta = r_p + token_gamma v_(p+1) - v_p`, `carry = token_gamma token_lambda`;
- on its last token: `delta = r_p + gamma b - v_p`, `carry = gamma gae_lambda`, with b the value before the next
  action. Where the episode ends the carry is 0, and b is 0 (terminated) or the value of the final observation
  (truncated).

Axes: P tokens, A actions, E episodes of a `RolloutBatch`, in time order. Everything is float64. Settings call a
token "part", because the same scan serves the dimensions of a numeric action and the agents of a team.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.learn.returns import Floats, reverse_scan, reward_to_go, scan_in_place
from evolvent.rl.rollout_batch import TRUNCATED, RolloutBatch

__all__ = [
    "Advantages",
    "Baseline",
    "GroupAdvantages",
    "Level",
    "Scale",
    "anchor_advantage",
    "decomposed_gae",
    "discounted_returns",
    "episode_returns",
    "group_advantage",
    "is_equal_within_rounding",
    "kl_in_reward",
    "normalize_over_buffer",
    "overlong_penalty",
    "q_targets",
    "whiten",
]

Level = Literal["part", "span", "action", "episode"]
Baseline = Literal["group_mean", "leave_one_out", "none"]
Scale = Literal["group_std", "batch_std", "none"]
_EPSILON = 1e-6  # added to a group's standard deviation
_RELATIVE_TOLERANCE = 1e-12  # relative; far above that of a sum, far below any difference that was meant


@dataclass(frozen=True, slots=True, eq=False)
class Advantages:
    """The result of an advantage estimator.

    Attributes:
        advantage: `[P, ...]` advantage of each token.
        returns: `[P, ...]` targets that values are fitted to.
        learned_mask: `[P]` bool, False for tokens that are left out of the loss; None: all are learned.
        counts: diagnostics by name (groups without variance, ...).
    """

    advantage: Floats
    returns: Floats
    learned_mask: NDArray[np.bool_] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdvantages:
    """Advantages `[E]` of episodes that were compared in groups.

    Attributes:
        advantage: `[E]`.
        has_variance: `[E]` bool, whether the returns of the episode's group differ.
        num_single: number of groups with one member.
        num_equal: number of groups with equal returns.
    """

    advantage: Floats
    has_variance: NDArray[np.bool_]
    num_single: int
    num_equal: int


# ------------------------------------------------------------------ the scan


def decomposed_gae(
    value: ArrayLike,
    batch: RolloutBatch,
    *,
    gamma: float,
    gae_lambda: float,
    token_gamma: float = 1.0,
    token_lambda: float = 1.0,
    level: Level = "part",
    between: Literal["action", "span"] = "action",
) -> Advantages:
    """Computes generalized advantage estimation over actions that are made of tokens.

    Inside an action `delta_p = r_p + token_gamma v_(p+1) - v_p` and the carry is `token_gamma token_lambda`; on its
    last token `delta_p = r_p + gamma b - v_p` and the carry is `gamma gae_lambda`, with b the value before the next
    action; `A_p = delta_p + carry_p A_(p+1)`, return `A_p + v_p`. GAE: arXiv 1506.02438. `token_gamma = 1` is the
    backup with action decomposition (POAD, arXiv 2405.15821), `token_gamma = gamma` NTPO. With `gae_lambda =
    token_lambda = 0` the returns are one-step targets (Q-Transformer, ETPO).

    Args:
        value: `[P, ...]`, value of the prefix before each token; trailing axes are scanned separately (one per
            agent).
        batch: rewards, actions, episode ends and bootstrap values.
        gamma: discount between actions.
        gae_lambda: lambda between actions.
        token_gamma: discount inside an action.
        token_lambda: lambda inside an action.
        level: the unit that receives credit: it has the value of its first token and the sum of its rewards, and
            its tokens share its advantage and its return.
        between: the units that `gamma` lies between: actions, or spans of reasoning (OpenR's TPPO is level "part"
            between spans).

    Returns:
        advantages and returns `[P, ...]`.

    Raises:
        BatchMismatch: the number of values differs from the number of tokens.
        NonFinite: a value is not finite, or a truncated episode lacks the value of its final observation; the
            message names episode, action and token.

    >>> import numpy as np
    >>> from evolvent.rl.rollout_batch import RolloutBatch
    >>> zeros, index = np.zeros(3), np.arange(3)  # one terminated episode of three one-token actions
    >>> group, reward, ended = np.zeros(1, int), np.array([0.0, 0.0, 1.0]), np.array([0, 0, 1])
    >>> episode = np.zeros(3, int)
    >>> batch = RolloutBatch(
    ...     zeros.astype("f4"), index, index, index, episode, group, reward, ended, zeros, index, index
    ... )
    >>> estimate = decomposed_gae([0.5, 0.6, 0.7], batch, gamma=0.9, gae_lambda=0.5)
    >>> estimate.advantage.round(4).tolist()
    [0.1143, 0.165, 0.3]
    >>> estimate.returns.round(4).tolist()
    [0.6143, 0.765, 1.0]
    """
    values = _check_finite(value, "value", batch)
    last = batch.is_last_in_action
    is_border, last = last if between == "action" else _mark_span_ends(batch), _mark_episode_ends(batch, last)
    first, reward, unit = values, batch.reward, None
    if level != "part":
        is_start = _mark_starts(batch, level)
        starts = np.flatnonzero(is_start)
        unit, ends = np.cumsum(is_start) - 1, np.append(starts[1:], batch.num_tokens) - 1
        first, reward = values[starts], np.add.reduceat(batch.reward, starts)
        is_border, last = is_border[ends], last[ends]
    trailing_axes = [1] * (values.ndim - 1)
    credit, border_index = (
        np.empty_like(first),
        np.flatnonzero(is_border),
    )  # in place: large arrays cost more to get than to fill
    credit[:-1] = first[1:]
    credit[last] = _final_values(batch, values.shape[1:])
    next_values = gamma * credit[border_index]
    if token_gamma != 1.0:
        credit *= token_gamma
    credit[border_index] = next_values
    credit += reward.reshape(-1, *trailing_axes)
    credit -= first
    carry = np.full(len(credit), token_gamma * token_lambda)
    carry[border_index] = gamma * gae_lambda
    carry[last] = 0.0
    scan_in_place(credit, carry.reshape(-1, *trailing_axes))
    returns = credit + first
    return Advantages(credit, returns) if unit is None else Advantages(credit[unit], returns[unit])


def q_targets(
    value: ArrayLike,
    action_value: ArrayLike,
    batch: RolloutBatch,
    *,
    gamma: float,
    gae_lambda: float,
    token_lambda: float = 1.0,
) -> Floats:
    """Computes targets for the Q values of the sampled tokens: Q^pi(lambda) along the policy's own trajectory.

    `target_p = Q_p + error_p + carry_p (target_(p+1) - Q_(p+1))` with `error_p` the one-step target minus Q; the
    carry is `gamma gae_lambda` on the last token of an action, `token_lambda` inside it, and 0 at the end of an
    episode (arXiv 1602.04951). With `value` the expectation of Q under the policy, all lambdas have the same mean.

    Args:
        value: `[P]`, value of the prefix before each token.
        action_value: `[P]`, Q of each sampled token.
        batch: rewards, actions and episode ends.
        gamma: discount between actions.
        gae_lambda: lambda between actions.
        token_lambda: lambda inside an action.

    Returns:
        targets `[P]`.

    Raises:
        BatchMismatch, NonFinite: as in `decomposed_gae`.

    >>> import numpy as np
    >>> from evolvent.rl.rollout_batch import RolloutBatch
    >>> zeros, index = np.zeros(3), np.arange(3)
    >>> group, reward, ended = np.zeros(1, int), np.array([0.0, 0.0, 1.0]), np.array([0, 0, 1])
    >>> episode = np.zeros(3, int)
    >>> batch = RolloutBatch(
    ...     zeros.astype("f4"), index, index, index, episode, group, reward, ended, zeros, index, index
    ... )
    >>> q_targets([0.5, 0.6, 0.7], [0.4, 0.6, 0.8], batch, gamma=0.9, gae_lambda=0.5).round(4).tolist()
    [0.594, 0.72, 1.0]
    """
    q_values = _check_finite(action_value, "chosen", batch)
    errors = decomposed_gae(value, batch, gamma=gamma, gae_lambda=0.0, token_lambda=0.0).returns - q_values
    carry = np.where(batch.is_last_in_action, gamma * gae_lambda, token_lambda)
    carry[_mark_episode_ends(batch, batch.is_last_in_action)] = 0.0
    return q_values + reverse_scan(errors, carry)


def _mark_changes(index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns `[P]` bool, whether an index differs from the one before it."""
    return np.append(True, index[1:] != index[:-1])[: len(index)]


def _mark_starts(batch: RolloutBatch, level: Literal["span", "action", "episode"]) -> NDArray[np.bool_]:
    """Returns `[P]` bool, whether a token is the first of its unit."""
    if level == "span":
        return _mark_changes(batch.span) | _mark_changes(batch.action)
    return _mark_changes(batch.action if level == "action" else batch.episode_of_token)


def _mark_span_ends(batch: RolloutBatch) -> NDArray[np.bool_]:
    """Returns `[P]` bool, whether a token is the last of its span."""
    return np.append(_mark_starts(batch, "span")[1:], True)[: batch.num_tokens]


def _mark_episode_ends(batch: RolloutBatch, is_last_in_action: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns `[P]` bool, whether a token is the last of its episode, from `is_last_in_action [P]`."""
    is_last_in_episode = is_last_in_action.copy()
    is_last_in_episode[is_last_in_action] = batch.ended != 0
    return is_last_in_episode


def _final_values(batch: RolloutBatch, trailing: tuple[int, ...]) -> Floats:
    """Returns `[E, ...]`, the value after each episode: 0, or the value of the observation at which it was
    truncated.
    """
    last_actions = np.flatnonzero(batch.ended)
    is_truncated = batch.ended[last_actions] == TRUNCATED
    final_values = batch.bootstrap[last_actions]
    if final_values.shape[1:] not in (trailing, ()):
        raise BatchMismatch(
            "values of final observations have the wrong shape", value=final_values.shape[1:], expected=trailing
        )
    final_values = np.broadcast_to(
        final_values.reshape(*final_values.shape, *[1] * (1 + len(trailing) - final_values.ndim)),
        (len(last_actions), *trailing),
    )
    is_invalid = is_truncated & ~np.isfinite(final_values).reshape(len(last_actions), -1).all(1)
    if is_invalid.any():
        number = int(is_invalid.argmax())
        raise NonFinite(
            f"value of the final observation of the truncated episode {number} is not finite",
            value=final_values[number].tolist(),
            hint="score it, or end the episode as terminated",
        )
    return np.where(is_truncated.reshape(-1, *[1] * len(trailing)), final_values, 0.0)


def _check_finite(values: ArrayLike, name: str, batch: RolloutBatch) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim == 0 or len(array) != batch.num_tokens:
        raise BatchMismatch(
            f"length of {name!r} does not match the tokens", value=array.shape, expected=batch.num_tokens
        )
    if not np.isfinite(array).all():
        token = int((~np.isfinite(array)).reshape(len(array), -1).any(1).argmax())
        raise NonFinite(f"the {name} of {batch.describe_position(token)} is not finite", value=array[token].tolist())
    return array


# ------------------------------------------------------------------ returns and rewards


def episode_returns(batch: RolloutBatch) -> Floats:
    """Computes the undiscounted return of each episode, the sum of its rewards.

    Args:
        batch: rewards `[P]` and the episode of each token.

    Returns:
        returns `[E]`.

    >>> import numpy as np
    >>> from evolvent.rl.rollout_batch import RolloutBatch
    >>> zeros, index = np.zeros(3), np.arange(3)
    >>> group, reward, ended = np.zeros(1, int), np.array([0.5, 0.0, 1.0]), np.array([0, 0, 1])
    >>> episode = np.zeros(3, int)
    >>> batch = RolloutBatch(
    ...     zeros.astype("f4"), index, index, index, episode, group, reward, ended, zeros, index, index
    ... )
    >>> episode_returns(batch).tolist()
    [1.5]
    """
    return np.bincount(batch.episode_of_token, weights=batch.reward, minlength=len(batch.group)).astype(np.float64)


def discounted_returns(
    batch: RolloutBatch, *, gamma: float, token_gamma: float = 1.0, reward: ArrayLike | None = None
) -> Floats:
    """Computes the discounted return from each token to the end of its episode.

    `G_p = r_p + c G_(p+1)`; c is `token_gamma` inside actions, `gamma` between them, 0 at the end of an episode.
    Nothing stands for the rewards after a truncated episode.

    Args:
        batch: rewards, actions and episode ends.
        gamma: discount between actions.
        token_gamma: discount inside an action.
        reward: `[P, ...]` rewards in place of the batch's own (penalties, process rewards).

    Returns:
        returns `[P, ...]`.

    Raises:
        BatchMismatch: the number of rewards differs from the number of tokens.
        NonFinite: a reward is not finite.

    >>> import numpy as np
    >>> from evolvent.rl.rollout_batch import RolloutBatch
    >>> zeros, index = np.zeros(3), np.arange(3)
    >>> group, reward, ended = np.zeros(1, int), np.array([0.0, 0.0, 1.0]), np.array([0, 0, 1])
    >>> episode = np.zeros(3, int)
    >>> batch = RolloutBatch(
    ...     zeros.astype("f4"), index, index, index, episode, group, reward, ended, zeros, index, index
    ... )
    >>> discounted_returns(batch, gamma=0.9).round(4).tolist()
    [0.81, 0.9, 1.0]
    """
    is_last_in_action = batch.is_last_in_action
    rewards = _check_finite(batch.reward if reward is None else reward, "reward", batch)
    return reward_to_go(
        rewards,
        gamma=np.where(is_last_in_action, gamma, token_gamma),
        last=_mark_episode_ends(batch, is_last_in_action),
    )


def kl_in_reward(reward: ArrayLike, logp: ArrayLike, reference: ArrayLike, *, beta: float) -> Floats:
    """Computes rewards with a KL penalty: `r_p - beta (log pi - log ref)` at every token.

    The mean of the penalty is the divergence (k1). As in arXiv 2203.02155 and R3 (arXiv 2402.05808). In a loss k1
    would teach nothing: its gradient has mean 0.

    Args:
        reward: `[P]`.
        logp: `[P]`, log-probabilities under the policy, nats.
        reference: `[P]`, log-probabilities under the reference, nats.
        beta: coefficient of the penalty.

    Returns:
        rewards `[P]`.

    >>> kl_in_reward([0.0, 0.0, 1.0], [-1.0, -1.0, -1.0], [-1.5, -1.0, -0.5], beta=0.1).round(4).tolist()
    [-0.05, 0.0, 1.05]
    """
    log_ratio = np.asarray(logp, np.float64) - np.asarray(reference, np.float64)
    return np.asarray(reward, np.float64) - beta * log_ratio


def overlong_penalty(length: ArrayLike, *, limit: int, cache: int) -> Floats:
    """Computes DAPO's soft punishment of long answers (arXiv 2503.14476, equation 13).

    0 up to `limit - cache` tokens, falling linearly to -1 at `limit`, and -1 beyond.

    Args:
        length: `[E]`, length of each answer, tokens.
        limit: length from which the penalty is -1, tokens.
        cache: number of tokens over which the penalty grows.

    Returns:
        penalties `[E]` in -1..0.

    Raises:
        ConfigError: the cache is below 1.

    >>> overlong_penalty([80, 95, 120], limit=100, cache=10).tolist()
    [0.0, -0.5, -1.0]
    """
    if cache < 1:
        raise ConfigError("cache out of range", value=cache, expected="cache >= 1")
    return np.clip((limit - cache - np.asarray(length, np.float64)) / cache, -1.0, 0.0)


# ------------------------------------------------------------------ groups


def group_advantage(returns: ArrayLike, group: ArrayLike, *, baseline: Baseline, scale: Scale) -> GroupAdvantages:
    """Compares episodes with those of the same group (GRPO, arXiv 2402.03300; RLOO, arXiv 2402.14740).

    `group_mean`: `R - mean`; `leave_one_out`: `R` minus the mean of the others, `n / (n - 1) (R - mean)`; `none`:
    `R`. The result is divided by the sample standard deviation (n - 1) of the group's returns, or of all returns,
    plus 1e-6. With a mean or a deviation, a single member and equal returns have an advantage of exactly 0.

    Args:
        returns: `[E]`.
        group: `[E]`, equal for episodes that are compared; any type that can be sorted.
        baseline: subtracted from the returns.
        scale: "group_std", "batch_std" or "none".

    Returns:
        advantages `[E]` with counts of groups without variance.

    Raises:
        BatchMismatch: the arrays differ in length, or leave-one-out finds no group with two members.
        NonFinite: a return is not finite.

    >>> group_advantage([1, 0, 0], [7, 7, 7], baseline="group_mean", scale="group_std").advantage.round(4).tolist()
    [1.1547, -0.5773, -0.5773]
    >>> group_advantage([1, 0, 0], [7, 7, 7], baseline="leave_one_out", scale="none").advantage.round(4).tolist()
    [1.0, -0.5, -0.5]
    """
    rewards = _check_returns(returns)
    names = np.asarray(group)
    if names.shape != rewards.shape:
        raise BatchMismatch("number of groups does not match the episodes", value=names.shape, expected=rewards.shape)
    _, group_index, size = np.unique(names, return_inverse=True, return_counts=True)
    is_single = size == 1
    if baseline == "leave_one_out" and len(rewards) and is_single.all():
        raise BatchMismatch(
            "leave-one-out needs groups of at least two episodes",
            value=f"{len(size)} groups of one",
            hint="sample every task several times, or use another baseline",
        )
    mean = np.bincount(group_index, weights=rewards) / size
    min_returns, max_returns = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(min_returns, group_index, rewards)
    np.maximum.at(max_returns, group_index, rewards)
    is_equal_group = is_equal_within_rounding(min_returns, max_returns)
    is_equal = is_equal_group[group_index]
    centered = np.where(is_equal, 0.0, rewards - mean[group_index])
    advantage = rewards.copy() if baseline == "none" else centered
    if baseline == "leave_one_out":
        advantage = advantage * (size / np.maximum(size - 1, 1))[group_index]
    if scale == "group_std":
        deviation = np.sqrt(np.bincount(group_index, weights=centered**2) / np.maximum(size - 1, 1))
        advantage = np.where(is_equal, 0.0, advantage / (deviation[group_index] + _EPSILON))
    elif scale == "batch_std":
        advantage = (
            advantage / (_standard_deviation(rewards) + _EPSILON)
            if len(rewards) and not is_equal_within_rounding(rewards.min(), rewards.max())
            else np.zeros(len(rewards))
        )
    return GroupAdvantages(advantage, ~is_equal, int(is_single.sum()), int((is_equal_group & ~is_single).sum()))


def anchor_advantage(
    returns_to_go: ArrayLike, anchor: ArrayLike, group: ArrayLike, *, scale: Scale = "none"
) -> GroupAdvantages:
    """Compares steps with those taken from the same state of the same task.

    GiGPO's step-level advantage (arXiv 2505.10978, equations 6 and 7): the return-to-go minus the mean over steps
    from the same state. A state that was visited once gives 0.

    Args:
        returns_to_go: `[A]`, discounted returns from each action on.
        anchor: `[A]`, exact hashes of the observations.
        group: `[A]`, the task group of each action.
        scale: as in `group_advantage`.

    Returns:
        advantages `[A]`.

    Raises:
        BatchMismatch: the arrays differ in length.
        NonFinite: a return is not finite.

    >>> anchor_advantage([1.0, 0.0, 0.5], [3, 3, 4], [0, 0, 0]).advantage.tolist()
    [0.5, -0.5, 0.0]
    """
    states, tasks = np.asarray(anchor), np.asarray(group)
    if states.shape != tasks.shape:
        raise BatchMismatch("number of anchors does not match the actions", value=states.shape, expected=tasks.shape)
    _, state = np.unique(states, return_inverse=True)
    distinct_tasks, task = np.unique(tasks, return_inverse=True)
    return group_advantage(
        returns_to_go, state * max(len(distinct_tasks), 1) + task, baseline="group_mean", scale=scale
    )


def normalize_over_buffer(returns: ArrayLike, *, ddof: int = 0, epsilon: float = 1e-8) -> Floats:
    """Computes `(R - mean) / (std + epsilon)` over everything sampled; OpenR (arXiv 2410.09671) calls this GRPO.

    Tasks of different difficulty are compared with each other; `group_advantage` compares within a task.

    Args:
        returns: `[E]`.
        ddof: degrees of freedom subtracted in the standard deviation.
        epsilon: added to the standard deviation.

    Returns:
        advantages `[E]`.

    >>> normalize_over_buffer([0, 1, 2]).round(4).tolist()
    [-1.2247, 0.0, 1.2247]
    """
    rewards = _check_returns(returns)
    return (rewards - rewards.mean()) / (_standard_deviation(rewards, ddof) + epsilon) if len(rewards) else rewards


def whiten(values: ArrayLike, *, mask: ArrayLike | None = None, epsilon: float = 1e-8) -> Floats:
    """Computes `(x - mean) / sqrt(variance + epsilon)` over the entries that the mask marks; other entries become 0.

    It runs over a whole buffer before the buffer is cut into batches, so that an update does not depend on the cut.
    The mask alone says which entries count: an advantage of exactly 0 is an advantage.

    Args:
        values: array of any shape.
        mask: bool array of the same shape; None: all entries count.
        epsilon: added to the variance.

    Returns:
        array of the same shape.

    Raises:
        BatchMismatch: the shapes differ.
        NonFinite: a marked entry is not finite.

    >>> whiten([1.0, 2.0, 9.0], mask=[True, True, False]).round(4).tolist()
    [-1.0, 1.0, 0.0]
    """
    array = np.asarray(values, np.float64)
    mask_array = np.ones(array.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
    if mask_array.shape != array.shape:
        raise BatchMismatch("shape of the mask differs from the values", value=mask_array.shape, expected=array.shape)
    selected = _check_returns(array[mask_array])
    whitened = np.zeros(array.shape)
    if len(selected):
        centered = 0.0 if is_equal_within_rounding(selected.min(), selected.max()) else selected - selected.mean()
        whitened[mask_array] = centered / np.sqrt(np.mean(np.square(centered)) + epsilon)
    return whitened


@overload
def is_equal_within_rounding(smallest: Floats, largest: Floats) -> NDArray[np.bool_]: ...


@overload
def is_equal_within_rounding(smallest: np.float64, largest: np.float64) -> np.bool_: ...


def is_equal_within_rounding(
    smallest: Floats | np.float64, largest: Floats | np.float64
) -> NDArray[np.bool_] | np.bool_:
    """Returns whether numbers in this range are equal up to rounding: sums of the same rewards differ with their
    order.

    Args:
        smallest: `[num_groups]` or a number. The smallest of the numbers that are compared.
        largest: the same shape. The largest of them.
    """
    return largest - smallest <= _RELATIVE_TOLERANCE * np.maximum(np.abs(smallest), np.abs(largest))


def _check_returns(returns: Any) -> Floats:
    array = np.asarray(returns, np.float64)
    if array.ndim != 1:
        raise BatchMismatch("returns must have one dimension", value=array.shape)
    if not np.isfinite(array).all():
        index = int((~np.isfinite(array)).argmax())
        raise NonFinite(f"return number {index} is not finite", value=float(array[index]))
    return array


def _standard_deviation(values: Floats, ddof: int = 1) -> float:
    return float(values.std(ddof=ddof)) if len(values) > ddof else 0.0
