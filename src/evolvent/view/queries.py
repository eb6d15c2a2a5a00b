"""Queries over the trajectories of a run, answered from columns: filters, words, an order, a page of rows.

An index holds a row of columns for each episode (who, what, how it went) and its searchable text, never the records. It
is read segment by segment within a time that the caller gives, and goes on where it stopped: sealed segments from their
Parquet columns, live ones from the byte after the last one read. So the first rows of a large store are there at once,
and what a writer appends is found without reading anything twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evolvent.errors import SampleInvalid, StoreError, StoreUnavailable
from evolvent.store.log import list_segments
from evolvent.store.query import read_seal_manifest
from evolvent.store.schema import INTERRUPTED
from evolvent.trajectory import Annotation, JsonObject, Trajectory
from evolvent.view.segments import COLUMNS, SegmentReader, read_trajectory, read_trajectory_annotations

__all__ = ["FILTERS", "SORTS", "Answer", "Query", "TextIndex", "TrajectoryIndex"]


_SAMPLE = 1 << 18  # bytes of each piece that tell which bytes are rare
_CACHED_WORDS = 32  # words whose answer is remembered: of a question that is being typed all but the last stay the same


class TextIndex:
    """The texts of a column without nulls. Each ends with a line end, so that no word lies across two of them."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        """Prepares to search a column without copying its texts."""
        self._size = len(column)
        self._pieces = [_text_bytes(chunk) for chunk in column.chunks if len(chunk)]
        byte_counts = [np.bincount(text[:_SAMPLE], minlength=256) for text, _ in self._pieces]
        self._counts = np.sum(byte_counts, axis=0) if byte_counts else np.zeros(256, np.int64)
        self._known: dict[str, NDArray[np.bool_]] = {}

    def contains_all(self, terms: Sequence[str]) -> NDArray[np.bool_]:
        """Returns [texts] whether each contains every term; terms are compared unchanged, and contain no line end."""
        matches = np.ones(self._size, np.bool_)
        for term in terms:
            if term not in self._known:
                while len(self._known) >= _CACHED_WORDS:
                    self._known.pop(next(iter(self._known)))
                self._known[term] = self._rows_with(term.encode("utf-8", "replace"))
            matches &= self._known[term]
        return matches

    def _rows_with(self, word: bytes) -> NDArray[np.bool_]:
        order = sorted(range(len(word)), key=lambda index: int(self._counts[word[index]]))
        matches_per_piece = [_contains_word(text, offsets, word, order) for text, offsets in self._pieces]
        return np.concatenate([np.zeros(0, np.bool_), *matches_per_piece])


def _text_bytes(chunk: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Returns the bytes of the texts, and the offset where each begins; the last offset is their end."""
    _, ends, data = chunk.buffers()
    offsets = np.frombuffer(ends, np.int32, len(chunk) + 1, 4 * chunk.offset)
    text = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    return text, offsets - offsets[0]


def _contains_word(text: NDArray[np.uint8], offsets: NDArray[np.int32], word: bytes, order: Sequence[int]) -> Any:
    """Returns for each row whether it contains the word; `order` lists the positions in the word, rarest bytes
    first.
    """
    last = len(text) - len(word)
    candidates = np.flatnonzero(text == word[order[0]]) - order[0]
    candidates = candidates[(candidates >= 0) & (candidates <= last)]
    for index in order[1:]:
        candidates = candidates[text[candidates + index] == word[index]]
    contains = np.zeros(len(offsets) - 1, np.bool_)
    contains[np.searchsorted(offsets, candidates, side="right") - 1] = True
    return contains


FILTERS = ("world", "tier", "split", "kind", "stage", "ended_by", "outcome")
"""Columns that are filtered by one of their values; `outcome` is "solved", "failed" or "unscored"."""

SORTS = ("seq", "length", "unit", "raw", "task", "world", "kind")
"""What rows are sorted by; `seq` is the order of appending."""

_CHOICES = 60  # values of a column that are offered
_TERMS = 8  # words of a question that are looked at


@dataclass(frozen=True, slots=True)
class Query:
    """A selection of trajectories and their order.

    Args:
        text: words that must all occur, in any case: in ids, the task, actions, the final observation or the error.
            Words between double quotes are one.
        where: column (of `FILTERS`) -> value.
        sort: one of `SORTS`. descending: the other way round; rows without a value come last either way.
    """

    text: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    sort: str = "seq"
    descending: bool = False

    def key(self) -> tuple[object, ...]:
        """Returns a key that is equal for equal queries."""
        return self.text, tuple(sorted(self.where.items())), self.sort, self.descending


@dataclass(frozen=True, slots=True)
class Answer:
    """A page of rows.

    Attributes:
        rows: columns -> values, one mapping a row. first: the place of the first of them among all that fit.
        found: how many fit. read: how many have been read so far. whole: nothing is left to be read.
        problem: why reading stopped; empty: it did not.
    """

    rows: Sequence[JsonObject]
    first: int
    found: int
    read: int
    whole: bool
    problem: str


class TrajectoryIndex:
    """The rows of the store in a folder; several threads may query it. A folder without a store has no rows."""

    def __init__(self, root: Path) -> None:
        """Creates an index that has read nothing yet."""
        self._root, self._lock = root, RLock()
        self._units: dict[int, SegmentReader] = {}
        self._table: pa.Table | None = None
        self._haystack: TextIndex | None = None
        self._whole, self._problem, self._version = False, "", 0
        self._asked: tuple[object, ...] = ()
        self._places: Any = np.zeros(0, np.int64)

    def advance(self, seconds: float) -> bool:
        """Reads on for about `seconds`; returns whether everything that is stored now has been read."""
        end = time.monotonic() + seconds
        with self._lock:
            try:
                self._whole, self._problem = self._read_segments(end), ""
            except StoreError as error:
                self._whole, self._problem = True, str(error)
            return self._whole

    def _read_segments(self, end: float) -> bool:
        for attempt in (0, 1):
            try:
                return self._read_once(end)
            except StoreUnavailable as error:  # its writer sealed a segment meanwhile: once more, from its parts
                if attempt or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return True

    def _read_once(self, end: float) -> bool:
        """Reads at least one stretch, whatever the time; returns whether nothing is left to be read."""
        live, sealed = (
            list_segments(self._root),
            read_seal_manifest(self._root),
        )  # in this order: what is being sealed is in one
        is_late = False
        for removed in self._units.keys() - {*sealed, *live}:
            del self._units[removed]
            self._mark_changed()
        for number in sorted({*sealed, *live}):
            unit = self._units.get(number)
            if unit is None or unit.row != sealed.get(number) or unit.is_replaced():
                unit = self._units[number] = SegmentReader(self._root, number, sealed.get(number))
                self._mark_changed()
            if not unit.has_unread():
                continue
            if is_late:
                return False
            before = unit.reads
            try:
                unit.advance(end, last=bool(live) and number == live[-1])
            finally:  # also what stands before a damaged record
                if unit.reads > before:
                    self._mark_changed()
            is_late = time.monotonic() > end
            if is_late and not unit.sealed and unit.has_unread():
                return False
        return True

    def _mark_changed(self) -> None:
        self._table = None
        self._version += 1

    def version(self) -> int:
        """Returns a version number, which increases whenever rows may have changed."""
        return self._version

    def query(self, filter_query: Query, *, first: int = 0, count: int = 100) -> Answer:
        """Returns the rows from position `first` on, at most `count`."""
        with self._lock:
            table, row_indices = self._current_table(), self._matching_rows(filter_query)
            first = max(0, min(first, max(0, len(row_indices) - 1)))
            rows = table.drop_columns(["text"]).take(pa.array(row_indices[first : first + count])).to_pylist()
            return Answer(rows, first, len(row_indices), table.num_rows, self._whole, self._problem)

    def choices(self) -> dict[str, list[tuple[str, int]]]:
        """Returns the values of each filter with their counts, most frequent first; none where there is only one
        value.
        """
        with self._lock:
            table = self._current_table()
            choices_per_filter = {}
            for name in FILTERS:
                counted_values = sorted(
                    (
                        (entry["values"], entry["counts"])
                        for entry in pc.value_counts(table[name]).to_pylist()
                        if entry["values"]
                    ),
                    key=lambda pair: (-pair[1], pair[0]),
                )
                choices_per_filter[name] = counted_values[:_CHOICES] if len(counted_values) > 1 else []
            return choices_per_filter

    def neighbors(self, query: Query, traj: str) -> tuple[str | None, str | None]:
        """Returns the ids before and after a row that matches; None at the ends, and where the row does not match."""
        with self._lock:
            table, row_indices = self._current_table(), self._matching_rows(query)
            row = pc.index(table["traj"], traj).as_py()
            matches = np.flatnonzero(row_indices == row)
            if row < 0 or not len(matches):
                return None, None
            positions = (int(matches[0]) - 1, int(matches[0]) + 1)
            before, after = (
                table["traj"][int(row_indices[position])].as_py() if 0 <= position < len(row_indices) else None
                for position in positions
            )
            return before, after

    def select_stored(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the ids that have rows."""
        with self._lock:
            ids = self._current_table()["traj"]
        wanted_ids = pa.array([name for name in names if _is_writable(name)], pa.string())
        return frozenset(ids.filter(pc.is_in(ids, value_set=wanted_ids)).to_pylist())

    def task_outcomes(self) -> Mapping[str, JsonObject]:
        """Returns by task: its world, kind, tier and split, scored episodes, solved episodes, and the id of an
        episode.
        """
        with self._lock:
            table = self._current_table().select(["task", "world", "kind", "tier", "split", "success", "traj"])
        outcomes: dict[str, dict[str, Any]] = {}
        for row in table.filter(pc.is_valid(table["success"])).to_pylist():
            outcome = outcomes.setdefault(row["task"], {**row, "n": 0, "won": 0})
            outcome["n"] += 1
            outcome["won"] += row["success"]
        return outcomes

    def get(self, traj: str) -> Trajectory:
        """Returns the trajectory of an id, read from the location that its row gives.

        Raises:
            SampleInvalid: no row of this id, or a record that is none. StoreError: it cannot be read.
        """
        with self._lock:
            table = self._current_table()
            row = pc.index(table["traj"], traj).as_py()
            if row < 0:
                raise SampleInvalid("unknown trajectory id", value=traj)
            number, offset = table["segment"][row].as_py(), table["offset"][row].as_py()
        return read_trajectory(self._root, traj, number=number, offset=offset)

    def annotations(self, traj: str) -> list[Annotation]:
        """Returns the annotations of a trajectory, in the order of appending."""
        with self._lock:
            live = [(unit.number, offset) for unit in self._units.values() for offset in unit.notes.get(traj, ())]
            sealed = [unit.number for unit in self._units.values() if unit.sealed]
        return read_trajectory_annotations(self._root, traj, sealed=sealed, live=live)

    # ------------------------------------------------------------------ rows

    def _current_table(self) -> pa.Table:
        """Returns all rows in the order of appending; an interrupted episode gives way to a later episode of its id."""
        if self._table is None:
            tables = [unit.table() for _, unit in sorted(self._units.items())]
            table = pa.concat_tables([COLUMNS.empty_table(), *tables])
            self._table, self._haystack = _drop_replaced(table), None
        return self._table

    def _matching_rows(self, query: Query) -> Any:
        """Returns [found] indices of the rows that match, in their order; cached until the query changes."""
        key = (*query.key(), self._version)
        if key != self._asked:
            table, terms = self._current_table(), _parse_terms(query.text)
            matches = np.ones(table.num_rows, np.bool_)
            if terms and self._haystack is None:
                self._haystack = TextIndex(table["text"])
            if terms and self._haystack is not None:
                matches &= self._haystack.contains_all(terms)
            self._places, self._asked = _select_rows(table, query, matches), key
        return self._places


def _drop_replaced(table: pa.Table) -> pa.Table:
    broken = pc.fill_null(pc.equal(table["error"], INTERRUPTED), False)
    if not pc.any(broken).as_py():
        return table
    ids, interrupted = table["traj"].to_pylist(), broken.to_pylist()
    last = {traj: row_index for row_index, traj in enumerate(ids)}
    complete_rows = [row_index for row_index, is_interrupted in enumerate(interrupted) if not is_interrupted]
    unreplaced_rows = [
        row_index
        for row_index, is_interrupted in enumerate(interrupted)
        if is_interrupted and last[ids[row_index]] == row_index
    ]
    return table.take(pa.array([*complete_rows, *unreplaced_rows], pa.int64()))


def _select_rows(table: pa.Table, query: Query, matches: NDArray[np.bool_]) -> Any:
    """Returns the indices of matching rows that have the filter values of the query, in the order of the query."""
    for name, value in query.where.items():
        if name in FILTERS:
            matches = matches & pc.fill_null(pc.equal(table[name], value), False).to_numpy()
    row_indices = np.flatnonzero(matches)
    if query.sort == "seq" or query.sort not in SORTS:
        return row_indices[::-1] if query.descending else row_indices
    column = table[query.sort].take(pa.array(row_indices)).combine_chunks()
    keys = [("value", "descending" if query.descending else "ascending"), ("place", "ascending")]
    order = pc.sort_indices(
        pa.table({"value": column, "place": row_indices}), sort_keys=keys
    )  # those without come last
    return row_indices[order.to_numpy()]


def _is_writable(name: str) -> bool:
    """Returns whether a file could hold the text; lone surrogates, which hostile rows can spell, cannot be written."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _parse_terms(text: str) -> list[str]:
    """Parses the words of a query in lower case; text between double quotes is one term."""
    terms = []
    for index, piece in enumerate(" ".join(text.lower().split()).split('"')):
        terms += [piece] if index % 2 else piece.split()
    return [term for term in terms if term][:_TERMS]
