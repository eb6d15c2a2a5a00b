"""The files that a training leaves, made up: it is terminated and goes on, skips an update, and is watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MIB = 2**20
PARALLEL = {"pp": 1, "replicate": 1, "shard": 2, "tp": 2, "schedule": "1f1b"}


def update(step: int, time_s: float, **changed: Any) -> dict[str, Any]:
    """The row of an update; its loss is 4 / step."""
    return {
        "time_s": time_s,
        "cpu_s": time_s / 2,
        "stage": "sft",
        "arm": "base",
        "round": 0,
        "kind": "fit",
        "step": step,
        "loss": 4 / step,
        "grad_norm": 1.5,
        "lr": 0.001,
        "tokens": 100,
        "fed": 300,
        "padded": 20,
        "skipped": False,
    } | changed


def cost(step: int, time_s: float, **changed: Any) -> dict[str, Any]:
    """The row of the monitor after an update."""
    return {
        "time_s": time_s,
        "cpu_s": time_s / 2,
        "stage": "sft",
        "arm": "base",
        "round": 0,
        "kind": "fit",
        "step": step,
        "tokens_per_s": 1000.0 + step,
        "pad_fraction": 0.0625,
        "gemm_share": 0.31,
        "gemm_per_s": 9.1e10,
        "data_wait": 0.02,
        "parameters_bytes": 100 * MIB,
        "gradients_bytes": 100 * MIB,
        "optimizer_bytes": 200 * MIB,
        "process_bytes": 300 * MIB,
        "peak_bytes": 900 * MIB,
    } | changed


def evaluated(
    step: int, stage: str, measures: list[tuple[str, float | None, float | None, float | None]], **changed: Any
) -> dict[str, Any]:
    """The row of an evaluator that looked at a snapshot."""
    names = ("metric", "value", "low", "high")
    return {
        "at": "2026-03-01T10:00:00Z",
        "time_s": 1.0,
        "cpu_s": 1.0,
        "kind": "snapshot",
        "arm": "",
        "stage": stage,
        "step": step,
        "snapshot": f"step-{step:06d}",
        "settings": "a" * 16,
        "seconds": 1.5,
        "measures": [dict(zip(names, one, strict=True), n=50) for one in measures],
    } | changed


def write_training(folder: Path, *, updates: int = 40, state: str = "finished") -> Path:
    """A training that was killed at update 24 and went on from update 20; update 7 was skipped."""
    folder.mkdir(parents=True)
    rows = []
    for step in [*range(1, 25), *range(21, updates + 1)]:
        again = len(rows) > 24
        rows.append(update(step, 0.5 * (step - 20 * again)) | ({"loss": None, "skipped": True} if step == 7 else {}))
        if step % 4 == 2:
            rows.append(cost(step, rows[-1]["time_s"]))
    first = [row for row in rows if "lr" in row][:24]
    assert first[-1]["step"] == 24
    watched = [
        evaluated(10, "success", [("success/crafting/evo", 0.25, 0.15, 0.4), ("success/crafting/seen", 0.5, 0.4, 0.6)]),
        evaluated(20, "success", [("success/crafting/evo", 0.75, 0.6, 0.85), ("success/crafting/seen", *3 * [None])]),
        evaluated(10, "perplexity", [("perplexity", 3.25, 3.0, 3.5)]),
        evaluated(20, "perplexity", [("perplexity", 3.5, 3.25, 3.75)]),
        evaluated(20, "generation", []) | {"error": {"kind": "EngineError", "message": "the output is not finite"}},
    ]
    info = {
        "verb": "train sft",
        "method": "train sft",
        "name": folder.name,
        "seed": 0,
        "state": state,
        "arms": ["base"],
        "created": "2026-03-01T09:14:03Z",
        "command": ["evolvent", "train", "sft", "data"],
        "versions": {"torch": "2.13.0"},
        "config": {"train": {"lr": 0.001, "updates": updates}, "parallel": PARALLEL},
    }
    for name, lines in (("metrics", rows), ("evaluations", watched)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps(info))
    return folder
