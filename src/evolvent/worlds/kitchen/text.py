"""What is said in a kitchen, in two forms of actions.

`commands` names the thing, where it is and where it goes, in 3 to 19 words:

    move the chopped tomato from the board by the sink to the plate with the golden rim
    chop the tomato on the wooden board
    deliver the blue plate

`macro` is the published form, one macro action of 3 to 7 words at a time, with something in hand:

    take the tomato -> put the tomato on board one -> chop the tomato -> ... -> deliver plate one
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from evolvent.worlds.crafting import words_of
from evolvent.worlds.kitchen.orders import FOODS, PREPARED, food_of, say_part
from evolvent.worlds.kitchen.rooms import BIN, BOARDS, NAMES, PLATES, SHELVES, Kitchen, State
from evolvent.worlds.kitchen.rules import Act, acts, moves, nearest

__all__ = ["DELIVERED", "FORMS", "WRONG", "Speaker", "words_said"]

DELIVERED = "right , the order is delivered"
WRONG = "wrong , the plate comes back"
_COMMAND = re.compile(r"(?:move the (.+?) from the (.+?) to the (.+)|chop the (.+?) on the (.+)|deliver the (.+))")
_MACRO = re.compile(
    r"(?:take the (.+)|put the (.+?) (?:on (board|plate) (one|two)|in the bin)|chop the (.+)"
    r"|(clear|deliver) plate (one|two))"
)
_NUMBERS = ("one", "two")
_FIXED = ("shelf one", "shelf two", "shelf three", "board one", "board two", "plate one", "plate two", "bin", "hatch")
FORMS: Mapping[str, str] = MappingProxyType(
    {
        "commands": "expected move the , chop the or deliver the",
        "macro": "expected take , put , chop , clear or deliver",
    }
)
"""Form of actions -> what is answered to a text that is none."""
_REFUSALS = {
    "absent": "there is no {part} on the {source}",
    "room": "the {target} has no room for that",
    "chopped": "that is chopped already",
    "empty": "the {source} is empty",
}
_HAND = ("that is not in hand", "put down what is in hand first")
_THING, _PLACE = "there is no such thing", "there is no such place"


def words_said() -> set[str]:
    """Every word and mark of observations and actions, in both forms."""
    names = (*FOODS, *PREPARED, *(name for of in NAMES.values() for name in of), *_FIXED)
    sentences = (
        DELIVERED,
        WRONG,
        *FORMS.values(),
        *_HAND,
        _THING,
        _PLACE,
        *_REFUSALS.values(),
        "order : , . : on the nothing in hand done move the from to chop deliver take put on in the clear",
    )
    return {word for text in (*names, *sentences) for word in words_of(re.sub(r"\{\w+\}", "", text))}


class Speaker:
    """A kitchen in words.

    Args:
        kitchen: the kitchen.
        form: one of `FORMS`.
    """

    def __init__(self, kitchen: Kitchen, form: str) -> None:
        self.kitchen, self.form = kitchen, form
        self.names = _FIXED if form == "macro" else kitchen.names
        self._places = {name: place for place, name in enumerate(self.names)}
        self.first = self._scene()
        self._legal: dict[State, tuple[str, ...]] = {}

    def _scene(self) -> str:
        start = self.kitchen.start
        order = " , ".join(map(say_part, self.kitchen.order))
        shelves = (f"on the {self.names[place]} {_listed(self.kitchen.shelves[place])}" for place in SHELVES)
        others = (f"on the {self.names[place]} {self._content(start, place)}" for place in (*BOARDS, *PLATES))
        return " . ".join((f"order : {order}", *shelves, *others))

    def _content(self, state: State, place: int) -> str:
        if place in BOARDS:
            part = state.boards[place - BOARDS[0]]
            return _listed((part,) if part >= 0 else ())
        mask = state.plates[place - PLATES[0]]
        return _listed([part for part in range(mask.bit_length()) if mask >> part & 1])

    def legal(self, state: State) -> tuple[str, ...]:
        """What can be done, in words, sorted."""
        found = self._legal.get(state)
        if found is None:
            of = moves if self.form == "commands" else acts
            found = tuple(sorted(self.say(act) for act in of(self.kitchen, state)))
            if len(self._legal) < _KNOWN_STATES:
                self._legal[state] = found
        return found

    def say(self, act: Act) -> str:
        """An act in words."""
        if self.form == "macro":
            return self._say_macro(act)
        if act.verb == "move":
            return f"move the {_thing(act.part)} from the {self.names[act.source]} to the {self.names[act.target]}"
        if act.verb == "chop":
            return f"chop the {food_of(act.part)} on the {self.names[act.source]}"
        return f"deliver the {self.names[act.source]}"

    def _say_macro(self, act: Act) -> str:
        if act.verb in ("take", "chop"):
            return f"{act.verb} the {_thing(act.part)}"
        if act.verb == "put":
            place = "in the bin" if act.target == BIN else f"on {self.names[act.target]}"
            return f"put the {food_of(act.part)} {place}"
        return f"{act.verb} {self.names[act.source]}"

    def understand(self, text: str, state: State) -> Act | str:
        """The act that a text asks for, or what is wrong with it."""
        plain = " ".join(text.lower().split())
        found = (_MACRO if self.form == "macro" else _COMMAND).fullmatch(plain)
        if found is None:
            return FORMS[self.form]
        return self._macro(found, state) if self.form == "macro" else self._command(found)

    def _command(self, found: re.Match[str]) -> Act | str:
        thing, source, target, raw, board, plate = found.groups()
        if plate is not None:
            place = self._places.get(plate, -1)
            return Act("deliver", -1, place) if place in PLATES else _PLACE
        part = _THINGS.get(thing or raw, -1)
        if part < 0:
            return _THING
        if raw is not None:
            place = self._places.get(board, -1)
            return Act("chop", part, place) if place in BOARDS else _PLACE
        start, end = self._places.get(source, -1), self._places.get(target, -1)
        if start not in (*SHELVES, *BOARDS, *PLATES) or end not in (*BOARDS, *PLATES, BIN):
            return _PLACE
        return Act("move", part, start, end)

    def _macro(self, found: re.Match[str], state: State) -> Act | str:
        taken, laid, kind, number, raw, verb, plate = found.groups()
        if verb is not None:
            return Act(verb, -1, PLATES[_NUMBERS.index(plate)])
        part = _THINGS.get(taken or laid or raw, -1)
        if part < 0:
            return _THING
        if laid is not None:
            places = {"board": BOARDS, "plate": PLATES}
            target = BIN if kind is None else places[kind][_NUMBERS.index(number)]
            return Act("put", state.held if state.held >> 1 == part >> 1 else part, -1, target)
        among = BOARDS if raw is not None else (*SHELVES, *BOARDS)
        source = nearest(self.kitchen, state, part, among=among)
        return Act("take" if raw is None else "chop", part, source)

    def refuse(self, act: Act, why: str) -> str:
        """Why an act cannot be done, in words."""
        if why == "hand":
            return _HAND[act.verb != "put"]
        if why == "absent" and act.source < 0:
            return _THING
        source, target = (self.names[place] if place >= 0 else "" for place in (act.source, act.target))
        return _REFUSALS[why].format(part=_thing(act.part), source=source, target=target)

    def answer(self, act: Act, state: State) -> str:
        """What is seen after an act: what lies where something was done; a delivery is answered by the world."""
        if act.verb == "take":
            return f"in hand {_thing(act.part)}"
        place = act.source if act.verb in ("chop", "clear") else act.target
        return "done" if place == BIN else f"on the {self.names[place]} {self._content(state, place)}"


_KNOWN_STATES = 4096  # lists of actions kept for one task


def _thing(part: int) -> str:
    return f"chopped {food_of(part)}" if part & 1 else food_of(part)


def _listed(parts: Sequence[int]) -> str:
    return " , ".join(map(_thing, parts)) or "nothing"


_THINGS = {
    **{_thing(part): part for part in range(2 * len(FOODS))},
    **{say_part(part): part for part in range(2 * len(FOODS))},
}
