"""The state of a sequence policy's training in one file: a resumed training has the same result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evolvent.config import Config, redact
from evolvent.errors import ConfigError, CorruptRecord, ShapeMismatch
from evolvent.files import write_atomic
from evolvent.identity import version_1_values

__all__ = [
    "SequenceCheckpoint",
    "SequenceProgress",
    "Stateful",
    "configure_checkpoint",
    "load_moments",
    "optimizer_moments",
]

Row = Mapping[str, float]


class Stateful(Protocol):
    """An object beside the model that changes during training: a target network, a temperature."""

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the whole state, by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> object:
        """Restores the state that `state_dict` returned."""
        ...


@dataclass
class SequenceProgress:
    """The progress of a training: number of updates, the rows of its history, losses since the last row."""

    updates: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    recent_losses: list[float] = field(default_factory=list)


class SequenceCheckpoint:
    """The file that stores a training, and the listener of its history.

    Args:
        path: a safetensors file; an existing one is resumed.
        every: updates between two states; the last update of a training is always saved.
        on_row: called with each row of the history.
    """

    def __init__(self, path: Path, *, every: int = 500, on_row: Callable[[Row], None] | None = None) -> None:
        self.path, self.every, self.told = path, every, on_row
        self.settings: dict[str, Any] = {}
        self.beside: dict[str, Stateful] = {}
        self._progress: SequenceProgress | None = None

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, first: int) -> SequenceProgress:
        """Returns the progress of the training, with model, optimizer and all other objects restored; the file is
        read once.

        Raises:
            CorruptRecord: the file cannot be read.
            ConfigError: it is of a training with other settings; the message names them.
            ShapeMismatch: it is of other networks.
        """
        if self._progress is None:
            self._progress = self._load(model, optimizer)
        self._progress.updates = max(self._progress.updates, first)
        return self._progress

    def write(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Writes the whole state, completely or not at all; raises NoSpace or StoreUnavailable where that fails."""
        from safetensors.torch import save

        parts = {
            "model": model.state_dict(),
            "optimizer": optimizer_moments(optimizer),
            **{f"beside/{name}": stateful.state_dict() for name, stateful in self.beside.items()},
        }
        tensors = {
            f"{group}:{name}": value.detach().cpu().contiguous().clone()
            for group, tensors_by_name in parts.items()
            for name, value in tensors_by_name.items()
        }
        progress = self._progress or SequenceProgress()
        row = {
            "done": progress.updates,
            "rows": progress.history,
            "since": progress.recent_losses,
            "settings": self.settings,
        }
        write_atomic(self.path, save(tensors, metadata={"state": json.dumps(row, sort_keys=True)}))

    def _load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> SequenceProgress:
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return SequenceProgress()
        try:
            with safe_open(self.path, framework="pt") as opened:
                row = json.loads((opened.metadata() or {})["state"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            progress, saved_settings = (
                SequenceProgress(int(row["done"]), list(row["rows"]), list(row["since"])),
                dict(row["settings"]),
            )
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(f"{self.path} is not the state of a training job: {error}", offset=0) from error
        current_settings = json.loads(json.dumps(self.settings))
        differing = sorted(
            name
            for name in {*current_settings, *saved_settings}
            if current_settings.get(name) != saved_settings.get(name)
        )
        if differing:
            saved_values, current_values = (
                {name: row.get(name) for name in differing} for row in (saved_settings, current_settings)
            )
            raise ConfigError(
                f"{self.path} belongs to a training job with other settings",
                value=saved_values,
                expected=current_values,
                hint="use another folder",
            )
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            group, _, name = key.partition(":")
            parts.setdefault(group, {})[name] = value
        try:
            model.load_state_dict(parts.get("model", {}))
            load_moments(optimizer, parts.get("optimizer", {}))
            for name, stateful in self.beside.items():
                stateful.load_state_dict(parts.get(f"beside/{name}", {}))
        except (RuntimeError, KeyError, ValueError) as error:
            raise ShapeMismatch(f"{self.path} belongs to other networks", value=str(error)) from error
        return progress


def configure_checkpoint(
    checkpoint: SequenceCheckpoint | None, config: Config, data: str, **beside: Stateful
) -> SequenceCheckpoint | None:
    """Configures a checkpoint with the settings and data digest of a training, and the objects that change with the
    model.
    """
    if checkpoint is not None:
        checkpoint.settings, checkpoint.beside = {**redact(version_1_values(config)), "data": data}, dict(beside)
    return checkpoint


def optimizer_moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Returns the moments of each parameter, by number and name; empty before the optimizer's first step."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}/{name}": value
        for number, moments_by_name in state.items()
        for name, value in moments_by_name.items()
    }


def load_moments(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Restores the moments that `optimizer_moments` returned."""
    state_by_number: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        number, _, name = key.partition("/")
        state_by_number.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict({"state": state_by_number, "param_groups": optimizer.state_dict()["param_groups"]})
