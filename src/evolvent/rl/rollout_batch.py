"""The sampled tokens of many episodes in time order, to which credit is assigned.

`TokenSequence` is a sequence as a model reads it. `RolloutBatch` leaves out prompt tokens and adds what sampled
tokens earned: the action and episode of each, its reward, and how episodes ended. Advantages are computed here,
one per token, and go back beside the tokens as columns (`add_columns`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, NonFinite, NothingToLearn
from evolvent.learn.token_sequences import TokenSequence
from evolvent.trajectory import Step, Trajectory

__all__ = [
    "CUT_OFF",
    "GOES_ON",
    "TERMINATED",
    "TRUNCATED",
    "Rewards",
    "RolloutBatch",
    "RolloutReport",
    "add_columns",
    "build_rollout_batch",
]

Rewards = Callable[[Trajectory], Sequence[float | None]]
GOES_ON = 0
TERMINATED = 1
TRUNCATED = 2
CUT_OFF = 3
_MAX_ERROR_CHARACTERS = 200  # letters of an error that a message repeats
_INDEX_FIELDS = ("span", "action", "sequence", "position", "version")


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """P tokens of A actions in E episodes; tokens in time order, episode after episode.

    Args:
        logp: `[P]` float32, log-probability of each token under the distribution that it was sampled from.
        version: `[P]` of the policy that sampled it.
        span: `[P]` running number of the span of reasoning, non-decreasing over all.
        action: `[P]` index in 0..A - 1, non-decreasing.
        episode: `[A]` index in 0..E - 1, non-decreasing.
        group: `[E]`, equal for episodes that are compared.
        reward: `[P]` float64, where it was paid; an environment's reward is on the last token of its action.
        ended: `[A]`: 0 goes on, 1 terminated, 2 truncated, 3 cut off with nothing after it (out of context, or ended
            with a reply that was cut at its token limit); not 0 exactly on the last action of an episode.
        bootstrap: `[A, ...]` float64, the value of the final observation where truncated; ignored elsewhere.
        sequence: `[P]`, the token sequence that a token lies in.
        position: `[P]`, its position in that sequence.
    Raises:
        BatchMismatch: arrays do not fit each other, or indices decrease.
        NonFinite: a log-probability or reward is not finite; the message names episode, action and token.
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
    sequence: NDArray[np.int64]
    position: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_shapes(self)
        for name, index in (("span", self.span), ("action", self.action), ("episode", self.episode)):
            if len(index) and (np.diff(index) < 0).any():
                raise BatchMismatch(f"{name} index of the tokens decreases", value=int(np.diff(index).argmin()) + 1)
        is_last_action = np.append(np.diff(self.episode) > 0, True) if len(self.episode) else np.zeros(0, np.bool_)
        if ((self.ended != GOES_ON) != is_last_action).any():
            raise BatchMismatch(
                "an episode ends before its last action",
                value=int(((self.ended != GOES_ON) != is_last_action).argmax()),
            )
        for name, values in (("log-probability", self.logp), ("reward", self.reward)):
            if not np.isfinite(values).all():
                token = int((~np.isfinite(values)).argmax())
                raise NonFinite(
                    f"the {name} of {self.describe_position(token)} is not finite", value=float(values[token])
                )

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens P."""
        return len(self.logp)

    @property
    def is_last_in_action(self) -> NDArray[np.bool_]:
        """Returns `[P]` bool, whether a token is the last of its action."""
        return np.append(np.diff(self.action) > 0, True) if self.num_tokens else np.zeros(0, np.bool_)

    @property
    def episode_of_token(self) -> NDArray[np.int64]:
        """Returns `[P]`, the episode of each token."""
        return self.episode[self.action]

    def describe_position(self, token: int) -> str:
        """Formats the position of a token: episode, action and token."""
        action = int(self.action[token])
        first = int(np.searchsorted(self.action, action))
        first_action = int(np.searchsorted(self.episode, self.episode[action]))
        return f"episode {int(self.episode[action])}, action {action - first_action}, part {token - first}"


def _check_shapes(batch: RolloutBatch) -> None:
    num_tokens, num_actions = len(batch.logp), len(batch.episode)
    sizes = {name: len(getattr(batch, name)) for name in (*_INDEX_FIELDS, "reward")}
    if set(sizes.values()) - {num_tokens}:
        raise BatchMismatch("token arrays differ in length", value={"logp": num_tokens, **sizes})
    if len(batch.ended) != num_actions or len(batch.bootstrap) != num_actions:
        values = {"episode": num_actions, "ended": len(batch.ended), "bootstrap": len(batch.bootstrap)}
        raise BatchMismatch("action arrays differ in length", value=values)
    used_actions = np.unique(batch.action)
    if not np.array_equal(used_actions, np.arange(num_actions)):
        raise BatchMismatch(
            "an action has no tokens", value=f"{len(used_actions)} of {num_actions} actions with tokens"
        )
    if not np.array_equal(np.unique(batch.episode), np.arange(len(batch.group))):
        raise BatchMismatch("an episode has no actions", value=f"{len(batch.group)} groups", expected="one per episode")


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """Counts of episodes that are in a batch, and of those that were left out, by reason.

    Attributes:
        episodes: in the batch.
        unscored: a reward was None, or the episode failed.
        stale: played by a policy that is too old.
        silent: without any token to learn.
        episode_index: `[E]`, the index of each episode among the trajectories.
    """

    episodes: int
    unscored: int = 0
    stale: int = 0
    silent: int = 0
    episode_index: tuple[int, ...] = ()


def build_rollout_batch(
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TokenSequence],
    *,
    rewards: Rewards | None = None,
    min_version: int = 0,
    max_unscored_ratio: float = 0.5,
) -> tuple[RolloutBatch, RolloutReport]:
    """Builds the batch of the sampled tokens of these episodes that have a learning weight.

    The reward of a step is paid on the last token of its action; that of a step without tokens, on the action before
    it. An episode that could not be scored, or that is partly played by too old a policy, is left out whole and
    counted: a failure of infrastructure is not a reward of 0. Running out of context ends an episode for good
    (`CUT_OFF`): there is no next action whose value could stand for the rest.

    Args:
        sequences: the token sequences that `flatten` made of the trajectories.
        rewards: returns the reward of each step; None: the environment's rewards.
        min_version: older policies are left out.
        max_unscored_ratio: a greater share of unscored episodes is an error.
    Raises:
        NothingToLearn: no episode is left, or too many could not be scored.
        NonFinite: a reward or log-probability is not finite.
        BatchMismatch: actions were sampled under a constraint, so the policy's log-probabilities are of another
            distribution; or the number of `rewards` differs from the number of steps.
    """
    sequences_by_trajectory: dict[str, list[int]] = {}
    for index, sequence in enumerate(sequences):
        sequences_by_trajectory.setdefault(sequence.trajectory, []).append(index)
    episodes: dict[int, _EpisodeTokens] = {}
    unscored = stale = silent = 0
    full_context_tasks: list[str] = []  # tasks of silent episodes, whose prompt left no room
    for number, trajectory in enumerate(trajectories):
        constrained_step = next(
            (step_index for step_index, step in enumerate(trajectory.steps) if step.info.get("constrained")), None
        )
        if constrained_step is not None:
            raise BatchMismatch(
                f"step {constrained_step} of {trajectory.id!r} was sampled under a constraint",
                expected="actions that the policy sampled freely",
                hint="imitate such episodes (fit), or collect without the constraint",
            )
        step_rewards = _step_rewards(trajectory, rewards)
        if trajectory.error is not None or any(reward is None for reward in step_rewards):
            unscored += 1
        elif min(map(_oldest_version, trajectory.steps), default=min_version) < min_version:
            stale += 1
        else:
            episode = _collect_tokens(
                trajectory,
                [(index, sequences[index]) for index in sequences_by_trajectory.get(trajectory.id, ())],
                step_rewards,
            )
            silent += episode is None
            if episode is None and trajectory.meta.get("context_full"):
                full_context_tasks.append(f"{trajectory.task.id} of {trajectory.task.world}")
            if episode is not None:
                episodes[number] = episode
    report = RolloutReport(len(episodes), unscored, stale, silent, tuple(episodes))
    if unscored > max_unscored_ratio * len(trajectories):
        raise NothingToLearn(
            "too many episodes could not be scored",
            value=f"{unscored} of {len(trajectories)}",
            expected=f"at most {max_unscored_ratio:.0%}",
            hint=_most_common_error(trajectories),
        )
    if not episodes:
        excluded = {
            "not scored": unscored,
            "too old": stale,
            "whose prompt fills the context": len(full_context_tasks),
            "without a token to learn": silent - len(full_context_tasks),
        }
        raise NothingToLearn(
            f"none of {len(trajectories)} episodes has a token to learn from",
            value=", ".join(f"{count} {reason}" for reason, count in excluded.items() if count > 0) or "no episodes",
            expected="episodes with a scored action of the policy",
            hint=f"use a policy with a longer context, or leave out tasks such as {full_context_tasks[0]}"
            if full_context_tasks
            else None,
        )
    return _join_episodes(list(episodes.values())), report


def _most_common_error(trajectories: Sequence[Trajectory]) -> str:
    """Returns the most common error of the episodes that could not be scored."""
    failures = [failure for trajectory in trajectories if (failure := trajectory.failure) is not None]
    if not failures:
        return "the world or its judge gave no score"
    reasons = Counter(re.split("[:;] got ", failure, maxsplit=1)[0] for failure in failures)
    ((reason, count),) = reasons.most_common(1)
    example = next(failure for failure in failures if failure.startswith(reason))
    return f"{count} of them: {example[:_MAX_ERROR_CHARACTERS]}"


@dataclass(frozen=True, slots=True)
class _EpisodeTokens:
    """The arrays of one episode over its tokens, with actions counted from 0."""

    group: str
    logp: NDArray[np.float32]
    version: NDArray[np.int32]
    span: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    sequence: NDArray[np.int64]
    position: NDArray[np.int64]
    ended: int


def _step_rewards(trajectory: Trajectory, rewards: Rewards | None) -> list[float | None]:
    """Returns the reward of each step."""
    if rewards is None:
        return [step.reward for step in trajectory.steps]
    step_rewards = list(rewards(trajectory))
    if len(step_rewards) != len(trajectory.steps):
        raise BatchMismatch(
            f"number of rewards does not match the steps of trajectory {trajectory.id!r}",
            value=len(step_rewards),
            expected=len(trajectory.steps),
        )
    return step_rewards


def _oldest_version(step: Step) -> int:
    return min((generation.policy_version for generation in step.generations if generation.acted), default=1 << 30)


def _collect_tokens(
    trajectory: Trajectory, sequences: Sequence[tuple[int, TokenSequence]], step_rewards: Sequence[float | None]
) -> _EpisodeTokens | None:
    """Returns the learned tokens of an episode's sequences, by step; None where there are none."""
    positions = [
        np.flatnonzero((token_sequence.weight != 0) & token_sequence.sampled) for _, token_sequence in sequences
    ]
    if not sum(map(len, positions)):
        return None
    step = np.concatenate(
        [
            token_sequence.step[sequence_positions]
            for (_, token_sequence), sequence_positions in zip(sequences, positions, strict=True)
        ]
    )
    order = np.argsort(step, kind="stable")
    step = step[order]

    def gather(get_column: Callable[[TokenSequence], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(
            [
                get_column(token_sequence)[sequence_positions]
                for (_, token_sequence), sequence_positions in zip(sequences, positions, strict=True)
            ]
        )[order]

    number = np.concatenate(
        [
            np.full(len(sequence_positions), index)
            for (index, _), sequence_positions in zip(sequences, positions, strict=True)
        ]
    )[order]
    span = gather(lambda token_sequence: token_sequence.span)
    is_span_start = (np.diff(span, prepend=span[0]) != 0) | (np.diff(step, prepend=step[0]) != 0)
    steps, action = np.unique(step, return_inverse=True)
    versions = np.asarray([_oldest_version(step_record) for step_record in trajectory.steps], np.int64)
    return _EpisodeTokens(
        trajectory.group or trajectory.id,
        gather(lambda token_sequence: token_sequence.logprobs),
        versions[step].astype(np.int32),
        np.cumsum(is_span_start),
        action.astype(np.int64),
        _place_rewards(steps, action, step_rewards),
        number.astype(np.int64),
        np.concatenate(positions)[order].astype(np.int64),
        _end_kind(trajectory),
    )


def _end_kind(trajectory: Trajectory) -> int:
    """Returns how an episode ended, as `RolloutBatch.ended` encodes it."""
    is_context_full = bool(trajectory.meta.get("context_full"))
    if trajectory.truncated and not is_context_full:
        return TRUNCATED
    acted_generations = [generation for generation in trajectory.steps[-1].generations if generation.acted]
    return CUT_OFF if is_context_full or (acted_generations and acted_generations[-1].stop == "length") else TERMINATED


def _place_rewards(
    steps: NDArray[np.int32], action: NDArray[np.intp], step_rewards: Sequence[float | None]
) -> NDArray[np.float64]:
    """Returns `[p]`, rewards on the last tokens of actions; a step without tokens pays the action before it, or the
    first.
    """
    owner = np.maximum(np.searchsorted(steps, np.arange(len(step_rewards)), side="right") - 1, 0)
    sums = np.bincount(owner, weights=np.asarray(step_rewards, np.float64), minlength=len(steps))
    reward = np.zeros(len(action))
    reward[np.searchsorted(action, np.arange(len(steps)), side="right") - 1] = sums
    return reward


def _join_episodes(episodes: Sequence[_EpisodeTokens]) -> RolloutBatch:
    groups = {name: index for index, name in enumerate(dict.fromkeys(episode.group for episode in episodes))}
    counts = [int(episode.action[-1]) + 1 for episode in episodes]
    first_actions = np.concatenate([[0], np.cumsum(counts)[:-1]])
    first_spans = np.concatenate([[0], np.cumsum([int(episode.span[-1]) + 1 for episode in episodes])[:-1]])
    ended = np.zeros(sum(counts), np.int8)
    ended[np.cumsum(counts) - 1] = [episode.ended for episode in episodes]
    return RolloutBatch(
        np.concatenate([episode.logp for episode in episodes]),
        np.concatenate([episode.version for episode in episodes]),
        np.concatenate([episode.span + first for episode, first in zip(episodes, first_spans, strict=True)]),
        np.concatenate([episode.action + first for episode, first in zip(episodes, first_actions, strict=True)]),
        np.repeat(np.arange(len(episodes)), counts),
        np.asarray([groups[episode.group] for episode in episodes], np.int64),
        np.concatenate([episode.reward for episode in episodes]),
        ended,
        np.zeros(len(ended)),
        np.concatenate([episode.sequence for episode in episodes]),
        np.concatenate([episode.position for episode in episodes]),
    )


def add_columns(
    sequences: Sequence[TokenSequence],
    batch: RolloutBatch,
    columns: Mapping[str, NDArray[np.generic]],
    *,
    learned_mask: NDArray[np.bool_] | None = None,
) -> list[TokenSequence]:
    """Returns the sequences that hold tokens of `batch`, with the values `[P, ...]` of these columns beside their
    tokens.

    Only those tokens are learned, and of them those that `learned_mask [P]` marks: all other tokens have weight 0, and
    sequences of such tokens alone are left out. Columns that a sequence already has are kept.
    """
    mismatched = {name: len(values) for name, values in columns.items() if len(values) != batch.num_tokens}
    if mismatched:
        raise BatchMismatch(
            "length of the columns differs from the tokens", value=mismatched, expected=batch.num_tokens
        )
    order = np.argsort(batch.sequence, kind="stable")
    order = order if learned_mask is None else order[learned_mask[order]]
    numbers, first = np.unique(batch.sequence[order], return_index=True)
    learned_sequences = []
    for number, token_index in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        token_sequence, positions = sequences[number], batch.position[token_index]
        weight = np.zeros(len(token_sequence), np.float32)
        weight[positions] = token_sequence.weight[positions]
        token_columns = {
            name: _scatter(values[token_index], positions, len(token_sequence)) for name, values in columns.items()
        }
        learned_sequences.append(
            replace(token_sequence, weight=weight, columns={**token_sequence.columns, **token_columns})
        )
    return learned_sequences


def _scatter(values: NDArray[Any], positions: NDArray[np.int64], length: int) -> NDArray[Any]:
    dtype = np.float32 if values.dtype == np.float64 else values.dtype
    column = np.zeros((length, *values.shape[1:]), dtype)
    column[positions] = values
    return column
