"""A training small enough for tests: a two-layer model with dropout, 40 episodes, and one interrupted run of it.

Run as a program it trains until it ends, or kills itself in the middle of it: `small_training.py FOLDER UPDATE`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, TrainConfig, UpdateMetrics
from evolvent.learn.objectives import Objective, weighted_nll
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.trajectory import Step, Task, Trajectory, sample_rng

WORDS = ["go", "take", "drop", "north", "south", "lamp", "key", "door", "a", "you", "see", "nothing"]


def small_policy(*, seed: int = 0, layers: int = 2, dropout: float = 0.0, attention: str = "sdpa") -> Policy:
    """A Llama of width 16 over twelve words."""
    tokenizer = word_tokenizer(WORDS, context=64)
    config = tiny_config(len(tokenizer), context=64)
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 16, layers, 32
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim, config.attention_dropout, config._attn_implementation = 8, dropout, attention
    return Policy(init_tiny(config, seed=seed), tokenizer, dialect_for(tokenizer, "words"))


def episode(number: int, *, steps: int | None = None) -> Trajectory:
    """An episode without generations: what is seen is to be repeated in part."""
    rng = sample_rng("episode", number)
    made = []
    for _ in range(steps or int(rng.integers(1, 5))):
        seen = [WORDS[i] for i in rng.integers(0, len(WORDS), int(rng.integers(2, 6)))]
        made.append(Step(" ".join(seen), " ".join(seen[:2])))
    return Trajectory(f"t{number}", Task("small", "1", {"number": number}), tuple(made))


def small_parts(policy: Policy, count: int = 40) -> list[TokenSequence]:
    flat = flatten([episode(i) for i in range(count)], policy.dialect, instructions=lambda task: "", context=64)
    return flat.sequences


def small_config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"epochs": 3, "batch_tokens": 200, "warmup_steps": 4, **changes})


def train(
    folder: Path | None,
    *,
    objective: Objective = weighted_nll,
    on_update: Callable[[UpdateMetrics], None] | None = None,
    every: int = 3,
    should_stop: Callable[[], bool] | None = None,
    **changes: Any,
) -> tuple[Any, list[torch.Tensor]]:
    """Train from the beginning, or from the folder's newest checkpoint; returns the report and the weights."""
    policy = small_policy(dropout=0.1)
    learner = Learner(policy, objective, small_config(**changes), seed=5)
    checkpoint = None if folder is None else Checkpointer(folder, every=every)
    report = learner.fit(small_parts(policy), checkpoint=checkpoint, on_update=on_update, should_stop=should_stop)
    return report, list(policy.model.parameters())


def same(one: tuple[Any, list[torch.Tensor]], other: tuple[Any, list[torch.Tensor]]) -> bool:
    """Equal bit for bit: counts, every loss, every weight."""
    return bool(one[0] == other[0]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def kill_at(update: int) -> Callable[[UpdateMetrics], None]:
    """A callback that kills its own process, without any clean-up, after an update."""

    def callback(metrics: UpdateMetrics) -> None:
        if metrics.update == update:
            os.kill(os.getpid(), signal.SIGKILL)

    return callback


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), on_update=kill_at(int(sys.argv[2])))
