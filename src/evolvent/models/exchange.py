"""Import and export of Hugging Face folders, for models that need not fit into one process.

A model that is already laid over ranks is filled from a folder, each rank reading its own parts; a checkpoint
of any layout becomes an ordinary folder, tensor by tensor, in one process.
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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, Incomplete, MissingExtra, ShapeMismatch
from evolvent.files import disk_errors, sync_folder
from evolvent.models.heads import ValueHead
from evolvent.models.pieces import Entry, Index, fill_all, is_dtensor
from evolvent.models.policy import Policy
from evolvent.models.tuned import kind_of
from evolvent.models.writing import StoredCheckpoint, group_shards, open_checkpoint, write_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["export_hf", "import_hf", "write_hf"]

_SHARD_BYTES = 5 * 10**9
_HEAD = "value_head."  # how the names of a value head begin in a checkpoint's model


# ---------------------------------------------------------------------- in


def import_hf(folder: Path, model: nn.Module, *, name_in_folder: Callable[[str], str | None] = str) -> None:
    """Fills a model from a Hugging Face folder, in place, before its optimizer is made.

    The model may be sharded, tensor parallel, or one stage of a pipeline; its storage must exist (`to_empty`). Each
    rank reads only the parts that it holds. Tied weights are one tensor afterwards where they can be, and equal in
    any case. Buffers that no folder holds, as those of rotary embeddings, are computed again.

    Args:
        name_in_folder: the folder's name for a parameter or buffer of this model; None: it is not in the folder,
            and stays.
    Raises:
        Incomplete: a tensor is missing, a file cannot be read, or a buffer cannot be computed. ShapeMismatch:
            another model's weights. ConfigError: parameters on the meta device.
    """
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    index = Index.of_folder(folder)
    _tie_parameters(model, tied)
    names = {
        name: folder_name for name, _ in _saved_tensors(model) if (folder_name := name_in_folder(name)) is not None
    }
    sources = {name: _find_source(folder_name, index, tied) for name, folder_name in names.items()}
    missing = sorted(name for name, source in sources.items() if source not in index)
    if missing:
        raise Incomplete(f"weights are missing in {folder}", value=missing[:5])
    weights = {name: tensor for name, tensor in _saved_tensors(model) if name in sources}
    meta_names = [name for name, tensor in weights.items() if tensor.is_meta]
    if meta_names:
        raise ConfigError(
            "the model is on the meta device",
            value=meta_names[:5],
            hint="apply the parallel layout, then call model.to_empty(device=...)",
        )
    fill_all(((sources[name], tensor) for name, tensor in weights.items()), index)
    _compute_buffers(model)


def _saved_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters, tied ones once, and the buffers that belong to a saved model."""
    yield from model.named_parameters()
    for module_name, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{module_name}.{name}" if module_name else name, buffer


def _find_source(name: str, index: Index, tied: Mapping[str, str]) -> str:
    """Returns the name under which the index has a tensor: its own, or that of a tied tensor."""
    if name in index:
        return name
    first = tied.get(name, name)
    return next(
        (
            candidate
            for candidate in (first, *(n for n, target in tied.items() if target == first))
            if candidate in index
        ),
        name,
    )


def _tie_parameters(model: nn.Module, tied: Mapping[str, str]) -> None:
    """Shares tied parameters again, which `to_empty` separates; a stage with one of them keeps it."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, first in tied.items():
        first_tensor, tied_tensor = parameters.get(first), parameters.get(name)
        if first_tensor is None or tied_tensor is None or first_tensor is tied_tensor:
            continue
        split = [part.placements if is_dtensor(part) else None for part in (first_tensor, tied_tensor)]
        if split[0] == split[1]:
            module_name, _, last = name.rpartition(".")
            setattr(model.get_submodule(module_name), last, first_tensor)


def _compute_buffers(model: nn.Module) -> None:
    """Computes unsaved buffers: a new module of the same class and configuration has their values."""
    for module_name, module in model.named_modules():
        names = sorted(module._non_persistent_buffers_set)
        buffers = {name: buffer for name, buffer in module.named_buffers(recurse=False) if name in names}
        if not buffers:
            continue
        config = getattr(module, "config", None)
        if config is None:
            raise Incomplete(
                f"cannot restore buffers of {module_name or 'the model'}",
                value=sorted(buffers),
            )
        with torch.device("cpu"):
            fresh = dict(type(module)(config).named_buffers(recurse=False))
        for name, buffer in buffers.items():
            buffer.copy_(fresh[name])


# ---------------------------------------------------------------------- out


def export_hf(
    checkpoint: Path, policy: Policy, target: Path, *, shard_bytes: int = _SHARD_BYTES, dtype: torch.dtype | None = None
) -> None:
    """Writes an ordinary Hugging Face folder from a checkpoint of any layout; one process, without the model.

    The folder appears complete, by one rename. `from_pretrained` and `load_policy` read the trained weights, bit
    for bit.

    Args:
        policy: gives all but the weights: config, generation config, tokenizer, dialect, version. Its model may be
            laid over ranks or on the meta device. What the checkpoint lacks (frozen weights) comes from its base
            folder.
        target: the new folder.
        shard_bytes: maximum size of a weight file, unless one tensor has more.
        dtype: of the weights; None: as trained.
    Raises:
        ConfigError: `target` exists, or the policy has an adapter. Incomplete, HashMismatch: the checkpoint is
            damaged, or lacks weights. ShapeMismatch: it is of another model. NoSpace, StoreUnavailable: it cannot
            be written.
    """
    if target.exists():
        raise ConfigError(
            "the export folder already exists", value=str(target), expected="a folder that does not exist"
        )
    temporary = target.with_name(f".writing-{target.name}-{secrets.token_hex(4)}")
    with disk_errors(target):
        temporary.mkdir(parents=True)
        try:
            write_hf(checkpoint, policy, temporary, shard_bytes=shard_bytes, dtype=dtype)
            for path in temporary.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(target.parent)


def write_hf(
    checkpoint: Path, policy: Policy, folder: Path, *, shard_bytes: int = _SHARD_BYTES, dtype: torch.dtype | None = None
) -> None:
    """Writes the same into an existing empty folder, such as a snapshot's; see `export_hf`."""
    if kind_of(policy.model) is not None:
        raise ConfigError(
            "the checkpoint holds only an adapter",
            value=kind_of(policy.model),
            hint="save the policy instead: it writes the adapter and the path of its base",
        )
    stored = open_checkpoint(checkpoint)
    if "model" not in stored.groups:
        raise Incomplete(f"{checkpoint} does not hold a model", value=sorted(stored.groups))
    for file in stored.group_files(("model",)):
        if (fault := stored.find_fault(file)) is not None:
            raise fault
    weights = _collect_weights(stored, policy)
    model = _StreamedModel(policy.model, weights, shard_bytes, dtype)
    head = _load_value_head(stored.groups["model"], policy)
    with disk_errors(folder):
        replace(policy, model=model, value_head=head, base=None).save(folder)


Weights = dict[str, tuple[Entry, Callable[[], Tensor]]]


def _collect_weights(stored: StoredCheckpoint, policy: Policy) -> Weights:
    """Collects every tensor of the model in its order, tied ones once, from the checkpoint or the policy's base."""
    meta_model = _meta_model(policy.model.config)
    tied, index = meta_model.all_tied_weights_keys or {}, stored.groups["model"]
    base = Index.of_folder(policy.base.folder) if policy.base is not None else Index(stored.path, {})
    weights: Weights = {}
    for name, tensor in _saved_tensors(meta_model):
        source_index = index if _find_source(name, index, tied) in index else base
        source = _find_source(name, source_index, tied)
        if source not in source_index:
            raise Incomplete(
                f"{stored.path} lacks tensor {name!r}", value=f"{len(index)} tensors", expected=tuple(tensor.shape)
            )
        entry = source_index[source]
        if entry.shape != tuple(tensor.shape):
            raise ShapeMismatch(
                f"shape of tensor {name!r} in {stored.path} differs from the model's",
                value=entry.shape,
                expected=tuple(tensor.shape),
            )
        weights[name] = entry, functools.partial(source_index.whole, source)
    extra = [name for name in index if name not in weights and name not in tied and not name.startswith(_HEAD)]
    if extra:
        raise ShapeMismatch(f"{stored.path} has tensors that the model does not have", value=sorted(extra)[:5])
    return weights


def _meta_model(config: Any) -> Any:
    """Builds the model of a config, with names and shapes and no storage."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("train", "a language model") from error
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))


def _load_value_head(index: Index, policy: Policy) -> nn.Module | None:
    """Loads the trained head, or returns the policy's own."""
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
class _StreamedModel:
    """A stand-in for a model where a policy is saved: its weights are read and written one by one."""

    model: PreTrainedModel
    weights: Weights
    shard_bytes: int
    dtype: torch.dtype | None

    @property
    def config(self) -> Any:
        return self.model.config

    def save_pretrained(self, folder: Path) -> None:
        """Saves config, generation config, and weights under the names that transformers expects."""
        specs = {name: (self._saved_dtype(entry.dtype), entry.shape) for name, (entry, _) in self.weights.items()}
        floating = [dtype for dtype, _ in specs.values() if dtype.is_floating_point]
        config = copy.deepcopy(self.config)
        config.dtype = functools.reduce(torch.promote_types, floating)  # what `dtype="auto"` loads: nothing is lost
        config.architectures = [type(_meta_model(self.config)).__name__]
        config.save_pretrained(folder)
        generation = getattr(self.model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)
        sizes = {name: dtype.itemsize * torch.Size(shape).numel() for name, (dtype, shape) in specs.items()}
        groups = list(group_shards(sizes, self.shard_bytes))
        weight_map: dict[str, str] = {}
        for number, names in enumerate(groups, 1):
            file = f"model-{number:05d}-of-{len(groups):05d}.safetensors" if len(groups) > 1 else "model.safetensors"
            write_tensors(folder / file, {name: specs[name] for name in names}, self._tensor)
            weight_map |= dict.fromkeys(names, file)
        if len(groups) > 1:
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _saved_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def _tensor(self, name: str) -> Tensor:
        entry, read = self.weights[name]
        return read().to(self._saved_dtype(entry.dtype))
