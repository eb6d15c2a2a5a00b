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
        return [Command(verb, entity.number) for entity in finder.find_all(phrase)]
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
    for entity in lab.things:
        if entity.type.role == "room" and entity.label == name:
            return entity.number
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
        entities = finder.find(name)
        ends.append([(t, terminal) for t in entities if match is None or t.type.is_polarized == is_polar])
    return [
        Command("connect", entity.number, partner.number, terminal, other_terminal)
        for entity, terminal in ends[0]
        for partner, other_terminal in ends[1]
    ]


class _Finder:
    """Finds visible things by phrases."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._visible = lab.list_visible()
        self._index = index_phrases(self._visible)

    def find_all(self, phrase: str) -> list[Thing]:
        """Returns the things that a phrase fits; raises ImpossibleAction if there are none."""
        entities = self.find(phrase)
        if not entities:
            raise _refuse("You do not see that here.")
        return entities

    def find_places(self, phrase: str) -> list[Thing]:
        """Returns the places that a phrase fits: things, the room and the inventory."""
        name = _strip_article(phrase)
        location = self._lab.things[self._lab.room]
        if name == "inventory":
            return [self._lab.things[0]]
        return [location] if name in (location.label, "floor") else self.find(phrase)

    def find(self, phrase: str) -> list[Thing]:
        """Returns the things that a phrase fits."""
        name = _strip_article(phrase)
        if name in self._index:
            return self._index[name]
        if name.startswith("empty "):
            return [entity for entity in self.find(name[6:]) if entity.type.holds and not entity.contents]
        for joint in (" in ", " on "):
            head, _, tail = name.partition(joint)
            if tail and head in self._index:
                places = [entity.number for entity in self.find_places(tail)]
                return [
                    t
                    for t in self._index[head]
                    if any(self._lab.is_within(t, target_number) for target_number in places)
                ]
        head, _, tail = name.partition(" containing ")
        if tail and head in self._index:
            contents = {entity.parent for entity in self.find(tail)}
            return [entity for entity in self._index[head] if entity.number in contents]
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
            entity = lab.things[number]
            name = entity.label if terminal < 0 else f"{entity.label} {name_terminal(entity, terminal)}"
            phrases.append(f"{name} ({_render_place(lab, entity)})")
    verb = "focus on" if command.verb == "focus" else command.verb
    return f"{verb} {_JOINTS.get(command.verb, ('',))[0].join(phrases)}"


def _render_place(lab: Lab, entity: Thing) -> str:
    if entity.parent < 0:
        return "here"
    parent = lab.things[entity.parent]
    text = f"{parent.type.holds or 'in'} {parent.label}"
    if entity.contents and entity.is_open:
        text += ", with " + ", ".join(lab.things[number].label for number in entity.contents)
    return text


# Doing


def execute(lab: Lab, command: Command, task_text: str) -> str:
    """Runs a command and returns the answer; time does not advance, except while waiting.

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


def _set_door(lab: Lab, location: int, is_open: bool) -> str:
    door = min(lab.room, location), max(lab.room, location)
    if door not in lab.doors:
        raise _refuse("No door of this room leads there.")
    state = "open" if is_open else "closed"
    if lab.doors[door] == is_open:
        raise _refuse(f"The door is already {state}.")
    lab.doors[door] = is_open
    lab.version += 1
    return f"The door is now {state}."


def _go(lab: Lab, location: int) -> str:
    door = min(lab.room, location), max(lab.room, location)
    if door not in lab.doors:
        raise _refuse("No door leads there from here.")
    if not lab.doors[door]:
        raise _refuse("The door is closed.")
    return _enter(lab, location)


def _enter(lab: Lab, location: int) -> str:
    lab.room = location
    lab.version += 1
    name = lab.things[location].label
    return f"You go {'outside' if name == 'outside' else f'to the {name}'}."


def _teleport(lab: Lab, location: int) -> str:
    if location == lab.room:
        raise _refuse("You are already in that room.")
    return _enter(lab, location)


def _look_in(lab: Lab, entity: Thing) -> str:
    if not entity.type.holds:
        raise _refuse(f"Nothing can be in the {entity.label}.")
    if not entity.is_open:
        raise _refuse(f"The {entity.label} is closed.")
    lines = ["\t" + describe(lab, lab.things[number]) for number in entity.contents]
    target_number = f"{entity.type.holds.capitalize()} the {entity.label}"
    return "\n".join([f"{target_number} you see:", *lines]) if lines else f"{target_number} you see nothing."


def _set_lid(lab: Lab, entity: Thing, is_open: bool) -> str:
    if not entity.type.is_lidded:
        raise _refuse(f"The {entity.label} has no lid or door.")
    state = "open" if is_open else "closed"
    if entity.is_open == is_open:
        raise _refuse(f"The {entity.label} is already {state}.")
    entity.is_open = is_open
    lab.version += 1
    return f"The {entity.label} is now {state}."


def _switch(lab: Lab, entity: Thing, is_on: bool) -> str:
    if not entity.type.is_switchable:
        raise _refuse(f"The {entity.label} has no switch.")
    if entity.is_on == is_on:
        raise _refuse(f"The {entity.label} is already {'on' if is_on else 'off'}.")
    if entity.is_broken:
        return f"The {entity.label} is broken."
    entity.is_on = is_on
    if entity.type.role == "stopwatch" and is_on:
        entity.timer = 0
    if entity.type.role == "sink" and not is_on:
        water = lab.holds(entity, "water")
        if water is not None:
            lab.remove(water)
    lab.version += 1
    return f"The {entity.label} is now {'on' if is_on else 'off'}."


def _check_portable(lab: Lab, entity: Thing) -> None:
    if not entity.type.is_portable:
        raise _refuse(f"The {entity.label} cannot be moved.")
    if entity.temperature is not None and entity.phase == 2:
        raise _refuse(f"The {entity.label} cannot be held.")


def _pick_up(lab: Lab, entity: Thing) -> str:
    _check_portable(lab, entity)
    if entity.parent == 0:
        raise _refuse(f"You already carry the {entity.label}.")
    if entity.temperature is not None and entity.phase == 1:
        raise _refuse(f"The {entity.label} is liquid; use a vessel.")
    lab.move(entity, 0)
    return f"You take the {entity.label}."


def _put_down(lab: Lab, entity: Thing) -> str:
    if entity.parent != 0:
        raise _refuse(f"You do not carry the {entity.label}.")
    lab.move(entity, lab.room)
    return f"You put down the {entity.label}."


def _check_target(lab: Lab, entity: Thing, target: Thing) -> None:
    if not target.type.holds:
        raise _refuse(f"Nothing can be put into the {target.label}.")
    if not target.is_open:
        raise _refuse(f"The {target.label} is closed.")
    if target is entity or lab.is_within(target, entity.number):
        raise _refuse("A thing cannot hold itself.")


def _move(lab: Lab, entity: Thing, target: Thing) -> str:
    _check_portable(lab, entity)
    _check_target(lab, entity, target)
    if entity.parent == target.number:
        raise _refuse(f"The {entity.label} is already in that place.")
    if target.number == 0 and entity.temperature is not None and entity.phase == 1:
        raise _refuse(f"The {entity.label} is liquid; use a vessel.")
    if target.type.role == "plane" and entity.type.role != "block":
        raise _refuse(f"The {entity.label} does not stay there.")
    lab.move(entity, target.number)
    lab.merge(target)
    return f"You move the {entity.label} to the {target.label}."


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


def _use(lab: Lab, tool: Thing, entity: Thing) -> str:
    role = tool.type.role
    if role not in ("thermometer", "lighter", "shovel"):
        raise _refuse(f"The {tool.label} is not a tool.")
    if tool.parent != 0:
        raise _refuse(f"You do not carry the {tool.label}.")
    if role == "thermometer":
        if entity.temperature is None:
            raise _refuse(f"The thermometer cannot measure the {entity.label}.")
        text = f"The thermometer reads {round(entity.temperature)} degrees celsius."
    elif role == "lighter":
        pit = entity if entity.type.role == "fire pit" else lab.things[entity.parent]
        if pit.type.role != "fire pit" or lab.holds(pit, "wood") is None:
            raise _refuse(f"The {entity.label} does not catch fire.")
        if pit.is_on:
            raise _refuse("The fire already burns.")
        pit.is_on, pit.timer = True, 0
        lab.version += 1
        text = "The wood catches fire."
    else:
        if entity.type.role != "ground":
            raise _refuse(f"You cannot dig in the {entity.label}.")
        lab.create(SOIL, lab.room)
        text = "You dig up some soil."
    lab.used |= {(tool.number, entity.number)}
    return text


SOIL = ThingType("soil", article="some", role="soil")


def _read(lab: Lab, entity: Thing) -> str:
    if not entity.type.text:
        raise _refuse(f"Nothing is written on the {entity.label}.")
    lab.used |= {(-1, entity.number)}
    return f"The {entity.label} says: {entity.type.text}"


def _eat(lab: Lab, entity: Thing) -> str:
    if not entity.type.is_edible:
        raise _refuse(f"The {entity.label} is not food.")
    lab.remove(entity)
    return f"You eat the {entity.label}."


def _flush(lab: Lab, entity: Thing) -> str:
    if entity.type.role != "toilet":
        raise _refuse(f"The {entity.label} cannot be flushed.")
    for number in entity.contents[:]:
        if lab.things[number].type.article == "some" and lab.things[number].type.name != "water":
            lab.remove(lab.things[number])
    return f"You flush the {entity.label}."


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


def _focus(lab: Lab, entity: Thing) -> str:
    lab.focused = (*lab.focused, entity.number)
    return f"You focus on the {entity.label}."


def _connect(lab: Lab, command: Command) -> str:
    ends = ((lab.things[command.first], command.first_terminal), (lab.things[command.second], command.second_terminal))
    for entity, terminal in ends:
        if not entity.type.has_terminals:
            raise _refuse(f"Nothing can be connected to the {entity.label}.")
        if terminal < 0:
            raise _refuse(f"Name a terminal of the {entity.label}, such as {name_terminal(entity, 0)}.")
        if entity.links[terminal] is not None:
            raise _refuse(f"The {name_terminal(entity, terminal)} of the {entity.label} is already connected.")
    (first, first_terminal), (second, second_terminal) = ends
    if first is second:
        raise _refuse("A thing cannot be connected to itself.")
    lab.connect(first, first_terminal, second, second_terminal)
    return (
        f"You connect the {name_terminal(first, first_terminal)} of the {first.label} "
        f"to the {name_terminal(second, second_terminal)} of the {second.label}."
    )


def _disconnect(lab: Lab, entity: Thing) -> str:
    if not any(entity.links):
        raise _refuse(f"The {entity.label} is not connected.")
    lab.disconnect(entity)
    lab.update_circuits()
    return f"The {entity.label} is now disconnected."


_ROOM_RULES: Mapping[str, Callable[[Lab, int], str]] = {
    "go": _go,
    "teleport": _teleport,
    "open door": lambda lab, location: _set_door(lab, location, True),
    "close door": lambda lab, location: _set_door(lab, location, False),
}
_SINGLE_RULES: Mapping[str, Callable[[Lab, Thing], str]] = {
    "look at": describe_details,
    "look in": _look_in,
    "open": lambda lab, entity: _set_lid(lab, entity, True),
    "close": lambda lab, entity: _set_lid(lab, entity, False),
    "activate": lambda lab, entity: _switch(lab, entity, True),
    "deactivate": lambda lab, entity: _switch(lab, entity, False),
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
    entities = lab.things
    visible = lab.list_visible()
    index = index_phrases(visible)
    names = {entity.number: refer(lab, entity, index) for entity in visible}
    actions = ["look around", "inventory", "task", "wait", "wait1"]
    for neighbor in lab.list_neighbors(lab.room):
        name = entities[neighbor].label
        if lab.doors[min(lab.room, neighbor), max(lab.room, neighbor)]:
            actions += (f"go to {name}", f"close door to {name}")
        else:
            actions.append(f"open door to {name}")
    if can_teleport:
        actions += [f"teleport to {t.label}" for t in entities if t.type.role == "room" and t.number != lab.room]
    movable, targets, vessels, tools, contacts = [], [], [], [], []
    for entity in visible:
        thing_type, name = entity.type, names[entity.number]
        actions += (f"look at {name}", f"focus on {name}")
        if thing_type.is_lidded:
            actions.append(f"close {name}" if entity.is_open else f"open {name}")
        if thing_type.is_switchable:
            actions.append(f"deactivate {name}" if entity.is_on else f"activate {name}")
        if thing_type.holds and entity.is_open:
            actions.append(f"look in {name}")
            targets.append((entity, name))
            if thing_type.holds == "in" and entity.contents:
                if len(entity.contents) > 1:
                    actions.append(f"mix {name}")
                if thing_type.is_portable:
                    vessels.append((entity, name))
        if thing_type.is_portable and (entity.temperature is None or entity.phase < 2):
            movable.append((entity, name))
            if entity.parent == 0:
                actions.append(f"put down {name}")
            elif entity.temperature is None or entity.phase == 0:
                actions.append(f"pick up {name}")
        if thing_type.text:
            actions.append(f"read {name}")
        if thing_type.is_edible:
            actions.append(f"eat {name}")
        if thing_type.role == "toilet":
            actions.append(f"flush {name}")
        elif thing_type.role in ("thermometer", "lighter", "shovel") and entity.parent == 0:
            tools.append((entity, name))
        if thing_type.has_terminals:
            contacts.append((entity, name))
    for entity, name in movable:
        number, parent, is_block = entity.number, entity.parent, entity.type.role == "block"
        is_vessel = bool(entity.contents)
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


def _is_usable(lab: Lab, tool: Thing, entity: Thing) -> bool:
    if tool.type.role == "thermometer":
        return entity.temperature is not None
    if tool.type.role == "lighter":
        return entity.type.role == "fire pit" and not entity.is_on and lab.holds(entity, "wood") is not None
    return entity.type.role == "ground"


def _list_connections(contacts: Sequence[tuple[Thing, str]]) -> list[str]:
    """Lists the connections between free terminals: one of the two belongs to a wire."""
    actions = [f"disconnect {name}" for entity, name in contacts if any(entity.links)]
    ends = [
        (entity, f"{name} {name_terminal(entity, terminal)}")
        for entity, name in contacts
        for terminal in (0, 1)
        if entity.links[terminal] is None
    ]
    for entity, end in ends:
        if entity.type.role == "wire":
            actions += [
                f"connect {end} to {other_end}"
                for partner, other_end in ends
                if partner is not entity and (partner.type.role != "wire" or partner.number > entity.number)
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
        "You do not carry. Nothing can be put into the. A thing cannot hold itself. is already in that place.",
        "does not stay",
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
