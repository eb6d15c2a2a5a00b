"""Families of transformers in the engine: how many tokens are computed, how exact the numbers are, how fast it decodes.

Every family is a tiny random model (`benchmarks/family_models.py`). A prompt is forked into three texts, two of them go
on, and another reads further; the limit is every token of every text once. Numbers are compared with the model's own
whole forward. Speed is measured for one family of each kind: 16 texts of one prompt, against the batched `generate` of
transformers on the same threads, in turns, in CPU seconds.

    python -m benchmarks.families --json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.family_models import FAMILIES, VOCABULARY, build_model
from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.engine.asks import SampleAsk, ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.fitting import engine_for
from evolvent.engine.local import LocalEngine

KINDS = {
    "full": "llama",
    "sliding": "gemma3_text",
    "sinks": "gpt_oss",
    "latent": "deepseek_v3",
    "linear": "qwen3_next",
    "state space": "mamba2",
    "convolution": "lfm2",
    "ALiBi": "bloom",
}
PROMPT, TEXTS, NEW_TOKENS = 96, 16, 64


def policy_of(model: Any, context: int) -> Any:
    """Returns what an engine needs of a policy."""
    return SimpleNamespace(model=model, version=0, context=context, tokenizer=None)


def examine(family: str) -> dict[str, float]:
    """Returns computed tokens over the limit, the largest difference of a log-probability, and if it recomputes."""
    model = build_model(family)
    engine = engine_for(policy_of(model, 128), slots=6)
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, 60).tolist()
    (prompt,) = ask_and_wait([ScoreAsk(None, tokens[:25])], engine)
    asks = [SampleAsk(prompt.node, [], 6, seeds=(1, 2, 3)), SampleAsk(prompt.node, tokens[25:33], 9, seeds=(4,))]
    forks, (other,) = ask_and_wait(asks, engine)
    going_on = [SampleAsk(fork.node, tokens[33:37], 5, seeds=(7,)) for fork in forks[:2]]
    *later, scored = ask_and_wait([*going_on, ScoreAsk(other.node, tokens[37:47])], engine)
    texts = [(other.node.tokens(), other.logprobs), (scored.node.tokens(), scored.logprobs)]
    texts += [(answer[0].node.tokens(), answer[0].logprobs) for answer in later]
    worst = 0.0
    for ids, logprobs in texts:
        with torch.inference_mode():
            whole = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        start = len(ids) - len(logprobs)
        expected = [float(whole[start - 1 + n, ids[start + n]]) for n in range(len(logprobs))]
        worst = max(worst, float(np.abs(np.asarray(expected) - logprobs).max()))
    limit = 25 + 8 + 10 + 2 * 4 + 3 * 6 + 9 + 2 * 5
    return {
        "computed_over_limit": engine.usage.computed / limit,
        "difference": worst,
        "recomputed": float(not isinstance(engine, LocalEngine)),
    }


def decode_speeds(family: str, repeats: int) -> tuple[float, float]:
    """Returns tokens per CPU second of the engine and of transformers, each the median of several runs in turns."""
    model = build_model(family)
    prompt = np.random.default_rng(2).integers(3, VOCABULARY, PROMPT).tolist()
    speeds: dict[str, list[float]] = {"engine": [], "transformers": []}
    for _ in range(repeats + 1):
        engine = engine_for(policy_of(model, PROMPT + NEW_TOKENS + 8), slots=TEXTS)
        begun = time.process_time()
        ask_and_wait([SampleAsk(None, prompt, NEW_TOKENS, seeds=tuple(range(TEXTS)))], engine)
        speeds["engine"].append(TEXTS * NEW_TOKENS / (time.process_time() - begun))
        begun = time.process_time()
        with torch.inference_mode():
            model.generate(
                torch.tensor([prompt] * TEXTS),
                attention_mask=torch.ones((TEXTS, PROMPT), dtype=torch.long),
                do_sample=True,
                min_new_tokens=NEW_TOKENS,
                max_new_tokens=NEW_TOKENS,
                pad_token_id=0,
            )
        speeds["transformers"].append(TEXTS * NEW_TOKENS / (time.process_time() - begun))
    return statistics.median(speeds["engine"][1:]), statistics.median(speeds["transformers"][1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every family; prints a table, or one JSON object."""
    parser = command_line("families", __doc__, quick="every eighth family, one run", save=RESULTS / "families.json")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    names = list(FAMILIES)[:: 8 if options.quick else 1]
    rows = {name: examine(name) for name in names}
    speeds = {kind: decode_speeds(name, 1 if options.quick else 5) for kind, name in KINDS.items()}
    figures = {
        "benchmark": "families",
        "families": len(rows),
        "computed_over_limit_max": max(row["computed_over_limit"] for row in rows.values()),
        "worst_difference": max(row["difference"] for row in rows.values()),
        "recomputed": int(sum(row["recomputed"] for row in rows.values())),
        "decode_speedup": {kind: round(ours / theirs, 2) for kind, (ours, theirs) in speeds.items()},
        "decode_tokens_per_cpu_second": {kind: [round(value) for value in pair] for kind, pair in speeds.items()},
        "names": names,
        **about("torch", "transformers", threads=1),
    }
    show(figures, without=("names", "versions", "machine"))
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
