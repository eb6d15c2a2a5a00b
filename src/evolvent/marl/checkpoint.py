"""The state of a team's training in one file: taken up again it goes on to the same result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import ConfigError, CorruptRecord
from evolvent.files import write_atomic
from evolvent.marl.updates import TeamLearner

__all__ = ["TeamState", "read_state", "write_state"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamState:
    """What a training has come to, beside its learner.

    Args:
        decisions: taken so far, of all rows. running: `[E]`, what running episodes have earned.
        first: the number of an episode after all that were begun so far.
        batch: the environment's snapshot; None where it cannot be kept: its episodes then begin anew, from `first` on.
        history: what was measured, one row an update.
    """

    decisions: int
    first: int
    running: NDArray[np.float64]
    batch: Mapping[str, NDArray[Any]] | None
    history: tuple[dict[str, float], ...]


def write_state(path: Path, learner: TeamLearner, state: TeamState, *, settings: Mapping[str, Any]) -> None:
    """Write all of it as one safetensors file, whole or not at all.

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


def read_state(path: Path, learner: TeamLearner, *, settings: Mapping[str, Any]) -> TeamState | None:
    """Put a learner back to where a training was; None where no file is.

    Raises:
        CorruptRecord: a file that cannot be read. ConfigError: of a training with other settings, naming them.
        ShapeMismatch: of another network.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            row = json.loads((opened.metadata() or {})["state"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CorruptRecord(f"{path} is no state of a team's training: {error}", offset=0) from error
    given, kept = json.loads(json.dumps(dict(settings))), row["settings"]
    other = sorted(name for name in {*given, *kept} if given.get(name) != kept.get(name))
    if other:
        raise ConfigError(
            f"{path} is the state of a training with other settings",
            value={name: kept.get(name) for name in other},
            expected={name: given.get(name) for name in other},
            hint="give another folder",
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
