"""Invented domains: tables that belong together, and their possible columns and values.

A domain is a tree of tables: each has at most one parent, and every row belongs to one row of it (a player of a
team). The columns that a table has in a task, the names of its keys, and the rows are drawn for each task
(`draw`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evolvent.worlds.facts import CITIES, COUNTRIES, PEOPLE

__all__ = ["DOMAINS", "KEYS", "TERMS", "VALUES", "Entity"]

_COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "silver")
_NOUNS = (
    "amber",
    "anchor",
    "arrow",
    "beacon",
    "breeze",
    "bridge",
    "castle",
    "cedar",
    "comet",
    "coral",
    "crown",
    "ember",
    "falcon",
    "fern",
    "flint",
    "forest",
    "harbor",
    "island",
    "lantern",
    "lotus",
    "maple",
    "meadow",
    "mirror",
    "orbit",
    "pearl",
    "raven",
    "shadow",
    "summit",
    "thunder",
    "willow",
)
_POOLS = {"person": PEOPLE, "city": CITIES, "country": COUNTRIES, "colour": _COLOURS, "thing": _NOUNS}
_PERSON_COLUMNS = "boss captain coach doctor editor guide keeper mayor owner pilot teacher writer"

VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"city": CITIES, "country": COUNTRIES, "colour": _COLOURS} | dict.fromkeys(_PERSON_COLUMNS.split(), PEOPLE)
)
"""Name of a column of text -> the values that it can have."""

TERMS: tuple[str, ...] = ("famous", "fine", "grand", "modern", "popular", "rare", "senior", "strong")
"""Words that mean nothing until a hint says what."""

KEYS: tuple[str, ...] = ("id", "code")
"""How a primary key can be called."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A table of a domain.

    Args:
        name, plural: the word for one row and for several; the name is also the table's name.
        parent: the table to whose rows its rows belong; empty for none.
        names: the values of its column `name`.
        texts, numbers: its other possible columns.
    """

    name: str
    plural: str
    parent: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[str, ...]


def _parse_domain(*rows: str) -> tuple[Entity, ...]:
    """Parses rows of `name parent pool | texts | numbers`; `-` means no parent, and parents come before their
    children.
    """
    entities = []
    for row in rows:
        header, texts, numbers = (part.split() for part in row.split("|"))
        name, parent, pool = header
        plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
        parent = "" if parent == "-" else parent
        entities.append(Entity(name, plural, parent, _POOLS[pool], tuple(texts), tuple(numbers)))
    return tuple(entities)


DOMAINS: Mapping[str, tuple[Entity, ...]] = MappingProxyType(
    {
        "airline": _parse_domain(
            "airline - thing | country city boss colour | planes staff age",
            "plane airline thing | colour city captain owner | seats speed weight age",
            "flight plane thing | pilot city country guide | price hours seats delay",
        ),
        "farm": _parse_domain(
            "farm - thing | owner city country keeper | size staff age cost",
            "field farm thing | keeper colour owner boss | size depth cost value",
            "animal field thing | colour keeper doctor owner | age weight height value",
        ),
        "fleet": _parse_domain(
            "port - city | country mayor boss colour | depth staff size cost",
            "ship port thing | captain colour owner country | length speed weight age",
            "cargo ship thing | owner colour city country | weight value size cost",
        ),
        "league": _parse_domain(
            "league - thing | country boss city owner | prize age teams",
            "team league city | coach colour owner country | wins seats points cost",
            "player team person | country city doctor teacher | age height goals points",
        ),
        "library": _parse_domain(
            "author - person | country city teacher editor | age prize points",
            "book author thing | editor colour owner country | pages price age copies",
            "loan book thing | owner city keeper country | days price delay",
        ),
        "museum": _parse_domain(
            "museum - thing | city country boss owner | rooms staff age price",
            "painting museum thing | writer colour country owner | height length value age",
            "visit painting thing | guide city country teacher | hours price delay points",
        ),
        "school": _parse_domain(
            "school - thing | city boss country colour | rooms size age staff",
            "course school thing | teacher writer guide colour | hours price points pages",
            "student course person | city country doctor coach | age height marks delay",
        ),
        "shop": _parse_domain(
            "maker - thing | city country boss owner | staff age size",
            "product maker thing | colour editor guide country | price stock weight length",
            "sale product thing | owner city country keeper | copies price value days",
        ),
        "studio": _parse_domain(
            "studio - thing | city country owner boss | staff rooms age cost",
            "film studio thing | writer editor coach country | length prize cost hours",
            "role film person | city teacher country doctor | pages price points age",
        ),
        "clinic": _parse_domain(
            "clinic - city | country owner boss colour | rooms staff cost",
            "ward clinic thing | doctor keeper colour guide | size rooms height age",
            "patient ward person | city country teacher coach | age weight height days",
        ),
    }
)
"""The domains by name."""
