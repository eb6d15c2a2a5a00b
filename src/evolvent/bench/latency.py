"""Latency of a token on this processor: greedy decoding with a cache, one text at a time, as a device does it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Latency", "measure_latencies"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a token: of CPU time over all threads, and of wall time; medians over the repeats."""

    cpu_ms: float
    wall_ms: float


def measure_latencies(
    models: Mapping[str, PreTrainedModel], *, prompt: int = 64, tokens: int = 32, repeats: int = 5
) -> Mapping[str, Latency]:
    """Measures milliseconds a token of several models in turns, so that a busy machine affects all equally.

    Args:
        models: Causal language models of transformers, by name.
        prompt: Tokens that are read first, and not timed.
        tokens: Tokens that are generated and timed.
        repeats: Number of runs after a warm-up.
    Raises:
        ConfigError: nothing to measure; more tokens than a model's context.
    """
    problems = [
        Problem(name, f"got {value}, expected 1 or more")
        for name, value in (("prompt", prompt), ("tokens", tokens), ("repeats", repeats))
        if value < 1
    ]
    for name, model in models.items():
        context = int(getattr(model.config, "max_position_embeddings", 0) or prompt + tokens)
        if prompt + tokens > context:
            problems.append(Problem(name, f"{prompt} + {tokens} tokens in a context of {context}", f"lower {name}"))
    if problems:
        raise ConfigError(problems)
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            timings[name].append(_time_decoding(model, prompt, tokens))
    return {
        name: Latency(*(_median([timing[side] for timing in rows[1:]]) for side in (0, 1)))
        for name, rows in timings.items()
    }


def _median(values: Sequence[float]) -> float:
    return round(median(values), 4)


def _time_decoding(model: PreTrainedModel, prompt: int, tokens: int) -> tuple[float, float]:
    """Measures (CPU, wall) milliseconds a token of one text."""
    import torch

    rows = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(prompt, device=model.device)[None] % rows
    with torch.inference_mode():
        output = model(input_ids=ids, use_cache=True)
        cpu, clock = time.process_time(), time.perf_counter()
        for _ in range(tokens):
            next_token = output.logits[:, -1:].argmax(-1)
            output = model(input_ids=next_token, past_key_values=output.past_key_values, use_cache=True)
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return 1000 * cpu / tokens, 1000 * clock / tokens
