"""Hugging Face folders in and out, for models that no process need hold whole.

A model that is already laid over ranks is filled from a folder, each rank reading its own parts; a checkpoint of any
layout becomes an ordinary folder, tensor by tensor, in one process.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from evolvent.errors import ConfigError, Incomplete, MissingExtra, ShapeMismatch
from evolvent.files import disk_errors, sync_folder
from evolvent.models.heads import ValueHead
from evolvent.models.pieces import Entry, Index, fill_all
from evolvent.models.policy import Policy
from evolvent.models.stored import Stored, open_checkpoint
from evolvent.models.tuned import kind_of
from evolvent.models.writing import shards, write_tensors

__all__ = ["export_hf", "import_hf", "write_hf"]

_SHARD_BYTES = 5 * 10**9
_HEAD = "value_head."  # how the names of a value head begin in a checkpoint's model


# ---------------------------------------------------------------------- in


def import_hf(folder: Path, model: nn.Module, *, named: Callable[[str], str | None] = str) -> None:
    """Fill a model from a Hugging Face folder, in place, before its optimizer is made.

    The model may be sharded, tensor parallel, or one stage of a pipeline; its storage must exist (`to_empty`). What
    each rank reads is what it holds. Tied weights are one tensor afterwards where they can be, and equal in any case.
    Buffers that no folder holds, as those of rotary embeddings, are computed again.

    Args:
        named: the folder's name for a parameter or buffer of this model; None: it is not in the folder, and stays.
    Raises:
        Incomplete: a tensor is missing, a file cannot be read, or a buffer cannot be computed. ShapeMismatch: another
            model's weights. ConfigError: parameters on the meta device.
    """
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    index = Index.of_folder(folder)
    _tie(model, tied)
    names = {name: found for name, _ in _saved(model) if (found := named(name)) is not None}
    sources = {name: _source(found, index, tied) for name, found in names.items()}
    missing = sorted(name for name, source in sources.items() if source not in index)
    if missing:
        raise Incomplete(f"weights are missing in {folder}", value=missing[:5])
    weights = {name: tensor for name, tensor in _saved(model) if name in sources}
    unmade = [name for name, tensor in weights.items() if tensor.is_meta]
    if unmade:
        raise ConfigError(
            "a model on the meta device has nothing to fill",
            value=unmade[:5],
            hint="lay it out, then model.to_empty(device=...)",
        )
    fill_all(((sources[name], tensor) for name, tensor in weights.items()), index)
    _compute_buffers(model)


def _saved(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, tied ones once, and the buffers that belong to a saved model."""
    yield from model.named_parameters()
    for where, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{where}.{name}" if where else name, buffer


def _source(name: str, index: Index, tied: Mapping[str, str]) -> str:
    """Under which name the index has a tensor: its own, or one that it is tied to."""
    if name in index:
        return name
    first = tied.get(name, name)
    return next((other for other in (first, *(n for n, one in tied.items() if one == first)) if other in index), name)


def _tie(model: nn.Module, tied: Mapping[str, str]) -> None:
    """Make tied parameters one again, which `to_empty` tears apart; a stage that has one of them keeps it."""
    held = dict(model.named_parameters(remove_duplicate=False))
    for name, first in tied.items():
        one, other = held.get(first), held.get(name)
        if one is None or other is None or one is other:
            continue
        split = [part.placements if isinstance(part, DTensor) else None for part in (one, other)]
        if split[0] == split[1]:
            where, _, last = name.rpartition(".")
            setattr(model.get_submodule(where), last, one)


def _compute_buffers(model: nn.Module) -> None:
    """Compute buffers that are not saved: a module of the same class and configuration has them as they should be."""
    for where, module in model.named_modules():
        names = sorted(module._non_persistent_buffers_set)
        held = {name: buffer for name, buffer in module.named_buffers(recurse=False) if name in names}
        if not held:
            continue
        config = getattr(module, "config", None)
        if config is None:
            raise Incomplete(
                f"buffers of {where or 'the model'} are in no folder, and how to compute them is unknown",
                value=sorted(held),
            )
        with torch.device("cpu"):
            fresh = dict(type(module)(config).named_buffers(recurse=False))
        for name, buffer in held.items():
            buffer.copy_(fresh[name])


# ---------------------------------------------------------------------- out


def export_hf(
    checkpoint: Path, policy: Policy, to: Path, *, shard_bytes: int = _SHARD_BYTES, dtype: torch.dtype | None = None
) -> None:
    """Make an ordinary Hugging Face folder of a checkpoint that any layout wrote; one process, without the model.

    The folder appears by one rename, whole. `from_pretrained` and `load_policy` read the weights that were trained, bit
    for bit.

    Args:
        policy: gives all but the weights: config, generation config, tokenizer, dialect, version. Its model may be laid
            over ranks or on the meta device. What the checkpoint lacks (frozen weights) comes from its base folder.
        to: the new folder.
        shard_bytes: most bytes of a weight file, unless one tensor has more.
        dtype: of the weights; None: as trained.
    Raises:
        ConfigError: `to` exists, or the policy has an adapter. Incomplete, HashMismatch: the checkpoint is damaged, or
            lacks weights. ShapeMismatch: it is of another model. NoSpace, StoreUnavailable: it cannot be written.
    """
    if to.exists():
        raise ConfigError("the folder to export to exists", value=str(to), expected="a new name")
    temporary = to.with_name(f".writing-{to.name}-{secrets.token_hex(4)}")
    with disk_errors(to):
        temporary.mkdir(parents=True)
        try:
            write_hf(checkpoint, policy, temporary, shard_bytes=shard_bytes, dtype=dtype)
            for path in temporary.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(temporary)
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(to.parent)


def write_hf(
    checkpoint: Path, policy: Policy, folder: Path, *, shard_bytes: int = _SHARD_BYTES, dtype: torch.dtype | None = None
) -> None:
    """The same into a folder that is there and empty, such as a snapshot's; see `export_hf`."""
    if kind_of(policy.model) is not None:
        raise ConfigError(
            "a checkpoint of an adapter is no whole model",
            value=kind_of(policy.model),
            hint="save the policy: it writes the adapter, and where its base is",
        )
    stored = open_checkpoint(checkpoint)
    if "model" not in stored.groups:
        raise Incomplete(f"{checkpoint} has no model", value=sorted(stored.groups))
    for file in stored.files_of(("model",)):
        if (fault := stored.fault(file)) is not None:
            raise fault
    weights = _weights(stored, policy)
    model = _Streamed(policy.model, weights, shard_bytes, dtype)
    head = _value_head(stored.groups["model"], policy)
    with disk_errors(folder):
        replace(policy, model=model, value_head=head, base=None).save(folder)


Weights = dict[str, tuple[Entry, Callable[[], Tensor]]]


def _weights(stored: Stored, policy: Policy) -> Weights:
    """Every tensor of the model in its order, tied ones once, from the checkpoint or else from the policy's base."""
    whole = _on_meta(policy.model.config)
    tied, index = whole.all_tied_weights_keys or {}, stored.groups["model"]
    base = Index.of_folder(policy.base.folder) if policy.base is not None else Index(stored.path, {})
    weights: Weights = {}
    for name, tensor in _saved(whole):
        found = index if _source(name, index, tied) in index else base
        source = _source(name, found, tied)
        if source not in found:
            raise Incomplete(
                f"{stored.path} has no tensor {name!r}", value=f"{len(index)} tensors", expected=tuple(tensor.shape)
            )
        entry = found[source]
        if entry.shape != tuple(tensor.shape):
            raise ShapeMismatch(
                f"tensor {name!r} of {stored.path} has another shape than the model's",
                value=entry.shape,
                expected=tuple(tensor.shape),
            )
        weights[name] = entry, functools.partial(found.whole, source)
    extra = [name for name in index if name not in weights and name not in tied and not name.startswith(_HEAD)]
    if extra:
        raise ShapeMismatch(f"{stored.path} has tensors that the model does not have", value=sorted(extra)[:5])
    return weights


def _on_meta(config: Any) -> Any:
    """The model of a config, with names and shapes and no storage."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("train", "a language model") from error
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))


def _value_head(index: Index, policy: Policy) -> nn.Module | None:
    """The head that was trained, or else the policy's own."""
    names = [name for name in index if name.startswith(_HEAD)]
    if not names:
        return policy.value_head
    head = ValueHead(int(policy.model.config.hidden_size))
    try:
        head.load_state_dict({name.removeprefix(_HEAD): index.whole(name) for name in names})
    except RuntimeError as error:
        raise ShapeMismatch(f"the value head of {index.folder} does not fit the model", value=str(error)) from error
    return head


@dataclass(frozen=True, slots=True)
class _Streamed:
    """Stands for a model where a policy is saved: its weights go from where they are into the folder, one by one."""

    model: Any
    weights: Weights
    shard_bytes: int
    dtype: torch.dtype | None

    @property
    def config(self) -> Any:
        return self.model.config

    def save_pretrained(self, folder: Path) -> None:
        """Config, generation config, and weights under the names that transformers looks for."""
        specs = {name: (self._type(entry.dtype), entry.shape) for name, (entry, _) in self.weights.items()}
        floating = [dtype for dtype, _ in specs.values() if dtype.is_floating_point]
        config = copy.deepcopy(self.config)
        config.dtype = functools.reduce(torch.promote_types, floating)  # what `dtype="auto"` loads: nothing is lost
        config.architectures = [type(_on_meta(self.config)).__name__]
        config.save_pretrained(folder)
        generation = getattr(self.model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)
        sizes = {name: dtype.itemsize * torch.Size(shape).numel() for name, (dtype, shape) in specs.items()}
        groups = list(shards(sizes, self.shard_bytes))
        places: dict[str, str] = {}
        for number, names in enumerate(groups, 1):
            file = f"model-{number:05d}-of-{len(groups):05d}.safetensors" if len(groups) > 1 else "model.safetensors"
            write_tensors(folder / file, {name: specs[name] for name in names}, self._tensor)
            places |= dict.fromkeys(names, file)
        if len(groups) > 1:
            listed = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")

    def _type(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def _tensor(self, name: str) -> Tensor:
        entry, read = self.weights[name]
        return read().to(self._type(entry.dtype))
