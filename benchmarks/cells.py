"""Cells of a resumable study: one JSON file each, and intervals over their seeds."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.files import write_atomic
from evolvent.stats import crossed
from evolvent.trajectory import sample_rng

__all__ = ["interval", "keep", "kept", "refuse"]


def kept(folder: Path, digest: str) -> list[dict[str, Any]]:
    """The cells of a protocol that a folder holds."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("cell-*.json"))]
    return [row for row in rows if row["digest"] == digest]


def keep(folder: Path, key: str, row: Mapping[str, Any]) -> None:
    """Write a cell, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"cell-{key}.json", json.dumps(row, allow_nan=False) + "\n")


def refuse(wrong: Sequence[Problem]) -> None:
    """End the program where its command line asks for what does not exist; without a mistake nothing happens."""
    if wrong:
        raise SystemExit(f"error: {ConfigError(wrong)}")


def interval(
    own: Sequence[Sequence[float]], other: Sequence[Sequence[float]] | None = None, *, kinds: Sequence[Hashable],
    name: str,
) -> list[float]:  # fmt: skip
    """[mean, low, high] of a difference `[seeds, tasks]` over seeds and kinds; the ends of one seed are the mean.

    Args:
        other: what is taken off; None: `own` are shares, whose ends stay within 0 and 1.
    """
    found = crossed(own, [[0.0] * len(kinds)] * len(own) if other is None else other, kinds=kinds, rng=sample_rng(name))
    ends = (found.mean, found.low, found.high) if found.low == found.low else (found.mean,) * 3
    return [round(end if other is not None else min(max(end, 0.0), 1.0), 4) for end in ends]
