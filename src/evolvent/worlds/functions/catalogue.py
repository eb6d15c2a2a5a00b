"""Catalogue of tools: each with its phrases, its split, and the effect of a call on a state.

Splits go by tool. Of the six tools of a thing two are held out: one whose request describes the thing, and one
that needs a number. Things alternate in giving them to dev and to test, and the verbs rotate, so that training
contains all verbs and all nouns of held-out tools, but never together. The domains of `UNSEEN` are held out
entirely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from evolvent.errors import InvalidAction, find_nearest
from evolvent.messages import Call, Tool
from evolvent.schemas import find_argument_faults
from evolvent.trajectory import Json
from evolvent.worlds.functions.domains import DOMAINS, Thing
from evolvent.worlds.functions.formulas import FORMULAS
from evolvent.worlds.functions.operations import OPERATIONS
from evolvent.worlds.functions.slots import Slot
from evolvent.worlds.functions.states import State, things_by_noun

__all__ = ["UNSEEN", "Entry", "catalogue", "run_call", "select_entries"]

UNSEEN: Mapping[str, str] = MappingProxyType({"farming": "dev", "museum": "test", "space": "test"})
"""Domains of which no tool is in training, and the split that they belong to."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool and the phrases that request it.

    Args:
        tool: the offered tool; its name is verb and noun.
        domain, verb, noun: of a formula the verb is its name, and the noun is "".
        heads: openings of a request for the tool; no two tools share one.
        follow_up_heads: openings about the thing of the conversation; empty where the tool needs no number.
        slots: its parameters, in the order of the schema.
        split: "train", "dev" or "test".
    """

    tool: Tool
    domain: str
    verb: str
    noun: str
    heads: tuple[str, ...]
    follow_up_heads: tuple[str, ...]
    slots: tuple[Slot, ...]
    split: str

    @property
    def is_unseen(self) -> bool:
        """Returns whether training has no tool of this domain."""
        return self.domain in UNSEEN

    @property
    def starts_conversation(self) -> bool:
        """Returns whether the result is a numbered thing that the next request can be about."""
        return self.verb in ("find", "book", "order", "plan", "add")


@cache
def catalogue() -> Mapping[str, Entry]:
    """Builds the mapping of all tools by name, in a fixed order."""
    all_entries = [*_thing_entries(), *_formula_entries()]
    return MappingProxyType({entry.tool.name: entry for entry in all_entries})


def select_entries(split: str, *, is_unseen: bool) -> tuple[Entry, ...]:
    """Selects the tools of a split: those of the domains in training, or those of unseen domains."""
    return tuple(entry for entry in catalogue().values() if (entry.split, entry.is_unseen) == (split, is_unseen))


def _thing_entries() -> Iterator[Entry]:
    turn = 0
    for domain_index, (name, domain) in enumerate(DOMAINS.items()):
        for thing_type in domain.thing_types:
            held_out_verbs = (
                domain.starts[(turn // 2 + domain_index) % 3],
                domain.follows[(turn // 2 + domain_index // 2) % 3],
            )
            for verb in (*domain.starts, *domain.follows):
                split = (
                    UNSEEN.get(name) or ("test", "dev")[turn % 2]
                    if name in UNSEEN or verb in held_out_verbs
                    else "train"
                )
                yield _build_entry(name, thing_type, verb, split=split)
            turn += name not in UNSEEN


def _build_entry(domain: str, thing_type: Thing, verb: str, *, split: str) -> Entry:
    operation, article = OPERATIONS[verb], "an" if thing_type.noun[0] in "aeiou" else "a"
    placeholders = {"a": f"{article} {thing_type.noun}", "s": thing_type.plural, "n": thing_type.noun}
    slots = tuple(
        replace(slot, about=slot.about.format(thing_type.noun, **placeholders)) if "{" in slot.about else slot
        for slot in operation.slots_of(thing_type)
    )
    heads = tuple(head.format(the=f"the {thing_type.noun}", **placeholders) for head in operation.heads)
    follow_up_heads = tuple(
        head.format(the=f"that {thing_type.noun}", **placeholders) for head in operation.heads if operation.needs_number
    )
    tool = Tool(f"{verb}_{thing_type.noun}", operation.about.format(**placeholders), _build_schema(slots))
    return Entry(tool, domain, verb, thing_type.noun, heads, follow_up_heads, slots, split)


def _formula_entries() -> Iterator[Entry]:
    for index, (name, formula) in enumerate(FORMULAS.items()):
        split = {1: "dev", 4: "test"}.get(index % 6, "train")
        tool = Tool(name, formula.about, _build_schema(formula.slots))
        yield Entry(tool, formula.domain, name, "", formula.heads, (), formula.slots, split)


def _build_schema(slots: tuple[Slot, ...]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {slot.name: slot.schema() for slot in slots},
        "required": [slot.name for slot in slots if not slot.optional],
        "additionalProperties": False,
    }


# ---------------------------------------------------------------------- calls


def run_call(call: Call, state: State) -> tuple[State, Json]:
    """Runs a call and returns the next state and the result (JSON values). The given state does not change.

    Raises:
        InvalidAction: the tool is unknown, its schema refuses the arguments, or a row does not exist.
    """
    entry = catalogue().get(call.name)
    if entry is None:
        nearest_name = find_nearest(call.name, catalogue())
        raise InvalidAction(
            "an unknown tool",
            value=call.name,
            expected="a tool of the catalogue",
            hint=f"did you mean {nearest_name!r}?" if nearest_name else None,
        )
    schema_faults = find_argument_faults(call.arguments, entry.tool.parameters)
    if schema_faults:
        raise InvalidAction(
            f"arguments that {call.name!r} refuses", value="; ".join(schema_faults), expected="its schema"
        )
    arguments = {slot.name: slot.default for slot in entry.slots if slot.optional} | dict(call.arguments)
    if not entry.noun:
        value = FORMULAS[entry.verb].compute(arguments)
        return state, round(value, 3) if isinstance(value, float) else value
    return OPERATIONS[entry.verb].effect(state, things_by_noun()[entry.noun], arguments)
