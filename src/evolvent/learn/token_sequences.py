"""Parts: trajectories as token sequences, each token with what learning needs to know about it.

`flatten` turns trajectories into `Parts`, one for every path of generations from a root to a leaf. Tokens of
generations are taken as they are. Only a record without generations (an expert's, an imported conversation) is
tokenised, by the policy's dialect.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, Problem, VocabularyMismatch
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Generation, Step, Task, Trajectory, canonical_json

__all__ = ["Flattened", "Parts", "check_parts", "flatten"]

Instructions = Callable[[Task], str]
Render = Callable[[Task, Step], str]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """One token sequence from a root to a leaf of a trajectory.

    Args:
        trajectory: its id.
        ids: `[T]` int32, all tokens.
        written: `[T]` bool, tokens of actions, whether a policy sampled them or a demonstrator wrote them.
        sampled: `[T]` bool, tokens that a policy sampled.
        logprobs: `[T]` float32, their log-probabilities under the behaviour policy; 0 where not sampled.
        step: `[T]` int32, the environment step that each token belongs to.
        span: `[T]` int32, the running number of the span of reasoning that it belongs to; -1 where not written.
        weight: `[T]` float32, how much each token is learned as a target. The first token has nothing before it to be
            predicted from: its weight is 0.
        group: trajectories that share it are compared with each other.
        reward, unit: the episode's raw score and its score in 0..1; None = not scored.
        columns: what else an objective reads, one entry a token `[T, ...]`, by name ("reference", "returns", ...).
        parent: `[T]` int32, the place of the token before each, -1 for the first; None: the one to its left. See
            `learn/trees.py`.
        feed: how many tokens a model must read to be scored on every weighted target, 0 where there is none; computed.
    Raises:
        BatchMismatch: if the arrays differ in length, or a weight is not finite.
    """

    trajectory: str
    ids: NDArray[np.int32]
    written: NDArray[np.bool_]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    step: NDArray[np.int32]
    span: NDArray[np.int32]
    weight: NDArray[np.float32]
    group: str | None = None
    reward: float | None = None
    unit: float | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    parent: NDArray[np.int32] | None = None
    feed: int = field(init=False)

    def __post_init__(self) -> None:
        lengths = {entry.name: len(getattr(self, entry.name)) for entry in fields(self)[1:8]}
        lengths |= {name: len(column) for name, column in self.columns.items()}
        lengths |= {} if self.parent is None else {"parent": len(self.parent)}
        if len(set(lengths.values())) != 1:
            raise BatchMismatch(f"arrays of trajectory {self.trajectory!r} differ in length", value=lengths)
        if not np.isfinite(self.weight).all():
            raise BatchMismatch(
                f"a learning weight of trajectory {self.trajectory!r} is not finite",
                value=float(self.weight[~np.isfinite(self.weight)][0]),
            )
        weighted = np.flatnonzero(self.weight)
        feed = int(weighted[-1]) if len(weighted) else 0
        object.__setattr__(self, "feed", feed if self.parent is None else len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """24 hex digits: tells sequences apart by what a model learns from them."""
        found = hashlib.sha256(canonical_json([self.trajectory, self.group, self.reward, self.unit]).encode())
        arrays = {entry.name: getattr(self, entry.name) for entry in fields(self)[1:8]} | dict(self.columns)
        for name, values in sorted((arrays | {"parent": self.parent}).items()):
            if values is not None:
                found.update(canonical_json([name, str(values.dtype), list(values.shape)]).encode())
                found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Flattened:
    """What `flatten` made, and the trajectories that it refused, each with its reason."""

    parts: list[Parts]
    refused: list[Problem]


def flatten(
    trajectories: Iterable[Trajectory],
    dialect: Dialect,
    *,
    instructions: Instructions,
    weight: Callable[[Trajectory], float] | None = None,
    context: int,
    render: Render | None = None,
    stops: bool = False,
) -> Flattened:
    """Turn trajectories into token sequences with learning weights.

    A token's weight is the trajectory's times 1 on written tokens of generations that acted, and 0 elsewhere: on what
    was read, on steps marked `info["loss"] is False`, and on empty actions. Where generations fork, every leaf gives
    one sequence, and the shared prefix has its weight in the first only.

    Args:
        dialect: tokenises records without generations; its stop tokens tell empty actions.
        instructions: what the agent was told before its first observation, for a task.
        weight: the learning weight of a whole trajectory; None: 1.
        context: longer sequences are refused and listed.
        render: the text that an agent would write for a step of a record without generations; None: its action.
        stops: an action that is a stop token alone is learned too: what was sampled is what a reward is for.
    Raises:
        BatchMismatch: arrays that do not fit each other, a weight that is not finite, an action that is no text; names
            the trajectory. VocabularyMismatch: a word that the dialect does not know; names the task.
    """
    parts: list[Parts] = []
    refused: list[Problem] = []
    for trajectory in trajectories:
        scale = 1.0 if weight is None else float(weight(trajectory))
        if not math.isfinite(scale):
            raise BatchMismatch(f"the learning weight of trajectory {trajectory.id!r} is not finite", value=scale)
        if any(step.generations for step in trajectory.steps):
            made = _from_generations(trajectory, frozenset() if stops else dialect.stop_ids, scale)
        elif trajectory.steps:
            made = [_from_text(trajectory, dialect, instructions(trajectory.task), scale, render)]
        else:
            made = []
        for sequence in made:
            if len(sequence) > context:
                refused.append(
                    Problem(
                        trajectory.id,
                        f"{len(sequence)} tokens do not fit the context of {context}",
                        "leave it out, or use a policy with a longer context",
                    )
                )
            else:
                parts.append(sequence)
    return Flattened(parts, refused)


def check_parts(parts: Sequence[Parts], *, vocabulary: int, context: int) -> None:
    """Refuse parts that a model cannot read, before the first step.

    Raises:
        VocabularyMismatch: a token id outside `0..vocabulary - 1`. BatchMismatch: more tokens to feed than the context.
            Both name the trajectory.
    """
    for sequence in parts:
        if sequence.feed > context:
            raise BatchMismatch(
                f"trajectory {sequence.trajectory!r} is longer than the model's context",
                value=sequence.feed,
                expected=f"at most {context} tokens",
            )
        if len(sequence) and not 0 <= int(sequence.ids.min()) <= int(sequence.ids.max()) < vocabulary:
            wrong = sequence.ids[(sequence.ids < 0) | (sequence.ids >= vocabulary)]
            raise VocabularyMismatch(
                f"trajectory {sequence.trajectory!r} has a token id that the model does not know",
                value=int(wrong[0]),
                expected=f"0 to {vocabulary - 1}",
                hint="flatten it with the dialect of the policy that learns",
            )


def _from_generations(trajectory: Trajectory, stop_ids: frozenset[int], scale: float) -> list[Parts]:
    """One sequence for every generation that no other extends."""
    placed = [(number, step, g) for number, step in enumerate(trajectory.steps) for g in step.generations]
    for index, (_, _, generation) in enumerate(placed):
        if generation.extends is not None and not 0 <= generation.extends < index:
            raise BatchMismatch(
                f"a generation of trajectory {trajectory.id!r} extends one that is not before it",
                value=generation.extends,
                expected=f"0 to {index - 1}",
            )
    extended = {generation.extends for _, _, generation in placed}
    learned: set[int] = set()
    sequences = []
    for leaf in range(len(placed)):
        if leaf in extended:
            continue
        chain: list[int] = []
        at: int | None = leaf
        while at is not None:
            chain.append(at)
            at = placed[at][2].extends
        chain.reverse()
        sequences.append(
            _joined(
                trajectory,
                [placed[i] for i in chain],
                [0.0 if i in learned or not _teaches(placed[i][1], placed[i][2], stop_ids) else scale for i in chain],
            )
        )
        learned.update(chain)
    return sequences


def _teaches(step: Step, generation: Generation, stop_ids: frozenset[int]) -> bool:
    """Whether a generation's tokens are learned: it acted, it is not marked as context, and it wrote something."""
    if not generation.acted or step.info.get("loss") is False:
        return False
    return any(int(index) not in stop_ids for index in generation.ids[generation.sampled])


def _joined(trajectory: Trajectory, chain: Sequence[tuple[int, Step, Generation]], scales: Sequence[float]) -> Parts:
    generations = [generation for _, _, generation in chain]
    sampled = np.concatenate([generation.sampled for generation in generations]).astype(np.bool_)
    sizes = [len(generation.ids) for generation in generations]
    spans, before = [], 0
    for generation, size in zip(generations, sizes, strict=True):
        local = np.searchsorted(np.asarray(generation.spans, np.int64), np.arange(size), side="right")
        spans.append(np.where(generation.sampled, local + before, -1))
        before += len(generation.spans) + 1
    weight = np.repeat(np.asarray(scales, np.float32), sizes) * sampled
    weight[:1] = 0.0
    return Parts(
        trajectory.id,
        np.concatenate([generation.ids for generation in generations]).astype(np.int32),
        sampled,
        sampled,
        np.concatenate([generation.logprobs for generation in generations]).astype(np.float32),
        np.repeat(np.asarray([number for number, _, _ in chain], np.int32), sizes),
        np.concatenate(spans).astype(np.int32),
        weight,
        trajectory.group,
        trajectory.score.raw,
        trajectory.score.unit,
    )


def _from_text(
    trajectory: Trajectory, dialect: Dialect, instructions: str, scale: float, render: Render | None
) -> Parts:
    """The tokens of a record that no model wrote."""
    ids: list[int] = []
    pieces: list[tuple[int, int, float]] = []  # (tokens read, tokens written, weight) of each step
    task = trajectory.task
    try:
        for number, step in enumerate(trajectory.steps):
            text = step.action if render is None else render(task, step)
            if not isinstance(text, str) or not isinstance(step.observation, str):
                raise BatchMismatch(
                    f"step {number} of trajectory {trajectory.id!r} has no text",
                    value=type(text).__name__,
                    expected="text observations and actions",
                )
            seen = (
                dialect.turn(step.observation, stopped=True) if number else dialect.open(instructions, step.observation)
            )
            action = dialect.action(text)
            ids += seen
            ids += action
            learned = bool(text.strip()) and step.info.get("loss") is not False
            pieces.append((len(seen), len(action), scale if learned else 0.0))
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"trajectory {trajectory.id!r} of task {task.id!r} in world {task.world!r}: {error.what}",
            value=error.value,
            expected=error.expected,
            hint=error.hint,
        ) from error
    sizes = [size for read, new, _ in pieces for size in (read, new)]
    written = np.repeat(np.tile([False, True], len(pieces)), sizes)
    step_of = np.repeat(np.arange(len(pieces), dtype=np.int32), [read + new for read, new, _ in pieces])
    weight = np.repeat(np.asarray([w for _, _, w in pieces], np.float32), [read + new for read, new, _ in pieces])
    weight = weight * written
    weight[:1] = 0.0
    return Parts(
        trajectory.id,
        np.asarray(ids, np.int32),
        written,
        np.zeros(len(ids), np.bool_),
        np.zeros(len(ids), np.float32),
        step_of,
        np.where(written, step_of, np.int32(-1)),
        weight,
        trajectory.group,
        trajectory.score.raw,
        trajectory.score.unit,
    )
