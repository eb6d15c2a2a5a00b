"""Data of preferences, reward models and values: pairs of a better and a worse episode, read-outs, returns-to-go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from evolvent.errors import ConfigError, EvolventError, Problem, SampleInvalid, VocabularyMismatch
from evolvent.learn.returns import reward_to_go
from evolvent.learn.token_sequences import Parts, Render, flatten
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Task, Trajectory, sample_rng

__all__ = ["Pairs", "outcome_readout", "pairs", "readout", "with_returns"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """What `pairs` made.

    Attributes:
        parts: chosen, rejected, chosen, rejected, ...
        ties: pairs of episodes of one group with no better one. unscored: episodes without a score.
        refused: episodes that would have been in a pair and cannot be, with the reason.
    """

    parts: list[Parts]
    ties: int
    unscored: int
    refused: list[Problem]


def pairs(
    trajectories: Iterable[Trajectory],
    dialect: Dialect,
    *,
    instructions: Callable[[Task], str],
    context: int,
    most: int = 4,
    margin: float = 0.0,
    seed: int = 0,
    render: Render | None = None,
) -> Pairs:
    """Preferences between episodes of one group (without one: of one task): the higher unit score is chosen.

    Which pairs of a group are taken depends on the seed and the ids alone, not on the order of the episodes. Both sides
    are flattened as for imitation (see `learn.parts.flatten`); an episode of several sequences is refused, since its
    probability is not that of one.

    Args:
        context: longer sequences are refused. most: pairs of a group.
        margin: scores that differ by no more than this are a tie.
    Raises:
        ConfigError: `most` below 1, or a negative margin.
    """
    problems = [
        *([Problem("most", f"must be 1 or more, got {most}")] if most < 1 else []),
        *([Problem("margin", f"must be 0 or more, got {margin}")] if not margin >= 0 else []),
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
    sides = _Sides(dialect, instructions, context, render)
    made: list[Parts] = []
    ties = 0
    for name in sorted(groups):
        members = sorted(groups[name], key=lambda member: member[1].id)
        won = [_ordered(a, b) for a, b in combinations(members, 2) if abs(a[0] - b[0]) > margin]
        ties += len(members) * (len(members) - 1) // 2 - len(won)
        made += _taken(won, sides, most=most, rng=sample_rng(seed, "pairs", name))
    return Pairs(made, ties, unscored, sides.refused)


def _ordered(a: tuple[float, Trajectory], b: tuple[float, Trajectory]) -> tuple[Trajectory, Trajectory]:
    return (a[1], b[1]) if a[0] > b[0] else (b[1], a[1])


def _taken(
    won: Sequence[tuple[Trajectory, Trajectory]], sides: _Sides, *, most: int, rng: np.random.Generator
) -> list[Parts]:
    """At most so many pairs in random order, those with a refused side passed over."""
    made: list[Parts] = []
    for place in rng.permutation(len(won)).tolist():
        chosen, rejected = (sides.of(trajectory) for trajectory in won[place])
        if chosen is not None and rejected is not None:
            made += [chosen, rejected]
        if len(made) == 2 * most:
            break
    return made


class _Sides:
    """The one sequence of each episode, made when it is first asked for; None where it is refused."""

    def __init__(
        self, dialect: Dialect, instructions: Callable[[Task], str], context: int, render: Render | None
    ) -> None:
        self._dialect, self._instructions, self._context, self._render = dialect, instructions, context, render
        self._made: dict[str, Parts | None] = {}
        self.refused: list[Problem] = []

    def of(self, trajectory: Trajectory) -> Parts | None:
        if trajectory.id not in self._made:
            self._made[trajectory.id] = self._flat(trajectory)
        return self._made[trajectory.id]

    def _flat(self, trajectory: Trajectory) -> Parts | None:
        try:
            flat = flatten(
                [trajectory], self._dialect, instructions=self._instructions, context=self._context, render=self._render
            )
            return self._only(flat.parts, flat.refused)
        except (SampleInvalid, VocabularyMismatch) as error:
            self.refused.append(Problem(trajectory.id, str(error)))
        return None

    @staticmethod
    def _only(parts: Sequence[Parts], refused: Sequence[Problem]) -> Parts:
        if refused:
            raise SampleInvalid(refused[0].what, hint=refused[0].hint)
        if len(parts) != 1 or not parts[0].feed:
            learned = sum(sequence.feed > 0 for sequence in parts)
            raise SampleInvalid(
                "not one sequence with something to learn",
                value=f"{learned} of {len(parts)}",
                expected="an episode whose turns extend each other",
            )
        return parts[0]


# ------------------------------------------------------------------ reward models and values


def readout(parts: Parts, *, token: int) -> Parts:
    """A sequence whose one target lies after its end, so that a head on its place reads the state after the last token.

    Args:
        token: of the vocabulary, such as end-of-text; it is never fed, as it comes last.
    """
    weight = np.zeros(len(parts) + 1, np.float32)
    weight[-1] = 1.0
    columns = {name: np.concatenate([column, np.zeros_like(column[:1])]) for name, column in parts.columns.items()}
    return replace(
        parts,
        ids=np.append(parts.ids, np.int32(token)),
        written=np.append(parts.written, False),
        sampled=np.append(parts.sampled, False),
        logprobs=np.append(parts.logprobs, np.float32(0)),
        step=np.append(parts.step, parts.step[-1:]),
        span=np.append(parts.span, np.int32(-1)),
        weight=weight,
        columns=columns,
    )


def outcome_readout(trajectory: Trajectory, parts: Parts, *, token: int) -> Parts:
    """A read-out with the episode's unit score as column "outcome", for `learn.objectives.outcome`.

    Raises:
        SampleInvalid: an episode that has no score in 0..1.
    """
    score = trajectory.score.unit
    if trajectory.error is not None or score is None or not 0.0 <= score <= 1.0:
        raise _unscored(trajectory, score)
    read = readout(parts, token=token)
    return replace(read, columns={**read.columns, "outcome": np.full(len(read), score, np.float32)})


def _unscored(trajectory: Trajectory, value: object) -> EvolventError:
    seen = trajectory.error.kind if trajectory.error is not None else value
    return SampleInvalid(f"episode {trajectory.id!r} is not scored", value=repr(seen), expected="a score")


def with_returns(trajectory: Trajectory, parts: Parts, *, discount: float = 1.0) -> Parts:
    """A sequence of an episode with the discounted return-to-go at its written tokens as column "returns".

    Every token of an action has the return of its environment step: nothing is discounted inside an action. What a
    horizon cut off counts as 0. Where no step has a reward, the episode's raw score is paid at its last step.

    Raises:
        SampleInvalid: an episode of which some steps are not scored, or neither steps nor the whole.
    """
    rewards: list[float | None] = list(trajectory.rewards)
    if rewards and all(reward is None for reward in rewards) and trajectory.score.raw is not None:
        rewards = [*[0.0] * (len(rewards) - 1), trajectory.score.raw]
    known = [reward for reward in rewards if reward is not None]
    if trajectory.error is not None or not rewards or len(known) != len(rewards):
        raise _unscored(trajectory, f"{len(known)} of {len(rewards)} rewards")
    to_go = reward_to_go(known, gamma=discount)
    returns = np.where(parts.written, to_go[parts.step], 0.0).astype(np.float32)
    return replace(parts, columns={**parts.columns, "returns": returns})
