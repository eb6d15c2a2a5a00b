"""The state of a team's training in one file: a resumed training has the same result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import ConfigError, CorruptRecord
from evolvent.files import write_atomic
from evolvent.marl.updates import TeamLearner
from evolvent.trajectory import Array

__all__ = ["TeamState", "read_state", "write_state"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamState:
    """The state of a training, except its learner.

    Args:
        decisions: number so far, of all rows.
        running: `[E]`, return so far of the running episodes.
        first: a number greater than that of every episode so far.
        batch: the environment's snapshot; None where it cannot be saved: its episodes then start again, from
            `first` on.
        history: metrics, one row per update.
    """

    decisions: int
    first: int
    running: NDArray[np.float64]
    batch: Mapping[str, Array] | None
    history: tuple[dict[str, float], ...]


def write_state(path: Path, learner: TeamLearner, state: TeamState, *, settings: Mapping[str, object]) -> None:
    """Writes the whole state as one safetensors file, completely or not at all.

    Args:
        settings: JSON values that the training depends on; `read_state` refuses others.
    """
    from safetensors.torch import save

    tensors = {f"learner/{name}": value.cpu() for name, value in learner.tensors().items()}
    tensors["running"] = torch.from_numpy(state.running.copy())
    for name, array in (state.batch or {}).items():
        tensors[f"batch/{name}"] = torch.from_numpy(np.array(array, copy=True, order="C"))
    row = {
        "decisions": state.decisions,
        "first": state.first,
        "history": state.history,
        "numbers": learner.numbers(),
        "settings": settings,
        "batch": state.batch is not None,
    }
    write_atomic(path, save(tensors, metadata={"state": json.dumps(row, sort_keys=True)}))


def read_state(path: Path, learner: TeamLearner, *, settings: Mapping[str, object]) -> TeamState | None:
    """Reads the state of a training into a learner; returns None where there is no file.

    Raises:
        CorruptRecord: the file cannot be read.
        ConfigError: it is of a training with other settings; the message names them.
        ShapeMismatch: it is of another network.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            row = json.loads((opened.metadata() or {})["state"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CorruptRecord(f"{path} is not the state of a team's training: {error}", offset=0) from error
    current_settings, saved_settings = json.loads(json.dumps(dict(settings))), row["settings"]
    differing = sorted(
        name for name in {*current_settings, *saved_settings} if current_settings.get(name) != saved_settings.get(name)
    )
    if differing:
        raise ConfigError(
            f"{path} belongs to a training job with other settings",
            value={name: saved_settings.get(name) for name in differing},
            expected={name: current_settings.get(name) for name in differing},
            hint="use another folder",
        )
    learner.restore(
        {name.removeprefix("learner/"): value for name, value in tensors.items() if name.startswith("learner/")},
        row["numbers"],
    )
    batch = {name.removeprefix("batch/"): value.numpy() for name, value in tensors.items() if name.startswith("batch/")}
    return TeamState(
        decisions=row["decisions"],
        first=row["first"],
        running=tensors["running"].numpy(),
        batch=batch if row["batch"] else None,
        history=tuple(row["history"]),
    )
