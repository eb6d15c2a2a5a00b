"""What the model says of 8 to 1,024 GPUs and a thousand to a million environments, from measured costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.scale_sim.fleet import GPU, MODELS, Fleet, Library, Workload, with_constant
from benchmarks.scale_sim.model import Costs, Shape
from benchmarks.scale_sim.round import FULL, ahead_of, round_of, turn_exactly, turn_s

__all__ = ["costs_of", "library_of", "per_episode", "planned", "workload_of"]

GPUS = (8, 64, 256, 1024)
ENVIRONMENTS = (10**3, 10**4, 10**5, 10**6)
KINDS = (0.01, 0.1, 1.0)  # CPU-seconds of a step, beside the measured one: a page, a test run, a build
REFERENCES = (("0.5B", 64, 10**4), ("7B", 256, 10**4), ("70B", 1024, 10**5))
CONSTANTS = (
    "gpu.memory_bytes",
    "gpu.bandwidth",
    "gpu.flops",
    "gpu.link",
    "gpu.network",
    "gpu.cores",
    "gpu.decode_share",
    "gpu.train_share",
    "gpu.read_share",
    "gpu.link_latency_s",
    "gpu.network_latency_s",
    "gpu.between_failures_s",
    "gpu.restart_s",
    "library.forward_s",
    "library.row_s",
    "library.turn_s",
    "library.env_s",
    "library.latency_s",
    "library.deal_s",
    "library.take_s",
    "library.episode_bytes",
    "library.pack_s",
    "library.load_s",
    "workload.stretch",
    "workload.read",
    "workload.written",
    "workload.update_tokens",
)


def workload_of(measured: Mapping[str, Any]) -> Workload:
    """Episodes as long, relative to one another, as the measured ones."""
    return Workload(tuple(measured["lengths"]))


def library_of(measured: Mapping[str, Any], workload: Workload) -> Library:
    """The measured costs for episodes of the workload, alone on the machine."""
    alone, steps = measured["calibrated_at"], workload.stretch * statistics.mean(workload.lengths)
    tokens = steps * (workload.read + workload.written)
    each = {
        name: per_episode(measured, name, steps, tokens) for name in ("tell_s", "receive_s", "store_s", "wire_bytes")
    }
    return Library(
        forward_s=alone * (measured["outside_forward_s"] + measured["outside_mixed_s"]),
        row_s=alone * measured["outside_row_s"],
        turn_s=alone * (measured["outside_step_s"] + each["tell_s"] / steps),
        env_s=alone * (measured["env_step_s"] + measured["server_step_s"]),
        latency_s=measured["server_latency_s"],
        deal_s=alone * measured["deal_s"],
        take_s=alone * (each["receive_s"] + each["store_s"]),
        episode_bytes=each["wire_bytes"],
        pack_s=alone * measured["pack_s"][1],
        load_s=alone * measured["load_s"][1],
    )


def per_episode(measured: Mapping[str, Any], name: str, steps: float, tokens: float) -> float:
    """Seconds or bytes of an episode of so many steps and tokens, of a cost that is fitted to all three."""
    return float(sum(each * size for each, size in zip(measured[name], (1.0, steps, tokens), strict=True)))


def costs_of(measured: Mapping[str, Any], shape: Shape, weights: float) -> Costs:
    """The costs of a circle over episodes like these, with so many bytes of weights, alone on the machine."""
    alone, steps = measured["calibrated_at"], float(shape.steps.mean())
    tokens = float((shape.written + shape.read).mean())
    seconds = {name: per_episode(measured, name, steps, tokens) for name in ("tell_s", "receive_s", "store_s")}
    return Costs(
        forward_s=alone * (measured["forward_s"] + measured["mixed_s"]),
        row_s=alone * measured["row_s"],
        read_s=alone * measured["read_s"],
        step_s=alone * measured["step_s"],
        play_s=alone * seconds["tell_s"],
        deal_s=alone * measured["deal_s"],
        receive_s=alone * seconds["receive_s"],
        store_s=alone * seconds["store_s"],
        learn_s=alone * measured["learn_s"],
        learn_token_s=alone * measured["learn_token_s"],
        pack_s=alone * (measured["pack_s"][0] + weights * measured["pack_s"][1]),
        load_s=alone * (measured["load_s"][0] + weights * measured["load_s"][1]),
    )


def planned(measured: Mapping[str, Any], *, quick: bool, seed: int) -> dict[str, Any]:
    """Predictions, what breaks first, remedies, sensitivities; and the model of a turn over exact events."""
    workload = workload_of(measured)
    library = library_of(measured, workload)
    gpus, environments = (GPUS[:2], ENVIRONMENTS[:2]) if quick else (GPUS, ENVIRONMENTS)

    def fleet(name: str, count: int, envs: int) -> Fleet:
        return Fleet(count, envs, MODELS[name], workload, library)

    predictions = {
        name: {
            str(count): {str(envs): round_of(fleet(name, count, envs), seed=seed) for envs in environments}
            for count in gpus
        }
        for name in MODELS
    }
    chosen = [one for one in REFERENCES if one[1] in gpus and one[2] in environments]
    references = {
        f"{name}, {count} GPUs, {envs:,} environments": fleet(name, count, envs) for name, count, envs in chosen
    }
    return {
        "predictions": predictions,
        "breaks_first": {name: {count: breaks(row) for count, row in own.items()} for name, own in predictions.items()},
        "ahead": {
            name: {
                str(count): ahead_of(fleet(name, count, envs), seed=seed)
                for count in gpus
                for envs in environments[1:2]
            }
            for name in MODELS
        },
        "kinds": kinds(fleet, gpus, seed),
        "remedies": {name: remedies(one, seed) for name, one in references.items()},
        "tornado": {name: tornado(one, seed) for name, one in references.items()},
        "mean_field": mean_field(fleet("0.5B", 8, 1000), quick=quick),
        "assumed": {
            "gpu": asdict(GPU),
            "models": {name: asdict(one) for name, one in MODELS.items()},
            "library": asdict(library),
            "workload": {
                **asdict(workload),
                "lengths": len(workload.lengths),
                "mean_steps": workload.stretch * statistics.mean(workload.lengths),
                "context": workload.context,
            },
        },
    }


def breaks(row: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fewest environments with which something beside the GPUs is busy for nine tenths of a collection.

    Nothing is: `what` is empty, and `nearest` says what comes nearest, and how near.
    """
    if all(found["bound_by"] == "memory" for found in row.values()):
        return {"what": "memory", "environments": int(next(iter(row)))}
    nearest: tuple[float, str] = (0.0, "")
    for envs, found in row.items():
        others = {name: used for name, used in found["used"].items() if name != "gpu_decode"}
        most = max(others, key=lambda name: others[name])
        if others[most] >= FULL:
            return {"what": most, "environments": int(envs)}
        nearest = max(nearest, (others[most], most))
    return {"what": "", "nearest": nearest[1], "used": nearest[0]}


def kinds(fleet: Any, gpus: Sequence[int], seed: int) -> dict[str, Any]:
    """By CPU-seconds of an environment's step: steps a second, and what is full. 7B, ten thousand environments."""
    found: dict[str, Any] = {}
    for count in gpus:
        one = fleet("7B", count, 10**4)
        rows = {}
        for seconds in (one.library.env_s, *KINDS):
            row = round_of(replace(one, library=replace(one.library, env_s=seconds)), seed=seed)
            rows[f"{seconds:.2g}"] = {
                "steps_s": row["steps_s"],
                "bound_by": row["bound_by"],
                "environments": row["used"]["environments"],
            }
        found[str(count)] = rows
    return found


def remedies(one: Fleet, seed: int) -> dict[str, Any]:
    """Steps a second as it is, and with what could be done: each alone, then all."""
    faster = replace(one.library, pack_s=one.library.pack_s / 10, load_s=one.library.load_s / 10)
    lighter = replace(
        one.library, forward_s=one.library.forward_s / 10, row_s=one.library.row_s / 10, turn_s=one.library.turn_s / 10
    )
    paged = replace(one.gpu, memory_bytes=2 * one.gpu.memory_bytes)
    ways = {
        "as it is": one,
        "16 drivers, each with a store": replace(one, drivers=16),
        "weights handed over ten times as fast": replace(one, library=faster),
        "a tenth of Python in engines": replace(one, library=lighter),
        "twice the memory of rows": replace(one, gpu=paged),
        "all of these": replace(
            one, drivers=16, gpu=paged, library=replace(lighter, pack_s=faster.pack_s, load_s=faster.load_s)
        ),
    }
    rows = {name: round_of(way, seed=seed) for name, way in ways.items()}
    return {name: {"steps_s": row["steps_s"], "bound_by": row["bound_by"]} for name, row in rows.items()}


def tornado(one: Fleet, seed: int) -> dict[str, list[float]]:
    """Steps a second over those of the fleet, with each constant halved and doubled, the others as they are; the widest
    first. A share is not made more than 1.
    """
    base = round_of(one, seed=seed)["steps_s"]
    found = {}
    for name in CONSTANTS:
        most = 1 / getattr(one.gpu, name[4:]) if name.endswith("_share") else 2.0
        factors = (0.5, min(2.0, most))
        rows = [round_of(with_constant(one, name, factor), seed=seed)["steps_s"] for factor in factors]
        found[name] = [row / base for row in rows]
    return dict(sorted(found.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def mean_field(one: Fleet, *, quick: bool) -> dict[str, Any]:
    """Seconds of a turn: the mean formula over exact events, with idle, busy and full environments."""
    short = replace(one, workload=replace(one.workload, written=16))
    found = {}
    for seconds in (one.library.env_s, 0.1, 1.0):
        for rows in (4, 32) if quick else (4, 32, 100):
            own = replace(short, library=replace(short.library, env_s=seconds))
            exact = turn_exactly(own, rows, turns=8 * rows * 16)
            found[f"env {seconds:.2g} s, {rows} rows"] = float(turn_s(own, np.array([float(rows)]))[0][0]) / exact
    return {"over_exact": found, "worst": max(abs(value - 1) for value in found.values())}
