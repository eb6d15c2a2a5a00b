"""The five applications: their fields, what a record must fulfil to be saved, and the words there are.

A record refers to others by their key: an order to its customer, an invoice to its order, a customer to the clerk who
looks after it. So most work needs more than one screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

__all__ = [
    "APPLICATIONS",
    "FIRST_STATE",
    "NEEDS",
    "NUMBERS",
    "RECORD_NUMBERS",
    "Application",
    "Cell",
    "Field",
    "Need",
    "Row",
    "Table",
]

Cell = str | int | None  # a word, a number, or nothing
Row = tuple[Cell, ...]  # the key first, then one cell a field
Table = tuple[Row, ...]

NUMBERS = (1, 40)
"""The smallest and the largest number that can be typed."""
RECORD_NUMBERS = (50, 95)
"""Numbers of records are drawn from here; new records come after the last one."""
FIRST_STATE = "open"
"""The state of a new record."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form.

    Args:
        name: its label.
        kind: "word" (one of `words`), "number", or "link" (the key of a record of another application).
        words: the choices.
        link: the application that a link leads to.
        needed: whether a record can be saved without it.
        listed: whether the table of the application has a column for it.
        bounded: whether the task draws the bounds of its numbers; else they are those of a month's days.
        named: whether its words are names, which mean nothing by themselves.
    """

    name: str
    kind: Literal["word", "number", "link"] = "word"
    words: tuple[str, ...] = ()
    link: str = ""
    needed: bool = True
    listed: bool = False
    bounded: bool = False
    named: bool = True


@dataclass(frozen=True)
class Application:
    """An application: one table, and the form of its records.

    Args:
        name, one: what many and one of its records are called.
        fields: the key first.
        numbered: whether its keys are numbers that the application gives; else they are names, typed once.
        rows: how many records there are in the beginning.
    """

    name: str
    one: str
    fields: tuple[Field, ...]
    numbered: bool
    rows: int

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Name of a field -> its place in a row."""
        return MappingProxyType({field.name: place for place, field in enumerate(self.fields)})

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The places of the fields that the table shows."""
        return tuple(place for place, field in enumerate(self.fields) if field.listed)

    def field(self, name: str) -> Field:
        """The field of a name."""
        return self.fields[self.places[name]]


@dataclass(frozen=True, slots=True)
class Need:
    """A record must hold what a record that it refers to holds: a shipped order needs the city of its customer.

    Args:
        when: the state in which it must; "" for every state.
        field: the field, of the same name in both records.
        link: the field that leads to the other record.
    """

    when: str
    field: str
    link: str


_CUSTOMERS = (
    "adams",
    "baker",
    "clark",
    "davis",
    "evans",
    "foster",
    "garcia",
    "harris",
    "irwin",
    "jones",
    "keller",
    "lewis",
    "moore",
    "nolan",
    "owens",
    "porter",
)
_CLERKS = ("anna", "boris", "clara", "david", "elena", "felix", "greta", "hugo", "irene", "jonas", "karin", "leon")
_CITIES = (
    "berlin",
    "cairo",
    "dublin",
    "geneva",
    "lima",
    "lisbon",
    "madrid",
    "oslo",
    "paris",
    "prague",
    "rome",
    "tokyo",
)
_ITEMS = ("bench", "carpet", "chair", "clock", "cupboard", "desk", "lamp", "mirror", "shelf", "sofa", "stool", "vase")
_TOPICS = ("damage", "delay", "delivery", "discount", "manual", "noise", "parts", "refund", "repair", "return")
_TEAMS = ("buying", "finance", "planning", "sales", "service", "storage")

_PEOPLE = Application(
    "customers",
    "customer",
    (
        Field("name", words=_CUSTOMERS, listed=True),
        Field("city", words=_CITIES, listed=True),
        Field("level", words=("basic", "plus", "gold"), listed=True, named=False),
        Field("credit", "number", listed=True, bounded=True),
        Field("agent", "link", link="staff"),
    ),
    numbered=False,
    rows=6,
)
_ORDERS = Application(
    "orders",
    "order",
    (
        Field("number", "number", listed=True),
        Field("customer", "link", link="customers", listed=True),
        Field("item", words=_ITEMS, listed=True),
        Field("amount", "number", listed=True, bounded=True),
        Field("day", "number", needed=False),
        Field("city", words=_CITIES, needed=False),
        Field("state", words=(FIRST_STATE, "packed", "shipped"), named=False),
    ),
    numbered=True,
    rows=8,
)
_INVOICES = Application(
    "invoices",
    "invoice",
    (
        Field("number", "number", listed=True),
        Field("customer", "link", link="customers", listed=True),
        Field("order", "link", link="orders", listed=True),
        Field("total", "number", listed=True, bounded=True),
        Field("day", "number", needed=False),
        Field("state", words=(FIRST_STATE, "late", "paid"), named=False),
    ),
    numbered=True,
    rows=7,
)
_STAFF = Application(
    "staff",
    "clerk",
    (
        Field("name", words=_CLERKS, listed=True),
        Field("team", words=_TEAMS, listed=True),
        Field("city", words=_CITIES, listed=True),
        Field("room", "number", listed=True, bounded=True),
    ),
    numbered=False,
    rows=6,
)
_TICKETS = Application(
    "tickets",
    "ticket",
    (
        Field("number", "number", listed=True),
        Field("customer", "link", link="customers", listed=True),
        Field("topic", words=_TOPICS, listed=True),
        Field("hours", "number", listed=True, bounded=True),
        Field("agent", "link", link="staff", needed=False),
        Field("state", words=(FIRST_STATE, "waiting", "closed"), named=False),
    ),
    numbered=True,
    rows=7,
)

APPLICATIONS: Mapping[str, Application] = MappingProxyType(
    {found.name: found for found in (_PEOPLE, _ORDERS, _INVOICES, _STAFF, _TICKETS)}
)
"""The applications by name, in the order in which they are told."""
NEEDS: Mapping[str, tuple[Need, ...]] = MappingProxyType(
    {
        "orders": (Need("shipped", "city", "customer"),),
        "invoices": (Need("", "customer", "order"), Need("paid", "day", "order")),
        "tickets": (Need("closed", "agent", "customer"),),
    }
)
"""Application -> what its records must hold to be saved."""
