"""What a token costs on this processor: greedy decoding with a cache, one text at a time, as a device does it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from evolvent.errors import ConfigError, Problem

__all__ = ["Latency", "latencies"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a token: of CPU time over all threads, and by the clock; medians over the repeats."""

    cpu_ms: float
    wall_ms: float


def latencies(
    models: Mapping[str, Any], *, prompt: int = 64, tokens: int = 32, repeats: int = 5
) -> Mapping[str, Latency]:
    """Milliseconds a token of several models, measured in turns, so that a busy machine troubles all alike.

    Args:
        models: causal language models of transformers, by name.
        prompt: tokens that are read before, and not counted. tokens: written, and counted. repeats: after one that
            warms up.
    Raises:
        ConfigError: nothing to measure; more tokens than a model's context.
    """
    wrong = [
        Problem(name, f"got {value}", "1 or more")
        for name, value in (("prompt", prompt), ("tokens", tokens), ("repeats", repeats))
        if value < 1
    ]
    for name, model in models.items():
        context = int(getattr(model.config, "max_position_embeddings", 0) or prompt + tokens)
        if prompt + tokens > context:
            wrong.append(Problem(name, f"{prompt} + {tokens} tokens in a context of {context}", "fewer of them"))
    if wrong:
        raise ConfigError(wrong)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            found[name].append(_once(model, prompt, tokens))
    return {
        name: Latency(*(_median([one[side] for one in rows[1:]]) for side in (0, 1))) for name, rows in found.items()
    }


def _median(values: Sequence[float]) -> float:
    return round(median(values), 4)


def _once(model: Any, prompt: int, tokens: int) -> tuple[float, float]:
    """(CPU, clock) milliseconds a token of one text."""
    import torch

    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(prompt, device=model.device)[None] % rows
    with torch.inference_mode():
        said = model(input_ids=ids, use_cache=True)
        cpu, clock = time.process_time(), time.perf_counter()
        for _ in range(tokens):
            word = said.logits[:, -1:].argmax(-1)
            said = model(input_ids=word, past_key_values=said.past_key_values, use_cache=True)
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return 1000 * cpu / tokens, 1000 * clock / tokens
