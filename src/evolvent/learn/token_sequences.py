"""Trajectories as token sequences, each token with the arrays that training needs.

`flatten` turns trajectories into `TokenSequence` objects, one for every path of generations from a root to a
leaf. Tokens of generations are used as they are. Only a record without generations (an expert's, an imported
conversation) is tokenized, by the policy's dialect.

Batches from token sequences: which sequences are fed together, and as which tensors.

Two layouts with the same loss. *Bucketed*: rows of like length, padded on the right; under causal attention no
real token sees the padding, so no mask is needed. *Packed*: several documents in a row behind a block-diagonal
causal mask, for devices where few long rows are fast.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, Problem, VocabularyMismatch
from evolvent.models.dialects import Chat, Dialect
from evolvent.trajectory import Array, Generation, Step, Task, Trajectory, canonical_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Batch",
    "FlattenResult",
    "Row",
    "TokenSequence",
    "block_mask",
    "bucket_by_length",
    "check_sequences",
    "collate_packed",
    "collate_padded",
    "common_columns",
    "flatten",
    "pack_rows",
]


Instructions = Callable[[Task], str]
Render = Callable[[Task, Step], str]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """One token sequence from a root to a leaf of a trajectory.

    Args:
        trajectory: its id.
        ids: `[T]` int32, all tokens.
        written: `[T]` bool, tokens of actions, sampled by a policy or written by a demonstrator.
        sampled: `[T]` bool, tokens that a policy sampled.
        logprobs: `[T]` float32, their log-probabilities under the behavior policy; 0 where not sampled.
        step: `[T]` int32, the environment step that each token belongs to.
        span: `[T]` int32, the running number of the span of reasoning that it belongs to; -1 where not written.
        weight: `[T]` float32, the learning weight of each token as a target. The first token has no token before it to
            be predicted from: its weight is 0.
        group: trajectories that share it are compared with each other.
        reward, unit: the episode's raw score and its score in 0..1; None = not scored.
        columns: further entries that an objective reads, one per token `[T, ...]`, by name ("reference", "returns",
            ...).
        parent: `[T]` int32, the position of the token before each, -1 for the first; None: the one to its left. See
            `learn/trees.py`.
        feed: number of tokens that a model must read to be scored on every weighted target, 0 where there is none;
            computed.
    Raises:
        BatchMismatch: the arrays differ in length, or a weight is not finite.
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
    columns: Mapping[str, Array] = field(default_factory=dict)
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
        """Returns 24 hex digits that distinguish sequences by the content that a model learns from them."""
        content = hashlib.sha256(canonical_json([self.trajectory, self.group, self.reward, self.unit]).encode())
        arrays = {entry.name: getattr(self, entry.name) for entry in fields(self)[1:8]} | dict(self.columns)
        for name, values in sorted((arrays | {"parent": self.parent}).items()):
            if values is not None:
                content.update(canonical_json([name, str(values.dtype), list(values.shape)]).encode())
                content.update(np.ascontiguousarray(values).tobytes())
        return content.hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class FlattenResult:
    """The result of `flatten`: sequences, and the trajectories that it refused, each with its reason."""

    sequences: list[TokenSequence]
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
) -> FlattenResult:
    """Flattens trajectories into token sequences with learning weights.

    A token's weight is the trajectory's weight on written tokens of generations that acted, and 0 elsewhere: on
    prompt tokens, on steps marked `info["loss"] is False`, and on empty actions. Where generations fork, every leaf
    gives one sequence, and the shared prefix has its weight in the first only. A record without generations gives one
    sequence, or one for every step where the chat template renders the past anew.

    Args:
        dialect: tokenizes records without generations; its stop tokens identify empty actions.
        instructions: returns the text before the first observation, for a task.
        weight: returns the learning weight of a whole trajectory; None: 1.
        context: longer sequences are refused and listed.
        render: returns the text that an agent would write for a step of a record without generations; None: its
            action.
        stops: an action that is only a stop token is learned too, because a reward is for all that was sampled.
    Raises:
        BatchMismatch: arrays do not fit each other, a weight is not finite, or an action is not text; the message
            names the trajectory.
        VocabularyMismatch: the dialect does not know a word; the message names the task.
    """
    sequences: list[TokenSequence] = []
    refused: list[Problem] = []
    for trajectory in trajectories:
        scale = 1.0 if weight is None else float(weight(trajectory))
        if not math.isfinite(scale):
            raise BatchMismatch(f"the learning weight of trajectory {trajectory.id!r} is not finite", value=scale)
        if any(step.generations for step in trajectory.steps):
            new_sequences = _flatten_generations(trajectory, frozenset() if stops else dialect.stop_ids, scale)
        elif trajectory.steps:
            new_sequences = _tokenize_record(trajectory, dialect, instructions(trajectory.task), scale, render)
        else:
            new_sequences = []
        for sequence in new_sequences:
            if len(sequence) > context:
                refused.append(
                    Problem(
                        trajectory.id,
                        f"{len(sequence)} tokens do not fit the context of {context}",
                        "leave it out, or use a policy with a longer context",
                    )
                )
            else:
                sequences.append(sequence)
    return FlattenResult(sequences, refused)


def check_sequences(sequences: Sequence[TokenSequence], *, vocabulary: int, context: int) -> None:
    """Checks that a model can read sequences, before the first step.

    Raises:
        VocabularyMismatch: a token id is outside `0..vocabulary - 1`.
        BatchMismatch: there are more tokens to feed than the context. Both name the trajectory.
    """
    for sequence in sequences:
        if sequence.feed > context:
            raise BatchMismatch(
                f"trajectory {sequence.trajectory!r} is longer than the model's context",
                value=sequence.feed,
                expected=f"at most {context} tokens",
            )
        if len(sequence) and not 0 <= int(sequence.ids.min()) <= int(sequence.ids.max()) < vocabulary:
            invalid_ids = sequence.ids[(sequence.ids < 0) | (sequence.ids >= vocabulary)]
            raise VocabularyMismatch(
                f"trajectory {sequence.trajectory!r} has a token id out of range",
                value=int(invalid_ids[0]),
                expected=f"0 to {vocabulary - 1}",
                hint="flatten it with the dialect of the trained policy",
            )


def _flatten_generations(trajectory: Trajectory, stop_ids: frozenset[int], scale: float) -> list[TokenSequence]:
    """Builds one sequence for every generation that no other extends."""
    generations = [
        (number, step, step_generation)
        for number, step in enumerate(trajectory.steps)
        for step_generation in step.generations
    ]
    for index, (_, _, generation) in enumerate(generations):
        if generation.extends is not None and not 0 <= generation.extends < index:
            raise BatchMismatch(
                f"a generation of trajectory {trajectory.id!r} does not extend an earlier generation",
                value=generation.extends,
                expected=f"0 to {index - 1}",
            )
    extended = {generation.extends for _, _, generation in generations}
    learned: set[int] = set()
    sequences = []
    for leaf in range(len(generations)):
        if leaf in extended:
            continue
        path: list[int] = []
        position: int | None = leaf
        while position is not None:
            path.append(position)
            position = generations[position][2].extends
        path.reverse()
        sequences.append(
            _join_path(
                trajectory,
                [generations[node] for node in path],
                [
                    0.0
                    if node in learned or not _is_learned(generations[node][1], generations[node][2], stop_ids)
                    else scale
                    for node in path
                ],
            )
        )
        learned.update(path)
    return sequences


def _is_learned(step: Step, generation: Generation, stop_ids: frozenset[int]) -> bool:
    """Returns whether a generation's tokens are learned: it acted, it is not marked as context, and it wrote
    something.
    """
    if not generation.acted or step.info.get("loss") is False:
        return False
    return any(int(index) not in stop_ids for index in generation.ids[generation.sampled])


def _join_path(
    trajectory: Trajectory, path: Sequence[tuple[int, Step, Generation]], scales: Sequence[float]
) -> TokenSequence:
    generations = [generation for _, _, generation in path]
    sampled = np.concatenate([generation.sampled for generation in generations]).astype(np.bool_)
    sizes = [len(generation.ids) for generation in generations]
    spans, first_span = [], 0
    for generation, size in zip(generations, sizes, strict=True):
        local = np.searchsorted(np.asarray(generation.spans, np.int64), np.arange(size), side="right")
        spans.append(np.where(generation.sampled, local + first_span, -1))
        first_span += len(generation.spans) + 1
    weight = np.repeat(np.asarray(scales, np.float32), sizes) * sampled
    weight[:1] = 0.0
    return TokenSequence(
        trajectory.id,
        np.concatenate([generation.ids for generation in generations]).astype(np.int32),
        sampled,
        sampled,
        np.concatenate([generation.logprobs for generation in generations]).astype(np.float32),
        np.repeat(np.asarray([number for number, _, _ in path], np.int32), sizes),
        np.concatenate(spans).astype(np.int32),
        weight,
        trajectory.group,
        trajectory.score.raw,
        trajectory.score.unit,
    )


class _RecordedStep(NamedTuple):
    """One step of a record: its index, the tokens that were read and written, and the weight of the written ones."""

    number: int
    prompt_ids: list[int]
    action_ids: list[int]
    weight: float


def _tokenize_record(
    trajectory: Trajectory, dialect: Dialect, instructions: str, scale: float, render: Render | None
) -> list[TokenSequence]:
    """Tokenizes a record that no model generated: one sequence, or one for every step where the chat template renders
    the past anew.
    """
    renders_past = isinstance(dialect, Chat) and dialect.renders_past
    pieces: list[_RecordedStep] = []
    past: list[tuple[str, list[int]]] = []
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
            if isinstance(dialect, Chat) and renders_past:
                prompt_ids = dialect.rendered_prompt(instructions, past, step.observation)
            elif number:
                prompt_ids = dialect.turn(step.observation, stopped=True)
            else:
                prompt_ids = dialect.open(instructions, step.observation)
            action_ids = dialect.action(text)
            learned = bool(text.strip()) and step.info.get("loss") is not False
            pieces.append(_RecordedStep(number, prompt_ids, action_ids, scale if learned else 0.0))
            past.append((step.observation, action_ids))
    except VocabularyMismatch as error:
        raise VocabularyMismatch(
            f"trajectory {trajectory.id!r} of task {task.id!r} in world {task.world!r}: {error.what}",
            value=error.value,
            expected=error.expected,
            hint=error.hint,
        ) from error
    return [_join_steps(trajectory, group) for group in ([[piece] for piece in pieces] if renders_past else [pieces])]


def _join_steps(trajectory: Trajectory, pieces: Sequence[_RecordedStep]) -> TokenSequence:
    """Builds the sequence of consecutive steps."""
    ids = [token for piece in pieces for token in (*piece.prompt_ids, *piece.action_ids)]
    sizes = [size for piece in pieces for size in (len(piece.prompt_ids), len(piece.action_ids))]
    written = np.repeat(np.tile([False, True], len(pieces)), sizes)
    lengths = [len(piece.prompt_ids) + len(piece.action_ids) for piece in pieces]
    step_of = np.repeat(np.asarray([piece.number for piece in pieces], np.int32), lengths)
    weight = np.repeat(np.asarray([piece.weight for piece in pieces], np.float32), lengths)
    weight = weight * written
    weight[:1] = 0.0
    return TokenSequence(
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


SequenceSource = Sequence[TokenSequence] | Mapping[int, TokenSequence]
Row = list[int]  # indices of the parts in a row: one where padded, several where packed


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The tensors of one forward and backward pass.

    Args:
        ids: `[B, T]` int64.
        index: `[N]` int64, flat positions in `B * T` whose output predicts a target.
        targets: `[N]` int64, the tokens predicted there.
        weights: `[N]` float32, their learning weights; none is 0.
        samples: indices of the sequences in it.
        real: number of the `B * T` tokens that are not padding.
        positions: `[B, T]` int64, positions within each document; None: 0 to T - 1 in every row.
        docs: `[B, T]` int64, the document of each token, -1 for padding; None: one document in every row.
        sequence: `[N]` int64, index into `samples` of each target's sequence.
        columns: further entries that objectives read, one per target `[N, ...]`, under the names of
            `TokenSequence.columns`.
        mask: `[B, 1, T, T]` bool, the tokens that each may see, where rows are trees; None: those before it.
    """

    ids: Tensor
    index: Tensor
    targets: Tensor
    weights: Tensor
    samples: tuple[int, ...]
    real: int
    positions: Tensor | None = None
    docs: Tensor | None = None
    sequence: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None

    @property
    def count(self) -> int:
        """Returns the number of targets with a learning weight."""
        return self.targets.shape[0]

    @property
    def padded(self) -> int:
        """Returns the number of padding tokens."""
        return self.ids.numel() - self.real

    def to(self, device: torch.device) -> Batch:
        """Returns the same batch on a device."""
        if self.ids.device == device:
            return self
        names = ("ids", "index", "targets", "weights", "positions", "docs", "sequence", "mask")
        moved = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        columns = {name: value.to(device, non_blocking=True) for name, value in self.columns.items()}
        moved = {name: value.to(device, non_blocking=True) for name, value in moved.items()}
        return replace(self, **moved, columns=columns)


def bucket_by_length(lengths: Sequence[int], budget: int, *, rng: Generator, width: int = 4) -> list[list[int]]:
    """Groups indices into batches of like length, so that rows times the longest is at most `budget` tokens.

    Lengths are rounded up to multiples of `width`; sequences of one rounded length are shuffled among each other, and
    the batches are shuffled. Every index comes once. A sequence longer than the budget is a batch of its own.
    """
    sizes = np.asarray(lengths, np.int64)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-(-sizes[order] // width), kind="stable")]
    batches: list[list[int]] = []
    longest = 0
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        longest = max(longest, size)
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = size
    return [batches[batch_index] for batch_index in rng.permutation(len(batches)).tolist()]


def pack_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs sequences into rows of at most `capacity` tokens: best-fit decreasing, ties by index. Every index comes
    once.

    Raises:
        BatchMismatch: a length exceeds the capacity.
    """
    rows: list[list[int]] = []
    free_space: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        if size > capacity:
            raise BatchMismatch("the sequence is longer than a packed row", value=size, expected=f"at most {capacity}")
        slot = bisect_left(free_space, (size, -1))
        if slot < len(free_space):
            free, row = free_space.pop(slot)
        else:
            free, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        insort(free_space, (free - size, row))
    return rows


def common_columns(sequences: SequenceSource, selected: Sequence[int]) -> Mapping[str, NDArray[np.generic]]:
    """Returns the columns that all selected sequences have, those of the first; of an empty batch, of any sequence.

    Raises:
        BatchMismatch: a sequence has other columns, so that entries would not match the targets.
    """
    first_key = next(iter(sequences)) if isinstance(sequences, Mapping) else 0
    columns = sequences[selected[0] if len(selected) else first_key].columns
    for index in selected:
        if sequences[index].columns.keys() != columns.keys():
            raise BatchMismatch(
                f"columns of sequence {sequences[index].trajectory!r} differ from the other sequences",
                value=sorted(sequences[index].columns),
                expected=sorted(columns),
            )
    return columns


def _build_batch(sequences: SequenceSource, rows: Sequence[Row], *, packed: bool, shape: tuple[int, int]) -> Batch:
    feeds = [[sequences[index].feed for index in row] for row in rows]
    size = (max(len(rows), shape[0]), max([*map(sum, feeds), shape[1]]))
    ids, targets, weights = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.float32)
    positions, docs = np.zeros(size, np.int64), np.full(size, -1, np.int64)
    selected = [index for row in rows for index in row]
    columns = {name: [column[:0]] for name, column in common_columns(sequences, selected).items()}
    document = 0
    for number, row in enumerate(rows):
        start = 0
        for index, feed in zip(row, feeds[number], strict=True):
            sequence, row_slice = sequences[index], slice(start, start + feed)
            ids[number, row_slice] = sequence.ids[:feed]
            targets[number, row_slice] = sequence.ids[1 : feed + 1]
            weights[number, row_slice] = sequence.weight[1 : feed + 1]
            positions[number, row_slice] = np.arange(feed)
            docs[number, row_slice] = document
            for name, pieces in columns.items():
                pieces.append(sequence.columns[name][1 : feed + 1][sequence.weight[1 : feed + 1] != 0])
            start, document = start + feed, document + 1
    target_positions = np.flatnonzero(weights)
    import torch

    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(target_positions),
        torch.from_numpy(targets.ravel()[target_positions]),
        torch.from_numpy(weights.ravel()[target_positions]),
        tuple(selected),
        sum(map(sum, feeds)),
        torch.from_numpy(positions) if packed else None,
        torch.from_numpy(docs) if packed else None,
        torch.from_numpy(docs.ravel()[target_positions]),
        {name: torch.from_numpy(np.concatenate(pieces)) for name, pieces in columns.items()},
    )


def collate_padded(sequences: SequenceSource, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """Builds a batch with one sequence in every row, padded on the right to the longest.

    Only the necessary tokens are fed: a sequence ends before its last weighted target.

    Args:
        rows: `[[i], [j], ...]`, indices into `sequences`; none: a batch without targets.
        shape: minimum numbers of rows and tokens; padding fills the difference.
    """
    return _build_batch(sequences, rows, packed=False, shape=shape)


def collate_packed(sequences: SequenceSource, rows: Sequence[Row], *, shape: tuple[int, int] = (0, 1)) -> Batch:
    """Builds a batch with several sequences in every row; positions restart with each, and `docs` separates them."""
    return _build_batch(sequences, rows, packed=True, shape=shape)


def block_mask(docs: Tensor) -> Tensor:
    """Returns the block-diagonal causal attention mask `[B, 1, T, T]` bool from `docs [B, T]`: True where attention
    is allowed.

    Padding (-1) attends to padding before it, so that no row of the softmax is empty.
    """
    import torch

    same = docs[:, None, :, None] == docs[:, None, None, :]
    length = docs.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()
