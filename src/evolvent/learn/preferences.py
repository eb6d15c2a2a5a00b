"""Data for preferences, reward models and values: pairs of better and worse episodes, read-outs, returns-to-go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from evolvent.errors import ConfigError, EvolventError, Problem, SampleInvalid, VocabularyMismatch
from evolvent.learn.returns import reward_to_go
from evolvent.learn.rows import flatten_conversation
from evolvent.learn.token_sequences import Render, TokenSequence, flatten
from evolvent.learn.windows import fit_to_context
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Task, Trajectory, sample_rng

__all__ = ["PreferencePairs", "add_returns", "append_outcome_readout", "append_readout", "build_pairs"]


@dataclass(frozen=True, slots=True)
class PreferencePairs:
    """The result of `build_pairs`.

    Attributes:
        sequences: chosen, rejected, chosen, rejected, ...
        ties: number of pairs of episodes of one group with equal scores.
        unscored: number of episodes without a score.
        refused: episodes that belong to a pair but cannot be used, with the reason.
    """

    sequences: list[TokenSequence]
    ties: int
    unscored: int
    refused: list[Problem]


def build_pairs(
    trajectories: Iterable[Trajectory],
    dialect: Dialect,
    *,
    instructions: Callable[[Task], str],
    context: int,
    max_per_group: int = 4,
    margin: float = 0.0,
    seed: int = 0,
    render: Render | None = None,
    is_conversation: Callable[[Task], bool] = lambda task: False,
) -> PreferencePairs:
    """Builds preference pairs between episodes of one group (without one: of one task): the higher unit score is
    chosen.

    The pairs of a group depend on the seed and the ids alone, not on the order of the episodes. Both sides are
    flattened as for imitation (see `learn.token_sequences.flatten`); an episode of several sequences is refused, since
    its probability is not that of one sequence.

    Args:
        context: longer sequences are refused.
        max_per_group: number of pairs per group.
        margin: scores that differ by no more than this are a tie.
        is_conversation: returns whether an episode is read as the conversation that was imported, without a world.
    Raises:
        ConfigError: `max_per_group` is below 1, or the margin is negative.
    """
    problems = [
        *([Problem("most", f"got {max_per_group}, expected 1 or more")] if max_per_group < 1 else []),
        *([Problem("margin", f"got {margin}, expected 0 or more")] if not margin >= 0 else []),
    ]
    if problems:
        raise ConfigError(problems)
    groups: dict[str, list[tuple[float, Trajectory]]] = {}
    unscored = 0
    for trajectory in trajectories:
        score = trajectory.score.unit
        if trajectory.error is not None or score is None:
            unscored += 1
        else:
            groups.setdefault(trajectory.group or trajectory.task.id, []).append((score, trajectory))
    sides = _SequenceCache(dialect, instructions, context, render, is_conversation)
    sequences: list[TokenSequence] = []
    ties = 0
    for name in sorted(groups):
        members = sorted(groups[name], key=lambda member: member[1].id)
        ordered_pairs = [_order_by_score(a, b) for a, b in combinations(members, 2) if abs(a[0] - b[0]) > margin]
        ties += len(members) * (len(members) - 1) // 2 - len(ordered_pairs)
        sequences += _select_pairs(ordered_pairs, sides, max_pairs=max_per_group, rng=sample_rng(seed, "pairs", name))
    return PreferencePairs(sequences, ties, unscored, sides.refused)


def _order_by_score(a: tuple[float, Trajectory], b: tuple[float, Trajectory]) -> tuple[Trajectory, Trajectory]:
    return (a[1], b[1]) if a[0] > b[0] else (b[1], a[1])


def _select_pairs(
    ordered_pairs: Sequence[tuple[Trajectory, Trajectory]],
    sides: _SequenceCache,
    *,
    max_pairs: int,
    rng: np.random.Generator,
) -> list[TokenSequence]:
    """Selects pairs in random order, at most `max_pairs`, and skips those with a refused side."""
    sequences: list[TokenSequence] = []
    for pair_index in rng.permutation(len(ordered_pairs)).tolist():
        chosen_sequence, rejected_sequence = (sides.get(trajectory) for trajectory in ordered_pairs[pair_index])
        if chosen_sequence is not None and rejected_sequence is not None:
            sequences += [chosen_sequence, rejected_sequence]
        if len(sequences) == 2 * max_pairs:
            break
    return sequences


class _SequenceCache:
    """The single sequence of each episode, built when it is first needed; None where it is refused."""

    def __init__(
        self,
        dialect: Dialect,
        instructions: Callable[[Task], str],
        context: int,
        render: Render | None,
        is_conversation: Callable[[Task], bool],
    ) -> None:
        self._dialect, self._instructions, self._context, self._render = dialect, instructions, context, render
        self._is_conversation = is_conversation
        self._made: dict[str, TokenSequence | None] = {}
        self.refused: list[Problem] = []

    def get(self, trajectory: Trajectory) -> TokenSequence | None:
        if trajectory.id not in self._made:
            self._made[trajectory.id] = self._build_sequence(trajectory)
        return self._made[trajectory.id]

    def _build_sequence(self, trajectory: Trajectory) -> TokenSequence | None:
        try:
            if self._is_conversation(trajectory.task):
                sequences = flatten_conversation(trajectory, self._dialect)
                fitted = [part for sequence in sequences for part in fit_to_context(sequence, self._context)]
                return self._require_single(fitted, ())
            flattened = flatten(
                [trajectory], self._dialect, instructions=self._instructions, context=self._context, render=self._render
            )
            return self._require_single(flattened.sequences, flattened.refused)
        except (SampleInvalid, VocabularyMismatch) as error:
            self.refused.append(Problem(trajectory.id, str(error)))
        return None

    @staticmethod
    def _require_single(sequences: Sequence[TokenSequence], refused: Sequence[Problem]) -> TokenSequence:
        if refused:
            raise SampleInvalid(refused[0].what, hint=refused[0].hint)
        if len(sequences) != 1 or not sequences[0].feed:
            learned = sum(sequence.feed > 0 for sequence in sequences)
            raise SampleInvalid(
                "the episode has no single sequence to learn",
                value=f"{learned} of {len(sequences)}",
                expected="an episode in which each turn extends the last",
            )
        return sequences[0]


# ------------------------------------------------------------------ reward models and values


def append_readout(sequence: TokenSequence, *, token: int) -> TokenSequence:
    """Appends one target after the end of a sequence, so that a head there reads the state after the last token.

    Args:
        token: of the vocabulary, such as end-of-text; it is never fed, because it comes last.
    """
    weight = np.zeros(len(sequence) + 1, np.float32)
    weight[-1] = 1.0
    columns = {name: np.concatenate([column, np.zeros_like(column[:1])]) for name, column in sequence.columns.items()}
    return replace(
        sequence,
        ids=np.append(sequence.ids, np.int32(token)),
        written=np.append(sequence.written, False),
        sampled=np.append(sequence.sampled, False),
        logprobs=np.append(sequence.logprobs, np.float32(0)),
        step=np.append(sequence.step, sequence.step[-1:]),
        span=np.append(sequence.span, np.int32(-1)),
        weight=weight,
        columns=columns,
    )


def append_outcome_readout(trajectory: Trajectory, sequence: TokenSequence, *, token: int) -> TokenSequence:
    """Appends a read-out with the episode's unit score as column "outcome", for `learn.objectives.outcome`.

    Raises:
        SampleInvalid: the episode has no score in 0..1.
    """
    score = trajectory.score.unit
    if trajectory.error is not None or score is None or not 0.0 <= score <= 1.0:
        raise _unscored_error(trajectory, score)
    extended = append_readout(sequence, token=token)
    return replace(extended, columns={**extended.columns, "outcome": np.full(len(extended), score, np.float32)})


def _unscored_error(trajectory: Trajectory, value: object) -> EvolventError:
    reason = trajectory.error.kind if trajectory.error is not None else value
    return SampleInvalid(f"episode {trajectory.id!r} is not scored", value=repr(reason), expected="a score")


def add_returns(trajectory: Trajectory, sequence: TokenSequence, *, discount: float = 1.0) -> TokenSequence:
    """Adds the discounted return-to-go at the written tokens of an episode as column "returns".

    Every token of an action has the return of its environment step: nothing is discounted inside an action. Rewards
    after a cut at the horizon count as 0. Where no step has a reward, the episode's raw score is paid at its last step.

    Raises:
        SampleInvalid: some steps are not scored, or neither the steps nor the episode are.
    """
    rewards: list[float | None] = list(trajectory.rewards)
    if rewards and all(reward is None for reward in rewards) and trajectory.score.raw is not None:
        rewards = [*[0.0] * (len(rewards) - 1), trajectory.score.raw]
    scored_rewards = [reward for reward in rewards if reward is not None]
    if trajectory.error is not None or not rewards or len(scored_rewards) != len(rewards):
        raise _unscored_error(trajectory, f"{len(scored_rewards)} of {len(rewards)} rewards")
    returns_to_go = reward_to_go(scored_rewards, gamma=discount)
    returns = np.where(sequence.written, returns_to_go[sequence.step], 0.0).astype(np.float32)
    return replace(sequence, columns={**sequence.columns, "returns": returns})
