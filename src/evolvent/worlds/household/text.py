"""What a household says and how it is spoken to: ALFWorld's sentences, in two dialects.

`"0.4"` is alfworld 0.4 (`move X to Y`, `You arrive at Y.`). `"0.3"` is what games made for alfworld 0.2 and 0.3 say
(`put X in/on Y`, `You arrive at loc 7.`, no `help`); most published trajectories and prompts are in it. Texts of either
dialect are understood in both; what is shown and listed is the dialect's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evolvent.worlds.household.game import FAMILIES, Game, State, bits
from evolvent.worlds.household.rules import Action, legal

__all__ = ["DIALECTS", "HELP", "NOTHING", "Dialect", "Speaker", "first_text", "view", "words_said"]

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
_KNOWN_TEXTS = 1024  # texts understood once per game
_LONGEST_KNOWN = 80  # characters of a text worth keeping
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see "


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one version of ALFWorld says what the versions say differently.

    Args:
        name: the version.
        put: the action that puts an object down.
        done: what it is answered with.
        by_place: an arrival names the place ("loc 7") and not the receptacle.
        helps: `help` is an action.
    """

    name: str
    put: str
    done: str
    by_place: bool
    helps: bool


DIALECTS: Mapping[str, Dialect] = {
    "0.4": Dialect("0.4", "move {} to {}", "You move the {} to the {}.", by_place=False, helps=True),
    "0.3": Dialect("0.3", "put {} in/on {}", "You put the {} in/on the {}.", by_place=True, helps=False),
}
"""The dialects by version."""

_SAID = {
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
_DONE = {
    "close": "You close the {}.",
    "take": "You pick up the {} from the {}.",
    "clean": "You clean the {} using the {}.",
    "heat": "You heat the {} using the {}.",
    "cool": "You cool the {} using the {}.",
    "use": "You turn on the {}.",
    "slice": "You sliced the {} with the {}.",
}
_ONE = re.compile(r"(go to|open|close|examine|use) (.+)")
_TWO = re.compile(r"(take|move|put|clean|heat|cool|slice) (.+?) (from|to|in/on|in|on|with) (.+)")
_LINKS = {
    "take": ("from",),
    "move": ("to",),
    "put": ("in/on", "in", "on"),
    "clean": ("with",),
    "heat": ("with",),
    "cool": ("with",),
    "slice": ("with",),
}
_OF_RECEPTACLE = {"go to": "go", "open": "open", "close": "close", "examine": "view"}
_OF_OBJECT = {"use": "use", "examine": "feel"}


_LOOKS = (
    "You are facing the. Next to it, you see nothing, and a. On the. The is closed. The is open. In it. You open the.",
    "You arrive at loc. You are carrying: a. You are not carrying anything. There's nothing special about.",
    "This is a normal hot cool and clean cold sliced. This is on. Your task is to:",
)


def words_said(dialect: Dialect) -> str:
    """A text that holds every word and mark of all sentences and actions of a dialect, names apart."""
    tasks = (wording.format(obj="", recep="") for family in FAMILIES.values() for wording in family.wordings)
    always = (*_LOOKS, *_SAID.values(), *_DONE.values(), *tasks, _MIDDLE, NOTHING, "look inventory")
    said = " ".join([*always, dialect.put, dialect.done, f"help {HELP}" if dialect.helps else ""])
    return said.replace("{}", " ")


def _list(names: Sequence[str]) -> str:
    """`a x 1, a y 2, and a z 1`, or `nothing`."""
    if not names:
        return "nothing"
    return ", ".join([*[f"a {name}" for name in names[:-1]], f"{'and ' if len(names) > 1 else ''}a {names[-1]}"])


def view(game: Game, state: State, receptacle: int) -> str:
    """What is seen of a receptacle by who stands before it."""
    name = game.names[receptacle]
    if not game.openable >> receptacle & 1:
        return f"On the {name}, you see {_list(game.listed(state.contents[receptacle]))}."
    if not state.opened >> receptacle & 1:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {_list(game.listed(state.contents[receptacle]))}."


def first_text(game: Game) -> str:
    """The first observation: all receptacles of the room, and the task."""
    if game.here[game.start.at]:
        around = _look(game, game.start)
    else:
        around = f"{_MIDDLE}{_list([name for name, place in zip(game.names, game.place, strict=True) if place >= 0])}."
    return f"{around}\n\nYour task is to: {game.task}."


def _look(game: Game, state: State) -> str:
    here = game.here[state.at]
    if not here:
        # Later looks from the middle of the room list nothing: the engine asks for receptacles at this very place.
        return f"{_MIDDLE}nothing."
    facing = [game.names[r] for r in here]
    names = ", ".join([*facing[:-1], f"{'and ' if len(facing) > 1 else ''}{facing[-1]}"])
    floor = [game.object_names[o] for o in bits(state.lying[state.at]) for r in here if (o, r) in state.parted]
    return f"You are facing the {names}. Next to it, you see {_list(floor)}."


def _feel(game: Game, state: State, o: int) -> str:
    """How the held object looks. What can hold other things shows them and nothing else."""
    name = game.object_names[o]
    if game.having("isreceptacleobject") >> o & 1:
        return f"This is a normal {name}. In it, you see {_list(game.listed(game.within.get(o, 0)))}."
    hot, cool, clean, sliced = (mask >> o & 1 for mask in (state.hot, state.cool, state.clean, state.sliced))
    warmth = "hot" if hot else "cool" if cool else ""
    if sliced and (warmth or clean):
        return f"This is a {' and '.join(filter(None, (warmth, 'clean' if clean else '')))} sliced {name}."
    if clean and warmth:
        return f"This is a {warmth} and clean {name}."
    if warmth or clean:
        return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {name}."
    if (state.toggled & game.having("toggleable")) >> o & 1:
        return f"This {name} is on."
    if sliced and game.having("sliceable") >> o & 1:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


class Speaker:
    """The voice of one game in one dialect: actions to and from text, and answers. Keeps what it worked out."""

    def __init__(self, game: Game, dialect: Dialect) -> None:
        self.game, self.dialect = game, dialect
        self._texts: dict[Action, str] = {}
        self._actions: dict[str, Action | None] = {}

    @cached_property
    def first(self) -> str:
        """The first observation."""
        return first_text(self.game)

    def legal(self, state: State) -> tuple[str, ...]:
        """The possible actions as texts, in alphabetical order."""
        texts, found = self._texts, legal(self.game, state)
        if not self.dialect.helps:
            found.remove(Action("help"))
        return tuple(sorted([texts.get(action) or self.say(action) for action in found]))

    def say(self, action: Action) -> str:
        """The text of an action."""
        text = self._texts[action] = self._fill({**_SAID, "move": self.dialect.put}, action) or action.verb
        return text

    def _fill(self, forms: Mapping[str, str], action: Action) -> str:
        """The sentence of an action's verb with the names filled in, "" where there is none."""
        game, (verb, first, second) = self.game, action
        form = forms.get(verb, "")
        if verb in ("go", "open", "close", "view"):
            return form.format(game.names[first])
        if verb in ("use", "feel", "slice"):
            return form.format(game.object_names[first], game.object_names[second])
        return form.format(game.object_names[first], game.names[second]) if form else ""

    def understand(self, text: str) -> Action | None:
        """What a text means, possible or not; None if it is no action. Case and spaces do not matter."""
        if text in self._actions:
            return self._actions[text]
        action = self._understand(" ".join(text.lower().split()))
        if action is not None and len(self._actions) < _KNOWN_TEXTS and len(text) <= _LONGEST_KNOWN:
            self._actions[text] = action
        return action

    def _understand(self, text: str) -> Action | None:
        receptacles, objects = self.game.number, self.game.object_number
        if text in ("look", "inventory") or (text == "help" and self.dialect.helps):
            return Action(text)
        if one := _ONE.fullmatch(text):
            verb, name = one.groups()
            if name in receptacles and verb in _OF_RECEPTACLE:
                return Action(_OF_RECEPTACLE[verb], receptacles[name])
            known = name in objects and verb in _OF_OBJECT
            return Action(_OF_OBJECT[verb], objects[name]) if known else None
        two = _TWO.fullmatch(text)
        if two is None or two[3] not in _LINKS[two[1]]:
            return None
        second = (objects if two[1] == "slice" else receptacles).get(two[4])
        if two[2] not in objects or second is None:
            return None
        return Action("move" if two[1] == "put" else two[1], objects[two[2]], second)

    def answer(self, state: State, action: Action) -> str:
        """What is said after an action, where `state` is the one that it led to."""
        game, verb = self.game, action.verb
        if verb == "go":
            where = game.place_names[state.at] if self.dialect.by_place else game.names[action.first]
            return f"You arrive at {where}. {view(game, state, action.first)}"
        if verb == "open":
            return f"You open the {game.names[action.first]}. {view(game, state, action.first)}"
        if verb == "view":
            return view(game, state, action.first)
        if verb == "look":
            return _look(game, state)
        if verb == "feel":
            return _feel(game, state, action.first)
        if verb == "inventory":
            held = f"You are carrying: a {game.object_names[state.held]}."
            return held if state.held >= 0 else "You are not carrying anything."
        return HELP if verb == "help" else self._fill({**_DONE, "move": self.dialect.done}, action)
