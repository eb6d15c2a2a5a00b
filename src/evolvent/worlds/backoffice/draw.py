"""Drawing offices and their jobs, the kinds of tasks and their tiers, and the canonical form of a task.

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
    ADDED,
    COPIED,
    DONE,
    FINISHED,
    TOLD,
    Change,
    Job,
    Pick,
    carry_out,
    meant,
)
from evolvent.worlds.backoffice.office import DAYS, Office, contents
from evolvent.worlds.tools.kinds import ATTEMPTS, Draw, Kind, tiers_of_kinds

__all__ = ["canonical_key", "draw_task", "is_kind", "kinds_of_tiers", "rounds"]

_PAIRS, _TRIPLES = 500, 12000  # kinds of two and three jobs that are considered
_TRIES = 20  # draws of a job in one office
_REFERRED = {"customers": 4, "orders": 5, "staff": 4}  # records that others refer to; the rest can be deleted


@cache
def _singles() -> tuple[Kind, ...]:
    """Every kind of one job."""
    return tuple(
        (name, which, do) for name in APPLICATIONS for which in TOLD for do in DONE if _makes_sense(name, which, do)
    )


def _makes_sense(name: str, which: str, do: str) -> bool:
    if which == "of" and do == "drop":  # a record that another refers to cannot be deleted
        return False
    if which == "of" and not any(field.link == name for other in APPLICATIONS.values() for field in other.fields):
        return False
    if do in ADDED:
        return ADDED[do][1] == name
    return do != "finish" or name in FINISHED


def is_kind(kind: object) -> bool:
    """Whether this is a kind: one to three jobs about different applications."""
    if not isinstance(kind, list | tuple) or len(kind) not in (3, 6, 9):
        return False
    jobs = [tuple(kind[at : at + 3]) for at in range(0, len(kind), 3)]
    return all(job in _singles() for job in jobs) and _apart(jobs)


@cache
def kinds_of_tiers() -> Mapping[str, tuple[Kind, ...]]:
    """Tier -> its kinds."""
    draw, singles = Draw("evolvent backoffice kinds 1"), _singles()
    drawn = [[draw.choice(singles) for _ in range(count)] for count in [2] * _PAIRS + [3] * _TRIPLES]
    longer = [tuple(part for single in jobs for part in single) for jobs in drawn if _apart(jobs)]
    return tiers_of_kinds("backoffice", [*singles, *longer], trained=6)


def _apart(jobs: Sequence[Kind]) -> bool:
    """Whether no job is about an application that another is about or changes."""
    about = [one for name, _, do in jobs for one in ((name, ADDED[do][0]) if do in ADDED else (name,))]
    return len(set(about)) == len(about)


def rounds(tier: str) -> Iterator[tuple[Kind, int]]:
    """(kind, seed) without end: one of every kind of the tier, then the next of every kind."""
    for seed in count():
        yield from ((kind, seed) for kind in kinds_of_tiers()[tier])


def draw_task(kind: Kind, seed: int) -> tuple[Office, tuple[Job, ...]]:
    """The office and the jobs of a kind and a seed.

    The jobs are independent: in whatever order they are done, the same is saved in the end. Every one changes
    something.

    Raises:
        ConfigError: no office allows jobs of this kind.
    """
    for attempt in range(ATTEMPTS):
        draw = Draw("evolvent backoffice 1", *kind, seed, attempt)
        office = _office(draw)
        jobs: list[Job] = []
        for at in range(0, len(kind), 3):
            job = _job(draw, office, kind[at : at + 3])
            if job is None:
                break
            jobs.append(job)
        if 3 * len(jobs) == len(kind) and _independent(office, jobs):
            return office, tuple(jobs)
    raise ConfigError("no back office allows jobs of this kind", value=kind)


def _independent(office: Office, jobs: Sequence[Job]) -> bool:
    ends = set()
    for order in permutations(jobs):
        tables = office.tables
        for job in order:
            after = carry_out(office, tables, job)
            if after is None:
                return False
            tables = after
        ends.add(contents(tables))
    return len(ends) == 1


def _office(draw: Draw) -> Office:
    """Tables in which every record could be saved as it is."""
    bounds = {}
    for name, application in APPLICATIONS.items():
        for field in application.fields:
            if field.bounded:
                bounds[name, field.name] = (draw.between(3, 6), draw.between(16, 30))
    tables: dict[str, tuple[Row, ...]] = {}
    linked: dict[str, list[Cell]] = {}
    for name in ("staff", "customers", "orders", "invoices", "tickets"):
        tables[name] = _rows(draw, APPLICATIONS[name], bounds, tables=tables, linked=linked)
        linked[name] = draw.some(_REFERRED.get(name, 0), [row[0] for row in tables[name]])
    return Office(tuple(tables[name] for name in APPLICATIONS), bounds)


def _rows(
    draw: Draw,
    application: Application,
    bounds: Mapping[tuple[str, str], tuple[int, int]],
    *,
    tables: Mapping[str, tuple[Row, ...]],
    linked: Mapping[str, Sequence[Cell]],
) -> tuple[Row, ...]:
    """The records of one application, given those that it refers to. No number in a bounded field is there twice."""
    count = application.rows
    if application.numbered:
        keys: list[Cell] = [*sorted(draw.some(count, range(RECORD_NUMBERS[0], RECORD_NUMBERS[1] + 1)))]
    else:
        keys = [*draw.some(count, application.fields[0].words)]
    columns: list[list[Cell]] = [keys]
    for field in application.fields[1:]:
        if field.link:
            columns.append([draw.choice(linked[field.link]) for _ in keys])
        elif field.bounded:
            low, high = bounds[application.name, field.name]
            columns.append([*draw.some(count, range(low, high + 1))])
        elif field.kind == "number":
            columns.append([draw.between(*DAYS) for _ in keys])
        else:
            columns.append([draw.choice(field.words) for _ in keys])
    rows = [_sound(draw, application, list(cells), tables) for cells in zip(*columns, strict=True)]
    return tuple(rows)


def _sound(draw: Draw, application: Application, cells: list[Cell], tables: Mapping[str, tuple[Row, ...]]) -> Row:
    """A record with what it needs; what it need not have yet it may lack."""
    places = application.places
    for need in NEEDS.get(application.name, ()):
        link = application.field(need.link).link
        other = next(row for row in tables[link] if row[0] == cells[places[need.link]])
        if not need.when or cells[places["state"]] == need.when:
            cells[places[need.field]] = other[APPLICATIONS[link].places[need.field]]
        elif cells[places["state"]] == FIRST_STATE and not draw.below(2):
            cells[places[need.field]] = None
        if cells[places[need.field]] is None and need.when and cells[places["state"]] == need.when:
            cells[places["state"]] = FIRST_STATE  # an order without a day cannot be invoiced to the end
    return tuple(cells)


def _job(draw: Draw, office: Office, kind: Kind) -> Job | None:
    """A job of a kind that can be done in this office; None where none was found."""
    name, which, do = kind
    for _ in range(_TRIES):
        row = draw.choice(office.tables[office.places[name]])
        pick = _pick(draw, office, name, which=which, row=row)
        change = None if pick is None else _change(draw, office, name, do=do, row=row)
        if pick is not None and change is not None:
            job = Job(name, pick, change)
            if meant(office, office.tables, job) == row and carry_out(office, office.tables, job) is not None:
                return job
    return None


def _pick(draw: Draw, office: Office, name: str, *, which: str, row: Row) -> Pick | None:
    """How a record may be told; whether that is unambiguous is asked later."""
    application = office.applications[name]
    if which == "named":
        return Pick(which, "", row[0])
    if which == "of":
        uses = [
            (other.name, field.name)
            for other in office.applications.values()
            for field in other.fields
            if field.link == name
        ]
        other, link = draw.choice(uses)
        place = office.applications[other].places[link]
        referring = [one[0] for one in office.tables[office.places[other]] if one[place] == row[0]]
        return Pick(which, link, None, other, draw.choice(referring)) if referring else None
    if which in ("largest", "smallest"):
        return Pick(which, next(field.name for field in application.fields if field.bounded))
    listed = [field.name for field in application.fields if field.listed and not field.bounded][1:]
    if which == "both":
        first, second = draw.some(2, listed)
        alike = [
            one
            for one in office.tables[office.places[name]]
            if _at(application, one, first) == _at(application, row, first)
        ]
        pick = Pick(which, first, _at(application, row, first), second, _at(application, row, second))
        return pick if len(alike) > 1 else None
    told = [field.name for field in application.fields[1:] if field.name != "state" and not field.bounded]
    field_name = draw.choice(told)
    value = _at(application, row, field_name)
    return None if value is None else Pick(which, field_name, value)


def _at(application: Application, row: Row, field: str) -> Cell:
    return row[application.places[field]]


def _change(draw: Draw, office: Office, name: str, *, do: str, row: Row) -> Change | None:
    application = office.applications[name]
    if do == "drop":
        return Change(do)
    if do in ADDED:
        added = ADDED[do][0]
        return Change(do, tuple((field, _value(draw, office, added, field)) for field in ADDED[do][2]))
    if do == "copy":
        field, source, other = draw.choice(COPIED[name])
        table = office.tables[office.places[source]]
        key = draw.choice([one[0] for one in table if source != name or one[0] != row[0]])
        return Change(do, ((field, None),), (source, key, other))
    if do == "finish":
        return Change(do, (("state", FINISHED[name]),))
    if do == "limit":
        field = next(field.name for field in application.fields if field.bounded)
        low, high = office.bounds_of(name, field)
        above = draw.below(2)
        return Change(
            do, ((field, draw.between(high + 1, NUMBERS[1]) if above else draw.between(NUMBERS[0], low - 1)),)
        )
    able = [field.name for field in application.fields[1:] if not field.link and field.name != "state"]
    field = draw.choice(able)
    return Change(do, ((field, _value(draw, office, name, field)),))


def _value(draw: Draw, office: Office, name: str, field: str) -> Cell:
    """A value that can be saved in a field."""
    found = office.applications[name].field(field)
    return draw.choice(found.words) if found.kind == "word" else draw.between(*office.bounds_of(name, field))


def canonical_key(kind: Kind, office: Office, jobs: Sequence[Job]) -> str:
    """A digest that is equal for tasks that differ in names alone: of people, cities, things, teams, and of records.

    Names are numbered as they are met, in the jobs first and then in the tables from row to row.
    """
    met: dict[tuple[str, Cell], int] = {}

    def code(name: str, field: str, value: Cell) -> Json:
        application = office.applications[name]
        found = application.field(field)
        pool = found.link or (name if found is application.fields[0] else "")
        if not pool and (found.kind == "number" or not found.named or value is None):
            return value
        return ["name", met.setdefault((pool or field, value), len(met))]

    told: list[Json] = []
    for name, pick, change in jobs:
        application = office.applications[name]
        key = application.fields[0].name
        if pick.which == "of":
            other = office.applications[pick.other]
            told.append([pick.other, pick.field, code(pick.other, other.fields[0].name, pick.second)])
        else:
            told.append([pick.field, code(name, pick.field or key, pick.value) if pick.value is not None else None])
            told.append([pick.other, code(name, pick.other, pick.second) if pick.other else None])
        to = ADDED[change.do][0] if change.do in ADDED else name
        told.append([[field, code(to, field, value)] for field, value in change.fields])
        source, record, field = change.source
        told.append(
            [source, field, code(source, office.applications[source].fields[0].name, record)] if source else None
        )
    tables: list[Json] = [
        [
            [code(name, field.name, value) for field, value in zip(office.applications[name].fields, row, strict=True)]
            for row in table
        ]
        for name, table in zip(office.names, office.tables, strict=True)
    ]
    bounds: Json = [[*where, *office.bounds[where]] for where in sorted(office.bounds)]
    return hashlib.sha256(canonical_json([list(kind), told, tables, bounds]).encode()).hexdigest()
