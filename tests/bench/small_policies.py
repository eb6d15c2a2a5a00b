"""A policy small enough for tests, and a run folder with snapshots of it."""

from __future__ import annotations

import json
from pathlib import Path

from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer

WORDS = ["go", "take", "drop", "north", "south", "lamp", "key", "door", "a", "you", "see", "nothing"]


def small_policy(*, seed: int = 0, context: int = 64) -> Policy:
    """A Llama of width 16 and two layers over twelve words."""
    tokenizer = word_tokenizer(WORDS, context=context)
    config = tiny_config(len(tokenizer), context=context)
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 16, 2, 32
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    return Policy(init_tiny(config, seed=seed), tokenizer, dialect_for(tokenizer, "words"))


def publish(run: Path, step: int, *, keep: int = 2) -> Path:
    """A snapshot whose weights are those of the seed `step`."""
    return publish_snapshot(run, step, small_policy(seed=step).save, keep=keep)


def state(run: Path, said: str) -> None:
    """What the run says of itself."""
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"state": said, "verb": "train"}))
