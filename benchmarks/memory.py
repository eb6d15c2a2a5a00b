"""Training memory: what optimizers need beyond the parameters, beside others' and beside what the planner predicts.

    python -m benchmarks.memory [--json] [--quick] [--save] [--device cuda] [--picture docs/memory.svg]

Every cell trains a model for two updates of one row of 64 tokens, all of them learned, in a fresh process; the peak
over what the model itself takes is divided by the bytes of its parameters (how it is read: `benchmarks.memory_sides`).
All sides run the same forward and loss. `evolvent` is the Learner with its defaults, clipping among them; others are
plain loops without. AdamW and SGD of pytorch_optimizer are torch's, and measured once. The planner predicts from the
configuration alone. With `--device cuda` the 7B shape of LOMO's table 1 (arXiv 2306.09782: 8 rows of 512 tokens,
recomputed layers) is trained too; without, it is predicted only.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.memory_sides import MALLOC, Cell, activations, build, config_of, measure
from benchmarks.reporting import RESULTS, command_line, finish, machine, versions
from evolvent.learn.optim import OptimizerConfig
from evolvent.learn.parallel.memory import Load, MemoryEstimate, estimate_memory
from evolvent.learn.parallel.ranks import Parallelism

METHODS = {
    "adamw": "AdamW",
    "sgd": "SGD",
    "adafactor": "Adafactor",
    "lion": "Lion",
    "adan": "Adan",
    "sophiag": "SophiaG",
    "lomo": "LOMO",
    "adalomo": "AdaLomo",
    "lora": "LoRA, AdamW",
}
PEERS = {
    "adamw": ("torch",),
    "sgd": ("torch",),
    "adafactor": ("torch", "pytorch_optimizer"),
    "lion": ("pytorch_optimizer",),
    "adan": ("pytorch_optimizer",),
    "sophiag": ("pytorch_optimizer",),
    "lomo": ("pytorch_optimizer", "lomo_optim"),
    "adalomo": ("pytorch_optimizer", "lomo_optim"),
    "lora": ("peft",),
}
RESULT = RESULTS / "memory.json"
AIMS = {"lomo": 0.30, "adalomo": 0.35}
NOISE = 0.01  # parameter bytes; of one process against another
SIZES = {"llama": (20, 40, 80, 160, 300), "qwen3": (20, 80, 160)}
TIED = ("adamw", "lomo", "adalomo", "lora")  # the methods of the second family
WAITING = ((20, 4, 128), (40, 1, 512), (80, 2, 256))  # size, rows, tokens where activations are measured
# LOMO's table 1, GiB: parameters, gradients, optimizer state, activations, total
PUBLISHED = {
    "adamw": (12.55, 12.55, 75.31, 1.79, 102.20),
    "sgd": (12.55, 12.55, 25.10, 1.79, 51.99),
    "lomo": (12.55, 0.24, 0.00, 1.79, 14.58),
}
KINDS = ("parameters", "gradients", "optimizer")


def alone(function: Callable[[Cell], dict[str, Any]], cell: Cell) -> dict[str, Any]:
    """A cell in a process of its own: a fork of one that has only imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.memory_sides", "peft", "pytorch_optimizer", "lomo_optim"])
    began = time.perf_counter()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(function, cell).result()
    outcome = found.get("failed") or found.get("beyond") or found
    name = f"{cell.side} {cell.optimizer} {cell.family} {cell.size}"
    print(f"{name:40} {outcome} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    return found


def planned(cell: Cell) -> MemoryEstimate:
    """The planner's word on a cell: it sees names and shapes only."""
    model = build(replace(cell, device="meta"), config_of(cell))
    optimizer = OptimizerConfig(name="adamw" if cell.optimizer == "lora" else cell.optimizer)
    load = Load(cell.rows, cell.tokens, targets_share=cell.targets_share, dtype=cell.dtype)
    return estimate_memory(model, Parallelism(recompute=cell.recompute), optimizer, load=load)


def rung(cell: Cell, found: dict[str, Any]) -> dict[str, Any]:
    """A measurement of ours with the prediction beside it, in bytes."""
    guess = planned(cell)
    peak = {"measured": found["peak"], "planned": guess.total - guess.parameters}
    kinds = {kind: {"measured": found[kind], "planned": getattr(guess, kind)} for kind in KINDS}
    return {"family": cell.family, "size": cell.size, "method": cell.optimizer, "peak": peak, **kinds}


def error_of(pair: dict[str, int], least: float = 1.0) -> float:
    """How far off a prediction is, relative to what was measured."""
    return abs(pair["planned"] - pair["measured"]) / max(pair["measured"], least)


def compare(cells: Iterable[Cell]) -> tuple[dict[str, dict[str, float | None]], dict[str, str], list[dict[str, Any]]]:
    """Peaks beyond the parameters by optimizer and side; why some are missing; ours beside the planner."""
    beyond: dict[str, dict[str, float | None]] = {}
    missing, ladder = {}, []
    for cell in cells:
        found = alone(measure, cell)
        beyond.setdefault(cell.optimizer, {})[cell.side] = found.get("beyond")
        if "failed" in found:
            missing[f"{cell.side} {cell.optimizer}"] = found["failed"]
        elif cell.side == "evolvent":
            ladder.append(rung(cell, found))
    return beyond, missing, ladder


def waiting(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Activations: summed over saved tensors, read as memory in use, planned."""
    rows = []
    for cell in cells:
        found, guess = alone(activations, cell), planned(cell)
        shape = {name: getattr(cell, name) for name in ("family", "size", "rows", "tokens", "recompute")}
        rows.append({**shape, **found, "planned": guess.activations})
    return rows


def table(device: str) -> list[dict[str, Any]]:
    """LOMO's table 1: published, planned and, on a GPU, measured. GiB."""
    shape = Cell("evolvent", "", "llama", 7000, rows=8, tokens=512, recompute=True, device=device, dtype="bfloat16")
    rows = []
    for name, weights in (
        ("adamw", "float32"),
        ("adamw", "bfloat16"),
        ("sgd", "bfloat16"),
        ("lomo", "bfloat16"),
        ("adalomo", "bfloat16"),
    ):
        cell = replace(shape, optimizer=name, weights=weights)
        guess = {kind: round(size / 2**30, 2) for kind, size in asdict(planned(cell)).items() if kind != "stage"}
        row = {"optimizer": name, "weights": weights, "planned": guess, "published": PUBLISHED.get(name)}
        if device.startswith("cuda"):
            found = alone(measure, cell)
            both = found.get("peak", 0) + found.get("parameters", 0)
            row["measured"] = found.get("failed") or round(both / 2**30, 2)
        rows.append(row)
    return rows


def cells_of(options: argparse.Namespace) -> tuple[list[Cell], list[Cell], list[Cell]]:
    """The comparison, the rest of the ladder, the shapes of activations."""
    top = 20 if options.quick else 300
    given = {"device": options.device, "seed": options.seed}
    main = [Cell(side, name, size=top, **given) for name in METHODS for side in ("evolvent", *PEERS[name])]
    rungs = [(family, size) for family in SIZES for size in SIZES[family] if (family, size) != ("llama", top)]
    rungs = [("qwen3", 20)] if options.quick else rungs
    rest = [
        Cell("evolvent", name, family, size, **given)
        for family, size in rungs
        for name in (METHODS if family == "llama" else TIED)
    ]
    shapes = WAITING[:1] if options.quick else WAITING
    still = [
        Cell("evolvent", "sgd", family, size, rows, tokens, 0.125, recompute, words=2000, **given)
        for family in SIZES
        for size, rows, tokens in shapes
        for recompute in (False, True)
    ]
    return main, rest, still


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured and derived."""
    main, rest, still = cells_of(options)
    beyond, missing, ladder = compare(main)
    for name in ("adamw", "sgd"):
        beyond[name]["pytorch_optimizer"] = beyond[name]["torch"]
    ladder += compare(rest)[2]
    shapes = waiting(still)
    state = [error_of(row[kind], 1e-4 * row["parameters"]["measured"]) for row in ladder for kind in KINDS]
    saved = [abs(row["planned"] / row["saved"] - 1) for row in shapes]
    in_use = [abs(row["planned"] / row["in_use"] - 1) for row in shapes]
    above = {name: over for name, sides in beyond.items() if (over := _above(sides))}
    return {
        "benchmark": "memory",
        "unit": "peak beyond the parameters, in parameter bytes",
        "beyond_params": beyond,
        "planner_state_error": round(max(state), 4),
        "planner_activation_error": round(max(*saved, *in_use), 4),
        "planner_activation_error_saved": round(max(saved), 4),
        "planner_peak_error": round(max(error_of(row["peak"]) for row in ladder), 4),
        "aims": AIMS,
        "above_others": above,
        "missing": missing,
        "ladder": ladder,
        "activations": shapes,
        "lomo_table_gib": table(options.device),
        "quick": options.quick,
        "seed": options.seed,
        "versions": versions("torch", "transformers", "peft", "pytorch_optimizer", "lomo-optim"),
        "machine": f"{options.device}, {machine(threads=1)}, {MALLOC}",
    }


def _above(sides: dict[str, float | None]) -> dict[str, float]:
    ours = sides.get("evolvent")
    return {
        side: value
        for side, value in sides.items()
        if side != "evolvent" and value is not None and ours is not None and ours > value + NOISE
    }


# ---------------------------------------------------------------------- the picture

STYLE = """<style>svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#333}.t{font-weight:600;font-size:12px}
.g{stroke:#e4e4e4}.p{stroke:#999;stroke-dasharray:3 3;fill:none}.llama{stroke:#2166ac;fill:#2166ac}
.qwen3{stroke:#c2570c;fill:#c2570c}path.llama,path.qwen3{fill:none;stroke-width:1.5}</style>"""
WIDE, HIGH, LEFT, TOP = 250, 190, 44, 60
X_RANGE, Y_RANGE = (17e6, 380e6), (0.02, 9.0)  # parameters; GB


def picture(ladder: Sequence[dict[str, Any]]) -> str:
    """Peak beyond the parameters over model size, one panel an optimizer: marks are measured, lines are planned."""
    body = [
        f'<text class="t" x="{LEFT}" y="20">Peak training memory beyond the parameters, by model size</text>',
        f'<text x="{LEFT}" y="38">GB over parameters, float32, batch 1 x 64. Marks: measured. Lines: planned, without '
        "the temporaries of a step. Dashed: the parameters.</text>",
        f'<circle class="llama" cx="{LEFT + 4}" cy="50" r="3.5"/><text x="{LEFT + 12}" y="54">Llama shapes</text>'
        f'<rect class="qwen3" x="{LEFT + 106}" y="46.5" width="7" height="7"/>'
        f'<text x="{LEFT + 118}" y="54">Qwen3 shapes (embedding and head are one)</text>',
    ]
    for number, name in enumerate(METHODS):
        x, y = LEFT + number % 3 * (WIDE + 40), TOP + 24 + number // 3 * (HIGH + 56)
        body.append(f'<g transform="translate({x} {y})">{_panel(name, [r for r in ladder if r["method"] == name])}</g>')
    width, height = LEFT + 3 * (WIDE + 40), TOP + 24 + 3 * (HIGH + 56)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">{STYLE}{"".join(body)}</svg>\n'


def _x(value: float) -> float:
    return WIDE * math.log(value / X_RANGE[0]) / math.log(X_RANGE[1] / X_RANGE[0])


def _y(value: float) -> float:
    low, high = Y_RANGE
    return HIGH - HIGH * math.log(min(max(value, low), high) / low) / math.log(high / low)


def _panel(name: str, rows: Sequence[dict[str, Any]]) -> str:
    parts = [f'<text class="t" x="0" y="-8">{METHODS[name]}</text>']
    for size in (20e6, 50e6, 100e6, 200e6):
        parts.append(f'<path class="g" d="M{_x(size):.1f} 0V{HIGH}"/>')
        parts.append(f'<text x="{_x(size):.1f}" y="{HIGH + 14}" text-anchor="middle">{size / 1e6:.0f}M</text>')
    for level in (0.03, 0.1, 0.3, 1.0, 3.0):
        parts.append(f'<path class="g" d="M0 {_y(level):.1f}H{WIDE}"/>')
        parts.append(f'<text x="-5" y="{_y(level) + 4:.1f}" text-anchor="end">{level:g}</text>')
    low, high = X_RANGE
    parts.append(f'<path class="p" d="M0 {_y(4 * low / 1e9):.1f}L{WIDE} {_y(4 * high / 1e9):.1f}"/>')
    for family in SIZES:
        points = sorted((row["parameters"]["measured"] / 4, row["peak"]) for row in rows if row["family"] == family)
        line = "L".join(f"{_x(count):.1f} {_y(peak['planned'] / 1e9):.1f}" for count, peak in points)
        if points:
            parts.append(f'<path class="{family}" d="M{line}"/>')
        for count, peak in points:
            x, y = _x(count), _y(peak["measured"] / 1e9)
            mark = f'<circle class="llama" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            end = "</circle>"
            if family == "qwen3":
                mark, end = f'<rect class="qwen3" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7">', "</rect>"
            words = (
                f"{count / 1e6:.0f}M: measured {peak['measured'] / 1e9:.3f} GB, planned {peak['planned'] / 1e9:.3f} GB"
            )
            parts.append(f"{mark}<title>{words}</title>{end}")
    return "".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    few = "small models: a smoke test, not a measurement"
    parser = command_line("memory", __doc__, quick=few, save=RESULT)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="write the picture here, as SVG")
    options = parser.parse_args(arguments)
    if options.save == RESULT and options.device != "cpu":  # no device overwrites what another was measured at
        options.save = RESULT.with_name(f"memory_{options.device}.json")
    os.environ.update(MALLOC)  # before the first process: libraries read it when they start
    warnings.simplefilter("ignore")
    result = report(options)
    if options.picture is not None:
        options.picture.write_text(picture(result["ladder"]), encoding="utf-8")
    for name, sides in result["beyond_params"].items():
        print(f"{name:10}" + "".join(f"  {side} {'-' if value is None else value}" for side, value in sides.items()))
    for key in ("planner_state_error", "planner_activation_error", "planner_peak_error"):
        print(key, result[key])
    finish(result, options)


if __name__ == "__main__":
    main()
