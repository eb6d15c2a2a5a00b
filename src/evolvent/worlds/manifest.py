"""Manifests of known evaluation sets: origin, license and the hash that pins each one.

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

from evolvent.errors import AccessDenied, ConfigError, HashMismatch, Problem, unknown_name_problem

__all__ = ["Manifest", "manifests", "sha256_of", "verify_file"]

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
    """Returns all known sets by name."""
    manifests_by_name = {}
    for entry in sorted(files("evolvent.worlds").joinpath("manifests").iterdir(), key=lambda path: path.name):
        row = tomllib.loads(entry.read_text(encoding="utf-8"))
        manifests_by_name[row["name"]] = Manifest(**{field.name: row[field.name] for field in fields(Manifest)})
    return manifests_by_name


def sha256_of(path: Path) -> str:
    """Computes the SHA-256 of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def verify_file(name: str, root: Path, *, accept_licence: bool = False) -> Path:
    """Returns the file of a known set in a folder (or the file itself) after checking its hash. Nothing is parsed
    here.

    Of a set without a known hash: its file or folder in that folder, or else what was named.

    Args:
        accept_licence: your word that you may use a set whose licence does not allow every use.
    Raises:
        ConfigError: an unknown name, or no such file there. AccessDenied: a licence that needs your word.
        HashMismatch: the file is another one.
    """
    known_manifests = manifests()
    if name not in known_manifests:
        raise ConfigError([unknown_name_problem("evaluation set", name, known_manifests)])
    manifest = known_manifests[name]
    if not (manifest.commercial or accept_licence):
        raise AccessDenied(
            f"the license of {name} is {manifest.licence}",
            value="no consent",
            expected="confirmation that you may use it",
            hint="pass --accept_license",
        )
    path = _find_file(manifest, root) if manifest.sha256 else _find_unpinned_file(manifest, root)
    if not manifest.sha256:
        return path
    digest = sha256_of(path)
    if not digest.startswith(manifest.sha256):
        hint = f"download {manifest.file} at {manifest.revision}"
        message = f"{path.name} is not the {name} of {manifest.source}"
        raise HashMismatch(message, value=digest[:20], expected=manifest.sha256[:20], hint=hint)
    return path


def _find_file(manifest: Manifest, root: Path) -> Path:
    if root.is_file():
        return root
    file_name = Path(manifest.file).name
    matches = sorted(root.rglob(file_name)) if root.is_dir() else []
    if not matches:
        origin = f"{manifest.file} of {manifest.source} at {manifest.revision}"
        raise ConfigError([Problem(str(root), f"does not hold {file_name}", f"download {origin}")])
    intact_copies = [path for path in matches if sha256_of(path).startswith(manifest.sha256)]
    return (intact_copies or matches)[0]


def _find_unpinned_file(manifest: Manifest, root: Path) -> Path:
    candidate = root / Path(manifest.file).name
    if not root.exists():
        origin = f"{manifest.file} of {manifest.source}"
        raise ConfigError([Problem(str(root), "does not exist", f"download {origin}")])
    return candidate if candidate.exists() else root
