"""Models of other sizes with random weights: tokens per CPU second and memory of writing and of learning.

    python -m benchmarks.model_sizes --json                  360M to 3B, Llama and Qwen3 shapes; about 13 GB of memory
    python -m benchmarks.model_sizes --shapes llama-360m     only these; with --save beside the others that are kept
    python -m benchmarks.model_sizes --quick                 the smallest, few tokens; supports no claim

Each shape is built three times, in processes of their own: our engine, transformers' `generate` and our learner with
LoRA. Both writers decode greedily, 1 and 8 texts, each with its own prompt of 16 tokens. "Memory over weights" is the
highest resident memory divided by the size of the weights, with the interpreter and its libraries. What the weights say
does not change how fast they are computed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.real_model_sides import prompt_ids, read_rss_gb
from benchmarks.reporting import RESULTS, about, command_line, finish, show, write

COUNTS, NEW_TOKENS, CONTEXT = (1, 8), 32, 512
LEARNED_ROWS, ROW_TOKENS = 8, 256
SIDES = ("engine", "transformers", "lora")


@dataclass(frozen=True)
class Shape:
    """The sizes of a published decoder.

    Attributes:
        family: model type of transformers, "llama" or "qwen3".
        head: size of an attention head.
    """

    family: str
    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int


SHAPES = {
    "llama-360m": Shape("llama", 32, 960, 2560, 15, 5, 64, 49_152),  # SmolLM2-360M
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936),
    "llama-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128_256),  # Llama 3.2 1B
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151_936),
    "llama-3b": Shape("llama", 28, 3072, 8192, 24, 8, 128, 128_256),  # Llama 3.2 3B
}


def build_policy(shape: Shape, dtype: str) -> Any:
    """Builds a policy with random weights over a tokenizer of words; the input and output embeddings are tied."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from evolvent.models.dialects import dialect_for
    from evolvent.models.policy import Policy
    from evolvent.models.tiny import word_tokenizer

    tokenizer = word_tokenizer([f"w{number}" for number in range(64)], context=CONTEXT)
    config = AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return Policy(model.eval(), tokenizer, dialect_for(tokenizer, "words"))


def measure_side(name: str, side: str, dtype: str, new_tokens: int) -> dict[str, float]:
    """Measures one side of a shape in this process."""
    import torch

    torch.set_num_threads(1)
    policy = build_policy(SHAPES[name], dtype)
    num_weights = sum(weight.numel() for weight in policy.model.parameters())
    weights_gb = num_weights * policy.model.dtype.itemsize / 1e9
    figures = _learn(policy) if side == "lora" else _write(policy, side, new_tokens)
    return {"parameters": num_weights, "weights_gb": weights_gb, **figures, "rss_gb": read_rss_gb()}


def _write(policy: Any, side: str, new_tokens: int) -> dict[str, float]:
    import torch

    import evolvent as ev
    from evolvent.engine.asks import GREEDY
    from evolvent.engine.driver import ask_and_wait

    engine = ev.LocalEngine(policy, slots=max(COUNTS)) if side == "engine" else None
    policy.model.generation_config.eos_token_id = None

    def generate(count: int, length: int) -> None:
        prompts = [prompt_ids(number) for number in range(count)]
        if engine is not None:
            ask_and_wait([ev.SampleAsk(None, prompt, length, sampling=GREEDY) for prompt in prompts], engine)
            return
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            policy.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, pad_token_id=0
            )

    figures = {}
    for count in COUNTS:
        generate(count, 2)
        began = time.process_time()
        generate(count, new_tokens)
        figures[f"decode_{count}"] = count * new_tokens / (time.process_time() - began)
    return figures


def _learn(policy: Any) -> dict[str, float]:
    import numpy as np

    import evolvent as ev
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.models.adapters import AdapterConfig, adapt

    policy = adapt(policy, AdapterConfig(kind="lora", rank=16, alpha=32, targets=("all-linear",)), seed=0)
    written, steps = np.arange(ROW_TOKENS) >= ROW_TOKENS // 2, np.zeros(ROW_TOKENS, np.int32)
    rows = [
        TokenSequence(
            f"t{number}",
            np.asarray(prompt_ids(number, ROW_TOKENS), np.int32),
            written,
            np.zeros(ROW_TOKENS, np.bool_),
            np.zeros(ROW_TOKENS, np.float32),
            steps,
            steps,
            written.astype(np.float32),
        )
        for number in range(LEARNED_ROWS)
    ]
    num_learned = LEARNED_ROWS * ROW_TOKENS // 2
    config = ev.TrainConfig(lr=1e-4, batch_tokens=num_learned, epochs=1, warmup_steps=0, max_tokens_per_forward=1024)
    learner = ev.Learner(policy, ev.weighted_nll, config, seed=0)
    began = time.process_time()
    learner.fit(rows)
    return {"learn_fed": LEARNED_ROWS * ROW_TOKENS / (time.process_time() - began)}


def run_apart(name: str, side: str, dtype: str, new_tokens: int) -> dict[str, float]:
    """Measures one side of a shape in its own process."""
    argv = [sys.executable, "-m", "benchmarks.model_sizes", "--side", side, "--shapes", name]
    argv += ["--dtype", dtype, "--new_tokens", str(new_tokens)]
    finished = subprocess.run(argv, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def summarize_shape(sides: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the figures of a shape: ours, and ours over those of transformers.

    >>> engine = {"parameters": 8e8, "weights_gb": 3.2, "decode_1": 4.0, "decode_8": 16.0, "rss_gb": 4.0}
    >>> peer = engine | {"decode_1": 2.0, "decode_8": 8.0}
    >>> summary = summarize_shape({"engine": engine, "transformers": peer, "lora": {"learn_fed": 9.0, "rss_gb": 6.4}})
    >>> summary["decode_1_over_transformers"], summary["lora_rss_over_weights"]
    (2.0, 2.0)
    """
    engine, peer, lora = (sides[side] for side in SIDES)
    weights_gb = engine["weights_gb"]
    return {
        "parameters_m": round(engine["parameters"] / 1e6),
        "weights_gb": round(weights_gb, 2),
        **{f"decode_{count}": round(engine[f"decode_{count}"], 2) for count in COUNTS},
        **{
            f"decode_{count}_over_transformers": round(engine[f"decode_{count}"] / peer[f"decode_{count}"], 2)
            for count in COUNTS
        },
        "rss_over_weights": round(engine["rss_gb"] / weights_gb, 2),
        "transformers_rss_over_weights": round(peer["rss_gb"] / weights_gb, 2),
        "lora_tokens": round(lora["learn_fed"], 1),
        "lora_rss_over_weights": round(lora["rss_gb"] / weights_gb, 2),
    }


def read_kept_shapes(path: Path, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shapes of a file that was measured with the same numbers, packages and machine; else none."""
    if not path.is_file():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    is_same = all(kept.get(name) == figures[name] for name in ("dtype", "versions", "machine", "quick"))
    return dict(kept["shapes"]) if is_same else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the shapes; prints a table, or one JSON object."""
    parser = command_line("model_sizes", __doc__, quick="the smallest shape", save=RESULTS / "model_sizes.json")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names of shapes, with commas")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--side", choices=SIDES, help="measure one side of the first shape in this process")
    parser.add_argument("--new_tokens", type=int, default=NEW_TOKENS)
    options = parser.parse_args(arguments)
    names = options.shapes.split(",")
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"unknown shapes {', '.join(unknown)}: expected {', '.join(SHAPES)}")
    if options.side:
        sys.stdout.write(json.dumps(measure_side(names[0], options.side, options.dtype, options.new_tokens)) + "\n")
        return 0
    new_tokens = 4 if options.quick else options.new_tokens
    figures: dict[str, Any] = {"benchmark": "model_sizes", "unit": "tokens per CPU second", "dtype": options.dtype}
    figures |= {"shapes": {}, **about("torch", "transformers", "peft", threads=1), "quick": options.quick}
    if options.save:
        figures["shapes"] = read_kept_shapes(options.save, figures)
    for name in names[:1] if options.quick else names:
        sides = {side: run_apart(name, side, options.dtype, new_tokens) for side in SIDES}
        figures["shapes"][name] = summarize_shape(sides)
        show({"shape": name, **figures["shapes"][name]})
        sys.stdout.flush()
        if options.save:  # a large shape takes minutes: what is measured is kept at once
            write(options.save, figures)
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
