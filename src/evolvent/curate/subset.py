"""A subset of a data set: what is known of every row, found block by block and kept, and the rows that are chosen.

What takes long is asking a policy about rows. It is done for a block of rows at a time, and each block is kept under a
digest of its rows and of all that the answer depends on; a killed choice goes on at the block where it was, and a
choice with another selector, size or seed asks nothing again.
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
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.curate.cells import kmeans_cells, sharded_map
from evolvent.curate.features import unit_features
from evolvent.curate.kept import place
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
from evolvent.curate.shards import Row, line_of
from evolvent.errors import CorruptRecord, NothingToLearn, SampleInvalid
from evolvent.files import atomic_writer
from evolvent.memory.encoders import HashedNgrams
from evolvent.trajectory import canonical_json, sample_rng

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["SELECTORS", "Known", "Measure", "Measured", "TextMeasure", "choose", "known_of", "texts_of", "written_rows"]

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
_ALIKE = 1e-12
# What reading a block raises that is absent, cut off or spoilt; RuntimeError: an archive of a kind that is not read.
_SPOILT = (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Measured:
    """What is known of the rows of a block.

    Args:
        features: `[m, d]`, a row for each that can be used.
        quality: `[m]`; None: nothing ranks them.
        refused: place in the block -> why the row cannot be used.
    """

    features: NDArray[np.floating]
    quality: NDArray[np.float64] | None
    refused: Mapping[int, str] = field(default_factory=dict)


class Measure(Protocol):
    """What tells of rows what a selector looks at. Equal settings have to mean equal results."""

    def settings(self) -> Mapping[str, Any]:
        """Everything that results depend on (JSON values)."""
        ...

    def __call__(self, rows: Sequence[Row]) -> Measured:
        """What is known of these rows, whatever other rows there are."""
        ...


@dataclass(frozen=True)
class TextMeasure:
    """Features of a row's texts, without a model; quality from one of its fields.

    Args:
        fields: whose texts are looked at; none: all texts. width: places of the hashed n-grams; 0: no features are
            wanted.
        quality: a field that holds a number; "": none.
    """

    fields: tuple[str, ...] = ()
    width: int = 512
    quality: str = ""

    def settings(self) -> Mapping[str, Any]:
        """All of it."""
        return {"features": "text", "fields": list(self.fields), "width": self.width, "quality": self.quality}

    def __call__(self, rows: Sequence[Row]) -> Measured:
        """Rows without text in the fields, or without a number where one is asked for, cannot be used."""
        texts: list[str] = []
        values: list[float] = []
        refused: dict[int, str] = {}
        for at, row in enumerate(rows):
            try:
                text = "\n".join(texts_of(row, self.fields))
                if self.width and not text.strip():
                    raise SampleInvalid("a row without text", value=sorted(map(str, row)), expected=list(self.fields))
                value = _number(row, self.quality) if self.quality else 0.0
            except SampleInvalid as error:
                refused[at] = str(error)
            else:
                texts.append(text)
                values.append(value)
        features = HashedNgrams(self.width)(texts) if self.width else np.ones((len(texts), 1))
        return Measured(features, np.array(values) if self.quality else None, refused)


def texts_of(value: Any, fields: Sequence[str] = ()) -> Iterator[str]:
    """All texts in a JSON value, in order; of a row those of some fields alone."""
    if fields and isinstance(value, Mapping):
        value = [value[name] for name in fields if name in value]
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_of(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from texts_of(one)


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    if isinstance(value, (bool, int, float)) and abs(value) <= sys.float_info.max:
        return float(value)
    raise SampleInvalid(f"a row whose {name} is no number", value=value, expected="a finite number")


@dataclass(frozen=True)
class Known:
    """What is known of all rows.

    Args:
        places: `[n]`, which rows can be used; features `[n, d]` and quality `[n]` are theirs.
        refused: place -> why a row cannot.
        digests: of every row, 16 bytes each.
        blocks, reused: how many blocks there were, and how many of them were found.
    """

    places: NDArray[np.int64]
    features: NDArray[np.floating]
    quality: NDArray[np.float64] | None
    refused: Mapping[int, str]
    digests: Sequence[bytes]
    blocks: int
    reused: int

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of all rows, in their order: 64 hex digits."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()


def known_of(
    rows: Iterable[Row],
    measure: Measure,
    *,
    cache: Path,
    block: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> Known:
    """What a measure says of all rows; they are read once, and only what is known of them is kept in memory.

    Args:
        cache: where finished blocks are kept. block: rows of one, at least 1.
        progress: told after each block how many rows are done.
    Raises:
        NothingToLearn: not one row that can be used. What the measure raises.
    """
    stream, parts, refused, places = iter(rows), list[Measured](), dict[int, str](), list[NDArray[np.int64]]()
    digests: list[bytes] = []
    reused = 0
    while some := list(islice(stream, block)):
        first, own = len(digests), [_digest(row) for row in some]
        digests += own
        file = place(cache, [_FORMAT, "measure", dict(measure.settings()), [one.hex() for one in own]])
        file = file.with_suffix(".npz")
        found = _read(file)
        reused += found is not None
        if found is None:
            found = measure(some)
            _keep(file, found)
        parts.append(found)
        refused |= {first + at: why for at, why in found.refused.items()}
        places.append(np.array([first + at for at in range(len(some)) if at not in found.refused], np.int64))
        progress(len(digests))
    if not sum(map(len, places)):
        raise NothingToLearn(
            "no row can be used", value=next(iter(refused.values()), "no rows"), expected="at least one"
        )
    full = [part for part in parts if len(part.features)]
    quality = None if full[0].quality is None else np.concatenate([np.asarray(part.quality) for part in full])
    features = np.concatenate([part.features for part in full])
    return Known(np.concatenate(places), features, quality, refused, digests, len(parts), reused)


def _digest(row: Row) -> bytes:
    return hashlib.sha256(line_of(row)).digest()[:16]


def _keep(file: Path, found: Measured) -> None:
    told = np.frombuffer(canonical_json({str(at): why for at, why in found.refused.items()}).encode(), np.uint8)
    arrays = {"features": found.features, "refused": told}
    if found.quality is not None:
        arrays["quality"] = found.quality
    with atomic_writer(file) as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]


def _read(file: Path) -> Measured | None:
    """A block that is there and whole; the archive has a checksum of each array. None where it is absent or spoilt."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as held:
            told = json.loads(held["refused"].tobytes())
            quality = held["quality"] if "quality" in held.files else None
            return Measured(held["features"], quality, {int(at): str(why) for at, why in told.items()})
    except _SPOILT:
        return None


def choose(known: Known, k: int, *, by: str, seed: int = 0, cells: int = 1, quality: bool = True) -> Selection:
    """The selection among the rows that can be used; its indices are places of rows.

    Features are brought to the normal form of `unit_features`; where all rows are alike nothing tells them apart.

    Args:
        by: one of `SELECTORS`. cells: with dpp: so many k-means cells choose among their own, see `sharded_map`.
        quality: whether the selector is handed it.
    Raises:
        What the selector raises.
    """
    rng = sample_rng(seed, "subset", by)
    chooser: Selector = partial(_in_cells, cells=cells) if cells > 1 else SELECTORS[by]
    features = known.features
    if features.shape[1] > 1:
        spread = float(np.ptp(features, axis=0).max(initial=0.0))
        features = unit_features(features) if spread > _ALIKE else np.ones((len(features), 1))
    found = chooser(features, known.quality if quality else None, k, rng=rng)
    return Selection(known.places[found.indices], found.gains, found.stopped)


def _in_cells(
    features: NDArray[np.floating], quality: NDArray[np.float64] | None, k: int, *, rng: Generator, cells: int
) -> Selection:
    return sharded_map(features, quality, k, cells=kmeans_cells(features, cells, rng=rng), rng=rng)


def written_rows(
    rows: Iterable[Row], known: Known, chosen: Selection, *, which: Literal["chosen", "choice"] = "chosen"
) -> Iterator[Row]:
    """The chosen rows as they are, in the order of the source; or, as "choice", a row about every row.

        {"row", "chosen": its rank from 0, or null, "gain"?, "quality"?, "why"?}

    Args:
        rows: the same rows once more; for "choice" they are not read.
    Raises:
        CorruptRecord: they have changed since they were measured.
    """
    rank = {int(at): number for number, at in enumerate(chosen.indices)}
    if which == "choice":
        values = {} if known.quality is None else dict(zip(known.places.tolist(), known.quality.tolist(), strict=True))
        for at in range(len(known.digests)):
            gain = {"gain": _plain(chosen.gains[rank[at]])} if at in rank else {}
            told = {"why": known.refused[at]} if at in known.refused else {}
            quality = {"quality": _plain(values[at])} if at in values else {}
            yield {"row": at, "chosen": rank.get(at), **gain, **quality, **told}
        return
    count = 0
    for at, row in enumerate(rows):
        count = at + 1
        if at >= len(known.digests) or _digest(row) != known.digests[at]:
            raise CorruptRecord(f"row {at} is another one than when it was measured", offset=at)
        if at in rank:
            yield row
    if count != len(known.digests):
        raise CorruptRecord(f"{count} rows are left of {len(known.digests)} that were measured", offset=count)


def _plain(value: float) -> float | None:
    """A number as JSON has it: infinity, the first gain of k-centre, is none."""
    return float(value) if np.isfinite(value) else None
