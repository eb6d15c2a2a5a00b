"""Jobs: a record, the change to make, its description in words, and the correct result.

A job is (application, pick, change). The pick describes its record:

    named      order 58                       by       the order with item lamp
    both       the order with customer evans and item lamp
    largest    the order with the largest amount (and `smallest`)
    of         the customer of order 58

and the change is one of: `set` a field, `copy` it from another record, set it as near to a number as the validation
allows (`limit`), bring the record into a state that needs a value of another record (`finish`), `drop` it, or add an
`order`, an `invoice` or a `ticket` for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from evolvent.worlds.backoffice.applications import FIRST_STATE, NEEDS, Cell, Row
from evolvent.worlds.backoffice.office import Office, Tables, find_row
from evolvent.worlds.backoffice.rules import Refusal, delete_record, save_form
from evolvent.worlds.backoffice.text import format_cell

__all__ = [
    "ADDITIONS",
    "CHANGE_KINDS",
    "COPYABLE_FIELDS",
    "FINAL_STATES",
    "PICK_KINDS",
    "Change",
    "Job",
    "Pick",
    "carry_out",
    "describe_job",
    "describe_record",
    "find_record",
]


class Pick(NamedTuple):
    """The description of a record.

    Args:
        kind: one of `PICK_KINDS`.
        field, value: the named field and its value; `named` has the key; `of` has the field of the other record
            that leads to this record.
        second_name: for `both`, the second field; for `of`, the other record's application.
        second_value: for `both`, the second value; for `of`, the other record's key.
    """

    kind: str
    field: str = ""
    value: Cell = None
    second_name: str = ""
    second_value: Cell = None


class Change(NamedTuple):
    """The change to make to a record.

    Args:
        kind: one of `CHANGE_KINDS`.
        fields: (field, value) as the task states them; of the new record where one is added. `copy` has (field,
            None).
        source: for `copy`, (application, key, field).
    """

    kind: str
    fields: tuple[tuple[str, Cell], ...] = ()
    source: tuple[str, Cell, str] = ("", None, "")


class Job(NamedTuple):
    """A record of an application, and the change to make to it."""

    application: str
    pick: Pick
    change: Change


PICK_KINDS = ("named", "by", "both", "largest", "smallest", "of")
"""How a record can be told."""
CHANGE_KINDS = ("set", "copy", "limit", "finish", "drop", "order", "invoice", "ticket")
"""What can be done with a record."""
ADDITIONS: Mapping[str, tuple[str, str, tuple[str, ...]]] = MappingProxyType(
    {
        "order": ("orders", "customers", ("item", "amount")),
        "invoice": ("invoices", "orders", ("total",)),
        "ticket": ("tickets", "customers", ("topic", "hours")),
    }
)
"""What is added -> its application, that of the record it is added for, and the fields that are told."""
COPYABLE_FIELDS: Mapping[str, tuple[tuple[str, str, str], ...]] = MappingProxyType(
    {
        "customers": (("city", "orders", "city"), ("agent", "tickets", "agent"), ("city", "staff", "city")),
        "orders": (("city", "customers", "city"), ("day", "invoices", "day"), ("amount", "invoices", "total")),
        "invoices": (("day", "orders", "day"), ("total", "orders", "amount")),
        "staff": (("city", "customers", "city"), ("team", "staff", "team")),
        "tickets": (("agent", "customers", "agent"), ("hours", "orders", "amount")),
    }
)
"""Application -> (field, application, field) that can be copied into it."""
FINAL_STATES: Mapping[str, str] = MappingProxyType(
    {name: need.state for name in NEEDS for need in NEEDS[name] if need.state}
)
"""Application -> the state that needs something of another record."""


def describe_job(office: Office, job: Job) -> str:
    """Describes a job in words."""
    change, record_text = job.change, describe_record(office, job.application, pick=job.pick)
    values_text = " and ".join(f"{field} {format_cell(value)}" for field, value in change.fields)
    if change.kind == "drop":
        return f"delete {record_text}"
    if change.kind in ADDITIONS:
        return f"add {'an' if change.kind[0] in 'oi' else 'a'} {change.kind} for {record_text} with {values_text}"
    field, value = change.fields[0]
    if change.kind == "copy":
        application, key, source_field = change.source
        singular = office.applications[application].singular
        return f"set the {field} of {record_text} to the {source_field} of {singular} {format_cell(key)}"
    suffix = {"limit": " or as near as can be", "finish": " with what that needs"}.get(change.kind, "")
    return f"set the {field} of {record_text} to {format_cell(value)}{suffix}"


def describe_record(office: Office, name: str, *, pick: Pick) -> str:
    """Describes the record of an application in the words of the task."""
    singular = office.applications[name].singular
    if pick.kind == "named":
        return f"{singular} {format_cell(pick.value)}"
    if pick.kind == "of":
        return f"the {pick.field} of {office.applications[pick.second_name].singular} {format_cell(pick.second_value)}"
    if pick.kind in ("largest", "smallest"):
        return f"the {singular} with the {pick.kind} {pick.field}"
    description = f"the {singular} with {pick.field} {format_cell(pick.value)}"
    return (
        f"{description} and {pick.second_name} {format_cell(pick.second_value)}" if pick.kind == "both" else description
    )


def find_record(office: Office, tables: Tables, job: Job) -> Row | None:
    """Finds the record that a job is about; returns None unless exactly one matches."""
    application, pick = office.applications[job.application], job.pick
    table = tables[office.application_index[job.application]]
    if pick.kind == "named":
        return find_row(table, pick.value)
    if pick.kind == "of":
        linking_row = find_row(tables[office.application_index[pick.second_name]], pick.second_value)
        index = office.applications[pick.second_name].field_index[pick.field]
        return None if linking_row is None else find_row(table, linking_row[index])
    index = application.field_index[pick.field]
    if pick.kind in ("largest", "smallest"):
        extreme = (max if pick.kind == "largest" else min)([_to_number(row[index]) for row in table], default=0)
        matches: Sequence[Row] = [row for row in table if row[index] == extreme]
    else:
        matches = [row for row in table if row[index] == pick.value]
    if pick.kind == "both":
        matches = [row for row in matches if row[application.field_index[pick.second_name]] == pick.second_value]
    return matches[0] if len(matches) == 1 else None


def _to_number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0


def carry_out(office: Office, tables: Tables, job: Job) -> Tables | None:
    """Returns the tables after a job; None where it is ambiguous, changes nothing, or would be refused."""
    row, change = find_record(office, tables, job), job.change
    if row is None:
        return None
    if change.kind == "drop":
        remaining_tables = delete_record(office, tables, job.application, key=row[0])
        return None if isinstance(remaining_tables, Refusal) else remaining_tables
    if change.kind in ADDITIONS:
        return _add_record(office, tables, change, row=row)
    application = office.applications[job.application]
    form = list(row)
    (field, value), *_ = change.fields
    if change.kind == "copy":
        source, key, source_field = change.source
        source_row = find_row(tables[office.application_index[source]], key)
        value = None if source_row is None else source_row[office.applications[source].field_index[source_field]]
        if value is None:
            return None
    if change.kind == "limit":
        low, high = office.bounds_of(job.application, field)
        value = min(max(_to_number(value), low), high)
    form[application.field_index[field]] = value
    if change.kind == "finish":
        need = next(need for need in NEEDS[job.application] if need.state == value)
        link = application.field(need.link).link
        other_row = find_row(tables[office.application_index[link]], row[application.field_index[need.link]])
        form[application.field_index[need.field]] = (
            None if other_row is None else other_row[office.applications[link].field_index[need.field]]
        )
    stored = save_form(office, tables, job.application, form=tuple(form), record=row[0])
    return None if isinstance(stored, Refusal) or tuple(form) == row else stored[0]


def _add_record(office: Office, tables: Tables, change: Change, *, row: Row) -> Tables | None:
    name, parent, _ = ADDITIONS[change.kind]
    application = office.applications[name]
    values = {**dict(change.fields), office.applications[parent].singular: row[0], "state": FIRST_STATE}
    for need in NEEDS[name]:
        if not need.state:
            values[need.field] = row[office.applications[parent].field_index[need.field]]
    form = tuple(values.get(field.name) for field in application.fields)
    stored = save_form(office, tables, name, form=form, record=None)
    return None if isinstance(stored, Refusal) else stored[0]
