"""Where rows come from: JSON lines, and data sets of Hugging Face. One row after the other, in constant memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, MissingExtra, Problem, SampleInvalid, boundary, unknown
from evolvent.files import disk_errors
from evolvent.learn.rows import Reading, Row
from evolvent.learn.windows import Intake
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

__all__ = ["dataset_rows", "file_digest", "json_lines", "open_dataset", "source_digest", "vocabulary_digest"]


def json_lines(path: Path, *, intake: Intake | None = None, columns: Mapping[str, str] | None = None) -> Iterator[Row]:
    """The rows of a file of JSON lines, named `FILE:LINE` with lines from 1. Blank lines are passed over.

    Args:
        intake: counts lines that are no JSON.
        columns: what is called how in this file: {"prompt": "question", "completion": "answer"}.
    Raises:
        StoreUnavailable: the file cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if intake is not None:
                    intake.rows += 1
                    intake.refuse(where, SampleInvalid("not JSON", value=str(error)))
                continue
            yield where, _renamed(row, columns)


def dataset_rows(
    rows: Iterable[Mapping[str, Any]], *, name: str = "row", columns: Mapping[str, str] | None = None
) -> Iterator[Row]:
    """The rows of a data set (map-style or iterable), named `NAME:INDEX` with indices from 0.

    Args:
        columns: as in `json_lines`.
    Raises:
        SampleInvalid: the data set cannot be read any further.
    """
    with boundary(SampleInvalid, f"data set {name!r} cannot be read"):
        for number, row in enumerate(rows):
            yield f"{name}:{number}", _renamed(row, columns)


def _renamed(row: Any, columns: Mapping[str, str] | None) -> Any:
    if not columns or not isinstance(row, Mapping):
        return row
    return {**row, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}


def open_dataset(path: Path | str, *, split: str = "train") -> Any:
    """A data set from a local folder: one that `save_to_disk` wrote, or files of JSON, Parquet, CSV or text.

    Files are streamed. Nothing is downloaded and no code of the folder is run.

    Raises:
        MissingExtra: `datasets` is not installed. ConfigError: no such folder or split. SampleInvalid: it cannot be
            read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError([Problem("data", f"no such folder: {folder}")])
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("data", "a data set of Hugging Face") from error
    saved = (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()
    with boundary(SampleInvalid, f"{folder} cannot be read as a data set"):
        found = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(str(folder), streaming=True)
    if isinstance(found, Mapping):
        if split not in found:
            raise ConfigError([unknown("split", split, map(str, found), where=str(folder))])
        return found[split]
    return found


# ------------------------------------------------------------------ digests


def file_digest(*paths: Path) -> str:
    """SHA-256 of the files' contents, in this order; a folder counts as its files by name.

    Raises:
        StoreUnavailable: one cannot be read.
    """
    whole = hashlib.sha256()
    for path in paths:
        inner = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in inner:
            with disk_errors(file), file.open("rb") as opened:
                own = hashlib.file_digest(opened, "sha256").hexdigest()
            whole.update(f"{file.name} {own}\n".encode())
    return whole.hexdigest()


def vocabulary_digest(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's words and their ids: policies of one digest read each other's tokens."""
    return hashlib.sha256(canonical_json(tokenizer.get_vocab()).encode()).hexdigest()


def source_digest(data: str, policy: Policy, reading: Reading) -> str:
    """What tokens depend on: the data's digest, how the policy writes text as tokens, and the reading.

    Args:
        data: of the source: `file_digest(path)`, a data set's `_fingerprint`, or a store's `file_digest(store.path)`.
    """
    backend = getattr(policy.tokenizer, "backend_tokenizer", None)
    form = [policy.dialect.name, getattr(policy.tokenizer, "chat_template", None), reading.tokens(policy)]
    rules = backend.to_str() if backend is not None else vocabulary_digest(policy.tokenizer)
    settings = reading.model_dump(mode="json", exclude={"context"})
    return hashlib.sha256(canonical_json([data, form, rules, settings]).encode()).hexdigest()
