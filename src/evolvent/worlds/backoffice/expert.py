"""The expert: does the jobs one after the other, acts only on what its screens have shown, and says why.

It does not know the bounds of a field, what a state needs, or where a record stands, before a screen tells. Its
thoughts name what is to be done and what was seen, in the words of the world, so that a small model can learn them.
"""

from __future__ import annotations

from collections.abc import Sequence

from evolvent.errors import WorldError
from evolvent.worlds.backoffice.applications import Application, Cell, Row
from evolvent.worlds.backoffice.jobs import ADDED, Job, Pick, describe, target
from evolvent.worlds.backoffice.office import PAGE, Office, Window
from evolvent.worlds.backoffice.rules import Act, Refusal, apply, impossible, rows_sought
from evolvent.worlds.backoffice.text import said, say
from evolvent.worlds.grammar import Parsed

__all__ = ["solve", "thoughts_said"]

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


def thoughts_said() -> Sequence[str]:
    """Texts that hold every word and mark of thoughts that screens and tasks do not have."""
    return _THOUGHTS


def solve(office: Office, jobs: Sequence[Job]) -> tuple[Parsed, ...]:
    """Actions that do the jobs in their order and finish, each with the thought that led to it."""
    clerk = _Clerk(office)
    for job in jobs:
        clerk.work(job)
    clerk.do(Act("done"), "all is done")
    return tuple(clerk.done)


class _Clerk:
    """Somebody who works at the screens."""

    def __init__(self, office: Office) -> None:
        self.office, self.state = office, office.start
        self.done: list[Parsed] = []
        self._aim = ""

    def do(self, act: Act, thought: str) -> Refusal | None:
        """Do something; returns why it was refused, if it was."""
        wrong = impossible(self.office, self.state, act)
        if wrong:
            raise WorldError("the expert of the back office cannot go on", value=say(act), expected=wrong)
        aim, self._aim = self._aim, ""
        self.done.append(Parsed(say(act), f"{aim}{thought}"))
        outcome = apply(self.office, self.state, act)
        self.state = outcome.state
        return outcome.refusal

    def work(self, job: Job) -> None:
        """Do one job."""
        change = job.change
        self._aim = f"next i have to {describe(self.office, job)} . "
        if change.do in ADDED:
            self._add(job)
            return
        value: Cell = None
        if change.do == "copy":
            source, key, other = change.source
            value = self._look_up(source, key, other)
        self._find(job.application, job.pick)
        if change.do == "drop":
            self.do(Act("delete"), "this is what has to be deleted")
            return
        field, told = change.fields[0]
        copied = change.do == "copy"
        reason = f"{self._record(change.source[0], change.source[1])} has it" if copied else ""
        self._fill(field, value if copied else told, reason)
        self._save(field)

    def _record(self, name: str, key: Cell) -> str:
        return f"{self.office.applications[name].one} {said(key)}"

    @property
    def _window(self) -> Window:
        return self.state.windows[self.state.active]

    def _application(self) -> Application:
        return self.office.applications[self.office.names[self.state.active]]

    def _go(self, name: str) -> None:
        """The whole table of an application."""
        if self.state.active < 0 or self.office.names[self.state.active] != name:
            self.do(Act("open", name), f"i open {name}")
        if self._window != Window():
            self.do(Act("back"), f"i go back to the table of {name}")

    def _show(self, name: str, key: Cell) -> None:
        """The form of a record whose key is known."""
        self._go(name)
        self.do(Act("show", "", key), f"i open {self._record(name, key)}")

    def _look_up(self, name: str, key: Cell, field: str) -> Cell:
        """What a record has in a field."""
        self._aim += f"first i read the {field} of {self._record(name, key)} . "
        self._show(name, key)
        return self._cell(field)

    def _cell(self, field: str) -> Cell:
        """What the form on the screen has in a field."""
        form, window = self._window.form or (), self._window
        place = self._application().places[field]
        return window.record if place == 0 and self._application().numbered else form[place]

    def _find(self, name: str, pick: Pick) -> None:
        """The form of the record that the task tells."""
        if pick.which == "named":
            self._show(name, pick.value)
        elif pick.which == "of":
            self._show(name, self._look_up(pick.other, pick.second, pick.field))
        else:
            self._go(name)
            if pick.which in ("by", "both"):
                thought = f"i look for {name} with {pick.field} {said(pick.value)}"
                self.do(Act("find", pick.field, pick.value), thought)
            key = self._read(pick)
            self.do(Act("show", "", key), f"i see {target(self.office, name, pick=pick)} , it is {said(key)}")

    def _read(self, pick: Pick) -> Cell:
        """The key of the record that is meant, from the rows on the screen and, where need be, on further pages."""
        application = self._application()
        seen: list[Row] = []
        while True:
            seen += self._page()
            if pick.which not in ("largest", "smallest"):
                found = [
                    row for row in seen if pick.which == "by" or row[application.places[pick.other]] == pick.second
                ]
                if found:
                    return found[0][0]
            elif not self._more():
                column = application.places[pick.field]
                best = max if pick.which == "largest" else min
                return best(seen, key=lambda row: int(said(row[column])))[0]
            self.do(Act("next"), "there is another page , it may be there")

    def _rows(self) -> tuple[Row, ...]:
        return rows_sought(self.state.tables[self.state.active], self._window)

    def _page(self) -> tuple[Row, ...]:
        """The rows on the screen. Of their cells only those of the table's columns are looked at."""
        at = self._window.page * PAGE
        return self._rows()[at : at + PAGE]

    def _more(self) -> bool:
        return (self._window.page + 1) * PAGE < len(self._rows())

    def _fill(self, field: str, value: Cell, reason: str = "") -> None:
        why = f" , as {reason}" if reason else ""
        self.do(Act("set", field, value), f"{field} should be {said(value)}{why}")

    def _save(self, field: str = "") -> None:
        """Save, and put right what is refused: a number out of bounds, or what a record of another one must have."""
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is None:
            return
        if refusal.why == "bounds" and refusal.field == field:
            above = int(said(self._cell(field))) > refusal.high
            bound, word = (refusal.high, "most") if above else (refusal.low, "least")
            self.do(Act("set", field, bound), f"at {word} {bound} is let , so i take it")
        elif refusal.need is not None:
            self._supply(refusal)
        self._save_again()

    def _save_again(self) -> None:
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is not None:
            raise WorldError("the expert of the back office was refused twice", value=refusal.field, expected="saved")

    def _supply(self, refusal: Refusal) -> None:
        """Look up what a record needs of the one that it refers to, and fill it in."""
        if refusal.need is None:
            return
        name, need = self._application().name, refusal.need
        key, link = self._cell(need.link), self._application().field(need.link).link
        self._aim = f"it is refused , it needs the {need.field} of its {need.link} , which is {said(key)} . "
        value = self._look_up(link, key, need.field)
        self.do(Act("open", name), f"i open {name}")
        self._fill(need.field, value, f"{self._record(link, key)} has it")

    def _add(self, job: Job) -> None:
        """A new record for the one that is told."""
        name, parent, _ = ADDED[job.change.do]
        one = self.office.applications[parent].one
        values: dict[str, tuple[Cell, str]] = {}
        if job.pick.which == "named" and parent == "customers":
            values[one] = job.pick.value, ""
        else:
            self._find(parent, job.pick)
            values[one] = self._window.record, ""
            if parent == "orders":  # an invoice names the customer too, and the order is on the screen
                values["customer"] = self._cell("customer"), f"{self._record(parent, self._window.record)} has it"
        values.update({field: (value, "") for field, value in job.change.fields})
        self._go(name)
        self.do(Act("new"), f"i open a new {self.office.applications[name].one}")
        for field, (value, reason) in values.items():
            self._fill(field, value, reason)
        self._save()
