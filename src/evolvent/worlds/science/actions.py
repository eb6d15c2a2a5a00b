"""The actions of ScienceWorld's grammar: how a text is understood, what it does, and what can be done.

Objects are named by their names ("metal pot", or a shorter one such as "pot"), if necessary with a place or a content:
"water in metal pot", "thermometer in inventory", "wood cup containing red paint". Where a text fits several objects,
the answer lists them with numbers, and the next action is a number, or blank to cancel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from evolvent.worlds.science.catalogue import ThingType, find_product
from evolvent.worlds.science.describe import (
    describe,
    describe_details,
    describe_room,
    index_phrases,
    name_terminal,
    refer,
)
from evolvent.worlds.science.lab import Command, Lab, Thing

__all__ = ["SOIL", "ImpossibleAction", "execute", "list_actions", "list_reply_texts", "parse", "render_question"]

_MAX_CHOICES = 20
_UNKNOWN_ACTION = "That is not an action."
_LONG_WAIT = 10


class ImpossibleAction(Exception):
    """An action that is not understood or cannot be done; nothing changes. Its text is the answer."""


def _refuse(text: str) -> ImpossibleAction:
    return ImpossibleAction(text)


# Understanding

_PLAIN_VERBS = {
    "look around": "look around",
    "look": "look around",
    "inventory": "inventory",
    "task": "task",
    "wait": "wait",
    "wait1": "wait1",
}
_PREFIXES = (
    ("look at ", "look at"),
    ("examine ", "look at"),
    ("look in ", "look in"),
    ("look inside ", "look in"),
    ("look on ", "look in"),
    ("open ", "open"),
    ("close ", "close"),
    ("activate ", "activate"),
    ("turn on ", "activate"),
    ("deactivate ", "deactivate"),
    ("turn off ", "deactivate"),
    ("go to ", "go"),
    ("go ", "go"),
    ("teleport to ", "teleport"),
    ("teleport ", "teleport"),
    ("pick up ", "pick up"),
    ("take ", "pick up"),
    ("put down ", "put down"),
    ("drop ", "put down"),
    ("read ", "read"),
    ("eat ", "eat"),
    ("flush ", "flush"),
    ("focus on ", "focus"),
    ("mix ", "mix"),
    ("disconnect ", "disconnect"),
    ("connect ", "connect"),
    ("move ", "move"),
    ("put ", "move"),
    ("pour ", "pour"),
    ("dunk ", "dunk"),
    ("use ", "use"),
)
_JOINTS: Mapping[str, tuple[str, ...]] = {
    "connect": (" to ",),
    "move": (" to ", " into ", " in ", " onto ", " on "),
    "pour": (" into ", " in ", " to "),
    "dunk": (" into ", " in "),
    "use": (" on ",),
}
_TERMINAL = re.compile(r"(?:(?P<head>.+) )?(?P<terminal>anode|cathode|terminal [12])(?: (?:in|of|on) (?P<tail>.+))?")
_TERMINAL_NUMBERS = {"terminal 1": 0, "terminal 2": 1, "anode": 0, "cathode": 1}


def parse(lab: Lab, text: str) -> list[Command]:
    """Returns the commands that a text can mean, without duplicates.

    Raises:
        ImpossibleAction: it means none.
    """
    line = " ".join(text.lower().split()).rstrip(".")
    plain_verb = _PLAIN_VERBS.get(line)
    if plain_verb is not None:
        return [Command(plain_verb)]
    prefix, verb = next((row for row in _PREFIXES if line.startswith(row[0])), ("", ""))
    if not verb:
        raise _refuse(_UNKNOWN_ACTION)
    phrase = line[len(prefix) :]
    if verb in ("go", "teleport"):
        return [Command(verb, _find_room(lab, phrase))]
    if verb in ("open", "close") and "door" in phrase:
        return [Command(f"{verb} door", _find_room(lab, phrase))]
    finder = _Finder(lab)
    joints = _JOINTS.get(verb)
    if joints is None:
        return [Command(verb, thing.number) for thing in finder.find_all(phrase)]
    commands: dict[Command, None] = {}
    for joint in joints:
        start = phrase.find(joint)
        while start >= 0:
            first, second = phrase[:start], phrase[start + len(joint) :]
            start = phrase.find(joint, start + 1)
            if verb == "connect":
                commands |= dict.fromkeys(_match_terminals(finder, first, second))
            else:
                firsts = finder.find(first)
                seconds = finder.find_places(second) if firsts and verb != "use" else finder.find(second)
                commands |= dict.fromkeys(Command(verb, a.number, b.number) for a in firsts for b in seconds)
    if not commands:
        raise _refuse("You do not see these things here.")
    return list(commands)


def _find_room(lab: Lab, phrase: str) -> int:
    name = phrase.removeprefix("the ").removeprefix("door to ").removeprefix("the ").removesuffix(" door")
    for thing in lab.things:
        if thing.type.role == "room" and thing.label == name:
            return thing.number
    raise _refuse("You do not know that place.")


def _match_terminals(finder: _Finder, first: str, second: str) -> list[Command]:
    """Lists the connections that two phrases such as "battery anode" and "terminal 1 in red wire" can mean."""
    ends = []
    for phrase in (first, second):
        match = _TERMINAL.fullmatch(phrase)
        name = phrase if match is None else " ".join(filter(None, (match["head"], match["tail"])))
        if match is not None and match["head"] and match["tail"]:
            name = f"{match['head']} in {match['tail']}"
        terminal = -1 if match is None else _TERMINAL_NUMBERS[match["terminal"]]
        is_polar = match is not None and match["terminal"] in ("anode", "cathode")
        things = finder.find(name)
        ends.append([(t, terminal) for t in things if match is None or t.type.is_polarized == is_polar])
    return [
        Command("connect", thing.number, other.number, terminal, other_terminal)
        for thing, terminal in ends[0]
        for other, other_terminal in ends[1]
    ]


class _Finder:
    """Finds visible things by phrases."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._visible = lab.list_visible()
        self._index = index_phrases(self._visible)

    def find_all(self, phrase: str) -> list[Thing]:
        """Returns the things that a phrase fits; raises ImpossibleAction if there are none."""
        things = self.find(phrase)
        if not things:
            raise _refuse("You do not see that here.")
        return things

    def find_places(self, phrase: str) -> list[Thing]:
        """Returns the places that a phrase fits: things, the room and the inventory."""
        name = _strip_article(phrase)
        room = self._lab.things[self._lab.room]
        if name == "inventory":
            return [self._lab.things[0]]
        return [room] if name in (room.label, "floor") else self.find(phrase)

    def find(self, phrase: str) -> list[Thing]:
        """Returns the things that a phrase fits."""
        name = _strip_article(phrase)
        if name in self._index:
            return self._index[name]
        if name.startswith("empty "):
            return [thing for thing in self.find(name[6:]) if thing.type.holds and not thing.contents]
        for joint in (" in ", " on "):
            head, _, tail = name.partition(joint)
            if tail and head in self._index:
                places = [thing.number for thing in self.find_places(tail)]
                return [t for t in self._index[head] if any(self._lab.is_within(t, place) for place in places)]
        head, _, tail = name.partition(" containing ")
        if tail and head in self._index:
            contents = {thing.parent for thing in self.find(tail)}
            return [thing for thing in self._index[head] if thing.number in contents]
        return []


def _strip_article(phrase: str) -> str:
    head, _, tail = phrase.partition(" ")
    return tail if tail and head in ("the", "a", "an", "some") else phrase


def render_question(lab: Lab, commands: Sequence[Command]) -> str:
    """Returns the question which of several commands was meant."""
    lines = [f"{number}: {_render_command(lab, command)}" for number, command in enumerate(commands)]
    return "\n".join(["Which do you mean? Answer with a number, or blank to cancel.", *lines])


def _render_command(lab: Lab, command: Command) -> str:
    ends = ((command.first, command.first_terminal), (command.second, command.second_terminal))
    phrases = []
    for number, terminal in ends:
        if number >= 0:
            thing = lab.things[number]
            name = thing.label if terminal < 0 else f"{thing.label} {name_terminal(thing, terminal)}"
            phrases.append(f"{name} ({_render_place(lab, thing)})")
    verb = "focus on" if command.verb == "focus" else command.verb
    return f"{verb} {_JOINTS.get(command.verb, ('',))[0].join(phrases)}"


def _render_place(lab: Lab, thing: Thing) -> str:
    if thing.parent < 0:
        return "here"
    parent = lab.things[thing.parent]
    text = f"{parent.type.holds or 'in'} {parent.label}"
    if thing.contents and thing.is_open:
        text += ", with " + ", ".join(lab.things[number].label for number in thing.contents)
    return text


# Doing


def execute(lab: Lab, command: Command, task_text: str) -> str:
    """Does a command and returns the answer; time does not advance, except while waiting.

    Raises:
        ImpossibleAction: it cannot be done, and nothing has changed.
    """
    if command.first < 0:
        return _do_plain(lab, command.verb, task_text)
    if command.verb in _ROOM_RULES:
        return _ROOM_RULES[command.verb](lab, command.first)
    first = lab.things[command.first]
    if command.verb == "connect":
        return _connect(lab, command)
    if command.second >= 0:
        return _PAIR_RULES[command.verb](lab, first, lab.things[command.second])
    return _SINGLE_RULES[command.verb](lab, first)


def _do_plain(lab: Lab, verb: str, task_text: str) -> str:
    if verb == "look around":
        return describe_room(lab)
    if verb == "inventory":
        lines = ["\t" + describe(lab, lab.things[number]) for number in lab.things[0].contents]
        return "\n".join(["You carry:", *lines]) if lines else "You carry nothing."
    if verb == "task":
        return task_text
    lab.advance((_LONG_WAIT if verb == "wait" else 1) - 1)  # the last tick is that of every action
    return f"You wait for {_LONG_WAIT} ticks." if verb == "wait" else "You wait for a tick."


def _set_door(lab: Lab, room: int, is_open: bool) -> str:
    door = min(lab.room, room), max(lab.room, room)
    if door not in lab.doors:
        raise _refuse("No door of this room leads there.")
    state = "open" if is_open else "closed"
    if lab.doors[door] == is_open:
        raise _refuse(f"The door is already {state}.")
    lab.doors[door] = is_open
    lab.version += 1
    return f"The door is now {state}."


def _go(lab: Lab, room: int) -> str:
    door = min(lab.room, room), max(lab.room, room)
    if door not in lab.doors:
        raise _refuse("No door leads there from here.")
    if not lab.doors[door]:
        raise _refuse("The door is closed.")
    return _enter(lab, room)


def _enter(lab: Lab, room: int) -> str:
    lab.room = room
    lab.version += 1
    name = lab.things[room].label
    return f"You go {'outside' if name == 'outside' else f'to the {name}'}."


def _teleport(lab: Lab, room: int) -> str:
    if room == lab.room:
        raise _refuse("You are already in that room.")
    return _enter(lab, room)


def _look_in(lab: Lab, thing: Thing) -> str:
    if not thing.type.holds:
        raise _refuse(f"Nothing can be in the {thing.label}.")
    if not thing.is_open:
        raise _refuse(f"The {thing.label} is closed.")
    lines = ["\t" + describe(lab, lab.things[number]) for number in thing.contents]
    place = f"{thing.type.holds.capitalize()} the {thing.label}"
    return "\n".join([f"{place} you see:", *lines]) if lines else f"{place} you see nothing."


def _set_lid(lab: Lab, thing: Thing, is_open: bool) -> str:
    if not thing.type.is_lidded:
        raise _refuse(f"The {thing.label} has no lid or door.")
    state = "open" if is_open else "closed"
    if thing.is_open == is_open:
        raise _refuse(f"The {thing.label} is already {state}.")
    thing.is_open = is_open
    lab.version += 1
    return f"The {thing.label} is now {state}."


def _switch(lab: Lab, thing: Thing, is_on: bool) -> str:
    if not thing.type.is_switchable:
        raise _refuse(f"The {thing.label} has no switch.")
    if thing.is_on == is_on:
        raise _refuse(f"The {thing.label} is already {'on' if is_on else 'off'}.")
    if thing.is_broken:
        return f"The {thing.label} is broken."
    thing.is_on = is_on
    if thing.type.role == "stopwatch" and is_on:
        thing.timer = 0
    if thing.type.role == "sink" and not is_on:
        water = lab.holds(thing, "water")
        if water is not None:
            lab.remove(water)
    lab.version += 1
    return f"The {thing.label} is now {'on' if is_on else 'off'}."


def _check_portable(lab: Lab, thing: Thing) -> None:
    if not thing.type.is_portable:
        raise _refuse(f"The {thing.label} cannot be moved.")
    if thing.temperature is not None and thing.phase == 2:
        raise _refuse(f"The {thing.label} cannot be held.")


def _pick_up(lab: Lab, thing: Thing) -> str:
    _check_portable(lab, thing)
    if thing.parent == 0:
        raise _refuse(f"You already carry the {thing.label}.")
    if thing.temperature is not None and thing.phase == 1:
        raise _refuse(f"The {thing.label} is liquid; use a vessel.")
    lab.move(thing, 0)
    return f"You take the {thing.label}."


def _put_down(lab: Lab, thing: Thing) -> str:
    if thing.parent != 0:
        raise _refuse(f"You do not carry the {thing.label}.")
    lab.move(thing, lab.room)
    return f"You put down the {thing.label}."


def _check_target(lab: Lab, thing: Thing, target: Thing) -> None:
    if not target.type.holds:
        raise _refuse(f"Nothing can be put into the {target.label}.")
    if not target.is_open:
        raise _refuse(f"The {target.label} is closed.")
    if target is thing or lab.is_within(target, thing.number):
        raise _refuse("A thing cannot hold itself.")


def _move(lab: Lab, thing: Thing, target: Thing) -> str:
    _check_portable(lab, thing)
    _check_target(lab, thing, target)
    if thing.parent == target.number:
        raise _refuse(f"The {thing.label} is already in that place.")
    if target.number == 0 and thing.temperature is not None and thing.phase == 1:
        raise _refuse(f"The {thing.label} is liquid; use a vessel.")
    if target.type.role == "plane" and thing.type.role != "block":
        raise _refuse(f"The {thing.label} does not stay there.")
    lab.move(thing, target.number)
    lab.merge(target)
    return f"You move the {thing.label} to the {target.label}."


def _pour(lab: Lab, vessel: Thing, target: Thing) -> str:
    _check_target(lab, vessel, target)
    if vessel.type.holds != "in" or not vessel.type.is_portable:
        raise _refuse(f"The {vessel.label} cannot be poured.")
    if not vessel.is_open:
        raise _refuse(f"The {vessel.label} is closed.")
    if target.number == 0:
        raise _refuse("You need a vessel for that.")
    if not vessel.contents:
        raise _refuse(f"The {vessel.label} is empty.")
    for number in vessel.contents[:]:
        lab.move(lab.things[number], target.number)
    lab.merge(target)
    return f"You pour what is in the {vessel.label} into the {target.label}."


def _dunk(lab: Lab, vessel: Thing, source: Thing) -> str:
    _check_target(lab, vessel, source)
    if vessel.type.holds != "in" or not vessel.type.is_portable:
        raise _refuse(f"The {vessel.label} does not hold liquids.")
    liquid = lab.holds_liquid(source)
    if liquid is None:
        raise _refuse(f"No liquid is in the {source.label}.")
    lab.create(liquid.type, vessel.number, temperature=liquid.temperature or 0.0)
    lab.merge(vessel)
    return f"You fill the {vessel.label} with {liquid.label}."


def _use(lab: Lab, tool: Thing, thing: Thing) -> str:
    role = tool.type.role
    if role not in ("thermometer", "lighter", "shovel"):
        raise _refuse(f"The {tool.label} is not a tool.")
    if tool.parent != 0:
        raise _refuse(f"You do not carry the {tool.label}.")
    if role == "thermometer":
        if thing.temperature is None:
            raise _refuse(f"The thermometer cannot measure the {thing.label}.")
        text = f"The thermometer reads {round(thing.temperature)} degrees celsius."
    elif role == "lighter":
        pit = thing if thing.type.role == "fire pit" else lab.things[thing.parent]
        if pit.type.role != "fire pit" or lab.holds(pit, "wood") is None:
            raise _refuse(f"The {thing.label} does not catch fire.")
        if pit.is_on:
            raise _refuse("The fire already burns.")
        pit.is_on, pit.timer = True, 0
        lab.version += 1
        text = "The wood catches fire."
    else:
        if thing.type.role != "ground":
            raise _refuse(f"You cannot dig in the {thing.label}.")
        lab.create(SOIL, lab.room)
        text = "You dig up some soil."
    lab.used |= {(tool.number, thing.number)}
    return text


SOIL = ThingType("soil", article="some", role="soil")


def _read(lab: Lab, thing: Thing) -> str:
    if not thing.type.text:
        raise _refuse(f"Nothing is written on the {thing.label}.")
    lab.used |= {(-1, thing.number)}
    return f"The {thing.label} says: {thing.type.text}"


def _eat(lab: Lab, thing: Thing) -> str:
    if not thing.type.is_edible:
        raise _refuse(f"The {thing.label} is not food.")
    lab.remove(thing)
    return f"You eat the {thing.label}."


def _flush(lab: Lab, thing: Thing) -> str:
    if thing.type.role != "toilet":
        raise _refuse(f"The {thing.label} cannot be flushed.")
    for number in thing.contents[:]:
        if lab.things[number].type.article == "some" and lab.things[number].type.name != "water":
            lab.remove(lab.things[number])
    return f"You flush the {thing.label}."


def _mix(lab: Lab, vessel: Thing) -> str:
    if vessel.type.holds != "in" or not vessel.is_open:
        raise _refuse(f"Nothing can be mixed in the {vessel.label}.")
    ingredients = [lab.things[number] for number in vessel.contents]
    if len(ingredients) < 2:
        raise _refuse(f"Too little is in the {vessel.label}.")
    product = find_product(frozenset(ingredient.type.name for ingredient in ingredients))
    names = " and ".join(ingredient.label for ingredient in ingredients)
    if product is None:
        return f"You mix {names}, and nothing happens."
    for ingredient in ingredients:
        lab.remove(ingredient)
    lab.create(ThingType(product, (product.split()[-1],), "some"), vessel.number)
    return f"You mix {names} and get {product}."


def _focus(lab: Lab, thing: Thing) -> str:
    lab.focused = (*lab.focused, thing.number)
    return f"You focus on the {thing.label}."


def _connect(lab: Lab, command: Command) -> str:
    ends = ((lab.things[command.first], command.first_terminal), (lab.things[command.second], command.second_terminal))
    for thing, terminal in ends:
        if not thing.type.has_terminals:
            raise _refuse(f"Nothing can be connected to the {thing.label}.")
        if terminal < 0:
            raise _refuse(f"Name a terminal of the {thing.label}, such as {name_terminal(thing, 0)}.")
        if thing.links[terminal] is not None:
            raise _refuse(f"The {name_terminal(thing, terminal)} of the {thing.label} is already connected.")
    (first, first_terminal), (second, second_terminal) = ends
    if first is second:
        raise _refuse("A thing cannot be connected to itself.")
    lab.connect(first, first_terminal, second, second_terminal)
    return (
        f"You connect the {name_terminal(first, first_terminal)} of the {first.label} "
        f"to the {name_terminal(second, second_terminal)} of the {second.label}."
    )


def _disconnect(lab: Lab, thing: Thing) -> str:
    if not any(thing.links):
        raise _refuse(f"The {thing.label} is not connected.")
    lab.disconnect(thing)
    lab.update_circuits()
    return f"The {thing.label} is now disconnected."


_ROOM_RULES: Mapping[str, Callable[[Lab, int], str]] = {
    "go": _go,
    "teleport": _teleport,
    "open door": lambda lab, room: _set_door(lab, room, True),
    "close door": lambda lab, room: _set_door(lab, room, False),
}
_SINGLE_RULES: Mapping[str, Callable[[Lab, Thing], str]] = {
    "look at": describe_details,
    "look in": _look_in,
    "open": lambda lab, thing: _set_lid(lab, thing, True),
    "close": lambda lab, thing: _set_lid(lab, thing, False),
    "activate": lambda lab, thing: _switch(lab, thing, True),
    "deactivate": lambda lab, thing: _switch(lab, thing, False),
    "pick up": _pick_up,
    "put down": _put_down,
    "read": _read,
    "eat": _eat,
    "flush": _flush,
    "mix": _mix,
    "focus": _focus,
    "disconnect": _disconnect,
}
_PAIR_RULES: Mapping[str, Callable[[Lab, Thing, Thing], str]] = {
    "move": _move,
    "pour": _pour,
    "dunk": _dunk,
    "use": _use,
}


# Listing


def list_actions(lab: Lab, *, can_teleport: bool = False) -> tuple[str, ...]:
    """Lists what can be done now: actions that are possible, and each in one wording.

    Two equal things give one action, which is answered with the question which one is meant.
    """
    if lab.question:
        return (*map(str, range(len(lab.question))), "")
    things = lab.things
    visible = lab.list_visible()
    index = index_phrases(visible)
    names = {thing.number: refer(lab, thing, index) for thing in visible}
    actions = ["look around", "inventory", "task", "wait", "wait1"]
    for neighbor in lab.list_neighbors(lab.room):
        name = things[neighbor].label
        if lab.doors[min(lab.room, neighbor), max(lab.room, neighbor)]:
            actions += (f"go to {name}", f"close door to {name}")
        else:
            actions.append(f"open door to {name}")
    if can_teleport:
        actions += [f"teleport to {t.label}" for t in things if t.type.role == "room" and t.number != lab.room]
    movable, targets, vessels, tools, contacts = [], [], [], [], []
    for thing in visible:
        thing_type, name = thing.type, names[thing.number]
        actions += (f"look at {name}", f"focus on {name}")
        if thing_type.is_lidded:
            actions.append(f"close {name}" if thing.is_open else f"open {name}")
        if thing_type.is_switchable:
            actions.append(f"deactivate {name}" if thing.is_on else f"activate {name}")
        if thing_type.holds and thing.is_open:
            actions.append(f"look in {name}")
            targets.append((thing, name))
            if thing_type.holds == "in" and thing.contents:
                if len(thing.contents) > 1:
                    actions.append(f"mix {name}")
                if thing_type.is_portable:
                    vessels.append((thing, name))
        if thing_type.is_portable and (thing.temperature is None or thing.phase < 2):
            movable.append((thing, name))
            if thing.parent == 0:
                actions.append(f"put down {name}")
            elif thing.temperature is None or thing.phase == 0:
                actions.append(f"pick up {name}")
        if thing_type.text:
            actions.append(f"read {name}")
        if thing_type.is_edible:
            actions.append(f"eat {name}")
        if thing_type.role == "toilet":
            actions.append(f"flush {name}")
        elif thing_type.role in ("thermometer", "lighter", "shovel") and thing.parent == 0:
            tools.append((thing, name))
        if thing_type.has_terminals:
            contacts.append((thing, name))
    for thing, name in movable:
        number, parent, is_block = thing.number, thing.parent, thing.type.role == "block"
        is_vessel = bool(thing.contents)
        actions += [
            f"move {name} to {target_name}"
            for target, target_name in targets
            if target.number not in (number, parent)
            and (is_block or target.type.role != "plane")
            and not (is_vessel and lab.is_within(target, number))
        ]
    for vessel, name in vessels:
        actions += [
            f"pour {name} into {target_name}"
            for target, target_name in targets
            if target is not vessel and not lab.is_within(target, vessel.number)
        ]
    sources = [(target, name) for target, name in targets if lab.holds_liquid(target) is not None]
    for source, source_name in sources:
        actions += [
            f"dunk {name} into {source_name}"
            for vessel, name in targets
            if vessel.type.is_portable
            and vessel.type.holds == "in"
            and vessel is not source
            and not lab.is_within(source, vessel.number)
        ]
    for tool, name in tools:
        actions += [f"use {name} on {names[t.number]}" for t in visible if _is_usable(lab, tool, t)]
    if contacts:
        actions += _list_connections(contacts)
    return tuple(dict.fromkeys(actions))


def _is_usable(lab: Lab, tool: Thing, thing: Thing) -> bool:
    if tool.type.role == "thermometer":
        return thing.temperature is not None
    if tool.type.role == "lighter":
        return thing.type.role == "fire pit" and not thing.is_on and lab.holds(thing, "wood") is not None
    return thing.type.role == "ground"


def _list_connections(contacts: Sequence[tuple[Thing, str]]) -> list[str]:
    """Lists the connections between free terminals: one of the two belongs to a wire."""
    actions = [f"disconnect {name}" for thing, name in contacts if any(thing.links)]
    ends = [
        (thing, f"{name} {name_terminal(thing, terminal)}")
        for thing, name in contacts
        for terminal in (0, 1)
        if thing.links[terminal] is None
    ]
    for thing, end in ends:
        if thing.type.role == "wire":
            actions += [
                f"connect {end} to {other_end}"
                for other, other_end in ends
                if other is not thing and (other.type.role != "wire" or other.number > thing.number)
            ]
    return actions


def list_reply_texts() -> tuple[str, ...]:
    """Returns the fixed words of all answers and listed actions, for the vocabulary."""
    return (
        *(prefix for prefix, _ in _PREFIXES),
        *_PLAIN_VERBS,
        *(joint for joints in _JOINTS.values() for joint in joints),
        *_TERMINAL_NUMBERS,
        _UNKNOWN_ACTION,
        "You do not see these things here. You do not know that place. No door of this room leads there.",
        "The door is already open. closed. is now. No door leads there from here. You go to the. outside. are there",
        "Nothing can be in the. In On you see: you see nothing. has no lid or door. has no switch. is broken. on. off.",
        "cannot be moved. cannot be held. You already carry the. is liquid; use a vessel. You take the. put down",
        "You do not carry. Nothing can be put into the. A thing cannot hold itself. is already in that place. does not stay",
        "You move the to the. cannot be poured. You need a vessel for that. is empty. You pour what is in the into",
        "does not hold liquids. No liquid is in the. You fill the with. is not a tool. The thermometer cannot measure",
        "reads degrees celsius. does not catch fire. The fire already burns. The wood catches fire. You cannot dig in",
        "You dig up some soil. Nothing is written on the. says: is not food. You eat. cannot be flushed. You flush",
        "Nothing can be mixed in the. Too little is in. You mix and get, and nothing happens. You focus on",
        "Nothing can be connected to the. Name a terminal of the, such as anode. is already connected. with itself",
        "A thing cannot be connected to itself. You connect the of the. is not connected. is now disconnected.",
        "You carry: You carry nothing. You wait for 10 ticks. a tick. Its is connected to. It shows ticks. ( ; ) an",
        "You are in the. You see: You are outside. Doors: a door to the (closed) open burning in it: on it: empty , .",
        "at the bottom percent of the way down at the top some containing inventory here with and mix - ' floor",
        "Which do you mean? Answer with a number, or blank to cancel. open door close door",
    )
