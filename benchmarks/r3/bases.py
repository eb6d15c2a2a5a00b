"""The weak policies that `benchmarks.r3` begins with: made by the first process to ask, kept under FOLDER/runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.r3.protocol import MODELS, PANELS, Protocol, panel, world_of
from benchmarks.study import load_or_make_policy
from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer
from evolvent.scale.initial import collect_demonstrations
from evolvent.trajectory import sample_seed

__all__ = ["base_of", "untrained"]


def base_of(protocol: Protocol, task: str, model: str, seed: int, *, folder: Path) -> Policy:
    """The policy that a panel, a model and a seed begin with.

    Raises:
        ConfigError: demonstrations that do not fit the context. Locked: another process has been making it too long.
    """
    name = f"base-{protocol.digest}-{task.replace(' ', '')}-{model}-{seed}"
    return load_or_make_policy(folder, name, lambda: (_made(protocol, task, model, seed), {}))


def _made(protocol: Protocol, task: str, model: str, seed: int) -> Policy:
    chosen, world = PANELS[task], world_of(protocol, task)
    policy = untrained(protocol, task, model, seed)
    count, tokens = (max(1, round(most * protocol.scale)) for most in (chosen.imitated, chosen.tokens))
    shown = collect_demonstrations([world], panel(protocol, task, "train")[:count], seed=seed)
    flat = flatten(shown, policy.dialect, instructions=lambda _: world.instructions, context=policy.context)
    if flat.refused or len(shown) < count:
        raise ConfigError(
            "demonstrations that are missing or do not fit the context",
            value=(len(shown), len(flat.refused)),
            expected=f"{count} that fit",
        )
    config = chosen.train.model_copy(update={"tokens": tokens})
    learner = Learner(policy, weighted_nll, config, seed=sample_seed("r3 base", seed) % 2**31)
    learner.fit(flat.sequences)
    return learner.policy.next_version()


def untrained(protocol: Protocol, task: str, model: str, seed: int) -> Policy:
    """A fresh policy over the world's words, with the heads of its panel where its attention is plain."""
    chosen, words = PANELS[task], world_of(protocol, task).vocabulary()
    if words is None:
        raise ConfigError("a world with an open vocabulary", value=task)
    tokenizer = word_tokenizer(sorted(words), context=protocol.context)
    configured, network, shape = MODELS[model]
    make_config: Any = configured
    config = make_config(
        vocab_size=len(tokenizer),
        max_position_embeddings=protocol.context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": chosen.theta},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
        **shape,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(sample_seed("r3 model", seed) % 2**31)
        made = network(config)
        for name, weight in made.named_parameters():  # as `init_tiny` does
            if weight.dim() > 1:
                weight.normal_(0.0, 0.25 if "embed_tokens" in name else 0.7 * weight.shape[-1] ** -0.5)
    policy = Policy(made.eval(), tokenizer, dialect_for(tokenizer, "words"))
    for heads in chosen.heads if configured is LlamaConfig else ():  # Qwen3 rescales queries and keys
        heads(policy)
    return policy
