"""The expert: does the jobs one after another, uses only information from its screens, and states its reasons.

It does not know the bounds of a field, what a state needs, or where a record stands, before a screen tells. Its
thoughts name what is to be done and what was seen, in the words of the world, so that a small model can learn them.
"""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.errors import WorldError
from evolvent.worlds.backoffice.applications import Application, Cell, Row
from evolvent.worlds.backoffice.jobs import ADDITIONS, Job, Pick, describe_job, describe_record
from evolvent.worlds.backoffice.office import PAGE, Office, Window
from evolvent.worlds.backoffice.rules import Act, Refusal, apply_act, filter_rows, find_obstacle
from evolvent.worlds.backoffice.text import format_act, format_cell
from evolvent.worlds.base import Parsed

__all__ = ["solve", "thought_texts"]

_THOUGHTS = (
    "next i have to",
    "first i read the of",
    "i open",
    "i go back to the table of",
    "i look for with",
    "there is another page , it may be there",
    "i see , it is",
    "it should be , as has it",
    "at most least is let , so i take it",
    "it is refused , it needs the of its , which is",
    "i open a new",
    "all is filled in , i save",
    "this is what has to be deleted",
    "all is done",
)


def thought_texts() -> Sequence[str]:
    """Returns texts that hold every word and mark of thoughts that screens and tasks lack."""
    return _THOUGHTS


def solve(office: Office, jobs: Sequence[Job]) -> tuple[Parsed, ...]:
    """Returns actions that do the jobs in their order and finish, each with the thought that led to it."""
    clerk = _ScreenUser(office)
    for job in jobs:
        clerk.do_job(job)
    clerk.do(Act("done"), "all is done")
    return tuple(clerk.done)


class _ScreenUser:
    """A simulated user of the screens, which records its actions and thoughts."""

    def __init__(self, office: Office) -> None:
        self.office, self.state = office, office.start
        self.done: list[Parsed] = []
        self._aim = ""

    def do(self, act: Act, thought: str) -> Refusal | None:
        """Executes an act and records it with its thought; returns the refusal, if any."""
        obstacle = find_obstacle(self.office, self.state, act)
        if obstacle:
            raise WorldError("the expert of the back office cannot go on", value=format_act(act), expected=obstacle)
        goal_text, self._aim = self._aim, ""
        self.done.append(Parsed(format_act(act), f"{goal_text}{thought}"))
        outcome = apply_act(self.office, self.state, act)
        self.state = outcome.state
        return outcome.refusal

    def do_job(self, job: Job) -> None:
        """Executes one job."""
        change = job.change
        self._aim = f"next i have to {describe_job(self.office, job)} . "
        if change.kind in ADDITIONS:
            self._add(job)
            return
        value: Cell = None
        if change.kind == "copy":
            source, key, source_field = change.source
            value = self._look_up(source, key, source_field)
        self._open_picked(job.application, job.pick)
        if change.kind == "drop":
            self.do(Act("delete"), "this is what has to be deleted")
            return
        field, new_value = change.fields[0]
        is_copy = change.kind == "copy"
        reason = f"{self._describe_record(change.source[0], change.source[1])} has it" if is_copy else ""
        self._fill(field, value if is_copy else new_value, reason)
        self._save(field)

    def _describe_record(self, name: str, key: Cell) -> str:
        return f"{self.office.applications[name].singular} {format_cell(key)}"

    @property
    def _window(self) -> Window:
        return self.state.windows[self.state.active]

    def _application(self) -> Application:
        return self.office.applications[self.office.names[self.state.active]]

    def _open_table(self, name: str) -> None:
        """Shows the whole table of an application."""
        if self.state.active < 0 or self.office.names[self.state.active] != name:
            self.do(Act("open", name), f"i open {name}")
        if self._window != Window():
            self.do(Act("back"), f"i go back to the table of {name}")

    def _open_record(self, name: str, key: Cell) -> None:
        """Opens the form of a record whose key is known."""
        self._open_table(name)
        self.do(Act("show", "", key), f"i open {self._describe_record(name, key)}")

    def _look_up(self, name: str, key: Cell, field: str) -> Cell:
        """Looks up a field of a record."""
        self._aim += f"first i read the {field} of {self._describe_record(name, key)} . "
        self._open_record(name, key)
        return self._cell(field)

    def _cell(self, field: str) -> Cell:
        """Returns a field of the form on the screen."""
        form, window = self._window.form or (), self._window
        index = self._application().field_index[field]
        return window.record if index == 0 and self._application().numbered else form[index]

    def _open_picked(self, name: str, pick: Pick) -> None:
        """Opens the form of the record that the task describes."""
        if pick.kind == "named":
            self._open_record(name, pick.value)
        elif pick.kind == "of":
            self._open_record(name, self._look_up(pick.second_name, pick.second_value, pick.field))
        else:
            self._open_table(name)
            if pick.kind in ("by", "both"):
                thought = f"i look for {name} with {pick.field} {format_cell(pick.value)}"
                self.do(Act("find", pick.field, pick.value), thought)
            key = self._find_key(pick)
            self.do(
                Act("show", "", key),
                f"i see {describe_record(self.office, name, pick=pick)} , it is {format_cell(key)}",
            )

    def _find_key(self, pick: Pick) -> Cell:
        """Finds the key of the described record in the rows on the screen and, where needed, on further pages."""
        application = self._application()
        visible_rows: list[Row] = []
        while True:
            visible_rows += self._page()
            if pick.kind not in ("largest", "smallest"):
                matches = [
                    row
                    for row in visible_rows
                    if pick.kind == "by" or row[application.field_index[pick.second_name]] == pick.second_value
                ]
                if matches:
                    return matches[0][0]
            elif not self._has_more_pages():
                column = application.field_index[pick.field]
                choose = max if pick.kind == "largest" else min
                return choose(visible_rows, key=lambda row: int(format_cell(row[column])))[0]
            self.do(Act("next"), "there is another page , it may be there")

    def _rows(self) -> tuple[Row, ...]:
        return filter_rows(self.state.tables[self.state.active], self._window)

    def _page(self) -> tuple[Row, ...]:
        """Returns the rows on the screen; only the cells of the table's columns may be used."""
        start = self._window.page * PAGE
        return self._rows()[start : start + PAGE]

    def _has_more_pages(self) -> bool:
        return (self._window.page + 1) * PAGE < len(self._rows())

    def _fill(self, field: str, value: Cell, reason: str = "") -> None:
        reason_text = f" , as {reason}" if reason else ""
        self.do(Act("set", field, value), f"{field} should be {format_cell(value)}{reason_text}")

    def _save(self, field: str = "") -> None:
        """Saves the form and corrects a refusal: a number out of bounds, or a value that another record must supply."""
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is None:
            return
        if refusal.reason == "bounds" and refusal.field == field:
            is_above = int(format_cell(self._cell(field))) > refusal.high
            bound, bound_word = (refusal.high, "most") if is_above else (refusal.low, "least")
            self.do(Act("set", field, bound), f"at {bound_word} {bound} is let , so i take it")
        elif refusal.need is not None:
            self._supply(refusal)
        self._save_again()

    def _save_again(self) -> None:
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is not None:
            raise WorldError("the expert of the back office was refused twice", value=refusal.field, expected="saved")

    def _supply(self, refusal: Refusal) -> None:
        """Looks up the value that a record needs of the record that it refers to, and fills it in."""
        if refusal.need is None:
            return
        name, need = self._application().name, refusal.need
        key, link = self._cell(need.link), self._application().field(need.link).link
        self._aim = f"it is refused , it needs the {need.field} of its {need.link} , which is {format_cell(key)} . "
        value = self._look_up(link, key, need.field)
        self.do(Act("open", name), f"i open {name}")
        self._fill(need.field, value, f"{self._describe_record(link, key)} has it")

    def _add(self, job: Job) -> None:
        """Adds a record for the described record."""
        name, parent, _ = ADDITIONS[job.change.kind]
        parent_word = self.office.applications[parent].singular
        values: dict[str, tuple[Cell, str]] = {}
        if job.pick.kind == "named" and parent == "customers":
            values[parent_word] = job.pick.value, ""
        else:
            self._open_picked(parent, job.pick)
            values[parent_word] = self._window.record, ""
            if parent == "orders":  # an invoice names the customer too, and the order is on the screen
                values["customer"] = (
                    self._cell("customer"),
                    f"{self._describe_record(parent, self._window.record)} has it",
                )
        values.update({field: (value, "") for field, value in job.change.fields})
        self._open_table(name)
        self.do(Act("new"), f"i open a new {self.office.applications[name].singular}")
        for field, (value, reason) in values.items():
            self._fill(field, value, reason)
        self._save()
