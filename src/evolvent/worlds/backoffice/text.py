"""What is said in a back office: screens, refusals, and the actions as texts.

orders page 1 of 2 : number customer item amount ; 51 adams lamp 12 ; 58 evans desk 7 ; ...
order 58 : customer evans ; item desk ; amount 7 ; day 3 ; city none ; state open
refused , amount must be from 4 to 20 . order 58 not saved : customer evans ; item desk ; amount 35 ; ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from evolvent.worlds.backoffice.applications import APPLICATIONS, NUMBERS, RECORD_NUMBERS, Application, Cell, Row
from evolvent.worlds.backoffice.office import DAYS, PAGE, Office, State, Window, row_of
from evolvent.worlds.backoffice.rules import Act, Outcome, Refusal, acts, rows_sought

__all__ = [
    "ENDS",
    "MALFORMED",
    "WRONG_HERE",
    "answer",
    "legal",
    "said",
    "say",
    "screen",
    "texts_said",
    "understand",
    "why",
]

ENDS: Mapping[bool, str] = MappingProxyType(
    {True: "right , all is as it was told", False: "wrong , not all is as it was told"}
)
"""What is said at the end."""
MALFORMED = "expected open show find next new set save delete back or done"
"""What is answered to a text that is no action."""
WRONG_HERE: Mapping[str, str] = MappingProxyType(
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
_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "open": "expected open and an application",
        "show": "expected show and the first cell of a row",
        "find": "expected find , a field and a value",
        "set": "expected set , a field and a value",
    }
)
_BARE = frozenset({"next", "new", "save", "delete", "back", "done"})
_MOST = 80  # characters of a text that is read at all
_NUMBER = re.compile(r"[0-9]{1,4}")


def said(value: Cell) -> str:
    """A cell in a word."""
    return "none" if value is None else str(value)


def say(act: Act) -> str:
    """An act as an action's text."""
    words = [act.verb, act.name] if act.name else [act.verb]
    return " ".join(words if act.verb not in ("show", "find", "set") else [*words, said(act.value)])


def legal(office: Office, state: State) -> tuple[str, ...]:
    """What can be done at the screen, in words, sorted."""
    return tuple(sorted(map(say, acts(office, state))))


def understand(text: str) -> Act | str:
    """The act that a text asks for, or one sentence that says what was expected."""
    words = text.lower().split() if len(text) <= _MOST else []
    verb = words[0] if words else ""
    if verb in _BARE:
        return Act(verb) if len(words) == 1 else MALFORMED
    if verb == "open" and len(words) == 2:
        return Act(verb, words[1])
    if verb == "show" and len(words) == 2:
        return Act(verb, "", _cell(words[1]))
    if verb in ("find", "set") and len(words) == 3:
        return Act(verb, words[1], _cell(words[2]))
    return _FORMS.get(verb, MALFORMED)


def _cell(word: str) -> Cell:
    return None if word == "none" else int(word) if _NUMBER.fullmatch(word) else word


def screen(office: Office, state: State) -> str:
    """The window in front."""
    if state.active < 0:
        *others, last = office.names
        return f"open {' , '.join(others)} or {last}"
    application, window = office.applications[office.names[state.active]], state.windows[state.active]
    table = state.tables[state.active]
    return _table(application, window, table) if window.form is None else _form(application, window, table)


def _table(application: Application, window: Window, table: tuple[Row, ...]) -> str:
    rows = rows_sought(table, window)
    pages = max(1, -(-len(rows) // PAGE))
    sought = ""
    if window.sought is not None:
        sought = f" with {application.fields[window.sought[0]].name} {said(window.sought[1])}"
    head = " ".join(application.fields[place].name for place in application.columns)
    shown = rows[window.page * PAGE : (window.page + 1) * PAGE]
    lines = [" ".join(said(row[place]) for place in application.columns) for row in shown] or ["nothing"]
    return f"{application.name}{sought} page {window.page + 1} of {pages} : {' ; '.join([head, *lines])}"


def _form(application: Application, window: Window, table: tuple[Row, ...]) -> str:
    form = window.form or ()
    named = window.record is None and not application.numbered
    fields = list(zip(application.fields, form, strict=True))[0 if named else 1 :]
    cells = " ; ".join(f"{field.name} {said(value)}" for field, value in fields)
    if window.record is None:
        return f"new {application.one} : {cells}"
    changed = "" if form == row_of(table, window.record) else " not saved"
    return f"{application.one} {said(window.record)}{changed} : {cells}"


def why(office: Office, name: str, refusal: Refusal) -> str:
    """Why an application refuses to save or delete, in words."""
    application, field = office.applications[name], refusal.field
    if refusal.why == "need" and refusal.need is not None:
        one = f"{refusal.need.when} {application.one}".strip()
        return f"{'an' if one[0] in 'aeiou' else 'a'} {one} needs the {field} of its {refusal.need.link}"
    if refusal.why == "bounds":
        return f"{field} must be from {refusal.low} to {refusal.high}"
    if refusal.why == "used":
        return f"{field} refer to this {application.one}"
    sentences = {
        "needed": f"{field} must be filled in",
        "gone": f"there is no such {field}",
        "taken": f"the {field} is taken",
    }
    return sentences[refusal.why]


def answer(office: Office, outcome: Outcome) -> str:
    """What is seen after an act: what came of it, and the screen."""
    state = outcome.state
    shown = screen(office, state)
    if outcome.told in ("saved", "deleted"):
        one = office.applications[office.names[state.active]].one
        return f"{outcome.told} {one} {said(outcome.key)} . {shown}"
    if outcome.refusal is not None:
        return f"refused , {why(office, office.names[state.active], outcome.refusal)} . {shown}"
    return shown


def texts_said() -> Iterator[str]:
    """Texts that hold every word and mark of screens, answers and actions."""
    yield from (*ENDS.values(), MALFORMED, *WRONG_HERE.values(), *_FORMS.values())
    for application in APPLICATIONS.values():
        yield f"{application.name} {application.one}"
        yield from (text for field in application.fields for text in (field.name, *field.words))
    largest = RECORD_NUMBERS[1] + 3  # three new records
    yield " ".join(map(str, range(1, max(NUMBERS[1], DAYS[1], largest) + 1)))
    yield "open , or with page of : ; nothing none new not saved deleted refused a an needs the its is must be"
    yield "filled in from to refer this there no such taken ."
