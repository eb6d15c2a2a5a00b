"""The note of an adapter that is handed over alone: its version, its label, and the base that it belongs on.

It is the `evolvent.json` of a folder in peft's format. The digests of the base tell a server of ours, which may have
loaded the base with other numbers, whether it serves the model that the adapter is trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from evolvent.errors import Incomplete
from evolvent.models.tuned import base_digest, strip_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["AdapterNote", "compute_base_digests", "read_adapter_note", "write_adapter_note"]

_NOTE = "evolvent.json"
_DTYPES = ("float32", "bfloat16", "float16")  # of a served base, which rounds the trained one


@dataclass(frozen=True, slots=True)
class AdapterNote:
    """The facts of an adapter that its folder holds.

    Args:
        version: of the policy.
        label: `evolvent-vVERSION-DIGEST` of its weights; "": not known.
        base_digests: of the weights below it, by the numbers that they are loaded with; empty: not known.
    """

    version: int = 0
    label: str = ""
    base_digests: Mapping[str, str] = field(default_factory=dict)


def compute_base_digests(model: PreTrainedModel) -> dict[str, str]:
    """Returns the digests of the weights below an adapter, by the numbers that a server may have loaded them with."""
    base = strip_adapter(model)
    return {name: base_digest(base, dtype=getattr(torch, name)) for name in _DTYPES}


def write_adapter_note(folder: Path, note: AdapterNote, *, dialect: str) -> None:
    """Writes the note of an adapter, which `load_policy` reads too."""
    text = json.dumps({"format": 1, "dialect": dialect, **asdict(note)}, indent=1)
    (folder / _NOTE).write_text(text + "\n", encoding="utf-8")


def read_adapter_note(folder: Path) -> AdapterNote:
    """Reads the note of an adapter; adapters of other programs have none. Raises Incomplete for a damaged one."""
    path = folder / _NOTE
    if not path.exists():
        return AdapterNote()
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        digests = row.get("base_digests") or {}
        return AdapterNote(
            int(row.get("version", 0)), str(row.get("label", "")), {str(key): str(digests[key]) for key in digests}
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Incomplete(f"{path} is not the note of an adapter", value=f"{type(error).__name__}: {error}") from error
