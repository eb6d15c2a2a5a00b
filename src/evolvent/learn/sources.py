"""Sources of rows: JSON lines, and Hugging Face data sets. One row after the other, in constant memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolvent.data.jsonl import iterate_lines, parse_json
from evolvent.data.tables import iterate_rows
from evolvent.errors import ConfigError, MissingExtra, Problem, SampleInvalid, boundary, unknown_name_problem
from evolvent.files import disk_errors
from evolvent.identity import version_1_values
from evolvent.learn.rows import ReadingConfig, Row
from evolvent.learn.windows import Intake
from evolvent.models.policy import Policy
from evolvent.trajectory import canonical_json

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "file_digest",
    "open_dataset",
    "read_dataset_rows",
    "read_file_rows",
    "read_json_lines",
    "source_digest",
    "vocabulary_digest",
]


def read_json_lines(
    path: Path, *, intake: Intake | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[Row]:
    """Reads the rows of a file of JSON lines, named `FILE:LINE` with lines from 1. Blank lines are skipped.

    Args:
        intake: counts lines that are not JSON.
        columns: the file's names of columns: {"prompt": "question", "completion": "answer"}.
    Raises:
        StoreUnavailable: the file cannot be read.
    """
    with disk_errors(path), path.open("rb") as file:
        for number, line in iterate_lines(file):
            location = f"{path.name}:{number}"
            try:
                row = parse_json(line)
            except SampleInvalid as error:
                if intake is not None:
                    intake.rows += 1
                    intake.refuse(location, error)
                continue
            yield location, _rename_columns(row, columns)


def read_file_rows(path: Path, *, intake: Intake | None = None) -> Iterator[Row]:
    """Reads the rows of a file of any format, or of a saved data set; see `data.tables.iterate_rows`.

    Args:
        intake: counts rows that cannot be read.
    Raises:
        ConfigError: the file cannot be read.
    """
    for location, row in iterate_rows(path):
        if not isinstance(row, SampleInvalid):
            yield location, row
        elif intake is not None:
            intake.rows += 1
            intake.refuse(location, row)


def read_dataset_rows(
    rows: Iterable[Mapping[str, object]], *, name: str = "row", columns: Mapping[str, str] | None = None
) -> Iterator[Row]:
    """Reads the rows of a data set (map-style or iterable), named `NAME:INDEX` with indices from 0.

    Args:
        columns: as in `read_json_lines`.
    Raises:
        SampleInvalid: the data set cannot be read any further.
    """
    with boundary(SampleInvalid, f"data set {name!r} cannot be read"):
        for number, row in enumerate(rows):
            yield f"{name}:{number}", _rename_columns(row, columns)


def _rename_columns(row: Any, columns: Mapping[str, str] | None) -> Any:
    if not columns or not isinstance(row, Mapping):
        return row
    return {
        **row,
        **{standard_name: row[file_name] for standard_name, file_name in columns.items() if file_name in row},
    }


def open_dataset(path: Path | str, *, split: str = "train") -> Dataset | IterableDataset:
    """Opens a data set from a local folder: one that `save_to_disk` wrote, or files of JSON, Parquet, CSV or text.

    Files are streamed. Nothing is downloaded and no code of the folder is run.

    Raises:
        MissingExtra: `datasets` is not installed.
        ConfigError: the folder or split does not exist.
        SampleInvalid: it cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError([Problem("data", f"folder {folder} not found")])
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("data", "reading a Hugging Face data set") from error
    is_saved_dataset = (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()
    with boundary(SampleInvalid, f"{folder} cannot be read as a data set"):
        dataset = (
            datasets.load_from_disk(str(folder))
            if is_saved_dataset
            else datasets.load_dataset(str(folder), streaming=True)
        )
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise ConfigError([unknown_name_problem("split", split, map(str, dataset), location=str(folder))])
        return dataset[split]
    return dataset


# ------------------------------------------------------------------ digests


def file_digest(*paths: Path) -> str:
    """Computes the SHA-256 of the files' contents, in this order; a folder counts as its files by name.

    Raises:
        StoreUnavailable: a file cannot be read.
    """
    total_digest = hashlib.sha256()
    for path in paths:
        files = sorted(member for member in path.rglob("*") if member.is_file()) if path.is_dir() else [path]
        for file in files:
            with disk_errors(file), file.open("rb") as opened:
                content_digest = hashlib.file_digest(opened, "sha256").hexdigest()
            total_digest.update(f"{file.name} {content_digest}\n".encode())
    return total_digest.hexdigest()


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Computes the SHA-256 of a tokenizer's tokens and ids: policies with the same digest read each other's tokens."""
    return hashlib.sha256(canonical_json(tokenizer.get_vocab()).encode()).hexdigest()


def source_digest(data: str, policy: Policy, config: ReadingConfig) -> str:
    """Computes the digest that tokens depend on: the data's digest, the policy's tokenization of text, and the
    settings.

    Args:
        data: digest of the source: `file_digest(path)`, a data set's `_fingerprint`, or a store's
            `file_digest(store.path)`.
    """
    backend = getattr(policy.tokenizer, "backend_tokenizer", None)
    form = [policy.dialect.name, getattr(policy.tokenizer, "chat_template", None), config.max_tokens(policy)]
    rules = backend.to_str() if backend is not None else vocabulary_digest(policy.tokenizer)
    settings = version_1_values(config, exclude={"context"})
    return hashlib.sha256(canonical_json([data, form, rules, settings]).encode()).hexdigest()
