"""Draws offices and their jobs, the kinds of tasks and their tiers, and the canonical form of a task.

A kind is the sequence of its jobs, three parts each. The tiers are those of `tools.kinds`: of the adjacent pairs of
parts a third is never shown in `seen`; `combo` kinds hold shown pairs only but are never trained as a whole; `longer`
kinds have three jobs, where two are the most that is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count, permutations

from evolvent.errors import ConfigError
from evolvent.trajectory import Json, canonical_json
from evolvent.worlds.backoffice.applications import (
    APPLICATIONS,
    FIRST_STATE,
    NEEDS,
    NUMBERS,
    RECORD_NUMBERS,
    Application,
    Cell,
    Row,
)
from evolvent.worlds.backoffice.jobs import (
    ADDITIONS,
    CHANGE_KINDS,
    COPYABLE_FIELDS,
    FINAL_STATES,
    PICK_KINDS,
    Change,
    Job,
    Pick,
    carry_out,
    find_record,
)
from evolvent.worlds.backoffice.office import DAYS, Office, contents
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, kinds_by_tier

__all__ = ["canonical_key", "draw_task", "is_kind", "iterate_kinds", "kinds_of_tiers"]

_PAIRS, _TRIPLES = 500, 12000  # kinds of two and three jobs that are considered
_TRIES = 20  # draws of a job in one office
_REFERRED = {"customers": 4, "orders": 5, "staff": 4}  # records that others refer to; the rest can be deleted


@cache
def _single_job_kinds() -> tuple[Kind, ...]:
    """Returns every kind of one job."""
    return tuple(
        (name, pick_kind, change_kind)
        for name in APPLICATIONS
        for pick_kind in PICK_KINDS
        for change_kind in CHANGE_KINDS
        if _makes_sense(name, pick_kind, change_kind)
    )


def _makes_sense(name: str, pick_kind: str, change_kind: str) -> bool:
    if pick_kind == "of" and change_kind == "drop":  # a record that another refers to cannot be deleted
        return False
    if pick_kind == "of" and not any(
        field.link == name for application in APPLICATIONS.values() for field in application.fields
    ):
        return False
    if change_kind in ADDITIONS:
        return ADDITIONS[change_kind][1] == name
    return change_kind != "finish" or name in FINAL_STATES


def is_kind(kind: object) -> bool:
    """Returns whether a value is a kind: one to three jobs about different applications."""
    if not isinstance(kind, list | tuple) or len(kind) not in (3, 6, 9):
        return False
    jobs = [tuple(kind[start : start + 3]) for start in range(0, len(kind), 3)]
    return all(job in _single_job_kinds() for job in jobs) and _are_independent_kinds(jobs)


@cache
def kinds_of_tiers() -> Mapping[str, tuple[Kind, ...]]:
    """Returns tier -> its kinds."""
    draw, singles = Draw("evolvent backoffice kinds 1"), _single_job_kinds()
    candidate_jobs = [[draw.choice(singles) for _ in range(count)] for count in [2] * _PAIRS + [3] * _TRIPLES]
    longer = [
        tuple(part for single in jobs for part in single) for jobs in candidate_jobs if _are_independent_kinds(jobs)
    ]
    return kinds_by_tier("backoffice", [*singles, *longer], trained_length=6)


def _are_independent_kinds(jobs: Sequence[Kind]) -> bool:
    """Returns whether no two jobs read or change the same application."""
    applications = [
        application
        for name, _, change_kind in jobs
        for application in ((name, ADDITIONS[change_kind][0]) if change_kind in ADDITIONS else (name,))
    ]
    return len(set(applications)) == len(applications)


def iterate_kinds(tier: str) -> Iterator[tuple[Kind, int]]:
    """Yields (kind, seed) without end: one of every kind of the tier, then the next of every kind."""
    for seed in count():
        yield from ((kind, seed) for kind in kinds_of_tiers()[tier])


def draw_task(kind: Kind, seed: int) -> tuple[Office, tuple[Job, ...]]:
    """Draws the office and the jobs of a kind and a seed.

    The jobs are independent: in any order they leave the same saved records. Every job changes something.

    Raises:
        ConfigError: no office allows jobs of this kind.
    """
    for attempt in range(MAX_ATTEMPTS):
        draw = Draw("evolvent backoffice 1", *kind, seed, attempt)
        office = _draw_office(draw)
        jobs: list[Job] = []
        for start in range(0, len(kind), 3):
            job = _draw_job(draw, office, kind[start : start + 3])
            if job is None:
                break
            jobs.append(job)
        if 3 * len(jobs) == len(kind) and _are_independent(office, jobs):
            return office, tuple(jobs)
    raise ConfigError("no back office allows jobs of this kind", value=kind)


def _are_independent(office: Office, jobs: Sequence[Job]) -> bool:
    final_contents = set()
    for order in permutations(jobs):
        tables = office.tables
        for job in order:
            next_tables = carry_out(office, tables, job)
            if next_tables is None:
                return False
            tables = next_tables
        final_contents.add(contents(tables))
    return len(final_contents) == 1


def _draw_office(draw: Draw) -> Office:
    """Draws tables in which every record is valid."""
    bounds = {}
    for name, application in APPLICATIONS.items():
        for field in application.fields:
            if field.bounded:
                bounds[name, field.name] = (draw.between(3, 6), draw.between(16, 30))
    tables: dict[str, tuple[Row, ...]] = {}
    linked: dict[str, list[Cell]] = {}
    for name in ("staff", "customers", "orders", "invoices", "tickets"):
        tables[name] = _draw_rows(draw, APPLICATIONS[name], bounds, tables=tables, linked=linked)
        linked[name] = draw.sample(_REFERRED.get(name, 0), [row[0] for row in tables[name]])
    return Office(tuple(tables[name] for name in APPLICATIONS), bounds)


def _draw_rows(
    draw: Draw,
    application: Application,
    bounds: Mapping[tuple[str, str], tuple[int, int]],
    *,
    tables: Mapping[str, tuple[Row, ...]],
    linked: Mapping[str, Sequence[Cell]],
) -> tuple[Row, ...]:
    """Draws the records of one application, given those that it refers to; a bounded field holds no number twice."""
    count = application.rows
    if application.numbered:
        keys: list[Cell] = [*sorted(draw.sample(count, range(RECORD_NUMBERS[0], RECORD_NUMBERS[1] + 1)))]
    else:
        keys = [*draw.sample(count, application.fields[0].choices)]
    columns: list[list[Cell]] = [keys]
    for field in application.fields[1:]:
        if field.link:
            columns.append([draw.choice(linked[field.link]) for _ in keys])
        elif field.bounded:
            low, high = bounds[application.name, field.name]
            columns.append([*draw.sample(count, range(low, high + 1))])
        elif field.kind == "number":
            columns.append([draw.between(*DAYS) for _ in keys])
        else:
            columns.append([draw.choice(field.choices) for _ in keys])
    rows = [_complete_row(draw, application, list(cells), tables) for cells in zip(*columns, strict=True)]
    return tuple(rows)


def _complete_row(
    draw: Draw, application: Application, cells: list[Cell], tables: Mapping[str, tuple[Row, ...]]
) -> Row:
    """Fills a record with the values that it needs; a value that it does not need yet may be missing."""
    field_index = application.field_index
    for need in NEEDS.get(application.name, ()):
        link = application.field(need.link).link
        linked_row = next(row for row in tables[link] if row[0] == cells[field_index[need.link]])
        if not need.state or cells[field_index["state"]] == need.state:
            cells[field_index[need.field]] = linked_row[APPLICATIONS[link].field_index[need.field]]
        elif cells[field_index["state"]] == FIRST_STATE and not draw.below(2):
            cells[field_index[need.field]] = None
        if cells[field_index[need.field]] is None and need.state and cells[field_index["state"]] == need.state:
            cells[field_index["state"]] = FIRST_STATE  # an order without a day cannot be invoiced to the end
    return tuple(cells)


def _draw_job(draw: Draw, office: Office, kind: Kind) -> Job | None:
    """Draws a job of a kind that can be done in this office; returns None after too many failures."""
    name, pick_kind, change_kind = kind
    for _ in range(_TRIES):
        row = draw.choice(office.tables[office.application_index[name]])
        pick = _draw_pick(draw, office, name, pick_kind=pick_kind, row=row)
        change = None if pick is None else _draw_change(draw, office, name, change_kind=change_kind, row=row)
        if pick is not None and change is not None:
            job = Job(name, pick, change)
            if find_record(office, office.tables, job) == row and carry_out(office, office.tables, job) is not None:
                return job
    return None


def _draw_pick(draw: Draw, office: Office, name: str, *, pick_kind: str, row: Row) -> Pick | None:
    """Draws a description of a record; the caller checks that it is unambiguous."""
    application = office.applications[name]
    if pick_kind == "named":
        return Pick(pick_kind, "", row[0])
    if pick_kind == "of":
        references = [
            (other_name.name, field.name)
            for other_name in office.applications.values()
            for field in other_name.fields
            if field.link == name
        ]
        other_name, link = draw.choice(references)
        link_index = office.applications[other_name].field_index[link]
        referring = [
            candidate[0]
            for candidate in office.tables[office.application_index[other_name]]
            if candidate[link_index] == row[0]
        ]
        return Pick(pick_kind, link, None, other_name, draw.choice(referring)) if referring else None
    if pick_kind in ("largest", "smallest"):
        return Pick(pick_kind, next(field.name for field in application.fields if field.bounded))
    listed = [field.name for field in application.fields if field.listed and not field.bounded][1:]
    if pick_kind == "both":
        first, second = draw.sample(2, listed)
        alike = [
            candidate
            for candidate in office.tables[office.application_index[name]]
            if _cell_of(application, candidate, first) == _cell_of(application, row, first)
        ]
        pick = Pick(pick_kind, first, _cell_of(application, row, first), second, _cell_of(application, row, second))
        return pick if len(alike) > 1 else None
    telling_fields = [field.name for field in application.fields[1:] if field.name != "state" and not field.bounded]
    field_name = draw.choice(telling_fields)
    value = _cell_of(application, row, field_name)
    return None if value is None else Pick(pick_kind, field_name, value)


def _cell_of(application: Application, row: Row, field: str) -> Cell:
    return row[application.field_index[field]]


def _draw_change(draw: Draw, office: Office, name: str, *, change_kind: str, row: Row) -> Change | None:
    application = office.applications[name]
    if change_kind == "drop":
        return Change(change_kind)
    if change_kind in ADDITIONS:
        added = ADDITIONS[change_kind][0]
        return Change(
            change_kind, tuple((field, _draw_value(draw, office, added, field)) for field in ADDITIONS[change_kind][2])
        )
    if change_kind == "copy":
        field, source, source_field = draw.choice(COPYABLE_FIELDS[name])
        table = office.tables[office.application_index[source]]
        key = draw.choice([candidate[0] for candidate in table if source != name or candidate[0] != row[0]])
        return Change(change_kind, ((field, None),), (source, key, source_field))
    if change_kind == "finish":
        return Change(change_kind, (("state", FINAL_STATES[name]),))
    if change_kind == "limit":
        field = next(field.name for field in application.fields if field.bounded)
        low, high = office.bounds_of(name, field)
        above = draw.below(2)
        return Change(
            change_kind, ((field, draw.between(high + 1, NUMBERS[1]) if above else draw.between(NUMBERS[0], low - 1)),)
        )
    editable_fields = [field.name for field in application.fields[1:] if not field.link and field.name != "state"]
    field = draw.choice(editable_fields)
    return Change(change_kind, ((field, _draw_value(draw, office, name, field)),))


def _draw_value(draw: Draw, office: Office, name: str, field: str) -> Cell:
    """Draws a value that can be saved in a field."""
    field_spec = office.applications[name].field(field)
    return (
        draw.choice(field_spec.choices) if field_spec.kind == "word" else draw.between(*office.bounds_of(name, field))
    )


def _list_name_pools(application: Application) -> list[tuple[str | None, bool]]:
    """Returns for each field the pool that its values name, or None where they are not names, and whether an empty
    cell of it is numbered like a name, as keys and links are.
    """
    key_field = application.fields[0]
    name_pools: list[tuple[str | None, bool]] = []
    for field in application.fields:
        pool = field.link or (application.name if field is key_field else "")
        is_plain = not pool and (field.kind == "number" or not field.named)
        name_pools.append((None if is_plain else pool or field.name, bool(pool)))
    return name_pools


def canonical_key(kind: Kind, office: Office, jobs: Sequence[Job]) -> str:
    """Computes a digest that is equal for tasks that differ only in names: of people, cities, things, teams and
    records.

    Names are numbered as they are met, in the jobs first and then in the tables from row to row.
    """
    name_numbers: dict[tuple[str, Cell], int] = {}

    name_pools = {name: _list_name_pools(application) for name, application in office.applications.items()}

    def encode_cell(pool: str | None, encodes_none: bool, value: Cell) -> Json:
        if pool is None or (value is None and not encodes_none):
            return value
        return ["name", name_numbers.setdefault((pool, value), len(name_numbers))]

    def encode(name: str, field: str, value: Cell) -> Json:
        return encode_cell(*name_pools[name][office.applications[name].field_index[field]], value)

    job_codes: list[Json] = []
    for name, pick, change in jobs:
        application = office.applications[name]
        key = application.fields[0].name
        if pick.kind == "of":
            other_application = office.applications[pick.second_name]
            job_codes.append(
                [
                    pick.second_name,
                    pick.field,
                    encode(pick.second_name, other_application.fields[0].name, pick.second_value),
                ]
            )
        else:
            job_codes.append(
                [pick.field, encode(name, pick.field or key, pick.value) if pick.value is not None else None]
            )
            job_codes.append(
                [pick.second_name, encode(name, pick.second_name, pick.second_value) if pick.second_name else None]
            )
        target_name = ADDITIONS[change.kind][0] if change.kind in ADDITIONS else name
        job_codes.append([[field, encode(target_name, field, value)] for field, value in change.fields])
        source, record, field = change.source
        job_codes.append(
            [source, field, encode(source, office.applications[source].fields[0].name, record)] if source else None
        )
    tables: list[Json] = [
        [[encode_cell(*pool, value) for pool, value in zip(name_pools[name], row, strict=True)] for row in table]
        for name, table in zip(office.names, office.tables, strict=True)
    ]
    bounds: Json = [[*bound_key, *office.bounds[bound_key]] for bound_key in sorted(office.bounds)]
    return hashlib.sha256(canonical_json([list(kind), job_codes, tables, bounds]).encode()).hexdigest()
