"""Sequence policies as safetensors and JSON, and back; nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

try:
    from torch import nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a sequence policy") from error

from evolvent.errors import CorruptRecord, EvolventError, Incomplete, ShapeMismatch
from evolvent.files import write_atomic

__all__ = ["load_sequence", "save_sequence"]

_WEIGHTS, _SHAPE = "sequence.safetensors", "sequence.json"
_FORMAT = 1
M = TypeVar("M", bound=nn.Module)


def save_sequence(model: nn.Module, shape: Any, folder: Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write the weights as safetensors, the shape (a dataclass) and `extra` (JSON values) as JSON.

    Raises:
        NoSpace, StoreUnavailable: where that fails.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().contiguous().clone() for name, value in model.state_dict().items()}
    row = {"format": _FORMAT, "kind": type(model).__name__, "shape": asdict(shape),
           "extra": dict(extra or {})}  # fmt: skip
    write_atomic(folder / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomic(folder / _SHAPE, json.dumps(row, indent=1, sort_keys=True, allow_nan=False))


def load_sequence(kind: type[M], make: Callable[..., Any], folder: Path) -> tuple[M, dict[str, Any]]:
    """Read what `save_sequence` wrote: the model, evaluating, and what was kept beside it.

    Args:
        kind: the model's class, `kind(shape)`. make: the shape's class, by its fields.
    Raises:
        Incomplete: no such folder, or one whose files say nothing, or of another kind. CorruptRecord: weights that
            cannot be read. ShapeMismatch: weights of another shape.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = folder / _SHAPE
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["format"] != _FORMAT or row["kind"] != kind.__name__:
            raise Incomplete(f"{path} is of another kind", value=(row["kind"], row["format"]), expected=kind.__name__)
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row["shape"].items()}
        model, extra = kind(make(**fields)), dict(row["extra"])
        tensors = load((folder / _WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise Incomplete(f"{folder} holds no sequence policy", expected=f"{_SHAPE} and {_WEIGHTS}") from error
    except SafetensorError as error:
        raise CorruptRecord(f"{folder / _WEIGHTS} cannot be read: {error}", offset=0) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Incomplete(f"{path} describes no sequence policy", value=str(error)) from error
    except EvolventError as error:
        raise Incomplete(f"{path} describes no sequence policy", value=str(error)) from error
    own = model.state_dict()
    odd = sorted(name for name in {*tensors, *own} if name not in tensors or name not in own
                 or tensors[name].shape != own[name].shape)  # fmt: skip
    if odd:
        raise ShapeMismatch(f"{folder / _WEIGHTS} holds weights of another shape", value=odd[:5])
    model.load_state_dict(tensors)
    return model.eval(), extra
