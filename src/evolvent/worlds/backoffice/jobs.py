"""Jobs: which record, what is to be done with it, how that is said, and what is right in the end.

A job is (application, which, do). `which` is how its record is told:

    named      order 58                       by       the order with item lamp
    both       the order with customer evans and item lamp
    largest    the order with the largest amount (and `smallest`)
    of         the customer of order 58

and `do` is what is done: `set` a field, `copy` it from another record, set it as near to a number as the validation
lets (`limit`), bring the record into a state that needs something of another record (`finish`), `drop` it, or add an
`order`, an `invoice` or a `ticket` for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from evolvent.worlds.backoffice.applications import FIRST_STATE, NEEDS, Cell, Row
from evolvent.worlds.backoffice.office import Office, Tables, row_of
from evolvent.worlds.backoffice.rules import Refusal, deleted, saved
from evolvent.worlds.backoffice.text import said

__all__ = [
    "ADDED",
    "COPIED",
    "DONE",
    "FINISHED",
    "TOLD",
    "Change",
    "Job",
    "Pick",
    "carry_out",
    "describe",
    "meant",
    "target",
]


class Pick(NamedTuple):
    """How a record is told.

    Args:
        which: one of `TOLD`.
        field, value: the field that is named and its value; `named` has the key; `of` has the field of the other record
            that leads to this one.
        other: of `both`, the second field; of `of`, the other record's application.
        second: of `both`, the second value; of `of`, the other record's key.
    """

    which: str
    field: str = ""
    value: Cell = None
    other: str = ""
    second: Cell = None


class Change(NamedTuple):
    """What is done with a record.

    Args:
        do: one of `DONE`.
        fields: (field, value) as told; of the new record where one is added. `copy` has (field, None).
        source: of `copy`, (application, key, field).
    """

    do: str
    fields: tuple[tuple[str, Cell], ...] = ()
    source: tuple[str, Cell, str] = ("", None, "")


class Job(NamedTuple):
    """A record of an application, and what is done with it."""

    application: str
    pick: Pick
    change: Change


TOLD = ("named", "by", "both", "largest", "smallest", "of")
"""How a record can be told."""
DONE = ("set", "copy", "limit", "finish", "drop", "order", "invoice", "ticket")
"""What can be done with a record."""
ADDED: Mapping[str, tuple[str, str, tuple[str, ...]]] = MappingProxyType(
    {
        "order": ("orders", "customers", ("item", "amount")),
        "invoice": ("invoices", "orders", ("total",)),
        "ticket": ("tickets", "customers", ("topic", "hours")),
    }
)
"""What is added -> its application, that of the record it is added for, and the fields that are told."""
COPIED: Mapping[str, tuple[tuple[str, str, str], ...]] = MappingProxyType(
    {
        "customers": (("city", "orders", "city"), ("agent", "tickets", "agent"), ("city", "staff", "city")),
        "orders": (("city", "customers", "city"), ("day", "invoices", "day"), ("amount", "invoices", "total")),
        "invoices": (("day", "orders", "day"), ("total", "orders", "amount")),
        "staff": (("city", "customers", "city"), ("team", "staff", "team")),
        "tickets": (("agent", "customers", "agent"), ("hours", "orders", "amount")),
    }
)
"""Application -> (field, application, field) that can be copied into it."""
FINISHED: Mapping[str, str] = MappingProxyType({name: need.when for name in NEEDS for need in NEEDS[name] if need.when})
"""Application -> the state that needs something of another record."""


def describe(office: Office, job: Job) -> str:
    """A job in words."""
    change, row = job.change, target(office, job.application, pick=job.pick)
    told = " and ".join(f"{field} {said(value)}" for field, value in change.fields)
    if change.do == "drop":
        return f"delete {row}"
    if change.do in ADDED:
        return f"add {'an' if change.do[0] in 'oi' else 'a'} {change.do} for {row} with {told}"
    field, value = change.fields[0]
    if change.do == "copy":
        application, key, other = change.source
        return f"set the {field} of {row} to the {other} of {office.applications[application].one} {said(key)}"
    end = {"limit": " or as near as can be", "finish": " with what that needs"}.get(change.do, "")
    return f"set the {field} of {row} to {said(value)}{end}"


def target(office: Office, name: str, *, pick: Pick) -> str:
    """The record of an application in the words of the task."""
    one = office.applications[name].one
    if pick.which == "named":
        return f"{one} {said(pick.value)}"
    if pick.which == "of":
        return f"the {pick.field} of {office.applications[pick.other].one} {said(pick.second)}"
    if pick.which in ("largest", "smallest"):
        return f"the {one} with the {pick.which} {pick.field}"
    told = f"the {one} with {pick.field} {said(pick.value)}"
    return f"{told} and {pick.other} {said(pick.second)}" if pick.which == "both" else told


def meant(office: Office, tables: Tables, job: Job) -> Row | None:
    """The record that a job is about; None unless there is exactly one."""
    application, pick = office.applications[job.application], job.pick
    table = tables[office.places[job.application]]
    if pick.which == "named":
        return row_of(table, pick.value)
    if pick.which == "of":
        other = row_of(tables[office.places[pick.other]], pick.second)
        place = office.applications[pick.other].places[pick.field]
        return None if other is None else row_of(table, other[place])
    place = application.places[pick.field]
    if pick.which in ("largest", "smallest"):
        best = (max if pick.which == "largest" else min)([_number(row[place]) for row in table], default=0)
        found: Sequence[Row] = [row for row in table if row[place] == best]
    else:
        found = [row for row in table if row[place] == pick.value]
    if pick.which == "both":
        found = [row for row in found if row[application.places[pick.other]] == pick.second]
    return found[0] if len(found) == 1 else None


def _number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0


def carry_out(office: Office, tables: Tables, job: Job) -> Tables | None:
    """The tables after a job; None where it is ambiguous, changes nothing, or would be refused."""
    row, change = meant(office, tables, job), job.change
    if row is None:
        return None
    if change.do == "drop":
        left = deleted(office, tables, job.application, key=row[0])
        return None if isinstance(left, Refusal) else left
    if change.do in ADDED:
        return _added(office, tables, change, row=row)
    application = office.applications[job.application]
    form = list(row)
    (field, value), *_ = change.fields
    if change.do == "copy":
        source, key, other = change.source
        found = row_of(tables[office.places[source]], key)
        value = None if found is None else found[office.applications[source].places[other]]
        if value is None:
            return None
    if change.do == "limit":
        low, high = office.bounds_of(job.application, field)
        value = min(max(_number(value), low), high)
    form[application.places[field]] = value
    if change.do == "finish":
        need = next(need for need in NEEDS[job.application] if need.when == value)
        link = application.field(need.link).link
        other_row = row_of(tables[office.places[link]], row[application.places[need.link]])
        form[application.places[need.field]] = (
            None if other_row is None else other_row[office.applications[link].places[need.field]]
        )
    stored = saved(office, tables, job.application, form=tuple(form), record=row[0])
    return None if isinstance(stored, Refusal) or tuple(form) == row else stored[0]


def _added(office: Office, tables: Tables, change: Change, *, row: Row) -> Tables | None:
    name, parent, _ = ADDED[change.do]
    application = office.applications[name]
    told = {**dict(change.fields), office.applications[parent].one: row[0], "state": FIRST_STATE}
    for need in NEEDS[name]:
        if not need.when:
            told[need.field] = row[office.applications[parent].places[need.field]]
    form = tuple(told.get(field.name) for field in application.fields)
    stored = saved(office, tables, name, form=form, record=None)
    return None if isinstance(stored, Refusal) else stored[0]
