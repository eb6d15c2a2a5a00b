"""Subsets of a data set: rows are measured block by block with a cache, and a selector chooses among them.

Asking a policy about rows takes long. It is done for a block of rows at a time, and each block is cached under
a digest of its rows and of everything the result depends on. A killed run continues at its block, and a
selection with another selector, size or seed measures nothing again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.curate.cells import kmeans_cells, sharded_map
from evolvent.curate.features import unit_features
from evolvent.curate.kept import cache_path
from evolvent.curate.select import Selection, Selector, dpp
from evolvent.curate.selectors import (
    d2_pruning,
    facility_location,
    ifd,
    k_centre,
    random_choice,
    rho_loss,
    top_quality,
)
from evolvent.curate.shards import Row, row_to_line
from evolvent.errors import CorruptRecord, NothingToLearn, SampleInvalid
from evolvent.files import atomic_writer
from evolvent.memory.encoders import HashedNgrams
from evolvent.trajectory import JsonObject, canonical_json, sample_rng

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = [
    "SELECTORS",
    "DatasetMeasurements",
    "Measure",
    "RowMeasurements",
    "TextMeasure",
    "iterate_selected",
    "iterate_texts",
    "measure_rows",
    "select_rows",
]

SELECTORS: Mapping[str, Selector] = {
    "dpp": dpp,
    "random": random_choice,
    "top": top_quality,
    "ifd": ifd,
    "rho": rho_loss,
    "d2": d2_pruning,
    "facility": facility_location,
    "k_centre": k_centre,
}
"""The selectors of `curate.select` and `curate.selectors` by short names."""
_FORMAT = 1
_EQUAL_SPREAD = 1e-12
# What reading a block raises that is absent, cut off or spoilt; RuntimeError: an archive of a kind that is not read.
_READ_ERRORS = (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, zipfile.BadZipFile)


@dataclass(frozen=True)
class RowMeasurements:
    """Measurements of the rows of a block.

    Args:
        features: `[m, d]`. A row for each usable row.
        quality: `[m]`; None: rows have no rank.
        refused: Index in the block -> reason why the row cannot be used.
    """

    features: NDArray[np.floating]
    quality: NDArray[np.float64] | None
    refused: Mapping[int, str] = field(default_factory=dict)


class Measure(Protocol):
    """Computes the features and quality of rows for a selector. Equal settings must mean equal results."""

    def settings(self) -> JsonObject:
        """Returns everything that results depend on (JSON values)."""
        ...

    def __call__(self, rows: Sequence[Row]) -> RowMeasurements:
        """Computes the measurements of these rows, independent of other rows."""
        ...


@dataclass(frozen=True)
class TextMeasure:
    """Features of a row's texts, without a model; quality from one of its fields.

    Args:
        fields: Fields whose texts are used; none: all texts.
        width: Dimensions of the hashed n-grams; 0: no features.
        quality: Field that holds a number; "": none.
    """

    fields: tuple[str, ...] = ()
    width: int = 512
    quality: str = ""

    def settings(self) -> JsonObject:
        """Returns all settings."""
        return {"features": "text", "fields": list(self.fields), "width": self.width, "quality": self.quality}

    def __call__(self, rows: Sequence[Row]) -> RowMeasurements:
        """Computes the measurements; refuses rows without text in the fields or without the number for quality."""
        texts: list[str] = []
        values: list[float] = []
        refused: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                text = "\n".join(iterate_texts(row, self.fields))
                if self.width and not text.strip():
                    raise SampleInvalid("the row has no text", value=sorted(map(str, row)), expected=list(self.fields))
                value = _read_number(row, self.quality) if self.quality else 0.0
            except SampleInvalid as error:
                refused[index] = str(error)
            else:
                texts.append(text)
                values.append(value)
        features = HashedNgrams(self.width)(texts) if self.width else np.ones((len(texts), 1))
        return RowMeasurements(features, np.array(values) if self.quality else None, refused)


def iterate_texts(value: object, fields: Sequence[str] = ()) -> Iterator[str]:
    """Yields all texts in a JSON value, in order; for a row with `fields` those of these fields alone."""
    if fields and isinstance(value, Mapping):
        value = [value[name] for name in fields if name in value]
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from iterate_texts(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from iterate_texts(child)


def _read_number(row: Row, name: str) -> float:
    value = row.get(name)
    if isinstance(value, (bool, int, float)) and abs(value) <= sys.float_info.max:
        return float(value)
    raise SampleInvalid(f"the row's {name} is not a number", value=value, expected="a finite number")


@dataclass(frozen=True)
class DatasetMeasurements:
    """Measurements of all rows.

    Args:
        row_indices: `[n]`. Usable rows; features `[n, d]` and quality `[n]` belong to them.
        refused: Row -> reason why it cannot be used.
        digests: Digest of every row, 16 bytes each.
        blocks, reused: Number of blocks, and of those that were cached.
    """

    row_indices: NDArray[np.int64]
    features: NDArray[np.floating]
    quality: NDArray[np.float64] | None
    refused: Mapping[int, str]
    digests: Sequence[bytes]
    blocks: int
    reused: int

    @property
    def digest(self) -> str:
        """Returns SHA-256 over the digests of all rows, in order: 64 hex digits."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()


def measure_rows(
    rows: Iterable[Row],
    measure: Measure,
    *,
    cache: Path,
    block: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> DatasetMeasurements:
    """Computes the measurements of all rows; rows are read once, and only measurements are kept in memory.

    Args:
        rows: The rows.
        measure: The measure.
        cache: Folder of finished blocks.
        block: Rows of a block, at least 1.
        progress: Called after each block with the number of finished rows.
    Raises:
        NothingToLearn: no row can be used. Errors of the measure.
    """
    stream, parts, refused, row_indices = (
        iter(rows),
        list[RowMeasurements](),
        dict[int, str](),
        list[NDArray[np.int64]](),
    )
    digests: list[bytes] = []
    reused = 0
    while block_rows := list(islice(stream, block)):
        first, block_digests = len(digests), [_digest(row) for row in block_rows]
        digests += block_digests
        file = cache_path(
            cache, [_FORMAT, "measure", dict(measure.settings()), [digest.hex() for digest in block_digests]]
        )
        file = file.with_suffix(".npz")
        measurements = _read_block(file)
        reused += measurements is not None
        if measurements is None:
            measurements = measure(block_rows)
            _write_block(file, measurements)
        parts.append(measurements)
        refused |= {first + index: why for index, why in measurements.refused.items()}
        row_indices.append(
            np.array([first + index for index in range(len(block_rows)) if index not in measurements.refused], np.int64)
        )
        progress(len(digests))
    if not sum(map(len, row_indices)):
        reason = next(iter(refused.values()), "")
        raise NothingToLearn("no usable row", hint=f"the first refused row: {reason}" if reason else "pass rows")
    nonempty_parts = [part for part in parts if len(part.features)]
    quality = (
        None
        if nonempty_parts[0].quality is None
        else np.concatenate([np.asarray(part.quality) for part in nonempty_parts])
    )
    features = np.concatenate([part.features for part in nonempty_parts])
    return DatasetMeasurements(np.concatenate(row_indices), features, quality, refused, digests, len(parts), reused)


def _digest(row: Row) -> bytes:
    return hashlib.sha256(row_to_line(row)).digest()[:16]


def _write_block(file: Path, measurements: RowMeasurements) -> None:
    refused_json = np.frombuffer(
        canonical_json({str(index): why for index, why in measurements.refused.items()}).encode(), np.uint8
    )
    arrays = {"features": measurements.features, "refused": refused_json}
    if measurements.quality is not None:
        arrays["quality"] = measurements.quality
    with atomic_writer(file) as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]


def _read_block(file: Path) -> RowMeasurements | None:
    """Reads a complete block, checked by the checksums of the archive; None where it is absent or damaged."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            reasons = json.loads(arrays["refused"].tobytes())
            quality = arrays["quality"] if "quality" in arrays.files else None
            return RowMeasurements(
                arrays["features"], quality, {int(index): str(why) for index, why in reasons.items()}
            )
    except _READ_ERRORS:
        return None


def select_rows(
    measurements: DatasetMeasurements, k: int, *, selector: str, seed: int = 0, cells: int = 1, quality: bool = True
) -> Selection:
    """Selects among the usable rows; the indices of the selection are row numbers.

    Features are converted to the normal form of `unit_features`; where all rows are equal, they are set to 1.

    Args:
        measurements: Measurements of all rows.
        k: Number of rows.
        selector: Name in `SELECTORS`.
        seed: Seed of the selector.
        cells: With "dpp": number of k-means cells that select among their own rows, see `sharded_map`.
        quality: Whether the selector gets the quality.
    Raises:
        Errors of the selector.
    """
    rng = sample_rng(seed, "subset", selector)
    chooser: Selector = partial(_select_in_cells, cells=cells) if cells > 1 else SELECTORS[selector]
    features = measurements.features
    if features.shape[1] > 1:
        spread = float(np.ptp(features, axis=0).max(initial=0.0))
        features = unit_features(features) if spread > _EQUAL_SPREAD else np.ones((len(features), 1))
    selection = chooser(features, measurements.quality if quality else None, k, rng=rng)
    return Selection(measurements.row_indices[selection.indices], selection.gains, selection.stopped)


def _select_in_cells(
    features: NDArray[np.floating], quality: NDArray[np.float64] | None, k: int, *, rng: Generator, cells: int
) -> Selection:
    return sharded_map(features, quality, k, cells=kmeans_cells(features, cells, rng=rng), rng=rng)


def iterate_selected(
    rows: Iterable[Row],
    measurements: DatasetMeasurements,
    selection: Selection,
    *,
    output: Literal["chosen", "choice"] = "chosen",
) -> Iterator[Row]:
    """Yields the selected rows unchanged, in the order of the source; or, with "choice", a report on every row.

        {"row", "chosen": its rank from 0, or null, "gain"?, "quality"?, "why"?}

    Args:
        rows: The same rows once more; for "choice" they are not read.
        measurements: Measurements of all rows.
        selection: The selection.
        output: "chosen" or "choice".
    Raises:
        CorruptRecord: the rows have changed since they were measured.
    """
    rank = {int(index): number for number, index in enumerate(selection.indices)}
    if output == "choice":
        values = (
            {}
            if measurements.quality is None
            else dict(zip(measurements.row_indices.tolist(), measurements.quality.tolist(), strict=True))
        )
        for index in range(len(measurements.digests)):
            gain = {"gain": _finite_or_none(selection.gains[rank[index]])} if index in rank else {}
            refusal = {"why": measurements.refused[index]} if index in measurements.refused else {}
            quality = {"quality": _finite_or_none(values[index])} if index in values else {}
            yield {"row": index, "chosen": rank.get(index), **gain, **quality, **refusal}
        return
    count = 0
    for index, row in enumerate(rows):
        count = index + 1
        if index >= len(measurements.digests) or _digest(row) != measurements.digests[index]:
            raise CorruptRecord(f"row {index} has changed since it was measured", offset=index)
        if index in rank:
            yield row
    if count != len(measurements.digests):
        raise CorruptRecord(f"{count} of {len(measurements.digests)} measured rows remain", offset=count)


def _finite_or_none(value: float) -> float | None:
    """Converts a number to JSON: infinity, the first gain of k-center, becomes None."""
    return float(value) if np.isfinite(value) else None
