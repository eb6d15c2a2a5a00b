"""Lists the cells of the study of reverse curricula and plays those that have no row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.r3.cell import run_cell
from benchmarks.r3.protocol import METHODS, Cell, Protocol
from benchmarks.study import (
    play_once,
    read_cells,
    run_in_processes,
)
from evolvent.errors import ConfigError

OTHER_MODELS = {"programs": ("wide", "qwen3")}
_AGAIN_S = 5.0  # until it is looked at what another process has done


@dataclass(frozen=True)
class Asked:
    """What is to be trained, by how many processes."""

    tasks: Sequence[str]
    seeds: Sequence[int]
    jobs: int = 1


class Cells:
    """The kept cells of a protocol."""

    def __init__(self, folder: Path, protocol: Protocol) -> None:
        self.folder, self.protocol = folder, protocol
        names = Cell.__dataclass_fields__
        self.kept = {Cell(**{name: row[name] for name in names}): row for row in read_cells(folder, protocol.digest)}

    def of(self, method: str, cell: Cell) -> Cell:
        """The cell of another method beside this one: in the study at its rate, in tuning at the middle one."""
        tries = self.protocol.tries(method)
        rate = tries[len(tries) // 2] if cell.seed in self.protocol.development else self.rate(method)
        return replace(cell, method=method, rate=rate)

    def tried(self, method: str) -> dict[float, float]:
        """By rate, the mean accuracy on the dev panels; rates that were tried everywhere alone."""
        found = {}
        for rate in self.protocol.tries(method):
            own = [cell for cell in tuning(self.protocol) if (cell.method, cell.rate) == (method, rate)]
            if all(cell in self.kept for cell in own):
                found[rate] = round(sum(self.kept[cell]["accuracy"] for cell in own) / len(own), 4)
        return found

    def rate(self, method: str) -> float:
        """The best rate of a method, the lowest of equals.

        Raises:
            ConfigError: some rate was not tried.
        """
        tried = self.tried(method)
        if len(tried) < len(self.protocol.tries(method)):
            raise ConfigError(f"{method!r} has no rate yet", value=tried, hint="play the tuning cells first")
        return max(tried, key=lambda rate: (tried[rate], -rate))


def tuning(protocol: Protocol) -> list[Cell]:
    """The cells that rates are chosen by, in the order in which they are trained."""
    return [
        Cell(task, "xs", method, seed, rate)
        for seed in protocol.development
        for task in protocol.tuned
        for method in reversed(METHODS)
        for rate in protocol.tries(method)
    ]


def studied(kept: Cells, tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """The cells of the study, each method at its rate, in the order in which they are trained."""
    rates = {method: kept.rate(method) for method in reversed(METHODS)}
    for seed in seeds:
        for task in tasks:
            for model in ("xs", *OTHER_MODELS.get(task, ())):
                yield from (Cell(task, model, method, seed, rate) for method, rate in rates.items())


def play(folder: Path, protocol: Protocol, cell: Cell) -> str:
    """Train one cell and keep its row, unless another process holds or has it; returns a line for people.

    Imitation (sft) learns as many tokens as the policy of the mixed curriculum did, which is trained before.
    """
    learned = 0
    if cell.method == "sft":
        cells = Cells(folder, protocol)
        mixed = cells.kept.get(cells.of("mixed", cell))
        if mixed is None:
            return ""  # another process is at it
        networks = 2 if protocol.r3.practice.critic == "separate" else 1  # a critic of its own learns each token too
        learned = mixed["tokens_trained"] // networks
    row = play_once(folder, cell.key, protocol.digest, partial(run_cell, protocol, folder, cell, learned))
    if row is None:
        return ""
    return (
        f"{cell.key:36} {row['base']:.3f} -> {row['accuracy']:.3f}  {row['cpu_train_s'] + row['cpu_play_s']:6.1f} cpu-s"
    )


def play_all(folder: Path, protocol: Protocol, asked: Asked) -> None:
    """Everything that is asked for and has no row yet: rates first, then the study; imitation after the curricula.

    What another process is at is waited for.
    """
    for kind in ("tuning", "study"):
        for methods in (METHODS[1:], METHODS[:1]):
            cells = Cells(folder, protocol)
            every = tuning(protocol) if kind == "tuning" else [*studied(cells, asked.tasks, asked.seeds)]
            while todo := [cell for cell in every if cell.method in methods and cell not in cells.kept]:
                run_in_processes(partial(play, folder, protocol), todo, jobs=asked.jobs)
                cells = Cells(folder, protocol)
                if not cells.kept.keys() >= {*todo}:
                    time.sleep(_AGAIN_S)
