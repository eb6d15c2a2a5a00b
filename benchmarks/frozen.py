"""Parts that frozen studies of practices share: the kept plan, intervals over seeds, gates, and curves for pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study import read_rows
from evolvent.bench.verdict import GateResult
from evolvent.errors import ConfigError
from evolvent.files import write_atomic
from evolvent.stats import paired_interval
from evolvent.trajectory import sample_rng

__all__ = ["choose_seeds", "describe_gate", "freeze_plan", "seed_interval", "summarize_curves"]


def freeze_plan(folder: Path, plan: Mapping[str, Any], digest: str) -> None:
    """Keeps the plan of a study beside its cells, before the first is played.

    Raises:
        ConfigError: the folder holds the cells of another plan.
    """
    kept = read_rows(folder, "protocol").get("protocol")
    if kept is None:
        write_atomic(folder / "protocol.json", json.dumps({"digest": digest, **plan}, allow_nan=False) + "\n")
    elif kept["digest"] != digest:
        raise ConfigError(
            f"{folder.name} holds a study with another plan",
            value=kept["digest"],
            expected=digest,
            hint="a study is frozen before it is played: give another --folder",
        )


def choose_seeds(asked: Sequence[int] | None, planned: Sequence[int]) -> Sequence[int]:
    """Returns the seeds that are asked for; all of the plan where none are.

    Raises:
        ConfigError: the plan does not have one of them.
    """
    if unplanned := [seed for seed in asked or () if seed not in planned]:
        raise ConfigError("seeds that the plan does not have", value=unplanned, expected=list(planned))
    return asked or planned


def seed_interval(own: Mapping[int, float], other: Mapping[int, float] | None = None) -> list[float]:
    """Computes [mean, low, high] of figures, or of their differences in pairs, over the seeds that both have.

    Both ends are the mean where a single seed is there.

    >>> seed_interval({0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.25, 2: 0.9})
    [0.25, 0.25, 0.25]
    """
    seeds = [seed for seed in own if other is None or seed in other]
    reference = [other[seed] if other is not None else 0.0 for seed in seeds]
    interval = paired_interval([own[seed] for seed in seeds], reference, rng=sample_rng("seed intervals"))
    ends = (interval.mean, interval.low, interval.high)
    return [round(end if np.isfinite(end) else interval.mean, 4) for end in ends]


def describe_gate(gate: GateResult) -> dict[str, Any]:
    """Returns what a summary keeps of a gate."""
    value = None if gate.value is None else round(gate.value, 4)
    bounds = {"minimum": gate.minimum, "maximum": gate.maximum}
    return {"name": gate.name, "arm": gate.arm, "value": value, **bounds, "passed": gate.passed}


def summarize_curves(curves: Sequence[Sequence[float]], count: int = 50) -> dict[str, list[float]]:
    """Returns mean, least and greatest of the curves of several seeds, at no more than `count` + 1 equal distances.

    >>> summarize_curves([[0.0, 0.5, 1.0], [0.0, 0.3, 0.6]], count=1)
    {'mean': [0.0, 0.8], 'low': [0.0, 0.6], 'high': [0.0, 1.0]}
    """
    table = np.asarray(curves, np.float64)
    index = np.linspace(0, table.shape[1] - 1, min(count + 1, table.shape[1])).round().astype(int)
    ends = {"mean": table.mean(0), "low": table.min(0), "high": table.max(0)}
    return {name: [round(float(value), 4) for value in values[index]] for name, values in ends.items()}
