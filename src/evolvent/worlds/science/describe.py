"""Texts about a lab: what a thing, a room and the inventory look like, and the phrases that name a thing in actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evolvent.worlds.science.lab import Lab, Thing

__all__ = ["describe", "describe_details", "describe_room", "index_phrases", "name_terminal", "name_thing", "refer"]

_TERMINALS = (("terminal 1", "terminal 2"), ("anode", "cathode"))
_VOWELS = frozenset("aeiou")


def name_terminal(entity: Thing, terminal: int) -> str:
    """Returns the name of a terminal of a thing."""
    return _TERMINALS[entity.type.is_polarized][terminal]


def name_thing(entity: Thing) -> str:
    """Returns the name of a thing with its article."""
    article = entity.type.article
    if article == "a" and entity.label[0] in _VOWELS:
        article = "an"
    return f"{article} {entity.label}"


def describe(lab: Lab, entity: Thing) -> str:
    """Describes a thing with its contents: "a stove (off; on it: a metal pot (in it: some water))"."""
    thing_type, parts = entity.type, []
    if thing_type.is_lidded:
        parts.append("open" if entity.is_open else "closed")
    if thing_type.is_switchable or thing_type.role == "load":
        parts.append("on" if entity.is_on else "off")
    elif thing_type.role == "fire pit" and entity.is_on:
        parts.append("burning")
    if thing_type.holds and entity.is_open:
        contents = ", ".join([describe(lab, lab.things[number]) for number in entity.contents])
        if contents:
            parts.append(f"{thing_type.holds} it: {contents}")
        elif thing_type.holds == "in":
            parts.append("empty")
    if thing_type.role == "block" and lab.things[entity.parent].type.role == "plane":
        parts.append(_describe_position(entity))
    return f"{name_thing(entity)} ({'; '.join(parts)})" if parts else name_thing(entity)


def _describe_position(block: Thing) -> str:
    if block.progress >= 100.0:
        return "at the bottom"
    return f"{int(block.progress)} percent of the way down" if block.progress >= 1.0 else "at the top"


def describe_details(lab: Lab, entity: Thing) -> str:
    """Describes a thing with what only a closer look shows: connections, and the time of a stopwatch."""
    text = describe(lab, entity) + "."
    if entity.type.role == "stopwatch":
        text += f" It shows {entity.timer} ticks."
    if entity.type.is_polarized or entity.type.role == "wire" or any(entity.links):
        for terminal, link in enumerate(entity.links):
            target = "nothing"
            if link is not None:
                partner = lab.things[link[0]]
                target = f"{name_terminal(partner, link[1])} of the {partner.label}"
            text += f" Its {name_terminal(entity, terminal)} is connected to {target}."
    return text


def describe_room(lab: Lab) -> str:
    """Describes the room that the agent is in, a thing or door a line."""
    location = lab.things[lab.room]
    lines = [
        f"You are in the {location.label}. You see:" if location.label != "outside" else "You are outside. You see:"
    ]
    lines += ["\t" + describe(lab, lab.things[number]) for number in location.contents]
    lines.append("Doors:")
    for neighbor in lab.list_neighbors(lab.room):
        state = "open" if lab.doors[min(lab.room, neighbor), max(lab.room, neighbor)] else "closed"
        lines.append(f"\ta door to the {lab.things[neighbor].label} ({state})")
    return "\n".join(lines)


def index_phrases(entities: Iterable[Thing]) -> Mapping[str, list[Thing]]:
    """Returns the things by each of their names."""
    index: dict[str, list[Thing]] = {}
    for entity in entities:
        index.setdefault(entity.label, []).append(entity)
        for noun in entity.type.nouns:
            if noun != entity.label:
                index.setdefault(noun, []).append(entity)
    return index


def refer(lab: Lab, entity: Thing, index: Mapping[str, list[Thing]]) -> str:
    """Returns the shortest phrase that names a thing in an action, alone among those that are visible if possible."""
    label = entity.label
    namesakes = index.get(label, ())
    if len(namesakes) <= 1:
        return label
    parent = lab.things[entity.parent]
    if parent.type.role != "room" and not any(
        partner is not entity and partner.parent == entity.parent for partner in namesakes
    ):
        vessels = index.get(parent.label, ())
        if len(vessels) <= 1:
            return f"{label} in {parent.label}"
    if entity.contents and entity.is_open:
        content = lab.things[entity.contents[0]].label
        if sum(any(lab.things[n].label == content for n in partner.contents) for partner in namesakes) == 1:
            return f"{label} containing {content}"
    elif entity.is_open and entity.type.holds and sum(not partner.contents for partner in namesakes) == 1:
        return f"empty {label}"
    if parent.type.role == "room" and not any(o is not entity and o.parent == entity.parent for o in namesakes):
        return f"{label} in {parent.label}"
    return label
