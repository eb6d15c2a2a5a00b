"""Texts of a kitchen, in two forms of actions.

`commands` names the part, its place and its destination, in 3 to 19 words:

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
from evolvent.worlds.kitchen.orders import FOODS, PREPARED, food_name, part_name
from evolvent.worlds.kitchen.rooms import BIN, BOARDS, NAMES, PLATES, SHELVES, Kitchen, State
from evolvent.worlds.kitchen.rules import Action, find_nearest, list_commands, list_macro_actions

__all__ = ["DELIVERED", "FORMS", "WRONG", "Speaker", "collect_vocabulary"]

DELIVERED = "right , the order is delivered"
WRONG = "wrong , the plate comes back"
_COMMAND = re.compile(r"(?:move the (.+?) from the (.+?) to the (.+)|chop the (.+?) on the (.+)|deliver the (.+))")
_MACRO = re.compile(
    r"(?:take the (.+)|put the (.+?) (?:on (board|plate) (one|two)|in the bin)|chop the (.+)"
    r"|(clear|deliver) plate (one|two))"
)
_NUMBERS = ("one", "two")
_MACRO_NAMES = (
    "shelf one",
    "shelf two",
    "shelf three",
    "board one",
    "board two",
    "plate one",
    "plate two",
    "bin",
    "hatch",
)
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
_HAND_REFUSALS = ("that is not in hand", "put down what is in hand first")
_NO_SUCH_PART, _NO_SUCH_PLACE = "there is no such thing", "there is no such place"


def collect_vocabulary() -> set[str]:
    """Returns every word and mark of observations and actions, in both forms."""
    names = (*FOODS, *PREPARED, *(name for kind_names in NAMES.values() for name in kind_names), *_MACRO_NAMES)
    sentences = (
        DELIVERED,
        WRONG,
        *FORMS.values(),
        *_HAND_REFUSALS,
        _NO_SUCH_PART,
        _NO_SUCH_PLACE,
        *_REFUSALS.values(),
        "order : , . : on the nothing in hand done move the from to chop deliver take put on in the clear",
    )
    return {word for text in (*names, *sentences) for word in words_of(re.sub(r"\{\w+\}", "", text))}


class Speaker:
    """Texts of a kitchen.

    Args:
        kitchen: the kitchen.
        form: one of `FORMS`.
    """

    def __init__(self, kitchen: Kitchen, form: str) -> None:
        self.kitchen, self.form = kitchen, form
        self.names = _MACRO_NAMES if form == "macro" else kitchen.names
        self._places = {name: place_number for place_number, name in enumerate(self.names)}
        self.first = self._render_first_observation()
        self._legal: dict[State, tuple[str, ...]] = {}

    def _render_first_observation(self) -> str:
        start = self.kitchen.start
        order = " , ".join(map(part_name, self.kitchen.order))
        shelves = (
            f"on the {self.names[place_number]} {_join_parts(self.kitchen.shelves[place_number])}"
            for place_number in SHELVES
        )
        stations = (
            f"on the {self.names[place_number]} {self._render_content(start, place_number)}"
            for place_number in (*BOARDS, *PLATES)
        )
        return " . ".join((f"order : {order}", *shelves, *stations))

    def _render_content(self, state: State, place_number: int) -> str:
        if place_number in BOARDS:
            part = state.boards[place_number - BOARDS[0]]
            return _join_parts((part,) if part >= 0 else ())
        mask = state.plates[place_number - PLATES[0]]
        return _join_parts([part for part in range(mask.bit_length()) if mask >> part & 1])

    def list_actions(self, state: State) -> tuple[str, ...]:
        """Lists the possible actions as texts, sorted."""
        texts = self._legal.get(state)
        if texts is None:
            list_possible = list_commands if self.form == "commands" else list_macro_actions
            texts = tuple(sorted(self.render_action(action) for action in list_possible(self.kitchen, state)))
            if len(self._legal) < _MAX_CACHED_STATES:
                self._legal[state] = texts
        return texts

    def render_action(self, action: Action) -> str:
        """Renders an action as text."""
        if self.form == "macro":
            return self._render_macro(action)
        if action.verb == "move":
            source, target = self.names[action.source], self.names[action.target]
            return f"move the {_short_part_name(action.part)} from the {source} to the {target}"
        if action.verb == "chop":
            return f"chop the {food_name(action.part)} on the {self.names[action.source]}"
        return f"deliver the {self.names[action.source]}"

    def _render_macro(self, action: Action) -> str:
        if action.verb in ("take", "chop"):
            return f"{action.verb} the {_short_part_name(action.part)}"
        if action.verb == "put":
            destination = "in the bin" if action.target == BIN else f"on {self.names[action.target]}"
            return f"put the {food_name(action.part)} {destination}"
        return f"{action.verb} {self.names[action.source]}"

    def parse_action(self, text: str, state: State) -> Action | str:
        """Parses the action that a text requests; returns the error sentence if the text is invalid."""
        normalized_text = " ".join(text.lower().split())
        match = (_MACRO if self.form == "macro" else _COMMAND).fullmatch(normalized_text)
        if match is None:
            return FORMS[self.form]
        return self._parse_macro(match, state) if self.form == "macro" else self._parse_command(match)

    def _parse_command(self, match: re.Match[str]) -> Action | str:
        moved_name, source, target, chopped_name, board, plate = match.groups()
        if plate is not None:
            place_number = self._places.get(plate, -1)
            return Action("deliver", -1, place_number) if place_number in PLATES else _NO_SUCH_PLACE
        part = _PART_BY_NAME.get(moved_name or chopped_name, -1)
        if part < 0:
            return _NO_SUCH_PART
        if chopped_name is not None:
            place_number = self._places.get(board, -1)
            return Action("chop", part, place_number) if place_number in BOARDS else _NO_SUCH_PLACE
        start, end = self._places.get(source, -1), self._places.get(target, -1)
        if start not in (*SHELVES, *BOARDS, *PLATES) or end not in (*BOARDS, *PLATES, BIN):
            return _NO_SUCH_PLACE
        return Action("move", part, start, end)

    def _parse_macro(self, match: re.Match[str], state: State) -> Action | str:
        taken_name, put_name, kind, number, chopped_name, verb, plate = match.groups()
        if verb is not None:
            return Action(verb, -1, PLATES[_NUMBERS.index(plate)])
        part = _PART_BY_NAME.get(taken_name or put_name or chopped_name, -1)
        if part < 0:
            return _NO_SUCH_PART
        if put_name is not None:
            places_by_kind = {"board": BOARDS, "plate": PLATES}
            target = BIN if kind is None else places_by_kind[kind][_NUMBERS.index(number)]
            return Action("put", state.held_part if state.held_part >> 1 == part >> 1 else part, -1, target)
        among = BOARDS if chopped_name is not None else (*SHELVES, *BOARDS)
        source = find_nearest(self.kitchen, state, part, among=among)
        return Action("take" if chopped_name is None else "chop", part, source)

    def explain_refusal(self, action: Action, reason: str) -> str:
        """Explains in words why an action is impossible."""
        if reason == "hand":
            return _HAND_REFUSALS[action.verb != "put"]
        if reason == "absent" and action.source < 0:
            return _NO_SUCH_PART
        source, target = (
            self.names[place_number] if place_number >= 0 else "" for place_number in (action.source, action.target)
        )
        return _REFUSALS[reason].format(part=_short_part_name(action.part), source=source, target=target)

    def describe_result(self, action: Action, state: State) -> str:
        """Describes the content of the changed place after an action; the world answers a delivery."""
        if action.verb == "take":
            return f"in hand {_short_part_name(action.part)}"
        place_number = action.source if action.verb in ("chop", "clear") else action.target
        return (
            "done"
            if place_number == BIN
            else f"on the {self.names[place_number]} {self._render_content(state, place_number)}"
        )


_MAX_CACHED_STATES = 4096  # lists of actions kept for one task


def _short_part_name(part: int) -> str:
    return f"chopped {food_name(part)}" if part & 1 else food_name(part)


def _join_parts(parts: Sequence[int]) -> str:
    return " , ".join(map(_short_part_name, parts)) or "nothing"


_PART_BY_NAME = {
    **{_short_part_name(part): part for part in range(2 * len(FOODS))},
    **{part_name(part): part for part in range(2 * len(FOODS))},
}
