"""Texts of the back office: screens, refusals and actions.

orders page 1 of 2 : number customer item amount ; 51 adams lamp 12 ; 58 evans desk 7 ; ...
order 58 : customer evans ; item desk ; amount 7 ; day 3 ; city none ; state open
refused , amount must be from 4 to 20 . order 58 not saved : customer evans ; item desk ; amount 35 ; ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from evolvent.worlds.backoffice.applications import APPLICATIONS, NUMBERS, RECORD_NUMBERS, Application, Cell, Row
from evolvent.worlds.backoffice.office import DAYS, PAGE, Office, State, Window, find_row
from evolvent.worlds.backoffice.rules import Act, Outcome, Refusal, filter_rows, possible_acts

__all__ = [
    "END_TEXTS",
    "MALFORMED",
    "OBSTACLE_TEXTS",
    "explain_refusal",
    "format_act",
    "format_cell",
    "legal_actions",
    "parse_act",
    "render_outcome",
    "render_screen",
    "vocabulary_texts",
]

END_TEXTS: Mapping[bool, str] = MappingProxyType(
    {True: "right , all is as it was told", False: "wrong , not all is as it was told"}
)
"""What is said at the end."""
MALFORMED = "expected open show find next new set save delete back or done"
"""What is answered to a text that is no action."""
OBSTACLE_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "closed": "open an application first",
        "table": "go back to the table first",
        "form": "show a record first",
        "field": "there is no such field to fill in",
        "value": "there is no such value",
        "record": "there is no such record",
        "last": "this is the last page",
        "first": "there is nothing to go back from",
    }
)
"""What is answered to an action that cannot be done; the keys are those of `rules.impossible`."""
_USAGE: Mapping[str, str] = MappingProxyType(
    {
        "open": "expected open and an application",
        "show": "expected show and the first cell of a row",
        "find": "expected find , a field and a value",
        "set": "expected set , a field and a value",
    }
)
_VERBS_WITHOUT_ARGUMENTS = frozenset({"next", "new", "save", "delete", "back", "done"})
_MAX_CHARACTERS = 80  # characters of a text that is read at all
_NUMBER = re.compile(r"[0-9]{1,4}")


def format_cell(value: Cell) -> str:
    """Formats a cell as a word."""
    return "none" if value is None else str(value)


def format_act(act: Act) -> str:
    """Formats an act as an action's text."""
    tokens = [act.verb, act.name] if act.name else [act.verb]
    return " ".join(tokens if act.verb not in ("show", "find", "set") else [*tokens, format_cell(act.value)])


def legal_actions(office: Office, state: State) -> tuple[str, ...]:
    """Returns the texts of all possible acts at the screen, sorted."""
    return tuple(sorted(map(format_act, possible_acts(office, state))))


def parse_act(text: str) -> Act | str:
    """Parses the act that a text asks for; returns a sentence with the expected form where it is none."""
    tokens = text.lower().split() if len(text) <= _MAX_CHARACTERS else []
    verb = tokens[0] if tokens else ""
    if verb in _VERBS_WITHOUT_ARGUMENTS:
        return Act(verb) if len(tokens) == 1 else MALFORMED
    if verb == "open" and len(tokens) == 2:
        return Act(verb, tokens[1])
    if verb == "show" and len(tokens) == 2:
        return Act(verb, "", _parse_cell(tokens[1]))
    if verb in ("find", "set") and len(tokens) == 3:
        return Act(verb, tokens[1], _parse_cell(tokens[2]))
    return _USAGE.get(verb, MALFORMED)


def _parse_cell(word: str) -> Cell:
    return None if word == "none" else int(word) if _NUMBER.fullmatch(word) else word


def render_screen(office: Office, state: State) -> str:
    """Renders the window in front."""
    if state.active < 0:
        *first_names, last = office.names
        return f"open {' , '.join(first_names)} or {last}"
    application, window = office.applications[office.names[state.active]], state.windows[state.active]
    table = state.tables[state.active]
    return (
        _render_table(application, window, table) if window.form is None else _render_form(application, window, table)
    )


def _render_table(application: Application, window: Window, table: tuple[Row, ...]) -> str:
    rows = filter_rows(table, window)
    pages = max(1, -(-len(rows) // PAGE))
    filter_text = ""
    if window.row_filter is not None:
        filter_text = f" with {application.fields[window.row_filter[0]].name} {format_cell(window.row_filter[1])}"
    header = " ".join(application.fields[index].name for index in application.columns)
    visible_rows = rows[window.page * PAGE : (window.page + 1) * PAGE]
    lines = [" ".join(format_cell(row[index]) for index in application.columns) for row in visible_rows] or ["nothing"]
    return f"{application.name}{filter_text} page {window.page + 1} of {pages} : {' ; '.join([header, *lines])}"


def _render_form(application: Application, window: Window, table: tuple[Row, ...]) -> str:
    form = window.form or ()
    shows_key = window.record is None and not application.numbered
    fields = list(zip(application.fields, form, strict=True))[0 if shows_key else 1 :]
    cells = " ; ".join(f"{field.name} {format_cell(value)}" for field, value in fields)
    if window.record is None:
        return f"new {application.singular} : {cells}"
    unsaved_text = "" if form == find_row(table, window.record) else " not saved"
    return f"{application.singular} {format_cell(window.record)}{unsaved_text} : {cells}"


def explain_refusal(office: Office, name: str, refusal: Refusal) -> str:
    """Explains why an application refuses to save or delete, in words."""
    application, field = office.applications[name], refusal.field
    if refusal.reason == "need" and refusal.need is not None:
        record_text = f"{refusal.need.state} {application.singular}".strip()
        return (
            f"{'an' if record_text[0] in 'aeiou' else 'a'} {record_text} needs the {field} of its {refusal.need.link}"
        )
    if refusal.reason == "bounds":
        return f"{field} must be from {refusal.low} to {refusal.high}"
    if refusal.reason == "used":
        return f"{field} refer to this {application.singular}"
    sentences = {
        "needed": f"{field} must be filled in",
        "gone": f"there is no such {field}",
        "taken": f"the {field} is taken",
    }
    return sentences[refusal.reason]


def render_outcome(office: Office, outcome: Outcome) -> str:
    """Renders the observation after an act: its result, and the screen."""
    state = outcome.state
    screen_text = render_screen(office, state)
    if outcome.status in ("saved", "deleted"):
        singular = office.applications[office.names[state.active]].singular
        return f"{outcome.status} {singular} {format_cell(outcome.key)} . {screen_text}"
    if outcome.refusal is not None:
        return f"refused , {explain_refusal(office, office.names[state.active], outcome.refusal)} . {screen_text}"
    return screen_text


def vocabulary_texts() -> Iterator[str]:
    """Yields texts that hold every word and mark of screens, answers and actions."""
    yield from (*END_TEXTS.values(), MALFORMED, *OBSTACLE_TEXTS.values(), *_USAGE.values())
    for application in APPLICATIONS.values():
        yield f"{application.name} {application.singular}"
        yield from (text for field in application.fields for text in (field.name, *field.choices))
    largest = RECORD_NUMBERS[1] + 3  # three new records
    yield " ".join(map(str, range(1, max(NUMBERS[1], DAYS[1], largest) + 1)))
    yield "open , or with page of : ; nothing none new not saved deleted refused a an needs the its is must be"
    yield "filled in from to refer this there no such taken ."
