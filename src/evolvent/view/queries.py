"""Questions to the trajectories of a run, answered from columns: filters, words, an order, a page of rows.

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
from evolvent.store.log import segments
from evolvent.store.schema import INTERRUPTED
from evolvent.store.seal import manifest
from evolvent.trajectory import Annotation, Trajectory
from evolvent.view.segments import COLUMNS, Unit, read_annotated, read_trajectory
from evolvent.view.words import Haystack

__all__ = ["FILTERS", "SORTS", "Answer", "Query", "TrajectoryIndex"]

FILTERS = ("world", "tier", "split", "kind", "stage", "ended_by", "outcome")
"""Columns that are filtered by one of their values; `outcome` is "solved", "failed" or "unscored"."""

SORTS = ("seq", "length", "unit", "raw", "task", "world", "kind")
"""What rows are sorted by; `seq` is the order of appending."""

_CHOICES = 60  # values of a column that are offered
_TERMS = 8  # words of a question that are looked at


@dataclass(frozen=True, slots=True)
class Query:
    """Which trajectories, and in which order.

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
        """Equal for equal questions."""
        return self.text, tuple(sorted(self.where.items())), self.sort, self.descending


@dataclass(frozen=True, slots=True)
class Answer:
    """A page of rows.

    Attributes:
        rows: columns -> values, one mapping a row. first: the place of the first of them among all that fit.
        found: how many fit. read: how many have been read so far. whole: nothing is left to be read.
        problem: why reading stopped; empty: it did not.
    """

    rows: Sequence[Mapping[str, Any]]
    first: int
    found: int
    read: int
    whole: bool
    problem: str


class TrajectoryIndex:
    """The rows of the store in a folder; several threads may ask. A folder without a store has no rows."""

    def __init__(self, root: Path) -> None:
        """An index that has read nothing yet."""
        self._root, self._lock = root, RLock()
        self._units: dict[int, Unit] = {}
        self._table: pa.Table | None = None
        self._haystack: Haystack | None = None
        self._whole, self._problem, self._version = False, "", 0
        self._asked: tuple[object, ...] = ()
        self._places: Any = np.zeros(0, np.int64)

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; returns whether everything that is there now has been read."""
        end = time.monotonic() + seconds
        with self._lock:
            try:
                self._whole, self._problem = self._read(end), ""
            except StoreError as error:
                self._whole, self._problem = True, str(error)
            return self._whole

    def _read(self, end: float) -> bool:
        for attempt in (0, 1):
            try:
                return self._read_once(end)
            except StoreUnavailable as error:  # its writer sealed a segment meanwhile: once more, from its parts
                if attempt or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return True

    def _read_once(self, end: float) -> bool:
        """One stretch at least, whatever the time; True where nothing is left to be read."""
        live, sealed = segments(self._root), manifest(self._root)  # in this order: what is being sealed is in one
        late = False
        for gone in self._units.keys() - {*sealed, *live}:
            del self._units[gone]
            self._changed()
        for number in sorted({*sealed, *live}):
            unit = self._units.get(number)
            if unit is None or unit.row != sealed.get(number) or unit.replaced():
                unit = self._units[number] = Unit(self._root, number, sealed.get(number))
                self._changed()
            if not unit.unread():
                continue
            if late:
                return False
            before = unit.reads
            try:
                unit.advance(end, last=bool(live) and number == live[-1])
            finally:  # also what stands before a damaged record
                if unit.reads > before:
                    self._changed()
            late = time.monotonic() > end
            if late and not unit.sealed and unit.unread():
                return False
        return True

    def _changed(self) -> None:
        self._table = None
        self._version += 1

    def version(self) -> int:
        """Grows whenever rows may have changed."""
        return self._version

    def ask(self, query: Query, *, first: int = 0, count: int = 100) -> Answer:
        """The rows from place `first` on, at most `count`."""
        with self._lock:
            table, places = self._settled(), self._matching(query)
            first = max(0, min(first, max(0, len(places) - 1)))
            rows = table.drop_columns(["text"]).take(pa.array(places[first : first + count])).to_pylist()
            return Answer(rows, first, len(places), table.num_rows, self._whole, self._problem)

    def choices(self) -> dict[str, list[tuple[str, int]]]:
        """The values of each filter with how often they occur, the commonest first; none where there is only one."""
        with self._lock:
            table = self._settled()
            found = {}
            for name in FILTERS:
                counted = sorted(
                    (
                        (one["values"], one["counts"])
                        for one in pc.value_counts(table[name]).to_pylist()
                        if one["values"]
                    ),
                    key=lambda pair: (-pair[1], pair[0]),
                )
                found[name] = counted[:_CHOICES] if len(counted) > 1 else []
            return found

    def beside(self, query: Query, traj: str) -> tuple[str | None, str | None]:
        """The ids before and after one of the rows that fit; None at the ends, and where it does not fit."""
        with self._lock:
            table, places = self._settled(), self._matching(query)
            row = pc.index(table["traj"], traj).as_py()
            at = np.flatnonzero(places == row)
            if row < 0 or not len(at):
                return None, None
            near = (int(at[0]) - 1, int(at[0]) + 1)
            before, after = (
                table["traj"][int(places[place])].as_py() if 0 <= place < len(places) else None for place in near
            )
            return before, after

    def known(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the ids that there are rows of."""
        with self._lock:
            ids = self._settled()["traj"]
        wanted = pa.array([name for name in names if _writable(name)], pa.string())
        return frozenset(ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist())

    def solved(self) -> dict[str, dict[str, Any]]:
        """By task: its world, kind, tier and split, episodes that were scored, how many were solved, and one's id."""
        with self._lock:
            table = self._settled().select(["task", "world", "kind", "tier", "split", "success", "traj"])
        found: dict[str, dict[str, Any]] = {}
        for row in table.filter(pc.is_valid(table["success"])).to_pylist():
            known = found.setdefault(row["task"], {**row, "n": 0, "won": 0})
            known["n"] += 1
            known["won"] += row["success"]
        return found

    def get(self, traj: str) -> Trajectory:
        """The trajectory of an id, read from where its row says that it is.

        Raises:
            SampleInvalid: no row of this id, or a record that is none. StoreError: it cannot be read.
        """
        with self._lock:
            table = self._settled()
            row = pc.index(table["traj"], traj).as_py()
            if row < 0:
                raise SampleInvalid("there is no trajectory of this id", value=traj)
            number, offset = table["segment"][row].as_py(), table["offset"][row].as_py()
        return read_trajectory(self._root, traj, number=number, offset=offset)

    def annotations(self, traj: str) -> list[Annotation]:
        """What was noted about a trajectory, in the order of appending."""
        with self._lock:
            live = [(unit.number, offset) for unit in self._units.values() for offset in unit.notes.get(traj, ())]
            sealed = [unit.number for unit in self._units.values() if unit.sealed]
        return read_annotated(self._root, traj, sealed=sealed, live=live)

    # ------------------------------------------------------------------ rows

    def _settled(self) -> pa.Table:
        """All rows in the order of appending; an interrupted episode gives way to a later one of its id."""
        if self._table is None:
            tables = [unit.table() for _, unit in sorted(self._units.items())]
            table = pa.concat_tables([COLUMNS.empty_table(), *tables])
            self._table, self._haystack = _without_replaced(table), None
        return self._table

    def _matching(self, query: Query) -> Any:
        """[found] places of the rows that fit, in their order; kept until another question comes."""
        key = (*query.key(), self._version)
        if key != self._asked:
            table, words = self._settled(), _terms(query.text)
            fits = np.ones(table.num_rows, np.bool_)
            if words and self._haystack is None:
                self._haystack = Haystack(table["text"])
            if words and self._haystack is not None:
                fits &= self._haystack.holding(words)
            self._places, self._asked = _places(table, query, fits), key
        return self._places


def _without_replaced(table: pa.Table) -> pa.Table:
    broken = pc.fill_null(pc.equal(table["error"], INTERRUPTED), False)
    if not pc.any(broken).as_py():
        return table
    ids, interrupted = table["traj"].to_pylist(), broken.to_pylist()
    last = {traj: place for place, traj in enumerate(ids)}
    whole = [place for place, bad in enumerate(interrupted) if not bad]
    held = [place for place, bad in enumerate(interrupted) if bad and last[ids[place]] == place]
    return table.take(pa.array([*whole, *held], pa.int64()))


def _places(table: pa.Table, query: Query, fits: NDArray[np.bool_]) -> Any:
    """The places of those rows that fit and have the values that are asked for, in the order that is asked for."""
    for name, value in query.where.items():
        if name in FILTERS:
            fits = fits & pc.fill_null(pc.equal(table[name], value), False).to_numpy()
    places = np.flatnonzero(fits)
    if query.sort == "seq" or query.sort not in SORTS:
        return places[::-1] if query.descending else places
    column = table[query.sort].take(pa.array(places)).combine_chunks()
    keys = [("value", "descending" if query.descending else "ascending"), ("place", "ascending")]
    order = pc.sort_indices(pa.table({"value": column, "place": places}), sort_keys=keys)  # those without come last
    return places[order.to_numpy()]


def _writable(name: str) -> bool:
    """Whether a file could hold a text: half surrogates, which hostile rows can spell, are in none."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _terms(text: str) -> list[str]:
    """The words of a question in lower case; what stands between double quotes is one."""
    found = []
    for place, piece in enumerate(" ".join(text.lower().split()).split('"')):
        found += [piece] if place % 2 else piece.split()
    return [term for term in found if term][:_TERMS]
