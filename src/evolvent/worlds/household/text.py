"""Texts of a household: ALFWorld's sentences and commands, in two dialects.

`"0.4"` is alfworld 0.4 (`move X to Y`, `You arrive at Y.`). `"0.3"` is the dialect of games made for alfworld
0.2 and 0.3 (`put X in/on Y`, `You arrive at loc 7.`, no `help`); most published trajectories and prompts use
it. Both dialects accept each other's commands; observations and lists use their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evolvent.worlds.household.game import FAMILIES, Game, State, iterate_bits
from evolvent.worlds.household.rules import Action, list_actions

__all__ = [
    "DIALECTS",
    "HELP",
    "NOTHING",
    "Dialect",
    "Speaker",
    "describe_receptacle",
    "dialect_text",
    "first_observation",
]

NOTHING = "Nothing happens."
"""What every impossible action is answered with."""
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
_MAX_CACHED_TEXTS = 1024  # texts understood once per game
_MAX_CACHED_LENGTH = 80  # characters of a text worth keeping
_MIDDLE_OF_ROOM = "You are in the middle of a room. Looking quickly around you, you see "


@dataclass(frozen=True, slots=True)
class Dialect:
    """The sentences that differ between versions of ALFWorld.

    Args:
        name: the version.
        put: the action that puts an object down.
        put_result: the answer to it.
        names_places: an arrival names the place ("loc 7") and not the receptacle.
        has_help: `help` is an action.
    """

    name: str
    put: str
    put_result: str
    names_places: bool
    has_help: bool


DIALECTS: Mapping[str, Dialect] = {
    "0.4": Dialect("0.4", "move {} to {}", "You move the {} to the {}.", names_places=False, has_help=True),
    "0.3": Dialect("0.3", "put {} in/on {}", "You put the {} in/on the {}.", names_places=True, has_help=False),
}
"""The dialects by version."""

_ACTION_FORMS = {
    "go": "go to {}",
    "open": "open {}",
    "close": "close {}",
    "view": "examine {}",
    "take": "take {} from {}",
    "clean": "clean {} with {}",
    "heat": "heat {} with {}",
    "cool": "cool {} with {}",
    "use": "use {}",
    "feel": "examine {}",
    "slice": "slice {} with {}",
}
_RESULT_FORMS = {
    "close": "You close the {}.",
    "take": "You pick up the {} from the {}.",
    "clean": "You clean the {} using the {}.",
    "heat": "You heat the {} using the {}.",
    "cool": "You cool the {} using the {}.",
    "use": "You turn on the {}.",
    "slice": "You sliced the {} with the {}.",
}
_ONE_ARGUMENT = re.compile(r"(go to|open|close|examine|use) (.+)")
_TWO_ARGUMENTS = re.compile(r"(take|move|put|clean|heat|cool|slice) (.+?) (from|to|in/on|in|on|with) (.+)")
_PREPOSITIONS = {
    "take": ("from",),
    "move": ("to",),
    "put": ("in/on", "in", "on"),
    "clean": ("with",),
    "heat": ("with",),
    "cool": ("with",),
    "slice": ("with",),
}
_RECEPTACLE_VERBS = {"go to": "go", "open": "open", "close": "close", "examine": "view"}
_OBJECT_VERBS = {"use": "use", "examine": "feel"}


_OBSERVATION_TEXTS = (
    "You are facing the. Next to it, you see nothing, and a. On the. The is closed. The is open. In it. You open the.",
    "You arrive at loc. You are carrying: a. You are not carrying anything. There's nothing special about.",
    "This is a normal hot cool and clean cold sliced. This is on. Your task is to:",
)


def dialect_text(dialect: Dialect) -> str:
    """Returns a text with every word and mark of all sentences and actions of a dialect, except names."""
    tasks = (wording.format(obj="", recep="") for family in FAMILIES.values() for wording in family.wordings)
    common_texts = (
        *_OBSERVATION_TEXTS,
        *_ACTION_FORMS.values(),
        *_RESULT_FORMS.values(),
        *tasks,
        _MIDDLE_OF_ROOM,
        NOTHING,
        "look inventory",
    )
    text = " ".join([*common_texts, dialect.put, dialect.put_result, f"help {HELP}" if dialect.has_help else ""])
    return text.replace("{}", " ")


def _join_names(names: Sequence[str]) -> str:
    """Joins names as `a x 1, a y 2, and a z 1`, or returns `nothing`."""
    if not names:
        return "nothing"
    return ", ".join([*[f"a {name}" for name in names[:-1]], f"{'and ' if len(names) > 1 else ''}a {names[-1]}"])


def describe_receptacle(game: Game, state: State, receptacle: int) -> str:
    """Describes a receptacle as the agent in front of it sees it."""
    name = game.names[receptacle]
    if not game.openable >> receptacle & 1:
        return f"On the {name}, you see {_join_names(game.names_in(state.contents[receptacle]))}."
    if not state.opened >> receptacle & 1:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {_join_names(game.names_in(state.contents[receptacle]))}."


def first_observation(game: Game) -> str:
    """Returns the first observation: all receptacles of the room, and the task."""
    if game.here[game.start.agent_place]:
        room_text = _describe_place(game, game.start)
    else:
        names = [name for name, place in zip(game.names, game.place, strict=True) if place >= 0]
        room_text = f"{_MIDDLE_OF_ROOM}{_join_names(names)}."
    return f"{room_text}\n\nYour task is to: {game.task}."


def _describe_place(game: Game, state: State) -> str:
    receptacles_here = game.here[state.agent_place]
    if not receptacles_here:
        # Later looks from the middle of the room list nothing: the engine asks for receptacles at this very place.
        return f"{_MIDDLE_OF_ROOM}nothing."
    facing = [game.names[receptacle] for receptacle in receptacles_here]
    names = ", ".join([*facing[:-1], f"{'and ' if len(facing) > 1 else ''}{facing[-1]}"])
    floor = [
        game.object_names[object_number]
        for object_number in iterate_bits(state.objects_at_places[state.agent_place])
        for receptacle in receptacles_here
        if (object_number, receptacle) in state.separated_pairs
    ]
    return f"You are facing the {names}. Next to it, you see {_join_names(floor)}."


def _describe_object(game: Game, state: State, object_number: int) -> str:
    """Describes the held object. A container shows its content and nothing else."""
    name = game.object_names[object_number]
    if game.objects_with("isreceptacleobject") >> object_number & 1:
        return (
            f"This is a normal {name}. In it, you see {_join_names(game.names_in(game.within.get(object_number, 0)))}."
        )
    hot, cool, clean, sliced = (
        mask >> object_number & 1 for mask in (state.hot, state.cool, state.clean, state.sliced)
    )
    warmth = "hot" if hot else "cool" if cool else ""
    if sliced and (warmth or clean):
        return f"This is a {' and '.join(filter(None, (warmth, 'clean' if clean else '')))} sliced {name}."
    if clean and warmth:
        return f"This is a {warmth} and clean {name}."
    if warmth or clean:
        return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {name}."
    if (state.toggled & game.objects_with("toggleable")) >> object_number & 1:
        return f"This {name} is on."
    if sliced and game.objects_with("sliceable") >> object_number & 1:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


class Speaker:
    """Texts of one game in one dialect: converts actions to and from text, and renders answers. Caches its results."""

    def __init__(self, game: Game, dialect: Dialect) -> None:
        self.game, self.dialect = game, dialect
        self._texts: dict[Action, str] = {}
        self._actions: dict[str, Action | None] = {}

    @cached_property
    def first_observation(self) -> str:
        """Returns the first observation."""
        return first_observation(self.game)

    def list_actions(self, state: State) -> tuple[str, ...]:
        """Lists the possible actions as texts, in alphabetical order."""
        texts, actions = self._texts, list_actions(self.game, state)
        if not self.dialect.has_help:
            actions.remove(Action("help"))
        return tuple(sorted([texts.get(action) or self.render_action(action) for action in actions]))

    def render_action(self, action: Action) -> str:
        """Renders an action as text."""
        text = self._texts[action] = self._fill_form({**_ACTION_FORMS, "move": self.dialect.put}, action) or action.verb
        return text

    def _fill_form(self, forms: Mapping[str, str], action: Action) -> str:
        """Fills the names into the sentence of an action's verb; returns "" if the verb has none."""
        game, (verb, first, second) = self.game, action
        template = forms.get(verb, "")
        if verb in ("go", "open", "close", "view"):
            return template.format(game.names[first])
        if verb in ("use", "feel", "slice"):
            return template.format(game.object_names[first], game.object_names[second])
        return template.format(game.object_names[first], game.names[second]) if template else ""

    def parse_action(self, text: str) -> Action | None:
        """Parses a text as an action, possible or not; returns None if it is not an action. Ignores case and spaces."""
        if text in self._actions:
            return self._actions[text]
        action = self._parse_action(" ".join(text.lower().split()))
        if action is not None and len(self._actions) < _MAX_CACHED_TEXTS and len(text) <= _MAX_CACHED_LENGTH:
            self._actions[text] = action
        return action

    def _parse_action(self, text: str) -> Action | None:
        receptacles, objects = self.game.number, self.game.object_number
        if text in ("look", "inventory") or (text == "help" and self.dialect.has_help):
            return Action(text)
        if match := _ONE_ARGUMENT.fullmatch(text):
            verb, name = match.groups()
            if name in receptacles and verb in _RECEPTACLE_VERBS:
                return Action(_RECEPTACLE_VERBS[verb], receptacles[name])
            is_valid = name in objects and verb in _OBJECT_VERBS
            return Action(_OBJECT_VERBS[verb], objects[name]) if is_valid else None
        match_two = _TWO_ARGUMENTS.fullmatch(text)
        if match_two is None or match_two[3] not in _PREPOSITIONS[match_two[1]]:
            return None
        second = (objects if match_two[1] == "slice" else receptacles).get(match_two[4])
        if match_two[2] not in objects or second is None:
            return None
        return Action("move" if match_two[1] == "put" else match_two[1], objects[match_two[2]], second)

    def describe_result(self, state: State, action: Action) -> str:
        """Describes the result of an action, where `state` is the state after it."""
        game, verb = self.game, action.verb
        if verb == "go":
            destination = game.place_names[state.agent_place] if self.dialect.names_places else game.names[action.first]
            return f"You arrive at {destination}. {describe_receptacle(game, state, action.first)}"
        if verb == "open":
            return f"You open the {game.names[action.first]}. {describe_receptacle(game, state, action.first)}"
        if verb == "view":
            return describe_receptacle(game, state, action.first)
        if verb == "look":
            return _describe_place(game, state)
        if verb == "feel":
            return _describe_object(game, state, action.first)
        if verb == "inventory":
            inventory_text = f"You are carrying: a {game.object_names[state.held_object]}."
            return inventory_text if state.held_object >= 0 else "You are not carrying anything."
        return HELP if verb == "help" else self._fill_form({**_RESULT_FORMS, "move": self.dialect.put_result}, action)
