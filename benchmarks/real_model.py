"""A pretrained model at work: decoding, fine-tuning and a step of GRPO on SmolLM2-135M, beside the peers people use.

    evolvent models get smollm2                         first, once
    python -m benchmarks.real_model [--json] [--save]   all works; peers need `pip install -e '.[peers]'`
    python -m benchmarks.real_model --works decode      only these (decode, sft, grpo, threads) beside the kept others
    python -m benchmarks.real_model --quick [--json]    few tokens, our side alone; supports no claim

Every side runs in a process of its own, one thread unless said, with the same weights (dequantized from Q4_1) and the
same prompts; sides are interleaved, and figures are medians. Ratios differ between processors: PyTorch multiplies large
matrices of float32 twice as fast on Intel's as on AMD's, and what ours does about it helps on the latter alone. So
`machines` names the processor of each work. Speed is tokens per CPU second, the loading of the model
left out. Decoding is greedy, 16 tokens of prompt and 64 new ones a text. A ratio over 1 means that ours is faster. A
peer that cannot run is null, with the reason in `skipped`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.real_model_sides import DECODE_COUNTS, SIDES
from benchmarks.reporting import RESULTS, about, command_line, finish, show

RESULT = RESULTS / "real_model.json"
_START = "from benchmarks.real_model_sides import run_side; run_side()"
WORKS: dict[str, tuple[str, ...]] = {
    "decode": ("ours float32", "ours bfloat16", "transformers float32", "transformers bfloat16", "llamacpp float32",
               "llamacpp bfloat16", "openvino float32", "openvino bfloat16"),
    "sft": ("ours lora", "trainer lora", "trl lora", "ours full", "trainer full"),
    "grpo": ("ours grpo", "trl grpo"),
    "threads": ("ours float32", "ours float32 2", "ours lora", "ours lora 2"),
}  # fmt: skip


def measure_side(work: str, side: str, *, quick: bool) -> dict[str, Any]:
    """Runs a side in a process of its own; returns its figures, or, of a peer that failed, `{"skipped": reason}`.

    Raises:
        RuntimeError: our own side failed.
    """
    name, count = side.removesuffix(" 2"), 2 if side.endswith(" 2") else 1
    kind = ("sft" if "lora" in name else "decode") if work == "threads" else work
    command = [
        sys.executable,
        "-c",
        _START,
        kind,
        name,
        str(count),
        "quick" if quick else "whole",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": str(count), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last_line = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:200]
        reason = f"exit code {done.returncode} (-9: killed, most likely for memory): {last_line}"
        if side.startswith("ours"):
            raise RuntimeError(f"{work}: {side} failed: {reason}")
        return {"skipped": reason}
    return dict(json.loads(lines[-1]))


def measure(work: str, *, repeats: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Returns the median figures of every side of a work; sides take turns."""
    sides = [side for side in WORKS[work] if not quick or side.startswith("ours")]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            if not any("skipped" in row for row in found[side]):
                found[side].append(measure_side(work, side, quick=quick))
                print(f"{work:8} {side:22} {found[side][-1]}", flush=True)
    return {side: _combine(rows) for side, rows in found.items()}


def _combine(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    skipped = [row for row in rows if "skipped" in row]
    if skipped:
        return skipped[0]
    return {name: float(f"{statistics.median(row[name] for row in rows):.4g}") for name in rows[0]}


def compute_ratio(figures: dict[str, dict[str, Any]], ours: str, theirs: str, name: str) -> float | None:
    """Returns ours over theirs; None where one of them did not run."""
    one, other = figures.get(ours, {}).get(name), figures.get(theirs, {}).get(name)
    return None if one is None or other is None else round(one / other, 2)


def summarize(found: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns the keys of the benchmark; equal precision is compared, float32 where nothing is said."""
    decode, sft = found.get("decode", {}), found.get("sft", {})
    grpo, threads = found.get("grpo", {}), found.get("threads", {})
    ratio = partial(compute_ratio, decode)
    keys: dict[str, Any] = {}
    for peer, counts in (("transformers", DECODE_COUNTS), ("llamacpp", (1, 8)), ("openvino", (8, 32))):
        for count in counts:
            for dtype in ("float32", "bfloat16"):
                suffix = "" if dtype == "float32" else "_bfloat16"
                keys[f"decode_over_{peer}_{count}{suffix}"] = ratio(
                    f"ours {dtype}", f"{peer} {dtype}", f"decode_{count}"
                )
    keys["computed_over_limit"] = decode.get("ours float32", {}).get("computed_over_limit")
    keys["history_over_computed"] = decode.get("ours float32", {}).get("history_over_computed")
    keys["sft_lora_over_trainer"] = compute_ratio(sft, "ours lora", "trainer lora", "tokens_per_cpu_s")
    keys["sft_full_over_trainer"] = compute_ratio(sft, "ours full", "trainer full", "tokens_per_cpu_s")
    keys["sft_over_trl"] = compute_ratio(sft, "ours lora", "trl lora", "tokens_per_cpu_s")
    keys["grpo_over_trl"] = compute_ratio(grpo, "ours grpo", "trl grpo", "tokens_per_cpu_s")
    keys["grpo_model_share"] = grpo.get("ours grpo", {}).get("model_share")
    keys["grpo_rss_gb"] = grpo.get("ours grpo", {}).get("rss_gb")
    keys["threads2_decode"] = compute_ratio(threads, "ours float32 2", "ours float32", "wall_32")
    keys["threads2_train"] = compute_ratio(threads, "ours lora 2", "ours lora", "tokens_per_s")
    return keys


def read_kept_works(path: Path, found: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the kept sides of the works that were not measured now, and their machines; empty where none is kept."""
    if not path.is_file():
        return {}, {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    sides = {work: sides for work, sides in kept["sides"].items() if work not in found}
    return sides, {work: kept.get("machines", {}).get(work, kept["machine"]) for work in sides}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("real_model", __doc__, quick="few tokens, our side alone", save=RESULT)
    parser.add_argument("--works", nargs="+", choices=tuple(WORKS), default=list(WORKS), help="only these works")
    parser.add_argument("--repeats", type=int, default=3, help="runs of every side")
    options = parser.parse_args(arguments)
    works = ["decode"] if options.quick else options.works
    found = {
        work: measure(work, repeats=1 if options.quick else options.repeats, quick=options.quick) for work in works
    }
    packages = about("torch", "transformers", "peft", "trl", "xllamacpp", "openvino-genai", threads=1)
    machines = dict.fromkeys(works, packages["machine"])
    if not options.quick and len(works) < len(WORKS):
        sides, kept_machines = read_kept_works(RESULT, found)
        found, machines = {**sides, **found}, {**kept_machines, **machines}
    skipped = {f"{work}: {side}": row["skipped"] for work, rows in found.items() for side, row in rows.items()
               if "skipped" in row}  # fmt: skip
    figures = {
        "benchmark": "real_model",
        "unit": "tokens per CPU second",
        **summarize(found),
        "sides": found,
        "skipped": skipped,
        "sides_known": sorted(SIDES),
        "machines": machines,
        **packages,
        "quick": options.quick,
    }
    show(figures, without=("sides", "sides_known", "versions", "machine", "machines"))
    finish(figures, options)


if __name__ == "__main__":
    main()
