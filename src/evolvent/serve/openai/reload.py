"""New weights for a policy that is served: a trainer writes a model folder, and the server takes it over.

The request has SGLang's form, `POST /update_weights_from_disk {"model_path": FOLDER}`, so that a trainer speaks to
either. What may be named lies inside one root folder that whoever started the server chose, holds safetensors alone,
and is the model that is served with other weights: same tokenizer, same tensors. Nothing else is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evolvent.errors import ConfigError, Incomplete, Problem, ShapeMismatch, UnsafePath, VocabularyMismatch
from evolvent.files import safe_join

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Reload", "handed_over", "read_reload"]

_LONGEST = 4096  # characters of a path
_FILES = 4096  # of a model folder; a large model has a few hundred


class Reload(BaseModel):
    """The body: where the weights are. Further fields of SGLang's are taken with what they mean here anyway."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    model_path: str = Field(
        min_length=1, max_length=_LONGEST, description="a folder inside the root, or its name there"
    )
    load_format: Literal["auto", "safetensors"] | None = Field(default=None, description="how weights are stored")
    flush_cache: Literal[True] = Field(default=True, description="what was computed with the old weights is dropped")
    abort_all_requests: Literal[False] = Field(default=False, description="requests under way are answered")
    weight_version: str | None = Field(
        default=None, max_length=200, description="what the client calls the weights; here their fingerprint names them"
    )


def read_reload(row: object) -> Reload:
    """The request from its parsed body. Raises ConfigError: every mistake at once."""
    if not isinstance(row, Mapping):
        raise ConfigError([Problem("body", f"no object: {type(row).__name__}", '{"model_path": ...}')])
    try:
        return Reload.model_validate(row)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(".".join(map(str, one["loc"]))[:80] or "body", f"{one['msg']}, got {one['input']!r:.80}")
                for one in error.errors(include_url=False, include_context=False)[:8]
            ]
        ) from error


def handed_over(root: Path, path: str, served: Policy) -> Policy:
    """The policy in a folder, ready to be served in place of another: on its device, in its precision.

    Args:
        root: folders outside are refused, by whatever spelling or link.
        path: as the client wrote it: absolute, or relative to the root.
        served: what is served now.
    Raises:
        UnsafePath: outside the root. UnsafeFile: pickled weights, or code. ConfigError: no such folder, or an adapter.
        Incomplete: a folder that is not whole. VocabularyMismatch, ShapeMismatch: another model than is served.
    """
    from evolvent.models.policy import load_policy
    from evolvent.models.tuned import FILES

    folder = _inside(root, path)
    if (folder / FILES[0]).exists():
        raise ConfigError(
            "an adapter was handed over",
            value=path,
            expected="a whole model",
            hint="merge it first: an adapter names its base, which may lie anywhere",
        )
    found = load_policy(folder, context=served.limit)
    _check_same(found, served)
    weight = next(iter(served.model.parameters()))
    model = found.model.to(device=weight.device, dtype=weight.dtype)
    return replace(found, model=model, value_head=None)


def _inside(root: Path, path: str) -> Path:
    """The folder that a client named. Raises UnsafePath where it, or a file in it, lies outside the root."""
    base = root.resolve()
    name = next((path[len(str(one)) + 1 :] for one in (root, base) if path.startswith(f"{one}/")), path)
    folder = safe_join(base, name.rstrip("/"))
    files = sorted(folder.iterdir())[: _FILES + 1] if folder.is_dir() else []
    outside = [file.name for file in files if not file.resolve().is_relative_to(base)]
    for index in folder.glob("*.index.json"):  # it names the files that hold the tensors
        outside += [name for name in _shards(index) if name not in {file.name for file in files}]
    if outside or len(files) > _FILES:
        what = f"{outside[0][:200]} is not in it" if outside else f"more than {_FILES} files"
        raise UnsafePath("a model folder that is not taken", value=name[:200], hint=f"refused because {what}")
    return folder


def _shards(index: Path) -> list[str]:
    """The names of files in an index of shards. Raises Incomplete: it is none."""
    try:
        row = json.loads(index.read_text(encoding="utf-8"))
        return sorted({str(name) for name in row["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Incomplete(f"{index.name} is no index of weights", value=f"{type(error).__name__}: {error}") from error


def _check_same(found: Policy, served: Policy) -> None:
    """Refuse what is another model: conversations under way have tokens of the one that is served."""
    if found.dialect.name != served.dialect.name or found.tokenizer.get_vocab() != served.tokenizer.get_vocab():
        raise VocabularyMismatch(
            "the weights belong to another tokenizer than is served",
            hint="restart the server with that model",
            value=f"{len(found.tokenizer)} tokens, dialect {found.dialect.name}",
            expected=f"{len(served.tokenizer)} tokens, dialect {served.dialect.name}",
        )
    have, want = _shapes(found.model), _shapes(served.model)
    wrong = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
    if wrong:
        raise ShapeMismatch(
            f"the weights belong to another model than is served: {wrong[0]} differs",
            value=have.get(wrong[0], "no such tensor"),
            expected=want.get(wrong[0], "no such tensor"),
            hint="restart the server with that model",
        )


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, below its adapter where it has one, but its value head's."""
    from evolvent.models.tuned import bare

    named = bare(model).named_parameters()
    return {name: tuple(weight.shape) for name, weight in named if not name.startswith("value_head.")}
