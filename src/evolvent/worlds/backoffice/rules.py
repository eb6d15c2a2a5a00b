"""Rules of the screens: possible acts and their results, as pure functions of the state.

Only `save` and `delete` change the tables, and both may be refused. A window keeps its form, saved or not, while
another application is in front; nothing but `back` drops what was not saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evolvent.worlds.backoffice.applications import FIRST_STATE, NEEDS, NUMBERS, Application, Cell, Need, Row
from evolvent.worlds.backoffice.office import PAGE, Office, State, Tables, Window, find_row, referring_applications

__all__ = [
    "Act",
    "Outcome",
    "Refusal",
    "allowed_values",
    "apply_act",
    "check_row",
    "delete_record",
    "filter_rows",
    "find_obstacle",
    "possible_acts",
    "save_form",
]


class Act(NamedTuple):
    """An act at the screen.

    Args:
        verb: "open", "show", "find", "next", "new", "set", "save", "delete", "back" or "done".
        name: of the application (`open`) or of the field (`find`, `set`).
        value: the key (`show`) or the value (`find`, `set`).
    """

    verb: str
    name: str = ""
    value: Cell = None


class Refusal(NamedTuple):
    """The reason why a record is not saved or deleted.

    Args:
        reason: "needed" (the field is empty), "gone" (the record that it refers to), "bounds", "taken" (the name),
            "need" (see `Need`) or "used" (others refer to the record).
        field: the wrong field; for "used" the application that refers to the record.
        low, high: the bounds.
        need: the constraint that is not met.
    """

    reason: str
    field: str
    low: int = 0
    high: int = 0
    need: Need | None = None


class Outcome(NamedTuple):
    """The result of an act: the state, and the message beside the screen.

    Args:
        status: "", "saved", "deleted", "refused" or "done".
        key: of the record that was saved or deleted.
        refusal: the reason of a refusal.
    """

    state: State
    status: str = ""
    key: Cell = None
    refusal: Refusal | None = None


def allowed_values(office: Office, tables: Tables, application: Application, /, *, index: int) -> tuple[Cell, ...]:
    """Returns every value that can be typed into a field, None among them where the field may stay empty."""
    field = application.fields[index]
    if field.link:
        values: tuple[Cell, ...] = tuple(row[0] for row in tables[office.application_index[field.link]])
    else:
        values = field.choices if field.kind == "word" else tuple(range(NUMBERS[0], NUMBERS[1] + 1))
    return values if field.needed else (*values, None)


def filter_rows(table: tuple[Row, ...], window: Window) -> tuple[Row, ...]:
    """Returns the rows that a table shows, over all its pages."""
    if window.row_filter is None:
        return table
    index, value = window.row_filter
    return tuple(row for row in table if row[index] == value)


def _active_window(office: Office, state: State) -> tuple[Application, Window]:
    return office.applications[office.names[state.active]], state.windows[state.active]


def _editable_indices(application: Application, window: Window) -> range:
    """Returns the indices of the fields that can be typed into: a name only once, a number never."""
    first = 0 if window.record is None and not application.numbered else 1
    return range(first, len(application.fields))


def possible_acts(office: Office, state: State) -> Iterator[Act]:
    """Yields everything that can be done at the screen."""
    yield from (Act("open", name) for name in office.names)
    yield Act("done")
    if state.active < 0:
        return
    application, window = _active_window(office, state)
    table = state.tables[state.active]
    if window.form is not None:
        yield from (Act("save"), Act("back"))
        if window.record is not None:
            yield Act("delete")
        for index in _editable_indices(application, window):
            name, current = application.fields[index].name, window.form[index]
            choices = allowed_values(office, state.tables, application, index=index)
            yield from (Act("set", name, value) for value in choices if value != current)
        return
    yield Act("new")
    if (window.page + 1) * PAGE < len(filter_rows(table, window)):
        yield Act("next")
    if window != Window():
        yield Act("back")
    yield from (Act("show", "", row[0]) for row in table)
    for index, field in enumerate(application.fields[1:], 1):
        yield from (
            Act("find", field.name, value) for value in dict.fromkeys(row[index] for row in table) if value is not None
        )


def find_obstacle(office: Office, state: State, act: Act) -> str:
    """Explains why an act is impossible: "closed", "table", "form", "field", "value", "record", "last", "first", or
    "".
    """
    if act.verb == "done":
        return ""
    if act.verb == "open":
        return "" if act.name in office.application_index else "value"
    if state.active < 0:
        return "closed"
    window = state.windows[state.active]
    if act.verb == "back":
        return "first" if window == Window() else ""
    if (act.verb in ("set", "save", "delete")) != (window.form is not None):
        return "table" if window.form is not None else "form"
    if act.verb in ("find", "set"):
        return _find_typing_obstacle(office, state, act)
    if act.verb == "show":
        return "" if find_row(state.tables[state.active], act.value) else "record"
    if act.verb == "next":
        return "" if (window.page + 1) * PAGE < len(filter_rows(state.tables[state.active], window)) else "last"
    return "record" if act.verb == "delete" and window.record is None else ""


def _find_typing_obstacle(office: Office, state: State, act: Act) -> str:
    application, window = _active_window(office, state)
    index = application.field_index.get(act.name, -1)
    if index < (0 if act.verb == "set" else 1) or (
        act.verb == "set" and index not in _editable_indices(application, window)
    ):
        return "field"
    if act.verb == "find":
        field = application.fields[index]
        table = state.tables[state.active]
        values = allowed_values(office, state.tables, application, index=index)
        is_stored = any(row[index] == act.value for row in table)
        return (
            "" if act.value is not None and (is_stored or (field.kind != "link" and act.value in values)) else "value"
        )
    return "" if act.value in allowed_values(office, state.tables, application, index=index) else "value"


def apply_act(office: Office, state: State, act: Act) -> Outcome:
    """Applies a possible act (see `find_obstacle`)."""
    if act.verb == "done":
        return Outcome(state, "done")
    if act.verb == "open":
        return Outcome(state._replace(active=office.application_index[act.name]))
    application, window = _active_window(office, state)
    table = state.tables[state.active]
    if act.verb == "save":
        return _apply_save(office, state)
    if act.verb == "delete":
        return _apply_delete(office, state)
    if act.verb == "show":
        window = Window(form=find_row(table, act.value), record=act.value)
    elif act.verb == "new":
        window = Window(form=tuple(FIRST_STATE if field.name == "state" else None for field in application.fields))
    elif act.verb == "find":
        window = Window(row_filter=(application.field_index[act.name], act.value))
    elif act.verb == "next":
        window = window._replace(page=window.page + 1)
    elif act.verb == "set" and window.form is not None:
        index = application.field_index[act.name]
        window = window._replace(form=(*window.form[:index], act.value, *window.form[index + 1 :]))
    else:
        window = Window()
    return Outcome(_replace_window(state, window))


def _replace_window(state: State, window: Window) -> State:
    index = state.active
    return state._replace(windows=(*state.windows[:index], window, *state.windows[index + 1 :]))


def _apply_save(office: Office, state: State) -> Outcome:
    name, window = office.names[state.active], state.windows[state.active]
    result = save_form(office, state.tables, name, form=window.form or (), record=window.record)
    if isinstance(result, Refusal):
        return Outcome(state, "refused", refusal=result)
    tables, key = result
    return Outcome(_replace_window(state._replace(tables=tables), Window()), "saved", key)


def _apply_delete(office: Office, state: State) -> Outcome:
    name, window = office.names[state.active], state.windows[state.active]
    result = delete_record(office, state.tables, name, key=window.record)
    if isinstance(result, Refusal):
        return Outcome(state, "refused", refusal=result)
    return Outcome(_replace_window(state._replace(tables=result), Window()), "deleted", window.record)


def save_form(
    office: Office, tables: Tables, name: str, /, *, form: Row, record: Cell
) -> tuple[Tables, Cell] | Refusal:
    """Returns the tables with the form saved, and the record's key; or the refusal.

    Args:
        name: the application.
        record: the key of the record that the form belongs to; None: it is a new one.
    """
    refusal = check_row(office, tables, name, form=form, new=record is None)
    if refusal is not None:
        return refusal
    index = office.application_index[name]
    table = tables[index]
    if record is None:
        number = max(
            office.first_new_keys[index], 1 + max((row[0] for row in table if isinstance(row[0], int)), default=0)
        )
        row = (number, *form[1:]) if office.applications[name].numbered else form
        return _replace_table(tables, index, (*table, row)), row[0]
    return _replace_table(tables, index, tuple(form if row[0] == record else row for row in table)), record


def delete_record(office: Office, tables: Tables, name: str, /, *, key: Cell) -> Tables | Refusal:
    """Returns the tables without a record, or the refusal where others refer to it."""
    referrer = next(referring_applications(office, tables, name, key=key), None)
    if referrer is not None:
        return Refusal("used", referrer)
    index = office.application_index[name]
    return _replace_table(tables, index, tuple(row for row in tables[index] if row[0] != key))


def _replace_table(tables: Tables, index: int, table: tuple[Row, ...]) -> Tables:
    return (*tables[:index], table, *tables[index + 1 :])


def check_row(office: Office, tables: Tables, name: str, /, *, form: Row, new: bool) -> Refusal | None:
    """Returns the first refusal of a form, field by field; None where it can be saved."""
    application = office.applications[name]
    for index, field in enumerate(application.fields):
        value = form[index]
        if index == 0 and (application.numbered or not new):
            continue
        if value is None:
            if field.needed:
                return Refusal("needed", field.name)
        elif index == 0:
            if find_row(tables[office.application_index[name]], value) is not None:
                return Refusal("taken", field.name)
        elif field.link and find_row(tables[office.application_index[field.link]], value) is None:
            return Refusal("gone", field.name)
        elif isinstance(value, int) and not field.link:
            low, high = office.bounds_of(name, field.name)
            if not low <= value <= high:
                return Refusal("bounds", field.name, low, high)
    return next(
        (
            Refusal("need", need.field, need=need)
            for need in NEEDS.get(name, ())
            if not _is_need_met(office, tables, name, form=form, need=need)
        ),
        None,
    )


def _is_need_met(office: Office, tables: Tables, name: str, /, *, form: Row, need: Need) -> bool:
    application = office.applications[name]
    if need.state and form[application.field_index["state"]] != need.state:
        return True
    link = application.field(need.link).link
    linked_row = find_row(tables[office.application_index[link]], form[application.field_index[need.link]])
    value = form[application.field_index[need.field]]
    return (
        linked_row is not None
        and value is not None
        and value == linked_row[office.applications[link].field_index[need.field]]
    )
