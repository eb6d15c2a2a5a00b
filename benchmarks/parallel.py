"""Every layout beside one process: the largest difference of a loss over ten float32 updates, and resumes.

    python -m benchmarks.parallel [--json] [--quick] [--save]

Each cell trains the same small model on the same ragged data with the same seed, once in one process and once over 2, 4
or 8 gloo ranks on this machine. A resume stops after five updates on one layout and goes on on another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.crew import Crew
from benchmarks.parallel_cells import UPDATES, Cell, Trained, cells, resumes, train
from benchmarks.reporting import RESULTS, about, command_line, finish, show


class Crews:
    """Ranks by their number, started when they are first asked for, and kept."""

    def __init__(self) -> None:
        self._crews: dict[int, Crew] = {}

    def train(self, cell: Cell, folder: str | None = None, updates: int = UPDATES) -> Trained:
        """What rank 0 saw; AssertionError where a rank failed."""
        size = cell.parallelism.mesh.size
        if size == 1:
            return train(cell, folder, updates)
        crew = self._crews.get(size) or Crew(size)
        self._crews[size] = crew
        try:
            return crew.run(train, cell, folder, updates)[0]
        except AssertionError:
            del self._crews[size]
            raise

    def close(self) -> None:
        for crew in self._crews.values():
            crew.close()
        self._crews.clear()


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two loss curves; infinite where they differ in length."""
    if len(one) != len(other):
        return float("inf")
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def measure(chosen: Sequence[Cell], crews: Crews) -> list[dict[str, Any]]:
    """One row a cell. Cells of one number of ranks are run together."""
    alone: dict[str, Trained] = {}
    rows = []
    for cell in sorted(chosen, key=lambda cell: cell.parallelism.mesh.size):
        key = repr(cell.alone)
        if key not in alone:
            alone[key] = train(cell.alone)
        try:
            found = crews.train(cell)
            worst, error = difference(alone[key].losses, found.losses), ""
        except AssertionError as failure:
            worst, error = float("inf"), str(failure).strip().splitlines()[-1][:300]
        rows.append(
            {
                "cell": str(cell),
                "ranks": cell.parallelism.mesh.size,
                "diff": worst,
                "bound": cell.bound,
                "adapter": cell.adapter,
                "same_order": not error and found.order == alone[key].order,
                "fall": alone[key].losses[0] - alone[key].losses[-1],
                "error": error,
            }
        )
        print(f"{rows[-1]['diff']:9.1e} of {cell.bound:.0e}  {cell.parallelism.mesh.size}  {cell} {error}", flush=True)
    return rows


def measure_resumes(pairs: Sequence[tuple[Cell, Cell]], crews: Crews) -> list[dict[str, Any]]:
    """One row a pair: half of the updates on one layout, the other half on the other."""
    whole = train(Cell())
    rows = []
    for first, then in pairs:
        with tempfile.TemporaryDirectory() as folder:
            began, ended = crews.train(first, folder, UPDATES // 2), crews.train(then, folder)
        same = [*began.order, *ended.order] == list(whole.order)
        worst = difference(whole.losses, ended.losses)
        rows.append({"first": str(first), "then": str(then), "diff": worst, "same_order": same})
        print(f"{worst:9.1e}  {first} -> {then}", flush=True)
    return rows


def report(rows: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> dict[str, Any]:
    plain = [row["diff"] for row in rows if row["adapter"] == "none"]
    tuned = [row["diff"] for row in rows if row["adapter"] == "lora"]
    return {
        "benchmark": "parallel",
        "cells": len(rows),
        "max_loss_diff": max(plain),
        "lora_max_diff": max(tuned, default=None),  # a quick run may have no such cell
        "beyond_bound": [row["cell"] for row in rows if not row["diff"] <= row["bound"]],
        "resume_pairs": len(resumed),
        "resume_max_diff": max((row["diff"] for row in resumed), default=None),
        "sample_order_equal": all(row["same_order"] for row in (*rows, *resumed)),
        "rows": rows,
        "resumes": resumed,
        "updates": UPDATES,
        "seed": 5,
        **about("torch", "transformers", "peft", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    few = "a handful of cells: a smoke test, not a measurement"
    parser = command_line("parallel", __doc__, quick=few, save=RESULTS / "parallel.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [cell for cell in cells() if not cell.long] if options.quick else cells()
    crews = Crews()
    try:
        rows = measure(chosen[::6] if options.quick else chosen, crews)
        resumed = measure_resumes(resumes()[::14] if options.quick else resumes(), crews)
    finally:
        crews.close()
    found = report(rows, resumed)
    show(found, without=("rows", "resumes"))
    finish(found, options)


if __name__ == "__main__":
    main()
