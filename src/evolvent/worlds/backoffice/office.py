"""The state of a back office: its tables, and the window of each application.

Everything is a tuple. A state is replaced and never changed, so a snapshot is the state itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from evolvent.worlds.backoffice.applications import APPLICATIONS, Application, Cell, Row, Table

__all__ = ["DAYS", "PAGE", "Office", "State", "Tables", "Window", "contents", "find_row", "referring_applications"]

PAGE = 5
"""Rows on a page of a table."""
DAYS = (1, 28)
"""The bounds of a number that is a day."""
Tables = tuple[Table, ...]


class Window(NamedTuple):
    """The contents of an application's window: a page of its table, or a form.

    Args:
        page: the page of the table, from 0.
        row_filter: (index of a field, value) that the rows must have; None: all rows.
        form: the values in the form, saved or not; None: the table is shown.
        record: the key of the record in the form; None: a new record.
    """

    page: int = 0
    row_filter: tuple[int, Cell] | None = None
    form: Row | None = None
    record: Cell = None


class State(NamedTuple):
    """The changing part of an episode.

    Args:
        tables: the saved records, one table an application.
        windows: the contents of each application's window.
        active: index of the application in front; -1 before one is opened.
    """

    tables: Tables
    windows: tuple[Window, ...]
    active: int = -1


@dataclass(frozen=True)
class Office:
    """The constant part of an episode.

    Args:
        tables: the records at the start, in the order of `applications`.
        bounds: (application, field) -> smallest and largest number that can be saved.
        applications: by name.
    """

    tables: Tables
    bounds: Mapping[tuple[str, str], tuple[int, int]]
    applications: Mapping[str, Application] = field(default_factory=lambda: APPLICATIONS)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Returns the applications by their index."""
        return tuple(self.applications)

    @cached_property
    def application_index(self) -> Mapping[str, int]:
        """Returns application -> its index."""
        return MappingProxyType({name: index for index, name in enumerate(self.names)})

    @cached_property
    def start(self) -> State:
        """Returns the initial state: no application is open."""
        return State(self.tables, (Window(),) * len(self.names))

    @cached_property
    def first_new_keys(self) -> tuple[int, ...]:
        """Returns the smallest number that a new record of each application may get, whatever was deleted."""
        return tuple(1 + max((row[0] for row in table if isinstance(row[0], int)), default=0) for table in self.tables)

    def bounds_of(self, application: str, field: str) -> tuple[int, int]:
        """Returns the smallest and the largest number that can be saved in a field."""
        return self.bounds.get((application, field), DAYS)


def find_row(table: Table, key: Cell) -> Row | None:
    """Finds the row of a key; returns None where no row has it."""
    return next((row for row in table if row[0] == key), None)


def referring_applications(office: Office, tables: Tables, application: str, /, *, key: Cell) -> Iterator[str]:
    """Yields the applications that have records which refer to this record."""
    for name, table in zip(office.names, tables, strict=True):
        links = [index for index, field in enumerate(office.applications[name].fields) if field.link == application]
        if any(row[index] == key for row in table for index in links):
            yield name


def contents(tables: Tables) -> tuple[frozenset[Row], ...]:
    """Returns the saved records, whatever the order of the rows; success is judged by them."""
    return tuple(map(frozenset, tables))
