"""Lists the cells of the study of credit and plays those that have no row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.credit.cell import (
    PLACES,
    WAYS,
    Cell,
    Protocol,
    area,
    run_cell,
    start_of,
    steps_to,
)
from benchmarks.study import (
    play_once,
    read_cells,
    run_in_processes,
)

STUDIED = tuple(name for name, way in WAYS.items() if "token_gamma" not in way.settings)
KINDS = ("tuning", "study", "inner")


@dataclass(frozen=True)
class Asked:
    """Which cells are played, and where."""

    folder: Path
    worlds: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    kinds: Sequence[str]
    jobs: int = 1


class Cells:
    """The kept cells of a protocol."""

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.protocol = folder, protocol
        names = Cell.__dataclass_fields__
        self.kept = {Cell(**{name: row[name] for name in names}): row for row in read_cells(folder, protocol.digest)}

    def area(self, cell: Cell) -> float:
        """Under a cell's curve."""
        row = self.kept[cell]
        return area(row["curve"], measure=PLACES[cell.world].measure, budget=row["budget"])

    def steps(self, cell: Cell) -> tuple[int, bool]:
        """To the threshold of the cell's world; the budget where it was not reached."""
        row, place = self.kept[cell], PLACES[cell.world]
        return steps_to(row["curve"], place.threshold, measure=place.measure, budget=row["budget"])

    def tried(self, world: str, method: str) -> dict[float, float]:
        """The mean area of each rate that all development seeds have played."""
        found = {}
        for rate in self.protocol.rates:
            own = [Cell(world, seed, method, rate) for seed in self.protocol.development]
            if all(cell in self.kept for cell in own):
                found[rate] = float(np.mean([self.area(cell) for cell in own]))
        return found

    def rate(self, world: str, method: str) -> float | None:
        """The best rate of a method; None where not all were tried. POAD's kin take POAD's."""
        tried = self.tried(world, method if method in STUDIED else "poad")
        return max(tried, key=lambda rate: tried[rate]) if len(tried) == len(self.protocol.rates) else None

    def cell(self, world: str, method: str, seed: int) -> Cell | None:
        """The kept cell of a method at its rate."""
        rate = self.rate(world, method)
        found = None if rate is None else Cell(world, seed, method, rate)
        return found if found in self.kept else None

    def played(self, world: str, method: str) -> set[int]:
        """The seeds of the study that a method has played, at its rate."""
        return {seed for seed in self.protocol.seeds if self.cell(world, method, seed) is not None}

    def complete(self, world: str, methods: Iterable[str]) -> dict[str, list[Cell]]:
        """By method, its cells of the seeds that all these methods have played."""
        names = list(methods)
        rows = [[self.cell(world, name, seed) for name in names] for seed in self.protocol.seeds]
        whole = [[cell for cell in row if cell is not None] for row in rows]
        return {name: [row[at] for row in whole if len(row) == len(names)] for at, name in enumerate(names)}


def wanted(cells: Cells, asked: Asked, kind: str) -> list[Cell]:
    """The cells of a kind that have no row yet, seed by seed; those of the study once their rate is chosen."""
    protocol, names = cells.protocol, [name for name in asked.methods if (name in STUDIED) == (kind != "inner")]
    found: list[Cell] = []
    if kind == "tuning":
        found = [
            Cell(world, seed, name, rate)
            for seed in protocol.development
            for name in names
            for world in asked.worlds
            for rate in protocol.rates
        ]
    else:
        rates = {(world, name): cells.rate(world, name) for name in names for world in asked.worlds}
        found = [
            Cell(world, seed, name, rate)
            for seed in asked.seeds
            for (world, name), rate in rates.items()
            if rate is not None
        ]
    return [cell for cell in found if cell not in cells.kept]


def play(protocol: Protocol, folder: Path, cell: Cell) -> str:
    """Play one cell and keep its row, unless another process holds or has it; returns a line for people."""
    row = play_once(folder, cell.key, protocol.digest, partial(run_cell, protocol, folder, cell))
    if row is None:
        return ""
    place = PLACES[cell.world]
    height = area(row["curve"], measure=place.measure, budget=row["budget"])
    ends = [float(np.mean(row[panel][place.measure])) for panel in ("final", "swapped")]
    return (
        f"{cell.key:32} area {height:.3f}  final {ends[0]:.3f}  swapped {ends[1]:.3f}  "
        f"{row['cpu_train_s'] + row['cpu_play_s']:6.1f} cpu-s {row['note'][:60]}"
    )


def play_all(protocol: Protocol, asked: Asked) -> None:
    """Everything that is asked for and has no row yet: rates first, then the study, then the discounts."""
    for kind in (one for one in KINDS if one in asked.kinds):
        todo = wanted(Cells(asked.folder, protocol), asked, kind)
        if asked.jobs > 1:  # first the starts, so that no two processes wait for the same one
            starts = dict.fromkeys((cell.world, cell.seed) for cell in todo)
            run_in_processes(partial(prepare, protocol, asked.folder), list(starts), jobs=asked.jobs)
        run_in_processes(partial(play, protocol, asked.folder), todo, jobs=asked.jobs)


def prepare(protocol: Protocol, folder: Path, start: tuple[str, int]) -> str:
    """Make a start of a world and a seed."""
    start_of(protocol, folder, *start)
    return ""
