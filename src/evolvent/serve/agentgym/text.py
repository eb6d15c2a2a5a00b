"""From the text of our worlds to that of AgentGym's servers, and from what its clients send to our worlds' actions.

Most texts pass as they are. Where a world says the same in other words (TextCraft's items, the maze's walls), the words
are exchanged; where a client only knows what the text tells it (BabyAI's actions), it is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.serve.agentgym.grammars import fence, tag, tool_line
from evolvent.worlds.base import World

__all__ = ["Info", "Voice", "admissible", "goal_of", "recipes_of", "voice_of"]

Info = Mapping[str, Any]
_GOAL = re.compile(r"\n\nGoal: craft (.+?)\.?\s*\Z")
_CRAFTED = re.compile(r"Crafted ([0-9]+) (.+)")
_LACKS = re.compile(r"Could not find enough items to craft (.+)")
_WANTED = re.compile(r"get [0-9]+ (.+)")
_MADE = re.compile(r"craft (?:([0-9]+) )?(.+?) using")
_PLACE = re.compile(r"at ([0-9]+) ([0-9]+) goal ([0-9]+) ([0-9]+) walls (.+)")
_WALLS = (("right", "to your right"), ("left", "to your left"), ("up", "above you"), ("down", "below you"))
_WELCOME = re.compile(r"\A-= .* =-\s+")
_TITLE = "Crafting commands:\n"
_HEARD = "Observation: "
_MORE = "\nGive me one action."
_LONGEST_RESULT = 100  # characters of what a query returned
_listing = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for every step


def _same_action(action: str) -> str:
    return action


def _same_first(text: str, info: Info) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Told:
    """What a world answered to an action."""

    text: str
    info: Info
    action: str
    truncated: bool


def _same_later(told: Told) -> str:
    return told.text


@dataclass(frozen=True, slots=True)
class Voice:
    """How one world speaks one dialect.

    Args:
        hear: what a client sent -> the world's action; raises InvalidAction where no step can be made of it.
        first: the world's first text and info -> the dialect's.
        later: the world's answer -> the dialect's.
        seen: the last text as `/observation` tells it.
    """

    hear: Callable[[str], str] = _same_action
    first: Callable[[str, Info], str] = _same_first
    later: Callable[[Told], str] = _same_later
    seen: Callable[[str], str] = _same_action

    def answered(self, text: str, info: Info, *, action: str, truncated: bool) -> str:
        """The dialect's text of the world's answer to an action."""
        return self.later(Told(text, info, action, truncated))


def admissible(info: Info) -> list[str]:
    """The legal actions that an info lists, else none."""
    listed = info.get("admissible")
    return [str(action) for action in listed] if isinstance(listed, (list, tuple)) else []


def voice_of(dialect: str, world: World) -> Voice:
    """The voice of a world in a dialect."""
    if dialect == "textcraft":
        return Voice(first=_titled, later=_textcraft if world.name == "textcraft" else _same_later)
    return _VOICES.get(dialect, Voice())


# ------------------------------------------------------------------------------------------------------- TextCraft


def _titled(text: str, info: Info) -> str:
    return text if text.startswith(_TITLE) or "\n\nGoal: " not in text else _TITLE + text


def _id(item: str) -> str:
    return f"minecraft:{item.replace(' ', '_')}"


def _textcraft(told: Told) -> str:
    """TextCraft's sentences. It names an item by its id where something was crafted or is missing."""
    text = told.text
    if crafted := _CRAFTED.fullmatch(text):
        return f"Crafted {crafted[1]} {_id(crafted[2])}"
    if lacks := _LACKS.fullmatch(text):
        return f"Could not find enough items to craft {_id(lacks[1])}"
    if text == "Inventory: nothing":
        return "Inventory: You are not carrying anything."
    if text.startswith("Inventory: "):
        held = (part.partition(" ") for part in text.removeprefix("Inventory: ").split(", "))
        return "Inventory: " + "".join(f"[{item}] ({count}) " for count, _, item in held)
    if text == "Could not find that item" and (wanted := _WANTED.match(told.action)):
        return f"Could not find {wanted[1]}"
    if text.startswith("Could not find a valid recipe") and (made := _MADE.match(told.action)):
        item = f"ItemTag(tag=None, item_id='{_id(made[2])}')"
        return f"Could not find a valid recipe for ItemTagWithCount(item_tag={item}, count={made[1] or 1})"
    return f"Could not execute {told.action}" if text.startswith("Could not understand") else text


def goal_of(text: str) -> str:
    """What a first observation asks to craft; empty where it names nothing."""
    found = _GOAL.search(text)
    return found[1] if found else ""


def recipes_of(text: str) -> str:
    """The recipes of a first observation, one a line."""
    return _GOAL.sub("", text).removeprefix(_TITLE)


# ---------------------------------------------------------------------------------------------------- BabyAI, maze


def _listed(text: str, info: Info) -> str:
    """The legal actions are told with every observation; names hold no quotation marks."""
    actions = admissible(info)
    if "Available actions: [" in text or not actions:
        return text
    return f"{text}\nAvailable actions: {_listing(actions)}"


def _goal_first(text: str, info: Info) -> str:
    return _listed(text if text.startswith("Your goal: ") else f"Your goal: {text}", info)


def _placed(text: str, info: Info) -> str:
    found = _PLACE.fullmatch(text)
    if found is None:
        return text
    walls = [told for name, told in _WALLS if name in found[5].split()]
    near = "There are no walls near you." if not walls else f"There are walls {', '.join(walls)}."
    near = f"There is a wall {walls[0]}." if len(walls) == 1 else near
    goal, here = f"{found[3]}, {found[4]}", f"{found[1]}, {found[2]}"
    return f"The goal is at position {goal}. Your current position is at position {here}. {near}"


def _walked(told: Told) -> str:
    if told.text == "goal reached":
        return "Success\n"
    return "Failure\n" if told.truncated else _placed(told.text, told.info)


# ---------------------------------------------------------------------------------------------- tools, SQL, the rest


def _call(text: str) -> str:
    """The call on the last line, `NAME {json}`; whether the input can be read is the world's to say."""
    name, given = tool_line(text)
    return f"{name} {given}" if given else name


def _trial(text: str, info: Info) -> str:
    return f"Now new trial starts.\nYou should perform actions to accomplish the goal: {text}{_MORE}"


def _observed(told: Told) -> str:
    return f"{_HEARD}{told.text}{_MORE}"


def _observation(text: str) -> str:
    return text.removesuffix(_MORE) if text.startswith(_HEARD) else text


def _cut(told: Told) -> str:
    return told.text if len(told.text) <= _LONGEST_RESULT else f"{told.text[:_LONGEST_RESULT]}..."


def _unwelcomed(text: str, info: Info) -> str:
    return _WELCOME.sub("", text)


_TOOLS = Voice(_call, _trial, _observed, _observation)
_VOICES: Mapping[str, Voice] = {
    "babyai": Voice(first=_goal_first, later=lambda told: _listed(told.text, told.info)),
    "alfworld": Voice(first=_unwelcomed),
    "maze": Voice(first=_placed, later=_walked),
    **dict.fromkeys(("weather", "movie", "academia", "todo", "sheet"), _TOOLS),
    "sqlgym": Voice(later=_cut),
    "searchqa": Voice(hear=tag),
    "webarena": Voice(hear=fence),
}
