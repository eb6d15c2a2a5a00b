"""New weights for a served policy: a trainer writes a model folder or an adapter, and the server loads it.

The request has SGLang's form, `POST /update_weights_from_disk {"model_path": FOLDER}`, so that a trainer can use
either server. The folder must lie inside one root folder that the operator of the server chose, hold safetensors alone,
and be the served model with other weights: same tokenizer, same tensors. Everything else is refused.

An adapter is loaded over the served base, whose weights are not read again (`adapters.py`): the body is vLLM's and
SGLang's, `{"lora_name": NAME, "lora_path": FOLDER}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evolvent.errors import ConfigError, Incomplete, Problem, ShapeMismatch, UnsafePath, VocabularyMismatch
from evolvent.files import safe_join
from evolvent.models.dialects import Chat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evolvent.models.policy import Policy

__all__ = [
    "AdapterRequest",
    "ReloadRequest",
    "load_adapted",
    "load_replacement",
    "parse_adapter",
    "parse_model",
    "parse_reload",
]

M = TypeVar("M", bound=BaseModel)
_MAX_PATH_CHARS = 4096  # characters of a path
_MAX_FILES = 4096  # of a model folder; a large model has a few hundred


class ReloadRequest(BaseModel):
    """The body: the folder of the weights. Further fields of SGLang's are accepted with the values that apply here
    anyway.
    """

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    model_path: str = Field(
        min_length=1, max_length=_MAX_PATH_CHARS, description="a folder inside the root, or its name there"
    )
    load_format: Literal["auto", "safetensors"] | None = Field(default=None, description="how weights are stored")
    flush_cache: Literal[True] = Field(default=True, description="what was computed with the old weights is dropped")
    abort_all_requests: Literal[False] = Field(default=False, description="requests under way are answered")
    weight_version: str | None = Field(
        default=None, max_length=200, description="what the client calls the weights; here their fingerprint names them"
    )


class AdapterRequest(BaseModel):
    """The body of a request that loads or unloads an adapter, in the names that vLLM and SGLang share."""

    model_config = ConfigDict(extra="forbid", strict=True)
    lora_name: str = Field(min_length=1, max_length=200, description="what requests call the adapter")
    lora_path: str | None = Field(
        default=None,
        min_length=1,
        max_length=_MAX_PATH_CHARS,
        description="a folder inside the root, or its name there",
    )
    load_inplace: Literal[False] = Field(default=False, description="a name stands for the same weights while it lasts")
    pinned: Literal[False] = Field(default=False, description="adapters that are not used may be dropped")


def parse_adapter(row: object) -> AdapterRequest:
    """Parses the request. Raises ConfigError with every mistake at once."""
    return parse_model(AdapterRequest, row, example='{"lora_name": "step-100", "lora_path": "step-100"}')


def parse_reload(row: object) -> ReloadRequest:
    """Parses the request. Raises ConfigError with every mistake at once."""
    return parse_model(ReloadRequest, row, example='{"model_path": "step-100"}')


def parse_model(model_class: type[M], row: object, *, example: str = "{}") -> M:
    """Parses the body of a route of our own. Raises ConfigError with every mistake at once."""
    if not isinstance(row, Mapping):
        raise ConfigError(
            [Problem("body", f"got {type(row).__name__}, expected a JSON object", f"for example {example}")]
        )
    try:
        return model_class.model_validate(row)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(
                    ".".join(map(str, problem["loc"]))[:80] or "body", f"{problem['msg']}, got {problem['input']!r:.80}"
                )
                for problem in error.errors(include_url=False, include_context=False)[:8]
            ]
        ) from error


def load_replacement(root: Path, path: str, served: Policy) -> Policy:
    """Loads the policy of a folder to replace another: on its device, in its precision.

    Args:
        root: folders outside are refused, whatever the spelling or links.
        path: path from the client: absolute, or relative to the root.
        served: the policy that is served now.
    Raises:
        UnsafePath: outside the root. UnsafeFile: pickled weights, or code. ConfigError: no such folder, or an adapter.
        Incomplete: files are missing. VocabularyMismatch, ShapeMismatch: another model than the served one.
    """
    from evolvent.models.policy import load_policy
    from evolvent.models.tuned import FILES

    folder = _resolve_folder(root, path)
    if (folder / FILES[0]).exists():
        raise ConfigError(
            "the folder holds an adapter",
            value=path,
            expected="a complete model",
            hint="load it with /v1/load_lora_adapter, or merge it into its base first",
        )
    history = served.dialect.history if isinstance(served.dialect, Chat) else None
    policy = load_policy(folder, history=history, context=served.limit)
    _check_compatible(policy, served)
    weight = next(iter(served.model.parameters()))
    model = policy.model.to(device=weight.device, dtype=weight.dtype)
    return replace(policy, model=model, value_head=None)


def load_adapted(root: Path, path: str, served: Policy) -> Policy:
    """Loads the adapter of a folder over the served base, whose weights both share.

    Args:
        root: folders outside are refused, whatever the spelling or links.
        path: path from the client: absolute, or relative to the root.
        served: the policy that is served; an adapter of its own is left away.
    Raises:
        UnsafePath: outside the root. UnsafeFile: pickled weights. ConfigError: no adapter, or settings that are not
            understood. Incomplete: files are missing. ShapeMismatch: made for another base than the served one.
    """
    from evolvent.models.adapter_notes import read_adapter_note
    from evolvent.models.tuned import FILES, attach_adapter, base_digest, strip_adapter

    folder = _resolve_folder(root, path)
    if not (folder / FILES[0]).is_file():
        raise ConfigError("the folder holds no adapter", value=path, expected=f"a folder with {FILES[0]}")
    note, base = read_adapter_note(folder), strip_adapter(served.model)
    weight = next(iter(base.parameters()))
    expected = note.base_digests.get(str(weight.dtype).removeprefix("torch."))
    if expected is not None and expected != (digest := base_digest(base)):
        raise ShapeMismatch(
            "the adapter's base differs from the served one",
            value=f"base {expected}",
            expected=f"base {digest}",
            hint="serve the model that the adapter is trained on",
        )
    model = attach_adapter(base, folder).to(weight.device)
    return replace(served, model=model, version=note.version, value_head=None, base=None)


def _resolve_folder(root: Path, path: str) -> Path:
    """Returns the folder that a client named. Raises UnsafePath if it, or a file in it, lies outside the root."""
    base = root.resolve()
    name = next((path[len(str(prefix)) + 1 :] for prefix in (root, base) if path.startswith(f"{prefix}/")), path)
    if name.startswith("/"):
        raise UnsafePath(
            "the folder lies outside of the one that this server takes weights from",
            value=name[:200],
            hint="write the weights below the folder of its --reload, such as --hand_over FOLDER",
        )
    folder = safe_join(base, name.rstrip("/"))
    files = sorted(folder.iterdir())[: _MAX_FILES + 1] if folder.is_dir() else []
    outside = [file.name for file in files if not file.resolve().is_relative_to(base)]
    for index in folder.glob("*.index.json"):  # it names the files that hold the tensors
        outside += [name for name in _read_shard_names(index) if name not in {file.name for file in files}]
    if outside or len(files) > _MAX_FILES:
        reason = f"{outside[0][:200]} is outside the folder" if outside else f"more than {_MAX_FILES} files"
        raise UnsafePath("refused model folder", value=name[:200], hint=f"refused because {reason}")
    return folder


def _read_shard_names(index: Path) -> list[str]:
    """Reads the names of files in an index of shards. Raises Incomplete if it is invalid."""
    try:
        row = json.loads(index.read_text(encoding="utf-8"))
        return sorted({str(name) for name in row["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Incomplete(
            f"{index.name} is not an index of weights", value=f"{type(error).__name__}: {error}"
        ) from error


def _check_compatible(policy: Policy, served: Policy) -> None:
    """Refuses another model: open conversations have tokens of the served one."""
    if policy.dialect.name != served.dialect.name or policy.tokenizer.get_vocab() != served.tokenizer.get_vocab():
        raise VocabularyMismatch(
            "the weights belong to another tokenizer than the served one",
            hint="restart the server with that model",
            value=f"{len(policy.tokenizer)} tokens, dialect {policy.dialect.name}",
            expected=f"{len(served.tokenizer)} tokens, dialect {served.dialect.name}",
        )
    shapes, served_shapes = _tensor_shapes(policy.model), _tensor_shapes(served.model)
    differing = sorted(
        name for name in shapes.keys() | served_shapes.keys() if shapes.get(name) != served_shapes.get(name)
    )
    if differing:
        raise ShapeMismatch(
            f"the weights belong to another model than the served one: {differing[0]} differs",
            value=shapes.get(differing[0], "a missing tensor"),
            expected=served_shapes.get(differing[0], "a missing tensor"),
            hint="restart the server with that model",
        )


def _tensor_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of the base model, without those of an adapter and of the value head."""
    from evolvent.models.nf4 import list_nf4_layers
    from evolvent.models.tuned import strip_adapter

    base = strip_adapter(model)
    shapes = {name: tuple(weight.shape) for name, weight in base.named_parameters()}
    shapes |= {
        f"{name}.weight": (layer.out_features, layer.in_features) for name, layer in list_nf4_layers(base).items()
    }
    return {name: shape for name, shape in shapes.items() if not name.startswith("value_head.")}
