"""Flat: the sampled parts of many episodes in time order, which is what credit is assigned to.

`Parts` are sequences as a model reads them. `Flat` forgets what was only read, and knows what the parts earned: which
action and episode each belongs to, its reward, how episodes ended. Credit is computed here, one number a part, and goes
back beside the tokens as columns (`with_columns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite, NothingToLearn
from evolvent.learn.token_sequences import Parts
from evolvent.trajectory import Step, Trajectory

__all__ = ["CUT_OFF", "GOES_ON", "TERMINATED", "TRUNCATED", "Flat", "FlattenReport", "Rewards", "flat", "with_columns"]

Rewards = Callable[[Trajectory], Sequence[float | None]]
GOES_ON = 0
TERMINATED = 1
TRUNCATED = 2
CUT_OFF = 3
_TOLD = 200  # letters of an error that a message repeats
_INDICES = ("span", "action", "chain", "place", "version")


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """P parts of A actions in E episodes; parts in time order, episode after episode.

    Args:
        logp: `[P]` float32, log-probability of each part under the distribution that it was sampled from.
        version: `[P]` of the policy that sampled it.
        span: `[P]` running number of the span of reasoning, non-decreasing over all.
        action: `[P]` index in 0..A - 1, non-decreasing.
        episode: `[A]` index in 0..E - 1, non-decreasing. group: `[E]`, equal for episodes that are compared.
        reward: `[P]` float64, where it was paid; an environment's on the last part of its action.
        ended: `[A]`: 0 goes on, 1 terminated, 2 truncated, 3 cut off with nothing after it (out of context, or over
            with a reply that was cut at its limit of tokens); not 0 exactly on the last action of an episode.
        bootstrap: `[A, ...]` float64, the value of the final observation where truncated; elsewhere not looked at.
        chain, place: `[P]`, the sequence that a part lies in, and where in it.
    Raises:
        BatchMismatch: arrays that do not fit each other, or indices that fall. NonFinite: a log-probability or reward
            that is not finite; names episode, action and part.
    """

    logp: NDArray[np.float32]
    version: NDArray[np.int32]
    span: NDArray[np.int64]
    action: NDArray[np.int64]
    episode: NDArray[np.int64]
    group: NDArray[np.int64]
    reward: NDArray[np.float64]
    ended: NDArray[np.int8]
    bootstrap: NDArray[np.float64]
    chain: NDArray[np.int64]
    place: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_shapes(self)
        for name, index in (("span", self.span), ("action", self.action), ("episode", self.episode)):
            if len(index) and (np.diff(index) < 0).any():
                raise BatchMismatch(f"the {name} index of a part falls", value=int(np.diff(index).argmin()) + 1)
        last = np.append(np.diff(self.episode) > 0, True) if len(self.episode) else np.zeros(0, np.bool_)
        if ((self.ended != GOES_ON) != last).any():
            raise BatchMismatch(
                "an episode ends where its last action is not", value=int(((self.ended != GOES_ON) != last).argmax())
            )
        for name, values in (("log-probability", self.logp), ("reward", self.reward)):
            if not np.isfinite(values).all():
                at = int((~np.isfinite(values)).argmax())
                raise NonFinite(f"the {name} of {self.where(at)} is not finite", value=float(values[at]))

    @property
    def parts(self) -> int:
        """P."""
        return len(self.logp)

    @property
    def last(self) -> NDArray[np.bool_]:
        """`[P]`, whether a part is the last of its action."""
        return np.append(np.diff(self.action) > 0, True) if self.parts else np.zeros(0, np.bool_)

    @property
    def episode_of_part(self) -> NDArray[np.int64]:
        """`[P]`, the episode of each part."""
        return self.episode[self.action]

    def where(self, part: int) -> str:
        """A part's place in words."""
        action = int(self.action[part])
        first = int(np.searchsorted(self.action, action))
        before = int(np.searchsorted(self.episode, self.episode[action]))
        return f"episode {int(self.episode[action])}, action {action - before}, part {part - first}"


def _check_shapes(found: Flat) -> None:
    parts, actions = len(found.logp), len(found.episode)
    sizes = {name: len(getattr(found, name)) for name in (*_INDICES, "reward")}
    if set(sizes.values()) - {parts}:
        raise BatchMismatch("arrays of parts differ in length", value={"logp": parts, **sizes})
    if len(found.ended) != actions or len(found.bootstrap) != actions:
        values = {"episode": actions, "ended": len(found.ended), "bootstrap": len(found.bootstrap)}
        raise BatchMismatch("arrays of actions differ in length", value=values)
    used = np.unique(found.action)
    if not np.array_equal(used, np.arange(actions)):
        raise BatchMismatch("an action of no parts", value=f"{len(used)} of {actions} actions have parts")
    if not np.array_equal(np.unique(found.episode), np.arange(len(found.group))):
        raise BatchMismatch("an episode of no actions", value=f"{len(found.group)} groups", expected="one an episode")


@dataclass(frozen=True, slots=True)
class FlattenReport:
    """What became of the episodes: how many are in, and how many were left out and why.

    Attributes:
        episodes: in. unscored: a reward was None, or the episode failed. stale: written by a policy too old.
        silent: without any token to learn.
        taken: `[E]`, which of the trajectories each episode is.
    """

    episodes: int
    unscored: int = 0
    stale: int = 0
    silent: int = 0
    taken: tuple[int, ...] = ()


def flat(
    trajectories: Sequence[Trajectory],
    chains: Sequence[Parts],
    *,
    rewards: Rewards | None = None,
    least_version: int = 0,
    most_unscored: float = 0.5,
) -> tuple[Flat, FlattenReport]:
    """The parts of these episodes that can be learned from: sampled tokens with a learning weight.

    The reward of a step is paid on the last part of its action; that of a step without parts on the action before it.
    An episode that could not be scored, or that too old a policy wrote a part of, is left out whole and counted: a
    failure of infrastructure is no reward of 0. Running out of context ends an episode for good (`CUT_OFF`): there is
    no next action whose value could stand for the rest.

    Args:
        chains: what `flatten` made of the trajectories.
        rewards: of each step; None: those the environment paid.
        least_version: policies older than that are not learned from.
        most_unscored: a greater share of unscored episodes is an error.
    Raises:
        NothingToLearn: no episode is left, or too many could not be scored. NonFinite: a reward or log-probability.
        BatchMismatch: actions sampled under a constraint; what the policy says of them is of another distribution. Or
            not one of `rewards` a step.
    """
    own: dict[str, list[int]] = {}
    for index, chain in enumerate(chains):
        own.setdefault(chain.trajectory, []).append(index)
    gathered: dict[int, _Episode] = {}
    unscored = stale = silent = 0
    full: list[str] = []  # tasks of silent episodes, whose prompt left no room
    for number, trajectory in enumerate(trajectories):
        held = next((at for at, step in enumerate(trajectory.steps) if step.info.get("constrained")), None)
        if held is not None:
            raise BatchMismatch(
                f"step {held} of {trajectory.id!r} was sampled under a constraint",
                expected="actions that the policy sampled freely",
                hint="imitate such episodes (fit), or play without the constraint",
            )
        paid = _paid(trajectory, rewards)
        if trajectory.error is not None or any(reward is None for reward in paid):
            unscored += 1
        elif min(map(_version, trajectory.steps), default=least_version) < least_version:
            stale += 1
        else:
            found = _episode(trajectory, [(index, chains[index]) for index in own.get(trajectory.id, ())], paid)
            silent += found is None
            if found is None and trajectory.meta.get("context_full"):
                full.append(f"{trajectory.task.id} of {trajectory.task.world}")
            if found is not None:
                gathered[number] = found
    report = FlattenReport(len(gathered), unscored, stale, silent, tuple(gathered))
    if unscored > most_unscored * len(trajectories):
        raise NothingToLearn(
            "too many episodes could not be scored",
            value=f"{unscored} of {len(trajectories)}",
            expected=f"at most {most_unscored:.0%}",
            hint=_commonest(trajectories),
        )
    if not gathered:
        left = {
            "not scored": unscored,
            "too old": stale,
            "whose prompt fills the context": len(full),
            "without a token to learn": silent - len(full),
        }
        raise NothingToLearn(
            f"none of {len(trajectories)} episodes has a part to learn from",
            value=", ".join(f"{count} {why}" for why, count in left.items() if count > 0) or "no episodes",
            expected="episodes with a scored action of the policy",
            hint=f"use a policy with a longer context, or leave out tasks like {full[0]}" if full else None,
        )
    return _joined(list(gathered.values())), report


def _commonest(trajectories: Sequence[Trajectory]) -> str:
    """What most of the episodes that could not be scored say of it."""
    errors = Counter(f"{one.error.kind}: {one.error.message}" for one in trajectories if one.error is not None)
    if not errors:
        return "the world or its judge gave no score"
    ((told, count),) = errors.most_common(1)
    return f"{count} of them: {told[:_TOLD]}"


@dataclass(frozen=True, slots=True)
class _Episode:
    """One episode's arrays over its parts, with actions counted from 0."""

    group: str
    logp: NDArray[np.float32]
    version: NDArray[np.int32]
    span: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    chain: NDArray[np.int64]
    place: NDArray[np.int64]
    ended: int


def _paid(trajectory: Trajectory, rewards: Rewards | None) -> list[float | None]:
    """The reward of each step."""
    if rewards is None:
        return [step.reward for step in trajectory.steps]
    paid = list(rewards(trajectory))
    if len(paid) != len(trajectory.steps):
        raise BatchMismatch(
            f"not one reward a step of {trajectory.id!r}", value=len(paid), expected=len(trajectory.steps)
        )
    return paid


def _version(step: Step) -> int:
    return min((generation.policy_version for generation in step.generations if generation.acted), default=1 << 30)


def _episode(
    trajectory: Trajectory, chains: Sequence[tuple[int, Parts]], paid: Sequence[float | None]
) -> _Episode | None:
    """The learned tokens of an episode's chains, by step; None where there are none."""
    places = [np.flatnonzero((chain.weight != 0) & chain.sampled) for _, chain in chains]
    if not sum(map(len, places)):
        return None
    step = np.concatenate([chain.step[at] for (_, chain), at in zip(chains, places, strict=True)])
    order = np.argsort(step, kind="stable")
    step = step[order]

    def column(read: Callable[[Parts], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([read(chain)[at] for (_, chain), at in zip(chains, places, strict=True)])[order]

    number = np.concatenate([np.full(len(at), index) for (index, _), at in zip(chains, places, strict=True)])[order]
    span = column(lambda chain: chain.span)
    fresh = (np.diff(span, prepend=span[0]) != 0) | (np.diff(step, prepend=step[0]) != 0)
    steps, action = np.unique(step, return_inverse=True)
    versions = np.asarray([_version(one) for one in trajectory.steps], np.int64)
    return _Episode(
        trajectory.group or trajectory.id,
        column(lambda chain: chain.logprobs),
        versions[step].astype(np.int32),
        np.cumsum(fresh),
        action.astype(np.int64),
        _paid_on(steps, action, paid),
        number.astype(np.int64),
        np.concatenate(places)[order].astype(np.int64),
        _end(trajectory),
    )


def _end(trajectory: Trajectory) -> int:
    """How an episode ended, as `Flat.ended` says it."""
    full = bool(trajectory.meta.get("context_full"))
    if trajectory.truncated and not full:
        return TRUNCATED
    written = [each for each in trajectory.steps[-1].generations if each.acted]
    return CUT_OFF if full or (written and written[-1].stop == "length") else TERMINATED


def _paid_on(steps: NDArray[np.int32], action: NDArray[np.intp], paid: Sequence[float | None]) -> NDArray[np.float64]:
    """`[p]`, rewards on the last parts of actions; a step without parts pays the action before it, or the first."""
    owner = np.maximum(np.searchsorted(steps, np.arange(len(paid)), side="right") - 1, 0)
    sums = np.bincount(owner, weights=np.asarray(paid, np.float64), minlength=len(steps))
    reward = np.zeros(len(action))
    reward[np.searchsorted(action, np.arange(len(steps)), side="right") - 1] = sums
    return reward


def _joined(episodes: Sequence[_Episode]) -> Flat:
    groups = {name: index for index, name in enumerate(dict.fromkeys(one.group for one in episodes))}
    counts = [int(one.action[-1]) + 1 for one in episodes]
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])
    spans = np.concatenate([[0], np.cumsum([int(one.span[-1]) + 1 for one in episodes])[:-1]])
    ended = np.zeros(sum(counts), np.int8)
    ended[np.cumsum(counts) - 1] = [one.ended for one in episodes]
    return Flat(
        np.concatenate([one.logp for one in episodes]),
        np.concatenate([one.version for one in episodes]),
        np.concatenate([one.span + first for one, first in zip(episodes, spans, strict=True)]),
        np.concatenate([one.action + first for one, first in zip(episodes, before, strict=True)]),
        np.repeat(np.arange(len(episodes)), counts),
        np.asarray([groups[one.group] for one in episodes], np.int64),
        np.concatenate([one.reward for one in episodes]),
        ended,
        np.zeros(len(ended)),
        np.concatenate([one.chain for one in episodes]),
        np.concatenate([one.place for one in episodes]),
    )


def with_columns(
    chains: Sequence[Parts], found: Flat, columns: Mapping[str, NDArray[Any]], *, kept: NDArray[np.bool_] | None = None
) -> list[Parts]:
    """The chains that hold parts of `found`, with these values `[P, ...]` beside their tokens.

    Only those parts are learned, and of them those that are `kept [P]`: all other tokens have weight 0, and chains of
    such tokens alone are left out. Columns that a chain has already are kept.
    """
    wrong = {name: len(values) for name, values in columns.items() if len(values) != found.parts}
    if wrong:
        raise BatchMismatch("columns of another length than the parts", value=wrong, expected=found.parts)
    order = np.argsort(found.chain, kind="stable")
    order = order if kept is None else order[kept[order]]
    numbers, first = np.unique(found.chain[order], return_index=True)
    made = []
    for number, mine in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        chain, places = chains[number], found.place[mine]
        weight = np.zeros(len(chain), np.float32)
        weight[places] = chain.weight[places]
        own = {name: _spread(values[mine], places, len(chain)) for name, values in columns.items()}
        made.append(replace(chain, weight=weight, columns={**chain.columns, **own}))
    return made


def _spread(values: NDArray[Any], places: NDArray[np.int64], length: int) -> NDArray[Any]:
    kind = np.float32 if values.dtype == np.float64 else values.dtype
    column = np.zeros((length, *values.shape[1:]), kind)
    column[places] = values
    return column
