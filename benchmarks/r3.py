"""Does a reverse curriculum help? R3 against outcome PPO, a staged curriculum and more imitation, on eight panels.

    python -m benchmarks.r3 [--json] [--tasks NAME ...] [--seeds N ...]   trains what has no cell yet, prints all of it
    python -m benchmarks.r3 --report [--json]                             only prints what is there
    python -m benchmarks.r3 --quick [--json]                              the machinery in a minute; supports no claim

For each task, model and seed one small policy imitates demonstrations until it begins to solve the dev panel: the weak
base. Every method goes on from it, with the same demonstrations at hand, and is measured greedily on held-out tasks,
from their beginning. What is equal is environment steps: a method ends with the iteration that reaches the budget. The
continued imitation (sft) learns as many tokens as R3 did. Tokens generated, computed and learned stand beside each
cell. The programs (P-CoT) are also learned by a larger model and by one of another architecture.

A cell is one JSON file: a study that was stopped goes on. Seeds are played one after the other over all cells; a figure
holds the seeds that all methods of its row have played. Intervals draw seeds and kinds of tasks again
(`stats.crossed`).
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.r3_cells import METHODS, PANELS, Cell, Protocol, panel, run_cell
from evolvent.errors import ConfigError, unknown
from evolvent.files import write_atomic
from evolvent.learn.practice import PracticeConfig
from evolvent.methods.r3 import R3
from evolvent.stats import crossed
from evolvent.trajectory import sample_rng

RESULTS = Path(__file__).parent / "results" / "r3"
OTHER_MODELS = {"programs": ("s", "qwen3")}
PROTOCOL = Protocol()
QUICK = Protocol(
    shown=24, dev=4, test=4, solved=0.5, base_tokens=3_000, env_steps=60, tiers=("seen",), slots=16,
    r3=R3(practice=PracticeConfig(iterations=40, tasks=16, samples=1, save_every=40, critic="own")),
)  # fmt: skip


class Cells:
    """The kept cells of a protocol, one file each."""

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.protocol = folder, protocol
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("cell-*.json"))]
        names = Cell.__dataclass_fields__
        self.kept = {
            Cell(**{name: row[name] for name in names}): row for row in found if row["digest"] == protocol.digest
        }

    def row(self, cell: Cell) -> dict[str, Any]:
        """A cell's row: the kept one, or a new one."""
        if cell not in self.kept:
            learned = 0
            if cell.method == "sft":  # a critic of its own learns each token too
                networks = 2 if self.protocol.r3.practice.critic == "own" else 1
                learned = self.row(replace(cell, method="mixed"))["tokens_trained"] // networks
            row = run_cell(self.protocol, cell, learned)
            write_atomic(self._folder / f"cell-{cell.key}.json", json.dumps(row, indent=1) + "\n")
            self.kept[cell] = row
            print(f"{cell.key:36} {row['base']:.3f} -> {row['accuracy']:.3f}", flush=True)
        found: dict[str, Any] = self.kept[cell]
        return found


def cells(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells, in the order in which they are trained."""
    for seed in seeds:
        for task in tasks:
            for model in ("xs", *OTHER_MODELS.get(task, ())):
                yield from (Cell(task, model, method, seed) for method in METHODS)


def interval(kept: Cells, own: Sequence[Cell], other: Sequence[Cell]) -> list[float]:
    """[mean, low, high] of the difference in accuracy between cells of the same seeds; to 0 where there are none."""
    tasks = panel(kept.protocol, own[0].task, "test")
    scores, against = ([[float(won) for won in kept.kept[cell]["outcomes"]] for cell in side] for side in (own, other))
    found = crossed(
        scores, against or [[0.0] * len(tasks)] * len(scores), kinds=[one.kind for one in tasks],
        strata=[one.tier for one in tasks], rng=sample_rng("r3 intervals"),
    )  # fmt: skip
    least = -1.0 if other else 0.0
    ends = (found.mean, max(least, found.low), min(1.0, found.high)) if found.low == found.low else (found.mean,) * 3
    return [round(end, 4) for end in ends]


def report(kept: Cells, *, quick: bool) -> dict[str, Any]:
    """All figures as one JSON object, each over the seeds that all methods of its row have played."""
    rows: dict[str, dict[str, list[Cell]]] = {}
    for cell in sorted(kept.kept, key=lambda one: one.seed):
        whole = all(replace(cell, method=method) in kept.kept for method in METHODS)
        if whole:
            rows.setdefault(cell.row, {}).setdefault(cell.method, []).append(cell)
    accuracy = {name: {method: interval(kept, own[method], []) for method in METHODS} for name, own in rows.items()}
    gains = {name: interval(kept, own["mixed"], own["outcome"]) for name, own in rows.items()}
    costs = ("env_steps", "replayed", "tokens_generated", "tokens_computed", "tokens_trained", "cpu_train_s")

    def mean(own: Sequence[Cell], what: str) -> float:
        return round(float(sum(kept.kept[cell][what] for cell in own)) / len(own), 4)

    return {
        "benchmark": "r3", "quick": quick, "digest": kept.protocol.digest, "accuracy": accuracy,
        "base": {name: mean(own["mixed"], "base") for name, own in rows.items()},
        "r3_minus_outcome": {name: gain[0] for name, gain in gains.items()},
        "r3_minus_outcome_ci": {name: gain[1:] for name, gain in gains.items()},
        "r3_minus_outcome_mean": round(sum(gain[0] for gain in gains.values()) / max(1, len(gains)), 4),
        "cost": {what: {name: {method: mean(own[method], what) for method in METHODS} for name, own in rows.items()}
                 for what in costs},
        "seeds": {name: [cell.seed for cell in own["mixed"]] for name, own in rows.items()},
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        "sources": sorted({row["sources"] for row in kept.kept.values()}),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, 1 thread",
    }  # fmt: skip


def show(found: Mapping[str, Any]) -> None:
    """The table for people: accuracy in per cent with its interval."""
    print(
        f"\n{'accuracy, % [95 %]':22}{'base':>7}" + "".join(f"{name:>17}" for name in METHODS) + f"{'R3 - outcome':>19}"
    )
    for name, row in found["accuracy"].items():
        shown = [f"{100 * mean:.0f} [{100 * low:.0f}, {100 * high:.0f}]" for mean, low, high in row.values()]
        low, high = found["r3_minus_outcome_ci"][name]
        gain = f"{100 * found['r3_minus_outcome'][name]:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        print(f"{name:22}{100 * found['base'][name]:7.0f}" + "".join(f"{one:>17}" for one in shown) + f"{gain:>19}")
    print(f"mean of R3 - outcome: {100 * found['r3_minus_outcome_mean']:+.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.r3", description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a small copy in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--tasks", nargs="+", help=f"panels; of {', '.join(PANELS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of the bases")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the cells are")
    options = parser.parse_args(arguments)
    tasks = options.tasks or (["arithmetic"] if options.quick else [*PANELS])
    seeds = options.seeds or ([0, 1] if options.quick else [0, 1, 2])
    wrong = [unknown("panel", task, PANELS, where="--tasks") for task in tasks if task not in PANELS]
    if wrong:
        raise ConfigError(wrong)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        kept = Cells(Path(scratch) if options.quick else options.folder, QUICK if options.quick else PROTOCOL)
        for cell in () if options.report else cells(tasks, seeds):
            kept.row(cell)
        found = report(kept, quick=options.quick)
        if not options.report and not options.quick:
            write_atomic(options.folder / "result.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    show(found)
    if options.json:
        print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main()
