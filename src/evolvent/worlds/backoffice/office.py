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

__all__ = ["DAYS", "PAGE", "Office", "State", "Tables", "Window", "contents", "row_of", "users_of"]

PAGE = 5
"""Rows on a page of a table."""
DAYS = (1, 28)
"""The bounds of a number that is a day."""
Tables = tuple[Table, ...]


class Window(NamedTuple):
    """What the window of an application shows: a page of its table, or a form.

    Args:
        page: the page of the table, from 0.
        sought: (place of a field, value) that the rows must have; None: all rows.
        form: the values in the form, saved or not; None: the table is shown.
        record: the key of the record in the form; None: a new one.
    """

    page: int = 0
    sought: tuple[int, Cell] | None = None
    form: Row | None = None
    record: Cell = None


class State(NamedTuple):
    """Everything that changes in an episode.

    Args:
        tables: what is saved, one table an application.
        windows: what each application's window shows.
        active: the place of the application in front; -1 before one is opened.
    """

    tables: Tables
    windows: tuple[Window, ...]
    active: int = -1


@dataclass(frozen=True)
class Office:
    """What does not change in an episode.

    Args:
        tables: what is saved in the beginning, in the order of `applications`.
        bounds: (application, field) -> smallest and largest number that is saved.
        applications: by name.
    """

    tables: Tables
    bounds: Mapping[tuple[str, str], tuple[int, int]]
    applications: Mapping[str, Application] = field(default_factory=lambda: APPLICATIONS)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The applications by their place."""
        return tuple(self.applications)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Application -> its place."""
        return MappingProxyType({name: place for place, name in enumerate(self.names)})

    @cached_property
    def start(self) -> State:
        """The state in the beginning: no application is open."""
        return State(self.tables, (Window(),) * len(self.names))

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The smallest number that a new record of each application may get, whatever was deleted."""
        return tuple(1 + max((row[0] for row in table if isinstance(row[0], int)), default=0) for table in self.tables)

    def bounds_of(self, application: str, field: str) -> tuple[int, int]:
        """The smallest and the largest number that is saved in a field."""
        return self.bounds.get((application, field), DAYS)


def row_of(table: Table, key: Cell) -> Row | None:
    """The row of a key; None where there is none."""
    return next((row for row in table if row[0] == key), None)


def users_of(office: Office, tables: Tables, application: str, /, *, key: Cell) -> Iterator[str]:
    """The applications that have records which refer to this one."""
    for name, table in zip(office.names, tables, strict=True):
        links = [place for place, field in enumerate(office.applications[name].fields) if field.link == application]
        if any(row[place] == key for row in table for place in links):
            yield name


def contents(tables: Tables) -> tuple[frozenset[Row], ...]:
    """What is saved, whatever the order of the rows: what success is judged by."""
    return tuple(map(frozenset, tables))
