"""The five applications: fields, the validation of records, and the available words.

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
        kind: "word" (one of `choices`), "number", or "link" (the key of a record of another application).
        choices: the words that a "word" field accepts.
        link: the application that a link leads to.
        needed: whether a record cannot be saved without it.
        listed: whether the table of the application has a column for it.
        bounded: whether the task draws the bounds of its numbers; otherwise they are those of the days of a month.
        named: whether its words are names, which mean nothing by themselves.
    """

    name: str
    kind: Literal["word", "number", "link"] = "word"
    choices: tuple[str, ...] = ()
    link: str = ""
    needed: bool = True
    listed: bool = False
    bounded: bool = False
    named: bool = True


@dataclass(frozen=True)
class Application:
    """An application: one table, and the form of its records.

    Args:
        name, singular: the words for many records and for one.
        fields: the key first.
        numbered: whether the application assigns numbers as keys; otherwise keys are names, typed once.
        rows: number of records at the start.
    """

    name: str
    singular: str
    fields: tuple[Field, ...]
    numbered: bool
    rows: int

    @cached_property
    def field_index(self) -> Mapping[str, int]:
        """Returns field name -> index in a row."""
        return MappingProxyType({field.name: index for index, field in enumerate(self.fields)})

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Returns the indices of the fields that the table shows."""
        return tuple(index for index, field in enumerate(self.fields) if field.listed)

    def field(self, name: str) -> Field:
        """Returns the field of a name."""
        return self.fields[self.field_index[name]]


@dataclass(frozen=True, slots=True)
class Need:
    """A constraint between records: a shipped order needs the city of its customer.

    Args:
        state: the state in which the constraint holds; "" for every state.
        field: the field that must agree, of the same name in both records.
        link: the field that leads to the other record.
    """

    state: str
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
        Field("name", choices=_CUSTOMERS, listed=True),
        Field("city", choices=_CITIES, listed=True),
        Field("level", choices=("basic", "plus", "gold"), listed=True, named=False),
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
        Field("item", choices=_ITEMS, listed=True),
        Field("amount", "number", listed=True, bounded=True),
        Field("day", "number", needed=False),
        Field("city", choices=_CITIES, needed=False),
        Field("state", choices=(FIRST_STATE, "packed", "shipped"), named=False),
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
        Field("state", choices=(FIRST_STATE, "late", "paid"), named=False),
    ),
    numbered=True,
    rows=7,
)
_STAFF = Application(
    "staff",
    "clerk",
    (
        Field("name", choices=_CLERKS, listed=True),
        Field("team", choices=_TEAMS, listed=True),
        Field("city", choices=_CITIES, listed=True),
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
        Field("topic", choices=_TOPICS, listed=True),
        Field("hours", "number", listed=True, bounded=True),
        Field("agent", "link", link="staff", needed=False),
        Field("state", choices=(FIRST_STATE, "waiting", "closed"), named=False),
    ),
    numbered=True,
    rows=7,
)

APPLICATIONS: Mapping[str, Application] = MappingProxyType(
    {application.name: application for application in (_PEOPLE, _ORDERS, _INVOICES, _STAFF, _TICKETS)}
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
