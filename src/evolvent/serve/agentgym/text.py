"""Translates between the text of our worlds and that of AgentGym's servers, in both directions.

Most texts pass unchanged. Where a world uses other words (TextCraft's items, the maze's walls), the words are
exchanged; where a client knows only the text (BabyAI's actions), the text lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evolvent.serve.agentgym.grammars import extract_block, extract_tag, split_tool_line
from evolvent.trajectory import JsonObject
from evolvent.worlds.base import World

__all__ = ["Info", "TextTranslator", "get_translator", "list_admissible", "parse_goal", "parse_recipes"]

Info = JsonObject
_GOAL = re.compile(r"\n\nGoal: craft (.+?)\.?\s*\Z")
_CRAFTED = re.compile(r"Crafted ([0-9]+) (.+)")
_LACKS = re.compile(r"Could not find enough items to craft (.+)")
_REQUESTED = re.compile(r"get [0-9]+ (.+)")
_RECIPE = re.compile(r"craft (?:([0-9]+) )?(.+?) using")
_POSITION = re.compile(r"at ([0-9]+) ([0-9]+) goal ([0-9]+) ([0-9]+) walls (.+)")
_WALLS = (("right", "to your right"), ("left", "to your left"), ("up", "above you"), ("down", "below you"))
_WELCOME = re.compile(r"\A-= .* =-\s+")
_TITLE = "Crafting commands:\n"
_OBSERVATION_PREFIX = "Observation: "
_ACTION_PROMPT = "\nGive me one action."
_MAX_RESULT_CHARS = 100  # characters of what a query returned
_encode_list = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for every step


def _keep_action(action: str) -> str:
    return action


def _keep_first(text: str, info: Info) -> str:
    return text


@dataclass(frozen=True, slots=True)
class WorldReply:
    """The answer of a world to an action."""

    text: str
    info: Info
    action: str
    truncated: bool


def _keep_later(reply: WorldReply) -> str:
    return reply.text


@dataclass(frozen=True, slots=True)
class TextTranslator:
    """Translates the texts of one world for one dialect.

    Args:
        parse_action: client's text -> the world's action; raises InvalidAction if it holds none.
        format_first: the world's first text and info -> the dialect's text.
        format_later: the world's answer -> the dialect's text.
        observation: the last text -> the answer of `/observation`.
    """

    parse_action: Callable[[str], str] = _keep_action
    format_first: Callable[[str, Info], str] = _keep_first
    format_later: Callable[[WorldReply], str] = _keep_later
    observation: Callable[[str], str] = _keep_action

    def translate(self, text: str, info: Info, *, action: str, truncated: bool) -> str:
        """Translates the world's answer to an action."""
        return self.format_later(WorldReply(text, info, action, truncated))


def list_admissible(info: Info) -> list[str]:
    """Returns the legal actions that an info lists, else none."""
    listed = info.get("admissible")
    return [str(action) for action in listed] if isinstance(listed, (list, tuple)) else []


def get_translator(dialect: str, world: World) -> TextTranslator:
    """Returns the translator of a world in a dialect."""
    if dialect == "textcraft":
        return TextTranslator(
            format_first=_add_title, format_later=_translate_textcraft if world.name == "textcraft" else _keep_later
        )
    return _TRANSLATORS.get(dialect, TextTranslator())


# ------------------------------------------------------------------------------------------------------- TextCraft


def _add_title(text: str, info: Info) -> str:
    return text if text.startswith(_TITLE) or "\n\nGoal: " not in text else _TITLE + text


def _item_id(item: str) -> str:
    return f"minecraft:{item.replace(' ', '_')}"


def _translate_textcraft(reply: WorldReply) -> str:
    """Translates TextCraft's sentences. It names an item by its id where something was crafted or is missing."""
    text = reply.text
    if crafted := _CRAFTED.fullmatch(text):
        return f"Crafted {crafted[1]} {_item_id(crafted[2])}"
    if missing := _LACKS.fullmatch(text):
        return f"Could not find enough items to craft {_item_id(missing[1])}"
    if text == "Inventory: nothing":
        return "Inventory: You are not carrying anything."
    if text.startswith("Inventory: "):
        item_counts = (part.partition(" ") for part in text.removeprefix("Inventory: ").split(", "))
        return "Inventory: " + "".join(f"[{item}] ({count}) " for count, _, item in item_counts)
    if text == "Could not find that item" and (requested := _REQUESTED.match(reply.action)):
        return f"Could not find {requested[1]}"
    if text.startswith("Could not find a valid recipe") and (recipe := _RECIPE.match(reply.action)):
        item = f"ItemTag(tag=None, item_id='{_item_id(recipe[2])}')"
        return f"Could not find a valid recipe for ItemTagWithCount(item_tag={item}, count={recipe[1] or 1})"
    return f"Could not execute {reply.action}" if text.startswith("Could not understand") else text


def parse_goal(text: str) -> str:
    """Returns the item that a first observation asks to craft; empty if it names none."""
    match = _GOAL.search(text)
    return match[1] if match else ""


def parse_recipes(text: str) -> str:
    """Returns the recipes of a first observation, one a line."""
    return _GOAL.sub("", text).removeprefix(_TITLE)


# ---------------------------------------------------------------------------------------------------- BabyAI, maze


def _append_actions(text: str, info: Info) -> str:
    """Lists the legal actions with every observation; names hold no quotation marks."""
    actions = list_admissible(info)
    if "Available actions: [" in text or not actions:
        return text
    return f"{text}\nAvailable actions: {_encode_list(actions)}"


def _add_goal(text: str, info: Info) -> str:
    return _append_actions(text if text.startswith("Your goal: ") else f"Your goal: {text}", info)


def _format_position(text: str, info: Info) -> str:
    match = _POSITION.fullmatch(text)
    if match is None:
        return text
    walls = [description for name, description in _WALLS if name in match[5].split()]
    walls_text = "There are no walls near you." if not walls else f"There are walls {', '.join(walls)}."
    walls_text = f"There is a wall {walls[0]}." if len(walls) == 1 else walls_text
    goal, position = f"{match[3]}, {match[4]}", f"{match[1]}, {match[2]}"
    return f"The goal is at position {goal}. Your current position is at position {position}. {walls_text}"


def _translate_move(reply: WorldReply) -> str:
    if reply.text == "goal reached":
        return "Success\n"
    return "Failure\n" if reply.truncated else _format_position(reply.text, reply.info)


# ---------------------------------------------------------------------------------------------- tools, SQL, the rest


def _parse_tool_call(text: str) -> str:
    """Returns the call on the last line, `NAME {json}`; the world checks whether the input can be read."""
    name, arguments_text = split_tool_line(text)
    return f"{name} {arguments_text}" if arguments_text else name


def _format_trial(text: str, info: Info) -> str:
    return f"Now new trial starts.\nYou should perform actions to accomplish the goal: {text}{_ACTION_PROMPT}"


def _format_observation(reply: WorldReply) -> str:
    return f"{_OBSERVATION_PREFIX}{reply.text}{_ACTION_PROMPT}"


def _strip_prompt(text: str) -> str:
    return text.removesuffix(_ACTION_PROMPT) if text.startswith(_OBSERVATION_PREFIX) else text


def _truncate_result(reply: WorldReply) -> str:
    return reply.text if len(reply.text) <= _MAX_RESULT_CHARS else f"{reply.text[:_MAX_RESULT_CHARS]}..."


def _remove_welcome(text: str, info: Info) -> str:
    return _WELCOME.sub("", text)


_TOOL_TRANSLATOR = TextTranslator(_parse_tool_call, _format_trial, _format_observation, _strip_prompt)
_TRANSLATORS: Mapping[str, TextTranslator] = {
    "babyai": TextTranslator(
        format_first=_add_goal, format_later=lambda reply: _append_actions(reply.text, reply.info)
    ),
    "alfworld": TextTranslator(format_first=_remove_welcome),
    "maze": TextTranslator(format_first=_format_position, format_later=_translate_move),
    **dict.fromkeys(("weather", "movie", "academia", "todo", "sheet"), _TOOL_TRANSLATOR),
    "sqlgym": TextTranslator(format_later=_truncate_result),
    "searchqa": TextTranslator(parse_action=extract_tag),
    "webarena": TextTranslator(parse_action=extract_block),
}
