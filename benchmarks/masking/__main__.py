"""Does masking make a model read descriptions? Plain, irrelevance, masking and both, on tools that nobody learned.

    python -m benchmarks.masking [--json] [--variants ...] [--seeds ...]   teaches what has no cell yet
    python -m benchmarks.masking --report [--json] [--save]                only prints what is there
    python -m benchmarks.masking --quick [--json]                          the machinery; supports no claim

For each seed all variants begin with the same weights and learn the same number of tokens of the same requests. The
figure is how much of plain's drop under renaming `both` saves, with an interval over seeds and tools. Speed: samples
masked in a second of one core, beside reading and writing the same samples as JSON.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.masking.cell import MAIN, PANELS, VARIANTS, Cell, Protocol, panels, run_cell
from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.study import compute_interval, exit_on_problems, prepare_process, read_cells, study_run, write_cell
from evolvent.curate.irrelevance import row_to_sample, sample_to_row
from evolvent.curate.masking import MaskSpec, mask_sample
from evolvent.errors import unknown_name_problem
from evolvent.trajectory import sample_rng
from evolvent.worlds.functions.world import call_samples

FOLDER = RESULTS / "masking"
PROTOCOL = Protocol()
QUICK = Protocol(seeds=(0,), base=600, pool=40, tokens=600, panel=6)
GOALS = {"drop_saved": 0.5, "samples_per_s": 20_000}
Rows = Mapping[Cell, Mapping[str, Any]]


def report(rows: Rows, protocol: Protocol) -> dict[str, Any]:
    """All figures as one JSON object."""
    shown = panels(protocol)
    kinds = {
        name: [one.calls[0].name if one.calls else one.tools[0].name for one in side] for name, side in shown.items()
    }
    kinds["renamed"] = kinds["plain"]
    named: dict[str, dict[str, Any]] = {name: {"kinds": side, "name": "masking"} for name, side in kinds.items()}
    seeds = [seed for seed in protocol.seeds if all(Cell(name, seed) in rows for name in MAIN)]
    every = [name for name in VARIANTS if all(Cell(name, seed) in rows for seed in seeds)]

    def right(variant: str, panel: str) -> list[list[float]]:
        return [rows[Cell(variant, seed)]["panels"][panel]["right"] for seed in seeds]

    if not seeds:
        return {"seeds": []}
    accuracy = {
        name: {panel: compute_interval(right(name, panel), **named[panel]) for panel in PANELS} for name in every
    }
    drop = {name: np.asarray(right(name, "plain"), float) - np.asarray(right(name, "renamed"), float) for name in every}
    saved = compute_interval(drop["plain"].tolist(), drop["both"].tolist(), **named["plain"])
    lost = float(drop["plain"].mean())
    return {
        "accuracy": accuracy,
        "drop": {name: round(float(each.mean()), 4) for name, each in drop.items()},
        "drop_saved": round(saved[0] / lost, 4) if lost > 0 else None,
        "drop_saved_ci": saved,
        "irrelevant_gain": compute_interval(
            right("both", "irrelevant"), right("plain", "irrelevant"), **named["irrelevant"]
        ),
        **{
            f"plain_change{longer.replace(', ', '_').replace(' ', '_')}": compute_interval(
                right(f"both{longer}", "plain"), right(f"plain{longer}", "plain"), **named["plain"]
            )
            for longer in ("", ", 3x tokens")
            if {f"both{longer}", f"plain{longer}"} <= set(every)
        },
        "seeds": seeds,
        "cpu_s": round(sum(row["cpu_s"] for row in rows.values()), 1),
        "computed": sum(row["computed"] for row in rows.values()),
        "generated": sum(one["generated"] for row in rows.values() for one in row["panels"].values()),
    }


def speed(count: int = 2000) -> dict[str, float]:
    """Samples of one core in a second, masked, and read and written as JSON; the best of interleaved turns."""
    samples = call_samples("train", "seen", count, kinds=("simple", "multiple"))
    texts = [json.dumps(sample_to_row(one)) for one in samples]
    spec = MaskSpec(1.0)
    best = {"samples_per_s": 0.0, "json_per_s": 0.0}
    for _ in range(5):
        began = time.process_time()
        for one in samples:
            mask_sample(one, sample_rng(0, 0, one.id), spec)
        middle = time.process_time()
        for text in texts:
            json.dumps(sample_to_row(row_to_sample(json.loads(text))))
        ended = time.process_time()
        best["samples_per_s"] = max(best["samples_per_s"], count / (middle - began))
        best["json_per_s"] = max(best["json_per_s"], count / (ended - middle))
    return {name: round(value) for name, value in best.items()}


def show(found: Mapping[str, Any]) -> None:
    """The table for people."""
    for name, sides in found.get("accuracy", {}).items():
        cells = "  ".join(
            f"{panel} {100 * mean:5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]"
            for panel, (mean, low, high) in sides.items()
        )
        print(f"{name:12} {cells}")
    for name in (
        "drop",
        "drop_saved",
        "drop_saved_ci",
        "irrelevant_gain",
        "plain_change",
        "plain_change_3x_tokens",
        "samples_per_s",
        "json_per_s",
    ):
        if name in found:
            print(f"{name:16} {found[name]}")


def play_missing(protocol: Protocol, folder: Path, cells: Sequence[Cell], rows: dict[Cell, dict[str, Any]]) -> None:
    """Plays the cells that have no row, stores their rows and adds them to `rows`."""
    for cell in (cell for cell in cells if cell not in rows):
        rows[cell] = run_cell(protocol, folder, cell)
        write_cell(folder, cell.key, rows[cell])
        means = {panel: round(float(np.mean(one["right"])), 3) for panel, one in rows[cell]["panels"].items()}
        print(f"{cell.key:20} {means}  {rows[cell]['cpu_s']} cpu-s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    few = "few samples and hardly any learning: the machinery only"
    parser = command_line("masking", __doc__, quick=few, save=RESULTS / "masking.json")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", nargs="+", type=int)
    asked = parser.parse_args(arguments)
    wrong = [unknown_name_problem("variant", name, VARIANTS) for name in asked.variants if name not in VARIANTS]
    exit_on_problems(wrong)
    prepare_process()
    protocol = QUICK if asked.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if asked.quick else FOLDER
        rows = {Cell(row["variant"], row["seed"]): row for row in read_cells(folder, protocol.digest)}
        if not asked.report:
            wanted = [Cell(name, seed) for seed in asked.seeds or protocol.seeds for name in asked.variants]
            with study_run(folder):
                play_missing(protocol, folder, wanted, rows)
        found = {**report(rows, protocol), **speed(200 if asked.quick else 2000)}
    show(found)
    own = {"benchmark": "masking", "quick": asked.quick, "digest": protocol.digest, "goals": GOALS}
    finish({**found, **own, **about("evolvent", "torch", "numpy", threads=1)}, asked)


if __name__ == "__main__":
    main()
