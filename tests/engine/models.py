"""Small random models for the tests of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

VOCABULARY = 50
CONTEXT = 64
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass
class Letters:
    """A stand-in for a tokenizer: token n is the n-th letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + int(index)) for index in ids)


@dataclass
class Policy:
    """What an engine needs of a policy."""

    model: Any
    version: int = 0
    context: int = CONTEXT
    tokenizer: Any = None


def model_of(config: Any, *, seed: int = 0, noise: float = 0.1) -> Any:
    """A model with random weights, norms and biases included."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * noise)
    return model


def llama(*, keys: int = 2, seed: int = 0, **changes: Any) -> Policy:
    """A three-layer Llama with grouped heads."""
    config = LlamaConfig(**{**SHAPE, "num_key_value_heads": keys, **changes})
    return Policy(model_of(config, seed=seed), tokenizer=Letters())
