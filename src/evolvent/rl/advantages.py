"""Credit: pure functions on numpy arrays from rewards and values to advantages, one per published estimator.

An action is a sequence of parts, so there is one scan. With `v_p` the value of the prefix before part p,
`acc_p = delta_p + carry_p acc_(p+1)`, advantage `acc_p`, return `acc_p + v_p`:

- inside an action: `delta = r_p + gamma_part v_(p+1) - v_p`, `carry = gamma_part lam_part`;
- on its last part: `delta = r_p + gamma b - v_p`, `carry = gamma lam`, with b the value before the next action. Where
  the episode ends the carry is 0, and b is 0 (terminated) or the value of the final observation (truncated).

Axes: P parts, A actions, E episodes of a `Flat`, in time order. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.learn.returns import Floats, reverse_scan, reward_to_go, scan_in_place
from evolvent.rl.rollout_batch import TRUNCATED, Flat

__all__ = [
    "Baseline",
    "Credit",
    "Grouped",
    "Level",
    "Scale",
    "alike",
    "anchor_advantage",
    "buffer_normalized",
    "decomposed_gae",
    "discounted_returns",
    "episode_returns",
    "group_advantage",
    "kl_in_reward",
    "overlong_penalty",
    "q_targets",
    "whiten",
]

Level = Literal["part", "span", "action", "episode"]
Baseline = Literal["group_mean", "leave_one_out", "none"]
Scale = Literal["group_std", "batch_std", "none"]
_EPSILON = 1e-6  # added to a group's standard deviation
_ROUNDING = 1e-12  # relative; far above that of a sum, far below any difference that was meant


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """What the parts are worth: `advantage [P, ...]`, and the `returns [P, ...]` that values are fitted to.

    Attributes:
        kept: `[P]`, whether a part is to be learned; None: all are.
        counts: what was noticed on the way, by name (groups without variance, ...).
    """

    advantage: Floats
    returns: Floats
    kept: NDArray[np.bool_] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Advantages `[E]` of what was compared in groups.

    Attributes:
        varied: `[E]`, whether the returns of its group differ. single, equal: groups of one, and of equal returns.
    """

    advantage: Floats
    varied: NDArray[np.bool_]
    single: int
    equal: int


# ------------------------------------------------------------------ the scan


def decomposed_gae(
    value: ArrayLike,
    flat: Flat,
    *,
    gamma: float,
    lam: float,
    gamma_part: float = 1.0,
    lam_part: float = 1.0,
    level: Level = "part",
    between: Literal["action", "span"] = "action",
) -> Credit:
    """Generalised advantage estimation (arXiv 1506.02438) over actions that are made of parts.

    `gamma_part = 1` is the backup with action decomposition (POAD, arXiv 2405.15821), `gamma_part = gamma` NTPO. With
    `lam = lam_part = 0` the returns are one-step targets (Q-Transformer, ETPO).

    Args:
        value: `[P, ...]`, of the prefix before each part; trailing axes are scanned apart (one value per agent).
        gamma, lam: between actions. gamma_part, lam_part: inside one.
        level: the unit that credit is given to: it has the value of its first part and the sum of its rewards, and its
            parts share its advantage and its return.
        between: what `gamma` lies between: actions, or spans of reasoning (OpenR's TPPO is level part between spans).
    Raises:
        BatchMismatch: values of another length than the parts. NonFinite: a value that is not finite, or none of the
            final observation where an episode was truncated; names episode, action and part.
    """
    values = _finite(value, "value", flat)
    last = flat.last
    border, last = last if between == "action" else _ends_of_spans(flat), _ends(flat, last)
    first, reward, unit = values, flat.reward, None
    if level != "part":
        fresh = _starts(flat, level)
        starts = np.flatnonzero(fresh)
        unit, ends = np.cumsum(fresh) - 1, np.append(starts[1:], flat.parts) - 1
        first, reward = values[starts], np.add.reduceat(flat.reward, starts)
        border, last = border[ends], last[ends]
    axes = [1] * (values.ndim - 1)
    credit, at = np.empty_like(first), np.flatnonzero(border)  # in place: large arrays cost more to get than to fill
    credit[:-1] = first[1:]
    credit[last] = _final_values(flat, values.shape[1:])
    after = gamma * credit[at]
    if gamma_part != 1.0:
        credit *= gamma_part
    credit[at] = after
    credit += reward.reshape(-1, *axes)
    credit -= first
    carry = np.full(len(credit), gamma_part * lam_part)
    carry[at] = gamma * lam
    carry[last] = 0.0
    scan_in_place(credit, carry.reshape(-1, *axes))
    returns = credit + first
    return Credit(credit, returns) if unit is None else Credit(credit[unit], returns[unit])


def q_targets(
    value: ArrayLike, chosen: ArrayLike, flat: Flat, *, gamma: float, lam: float, lam_part: float = 1.0
) -> Floats:
    """What Q of each part that was taken is fitted to, `[P]`: Q^pi(lambda) (arXiv 1602.04951), on the policy's own way.

    `target_p = Q_p + error_p + carry_p (target_(p+1) - Q_(p+1))` with `error_p` the one-step target minus Q. With
    `value` the expectation of Q under the policy all lambdas have the same mean.

    Args:
        value: `[P]`, of the prefix before each part. chosen: `[P]`, Q of it as it was taken.
        gamma, lam: between actions. lam_part: inside one.
    Raises:
        BatchMismatch, NonFinite: as `decomposed_gae`.
    """
    taken = _finite(chosen, "chosen", flat)
    errors = decomposed_gae(value, flat, gamma=gamma, lam=0.0, lam_part=0.0).returns - taken
    carry = np.where(flat.last, gamma * lam, lam_part)
    carry[_ends(flat, flat.last)] = 0.0
    return taken + reverse_scan(errors, carry)


def _changes(index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`[P]`, whether an index differs from the one before it."""
    return np.append(True, index[1:] != index[:-1])[: len(index)]


def _starts(flat: Flat, level: Literal["span", "action", "episode"]) -> NDArray[np.bool_]:
    """`[P]`, whether a part is the first of its unit."""
    if level == "span":
        return _changes(flat.span) | _changes(flat.action)
    return _changes(flat.action if level == "action" else flat.episode_of_part)


def _ends_of_spans(flat: Flat) -> NDArray[np.bool_]:
    """`[P]`, whether a part is the last of its span."""
    return np.append(_starts(flat, "span")[1:], True)[: flat.parts]


def _ends(flat: Flat, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`[P]`, whether a part is the last of its episode; `last [P]`, whether it is that of its action."""
    found = last.copy()
    found[last] = flat.ended != 0
    return found


def _final_values(flat: Flat, trailing: tuple[int, ...]) -> Floats:
    """`[E, ...]`, what follows each episode: nothing, or the value of the observation at which it was cut."""
    last = np.flatnonzero(flat.ended)
    cut = flat.ended[last] == TRUNCATED
    given = flat.bootstrap[last]
    if given.shape[1:] not in (trailing, ()):
        raise BatchMismatch("values of final observations have other axes", value=given.shape[1:], expected=trailing)
    given = np.broadcast_to(
        given.reshape(*given.shape, *[1] * (1 + len(trailing) - given.ndim)), (len(last), *trailing)
    )
    wrong = cut & ~np.isfinite(given).reshape(len(last), -1).all(1)
    if wrong.any():
        number = int(wrong.argmax())
        raise NonFinite(
            f"episode {number} was truncated, and its final observation has no finite value",
            value=given[number].tolist(),
            hint="score it, or end the episode as terminated",
        )
    return np.where(cut.reshape(-1, *[1] * len(trailing)), given, 0.0)


def _finite(values: ArrayLike, name: str, flat: Flat) -> Floats:
    found = np.asarray(values, np.float64)
    if found.ndim == 0 or len(found) != flat.parts:
        raise BatchMismatch(f"there are not as many of {name!r} as parts", value=found.shape, expected=flat.parts)
    if not np.isfinite(found).all():
        at = int((~np.isfinite(found)).reshape(len(found), -1).any(1).argmax())
        raise NonFinite(f"the {name} of {flat.where(at)} is not finite", value=found[at].tolist())
    return found


# ------------------------------------------------------------------ returns and rewards


def episode_returns(flat: Flat) -> Floats:
    """The sum of an episode's rewards, `[E]`."""
    return np.bincount(flat.episode_of_part, weights=flat.reward, minlength=len(flat.group)).astype(np.float64)


def discounted_returns(flat: Flat, *, gamma: float, gamma_part: float = 1.0, reward: ArrayLike | None = None) -> Floats:
    """`G_p = r_p + c G_(p+1)` to the end of the episode, `[P]`; c is `gamma_part` inside actions, `gamma` between.

    Nothing stands for what would have come after a truncated episode.

    Args:
        reward: `[P, ...]`, another than the flat's own (penalties, process rewards).
    Raises:
        BatchMismatch: not one reward a part. NonFinite: a reward that is not finite.
    """
    last = flat.last
    paid = _finite(flat.reward if reward is None else reward, "reward", flat)
    return reward_to_go(paid, gamma=np.where(last, gamma, gamma_part), last=_ends(flat, last))


def kl_in_reward(reward: ArrayLike, logp: ArrayLike, reference: ArrayLike, *, beta: float) -> Floats:
    """`r_p - beta (log pi - log ref)` at every part, `[P]`: the penalty whose mean is the divergence (k1).

    As in arXiv 2203.02155 and R3 (arXiv 2402.05808). In the loss k1 would teach nothing: its gradient has mean 0.
    """
    gap = np.asarray(logp, np.float64) - np.asarray(reference, np.float64)
    return np.asarray(reward, np.float64) - beta * gap


def overlong_penalty(length: ArrayLike, *, limit: int, cache: int) -> Floats:
    """DAPO's soft punishment of long answers (arXiv 2503.14476, equation 13), `[E]`.

    0 up to `limit - cache` tokens, falling to -1 at `limit`, -1 beyond.

    Raises:
        ConfigError: a cache below 1.
    """
    if cache < 1:
        raise ConfigError("the penalty of long answers needs tokens to grow over", value=cache, expected="cache >= 1")
    return np.clip((limit - cache - np.asarray(length, np.float64)) / cache, -1.0, 0.0)


# ------------------------------------------------------------------ groups


def group_advantage(returns: ArrayLike, group: ArrayLike, *, baseline: Baseline, scale: Scale) -> Grouped:
    """Episodes compared with those of the same task (GRPO, arXiv 2402.03300; RLOO, arXiv 2402.14740).

    `group_mean`: `R - mean`; `leave_one_out`: `R` minus the mean of the others, `n / (n - 1) (R - mean)`; `none`: `R`.
    Then divided by the sample standard deviation (n - 1) of the group's returns, or of all, plus 1e-6. Compared with a
    mean or a deviation, a member alone and returns that are all equal have an advantage of exactly 0.

    Args:
        returns: `[E]`. group: `[E]`, equal where compared; any kind that can be sorted.
    Raises:
        BatchMismatch: the arrays differ in length; leave-one-out, and no group has two members. NonFinite: a return.
    """
    paid = _returns(returns)
    names = np.asarray(group)
    if names.shape != paid.shape:
        raise BatchMismatch("groups are not one an episode", value=names.shape, expected=paid.shape)
    _, of, size = np.unique(names, return_inverse=True, return_counts=True)
    single = size == 1
    if baseline == "leave_one_out" and len(paid) and single.all():
        raise BatchMismatch(
            "leave-one-out needs groups of at least two episodes",
            value=f"{len(size)} groups of one",
            hint="sample every task several times, or use another baseline",
        )
    mean = np.bincount(of, weights=paid) / size
    least, most = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(least, of, paid)
    np.maximum.at(most, of, paid)
    same = alike(least, most)
    equal = same[of]
    centred = np.where(equal, 0.0, paid - mean[of])
    found = paid.copy() if baseline == "none" else centred
    if baseline == "leave_one_out":
        found = found * (size / np.maximum(size - 1, 1))[of]
    if scale == "group_std":
        deviation = np.sqrt(np.bincount(of, weights=centred**2) / np.maximum(size - 1, 1))
        found = np.where(equal, 0.0, found / (deviation[of] + _EPSILON))
    elif scale == "batch_std":
        found = (
            found / (_deviation(paid) + _EPSILON)
            if len(paid) and not alike(paid.min(), paid.max())
            else np.zeros(len(paid))
        )
    return Grouped(found, ~equal, int(single.sum()), int((same & ~single).sum()))


def anchor_advantage(to_go: ArrayLike, anchor: ArrayLike, group: ArrayLike, *, scale: Scale = "none") -> Grouped:
    """Steps compared with those that were taken from the same state of the same task, `[A]`.

    GiGPO's step-level advantage (arXiv 2505.10978, equations 6 and 7). A state that was seen once gives 0.

    Args:
        to_go: `[A]`, discounted returns from each action on. anchor: `[A]` exact hashes of the observations.
        group: `[A]`, the task group of each action.
    Raises:
        BatchMismatch: the arrays differ in length. NonFinite: a return.
    """
    states, tasks = np.asarray(anchor), np.asarray(group)
    if states.shape != tasks.shape:
        raise BatchMismatch("anchors are not one an action", value=states.shape, expected=tasks.shape)
    _, state = np.unique(states, return_inverse=True)
    kinds, task = np.unique(tasks, return_inverse=True)
    return group_advantage(to_go, state * max(len(kinds), 1) + task, baseline="group_mean", scale=scale)


def buffer_normalized(returns: ArrayLike, *, ddof: int = 0, epsilon: float = 1e-8) -> Floats:
    """`(R - mean) / (std + epsilon)` over everything sampled, `[E]`: what OpenR (arXiv 2410.09671) calls GRPO.

    Tasks of different difficulty are compared with each other; `group_advantage` compares within a task.
    """
    paid = _returns(returns)
    return (paid - paid.mean()) / (_deviation(paid, ddof) + epsilon) if len(paid) else paid


def whiten(values: ArrayLike, *, mask: ArrayLike | None = None, epsilon: float = 1e-8) -> Floats:
    """`(x - mean) / sqrt(variance + epsilon)` over all that the mask marks, of the same shape; others become 0.

    Over a whole buffer, before it is cut into batches: an update does not depend on how it was cut. Which entries
    count is said by the mask alone: an advantage of exactly 0 is an advantage.
    """
    found = np.asarray(values, np.float64)
    used = np.ones(found.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
    if used.shape != found.shape:
        raise BatchMismatch("the mask has another shape than the values", value=used.shape, expected=found.shape)
    chosen = _returns(found[used])
    result = np.zeros(found.shape)
    if len(chosen):
        centred = 0.0 if alike(chosen.min(), chosen.max()) else chosen - chosen.mean()
        result[used] = centred / np.sqrt(np.mean(np.square(centred)) + epsilon)
    return result


def alike(least: Any, most: Any) -> Any:
    """Whether numbers between these are one number but for rounding: sums of equal rewards in another order differ."""
    return most - least <= _ROUNDING * np.maximum(np.abs(least), np.abs(most))


def _returns(returns: Any) -> Floats:
    paid = np.asarray(returns, np.float64)
    if paid.ndim != 1:
        raise BatchMismatch("returns are one row of numbers", value=paid.shape)
    if not np.isfinite(paid).all():
        at = int((~np.isfinite(paid)).argmax())
        raise NonFinite(f"return number {at} is not finite", value=float(paid[at]))
    return paid


def _deviation(values: Floats, ddof: int = 1) -> float:
    return float(values.std(ddof=ddof)) if len(values) > ddof else 0.0
