"""Which optimizer with which tuning? CoLLiE's comparison in instruction tuning, at a size that two cores can show.

    python -m benchmarks.tuning [--json]          the study: trains what has no row yet, then prints all of it
    python -m benchmarks.tuning --report [--json] only prints what is there
    python -m benchmarks.tuning --quick [--json]  the same machinery in a minute; supports no claim

For each seed one small policy is cloned on two worlds until it begins to solve the dev panel; every cell (optimizer x
tuning) goes on from it with as many learned tokens, on instructions in other words, and is measured greedily on
held-out tasks told in words that no training had. A cell's learning rate is chosen on the dev panel, with a base of its
own: three rates around the method's middle, a ratio of 10 ** .5 apart, and one more beyond the end where the best of
them is an end. The test panel is played at the chosen rate alone, once for each seed. Intervals draw seeds and kinds of
tasks again (`stats.crossed`).

Seeds are played one after the other over all cells. If time runs short the last ones are dropped whole: only seeds that
every cell has played are reported.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.study import prepare_process, read_cells, read_rows, study_run, summary_path, write_cell
from benchmarks.tuning.cell import Cell, Protocol, Ready, panel, ready, refusal, run_cell
from evolvent.errors import ConfigError
from evolvent.files import write_atomic
from evolvent.learn.learner import TrainConfig
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.models.adapters import AdapterConfig
from evolvent.stats import crossed_interval
from evolvent.store.lock import WriterLock
from evolvent.trajectory import sample_rng

FOLDER = RESULTS / "tuning"
OPTIMIZERS = ("adamw", "lion", "adan", "sophiag", "lomo", "adalomo")
TUNINGS = {
    "full": AdapterConfig(),
    "lora": AdapterConfig(kind="lora", rank=8, alpha=16, targets=("all-linear",)),
    "prefix": AdapterConfig(kind="prefix", tokens=16),
    "prompt": AdapterConfig(kind="prompt", tokens=16),
    "ia3": AdapterConfig(kind="ia3"),
}
PUBLISHED = {"adamw": 1e-3, "lion": 1e-4, "adan": 1e-3, "sophiag": 1e-4, "lomo": 1e-3, "adalomo": 1e-3}
# Middles for full tuning of this size: those of Adam's kin are 2 to 3 times the published defaults. One step of LOMO,
# its gradient clipped at 1, is as long as its rate: the middle is AdamW's times the root of how many weights there are.
# AdaLomo's rate is relative to the size of the weights: the middle is AdamW's over their root mean square.
MIDDLES = {"adamw": 2e-3, "lion": 3e-4, "adan": 3e-3, "sophiag": 3e-4, "lomo": 0.5, "adalomo": 3e-2}
TIMES = {"full": 1.0, "lora": 3.0, "prefix": 50.0, "prompt": 150.0, "ia3": 50.0}
EXCEPTIONS = {
    "lomo/lora": 1.0,
    "lomo/prefix": 8.0,
    "lomo/prompt": 10.0,
    "lomo/ia3": 3.0,
    "adalomo/lora": 0.2,
    "adalomo/prefix": 0.2,
    "adalomo/prompt": 1.0,
    "adalomo/ia3": 0.1,
}
PROTOCOL = Protocol(
    cloned=("lookup", "crafting:0"),
    worlds=("lookup",),
    shown=600,
    told=600,
    namings=3,
    solved=0.15,
    base_tokens=100_000,
    tokens=3_000,
    base=TrainConfig(lr=5e-3, betas=(0.9, 0.95), batch_tokens=512, final_lr_ratio=1.0),
    train=TrainConfig(betas=(0.9, 0.999), weight_decay=0.0, warmup_steps=10, batch_tokens=128),
    tiers=("seen", "evo", "combo"),
    dev=60,
    test=100,
    adapters=TUNINGS,
    optimizers={name: OptimizerConfig(name=name) for name in OPTIMIZERS},
    centres=MIDDLES,
    times=TIMES,
    exceptions=EXCEPTIONS,
    tuning_seed=900,
    seeds=(1000, 1001, 1002, 1003, 1004),
)
QUICK = Protocol(
    cloned=("lookup",),
    worlds=("lookup",),
    shown=60,
    told=60,
    namings=1,
    solved=0.3,
    base_tokens=2_000,
    tokens=300,
    base=PROTOCOL.base,
    train=PROTOCOL.train,
    tiers=("seen",),
    dev=3,
    test=4,
    adapters={name: TUNINGS[name] for name in ("full", "lora", "prompt")},
    optimizers={name: OptimizerConfig(name=name) for name in ("adamw", "lomo")},
    centres=MIDDLES,
    times=TIMES,
    exceptions=EXCEPTIONS,
    tuning_seed=0,
    seeds=(1, 2),
)
Table = dict[str, dict[str, Any]]


class Rows:
    """The rows of one protocol, one training each, written as they come. A folder of another protocol is refused.

    Raises:
        ConfigError: another protocol's folder. Locked: another process writes here.
    """

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.protocol, self.digest = folder, protocol, protocol.digest()
        frozen = read_rows(folder, "protocol").get("protocol")
        if frozen is not None:
            known = frozen["digest"]
            if known != self.digest:
                raise ConfigError(
                    f"{folder} holds rows of another protocol",
                    value=self.digest,
                    expected=known,
                    hint="move it away; rows of two protocols are never mixed",
                )
        else:
            facts = {"digest": self.digest, **protocol.described()}
            write_atomic(folder / "protocol.json", json.dumps(facts, indent=1) + "\n")
        self.kept = {row["key"]: row for row in read_cells(folder, self.digest)}
        self._bases: dict[int, Ready] = {}

    def base(self, seed: int) -> Ready:
        """The base of a seed; raises ConfigError if it is not the one that kept rows began with."""
        start = ready(self.protocol, seed, self._bases)
        others = {row["base"] for row in self.kept.values() if row["seed"] == seed} - {start.digest}
        if others:
            raise ConfigError(f"the base of seed {seed} is not that of its rows", value=start.digest, expected=others)
        return start

    def row(self, cell: Cell) -> dict[str, Any]:
        """A cell's row: the kept one, or a new one."""
        if cell.key not in self.kept:
            start = self.base(cell.seed)
            row = {**run_cell(self.protocol, start, cell), "digest": self.digest}
            row |= {"base_tokens": start.report.tokens, "base_solved": not start.report.finished}
            write_cell(self._folder, cell.key.replace("/", "-"), row)
            self.kept[cell.key] = row
            print(f"{cell.key:44} {row['success']:.3f} {row['loss']} {row['note'][:60]}", flush=True)
        return self.kept[cell.key]


def merit(row: Mapping[str, Any]) -> tuple[float, float]:
    """By what a rate is chosen: success on dev, then the training loss at its end."""
    return row["success"], -row["loss"][1] if row["loss"] else -float("inf")


def tried(rows: Rows, optimizer: str, tuning: str) -> list[dict[str, Any]]:
    """The dev rows of a cell by rate: three, and one more beyond the end that was best."""
    protocol = rows.protocol

    def at(power: int) -> dict[str, Any]:
        rate = protocol.centre(optimizer, tuning) * protocol.step**power
        return rows.row(Cell(optimizer, tuning, rate, protocol.tuning_seed, "dev"))

    found = [at(power) for power in (-1, 0, 1)]
    best = max(found, key=merit)
    if best is found[0]:
        return [at(-2), *found]
    return [*found, at(2)] if best is found[2] else found


def pairs(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """All cells, in the order in which they are trained."""
    return product(protocol.optimizers, protocol.adapters)


def run_study(rows: Rows) -> None:
    """Everything that has no row yet: rates of all cells first, then seed by seed."""
    protocol = rows.protocol
    fits = [pair for pair in pairs(protocol) if pair not in refused(rows)]
    rows.row(Cell("none", "base", 0.0, protocol.tuning_seed, "dev"))
    rates = {pair: max(tried(rows, *pair), key=merit)["rate"] for pair in fits}
    for seed in protocol.seeds:
        rows.row(Cell("none", "base", 0.0, seed, "test"))
        for pair in fits:
            rows.row(Cell(*pair, rates[pair], seed, "test"))


def refused(rows: Rows) -> dict[tuple[str, str], str]:
    """The pairs that do not go together, with the reason."""
    protocol, reasons = rows.protocol, {}
    for optimizer, tuning in pairs(protocol):
        cells = [key for key in rows.kept if key.startswith(f"{optimizer}/{tuning}/")]
        cell = Cell(optimizer, tuning, protocol.centre(optimizer, tuning), protocol.tuning_seed, "dev")
        if not cells and (why := refusal(protocol, rows.base(protocol.tuning_seed).base, cell)):
            reasons[optimizer, tuning] = why
    return reasons


# ---------------------------------------------------------------------- what comes out


def outcomes(found: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """`[seeds, tasks]`"""
    return [[float(won) for won in row["outcomes"]] for row in found]


def interval(protocol: Protocol, own: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> list[float]:
    """[mean, low, high] of the difference in success to other rows of the same seeds; to 0 where there are none."""
    scores, tasks = outcomes(own), panel(protocol, "test")
    against = outcomes(other) or [[0.0] * len(row) for row in scores]
    found = crossed_interval(
        scores,
        against,
        kinds=[task.kind for task in tasks],
        strata=[task.tier for task in tasks],
        rng=sample_rng("tuning intervals"),
    )
    least = 0.0 if not other else -1.0
    ends = (found.mean, max(least, found.low), min(1.0, found.high))
    return [round(end, 4) for end in ends]


def complete(rows: Rows, rates: Mapping[tuple[str, str], float]) -> list[int]:
    """The seeds that the base and every cell have played."""
    wanted = {("none", "base"): 0.0, **rates}
    return [
        seed
        for seed in rows.protocol.seeds
        if all(Cell(*pair, rate, seed, "test").key in rows.kept for pair, rate in wanted.items())
    ]


def tables(rows: Rows, chosen: Mapping[tuple[str, str], Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Table]:
    """By optimizer and tuning: success, what it is over the untuned base and over full AdamW, and what it took."""
    protocol, names = rows.protocol, ("success", "over_base", "over_full_adamw", "weights", "cpu_train_s", "by_seed")
    found: dict[str, Table] = {name: {} for name in names}

    def of(optimizer: str, tuning: str, rate: float) -> list[dict[str, Any]]:
        return [rows.kept[Cell(optimizer, tuning, rate, seed, "test").key] for seed in seeds]

    base = of("none", "base", 0.0)
    reference = of("adamw", "full", chosen["adamw", "full"]["rate"])
    for (optimizer, tuning), dev in chosen.items():
        own = of(optimizer, tuning, dev["rate"])
        values = (
            interval(protocol, own, []),
            interval(protocol, own, base),
            interval(protocol, own, reference),
            own[0]["weights"],
            round(sum(row["cpu_train_s"] for row in own) / len(own), 2),
            [round(row["success"], 4) for row in own],
        )
        for name, value in zip(names, values, strict=True):
            found[name].setdefault(optimizer, {})[tuning] = value
    return found


def dev_rows(rows: Rows) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The kept dev rows of every cell, by rate."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows.kept.values(), key=lambda row: row["rate"]):
        if row["split"] == "dev" and row["tuning"] != "base":
            found.setdefault((row["optimizer"], row["tuning"]), []).append(row)
    return {pair: found[pair] for pair in pairs(rows.protocol) if pair in found}


def report(rows: Rows, *, quick: bool) -> dict[str, Any]:
    """All figures as one JSON object, over the seeds that are complete."""
    protocol, tries = rows.protocol, dev_rows(rows)
    chosen = {pair: max(found, key=merit) for pair, found in tries.items()}
    seeds = complete(rows, {pair: row["rate"] for pair, row in chosen.items()})
    missing = [f"{optimizer}/{tuning}" for optimizer, tuning in pairs(protocol) if (optimizer, tuning) not in chosen]
    reasons = {"/".join(pair): why for pair, why in refused(rows).items()} if missing else {}
    every = list(rows.kept.values())
    base = [rows.kept[Cell("none", "base", 0.0, seed, "test").key] for seed in seeds]

    def table(value: Any) -> Table:
        return {one: {pair[1]: value(pair) for pair in chosen if pair[0] == one} for one in protocol.optimizers}

    return {
        "benchmark": "tuning",
        "quick": quick,
        "digest": rows.digest,
        **(tables(rows, chosen, seeds) if seeds else {"success": {}}),
        "base": {
            "success": interval(protocol, base, []),
            "by_seed": [round(row["success"], 4) for row in base],
            "tokens": [row["base_tokens"] for row in base],
        }
        if seeds
        else {},
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        "seeds": seeds,
        "dropped_seeds": [seed for seed in protocol.seeds if seed not in seeds],
        "rates": table(lambda pair: chosen[pair]["rate"]),
        "at_end": ["/".join(pair) for pair, row in chosen.items() if row is tries[pair][0] or row is tries[pair][-1]],
        "dev": table(lambda pair: {f"{row['rate']:.3g}": round(row["success"], 4) for row in tries[pair]}),
        "effort": table(lambda pair: len(tries[pair])),
        "published_rates": PUBLISHED,
        "refused": reasons,
        "unfinished": [name for name in missing if name not in reasons],
        "tokens": {
            "of_a_training": protocol.tokens,
            "learned": sum(row["tokens"] for row in every),
            "fed": sum(row["fed"] for row in every),
        },
        "cpu_s": {
            "training": round(sum(row["cpu_train_s"] for row in every), 1),
            "playing": round(sum(row["cpu_play_s"] for row in every), 1),
        },
        "trainings": sum(row["tuning"] != "base" for row in every),
        "tasks": {split: len(panel(protocol, split)) for split in ("dev", "test")},
        "sources": sorted({row["sources"] for row in every}),
        **about("torch", "transformers", "peft", threads=1),
    }


def show(found: Mapping[str, Any]) -> None:
    """The table for people: success in per cent with its interval, then the chosen rates."""
    if not found["seeds"]:
        print("no seed is complete")
        return
    columns = list(next(iter(found["success"].values())))
    print(
        f"\nsuccess on {found['tasks']['test']} held-out tasks, % [95 % interval], {len(found['seeds'])} seeds, "
        f"{found['tokens']['of_a_training']:,} learned tokens each"
    )
    print(f"{'':9}" + "".join(f"{name:>17}" for name in columns))
    for optimizer, row in found["success"].items():
        cells = [f"{100 * mean:.0f} [{100 * low:.0f}, {100 * high:.0f}]" for mean, low, high in row.values()]
        print(f"{optimizer:9}" + "".join(f"{cell:>17}" for cell in cells))
    mean, low, high = found["base"]["success"]
    print(f"untuned base {100 * mean:.0f} [{100 * low:.0f}, {100 * high:.0f}]\n\nrates (and how many were tried)")
    for optimizer, row in found["rates"].items():
        cells = [f"{rate:.2g} ({found['effort'][optimizer][tuning]})" for tuning, rate in row.items()]
        print(f"{optimizer:9}" + "".join(f"{cell:>17}" for cell in cells))
    for name, why in found["refused"].items():
        print(f"{name} does not combine: {why}")
    ends = ", ".join(found["at_end"])
    print(f"best at the end of what was tried: {ends or 'none'}; seeds dropped: {found['dropped_seeds'] or 'none'}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("tuning", __doc__, quick="a small copy in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the rows are")
    options = parser.parse_args(arguments)
    prepare_process()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.quick else options.folder
        rows = Rows(folder, QUICK if options.quick else PROTOCOL)
        if not options.report:
            (folder / "locks").mkdir(exist_ok=True)
            lock = WriterLock(folder / "locks" / "writer")
            try:
                with study_run(folder):
                    run_study(rows)
            finally:
                lock.release()
        found = report(rows, quick=options.quick)
        if not options.report:
            write(summary_path(folder, "tuning"), found)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()
