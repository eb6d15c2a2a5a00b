"""The workloads of `benchmarks.train`: models, batches and lengths around a middle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from evolvent.learn.learner import TrainConfig
from evolvent.learn.loader import DataOrder
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_padded
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer
from evolvent.trajectory import sample_rng

LOW_LR = 1e-4  # synthetic data teach nothing; weights should stay where arithmetic is ordinary


@dataclass(frozen=True)
class Size:
    """A decoder: layers, width, inner width, heads, heads of keys and values, words."""

    layers: int
    width: int
    inner: int
    heads: int
    shared: int
    words: int

    def policy(self, *, context: int, device: str = "cpu") -> Policy:
        """With random weights; the same for every side."""
        tokenizer = word_tokenizer([f"w{number}" for number in range(64)], context=context)
        config = Qwen2Config(
            vocab_size=self.words,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.shared,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(device)
        return Policy(model, tokenizer, dialect_for(tokenizer, "words"))


SIZES = {
    "0.2M": Size(3, 64, 176, 4, 2, 256),
    "3M": Size(4, 256, 688, 8, 4, 2048),
    "25M": Size(8, 448, 1216, 8, 4, 8192),
    "0.5B": Size(24, 896, 4864, 14, 2, 151936),
    "1.5B": Size(28, 1536, 8960, 12, 2, 151936),
}


@dataclass(frozen=True)
class Bench:
    """One workload.

    Attributes:
        policy: to start from. parts: what is learned. budget: tokens of an update. rows: of a TRL batch, about as many.
    """

    policy: Policy
    parts: list[TokenSequence]
    epochs: int
    seed: int
    budget: int = 768
    rows: int = 12
    lr: float = 4e-3
    dtype: str = "float32"

    @property
    def tokens(self) -> int:
        """Real tokens of all epochs."""
        return self.epochs * sum(len(sequence) for sequence in self.parts)

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(
            epochs=self.epochs, layout="bucketed", batch_tokens=self.budget, lr=self.lr, dtype=self.dtype
        )  # type: ignore[arg-type]

    def batches(self) -> list[Batch]:
        """The Learner's batches of all epochs."""
        stream = DataOrder([s.feed for s in self.parts], budget=self.config.batch_tokens, seed=self.seed)
        return [collate_padded(self.parts, rows) for epoch in range(self.epochs) for rows in stream.plan_epoch(epoch)]


@dataclass(frozen=True)
class Point:
    """A place in the grid: size of the model, tokens of an update, mean tokens of a text, and what is learned of it."""

    size: str = "3M"
    batch: int = 2048
    length: int = 128
    kind: str = "tune"

    def __str__(self) -> str:
        return f"{self.size}, batch {self.batch}, length {self.length}, {self.kind}"

    def bench(self, *, updates: int, seed: int, device: str = "cpu", dtype: str = "float32") -> Bench:
        """Pre-training has full blocks and learns all of them; fine-tuning has ragged texts and learns a third."""
        rng, rows = sample_rng(seed, "shapes", str(self)), max(1, self.batch // self.length)
        size = SIZES[self.size]
        parts = [self._text(number, rng, size.words) for number in range(rows * updates)]
        longest = max(len(sequence) for sequence in parts)
        policy = size.policy(context=longest + 1, device=device)
        return Bench(policy, parts, 1, seed, max(self.batch, longest), rows, LOW_LR, dtype)

    def _text(self, number: int, rng: np.random.Generator, words: int) -> TokenSequence:
        full = self.kind == "pretrain"
        count = self.length if full else int(rng.integers(self.length // 2, self.length * 3 // 2 + 1))
        written = np.ones(count, np.bool_) if full else np.arange(count) % 12 >= 8
        weight = written.astype(np.float32)
        weight[0], weight[-1] = 0.0, 1.0
        zeros = np.zeros(count, np.int32)
        return TokenSequence(
            f"t{number}",
            rng.integers(4, words, count).astype(np.int32),
            written,
            written & False,
            zeros.astype(np.float32),
            zeros,
            zeros,
            weight,
        )


MIDDLE = Point()
POINTS = (
    MIDDLE,
    replace(MIDDLE, kind="pretrain"),
    *(replace(MIDDLE, size=size) for size in ("0.2M", "25M")),
    *(replace(MIDDLE, batch=batch) for batch in (512, 8192)),
    *(replace(MIDDLE, length=length) for length in (32, 512)),
)
ON_A_GPU = (Point("0.5B", 16384, 1024, "pretrain"), Point("1.5B", 8192, 1024, "pretrain"))


def labelled(batch: Batch) -> dict[str, Any]:
    """A batch in the form that transformers trains on: `input_ids` and `labels`, both `[B, T + 1]`."""
    ids = torch.nn.functional.pad(batch.ids, (0, 1))
    labels = torch.full_like(ids, -100)
    rows, places = batch.index // batch.ids.shape[1], batch.index % batch.ids.shape[1] + 1
    ids[rows, places] = batch.targets
    labels[rows, places] = batch.targets
    return {"input_ids": ids, "labels": labels}
