"""The catalogue: every tool with its phrasebook, its split, and what a call of it does to a state.

Splits go by tool. Of the six tools of a thing two are held out, one that begins with a description and one that needs a
number; the things take turns in giving them to dev and to test, and the verbs take turns too, so that all verbs and all
nouns of held-out tools are met in training, but never together. The domains of `UNSEEN` are held out whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from evolvent.errors import InvalidAction, nearest
from evolvent.messages import Call, Tool
from evolvent.schemas import faults
from evolvent.trajectory import Json
from evolvent.worlds.functions.domains import DOMAINS, Thing
from evolvent.worlds.functions.formulas import FORMULAS
from evolvent.worlds.functions.operations import OPERATIONS
from evolvent.worlds.functions.slots import Slot
from evolvent.worlds.functions.states import State, things

__all__ = ["UNSEEN", "Entry", "catalogue", "entries", "run"]

UNSEEN: Mapping[str, str] = MappingProxyType({"farming": "dev", "museum": "test", "space": "test"})
"""Domains of which no tool is in training, and the split that they belong to."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool, and how it is asked for.

    Args:
        tool: what is offered; its name is verb and noun.
        domain, verb, noun: of a formula the verb is its name, and the noun is "".
        heads: how a request for it begins; no other tool has one of them.
        again: the same for the thing that the conversation is about; empty where the tool needs no number.
        slots: its parameters, in the order of the schema.
        split: "train", "dev" or "test".
    """

    tool: Tool
    domain: str
    verb: str
    noun: str
    heads: tuple[str, ...]
    again: tuple[str, ...]
    slots: tuple[Slot, ...]
    split: str

    @property
    def unseen(self) -> bool:
        """Whether no tool of its domain is in training."""
        return self.domain in UNSEEN

    @property
    def starts(self) -> bool:
        """Whether its result is a thing with a number, which the next request can be about."""
        return self.verb in ("find", "book", "order", "plan", "add")


@cache
def catalogue() -> Mapping[str, Entry]:
    """All tools by name, in a fixed order."""
    found = [*_of_things(), *_of_formulas()]
    return MappingProxyType({entry.tool.name: entry for entry in found})


def entries(split: str, *, unseen: bool) -> tuple[Entry, ...]:
    """The tools of a split, of the domains that training knows or of the others."""
    return tuple(entry for entry in catalogue().values() if (entry.split, entry.unseen) == (split, unseen))


def _of_things() -> Iterator[Entry]:
    turn = 0
    for place, (name, domain) in enumerate(DOMAINS.items()):
        for thing in domain.things:
            held = (domain.starts[(turn // 2 + place) % 3], domain.follows[(turn // 2 + place // 2) % 3])
            for verb in (*domain.starts, *domain.follows):
                split = UNSEEN.get(name) or ("test", "dev")[turn % 2] if name in UNSEEN or verb in held else "train"
                yield _entry(name, thing, verb, split=split)
            turn += name not in UNSEEN


def _entry(domain: str, thing: Thing, verb: str, *, split: str) -> Entry:
    operation, article = OPERATIONS[verb], "an" if thing.noun[0] in "aeiou" else "a"
    words = {"a": f"{article} {thing.noun}", "s": thing.plural, "n": thing.noun}
    slots = tuple(
        replace(slot, about=slot.about.format(thing.noun, **words)) if "{" in slot.about else slot
        for slot in operation.takes(thing)
    )
    heads = tuple(head.format(the=f"the {thing.noun}", **words) for head in operation.heads)
    again = tuple(head.format(the=f"that {thing.noun}", **words) for head in operation.heads if operation.numbered)
    tool = Tool(f"{verb}_{thing.noun}", operation.about.format(**words), _schema(slots))
    return Entry(tool, domain, verb, thing.noun, heads, again, slots, split)


def _of_formulas() -> Iterator[Entry]:
    for place, (name, formula) in enumerate(FORMULAS.items()):
        split = {1: "dev", 4: "test"}.get(place % 6, "train")
        tool = Tool(name, formula.about, _schema(formula.slots))
        yield Entry(tool, formula.domain, name, "", formula.heads, (), formula.slots, split)


def _schema(slots: tuple[Slot, ...]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {slot.name: slot.schema() for slot in slots},
        "required": [slot.name for slot in slots if not slot.optional],
        "additionalProperties": False,
    }


# ---------------------------------------------------------------------- calls


def run(call: Call, state: State) -> tuple[State, Json]:
    """What a call does: the state after it and its result (JSON values). The state handed in stays as it is.

    Raises:
        InvalidAction: no such tool, arguments that its schema refuses, or a row that does not exist.
    """
    entry = catalogue().get(call.name)
    if entry is None:
        near = nearest(call.name, catalogue())
        raise InvalidAction(
            "an unknown tool",
            value=call.name,
            expected="a tool of the catalogue",
            hint=f"did you mean {near!r}?" if near else None,
        )
    wrong = faults(call.arguments, entry.tool.parameters)
    if wrong:
        raise InvalidAction(f"arguments that {call.name!r} refuses", value="; ".join(wrong), expected="its schema")
    given = {slot.name: slot.default for slot in entry.slots if slot.optional} | dict(call.arguments)
    if not entry.noun:
        value = FORMULAS[entry.verb].value(given)
        return state, round(value, 3) if isinstance(value, float) else value
    return OPERATIONS[entry.verb].effect(state, things()[entry.noun], given)
