"""The state of a sequence policy's training in one file: begun again, it goes on to the same result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evolvent.config import Config, as_dict
from evolvent.errors import ConfigError, CorruptRecord, ShapeMismatch
from evolvent.files import write_atomic

__all__ = ["Keeping", "Progress", "Stateful", "begun", "load_moments", "moments"]

Row = Mapping[str, float]


class Stateful(Protocol):
    """Something beside the model that changes while it learns: a lagging network, a temperature."""

    def state_dict(self) -> dict[str, Tensor]:
        """All of it, by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> Any:
        """Back to what `state_dict` gave."""
        ...


@dataclass
class Progress:
    """How far a training is: updates that were made, the rows of its history, losses since the last row."""

    done: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    since: list[float] = field(default_factory=list)


class Keeping:
    """Where a training is kept, and who is told how it goes.

    Args:
        path: a safetensors file; what is there is taken up.
        every: updates between two states; the last update of a training is always kept.
        told: called with each row of the history.
    """

    def __init__(self, path: Path, *, every: int = 500, told: Callable[[Row], None] | None = None) -> None:
        self.path, self.every, self.told = path, every, told
        self.settings: dict[str, Any] = {}
        self.beside: dict[str, Stateful] = {}
        self._progress: Progress | None = None

    def taken_up(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, first: int) -> Progress:
        """Where the training is, with model, optimizer and all beside them put back to it; the file is read once.

        Raises:
            CorruptRecord: a file that cannot be read. ConfigError: of a training with other settings, naming them.
            ShapeMismatch: of other networks.
        """
        if self._progress is None:
            self._progress = self._read(model, optimizer)
        self._progress.done = max(self._progress.done, first)
        return self._progress

    def write(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write all of it, whole or not at all; NoSpace or StoreUnavailable where that fails."""
        from safetensors.torch import save

        parts = {
            "model": model.state_dict(),
            "optimizer": moments(optimizer),
            **{f"beside/{name}": one.state_dict() for name, one in self.beside.items()},
        }
        tensors = {
            f"{part}:{name}": value.detach().contiguous().clone()
            for part, named in parts.items()
            for name, value in named.items()
        }
        progress = self._progress or Progress()
        row = {"done": progress.done, "rows": progress.rows, "since": progress.since, "settings": self.settings}
        write_atomic(self.path, save(tensors, metadata={"state": json.dumps(row, sort_keys=True)}))

    def _read(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return Progress()
        try:
            with safe_open(self.path, framework="pt") as opened:
                row = json.loads((opened.metadata() or {})["state"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            progress, kept = Progress(int(row["done"]), list(row["rows"]), list(row["since"])), dict(row["settings"])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(f"{self.path} is no state of a training: {error}", offset=0) from error
        given = json.loads(json.dumps(self.settings))
        other = sorted(name for name in {*given, *kept} if given.get(name) != kept.get(name))
        if other:
            there, here = ({name: row.get(name) for name in other} for row in (kept, given))
            raise ConfigError(
                f"{self.path} is the state of a training with other settings",
                value=there,
                expected=here,
                hint="give another folder",
            )
        parts: dict[str, dict[str, Tensor]] = {}
        for whole, value in tensors.items():
            part, _, name = whole.partition(":")
            parts.setdefault(part, {})[name] = value
        try:
            model.load_state_dict(parts.get("model", {}))
            load_moments(optimizer, parts.get("optimizer", {}))
            for name, one in self.beside.items():
                one.load_state_dict(parts.get(f"beside/{name}", {}))
        except (RuntimeError, KeyError, ValueError) as error:
            raise ShapeMismatch(f"{self.path} is the state of other networks", value=str(error)) from error
        return progress


def begun(keep: Keeping | None, config: Config, data: str, **beside: Stateful) -> Keeping | None:
    """Tell it what the training depends on (settings, and the digest of its data) and what changes with the model."""
    if keep is not None:
        keep.settings, keep.beside = {**as_dict(config), "data": data}, dict(beside)
    return keep


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers of each parameter, by number and name; nothing before its first step."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, named in state.items() for name, value in named.items()}


def load_moments(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Back to what `moments` gave."""
    found: dict[int, dict[str, Tensor]] = {}
    for whole, value in state.items():
        number, _, name = whole.partition("/")
        found.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict({"state": found, "param_groups": optimizer.state_dict()["param_groups"]})
