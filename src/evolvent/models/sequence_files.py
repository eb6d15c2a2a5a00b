"""Sequence policies as safetensors and JSON, and back; nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from evolvent.trajectory import JsonObject

try:
    import torch
    from torch import nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence policy") from error

from evolvent.errors import CheckpointError, CorruptRecord, EvolventError, Incomplete, ShapeMismatch
from evolvent.files import write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["HasLayers", "load_sequence", "raise_incomplete", "save_sequence"]

_WEIGHTS, _SHAPE = "sequence.safetensors", "sequence.json"
_FORMAT = 1
M = TypeVar("M", bound=nn.Module)


class HasLayers(Protocol):
    """The shape of a model, a dataclass; its layers bound what a file can ask for."""

    @property
    def layers(self) -> int:
        """Returns the number of layers."""
        ...


def save_sequence(model: nn.Module, shape: DataclassInstance, folder: Path, *, extra: JsonObject | None = None) -> None:
    """Writes the weights as safetensors, the shape (a dataclass) and `extra` (JSON values) as JSON.

    Raises:
        NoSpace, StoreUnavailable: where that fails.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().contiguous().clone() for name, value in model.state_dict().items()}
    row = {"format": _FORMAT, "kind": type(model).__name__, "shape": asdict(shape), "extra": dict(extra or {})}
    write_atomic(folder / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomic(folder / _SHAPE, json.dumps(row, indent=1, sort_keys=True, allow_nan=False))


def load_sequence(kind: type[M], make: Callable[..., HasLayers], folder: Path) -> tuple[M, JsonObject]:
    """Reads a model that `save_sequence` wrote, in evaluation mode, and its extra values.

    Args:
        kind: the model's class, `kind(shape)`. make: the shape's class, by its fields.
    Raises:
        Incomplete: no such folder, or one whose files say nothing, or of another kind. CorruptRecord: weights that
            cannot be read. ShapeMismatch: weights of another shape; nothing of the described size is made before.
    """
    path = folder / _SHAPE
    with raise_incomplete(folder):
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["format"] != _FORMAT or row["kind"] != kind.__name__:
            raise Incomplete(
                f"{path} holds another kind of policy", value=(row["kind"], row["format"]), expected=kind.__name__
            )
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row["shape"].items()}
        shape, extra = make(**fields), dict(row["extra"])
        tensors = _weights(folder / _WEIGHTS)
        if shape.layers > len(tensors):
            raise ShapeMismatch(f"{folder / _WEIGHTS} holds fewer layers", value=len(tensors), expected=shape.layers)
        with torch.device("meta"):  # sizes without memory
            expected = kind(shape).state_dict()
    mismatched = sorted(
        name
        for name in {*tensors, *expected}
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape
    )
    if mismatched:
        raise ShapeMismatch(f"weights in {folder / _WEIGHTS} have the wrong shape", value=mismatched[:5])
    model = kind(shape)
    model.load_state_dict(tensors)
    return model.eval(), extra


@contextmanager
def raise_incomplete(folder: Path) -> Iterator[None]:
    """Converts errors of a missing or wrong description to Incomplete; errors of checkpoints are unchanged."""
    try:
        yield
    except FileNotFoundError as error:
        raise Incomplete(f"{folder} does not hold a sequence policy", expected=f"{_SHAPE} and {_WEIGHTS}") from error
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EvolventError) as error:
        raise Incomplete(f"{folder / _SHAPE} does not describe a sequence policy", value=str(error)) from error


def _weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise CorruptRecord(f"{path} cannot be read: {error}", offset=0) from error
