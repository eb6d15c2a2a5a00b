"""What can be done at a screen, and what comes of it. Pure functions of the state.

Only `save` and `delete` change the tables, and both may be refused. A window keeps its form, saved or not, while
another application is in front; nothing but `back` drops what was not saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evolvent.worlds.backoffice.applications import FIRST_STATE, NEEDS, NUMBERS, Application, Cell, Need, Row
from evolvent.worlds.backoffice.office import PAGE, Office, State, Tables, Window, row_of, users_of

__all__ = [
    "Act",
    "Outcome",
    "Refusal",
    "acts",
    "apply",
    "check_row",
    "deleted",
    "impossible",
    "rows_sought",
    "saved",
    "values_of",
]


class Act(NamedTuple):
    """Something to do.

    Args:
        verb: "open", "show", "find", "next", "new", "set", "save", "delete", "back" or "done".
        name: of the application (`open`) or of the field (`find`, `set`).
        value: the key (`show`) or the value (`find`, `set`).
    """

    verb: str
    name: str = ""
    value: Cell = None


class Refusal(NamedTuple):
    """Why a record is not saved or deleted.

    Args:
        why: "needed" (the field is empty), "gone" (the record that it refers to), "bounds", "taken" (the name), "need"
            (see `Need`) or "used" (others refer to the record).
        field: the field that is wrong; for "used" the application that refers to it.
        low, high: the bounds.
        need: what it needs.
    """

    why: str
    field: str
    low: int = 0
    high: int = 0
    need: Need | None = None


class Outcome(NamedTuple):
    """What comes of an act: the state, and what to tell beside the screen.

    Args:
        told: "", "saved", "deleted", "refused" or "done".
        key: of the record that was saved or deleted.
        refusal: why it was refused.
    """

    state: State
    told: str = ""
    key: Cell = None
    refusal: Refusal | None = None


def values_of(office: Office, tables: Tables, application: Application, /, *, place: int) -> tuple[Cell, ...]:
    """Every value that can be typed into a field, nothing among them where it may stay empty."""
    field = application.fields[place]
    if field.link:
        found: tuple[Cell, ...] = tuple(row[0] for row in tables[office.places[field.link]])
    else:
        found = field.words if field.kind == "word" else tuple(range(NUMBERS[0], NUMBERS[1] + 1))
    return found if field.needed else (*found, None)


def rows_sought(table: tuple[Row, ...], window: Window) -> tuple[Row, ...]:
    """The rows that a table shows, over all its pages."""
    if window.sought is None:
        return table
    place, value = window.sought
    return tuple(row for row in table if row[place] == value)


def _in_front(office: Office, state: State) -> tuple[Application, Window]:
    return office.applications[office.names[state.active]], state.windows[state.active]


def _typed(application: Application, window: Window) -> range:
    """The places of the fields that can be typed into: a name only once, a number never."""
    first = 0 if window.record is None and not application.numbered else 1
    return range(first, len(application.fields))


def acts(office: Office, state: State) -> Iterator[Act]:
    """Everything that can be done at the screen."""
    yield from (Act("open", name) for name in office.names)
    yield Act("done")
    if state.active < 0:
        return
    application, window = _in_front(office, state)
    table = state.tables[state.active]
    if window.form is not None:
        yield from (Act("save"), Act("back"))
        if window.record is not None:
            yield Act("delete")
        for place in _typed(application, window):
            name, now = application.fields[place].name, window.form[place]
            choices = values_of(office, state.tables, application, place=place)
            yield from (Act("set", name, value) for value in choices if value != now)
        return
    yield Act("new")
    if (window.page + 1) * PAGE < len(rows_sought(table, window)):
        yield Act("next")
    if window != Window():
        yield Act("back")
    yield from (Act("show", "", row[0]) for row in table)
    for place, field in enumerate(application.fields[1:], 1):
        yield from (
            Act("find", field.name, value) for value in dict.fromkeys(row[place] for row in table) if value is not None
        )


def impossible(office: Office, state: State, act: Act) -> str:
    """Why an act cannot be done: "closed", "table", "form", "field", "value", "record", "last", "first", or ""."""
    if act.verb == "done":
        return ""
    if act.verb == "open":
        return "" if act.name in office.places else "value"
    if state.active < 0:
        return "closed"
    window = state.windows[state.active]
    if act.verb == "back":
        return "first" if window == Window() else ""
    if (act.verb in ("set", "save", "delete")) != (window.form is not None):
        return "table" if window.form is not None else "form"
    if act.verb in ("find", "set"):
        return _mistyped(office, state, act)
    if act.verb == "show":
        return "" if row_of(state.tables[state.active], act.value) else "record"
    if act.verb == "next":
        return "" if (window.page + 1) * PAGE < len(rows_sought(state.tables[state.active], window)) else "last"
    return "record" if act.verb == "delete" and window.record is None else ""


def _mistyped(office: Office, state: State, act: Act) -> str:
    application, window = _in_front(office, state)
    place = application.places.get(act.name, -1)
    if place < (0 if act.verb == "set" else 1) or (act.verb == "set" and place not in _typed(application, window)):
        return "field"
    if act.verb == "find":
        field = application.fields[place]
        table = state.tables[state.active]
        known = values_of(office, state.tables, application, place=place)
        stored = any(row[place] == act.value for row in table)
        return "" if act.value is not None and (stored or (field.kind != "link" and act.value in known)) else "value"
    return "" if act.value in values_of(office, state.tables, application, place=place) else "value"


def apply(office: Office, state: State, act: Act) -> Outcome:
    """Do what is possible (see `impossible`)."""
    if act.verb == "done":
        return Outcome(state, "done")
    if act.verb == "open":
        return Outcome(state._replace(active=office.places[act.name]))
    application, window = _in_front(office, state)
    table = state.tables[state.active]
    if act.verb == "save":
        return _save(office, state)
    if act.verb == "delete":
        return _delete(office, state)
    if act.verb == "show":
        window = Window(form=row_of(table, act.value), record=act.value)
    elif act.verb == "new":
        window = Window(form=tuple(FIRST_STATE if field.name == "state" else None for field in application.fields))
    elif act.verb == "find":
        window = Window(sought=(application.places[act.name], act.value))
    elif act.verb == "next":
        window = window._replace(page=window.page + 1)
    elif act.verb == "set" and window.form is not None:
        place = application.places[act.name]
        window = window._replace(form=(*window.form[:place], act.value, *window.form[place + 1 :]))
    else:
        window = Window()
    return Outcome(_shown(state, window))


def _shown(state: State, window: Window) -> State:
    at = state.active
    return state._replace(windows=(*state.windows[:at], window, *state.windows[at + 1 :]))


def _save(office: Office, state: State) -> Outcome:
    name, window = office.names[state.active], state.windows[state.active]
    found = saved(office, state.tables, name, form=window.form or (), record=window.record)
    if isinstance(found, Refusal):
        return Outcome(state, "refused", refusal=found)
    tables, key = found
    return Outcome(_shown(state._replace(tables=tables), Window()), "saved", key)


def _delete(office: Office, state: State) -> Outcome:
    name, window = office.names[state.active], state.windows[state.active]
    found = deleted(office, state.tables, name, key=window.record)
    if isinstance(found, Refusal):
        return Outcome(state, "refused", refusal=found)
    return Outcome(_shown(state._replace(tables=found), Window()), "deleted", window.record)


def saved(office: Office, tables: Tables, name: str, /, *, form: Row, record: Cell) -> tuple[Tables, Cell] | Refusal:
    """The tables with the form saved, and the record's key; or why it is refused.

    Args:
        name: the application.
        record: the key of the record that the form belongs to; None: it is a new one.
    """
    refusal = check_row(office, tables, name, form=form, new=record is None)
    if refusal is not None:
        return refusal
    at = office.places[name]
    table = tables[at]
    if record is None:
        number = max(office.firsts[at], 1 + max((row[0] for row in table if isinstance(row[0], int)), default=0))
        row = (number, *form[1:]) if office.applications[name].numbered else form
        return _with(tables, at, (*table, row)), row[0]
    return _with(tables, at, tuple(form if row[0] == record else row for row in table)), record


def deleted(office: Office, tables: Tables, name: str, /, *, key: Cell) -> Tables | Refusal:
    """The tables without a record, or why it is refused: others refer to it."""
    user = next(users_of(office, tables, name, key=key), None)
    if user is not None:
        return Refusal("used", user)
    at = office.places[name]
    return _with(tables, at, tuple(row for row in tables[at] if row[0] != key))


def _with(tables: Tables, at: int, table: tuple[Row, ...]) -> Tables:
    return (*tables[:at], table, *tables[at + 1 :])


def check_row(office: Office, tables: Tables, name: str, /, *, form: Row, new: bool) -> Refusal | None:
    """What is wrong with a form, the first field first; None where it can be saved."""
    application = office.applications[name]
    for place, field in enumerate(application.fields):
        value = form[place]
        if place == 0 and (application.numbered or not new):
            continue
        if value is None:
            if field.needed:
                return Refusal("needed", field.name)
        elif place == 0:
            if row_of(tables[office.places[name]], value) is not None:
                return Refusal("taken", field.name)
        elif field.link and row_of(tables[office.places[field.link]], value) is None:
            return Refusal("gone", field.name)
        elif isinstance(value, int) and not field.link:
            low, high = office.bounds_of(name, field.name)
            if not low <= value <= high:
                return Refusal("bounds", field.name, low, high)
    return next(
        (
            Refusal("need", need.field, need=need)
            for need in NEEDS.get(name, ())
            if not _met(office, tables, name, form=form, need=need)
        ),
        None,
    )


def _met(office: Office, tables: Tables, name: str, /, *, form: Row, need: Need) -> bool:
    application = office.applications[name]
    if need.when and form[application.places["state"]] != need.when:
        return True
    link = application.field(need.link).link
    other = row_of(tables[office.places[link]], form[application.places[need.link]])
    value = form[application.places[need.field]]
    return other is not None and value is not None and value == other[office.applications[link].places[need.field]]
