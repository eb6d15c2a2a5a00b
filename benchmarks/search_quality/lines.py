"""Judges of countdown that read one line: the numbers that are left, as "4 9 10 make".

Whether a target can still be made is known exactly (`worlds.numbers.is_reachable`). A value model learns it: the
probability is the logistic of its logit at the word of the target, where the line ends. So one line teaches the labels
of all targets from 1 to 100 at once. A known judge reads the exact label with noise of a chosen strength, so that its
AUC is known before anything is searched. Both are asked as a search asks any judge, by an engine, and cost the same
tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite, log, pi
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from evolvent.engine.asks import Job, LogitsAsk
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.learn.settings import TrainConfig
from evolvent.models.policy import Policy
from evolvent.reward.calibration import auc_within
from evolvent.scale.judging import JUDGE
from evolvent.search.records import Spent
from evolvent.search.scorers import Ending
from evolvent.trajectory import Task, Trajectory, sample_rng
from evolvent.worlds.numbers import is_reachable, moves

__all__ = [
    "KnownJudge",
    "LineScorer",
    "NumberSet",
    "Position",
    "ask_judge",
    "compute_auc",
    "draw_number_sets",
    "draw_positions",
    "list_positions",
    "measure_priors",
    "number_waves",
    "predict",
    "read_position",
    "train_judge",
]

ENDS = 1  # numbers left where an episode ends: what those are worth the world pays, and no judge says
_FIRST = 0.999  # prior of a task's first position: every task can be solved
_TARGETS = range(1, 101)  # of tasks
_PERFECT = 10.0  # standard deviations between the signals of a judge with AUC 1


class Position(NamedTuple):
    """A state of countdown: the target, and the sorted numbers that are left."""

    target: int
    left: tuple[int, ...]

    @property
    def line(self) -> str:
        """Returns the line that a judge reads."""
        return f"{' '.join(map(str, self.left))} make"

    @property
    def is_solvable(self) -> bool:
        """Returns whether the target can still be made: exact."""
        return is_reachable(self.left, self.target)


class NumberSet(NamedTuple):
    """Numbers that are left, sorted, and for each target from 1 to 100 whether it can be made: `[100]`."""

    left: tuple[int, ...]
    labels: NDArray[np.bool_]


def read_position(words: Sequence[str]) -> Position | None:
    """Reads the position from the words of a conversation; None where the last move was not a legal one.

    >>> read_position("<bos> <obs> make 9 from 2 3 4 <act> 4 + 3 <eos> <obs> left 2 7 <act>".split())
    Position(target=9, left=(2, 7))
    >>> read_position("<bos> <obs> make 9 from 2 3 4 <act> 5 + 3 <eos> <obs> 5 is not left <act>".split())
    """
    observations = [turn.split("<act>")[0].split() for turn in " ".join(words).split("<obs>")[1:]]
    (_, target, _, *numbers), last = observations[0], observations[-1]
    if len(observations) > 1:
        if last[:1] != ["left"] or not all(map(str.isdigit, last[1:])):
            return None
        numbers = last[1:]
    return Position(int(target), tuple(sorted(map(int, numbers))))


def list_positions(trajectories: Iterable[Trajectory]) -> dict[str, list[Position]]:
    """Lists the distinct positions between the first and the last number of episodes, by task."""
    positions: dict[str, dict[Position, None]] = defaultdict(dict)
    for trajectory in trajectories:
        target = int(trajectory.task.spec["target"])
        for step in trajectory.steps[1:]:
            head, *numbers = str(step.observation).split()
            if head == "left" and all(map(str.isdigit, numbers)) and len(numbers) > ENDS:
                positions[trajectory.task.id][Position(target, tuple(sorted(map(int, numbers))))] = None
    return {task: list(listed) for task, listed in positions.items()}


# ---------------------------------------------------------------- what a judge learns from


def draw_positions(tasks: Sequence[Task], *, walks: int, seed: int) -> list[Position]:
    """Draws positions on walks of random legal moves from tasks, their first ones included."""
    positions = []
    for task in tasks:
        first = Position(int(task.spec["target"]), tuple(sorted(task.spec["numbers"])))
        positions.append(first)
        rng = sample_rng("positions", seed, task.id)
        for _ in range(walks):
            left = first.left
            while len(left) > ENDS + 1:
                legal = moves(left)
                left = legal[int(rng.integers(len(legal)))].left
                positions.append(Position(first.target, left))
    return positions


def draw_number_sets(tasks: Sequence[Task], *, walks: int, seed: int) -> list[NumberSet]:
    """Labels the distinct sets of two or more numbers that random walks from tasks come to, without the first ones.

    Args:
        walks: random walks of a task.
        seed: of the walks.
    """
    first = {tuple(sorted(task.spec["numbers"])) for task in tasks}
    drawn = dict.fromkeys(position.left for position in draw_positions(tasks, walks=walks, seed=seed))
    return [
        NumberSet(left, np.array([is_reachable(left, target) for target in _TARGETS]))
        for left in drawn
        if left not in first
    ]


def measure_priors(positions: Iterable[Position]) -> dict[int, float]:
    """Measures the share of solvable positions by how many numbers are left, within .001 and .999."""
    by_count: dict[int, list[bool]] = defaultdict(list)
    for position in positions:
        by_count[len(position.left)].append(position.is_solvable)
    return {count: float(np.clip(np.mean(labels), 0.001, 0.999)) for count, labels in sorted(by_count.items())}


def number_waves(
    policy: Policy,
    *,
    periods: Sequence[float] = (2, 3, 5, 10, 25, 50, 100, 200, 400),
    log_periods: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8),
) -> None:
    """Lets the embeddings of numbers begin as waves over their size and over its logarithm, in place.

    Two coordinates hold the cosine and the sine of a number for each period, the others stay as they were drawn. Where
    every number is a word of its own, nothing else says that 7 lies between 6 and 8; sums and differences are turns of
    the waves over size, products and quotients of those over its logarithm (trained models come to the first: Nanda et
    al., arXiv 2301.05217). What follows from it is learned.
    """
    embeddings = policy.model.get_input_embeddings().weight
    scale = float(embeddings.detach().std()) * 2**0.5
    with torch.no_grad():
        for word, index in policy.tokenizer.get_vocab().items():
            if word.isdigit():
                turns = [int(word) / period for period in periods]
                turns += [log(max(int(word), 0.5)) / period for period in log_periods]
                angles = 2 * pi * torch.tensor(turns)
                embeddings[index, : 2 * len(turns)] = scale * torch.cat([angles.cos(), angles.sin()])


def _encode_line(vocabulary: Mapping[str, int], position: Position) -> tuple[int, ...]:
    """Encodes the line of a position word by word, without what opens an episode."""
    return tuple(vocabulary[word] for word in position.line.split())


def train_judge(
    untrained: Policy, number_sets: Sequence[NumberSet], config: TrainConfig, *, batch_lines: int, seed: int
) -> Policy:
    """Trains a model, in place, to say at the words of all targets whether they can be made from the numbers of a line.

    The loss is the mean binary cross-entropy of all targets of all lines of a batch, which have equally many numbers.

    Args:
        config: rates, decay and clipping of AdamW; `tokens` is the number of lines to learn.
        batch_lines: lines of an update.
        seed: of the order of lines.
    """
    model, vocabulary = untrained.model.float().train(), untrained.tokenizer.get_vocab()
    words = torch.tensor([vocabulary[str(target)] for target in _TARGETS])
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    encoded = [torch.tensor(_encode_line(vocabulary, Position(0, left))) for left, _ in number_sets]
    lines = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    labels = torch.from_numpy(np.stack([known for _, known in number_sets])).float()
    counts = np.array([len(left) for left, _ in number_sets])
    num_updates = max(1, (config.tokens or len(number_sets)) // batch_lines)
    batches = islice(_draw_batches(counts, batch_lines, np.random.default_rng(seed)), num_updates)
    for update, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(update, update / num_updates)
        ids = lines[batch, : int(counts[batch[0]]) + 1]
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
        loss = binary_cross_entropy_with_logits(logits[:, words], labels[batch])
        optimizer.zero_grad()
        loss.backward()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)
        optimizer.step()
    model.eval()
    return untrained.next_version()


def _draw_batches(counts: NDArray[np.int64], size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Draws batches of lines with equally many numbers, each line once an epoch, without end."""
    while True:
        batches = []
        for count in np.unique(counts):
            order = rng.permutation(np.flatnonzero(counts == count))
            batches += [order[begin : begin + size] for begin in range(0, len(order), size)]
        yield from (batches[index] for index in rng.permutation(len(batches)))


def ask_judge(vocabulary: Mapping[str, int], positions: Sequence[Position]) -> Job[list[float]]:
    """Asks an engine of a value model for the chance that each position's target, from 1 to 100, can be made.

    Args:
        vocabulary: token ids of the value model's words.
    """
    if not positions:
        return []
    outputs = yield [LogitsAsk(None, _encode_line(vocabulary, position)) for position in positions]
    logits = [values[vocabulary[str(position.target)]] for position, values in zip(positions, outputs, strict=True)]
    return [float(1.0 / (1.0 + np.exp(-np.float64(logit)))) for logit in logits]


def predict(judge: Policy, positions: Sequence[Position]) -> list[float]:
    """Computes the chance that a value model sees at each position."""
    job = ask_judge(judge.tokenizer.get_vocab(), positions)
    (result,) = run_jobs([job], LocalEngine(judge), slots=1)
    chances: list[float] = result.value
    return chances


# ---------------------------------------------------------------- judges of a search


@dataclass(frozen=True)
class KnownJudge:
    """A calibrated judge that reads a normal signal of the exact label.

    A solvable position has a higher signal than a lost one of as many numbers with chance `auc`. The noise of a
    position is always the same.

    Args:
        auc: chance, .5 to 1.
        priors: by numbers left, the share of solvable positions.
        seed: of the noise.
    """

    auc: float
    priors: Mapping[int, float]
    seed: int

    def __call__(self, position: Position) -> float:
        separation = 2**0.5 * NormalDist().inv_cdf(self.auc) if self.auc < 1 else _PERFECT
        noise = float(sample_rng("known judge", self.seed, position.target, *position.left).normal())
        signal = separation * position.is_solvable + noise
        prior = self.priors.get(len(position.left), _FIRST)
        log_odds = np.log(prior / (1 - prior)) + separation * signal - separation**2 / 2
        return float(1.0 / (1.0 + np.exp(-log_odds)))


@dataclass(frozen=True)
class LineScorer:
    """Scores a conversation by its position alone, and an illegal move by 0.

    The value model is asked and paid for in any case; a known judge then says something else.

    Args:
        judge: the value model, which shares the words of the policy that writes.
        known: says what a position is worth instead of the value model.
        model: name of the value model's engine; None: the only one.
    """

    judge: Policy
    known: KnownJudge | None = None
    model: str | None = JUDGE
    _words: list[str] = field(default_factory=list, repr=False)
    _vocabulary: dict[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._vocabulary.update(self.judge.tokenizer.get_vocab())
        self._words.extend(sorted(self._vocabulary, key=self._vocabulary.__getitem__))

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Scores the end of each conversation."""
        if any(query.ends != (len(query.tokens),) for query in queries):
            raise ConfigError("a line is read at the end of a conversation alone", hint="search turn by turn")
        positions = [read_position([self._words[index] for index in query.path()]) for query in queries]
        legal = [position for position in positions if position is not None]
        answers = iter((yield from ask_judge(self._vocabulary, legal)))
        scores = []
        for position in positions:
            if position is None:
                scores.append((0.0,))
                continue
            answer = next(answers)
            scores.append((answer if self.known is None else self.known(position),))
        return scores

    def most(self, ends: int, length: int) -> Spent:
        """Returns no cost beside the tokens of a path, which are more than those of its line."""
        return Spent()


def compute_auc(
    say: Callable[[Sequence[Position]], Sequence[float]], positions: Mapping[str, Sequence[Position]]
) -> dict[str, float | None]:
    """Computes a judge's AUC over pairs of positions of one task, and of one task and as many numbers.

    Returns:
        "within_tasks", "within_levels", and by how many numbers are left; None where no pair has two labels.
    """
    rows = [(task, position) for task, listed in positions.items() for position in listed]
    scores = list(say([position for _, position in rows]))
    truths = [float(position.is_solvable) for _, position in rows]
    figures = {"within_tasks": auc_within(scores, truths, [task for task, _ in rows])}
    figures["within_levels"] = auc_within(scores, truths, [(task, len(position.left)) for task, position in rows])
    for count in sorted({len(position.left) for _, position in rows}):
        chosen = [index for index, (_, position) in enumerate(rows) if len(position.left) == count]
        figures[str(count)] = auc_within(
            [scores[index] for index in chosen],
            [truths[index] for index in chosen],
            [rows[index][0] for index in chosen],
        )
    return {name: round(share, 4) if isfinite(share) else None for name, share in figures.items()}
