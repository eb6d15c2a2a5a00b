"""Cells of a resumable study: one JSON file each, played by one process or several, and intervals over their seeds."""

from __future__ import annotations

import json
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import torch

from evolvent.bench.results import claimed
from evolvent.errors import ConfigError, Locked, Problem
from evolvent.files import write_atomic
from evolvent.stats import crossed
from evolvent.trajectory import sample_rng

__all__ = ["each", "interval", "keep", "kept", "once", "quiet", "refuse"]

T = TypeVar("T")


def kept(folder: Path, digest: str) -> list[dict[str, Any]]:
    """The cells of a protocol that a folder holds."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("cell-*.json"))]
    return [row for row in rows if row["digest"] == digest]


def keep(folder: Path, key: str, row: Mapping[str, Any]) -> None:
    """Write a cell, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"cell-{key}.json", json.dumps(row, allow_nan=False) + "\n")


def once(folder: Path, key: str, digest: str, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Make a cell and keep it; None where the folder has it, or another process is making it."""
    try:
        with claimed(folder / "locks" / f"cell-{key}", wait_s=0):
            path = folder / f"cell-{key}.json"
            if path.exists() and json.loads(path.read_text(encoding="utf-8"))["digest"] == digest:
                return None
            row = make()
            keep(folder, key, row)
            return row
    except Locked:
        return None


def quiet() -> None:
    """One thread, and only what a benchmark prints."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def each(work: Callable[[T], str], todo: Sequence[T], *, jobs: int) -> None:
    """Do all of it, in so many processes of one thread each; what they answer is printed as it comes."""
    refuse([] if jobs >= 1 else [Problem("--jobs", f"{jobs} processes", "give 1 or more")])
    if jobs == 1:
        for one in todo:
            _tell(work(one))
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=quiet) as pool:
        for done in as_completed([pool.submit(work, one) for one in todo]):
            _tell(done.result())


def _tell(line: str) -> None:
    if line:
        print(line, flush=True)


def refuse(wrong: Sequence[Problem]) -> None:
    """End the program where its command line asks for what does not exist; without a mistake nothing happens."""
    if wrong:
        raise SystemExit(f"error: {ConfigError(wrong)}")


def interval(
    own: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]] | None = None,
    *,
    kinds: Sequence[Hashable],
    name: str,
) -> list[float]:
    """[mean, low, high] of a difference `[seeds, tasks]` over seeds and kinds; the ends of one seed are the mean.

    Args:
        other: what is taken off; None: `own` are shares, whose ends stay within 0 and 1.
    """
    found = crossed(own, [[0.0] * len(kinds)] * len(own) if other is None else other, kinds=kinds, rng=sample_rng(name))
    ends = (found.mean, found.low, found.high) if found.low == found.low else (found.mean,) * 3
    return [round(end if other is not None else min(max(end, 0.0), 1.0), 4) for end in ends]
