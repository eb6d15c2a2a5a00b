"""A hidden chain: a word a step, one outcome at the end, and a policy small enough for its critic to be exact.

Every step has one right word of `WORDS`; the outcome is 1 where every step was right. The policy is a softmax over a
table row for the step plus a row that all steps share, so that learning one step moves the others, as weights of a
model do. An episode ends here at its first wrong word: under exact values nothing that follows has an advantage.
Starts, advantages and the loss are those of R3; many seeds learn side by side in one batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.curate.starts import Cuts, cut_points, mix_starts, stage_starts
from evolvent.models.dialects import dialect_for
from evolvent.models.tiny import word_tokenizer
from evolvent.rl.policy_losses import reinforce
from evolvent.rl.presets import R3
from evolvent.rl.rollout_batch import TERMINATED, RolloutBatch
from evolvent.trajectory import Score, Start, Step, Task, Trajectory

Curriculum = Literal["outcome", "staged", "mixed"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
WORDS = 12
EPISODES = 32  # of an iteration
RIGHT = 0.5  # probability of the right word at every step before training
ESTIMATOR = replace(R3.estimator, kl_coef=0.0, whiten=False)  # gamma 1, lambda .95


def train_on_chain(
    curriculum: Curriculum, length: int, *, iterations: int, lr: float, seeds: int
) -> tuple[Floats, Floats]:
    """Trains policies by sampled policy gradients.

    Returns:
        `[iterations + 1, seeds]` each, before every iteration and after the last: success from the beginning, and
        the probability of the right first word.
    """
    right = np.random.default_rng(7).permutation(WORDS)[:length]
    own = torch.zeros(seeds, length, WORDS, dtype=torch.float64)
    own[:, range(length), right] = float(np.log((WORDS - 1) * RIGHT / (1 - RIGHT)))
    parameters = [own.requires_grad_(), torch.zeros(seeds, 1, WORDS, dtype=torch.float64, requires_grad=True)]
    rng = np.random.default_rng(length)
    task = Task("chain", str(length), {})
    cuts = _cut_demonstration(task, right)
    success, first = [], []
    for iteration in range(1, iterations + 2):
        logprobs = (parameters[0] + parameters[1]).log_softmax(-1)
        chances = logprobs.detach().exp().numpy()
        chance_right = chances[:, range(length), right]
        values = np.cumprod(chance_right[:, ::-1], axis=1)[:, ::-1]  # of a step that was reached without a mistake
        success.append(values[:, 0])
        first.append(chance_right[:, 0])
        if iteration > iterations:
            break
        starts = [Start(task, number) for number in range(EPISODES)]
        match curriculum:
            case "outcome":
                placed = mix_starts(starts, {}, seed=iteration)
            case "mixed":
                placed = mix_starts(starts, cuts, seed=iteration)
            case "staged":
                placed = stage_starts(starts, cuts, iteration=iteration, iterations=iterations)
        first_steps = np.array([0 if start.branch is None else start.branch.step for start in placed])
        batch, seed, step, word = _play(np.tile(first_steps, (seeds, 1)), chances, right, rng)
        advantages = ESTIMATOR(batch, values=values[seed, step]).advantage
        loss = reinforce(torch.from_numpy(advantages), logprobs[seed, step, word]).sum() / EPISODES
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= lr * gradient
    return np.array(success), np.array(first)


def _cut_demonstration(task: Task, right: Integers) -> Cuts:
    steps = tuple(Step("next", str(word), 0.0) for word in right)
    demonstration = Trajectory("shown", task, steps, "", "world", Score(1.0, 1.0, True))
    dialect = dialect_for(word_tokenizer([str(word) for word in range(WORDS)], context=8), "words")
    return {task.id: cut_points(demonstration, dialect, len(right) - 1, placement="steps")}


def _play(
    first_steps: Integers, chances: Floats, right: Integers, rng: np.random.Generator
) -> tuple[RolloutBatch, Integers, Integers, Integers]:
    """Plays an episode from every start `[seeds, episodes]`; returns the batch, and `[P]` seed, step and word."""
    length = chances.shape[1]
    draws = rng.random((*first_steps.shape, length, 1))
    words = (draws > np.cumsum(chances, axis=2)[:, None]).sum(-1).clip(max=WORDS - 1)
    index = np.arange(length)
    is_wrong = (words != right) & (index >= first_steps[..., None])
    ends = np.where(is_wrong.any(-1), is_wrong.argmax(-1), length - 1)
    is_played = (index >= first_steps[..., None]) & (index <= ends[..., None])
    seed, number, step = np.nonzero(is_played)
    word = words[seed, number, step]
    episode = seed * first_steps.shape[1] + number
    is_last = step == ends[seed, number]
    count = len(step)
    batch = RolloutBatch(
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.arange(count),
        np.arange(count),
        episode,
        np.zeros(first_steps.size, np.int64),
        (is_last & (step == length - 1) & (word == right[step])).astype(np.float64),
        np.where(is_last, TERMINATED, 0).astype(np.int8),
        np.full(count, np.nan),
        episode,
        np.arange(count),
    )
    return batch, seed, step, word
