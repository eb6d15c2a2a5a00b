"""Texts about a lab: what a thing, a room and the inventory look like, and the phrases that name a thing in actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evolvent.worlds.science.lab import Lab, Thing

__all__ = ["describe", "describe_details", "describe_room", "index_phrases", "name_terminal", "name_thing", "refer"]

_TERMINALS = (("terminal 1", "terminal 2"), ("anode", "cathode"))
_VOWELS = frozenset("aeiou")


def name_terminal(thing: Thing, terminal: int) -> str:
    """Returns the name of a terminal of a thing."""
    return _TERMINALS[thing.type.is_polarized][terminal]


def name_thing(thing: Thing) -> str:
    """Returns the name of a thing with its article."""
    article = thing.type.article
    if article == "a" and thing.label[0] in _VOWELS:
        article = "an"
    return f"{article} {thing.label}"


def describe(lab: Lab, thing: Thing) -> str:
    """Describes a thing with its contents: "a stove (off; on it: a metal pot (in it: some water))"."""
    thing_type, parts = thing.type, []
    if thing_type.is_lidded:
        parts.append("open" if thing.is_open else "closed")
    if thing_type.is_switchable or thing_type.role == "load":
        parts.append("on" if thing.is_on else "off")
    elif thing_type.role == "fire pit" and thing.is_on:
        parts.append("burning")
    if thing_type.holds and thing.is_open:
        contents = ", ".join([describe(lab, lab.things[number]) for number in thing.contents])
        if contents:
            parts.append(f"{thing_type.holds} it: {contents}")
        elif thing_type.holds == "in":
            parts.append("empty")
    if thing_type.role == "block" and lab.things[thing.parent].type.role == "plane":
        parts.append(_describe_position(thing))
    return f"{name_thing(thing)} ({'; '.join(parts)})" if parts else name_thing(thing)


def _describe_position(block: Thing) -> str:
    if block.progress >= 100.0:
        return "at the bottom"
    return f"{int(block.progress)} percent of the way down" if block.progress >= 1.0 else "at the top"


def describe_details(lab: Lab, thing: Thing) -> str:
    """Describes a thing with what only a closer look shows: connections, and the time of a stopwatch."""
    text = describe(lab, thing) + "."
    if thing.type.role == "stopwatch":
        text += f" It shows {thing.timer} ticks."
    if thing.type.is_polarized or thing.type.role == "wire" or any(thing.links):
        for terminal, link in enumerate(thing.links):
            target = "nothing"
            if link is not None:
                other = lab.things[link[0]]
                target = f"{name_terminal(other, link[1])} of the {other.label}"
            text += f" Its {name_terminal(thing, terminal)} is connected to {target}."
    return text


def describe_room(lab: Lab) -> str:
    """Describes the room that the agent is in, a thing or door a line."""
    room = lab.things[lab.room]
    lines = [f"You are in the {room.label}. You see:" if room.label != "outside" else "You are outside. You see:"]
    lines += ["\t" + describe(lab, lab.things[number]) for number in room.contents]
    lines.append("Doors:")
    for neighbor in lab.list_neighbors(lab.room):
        state = "open" if lab.doors[min(lab.room, neighbor), max(lab.room, neighbor)] else "closed"
        lines.append(f"\ta door to the {lab.things[neighbor].label} ({state})")
    return "\n".join(lines)


def index_phrases(things: Iterable[Thing]) -> Mapping[str, list[Thing]]:
    """Returns the things by each of their names."""
    index: dict[str, list[Thing]] = {}
    for thing in things:
        index.setdefault(thing.label, []).append(thing)
        for noun in thing.type.nouns:
            if noun != thing.label:
                index.setdefault(noun, []).append(thing)
    return index


def refer(lab: Lab, thing: Thing, index: Mapping[str, list[Thing]]) -> str:
    """Returns the shortest phrase that names a thing in an action, alone among those that are visible if possible."""
    label = thing.label
    namesakes = index.get(label, ())
    if len(namesakes) <= 1:
        return label
    parent = lab.things[thing.parent]
    if parent.type.role != "room" and not any(
        other is not thing and other.parent == thing.parent for other in namesakes
    ):
        vessels = index.get(parent.label, ())
        if len(vessels) <= 1:
            return f"{label} in {parent.label}"
    if thing.contents and thing.is_open:
        content = lab.things[thing.contents[0]].label
        if sum(any(lab.things[n].label == content for n in other.contents) for other in namesakes) == 1:
            return f"{label} containing {content}"
    elif thing.is_open and thing.type.holds and sum(not other.contents for other in namesakes) == 1:
        return f"empty {label}"
    if parent.type.role == "room" and not any(o is not thing and o.parent == thing.parent for o in namesakes):
        return f"{label} in {parent.label}"
    return label
