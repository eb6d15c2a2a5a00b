"""Evaluation sets that are known: where each comes from, its licence, and the hash that pins it.

One TOML file a set lies in `manifests/`. Nothing of a set is shipped; you name the folder where your copy lies, and a
copy is read only after its hash is that of the manifest.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path

from evolvent.errors import AccessDenied, ConfigError, HashMismatch, Problem, unknown

__all__ = ["Manifest", "manifests", "sha256_of", "verified"]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """One evaluation set.

    Args:
        name: how it is asked for.
        title: what it is.
        source, revision: the repository and the commit it was taken from.
        file: its path there; a copy is looked for by the last part of it.
        sha256: of the file, 64 hex digits, or as many of the first as are known, at least 16. "": this library has not
            seen the file, so that its rows are counted and nothing is compared; `file` may then be a folder.
        items: how many rows it has.
        licence: by its SPDX name; "unknown" where nobody has said.
        commercial: whether the licence allows every use; others need your word.
        world: the world that reads it.
    """

    name: str
    title: str
    source: str
    revision: str
    file: str
    sha256: str
    items: int
    licence: str
    commercial: bool
    world: str


@cache
def manifests() -> Mapping[str, Manifest]:
    """All known sets by name."""
    found = {}
    for entry in sorted(files("evolvent.worlds").joinpath("manifests").iterdir(), key=lambda one: one.name):
        row = tomllib.loads(entry.read_text(encoding="utf-8"))
        found[row["name"]] = Manifest(**{field.name: row[field.name] for field in fields(Manifest)})
    return found


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def verified(name: str, root: Path, *, accept_licence: bool = False) -> Path:
    """The file of a known set in a folder (or the file itself), with the right hash. Nothing is parsed here.

    Of a set without a known hash: its file or folder in that folder, or else what was named.

    Args:
        accept_licence: your word that you may use a set whose licence does not allow every use.
    Raises:
        ConfigError: an unknown name, or no such file there. AccessDenied: a licence that needs your word.
        HashMismatch: the file is another one.
    """
    known = manifests()
    if name not in known:
        raise ConfigError([unknown("evaluation set", name, known)])
    manifest = known[name]
    if not (manifest.commercial or accept_licence):
        raise AccessDenied(
            f"the licence of {name} is {manifest.licence}",
            value="no consent",
            expected="your word that you may use it",
            hint="--accept_licence",
        )
    path = _found(manifest, root) if manifest.sha256 else _unpinned(manifest, root)
    if not manifest.sha256:
        return path
    digest = sha256_of(path)
    if not digest.startswith(manifest.sha256):
        hint = f"take {manifest.file} at {manifest.revision}"
        said = f"{path.name} is not the {name} of {manifest.source}"
        raise HashMismatch(said, value=digest[:20], expected=manifest.sha256[:20], hint=hint)
    return path


def _found(manifest: Manifest, root: Path) -> Path:
    if root.is_file():
        return root
    last = Path(manifest.file).name
    found = sorted(root.rglob(last)) if root.is_dir() else []
    if not found:
        where = f"{manifest.file} of {manifest.source} at {manifest.revision}"
        raise ConfigError([Problem(str(root), f"holds no {last}", f"get {where}")])
    same = [path for path in found if sha256_of(path).startswith(manifest.sha256)]
    return (same or found)[0]


def _unpinned(manifest: Manifest, root: Path) -> Path:
    inner = root / Path(manifest.file).name
    if not root.exists():
        where = f"{manifest.file} of {manifest.source}"
        raise ConfigError([Problem(str(root), "is not there", f"get {where}")])
    return inner if inner.exists() else root
